// What signals mean to a run.
#pragma once

#include <string_view>

namespace greenfast::cli {

/// From here on Ctrl-C (SIGINT, SIGTERM) asks the run to end and write what it has; a second one
/// ends it at once.
void catch_interrupts();
/// Whether one arrived.
bool interrupted() noexcept;

/// From here on a crash (SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT) ends the command with exit code
/// 24 and one line that says what was running. Not in sanitizer builds, which report crashes
/// better.
void catch_crashes();
/// What is running, for that line.
void now_running(std::string_view what) noexcept;

}  // namespace greenfast::cli
