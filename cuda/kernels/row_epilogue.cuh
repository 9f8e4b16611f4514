// The epilogue of a row: from the state of the row to its value, which is written or added up, and
// to the factors of the gradients of its elements. kernels/rows.cu does what outcome_of and take do
// in parts, between which it hands sums over.
#pragma once
#include "kernels/row.cuh"
#include "reduction/reduction.cuh"

// Multiplies what the gradients of a row are proportional to by a factor, and divides it.
template <class T>
DEVICE void scale_gradients(const auto& loss, auto& done, T factor,
                            const Reciprocal<T>& reciprocal) {
  loss.scale(done, [&](auto number) {
    return mapped(number, [&](T x) { return reciprocal.template times<T>(factor * x); });
  });
}

// The derivative of a number along a tangent, or the number where there is none.
template <class N>
DEVICE auto derivative(N number) {
  if constexpr (order<N> > 0) {
    return plain(number.slope);
  } else {
    return plain(number);
  }
}

// The value, and all gradients, of a row that is not active.
template <class T>
DEVICE T without_loss(Status status) {
  return status == INVALID ? T(__int_as_float(0x7fffffff)) : T(0);
}

// The term of the denominator of a row that is not active: one whose target is out of range counts.
template <class T>
DEVICE T denominator_without_loss(const auto& context) {
  return context.status == INVALID ? sample_weight<T>(context) : T(0);
}

// The warps of a block that write parts of the same sectors do so one soon after the other.
DEVICE void keep_in_step() { __syncthreads(); }

// What a loss prefetches of a row, and the context that it makes of that.
template <class Loss, class Row>
using PrefetchedOf = decltype(declared<const Loss&>().prefetch(declared<const Row&>()));
template <class Loss, class Row>
using ContextOf = decltype(declared<const Loss&>().prologue(declared<const Row&>(),
                                                            declared<PrefetchedOf<Loss, Row>>()));

// The context of a row, which is ignored where there is none.
template <class Loss, class Row>
DEVICE auto prologue_of(const Loss& loss, const Row& row, bool present,
                        const PrefetchedOf<Loss, Row>& prefetched) {
  ContextOf<Loss, Row> context;
  context.status = IGNORED;
  if (present) context = loss.prologue(row, prefetched);
  return context;
}

// The value of a row, its term of the denominator, and what its gradients need. OF_ALL: the loss is
// computed of rows that are not active, too, and left out: a branch would take longer.
template <class T, class Finished>
struct Outcome {
  T value, denominator;
  Finished done;
};
template <bool GRADIENTS, bool OF_ALL = false, class Loss, class Row, class T>
DEVICE auto outcome_of(const Loss& loss, const Row& row, const auto& context, const auto& state,
                       bool valued, T factor, const Reciprocal<T>& reciprocal) {
  using N = typename Row::N;
  Outcome<T, typename Loss::template Finished<N>> outcome{
      without_loss<T>(context.status), denominator_without_loss<T>(context), {}};
  if (OF_ALL || context.status == ACTIVE) {
    outcome.done = loss.template epilogue<N>(row, context, state, valued);
    if (context.status == ACTIVE) {
      outcome.value = derivative(outcome.done.value);
      outcome.denominator = outcome.done.denominator;
    }
    if constexpr (GRADIENTS) {
      if constexpr (Row::HAS_GRAD_OUTPUT) factor = row.grad_output();
      scale_gradients(loss, outcome.done, factor, reciprocal);
    }
  }
  return outcome;
}

// Adds the term of the denominator of a row to their sum: without errors, where it is 0 or 1.
template <class Loss, class T>
DEVICE void count(Sum<T>& counted, T denominator) {
  if constexpr (counts_rows<Loss>) {
    counted.high += denominator;
  } else {
    counted += denominator;
  }
}

// Takes the outcome of row `index`: its value is stored or added up.
template <Values VALUES, class Loss, class T, class Result>
DEVICE void take(const auto& outcome, long long index, Result* value, Sum<T>& sum,
                 Sum<T>& counted) {
  if constexpr (VALUES == EACH_VALUE) value[index] = convert<Result>(outcome.value);
  if constexpr (VALUES >= SUM_OF_VALUES) sum += outcome.value;
  if constexpr (VALUES == MEAN_OF_VALUES) count<Loss>(counted, outcome.denominator);
}

// The reduction of a pass over rows, any of which may be ignored. Kernels make their reciprocals
// and this themselves: made by one function, some gradients spilled. A mean whose denominator
// depends on that counts them, unless it sums weights or a mask.
template <class T, Values VALUES, int THREADS, unsigned TANGENTS, class Loss, class Result,
          class Scaling>
DEVICE auto reduction_of_rows(const auto& given, const Results<T, Result>& results, double divisor,
                              const Scaling& scaling) {
  constexpr bool COUNTS = VALUES == MEAN_OF_VALUES && counts_rows<Loss>;
  if constexpr (COUNTS) given.store_divisor(divisor);
  double* const output = given.template denominator_output<COUNTS>();
  return Reduction<T, VALUES, THREADS, (TANGENTS != 0), Result, Scaling>{results, divisor, scaling,
                                                                         output};
}
