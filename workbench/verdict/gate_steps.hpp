// The gate's steps that touch a device. Each runs in a child process and returns JSON, which is
// also its checkpoint.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "workbench/base/isolate.hpp"
#include "workbench/cases/workload.hpp"
#include "workbench/green/policy.hpp"
#include "workbench/subjects/subject.hpp"
#include "workbench/verdict/gate.hpp"
#include "workbench/verdict/gate_policy.hpp"

namespace greenfast::workbench::gate_steps {

/// The one subject a text names; selectors that name several are an error here.
Result<std::unique_ptr<Subject>> one_subject(const std::string& id, std::string_view option);

/// Primary first, then guards that are not the primary, each once.
Result<std::vector<NamedProblem>> shapes_of(const GateOptions& options, const Policy& policy,
                                            const std::string& dtype);

/// Device, dtype, problems, refusals, plans. No kernel is launched.
nlohmann::json build(const GateOptions& options, const Policy& policy);

/// All distributions and seeds of one shape for the candidate, the first seed for the baseline. A
/// RED case ends its side's list.
nlohmann::json green(const GateOptions& options, const Policy& policy, const NamedProblem& shape,
                     Activity& activity);

/// Times one shape in this process; `green` is that step's result for the shape, whose digests
/// outputs are held to.
nlohmann::json fast(const GateOptions& options, const Policy& policy, const GatePolicy& rules,
                    const NamedProblem& shape, bool primary, int process, double budget,
                    const nlohmann::json& green, Activity& activity);

/// Times the candidate beside peers at one shape. Where that cannot be done, {"skipped": why}:
/// peers decide nothing.
nlohmann::json peers(const GateOptions& options, const GatePolicy& rules, const NamedProblem& shape,
                     double budget, Activity& activity);

/// Throws nlohmann::json::exception where a step's result is not what the function of that name
/// ("build", "green.0", "fast.0.1", "peers") returns: a file may hold anything.
void check(const std::string& step, const nlohmann::json& result);

/// The failure that a step returned instead of a result.
std::optional<Status> failure_of(const nlohmann::json& result);

}  // namespace greenfast::workbench::gate_steps
