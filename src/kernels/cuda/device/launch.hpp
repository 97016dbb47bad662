// Host side of a launch: the runtime's errors as Status, and the opt-in to large shared memory.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <typeinfo>

#include <greenfast/attention.hpp>

#include "core/text.hpp"

namespace greenfast::cuda {

/// `action` completes "cuda.sm80.mma: cannot ...".
inline Status to_status(cudaError_t error, std::string_view variant, std::string_view action) {
  if (error == cudaSuccess) return {};
  return {StatusCode::device_error,
          core::concat(variant, ": cannot ", action, ": ", cudaGetErrorName(error), " (",
                       cudaGetErrorString(error), ")")};
}

template <auto kKernel>
struct KernelTag {};

/// For Plan::kernel: the name under which the cubins hold a kernel of this source.
template <auto kKernel>
std::string name_of_kernel() {
  return kernel_name(typeid(KernelTag<kKernel>).name());
}

/// Remembers on which devices a kernel may use more than 48 KB of shared memory, so that a launch
/// asks the runtime once. Constant-initialised; any thread may call.
class SharedMemoryOptIn {
 public:
  cudaError_t ensure(const void* kernel, int bytes, int device) noexcept {
    const std::uint64_t bit = device >= 0 && device < 64 ? std::uint64_t{1} << device : 0;
    if (done_.load(std::memory_order_acquire) & bit) return cudaSuccess;
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error == cudaSuccess) done_.fetch_or(bit, std::memory_order_release);
    return error;
  }

 private:
  std::atomic<std::uint64_t> done_{0};
};

}  // namespace greenfast::cuda
