// The formulas, one struct a loss: parameters as fields, the loss of one element as call operator.
// Derivatives come from the number types of numbers/dual.cuh.
//
// To add a loss: write its struct here and its public function in cupy_losses/.
#pragma once
#include "losses/binary_cross_entropy.cuh"
#include "numbers/math.cuh"

template <class T>
struct L1 {
  DEVICE auto operator()(auto input, auto target) const { return abs(input - target); }
};

template <class T>
struct SquaredError {
  DEVICE auto operator()(auto input, auto target) const {
    auto d = input - target;
    return d * d;
  }
};

// NaN takes the quadratic branch, so that it reaches the gradient.
template <class T>
struct SmoothL1 {
  Parameter<T> beta;
  DEVICE auto operator()(auto input, auto target) const {
    auto d = input - target;
    auto near = half_square_over(d, beta);
    auto far = abs_of_nonzero(d) - 0.5 * beta;
    return abs(d) >= beta ? far : near;
  }
};

template <class T>
struct Huber {
  Parameter<T> delta;
  DEVICE auto operator()(auto input, auto target) const {
    auto d = input - target;
    auto near = half_square(d);
    auto far = delta * (abs_of_nonzero(d) - 0.5 * delta);
    return abs(d) >= delta ? far : near;
  }
};

template <class T>
struct LogCosh {
  DEVICE auto operator()(auto input, auto target) const { return log_cosh(input - target); }
};

template <class T>
struct Quantile {
  Parameter<T> quantile;
  DEVICE auto operator()(auto input, auto target) const {
    auto d = target - input;
    return d < 0.0 ? (quantile - 1.0) * d : quantile * d;
  }
};

template <class T>
struct Charbonnier {
  Parameter<T> eps;
  DEVICE auto operator()(auto input, auto target) const { return hypot(input - target, eps); }
};

template <class T>
struct BinaryCrossEntropy {
  DEVICE auto operator()(auto input, auto target) const {
    return binary_cross_entropy(input, target);
  }
};

// target softplus(-input) + (1 - target) softplus(input), so that no term cancels another one.
template <class T>
struct BinaryCrossEntropyWithLogits {
  DEVICE auto operator()(auto input, auto target) const {
    return ((input < 0.0 ? 0.0 : 1.0) - target) * input + softplus_tail(input);
  }
};

// pos_weight target softplus(-logit) + (1 - target) softplus(logit), in the same way.
template <class T>
struct PositiveWeightedBinaryCrossEntropyWithLogits {
  template <class X, class Y, class W>
  DEVICE auto operator()(X input, Y target, W pos_weight) const {
    using N = Common<Y, W>;
    const N positive = pos_weight * target, negative = 1.0 - target;
    return (input < 0.0 ? -positive : negative) * input +
           (positive + negative) * softplus_tail(input);
  }
};

// BALANCED: alpha weighs the classes. SQUARED: gamma is 2.
template <class T, bool BALANCED, bool SQUARED>
struct SigmoidFocal {
  Parameter<T> alpha, gamma;
  template <class X>
  DEVICE auto operator()(X input, auto target) const {
    // How much of the target is of the less likely class, and of the more likely one.
    const bool negative = input < 0.0;
    const auto rest = 1.0 - target;
    const auto against = negative ? target : rest, with = negative ? rest : target;
    const X tail = sigmoid_tail(input), distance = distance_from_zero(input);
    auto miss = multiply_add(with, tail, against * (1.0 - tail));
    auto loss = focus(miss) * multiply_add(against, distance, softplus_tail(input));
    if constexpr (BALANCED) {
      return multiply_add(alpha, target, (1.0 - alpha) * rest) * loss;
    } else {
      return loss;
    }
  }

 private:
  template <class N>
  DEVICE N focus(N miss) const {
    if constexpr (SQUARED) {
      return miss * miss;
    } else {
      return power_of_fraction(miss, Real<T>(gamma));
    }
  }
};

template <class T>
struct SoftMargin {
  DEVICE auto operator()(auto input, auto target) const { return softplus(-target * input); }
};

template <class T>
struct Hinge {
  DEVICE auto operator()(auto input, auto target) const {
    return clamp_min(1.0 - input * target, 0.0);
  }
};

template <class T>
struct SquaredHinge {
  DEVICE auto operator()(auto input, auto target) const {
    auto violation = clamp_min(1.0 - input * target, 0.0);
    return violation * violation;
  }
};

template <class T>
struct HingeEmbedding {
  Parameter<T> margin;
  template <class X, class Y>
  DEVICE auto operator()(X input, Y target) const {
    using N = Common<X, Y>;
    const N near = target == -1.0 ? N(0.0) : N(input);
    const N far = target == 1.0 ? N(0.0) : N(clamp_min(margin - input, 0.0));
    return near + far;
  }
};

template <class T>
struct MarginRanking {
  Parameter<T> margin;
  DEVICE auto operator()(auto input1, auto input2, auto target) const {
    return clamp_min(-target * (input1 - input2) + margin, 0.0);
  }
};

template <class T, bool LOG_TARGET>
struct KLDivergence {
  DEVICE auto operator()(auto input, auto target) const {
    if constexpr (LOG_TARGET) {
      return exp(target) * (target - input);
    } else {
      return xlogx(target) - target * input;
    }
  }
};

template <class T, bool LOG_INPUT, bool FULL>
struct PoissonNLL {
  Parameter<T> eps;
  template <class X, class Y>
  DEVICE auto operator()(X input, Y target) const {
    using N = Common<X, Y>;
    const N loss = main_part(input, target);
    if constexpr (FULL) {
      // Stirling's approximation of log(target!).
      const Y stirling = ((target + 0.5) * log(target) - target) + 0.9189385332046727;
      return target <= 1.0 ? loss : N(loss + stirling);
    } else {
      return loss;
    }
  }

 private:
  DEVICE auto main_part(auto input, auto target) const {
    if constexpr (LOG_INPUT) {
      return exp(input) - target * input;
    } else {
      return input - target * log(input + eps);
    }
  }
};

template <class T, bool FULL>
struct GaussianNLL {
  Parameter<T> eps;
  DEVICE auto operator()(auto input, auto target, auto var) const {
    auto clamped = with_value_of_at_least(var, eps);
    auto error = input - target;
    auto loss = 0.5 * (log(clamped) + error * error / clamped);
    if constexpr (FULL) {
      return loss + 0.9189385332046727;  // log(2 pi) / 2
    } else {
      return loss;
    }
  }
};

// The same variance for all elements.
template <class T, bool FULL>
struct GaussianNLLOfOneVariance {
  Parameter<T> eps, var;
  DEVICE auto operator()(auto input, auto target) const {
    return GaussianNLL<T, FULL>{eps}(input, target, Real<T>(var));
  }
};
