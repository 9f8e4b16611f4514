// CUDA C++ for g++: qualifiers, intrinsics and atomics, over NVIDIA's own vector, half and bfloat16
// headers. compiler.py includes it ahead of the kernel source.
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <type_traits>
#include <utility>

#include "hooks.h"

#define __HOST_DEFINES_H__
#define __device__
#define __host__
#define __global__
#define __constant__ static
// Static inside a function, and one image of it can be swapped for another: one a block.
#define __shared__ thread_local
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __device_builtin__
#define __cudart_builtin__
#define CUDARTAPI
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_types.h>
#define __noinline__ __attribute__((noinline))

// Code of the emulator itself, which the checkers must not see.
#ifdef EMU_CHECK
#define EMU_UNSEEN __attribute__((no_sanitize("thread", "undefined"), noinline))
#else
#define EMU_UNSEEN
#endif

namespace emu {
EMU_UNSEEN inline uint3 thread_index() { return {ids->thread.x, ids->thread.y, ids->thread.z}; }
EMU_UNSEEN inline uint3 block_index() { return {ids->block.x, ids->block.y, ids->block.z}; }
EMU_UNSEEN inline dim3 block_size() {
  return {ids->block_size.x, ids->block_size.y, ids->block_size.z};
}
EMU_UNSEEN inline dim3 grid_size() {
  return {ids->grid_size.x, ids->grid_size.y, ids->grid_size.z};
}
}  // namespace emu

#define threadIdx (emu::thread_index())
#define blockIdx (emu::block_index())
#define blockDim (emu::block_size())
#define gridDim (emu::grid_size())
#define warpSize 32

#define EMU_BARRIER(kind, predicate) \
  emu::block_barrier(emu::kind, bool(predicate), __FILE__, __LINE__)
#define __syncthreads() ((void)EMU_BARRIER(SYNC, false))
#define __syncthreads_count(predicate) EMU_BARRIER(COUNT, predicate)
#define __syncthreads_and(predicate) EMU_BARRIER(AND, predicate)
#define __syncthreads_or(predicate) EMU_BARRIER(OR, predicate)

__forceinline__ void __threadfence_block() { emu::fence(emu::BLOCK); }
__forceinline__ void __threadfence() { emu::fence(emu::DEVICE); }
__forceinline__ void __threadfence_system() { emu::fence(emu::DEVICE); }

namespace emu {
template <class To, class From>
__forceinline__ To bits_as(From from) {
  To to{};
  memcpy(&to, &from, sizeof(to) < sizeof(from) ? sizeof(to) : sizeof(from));
  return to;
}
template <class T>
__forceinline__ T shuffle(Op op, unsigned mask, T value, int argument, int width) {
  static_assert(sizeof(T) <= 8 && std::is_trivially_copyable<T>::value, "no such shuffle");
  return bits_as<T>(collective({op, mask, bits_as<uint64_t>(value), argument, width}));
}
__forceinline__ unsigned warp(Op op, unsigned mask, uint64_t value, int argument = 0) {
  return unsigned(collective({op, mask, value, argument, 32}));
}
}  // namespace emu

__forceinline__ void __syncwarp(unsigned mask = 0xffffffffu) { emu::warp(emu::SYNC_WARP, mask, 0); }
template <class T>
__forceinline__ T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  return emu::shuffle(emu::SHUFFLE, mask, value, lane, width);
}
template <class T>
__forceinline__ T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32) {
  return emu::shuffle(emu::SHUFFLE_UP, mask, value, int(distance), width);
}
template <class T>
__forceinline__ T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32) {
  return emu::shuffle(emu::SHUFFLE_DOWN, mask, value, int(distance), width);
}
template <class T>
__forceinline__ T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  return emu::shuffle(emu::SHUFFLE_XOR, mask, value, lanes, width);
}
__forceinline__ unsigned __ballot_sync(unsigned mask, int predicate) {
  return emu::warp(emu::BALLOT, mask, predicate != 0);
}
__forceinline__ int __all_sync(unsigned mask, int predicate) {
  return int(emu::warp(emu::ALL, mask, predicate != 0));
}
__forceinline__ int __any_sync(unsigned mask, int predicate) {
  return int(emu::warp(emu::ANY, mask, predicate != 0));
}
template <class T>
__forceinline__ unsigned __match_any_sync(unsigned mask, T value) {
  return emu::warp(emu::MATCH_ANY, mask, emu::bits_as<uint64_t>(value));
}

#define EMU_WARP_REDUCE(name, op)                                      \
  __forceinline__ unsigned name(unsigned mask, unsigned value) {       \
    return emu::warp(emu::op, mask, value);                            \
  }                                                                    \
  __forceinline__ int name(unsigned mask, int value) {                 \
    return int(emu::warp(emu::op, mask, uint64_t(int64_t(value)), 1)); \
  }
