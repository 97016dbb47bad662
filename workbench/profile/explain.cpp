// What counters mean, in words: what bounds a kernel, what follows, and how metrics moved.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "workbench/base/terminal.hpp"
#include "workbench/profile/profile.hpp"

namespace greenfast::workbench {
namespace {

// A pipe above this part of its peak is what a kernel can be said to be bound by; 60% is where
// Nsight Compute's own rules begin to speak of a bottleneck.
constexpr double kBusy = 60;

std::string tera(double rate) { return fmt::format("{:.3f} TFLOP/s", rate * 1e-12); }

void roofline(SideProfile& side, double flop, double bytes, double seconds, const Peak& peak) {
  if (!(flop > 0) || !(seconds > 0)) return;
  const double rate = flop / seconds;
  if (!(peak.flops > 0) || !(peak.bytes_per_second > 0)) {
    side.findings.push_back(
        fmt::format("{} while profiled; no ceiling was measured beside it", tera(rate)));
    return;
  }
  const double intensity = bytes > 0 ? flop / bytes : 0;
  const double roof = std::min(peak.flops, intensity * peak.bytes_per_second);
  side.findings.push_back(fmt::format(
      "roofline: {} while profiled, {:.1f}% of the {} that {:.1f} FLOP per byte allow here ({})",
      tera(rate), 100 * rate / roof, tera(roof), intensity,
      roof < peak.flops ? "the measured bandwidth is the ceiling"
                        : "measured arithmetic is the ceiling"));
}

const StallReason* reason_of(std::string_view id) {
  for (const StallReason& r : stall_reasons())
    if (r.id == id) return &r;
  return nullptr;
}

std::string value_in_words(const ProfileMetric& metric, double value) {
  if (metric.unit == "%") return fmt::format("{:.1f}%", value);
  if (metric.unit == "ns") return format_duration(value * 1e-9);
  if (metric.unit == "ms") return format_duration(value * 1e-3);
  if (metric.unit == "bytes" && value >= 1e6) return fmt::format("{:.2f} MB", value * 1e-6);
  if (metric.unit == "bytes") return fmt::format("{:.1f} KB", value * 1e-3);
  return std::abs(value) < 100 && value != std::floor(value) ? fmt::format("{:.2f}", value)
                                                             : fmt::format("{:.0f}", value);
}

}  // namespace

void explain_gpu(SideProfile& side, double flop, double bytes, const Peak& peak,
                 int multiprocessors) {
  if (side.skipped) return;
  const auto part = [&](std::string_view id) { return side.get(id).value_or(0); };
  roofline(side, flop, bytes, part("time") * 1e-9, peak);

  // The busiest unit, where one is busy enough to be the bound.
  struct Unit {
    std::string_view id, bound, advice;
  };
  static constexpr std::array kUnits{
      Unit{
          "tensor_active", "the tensor pipe",
          "fewer or cheaper products (a narrower type, skipped tiles): all else is hidden already"},
      Unit{"dram_throughput", "device memory",
           "move fewer bytes: larger query tiles, shared K and V, narrower types"},
      Unit{"l2_throughput", "L2",
           "fewer passes over K and V: larger query tiles, multicast in a cluster"},
      Unit{"xu_active", "exponentials and conversions",
           "fewer of them: exp2 with a folded scale, packed conversions, a polynomial on the FMA "
           "pipe"},
      Unit{"fma_active", "the FMA pipe", "move products to tensor cores, fold scales"},
      Unit{"issue_active", "instruction issue",
           "fewer instructions: wider loads, less address arithmetic, larger matrix instructions"},
  };
  const Unit* busiest = nullptr;
  for (const Unit& unit : kUnits)
    if (part(unit.id) >= kBusy && (busiest == nullptr || part(unit.id) > part(busiest->id)))
      busiest = &unit;
  const double grid = part("grid");
  const bool too_few = grid > 0 && multiprocessors > 0 && grid < multiprocessors;
  if (busiest != nullptr) {
    side.findings.push_back(
        fmt::format("bound by {}: {:.1f}% of its peak", busiest->bound, part(busiest->id)));
    side.advice.emplace_back(busiest->advice);
  } else {
    side.findings.push_back(
        fmt::format("bound by latency: no unit is busy (tensor {:.1f}%, issue {:.1f}%, L2 {:.1f}%, "
                    "DRAM {:.1f}% of their peaks)",
                    part("tensor_active"), part("issue_active"), part("l2_throughput"),
                    part("dram_throughput")));
  }
  if (too_few) {
    side.findings.push_back(
        fmt::format("{:.0f} blocks for {} multiprocessors: {:.0f}% of the GPU has nothing to do",
                    grid, multiprocessors, 100 * (1 - grid / multiprocessors)));
    side.advice.emplace_back(
        "more blocks at this shape: smaller query tiles, or keys split between blocks");
  }
  if (!side.stalls.empty()) {
    // "selected" and "not_selected" are no waiting.
    double ready = 0;
    const StallReason* first = nullptr;
    double first_share = 0;
    for (const auto& [id, share] : side.stalls) {
      if (id == "selected" || id == "not_selected") {
        ready += share;
      } else if (first == nullptr) {
        first = reason_of(id);
        first_share = share;
      }
    }
    if (first != nullptr) {
      side.findings.push_back(
          fmt::format("warps wait {:.0f}% of their time for {}; {:.0f}% they are ready",
                      100 * first_share, first->means, 100 * ready));
      if (busiest == nullptr) side.advice.emplace_back(first->advice);
    }
  }
  const double conflicts = part("bank_conflicts"), wavefronts = part("shared_wavefronts");
  if (wavefronts > 0 && conflicts > 0.2 * wavefronts) {
    side.findings.push_back(
        fmt::format("{:.0f}% of the shared-memory wavefronts are bank conflicts",
                    100 * conflicts / wavefronts));
    side.advice.emplace_back(
        "pad or swizzle the shared-memory tile whose rows are read across banks");
  }
  struct Limit {
    std::string_view id, what;
  };
  static constexpr std::array kLimits{
      Limit{"limit_registers", "registers"}, Limit{"limit_shared", "shared memory"},
      Limit{"limit_warps", "warps"}, Limit{"limit_blocks", "blocks"}};
  const Limit* tightest = nullptr;
  for (const Limit& limit : kLimits)
    if (side.get(limit.id) && (tightest == nullptr || part(limit.id) < part(tightest->id)))
      tightest = &limit;
  if (tightest != nullptr)
    side.findings.push_back(fmt::format(
        "occupancy: {:.0f}% of the warps resident, {:.0f}% possible; {} allow {:.0f} blocks on a "
        "multiprocessor",
        part("warps_active"), part("occupancy_possible"), tightest->what, part(tightest->id)));
  const double moved = part("dram_read") + part("dram_write");
  if (moved > 0 && bytes > 0)
    side.findings.push_back(
        fmt::format("{:.2f} MB through device memory, {:.2f} times each tensor once", moved * 1e-6,
                    moved / bytes));
}

void explain_cpu(SideProfile& side, double flop, double bytes, const Peak& peak) {
  if (side.skipped) return;
  const auto part = [&](std::string_view id) { return side.get(id).value_or(0); };
  (void)peak;
  const double cycles = part("cycles"), instructions = part("instructions");
  if (cycles > 0 && instructions > 0) {
    const double per_cycle = instructions / cycles;
    side.findings.push_back(fmt::format(
        "{:.2f} instructions a cycle, {:.2f} FLOP an instruction, {:.2f} FLOP a cycle of one core",
        per_cycle, flop / instructions, flop / cycles));
    if (per_cycle < 1)
      side.advice.emplace_back(
          "cores wait: fewer cache misses (smaller tiles), more independent accumulators");
    else if (flop / instructions < 8)
      side.advice.emplace_back(
          "fewer instructions for each FLOP: wider vectors, fewer loads for each multiply-add");
    else
      side.advice.emplace_back(
          "instructions are dense and wide: look for FLOP that need not be done");
  }
  if (part("cache_misses") > 0)
    side.findings.push_back(fmt::format(
        "{:.2f} MB missed the last-level cache, {:.2f} times each tensor once",
        part("cache_misses") * 64e-6, bytes > 0 ? part("cache_misses") * 64 / bytes : 0));
  if (part("branches") > 0 && part("branch_misses") > 0.01 * part("branches"))
    side.findings.push_back(fmt::format("{:.1f}% of the branches mispredicted",
                                        100 * part("branch_misses") / part("branches")));
}

bool is_profile_metric(std::string_view id) {
  const auto known = [&](std::span<const ProfileMetric> metrics) {
    return std::any_of(metrics.begin(), metrics.end(),
                       [&](const ProfileMetric& m) { return m.id == id; });
  };
  return known(gpu_metrics()) || known(cpu_metrics());
}

std::vector<MetricMove> moves(const SideProfile& baseline, const SideProfile& candidate,
                              std::span<const ProfileMetric> metrics,
                              const Prediction* prediction) {
  std::vector<MetricMove> out;
  for (const ProfileMetric& metric : metrics) {
    MetricMove move{std::string(metric.id), std::string(metric.label), "-", "-", "-", "-", ""};
    const auto a = baseline.get(metric.id), b = candidate.get(metric.id);
    if (a) move.baseline = value_in_words(metric, *a);
    if (b) move.candidate = value_in_words(metric, *b);
    if (prediction != nullptr)
      if (const auto found = prediction->directions.find(metric.id);
          found != prediction->directions.end())
        move.predicted = found->second;
    if (!a || !b) {
      if (move.predicted == "-" && !a && !b) continue;
      move.status = "missing";
    } else {
      const double tolerance =
          metric.unit == "%" ? 0.5 : 0.02 * std::max(std::abs(*a), std::abs(*b));
      move.seen = std::abs(*b - *a) <= tolerance ? "equal" : *b > *a ? "up" : "down";
      move.status = move.predicted == "-"         ? "not predicted"
                    : move.predicted == move.seen ? "as predicted"
                                                  : "against the prediction";
    }
    out.push_back(std::move(move));
  }
  return out;
}

nlohmann::json side_json(const SideProfile& side, std::span<const ProfileMetric> metrics) {
  using nlohmann::json;
  json list = json::array(), stalls = json::array();
  for (const ProfileMetric& m : metrics)
    if (const auto value = side.get(m.id))
      list.push_back({{"name", m.id}, {"label", m.label}, {"unit", m.unit}, {"value", *value}});
  for (const auto& [id, share] : side.stalls) {
    const StallReason* reason = reason_of(id);
    stalls.push_back(
        {{"reason", id}, {"share", share}, {"means", reason != nullptr ? reason->means : ""}});
  }
  return {
      {"variant", side.variant},   {"skipped", side.skipped ? json(*side.skipped) : json(nullptr)},
      {"kernels", side.kernels},   {"metrics", list},
      {"missing", side.missing},   {"stalls", stalls},
      {"findings", side.findings}, {"advice", side.advice}};
}

}  // namespace greenfast::workbench
