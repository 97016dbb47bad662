// The machine's CPU behind open_device(DeviceKind::cpu).
#pragma once

#include <memory>

#include "workbench/device/device.hpp"

namespace greenfast::workbench {

Result<std::unique_ptr<Device>> open_cpu_device();

}  // namespace greenfast::workbench
