// Asynchronous copies from device memory to shared memory, on architectures that have them.
#pragma once

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
#define ASYNCHRONOUS_COPIES 1
#else
#define ASYNCHRONOUS_COPIES 0
#endif

#if ASYNCHRONOUS_COPIES
// Which elements the cache lets go of first: those of a pass without gradients. Beside gradients
// they are to stay longest, so that it writes those out; a row is read once either way, but loss
// and gradient take 3 to 7% less time so on an H200. They are released in the end, for who comes
// next.
template <bool KEPT>
__device__ __forceinline__ unsigned long long cache_policy() {
  unsigned long long policy;
  if constexpr (KEPT) {
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  } else {
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  }
  return policy;
}
__device__ __forceinline__ void release_line(const void* address) {
  asm volatile("applypriority.global.L2::evict_normal [%0], 128;" ::"l"(address) : "memory");
}
// An address in shared memory, in a register of the thread: blockIdx.z is 0, which the assembler
// does not know. It would take what all threads have in common to a uniform register, and an
// asynchronous copy with a cache policy is then encoded with the wrong one, as of CUDA 12.9
// and 13.0.
__device__ __forceinline__ unsigned address_of_thread(const void* place) {
  return unsigned(__cvta_generic_to_shared(place)) ^ blockIdx.z;
}
// 16 aligned bytes.
__device__ __forceinline__ void copy_16_bytes(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(
                   unsigned(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
}
// BYTES from `from` + FROM to `to` + TO: offsets that are part of the instruction.
template <int BYTES, int TO, int FROM, bool KEPT>
__device__ __forceinline__ void copy_later(unsigned to, const void* from) {
  if constexpr (BYTES > 16) {
    copy_later<16, TO, FROM, KEPT>(to, from);
    copy_later<BYTES - 16, TO + 16, FROM + 16, KEPT>(to, from);
  } else if constexpr (BYTES == 16) {
    asm volatile(
        "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0 + %2], [%1 + %3], 16, %4;" ::"r"(to),
        "l"(from), "n"(TO), "n"(FROM), "l"(cache_policy<KEPT>())
        : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0 + %2], [%1 + %3], %4;" ::"r"(to), "l"(from),
                 "n"(TO), "n"(FROM), "n"(BYTES)
                 : "memory");
  }
}
__device__ __forceinline__ void end_group_of_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until no more than the last PENDING groups are on their way.
template <int PENDING>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}
#else
__device__ __forceinline__ void copy_16_bytes(void* to, const void* from) {
  *static_cast<uint4*>(to) = *static_cast<const uint4*>(from);
}
__device__ __forceinline__ void end_group_of_copies() {}
template <int PENDING>
__device__ __forceinline__ void wait_for_copies() {}
#endif
