// What the parts of the runtime share: scheduler.cpp runs the threads, checkers.cpp watches what
// they read and write, copies.cpp has the copies that nobody waits for yet.
#pragma once
#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "hooks.h"

namespace emu {

struct Region {  // memory that the kernel may use
  char* begin;
  size_t bytes;
  uint64_t writable;
};

struct Config {
  uint64_t seed;  // 0: threads and blocks in order
  uint64_t check;
  uint64_t concurrent;  // blocks that run at once
  uint64_t most_steps;  // after which a launch counts as endless
  Index grid, block;
  uint64_t dynamic_shared;
  const uint32_t* chosen;  // the blocks to run, or null for all
  uint64_t chosen_count;
  const Region* regions;  // ascending, apart from each other
  uint64_t region_count;
};

// When a thread did something: how many barriers of its block, synchronisations of its warp and
// fences of its own came before, and how many of these for bulk copies.
struct Moment {
  uint32_t block = 0;
  uint16_t thread = 0, bulk_fences = 0;
  uint32_t barriers = 0, warp_syncs = 0, fences = 0;
};

// Numbers of fences whose effect reaches a thread, ascending.
using Fences = std::vector<uint32_t>;

// A fence orders what its thread did before it, and what was known to the thread.
struct Fence {
  Moment when;
  Scope scope = BLOCK;
  Fences known;
};

struct Access {
  Moment when;
  uint32_t where = 0;  // in the code of the kernel; 0: nobody came yet
  bool atomic = false;
  bool pending = false;  // of a copy that nobody has waited for: ordered before nothing
  bool is_bulk = false;
};

struct Cell {
  Access write, reads[2];
  bool initialised = false;
};

// The cells that stand for memory. Every page of it has cells as large as the smallest access to
// the page so far, so that they are exact to the byte and few.
class Shadow {
 public:
  // Calls visit(cell) for each cell of the memory.
  template <class Visit>
  void visit(uintptr_t address, size_t bytes, Visit visit) {
    while (bytes > 0) {
      const size_t here = std::min(bytes, PAGE - address % PAGE);
      Page& page = refined(address, here);
      const size_t size = size_t(1) << page.shift;
      for (size_t at = 0; at < here; at += size) {
        visit(page.cells[(address + at) % PAGE >> page.shift]);
      }
      address += here;
      bytes -= here;
    }
  }

 private:
  static constexpr size_t PAGE = 1024;
  struct Page {
    unsigned shift = 4;
    std::vector<Cell> cells = std::vector<Cell>(PAGE >> 4);
  };
  Page& refined(uintptr_t address, size_t bytes);

  std::unordered_map<uintptr_t, Page> pages_;
};

// What passes through an address that is accessed atomically: the fences released to it.
using Channels = std::unordered_map<uintptr_t, Fences>;

// An asynchronous copy: where in the code and when it began.
struct Copy {
  char *to, *from;
  size_t bytes;
  bool is_bulk;
  uint32_t where;
  Moment when;
};

// Copies that have begun, in groups. The last group grows until it is ended.
class CopyGroups {
 public:
  void begin(const Copy& copy) { copies_.push_back({copy, ended_}); }
  void end_group() { ++ended_; }
  // Calls finish(copy) in order, until no more than so many of the ended groups are left.
  template <class Finish>
  void wait(uint32_t groups_left, Finish finish) {
    auto next = copies_.begin();
    for (; next != copies_.end() && next->group + groups_left < ended_; ++next) finish(next->copy);
    copies_.erase(copies_.begin(), next);
  }
  // The first copy that is left, or null.
  const Copy* first() const { return copies_.empty() ? nullptr : &copies_.front().copy; }

 private:
  struct InGroup {
    Copy copy;
    uint32_t group;
  };
  std::vector<InGroup> copies_;
  uint32_t ended_ = 0;
};

// A barrier in shared memory at which bytes arrive: what its phase still waits for.
struct Arrivals {
  Access beginning;
  uint32_t threads = 0, threads_left = 0, phase = 0;
  int64_t bytes_left = 0;
  std::vector<Copy> loads;
};

enum class State : uint8_t { READY, AT_COLLECTIVE, AT_BARRIER, DONE };

struct Block;

struct Fiber {
  Ids ids = {};
  Block* block = nullptr;
  unsigned thread = 0;
  void* stack_pointer = nullptr;
  State state = State::READY;
  Collective wanted = {};  // what it waits for,
  uint32_t where = 0;      // where in the code,
  uint64_t result = 0;     // and what comes of it; also of a barrier

  uint32_t fences = 0;
  Fence last_fence;
  uint32_t last_fence_number = 0;  // 0: its effect has reached nobody else
  Fences known;
  Fences read;  // by its atomics; known from its next fence on

  CopyGroups loads, bulk_stores;
  uint16_t bulk_fences = 0;
};

struct Warp {
  unsigned live = 0;  // lanes that have not returned
  uint32_t syncs = 0;
  Fences known;
};

struct Block {
  uint32_t id = 0;
  size_t slot = 0;  // of the stacks
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<unsigned> ready;  // threads that can run, from ready_begin on
  size_t ready_begin = 0;
  std::vector<char> shared_image;  // its shared memory while other blocks run

  // Threads that have not returned, that are at the barrier, that came with a true predicate.
  unsigned live = 0, arrived = 0, count = 0;
  Barrier barrier = SYNC;
  const char* file = "";
  int line = 0;

  uint32_t barriers = 0;
  Fences known;
  Shadow shadow;
  Channels channels;
  std::unordered_map<uint32_t, Arrivals> arrivals;  // by address

  Warp& warp_of(const Fiber& fiber) { return warps[fiber.thread / 32]; }
};

extern Fiber* running;
extern Config config;

// Memory that belongs to the running kernel.
struct Range {
  char *begin = nullptr, *end = nullptr;
  size_t bytes() const { return size_t(end - begin); }
  bool contains(const char* address, size_t bytes) const {
    return address >= begin && address + bytes <= end;
  }
};
struct Places {
  Range code;     // and constants
  Range shared;   // static and dynamic
  Range dynamic;  // as much as any launch can have
  Range stacks;
};
extern Places places;

// Adds a message, once.
void report(const char* format, ...) __attribute__((format(printf, 1, 2)));
// "block (0,0,0) thread (1,0,0)"
std::string name_of(const Fiber& fiber);
// Ends the launch: never returns to the running thread.
[[noreturn]] void abandon();
// Counts a basic block or a switch to another thread: whether there may be more.
bool count_step();
// Lets other threads run.
void yield();
// The same with a probability of 1 in `chance`; never where the seed is 0.
void maybe_yield(unsigned chance);
// Where in the kernel's code it was called from, for messages.
uint32_t code_offset(const void* return_address);

void forget_accesses();
// The moment that it is for the running thread.
Moment now();
// The accesses of an asynchronous copy are pending, until those of one side or the other end.
void begin_accesses(const Copy& copy);
void end_reads(const Copy& copy, const Moment& when);
void end_writes(const Copy& copy, const Moment& when);
// Accesses of a barrier in shared memory: of a thread that begins it, and of those that change or
// test it after its beginning.
Access begin_barrier(char* barrier, uint32_t where);
void change_barrier(char* barrier, const Access& beginning, uint32_t where);
void test_barrier(char* barrier, const Access& beginning, uint32_t where);

// Reports copies of the running thread that it has not waited for.
void check_all_waited_for();
// The same of bulk loads in a block that is done.
void check_all_arrived(const Block& block);
// Adds to what is known.
void learn(Fences& known, const Fences& more);

}  // namespace emu
