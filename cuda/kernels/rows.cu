// All passes of all losses of rows: the loss of each row, its sum or mean, the gradients of the
// elements, or loss and gradients together.
//
// A row is read once. Its elements come to shared memory, or those of short rows to registers,
// while the row before is worked on; from there the row accumulates what its loss needs, and, where
// gradients are wanted, these are computed once that is complete. Bytes of device memory an
// element, with operands and gradients of s bytes: the loss of one operand s, with its gradient 2s;
// from a row too long for shared memory 3s.
//
// Who works on a row: LANES threads of a block, which holds ROWS rows at a time; a whole block; a
// cluster of blocks, each with a share of the row (its rank) in its shared memory; or, for few rows
// of many elements, blocks all over the device, in two launches: PARTIAL leaves what each share
// accumulates in device memory, FINISH combines that.
//
// Order of summation: batches of a thread in order, then threads in pairs, then ranks in order.
// Ranks, lanes and batches follow from the shape and the dtypes, whether or not there are gradients
// and whoever computes a rank, so that the bits are always the same.
#include "kernels/row.cuh"
#include "memory/async_copy.cuh"

// Clusters need PTX. Without them each block computes all ranks of a row itself, with the same
// bits.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define CLUSTERS 1
#else
#define CLUSTERS 0
#endif

enum Phase { WHOLE, PARTIAL, FINISH };

constexpr int LINE = 128;  // bytes of a line of the cache

// LANES threads, of a block of THREADS, work on a row, each on SLOTS vectors of WIDTH elements of a
// share of it (or any number, in phases PARTIAL and FINISH), BATCH of them at a time. SHIFT: rows
// may begin anywhere inside so many aligned elements, a vector or a line of device memory, if not
// 0. RANKS: the shares of a row in phase WHOLE, one for each block of a CLUSTER, else all of one
// block. RESIDENT: how many blocks a multiprocessor is to hold. EXACT: all batches are full. HELD:
// the one batch that a thread has of a row waits in registers, from so many rows ahead, if not 0.
template <int THREADS_, int LANES_, int WIDTH_, int BATCH_, int SLOTS_, int RANKS_, int RESIDENT_,
          bool CLUSTER_, int SHIFT_, bool EXACT_, int HELD_>
struct Team {
  static constexpr int THREADS = THREADS_, LANES = LANES_, WIDTH = WIDTH_, BATCH = BATCH_;
  static constexpr int RANKS = RANKS_, RESIDENT = RESIDENT_, ROWS = THREADS / LANES;
  static constexpr int SLOTS = SLOTS_, GROUPS = (SLOTS + BATCH - 1) / BATCH;
  static constexpr int BLOCKS = CLUSTER_ ? RANKS : 1;  // of a cluster
  static constexpr int SHIFT = SHIFT_;
  static constexpr bool CLUSTER = CLUSTER_, EXACT = EXACT_;
  static constexpr bool HELD = HELD_ != 0;
  static constexpr int ROWS_AHEAD = HELD ? HELD_ : 1;
  static_assert(ROWS_AHEAD <= 2, "there are no registers for more");

  static __device__ __forceinline__ int lane() { return int(threadIdx.x) % LANES; }
  static __device__ __forceinline__ int row() { return int(threadIdx.x) / LANES; }
};

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

  // To shared memory, without waiting, and from it. `slot` is that of the first vector; each array
  // has a place for each slot and thread.
  template <class Team, bool KEPT>
  __device__ __forceinline__ void prefetch(const Row& row, unsigned char* shared, int slot) const {
    (prefetch_array<K, Team, KEPT>(row, shared, slot), ...);
  }
  template <class Team>
  __device__ __forceinline__ void fetch(unsigned char* shared, int slot) {
    (fetch_array<K, Team>(shared, slot), ...);
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
    const Column at = column(p);
    auto* const from = address<S>(row, p);
    using E = typename Row::template Element<S>;
    constexpr bool VECTOR = bool(Row::Rows::VECTORISED >> S & 1u);
    if (VECTOR && is_full(at)) {
      vector = load_vector<WIDTH>(static_cast<const E*>(from));
    } else {
#pragma unroll
      for (int j = 0; j < WIDTH; ++j) {
        if (holds(at + j)) {
          vector.at[j] = from[j * row.layout.template step<S>()];
        } else {
          vector.at[j] = convert<E>(T(0));
        }
      }
    }
  }

  template <int S>
  using Stored = Vector<typename Row::template Element<S>, WIDTH>;
  template <int S, class Team>
  static __device__ __forceinline__ Stored<S>* take_places(unsigned char*& shared, int slot) {
    Stored<S>* const places = reinterpret_cast<Stored<S>*>(shared);
    shared += sizeof(Stored<S>) * Team::SLOTS * Team::THREADS;
    return places + slot * Team::THREADS + threadIdx.x;
  }
  template <int S, class Team, bool KEPT>
  __device__ __forceinline__ void prefetch_array(const Row& row, unsigned char*& shared,
                                                 int slot) const {
    if constexpr (Row::template is_read<S>()) {
      Stored<S>* const places = take_places<S, Team>(shared, slot);
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
        if ((VECTOR || (WIDTH == 1 && sizeof(Stored<S>) >= 4)) && is_full(column(p))) {
          copy_later<sizeof(Stored<S>), 0, 0, KEPT>(address_of_thread(places + p * Team::THREADS),
                                                    address<S>(row, p));
          continue;
        }
#endif
        Stored<S> vector;
        load_vector_of<S>(row, p, vector);
        places[p * Team::THREADS] = vector;
      }
    }
  }
