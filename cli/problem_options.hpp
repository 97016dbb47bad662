// The options that say what a problem is beyond its shape; shared by every subcommand that runs or
// explains problems.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/option_set.hpp"
#include "workbench/cases/workload.hpp"

namespace greenfast::cli {

struct ProblemOptions {
  std::string dtype;  // "", "fp32", "fp16,bf16"
  std::string out_dtype;
  std::string causal;  // "", "top-left", "bottom-right"
  std::string window;  // "L" or "L,R"
  std::string layout = "bhsd";
  std::optional<float> scale;
  float softcap = 0.0f;
  bool lse = false;
  std::map<std::string, std::string> attributes;  // of serving: what stands behind --name
  std::map<std::string, bool> flags;              // and which of those without a value are there

  void define(OptionSet& options);
  /// What was asked for of serving, by name, with its value or without.
  std::map<std::string, std::string> asked() const;

  /// One set of defaults for each dtype asked for; without --dtype fp32 on the CPU, fp16 on CUDA.
  /// Throws Failure naming the option, what it got and what is possible.
  std::vector<workbench::ProblemDefaults> defaults(DeviceKind device) const;
};

/// Shapes times dtypes, each checked. Where several dtypes are asked for, the names in tables carry
/// them.
std::vector<workbench::NamedProblem> problems_of(std::string_view shapes,
                                                 const ProblemOptions& options, DeviceKind device);

/// "a,b,c" as items; empty items are dropped.
std::vector<std::string> split_list(std::string_view text);

/// --seeds: whole numbers from 0 with commas, at least one. Throws Failure naming the item that is
/// none, an empty one too: it stands for a number that was forgotten.
std::vector<std::uint64_t> parse_seeds(const std::string& text);

}  // namespace greenfast::cli
