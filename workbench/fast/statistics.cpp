#include "workbench/fast/statistics.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

namespace greenfast::workbench {
namespace {

/// splitmix64 (Steele, Lea, Flood 2014): the same numbers on every platform, which <random>'s
/// distributions are not.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /// Uniform in [0, n), n < 2^32; the bias of the multiplication is below 2^-32.
  std::size_t below(std::size_t n) {
    return static_cast<std::size_t>(((next() >> 32) * static_cast<std::uint64_t>(n)) >> 32);
  }

 private:
  std::uint64_t state_;
};

std::uint64_t mix(std::uint64_t seed, const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325u ^ seed;  // FNV-1a
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

/// How often a resample holds each block.
using Weights = std::vector<int>;

/// Draws blocks with replacement; where blocks come from several processes, processes first, so
/// that what differs from process to process (addresses, page colours, clocks) widens the interval
/// instead of hiding in it.
class Resampler {
 public:
  Resampler(const std::vector<int>& process_of_block, std::uint64_t seed) : random_(seed) {
    std::vector<int> ids = process_of_block;
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    blocks_of_process_.resize(ids.size());
    for (std::size_t b = 0; b < process_of_block.size(); ++b) {
      const auto p = std::lower_bound(ids.begin(), ids.end(), process_of_block[b]) - ids.begin();
      blocks_of_process_[static_cast<std::size_t>(p)].push_back(b);
    }
    weights_.resize(process_of_block.size());
  }
  std::size_t processes() const { return blocks_of_process_.size(); }
  /// The blocks of one process, once each.
  const Weights& only(std::size_t process) {
    std::fill(weights_.begin(), weights_.end(), 0);
    for (const std::size_t block : blocks_of_process_[process]) weights_[block] = 1;
    return weights_;
  }
  const Weights& draw() {
    std::fill(weights_.begin(), weights_.end(), 0);
    for (std::size_t i = 0; i < blocks_of_process_.size(); ++i) {
      const auto& blocks = blocks_of_process_.size() == 1
                               ? blocks_of_process_.front()
                               : blocks_of_process_[random_.below(blocks_of_process_.size())];
      for (std::size_t k = 0; k < blocks.size(); ++k)
        ++weights_[blocks[random_.below(blocks.size())]];
    }
    return weights_;
  }

 private:
  Random random_;
  std::vector<std::vector<std::size_t>> blocks_of_process_;
  Weights weights_;
};

/// Where the quantile of `total` values lies: of so many the last, on a step the mean of that and the next.
struct Rank {
  std::int64_t index;
  bool step;
};
Rank rank_of(double q, std::int64_t total) {
  const double rank = q * static_cast<double>(total), whole = std::round(rank);
  const bool step = std::abs(rank - whole) < 1e-9 * static_cast<double>(total);
  return {static_cast<std::int64_t>(step ? whole : std::ceil(rank)), step};
}

/// The quantile of values, whose order it changes; not of none. Intervals ask for two of ten thousand draws: a sort and a
/// walk for each took half of the time of `greenfast evidence verify` (2026-11-28).
double quantile_of(std::vector<double>& values, double q) {
  const auto [index, step] = rank_of(q, static_cast<std::int64_t>(values.size()));
  const auto at = values.begin() + (std::max<std::int64_t>(index, 1) - 1);
  std::nth_element(values.begin(), at, values.end());
  if (!step || index < 1 || at + 1 == values.end()) return *at;
  return 0.5 * (*at + *std::min_element(at + 1, values.end()));
}

/// Values that carry the block they came from, sorted once, so that the quantile of a resample is
/// one walk.
class Weighted {
 public:
  void add(double value, std::size_t block) { entries_.push_back({value, block}); }
  void seal() {
    std::sort(entries_.begin(), entries_.end(),
              [](const Entry& a, const Entry& b) { return a.value < b.value; });
  }
  bool empty() const { return entries_.empty(); }

  double quantile(double q, const Weights& weights) const {
    std::int64_t total = 0;
    for (const Entry& entry : entries_) total += weights[entry.block];
    if (total == 0) return std::numeric_limits<double>::quiet_NaN();
    const auto [index, step] = rank_of(q, total);
    std::int64_t seen = 0;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      seen += weights[entries_[i].block];
      if (seen < std::max<std::int64_t>(index, 1)) continue;
      if (!step || seen > index) return entries_[i].value;
      for (std::size_t next = i + 1; next < entries_.size(); ++next) {
        if (weights[entries_[next].block] > 0)
          return 0.5 * (entries_[i].value + entries_[next].value);
      }
      return entries_[i].value;
    }
    return entries_.back().value;
  }

 private:
  struct Entry {
    double value;
    std::size_t block;
  };
  std::vector<Entry> entries_;
};

/// A percentile interval of n units is too short for small n: the bootstrap's spread is that of n,
/// not n - 1, and its tails are a normal's, not Student's. Both corrections as one factor, from the
/// first terms of t's expansion (Abramowitz and Stegun 26.7.5) at 97.5%.
double small_sample_factor(std::int64_t n) {
  if (n < 2) return 1;
  const double nu = static_cast<double>(n - 1), z = 1.959964;
  const double t = z + (z * z * z + z) / (4 * nu) +
                   (5 * std::pow(z, 5) + 16 * std::pow(z, 3) + 3 * z) / (96 * nu * nu);
  return t / z * std::sqrt(static_cast<double>(n) / nu);
}

/// Student's quantile at 97.5%: the first two by their formulas, since the expansion (Abramowitz and
/// Stegun 26.7.5, four terms) is 0.1% off from three degrees of freedom on.
double student(std::int64_t nu) {
  if (nu < 2) return 12.706205;
  if (nu == 2) return 4.302653;
  const double z = 1.959964, n = static_cast<double>(nu);
  const auto power = [&](int k) { return std::pow(z, k); };
  return z + (power(3) + z) / (4 * n) + (5 * power(5) + 16 * power(3) + 3 * z) / (96 * n * n) +
         (3 * power(7) + 19 * power(5) + 17 * power(3) - 15 * z) / (384 * std::pow(n, 3)) +
         (79 * power(9) + 776 * power(7) + 1482 * power(5) - 1920 * power(3) - 945 * z) /
             (92160 * std::pow(n, 4));
}

/// Ends of the interval relative to the point, before the timer's resolution.
std::pair<double, double> spread(const LogRatio& ratio, double confidence) {
  if (ratio.draws.empty()) return {0, 0};
  std::vector<double> draws = ratio.draws;
  const double tail = 0.5 * (1 - confidence);
  const double factor = small_sample_factor(ratio.blocks);
  const double least = process_halfwidth(ratio);
  return {std::max(least, factor * (ratio.point - quantile_of(draws, tail))),
          std::max(least, factor * (quantile_of(draws, 1 - tail) - ratio.point))};
}

/// What each process tells alone, put into `ratio`.
void add_process_error(LogRatio& ratio, const std::vector<double>& estimates) {
  const double n = static_cast<double>(estimates.size());
  if (n < 2) return;
  double mean = 0, squares = 0;
  for (const double estimate : estimates) mean += estimate / n;
  for (const double estimate : estimates) squares += (estimate - mean) * (estimate - mean);
  ratio.processes = static_cast<std::int64_t>(estimates.size());
  ratio.process_error = std::sqrt(squares / (n - 1) / n);
}

/// What one reading of the clock may hide of one sample, relative.
double resolution(const Samples& samples, int side, double p50) {
  const double batch = samples.sides[static_cast<std::size_t>(side)].batch;
  return p50 > 0 ? samples.tick_seconds / (batch * p50) : 0;
}

/// Kept times of one side, and the numbers that the engine needs of each block.
struct SideTimes {
  std::vector<int> process;             // of each kept block
  std::vector<std::vector<double>> of;  // seconds by block
  std::vector<double> all;

