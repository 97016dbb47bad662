// What the environment and the machine say about threads and instruction sets.
#pragma once

#include <string>
#include <vector>

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
  std::string cgroup_of = {};     // the file that says which cgroups this process is in; likewise
  std::string nodes = {};         // where the system describes nodes of memory; likewise
};
Environment read_environment() noexcept;

/// Processors that the cgroup at `root` may use at once, rounded up; 0 where it sets no limit. `of`: as
/// Environment::cgroup_of; the least limit counts of the cgroups it names and of those they are in.
int quota_threads(const std::string& root, const std::string& of = {});
/// CPUs that this process may use: the mask of its first thread, or, where that has but one, of all its
/// threads together.
std::vector<int> allowed_cpus();
/// Threads from the variable, else the affinity mask, else the hardware, the latter two at most as
/// many as the cgroup's quota has processors.
Result<PoolConfig> pool_config(const Environment& environment);
/// The set the kernels use.
Result<Isa> chosen_isa(const Environment& environment);

}  // namespace greenfast::cpu
