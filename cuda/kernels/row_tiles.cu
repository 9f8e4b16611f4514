// Losses over rows that lie one after the other in memory: the loss of each row, its sum or mean,
// the gradients of the elements, or loss and gradients together.
//
// Neighbouring rows are one stretch of memory, whatever their length and their alignment. A block
// copies a tile of whole rows to shared memory, while it works on the tile before, or, where it has
// room for one, while other blocks work on theirs. THREADS_PER_ROW threads work on a row there.
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
#include "memory/tile_copy.cuh"

// What cupy_losses/_device/row_tiling.py chooses.
struct TileTeamParameters {
  int threads, threads_per_row;  // of a block, and of a row
  int unit;                      // the neighbouring elements that a thread reads at once
  int batch;                     // the units that it takes at a time
  // Whether rows of an odd number of elements of half precision, of one thread each, are read in
  // units of two; the element that is left is at one end.
  bool paired;
  int parts;          // part k is every parts-th unit of a thread in a row, from its unit k on
  int resident;       // how many blocks a multiprocessor is to hold
  unsigned elements;  // bit k: array k has a tile of an element for each one of a row
  unsigned numbers;   // bit k: array k has a tile of one number for each row
  unsigned apart;     // bit k: array k has a tile of columns, as the elements of a row lie apart
  int pitch;          // the elements from one of these columns to the next one in shared memory
  int access;         // the bytes of a column that a thread copies at once
  int stages;         // the tiles that shared memory has room for, 2 or 1
};

// The threads of a row in a tile.
template <TileTeamParameters GIVEN>
struct TileTeam {
  static constexpr int THREADS = GIVEN.threads, THREADS_PER_ROW = GIVEN.threads_per_row,
                       RESIDENT = GIVEN.resident;
  static constexpr int UNIT = GIVEN.unit, BATCH = GIVEN.batch, PARTS = GIVEN.parts;
  static constexpr bool PAIRED = GIVEN.paired;
  static constexpr int ROWS = THREADS / THREADS_PER_ROW;  // at a time
  static constexpr int MOST_ROWS = 64;  // of a tile, if several threads work on a row
  static constexpr unsigned ELEMENTS = GIVEN.elements, NUMBERS = GIVEN.numbers;
  static constexpr unsigned APART = GIVEN.apart;
  static constexpr int PITCH = GIVEN.pitch, ACCESS = GIVEN.access, STAGES = GIVEN.stages;
  static_assert(!PAIRED || THREADS_PER_ROW == 1,
                "the thread of an element would depend on where a row begins");
  static_assert(!PAIRED || UNIT == 2, "an element is alone where a pair is not");

  static DEVICE int thread() { return int(threadIdx.x) % THREADS_PER_ROW; }
  static DEVICE int row() { return int(threadIdx.x) / THREADS_PER_ROW; }
  // The k-th part that a thread reads is k ^ first_part. Threads of a warp whose rows begin in the
  // same bank of shared memory, which holds 8 vectors side by side, read different parts at a time.
  // Parts are merged in pairs, so that the bits are the same whichever comes first.
  static DEVICE int first_part(int columns) { return row() * (columns / UNIT) / 8 % PARTS; }
  // Whether an element is one of this thread.
  static DEVICE bool has(int column) { return column / UNIT % THREADS_PER_ROW == thread(); }
};

// Whether the largest element of a row is found first, for a state with a `maximum`. Those of all
// its threads have the same one then, and are merged without rescaling.
template <class Loss, class State>
constexpr bool finds_maximum = !Loss::ANCHORED && requires(State state) { state.maximum; };

// What one thread has of a row: every THREADS_PER_ROW-th unit, of each operand that the loss reads.
template <class Row, class Loss, class Team, class I = Range<Loss::OPERANDS + int(Loss::WEIGHTED)>>
struct ThreadShare;

template <class Row, class Loss, class Team, int... I>
struct ThreadShare<Row, Loss, Team, Indices<I...>> {
  using T = typename Row::Scalar;
  using N = typename Row::N;
  using First = typename Row::template Element<Row::FIRST>;
  static constexpr int FIRST = Row::FIRST, UNIT = Team::UNIT, BATCH = Team::BATCH;
  static constexpr int OF_PLACE = 2;                     // more than one element of each place
  static constexpr int PLACES = is_half<First> ? 2 : 4;  // that they are in

