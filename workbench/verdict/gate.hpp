// The gate: is a candidate right, within its resources, and faster than a baseline? Build state,
// GREEN, resources, FAST, guard shapes, verdict, in this order; a failed step ends the walk.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <greenfast/types.hpp>

#include "workbench/subjects/plugin/plugins.hpp"
#include "workbench/verdict/decide.hpp"

namespace greenfast::workbench {

/// What to judge, in the words of the command line, so that an interrupted job can be resumed from
/// its record.
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

/// How the gate tells where it is.
struct GateObserver {
  std::function<void(std::size_t done, std::size_t total, const std::string& what)> step;
  std::function<void(const std::string& line)> finished;  ///< a step ended: one line on how
  std::function<void(const std::string& what)> activity;  ///< several times a second
  /// Asked before each step; true ends the walk with GateStopped.
  std::function<bool()> stop;
};
/// The walk was stopped; what is finished lies in its directory, for resume_gate.
struct GateStopped {};

/// The outcome, and the record (schema greenfast.gate/1) as written to gate.json.
struct GateResult {
  nlohmann::json record;
  Outcome decision = Outcome::promote;
  std::vector<std::string> headline;  ///< three lines
  int exit_code = 0;
  Status written{};  ///< why the record could not be kept; what was measured is told all the same
};

/// Everything about the options that can be wrong before a device is touched.
Status check_gate(const GateOptions& options);

/// Runs the gate in a directory that exists. Every step that launches a kernel runs in a child
/// process, so the caller must be single-threaded and must not have touched a GPU. Fails (without a
/// verdict) for unknown subjects, shapes or policies, for a primary shape that a side refuses
/// (unsupported), for a missing device, and when a file cannot be written.
Result<GateResult> run_gate(const GateOptions& options, const std::filesystem::path& directory,
                            const std::vector<std::string>& argv, const GateObserver& observer);
/// Goes on after the last finished step. Refuses a job that another build began.
Result<GateResult> resume_gate(const std::filesystem::path& directory,
                               const GateObserver& observer);

/// One step of the ladder and what became of it.
struct LadderStep {
  std::string baseline, candidate;
  std::string skipped;   ///< why it was not run; empty when it was
  std::string decision;  ///< "PROMOTE", ...
  std::string headline;
  int exit_code = 3;
};
/// Every rung of the registry against its predecessor, in ladder order, each in
/// directory/<candidate>. Rungs that are not built, or whose device is missing, are skipped with
/// the reason. A directory that holds a walk goes on with it, by the options it was begun with.
Result<std::vector<LadderStep>> run_ladder(const GateOptions& asked,
                                           const std::filesystem::path& directory,
                                           const std::vector<std::string>& argv,
                                           const GateObserver& observer);

/// Three lines: the verdict with the primary's speedup, the checks, the times.
std::vector<std::string> gate_headline(const nlohmann::json& record);
/// What people read, from a record: the three-line headline and the checklist on a terminal, the
/// whole report in Markdown.
std::string gate_text(const nlohmann::json& record, bool color);
std::string gate_markdown(const nlohmann::json& record);

}  // namespace greenfast::workbench
