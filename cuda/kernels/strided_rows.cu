// Losses over rows whose elements lie apart while neighbouring rows lie together, such as classes
// ahead of pixels, (N, C, d): the loss of each row, its sum or mean, the gradients of the elements,
// or loss and gradients together.
//
// Neighbouring threads work on neighbouring rows, so that they read and write stretches of memory.
// A thread has WIDTH rows for itself, or THREADS_PER_ROW threads share these. Its elements of them
// are in registers, all at once if there is room: then each is read once. Bytes of device memory an
// element, with operands and gradients of s bytes: the loss of one operand s, with its gradient 2s,
// or 3s where a row is too long for that. Rows too long for that are divided into sections. Where
// there are few of them, the sections of a tile are the work of several blocks, in two launches.
//
// Order of summation: a thread adds its elements of a section in order, in batches, then sections
// in order, then threads are added in pairs. The elements of a thread and the sections follow from
// the length of a row and the dtypes. The bits of a row do not depend on its address, on other
// rows, on what else is requested, or on the block that computes a section. Tiles form segments,
// which are added as those of kernels/pointwise.cu are.
#include "kernels/phases.cuh"
#include "kernels/row_epilogue.cuh"
#include "kernels/row_states.cuh"
#include "memory/instructions.cuh"

// THREADS_PER_ROW threads, of a block of THREADS, work on WIDTH neighbouring rows: each on every
// THREADS_PER_ROW-th element, in batches of COUNT. A row STAYS in registers: it has no more than
// one batch, and at least SURE elements of it are there. Bit k of VECTORS: the elements of array k
// in WIDTH rows are one access. A multiprocessor is to hold RESIDENT blocks.
template <int THREADS_, int THREADS_PER_ROW_, int WIDTH_, int COUNT_, int SURE_, bool STAYS_,
          int RESIDENT_, unsigned VECTORS_>
struct StridedTeam {
  static constexpr int THREADS = THREADS_, THREADS_PER_ROW = THREADS_PER_ROW_, WIDTH = WIDTH_,
                       RESIDENT = RESIDENT_;
  static constexpr int COUNT = COUNT_, SURE = SURE_;
  static constexpr bool STAYS = STAYS_;
  static constexpr unsigned VECTORS = VECTORS_;
  static constexpr int NEIGHBOURS = THREADS / THREADS_PER_ROW,
                       ROWS = NEIGHBOURS * WIDTH;  // of a tile

  static DEVICE int thread() { return THREADS_PER_ROW == 1 ? 0 : int(threadIdx.x) / NEIGHBOURS; }
  // The first one of its rows in a tile.
  static DEVICE int row() { return int(threadIdx.x) % NEIGHBOURS * WIDTH; }
};

// A batch of one thread: elements of each of its rows, of every array that the loss reads element
// by element. The first SURE elements are there, others where they are ahead of column `end`.
template <class Row, class Loss, class Team, int SURE, class K = Range<Row::INPUTS>>
struct StridedBatch;

template <class Row, class Loss, class Team, int SURE, int... K>
struct StridedBatch<Row, Loss, Team, SURE, Indices<K...>> {
  using T = typename Row::Scalar;
  using N = typename Row::N;
  using Column = typename Row::Column;
  static constexpr int FIRST = Row::FIRST, BATCH = Team::COUNT, WIDTH = Team::WIDTH;
  // Elements of WIDTH rows as one access moves them: two of half precision in one register.
  template <int S>
  using Stored = Vector<typename Row::template Element<S>, WIDTH>;
  template <int S>
  using Kept = Packed<Stored<S>>;

  Column first, end;
  Tuple<Kept<K>...> vectors[BATCH];