  double level(std::size_t block) const {  // mean log
    double sum = 0;
    for (const double seconds : of[block]) sum += std::log(seconds);
    return sum / static_cast<double>(of[block].size());
  }
};

SideTimes times_of(const Samples& samples, int side) {
  SideTimes times;
  for (const Block& block : samples.blocks) {
    if (!block.dropped.empty()) continue;
    std::vector<double> seconds;
    for (const Sample& sample : block.samples) {
      if (sample.side == side) seconds.push_back(sample.seconds);
    }
    if (seconds.empty()) continue;
    times.process.push_back(block.process);
    times.all.insert(times.all.end(), seconds.begin(), seconds.end());
    times.of.push_back(std::move(seconds));
  }
  return times;
}

}  // namespace

std::string_view name_of(Statistic statistic) noexcept {
  return statistic == Statistic::p50 ? "p50" : "p90";
}

std::string_view name_of(ProcessSpread spread) noexcept {
  return spread == ProcessSpread::student ? "student" : "resampled";
}

std::optional<ProcessSpread> parse_process_spread(std::string_view name) {
  for (const ProcessSpread spread : {ProcessSpread::resampled, ProcessSpread::student})
    if (name_of(spread) == name) return spread;
  return std::nullopt;
}

std::string ratio_words(const Interval& ratio) {
  // A hundredth of the speed needs digits where a ratio near 1 has them.
  return ratio.value < 0.1
             ? fmt::format("{:.3g}x [{:.3g}, {:.3g}]", ratio.value, ratio.lo, ratio.hi)
             : fmt::format("{:.3f}x [{:.3f}, {:.3f}]", ratio.value, ratio.lo, ratio.hi);
}

