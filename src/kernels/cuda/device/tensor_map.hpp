// Host side of TMA: which tensors it can address, and the 4-D maps of 16-bit [B, H, S, D] tensors.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include <greenfast/types.hpp>

namespace greenfast::cuda {

inline constexpr std::int64_t kTmaAlignment = 16;                       // bytes, base and strides
inline constexpr std::int64_t kTmaStrideLimit = std::int64_t{1} << 40;  // bytes, exclusive

/// Whether TMA can address the rows of a tensor of 16-bit elements. A stride of 0 over heads or
/// batch is a broadcast: the map holds that axis with length 1 and the kernel passes coordinate 0.
inline bool tma_addressable(const Layout& layout, std::int64_t batch, std::int64_t heads,
                            std::int64_t rows) {
  const auto fits = [](std::int64_t length, std::int64_t stride, bool may_broadcast) {
    return length <= 1 || (stride == 0 && may_broadcast) ||
           (stride > 0 && stride * 2 % kTmaAlignment == 0 && stride * 2 < kTmaStrideLimit);
  };
  return layout.alignment >= kTmaAlignment && fits(batch, layout.stride[0], true) &&
         fits(heads, layout.stride[1], true) && fits(rows, layout.stride[2], false);
}

/// The driver's encoder, asked for once; null when the driver is older than CUDA 12.
inline decltype(&cuTensorMapEncodeTiled) tensor_map_encoder() {
  static const auto encoder = []() -> decltype(&cuTensorMapEncodeTiled) {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult result{};
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault,
                                         &result) != cudaSuccess ||
        result != cudaDriverEntryPointSuccess) {
      return nullptr;
    }
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry);
  }();
  return encoder;
}

/// What a map covers. [B, H, S, D], D contiguous.
struct MapTensor {
  const void* data;
  const Layout& layout;
  std::int64_t batch, heads, rows, head_dim;
  DType dtype;
};

/// Boxes are box_rows rows of 64 columns, 128-byte swizzled; what lies outside reads as zeros.
inline bool encode_tensor_map(CUtensorMap* map, const MapTensor& tensor, int box_rows) {
  const auto& stride = tensor.layout.stride;
  const std::int64_t lengths[3] = {tensor.rows, stride[1] == 0 ? 1 : tensor.heads,
                                   stride[0] == 0 ? 1 : tensor.batch};
  const std::int64_t steps[3] = {stride[2], stride[1], stride[0]};
  cuuint64_t sizes[4] = {static_cast<cuuint64_t>(tensor.head_dim), 1, 1, 1};
  cuuint64_t bytes[3];
  for (int i = 0; i < 3; ++i) {
    sizes[i + 1] = static_cast<cuuint64_t>(lengths[i]);
    // The stride of an axis of length 1 is never used, but must be legal.
    bytes[i] = static_cast<cuuint64_t>(lengths[i] > 1 ? 2 * steps[i] : kTmaAlignment);
  }
  const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(box_rows), 1, 1};
  const cuuint32_t element_steps[4] = {1, 1, 1, 1};
  return tensor_map_encoder()(map,
                              tensor.dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                         : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                              4, const_cast<void*>(tensor.data), sizes, bytes, box, element_steps,
                              CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace greenfast::cuda
