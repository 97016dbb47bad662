// What each step of the gate found, as values, and the one place that spells them out as JSON: a
// step runs in a child process and comes home as a checkpoint, which may have been written by
// anybody.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include <greenfast/attention.hpp>

#include "workbench/base/fault.hpp"
#include "workbench/fast/measure.hpp"
#include "workbench/fast/samples.hpp"
#include "workbench/fast/timed_judge.hpp"
#include "workbench/green/correctness.hpp"

namespace greenfast::workbench {

struct PlannedShape {
  std::string name, problem;
  bool primary = false;
  std::string refused;                      ///< by whom and why; empty: by nobody
  std::optional<Plan> baseline, candidate;  ///< none where the side tells no plan
};
/// Device, type, shapes and plans; no kernel was launched.
struct BuildStep {
  std::string dtype;
  DeviceFacts device;  ///< kind, name, isa, arch, multiprocessors and driver
  std::vector<PlannedShape> shapes;
  std::string no_op;  ///< why the sides are no comparison; empty: they are one
};

struct RedCase {
  std::string distribution;
  std::uint64_t seed = 0;
  std::string metric;             ///< the first check that failed
  Fault fault = Fault::numerics;  ///< never none
  std::string reason;
};
/// One side's cases at one shape; a RED one ends the list.
struct GreenTally {
  int cases = 0, green = 0, skipped = 0;
  std::optional<RedCase> first_red;
  std::map<std::string, double> worst;         ///< by metric; NaN where one was not finite
  std::map<std::string, std::string> digests;  ///< of the output, by seed
  /// Distributions at the ends of the range whose problems it does not take: why.
  std::map<std::string, std::string> refused;
  std::int64_t rows_checked = 0, rows_total = 0;
};
struct GreenStep {
  GreenTally baseline, candidate;
  Limits limits;  ///< of what is timed later
};

/// A small problem that has something which the asked shapes may lack, and what the candidate makes
/// of it.
struct Claim {
  std::string kind;     ///< "LSE", "lengths that are no multiple of 16"
  std::string problem;  ///< to_string
  std::string refused;  ///< why the candidate does not take it; empty: it does
  GreenTally tally;
};
/// What the candidate says it takes beside the asked shapes, held to GREEN.
struct ClaimsStep {
  std::vector<Claim> claims;
};

struct FastStep {
  Samples samples;  ///< baseline, candidate, and at the primary shape the baseline again
  std::vector<SideCheck> checks;  ///< beside samples.sides; without outputs
  std::string stopped;
  Peak peak;
};

struct PeerSide {
  std::string id;
  Correctness correctness;
  std::map<std::string, double> errors;
  std::string refused;  ///< why it has no times; empty when it has
  double p50 = 0, p90 = 0;
  std::int64_t samples = 0;
  std::optional<Interval> speedup;  ///< of the candidate over it
};
/// The candidate beside peers. They decide nothing.
struct PeersStep {
  std::string shape;
  std::vector<PeerSide> sides;
  std::vector<std::string> notes;
  std::optional<Samples> samples;
  std::string best;     ///< the fastest that is not wrong; empty: none
  std::string skipped;  ///< why there is none
};

/// In words of gate.json (greenfast.gate/1), and of the checkpoints.
nlohmann::json json_of(const PlannedShape& shape);
nlohmann::json json_of(const GreenTally& tally);
nlohmann::json json_of(const BuildStep& step);
nlohmann::json json_of(const GreenStep& step);
nlohmann::json json_of(const ClaimsStep& step);
nlohmann::json json_of(const FastStep& step);
nlohmann::json json_of(const PeersStep& step);

/// The inverse. What is missing, of another kind, or says two things at once throws
/// nlohmann::json::exception, which names the place.
void from_json(const nlohmann::json& object, BuildStep& step);
void from_json(const nlohmann::json& object, GreenStep& step);
void from_json(const nlohmann::json& object, ClaimsStep& step);
void from_json(const nlohmann::json& object, FastStep& step);
void from_json(const nlohmann::json& object, PeersStep& step);

/// A step's result or why there is none, as a checkpoint holds it.
template <class Step>
nlohmann::json step_json(const Result<Step>& result) {
  if (result) return json_of(*result);
  return {{"failed",
           {{"code", static_cast<int>(result.status().code())},
            {"message", result.status().message()}}}};
}
/// The failure that a checkpoint holds instead of a result. Throws as from_json does.
std::optional<Status> step_failure(const nlohmann::json& object);
template <class Step>
Result<Step> step_of_json(const nlohmann::json& object) {
  if (auto failure = step_failure(object)) return *failure;
  Step step;
  from_json(object, step);
  return step;
}

}  // namespace greenfast::workbench
