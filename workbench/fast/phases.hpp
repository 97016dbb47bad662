// Where the time of a ladder rung goes: its instrumented twin's clock readings as shares.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "workbench/cases/workload.hpp"
#include "workbench/device/device.hpp"
#include "workbench/green/policy.hpp"

namespace greenfast::workbench {

/// One shape in the types that rungs take, in the order in which a twin is asked.
using PhaseShape = std::vector<NamedProblem>;

struct PhaseShares {
  std::string rung, twin, problem;
  DType dtype = DType::e4m3;
  std::string skipped;              ///< why nothing was run; empty when it was
  std::vector<std::string> phases;  ///< of this twin; others may have more or fewer
  std::vector<double> shares;       ///< of all warps' cycles, adding up to 1
  double cycles_per_warp = 0;       ///< mean over warps and launches
  std::int64_t warps = 0;           ///< of one launch
  int launches = 0;
  bool green = false;                          ///< the twin's output, under the policy
  bool same_output = false;                    ///< bit for bit the rung's
  std::string reason;                          ///< when it is not GREEN
  std::map<std::string, std::string> kernels;  ///< that twin and rung launch, by variant
};

/// A twin at a shape: the first of its problems that the twin takes, or why it takes none.
struct PhaseRun {
  std::string rung, twin;
  std::vector<std::string> phases;
  const NamedProblem* problem = nullptr;
  std::string skipped;  ///< empty when it takes `problem`
};

/// Every instrumented variant of the registry whose rung matches `rungs` (empty: all), at one shape.
/// The problems stay the caller's.
Result<std::vector<PhaseRun>> phase_runs(const std::vector<std::string>& rungs,
                                         const PhaseShape& shape, const DeviceFacts& facts);

/// Those runs at every shape, on normally distributed inputs. Fails without a GPU or memory.
Result<std::vector<PhaseShares>> measure_phases(Device& device,
                                                const std::vector<std::string>& rungs,
                                                const std::vector<PhaseShape>& shapes,
                                                const Policy& policy, int launches);

/// The phases of all lists, each once, in an order that every list has.
std::vector<std::string> merged_phases(const std::vector<std::vector<std::string>>& lists);

/// What the originals estimated for their stage 3 on an L4 at mission, in the same columns; what
/// they did not tell apart is negative.
double original_estimate(std::string_view phase);

}  // namespace greenfast::workbench
