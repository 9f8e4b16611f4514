// Losses over rows that lie one after the other in memory: the loss of each row, its sum or mean,
// the gradients of the elements, or loss and gradients together.
//
// Neighbouring rows are one stretch of memory, whatever their length and their alignment. A block
// copies a tile of whole rows to shared memory, while it works on the tile before, or, where it has
// room for one, while other blocks work on theirs. `threads_per_row` threads work on a row there.
// Gradients take the place of the elements that they belong to, and go back as one stretch. The
// elements of a row may lie apart in other operands than the first one, while neighbouring rows lie
// together. Neighbouring threads copy stretches of these, columns of the tile. Bytes of device
// memory an element, with operands and gradients of s bytes: the loss of one operand s, with its
// gradient 2s.
//
// Order of summation: a thread adds its elements of a row in order, each to one of the few sums of
// the loss, by its place in a batch; then parts of its elements, where there are several, are added
// in pairs, and so are threads. The elements of a thread follow from the length of a row and the
// dtypes. The bits of a row do not depend on its address, on other rows, or on what else is
// requested. Tiles form segments, which are added as those of kernels/pointwise.cu are.
#include "kernels/row_epilogue.cuh"
#include "kernels/row_states.cuh"
#include "kernels/row_units.cuh"
#include "memory/tile_copy.cuh"

// A tile: how many rows it has, the bytes of all its arrays in shared memory, and where each
// begins.
template <int ARRAYS>
struct TilePlaces {
  int rows, bytes, begin[ARRAYS];
};

// The work of a block on its tiles. `pointers` are those to device memory.
template <class T, class Loss, class Layout, TileTeam TEAM, unsigned WANTED, unsigned TANGENTS,
          bool VJP, class Pointers, class K = Range<Layout::ARRAYS>>
struct RowTileWorker;

template <class T, class Loss, class Layout, TileTeam TEAM, unsigned WANTED, unsigned TANGENTS,
          bool VJP, class Pointers, int... K>
struct RowTileWorker<T, Loss, Layout, TEAM, WANTED, TANGENTS, VJP, Pointers, Indices<K...>> {
  using Row = RowOf<T, Loss, Layout, TANGENTS, VJP, Pointers>;
  using N = typename Row::N;
  using State = typename Loss::template State<N>;
  using Merged = decltype(as_merged(State()));
  using Finished = typename Loss::template Finished<N>;
  using Places = TilePlaces<Layout::ARRAYS>;
  using Copies = TileCopies<TEAM.threads, (TEAM.apart != 0), TEAM.stages>;
  using Index = typename Layout::Index;  // counts to four times the rows at least
  using Elements = ThreadShare<Row, Loss, TEAM>;
  using StagedLayout = Select<TEAM.apart == 0, const Layout&, Layout>;
  static constexpr int FIRST = Row::FIRST;

  const Loss& loss;
  const Layout& layout;
  const Layout& in_stage;  // how rows lie in shared memory
  const Places& places;
  const Pointers& pointers;
  const Index n;
  const int columns;

  // Whether array S has a tile in shared memory: of rows, of columns, or of a number for each row.
  template <int S>
  static constexpr bool IS_STAGED = bool((TEAM.elements | TEAM.apart | TEAM.numbers) >> S & 1u);
  template <int S>
  static constexpr bool IS_APART = bool(TEAM.apart >> S & 1u);
  static DEVICE StagedLayout staged_layout(const Layout& layout) {
    if constexpr (TEAM.apart == 0) {
      return layout;
    } else {
      Layout staged = layout;
      ((IS_APART<K> ? void(staged.steps[K] = TEAM.pitch) : void()), ...);
      return staged;
    }
  }
  // The elements of a row that lie together in array S.
  template <int S>
  DEVICE int count() const {
    return (TEAM.elements >> S & 1u) ? columns : 1;
  }
  DEVICE int rows_of(Index tile) const {
    return int(min(Index(places.rows), n - tile * places.rows));
  }

  // To shared memory, without waiting.
  DEVICE void load(unsigned turn, Index tile, unsigned char* stage) const {
    if (threadIdx.x >= Copies::COPYING) return;
    if constexpr (WANTED != 0) Copies::wait_for_stores();
    (load_array<K>(turn, tile, stage), ...);
    Copies::commit(turn);
  }
  // The pointers, to shared memory where a tile is there.
  DEVICE Pointers staged(unsigned char* stage) const {
    Pointers staged = pointers;
    (stage_pointer<K>(staged, stage), ...);
    return staged;
  }
  // Row `own` of a tile.
  DEVICE Row row_at(Index tile, int own, const Pointers& staged) const {
    Row row{in_stage, staged, layout.rows.locate(tile * places.rows + own), columns};
    ((IS_STAGED<K> ? void(row.at.offset[K] = own * count<K>()) : void()), ...);
    return row;
  }

