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

/// How blocks of several processes make an interval.
enum class ProcessSpread {
  resampled,  ///< processes are resampled before their blocks, and that is all
  student,    ///< and the interval is at least Student's of the processes' own estimates
};
/// "resampled", "student": as records have it.
std::string_view name_of(ProcessSpread spread) noexcept;
std::optional<ProcessSpread> parse_process_spread(std::string_view name);

struct BootstrapOptions {
  int resamples = 10'000;
  std::uint64_t seed =
      20'261'121;  ///< fixed, so that a recorded run always yields the same interval
  double confidence = 0.95;
  ProcessSpread processes = ProcessSpread::student;  ///< of ratios
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
  std::int64_t blocks = 0;  ///< that went into it
  /// Processes they came from, and what those tell alone: the standard error of the mean of one
  /// estimate a process. 1 and 0 where the interval shall not know of processes.
  std::int64_t processes = 1;
  double process_error = 0;
  std::vector<double> draws;  ///< one per resample, ascending only after interval()
};

/// Both sides were measured in the same blocks. p50: median over blocks of the block's log-ratio.
/// p90: ratio of the 90th percentiles of all samples, each first divided by its block's common
/// level, so that drift does not spread them. Blocks are the unit of resampling; where several
/// processes were recorded, processes first, and the interval is no narrower than Student's of the
/// processes' own estimates. Fails when a block lacks one of the sides or fewer than two blocks
/// remain.
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

/// Standard deviation between processes that is taken as the most there is, of the log: recorded
/// ones reach 0.04 (p50) and 0.12 (p90, two busy cores). With it two processes can tell a ratio
/// from one a third larger, which Student's quantile of one degree of freedom alone, 12.7, would
/// not let them when they happen to differ by 5%.
inline constexpr double kMostProcessSpread = 0.2;
/// Half of the interval that the processes' estimates alone would have, of the log, at 95%:
/// Student's, and no more than a normal's of kMostProcessSpread, or of what they show where that is
/// more. 0 for one process.
double process_halfwidth(const LogRatio& ratio);

/// The speedup with its percentile interval, and process_halfwidth at least.
Interval speedup(const LogRatio& ratio, double confidence = 0.95);

/// The larger distance of an A/A interval's ends from 1: differences below it are noise.
double noise_floor(const Interval& same_against_same);

/// How many blocks in all would shrink the interval until it no longer contains threshold, if the
/// point estimate stays; nothing when no number would, because the timer's resolution alone or the
/// processes' differences alone reach the threshold.
std::optional<std::int64_t> blocks_to_settle(const LogRatio& ratio, double threshold,
                                             double confidence = 0.95);

/// {"value", "lo", "hi"}.
nlohmann::json interval_json(const Interval& interval);

}  // namespace greenfast::workbench
