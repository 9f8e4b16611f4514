// The work of one thread on rows that it shares with its neighbours: its part of a row, the state
// that it accumulates, the gradients of its elements. Kernels say when each is done.
#pragma once
#include "kernels/row_batch.cuh"
#include "kernels/row_epilogue.cuh"
#include "kernels/row_states.cuh"

// What cupy_losses/_device/row_team.py chooses.
struct TeamParameters {
  int threads, threads_per_row;  // of a block, and of a row
  int width;                     // the elements of a vector
  int batch;                     // the vectors that a thread takes at a time
  int slots;     // the vectors of a thread in a share of a row; 0: any number, in a split
  int ranks;     // the shares of a row
  int resident;  // how many blocks a multiprocessor is to hold
  bool cluster;  // whether each rank is a block of a cluster, else one block has all of them
  bool shifts;   // whether rows may begin anywhere inside an aligned vector
  bool exact;    // whether all batches are full
  // If not 0, the one batch that a thread has of a row waits in registers, loaded so many rows
  // ahead.
  int rows_ahead;
};

// The threads of a row.
template <TeamParameters GIVEN>
struct Team {
  static constexpr int THREADS = GIVEN.threads, THREADS_PER_ROW = GIVEN.threads_per_row,
                       WIDTH = GIVEN.width, BATCH = GIVEN.batch;
  static constexpr int RANKS = GIVEN.ranks, RESIDENT = GIVEN.resident,
                       ROWS = THREADS / THREADS_PER_ROW;
  static constexpr int SLOTS = GIVEN.slots, GROUPS = (SLOTS + BATCH - 1) / BATCH;
  static constexpr bool CLUSTER = GIVEN.cluster, SHIFTS = GIVEN.shifts, EXACT = GIVEN.exact;
  static constexpr int BLOCKS = CLUSTER ? RANKS : 1;  // of a cluster
  static constexpr bool HELD = GIVEN.rows_ahead != 0;
  static constexpr int ROWS_AHEAD = HELD ? GIVEN.rows_ahead : 1;
  static_assert(ROWS_AHEAD <= 2, "there are no registers for more");
  // The slots of the last batch, where it is not full and most threads have all of it; else 0.
  static constexpr int REST = THREADS_PER_ROW > 32 ? SLOTS % BATCH : 0;
  // The slots whose gradients are written at a time where rows may begin anywhere: few, as slots in
  // which a row begins or ends go one by one.
  static constexpr int WRITTEN = BATCH <= 3 ? BATCH : BATCH < 6 ? 2 : 3;
  static_assert(!SHIFTS || (!EXACT && !HELD), "vectors at the ends of rows are not full");
  static_assert(!HELD || THREADS_PER_ROW <= 32, "a short row");
  // Neighbours, the threads of a row in a warp, have a stretch of its share. A slot of the stretch
  // is a vector of each of them. Where rows may begin anywhere, a stretch is copied in lines of
  // vectors, and takes one line more. Where all begin at vectors, the stretches of a warp begin in
  // different banks of shared memory, so that all its threads read their words at once.
  static constexpr int NEIGHBOURS = THREADS_PER_ROW < 32 ? THREADS_PER_ROW : 32;
  static constexpr int VECTORS_OF_LINE = 8;  // in cupy_losses/_device/row_team.py
  // In vectors: of a stretch whose row may begin anywhere.
  static constexpr int ALIGNMENT = NEIGHBOURS < VECTORS_OF_LINE ? NEIGHBOURS : VECTORS_OF_LINE;
  static constexpr int BETWEEN = SHIFTS                 ? ALIGNMENT
                                 : THREADS_PER_ROW < 32 ? (THREADS_PER_ROW + 3) / 4
                                                        : 0;
  static constexpr int PLACES_OF_STRETCH = SLOTS * NEIGHBOURS + BETWEEN;
  static constexpr int PLACES = THREADS / NEIGHBOURS * PLACES_OF_STRETCH;

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

constexpr int BYTES_AT_ONCE = 128;  // bytes of a row that one thread takes

template <class T, class Loss, class Layout, class Team, unsigned WANTED, unsigned TANGENTS,
          bool VJP, class Pointers>
struct RowWorker {
  using Row = RowOf<T, Loss, Layout, TANGENTS, VJP, Pointers>;
  using N = typename Row::N;
  using Column = typename Row::Column;
  using State = typename Loss::template State<N>;
  using Merged = decltype(merged<Team>(State()));
  using Finished = typename Loss::template Finished<N>;
  static constexpr int WIDTH = Team::WIDTH;
  template <int SLOTS, Presence PRESENT = ALL>
  using Vectors = Batch<Row, Loss, SLOTS, WIDTH, PRESENT>;
  using Elements = Vectors<Team::BATCH>;
  using AtTheEnd = Vectors<1, SOME>;
  // The same elements of neighbours in words: two numbers of half precision, or one.
  static constexpr int HALVES = sizeof(typename Row::template Element<Row::FIRST>) == 2 ? 2 : 1;
  static constexpr int UNIT = HALVES < WIDTH ? HALVES : WIDTH, UNITS = WIDTH / UNIT;
  template <int SLOTS, Presence PRESENT = ALL, int SURE = 0>
  using Words = Batch<Row, Loss, SLOTS * UNITS, UNIT, PRESENT, SURE * UNITS>;
  // The elements that are not there, of a batch that is not full, are hidden, or do not count. All
  // warps of a row wait for the one in which the row ends. So it takes such a batch at once where
  // that costs nothing, else the whole slots of it one by one, and the last one.
  static constexpr Presence PARTLY = Loss::HIDES ? OTHERS_HIDDEN : SOME;
  using WordsAtTheEnd = Words<(Loss::HIDES ? Team::BATCH : 1), PARTLY>;
  static constexpr Column SLOT = Team::NEIGHBOURS * WIDTH;  // the columns of a slot
  // Whether only the last slot of a row is not full, in rows of a warp or a part of it. A thread
  // takes all slots of such a row at once if they are few.
  static constexpr bool PADDED =
      Team::THREADS_PER_ROW <= 32 && Team::RANKS == 1 && !Team::EXACT && !Team::HELD;
  static constexpr bool AT_ONCE =
      PADDED && Team::SLOTS * WIDTH * Elements::NUMBER_BYTES <= BYTES_AT_ONCE;
  template <int SLOTS>
  using Last = Words<SLOTS, PARTLY, SLOTS - 1>;

