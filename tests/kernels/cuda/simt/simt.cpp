#include "simt.hpp"

#include <setjmp.h>
#include <ucontext.h>

#include <array>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

// How fibers change places. swapcontext keeps the signals that are masked, in a call of the kernel: half of the tests' time.
// AddressSanitizer knows where stacks are by swapcontext alone.
#if defined(__SANITIZE_ADDRESS__)
#define SIMT_SWAPS_CONTEXTS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIMT_SWAPS_CONTEXTS 1
#endif
#endif

simt::Dim threadIdx, blockIdx, gridDim;

namespace simt {
namespace {

constexpr std::size_t kStack = 64 * 1024;

struct Copy {
  std::uint32_t shared;
  const void* global;
  int kept;  // of the 16 bytes; zeros behind them
  int group;
};
struct Barrier {
  int arrivals = 0, count = 0;
  long bytes = 0;
  unsigned completed = 0;  // phases
};
struct Warp {
  std::array<Given, 32> given[2];
  int arrived = 0;
  unsigned generation = 0;
};
struct Named {
  int arrived = 0;
  bool all = true, answer[2] = {};
  unsigned generation = 0;
};
struct Block {
  Dim index;
  unsigned rank = 0, threads = 0;
  std::vector<Warp> warps;
  std::map<std::uint32_t, Barrier> barriers;
  std::map<int, Named> named;
  std::vector<unsigned char> shared;  // while another block runs
  int arrived = 0, left = 0;
  unsigned generation = 0;
};
struct Fiber {
  ucontext_t context{};  // where it begins
  jmp_buf place{};       // where it goes on
  bool begun = false;
  std::unique_ptr<char[]> stack;
  Block* block = nullptr;
  unsigned thread = 0;
  bool done = false, in_cluster = false;
  std::vector<Copy> copies;
  int group = 0;
};

struct Machine {
  const Launch* launch = nullptr;
  const std::function<void()>* kernel = nullptr;
  ucontext_t home{};
  jmp_buf back{};
  std::vector<Fiber> fibers;
  std::vector<Block> blocks;
  Fiber* now = nullptr;
  Block* resident = nullptr;
  int cluster_arrived = 0;
  long progress = 0;
  std::uint32_t draw = 1;  // which copies arrive between
  std::string failure;
} machine;
std::vector<std::pair<const char*, std::size_t>> allowed;

void switch_to(Block& block) {
  if (machine.resident == &block) return;
  unsigned char* const shared = machine.launch->shared;
  const std::size_t bytes = machine.launch->shared_bytes;
  if (machine.resident != nullptr && bytes > 0)
    std::memcpy(machine.resident->shared.data(), shared, bytes);
  if (bytes > 0) std::memcpy(shared, block.shared.data(), bytes);
  machine.resident = &block;
}

#ifdef SIMT_SWAPS_CONTEXTS
void yield() {
  Fiber* const me = machine.now;
  swapcontext(&me->context, &machine.home);
}
void resume(Fiber& fiber) { swapcontext(&machine.home, &fiber.context); }
#else
// Functions of their own, without locals: what a register held when _setjmp was called it holds again.
[[gnu::noinline]] void yield() {
  if (_setjmp(machine.now->place) == 0) _longjmp(machine.back, 1);
}
[[gnu::noinline]] void resume(Fiber& fiber) {
  if (_setjmp(machine.back) != 0) return;
  if (fiber.begun) _longjmp(fiber.place, 1);
  fiber.begun = true;
  setcontext(&fiber.context);
}
#endif
template <class Until>
void wait_until(const Until& until) {
  while (!until()) yield();
  ++machine.progress;
}
[[noreturn]] void fail(const std::string& what) {
  machine.failure = what;
  for (;;) yield();
}

void entry() {
  (*machine.kernel)();
  machine.now->done = true;
  ++machine.now->block->left;
  if (!machine.now->in_cluster) ++machine.cluster_arrived;
  ++machine.progress;
  for (;;) yield();
}

void perform(const Copy& copy) {
  unsigned char* const to = at(copy.shared);
  std::memset(to, 0, 16);
  if (copy.kept == 0) return;
  const char* const from = static_cast<const char*>(copy.global);
  bool inside = false;
  for (const auto& [data, bytes] : allowed)
    inside |= from >= data && from + copy.kept <= data + bytes;
  if (!inside) fail("a copy reads outside the tensors");
  std::memcpy(to, from, static_cast<std::size_t>(copy.kept));
}

void arrive_some() {
  std::vector<Copy> later;
  for (const Copy& copy : machine.now->copies) {
    machine.draw = machine.draw * 1103515245u + 12345u;
    if ((machine.draw >> 16 & 1) != 0)
      perform(copy);
    else
      later.push_back(copy);
  }
  machine.now->copies = std::move(later);
}

void complete(Barrier& barrier) {
  if (barrier.arrivals != 0 || barrier.bytes != 0) return;
  ++barrier.completed;
  barrier.arrivals = barrier.count;
  ++machine.progress;
}

// On its own, because the compiler takes getcontext for one that returns twice.
[[gnu::noinline]] void start(Fiber& fiber) {
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStack;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, entry, 0);
}

}  // namespace

