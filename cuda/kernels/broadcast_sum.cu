// The gradient of an operand that was broadcast.
//
// Fuses the derivative and its sum over the elements that one number of the operand was broadcast
// to. Reads every operand once and writes the operand's own shape. Bytes an element, where input
// and target have s bytes: between s and 2s, as what is broadcast is read from the cache.
//
// Order of summation: the repeats of an output form chunks. A thread adds its elements of a chunk
// in order, a block adds its threads in order. Where there is more than one chunk, a second launch
// adds the chunks.
#include "kernels/elements.cuh"

// The derivative by OPERAND, summed over the elements that it was broadcast to. OPERAND = -1 sums
// the values instead, for example partial sums. The layout lists the operand's own dimensions
// first, then those it was broadcast along: element output * repeats + r. A block computes
// OUTPUTS_PER_BLOCK outputs, 32 where neighbouring outputs are neighbours in memory, else 1. It
// adds chunk blockIdx.y of the repeats, of `chunk` of them. With one chunk the result is final;
// with more there is a partial sum for each output and chunk. `divisor`, `denominator` and
// `scale` are as in kernels/pointwise.cu, EMPTY_IS_ZERO is as in reduction/reduction.cuh.
template <class T, class Loss, class Layout, int THREADS, int OUTPUTS_PER_BLOCK, int OPERAND,
          bool EMPTY_IS_ZERO, class Result, class... P>
__global__ void __launch_bounds__(THREADS)
    broadcast_sum(Loss loss, double scale, Layout layout, long long outputs, long long repeats,
                  long long chunk, double divisor, const double* denominator, Result* result,
                  P... pointer) {
  using Pointers = Tuple<P...>;
  using Work = Worker<T, Loss, Layout, 1, NO_VALUES, 0u, Result, Pointers>;
  constexpr int THREADS_PER_OUTPUT = THREADS / OUTPUTS_PER_BLOCK;

  const Pointers pointers{{pointer}...};
  if (denominator != nullptr) divisor = *denominator;
  const Scaling<Work::ARRAYS, Pointers> scaling{scale, pointers};
  const Work work{loss, layout, pointers, Reciprocal<T>(1.0), nullptr};
  const int own_output = threadIdx.x % OUTPUTS_PER_BLOCK, thread = threadIdx.x / OUTPUTS_PER_BLOCK;
  const long long output = (long long)blockIdx.x * OUTPUTS_PER_BLOCK + own_output;
  const long long first = (long long)blockIdx.y * chunk;
  const long long end = min(first + chunk, repeats);

  Sum<T> own = Sum<T>::zero();
  if (output < outputs) {
    for (long long r = first + thread; r < end; r += THREADS_PER_OUTPUT) {
      typename Work::Vectors vectors;
      work.load(vectors, output * repeats + r);
      const auto loss_of_element = work.template evaluate<OPERAND>(work.widened(vectors), 0);
      if constexpr (OPERAND >= 0) {
        own += plain(loss_of_element.slope);
      } else {
        own += plain(loss_of_element);
      }
    }
  }
  Sum<double> sums[] = {own.widened()};
  if constexpr (OUTPUTS_PER_BLOCK == 1) {
    block_sums<THREADS>(sums);
  } else {
    sums[0] = interleaved_sums<THREADS, OUTPUTS_PER_BLOCK>(sums[0]);
  }
  if (thread == 0 && output < outputs) {
    result[output * gridDim.y + blockIdx.y] =
        reduced<EMPTY_IS_ZERO, Result>(sums[0], divisor, scaling.value());
  }
}
