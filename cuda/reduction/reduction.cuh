// What becomes of loss values: the value of a call from the values of its elements or rows, and the
// division of gradients that goes with it.
#pragma once
#include "reduction/sum.cuh"
#include "memory/vector.cuh"

// Shares are what elements or rows count in a mean: weights, what a mask leaves. A gradient divisor
// is a sum of them, computed ahead of the gradients of a mean; a count is one where each is 0 or 1.
enum Values {
  NO_VALUES,
  EACH_VALUE,
  SUM_OF_VALUES,
  WEIGHTED_MEAN_OF_VALUES,
  GRADIENT_DIVISOR,
  COUNT
};

// Division of a gradient by the number of elements (or the sum of weights): a reciprocal in two
// parts, so that the quotient is rounded once.
template <class T>
struct Reciprocal {
  T high, low;
  __device__ __forceinline__ explicit Reciprocal(double divisor) {
    const double reciprocal = 1.0 / divisor;
    high = T(reciprocal);
    if constexpr (sizeof(T) == sizeof(double)) {
      low = fma(-reciprocal, divisor, 1.0) * reciprocal;
    } else {
      low = T(reciprocal - double(high));
    }
    if (!isfinite(high) || !isfinite(low)) low = T(0);
  }
  // x / divisor, to be stored as an E: half precision has no use for the low part.
  template <class E>
  __device__ __forceinline__ E times(T x) const {
    if constexpr (sizeof(E) < sizeof(T)) return convert<E>(x * high);
    const T refined = fma(x, high, x * low);
    return convert<E>(isfinite(refined) ? refined : x * high);
  }
};

// The value of a call, one number. The elements (or rows) form segments, each the work of one
// block; the last block adds them up. With more than one segment `counter` (zeroed) and `partials`
// (2 doubles a segment, 4 for a weighted mean) are workspace of this launch alone. MASKED: with
// nothing left a gradient divisor is infinite, so that the gradient is 0 and not 0 / 0. A COUNT is
// exact in any order: blocks add theirs to the value (a double, zeroed), and are done.
template <Values VALUES, int THREADS, bool MASKED, class Result>
struct Reduction {
  static constexpr int SUMS = VALUES == WEIGHTED_MEAN_OF_VALUES ? 2 : 1;
  Result* value;
  unsigned* counter;
  double* partials;
  long long segments;
  double divisor;

  // One segment is complete: the sums of all threads of this block, or of thread 0 ALONE.
  template <bool ALONE = false, class T>
  __device__ __forceinline__ void add(long long segment, const Sum<T>& values,
                                      const Sum<T>& shares) const {
    Sum<double> parts[2] = {values.widened(), shares.widened()};
    if constexpr (!ALONE) {
      parts[0] = block_sum<THREADS>(parts[0]);
      if constexpr (SUMS == 2) parts[1] = block_sum<THREADS>(parts[1]);
    }
    if (threadIdx.x != 0) return;
    if constexpr (VALUES == COUNT) {
      atomicAdd(value, parts[0].total());
    } else if (segments == 1) {
      *value = convert<Result>(reduced(parts));
    } else {
      store(partials, segment, parts);
    }
  }

  // All segments of this block are complete.
  __device__ __forceinline__ void finish() const {
    if (segments > 1 && is_last(arrive_at(counter), gridDim.x)) finish(partials, segments);
  }

  // The same where each TEAM of segments is added by the last of its blocks, which `counter` needs
  // a further number for each of; many segments are added sooner so. What a block waits for is
  // short when it arrives ahead of other work.
  static constexpr int TEAM = 64;
  __device__ __forceinline__ unsigned arrive_in_team(long long segment) const {
    return VALUES != COUNT && segments > 1 ? arrive_at(counter + 1 + segment / TEAM) : 0;
  }
  __device__ __forceinline__ void finish_in_teams(long long segment, unsigned before) const {
    if (VALUES == COUNT || segments == 1) return;
    const long long team = segment / TEAM, teams = (segments + TEAM - 1) / TEAM;
    const long long members = team + 1 < teams ? TEAM : segments - team * TEAM;
    if (!is_last(before, unsigned(members))) return;
    Sum<double> sums[2];
    add_up(sums, partials + team * TEAM * SUMS * 2, members);
    if (teams == 1) {
      if (threadIdx.x == 0) *value = convert<Result>(reduced(sums));
    } else {
      double* const of_teams = partials + segments * SUMS * 2;
      if (threadIdx.x == 0) store(of_teams, team, sums);
      if (is_last(arrive_at(counter), unsigned(teams))) finish(of_teams, teams);
    }
  }

 private:
  static __device__ __forceinline__ unsigned arrive_at(unsigned* counter) {
    return threadIdx.x == 0 ? arrive(counter) : 0;
  }
  static __device__ __forceinline__ void store(double* to, long long index,
                                               const Sum<double> (&parts)[2]) {
#pragma unroll
    for (int s = 0; s < SUMS; ++s) {
      to[(index * SUMS + s) * 2] = parts[s].high;
      to[(index * SUMS + s) * 2 + 1] = parts[s].low;
    }
  }
  // The sums of `count` partial ones; the result is thread 0's alone.
  static __device__ __forceinline__ void add_up(Sum<double> (&sums)[2], const double* from,
                                                long long count) {
    sums[0] = sums[1] = Sum<double>::zero();
#pragma unroll 4
    for (long long i = threadIdx.x; i < count; i += THREADS) {
#pragma unroll
      for (int s = 0; s < SUMS; ++s) {
        const double2 part = __ldcg(reinterpret_cast<const double2*>(from) + i * SUMS + s);
        sums[s] += Sum<double>{part.x, part.y};
      }
    }
    sums[0] = block_sum<THREADS>(sums[0]);
    if constexpr (SUMS == 2) sums[1] = block_sum<THREADS>(sums[1]);
  }
  __device__ __forceinline__ void finish(const double* from, long long count) const {
    Sum<double> sums[2];
    add_up(sums, from, count);
    if (threadIdx.x == 0) *value = convert<Result>(reduced(sums));
  }
  __device__ __forceinline__ double reduced(const Sum<double> (&sums)[2]) const {
    double over = divisor;
    if constexpr (VALUES == WEIGHTED_MEAN_OF_VALUES) over = sums[1].total();
    const double quotient = sums[0].total() / over;
    if (VALUES == GRADIENT_DIVISOR && MASKED && quotient == 0.0) return 1.0 / quotient;
    return quotient;
  }
};
