// The team of threads of rows that lie side by side, and its batches: the elements of one thread in
// each of its rows, in registers.
#pragma once
#include "kernels/row.cuh"
#include "memory/instructions.cuh"

// The threads of a block, as cupy_losses/_device/row_striding.py chooses.
struct StridedTeam {
  int threads;          // of a block
  int threads_per_row;  // 0 where the launch says how many
  int width;            // the neighbouring rows that a thread works on
  int count;            // the elements of a batch
  int sure;             // how many of them are there at least
  // Whether a row stays in registers: each thread has a batch of it, of every threads_per_row-th
  // element, which is its share.
  bool stays;
  bool ahead;       // whether few elements are loaded while a thread works on the rows before
  int resident;     // how many blocks a multiprocessor is to hold
  int state_bytes;  // the room for a state, of each share and of each section
  int row_bytes;    // the room for what is kept of a row besides, if several threads work on it
  // Bit k: the elements of array k in `width` rows are one access, and in no array does the last
  // dimension end between these rows.
  unsigned vectors;
  // The bytes of one access to an array in which the elements of a row lie together: one that the
  // layout has VECTORISED.
  int access;
  bool in_step;  // whether warps write gradients of the same columns one soon after the other
  int overlap;   // how many rows of a tile the next one has, too

  __device__ constexpr bool alone() const { return threads_per_row == 1; }
  // Between the elements of a batch.
  __device__ constexpr int step() const { return stays ? threads_per_row : 1; }
};

// How the threads are arranged: 2^log_neighbours next to each other work on as many neighbouring
// rows, or on `width` rows each, and the others on other elements of the same rows.
template <StridedTeam TEAM>
struct StridedThreads {
  static_assert(!TEAM.ahead || (TEAM.stays && TEAM.alone()),
                "a thread has all elements of its rows");
  int log_neighbours;

  // Constant where it can be.
  DEVICE unsigned neighbours() const {
    if constexpr (TEAM.threads_per_row != 0) {
      return TEAM.threads / TEAM.threads_per_row;
    } else {
      return 1u << log_neighbours;
    }
  }
  DEVICE int threads_per_row() const { return int(TEAM.threads / neighbours()); }
  DEVICE int rows() const { return int(neighbours()) * TEAM.width; }  // of a tile
  DEVICE int own_rows() const { return rows() - TEAM.overlap; }
  // Which of the threads of its rows a thread is, which of the neighbours, and the first one of its
  // rows in a tile.
  DEVICE int thread() const { return TEAM.alone() ? 0 : int(threadIdx.x / neighbours()); }
  DEVICE int neighbour() const { return int(threadIdx.x % neighbours()); }
  DEVICE int row() const { return neighbour() * TEAM.width; }
};

// A batch of one thread: elements of each of its rows, STEP columns apart, of every array that the
// loss reads element by element. The first SURE elements are there, others where they are ahead of
// column `end`. With OTHERS_HIDDEN those that are not there are hidden from the loss, and nothing
// asks which they are.
template <class Row, class Loss, auto TEAM, int SURE, bool OTHERS_HIDDEN, int STEP,
          class K = Range<Row::INPUTS>>
struct StridedBatch;

template <class Row, class Loss, auto TEAM, int SURE, bool OTHERS_HIDDEN, int STEP_, int... K>
struct StridedBatch<Row, Loss, TEAM, SURE, OTHERS_HIDDEN, STEP_, Indices<K...>> {
  using T = typename Row::Scalar;
  using N = typename Row::N;
  using Column = typename Row::Column;
  static constexpr int FIRST = Row::FIRST, BATCH = TEAM.count, WIDTH = TEAM.width, STEP = STEP_;
  // Elements of WIDTH rows as one access moves them. They are kept in whole registers, two of half
  // precision in one, or one alone: shorter words take the compiler instructions to merge.
  template <int S>
  using Stored = Vector<typename Row::template Element<S>, WIDTH>;
  template <int S>
  using Kept = Select<(sizeof(Stored<S>) < sizeof(unsigned)), unsigned, Packed<Stored<S>>>;