  DEVICE Column column(int k) const { return first + k * Team::THREADS_PER_ROW; }
  DEVICE bool holds(int k) const { return k < SURE || column(k) < end; }
  // Whether a column is one of these.
  DEVICE bool has(Column column) const {
    const Column behind = column - first;
    return behind >= 0 && behind < BATCH * Team::THREADS_PER_ROW &&
           behind % Team::THREADS_PER_ROW == 0;
  }
  // Makes the element of row v of the first operand in a column -inf. Bits say which: one
  // instruction makes seven predicates of bits, but only one of a comparison.
  DEVICE void hide(int v, Column hidden) {
    using E = typename Row::template Element<FIRST>;
    constexpr int WORDS = (BATCH + 31) / 32;
    const E infinite = convert<E>(T(-INFINITY));
    const int place = int(hidden - first) / Team::THREADS_PER_ROW;
    unsigned bits[WORDS];
#pragma unroll
    for (int w = 0; w < WORDS; ++w) bits[w] = opaque(place / 32 == w ? 1u << place % 32 : 0u);
#pragma unroll
    for (int k = 0; k < BATCH; ++k) {
      auto& elements = get<FIRST>(vectors[k]);
      const bool hides = bits[k / 32] >> k % 32 & 1u;
      if constexpr (WIDTH == 1) {
        if (hides) elements = packed(Stored<FIRST>{{infinite}});
      } else {
        // One instruction, where unpacking and packing a pair would take three.
        static_assert(WIDTH == 2 && sizeof(E) == 2, "a pair is a word");
        const unsigned both = packed(Stored<FIRST>{{infinite, infinite}});
        if (hides) elements = __byte_perm(elements, both, v == 0 ? 0x3254 : 0x5410);
      }
    }
  }

  // Those of place k in row V: get<i>() of it is the number in operand i.
  template <int V>
  DEVICE auto numbers(const Row& row, int k) const {
    return numbers<V>(Range<Loss::OPERANDS + int(Loss::WEIGHTED)>(), row, k);
  }

  // Those of row V.
  template <int V>
  struct Of {
    static constexpr int WIDTH = 4, COUNT = BATCH / WIDTH;  // places for sums
    const StridedBatch& batch;
    const Row& row;

    // The largest number of the first operand, and `so_far`.
    DEVICE T largest(T so_far) const {
      if constexpr (HAS_PAIRS) {
        const auto found = batch.largest_pair();
        return larger(so_far, convert<T>(V == 0 ? found.x : found.y));
      } else {
#pragma unroll
        for (int k = 0; k < BATCH; ++k) {
          if (batch.holds(k)) so_far = larger(so_far, plain(batch.template number<V, 0>(row, k)));
        }
        return so_far;
      }
    }
    // f(place, column, x) for each element.
    DEVICE void each(auto f) const {
#pragma unroll
      for (int k = 0; k < BATCH; ++k) {
        if (batch.holds(k)) {
          f(k % WIDTH, batch.column(k), batch.template numbers<V>(row, k));
        }
      }
    }
  };

 private:
  // Two numbers are compared at once.
  static constexpr bool HAS_PAIRS = ARCHITECTURE >= 800 && WIDTH == 2;
  // The largest numbers of the first operand in both rows.
  DEVICE auto largest_pair() const {
    const auto pair_at = [&](int k) {
      const auto both = bits_as<Stored<FIRST>>(get<FIRST>(vectors[k]));
      return pair(both.at[0], both.at[1]);
    };
    const auto none = convert<typename Row::template Element<FIRST>>(lowest<T>());
    auto found = pair(none, none);
#pragma unroll
    for (int k = 0; k < BATCH; ++k) {
      if (holds(k)) found = __hmax2(found, pair_at(k));
    }
    return found;
  }
  template <int V, int S>
  DEVICE Real<T> real(int k) const {
    return Real<T>(widen<T>(bits_as<Stored<S>>(get<S>(vectors[k]))).at[V]);
  }
  template <int V, int I>
  DEVICE N number(const Row& row, int k) const {
    using Loaded = typename Row::template Loaded<I>;
    if constexpr (I == Loss::OPERANDS && bool(Loss::READS >> I & 1u)) {
      return N(Real<T>(convert<T>(row.load_weight(column(k)))));
    } else if constexpr (!bool(Loss::READS >> I & 1u)) {
      return N(0.0);
    } else if constexpr (Loaded::HAS_SLOPE) {
      return N(real<V, Row::FIRST + I>(k), real<V, Loaded::SLOPE>(k));
    } else {
      return N(real<V, Row::FIRST + I>(k));
    }
  }
  template <int V, int... I>
  DEVICE auto numbers(Indices<I...>, const Row& row, int k) const {
    return Tuple<Repeat<N, I>...>{{number<V, I>(row, k)}...};
  }
};

// The work of a block on its tiles.
template <class T, class Loss, class Layout, class Team, unsigned WANTED, unsigned TANGENTS,
          bool VJP, class Pointers, class V = Range<Team::WIDTH>, class K = Range<Layout::ARRAYS>>
