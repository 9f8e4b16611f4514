// Cross entropy, of classes and of probabilities: losses made from a softmax.
#pragma once
#include "losses/row_loss.cuh"
#include "losses/softmax_terms.cuh"

// The linear part of a loss, sum_j m_j (lse - x_j), m_j being what element j counts: none, of the
// distances of the elements from the maximum, or of the elements themselves.
enum Linear { NONE, OF_DISTANCES, OF_ELEMENTS };

// What a row accumulates for it, and Batch, what one thread adds of a batch. In the end
// total_mass() is the sum of m, and total_spread() that of m (x - maximum).
template <class N, Linear, bool HALF>
struct LinearPart {
  struct Batch {
    DEVICE void add(auto...) {}
  };
  static DEVICE LinearPart zero() { return {}; }
  template <bool FIRST_BATCH>
  DEVICE void take(Batch) {}
  DEVICE void rescale(auto) {}
  DEVICE void operator+=(const LinearPart&) {}
};
// Sums of m and of m (x - maximum): numbers of one sign, so that nothing cancels. HALF: of elements
// of half precision, beside which the rounding errors of sums do not show.
template <class N, bool HALF>
struct LinearPart<N, OF_DISTANCES, HALF> {
  using T = ScalarOf<N>;
  using Sum = Select<HALF, PlainSum<N>, RunningSum<N>>;
  Sum mass, spread;

  struct Batch {
    HalvedSum<N> mass, spread;
    // What does not vary has no slope: 0 times an infinite distance, or NaN, would be NaN.
    DEVICE void add(int place, auto counts, auto x, T maximum) {
      mass.add(place, N(counts));
      spread.add_product(place, counts, x - Real<T>(maximum));
    }
  };
  static DEVICE LinearPart zero() { return {Sum::zero(), Sum::zero()}; }
  template <bool FIRST_BATCH>
  DEVICE void take(const Batch& batch) {
    put<FIRST_BATCH>(mass, batch.mass.total());
    put<FIRST_BATCH>(spread, batch.spread.total());
  }
  // Moves the maximum down by `by`.
  DEVICE void rescale(T by) { spread += product(mass.total(), Real<T>(by)); }
  DEVICE void operator+=(const LinearPart& more) {
    mass = mass + more.mass;
    spread = spread + more.spread;
  }
  DEVICE N total_mass(T) const { return mass.total(); }
  DEVICE N total_spread(T, T) const { return spread.total(); }

 private:
  // 0 of nothing yet: the factor may be infinite then.
  static DEVICE Real<T> product(Real<T> mass, Real<T> by) { return mass == 0.0 ? mass : mass * by; }
  template <class X>
  static DEVICE Dual<X> product(Dual<X> mass, Real<T> by) {
    return dual(product(mass.value, by), product(mass.slope, by));
  }
};
// The sum of the elements, each of which counts 1. Elements of half precision are added nearly
// without errors, so that what cancels later may be added. An element takes one instruction.
template <class N, bool HALF>
struct LinearPart<N, OF_ELEMENTS, HALF> {
  using T = ScalarOf<N>;
  RunningSum<N> sum;

  struct Batch {
    HalvedSum<N> sum;
    DEVICE void add(int place, Real<T>, N x, T) { sum.add(place, x); }
  };
  static DEVICE LinearPart zero() { return {RunningSum<N>::zero()}; }
  template <bool FIRST_BATCH>
  DEVICE void take(const Batch& batch) {
    put<FIRST_BATCH>(sum, batch.sum.total());
  }
  DEVICE void rescale(T) {}
  DEVICE void operator+=(const LinearPart& more) { sum = sum + more.sum; }
  DEVICE N total_mass(T columns) const { return N(Real<T>(columns)); }
  DEVICE N total_spread(T columns, T maximum) const { return sum.total(columns, maximum); }
};

// The sum of a row's terms, and the linear part.
template <class N, Linear LINEAR, bool HALF, class Terms, class Sum = RunningSum<N>>
struct Softmax : LinearPart<N, LINEAR, HALF> {
  using T = ScalarOf<N>;
  using Part = LinearPart<N, LINEAR, HALF>;
  T maximum;
  Sum sum;