double quantile(std::span<const double> values, double q) {
  std::vector<double> own(values.begin(), values.end());
  return own.empty() ? std::numeric_limits<double>::quiet_NaN() : quantile_of(own, q);
}

Summary summarize(const Samples& samples, int side, const BootstrapOptions& options) {
  Summary summary;
  summary.batch = samples.sides[static_cast<std::size_t>(side)].batch;
  summary.tick = samples.tick_seconds;
  summary.method = samples.timer;
  summary.mode = samples.cache;
  for (const Block& block : samples.blocks) {
    if (block.dropped.empty()) continue;
    for (const Sample& sample : block.samples) summary.discarded += sample.side == side ? 1 : 0;
  }
  const SideTimes times = times_of(samples, side);
  summary.n = static_cast<std::int64_t>(times.all.size());
  if (summary.n == 0) return summary;

  Weighted weighted;
  for (std::size_t block = 0; block < times.of.size(); ++block) {
    for (const double seconds : times.of[block]) {
      weighted.add(seconds, block);
      summary.mean += seconds;
    }
  }
  weighted.seal();
  summary.mean /= static_cast<double>(summary.n);
  double squares = 0;
  for (const double seconds : times.all)
    squares += (seconds - summary.mean) * (seconds - summary.mean);
  summary.std = summary.n > 1 ? std::sqrt(squares / static_cast<double>(summary.n - 1)) : 0;
  const Weights ones(times.of.size(), 1);
  summary.p50 = weighted.quantile(0.5, ones);
  summary.p90 = weighted.quantile(0.9, ones);

  LogRatio bootstrap;
  bootstrap.point = std::log(summary.p50);
  bootstrap.blocks = static_cast<std::int64_t>(times.of.size());
  Resampler resampler(times.process, mix(options.seed, samples.name + samples.problem));
  for (int i = 0; i < options.resamples; ++i) {
    bootstrap.draws.push_back(std::log(weighted.quantile(0.5, resampler.draw())));
  }
  bootstrap.resolution = resolution(samples, side, summary.p50);
  const Interval interval = speedup(bootstrap, options.confidence);
  std::int64_t used = 0;
  for (const Block& block : samples.blocks) {
    if (!block.dropped.empty()) continue;
    summary.other_work += block.other_work;
    ++used;
  }
  summary.other_work /= static_cast<double>(used);
  summary.ci_lo = interval.lo * (1 - summary.other_work);
  summary.ci_hi = interval.hi;
  return summary;
}

namespace {

/// Samples of two sides that were measured in the same blocks.
struct Pairs {
  std::vector<int> process;                     // of each kept block
  std::vector<std::vector<Sample>> base, cand;  // by block
};

/// The estimate of a pair's log-ratio for any weights of its blocks.
class PairedEstimate {
 public:
  /// A side that is `alone` is taken as it would have been without its waiting for a CPU.
  PairedEstimate(const Pairs& pairs, Statistic statistic, bool base_alone, bool cand_alone)
      : statistic_(statistic) {
    const auto logs = [](const std::vector<Sample>& samples, bool alone) {
      std::vector<double> out;
      for (const Sample& sample : samples)
        out.push_back(std::log(sample.seconds - (alone ? sample.waited : 0)));
      return out;
    };
    const auto mean = [](const std::vector<double>& values) {
      double sum = 0;
      for (const double value : values) sum += value;
      return sum / static_cast<double>(values.size());
    };
    for (std::size_t block = 0; block < pairs.process.size(); ++block) {
      const std::vector<double> base = logs(pairs.base[block], base_alone),
                                cand = logs(pairs.cand[block], cand_alone);
      const double base_log = mean(base), cand_log = mean(cand);
      ratios_.add(base_log - cand_log, block);
      const double common = 0.5 * (base_log + cand_log);
      for (const double t : base) base_levels_.add(t - common, block);
      for (const double t : cand) cand_levels_.add(t - common, block);
    }
    ratios_.seal();
    base_levels_.seal();
    cand_levels_.seal();
  }
  double operator()(const Weights& weights) const {
    return statistic_ == Statistic::p50
               ? ratios_.quantile(0.5, weights)
               : base_levels_.quantile(0.9, weights) - cand_levels_.quantile(0.9, weights);
  }

