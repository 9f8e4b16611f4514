// The multilabel margin loss of rows: the loss of each row, its sum or mean, the gradient of the
// elements, or loss and gradient together.
//
// The targets of a row are its first labels, up to a negative one. Their number is known to the
// device alone. The threads of a row read the labels together, mark the targets in a bitmap in
// shared memory, and keep there what PIECE targets and more need. Then they read the row once. An
// element is compared with the targets while it is in a register. How many targets it violates is
// its gradient, which is written at once. How many elements violate a target is counted in
// registers, and is the gradient of the target, which takes the place of a 0 at the end.
//
// Bytes of device memory an element, with elements of s bytes: the loss s, with its gradient 2s.
// Of the labels of a row up to 16 are read at a time, up to those that have the negative one. With
// more than PIECE targets a row takes time in proportion to its targets times its elements: for the
// gradients of the targets it is read again, once for each PIECE of them.
//
// `threads_per_row` threads of a block, up to all of them, work on a row. Their number follows from
// the length of a row, its dtype and whether neighbouring rows lie side by side, not from
// addresses.
//
// Order of summation: a thread adds the violations of a batch of its elements by a piece of the
// targets, and adds these sums with their errors; then threads are added in pairs. Counts are
// integers, which are exact in any order. Rows form segments, which are added as those of
// kernels/rows.cu are.
#include "kernels/row_epilogue.cuh"
#include "kernels/row_states.cuh"
#include "losses/multilabel_margin.cuh"

// The threads of a row, as cupy_losses/_device/plan_multilabel.py chooses.
struct MarginTeam {
  int threads, threads_per_row;  // of a block, and of a row
  int width;                     // the elements of a vector
  int batch;                     // the vectors that a thread takes at a time
  int piece;     // the targets it compares them with at a time; no row of one thread is longer
  int resident;  // how many blocks a multiprocessor is to hold
  bool across;   // whether neighbouring threads are at neighbouring rows: elements lie far apart

  __device__ constexpr int rows() const { return threads / threads_per_row; }
  __device__ constexpr bool alone() const { return threads_per_row == 1; }
  // So many readers read labels together, each ahead() of them at a time. The other threads of the
  // row do the same for themselves. Shared memory lists up to listed() targets.
  __device__ constexpr int readers() const {
    return across ? 1 : threads_per_row < 16 ? threads_per_row : 16;
  }
  __device__ constexpr int ahead() const {
    return alone() ? piece : readers() == 1 ? 8 : 16 / readers();
  }
  __device__ constexpr int listed() const {
    return alone() ? piece : threads_per_row == 2 ? 16 : 32;
  }
};

// The part that this thread has in the work of its block.
template <MarginTeam TEAM>
struct MarginThread {
  static DEVICE int thread() {
    return TEAM.across ? int(threadIdx.x) / TEAM.rows() : int(threadIdx.x) % TEAM.threads_per_row;
  }
  static DEVICE int row() {
    return TEAM.across ? int(threadIdx.x) % TEAM.rows() : int(threadIdx.x) / TEAM.threads_per_row;
  }
  // Synchronises all threads of a row, and others: a warp, a block, or one thread alone.
  static DEVICE void sync() {
    if constexpr (TEAM.across || TEAM.threads_per_row > 32) {
      __syncthreads();
    } else if constexpr (!TEAM.alone()) {
      __syncwarp();
    }
  }
  // Whether `mine` is true in one of them.
  static DEVICE bool any(bool mine) {
    if constexpr (TEAM.across || TEAM.threads_per_row > 32) return __syncthreads_or(mine);
    return TEAM.alone() ? mine : __any_sync(0xffffffffu, mine);
  }
  // The readers in which `mine` is true: a bit each.
  static DEVICE unsigned readers(bool mine) {
    constexpr int READERS = TEAM.readers();
    if constexpr (READERS == 1) {
      return mine;
    } else {
      const unsigned all = __ballot_sync(0xffffffffu, mine);
      return all >> (threadIdx.x % 32 / READERS * READERS) & ((1u << READERS) - 1u);
    }
  }
  static DEVICE int reader() { return thread() % TEAM.readers(); }
};

