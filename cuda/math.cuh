// Elementary functions on numbers of any order: each gives its value and its own derivative.
#pragma once
#include "dual.cuh"

// -1, 0 or 1; 0 for NaN, as torch differentiates |x|. Its derivative is 0 everywhere.
template <class T>
__device__ __forceinline__ Real<T> sign(Real<T> x) {
  return Real<T>(T(x.value > T(0)) - T(x.value < T(0)));
}
template <class X>
__device__ __forceinline__ Dual<X> sign(Dual<X> x) {
  return Dual<X>(sign(x.value));
}

template <class T>
__device__ __forceinline__ Real<T> abs(Real<T> x) {
  return Real<T>(fabs(x.value));
}
template <class X>
__device__ __forceinline__ Dual<X> abs(Dual<X> x) {
  return dual(abs(x.value), sign(x.value) * x.slope);
}

// |x| of an x that is not 0: its derivative costs one instruction, not three.
template <class T>
__device__ __forceinline__ Real<T> abs_of_nonzero(Real<T> x) {
  return abs(x);
}
template <class X>
__device__ __forceinline__ Dual<X> abs_of_nonzero(Dual<X> x) {
  return dual(abs_of_nonzero(x.value), X(copysign(decltype(plain(x))(1), plain(x))) * x.slope);
}

// x^2 / 2, whose derivative is x itself.
template <class T>
__device__ __forceinline__ Real<T> half_square(Real<T> x) {
  return Real<T>(T(0.5) * x.value * x.value);
}
template <class X>
__device__ __forceinline__ Dual<X> half_square(Dual<X> x) {
  return dual(half_square(x.value), x.value * x.slope);
}

// x^2 / (2 b) of a finite x, whose derivative is the quotient that the value is made from.
template <class T>
__device__ __forceinline__ Real<T> half_square_over(Real<T> x, Parameter<T> b) {
  return Real<T>(T(0.5) * x.value * finite_quotient(x, b).value);
}
template <class X, class T>
__device__ __forceinline__ Dual<X> half_square_over(Dual<X> x, Parameter<T> b) {
  return dual(half_square_over(x.value, b), finite_quotient(x.value, b) * x.slope);
}
