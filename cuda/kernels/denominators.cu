// What rows add to the denominator of a mean, where it must be known ahead of the pass that divides
// by it: the number of rows that are not ignored, or the sum of their weights.
//
// A thread has every `threads`-th row of a tile. It loads the classes of all of these, and what
// masks say of them, before it uses the first: so many bytes are on their way. Bytes of device
// memory a row: those of its class, its mask and its weight. The weights of classes are in the
// caches.
//
// Order of summation: the rows of a thread in a segment, then those of a block, then segments.
// Tiles and segments follow from the number of rows alone.
#include "kernels/row_epilogue.cuh"

// The threads of a block, as cupy_losses/_device/denominators_schedule.py chooses.
struct CountingTeam {
  int threads;   // of a block
  int rows;      // of a thread in a tile
  int resident;  // how many blocks a multiprocessor is to hold

  __device__ constexpr int tile() const { return threads * rows; }  // its rows
};

// It has the arguments of all kernels of rows; of these `scale` and the divisor are 1, and the
// pointers of a denominator and of grad_output null. With an anticipation nothing is counted if the
// last call had all rows. Each block has one of the segments.
template <class T, class Loss, class Layout, CountingTeam TEAM, Values VALUES, unsigned WANTED,
          unsigned TANGENTS, bool VJP, class Result, class... P>
__global__ void __launch_bounds__(TEAM.threads, TEAM.resident)
    denominators(Loss loss, double scale, Layout layout, long long n, long long columns,
                 Results<T, Result> results, P... pointer) {
  using Pointers = Tuple<P...>;
  using Row = RowOf<T, Loss, Layout, TANGENTS, VJP, Pointers>;
  using Index = typename Layout::Index;  // counts to four times the rows at least
  static_assert(WANTED == 0 && TANGENTS == 0 && !VJP && Loss::READS == 0,
                "a term of the denominator, without derivatives");

  if constexpr (VALUES == COUNT_OF_VALUES) {
    if (Factor::anticipates(results.anticipation_or_output, n)) {
      if (blockIdx.x == 0 && threadIdx.x == 0) *results.value = double(n);
      return;
    }
  }
  const Pointers pointers{{pointer}...};
  const Scaling<Layout::ARRAYS, Pointers> scaling{scale, pointers};
  const auto reduction = reduction_of_rows<T, VALUES, TEAM.threads, TANGENTS, Loss>(
      Factor::of<false>(results), results, results.divisor, scaling);
  const Index end = Index(n);
  const auto index_of = [&](Index tile, int k) {
    return tile * TEAM.tile() + k * TEAM.threads + threadIdx.x;
  };
  const auto row_of = [&](Index index) {
    return Row::at_index(layout, pointers, index, end, typename Row::Column(columns));
  };
  Sum<T> sum = Sum<T>::zero();
  for (Index tile = blockIdx.x; tile * TEAM.tile() < end; tile += gridDim.x) {
    PrefetchedOf<Loss, Row> prefetched[TEAM.rows];
#pragma unroll
    for (int k = 0; k < TEAM.rows; ++k) {
      prefetched[k] = loss.prefetch(row_of(index_of(tile, k)));
    }
#pragma unroll
    for (int k = 0; k < TEAM.rows; ++k) {
      const Index index = index_of(tile, k);
      const Row row = row_of(index);
      const auto context = prologue_of(loss, row, index < end, prefetched[k]);
      T own = denominator_without_loss<T>(context);
      if (context.status == ACTIVE) own = loss.denominator(context);
      count<Loss>(sum, own);
    }
  }
  reduction.add(blockIdx.x, sum, Sum<T>::zero());
  reduction.finish(gridDim.x);
}
