// Arithmetic that host code of several kernels shares.
#pragma once

#include <cstdint>

#include <greenfast/types.hpp>

namespace greenfast::core {

/// a / b, rounded up; a >= 0, b > 0.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Kernels work with exponentials of base 2.
inline constexpr float kLog2E = 1.4426950408889634f;

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
