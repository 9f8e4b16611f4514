// All passes of all pointwise losses: the loss of each element, its sum or mean, its gradients, or
// loss and gradients together.
//
// pointwise      one read of every operand, one write of every output. Bytes an element, with
//                operands and gradients of s bytes: mean or sum of input and target 2s; with the
//                gradient of the input 3s; reduction none 3s; its backward 4s.
// gradient_sum   the gradient of an operand that was broadcast: reads every operand once, writes
//                the operand's own shape.
// scale          gradient *= grad_output, 2s bytes an element; returns at once where that is 1.
//
// Order of summation: the elements form tiles of Tile::ELEMENTS, the tiles form segments. A thread
// adds its elements of a segment in order, a block adds its threads, the last block adds the
// segments. Tiles and segments follow from the shape and the dtypes; the grid only decides which
// block computes which segment.
#include "losses/combinators.cuh"
#include "memory/layout.cuh"
#include "losses/pointwise.cuh"
#include "reduction/sum.cuh"
#include "reduction/reduction.cuh"

// A tile: THREADS threads with PACKS packs of WIDTH elements each. BATCH of the packs are loaded
// before the first is used; it changes the speed, never the order of summation.
template <int THREADS_, int PACKS_, int WIDTH_, int BATCH_>
struct Tile {
  static constexpr int THREADS = THREADS_, PACKS = PACKS_, WIDTH = WIDTH_, BATCH = BATCH_;
  static constexpr int ELEMENTS = THREADS * PACKS * WIDTH;

  // The first element of a thread's pack in a tile.
  static __device__ __forceinline__ long long element(long long tile, int pack) {
    return tile * ELEMENTS + (pack * THREADS + int(threadIdx.x)) * WIDTH;
  }
};

template <bool VARIES, class T>
__device__ __forceinline__ auto seed(T x) {
  if constexpr (VARIES) {
    return Dual<Real<T>>(Real<T>(x), Real<T>(1));
  } else {
    return Real<T>(x);
  }
}

// One thread's work on packs of neighbouring elements. Pointers: those of the operands, then those
// of the gradients of the operands in WANTED.
template <class T, class Loss, class Layout, int WIDTH, Values VALUES, unsigned WANTED,
          class Result, class Pointers, class K = Range<Layout::OPERANDS>>
struct Worker;

template <class T, class Loss, class Layout, int WIDTH, Values VALUES, unsigned WANTED,
          class Result, class Pointers, int... K>
struct Worker<T, Loss, Layout, WIDTH, VALUES, WANTED, Result, Pointers, Indices<K...>> {
  template <int I>
  static __device__ __forceinline__ auto element_type(const At<I, Pointers> pointer) {
    return *pointer;
  }
  template <int I>
  using Element = decltype(element_type<I>(At<I, Pointers>()));
  // Slot I of the pointers belongs to the gradient of operand I.
  template <int I>
  static constexpr int GRADIENT = Layout::OPERANDS + ones_below(WANTED, I);

  using Packs = Tuple<Pack<Element<K>, WIDTH>...>;
  using Wide = Tuple<Pack<Repeat<T, K>, WIDTH>...>;
  using Gradients = Packs;

  const Loss& loss;
  const Layout& layout;
  const Pointers& pointers;
  const Reciprocal<T> scale;
  Result* const values;
  Sum<T> sum = Sum<T>::zero();
  Sum<T> shares = Sum<T>::zero();

  __device__ __forceinline__ void load(Packs& packs, long long element) const {
    const auto at = layout.locate(element);
    ((get<K>(packs) = layout.template load_pack<K, WIDTH>(get<K>(pointers), at)), ...);
  }

  static __device__ __forceinline__ Wide widened(const Packs& packs) {
    return {{widen<T>(get<K>(packs))}...};
  }

  // Adds the values of a pack to the sums, writes what is to be written.
  __device__ __forceinline__ void compute(const Packs& packs, long long element) {
    PackSum pack_sum;
    compute(packs, element, pack_sum);
    add(pack_sum);
  }

  // The same for the elements [element, end) of a pack, one by one, in few registers: the pack at
  // the end that is not full.
  __device__ __forceinline__ void compute_singly(long long element, long long end) {
    using Single = Worker<T, Loss, Layout, 1, VALUES, WANTED, Result, Pointers>;
    const Single single{loss, layout, pointers, scale, values};
    typename Single::PackSum single_sum;
#pragma unroll 1
    for (; element < end; ++element) {
      typename Single::Packs packs;
      single.load(packs, element);
      single.compute(packs, element, single_sum);
    }
    add({single_sum.values, single_sum.shares});
  }

