// Watches loads, stores, fences and atomics: bounds, write permission, alignment, initialisation,
// and races. It implements what g++ -fsanitize=thread,undefined calls; no sanitizer is linked.
//
// Two accesses to the same memory, one of them a write, must be ordered: by the same thread, by a
// barrier of their block, by a synchronisation of their warp, or by fences and atomics, as in
// NVIDIA's memory model: the first thread fences and then writes a flag atomically; the other reads
// the flag atomically and then fences. `volatile` accesses count as atomic ones. Those of an
// asynchronous copy are ordered ahead of others once somebody has waited for it.
#include <stdlib.h>
#include <string.h>

#include <iterator>
#include <set>

#include "runtime.h"

namespace emu {

static std::vector<Fence> fences;  // by number; 0 is none
static Channels global_channels;
static Shadow global_shadow;
static std::set<std::pair<uint32_t, uint32_t>> reported;  // places in the code
static uint32_t atomics_in_a_row;

// So many atomic accesses and nothing else: somebody waits for what never comes.
static constexpr uint32_t MAX_ATOMICS_IN_A_ROW = 1 << 20;

void forget_accesses() {
  fences.assign(1, Fence());
  global_channels = Channels();
  global_shadow = Shadow();
  reported.clear();
  atomics_in_a_row = 0;
}

Shadow::Page& Shadow::refined(uintptr_t address, size_t bytes) {
  Page& page = pages_[address / PAGE];
  while ((address | bytes) & ((size_t(1) << page.shift) - 1)) {
    std::vector<Cell> finer;
    for (const Cell& cell : page.cells) finer.insert(finer.end(), 2, cell);
    page.cells.swap(finer);
    --page.shift;
  }
  return page;
}

void learn(Fences& known, const Fences& more) {
  if (more.empty()) return;
  Fences both;
  std::set_union(known.begin(), known.end(), more.begin(), more.end(), std::back_inserter(both));
  known.swap(both);
}

Moment now() {
  const Block& block = *running->block;
  const uint32_t warp_syncs = block.warps[running->thread / 32].syncs;
  return {block.id,
          uint16_t(running->thread),
          running->bulk_fences,
          block.barriers,
          warp_syncs,
          running->fences};
}

static bool same_warp(const Moment& a, const Moment& b) { return a.thread / 32 == b.thread / 32; }

// Whether `early` comes before `late` in the same block, without regard to fences.
static bool before_in_block(const Moment& early, const Moment& late) {
  return early.barriers < late.barriers ||
         (same_warp(early, late) && early.warp_syncs < late.warp_syncs);
}

static bool before_fence(const Access& access, const Fence& fence) {
  const Moment& early = access.when;
  if (early.block != fence.when.block) return false;
  if (fence.scope == BLOCK && running->block->id != early.block) return false;
  if (early.thread == fence.when.thread) return early.fences < fence.when.fences;
  return before_in_block(early, fence.when);
}

static bool before_any(const Access& access, const Fences& known) {
  return std::any_of(known.begin(), known.end(),
                     [&](uint32_t number) { return before_fence(access, fences[number]); });
}

static bool ordered(const Access& access) {
  if (access.where == 0) return true;
  if (access.pending) return false;
  const Moment present = now();
  if (access.when.block == present.block) {
    if (access.when.thread == present.thread) return true;
    if (before_in_block(access.when, present)) return true;
  }
  Block& block = *running->block;
  return before_any(access, running->known) || before_any(access, block.known) ||
         before_any(access, block.warp_of(*running).known);
}

void fence(Scope scope) {
  Fiber& fiber = *running;
  ++fiber.fences;
  if (config.check) {
    learn(fiber.known, fiber.read);
    fiber.read.clear();
    fiber.last_fence = {now(), scope, fiber.known};
    fiber.last_fence_number = 0;
    learn(fiber.last_fence.known, fiber.block->known);
    learn(fiber.last_fence.known, fiber.block->warp_of(fiber).known);
  }
  maybe_yield(2);
}

// What an atomic write of the running thread passes on: its last fence, and what that knew.
static void release(Fences& channel) {
  Fiber& fiber = *running;
  if (fiber.fences == 0) return;
  if (fiber.last_fence_number == 0) {
    fiber.last_fence_number = uint32_t(fences.size());
    fences.push_back(fiber.last_fence);
  }
  learn(channel, {fiber.last_fence_number});
  learn(channel, fiber.last_fence.known);
}

struct Kind {
  bool reads, writes, atomic;
  bool copies = false, is_bulk = false;
  const char* name() const {
    if (copies) return writes ? "the write of a copy" : "the read of a copy";
    return atomic ? "an atomic access" : writes ? "a write" : "a read";
  }
};
static constexpr Kind READ = {true, false, false}, WRITE = {false, true, false},
                      VOLATILE_READ = {true, false, true}, VOLATILE_WRITE = {false, true, true},
                      ATOMIC = {true, true, true};

// Reports a race once for each pair of places in the code.
static void check_order(const Access& earlier, Kind kind, uint32_t where, const char* space) {
  if ((kind.atomic && earlier.atomic) || ordered(earlier)) return;
  if (!reported.insert({earlier.where, where}).second) return;
  report(
      "race on %s memory: %s at @%x@ by block %u thread %u is not %s before %s at "
      "@%x@ by block %u thread %u",
      space, earlier.pending ? "a copy" : "an access", earlier.where, earlier.when.block,
      earlier.when.thread, earlier.pending ? "waited for" : "ordered", kind.name(), where,
      running->block->id, running->thread);
}

static void record(Cell& cell, Kind kind, uint32_t where, const char* space) {
  const Access access = {now(), where, kind.atomic, kind.copies, kind.is_bulk};
  check_order(cell.write, kind, where, space);
  if (kind.writes) {
    for (const Access& read : cell.reads) check_order(read, kind, where, space);
    cell = {access, {}, true};
    return;
  }
  Access& last = cell.reads[0];
  if (last.pending) {
    cell.reads[1] = access;
    return;
  }
  const bool same = last.when.block == access.when.block && last.when.thread == access.when.thread;
  if (!same) cell.reads[1] = last;
  last = access;
}

// A bulk copy sees what a thread has written to shared memory if that has fenced since.
static void check_bulk_copy_sees(const Access& write, uint32_t where) {
  if (write.where == 0 || write.is_bulk) return;
  const Fiber& writer = running->block->fibers[write.when.thread];
  if (writer.bulk_fences != write.when.bulk_fences) return;
  if (!reported.insert({write.where, where}).second) return;
  report(
      "no fence for bulk copies between a write at @%x@ by block %u thread %u and the copy at "
      "@%x@",
      write.where, write.when.block, write.when.thread, where);
}

static void access_shared(char* address, size_t bytes, Kind kind, uint32_t where) {
  const char* end = places.dynamic.begin + config.dynamic_shared;
  if (address + bytes > end && address < places.dynamic.end && address >= places.dynamic.begin) {
    report("access beyond the %zu bytes of dynamic shared memory at @%x@: %s",
           size_t(config.dynamic_shared), where, name_of(*running).c_str());
    abandon();
  }
  running->block->shadow.visit(uintptr_t(address), bytes, [&](Cell& cell) {
    if (kind.reads && !cell.initialised && reported.insert({0, where}).second) {
      report("read of uninitialised shared memory at @%x@: %s", where, name_of(*running).c_str());
    }
    if (kind.is_bulk) check_bulk_copy_sees(cell.write, where);
    record(cell, kind, where, "shared");
  });
}

static void access_global(const Region& region, char* address, size_t bytes, Kind kind,
                          uint32_t where) {
  if (region.writable) {
    global_shadow.visit(uintptr_t(address), bytes,
                        [&](Cell& cell) { record(cell, kind, where, "global"); });
  } else if (kind.writes) {
    report("write to read-only memory at @%x@: %s", where, name_of(*running).c_str());
    abandon();
  }
}

// The region that holds the address, or the last one below it, or the first.
static const Region* region_near(const char* address) {
  const Region* const end = config.regions + config.region_count;
  const Region* above =
      std::upper_bound(config.regions, end, address,
                       [](const char* at, const Region& region) { return at < region.begin; });
  return above == config.regions ? above : above - 1;
}

[[noreturn]] static void out_of_bounds(const char* address, size_t bytes, Kind kind,
                                       uint32_t where) {
  const char* verb = kind.writes ? "write" : "read";
  if (config.region_count == 0) {
    report("out-of-bounds %s of %zu bytes at @%x@: %s", verb, bytes, where,
           name_of(*running).c_str());
  } else {
    const Region& region = *region_near(address);
    report("out-of-bounds %s of %zu bytes at @%x@, %td bytes from the start of %zu: %s", verb,
           bytes, where, address - region.begin, region.bytes, name_of(*running).c_str());
  }
  abandon();
}

// The region that holds all of some memory, or null.
static const Region* region_of(const char* address, size_t bytes) {
  const Region* region = config.region_count > 0 ? region_near(address) : nullptr;
  if (region == nullptr) return nullptr;
  const Range range = {region->begin, region->begin + region->bytes};
  return range.contains(address, bytes) ? region : nullptr;
}

static void access(void* pointer, size_t bytes, Kind kind, uint32_t where) {
  if (running == nullptr || !config.check) return;
  char* const address = static_cast<char*>(pointer);
  if (places.stacks.contains(address, bytes)) return;
  if (!kind.atomic) atomics_in_a_row = 0;
  if (places.shared.contains(address, bytes)) {
    access_shared(address, bytes, kind, where);
    maybe_yield(8);
    return;
  }
  if (const Region* region = region_of(address, bytes)) {
    access_global(*region, address, bytes, kind, where);
    maybe_yield(16);
    return;
  }
  if (!places.code.contains(address, bytes)) out_of_bounds(address, bytes, kind, where);
}

// An atomic or volatile access also carries what was released before it.
static void strong_access(void* pointer, size_t bytes, Kind kind, uint32_t where) {
  maybe_yield(2);
  if (running == nullptr || !config.check) return;
  if (++atomics_in_a_row % 64 == 0) yield();
  if (atomics_in_a_row > MAX_ATOMICS_IN_A_ROW) {
    report("no end in sight of the loop at @%x@: %s", where, name_of(*running).c_str());
    abandon();
  }
  access(pointer, bytes, kind, where);
  const bool shared = places.shared.contains(static_cast<char*>(pointer), bytes);
  Fences& channel = (shared ? running->block->channels : global_channels)[uintptr_t(pointer)];
  if (kind.reads) learn(running->read, channel);
  if (kind.writes) release(channel);
}

void expect_device_memory(const void* pointer) {
  if (running == nullptr || !config.check) return;
  const char* const address = static_cast<const char*>(pointer);
  const bool shared = places.shared.contains(address, 1);
  if (!shared && !places.stacks.contains(address, 1)) return;
  report("an instruction for device memory finds %s memory, at @%x@: %s",
         shared ? "shared" : "local", code_offset(__builtin_return_address(0)),
         name_of(*running).c_str());
  abandon();
}

void begin_accesses(const Copy& copy) {
  access(copy.from, copy.bytes, {true, false, false, true, copy.is_bulk}, copy.where);
  access(copy.to, copy.bytes, {false, true, false, true, copy.is_bulk}, copy.where);
}

// Calls visit(cell) for the cells that some accessible memory has.
template <class Visit>
static void visit_cells(const char* address, size_t bytes, Visit visit) {
  if (!config.check) return;
  if (places.shared.contains(address, bytes)) {
    running->block->shadow.visit(uintptr_t(address), bytes, visit);
  } else if (const Region* region = region_of(address, bytes); region && region->writable) {
    global_shadow.visit(uintptr_t(address), bytes, visit);
  }
}

// Ends an access that belongs to the copy, if it is one.
static void end_access(Access& access, const Copy& copy, const Moment& when) {
  const bool own = access.where == copy.where && access.when.block == copy.when.block &&
                   access.when.thread == copy.when.thread;
  if (!access.pending || !own) return;
  access.pending = false;
  access.when = when;
}

void end_reads(const Copy& copy, const Moment& when) {
  visit_cells(copy.from, copy.bytes, [&](Cell& cell) {
    for (Access& read : cell.reads) end_access(read, copy, when);
  });
}

void end_writes(const Copy& copy, const Moment& when) {
  visit_cells(copy.to, copy.bytes, [&](Cell& cell) { end_access(cell.write, copy, when); });
}

static constexpr size_t BARRIER_BYTES = 8;
Access begin_barrier(char* barrier, uint32_t where) {
  access(barrier, BARRIER_BYTES, WRITE, where);
  return {now(), where};
}
void change_barrier(char* barrier, const Access& beginning, uint32_t where) {
  if (config.check) check_order(beginning, ATOMIC, where, "shared");
  strong_access(barrier, BARRIER_BYTES, ATOMIC, where);
}
void test_barrier(char* barrier, const Access& beginning, uint32_t where) {
  if (config.check) check_order(beginning, VOLATILE_READ, where, "shared");
  strong_access(barrier, BARRIER_BYTES, VOLATILE_READ, where);
}

void before_atomic(void* address, size_t bytes) {
  const uint32_t where = code_offset(__builtin_return_address(0));
  if (running != nullptr && uintptr_t(address) % bytes != 0) {
    report("misaligned atomic at @%x@: %s", where, name_of(*running).c_str());
    abandon();
  }
  strong_access(address, bytes, ATOMIC, where);
}

}  // namespace emu

