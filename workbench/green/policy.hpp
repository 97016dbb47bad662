// What GREEN, FAST and resources demand: read from TOML, where every number stands with its reason.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "workbench/cases/workload.hpp"

namespace greenfast::workbench {

/// Limit of one metric m for one precision: m <= min(factor * m_base + floor, cap), where m_base is
/// the emulator's. A legacy threshold has factor 0 and floor = cap.
struct MetricLimit {
  double factor = 0, floor = 0, cap = 0;
};

struct Policy {
  std::string name;    // "strict", or the path it was read from
  std::string sha256;  // of the text, and of the one that it is based on before it
  /// As it was read: its [[limit]] and [[waiver]] tables are read where resources are judged.
  std::string text;
  Truth reference = Truth::decoded;
  std::vector<Distribution> distributions;

  /// By metric, then by precision: "fp32", "fp16", "bf16", "e4m3". max_err's floor and cap are
  /// relative to the largest |reference| when `relative_max_err`, absolute otherwise.
  std::map<std::string, std::map<std::string, MetricLimit>> limits;
  /// Those of one distribution, which go before: by distribution, metric, precision.
  std::map<Distribution, std::map<std::string, std::map<std::string, MetricLimit>>>
      distribution_limits;
  bool relative_max_err = true;
  /// |error| above which an element counts in percent_bad; <= 0: the limit of max_err.
  double element_threshold = 0;

  // Integrity: what validate looks at besides numbers.
  bool poison = true;    // outputs and workspace, two NaN patterns; unwritten elements are failures
  bool redzones = true;  // around O, LSE and workspace, and the gaps of a strided O
  bool inputs_unchanged = true;
  bool decoy = true;  // a launch on other data at the same addresses comes first
  bool stream = true;
  bool poison_unseen = true;  // see Case
  /// Bitwise equal launches beyond the first, by what the subject runs on; of problems above
  /// flop_budget a sixth of them, at least one.
  struct Reruns {
    int cpu = 2, cuda = 2;
    int on(DeviceKind kind) const { return kind == DeviceKind::cuda ? cuda : cpu; }
  } reruns;

  /// FLOP of attention the oracle may spend on one case (4 D per visible pair); above it rows are
  /// sampled.
  double flop_budget = 1.5e9;

  // Selftest: the cases of the gate's originals. Empty: the workbench's own, chosen so that every
  // planted fault can show.
  std::string selftest_shapes;
  std::vector<DType> selftest_dtypes;

  // FAST: what decide demands.
  double gate = 1.10, guard = 0.98;
  std::string primary = "mission", guards = "small,long";

  /// The limit that applies to a problem: by the coarser of its input and output type, the
  /// distribution's own before the general one. Null: none.
  const MetricLimit* limit(std::string_view metric, const Problem& problem,
                           Distribution distribution = Distribution::normal) const;
};

/// A policy built into the binary by name, or one read from a file. Errors list the known names.
Result<Policy> load_policy(std::string_view name_or_path);
/// Parses a policy; `name` is for messages and records.
Result<Policy> parse_policy(std::string_view name, std::string_view toml);

struct BuiltinPolicy {
  std::string_view name, text;
};
std::span<const BuiltinPolicy> builtin_policies();

}  // namespace greenfast::workbench
