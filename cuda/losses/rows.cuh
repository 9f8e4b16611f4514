// The losses of rows, one struct each: the state of a row, how states merge, the loss of the row
// and the gradient of each of its elements.
//
// A struct has its parameters as fields, OPERANDS, WEIGHTED, and
//   READS            bit k: `add` and `gradient` look at each element of operand k, bit OPERANDS:
//                    at the weight of each class
//   prefetch(row)    what is read of a row two rows before its turn
//   prologue(row, prefetched)
//                    one row before its turn: the context of a row, with a status
//   find(context, elements)
//                    takes the element of the class from all elements of the row, where one thread
//                    has these: prologue() need not read it then
//   State<N>         what a row accumulates; empty() has nothing
//   add<FIRST_BATCH>(state, row, context, elements)
//                    takes a batch of elements, to an empty state where FIRST_BATCH;
//                    elements.each(f) calls f(place, column, x) for each, get<k>(x) being its
//                    number in operand k and `place` that in its vector; an f that takes it may be
//                    told `counts`, too: it is false of what the row does not have, whose numbers
//                    are 0; elements.largest(y) is the largest number of the first operand, or y
//                    Where elements are held in registers, add() and epilogue() get those of any
//                    row. They must not read what only the context of an active row has.
//   ANCHORED         whether there is add_anchored(state, context, elements): it takes them to an
//                    empty state without elements.largest(), and returns whether that state may
//                    be used; if not, add() takes them
//   HIDES            whether `add` leaves out the element of context.column: it is -inf, or
//                    elements.each(f) says that it does not count
//   merge(a, b)      a and b together; with the same bits as merge(b, a)
//   rescale_to, merge_rescaled
//                    for many states: see below
//   Finished<N>      what epilogue() makes of a row: its `value`, if requested, its `denominator`,
//                    the term of that of a mean, and the factors of its gradients
//   epilogue(row, context, state, valued)
//                    that of an active row
//   scale(finished, f)
//                    replaces each factor x of the gradients by f(x)
//   gradient<K>(row, finished, x)
//                    the derivative of the value by an element of operand K
//   SINGLE           whether the element of context.column has a derivative of its own
//   gradient_of_target(finished)
//                    that derivative, where SINGLE
//
// Structs inherit prefetch(), prologue(), find() and ANCHORED from OfClass, from OfClassOrIgnored,
// or, without a class, from OfRow.
//
// Numbers N are Real<T>, or dual numbers for the derivative of all of this along a tangent, which
// makes a second backward pass. To add a loss: write its struct here and its public function.
#pragma once
#include "losses/row_sums.cuh"

// ACTIVE rows have a loss. IGNORED ones have no loss and no gradient, and add nothing to the
// denominator. The loss and the gradients of INVALID ones, whose target is out of range, are NaN.
enum Status { ACTIVE, IGNORED, INVALID };

// The class of a row, its element and its weight as they are in memory.
template <class T, class Column, class Element, class Weight>
struct Class {
  Status status;
  Column column;
  Element element;
  Weight own_weight;

  DEVICE auto x() const { return element.number(); }
  DEVICE T weight() const { return convert<T>(own_weight); }
};

template <bool WEIGHTED, class Row>
DEVICE auto class_of(const Row& row, long long index, bool ignored) {
  using T = typename Row::Scalar;
  using Column = typename Row::Column;
  const auto weight_of = [&](Column column) {
    if constexpr (WEIGHTED) {
      return row.load_weight(column);
    } else {
      return T(1);
    }
  };
  // Numbers of 32 bits are extended by zeros, which takes no instruction.
  const auto columns = sizeof(Column) == 4 ? unsigned(row.columns) : row.columns;
  const bool valid = (unsigned long long)(index) < (unsigned long long)(columns);
  Class<T, Column, decltype(row.template load<0>(0)), decltype(weight_of(0))> own;
  own.status = ignored ? IGNORED : valid ? ACTIVE : INVALID;
  own.column = Column(index);
  if (own.status == ACTIVE) {
    own.element = row.template load<0>(own.column);
    own.own_weight = weight_of(own.column);
  }
  return own;
}

