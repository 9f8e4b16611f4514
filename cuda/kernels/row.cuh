// What the kernels of losses over rows share: where a row lies, and how the states of its threads
// are combined.
#pragma once
#include "losses/combinators.cuh"
#include "losses/rows.cuh"
#include "memory/layout.cuh"
#include "reduction/reduction.cuh"

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

// Where rows lie: their iteration space, and the step of each array along its row. Bit k of
// VECTORISED: that step is 1 and the vectors of a row are aligned, so that a vector is one access.
// Offset is `unsigned` where all offsets fit and no array runs backwards, along rows or along one.
template <int DIMS, int ARRAYS_, unsigned VECTORISED_, class Index_, class Column_, class Offset_>
struct RowLayout {
  using Index = Index_;
  using Column = Column_;
  using Offset = Offset_;
  static constexpr int ARRAYS = ARRAYS_;
  static constexpr unsigned VECTORISED = VECTORISED_;
  Layout<DIMS, ARRAYS, 0u, Index, Offset> rows;
  long long steps[ARRAYS];

  template <int K>
  __device__ __forceinline__ long long step() const {
    return (VECTORISED >> K & 1u) ? 1 : steps[K];
  }
};

// One row. Arrays: grad_output where VJP, a tangent for each of TANGENTS, the operands of the
// loss, the weights of the classes where WEIGHTED, then the gradients.
template <class T, class Loss, class Layout, unsigned TANGENTS, bool VJP, class Pointers>
struct RowOf {
  using Scalar = T;
  using Rows = Layout;
  using Column = typename Layout::Column;
  using N = Select<(TANGENTS != 0), Dual<Real<T>>, Real<T>>;

  static constexpr bool HAS_GRAD_OUTPUT = VJP;
  static constexpr int FIRST = int(VJP) + ones_below(TANGENTS, 32);
  static constexpr int INPUTS = FIRST + Loss::OPERANDS + int(Loss::WEIGHTED);
  template <int I>
  static constexpr int TANGENT = int(VJP) + ones_below(TANGENTS, I);
  template <int I>
  static __device__ __forceinline__ auto element_type(const At<I, Pointers> pointer) {
    return *pointer;
  }
  template <int I>
  using Element = decltype(element_type<I>(At<I, Pointers>()));

  // Whether array S is read element by element: an operand that the loss reads so, or its tangent.
  template <int S, int I = 0>
  static __device__ constexpr bool is_read() {
    if constexpr (I > Loss::OPERANDS) {
      return false;
    } else {
      const bool own = S == FIRST + I;
      const bool tangent = bool(TANGENTS >> I & 1u) && S == TANGENT<I>;
      return (bool(Loss::READS >> I & 1u) && (own || tangent)) || is_read<S, I + 1>();
    }
  }

  const Layout& layout;
  const Pointers& pointers;
  typename decltype(Layout::rows)::Location at;
  Column columns;

  template <int K>
  __device__ __forceinline__ auto* address(Column column) const {
    return get<K>(pointers) + at.offset[K] + (long long)(column)*layout.template step<K>();
  }
  // An element as it is in memory: only who asks for its number waits for it.
  template <int I>
  struct Loaded {
    static constexpr bool HAS_SLOPE = bool(TANGENTS >> I & 1u);
    static constexpr int SLOPE = HAS_SLOPE ? TANGENT<I> : FIRST + I;
    Element<FIRST + I> value;
    Element<SLOPE> slope;

    __device__ __forceinline__ N number() const {
      const Real<T> real(convert<T>(value));
      if constexpr (HAS_SLOPE) {
        return N(real, Real<T>(convert<T>(slope)));
      } else {
        return N(real);
      }
    }
  };
  template <int I>
  __device__ __forceinline__ Loaded<I> load(Column column) const {
    return {*address<FIRST + I>(column), *address<Loaded<I>::SLOPE>(column)};
  }
  template <int I>
  __device__ __forceinline__ N number(Column column) const {
    return load<I>(column).number();
  }
  template <int I>
  __device__ __forceinline__ auto load_index(Column column = 0) const {
    return *address<FIRST + I>(column);
  }
  template <int I>
  __device__ __forceinline__ long long index(Column column) const {
    const auto loaded = load_index<I>(column);
    using Integer = decltype(load_index<I>(column));
    // An unsigned integer beyond long long turns negative: it is large, and out of range.
    const auto index = (long long)(loaded);
    return Integer(-1) > Integer(0) && index < 0 ? 0x7fffffffffffffffll : index;
  }
  __device__ __forceinline__ auto load_weight(Column column) const {
    return *address<FIRST + Loss::OPERANDS>(column);
  }
  __device__ __forceinline__ T grad_output() const { return convert<T>(*address<0>(0)); }
  // By how many elements the row begins behind a multiple of so many.
  template <int UNIT>
  __device__ __forceinline__ Column shift() const {
    const auto start = reinterpret_cast<unsigned long long>(address<FIRST>(0));
    return Column(start / sizeof(Element<FIRST>) % UNIT);
  }
};

template <int LANES>
struct LargestInWarp {
  static constexpr int COUNT = LANES;
  template <class T>
  __device__ __forceinline__ T operator()(T x) const {
#pragma unroll
    for (int distance = 1; distance < LANES; distance *= 2) {
      x = larger(x, __shfl_xor_sync(0xffffffffu, x, distance));
    }
    return x;
  }
};