  // The context of a row. Hides the element of its class.
  DEVICE auto prologue(const Row& row) const {
    const auto context = loss.prologue(row, loss.prefetch(row));
    if constexpr (Loss::HIDES) {
      if (context.status == ACTIVE) row.template set<FIRST>(context.column, T(-INFINITY));
    }
    return context;
  }
  // The elements of an active row.
  DEVICE Elements elements_of(const Row& row, bool active) const {
    Elements elements(row);
    if constexpr (finds_maximum<Loss, State>) {
      if (active) elements.maximum = elements.own_largest();
      elements.maximum = LargestInWarp<TEAM.threads_per_row>()(elements.maximum);
    }
    return elements;
  }
  // What the threads of a row accumulate together, in all of them.
  DEVICE Merged accumulate(Elements& elements, const auto& context) const {
    const Merged own = accumulate<TEAM.parts>(elements, context, 0);
    if constexpr (Loss::ANCHORED) return merged_in_warp<TEAM.threads_per_row>(own);
    return merge_rescaled_in_warp<TEAM.threads_per_row>(own);
  }

  // Puts the gradients of a row that is not active in the place of its elements.
  DEVICE void fill(const Elements& elements, Status status) const {
    const T number = without_loss<T>(status);
    elements.each_place([&]<int SIZE, int ALIGNED>(Constant<SIZE>, Constant<ALIGNED>, int column) {
      each_bit<WANTED>([&]<int I>(Constant<I>) {
        put<I, SIZE, bool(ALIGNED)>(elements.row, column, [&](int) { return number; });
      });
    });
  }
  // The same for an active row.
  DEVICE void differentiate(const Elements& elements, const auto& context,
                            const Finished& done) const {
    const Row& row = elements.row;
    elements.each_vector([&]<int SIZE, int ALIGNED>(Constant<SIZE>, Constant<ALIGNED>, int column,
                                                    const auto& xs) {
      each_bit<WANTED>([&]<int I>(Constant<I>) {
        put<I, SIZE, bool(ALIGNED)>(row, column, [&](int j) {
          return derivative(loss.template gradient<I, N>(row, done, Elements::element_of(xs, j)));
        });
      });
    });
    if constexpr (Loss::SINGLE && bool(WANTED & 1u)) {
      if (TEAM.has(context.column)) {
        row.template set<FIRST>(context.column, derivative(loss.gradient_of_target(done)));
      }
    }
  }

  // From shared memory to the gradients, which are stretches of memory whatever operands are.
  DEVICE void store(Index tile, const Pointers& staged) const {
    each_bit<WANTED>([&]<int I>(Constant<I>) {
      constexpr int G = Row::template GRADIENT<WANTED, I>;
      const int rows = rows_of(tile);
      auto* const to = get<G>(pointers) + (long long)(tile) * (places.rows * columns);
      const auto* const from = get<FIRST + I>(staged);
      if constexpr (IS_APART<FIRST + I>) {
        const int lane = threadIdx.x % 32;
        for (int own = int(threadIdx.x) / 32; own < rows; own += TEAM.threads / 32) {
          for (int k = lane; k < columns; k += 32)
            to[own * columns + k] = from[k * TEAM.pitch + own];
        }
      } else {
        Copies::store(to, from, rows * columns);
      }
    });
  }

