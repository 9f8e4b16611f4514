// The losses of rows, one struct each: what a row accumulates, how parts of a row combine, what the
// loss of the row and the gradient of each of its elements are.
//
// A struct has its parameters as fields, OPERANDS, WEIGHTED, and
//   READS            bit k: `add` and `gradient` look at each element of operand k, bit OPERANDS:
//                    at the weight of each class
//   ahead(row)       what is read of a row while the one before is worked on
//   begin(row, ahead)
//                    what is known of a row before its elements are read: a context, with a status
//   State<N>         what a row accumulates; empty() has nothing
//   add(state, row, context, elements)
//                    takes a batch of elements; elements.each(f) calls f(column, x) for each, and
//                    get<k>(x) is its number in operand k
//   combine(a, b)    a and b together; with the same bits as combine(b, a)
//   finish(row, context, state)
//                    the value, its share in a mean, and what gradients need
//   gradient<K>(row, context, finished, column, x)
//                    the derivative of the value by this element of operand K
//   SINGLE           whether the element of context.column has a derivative of its own,
//   gradient_of_target(context, finished)
//
// Numbers N are Real<T>, or dual numbers for the derivative of all of this along a direction, which
// makes a second backward pass. To add a loss: write its struct here and its public function.
#pragma once
#include "math.cuh"
#include "reduce.cuh"
#include "tuple.cuh"

// ACTIVE rows have a loss; IGNORED ones have neither loss nor gradient nor a share in the mean; in
// INVALID ones, whose target is out of range, all are NaN.
enum Status { ACTIVE, IGNORED, INVALID };

// ---- sums of numbers
// -----------------------------------------------------------------------------

template <class N>
struct RunningSum;

template <class T>
struct RunningSum<Real<T>> {
  Sum<T> sum;
  static __device__ __forceinline__ RunningSum zero() { return {Sum<T>::zero()}; }
  __device__ __forceinline__ void operator+=(Real<T> x) { sum += x.value; }
  __device__ __forceinline__ void scale(T factor) {
    sum.high *= factor;
    sum.low *= factor;
  }
  // The sum, less a number near it.
  __device__ __forceinline__ Real<T> total(T less = T(0)) const {
    const T high = sum.high - less;
    return Real<T>(isfinite(high) ? high + sum.low : high);
  }
  // Exact up to the sum of the errors, hence the same whichever comes first.
  friend __device__ __forceinline__ RunningSum operator+(RunningSum a, RunningSum b) {
    const T low = a.sum.low + b.sum.low;
    a.sum.low = T(0);
    a.sum += b.sum.high;
    a.sum.low += low;
    return a;
  }
};

template <class X>
struct RunningSum<Dual<X>> {
  RunningSum<X> value, slope;
  static __device__ __forceinline__ RunningSum zero() {
    return {RunningSum<X>::zero(), RunningSum<X>::zero()};
  }
  __device__ __forceinline__ void operator+=(Dual<X> x) {
    value += x.value;
    slope += x.slope;
  }
  template <class T>
  __device__ __forceinline__ void scale(T factor) {
    value.scale(factor);
    slope.scale(factor);
  }
  template <class T>
  __device__ __forceinline__ Dual<X> total(T less) const {
    return dual(value.total(less), slope.total());
  }
  __device__ __forceinline__ Dual<X> total() const { return dual(value.total(), slope.total()); }
  friend __device__ __forceinline__ RunningSum operator+(const RunningSum& a, const RunningSum& b) {
    return {a.value + b.value, a.slope + b.slope};
  }
};

// ---- what several losses share
// -------------------------------------------------------------------

__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ double larger(double a, double b) { return fmax(a, b); }

// exp(x) of an x up to 0; in float with an error of 2^-23 (1 + |x|), which is 2^-22 at most in what
// it adds to a sum that has an exp(0). Volatile, as the compiler would otherwise branch around it
// where its result is selected or not, and wait for each result before it begins the next.
__device__ __forceinline__ float exponential(float x) {
  const float power = 1.44269504f * x;
#ifdef __CUDA_ARCH__
  float y;
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(power));
  return y;
#else
  return exp2f(power);
#endif
}
__device__ __forceinline__ double exponential(double x) { return exp(x); }
template <class T>
__device__ __forceinline__ Real<T> exponential(Real<T> x) {
  return Real<T>(exponential(x.value));
}
template <class X>
__device__ __forceinline__ Dual<X> exponential(Dual<X> x) {
  const X y = exponential(x.value);
  return dual(y, y * x.slope);
}

