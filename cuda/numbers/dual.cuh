// Numbers that carry their derivative, so that one formula gives the loss, its gradient and the
// gradient of its gradient.
//
// A formula is written once, on any number type:
//   Real<T>        a plain value, order 0; T is float, double or Approximate
//   Dual<X>        a value and one directional derivative, one order above X
//   Parameter<T>   a hyper-parameter of the loss, order 0, the same for every element
// Types of different order mix: the lower one is a constant. Literals such as 0.5 take the type of
// the number they meet, so that no formula slips into double arithmetic.
#pragma once
#include "numbers/device.cuh"

// A where CONDITION, else B.
template <bool CONDITION, class A, class B>
struct Selected {
  using type = A;
};
template <class A, class B>
struct Selected<false, A, B> {
  using type = B;
};
template <bool CONDITION, class A, class B>
using Select = typename Selected<CONDITION, A, B>::type;

template <class T>
struct Real;
template <class X>
struct Dual;

// A hyper-parameter, with its reciprocal in two parts, which the host computes in double.
template <class T>
struct Parameter {
  T value, reciprocal, remainder;
};

// How often a number carries a derivative; -1 of a literal.
template <class N>
constexpr int order = -1;
template <class T>
constexpr int order<Real<T>> = 0;
template <class T>
constexpr int order<Parameter<T>> = 0;
template <class X>
constexpr int order<Dual<X>> = order<X> + 1;

template <class T>
struct Real {
  T value;
  Real() = default;
  template <class N>
    requires(order<N> < 0)
  DEVICE Real(N literal) : value(T(literal)) {}
  DEVICE Real(Parameter<T> p) : value(p.value) {}
};

template <class X>
struct Dual {
  X value, slope;
  Dual() = default;
  DEVICE Dual(X v, X s) : value(v), slope(s) {}
  template <class N>
    requires(order<N> <= order<X>)
  DEVICE Dual(N constant) : value(constant), slope(0) {}
};

template <class X>
DEVICE Dual<X> dual(X value, X slope) {
  return Dual<X>(value, slope);
}

// A number, with the derivative 1 by itself where it VARIES.
template <bool VARIES, class N>
DEVICE auto varied(const N& x) {
  if constexpr (VARIES) {
    return Dual<N>(x, N(1.0));
  } else {
    return x;
  }
}

// The plain number inside, whatever the order.
template <class N>
  requires(order<N> < 0)
DEVICE N plain(N literal) {
  return literal;
}
template <class T>
DEVICE T plain(Real<T> x) {
  return x.value;
}
template <class T>
DEVICE T plain(Parameter<T> x) {
  return x.value;
}
template <class X>
DEVICE auto plain(Dual<X> x) {
  return plain(x.value);
}

// A number with a function of each of its scalars in their places.
template <class T>
DEVICE auto mapped(T x, auto f) {
  return f(x);
}
template <class T>
DEVICE auto mapped(Real<T> x, auto f) {
  return Real<decltype(f(x.value))>(f(x.value));
}
template <class X>
DEVICE auto mapped(Dual<X> x, auto f) {
  return dual(mapped(x.value, f), mapped(x.slope, f));
}

// The scalar type of a number, and that in which two meet, one of which may be a literal.
template <class N>
using ScalarOf = decltype(plain(N()));
template <class A, class B>
using Meet = ScalarOf<Select<(order<A> >= 0), A, B>>;

template <class A, class B>
constexpr bool are_numbers = (order<A> >= 0 || order<B> >= 0);
template <class A, class B>
constexpr bool are_order_zero = (order<A> <= 0 && order<B> <= 0);

template <class A, class B>
  requires are_numbers<A, B>
DEVICE auto operator+(A a, B b) {
  if constexpr (are_order_zero<A, B>) {
    using T = Meet<A, B>;
    return Real<T>(T(plain(a)) + T(plain(b)));
  } else if constexpr (order<A> > order<B>) {
    return dual(a.value + b, a.slope);
  } else if constexpr (order<A> < order<B>) {
    return dual(a + b.value, b.slope);
  } else {
    return dual(a.value + b.value, a.slope + b.slope);
  }
}

template <class A, class B>
  requires are_numbers<A, B>
DEVICE auto operator-(A a, B b) {
  if constexpr (are_order_zero<A, B>) {
    using T = Meet<A, B>;
    return Real<T>(T(plain(a)) - T(plain(b)));
  } else if constexpr (order<A> > order<B>) {
    return dual(a.value - b, a.slope);
  } else if constexpr (order<A> < order<B>) {
    return dual(a - b.value, -b.slope);
  } else {
    return dual(a.value - b.value, a.slope - b.slope);
  }
}

// a b + c of scalars. That of Approximate ones is rounded once.
DEVICE float multiply_add(float a, float b, float c) { return a * b + c; }
DEVICE double multiply_add(double a, double b, double c) { return a * b + c; }

template <class A, class B>
  requires are_numbers<A, B>
