// The terms of a softmax, relative to the largest one, and the logarithms of their sum.
#pragma once
#include "losses/running_sum.cuh"

// exp(x) for x <= 0, in float with a relative error of 2^-23 (1 + |x|). Beside an exp(0) in the
// same sum that is 2^-22 at most.
DEVICE float exponential(float x) { return power_of_two(LOG2_E<float> * x); }
DEVICE double exponential(double x) { return exp(x); }
FUNCTION(exponential, exponential(x), y)

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
