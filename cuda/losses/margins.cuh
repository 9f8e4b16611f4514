// Losses of the element of a class, and of its margin to the others.
#pragma once
#include "losses/row_loss.cuh"
#include "losses/running_sum.cuh"

// -w_t x_t: nothing but the target's element is read. It has what kernels/gathered_rows.cu needs.
template <class T, bool WEIGHTED_>
struct NegativeLogLikelihood : OfClassOrIgnored<WEIGHTED_> {
  static constexpr int OPERANDS = 2;
  static constexpr bool WEIGHTED = WEIGHTED_;
  static constexpr unsigned READS = 0u;
  static constexpr bool SINGLE = true, HIDES = false;

  template <class N>
  struct Finished {
    N value;
    T denominator, at_target;
  };
  template <class N>
  DEVICE Finished<N> epilogue(const auto&, const auto& target, Nothing, bool) const {
    return {-(Real<T>(target.weight()) * target.x()), target.weight(), -target.weight()};
  }
  template <class N>
  DEVICE void scale(Finished<N>& done, auto by) const {
    done.at_target = by(done.at_target);
  }
  template <class N>
  DEVICE N gradient_of_target(const Finished<N>& done) const {
    return N(Real<T>(done.at_target));
  }
};

// w_t / C sum over j other than t of max(0, margin - x_t + x_j), or its square.
template <class T, bool SQUARED, bool WEIGHTED_>
struct MultiMargin : OfClass<WEIGHTED_> {
  static constexpr int OPERANDS = 2;
  static constexpr bool WEIGHTED = WEIGHTED_;
  static constexpr unsigned READS = 1u;
  static constexpr bool SINGLE = true, HIDES = true;
  Parameter<T> margin;

  template <class N>
  struct State {
    RunningSum<N> sum, slope;
    static DEVICE State empty() { return {RunningSum<N>::zero(), RunningSum<N>::zero()}; }
    friend DEVICE State merge(const State& a, const State& b) {
      return {a.sum + b.sum, a.slope + b.slope};
    }
  };

  template <bool FIRST_BATCH, class N>
  DEVICE void add(State<N>& state, const auto&, const auto& target, auto& elements) const {
    const N threshold = margin - target.x();
    N sum = N(0.0), slopes = N(0.0);
    elements.each([&](int, auto, const auto& x, auto... counts) {
      const N violation = threshold + get<0>(x);
      if ((counts && ...) && violation > 0.0) {
        sum = sum + (SQUARED ? violation * violation : violation);
        slopes = slopes + slope(violation);
      }
    });
    put<FIRST_BATCH>(state.sum, sum);
    put<FIRST_BATCH>(state.slope, slopes);
  }

  template <class N>
  struct Finished {
    N value, threshold, at_target;
    T denominator, scale;
  };
  template <class N>
  DEVICE Finished<N> epilogue(const auto& row, const auto& target, const State<N>& state,
                              bool) const {
    const Real<T> scale = Real<T>(target.weight()) / Real<T>(T(row.columns));
    return {scale * state.sum.total(), margin - target.x(), -(scale * state.slope.total()), T(1),
            plain(scale)};
  }
  template <class N>
  DEVICE void scale(Finished<N>& done, auto by) const {
    done.at_target = by(done.at_target);
    done.scale = by(done.scale);
  }

  template <int K, class N>
  DEVICE N gradient(const auto&, const Finished<N>& done, const auto& x) const {
    const N violation = done.threshold + get<0>(x);
    return violation > 0.0 ? Real<T>(done.scale) * slope(violation) : N(0.0);
  }
  template <class N>
  DEVICE N gradient_of_target(const Finished<N>& done) const {
    return done.at_target;
  }

 private:
  template <class N>
  static DEVICE N slope(N violation) {
    return SQUARED ? 2.0 * violation : N(1.0);
  }
};
