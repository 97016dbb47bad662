// What a launch tells device/sequences.hpp of a call's sequences. Host only.
#pragma once

#include <algorithm>
#include <cstdint>

#include <greenfast/types.hpp>

#include "kernels/cuda/device/mask.hpp"
#include "kernels/cuda/device/sequences.hpp"

namespace greenfast::cuda {

/// For problems whose numbers of rows the kernel has accepted: all of them fit 32 bits.
inline SequenceArrays sequence_arrays(const Problem& problem, const Tensors& tensors) {
  const auto narrow = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
  const Sequences& s = problem.sequences;
  SequenceArrays a;
  if (s.packed_q) a.cu_q = tensors.cu_q;
  if (s.packed_kv) a.cu_kv = tensors.cu_kv;
  if (s.used_q) a.used_q = tensors.used_q;
  if (s.used_kv) a.used_kv = tensors.used_kv;
  if (s.kv_start) a.kv_start = tensors.kv_start;
  if (s.kv_index) a.kv_index = tensors.kv_index;
  if (problem.pages.used()) {
    a.page_table = tensors.page_table;
    a.page_row = problem.pages.row_stride;
    a.page_size = narrow(problem.pages.size);
    a.pages = narrow(problem.pages.count);
  }
  a.seq_q = narrow(problem.seq_q);
  // Nothing to read from, whatever lengths the device's arrays claim: no page or row can be clamped
  // into an empty pool or cache.
  const bool no_keys =
      (problem.pages.used() && problem.pages.count == 0) || (s.kv_index && s.kv_rows == 0);
  a.seq_kv = no_keys ? 0 : narrow(problem.seq_kv);
  a.total_q = narrow(s.total_q);
  a.total_kv = narrow(s.total_kv);
  a.kv_rows = narrow(s.kv_rows);
  const auto bound = [&](std::int64_t keys) {
    return narrow(keys < 0 ? -1 : std::min(keys, Band::kFar));
  };
  a.left = bound(problem.mask.left);
  a.right = bound(problem.mask.right);
  a.bottom_right = problem.mask.alignment == Alignment::bottom_right;
  a.chunk = narrow(std::min(problem.chunk, Band::kFar));
  return a;
}

}  // namespace greenfast::cuda
