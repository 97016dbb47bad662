// Performance over commits: every record that evidence/ ever held, and the change that caused each
// step.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include <greenfast/types.hpp>

#include "workbench/report/report.hpp"

namespace greenfast::workbench {

struct HistoryOptions {
  std::filesystem::path repository = ".";
  std::string shape = "mission";  ///< the name of a shape, or a problem as records print it
  std::string device;             ///< part of its name; empty: all
  std::vector<std::string>
      variants;  ///< ids, or the begin of several: "cuda.stage_c.*"; empty: all
};

/// What a time shows beside the one before it.
enum class HistoryChange {
  first_record,
  faster,         ///< the intervals of p50 lie apart
  slower,         ///< likewise
  no_difference,  ///< they overlap
  no_interval,    ///< a record has none, and nothing can be said
};
/// "first record", "faster", "slower", "no difference", "no interval".
std::string_view name_of(HistoryChange change) noexcept;

/// One time of one variant, in the order of measuring.
struct HistoryPoint {
  Timing timing;
  std::string evidence;                      ///< the commit that brought the record, abbreviated
  std::string file;                          ///< of the record
  double over_previous = 0, over_first = 0;  ///< speedups; 0 for the first
  HistoryChange seen = HistoryChange::first_record;
  bool is_step() const { return seen == HistoryChange::faster || seen == HistoryChange::slower; }
  /// Commits between the two builds that touched the sources that the variant is compiled from,
  /// newest first, as "sha subject". Those that touched nothing but files which other kernels share
  /// stand behind the others, and name the file.
  std::vector<std::string> changes;
  std::string note;  ///< what stands in the way of naming the change; empty when nothing does
};
struct History {
  std::vector<HistoryPoint> points;   ///< by device, variant and problem; each of these in time
  std::vector<ReportSource> newest;   ///< the records of the last commit, for the ladder
  std::vector<std::string> left_out;  ///< files that are no records, and why
};

/// Fails (invalid_argument) outside a git repository, in one without evidence/, and where no record
/// holds the shape; the message says which shapes there are. no_device: git is not installed.
Result<History> read_history(const HistoryOptions& options);

/// Tables and charts: over commits, and of the ladder as the newest records have it.
std::vector<ReportPart> history_parts(const History& history, const HistoryOptions& options);
nlohmann::json history_json(const History& history, const HistoryOptions& options);

}  // namespace greenfast::workbench
