// Copies of neighbouring elements, of any alignment, between device memory and shared memory. Most
// of them move in whole pieces of 16 bytes, by bulk copies (TMA) where there are such; the few
// elements before and after these move one by one.
#pragma once
#include "memory/arrivals.cuh"
#include "memory/async_copy.cuh"
#include "memory/vector.cuh"

DEVICE int misalignment(const void* address) {
  return int(reinterpret_cast<unsigned long long>(address) % 16);
}

// Neighbouring bytes: `lead` ones before an address that 16 divides, `whole` ones in pieces of 16
// bytes, and those after them.
struct Pieces {
  static constexpr int BYTES = 16;
  int lead, whole, after;
  DEVICE Pieces(const void* first, int bytes)
      : lead(min(-misalignment(first) & (BYTES - 1), bytes)),
        whole((bytes - lead) & -BYTES),
        after(bytes - lead - whole) {}
  // Those from an address that 16 divides.
  DEVICE explicit Pieces(int bytes) : lead(0), whole(bytes & -BYTES), after(bytes - whole) {}

  // f(offset) for each piece, divided among THREADS threads.
  template <int THREADS>
  DEVICE void each(auto f) const {
#pragma unroll 4
    for (int at = BYTES * threadIdx.x; at < whole; at += BYTES * THREADS) f(lead + at);
  }
  // f(offset) for each element of SIZE bytes outside of the pieces, divided among 16 threads or
  // more.
  template <int SIZE>
  DEVICE void each_other(auto f) const {
    if ((lead | after) == 0) return;  // most often
    const int own = SIZE * int(threadIdx.x);
    if (own < lead) f(own);
    if (own < after) f(lead + whole + own);
  }
};

// The copies of a block of THREADS threads to one of two places in shared memory, in turns, while
// it works on what is at the other place; or to the only one of its STAGES. The turns are 0, 1, ...
// BY_ALL: all threads load, each some of what a turn waits for by `copy_bytes`.
template <int THREADS, bool BY_ALL = false, int STAGES = 2>
struct TileCopies {
  static constexpr bool IN_GROUPS = BY_ALL || !BULK_COPIES;  // copies of threads
  static constexpr int COPYING = IN_GROUPS ? THREADS : 32;   // threads that load

  // All threads of the block call this first.
  static DEVICE void begin() {
    if constexpr (BULK_COPIES) {
      FullBarriers::begin();
      __syncthreads();
    }
  }
  // Waits until the stores that the first thread has begun have read shared memory.
  static DEVICE void wait_for_stores() {
    if constexpr (BULK_COPIES) {
      cp_async_bulk_wait_group_read();
      __syncwarp();
    }
  }
  // All loads of a turn have begun, by the threads that load.
  static DEVICE void commit(unsigned turn) {
    if constexpr (BULK_COPIES) {
      __syncwarp();
      if (threadIdx.x == 0) mbarrier_arrive(FullBarriers::barrier(turn));
    }
    if constexpr (IN_GROUPS) end_group_of_copies();
  }
  // Waits for the loads of a turn: of two stages, the last turn but one that has begun.
  static DEVICE void wait(unsigned turn) {
    if constexpr (BULK_COPIES) FullBarriers::wait(turn);
    if constexpr (IN_GROUPS) {
      wait_for_copies<STAGES - 1>();
      __syncthreads();
    }
  }
  // Makes the writes of this thread to shared memory visible to later bulk copies.
  static DEVICE void fence() {
    if constexpr (BULK_COPIES) fence_proxy_async();
  }

  // Copies elements to shared memory, as far behind a multiple of 16 as they are in device memory:
  // the work of the threads that load.
  template <class E>
  static DEVICE void load(unsigned turn, unsigned char* to, const E* from, int count) {
    constexpr int SIZE = sizeof(E);
    const Pieces pieces(from, count * SIZE);
    const auto* const source = reinterpret_cast<const unsigned char*>(from);
    to += misalignment(from);
    load_pieces(turn, to, source, pieces);
    pieces.template each_other<SIZE>(
        [&](int at) { *reinterpret_cast<E*>(to + at) = *reinterpret_cast<const E*>(source + at); });
  }

  // Copies elements from anywhere in shared memory: the work of all threads.
  template <class E>
  static DEVICE void store(E* to, const E* from, int count) {
    constexpr int SIZE = sizeof(E);
    const Pieces pieces(to, count * SIZE);
    auto* const target = reinterpret_cast<unsigned char*>(to);
    const auto* const source = reinterpret_cast<const unsigned char*>(from);
    if (misalignment(from) == misalignment(to)) {
      store_pieces(target, source, pieces);
    } else {
      pieces.template each<THREADS>([&](int at) {
        constexpr int WIDTH = 16 / SIZE;
        store_vector<WIDTH>(to + at / SIZE, load_apart<WIDTH>(from + at / SIZE, 1));
      });
    }
    pieces.template each_other<SIZE>([&](int at) { to[at / SIZE] = from[at / SIZE]; });
  }

  // The same between addresses that 16 divides.
  template <class E>
  static DEVICE void store_aligned(E* to, const E* from, int count) {
    constexpr int SIZE = sizeof(E);
    const Pieces pieces(count * SIZE);
    store_pieces(reinterpret_cast<unsigned char*>(to), reinterpret_cast<const unsigned char*>(from),
                 pieces);
    pieces.template each_other<SIZE>([&](int at) { to[at / SIZE] = from[at / SIZE]; });
  }

 private:
  static DEVICE void load_pieces(unsigned turn, unsigned char* to, const unsigned char* from,
                                 const Pieces& pieces) {
    if constexpr (BULK_COPIES) {
      if (threadIdx.x != 0 || pieces.whole == 0) return;
      mbarrier_expect_tx(FullBarriers::barrier(turn), pieces.whole);
      cp_async_bulk_load(shared_address(to + pieces.lead), from + pieces.lead, pieces.whole,
                         FullBarriers::barrier(turn));
    } else {
      pieces.template each<THREADS>([&](int at) { copy_bytes<16>(to + at, from + at); });
    }
  }
  static DEVICE void store_pieces(unsigned char* to, const unsigned char* from,
                                  const Pieces& pieces) {
    if constexpr (BULK_COPIES) {
      if (threadIdx.x != 0 || pieces.whole == 0) return;
      cp_async_bulk_store(to + pieces.lead, shared_address(from + pieces.lead), pieces.whole);
      cp_async_bulk_commit_group();
    } else {
      pieces.template each<THREADS>([&](int at) {
        *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(from + at);
      });
    }
  }
};
