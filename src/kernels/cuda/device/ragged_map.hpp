// Host side of TMA where every sequence ends at a row of its own: 5-D maps whose bounds the
// coordinates carry.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/tensor_map.hpp"

namespace greenfast::cuda {

/// A tensor as rows of one entry: how far its rows lie apart, in elements, and how many of them the
/// entries of the batch do. `rows_of_entry` is negative where entries do not begin at such rows.
struct RaggedRows {
  std::int64_t row_stride = 0, rows_of_entry = 0;  // a stride of 0: there is one row
};
inline RaggedRows ragged_rows(const Layout& layout, std::int64_t batch, std::int64_t rows) {
  const std::int64_t of_batch = layout.stride[0], of_row = layout.stride[2];
  if (batch <= 1 || of_batch == 0) return {rows > 1 ? of_row : 0, 0};
  if (rows <= 1) return {of_batch, 1};
  return {of_row, of_batch % of_row == 0 ? of_batch / of_row : -1};
}

/// A tensor of [rows, H, D], D contiguous.
struct RaggedTensor {
  std::int64_t row_stride, head_stride;
  std::int64_t heads, head_dim;
  DType dtype;
};

/// Its map, in boxes of box_rows rows of box_columns. The row coordinate ends at 2^30
/// (prefill::ragged_place): a sequence's rows are laid before that end, two more dimensions move the
/// address back to where they are, modulo 2^64, and TMA itself reads zeros behind the sequence and
/// writes nothing there. (The idea is that of Triton's ragged descriptors,
/// triton/tools/ragged_tma.py.)
inline MapShape ragged_map_of(const RaggedTensor& tensor, int box_rows, int box_columns = 64) {
  constexpr std::int64_t kRows = std::int64_t{1} << 30, kMost = 0x7fff0000;
  const auto bytes = static_cast<std::int64_t>(size_of(tensor.dtype));
  const std::int64_t row = tensor.row_stride == 0 ? kTmaAlignment : bytes * tensor.row_stride;
  MapShape shape{.type = map_type_of(tensor.dtype), .axes = 5};
  shape.set_axis(0, tensor.head_dim, 0);
  shape.set_axis(1, kRows, row);
  shape.set_axis(2, tensor.head_stride == 0 ? 1 : tensor.heads, bytes * tensor.head_stride);
  shape.set_axis(3, kMost, row);
  shape.set_axis(4, kMost, (std::int64_t{1} << 34) - row);  // 2^30 of them: -2^30 rows
  shape.box[0] = static_cast<cuuint32_t>(box_columns);
  shape.box[1] = static_cast<cuuint32_t>(box_rows);
  return shape;
}

/// Rows that a ragged map can count, and bytes that its rows may lie apart, exclusive.
inline constexpr std::int64_t kRaggedMostRows = std::int64_t{1} << 30;
inline constexpr std::int64_t kRaggedStrideLimit = std::int64_t{1} << 34;

}  // namespace greenfast::cuda
