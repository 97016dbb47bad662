// What every check of a call asks of its tensors' memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <greenfast/types.hpp>

namespace greenfast::core {

/// What elements of a tensor may share memory: none, none though only read, any.
enum class Sharing { distinct, readable, broadcast };

/// Strides, alignment and extent of a tensor whose last dimension is contiguous, or the one before
/// where it may be transposed.
Status check_layout(std::string_view name, const Layout& layout,
                    const std::array<std::int64_t, 4>& shape, DType dtype, Sharing sharing,
                    bool may_be_transposed = false);

/// Addresses from the first element to the end of the last. None overlaps nothing.
struct Range {
  std::uintptr_t begin = 0;
  std::uint64_t bytes = 0;
};
Range range_of(const void* data, std::int64_t bytes) noexcept;
bool overlap(Range a, Range b) noexcept;
/// Whether a call may use the memory; element sizes are powers of two.
bool usable(Range range, std::size_t element) noexcept;
/// Why it may not.
Status refuse_memory(std::string_view name, Range range, std::size_t element,
                     std::string_view why_needed);

}  // namespace greenfast::core
