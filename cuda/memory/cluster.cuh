// Clusters: blocks that run at the same time, and reach the shared memory of one another. On
// the emulator, which has none, each block computes what other blocks would have sent.
#pragma once
#include "memory/arrivals.cuh"
#include "memory/vector.cuh"

// How the RANKS blocks of a cluster exchange values. All threads begin() first, and end() last.
template <class Value, int RANKS>
class ClusterExchange;

#if CLUSTERS
DEVICE void cluster_barrier() {
  asm volatile(
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;\n" ::
          : "memory");
}

// As mbarrier_try_wait, also of what other blocks of the cluster have sent. It takes longer: an
// acquire at the scope of the cluster invalidates the L1 cache of the multiprocessor.
DEVICE bool mbarrier_try_wait_cluster(unsigned barrier, unsigned parity) {
  unsigned done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

DEVICE unsigned address_in_cluster(unsigned address, unsigned rank) {
  asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(rank));
  return address;
}

// In each turn a block sends a value to all of them, to one of two places by turns. It sends to a
// place again only after it has received the values of the turn between. Their senders have read
// that place before they sent them.
template <class Value, int RANKS>
class ClusterExchange {
  static constexpr int WORDS = WordsOf<Value>::COUNT;
  using Parts = unsigned[RANKS][WORDS];
  unsigned next_turn = 0;

 public:
  static DEVICE void begin() {
    FullBarriers::begin();
    cluster_barrier();
  }
  // The values of all blocks, in the order of their ranks, as one.
  DEVICE Value merged(const Value& value) {
    const unsigned turn = next_turn++;
    send(value, turn);
    while (!mbarrier_try_wait_cluster(FullBarriers::barrier(turn), turn / 2 % 2)) continue;
    Value all;
    for (int rank = 0; rank < RANKS; ++rank) {
      const Value part = received(turn, rank);
      all = rank == 0 ? part : merge(all, part);
    }
    return all;
  }
  // Others may still send to this block.
  static DEVICE void end() { cluster_barrier(); }

 private:
  // Sends the value of this block, without waiting for anything else that it has written.
  static DEVICE void send(const Value& value, unsigned turn) {
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                       FullBarriers::barrier(turn)),
                   "r"(unsigned(sizeof(Parts)))
                   : "memory");
    }
    const WordsOf<Value> own{value};
    if (threadIdx.x < RANKS) {
      const unsigned to = shared_address(parts(turn)[blockIdx.x % RANKS]);
      const unsigned place = address_in_cluster(to, threadIdx.x);
      const unsigned barrier = address_in_cluster(FullBarriers::barrier(turn), threadIdx.x);
#pragma unroll
      for (int w = 0; w < WORDS; ++w) {
        asm volatile(
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                place + 4 * w),
            "r"(own.word[w]), "r"(barrier)
            : "memory");
      }
    }
  }
  // The value that a rank has sent.
  static DEVICE Value received(unsigned turn, int rank) {
    WordsOf<Value> part{};
#pragma unroll
    for (int w = 0; w < WORDS; ++w) part.word[w] = parts(turn)[rank][w];
    return part.value;
  }
  static DEVICE Parts& parts(unsigned turn) {
    __shared__ Parts parts[2];
    return parts[turn % 2];
  }
};
#endif