  Column first, end;
  Tuple<Kept<K>...> vectors[BATCH];

  DEVICE Column column(int k) const { return first + k * STEP; }
  DEVICE bool holds(int k) const { return k < SURE || column(k) < end; }
  // Whether a column is one of these.
  DEVICE bool has(Column column) const {
    const Column behind = column - first;
    return behind >= 0 && behind < BATCH * STEP && behind % STEP == 0;
  }
  // Takes the elements of array S at place k from load(), if they are `there`.
  template <int S>
  DEVICE void take(int k, bool there, auto load) {
    auto& elements = get<S>(vectors[k]);
    if (there) {
      elements = load();
      // The upper half is 0. The assembler would merge it with that of another register, for each.
      if constexpr (sizeof(Stored<S>) < sizeof(unsigned)) elements = opaque(elements);
    } else if constexpr (OTHERS_HIDDEN) {
      elements = repeated<S>(S == FIRST ? T(-INFINITY) : T(0));
    }
  }

  // Where a column is: a bit for each place. One instruction makes seven predicates of bits, but
  // only one of a comparison. Of elements that are loaded ahead the column is compared, as find()
  // does.
  struct Bits {
    static constexpr int WORDS = (BATCH + 31) / 32;
    unsigned bits[WORDS];
    DEVICE bool has(int k) const { return bits[k / 32] >> k % 32 & 1u; }
  };
  struct Compared {
    Column column;
    DEVICE bool has(int k) const { return column == k; }
  };
  using Places = Select<TEAM.ahead, Compared, Bits>;
  DEVICE Places place_of(Column column) const {
    if constexpr (TEAM.ahead) {
      return {column};
    } else {
      // Large if it is ahead of these, or none of every STEP-th one. Bits behind the last place are
      // not read.
      const Column behind = column - first;
      const unsigned place = behind % STEP == 0 ? unsigned(behind) / STEP : ~0u;
      Places places;
#pragma unroll
      for (int w = 0; w < Bits::WORDS; ++w) {
        places.bits[w] = opaque(place - 32 * w < 32 ? 1u << (place - 32 * w) : 0u);
      }
      return places;
    }
  }
  // Whether a loss that HIDES an element is told which one it is. It stays in the maximum, which is
  // precise enough for half precision, and takes no instruction.
  static constexpr bool TELLS =
      Loss::HIDES && TEAM.stays && is_half<typename Row::template Element<FIRST>>;
  // Else the elements of row v of the first operand at these places become -inf.
  DEVICE void hide(int v, const Places& hidden) {
#pragma unroll
    for (int k = 0; k < BATCH; ++k) {
      auto& elements = get<FIRST>(vectors[k]);
      const auto infinite = repeated<FIRST>(T(-INFINITY));
      if (!hidden.has(k)) continue;
      if constexpr (WIDTH == 1) {
        elements = infinite;
      } else if constexpr (sizeof(infinite) == 4) {
        // One instruction, where unpacking and packing a pair would take three.
        elements = __byte_perm(elements, infinite, v == 0 ? 0x3254 : 0x5410);
      } else {
        auto both = bits_as<Stored<FIRST>>(elements);
        both.at[v] = convert<typename Row::template Element<FIRST>>(T(-INFINITY));
        elements = packed(both);
      }
    }
  }

  // The largest number of the first operand in each row, where they are found for all rows at once.
  DEVICE Vector<T, WIDTH> largest_of_rows() const {
    Vector<T, WIDTH> largest{};
    if constexpr (FINDS_ALL) {
      const auto found = largest_pair();
#pragma unroll
      for (int v = 0; v < WIDTH; ++v) largest.at[v] = convert<T>(v == 0 ? found.x : found.y);
    }
    return largest;
  }

  // Those of place k in row V: get<i>() of it is the number in operand i.
  template <int V>
  DEVICE auto numbers(const Row& row, int k) const {
    return numbers<V>(Range<Loss::OPERANDS + int(Loss::WEIGHTED)>(), row, k);
  }

