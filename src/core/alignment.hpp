// Where the rows of a tensor begin, for kernels that move several elements at once.
#pragma once

#include <array>
#include <cstdint>

#include <greenfast/types.hpp>

namespace greenfast::core {

/// Whether every row of a [B, H, S, D] tensor of that shape begins at a multiple of `bytes`; an
/// address is known as far as its alignment. Strides of axes of length 1 never move it.
inline bool rows_aligned(std::uint64_t address, const Layout& layout,
                         const std::array<std::int64_t, 4>& shape, std::size_t element,
                         std::size_t bytes) {
  bool aligned = address % bytes == 0;
  for (std::size_t axis = 0; axis < 3; ++axis)
    aligned = aligned && (shape[axis] <= 1 ||
                          static_cast<std::uint64_t>(layout.stride[axis]) * element % bytes == 0);
  return aligned;
}
inline bool rows_aligned(const void* data, const Layout& layout,
                         const std::array<std::int64_t, 4>& shape, std::size_t element,
                         std::size_t bytes) {
  return rows_aligned(reinterpret_cast<std::uintptr_t>(data), layout, shape, element, bytes);
}

}  // namespace greenfast::core
