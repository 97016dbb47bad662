// Host side of a launch: the runtime's errors as Status, the opt-in to large shared memory, the grid.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <typeinfo>

#include <greenfast/arithmetic.hpp>
#include <greenfast/attention.hpp>

#include "core/device_error.hpp"
#include "core/text.hpp"
#include "core/variant.hpp"

namespace greenfast::cuda {

/// `action` completes "cuda.sm80.mma: cannot ...".
inline Status to_status(cudaError_t error, std::string_view variant, std::string_view action) {
  if (error == cudaSuccess) return {};
  return core::device_error(variant, action, cudaGetErrorName(error), cudaGetErrorString(error));
}

/// Whether machine code for sm_90a runs on the device; else `why` says that it does not.
inline bool runs_sm90a(const DeviceFacts& facts, std::string* why) {
  if (facts.arch == 90) return true;
  return core::refuse(why, "compute capability ", facts.arch / 10, ".", facts.arch % 10,
                      ": its machine code (sm_90a) runs on 9.0 only");
}

template <auto kKernel>
struct KernelTag {};

/// For Plan::kernel: the name under which the cubins hold a kernel of this source.
template <auto kKernel>
std::string name_of_kernel() {
  return kernel_name(typeid(KernelTag<kKernel>).name());
}

/// Remembers on which devices a kernel may use more than 48 KB of shared memory, so that of its
/// launches only the first on a device asks the runtime; on devices from the 64th on every one
/// does. Constant-initialised; any thread may call.
class SharedMemoryOptIn {
 public:
  Status ensure(const void* kernel, int bytes, int device, std::string_view variant) {
    const std::uint64_t bit = device >= 0 && device < 64 ? std::uint64_t{1} << device : 0;
    if (done_.load(std::memory_order_acquire) & bit) return {};
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess) {
      cudaGetLastError();  // or the next launch would be blamed for it
      return to_status(error, variant, core::concat("reserve ", bytes, " bytes of shared memory"));
    }
    done_.fetch_or(bit, std::memory_order_release);
    return {};
  }

 private:
  std::atomic<std::uint64_t> done_{0};
};

/// The builds of a kernel for fp16 and bf16, each instantiated in a source of its own, and on which
/// devices they may use their shared memory. Constant-initialised; any thread may call.
template <std::size_t kBuilds>
class BuildsByType {
 public:
  using Entries = const std::array<const void*, kBuilds>& (*)();
  constexpr BuildsByType(Entries half, Entries bfloat) : half_(half), bfloat_(bfloat) {}

  const void* kernel(DType dtype, std::size_t build) const {
    return (dtype == DType::f16 ? half_ : bfloat_)()[build];
  }
  Status ensure_shared(DType dtype, std::size_t build, int bytes, int device,
                       std::string_view variant) {
    return opt_ins_[dtype == DType::f16 ? 0 : 1][build].ensure(kernel(dtype, build), bytes, device,
                                                               variant);
  }

 private:
  Entries half_, bfloat_;
  std::array<std::array<SharedMemoryOptIn, kBuilds>, 2> opt_ins_{};
};

inline constexpr std::int64_t kMostBlocksX = std::numeric_limits<std::int32_t>::max();

/// A grid of at least `count` blocks in x and, where x holds no more, y.
inline std::array<int, 3> grid_of_blocks(std::int64_t count) {
  return {static_cast<int>(std::min(count, kMostBlocksX)),
          static_cast<int>(ceil_div(count, kMostBlocksX)), 1};
}

/// `grid` and `shared` (bytes, dynamic) as the plan has them.
inline cudaLaunchConfig_t launch_config(const std::array<int, 3>& grid, int threads, int shared,
                                        const core::Context& context) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(grid[0]), static_cast<unsigned>(grid[1]),
                        static_cast<unsigned>(grid[2]));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(shared);
  config.stream = static_cast<cudaStream_t>(context.stream);
  return config;
}

/// Launches a kernel that another source instantiated.
inline Status launch_kernel(const cudaLaunchConfig_t& config, const void* kernel, void** arguments,
                            std::string_view variant) {
  return to_status(cudaLaunchKernelExC(&config, kernel, arguments), variant, "launch");
}

/// The same as a programmatic dependent launch: its blocks may be set up beside the last ones of the
/// kernel before it in the stream, which it waits for itself (griddepcontrol.wait).
inline Status launch_early(cudaLaunchConfig_t config, const void* kernel, void** arguments,
                           std::string_view variant) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = 1;
  return launch_kernel(config, kernel, arguments, variant);
}

/// An input type as kernels' names have it.
inline const char* type_name(DType dtype) {
  return dtype == DType::f16 ? "__half" : "__nv_bfloat16";
}

}  // namespace greenfast::cuda
