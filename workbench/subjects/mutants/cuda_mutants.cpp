// Planted kernels around real CUDA launches: each calls a kernel of the library and does one thing
// wrong with it that only a GPU can do wrong, or that a launcher can. No kernel of their own.
#include <cuda_runtime_api.h>

#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "workbench/cases/workload.hpp"
#include "workbench/subjects/mutants/mutants.hpp"
#include "workbench/subjects/mutants/needs.hpp"

namespace greenfast::workbench {
namespace {

/// A launch as the workbench asked for it, and what the planted kernel remembers between launches.
struct WrappedLaunch {
  Problem problem;
  Tensors tensors;
  cudaStream_t stream = nullptr;
  std::string_view variant;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;

  Status launch() const {
    Options options;
    options.device = DeviceKind::cuda;
    options.stream = stream;
    options.variant = variant;
    options.workspace = workspace;
    options.workspace_bytes = workspace_bytes;
    return attention(problem, tensors, options);
  }
  std::size_t o_bytes() const {
    return extent_bytes(problem.o, problem.batch, problem.heads_q, problem.seq_q, problem.head_dim,
                        problem.out_dtype);
  }
  char* o() const { return static_cast<char*>(tensors.o); }
  /// The last row of the last head.
  char* last_row() const {
    const auto& stride = problem.o.stride;
    return o() + ((problem.batch - 1) * stride[0] + (problem.heads_q - 1) * stride[1] +
                  (problem.seq_q - 1) * stride[2]) *
                     static_cast<std::int64_t>(size_of(problem.out_dtype));
  }
  std::size_t row_bytes() const {
    return static_cast<std::size_t>(problem.head_dim) * size_of(problem.out_dtype);
  }
};

struct LaunchMemory {
  int launches = 0;
  const void* address = nullptr;
  void *first = nullptr, *second = nullptr;  // device memory
  cudaStream_t other = nullptr;
  cudaEvent_t before = nullptr, after = nullptr;

