// Host side of cuda.sm90.small: what it takes, the tensor maps and the launch.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <string>

#include "core/arithmetic.hpp"
#include "core/text.hpp"
#include "core/variant.hpp"
#include "kernels/cuda/device/batch_parts.hpp"
#include "kernels/cuda/device/launch.hpp"
#include "kernels/cuda/device/shared_buffers.hpp"
#include "kernels/cuda/device/tensor_map.hpp"
#include "kernels/cuda/sm90_small/config.hpp"

namespace greenfast::cuda::small {
namespace {

constexpr const char* kId = "cuda.sm90.small";
constexpr std::int64_t kGridLimit = 65535;  // of the y and z axes
// Above half an SM's 228 KB, so that a dependent grid's blocks do not move in beside this grid's:
// with room for two, launching early is slower than not (5.25 us against 4.88, H200, 2026-11-20).
constexpr int kWholeSm = 117 * 1024;

using core::ceil_div;

/// Upper bound of the keys that one tile of queries sees.
std::int64_t tile_keys(const Band& band) {
  return std::min<std::int64_t>(band.keys, std::int64_t{band.above} - band.below + kRows);
}

std::size_t choose(const Problem& problem, const Band& band) {
  for (std::size_t i = 0; i < kConfigs.size(); ++i) {
    if (problem.head_dim <= kConfigs[i].head_dim && tile_keys(band) <= kConfigs[i].capacity()) {
      const bool wide = problem.dtype == DType::f16 && problem.out_dtype != DType::f16;
      return wide ? kConfigs.size() + i : i;
    }
  }
  return kKernels;
}

/// Blocks of a launch, as far as the choice may know of the batch.
std::int64_t blocks(const Problem& problem, core::Choice choice) {
  return kCluster * ceil_div(problem.seq_q, kRows) * problem.heads_q *
         (choice.batch_invariant ? 1 : problem.batch);
}

/// Of the first part of a batch that is launched in parts.
std::array<int, 3> grid_of(const Problem& problem) {
  return {static_cast<int>(kCluster * ceil_div(problem.seq_q, kRows)),
          static_cast<int>(problem.heads_q), static_cast<int>(std::min(problem.batch, kGridLimit))};
}

int shared_bytes(const Problem& problem, const Config& config, const DeviceFacts& facts) {
  return blocks(problem, {}) <= facts.multiprocessors ? std::max(config.shared_bytes(), kWholeSm)
                                                      : config.shared_bytes();
}

bool supports(const Problem& problem, const DeviceFacts& facts, core::Choice choice,
              std::string* why) {
  using core::refuse;
  if (problem.head_dim > 128) {
    return refuse(why, "head dim ", problem.head_dim, "; takes up to 128");
  }
  if (problem.seq_q > Band::kFar || problem.seq_kv > Band::kFar) {
    return refuse(why, "a sequence longer than 2^30");
  }
  const Layout& o = problem.o;
  const auto addressable = [&](const Layout& layout, std::int64_t heads, std::int64_t rows) {
    const std::int64_t entries = entries_for_choice(problem, layout, choice.batch_invariant);
    return tma_addressable(layout, problem.dtype, entries, heads, rows, true);
  };
  const auto misaligned = [](std::int64_t length, std::int64_t stride) {
    return length > 1 && stride % 8 != 0;
  };
  if (!addressable(problem.q, problem.heads_q, problem.seq_q) ||
      !addressable(problem.k, problem.heads_kv, problem.seq_kv) ||
      !addressable(problem.v, problem.heads_kv, problem.seq_kv) || o.alignment < kTmaAlignment ||
      misaligned(entries_for_choice(problem, o, choice.batch_invariant), o.stride[0]) ||
      misaligned(problem.heads_q, o.stride[1]) || misaligned(problem.seq_q, o.stride[2])) {
    return refuse(why,
                  "rows of Q, K, V or O do not start at 16-byte boundaries, or a sequence stride "
                  "is 0; align the tensors");
  }
  const std::int64_t count = blocks(problem, choice);
  if (ceil_div(problem.seq_q, kRows) * kCluster > kGridLimit || problem.heads_q > kGridLimit ||
      count > 2 * std::int64_t{facts.multiprocessors}) {
    return refuse(why, count, " blocks; made for up to two a multiprocessor, ",
                  2 * facts.multiprocessors);
  }
  if (why != nullptr)
    *why = std::to_string(count) + " blocks, four parts of the keys to every tile";
  return true;
}

Plan plan(const Problem& problem, const DeviceFacts& facts, core::Choice) {
  const std::size_t index = choose(problem, visible_keys(problem).band);
  if (index == kKernels) return {};
  const Config config = config_of(index, problem.dtype == DType::f16);
  Plan result;
  result.grid = grid_of(problem);
  result.block = {kThreads, 1, 1};
  result.cluster = {kCluster, 1, 1};
  result.shared_bytes = shared_bytes(problem, config, facts);
  result.shared = shared_buffers(
      result.shared_bytes,
      {{"Q", config.q_bytes()},
       {"K", kWarpgroups * config.block_bytes()},
       {"V", kWarpgroups * config.block_bytes()},
       {"results of the warpgroup beside", kWarpgroups * config.near_bytes()},
       {"results of the other block", kWarpgroups * kWarpgroups * config.far_bytes()},
       {"barriers", 128},
       {"alignment", 1024}},
      "unused: keeps other blocks away");
  result.tile_q = kRows;
  result.tile_kv = config.keys;
  result.splits = kParts;
  // Instantiated in sources of their own, so named by hand; tests compare it with the cubins.
  result.kernel = std::string("small::attention_kernel<") + type_name(problem.dtype) + ", " +
                  std::to_string(index) + ">";
  result.note = (config.looped ? "a loop over blocks of " : "one pass: blocks of ") +
                std::to_string(config.keys) + " keys, dealt to " + std::to_string(kParts) +
                " parts that merge through distributed shared memory";
  return result;
}

constinit BuildsByType<kKernels> builds(entries<__half>, entries<__nv_bfloat16>);

Status ensure_ready(const Problem& problem, std::size_t index, int device) {
  if (Status status = check_tensor_map_driver(kId); !status.ok()) return status;
  const Config config = config_of(index, problem.dtype == DType::f16);
  return builds.ensure_shared(problem.dtype, index, std::max(config.shared_bytes(), kWholeSm),
                              device, kId);
}

Status prepare(const Problem& problem, const core::Context& context) {
  return ensure_ready(problem, choose(problem, visible_keys(problem).band), context.facts->index);
}

Status launch_part(const Problem& problem, const Tensors& tensors, const core::Context& context) {
  const VisibleKeys keys = visible_keys(problem);
  const std::size_t index = choose(problem, keys.band);
  if (Status status = ensure_ready(problem, index, context.facts->index); !status.ok()) {
    return status;
  }
  const Config config = config_of(index, problem.dtype == DType::f16);

  Params p;
  p.band = keys.band;
  p.seq_q = static_cast<std::int32_t>(problem.seq_q);
  p.head_dim = static_cast<std::int32_t>(problem.head_dim);
  p.heads_q = static_cast<std::uint32_t>(problem.heads_q);
  p.group = static_cast<std::uint32_t>(problem.heads_q / problem.heads_kv);
  const auto step = [](std::int64_t stride) { return stride == 0 ? 0u : 1u; };
  p.k_batch_step = step(problem.k.stride[0]);
  p.k_head_step = step(problem.k.stride[1]);
  p.v_batch_step = step(problem.v.stride[0]);
  p.v_head_step = step(problem.v.stride[1]);
  p.q_batch_step = step(problem.q.stride[0]);
  p.q_head_step = step(problem.q.stride[1]);
  p.scale_log2 = problem.scale * core::kLog2E;
  p.transform = problem.softcap > 0.0f || !(problem.scale > 0.0f);
  const core::ScoreTransform transform = core::score_transform(problem);
  p.transform_scale = transform.scale;
  p.transform_cap = transform.cap;
  p.o = tensors.o;
  p.o_batch = problem.o.stride[0];
  p.o_head = problem.o.stride[1];
  p.o_row = problem.o.stride[2];
  p.lse = problem.lse ? tensors.lse : nullptr;
  p.output = element_type_of(problem.out_dtype);

  CUtensorMap q_map, k_map, v_map;
  thread_local KeptMap kept_q, kept_k, kept_v;
  const auto shape_of = [&](const Layout& layout, std::int64_t heads, std::int64_t rows, int box) {
    return map_of({layout, problem.batch, heads, rows, problem.head_dim, problem.dtype}, 64, box,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
  };
  const auto keys_of = [&](const Layout& layout, int box) {
    return shape_of(layout, problem.heads_kv, keys.band.keys, box);
  };
  const auto from_key = [&](const void* data, const Layout& layout) {
    return static_cast<const std::uint16_t*>(data) + keys.first * layout.stride[2];
  };
  if (!kept_q.make(&q_map, shape_of(problem.q, problem.heads_q, problem.seq_q, kRows), tensors.q) ||
      !kept_k.make(&k_map, keys_of(problem.k, kPieceKeys), from_key(tensors.k, problem.k)) ||
      !kept_v.make(&v_map, keys_of(problem.v, config.keys), from_key(tensors.v, problem.v))) {
    return tensor_map_refused(kId, "Q, K and V");
  }

  void* arguments[] = {&p, &q_map, &k_map, &v_map};
  return launch_early(launch_config(grid_of(problem), kThreads,
                                    shared_bytes(problem, config, *context.facts), context),
                      builds.kernel(problem.dtype, index), arguments, kId);
}

Status launch(const Problem& problem, const Tensors& tensors, const core::Context& context) {
  return in_batch_parts(
      problem, tensors, kGridLimit,
      [&](const Problem& part, const Tensors& there) { return launch_part(part, there, context); });
}

}  // namespace
}  // namespace greenfast::cuda::small

namespace greenfast::kernels {
extern const core::Kernel cuda_sm90_small;
constinit const core::Kernel cuda_sm90_small{.supports = cuda::small::supports,
                                             .plan = cuda::small::plan,
                                             .prepare = cuda::small::prepare,
                                             .launch = cuda::small::launch};
}  // namespace greenfast::kernels
