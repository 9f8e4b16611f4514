// The passes of kernels/pointwise.cu for operands whose memory orders differ: x beside y.T, NCHW
// beside NHWC. Read along one order, an operand of the other comes an element a sector.
//
// Fuses what pointwise.cu does, and the transposition: nothing is copied ahead. The bytes are the
// same: one read of every operand, one write of every output.
//
// A tile is a rectangle of the iteration space. Its columns are neighbours in the order of the
// outputs and of the direct operands, its rows are neighbours in the order of the staged ones. A
// block reads the tile of each staged operand along rows, in whole sectors, and leaves it
// transposed in shared memory. From there on it is one more operand that runs along columns.
//
// Order of summation: as in pointwise.cu, with these tiles. They follow from the shape, the dtypes
// and the strides.
#include "kernels/elements.cuh"
#include "memory/instructions.cuh"

// The elements of a tile, and who works on them, as cupy_losses/_device/element_schedule.py
// chooses; rows and columns are those of tiling.py.
struct Rectangle {
  int threads;        // of a block, whose work a tile is
  int rows, columns;  // of a tile
  int width;          // the elements of a vector along columns
  int batch;          // the vectors of a thread at a time
  // Whether a row is as long as its dimension and goes on in the next one, so that vectors may
  // cross its end.
  bool flat;
  int resident;  // how many blocks a multiprocessor is to hold

  __device__ constexpr int elements() const { return rows * columns; }
};

// Where threads fill lines of LENGTH places, one after the other: the line and the place in it that
// are a thread's in a turn. The steps from turn to turn are constants where they can be.
template <Rectangle TILE, int LENGTH>
DEVICE int line_of(int turn, int thread) {
  if constexpr (TILE.threads % LENGTH == 0) {
    return turn * (TILE.threads / LENGTH) + thread / LENGTH;
  } else {
    return (turn * TILE.threads + thread) / LENGTH;
  }
}
template <Rectangle TILE, int LENGTH>
DEVICE int place_in_line(int turn, int thread) {
  return (TILE.threads % LENGTH == 0 ? thread : turn * TILE.threads + thread) % LENGTH;
}

// The iteration space of OPERANDS arrays and, behind them, the outputs: dimensions that tiles do
// not extend along, then that of their rows, then that of their columns. Bit k of STAGED: operand k
// runs along rows. Bit k of VECTORISED: one access moves a vector of operand k, along rows or
// along columns. Index counts tiles, Offset elements from the beginning of a tile on.
template <int DIMS_, int OPERANDS_, unsigned STAGED_, unsigned VECTORISED_, class Index_,
          class Offset_>
struct TileLayout {
  using Index = Index_;
  using Offset = Offset_;
  static constexpr int DIMS = DIMS_, OPERANDS = OPERANDS_, ROW = DIMS - 2, COLUMN = DIMS - 1;
  static constexpr unsigned STAGED = STAGED_, VECTORISED = VECTORISED_;
  long long size[DIMS];
  long long stride[OPERANDS + 1][DIMS];

  // Where a tile begins in each array, and how many rows and columns of it there are.
  struct Location {
    long long offset[OPERANDS + 1];
    int rows, columns;
  };

  template <Rectangle TILE>
  DEVICE Location locate(Index tile) const {
    Location at{};
    Index rest = tile;
#pragma unroll
    for (int d = DIMS - 1; d >= 0; --d) {
      const int extent = d == COLUMN ? TILE.columns : d == ROW ? TILE.rows : 1;
      const Index count = (Index(size[d]) + Index(extent - 1)) / Index(extent);
      const Index above = d > 0 ? rest / count : 0;
      const long long first = (long long)(rest - above * count) * extent;
      const int present = int(min(size[d] - first, (long long)(extent)));
      if (d == ROW) at.rows = present;
      if (d == COLUMN) at.columns = present;
#pragma unroll
      for (int k = 0; k <= OPERANDS; ++k) at.offset[k] += first * stride[k][d];
      rest = above;
    }
    return at;
  }
};

// A tile of elements E in shared memory, row by row. Neighbouring threads write to rows that are
// RUN apart. A gap follows RUN rows, so that these come to different banks, unless it would take a
// lot of room.
template <class E, Rectangle TILE, int RUN>
struct StagedTile {
  static constexpr int GROUPS = (TILE.rows + RUN - 1) / RUN, BANKS = 128;  // bytes of all banks
  static constexpr int APART = BANKS / GROUPS > 4 ? BANKS / GROUPS : 4, SIZE = sizeof(E);
  // Vectors stay aligned.
  static constexpr int GAP = (APART + SIZE * TILE.width - 1) / (SIZE * TILE.width) * TILE.width;
  static constexpr int PAD = TILE.flat || 4 * GAP * GROUPS > TILE.elements() ? 0 : GAP;

