// Runs a grid on one thread of the host: every CUDA thread is a fiber, and a seed decides which
// runs next. Warp collectives and block barriers are points where fibers wait for each other.
#include <link.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "runtime.h"

namespace emu {

using Kernel = void (*)(void**);

Ids* ids;
Fiber* running;
Config config;
Places places;

static Kernel kernel;
static void** arguments;
static std::vector<std::string> messages;
static bool abandoned;
static void* scheduler_stack_pointer;
static uint64_t random_state;
static uint64_t steps;

static constexpr size_t STACK_BYTES = 256 << 10;
static constexpr size_t MAX_MESSAGES = 20;
static constexpr unsigned MAX_THREADS = 1024;
static constexpr size_t MAX_SHARED_BYTES = 64 << 10;
// With more than 48 KiB, ptxas refuses a kernel; the linker adds padding here.
static constexpr size_t MAX_DECLARED_BYTES = (48 << 10) + 128;

// Marsaglia's xorshift.
static uint64_t random_below(uint64_t end) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return random_state % end;
}

void report(const char* format, ...) {
  char text[512];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  if (messages.size() == MAX_MESSAGES) return;
  if (std::find(messages.begin(), messages.end(), text) == messages.end()) {
    messages.push_back(text);
  }
}

std::string name_of(const Fiber& fiber) {
  const Index b = fiber.ids.block, t = fiber.ids.thread;
  char text[96];
  snprintf(text, sizeof text, "block (%u,%u,%u) thread (%u,%u,%u)", b.x, b.y, b.z, t.x, t.y, t.z);
  return text;
}

uint32_t code_offset(const void* return_address) {
  return uint32_t(static_cast<const char*>(return_address) - places.code.begin - 1);
}

// Saves the stack pointer to *from and goes on where `to` was saved.
extern "C" void emu_switch(void** from, void* to);
asm(R"(
  .text
  .globl emu_switch
  .hidden emu_switch
  .type emu_switch, @function
emu_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
  .size emu_switch, . - emu_switch
)");

// A stack from which emu_switch returns into `entry`.
static void* new_stack(char* top, void (*entry)()) {
  void** stack = reinterpret_cast<void**>(top);
  *--stack = nullptr;  // keeps the alignment that a call would leave
  *--stack = reinterpret_cast<void*>(entry);
  for (int saved = 0; saved < 6; ++saved) *--stack = nullptr;
  return stack;
}

static void wait() { emu_switch(&running->stack_pointer, scheduler_stack_pointer); }

static void make_ready(Block& block, unsigned thread) {
  block.fibers[thread].state = State::READY;
  block.ready.push_back(thread);
}

void yield() {
  make_ready(*running->block, running->thread);
  wait();
}

void maybe_yield(unsigned chance) {
  if (running != nullptr && config.seed != 0 && random_below(chance) == 0) yield();
}

// Counted, not timed: the verdict is the same on every machine.
bool count_step() { return ++steps <= config.most_steps; }

void abandon() {
  abandoned = true;
  if (running == nullptr) abort();
  wait();
  abort();
}

void trap() {
  report("__trap(): %s", name_of(*running).c_str());
  abandon();
}

static const char* const OP_NAMES[] = {
    "__shfl_sync",       "__shfl_up_sync",    "__shfl_down_sync",  "__shfl_xor_sync",
    "__ballot_sync",     "__all_sync",        "__any_sync",        "__syncwarp",
    "__match_any_sync",  "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync",
    "__reduce_and_sync", "__reduce_or_sync",  "__reduce_xor_sync"};

// The lanes of a warp that have come to a collective, in order.
struct Lanes {
  Fiber* first;  // lane 0
  unsigned mask;
  template <class Visit>
  void each(Visit visit) const {
    for (int lane = 0; lane < 32; ++lane) {
      if (mask >> lane & 1u) visit(first[lane], lane);
    }
  }
  bool has(int lane) const { return lane >= 0 && lane < 32 && (mask >> lane & 1u); }
};

