// What one thread holds of a row: a batch of vectors in registers, and how it comes there, from
// device memory at once or through shared memory without waiting.
//
// Vectors are counted from the first column of a row, wherever that is in memory, so that who adds
// what does not depend on an address. Where rows may begin inside an aligned vector, `shift`
// columns behind its beginning, aligned vectors are moved, and read from between two of them.
#pragma once
#include "kernels/row.cuh"
#include "memory/async_copy.cuh"

constexpr int LINE = 128;  // bytes of a line of the cache

// Vectors of one thread, `stride` columns apart, from each array that the loss reads. GUARDED: only
// the columns from 0 up to `end` are there.
template <class Row, class Loss, unsigned TANGENTS, int BATCH, int WIDTH, bool GUARDED,
          class K = Range<Row::INPUTS>>
struct Batch;

template <class Row, class Loss, unsigned TANGENTS, int BATCH, int WIDTH_, bool GUARDED, int... K>
struct Batch<Row, Loss, TANGENTS, BATCH, WIDTH_, GUARDED, Indices<K...>> {
  using T = typename Row::Scalar;
  using N = typename Row::N;
  using Column = typename Row::Column;
  using Unsigned = Select<(sizeof(Column) == 4), unsigned, unsigned long long>;
  static constexpr int FIRST = Row::FIRST, COUNT = BATCH, WIDTH = WIDTH_;
  using Vectors = Tuple<Vector<typename Row::template Element<K>, WIDTH>...>;

  Column first, stride, end;
  Vectors vectors[BATCH];

  __device__ __forceinline__ Column column(int p) const { return first + p * stride; }
  // Where vector p is in array S: from the first one on, at an offset that is known.
  template <int S>
  __device__ __forceinline__ auto* address(const Row& row, int p) const {
    const long long from_first = (long long)(p * stride) * row.layout.template step<S>();
    return row.template address<S>(first) + from_first;
  }
  __device__ __forceinline__ bool holds(Column column) const {
    return !GUARDED || (column >= 0 && column < end);
  }
  __device__ __forceinline__ bool is_full(Column column) const {
    return !GUARDED || (column >= 0 && column + WIDTH <= end);
  }

  __device__ __forceinline__ void load(const Row& row) {
#pragma unroll
    for (int p = 0; p < BATCH; ++p) (load_array<K>(row, p), ...);
  }
  // The same where rows begin so many elements behind an aligned vector.
  __device__ __forceinline__ void load_shifted(const Row& row, int shift) {
    (load_shifted_array<K>(row, shift), ...);
  }

  // To shared memory, without waiting, and from it. `slot` is that of the first vector; each array
  // has a place for each slot and thread. `beside`: how many places behind.
  template <class Team, bool KEPT>
  __device__ __forceinline__ void prefetch(const Row& row, unsigned char* shared, int slot,
                                           int beside = 0) const {
    (prefetch_array<K, Team, KEPT>(row, shared, slot, beside), ...);
  }
  template <class Team>
  __device__ __forceinline__ void fetch(unsigned char* shared, int slot) {
    (fetch_array<K, Team>(shared, slot), ...);
  }
  // The same where aligned vectors have been moved, in part from the places of a neighbour.
  template <class Team>
  __device__ __forceinline__ void fetch_shifted(unsigned char* shared, int slot, int shift) {
    (fetch_shifted_array<K, Team>(shared, slot, shift), ...);
  }

  // The element of operand I in a column that is one of these.
  template <int I>
  __device__ __forceinline__ auto element(Column wanted) const {
    using Loaded = typename Row::template Loaded<I>;
    const auto at = [&](int p, int j) {
      return Loaded{get<FIRST + I>(vectors[p]).at[j], get<Loaded::SLOPE>(vectors[p]).at[j]};
    };
    Loaded found = at(0, 0);
#pragma unroll
    for (int p = 0; p < BATCH; ++p) {
#pragma unroll
      for (int j = 0; j < WIDTH; ++j) {
        if (column(p) + j == wanted) found = at(p, j);
      }
    }
    return found;
  }