  static DEVICE Softmax empty() { return {Part::zero(), lowest<T>(), Sum::zero()}; }
  DEVICE Part& linear() { return *this; }
  DEVICE const Part& linear() const { return *this; }
  // Rescales the sums to another maximum, unless it is the first one: of a FIRST_BATCH.
  template <bool FIRST_BATCH = false>
  DEVICE Terms rescale(T to) {
    const Terms terms = Terms::up_to(to);
    if constexpr (!FIRST_BATCH) {
      sum.scale(terms.from(Terms::up_to(maximum)));
      linear().rescale(maximum - to);
    }
    maximum = to;
    return terms;
  }
  friend DEVICE Softmax merge(Softmax a, Softmax b) {
    const T maximum = larger(a.maximum, b.maximum);
    a.rescale(maximum);
    b.rescale(maximum);
    return merge_rescaled(a, b);
  }
  template <class F>
  friend DEVICE Softmax rescale_to(Softmax state, F largest) {
    if constexpr (F::COUNT > 1) state.rescale(largest(state.maximum));
    return state;
  }
  friend DEVICE Softmax merge_rescaled(Softmax a, const Softmax& b) {
    a.sum = a.sum + b.sum;
    a.linear() += b.linear();
    return a;
  }
};

// w_t ((1 - e) (lse - x_t) + z lse^2) + e / C sum_j w_j (lse - x_j), lse = log(sum_j exp(x_j)).
// HALF: the elements, hence the loss, have half the precision of T. COUNT: how many elements of a
// row one thread has, where it has them all; 0 where they are many, or several threads have them.
template <class T, bool SMOOTHED, bool Z, bool WEIGHTED_, bool HALF, int COUNT>
struct CrossEntropy : OfClassOrIgnored<WEIGHTED_> {
  static constexpr int OPERANDS = 2;
  static constexpr bool WEIGHTED = WEIGHTED_;
  static constexpr unsigned READS = 1u | (SMOOTHED && WEIGHTED ? 4u : 0u);
  static constexpr bool SINGLE = true, HIDES = !SMOOTHED;
  Parameter<T> label_smoothing, z_loss;

  // Whether there is one other class, the sum of whose terms is 1 then.
  static constexpr bool BINARY = COUNT == 2 && !SMOOTHED;
  // Whether rounding errors are kept: beside what smoothing adds they do not show.
  static constexpr bool EXACT = !HALF && !BINARY && !SMOOTHED;
  static constexpr Linear LINEAR =
      SMOOTHED ? (HALF && !WEIGHTED ? OF_ELEMENTS : OF_DISTANCES) : NONE;
  // FastTerms take an instruction less for an element, and ten more for a row. Distances from the
  // maximum are at hand for other terms.
  static constexpr bool FAST = HALF && COUNT == 0 && LINEAR != OF_DISTANCES && sizeof(T) == 4;
  using Terms = Select<FAST, FastTerms, ::Terms<T>>;

  // The target's own term stays out of the sum: where it is by far the largest, the loss is what
  // the others add. Its element stays out of the maximum, too: the largest other term is 1, and
  // exact. It is in the maximum where it is smoothed or, in half precision, where add_anchored() or
  // a StridedBatch that TELLS leaves it there.
  template <class N>
  using State = Softmax<N, LINEAR, HALF, Terms, Select<EXACT, RunningSum<N>, PlainSum<N>>>;

  template <bool FIRST_BATCH, class N>
  DEVICE void add(State<N>& state, const auto&, const auto& target, auto& elements) const {
    // Not -inf, even if all that this thread has is.
    const T maximum = elements.largest(FIRST_BATCH ? lowest<T>() : state.maximum);
    const auto terms = state.template rescale<FIRST_BATCH>(maximum);
    add_terms<FIRST_BATCH>(state, terms, target, elements);
  }
  // The same with terms relative to that of the class, as if it were the largest one: no element is
  // compared. Half precision leaves room for the errors of terms above 1. The sum must not be too
  // large: the factor of gradients is divided by it before it is multiplied by terms, and a small
  // factor would become subnormal, which is 0 on a device.
  static constexpr bool ANCHORED = FAST;
  template <class N>
  DEVICE bool add_anchored(State<N>& state, const auto& target, auto& elements) const {
    constexpr T LARGE = T(1099511627776.0);  // 2^40: a factor may be as small as 2^-86
    state.maximum = plain(target.x());
    add_terms<true>(state, Terms::up_to(state.maximum), target, elements);
    return plain(state.sum.total()) < LARGE;
  }

