// The functions of cuda/memory/instructions.cuh, each of which is an instruction of PTX there.
#pragma once
#include "hooks.h"

__forceinline__ unsigned opaque(unsigned number) { return number; }
__forceinline__ int computed_anew(int number) { return number; }
__forceinline__ unsigned shared_address(const void* place) { return emu::shared_address(place); }

template <bool KEPT>
__forceinline__ unsigned long long cache_policy() {
  return 0;
}
__forceinline__ void release_line(const void* address) { emu::change_priority(address, 128); }

template <int BYTES, int TO, int FROM>
__forceinline__ void cp_async(unsigned to, const void* from) {
  emu::begin_load(to + TO, static_cast<const char*>(from) + FROM, BYTES);
}
template <int TO, int FROM>
__forceinline__ void cp_async_16(unsigned to, const void* from, unsigned long long) {
  cp_async<16, TO, FROM>(to, from);
}
__forceinline__ void cp_async_16(unsigned to, const void* from) { cp_async<16, 0, 0>(to, from); }
__forceinline__ void cp_async_commit_group() { emu::end_group_of_loads(); }
template <int PENDING>
__forceinline__ void cp_async_wait_group() {
  emu::wait_for_loads(PENDING);
}

__forceinline__ void mbarrier_init(unsigned barrier, unsigned threads) {
  emu::begin_arrivals(barrier, threads);
}
__forceinline__ void mbarrier_expect_tx(unsigned barrier, unsigned bytes) {
  emu::expect_bytes(barrier, bytes);
}
__forceinline__ void mbarrier_arrive(unsigned barrier) { emu::arrive(barrier); }
__forceinline__ bool mbarrier_try_wait(unsigned barrier, unsigned parity) {
  return emu::have_arrived(barrier, parity);
}

__forceinline__ void cp_async_bulk_load(unsigned to, const void* from, unsigned bytes,
                                        unsigned barrier) {
  emu::begin_bulk_load(to, from, bytes, barrier);
}
__forceinline__ void cp_async_bulk_store(void* to, unsigned from, unsigned bytes) {
  emu::begin_bulk_store(to, from, bytes);
}
__forceinline__ void cp_async_bulk_commit_group() { emu::end_group_of_bulk_stores(); }
__forceinline__ void cp_async_bulk_wait_group_read() { emu::wait_for_bulk_stores(); }
__forceinline__ void fence_proxy_async() { emu::fence_for_bulk_copies(); }
