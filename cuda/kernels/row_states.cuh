// How the states of the threads of a row become one: of a warp, of a block.
#pragma once
#include "losses/row_loss.cuh"
#include "memory/shared_array.cuh"

template <int THREADS>
struct LargestInWarp {
  static constexpr int COUNT = THREADS;
  template <class T>
  DEVICE T operator()(T x) const {
#pragma unroll
    for (int distance = 1; distance < THREADS; distance *= 2) {
      x = larger(x, __shfl_xor_sync(0xffffffffu, x, distance));
    }
    return x;
  }
};

template <class State>
DEVICE State shuffled(const State& state, int distance) {
  WordsOf<State> bits{state};
#pragma unroll
  for (int w = 0; w < WordsOf<State>::COUNT; ++w) {
    bits.word[w] = __shfl_xor_sync(0xffffffffu, bits.word[w], distance);
  }
  return bits.value;
}

// The states of THREADS neighbours together, in each of them.
template <int THREADS, class State>
DEVICE State merge_rescaled_in_warp(State state) {
#pragma unroll
  for (int distance = 1; distance < THREADS; distance *= 2) {
    state = merge_rescaled(state, shuffled(state, distance));
  }
  return state;
}
template <int THREADS>
DEVICE auto merged_in_warp(const auto& state) {
  return merge_rescaled_in_warp<THREADS>(rescale_to(state, LargestInWarp<THREADS>()));
}
// A state that is merged with no other one, as what the merged ones are.
DEVICE auto as_merged(const auto& state) { return rescale_to(state, LargestInWarp<1>()); }

// The states of all threads of a row together, in each of them.
template <auto TEAM>
DEVICE auto merged(const auto& state) {
  static_assert(TEAM.threads_per_row <= 32 || TEAM.rows() == 1, "a block would have several rows");
  constexpr int NEIGHBOURS = TEAM.threads_per_row < 32 ? TEAM.threads_per_row : 32;
  auto of_warp = merged_in_warp<NEIGHBOURS>(state);
  using Merged = decltype(of_warp);
  if constexpr (TEAM.threads_per_row > 1) {
    // A gradient may overwrite elements that other threads have read.
    __syncwarp();
    if constexpr (TEAM.threads_per_row > 32) {
      constexpr int WARPS = TEAM.threads / 32;
      Merged* const parts = shared_array<Merged, WARPS>();
      __syncthreads();
      if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = of_warp;
      __syncthreads();
      of_warp = merged_in_warp<WARPS>(parts[threadIdx.x % WARPS]);
    }
  }
  return of_warp;
}
