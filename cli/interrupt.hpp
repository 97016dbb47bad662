// What signals mean to a run.
#pragma once

#include <string>
#include <string_view>
#include <thread>

#include "cli/command.hpp"

namespace greenfast::cli {

/// From here on Ctrl-C (SIGINT, SIGTERM) ends the command with exit code 130; what it started ends
/// with it.
/// `left` says what is then finished, and how to go on where one can.
void end_when_interrupted(std::string_view left = {});
/// From here on Ctrl-C (SIGINT, SIGTERM) asks the run to end and write what it has; a second one
/// ends it at once.
void catch_interrupts();
/// Whether one arrived, here or where `shared` says so.
bool interrupted() noexcept;
/// In a child that no signal of the terminal reaches: the parent's word for it, in shared memory.
void watch_for_interrupt(const volatile int* shared) noexcept;

/// Runs work that throws Stopped between two of its steps once one arrived; then the display is
/// cleared, and the command ends with what `left` says of what is finished.
template <class Stopped, class Display, class Work>
auto unless_interrupted(Display& display, const std::string& left, const Work& work) {
  catch_interrupts();
  try {
    return work();
  } catch (const Stopped&) {
    display.clear();
    throw Failure(workbench::kInterrupted, "interrupted; " + left);
  }
}

/// While it lives, an interrupt ends the command within a second, whatever is at work: first it may
/// end by itself (interrupted()), then it is ended with exit code 130 and `left`. For a command that
/// keeps nothing of what it has begun; its scratch folders go with it, and processes that it started.
/// Not in a child (run_isolated), whose parent knows it by its end.
class EndSoonWhenInterrupted {
 public:
  explicit EndSoonWhenInterrupted(std::string left);

 private:
  std::jthread watch_;
};

/// From here on a crash (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT) ends the command with exit code
/// 24 and one line that says what was running. Not in sanitizer builds, which report crashes
/// better.
void catch_crashes();
/// What is running, for that line.
void now_running(std::string_view what) noexcept;

}  // namespace greenfast::cli
