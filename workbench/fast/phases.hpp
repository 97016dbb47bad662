// Where the time of a ladder rung goes: its instrumented twin's clock readings as shares.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "workbench/cases/workload.hpp"
#include "workbench/device/device.hpp"
#include "workbench/green/policy.hpp"

namespace greenfast::workbench {

struct PhaseShares {
  std::string rung, twin, problem;
  std::string skipped;  ///< why nothing was run; empty when it was
  std::vector<std::string> phases;
  std::vector<double> shares;  ///< of all warps' cycles, adding up to 1
  double cycles_per_warp = 0;  ///< mean over warps and launches
  std::int64_t warps = 0;      ///< of one launch
  int launches = 0;
  bool green = false;        ///< the twin's output, under the policy
  bool same_output = false;  ///< bit for bit the rung's
  std::string reason;        ///< when it is not GREEN
};

/// Every instrumented variant of the registry whose rung matches `rungs` (empty: all) on each
/// problem, on normally distributed inputs. Fails without a GPU or memory.
Result<std::vector<PhaseShares>> measure_phases(Device& device,
                                                const std::vector<std::string>& rungs,
                                                const std::vector<NamedProblem>& problems,
                                                const Policy& policy, int launches);

/// What the originals estimated for their stage 3 on an L4 at mission, in the same columns; what
/// they did not tell apart is negative.
double original_estimate(std::string_view phase);

}  // namespace greenfast::workbench
