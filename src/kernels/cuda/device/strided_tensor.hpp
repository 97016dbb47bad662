// Tensors and element types as the parameters of kernels have them.
#pragma once

#include <cstdint>

#include <greenfast/types.hpp>

namespace greenfast::cuda {

/// A [B, H, S, D] tensor, or [1, H, total, D] of packed rows, or [page, H, row of the page, D];
/// strides in elements.
struct StridedTensor {
  const void* data = nullptr;
  std::int64_t batch = 0, head = 0, row = 0;
};
inline StridedTensor strided(const void* data, const Layout& layout) {
  return {data, layout.stride[0], layout.stride[1], layout.stride[2]};
}

/// The types that a kernel of 16-bit inputs tells apart as it runs.
enum class ElementType : std::int32_t { f32, f16, bf16 };
inline ElementType element_type_of(DType dtype) {
  return dtype == DType::f32   ? ElementType::f32
         : dtype == DType::f16 ? ElementType::f16
                               : ElementType::bf16;
}

}  // namespace greenfast::cuda