  LaunchMemory() = default;
  LaunchMemory(const LaunchMemory&) = delete;
  LaunchMemory& operator=(const LaunchMemory&) = delete;
  ~LaunchMemory() {
    cudaDeviceSynchronize();
    cudaFree(first);
    cudaFree(second);
    if (other != nullptr) cudaStreamDestroy(other);
    if (before != nullptr) cudaEventDestroy(before);
    if (after != nullptr) cudaEventDestroy(after);
  }
  cudaStream_t other_stream() {
    if (other == nullptr) cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    return other;
  }
  static void* keep(void*& slot, std::size_t bytes) {
    if (slot == nullptr && cudaMalloc(&slot, bytes) != cudaSuccess) slot = nullptr;
    return slot;
  }
};

using Wrap = Status (*)(WrappedLaunch&, LaunchMemory&);

Status after_launch(WrappedLaunch& call, void (*spoil)(WrappedLaunch&)) {
  const Status status = call.launch();
  if (status) spoil(call);
  return status;
}

// Outputs of another call.

Status zeros(WrappedLaunch& call, LaunchMemory&) {
  const Problem& p = call.problem;
  const std::size_t element = size_of(p.out_dtype);
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.heads_q; ++h)
      cudaMemset2DAsync(
          call.o() + (b * p.o.stride[0] + h * p.o.stride[1]) * static_cast<std::int64_t>(element),
          static_cast<std::size_t>(p.o.stride[2]) * element, 0, call.row_bytes(),
          static_cast<std::size_t>(p.seq_q), call.stream);
  return {};
}

Status runs_once(WrappedLaunch& call, LaunchMemory& memory) {
  return memory.launches == 0 ? call.launch() : Status();
}

Status replay(WrappedLaunch& call, LaunchMemory& memory) {
  if (LaunchMemory::keep(memory.first, call.o_bytes()) == nullptr)
    return {StatusCode::out_of_memory, "no device memory for a copy of O"};
  if (memory.address == call.tensors.q) {
    cudaMemcpyAsync(call.tensors.o, memory.first, call.o_bytes(), cudaMemcpyDeviceToDevice,
                    call.stream);
    return {};
  }
  memory.address = call.tensors.q;
  const Status status = call.launch();
  cudaMemcpyAsync(memory.first, call.tensors.o, call.o_bytes(), cudaMemcpyDeviceToDevice,
                  call.stream);
  return status;
}

Status row_unwritten(WrappedLaunch& call, LaunchMemory& memory) {
  if (LaunchMemory::keep(memory.first, call.row_bytes()) == nullptr)
    return {StatusCode::out_of_memory, "no device memory for a row"};
  cudaMemcpyAsync(memory.first, call.last_row(), call.row_bytes(), cudaMemcpyDeviceToDevice,
                  call.stream);
  const Status status = call.launch();
  cudaMemcpyAsync(call.last_row(), memory.first, call.row_bytes(), cudaMemcpyDeviceToDevice,
                  call.stream);
  return status;
}

Status lse_unwritten(WrappedLaunch& call, LaunchMemory&) {
  call.problem.lse = false;
  call.tensors.lse = nullptr;
  return call.launch();
}

// Streams.

void wait_a_little(void*) { std::this_thread::sleep_for(std::chrono::milliseconds(5)); }

Status other_stream(WrappedLaunch& call, LaunchMemory& memory) {
  call.stream = memory.other_stream();
  // Long enough that a readback on the given stream comes first.
  cudaLaunchHostFunc(call.stream, wait_a_little, nullptr);
  return call.launch();
}

Status joined_stream(WrappedLaunch& call, LaunchMemory& memory) {
  if (memory.before == nullptr) {
    cudaEventCreateWithFlags(&memory.before, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&memory.after, cudaEventDisableTiming);
  }
  const cudaStream_t given = call.stream;
  call.stream = memory.other_stream();
  cudaEventRecord(memory.before, given);
  cudaStreamWaitEvent(call.stream, memory.before);
  const Status status = call.launch();
  cudaEventRecord(memory.after, call.stream);
  cudaStreamWaitEvent(given, memory.after);
  return status;
}

Status as_asked(WrappedLaunch& call, LaunchMemory&) { return call.launch(); }

// Memory.

Status overrun(WrappedLaunch& call, LaunchMemory&) {
  return after_launch(
      call, [](WrappedLaunch& c) { cudaMemsetAsync(c.o() + c.o_bytes(), 0, 2, c.stream); });
}
Status underrun(WrappedLaunch& call, LaunchMemory&) {
  return after_launch(call, [](WrappedLaunch& c) { cudaMemsetAsync(c.o() - 16, 0, 16, c.stream); });
}
Status gap_writer(WrappedLaunch& call, LaunchMemory&) {
  return after_launch(
      call, [](WrappedLaunch& c) { cudaMemsetAsync(c.o() + c.row_bytes(), 0, 16, c.stream); });
}
Status modifies_input(WrappedLaunch& call, LaunchMemory&) {
  return after_launch(call, [](WrappedLaunch& c) {
    cudaMemsetAsync(const_cast<void*>(c.tensors.q), 0x11, 1, c.stream);
  });
}
Status nan_output(WrappedLaunch& call, LaunchMemory&) {
  return after_launch(call, [](WrappedLaunch& c) {
    cudaMemsetAsync(c.last_row() + c.row_bytes() - size_of(c.problem.out_dtype), 0xff,
                    size_of(c.problem.out_dtype), c.stream);
  });
}
/// Every byte 0x3c: about 1.06 in fp16, 0.0115 in bf16 and fp32.
Status one_element(WrappedLaunch& call, LaunchMemory&) {
  return after_launch(call, [](WrappedLaunch& c) {
    cudaMemsetAsync(c.o(), 0x3c, size_of(c.problem.out_dtype), c.stream);
  });
}

// A right kernel called for another problem.

Status drops_last_key(WrappedLaunch& call, LaunchMemory&) {
  call.problem.seq_kv -= 1;
  return call.launch();
}
Status causal_sees_next(WrappedLaunch& call, LaunchMemory&) {
  call.problem.mask.right = 1;
  return call.launch();
}
Status no_mask(WrappedLaunch& call, LaunchMemory&) {
  call.problem.mask = Mask::none();
  return call.launch();
}
Status other_alignment(WrappedLaunch& call, LaunchMemory&) {
  Mask& mask = call.problem.mask;
  mask.alignment =
      mask.alignment == Alignment::top_left ? Alignment::bottom_right : Alignment::top_left;
  return call.launch();
}
Status scale(WrappedLaunch& call, LaunchMemory&) {
  call.problem.scale *= 0.8f;
  return call.launch();
}
Status no_softcap(WrappedLaunch& call, LaunchMemory&) {
  call.problem.softcap = 0;
  return call.launch();
}
Status first_kv_head(WrappedLaunch& call, LaunchMemory&) {
  call.problem.k.stride[1] = call.problem.v.stride[1] = 0;
  return call.launch();
}
Status first_batch(WrappedLaunch& call, LaunchMemory&) {
  call.problem.k.stride[0] = call.problem.v.stride[0] = 0;
  return call.launch();
}
Status wrong_stride(WrappedLaunch& call, LaunchMemory&) {
  const Problem& p = call.problem;
  const Layout dense = dense_layout(Order::bhsd, p.batch, p.heads_kv, p.seq_kv, p.head_dim);
  call.problem.k.stride = call.problem.v.stride = dense.stride;
  return call.launch();
}
Status v_scale_of_k(WrappedLaunch& call, LaunchMemory&) {
  call.tensors.v_scale = call.tensors.k_scale;
  return call.launch();
}
Status one_v_scale(WrappedLaunch& call, LaunchMemory&) {
  call.problem.scales = ScaleKind::tensor;
  return call.launch();
}

const char* needs_no_mask(const Problem& p) {
  return p.mask.is_none() && p.seq_kv > 1 ? nullptr : "needs a problem without a mask";
}
const char* needs_kv_heads(const Problem& p) { return p.heads_kv > 1 ? nullptr : "needs Hkv > 1"; }

struct Plant {
  PlantedRow row;
  Wrap run;
};
constexpr bool kHonest = true;

constexpr std::array kPlants{
    Plant{{"cuda_zeros", "clears O and launches nothing"}, zeros},
    Plant{{"cuda_runs_once", "launches nothing after the first call"}, runs_once},
    Plant{{"cuda_replay", "copies what it computed for these addresses before"}, replay},
    Plant{{"cuda_row_unwritten", "leaves the last row as it was"}, row_unwritten},
    Plant{{"cuda_lse_unwritten", "writes no LSE", false, needs_lse}, lse_unwritten},
    Plant{{"cuda_other_stream", "works on a stream of its own"}, other_stream},
    Plant{{"cuda_overrun", "clears two bytes past the end of O"}, overrun},
    Plant{{"cuda_underrun", "clears 16 bytes before O"}, underrun},
    Plant{{"cuda_gap_writer", "clears a gap of a strided O", false, needs_gaps}, gap_writer},
    Plant{{"cuda_modifies_input", "writes a byte of Q"}, modifies_input},
    Plant{{"cuda_nan_output", "one NaN in the last row"}, nan_output},
    Plant{{"cuda_one_element", "the first element becomes a constant"}, one_element},
    Plant{{"cuda_drops_last_key", "called with one key less", false, needs_no_mask},
          drops_last_key},
    Plant{{"cuda_causal_sees_next", "called with a mask one key too wide", false, needs_causal},
          causal_sees_next},
    Plant{{"cuda_no_mask", "called without the causal mask", false, needs_causal}, no_mask},
    Plant{
        {"cuda_other_alignment", "called with the other alignment", false, needs_causal_of_lengths},
        other_alignment},
    Plant{{"cuda_scale_x0.8", "called with 0.8 of the scale"}, scale},
    Plant{{"cuda_softcap_ignored", "called without the softcap", false, needs_softcap}, no_softcap},
    Plant{{"cuda_first_kv_head", "every query head reads KV head 0", false, needs_kv_heads},
          first_kv_head},
    Plant{{"cuda_first_batch", "reads K and V of batch 0", false, needs_batch}, first_batch},
    Plant{{"cuda_wrong_stride", "takes K and V for dense BHSD", false, needs_strides},
          wrong_stride},
    Plant{{"cuda_v_scale_of_k", "K's descale factors for V", false, needs_head_scales},
          v_scale_of_k},
    Plant{
        {"cuda_one_v_scale", "the first head's descale factors for all", false, needs_head_scales},
        one_v_scale},
    Plant{{"cuda_as_asked", "the kernel itself", kHonest}, as_asked},
    Plant{{"cuda_joined_stream", "a stream of its own, joined by events", kHonest}, joined_stream},
};

/// What is wrapped: the first that takes the problem.
constexpr std::array<std::string_view, 2> kWrapped{"cuda.sm80.mma", "cuda.stage_c.stage3b"};

class CudaPlanted final : public Subject {
 public:
  explicit CudaPlanted(const Plant& plant) : plant_(plant) {}

