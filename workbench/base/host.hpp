// The machine a record comes from, in facts that explain its timings and name no one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace greenfast::workbench {

struct HostFacts {
  std::string os;      // "Debian GNU/Linux 12 (bookworm)"
  std::string kernel;  // "6.1.0-18-amd64"
  std::string cpu;     // model name
  int cpus = 0;        // this process may run on
  std::int64_t memory_bytes = 0;
  std::int64_t memory_available_bytes = 0;
  std::string governor;  // of CPU 0; empty where the system does not tell
  double load = 0;       // of the last minute, before the run
};

HostFacts host_facts();

/// Ids of the threads that a process has now; 0 is this process. Empty where the system does not tell.
std::vector<int> threads_of(int process);

/// Seconds that each thread which a process has now was ready to run and had no CPU, by its id; 0 is
/// this process. Empty where the system does not tell.
std::map<int, double> run_delays(int process);

/// The first line of a file without its end; empty when it cannot be read.
std::string first_line(const char* path);

}  // namespace greenfast::workbench
