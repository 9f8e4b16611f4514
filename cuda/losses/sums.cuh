// Losses over rows that are a function of sums over the elements: those of one's own.
//
// Formula has its parameters as fields, OPERANDS, SUMS, and
//   term(Constant<I>(), x...)   what an element adds to sum I
//   loss(length, sums...)       the loss of a row of so many elements
// The gradient of an element is the sum over I of dloss/dsum_I * dterm_I/dx, both by dual numbers.
#pragma once
#include "losses/rows.cuh"

// A number, with the derivative 1 by itself where it VARIES.
template <bool VARIES, class N>
__device__ __forceinline__ auto varied(const N& x) {
  if constexpr (VARIES) {
    return Dual<N>(x, N(1.0));
  } else {
    return x;
  }
}

template <class T, class Formula, class I = Range<Formula::SUMS>,
          class K = Range<Formula::OPERANDS>>
struct OfSums;

template <class T, class Formula, int... I, int... K>
struct OfSums<T, Formula, Indices<I...>, Indices<K...>> : OfRow {
  static constexpr int OPERANDS = Formula::OPERANDS, SUMS = Formula::SUMS;
  static constexpr bool WEIGHTED = false;
  static constexpr unsigned READS = (1u << OPERANDS) - 1;
  static constexpr bool SINGLE = false, HIDES = false;
  Formula formula;

  template <class N>
  struct State {
    RunningSum<N> sum[SUMS];
    static __device__ __forceinline__ State empty() {
      State none;
      ((none.sum[I] = RunningSum<N>::zero()), ...);
      return none;
    }
    friend __device__ __forceinline__ State combine(State a, const State& b) {
      ((a.sum[I] = a.sum[I] + b.sum[I]), ...);
      return a;
    }
  };

  template <bool FIRST, class N, class Row, class Elements>
  __device__ __forceinline__ void add(State<N>& state, const Row&, const Always&,
                                      Elements& elements) const {
    N sum[SUMS];
    ((sum[I] = N(0.0)), ...);
    elements.each([&](int, auto, const auto& x) {
      ((sum[I] = sum[I] + formula.term(Constant<I>(), get<K>(x)...)), ...);
    });
    (put<FIRST>(state.sum[I], sum[I]), ...);
  }

  template <class N>
  struct Finished {
    N value, by[SUMS];  // the derivatives by the sums
    T denominator;
  };
  template <class N, class Row>
  __device__ __forceinline__ Finished<N> finish(const Row& row, const Always&,
                                                const State<N>& state, bool) const {
    const Real<T> length(T(row.columns));
    const N sum[SUMS] = {state.sum[I].total()...};
    Finished<N> done;
    done.value = N(formula.loss(length, sum[I]...));
    ((done.by[I] = slope_by<I>(length, sum)), ...);
    done.denominator = T(1);
    return done;
  }
  template <class N, class F>
  __device__ __forceinline__ void scale(Finished<N>& done, F by) const {
    ((done.by[I] = by(done.by[I])), ...);
  }

  template <int BY, class N, class Row, class Column, class X>
  __device__ __forceinline__ N gradient(const Row&, const Always&, const Finished<N>& done, Column,
                                        const X& x) const {
    N slope = N(0.0);
    (add_slope<(order<LossBy<I, N>> > order<N>)>(
         slope, done.by[I], formula.term(Constant<I>(), varied<K == BY>(get<K>(x))...)),
     ...);
    return slope;
  }

 private:
  // The loss as a function of one of the sums.
  template <int BY, class N>
  using LossBy = decltype(Formula().loss(Real<T>(), varied<I == BY>(N())...));

  template <int BY, class N>
  __device__ __forceinline__ N slope_by(Real<T> length, const N (&sum)[SUMS]) const {
    N slope = N(0.0);
    add_slope<true>(slope, N(1.0), formula.loss(length, varied<I == BY>(sum[I])...));
    return slope;
  }
  // Adds a factor times the slope of y, where the factor VARIES. What does not depend on what
  // varies has no slope and is no factor: 0 times infinity would be NaN.
  template <bool VARIES, class N, class Y>
  static __device__ __forceinline__ void add_slope(N& sum, const N& factor, const Y& y) {
    if constexpr (VARIES && order<Y> > order<N>) sum = sum + factor * y.slope;
  }
};
