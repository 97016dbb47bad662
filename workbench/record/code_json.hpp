// The machine code that a record's kernels are, as JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include <greenfast/attention.hpp>

#include "workbench/resources/device_code.hpp"

namespace greenfast::workbench {

/// For a record: machine code of the kernels that these plans launch on a CUDA device of compute
/// capability `arch`, out of `code`; each kernel once. One without machine code says so.
nlohmann::json code_json(std::span<const std::string> kernels, int arch, const DeviceCode& code);
/// The same out of the running program; empty for a device that is no CUDA device.
nlohmann::json code_json(std::span<const Plan> plans, const DeviceFacts& facts);

}  // namespace greenfast::workbench