// For losses to inherit: what they read of the class of a row, of a class that may be one to
// ignore, or of a row that always counts.
template <bool WEIGHTED>
struct OfClass {
  static constexpr bool ANCHORED = false;
  DEVICE auto prefetch(const auto& row) const { return row.template load_index<1>(); }
  DEVICE auto prologue(const auto& row, auto index) const {
    return class_of<WEIGHTED>(row, (long long)(index), false);
  }
  DEVICE void find(auto& own, const auto& elements) const {
    own.element = elements.template element<0>(own.column);
  }
};
template <bool WEIGHTED>
struct OfClassOrIgnored : OfClass<WEIGHTED> {
  long long ignore_index;
  template <class Integer>
  DEVICE auto prologue(const auto& row, Integer integer) const {
    const auto index = (long long)(integer);
    // An unsigned integer beyond long long turns negative, but is no negative ignore_index.
    const bool beyond = Integer(-1) > Integer(0) && index < 0;
    return class_of<WEIGHTED>(row, index, index == ignore_index && !beyond);
  }
};
struct Always {
  Status status;
};
struct OfRow {
  static constexpr bool WEIGHTED = false, SINGLE = false, HIDES = false;
  static constexpr bool ANCHORED = false;
  DEVICE Nothing prefetch(const auto&) const { return {}; }
  DEVICE Always prologue(const auto&, Nothing) const { return {ACTIVE}; }
  DEVICE void find(const auto&, const auto&) const {}
};

// Many states are merged in two steps. Each is rescaled to the largest maximum, which largest(t)
// finds among those of COUNT threads. Then any two are merged as they are.
template <class State>
DEVICE State rescale_to(const State& state, auto) {
  return state;
}
template <class State>
DEVICE State merge_rescaled(const State& a, const State& b) {
  return merge(a, b);
}

// The linear part of a loss, sum_j m_j (lse - x_j), m_j being what element j counts: none, of the
// distances of the elements from the maximum, or of the elements themselves.
enum Linear { NONE, OF_DISTANCES, OF_ELEMENTS };

// What a row accumulates for it, and Batch, what one thread adds of a batch. In the end
// total_mass() is the sum of m, and total_spread() that of m (x - maximum).
template <class N, Linear>
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
// Sums of m and of m (x - maximum): numbers of one sign, so that nothing cancels.
template <class N>
struct LinearPart<N, OF_DISTANCES> {
  using T = typename ScalarOf<N>::type;
  RunningSum<N> mass, spread;

  struct Batch {
    HalvedSum<N> mass, spread;
    // What does not vary has no slope: 0 times an infinite distance, or NaN, would be NaN.
    DEVICE void add(int place, auto counts, auto x, T maximum) {
      mass.add(place, N(counts));
      spread.add_product(place, counts, x - Real<T>(maximum));
    }
  };
  static DEVICE LinearPart zero() { return {RunningSum<N>::zero(), RunningSum<N>::zero()}; }
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
template <class N>
struct LinearPart<N, OF_ELEMENTS> {
  using T = typename ScalarOf<N>::type;
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
template <class N, Linear LINEAR, class Terms, class Sum = RunningSum<N>>
struct Softmax : LinearPart<N, LINEAR> {
  using T = typename ScalarOf<N>::type;
  using Part = LinearPart<N, LINEAR>;
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
  using State = Softmax<N, LINEAR, Terms, Select<EXACT, RunningSum<N>, PlainSum<N>>>;

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
    SumsOfPlaces<decltype(state.sum), N, Elements::WIDTH, Elements::COUNT> sums;
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
  using State = Softmax<N, OF_DISTANCES, Select<HALF, Terms<T>, ExactTerms<T>>>;

