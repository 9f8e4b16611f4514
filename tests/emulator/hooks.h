// What a kernel asks of the runtime. Free of CUDA headers, so that the runtime is built without
// them.
#pragma once
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
namespace emu {

struct Index {
  unsigned x, y, z;
};
struct Ids {
  Index thread, block, block_size, grid_size;
};
extern Ids* ids;  // those of the running thread

// What the lanes of a warp do together. `argument` is the lane, distance or lane mask of a shuffle;
// a minimum or maximum takes 1 for signed values.
enum Op {
  SHUFFLE,
  SHUFFLE_UP,
  SHUFFLE_DOWN,
  SHUFFLE_XOR,
  BALLOT,
  ALL,
  ANY,
  SYNC_WARP,
  MATCH_ANY,
  REDUCE_ADD,
  REDUCE_MIN,
  REDUCE_MAX,
  REDUCE_AND,
  REDUCE_OR,
  REDUCE_XOR
};
struct Collective {
  Op op;
  unsigned mask;
  uint64_t value;
  int argument, width;
};
uint64_t collective(const Collective& wanted);

enum Barrier { SYNC, COUNT, AND, OR };
int block_barrier(Barrier kind, bool predicate, const char* file, int line);

enum Scope { BLOCK, DEVICE };
void fence(Scope scope);

// Comes before an atomic access; other threads may run in between.
void before_atomic(void* address, size_t bytes);

[[noreturn]] void trap();

}  // namespace emu
#pragma GCC visibility pop
