#include "backends/cpu/config.hpp"

#include <dirent.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include <greenfast/arithmetic.hpp>

#include "backends/cpu/small_file.hpp"
#include "core/text.hpp"

namespace greenfast::cpu {
namespace {

constexpr int kMaxThreads = 1024;

Status bad_variable(std::string_view name, std::string_view value, std::string_view possible) {
  return {StatusCode::invalid_argument, core::concat("environment variable ", name, "='", value,
                                                     "': ", possible, "; correct or unset it")};
}

void add_mask(pid_t thread, std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(thread, sizeof set, &set) != 0) return;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) cpus.push_back(cpu);
  }
  std::sort(cpus.begin(), cpus.end());
  cpus.erase(std::unique(cpus.begin(), cpus.end()), cpus.end());
}

// Whole processors' worth of a quota, at least one; 0 where the numbers say there is none.
int processors_of(std::string_view quota, std::string_view period) {
  std::int64_t wanted = 0, each = 0;
  const auto read = [](std::string_view text, std::int64_t& value) {
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc{} && stop == text.data() + text.size() && value > 0;
  };
  if (!read(quota, wanted) || !read(period, each)) return 0;
  return static_cast<int>(std::min<std::int64_t>(kMaxThreads, ceil_div(wanted, each)));
}

}  // namespace

// The mask of the process rather than of the caller, whose thread another runtime may have bound
// to one CPU. OpenMP binds the first thread as well (OMP_PROC_BIND) and its others elsewhere: what
// they may use together is then what the process may.
std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  add_mask(getpid(), cpus);
  if (cpus.size() != 1) return cpus;
  // Not by std::filesystem, whose code asks for a newer glibc than wheels may (tools/check_wheel).
  DIR* const threads = opendir("/proc/self/task");
  if (threads == nullptr) return cpus;
  while (const dirent* const entry = readdir(threads)) {
    const std::string_view name = entry->d_name;
    pid_t thread = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), thread).ec == std::errc{})
      add_mask(thread, cpus);
  }
  closedir(threads);
  return cpus;
}

int quota_threads(const std::string& root, const std::string& of) {
  if (root.empty()) return 0;
  int least = 0;
  const auto limit = [&](int threads) {
    if (threads > 0) least = least == 0 ? threads : std::min(least, threads);
  };
  const auto look = [&](const std::string& folder) {
    // Version 2 of cgroups: "150000 100000" or "max 100000".
    const std::string both = first_line(root + folder + "/cpu.max");
    const auto space = both.find(' ');
    if (space != std::string::npos) {
      limit(processors_of(std::string_view(both).substr(0, space),
                          std::string_view(both).substr(space + 1)));
    }
    limit(processors_of(first_line(root + "/cpu" + folder + "/cpu.cfs_quota_us"),
                        first_line(root + "/cpu" + folder + "/cpu.cfs_period_us")));
  };
  look({});
  // "0::/system.slice/unit.service", or "4:cpu,cpuacct:/docker/0123" in version 1. A container with a
  // namespace of its own is at "/".
  for (const std::string& line : lines_of(of)) {
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string folder = line.substr(second + 1);
    while (folder.size() > 1 && folder.front() == '/') {
      look(folder);
      folder.resize(folder.rfind('/'));
    }
  }
  return least;
}

Environment read_environment() noexcept {
  return {.threads = std::getenv("GREENFAST_THREADS"),
          .pin = std::getenv("GREENFAST_PIN"),
          .isa = std::getenv("GREENFAST_ISA"),
          .cgroup = "/sys/fs/cgroup",
          .cgroup_of = "/proc/self/cgroup",
          .nodes = "/sys/devices/system/node"};
}

Result<PoolConfig> pool_config(const Environment& environment) {
  PoolConfig config;
  config.cpus = allowed_cpus();
  config.nodes = numa_nodes(environment.nodes, config.cpus);
  if (environment.threads != nullptr) {
    const std::string_view text = environment.threads;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, config.threads);
    if (error != std::errc{} || stop != end || config.threads < 1 || config.threads > kMaxThreads) {
      return bad_variable("GREENFAST_THREADS", text,
                          core::concat("a number of threads is 1 to ", kMaxThreads));
    }
  } else if (!config.cpus.empty()) {
    config.threads = static_cast<int>(config.cpus.size());
  } else {
    config.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  }
  // More threads than a container may use at once would be stopped in the middle of their tasks,
  // and all the others would wait for them.
  const int quota =
      environment.threads != nullptr ? 0 : quota_threads(environment.cgroup, environment.cgroup_of);
  if (quota > 0) config.threads = std::min(config.threads, quota);
  if (environment.pin != nullptr) {
    const std::string_view text = environment.pin;
    if (text != "0" && text != "1") return bad_variable("GREENFAST_PIN", text, "it is 0 or 1");
    config.pin = text == "1";
  }
  return config;
}

Result<Isa> chosen_isa(const Environment& environment) {
  if (environment.isa == nullptr) return preferred_isa();
  const Isa best = detect_isa();
  const std::string_view text = environment.isa;
  const std::optional<Isa> wanted = parse_isa(text);
  if (wanted && *wanted <= best) return *wanted;
  std::string possible = "this machine has";
  for (int i = 0; i <= static_cast<int>(best); ++i) {
    core::append(possible, i == 0 ? " " : ", ");
    core::append(possible, name_of(static_cast<Isa>(i)));
  }
  if (wanted == Isa::avx512amx) core::append(possible, core::concat("; no AMX: ", why_no_amx()));
  return bad_variable("GREENFAST_ISA", text, possible);
}

}  // namespace greenfast::cpu
