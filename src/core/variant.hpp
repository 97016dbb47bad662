// What a kernel file tells the library about itself. The registry lists these; nothing else does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <greenfast/attention.hpp>

namespace greenfast::core {

class Executor;

/// The part of Options that selection and plans may depend on.
struct Choice {
  bool batch_invariant = false;
};

/// What a launch gets besides the problem and the data. Nothing here is owned.
struct Context {
  const DeviceFacts* facts = nullptr;
  Choice choice;
  void* stream = nullptr;        // cudaStream_t
  void* workspace = nullptr;     // at least plan().workspace_bytes
  Executor* executor = nullptr;  // CPU threads and their arenas; null on CUDA
};

/// One kernel in one configuration. All functions are pure but prepare and launch; all are
/// thread-safe. Problems that reach any of them have passed check(), and are not empty (no output
/// element, or Skv = 0, is answered before).
struct Variant {
  std::string_view id;    // device.family.name, never changes
  std::string_view idea;  // one line for `list`
  DeviceKind device = DeviceKind::cpu;
  int min_arch = 0;
  bool automatic = true;         // false: runs only by name (ladder rungs)
  std::string_view predecessor;  // ladder rung it is compared with
  std::string_view toggles;      // "USE_CP_ASYNC=1 USE_WMMA_PV=0"

  // 0: refused; otherwise a preference, higher wins (10 reference, 100 general, 200+ specialised
  // and faster). When why is not null it receives the reason either way: for a refusal what was
  // asked, what is possible, what to change. Composes no string when why is null, because every
  // call asks.
  int (*rank)(const Problem&, const DeviceFacts&, Choice, std::string* why) = nullptr;
  Plan (*plan)(const Problem&, const DeviceFacts&, Choice) = nullptr;
  Status (*prepare)(const Problem&, const Context&) = nullptr;                 // may be null
  Status (*launch)(const Problem&, const Tensors&, const Context&) = nullptr;  // null: not built
};

}  // namespace greenfast::core
