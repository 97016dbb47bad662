// An honest kernel in the precision of the problem, written apart from every kernel: its error
// against the oracle is what correctness at that precision costs, and sets the limits.
#pragma once

#include <cstdint>
#include <vector>

#include <greenfast/features.hpp>

#include "workbench/cases/workload.hpp"
#include "workbench/reference/oracle.hpp"

namespace greenfast::workbench {

/// Rows of an output, in the order of a Reference.
struct Rows {
  std::vector<double> o;    // rows x D of V
  std::vector<double> lse;  // rows
};

/// What the emulator knows of; a problem that needs more gets no limits.
inline constexpr Features kEmulatorTakes =
    kFeaturesOfAbi1 | kFeaturesOfServing |
    Features{Feature::exact_accuracy, Feature::fast_accuracy, Feature::transposed_v,
             Feature::scales_per_block};
/// fp32 scores and accumulation in blocks (64 keys, merged every 8,192), online softmax over tiles,
/// P rounded to the input type (e4m3: times 448 first, against each tile's running maximum), output
/// rounded to out_dtype. Where fast accuracy is near enough, P is linear between powers of two, rounded
/// to e4m3 codes of which the running maximum's is the largest, and its sum is of those.
Rows emulate(const Case& c, const Inputs& inputs, const std::vector<std::int64_t>& rows);

}  // namespace greenfast::workbench
