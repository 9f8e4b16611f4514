// Losses over rows whose elements lie apart while neighbouring rows lie together, such as classes
// ahead of pixels, (N, C, d), where rows are short: the loss of each row, its sum or mean, the
// gradients of the elements, or loss and gradients together.
//
// A tile is of neighbouring rows. Each of its columns is one stretch of memory, of any alignment.
// The kernel is warp-specialised. The last warp is the producer: by bulk copies (TMA) it loads the
// tile after next, and stores gradients, which take the place of the elements that they belong to.
// So whole sectors of memory are written, wherever a column begins. The other warps are consumers:
// a thread has a row at a time, with all of its elements in registers. Bytes of device memory an
// element, with operands and gradients of s bytes: the loss of one operand s, with its gradient 2s.
//
// Order of summation: that of rows which stay with one thread in kernels/strided_rows.cu. Tiles
// form segments, which are added as those of kernels/pointwise.cu are.
#include "kernels/row_epilogue.cuh"
#include "kernels/row_states.cuh"
#include "kernels/strided_batch.cuh"
#include "memory/column_copy.cuh"

// The threads of a tile, as cupy_losses/_device/strided_tiling.py chooses.
struct StridedTileTeam {
  int threads;       // of a block
  int count;         // the elements of a row, at most
  int sure;          // how many of them are there at least
  int pitch;         // the bytes from a column to the next one in shared memory
  int resident;      // how many blocks a multiprocessor is to hold
  unsigned numbers;  // bit k: array k has a tile of one number for each row

  __device__ constexpr int consumers() const { return threads - 32; }  // all but the producer warp
  // What a StridedBatch asks for.
  static constexpr int width = 1;
  static constexpr bool stays = true, ahead = false;
};

// A tile: how many rows it has at most, the bytes of all its arrays in shared memory, where each
// begins there, and how many tiles a line of rows has.
template <int ARRAYS>
struct StridedTilePlaces {
  int rows, bytes, begin[ARRAYS], of_line;
  FastDivision reciprocal;
};

// The work of a block on its tiles. `pointers` are those to device memory.
template <class T, class Loss, class Layout, StridedTileTeam TEAM, unsigned WANTED,
          unsigned TANGENTS, bool VJP, class Pointers, class K = Range<Layout::ARRAYS>>
struct StridedTileWorker;

template <class T, class Loss, class Layout, StridedTileTeam TEAM, unsigned WANTED,
          unsigned TANGENTS, bool VJP, class Pointers, int... K>
struct StridedTileWorker<T, Loss, Layout, TEAM, WANTED, TANGENTS, VJP, Pointers, Indices<K...>> {
  using Row = RowOf<T, Loss, Layout, TANGENTS, VJP, Pointers>;
  using N = typename Row::N;
  using State = typename Loss::template State<N>;
  using Finished = typename Loss::template Finished<N>;
  using Batch = StridedBatch<Row, Loss, TEAM, TEAM.sure, Loss::HIDES, 1>;
  using Places = StridedTilePlaces<Layout::ARRAYS>;
  using EmptyBarriers = TwoStageBarriers<TEAM.consumers() / 32, 1>;  // of the consumer warps
  using Index = typename Layout::Index;  // counts to four times the rows at least
  static constexpr int FIRST = Row::FIRST;
  using Element = typename Row::template Element<FIRST>;
  static constexpr int PITCH = TEAM.pitch / int(sizeof(Element));
  static_assert(BULK_COPIES, "the producer needs them");
  static_assert((WANTED & ~1u) == 0 && (TANGENTS & 1u) == 0, "one array has elements of rows");

  const Loss& loss;
  const Layout& layout;
  const Places& places;
  const Pointers& pointers;
  const Index n;
  const int columns;

  // The rows of a tile. It ends where the last dimension of all rows does, a line of them.
  struct TileRows {
    Index first;
    int count;
  };
  DEVICE Index line() const { return Index(layout.rows.size[decltype(layout.rows)::DIMS - 1]); }
  DEVICE Index tiles() const { return n / line() * places.of_line; }
  DEVICE TileRows rows_of(Index tile) const {
    // No memory holds the rows of 2^31 tiles.
    const Index own = places.reciprocal.quotient(unsigned(tile));
    const Index part = tile - own * places.of_line;
    const Index first = own * line() + part * places.rows, end = (own + 1) * line();
    return {first, int(min(Index(places.rows), end - first))};
  }

