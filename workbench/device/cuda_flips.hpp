// Signs of inputs drawn anew on a GPU.
#pragma once

#include <cstddef>

#include "workbench/device/sign_flips.hpp"

namespace greenfast::workbench {

/// Launches the change on a cudaStream_t. False when it could not be launched.
bool flip_signs_on(void* stream, void* data, std::size_t bytes, const SignFlips& flips);

}  // namespace greenfast::workbench
