// The GPU behind open_device(DeviceKind::cuda); compiled only where the CUDA toolkit is.
#pragma once

#include <memory>

#include "workbench/device/device.hpp"

namespace greenfast::workbench {

Result<std::unique_ptr<Device>> open_cuda_device(int index);

}  // namespace greenfast::workbench