  template <class N>
  struct Finished {
    N value, scale, at_target;  // scale: of the terms
    T denominator, smooth;
    Terms terms;
  };
  template <class N>
  DEVICE Finished<N> epilogue(const auto& row, const auto& target, const State<N>& state,
                              bool valued) const {
    const auto terms = Terms::up_to(state.maximum);
    const Real<T> weight(target.weight());
    // The largest term is 1: the largest one of the others, or that of the target if it leads.
    // `ahead` is how far the target is ahead of the maximum, 0 if it stands for it itself, and q is
    // exp(-|ahead|).
    const N x = target.x(), ahead = x - Real<T>(state.maximum);
    const bool leads = !(plain(ahead) < T(0));
    const T nothing = plain(x) * T(0);  // NaN of an infinite x alone
    T rest_of_q = T(0);
    if constexpr (!HALF) {
      if (leads) rest_of_q = error_of_difference(plain(x), state.maximum);
      if (plain(ahead) > T(1000)) rest_of_q = nothing;
    }
    N q = exp_of_distance<HALF>(ahead, leads, rest_of_q);
    if (HALF && leads) q = q + Real<T>(nothing);
    const Real<T> one(terms.unit());
    const N unit = leads ? one * q : N(one);
    const N sum = state.sum.total(), others = sum * unit, own = leads ? N(1.0) : q;
    const N total = others + own;
    N but_one = others + (own - 1.0);
    // The same, but not with the same derivatives: the sum is 1.
    if constexpr (BINARY && order<N> == 0) but_one = sum * q;
    N log_total = N(0.0), value = N(0.0);
    if (Z || valued) {
      if constexpr (BINARY) {
        log_total = log_of_one_and_fraction(but_one);
      } else if constexpr (EXACT) {
        const T factor = plain(unit);
        T error = fma(plain(sum), factor, -plain(but_one)) + (plain(own) - T(1));
        error = fma(state.sum.rest(), factor, error);
        error = fma(leads ? plain(sum) : T(1), rest_of_q, error);
        log_total = log_of_one_and(but_one, error);
      } else {
        log_total = log_of_one_and(but_one);
      }
      // A row of -inf has no others: NaN.
      value = leads ? log_total : log_total - (BINARY ? Real<T>(plain(sum)) * ahead : ahead);
      if constexpr (SMOOTHED) value = (1.0 - label_smoothing) * value;
      value = weight * value;
    }
    N rest = N(0.0);
    T smooth = T(0);
    if constexpr (SMOOTHED) {
      const Real<T> share = Real<T>(label_smoothing) / Real<T>(T(row.columns));
      const T count(row.columns);
      const N mass = state.total_mass(count);
      const N log_sum = leads ? log_total + ahead : log_total;
      value = value + share * (mass * log_sum - state.total_spread(count, state.maximum));
      rest = share * (mass - weight);
      smooth = plain(share);
    }
    N slope = weight * (1.0 - label_smoothing) + N(0.0);
    if constexpr (SMOOTHED) slope = slope + rest + Real<T>(smooth) * weight;
    if constexpr (Z) {
      const N lse = (leads ? x : N(state.maximum)) + log_total;
      value = value + weight * z_loss * lse * lse;
      const N by_lse = 2.0 * weight * z_loss * lse;
      slope = slope + by_lse;
      rest = rest + by_lse;
    }
    N by_total = slope / total;
    if constexpr (HALF && order<N> == 0) by_total = N(rough_quotient(plain(slope), plain(total)));
    return {value, by_total * unit, rest - by_total * others, target.weight(), smooth, terms};
  }
  template <class N>
  DEVICE void scale(Finished<N>& done, auto by) const {
    done.scale = by(done.scale);
    done.at_target = by(done.at_target);
    done.smooth = by(done.smooth);
  }

  template <int K, class N>
  DEVICE N gradient(const auto&, const Finished<N>& done, const auto& x) const {
    N slope = done.scale * term(done.terms, get<0>(x));
    if constexpr (SMOOTHED) slope = slope - Real<T>(done.smooth) * weight_of(x);
    return slope;
  }
  template <class N>
  DEVICE N gradient_of_target(const Finished<N>& done) const {
    return done.at_target;
  }

 private:
  // Adds the terms of all other classes, and the linear part of all.
  template <bool FIRST_BATCH, class N, class Elements>
  DEVICE void add_terms(State<N>& state, const Terms& terms, const auto& target,
                        const Elements& elements) const {
    SumsOfPlaces<decltype(state.sum), N, Elements::PLACES, Elements::OF_PLACE> sums;
    typename State<N>::Part::Batch linear;
    elements.each([&](int place, auto column, const auto& x, auto... counts) {
      const N own = term(terms, get<0>(x));
      if ((HIDES || column != target.column) && (counts && ...)) sums.add(place, own);
      linear.add(place, weight_of(x, counts...), get<0>(x), state.maximum);
    });
    put<FIRST_BATCH>(state.sum, sums.total());
    state.template take<FIRST_BATCH>(linear);
  }
  // That of a class; of none it is 0.
  static DEVICE Real<T> weight_of(const auto& x, auto... counts) {
    if constexpr (WEIGHTED) {
      return Real<T>(plain(get<OPERANDS>(x)));
    } else {
      return Real<T>((counts && ...) ? T(1) : T(0));
    }
  }
};

