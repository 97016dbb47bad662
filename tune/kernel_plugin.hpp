// A kernel of the library as a plugin, so that `greenfast tune` can compile it in other
// configurations. Include after the kernel's source, once.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <string>

#include <greenfast/plugin.h>
#include <greenfast/c_types.hpp>

#include "core/features.cpp"
#include "core/kernel_name.cpp"
#include "core/types.cpp"
#include "core/variant.hpp"
#include "dispatch/takes.hpp"

namespace greenfast::tune {

/// Facts of the current device; without one, what every GPU of sm_80 and later has at least.
inline const DeviceFacts& facts() {
  static const DeviceFacts kFacts = [] {
    DeviceFacts facts{.kind = DeviceKind::cuda, .arch = 80, .shared_per_block = 99 * 1024};
    if (cudaGetDevice(&facts.index) != cudaSuccess) return facts;
    const auto ask = [&](cudaDeviceAttr attribute, auto least) {
      int value = 0;
      const bool known = cudaDeviceGetAttribute(&value, attribute, facts.index) == cudaSuccess;
      return known ? static_cast<decltype(least)>(value) : least;
    };
    facts.multiprocessors = ask(cudaDevAttrMultiProcessorCount, facts.multiprocessors);
    facts.shared_per_block = ask(cudaDevAttrMaxSharedMemoryPerBlockOptin, facts.shared_per_block);
    facts.l2_bytes = ask(cudaDevAttrL2CacheSize, facts.l2_bytes);
    facts.arch =
        10 * ask(cudaDevAttrComputeCapabilityMajor, 8) + ask(cudaDevAttrComputeCapabilityMinor, 0);
    return facts;
  }();
  return kFacts;
}

/// Functions of a plugin for a core::Kernel of the library.
template <const core::Kernel& kKernel, const Features& kTakes>
struct KernelPlugin {
  static int supports(const gf_problem* problem, char* why, size_t capacity) {
    std::string text;
    const Problem asked = from_c(*problem);
    text = missing_features(features_of(asked), kTakes);
    if (text.empty() && kKernel.supports(asked, facts(), {}, &text)) return 1;
    if (capacity == 0) return 0;
    const std::size_t length = std::min(text.size(), capacity - 1);
    std::memcpy(why, text.data(), length);
    why[length] = 0;
    return 0;
  }
  static size_t workspace_bytes(const gf_problem* problem) {
    if (kKernel.workspace == nullptr) return 0;
    return static_cast<size_t>(kKernel.workspace(from_c(*problem), facts(), {}));
  }
  static gf_status launch(const gf_plugin_call* call) {
    const Tensors tensors = from_c(*call->tensors);
    core::Context context;
    context.facts = &facts();
    context.stream = call->stream;
    context.workspace = call->workspace;
    const Status status = kKernel.launch(from_c(*call->problem), tensors, context);
    if (status.ok()) return GF_OK;
    if (call->error_capacity > 0) {
      const std::size_t length = std::min(status.message().size(), call->error_capacity - 1);
      std::memcpy(call->error, status.message().data(), length);
      call->error[length] = 0;
    }
    return static_cast<gf_status>(status.code());
  }
};

}  // namespace greenfast::tune

/// The plugin of one kernel and of what its row in variants.def takes:
/// GREENFAST_KERNEL_PLUGIN("v8", greenfast::kernels::cuda_v2c_v8, greenfast::dispatch::kTakesV2c)
#define GREENFAST_KERNEL_PLUGIN(kernel_name, kernel, takes)                     \
  static const gf_plugin_kernel kPluginKernels[] = {                            \
      {sizeof(gf_plugin_kernel), GF_CUDA, kernel_name, "",                      \
       greenfast::tune::KernelPlugin<kernel, takes>::supports,                  \
       greenfast::tune::KernelPlugin<kernel, takes>::workspace_bytes, nullptr,  \
       greenfast::tune::KernelPlugin<kernel, takes>::launch}};                  \
  static const gf_plugin kPlugin = GF_PLUGIN_INIT("greenfast", kPluginKernels); \
  GF_PLUGIN_EXPORT const gf_plugin* gf_plugin_get(void) { return &kPlugin; }
