// The reduction of a call. A mean is a pair: a sum and a denominator. A pass adds up both, and the
// last block divides one by the other.
#pragma once
#include "memory/vector.cuh"
#include "numbers/tuple.cuh"
#include "reduction/factor.cuh"
#include "reduction/sum.cuh"

// What a pass makes of the loss values of elements or rows.
//   NO_VALUES       nothing: it computes gradients alone
//   EACH_VALUE      each is an output
//   SUM_OF_VALUES   their sum over a denominator that is known before the pass: the number of
//                   elements, 1, or what another pass has added up
//   MEAN_OF_VALUES  their sum over a denominator that depends on the data: this pass adds up the
//                   weights, or what a mask or an ignored index leaves
//   COUNT_OF_VALUES their sum, each being 0 or 1, which is exact in any order
enum Values { NO_VALUES, EACH_VALUE, SUM_OF_VALUES, MEAN_OF_VALUES, COUNT_OF_VALUES };

// What the derivatives of a mean are divided by, given its denominator. A mask or an ignored index
// may leave nothing, and the denominator is 0 then. The mean of nothing is 0 / 0, which is NaN. Its
// derivatives are 0, as if there were infinitely many elements: EMPTY_IS_ZERO. Where a mean cannot
// be empty, a denominator of 0 is a sum of weights, and the derivatives are divided by 0 as the
// mean is.
template <bool EMPTY_IS_ZERO>
DEVICE double denominator_of_derivatives(double denominator) {
  return EMPTY_IS_ZERO && denominator == 0.0 ? 1.0 / denominator : denominator;
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

// The scaled quotient of a sum and its denominator. EMPTY_IS_ZERO where the sum is one of the
// derivatives of a mean that can be empty.
template <bool EMPTY_IS_ZERO, class Result>
DEVICE Result reduced(double sum, double denominator, double scale) {
  const double divisor = denominator_of_derivatives<EMPTY_IS_ZERO>(denominator);
  return Reciprocal<double>(divisor, sum, scale).times<Result>(1.0);
}

// What a launch makes of its elements or rows, one argument of its kernel. These form segments. A
// segment is the work of one block, which stores its partial sum. The last block to finish adds up
// the partial sums, and divides.
//   divisor      the denominator of SUM_OF_VALUES and of gradients, where `denominator` is null
//   denominator  where another pass has left it
//   grad_output  of a pass with gradients, or null, see Factor
//   anticipation_or_output  an Anticipation or null, see Factor; without gradients see NoFactor
//   value        those of EACH_VALUE, the result of a reduction, or null where none is wanted: by
//                a backward pass that computes gradients anew
//   counter      how many blocks, or groups of segments, are done: 0 before and after a launch
//   partials     the partial sums of segments, with those of the denominator where the pass adds
//                that up
// With one segment alone, the counter and the partial sums are not used. They belong to this launch
// until it is done. A COUNT_OF_VALUES needs no partial sums: it is added up beside the number of
// blocks that are done.
template <class T, class Result>
struct Results {
  long long segments;
  double divisor;
  const double* denominator;
  const Result* grad_output;
  double* anticipation_or_output;
  Result* value;
  unsigned* counter;
  PartOf<T>* partials;

  DEVICE double known_denominator() const {
    return denominator == nullptr ? divisor : *denominator;
  }
};

// The reduction of a launch, over its elements or rows, to a sum over a denominator: that of
// SUM_OF_VALUES is given. The quotient is multiplied by the scaling.
template <class T, Values VALUES, int THREADS, bool EMPTY_IS_ZERO, class Result, class Scaling>
struct Reduction {
  static constexpr int SUMS = VALUES == MEAN_OF_VALUES ? 2 : 1;
  using Part = PartOf<T>;
  using Parts = Part[SUMS];
  Results<T, Result> results;
  double denominator;
  Scaling scaling;
  double* denominator_output;  // where a denominator that is added up goes too

  // One segment is complete. The sums are those of all threads of this block, or of THREAD_0 alone.
  // Whether a value is wanted is asked FIRST, without which some gradients of rows spill, or last.
  template <bool THREAD_0 = false, bool FIRST = true>
  DEVICE void add(long long segment, const Sum<T>& sum, const Sum<T>& own_denominator) const {
    if (FIRST && results.value == nullptr) return;
    Parts parts = {part_of(sum)};
    if constexpr (SUMS == 2) parts[1] = part_of(own_denominator);
    if constexpr (!THREAD_0) block_sums<THREADS>(parts);
    if (threadIdx.x != 0 || (!FIRST && results.value == nullptr)) return;
    if (results.segments == 1) {
      write(parts);
    } else if constexpr (VALUES == COUNT_OF_VALUES) {
      add_count(static_cast<unsigned long long>(total_of(parts[0])));
    } else {
      store(results.partials, segment, parts);
    }
  }

  // All segments of this block are complete, which is one of so many that have segments.
  DEVICE void finish(unsigned blocks) const {
    if (!has_partials()) return;
    if (is_last(arrive_at(results.counter, blocks), blocks))
      finish<4>(results.partials, int(results.segments));
  }

  // The same for many segments: up to MOST_AT_ONCE are one group. More are a tree: the last block
  // of each group of FAN_IN segments adds these up, the last group adds the groups. `counter` has a
  // further number for each group. Of a block FAN_IN threads add, so that the bits do not depend on
  // how many it has. Arriving is a function of its own, so that a block can do other work before it
  // finishes, and does not wait for the atomic addition.
  static constexpr int FAN_IN = 64;
  static constexpr int MOST_AT_ONCE = 256;
  // More would spill.
  static constexpr unsigned LOADS_OF_GROUPS = ARCHITECTURE >= 1000 && THREADS > 256 ? 1 : 4;
  DEVICE unsigned arrive_in_group(long long segment) const {
    if (!has_partials()) return 0;
    const int group = group_of(int(segment));
    return arrive_at(results.counter + 1 + group, unsigned(members_of(group)));
  }
  DEVICE void finish_groups(long long segment, unsigned before) const {
    if (!has_partials()) return;
    const int all = int(results.segments), group = group_of(int(segment)), first = group * FAN_IN;
    const int members = members_of(group);
    if (!is_last(before, unsigned(members))) return;
    Parts sums;
    constexpr int ADDING = THREADS < FAN_IN ? THREADS : FAN_IN;
    add_up<ADDING, LOADS_OF_GROUPS>(sums, results.partials + first * SUMS, members);
    if (is_one_group()) {
      if (threadIdx.x == 0) write(sums);
    } else {
      const int groups = (all + FAN_IN - 1) / FAN_IN;
      Part* const of_groups = results.partials + results.segments * SUMS;
      if (threadIdx.x == 0) store(of_groups, group, sums);
      const bool last = is_last(arrive_at(results.counter, unsigned(groups)), unsigned(groups));
      if (last) finish<LOADS_OF_GROUPS>(of_groups, groups);
    }
  }

 private:
  DEVICE bool is_one_group() const { return results.segments <= MOST_AT_ONCE; }
  DEVICE int group_of(int segment) const { return is_one_group() ? 0 : segment / FAN_IN; }
  DEVICE int members_of(int group) const {
    return is_one_group() ? int(results.segments)
                          : min(FAN_IN, int(results.segments) - group * FAN_IN);
  }
  DEVICE bool has_partials() const {
    return VALUES != COUNT_OF_VALUES && results.value != nullptr && results.segments > 1;
  }
  static DEVICE unsigned arrive_at(unsigned* counter, unsigned all) {
    return threadIdx.x == 0 ? arrive(counter, all) : 0;
  }
  // Adds to a COUNT_OF_VALUES. That of other blocks comes with the number of those that are done.
  DEVICE void add_count(unsigned long long own) const {
    constexpr int BITS = 44;  // of the count; the blocks are fewer than 2^20
    auto* const counts = reinterpret_cast<unsigned long long*>(results.counter);
    const unsigned long long before = atomicAdd(counts, (1ull << BITS) + own);
    if (before >> BITS != gridDim.x - 1) return;
    atomicExch(counts, 0ull);
    *results.value = double((before & ((1ull << BITS) - 1)) + own);
  }
  static DEVICE void store(Part* to, long long index, const Parts& parts) {
#pragma unroll
    for (int s = 0; s < SUMS; ++s) to[index * SUMS + s] = parts[s];
  }
  static DEVICE double load(const double* from) { return __ldcg(from); }
  static DEVICE Sum<double> load(const Sum<double>* from) {
    const double2 part = __ldcg(reinterpret_cast<const double2*>(from));
    return {part.x, part.y};
  }
  // Sums up `count` partial sums, by ADDING threads, each of which has LOADS on their way at once.
  // Thread 0 alone has the result.
  template <int ADDING, unsigned LOADS>
  static DEVICE void add_up(Parts& sums, const Part* from, int count) {
#pragma unroll
    for (int s = 0; s < SUMS; ++s) sums[s] = Part{};
    const unsigned end = threadIdx.x < ADDING ? unsigned(count) : 0;
#pragma unroll 1
    for (unsigned first = threadIdx.x; first < end; first += ADDING * LOADS) {
      Part parts[LOADS][SUMS];
#pragma unroll
      for (unsigned k = 0; k < LOADS; ++k) {
        const unsigned i = first + k * ADDING;
#pragma unroll
        for (int s = 0; s < SUMS; ++s) parts[k][s] = i < end ? load(from + i * SUMS + s) : Part{};
      }
#pragma unroll
      for (unsigned k = 0; k < LOADS; ++k) {
#pragma unroll
        for (int s = 0; s < SUMS; ++s) sums[s] += parts[k][s];
      }
    }
    block_sums<THREADS>(sums);
  }
  template <unsigned LOADS>
  DEVICE void finish(const Part* from, int count) const {
    Parts sums;
    add_up<THREADS, LOADS>(sums, from, count);
    if (threadIdx.x == 0) write(sums);
  }
  DEVICE void write(const Parts& sums) const {
    const double divisor = SUMS == 2 ? total_of(sums[SUMS - 1]) : denominator;
    if (SUMS == 2 && denominator_output != nullptr) *denominator_output = divisor;
    *results.value = reduced<EMPTY_IS_ZERO, Result>(total_of(sums[0]), divisor, scaling.value());
  }
};
