// gradient *= grad_output, in place: the backward pass of a loss whose forward pass has written the
// gradient over an operand, so that it cannot be computed anew.
//
// Fuses nothing. Bytes an element of s bytes: 2s; none where grad_output is 1.
#include "memory/vector.cuh"

template <class T, class E, class G, int THREADS, int WIDTH>
__global__ void __launch_bounds__(THREADS) scale(long long n, E* gradient, const G* grad_output) {
  const T factor = convert<T>(*grad_output);
  if (factor == T(1)) return;
  const long long step = (long long)gridDim.x * THREADS * WIDTH;
  long long i = ((long long)blockIdx.x * THREADS + threadIdx.x) * WIDTH;
  for (; i + WIDTH <= n; i += step) {
    Vector<E, WIDTH> vector = load_vector<WIDTH>(gradient + i);
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
      vector.at[j] = convert<E>(factor * convert<T>(vector.at[j]));
    }
    store_vector<WIDTH>(gradient + i, vector);
  }
  for (; i < n; ++i) gradient[i] = convert<E>(factor * convert<T>(gradient[i]));
}