  alignas(16) E at[TILE.elements() + (GROUPS - 1) * PAD];

  static DEVICE int index(int row, int column) {
    return row * TILE.columns + row / RUN * PAD + column;
  }
};

// One thread's work on tiles, on top of that on vectors.
template <class Work, class Layout, Rectangle TILE, class Pointers,
          class K = Range<Layout::OPERANDS>>
struct TileWorker;

template <class Work, class Layout, Rectangle TILE, class Pointers, int... K>
struct TileWorker<Work, Layout, TILE, Pointers, Indices<K...>> {
  using Location = typename Layout::Location;
  using Offset = typename Layout::Offset;
  using Vectors = typename Work::Vectors;
  template <int I>
  using Element = typename Work::template Element<I>;
  template <int I>
  static constexpr bool STAGED = bool(Layout::STAGED >> I & 1u);
  template <int I>
  static constexpr bool VECTORISED = bool(Layout::VECTORISED >> I & 1u);

  // The elements of one access of a staged operand. Where `rows` is no multiple of it, one column
  // follows the other in memory, and accesses run on in the next.
  template <int I>
  static constexpr int ACCESS = VECTORISED<I> ? 16 / int(sizeof(Element<I>)) : 1;
  template <int I>
  static constexpr int RUN = TILE.rows % ACCESS<I> == 0 ? ACCESS<I> : 1;

  template <int I>
  using Staged = StagedTile<Element<I>, TILE, RUN<I>>;
  static constexpr int ROW_LENGTH = TILE.flat ? TILE.elements() : TILE.columns;
  static_assert(ROW_LENGTH % TILE.width == 0, "a vector would cross the end");
  static constexpr int VECTORS_PER_ROW = ROW_LENGTH / TILE.width;
  static constexpr int VECTORS = TILE.elements() / TILE.width;
  static constexpr int TURNS = (VECTORS + TILE.threads - 1) / TILE.threads;

  struct Place {
    int row, column;
  };

  const Layout& layout;
  const Pointers& pointers;
  const int thread;

  // Adds the values of a tile to the sums and writes its outputs. What comes in the first batch is
  // asked for before anything is waited for.
  DEVICE void compute(Work& work, const Location& at) const {
    Vectors vectors[TILE.batch];
    load_direct(vectors, at, 0);
    (stage<K>(at), ...);
    __syncthreads();
#pragma unroll 1
    for (int first = 0; first < TURNS; first += TILE.batch) {
      if (first > 0) load_direct(vectors, at, first);
#pragma unroll
      for (int p = 0; p < TILE.batch; ++p) {
        const Place to = place(first + p);
        if (is_there(at, to)) {
          (load_staged<K>(vectors[p], to), ...);
          work.compute(vectors[p], at.offset[Layout::OPERANDS] + offset<Layout::OPERANDS>(to));
        }
      }
    }
    __syncthreads();  // the next tile takes the place of this one
  }

 private:
  template <int I>
  static DEVICE Element<I>* staged() {
    __shared__ Staged<I> tile;
    return tile.at;
  }

  // Where a thread's vector begins in the tile. Where that is flat, it is one row.
  DEVICE Place place(int turn) const {
    return {line_of<TILE, VECTORS_PER_ROW>(turn, thread),
            place_in_line<TILE, VECTORS_PER_ROW>(turn, thread) * TILE.width};
  }
  static DEVICE bool is_there(const Location& at, Place place) {
    if constexpr (TILE.flat) {
      return place.row == 0 && place.column < at.rows * TILE.columns;
    } else {
      return place.row < at.rows && place.column < at.columns;
    }
  }
  // From the beginning of the tile on, in the outputs or a direct operand.
  template <int I>
  DEVICE Offset offset(Place place) const {
    constexpr bool UNIT = I == Layout::OPERANDS || VECTORISED<I>;
    const Offset along_row = place.column * (UNIT ? 1 : step<I, Layout::COLUMN>());
    return TILE.flat ? along_row : place.row * step<I, Layout::ROW>() + along_row;
  }
  template <int I, int D>
  DEVICE Offset step() const {
    return Offset(layout.stride[I][D]);
  }

  DEVICE void load_direct(Vectors (&vectors)[TILE.batch], const Location& at, int first) const {
#pragma unroll
    for (int p = 0; p < TILE.batch; ++p) {
      const Place from = place(first + p);
      if (is_there(at, from)) (load_direct<K>(vectors[p], at, from), ...);
    }
  }
  template <int I>
  DEVICE void load_direct(Vectors& vectors, const Location& at, Place place) const {
    if constexpr (!STAGED<I>) {
      Vector<Element<I>, TILE.width>& vector = get<I>(vectors);
      const Element<I>* const from = get<I>(pointers) + at.offset[I] + offset<I>(place);
      if constexpr (VECTORISED<I>) {
        vector = load_vector<TILE.width>(from);
      } else {
        vector = load_apart<TILE.width>(from, step<I, Layout::COLUMN>());
      }
    }
  }
  template <int I>
  DEVICE void load_staged(Vectors& vectors, Place place) const {
    if constexpr (STAGED<I>) {
      const int index = Staged<I>::index(place.row, place.column);
      get<I>(vectors) = load_vector<TILE.width>(staged<I>() + index);
    }
  }

