// The gate's steps that touch a device. Each runs in a child process.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "workbench/base/isolate.hpp"
#include "workbench/cases/workload.hpp"
#include "workbench/green/policy.hpp"
#include "workbench/subjects/subject.hpp"
#include "workbench/verdict/gate.hpp"
#include "workbench/verdict/gate_policy.hpp"
#include "workbench/verdict/step_results.hpp"

namespace greenfast::workbench::gate_steps {

/// The one subject a text names; selectors that name several are an error here.
Result<std::unique_ptr<Subject>> one_subject(const std::string& id, std::string_view option);

/// Primary first, then guards that are not the primary, each once.
Result<std::vector<NamedProblem>> shapes_of(const GateOptions& options, const Policy& policy,
                                            const std::string& dtype);

/// Device, dtype, problems, refusals, plans. No kernel is launched.
Result<BuildStep> build(const GateOptions& options, const Policy& policy);

/// All distributions and seeds of one shape for the candidate, the first seed for the baseline. A
/// RED case ends its side's list.
Result<GreenStep> green(const GateOptions& options, const Policy& policy, const NamedProblem& shape,
                        Activity& activity);

/// What problems may ask for: each in a small problem of the primary's type and mask, and but for the
/// kinds that name one of its head dim.
struct ClaimKind {
  std::string name;
  NamedProblem problem;
  std::string asked;  ///< the same in options of the command: "--shapes 1x2x64x32 --lse"
  std::function<bool(const Problem&)> seen;  ///< whether a problem shows it
};
std::vector<ClaimKind> claim_kinds(const GateOptions& options, const NamedProblem& primary);

/// Holds the candidate to GREEN on each of claim_kinds that it does not refuse, with the policy's
/// distributions and the first seed.
Result<ClaimsStep> claims(const GateOptions& options, const Policy& policy,
                          const NamedProblem& primary, Activity& activity);

/// Times one shape in this process; `green` is that step's result for the shape, whose digests
/// outputs are held to.
Result<FastStep> fast(const GateOptions& options, const Policy& policy, const GatePolicy& rules,
                      const NamedProblem& shape, bool primary, int process, double budget,
                      const GreenStep& green, Activity& activity);

/// Times the candidate beside peers at one shape. Where that cannot be done, that is its result: peers
/// decide nothing.
Result<PeersStep> peers(const GateOptions& options, const Policy& policy, const GatePolicy& rules,
                        const NamedProblem& shape, double budget, Activity& activity);

}  // namespace greenfast::workbench::gate_steps