  // The elements of row V, as losses/row_loss.cuh wants them.
  template <int V>
  struct RowElements {
    static constexpr int PLACES = BATCH < 4 ? BATCH : 4, OF_PLACE = (BATCH + PLACES - 1) / PLACES;
    const StridedBatch& batch;
    const Row& row;
    T largest_of_row;  // where it is found for all rows at once
    Places hidden;     // from a loss that is told

    // The largest number of the first operand, and `so_far`.
    DEVICE T largest(T so_far) const {
      if constexpr (FINDS_ALL) {
        return larger(so_far, largest_of_row);
      } else if constexpr (HAS_PAIRS) {
        const auto found = batch.largest_pair();
        return larger(so_far, convert<T>(V == 0 ? found.x : found.y));
      } else {
#pragma unroll
        for (int k = 0; k < BATCH; ++k) {
          if (!batch.counts(k)) continue;
          so_far = larger(so_far, plain(batch.template number<V, 0>(row, k)));
        }
        return so_far;
      }
    }
    // The element of operand I in a column that is one of these.
    template <int I>
    DEVICE auto element(Column wanted) const {
      typename Row::template Loaded<I> found = batch.template loaded<V, I>(0);
#pragma unroll
      for (int k = 1; k < BATCH; ++k) {
        if (batch.column(k) == wanted) found = batch.template loaded<V, I>(k);
      }
      return found;
    }
    // f(place, column, x) for each element, or f(place, column, x, counts).
    DEVICE void each(auto f) const {
#pragma unroll
      for (int k = 0; k < BATCH; ++k) {
        if (!batch.counts(k)) continue;
        const auto x = batch.template numbers<V>(row, k);
        const ColumnNear<Column> column{batch.first, k * STEP};
        if constexpr (TELLS) {
          f(k % PLACES, column, x, !hidden.has(k));
        } else {
          f(k % PLACES, column, x);
        }
      }
    }
  };

 private:
  // The element of operand I in place k of row V.
  template <int V, int I>
  DEVICE auto loaded(int k) const {
    using Loaded = typename Row::template Loaded<I>;
    const auto at = [&]<int S>(Constant<S>) {
      return bits_as<Stored<S>>(get<S>(vectors[k])).at[V];
    };
    return Loaded{at(Constant<FIRST + I>()), at(Constant<Loaded::SLOPE>())};
  }
  // Whether the loss takes the element of place k.
  DEVICE bool counts(int k) const { return OTHERS_HIDDEN || holds(k); }
  // A number as it is kept in all rows, and in all of a register.
  template <int S>
  static DEVICE Kept<S> repeated(T number) {
    using E = typename Row::template Element<S>;
    Vector<E, sizeof(Kept<S>) / sizeof(E)> vector;
#pragma unroll
    for (E& element : vector.at) element = convert<E>(number);
    return bits_as<Kept<S>>(vector);
  }
  // Numbers of half precision are compared in pairs, whether or not a thread has both.
  static constexpr bool HAS_PAIRS =
      ARCHITECTURE >= 800 && is_half<typename Row::template Element<FIRST>>;
  // Those of all rows at once, where no row hides an element from that. With gradients there are no
  // registers for it.
  static constexpr bool FINDS_ALL = HAS_PAIRS && OTHERS_HIDDEN;
  // The largest numbers of the first operand, in x and y of a pair of rows, or in x.
  DEVICE auto largest_pair() const {
    const auto pair_at = [&](int k) {
      using Element = typename Row::template Element<FIRST>;
      const auto both = bits_as<Vector<Element, 2>>(get<FIRST>(vectors[k]));
      return pair(both.at[0], both.at[1]);
    };
    const auto none = convert<typename Row::template Element<FIRST>>(lowest<T>());
    auto found = pair(none, none);
#pragma unroll
    for (int k = 0; k < BATCH; ++k) {
      if (counts(k)) found = __hmax2(found, pair_at(k));
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