  // What prefetch() kept in the cache; each line by the thread that has its beginning.
  __device__ __forceinline__ void release(const Row& row) const { (release_array<K>(row), ...); }

  // Whether a column is one of these, which neighbours in a row share in turns.
  __device__ __forceinline__ bool has(Column column) const {
    const auto place = Unsigned(column - first), turn = Unsigned(stride);
    return place < BATCH * turn && place % turn < WIDTH && holds(column);
  }

  // Makes the element in a column -inf, in the first operand: in registers, or in shared memory,
  // which takes as long for many elements as for few.
  __device__ __forceinline__ void hide(Column hidden) {
#pragma unroll
    for (int p = 0; p < BATCH; ++p) {
#pragma unroll
      for (int j = 0; j < WIDTH; ++j) {
        if (column(p) + j == hidden) get<FIRST>(vectors[p]).at[j] = hidden_element();
      }
    }
  }
  template <class Team>
  __device__ __forceinline__ void hide(Column hidden, unsigned char* shared, int slot) const {
    if (!has(hidden)) return;
    const auto place = Unsigned(hidden - first), turn = Unsigned(stride);
    (hide_in_array<K, Team>(shared, slot + int(place / turn), int(place % turn)), ...);
  }

  // The largest number of the first operand, and `so_far`. Half precision is compared two by two.
  __device__ __forceinline__ T largest(T so_far) const {
    using Element = typename Row::template Element<FIRST>;
    if constexpr (!GUARDED && sizeof(Element) == 2 && WIDTH % 2 == 0) {
      const auto pair_of = [&](int p, int j) {
        const auto& vector = get<FIRST>(vectors[p]);
        return pair(vector.at[j], vector.at[j + 1]);
      };
      auto both = pair_of(0, 0);
#pragma unroll
      for (int p = 0; p < BATCH; ++p) {
#pragma unroll
        for (int j = 0; j < WIDTH; j += 2) both = __hmax2(both, pair_of(p, j));
      }
      return larger(so_far, larger(convert<T>(both.x), convert<T>(both.y)));
    } else {
      each([&](int, Column, const auto& x) { so_far = larger(so_far, plain(get<0>(x))); });
      return so_far;
    }
  }

  // f(place, column, x) for each element, get<k>(x) being its number in operand k.
  template <class F>
  __device__ __forceinline__ void each(F f) const {
#pragma unroll
    for (int p = 0; p < BATCH; ++p) each_of(p, f);
  }
  // The same for the elements of a vector.
  template <class F>
  __device__ __forceinline__ void each_of(int p, F f) const {
    const Tuple<Vector<Repeat<T, K>, WIDTH>...> wide{{widened<K>(p)}...};
    const Range<Loss::OPERANDS + int(Loss::WEIGHTED)> all;
    const Column first = column(p);
    if (is_full(first)) {
#pragma unroll
      for (int j = 0; j < WIDTH; ++j) f(j, first + j, numbers(all, wide, j));
    } else {
#pragma unroll
      for (int j = 0; j < WIDTH; ++j) {
        if (holds(first + j)) f(j, first + j, numbers(all, wide, j));
      }
    }
  }

 private:
  template <int S>
  __device__ __forceinline__ void load_array(const Row& row, int p) {
    if constexpr (Row::template is_read<S>()) load_vector_of<S>(row, p, get<S>(vectors[p]));
  }
  template <int S>
  __device__ __forceinline__ void load_vector_of(
      const Row& row, int p, Vector<typename Row::template Element<S>, WIDTH>& vector) const {
    using E = typename Row::template Element<S>;
    constexpr bool VECTOR = bool(Row::Rows::VECTORISED >> S & 1u);
    if (VECTOR && is_full(column(p))) {
      vector = load_vector<WIDTH>(static_cast<const E*>(address<S>(row, p)));
    } else {
      load_elements<S>(row, p, vector);
    }
  }