// What losses without anything to accumulate have for a state.
struct Nothing {
  static __device__ __forceinline__ Nothing empty() { return {}; }
  friend __device__ __forceinline__ Nothing combine(Nothing a, Nothing) { return a; }
};

// log(1 + rest), rest being at least -1.
template <class T>
__device__ __forceinline__ Real<T> log_of_one_and(Real<T> rest) {
  return Real<T>(log1p(rest.value));
}
template <class X>
__device__ __forceinline__ Dual<X> log_of_one_and(Dual<X> rest) {
  return dual(log_of_one_and(rest.value), rest.slope / (1.0 + rest.value));
}

// The class of a row and its weight.
template <class N, class Column, class T>
struct Class {
  Status status;
  Column column;
  T weight;
  N x;  // the element of the class
};

template <bool WEIGHTED, class Row>
__device__ __forceinline__ auto class_of(const Row& row, long long index, long long ignore_index) {
  using T = typename Row::Scalar;
  using N = typename Row::N;
  using Column = typename Row::Column;
  const bool ignored = index == ignore_index;
  const bool valid = index >= 0 && index < row.columns;
  Class<N, Column, T> own{ignored ? IGNORED : valid ? ACTIVE : INVALID, Column(0), T(1), N(0.0)};
  if (own.status == ACTIVE) {
    own.column = Column(index);
    own.x = row.template number<0>(own.column);
    if constexpr (WEIGHTED) own.weight = row.weight(own.column);
  }
  return own;
}
constexpr long long NEVER_IGNORED = -0x7fffffffffffffffll - 1;

// States that need no alignment are joined as they are.
template <class State, class F>
__device__ __forceinline__ void align(State&, F) {}
template <class State>
__device__ __forceinline__ State join(const State& a, const State& b) {
  return combine(a, b);
}

// The sum over a row of exp(x - top), top being the largest x so far, which makes all terms at most
// 1; with MIXED also the sums of m and of m (x - top), m being what an element counts: terms of one
// sign, so that nothing cancels.
template <class N, bool MIXED>
struct Mixture {
  RunningSum<N> mass, spread;
};
template <class N>
struct Mixture<N, false> {};

template <class N, bool MIXED>
struct Softmax : Mixture<N, MIXED> {
  using T = typename ScalarOf<N>::type;
  T top;
  RunningSum<N> sum;

  static __device__ __forceinline__ Softmax empty() {
    Softmax none;
    none.top = sizeof(T) == 4 ? T(-3.402823466e38) : T(-1.7976931348623157e308);
    none.sum = RunningSum<N>::zero();
    if constexpr (MIXED) none.mass = none.spread = RunningSum<N>::zero();
    return none;
  }
  __device__ __forceinline__ void rise(T to) {
    sum.scale(exponential(top - to));
    if constexpr (MIXED) {
      const N mass = this->mass.total();
      // Nothing yet: the difference may be infinite.
      this->spread += mass * Real<T>(plain(mass) == T(0) ? T(0) : top - to);
    }
    top = to;
  }
  friend __device__ __forceinline__ Softmax combine(Softmax a, Softmax b) {
    const T top = larger(a.top, b.top);
    a.rise(top);
    b.rise(top);
    return join(a, b);
  }
  // Many are combined faster when all have risen to the largest top, which largest(top) gives.
  template <class F>
  friend __device__ __forceinline__ void align(Softmax& state, F largest) {
    state.rise(largest(state.top));
  }
  friend __device__ __forceinline__ Softmax join(Softmax a, const Softmax& b) {
    a.sum = a.sum + b.sum;
    if constexpr (MIXED) {
      a.mass = a.mass + b.mass;
      a.spread = a.spread + b.spread;
    }
    return a;
  }
};

// ---- cross entropy
// -------------------------------------------------------------------------------

// w_t ((1 - e) (lse - x_t) + z lse^2) + e / C sum_j w_j (lse - x_j), lse = log(sum_j exp(x_j)).
template <class T, bool SMOOTHED, bool Z, bool WEIGHTED_>
struct CrossEntropy {
  static constexpr int OPERANDS = 2;
  static constexpr bool WEIGHTED = WEIGHTED_;
  static constexpr unsigned READS = 1u | (SMOOTHED && WEIGHTED ? 4u : 0u);
  static constexpr bool SINGLE = true;
  long long ignore_index;
  Parameter<T> label_smoothing, z_loss;

