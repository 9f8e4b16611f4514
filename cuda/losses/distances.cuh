// Losses of the angle between vectors, and of distances between them.
#pragma once
#include "losses/row_loss.cuh"
#include "losses/running_sum.cuh"

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

// What NORM is of another p than 0, 1 and 2, and of the maximum norm.
constexpr int ANY_NORM = 3, MAXIMUM_NORM = 4;

// A norm, and what its derivative, which is proportional to it, is multiplied by.
template <class N>
struct Distance {
  N value, scale;
};

// The p-norm of the differences of a row; its derivative is 0 where it is 0.
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
  template <class N>
  DEVICE N term(N d) const {
    if constexpr (NORM == 0) {
      return d == 0.0 ? N(0.0) : N(1.0);
    } else if constexpr (NORM == 1) {
      return abs(d);
    } else if constexpr (NORM == 2) {
      return d * d;
    } else if constexpr (order<N> > 0) {
      // As in gradient(): the power of 0 has the derivative 0, also where p is below 1.
      return d == 0.0 ? N(0.0) : pow(abs(d), p);
    } else {
      return pow(abs(d), p);
    }
  }
  template <class N>
  DEVICE Distance<N> distance(Part<N> part) const {
    const N sum = part.sum;
    Distance<N> norm{sum, N(1.0)};
    if constexpr (NORM == 2) {
      norm.value = sum == 0.0 ? N(0.0) : sqrt(sum);
      norm.scale = sum == 0.0 ? N(0.0) : N(1.0) / norm.value;
    } else if constexpr (NORM == ANY_NORM) {
      norm.value = sum == 0.0 ? N(0.0) : pow(sum, Real<T>(T(1)) / p);
      norm.scale = sum == 0.0 ? N(0.0) : pow(norm.value, 1.0 - p);
    }
    return norm;
  }
  template <class N>
  DEVICE N gradient(const Distance<N>& norm, N d) const {
    if constexpr (NORM == 0) {
      return N(0.0);
    } else if constexpr (NORM == 1) {
      return norm.scale * N(sign(d));
    } else if constexpr (NORM == 2) {
      return norm.scale * d;
    } else {
      return d == 0.0 ? N(0.0) : sign(d) * pow(abs(d), p - 1.0) * norm.scale;
    }
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
struct Norm<T, MAXIMUM_NORM> {
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
  using Metric = Norm<T, NORM>;
  Parameter<T> margin;
  Metric metric;  // whose field p is the next parameter
  Parameter<T> eps;

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
    Distance<N> to[2 + SWAP];
  };
  template <class N>
  DEVICE Finished<N> epilogue(const auto&, const Always&, const Parts<N>& parts, bool) const {
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
