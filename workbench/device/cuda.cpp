// A CUDA GPU as the workbench sees it: its own allocations, stream, graphs, cache flush and
// telemetry. Compiled only where the CUDA toolkit is; cudart is linked statically, and NVML is
// opened at run time.
#include "workbench/device/cuda.hpp"

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "workbench/device/cuda_flips.hpp"
#include "workbench/device/cuda_hold.hpp"
#include "workbench/device/cuda_neighbour.hpp"
#include "workbench/device/cuda_peak.hpp"

namespace greenfast::workbench {
namespace {

Status device_error(const char* what, cudaError_t error) {
  const StatusCode code =
      error == cudaErrorMemoryAllocation ? StatusCode::out_of_memory : StatusCode::device_error;
  return {code, std::string(what) + ": " + cudaGetErrorName(error) + " (" +
                    cudaGetErrorString(error) + ")"};
}

/// NVML by its stable C entry points, absent on machines without the driver's library.
class Nvml {
 public:
  Nvml() {
    library_ = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) return;
    auto init = load<int (*)()>("nvmlInit_v2");
    by_bus_ = load<decltype(by_bus_)>("nvmlDeviceGetHandleByPciBusId_v2");
    clock_ = load<decltype(clock_)>("nvmlDeviceGetClockInfo");
    power_ = load<decltype(power_)>("nvmlDeviceGetPowerUsage");
    temperature_ = load<decltype(temperature_)>("nvmlDeviceGetTemperature");
    throttle_ = load<decltype(throttle_)>("nvmlDeviceGetCurrentClocksEventReasons");
    if (throttle_ == nullptr)  // its name before driver 535
      throttle_ = load<decltype(throttle_)>("nvmlDeviceGetCurrentClocksThrottleReasons");
    if (init == nullptr || init() != 0) by_bus_ = nullptr;
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  // The library stays open: NVML owns threads that must not lose their code.

  void* device(const char* bus_id) const {
    void* handle = nullptr;
    return by_bus_ != nullptr && by_bus_(bus_id, &handle) == 0 ? handle : nullptr;
  }

  Telemetry read(void* device) const {
    Telemetry now;
    if (device == nullptr) return now;
    unsigned value = 0;
    if (clock_ != nullptr && clock_(device, 1, &value) == 0) now.sm_mhz = value;
    if (clock_ != nullptr && clock_(device, 2, &value) == 0) now.memory_mhz = value;
    if (power_ != nullptr && power_(device, &value) == 0) now.watts = value * 1e-3;
    if (temperature_ != nullptr && temperature_(device, 0, &value) == 0) now.celsius = value;
    unsigned long long reasons = 0;
    if (throttle_ != nullptr && throttle_(device, &reasons) == 0) {
      // Bits of nvmlClocksThrottleReasons; idle (1) is no throttle.
      static constexpr struct {
        unsigned long long bit;
        const char* name;
      } kReasons[] = {{0x2, "application clocks"}, {0x4, "software power cap"},
                      {0x8, "hardware slowdown"},  {0x10, "sync boost"},
                      {0x20, "software thermal"},  {0x40, "hardware thermal"},
                      {0x80, "power brake"},       {0x100, "display clocks"}};
      for (const auto& reason : kReasons) {
        if ((reasons & reason.bit) != 0) now.throttle_reasons.emplace_back(reason.name);
      }
    }
    return now;
  }

 private:
  template <class F>
  F load(const char* name) const {
    return reinterpret_cast<F>(dlsym(library_, name));
  }