  std::string id() const override { return planted_id(plant_.row); }
  DeviceKind device() const override { return DeviceKind::cuda; }
  std::optional<std::string> refusal(const Problem& problem, const DeviceFacts& facts) override {
    if (facts.kind != DeviceKind::cuda) return "wraps a CUDA launch";
    // The faults are in arguments that version 1 of the interface has.
    if (std::string missing =
            missing_features(features_of(problem), kFeaturesOfAbi1 | Feature::exact_accuracy);
        !missing.empty())
      return missing;
    if (plant_.row.absent != nullptr)
      if (const char* reason = plant_.row.absent(problem)) return reason;
    const Selection selection = explain(problem, facts);
    for (const std::string_view id : kWrapped)
      for (const Candidate& candidate : selection.candidates)
        if (candidate.variant == id && candidate.accepted) {
          wrapped_ = id;
          return std::nullopt;
        }
    return "no kernel to wrap takes this problem";
  }
  std::optional<Plan> plan(const Problem& problem, const DeviceFacts& facts) override {
    Options options;
    options.device = DeviceKind::cuda;
    options.variant = wrapped_;
    auto made = greenfast::plan(problem, facts, options);
    if (!made) return std::nullopt;
    return std::move(*made);
  }
  Status prepare(const Problem& problem, void* stream) override {
    Options options;
    options.device = DeviceKind::cuda;
    options.stream = stream;
    options.variant = wrapped_;
    return greenfast::prepare(problem, options);
  }
  Status launch(const Problem& problem, const Tensors& tensors, void* stream, void* workspace,
                std::size_t workspace_bytes) override {
    WrappedLaunch call{.problem = problem,
                       .tensors = tensors,
                       .stream = static_cast<cudaStream_t>(stream),
                       .variant = wrapped_,
                       .workspace = workspace,
                       .workspace_bytes = workspace_bytes};
    const Status status = plant_.run(call, memory_);
    ++memory_.launches;
    return status;
  }

 private:
  const Plant& plant_;
  std::string_view wrapped_ = kWrapped.front();
  LaunchMemory memory_;
};

}  // namespace

std::span<const PlantedRow> cuda_planted_table() {
  static const std::vector<PlantedRow> rows = [] {
    std::vector<PlantedRow> all;
    for (const Plant& plant : kPlants) all.push_back(plant.row);
    return all;
  }();
  return rows;
}

std::unique_ptr<Subject> make_cuda_planted(std::string_view id) {
  for (const Plant& plant : kPlants)
    if (planted_id(plant.row) == id) return std::make_unique<CudaPlanted>(plant);
  return nullptr;
}

}  // namespace greenfast::workbench