  template <bool FIRST_BATCH, class N, class Elements>
  DEVICE void add(State<N>& state, const auto& row, const Always&, Elements& elements) const {
    const T maximum = elements.largest(FIRST_BATCH ? lowest<T>() : state.maximum);
    const auto terms = state.template rescale<FIRST_BATCH>(maximum);
    // Where one element is by far the largest and has nearly all of the probability, the loss is
    // what the others add to its term, 1.
    SumsOfPlaces<RunningSum<N>, N, Elements::WIDTH, Elements::COUNT> sums;
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

// 1 - cos(x1, x2) for target 1, max(0, cos(x1, x2) - margin) for target -1.
template <class T>
struct CosineEmbedding : OfRow {
  static constexpr int OPERANDS = 3;
  static constexpr unsigned READS = 3u;
  Parameter<T> margin;

  template <class N>
  struct State {
    RunningSum<N> product, square1, square2;
    static DEVICE State empty() {
      const auto zero = RunningSum<N>::zero();
      return {zero, zero, zero};
    }
    friend DEVICE State merge(const State& a, const State& b) {
      return {a.product + b.product, a.square1 + b.square1, a.square2 + b.square2};
    }
  };

  template <bool FIRST_BATCH, class N>
  DEVICE void add(State<N>& state, const auto&, const Always&, auto& elements) const {
    N product = N(0.0), square1 = N(0.0), square2 = N(0.0);
    // Zeros add nothing.
    elements.each([&](int, auto, const auto& x, auto...) {
      add_product(product, get<0>(x), get<1>(x));
      add_product(square1, get<0>(x), get<0>(x));
      add_product(square2, get<1>(x), get<1>(x));
    });
    put<FIRST_BATCH>(state.product, product);
    put<FIRST_BATCH>(state.square1, square1);
    put<FIRST_BATCH>(state.square2, square2);
  }

  template <class N>
  struct Finished {
    N value, by_own[2], by_other;  // how much of each vector is in the gradients
    T denominator;
  };
  template <class N>
  DEVICE Finished<N> epilogue(const auto& row, const Always&, const State<N>& state, bool) const {
    Finished<N> done;
    const N square[2] = {state.square1.total() + 1e-12, state.square2.total() + 1e-12};
    const N reciprocal = N(1.0) / sqrt(square[0] * square[1]);
    const N cosine = state.product.total() * reciprocal;
    const T target = plain(row.template number<2>(0));
    const N excess = cosine - margin;
    done.value = N(0.0);
    T slope = T(0);  // by the cosine
    if (target == T(1)) {
      done.value = 1.0 - cosine;
      slope = T(-1);
    } else if (target == T(-1)) {
      done.value = clamp_min(excess, 0.0);
      slope = excess >= 0.0 ? T(1) : T(0);
    }
    done.denominator = T(1);
    done.by_other = Real<T>(slope) * reciprocal;
#pragma unroll
    for (int k = 0; k < 2; ++k) done.by_own[k] = Real<T>(slope) * (cosine / square[k]);
    return done;
  }
  template <class N>
  DEVICE void scale(Finished<N>& done, auto by) const {
    done.by_other = by(done.by_other);
#pragma unroll
    for (int k = 0; k < 2; ++k) done.by_own[k] = by(done.by_own[k]);
  }

  template <int K, class N>
  DEVICE N gradient(const auto&, const Finished<N>& done, const auto& x) const {
    return get<1 - K>(x) * done.by_other - done.by_own[K] * get<K>(x);
  }
};

// The p-norm of the differences of a row, NORM being 0, 1, 2, 3 for any other p, 4 for infinity;
// its derivative is 0 where it is 0.
template <class T, int NORM>
struct Norm {
  Parameter<T> p;

  // A sum of powers; for the infinite norm the largest number and how many are as large. A Part is
  // that of a batch, or of several threads.
  template <class N>
  struct Part {
    N sum;
    friend DEVICE Part operator+(Part a, N term) { return {a.sum + term}; }
    friend DEVICE Part merge(Part a, Part b) { return {a.sum + b.sum}; }
    friend DEVICE Part total_of(Part a) { return a; }
  };
  template <class N>
  struct State {
    RunningSum<N> sum;
    friend DEVICE State operator+(State a, Part<N> part) {
      a.sum += part.sum;
      return a;
    }
    friend DEVICE State merge(const State& a, const State& b) { return {a.sum + b.sum}; }
    friend DEVICE Part<N> total_of(State a) { return {a.sum.total()}; }
  };
  // SCALE: of the derivative, which is proportional to it.
  template <class N>
  struct Distance {
    N value, scale;
  };

  template <class N>
  DEVICE N term(N d) const {
    if constexpr (NORM == 0) return d == 0.0 ? N(0.0) : N(1.0);
    if constexpr (NORM == 1) return abs(d);
    if constexpr (NORM == 2) return d * d;
    // As in gradient(): the power of 0 has the derivative 0, also where p is below 1.
    if constexpr (order<N> > 0) return d == 0.0 ? N(0.0) : pow(abs(d), p);
    return pow(abs(d), p);
  }
  template <class N>
  DEVICE Distance<N> distance(Part<N> part) const {
    const N sum = part.sum;
    Distance<N> norm{sum, N(1.0)};
    if constexpr (NORM == 2) {
      norm.value = sum == 0.0 ? N(0.0) : sqrt(sum);
      norm.scale = sum == 0.0 ? N(0.0) : N(1.0) / norm.value;
    } else if constexpr (NORM == 3) {
      norm.value = sum == 0.0 ? N(0.0) : pow(sum, Real<T>(T(1)) / p);
      norm.scale = sum == 0.0 ? N(0.0) : pow(norm.value, 1.0 - p);
    }
    return norm;
  }
  template <class N>
  DEVICE N gradient(const Distance<N>& norm, N d) const {
    if constexpr (NORM == 0) return N(0.0);
    if constexpr (NORM == 1) return norm.scale * N(sign(d));
    if constexpr (NORM == 2) return norm.scale * d;
    return d == 0.0 ? N(0.0) : sign(d) * pow(abs(d), p - 1.0) * norm.scale;
  }
};

// A number that came twice, with parts of the slopes of both.
template <class T>
DEVICE Real<T> mixed(Real<T> a, T, Real<T>, T) {
  return a;
}
template <class X, class T>
DEVICE Dual<X> mixed(Dual<X> a, T of_a, Dual<X> b, T of_b) {
  return dual(a.value, a.slope * Real<T>(of_a) + b.slope * Real<T>(of_b));
}

template <class T>
struct Norm<T, 4> {
  Parameter<T> p;

  template <class N>
  struct Part {
    N largest;
    T ties;
    friend DEVICE Part operator+(Part a, N size) { return merge(a, {size, T(1)}); }
    friend DEVICE Part operator+(Part a, Part b) { return merge(a, b); }
    friend DEVICE Part total_of(Part a) { return a; }
    friend DEVICE Part merge(Part a, Part b) {
      const bool tie = a.largest == b.largest;
      // NaN wins.
      const bool first = a.largest > b.largest || !(a.largest == a.largest);
      // Ties share the derivative, along a tangent too.
      if (tie && a.ties > T(0) && b.ties > T(0)) {
        const T ties = a.ties + b.ties;
        return {mixed(a.largest, a.ties / ties, b.largest, b.ties / ties), ties};
      }
      return first || b.ties == T(0) ? a : b;
    }
  };
  template <class N>
  using State = Part<N>;
  template <class N>
  struct Distance {
    N value, scale;
  };

  template <class N>
  DEVICE N term(N d) const {
    return abs(d);
  }
  template <class N>
  DEVICE Distance<N> distance(Part<N> part) const {
    return {part.largest, N(1.0) / Real<T>(part.ties)};
  }
  template <class N>
  DEVICE N gradient(const Distance<N>& norm, N d) const {
    return abs(d) == norm.value ? N(sign(d)) * norm.scale : N(0.0);
  }
};

// max(0, margin + |anchor - positive| - |anchor - negative|); with SWAP the distance to the
// negative is that from the positive where that is smaller.
template <class T, int NORM, bool SWAP>
struct TripletMargin : OfRow {
  static constexpr int OPERANDS = 3;
  static constexpr unsigned READS = 7u;
  Parameter<T> margin, p, eps;
  using Metric = Norm<T, NORM>;

  // Of the distances anchor-positive, anchor-negative and positive-negative.
  template <class Each>
  struct Distances {
    Each to[2 + SWAP];
    static DEVICE Distances empty() { return {}; }  // zeros
    friend DEVICE Distances merge(const Distances& a, const Distances& b) {
      Distances both;
#pragma unroll
      for (int i = 0; i < 2 + SWAP; ++i) both.to[i] = merge(a.to[i], b.to[i]);
      return both;
    }
    friend DEVICE auto rescale_to(const Distances& each, auto) {
      Distances<decltype(total_of(each.to[0]))> all;
#pragma unroll
      for (int i = 0; i < 2 + SWAP; ++i) all.to[i] = total_of(each.to[i]);
      return all;
    }
  };
  template <class N>
  using Parts = Distances<typename Metric::template Part<N>>;
  template <class N>
  using State = Distances<typename Metric::template State<N>>;

  template <bool FIRST_BATCH, class Row>
  DEVICE void add(auto& state, const Row&, const Always&, auto& elements) const {
    using N = typename Row::N;
    const Metric metric{p};
    auto parts = Parts<N>::empty();
    elements.each([&](int, auto, const auto& x) {
#pragma unroll
      for (int i = 0; i < 2 + SWAP; ++i) {
        parts.to[i] = parts.to[i] + metric.term(difference<N>(i, x));
      }
    });
#pragma unroll
    for (int i = 0; i < 2 + SWAP; ++i) state.to[i] = state.to[i] + parts.to[i];
  }

  template <class N>
  struct Finished {
    N value;
    T denominator;
    typename Metric::template Distance<N> to[2 + SWAP];
  };
  template <class N>
  DEVICE Finished<N> epilogue(const auto&, const Always&, const Parts<N>& parts, bool) const {
    const Metric metric{p};
    Finished<N> done;
#pragma unroll
    for (int i = 0; i < 2 + SWAP; ++i) done.to[i] = metric.distance(parts.to[i]);
    N negative = done.to[1].value;
    T from_positive = T(0);
    if constexpr (SWAP) {
      const N swapped = done.to[2].value;
      from_positive = swapped < negative ? T(1) : swapped == negative ? T(0.5) : T(0);
      negative = min(negative, swapped);
    }
    const N excess = margin + done.to[0].value - negative;
    done.value = clamp_min(excess, 0.0);
    done.denominator = T(1);
    // The derivatives of the loss by each distance.
    const T active = excess >= 0.0 ? T(1) : T(0);
    const T slopes[3] = {active, -active * (T(1) - from_positive), -active * from_positive};
#pragma unroll
    for (int i = 0; i < 2 + SWAP; ++i) done.to[i].scale = Real<T>(slopes[i]) * done.to[i].scale;
    return done;
  }
  template <class N>
  DEVICE void scale(Finished<N>& done, auto by) const {
#pragma unroll
    for (int i = 0; i < 2 + SWAP; ++i) done.to[i].scale = by(done.to[i].scale);
  }

  template <int K, class N>
  DEVICE N gradient(const auto&, const Finished<N>& done, const auto& x) const {
    // Where each difference has the operand: with +, with -, or not at all.
    constexpr int SIGN[3][3] = {{1, 1, 0}, {-1, 0, 1}, {0, -1, -1}};
    const Metric metric{p};
    N sum;
    bool has_any = false;
#pragma unroll
    for (int i = 0; i < 2 + SWAP; ++i) {
      if (SIGN[K][i] == 0) continue;
      const N slope = metric.gradient(done.to[i], difference<N>(i, x));
      if (has_any) {
        sum = SIGN[K][i] > 0 ? sum + slope : sum - slope;
      } else {
        sum = SIGN[K][i] > 0 ? slope : -slope;
      }
      has_any = true;
    }
    return sum;
  }

 private:
  template <class N>
  DEVICE N difference(int i, const auto& x) const {
    const N a = i == 2 ? get<1>(x) : get<0>(x), b = i == 0 ? get<1>(x) : get<2>(x);
    return (a - b) + eps;
  }
};
