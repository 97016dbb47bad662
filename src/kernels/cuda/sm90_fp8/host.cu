// Host side of cuda.sm90.fp8, cuda.sm90.fp8_curved and cuda.sm90.fp8_fast: what they take, the order
// of the tiles, the tensor maps, the two launches. They differ in how weights are made.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numbers>
#include <string>

#include <greenfast/arithmetic.hpp>

#include "core/arithmetic.hpp"
#include "core/text.hpp"
#include "core/variant.hpp"
#include "kernels/cuda/device/batch_parts.hpp"
#include "kernels/cuda/device/launch.hpp"
#include "kernels/cuda/device/shared_buffers.hpp"
#include "kernels/cuda/device/tensor_map.hpp"
#include "kernels/cuda/device/tile_order.hpp"
#include "kernels/cuda/sm90_fp8/config.hpp"
#include "kernels/cuda/sm90_fp8/layout.hpp"

namespace greenfast::cuda::fp8 {
namespace {

constexpr const char* id_of(Weights weights) {
  switch (weights) {
    case Weights::exponentials:
      return "cuda.sm90.fp8";
    case Weights::curved:
      return "cuda.sm90.fp8_curved";
    case Weights::linear:
      return "cuda.sm90.fp8_fast";
  }
  return "";
}

using core::ceil_div;

// Of 256 products that halves add up the log-sum-exp was off by more than `strict` allows (H200, 2026-11-27).
constexpr std::int64_t kLargestHeadDimOfLse = 128;

/// The narrowest tile that holds so many columns.
constexpr std::size_t index_of_head_dim(std::int64_t head_dim) {
  return head_dim <= kHeadDims[0] ? 0 : head_dim <= kHeadDims[1] ? 1 : 2;
}

/// Whether V comes with its keys one behind the other: V^T.
bool is_transposed(const Problem& problem) { return problem.v.stride[3] != 1; }

/// Whether the kernel can read such a V where it lies: TMA must reach its columns, and K's rows in
/// fours, of which the last may not end behind K.
bool readable_in_place(const Problem& problem, const VisibleKeys& keys, bool batch_invariant) {
  if (!is_transposed(problem)) return false;
  Layout columns = problem.v;  // as if columns were rows
  columns.stride[2] = problem.v.stride[3];
  return keys.first % kTmaAlignment == 0 && 4 * problem.k.stride[2] < kTmaStrideLimit &&
         keys.first + round_up(std::int64_t{keys.band.keys}, 4) <= problem.seq_kv &&
         tma_addressable(columns, problem.dtype,
                         entries_for_choice(problem, problem.v, batch_invariant), problem.heads_kv,
                         problem.head_dim, true);
}

/// What a launch will do: everything that does not depend on addresses.
struct Decision {
  VisibleKeys keys;
  Config config;
  std::int32_t tiles = 0;   // of a head
  std::int32_t blocks = 0;  // of keys
  Dealing dealing;
  bool longest_is_last = true;
  bool o_by_tma = false;
  int ctas = 1;
  bool direct = false;  // V is V^T, and is read where it lies

