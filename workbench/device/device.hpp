// The workbench's own view of a device: memory it owns, a clock it trusts, telemetry. Shares no
// code with the library's backends, so that a bug there cannot hide itself here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <greenfast/attention.hpp>

#include "workbench/device/sign_flips.hpp"

namespace greenfast::workbench {

/// Clocks, power and limits at one moment; absent where the device does not tell.
struct Telemetry {
  std::optional<double> sm_mhz, memory_mhz, watts, celsius;
  std::vector<std::string> throttle_reasons;
};

/// Ceilings measured on this device in this run.
struct Peak {
  double flops = 0;             // FLOP/s for the dtype asked for
  double bytes_per_second = 0;  // the best of a large read and a large copy (read plus write)
  std::string method;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;
  virtual const DeviceFacts& facts() const = 0;

  /// 256-byte aligned; null when exhausted. Freed by release.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) = 0;
  virtual void upload(void* to, const void* from, std::size_t bytes) = 0;
  virtual void download(void* to, const void* from, std::size_t bytes) = 0;
  /// Ordered on the same stream as launches, so that a readback right after a launch sees a kernel
  /// that escaped to another stream as unfinished.
  virtual void download_on_stream(void* to, const void* from, std::size_t bytes) = 0;
  /// Every byte becomes `value`. Ordered on the stream, not waited for.
  virtual void fill(void* to, std::byte value, std::size_t bytes);
  /// XORs the signs in. Ordered on the stream, not waited for; a rest of less than 8 bytes stays.
  virtual void flip_signs(void* data, std::size_t bytes, const SignFlips& flips);
  /// The same from a copy on the host, whatever `to` holds. False where that would cost a transfer.
  virtual bool write_flipped(void* /*to*/, const void* /*from*/, std::size_t /*bytes*/,
                             const SignFlips& /*flips*/) {
    return false;
  }

  virtual void* stream() = 0;
  /// Waits for everything; the device's own error text on failure.
  virtual Status synchronize() = 0;

  /// Bytes of the outermost cache; 0 where unknown.
  virtual std::size_t cache_bytes() const { return static_cast<std::size_t>(facts().l2_bytes); }
  /// Evicts inputs from every cache that a real caller would find cold, and resets persisting
  /// lines.
  virtual void flush_cache() = 0;
  /// Takes these bytes alone out of every cache, which costs less than flush_cache by as much as
  /// they are smaller than the caches. False where the device cannot: then flush_cache.
  virtual bool evict(const void* /*memory*/, std::size_t /*bytes*/) { return false; }
  /// Seconds that `batch` calls of launch took on the device, measured around all of them.
  virtual double time(const std::function<void()>& launch, int batch) = 0;
  /// The same, with `ready` called last before the clock starts, after whatever can be prepared:
  /// nothing that the calls did while they were prepared has seen what it leaves.
  virtual double time_ready(const std::function<void()>& launch, int batch,
                            const std::function<void()>& ready) {
    ready();
    return time(launch, batch);
  }
  /// Makes an ordinary kernel ready that stands before a call as others do in a model, and names it;
  /// empty where the device has none.
  virtual std::string neighbour() { return {}; }
  /// Launches it on the stream, also while a graph is captured.
  virtual void launch_neighbour() {}
  /// Resolution of time(), in seconds.
  virtual double tick() const = 0;
  /// "steady_clock", "cuda events", "cuda graph": recorded with each timing.
  virtual std::string timer() const = 0;
  virtual Telemetry telemetry() = 0;
  /// Measures the ceiling for a dtype now; short enough (about 0.1 s) to bracket every round.
  virtual Peak peak(DType dtype) = 0;
  /// A glance at the speed the device has now, a few milliseconds: FLOP/s of the same loop. 0 where
  /// telemetry() tells it better.
  virtual double pulse(DType /*dtype*/) { return 0; }
  /// Seconds that everybody but this process and its children has computed on the cores in use, the
  /// mean over these cores since some fixed moment: what grew by 1 s within 2 s was half the
  /// machine. Absent where nothing tells.
  virtual std::optional<double> other_work() { return std::nullopt; }
};

/// The same on host memory.
void flip_signs(std::byte* data, std::size_t bytes, const SignFlips& flips);
void write_flipped(std::byte* to, const std::byte* from, std::size_t bytes, const SignFlips& flips);

/// The machine's CPU or a GPU; StatusCode::no_device says what is missing.
Result<std::unique_ptr<Device>> open_device(DeviceKind kind, int index = 0);

}  // namespace greenfast::workbench
