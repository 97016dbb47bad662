// What every record says of the binary, the machine and the device, as JSON.
#pragma once

#include <nlohmann/json.hpp>

#include <greenfast/attention.hpp>

#include "workbench/base/host.hpp"

namespace greenfast::workbench {

nlohmann::json build_json();
nlohmann::json host_json(const HostFacts& host);
nlohmann::json device_json(const DeviceFacts& facts);

}  // namespace greenfast::workbench