#define EMU_HOOK extern "C" __attribute__((visibility("default")))
#define EMU_WHERE emu::code_offset(__builtin_return_address(0))
#define EMU_ACCESS(bytes)                                                                      \
  EMU_HOOK void __tsan_read##bytes(void* p) { emu::access(p, bytes, emu::READ, EMU_WHERE); }   \
  EMU_HOOK void __tsan_write##bytes(void* p) { emu::access(p, bytes, emu::WRITE, EMU_WHERE); } \
  EMU_HOOK void __tsan_unaligned_read##bytes(void* p) {                                        \
    emu::access(p, bytes, emu::READ, EMU_WHERE);                                               \
  }                                                                                            \
  EMU_HOOK void __tsan_unaligned_write##bytes(void* p) {                                       \
    emu::access(p, bytes, emu::WRITE, EMU_WHERE);                                              \
  }                                                                                            \
  EMU_HOOK void __tsan_volatile_read##bytes(void* p) {                                         \
    emu::strong_access(p, bytes, emu::VOLATILE_READ, EMU_WHERE);                               \
  }                                                                                            \
  EMU_HOOK void __tsan_volatile_write##bytes(void* p) {                                        \
    emu::strong_access(p, bytes, emu::VOLATILE_WRITE, EMU_WHERE);                              \
  }
