#include "workbench/base/host.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>

namespace greenfast::workbench {
namespace {

// The value of "key<separator>value" in a file of such lines, quotes removed.
std::string value_of(const char* path, std::string_view key, char separator) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    std::string_view rest = std::string_view(line).substr(key.size());
    const std::size_t at = rest.find_first_not_of(" \t");
    if (at == std::string_view::npos || rest[at] != separator) continue;
    rest.remove_prefix(at + 1);
    while (!rest.empty() && (rest.front() == ' ' || rest.front() == '"')) rest.remove_prefix(1);
    while (!rest.empty() && (rest.back() == ' ' || rest.back() == '"')) rest.remove_suffix(1);
    return std::string(rest);
  }
  return {};
}

}  // namespace

std::vector<int> threads_of(int process) {
  std::vector<int> ids;
  std::error_code error;
  const std::string tasks =
      process == 0 ? "/proc/self/task" : fmt::format("/proc/{}/task", process);
  for (std::filesystem::directory_iterator it(tasks, error), end; !error && it != end;
       it.increment(error))
    ids.push_back(std::atoi(it->path().filename().c_str()));
  return ids;
}

std::map<int, double> run_delays(int process) {
  char path[64];
  if (process == 0)
    std::snprintf(path, sizeof path, "/proc/self/task");
  else
    std::snprintf(path, sizeof path, "/proc/%d/task", process);
  DIR* tasks = opendir(path);
  std::map<int, double> out;
  if (tasks == nullptr) return out;
  while (const dirent* task = readdir(tasks)) {
    if (task->d_name[0] == '.') continue;
    char name[128];
    std::snprintf(name, sizeof name, "%s/%.20s/schedstat", path, task->d_name);
    const int file = open(name, O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;
    // "ran waited slices", in nanoseconds.
    char text[96] = {};
    const ssize_t size = read(file, text, sizeof text - 1);
    close(file);
    unsigned long long ran = 0, waited = 0;
    if (size > 0 && std::sscanf(text, "%llu %llu", &ran, &waited) == 2)
      out[std::atoi(task->d_name)] = 1e-9 * static_cast<double>(waited);
  }
  closedir(tasks);
  return out;
}

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

HostFacts host_facts() {
  HostFacts facts;
  facts.os = value_of("/etc/os-release", "PRETTY_NAME", '=');
  utsname system{};
  if (::uname(&system) == 0) facts.kernel = system.release;
  facts.cpu = value_of("/proc/cpuinfo", "model name", ':');
  if (facts.cpu.empty()) facts.cpu = system.machine;  // aarch64 has no model name there
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) facts.cpus = CPU_COUNT(&set);
  const std::int64_t page = ::sysconf(_SC_PAGESIZE);
  facts.memory_bytes = page * ::sysconf(_SC_PHYS_PAGES);
  const std::string available = value_of("/proc/meminfo", "MemAvailable", ':');
  facts.memory_available_bytes =
      available.empty() ? page * ::sysconf(_SC_AVPHYS_PAGES) : std::atoll(available.c_str()) * 1024;
  facts.governor = first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
  double load[1] = {0};
  if (::getloadavg(load, 1) == 1) facts.load = load[0];
  return facts;
}

}  // namespace greenfast::workbench
