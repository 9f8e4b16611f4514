// The binary cross entropy of probabilities, with torch's bounds.
#pragma once
#include "numbers/math.cuh"

// (p - y) / max(p (1 - p), 1e-12), the derivative of a negative log-likelihood by the probability
// p. Its own derivative by p is y / p^2 + (1 - y) / (1 - p)^2: that of the quotient cancels near 0
// and 1.
template <class T>
DEVICE Real<T> slope_by_probability(Real<T> p, Real<T> y) {
  const T variance = p.value * (T(1) - p.value);
  return Real<T>(quotient(p.value - y.value, variance < T(1e-12) ? T(1e-12) : variance));
}
template <class P, class Y>
  requires(order<P> > 0 || order<Y> > 0)
DEVICE auto slope_by_probability(P probability, Y target) {
  constexpr int ORDER = order<P> > order<Y> ? order<P> : order<Y>;
  const auto p = value_at<ORDER>(probability);
  const auto y = value_at<ORDER>(target);
  using X = Common<decltype(p), decltype(y)>;
  const auto rest = 1.0 - p, variance = p * rest;
  const X inverse = 1.0 / at_least(variance, 1e-12);
  const X by_p = variance < 1e-12 ? inverse : X(y / (p * p) + (1.0 - y) / (rest * rest));
  return of_two(X(slope_by_probability(p, y)), probability, by_p, target, X(-inverse));
}

// The negative log-likelihood of a probability, with torch's bounds: logarithms of at least -100,
// and a derivative by the probability that stays finite at 0 and 1. It is NaN outside of [0, 1].
template <class T>
DEVICE Real<T> binary_cross_entropy(Real<T> probability, Real<T> target) {
  const T y = target.value;
  const Logarithms<T> log = logarithms(probability.value);
  return Real<T>(-fma(y, log.of_p, (T(1) - y) * log.of_rest));
}
template <class T>
DEVICE T bounded_logit(T p) {
  const T of_p = log(p), of_rest = log1p(-p);
  return (of_p < T(-100) ? T(-100) : of_p) - (of_rest < T(-100) ? T(-100) : of_rest);
}
FUNCTION(logit_of_probability, bounded_logit(x), 1.0 / at_least(x * (1.0 - x), 1e-12))
template <class P, class Y>
  requires(order<P> > 0 || order<Y> > 0)
DEVICE auto binary_cross_entropy(P probability, Y target) {
  constexpr int ORDER = order<P> > order<Y> ? order<P> : order<Y>;
  const auto p = value_at<ORDER>(probability);
  const auto y = value_at<ORDER>(target);
  using X = Common<decltype(p), decltype(y)>;
  X slope = X(0.0);
  if constexpr (order<P> == ORDER) {
    slope = slope + slope_by_probability(p, y) * probability.slope;
  }
  if constexpr (order<Y> == ORDER) {
    slope = slope - logit_of_probability(p) * target.slope;
  }
  return dual(X(binary_cross_entropy(p, y)), slope);
}
