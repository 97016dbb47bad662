// CUDA devices through the statically linked runtime: found when asked for, so that one binary runs
// with and without a GPU.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string>

#include "backends/cuda/append.hpp"
#include "backends/cuda/fill_empty.hpp"
#include "backends/cuda/merge.hpp"
#include "backends/cuda/quantize.hpp"
#include "backends/cuda/smooth.hpp"
#include "core/backend.hpp"

namespace greenfast::cuda {
namespace {

constexpr int kMaxDevices = 64;

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string why_no_device(cudaError_t error) {
  int driver = 0, runtime = 0;
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (driver == 0) {
    return "no NVIDIA driver was found (libcuda.so.1). Install the driver, or use the cpu device.";
  }
  if (error == cudaErrorInsufficientDriver) {
    return "the NVIDIA driver supports CUDA " + version_text(driver) + ", and this library needs " +
           version_text(runtime) + ". Update the driver, or use the cpu device.";
  }
  if (error == cudaErrorNoDevice) {
    return "the NVIDIA driver sees no GPU. Check CUDA_VISIBLE_DEVICES, or use the cpu device.";
  }
  return std::string("the NVIDIA driver failed: ") + cudaGetErrorName(error) + " (" +
         cudaGetErrorString(error) + ").";
}

int count(std::string* why) noexcept {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess) {
    cudaGetLastError();
    devices = 0;
  }
  if (devices == 0 && why != nullptr) {
    *why = why_no_device(error == cudaSuccess ? cudaErrorNoDevice : error);
  }
  return devices;
}

bool attribute(int index, cudaDeviceAttr which, int* value) {
  return cudaDeviceGetAttribute(value, which, index) == cudaSuccess;
}

std::unique_ptr<DeviceFacts> read_facts(int index, Status* why) {
  cudaDeviceProp properties{};
  int major = 0, minor = 0, sms = 0, shared = 0, l2 = 0, driver = 0;
  const bool read = cudaGetDeviceProperties(&properties, index) == cudaSuccess &&
                    attribute(index, cudaDevAttrComputeCapabilityMajor, &major) &&
                    attribute(index, cudaDevAttrComputeCapabilityMinor, &minor) &&
                    attribute(index, cudaDevAttrMultiProcessorCount, &sms) &&
                    attribute(index, cudaDevAttrMaxSharedMemoryPerBlockOptin, &shared) &&
                    attribute(index, cudaDevAttrL2CacheSize, &l2) &&
                    cudaDriverGetVersion(&driver) == cudaSuccess;
  if (!read) {
    if (why != nullptr) {
      *why = {StatusCode::device_error,
              "cuda:" + std::to_string(index) + ": " + cudaGetErrorString(cudaGetLastError())};
    }
    return nullptr;
  }
  auto facts = std::make_unique<DeviceFacts>();
  facts->kind = DeviceKind::cuda;
  facts->index = index;
  facts->name = properties.name;
  facts->arch = 10 * major + minor;
  facts->multiprocessors = sms;
  facts->shared_per_block = shared;
  facts->l2_bytes = l2;
  facts->driver = version_text(driver);
  return facts;
}

const DeviceFacts* facts(int index, Status* why) noexcept {
  // Facts of a GPU do not change while a process runs; a failed reading is tried again by the next
  // call.
  static std::array<std::atomic<const DeviceFacts*>, kMaxDevices> known{};
  if (index >= 0 && index < kMaxDevices) {
    if (const DeviceFacts* found = known[index].load(std::memory_order_acquire)) return found;
  }
  std::string reason;
  const int devices = count(&reason);
  if (devices == 0 || index < 0 || index >= std::min(devices, kMaxDevices)) {
    if (why != nullptr) {
      *why = {StatusCode::no_device,
              devices == 0 ? "cuda: " + reason
                           : "cuda:" + std::to_string(index) + ": this machine has " +
                                 std::to_string(devices) + " CUDA device(s), numbered from 0."};
    }
    return nullptr;
  }
  std::unique_ptr<DeviceFacts> fresh = read_facts(index, why);
  if (!fresh) return nullptr;
  const DeviceFacts* expected = nullptr;
  if (known[index].compare_exchange_strong(expected, fresh.get(), std::memory_order_acq_rel)) {
    return fresh.release();
  }
  return expected;
}

Status enter(int index) noexcept {
  int current = -1;
  if (const cudaError_t error = cudaGetDevice(&current); error != cudaSuccess) {
    return {StatusCode::device_error, std::string("cuda: ") + cudaGetErrorString(error)};
  }
  if (current == index) return {};
  return {StatusCode::invalid_argument, "Options::device_index is " + std::to_string(index) +
                                            ", but the calling thread's current device is " +
                                            std::to_string(current) + ": call cudaSetDevice(" +
                                            std::to_string(index) + ") first."};
}

Status fetch(const void* from, std::size_t bytes, void* to, const core::Context& context) {
  const auto stream = static_cast<cudaStream_t>(context.stream);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cudaError_t error = cudaStreamIsCapturing(stream, &capture);
  // The default stream, while another that waits for it is captured.
  const bool implicit = error == cudaErrorStreamCaptureImplicit;
  if (implicit) cudaGetLastError();
  if (implicit || (error == cudaSuccess && capture != cudaStreamCaptureStatusNone))
    return {
        StatusCode::invalid_argument,
        "Options::validate is set while the stream is captured into a graph: reading the arrays "
        "synchronises, which a graph cannot; capture without it, and validate a call before"};
  if (error == cudaSuccess) error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  if (error == cudaSuccess) return {};
  cudaGetLastError();
  return {StatusCode::device_error, std::string("cuda: reading an array for Options::validate: ") +
                                        cudaGetErrorString(error)};
}

}  // namespace

extern const core::Backend backend;
const core::Backend backend{
    .count = count,
    .facts = facts,
    .enter = enter,
    .fill_empty = fill_empty,
    .quantize = quantize,
    .column_means = column_means,
    .shift_lse = shift_lse,
    .merge = merge,
    .append = append,
    .fetch = fetch,
};

}  // namespace greenfast::cuda