  const Loss& loss;
  const Layout& layout;
  const Pointers& pointers;
  const long long n, columns;
  unsigned char* const shared;
  mutable Select<Team::HELD, Elements, Nothing> own, coming[Team::ROWS_AHEAD];

  // The columns [begin, end) that neighbours have of the share of a rank, or a split, in a row. It
  // is empty without a row.
  struct Share {
    Row row;
    Column begin, end;
    int shift;  // of the row, behind the beginning of a line
  };
  DEVICE Row row_at(typename Layout::Index index) const {
    return Row::at_index(layout, pointers, index, typename Layout::Index(n), Column(columns));
  }
  DEVICE Share share_of(const Row& row, bool present, int rank, long long slots) const {
    constexpr int STRETCHES = Team::THREADS_PER_ROW / Team::NEIGHBOURS;
    // Columns behind the end of the row do not overflow: a Column has 32 bits only where a row has
    // fewer than 2^30.
    const Column size = Column(slots) * SLOT;
    const Column begin = Column(rank * STRETCHES + Team::stretch_of_row()) * size;
    Column end = begin;
    if (present) end += Team::EXACT ? size : min(size, max(Column(columns) - begin, Column(0)));
    int shift = 0;
    if constexpr (Team::SHIFTS) shift = row.template shift<Team::ALIGNMENT * WIDTH>();
    return {row, begin, end, shift};
  }
  // The share moved back to the start of its cache line, equally long. These columns are copied,
  // and their gradients written.
  DEVICE Share aligned(const Share& share, long long slots) const {
    if constexpr (!Team::SHIFTS) return share;
    const Column begin = share.begin - Column(share.shift);
    const Column end = min(Column(columns), begin + Column(slots) * SLOT);
    return {share.row, begin, share.begin < share.end ? end : begin, 0};
  }

