// What the host does alike for every rung: what it refuses, the plan, the launch. What is particular to
// a rung stands in its Build, one for each compiled kernel:
//   static constexpr auto kKernel    the __global__ function, of Params and whatever else its launch gives
//   static constexpr Run kRun
//   static constexpr const char* kId names the rung in errors
//   using Memory                     its SharedMemoryPlan
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/text.hpp"
#include "core/variant.hpp"
#include "kernels/cuda/device/launch.hpp"
#include "kernels/cuda/device/shared_buffers.hpp"
#include "kernels/cuda/ladder/ladder.hpp"

namespace greenfast::cuda::ladder {

/// What a block may have without opt-in, in bytes.
inline constexpr int kSharedByDefault = 48 * 1024;

/// How a build runs, whatever the problem.
struct Run {
  int rows = 0, keys = 0;  // of a tile
  int threads = 0;
  int shared_bytes = 0;  // dynamic; 0 where the kernel's shared memory is static
  int stages = 1;
  const char* note = "";  // Plan::note
};

inline std::int64_t ctas(const Problem& problem, const Run& run) { return ctas(problem, run.rows); }

/// The plan of a build on a one-dimensional grid, a CTA for every tile.
template <class Build>
Plan plan_of(const Problem& problem) {
  constexpr Run kRun = Build::kRun;
  Plan plan;
  plan.grid = {static_cast<int>(ctas(problem, kRun)), 1, 1};
  plan.block = {kRun.threads, 1, 1};
  plan.shared_bytes = kRun.shared_bytes;
  plan.shared = Build::Memory::buffers();
  plan.tile_q = kRun.rows;
  plan.tile_kv = kRun.keys;
  plan.stages = kRun.stages;
  plan.kernel = name_of_kernel<Build::kKernel>();
  plan.note = kRun.note;
  return plan;
}

/// Launches a build on `blocks` CTAs; `more` follows Params among the kernel's parameters.
template <class Build, class... More>
Status launch_blocks(const Problem& problem, const Tensors& tensors, const core::Context& context,
                     std::int64_t blocks, More... more) {
  constexpr Run kRun = Build::kRun;
  constexpr void (*kKernel)(Params, More...) = Build::kKernel;
  const void* const kernel = reinterpret_cast<const void*>(kKernel);
  if constexpr (kRun.shared_bytes > kSharedByDefault) {
    static constinit SharedMemoryOptIn opt_in;
    if (Status status = opt_in.ensure(kernel, kRun.shared_bytes, context.facts->index, Build::kId);
        !status.ok()) {
      return status;
    }
  }
  Params params = make_params(problem, tensors, kRun.rows);
  void* arguments[] = {&params, &more...};
  return launch_kernel(
      launch_config({static_cast<int>(blocks), 1, 1}, kRun.threads, kRun.shared_bytes, context),
      kernel, arguments, Build::kId);
}

/// A rung on the host. The head dimensions that it takes are those of its builds.
template <class Of64, class Of128 = Of64>
struct Rung {
  static constexpr bool kTakes128 = !std::is_same_v<Of64, Of128>;

  static bool supports(const Problem& problem, const DeviceFacts&, core::Choice, std::string* why) {
    if (problem.head_dim != 64 && !(kTakes128 && problem.head_dim == 128)) {
      return core::refuse(why, "takes D ", kTakes128 ? "64 or 128" : "64", ", not ",
                          problem.head_dim);
    }
    // Row arithmetic inside the kernels is 32-bit.
    constexpr std::int64_t kLimit = std::int64_t{1} << 30;
    if (problem.seq_q >= kLimit || problem.seq_kv >= kLimit ||
        ctas(problem, Of64::kRun) >= kLimit) {
      return core::refuse(why, "takes lengths and tile counts below 2^30");
    }
    if (why != nullptr) *why = "runs by name";
    return true;
  }
  static Plan plan(const Problem& problem, const DeviceFacts&, core::Choice) {
    return problem.head_dim == 128 ? plan_of<Of128>(problem) : plan_of<Of64>(problem);
  }
  static Status launch(const Problem& problem, const Tensors& tensors,
                       const core::Context& context) {
    return problem.head_dim == 128
               ? launch_blocks<Of128>(problem, tensors, context, ctas(problem, Of128::kRun))
               : launch_blocks<Of64>(problem, tensors, context, ctas(problem, Of64::kRun));
  }
};

template <class R>
constexpr core::Kernel kRung{.supports = R::supports, .plan = R::plan, .launch = R::launch};

}  // namespace greenfast::cuda::ladder
