// Host side of TMA: which tensors it can address, and their maps.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <string_view>

#include <greenfast/attention.hpp>
#include <greenfast/types.hpp>

#include "core/text.hpp"

namespace greenfast::cuda {

inline constexpr std::int64_t kTmaAlignment = 16;                       // bytes, base and strides
inline constexpr std::int64_t kTmaStrideLimit = std::int64_t{1} << 40;  // bytes, exclusive

/// Whether TMA can address the rows of a tensor. A stride of 0 over heads or batch is a broadcast:
/// the map holds that axis with length 1, and the kernel, if it can (`broadcast`), passes
/// coordinate 0.
inline bool tma_addressable(const Layout& layout, DType dtype, std::int64_t batch,
                            std::int64_t heads, std::int64_t rows, bool broadcast) {
  const auto bytes = static_cast<std::int64_t>(size_of(dtype));
  const auto fits = [&](std::int64_t length, std::int64_t stride, bool may_broadcast) {
    return length <= 1 || (stride == 0 && may_broadcast) ||
           (stride > 0 && stride * bytes % kTmaAlignment == 0 && stride * bytes < kTmaStrideLimit);
  };
  return layout.alignment >= kTmaAlignment && fits(batch, layout.stride[0], broadcast) &&
         fits(heads, layout.stride[1], broadcast) && fits(rows, layout.stride[2], false);
}

/// What to say of a tensor of 8- or 16-bit elements that it cannot address.
inline bool refuse_strides(std::string* why, const char* name, const Layout& layout, DType dtype) {
  const bool bytes = size_of(dtype) == 1;
  return core::refuse(why, name, " has strides ", layout.stride[0], ", ", layout.stride[1], ", ",
                      layout.stride[2], " (B, H, S) and alignment ", layout.alignment,
                      ": TMA takes positive strides in multiples of ", bytes ? 16 : 8,
                      " elements below 2^", bytes ? 40 : 39,
                      " and 16-byte addresses; pad the rows or copy");
}

/// The last coordinate along an axis of a map, which has length 1 where a stride of 0 broadcasts.
inline std::int32_t last_coordinate(std::int64_t length, std::int64_t stride) {
  return static_cast<std::int32_t>(stride == 0 ? 0 : length - 1);
}

/// The batch entries whose stride a choice of kernel looks at. batch_invariant asks for two at
/// least, so that one entry is treated as in any batch; a stride of 0 says nothing of a batch.
inline std::int64_t entries_for_choice(const Problem& problem, const Layout& layout,
                                       bool batch_invariant) {
  return batch_invariant && layout.stride[0] != 0 && problem.batch == 1 ? 2 : problem.batch;
}

/// Whether TMA can address Q, K and V, of which K and V may be broadcast; else `why` names the first
/// that it cannot. `but_v`: V need not be.
inline bool inputs_addressable(const Problem& problem, bool batch_invariant, std::string* why,
                               bool but_v = false) {
  const auto addressable = [&](const char* name, const Layout& layout, std::int64_t heads,
                               std::int64_t rows, bool broadcast) {
    const std::int64_t entries = entries_for_choice(problem, layout, batch_invariant);
    return tma_addressable(layout, problem.dtype, entries, heads, rows, broadcast) ||
           refuse_strides(why, name, layout, problem.dtype);
  };
  return addressable("Q", problem.q, problem.heads_q, problem.seq_q, false) &&
         addressable("K", problem.k, problem.heads_kv, problem.seq_kv, true) &&
         (but_v || addressable("V", problem.v, problem.heads_kv, problem.seq_kv, true));
}

/// The driver's functions for maps, asked for once; null when the driver is older than CUDA 12.
struct TensorMapDriver {
  decltype(&cuTensorMapEncodeTiled) encode = nullptr;
  decltype(&cuTensorMapReplaceAddress) replace_address = nullptr;
};
inline const TensorMapDriver* tensor_map_driver() {
  static const TensorMapDriver driver = [] {
    const auto find = [](const char* name) -> void* {
      void* entry = nullptr;
      cudaDriverEntryPointQueryResult result{};
      return cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &result) ==
                         cudaSuccess &&
                     result == cudaDriverEntryPointSuccess
                 ? entry
                 : nullptr;
    };
    TensorMapDriver found;
    found.encode = reinterpret_cast<decltype(found.encode)>(find("cuTensorMapEncodeTiled"));
    found.replace_address =
        reinterpret_cast<decltype(found.replace_address)>(find("cuTensorMapReplaceAddress"));
    return found;
  }();
  return driver.encode != nullptr && driver.replace_address != nullptr ? &driver : nullptr;
}

