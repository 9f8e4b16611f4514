// Losses over rows whose elements lie apart while neighbouring rows lie together, such as classes
// ahead of pixels, (N, C, d): the loss of each row, its sum or mean, the gradients of the elements,
// or loss and gradients together.
//
// Neighbouring threads work on neighbouring rows, so that they read and write stretches of memory.
// Where the elements of a row lie together in another operand, one access reads several of them.
// A row has shares. A thread has WIDTH rows for itself, or several threads have some shares of
// them each. If there is room for all elements in registers, each is read once. Few elements are
// on their way while the thread works on the rows before. Shares of longer rows have sections. For
// gradients their elements are read again; with many threads for a row they are in the L2 cache
// still, if it is not too long. Where there are few rows, the sections of a tile are the work of
// several blocks, in two launches. Bytes of device memory an element, with operands and gradients
// of s bytes: the loss of one operand s, with its gradient 2s, or 3s where a row is too long.
//
// Gradients may begin within sectors of memory, such as those of classes ahead of an odd number of
// pixels. Neighbouring warps then write parts of one sector. Those of rows in registers do so one
// soon after the other, so that the cache has whole sectors to write. Tiles of longer rows overlap
// by the rows of a sector, so that each has all that it needs for the gradients of whole sectors.
//
// Order of summation: the elements of a section in order, in batches, then the sections of a share
// in order, then shares in order. All that follows from the length of a row and the dtypes. The
// bits of a row do not depend on its address, on other rows, on what else is requested, or on the
// threads and blocks that compute it. Tiles form segments, which are added as those of
// kernels/pointwise.cu are.
#include "kernels/phases.cuh"
#include "kernels/row_epilogue.cuh"
#include "kernels/row_states.cuh"
#include "kernels/strided_batch.cuh"

// The work of a block on its tiles.
template <class T, class Loss, class Layout, StridedTeam TEAM, unsigned WANTED, unsigned TANGENTS,
          bool VJP, class Pointers, class V = Range<TEAM.width>, class K = Range<Layout::ARRAYS>>
struct StridedWorker;

template <class T, class Loss, class Layout, StridedTeam TEAM, unsigned WANTED, unsigned TANGENTS,
          bool VJP, class Pointers, int... V, int... K>
