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

// x^2 / 2, whose derivative is x itself.
template <class T>
__device__ __forceinline__ Real<T> half_square(Real<T> x) {
  return Real<T>(T(0.5) * x.value * x.value);
}
template <class X>
__device__ __forceinline__ Dual<X> half_square(Dual<X> x) {
  return dual(half_square(x.value), x.value * x.slope);
}
