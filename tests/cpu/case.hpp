// One attention call with its data, and what an fp64 evaluation of it says. Decoding and
// arithmetic are the tests' own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <greenfast/attention.hpp>

#include "core/variant.hpp"

namespace greenfast::test {

double decode(DType dtype, const std::byte* element);
void encode(DType dtype, double value, std::byte* element);

/// Inputs drawn from a seed. Memory that belongs to no element is NaN, and so are keys that no
/// query sees; the output is poisoned.
struct Case {
  Problem problem;
  Tensors tensors;  // points into the vectors below
  std::vector<std::byte> q, k, v, o;
  std::vector<float> lse, q_scale, k_scale, v_scale;

  Case(const Problem& problem, std::uint64_t seed, double spread = 1.0);
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;
  void poison_output();
};

/// Empty when O and LSE agree with the fp64 evaluation on every row, else the first disagreement.
/// p_epsilon: relative rounding that the kernel may apply to a softmax weight.
std::string compare(const Case& call, double p_epsilon);

/// A random legal problem: shapes with ragged tails, every mask, type, layout and scale kind.
Problem random_problem(std::uint64_t seed);

}  // namespace greenfast::test
