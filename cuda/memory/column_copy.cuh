// Copies of columns of a tile, each of which is a stretch of neighbouring elements, between device
// memory and shared memory, by bulk copies (TMA).
#pragma once
#include "memory/tile_copy.cuh"

// The work of one warp. A column is of any alignment. In shared memory it is as far behind a
// multiple of 16 as in device memory, so that whole pieces move.
struct ColumnCopies {
  static constexpr int PIECE = Pieces::BYTES;

  // Copies a column of a turn: the work of one thread. If it `reads_around`, it may read what is
  // around the column in pieces, and copies that too.
  template <class E>
  static DEVICE void load(unsigned turn, unsigned char* to, const E* from, int count,
                          bool reads_around) {
    constexpr int SIZE = sizeof(E);
    Pieces pieces(from, count * SIZE);
    const auto* source = reinterpret_cast<const unsigned char*>(from);
    if (reads_around) {
      const int ahead = misalignment(from);
      source -= ahead;
      to -= ahead;
      pieces.lead = 0;
      pieces.whole = (ahead + count * SIZE + PIECE - 1) & -PIECE;
    } else {
#pragma unroll 1
      for (int at = 0; at < pieces.lead + pieces.after; at += SIZE) {
        const int place = at < pieces.lead ? at : at + pieces.whole;
        *reinterpret_cast<E*>(to + place) = from[place / SIZE];
      }
      fence_proxy_async();  // a later copy may come to the same place
    }
    if (pieces.whole == 0) return;
    const unsigned barrier = FullBarriers::barrier(turn);
    mbarrier_expect_tx(barrier, pieces.whole);
    cp_async_bulk_load(shared_address(to + pieces.lead), source + pieces.lead, pieces.whole,
                       barrier);
  }

  // Copies columns back: the pieces of one at a time by each thread, the elements around them by
  // all of the warp. From a column to the next one there are `step` elements, in shared memory
  // PITCH.
  template <int PITCH, class E>
  static DEVICE void store(E* to, long long step, const E* from, int count, int columns) {
    constexpr int SIZE = sizeof(E), WHOLE = PIECE / SIZE;
    const int lane = threadIdx.x % 32;
    for (int k = lane; k < columns; k += 32) {
      const Pieces pieces(to + k * step, count * SIZE);
      if (pieces.whole == 0) continue;
      cp_async_bulk_store(reinterpret_cast<unsigned char*>(to + k * step) + pieces.lead,
                          shared_address(from + k * PITCH) + pieces.lead, pieces.whole);
    }
    cp_async_bulk_commit_group();
    for (int one = lane; one < columns * 2 * WHOLE; one += 32) {
      const int k = one / (2 * WHOLE), at = one % WHOLE;
      const bool leads = one % (2 * WHOLE) < WHOLE;
      const Pieces pieces(to + k * step, count * SIZE);
      if (at * SIZE >= (leads ? pieces.lead : pieces.after)) continue;
      const int place = leads ? at : (pieces.lead + pieces.whole) / SIZE + at;
      to[k * step + place] = from[k * PITCH + place];
    }
  }
};