  // The target's own term stays out of the sum: where it is by far the largest, the loss is what
  // the others add.
  template <class N>
  using State = Softmax<N, SMOOTHED>;

  template <class Row>
  __device__ __forceinline__ long long ahead(const Row& row) const {
    return row.template index<1>();
  }
  template <class Row>
  __device__ __forceinline__ auto begin(const Row& row, long long index) const {
    return class_of<WEIGHTED>(row, index, ignore_index);
  }

  template <class N, class Row, class Context, class Elements>
  __device__ __forceinline__ void add(State<N>& state, const Row& row, const Context& target,
                                      Elements& elements) const {
    T top = state.top;
    elements.each([&](auto, const auto& x) { top = larger(top, plain(get<0>(x))); });
    state.rise(top);
    if constexpr (!SMOOTHED) elements.hide(target.column);
    N sum = N(0.0), mass = N(0.0), spread = N(0.0);
    elements.each([&](auto column, const auto& x) {
      const N below = get<0>(x) - Real<T>(top);
      const N term = exponential(below);
      sum = SMOOTHED && column == target.column ? sum : sum + term;
      if constexpr (SMOOTHED) {
        const Real<T> counts = weight_of(x);
        mass = mass + counts;
        spread = spread + counts * below;
      }
    });
    state.sum += sum;
    if constexpr (SMOOTHED) {
      state.mass += mass;
      state.spread += spread;
    }
  }

  template <class N>
  struct Finished {
    N value, scale, at_target;  // scale: of exp(x - top)
    T share, top, smooth;
  };
  template <class N, class Row, class Context>
  __device__ __forceinline__ Finished<N> finish(const Row& row, const Context& target,
                                                const State<N>& state) const {
    const Real<T> weight(target.weight);
    const N others = state.sum.total();
    const N below = target.x - Real<T>(state.top);
    const N own = exponential(below);
    const N total = others + own;
    // Where the target is the largest, own is 1.
    const N log_total = log_of_one_and(others + (own - 1.0));
    Finished<N> done;
    N value = weight * (1.0 - label_smoothing) * (log_total - below);
    N rest = N(0.0);
    done.smooth = T(0);
    if constexpr (SMOOTHED) {
      const Real<T> share = Real<T>(label_smoothing) / Real<T>(T(row.columns));
      const N mass = state.mass.total();
      value = value + share * (mass * log_total - state.spread.total());
      rest = share * (mass - weight);
      done.smooth = plain(share);
    }
    N slope = weight * (1.0 - label_smoothing) + N(0.0);
    if constexpr (SMOOTHED) slope = slope + rest + Real<T>(done.smooth) * weight;
    if constexpr (Z) {
      const N lse = Real<T>(state.top) + log_total;
      value = value + weight * z_loss * lse * lse;
      const N by_lse = 2.0 * weight * z_loss * lse;
      slope = slope + by_lse;
      rest = rest + by_lse;
    }
    done.value = value;
    done.share = target.weight;
    done.top = state.top;
    done.scale = slope / total;
    done.at_target = rest - done.scale * others;
    return done;
  }

  template <int K, class N, class Row, class Context, class Column, class X>
  __device__ __forceinline__ N gradient(const Row& row, const Context& target,
                                        const Finished<N>& done, Column column, const X& x) const {
    N slope = done.scale * exponential(get<0>(x) - Real<T>(done.top));
    if constexpr (SMOOTHED) slope = slope - Real<T>(done.smooth) * weight_of(x);
    return slope;
  }
  template <class N, class Context>
  __device__ __forceinline__ N gradient_of_target(const Context&, const Finished<N>& done) const {
    return done.at_target;
  }

 private:
  template <class X>
  static __device__ __forceinline__ Real<T> weight_of(const X& x) {
    if constexpr (WEIGHTED) {
      return Real<T>(plain(get<OPERANDS>(x)));
    } else {
      return Real<T>(T(1));
    }
  }
};

struct Always {
  Status status;
};

// sum_j w_j y'_j (lse - x_j) + z lse^2, with y' = (1 - e) y + e / C.
template <class T, bool SMOOTHED, bool Z, bool WEIGHTED_>
struct CrossEntropyOfProbabilities {
  static constexpr int OPERANDS = 2;
  static constexpr bool WEIGHTED = WEIGHTED_;
  static constexpr unsigned READS = 3u | (WEIGHTED ? 4u : 0u);
  static constexpr bool SINGLE = false;
  Parameter<T> label_smoothing, z_loss;

