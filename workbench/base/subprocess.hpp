// Other people's programs (git, ncu, perf, tar): run without a shell, with a time limit, their
// output kept.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <greenfast/types.hpp>

namespace greenfast::workbench {

/// Where a program of PATH lies; nothing when it is not there.
std::optional<std::filesystem::path> find_program(std::string_view name);

struct ProgramEnd {
  int exit_code = 0;  ///< 128 + the signal's number when a signal ended it
  bool timed_out = false;
  std::string out, err;
};

/// Runs argv[0] (a path, or a name of PATH) with nothing on its standard input, in `directory` when
/// given, and waits. After the time limit it is killed with all it started. Fails when it cannot be
/// started (no_device: not found). What it prints beyond 256 MiB fails too.
Result<ProgramEnd> run_program(std::span<const std::string> argv, double timeout_seconds,
                               const std::filesystem::path& directory = {});

/// The last non-empty line of a text, for messages.
std::string last_line(std::string_view text);

}  // namespace greenfast::workbench