DEVICE auto operator*(A a, B b) {
  if constexpr (are_order_zero<A, B>) {
    using T = Meet<A, B>;
    return Real<T>(T(plain(a)) * T(plain(b)));
  } else if constexpr (order<A> > order<B>) {
    return dual(a.value * b, a.slope * b);
  } else if constexpr (order<A> < order<B>) {
    return dual(a * b.value, a * b.slope);
  } else {
    return dual(a.value * b.value, multiply_add(a.slope, b.value, a.value * b.slope));
  }
}

template <class A, class B>
  requires are_numbers<A, B>
DEVICE auto operator/(A a, B b) {
  if constexpr (are_order_zero<A, B>) {
    using T = Meet<A, B>;
    return Real<T>(T(plain(a)) / T(plain(b)));
  } else if constexpr (order<A> > order<B>) {
    return dual(a.value / b, a.slope / b);
  } else if constexpr (order<A> < order<B>) {
    auto quotient = a / b.value;
    return dual(quotient, -(quotient / b.value) * b.slope);
  } else {
    auto quotient = a.value / b.value;
    return dual(quotient, (a.slope - quotient * b.slope) / b.value);
  }
}

// Division by a parameter: two multiplications, as exact as a division. The remainder must not turn
// an infinite quotient into NaN; where the numerator is finite, finite_quotient saves that test.
template <class T>
DEVICE Real<T> finite_quotient(Real<T> a, Parameter<T> b) {
  return Real<T>(fma(a.value, b.reciprocal, a.value * b.remainder));
}
template <class X, class T>
DEVICE Dual<X> finite_quotient(Dual<X> a, Parameter<T> b) {
  return dual(finite_quotient(a.value, b), finite_quotient(a.slope, b));
}
template <class T>
DEVICE Real<T> operator/(Real<T> a, Parameter<T> b) {
  const Real<T> quotient = finite_quotient(a, b);
  return isfinite(quotient.value) ? quotient : Real<T>(a.value * b.reciprocal);
}

template <class T>
DEVICE Real<T> operator-(Real<T> a) {
  return Real<T>(-a.value);
}
template <class T>
DEVICE Real<T> operator-(Parameter<T> a) {
  return Real<T>(-a.value);
}
template <class X>
DEVICE Dual<X> operator-(Dual<X> a) {
  return dual(-a.value, -a.slope);
}

template <class A, class B>
  requires are_numbers<A, B>
DEVICE bool operator<(A a, B b) {
  using T = Meet<A, B>;
  return T(plain(a)) < T(plain(b));
}
template <class A, class B>
  requires are_numbers<A, B>
DEVICE bool operator>(A a, B b) {
  return b < a;
}
template <class A, class B>
  requires are_numbers<A, B>
DEVICE bool operator<=(A a, B b) {
  using T = Meet<A, B>;
  return T(plain(a)) <= T(plain(b));
}
template <class A, class B>
  requires are_numbers<A, B>
DEVICE bool operator>=(A a, B b) {
  return b <= a;
}
template <class A, class B>
  requires are_numbers<A, B>
DEVICE bool operator==(A a, B b) {
  using T = Meet<A, B>;
  return T(plain(a)) == T(plain(b));
}
template <class A, class B>
  requires are_numbers<A, B>
DEVICE bool operator!=(A a, B b) {
  return !(a == b);
}

// The type of the sum of numbers, the order of which is the highest one among theirs.
template <class... N>
using Common = decltype((N() + ...));

// The value of a number that varies at level ORDER; a number of lower order is a constant there.
template <int ORDER, class N>
DEVICE auto value_at(N n) {
  if constexpr (order<N> == ORDER) {
    return n.value;
  } else {
    return n;
  }
}

// a b + c of numbers.
template <class A, class B, class C>
  requires are_numbers<A, B>
DEVICE auto multiply_add(A a, B b, C c) {
  if constexpr (order<A> < order<B>) {
    return multiply_add(b, a, c);
  } else if constexpr (are_order_zero<A, C>) {
    using T = ScalarOf<A>;
    return Real<T>(multiply_add(T(plain(a)), T(plain(b)), T(plain(c))));
  } else {
    constexpr int ORDER = order<A> > order<C> ? order<A> : order<C>;
    const auto x = value_at<ORDER>(a);
    const auto y = value_at<ORDER>(b);
    const auto value = multiply_add(x, y, value_at<ORDER>(c));
    if constexpr (order<A> < ORDER) {
      return dual(value, c.slope);
    } else if constexpr (order<B> < ORDER && order<C> < ORDER) {
      return dual(value, a.slope * y);
    } else if constexpr (order<B> < ORDER) {
      return dual(value, multiply_add(a.slope, y, c.slope));
    } else if constexpr (order<C> < ORDER) {
      return dual(value, multiply_add(a.slope, y, x * b.slope));
    } else {
      return dual(value, multiply_add(a.slope, y, multiply_add(x, b.slope, c.slope)));
    }
  }
}