// The reduction of `so_far` and the value of one more lane.
static uint64_t combined(const Collective& lane, uint64_t so_far) {
  const uint64_t value = lane.value;
  const bool is_signed = lane.argument != 0;
  const bool less = is_signed ? int64_t(value) < int64_t(so_far) : value < so_far;
  switch (lane.op) {
    case ALL:
    case REDUCE_AND:
      return so_far & value;
    case ANY:
    case REDUCE_OR:
      return so_far | value;
    case REDUCE_ADD:
      return uint32_t(so_far + value);
    case REDUCE_XOR:
      return so_far ^ value;
    case REDUCE_MIN:
      return less ? value : so_far;
    case REDUCE_MAX:
      return less ? so_far : value;
    default:
      return 0;
  }
}

static uint64_t reduced(const Lanes& lanes) {
  uint64_t result = 0;
  bool first = true;
  lanes.each([&](Fiber& fiber, int) {
    result = first ? fiber.wanted.value : combined(fiber.wanted, result);
    first = false;
  });
  return result;
}

// The lanes that bring `value`: for a ballot, true.
static uint64_t matching(const Lanes& lanes, uint64_t value) {
  uint64_t result = 0;
  lanes.each([&](Fiber& other, int lane) {
    if (other.wanted.value == value) result |= uint64_t(1) << lane;
  });
  return result;
}

// The lane whose value a shuffle brings to `lane`.
static int shuffle_source(const Collective& wanted, int lane) {
  const int begin = lane & ~(wanted.width - 1), end = begin + wanted.width;
  int source = lane;
  switch (wanted.op) {
    case SHUFFLE:
      return begin + (wanted.argument & (wanted.width - 1));
    case SHUFFLE_UP:
      source = lane - wanted.argument;
      return source < begin ? lane : source;
    case SHUFFLE_DOWN:
      source = lane + wanted.argument;
      return source >= end ? lane : source;
    default:
      source = lane ^ wanted.argument;
      return source >= end ? lane : source;
  }
}

static uint64_t collective_result(const Lanes& lanes, const Collective& wanted, int lane,
                                  uint64_t reduction) {
  if (wanted.op == BALLOT) return matching(lanes, 1);
  if (wanted.op == MATCH_ANY) return matching(lanes, wanted.value);
  if (wanted.op > SHUFFLE_XOR) return reduction;
  const int source = shuffle_source(wanted, lane);
  return lanes.has(source) ? lanes.first[source].wanted.value : ~uint64_t(0);  // a NaN
}

// "__syncwarp(mask 0xffffffff) at kernel.cu:5 by block (0,0,0) thread (1,0,0)"
static std::string wait_of(const Fiber& fiber) {
  char text[192];
  snprintf(text, sizeof text, "%s(mask 0x%08x) at @%x@ by %s", OP_NAMES[fiber.wanted.op],
           fiber.wanted.mask, fiber.where, name_of(fiber).c_str());
  return text;
}

static void check_agreement(const Lanes& lanes) {
  const Fiber& last = *running;
  lanes.each([&](Fiber& fiber, int) {
    if (fiber.wanted.op == last.wanted.op && fiber.wanted.mask == last.wanted.mask) return;
    report("%s meets %s", wait_of(last).c_str(), wait_of(fiber).c_str());
    abandon();
  });
}

// Lets the lanes go on once all of the mask have come; the running thread is the last to come.
static void finish_collective(Block& block) {
  const unsigned warp_number = running->thread / 32;
  Warp& warp = block.warps[warp_number];
  const Lanes lanes = {&block.fibers[warp_number * 32], running->wanted.mask};
  bool all_came = true;
  lanes.each([&](Fiber& fiber, int) { all_came &= fiber.state == State::AT_COLLECTIVE; });
  if (!all_came) return;
  check_agreement(lanes);
  const bool synchronises = running->wanted.op == SYNC_WARP;
  const uint64_t reduction = reduced(lanes);
  lanes.each([&](Fiber& fiber, int lane) {
    fiber.result = collective_result(lanes, fiber.wanted, lane, reduction);
    if (synchronises) learn(warp.known, fiber.known);
  });
  if (synchronises) ++warp.syncs;
  lanes.each([&](Fiber&, int lane) { make_ready(block, warp_number * 32 + lane); });
}

