// A tuple for kernel code: NVRTC has no <tuple>, and cuda/std costs 140 ms of compile time.
#pragma once
#include "numbers/device.cuh"

template <int... I>
struct Indices {};

template <int N, int... I>
struct MakeIndices : MakeIndices<N - 1, N - 1, I...> {};

template <int... I>
struct MakeIndices<0, I...> {
  using type = Indices<I...>;
};

// 0, 1, ..., N - 1 as a type, for fold expressions.
template <int N>
using Range = typename MakeIndices<N>::type;

// A number as an argument that is known when the kernel is compiled.
template <int V>
struct Constant {
  static constexpr int value = V;
};

// An empty value.
struct Nothing {};

template <int I, class T>
struct Slot {
  T value;
};

template <class I, class... T>
struct Slots;

template <int... I, class... T>
struct Slots<Indices<I...>, T...> : Slot<I, T>... {};

template <class... T>
using Tuple = Slots<Range<sizeof...(T)>, T...>;

template <int I, class T>
DEVICE T& get(Slot<I, T>& slot) {
  return slot.value;
}

template <int I, class T>
DEVICE const T& get(const Slot<I, T>& slot) {
  return slot.value;
}

template <int I, class T>
__device__ T type_at(const Slot<I, T>&);

// A value of a type, for decltype.
template <class T>
__device__ T declared();

// The type of element I of a tuple type.
template <int I, class Types>
using At = decltype(type_at<I>(Types()));

// What pointer I of a tuple of them points to.
template <class E>
__device__ E pointee(const E*);
template <int I, class Pointers>
using Pointee = decltype(pointee(At<I, Pointers>()));

// f(Constant<I>()) for each bit I that is set.
template <unsigned BITS, int I = 0>
DEVICE void each_bit(auto f) {
  if constexpr (I < 32 && BITS >> I != 0) {
    if constexpr (bool(BITS >> I & 1u)) f(Constant<I>());
    each_bit<BITS, I + 1>(f);
  }
}

// T, once for each I.
template <class T, int I>
using Repeat = T;

// How many of the bits ahead of bit `end` are set. Where each set bit stands for an array, that is
// the place of the array of bit `end` among them.
__device__ constexpr int ones_below(unsigned bits, int end) {
  int count = 0;
  for (int i = 0; i < end; ++i) count += bits >> i & 1u;
  return count;
}
