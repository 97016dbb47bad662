// Host side of TMA where every sequence ends at a row of its own: 5-D maps whose bounds the
// coordinates carry.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/tensor_map.hpp"

namespace greenfast::cuda {

/// A tensor as rows of one entry: how far its rows lie apart, and how many of them the entries of
/// the batch do. `rows_of_entry` is negative where entries do not begin at such rows.
struct RaggedRows {
  std::int64_t row_stride = 8, rows_of_entry = 0;
};
inline RaggedRows ragged_rows(const Layout& layout, std::int64_t batch, std::int64_t rows) {
  const std::int64_t of_batch = layout.stride[0], of_row = layout.stride[2];
  if (batch <= 1 || of_batch == 0) return {rows > 1 ? of_row : 8, 0};
  if (rows <= 1) return {of_batch, 1};
  return {of_row, of_batch % of_row == 0 ? of_batch / of_row : -1};
}

/// What a map covers: [rows, H, D], D contiguous, of 16-bit elements.
struct RaggedTensor {
  const void* data;
  std::int64_t row_stride, head_stride;
  std::int64_t heads, head_dim;
  DType dtype;
};

/// Maps of one role in a call. Boxes are box_rows rows of 64 columns, 128-byte swizzled. The row
/// coordinate of a map ends at 2^30 (prefill::ragged_place): a sequence's rows are laid before that
/// end, two more dimensions move the address back to where they are, modulo 2^64, and TMA itself
/// reads zeros behind the sequence and writes nothing there. (The idea is that of Triton's ragged
/// descriptors, triton/tools/ragged_tma.py.)
class RaggedMaps {
 public:
  bool make(CUtensorMap* map, const RaggedTensor& tensor, int box_rows) {
    return kept_.make(map, key_of(tensor, box_rows), tensor.data, encode);
  }

 private:
  struct Key {
    cuuint64_t sizes[5];
    cuuint64_t bytes[4];  // strides
    cuuint32_t box_rows;
    CUtensorMapDataType type;
    bool operator==(const Key&) const = default;
  };

  static Key key_of(const RaggedTensor& tensor, int box_rows) {
    constexpr cuuint64_t kRows = cuuint64_t{1} << 30, kMost = 0x7fff0000;
    const auto row = static_cast<cuuint64_t>(2 * tensor.row_stride);
    const bool one_head = tensor.heads <= 1 || tensor.head_stride == 0;
    Key key{};
    key.sizes[0] = static_cast<cuuint64_t>(tensor.head_dim);
    key.sizes[1] = kRows;
    key.sizes[2] = one_head ? 1 : static_cast<cuuint64_t>(tensor.heads);
    key.sizes[3] = key.sizes[4] = kMost;
    key.bytes[0] = row;
    key.bytes[1] = one_head ? static_cast<cuuint64_t>(kTmaAlignment)
                            : static_cast<cuuint64_t>(2 * tensor.head_stride);
    key.bytes[2] = row;
    key.bytes[3] = (cuuint64_t{1} << 34) - row;  // 2^30 of them: -2^30 rows
    key.box_rows = static_cast<cuuint32_t>(box_rows);
    key.type = tensor.dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                          : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    return key;
  }

  static bool encode(decltype(&cuTensorMapEncodeTiled) encoder, CUtensorMap* map, const Key& key,
                     const void* data) {
    const cuuint32_t box[5] = {64, key.box_rows, 1, 1, 1};
    const cuuint32_t element_steps[5] = {1, 1, 1, 1, 1};
    return encoder(map, key.type, 5, const_cast<void*>(data), key.sizes, key.bytes, box,
                   element_steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                   CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                   CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
  }

  KeptMap<Key> kept_;
};

/// Rows that a ragged map can count, and bytes that its rows may lie apart, exclusive.
inline constexpr std::int64_t kRaggedMostRows = std::int64_t{1} << 30;
inline constexpr std::int64_t kRaggedStrideLimit = std::int64_t{1} << 34;

}  // namespace greenfast::cuda
