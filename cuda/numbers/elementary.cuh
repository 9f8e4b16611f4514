// Elementary functions of plain numbers, for arguments of which a loss knows more than CUDA's own
// functions do. With those the loss would be slower than memory. In float each is within 2 ulp
// unless it says otherwise; in double they are CUDA's. The polynomials have the smallest maximum of
// the relative error.
#pragma once
#include "numbers/device.cuh"

template <class T>
constexpr T LN_2 = T(0.6931471805599453);
template <class T>
constexpr T LOG2_E = T(1.4426950408889634);

// The lowest number, and the larger one of two, or the one that is not NaN.
template <class T>
DEVICE T lowest() {
  return sizeof(T) == 4 ? T(-3.402823466e38) : T(-1.7976931348623157e308);
}
DEVICE float larger(float a, float b) { return fmaxf(a, b); }
DEVICE double larger(double a, double b) { return fmax(a, b); }

// 2^x, with an error of 2^-22. It is exact where x is a whole number and 2^x is normal. The
// assembly is volatile because the compiler would otherwise branch around it where its result may
// not be selected, and would wait for each result before it begins the next.
DEVICE float power_of_two(float x) {
#ifdef __CUDA_ARCH__
  float y;
  asm volatile("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return exp2f(x);
#endif
}

// a / b, where b is between 2^-100 and 2^100 and the quotient is not subnormal.
DEVICE float quotient(float a, float b) {
  const float reciprocal = __fdividef(1.0f, b);
  const float q = a * reciprocal;
  return fmaf(fmaf(-b, q, a), reciprocal, q);
}
DEVICE double quotient(double a, double b) { return a / b; }
// The same with an error of 2 ulp.
DEVICE float rough_quotient(float a, float b) { return __fdividef(a, b); }
DEVICE double rough_quotient(double a, double b) { return a / b; }

// log(1 + x) for x in [0, 1].
DEVICE float log1p_of_fraction(float x) {
  float p = -0.0033184722997248173f;
  p = fmaf(p, x, 0.020204583182930946f);
  p = fmaf(p, x, -0.05766443908214569f);
  p = fmaf(p, x, 0.10680554807186127f);
  p = fmaf(p, x, -0.15355396270751953f);
  p = fmaf(p, x, 0.19695399701595306f);
  p = fmaf(p, x, -0.24958586692810059f);
  p = fmaf(p, x, 0.33330512046813965f);
  p = fmaf(p, x, -0.4999993145465851f);
  return fmaf(x * x, p, x);
}
DEVICE double log1p_of_fraction(double x) { return log1p(x); }

// log(1 + x) for a finite x >= 0, in float within 1 ulp.
DEVICE float log1p_of_positive(float x) {
  // 1 + x = 2^k (1 + m) with m in [-1/4, 1/2); `steps` is 2^23 k.
  const int steps = (__float_as_int(1.0f + x) - 0x3f400000) & 0xff800000;
  const float scale = __int_as_float(0x3f800000 - steps);
  const float m = fmaf(x, scale, scale - 1.0f);
  float p = -0.041784416884183884f;
  p = fmaf(p, m, 0.10117045044898987f);
  p = fmaf(p, m, -0.13117872178554535f);
  p = fmaf(p, m, 0.14532889425754547f);
  p = fmaf(p, m, -0.16660362482070923f);
  p = fmaf(p, m, 0.1998809427022934f);
  p = fmaf(p, m, -0.2499934285879135f);
  p = fmaf(p, m, 0.33333495259284973f);
  p = fmaf(p, m, -0.5000001192092896f);
  return fmaf(float(steps), 8.2629582e-08f, fmaf(m * m, p, m));
}
DEVICE double log1p_of_positive(double x) { return log1p(x); }

// A number and its rounding error.
template <class T>
struct Rounded {
  T value, rest;
};

// exp(x + rest) for x <= 0 and a rest that is small beside it. In float the value is within 0.8
// ulp, and value + rest within 0.3.
DEVICE Rounded<float> exp_of_negative(float x, float rest) {
  constexpr float ROUNDS = 12582912.0f;  // adding it rounds to a whole number
  const float bounded = fmaxf(x, -150.0f);
  const float n = fmaf(bounded, LOG2_E<float>, ROUNDS) - ROUNDS;
  float f = fmaf(n, -0.693145752f, bounded);
  f = fmaf(n, -1.42860677e-06f, f) + rest;
  float p = 0.0013814599951729178f;
  p = fmaf(p, f, 0.008368750102818012f);
  p = fmaf(p, f, 0.04166838899254799f);
  p = fmaf(p, f, 0.1666651964187622f);
  p = fmaf(p, f, 0.4999999403953552f);
  p = fmaf(p, f, 1.0f);
  const float y = fmaf(p, f, 1.0f), scale = power_of_two(n);
  return {y * scale, fmaf(p, f, 1.0f - y) * scale};
}
DEVICE Rounded<double> exp_of_negative(double x, double rest) {
  const double y = exp(x);
  return {fma(y, rest, y), 0.0};
}

// x^exponent for x in [0, 1]; of a small number instead of 0, where a power below 0 is infinite. In
// float the absolute error is small. The relative error of a small result is larger, because the
// logarithm is rounded.
DEVICE float power_of_fraction(float x, float exponent) {
  return exp2f(exponent * fmaxf(__log2f(x), -150.0f));
}
DEVICE double power_of_fraction(double x, double exponent) {
  return pow(x + 3.872591914849318e-121, exponent);
}

// log(p) and log(1 - p) of a probability p, at least -100 each; outside of [0, 1] one is NaN. Both
// follow from the smaller one of p and 1 - p, which is exact where that matters. The hardware gives
// its logarithm, which is precise below 1/2 only; a polynomial gives that of the larger one.
template <class T>
struct Logarithms {
  T of_p, of_rest;
};
DEVICE Logarithms<float> logarithms(float p) {
  const bool below = p < 0.5f;
  const float s = below ? p : 1.0f - p;
  float q = -1.7459421157836914f;
  q = fmaf(q, s, 2.48231840133667f);
  q = fmaf(q, s, -1.9767099618911743f);
  q = fmaf(q, s, 0.5953652858734131f);
  q = fmaf(q, s, -0.3410465717315674f);
  q = fmaf(q, s, -0.1756902039051056f);
  q = fmaf(q, s, -0.2518885135650635f);
  q = fmaf(q, s, -0.3332621455192566f);
  q = fmaf(q, s, -0.5000008940696716f);
  const float of_s = LN_2<float> * __log2f(s), small = of_s < -100.0f ? -100.0f : of_s;
  const float large = fmaf(s * s, q, -s);
  return {below ? small : large, below ? large : small};
}
DEVICE Logarithms<double> logarithms(double p) {
  const double of_p = log(p), of_rest = log1p(-p);
  return {of_p < -100.0 ? -100.0 : of_p, of_rest < -100.0 ? -100.0 : of_rest};
}

// log(cosh(x)).
DEVICE float log_cosh(float x) {
  const float a = fabsf(x), z = x * x;
  float p = 8.780564530752599e-05f;
  p = fmaf(p, z, -0.0005602157325483859f);
  p = fmaf(p, z, 0.0020822964143007994f);
  p = fmaf(p, z, -0.006713374983519316f);
  p = fmaf(p, z, 0.022217417135834694f);
  p = fmaf(p, z, -0.0833330973982811f);
  const float near = fmaf(z * z, p, 0.5f * z);
  const float far = a + (log1p_of_fraction(expf(-2.0f * a)) - LN_2<float>);
  return a < 1.0f ? near : far;
}
DEVICE double log_cosh(double x) {
  const double a = fabs(x), s = sinh(a < 1.0 ? a : 0.0);
  return a < 1.0 ? 0.5 * log1p(s * s) : a + (log1p(exp(-2.0 * a)) - LN_2<double>);
}