template <class State>
__device__ __forceinline__ State shuffled(const State& state, int distance) {
  constexpr int WORDS = (sizeof(State) + 3) / 4;
  union {
    State state;
    unsigned word[WORDS];
  } bits{state};
#pragma unroll
  for (int w = 0; w < WORDS; ++w) {
    bits.word[w] = __shfl_xor_sync(0xffffffffu, bits.word[w], distance);
  }
  return bits.state;
}

// The states of LANES neighbours together, in each of them.
template <int LANES, class State>
__device__ __forceinline__ State joined_in_warp(State state) {
#pragma unroll
  for (int distance = 1; distance < LANES; distance *= 2) {
    state = join(state, shuffled(state, distance));
  }
  return state;
}
template <int LANES, class State>
__device__ __forceinline__ auto combined_in_warp(const State& state) {
  return joined_in_warp<LANES>(settle(state, LargestInWarp<LANES>()));
}

template <class State, int COUNT>
__device__ __forceinline__ State* states_of_block() {
  alignas(State) __shared__ unsigned char memory[COUNT * sizeof(State)];
  return reinterpret_cast<State*>(memory);
}

// The states of all threads of a row together, in each of them.
template <class Team, class State>
__device__ __forceinline__ auto combined(const State& state) {
  constexpr int NEIGHBOURS = Team::LANES < 32 ? Team::LANES : 32;
  auto settled = combined_in_warp<NEIGHBOURS>(state);
  using Settled = decltype(settled);
  if constexpr (Team::LANES > 1) {
    // A gradient may take the memory of the elements that other threads have looked at.
    __syncwarp();
    if constexpr (Team::LANES > 32) {
      constexpr int WARPS = Team::THREADS / 32;
      Settled* const parts = states_of_block<Settled, WARPS>();
      __syncthreads();
      if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = settled;
      __syncthreads();
      settled = combined_in_warp<WARPS>(parts[threadIdx.x % WARPS]);
    }
  }
  return settled;
}

template <class T>
__device__ __forceinline__ T quotient(T x, T factor, const Reciprocal<T>& divisor) {
  return divisor.template times<T>(factor * x);
}
template <class T>
__device__ __forceinline__ Real<T> quotient(Real<T> x, T factor, const Reciprocal<T>& divisor) {
  return Real<T>(quotient(x.value, factor, divisor));
}
template <class X, class T>
__device__ __forceinline__ Dual<X> quotient(Dual<X> x, T factor, const Reciprocal<T>& divisor) {
  return dual(quotient(x.value, factor, divisor), quotient(x.slope, factor, divisor));
}

// What the gradients of a row are proportional to, times a factor and divided.
template <class Loss, class Finished, class T>
__device__ __forceinline__ void scale_gradients(const Loss& loss, Finished& done, T factor,
                                                const Reciprocal<T>& divisor) {
  loss.scale(done, [&](auto x) { return quotient(x, factor, divisor); });
}

// What is asked for of a number: ALONG a tangent, its derivative.
template <bool ALONG, class N>
__device__ __forceinline__ auto derivative(N number) {
  if constexpr (ALONG) {
    return plain(number.slope);
  } else {
    return plain(number);
  }
}

// The value of a row, its term of the denominator, and what its gradients need.
template <class T, class Finished>
struct Outcome {
  T value, denominator;
  Finished done;
};
template <bool GRADIENTS, class Loss, class Row, class Context, class State, class T>
__device__ __forceinline__ auto outcome_of(const Loss& loss, const Row& row, const Context& context,
                                           const State& state, bool valued, T factor,
                                           const Reciprocal<T>& reciprocal) {
  using N = typename Row::N;
  const bool invalid = context.status == INVALID;
  Outcome<T, typename Loss::template Finished<N>> outcome{
      invalid ? T(__int_as_float(0x7fffffff)) : T(0), T(invalid), {}};
  if (context.status == ACTIVE) {
    outcome.done = loss.template finish<N>(row, context, state, valued);
    outcome.value = derivative<(order<N> != 0)>(outcome.done.value);
    outcome.denominator = outcome.done.denominator;
    if constexpr (GRADIENTS) {
      if constexpr (Row::HAS_GRAD_OUTPUT) factor = row.grad_output();
      scale_gradients(loss, outcome.done, factor, reciprocal);
    }
  }
  return outcome;
}

// The reduction of a pass over rows, any of which may be ignored. A mean whose denominator depends
// on that counts them, unless classes have weights.
template <Values VALUES, int THREADS, unsigned TANGENTS, class Loss, class Result, class Scaling>
__device__ __forceinline__ auto reduction_of_rows(const Factor& given, Result* value,
                                                  unsigned* counter, double* partials,
                                                  long long segments, double divisor,
                                                  const Scaling& scaling) {
  constexpr bool COUNTS = VALUES == MEAN_OF_VALUES && !Loss::WEIGHTED;
  double* const counted = given.template counted<COUNTS>(divisor);
  return Reduction<VALUES, THREADS, (TANGENTS != 0), Result, Scaling>{
      value, counter, partials, segments, divisor, scaling, counted};
}