  void* library_ = nullptr;
  int (*by_bus_)(const char*, void**) = nullptr;
  int (*clock_)(void*, int, unsigned*) = nullptr;
  int (*power_)(void*, unsigned*) = nullptr;
  int (*temperature_)(void*, int, unsigned*) = nullptr;
  int (*throttle_)(void*, unsigned long long*) = nullptr;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(int index, DeviceFacts facts) : index_(index), facts_(std::move(facts)) {}
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  ~CudaDevice() override {
    cudaDeviceSynchronize();
    cudaFree(flush_);
    cudaFree(neighbour_);
    cudaFreeHost(gate_);
    if (begin_ != nullptr) cudaEventDestroy(begin_);
    if (end_ != nullptr) cudaEventDestroy(end_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  Status open() {
    if (const cudaError_t e = cudaSetDevice(index_); e != cudaSuccess)
      return device_error("cudaSetDevice", e);
    // Non-blocking: work that a kernel sends to the default stream must not be ordered with ours by
    // accident.
    if (const cudaError_t e = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
        e != cudaSuccess) {
      return device_error("cudaStreamCreate", e);
    }
    cudaEventCreate(&begin_);
    cudaEventCreate(&end_);
    if (const cudaError_t e =
            cudaHostAlloc(reinterpret_cast<void**>(&gate_), sizeof *gate_, cudaHostAllocMapped);
        e != cudaSuccess) {
      return device_error("cudaHostAlloc", e);
    }
    int l2 = 0;
    cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, index_);
    flush_bytes_ = 2 * static_cast<std::size_t>(std::max(l2, 1 << 20));
    char bus_id[32] = {};
    if (cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, index_) == cudaSuccess)
      nvml_device_ = nvml_.device(bus_id);
    return {};
  }

  DeviceKind kind() const override { return DeviceKind::cuda; }
  const DeviceFacts& facts() const override { return facts_; }

