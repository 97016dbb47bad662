// What every reader promises of a tensor that it accepts from a file of file_bytes bytes.
#pragma once

#include <cstdint>

#include "fuzz/expect.hpp"
#include "workbench/cases/readers.hpp"

namespace greenfast::fuzz {

inline void expect_inside_file(const workbench::FileTensor& tensor, std::uint64_t file_bytes) {
  GREENFAST_EXPECT(tensor.offset <= file_bytes);
  GREENFAST_EXPECT(tensor.bytes <= file_bytes - tensor.offset);
  std::uint64_t bytes = size_of(tensor.dtype);
  GREENFAST_EXPECT(bytes > 0);
  for (const std::int64_t extent : tensor.shape) {
    GREENFAST_EXPECT(extent >= 0);
    if (bytes == 0) continue;  // an earlier extent was 0; the others are free
    GREENFAST_EXPECT(!__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes));
  }
  GREENFAST_EXPECT(bytes == tensor.bytes);
}

}  // namespace greenfast::fuzz
