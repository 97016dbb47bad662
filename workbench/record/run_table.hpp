// Tables for people, from results.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "workbench/green/selftest.hpp"
#include "workbench/record/runner.hpp"

namespace greenfast::workbench {

/// Variants that were left out of the same problems for one reason.
struct LeftOut {
  std::string reason;
  std::vector<std::string> variants, problems;
};
/// The SKIPPED rows, one entry a reason: on a GPU two dozen variants are left out for two reasons.
std::vector<LeftOut> left_out(std::span<const RunRow> rows);

/// The table of a run, one line for each variant and problem, then what the columns hide: peaks,
/// reasons of what is RED, what was skipped and why, how much was sampled. `timed` adds the columns
/// of FAST.
std::string run_table(const RunPlan& plan, const RunResult& result, bool color);

/// Planted kernels and the metric that caught each.
std::string selftest_table(const SelftestResult& result, bool color);

}  // namespace greenfast::workbench
