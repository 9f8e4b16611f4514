// Kernels for the emulator's own tests: each is right for OK = true, and for OK = false has one
// fault that the emulator must find.

template <bool OK>
__global__ void exchange_in_block(const int* in, int* out) {
  __shared__ int tile[64];
  const int t = threadIdx.x;
  tile[t] = in[t];
  if (OK) __syncthreads();
  out[t] = tile[63 - t];
}

template <bool OK>
__global__ void exchange_in_warp(const int* in, int* out) {
  __shared__ int tile[64];
  const int t = threadIdx.x;
  tile[t] = in[t];
  if (OK) __syncwarp();
  out[t] = tile[t ^ 1];
}

// The second barrier keeps the next round from overwriting what others still read.
template <bool OK>
__global__ void reuse_tile(const int* in, int* out) {
  __shared__ int tile[64];
  const int t = threadIdx.x;
  int sum = 0;
  for (int round = 0; round < 3; ++round) {
    tile[t] = in[t] + round;
    __syncthreads();
    sum += tile[63 - t];
    if (OK) __syncthreads();
  }
  out[t] = sum;
}

template <bool OK>
__global__ void flag_in_block(int* out) {
  __shared__ int data;
  __shared__ volatile int flag;
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    data = 7;
    if (OK) __threadfence_block();
    flag = 1;
  } else if (threadIdx.x == 32) {
    while (flag == 0) continue;
    __threadfence_block();
    *out = data;
  }
}

// What the last block of a grid does. RELEASE and ACQUIRE: the fences before and after the atomic.
template <bool RELEASE, bool ACQUIRE, bool WHOLE_DEVICE>
__device__ void sum_in_last_block(int* partial, unsigned* counter, int* out) {
  __shared__ bool last;
  const unsigned t = threadIdx.x;
  partial[blockIdx.x * 64 + t] = int(t);
  __syncthreads();
  if (t == 0) {
    if (RELEASE) WHOLE_DEVICE ? __threadfence() : __threadfence_block();
    last = atomicAdd(counter, 1u) == gridDim.x - 1;
    if (ACQUIRE) __threadfence();
  }
  __syncthreads();
  if (!last) return;
  int sum = 0;
  for (unsigned block = 0; block < gridDim.x; ++block) sum += partial[block * 64 + t];
  out[t] = sum;
}
template <bool OK>
__global__ void release_to_last_block(int* partial, unsigned* counter, int* out) {
  sum_in_last_block<OK, true, true>(partial, counter, out);
}
template <bool OK>
__global__ void acquire_in_last_block(int* partial, unsigned* counter, int* out) {
  sum_in_last_block<true, OK, true>(partial, counter, out);
}
template <bool OK>
__global__ void fence_for_device(int* partial, unsigned* counter, int* out) {
  sum_in_last_block<true, true, OK>(partial, counter, out);
}

// Each block waits for the one before, and reads what the first wrote: order passes on.
template <bool OK>
__global__ void chain_of_blocks(volatile int* flag, int* data, int* out) {
  const int block = blockIdx.x;
  if (threadIdx.x > 0) return;
  if (block > 0) {
    while (flag[block - 1] == 0) continue;
    if (OK) __threadfence();
    out[block] = data[0] + block;
  } else {
    data[0] = 5;
    out[0] = 5;
  }
  __threadfence();
  flag[block] = 1;
}

template <bool OK>
__global__ void scatter(const int* index, int* out) {
  int* const place = out + index[blockIdx.x * 64 + threadIdx.x];
  if (OK) {
    atomicAdd(place, 1);
  } else {
    *place += 1;
  }
}

template <bool OK>
__global__ void barrier_for_some(int* out) {
  if (OK || threadIdx.x >= 32) __syncthreads();
  out[threadIdx.x] = 1;
}

// A loop that ends only where OK, over memory, and over a collective of the warp.
template <bool OK>
__global__ void loop_over_memory(const int* in, int* out) {
  int sum = 0;
  for (unsigned k = 0; k < 64; k += OK) sum += in[k];
  out[threadIdx.x] = sum;
}
template <bool OK>
__global__ void loop_over_warp(int* out) {
  int sum = 0;
  for (unsigned k = 0; k < 64; k += OK) sum += __shfl_xor_sync(0xffffffffu, 1, 1);
  out[threadIdx.x] = sum;
}