  /// Of a head's V^T that a pass writes.
  std::int64_t transposed_bytes() const {
    return std::int64_t{config.head_dim} * blocks * Config::kKeys;
  }
};

Decision decide(const Problem& problem, const DeviceFacts& facts, core::Choice choice,
                Weights weights) {
  Decision d;
  d.config.weights = weights;
  d.keys = visible_keys(problem);
  const Band& band = d.keys.band;
  d.config.head_dim = kHeadDims[index_of_head_dim(problem.head_dim)];
  d.config.block_factors = problem.scales == ScaleKind::per_block;
  d.config.masked =
      band.above < band.keys - 1 || band.below + (static_cast<std::int32_t>(problem.seq_q) - 1) > 0;
  const auto seq_q = static_cast<std::int32_t>(problem.seq_q);
  const std::int32_t rows = d.config.rows();
  d.tiles = (seq_q - 1) / rows + 1;
  d.blocks = std::max(1, static_cast<std::int32_t>(ceil_div(band.keys, Config::kKeys)));
  d.direct = readable_in_place(problem, d.keys, choice.batch_invariant);
  d.o_by_tma = problem.out_dtype != DType::f32 &&
               tma_addressable(problem.o, problem.out_dtype,
                               entries_for_choice(problem, problem.o, choice.batch_invariant),
                               problem.heads_q, problem.seq_q, false);

  const auto work = [&](std::int32_t tile) {
    const std::int32_t first = tile * rows;
    const BlockRange range =
        blocks_of(band, Config::kKeys, first, std::min(first + rows, seq_q) - 1);
    return range.end - range.begin;
  };
  const std::int32_t first = work(0), last = work(d.tiles - 1), middle = work(d.tiles / 2);
  const std::int64_t heads = problem.batch * problem.heads_q;
  d.ctas = static_cast<int>(std::min<std::int64_t>(heads * d.tiles, facts.multiprocessors));
  d.longest_is_last = last >= first;
  d.dealing = deal_tiles(
      {.tiles = d.tiles,
       .even = 4 * std::min(first, last) >= 3 * std::max({first, last, middle}),
       .longest_is_last = d.longest_is_last,
       .heads = heads,
       .ctas = d.ctas,
       .kv_bytes = 2 * problem.batch * problem.heads_kv * band.keys * problem.head_dim,
       .l2_bytes = facts.l2_bytes,
       .head_dim = problem.head_dim,
       // Causal 16,16,512,128 and 16,16,1024,128 would be 4 and 3% slower, 32,32,512,64 2% faster
       // (H100, 2026-11-25).
       .by_head = false},
      work);
  return d;
}

/// Blocks of V^T, which the first pass counts, are of 128 keys.
std::int64_t tiles_of_an_entry(const Problem& problem) {
  return std::max(query_tiles_of_an_entry(problem),
                  problem.heads_kv * ceil_div(problem.seq_kv, 128));
}

template <Weights kWeights>
bool supports(const Problem& problem, const DeviceFacts& facts, core::Choice choice,
              std::string* why) {
  using core::refuse;
  if (!runs_sm90a(facts, why)) return false;
  if (problem.head_dim > largest_head_dim(kWeights)) {
    return refuse(why, "head dim ", problem.head_dim, "; takes up to ", largest_head_dim(kWeights));
  }
  if (problem.lse && problem.head_dim > kLargestHeadDimOfLse) {
    return refuse(why, "a log-sum-exp at head dim ", problem.head_dim,
                  "; gives one up to head dim ", kLargestHeadDimOfLse);
  }
  if (problem.seq_q > Band::kFar || problem.seq_kv > Band::kFar) {
    return refuse(why, "a sequence longer than 2^30");
  }
  // Blocks of the kernel begin with the first key that some row sees.
  if (problem.scales == ScaleKind::per_block && visible_keys(problem).first % kScaleBlock != 0)
    return refuse(why, "a scale for each block of ", kScaleBlock,
                  " keys, and no query sees one before ", visible_keys(problem).first,
                  "; takes multiples of ", kScaleBlock);
  if (!inputs_addressable(problem, choice.batch_invariant, why, is_transposed(problem)))
    return false;
  if (tiles_of_an_entry(problem) > kMostTilesOf128) {
    return refuse(why, tiles_of_an_entry(problem),
                  " tiles of 128 queries or keys in a batch entry: at most 2^30 - 1; split the "
                  "heads");
  }
  const Config largest{.head_dim = largest_head_dim(kWeights), .weights = kWeights};
  if (facts.shared_per_block < largest.shared_bytes() + 8192) {
    return refuse(why, facts.shared_per_block, " bytes of shared memory for a block: needs ",
                  largest.shared_bytes() + 8192);
  }
  if (why != nullptr)
    *why = readable_in_place(problem, visible_keys(problem), choice.batch_invariant)
               ? "e4m3 with 16-byte rows: TMA, wgmma on e4m3, V transposed as it comes"
               : "e4m3 with 16-byte rows: TMA, wgmma on e4m3, V transposed by a pass";
  return true;
}

template <Weights kWeights>
std::int64_t workspace(const Problem& problem, const DeviceFacts& facts, core::Choice choice) {
  const Decision d = decide(problem, facts, choice, kWeights);
  return d.direct ? 0 : problem.batch * problem.heads_kv * d.transposed_bytes();
}

template <Weights kWeights>
Plan plan(const Problem& problem, const DeviceFacts& facts, core::Choice choice) {
  const Decision d = decide(problem, facts, choice, kWeights);
  Plan result;
  result.grid = {d.ctas, 1, 1};
  result.block = {d.config.threads(), 1, 1};
  result.shared_bytes = d.config.shared_bytes();
  const Config& config = d.config;
  result.shared = shared_buffers(config.shared_bytes(),
                                 {{"Q", config.q_stages() * config.warpgroups() * config.q_bytes()},
                                  {"K", config.stages() * config.k_bytes()},
                                  {"V transposed", config.stages() * config.v_bytes()},
                                  {"O", 4 * config.warpgroups() * config.strip_bytes()}});
  result.tile_q = d.config.rows();
  result.tile_kv = Config::kKeys;
  result.stages = d.config.stages();
  result.workspace_bytes = workspace<kWeights>(problem, facts, choice);
  // Instantiated in sources of their own, so named by hand; tests compare it with the cubins.
  const char* name = kWeights == Weights::exponentials ? "fp8_kernel<Compiled<"
                     : kWeights == Weights::curved     ? "fp8_fast_kernel<CompiledCurved<"
                                                       : "fp8_fast_kernel<CompiledFast<";
  if (d.config.block_factors) name = "fp8_kernel<CompiledBlocks<";
  result.kernel = core::concat("fp8::", name, d.config.head_dim, ", ",
                               d.config.masked ? "true" : "false", ">>");
  result.note =
      d.direct ? "V is read transposed, as it lies"
      : is_transposed(problem)
          ? "V is copied into the workspace first, by a kernel of its own, because its "
            "keys are no multiple of 4, or its columns or first key lie where TMA cannot begin"
          : "V is transposed into the workspace first, by a kernel of its own";
  return result;
}

// ---- Launch ----

constexpr std::size_t index_of(const Config& config) {
  return static_cast<std::size_t>(config.weights);
}
const Entries& entries_of(const Config& config) {
  static const std::array<std::array<Entries, kHeadDims.size()>, 3> table{
      {{entries<kHeadDims[0]>(), entries<kHeadDims[1]>(), {}},
       {curved_entries<kHeadDims[0]>(), curved_entries<kHeadDims[1]>(),
        curved_entries<kHeadDims[2]>()},
       {fast_entries<kHeadDims[0]>(), fast_entries<kHeadDims[1]>(), fast_entries<kHeadDims[2]>()}}};
  return table[index_of(config)][index_of_head_dim(config.head_dim)];
}
const void* kernel_of(const Config& config) {
  const Entries& kernels = entries_of(config);
  if (config.block_factors) return config.masked ? kernels.masked_blocks : kernels.plain_blocks;
  return config.masked ? kernels.masked : kernels.plain;
}

// By kernel: head dim, mask, weights, of which those with factors of blocks are the last.
constinit std::array<SharedMemoryOptIn, 4 * 2 * kHeadDims.size()> opt_in;

Status ensure_ready(const Decision& d, int device) {
  if (Status status = check_tensor_map_driver(id_of(d.config.weights)); !status.ok()) return status;
  const std::size_t index =
      (2 * (d.config.block_factors ? 3 : index_of(d.config)) + (d.config.masked ? 1u : 0u)) *
          kHeadDims.size() +
      index_of_head_dim(d.config.head_dim);
  return opt_in[index].ensure(kernel_of(d.config), d.config.shared_bytes(), device,
                              id_of(d.config.weights));
}

template <Weights kWeights>
Status prepare(const Problem& problem, const core::Context& context) {
  return ensure_ready(decide(problem, *context.facts, context.choice, kWeights),
                      context.facts->index);
}

Params make_params(const Problem& problem, const Tensors& tensors, const Decision& d) {
  Params p;
  p.band = d.keys.band;
  p.seq_q = static_cast<std::int32_t>(problem.seq_q);
  p.key_blocks = static_cast<std::int32_t>(ceil_div(p.band.keys, Config::kKeys));
  p.group = static_cast<std::int32_t>(problem.heads_q / problem.heads_kv);
  p.heads_kv = static_cast<std::int32_t>(problem.heads_kv);
  p.k_last_head = last_coordinate(problem.heads_kv, problem.k.stride[1]);
  p.k_last_batch = last_coordinate(problem.batch, problem.k.stride[0]);
  p.v_last_head = static_cast<std::int32_t>(problem.heads_kv - 1);
  p.v_last_batch = static_cast<std::int32_t>(problem.batch - 1);
  p.in_fours = d.direct;
  p.k_block[d.direct ? 1 : 0] = d.direct ? Config::kKeys / 4 : Config::kKeys;
  p.k_half = d.direct ? 2 : Config::kKeys / 2;
  if (d.direct) {
    p.v_last_head = last_coordinate(problem.heads_kv, problem.v.stride[1]);
    p.v_last_batch = last_coordinate(problem.batch, problem.v.stride[0]);
  }
  p.schedule = make_schedule(d.dealing.order, d.tiles, static_cast<std::int32_t>(problem.heads_q),
                             static_cast<std::int32_t>(problem.batch * problem.heads_q), d.ctas,
                             d.dealing.paired_rounds, d.longest_is_last);
  p.scale_log2 = static_cast<double>(problem.scale) * std::numbers::log2e;
  if (problem.scales != ScaleKind::none)
    p.scales = {tensors.q_scale, tensors.k_scale, tensors.v_scale,
                problem.scales == ScaleKind::per_head};
  if (problem.scales == ScaleKind::per_block) {
    p.blocks.of_q = static_cast<std::int32_t>(ceil_div(problem.seq_q, kScaleBlock));
    p.blocks.of_kv = static_cast<std::int32_t>(ceil_div(problem.seq_kv, kScaleBlock));
    p.blocks.first = static_cast<std::int32_t>(d.keys.first / kScaleBlock);
  }
  p.lse = problem.lse ? tensors.lse : nullptr;
  p.o = tensors.o;
  p.o_batch = problem.o.stride[0];
  p.o_head = problem.o.stride[1];
  p.o_row = problem.o.stride[2];
  p.head_dim = static_cast<std::int32_t>(problem.head_dim);
  p.out_dtype = problem.out_dtype;
  p.o_by_tma = d.o_by_tma;
  return p;
}

/// The map of K in boxes of half a block, of a piece of its rows. Rows are two axes: all of them and none, or, in fours, the
/// place of a row within its four, of which a box takes two neighbours, and the fours.
MapShape map_of_k(const Problem& problem, std::int64_t keys, int row_bytes, bool in_fours) {
  MapShape shape{.axes = 5};
  const std::int64_t row = problem.k.stride[2], fours = core::ceil_div(keys, 4);
  const auto head = problem.k.stride[1], batch = problem.k.stride[0];
  shape.set_axis(0, problem.head_dim, 0);
  shape.set_axis(1, in_fours ? 4 : keys, row);
  shape.set_axis(2, in_fours ? fours : 1, 4 * row);
  shape.set_axis(3, head == 0 ? 1 : problem.heads_kv, head);
  shape.set_axis(4, batch == 0 ? 1 : problem.batch, batch);
  shape.box[0] = static_cast<cuuint32_t>(row_bytes);
  shape.box[1] = in_fours ? 2 : Config::kKeys / 2;
  shape.box[2] = in_fours ? Config::kKeys / 4 : 1;
  if (row_bytes == 64) shape.swizzle = CU_TENSOR_MAP_SWIZZLE_64B;
  return shape;
}

/// The map of V^T in boxes of a block: given, or the workspace, in which a head's rows of V^T are
/// its columns and its keys whole blocks.
MapShape map_of_v(const Problem& problem, const Decision& d, std::int64_t pitch) {
  const std::int64_t head_dim = d.config.head_dim, heads = problem.heads_kv;
  Layout layout{.stride = {pitch * head_dim * heads, pitch * head_dim, pitch, 1}};
  if (d.direct) layout.stride = {problem.v.stride[0], problem.v.stride[1], problem.v.stride[3], 1};
  return map_of({layout, problem.batch, heads, d.direct ? problem.head_dim : head_dim,
                 d.direct ? std::int64_t{d.keys.band.keys} : pitch, problem.dtype},
                Config::kKeys, d.config.head_dim);
}

/// The kernel that makes V^T of V in the workspace.
Status launch_pass(const Problem& problem, const Tensors& tensors, const Decision& d,
                   const core::Context& context) {
  const bool transposed = is_transposed(problem);
  TransposeParams p;
  p.v = static_cast<const std::uint8_t*>(tensors.v) + d.keys.first * problem.v.stride[2];
  p.batch = problem.v.stride[0];
  p.head = problem.v.stride[1];
  p.row = problem.v.stride[transposed ? 3 : 2];
  p.heads = static_cast<std::int32_t>(problem.heads_kv);
  p.keys = d.keys.band.keys;
  p.blocks = d.blocks;
  p.head_dim = static_cast<std::int32_t>(problem.head_dim);
  p.out = static_cast<std::uint8_t*>(context.workspace);
  void* arguments[] = {&p};
  const Entries& kernels = entries_of(d.config);
  const auto blocks = static_cast<int>(problem.batch * problem.heads_kv * d.blocks);
  return launch_kernel(launch_config({blocks, 1, 1}, 2 * d.config.head_dim, 0, context),
                       transposed ? kernels.reorder : kernels.transpose, arguments,
                       id_of(d.config.weights));
}

template <Weights kWeights>
Status launch_part(const Problem& problem, const Tensors& tensors, const core::Context& context) {
  const Decision d = decide(problem, *context.facts, context.choice, kWeights);
  if (Status status = ensure_ready(d, context.facts->index); !status.ok()) return status;
  const std::int64_t keys = d.keys.band.keys, pitch = std::int64_t{d.blocks} * Config::kKeys;
  const int row_bytes = d.config.row_bytes();
  // Of K and V, the keys that some row sees.
  const auto seen = [&](const void* data, const Layout& layout) -> const void* {
    return static_cast<const char*>(data) + d.keys.first * layout.stride[2];
  };

  CUtensorMap q_map, k_map, v_map, o_map{};
  thread_local KeptMap kept_q, kept_k, kept_v, kept_o;
  const bool encoded =
      kept_q.make(&q_map,
                  map_of({problem.q, problem.batch, problem.heads_q, problem.seq_q,
                          problem.head_dim, problem.dtype},
                         row_bytes, 64),
                  tensors.q) &&
      kept_k.make(&k_map, map_of_k(problem, keys, row_bytes, d.direct),
                  seen(tensors.k, problem.k)) &&
      kept_v.make(&v_map, map_of_v(problem, d, pitch),
                  d.direct ? seen(tensors.v, problem.v) : context.workspace) &&
      (!d.o_by_tma || kept_o.make(&o_map,
                                  map_of({problem.o, problem.batch, problem.heads_q, problem.seq_q,
                                          problem.head_dim, problem.out_dtype},
                                         64, 16),
                                  tensors.o));
  if (!encoded) {
    return tensor_map_refused(id_of(kWeights),
                              d.direct ? "Q, K, V and O" : "Q, K, O and the workspace");
  }

  // The pass waits for all that stands before it in the stream; the kernel may set up beside its
  // last blocks.
  if (!d.direct) {
    if (Status status = launch_pass(problem, tensors, d, context); !status.ok()) return status;
  }
  Params params = make_params(problem, tensors, d);
  void* arguments[] = {&q_map, &k_map, &v_map, &o_map, &params};
  return launch_early(
      launch_config({d.ctas, 1, 1}, d.config.threads(), d.config.shared_bytes(), context),
      kernel_of(d.config), arguments, id_of(kWeights));
}

template <Weights kWeights>
Status launch(const Problem& problem, const Tensors& tensors, const core::Context& context) {
  // Parts of a batch follow each other in the stream and share the workspace.
  return in_batch_parts(problem, tensors, kMostTilesOf128 / tiles_of_an_entry(problem),
                        [&](const Problem& part, const Tensors& there) {
                          return launch_part<kWeights>(part, there, context);
                        });
}

}  // namespace
}  // namespace greenfast::cuda::fp8

namespace greenfast::kernels {
namespace {
template <cuda::fp8::Weights kWeights>
constexpr core::Kernel kKernel{.supports = cuda::fp8::supports<kWeights>,
                               .plan = cuda::fp8::plan<kWeights>,
                               .workspace = cuda::fp8::workspace<kWeights>,
                               .prepare = cuda::fp8::prepare<kWeights>,
                               .launch = cuda::fp8::launch<kWeights>};
}  // namespace
extern const core::Kernel cuda_sm90_fp8;
extern const core::Kernel cuda_sm90_fp8_curved;
extern const core::Kernel cuda_sm90_fp8_fast;
constinit const core::Kernel cuda_sm90_fp8 = kKernel<cuda::fp8::Weights::exponentials>;
constinit const core::Kernel cuda_sm90_fp8_curved = kKernel<cuda::fp8::Weights::curved>;
constinit const core::Kernel cuda_sm90_fp8_fast = kKernel<cuda::fp8::Weights::linear>;
}  // namespace greenfast::kernels