struct StridedWorker;

template <class T, class Loss, class Layout, class Team, unsigned WANTED, unsigned TANGENTS,
          bool VJP, class Pointers, int... V, int... K>
struct StridedWorker<T, Loss, Layout, Team, WANTED, TANGENTS, VJP, Pointers, Indices<V...>,
                     Indices<K...>> {
  using Row = RowOf<T, Loss, Layout, TANGENTS, VJP, Pointers>;
  using N = typename Row::N;
  using Column = typename Row::Column;
  using Index = typename Layout::Index;
  using State = typename Loss::template State<N>;
  using Finished = typename Loss::template Finished<N>;
  template <int SURE>
  using Batch = StridedBatch<Row, Loss, Team, SURE>;
  static constexpr int FIRST = Row::FIRST, WIDTH = Team::WIDTH,
                       THREADS_PER_ROW = Team::THREADS_PER_ROW;

  const Loss& loss;
  const Layout& layout;
  const Pointers& pointers;
  const long long n, columns, section_batches;

  // The rows of a thread in a tile, if they are `present`. Else they are the last rows, of which
  // nothing is read, as other threads may overwrite their elements with gradients.
  struct Rows {
    typename decltype(Layout::rows)::Location at[WIDTH];
    long long first;
    bool present;
  };
  DEVICE auto locate(long long row) const { return layout.rows.locate(Index(row)); }
  DEVICE Rows rows_of(long long tile) const {
    const long long first = tile * Team::ROWS + Team::row(), there = min(first, n - WIDTH);
    // By name: without, g++ 12 may clear part of it where the emulator's flags give it a pattern.
    Rows rows{{locate(there + V)...}, first, first < n};
    return rows;
  }
  DEVICE Row row_at(const Rows& rows, int v) const {
    return {layout, pointers, rows.at[v], Column(columns)};
  }
  DEVICE Row row_at(long long row) const {
    return {layout, pointers, locate(min(row, n - 1)), Column(columns)};
  }
  // f(batch) for each batch of this thread in a section, or in several of them.
  DEVICE void each_batch(const Rows& rows, int section, int sections, auto f) const {
    if (!rows.present) return;
    constexpr int STRIDE = Team::COUNT * THREADS_PER_ROW;
    const Column length = Column(section_batches) * STRIDE, begin = section * length;
    const Column end =
        Column(columns) - begin < sections * length ? Column(columns) : begin + sections * length;
    Column first = begin + Team::thread();
    for (; first + (STRIDE - THREADS_PER_ROW) < end; first += STRIDE)
      f(load<Team::COUNT>(rows, first));
    if (first < end) f(load<0>(rows, first));
  }
  template <int SURE>
  DEVICE Batch<SURE> load(const Rows& rows, Column first) const {
    Batch<SURE> batch{first, Column(columns)};
    if (rows.present) (load_array<K>(batch, rows), ...);
    return batch;
  }

  // The context of a row; one that is not there is ignored.
  static __device__ Row a_row();
  static __device__ const Loss& a_loss();
  using Context = decltype(a_loss().prologue(a_row(), a_loss().prefetch(a_row())));
  DEVICE Context context_of(const Row& row, bool present) const {
    Context context;
    context.status = IGNORED;
    if (present) context = loss.prologue(row, loss.prefetch(row));
    return context;
  }
  template <bool FIRST>
  DEVICE void add(State (&states)[WIDTH], auto& batch, const Rows& rows,
                  const Context (&contexts)[WIDTH]) const {
    (add_of<FIRST, V>(states[V], batch, row_at(rows, V), contexts[V]), ...);
  }
  // What SPLIT leaves of a tile, behind the contexts of all rows and `before` sections.
  static DEVICE State* left_states(unsigned char* memory, long long tiles, long long before) {
    return reinterpret_cast<State*>(memory + LEFT_BYTES * Team::ROWS * tiles) +
           before * (Team::THREADS * WIDTH);
  }
  // What this thread accumulates of a section.
  DEVICE void accumulate(State (&states)[WIDTH], const Rows& rows, int section,
                         const Context (&contexts)[WIDTH]) const {
#pragma unroll
    for (int v = 0; v < WIDTH; ++v) states[v] = State::empty();
    each_batch(rows, section, 1, [&](auto batch) { add<false>(states, batch, rows, contexts); });
  }
  using Merged = decltype(merged_in_warp<THREADS_PER_ROW>(State()));

  // Writes the gradients of a batch.
  DEVICE void differentiate(const auto& batch, const Rows& rows, const Context (&contexts)[WIDTH],
                            const Finished (&done)[WIDTH]) const {
    write(Range<Loss::OPERANDS>(), batch, rows, contexts, done);
    if constexpr (Loss::SINGLE && bool(WANTED & 1u)) {
      (write_target(batch, row_at(rows, V), contexts[V], done[V]), ...);
    }
  }

 private:
  template <int S>
  using Stored = Vector<typename Row::template Element<S>, WIDTH>;
  template <int S>
  static constexpr bool IS_VECTOR = WIDTH == 1 || bool(Team::VECTORS >> S & 1u);
  // From one element of this thread to the next. An unsigned one takes one instruction.
  using Step = Select<(sizeof(typename Layout::Offset) == 4), unsigned, long long>;
  template <int S>
  DEVICE Step step() const {
    return Step(THREADS_PER_ROW) * Step(layout.template step<S>());
  }

  template <int S, class B>
  DEVICE void load_array(B& batch, const Rows& rows) const {
    if constexpr (S < FIRST + Loss::OPERANDS && Row::template is_read<S>()) {
#pragma unroll
      for (int k = 0; k < Team::COUNT; ++k) {
        if (!batch.holds(k)) continue;
        auto& vector = get<S>(batch.vectors[k]);
        if constexpr (IS_VECTOR<S>) {
          using Kept = typename B::template Kept<S>;
          vector = *reinterpret_cast<const Kept*>(address<S>(rows, 0, batch.first, k));
        } else {
          vector = packed(Stored<S>{{*address<S>(rows, V, batch.first, k)...}});
        }
      }
    }
  }
  template <int S>
  DEVICE auto* address(const Rows& rows, int v, Column first, int k) const {
    return row_at(rows, v).template address<S>(first) + k * (long long)(step<S>());
  }
  template <bool FIRST, int R, class B>
  DEVICE void add_of(State& state, B& batch, const Row& row, const Context& context) const {
    if (context.status != ACTIVE) return;
    if constexpr (Loss::HIDES) {
      if (batch.has(context.column)) batch.hide(R, context.column);
    }
    typename B::template Of<R> elements{batch, row};
    loss.template add<FIRST>(state, row, context, elements);
  }

  template <int... I>
  DEVICE void write(Indices<I...>, const auto& batch, const Rows& rows,
                    const Context (&contexts)[WIDTH], const Finished (&done)[WIDTH]) const {
    (write_operand<I>(batch, rows, contexts, done), ...);
  }
  // The gradients of a batch by operand I.
  template <int I>
  DEVICE void write_operand(const auto& batch, const Rows& rows, const Context (&contexts)[WIDTH],
                            const Finished (&done)[WIDTH]) const {
    if constexpr (bool(WANTED >> I & 1u)) {
      const auto slope = [&](auto which, int k) {
        constexpr int R = decltype(which)::value;
        const Row row = row_at(rows, R);
        const N slope = loss.template gradient<I, N>(row, contexts[R], done[R], batch.column(k),
                                                     batch.template numbers<R>(row, k));
        return derivative(slope);
      };
      if (((contexts[V].status == ACTIVE) && ...)) {
        write_slopes<I>(batch, rows, slope);
      } else {
        write_slopes<I>(batch, rows, [&](auto which, int k) {
          const Status status = contexts[decltype(which)::value].status;
          return status == ACTIVE ? slope(which, k) : without_loss<T>(status);
        });
      }
    }
  }
  template <int I>
  DEVICE void write_slopes(const auto& batch, const Rows& rows, auto slope) const {
    constexpr int G = Row::INPUTS + ones_below(WANTED, I);
    using E = typename Row::template Element<G>;
#pragma unroll
    for (int k = 0; k < Team::COUNT; ++k) {
      if (!batch.holds(k)) continue;
      const Stored<G> slopes{{convert<E>(slope(Constant<V>(), k))...}};
      if constexpr (IS_VECTOR<G>) {
        store_vector<WIDTH>(address<G>(rows, 0, batch.first, k), slopes);
      } else {
        ((*address<G>(rows, V, batch.first, k) = slopes.at[V]), ...);
      }
    }
  }
  DEVICE void write_target(const auto& batch, const Row& row, const Context& context,
                           const Finished& done) const {
    if (context.status != ACTIVE || !batch.has(context.column)) return;
    const N slope = loss.gradient_of_target(context, done);
    *row.template address<Row::INPUTS>(context.column) =
        convert<typename Row::template Element<Row::INPUTS>>(derivative(slope));
  }
};

