// What is run: problems by name or shape, input distributions, and inputs as a pure function of a
// case.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <greenfast/types.hpp>

namespace greenfast::workbench {

/// A problem and the name it goes by in tables: "mission", or its shape.
struct NamedProblem {
  std::string name;
  Problem problem;
};

/// Everything of a problem that the shape text does not say.
struct ProblemDefaults {
  DType dtype = DType::f16;
  std::optional<DType> out_dtype;
  Order order = Order::bhsd;
  Mask mask;
  float softcap = 0.0f;
  bool lse = false;
};

/// Parses "small,mission,4x32/8x1/8192x128": names of shapes and suites from the table, or BxHxSxD
/// with Hq/Hkv and Sq/Skv. Errors name the offending item and what would be accepted.
Result<std::vector<NamedProblem>> parse_shapes(std::string_view text,
                                               const ProblemDefaults& defaults);

/// The table of named shapes: name, shape text, one line of use.
struct ShapeRow {
  std::string_view name, shape, use;
};
std::span<const ShapeRow> shape_table();

/// Input distributions; each exists because some wrong kernel passes under all others.
enum class Distribution {
  normal,        // N(0, 1)
  permutation,   // near one-hot retrieval: q_i = 3 k_pi(i), every key decisive for some row
  outliers,      // channel outliers in K and V, nonzero mean
  rising_max,    // the running maximum changes in every tile
  large_logits,  // scores far beyond exp's range in fp16
  constant_v,    // only the normaliser is visible
  small_normal,  // N(0, 0.1^2): what the V2c originals used
};
struct DistributionRow {
  Distribution id;
  std::string_view name, catches;
};
std::span<const DistributionRow> distribution_table();

/// One thing to validate. Inputs are a pure function of it.
struct Case {
  std::string name;  // of the problem
  Problem problem;
  Distribution distribution = Distribution::normal;
  std::uint64_t seed = 0;
};

/// Host copies of one case's inputs, in exactly the bits and the layout that a kernel reads.
struct Inputs {
  std::vector<std::byte> q, k, v;
  std::vector<float> q_scale, k_scale, v_scale;  // e4m3 only, as Problem::scales says
  // Values before quantisation in dense BHSD, kept for e4m3 cases only: policy legacy.stage_c
  // compares with them.
  std::vector<float> q_exact, k_exact, v_exact;
};
Inputs generate(const Case& c);

/// Bytes from the base address to the end of the last element of a strided [B, H, S, D] tensor.
std::size_t extent_bytes(const Layout& layout, std::int64_t batch, std::int64_t heads,
                         std::int64_t seq, std::int64_t head_dim, DType dtype);

}  // namespace greenfast::workbench
