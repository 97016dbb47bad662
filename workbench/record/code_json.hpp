// The machine code that a record's kernels are, as JSON.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <greenfast/attention.hpp>

#include "workbench/resources/device_code.hpp"

namespace greenfast::workbench {

/// For a record: machine code of the kernels that these plans launch on a CUDA device of compute
/// capability `arch`, out of `code`; each kernel once. One without machine code says so.
nlohmann::json code_json(std::span<const std::string> kernels, int arch, const DeviceCode& code);
/// Kernels in the order in which they were met, and who launches each.
struct Launchers {
  std::vector<std::string> kernels;
  std::map<std::string, std::set<std::string>> variants;  // by kernel

  void add(const std::string& kernel, const std::string& variant);
};
/// The same with `variants` in each row.
nlohmann::json code_json(const Launchers& launchers, int arch, const DeviceCode& code);
/// The same out of the running program; empty for a device that is no CUDA device.
nlohmann::json code_json(std::span<const Plan> plans, const DeviceFacts& facts);

}  // namespace greenfast::workbench
