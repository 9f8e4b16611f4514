// Barriers on which bytes arrive in the shared memory of a block, by bulk copies or from other
// blocks of its cluster. They need an architecture that has BULK_COPIES.
#pragma once
#include "memory/instructions.cuh"

// The barriers of two stages, which turns 0, 1, ... use alternately: while threads wait for one
// turn, the next may be on its way. Turn t uses stage t % 2, in its phase t / 2. A turn ends when
// ARRIVING threads have arrived. Barriers of another PLACE are others.
template <int ARRIVING, int PLACE = 0>
struct TwoStageBarriers {
  static DEVICE unsigned barrier(unsigned turn) {
    __shared__ unsigned long long barriers[2];
    return shared_address(&barriers[turn % 2]);
  }
  // All threads wait for one another after this.
  static DEVICE void begin() {
    if (threadIdx.x < 2) mbarrier_init(barrier(threadIdx.x), ARRIVING);
  }
  // Waits for a turn.
  static DEVICE void wait(unsigned turn) {
    while (!mbarrier_try_wait(barrier(turn), turn / 2 % 2)) continue;
  }
};
// Those of bytes: one thread arrives when it has said how many are to come. The stage is full then.
using FullBarriers = TwoStageBarriers<1>;
