// The gate's resources step on a GPU: what the compiler gave the kernels that a candidate's plans
// launch, against the limits of policies/resources.toml and of the gate's policy. Pure, so that it
// is tested without a GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "workbench/resources/compiler_logs.hpp"
#include "workbench/resources/device_code.hpp"
#include "workbench/resources/resources.hpp"
#include "workbench/verdict/decide.hpp"
#include "workbench/verdict/gate_record.hpp"
#include "workbench/verdict/step_results.hpp"

namespace greenfast::workbench {

/// A compiled kernel as the device loads it.
struct KernelResources {
  std::string arch;  ///< "sm_90a": of the code
  int registers = 0;
  std::int64_t static_shared = 0;  ///< bytes a block, beside the plan's dynamic ones
  std::int64_t local_bytes = 0;    ///< of a thread; spills lie there
  std::string sha256;              ///< of the machine code
  /// Held to every limit that concerns it, with the shared memory that the candidate's plans give.
  std::vector<LimitCheck> checks;
};
/// Finds a kernel by the name a plan gives it; nothing when the binary holds no machine code of it
/// for the device.
using KernelLookup = std::function<std::optional<KernelResources>(const std::string& kernel)>;

struct ResourceJudgement {
  std::vector<GateResource> rows;
  std::vector<GateCheck> checklist;
  std::optional<Reason> reason;  ///< RESOURCES or TOOL_MISSING; none when all is inside
  /// Both sides launch the same machine code with the same plan on every shape: in words.
  std::string no_op;
};

ResourceJudgement judge_kernels(std::span<const PlannedShape> shapes, const KernelLookup& lookup);

/// Where what compilers said is found.
struct LogLookup {
  /// Of the build's objects that hold these kernels; nothing where nobody knows.
  std::function<std::optional<CompilerLogs>(std::span<const std::string> kernels)> objects;
  /// Of a plugin's source, by the name that its plans give a kernel; nothing for what is no plugin.
  std::function<std::optional<CompilerLogs>(const std::string& kernel)> plugin;
};
/// What compilers said of what both sides launch, and of nothing else. Nothing where that is not
/// known of a kernel of theirs, such as that of a plugin given as a shared object.
std::optional<CompilerLogs> logs_of_sides(std::span<const PlannedShape> shapes,
                                          const LogLookup& lookup);

/// Digests of the machine code that both sides' plans launch on a device of compute capability
/// `arch`, in the words of a run's record ("code"), each with the variants that launch it: what
/// evidence binds a verdict to. A plugin's kernels are in no binary of ours; the resources hold
/// theirs.
nlohmann::json code_of_sides(std::span<const PlannedShape> shapes, int arch,
                             const DeviceCode& code);

}  // namespace greenfast::workbench