  // f(elements, slot) for a batch of slots: at once if all elements are there, else some at a time.
  // A slot whose elements are all there may be a Whole.
  template <class Full, class Rest, class AtTheEnd, class Whole = AtTheEnd>
  DEVICE void batch(const Share& share, long long slot, auto f) const {
    constexpr Column STRIDE = Team::NEIGHBOURS * Full::LENGTH;
    constexpr int SLOTS = Team::BATCH, REST = Team::REST;
    constexpr int STEP = AtTheEnd::NUMBERS / WIDTH;
    const Column begin = share.begin + Column(slot) * SLOT;  // the same for all neighbours
    const Column first = begin + Column(Team::neighbour()) * Full::LENGTH;
    if constexpr (Team::EXACT) {
      if (share.begin < share.end) f(Full{first, STRIDE, share.end}, slot);
    } else {
      if (begin >= share.end) return;
      if (begin >= 0 && share.end - begin >= SLOT * SLOTS) {
        f(Full{first, STRIDE, share.end}, slot);
        return;
      }
      if constexpr (REST != 0) {
        if (slot == Team::SLOTS - REST && begin >= 0 && share.end - begin >= SLOT * REST) {
          f(Rest{first, STRIDE, share.end}, slot);
          return;
        }
      }
#pragma unroll 1
      for (int s = 0; s < SLOTS && first + s * SLOT < share.end; s += STEP) {
        if constexpr (Whole::ARE_ALL) {
          static_assert(STEP == 1, "a slot at a time");
          if (share.end - begin >= (s + 1) * SLOT) {
            f(Whole{first + s * SLOT, STRIDE, share.end}, slot + s);
            continue;
          }
        }
        f(AtTheEnd{first + s * SLOT, STRIDE, share.end}, slot + s);
      }
    }
  }
  DEVICE void batch_of_words(const Share& share, long long slot, auto f) const {
    constexpr int SLOTS = Team::BATCH;
    if constexpr (PADDED) {
      constexpr int BEFORE = (Team::GROUPS - 1) * SLOTS;
      constexpr Column STRIDE = Team::NEIGHBOURS * UNIT;
      const Column first = Column(slot) * SLOT + Column(Team::neighbour()) * UNIT;
      if (share.begin >= share.end) return;
      if (BEFORE > 0 && slot < BEFORE) {
        f(Words<SLOTS>{first, STRIDE, share.end}, slot);
      } else {
        f(Last<Team::SLOTS - BEFORE>{first, STRIDE, share.end}, slot);
      }
    } else {
      using Whole = Select<Loss::HIDES, WordsAtTheEnd, Words<1>>;
      batch<Words<SLOTS>, Words<Team::REST>, WordsAtTheEnd, Whole>(share, slot, f);
    }
  }
  DEVICE void batch_of_vectors(const Share& share, long long slot, auto f) const {
    batch<Elements, Vectors<Team::REST>, AtTheEnd>(share, slot, f);
  }

  // The state of a share, read from device memory.
  DEVICE State accumulate(const Share& share, long long slots, const auto& context) const {
    State state = State::empty();
    for (long long slot = 0; slot < slots; slot += Team::BATCH) {
      batch_of_words(share, slot, [&](auto elements, long long) {
        elements.load(share.row, share.shift);
        if (context.status != ACTIVE) return;
        if constexpr (Loss::HIDES) {
          if (elements.has(context.column)) elements.hide(context.column);
        }
        loss.template add<false>(state, share.row, context, elements);
      });
    }
    return state;
  }

