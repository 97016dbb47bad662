// Keeps a CUDA stream busy while the host queues work behind it.
#pragma once

namespace greenfast::workbench {

/// Launches a kernel that ends when *open (host memory mapped into the device) is not 0, or after
/// the limit. stream is a cudaStream_t. False when it could not be launched.
bool hold_stream(void* stream, const int* open, double limit_seconds);

}  // namespace greenfast::workbench
