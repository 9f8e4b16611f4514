// Where the elements of strided and broadcast operands lie.
#pragma once
#include "memory/vector.cuh"
#include "numbers/tuple.cuh"

// The division of numbers below 2^31 by one that is at least 2 (Granlund and Montgomery, 1994).
struct FastDivision {
  unsigned multiplier, shift;
  DEVICE unsigned quotient(unsigned x) const { return __umulhi(x, multiplier) >> shift; }
};

// The iteration space of OPERANDS arrays: DIMS coalesced dimensions, the last one fastest. Strides
// are in elements. They are 0 where an operand is broadcast, and negative where it runs backwards.
// Bit k of VECTORISED: the elements of a vector of operand k are contiguous and aligned, so that
// one access moves it. Bit k of REPEATED: they are the same. Bit k of CROSSING: they lie where the
// dimensions say, and what VECTORISED and REPEATED say is of each GRANULE of them. Vectors of other
// operands never cross the end of the last dimension, or the operand is dense, so that one location
// serves all of a vector. Granules never cross it. Index is `unsigned` where there are less than
// 2^31 elements: a division by a size is then a product with its reciprocal, which the host has
// computed. Offset is a shorter type where all offsets fit, `unsigned` only if none runs backwards.
template <int DIMS_, int OPERANDS_, unsigned VECTORISED, class Index, class Offset = long long,
          unsigned CROSSING = 0, unsigned REPEATED = 0, int GRANULE = 1>
struct Layout {
  static constexpr int DIMS = DIMS_, OPERANDS = OPERANDS_;
  long long size[DIMS];
  FastDivision reciprocal[DIMS];
  long long stride[OPERANDS][DIMS];

  struct AmongRows {
    Index left[DIMS];  // up to the end of each dimension but the first one
  };
  struct Location : Select<CROSSING == 0, Nothing, AmongRows> {
    Offset offset[OPERANDS];
  };

  DEVICE Location locate(long long element) const {
    Location at{};
    Index rest = Index(element);
#pragma unroll
    for (int d = DIMS - 1; d > 0; --d) {
      const Index above = quotient(rest, d);
      const Index coordinate = rest - above * Index(size[d]);
#pragma unroll
      for (int k = 0; k < OPERANDS; ++k) at.offset[k] += Offset(coordinate) * step(k, d);
      if constexpr (CROSSING != 0) at.left[d] = Index(size[d]) - coordinate;
      rest = above;
    }
    const Offset coordinate = DIMS == 1 ? Offset(element) : Offset(rest);
#pragma unroll
    for (int k = 0; k < OPERANDS; ++k) at.offset[k] += coordinate * step(k, 0);
    return at;
  }

  // The location `by` elements behind one along dimension D.
  template <int D>
  DEVICE Location moved(Location at, long long by) const {
    move(at, D, Offset(by));
    return at;
  }

  // The location of the granule behind one, which does not end with the last dimension unless
  // vectors of some operand cross that.
  DEVICE Location next(Location at) const {
    move(at, DIMS - 1, GRANULE);
    if constexpr (CROSSING != 0) {
      bool ends = true;
#pragma unroll
      for (int d = DIMS - 1; d > 0; --d) {
        ends = ends && (at.left[d] -= d == DIMS - 1 ? GRANULE : 1) == 0;
        if (!ends) continue;
        at.left[d] = Index(size[d]);
        move(at, d, -Offset(size[d]));
        move(at, d - 1, 1);
      }
    }
    return at;
  }

  // Operand K of the W elements that begin at a location.
  template <int K, int W, class T>
  DEVICE Vector<T, W> load_vector(const T* operand, const Location& at) const {
    if constexpr (bool(CROSSING >> K & 1u) && W > GRANULE) {
      Vector<T, W> vector;
      Location here = at;
#pragma unroll
      for (int first = 0; first < W; first += GRANULE) {
        if (first > 0) here = next(here);
        const auto granule = load_neighbours<K, GRANULE>(operand, here);
#pragma unroll
        for (int j = 0; j < GRANULE; ++j) vector.at[first + j] = granule.at[j];
      }
      return vector;
    } else {
      return load_neighbours<K, W>(operand, at);
    }
  }

 private:
  // The same of elements that lie where the last dimension says.
  template <int K, int W, class T>
  DEVICE Vector<T, W> load_neighbours(const T* operand, const Location& at) const {
    if constexpr (bool(VECTORISED >> K & 1u)) {
      return ::load_vector<W>(operand + at.offset[K]);
    } else if constexpr (bool(REPEATED >> K & 1u)) {
      return load_apart<W>(operand + at.offset[K], 0);
    } else {
      Vector<T, W> vector;  // not by load_apart: an offset is computed as narrow as it is
#pragma unroll
      for (int j = 0; j < W; ++j) vector.at[j] = operand[at.offset[K] + j * step(K, DIMS - 1)];
      return vector;
    }
  }
  DEVICE void move(Location& at, int d, Offset by) const {
#pragma unroll
    for (int k = 0; k < OPERANDS; ++k) at.offset[k] += by * step(k, d);
  }
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