  // Neighbouring threads read along rows, each several accesses before it stores the first.
  template <int I>
  DEVICE void stage(const Location& at) const {
    if constexpr (STAGED<I>) {
      using Access = Vector<Element<I>, ACCESS<I>>;
      constexpr int ACCESSES = TILE.elements() / ACCESS<I>;
      constexpr int ALL = (ACCESSES + TILE.threads - 1) / TILE.threads;
      constexpr int MOST = 64 / (sizeof(Access) > 8 ? sizeof(Access) : 8);  // in 16 registers
      constexpr int GROUP = ALL < MOST ? ALL : MOST;
#pragma unroll 1
      for (int first = 0; first < ALL; first += GROUP) {
        Access access[GROUP];
#pragma unroll
        for (int p = 0; p < GROUP; ++p) {
          const Place from = staged_place<I>(first + p, 0);
          if (from.row < at.rows && from.column < at.columns) {
            const Offset in_column = VECTORISED<I> ? from.row : from.row * step<I, Layout::ROW>();
            const Offset in_tile = from.column * step<I, Layout::COLUMN>() + in_column;
            access[p] = load_vector<ACCESS<I>>(get<I>(pointers) + at.offset[I] + in_tile);
          }
        }
#pragma unroll
        for (int p = 0; p < GROUP; ++p) {
          const Place from = staged_place<I>(first + p, 0);
          if (from.row < at.rows && from.column < at.columns) {
#pragma unroll
            for (int j = 0; j < ACCESS<I>; ++j) {
              const Place to = staged_place<I>(first + p, j);
              staged<I>()[Staged<I>::index(to.row, to.column)] = access[p].at[j];
            }
          }
        }
      }
    }
  }
  // Where element j of a thread's access belongs in the tile.
  template <int I>
  DEVICE Place staged_place(int turn, int j) const {
    if constexpr (RUN<I> == ACCESS<I>) {
      constexpr int LENGTH = TILE.rows / ACCESS<I>;
      return {place_in_line<TILE, LENGTH>(turn, thread) * ACCESS<I> + j,
              line_of<TILE, LENGTH>(turn, thread)};
    } else {
      const int element = (turn * TILE.threads + thread) * ACCESS<I> + j;
      return {element % TILE.rows, element / TILE.rows};
    }
  }
};

// The arguments are those of pointwise.cu, with tiles in place of elements.
template <class T, class Loss, class Layout, Rectangle TILE, Values VALUES, unsigned WANTED,
          class Result, class... P>
__global__ void __launch_bounds__(TILE.threads, TILE.resident)
    tiled(Loss loss, double scale, Layout layout, long long tiles, Results<T, Result> results,
          P... pointer) {
  using Pointers = Tuple<P...>;
  using Work = Worker<T, Loss, Layout, TILE.width, VALUES, WANTED, Result, Pointers>;
  using OnTiles = TileWorker<Work, Layout, TILE, Pointers>;
  using Index = typename Layout::Index;
  constexpr bool REDUCED = VALUES >= SUM_OF_VALUES;

  const auto factor = Factor::of<WANTED != 0>(results);
  if (factor.is_done) return;
  const Pointers pointers{{pointer}...};
  const double divisor = results.known_denominator();
  const Scaling<Work::ARRAYS, Pointers> scaling{scale, pointers};
  const Reciprocal<T> reciprocal(denominator_of_derivatives<is_masked<Loss>>(divisor), factor.value,
                                 scaling.value());
  Work work{loss, layout, pointers, reciprocal, results.value};
  double* const output = factor.template denominator_output<false>();
  const ReductionOfElements<T, VALUES, TILE.threads, Loss, Result, decltype(scaling)> reduction{
      results, divisor, scaling, output};

  for (long long segment = blockIdx.x; segment < results.segments; segment += gridDim.x) {
    work.sum = work.denominator = Sum<T>::zero();
    for (Index tile = Index(segment); tile < Index(tiles); tile += Index(results.segments)) {
      // What follows from the number of the thread is computed anew for each tile: kept, it would
      // take 20 registers, and a block fewer would be resident.
      const OnTiles on_tiles{layout, pointers, computed_anew(int(threadIdx.x))};
      on_tiles.compute(work, layout.template locate<TILE>(tile));
    }
    if constexpr (REDUCED)
      reduction.template add<false, false>(segment, work.sum, work.denominator);
  }
  if constexpr (REDUCED) reduction.finish(gridDim.x);
}
