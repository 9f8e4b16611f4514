// Losses that read one element of each row, that of its class: the loss of each row, its sum or
// mean, the gradients of the elements, or loss and gradients together.
//
// A thread has a row of a tile: its class, its element and its loss. All other elements have a
// gradient of 0. Where the gradients of a tile are one stretch of memory, a block writes them by
// vectors, into which each row puts its one number. Those of few elements it has in shared memory,
// where they are 0 but for the number of each row, and copies them (by TMA). Where those of
// neighbouring rows lie beside each other, such as classes ahead of pixels, each thread writes
// those of its row, one after the other. Of many elements in a row they are 0 ahead of the launch,
// and each thread writes the number of its class alone. Several blocks share the gradients of a
// tile where there are few tiles. Bytes of device memory a row: its class and the sector of its
// element; with gradients of s bytes s more for each element, and a sector of these.
//
// Order of summation: the rows of a thread in a segment, then those of a block, then segments.
// Tiles follow from the shape, the strides and the dtypes, and so do segments.
#include "kernels/row_epilogue.cuh"
#include "memory/shared_array.cuh"
#include "memory/tile_copy.cuh"

// What the rows of a tile leave for those that write their gradients: the column of the one that is
// not 0, or -1, and its number.
template <class E>
struct OneOfEachRow {
  int* column;
  E* number;

  // Writes the gradients of so many rows, which are one stretch of memory.
  template <int THREADS>
  DEVICE void write(E* to, int rows, unsigned columns, const FastDivision& by_columns) const {
    constexpr int WIDTH = 16 / sizeof(E);
    const auto at = [&]<int W>(Constant<W>, unsigned element) {
      Vector<E, W> vector = this->template zeros<W>();
      unsigned row = by_columns.quotient(element);
      // Where the row begins in the vector: most often ahead of it.
      for (int begin = int(row * columns - element); begin < W; begin += int(columns), ++row) {
        put(vector, column[row] < 0 ? -1 : begin + column[row], row);
      }
      return vector;
    };
    const Pieces pieces(to, rows * int(columns * sizeof(E)));
    pieces.template each<THREADS>([&](int byte) {
      const unsigned element = unsigned(byte) / sizeof(E);
      store_vector<WIDTH>(to + element, at(Constant<WIDTH>(), element));
    });
    pieces.template each_other<sizeof(E)>([&](int byte) {
      const unsigned element = unsigned(byte) / sizeof(E);
      to[element] = at(Constant<1>(), element).at[0];
    });
  }

 private:
  template <int WIDTH>
  static DEVICE Vector<E, WIDTH> zeros() {
    Vector<E, WIDTH> vector;
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) vector.at[j] = convert<E>(0.0f);
    return vector;
  }
  template <int WIDTH>
  DEVICE void put(Vector<E, WIDTH>& vector, int place, unsigned row) const {
    if (unsigned(place) >= WIDTH) return;
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
      if (j == place) vector.at[j] = number[row];
    }
  }
};

// The gradients of a tile in shared memory, that are copied as a whole. They are 0, but for what
// the row of each thread has put there for this tile.
template <int THREADS, class E>
struct StagedGradients {
  using Copies = TileCopies<THREADS>;
  static constexpr int NOTHING = -1, ALL = -2;
  E* const stage;
  const int columns;
  int put = ALL;  // which element of the row is not 0, if any

  // Writes the gradients of so many rows: `own` in a column of the row of this thread, unless that
  // is -1, and `others` in the others.
  DEVICE void write(E* to, int rows, int column, E own, E others, bool has_others) {
    Copies::wait_for_stores();
    __syncthreads();
    E* const row = stage + threadIdx.x * columns;
    if (put == ALL || has_others) {
      for (int c = 0; c < columns; ++c) row[c] = others;
    } else if (put != NOTHING) {
      row[put] = convert<E>(0.0f);
    }
    if (column >= 0) row[column] = own;
    put = has_others ? ALL : column;
    Copies::fence();
    __syncthreads();
    Copies::store_aligned(to, stage, rows * columns);
  }
};

