// read_safetensors on arbitrary bytes: it refuses in words, or every tensor lies inside the file.
#include "fuzz/file_tensor.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span file(reinterpret_cast<const std::byte*>(data), size);
  const auto index = greenfast::workbench::read_safetensors(file);
  if (!index.ok()) {
    GREENFAST_EXPECT(!index.status().message().empty());
    return 0;
  }
  for (const auto& tensor : index->tensors) greenfast::fuzz::expect_inside_file(tensor, size);
  return 0;
}
