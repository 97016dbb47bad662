// What a gate is asked to judge, in the words of the command line, and the one place that spells it
// out as JSON: job.json and gate.json hold it, so that an interrupted job goes on by its record.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include <greenfast/types.hpp>

#include "workbench/subjects/plugin/plugins.hpp"

namespace greenfast::workbench {

struct GateOptions {
  std::string baseline, candidate;  ///< ids of subjects; mutants and honest kernels are valid
  std::string primary, guards;      ///< shapes; empty: the policy's
  std::string dtype;   ///< empty: the first of fp32 (CPU) or fp16, bf16, e4m3 that both accept
  std::string causal;  ///< "", "top-left", "bottom-right"
  std::string policy = "strict";  ///< numerics
  std::string gate_policy;        ///< file; empty: the one in this binary
  std::optional<double> gate;     ///< overrides the rung's and the policy's
  std::vector<std::uint64_t> seeds{0, 1, 2};
  std::optional<double> budget_seconds;  ///< of timing, all shapes and processes together
  std::optional<int> processes;
  bool hot = false;                ///< time with inputs in the caches
  PluginOptions plugins;           ///< loaded by whoever runs or resumes the gate
  std::vector<std::string> peers;  ///< "peer:torch-cpu": timed beside the candidate, for the report
};
nlohmann::json to_json(const GateOptions& options);
Result<GateOptions> gate_options_from_json(const nlohmann::json& document);
/// Whether the head of a gate's job, or of a walk's of the ladder, holds what goes on from it; if
/// not, its file and what to do.
Status check_job_head(const std::filesystem::path& directory, const nlohmann::json& head,
                      bool ladder);

}  // namespace greenfast::workbench
