// The command's side of a CPU plugin's process: starts it, asks, and outlives whatever it does.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include <greenfast/types.hpp>

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
  /// long the round trip took on this process's clock.
  Status ask(channel::Request request, double timeout, double* seconds = nullptr);
  PluginEnd end() const { return end_; }
  /// Threads it has now.
  int threads() const;

 private:
  PluginProcess(channel::Control* control, pid_t child) : control_(control), child_(child) {}
  Status gone(int status);

  channel::Control* control_;
  pid_t child_;
  pid_t owner_ = 0;
  PluginEnd end_ = PluginEnd::none;
  Status why_;
};

}  // namespace greenfast::workbench
