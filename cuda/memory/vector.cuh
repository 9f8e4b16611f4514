// Device memory: conversion between the types in memory and those of the arithmetic, and accesses
// of 16 bytes.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "numbers/dual.cuh"
#include "numbers/tuple.cuh"

// Conversion between the type in memory and that of the arithmetic. Half precision is computed in
// float.
template <class To>
DEVICE To convert(auto x) {
  return To(x);
}
template <class To>
DEVICE To convert(__half x) {
  return To(__half2float(x));
}
template <class To>
DEVICE To convert(__nv_bfloat16 x) {
  return To(__bfloat162float(x));
}

// W neighbouring elements of one thread. One access moves 16 bytes, or all of a shorter vector.
// Loads are plain: with streaming ones (ld.cs) a loss with its gradient took 5% longer.
template <class T, int W>
struct alignas(W * sizeof(T) < 16 ? W * sizeof(T) : 16) Vector {
  T at[W];
};

// The widest word, up to 16 bytes, that a vector of BYTES is made of.
template <int BYTES>
using Word =
    Select<(BYTES >= 16), uint4,
           Select<BYTES == 8, uint2,
                  Select<BYTES == 4, unsigned, Select<BYTES == 2, unsigned short, unsigned char>>>>;

// The bits of a value as a value of another type.
template <class To, class From>
DEVICE To bits_as(const From& from) {
  union {
    From from;
    To to;
  } bits{from};
  return bits.to;
}

// A vector as one word, which stays in one register where the compiler would keep its elements
// apart.
template <class Stored>
using Packed = Word<sizeof(Stored)>;
template <class Stored>
DEVICE Packed<Stored> packed(const Stored& vector) {
  return bits_as<Packed<Stored>>(vector);
}

template <int W, class T>
DEVICE Vector<T, W> load_words(const T* from, auto load) {
  using Unit = Word<sizeof(Vector<T, W>)>;
  constexpr int UNITS = sizeof(Vector<T, W>) / sizeof(Unit);
  union {
    Unit unit[UNITS];
    Vector<T, W> vector;
  } bits{};
#pragma unroll
  for (int i = 0; i < UNITS; ++i) bits.unit[i] = load(reinterpret_cast<const Unit*>(from) + i);
  return bits.vector;
}
template <int W, class T>
DEVICE Vector<T, W> load_vector(const T* from) {
  return load_words<W>(from, [](const auto* at) { return *at; });
}
// The same of what nobody writes meanwhile: it need not be loaded anew behind a store.
template <int W, class T>
DEVICE Vector<T, W> load_constants(const T* from) {
  return load_words<W>(from, [](const auto* at) { return __ldg(at); });
}

// W elements of which each is `step` elements behind the one before.
template <int W, class T>
DEVICE Vector<T, W> load_apart(const T* from, auto step) {
  Vector<T, W> vector;
#pragma unroll
  for (int j = 0; j < W; ++j) vector.at[j] = from[j * step];
  return vector;
}

// f(access, word) for each access that a vector takes at an address.
template <int W, class T>
DEVICE void each_word(T* at, const Vector<T, W>& vector, auto f) {
  using Unit = Word<sizeof(Vector<T, W>)>;
  constexpr int UNITS = sizeof(Vector<T, W>) / sizeof(Unit);
  union {
    Vector<T, W> vector;
    Unit unit[UNITS];
  } bits{vector};
#pragma unroll
  for (int i = 0; i < UNITS; ++i) f(reinterpret_cast<Unit*>(at) + i, bits.unit[i]);
}
template <int W, class T>
DEVICE void store_vector(T* to, const Vector<T, W>& vector) {
  each_word(to, vector, [](auto* at, auto word) { __stcs(at, word); });
}
// The same in shared memory.
template <int W, class T>
DEVICE void store_vector_in_block(T* to, const Vector<T, W>& vector) {
  each_word(to, vector, [](auto* at, auto word) { *at = word; });
}

template <class E, int W>
DEVICE Vector<E, W> vector_of(const E (&elements)[W]) {
  Vector<E, W> vector;
#pragma unroll
  for (int j = 0; j < W; ++j) vector.at[j] = elements[j];
  return vector;
}
// Two elements of half precision are packed at once, which saves an instruction.
template <class E>
  requires(sizeof(E) == 2)
DEVICE Vector<E, 2> vector_of(const E (&elements)[2]) {
  const auto half = [&](int j) { return bits_as<unsigned short>(elements[j]); };
  return bits_as<Vector<E, 2>>(__byte_perm(half(0), half(1), 0x5410));
}

// A value as the words that threads and blocks exchange.
template <class Value>
union WordsOf {
  static constexpr int COUNT = (sizeof(Value) + 3) / 4;
  Value value;
  unsigned word[COUNT];
};

template <class E>
constexpr bool is_half = false;
template <>
constexpr bool is_half<__half> = true;
template <>
constexpr bool is_half<__nv_bfloat16> = true;

// Two numbers in one register.
DEVICE __half2 pair(__half a, __half b) { return __halves2half2(a, b); }
DEVICE __nv_bfloat162 pair(__nv_bfloat16 a, __nv_bfloat16 b) { return __halves2bfloat162(a, b); }

// A vector in the arithmetic type. Half precision is unpacked two elements at a time, which takes
// one instruction an element instead of two.
template <class T, class E, int W>
DEVICE Vector<T, W> widen(const Vector<E, W>& vector) {
  Vector<T, W> wide;
#pragma unroll
  for (int j = 0; j < W; ++j) wide.at[j] = convert<T>(vector.at[j]);
  return wide;
}
template <class T, int W>
  requires(W % 2 == 0)
DEVICE Vector<T, W> widen(const Vector<__nv_bfloat16, W>& vector) {
  union {
    Vector<__nv_bfloat16, W> vector;
    unsigned pair[W / 2];
  } bits{vector};
  Vector<T, W> wide;
#pragma unroll
  for (int j = 0; j < W; j += 2) {
    wide.at[j] = T(__uint_as_float(bits.pair[j / 2] << 16));
    wide.at[j + 1] = T(__uint_as_float(bits.pair[j / 2] & 0xffff0000u));
  }
  return wide;
}
template <class T, int W>
  requires(W % 2 == 0)
DEVICE Vector<T, W> widen(const Vector<__half, W>& vector) {
  Vector<T, W> wide;
#pragma unroll
  for (int j = 0; j < W; j += 2) {
    const float2 pair = __half22float2(__halves2half2(vector.at[j], vector.at[j + 1]));
    wide.at[j] = T(pair.x);
    wide.at[j + 1] = T(pair.y);
  }
  return wide;
}