#if ASYNCHRONOUS_COPIES
  template <int S, class Team, bool KEPT, int... P>
  static __device__ __forceinline__ void copy_vectors(Indices<P...>, unsigned to,
                                                      const void* from) {
    constexpr int BYTES = sizeof(Stored<S>);
    (copy_later<BYTES, P * Team::THREADS * BYTES, P * Team::LANES * BYTES, KEPT>(to, from), ...);
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
        get<S>(vectors[p]) = places[p * Team::THREADS];
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

#if CLUSTERS
__device__ __forceinline__ void cluster_barrier() {
  asm volatile(
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;\n" ::
          : "memory");
}

// What has come to a block from the blocks of its cluster, in turns at the first and at the second
// place. A block sends a second time to a place only after it has got what all others sent to the
// first place next, hence had read the one before.
struct Arrivals {
  unsigned long long barriers[2];

  static __device__ __forceinline__ Arrivals& of_block() {
    __shared__ Arrivals arrivals;
    return arrivals;
  }
  __device__ __forceinline__ unsigned address(unsigned turn) const {
    return unsigned(__cvta_generic_to_shared(&barriers[turn % 2]));
  }
  // For all blocks of the cluster to begin with.
  __device__ __forceinline__ void begin() const {
    if (threadIdx.x < 2) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(address(threadIdx.x)) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_barrier();
  }
  // One thread says how many bytes are to come; all wait for them.
  __device__ __forceinline__ void expect(unsigned turn, unsigned bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address(turn)),
                 "r"(bytes)
                 : "memory");
  }
  __device__ __forceinline__ void wait(unsigned turn) const {
    unsigned done = 0;
    while (done == 0) {
      asm volatile(
          "{\n"
          ".reg .pred p;\n"
          "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n"
          "}"
          : "=r"(done)
          : "r"(address(turn)), "r"(turn / 2 % 2)
          : "memory");
    }
  }
};

__device__ __forceinline__ unsigned address_in_cluster(unsigned address, unsigned rank) {
  asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(rank));
  return address;
}

// The states of the blocks of a cluster together. Each block sends its own to all, without waiting
// for anything else that it has written.
template <class Team, class State>
__device__ __forceinline__ State cluster_combined(const State& state, unsigned turn) {
  constexpr int WORDS = (sizeof(State) + 3) / 4;
  union Bits {
    State state;
    unsigned word[WORDS];
  };
  __shared__ unsigned parts[2][Team::RANKS][WORDS];
  const Arrivals& arrivals = Arrivals::of_block();
  if (threadIdx.x == 0) arrivals.expect(turn, sizeof(parts[0]));
  Bits bits{state};
  if (threadIdx.x < Team::RANKS) {
    const unsigned* const own = parts[turn % 2][blockIdx.x % Team::RANKS];
    const unsigned place = address_in_cluster(unsigned(__cvta_generic_to_shared(own)), threadIdx.x);
    const unsigned barrier = address_in_cluster(arrivals.address(turn), threadIdx.x);
#pragma unroll
    for (int w = 0; w < WORDS; ++w) {
      asm volatile(
          "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
              place + 4 * w),
          "r"(bits.word[w]), "r"(barrier)
          : "memory");
    }
  }
  arrivals.wait(turn);
  State all;
  for (int r = 0; r < Team::RANKS; ++r) {
#pragma unroll
    for (int w = 0; w < WORDS; ++w) bits.word[w] = parts[turn % 2][r][w];
    all = r == 0 ? bits.state : combine(all, bits.state);
  }
  return all;
}
#endif

