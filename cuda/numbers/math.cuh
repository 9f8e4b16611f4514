// Elementary functions on numbers of any order: each gives its value and its own derivative.
#pragma once
#include "numbers/dual.cuh"
#include "numbers/elementary.cuh"

// A function of one number, of a parameter.
#define OF_PARAMETER(NAME)              \
  template <class T>                    \
  DEVICE Real<T> NAME(Parameter<T> x) { \
    return NAME(Real<T>(x));            \
  }

// A function of one number. VALUE is an expression of the plain number x. DERIVATIVE is one of x
// and the value y, which are numbers of the order below.
#define FUNCTION(NAME, VALUE, DERIVATIVE)        \
  template <class T>                             \
  DEVICE Real<T> NAME(Real<T> number) {          \
    const T x = number.value;                    \
    return Real<T>(VALUE);                       \
  }                                              \
  OF_PARAMETER(NAME)                             \
  template <class X>                             \
  DEVICE Dual<X> NAME(Dual<X> number) {          \
    const X x = number.value;                    \
    [[maybe_unused]] const X y = NAME(x);        \
    return dual(y, (DERIVATIVE) * number.slope); \
  }

// -1, 0 or 1; 0 for NaN, as torch differentiates |x|. Its derivative is 0 everywhere.
template <class T>
DEVICE Real<T> sign(Real<T> x) {
  return Real<T>(T(x.value > T(0)) - T(x.value < T(0)));
}
template <class X>
DEVICE Dual<X> sign(Dual<X> x) {
  return Dual<X>(sign(x.value));
}
OF_PARAMETER(sign)

// The same, but NaN for NaN, as NumPy's sign. It has no derivative: a factor that is NaN meets
// none.
template <class T>
DEVICE Real<T> signum(Real<T> x) {
  return x == x ? sign(x) : x;
}
template <class X>
DEVICE auto signum(Dual<X> x) {
  return signum(x.value);
}
OF_PARAMETER(signum)

FUNCTION(abs, fabs(x), sign(x))

// |x| for x other than 0. Its derivative takes one instruction, not three.
FUNCTION(abs_of_nonzero, fabs(x), X(copysign(decltype(plain(x))(1), plain(x))))

// x^2 / 2, whose derivative is x itself.
FUNCTION(half_square, T(0.5) * x * x, x)

// x^2 / (2 b) for a finite x. The value is made from the derivative, which is x / b.
template <class T>
DEVICE Real<T> half_square_over(Real<T> x, Parameter<T> b) {
  return Real<T>(T(0.5) * x.value * finite_quotient(x, b).value);
}
template <class X, class T>
DEVICE Dual<X> half_square_over(Dual<X> x, Parameter<T> b) {
  return dual(half_square_over(x.value, b), finite_quotient(x.value, b) * x.slope);
}

FUNCTION(exp, exp(x), y)
FUNCTION(expm1, expm1(x), exp(x))
FUNCTION(log, log(x), 1.0 / x)
FUNCTION(log1p, log1p(x), 1.0 / (1.0 + x))
FUNCTION(sqrt, sqrt(x), 0.5 / y)
FUNCTION(sinh, sinh(x), cosh(x))
FUNCTION(cosh, cosh(x), sinh(x))
FUNCTION(sin, sin(x), cos(x))
FUNCTION(cos, cos(x), -sin(x))
FUNCTION(atan, atan(x), 1.0 / (1.0 + x * x))

// x log(x), 0 at 0. Where the logarithm is evaluated first, no branch is around it.
template <class T>
DEVICE T product_with_log(T x) {
  const T product = x * log(x);
  return x == T(0) ? T(0) : product;
}
FUNCTION(xlogx, product_with_log(x), log(x) + 1.0)

// The logistic family. All of it follows from exp(-|x|), which cannot overflow.

template <class T>
DEVICE T over_one_plus(T x) {
  return quotient(x, T(1) + x);
}

// y or -y, by the side of 0 that x is on.
template <class N, class Y>
DEVICE Y with_side_of(N x, Y y) {
  return x < 0.0 ? -y : y;
}

