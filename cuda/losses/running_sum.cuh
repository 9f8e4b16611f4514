// Sums of what a row has, of numbers that carry derivatives too: with their rounding errors, and
// without.
#pragma once
#include "memory/vector.cuh"
#include "numbers/math.cuh"
#include "reduction/sum.cuh"

// a - b is the difference, and this: Knuth's TwoSum.
template <class T>
DEVICE T error_of_difference(T a, T b) {
  const T difference = a - b;
  const T moved = difference - a;
  return (a - (difference - moved)) - (b + moved);
}

template <class N>
struct RunningSum;

template <class T>
struct RunningSum<Real<T>> {
  static constexpr bool KEEPS_ERRORS = true;
  Sum<T> sum;
  static DEVICE RunningSum zero() { return {Sum<T>::zero()}; }
  static DEVICE RunningSum of(Real<T> x) { return {{x.value, T(0)}}; }
  DEVICE void operator+=(Real<T> x) { sum += x.value; }
  // Adds what is not larger than the sum: Dekker's FastTwoSum.
  DEVICE void add_smaller(Real<T> x) {
    const T high = sum.high + x.value;
    sum.low += x.value - (high - sum.high);
    sum.high = high;
  }
  // Takes 1 from a sum of at least that, which adds no error.
  DEVICE void take_one() { sum.high -= T(1); }
  DEVICE void scale(T factor) {
    sum.high *= factor;
    sum.low *= factor;
  }
  // The sum less a number that is near it, or less a product, which is not rounded.
  DEVICE Real<T> total(T less = T(0), T times = T(1)) const {
    const T high = fma(-less, times, sum.high);
    return Real<T>(isfinite(high) ? high + sum.low : high);
  }
  // What total() rounds off a finite sum.
  DEVICE T rest() const { return (sum.high - total().value) + sum.low; }
  // Exact up to the sum of the errors, hence the same whichever comes first.
  friend DEVICE RunningSum operator+(RunningSum a, RunningSum b) {
    const T low = a.sum.low + b.sum.low;
    a.sum.low = T(0);
    a.sum += b.sum.high;
    a.sum.low += low;
    return a;
  }
};

template <class X>
struct RunningSum<Dual<X>> {
  static constexpr bool KEEPS_ERRORS = true;
  RunningSum<X> value, slope;
  static DEVICE RunningSum zero() { return {RunningSum<X>::zero(), RunningSum<X>::zero()}; }
  static DEVICE RunningSum of(Dual<X> x) {
    return {RunningSum<X>::of(x.value), RunningSum<X>::of(x.slope)};
  }
  DEVICE void operator+=(Dual<X> x) {
    value += x.value;
    slope += x.slope;
  }
  DEVICE void add_smaller(Dual<X> x) {
    value.add_smaller(x.value);
    slope += x.slope;
  }
  DEVICE void take_one() { value.take_one(); }
  DEVICE void scale(auto factor) {
    value.scale(factor);
    slope.scale(factor);
  }
  DEVICE Dual<X> total(auto... less) const { return dual(value.total(less...), slope.total()); }
  DEVICE auto rest() const { return value.rest(); }
  friend DEVICE RunningSum operator+(const RunningSum& a, const RunningSum& b) {
    return {a.value + b.value, a.slope + b.slope};
  }
};

// A sum of the same form that does not keep its rounding errors.
template <class N>
struct PlainSum {
  static constexpr bool KEEPS_ERRORS = false;
  N sum;
  static DEVICE PlainSum zero() { return {N(0.0)}; }
  static DEVICE PlainSum of(N x) { return {x}; }
  DEVICE void operator+=(N x) { sum = sum + x; }
  template <class T>
  DEVICE void scale(T factor) {
    sum = sum * Real<T>(factor);
  }
  DEVICE N total() const { return sum; }
  friend DEVICE PlainSum operator+(PlainSum a, PlainSum b) { return {a.sum + b.sum}; }
};

// Adds a number, or another sum, to a sum, which is empty where FIRST_BATCH.
template <bool FIRST_BATCH, template <class> class Sum, class N>
DEVICE void put(Sum<N>& sum, N x) {
  if constexpr (FIRST_BATCH) {
    sum = Sum<N>::of(x);
  } else {
    sum += x;
  }
}
template <bool FIRST_BATCH, class Sum>
DEVICE void put(Sum& sum, const Sum& more) {
  sum = FIRST_BATCH ? more : sum + more;
}

// Sums of COUNT numbers in each place of a vector of WIDTH, which are up to 1 if errors are kept.
// Several sums let a thread add without waiting for the addition before. There is one for each
// place; with errors there are two for all places, or one if numbers are few. Sums with errors
// begin with 1, the largest number, and others with -0, which the compiler need not add.
template <class Sum, class N, int WIDTH, int COUNT>
struct SumsOfPlaces {
  static constexpr bool FROM_ONE = Sum::KEEPS_ERRORS && WIDTH * COUNT > 1;
  static constexpr int PLACES = !FROM_ONE ? WIDTH : WIDTH * COUNT > 8 && WIDTH > 1 ? 2 : 1;
  Sum at[PLACES];
  DEVICE SumsOfPlaces() {
#pragma unroll
    for (int j = 0; j < PLACES; ++j) at[j] = Sum::of(N(FROM_ONE ? 1.0 : -0.0));
  }
  DEVICE void add(int place, N x) {
    if constexpr (FROM_ONE) {
      at[place % PLACES].add_smaller(x);
    } else if constexpr (COUNT > 1) {
      at[place] += x;
    } else {
      at[place] = Sum::of(x);
    }
  }
  DEVICE Sum total() const {
    SumsOfPlaces sums = *this;
    if constexpr (FROM_ONE) {
#pragma unroll
      for (int j = 0; j < PLACES; ++j) sums.at[j].take_one();
    }
#pragma unroll
    for (int step = 1; step < PLACES; step *= 2) {
#pragma unroll
      for (int j = 0; j + step < PLACES; j += 2 * step) {
        sums.at[j] = sums.at[j] + sums.at[j + step];
      }
    }
    return sums.at[0];
  }
};

// Adds a product, which is not rounded where nothing varies.
template <class T>
DEVICE void add_product(Real<T>& sum, Real<T> a, Real<T> b) {
  sum.value = fma(a.value, b.value, sum.value);
}
template <class X>
DEVICE void add_product(Dual<X>& sum, auto a, auto b) {
  sum = sum + a * b;
}

// A plain sum in two parts, of even and of odd places: half as many roundings follow each other.
template <class N>
struct HalvedSum {
  PlainSum<N> half[2] = {PlainSum<N>::zero(), PlainSum<N>::zero()};
  DEVICE void add(int place, N x) { half[place % 2] += x; }
  DEVICE void add_product(int place, auto a, auto b) { ::add_product(half[place % 2].sum, a, b); }
  DEVICE N total() const { return (half[0] + half[1]).total(); }
};