template <class T, class Loss, class Layout, class Team, unsigned WANTED, unsigned TANGENTS,
          bool VJP, class Pointers>
struct RowWorker {
  using Row = RowOf<T, Loss, Layout, TANGENTS, VJP, Pointers>;
  using N = typename Row::N;
  using Column = typename Row::Column;
  using State = typename Loss::template State<N>;
  using Settled = decltype(combined<Team>(State()));
  using Finished = typename Loss::template Finished<N>;
  using Elements = Batch<Row, Loss, TANGENTS, Team::BATCH, Team::WIDTH, false>;
  using AtTheEnd = Batch<Row, Loss, TANGENTS, 1, Team::WIDTH, true>;
  static constexpr int WIDTH = Team::WIDTH;
  static constexpr Column STRIDE = Team::LANES * WIDTH;

  const Loss& loss;
  const Layout& layout;
  const Pointers& pointers;
  const long long n, columns;
  unsigned char* const shared;
  mutable Select<Team::HELD, Elements, Nothing> own, coming[Team::ROWS_AHEAD];

  // The share of a rank in a row: the columns from begin (or 0) up to end. Without a row it is
  // empty.
  struct Share {
    Row row;
    Column begin, end;
  };
  __device__ __forceinline__ Row row_at(typename Layout::Index index) const {
    // After the last row that row, of which nothing is used then.
    const auto there = min(index, typename Layout::Index(n) - 1);
    return {layout, pointers, layout.rows.locate(there), Column(columns)};
  }
  template <class Ahead>
  __device__ __forceinline__ auto begin(const Row& row, bool present, const Ahead& ahead) const {
    decltype(loss.begin(row, ahead)) context;
    context.status = IGNORED;
    if (present) context = loss.begin(row, ahead);
    return context;
  }
  __device__ __forceinline__ Share share_of(const Row& row, bool present, int rank,
                                            long long slots) const {
    const long long size = slots * STRIDE;
    if constexpr (Team::EXACT) {
      const Column begin = Column(rank) * Column(size);
      return {row, begin, present ? begin + Column(size) : begin};
    }
    long long begin = rank * size;
    if constexpr (Team::SHIFT != 0) begin -= row.template shift<Team::SHIFT>();
    const long long end = present ? min(columns, begin + size) : begin;
    return {row, Column(begin), Column(end)};
  }

  // f(elements, slot) for a batch of vectors of this thread; where a row begins or ends in it,
  // vector by vector.
  template <class F>
  __device__ __forceinline__ void batch(const Share& share, long long slot, F f) const {
    const Column lane = Team::lane();
    if constexpr (Team::EXACT) {
      const Column first = share.begin + (Column(slot) * Team::LANES + lane) * WIDTH;
      if (share.begin < share.end) f(Elements{first, STRIDE, share.end}, slot);
    } else {
      const Column begin = share.begin + Column(slot) * STRIDE;  // the same for all of a row
      if (begin >= share.end) return;
      const Column first = begin + lane * WIDTH;
      if (first >= 0 && share.end - first >= STRIDE * (Team::BATCH - 1) + WIDTH) {
        f(Elements{first, STRIDE, share.end}, slot);
        return;
      }
#pragma unroll 1
      for (int p = 0; p < Team::BATCH && first + p * STRIDE < share.end; ++p) {
        f(AtTheEnd{first + p * STRIDE, STRIDE, share.end}, slot + p);
      }
    }
  }

  // What a share accumulates, from device memory.
  template <class Context>
  __device__ __forceinline__ State accumulate(const Share& share, long long slots,
                                              const Context& context) const {
    State state = State::empty();
    if constexpr (Loss::READS != 0) {
      for (long long slot = 0; slot < slots; slot += Team::BATCH) {
        batch(share, slot, [&](auto elements, long long) {
          elements.load(share.row);
          if (context.status != ACTIVE) return;
          if constexpr (Loss::HIDES) {
            if (elements.has(context.column)) elements.hide(context.column);
          }
          loss.template add<false>(state, share.row, context, elements);
        });
      }
    }
    return state;
  }