// Writes the gradients [begin, end) of the row of a thread, if it is there: `own` in a column, 0 or
// NaN in the others.
template <int G, class E, class Column>
DEVICE void write_beside(const auto& row, bool is_there, Column column, E own, E others,
                         Column begin, Column end) {
  constexpr Column IN_STEP = 16;
  E* to = row.template address<G>(begin);
  const long long step = row.layout.template step<G>();
  for (Column c = begin; c < end;) {
    keep_in_step();
    const Column stop = min(c + IN_STEP, end);
#pragma unroll 4
    for (; c < stop; ++c, to += step) {
      if (is_there) store_vector<1>(to, Vector<E, 1>{{c == column ? own : others}});
    }
  }
}

// Writes the same gradient for all elements of a row.
template <int G, class E>
DEVICE void write_all(const auto& row, E gradient) {
  for (auto c = row.columns; c > 0; --c) *row.template address<G>(c - 1) = gradient;
}

// How gradients are written: those of a tile as one stretch, by vectors or from shared memory;
// those of each row by its thread, where neighbouring rows lie beside each other; or those of
// classes alone, into what is 0 already.
enum Writing { IN_VECTORS, STAGED, BESIDE, IN_ZEROS };

// The threads of a block, as cupy_losses/_device/row_gathering_schedule.py chooses.
struct GatheringTeam {
  int threads;   // of a block
  int resident;  // how many blocks a multiprocessor is to hold
  Writing writing;
};

// The arguments are those of pointwise.cu, with rows for elements: all may be ignored. A
// tile has `rows` of them, up to THREADS. `by_columns` divides by the columns. A block writes one
// of `slices` of the gradients of a tile; the first one has the values.
template <class T, class Loss, class Layout, GatheringTeam TEAM, Values VALUES, unsigned WANTED,
          unsigned TANGENTS, bool VJP, class Result, class... P>
