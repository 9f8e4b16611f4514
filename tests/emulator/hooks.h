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

// Comes before an access that can be one of device memory alone.
void expect_device_memory(const void* address);

[[noreturn]] void trap();

// Asynchronous copies. They are carried out as late as a device may do it: by the wait for them.
// Addresses in shared memory are those of PTX, of 32 bits.
uint32_t shared_address(const void* place);

// By the thread itself to shared memory, in groups.
void begin_load(uint32_t to, const void* from, size_t bytes);
void end_group_of_loads();
void wait_for_loads(uint32_t groups_left);  // until no more than so many are on their way

// Bulk copies: loads arrive at a barrier, and stores are in groups.
void begin_bulk_load(uint32_t to, const void* from, size_t bytes, uint32_t barrier);
void begin_bulk_store(void* to, uint32_t from, size_t bytes);
void end_group_of_bulk_stores();
void wait_for_bulk_stores();   // until their source has been read
void fence_for_bulk_copies();  // lets them see what this thread has written

// Barriers in shared memory, at which so many threads arrive, and the bytes that are expected.
void begin_arrivals(uint32_t barrier, uint32_t threads);
void expect_bytes(uint32_t barrier, size_t bytes);
void arrive(uint32_t barrier);
bool have_arrived(uint32_t barrier, uint32_t parity);  // all of the last phase of that parity

// Other hints to the cache than those of loads and stores, for the line at an address.
void change_priority(const void* line, size_t bytes);

}  // namespace emu
#pragma GCC visibility pop
