// What the build knows of compilers, and the plugin headers that travel inside the binary.
#pragma once

#include <span>
#include <string_view>

namespace greenfast::workbench::toolchain {

/// Compilers this binary was built with; nvcc is empty in a build without CUDA.
extern const std::string_view kC, kCxx, kNvcc;
/// The source tree this binary was built from, where it may still be.
extern const std::string_view kSourceTree;

struct Header {
  std::string_view name, text;  // under include/greenfast
};
std::span<const Header> headers();

}  // namespace greenfast::workbench::toolchain