 private:
  Statistic statistic_;
  Weighted ratios_, base_levels_, cand_levels_;
};

}  // namespace

Result<LogRatio> paired_log_ratio(const Samples& samples, int baseline, int candidate,
                                  Statistic statistic, const BootstrapOptions& options) {
  Pairs pairs;
  std::vector<double> base_all, cand_all;
  bool waited = false;
  for (std::size_t index = 0; index < samples.blocks.size(); ++index) {
    const Block& block = samples.blocks[index];
    if (!block.dropped.empty()) continue;
    std::vector<Sample> b, c;
    for (const Sample& sample : block.samples) {
      if (sample.side == baseline) {
        b.push_back(sample);
        base_all.push_back(sample.seconds);
      }
      if (sample.side == candidate) {
        c.push_back(sample);
        cand_all.push_back(sample.seconds);
      }
      waited = waited || sample.waited > 0;
    }
    if (b.empty() || c.empty()) {
      return Status(
          StatusCode::invalid_argument,
          fmt::format(
              "shape {}: block {} has no sample of {}; both sides must be "
              "measured in every block",
              samples.name, index,
              samples.sides[static_cast<std::size_t>(b.empty() ? baseline : candidate)].id));
    }
    pairs.process.push_back(block.process);
    pairs.base.push_back(std::move(b));
    pairs.cand.push_back(std::move(c));
  }
  if (pairs.process.size() < 2) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("shape {}: {} of {} blocks usable; an interval needs at least 2",
                              samples.name, pairs.process.size(), samples.blocks.size()));
  }

  LogRatio ratio;
  ratio.blocks = static_cast<std::int64_t>(pairs.process.size());
  const PairedEstimate estimate(pairs, statistic, false, false);
  const Weights ones(pairs.process.size(), 1);
  ratio.point = estimate(ones);
  if (waited) {
    const PairedEstimate low(pairs, statistic, true, false), high(pairs, statistic, false, true);
    ratio.waited_below = std::max(0.0, ratio.point - low(ones));
    ratio.waited_above = std::max(0.0, high(ones) - ratio.point);
  }
  // The two readings' errors are independent.
  ratio.resolution = std::hypot(resolution(samples, baseline, quantile(base_all, 0.5)),
                                resolution(samples, candidate, quantile(cand_all, 0.5)));
  Resampler resampler(pairs.process, mix(options.seed, samples.name + samples.problem));
  ratio.draws.reserve(static_cast<std::size_t>(options.resamples));
  for (int i = 0; i < options.resamples; ++i) ratio.draws.push_back(estimate(resampler.draw()));
  if (options.processes == ProcessSpread::student) {
    std::vector<double> alone;
    for (std::size_t p = 0; p < resampler.processes(); ++p)
      alone.push_back(estimate(resampler.only(p)));
    add_process_error(ratio, alone);
  }
  return ratio;
}

