// Copies that nobody waits for, barriers on which they arrive, and policies of the cache:
// instructions that CUDA C++ has no functions for, a function for each, and which of them an
// architecture has. The emulator of the tests has functions of these names.
#pragma once
#include "numbers/device.cuh"

#ifdef __CUDA_ARCH__
#define CLUSTERS (ARCHITECTURE >= 900)
#else
#define CLUSTERS 0
#endif

// Copies from device memory to shared memory that a thread need not wait for.
constexpr bool ASYNCHRONOUS_COPIES = ARCHITECTURE >= 800;
// Bulk copies between device memory and shared memory, by the Tensor Memory Accelerator (TMA), and
// the barriers on which their bytes arrive.
constexpr bool BULK_COPIES = ARCHITECTURE >= 900;

#ifdef __CUDA_ARCH__
// The number, of which the compiler then assumes nothing. It takes no instruction.
DEVICE unsigned opaque(unsigned number) {
  asm("" : "+r"(number));
  return number;
}
// The same of a number that is not to be kept in a register, but computed anew from here on.
DEVICE int computed_anew(int number) {
  asm volatile("" : "+r"(number));
  return number;
}
DEVICE unsigned shared_address(const void* place) {
  return unsigned(__cvta_generic_to_shared(place));
}

// L2 policy. Passes without gradients evict their elements first. Passes with gradients keep them
// until the gradient is written, which saves 3 to 7% on an H200, then release them.
template <bool KEPT>
DEVICE unsigned long long cache_policy() {
  unsigned long long policy;
  if constexpr (KEPT) {
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  } else {
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  }
  return policy;
}
DEVICE void release_line(const void* address) {
  asm volatile("applypriority.global.L2::evict_normal [%0], 128;" ::"l"(address) : "memory");
}

// BYTES from `from` + FROM to `to` + TO: offsets that are part of the instruction.
template <int BYTES, int TO, int FROM>
DEVICE void cp_async(unsigned to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0 + %2], [%1 + %3], %4;" ::"r"(to), "l"(from), "n"(TO),
               "n"(FROM), "n"(BYTES)
               : "memory");
}
template <int TO, int FROM>
DEVICE void cp_async_16(unsigned to, const void* from, unsigned long long policy) {
  asm volatile(
      "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0 + %2], [%1 + %3], 16, %4;" ::"r"(to),
      "l"(from), "n"(TO), "n"(FROM), "l"(policy)
      : "memory");
}
DEVICE void cp_async_16(unsigned to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
               : "memory");
}
DEVICE void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until no more than the last PENDING groups are on their way.
template <int PENDING>
DEVICE void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Bulk copies and other blocks of a cluster see the barrier too.
DEVICE void mbarrier_init(unsigned barrier, unsigned threads) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(threads) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
DEVICE void mbarrier_expect_tx(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
DEVICE void mbarrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Whether all that was to come in a phase of the barrier has come; they have parities 0, 1, 0, ...
DEVICE bool mbarrier_try_wait(unsigned barrier, unsigned parity) {
  unsigned done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

// Bulk copies move multiples of 16 bytes, between addresses that 16 divides.
DEVICE void cp_async_bulk_load(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier)
      : "memory");
}
DEVICE void cp_async_bulk_store(void* to, unsigned from, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                   __cvta_generic_to_global(to)),
               "r"(from), "r"(bytes)
               : "memory");
}
DEVICE void cp_async_bulk_commit_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until nothing of the groups is still to be read.
DEVICE void cp_async_bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
// Makes the writes of this thread to shared memory visible to later bulk copies: these belong to
// another proxy than ordinary accesses.
DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
#endif