uint64_t collective(const Collective& wanted) {
  Fiber& fiber = *running;
  Block& block = *fiber.block;
  fiber.wanted = wanted;
  fiber.where = code_offset(__builtin_return_address(0));
  fiber.state = State::AT_COLLECTIVE;
  if (!(wanted.mask >> fiber.thread % 32 & 1u)) {
    report("the calling lane is not in the mask: %s", wait_of(fiber).c_str());
    abandon();
  }
  if (wanted.mask & ~block.warp_of(fiber).live) {
    report("the mask names lanes that have returned or do not exist: %s", wait_of(fiber).c_str());
    abandon();
  }
  finish_collective(block);
  wait();
  return fiber.result;
}

static int barrier_result(const Block& block) {
  if (block.barrier == COUNT) return int(block.count);
  return block.barrier == AND ? block.count == block.arrived : block.count > 0;
}

// Goes on once every thread of the block has come.
static void finish_barrier(Block& block) {
  if (block.arrived == 0 || block.arrived != block.live) return;
  if (block.live != block.fibers.size()) {
    report("__syncthreads() at %s:%d after threads of block %u have returned", block.file,
           block.line, block.id);
    abandon();
  }
  const int result = barrier_result(block);
  ++block.barriers;
  block.arrived = block.count = 0;
  for (Fiber& fiber : block.fibers) {
    learn(block.known, fiber.known);
    fiber.known.clear();
    fiber.result = uint64_t(result);
    make_ready(block, fiber.thread);
  }
}

int block_barrier(Barrier kind, bool predicate, const char* file, int line) {
  Fiber& fiber = *running;
  Block& block = *fiber.block;
  if (block.arrived == 0) {
    block.barrier = kind;
    block.file = file;
    block.line = line;
  } else if (block.line != line || block.barrier != kind) {
    report(
        "divergent barrier: __syncthreads() at %s:%d while others of the block wait at %s:%d: %s",
        file, line, block.file, block.line, name_of(fiber).c_str());
    abandon();
  }
  ++block.arrived;
  block.count += predicate;
  fiber.state = State::AT_BARRIER;
  finish_barrier(block);
  wait();
  return int(fiber.result);
}

// Those that wait for a lane which has returned wait in vain.
static void check_mask_of_waiting(Block& block, const Fiber& returned) {
  const unsigned lane = returned.thread % 32;
  const Lanes others = {&block.fibers[returned.thread - lane], block.warp_of(returned).live};
  others.each([&](Fiber& fiber, int) {
    if (fiber.state != State::AT_COLLECTIVE || !(fiber.wanted.mask >> lane & 1u)) return;
    report("the mask names a lane that has returned: %s", wait_of(fiber).c_str());
    abandon();
  });
}

static void run_thread() {
  kernel(arguments);
  check_all_waited_for();
  Fiber& fiber = *running;
  Block& block = *fiber.block;
  fiber.state = State::DONE;
  --block.live;
  block.warp_of(fiber).live &= ~(1u << fiber.thread % 32);
  check_mask_of_waiting(block, fiber);
  finish_barrier(block);
  wait();
  abort();
}

static Index split(uint32_t number, const Index& size) {
  return {number % size.x, number / size.x % size.y, number / (size.x * size.y)};
}

static unsigned count(const Index& size) { return size.x * size.y * size.z; }