  static_assert(!Team::PAIRED || PLACES == 2, "the sums of even and of odd columns change places");

  const Row row;
  T maximum = lowest<T>();  // the largest number of the first operand in the row
  int part = 0;             // of which `each` is

  explicit DEVICE ThreadShare(const Row& row)
      : row(row),
        first_part(Team::first_part(row.columns)),
        begin(Team::PAIRED ? shift<FIRST>() : 0),
        aligned(are_aligned()) {}

  // f(place, column, x) for each element of the part, get<k>(x) being its number in operand k.
  DEVICE void each(auto f) const {
    each_unit(part, [&]<int SIZE, int ALIGNED>(Constant<SIZE>, Constant<ALIGNED>, int place,
                                               int first, int offset) {
      const auto numbers = this->template load_all<SIZE, bool(ALIGNED)>(first + offset);
#pragma unroll
      for (int j = 0; j < SIZE; ++j)
        f((place + j) % PLACES, ColumnNear{first, offset + j}, element_of(numbers, j));
    });
  }
  // f(size, aligned, column) for each unit of all parts.
  DEVICE void each_place(auto f) const {
    each_unit_of_all([&](auto size, auto aligned, int, int first, int offset) {
      f(size, aligned, first + offset);
    });
  }
  // f(size, aligned, column, xs) for the same, element_of(xs, j) being one such x.
  DEVICE void each_vector(auto f) const {
    each_place(
        [&]<int SIZE, int ALIGNED>(Constant<SIZE> size, Constant<ALIGNED> aligned, int column) {
          f(size, aligned, column, this->template load_all<SIZE, bool(ALIGNED)>(column));
        });
  }
  static DEVICE auto element_of(const auto& numbers, int j) {
    return Tuple<Repeat<N, I>...>{{get<I>(numbers).at[j]}...};
  }
  // If `maximum` was not found ahead, that of this thread.
  DEVICE T largest(T so_far) const {
    static_assert(Loss::ANCHORED || finds_maximum<Loss, typename Loss::template State<N>>,
                  "nothing was found ahead for a state without a `maximum`");
    return Loss::ANCHORED ? larger(so_far, own_largest()) : maximum;
  }

  // The largest number of the first operand that this thread has; not -inf, even if all are.
  DEVICE T own_largest() const {
    T found = lowest<T>();
    First of_pairs[2] = {convert<First>(found), convert<First>(found)};
    each_unit_of_all(
        [&]<int SIZE, int ALIGNED>(Constant<SIZE>, Constant<ALIGNED>, int, int first, int offset) {
          const auto* const from = row.template address<FIRST>(first + offset);
          take_larger(found, of_pairs, load_elements<SIZE, bool(ALIGNED)>(from));
        });
    if constexpr (HAS_PAIRS) {
      found = larger(found, larger(convert<T>(of_pairs[0]), convert<T>(of_pairs[1])));
    }
    return found;
  }

 private:
  const int first_part;
  // The column of the first unit, and whether units are aligned in all operands that have a tile.
  const int begin;
  const bool aligned;

  // Two pairs are compared at once.
  static constexpr bool HAS_PAIRS = ARCHITECTURE >= 800 && is_half<First> && UNIT % 2 == 0;

  // By how many elements a row of array S, which is in shared memory, begins behind a unit.
  template <int S>
  DEVICE int shift() const {
    static_assert(bool(Team::ELEMENTS >> S & 1u), "the array has a tile");
    using E = typename Row::template Element<S>;
    const auto start = shared_address(row.template address<S>(0));
    return int(start % alignof(Vector<E, UNIT>) / sizeof(E));
  }
  // Whether the shift of operand K is `begin`, if it has a tile.
  template <int K>
  DEVICE bool is_aligned() const {
    if constexpr (bool(Team::ELEMENTS >> (FIRST + K) & 1u)) return shift<FIRST + K>() == begin;
    return true;
  }
  DEVICE bool are_aligned() const {
    return (Team::PAIRED || row.columns % UNIT == 0) && (is_aligned<I>() && ...);
  }

