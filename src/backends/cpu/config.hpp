// What the environment and the machine say about threads and instruction sets.
#pragma once

#include <string>

#include <greenfast/types.hpp>

#include "backends/cpu/isa.hpp"
#include "backends/cpu/pool.hpp"

namespace greenfast::cpu {

/// The values of the variables that matter here; null where one is not set.
struct Environment {
  const char* threads = nullptr;  // GREENFAST_THREADS: 1 to 1024
  const char* pin = nullptr;      // GREENFAST_PIN: 0 or 1
  const char* isa = nullptr;      // GREENFAST_ISA: a set no better than the machine's
  std::string cgroup = {};        // where a container finds its limits; empty: nowhere
};
Environment read_environment() noexcept;

/// Processors that the cgroup at `root` may use at once, rounded up; 0 where it sets no limit.
int quota_threads(const std::string& root);
/// Threads from the variable, else the affinity mask, else the hardware, the latter two at most as
/// many as the cgroup's quota has processors.
Result<PoolConfig> pool_config(const Environment& environment);
/// The set the kernels use.
Result<Isa> chosen_isa(const Environment& environment);

}  // namespace greenfast::cpu
