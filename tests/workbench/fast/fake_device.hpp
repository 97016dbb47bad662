// A device whose time is a variable: what a subject "takes" is what it adds to it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <greenfast/arithmetic.hpp>

#include "workbench/device/device.hpp"
#include "workbench/subjects/subject.hpp"

namespace greenfast::workbench::test {

class FakeDevice : public Device {
 public:
  double now = 0;  ///< seconds
  double resolution = 1e-6;
  Peak ceiling{1e12, 1e11, "fake"};
  std::function<double()> speed;                  ///< what pulse() sees; empty: the ceiling
  std::function<double()> clock;                  ///< MHz that telemetry() tells; empty: 1234
  std::function<std::optional<double>()> others;  ///< what other_work() tells; empty: nothing
  std::function<double()> beside;                 ///< what its neighbour takes; empty: it has none
  int flushes = 0, timings = 0, allocations = 0, releases = 0;
  std::size_t cache = 1 << 16;
  std::size_t memory_limit = std::size_t{1} << 30;
  std::size_t allocated = 0;

  FakeDevice() { facts_.name = "fake"; }
  void has_threads(int count) { facts_.multiprocessors = count; }
  DeviceKind kind() const override { return DeviceKind::cpu; }
  const DeviceFacts& facts() const override { return facts_; }
  void* allocate(std::size_t bytes) override {
    if (allocated + bytes > memory_limit) return nullptr;
    allocated += bytes;
    ++allocations;
    return std::aligned_alloc(256, round_up(std::max<std::size_t>(bytes, 1), std::size_t{256}));
  }
  void release(void* memory) override {
    ++releases;
    std::free(memory);
  }
  void upload(void* to, const void* from, std::size_t bytes) override {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }
  void download(void* to, const void* from, std::size_t bytes) override { upload(to, from, bytes); }
  void download_on_stream(void* to, const void* from, std::size_t bytes) override {
    upload(to, from, bytes);
  }
  void* stream() override { return nullptr; }
  Status synchronize() override { return {}; }
  std::size_t cache_bytes() const override { return cache; }
  void flush_cache() override { ++flushes; }
  double time(const std::function<void()>& launch, int batch) override {
    ++timings;
    const double begin = std::floor(now / resolution);
    for (int i = 0; i < batch; ++i) launch();
    return (std::floor(now / resolution) - begin) * resolution;
  }
  std::string neighbour() override { return beside ? "fake: adds to a clock" : ""; }
  void launch_neighbour() override { now += beside(); }
  double tick() const override { return resolution; }
  std::string timer() const override { return "fake clock"; }
  Telemetry telemetry() override {
    Telemetry t;
    t.sm_mhz = clock ? clock() : 1234;
    return t;
  }
  Peak peak(DType) override { return ceiling; }
  std::optional<double> other_work() override {
    return others ? others() : std::optional<double>();
  }
  double pulse(DType) override { return speed ? speed() : ceiling.flops; }

 private:
  DeviceFacts facts_;
};

/// Writes the first bytes of Q, summed with a constant, as its output: a pure function of the input
/// that is cheap.
class FakeSubject : public Subject {
 public:
  using Work = std::function<void(const Problem&, const Tensors&)>;

  FakeSubject(FakeDevice& device, std::string id, double seconds)
      : device_(device), id_(std::move(id)), seconds_(seconds) {}

  std::vector<const void*> inputs;  ///< addresses of Q, in the order of the calls
  std::int64_t workspace = 0;
  void* last_workspace = nullptr;
  std::function<bool(int call)> forget;  ///< calls that leave the output as it was
  /// Writes an output of its own making; false: it did not.
  std::function<bool(const Problem&, const Tensors&, std::size_t bytes)> replay;
  Work after;        ///< what it does when its output is written
  int fail_at = -1;  ///< call that returns an error
  /// It is somebody else's, in a process of its own: `requests` are the sets of each timed request.
  bool foreign = false;
  double threads = 0;  ///< it keeps so many CPUs busy in its calls; 0: nobody knows
  std::vector<std::vector<Tensors>> requests;
  std::vector<int> counts;
  int calls = 0;

  std::string id() const override { return id_; }
  DeviceKind device() const override { return DeviceKind::cpu; }
  std::optional<std::string> refusal(const Problem&, const DeviceFacts&) override { return {}; }
  std::optional<Plan> plan(const Problem&, const DeviceFacts&) override {
    Plan plan;
    plan.workspace_bytes = workspace;
    return plan;
  }
  Status prepare(const Problem&, void*) override { return {}; }
  bool elsewhere() override { return foreign; }
  std::optional<CpuUse> cpu_use() override {
    if (threads == 0) return std::nullopt;
    return CpuUse{1, threads * busy_};
  }
  std::optional<CpuUse> cpu_at_answer() override { return cpu_use(); }
  Result<double> time(const Problem& p, std::span<const Tensors> sets, int count, void* scratch,
                      std::size_t bytes) override {
    requests.emplace_back(sets.begin(), sets.end());
    counts.push_back(count);
    const double begin = device_.now;
    for (int i = 0; i < count; ++i)
      if (Status status =
              launch(p, sets[static_cast<std::size_t>(i) % sets.size()], nullptr, scratch, bytes);
          !status)
        return status;
    return device_.now - begin;
  }
  Status launch(const Problem& p, const Tensors& t, void*, void* scratch, std::size_t) override {
    const int call = calls++;
    device_.now += seconds_;
    busy_ += seconds_;
    inputs.push_back(t.q);
    last_workspace = scratch;
    if (call == fail_at) return {StatusCode::device_error, "the fake kernel failed"};
    if (forget && forget(call)) return {};
    const auto bytes =
        static_cast<std::size_t>(p.batch * p.heads_q * p.seq_q * p.head_dim) * size_of(p.out_dtype);
    if (!replay || !replay(p, t, bytes)) std::memcpy(t.o, t.q, bytes);
    if (after) after(p, t);
    return {};
  }

 private:
  FakeDevice& device_;
  std::string id_;
  double seconds_, busy_ = 0;
};

}  // namespace greenfast::workbench::test