  // f(size, aligned, place, first, offset) for each unit of a part, or single element at an end;
  // it begins in the column `first` + `offset`.
  DEVICE void each_unit(int part, auto f) const {
    if constexpr (UNIT == 1) {
      each_unit_of<false>(part, f);
    } else {
      if (aligned) {
        each_unit_of<true>(part, f);
      } else {
        each_unit_of<false>(part, f);
      }
    }
  }
  DEVICE void each_unit_of_all(auto f) const {
#pragma unroll 1
    for (int part = 0; part < Team::PARTS; ++part) each_unit(part, f);
  }
  // PAIRED, the sums of both places are those of the even and of the odd columns, or the other way
  // around: the bits do not depend on where a row begins.
  template <bool ALIGNED>
  DEVICE void each_unit_of(int part, auto f) const {
    constexpr int STEP = Team::PARTS * Team::THREADS_PER_ROW;
    const int units = row.columns / UNIT, last = row.columns - 1;
    int unit = (part ^ first_part) * Team::THREADS_PER_ROW + Team::thread();
    if (Team::PAIRED && begin != 0) f(Constant<1>(), Constant<0>(), 1, 0, 0);
#pragma unroll 1
    for (; unit + (BATCH - 1) * STEP < units; unit += BATCH * STEP) {
#pragma unroll
      for (int k = 0; k < BATCH; ++k) {
        f(Constant<UNIT>(), Constant<ALIGNED>(), k * UNIT % PLACES, begin + unit * UNIT,
          k * STEP * UNIT);
      }
    }
    if constexpr (BATCH > 1) {
#pragma unroll 1
      for (; unit < units; unit += STEP) {
        f(Constant<UNIT>(), Constant<ALIGNED>(), 0, begin + unit * UNIT, 0);
      }
    }
    if constexpr (Team::PAIRED) {
      if (begin == 0) f(Constant<1>(), Constant<0>(), 0, last, 0);
    } else if constexpr (UNIT > 1 && !ALIGNED) {
      if (row.columns % UNIT != 0 && Team::has(last)) f(Constant<1>(), Constant<0>(), 0, last, 0);
    }
  }

  template <int SIZE>
  static DEVICE void take_larger(T& found, First (&of_pairs)[2], const Vector<First, SIZE>& unit) {
    if constexpr (SIZE > 1 && HAS_PAIRS) {
      auto both = pair(of_pairs[0], of_pairs[1]);
#pragma unroll
      for (int j = 0; j < SIZE; j += 2) both = __hmax2(both, pair(unit.at[j], unit.at[j + 1]));
      of_pairs[0] = both.x;
      of_pairs[1] = both.y;
    } else {
#pragma unroll
      for (int j = 0; j < SIZE; ++j) found = larger(found, convert<T>(unit.at[j]));
    }
  }
  template <int SIZE, bool ALIGNED>
  DEVICE auto load_all(int column) const {
    return Tuple<Vector<Repeat<N, I>, SIZE>...>{{load<SIZE, ALIGNED, I>(column)}...};
  }
  template <int SIZE, bool ALIGNED, class E>
  static DEVICE Vector<E, SIZE> load_elements(const E* from) {
    if constexpr (ALIGNED) {
      return load_vector<SIZE>(from);
    } else {
      return load_apart<SIZE>(from, 1);
    }
  }
  template <int SIZE, bool ALIGNED>
  static DEVICE Vector<T, SIZE> load_wide(const auto* from) {
    if constexpr (ALIGNED) {
      return widen<T>(load_vector<SIZE>(from));
    } else {
      Vector<T, SIZE> wide;
#pragma unroll
      for (int j = 0; j < SIZE; ++j) wide.at[j] = convert<T>(from[j]);
      return wide;
    }
  }
  template <int SIZE, bool ALIGNED, int K>
  DEVICE Vector<T, SIZE> load_operand(int column) const {
    if constexpr (bool(Team::APART >> (FIRST + K) & 1u)) {
      Vector<T, SIZE> wide;
#pragma unroll
      for (int j = 0; j < SIZE; ++j)
        wide.at[j] = convert<T>(*row.template address<FIRST + K>(column + j));
      return wide;
    } else {
      return load_wide<SIZE, ALIGNED>(row.template address<FIRST + K>(column));
    }
  }
  template <int SIZE, bool ALIGNED, int K>
  DEVICE Vector<N, SIZE> load(int column) const {
    Vector<N, SIZE> unit;
    if constexpr (!bool(Loss::READS >> K & 1u)) {
#pragma unroll
      for (int j = 0; j < SIZE; ++j) unit.at[j] = N(0.0);
    } else if constexpr (K == Loss::OPERANDS) {
      // In pairs, a unit may begin at an odd column.
      constexpr bool VECTORS = bool(Row::VECTORISED >> (FIRST + K) & 1u);
      Vector<T, SIZE> weights;
      if (VECTORS && (!Team::PAIRED || column % SIZE == 0)) {
        weights = load_wide<SIZE, true>(row.template address<FIRST + K>(column));
      } else {
#pragma unroll
        for (int j = 0; j < SIZE; ++j) weights.at[j] = convert<T>(row.load_weight(column + j));
      }
#pragma unroll
      for (int j = 0; j < SIZE; ++j) unit.at[j] = N(Real<T>(weights.at[j]));
    } else {
      using Loaded = typename Row::template Loaded<K>;
      const auto values = load_operand<SIZE, ALIGNED, K>(column);
#pragma unroll
      for (int j = 0; j < SIZE; ++j) {
        if constexpr (Loaded::HAS_SLOPE) {
          const T slope = convert<T>(*row.template address<Loaded::SLOPE>(column + j));
          unit.at[j] = N(Real<T>(values.at[j]), Real<T>(slope));
        } else {
          unit.at[j] = N(Real<T>(values.at[j]));
        }
      }
    }
    return unit;
  }
};

