// The work of one thread on rows that it shares with its neighbours: what of a row is its own, what
// that accumulates, the gradients of its elements. When each is done is for kernels to say.
#pragma once
#include "kernels/row_batch.cuh"
#include "kernels/row_epilogue.cuh"
#include "kernels/row_states.cuh"

// LANES threads, of a block of THREADS, work on a row, each on SLOTS vectors of WIDTH elements of a
// share of it (or on any number, of a split), BATCH of them at a time. SHIFTS: rows may begin
// anywhere inside an aligned vector. RANKS: the shares of a row, one for each block of a CLUSTER,
// else all of one block. RESIDENT: how many blocks a multiprocessor is to hold. EXACT: all batches
// are full. HELD: the one batch that a thread has of a row waits in registers, from so many rows
// ahead, if not 0.
template <int THREADS_, int LANES_, int WIDTH_, int BATCH_, int SLOTS_, int RANKS_, int RESIDENT_,
          bool CLUSTER_, bool SHIFTS_, bool EXACT_, int HELD_>
struct Team {
  static constexpr int THREADS = THREADS_, LANES = LANES_, WIDTH = WIDTH_, BATCH = BATCH_;
  static constexpr int RANKS = RANKS_, RESIDENT = RESIDENT_, ROWS = THREADS / LANES;
  static constexpr int SLOTS = SLOTS_, GROUPS = (SLOTS + BATCH - 1) / BATCH;
  static constexpr int BLOCKS = CLUSTER_ ? RANKS : 1;  // of a cluster
  static constexpr bool CLUSTER = CLUSTER_, SHIFTS = SHIFTS_, EXACT = EXACT_;
  static constexpr bool HELD = HELD_ != 0;
  static constexpr int ROWS_AHEAD = HELD ? HELD_ : 1;
  static_assert(ROWS_AHEAD <= 2, "there are no registers for more");
  static_assert(!SHIFTS || (!EXACT && !HELD), "vectors at the ends of rows are not full");
  // Neighbours in a row and in a warp read from the places of one another where rows may begin
  // anywhere, the last of them from one more.
  static constexpr int NEIGHBOURS = LANES < 32 ? LANES : 32, ENDS = THREADS / NEIGHBOURS;
  static constexpr int PLACES = THREADS + (!SHIFTS ? 0 : ENDS < 4 ? 4 : ENDS);  // of a slot

