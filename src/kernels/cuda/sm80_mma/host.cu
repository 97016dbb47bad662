// Host side of cuda.sm80.mma: what it takes, which tile it chooses, and the launch.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <limits>

#include "core/alignment.hpp"
#include "core/arithmetic.hpp"
#include "core/check.hpp"
#include "core/text.hpp"
#include "core/variant.hpp"
#include "kernels/cuda/device/launch.hpp"
#include "kernels/cuda/device/shared_buffers.hpp"
#include "kernels/cuda/sm80_mma/config.hpp"

namespace greenfast::cuda::sm80_mma {
namespace {

constexpr const char* kId = "cuda.sm80.mma";
constexpr std::int64_t kMaxBlocks = std::numeric_limits<std::uint32_t>::max();

using core::ceil_div;

std::int64_t blocks(const Problem& problem, const Config& config) {
  return ceil_div(problem.seq_q, config.rows()) * problem.batch * problem.heads_q;
}

/// The first configuration of the smallest sufficient head dim that fits the device and, when it is
/// a tall one, gives nearly every SM the two blocks it has room for. Under a mask, whose tiles are
/// not equally long, pairs are as fast up to four (both measured, docs/kernels/sm80-mma.md).
std::size_t choose(const Problem& problem, const DeviceFacts& facts, core::Choice choice) {
  const std::int64_t sms = facts.multiprocessors;
  std::size_t best = kConfigs.size();
  for (std::size_t i = 0; i < kConfigs.size(); ++i) {
    const Config& config = kConfigs[i];
    if (config.head_dim < problem.head_dim || !config.fits(facts.shared_per_block)) continue;
    if (best != kConfigs.size() && config.head_dim != kConfigs[best].head_dim) break;
    best = i;
    if (config.atoms == 1 || config.pairs) break;
    const std::int64_t count =
        blocks(problem, config) / (choice.batch_invariant ? problem.batch : 1);
    const bool or_pairs = i + 1 < kConfigs.size() && kConfigs[i + 1].pairs &&
                          kConfigs[i + 1].head_dim == config.head_dim;
    const std::int64_t enough = problem.mask.is_none() ? sms * 9 / 5 : (or_pairs ? 4 : 2) * sms;
    if (count >= enough) break;
  }
  return best;
}

// Where parts pay (H200, 2026-11-27, docs/kernels/sm80-mma.md). Putting them together takes as long as some 200 keys.
constexpr std::int64_t kLeastKeysOfPart = 128, kLeastKeys = 288;
// And where every second multiprocessor has a tile: they gain only what one tile leaves of it.
constexpr std::int64_t kLeastKeysBesideTiles = 1024;

/// How the keys of a tile are shared by blocks.
struct Parts {
  std::int64_t count = 1;
  std::int64_t blocks = Band::kFar;  // of keys, of each
};

std::int64_t bytes_of(const Parts& parts, const Problem& problem) {
  const std::int64_t rows = problem.batch * problem.heads_q * problem.seq_q;
  return parts.count > 1 ? parts.count * part_bytes(rows, problem.head_dim) : 0;
}

/// As many parts as fill the device, where tiles alone leave much of it idle. One where there is not
/// the scratch for them, and where a batch must not change bits.
Parts parts_of(const Problem& problem, const DeviceFacts& facts, core::Choice choice,
               const Config& config) {
  const std::int64_t tiles = blocks(problem, config), sms = facts.multiprocessors;
  std::int64_t most = std::min<std::int64_t>(kMaxParts, sms * config.blocks_per_sm / tiles);
  if (choice.max_splits > 0) most = std::min<std::int64_t>(most, choice.max_splits);
  if (choice.scratch == 0 || choice.batch_invariant || most < 2) return {};
  const Band band = make_band(problem);
  const auto seq_q = static_cast<std::int32_t>(problem.seq_q);
  std::int64_t longest = 0;  // blocks of a tile; there are few tiles here
  for (std::int32_t row = 0; row < seq_q; row += config.rows()) {
    const std::int64_t end = band.end(std::min(row + config.rows(), seq_q) - 1);
    longest = std::max(longest, ceil_div(end, config.keys) - band.first(row) / config.keys);
  }
  const std::int64_t keys = longest * config.keys;
  if (keys < (2 * tiles > sms ? kLeastKeysBesideTiles : kLeastKeys)) return {};
  const std::int64_t each = ceil_div(longest, std::min(most, keys / kLeastKeysOfPart));
  const Parts parts{ceil_div(longest, each), each};
  return bytes_of(parts, problem) <= choice.scratch ? parts : Parts{};
}

std::array<int, 3> grid_of(const Problem& problem, const Config& config, const Parts& parts) {
  std::array<int, 3> grid = grid_of_blocks(blocks(problem, config));
  grid[2] = static_cast<int>(parts.count);
  return grid;
}

std::int64_t workspace(const Problem& problem, const DeviceFacts& facts, core::Choice choice) {
  const std::size_t index = choose(problem, facts, choice);
  if (index == kConfigs.size()) return 0;
  return bytes_of(parts_of(problem, facts, choice, kConfigs[index]), problem);
}

bool supports(const Problem& problem, const DeviceFacts& facts, core::Choice choice,
              std::string* why) {
  using core::refuse;
  if (problem.seq_q > Band::kFar || problem.seq_kv > Band::kFar) {
    return refuse(why, "a sequence longer than 2^30: split the call");
  }
  const std::size_t index = choose(problem, facts, choice);
  if (index == kConfigs.size()) {
    return refuse(why, "no tile for head dim ", problem.head_dim, " fits the ",
                  facts.shared_per_block, " bytes of shared memory that a block may use here");
  }
  if (blocks(problem, kConfigs[index]) > kMaxBlocks) {
    return refuse(why, "more than 2^32 - 1 query tiles: split the batch");
  }
  if (why != nullptr) *why = "takes fp16 and bf16 with any strides, masks and lengths";
  return true;
}

Plan plan(const Problem& problem, const DeviceFacts& facts, core::Choice choice) {
  const std::size_t index = choose(problem, facts, choice);
  if (index == kConfigs.size()) return {};
  const Config& config = kConfigs[index];
  Plan result;
  const Parts parts = parts_of(problem, facts, choice, config);
  result.grid = grid_of(problem, config, parts);
  result.splits = static_cast<int>(parts.count);
  result.workspace_bytes = bytes_of(parts, problem);
  result.block = {config.threads(), 1, 1};
  result.shared_bytes = config.shared_bytes();
  // Of two stages, Q that goes to registers at once lends its place to the second.
  const int stages = config.stages * config.stage_bytes();
  const bool lent = config.q_in_registers && config.stages == 2;
  result.shared = shared_buffers(config.shared_bytes(),
                                 {{lent ? "K, before the loop Q" : "K", stages / 2},
                                  {"V", stages / 2},
                                  {"what pairs hand over", config.handed_bytes()}},
                                 lent ? "Q, where it is more than a stage" : "Q");
  result.tile_q = config.rows();
  result.tile_kv = config.keys;
  result.stages = config.stages;
  // Instantiated in sources of their own, so named by hand; tests compare it with the cubins.
  result.kernel = std::string("sm80_mma::attention_kernel<") + type_name(problem.dtype) + ", " +
                  std::to_string(index) + ">";
  const char* const why = !config.pairs && config.atoms == 2 ? "enough of them to fill the device"
                          : config.head_dim <= 128           ? "more blocks"
                                                             : "the head dim fills the registers";
  result.note = std::to_string(config.rows()) + "-row tiles of " + std::to_string(config.warps) +
                " warps" + (config.pairs ? " in pairs: " : ": ") + why;
  if (parts.count > 1)
    result.note +=
        core::concat("; keys in ", parts.count, " parts, put together by a second kernel");
  return result;
}

/// Heads whose K and V together take half of L2; one head where all tiles are equally long.
std::uint32_t section(const Problem& problem, const DeviceFacts& facts) {
  if (problem.mask.is_none()) return 1;
  const std::int64_t group = problem.heads_q / problem.heads_kv;
  const std::int64_t head_bytes = 2 * problem.seq_kv * problem.head_dim * 2;
  const std::int64_t heads = std::max<std::int64_t>(1, facts.l2_bytes / 2 / head_bytes) * group;
  return static_cast<std::uint32_t>(std::min(heads, problem.batch * problem.heads_q));
}

Params make_params(const Problem& problem, const Tensors& tensors, const DeviceFacts& facts,
                   const Config& config) {
  Params p;
  p.q = strided(tensors.q, problem.q);
  p.k = strided(tensors.k, problem.k);
  p.v = strided(tensors.v, problem.v);
  p.o = tensors.o;
  p.o_batch = problem.o.stride[0];
  p.o_head = problem.o.stride[1];
  p.o_row = problem.o.stride[2];
  p.lse = problem.lse ? tensors.lse : nullptr;
  p.band = make_band(problem);
  p.seq_q = static_cast<std::int32_t>(problem.seq_q);
  p.head_dim = static_cast<std::int32_t>(problem.head_dim);
  p.heads_q = static_cast<std::uint32_t>(problem.heads_q);
  p.group = static_cast<std::uint32_t>(problem.heads_q / problem.heads_kv);
  p.tiles = static_cast<std::uint32_t>(ceil_div(problem.seq_q, config.rows()));
  p.heads_total = static_cast<std::uint32_t>(problem.batch * problem.heads_q);
  p.section = section(problem, facts);
  p.scale_log2 = problem.scale * core::kLog2E;
  p.transform = problem.softcap > 0.0f || !(problem.scale > 0.0f);
  const core::ScoreTransform transform = core::score_transform(problem);
  p.transform_scale = transform.scale;
  p.transform_cap = transform.cap;
  const auto of_q = core::shape_of_q(problem, problem.head_dim);
  const auto of_kv = core::shape_of_kv(problem, problem.head_dim);
  p.aligned = core::rows_aligned(tensors.q, problem.q, of_q, 2, 16) &&
              core::rows_aligned(tensors.k, problem.k, of_kv, 2, 16) &&
              core::rows_aligned(tensors.v, problem.v, of_kv, 2, 16);
  const std::size_t out_bytes = size_of(problem.out_dtype);
  p.wide_store = core::rows_aligned(tensors.o, problem.o, of_q, out_bytes, out_bytes == 4 ? 8 : 16);
  p.output = element_type_of(problem.out_dtype);
  return p;
}

constinit BuildsByType<kConfigs.size()> builds(entries<__half>, entries<__nv_bfloat16>);

Status ensure_shared(const Problem& problem, std::size_t index, int device) {
  return builds.ensure_shared(problem.dtype, index, kConfigs[index].shared_bytes(), device, kId);
}

Status prepare(const Problem& problem, const core::Context& context) {
  return ensure_shared(problem, choose(problem, *context.facts, context.choice),
                       context.facts->index);
}

Status launch(const Problem& problem, const Tensors& tensors, const core::Context& context) {
  const std::size_t index = choose(problem, *context.facts, context.choice);
  const Config& config = kConfigs[index];
  if (Status status = ensure_shared(problem, index, context.facts->index); !status.ok()) {
    return status;
  }
  Params params = make_params(problem, tensors, *context.facts, config);
  const Parts parts = parts_of(problem, *context.facts, context.choice, config);
  JoinParams join;
  if (parts.count > 1)
    join =
        into_parts(params, static_cast<int>(parts.count), static_cast<std::int32_t>(parts.blocks),
                   static_cast<float*>(context.workspace));
  void* arguments[] = {&params};
  if (Status status = launch_kernel(launch_config(grid_of(problem, config, parts), config.threads(),
                                                  config.shared_bytes(), context),
                                    builds.kernel(problem.dtype, index), arguments, kId);
      !status.ok() || parts.count == 1)
    return status;
  void* join_arguments[] = {&join};
  return launch_kernel(
      launch_config(grid_of_blocks(ceil_div(join.rows * join.head_dim, 4 * kJoinThreads)),
                    kJoinThreads, 0, context),
      join_entry(), join_arguments, kId);
}

}  // namespace
}  // namespace greenfast::cuda::sm80_mma

namespace greenfast::kernels {
extern const core::Kernel cuda_sm80_mma;
constinit const core::Kernel cuda_sm80_mma{.supports = cuda::sm80_mma::supports,
                                           .plan = cuda::sm80_mma::plan,
                                           .workspace = cuda::sm80_mma::workspace,
                                           .prepare = cuda::sm80_mma::prepare,
                                           .launch = cuda::sm80_mma::launch};
}  // namespace greenfast::kernels
