// Losses over rows that are a function of sums over the elements: those of one's own.
//
// Formula has its parameters as fields, OPERANDS, SUMS, and
//   LOGS                        bit I: sum I is the log of the sum of exponentials of its terms
//   term(Constant<I>(), x...)   what an element adds to sum I
//   loss(length, sums...)       the loss of a row of `length` elements
// The gradient of an element is the sum over I of dloss/dsum_I * dterm_I/dx, both by dual numbers,
// times its part of the sum where that is one of exponentials.
#pragma once
#include "losses/softmax.cuh"

// A sum of terms, or the LOG of the sum of their exponentials.
template <class N, bool LOG>
struct Accumulated {
  RunningSum<N> sum;
  static DEVICE Accumulated empty() { return {RunningSum<N>::zero()}; }
  friend DEVICE Accumulated merge(const Accumulated& a, const Accumulated& b) {
    return {a.sum + b.sum};
  }
  // What a term adds to the sum.
  template <class Y>
  DEVICE Y of(Y y) const {
    return y;
  }
  template <bool FIRST_BATCH>
  DEVICE void add(N added) {
    put<FIRST_BATCH>(sum, added);
  }
  DEVICE N total() const { return sum.total(); }
  using Part = Nothing;
  DEVICE Part part() const { return {}; }
};

template <class N>
struct Accumulated<N, true> {
  using T = ScalarOf<N>;
  using Exponentials = Softmax<N, NONE, false, Terms<T>>;
  Exponentials of_terms;
  static DEVICE Accumulated empty() { return {Exponentials::empty()}; }
  friend DEVICE Accumulated merge(const Accumulated& a, const Accumulated& b) {
    return {merge(a.of_terms, b.of_terms)};
  }
  // The maximum is finite: exp(inf) is infinite then, and no NaN.
  template <bool FIRST_BATCH>
  DEVICE void rescale(T maximum) {
    of_terms.template rescale<FIRST_BATCH>(maximum < -lowest<T>() ? maximum : -lowest<T>());
  }
  template <class Y>
  DEVICE Y of(Y y) const {
    return term(Terms<T>::up_to(of_terms.maximum), y);
  }
  template <bool FIRST_BATCH>
  DEVICE void add(N added) {
    put<FIRST_BATCH>(of_terms.sum, added);
  }
  DEVICE N total() const { return Real<T>(of_terms.maximum) + log(of_terms.sum.total()); }
  // The part that a term has of the sum.
  struct Part {
    Terms<T> terms;
    N inverse;
    DEVICE N of(N y) const { return term(terms, y) * inverse; }
  };
  DEVICE Part part() const {
    return {Terms<T>::up_to(of_terms.maximum), 1.0 / of_terms.sum.total()};
  }
};

template <class T, class Formula, class I = Range<Formula::SUMS>,
          class K = Range<Formula::OPERANDS>>
struct OfSums;

template <class T, class Formula, int... I, int... K>
struct OfSums<T, Formula, Indices<I...>, Indices<K...>> : OfRow {
  static constexpr int OPERANDS = Formula::OPERANDS, SUMS = Formula::SUMS;
  static constexpr unsigned READS = (1u << OPERANDS) - 1;
  Formula formula;

  template <int S>
  static constexpr bool IS_LOG = bool(Formula::LOGS >> S & 1u);

  template <class N>
  struct State {
    Tuple<Accumulated<N, IS_LOG<I>>...> sums;
    static DEVICE State empty() { return {{{Accumulated<N, IS_LOG<I>>::empty()}...}}; }
    friend DEVICE State merge(const State& a, const State& b) {
      return {{{merge(get<I>(a.sums), get<I>(b.sums))}...}};
    }
  };

  template <bool FIRST_BATCH, class N>
  DEVICE void add(State<N>& state, const auto&, const Always&, auto& elements) const {
    (rescale<I, FIRST_BATCH>(get<I>(state.sums), elements), ...);
    N sum[SUMS];
    ((sum[I] = N(0.0)), ...);
    elements.each([&](int, auto, const auto& x) {
      ((sum[I] = sum[I] + get<I>(state.sums).of(formula.term(Constant<I>(), get<K>(x)...))), ...);
    });
    (get<I>(state.sums).template add<FIRST_BATCH>(sum[I]), ...);
  }

  template <class N, bool ANY>
  struct Parts {
    Tuple<typename Accumulated<N, IS_LOG<I>>::Part...> parts;
  };
  template <class N>
  struct Parts<N, false> {};
  template <class N>
  struct Finished : Parts<N, (Formula::LOGS != 0)> {
    N value, by[SUMS];  // the derivatives by the sums
    T denominator;
  };
  template <class N>
  DEVICE Finished<N> epilogue(const auto& row, const Always&, const State<N>& state, bool) const {
    const Real<T> length(T(row.columns));
    const N sum[SUMS] = {get<I>(state.sums).total()...};
    Finished<N> done;
    if constexpr (Formula::LOGS != 0) ((get<I>(done.parts) = get<I>(state.sums).part()), ...);
    done.value = N(formula.loss(length, sum[I]...));
    ((done.by[I] = slope_by<I>(length, sum)), ...);
    done.denominator = T(1);
    return done;
  }
  template <class N>
  DEVICE void scale(Finished<N>& done, auto by) const {
    ((done.by[I] = by(done.by[I])), ...);
  }

  template <int BY, class N>
  DEVICE N gradient(const auto&, const Finished<N>& done, const auto& x) const {
    N slope = N(0.0);
    (add_slope<I>(slope, done, formula.term(Constant<I>(), varied<K == BY>(get<K>(x))...)), ...);
    return slope;
  }

 private:
  // Exponentials are of the distances from the largest term so far.
  template <int S, bool FIRST_BATCH>
  DEVICE void rescale(auto& sum, auto& elements) const {
    if constexpr (IS_LOG<S>) {
      T maximum = sum.of_terms.maximum;
      elements.each([&](int, auto, const auto& x) {
        maximum = larger(maximum, plain(formula.term(Constant<S>(), get<K>(x)...)));
      });
      sum.template rescale<FIRST_BATCH>(maximum);
    }
  }
  // The loss as a function of one of the sums.
  template <int BY, class N>
  using LossBy = decltype(Formula().loss(Real<T>(), varied<I == BY>(N())...));

  template <int BY, class N>
  DEVICE N slope_by(Real<T> length, const N (&sum)[SUMS]) const {
    auto y = formula.loss(length, varied<I == BY>(sum[I])...);
    if constexpr (order<decltype(y)> > order<N>) return y.slope;
    return N(0.0);
  }
  // Adds the derivative of the loss by a sum times that of a term y. What does not depend on what
  // varies has no slope and is no factor: 0 times infinity would be NaN.
  template <int S, class N, class Y>
  static DEVICE void add_slope(N& slope, const Finished<N>& done, const Y& y) {
    if constexpr (order<LossBy<S, N>> > order<N> && order<Y> > order<N>) {
      N by = done.by[S];
      if constexpr (IS_LOG<S>) by = by * get<S>(done.parts).of(y.value);
      slope = slope + by * y.slope;
    }
  }
};
