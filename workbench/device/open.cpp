// Which device a name stands for in this build.
#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "workbench/device/cpu.hpp"
#include "workbench/device/device.hpp"
#if defined(GREENFAST_HAVE_CUDA)
#include "workbench/device/cuda.hpp"
#endif

namespace greenfast::workbench {

void flip_signs(std::byte* data, std::size_t bytes, const SignFlips& flips) {
  if (flips.from != flips.to) write_flipped(data, data, bytes, flips);
}

void write_flipped(std::byte* to, const std::byte* from, std::size_t bytes,
                   const SignFlips& flips) {
  const std::size_t words = flips.from == flips.to ? 0 : bytes / 8;
  for (std::size_t word = 0; word < words; ++word) {
    std::uint64_t value;
    std::memcpy(&value, from + 8 * word, sizeof value);
    value ^= change_of(word, flips);
    std::memcpy(to + 8 * word, &value, sizeof value);
  }
  if (to != from && bytes > 8 * words)
    std::memcpy(to + 8 * words, from + 8 * words, bytes - 8 * words);
}

void Device::fill(void* to, std::byte value, std::size_t bytes) {
  const std::vector<std::byte> pattern(bytes, value);
  upload(to, pattern.data(), bytes);
}

void Device::flip_signs(void* data, std::size_t bytes, const SignFlips& flips) {
  std::vector<std::byte> copy(bytes);
  download(copy.data(), data, bytes);
  greenfast::workbench::flip_signs(copy.data(), bytes, flips);
  upload(data, copy.data(), bytes);
}

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
