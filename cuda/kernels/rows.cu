// Losses over rows, each of which fits in the memory of a multiprocessor or of a few of them: the
// loss of each row, its sum or mean, the gradients of the elements, or loss and gradients together.
//
// A row is read once. Its elements come to shared memory, or those of short rows to registers,
// while the row before is worked on. The state of the row accumulates them from there. Gradients
// are computed from there too, once the state is complete. Bytes of device memory an
// element, with operands and gradients of s bytes: the loss of one operand s, with its gradient 2s.
//
// The workers of a row are `threads_per_row` threads of a block, which holds rows() rows at a
// time; a whole block; or a cluster of blocks, each with a share of the row (its rank) in its
// shared memory. Longer rows are those of kernels/split_rows.cu.
//
// Order of summation: the neighbours of a row, its threads in a warp, have a stretch of a rank; of
// n neighbours each has every n-th word of it, in batches; then threads in pairs, then ranks in
// order. Ranks, threads and batches follow from the length of a row, the step along it and the
// dtypes. The bits do not depend on gradients, nor on the block that computes a rank.
#include "kernels/row_epilogue.cuh"
#include "kernels/row_worker.cuh"
#include "memory/cluster.cuh"

// The arguments are those of pointwise.cu, with rows for elements: all may be ignored. A
// VJP has its grad_output among the operands. Blocks, or clusters, stride over groups of as many
// rows as a block holds at a time, so that all read what lies together. The sum of one of them is a
// segment. Where rows have many ranks, each row is a segment, as clusters take more rows at a time
// than single blocks do. Blocks beyond the first `kept` ones release the lines they hold in L2. The
// dynamic shared memory holds a share of a row for each row of the block. Stretches are `apart`
// bytes further apart, so that the words of a warp are in different banks.
template <class T, class Loss, class Layout, Team TEAM, Values VALUES, unsigned WANTED,
          unsigned TANGENTS, bool VJP, class Result, class... P>