// |x|, with the derivative of the positive side at 0.
FUNCTION(distance_from_zero, fabs(x), with_side_of(x, X(1.0)))

// sigmoid(-|x|), at most 1/2, and log(1 + exp(-|x|)): what a sigmoid and a softplus are away from
// their asymptotes, without cancellation. At 0 they have the derivative of the positive side.
FUNCTION(sigmoid_tail, over_one_plus(exp(-fabs(x))), -with_side_of(x, y * (1.0 - y)))
FUNCTION(softplus_tail, log1p_of_fraction(exp(-fabs(x))), -with_side_of(x, sigmoid_tail(x)))

// 1 / cosh(x)^2, the derivative of tanh(x), made of e = exp(-|2 x|). It takes an exponential more
// than 1 - tanh(x)^2, which cancels far out.
template <class T>
DEVICE T fourfold_over_square(T e) {
  return quotient(T(4) * e, (T(1) + e) * (T(1) + e));
}
FUNCTION(tanh, tanh(x), inverse_square_of_cosh(x))
FUNCTION(inverse_square_of_cosh, fourfold_over_square(exp(-fabs(x + x))), -2.0 * (tanh(x) * y))

// max(x, floor), with the derivative of x at the floor and at NaN.
template <class N>
DEVICE N at_least(N x, double floor) {
  return x < floor ? N(floor) : x;
}
template <class N>
DEVICE N relu(N x) {
  return at_least(x, 0.0);
}
template <class N>
DEVICE N sigmoid(N x) {
  const N tail = sigmoid_tail(x);
  return x < 0.0 ? tail : 1.0 - tail;
}
// log(1 + exp(x)).
template <class N>
DEVICE N softplus(N x) {
  return relu(x) + softplus_tail(x);
}
template <class N>
DEVICE N log_sigmoid(N x) {
  return -softplus(-x);
}
OF_PARAMETER(relu)
OF_PARAMETER(sigmoid)
OF_PARAMETER(softplus)
OF_PARAMETER(log_sigmoid)

// The larger number; where they are equal, each has half of the derivative. NaN wins.
template <class A, class B>
  requires are_numbers<A, B>
DEVICE auto max(A a, B b) {
  using N = Common<A, B>;
  return a > b ? N(a) : b > a ? N(b) : N(0.5 * N(a) + 0.5 * N(b));
}
template <class A, class B>
  requires are_numbers<A, B>
DEVICE auto min(A a, B b) {
  using N = Common<A, B>;
  return a < b ? N(a) : b < a ? N(b) : N(0.5 * N(a) + 0.5 * N(b));
}

// max(x, floor) as torch's clamp: at x = floor the derivative is that of x, at NaN 0 times that.
template <class T>
DEVICE Real<T> clamp_min(Real<T> x, auto floor) {
  return x < floor ? Real<T>(floor) : x;
}
template <class X>
DEVICE Dual<X> clamp_min(Dual<X> x, auto floor) {
  const X slope = x >= floor ? x.slope : x < floor ? X(0.0) : X(0.0 * x.slope);
  return dual(clamp_min(x.value, floor), slope);
}
template <class T>
DEVICE Real<T> clamp_min(Parameter<T> x, auto floor) {
  return clamp_min(Real<T>(x), floor);
}

// x with its value, but not its derivative, clamped.
template <class N>
DEVICE N with_value_of_at_least(N x, auto floor) {
  if constexpr (order<N> == 0) {
    return clamp_min(x, floor);
  } else {
    return N(with_value_of_at_least(x.value, floor), x.slope);
  }
}