static void start_block(Block& block, uint32_t id, size_t slot) {
  const unsigned threads = count(config.block);
  block = Block();
  block.id = id;
  block.slot = slot;
  block.live = threads;
  block.fibers.resize(threads);
  block.warps.resize((threads + 31) / 32);
  block.shared_image.assign(places.shared.bytes(), '\xff');
  for (unsigned thread = 0; thread < threads; ++thread) {
    Fiber& fiber = block.fibers[thread];
    fiber.ids = {split(thread, config.block), split(id, config.grid), config.block, config.grid};
    fiber.block = &block;
    fiber.thread = thread;
    char* const top = places.stacks.begin + (slot * threads + thread + 1) * STACK_BYTES;
    fiber.stack_pointer = new_stack(top, run_thread);
    block.warp_of(fiber).live |= 1u << thread % 32;
    make_ready(block, thread);
  }
}

// The next thread of a block to run: the first in line, or any of them.
static unsigned take_ready(Block& block) {
  std::vector<unsigned>& ready = block.ready;
  if (config.seed == 0) {
    const unsigned thread = ready[block.ready_begin++];
    if (block.ready_begin == ready.size()) {
      ready.clear();
      block.ready_begin = 0;
    }
    return thread;
  }
  std::swap(ready[random_below(ready.size())], ready.back());
  const unsigned thread = ready.back();
  ready.pop_back();
  return thread;
}

static void report_deadlock(const Block& block) {
  unsigned at_barrier = 0;
  std::string others;
  for (const Fiber& fiber : block.fibers) {
    if (fiber.state == State::AT_BARRIER) ++at_barrier;
    if (fiber.state == State::AT_COLLECTIVE) others = "; " + wait_of(fiber);
  }
  report("deadlock in block %u: %u threads wait at __syncthreads() at %s:%d%s", block.id,
         at_barrier, block.file, block.line, others.c_str());
}

class Grid {
 public:
  // `todo`: the blocks to run, at least one.
  explicit Grid(std::vector<uint32_t> todo) : todo_(std::move(todo)) {
    if (config.seed != 0) {
      for (size_t i = todo_.size(); i > 1; --i) std::swap(todo_[i - 1], todo_[random_below(i)]);
    }
    const size_t concurrent = std::max<size_t>(config.concurrent, 1);
    const size_t resident = std::min(concurrent, todo_.size());
    map_stacks(resident * count(config.block) * STACK_BYTES);
    blocks_.resize(resident);
    for (size_t slot = 0; slot < resident; ++slot) {
      start_block(blocks_[slot], todo_[next_++], slot);
      active_.push_back(&blocks_[slot]);
    }
  }

  void run() {
    while (!active_.empty() && !abandoned) {
      if (config.seed != 0 && random_below(32) == 0) turn_ = random_below(active_.size());
      if (turn_ >= active_.size()) turn_ = 0;
      Block& block = *active_[turn_];
      if (!count_step()) {
        report("no end in sight after %zu steps", size_t(config.most_steps));
        return;
      }
      if (!block.ready.empty()) {
        step(block);
      } else if (block.live > 0) {
        report_deadlock(block);
        return;
      } else {
        replace(block);
      }
    }
  }

 private:
  // The stacks stay for the next launch: their pages are costly to get.
  static void map_stacks(size_t bytes) {
    static Range mapped;
    if (bytes > mapped.bytes()) {
      if (mapped.begin != nullptr) munmap(mapped.begin, mapped.bytes());
      void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED) abort();  // the machine is out of addresses
      mapped = {static_cast<char*>(memory), static_cast<char*>(memory) + bytes};
    }
    places.stacks = mapped;
  }

  void step(Block& block) {
    bring_in(block);
    running = &block.fibers[take_ready(block)];
    ids = &running->ids;
    emu_switch(&scheduler_stack_pointer, running->stack_pointer);
    // Where threads run in order, one that waits in a loop lets other blocks come.
    if (config.seed == 0 && running->state == State::READY) ++turn_;
    running = nullptr;
  }

  // Makes the shared memory of a block the one that code sees.
  void bring_in(Block& block) {
    if (inside_ == &block) return;
    const size_t bytes = places.shared.bytes();
    if (inside_ != nullptr) memcpy(inside_->shared_image.data(), places.shared.begin, bytes);
    memcpy(places.shared.begin, block.shared_image.data(), bytes);
    inside_ = &block;
  }

  void replace(Block& finished) {
    check_all_arrived(finished);
    if (inside_ == &finished) inside_ = nullptr;
    if (next_ < todo_.size()) {
      start_block(finished, todo_[next_++], finished.slot);
    } else {
      active_.erase(active_.begin() + turn_);
    }
  }

  std::vector<uint32_t> todo_;
  size_t next_ = 0;
  std::vector<Block> blocks_;
  std::vector<Block*> active_;
  size_t turn_ = 0;
  Block* inside_ = nullptr;
};

