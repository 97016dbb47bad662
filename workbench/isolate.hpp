// Runs a piece of work in a child process, so that a kernel that crashes or hangs is a verdict and
// not the end of the gate.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include <greenfast/types.hpp>

namespace greenfast::workbench {

/// A line that survives the child: what it was doing last.
class Activity {
 public:
  virtual ~Activity() = default;
  virtual void set(std::string_view what) noexcept = 0;
};

struct ChildEnd {
  enum class How { finished, crashed, timed_out };
  How how = How::finished;
  std::string detail;    ///< "killed by SIGSEGV", "exit code 3"; empty when it finished
  std::string activity;  ///< the last line it set
};

/// When a child is taken to hang.
struct ChildLimits {
  double seconds = 1e9;  ///< in all
  /// Seconds that its activity may stay this line; 0 for as long as it likes. Empty: the same.
  std::function<double(const std::string& activity)> stall_seconds{};
};

/// Forks, runs work in the child and waits. The caller must be single-threaded and must not have
/// touched a GPU: a CUDA context does not survive a fork. watch, when given, is called about ten
/// times a second with the child's activity. Fails when the system gives no process.
Result<ChildEnd> run_in_child(const std::function<void(Activity&)>& work, double timeout_seconds,
                              const std::function<void(const std::string&)>& watch = {});
Result<ChildEnd> run_in_child(const std::function<void(Activity&)>& work, const ChildLimits& limits,
                              const std::function<void(const std::string&)>& watch = {});

}  // namespace greenfast::workbench
