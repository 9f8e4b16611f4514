// Losses made from losses. Each adds operands in front of those of the loss it wraps, so that
// weights, the chain rule and second derivatives need no kernel of their own.
#pragma once
#include "numbers/dual.cuh"
#include "numbers/tuple.cuh"

// weight * loss. The share of an element in what a mean divides by is its weight where IN_MEAN,
// else that of an element of `loss` alone.
template <class Loss, bool IN_MEAN>
struct Weighted {
  Loss loss;
  template <class W, class... N>
  __device__ __forceinline__ auto operator()(W weight, N... operand) const {
    return weight * loss(operand...);
  }
  template <class W, class... N>
  __device__ __forceinline__ W share(W weight, N...) const {
    return IN_MEAN ? weight : W(1);
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
  using type = typename Highest<Select<(order<A> >= order<B>), A, B>, Rest...>::type;
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

// Where operand AT, the mask, is 0: the value 0 with the derivative 0, whatever the other operands
// hold, and no share in the mean. A gradient whose mean divides by 0 is 0 too.
template <class Loss, int AT>
struct Masked {
  Loss loss;

  template <class... N>
  __device__ __forceinline__ auto operator()(N... operand) const {
    return select(Range<int(sizeof...(N)) - 1>(), Tuple<N...>{{operand}...});
  }
  template <class M, class... N>
  __device__ __forceinline__ M share(M mask, N... operand) const {
    return mask == 0.0 ? M(0) : share_of(loss, M(1), operand...);
  }

 private:
  template <int... I, class Operands>
  __device__ __forceinline__ auto select(Indices<I...>, const Operands& all) const {
    auto value = loss(get<(I < AT ? I : I + 1)>(all)...);
    return get<AT>(all) == 0.0 ? decltype(value)(0) : value;
  }
};

template <class Loss, class M, class... N>
__device__ __forceinline__ M share_of(const Loss&, M one, N...) {
  return one;
}
template <class Loss, bool IN_MEAN, class M, class... N>
__device__ __forceinline__ M share_of(const Weighted<Loss, IN_MEAN>& loss, M, N... operand) {
  return loss.share(operand...);
}

template <class Loss>
constexpr bool is_masked = false;
template <class Loss, int AT>
constexpr bool is_masked<Masked<Loss, AT>> = true;

// The plain sum of one operand: partial results, weights.
template <class T>
struct Identity {
  template <class X>
  __device__ __forceinline__ X operator()(X operand) const {
    return operand;
  }
};

// 1 for each element, to be masked: their number.
template <class T>
struct One {
  __device__ __forceinline__ Real<T> operator()() const { return Real<T>(1); }
};
