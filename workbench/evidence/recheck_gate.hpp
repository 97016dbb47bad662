// A gate's record judged once more, by the functions that the gate judges with, from what its steps and
// samples say.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "workbench/evidence/recheck.hpp"

namespace greenfast::workbench {

/// Of greenfast.gate/1: figures, noise, mean, shares and peers from samples; the checklist, the reasons'
/// codes, the decision, its exit code, level and headline from steps, cases, resources and samples.
/// Throws nlohmann::json::exception for what is not of the schema.
std::vector<Disagreement> recheck_gate(const nlohmann::json& record);

/// Of greenfast.ladder_gates/1, which keeps gates without their steps and samples: decisions, codes,
/// lines of FAST and headlines from the intervals that it has.
std::vector<Disagreement> recheck_ladder_gates(const nlohmann::json& record);

/// Of greenfast.known-factors/1, likewise.
std::vector<Disagreement> recheck_known_factors(const nlohmann::json& record);

}  // namespace greenfast::workbench
