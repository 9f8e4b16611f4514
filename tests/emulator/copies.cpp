// Asynchronous copies, and the barriers in shared memory at which bulk copies arrive.
// A copy is kept until somebody waits for it, and takes place then: neither its source nor its
// destination is touched before, which is as late as a device may do it. That it may also do it
// earlier is for checkers.cpp: from the beginning of a copy to the wait for it, nobody else may
// write its source or access its destination.
#include <string.h>

#include "runtime.h"

namespace emu {

static char* shared_place(uint32_t address) { return places.shared.begin + int32_t(address); }

uint32_t shared_address(const void* place) {
  return uint32_t(static_cast<const char*>(place) - places.shared.begin);
}

// The copy that the running thread begins.
static Copy begun(char* to, const void* from, size_t bytes, bool is_bulk, uint32_t where) {
  char* const source = const_cast<char*>(static_cast<const char*>(from));
  const Copy copy = {to, source, bytes, is_bulk, where, now()};
  const size_t unit = is_bulk ? 16 : bytes;
  if ((uintptr_t(to) | uintptr_t(from) | bytes) % unit != 0) {
    report("misaligned copy of %zu bytes at @%x@: %s", bytes, where, name_of(*running).c_str());
    abandon();
  }
  begin_accesses(copy);
  return copy;
}

static void carry_out(const Copy& copy) { memcpy(copy.to, copy.from, copy.bytes); }

void begin_load(uint32_t to, const void* from, size_t bytes) {
  const uint32_t where = code_offset(__builtin_return_address(0));
  running->loads.begin(begun(shared_place(to), from, bytes, false, where));
}

void end_group_of_loads() { running->loads.end_group(); }

void wait_for_loads(uint32_t groups_left) {
  running->loads.wait(groups_left, [](const Copy& copy) {
    carry_out(copy);
    end_reads(copy, now());
    end_writes(copy, now());
  });
  maybe_yield(2);
}

// The barrier at an address, once it has begun.
static Arrivals& arrivals_at(uint32_t barrier, uint32_t where) {
  const auto found = running->block->arrivals.find(barrier);
  if (found == running->block->arrivals.end()) {
    report("no barrier has begun there, at @%x@: %s", where, name_of(*running).c_str());
    abandon();
  }
  return found->second;
}

// Goes on to the next phase if all threads have arrived, and all bytes: those that are on their
// way arrive now.
static void finish_phase(Arrivals& arrivals) {
  if (arrivals.threads_left > 0) return;
  for (const Copy& load : arrivals.loads) {
    carry_out(load);
    // Ordered like what its thread did when it began: all who wait here acquire that.
    end_reads(load, load.when);
    end_writes(load, load.when);
    arrivals.bytes_left -= int64_t(load.bytes);
  }
  arrivals.loads.clear();
  if (arrivals.bytes_left != 0) return;
  arrivals.threads_left = arrivals.threads;
  ++arrivals.phase;
}

void begin_arrivals(uint32_t barrier, uint32_t threads) {
  const uint32_t where = code_offset(__builtin_return_address(0));
  const Access beginning = begin_barrier(shared_place(barrier), where);
  running->block->arrivals[barrier] = {beginning, threads, threads, 0, 0, {}};
}

void expect_bytes(uint32_t barrier, size_t bytes) {
  const uint32_t where = code_offset(__builtin_return_address(0));
  Arrivals& arrivals = arrivals_at(barrier, where);
  change_barrier(shared_place(barrier), arrivals.beginning, where);
  arrivals.bytes_left += int64_t(bytes);
}

void arrive(uint32_t barrier) {
  const uint32_t where = code_offset(__builtin_return_address(0));
  Arrivals& arrivals = arrivals_at(barrier, where);
  fence(BLOCK);
  change_barrier(shared_place(barrier), arrivals.beginning, where);
  if (arrivals.threads_left == 0) {
    report("one more thread than the barrier waits for arrives at @%x@: %s", where,
           name_of(*running).c_str());
    abandon();
  }
  --arrivals.threads_left;
}

bool have_arrived(uint32_t barrier, uint32_t parity) {
  const uint32_t where = code_offset(__builtin_return_address(0));
  Arrivals& arrivals = arrivals_at(barrier, where);
  test_barrier(shared_place(barrier), arrivals.beginning, where);
  if (arrivals.phase % 2 == parity) finish_phase(arrivals);
  const bool done = arrivals.phase % 2 != parity;
  done ? fence(BLOCK) : yield();
  return done;
}

void begin_bulk_load(uint32_t to, const void* from, size_t bytes, uint32_t barrier) {
  const uint32_t where = code_offset(__builtin_return_address(0));
  const Copy copy = begun(shared_place(to), from, bytes, true, where);
  arrivals_at(barrier, where).loads.push_back(copy);
}

void begin_bulk_store(void* to, uint32_t from, size_t bytes) {
  const uint32_t where = code_offset(__builtin_return_address(0));
  running->bulk_stores.begin(begun(static_cast<char*>(to), shared_place(from), bytes, true, where));
}

void end_group_of_bulk_stores() { running->bulk_stores.end_group(); }

// What was written may be read by nobody before the kernel is over.
void wait_for_bulk_stores() {
  running->bulk_stores.wait(0, [](const Copy& copy) {
    carry_out(copy);
    end_reads(copy, now());
  });
  maybe_yield(2);
}

void fence_for_bulk_copies() { ++running->bulk_fences; }

void change_priority(const void* line, size_t bytes) {
  if (uintptr_t(line) % bytes == 0) return;
  report("a line of the cache does not begin there, at @%x@: %s",
         code_offset(__builtin_return_address(0)), name_of(*running).c_str());
  abandon();
}

static void report_not_waited_for(const Copy& copy) {
  report("the copy at @%x@ by block %u thread %u is never waited for", copy.where, copy.when.block,
         copy.when.thread);
}

void check_all_waited_for() {
  for (const CopyGroups* groups : {&running->loads, &running->bulk_stores}) {
    if (const Copy* const copy = groups->first()) report_not_waited_for(*copy);
  }
}

void check_all_arrived(const Block& block) {
  for (const auto& [address, arrivals] : block.arrivals) {
    if (!arrivals.loads.empty()) report_not_waited_for(arrivals.loads.front());
  }
}

}  // namespace emu
