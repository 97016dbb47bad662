#include "workbench/verdict/gate_judge.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "workbench/verdict/compare_best.hpp"

namespace greenfast::workbench {
namespace {

/// Share of the cores' time that others may take before nothing is promoted any more: pairs cancel
/// a load that is steady, not one that comes and goes with a block.
constexpr double kMostOtherWork = 0.5;

/// What the device told about itself while a shape was timed.
GateClocks clocks_of(const Samples& samples) {
  GateClocks out;
  const auto range = [&](std::optional<Range>& to, std::optional<double> Telemetry::*of) {
    std::vector<double> values;
    for (const Block& block : samples.blocks) {
      if (block.telemetry.*of) values.push_back(*(block.telemetry.*of));
    }
    if (values.empty()) return;
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    to = Range{*low, quantile(values, 0.5), *high};
  };
  range(out.sm_mhz, &Telemetry::sm_mhz);
  range(out.memory_mhz, &Telemetry::memory_mhz);
  range(out.watts, &Telemetry::watts);
  range(out.celsius, &Telemetry::celsius);
  for (const Block& block : samples.blocks) {
    for (const std::string& reason : block.telemetry.throttle_reasons)
      ++out.throttled_blocks[reason];
  }
  return out;
}

/// Lines of FAST, whatever they lead to.
std::vector<GateCheck> checklist_of(std::span<const ShapeEvidence> shapes,
                                    const Thresholds& thresholds) {
  std::vector<GateCheck> out;
  for (const ShapeEvidence& shape : shapes) {
    const double threshold = shape.primary ? thresholds.gate : thresholds.guard;
    const CheckKind kind = kind_of_speed(shape.primary);
    const std::string role = shape.primary ? "FAST" : "guard";
    const auto add = [&](CheckKind of, std::string gate, std::string target, std::string actual,
                         CheckStatus status, std::optional<Statistic> statistic = {}) {
      out.push_back({of, std::move(gate), std::move(target), std::move(actual), status, shape.name,
                     statistic});
    };
    if (!shape.missing.empty()) {
      add(kind, fmt::format("{} {}", role, shape.name), fmt::format(">= {:.2f}x", threshold),
          shape.missing, CheckStatus::skipped);
      continue;
    }
    if (shape.same) {
      const Interval same = speedup(*shape.same);
      add(CheckKind::noise, "A/A noise floor",
          fmt::format("baseline against itself: 1 inside, within {:.3g}% of it",
                      100 * thresholds.noise),
          fmt::format("{:.4f} [{:.4f}, {:.4f}]", same.value, same.lo, same.hi),
          same.lo <= 1 && 1 <= same.hi && noise_floor(same) <= thresholds.noise
              ? CheckStatus::pass
              : CheckStatus::noisy);
    }
    for (const Statistic statistic : {Statistic::p50, Statistic::p90}) {
      const Interval i = decisive(statistic == Statistic::p50 ? shape.p50 : shape.p90, shape.same,
                                  thresholds.confidence);
      const double worse = shape.primary ? 1.0 : thresholds.guard;
      const CheckStatus status = i.lo >= threshold ? CheckStatus::pass
                                 : i.hi < worse    ? CheckStatus::fail
                                                   : CheckStatus::defer;
      add(kind, fmt::format("{} {} {}", role, shape.name, name_of(statistic)),
          fmt::format("lower bound >= {:.2f}x", threshold), ratio_words(i), status, statistic);
    }
    add(CheckKind::light, fmt::format("speed of light {}", shape.name),
        "not below the measured ceiling", shape.impossible.empty() ? "above it" : shape.impossible,
        shape.impossible.empty() ? CheckStatus::pass : CheckStatus::fail);
  }
  return out;
}

}  // namespace

CheckKind kind_of_speed(bool primary) noexcept {
  return primary ? CheckKind::fast : CheckKind::guard;
}

GatePart judge_green(const GateOptions& options, std::string_view policy,
                     std::span<const GateGreen> shapes, const CheckAgain& again) {
  GatePart out;
  const auto check = [&](CheckKind kind, std::string gate, std::string target, std::string actual,
                         CheckStatus status) {
    out.checklist.push_back({kind, std::move(gate), std::move(target), std::move(actual), status});
  };
  const auto end_with = [&](Reason reason) {
    out.reasons.push_back(std::move(reason));
    out.ended = true;
  };
  int cases = 0, passed = 0, base_cases = 0, base_passed = 0;
  std::optional<RedCase> candidate_red, baseline_red;
  std::string red_shape;
  for (const GateGreen& seen : shapes) {
    cases += seen.candidate.cases;
    passed += seen.candidate.green;
    base_cases += seen.baseline.cases;
    base_passed += seen.baseline.green;
    candidate_red = seen.candidate.first_red;
    baseline_red = seen.baseline.first_red;
    if (!candidate_red && !baseline_red) continue;
    red_shape = seen.shape;
    break;
  }
  const auto describe = [&](const RedCase& red) {
    return fmt::format("{} {} seed {}: {}", red_shape, red.distribution, red.seed, red.reason);
  };
  const std::string target = fmt::format("all cases of policy {}", policy);
  if (candidate_red) {
    check(CheckKind::green, "GREEN", target,
          fmt::format("RED at {} {} seed {}: {}", red_shape, candidate_red->distribution,
                      candidate_red->seed, candidate_red->metric),
          CheckStatus::fail);
    end_with({reason_of(candidate_red->fault),
              fmt::format("{} is RED on {}", options.candidate, describe(*candidate_red)),
              again(fmt::format("--shapes {}{}", red_shape,
                                options.causal.empty() ? "" : " --causal=" + options.causal),
                    candidate_red->seed)});
    return out;
  }
  check(CheckKind::green, "GREEN", target, fmt::format("{}/{} cases", passed, cases),
        passed == 0       ? CheckStatus::skipped
        : passed == cases ? CheckStatus::pass
                          : CheckStatus::defer);
  if (passed > 0 && passed < cases) {
    out.reasons.push_back({ReasonCode::inconclusive,
                           fmt::format("{} of {} cases of {} could not be judged", cases - passed,
                                       cases, options.candidate),
                           "smaller shapes, or a device with more memory"});
  }
  if (passed == 0) {
    end_with({ReasonCode::inconclusive, "the candidate could not be checked on any case",
              "shapes and types that it accepts"});
    return out;
  }
  if (baseline_red) {
    check(CheckKind::green_baseline, "GREEN of the baseline", "GREEN", describe(*baseline_red),
          CheckStatus::defer);
    end_with(
        {ReasonCode::inconclusive,
         fmt::format("the baseline {} is RED on {}: a speedup over a wrong kernel says nothing",
                     options.baseline, describe(*baseline_red)),
         "a baseline that is GREEN"});
    return out;
  }
  check(CheckKind::green_baseline, "GREEN of the baseline", "first seed",
        fmt::format("{}/{} cases", base_passed, base_cases),
        base_passed > 0 ? CheckStatus::pass : CheckStatus::skipped);
  return out;
}

GatePart judge_claims(const GateOptions& options, const ClaimsStep& claims,
                      const std::function<std::string(const std::string& kind)>& asked,
                      const CheckAgain& again) {
  GatePart out;
  const auto check = [&](std::string actual, CheckStatus status) {
    out.checklist.push_back({CheckKind::green_claims, "GREEN of what else it takes",
                             "right wherever it does not refuse", std::move(actual), status});
  };
  int cases = 0, green = 0, taken = 0;
  for (const Claim& claim : claims.claims) {
    if (!claim.refused.empty()) continue;
    ++taken;
    cases += claim.tally.cases;
    green += claim.tally.green;
    if (!claim.tally.first_red) continue;
    const RedCase& red = *claim.tally.first_red;
    check(fmt::format("RED with {} ({}), {} seed {}: {}", claim.kind, claim.problem,
                      red.distribution, red.seed, red.metric),
          CheckStatus::fail);
    out.reasons.push_back(
        {reason_of(red.fault),
         fmt::format("{} takes {} ({}) and is RED on {} seed {}: {}; a kernel refuses what "
                     "it does not compute (supports)",
                     options.candidate, claim.problem, claim.kind, red.distribution, red.seed,
                     red.reason),
         again(asked(claim.kind), red.seed)});
    out.ended = true;
    return out;
  }
  check(fmt::format("{}/{} cases of {} kinds, {} refused", green, cases, taken,
                    claims.claims.size() - static_cast<std::size_t>(taken)),
        taken == 0       ? CheckStatus::skipped
        : green == cases ? CheckStatus::pass
                         : CheckStatus::defer);
  if (green < cases)
    out.reasons.push_back(
        {ReasonCode::inconclusive,
         fmt::format("{} took problems of {} kinds and then refused {} of {} cases",
                     options.candidate, taken, cases - green, cases),
         "a kernel that refuses a problem before it has taken it, or never"});
  return out;
}

Result<ShapeEvidence> evidence_of(const Samples& samples, bool primary, ProcessSpread spread) {
  ShapeEvidence out;
  out.name = samples.name;
  out.primary = primary;
  for (const Statistic statistic : {Statistic::p50, Statistic::p90}) {
    auto ratio = paired_log_ratio(samples, 0, 1, statistic, {.processes = spread});
    if (!ratio) return ratio.status();
    (statistic == Statistic::p50 ? out.p50 : out.p90) = std::move(*ratio);
  }
  if (samples.sides.size() > 2) {
    // The noise of these processes, not what others would show.
    auto same =
        paired_log_ratio(samples, 0, 2, Statistic::p50, {.processes = ProcessSpread::resampled});
    if (!same) return same.status();
    out.same = std::move(*same);
  }
  return out;
}

GateTimes times_of(const Samples& samples, const ShapeEvidence& seen, const BesideSamples& beside,
                   const Thresholds& thresholds) {
  const Summary baseline = summarize(samples, 0), candidate = summarize(samples, 1);
  const Peak& peak = beside.peak;
  GateTimes out{.shape = seen.name,
                .primary = seen.primary,
                .problem = samples.problem,
                .speedup = speedup(seen.p50),
                .speedup_p90 = speedup(seen.p90),
                .blocks = seen.p50.blocks,
                .processes = beside.processes,
                .stopped = beside.stopped,
                .baseline = baseline,
                .candidate = candidate,
                .candidate_flops = samples.flops / candidate.p50,
                .candidate_percent_of_peak =
                    peak.flops > 0 ? 100 * samples.flops / candidate.p50 / peak.flops : 0.0,
                .floor_seconds = beside.floor_seconds,
                .peak = peak,
                .clocks = clocks_of(samples)};
  if (seen.same) {
    const Interval same = speedup(*seen.same);
    out.same =
        GateNoise{same, noise_floor(same), decisive(seen.p50, seen.same, thresholds.confidence)};
  }
  return out;
}

std::string impossible_words(double p50, double floor_seconds) {
  return fmt::format("p50 {:.4g} us is below {:.4g} us, which the measured ceilings allow",
                     1e6 * p50, 1e6 * floor_seconds);
}

Reason impossible_baseline(const GateOptions& options, std::string_view shape, double p50,
                           double floor_seconds) {
  return {ReasonCode::inconclusive,
          fmt::format("the baseline {} at {}: {}", options.baseline, shape,
                      impossible_words(p50, floor_seconds)),
          "a baseline that does the work while timed"};
}

std::string busy_words(std::string_view shape, const Summary& baseline) {
  if (!(baseline.other_work > kMostOtherWork)) return {};
  return fmt::format("{}: other work took {:.0f}% of the cores while this was timed", shape,
                     100 * baseline.other_work);
}

GatePart judge_times(std::span<const ShapeEvidence> shapes, const Thresholds& thresholds,
                     const std::string& no_op, const std::string& busy, bool clean) {
  GatePart out;
  out.checklist = checklist_of(shapes, thresholds);
  if (!no_op.empty()) {
    out.reasons.push_back({ReasonCode::no_op, no_op, "a candidate that differs from the baseline"});
    return out;
  }
  out.reasons = decide(shapes, thresholds).reasons;
  if (clean && out.reasons.empty() && !busy.empty())
    out.reasons.push_back({ReasonCode::noisy, busy, "a quieter machine: nothing else running"});
  return out;
}

std::string no_op_of(const GateOptions& options, std::span<const PlannedShape> shapes) {
  if (options.baseline == options.candidate) return "baseline and candidate are the same variant";
  const bool same = std::all_of(shapes.begin(), shapes.end(), [](const PlannedShape& shape) {
    return shape.baseline && shape.candidate && shape.baseline->kernel == shape.candidate->kernel &&
           !shape.baseline->kernel.empty() && shape.baseline->variant == shape.candidate->variant;
  });
  return same ? "both sides run the same kernel on every shape" : "";
}

void judge_peers(PeersStep& step, const Samples& samples, std::string_view candidate) {
  const int ours = samples.side(candidate);
  std::vector<Contender> peers;
  step.best.clear();
  for (PeerSide& entry : step.sides) {
    const int side = samples.side(entry.id);
    if (side < 0) continue;
    const Side& recorded = samples.sides[static_cast<std::size_t>(side)];
    entry.errors = recorded.errors;
    entry.refused = recorded.refused;
    if (!entry.refused.empty()) continue;
    const Summary times = summarize(samples, side);
    entry.p50 = times.p50;
    entry.p90 = times.p90;
    entry.samples = times.n;
    if (side == ours || ours < 0) continue;
    const auto ratio = paired_log_ratio(samples, side, ours, Statistic::p50);
    if (!ratio) {
      entry.refused = ratio.status().message();
      continue;
    }
    entry.speedup = speedup(*ratio);
    peers.push_back({entry.id, times.p50, entry.correctness});
  }
  if (const auto best = fastest_right(peers)) step.best = peers[*best].id;
}

}  // namespace greenfast::workbench
