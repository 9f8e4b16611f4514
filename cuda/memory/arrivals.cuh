// Barriers on which bytes arrive in the shared memory of a block, from the copy engine or from
// other blocks of its cluster. They need an architecture that has ARRIVALS.
#pragma once
#include "memory/instructions.cuh"

// Two barriers, for two places that turns 0, 1, ... use alternately: while threads wait for one
// turn, the next may be on its way. A turn ends when ARRIVING threads have arrived. Barriers of
// another PLACE are others.
template <int ARRIVING, int PLACE = 0>
struct BarriersOfTurns {
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
// Those of bytes: one thread arrives when it has said how many are to come.
using Arrivals = BarriersOfTurns<1>;
