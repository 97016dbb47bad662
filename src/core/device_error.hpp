// What a call says of a device's runtime that failed. Kernels and backends must not include each
// other, and this knows no runtime's header, so all of them say it in the same words.
#pragma once

#include <string_view>

#include <greenfast/types.hpp>

#include "core/text.hpp"

namespace greenfast::core {

/// "cuda.sm80.mma: cannot launch: NAME (DESCRIPTION)"; the last two are the runtime's.
inline Status device_error(std::string_view who, std::string_view action, std::string_view name,
                           std::string_view description) {
  return {StatusCode::device_error,
          concat(who, ": cannot ", action, ": ", name, " (", description, ")")};
}

}  // namespace greenfast::core