  template <class N>
  using State = Softmax<N, true>;

  template <class Row>
  __device__ __forceinline__ Nothing ahead(const Row&) const {
    return {};
  }
  template <class Row>
  __device__ __forceinline__ Always begin(const Row&, Nothing) const {
    return {ACTIVE};
  }

  template <class N, class Row, class Elements>
  __device__ __forceinline__ void add(State<N>& state, const Row& row, const Always&,
                                      Elements& elements) const {
    T top = state.top;
    elements.each([&](auto, const auto& x) { top = larger(top, plain(get<0>(x))); });
    state.rise(top);
    N sum = N(0.0), mass = N(0.0), spread = N(0.0);
    elements.each([&](auto, const auto& x) {
      const N below = get<0>(x) - Real<T>(top);
      const N counts = counted(row, x);
      sum = sum + exponential(below);
      mass = mass + counts;
      spread = spread + counts * below;
    });
    state.sum += sum;
    state.mass += mass;
    state.spread += spread;
  }

  template <class N>
  struct Finished {
    N value, scale, log_total;
    T share, top;
  };
  template <class N, class Row>
  __device__ __forceinline__ Finished<N> finish(const Row&, const Always&,
                                                const State<N>& state) const {
    const N log_total = log_of_one_and(state.sum.total(T(1))), mass = state.mass.total();
    Finished<N> done;
    done.value = mass * log_total - state.spread.total();
    N slope = mass;
    if constexpr (Z) {
      const N lse = Real<T>(state.top) + log_total;
      done.value = done.value + z_loss * lse * lse;
      slope = slope + 2.0 * z_loss * lse;
    }
    done.share = T(1);
    done.top = state.top;
    done.log_total = log_total;
    done.scale = slope / state.sum.total();
    return done;
  }

  template <int K, class N, class Row, class Column, class X>
  __device__ __forceinline__ N gradient(const Row& row, const Always&, const Finished<N>& done,
                                        Column, const X& x) const {
    const N below = get<0>(x) - Real<T>(done.top);
    if constexpr (K == 0) {
      return done.scale * exponential(below) - counted(row, x);
    } else {
      const N slope = (1.0 - label_smoothing) * (done.log_total - below);
      if constexpr (WEIGHTED) return Real<T>(plain(get<OPERANDS>(x))) * slope;
      return slope;
    }
  }

 private:
  template <class Row, class X>
  __device__ __forceinline__ auto counted(const Row& row, const X& x) const {
    auto y = get<1>(x);
    if constexpr (SMOOTHED) {
      y = (1.0 - label_smoothing) * y + Real<T>(label_smoothing) / Real<T>(T(row.columns));
    }
    if constexpr (WEIGHTED) y = Real<T>(plain(get<OPERANDS>(x))) * y;
    return y;
  }
};

// -w_t x_t: nothing but the target's element is read.
template <class T, bool WEIGHTED_>
struct NegativeLogLikelihood {
  static constexpr int OPERANDS = 2;
  static constexpr bool WEIGHTED = WEIGHTED_;
  static constexpr unsigned READS = 0u;
  static constexpr bool SINGLE = true;
  long long ignore_index;

  template <class N>
  using State = Nothing;

  template <class Row>
  __device__ __forceinline__ long long ahead(const Row& row) const {
    return row.template index<1>();
  }
  template <class Row>
  __device__ __forceinline__ auto begin(const Row& row, long long index) const {
    return class_of<WEIGHTED>(row, index, ignore_index);
  }

  template <class N>
  struct Finished {
    N value;
    T share;
  };
  template <class N, class Row, class Context>
  __device__ __forceinline__ Finished<N> finish(const Row& row, const Context& target,
                                                const Nothing&) const {
    return {-(Real<T>(target.weight) * target.x), target.weight};
  }

  template <int K, class N, class Row, class Context, class Column, class X>
  __device__ __forceinline__ N gradient(const Row&, const Context& target, const Finished<N>&,
                                        Column column, const X&) const {
    return N(0.0);
  }
  template <class N, class Context>
  __device__ __forceinline__ N gradient_of_target(const Context& target, const Finished<N>&) const {
    return N(Real<T>(-target.weight));
  }
};

// ---- margins
// -------------------------------------------------------------------------------------

