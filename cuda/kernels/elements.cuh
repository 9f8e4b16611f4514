// What the kernels of pointwise losses share: how elements form tiles, and the work of one thread.
#pragma once
#include "losses/combinators.cuh"
#include "losses/pointwise.cuh"
#include "memory/layout.cuh"
#include "reduction/reduction.cuh"

// How elements form tiles, as cupy_losses/_device/element_schedule.py chooses.
struct Tile {
  int threads;             // of a block, whose work a tile is
  int vectors_per_thread;  // of a tile
  int width;               // the elements of a vector
  // The vectors that a thread loads before it uses the first. That changes the speed, never the
  // order of summation.
  int batch;

  __device__ constexpr int elements() const { return threads * vectors_per_thread * width; }
};

// The first element of a thread's vector in a tile.
template <Tile TILE>
DEVICE long long first_element(long long tile, int vector) {
  return tile * TILE.elements() + (vector * TILE.threads + int(threadIdx.x)) * TILE.width;
}

// One thread's work on vectors of neighbouring elements. Pointers: to the operands, then to the
// gradients of the operands in WANTED.
template <class T, class Loss, class Layout, int WIDTH, Values VALUES, unsigned WANTED,
          class Result, class Pointers, class K = Range<Layout::OPERANDS>>
struct Worker;

template <class T, class Loss, class Layout, int WIDTH, Values VALUES, unsigned WANTED,
          class Result, class Pointers, int... K>
struct Worker<T, Loss, Layout, WIDTH, VALUES, WANTED, Result, Pointers, Indices<K...>> {
  using Scalar = T;
  template <int I>
  using Element = Pointee<I, Pointers>;
  // Which of the pointers is to the gradient of operand I.
  template <int I>
  static constexpr int GRADIENT = Layout::OPERANDS + ones_below(WANTED, I);

  static constexpr int ARRAYS = Layout::OPERANDS + ones_below(WANTED, Layout::OPERANDS);

  using Vectors = Tuple<Vector<Element<K>, WIDTH>...>;
  using Wide = Tuple<Vector<Repeat<T, K>, WIDTH>...>;

  const Loss& loss;
  const Layout& layout;
  const Pointers& pointers;
  const Reciprocal<T> reciprocal;
  Result* const values;
  Sum<T> sum = Sum<T>::zero();
  Sum<T> denominator = Sum<T>::zero();

  DEVICE void load(Vectors& vectors, long long element) const {
    load(vectors, layout.locate(element));
  }
  DEVICE void load(Vectors& vectors, const typename Layout::Location& at) const {
    ((get<K>(vectors) = layout.template load_vector<K, WIDTH>(get<K>(pointers), at)), ...);
  }

  static DEVICE Wide widened(const Vectors& vectors) { return {{widen<T>(get<K>(vectors))}...}; }

  // Adds the values of a vector to the sums and writes its outputs.
  DEVICE void compute(const Vectors& vectors, long long element) {
    VectorSum vector_sum;
    compute(vectors, element, vector_sum);
    add(vector_sum);
  }

  // The same for a vector at the end of the array, of which only the elements [element, end) are
  // there. They are computed one by one, which takes few registers.
  DEVICE void compute_singly(long long element, long long end) {
    using Single = Worker<T, Loss, Layout, 1, VALUES, WANTED, Result, Pointers>;
    const Single single{loss, layout, pointers, reciprocal, values};
    typename Single::VectorSum single_sum;
#pragma unroll 1
    for (; element < end; ++element) {
      typename Single::Vectors vectors;
      single.load(vectors, element);
      single.compute(vectors, element, single_sum);
    }
    add({single_sum.values, single_sum.denominator});
  }

  // The sums of one vector, short enough to need no compensation.
  struct VectorSum {
    T values = T(0), denominator = T(0);
  };

  DEVICE void compute(const Vectors& vectors, long long element, VectorSum& vector_sum) const {
    const Wide x = widened(vectors);
    Vector<Result, WIDTH> each;
    Vectors gradients;
#pragma unroll
    for (int j = 0; j < WIDTH; ++j) {
      const T value = plain(differentiate<K...>(x, gradients, j));
      if constexpr (VALUES == EACH_VALUE) each.at[j] = convert<Result>(value);
      if constexpr (VALUES >= SUM_OF_VALUES) vector_sum.values += value;
      if constexpr (VALUES == MEAN_OF_VALUES) {
        vector_sum.denominator += plain(loss.denominator(Real<T>(get<K>(x).at[j])...));
      }
    }
    // Outputs are dense and aligned, whatever the layout of the operands.
    if constexpr (VALUES == EACH_VALUE) store_vector<WIDTH>(values + element, each);
    (store_gradient<K>(gradients, element), ...);
  }

  // The loss of element j, with its derivative by operand I unless that is -1.
  template <int I>
  DEVICE auto evaluate(const Wide& x, int j) const {
    return loss(varied<K == I>(Real<T>(get<K>(x).at[j]))...);
  }

 private:
  DEVICE void add(const VectorSum& vector_sum) {
    if constexpr (VALUES >= SUM_OF_VALUES) sum += vector_sum.values;
    if constexpr (VALUES == MEAN_OF_VALUES) denominator += vector_sum.denominator;
  }

  // The loss of element j. Stores its derivatives by the wanted operands among I, Rest...
  template <int I, int... Rest>
  DEVICE auto differentiate(const Wide& x, Vectors& gradients, int j) const {
    if constexpr (bool(WANTED >> I & 1u)) {
      const auto loss_of_element = evaluate<I>(x, j);
      const Element<I> gradient =
          reciprocal.template times<Element<I>>(plain(loss_of_element.slope));
      // An infinite or NaN factor does not reach what the mask leaves out.
      get<I>(gradients).at[j] =
          leaves_out(loss, get<K>(x).at[j]...) ? convert<Element<I>>(T(0)) : gradient;
      if constexpr (sizeof...(Rest) > 0) differentiate<Rest...>(x, gradients, j);
      return loss_of_element.value;
    } else if constexpr (sizeof...(Rest) > 0) {
      return differentiate<Rest...>(x, gradients, j);
    } else {
      return evaluate<-1>(x, j);
    }
  }

  template <int I>
  DEVICE void store_gradient(const Vectors& gradients, long long element) const {
    if constexpr (bool(WANTED >> I & 1u)) {
      store_vector<WIDTH>(get<GRADIENT<I>>(pointers) + element, get<I>(gradients));
    }
  }
};

// The reduction of a pass over elements. Where a mask leaves nothing, derivatives of a mean are 0.
// A type: of a function that makes it, some kernels took two registers more.
template <class T, Values VALUES, int THREADS, class Loss, class Result, class Scaling>
using ReductionOfElements =
    Reduction<T, VALUES, THREADS, is_masked<Loss> && is_derivative<Loss>, Result, Scaling>;
