// The work of one thread on rows that it shares with its neighbours: its part of a row, the state
// that it accumulates, the gradients of its elements. Kernels say when each is done.
#pragma once
#include "kernels/row_batch.cuh"
#include "kernels/row_epilogue.cuh"
#include "kernels/row_states.cuh"

// The threads of a row, as cupy_losses/_device/row_team.py chooses.
struct Team {
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

  __device__ constexpr int rows() const { return threads / threads_per_row; }
  __device__ constexpr int groups() const { return (slots + batch - 1) / batch; }
  __device__ constexpr int blocks() const { return cluster ? ranks : 1; }  // of a cluster
  __device__ constexpr bool held() const { return rows_ahead != 0; }
  // The slots of the last batch, where it is not full and most threads have all of it; else 0.
  __device__ constexpr int rest() const { return threads_per_row > 32 ? slots % batch : 0; }
  // The slots whose gradients are written at a time where rows may begin anywhere: few, as slots in
  // which a row begins or ends go one by one.
  __device__ constexpr int written() const { return batch <= 3 ? batch : batch < 6 ? 2 : 3; }
  // Neighbours, the threads of a row in a warp, have a stretch of its share. A slot of the stretch
  // is a vector of each of them. Where rows may begin anywhere, a stretch is copied in lines of
  // vectors, and takes one line more. Where all begin at vectors, the stretches of a warp begin in
  // different banks of shared memory, so that all its threads read their words at once.
  __device__ constexpr int neighbours() const {
    return threads_per_row < 32 ? threads_per_row : 32;
  }
  static constexpr int VECTORS_OF_LINE = 8;  // in cupy_losses/_device/row_team.py
  // In vectors: of a stretch whose row may begin anywhere.
  __device__ constexpr int alignment() const {
    return neighbours() < VECTORS_OF_LINE ? neighbours() : VECTORS_OF_LINE;
  }
  __device__ constexpr int places_of_stretch() const {
    const int apart = threads_per_row < 32 ? (threads_per_row + 3) / 4 : 0;
    return slots * neighbours() + (shifts ? alignment() : apart);
  }
  __device__ constexpr int places() const { return threads / neighbours() * places_of_stretch(); }
};

constexpr int BYTES_AT_ONCE = 128;  // bytes of a row that one thread takes

template <class T, class Loss, class Layout, Team TEAM, unsigned WANTED, unsigned TANGENTS,
          bool VJP, class Pointers>
struct RowWorker {
  using Own = RowThread<TEAM>;
  static_assert(TEAM.rows_ahead <= 2, "there are no registers for more");
  static_assert(!TEAM.shifts || (!TEAM.exact && !TEAM.held()),
                "vectors at the ends of rows are not full");
  static_assert(!TEAM.held() || TEAM.threads_per_row <= 32, "a short row");
  using Row = RowOf<T, Loss, Layout, TANGENTS, VJP, Pointers>;
  using N = typename Row::N;
  using Column = typename Row::Column;
  using State = typename Loss::template State<N>;
  using Merged = decltype(merged<TEAM>(State()));
  using Finished = typename Loss::template Finished<N>;
  static constexpr int WIDTH = TEAM.width;
  template <int SLOTS, Presence PRESENT = ALL>
  using Vectors = Batch<Row, Loss, SLOTS, WIDTH, PRESENT>;
  using Elements = Vectors<TEAM.batch>;
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
  using WordsAtTheEnd = Words<(Loss::HIDES ? TEAM.batch : 1), PARTLY>;
  static constexpr Column SLOT = TEAM.neighbours() * WIDTH;  // the columns of a slot
  // Whether only the last slot of a row is not full, in rows of a warp or a part of it. A thread
  // takes all slots of such a row at once if they are few.
  static constexpr bool PADDED =
      TEAM.threads_per_row <= 32 && TEAM.ranks == 1 && !TEAM.exact && !TEAM.held();
  static constexpr bool AT_ONCE =
      PADDED && TEAM.slots * WIDTH * Elements::NUMBER_BYTES <= BYTES_AT_ONCE;
  template <int SLOTS>
  using Last = Words<SLOTS, PARTLY, SLOTS - 1>;