// w_t / C sum over j other than t of max(0, margin - x_t + x_j), or its square.
template <class T, bool SQUARED, bool WEIGHTED_>
struct MultiMargin {
  static constexpr int OPERANDS = 2;
  static constexpr bool WEIGHTED = WEIGHTED_;
  static constexpr unsigned READS = 1u;
  static constexpr bool SINGLE = true;
  Parameter<T> margin;

  template <class N>
  struct State {
    RunningSum<N> sum, slope;
    static __device__ __forceinline__ State empty() {
      return {RunningSum<N>::zero(), RunningSum<N>::zero()};
    }
    friend __device__ __forceinline__ State combine(const State& a, const State& b) {
      return {a.sum + b.sum, a.slope + b.slope};
    }
  };

  template <class Row>
  __device__ __forceinline__ long long ahead(const Row& row) const {
    return row.template index<1>();
  }
  template <class Row>
  __device__ __forceinline__ auto begin(const Row& row, long long index) const {
    return class_of<WEIGHTED>(row, index, NEVER_IGNORED);
  }

  template <class N, class Row, class Context, class Elements>
  __device__ __forceinline__ void add(State<N>& state, const Row& row, const Context& target,
                                      Elements& elements) const {
    const N threshold = margin - target.x;
    N sum = N(0.0), slopes = N(0.0);
    elements.each([&](auto column, const auto& x) {
      const N violation = threshold + get<0>(x);
      if (column != target.column && violation > 0.0) {
        sum = sum + (SQUARED ? violation * violation : violation);
        slopes = slopes + slope(violation);
      }
    });
    state.sum += sum;
    state.slope += slopes;
  }

  template <class N>
  struct Finished {
    N value, threshold, at_target;
    T share, scale;
  };
  template <class N, class Row, class Context>
  __device__ __forceinline__ Finished<N> finish(const Row& row, const Context& target,
                                                const State<N>& state) const {
    const Real<T> scale = Real<T>(target.weight) / Real<T>(T(row.columns));
    return {scale * state.sum.total(), margin - target.x, -(scale * state.slope.total()), T(1),
            plain(scale)};
  }

  template <int K, class N, class Row, class Context, class Column, class X>
  __device__ __forceinline__ N gradient(const Row&, const Context& target, const Finished<N>& done,
                                        Column column, const X& x) const {
    const N violation = done.threshold + get<0>(x);
    return violation > 0.0 ? Real<T>(done.scale) * slope(violation) : N(0.0);
  }
  template <class N, class Context>
  __device__ __forceinline__ N gradient_of_target(const Context&, const Finished<N>& done) const {
    return done.at_target;
  }

 private:
  template <class N>
  static __device__ __forceinline__ N slope(N violation) {
    return SQUARED ? 2.0 * violation : N(1.0);
  }
};

// 1 / C sum over targets t and all j that are none of max(0, 1 - (x_t - x_j)). The targets of a row
// are its first indices, up to a negative one. An element takes time in proportion to their number.
template <class T>
struct MultilabelMargin {
  static constexpr int OPERANDS = 2;
  static constexpr bool WEIGHTED = false;
  static constexpr unsigned READS = 1u;
  static constexpr bool SINGLE = false;

  template <class N>
  struct State {
    RunningSum<N> sum;
    static __device__ __forceinline__ State empty() { return {RunningSum<N>::zero()}; }
    friend __device__ __forceinline__ State combine(const State& a, const State& b) {
      return {a.sum + b.sum};
    }
  };

  template <class Column>
  struct Targets {
    Status status;
    Column count;
  };

  template <class Row>
  __device__ __forceinline__ Nothing ahead(const Row&) const {
    return {};
  }
  template <class Row>
  __device__ __forceinline__ auto begin(const Row& row, Nothing) const {
    using Column = typename Row::Column;
    Targets<Column> targets{ACTIVE, 0};
    for (; targets.count < row.columns; ++targets.count) {
      const long long index = row.template index<1>(targets.count);
      if (index < 0) break;
      if (index >= row.columns) targets.status = INVALID;
    }
    return targets;
  }

  template <class N, class Row, class Context, class Elements>
  __device__ __forceinline__ void add(State<N>& state, const Row& row, const Context& targets,
                                      Elements& elements) const {
    using Column = typename Row::Column;
    elements.each([&](Column column, const auto& x) {
      N sum = N(0.0);
      for (auto k = decltype(targets.count)(0); k < targets.count; ++k) {
        const auto target = row.template index<1>(k);
        if (target == column) {
          sum = N(0.0);
          break;
        }
        const N violation = 1.0 - row.template number<0>(Column(target)) + get<0>(x);
        if (violation > 0.0) sum = sum + violation;
      }
      state.sum += sum;
    });
  }