  // To shared memory, without waiting: the work of the producer.
  DEVICE void load(unsigned turn, Index tile, unsigned char* stage) const {
    const TileRows rows = rows_of(tile);
    (load_array<K>(turn, rows, stage), ...);
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(FullBarriers::barrier(turn));
  }
  // The pointers, to shared memory where a tile is there, and how rows lie then.
  DEVICE Pointers staged(const TileRows& rows, unsigned char* stage) const {
    Pointers staged = pointers;
    (stage_pointer<K>(staged, rows, stage), ...);
    return staged;
  }
  DEVICE Layout staged_layout() const {
    Layout staged = layout;
    staged.steps[FIRST] = PITCH;
    return staged;
  }
  // Row `own` of a tile.
  DEVICE Row row_at(const TileRows& rows, int own, const Layout& in_stage,
                    const Pointers& staged) const {
    Row row{in_stage, staged, layout.rows.locate(rows.first + own), columns};
    ((IS_STAGED<K> ? void(row.at.offset[K] = own) : void()), ...);
    return row;
  }

  // The context of a row. Hides the element of its class, unless the loss is told which one it is.
  DEVICE auto prologue(const Row& row) const {
    const auto context = loss.prologue(row, loss.prefetch(row));
    if constexpr (Loss::HIDES && !Batch::TELLS) {
      if (context.status == ACTIVE) row.template set<FIRST>(context.column, T(-INFINITY));
    }
    return context;
  }
  // The elements of a row.
  DEVICE Batch elements_of(const Row& row) const {
    Batch batch;
    if constexpr (!Loss::HIDES) batch = {};
    batch.first = 0;
    batch.end = columns;
#pragma unroll
    for (int k = 0; k < TEAM.count; ++k) {
      batch.template take<FIRST>(k, batch.holds(k), [&] {
        return packed(Vector<Element, 1>{{*row.template address<FIRST>(k)}});
      });
    }
    return batch;
  }
  // Those of rows that are not active are added, too: a branch would take longer.
  DEVICE State accumulate(const Batch& batch, const Row& row, const auto& context) const {
    State state = State::empty();
    typename Batch::template RowElements<0> elements{batch, row, batch.largest_of_rows().at[0], {}};
    if constexpr (Batch::TELLS) elements.hidden = batch.place_of(context.column);
    loss.template add<true>(state, row, context, elements);
    return state;
  }
  // Puts the gradients of a row in the place of its elements, as if it were active, then those of
  // one that is not.
  DEVICE void differentiate(const Batch& batch, const Row& row, const auto& context,
                            const Finished& done) const {
#pragma unroll
    for (int k = 0; k < TEAM.count; ++k) {
      if (!batch.holds(k)) continue;
      const auto numbers = batch.template numbers<0>(row, k);
      row.template set<FIRST>(k, derivative(loss.template gradient<0, N>(row, done, numbers)));
    }
    if (context.status != ACTIVE) {
#pragma unroll 1
      for (int k = 0; k < columns; ++k) row.template set<FIRST>(k, without_loss<T>(context.status));
    } else if constexpr (Loss::SINGLE) {
      row.template set<FIRST>(context.column, derivative(loss.gradient_of_target(done)));
    }
  }
  // All rows of a thread have been computed, and gradients are in the place of elements.
  static DEVICE void arrive(unsigned turn) {
    fence_proxy_async();
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(EmptyBarriers::barrier(turn));
  }

  // From shared memory to the gradients, and waits until that has been read: the work of the
  // producer.
  DEVICE void store(Index tile, unsigned char* stage) const {
    constexpr int G = Row::template GRADIENT<WANTED, 0>;
    const TileRows rows = rows_of(tile);
    const Element* const from = get<FIRST>(staged(rows, stage));
    ColumnCopies::store<PITCH>(first_of<G>(rows), layout.template step<G>(), from, rows.count,
                               columns);
    cp_async_bulk_wait_group_read();
    __syncwarp();
  }

 private:
  // Whether array S has a tile in shared memory: the elements of rows, or a number for each row.
  template <int S>
  static constexpr bool IS_STAGED = S == FIRST || bool(TEAM.numbers >> S & 1u);

  // Where array S has the first row of a tile in device memory.
  template <int S>
  DEVICE auto* first_of(const TileRows& rows) const {
    return get<S>(pointers) + layout.rows.locate(rows.first).offset[S];
  }
  template <int S>
  DEVICE void load_array(unsigned turn, const TileRows& rows, unsigned char* stage) const {
    if constexpr (IS_STAGED<S>) {
      const auto* const first = first_of<S>(rows);
      constexpr int SIZE = sizeof(*first), WHOLE = ColumnCopies::PIECE / SIZE;
      unsigned char* const to = stage + places.begin[S] + misalignment(first);
      const Row row{layout, pointers, {}, columns};
      const int stretches = S == FIRST ? columns : 1;
      for (int k = threadIdx.x % 32; k < stretches; k += 32) {
        const auto* const from = first + k * layout.template step<S>();
        const int ahead = misalignment(from) / SIZE;
        const int around = (ahead + rows.count + WHOLE - 1) / WHOLE * WHOLE;
        ColumnCopies::load(turn, to + k * TEAM.pitch, from, rows.count,
                           row.template may_read<S>(from - ahead, around));
      }
    }
  }
  template <int S>
  DEVICE void stage_pointer(Pointers& staged, const TileRows& rows, unsigned char* stage) const {
    if constexpr (IS_STAGED<S>) {
      const int behind = misalignment(first_of<S>(rows));
      get<S>(staged) = reinterpret_cast<At<S, Pointers>>(stage + places.begin[S] + behind);
    }
  }
};

