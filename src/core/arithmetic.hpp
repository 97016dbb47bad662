// Arithmetic that host code of several kernels shares.
#pragma once

#include <greenfast/arithmetic.hpp>
#include <greenfast/types.hpp>

#include "core/constants.hpp"

namespace greenfast::core {

using greenfast::ceil_div;

/// Dot products to scores in units of log2: x = dot * scale, then, where cap > 0, cap * tanh, whose
/// argument x is given as twice itself times log2(e), as 1 - 2 / (exp2(x) + 1) wants it.
struct ScoreTransform {
  float scale = 0.0f;
  float cap = 0.0f;
};
inline ScoreTransform score_transform(const Problem& problem) {
  if (problem.softcap > 0.0f)
    return {2.0f * kLog2E * problem.scale / problem.softcap, problem.softcap * kLog2E};
  return {problem.scale * kLog2E, 0.0f};
}

}  // namespace greenfast::core
