// The gate: is a candidate right, within its resources, and faster than a baseline? Build state,
// GREEN, resources, FAST, guard shapes, verdict, in this order; a failed step ends the walk.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include <greenfast/types.hpp>

#include "workbench/verdict/decide.hpp"
#include "workbench/verdict/gate_options.hpp"
#include "workbench/verdict/gate_record.hpp"

namespace greenfast::workbench {

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

struct GateResult {
  GateRecord record;
  std::vector<std::string> headline;  ///< three lines
  Status written{};  ///< why the record could not be kept; what was measured is told all the same

  const Decision& decision() const { return record.verdict.decision; }
};
/// The record with its headline, as written to gate.json (schema greenfast.gate/1).
nlohmann::json json_of(const GateResult& result);

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
  std::string skipped;              ///< why it was not run; empty when it was
  std::optional<Outcome> decision;  ///< none where it was not run
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