  const Loss& loss;
  const Layout& layout;
  const Pointers& pointers;
  const long long n, columns;
  unsigned char* const shared;
  mutable Select<TEAM.held(), Elements, Nothing> own, coming[TEAM.held() ? TEAM.rows_ahead : 1];

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
    constexpr int STRETCHES = TEAM.threads_per_row / TEAM.neighbours();
    // Columns behind the end of the row do not overflow: a Column has 32 bits only where a row has
    // fewer than 2^30.
    const Column size = Column(slots) * SLOT;
    const Column begin = Column(rank * STRETCHES + Own::stretch_of_row()) * size;
    Column end = begin;
    if (present) end += TEAM.exact ? size : min(size, max(Column(columns) - begin, Column(0)));
    int shift = 0;
    if constexpr (TEAM.shifts) shift = row.template shift<TEAM.alignment() * WIDTH>();
    return {row, begin, end, shift};
  }
  // The share moved back to the start of its cache line, equally long. These columns are copied,
  // and their gradients written.
  DEVICE Share aligned(const Share& share, long long slots) const {
    if constexpr (!TEAM.shifts) return share;
    const Column begin = share.begin - Column(share.shift);
    const Column end = min(Column(columns), begin + Column(slots) * SLOT);
    return {share.row, begin, share.begin < share.end ? end : begin, 0};
  }

  // f(elements, slot) for a batch of slots: at once if all elements are there, else some at a time.
  // A slot whose elements are all there may be a Whole.
  template <class Full, class Rest, class AtTheEnd, class Whole = AtTheEnd>
  DEVICE void batch(const Share& share, long long slot, auto f) const {
    constexpr Column STRIDE = TEAM.neighbours() * Full::LENGTH;
    constexpr int SLOTS = TEAM.batch, REST = TEAM.rest();
    constexpr int STEP = AtTheEnd::NUMBERS / WIDTH;
    const Column begin = share.begin + Column(slot) * SLOT;  // the same for all neighbours
    const Column first = begin + Column(Own::neighbour()) * Full::LENGTH;
    if constexpr (TEAM.exact) {
      if (share.begin < share.end) f(Full{first, STRIDE, share.end}, slot);
    } else {
      if (begin >= share.end) return;
      if (begin >= 0 && share.end - begin >= SLOT * SLOTS) {
        f(Full{first, STRIDE, share.end}, slot);
        return;
      }
      if constexpr (REST != 0) {
        if (slot == TEAM.slots - REST && begin >= 0 && share.end - begin >= SLOT * REST) {
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
    constexpr int SLOTS = TEAM.batch;
    if constexpr (PADDED) {
      constexpr int BEFORE = (TEAM.groups() - 1) * SLOTS;
      constexpr Column STRIDE = TEAM.neighbours() * UNIT;
      const Column first = Column(slot) * SLOT + Column(Own::neighbour()) * UNIT;
      if (share.begin >= share.end) return;
      if (BEFORE > 0 && slot < BEFORE) {
        f(Words<SLOTS>{first, STRIDE, share.end}, slot);
      } else {
        f(Last<TEAM.slots - BEFORE>{first, STRIDE, share.end}, slot);
      }
    } else {
      using Whole = Select<Loss::HIDES, WordsAtTheEnd, Words<1>>;
      batch<Words<SLOTS>, Words<TEAM.rest()>, WordsAtTheEnd, Whole>(share, slot, f);
    }
  }
  DEVICE void batch_of_vectors(const Share& share, long long slot, auto f) const {
    batch<Elements, Vectors<TEAM.rest()>, AtTheEnd>(share, slot, f);
  }

  // The state of a share, read from device memory.
  DEVICE State accumulate(const Share& share, long long slots, const auto& context) const {
    State state = State::empty();
    for (long long slot = 0; slot < slots; slot += TEAM.batch) {
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

  // The state of a share that is on its way to registers, or to shared memory in so many groups()
  // of copies. With REPLACE, the next share takes its place as soon as it has been read: before the
  // arithmetic where all batches are full, else behind it, which takes less code.
  template <bool REPLACE>
  DEVICE State accumulate(const Share& share, const Share& next, auto& context) const {
    State state = State::empty();
    if constexpr (TEAM.held()) {
      own = coming[0];
      prefetch(next, 0);
      Elements elements = own;
      if constexpr (TEAM.threads_per_row == 1) loss.find(context, elements);
      // In ignored rows too: a test would take longer.
      if constexpr (Loss::HIDES) elements.hide(context.column);
      loss.template add<true>(state, share.row, context, elements);
    } else if constexpr (AT_ONCE) {
      wait_for_copies<0>();
      Own::wait_for_neighbours();
      bool aligned = share.shift % UNIT == 0;
      // Rows of one warp that begin at odd places and at even ones would take turns.
      if constexpr (UNIT > 1 && TEAM.shifts) aligned = __all_sync(0xffffffffu, aligned);
      if (context.status == ACTIVE) {
        using Whole = Last<TEAM.slots>;
        Whole elements{Column(Own::neighbour()) * UNIT, TEAM.neighbours() * UNIT, share.end};
        fetch(elements, share, 0, context, aligned);
        take<true>(state, elements, share, context);
      }
      if constexpr (REPLACE) {
        Own::wait_for_neighbours();
        prefetch(next);
      }
    } else {
      constexpr bool FIRST_BATCH = TEAM.exact && TEAM.groups() == 1;
      if constexpr (!REPLACE) wait_for_copies<0>();
#pragma unroll 1
      for (int group = 0; group < TEAM.groups(); ++group) {
        const int first = group * TEAM.batch;
        if constexpr (REPLACE) wait_for_group(group);
        Own::wait_for_neighbours();
        if constexpr (REPLACE && TEAM.exact) {
          const Column begin = share.begin + Column(first) * SLOT;
          Words<TEAM.batch> elements{begin + Column(Own::neighbour()) * UNIT,
                                     TEAM.neighbours() * UNIT, share.end};
          if (context.status == ACTIVE) fetch(elements, share, first, context, true);
          Own::wait_for_neighbours();
          prefetch(next, group);
          if (context.status == ACTIVE) take<FIRST_BATCH>(state, elements, share, context);
        } else {
          batch_of_words(share, first, [&](auto elements, int slot) {
            if (context.status != ACTIVE) return;
            fetch(elements, share, slot, context, share.shift % UNIT == 0);
            take<FIRST_BATCH>(state, elements, share, context);
          });
          if constexpr (REPLACE) {
            Own::wait_for_neighbours();
            prefetch(next, group);
          }
        }
      }
    }
    return state;
  }
  DEVICE void prefetch(const Share& share, int group) const {
    if constexpr (TEAM.held()) {
      Elements& last = coming[TEAM.rows_ahead - 1];
      coming[0] = last;
      last = Elements{Column(TEAM.threads_per_row > 1 ? Own::thread() : 0) * WIDTH, SLOT,
                      Column(columns)};
      // Behind the last row, too: the loss is given what is in registers.
      last.find_weights(share.row);
      if (share.begin < share.end) last.load(share.row);
    } else {
      prefetch_batch(aligned(share, TEAM.slots), group * TEAM.batch);
      if (TEAM.shifts && group == TEAM.groups() - 1) prefetch_end(share);
      end_group_of_copies();
    }
  }
  DEVICE void prefetch(const Share& share) const {
    for (int group = 0; group < TEAM.groups(); ++group) prefetch(share, group);
  }

  // Writes the gradients of a batch of an aligned share. ON_CHIP: its elements are in shared
  // memory, or in registers if they are held(). Else they are loaded from device memory once more.
  template <bool ON_CHIP>
  DEVICE void differentiate(const Share& share, long long first_slot, const auto& context,
                            const Finished& done, bool releases = false) const {
    const auto write = [&](auto elements, long long slot) {
      differentiate_elements<ON_CHIP>(share.row, elements, slot, context, done, releases);
    };
    if constexpr (!TEAM.shifts) {
      batch_of_vectors(share, first_slot, write);
    } else {
      constexpr int WRITTEN = TEAM.written();
#pragma unroll 1
      for (int s = 0; s < TEAM.batch;) {
        const Column begin = share.begin + Column(first_slot + s) * SLOT;
        const Column first = begin + Column(Own::neighbour()) * WIDTH;
        if (begin >= share.end) return;
        if (begin >= 0 && s + WRITTEN <= TEAM.batch && share.end - begin >= SLOT * WRITTEN) {
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
    if constexpr (TEAM.shifts) {
      const Column begin = aligned(share, slots).begin + Column(slots) * SLOT;
      const Column first = begin + Column(Own::neighbour()) * WIDTH;
      const bool ends = share.begin < share.end && share.end == Column(columns);
      if (ends && Own::neighbour() < TEAM.alignment() && first < share.end) {
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
      elements.template hide<TEAM>(context.column, shared, slot, share.shift);
    }
    elements.template fetch<TEAM>(share.row, shared, slot, share.shift, aligned);
  }
  template <bool FIRST_BATCH, class E>
  DEVICE void take(State& state, E& elements, const Share& share, const auto& context) const {
    if constexpr (Loss::HIDES && FEW<E>) elements.hide(context.column);
    loss.template add<FIRST_BATCH>(state, share.row, context, elements);
  }
  // Waits for the copies that a group reads: where rows may begin anywhere, up to the first line of
  // the next one.
  DEVICE void wait_for_group(int group) const {
    constexpr int BEHIND = TEAM.groups() - 1;
    if constexpr (TEAM.shifts && BEHIND > 0) {
      if (group < BEHIND) return wait_for_copies<BEHIND - 1>();
    }
    wait_for_copies<BEHIND>();
  }
  DEVICE void prefetch_batch(const Share& share, int slot) const {
    constexpr int REST = TEAM.rest();
    if constexpr (TEAM.shifts) {
      if (prefetch_beyond<Elements>(share, slot)) return;
      if constexpr (REST != 0) {
        if (slot == TEAM.slots - REST && prefetch_beyond<Vectors<REST>>(share, slot)) return;
      }
    }
    batch_of_vectors(share, slot, [&](auto elements, int slot) {
      elements.template prefetch<TEAM, (WANTED != 0)>(share.row, shared, slot);
    });
  }
  // Copies a batch that begins or ends in another row whole, where that may be read.
  template <class Full>
  DEVICE bool prefetch_beyond(const Share& share, int slot) const {
    const Column begin = share.begin + Column(slot) * SLOT;
    const Full elements{begin + Column(Own::neighbour()) * WIDTH, SLOT, share.end};
    const bool needed = share.end - begin > Column(Full::VECTORS) * SLOT - WIDTH;
    if (share.begin >= share.end || !needed || !elements.may_read(share.row)) return false;
    elements.template prefetch<TEAM, (WANTED != 0)>(share.row, shared, slot);
    return true;
  }
  // The line in which a stretch ends that does not begin with one.
  DEVICE void prefetch_end(const Share& share) const {
    const Column begin = aligned(share, TEAM.slots).begin + TEAM.slots * SLOT;
    const Column first = begin + Column(Own::neighbour()) * WIDTH;
    if (Own::neighbour() < TEAM.alignment() && first < share.end) {
      const AtTheEnd elements{first, SLOT, Column(columns)};
      elements.template prefetch<TEAM, (WANTED != 0)>(share.row, shared, TEAM.slots);
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
    constexpr bool SELECTS = ON_CHIP && TEAM.held() && FEW<decltype(elements)>;
    const bool active = context.status == ACTIVE;
    const T number = without_loss<T>(context.status);
    if (!SELECTS && !active) {
      elements.find_weights(row);  // which nothing reads: write() names all numbers of an element
      write(row, elements, [&](auto, const auto&) { return number; });
      return;
    }
    if constexpr (ON_CHIP && TEAM.held()) {
      elements = own;
    } else if constexpr (ON_CHIP) {
      elements.template fetch<TEAM>(row, shared, int(slot));
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
