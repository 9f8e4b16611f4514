// What a pass multiplies gradients by, before and after grad_output is known.
#pragma once
#include "memory/vector.cuh"

// The numbers of a call whose gradients anticipate grad_output and the denominator: a slot of
// cupy_losses/_device/anticipation.py, which knows their order.
enum Anticipation {
  ANTICIPATED,  // what a forward pass multiplies by
  USED,         // what it multiplied by
  COUNTED,      // the rows that it counted on its way
  DIVIDED_BY,   // the number of rows that another pass counted ahead, or anticipated
};

// A pass without gradients multiplies by 1. The denominator of a mean that it adds up goes to
// `output` too, unless that is null.
struct NoFactor {
  static constexpr double value = 1.0;
  static constexpr bool is_done = false;
  double* output;

  DEVICE void store_divisor(double) const {}
  template <bool COUNTS>
  DEVICE double* denominator_output() const {
    return output;
  }
};

// What a pass multiplies gradients by: grad_output where that is known, in a forward pass that
// writes gradients the one that is anticipated, else 1.
//
// `anticipation` is null or the numbers of an Anticipation. A pass without grad_output takes
// ANTICIPATED. The backward pass stores grad_output as ANTICIPATED for a later call. If grad_output
// equals USED and COUNTED equals DIVIDED_BY, it does nothing else. A call without a backward pass
// checks the count alone: it gives their address as that of grad_output, which stands for USED. No
// pass reads the numbers that it writes, so that all blocks agree.
struct Factor {
  double value = 1.0;
  bool is_done = false;
  double* counts = nullptr;  // COUNTED and what follows it, where this pass writes them

  // The factor of a pass. One that writes GRADIENTS may have an anticipation. Another one has no
  // factor, and its denominator goes there.
  template <bool GRADIENTS>
  static DEVICE auto of(const auto& results) {
    if constexpr (GRADIENTS) {
      return Factor(results.grad_output, results.anticipation_or_output);
    } else {
      return NoFactor{results.anticipation_or_output};
    }
  }

  // Stores what a pass that counts rows divides its gradients by.
  DEVICE void store_divisor(double divisor) const {
    if (counts == nullptr) return;
    if (blockIdx.x == 0 && threadIdx.x == 0) counts[DIVIDED_BY - COUNTED] = divisor;
  }
  // Where a pass leaves the number of rows, if it COUNTS them, or null.
  template <bool COUNTS>
  DEVICE double* denominator_output() const {
    return COUNTS ? counts : nullptr;
  }
  // Whether the last call had all of `n` rows, so that a pass ahead of this one need not count.
  // That pass has the anticipation, too.
  static DEVICE bool anticipates(const double* anticipation, long long n) {
    return anticipation != nullptr && anticipation[COUNTED] == double(n);
  }

 private:
  DEVICE Factor(const auto* grad_output, double* anticipation) {
    const bool stores = anticipation != nullptr && blockIdx.x == 0 && threadIdx.x == 0;
    if (grad_output != nullptr) {
      // A call without a backward pass gives the anticipation itself as grad_output.
      const bool is_given = static_cast<const void*>(grad_output) != anticipation;
      value = is_given ? convert<double>(*grad_output) : anticipation[USED];
      if (anticipation != nullptr) {
        is_done = same_bits(value, anticipation[USED]) &&
                  same_bits(anticipation[COUNTED], anticipation[DIVIDED_BY]);
      }
      if (stores) anticipation[ANTICIPATED] = value;
    } else if (anticipation != nullptr) {
      value = anticipation[ANTICIPATED];
      counts = anticipation + COUNTED;
      if (stores) anticipation[USED] = value;
    }
  }

  static DEVICE bool same_bits(double a, double b) {
    return __double_as_longlong(a) == __double_as_longlong(b);
  }
};
