// Where a gate's job stands, read without touching it: steps done, steps left, what goes on.
#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <greenfast/types.hpp>

#include "workbench/verdict/decide.hpp"
#include "workbench/verdict/gate_identity.hpp"

namespace greenfast::workbench {

enum class JobState {
  finished,
  running,  ///< a process holds it
  interrupted,
};
/// "finished", "running", "interrupted".
std::string_view name_of(JobState state) noexcept;

struct JobStep {
  std::string name;  ///< in its folder; of a ladder the rung
  std::string what;  ///< for people
  bool done = false;
};

/// Of a directory of `gate`, or of `gate --ladder`.
struct GateStatus {
  std::filesystem::path directory;
  bool ladder = false;
  std::string baseline, candidate;  ///< of one gate
  std::string utc;                  ///< when it was begun
  JobState state = JobState::interrupted;
  std::vector<JobStep> steps;
  bool known = true;                ///< whether these are all: which shapes there are, build finds
  std::optional<Outcome> decision;  ///< none before there is one, and of a ladder
  int exit_code = 0;                ///< the verdict's; kDefer while there is none
  /// Why this program would refuse to go on with it as things stand: how it was begun, and what
  /// would be the way. Of plugins it is not known before they are compiled.
  std::optional<IdentityGap> gap;
  std::string next;  ///< the command that goes on, or begins anew where nothing does

  std::size_t done() const;
  std::size_t left() const { return steps.size() - done(); }
};

/// Refuses what is no job, and one with a damaged file, by that file's name with what to do.
Result<GateStatus> gate_status(const std::filesystem::path& directory);
/// Schema greenfast.gate_status/1.
nlohmann::json json_of(const GateStatus& status);
/// For people: one line a step, and the command that goes on.
std::string gate_status_text(const GateStatus& status);
std::string gate_status_markdown(const GateStatus& status);

}  // namespace greenfast::workbench