  // Unsigned: of signed numbers the addresses took two registers more.
  static __device__ __forceinline__ unsigned place() {
    return threadIdx.x + (SHIFTS ? threadIdx.x / NEIGHBOURS : 0u);
  }
  static __device__ __forceinline__ int lane() { return int(threadIdx.x) % LANES; }
  static __device__ __forceinline__ int row() { return int(threadIdx.x) / LANES; }
};

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
  using Single = Batch<Row, Loss, TANGENTS, 1, Team::WIDTH, false>;
  using AtTheEnd = Batch<Row, Loss, TANGENTS, 1, Team::WIDTH, true>;
  static constexpr int WIDTH = Team::WIDTH;
  static constexpr Column STRIDE = Team::LANES * WIDTH;

  const Loss& loss;
  const Layout& layout;
  const Pointers& pointers;
  const long long n, columns;
  unsigned char* const shared;
  mutable Select<Team::HELD, Elements, Nothing> own, coming[Team::ROWS_AHEAD];

  // The share of a rank, or a split, in a row: the columns from begin up to end. Without a row it
  // is empty.
  struct Share {
    Row row;
    Column begin, end;

    __device__ __forceinline__ int shift() const {
      return Team::SHIFTS ? row.template shift<WIDTH>() : 0;
    }
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
    const long long begin = rank * size;
    const long long end = present ? min(columns, begin + size) : begin;
    return {row, Column(begin), Column(end)};
  }
  // As many columns from where the first vector that has one of a share is aligned: what is moved,
  // and whose gradients are written.
  __device__ __forceinline__ Share aligned(const Share& share, long long slots) const {
    if constexpr (!Team::SHIFTS) return share;
    const long long begin = share.begin - Column(share.shift());
    const long long end = begin + slots * STRIDE;
    return {share.row, Column(begin),
            share.begin < share.end ? Column(min(columns, end)) : Column(begin)};
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
          if constexpr (Team::SHIFTS) {
            elements.load_shifted(share.row, share.shift());
          } else {
            elements.load(share.row);
          }
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
        if constexpr (Team::SHIFTS) __syncwarp();
        bool replaced = false;
        batch(share, group * Team::BATCH, [&](auto elements, int slot) {
          if (context.status != ACTIVE) return;
          constexpr bool FEW = Team::BATCH * WIDTH <= 8;
          if constexpr (Team::SHIFTS) {
            elements.template fetch_shifted<Team>(shared, slot, share.shift());
            if constexpr (Loss::HIDES && !FEW) {
              if (elements.has(context.column)) elements.hide(context.column);
            }
          } else {
            if constexpr (Loss::HIDES && !FEW) {
              elements.template hide<Team>(context.column, shared, slot);
            }
            elements.template fetch<Team>(shared, slot);
          }
          if constexpr (REPLACE && Team::EXACT) {
            prefetch(next, group);
            replaced = true;
          }
          if constexpr (Loss::HIDES && FEW) elements.hide(context.column);
          loss.template add<Team::EXACT && Team::GROUPS == 1>(state, share.row, context, elements);
        });
        if constexpr (REPLACE && Team::SHIFTS) __syncwarp();
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
      batch(aligned(share, Team::SLOTS), group * Team::BATCH, [&](auto elements, int slot) {
        elements.template prefetch<Team, (WANTED != 0)>(share.row, shared, slot);
      });
      if constexpr (Team::SHIFTS) prefetch_beside(share, group);
      end_group_of_copies();
    }
  }
  __device__ __forceinline__ void prefetch(const Share& share) const {
    for (int group = 0; group < Team::GROUPS; ++group) prefetch(share, group);
  }

  // Writes the gradients of a batch of an aligned share; its elements are in shared memory where
  // SHARED.
  template <bool SHARED, class Context>
  __device__ __forceinline__ void differentiate(const Share& share, long long first_slot,
                                                const Context& context, const Finished& done,
                                                bool releases = false) const {
    batch(share, first_slot, [&](auto elements, long long slot) {
      differentiate_elements<SHARED>(share.row, elements, slot, context, done, releases);
    });
  }
  // Writes the gradients of what a row that is not aligned has behind the last of these: fewer
  // elements than a vector.
  template <class Context>
  __device__ __forceinline__ void differentiate_rest(const Share& share, long long slots,
                                                     const Context& context,
                                                     const Finished& done) const {
    if constexpr (Team::SHIFTS) {
      const Share before = aligned(share, slots);
      if (share.begin < share.end && share.end == Column(columns) && before.end < share.end) {
        if (Team::lane() == 0) {
          const AtTheEnd elements{before.end, STRIDE, share.end};
          differentiate_elements<false>(share.row, elements, 0, context, done, false);
        }
      }
    }
  }

 private:
  // The places beside those of neighbours in a row, a thread for each slot.
  __device__ __forceinline__ void prefetch_beside(const Share& share, int group) const {
    constexpr int NEIGHBOURS = Team::NEIGHBOURS;
    const int lane = Team::lane(), among = lane % NEIGHBOURS;
    if (share.begin >= share.end) return;
    const Column begin = share.begin - Column(share.shift());
#pragma unroll
    for (int first = 0; first < Team::BATCH; first += NEIGHBOURS) {
      const int p = first + among, slot = group * Team::BATCH + p;
      const Column column =
          begin + (Column(slot) * Team::LANES + (lane - among) + NEIGHBOURS) * WIDTH;
      if (p >= Team::BATCH || slot >= Team::SLOTS) continue;
      if (column + WIDTH <= Column(columns)) {
        Single{column, STRIDE, Column(columns)}.template prefetch<Team, (WANTED != 0)>(
            share.row, shared, slot, NEIGHBOURS - among);
      } else if (column < Column(columns)) {
        AtTheEnd{column, STRIDE, Column(columns)}.template prefetch<Team, (WANTED != 0)>(
            share.row, shared, slot, NEIGHBOURS - among);
      }
    }
  }

  template <bool SHARED, class E, class Context>
  __device__ __forceinline__ void differentiate_elements(const Row& row, E elements, long long slot,
                                                         const Context& context,
                                                         const Finished& done,
                                                         bool releases) const {
    if (SHARED && releases) elements.release(row);
    if (context.status != ACTIVE) {
      const T number = without_loss<T>(context.status);
      write(Range<Loss::OPERANDS>(), row, elements,
            [&](auto, Column, const auto&) { return number; });
      return;
    }
    if constexpr (Loss::READS != 0) {
      if constexpr (SHARED && Team::HELD) {
        elements = own;
      } else if constexpr (SHARED) {
        elements.template fetch<Team>(shared, int(slot));
      } else {
        elements.load(row);
      }
    }
    write(Range<Loss::OPERANDS>(), row, elements, [&](auto which, Column column, const auto& x) {
      return derivative<(TANGENTS != 0)>(
          loss.template gradient<decltype(which)::value, N>(row, context, done, column, x));
    });
    if constexpr (Loss::SINGLE && bool(WANTED & 1u)) {
      if (elements.has(context.column)) {
        auto* const element = row.template address<Row::INPUTS>(context.column);
        *element = convert<typename Row::template Element<Row::INPUTS>>(
            derivative<(TANGENTS != 0)>(loss.gradient_of_target(context, done)));
      }
    }
  }

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
