// How the launches of this folder went.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include <greenfast/types.hpp>

#include "core/text.hpp"

namespace greenfast::cuda {

/// Of the launches since the last call; `what` is what they do: "merge".
inline Status launched(std::string_view what) {
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return {};
  return {StatusCode::device_error, core::concat("cuda ", what, ": ", cudaGetErrorName(error), " (",
                                                 cudaGetErrorString(error), ")")};
}

}  // namespace greenfast::cuda
