// Where the elements of strided and broadcast operands lie.
#pragma once
#include "memory/vector.cuh"
#include "numbers/tuple.cuh"

// The division of numbers below 2^31 by one that is at least 2 (Granlund and Montgomery, 1994).
struct Reciprocal32 {
  unsigned multiplier, shift;
  DEVICE unsigned quotient(unsigned x) const { return __umulhi(x, multiplier) >> shift; }
};

// The iteration space of OPERANDS arrays: DIMS coalesced dimensions, the last one fastest. Strides
// are in elements. They are 0 where an operand is broadcast, and negative where it runs backwards.
// Bit k of VECTORISED: operand k is contiguous along the last dimension and aligned, so that one
// access moves a vector of it. A vector never crosses the end of the last dimension, so that one
// location serves all of it. Index is `unsigned` where there are less than 2^31 elements: a
// division by a size is then a product with its reciprocal, which the host has computed. Offset is
// `unsigned` in layouts of rows whose offsets all fit and never run backwards.
template <int DIMS_, int OPERANDS_, unsigned VECTORISED, class Index, class Offset = long long>
struct Layout {
  static constexpr int DIMS = DIMS_, OPERANDS = OPERANDS_;
  long long size[DIMS];
  Reciprocal32 reciprocal[DIMS];
  long long stride[OPERANDS][DIMS];

  struct Location {
    Offset offset[OPERANDS];
  };

  DEVICE Location locate(long long element) const {
    Location at{};
    Index rest = Index(element);
#pragma unroll
    for (int d = DIMS - 1; d > 0; --d) {
      const Index above = quotient(rest, d);
      const Offset coordinate = Offset(rest - above * Index(size[d]));
#pragma unroll
      for (int k = 0; k < OPERANDS; ++k) at.offset[k] += coordinate * step(k, d);
      rest = above;
    }
    const Offset coordinate = DIMS == 1 ? Offset(element) : Offset(rest);
#pragma unroll
    for (int k = 0; k < OPERANDS; ++k) at.offset[k] += coordinate * step(k, 0);
    return at;
  }

  // The location of the element behind one along the last dimension.
  DEVICE Location next(Location at) const {
#pragma unroll
    for (int k = 0; k < OPERANDS; ++k) at.offset[k] += step(k, DIMS - 1);
    return at;
  }

  // Operand K of the W elements that begin at a location.
  template <int K, int W, class T>
  DEVICE Vector<T, W> load_vector(const T* operand, const Location& at) const {
    if constexpr (bool(VECTORISED >> K & 1u)) {
      return ::load_vector<W>(operand + at.offset[K]);
    } else {
      Vector<T, W> vector;
#pragma unroll
      for (int j = 0; j < W; ++j) vector.at[j] = operand[at.offset[K] + j * step(K, DIMS - 1)];
      return vector;
    }
  }

 private:
  DEVICE Index quotient(Index rest, int d) const {
    if constexpr (sizeof(Index) == 4) {
      return reciprocal[d].quotient(rest);
    } else {
      return rest / Index(size[d]);
    }
  }
  DEVICE Offset step(int operand, int d) const {
    return (d == DIMS - 1 && (VECTORISED >> operand & 1u)) ? 1 : Offset(stride[operand][d]);
  }
};
