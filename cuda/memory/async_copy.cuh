// Asynchronous copies from device memory to shared memory, on architectures that have them.
#pragma once
#include "memory/instructions.cuh"
#include "memory/vector.cuh"

// An address in shared memory, in a register of the thread: blockIdx.z is 0, which the assembler
// does not know. It would otherwise move what all threads have in common to a uniform register. The
// assemblers of CUDA 12.9 and 13.0 encode the wrong register then, in asynchronous copies with a
// cache policy.
DEVICE unsigned address_of_thread(const void* place) { return shared_address(place) ^ blockIdx.z; }
// BYTES, a power of two up to 16, between addresses that they divide; less than 4 of them at once.
template <int BYTES>
DEVICE void copy_bytes(void* to, const void* from) {
  if constexpr (ASYNCHRONOUS_COPIES && BYTES == 16) {
    cp_async_16(shared_address(to), from);
  } else if constexpr (ASYNCHRONOUS_COPIES && BYTES >= 4) {
    cp_async<BYTES, 0, 0>(shared_address(to), from);
  } else {
    *static_cast<Word<BYTES>*>(to) = *static_cast<const Word<BYTES>*>(from);
  }
}
// BYTES from `from` + FROM to `to` + TO, on architectures that have asynchronous copies.
template <int BYTES, int TO, int FROM, bool KEPT>
DEVICE void copy_later(unsigned to, const void* from) {
  if constexpr (BYTES > 16) {
    copy_later<16, TO, FROM, KEPT>(to, from);
    copy_later<BYTES - 16, TO + 16, FROM + 16, KEPT>(to, from);
  } else if constexpr (BYTES == 16) {
    cp_async_16<TO, FROM>(to, from, cache_policy<KEPT>());
  } else {
    cp_async<BYTES, TO, FROM>(to, from);
  }
}
DEVICE void end_group_of_copies() {
  if constexpr (ASYNCHRONOUS_COPIES) cp_async_commit_group();
}
// Waits until no more than the last PENDING groups are on their way.
template <int PENDING>
DEVICE void wait_for_copies() {
  if constexpr (ASYNCHRONOUS_COPIES) cp_async_wait_group<PENDING>();
}
