// Compensated sums in a fixed order. Their bits do not depend on the threads that compute them.
//
// A thread adds the elements of a vector in the arithmetic type of the loss, and the vectors with
// their rounding errors. That takes two floats and no double arithmetic in the loop. Threads, warps
// and blocks are then added in double, again compensated. The error of the whole is far below one
// unit in the last place of a float at any length, and of a double too.
#pragma once
#include "numbers/device.cuh"

template <class T>
struct Sum {
  T high, low;  // the rounded sum, and the sum of the rounding errors

  static DEVICE Sum zero() { return {T(0), T(0)}; }

  // Knuth's TwoSum: high + x = sum + error, exactly.
  DEVICE void operator+=(T x) {
    const T sum = high + x;
    const T moved = sum - high;
    const T error = (high - (sum - moved)) + (x - moved);
    high = sum;
    low += error;
  }
  DEVICE void operator+=(const Sum& other) {
    *this += other.high;
    low += other.low;
  }
  // An infinite or NaN sum has no rounding error: inf - inf in `low` must not reach the result.
  DEVICE double total() const { return isfinite(high) ? double(high) + double(low) : double(high); }
  DEVICE Sum<double> widened() const { return {double(high), isfinite(high) ? double(low) : 0.0}; }
};

// What a block does once is in loops that are not unrolled: unrolled, it would be half of the code
// of a kernel.

// COUNT sums over a warp, or over so many neighbouring threads, a power of two; the results are
// those of the first thread.
template <int COUNT>
DEVICE void warp_sums(Sum<double> (&sums)[COUNT], int threads = 32) {
#pragma unroll 1
  for (int distance = threads / 2; distance > 0; distance /= 2) {
#pragma unroll
    for (int c = 0; c < COUNT; ++c) {
      Sum<double> other;
      other.high = __shfl_down_sync(0xffffffffu, sums[c].high, distance);
      other.low = __shfl_down_sync(0xffffffffu, sums[c].low, distance);
      sums[c] += other;
    }
  }
}

// COUNT sums over a block of THREADS threads; the results are thread 0's alone.
template <int THREADS, int COUNT>
DEVICE void block_sums(Sum<double> (&sums)[COUNT]) {
  constexpr int WARPS = THREADS / 32;
  __shared__ double high[COUNT][WARPS], low[COUNT][WARPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  warp_sums(sums);
  __syncthreads();  // the previous call may still be reading
#pragma unroll
  for (int c = 0; c < COUNT; ++c) {
    if (lane == 0) {
      high[c][warp] = sums[c].high;
      low[c][warp] = sums[c].low;
    }
  }
  __syncthreads();
  if (warp == 0) {
#pragma unroll
    for (int c = 0; c < COUNT; ++c) {
      sums[c] = Sum<double>::zero();
      if (lane < WARPS) sums[c] = {high[c][lane], low[c][lane]};
    }
    warp_sums(sums);
  }
}

// COUNT sums over a block of THREADS threads, those of threads whose numbers are equal modulo
// `apart`; of the last threads, that are less than `apart`, there are no sums. The results are
// those of the first `apart` threads.
template <int THREADS, class T, int COUNT>
DEVICE void interleaved_sums(Sum<T> (&sums)[COUNT], int apart) {
  __shared__ T high[COUNT][THREADS], low[COUNT][THREADS];
  const int own = int(threadIdx.x);
#pragma unroll 1
  for (int rows = THREADS / apart; rows > 1;) {
    const int half = (rows + 1) / 2 * apart;  // the second half is added to the first one
    if (own >= half && own < rows * apart) {
#pragma unroll
      for (int c = 0; c < COUNT; ++c) {
        high[c][own] = sums[c].high;
        low[c][own] = sums[c].low;
      }
    }
    __syncthreads();
    if (own + half < rows * apart) {
#pragma unroll
      for (int c = 0; c < COUNT; ++c) sums[c] += Sum<T>{high[c][own + half], low[c][own + half]};
    }
    rows = (rows + 1) / 2;
  }
}

// Plain sums over a block of the totals of float sums. Those are so few numbers of so few bits that
// the rounding errors of a double do not show.
template <int THREADS, int COUNT>
DEVICE void block_totals(double (&totals)[COUNT]) {
  constexpr int WARPS = THREADS / 32;
  __shared__ double parts[COUNT][WARPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto add_neighbours = [&](int distance) {
#pragma unroll
    for (int c = 0; c < COUNT; ++c) {
      totals[c] += __shfl_down_sync(0xffffffffu, totals[c], distance);
    }
  };
#pragma unroll 1
  for (int distance = 16; distance > 0; distance /= 2) add_neighbours(distance);
  __syncthreads();  // the previous call may still be reading
#pragma unroll
  for (int c = 0; c < COUNT; ++c) {
    if (lane == 0) parts[c][warp] = totals[c];
  }
  __syncthreads();
  static_assert((WARPS & (WARPS - 1)) == 0, "distances would not be whole");
  if (warp == 0) {
#pragma unroll
    for (int c = 0; c < COUNT; ++c) totals[c] = lane < WARPS ? parts[c][lane] : 0.0;
#pragma unroll 1
    for (int distance = WARPS / 2; distance > 0; distance /= 2) add_neighbours(distance);
  }
}

// A fence of acquire and release at the scope of the device: what this thread wrote before is seen
// by who sees what it writes later, and the other way around. __threadfence() is sequentially
// consistent, and slower.
DEVICE void device_fence() {
#ifdef __CUDA_ARCH__
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
#else
  __threadfence();
#endif
}

// Counts the blocks that are done. The counter starts at 0 and belongs to one launch alone. Thread
// 0 of each block adds 1 after what it wrote, and gets the number before that.
DEVICE unsigned arrive(unsigned* counter) {
  device_fence();
  return atomicAdd(counter, 1u);
}
// True in every thread of the last of `all` blocks, which then sees what all wrote before they
// arrived. `before` is the result of arrive() in thread 0.
DEVICE bool is_last(unsigned before, unsigned all) {
  const bool last = threadIdx.x == 0 && before + 1 == all;
  if (last) device_fence();
  return __syncthreads_or(last);
}
