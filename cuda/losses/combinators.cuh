// Losses made from losses. All but Approximately add operands to those of the loss that they wrap,
// Masked in place AT and the others in front, so that weights, masks, vector-Jacobian products and
// second derivatives need no kernel of their own. Identity and One, at the end, are to be summed.
#pragma once
#include "numbers/approximate.cuh"
#include "numbers/dual.cuh"
#include "numbers/tuple.cuh"

// A number as one of another arithmetic type, with its slopes.
template <class T>
DEVICE auto number_of(auto number) {
  return mapped(number, [](auto x) { return T(x); });
}

// A loss that computes with approximate numbers, given and giving those of float.
template <class Loss>
struct Approximately {
  Loss loss;
  DEVICE auto operator()(auto... operand) const {
    return number_of<float>(loss(number_of<Approximate>(operand)...));
  }
};

// weight * loss. What an element adds to the denominator of a mean is its weight where IN_MEAN,
// else 1.
template <class Loss, bool IN_MEAN>
struct Weighted {
  Loss loss;
  template <class... N>
  DEVICE auto operator()(auto weight, N... operand) const {
    return weight * loss(operand...);
  }
  template <class W, class... N>
  DEVICE W denominator(W weight, N...) const {
    return IN_MEAN ? weight : W(1);
  }
};

// grad_output * loss. Its derivatives by the operands are the vector-Jacobian product of the loss.
template <class Loss>
struct Vjp {
  Loss loss;
  template <class... N>
  DEVICE auto operator()(auto grad_output, N... operand) const {
    return grad_output * loss(operand...);
  }
};

// The Jacobian-vector product of a loss: the sum over k in TANGENTS of tangent_k * dloss/dx_k.
// Operands: the tangents, then those of the loss. Its own gradient is the Hessian times the
// tangents, which is what a second backward pass needs.
template <class Loss, unsigned TANGENTS>
struct Jvp {
  static constexpr int COUNT = ones_below(TANGENTS, 32);
  Loss loss;

  template <class... N>
  DEVICE auto operator()(N... operand) const {
    const Tuple<N...> all{{operand}...};
    return along<Common<N...>>(Range<int(sizeof...(N)) - COUNT>(), all);
  }

 private:
  template <class X, int... I>
  DEVICE auto along(Indices<I...>, const auto& all) const {
    return loss(with_tangent<X, I>(all)...).slope;
  }
  // Operand I of the loss. All those with a tangent get the same order, so that their tangents meet
  // at the outermost level.
  template <class X, int I>
  DEVICE auto with_tangent(const auto& all) const {
    if constexpr (bool(TANGENTS >> I & 1u)) {
      return Dual<X>(X(get<COUNT + I>(all)), X(get<ones_below(TANGENTS, I)>(all)));
    } else {
      return get<COUNT + I>(all);
    }
  }
};

// The loss where operand AT, the mask, is not 0. Elsewhere the value is 0 with the derivative 0,
// whatever the other operands hold, and nothing is added to the denominator of a mean.
template <class Loss, int AT>
struct Masked {
  Loss loss;

  template <class... N>
  DEVICE auto operator()(N... operand) const {
    return select(Range<int(sizeof...(N)) - 1>(), Tuple<N...>{{operand}...});
  }
  template <class M, class... N>
  DEVICE M denominator(M mask, N... operand) const {
    return mask == 0.0 ? M(0) : denominator_of(loss, M(1), operand...);
  }

 private:
  template <int... I>
  DEVICE auto select(Indices<I...>, const auto& all) const {
    auto value = loss(get<(I < AT ? I : I + 1)>(all)...);
    return get<AT>(all) == 0.0 ? decltype(value)(0) : value;
  }
};

template <class M, class... N>
DEVICE M denominator_of(const auto&, M one, N...) {
  return one;
}
template <class Loss, bool IN_MEAN, class M, class... N>
DEVICE M denominator_of(const Weighted<Loss, IN_MEAN>& loss, M, N... operand) {
  return loss.denominator(operand...);
}

template <class Loss>
constexpr bool is_masked = false;
template <class Loss, int AT>
constexpr bool is_masked<Masked<Loss, AT>> = true;

// Whether a mask leaves an element out.
template <class... N>
DEVICE bool leaves_out(const auto&, N...) {
  return false;
}
template <class Loss, int AT, class... N>
DEVICE bool leaves_out(const Masked<Loss, AT>&, N... operand) {
  return get<AT>(Tuple<N...>{{operand}...}) == 0.0;
}

// Whether the value of a loss is a derivative itself.
template <class Loss>
constexpr bool is_derivative = false;
template <class Loss, unsigned TANGENTS>
constexpr bool is_derivative<Jvp<Loss, TANGENTS>> = true;
template <class Loss>
constexpr bool is_derivative<Vjp<Loss>> = is_derivative<Loss>;
template <class Loss, int AT>
constexpr bool is_derivative<Masked<Loss, AT>> = is_derivative<Loss>;

// One operand, to be summed: partial sums, weights.
template <class T>
struct Identity {
  template <class X>
  DEVICE X operator()(X operand) const {
    return operand;
  }
};

// 1 for each element. Masked, its sum is the number of elements that are left.
template <class T>
struct One {
  DEVICE Real<T> operator()() const { return Real<T>(1); }
};
