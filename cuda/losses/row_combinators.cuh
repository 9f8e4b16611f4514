// Losses of rows made from losses of rows: their denominator, and those with a mask or a weight of
// each row. Sampled reads arrays behind those of the loss that it wraps.
#pragma once
#include "losses/rows.cuh"

// What an active row of a loss adds to the denominator of a mean, given its context.
template <class Loss>
struct Denominator : Loss {
  static constexpr unsigned READS = 0u;
  DEVICE auto denominator(const auto& target) const { return target.weight(); }
};

// What is prefetched of a row, with whether a mask counts it; and its context, with its weight as
// it is in memory.
template <class Own, class Mask>
struct SamplePrefetch {
  Own own;
  Mask counts;
};
template <class Context, class Weight>
struct Sample : Context {
  Weight sample_weight;
};
template <class T>
DEVICE T sample_weight(const auto&) {
  return T(1);
}
template <class T, class Context, class Weight>
DEVICE T sample_weight(const Sample<Context, Weight>& sample) {
  return convert<T>(sample.sample_weight);
}

// A loss with a mask of rows, a weight for each, or both, which are arrays behind all others that
// it reads. What the mask leaves out is ignored. The weight multiplies the value of a row, its term
// of the denominator and its gradients.
template <class Loss, bool MASKED, bool WEIGHED>
struct Sampled : Loss {
  DEVICE auto prefetch(const auto& row) const {
    const auto counts = [&] {
      if constexpr (MASKED) {
        return row.template load_of_sample<0>();
      } else {
        return true;
      }
    };
    return SamplePrefetch<decltype(Loss::prefetch(row)), decltype(counts())>{Loss::prefetch(row),
                                                                             counts()};
  }
  template <class Row>
  DEVICE auto prologue(const Row& row, const auto& prefetched) const {
    const auto weight = [&] {
      if constexpr (WEIGHED) {
        return row.template load_of_sample<int(MASKED)>();
      } else {
        return typename Row::Scalar(1);
      }
    };
    using Context = decltype(Loss::prologue(row, prefetched.own));
    Sample<Context, decltype(weight())> sample{Loss::prologue(row, prefetched.own), weight()};
    if (!prefetched.counts) sample.status = IGNORED;
    return sample;
  }
  template <class N, class Row>
  DEVICE auto epilogue(const Row& row, const auto& context, const auto& state, bool valued) const {
    auto done = Loss::template epilogue<N>(row, context, state, valued);
    if constexpr (WEIGHED) {
      const auto weight = sample_weight<typename Row::Scalar>(context);
      const auto weighed = [&](auto number) {
        return mapped(number, [&](auto x) { return x * weight; });
      };
      done.value = weighed(done.value);
      done.denominator = weighed(done.denominator);
      Loss::scale(done, weighed);
    }
    return done;
  }
  // Where the loss is a Denominator.
  DEVICE auto denominator(const auto& sample) const {
    auto own = Loss::denominator(sample);
    return own * sample_weight<decltype(own)>(sample);
  }
};

// How many arrays say how much each row counts.
template <class Loss>
constexpr int sample_arrays = 0;
template <class Loss, bool MASKED, bool WEIGHED>
constexpr int sample_arrays<Sampled<Loss, MASKED, WEIGHED>> = int(MASKED) + int(WEIGHED);

// Whether the denominator of a mean is the number of rows that the loss does not ignore itself.
template <class Loss>
constexpr bool counts_rows = !Loss::WEIGHTED && sample_arrays<Loss> == 0;
