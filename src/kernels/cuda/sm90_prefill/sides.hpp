// Where Q, K, V and O of sequences lie, as ragged tensor maps want it: of cuda.sm90.packed, its kin for e4m3
// and cuda.sm90.grouped. Host only.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/check.hpp"
#include "core/variant.hpp"
#include "kernels/cuda/device/launch.hpp"
#include "kernels/cuda/device/ragged_map.hpp"

namespace greenfast::cuda::packed {

inline std::int64_t larger_dim(const Problem& problem) {
  return std::max(problem.head_dim, value_dim(problem));
}

/// Where a tensor lies, for the map and the kernel.
struct Side {
  const char* name;
  const Layout& layout;
  DType dtype;
  std::int64_t entries, heads, rows, columns;
  bool broadcast;
  bool one_for_all;  // its first dimension is not the batch

  /// As entries_for_choice: batch_invariant treats one entry as one of several.
  std::int64_t entries_for(core::Choice choice) const {
    return choice.batch_invariant && !one_for_all && layout.stride[0] != 0
               ? std::max<std::int64_t>(entries, 2)
               : entries;
  }
};
inline std::array<Side, 4> sides_of(const Problem& problem) {
  const std::int64_t dim = problem.head_dim, values = value_dim(problem);
  const auto q = core::shape_of_q(problem, dim);
  const auto kv = core::shape_of_kv(problem, dim);
  const bool packed_q = problem.sequences.packed_q;
  const bool shared_kv =
      problem.sequences.packed_kv || problem.sequences.kv_index || problem.pages.used();
  const DType in = problem.dtype;
  return {Side{"Q", problem.q, in, q[0], q[1], q[2], dim, false, packed_q},
          Side{"K", problem.k, in, kv[0], kv[1], kv[2], dim, true, shared_kv},
          Side{"V", problem.v, in, kv[0], kv[1], kv[2], values, true, shared_kv},
          Side{"O", problem.o, problem.out_dtype, q[0], q[1], q[2], values, false, packed_q}};
}
inline constexpr std::size_t kV = 2, kO = 3;  // of them

/// Whether TMA and the ragged maps can address a tensor; else why not.
inline bool is_addressable(const Side& side, core::Choice choice, std::string* why) {
  using core::refuse;
  const auto& stride = side.layout.stride;
  const std::int64_t entries = side.entries_for(choice);
  if (!tma_addressable(side.layout, side.dtype, entries, side.heads, side.rows, side.broadcast))
    return refuse_strides(why, side.name, side.layout, side.dtype);
  const RaggedRows rows = ragged_rows(side.layout, entries, side.rows);
  if (rows.rows_of_entry < 0 || 2 * rows.row_stride >= kRaggedStrideLimit) {
    return refuse(why, side.name, " has a batch stride of ", stride[0], " and a row stride of ",
                  stride[2], ": takes whole rows from entry to entry, rows less than 2^33 apart");
  }
  if ((side.entries - 1) * rows.rows_of_entry + side.rows > kRaggedMostRows) {
    return refuse(why, side.name, " is more than 2^30 rows long over the batch: split the call");
  }
  return true;
}

}  // namespace greenfast::cuda::packed