  template <class N>
  struct Finished {
    N value;
    T share;
  };
  template <class N, class Row, class Context>
  __device__ __forceinline__ Finished<N> finish(const Row& row, const Context&,
                                                const State<N>& state) const {
    return {state.sum.total() / Real<T>(T(row.columns)), T(1)};
  }

  template <int K, class N, class Row, class Context, class Column, class X>
  __device__ __forceinline__ N gradient(const Row& row, const Context& targets, const Finished<N>&,
                                        Column column, const X& x) const {
    // A target that is listed twice counts twice.
    Column times = 0, violated = 0;
    for (Column k = 0; k < targets.count; ++k) {
      const auto target = row.template index<1>(k);
      times += target == column;
      violated += violates(row, target, column);
    }
    if (times > 0) {
      violated = 0;
      for (Column other = 0; other < row.columns; ++other) {
        if (violates(row, column, other) && !is_target(row, targets, other)) ++violated;
      }
    }
    const T counted = times > 0 ? -T(times) * T(violated) : T(violated);
    return N(Real<T>(counted) / Real<T>(T(row.columns)));
  }

 private:
  template <class Row>
  static __device__ __forceinline__ bool violates(const Row& row, long long target,
                                                  long long other) {
    using Column = typename Row::Column;
    const auto x = row.template number<0>(Column(target)),
               y = row.template number<0>(Column(other));
    return 1.0 - x + y > 0.0;
  }
  template <class Row, class Context, class Column>
  static __device__ __forceinline__ bool is_target(const Row& row, const Context& targets,
                                                   Column column) {
    for (Column k = 0; k < targets.count; ++k) {
      if (row.template index<1>(k) == column) return true;
    }
    return false;
  }
};

// ---- distances
// -----------------------------------------------------------------------------------

// 1 - cos(x1, x2) for target 1, max(0, cos(x1, x2) - margin) for target -1.
template <class T>
struct CosineEmbedding {
  static constexpr int OPERANDS = 3;
  static constexpr bool WEIGHTED = false;
  static constexpr unsigned READS = 3u;
  static constexpr bool SINGLE = false;
  Parameter<T> margin;

  template <class N>
  struct State {
    RunningSum<N> product, square1, square2;
    static __device__ __forceinline__ State empty() {
      const auto zero = RunningSum<N>::zero();
      return {zero, zero, zero};
    }
    friend __device__ __forceinline__ State combine(const State& a, const State& b) {
      return {a.product + b.product, a.square1 + b.square1, a.square2 + b.square2};
    }
  };

  template <class Row>
  __device__ __forceinline__ Nothing ahead(const Row&) const {
    return {};
  }
  template <class Row>
  __device__ __forceinline__ Always begin(const Row&, Nothing) const {
    return {ACTIVE};
  }

  template <class N, class Row, class Elements>
  __device__ __forceinline__ void add(State<N>& state, const Row&, const Always&,
                                      Elements& elements) const {
    N product = N(0.0), square1 = N(0.0), square2 = N(0.0);
    elements.each([&](auto, const auto& x) {
      product = product + get<0>(x) * get<1>(x);
      square1 = square1 + get<0>(x) * get<0>(x);
      square2 = square2 + get<1>(x) * get<1>(x);
    });
    state.product += product;
    state.square1 += square1;
    state.square2 += square2;
  }

  template <class N>
  struct Finished {
    N value, cosine, reciprocal, square[2];
    T share, sign;  // of the derivative by the cosine
  };
  template <class N, class Row>
  __device__ __forceinline__ Finished<N> finish(const Row& row, const Always&,
                                                const State<N>& state) const {
    Finished<N> done;
    done.square[0] = state.square1.total() + 1e-12;
    done.square[1] = state.square2.total() + 1e-12;
    done.reciprocal = N(1.0) / sqrt(done.square[0] * done.square[1]);
    done.cosine = state.product.total() * done.reciprocal;
    const T target = plain(row.template number<2>(0));
    const N excess = done.cosine - margin;
    done.value = N(0.0);
    done.sign = T(0);
    if (target == T(1)) {
      done.value = 1.0 - done.cosine;
      done.sign = T(-1);
    } else if (target == T(-1)) {
      done.value = clamp_min(excess, 0.0);
      done.sign = excess >= 0.0 ? T(1) : T(0);
    }
    done.share = T(1);
    return done;
  }