EMU_ACCESS(1)
EMU_ACCESS(2)
EMU_ACCESS(4)
EMU_ACCESS(8)
EMU_ACCESS(16)
EMU_HOOK void __tsan_read_range(void* p, size_t bytes) {
  emu::access(p, bytes, emu::READ, EMU_WHERE);
}
EMU_HOOK void __tsan_write_range(void* p, size_t bytes) {
  emu::access(p, bytes, emu::WRITE, EMU_WHERE);
}
EMU_HOOK void __tsan_init() {}

// At every basic block of a kernel: a loop without end need not touch memory.
EMU_HOOK void __sanitizer_cov_trace_pc() {
  using namespace emu;
  if (running == nullptr || count_step()) return;
  report("no end in sight after %zu steps, the last at @%x@: %s", size_t(config.most_steps),
         EMU_WHERE, name_of(*running).c_str());
  abandon();
}

namespace {
struct SourceLocation {
  const char* file;
  uint32_t line, column;
};
}  // namespace

[[noreturn]] static void undefined(const SourceLocation* at, const char* what) {
  if (emu::running == nullptr) abort();
  const char* slash = strrchr(at->file, '/');
  emu::report("%s at %s:%u: %s", what, slash != nullptr ? slash + 1 : at->file, at->line,
              emu::name_of(*emu::running).c_str());
  emu::abandon();
}

EMU_HOOK void __ubsan_handle_type_mismatch_v1_abort(const SourceLocation* at, void* pointer) {
  undefined(at, pointer == nullptr ? "null pointer" : "misaligned address");
}
#define EMU_UNDEFINED(name, what)                                                       \
  EMU_HOOK void __ubsan_handle_##name##_abort(const SourceLocation* at, void*, void*) { \
    undefined(at, what);                                                                \
  }
EMU_UNDEFINED(add_overflow, "signed integer overflow")
EMU_UNDEFINED(sub_overflow, "signed integer overflow")
EMU_UNDEFINED(mul_overflow, "signed integer overflow")
EMU_UNDEFINED(negate_overflow, "signed integer overflow")
EMU_UNDEFINED(divrem_overflow, "integer division by zero")
EMU_UNDEFINED(shift_out_of_bounds, "shift by too many bits")
EMU_UNDEFINED(out_of_bounds, "array index out of bounds")
