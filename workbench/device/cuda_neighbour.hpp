// An ordinary kernel to stand before a call on a CUDA device.
#pragma once

#include <cstddef>

namespace greenfast::workbench {

/// Adds 1 to each of `count` numbers. stream is a cudaStream_t. False when it could not be launched.
bool launch_neighbour(void* stream, float* data, std::size_t count);

}  // namespace greenfast::workbench
