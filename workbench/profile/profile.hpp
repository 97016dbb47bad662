// Profiles: why a kernel is as fast as it is. Counters from ncu (GPU) or perf (CPU), in the words
// of one table of metrics; what bounds the kernel; and, for two sides, whether each metric moved as
// the change's plan predicted.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <greenfast/attention.hpp>

#include "workbench/device/device.hpp"
#include "workbench/verdict/predictions.hpp"

namespace greenfast::workbench {

/// A metric that profiles are made of. To add one: a row in profile/metrics.cpp.
struct ProfileMetric {
  std::string_view id;     ///< "tensor_active", as plans name it
  std::string_view label;  ///< in tables
  std::string_view unit;   ///< "%", "bytes", "ns", ""
  std::string_view
      names;  ///< the tool's names for it, the first that it gives counts; spaces between
};
std::span<const ProfileMetric> gpu_metrics();
std::span<const ProfileMetric> cpu_metrics();
/// Why warps wait: "long_scoreboard" and what that is.
struct StallReason {
  std::string_view id, means, advice;
};
std::span<const StallReason> stall_reasons();

/// One launch as a tool reports it: the kernel's name, values by the tool's names, in base units.
struct KernelCounters {
  std::string kernel;
  std::map<std::string, double> values;
};
/// Reads `ncu --csv --page raw --print-units base`, whatever stands before its header. Errors say
/// what is missing and at which line.
Result<std::vector<KernelCounters>> parse_ncu_csv(std::string_view csv);
/// Reads `perf stat -x,`: events by name; those that the machine does not count are left out.
std::map<std::string, double> parse_perf_csv(std::string_view csv);

/// What one call of a variant cost, by metric id. Launches of a call are added up: sums as sums,
/// parts of a peak weighted by time.
struct SideProfile {
  std::string variant;
  std::optional<std::string> skipped;  ///< why there is none
  std::vector<std::string> kernels;
  std::map<std::string, double, std::less<>> metrics;
  std::vector<std::string> missing;                    ///< ids that the tool does not give
  std::vector<std::pair<std::string, double>> stalls;  ///< reason, part of the warps' waiting time
  std::vector<std::string> findings, advice;
  std::optional<double> get(std::string_view id) const;
};
/// The launches of one call.
SideProfile side_of_counters(const std::string& variant, std::span<const KernelCounters> call,
                             std::span<const ProfileMetric> metrics);
/// Adds findings and advice. `flop` and `bytes` of one call; a peak of zeros was not measured.
void explain_gpu(SideProfile& side, double flop, double bytes, const Peak& peak,
                 int multiprocessors);
void explain_cpu(SideProfile& side, double flop, double bytes, const Peak& peak);

/// Whether a prediction may name it.
bool is_profile_metric(std::string_view id);

struct MetricMove {
  std::string id, label;
  std::string baseline, candidate;  ///< values in words
  std::string seen;                 ///< "up", "down", "equal", "-"
  std::string predicted;            ///< the same, or "-"
  std::string status;  ///< "as predicted", "against the prediction", "not predicted", "missing"
};
/// Equal: within 2%, or within half a point where the unit is %.
std::vector<MetricMove> moves(const SideProfile& baseline, const SideProfile& candidate,
                              std::span<const ProfileMetric> metrics, const Prediction* prediction);

/// What to profile and with which program.
struct ProfileJob {
  std::string variant;
  /// The command that launches it `calls` times, for the tool to run; {calls} is replaced.
  std::vector<std::string> launch;
  bool hot = false;
  std::filesystem::path raw;  ///< where the raw profile goes; empty: it is not kept
};
/// Launches of the last of three calls. Never fails for want of a tool or of permission: `skipped`
/// says which.
struct Collected {
  std::optional<std::string> skipped;
  std::vector<KernelCounters> call;
  std::string tool;  ///< "ncu 2025.3.1"
};
Result<Collected> collect_ncu(const ProfileJob& job);
Result<Collected> collect_perf(const ProfileJob& job);

nlohmann::json side_json(const SideProfile& side, std::span<const ProfileMetric> metrics);
/// What people read of a profile's record (schema greenfast.profile/1).
std::string profile_markdown(const nlohmann::json& record);

}  // namespace greenfast::workbench
