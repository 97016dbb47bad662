// read_device_code on arbitrary bytes: it refuses in words, or tells figures that make sense.
#include <span>

#include "fuzz/expect.hpp"
#include "workbench/resources/device_code.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span file(reinterpret_cast<const std::byte*>(data), size);
  const auto code = greenfast::workbench::read_device_code(file);
  if (!code.ok()) {
    GREENFAST_EXPECT(!code.status().message().empty());
    return 0;
  }
  for (const auto& kernel : code->kernels) {
    GREENFAST_EXPECT(kernel.sha256.size() == 64);
    GREENFAST_EXPECT(kernel.registers >= 0 && kernel.static_shared >= 0 && kernel.stack >= 0);
    GREENFAST_EXPECT(kernel.code_bytes >= 0 && static_cast<std::size_t>(kernel.code_bytes) <= size);
  }
  return 0;
}
