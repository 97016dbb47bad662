#include "backends/cpu/config.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/text.hpp"

namespace greenfast::cpu {
namespace {

constexpr int kMaxThreads = 1024;

Status bad_variable(std::string_view name, std::string_view value, std::string_view possible) {
  return {StatusCode::invalid_argument, core::concat("environment variable ", name, "='", value,
                                                     "': ", possible, "; correct or unset it")};
}

// The mask of the process rather than of the caller, whose thread another runtime may have bound
// to one CPU.
std::vector<int> allowed_cpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(getpid(), sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &set)) cpus.push_back(cpu);
  }
  return cpus;
}

// The first line of a small file, empty where there is none.
std::string first_line(const std::string& path) {
  std::string line;
  if (std::FILE* const file = std::fopen(path.c_str(), "r")) {
    char text[128] = {};
    if (std::fgets(text, sizeof text, file) != nullptr) line = text;
    (void)std::fclose(file);
  }
  while (!line.empty() && (line.back() == '\n' || line.back() == ' ')) line.pop_back();
  return line;
}

// Whole processors' worth of a quota, at least one; 0 where the numbers say there is none.
int processors_of(std::string_view quota, std::string_view period) {
  std::int64_t wanted = 0, each = 0;
  const auto read = [](std::string_view text, std::int64_t& value) {
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc{} && stop == text.data() + text.size() && value > 0;
  };
  if (!read(quota, wanted) || !read(period, each)) return 0;
  return static_cast<int>(std::min<std::int64_t>(kMaxThreads, (wanted + each - 1) / each));
}

}  // namespace

int quota_threads(const std::string& root) {
  if (root.empty()) return 0;
  // Version 2 of cgroups: "150000 100000" or "max 100000".
  const std::string both = first_line(root + "/cpu.max");
  const auto space = both.find(' ');
  if (space != std::string::npos) {
    return processors_of(std::string_view(both).substr(0, space),
                         std::string_view(both).substr(space + 1));
  }
  return processors_of(first_line(root + "/cpu/cpu.cfs_quota_us"),
                       first_line(root + "/cpu/cpu.cfs_period_us"));
}

Environment read_environment() noexcept {
  return {.threads = std::getenv("GREENFAST_THREADS"),
          .pin = std::getenv("GREENFAST_PIN"),
          .isa = std::getenv("GREENFAST_ISA"),
          .cgroup = "/sys/fs/cgroup"};
}

Result<PoolConfig> pool_config(const Environment& environment) {
  PoolConfig config;
  config.cpus = allowed_cpus();
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
  const int quota = environment.threads != nullptr ? 0 : quota_threads(environment.cgroup);
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
