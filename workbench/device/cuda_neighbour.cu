// What stands before a call in a model, as far as its launch is concerned: a kernel that fills the
// machine, reads and writes memory, and takes no part in early launches, so that nothing of the call
// behind it is hidden.
#include <cuda_runtime.h>

#include <greenfast/arithmetic.hpp>

#include "workbench/device/cuda_neighbour.hpp"

namespace greenfast::workbench {
namespace {

constexpr unsigned kThreads = 256;

__global__ void add_one(float* data, std::size_t count) {
  const std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) data[i] += 1.0f;
}

}  // namespace

bool launch_neighbour(void* stream, float* data, std::size_t count) {
  const auto blocks = static_cast<unsigned>(ceil_div(count, std::size_t{kThreads}));
  add_one<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(data, count);
  return cudaGetLastError() == cudaSuccess;
}

}  // namespace greenfast::workbench