// x to the power of a constant. With 1/2 it is the square root, as NumPy and torch have it: NaN at
// -inf, where the power is inf.
template <class T>
DEVICE Real<T> pow(Real<T> x, auto exponent) {
  const T constant = T(plain(exponent));
  return Real<T>(constant == T(0.5) ? T(sqrt(x.value)) : T(pow(x.value, constant)));
}
template <class T>
DEVICE Real<T> pow(Parameter<T> x, auto exponent) {
  return pow(Real<T>(x), exponent);
}
template <class X, class P>
DEVICE Dual<X> pow(Dual<X> x, P exponent) {
  static_assert(order<P> <= 0, "the exponent of pow must be a parameter or a number");
  const auto below = pow(x.value, exponent - 1.0);
  // At an exponent of 0 the other factor may be infinite.
  return dual(pow(x.value, exponent), exponent == 0.0 ? X(0.0) : X(exponent * below) * x.slope);
}

// The same for x in [0, 1]. It is faster, and its error is small beside 1, not beside the result.
template <class T>
DEVICE Real<T> power_of_fraction(Real<T> x, Real<T> exponent) {
  return Real<T>(power_of_fraction(x.value, exponent.value));
}
template <class X, class T>
DEVICE Dual<X> power_of_fraction(Dual<X> x, Real<T> exponent) {
  const X below = power_of_fraction(x.value, exponent - 1.0);
  return dual(power_of_fraction(x.value, exponent),
              exponent == 0.0 ? X(0.0) : exponent * below * x.slope);
}

// A function of two numbers, from its value and its derivative by each. The number of lower order
// is a constant.
template <class X, class A, class B>
DEVICE Dual<X> of_two(X value, A a, X by_a, B b, X by_b) {
  if constexpr (order<A> > order<B>) {
    return dual(value, by_a * a.slope);
  } else if constexpr (order<A> < order<B>) {
    return dual(value, by_b * b.slope);
  } else {
    return dual(value, by_a * a.slope + by_b * b.slope);
  }
}

// a / h for h = hypot(a, b). With c = a / h and s = b / h, the derivative of c is
// s (s da - c db) / h. That of the quotient would be made from 1 - c^2, which cancels.
template <class A, class B, class H>
DEVICE H over_hypot(A a, B b, H h) {
  if constexpr (order<H> == 0) {
    return a / h;
  } else {
    constexpr int ORDER = order<H>;
    const auto x = value_at<ORDER>(a);
    const auto y = value_at<ORDER>(b);
    const auto c = over_hypot(x, y, h.value), s = over_hypot(y, x, h.value), across = s / h.value;
    return of_two(c, a, s * across, b, -(c * across));
  }
}

// sqrt(a^2 + b^2), without overflow.
template <class A, class B>
  requires are_numbers<A, B>
DEVICE auto hypot(A a, B b) {
  if constexpr (are_order_zero<A, B>) {
    using T = Meet<A, B>;
    return Real<T>(hypot(T(plain(a)), T(plain(b))));
  } else {
    constexpr int ORDER = order<A> > order<B> ? order<A> : order<B>;
    const auto x = value_at<ORDER>(a);
    const auto y = value_at<ORDER>(b);
    using X = Common<decltype(x), decltype(y)>;
    const X value = hypot(x, y);
    return of_two<X>(value, a, over_hypot(x, y, value), b, over_hypot(y, x, value));
  }
}

// log(exp(a) + exp(b)), without overflow.
template <class A, class B>
  requires are_numbers<A, B>
DEVICE auto logaddexp(A a, B b) {
  if constexpr (are_order_zero<A, B>) {
    using T = Meet<A, B>;
    const T x(plain(a)), y(plain(b));
    // Equal infinities have no difference.
    const T distance = x == y ? T(0) : fabs(x - y);
    return Real<T>((x > y ? x : y) + log1p_of_fraction(exp(-distance)));
  } else {
    constexpr int ORDER = order<A> > order<B> ? order<A> : order<B>;
    const auto x = value_at<ORDER>(a);
    const auto y = value_at<ORDER>(b);
    using X = Common<decltype(x), decltype(y)>;
    return of_two<X>(logaddexp(x, y), a, sigmoid(X(x - y)), b, sigmoid(X(y - x)));
  }
}

FUNCTION(log_cosh, log_cosh(x), tanh(x))