void run(const Launch& launch, const std::function<void()>& kernel) {
  gridDim = launch.grid;
  machine.launch = &launch;
  machine.kernel = &kernel;
  for (unsigned z = 0; z < launch.grid.z; ++z)
    for (unsigned y = 0; y < launch.grid.y; ++y)
      for (unsigned x = 0; x < launch.grid.x; x += launch.cluster) {
        machine.blocks.assign(launch.cluster, {});
        machine.resident = nullptr;
        machine.cluster_arrived = 0;
        const std::size_t count = std::size_t{launch.cluster} * launch.threads;
        if (machine.fibers.size() < count) machine.fibers.resize(count);
        for (unsigned rank = 0; rank < launch.cluster; ++rank) {
          Block& block = machine.blocks[rank];
          block.index = {x + rank, y, z};
          block.rank = rank;
          block.threads = launch.threads;
          block.warps.resize(launch.threads / 32);
          block.shared.assign(launch.shared_bytes, 0xff);  // NaN
          for (unsigned thread = 0; thread < launch.threads; ++thread) {
            Fiber& fiber = machine.fibers[rank * launch.threads + thread];
            if (!fiber.stack) fiber.stack = std::make_unique<char[]>(kStack);
            fiber.block = &block;
            fiber.thread = thread;
            fiber.done = fiber.begun = fiber.in_cluster = false;
            fiber.copies.clear();
            fiber.group = 0;
            start(fiber);
          }
        }
        for (bool running = true; running;) {
          running = false;
          const long before = machine.progress;
          long warp_before = before;
          for (std::size_t i = 0; i < count; ++i) {
            Fiber& fiber = machine.fibers[i];
            if (!fiber.done) {
              switch_to(*fiber.block);
              machine.now = &fiber;
              threadIdx = {fiber.thread, 0, 0};
              blockIdx = fiber.block->index;
              resume(fiber);
              if (!machine.failure.empty())
                throw std::runtime_error(std::exchange(machine.failure, {}));
              running |= !fiber.done;
            }
            if (launch.warp_by_warp && i % 32 == 31) {
              if (machine.progress != warp_before) i -= 32;  // the same warp goes on
              warp_before = machine.progress;
            }
          }
          if (running && machine.progress == before)
            throw std::runtime_error("threads wait for what nobody does");
        }
      }
}

void allow(const void* data, std::size_t bytes) {
  allowed.emplace_back(static_cast<const char*>(data), bytes);
}
void forget_allowed() { allowed.clear(); }

unsigned lane() { return machine.now->thread % 32; }
std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(static_cast<const unsigned char*>(pointer) -
                                    machine.launch->shared);
}
unsigned char* at(std::uint32_t shared) {
  if (shared >= machine.launch->shared_bytes) fail("an address outside shared memory");
  return machine.launch->shared + shared;
}