  // The sums of one pack, short enough to need no compensation.
  struct PackSum {
    T values = T(0), shares = T(0);
  };

  __device__ __forceinline__ void compute(const Packs& packs, long long element,
                                          PackSum& pack_sum) const {
    const Wide x = widened(packs);
    Pack<Result, WIDTH> each;
    Gradients gradients;
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
      const T value = plain(differentiate<K...>(x, gradients, j));
      if constexpr (VALUES == EACH_VALUE) each.at[j] = convert<Result>(value);
      if constexpr (VALUES >= SUM_OF_VALUES) pack_sum.values += value;
      if constexpr (VALUES == WEIGHTED_MEAN_OF_VALUES) {
        pack_sum.shares += plain(loss.share(Real<T>(get<K>(x).at[j])...));
      }
    }
    // Outputs are dense and aligned, whatever the layout of the operands.
    if constexpr (VALUES == EACH_VALUE) store_pack<WIDTH>(values + element, each);
    (store_gradient<K>(gradients, element), ...);
  }

  // The loss of element j and its derivative by operand I.
  template <int I>
  __device__ __forceinline__ auto vary(const Wide& x, int j) const {
    return loss(seed<K == I>(get<K>(x).at[j])...);
  }

 private:
  __device__ __forceinline__ void add(const PackSum& pack_sum) {
    if constexpr (VALUES >= SUM_OF_VALUES) sum += pack_sum.values;
    if constexpr (VALUES == WEIGHTED_MEAN_OF_VALUES) shares += pack_sum.shares;
  }

  // The loss of element j; derivatives by the wanted operands among I, Rest... on the way.
  template <int I, int... Rest>
  __device__ __forceinline__ auto differentiate(const Wide& x, Gradients& gradients, int j) const {
    if constexpr (bool(WANTED >> I & 1u)) {
      const auto varied = vary<I>(x, j);
      get<I>(gradients).at[j] = scale.template times<Element<I>>(plain(varied.slope));
      if constexpr (sizeof...(Rest) > 0) differentiate<Rest...>(x, gradients, j);
      return varied.value;
    } else if constexpr (sizeof...(Rest) > 0) {
      return differentiate<Rest...>(x, gradients, j);
    } else {
      return vary<-1>(x, j);
    }
  }

  template <int I>
  __device__ __forceinline__ void store_gradient(const Gradients& gradients,
                                                 long long element) const {
    if constexpr (bool(WANTED >> I & 1u)) {
      store_pack<WIDTH>(get<GRADIENT<I>>(pointers) + element, get<I>(gradients));
    }
  }
};

// The blocks that a multiprocessor is to hold: two, of 64 registers a thread, for dense operands;
// one, of 128, for those with more dimensions, which would spill.
template <class Layout>
constexpr int resident_blocks = Layout::DIMS == 1 ? 2 : 1;

// VALUES = EACH_VALUE: `value` has n elements. Otherwise it has one, the sum over `divisor` or over
// the sum of the shares, see Reduction. Gradients are divided by `divisor`, or by *total where that
// is given.
template <class T, class Loss, class Layout, class Tile, Values VALUES, unsigned WANTED,
          class Result, class... P>
__global__ void __launch_bounds__(Tile::THREADS, resident_blocks<Layout>)
    pointwise(Loss loss, Layout layout, long long n, long long segments, double divisor,
              const double* total, Result* value, unsigned* counter, double* partials,
              P... pointer) {
  using Pointers = Tuple<P...>;
  using Work = Worker<T, Loss, Layout, Tile::WIDTH, VALUES, WANTED, Result, Pointers>;
  constexpr bool REDUCED = VALUES >= SUM_OF_VALUES;

  const Pointers pointers{{pointer}...};
  if (total != nullptr) divisor = *total;
  Work work{loss, layout, pointers, Reciprocal<T>(divisor), value};
  const Reduction<VALUES, Tile::THREADS, is_masked<Loss>, Result> reduction{
      value, counter, partials, segments, divisor};

  const long long tiles = (n + Tile::ELEMENTS - 1) / Tile::ELEMENTS;
  for (long long segment = blockIdx.x; segment < segments; segment += gridDim.x) {
    work.sum = work.shares = Sum<T>::zero();
    for (long long tile = segment; tile < tiles; tile += segments) {
      if ((tile + 1) * Tile::ELEMENTS <= n) {
#pragma unroll 1
        for (int first = 0; first < Tile::PACKS; first += Tile::BATCH) {
          typename Work::Packs packs[Tile::BATCH];
#pragma unroll
          for (int p = 0; p < Tile::BATCH; ++p) {
            work.load(packs[p], Tile::element(tile, first + p));
          }
#pragma unroll
          for (int p = 0; p < Tile::BATCH; ++p) {
            work.compute(packs[p], Tile::element(tile, first + p));
          }
        }
      } else {
#pragma unroll 1
        for (int p = 0; p < Tile::PACKS; ++p) {
          const long long element = Tile::element(tile, p);
          if (element >= n) break;
          if (element + Tile::WIDTH <= n) {
            typename Work::Packs packs;
            work.load(packs, element);
            work.compute(packs, element);
          } else {
            work.compute_singly(element, n);
          }
        }
      }
    }
    if constexpr (REDUCED) reduction.add(segment, work.sum, work.shares);
  }
  if constexpr (REDUCED) reduction.finish();
}

