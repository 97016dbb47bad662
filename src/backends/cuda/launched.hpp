// How the launches of this folder went, in the words of the CUDA kernels' device/launch.hpp, which a
// backend must not include.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include <greenfast/types.hpp>

#include "core/device_error.hpp"

namespace greenfast::cuda {

/// Of the launches since the last call; `who` is what they do: "cuda merge".
inline Status launched(std::string_view who) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return {};
  return core::device_error(who, "launch", cudaGetErrorName(error), cudaGetErrorString(error));
}

}  // namespace greenfast::cuda
