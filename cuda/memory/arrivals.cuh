// Barriers on which bytes arrive in the shared memory of a block, from the copy engine or from
// other blocks of its cluster.
#pragma once

// They need PTX, and an architecture that has them.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define ARRIVALS 1
#else
#define ARRIVALS 0
#endif

#if ARRIVALS
__device__ __forceinline__ unsigned shared_address(const void* place) {
  return unsigned(__cvta_generic_to_shared(place));
}

#define TRY_WAIT(INSTRUCTION)                                                             \
  asm volatile("{\n.reg .pred p;\n" INSTRUCTION " p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" \
               : "=r"(done)                                                               \
               : "r"(barrier(turn)), "r"(turn / 2 % 2)                                    \
               : "memory")

// Two of them, for what arrives in turns 0, 1, … at two places: while one turn is waited for, the
// next may be on its way. A barrier counts one thread, which arrives when it has said how many
// bytes are to come.
struct Arrivals {
  static __device__ __forceinline__ unsigned barrier(unsigned turn) {
    __shared__ unsigned long long barriers[2];
    return shared_address(&barriers[turn % 2]);
  }
  // All threads wait for one another after this.
  static __device__ __forceinline__ void begin() {
    if (threadIdx.x < 2) {
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier(threadIdx.x)) : "memory");
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
  }
  // Waits for a turn. Of what other blocks of a CLUSTER have sent that takes longer: it makes this
  // multiprocessor forget what it holds of device memory.
  template <bool CLUSTER>
  static __device__ __forceinline__ void wait(unsigned turn) {
    unsigned done = 0;
    while (done == 0) {
      if constexpr (CLUSTER) {
        TRY_WAIT("mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64");
      } else {
        TRY_WAIT("mbarrier.try_wait.parity.shared::cta.b64");
      }
    }
  }
};
#undef TRY_WAIT
#endif