__global__ void
#if CLUSTERS
__cluster_dims__(TEAM.blocks(), 1, 1)
#endif
    __launch_bounds__(TEAM.threads, TEAM.resident)
        rows(Loss loss, double scale, Layout layout, long long kept, int apart, long long n,
             long long columns, Results<T, Result> results, P... pointer) {
  // Aligned as lines of device memory are: a copy of one to parts of two takes two requests.
  extern __shared__ __align__(128) unsigned char shared[];
  using Pointers = Tuple<P...>;
  using Work = RowWorker<T, Loss, Layout, TEAM, WANTED, TANGENTS, VJP, Pointers>;
  using Own = RowThread<TEAM>;
  using Row = typename Work::Row;
  using N = typename Work::N;
  using State = typename Work::State;
  using Merged = typename Work::Merged;
  using Share = typename Work::Share;
  constexpr bool REDUCED = VALUES >= SUM_OF_VALUES;
  constexpr bool GRADIENTS = WANTED != 0;
  const auto given = Factor::of<GRADIENTS>(results);
  if (given.is_done) return;
  [[maybe_unused]] T factor = T(given.value);
  // Whether a share stays in shared memory until the row is done: its gradients may be wanted, and
  // it is the only one of this block in a row.
  constexpr bool STAYS = TEAM.cluster || (GRADIENTS && TEAM.ranks == 1 && !TEAM.held());
  constexpr bool REDUCES_EACH = REDUCED && TEAM.ranks > 2;

  const Pointers pointers{{pointer}...};
  const Work work{loss, layout, pointers, n, columns, shared + Own::stretch() * unsigned(apart)};
  const int rank = int(blockIdx.x % TEAM.blocks());
  // The rows are at most a quarter of what an Index counts.
  using Index = typename Layout::Index;
  const Index worker = blockIdx.x / TEAM.blocks();
  const Index step = Index(gridDim.x / TEAM.blocks()) * TEAM.rows(), end = Index(n);
  constexpr bool IN_CLUSTER = TEAM.cluster && CLUSTERS;
  [[maybe_unused]] Select<IN_CLUSTER, ClusterExchange<Merged, TEAM.ranks>, Nothing> cluster;
  if constexpr (IN_CLUSTER) cluster.begin();

  // A row is prefetched two rows before its elements, and its prologue is one row before them.
  const Index first = worker * TEAM.rows() + Own::row();
  auto next_prefetched = loss.prefetch(work.row_at(first + step));
  using Context = ContextOf<Loss, Row>;
  Context context;
  {
    const Row row = work.row_at(first);
    const auto prefetched = loss.prefetch(row);
    work.prefetch(work.share_of(row, first < end, rank, TEAM.slots));
    if constexpr (TEAM.rows_ahead == 2) {
      const Row second = work.row_at(first + step);
      work.prefetch(work.share_of(second, first + step < end, rank, TEAM.slots));
    }
    context = prologue_of(loss, row, first < end, prefetched);
  }
  const double divisor = results.known_denominator();
  const Scaling<Layout::ARRAYS, Pointers> scaling{scale, pointers};
  const Reciprocal<T> reciprocal(denominator_of_derivatives<true>(divisor), 1.0, scaling.value());
  const auto reduction =
      reduction_of_rows<T, VALUES, TEAM.threads, TANGENTS, Loss>(given, results, divisor, scaling);
  Sum<T> sum = Sum<T>::zero(), counted = Sum<T>::zero();
  [[maybe_unused]] Index segment = worker;
  unsigned before = 0;
  [[maybe_unused]] const auto hand_over_sums = [&] {
    if (rank != 0) return;
    if constexpr (TEAM.rows() > 1) {
      reduction.add(segment, sum, counted);
    } else {
      reduction.template add<true>(segment, sum, counted);
    }
    before = reduction.arrive_in_group(segment);
    sum = counted = Sum<T>::zero();
  };
#pragma unroll(TEAM.held() ? 2 : 1)
  for (Index group = worker * TEAM.rows(); group < end; group += step) {
    const Index index = group + Own::row();
    const bool present = index < end, next_present = index + step < end;
    // Computed anew in each turn: registers are scarcer than multiplications.
    const Row row = work.row_at(index), next_row = work.row_at(index + step);
    const auto prefetched_after = loss.prefetch(work.row_at(index + 2 * step));
    const Context next_context = prologue_of(loss, next_row, next_present, next_prefetched);

    Merged state;
    if constexpr (IN_CLUSTER) {
      const Share share = work.share_of(row, present, rank, TEAM.slots);
      const auto part = work.template accumulate<false>(share, share, context);
      state = cluster.merged(merged<TEAM>(part));
    } else {
#pragma unroll 1
      for (int r = 0; r < TEAM.ranks; ++r) {
        const Share share = work.share_of(row, present, r, TEAM.slots);
        State part;
        if constexpr (STAYS && TEAM.ranks == 1) {
          part = work.template accumulate<false>(share, share, context);
        } else if constexpr (STAYS) {
          part = r == rank ? work.template accumulate<false>(share, share, context)
                           : work.accumulate(share, TEAM.slots, context);
        } else if constexpr (TEAM.rows_ahead == 2) {
          const Index later = index + 2 * step;
          const Share next = work.share_of(work.row_at(later), later < end, 0, TEAM.slots);
          part = work.template accumulate<true>(share, next, context);
        } else {
          const bool last = r == TEAM.ranks - 1;
          const Share next = last ? work.share_of(next_row, next_present, 0, TEAM.slots)
                                  : work.share_of(row, present, r + 1, TEAM.slots);
          part = work.template accumulate<true>(share, next, context);
        }
        const Merged of_rank = merged<TEAM>(part);
        state = r == 0 ? of_rank : merge(state, of_rank);
      }
    }

    typename Work::Finished done;
    T own = T(0), own_denominator = T(0);
    // For the value one warp is enough.
    const bool valued = TEAM.threads_per_row <= 32 || threadIdx.x < 32;
    const bool finishes = GRADIENTS || valued;
    if (finishes && (TEAM.held() || context.status == ACTIVE)) {
      done = loss.template epilogue<N>(row, context, state, VALUES != NO_VALUES && valued);
      own = derivative(done.value);
      own_denominator = done.denominator;
    }
    if (context.status != ACTIVE) {
      own_denominator = denominator_without_loss<T>(context);
      own = without_loss<T>(context.status);
    }
    if constexpr (VALUES != NO_VALUES) {
      if (rank == 0 && Own::thread() == 0) {
        if constexpr (VALUES == EACH_VALUE) {
          if (present) results.value[index] = convert<Result>(own);
        }
        if constexpr (REDUCED) sum += own;
        if constexpr (VALUES == MEAN_OF_VALUES) count<Loss>(counted, own_denominator);
      }
    }
    // Before the last gradients are written: their writes hide the latency of the addition.
    if constexpr (REDUCES_EACH) {
      // That of the row before has arrived meanwhile.
      if (rank == 0 && segment != group) reduction.finish_groups(segment, before);
      segment = group;
      hand_over_sums();
    } else if constexpr (REDUCED && GRADIENTS) {
      if (group + step >= end) hand_over_sums();
    }
    if constexpr (GRADIENTS) {
      if constexpr (VJP) factor = row.grad_output();
      if (context.status == ACTIVE) scale_gradients(loss, done, factor, reciprocal);
    }
    if constexpr (STAYS) {
      const Share own_share = work.share_of(row, present, rank, TEAM.slots);
      const Share share = work.aligned(own_share, TEAM.slots);
      if constexpr (GRADIENTS) {
        work.template differentiate_rest<true>(own_share, TEAM.slots, context, done);
      }
      const Share next = work.share_of(next_row, next_present, rank, TEAM.slots);
#pragma unroll 1
      for (int part = 0; part < TEAM.groups(); ++part) {
        if constexpr (GRADIENTS) {
          work.template differentiate<true>(share, part * TEAM.batch, context, done,
                                            worker >= kept);
        }
        work.prefetch(next, part);
      }
    } else if constexpr (GRADIENTS && TEAM.held()) {
      const Share share = work.share_of(row, present, rank, TEAM.slots);
      work.template differentiate<true>(share, 0, context, done);
    }
    context = next_context;
    next_prefetched = prefetched_after;
  }
  if constexpr (IN_CLUSTER) cluster.end();
  if constexpr (REDUCED) {
    if constexpr (!GRADIENTS && !REDUCES_EACH) hand_over_sums();
    if (rank == 0) reduction.finish_groups(segment, before);
  }
}