  // The state of a share that is on its way to registers, or to shared memory in GROUPS groups of
  // copies. With REPLACE, the next share takes its place as soon as it has been read: before the
  // arithmetic where all batches are full, else behind it, which takes less code.
  template <bool REPLACE>
  DEVICE State accumulate(const Share& share, const Share& next, auto& context) const {
    State state = State::empty();
    if constexpr (Team::HELD) {
      own = coming[0];
      prefetch(next, 0);
      Elements elements = own;
      if constexpr (Team::THREADS_PER_ROW == 1) loss.find(context, elements);
      // In ignored rows too: a test would take longer.
      if constexpr (Loss::HIDES) elements.hide(context.column);
      loss.template add<true>(state, share.row, context, elements);
    } else if constexpr (AT_ONCE) {
      wait_for_copies<0>();
      Team::wait_for_neighbours();
      bool aligned = share.shift % UNIT == 0;
      // Rows of one warp that begin at odd places and at even ones would take turns.
      if constexpr (UNIT > 1 && Team::SHIFTS) aligned = __all_sync(0xffffffffu, aligned);
      if (context.status == ACTIVE) {
        using Whole = Last<Team::SLOTS>;
        Whole elements{Column(Team::neighbour()) * UNIT, Team::NEIGHBOURS * UNIT, share.end};
        fetch(elements, share, 0, context, aligned);
        take<true>(state, elements, share, context);
      }
      if constexpr (REPLACE) {
        Team::wait_for_neighbours();
        prefetch(next);
      }
    } else {
      constexpr bool FIRST_BATCH = Team::EXACT && Team::GROUPS == 1;
      if constexpr (!REPLACE) wait_for_copies<0>();
#pragma unroll 1
      for (int group = 0; group < Team::GROUPS; ++group) {
        const int first = group * Team::BATCH;
        if constexpr (REPLACE) wait_for_group(group);
        Team::wait_for_neighbours();
        if constexpr (REPLACE && Team::EXACT) {
          const Column begin = share.begin + Column(first) * SLOT;
          Words<Team::BATCH> elements{begin + Column(Team::neighbour()) * UNIT,
                                      Team::NEIGHBOURS * UNIT, share.end};
          if (context.status == ACTIVE) fetch(elements, share, first, context, true);
          Team::wait_for_neighbours();
          prefetch(next, group);
          if (context.status == ACTIVE) take<FIRST_BATCH>(state, elements, share, context);
        } else {
          batch_of_words(share, first, [&](auto elements, int slot) {
            if (context.status != ACTIVE) return;
            fetch(elements, share, slot, context, share.shift % UNIT == 0);
            take<FIRST_BATCH>(state, elements, share, context);
          });
          if constexpr (REPLACE) {
            Team::wait_for_neighbours();
            prefetch(next, group);
          }
        }
      }
    }
    return state;
  }
  DEVICE void prefetch(const Share& share, int group) const {
    if constexpr (Team::HELD) {
      Elements& last = coming[Team::ROWS_AHEAD - 1];
      coming[0] = last;
      last = Elements{Column(Team::THREADS_PER_ROW > 1 ? Team::thread() : 0) * WIDTH, SLOT,
                      Column(columns)};
      // Behind the last row, too: the loss is given what is in registers.
      last.find_weights(share.row);
      if (share.begin < share.end) last.load(share.row);
    } else {
      prefetch_batch(aligned(share, Team::SLOTS), group * Team::BATCH);
      if (Team::SHIFTS && group == Team::GROUPS - 1) prefetch_end(share);
      end_group_of_copies();
    }
  }
  DEVICE void prefetch(const Share& share) const {
    for (int group = 0; group < Team::GROUPS; ++group) prefetch(share, group);
  }

