// The reduction of a call. A mean is a pair: a sum and a denominator. A pass adds up both, and the
// last block divides one by the other.
#pragma once
#include "memory/vector.cuh"
#include "numbers/tuple.cuh"
#include "reduction/sum.cuh"

// What a pass makes of the loss values of elements or rows.
//   NO_VALUES       nothing: it computes gradients alone
//   EACH_VALUE      each is an output
//   SUM_OF_VALUES   their sum over a denominator that is known before the pass: the number of
//                   elements, 1, or what another pass has added up
//   MEAN_OF_VALUES  their sum over a denominator that depends on the data: this pass adds up the
//                   weights, or what a mask or an ignored index leaves
//   COUNT           their sum, each being 0 or 1, which is exact in any order
enum Values { NO_VALUES, EACH_VALUE, SUM_OF_VALUES, MEAN_OF_VALUES, COUNT };

// What the derivatives of a mean are divided by, given its denominator. A mask or an ignored index
// may leave nothing, and the denominator is 0 then. The mean of nothing is 0 / 0, which is NaN. Its
// derivatives are 0, as if there were infinitely many elements. Where the mean cannot be empty, a
// denominator of 0 is a sum of weights, and the derivatives are divided by 0 as the mean is.
template <bool CAN_BE_EMPTY>
DEVICE double denominator_of_derivatives(double denominator) {
  return CAN_BE_EMPTY && denominator == 0.0 ? 1.0 / denominator : denominator;
}

// What multiplies a reduced loss and its derivatives: a number, times one in memory if there is a
// pointer behind the first ARRAYS ones. That is read where it is used: kept, it would take
// registers.
template <int ARRAYS, class Pointers>
struct Scaling;
template <int ARRAYS, class I, class... P>
struct Scaling<ARRAYS, Slots<I, P...>> {
  double number;
  const Slots<I, P...>& pointers;

  DEVICE double value() const {
    if constexpr (sizeof...(P) > ARRAYS) {
      return number * convert<double>(*get<ARRAYS>(pointers));
    } else {
      return number;
    }
  }
};

// The division of numbers by a denominator, after multiplication by a factor and a scale: a product
// with the quotient of these in two parts, so that the result is rounded once.
template <class T>
struct Reciprocal {
  T high, low;
  Reciprocal() = default;
  DEVICE explicit Reciprocal(double denominator, double factor = 1.0, double scale = 1.0) {
    const double product = factor * scale, quotient = product / denominator;
    high = T(quotient);
    if constexpr (sizeof(T) == sizeof(double)) {
      const double left = fma(-quotient, denominator, product);
      low = (left + fma(factor, scale, -product)) / denominator;
    } else {
      low = T(quotient - double(high));
    }
    if (!isfinite(high) || !isfinite(low)) low = T(0);
  }
  // x * factor * scale / denominator, to be stored as an E: one of half precision has no use for
  // the low part.
  template <class E>
  DEVICE E times(T x) const {
    if constexpr (sizeof(E) < sizeof(T)) return convert<E>(x * high);
    const T refined = fma(x, high, x * low);
    return convert<E>(isfinite(refined) ? refined : x * high);
  }
};

// The scaled quotient of a sum and its denominator. EMPTY_IS_ZERO where the sum is one of
// derivatives of a mean that may have nothing left.
template <bool EMPTY_IS_ZERO, class Result>
DEVICE Result reduced(const Sum<double>& sum, double denominator, double scale) {
  const double divisor = denominator_of_derivatives<EMPTY_IS_ZERO>(denominator);
  return Reciprocal<double>(divisor, sum.total(), scale).times<Result>(1.0);
}

// The numbers of a call that anticipates grad_output and its denominator, in the order that
// cupy_losses/_device/anticipation.py knows.
enum Guess {
  ANTICIPATED,  // what a forward pass multiplies by
  USED,         // what it multiplied by
  COUNTED,      // the rows that it counted on its way
  DIVIDED_BY,   // the number of rows that another pass counted ahead, or anticipated
};