template <bool OK>
__global__ void two_barriers(int* out) {
  if (OK || threadIdx.x >= 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
  out[threadIdx.x] = 1;
}

template <bool OK>
__global__ void warp_waits_for_barrier(int* out) {
  if (OK || threadIdx.x != 5) __syncwarp();
  __syncthreads();
  out[threadIdx.x] = 1;
}

template <bool OK>
__global__ void masks_of_halves(const int* in, int* out) {
  const int lane = threadIdx.x % 32;
  int value = in[threadIdx.x];
  if (lane < 16) {
    const unsigned mask = OK ? 0xffffu : 0xffffffffu;
    for (int distance = 8; distance > 0; distance /= 2) {
      value += __shfl_down_sync(mask, value, distance, 16);
    }
  } else {
    for (int distance = 8; distance > 0; distance /= 2) {
      value = max(value, __shfl_down_sync(0xffff0000u, value, distance, 16));
    }
  }
  if (lane % 16 == 0) out[threadIdx.x / 16] = value;
}

template <bool OK>
__global__ void lane_not_in_mask(int* out) {
  out[threadIdx.x] = __any_sync(OK ? 0xffffffffu : 0x7fffffffu, threadIdx.x % 32 == 3);
}

template <bool OK>
__global__ void lane_has_returned(int* out) {
  if (!OK && threadIdx.x == 40) return;
  out[threadIdx.x] = __popc(__ballot_sync(0xffffffffu, 1));
}

// Begins to copy in[k] to tile[k], for the k of a thread.
__device__ void copy_of_thread(int* tile, const int* in) {
  cp_async<4, 0, 0>(shared_address(tile + threadIdx.x), in + threadIdx.x);
}

template <bool OK>
__global__ void wait_for_copy(const int* in, int* out) {
  __shared__ int tile[64];
  copy_of_thread(tile, in);
  cp_async_commit_group();
  if (OK) cp_async_wait_group<0>();
  out[threadIdx.x] = tile[threadIdx.x];
  cp_async_wait_group<0>();
}

// A thread waits for its own copies alone.
template <bool OK>
__global__ void barrier_after_copies(const int* in, int* out) {
  __shared__ int tile[64];
  copy_of_thread(tile, in);
  cp_async_commit_group();
  cp_async_wait_group<0>();
  if (OK) __syncthreads();
  out[threadIdx.x] = tile[63 - threadIdx.x];
}
template <bool OK>
__global__ void wait_ahead_of_barrier(const int* in, int* out) {
  __shared__ int tile[64];
  copy_of_thread(tile, in);
  cp_async_commit_group();
  if (OK || threadIdx.x > 0) cp_async_wait_group<0>();
  __syncthreads();
  out[threadIdx.x] = tile[63 - threadIdx.x];
  cp_async_wait_group<0>();
}

// Copies of one round are on their way while the round before is worked on.
template <bool OK>
__global__ void wait_for_the_right_group(const int* in, int* out) {
  __shared__ int tiles[3][64];
  int sum = 0;
  for (int round = 0; round <= 3; ++round) {
    if (round < 3) copy_of_thread(tiles[round], in);
    cp_async_commit_group();
    if (round == 0) continue;
    OK ? cp_async_wait_group<1>() : cp_async_wait_group<2>();
    sum += tiles[round - 1][threadIdx.x];
  }
  out[threadIdx.x] = sum;
  cp_async_wait_group<0>();
}
template <bool OK>
__global__ void read_the_right_slot(const int* in, int* out) {
  __shared__ int tiles[2][64];
  copy_of_thread(tiles[0], in);
  cp_async_commit_group();
  copy_of_thread(tiles[1], in);
  cp_async_commit_group();
  cp_async_wait_group<1>();
  out[threadIdx.x] = tiles[OK ? 0 : 1][threadIdx.x];
  cp_async_wait_group<0>();
}
template <bool OK>
__global__ void end_the_group(const int* in, int* out) {
  __shared__ int tile[64];
  copy_of_thread(tile, in);
  if (OK) cp_async_commit_group();
  cp_async_wait_group<0>();
  out[threadIdx.x] = tile[threadIdx.x];
  cp_async_commit_group();
  cp_async_wait_group<0>();
}

template <bool OK>
__global__ void write_behind_copy(const int* in, int* out) {
  __shared__ int tile[64];
  copy_of_thread(tile, in);
  cp_async_commit_group();
  if (OK) cp_async_wait_group<0>();
  tile[threadIdx.x] = 1;
  cp_async_wait_group<0>();
  out[threadIdx.x] = tile[threadIdx.x];
}
// Another thread may still read what a copy overwrites.
template <bool OK>
__global__ void copy_behind_read(const int* in, int* out) {
  __shared__ int tile[64];
  tile[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  const int other = tile[63 - threadIdx.x];
  if (OK) __syncthreads();
  copy_of_thread(tile, in);
  cp_async_commit_group();
  cp_async_wait_group<0>();
  out[threadIdx.x] = other - tile[threadIdx.x];
}
template <bool OK>
__global__ void write_source_of_copy(int* numbers, int* out) {
  __shared__ int tile[64];
  copy_of_thread(tile, numbers);
  cp_async_commit_group();
  if (OK) cp_async_wait_group<0>();
  numbers[threadIdx.x] = -1;
  cp_async_wait_group<0>();
  out[threadIdx.x] = tile[threadIdx.x];
}
template <bool OK>
__global__ void copy_not_waited_for(const int* in, int* out) {
  __shared__ int tile[64];
  copy_of_thread(tile, in);
  cp_async_commit_group();
  out[threadIdx.x] = 1;
  if (OK) cp_async_wait_group<0>();
}
template <bool OK>
__global__ void aligned_copy(const int* in, int* out) {
  alignas(16) __shared__ int tile[4];
  if (threadIdx.x > 0) return;
  cp_async_16(shared_address(tile), in + (OK ? 4 : 2));
  cp_async_commit_group();
  cp_async_wait_group<0>();
  out[0] = tile[0];
}
template <bool OK>
__global__ void copy_tail(const int* in, int* out) {
  __shared__ int tile[64];
  const bool present = OK ? threadIdx.x < 61 : threadIdx.x < 62;
  if (present) copy_of_thread(tile, in);
  cp_async_commit_group();
  cp_async_wait_group<0>();
  if (present) out[threadIdx.x % 61] = tile[threadIdx.x];
}

// Three times, 64 numbers come to shared memory and go from there, by bulk copies.
enum Fault { NONE, BEGINNING, BYTES, WAIT, WRITES, THREADS, STORE, END };
template <Fault LEFT_OUT>
__device__ void increase(const int* in, int* out) {
  alignas(16) __shared__ int tile[64];
  __shared__ unsigned long long place;
  const unsigned barrier = shared_address(&place);
  const bool first = threadIdx.x == 0;
  if (first) mbarrier_init(barrier, 1);
  if (LEFT_OUT != BEGINNING) __syncthreads();
  for (unsigned round = 0; round < 3; ++round) {
    if (first) {
      if (LEFT_OUT != STORE) cp_async_bulk_wait_group_read();
      mbarrier_expect_tx(barrier, LEFT_OUT == BYTES ? 0 : sizeof(tile));
      cp_async_bulk_load(shared_address(tile), in, sizeof(tile), barrier);
      mbarrier_arrive(barrier);
    }
    if (LEFT_OUT != WAIT || threadIdx.x != 40) {
      while (!mbarrier_try_wait(barrier, round % 2)) continue;
    }
    tile[threadIdx.x] += round;
    if (LEFT_OUT != WRITES) fence_proxy_async();
    if (LEFT_OUT != THREADS) __syncthreads();
    if (first) cp_async_bulk_store(out + 64 * round, shared_address(tile), sizeof(tile));
    cp_async_bulk_commit_group();
  }
  if (LEFT_OUT != END) cp_async_bulk_wait_group_read();
}
template <bool OK>
__global__ void barrier_has_begun(const int* in, int* out) {
  increase<(OK ? NONE : BEGINNING)>(in, out);
}
template <bool OK>
__global__ void expect_all_bytes(const int* in, int* out) {
  increase<(OK ? NONE : BYTES)>(in, out);
}
template <bool OK>
__global__ void wait_for_bytes(const int* in, int* out) {
  increase<(OK ? NONE : WAIT)>(in, out);
}
template <bool OK>
__global__ void fence_for_bulk_copies(const int* in, int* out) {
  increase<(OK ? NONE : WRITES)>(in, out);
}
template <bool OK>
__global__ void wait_for_writers(const int* in, int* out) {
  increase<(OK ? NONE : THREADS)>(in, out);
}
template <bool OK>
__global__ void wait_for_store(const int* in, int* out) {
  increase<(OK ? NONE : STORE)>(in, out);
}
template <bool OK>
__global__ void wait_for_last_store(const int* in, int* out) {
  increase<(OK ? NONE : END)>(in, out);
}
// What bulk copies have stored is there for the next kernel.
template <bool OK>
__global__ void read_what_is_stored(int* out) {
  alignas(16) __shared__ int tile[64];
  tile[threadIdx.x] = 7;
  fence_proxy_async();
  __syncthreads();
  if (threadIdx.x == 0) cp_async_bulk_store(out, shared_address(tile), sizeof(tile));
  cp_async_bulk_commit_group();
  cp_async_bulk_wait_group_read();
  if (!OK && threadIdx.x == 0) tile[0] = out[0];
}
template <bool OK>
__global__ void wait_for_the_right_phase(int* out) {
  __shared__ unsigned long long place;
  const unsigned barrier = shared_address(&place);
  if (threadIdx.x == 0) mbarrier_init(barrier, 1);
  __syncthreads();
  for (unsigned round = 0; round < 3; ++round) {
    if (threadIdx.x == 0) mbarrier_arrive(barrier);
    while (!mbarrier_try_wait(barrier, OK ? round % 2 : 0)) continue;
    __syncthreads();
  }
  out[threadIdx.x] = 1;
}

// The result of each, 64 threads a row.
__global__ void collectives(const int* in, int* out) {
  const unsigned all = 0xffffffffu;
  const int t = threadIdx.x, value = in[t];
  const int results[] = {__shfl_sync(all, value, 5),
                         __shfl_up_sync(all, value, 3),
                         __shfl_down_sync(all, value, 3, 16),
                         __shfl_xor_sync(all, value, 9),
                         int(__ballot_sync(all, value > 20)),
                         __all_sync(all, value > 20),
                         __any_sync(all, value > 20),
                         int(__match_any_sync(all, value % 3)),
                         __reduce_add_sync(all, value),
                         __reduce_min_sync(all, -value),
                         __reduce_max_sync(all, -value),
                         int(__reduce_min_sync(all, unsigned(-value))),
                         int(__reduce_or_sync(all, unsigned(value))),
                         __syncthreads_count(value > 20),
                         __syncthreads_and(value > 20),
                         __syncthreads_or(value > 20)};
  for (int k = 0; k < 16; ++k) out[k * 64 + t] = results[k];
}

__global__ void atomics(int* out, unsigned* wrapping) {
  const int t = threadIdx.x;
  atomicAdd(out + 0, t);
  atomicSub(out + 1, t);
  atomicMax(out + 2, t);
  atomicMin(out + 3, -t);
  atomicOr(out + 4, 1 << t % 8);
  atomicXor(out + 5, t);
  atomicAnd(out + 6, t | 1);
  atomicInc(wrapping + 0, 9u);
  atomicDec(wrapping + 1, 9u);
  if (atomicCAS(out + 7, 0, 1) == 0) atomicExch(out + 8, 1);
}

// 64 threads on 61 elements.
template <bool OK>
__global__ void read_tail(const int* in, int* out) {
  const int i = threadIdx.x, n = 61;
  const int value = OK && i >= n ? 0 : in[i];
  if (i < n || value > n) out[i % n] = value;
}

template <bool OK>
__global__ void write_tail(int* out) {
  if (threadIdx.x < (OK ? 61 : 62)) out[threadIdx.x] = 1;
}

template <bool OK>
__global__ void uninitialised_shared(int* out) {
  __shared__ int tile[64];
  if (OK || threadIdx.x != 9) tile[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x];
}

// Whoever copies a struct reads its padding, which is written along with the members.
struct Padded {
  int status;
  double weight;
};
template <bool OK>
__global__ void padding_of_shared(const int* in, int* out) {
  __shared__ Padded tile[64];
  const int t = threadIdx.x;
  const Padded own = {in[t], 1.0};
  if (OK) {
    tile[t] = own;
  } else {
    tile[t].status = own.status;
  }
  __syncthreads();
  const Padded both[2] = {tile[63 - t], tile[t]};
  const Padded& one = both[in[t] % 2];
  out[t] = one.status + int(one.weight);
}

// Of shared memory a device would stop.
template <bool OK>
__global__ void hint_for_store(const int* in, int* out) {
  __shared__ int tile[64];
  int* const place = tile + threadIdx.x;
  if (OK) {
    *place = __ldcs(in + threadIdx.x);
  } else {
    __stcs(place, in[threadIdx.x]);
  }
  __stcs(out + threadIdx.x, *place);
}
template <bool OK>
__global__ void hint_for_load(const int* in, int* out) {
  __shared__ int tile[64];
  tile[threadIdx.x] = in[threadIdx.x];
  out[threadIdx.x] = __ldg(OK ? in + threadIdx.x : tile + threadIdx.x);
}
template <bool OK>
__global__ void hint_for_local(const int* in, int* out) {
  int own[2] = {in[threadIdx.x], 0};
  out[threadIdx.x] = __ldcg(OK ? in + threadIdx.x : own);
}

template <bool OK>
__global__ void dynamic_shared(int* out) {
  extern __shared__ __align__(16) unsigned char dynamic[];
  int* const tile = reinterpret_cast<int*>(dynamic) + (OK ? 0 : 1);
  tile[threadIdx.x] = 1;
  out[threadIdx.x] = tile[threadIdx.x];
}

template <bool OK>
__global__ void aligned(const int* in, int* out) {
  const int4 four = *reinterpret_cast<const int4*>(in + (OK ? 4 : 2));
  out[threadIdx.x] = four.x;
}

template <bool OK>
__global__ void aligned_atomic(int* out) {
  char* const place = reinterpret_cast<char*>(out) + (OK ? 4 : 2);
  atomicAdd(reinterpret_cast<int*>(place), 1);
}

template <bool OK>
__global__ void write_through_const(const int* in, int* out) {
  out[threadIdx.x] = in[threadIdx.x];
  if (!OK) const_cast<int*>(in)[0] = 0;
}

template <bool OK>
__global__ void null_pointer(const int* nothing, int* out) {
  out[threadIdx.x] = OK && nothing == nullptr ? 1 : *nothing;
}

template <bool OK>
__global__ void index_of_32_bits(int* out) {
  const int row = 65536 + threadIdx.x, columns = 65536;
  const long long index = OK ? (long long)(row)*columns : row * columns;
  out[threadIdx.x] = int(index >> 16);
}

template <bool OK>
__global__ void local_array(int* out) {
  int values[4] = {1, 2, 3, 4};
  out[threadIdx.x] = values[threadIdx.x % (OK ? 4 : 5)];
}

template <bool OK>
__global__ void shift(int* out) {
  out[threadIdx.x] = 1 << threadIdx.x % (OK ? 31 : 33);
}

template <bool OK>
__global__ void trap(int* out) {
  if (!OK) __trap();
  out[threadIdx.x] = 1;
}

__global__ void round_to_half(long long n, const float* x, const double* y, __half* from_float,
                              __half* from_double) {
  const long long i = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  from_float[i] = __float2half_rn(x[i]);
  from_double[i] = __double2half(y[i]);
}

__global__ void round_to_bfloat16(long long n, const float* x, const double* y,
                                  __nv_bfloat16* from_float, __nv_bfloat16* from_double) {
  const long long i = (long long)(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= n) return;
  from_float[i] = __float2bfloat16_rn(x[i]);
  from_double[i] = __double2bfloat16(y[i]);
}

// Every function of its group, for values that libm or Python knows.
__global__ void intrinsics(float x, double* out) {
  const double results[] = {
      __expf(x),           __logf(x),          __log2f(x),          __powf(x, x),
      __fdividef(1.0f, x), rsqrtf(x),          rsqrt(x * 1.0),      log1p(x * 1.0),
      expm1(x * 1.0),      tanh(x * 1.0),      __fadd_rn(x, x),     __dadd_rn(x, x),
      __fmul_rn(x, x),     __fmaf_rn(x, x, x), normcdf(x * 1.0),    double(max(x, 1.0f)),
      __saturatef(x),      cospi(x * 1.0),     double(isfinite(x)), fabs(x * 1.0)};
  for (int k = 0; k < 20; ++k) out[k] = results[k];
}

// Neither may become a fused multiply-add.
__global__ void rounded_as_written(float a, float b, float c, float* out) {
  out[0] = __fadd_rn(a * b, c);
  out[1] = __fmul_rn(a, b) + c;
}
