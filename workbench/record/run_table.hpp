// Tables for people, from results.
#pragma once

#include <string>

#include "workbench/green/selftest.hpp"
#include "workbench/record/runner.hpp"

namespace greenfast::workbench {

/// The table of a run, one line for each variant and problem, then what the columns hide: peaks,
/// reasons of what is RED, what was skipped and why, how much was sampled. `timed` adds the columns
/// of FAST.
std::string run_table(const RunPlan& plan, const RunResult& result, bool color);

/// Planted kernels and the metric that caught each.
std::string selftest_table(const SelftestResult& result, bool color);

}  // namespace greenfast::workbench
