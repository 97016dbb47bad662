// The matrix ceiling of a GPU, measured by a loop of nothing but matrix instructions on random
// data.
#pragma once

#include <string>

#include <greenfast/attention.hpp>

namespace greenfast::workbench {

/// FLOP/s that this device sustains for dtype, about 50 ms; 0 where it has no such instruction.
/// `method` receives the instruction used. stream is a cudaStream_t.
double measure_matrix_flops(const DeviceFacts& facts, DType dtype, void* stream,
                            std::string& method);

}  // namespace greenfast::workbench
