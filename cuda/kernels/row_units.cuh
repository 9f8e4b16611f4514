// The team of threads of rows in shared memory, and the share of each: units of neighbouring
// elements of a row.
#pragma once
#include "kernels/row.cuh"
#include "losses/row_loss.cuh"
#include "memory/instructions.cuh"

// The threads of a row in a tile, as cupy_losses/_device/row_tiling.py chooses.
struct TileTeam {
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

  static constexpr int MOST_ROWS = 64;  // of a tile, if several threads work on a row
  __device__ constexpr int rows() const { return threads / threads_per_row; }  // at a time
  DEVICE int thread() const { return int(threadIdx.x) % threads_per_row; }
  DEVICE int row() const { return int(threadIdx.x) / threads_per_row; }
  // The k-th part that a thread reads is k ^ first_part. Threads of a warp whose rows begin in the
  // same bank of shared memory, which holds 8 vectors side by side, read different parts at a time.
  // Parts are merged in pairs, so that the bits are the same whichever comes first.
  DEVICE int first_part(int columns) const { return row() * (columns / unit) / 8 % parts; }
  // Whether an element is one of this thread.
  DEVICE bool has(int column) const { return column / unit % threads_per_row == thread(); }
};

// Whether the largest element of a row is found first, for a state with a `maximum`. Those of all
// its threads have the same one then, and are merged without rescaling.
template <class Loss, class State>
constexpr bool finds_maximum = !Loss::ANCHORED && requires(State state) { state.maximum; };

// What one thread has of a row: every `threads_per_row`-th unit, of each operand that the loss
// reads.
template <class Row, class Loss, TileTeam TEAM,
          class I = Range<Loss::OPERANDS + int(Loss::WEIGHTED)>>
struct ThreadShare;

template <class Row, class Loss, TileTeam TEAM, int... I>
struct ThreadShare<Row, Loss, TEAM, Indices<I...>> {
  using T = typename Row::Scalar;
  using N = typename Row::N;
  using First = typename Row::template Element<Row::FIRST>;
  static constexpr int FIRST = Row::FIRST, UNIT = TEAM.unit, BATCH = TEAM.batch;
  static constexpr int OF_PLACE = 2;                     // more than one element of each place
  static constexpr int PLACES = is_half<First> ? 2 : 4;  // that they are in

  static_assert(!TEAM.paired || TEAM.threads_per_row == 1,
                "the thread of an element would depend on where a row begins");
  static_assert(!TEAM.paired || UNIT == 2, "an element is alone where a pair is not");
  static_assert(!TEAM.paired || PLACES == 2, "the sums of even and of odd columns change places");

  const Row row;
  T maximum = lowest<T>();  // the largest number of the first operand in the row
  int part = 0;             // of which `each` is

  explicit DEVICE ThreadShare(const Row& row)
      : row(row),
        first_part(TEAM.first_part(row.columns)),
        begin(TEAM.paired ? shift<FIRST>() : 0),
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
    static_assert(bool(TEAM.elements >> S & 1u), "the array has a tile");
    using E = typename Row::template Element<S>;
    const auto start = shared_address(row.template address<S>(0));
    return int(start % alignof(Vector<E, UNIT>) / sizeof(E));
  }
  // Whether the shift of operand K is `begin`, if it has a tile.
  template <int K>
  DEVICE bool is_aligned() const {
    if constexpr (bool(TEAM.elements >> (FIRST + K) & 1u)) return shift<FIRST + K>() == begin;
    return true;
  }
  DEVICE bool are_aligned() const {
    return (TEAM.paired || row.columns % UNIT == 0) && (is_aligned<I>() && ...);
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
    for (int part = 0; part < TEAM.parts; ++part) each_unit(part, f);
  }
  // `paired`, the sums of both places are those of the even and of the odd columns, or the other
  // way around: the bits do not depend on where a row begins.
  template <bool ALIGNED>
  DEVICE void each_unit_of(int part, auto f) const {
    constexpr int STEP = TEAM.parts * TEAM.threads_per_row;
    const int units = row.columns / UNIT, last = row.columns - 1;
    int unit = (part ^ first_part) * TEAM.threads_per_row + TEAM.thread();
    if (TEAM.paired && begin != 0) f(Constant<1>(), Constant<0>(), 1, 0, 0);
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
    if constexpr (TEAM.paired) {
      if (begin == 0) f(Constant<1>(), Constant<0>(), 0, last, 0);
    } else if constexpr (UNIT > 1 && !ALIGNED) {
      if (row.columns % UNIT != 0 && TEAM.has(last)) f(Constant<1>(), Constant<0>(), 0, last, 0);
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
    if constexpr (bool(TEAM.apart >> (FIRST + K) & 1u)) {
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
      if (VECTORS && (!TEAM.paired || column % SIZE == 0)) {
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
