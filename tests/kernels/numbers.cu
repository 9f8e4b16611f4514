// Kernels for test_numbers.py: the arithmetic of numbers/dual.cuh and numbers/math.cuh, the
// formulas of losses, and sums, by themselves.

// An expression of every operator, with operands of every order on either side.
template <int WHICH>
struct Expression {
  Parameter<double> p;
  template <class X, class Y>
  __device__ auto operator()(X x, Y y) const {
    if constexpr (WHICH == 0) return x + 2.0 * y - 3;
    if constexpr (WHICH == 1) return (1 - x) * y;
    if constexpr (WHICH == 2) return x * y * x;
    if constexpr (WHICH == 3) return x / y + y / x;
    if constexpr (WHICH == 4) return 2.0 / x - y / 4.0;
    if constexpr (WHICH == 5) return (x - y) / p + p * x;
    if constexpr (WHICH == 6) return abs(x) * y + sign(y) * x;
    if constexpr (WHICH == 7) return half_square(x - y) + half_square_over(x * y, p);
    if constexpr (WHICH == 8) return abs_of_nonzero(x) * -y + finite_quotient(y * x, p);
    if constexpr (WHICH == 9) return x < y ? x * x : (x >= p ? y * x : p - y);
    if constexpr (WHICH == 10) return x > 0.5 ? y * x : (y <= x ? x - y : x * x * y);
    if constexpr (WHICH == 11) return log1p(x * x) * sqrt(y * y) + atan(x) * pow(abs(y), p);
    if constexpr (WHICH == 12) return max(x, y) * x - min(x, y) * p + (x != y ? x : y * y);
    if constexpr (WHICH == 13) {
      return (sigmoid(x) + softplus(x) + clamp_min(x, p)) * y + pow(x, 0) * relu(y);
    }
    if constexpr (WHICH == 14) return hypot(x, y) * hypot(p, y) + hypot(x * y, 2.0) * signum(x);
    if constexpr (WHICH == 15) {
      return logaddexp(x, y) * logaddexp(p, y) + logaddexp(x * y, 0.0) * logaddexp(x, x);
    }
    if constexpr (WHICH == 16) return tanh(x - y) * tanh(p) + y * tanh(x * y);
    if constexpr (WHICH == 17) {
      return multiply_add(x, y, x * p) * multiply_add(p, x, y) +
             multiply_add(y, x * y, 1.5) * multiply_add(p, 2.0, x);
    }
  }
};

// Eight numbers an element: the value, as each order of number has it; both first derivatives; the
// second derivatives xx, xy and yy.
template <int WHICH>
__global__ void derivatives(const double* x, const double* y, double* out, double p, int n) {
  const Expression<WHICH> f{{p, 1.0 / p, 0.0}};
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    using R = Real<double>;
    using D = Dual<R>;
    const R a(x[i]), b(y[i]);
    const D da(a, R(1)), db(b, R(1));
    double* to = out + 8 * i;
    to[0] = plain(f(a, b));
    to[1] = plain(D(f(da, b)).slope);
    to[2] = plain(D(f(a, db)).slope);
    to[6] = plain(f(da, b));
    to[7] = plain(f(a, db));
    to[3] = plain(Dual<D>(f(Dual<D>(da, D(1)), b)).slope.slope);
    to[4] = plain(Dual<D>(f(Dual<D>(D(a), D(1)), db)).slope.slope);
    to[5] = plain(Dual<D>(f(a, Dual<D>(db, D(1)))).slope.slope);
  }
}

// Many equal terms in one sum, then the sums of all threads.
template <class T>
__global__ void long_sum(T term, int count, double* out) {
  Sum<T> sum = Sum<T>::zero();
  for (int i = 0; i < count; ++i) sum += term;
  Sum<double> all[] = {sum.widened()};
  block_sums<64>(all);
  if (threadIdx.x == 0) *out = all[0].total();
}

// A loss with its hyper-parameters, which are all of its fields.
template <class Loss, class T>
__device__ Loss with_parameters(double p, double q) {
  union {
    Parameter<T> fields[2];
    Loss loss;
  } all{{{T(p), T(1 / p), T(0)}, {T(q), T(1 / q), T(0)}}};
  return all.loss;
}

// Of K operands in x, one after the other: the value; the K derivatives; the K derivatives of the
// derivative along (1, 2, ...).
template <class T, class Loss, int... K>
__device__ void derive(const Loss& loss, const double* x, double* out, int n, int i,
                       Indices<K...>) {
  using R = Real<T>;
  using D = Dual<R>;
  constexpr int COUNT = sizeof...(K);
  out[0] = plain(loss(R(T(x[K * n + i]))...));
  for (int k = 0; k < COUNT; ++k) {
    out[1 + k] = plain(loss(D(R(T(x[K * n + i])), R(T(K == k)))...).slope);
    const auto second =
        loss(Dual<D>(D(R(T(x[K * n + i])), R(T(K == k))), D(R(T(K + 1)), R(T(0))))...);
    out[1 + COUNT + k] = plain(second.slope.slope);
  }
}

template <class T, class Loss, int OPERANDS>
__global__ void formula(const double* x, double* out, double p, double q, int n) {
  const Loss loss = with_parameters<Loss, T>(p, q);
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    derive<T>(loss, x, out + (1 + 2 * OPERANDS) * i, n, i, Range<OPERANDS>());
  }
}

// A function of numbers/approximate.cuh.
template <int WHICH>
__global__ void approximated(const float* x, const float* y, float* out, int n) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const Approximate a(x[i]), b(y[i]);
    if constexpr (WHICH == 0) out[i] = exp(a);
    if constexpr (WHICH == 1) out[i] = log(a);
    if constexpr (WHICH == 2) out[i] = log1p(a);
    if constexpr (WHICH == 3) out[i] = log1p_of_fraction(a);
    if constexpr (WHICH == 4) out[i] = sqrt(a);
    if constexpr (WHICH == 5) out[i] = tanh(a);
    if constexpr (WHICH == 6) out[i] = log_cosh(a);
    if constexpr (WHICH == 7) out[i] = hypot(a, b);
    if constexpr (WHICH == 8) out[i] = a / b;
    if constexpr (WHICH == 9) out[i] = logarithms(a).of_p;
    if constexpr (WHICH == 10) out[i] = logarithms(a).of_rest;
  }
}
