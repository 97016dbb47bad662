// A question about masks that selection and kernels both ask.
#pragma once

#include <cstdint>

#include <greenfast/types.hpp>

namespace greenfast::core {

/// A window, bounded on both sides, in which no row sees more than `keys` keys.
constexpr bool window_within(const Mask& mask, std::int64_t keys) {
  return mask.left >= 0 && mask.right >= 0 && mask.left < keys && mask.right < keys &&
         mask.left + mask.right < keys;
}

}  // namespace greenfast::core
