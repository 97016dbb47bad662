// A run that was interrupted, and goes on: what its record holds of the problems that it ended, and
// one record of both parts.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "workbench/record/record.hpp"

namespace greenfast::workbench {

/// The part of a run that lies before an interruption.
struct EarlierRun {
  nlohmann::json record;
  std::set<std::string> finished;  ///< names of problems
  /// Of those problems what run_table shows: rows, peaks and samples.
  RunResult result;
};

/// Reads the record of an interrupted run. Errors (invalid_argument) name what differs: the command,
/// this program's build, the plugins, the device or the policy is another than it was begun with, or
/// the run was not interrupted. --resume, --json and --quiet do not make a command another one.
Result<EarlierRun> earlier_run(const std::filesystem::path& file, const RecordHead& head,
                               const RunPlan& plan);

/// `result` with what stands before it, for the table and the exit code.
RunResult joined(const EarlierRun& earlier, const RunResult& result);
/// The record of `result` with what stands before it.
nlohmann::json joined(const EarlierRun& earlier, nlohmann::json record, const RunResult& whole);

}  // namespace greenfast::workbench