// The arguments are those of pointwise.cu, with rows for elements: all may be ignored.
// The dynamic shared memory holds two tiles.
template <class T, class Loss, class Layout, StridedTileTeam TEAM, Values VALUES, unsigned WANTED,
          unsigned TANGENTS, bool VJP, class Result, class... P>
__global__ void __launch_bounds__(TEAM.threads, TEAM.resident)
    strided_tiles(Loss loss, double scale, Layout layout, StridedTilePlaces<Layout::ARRAYS> places,
                  long long n, long long columns, Results<T, Result> results, P... pointer) {
  extern __shared__ __align__(128) unsigned char shared[];
  using Pointers = Tuple<P...>;
  using Work = StridedTileWorker<T, Loss, Layout, TEAM, WANTED, TANGENTS, VJP, Pointers>;
  using Index = typename Layout::Index;
  constexpr bool REDUCED = VALUES >= SUM_OF_VALUES, GRADIENTS = WANTED != 0;

  const auto given = Factor::of<GRADIENTS>(results);
  if (given.is_done) return;
  const T factor = T(given.value);
  const Pointers pointers{{pointer}...};
  const Work work{loss, layout, places, pointers, Index(n), int(columns)};
  const double divisor = results.known_denominator();
  const Scaling<Layout::ARRAYS, Pointers> scaling{scale, pointers};
  const Reciprocal<T> reciprocal(denominator_of_derivatives<true>(divisor), 1.0, scaling.value());
  const auto reduction =
      reduction_of_rows<T, VALUES, TEAM.threads, TANGENTS, Loss>(given, results, divisor, scaling);

  // The tiles of a segment, then those of the next segment.
  const Index all = Index(results.segments), tiles = work.tiles();
  struct Turn {
    Index segment, tile;
  };
  const auto ends = [&](const Turn& turn) { return turn.tile + all >= tiles; };
  const auto next = [&](const Turn& turn) -> Turn {
    const Index segment = turn.segment + gridDim.x;
    return ends(turn) ? Turn{segment, segment} : Turn{turn.segment, turn.tile + all};
  };
  const auto stage = [&](unsigned turn) { return shared + turn % 2 * places.bytes; };
  FullBarriers::begin();
  Work::EmptyBarriers::begin();
  __syncthreads();
  Turn at{blockIdx.x, blockIdx.x}, coming = at;
  const bool is_producer = threadIdx.x >= TEAM.consumers();
  if (is_producer) {
    for (unsigned turn = 0; turn < 2 && coming.segment < all; ++turn, coming = next(coming)) {
      work.load(turn, coming.tile, stage(turn));
    }
  }
  const Layout in_stage = work.staged_layout();
  Sum<T> sum = Sum<T>::zero(), counted = Sum<T>::zero();
  for (unsigned turn = 0; at.segment < all; ++turn, at = next(at)) {
    if (is_producer) {
      Work::EmptyBarriers::wait(turn);
      if constexpr (GRADIENTS) work.store(at.tile, stage(turn));
      if (coming.segment < all) {
        work.load(turn + 2, coming.tile, stage(turn));
        coming = next(coming);
      }
    } else {
      FullBarriers::wait(turn);
      const auto rows = work.rows_of(at.tile);
      const Pointers staged = work.staged(rows, stage(turn));
#pragma unroll 1
      for (int own = threadIdx.x; own < rows.count; own += TEAM.consumers()) {
        const auto row = work.row_at(rows, own, in_stage, staged);
        const auto context = work.prologue(row);
        const auto batch = work.elements_of(row);
        const auto state = as_merged(work.accumulate(batch, row, context));
        const auto outcome = outcome_of<GRADIENTS, true>(loss, row, context, state,
                                                         VALUES != NO_VALUES, factor, reciprocal);
        take<VALUES, Loss>(outcome, rows.first + own, results.value, sum, counted);
        if constexpr (GRADIENTS) work.differentiate(batch, row, context, outcome.done);
      }
      work.arrive(turn);
    }
    if (ends(at)) {
      if constexpr (REDUCED) reduction.add(at.segment, sum, counted);
      sum = counted = Sum<T>::zero();
    }
  }
  if constexpr (REDUCED) reduction.finish(gridDim.x);
}