  // Writes the gradients of a batch of an aligned share. ON_CHIP: its elements are in shared
  // memory, or in registers if they are HELD. Else they are loaded from device memory once more.
  template <bool ON_CHIP>
  DEVICE void differentiate(const Share& share, long long first_slot, const auto& context,
                            const Finished& done, bool releases = false) const {
    const auto write = [&](auto elements, long long slot) {
      differentiate_elements<ON_CHIP>(share.row, elements, slot, context, done, releases);
    };
    if constexpr (!Team::SHIFTS) {
      batch_of_vectors(share, first_slot, write);
    } else {
      constexpr int WRITTEN = Team::WRITTEN;
#pragma unroll 1
      for (int s = 0; s < Team::BATCH;) {
        const Column begin = share.begin + Column(first_slot + s) * SLOT;
        const Column first = begin + Column(Team::neighbour()) * WIDTH;
        if (begin >= share.end) return;
        if (begin >= 0 && s + WRITTEN <= Team::BATCH && share.end - begin >= SLOT * WRITTEN) {
          write(Vectors<WRITTEN>{first, SLOT, share.end}, first_slot + s);
          s += WRITTEN;
        } else {
          if (first < share.end) write(AtTheEnd{first, SLOT, share.end}, first_slot + s);
          s += 1;
        }
      }
    }
  }
  // Writes the gradients of the elements behind the last slot of a row that is not aligned: fewer
  // than a line.
  template <bool ON_CHIP>
  DEVICE void differentiate_rest(const Share& share, long long slots, const auto& context,
                                 const Finished& done) const {
    if constexpr (Team::SHIFTS) {
      const Column begin = aligned(share, slots).begin + Column(slots) * SLOT;
      const Column first = begin + Column(Team::neighbour()) * WIDTH;
      const bool ends = share.begin < share.end && share.end == Column(columns);
      if (ends && Team::neighbour() < Team::ALIGNMENT && first < share.end) {
        const AtTheEnd elements{first, SLOT, share.end};
        differentiate_elements<ON_CHIP>(share.row, elements, slots, context, done, false);
      }
    }
  }

 private:
  // From shared memory to registers, and from there to a state. An element is hidden in shared
  // memory, or in registers where a thread has FEW.
  template <class E>
  static constexpr bool FEW = E::NUMBERS <= 8;
  template <class E>
  DEVICE void fetch(E& elements, const Share& share, int slot, const auto& context,
                    bool aligned) const {
    if constexpr (Loss::HIDES && !FEW<E>) {
      elements.template hide<Team>(context.column, shared, slot, share.shift);
    }
    elements.template fetch<Team>(share.row, shared, slot, share.shift, aligned);
  }
  template <bool FIRST_BATCH, class E>
  DEVICE void take(State& state, E& elements, const Share& share, const auto& context) const {
    if constexpr (Loss::HIDES && FEW<E>) elements.hide(context.column);
    loss.template add<FIRST_BATCH>(state, share.row, context, elements);
  }
  // Waits for the copies that a group reads: where rows may begin anywhere, up to the first line of
  // the next one.
  DEVICE void wait_for_group(int group) const {
    constexpr int BEHIND = Team::GROUPS - 1;
    if constexpr (Team::SHIFTS && BEHIND > 0) {
      if (group < BEHIND) return wait_for_copies<BEHIND - 1>();
    }
    wait_for_copies<BEHIND>();
  }
  DEVICE void prefetch_batch(const Share& share, int slot) const {
    constexpr int REST = Team::REST;
    if constexpr (Team::SHIFTS) {
      if (prefetch_beyond<Elements>(share, slot)) return;
      if constexpr (REST != 0) {
        if (slot == Team::SLOTS - REST && prefetch_beyond<Vectors<REST>>(share, slot)) return;
      }
    }
    batch_of_vectors(share, slot, [&](auto elements, int slot) {
      elements.template prefetch<Team, (WANTED != 0)>(share.row, shared, slot);
    });
  }
  // Copies a batch that begins or ends in another row whole, where that may be read.
  template <class Full>
  DEVICE bool prefetch_beyond(const Share& share, int slot) const {
    const Column begin = share.begin + Column(slot) * SLOT;
    const Full elements{begin + Column(Team::neighbour()) * WIDTH, SLOT, share.end};
    const bool needed = share.end - begin > Column(Full::VECTORS) * SLOT - WIDTH;
    if (share.begin >= share.end || !needed || !elements.may_read(share.row)) return false;
    elements.template prefetch<Team, (WANTED != 0)>(share.row, shared, slot);
    return true;
  }
  // The line in which a stretch ends that does not begin with one.
  DEVICE void prefetch_end(const Share& share) const {
    const Column begin = aligned(share, Team::SLOTS).begin + Team::SLOTS * SLOT;
    const Column first = begin + Column(Team::neighbour()) * WIDTH;
    if (Team::neighbour() < Team::ALIGNMENT && first < share.end) {
      const AtTheEnd elements{first, SLOT, Column(columns)};
      elements.template prefetch<Team, (WANTED != 0)>(share.row, shared, Team::SLOTS);
    }
  }