// A tile: how many rows it has, the bytes of all its arrays in shared memory, and where each
// begins.
template <int ARRAYS>
struct TilePlaces {
  int rows, bytes, begin[ARRAYS];
};

// The work of a block on its tiles. `pointers` are those to device memory.
template <class T, class Loss, class Layout, class Team, unsigned WANTED, unsigned TANGENTS,
          bool VJP, class Pointers, class K = Range<Layout::ARRAYS>>
struct RowTileWorker;

template <class T, class Loss, class Layout, class Team, unsigned WANTED, unsigned TANGENTS,
          bool VJP, class Pointers, int... K>
struct RowTileWorker<T, Loss, Layout, Team, WANTED, TANGENTS, VJP, Pointers, Indices<K...>> {
  using Row = RowOf<T, Loss, Layout, TANGENTS, VJP, Pointers>;
  using N = typename Row::N;
  using State = typename Loss::template State<N>;
  using Merged = decltype(as_merged(State()));
  using Finished = typename Loss::template Finished<N>;
  using Places = TilePlaces<Layout::ARRAYS>;
  using Copies = TileCopies<Team::THREADS, (Team::APART != 0), Team::STAGES>;
  using Index = typename Layout::Index;  // counts to four times the rows at least
  using Elements = ThreadShare<Row, Loss, Team>;
  using StagedLayout = Select<Team::APART == 0, const Layout&, Layout>;
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
  static constexpr bool IS_STAGED = bool((Team::ELEMENTS | Team::APART | Team::NUMBERS) >> S & 1u);
  template <int S>
  static constexpr bool IS_APART = bool(Team::APART >> S & 1u);
  static DEVICE StagedLayout staged_layout(const Layout& layout) {
    if constexpr (Team::APART == 0) {
      return layout;
    } else {
      Layout staged = layout;
      ((IS_APART<K> ? void(staged.steps[K] = Team::PITCH) : void()), ...);
      return staged;
    }
  }
  // The elements of a row that lie together in array S.
  template <int S>
  DEVICE int count() const {
    return (Team::ELEMENTS >> S & 1u) ? columns : 1;
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
      elements.maximum = LargestInWarp<Team::THREADS_PER_ROW>()(elements.maximum);
    }
    return elements;
  }
  // What the threads of a row accumulate together, in all of them.
  DEVICE Merged accumulate(Elements& elements, const auto& context) const {
    const Merged own = accumulate<Team::PARTS>(elements, context, 0);
    if constexpr (Loss::ANCHORED) return merged_in_warp<Team::THREADS_PER_ROW>(own);
    return merge_rescaled_in_warp<Team::THREADS_PER_ROW>(own);
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
      if (Team::has(context.column)) {
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
        for (int own = int(threadIdx.x) / 32; own < rows; own += Team::THREADS / 32) {
          for (int k = lane; k < columns; k += 32)
            to[own * columns + k] = from[k * Team::PITCH + own];
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
    constexpr int SIZE = sizeof(E), AT_ONCE = Team::ACCESS > SIZE ? Team::ACCESS / SIZE : 1;
    constexpr int OF_COLUMN = Team::ROWS / AT_ONCE, STEP = Team::THREADS / OF_COLUMN;
    const int own = int(threadIdx.x) % OF_COLUMN * AT_ONCE;
    const Index row = tile * Team::ROWS + own;
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
          store_vector_in_block(to + (k + i * STEP) * Team::PITCH, batch[i]);
      }
    }
#pragma unroll 4
    for (; k < columns; k += STEP)
      copy_bytes<AT_ONCE * SIZE>(to + k * Team::PITCH, from + k * step);
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
      store_apart(place, slopes, IS_APART<FIRST + I> ? Team::PITCH : 1);
    }
  }
};

