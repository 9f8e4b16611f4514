// The formulas, one struct a loss: parameters as fields, the loss of one element as call operator.
// Derivatives come from the number types of dual.cuh.
//
// To add a loss: write its struct here and its public function in cupy_losses/.
#pragma once
#include "math.cuh"

template <class T>
struct L1 {
  template <class X, class Y>
  __device__ __forceinline__ auto operator()(X input, Y target) const {
    return abs(input - target);
  }
};

template <class T>
struct SquaredError {
  template <class X, class Y>
  __device__ __forceinline__ auto operator()(X input, Y target) const {
    auto d = input - target;
    return d * d;
  }
};

// NaN takes the quadratic branch, so that it reaches the gradient.
template <class T>
struct SmoothL1 {
  Parameter<T> beta;
  template <class X, class Y>
  __device__ __forceinline__ auto operator()(X input, Y target) const {
    auto d = input - target;
    auto near = half_square_over(d, beta);
    auto far = abs_of_nonzero(d) - 0.5 * beta;
    return abs(d) >= beta ? far : near;
  }
};

template <class T>
struct Huber {
  Parameter<T> delta;
  template <class X, class Y>
  __device__ __forceinline__ auto operator()(X input, Y target) const {
    auto d = input - target;
    auto near = half_square(d);
    auto far = delta * (abs_of_nonzero(d) - 0.5 * delta);
    return abs(d) >= delta ? far : near;
  }
};
