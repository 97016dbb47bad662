// Host side of cuda.sm80.serving: what it takes, which tile it chooses, and the launch.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <array>
#include <limits>

#include "core/alignment.hpp"
#include "core/arithmetic.hpp"
#include "core/check.hpp"
#include "core/text.hpp"
#include "core/variant.hpp"
#include "kernels/cuda/device/launch.hpp"
#include "kernels/cuda/device/mask.hpp"
#include "kernels/cuda/device/sequence_arrays.hpp"
#include "kernels/cuda/device/shared_buffers.hpp"
#include "kernels/cuda/sm80_serving/config.hpp"

namespace greenfast::cuda::sm80_serving {
namespace {

constexpr const char* kId = "cuda.sm80.serving";

using core::ceil_div;

std::int64_t tiles(const Problem& problem, const Config& config) {
  return ceil_div(problem.seq_q * (problem.heads_q / problem.heads_kv), config.rows());
}
std::int64_t blocks(const Problem& problem, const Config& config) {
  return tiles(problem, config) * problem.batch * problem.heads_kv;
}

/// The smallest that holds both head dims and fits the device; kConfigs.size() where there is none.
std::size_t choose(const Problem& problem, const DeviceFacts& facts) {
  for (std::size_t i = 0; i < kConfigs.size(); ++i) {
    if (kConfigs[i].head_dim >= std::max(problem.head_dim, value_dim(problem)) &&
        kConfigs[i].shared_bytes() <= facts.shared_per_block) {
      return i;
    }
  }
  return kConfigs.size();
}

bool supports(const Problem& problem, const DeviceFacts& facts, core::Choice, std::string* why) {
  using core::refuse;
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (problem.seq_q > Band::kFar || problem.seq_kv > Band::kFar)
    return refuse(why, "a sequence longer than 2^30: split the call");
  const Sequences& s = problem.sequences;
  if (std::max({s.total_q, s.total_kv, s.kv_rows, problem.pages.count, problem.pages.size}) > kMost)
    return refuse(why,
                  "packed tensors, caches or pages of more than 2^31 - 1 rows: split the call");
  const std::size_t index = choose(problem, facts);
  if (index == kConfigs.size()) {
    return refuse(why, "no tile for head dim ", std::max(problem.head_dim, value_dim(problem)),
                  " fits the ", facts.shared_per_block,
                  " bytes of shared memory that a block may use here");
  }
  if (tiles(problem, kConfigs[index]) > kMost || blocks(problem, kConfigs[index]) > kMost)
    return refuse(why, "more than 2^31 - 1 tiles: split the batch");
  if (why != nullptr) *why = "takes all that serving asks for, 64 rows of a KV head at a time";
  return true;
}

Plan plan(const Problem& problem, const DeviceFacts& facts, core::Choice) {
  const std::size_t index = choose(problem, facts);
  if (index == kConfigs.size()) return {};
  const Config& config = kConfigs[index];
  Plan result;
  result.grid = grid_of_blocks(blocks(problem, config));
  result.block = {config.threads(), 1, 1};
  result.shared_bytes = config.shared_bytes();
  const int stages = Config::kStages * config.stage_bytes();
  // Q that goes to registers at once lends its place to the second stage.
  result.shared = shared_buffers(
      config.shared_bytes(),
      {{config.q_in_registers ? "K, before the loop Q" : "K", stages / 2}, {"V", stages / 2}}, "Q");
  result.tile_q = config.rows();
  result.tile_kv = config.keys;
  result.stages = Config::kStages;
  // Instantiated in sources of their own, so named by hand; tests compare it with the cubins.
  result.kernel = std::string("sm80_serving::attention_kernel<") + type_name(problem.dtype) + ", " +
                  std::to_string(index) + ">";
  result.note = "tiles of 64 rows: the queries of all heads that share a KV head";
  return result;
}

Params make_params(const Problem& problem, const Tensors& tensors, const Config& config) {
  const auto narrow = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
  const auto count = [](std::int64_t x) { return static_cast<std::uint32_t>(x); };
  Params p;
  p.sequences = sequence_arrays(problem, tensors);
  p.q = strided(tensors.q, problem.q);
  p.k = strided(tensors.k, problem.k);
  p.v = strided(tensors.v, problem.v);
  p.o = tensors.o;
  p.o_batch = problem.o.stride[0];
  p.o_head = problem.o.stride[1];
  p.o_row = problem.o.stride[2];
  p.lse = problem.lse ? tensors.lse : nullptr;
  p.head_dim = narrow(problem.head_dim);
  p.value_dim = narrow(value_dim(problem));
  p.heads_q = count(problem.heads_q);
  p.heads_kv = count(problem.heads_kv);
  p.group = count(problem.heads_q / problem.heads_kv);
  p.tiles = count(tiles(problem, config));
  p.batch = count(problem.batch);
  p.scale_log2 = problem.scale * core::kLog2E;
  p.transform = problem.softcap > 0.0f || !(problem.scale > 0.0f) || problem.alibi != Alibi::none ||
                problem.array_mask.kind != MaskKind::none;
  const core::ScoreTransform transform = core::score_transform(problem);
  p.transform_scale = transform.scale;
  p.transform_cap = transform.cap;
  if (problem.sinks) p.sinks = tensors.sinks;
  if (problem.alibi != Alibi::none) {
    p.slopes = tensors.slopes;
    p.slopes_of_entry = problem.alibi == Alibi::per_batch_head ? p.heads_q : 0;
  }
  if (const ArrayMask& mask = problem.array_mask; mask.kind != MaskKind::none) {
    p.mask = tensors.mask;
    p.bool_mask = mask.kind == MaskKind::boolean;
    p.mask_type = element_type_of(mask.dtype);
    p.mask_batch = mask.stride[0];
    p.mask_head = mask.stride[1];
    p.mask_row = mask.stride[2];
    p.mask_key = mask.stride[3];
    const std::uint64_t bytes = p.bool_mask ? 1 : size_of(mask.dtype);
    const auto in_runs_of = [&](std::int64_t run) {
      const auto whole = [&](std::int64_t stride) { return stride % run == 0; };
      return p.mask_key == 1 && whole(p.mask_batch) && whole(p.mask_head) && whole(p.mask_row) &&
             reinterpret_cast<std::uintptr_t>(p.mask) % (run * bytes) == 0;
    };
    p.mask_run = p.bool_mask && in_runs_of(16) ? 16 : in_runs_of(2) ? 2 : 1;
  }
  if (problem.pages.used())
    p.page_rows = static_cast<std::int32_t>(std::min(problem.pages.size, Band::kFar));
  p.by_page = Divisor::of(p.page_rows);
  // Of packed rows and of pages the tensor's own shape counts, not the problem's.
  const auto of_q = core::shape_of_q(problem, problem.head_dim);
  const auto of_kv = core::shape_of_kv(problem, problem.head_dim);
  p.aligned = core::rows_aligned(tensors.q, problem.q, of_q, 2, 16) &&
              core::rows_aligned(tensors.k, problem.k, of_kv, 2, 16) &&
              core::rows_aligned(tensors.v, problem.v, of_kv, 2, 16);
  const std::size_t out_bytes = size_of(problem.out_dtype);
  p.wide_store =
      core::rows_aligned(tensors.o, problem.o, core::shape_of_q(problem, value_dim(problem)),
                         out_bytes, out_bytes == 4 ? 8 : 16);
  p.output = element_type_of(problem.out_dtype);
  return p;
}

constinit BuildsByType<kConfigs.size()> builds(entries<__half>, entries<__nv_bfloat16>);

Status ensure_shared(const Problem& problem, std::size_t index, int device) {
  return builds.ensure_shared(problem.dtype, index, kConfigs[index].shared_bytes(), device, kId);
}

Status prepare(const Problem& problem, const core::Context& context) {
  return ensure_shared(problem, choose(problem, *context.facts), context.facts->index);
}

Status launch(const Problem& problem, const Tensors& tensors, const core::Context& context) {
  const std::size_t index = choose(problem, *context.facts);
  const Config& config = kConfigs[index];
  if (Status status = ensure_shared(problem, index, context.facts->index); !status.ok()) {
    return status;
  }
  Params params = make_params(problem, tensors, config);
  void* arguments[] = {&params};
  return launch_kernel(launch_config(grid_of_blocks(blocks(problem, config)), config.threads(),
                                     config.shared_bytes(), context),
                       builds.kernel(problem.dtype, index), arguments, kId);
}

}  // namespace
}  // namespace greenfast::cuda::sm80_serving

namespace greenfast::kernels {
extern const core::Kernel cuda_sm80_serving;
constinit const core::Kernel cuda_sm80_serving{.supports = cuda::sm80_serving::supports,
                                               .plan = cuda::sm80_serving::plan,
                                               .prepare = cuda::sm80_serving::prepare,
                                               .launch = cuda::sm80_serving::launch};
}  // namespace greenfast::kernels