EMU_WARP_REDUCE(__reduce_add_sync, REDUCE_ADD)
EMU_WARP_REDUCE(__reduce_min_sync, REDUCE_MIN)
EMU_WARP_REDUCE(__reduce_max_sync, REDUCE_MAX)
EMU_WARP_REDUCE(__reduce_and_sync, REDUCE_AND)
EMU_WARP_REDUCE(__reduce_or_sync, REDUCE_OR)
EMU_WARP_REDUCE(__reduce_xor_sync, REDUCE_XOR)

namespace emu {
template <class T, class F>
EMU_UNSEEN T update(T* address, F next) {
  const T old = *address;
  *address = next(old);
  return old;
}
template <class T, class F>
__forceinline__ T read_modify_write(T* address, F next) {
  before_atomic(address, sizeof(T));
  return update(address, next);
}
template <class T>
using Same = std::common_type_t<T>;  // keeps a parameter out of the deduction of T
}  // namespace emu

#define EMU_ATOMIC(name, expression)                                                       \
  template <class T>                                                                       \
  __forceinline__ T name(T* address, emu::Same<T> value) {                                 \
    return emu::read_modify_write(address, [value](T old) -> T { return T(expression); }); \
  }
EMU_ATOMIC(atomicAdd, old + value)
EMU_ATOMIC(atomicSub, old - value)
EMU_ATOMIC(atomicExch, (void(old), value))
EMU_ATOMIC(atomicMin, value < old ? value : old)
EMU_ATOMIC(atomicMax, old < value ? value : old)
EMU_ATOMIC(atomicAnd, old& value)
EMU_ATOMIC(atomicOr, old | value)
EMU_ATOMIC(atomicXor, old ^ value)
EMU_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
EMU_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)
template <class T>
__forceinline__ T atomicCAS(T* address, emu::Same<T> expected, emu::Same<T> value) {
  return emu::read_modify_write(address, [=](T old) -> T { return old == expected ? value : old; });
}

// Loads and stores with a cache hint: of device memory, as CUDA compiles them.
#define EMU_LOAD(name)                       \
  template <class T>                         \
  __forceinline__ T name(const T* address) { \
    emu::expect_device_memory(address);      \
    return *address;                         \
  }
EMU_LOAD(__ldg)
EMU_LOAD(__ldca)
EMU_LOAD(__ldcg)
EMU_LOAD(__ldcs)
EMU_LOAD(__ldlu)
EMU_LOAD(__ldcv)
#define EMU_STORE(name)                                       \
  template <class T>                                          \
  __forceinline__ void name(T* address, emu::Same<T> value) { \
    emu::expect_device_memory(address);                       \
    *address = value;                                         \
  }
EMU_STORE(__stcg)
EMU_STORE(__stcs)
EMU_STORE(__stwb)
EMU_STORE(__stwt)

#define EMU_BITS(name, To, From) \
  inline To name(From value) { return emu::bits_as<To>(value); }
EMU_BITS(__int_as_float, float, int)
EMU_BITS(__uint_as_float, float, unsigned)
EMU_BITS(__float_as_int, int, float)
EMU_BITS(__float_as_uint, unsigned, float)
EMU_BITS(__longlong_as_double, double, long long)
EMU_BITS(__double_as_longlong, long long, double)

// Bytes of the 8 of x and y, each chosen by four bits.
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned chosen) {
  const unsigned long long bytes = (unsigned long long)(y) << 32 | x;
  unsigned result = 0;
  for (int k = 0; k < 4; ++k) {
    result |= unsigned(bytes >> (chosen >> 4 * k & 7u) * 8 & 0xffu) << 8 * k;
  }
  return result;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(unsigned(x)); }
