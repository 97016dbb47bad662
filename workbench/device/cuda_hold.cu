// A kernel that keeps a stream busy until the host has queued what is to be timed. Without it the
// first event passes at once on an idle GPU, and the host's own time to launch a graph or a batch
// counts as the kernel's.
#include <cuda_runtime.h>

#include "workbench/device/cuda_hold.hpp"

namespace greenfast::workbench {
namespace {

__device__ unsigned long long nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

// Ends by itself, in case the host waits for the device before it opens.
__global__ void hold(const volatile int* open, unsigned long long limit) {
  const unsigned long long begin = nanoseconds();
  while (*open == 0 && nanoseconds() - begin < limit) {
  }
}

}  // namespace

bool hold_stream(void* stream, const int* open, double limit_seconds) {
  hold<<<1, 1, 0, static_cast<cudaStream_t>(stream)>>>(
      open, static_cast<unsigned long long>(limit_seconds * 1e9));
  return cudaGetLastError() == cudaSuccess;
}

}  // namespace greenfast::workbench