  template <bool ON_CHIP>
  DEVICE void differentiate_elements(const Row& row, auto elements, long long slot,
                                     const auto& context, const Finished& done,
                                     bool releases) const {
    if (ON_CHIP && releases) elements.release(row);
    // Of rows in registers, neighbouring threads would take both ways of a branch, and write parts
    // of sectors in each: their gradients are selected. Of more elements than FEW the stores would
    // be further apart, which takes longer.
    constexpr bool SELECTS = ON_CHIP && Team::HELD && FEW<decltype(elements)>;
    const bool active = context.status == ACTIVE;
    const T number = without_loss<T>(context.status);
    if (!SELECTS && !active) {
      elements.find_weights(row);  // which nothing reads: write() names all numbers of an element
      write(row, elements, [&](auto, const auto&) { return number; });
      return;
    }
    if constexpr (ON_CHIP && Team::HELD) {
      elements = own;
    } else if constexpr (ON_CHIP) {
      elements.template fetch<Team>(row, shared, int(slot));
    } else {
      elements.load(row);
    }
    write(row, elements, [&]<int I>(Constant<I>, const auto& x) {
      const T slope = derivative(loss.template gradient<I, N>(row, done, x));
      return !SELECTS || active ? slope : number;
    });
    if constexpr (Loss::SINGLE && bool(WANTED & 1u)) {
      if (active && elements.has(context.column)) {
        row.template set<Row::INPUTS>(context.column, derivative(loss.gradient_of_target(done)));
      }
    }
  }

  // Gradients f(operand, x).
  template <class E>
  DEVICE void write(const Row& row, const E& elements, auto f) const {
#pragma unroll
    for (int p = 0; p < E::VECTORS; ++p) {
      // Copies: through references the compiler took more instructions.
      each_bit<WANTED>([&, p, f](auto which) { write_vector(row, elements, p, which, f); });
    }
  }
  template <int I>
  DEVICE void write_vector(const Row& row, const auto& elements, int p, Constant<I> operand,
                           auto f) const {
    constexpr int G = Row::template GRADIENT<WANTED, I>;
    using Stored = typename Row::template Element<G>;
    Stored* const address = elements.template address<G>(row, p);
    if (bool(Layout::VECTORISED >> G & 1u) && elements.is_full(p)) {
      Vector<Stored, WIDTH> vector;
      elements.each_of(
          p, [&](int j, Column, const auto& x) { vector.at[j] = convert<Stored>(f(operand, x)); });
      store_vector<WIDTH>(address, vector);
    } else {
      elements.each_of(p, [&](int j, Column, const auto& x) {
        address[j * layout.template step<G>()] = convert<Stored>(f(operand, x));
      });
    }
  }
};