struct StridedWorker<T, Loss, Layout, TEAM, WANTED, TANGENTS, VJP, Pointers, Indices<V...>,
                     Indices<K...>> {
  using Row = RowOf<T, Loss, Layout, TANGENTS, VJP, Pointers>;
  using N = typename Row::N;
  using Column = typename Row::Column;
  using Index = typename Layout::Index;
  using State = typename Loss::template State<N>;
  using Finished = typename Loss::template Finished<N>;
  static_assert(sizeof(State) <= TEAM.state_bytes, "more than there is room for");
  static constexpr int FIRST = Row::FIRST, WIDTH = TEAM.width;
  // Not with gradients, which take longer then.
  static constexpr bool OTHERS_HIDDEN = Loss::HIDES && TEAM.stays && WANTED == 0;
  template <int SURE, int STEP = TEAM.step()>
  using Batch = StridedBatch<Row, Loss, TEAM, SURE, OTHERS_HIDDEN, STEP>;

  const Loss& loss;
  const Layout& layout;
  const Pointers& pointers;
  const StridedThreads<TEAM> team;
  const Index n;
  const long long columns, section_batches;  // batches of a section

  // The rows of a thread in a tile, if they are `present`. Else they are the last rows, of which
  // nothing is read, as other threads may overwrite their elements with gradients.
  struct ThreadRows {
    typename decltype(Layout::rows)::Location at[WIDTH];
    Index first;
    bool present;
  };
  DEVICE auto locate(Index row) const { return layout.rows.locate(row); }
  DEVICE ThreadRows rows_of(Index tile) const {
    const Index first = tile * team.own_rows() + team.row(), there = min(first, n - WIDTH);
    const auto at = locate(there);
    // By name: without, g++ 12 may clear part of it where the emulator's flags give it a pattern.
    ThreadRows rows{{located<V>(at, there)...}, first, first < n};
    return rows;
  }
  DEVICE Row row_at(const ThreadRows& rows, int v) const {
    return {layout, pointers, rows.at[v], Column(columns)};
  }
  DEVICE Row row_at(Index row) const {
    return Row::at_index(layout, pointers, row, n, Column(columns));
  }
  // f(batch) for each batch of a section. LAST: its elements are not read again.
  template <bool LAST>
  DEVICE void each_batch(const ThreadRows& rows, int section, auto f) const {
    if (!rows.present) return;
    const Column length = Column(section_batches) * TEAM.count;
    Column first = section * length;
    const Column end = Column(columns) - first < length ? Column(columns) : first + length;
    for (; first + (TEAM.count - 1) < end; first += TEAM.count)
      f(load<TEAM.count, LAST>(rows, first));
    if (first < end) f(load<0, LAST>(rows, first));
  }
  template <int SURE, bool LAST, int STEP = TEAM.step()>
  DEVICE auto load(const ThreadRows& rows, Column first) const {
    Batch<SURE, STEP> batch;  // without elements where there is no row
    if constexpr (!OTHERS_HIDDEN) batch = {};
    batch.first = first;
    batch.end = Column(columns);
    if (rows.present) (load_array<K, LAST>(batch, rows), ...);
    return batch;
  }

  using Prefetched = PrefetchedOf<Loss, Row>;
  using Context = ContextOf<Loss, Row>;
  // What a thread loads of a tile at once: all elements of its rows, where they stay with it, and
  // what is prefetched of rows that it has alone.
  struct Tile {
    ThreadRows rows;
    Select<TEAM.stays, Batch<TEAM.sure>, Nothing> batch;
    Prefetched prefetched[WIDTH];
  };
  DEVICE Tile load_tile(Index index) const {
    Tile tile;
    tile.rows = rows_of(index);
    if constexpr (TEAM.stays) tile.batch = load<TEAM.sure, false>(tile.rows, team.thread());
    if constexpr (TEAM.alone()) {
      ((tile.prefetched[V] = loss.prefetch(row_at(tile.rows, V))), ...);
    }
    return tile;
  }
  // The contexts of the rows of a thread in a tile. Where several threads work on a row, one reads
  // its context, for all of them. Elements may be overwritten already where another launch has
  // recorded the context, see SPLIT: there the first block of a tile `records` it.
  template <Phase PHASE>
  DEVICE void find_contexts(Context (&contexts)[WIDTH], Context* contexts_of_rows, const Tile& own,
                            Index tile, unsigned char* workspace, bool records) const {
    const ThreadRows& rows = own.rows;
    // Of rows that the next tile has, too, that one records the contexts.
    const Index own_end = (tile + 1) * team.own_rows();
    const Index recorded_end = own_end < n ? own_end : own_end + TEAM.overlap;
    const auto context = [&](const Row& row, const Prefetched& prefetched, Index index,
                             bool present) {
      if constexpr (PHASE == MERGE) return record<Context>(workspace, index);
      const Context found = prologue_of(loss, row, present, prefetched);
      if (PHASE == SPLIT && records && index < recorded_end)
        record<Context>(workspace, index) = found;
      return found;
    };
    if constexpr (TEAM.alone()) {
      ((contexts[V] = context(row_at(rows, V), own.prefetched[V], rows.first + V, rows.present)),
       ...);
    } else {
      const int mine = threadIdx.x;
      Context of_mine{};  // without {} ptxas spills more
      if (mine < team.rows()) {
        const Index index = tile * team.own_rows() + mine;
        const Row row = row_at(index);
        of_mine = context(row, loss.prefetch(row), index, index < n);
      }
      if constexpr (TEAM.overlap != 0) __syncthreads();  // those of the tile before have been read
      if (mine < team.rows()) contexts_of_rows[mine] = of_mine;
      __syncthreads();
      ((contexts[V] = contexts_of_rows[team.row() + V]), ...);
    }
  }
  template <bool FIRST_BATCH>
  DEVICE void add(State (&states)[WIDTH], auto& batch, const ThreadRows& rows,
                  auto& contexts) const {
    const auto largest = batch.largest_of_rows();
    (add_of<FIRST_BATCH, V>(states[V], batch, row_at(rows, V), contexts[V], largest.at[V]), ...);
  }
  // What SPLIT records of a section, behind the contexts of all rows.
  DEVICE State& state_record(unsigned char* workspace, long long tiles, long long section,
                             int v) const {
    const long long states = (section * WIDTH + v) * team.neighbours();
    unsigned char* const behind = workspace + RECORD_BYTES * team.rows() * tiles;
    return reinterpret_cast<State*>(behind)[states + team.neighbour()];
  }
  // What is accumulated of a section.
  DEVICE void accumulate(State (&states)[WIDTH], const ThreadRows& rows, int section,
                         const Context (&contexts)[WIDTH]) const {
    ((states[V] = State::empty()), ...);
    each_batch<false>(rows, section,
                      [&](auto batch) { add<false>(states, batch, rows, contexts); });
  }
  // What is accumulated of a share, whose sections begin with `first`. MERGE takes what SPLIT has
  // recorded of them.
  template <Phase PHASE>
  DEVICE void accumulate_share(State (&states)[WIDTH], const ThreadRows& rows, int first,
                               int sections, const Context (&contexts)[WIDTH],
                               auto record_of) const {
    ((states[V] = State::empty()), ...);
#pragma unroll(PHASE == MERGE ? 4 : 1)
    for (int s = 0; s < sections; ++s) {
      State part[WIDTH];
      if constexpr (PHASE == MERGE) {
        ((part[V] = record_of(first + s, V)), ...);
      } else {
        accumulate(part, rows, first + s, contexts);
      }
      ((states[V] = merge(states[V], part[V])), ...);
    }
  }

  // Writes the gradients of a batch. Of rows that stay in registers, by all threads of the block.
  DEVICE void differentiate(const auto& batch, const ThreadRows& rows,
                            const Context (&contexts)[WIDTH], const Finished (&done)[WIDTH]) const {
    each_bit<WANTED>([&]<int I>(Constant<I>) {
      write_slopes<I>(batch, rows, [&]<int R>(Constant<R>, int k) {
        return slope<I, R>(batch, rows, contexts, done, k);
      });
    });
    if constexpr (Loss::SINGLE && bool(WANTED & 1u)) {
      if (rows.present) (write_target(batch, row_at(rows, V), contexts[V], done[V]), ...);
    }
  }
  // The same for sections of which each thread of a row takes one of so many.
  DEVICE void differentiate_sections(int begin, int end, const ThreadRows& rows,
                                     const Context (&contexts)[WIDTH],
                                     const Finished (&done)[WIDTH]) const {
    for (int section = begin + team.thread(); section < end; section += team.threads_per_row()) {
      each_batch<true>(rows, section,
                       [&](const auto& part) { differentiate(part, rows, contexts, done); });
    }
  }
  // The same for a tile whose elements are read again, by all threads of the block: gradients of
  // the sectors that begin in its own rows. In a column, thread t takes row t of those behind the
  // begin of the first such sector. Columns whose distance is the elements of a sector begin at the
  // same place of one. Each of `blocks` takes a part of the columns.
  DEVICE void differentiate_sectors(Index tile, const Context* contexts_of_rows,
                                    const Finished* finished, int block, int blocks) const {
    static_assert(WIDTH == 1, "a thread has one row");
    using E = typename Row::template Element<Row::INPUTS>;
    constexpr int SECTOR = TEAM.overlap;
    static_assert(SECTOR * sizeof(E) == 32, "the elements of a sector");
    const Index begin = tile * team.own_rows(), end = begin + team.own_rows();
    const unsigned place = place_in_sector(begin), place_of_next = place_in_sector(end);
    const unsigned step = unsigned(layout.template step<Row::INPUTS>());
    const Column parts = Column(blocks) * team.threads_per_row();
    for (Column part = Column(block) * team.threads_per_row() + team.thread();; part += parts) {
      const Column first = part / SECTOR * (SECTOR * TEAM.count) + part % SECTOR;
      if (first >= Column(columns)) break;
      const unsigned behind = unsigned(first) * step;
      // Rows up to a sector that begins in this tile, or in the next one. No tile is ahead of 0.
      const int ahead = begin == 0 ? 0 : int(-(place + behind) % SECTOR);
      const int ahead_of_next = int(-(place_of_next + behind) % SECTOR);
      const int own = ahead + team.row();
      if (own >= team.own_rows() + ahead_of_next || begin + own >= n) continue;
      const ThreadRows rows{{locate(begin + own)}, begin + own, true};
      Context context[WIDTH];
      context[0] = contexts_of_rows[own];  // as it was written there, without padding at its end
      const Finished done[WIDTH] = {finished[own]};
      if (first + (TEAM.count - 1) * SECTOR < Column(columns)) {
        differentiate(load<TEAM.count, true, SECTOR>(rows, first), rows, context, done);
      } else {
        differentiate(load<0, true, SECTOR>(rows, first), rows, context, done);
      }
    }
  }

 private:
  // Row R of those of a thread, the first of which is located.
  template <int R>
  DEVICE auto located(const auto& at, Index first) const {
    if constexpr (R == 0) {
      return at;
    } else if constexpr (TEAM.vectors != 0) {
      return layout.rows.next(at);
    } else {
      return locate(first + R);
    }
  }
  // The place of the gradient of a row in column 0, in elements of memory. What counts is its
  // remainder by a sector, so that 32 bits are enough.
  DEVICE unsigned place_in_sector(Index row) const {
    const auto* const gradient = row_at(row).template address<Row::INPUTS>(Column(0));
    return unsigned(reinterpret_cast<unsigned long long>(gradient) / sizeof(*gradient));
  }
  template <int S>
  using Stored = Vector<typename Row::template Element<S>, WIDTH>;
  template <int S>
  static constexpr bool IS_VECTOR = WIDTH == 1 || bool(TEAM.vectors >> S & 1u);
  // From one element of a batch to the next. An unsigned one takes one instruction.
  using Step = Select<(sizeof(typename Layout::Offset) == 4), unsigned, long long>;
  template <int S, int STEP>
  DEVICE Step step() const {
    return Step(STEP) * Step(layout.template step<S>());
  }

  // How many elements of a row of array S, which lie together there, are one access.
  template <int S, int STEP>
  static __device__ constexpr int unit() {
    if (STEP != 1 || !bool(Layout::VECTORISED >> S & 1u)) return 1;
    int unit = TEAM.access / int(sizeof(typename Row::template Element<S>));
    while (unit > 1 && TEAM.count % unit != 0) unit /= 2;
    return unit;
  }
  template <int S, bool LAST, class B>
  DEVICE void load_array(B& batch, const ThreadRows& rows) const {
    if constexpr (S < FIRST + Loss::OPERANDS && Row::template is_read<S>()) {
      if constexpr (unit<S, B::STEP>() > 1) {
        load_units<S, unit<S, B::STEP>(), LAST>(batch, rows);
      } else {
#pragma unroll
        for (int k = 0; k < TEAM.count; ++k) {
          batch.template take<S>(k, batch.holds(k), [&] {
            if constexpr (IS_VECTOR<S>) {
              const auto* const from = reinterpret_cast<const Packed<Stored<S>>*>(
                  address<S, B::STEP>(rows, 0, batch.first, k));
              return LAST ? __ldcs(from) : *from;
            } else {
              return packed(Stored<S>{{*address<S, B::STEP>(rows, V, batch.first, k)...}});
            }
          });
        }
      }
    }
  }
  // The same by units, of which a row is a whole number.
  template <int S, int UNIT, bool LAST, class B>
  DEVICE void load_units(B& batch, const ThreadRows& rows) const {
#pragma unroll
    for (int k = 0; k < TEAM.count; k += UNIT) {
      const bool there = batch.holds(k);
      Vector<typename Row::template Element<S>, UNIT> units[WIDTH];
      if (there) ((units[V] = load_unit<LAST, UNIT>(address<S, 1>(rows, V, batch.first, k))), ...);
#pragma unroll
      for (int j = 0; j < UNIT; ++j) {
        batch.template take<S>(k + j, there,
                               [&] { return packed(Stored<S>{{units[V].at[j]...}}); });
      }
    }
  }
  template <bool LAST, int UNIT, class E>
  static DEVICE Vector<E, UNIT> load_unit(const E* from) {
    return load_words<UNIT>(from, [](const auto* at) { return LAST ? __ldcs(at) : *at; });
  }
  // Where element k of a batch is. With a step that is opaque here, an offset is a product, one
  // instruction. Else it is a sum of the one before, two of them.
  template <int S, int STEP>
  DEVICE auto* address(const ThreadRows& rows, int v, Column first, int k) const {
    Step step = this->template step<S, STEP>();
    if constexpr (sizeof(Step) == 4) step = opaque(step);
    return row_at(rows, v).template address<S>(first) + k * (long long)(step);
  }
  template <bool FIRST_BATCH, int R, class B>
  DEVICE void add_of(State& state, B& batch, const Row& row, auto& context, T largest) const {
    // Of few elements those of ignored rows are added, too: a branch would take longer.
    if (!TEAM.ahead && context.status != ACTIVE) return;
    typename B::template RowElements<R> elements{batch, row, largest, {}};
    if constexpr (TEAM.ahead) loss.find(context, elements);
    if constexpr (B::TELLS) {
      elements.hidden = batch.place_of(context.column);
    } else if constexpr (Loss::HIDES) {
      if (TEAM.ahead || batch.has(context.column)) batch.hide(R, batch.place_of(context.column));
    }
    loss.template add<FIRST_BATCH>(state, row, context, elements);
  }

  // The gradient by operand I of the element of place k in row R.
  template <int I, int R>
  DEVICE T slope(const auto& batch, const ThreadRows& rows, const Context (&contexts)[WIDTH],
                 const Finished (&done)[WIDTH], int k) const {
    // Selected, as neighbouring threads would take both ways of a branch, one after the other.
    const Row row = row_at(rows, R);
    const auto numbers = batch.template numbers<R>(row, k);
    const T of_active = derivative(loss.template gradient<I, N>(row, done[R], numbers));
    const Status status = contexts[R].status;
    return status == ACTIVE ? of_active : without_loss<T>(status);
  }
  // The gradients of a batch by operand I.
  template <int I, class B>
  DEVICE void write_slopes(const B& batch, const ThreadRows& rows, auto slope) const {
    constexpr int G = Row::template GRADIENT<WANTED, I>, COLUMNS_IN_STEP = 16;
    using E = typename Row::template Element<G>;
#pragma unroll
    for (int k = 0; k < TEAM.count; ++k) {
      if (TEAM.in_step && k % COLUMNS_IN_STEP == 0) keep_in_step();
      if (!batch.holds(k) || (TEAM.in_step && !rows.present)) continue;
      const Stored<G> slopes{{convert<E>(slope(Constant<V>(), k))...}};
      if constexpr (IS_VECTOR<G>) {
        store_vector<WIDTH>(address<G, B::STEP>(rows, 0, batch.first, k), slopes);
      } else {
        ((*address<G, B::STEP>(rows, V, batch.first, k) = slopes.at[V]), ...);
      }
    }
  }
  DEVICE void write_target(const auto& batch, const Row& row, const Context& context,
                           const Finished& done) const {
    if (context.status != ACTIVE || !batch.has(context.column)) return;
    row.template set<Row::INPUTS>(context.column, derivative(loss.gradient_of_target(done)));
  }
};