/// Why `variant` cannot be launched where that is null.
inline Status check_tensor_map_driver(std::string_view variant) {
  if (tensor_map_driver() != nullptr) return {};
  return {
      StatusCode::device_error,
      core::concat(variant, ": the driver has no cuTensorMapEncodeTiled; it needs CUDA 12.0 or ",
                   "later, update the driver, or force another variant")};
}

/// What to say where a map of one of `tensors` could not be made.
inline Status tensor_map_refused(std::string_view variant, std::string_view tensors) {
  return {StatusCode::device_error,
          core::concat(variant, ": the driver refused a tensor map; check that ", tensors,
                       " are device pointers, or force another variant")};
}

/// A map but for its address. Axes from the contiguous one on; what lies outside reads as zeros.
struct MapShape {
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_UINT8;
  cuuint32_t axes = 4;
  cuuint64_t lengths[5]{};
  cuuint64_t strides[4]{};  // in bytes, from the second axis on
  cuuint32_t box[5]{1, 1, 1, 1, 1};
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;

  /// At least one element: an empty axis is no legal map, and nothing of it is read. The stride of
  /// an axis of length 1 is never used, but must be legal.
  void set_axis(int axis, std::int64_t length, std::int64_t stride) {
    lengths[axis] = static_cast<cuuint64_t>(length > 1 ? length : 1);
    if (axis > 0) strides[axis - 1] = static_cast<cuuint64_t>(length > 1 ? stride : kTmaAlignment);
  }
  bool operator==(const MapShape&) const = default;
};

/// The last map of one role in a call, Q say. Calls come in rows of the same shape (a model's
/// layers), so the map is kept and gets a new address: encoding anew takes the driver 0.1 us, four
/// times a call.
class KeptMap {
 public:
  bool make(CUtensorMap* map, const MapShape& shape, const void* data) {
    const TensorMapDriver* driver = tensor_map_driver();
    if (driver == nullptr) return false;
    if (!(known_ && shape == shape_)) {
      known_ = encode(driver->encode, shape, data);
      shape_ = shape;
    } else if (driver->replace_address(&map_, const_cast<void*>(data)) != CUDA_SUCCESS) {
      known_ = false;
    }
    *map = map_;
    return known_;
  }

 private:
  bool encode(decltype(&cuTensorMapEncodeTiled) encoder, const MapShape& shape, const void* data) {
    constexpr cuuint32_t kSteps[5] = {1, 1, 1, 1, 1};
    return encoder(&map_, shape.type, shape.axes, const_cast<void*>(data), shape.lengths,
                   shape.strides, shape.box, kSteps, CU_TENSOR_MAP_INTERLEAVE_NONE, shape.swizzle,
                   shape.promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
  }

  MapShape shape_{};
  CUtensorMap map_{};
  bool known_ = false;
};

inline CUtensorMapDataType map_type_of(DType dtype) {
  return dtype == DType::f16    ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
         : dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                : CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

/// A [B, H, S, D] tensor, D contiguous, in boxes of `box_rows` rows of `box_columns`, as wide as the
/// swizzle.
struct MapTensor {
  const Layout& layout;
  std::int64_t batch, heads, rows, head_dim;
  DType dtype;
};
inline MapShape map_of(const MapTensor& tensor, int box_columns, int box_rows,
                       CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B) {
  const auto& stride = tensor.layout.stride;
  const auto bytes = static_cast<std::int64_t>(size_of(tensor.dtype));
  MapShape shape{.type = map_type_of(tensor.dtype), .promotion = promotion};
  shape.set_axis(0, tensor.head_dim, 0);
  shape.set_axis(1, tensor.rows, bytes * stride[2]);
  shape.set_axis(2, stride[1] == 0 ? 1 : tensor.heads, bytes * stride[1]);
  shape.set_axis(3, stride[0] == 0 ? 1 : tensor.batch, bytes * stride[0]);
  shape.box[0] = static_cast<cuuint32_t>(box_columns);
  shape.box[1] = static_cast<cuuint32_t>(box_rows);
  if (bytes * box_columns == 64) shape.swizzle = CU_TENSOR_MAP_SWIZZLE_64B;
  return shape;
}

}  // namespace greenfast::cuda
