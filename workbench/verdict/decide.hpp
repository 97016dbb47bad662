// From intervals to a verdict. Pure: the same evidence always gives the same words.
#pragma once

#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "workbench/base/fault.hpp"
#include "workbench/fast/statistics.hpp"

namespace greenfast::workbench {

enum class Outcome { promote, defer, reject };
/// "PROMOTE", "DEFER", "REJECT".
std::string_view name_of(Outcome outcome) noexcept;
std::optional<Outcome> parse_outcome(std::string_view name);

enum class ReasonCode {
  crash,  // these reject
  timeout,
  integrity,
  impossible,
  numerics,
  resources,
  regression,
  below_gate,  // these defer
  inconclusive,
  noisy,
  tool_missing,
  no_op,
};
/// "CRASH", "BELOW_GATE", ...: as records and people have it.
std::string_view name_of(ReasonCode code) noexcept;
std::optional<ReasonCode> parse_reason_code(std::string_view name);
/// The exit code that a reason's code means; kDefer for one that only defers.
int exit_code_of(ReasonCode code) noexcept;
bool rejects(ReasonCode code) noexcept;
/// What a side's fault means for a verdict; none has no reason.
ReasonCode reason_of(Fault fault);

/// One reason of a verdict.
struct Reason {
  ReasonCode code;
  std::string detail;  ///< what was seen
  std::string
      settle;  ///< DEFER: what would settle it; REJECT: what to change, where it can be said
};

struct Decision {
  Outcome outcome = Outcome::promote;
  std::vector<Reason> reasons;  ///< none for PROMOTE
  int exit_code = 0;
};

/// What was measured at one shape.
struct ShapeEvidence {
  std::string name;
  bool primary = false;
  std::string missing;  ///< why there is no measurement; empty when there is one
  LogRatio p50, p90;    ///< log(t_baseline / t_candidate)
  /// Baseline against itself in the same blocks: what the method sees where there is nothing to
  /// see.
  std::optional<LogRatio> same;
  std::string impossible;  ///< in words, when the candidate was faster than its floor
};

/// Blocks below which no interval of a median is one at 95% whatever the noise is: of n blocks all
/// lie on the same side of the truth in 2 of 2^n cases.
inline constexpr std::int64_t kLeastBlocks = 6;

struct Thresholds {
  double gate = 1.10;   ///< lower bound of the primary speedup must reach it
  double guard = 0.98;  ///< lower bound of each guard's
  double confidence = 0.95;
  /// Most that the interval of the baseline against itself may reach away from 1; beyond it a ratio
  /// of the same blocks says nothing, whatever it is.
  double noise = std::numeric_limits<double>::infinity();
};

/// The interval that decides: the statistics' own, widened by the bias that an A/A run in the same
/// blocks showed.
Interval decisive(const LogRatio& ratio, const std::optional<LogRatio>& same, double confidence);

/// FAST's part of a verdict, on p50 and p90 alike:
/// INCONCLUSIVE for fewer blocks than kLeastBlocks; NOISY where an A/A interval is wider than the
/// policy allows;
/// REJECT for an impossible time, for an upper bound below 1 (primary) or below guard (guards);
/// PROMOTE when every lower bound reaches its threshold; DEFER else.
Decision decide(std::span<const ShapeEvidence> shapes, const Thresholds& thresholds);

/// A decision from reasons found elsewhere: the gravest rules. No reasons: PROMOTE.
Decision from_reasons(std::vector<Reason> reasons);

}  // namespace greenfast::workbench