const Given* exchange(const Given& mine) {
  Warp& warp = machine.now->block->warps[machine.now->thread / 32];
  const unsigned generation = warp.generation;
  auto& given = warp.given[generation % 2];
  given[lane()] = mine;
  if (++warp.arrived == 32) {
    warp.arrived = 0;
    ++warp.generation;
    ++machine.progress;
  }
  wait_until([&] { return warp.generation != generation; });
  return given.data();
}

void sync_block() {
  if (machine.launch->copies == Copies::between) arrive_some();
  Block& block = *machine.now->block;
  const unsigned generation = block.generation;
  ++block.arrived;
  wait_until([&] {
    if (block.generation == generation &&
        block.arrived + block.left == static_cast<int>(block.threads)) {
      block.arrived = 0;
      ++block.generation;
    }
    return block.generation != generation;
  });
}

bool sync_named(int barrier, int threads, bool yes) {
  Named& named = machine.now->block->named[barrier];
  const unsigned generation = named.generation;
  named.all = named.all && yes;
  if (++named.arrived == threads) {
    named.answer[generation % 2] = named.all;
    named.arrived = 0;
    named.all = true;
    ++named.generation;
    ++machine.progress;
  }
  wait_until([&] { return named.generation != generation; });
  return named.answer[generation % 2];
}

void copy_16(std::uint32_t shared, const void* global, int kept) {
  if (shared % 16 != 0 || reinterpret_cast<std::uintptr_t>(global) % 16 != 0)
    fail("a copy of 16 bytes that is not aligned");
  const Copy copy{shared, global, kept, machine.now->group};
  if (machine.launch->copies == Copies::early)
    perform(copy);
  else
    machine.now->copies.push_back(copy);
}
void commit() { ++machine.now->group; }
void wait_copies(int pending) {
  Fiber& me = *machine.now;
  std::vector<Copy> later;
  for (const Copy& copy : me.copies) {
    if (copy.group < me.group - pending)
      perform(copy);
    else
      later.push_back(copy);
  }
  me.copies = std::move(later);
}

void barrier_init(std::uint32_t barrier, int arrivals) {
  machine.now->block->barriers[barrier] = {arrivals, arrivals, 0, 0};
}
void barrier_arrive_expect(std::uint32_t barrier, int bytes) {
  Barrier& b = machine.now->block->barriers.at(barrier);
  b.bytes += bytes;
  --b.arrivals;
  complete(b);
}
void barrier_wait(std::uint32_t barrier, std::uint32_t parity) {
  const Barrier& b = machine.now->block->barriers.at(barrier);
  wait_until([&] { return b.completed % 2 != parity; });
}
void cluster_arrive() {
  machine.now->in_cluster = true;
  ++machine.cluster_arrived;
}
void cluster_wait() {
  const auto all = static_cast<int>(machine.launch->cluster * machine.launch->threads);
  wait_until([&] { return machine.cluster_arrived == all; });
}
std::uint32_t in_block(std::uint32_t shared, std::uint32_t rank) {
  return shared | (rank + 1) << 24;
}
void send_16(std::uint32_t to, uint4 value, std::uint32_t barrier) {
  const std::uint32_t rank = (to >> 24) - 1, offset = to & 0xffffff;
  if (rank >= machine.blocks.size() || offset + 16 > machine.launch->shared_bytes)
    fail("sent outside the cluster");
  Block& block = machine.blocks[rank];
  unsigned char* const shared =
      machine.resident == &block ? machine.launch->shared : block.shared.data();
  std::memcpy(shared + offset, &value, 16);
  const auto found = block.barriers.find(barrier & 0xffffff);
  if (found == block.barriers.end()) fail("sent before the receiver's barrier exists");
  found->second.bytes -= 16;
  complete(found->second);
}

}  // namespace simt