 private:
  template <int S>
  DEVICE long long first_of(Index tile) const {
    return (long long)(tile) * (places.rows * count<S>());
  }
  template <int S>
  DEVICE void load_array(unsigned turn, Index tile, unsigned char* stage) const {
    if constexpr (IS_APART<S>) {
      load_columns<S>(tile, stage);
    } else if constexpr (IS_STAGED<S>) {
      Copies::load(turn, stage + places.begin[S], get<S>(pointers) + first_of<S>(tile),
                   rows_of(tile) * count<S>());
    }
  }
  // A thread copies elements of the same neighbouring rows, of every so many columns.
  template <int S>
  DEVICE void load_columns(Index tile, unsigned char* stage) const {
    using E = typename Row::template Element<S>;
    constexpr int SIZE = sizeof(E), AT_ONCE = TEAM.access > SIZE ? TEAM.access / SIZE : 1;
    constexpr int OF_COLUMN = TEAM.rows() / AT_ONCE, STEP = TEAM.threads / OF_COLUMN;
    const int own = int(threadIdx.x) % OF_COLUMN * AT_ONCE;
    const Index row = tile * TEAM.rows() + own;
    if (row >= n) return;
    const auto* const from = get<S>(pointers) + layout.rows.locate(row).offset[S];
    E* const to = reinterpret_cast<E*>(stage + places.begin[S]) + own;
    const long long step = layout.template step<S>();
    int k = int(threadIdx.x) / OF_COLUMN;
    if constexpr (AT_ONCE * SIZE < 4) {  // the thread waits for them
      constexpr int BATCH = 16;
#pragma unroll 1
      for (; k + (BATCH - 1) * STEP < columns; k += BATCH * STEP) {
        Vector<E, AT_ONCE> batch[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; ++i)
          batch[i] = ::load_vector<AT_ONCE>(from + (k + i * STEP) * step);
#pragma unroll
        for (int i = 0; i < BATCH; ++i)
          store_vector_in_block(to + (k + i * STEP) * TEAM.pitch, batch[i]);
      }
    }
#pragma unroll 4
    for (; k < columns; k += STEP) copy_bytes<AT_ONCE * SIZE>(to + k * TEAM.pitch, from + k * step);
  }
  template <int S>
  DEVICE void stage_pointer(Pointers& staged, unsigned char* stage) const {
    if constexpr (IS_STAGED<S>) {
      // Every tile of an array is a multiple of 16 bytes, see `least_rows` in
      // _device/row_tiling.py.
      const int behind = IS_APART<S> ? 0 : misalignment(get<S>(pointers));
      get<S>(staged) = reinterpret_cast<At<S, Pointers>>(stage + places.begin[S] + behind);
    }
  }
  // What this thread accumulates of COUNT parts, from `part` on.
  template <int COUNT>
  DEVICE Merged accumulate(Elements& elements, const auto& context, int part) const {
    if constexpr (COUNT == 1) {
      State state = State::empty();
      elements.part = part;
      if (context.status == ACTIVE) add(state, elements, context);
      return as_merged(state);
    } else {
      const Merged half = accumulate<COUNT / 2>(elements, context, part);
      const Merged other = accumulate<COUNT / 2>(elements, context, part + COUNT / 2);
      if constexpr (Loss::ANCHORED) return merge(half, other);
      return merge_rescaled(half, other);
    }
  }
  // Adds the elements of this thread in a part, of which there are some, to an empty state.
  DEVICE void add(State& state, Elements& elements, const auto& context) const {
    if constexpr (Loss::ANCHORED) {
      if (loss.add_anchored(state, context, elements)) return;
    }
    loss.template add<true>(state, elements.row, context, elements);
  }
  // Puts gradients slope(0), slope(1), ... by operand I in the place of its elements.
  template <int I, int SIZE, bool ALIGNED>
  static DEVICE void put(const Row& row, int column, auto slope) {
    using E = typename Row::template Element<FIRST + I>;
    Vector<E, SIZE> slopes;
#pragma unroll
    for (int j = 0; j < SIZE; ++j) slopes.at[j] = convert<E>(slope(j));
    E* const place = const_cast<E*>(row.template address<FIRST + I>(column));
    if constexpr (ALIGNED && !IS_APART<FIRST + I>) {
      store_vector_in_block(place, slopes);
    } else {
      constexpr int STEP = IS_APART<FIRST + I> ? TEAM.pitch : 1;
#pragma unroll
      for (int j = 0; j < SIZE; ++j) place[j * STEP] = slopes.at[j];
    }
  }
};

// The arguments are those of pointwise.cu, with rows for elements: all may be ignored.
// The dynamic shared memory holds `stages` tiles.
template <class T, class Loss, class Layout, TileTeam TEAM, Values VALUES, unsigned WANTED,
          unsigned TANGENTS, bool VJP, class Result, class... P>
