// What losses of rows accumulate: sums that keep their rounding errors, the terms of softmax and
// their logarithms; of numbers that carry derivatives, too.
#pragma once
#include "memory/vector.cuh"
#include "numbers/math.cuh"
#include "numbers/tuple.cuh"
#include "reduction/sum.cuh"

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
template <bool FIRST_BATCH, class N>
DEVICE void put(RunningSum<N>& sum, N x) {
  if constexpr (FIRST_BATCH) {
    sum = RunningSum<N>::of(x);
  } else {
    sum += x;
  }
}
template <bool FIRST_BATCH, class Sum>
DEVICE void put(Sum& sum, const Sum& more) {
  sum = FIRST_BATCH ? more : sum + more;
}

template <class T>
DEVICE T lowest() {
  return sizeof(T) == 4 ? T(-3.402823466e38) : T(-1.7976931348623157e308);
}
DEVICE float larger(float a, float b) { return fmaxf(a, b); }
DEVICE double larger(double a, double b) { return fmax(a, b); }

// exp(x) for x <= 0, in float with a relative error of 2^-23 (1 + |x|). Beside an exp(0) in the
// same sum that is 2^-22 at most.
DEVICE float exponential(float x) { return power_of_two(LOG2_E<float> * x); }
DEVICE double exponential(double x) { return exp(x); }
FUNCTION(exponential, exponential(x), y)

// a - b is the difference, and this: Knuth's TwoSum.
template <class T>
DEVICE T error_of_difference(T a, T b) {
  const T difference = a - b;
  const T moved = difference - a;
  return (a - (difference - moved)) - (b + moved);
}

// Terms exp(x - maximum) for the x of a row, maximum being the largest so far: all are 1 at most.
// Or it is one of them that stands for the largest, see add_anchored().
template <class T>
struct Terms {
  T maximum;
  static DEVICE Terms up_to(T maximum) { return {maximum}; }
  DEVICE T of(T x) const { return exponential(x - maximum); }
  // exp(x - maximum) / of(x)
  DEVICE T unit() const { return T(1); }
  // The factor that makes terms of `other` ones of these.
  DEVICE T from(const Terms& other) const { return exponential(other.maximum - maximum); }
};

// The same with one instruction and one rounding before the power: x log2(e) less `at`, which is
// maximum log2(e) rounded; all terms share its error. Beyond 2^28 neighbouring floats are 32 apart,
// so that only ties with the largest count, in any base. Base 2 keeps the powers finite.
struct FastTerms {
  float maximum, slope, at;
  static DEVICE FastTerms up_to(float maximum) {
    const float slope = fabsf(maximum) <= 268435456.0f ? LOG2_E<float> : 1.0f;
    return {maximum, slope, maximum * slope};
  }
  DEVICE float exponent(float x) const { return fmaf(x, slope, -at); }
  DEVICE float of(float x) const { return power_of_two(exponent(x)); }
  DEVICE float unit() const { return power_of_two(fmaf(-maximum, slope, at)); }
  DEVICE float from(const FastTerms& other) const {
    return power_of_two(exponent(other.maximum) - other.exponent(other.maximum));
  }
};

// The same with the smallest error, for a loss that is the sum of all terms but one.
template <class T>
struct ExactTerms {
  T maximum;
  static DEVICE ExactTerms up_to(T maximum) { return {maximum}; }
  DEVICE T of(T x) const {
    const T below = x - maximum;
    const T rest = below < T(-1000) ? T(0) : error_of_difference(x, maximum);
    return exp_of_negative(below, rest).value;
  }
  DEVICE T from(const ExactTerms& other) const { return of(other.maximum); }
};

template <class T>
DEVICE Real<T> term(const auto& terms, Real<T> x) {
  return Real<T>(terms.of(x.value));
}
template <class X>
DEVICE Dual<X> term(const auto& terms, Dual<X> x) {
  const X y = term(terms, x.value);
  return dual(y, y * x.slope);
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

// exp(-|x|). `positive` says whether x >= 0. `rest` holds the rounding error of |x| on entry and
// that of the result on return. With ROUGH it is not used.
template <bool ROUGH, class T>
DEVICE Real<T> exp_of_distance(Real<T> x, bool, T& rest) {
  if constexpr (ROUGH) return Real<T>(exponential(-fabs(x.value)));
  const Rounded<T> y = exp_of_negative(-fabs(x.value), -rest);
  rest = y.rest;
  return Real<T>(y.value);
}
template <bool ROUGH, class X>
DEVICE Dual<X> exp_of_distance(Dual<X> x, bool positive, auto& rest) {
  const X y = exp_of_distance<ROUGH>(x.value, positive, rest);
  return dual(y, y * (positive ? -x.slope : x.slope));
}

// log(1 + rest). `rest` is -1, or at least 0 up to rounding errors, or NaN. The logarithm of zero
// is added: the compiler would branch around the other one.
template <class T>
DEVICE Real<T> log_of_one_and(Real<T> rest) {
  return Real<T>(log1p_of_positive(rest.value) + (rest.value == T(-1) ? T(-INFINITY) : T(0)));
}
template <class X>
DEVICE Dual<X> log_of_one_and(Dual<X> rest) {
  return dual(log_of_one_and(rest.value), rest.slope / (1.0 + rest.value));
}

// The same for a rest from 0 to 1.
template <class T>
DEVICE Real<T> log_of_one_and_fraction(Real<T> rest) {
  return Real<T>(log1p_of_fraction(rest.value));
}
template <class X>
DEVICE Dual<X> log_of_one_and_fraction(Dual<X> rest) {
  return dual(log_of_one_and_fraction(rest.value), rest.slope / (1.0 + rest.value));
}
// log(1 + rest + error). `rest` is at least 0; NaN in either gives NaN.
template <class T>
DEVICE Real<T> log_of_one_and(Real<T> rest, T error) {
  const T sum = T(1) + rest.value;
  return Real<T>(log1p_of_positive(rest.value) + rough_quotient(error, sum));
}
template <class X>
DEVICE Dual<X> log_of_one_and(Dual<X> rest, auto error) {
  return dual(log_of_one_and(rest.value, error), rest.slope / (1.0 + rest.value));
}
