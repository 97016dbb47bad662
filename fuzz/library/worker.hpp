// Memory of a device and the fuzzer's loops over elements there. Calls only enqueue; collect()
// waits.
#pragma once

#include <cstddef>
#include <memory>

#include <greenfast/attention.hpp>

#include "fuzz/library/values.hpp"

namespace greenfast::fuzz {

/// Where the reference stands: of each slot's row O [slots, D] with limits, and its log-sum-exp.
struct Reference {
  std::int64_t slots = 0;
  double *o = nullptr, *limit = nullptr;
  double *lse = nullptr, *lse_limit = nullptr;
};

/// What loops found since the last collect().
struct Results {
  // The worst ratio of error and limit, as the bits of a float in the upper half, and in the lower
  // its index in Reference.
  unsigned long long worst_o = 0, worst_lse = 0;
  unsigned long long unwritten = 0, stray = 0, digest = 0, differing = 0;
};

struct Inputs {
  void *q, *k, *v;
  float *q_scale, *k_scale, *v_scale;
};
struct Outputs {
  void* o;
  float* lse;
  void* begin;  // of the region that holds both, with what lies around them
  std::size_t bytes;
};

class Worker {
 public:
  virtual ~Worker() = default;
  virtual void* stream() const { return nullptr; }
  /// Query-key pairs times head dim that a reference may cost.
  virtual double budget() const = 0;
  /// At least this many bytes, which stay the caller's until the next call; null when there are
  /// none. And of those the most that a problem may take.
  virtual char* arena(std::size_t bytes) = 0;
  virtual void fill(void* to, std::size_t bytes, std::uint32_t word) = 0;
  virtual void write_inputs(const View& view, const Inputs& to) = 0;
  virtual void refer(const View& view, const Reference& to) = 0;
  virtual void compare(const View& view, const Reference& with, const Outputs& got) = 0;
  /// Counts elements that were not written and words beside them that were, and makes the region
  /// unwritten again.
  virtual void sweep(const View& view, const Outputs& outputs) = 0;
  virtual void digest(const void* data, std::size_t bytes) = 0;
  /// Counts elements in these places of the batch that differ in a bit from those of the same
  /// entries where all stand in order.
  virtual void same_bits(const View& view, const Outputs& in_order, const Outputs& arranged,
                         std::int64_t first, std::int64_t count) = 0;
  virtual void read(const void* from, std::size_t bytes, void* to) = 0;
  /// Waits; what went wrong on the device.
  virtual Status collect(Results* results) = 0;
};

std::unique_ptr<Worker> open_cpu_worker();
/// Null with the reason in *why; in a build without CUDA too.
std::unique_ptr<Worker> open_cuda_worker(std::string* why);

}  // namespace greenfast::fuzz
