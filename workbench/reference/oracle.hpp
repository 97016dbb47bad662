// The reference: attention in fp64 on exactly the bits a kernel reads, by the definition, with no
// tiling and no online softmax.
#pragma once

#include <cstdint>
#include <vector>

#include <greenfast/features.hpp>

#include "workbench/cases/choose_rows.hpp"
#include "workbench/cases/workload.hpp"

namespace greenfast::workbench {

/// Rows of the fp64 result that were computed: all of them, or as many as a budget allows, chosen
/// by seed.
struct Reference {
  std::vector<std::int64_t> rows;  // (b * Hq + h) * Sq + i, ascending, all of which exist
  std::int64_t total_rows = 0;     // that exist
  std::vector<double> o;           // rows.size() x D of V
  std::vector<double> lse;  // rows.size(), natural log; where no key is visible the sink, or -inf
  /// Of each of `rows`: what its norm is taken for at least when an error is held to it. A sink may
  /// leave so little of a row that no type holds it: a ten-thousandth of what it would be without the
  /// sink. Empty: 0.
  std::vector<double> least_norm;
  /// Of each of `rows`: by how many nats an honest fp32 score may be off where that is more than
  /// kSlack, else 0. Empty: 0 everywhere, as at any scale that models use.
  std::vector<double> slack;
  /// rows.size() x D of V, where `slack` is not empty: how far such scores may move an element of O.
  std::vector<double> moved;
  /// Some row sees a NaN or Inf among the inputs.
  bool nonfinite_visible = false;
  /// Of each of `rows`: a NaN or Inf in V is seen by a row so near that both may be in one tile,
  /// where a weight of 0 makes NaN of it. Empty: none is.
  std::vector<char> may_be_nan;
};

/// Scores that are known to this many nats change no result that a limit would see.
inline constexpr double kSlack = 1e-2;

/// What the definition below knows of. A problem that needs more is not judged.
/// Fast accuracy has the same truth as exact.
inline constexpr Features kOracleTakes = kFeaturesOfAbi1 | kFeaturesOfServing |
                                         Features{Feature::exact_accuracy, Feature::fast_accuracy,
                                                  Feature::transposed_v, Feature::scales_per_block};
Reference compute_reference(const Case& c, const Inputs& inputs, std::vector<std::int64_t> rows,
                            Truth truth = Truth::decoded);

}  // namespace greenfast::workbench