  // The same of a share that is on its way, in GROUPS groups of copies to shared memory, or to
  // registers. What is no longer needed there makes room for the next share, if that is to come
  // now: before the arithmetic, but for the code that takes where rows are of any length.
  template <bool REPLACE, class Context>
  __device__ __forceinline__ State accumulate(const Share& share, const Share& next,
                                              Context& context) const {
    State state = State::empty();
    if constexpr (Team::HELD) {
      own = coming[0];
      prefetch(next, 0);
      Elements elements = own;
      if constexpr (Team::LANES == 1) loss.find(context, elements);
      // Of any row: to find out takes longer than to leave it unused.
      if constexpr (Loss::HIDES) elements.hide(context.column);
      loss.template add<true>(state, share.row, context, elements);
    } else if constexpr (Loss::READS != 0) {
      if constexpr (!REPLACE) wait_for_copies<0>();
#pragma unroll 1
      for (int group = 0; group < Team::GROUPS; ++group) {
        if constexpr (REPLACE) wait_for_copies<Team::GROUPS - 1>();
        bool replaced = false;
        batch(share, group * Team::BATCH, [&](auto elements, int slot) {
          if (context.status != ACTIVE) return;
          constexpr bool FEW = Team::BATCH * WIDTH <= 8;
          if constexpr (Loss::HIDES && !FEW) {
            elements.template hide<Team>(context.column, shared, slot);
          }
          elements.template fetch<Team>(shared, slot);
          if constexpr (REPLACE && Team::EXACT) {
            prefetch(next, group);
            replaced = true;
          }
          if constexpr (Loss::HIDES && FEW) elements.hide(context.column);
          loss.template add<Team::EXACT && Team::GROUPS == 1>(state, share.row, context, elements);
        });
        if (REPLACE && !replaced) prefetch(next, group);
      }
    }
    return state;
  }
  __device__ __forceinline__ void prefetch(const Share& share, int group) const {
    if constexpr (Team::HELD) {
      Elements& last = coming[Team::ROWS_AHEAD - 1];
      coming[0] = last;
      last = Elements{Column(Team::LANES > 1 ? Team::lane() : 0) * WIDTH, STRIDE, Column(columns)};
      if (share.begin < share.end) last.load(share.row);
    } else if constexpr (Loss::READS != 0) {
      batch(share, group * Team::BATCH, [&](auto elements, int slot) {
        elements.template prefetch<Team, (WANTED != 0)>(share.row, shared, slot);
      });
      end_group_of_copies();
    }
  }
  __device__ __forceinline__ void prefetch(const Share& share) const {
    for (int group = 0; group < Team::GROUPS; ++group) prefetch(share, group);
  }

  // Writes the gradients of a batch; its elements are in shared memory where SHARED.
  template <bool SHARED, class Context>
  __device__ __forceinline__ void differentiate(const Share& share, long long first_slot,
                                                const Context& context, const Finished& done,
                                                bool releases = false) const {
    batch(share, first_slot, [&](auto elements, long long slot) {
      if (SHARED && releases) elements.release(share.row);
      if (context.status != ACTIVE) {
        const T number = context.status == INVALID ? T(__int_as_float(0x7fffffff)) : T(0);
        write(Range<Loss::OPERANDS>(), share.row, elements,
              [&](auto, Column, const auto&) { return number; });
        return;
      }
      if constexpr (Loss::READS != 0) {
        if constexpr (SHARED && Team::HELD) {
          elements = own;
        } else if constexpr (SHARED) {
          elements.template fetch<Team>(shared, int(slot));
        } else {
          elements.load(share.row);
        }
      }
      write(Range<Loss::OPERANDS>(), share.row, elements,
            [&](auto which, Column column, const auto& x) {
              return derivative<(TANGENTS != 0)>(loss.template gradient<decltype(which)::value, N>(
                  share.row, context, done, column, x));
            });
      if constexpr (Loss::SINGLE && bool(WANTED & 1u)) {
        if (elements.has(context.column)) {
          auto* const element = share.row.template address<Row::INPUTS>(context.column);
          *element = convert<typename Row::template Element<Row::INPUTS>>(
              derivative<(TANGENTS != 0)>(loss.gradient_of_target(context, done)));
        }
      }
    });
  }

