// Host side of TMA: which tensors it can address, and the 4-D maps of 16-bit [B, H, S, D] tensors.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>

#include <greenfast/attention.hpp>
#include <greenfast/types.hpp>

#include "core/text.hpp"

namespace greenfast::cuda {

inline constexpr std::int64_t kTmaAlignment = 16;                       // bytes, base and strides
inline constexpr std::int64_t kTmaStrideLimit = std::int64_t{1} << 40;  // bytes, exclusive

/// Whether TMA can address the rows of a tensor of 16-bit elements. A stride of 0 over heads or
/// batch is a broadcast: the map holds that axis with length 1, and the kernel, if it can
/// (`broadcast`), passes coordinate 0.
inline bool tma_addressable(const Layout& layout, std::int64_t batch, std::int64_t heads,
                            std::int64_t rows, bool broadcast) {
  const auto fits = [](std::int64_t length, std::int64_t stride, bool may_broadcast) {
    return length <= 1 || (stride == 0 && may_broadcast) ||
           (stride > 0 && stride * 2 % kTmaAlignment == 0 && stride * 2 < kTmaStrideLimit);
  };
  return layout.alignment >= kTmaAlignment && fits(batch, layout.stride[0], broadcast) &&
         fits(heads, layout.stride[1], broadcast) && fits(rows, layout.stride[2], false);
}

/// The batch entries whose stride a choice of kernel looks at. batch_invariant asks for two at
/// least, so that one entry is treated as in any batch; a stride of 0 says nothing of a batch.
inline std::int64_t entries_for_choice(const Problem& problem, const Layout& layout,
                                       bool batch_invariant) {
  return batch_invariant && layout.stride[0] != 0 && problem.batch == 1 ? 2 : problem.batch;
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

/// What a map covers. [B, H, S, D], D contiguous.
struct MapTensor {
  const void* data;
  const Layout& layout;
  std::int64_t batch, heads, rows, head_dim;
  DType dtype;
};

/// The last map of one role in a call, Q say. A map is a pure function of the tensor's shape (the
/// key) but for its address, and calls come in rows of the same shape (a model's layers). So it is
/// kept and gets a new address: encoding anew takes the driver 0.1 us, four times a call.
template <class Key>
class KeptMap {
 public:
  /// encode(encoder, map, key, data) makes the map anew.
  template <class Encode>
  bool make(CUtensorMap* map, const Key& key, const void* data, const Encode& encode) {
    const TensorMapDriver* driver = tensor_map_driver();
    if (driver == nullptr) return false;
    if (!(known_ && key == key_)) {
      known_ = encode(driver->encode, &map_, key, data);
      key_ = key;
    } else if (driver->replace_address(&map_, const_cast<void*>(data)) != CUDA_SUCCESS) {
      known_ = false;
    }
    *map = map_;
    return known_;
  }

 private:
  Key key_{};
  CUtensorMap map_{};
  bool known_ = false;
};

/// Maps of one role in a call. Boxes are box_rows rows of 64 columns, 128-byte swizzled; what lies
/// outside reads as zeros.
class TensorMaps {
 public:
  bool make(CUtensorMap* map, const MapTensor& tensor, int box_rows,
            CUtensorMapL2promotion promotion) {
    return kept_.make(map, key_of(tensor, box_rows, promotion), tensor.data, encode);
  }

 private:
  struct Key {
    cuuint64_t sizes[4];
    cuuint64_t bytes[3];  // strides
    cuuint32_t box_rows;
    CUtensorMapL2promotion promotion;
    CUtensorMapDataType type;
    bool operator==(const Key&) const = default;
  };

  static Key key_of(const MapTensor& tensor, int box_rows, CUtensorMapL2promotion promotion) {
    const auto& stride = tensor.layout.stride;
    const std::int64_t lengths[3] = {tensor.rows, stride[1] == 0 ? 1 : tensor.heads,
                                     stride[0] == 0 ? 1 : tensor.batch};
    const std::int64_t steps[3] = {stride[2], stride[1], stride[0]};
    Key key{};
    key.sizes[0] = static_cast<cuuint64_t>(tensor.head_dim);
    for (int i = 0; i < 3; ++i) {
      // At least one row: an empty axis is no legal map, and nothing of it is read. The stride of
      // an axis of length 1 is never used, but must be legal.
      key.sizes[i + 1] = static_cast<cuuint64_t>(lengths[i] > 1 ? lengths[i] : 1);
      key.bytes[i] = static_cast<cuuint64_t>(lengths[i] > 1 ? 2 * steps[i] : kTmaAlignment);
    }
    key.box_rows = static_cast<cuuint32_t>(box_rows);
    key.promotion = promotion;
    key.type = tensor.dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                          : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    return key;
  }

  static bool encode(decltype(&cuTensorMapEncodeTiled) encoder, CUtensorMap* map, const Key& key,
                     const void* data) {
    const cuuint32_t box[4] = {64, key.box_rows, 1, 1};
    const cuuint32_t element_steps[4] = {1, 1, 1, 1};
    return encoder(map, key.type, 4, const_cast<void*>(data), key.sizes, key.bytes, box,
                   element_steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                   key.promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
  }

  KeptMap<Key> kept_;
};

}  // namespace greenfast::cuda