// What shared memory has of the rows of a block beside the marks: targets, and for each target of a
// piece how many elements violate it and how often it is listed.
template <MarginTeam TEAM, class N, class Column, class Count>
struct MarginLists {
  N threshold[TEAM.listed()][TEAM.rows()];
  Column column[TEAM.listed()][TEAM.rows()];
  Count violated[TEAM.piece][TEAM.rows()], times[TEAM.piece][TEAM.rows()];
};

template <class T, class Loss, class Layout, MarginTeam TEAM, unsigned WANTED, unsigned TANGENTS,
          bool VJP, class Pointers>
struct MarginWorker {
  using Own = MarginThread<TEAM>;
  using Row = RowOf<T, Loss, Layout, TANGENTS, VJP, Pointers>;
  using N = typename Row::N;
  using Column = typename Row::Column;
  using Count = Select<(sizeof(Column) == 4), unsigned, unsigned long long>;
  using Lists = MarginLists<TEAM, N, Column, Count>;
  static constexpr int PIECE = TEAM.piece, WIDTH = TEAM.width, BATCH = TEAM.batch;
  static constexpr int ELEMENTS = BATCH * WIDTH;  // of a thread at a time
  static constexpr Column STRIDE = TEAM.threads_per_row * ELEMENTS;
  static constexpr int MOST_COUNTED = 1 << 15;  // by a warp at a time: two counts share a register
  using Arithmetic = Violations<N, sizeof(N) == sizeof(float) && !TEAM.alone()>;
  static constexpr bool GRADIENTS = WANTED != 0;
  // Along a tangent gradients are 0.
  static constexpr bool COUNTS = GRADIENTS && TANGENTS == 0;
  static_assert(WANTED <= 1u, "only the elements have a gradient");

  const Loss& loss;
  const Layout& layout;
  const Pointers& pointers;
  const long long n;
  const Column columns, window;  // a window is what the marks are of
  unsigned* const marks;
  Lists& lists;

  // The targets of a row, none of an invalid one. `repeats`: this thread has seen one again. A
  // thread that works alone on a row has targets and marks in registers.
  struct Targets {
    bool valid, repeats;
    Column count;
    Select<TEAM.alone(), Column, Nothing> own[PIECE];
    unsigned own_marks;
  };

  DEVICE Row row_at(typename Layout::Index index) const {
    return Row::at_index(layout, pointers, index, typename Layout::Index(n), columns);
  }

  // The value of a row, in the first of its threads, and its term of the denominator. Writes its
  // gradients if the row is `present`; else it stands for another one.
  struct Evaluated {
    T value, denominator;
  };
  template <bool VALUED>
  DEVICE Evaluated evaluate(typename Layout::Index index, bool present, T factor,
                            const Reciprocal<T>& reciprocal) const {
    const Row row = row_at(index);
    const auto context = loss.prologue(row, loss.prefetch(row));
    auto ahead = load(row, 0);  // on its way while the labels are read
    Targets targets = read_labels(row);
    const bool ignored = context.status == IGNORED;
    if (ignored) targets.count = 0;
    const T nothing = without_loss<T>(ignored ? IGNORED : targets.valid ? ACTIVE : INVALID);
    const T weight = ignored ? T(0) : sample_weight<T>(context);
    if constexpr (VJP) factor = row.grad_output();
    const T share = reciprocal.template times<T>(factor * loss.slope(columns));
    const T scale = ignored ? T(0) : weight * share + nothing;
    const Writer writer{row, present, scale, nothing};

    RunningSum<N> sum = RunningSum<N>::zero();
    const bool few = TEAM.alone() || !Own::any(targets.count > PIECE);
    read_thresholds(row, targets, 0);
    if (few) {
      float violated[PIECE];
      scan<true>(writer, targets, ahead, sum, violated);
      if constexpr (COUNTS) write_targets(writer, targets, 0, violated);
    } else if constexpr (!TEAM.alone()) {
      float unused[PIECE];
      scan<false>(writer, targets, ahead, sum, unused);
      if constexpr (COUNTS) count_and_write_targets(writer, targets);
    }
    T value = nothing;
    if constexpr (VALUED) {
      const N total = total_of_row(sum);
      value += weight * derivative(loss.value(total, columns));
    }
    return {value, weight};
  }

