// read_npy on arbitrary bytes: it refuses in words, or every element lies inside the file.
#include "fuzz/file_tensor.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span file(reinterpret_cast<const std::byte*>(data), size);
  const auto tensor = greenfast::workbench::read_npy(file);
  if (tensor.ok()) {
    greenfast::fuzz::expect_inside_file(*tensor, size);
  } else {
    GREENFAST_EXPECT(!tensor.status().message().empty());
  }
  return 0;
}