// The arguments are those of pointwise.cu, with rows for elements: all may be ignored.
// The dynamic shared memory holds STAGES tiles.
template <class T, class Loss, class Layout, class Team, Values VALUES, unsigned WANTED,
          unsigned TANGENTS, bool VJP, class Result, class... P>
__global__ void __launch_bounds__(Team::THREADS, Team::RESIDENT)
    row_tiles(Loss loss, double scale, Layout layout, TilePlaces<Layout::ARRAYS> places,
              long long n, long long columns, Results<T, Result> results, P... pointer) {
  extern __shared__ __align__(128) unsigned char shared[];
  using Pointers = Tuple<P...>;
  using Work = RowTileWorker<T, Loss, Layout, Team, WANTED, TANGENTS, VJP, Pointers>;
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
      reduction_of_rows<T, VALUES, Team::THREADS, TANGENTS, Loss>(given, results, divisor, scaling);

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
    if constexpr (Team::STAGES == 2) {
      if (goes_on) {
        work.load(turn + 1, next, shared + (turn + 1) % 2 * places.bytes);
      } else {
        Work::Copies::commit(turn + 1);  // of nothing
      }
    }
    Work::Copies::wait(turn);
    // Opaque: computed once, and not for each row.
    unsigned char* const stage = shared + opaque(turn % Team::STAGES * unsigned(places.bytes));
    const Pointers staged = work.staged(stage);
    const int rows = work.rows_of(tile);
    if constexpr (Team::THREADS_PER_ROW == 1) {
#pragma unroll 1
      for (int own = threadIdx.x; own < rows; own += Team::THREADS) {
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
      // One thread does the prologue and the epilogue of a row, THREADS_PER_ROW threads do the
      // rest.
      using Context = ContextOf<Loss, typename Work::Row>;
      using State = typename Work::Merged;
      using Finished = typename Work::Finished;
      Context* const contexts = shared_array<Context, Team::MOST_ROWS, 0>();
      State* const states = shared_array<State, Team::MOST_ROWS, 1>();
      Finished* const finished = shared_array<Finished, GRADIENTS ? Team::MOST_ROWS : 1, 2>();
      const int mine = threadIdx.x;
      if (mine < rows) contexts[mine] = work.prologue(work.row_at(tile, mine, staged));
      if (mine >= rows && mine < places.rows) contexts[mine].status = IGNORED;
      __syncthreads();
#pragma unroll 1
      for (int own = Team::row(); own < places.rows; own += Team::ROWS) {
        const bool active = contexts[own].status == ACTIVE;
        auto elements = work.elements_of(work.row_at(tile, own, staged), active);
        const auto state = work.accumulate(elements, contexts[own]);
        if (Team::thread() == 0) states[own] = state;
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
        for (int own = Team::row(); own < rows; own += Team::ROWS) {
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
    if constexpr (Team::STAGES == 1) {
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
