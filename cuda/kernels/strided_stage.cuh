// Gradients of rows that lie side by side, on their way through shared memory.
//
// A gradient of classes ahead of an odd number of pixels begins within a sector of memory. If each
// warp stored what it computes, it would store a part of two sectors, and their other parts would
// come from other warps, other blocks even, later. So a block puts some columns of its tile into
// shared memory, as far behind a multiple of 16 bytes as they are in device memory. From there a
// warp stores a whole column: its sectors at once, but for the first and the last one.
#pragma once
#include "kernels/strided_batch.cuh"
#include "memory/tile_copy.cuh"

// Places for the columns of a turn, of BYTES each. There are two: one warp may still store those of
// a turn while another one puts those of the next turn. Gradients of all dtypes take turns at them:
// places of each one's own would be too much for a block.
template <int BYTES>
DEVICE unsigned char* place_of_turn(unsigned turn) {
  __shared__ __align__(16) unsigned char both[2][BYTES];
  return both[turn % 2];
}

template <class E, class Team>
struct StridedStage {
  static constexpr int SIZE = sizeof(E);
  // Columns at a time, each the work of a warp.
  static constexpr int COUNT = SIZE > 4 || Team::THREADS < 256 ? 4 : 8;
  static_assert(COUNT <= Team::THREADS / 32, "there are as many warps");
  static_assert(Team::STAYS && Team::THREADS_PER_ROW == 1, "a thread has all columns of its rows");
  using Columns = E[COUNT][Team::ROWS + 16 / SIZE];

  E* first;        // the first row of the tile in column 0
  long long step;  // from one column to the next
  int rows;        // of the tile

  // The columns of a turn, in one of the places of BYTES.
  template <int BYTES>
  static DEVICE Columns& columns(unsigned turn) {
    static_assert(sizeof(Columns) <= BYTES, "there is room for the columns");
    return reinterpret_cast<Columns&>(*place_of_turn<BYTES>(turn));
  }
  DEVICE E* at(long long column) const { return first + column * step; }
  // Where an element of a row is put, as number `own` of the columns.
  DEVICE E* place(Columns& columns, int own, long long column, int row) const {
    return columns[own] + (misalignment(at(column)) / SIZE + row);
  }
  // Stores the columns from `begin` on that are ahead of `end`.
  DEVICE void store(const Columns& columns, long long begin, long long end) const {
    constexpr int WIDTH = 16 / SIZE;
    const int own = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (own >= COUNT || begin + own >= end) return;
    E* const to = at(begin + own);
    const E* const from = columns[own] + misalignment(to) / SIZE;
    const Pieces pieces(to, rows * SIZE);
    const auto store_piece = [&](int offset) {
      const int k = offset / SIZE;
      store_vector<WIDTH>(to + k, *reinterpret_cast<const Vector<E, WIDTH>*>(from + k));
    };
    const auto store_element = [&](int offset) { to[offset / SIZE] = from[offset / SIZE]; };
    pieces.template each<32>(store_piece, lane);
    pieces.template each_other<SIZE>(store_element, lane);
  }
};
