// What signals mean to a run.
#pragma once

#include <string>
#include <string_view>

#include "cli/command.hpp"

namespace greenfast::cli {

/// From here on Ctrl-C (SIGINT, SIGTERM) ends the command with exit code 130; what it started ends
/// with it.
void end_when_interrupted();
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

/// From here on a crash (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT) ends the command with exit code
/// 24 and one line that says what was running. Not in sanitizer builds, which report crashes
/// better.
void catch_crashes();
/// What is running, for that line.
void now_running(std::string_view what) noexcept;

}  // namespace greenfast::cli
