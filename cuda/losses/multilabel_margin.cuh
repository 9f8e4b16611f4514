// The multilabel margin loss of a row of C elements: 1 / C sum over targets t and all j that are
// none of max(0, 1 - x_t + x_j). A label that is listed twice counts twice.
//
// Where 1 - x_t + x_j is positive, element j violates target t. The derivative by an element that
// is no target is the number of targets that it violates, over C. That by a target is less the
// number of elements that violate it, as often as it is listed, over C. Both are constant but for
// jumps, so that along a tangent they are 0.
#pragma once
#include "losses/row_loss.cuh"

template <class T>
struct MultilabelMargin : OfRow {
  static constexpr int OPERANDS = 2;

  // What is added to an element to see how far it violates a target.
  template <class N>
  DEVICE N threshold(N target) const {
    return 1.0 - target;
  }
  // The loss of a row, given the sum of its violations.
  template <class N>
  DEVICE N value(N violations, auto columns) const {
    return violations / Real<T>(T(columns));
  }
  // The derivative by an element that violates one target.
  DEVICE T slope(auto columns) const { return T(1) / T(columns); }
  // What the derivative by a target is in units of that.
  static DEVICE T count_of_target(T times_listed, T violated) { return -times_listed * violated; }
};

// a b + c from 0 to 1, and 0 for NaN, in one instruction.
DEVICE float saturated_fma(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  float result;
  asm("fma.rn.ftz.sat.f32 %0, %1, %2, %3;" : "=f"(result) : "f"(a), "f"(b), "f"(c));
  return result;
#else
  return __saturatef(fmaf(a, b, c));
#endif
}

// The arithmetic of violations: of scaled thresholds and elements, and of sums that are scaled too.
// Here the scale is 1.
template <class N, bool SCALED>
struct Violations {
  static DEVICE N scaled(N threshold) { return threshold; }
  static DEVICE N unscaled(N sum) { return sum; }
  // An element violates a target if this is positive.
  static DEVICE N violation(N threshold, N x) { return threshold + x; }
  static DEVICE void add(N& sum, N violation) {
    if (violation > 0.0) sum = sum + violation;
  }
  // Whether no violation that was added was cut off.
  static DEVICE bool is_whole(N) { return true; }
};

// One instruction adds a scaled threshold and a scaled element and limits the violation to 0 ... 1.
// If the sum of violations is below 1, none was cut off. Scaling by a power of two is exact.
template <class N>
struct Violations<N, true> {
  static constexpr float SCALE = 1.0f / (1 << 24);

  static DEVICE N scaled(N threshold) { return threshold * N(SCALE); }
  static DEVICE N unscaled(N sum) { return sum * N(1.0f / SCALE); }
  static DEVICE N violation(N threshold, N x) {
    return N(saturated_fma(x.value, SCALE, threshold.value));
  }
  static DEVICE void add(N& sum, N violation) { sum = sum + violation; }
  static DEVICE bool is_whole(N sum) { return sum < 1.0; }
};
