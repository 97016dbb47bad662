// The command's side of a CPU plugin's process: starts it, asks, and outlives whatever it does.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <greenfast/types.hpp>

#include "workbench/subjects/subject.hpp"

namespace greenfast::workbench {

namespace channel {
struct Control;
enum class Request : std::uint32_t;
}  // namespace channel

/// How a plugin's process failed us, as against a plugin that answered with an error.
enum class PluginEnd { none, crashed, hung };

class PluginProcess {
 public:
  /// Starts one for a shared object. internal when the system gives no process.
  static Result<std::unique_ptr<PluginProcess>> start(const std::string& path,
                                                      std::uint64_t memory_bytes);
  /// Kills it.
  ~PluginProcess();
  PluginProcess(const PluginProcess&) = delete;
  PluginProcess& operator=(const PluginProcess&) = delete;

  channel::Control& control() { return *control_; }
  /// Sends what control() holds and waits for the answer. A failure that end() explains is the
  /// process's; any other Status is the plugin's own answer. `seconds`, when given, receives how
  /// long the round trip took on this process's clock; what was printed meanwhile is then shown by
  /// pause().
  Status ask(channel::Request request, double timeout, double* seconds = nullptr);
  PluginEnd end() const { return end_; }
  /// What end() means, in words.
  const Status& why() const { return why_; }
  /// Stops it with all its threads until the next ask, which then counts the way back as its own.
  /// One that cannot be stopped has hung.
  void pause();
  /// CPU time of all its threads so far; nothing when it is gone.
  std::optional<CpuUse> cpu_use() const;
  /// The same when the last ask that was timed had its answer.
  const std::optional<CpuUse>& cpu_at_answer() const { return cpu_at_answer_; }
  /// Memory that it alone has, in bytes, private or in files without a name, or in a part of the
  /// arena that holds no tensor; nothing when it is gone.
  std::optional<std::int64_t> private_bytes() const;
  /// Threads it has now.
  int threads() const;
  /// Processes of its group besides itself.
  int other_processes() const;

 private:
  PluginProcess(channel::Control* control, pid_t child) : control_(control), child_(child) {}
  Status gone(int status);
  /// What it has printed until now, cleaned, to standard error; with `all` its last line as well,
  /// also where that has no end.
  void show_output(bool all = false);
  std::int64_t shared_bytes() const;

  channel::Control* control_;
  pid_t child_;
  pid_t owner_ = 0;
  int output_ = -1;          // of a pipe that it prints into
  std::string unfinished_;   // line
  std::vector<ino_t> ours_;  // files of the command that it has mapped
  bool paused_ = false;
  std::optional<CpuUse> cpu_at_answer_;
  PluginEnd end_ = PluginEnd::none;
  Status why_;
};

/// The library's worker threads, which come with its first call: a plugin's process that is started
/// after them is kept from moving them.
void start_library_workers();

/// Where this process's threads may run, and how important they are.
using ThreadStates = std::map<pid_t, std::pair<std::vector<int>, int>>;
ThreadStates own_threads();
/// Whether a thread that was there before has another priority, or the first one other CPUs.
bool own_threads_changed(const ThreadStates& before);

}  // namespace greenfast::workbench