 private:
  // Gradients f(operand, column, x).
  template <int... I, class E, class F>
  __device__ __forceinline__ void write(Indices<I...>, const Row& row, const E& elements,
                                        F f) const {
#pragma unroll
    for (int p = 0; p < E::COUNT; ++p) (write_operand<I>(row, elements, p, f), ...);
  }
  template <int I, class E, class F>
  __device__ __forceinline__ void write_operand(const Row& row, const E& elements, int p,
                                                F f) const {
    if constexpr (bool(WANTED >> I & 1u)) {
      constexpr int G = Row::INPUTS + ones_below(WANTED, I);
      using Stored = typename Row::template Element<G>;
      const Column column = elements.column(p);
      Stored* const address = elements.template address<G>(row, p);
      if (bool(Layout::VECTORISED >> G & 1u) && elements.is_full(column)) {
        Vector<Stored, WIDTH> vector;
        elements.each_of(p, [&](int j, Column at, const auto& x) {
          vector.at[j] = convert<Stored>(f(Constant<I>(), at, x));
        });
        store_vector<WIDTH>(address, vector);
      } else {
        elements.each_of(p, [&](int j, Column at, const auto& x) {
          address[j * layout.template step<G>()] = convert<Stored>(f(Constant<I>(), at, x));
        });
      }
    }
  }
};

// What PARTIAL leaves for FINISH: the context of each row, and the state of each of its ranks.
constexpr int LEFT_BYTES = 256;

template <class Left>
__device__ __forceinline__ Left& left(unsigned char* memory, long long index) {
  static_assert(sizeof(Left) <= LEFT_BYTES, "more than there is room for");
  return *reinterpret_cast<Left*>(memory + index * LEFT_BYTES);
}

// VALUES, Result, divisor, denominator, scale, grad_output and guess are as in
// kernels/pointwise.cu, with rows for elements. A VJP has its grad_output among the operands. Any
// mean may have all rows ignored. The work of a block, of the blocks of a cluster, or of one for
// each rank: every so many-th of the groups of rows that a block holds at a time, so that all read
// what lies together. What that sums is a segment; where rows have many ranks, each row is one, as
// clusters take more rows at a time than single blocks do. `ranks` are those of PARTIAL and FINISH;
// `slots` the vectors of one thread in a rank; `memory` what PARTIAL leaves. Who comes after the
// first `kept` ones releases what it keeps in the cache. In phase WHOLE the dynamic shared memory
// holds a share of a row for each row of the block.
template <class T, class Loss, class Layout, class Team, Phase PHASE, Values VALUES,
          unsigned WANTED, unsigned TANGENTS, bool VJP, class Result, class... P>
