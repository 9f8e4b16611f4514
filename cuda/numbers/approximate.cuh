// The arithmetic of losses in half precision: that of float, with functions and quotients as the
// hardware approximates them. Their relative errors are below 2^-17, far below what half precision
// rounds. With those of float such a loss would be up to twice as slow as memory.
#pragma once
#include "numbers/elementary.cuh"

struct Approximate {
  float value;
  Approximate() = default;
  template <class X>
  explicit DEVICE Approximate(X x) : value(float(x)) {}
  // Other functions are those of float.
  DEVICE operator float() const { return value; }
};
DEVICE Approximate operator+(Approximate a, Approximate b) {
  return Approximate(a.value + b.value);
}
DEVICE Approximate operator-(Approximate a, Approximate b) {
  return Approximate(a.value - b.value);
}
DEVICE Approximate operator*(Approximate a, Approximate b) {
  return Approximate(a.value * b.value);
}
DEVICE Approximate multiply_add(Approximate a, Approximate b, Approximate c) {
  return Approximate(fmaf(a.value, b.value, c.value));
}
DEVICE Approximate operator-(Approximate a) { return Approximate(-a.value); }
DEVICE Approximate fabs(Approximate x) { return Approximate(fabsf(x.value)); }

// Volatile, as power_of_two() is.
DEVICE float log_to_base_two(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm volatile("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return log2f(x);
#endif
}

// a / b, where b is between 2^-126 and 2^126.
DEVICE Approximate quotient(Approximate a, Approximate b) {
  return Approximate(rough_quotient(a.value, b.value));
}
// Of all numbers, and from 2^-102 to 2^126 rounded well enough that it is not above 1 where a is
// not above b: what remains of the hardware's quotient is divided once more, where that is a
// number.
DEVICE Approximate operator/(Approximate a, Approximate b) {
#ifdef __CUDA_ARCH__
  float quotient, reciprocal;
  asm("div.full.ftz.f32 %0, %1, %2;" : "=f"(quotient) : "f"(a.value), "f"(b.value));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(b.value));
  const float remainder = fmaf(-b.value, quotient, a.value);
  const float rounded = fmaf(remainder, reciprocal, quotient);
  return Approximate(isfinite(remainder) ? rounded : quotient);
#else
  return Approximate(a.value / b.value);
#endif
}

DEVICE Approximate sqrt(Approximate x) {
#ifdef __CUDA_ARCH__
  float y;
  asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x.value));
  return Approximate(y);
#else
  return Approximate(sqrtf(x.value));
#endif
}
// Both are scaled by a power of two, so that no square is too large or too small.
DEVICE Approximate hypot(Approximate a, Approximate b) {
  const float larger = fmaxf(fabsf(a.value), fabsf(b.value));
  const int power = min(__float_as_int(larger) & 0x7f800000, 0x7e800000);  // 2^126 at most
  const float down = __int_as_float(0x7f000000 - power);
  const float x = a.value * down, y = b.value * down;
  const Approximate root = sqrt(Approximate(fmaf(x, x, y * y)));
  // Beside an infinite number, what NaN stands for does not matter.
  return isinf(larger) ? Approximate(larger) : root * Approximate(__int_as_float(power));
}

DEVICE Approximate exp(Approximate x) { return Approximate(__expf(x.value)); }

// log(1 + x), given 1 + x too. The hardware's logarithm has a small absolute error. Near 1 that
// would be large beside the result.
DEVICE Approximate log_of_sum(float x, float one_plus_x) {
  float p = -0.2506938874721527f;
  p = fmaf(p, x, 0.33398211002349854f);
  p = fmaf(p, x, -0.4999995827674866f);
  const float near = fmaf(x * x, p, x), far = LN_2<float> * log_to_base_two(one_plus_x);
  return Approximate(fabsf(x) < 0.0625f ? near : far);
}
DEVICE Approximate log(Approximate x) { return log_of_sum(x.value - 1.0f, x.value); }
DEVICE Approximate log1p(Approximate x) { return log_of_sum(x.value, 1.0f + x.value); }

DEVICE Approximate log1p_of_fraction(Approximate fraction) {
  const float x = fraction.value;
  float p = 0.014588315039873123f;
  p = fmaf(p, x, -0.06785119324922562f);
  p = fmaf(p, x, 0.15102769434452057f);
  p = fmaf(p, x, -0.23611342906951904f);
  p = fmaf(p, x, 0.33140426874160767f);
  p = fmaf(p, x, -0.4999074637889862f);
  return Approximate(fmaf(x * x, p, x));
}

// As in numbers/elementary.cuh.
DEVICE Logarithms<Approximate> logarithms(Approximate probability) {
  const float p = probability.value;
  const bool below = p < 0.5f;
  const float s = below ? p : 1.0f - p;
  float q = -0.9676465392112732f;
  q = fmaf(q, s, 0.6008878946304321f);
  q = fmaf(q, s, -0.499796599149704f);
  q = fmaf(q, s, -0.1943334937095642f);
  q = fmaf(q, s, -0.33793774247169495f);
  q = fmaf(q, s, -0.49987557530403137f);
  const float of_s = LN_2<float> * log_to_base_two(s);
  const Approximate small(of_s < -100.0f ? -100.0f : of_s);
  const Approximate large(fmaf(s * s, q, -s));
  return {below ? small : large, below ? large : small};
}

DEVICE Approximate tanh(Approximate x) {
  const float z = x.value * x.value;
  const float e = __expf(-2.0f * fabsf(x.value));
  float p = 0.12841613590717316f;
  p = fmaf(p, z, -0.33321908116340637f);
  p = fmaf(p, z, 0.9999995827674866f);
  const float near = x.value * p, far = copysignf(rough_quotient(1.0f - e, 1.0f + e), x.value);
  return Approximate(fabsf(x.value) < 0.25f ? near : far);
}

DEVICE Approximate log_cosh(Approximate x) {
  const float a = fabsf(x.value), z = a * a;
  float p = -0.005769898649305105f;
  p = fmaf(p, z, 0.022075509652495384f);
  p = fmaf(p, z, -0.08332613855600357f);
  p = fmaf(p, z, 0.4999999403953552f);
  const float near = p * z, twice = 1.0f + __expf(-2.0f * a);
  const float far = a + LN_2<float> * (log_to_base_two(twice) - 1.0f);
  return Approximate(a < 0.5f ? near : far);
}