Result<LogRatio> unpaired_log_ratio(const Samples& baseline, int baseline_side,
                                    const Samples& candidate, int candidate_side,
                                    Statistic statistic, const BootstrapOptions& options) {
  const SideTimes base = times_of(baseline, baseline_side),
                  cand = times_of(candidate, candidate_side);
  for (const auto* side : {&base, &cand}) {
    if (side->of.size() >= 2) continue;
    const Samples& owner = side == &base ? baseline : candidate;
    return Status(StatusCode::invalid_argument,
                  fmt::format("shape {}: {} of {} blocks usable; an interval needs at least 2",
                              owner.name, side->of.size(), owner.blocks.size()));
  }
  const auto weighted = [&](const SideTimes& side) {
    Weighted values;
    for (std::size_t block = 0; block < side.of.size(); ++block) {
      if (statistic == Statistic::p50) {
        values.add(side.level(block), block);
      } else {
        for (const double seconds : side.of[block]) values.add(std::log(seconds), block);
      }
    }
    values.seal();
    return values;
  };
  const double q = statistic == Statistic::p50 ? 0.5 : 0.9;
  const Weighted b = weighted(base), c = weighted(cand);
  LogRatio ratio;
  ratio.blocks = static_cast<std::int64_t>(std::min(base.of.size(), cand.of.size()));
  ratio.point =
      b.quantile(q, Weights(base.of.size(), 1)) - c.quantile(q, Weights(cand.of.size(), 1));
  ratio.resolution = std::hypot(resolution(baseline, baseline_side, quantile(base.all, 0.5)),
                                resolution(candidate, candidate_side, quantile(cand.all, 0.5)));
  Resampler base_draws(base.process, mix(options.seed, baseline.name + baseline.problem));
  Resampler cand_draws(cand.process, mix(options.seed + 1, candidate.name + candidate.problem));
  ratio.draws.reserve(static_cast<std::size_t>(options.resamples));
  for (int i = 0; i < options.resamples; ++i) {
    ratio.draws.push_back(b.quantile(q, base_draws.draw()) - c.quantile(q, cand_draws.draw()));
  }
  if (options.processes == ProcessSpread::student && base_draws.processes() > 1 &&
      cand_draws.processes() > 1) {
    // Neither side's processes belong to the other's, so their errors add.
    const auto error = [&](Resampler& draws, const Weighted& side) {
      LogRatio of;
      std::vector<double> alone;
      for (std::size_t p = 0; p < draws.processes(); ++p)
        alone.push_back(side.quantile(q, draws.only(p)));
      add_process_error(of, alone);
      return of;
    };
    const LogRatio of_base = error(base_draws, b), of_cand = error(cand_draws, c);
    ratio.processes = std::min(of_base.processes, of_cand.processes);
    ratio.process_error = std::hypot(of_base.process_error, of_cand.process_error);
  }
  return ratio;
}

LogRatio geometric_mean(std::span<const LogRatio> ratios) {
  LogRatio mean;
  if (ratios.empty()) return mean;
  const double share = 1.0 / static_cast<double>(ratios.size());
  std::size_t draws = ratios.front().draws.size();
  mean.blocks = ratios.front().blocks;
  mean.processes = ratios.front().processes;
  for (const LogRatio& ratio : ratios) {
    mean.point += share * ratio.point;
    mean.resolution += share * ratio.resolution;
    mean.waited_below += share * ratio.waited_below;
    mean.waited_above += share * ratio.waited_above;
    mean.blocks = std::min(mean.blocks, ratio.blocks);
    // Every shape was timed in processes of its own.
    mean.processes = std::min(mean.processes, ratio.processes);
    mean.process_error = std::hypot(mean.process_error, share * ratio.process_error);
    draws = std::min(draws, ratio.draws.size());
  }
  mean.draws.assign(draws, 0.0);
  for (const LogRatio& ratio : ratios) {
    for (std::size_t i = 0; i < draws; ++i) mean.draws[i] += share * ratio.draws[i];
  }
  return mean;
}

double process_halfwidth(const LogRatio& ratio) {
  if (ratio.processes < 2) return 0;
  const double known = kMostProcessSpread / std::sqrt(static_cast<double>(ratio.processes));
  return std::min(student(ratio.processes - 1) * ratio.process_error,
                  1.959964 * std::max(known, ratio.process_error));
}

Interval speedup(const LogRatio& ratio, double confidence) {
  const auto [below, above] = spread(ratio, confidence);
  return {std::exp(ratio.point),
          std::exp(ratio.point - below - ratio.resolution - ratio.waited_below),
          std::exp(ratio.point + above + ratio.resolution + ratio.waited_above)};
}

double noise_floor(const Interval& same_against_same) {
  return std::max(same_against_same.hi - 1, 1 - same_against_same.lo);
}

std::optional<std::int64_t> blocks_to_settle(const LogRatio& ratio, double threshold,
                                             double confidence) {
  const bool above = ratio.point > std::log(threshold);
  const double distance = std::abs(ratio.point - std::log(threshold)) - ratio.resolution -
                          (above ? ratio.waited_below : ratio.waited_above);
  if (!(distance > process_halfwidth(ratio))) return std::nullopt;
  const auto [lower, upper] = spread(ratio, confidence);
  // The width falls with the square root of the number of blocks.
  const double factor = (above ? lower : upper) / distance;
  const double blocks = std::ceil(static_cast<double>(ratio.blocks) * factor * factor);
  // Beyond a billion it is not a matter of samples.
  if (blocks > 1e9) return std::nullopt;
  return std::max(ratio.blocks, static_cast<std::int64_t>(blocks));
}

nlohmann::json interval_json(const Interval& interval) {
  return {{"value", interval.value}, {"lo", interval.lo}, {"hi", interval.hi}};
}

}  // namespace greenfast::workbench