// A pass without gradients has no factor. `guess` is null or a number, which becomes the
// denominator of a mean that this pass adds up.
struct NoFactor {
  static constexpr double value = 1.0;
  static constexpr bool is_done = false;
  double* denominator;

  template <bool COUNTS>
  DEVICE double* counted(double) const {
    return denominator;
  }
};

// What a pass multiplies gradients by: grad_output where that is known, in a forward pass that
// writes gradients the one that is anticipated, else 1.
//
// `guess` is null or the numbers of a Guess. A pass without grad_output takes ANTICIPATED. The
// backward pass stores grad_output as ANTICIPATED for a later call. If grad_output equals USED and
// COUNTED equals DIVIDED_BY, it does nothing else. Where the gradients of a call without a backward
// pass are computed anew, the address of grad_output is that of the Guess: its number is USED, so
// that the counts alone decide. No pass reads the numbers that it writes, so that all blocks agree.
struct Factor {
  double value = 1.0;
  bool is_done = false;
  double* counts = nullptr;  // COUNTED and what follows it, where this pass writes them

  // That of a pass that writes GRADIENTS, or none.
  template <bool GRADIENTS>
  static DEVICE auto of(const auto* grad_output, double* guess) {
    if constexpr (GRADIENTS) {
      return Factor(grad_output, guess);
    } else {
      return NoFactor{guess};
    }
  }

  // Where a pass leaves the number of rows, if it COUNTS them, or null; leaves what it divides by.
  template <bool COUNTS>
  DEVICE double* counted(double divisor) const {
    if (!COUNTS || counts == nullptr) return nullptr;
    if (blockIdx.x == 0 && threadIdx.x == 0) counts[DIVIDED_BY - COUNTED] = divisor;
    return counts;
  }
  // Whether the last call had all of `n` rows, so that a pass ahead of this one need not count.
  static DEVICE bool anticipates(const double* guess, long long n) {
    return guess != nullptr && guess[COUNTED] == double(n);
  }

 private:
  DEVICE Factor(const auto* grad_output, double* guess) {
    const bool stores = guess != nullptr && blockIdx.x == 0 && threadIdx.x == 0;
    if (grad_output != nullptr) {
      const bool follows = static_cast<const void*>(grad_output) != guess;
      value = follows ? convert<double>(*grad_output) : guess[USED];
      if (guess != nullptr) {
        is_done = same_bits(value, guess[USED]) && same_bits(guess[COUNTED], guess[DIVIDED_BY]);
      }
      if (stores) guess[ANTICIPATED] = value;
    } else if (guess != nullptr) {
      value = guess[ANTICIPATED];
      counts = guess + COUNTED;
      if (stores) guess[USED] = value;
    }
  }

  static DEVICE bool same_bits(double a, double b) {
    return __double_as_longlong(a) == __double_as_longlong(b);
  }
};

// The sum and the denominator of a call. The elements (or rows) form segments, each the work of one
// block, and the last block adds them up. With more than one segment, `counter` (zeroed) and
// `partials` (2 doubles a segment, 4 where the pass adds up the denominator) are workspace of this
// launch alone. Nothing is stored where `value` is null. `denominator` is that of SUM_OF_VALUES.
// `scaling` multiplies the quotient. For a COUNT, blocks add theirs to the value, which is a zeroed
// double.
template <Values VALUES, int THREADS, bool EMPTY_IS_ZERO, class Result, class Scaling>
struct Reduction {
  static constexpr int SUMS = VALUES == MEAN_OF_VALUES ? 2 : 1;
  using Sums = Sum<double>[SUMS];
  Result* value;
  unsigned* counter;
  double* partials;
  long long segments;
  double denominator;
  Scaling scaling;
  double* counted = nullptr;  // where the denominator goes too, if it is added up

  // One segment is complete. The sums are those of all threads of this block, or of thread 0 ALONE.
  template <bool ALONE = false, class T>
  DEVICE void add(long long segment, const Sum<T>& sum, const Sum<T>& own_denominator) const {
    Sums parts = {sum.widened()};
    if constexpr (SUMS == 2) parts[1] = own_denominator.widened();
    if constexpr (!ALONE) block_sums<THREADS>(parts);
    if (threadIdx.x != 0 || value == nullptr) return;
    if constexpr (VALUES == COUNT) {
      atomicAdd(value, parts[0].total());
    } else if (segments == 1) {
      write(parts);
    } else {
      store(partials, segment, parts);
    }
  }