 private:
  struct Total {
    RunningSum<N> sum;
    friend DEVICE Total merge(const Total& a, const Total& b) { return {a.sum + b.sum}; }
  };
  // The total of the sums of all threads of a row, in each of them.
  DEVICE N total_of_row(const RunningSum<N>& own) const {
    if constexpr (TEAM.across && !TEAM.alone()) {
      auto* const parts = shared_array<RunningSum<N>, TEAM.threads>();
      __syncthreads();  // the previous row may still be read
      parts[threadIdx.x] = own;
      __syncthreads();
      RunningSum<N> sum = parts[Own::row()];
      for (int thread = 1; thread < TEAM.threads_per_row; ++thread) {
        sum = sum + parts[thread * TEAM.rows() + Own::row()];
      }
      return sum.total();
    } else {
      return merged<TEAM>(Total{own}).sum.total();
    }
  }

  // Writes the gradients of a row: multiples of `scale`, or `nothing` along a tangent.
  struct Writer {
    using Stored = typename Row::template Element<(GRADIENTS ? Row::INPUTS : 0)>;
    const Row& row;
    const bool present;
    const T scale, nothing;

    DEVICE auto of(T count) const {
      return convert<Stored>(TANGENTS != 0 ? nothing : count * scale);
    }
    // Those of a batch of elements, given how many targets each violates.
    DEVICE void write(Column first, const float (&violated)[ELEMENTS]) const {
      auto* to = row.template address<Row::INPUTS>(column_of(first, 0));
#pragma unroll
      for (int p = 0; p < BATCH; ++p) {
        if (present && column_of(first, p) < row.columns) {
          Vector<Stored, WIDTH> vector;
#pragma unroll
          for (int j = 0; j < WIDTH; ++j) vector.at[j] = of(T(violated[p * WIDTH + j]));
          if constexpr (bool(Layout::VECTORISED >> Row::INPUTS & 1u)) {
            store_vector<WIDTH>(to, vector);
          } else {
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) {
              to[j * row.layout.template step<Row::INPUTS>()] = vector.at[j];
            }
          }
        }
        to += TEAM.threads_per_row * WIDTH * row.layout.template step<Row::INPUTS>();
      }
    }
    DEVICE void write_target(Column column, T times, T violated) const {
      if (!present) return;
      *row.template address<Row::INPUTS>(column) = of(Loss::count_of_target(times, violated));
    }
  };

  // The vectors of a thread, as they are in memory.
  static constexpr int VALUE = Row::FIRST, SLOPE = Row::template Loaded<0>::SLOPE;
  template <int S>
  using Vectors = Vector<typename Row::template Element<S>, WIDTH>;
  struct Batch {
    Vectors<VALUE> values[BATCH];
    Select<(TANGENTS != 0), Vectors<SLOPE>, Nothing> slopes[BATCH];
  };
  static DEVICE Column column_of(Column first, int p) {
    return first + Own::thread() * WIDTH + p * (TEAM.threads_per_row * WIDTH);
  }
  // A vector is all in the row or not at all.
  DEVICE Batch load(const Row& row, Column first) const {
    Batch batch{};
    load_array<VALUE>(row, first, batch.values);
    if constexpr (TANGENTS != 0) load_array<SLOPE>(row, first, batch.slopes);
    return batch;
  }
  template <int S>
  DEVICE void load_array(const Row& row, Column first, Vectors<S> (&vectors)[BATCH]) const {
    const auto* from = row.template address<S>(column_of(first, 0));
#pragma unroll
    for (int p = 0; p < BATCH; ++p) {
      if (column_of(first, p) < columns) {
        if constexpr (bool(Layout::VECTORISED >> S & 1u)) {
          vectors[p] = load_vector<WIDTH>(from);
        } else {
          vectors[p] = load_apart<WIDTH>(from, layout.template step<S>());
        }
      }
      from += TEAM.threads_per_row * WIDTH * layout.template step<S>();
    }
  }
  // The elements of a batch in a window from `begin`; -inf for targets and beyond the row, which
  // violate nothing.
  DEVICE void numbers(N (&x)[ELEMENTS], const Batch& batch, const Targets& targets, Column begin,
                      Column first) const {
#pragma unroll
    for (int p = 0; p < BATCH; ++p) {
      const Column column = column_of(first, p);
      const unsigned hidden =
          column < columns ? marks_from(targets, column_of(first, 0) - begin, p) : ~0u;
      const auto values = widen<T>(batch.values[p]);
#pragma unroll
      for (int j = 0; j < WIDTH; ++j) {
        const Real<T> value(hidden >> j & 1u ? T(-INFINITY) : values.at[j]);
        if constexpr (TANGENTS != 0) {
          x[p * WIDTH + j] = N(value, Real<T>(convert<T>(batch.slopes[p].at[j])));
        } else {
          x[p * WIDTH + j] = value;
        }
      }
    }
  }

  // The marks of vector p behind the one in a column of the window; others may follow them.
  DEVICE unsigned marks_from(const Targets& targets, Column column, int p) const {
    constexpr int APART = TEAM.threads_per_row * WIDTH;
    if constexpr (TEAM.alone()) {
      return targets.own_marks >> (column + p * APART);
    } else if constexpr (APART % 32 == 0) {
      const unsigned* const word = marks + (column / 32 * TEAM.rows() + Own::row());
      return word[p * (APART / 32) * TEAM.rows()] >> (column % 32);
    } else {
      column += p * APART;
      return marks[column / 32 * TEAM.rows() + Own::row()] >> (column % 32);
    }
  }
  DEVICE void mark(Targets& targets, Column column) const {
    const unsigned bit = 1u << (column % 32);
    if constexpr (TEAM.alone()) {
      targets.repeats = targets.repeats || (targets.own_marks & bit) != 0;
      targets.own_marks |= bit;
    } else {
      const unsigned before = atomicOr(&marks[column / 32 * TEAM.rows() + Own::row()], bit);
      targets.repeats = targets.repeats || (before & bit) != 0;
    }
  }
  DEVICE void clear_marks() const {
    const int words = int((min(columns, window) + 31) / 32);
#pragma unroll 1
    for (int word = Own::thread(); word < words; word += TEAM.threads_per_row) {
      marks[word * TEAM.rows() + Own::row()] = 0;
    }
  }
  // The marks of another window.
  DEVICE void mark_window(const Row& row, Targets& targets, Column begin) const {
    Own::sync();
    clear_marks();
    Own::sync();
#pragma unroll 1
    for (Column k = Own::thread(); k < targets.count; k += TEAM.threads_per_row) {
      const Column column = target(row, k) - begin;
      if (column >= 0 && column < window) mark(targets, column);
    }
    Own::sync();
  }
  static DEVICE Column target(const Row& row, Column k) { return Column(row.template index<1>(k)); }

  // Reads the labels up to the first negative one, marks the first window, and lists what there is
  // room for.
  DEVICE Targets read_labels(const Row& row) const {
    Targets targets{};
    if constexpr (!TEAM.alone()) {
      Own::sync();  // the previous row may still be read
      clear_marks();
      clear_counts();
      Own::sync();
    }
    constexpr int CHUNK = TEAM.readers() * TEAM.ahead();
    Column from = 0, end = columns;
    bool valid = true;
    do {
      long long index[TEAM.ahead()];
#pragma unroll
      for (int a = 0; a < TEAM.ahead(); ++a) {
        const Column place = from + a * TEAM.readers() + Own::reader();
        index[a] = place < end ? row.template index<1>(place) : -1;
      }
#pragma unroll
      for (int a = TEAM.ahead() - 1; a >= 0; --a) {
        const Column place = from + a * TEAM.readers() + Own::reader();
        if (index[a] < 0) end = min(end, place);
      }
#pragma unroll
      for (int distance = 1; distance < TEAM.readers(); distance *= 2) {
        end = min(end, __shfl_xor_sync(0xffffffffu, end, distance));
      }
#pragma unroll
      for (int a = 0; a < TEAM.ahead(); ++a) {
        const Column place = from + a * TEAM.readers() + Own::reader();
        if (place >= end) continue;
        if (index[a] >= columns) {
          valid = false;
          continue;
        }
        const Column column = Column(index[a]);
        if constexpr (TEAM.alone()) {
          targets.own[a] = column;
          mark(targets, column);
        } else if (Own::thread() < TEAM.readers()) {
          if (place < TEAM.listed()) lists.column[place][Own::row()] = column;
          if (column < window) mark(targets, column);
        }
      }
      from += CHUNK;
    } while (!TEAM.alone() && any_reader(from < end));
    targets.valid = Own::readers(!valid) == 0;
    targets.count = targets.valid ? end : 0;
    Own::sync();
    return targets;
  }
  static DEVICE bool any_reader(bool mine) {
    return TEAM.readers() == 1 ? mine : bool(__any_sync(0xffffffffu, mine));
  }

  // Lists as many targets as there is room for, those from `from` on.
  DEVICE void read_list(const Row& row, const Targets& targets, Column from) const {
    Own::sync();
    for (int k = Own::thread(); k < TEAM.listed() && from + k < targets.count;
         k += TEAM.threads_per_row) {
      lists.column[k][Own::row()] = target(row, from + k);
    }
    Own::sync();
    read_thresholds(row, targets, from);
  }
  // Their thresholds, in whole pieces; -inf for none.
  DEVICE void read_thresholds(const Row& row, const Targets& targets, Column from) const {
    if constexpr (!TEAM.alone()) {
#pragma unroll 1
      for (int k = Own::thread(); k < TEAM.listed(); k += TEAM.threads_per_row) {
        if (k >= PIECE && from + (k - k % PIECE) >= targets.count) break;
        N threshold = N(Real<T>(T(-INFINITY)));
        if (from + k < targets.count) {
          const Column column = lists.column[k][Own::row()];
          threshold = Arithmetic::scaled(loss.threshold(row.template number<0>(column)));
        }
        lists.threshold[k][Own::row()] = threshold;
      }
      Own::sync();
    }
  }
  // The thresholds of a piece of the list.
  DEVICE void load_thresholds(N (&threshold)[PIECE], const Row& row, const Targets& targets,
                              int first) const {
#pragma unroll
    for (int t = 0; t < PIECE; ++t) {
      if constexpr (TEAM.alone()) {
        threshold[t] = N(Real<T>(T(-INFINITY)));
        if (t < targets.count) {
          threshold[t] = Arithmetic::scaled(loss.threshold(row.template number<0>(targets.own[t])));
        }
      } else {
        threshold[t] = lists.threshold[first + t][Own::row()];
      }
    }
  }

  // Compares elements with a piece of the targets, of which `count` are there and more may be:
  // counts the violations of each element and of each target. Returns their sum, SCALED.
  template <bool SUMMED, bool OF_TARGETS>
  static DEVICE N compare(const N (&threshold)[PIECE], Column count, const N (&x)[ELEMENTS],
                          float (&of_element)[ELEMENTS], float (&of_target)[PIECE]) {
    // Half a piece is left out where no target is in it. More tests cost more than they save, but
    // for a thread that works alone.
    constexpr int TESTED = TEAM.alone() ? 1 : PIECE / 2;
    N parts[2] = {N(0.0), N(0.0)};  // of even and of odd elements
#pragma unroll
    for (int from = 0; from < PIECE; from += TESTED) {
      if (from >= count) break;
#pragma unroll
      for (int e = 0; e < ELEMENTS; ++e) {
#pragma unroll
        for (int t = from; t < from + TESTED; ++t) {
          const N violation = Arithmetic::violation(threshold[t], x[e]);
          if (SUMMED) Arithmetic::add(parts[e % 2], violation);
          if (violation > 0.0) {
            if (SUMMED && COUNTS) of_element[e] += 1.0f;
            if (OF_TARGETS) of_target[t] += 1.0f;
          }
        }
      }
    }
    return parts[0] + parts[1];
  }
  // Adds a sum of violations, by the elements at `first` of a piece of the list.
  DEVICE void add(RunningSum<N>& sum, N all, const Row& row, const Targets& targets, Column begin,
                  Column first, int piece) const {
    if (Arithmetic::is_whole(all)) {
      sum += Arithmetic::unscaled(all);
    } else {
      add_large(sum, row, targets, begin, first, piece);
    }
  }
  // Violations that are too large to be scaled, one by one.
  DEVICE void add_large(RunningSum<N>& sum, const Row& row, const Targets& targets, Column begin,
                        Column first, int piece) const {
#pragma unroll 1
    for (int e = 0; e < ELEMENTS; ++e) {
      const Column column = column_of(first, e / WIDTH) + e % WIDTH;
      if (column >= columns || (marks_from(targets, column - begin, 0) & 1u) != 0) continue;
      const N x = row.template number<0>(column);
#pragma unroll 1
      for (int t = 0; t < PIECE; ++t) {
        const N threshold = lists.threshold[piece + t][Own::row()];
        const N violation = Arithmetic::unscaled(threshold) + x;
        if (violation > 0.0) sum += violation;
      }
    }
  }

  // Reads a row: adds up the violations, writes the gradients of its elements and, with FEW
  // targets, counts the violations of each.
  template <bool FEW>
  DEVICE void scan(const Writer& writer, Targets& targets, auto& ahead, RunningSum<N>& sum,
                   float (&of_target)[PIECE]) const {
    const Row& row = writer.row;
    N threshold[PIECE];
    if constexpr (FEW) load_thresholds(threshold, row, targets, 0);
    const bool several = !FEW && Own::any(targets.count > TEAM.listed());
#pragma unroll 1
    for (Column begin = 0; begin < columns; begin += window) {
      if (begin > 0) mark_window(row, targets, begin);
#pragma unroll
      for (int t = 0; t < PIECE; ++t) of_target[t] = 0.0f;
      const Column end = min(columns, begin + window);
#pragma unroll 1
      for (Column first = begin; first < end; first += STRIDE) {
        const auto batch = ahead;
        ahead = load(row, first + STRIDE);
        N x[ELEMENTS];
        numbers(x, batch, targets, begin, first);
        float of_element[ELEMENTS] = {};
        if constexpr (FEW) {
          const N all = compare<true, COUNTS>(threshold, targets.count, x, of_element, of_target);
          add(sum, all, row, targets, begin, first, 0);
        } else {
          for (Column from = 0; Own::any(from < targets.count); from += TEAM.listed()) {
            if (several) read_list(row, targets, from);
#pragma unroll 1
            for (int k = 0; k < TEAM.listed() && from + k < targets.count; k += PIECE) {
              load_thresholds(threshold, row, targets, k);
              const Column left = targets.count - (from + k);
              const N all = compare<true, false>(threshold, left, x, of_element, of_target);
              add(sum, all, row, targets, begin, first, k);
            }
          }
        }
        if constexpr (GRADIENTS) writer.write(first, of_element);
      }
      if constexpr (FEW && COUNTS && !TEAM.alone()) add_counts(of_target, lists.violated);
    }
  }

  DEVICE void clear_counts() const {
    for (int t = Own::thread(); t < PIECE; t += TEAM.threads_per_row) {
      lists.violated[t][Own::row()] = lists.times[t][Own::row()] = 0;
    }
  }
  // Adds what each thread of a row has counted: up to MOST_COUNTED together.
  static DEVICE void add_counts(const float (&counted)[PIECE], Count (&to)[PIECE][TEAM.rows()]) {
    if constexpr (TEAM.across) {
#pragma unroll
      for (int t = 0; t < PIECE; ++t) atomicAdd(&to[t][Own::row()], Count(counted[t]));
    } else {
#pragma unroll
      for (int t = 0; t < PIECE; t += 2) {
        static_assert(PIECE % 2 == 0, "two counts share a register");
        unsigned both = unsigned(counted[t]) | unsigned(counted[t + 1]) << 16;
#pragma unroll
        for (int distance = 1; distance < 32 && distance < TEAM.threads_per_row; distance *= 2) {
          both += __shfl_xor_sync(0xffffffffu, both, distance);
        }
        if (Own::thread() % 32 == 0) {
          atomicAdd(&to[t][Own::row()], Count(both & 0xffffu));
          atomicAdd(&to[t + 1][Own::row()], Count(both >> 16));
        }
      }
    }
  }

  // Many targets: counts the violations of each piece of them, and writes their gradients.
  DEVICE void count_and_write_targets(const Writer& writer, Targets& targets) const {
    const Row& row = writer.row;
    const bool several = Own::any(targets.count > TEAM.listed());
#pragma unroll 1
    for (Column from = 0; Own::any(from < targets.count); from += PIECE) {
      const int first = int(from % TEAM.listed());
      if (several && first == 0) read_list(row, targets, from);
      Own::sync();
      clear_counts();
      Own::sync();
      N threshold[PIECE];
      // A row that has no such piece counts nothing.
      load_thresholds(threshold, row, targets, from < targets.count ? first : 0);
#pragma unroll 1
      for (Column begin = 0; begin < columns; begin += window) {
        if (columns > window) mark_window(row, targets, begin);
        float of_target[PIECE] = {}, unused[ELEMENTS];
        const Column end = min(columns, begin + window);
#pragma unroll 1
        for (Column at = begin; at < end; at += STRIDE) {
          N x[ELEMENTS];
          numbers(x, load(row, at), targets, begin, at);
          compare<false, true>(threshold, targets.count - from, x, unused, of_target);
        }
        add_counts(of_target, lists.violated);
      }
      const float unused[PIECE] = {};
      write_targets(writer, targets, from, unused);
    }
  }

  // Writes the gradients of a piece of the targets, in the place of what its threads have written
  // before. A thread that works alone has the violations.
  DEVICE void write_targets(const Writer& writer, const Targets& targets, Column from,
                            const float (&violated)[PIECE]) const {
    if constexpr (TEAM.alone()) {
#pragma unroll
      for (int t = 0; t < PIECE; ++t) {
        if (t >= targets.count) break;
        float times = 0.0f;
#pragma unroll
        for (int s = 0; s < PIECE; ++s) {
          if (s < targets.count && targets.own[s] == targets.own[t]) times += 1.0f;
        }
        writer.write_target(targets.own[t], T(times), T(violated[t]));
      }
    } else {
      // Where labels repeat, one thread writes, so that no two write the same element.
      const bool repeats = Own::any(targets.repeats);
      if (repeats) count_labels(writer.row, targets, from);
      Own::sync();
      const int first = int(from % TEAM.listed()), step = repeats ? 1 : TEAM.threads_per_row;
      if (repeats && Own::thread() != 0) return;
      for (int t = Own::thread(); t < PIECE && from + t < targets.count; t += step) {
        const T times = repeats ? T(lists.times[t][Own::row()]) : T(1);
        writer.write_target(lists.column[first + t][Own::row()], times,
                            T(lists.violated[t][Own::row()]));
      }
    }
  }
  // How often the targets of a piece are listed.
  DEVICE void count_labels(const Row& row, const Targets& targets, Column from) const {
    const int first = int(from % TEAM.listed());
    Column column[PIECE];
#pragma unroll
    for (int t = 0; t < PIECE; ++t) {
      const bool there = from + t < targets.count;
      column[t] = there ? lists.column[first + t][Own::row()] : Column(-1);
    }
    for (Column begin = 0; Own::any(begin < targets.count); begin += MOST_COUNTED) {
      float times[PIECE] = {};
      const Column end = min(targets.count, begin + MOST_COUNTED);
#pragma unroll 1
      for (Column k = begin + Own::thread(); k < end; k += TEAM.threads_per_row) {
        const Column other = target(row, k);
#pragma unroll
        for (int t = 0; t < PIECE; ++t) times[t] += other == column[t] ? 1.0f : 0.0f;
      }
      add_counts(times, lists.times);
    }
  }
};