// sum_j w_j y'_j (lse - x_j) + z lse^2, with y' = (1 - e) y + e / C. HALF as above.
template <class T, bool SMOOTHED, bool Z, bool WEIGHTED_, bool HALF>
struct CrossEntropyOfProbabilities : OfRow {
  static constexpr int OPERANDS = 2;
  static constexpr bool WEIGHTED = WEIGHTED_;
  static constexpr unsigned READS = 3u | (WEIGHTED ? 4u : 0u);
  Parameter<T> label_smoothing, z_loss;

  template <class N>
  using State = Softmax<N, OF_DISTANCES, HALF, Select<HALF, Terms<T>, ExactTerms<T>>>;

  template <bool FIRST_BATCH, class N, class Elements>
  DEVICE void add(State<N>& state, const auto& row, const Always&, Elements& elements) const {
    const T maximum = elements.largest(FIRST_BATCH ? lowest<T>() : state.maximum);
    const auto terms = state.template rescale<FIRST_BATCH>(maximum);
    // Where one element is by far the largest and has nearly all of the probability, the loss is
    // what the others add to its term, 1.
    SumsOfPlaces<RunningSum<N>, N, Elements::PLACES, Elements::OF_PLACE> sums;
    typename State<N>::Part::Batch linear;
    elements.each([&](int place, auto, const auto& x, auto... counts) {
      const auto probability = weighted_target(row, x);
      const auto logit = with_slope_of<0>(row, get<0>(x));
      const bool is_there = (counts && ...);
      if (is_there) sums.add(place, term(terms, logit));
      linear.add(place, is_there ? probability : decltype(probability)(0.0), logit, maximum);
    });
    put<FIRST_BATCH>(state.sum, sums.total());
    state.template take<FIRST_BATCH>(linear);
  }

  template <class N>
  struct Finished {
    N value, scale, log_total;
    T denominator, maximum, factor;
  };
  template <class N>
  DEVICE Finished<N> epilogue(const auto& row, const Always&, const State<N>& state, bool) const {
    const auto total = with_slope_of<0>(row, state.sum.total());
    const auto log_total = log_of_one_and(with_slope_of<0>(row, state.sum.total(T(1))));
    const auto mass = with_slope_of<1>(row, state.mass.total());
    Finished<N> done;
    done.value = mass * log_total - state.spread.total();
    if constexpr (Z) {
      const auto lse = Real<T>(state.maximum) + log_total;
      done.value = done.value + z_loss * lse * lse;
      done.scale = (mass + 2.0 * z_loss * lse) / total;
    } else {
      done.scale = mass / total;
    }
    done.denominator = T(1);
    done.maximum = state.maximum;
    done.log_total = log_total;
    done.factor = T(1);
    return done;
  }
  template <class N>
  DEVICE void scale(Finished<N>& done, auto by) const {
    done.scale = by(done.scale);
    done.factor = by(done.factor);
  }

  template <int K, class N>
  DEVICE N gradient(const auto& row, const Finished<N>& done, const auto& x) const {
    const auto below = with_slope_of<0>(row, get<0>(x)) - Real<T>(done.maximum);
    const Real<T> factor(done.factor);
    if constexpr (K == 0) {
      return done.scale * exponential(below) - factor * weighted_target(row, x);
    } else {
      const N slope = factor * (1.0 - label_smoothing) * (done.log_total - below);
      if constexpr (WEIGHTED) return Real<T>(plain(get<OPERANDS>(x))) * slope;
      return slope;
    }
  }

 private:
  // A number that depends on operand I alone, with its slope if the row has a tangent of that. Else
  // the slope is 0, and would turn into NaN where a number is NaN or infinite.
  template <int I, class Row>
  static DEVICE auto with_slope_of(const Row&, const auto& number) {
    if constexpr (Row::template Loaded<I>::HAS_SLOPE) {
      return number;
    } else {
      return Real<T>(plain(number));
    }
  }
  // The probability of an element, smoothed, times the weight of its class.
  DEVICE auto weighted_target(const auto& row, const auto& x) const {
    auto y = with_slope_of<1>(row, get<1>(x));
    if constexpr (SMOOTHED) {
      y = (1.0 - label_smoothing) * y + Real<T>(label_smoothing) / Real<T>(T(row.columns));
    }
    if constexpr (WEIGHTED) y = Real<T>(plain(get<OPERANDS>(x))) * y;
    return y;
  }
};