// The arguments are those of pointwise.cu, with rows for elements: all may be ignored. A
// row has `shares` of `share_sections`, of `section_batches` each. A block has `per_block` of the
// sections of a tile, and 2^`log_neighbours` threads side by side; `workspace` has the records of
// SPLIT. If several threads work on a row, the dynamic shared memory holds what is kept of each row
// of a tile, and the states of all of their shares.
template <class T, class Loss, class Layout, StridedTeam TEAM, Phase PHASE, Values VALUES,
          unsigned WANTED, unsigned TANGENTS, bool VJP, class Result, class... P>
__global__ void __launch_bounds__(TEAM.threads, TEAM.resident)
    strided_rows(Loss loss, double scale, Layout layout, long long section_batches,
                 int share_sections, int shares, int per_block, int log_neighbours, long long n,
                 long long columns, Results<T, Result> results, unsigned char* workspace,
                 P... pointer) {
  extern __shared__ __align__(128) unsigned char shared[];
  using Pointers = Tuple<P...>;
  using Work = StridedWorker<T, Loss, Layout, TEAM, WANTED, TANGENTS, VJP, Pointers>;
  using ThreadRows = typename Work::ThreadRows;
  using Context = typename Work::Context;
  using State = typename Work::State;
  using Finished = typename Work::Finished;
  using Index = typename Layout::Index;  // counts to four times the rows at least
  constexpr bool REDUCED = VALUES >= SUM_OF_VALUES, GRADIENTS = WANTED != 0;
  constexpr int WIDTH = TEAM.width;

  const auto given = Factor::of<GRADIENTS>(results);
  if (given.is_done) return;
  const T factor = T(given.value);
  const Pointers pointers{{pointer}...};
  const StridedThreads<TEAM> team{log_neighbours};
  const Work work{loss, layout, pointers, team, Index(n), columns, section_batches};
  const double divisor = results.known_denominator();
  const Scaling<Layout::ARRAYS, Pointers> scaling{scale, pointers};
  const Reciprocal<T> reciprocal(denominator_of_derivatives<true>(divisor), 1.0, scaling.value());
  const auto reduction =
      reduction_of_rows<T, VALUES, TEAM.threads, TANGENTS, Loss>(given, results, divisor, scaling);

  const int tile_rows = team.rows(), own_rows = team.own_rows(),
            threads_per_row = team.threads_per_row();
  const Index all = Index(results.segments), tiles = (Index(n) + (own_rows - 1)) / own_rows;
  const int sections = shares * share_sections;
  // The sections of this block.
  const int blocks = PHASE == WHOLE ? 1 : (sections + per_block - 1) / per_block;
  const unsigned block = own_block<PHASE>();
  const int split = int(block % blocks), begin = split * per_block;
  const int end = PHASE == WHOLE ? sections : min(sections, begin + per_block);
  const unsigned workers = gridDim.x / blocks;
  Index segment = block / blocks, tile = segment;
  Sum<T> sum = Sum<T>::zero(), counted = Sum<T>::zero();
  // Where several threads work on a row, one does what is done once for it.
  constexpr bool ALONE = TEAM.alone(), OVERLAPS = TEAM.overlap != 0;
  constexpr int CONTEXT_BYTES = (sizeof(Context) + 7) / 8 * 8;  // aligned for all types
  static_assert(ALONE || CONTEXT_BYTES + GRADIENTS * sizeof(Finished) <= TEAM.row_bytes,
                "more than there is room for");
  Context* const contexts_of_rows = reinterpret_cast<Context*>(shared);
  Finished* const finished = reinterpret_cast<Finished*>(shared + CONTEXT_BYTES * tile_rows);
  State* const states_of_shares = reinterpret_cast<State*>(shared + TEAM.row_bytes * tile_rows);
  const int mine = threadIdx.x;
  using Tile = typename Work::Tile;
  [[maybe_unused]] Select<TEAM.ahead, Tile, Nothing> coming;
  if constexpr (TEAM.ahead) coming = work.load_tile(tile);
  // Twice, so that what is ahead need not be copied to where the next turn has it.
#pragma unroll(TEAM.ahead ? 2 : 1)
  while (segment < all) {
    // The next tile of the segment, or the first one of the next segment, or one behind all.
    const bool ends = tile + all >= tiles;
    const Index next_segment = ends ? segment + workers : segment;
    const Index next_tile = !ends ? tile + all : next_segment < all ? next_segment : tiles;
    Tile own;
    if constexpr (TEAM.ahead) {
      own = coming;
      coming = work.load_tile(next_tile);
    } else {
      own = work.load_tile(tile);
    }
    const ThreadRows& rows = own.rows;
    auto& batch = own.batch;
    Context contexts[WIDTH];
    Finished done[WIDTH];
    // Rows that are not there are left out where no other thread waits for this one.
    if (!TEAM.ahead || rows.present) {
      work.template find_contexts<PHASE>(contexts, contexts_of_rows, own, tile, workspace,
                                         split == 0);
      const auto record_of = [&](int section, int v) -> State& {
        return work.state_record(workspace, tiles, tile * sections + section, v);
      };
      if constexpr (PHASE == SPLIT) {
        for (int section = begin + team.thread(); section < end; section += threads_per_row) {
          State states[WIDTH];
          work.accumulate(states, rows, section, contexts);
#pragma unroll
          for (int v = 0; v < WIDTH; ++v) {
            record_of(section, v) = states[v];
          }
        }
        segment = next_segment;
        tile = next_tile;
        __syncthreads();  // the contexts have been read
        continue;
      }

      State states[WIDTH];
#pragma unroll
      for (int v = 0; v < WIDTH; ++v) states[v] = State::empty();
      const auto add_share = [&](int share, const State(&of_share)[WIDTH]) {
#pragma unroll
        for (int v = 0; v < WIDTH; ++v) {
          if constexpr (ALONE) {
            states[v] = merge(states[v], of_share[v]);
          } else {
            states_of_shares[share * tile_rows + team.row() + v] = of_share[v];
          }
        }
      };
      if constexpr (TEAM.stays) {
        work.template add<true>(states, batch, rows, contexts);
        if constexpr (!ALONE) add_share(team.thread(), states);
      } else {
        for (int share = team.thread(); share < shares; share += threads_per_row) {
          State of_share[WIDTH];
          work.template accumulate_share<PHASE>(of_share, rows, share * share_sections,
                                                share_sections, contexts, record_of);
          add_share(share, of_share);
        }
      }

      if constexpr (ALONE) {
#pragma unroll
        for (int v = 0; v < WIDTH; ++v) {
          const auto outcome = outcome_of<GRADIENTS, TEAM.ahead>(
              loss, work.row_at(rows, v), contexts[v], as_merged(states[v]), VALUES != NO_VALUES,
              factor, reciprocal);
          if (rows.present && split == 0) {
            take<VALUES, Loss>(outcome, rows.first + v, results.value, sum, counted);
          }
          done[v] = outcome.done;
        }
      } else {
        __syncthreads();
        if (mine < tile_rows) {
          State state = State::empty();
          for (int share = 0; share < shares; ++share) {
            state = merge(state, states_of_shares[share * tile_rows + mine]);
          }
          const Index index = tile * own_rows + mine;
          const auto outcome =
              outcome_of<GRADIENTS>(loss, work.row_at(index), contexts_of_rows[mine],
                                    as_merged(state), VALUES != NO_VALUES, factor, reciprocal);
          if (index < work.n && mine < own_rows && split == 0) {
            take<VALUES, Loss>(outcome, index, results.value, sum, counted);
          }
          if constexpr (GRADIENTS) finished[mine] = outcome.done;
        }
        if constexpr (GRADIENTS) {
          __syncthreads();
#pragma unroll
          for (int v = 0; v < WIDTH; ++v) done[v] = finished[team.row() + v];
        }
      }
    }

    if constexpr (GRADIENTS && OVERLAPS) {
      work.differentiate_sectors(tile, contexts_of_rows, finished, split, blocks);
    } else if constexpr (GRADIENTS && TEAM.stays) {
      if (TEAM.in_step || rows.present) work.differentiate(batch, rows, contexts, done);
    } else if constexpr (GRADIENTS) {
      work.differentiate_sections(begin, end, rows, contexts, done);
    }
    if (ends) {
      if constexpr (REDUCED) {
        if (split == 0) reduction.add(segment, sum, counted);
      }
      sum = counted = Sum<T>::zero();
    }
    segment = next_segment;
    tile = next_tile;
  }
  if constexpr (REDUCED) reduction.finish(gridDim.x);
}