// The compiler holds more in registers for these architectures, and would spill.
template <MarginTeam TEAM>
constexpr int blocks_per_multiprocessor =
    ARCHITECTURE >= 1000 ? (TEAM.resident + 1) / 2 : TEAM.resident;

// The arguments are those of pointwise.cu, with rows for elements. A VJP has its grad_output among
// the operands. Blocks stride over segments, and a segment over groups of rows. The dynamic shared
// memory holds the marks of `window` columns of each row of a block.
template <class T, class Loss, class Layout, MarginTeam TEAM, Values VALUES, unsigned WANTED,
          unsigned TANGENTS, bool VJP, class Result, class... P>
__global__ void __launch_bounds__(TEAM.threads, blocks_per_multiprocessor<TEAM>)
    multilabel_margin(Loss loss, double scale, Layout layout, long long window, long long n,
                      long long columns, Results<T, Result> results, P... pointer) {
  extern __shared__ __align__(16) unsigned char shared[];
  using Pointers = Tuple<P...>;
  using Work = MarginWorker<T, Loss, Layout, TEAM, WANTED, TANGENTS, VJP, Pointers>;
  using Own = MarginThread<TEAM>;
  using Index = typename Layout::Index;
  using Column = typename Layout::Column;
  constexpr bool REDUCED = VALUES >= SUM_OF_VALUES;

  const auto given = Factor::of<(WANTED != 0)>(results);
  if (given.is_done) return;
  const T factor = T(given.value);
  const Pointers pointers{{pointer}...};
  const Work work{loss,
                  layout,
                  pointers,
                  n,
                  Column(columns),
                  Column(window),
                  reinterpret_cast<unsigned*>(shared),
                  *shared_array<typename Work::Lists, 1>()};
  const double divisor = results.known_denominator();
  const Scaling<Layout::ARRAYS, Pointers> scaling{scale, pointers};
  const Reciprocal<T> reciprocal(denominator_of_derivatives<true>(divisor), 1.0, scaling.value());
  const auto reduction =
      reduction_of_rows<T, VALUES, TEAM.threads, TANGENTS, Loss>(given, results, divisor, scaling);

  const Index groups = Index((n + TEAM.rows() - 1) / TEAM.rows());
  for (long long segment = blockIdx.x; segment < results.segments; segment += gridDim.x) {
    Sum<T> sum = Sum<T>::zero(), counted = Sum<T>::zero();
#pragma unroll 1
    for (Index group = Index(segment); group < groups; group += Index(results.segments)) {
      const Index index = group * TEAM.rows() + Own::row();
      const bool present = index < Index(n);
      const auto own =
          work.template evaluate<VALUES != NO_VALUES>(index, present, factor, reciprocal);
      if (!present || Own::thread() != 0) continue;
      take<VALUES, Loss>(own, index, results.value, sum, counted);
    }
    if constexpr (REDUCED) {
      if constexpr (TEAM.rows() > 1) {
        reduction.add(segment, sum, counted);
      } else {
        reduction.template add<true>(segment, sum, counted);
      }
      reduction.finish_groups(segment, reduction.arrive_in_group(segment));
      __syncthreads();  // without, the compiler joins this with the loop over rows
    }
  }
}
