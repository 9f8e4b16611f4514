// Losses over rows that are too long for the memory of a few multiprocessors, or whose ranks are
// not to be computed by a cluster: the same results as of kernels/rows.cu, in two launches.
//
// Each row is divided into splits, a block each. SPLIT records in a workspace what each split
// accumulates. MERGE merges the splits of a row; its blocks, again one for each split, write the
// gradients, for which the row is read once more. Bytes of device memory an element, with operands
// and gradients of s bytes: the loss of one operand s, with its gradient 3s.
//
// Order of summation: batches of a thread in order, then threads in pairs; then up to MAX_RANKS
// splits in order, as in kernels/rows.cu, which has the same bits; of more splits every
// `threads`-th in order, then these sums in pairs. All that follows from the shape, the strides and
// the dtypes.
#include "kernels/phases.cuh"
#include "kernels/row_epilogue.cuh"
#include "kernels/row_worker.cuh"

constexpr int MAX_RANKS = 16;  // in cupy_losses/_device/row_team.py

// The other arguments are those of kernels/rows.cu. A split has `slots` vectors of each thread.
// Blocks, or groups of `splits` blocks, stride over rows. The sum of one of them is a segment.
// `workspace` has the records of SPLIT.
template <class T, class Loss, class Layout, Team TEAM, Phase PHASE, Values VALUES, unsigned WANTED,
          unsigned TANGENTS, bool VJP, class Result, class... P>
__global__ void __launch_bounds__(TEAM.threads, TEAM.resident)
    split_rows(Loss loss, double scale, Layout layout, long long splits, long long slots,
               long long n, long long columns, Results<T, Result> results, unsigned char* workspace,
               P... pointer) {
  using Pointers = Tuple<P...>;
  using Work = RowWorker<T, Loss, Layout, TEAM, WANTED, TANGENTS, VJP, Pointers>;
  using Index = typename Layout::Index;
  using Row = typename Work::Row;
  using Merged = typename Work::Merged;
  constexpr bool REDUCED = VALUES >= SUM_OF_VALUES, GRADIENTS = WANTED != 0;
  static_assert(TEAM.rows() == 1, "a block works on a split");

  const auto given = Factor::of<GRADIENTS>(results);
  if (given.is_done) return;
  const Pointers pointers{{pointer}...};
  const Work work{loss, layout, pointers, n, columns, nullptr};
  using Context = ContextOf<Loss, Row>;
  const int blocks = PHASE == SPLIT || GRADIENTS ? splits : 1;
  const unsigned block = own_block<PHASE>();
  const int split = int(block % blocks);
  const Index worker = block / blocks, step = gridDim.x / blocks, end = Index(n);

  if constexpr (PHASE == SPLIT) {
    for (Index index = worker; index < end; index += step) {
      const Row row = work.row_at(index);
      const Context context = loss.prologue(row, loss.prefetch(row));
      const auto share = work.share_of(row, true, split, slots);
      const Merged state = merged<TEAM>(work.accumulate(share, slots, context));
      if (threadIdx.x == 0) {
        record<Merged>(workspace, n + index * splits + split) = state;
        if (split == 0) record<Context>(workspace, index) = context;
      }
    }
  } else {
    const double divisor = results.known_denominator();
    const Scaling<Layout::ARRAYS, Pointers> scaling{scale, pointers};
    const Reciprocal<T> reciprocal(denominator_of_derivatives<true>(divisor), 1.0, scaling.value());
    const auto reduction = reduction_of_rows<T, VALUES, TEAM.threads, TANGENTS, Loss>(
        given, results, divisor, scaling);
    Sum<T> sum = Sum<T>::zero(), counted = Sum<T>::zero();
    unsigned before = 0;
    for (Index index = worker; index < end; index += step) {
      const Row row = work.row_at(index);
      const Context context =
          record<Context>(workspace, index);  // elements may be overwritten already
      Merged state;
      if (splits <= MAX_RANKS) {
        state = record<Merged>(workspace, n + index * splits);
        for (int r = 1; r < int(splits); ++r) {
          state = merge(state, record<Merged>(workspace, n + index * splits + r));
        }
      } else {
        state = as_merged(Work::State::empty());
        for (long long r = threadIdx.x; r < splits; r += TEAM.threads) {
          state = merge(state, record<Merged>(workspace, n + index * splits + r));
        }
        state = merged<TEAM>(state);
      }
      const bool valued = VALUES != NO_VALUES && threadIdx.x < 32;  // one warp is enough
      const auto outcome =
          outcome_of<GRADIENTS>(loss, row, context, state, valued, T(given.value), reciprocal);
      if (split == 0 && threadIdx.x == 0) {
        take<VALUES, Loss>(outcome, index, results.value, sum, counted);
      }
      if constexpr (REDUCED) {
        // Before the last gradients are written: their writes hide the latency of the addition.
        if (split == 0 && index + step >= end) {
          reduction.template add<true>(worker, sum, counted);
          before = reduction.arrive_in_group(worker);
        }
      }
      if constexpr (GRADIENTS) {
        const auto own_share = work.share_of(row, true, split, slots);
        const auto share = work.aligned(own_share, slots);
        for (long long slot = 0; slot < slots; slot += TEAM.batch) {
          work.template differentiate<false>(share, slot, context, outcome.done);
        }
        work.template differentiate_rest<false>(own_share, slots, context, outcome.done);
      }
    }
    if constexpr (REDUCED) {
      if (split == 0) reduction.finish_groups(worker, before);
    }
  }
}