__global__ void
#if CLUSTERS
__cluster_dims__(Team::BLOCKS, 1, 1)
#endif
    __launch_bounds__(Team::THREADS, Team::RESIDENT)
        rows(Loss loss, double scale, Layout layout, long long n, long long columns,
             long long ranks, long long slots, long long segments, long long kept, double divisor,
             const double* denominator, const Result* grad_output, double* guess, Result* value,
             unsigned* counter, double* partials, unsigned char* memory, P... pointer) {
  // Aligned as lines of device memory are: a copy of one to parts of two takes two requests.
  extern __shared__ __align__(128) unsigned char shared[];
  using Pointers = Tuple<P...>;
  using Work = RowWorker<T, Loss, Layout, Team, WANTED, TANGENTS, VJP, Pointers>;
  using Row = typename Work::Row;
  using N = typename Work::N;
  using State = typename Work::State;
  using Settled = typename Work::Settled;
  using Share = typename Work::Share;
  constexpr bool SUMS = VALUES >= SUM_OF_VALUES && PHASE != PARTIAL;
  constexpr bool GRADIENTS = WANTED != 0;
  const auto given = Factor::of<GRADIENTS>(grad_output, guess);
  if (given.is_done) return;
  if constexpr (VALUES == COUNT) {
    if (Factor::anticipates(guess, n)) {
      if (blockIdx.x == 0 && threadIdx.x == 0) *value = double(n);
      return;
    }
  }
  [[maybe_unused]] T factor = T(given.value);
  // Whether a share stays in shared memory until the row is done: its gradients may be wanted, and
  // it is the only one of this block in a row.
  constexpr bool STAYS =
      PHASE == WHOLE && (Team::CLUSTER || (GRADIENTS && Team::RANKS == 1 && !Team::HELD));
  constexpr bool SUMS_EACH = SUMS && Team::RANKS > 2;

  const Pointers pointers{{pointer}...};
  const Work work{loss, layout, pointers, n, columns, shared};
  const int blocks = PHASE == WHOLE ? Team::BLOCKS : PHASE == PARTIAL || GRADIENTS ? ranks : 1;
  const int rank = int(blockIdx.x % blocks);
  // The rows are at most a quarter of what an Index counts.
  using Index = typename Layout::Index;
  const Index worker = blockIdx.x / blocks, step = Index(gridDim.x / blocks) * Team::ROWS;
  const Index end = Index(n);
#if CLUSTERS
  [[maybe_unused]] unsigned turn = 0;
  if constexpr (Team::CLUSTER) Arrivals::of_block().begin();
#endif

  // What is known of a row ahead of its elements is read two rows before them, what that leads to
  // one row before.
  const Index first = worker * Team::ROWS + Team::row();
  auto next_ahead = loss.ahead(work.row_at(first + step));
  using Context = decltype(work.begin(work.row_at(first), true, next_ahead));
  Context context;
  if constexpr (PHASE != FINISH) {
    const Row row = work.row_at(first);
    const auto ahead = loss.ahead(row);
    if constexpr (PHASE == WHOLE) {
      work.prefetch(work.share_of(row, first < end, rank, Team::SLOTS));
    }
    if constexpr (PHASE == WHOLE && Team::ROWS_AHEAD == 2) {
      const Row second = work.row_at(first + step);
      work.prefetch(work.share_of(second, first + step < end, rank, Team::SLOTS));
    }
    context = work.begin(row, first < end, ahead);
  }
  if (denominator != nullptr) divisor = *denominator;
  const Scaling<Layout::ARRAYS, Pointers> scaling{scale, pointers};
  const Reciprocal<T> reciprocal(denominator_of_derivatives<true>(divisor), 1.0, scaling.value());
  const auto reduction = reduction_of_rows<VALUES, Team::THREADS, TANGENTS, Loss>(
      given, value, counter, partials, segments, divisor, scaling);
  Sum<T> sum = Sum<T>::zero(), counted = Sum<T>::zero();
  [[maybe_unused]] Index segment = worker;
  unsigned before = 0;
  [[maybe_unused]] const auto hand_over_sums = [&] {
    if (rank != 0) return;
    if constexpr (Team::ROWS > 1) {
      reduction.add_totals(segment, sum, counted);
    } else {
      reduction.template add<true>(segment, sum, counted);
    }
    before = reduction.arrive_in_team(segment);
    sum = counted = Sum<T>::zero();
  };
#pragma unroll(Team::HELD ? 2 : 1)
  for (Index group = worker * Team::ROWS; group < end; group += step) {
    const Index index = group + Team::row();
    const bool present = index < end, next_present = index + step < end;
    // Not kept from turn to turn: registers are scarcer than multiplications.
    const Row row = work.row_at(index), next_row = work.row_at(index + step);
    const auto ahead_after = loss.ahead(work.row_at(index + 2 * step));
    Context next_context = context;
    if constexpr (PHASE == FINISH) {
      context = left<Context>(memory, index);  // the elements may be overwritten already
    } else {
      next_context = work.begin(next_row, next_present, next_ahead);
    }

    Settled state;
    if constexpr (PHASE == FINISH) {
      state = combined_in_warp<1>(State::empty());
      for (long long r = threadIdx.x; r < ranks; r += Team::THREADS) {
        state = combine(state, left<Settled>(memory, n + index * ranks + r));
      }
      state = combined<Team>(state);
    } else if constexpr (PHASE == PARTIAL) {
      const Share share = work.share_of(row, present, rank, slots);
      state = combined<Team>(work.accumulate(share, slots, context));
      if (threadIdx.x == 0) {
        left<Settled>(memory, n + index * ranks + rank) = state;
        if (rank == 0) left<Context>(memory, index) = context;
      }
    } else if constexpr (Team::CLUSTER && CLUSTERS) {
#if CLUSTERS
      const Share share = work.share_of(row, present, rank, Team::SLOTS);
      state = combined<Team>(work.template accumulate<false>(share, share, context));
      state = cluster_combined<Team>(state, turn++);
#endif
    } else {
#pragma unroll 1
      for (int r = 0; r < Team::RANKS; ++r) {
        const Share share = work.share_of(row, present, r, Team::SLOTS);
        State part;
        if constexpr (STAYS) {
          part = r == rank ? work.template accumulate<false>(share, share, context)
                           : work.accumulate(share, Team::SLOTS, context);
        } else if constexpr (Team::ROWS_AHEAD == 2) {
          const Index later = index + 2 * step;
          const Share next = work.share_of(work.row_at(later), later < end, 0, Team::SLOTS);
          part = work.template accumulate<true>(share, next, context);
        } else {
          const bool last = r == Team::RANKS - 1;
          const Share next = last ? work.share_of(next_row, next_present, 0, Team::SLOTS)
                                  : work.share_of(row, present, r + 1, Team::SLOTS);
          part = work.template accumulate<true>(share, next, context);
        }
        const Settled of_rank = combined<Team>(part);
        state = r == 0 ? of_rank : combine(state, of_rank);
      }
    }

    typename Work::Finished done;
    T own = T(0), own_denominator = T(0);
    // For the value one warp is enough.
    const bool valued = Team::LANES <= 32 || threadIdx.x < 32;
    const bool finishes = PHASE != PARTIAL && (GRADIENTS || valued);
    if (finishes && (Team::HELD || context.status == ACTIVE)) {
      done = loss.template finish<N>(row, context, state, VALUES != NO_VALUES && valued);
      own = derivative<(TANGENTS != 0)>(done.value);
      own_denominator = done.denominator;
    }
    if (context.status != ACTIVE) {
      const bool invalid = context.status == INVALID;
      own_denominator = T(invalid);
      own = invalid ? T(__int_as_float(0x7fffffff)) : T(0);
    }
    if constexpr (is_denominator<Loss>) own = own_denominator;
    if constexpr (VALUES != NO_VALUES) {
      if (rank == 0 && Team::lane() == 0) {
        if constexpr (VALUES == EACH_VALUE) {
          if (present) value[index] = convert<Result>(own);
        }
        if constexpr (SUMS) sum += own;
        if constexpr (VALUES == MEAN_OF_VALUES) {
          if constexpr (Loss::WEIGHTED) {
            counted += own_denominator;
          } else {
            counted.high += own_denominator;  // a count, without errors
          }
        }
      }
    }
    // Ahead of the last gradients, which take what this waits for.
    if constexpr (SUMS_EACH) {
      // That of the row before has arrived meanwhile.
      if (rank == 0 && segment != group) reduction.finish_in_teams(segment, before);
      segment = group;
      hand_over_sums();
    } else if constexpr (SUMS && GRADIENTS) {
      if (group + step >= end) hand_over_sums();
    }
    if constexpr (GRADIENTS) {
      if constexpr (VJP) factor = row.grad_output();
      if (context.status == ACTIVE) scale_gradients(loss, done, factor, reciprocal);
    }
    if constexpr (STAYS) {
      const Share share = work.share_of(row, present, rank, Team::SLOTS);
      const Share next = work.share_of(next_row, next_present, rank, Team::SLOTS);
#pragma unroll 1
      for (int part = 0; part < Team::GROUPS; ++part) {
        if constexpr (GRADIENTS) {
          work.template differentiate<true>(share, part * Team::BATCH, context, done,
                                            worker >= kept);
        }
        work.prefetch(next, part);
      }
    } else if constexpr (GRADIENTS && Team::HELD) {
      const Share share = work.share_of(row, present, rank, Team::SLOTS);
      work.template differentiate<true>(share, 0, context, done);
    } else if constexpr (GRADIENTS) {
      static_assert(PHASE == FINISH, "gradients of a share that does not stay");
      const Share share = work.share_of(row, present, rank, slots);
      for (long long slot = 0; slot < slots; slot += Team::BATCH) {
        work.template differentiate<false>(share, slot, context, done);
      }
    }
    context = next_context;
    next_ahead = ahead_after;
  }
#if CLUSTERS
  // The others may still send to this block.
  if constexpr (Team::CLUSTER) cluster_barrier();
#endif
  if constexpr (SUMS) {
    if constexpr (!GRADIENTS && !SUMS_EACH) hand_over_sums();
    if (rank == 0) reduction.finish_in_teams(segment, before);
  }
}