__global__ void __launch_bounds__(TEAM.threads, TEAM.resident)
    gathered_rows(Loss loss, double scale, Layout layout, int rows, int slices,
                  FastDivision by_columns, long long n, long long columns,
                  Results<T, Result> results, P... pointer) {
  using Pointers = Tuple<P...>;
  using Row = RowOf<T, Loss, Layout, TANGENTS, VJP, Pointers>;
  using Column = typename Row::Column;
  using Index = typename Layout::Index;  // counts to four times the rows at least
  constexpr bool REDUCED = VALUES >= SUM_OF_VALUES, GRADIENTS = WANTED != 0;
  static_assert(WANTED <= 1 && Loss::READS == 0 && (Loss::SINGLE || !GRADIENTS),
                "gradients are 0 but for the class");

  const auto given = Factor::of<GRADIENTS>(results);
  if (given.is_done) return;
  extern __shared__ __align__(128) unsigned char shared[];
  const double divisor = results.known_denominator();
  const Pointers pointers{{pointer}...};
  const Scaling<Layout::ARRAYS, Pointers> scaling{scale, pointers};
  const Reciprocal<T> reciprocal(denominator_of_derivatives<true>(divisor), 1.0, scaling.value());
  const auto reduction =
      reduction_of_rows<T, VALUES, TEAM.threads, TANGENTS, Loss>(given, results, divisor, scaling);

  using Gradient = typename Row::template Element<GRADIENTS ? Row::INPUTS : 0>;
  [[maybe_unused]] StagedGradients<TEAM.threads, Gradient> staged{
      reinterpret_cast<Gradient*>(shared), int(columns)};

  const Index all = Index(results.segments), workers = gridDim.x / slices;
  const int slice = int(blockIdx.x % slices);
  [[maybe_unused]] const int rows_of_slice = (rows + slices - 1) / slices;
  const auto is_present = [&](Index tile) {
    return threadIdx.x < rows && tile * rows + threadIdx.x < Index(n);
  };
  const auto row_of = [&](Index tile) {
    return Row::at_index(layout, pointers, tile * rows + threadIdx.x, Index(n), Column(columns));
  };
  for (Index segment = blockIdx.x / slices; segment < all; segment += workers) {
    // The class of a row is read two tiles ahead, its element one tile ahead.
    auto next_prefetched = loss.prefetch(row_of(segment + all));
    auto context =
        prologue_of(loss, row_of(segment), is_present(segment), loss.prefetch(row_of(segment)));
    Sum<T> sum = Sum<T>::zero(), counted = Sum<T>::zero();
    for (Index tile = segment; tile * rows < Index(n); tile += all) {
      const auto prefetched_after = loss.prefetch(row_of(tile + 2 * all));
      const auto next_context =
          prologue_of(loss, row_of(tile + all), is_present(tile + all), next_prefetched);
      const auto outcome = outcome_of<GRADIENTS>(loss, row_of(tile), context, Nothing(),
                                                 VALUES != NO_VALUES, T(given.value), reciprocal);
      if (is_present(tile) && slice == 0) {
        take<VALUES, Loss>(outcome, tile * rows + threadIdx.x, results.value, sum, counted);
      }
      if constexpr (GRADIENTS) {
        constexpr int G = Row::INPUTS;
        using E = typename Row::template Element<G>;
        const bool active = context.status == ACTIVE;
        const E others = convert<E>(without_loss<T>(context.status));
        E own = others;
        if (active) own = convert<E>(derivative(loss.gradient_of_target(outcome.done)));
        const Column column = active ? context.column : Column(-1);
        if constexpr (TEAM.writing == IN_ZEROS) {
          if (is_present(tile)) {
            const Row row = row_of(tile);
            if (active) *row.template address<G>(column) = own;
            if (context.status == INVALID) write_all<G>(row, others);
          }
        } else if constexpr (TEAM.writing == BESIDE) {
          const Column size = Column((columns + (slices - 1)) / slices), begin = slice * size;
          write_beside<G>(row_of(tile), is_present(tile), column, own, others, begin,
                          min(begin + size, Column(columns)));
        } else if constexpr (TEAM.writing == STAGED) {
          const int here = int(min(Index(rows), Index(n) - tile * rows));
          E* const to = get<G>(pointers) + tile * (long long)(rows)*columns;
          staged.write(to, here, int(column), own, others, context.status == INVALID);
        } else {
          const OneOfEachRow<E> ones{shared_array<int, TEAM.threads>(),
                                     shared_array<E, TEAM.threads>()};
          ones.column[threadIdx.x] = int(column);
          ones.number[threadIdx.x] = own;
          __syncthreads();
          const int here = int(min(Index(rows), Index(n) - tile * rows));
          const int begin = min(slice * rows_of_slice, here);
          const int end = min(begin + rows_of_slice, here);
          const OneOfEachRow<E> own_ones{ones.column + begin, ones.number + begin};
          E* const to = get<G>(pointers) + (tile * (long long)(rows) + begin) * columns;
          own_ones.template write<TEAM.threads>(to, end - begin, unsigned(columns), by_columns);
          __syncthreads();
          const bool is_own = int(threadIdx.x) >= begin && int(threadIdx.x) < end;
          if (is_own && context.status == INVALID) write_all<G>(row_of(tile), others);
        }
      }
      context = next_context;
      next_prefetched = prefetched_after;
    }
    if constexpr (REDUCED) {
      if (slice == 0) reduction.add(segment, sum, counted);
    }
  }
  if constexpr (REDUCED) {
    if (slice == 0) reduction.finish(unsigned(workers));
  }
  // Shared memory stays until it has been read.
  if constexpr (GRADIENTS && TEAM.writing == STAGED) TileCopies<TEAM.threads>::wait_for_stores();
}
