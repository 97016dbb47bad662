// Which device a name stands for in this build.
#include <fmt/format.h>

#include "workbench/device/cpu.hpp"
#include "workbench/device/device.hpp"
#if defined(GREENFAST_HAVE_CUDA)
#include "workbench/device/cuda.hpp"
#endif

namespace greenfast::workbench {

Result<std::unique_ptr<Device>> open_device(DeviceKind kind, int index) {
  switch (kind) {
    case DeviceKind::cpu:
      if (index != 0) {
        return Status(StatusCode::no_device,
                      fmt::format("cpu device {}: there is one CPU device, 0", index));
      }
      return open_cpu_device();
    case DeviceKind::cuda:
#if defined(GREENFAST_HAVE_CUDA)
      return open_cuda_device(index);
#else
      return Status(StatusCode::no_device,
                    "device cuda: this build has no CUDA support; build with GREENFAST_CUDA=on, or "
                    "use --device cpu");
#endif
  }
  return Status(StatusCode::invalid_argument, "unknown device kind; expected cpu or cuda");
}

}  // namespace greenfast::workbench
