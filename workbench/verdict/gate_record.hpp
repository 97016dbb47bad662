// What a gate found, as values, and the one place that spells it out as JSON (greenfast.gate/1). The
// gate fills it step after step and reads its own verdict's grounds from it; JSON is made at the end.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "workbench/device/device.hpp"
#include "workbench/fast/samples.hpp"
#include "workbench/fast/statistics.hpp"
#include "workbench/resources/compiler_logs.hpp"
#include "workbench/verdict/advise.hpp"
#include "workbench/verdict/decide.hpp"
#include "workbench/verdict/gate_walk.hpp"
#include "workbench/verdict/predictions.hpp"
#include "workbench/verdict/step_results.hpp"

namespace greenfast::workbench {

/// How one line of the checklist, or one resource, came out.
enum class CheckStatus {
  pass,
  fail,
  defer,
  skipped,
  noisy,
  waived,  ///< over its limit, which a waiver admits
};
/// "PASS", "FAIL", "DEFER", "SKIPPED", "NOISY", "WAIVED".
std::string_view name_of(CheckStatus status) noexcept;

/// What a line of the checklist is about.
enum class CheckKind {
  build,
  green,           ///< of the candidate, at the asked shapes
  green_baseline,  ///< of the baseline there
  green_claims,    ///< of what else the candidate takes
  resources,
  noise,  ///< the baseline against itself
  fast,   ///< the primary shape
  guard,  ///< a guard shape
  light,  ///< speed of light
};
/// "build", "green", "green_baseline", ...: as records have it.
std::string_view name_of(CheckKind kind) noexcept;
std::optional<CheckKind> parse_check_kind(std::string_view name);
/// Of a row of a record's checklist, of records without kinds too; nothing where it cannot be told.
std::optional<CheckKind> kind_of_check(const nlohmann::json& row);

/// One line of the checklist.
struct GateCheck {
  CheckKind kind = CheckKind::build;
  std::string gate, target, actual;  ///< for people
  CheckStatus status = CheckStatus::pass;
  std::string shape{};                   ///< where it was looked at; empty: at all of them
  std::optional<Statistic> statistic{};  ///< of a speedup
};

/// One step of the walk.
struct GateStep {
  WalkStep step;
  std::string what;  ///< for people
  /// How its child ended; none: with a result.
  std::optional<ReasonCode> ended;
  bool resumed = false;  ///< the result was a checkpoint's
  double seconds = 0;
};

/// Both sides' cases at one shape, or the candidate's with one claim.
struct GateGreen {
  std::string shape;
  GreenTally baseline, candidate;
};

/// One thing that the candidate takes, beside its limit where it has one.
struct GateResource {
  std::string name;
  CheckStatus status = CheckStatus::pass;
  std::optional<std::int64_t> value{}, limit{}, workspace_bytes{};
  std::optional<std::string> kernel{}, arch{}, sha256{};        ///< of a compiled kernel
  std::optional<std::string> reason{};                          ///< of the limit, or of no value
  std::optional<std::pair<std::string, std::string>> waiver{};  ///< name, reason
};

/// The range of what a device told about itself while a shape was timed: least, median, most.
using Range = std::array<double, 3>;
struct GateClocks {
  std::optional<Range> sm_mhz, memory_mhz, watts, celsius;
  std::map<std::string, int> throttled_blocks;  ///< by reason
};

/// The baseline against itself in the same blocks: how far that reaches from 1, and the interval of
/// p50 that decides beside it.
struct GateNoise {
  Interval same;
  double floor = 0;
  Interval decisive;
};

/// What was timed at one shape; where `skipped` says why not, name and role are all there is.
struct GateTimes {
  std::string shape;
  bool primary = false;
  std::string skipped{};
  std::string problem{};
  Interval speedup{}, speedup_p90{};
  std::int64_t blocks = 0;
  int processes = 0;
  ProcessSpread process_spread = ProcessSpread::student;  ///< that the intervals were made with
  std::string stopped{};                                  ///< by what
  Summary baseline{}, candidate{};
  double candidate_flops = 0, candidate_percent_of_peak = 0, floor_seconds = 0;
  /// Below the floor in every process; each had one of its own, floor_seconds is the largest.
  bool baseline_impossible = false, candidate_impossible = false;
  Peak peak{};
  GateClocks clocks{};
  std::optional<GateNoise> same{};

  /// The interval that decides p50.
  const Interval& deciding() const { return same ? same->decisive : speedup; }
};

/// What came of the prediction of a step.
struct GatePrediction {
  Prediction of;                             ///< with a speedup
  std::optional<PredictionOutcome> outcome;  ///< none where its shape was not timed
};

struct GateVerdict {
  Decision decision;
  Advice advice;
  double gate = 0, guard = 0;      ///< thresholds
  double noise = 0;                ///< as Thresholds has it
  std::string expected, original;  ///< in words of the prediction, where the step has one
  std::optional<GatePrediction> predicted;
  std::vector<std::string> unseen;  ///< what GREEN of this gate never saw
};

/// All of it. What a walk did not reach is absent.
struct GateRecord {
  nlohmann::json head;     ///< of the job: who, when, options, build; stands in the record as it is
  nlohmann::json plugins;  ///< file and digest of each that was judged; nothing without any
  std::optional<CompilerLogs> compiler_logs;
  std::optional<BuildStep> build;
  std::vector<GateStep> steps;
  std::vector<GateCheck> checklist;
  std::optional<std::vector<GateGreen>> green;
  std::optional<ClaimsStep> claims;  ///< those that were tried stand in `green` as well
  /// Both sides' machine code, as code_of_sides has it; none on a CPU.
  std::optional<nlohmann::json> code;
  std::optional<std::vector<GateResource>> resources;
  std::optional<std::vector<GateTimes>> fast;
  std::optional<Interval> overall;
  std::optional<std::vector<Samples>> samples;
  std::optional<PeersStep> peers;
  GateVerdict verdict;
  std::string finished_utc;
  double seconds = 0;
};

/// One row of "fast".
nlohmann::json json_of(const GateTimes& times);
/// As gate.json has it, but for the headline, which is made from this.
nlohmann::json json_of(const GateRecord& record);

}  // namespace greenfast::workbench
