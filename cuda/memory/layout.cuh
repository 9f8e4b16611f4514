// Where the elements of strided and broadcast operands lie.
#pragma once
#include "numbers/tuple.cuh"
#include "memory/vector.cuh"

// A walk over DIMS collapsed dimensions, the last one fastest, that OPERANDS arrays share. Strides
// are in elements: 0 where an operand is broadcast, negative where it runs backwards. Bit k of
// VECTORS: operand k is contiguous along the last dimension and aligned, so that a pack of it is
// one access. Packs never cross the end of a row: one location serves a whole pack. Index is
// `unsigned` where it can count the elements: 32-bit divisions are much cheaper. Offset likewise,
// where no stride is negative.
template <int DIMS_, int OPERANDS_, unsigned VECTORS, class Index, class Offset = long long>
struct Layout {
  static constexpr int DIMS = DIMS_, OPERANDS = OPERANDS_;
  long long size[DIMS];
  long long stride[OPERANDS][DIMS];

  struct Location {
    Offset offset[OPERANDS];
  };

  __device__ __forceinline__ Location locate(long long element) const {
    Location at{};
    Index rest = Index(element);
#pragma unroll
    for (int d = DIMS - 1; d > 0; --d) {
      const Index above = rest / Index(size[d]);
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

  // Operand K of the W elements that begin at a location.
  template <int K, int W, class T>
  __device__ __forceinline__ Pack<T, W> load_pack(const T* operand, const Location& at) const {
    if constexpr (bool(VECTORS >> K & 1u)) {
      return ::load_pack<W>(operand + at.offset[K]);
    } else {
      Pack<T, W> pack;
#pragma unroll
      for (int j = 0; j < W; ++j) pack.at[j] = operand[at.offset[K] + j * step(K, DIMS - 1)];
      return pack;
    }
  }

 private:
  __device__ __forceinline__ Offset step(int operand, int d) const {
    return (d == DIMS - 1 && (VECTORS >> operand & 1u)) ? 1 : Offset(stride[operand][d]);
  }
};
