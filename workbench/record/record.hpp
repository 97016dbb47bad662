// The record of a run: everything that is needed to read, compare and repeat it, as JSON of schema
// greenfast.run/1 (docs/schema/run.schema.json).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "workbench/base/host.hpp"
#include "workbench/green/selftest.hpp"
#include "workbench/record/facts.hpp"
#include "workbench/record/runner.hpp"

namespace greenfast::workbench {

/// What a record says besides results.
struct RecordHead {
  std::string command;            // "run", "check", "bench"
  std::vector<std::string> argv;  // as typed, without the program's path
  std::string run_id, utc;        // when it began; the id is utc_stamp(), a dash, and the process
  double seconds = 0;             // it took
  HostFacts host;                 // before it began
};

/// The head of a record that begins now.
RecordHead begin_record(std::string command, std::vector<std::string> argv);

/// What every record begins with: schema, run, build, host.
nlohmann::json head_json(const RecordHead& head, std::string_view schema);

/// Numbers that JSON cannot hold (NaN, infinities) become null.
nlohmann::json metrics_json(const Metrics& metrics);

nlohmann::json run_json(const RecordHead& head, const RunPlan& plan, const RunResult& result);
nlohmann::json selftest_json(const RecordHead& head, const Policy& policy,
                             const SelftestResult& result);

}  // namespace greenfast::workbench