// VALUES, Result, divisor, denominator, scale, grad_output and guess are as in
// kernels/pointwise.cu, with rows for elements: any mean may have all rows ignored. A section has
// `section_batches` of each thread. A block has `per_block` of the `sections` of a tile; `memory`
// is what SPLIT leaves.
template <class T, class Loss, class Layout, class Team, Phase PHASE, Values VALUES,
          unsigned WANTED, unsigned TANGENTS, bool VJP, class Result, class... P>
__global__ void __launch_bounds__(Team::THREADS, Team::RESIDENT)
    strided_rows(Loss loss, double scale, Layout layout, long long section_batches, int sections,
                 int per_block, long long n, long long columns, long long segments, double divisor,
                 const double* denominator, const Result* grad_output, double* guess, Result* value,
                 unsigned* counter, double* partials, unsigned char* memory, P... pointer) {
  using Pointers = Tuple<P...>;
  using Work = StridedWorker<T, Loss, Layout, Team, WANTED, TANGENTS, VJP, Pointers>;
  using Rows = typename Work::Rows;
  using Context = typename Work::Context;
  using State = typename Work::State;
  using Merged = typename Work::Merged;
  using Finished = typename Work::Finished;
  constexpr bool REDUCED = VALUES >= SUM_OF_VALUES, GRADIENTS = WANTED != 0;
  constexpr int WIDTH = Team::WIDTH, ROWS = Team::ROWS;

  const auto given = Factor::of<GRADIENTS>(grad_output, guess);
  if (given.is_done) return;
  [[maybe_unused]] T factor = T(given.value);
  const Pointers pointers{{pointer}...};
  const Work work{loss, layout, pointers, n, columns, section_batches};
  if (denominator != nullptr) divisor = *denominator;
  const Scaling<Layout::ARRAYS, Pointers> scaling{scale, pointers};
  const Reciprocal<T> reciprocal(denominator_of_derivatives<true>(divisor), 1.0, scaling.value());
  const auto reduction = reduction_of_rows<VALUES, Team::THREADS, TANGENTS, Loss>(
      given, value, counter, partials, segments, divisor, scaling);

  const long long tiles = (n + ROWS - 1) / ROWS;
  // The sections of this block.
  const int blocks = PHASE == WHOLE ? 1 : (sections + per_block - 1) / per_block;
  const int split = int(blockIdx.x % blocks), begin = split * per_block;
  const int end = PHASE == WHOLE ? sections : min(sections, begin + per_block);
  const int workers = int(gridDim.x / blocks);
  long long segment = blockIdx.x / blocks, tile = segment;
  Sum<T> sum = Sum<T>::zero(), counted = Sum<T>::zero();
  // Where several threads work on a row, one does what is done once for it.
  constexpr bool ALONE = Team::THREADS_PER_ROW == 1;
  Context* const contexts_of_rows = states_of_block<Context, ALONE ? 1 : ROWS>();
  State* const states_of_threads = states_of_block<State, ALONE ? 1 : Team::THREADS * WIDTH>();
  Merged* const states_of_rows = states_of_block<Merged, ALONE ? 1 : ROWS>();
  Finished* const finished = states_of_block<Finished, ALONE || !GRADIENTS ? 1 : ROWS>();
  const int mine = threadIdx.x;
  while (segment < segments) {
    // The next tile of the segment, or the first one of the next segment.
    const bool ends = tile + segments >= tiles;
    const long long next_tile = ends ? segment + workers : tile + segments;
    const Rows rows = work.rows_of(tile);
    typename Work::template Batch<Team::SURE> batch;
    if constexpr (Team::STAYS) batch = work.template load<Team::SURE>(rows, Team::thread());
    Context contexts[WIDTH];
    // Elements may be overwritten already where another launch has left the context.
    const auto context_of = [&](const auto& row, long long index, bool present) {
      if constexpr (PHASE == MERGE) return left<Context>(memory, index);
      const Context context = work.context_of(row, present);
      if (PHASE == SPLIT && split == 0) left<Context>(memory, index) = context;
      return context;
    };
    if constexpr (ALONE) {
#pragma unroll
      for (int v = 0; v < WIDTH; ++v) {
        contexts[v] = context_of(work.row_at(rows, v), rows.first + v, rows.present);
      }
    } else {
      if (mine < ROWS) {
        const long long index = tile * ROWS + mine;
        contexts_of_rows[mine] = context_of(work.row_at(index), index, index < n);
      }
      __syncthreads();
#pragma unroll
      for (int v = 0; v < WIDTH; ++v) contexts[v] = contexts_of_rows[Team::row() + v];
    }
    State states[WIDTH];
#pragma unroll
    for (int v = 0; v < WIDTH; ++v) states[v] = State::empty();
    if constexpr (Team::STAYS) {
      work.template add<true>(states, batch, rows, contexts);
    } else {
      State* const left_states = work.left_states(memory, tiles, tile * sections);
      const int first = PHASE == MERGE ? 0 : begin, last = PHASE == MERGE ? sections : end;
#pragma unroll(PHASE == MERGE ? 4 : 1)
      for (int section = first; section < last; ++section) {
        State part[WIDTH];
        if constexpr (PHASE != MERGE) work.accumulate(part, rows, section, contexts);
#pragma unroll
        for (int v = 0; v < WIDTH; ++v) {
          State& left_state = left_states[(section * WIDTH + v) * Team::THREADS + mine];
          if constexpr (PHASE == SPLIT) {
            left_state = part[v];
          } else {
            states[v] = merge(states[v], PHASE == MERGE ? left_state : part[v]);
          }
        }
      }
    }
    if constexpr (PHASE == SPLIT) {
      segment += ends ? workers : 0;
      tile = next_tile;
      __syncthreads();  // the contexts have been read
      continue;
    }

    Finished done[WIDTH];
    if constexpr (ALONE) {
#pragma unroll
      for (int v = 0; v < WIDTH; ++v) {
        const auto outcome = outcome_of<GRADIENTS>(loss, work.row_at(rows, v), contexts[v],
                                                   merged_in_warp<1>(states[v]),
                                                   VALUES != NO_VALUES, factor, reciprocal);
        if (rows.present && split == 0) {
          take<VALUES, Loss>(outcome, rows.first + v, value, sum, counted);
        }
        done[v] = outcome.done;
      }
    } else {
#pragma unroll
      for (int v = 0; v < WIDTH; ++v) {
        states_of_threads[Team::thread() * ROWS + Team::row() + v] = states[v];
      }
      __syncthreads();
      // Neighbouring threads combine what is of one row.
#pragma unroll
      for (int v = 0; v < WIDTH; ++v) {
        const int row = v * Team::NEIGHBOURS + mine / Team::THREADS_PER_ROW;
        const auto all = merged_in_warp<Team::THREADS_PER_ROW>(
            states_of_threads[mine % Team::THREADS_PER_ROW * ROWS + row]);
        if (mine % Team::THREADS_PER_ROW == 0) states_of_rows[row] = all;
      }
      __syncthreads();
      if (mine < ROWS) {
        const long long index = tile * ROWS + mine;
        const auto outcome =
            outcome_of<GRADIENTS>(loss, work.row_at(index), contexts_of_rows[mine],
                                  states_of_rows[mine], VALUES != NO_VALUES, factor, reciprocal);
        if (index < n && split == 0) take<VALUES, Loss>(outcome, index, value, sum, counted);
        if constexpr (GRADIENTS) finished[mine] = outcome.done;
      }
      if constexpr (GRADIENTS) {
        __syncthreads();
#pragma unroll
        for (int v = 0; v < WIDTH; ++v) done[v] = finished[Team::row() + v];
      }
    }

    if constexpr (GRADIENTS && Team::STAYS) {
      if (rows.present) work.differentiate(batch, rows, contexts, done);
    } else if constexpr (GRADIENTS) {
      work.each_batch(rows, begin, end - begin,
                      [&](const auto& part) { work.differentiate(part, rows, contexts, done); });
    }
    if (ends) {
      if constexpr (REDUCED) {
        if (split == 0) reduction.add_totals(segment, sum, counted);
      }
      sum = counted = Sum<T>::zero();
      segment += workers;
    }
    tile = next_tile;
  }
  if constexpr (REDUCED) reduction.finish();
}
