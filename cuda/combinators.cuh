// Losses made from losses. Each adds operands in front of those of the loss it wraps, so that
// weights, the chain rule and second derivatives need no kernel of their own.
#pragma once
#include "dual.cuh"
#include "tuple.cuh"

// weight * loss. A weighted mean divides by the sum of `share`.
template <class Loss>
struct Weighted {
  Loss loss;
  template <class W, class... N>
  __device__ __forceinline__ auto operator()(W weight, N... operand) const {
    return weight * loss(operand...);
  }
  template <class W, class... N>
  __device__ __forceinline__ W share(W weight, N...) const {
    return weight;
  }
};

// grad_output * loss: its derivatives are those of the loss, chained with what comes from above.
template <class Loss>
struct Chained {
  Loss loss;
  template <class G, class... N>
  __device__ __forceinline__ auto operator()(G grad_output, N... operand) const {
    return grad_output * loss(operand...);
  }
};

template <class A, class... Rest>
struct Highest {
  using type = A;
};
template <class A, class B, class... Rest>
struct Highest<A, B, Rest...> {
  template <bool A_IS_HIGHER, class>
  struct Pick {
    using type = typename Highest<A, Rest...>::type;
  };
  template <class Unused>
  struct Pick<false, Unused> {
    using type = typename Highest<B, Rest...>::type;
  };
  using type = typename Pick<(order<A> >= order<B>), void>::type;
};

__device__ constexpr int ones_below(unsigned bits, int end) {
  int count = 0;
  for (int i = 0; i < end; ++i) count += bits >> i & 1u;
  return count;
}

// The derivative of a loss along a direction: sum over k in DIRECTIONS of tangent_k * dloss/dx_k.
// Operands: the tangents, then those of the loss. Its own gradient is the Hessian times the
// direction, which is what a second backward pass needs.
template <class Loss, unsigned DIRECTIONS>
struct Directional {
  static constexpr int TANGENTS = ones_below(DIRECTIONS, 32);
  Loss loss;

  template <class... N>
  __device__ __forceinline__ auto operator()(N... operand) const {
    const Tuple<N...> all{{operand}...};
    return along<typename Highest<N...>::type>(Range<int(sizeof...(N)) - TANGENTS>(), all);
  }

 private:
  template <class X, int... I, class Operands>
  __device__ __forceinline__ auto along(Indices<I...>, const Operands& all) const {
    return loss(vary<X, I>(all)...).slope;
  }
  // All varied operands get the same order, so that their tangents meet at the outermost level.
  template <class X, int I, class Operands>
  __device__ __forceinline__ auto vary(const Operands& all) const {
    if constexpr (bool(DIRECTIONS >> I & 1u)) {
      return Dual<X>(X(get<TANGENTS + I>(all)), X(get<ones_below(DIRECTIONS, I)>(all)));
    } else {
      return get<TANGENTS + I>(all);
    }
  }
};

// The plain sum of one operand: partial results, weights.
template <class T>
struct Identity {
  template <class X>
  __device__ __forceinline__ X operator()(X operand) const {
    return operand;
  }
};
