// What a subcommand is, and how it fails.
#pragma once

#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <greenfast/types.hpp>

#include "cli/option_set.hpp"
#include "workbench/base/exit_code.hpp"

namespace greenfast::cli {

/// The command line without the program's name, for records.
using Arguments = std::vector<std::string>;
/// Runs a subcommand whose options have been parsed; returns its exit code.
using Action = std::function<int(const Arguments&)>;

/// A row of the table in main.cpp. `define` declares the options; what it returns is called when
/// the user chose this subcommand.
struct Command {
  std::string_view name, summary;
  Action (*define)(OptionSet& options);
};

Action define_new(OptionSet& options);
Action define_list(OptionSet& options);
Action define_doctor(OptionSet& options);
Action define_run(OptionSet& options);
Action define_check(OptionSet& options);
Action define_bench(OptionSet& options);
Action define_selftest(OptionSet& options);
Action define_compare(OptionSet& options);
Action define_gate(OptionSet& options);
Action define_phases(OptionSet& options);
Action define_tune(OptionSet& options);
Action define_evolve(OptionSet& options);
Action define_resources(OptionSet& options);
Action define_profile(OptionSet& options);
Action define_history(OptionSet& options);
Action define_report(OptionSet& options);
Action define_evidence(OptionSet& options);

/// Ends the command with an exit code and one line on stderr.
class Failure : public std::runtime_error {
 public:
  Failure(int code, const std::string& message) : std::runtime_error(message), code_(code) {}
  explicit Failure(const Status& status)
      : Failure(workbench::exit_code_of(status.code()), status.message()) {}
  int code() const noexcept { return code_; }

 private:
  int code_;
};

/// The value, or Failure with the Status's message and exit code.
template <class T>
T value_or_fail(Result<T> result) {
  if (!result.ok()) throw Failure(result.status());
  return std::move(*result);
}

/// "; did you mean 'mission'?" for the candidate nearest to text, or nothing when none is near.
std::string did_you_mean(std::string_view text, std::span<const std::string> candidates);

}  // namespace greenfast::cli
