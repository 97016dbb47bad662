// Where a gate's job stands, read without touching it: steps done, steps left, what goes on.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include <greenfast/types.hpp>

namespace greenfast::workbench {

/// Of a directory of `gate`, or of `gate --ladder`: schema greenfast.gate_status/1. `state` is
/// "finished", "running" (a process holds it) or "interrupted"; `exit_code` that of the verdict,
/// kDefer while there is none. Refuses what is no job.
Result<nlohmann::json> gate_status(const std::filesystem::path& directory);
/// The same for people: one line a step, and the command that goes on.
std::string gate_status_text(const nlohmann::json& status);
std::string gate_status_markdown(const nlohmann::json& status);

}  // namespace greenfast::workbench
