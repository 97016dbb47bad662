// Other people's programs (git, ncu, perf, tar): run without a shell, with a time limit, their
// output kept.
#pragma once

#include <filesystem>
#include <functional>
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
  bool stopped = false;  ///< because RunLimits::stop said so
  std::string out, err;
};

struct RunLimits {
  double seconds = 1e9;
  std::filesystem::path directory{};   ///< to run in; empty: here
  std::function<bool()> stop{};        ///< asked several times a second; true ends the program
  std::filesystem::path unfinished{};  ///< removed when the program is ended before its own end
};

/// Runs argv[0] (a path, or a name of PATH) with nothing on its standard input, in `directory` when
/// given, and waits. After the time limit it is killed with all it started. Fails when it cannot be
/// started (no_device: not found). What it prints beyond 256 MiB fails too.
/// It ends with this process, however that ends.
Result<ProgramEnd> run_program(std::span<const std::string> argv, const RunLimits& limits);
Result<ProgramEnd> run_program(std::span<const std::string> argv, double timeout_seconds,
                               const std::filesystem::path& directory = {});

/// The last non-empty line of a text, for messages.
std::string last_line(std::string_view text);

}  // namespace greenfast::workbench
