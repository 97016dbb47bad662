// The one statistics engine: quantiles, block bootstrap, speedups with intervals. Pure functions of
// recorded samples.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "workbench/fast/samples.hpp"

namespace greenfast::workbench {

/// The q-quantile, 0 < q < 1, as the inverse of the empirical distribution, the mean of both
/// neighbours where q falls on a step (the usual median). NaN for no values.
double quantile(std::span<const double> values, double q);

/// A value with the ends of its confidence interval.
struct Interval {
  double value = 0, lo = 0, hi = 0;
};
/// A ratio as every table and verdict prints it: "1.234x [1.200, 1.268]".
std::string ratio_words(const Interval& ratio);

struct BootstrapOptions {
  int resamples = 10'000;
  std::uint64_t seed =
      20'261'121;  ///< fixed, so that a recorded run always yields the same interval
  double confidence = 0.95;
};

/// Times of one side: what `run` and `bench` print.
struct Summary {
  double p50 = 0, p90 = 0, mean = 0, std = 0;  ///< seconds per call
  /// Of p50, widened by the timer's resolution, and downwards by other_work: alone on the machine a
  /// call may have been that much faster, which no number of samples would show.
  double ci_lo = 0, ci_hi = 0;
  double other_work = 0;  ///< mean share of the cores' time that other work took, of blocks used
  std::int64_t n = 0;     ///< samples used
  std::int64_t discarded = 0;  ///< samples in dropped blocks
  int batch = 1;               ///< calls per sample
  double tick = 0;             ///< seconds
  std::string method;          ///< the timer
  CacheState mode = CacheState::cold;
};
Summary summarize(const Samples& samples, int side, const BootstrapOptions& options = {});

enum class Statistic { p50, p90 };
std::string_view name_of(Statistic statistic) noexcept;

/// log(t_baseline / t_candidate) and its bootstrap distribution.
struct LogRatio {
  double point = 0;
  double resolution = 0;  ///< what the timer cannot resolve; added to both ends of the interval
  /// How far the point would fall if the baseline had never waited for a CPU, and rise if the
  /// candidate had not: each of them may have been that much faster, which no number of samples
  /// shows. Added to the ends of the interval.
  double waited_below = 0, waited_above = 0;
  std::int64_t blocks = 0;    ///< that went into it
  std::vector<double> draws;  ///< one per resample, ascending only after interval()
};

/// Both sides were measured in the same blocks. p50: median over blocks of the block's log-ratio.
/// p90: ratio of the 90th percentiles of all samples, each first divided by its block's common
/// level, so that drift does not spread them. Blocks are the unit of resampling; where several
/// processes were recorded, processes first. Fails when a block lacks one of the sides or fewer
/// than two blocks remain.
Result<LogRatio> paired_log_ratio(const Samples& samples, int baseline, int candidate,
                                  Statistic statistic, const BootstrapOptions& options = {});

/// Sides from two recordings. Nothing cancels drift between them, so the interval holds only if the
/// machine did not change; in the simulation of tests/workbench/fast it covers the truth in about
/// a third of the trials.
Result<LogRatio> unpaired_log_ratio(const Samples& baseline, int baseline_side,
                                    const Samples& candidate, int candidate_side,
                                    Statistic statistic, const BootstrapOptions& options = {});

/// Geometric mean of ratios over shapes: the mean of the logs, resample by resample.
LogRatio geometric_mean(std::span<const LogRatio> ratios);

/// The speedup with its percentile interval.
Interval speedup(const LogRatio& ratio, double confidence = 0.95);

/// The larger distance of an A/A interval's ends from 1: differences below it are noise.
double noise_floor(const Interval& same_against_same);

/// How many blocks in all would shrink the interval until it no longer contains threshold, if the
/// point estimate stays; nothing when no number would, because the timer's resolution alone reaches
/// the threshold.
std::optional<std::int64_t> blocks_to_settle(const LogRatio& ratio, double threshold,
                                             double confidence = 0.95);

/// {"value", "lo", "hi"}.
nlohmann::json interval_json(const Interval& interval);

}  // namespace greenfast::workbench
