// A batch of a row: the vectors that one thread holds in registers, loaded from device memory, or
// copied to shared memory without waiting and fetched from there.
//
// Aligned vectors of 16 bytes move elements and gradients. States accumulate words, of which
// neighbouring threads read neighbours. That is as fast wherever a row begins: `shift` columns
// behind the beginning of a line of the cache. So the terms of a thread follow from columns alone,
// and never from an address.
#pragma once
#include "kernels/row.cuh"
#include "memory/async_copy.cuh"

constexpr int LINE_BYTES = 128;  // of a line of the cache
constexpr int FEW_BYTES = 32;    // of what a thread holds

// The part that this thread has in the work of its block.
template <auto TEAM>
struct RowThread {
  static constexpr int NEIGHBOURS = TEAM.neighbours(), THREADS_PER_ROW = TEAM.threads_per_row;
  // Unsigned: of signed numbers the addresses took two registers more.
  static DEVICE unsigned stretch() { return threadIdx.x / NEIGHBOURS; }
  static DEVICE unsigned neighbour() { return threadIdx.x % NEIGHBOURS; }
  // Waits for the whole warp, even if it has several rows. To wait for a part of it, threads would
  // first find out which ones are there, by slow instructions.
  static DEVICE void wait_for_neighbours() {
    if constexpr (NEIGHBOURS > 1) __syncwarp();
  }
  static DEVICE int thread() { return int(threadIdx.x % THREADS_PER_ROW); }
  static DEVICE int row() { return int(threadIdx.x / THREADS_PER_ROW); }
  // The stretch of its row.
  static DEVICE int stretch_of_row() { return int(threadIdx.x % THREADS_PER_ROW / NEIGHBOURS); }
};

// Which elements of a batch are there: ALL, or SOME, in the columns from 0 up to an end. The others
// are left out, or HIDDEN from a loss that HIDES elements.
enum Presence { ALL, SOME, OTHERS_HIDDEN };

// Vectors, or words, of LENGTH elements of one thread, `stride` columns apart, from each array that
// the loss reads. The first SURE of them are there, whatever the others are.
template <class Row, class Loss, int VECTORS, int LENGTH, Presence PRESENT, int SURE = 0,
          class K = Range<Row::INPUTS>>
struct Batch;

template <class Row, class Loss, int VECTORS_, int LENGTH_, Presence PRESENT, int SURE, int... K>
struct Batch<Row, Loss, VECTORS_, LENGTH_, PRESENT, SURE, Indices<K...>> {
  using T = typename Row::Scalar;
  using N = typename Row::N;
  using Column = typename Row::Column;
  using Unsigned = Select<(sizeof(Column) == 4), unsigned, unsigned long long>;
  static constexpr int FIRST = Row::FIRST, VECTORS = VECTORS_, LENGTH = LENGTH_;
  static constexpr bool ARE_ALL = PRESENT == ALL;
  // Sums have the places of a vector, or four.
  static constexpr int NUMBERS = VECTORS * LENGTH, FOUR = NUMBERS < 4 ? NUMBERS : 4;
  static constexpr int PLACES = LENGTH < 4 ? FOUR : LENGTH;
  static constexpr int OF_PLACE = (NUMBERS + PLACES - 1) / PLACES;
  // The weights of the classes are the same in all rows. They are read where they are needed: the
  // cache of the multiprocessor has them, and there are no registers for all of a batch.
  static constexpr int CLASSES = FIRST + Loss::OPERANDS;
  static constexpr bool WEIGHS = Loss::WEIGHTED && bool(Loss::READS >> Loss::OPERANDS & 1u);
  template <int S>
  static constexpr bool in_batch = Row::template is_read<S>() && !(WEIGHS && S == CLASSES);
  // Bytes of a number from each array that a batch has.
  static constexpr int NUMBER_BYTES =
      (0 + ... + (in_batch<K> ? int(sizeof(typename Row::template Element<K>)) : 0));
  template <int S>
  using Stored = Vector<typename Row::template Element<S>, LENGTH>;
  template <int S>
  static constexpr bool IS_PAIR = LENGTH == 2 && sizeof(Stored<S>) == 4;
  template <int S>
  using Kept = Select<IS_PAIR<S>, Packed<Stored<S>>, Stored<S>>;