// Where the library that holds the kernel lies, and its thread-local image.
static int find_library(dl_phdr_info* info, size_t, void*) {
  char* const base = reinterpret_cast<char*>(info->dlpi_addr);
  Range code = {base, base}, shared;
  for (int k = 0; k < info->dlpi_phnum; ++k) {
    const auto& header = info->dlpi_phdr[k];
    if (header.p_type == PT_LOAD) {
      code.end = std::max(code.end, base + header.p_vaddr + header.p_memsz);
    } else if (header.p_type == PT_TLS) {
      shared.begin = static_cast<char*>(info->dlpi_tls_data);
      shared.end = shared.begin + header.p_memsz;
    }
  }
  if (!code.contains(reinterpret_cast<char*>(kernel), 1)) return 0;
  places.code = code;
  places.shared = shared;
  return 1;
}

static bool check_launch() {
  const unsigned threads = count(config.block);
  if (threads == 0 || threads > MAX_THREADS) {
    report("a block of %u threads", threads);
  } else if (count(config.grid) == 0) {
    report("a grid without blocks");
  }
  const size_t dynamic_room = places.dynamic.bytes();
  const size_t fixed = places.shared.bytes() - dynamic_room;
  if (fixed > MAX_DECLARED_BYTES || fixed + config.dynamic_shared > MAX_SHARED_BYTES ||
      config.dynamic_shared > dynamic_room) {
    report("%zu bytes of shared memory, %zu of them dynamic", fixed + config.dynamic_shared,
           size_t(config.dynamic_shared));
  }
  for (uint64_t k = 0; k < config.chosen_count; ++k) {
    if (config.chosen[k] >= count(config.grid))
      report("the grid has no block %u", config.chosen[k]);
  }
  return messages.empty();
}

static std::vector<uint32_t> blocks_to_run() {
  if (config.chosen != nullptr) return {config.chosen, config.chosen + config.chosen_count};
  std::vector<uint32_t> all(count(config.grid));
  for (size_t k = 0; k < all.size(); ++k) all[k] = uint32_t(k);
  return all;
}

}  // namespace emu

#define EMU_API extern "C" __attribute__((visibility("default")))

// Runs a grid and returns the number of messages. `touch_shared` and `dynamic_shared` are what the
// kernel's library exports under these names; the second may be null.
EMU_API int emu_launch(emu::Kernel kernel, void** arguments, const emu::Config* config,
                       void (*touch_shared)(), char* (*dynamic_shared)(), size_t dynamic_room) {
  using namespace emu;
  touch_shared();
  emu::kernel = kernel;
  emu::arguments = arguments;
  emu::config = *config;
  places = Places();
  dl_iterate_phdr(find_library, nullptr);
  if (dynamic_shared != nullptr) {
    places.dynamic = {dynamic_shared(), dynamic_shared() + dynamic_room};
  }
  messages.clear();
  abandoned = false;
  steps = 0;
  random_state = config->seed * 0x9E3779B97F4A7C15u + 1;
  for (int warm_up = 0; warm_up < 8; ++warm_up) random_below(2);
  forget_accesses();
  if (check_launch()) {
    const std::vector<uint32_t> blocks = blocks_to_run();
    if (!blocks.empty()) Grid(blocks).run();
  }
  forget_accesses();  // frees the memory
  return int(messages.size());
}

EMU_API const char* emu_message(int number) { return emu::messages[number].c_str(); }