  void* allocate(std::size_t bytes) override {
    void* memory = nullptr;
    if (cudaMalloc(&memory, std::max<std::size_t>(bytes, 256)) != cudaSuccess) {
      cudaGetLastError();
      return nullptr;
    }
    return memory;
  }
  void release(void* memory) override { cudaFree(memory); }
  void upload(void* to, const void* from, std::size_t bytes) override {
    keep(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_));
    keep(cudaStreamSynchronize(stream_));
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    keep(cudaDeviceSynchronize());
    keep(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost));
  }
  void download_on_stream(void* to, const void* from, std::size_t bytes) override {
    keep(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_));
    keep(cudaStreamSynchronize(stream_));
  }

  void fill(void* to, std::byte value, std::size_t bytes) override {
    keep(cudaMemsetAsync(to, std::to_integer<int>(value), bytes, stream_));
  }
  void flip_signs(void* data, std::size_t bytes, const SignFlips& flips) override {
    if (!flip_signs_on(stream_, data, bytes, flips)) keep(cudaErrorLaunchFailure);
  }

  void* stream() override { return stream_; }
  Status synchronize() override {
    keep(cudaDeviceSynchronize());
    if (error_ == cudaSuccess) return {};
    const cudaError_t error = std::exchange(error_, cudaSuccess);
    cudaGetLastError();
    return device_error("the device reported", error);
  }

  void flush_cache() override {
    if (flush_ == nullptr && cudaMalloc(&flush_, flush_bytes_) != cudaSuccess) {
      cudaGetLastError();
      flush_ = nullptr;
      return;
    }
    keep(cudaMemsetAsync(flush_, flush_value_++, flush_bytes_, stream_));
    keep(cudaStreamSynchronize(stream_));
    keep(cudaCtxResetPersistingL2Cache());
  }

  double time(const std::function<void()>& launch, int batch) override {
    return time_ready(launch, batch, [] {});
  }
  double time_ready(const std::function<void()>& launch, int batch,
                    const std::function<void()>& ready) override {
    cudaGraphExec_t graph = capture(launch, batch);
    const auto begin_now = [&] {
      ready();
      // All streams: what a kernel left running elsewhere must not go on beside the clock.
      keep(cudaDeviceSynchronize());
    };
    if (graph == nullptr) {
      begin_now();
      // Not held: what the host does in a launch that cannot be captured is part of the call.
      return between_events(
          [&] {
            for (int i = 0; i < batch; ++i) launch();
          },
          false);
    }
    // Uploaded, not replayed first: a replay would warm the caches that flush_cache has emptied.
    keep(cudaGraphUpload(graph, stream_));
    begin_now();
    const double seconds = between_events([&] { keep(cudaGraphLaunch(graph, stream_)); });
    cudaGraphExecDestroy(graph);
    return seconds;
  }
  std::string neighbour() override {
    constexpr std::size_t kBytes = kNeighbourNumbers * sizeof(float);
    if (neighbour_ == nullptr) {
      neighbour_ = static_cast<float*>(allocate(kBytes));
      if (neighbour_ == nullptr) return {};
      keep(cudaMemsetAsync(neighbour_, 0, kBytes, stream_));
    }
    return "elementwise: x += 1 of 4 MiB in fp32";
  }
  void launch_neighbour() override {
    if (!workbench::launch_neighbour(stream_, neighbour_, kNeighbourNumbers))
      keep(cudaErrorLaunchFailure);
  }
  double tick() const override { return 0.5e-6; }  // documented resolution of cudaEventElapsedTime
  std::string timer() const override { return "cuda graph replay between events"; }
  Telemetry telemetry() override { return nvml_.read(nvml_device_); }

  Peak peak(DType dtype) override {
    Peak peak;
    peak.flops = measure_matrix_flops(facts_, dtype, stream_, peak.method);
    peak.bytes_per_second = copy_rate();
    return peak;
  }

 private:
  static constexpr std::size_t kNeighbourNumbers = std::size_t{1} << 20;

  void keep(cudaError_t error) {
    if (error_ == cudaSuccess) error_ = error;
  }

  cudaGraphExec_t capture(const std::function<void()>& launch, int batch) {
    if (cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal) != cudaSuccess)
      return nullptr;
    for (int i = 0; i < batch; ++i) launch();
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    if (cudaStreamEndCapture(stream_, &graph) == cudaSuccess && graph != nullptr) {
      if (cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess) exec = nullptr;
      cudaGraphDestroy(graph);
    }
    cudaGetLastError();
    return exec;
  }
  double time_launches(const std::function<void()>& launch, int batch) {
    return between_events([&] {
      for (int i = 0; i < batch; ++i) launch();
    });
  }
  double between_events(const std::function<void()>& work, bool held = true) {
    // Both events and all that lies between them are queued while the stream is held, so that only
    // the device's time counts. The limit is for work that waits for the device itself.
    std::atomic_ref<int>(*gate_).store(held ? 0 : 1);
    if (!hold_stream(stream_, gate_, 0.02)) keep(cudaErrorLaunchFailure);
    keep(cudaEventRecord(begin_, stream_));
    work();
    keep(cudaEventRecord(end_, stream_));
    std::atomic_ref<int>(*gate_).store(1);
    keep(cudaEventSynchronize(end_));
    float ms = 0;
    keep(cudaEventElapsedTime(&ms, begin_, end_));
    return ms * 1e-3;
  }

  double copy_rate() {
    // Large against the L2, small against any card's memory.
    const std::size_t bytes = std::size_t{256} << 20;
    void *from = allocate(bytes), *to = allocate(bytes);
    double rate = 0;
    if (from != nullptr && to != nullptr) {
      keep(cudaMemsetAsync(from, 0x5a, bytes, stream_));
      const int rounds = 4;
      const double seconds = time_launches(
          [&] { keep(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_)); },
          rounds);
      rate = 2.0 * static_cast<double>(bytes) * rounds / seconds;
    }
    release(from);
    release(to);
    return rate;
  }

  int index_;
  DeviceFacts facts_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  int* gate_ = nullptr;  // the held stream waits until it is not 0
  cudaError_t error_ = cudaSuccess;
  void* flush_ = nullptr;
  float* neighbour_ = nullptr;
  std::size_t flush_bytes_ = 0;
  int flush_value_ = 1;
  Nvml nvml_;
  void* nvml_device_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<Device>> open_cuda_device(int index) {
  // The library's facts are the ones its plans use; asking it also gives its wording for a missing
  // driver.
  Result<DeviceFacts> facts = device_facts(DeviceKind::cuda, index);
  if (!facts) return facts.status();
  auto device = std::make_unique<CudaDevice>(index, *facts);
  if (Status status = device->open(); !status) return status;
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace greenfast::workbench