  template <int K, class N, class Row, class Column, class X>
  __device__ __forceinline__ N gradient(const Row&, const Always&, const Finished<N>& done, Column,
                                        const X& x) const {
    const N own = get<K>(x), other = get<1 - K>(x);
    return Real<T>(done.sign) * (other * done.reciprocal - done.cosine / done.square[K] * own);
  }
};

// The p-norm of the differences of a row, NORM being 0, 1, 2, 3 for any other p, 4 for infinity;
// its derivative is 0 where it is 0.
template <class T, int NORM>
struct Norm {
  Parameter<T> p;

  // A sum of powers; for the infinite norm the largest number and how many are as large.
  template <class N>
  struct State {
    RunningSum<N> sum;
    static __device__ __forceinline__ State empty() { return {RunningSum<N>::zero()}; }
    __device__ __forceinline__ void operator+=(N term) { sum += term; }
    friend __device__ __forceinline__ State combine(const State& a, const State& b) {
      return {a.sum + b.sum};
    }
  };
  template <class N>
  struct Distance {
    N value, scale;
    T ties;
  };

  template <class N>
  __device__ __forceinline__ N term(N d) const {
    if constexpr (NORM == 0) return d == 0.0 ? N(0.0) : N(1.0);
    if constexpr (NORM == 1) return abs(d);
    if constexpr (NORM == 2) return d * d;
    return pow(abs(d), p);
  }
  template <class N>
  __device__ __forceinline__ Distance<N> distance(const State<N>& state) const {
    const N sum = state.sum.total();
    Distance<N> norm{sum, N(1.0), T(1)};
    if constexpr (NORM == 2) {
      norm.value = root(sum);
      norm.scale = sum == 0.0 ? N(0.0) : N(1.0) / norm.value;
    } else if constexpr (NORM == 3) {
      norm.value = sum == 0.0 ? N(0.0) : pow(sum, Real<T>(T(1)) / p);
      norm.scale = sum == 0.0 ? N(0.0) : pow(norm.value, 1.0 - p);
    }
    return norm;
  }
  template <class N>
  __device__ __forceinline__ N gradient(const Distance<N>& norm, N d) const {
    if constexpr (NORM == 0) return N(0.0);
    if constexpr (NORM == 1) return N(sign(d));
    if constexpr (NORM == 2) return norm.scale * d;
    return d == 0.0 ? N(0.0) : sign(d) * pow(abs(d), p - 1.0) * norm.scale;
  }

 private:
  // The derivative at 0 is to be 0, not infinite.
  template <class N>
  static __device__ __forceinline__ N root(N x) {
    return x == 0.0 ? N(0.0) : sqrt(x);
  }
};
template <class T>
struct Norm<T, 4> {
  Parameter<T> p;

  template <class N>
  struct State {
    N largest;
    T ties;
    static __device__ __forceinline__ State empty() { return {N(0.0), T(0)}; }
    __device__ __forceinline__ void operator+=(N size) { *this = combine(*this, {size, T(1)}); }
    friend __device__ __forceinline__ State combine(const State& a, const State& b) {
      const bool tie = a.largest == b.largest;
      // NaN wins.
      const bool first = a.largest > b.largest || !(a.largest == a.largest);
      // Ties share the derivative, along a direction too.
      if (tie && a.ties > T(0) && b.ties > T(0)) {
        const T ties = a.ties + b.ties;
        return {a.largest * Real<T>(a.ties / ties) + b.largest * Real<T>(b.ties / ties), ties};
      }
      return first || b.ties == T(0) ? a : b;
    }
  };
  template <class N>
  struct Distance {
    N value;
    T ties;
  };

  template <class N>
  __device__ __forceinline__ N term(N d) const {
    return abs(d);
  }
  template <class N>
  __device__ __forceinline__ Distance<N> distance(const State<N>& state) const {
    return {state.largest, state.ties};
  }
  template <class N>
  __device__ __forceinline__ N gradient(const Distance<N>& norm, N d) const {
    return abs(d) == norm.value ? N(sign(d) / Real<T>(norm.ties)) : N(0.0);
  }
};

// max(0, margin + |anchor - positive| - |anchor - negative|); with SWAP the distance to the
// negative is that from the positive where that is smaller.
template <class T, int NORM, bool SWAP>
struct TripletMargin {
  static constexpr int OPERANDS = 3;
  static constexpr bool WEIGHTED = false;
  static constexpr unsigned READS = 7u;
  static constexpr bool SINGLE = false;
  Parameter<T> margin, p, eps;
  using Metric = Norm<T, NORM>;

