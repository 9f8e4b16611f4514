// Sums over some axes of a loss or of its derivative: the gradient of an operand that was broadcast
// along them, or the mean of each row.
//
// Fuses the function and its sum. Reads every operand once and writes the sums. Bytes an element,
// where input and target have s bytes: between s and 2s, as what is broadcast is read from the
// cache.
//
// A sum is the work of some threads of a block. If its terms are neighbours in memory, so are the
// terms of neighbouring threads, each of which has vectors of them. If neighbouring terms are those
// of neighbouring sums, neighbouring threads work on neighbouring sums, or on vectors of these.
//
// Order of summation: the terms of a sum form chunks. A thread adds its terms of a chunk in order,
// a block adds the threads of a sum. Where there is more than one chunk, a second launch adds the
// chunks.
#include "kernels/elements.cuh"

// How a thread adds, as cupy_losses/_device/element_launches.py chooses.
struct SumTeam {
  int threads;  // of a block
  int width;    // the neighbouring elements of a vector
  int batch;    // the vectors that a thread loads before it uses the first
  bool beside;  // whether these elements are terms of as many sums, or else of one
  int along;    // the dimension that the terms of a sum lie along, or -1 if there are several
  int plain;    // how many terms are added before a rounding error is kept

  // Of a vector.
  __device__ constexpr int sums() const { return beside ? width : 1; }
  __device__ constexpr int terms() const { return beside ? 1 : width; }
};

// The terms of one thread.
template <class Work, SumTeam TEAM, int OPERAND>
struct Adder {
  using T = typename Work::Scalar;
  using Vectors = typename Work::Vectors;
  const Work& work;
  Sum<T> sums[TEAM.sums()];

  // Adds the terms from `first` on that are ahead of `end`, of vectors that are `step` terms apart.
  // The first one begins with `element`; from one to the next `stride` elements are counted.
  DEVICE void add(long long element, long long stride, long long first, long long end, int step) {
    auto at = work.layout.locate(element);
    for (; first < end; first += TEAM.batch * step) {
      const int left = int(min(end - first, (long long)(TEAM.batch * step)));
      Vectors vectors[TEAM.batch];
#pragma unroll
      for (int p = 0; p < TEAM.batch; ++p) {
        if (p * step >= left) continue;
        work.load(vectors[p], at);
        if constexpr (TEAM.along >= 0) {
          at = work.layout.template moved<TEAM.along>(at, step);
        } else {
          element += stride;
          at = work.layout.locate(element);
        }
      }
      add_batch(vectors, left, step);
    }
  }

 private:
  DEVICE void add_batch(const Vectors (&vectors)[TEAM.batch], int left, int step) {
    T plain_sums[TEAM.sums()] = {};
#pragma unroll
    for (int p = 0; p < TEAM.batch; ++p) {
      if (p * step < left) {
        const auto x = work.widened(vectors[p]);
#pragma unroll
        for (int j = 0; j < TEAM.width; ++j) {
          const int own = TEAM.beside ? j : 0, before = TEAM.beside ? p : p * TEAM.width + j;
          plain_sums[own] += term(x, j);
          if ((before + 1) % TEAM.plain == 0) keep(plain_sums, own);
        }
      }
    }
    if constexpr (TEAM.plain > 1) {  // where the last ones are fewer
#pragma unroll
      for (int s = 0; s < TEAM.sums(); ++s) keep(plain_sums, s);
    }
  }
  DEVICE void keep(T (&plain_sums)[TEAM.sums()], int own) {
    sums[own] += plain_sums[own];
    plain_sums[own] = T(0);
  }
  DEVICE T term(const auto& x, int j) const {
    const auto loss_of_element = work.template evaluate<OPERAND>(x, j);
    if constexpr (OPERAND >= 0) {
      return plain(loss_of_element.slope);
    } else {
      return plain(loss_of_element);
    }
  }
};

// The sums of the derivative by OPERAND. OPERAND = -1 sums the values instead, for example partial
// sums. The dimensions of the layout are those of the sums, then those of their terms; the other
// way round where terms lie `beside` those of other sums. A block has `of_block` of the `outputs`,
// or vectors of them, and chunk blockIdx.y of their terms, of `chunk` of the `repeats`. With one
// chunk the results are final; with more there is a partial sum for each output and chunk.
// `divisor`, `denominator` and EMPTY_IS_ZERO are as in reduction/reduction.cuh, `scale` is as in
// kernels/pointwise.cu.
template <class T, class Loss, class Layout, SumTeam TEAM, int OPERAND, bool EMPTY_IS_ZERO,
          class Result, class... P>
__global__ void __launch_bounds__(TEAM.threads)
    broadcast_sum(Loss loss, double scale, Layout layout, int of_block, long long outputs,
                  long long repeats, long long chunk, double divisor, const double* denominator,
                  Result* result, P... pointer) {
  using Pointers = Tuple<P...>;
  using Work = Worker<T, Loss, Layout, TEAM.width, NO_VALUES, 0u, Result, Pointers>;
  constexpr int SUMS = TEAM.sums(), TERMS = TEAM.terms();

  const Pointers pointers{{pointer}...};
  const Work work{loss, layout, pointers, Reciprocal<T>(1.0), nullptr};
  // The division takes long: one thread divides for all sums of the block.
  __shared__ Reciprocal<double> reciprocal;
  if (threadIdx.x == 0) {
    if (denominator != nullptr) divisor = *denominator;
    const Scaling<Work::ARRAYS, Pointers> scaling{scale, pointers};
    divisor = denominator_of_derivatives<EMPTY_IS_ZERO>(divisor);
    reciprocal = Reciprocal<double>(divisor, 1.0, scaling.value());
  }
  // The threads of a sum: this one is number `part` of them, and its sum `own` of the block.
  const int threads = TEAM.threads / of_block, thread = threadIdx.x;
  const int own = TEAM.beside ? thread % of_block : thread / threads;
  const int part = TEAM.beside ? thread / of_block : thread % threads;
  const long long output = ((long long)(blockIdx.x) * of_block + own) * SUMS;
  const long long begin = (long long)(blockIdx.y) * chunk, end = min(begin + chunk, repeats);
  const long long first = begin + part * TERMS;
  const int step = threads * TERMS;

  Adder<Work, TEAM, OPERAND> adder{work, {}};
  if (output < outputs && part < threads) {
    if constexpr (TEAM.beside) {
      adder.add(first * outputs + output, step * outputs, first, end, step);
    } else {
      adder.add(output * repeats + first, step, first, end, step);
    }
  }
  if constexpr (TEAM.beside) interleaved_sums<TEAM.threads>(adder.sums, of_block);
  Sum<double> sums[SUMS];
#pragma unroll
  for (int s = 0; s < SUMS; ++s) sums[s] = adder.sums[s].widened();
  if constexpr (!TEAM.beside) {
    if (threads == TEAM.threads) {
      block_sums<TEAM.threads>(sums);
    } else {
      warp_sums(sums, threads);
    }
  }
  __syncthreads();  // the reciprocal is there
  if (part != 0 || output >= outputs) return;
#pragma unroll
  for (int s = 0; s < SUMS; ++s) {
    result[(output + s) * gridDim.y + blockIdx.y] = reciprocal.times<Result>(sums[s].total());
  }
}
