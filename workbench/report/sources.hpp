// The records a report is made of: what lies in a result folder, checked before anything is said
// about it.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <greenfast/types.hpp>

#include "workbench/verdict/gate_status.hpp"

namespace greenfast::workbench {

/// A record of a schema that a report can show.
struct ReportSource {
  std::filesystem::path file;
  std::string label;  ///< what the report calls it: its name and its folder's
  std::string
      kind;  ///< "run", "gate", "compare", "samples", "ladder", "selftest", "profile"; "job"
  nlohmann::json record;
  std::optional<GateStatus> job{};  ///< of a "job": where it stands; `record` says the same
};

struct ReportSources {
  std::vector<ReportSource> records;  ///< at least one
  std::vector<std::string> left_out;  ///< "FILE: why", of a folder's files that a report cannot use
  std::string notes;                  ///< notes.md of the folders: lessons in people's own words
};

/// Reads files, and folders with their subfolders (not steps/, which gate keeps for itself). Every
/// error names the file (invalid_argument): a half copied folder (truncated JSON, a job.json
/// that is no job's, a record without its parts, an artifact with another digest than its profile
/// names), another schema or another version of one, nothing to report.
Result<ReportSources> load_report_sources(std::span<const std::string> paths);

}  // namespace greenfast::workbench