  template <class N>
  struct State {
    typename Metric::template State<N>
        to[3];  // anchor-positive, anchor-negative, positive-negative
    static __device__ __forceinline__ State empty() {
      const auto none = Metric::template State<N>::empty();
      return {{none, none, none}};
    }
    friend __device__ __forceinline__ State combine(const State& a, const State& b) {
      State c = a;
#pragma unroll
      for (int i = 0; i < 2 + SWAP; ++i) c.to[i] = combine(a.to[i], b.to[i]);
      return c;
    }
  };

  template <class Row>
  __device__ __forceinline__ Nothing ahead(const Row&) const {
    return {};
  }
  template <class Row>
  __device__ __forceinline__ Always begin(const Row&, Nothing) const {
    return {ACTIVE};
  }

  template <class N, class Row, class Elements>
  __device__ __forceinline__ void add(State<N>& state, const Row&, const Always&,
                                      Elements& elements) const {
    const Metric metric{p};
    elements.each([&](auto, const auto& x) {
#pragma unroll
      for (int i = 0; i < 2 + SWAP; ++i) state.to[i] += metric.term(difference<N>(i, x));
    });
  }

  template <class N>
  struct Finished {
    N value;
    T share, slope[3];  // of the loss by each distance
    typename Metric::template Distance<N> to[3];
  };
  template <class N, class Row>
  __device__ __forceinline__ Finished<N> finish(const Row&, const Always&,
                                                const State<N>& state) const {
    const Metric metric{p};
    Finished<N> done;
#pragma unroll
    for (int i = 0; i < 2 + SWAP; ++i) done.to[i] = metric.distance(state.to[i]);
    N negative = done.to[1].value;
    T from_positive = T(0);
    if constexpr (SWAP) {
      const N swapped = done.to[2].value;
      from_positive = swapped < negative ? T(1) : swapped == negative ? T(0.5) : T(0);
      negative = min(negative, swapped);
    }
    const N excess = margin + done.to[0].value - negative;
    done.value = clamp_min(excess, 0.0);
    done.share = T(1);
    const T active = excess >= 0.0 ? T(1) : T(0);
    done.slope[0] = active;
    done.slope[1] = -active * (T(1) - from_positive);
    done.slope[2] = -active * from_positive;
    return done;
  }

  template <int K, class N, class Row, class Column, class X>
  __device__ __forceinline__ N gradient(const Row&, const Always&, const Finished<N>& done, Column,
                                        const X& x) const {
    // Where each difference has the operand: with +, with -, or not at all.
    constexpr int SIGN[3][3] = {{1, 1, 0}, {-1, 0, 1}, {0, -1, -1}};
    const Metric metric{p};
    N sum = N(0.0);
#pragma unroll
    for (int i = 0; i < 2 + SWAP; ++i) {
      if (SIGN[K][i] == 0) continue;
      const N slope = metric.gradient(done.to[i], difference<N>(i, x));
      sum = sum + Real<T>(T(SIGN[K][i]) * done.slope[i]) * slope;
    }
    return sum;
  }

 private:
  template <class N, class X>
  __device__ __forceinline__ N difference(int i, const X& x) const {
    const N a = i == 2 ? get<1>(x) : get<0>(x), b = i == 0 ? get<1>(x) : get<2>(x);
    return (a - b) + eps;
  }
};

// The share of each row alone: the sum that the gradients of a mean are divided by.
template <class Loss>
struct ShareOf {
  static constexpr int OPERANDS = Loss::OPERANDS;
  static constexpr bool WEIGHTED = Loss::WEIGHTED;
  static constexpr unsigned READS = 0u;
  static constexpr bool SINGLE = false;
  Loss loss;

  template <class N>
  using State = Nothing;
  template <class N>
  struct Finished {
    N value;
    decltype(plain(N())) share;
  };

  template <class Row>
  __device__ __forceinline__ auto ahead(const Row& row) const {
    return loss.ahead(row);
  }
  template <class Row, class Ahead>
  __device__ __forceinline__ auto begin(const Row& row, const Ahead& ahead) const {
    return loss.begin(row, ahead);
  }
  template <class N, class Row, class Context>
  __device__ __forceinline__ Finished<N> finish(const Row&, const Context& target,
                                                const Nothing&) const {
    using T = decltype(plain(N()));
    return {N(Real<T>(target.weight)), target.weight};
  }
};
