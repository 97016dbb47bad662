// Runs a piece of work in a child process, so that a kernel that crashes or hangs is a verdict and
// not the end of the gate.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>

#include <greenfast/types.hpp>

namespace greenfast::workbench {

/// Who is at work, as whoever is blamed for a child's end.
enum class Actor : std::uint32_t {
  workbench,  // inputs, oracle, files: nobody's fault that is judged here
  baseline,
  candidate,
  both,  // timed in the same blocks: either may have done it
};

/// What survives the child: what it was doing last, and for whom.
class Activity {
 public:
  virtual ~Activity() = default;
  /// subject: the id of the only one that is at work; empty for none or several.
  virtual void set(std::string_view what, Actor actor, std::string_view subject) noexcept = 0;
  void set(std::string_view what, Actor actor = Actor::workbench) noexcept { set(what, actor, {}); }
  /// Whose work makes it impossible to go on, and why: said before the child ends itself.
  virtual void blame(std::string_view subject, std::string_view why) noexcept = 0;
};

/// What work throws where its parent decides by the code: others count as internal.
class StatusError : public std::runtime_error {
 public:
  explicit StatusError(const Status& status)
      : std::runtime_error(status.message()), code_(status.code()) {}
  StatusCode code() const noexcept { return code_; }

 private:
  StatusCode code_;
};

struct ChildEnd {
  enum class How {
    finished,
    failed,  // work threw: the workbench's failure, in its own words
    crashed,
    timed_out,
    stopped,  // because ChildLimits::stop said so
  };
  How how = How::finished;
  int signal = 0;                          ///< that ended it; 0: none
  StatusCode code = StatusCode::internal;  ///< of what was thrown
  std::string detail;    ///< "killed by SIGSEGV", "ended with code 3", what was thrown
  std::string activity;  ///< the last line it set
  Actor actor = Actor::workbench;
  std::string subject;  ///< that was at work alone, or that was blamed
  std::string blame;    ///< why; empty where the child blamed nobody
};

/// When a child is taken to hang.
struct ChildLimits {
  double seconds = 1e9;  ///< in all
  /// Seconds that its activity may stay the same line while this subject is at work; 0 for as long
  /// as it likes. Empty: the same.
  std::function<double(const std::string& subject)> stall_seconds{};
  /// Asked about ten times a second; true ends the child. Empty: never.
  std::function<bool()> stop{};
  /// What it prints, to either output, goes through clean_text to standard error, line by line.
  bool clean_output = false;
};

/// Forks, runs work in the child, in a process group of its own (a terminal's Ctrl-C reaches this
/// process alone), and waits. The caller must be single-threaded and must not have
/// touched a GPU: a CUDA context does not survive a fork. What is left of its group when it ends is
/// killed. watch, when given, is called about ten
/// times a second with the child's activity. Fails when the system gives no process.
Result<ChildEnd> run_in_child(const std::function<void(Activity&)>& work, double timeout_seconds,
                              const std::function<void(const std::string&)>& watch = {});
Result<ChildEnd> run_in_child(const std::function<void(Activity&)>& work, const ChildLimits& limits,
                              const std::function<void(const std::string&)>& watch = {});

}  // namespace greenfast::workbench
