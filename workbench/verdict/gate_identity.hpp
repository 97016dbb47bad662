// Which program, policies and machine a gate's steps belong to: those of another do not go on with them.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "workbench/green/policy.hpp"
#include "workbench/verdict/gate_options.hpp"
#include "workbench/verdict/gate_policy.hpp"

namespace greenfast::workbench {

/// Identifies what would give other results: another binary, another policy, and on the CPU other
/// threads or instructions. Of plugins it tells those that are loaded.
nlohmann::json gate_identity(const Policy& policy, const GatePolicy& rules,
                             const GateOptions& options);

/// Why a job is not this program's to go on with, and what would be: "by another build of greenfast
/// (...)", "go on with that build".
struct IdentityGap {
  std::string begun, remedy;
};
std::optional<IdentityGap> gap_between(const nlohmann::json& begun, const nlohmann::json& here);

}  // namespace greenfast::workbench
