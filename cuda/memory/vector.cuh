// Device memory: conversion between storage and arithmetic types, and accesses of 16 bytes.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "numbers/dual.cuh"

// ---- conversion: half precision is read and written as such and computed in float ----

template <class To, class From>
struct Convert {
  static __device__ __forceinline__ To from(From x) { return To(x); }
};
template <class To>
struct Convert<To, __half> {
  static __device__ __forceinline__ To from(__half x) { return To(__half2float(x)); }
};
template <class To>
struct Convert<To, __nv_bfloat16> {
  static __device__ __forceinline__ To from(__nv_bfloat16 x) { return To(__bfloat162float(x)); }
};
template <>
struct Convert<__half, float> {
  static __device__ __forceinline__ __half from(float x) { return __float2half_rn(x); }
};
template <>
struct Convert<__half, double> {
  static __device__ __forceinline__ __half from(double x) { return __double2half(x); }
};
template <>
struct Convert<__nv_bfloat16, float> {
  static __device__ __forceinline__ __nv_bfloat16 from(float x) { return __float2bfloat16_rn(x); }
};
template <>
struct Convert<__nv_bfloat16, double> {
  static __device__ __forceinline__ __nv_bfloat16 from(double x) { return __double2bfloat16(x); }
};

template <class To, class From>
__device__ __forceinline__ To convert(From x) {
  return Convert<To, From>::from(x);
}

// ---- packs: W neighbouring elements of one thread, moved 16 bytes at a time where they are that
// ---- long. Plain loads: with streaming ones (ld.cs) a loss with its gradient took 5% longer.

template <class T, int W>
struct alignas(W * sizeof(T) < 16 ? W * sizeof(T) : 16) Pack {
  T at[W];
};

template <int BYTES>
struct Word {
  using type = uint4;
};
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<4> {
  using type = unsigned;
};
template <>
struct Word<2> {
  using type = unsigned short;
};
template <>
struct Word<1> {
  using type = unsigned char;
};

template <int W, class T>
__device__ __forceinline__ Pack<T, W> load_pack(const T* from) {
  using Unit = typename Word<sizeof(Pack<T, W>)>::type;
  constexpr int UNITS = sizeof(Pack<T, W>) / sizeof(Unit);
  union {
    Unit unit[UNITS];
    Pack<T, W> pack;
  } bits{};
#pragma unroll
  for (int i = 0; i < UNITS; ++i) bits.unit[i] = reinterpret_cast<const Unit*>(from)[i];
  return bits.pack;
}

template <int W, class T>
__device__ __forceinline__ void store_pack(T* to, const Pack<T, W>& pack) {
  using Unit = typename Word<sizeof(Pack<T, W>)>::type;
  constexpr int UNITS = sizeof(Pack<T, W>) / sizeof(Unit);
  union {
    Pack<T, W> pack;
    Unit unit[UNITS];
  } bits{pack};
#pragma unroll
  for (int i = 0; i < UNITS; ++i) __stcs(reinterpret_cast<Unit*>(to) + i, bits.unit[i]);
}

// Two numbers in one register.
__device__ __forceinline__ __half2 pair(__half a, __half b) { return __halves2half2(a, b); }
__device__ __forceinline__ __nv_bfloat162 pair(__nv_bfloat16 a, __nv_bfloat16 b) {
  return __halves2bfloat162(a, b);
}

// A pack in the arithmetic type. Half precision is unpacked two elements at a time: one instruction
// an element instead of two.
template <class T, class E, int W>
__device__ __forceinline__ Pack<T, W> widen(const Pack<E, W>& pack) {
  Pack<T, W> wide;
#pragma unroll
  for (int j = 0; j < W; ++j) wide.at[j] = convert<T>(pack.at[j]);
  return wide;
}
template <class T, int W, If<(W % 2 == 0)> = 0>
__device__ __forceinline__ Pack<T, W> widen(const Pack<__nv_bfloat16, W>& pack) {
  union {
    Pack<__nv_bfloat16, W> pack;
    unsigned pair[W / 2];
  } bits{pack};
  Pack<T, W> wide;
#pragma unroll
  for (int j = 0; j < W; j += 2) {
    wide.at[j] = T(__uint_as_float(bits.pair[j / 2] << 16));
    wide.at[j + 1] = T(__uint_as_float(bits.pair[j / 2] & 0xffff0000u));
  }
  return wide;
}
template <class T, int W, If<(W % 2 == 0)> = 0>
__device__ __forceinline__ Pack<T, W> widen(const Pack<__half, W>& pack) {
  Pack<T, W> wide;
#pragma unroll
  for (int j = 0; j < W; j += 2) {
    const float2 pair = __half22float2(__halves2half2(pack.at[j], pack.at[j + 1]));
    wide.at[j] = T(pair.x);
    wide.at[j + 1] = T(pair.y);
  }
  return wide;
}
