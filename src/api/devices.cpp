#include "api/devices.hpp"

#include "core/text.hpp"

namespace greenfast {
namespace api {
namespace {

#if !GREENFAST_HAVE_CUDA
constexpr const char* kWithoutCuda =
    "this library was built without CUDA; rebuild with GREENFAST_CUDA=on, or use the cpu device";

constexpr core::Backend kNoCuda{
    .count =
        [](std::string* why) noexcept {
          if (why != nullptr) *why = kWithoutCuda;
          return 0;
        },
    .facts = [](int, Status* why) noexcept -> const DeviceFacts* {
      if (why != nullptr) *why = {StatusCode::no_device, kWithoutCuda};
      return nullptr;
    },
};
#endif

constexpr std::int64_t kKiB = 1024, kMiB = 1024 * kKiB;

// Published figures: NVIDIA's architecture whitepapers and the CUDA programming guide's table of
// compute capabilities (shared memory of a block); L2 as the runtime reports it.
struct Model {
  std::string_view model, name;
  int arch, multiprocessors;
  std::int64_t shared_per_block, l2_bytes;
};
constexpr Model kGpus[] = {
    {"h200", "NVIDIA H200", 90, 132, 227 * kKiB, 60 * kMiB},
    {"h100", "NVIDIA H100 80GB HBM3", 90, 132, 227 * kKiB, 50 * kMiB},
    {"a100", "NVIDIA A100-SXM4-80GB", 80, 108, 163 * kKiB, 40 * kMiB},
    {"l4", "NVIDIA L4", 89, 58, 99 * kKiB, 48 * kMiB},
};

// One server CPU, so that plans for "cpu" are the same on every machine.
DeviceFacts model_cpu() {
  DeviceFacts facts;
  facts.kind = DeviceKind::cpu;
  facts.name = "Intel Xeon Platinum 8480+";
  facts.multiprocessors = 56;
  facts.l2_bytes = 2 * kMiB;
  facts.isa = "avx512bf16";
  return facts;
}

}  // namespace

const core::Backend* backend_of(DeviceKind kind) noexcept {
  switch (kind) {
    case DeviceKind::cpu:
      return &cpu::backend;
    case DeviceKind::cuda:
#if GREENFAST_HAVE_CUDA
      return &cuda::backend;
#else
      return &kNoCuda;
#endif
  }
  return nullptr;
}

}  // namespace api

Result<DeviceFacts> device_facts(DeviceKind kind, int index) {
  const core::Backend* backend = api::backend_of(kind);
  if (backend == nullptr)
    return Status(StatusCode::invalid_argument,
                  core::concat("device ", static_cast<int>(kind),
                               " does not exist: use cpu (0) or cuda (1)"));
  Status why;
  const DeviceFacts* facts = backend->facts(index, &why);
  if (facts == nullptr) return why;
  return *facts;
}

Result<DeviceFacts> model_facts(std::string_view model) {
  if (model == "cpu") return api::model_cpu();
  std::string known = "cpu";
  for (const api::Model& row : api::kGpus) {
    if (row.model != model) {
      known += core::concat(", ", row.model);
      continue;
    }
    DeviceFacts facts;
    facts.kind = DeviceKind::cuda;
    facts.name = row.name;
    facts.arch = row.arch;
    facts.multiprocessors = row.multiprocessors;
    facts.shared_per_block = row.shared_per_block;
    facts.l2_bytes = row.l2_bytes;
    return facts;
  }
  return Status(StatusCode::invalid_argument,
                core::concat("device model '", model, "' is not known: use one of ", known,
                             ", or device_facts() for a device of this machine"));
}

}  // namespace greenfast
