// One pass over a buffer at the memory's bandwidth, outside every timed region: 100 MB of inputs
// are other inputs after some 60 us, where generating and copying them would take tens of
// milliseconds.
#include <cuda_runtime.h>

#include <algorithm>

#include <greenfast/arithmetic.hpp>

#include "workbench/device/cuda_flips.hpp"

namespace greenfast::workbench {
namespace {

constexpr unsigned kThreads = 256, kMostBlocks = 4096;

__global__ void flip(unsigned long long* words, std::size_t count, SignFlips flips) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    words[i] ^= change_of(i, flips);
  }
}

}  // namespace

bool flip_signs_on(void* stream, void* data, std::size_t bytes, const SignFlips& flips) {
  const std::size_t count = bytes / 8;
  if (count == 0 || flips.from == flips.to) return true;
  const auto blocks =
      static_cast<unsigned>(std::min<std::size_t>(ceil_div(count, kThreads), kMostBlocks));
  flip<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<unsigned long long*>(data), count, flips);
  return cudaGetLastError() == cudaSuccess;
}

}  // namespace greenfast::workbench