inline int __clzll(long long x) { return x == 0 ? 64 : __builtin_clzll((unsigned long long)(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __umulhi(unsigned a, unsigned b) {
  return unsigned((unsigned long long)(a)*b >> 32);
}
inline int __mulhi(int a, int b) { return int((long long)(a)*b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return (unsigned long long)((unsigned __int128)(a)*b >> 64);
}

// Rounded as written: the empty instructions keep g++ from contracting what comes before or after
// into a fused multiply-add.
#define EMU_ROUNDED(name, T, op)     \
  __forceinline__ T name(T a, T b) { \
    asm("" : "+x"(a), "+x"(b));      \
    T result = a op b;               \
    asm("" : "+x"(result));          \
    return result;                   \
  }
EMU_ROUNDED(__fadd_rn, float, +)
EMU_ROUNDED(__fsub_rn, float, -)
EMU_ROUNDED(__fmul_rn, float, *)
EMU_ROUNDED(__fdiv_rn, float, /)
EMU_ROUNDED(__dadd_rn, double, +)
EMU_ROUNDED(__dsub_rn, double, -)
EMU_ROUNDED(__dmul_rn, double, *)
EMU_ROUNDED(__ddiv_rn, double, /)
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline double __dsqrt_rn(double x) { return sqrt(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline double __drcp_rn(double x) { return 1.0 / x; }
inline float __frsqrt_rn(float x) { return float(1.0 / sqrt(double(x))); }

// The fast ones are as exact as the others here.
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return exp10f(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }  // NaN becomes 0

// What libm lacks.
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }
inline double rcbrt(double x) { return 1.0 / cbrt(x); }
inline double normcdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }
inline float normcdff(float x) { return float(normcdf(double(x))); }
inline double sinpi(double x) { return sin(3.14159265358979323846 * fmod(x, 2.0)); }
inline float sinpif(float x) { return float(sinpi(double(x))); }
inline double cospi(double x) { return cos(3.14159265358979323846 * fmod(x, 2.0)); }
inline float cospif(float x) { return float(cospi(double(x))); }

#define EMU_MIN_MAX(T, smaller, larger)      \
  inline T min(T a, T b) { return smaller; } \
  inline T max(T a, T b) { return larger; }
EMU_MIN_MAX(int, b < a ? b : a, a < b ? b : a)
EMU_MIN_MAX(unsigned, b < a ? b : a, a < b ? b : a)
EMU_MIN_MAX(long, b < a ? b : a, a < b ? b : a)
EMU_MIN_MAX(unsigned long, b < a ? b : a, a < b ? b : a)
EMU_MIN_MAX(long long, b < a ? b : a, a < b ? b : a)
EMU_MIN_MAX(unsigned long long, b < a ? b : a, a < b ? b : a)
EMU_MIN_MAX(float, fminf(a, b), fmaxf(a, b))
EMU_MIN_MAX(double, fmin(a, b), fmax(a, b))

#include "instructions.h"

[[noreturn]] inline void __trap() { emu::trap(); }

namespace emu {
// A parameter of a kernel: 'p' pointer, 'c' pointer to const, 'f' 'i' 'u' 'b' numbers, 's' struct.
// `alignment` is that of what a pointer points to.
struct Parameter {
  char kind;
  int size, alignment;
};
template <class T>
constexpr char kind_of() {
  using Target = std::remove_pointer_t<T>;
  if (std::is_pointer<T>::value) return std::is_const<Target>::value ? 'c' : 'p';
  if (std::is_floating_point<T>::value) return 'f';
  if (std::is_same<T, bool>::value) return 'b';
  if (!std::is_integral<T>::value) return 's';
  return std::is_unsigned<T>::value ? 'u' : 'i';
}
template <class T>
constexpr Parameter parameter() {
  using Target = std::remove_pointer_t<T>;
  if constexpr (std::is_void<Target>::value) {
    return {kind_of<T>(), int(sizeof(T)), 1};
  } else {
    return {kind_of<T>(), int(sizeof(T)), int(alignof(Target))};
  }
}
template <class... A>
int describe(void (*)(A...), Parameter* out) {
  const Parameter all[] = {parameter<A>()..., {}};
  for (size_t i = 0; out != nullptr && i < sizeof...(A); ++i) out[i] = all[i];
  return int(sizeof...(A));
}
template <class... A, size_t... I>
EMU_UNSEEN void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
  kernel(*static_cast<A*>(arguments[I])...);
}
template <class... A>
EMU_UNSEEN void call(void (*kernel)(A...), void** arguments) {
  call(kernel, arguments, std::index_sequence_for<A...>());
}
}  // namespace emu

#define EMU_API extern "C" __attribute__((visibility("default")))

// A kernel, under the names `symbol` and `symbol`_parameters.
#define EMU_EXPORT(symbol, ...)                                                           \
  EMU_API EMU_UNSEEN void symbol(void** arguments) { emu::call(__VA_ARGS__, arguments); } \
  EMU_API int symbol##_parameters(emu::Parameter* out) { return emu::describe(__VA_ARGS__, out); }

// Once in a library, at its end. The image of shared memory exists once something has touched it.
#define EMU_LIBRARY                                    \
  alignas(16) static thread_local char emu_anchor[16]; \
  EMU_API EMU_UNSEEN void emu_touch_shared() { *const_cast<volatile char*>(emu_anchor) = 0; }

// The storage of `extern __shared__ unsigned char name[]`.
#define EMU_DYNAMIC_SHARED(name, bytes)               \
  alignas(16) thread_local unsigned char name[bytes]; \
  EMU_API EMU_UNSEEN unsigned char* emu_dynamic_shared() { return name; }

// Kernels leave it to g++ what to inline, which takes less time to compile.
#undef __forceinline__
#define __forceinline__ inline