__global__ void __launch_bounds__(TEAM.threads, TEAM.resident)
    row_tiles(Loss loss, double scale, Layout layout, TilePlaces<Layout::ARRAYS> places,
              long long n, long long columns, Results<T, Result> results, P... pointer) {
  extern __shared__ __align__(128) unsigned char shared[];
  using Pointers = Tuple<P...>;
  using Work = RowTileWorker<T, Loss, Layout, TEAM, WANTED, TANGENTS, VJP, Pointers>;
  using Index = typename Layout::Index;
  constexpr bool REDUCED = VALUES >= SUM_OF_VALUES, GRADIENTS = WANTED != 0;

  const auto given = Factor::of<GRADIENTS>(results);
  if (given.is_done) return;
  const T factor = T(given.value);
  const Pointers pointers{{pointer}...};
  // Opaque: of a number whose upper half it knows the compiler computes products with that half.
  const int length = int(opaque(unsigned(columns)));
  const typename Work::StagedLayout in_stage = Work::staged_layout(layout);
  const Work work{loss, layout, in_stage, places, pointers, Index(n), length};
  const double divisor = results.known_denominator();
  const Scaling<Layout::ARRAYS, Pointers> scaling{scale, pointers};
  const Reciprocal<T> reciprocal(denominator_of_derivatives<true>(divisor), 1.0, scaling.value());
  const auto reduction =
      reduction_of_rows<T, VALUES, TEAM.threads, TANGENTS, Loss>(given, results, divisor, scaling);

  const Index all = Index(results.segments), tiles = (Index(n) + (places.rows - 1)) / places.rows;
  Index segment = blockIdx.x, tile = segment;
  Sum<T> sum = Sum<T>::zero(), counted = Sum<T>::zero();
  Work::Copies::begin();
  if (tile < tiles) work.load(0, tile, shared);
  for (unsigned turn = 0; segment < all; ++turn) {
    // The next tile of the segment, or the first one of the next segment.
    const bool ends = tile + all >= tiles;
    const Index next = ends ? segment + gridDim.x : tile + all;
    const bool goes_on = !ends || next < all;
    if constexpr (TEAM.stages == 2) {
      if (goes_on) {
        work.load(turn + 1, next, shared + (turn + 1) % 2 * places.bytes);
      } else {
        Work::Copies::commit(turn + 1);  // of nothing
      }
    }
    Work::Copies::wait(turn);
    // Opaque: computed once, and not for each row.
    unsigned char* const stage = shared + opaque(turn % TEAM.stages * unsigned(places.bytes));
    const Pointers staged = work.staged(stage);
    const int rows = work.rows_of(tile);
    if constexpr (TEAM.threads_per_row == 1) {
#pragma unroll 1
      for (int own = threadIdx.x; own < rows; own += TEAM.threads) {
        const auto row = work.row_at(tile, own, staged);
        const auto context = work.prologue(row);
        auto elements = work.elements_of(row, context.status == ACTIVE);
        const auto state = work.accumulate(elements, context);
        const auto outcome = outcome_of<GRADIENTS>(loss, row, context, state, VALUES != NO_VALUES,
                                                   factor, reciprocal);
        take<VALUES, Loss>(outcome, tile * places.rows + own, results.value, sum, counted);
        if constexpr (GRADIENTS) {
          if (context.status == ACTIVE) {
            work.differentiate(elements, context, outcome.done);
          } else {
            work.fill(elements, context.status);
          }
        }
      }
    } else {
      // One thread does the prologue and the epilogue of a row, `threads_per_row` threads do the
      // rest.
      using Context = ContextOf<Loss, typename Work::Row>;
      using State = typename Work::Merged;
      using Finished = typename Work::Finished;
      Context* const contexts = shared_array<Context, TEAM.MOST_ROWS, 0>();
      State* const states = shared_array<State, TEAM.MOST_ROWS, 1>();
      Finished* const finished = shared_array<Finished, GRADIENTS ? TEAM.MOST_ROWS : 1, 2>();
      const int mine = threadIdx.x;
      if (mine < rows) contexts[mine] = work.prologue(work.row_at(tile, mine, staged));
      if (mine >= rows && mine < places.rows) contexts[mine].status = IGNORED;
      __syncthreads();
#pragma unroll 1
      for (int own = TEAM.row(); own < places.rows; own += TEAM.rows()) {
        const bool active = contexts[own].status == ACTIVE;
        auto elements = work.elements_of(work.row_at(tile, own, staged), active);
        const auto state = work.accumulate(elements, contexts[own]);
        if (TEAM.thread() == 0) states[own] = state;
      }
      __syncthreads();
      if (mine < rows) {
        const auto outcome =
            outcome_of<GRADIENTS>(loss, work.row_at(tile, mine, staged), contexts[mine],
                                  states[mine], VALUES != NO_VALUES, factor, reciprocal);
        take<VALUES, Loss>(outcome, tile * places.rows + mine, results.value, sum, counted);
        if constexpr (GRADIENTS) finished[mine] = outcome.done;
      }
      if constexpr (GRADIENTS) {
        __syncthreads();
#pragma unroll 1
        for (int own = TEAM.row(); own < rows; own += TEAM.rows()) {
          const typename Work::Elements elements(work.row_at(tile, own, staged));
          if (contexts[own].status == ACTIVE) {
            // A copy: a reference would be read anew after each gradient that is stored.
            const Finished done = finished[own];
            work.differentiate(elements, contexts[own], done);
          } else {
            work.fill(elements, contexts[own].status);
          }
        }
      }
    }
    Work::Copies::fence();
    __syncthreads();
    if constexpr (GRADIENTS) {
      work.store(tile, staged);
      __syncthreads();  // what is copied element by element has been read
    }
    if constexpr (TEAM.stages == 1) {
      if (goes_on) work.load(turn + 1, next, shared);
    }
    if (ends) {
      if constexpr (REDUCED) reduction.add(segment, sum, counted);
      sum = counted = Sum<T>::zero();
      segment += gridDim.x;
    }
    tile = next;
  }
  if constexpr (GRADIENTS) Work::Copies::wait_for_stores();
  if constexpr (REDUCED) reduction.finish(gridDim.x);
}
