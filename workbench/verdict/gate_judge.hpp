// What the results of a gate's steps come to: lines of its checklist, reasons of its verdict, figures.
// Pure: the gate judges by it as it walks, and `evidence verify` once more from the record.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "workbench/fast/samples.hpp"
#include "workbench/verdict/decide.hpp"
#include "workbench/verdict/gate_options.hpp"
#include "workbench/verdict/gate_record.hpp"
#include "workbench/verdict/step_results.hpp"

namespace greenfast::workbench {

/// What one part of the walk comes to.
struct GatePart {
  std::vector<GateCheck> checklist;
  std::vector<Reason> reasons;
  bool ended = false;  ///< nothing more is run
};

/// The command that shows a RED case again: `asked` in options of the command, and a seed.
using CheckAgain = std::function<std::string(const std::string& asked, std::uint64_t seed)>;

/// GREEN at the shapes that both sides take, in their order; a RED case ends the list.
GatePart judge_green(const GateOptions& options, std::string_view policy,
                     std::span<const GateGreen> shapes, const CheckAgain& again);

/// GREEN of what else the candidate takes; `asked`: a kind in options of the command.
GatePart judge_claims(const GateOptions& options, const ClaimsStep& claims,
                      const std::function<std::string(const std::string& kind)>& asked,
                      const CheckAgain& again);

/// The sides at one shape; an interval of several processes is made by `spread`, but that of the
/// baseline against itself, which is of these processes.
Result<ShapeEvidence> evidence_of(const Samples& samples, bool primary,
                                  ProcessSpread spread = ProcessSpread::student);

/// What a record says of the sides at one shape, but for `process_spread`; `impossible` and the rest of
/// `seen` as evidence_of has it. What was measured beside the samples is given.
struct BesideSamples {
  int processes = 1;
  std::string stopped;
  Peak peak;
  double floor_seconds = 0;
};
GateTimes times_of(const Samples& samples, const ShapeEvidence& seen, const BesideSamples& beside,
                   const Thresholds& thresholds);

/// In words: the candidate, which was below its floor in every process.
std::string impossible_words(double p50, double floor_seconds);
/// A baseline that was.
Reason impossible_baseline(const GateOptions& options, std::string_view shape, double p50,
                           double floor_seconds);
/// Where other work took so much of the cores that nothing is promoted; empty: nowhere.
std::string busy_words(std::string_view shape, const Summary& baseline);

/// FAST: its lines and its reasons. `no_op` and `busy` in words, or empty; `clean`: nothing before gave
/// a reason.
GatePart judge_times(std::span<const ShapeEvidence> shapes, const Thresholds& thresholds,
                     const std::string& no_op, const std::string& busy, bool clean);

/// Which line FAST of a shape is.
CheckKind kind_of_speed(bool primary) noexcept;

/// Why plans make two sides no comparison; empty: they are one.
std::string no_op_of(const GateOptions& options, std::span<const PlannedShape> shapes);

/// The candidate beside each peer, and `best`, from the samples of both. `correctness` of the sides
/// stands; a side that the step does not name is none of its.
void judge_peers(PeersStep& step, const Samples& samples, std::string_view candidate);

}  // namespace greenfast::workbench
