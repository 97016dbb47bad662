// The CPU as a device: one, with its facts, its threads, and memory that is everybody's.
#include "core/backend.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <optional>
#include <string>

#include "backends/cpu/config.hpp"
#include "backends/cpu/quantize.hpp"
#include "backends/cpu/smooth.hpp"
#include "core/serving.hpp"
#include "core/text.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace greenfast::cpu {
namespace {

std::string processor_name() {
#if defined(__x86_64__)
  // The brand string: three leaves of 16 characters.
  constexpr unsigned kFirst = 0x80000002u, kLast = 0x80000004u;
  std::array<char, 49> text{};
  for (unsigned leaf = kFirst; leaf <= kLast; ++leaf) {
    std::array<unsigned, 4> r{};
    if (__get_cpuid(leaf, &r[0], &r[1], &r[2], &r[3]) == 0) return "x86-64";
    std::memcpy(text.data() + 16 * (leaf - kFirst), r.data(), 16);
  }
  std::string name = text.data();
  while (!name.empty() && name.back() == ' ') name.pop_back();
  return name.substr(std::min(name.size(), name.find_first_not_of(' ')));
#elif defined(__aarch64__)
  return "aarch64";
#else
  return "cpu";
#endif
}

std::int64_t l2_bytes() noexcept {
#if defined(_SC_LEVEL2_CACHE_SIZE)
  const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (bytes > 0) return bytes;
#endif
  return 1 << 20;  // what most server cores have had since 2019
}

// Everything that the backend keeps, made by the first call and never destroyed, so that calls
// from other libraries' destructors stay legal.
struct Machine {
  std::optional<DeviceFacts> facts;
  Status error;
  ThreadPool pool;

  static Machine make() {
    const Environment environment = read_environment();
    const Result<PoolConfig> config = pool_config(environment);
    const Result<Isa> isa = chosen_isa(environment);
    if (!config) return {std::nullopt, config.status(), {}};
    if (!isa) return {std::nullopt, isa.status(), {}};
    DeviceFacts facts;
    facts.kind = DeviceKind::cpu;
    facts.name = processor_name();
    facts.multiprocessors = config->threads;
    facts.l2_bytes = l2_bytes();
    facts.isa = name_of(*isa);
    return {facts, {}, *config};
  }

 private:
  Machine(std::optional<DeviceFacts> machine_facts, Status status, PoolConfig config)
      : facts(std::move(machine_facts)), error(std::move(status)), pool(std::move(config)) {}
};

Machine* forked = nullptr;  // what the fork handler looks at

Machine& machine() {
  alignas(Machine) static unsigned char storage[sizeof(Machine)];
  static Machine& made = *[] {
    forked = ::new (storage) Machine(Machine::make());
    (void)pthread_atfork(nullptr, nullptr, [] { forked->pool.forget_workers(); });
    return forked;
  }();
  // Workers must end before this library's code can be unloaded.
  static const struct Closer {
    ~Closer() { forked->pool.close(); }
  } closer;
  return made;
}

int count(std::string* why) noexcept {
  if (why != nullptr) why->clear();
  return 1;
}

const DeviceFacts* facts(int index, Status* why) noexcept {
  if (index != 0) {
    if (why != nullptr) {
      *why = {StatusCode::no_device,
              core::concat("cpu device ", index, " does not exist: there is one, device 0")};
    }
    return nullptr;
  }
  const Machine& here = machine();
  if (here.facts) return &*here.facts;
  if (why != nullptr) *why = here.error;
  return nullptr;
}

Status fill_empty(const Problem& problem, const Tensors& tensors,
                  const core::Context& /*context*/) {
  // Zero is all zero bits in every output type.
  const std::size_t element = size_of(problem.out_dtype);
  const auto row_bytes = static_cast<std::size_t>(problem.head_dim) * element;
  const auto& stride = problem.o.stride;
  auto* const o = static_cast<std::byte*>(tensors.o);
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    for (std::int64_t h = 0; h < problem.heads_q; ++h) {
      for (std::int64_t i = 0; i < problem.seq_q; ++i) {
        const std::int64_t at = b * stride[0] + h * stride[1] + i * stride[2];
        std::memset(o + at * static_cast<std::int64_t>(element), 0, row_bytes);
      }
    }
  }
  if (problem.lse) {
    std::fill_n(tensors.lse, problem.batch * problem.heads_q * problem.seq_q,
                -std::numeric_limits<float>::infinity());
  }
  return {};
}

core::Executor* executor() noexcept { return &machine().pool; }

}  // namespace

constinit const core::Backend backend{.count = count,
                                      .facts = facts,
                                      .enter = nullptr,
                                      .fill_empty = fill_empty,
                                      .quantize = quantize,
                                      .column_means = column_means,
                                      .shift_lse = shift_lse,
                                      .merge = kernels::cpu_merge,
                                      .append = kernels::cpu_append,
                                      .executor = executor};

}  // namespace greenfast::cpu
