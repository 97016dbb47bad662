// Is the library's quantiser exact? Every value of a 16-bit type, bit by bit, on a device.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "workbench/device/device.hpp"

namespace greenfast::workbench {

struct QuantizerRow {
  std::string what;         ///< "all 65,536 values of fp16"
  std::int64_t values = 0;  ///< that were compared
  std::int64_t wrong = 0;   ///< codes, or scales, that differ from the definition
  std::string first;        ///< the first of them in words
};

/// Quantises on the device through the public API and compares with the workbench's own encoder:
/// all values of fp16 and of bf16, fp32 around every rounding boundary, and scales computed for
/// heads of which one is all zero. Fails when the device has no memory or the call is refused.
Result<std::vector<QuantizerRow>> check_quantizer(Device& device);

}  // namespace greenfast::workbench
