// Compensated sums in a fixed order. Their bits do not depend on the threads that compute them.
//
// A thread adds the elements of a vector in the arithmetic type of the loss, and the vectors with
// their rounding errors. That takes two floats and no double arithmetic in the loop. Threads, warps
// and blocks are then added in double, and those of doubles compensated again. The error of the
// whole is far below one unit in the last place of a float at any length, and of a double too.
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

// What threads and blocks hand over of their sums. Of floats it is the total: those are so few
// numbers of so few bits that the rounding errors of a double do not show.
DEVICE double part_of(const Sum<float>& sum) { return sum.total(); }
DEVICE Sum<double> part_of(const Sum<double>& sum) { return sum.widened(); }
template <class T>
using PartOf = decltype(part_of(declared<const Sum<T>&>()));
DEVICE double total_of(double part) { return part; }
DEVICE double total_of(const Sum<double>& part) { return part.total(); }

DEVICE double shuffled_down(double part, int distance) {
  return __shfl_down_sync(0xffffffffu, part, distance);
}
DEVICE Sum<double> shuffled_down(const Sum<double>& part, int distance) {
  return {shuffled_down(part.high, distance), shuffled_down(part.low, distance)};
}

// What a block does once is in loops that are not unrolled: unrolled, it would be half of the code
// of a kernel.

// COUNT sums over a warp, or over so many neighbouring threads, a power of two; the results are
// those of the first thread.
template <class Part, int COUNT>
DEVICE void warp_sums(Part (&sums)[COUNT], int threads = 32) {
#pragma unroll 1
  for (int distance = threads / 2; distance > 0; distance /= 2) {
#pragma unroll
    for (int c = 0; c < COUNT; ++c) sums[c] += shuffled_down(sums[c], distance);
  }
}

// COUNT sums over a block of THREADS threads; the results are thread 0's alone.
template <int THREADS, class Part, int COUNT>
DEVICE void block_sums(Part (&sums)[COUNT]) {
  constexpr int WARPS = THREADS / 32;
  static_assert((WARPS & (WARPS - 1)) == 0, "the distances of a warp would not be whole");
  __shared__ Part of_warps[COUNT][WARPS];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  warp_sums(sums);
  __syncthreads();  // the previous call may still be reading
#pragma unroll
  for (int c = 0; c < COUNT; ++c) {
    if (lane == 0) of_warps[c][warp] = sums[c];
  }
  __syncthreads();
  if (warp == 0) {
#pragma unroll
    for (int c = 0; c < COUNT; ++c) sums[c] = lane < WARPS ? of_warps[c][lane] : Part{};
    warp_sums(sums, WARPS);
  }
}

// COUNT sums over a block of THREADS threads, of threads whose numbers are equal modulo `apart`.
// The first `apart` threads have the results. Where `apart` does not divide THREADS, the threads
// behind its last multiple are left out.
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

// Counts those of `all` blocks that are done. Thread 0 of each one adds 1 after what it wrote, and
// gets the number before that. The last one sets the counter back to 0, for the next launch.
DEVICE unsigned arrive(unsigned* counter, unsigned all) {
  device_fence();
  return atomicInc(counter, all - 1);
}
// True in every thread of the last of `all` blocks, which then sees what all wrote before they
// arrived. `before` is the result of arrive() in thread 0.
DEVICE bool is_last(unsigned before, unsigned all) {
  const bool last = threadIdx.x == 0 && before + 1 == all;
  if (last) device_fence();
  return __syncthreads_or(last);
}