  // f(Constant<BYTES>()) with how far the vectors of array S are aligned.
  template <int S, class F>
  static __device__ __forceinline__ void with_alignment_of(int shift, F f) {
    using Vectors = Vector<typename Row::template Element<S>, WIDTH>;
    constexpr int LIMIT = sizeof(Vectors) < 16 ? sizeof(Vectors) : 16;
    with_alignment<sizeof(typename Row::template Element<S>), LIMIT>(shift, f);
  }
  template <int S>
  __device__ __forceinline__ void load_shifted_array(const Row& row, int shift) {
    if constexpr (!Row::template is_read<S>()) {
      return;
    } else if constexpr (GUARDED || !bool(Row::Rows::VECTORISED >> S & 1u)) {
#pragma unroll
      for (int p = 0; p < BATCH; ++p) load_elements<S>(row, p, get<S>(vectors[p]));
    } else {
      with_alignment_of<S>(shift, [&](auto bytes) {
#pragma unroll
        for (int p = 0; p < BATCH; ++p) {
          // A word may reach beyond an array.
          if (decltype(bytes)::value >= 4 || (column(p) > 0 && column(p) + WIDTH < row.columns)) {
            using E = typename Row::template Element<S>;
            const E* const from = address<S>(row, p);
            get<S>(vectors[p]) = ::load_shifted<decltype(bytes)::value, WIDTH>(from);
          } else {
            load_elements<S>(row, p, get<S>(vectors[p]));
          }
        }
      });
    }
  }
  template <int S>
  __device__ __forceinline__ void load_elements(
      const Row& row, int p, Vector<typename Row::template Element<S>, WIDTH>& vector) const {
    const Column at = column(p);
    auto* const from = address<S>(row, p);
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
      if (holds(at + j)) {
        vector.at[j] = from[j * row.layout.template step<S>()];
      } else {
        vector.at[j] = convert<typename Row::template Element<S>>(T(0));
      }
    }
  }

  template <int S>
  using Stored = Vector<typename Row::template Element<S>, WIDTH>;
  template <int S, class Team>
  static __device__ __forceinline__ Stored<S>* take_places(unsigned char*& shared, int slot) {
    Stored<S>* const places = reinterpret_cast<Stored<S>*>(shared);
    shared += sizeof(Stored<S>) * Team::SLOTS * Team::PLACES;
    return places + slot * Team::PLACES + Team::place();
  }
  template <int S, class Team, bool KEPT>
  __device__ __forceinline__ void prefetch_array(const Row& row, unsigned char*& shared, int slot,
                                                 int beside) const {
    if constexpr (Row::template is_read<S>()) {
      Stored<S>* const places = take_places<S, Team>(shared, slot) + beside;
#if ASYNCHRONOUS_COPIES
      constexpr bool VECTOR = bool(Row::Rows::VECTORISED >> S & 1u) && sizeof(Stored<S>) >= 4;
      if constexpr (VECTOR && !GUARDED) {
        copy_vectors<S, Team, KEPT>(Range<BATCH>(), address_of_thread(places),
                                    row.template address<S>(first));
        return;
      }
#endif
#pragma unroll
      for (int p = 0; p < BATCH; ++p) {
#if ASYNCHRONOUS_COPIES
        // One number of four or eight bytes is aligned in any case.
        constexpr bool COPIED = VECTOR || (WIDTH == 1 && sizeof(Stored<S>) >= 4);
        const auto* const from = address<S>(row, p);
        if (COPIED && (is_full(column(p)) || (VECTOR && row.template may_read<S>(from, WIDTH)))) {
          copy_later<sizeof(Stored<S>), 0, 0, KEPT>(address_of_thread(places + p * Team::PLACES),
                                                    from);
          continue;
        }
#endif
        Stored<S> vector;
        load_vector_of<S>(row, p, vector);
        places[p * Team::PLACES] = vector;
      }
    }
  }