  // The same for sums of few numbers, of all threads.
  template <class T>
  DEVICE void add_totals(long long segment, const Sum<T>& sum,
                         const Sum<T>& own_denominator) const {
    if constexpr (sizeof(T) == sizeof(float)) {
      double totals[SUMS] = {sum.total()};
      if constexpr (SUMS == 2) totals[1] = own_denominator.total();
      block_totals<THREADS>(totals);
      add<true>(segment, Sum<double>{totals[0], 0.0}, Sum<double>{totals[SUMS - 1], 0.0});
    } else {
      add(segment, sum, own_denominator);
    }
  }

  // All segments of this block are complete.
  DEVICE void finish() const {
    if (value == nullptr || segments == 1) return;
    if (is_last(arrive_at(counter), gridDim.x)) finish(partials, segments);
  }

  // The same for many segments, in a tree: the last block of each group of FAN_IN segments adds
  // these up, the last group adds the groups. `counter` has a further number for each group. A
  // block that arrives ahead of other work waits for less.
  static constexpr int FAN_IN = 64;
  DEVICE unsigned arrive_in_group(long long segment) const {
    return has_groups() ? arrive_at(counter + 1 + segment / FAN_IN) : 0;
  }
  DEVICE void finish_groups(long long segment, unsigned before) const {
    if (!has_groups()) return;
    const long long group = segment / FAN_IN, groups = (segments + FAN_IN - 1) / FAN_IN;
    const long long members = group + 1 < groups ? FAN_IN : segments - group * FAN_IN;
    if (!is_last(before, unsigned(members))) return;
    Sums sums;
    add_up<1>(sums, partials + group * FAN_IN * SUMS * 2, members);
    if (groups == 1) {
      if (threadIdx.x == 0) write(sums);
    } else {
      double* const of_groups = partials + segments * SUMS * 2;
      if (threadIdx.x == 0) store(of_groups, group, sums);
      if (is_last(arrive_at(counter), unsigned(groups))) finish(of_groups, groups);
    }
  }

 private:
  DEVICE bool has_groups() const { return VALUES != COUNT && value != nullptr && segments > 1; }
  static DEVICE unsigned arrive_at(unsigned* counter) {
    return threadIdx.x == 0 ? arrive(counter) : 0;
  }
  static DEVICE void store(double* to, long long index, const Sums& parts) {
#pragma unroll
    for (int s = 0; s < SUMS; ++s) {
      to[(index * SUMS + s) * 2] = parts[s].high;
      to[(index * SUMS + s) * 2 + 1] = parts[s].low;
    }
  }
  // Sums up `count` partial sums, of which a thread reads LOADS at a time. Thread 0 alone has the
  // result.
  template <int LOADS>
  static DEVICE void add_up(Sums& sums, const double* from, long long count) {
#pragma unroll
    for (int s = 0; s < SUMS; ++s) sums[s] = Sum<double>::zero();
#pragma unroll(LOADS)
    for (long long i = threadIdx.x; i < count; i += THREADS) {
#pragma unroll
      for (int s = 0; s < SUMS; ++s) {
        const double2 part = __ldcg(reinterpret_cast<const double2*>(from) + i * SUMS + s);
        sums[s] += Sum<double>{part.x, part.y};
      }
    }
    block_sums<THREADS>(sums);
  }
  DEVICE void finish(const double* from, long long count) const {
    Sums sums;
    add_up<4>(sums, from, count);
    if (threadIdx.x == 0) write(sums);
  }
  DEVICE void write(const Sums& sums) const {
    const double divisor = SUMS == 2 ? sums[SUMS - 1].total() : denominator;
    if (SUMS == 2 && counted != nullptr) *counted = divisor;
    *value = reduced<EMPTY_IS_ZERO, Result>(sums[0], divisor, scaling.value());
  }
};