  // Where the weights of the first vector are, and the step from one to the next.
  template <class E>
  struct OfClasses {
    const E* at;
    long long step;
  };

  Column first, stride, end;
  Tuple<Kept<K>...> vectors[VECTORS];
  // Another array stands for one that is not there.
  Select<WEIGHS, OfClasses<typename Row::template Element<WEIGHS ? CLASSES : FIRST>>, Nothing>
      weights;

  // Vector p of array S.
  template <int S>
  DEVICE Stored<S> vector(int p) const {
    if constexpr (IS_PAIR<S>) {
      return bits_as<Stored<S>>(get<S>(vectors[p]));
    } else {
      return get<S>(vectors[p]);
    }
  }
  template <int S>
  DEVICE void keep(int p, const Stored<S>& vector) {
    if constexpr (IS_PAIR<S>) {
      get<S>(vectors[p]) = packed(vector);
    } else {
      get<S>(vectors[p]) = vector;
    }
  }

  DEVICE Column column(int p) const { return first + p * stride; }
  // Where vector p is in array S: at a constant offset from the first one.
  template <int S>
  DEVICE auto* address(const Row& row, int p) const {
    const long long from_first = (long long)(p * stride) * row.layout.template step<S>();
    return row.template address<S>(first) + from_first;
  }
  DEVICE bool holds(Column column) const {
    return PRESENT == ALL || Unsigned(column) < Unsigned(end);
  }
  // Whether element j of vector p is there, or all of it.
  DEVICE bool holds(int p, int j) const { return p < SURE || holds(column(p) + j); }
  DEVICE bool is_full(int p) const {
    if (PRESENT == ALL || p < SURE) return true;
    return LENGTH == 1 ? holds(p, 0) : column(p) >= 0 && column(p) + LENGTH <= end;
  }

  DEVICE void load(const Row& row, int shift = 0) {
    (load_array<K>(row, shift), ...);
    find_weights(row);
  }

  // Where the weights of the classes are that these have.
  DEVICE void find_weights(const Row& row) {
    if constexpr (WEIGHS) {
      weights = {row.template address<CLASSES>(first), row.layout.template step<CLASSES>()};
    }
  }

  // To shared memory, without waiting, and from it: to and from where a vector of the thread is in
  // `slot`, or `shift` elements behind it.
  template <auto TEAM, bool KEPT>
  DEVICE void prefetch(const Row& row, unsigned char* shared, int slot) const {
    (prefetch_array<K, TEAM, KEPT>(row, shared, slot), ...);
  }
  // Reads single elements unless `aligned`.
  template <auto TEAM>
  DEVICE void fetch(const Row& row, unsigned char* shared, int slot, int shift = 0,
                    bool aligned = true) {
    (fetch_array<K, TEAM>(shared, slot, shift, aligned), ...);
    find_weights(row);
  }
  // Whether prefetch() may read all of these at once, also those that are not of the row.
  DEVICE bool may_read(const Row& row) const { return (may_read_array<K>(row) && ...); }