#if ASYNCHRONOUS_COPIES
  template <int S, class Team, bool KEPT, int... P>
  static __device__ __forceinline__ void copy_vectors(Indices<P...>, unsigned to,
                                                      const void* from) {
    constexpr int BYTES = sizeof(Stored<S>);
    (copy_later<BYTES, P * Team::PLACES * BYTES, P * Team::LANES * BYTES, KEPT>(to, from), ...);
  }
#endif
  template <int S>
  __device__ __forceinline__ void release_array(const Row& row) const {
#if ASYNCHRONOUS_COPIES
    if constexpr (Row::template is_read<S>() && sizeof(Stored<S>) >= 16 &&
                  bool(Row::Rows::VECTORISED >> S & 1u)) {
#pragma unroll
      for (int p = 0; p < BATCH; ++p) {
        const auto* const from = address<S>(row, p);
        const auto behind = reinterpret_cast<unsigned long long>(from) % LINE;
        if (behind < sizeof(Stored<S>) && is_full(column(p))) {
          release_line(reinterpret_cast<const char*>(from) - behind);
        }
      }
    }
#endif
  }
  template <int S, class Team>
  __device__ __forceinline__ void fetch_array(unsigned char*& shared, int slot) {
    if constexpr (Row::template is_read<S>()) {
      const Stored<S>* const places = take_places<S, Team>(shared, slot);
#pragma unroll
      for (int p = 0; p < BATCH; ++p) {
        get<S>(vectors[p]) = places[p * Team::PLACES];
      }
    }
  }
  template <int S, class Team>
  __device__ __forceinline__ void fetch_shifted_array(unsigned char*& shared, int slot, int shift) {
    if constexpr (Row::template is_read<S>()) {
      using E = typename Row::template Element<S>;
      const E* const from = take_places<S, Team>(shared, slot)->at + shift;
      if constexpr (GUARDED) {
        static_assert(BATCH == 1, "vectors at the ends of rows come one by one");
#pragma unroll
        for (int j = 0; j < WIDTH; ++j) {
          get<S>(vectors[0]).at[j] = holds(first + j) ? from[j] : convert<E>(T(0));
        }
      } else {
        with_alignment_of<S>(shift, [&](auto bytes) {
#pragma unroll
          for (int p = 0; p < BATCH; ++p) {
            get<S>(vectors[p]) =
                ::load_shifted<decltype(bytes)::value, WIDTH>(from + p * Team::PLACES * WIDTH);
          }
        });
      }
    }
  }

  template <int S, class Team>
  __device__ __forceinline__ void hide_in_array(unsigned char*& shared, int slot, int place) const {
    if constexpr (Row::template is_read<S>()) {
      Stored<S>* const vector = take_places<S, Team>(shared, slot);
      if constexpr (S == FIRST) vector->at[place] = hidden_element();
    }
  }
  static __device__ __forceinline__ auto hidden_element() {
    return convert<typename Row::template Element<FIRST>>(T(-INFINITY));
  }

  template <int S>
  __device__ __forceinline__ Vector<T, WIDTH> widened(int p) const {
    if constexpr (Row::template is_read<S>()) {
      return widen<T>(get<S>(vectors[p]));
    } else {
      return {};
    }
  }
  template <int I, class Wide>
  static __device__ __forceinline__ N number(const Wide& wide, int j) {
    const Real<T> value(get<FIRST + I>(wide).at[j]);
    if constexpr (bool(TANGENTS >> I & 1u)) {
      return N(value, Real<T>(get<Row::template TANGENT<I>>(wide).at[j]));
    } else {
      return N(value);
    }
  }
  template <int... I, class Wide>
  static __device__ __forceinline__ auto numbers(Indices<I...>, const Wide& wide, int j) {
    return Tuple<Repeat<N, I>...>{{number<I>(wide, j)}...};
  }
};
