// What a kernel file tells the library, and what the registry tells about a kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include <greenfast/attention.hpp>
#include <greenfast/features.hpp>
#include <greenfast/quantize.hpp>

namespace greenfast::core {

class Executor;

/// The part of Options that selection and plans may depend on.
struct Choice {
  bool batch_invariant = false;
  int max_splits = 0;  // 0: as many as pay
  // Bytes of scratch that the call has; a plan's, and one that allocates, has as many as are wanted. A
  // kernel that gains by more than that and can do without does so.
  std::int64_t scratch = std::numeric_limits<std::int64_t>::max();
};

/// What a launch gets besides the problem and the data. Nothing here is owned.
struct Context {
  const DeviceFacts* facts = nullptr;
  Choice choice;
  void* stream = nullptr;        // cudaStream_t
  void* workspace = nullptr;     // at least plan().workspace_bytes
  Executor* executor = nullptr;  // CPU threads and their arenas; null on CUDA
};

/// What a kernel file exports for each of its variants, constant-initialised:
///   namespace greenfast::kernels {
///   extern const core::Kernel cpu_flash{.supports = supports, .plan = plan, .launch = launch};
///   }
/// Names, idea and toggles stand in the registry's row, so that they exist in builds without the
/// kernel. All functions are pure but prepare and launch; all are thread-safe. Problems that reach
/// any of them have passed check(), need no feature that the row does not take, are not empty (no
/// output element, or Skv = 0, is answered before), and belong to a device of the row's kind and at
/// least its min_arch.
struct Kernel {
  // Whether it can, as far as features do not say: sizes, strides, memory of the device. When why
  // is not null it receives the reason either way: for a refusal what was asked, what is possible,
  // what to change. Composes no string when why is null, because every call asks. Whether it is
  // wanted is not the kernel's to say (dispatch/prefer.hpp).
  bool (*supports)(const Problem&, const DeviceFacts&, Choice, std::string* why) = nullptr;
  // Plan::variant is filled in by the caller.
  Plan (*plan)(const Problem&, const DeviceFacts&, Choice) = nullptr;
  // Scratch that launch wants: plan().workspace_bytes without the plan's strings. Null: none.
  std::int64_t (*workspace)(const Problem&, const DeviceFacts&, Choice) = nullptr;
  Status (*prepare)(const Problem&, const Context&) = nullptr;  // may be null
  Status (*launch)(const Problem&, const Tensors&, const Context&) = nullptr;
};

/// How much a variant that takes a problem is wanted: the highest rank wins.
struct Preference {
  int rank = 1;
  std::string_view note = {};  // for list --why, after the kernel's reason; may be empty
};

/// One row of the registry: one kernel in one configuration.
struct Variant {
  std::string_view id = {};    // device.family.name, never changes
  std::string_view idea = {};  // one line for `list`
  DeviceKind device = DeviceKind::cpu;
  int min_arch = 0;                    // lowest compute capability, 10 * major + minor
  bool automatic = true;               // false: runs only by name (ladder rungs)
  std::string_view predecessor = {};   // ladder rung it is compared with
  std::string_view toggles = {};       // "USE_CP_ASYNC=1 USE_WMMA_PV=0"
  std::string_view derived_from = {};  // the rung with one toggle set back, or with clocks in it
  std::string_view phases = {};  // "loads,softmax": sums clock cycles by phase in its workspace
  Features takes = {};           // what a problem may need; asked before the kernel is
  // Of an automatic variant, from dispatch/prefer.hpp; null for those that run by name.
  Preference (*prefer)(const Problem&, const DeviceFacts&, Choice) = nullptr;
  // Filled in by the registry.
  const Kernel* kernel = nullptr;  // null: not built
  int lowest_code = 0;             // lowest architecture that this build has code for
  bool exact_code = false;         // that code runs on no other architecture
};

}  // namespace greenfast::core