  // The element of operand I in a column that is one of these.
  template <int I>
  DEVICE auto element(Column wanted) const {
    using Loaded = typename Row::template Loaded<I>;
    const auto at = [&](int p, int j) {
      return Loaded{vector<FIRST + I>(p).at[j], vector<Loaded::SLOPE>(p).at[j]};
    };
    Loaded found = at(0, 0);
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
#pragma unroll
      for (int j = 0; j < LENGTH; ++j) {
        if (column(p) + j == wanted) found = at(p, j);
      }
    }
    return found;
  }

  // Releases lines that prefetch() kept in L2: each by the thread that has its beginning.
  DEVICE void release(const Row& row) const { (release_array<K>(row), ...); }

  // Whether a column is one of these, which neighbours in a row share in turns.
  DEVICE bool has(Column column) const {
    const auto place = Unsigned(column - first), turn = Unsigned(stride);
    return place < VECTORS * turn && place % turn < LENGTH && holds(column);
  }

  // Makes the element of the first operand in a column -inf: in registers, or in shared memory. The
  // latter takes as long for many elements as for few.
  DEVICE void hide(Column hidden) {
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
      Stored<FIRST> elements = vector<FIRST>(p);
#pragma unroll
      for (int j = 0; j < LENGTH; ++j) {
        if (column(p) + j == hidden) elements.at[j] = hidden_element();
      }
      keep<FIRST>(p, elements);
    }
  }
  template <auto TEAM>
  DEVICE void hide(Column hidden, unsigned char* shared, int slot, int shift) const {
    if (has(hidden)) (hide_in_array<K, TEAM>(shared, slot, int(hidden - first) + shift), ...);
  }

  // The largest number of the first operand, and `so_far`. Half precision is compared two by two.
  DEVICE T largest(T so_far) const {
    using Element = typename Row::template Element<FIRST>;
    if constexpr (is_half<Element> && LENGTH % 2 == 0) {
      const auto number = [&](int p, int j) {
        const Element x = vector<FIRST>(p).at[j];
        return PRESENT != SOME || holds(p, j) ? x : convert<Element>(lowest<T>());
      };
      const auto pair_of = [&](int p, int j) { return pair(number(p, j), number(p, j + 1)); };
      auto both = pair_of(0, 0);
#pragma unroll
      for (int p = 0; p < VECTORS; ++p) {
#pragma unroll
        for (int j = 0; j < LENGTH; j += 2) both = __hmax2(both, pair_of(p, j));
      }
      return larger(so_far, larger(convert<T>(both.x), convert<T>(both.y)));
    } else {
      each([&](int, auto, const auto& x, auto... counts) {
        so_far = larger(so_far, (counts && ...) ? plain(get<0>(x)) : lowest<T>());
      });
      return so_far;
    }
  }

  // f(place, column, x) for each element, get<k>(x) being its number in operand k. A function that
  // takes it is told whether an element counts: the numbers of one that is not there are 0.
  DEVICE void each(auto f) const {
#pragma unroll
    for (int p = 0; p < VECTORS; ++p) {
      const auto wide = widened(p, true);
#pragma unroll
      for (int j = 0; j < LENGTH; ++j) {
        const int place = (p * LENGTH + j) % PLACES;
        const auto x = numbers(wide, j);
        const ColumnNear<Column> column{first, p * stride + j};
        if constexpr (PRESENT != SOME) {
          f(place, column, x);
        } else if constexpr (requires { f(place, column, x, true); }) {
          f(place, column, x, holds(p, j));
        } else if (holds(p, j)) {
          f(place, column, x);
        }
      }
    }
  }
  // f(place in the vector, column, x) for the elements of one.
  DEVICE void each_of(int p, auto f) const {
    const auto wide = widened(p, first % LENGTH == 0);
    const Column first_of_vector = column(p);
    if (is_full(p)) {
#pragma unroll
      for (int j = 0; j < LENGTH; ++j) f(j, first_of_vector + j, numbers(wide, j));
    } else {
#pragma unroll
      for (int j = 0; j < LENGTH; ++j) {
        if (holds(p, j)) f(j, first_of_vector + j, numbers(wide, j));
      }
    }
  }

 private:
  template <int S>
  DEVICE void load_array(const Row& row, int shift) {
    if constexpr (in_batch<S>) {
      if (shift % LENGTH == 0) {
#pragma unroll
        for (int p = 0; p < VECTORS; ++p) keep<S>(p, load_vector_of<S>(row, p));
      } else {
#pragma unroll
        for (int p = 0; p < VECTORS; ++p) keep<S>(p, load_vector_of<S>(row, p, false));
      }
    }
  }
  template <int S>
  DEVICE Stored<S> load_vector_of(const Row& row, int p, bool aligned = true) const {
    return vector_at<S>(p, address<S>(row, p), row.layout.template step<S>(), aligned);
  }
  // Vector p of array S, which is there, its elements `step` apart. If `aligned` it is one access.
  template <int S, class E>
  DEVICE Stored<S> vector_at(int p, E* from, long long step, bool aligned) const {
    const bool at_once = bool(Row::VECTORISED >> S & 1u) && aligned && is_full(p);
    if (at_once) return words_at<S, LENGTH>(from);
    Stored<S> vector;
#pragma unroll
    for (int j = 0; j < LENGTH; ++j) {
      vector.at[j] = absent<S>();
      if (holds(p, j)) vector.at[j] = words_at<S, 1>(from + j * step).at[0];
    }
    return vector;
  }
  // A few weights of classes as what does not change, else each would be loaded anew behind a
  // store. On an H200 that halved the time of 10 classes with gradient, and it took longer for
  // many.
  template <int S, int W, class E>
  static DEVICE Vector<E, W> words_at(const E* from) {
    if constexpr (WEIGHS && S == CLASSES && VECTORS * sizeof(Stored<S>) <= FEW_BYTES) {
      return load_constants<W>(from);
    } else {
      return load_vector<W>(from);
    }
  }

  // In shared memory each array has `slots` vectors of each thread: first slot 0 of all neighbours,
  // then slot 1 of them, and so on.
  template <int S, auto TEAM>
  static DEVICE auto* take_places(unsigned char*& shared, int slot) {
    using E = typename Row::template Element<S>;
    E* const elements = reinterpret_cast<E*>(shared);
    shared += sizeof(Vector<E, TEAM.width>) * TEAM.places();
    const unsigned place =
        RowThread<TEAM>::stretch() * TEAM.places_of_stretch() + slot * TEAM.neighbours();
    return elements + (place * TEAM.width + RowThread<TEAM>::neighbour() * LENGTH);
  }
  template <int S>
  DEVICE bool may_read_array(const Row& row) const {
    if constexpr (!in_batch<S>) {
      return true;
    } else if constexpr (is_copied<S>) {
      return row.template may_read<S>(address<S>(row, 0), stride * (VECTORS - 1) + LENGTH);
    } else {
      return false;
    }
  }
  // Whether vectors of an array are copied without waiting.
  template <int S>
  static constexpr bool is_copied =
      ASYNCHRONOUS_COPIES && bool(Row::VECTORISED >> S & 1u) && sizeof(Stored<S>) >= 4;
  template <int S, auto TEAM, bool KEPT>
  DEVICE void prefetch_array(const Row& row, unsigned char*& shared, int slot) const {
    if constexpr (in_batch<S>) {
      auto* const places = reinterpret_cast<Stored<S>*>(take_places<S, TEAM>(shared, slot));
      if constexpr (is_copied<S> && PRESENT == ALL) {
        copy_vectors<S, TEAM, KEPT>(Range<VECTORS>(), address_of_thread(places),
                                    row.template address<S>(first));
      } else {
#pragma unroll
        for (int p = 0; p < VECTORS; ++p) {
          // One number of four or eight bytes is aligned in any case.
          constexpr bool NUMBER = LENGTH == 1 && sizeof(Stored<S>) >= 4;
          if constexpr (is_copied<S> || (ASYNCHRONOUS_COPIES && NUMBER)) {
            const auto* const from = address<S>(row, p);
            if (is_full(p) || (is_copied<S> && row.template may_read<S>(from, LENGTH))) {
              copy_later<sizeof(Stored<S>), 0, 0, KEPT>(
                  address_of_thread(places + p * TEAM.neighbours()), from);
              continue;
            }
          }
          places[p * TEAM.neighbours()] = load_vector_of<S>(row, p);
        }
      }
    }
  }
  template <int S, auto TEAM, bool KEPT, int... P>
  static DEVICE void copy_vectors(Indices<P...>, unsigned to, const void* from) {
    constexpr int BYTES = sizeof(Stored<S>);
    (copy_later<BYTES, P * TEAM.neighbours() * BYTES, P * TEAM.neighbours() * BYTES, KEPT>(to,
                                                                                           from),
     ...);
  }
  template <int S>
  DEVICE void release_array(const Row& row) const {
    if constexpr (ASYNCHRONOUS_COPIES && in_batch<S> && sizeof(Stored<S>) >= 16 &&
                  bool(Row::VECTORISED >> S & 1u)) {
#pragma unroll
      for (int p = 0; p < VECTORS; ++p) {
        const auto* const from = address<S>(row, p);
        const auto behind = reinterpret_cast<unsigned long long>(from) % LINE_BYTES;
        if (behind < sizeof(Stored<S>) && is_full(p)) {
          release_line(reinterpret_cast<const char*>(from) - behind);
        }
      }
    }
  }
  template <int S, auto TEAM>
  DEVICE void fetch_array(unsigned char*& shared, int slot, int shift, bool aligned) {
    if constexpr (in_batch<S>) {
      constexpr int STRIDE = TEAM.neighbours() * LENGTH;
      const auto* const from = take_places<S, TEAM>(shared, slot) + shift;
      if (aligned) {
#pragma unroll
        for (int p = 0; p < VECTORS; ++p) fetch_vector<S>(p, from + p * STRIDE);
      } else {
#pragma unroll
        for (int p = 0; p < VECTORS; ++p) fetch_elements<S>(p, from + p * STRIDE);
      }
    }
  }
  // A vector of four or more elements is always there. A shorter one is there if its first or its
  // last element is, as a row may begin in it.
  template <int S>
  DEVICE void fetch_vector(int p, const auto* from) {
    const bool sure = LENGTH >= 4 || p < SURE;
    if (sure || holds(column(p)) || holds(column(p) + LENGTH - 1)) {
      get<S>(vectors[p]) = *reinterpret_cast<const Kept<S>*>(from);
    }
    if constexpr (LENGTH < 4 && PRESENT != ALL) {
      if (sure) return;
      Stored<S> elements = vector<S>(p);
#pragma unroll
      for (int j = 0; j < LENGTH; ++j) {
        if (!holds(p, j)) elements.at[j] = absent<S>();
      }
      keep<S>(p, elements);
    }
  }
  template <int S, class E>
  DEVICE void fetch_elements(int p, const E* from) {
    E elements[LENGTH];
#pragma unroll
    for (int j = 0; j < LENGTH; ++j) {
      elements[j] = absent<S>();
      if (holds(p, j)) elements[j] = from[j];
    }
    keep<S>(p, vector_of(elements));
  }

  template <int S, auto TEAM>
  DEVICE void hide_in_array(unsigned char*& shared, int slot, int place) const {
    if constexpr (in_batch<S>) {
      auto* const elements = take_places<S, TEAM>(shared, slot);
      if constexpr (S == FIRST) elements[place] = hidden_element();
    }
  }
  // A loss that HIDES elements reads one operand; its tangent is 0 where that is -inf.
  template <int S>
  static DEVICE auto absent() {
    constexpr bool HIDDEN = PRESENT == OTHERS_HIDDEN && S == FIRST;
    return convert<typename Row::template Element<S>>(HIDDEN ? T(-INFINITY) : T(0));
  }
  static DEVICE auto hidden_element() {
    return convert<typename Row::template Element<FIRST>>(T(-INFINITY));
  }

  // Columns may begin anywhere unless `aligned`.
  template <int S>
  DEVICE Vector<T, LENGTH> widened_of(int p, bool aligned) const {
    if constexpr (in_batch<S>) {
      return widen<T>(vector<S>(p));
    } else if constexpr (WEIGHS && S == CLASSES) {
      const auto from = weights.at + (long long)(p * stride) * weights.step;
      return widen<T>(vector_at<S>(p, from, weights.step, aligned));
    } else {
      return {};
    }
  }
  DEVICE auto widened(int p, bool aligned) const {
    return Tuple<Vector<Repeat<T, K>, LENGTH>...>{{widened_of<K>(p, aligned)}...};
  }
  template <int I>
  static DEVICE N number(const auto& wide, int j) {
    const Real<T> value(get<FIRST + I>(wide).at[j]);
    if constexpr (Row::template Loaded<I>::HAS_SLOPE) {
      return N(value, Real<T>(get<Row::template TANGENT<I>>(wide).at[j]));
    } else {
      return N(value);
    }
  }
  template <int... I>
  static DEVICE auto numbers(Indices<I...>, const auto& wide, int j) {
    return Tuple<Repeat<N, I>...>{{number<I>(wide, j)}...};
  }
  static DEVICE auto numbers(const auto& wide, int j) {
    return numbers(Range<Loss::OPERANDS + int(Loss::WEIGHTED)>(), wide, j);
  }
};
