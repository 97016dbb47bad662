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

/// The fp64 evaluation of a case.
class Expected {
 public:
  explicit Expected(const Case& call);
  /// Empty when the case's O and LSE agree on every row and nothing else was written, else the
  /// first disagreement. p_epsilon: relative rounding that the kernel may apply to a softmax
  /// weight; exp_epsilon: that of its exponential.
  std::string compare(const Case& call, double p_epsilon, double exp_epsilon) const;

 private:
  struct Row {
    bool sees = false;       // any key
    double magnitude = 0.0;  // largest sum of |products| of a score
    double lse = 0.0;
  };
  std::vector<Row> rows_;       // [B, Hq, Sq]
  std::vector<double> o_;       // [B, Hq, Sq, D]
  std::vector<double> weight_;  // the same sums over |V|
};

/// A random legal problem: shapes with ragged tails, every mask, type, layout and scale kind.
Problem random_problem(std::uint64_t seed);

}  // namespace greenfast::test