// The gradient of operand WHICH, summed over the elements it was broadcast to; WHICH = -1 sums the
// values instead, to add up partial sums. The layout lists the operand's own dimensions first, then
// those it was broadcast along: element output * repeats + r. A block owns LANES outputs (32 where
// neighbouring outputs are neighbours in memory, else 1) and part blockIdx.y of the `repeats`, in
// chunks of `chunk`; with one chunk the result is final, with more it is one partial sum an output
// and chunk.
template <class T, class Loss, class Layout, int THREADS, int LANES, int WHICH, class Result,
          class... P>
__global__ void __launch_bounds__(THREADS)
    gradient_sum(Loss loss, Layout layout, long long outputs, long long repeats, long long chunk,
                 double divisor, const double* total, Result* gradient, P... pointer) {
  using Pointers = Tuple<P...>;
  using Work = Worker<T, Loss, Layout, 1, NO_VALUES, 0u, Result, Pointers>;
  constexpr int PARTS = THREADS / LANES;

  const Pointers pointers{{pointer}...};
  if (total != nullptr) divisor = *total;
  const Work work{loss, layout, pointers, Reciprocal<T>(1.0), nullptr};
  const int lane = threadIdx.x % LANES, part = threadIdx.x / LANES;
  const long long output = (long long)blockIdx.x * LANES + lane;
  const long long first = (long long)blockIdx.y * chunk;
  const long long end = min(first + chunk, repeats);

  Sum<T> partial = Sum<T>::zero();
  if (output < outputs) {
    for (long long r = first + part; r < end; r += PARTS) {
      typename Work::Packs packs;
      work.load(packs, output * repeats + r);
      const auto varied = work.template vary<WHICH>(work.widened(packs), 0);
      if constexpr (WHICH >= 0) {
        partial += plain(varied.slope);
      } else {
        partial += plain(varied);
      }
    }
  }
  Sum<double> sum = partial.widened();
  if constexpr (LANES == 1) {
    sum = block_sum<THREADS>(sum);
  } else {
    __shared__ double high[THREADS], low[THREADS];
    high[threadIdx.x] = sum.high;
    low[threadIdx.x] = sum.low;
    __syncthreads();
    for (int p = 1; p < PARTS && part == 0; ++p) {
      sum += Sum<double>{high[p * LANES + lane], low[p * LANES + lane]};
    }
  }
  if (part == 0 && output < outputs) {
    gradient[output * gridDim.y + blockIdx.y] = convert<Result>(sum.total() / divisor);
  }
}

// gradient *= grad_output, in place: the last step of a backward pass whose gradient the forward
// pass has already written.
template <class T, class E, class G, int THREADS, int WIDTH>
__global__ void __launch_bounds__(THREADS) scale(long long n, E* gradient, const G* grad_output) {
  const T factor = convert<T>(*grad_output);
  if (factor == T(1)) return;
  const long long step = (long long)gridDim.x * THREADS * WIDTH;
  long long i = ((long long)blockIdx.x * THREADS + threadIdx.x) * WIDTH;
  for (; i + WIDTH <= n; i += step) {
    Pack<E, WIDTH> pack = load_pack<WIDTH>(gradient + i);
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
      pack.at[j] = convert<E>(factor * convert<T>(pack.at[j]));
    }
    store_pack<WIDTH>(gradient + i, pack);
  }
  for (; i < n; ++i) gradient[i] = convert<E>(factor * convert<T>(gradient[i]));
}
