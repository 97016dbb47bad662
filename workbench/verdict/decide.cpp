#include "workbench/verdict/decide.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>

#include "workbench/base/exit_code.hpp"

namespace greenfast::workbench {
namespace {

struct ReasonRow {
  ReasonCode id;
  std::string_view name;
  int exit_code;
};
constexpr std::array kReasons{ReasonRow{ReasonCode::crash, "CRASH", kCrash},
                              ReasonRow{ReasonCode::timeout, "TIMEOUT", kCrash},
                              ReasonRow{ReasonCode::integrity, "INTEGRITY", kIntegrity},
                              ReasonRow{ReasonCode::impossible, "IMPOSSIBLE", kIntegrity},
                              ReasonRow{ReasonCode::numerics, "NUMERICS", kNumerics},
                              ReasonRow{ReasonCode::resources, "RESOURCES", kResources},
                              ReasonRow{ReasonCode::regression, "REGRESSION", kRegression},
                              ReasonRow{ReasonCode::below_gate, "BELOW_GATE", kDefer},
                              ReasonRow{ReasonCode::inconclusive, "INCONCLUSIVE", kDefer},
                              ReasonRow{ReasonCode::noisy, "NOISY", kDefer},
                              ReasonRow{ReasonCode::tool_missing, "TOOL_MISSING", kDefer},
                              ReasonRow{ReasonCode::no_op, "NO_OP", kDefer}};
const ReasonRow& row_of_reason(ReasonCode code) { return kReasons[static_cast<std::size_t>(code)]; }

/// What would narrow an interval until it leaves a threshold.
std::string settle(const LogRatio& ratio, double threshold, double confidence) {
  const auto blocks = blocks_to_settle(ratio, threshold, confidence);
  if (!blocks && process_halfwidth(ratio) > ratio.resolution) {
    return fmt::format(
        "more processes (--processes), not more samples: {} of them differ so much that an "
        "interval "
        "of their mean reaches {:.2g}% to each side",
        ratio.processes, 100 * (std::exp(process_halfwidth(ratio)) - 1));
  }
  if (!blocks) {
    return fmt::format(
        "no number of samples: the estimate lies within the timer's resolution ({:.2g}%) of "
        "{:.2f}; "
        "longer samples (a larger batch) might",
        100 * ratio.resolution, threshold);
  }
  const auto more = std::max<std::int64_t>(1, *blocks - ratio.blocks);
  return fmt::format(
      "about {} more samples of each side ({} blocks instead of {}), if the estimate stays",
      2 * more, ratio.blocks + more, ratio.blocks);
}

}  // namespace

std::string_view name_of(Outcome outcome) noexcept {
  switch (outcome) {
    case Outcome::promote:
      return "PROMOTE";
    case Outcome::defer:
      return "DEFER";
    case Outcome::reject:
      return "REJECT";
  }
  return "?";
}

std::optional<Outcome> parse_outcome(std::string_view name) {
  for (const Outcome outcome : {Outcome::promote, Outcome::defer, Outcome::reject})
    if (name_of(outcome) == name) return outcome;
  return std::nullopt;
}

std::string_view name_of(ReasonCode code) noexcept { return row_of_reason(code).name; }
int exit_code_of(ReasonCode code) noexcept { return row_of_reason(code).exit_code; }
bool rejects(ReasonCode code) noexcept { return exit_code_of(code) != kDefer; }
std::optional<ReasonCode> parse_reason_code(std::string_view name) {
  for (const ReasonRow& row : kReasons)
    if (row.name == name) return row.id;
  return std::nullopt;
}
ReasonCode reason_of(Fault fault) {
  switch (fault) {
    case Fault::numerics:
      return ReasonCode::numerics;
    case Fault::integrity:
      return ReasonCode::integrity;
    default:
      return ReasonCode::crash;
  }
}

Decision from_reasons(std::vector<Reason> reasons) {
  Decision decision;
  std::vector<int> codes;
  for (const Reason& reason : reasons) {
    codes.push_back(exit_code_of(reason.code));
    const Outcome outcome = codes.back() == kDefer ? Outcome::defer : Outcome::reject;
    if (outcome == Outcome::reject || decision.outcome == Outcome::promote)
      decision.outcome = outcome;
  }
  if (codes.empty()) codes.push_back(kPassed);
  decision.exit_code = worst_of(codes);
  // What was merely undecided does not matter beside a rejection.
  for (Reason& reason : reasons) {
    if (decision.outcome != Outcome::reject || rejects(reason.code))
      decision.reasons.push_back(std::move(reason));
  }
  return decision;
}

Interval decisive(const LogRatio& ratio, const std::optional<LogRatio>& same, double confidence) {
  Interval interval = speedup(ratio, confidence);
  if (!same) return interval;
  const Interval aa = speedup(*same, confidence);
  if (aa.lo <= 1 && 1 <= aa.hi) return interval;
  // The method saw a difference where there is none; the same bias may be in what it sees here.
  const double bias = std::exp(std::abs(same->point));
  interval.lo /= bias;
  interval.hi *= bias;
  return interval;
}

Decision decide(std::span<const ShapeEvidence> shapes, const Thresholds& thresholds) {
  std::vector<Reason> reasons;
  for (const ShapeEvidence& shape : shapes) {
    const std::string role = shape.primary ? "primary" : "guard";
    if (!shape.missing.empty()) {
      reasons.push_back(
          {ReasonCode::inconclusive,
           fmt::format("{} shape {} was not measured: {}", role, shape.name, shape.missing),
           shape.primary ? "a primary shape that both sides accept"
                         : "guard shapes that both sides accept (--guards)"});
      continue;
    }
    if (!shape.impossible.empty()) {
      reasons.push_back({ReasonCode::impossible,
                         fmt::format("{}: {}", shape.name, shape.impossible),
                         "find out which part of the work is left out while timed"});
      continue;
    }
    if (shape.same) {
      const Interval same = speedup(*shape.same, thresholds.confidence);
      if (!(noise_floor(same) <= thresholds.noise) && shape.p50.blocks >= kLeastBlocks) {
        reasons.push_back(
            {ReasonCode::noisy,
             fmt::format(
                 "{}: the baseline against itself in the same blocks is {}, {:.3g}% away "
                 "from 1, and the policy allows {:.3g}%: what the candidate shows beside it "
                 "decides nothing",
                 shape.name, ratio_words(same), 100 * noise_floor(same), 100 * thresholds.noise),
             "a quieter machine, fixed clocks, or a larger --budget: nothing else running"});
        continue;
      }
    }
    const double threshold = shape.primary ? thresholds.gate : thresholds.guard;
    const double worse = shape.primary ? 1.0 : thresholds.guard;
    for (const Statistic statistic : {Statistic::p50, Statistic::p90}) {
      const LogRatio& ratio = statistic == Statistic::p50 ? shape.p50 : shape.p90;
      const Interval plain = speedup(ratio, thresholds.confidence);
      const Interval i = decisive(ratio, shape.same, thresholds.confidence);
      LogRatio undisturbed = ratio;
      undisturbed.waited_below = undisturbed.waited_above = 0;
      const Interval steady = speedup(undisturbed, thresholds.confidence);
      const std::string where =
          fmt::format("{} {} ({}) {}", shape.name, name_of(statistic), role, ratio_words(i));
      if (ratio.blocks < kLeastBlocks) {
        reasons.push_back(
            {ReasonCode::inconclusive,
             fmt::format("{}: of {} blocks; fewer than {} decide nothing, whatever they say", where,
                         ratio.blocks, kLeastBlocks),
             fmt::format(
                 "about {} more samples of each side: a larger --budget or more --processes",
                 2 * (kLeastBlocks - ratio.blocks))});
      } else if (i.hi < worse) {
        reasons.push_back({ReasonCode::regression,
                           fmt::format("{}: all of the interval lies below {:.2f}", where, worse),
                           ""});
      } else if (i.lo >= threshold) {
        continue;
      } else if (plain.lo < threshold && plain.hi >= worse &&
                 (steady.lo >= threshold || steady.hi < worse)) {
        reasons.push_back(
            {ReasonCode::noisy,
             fmt::format("{}: the sides waited for a CPU while they were timed; without that the "
                         "ratio may be {:.1f}% smaller or {:.1f}% larger, which the verdict would "
                         "not survive",
                         where, 100 * (1 - std::exp(-ratio.waited_below)),
                         100 * (std::exp(ratio.waited_above) - 1)),
             "a quieter machine: nothing else running"});
      } else if (plain.lo >= threshold || plain.hi < worse) {
        const double bias = std::abs(std::exp(shape.same->point) - 1);
        reasons.push_back(
            {ReasonCode::noisy,
             fmt::format(
                 "{}: the baseline against itself differs by {:.2f}% in the same blocks, which "
                 "the verdict would not survive",
                 where, 100 * bias),
             "a quieter machine: nothing else running, fixed clocks"});
      } else if (shape.primary && i.hi < threshold) {
        reasons.push_back(
            {ReasonCode::below_gate,
             fmt::format("{}: all of the interval lies below the gate {:.2f}", where, threshold),
             "a faster candidate; this one is measured well enough"});
      } else {
        reasons.push_back({ReasonCode::inconclusive,
                           fmt::format("{}: the interval contains {:.2f}", where, threshold),
                           settle(ratio, threshold, thresholds.confidence)});
      }
    }
  }
  return from_reasons(std::move(reasons));
}

}  // namespace greenfast::workbench
