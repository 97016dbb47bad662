// cuda.sm90.grouped: what it takes, the scratch, the launch, and its second kernel. Reads no array of the
// call, so a captured graph stays right when the lengths on the device change.
//
// Idea    some queries of every sequence: prefill's loop with the heads of a group as rows of one tile, so that
//         K and V are read once for all of them, and with keys in parts, so that few tiles fill the machine.
// Takes   see supports below, and docs/kernels/sm90-grouped.md.
// Limits  head dims to 128; a batch's lengths decide how keys are parted, so no batch_invariant.
// Budget  that of cuda.sm90.packed's builds for serving; join_kernel 8 warps, 62 registers.
// Bound   memory, up to 64 rows of a group in 16 bits; above, the tensor cores.
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <string>

#include "core/alignment.hpp"
#include "core/arithmetic.hpp"
#include "core/check.hpp"
#include "core/text.hpp"
#include "core/variant.hpp"
#include "kernels/cuda/device/launch.hpp"
#include "kernels/cuda/sm90_prefill/config.hpp"
#include "kernels/cuda/sm90_prefill/join.cuh"
#include "kernels/cuda/sm90_prefill/sides.hpp"
#include "kernels/cuda/sm90_prefill/tiling.hpp"

namespace greenfast::cuda::grouped {

using namespace prefill;

// Every thread waits: this grid must not end before the one whose work the next call reads over.
template <int kValues>
__global__ void __launch_bounds__(kJoinThreads) join_kernel(const __grid_constant__ Params p) {
  ptx::grid_dependency_wait();
  join_parts<grouped_config_of(0, false).rows(), kValues>(p);
}

namespace {

using core::ceil_div;
using packed::has_rows_apart;
using packed::kK, packed::kO, packed::kV;
using packed::larger_dim;
using packed::Side;
using packed::sides_of;
constexpr const char* kId = "cuda.sm90.grouped";
constexpr std::int64_t kRows = grouped_config_of(0, false).rows();
constexpr std::int64_t kKeys = grouped_config_of(0, false).keys;
/// Rows of a sequence, and tiles of all, that 32 bits count with their parts.
constexpr std::int64_t kMostRows = std::int64_t{1} << 24, kMostTiles = std::int64_t{1} << 20;

bool is_bytes(const Problem& problem) { return problem.dtype == DType::e4m3; }
std::int64_t group_of(const Problem& problem) { return problem.heads_q / problem.heads_kv; }
std::int64_t tiles_of(const Problem& problem) {
  return problem.batch * problem.heads_kv * ceil_div(problem.seq_q * group_of(problem), kRows);
}

bool supports(const Problem& problem, const DeviceFacts& facts, core::Choice choice,
              std::string* why) {
  using core::refuse;
  if (!runs_sm90a(facts, why)) return false;
  if (choice.batch_invariant)
    return refuse(why, "batch_invariant; parts keys by the lengths of all sequences");
  if (larger_dim(problem) > 128)
    return refuse(why, "head dim ", larger_dim(problem), "; takes up to 128");
  if (problem.chunk > 0 && problem.chunk < kRows)
    return refuse(why, "chunks of ", problem.chunk, " keys; takes ", kRows, " and more");
  if (has_rows_apart(problem) && !packed::counts_pieces(problem, why)) return false;
  if (!is_bytes(problem) && !(problem.scale >= 1e-30f && problem.scale <= 1e30f))
    return refuse(why, "a scale of ", problem.scale, "; takes 1e-30 to 1e30");
  if (problem.seq_q > kMostRows || problem.seq_q * group_of(problem) > kMostRows)
    return refuse(why, "seq_q ", problem.seq_q, " times ", group_of(problem),
                  " query heads to a KV head; takes up to ", kMostRows, " rows");
  if (tiles_of(problem) > kMostTiles)
    return refuse(why, problem.batch, " sequences of up to ", problem.seq_q, " queries are ",
                  tiles_of(problem), " tiles; takes up to ", kMostTiles, ": split the batch");
  // Blocks of all tiles, counted one behind the other.
  if (tiles_of(problem) * (ceil_div(problem.seq_kv, kKeys) + 2) >= std::int64_t{1} << 30)
    return refuse(why, tiles_of(problem), " tiles of up to ", problem.seq_kv,
                  " keys; takes up to 2^30 blocks of ", kKeys, " of them: split the batch");
  const auto shape_of_q = core::shape_of_q(problem, problem.head_dim);
  if (!core::rows_aligned(problem.q.alignment, problem.q, shape_of_q, size_of(problem.dtype), 16))
    return refuse(why, "rows of Q do not start at 16-byte boundaries; align the tensor");
  const auto sides = sides_of(problem);
  if (!packed::is_addressable(sides[kK], choice, why) ||
      !packed::is_addressable(sides[kV], choice, why))
    return false;
  for (const bool bytes : {false, true}) {
    const int needed = grouped_config_of(1, bytes).shared_bytes();
    if (facts.shared_per_block < needed)
      return refuse(why, facts.shared_per_block, " bytes of shared memory for a block: needs ",
                    needed);
  }
  if (why != nullptr)
    *why = has_rows_apart(problem)
               ? "the heads of a group in one tile, keys in parts: pages row by row, wgmma"
               : "the heads of a group in one tile, keys in parts: TMA, wgmma";
  return true;
}

/// What a launch will do: everything that does not depend on addresses.
struct Decision {
  std::size_t tile;
  Config config;
  int ctas;
  bool parts;
  bool by_rows;
};
Decision decide(const Problem& problem, const DeviceFacts& facts, core::Choice choice) {
  Decision d;
  d.tile = larger_dim(problem) <= 64 ? 0 : 1;
  d.config = grouped_config_of(d.tile, is_bytes(problem));
  d.by_rows = has_rows_apart(problem);
  d.parts = choice.max_splits != 1 && problem.seq_kv > kLeastPart * kKeys;
  d.ctas = facts.multiprocessors;
  if (!d.parts)
    d.ctas = static_cast<int>(std::min<std::int64_t>(tiles_of(problem), facts.multiprocessors));
  return d;
}

/// Partial results and their stats, and whose they are.
struct Workspace {
  std::int64_t stats = 0, places = 0, bytes = 0;
};
Workspace workspace_of(const Decision& d) {
  Workspace space;
  if (!d.parts) return space;
  const std::int64_t slots = most_slots(d.ctas), rows = slots * kRows;
  space.stats = rows * d.config.values() * 4;
  space.places = space.stats + rows * static_cast<std::int64_t>(sizeof(PartStats));
  space.bytes = space.places + slots * static_cast<std::int64_t>(sizeof(PartPlace));
  return space;
}
std::int64_t workspace(const Problem& problem, const DeviceFacts& facts, core::Choice choice) {
  return workspace_of(decide(problem, facts, choice)).bytes;
}

Plan plan(const Problem& problem, const DeviceFacts& facts, core::Choice choice) {
  const Decision d = decide(problem, facts, choice);
  Plan result = plan_of_build(d.config, d.ctas);
  result.workspace_bytes = workspace_of(d).bytes;
  const std::int64_t blocks = ceil_div(problem.seq_kv, kKeys);
  const std::int64_t most = choice.max_splits > 0 ? choice.max_splits : blocks;
  if (d.parts)
    result.splits = static_cast<int>(
        std::min({most, ceil_div(blocks, std::int64_t{kLeastPart}), std::int64_t{d.ctas}}));
  // Instantiated in sources of their own, so named by hand; tests compare it with the cubins.
  const char* type = is_bytes(problem) ? "__half" : type_name(problem.dtype);
  result.kernel =
      core::concat("prefill::prefill_kernel<", type, ", Grouped", d.by_rows ? "RowByRow" : "", "<",
                   type, ", ", d.tile, ", ", is_bytes(problem) ? "true" : "false", ">>");
  result.note = d.parts ? "parts of keys by the lengths on the device, merged by a second kernel"
                        : "keys in one part";
  return result;
}

// ---- Launch ----

// Of a tile: types, and whether pages are copied row by row.
constexpr std::size_t kTypes = 3;
template <class Of>
using ByBuild = std::array<std::array<std::array<Of, kTypes>, 2>, kGroupedTiles>;

template <int kTile>
std::array<std::array<const void*, kTypes>, 2> entries_of() {
  return {
      {{grouped_entry<__half, kTile, false>(), grouped_entry<__nv_bfloat16, kTile, false>(),
        grouped_entry<__half, kTile, true>()},
       {grouped_row_entry<__half, kTile, false>(), grouped_row_entry<__nv_bfloat16, kTile, false>(),
        grouped_row_entry<__half, kTile, true>()}}};
}
std::size_t type_of(DType dtype) { return dtype == DType::f16 ? 0 : dtype == DType::bf16 ? 1 : 2; }
const void* kernel_of(DType dtype, const Decision& d) {
  static const ByBuild<const void*> table{entries_of<0>(), entries_of<1>()};
  return table[d.tile][d.by_rows][type_of(dtype)];
}
constinit ByBuild<SharedMemoryOptIn> opt_in;

Status ensure_ready(const Problem& problem, const Decision& d, int device) {
  if (Status status = check_tensor_map_driver(kId); !status.ok()) return status;
  return opt_in[d.tile][d.by_rows][type_of(problem.dtype)].ensure(
      kernel_of(problem.dtype, d), d.config.shared_bytes(), device, kId);
}
Status prepare(const Problem& problem, const core::Context& context) {
  return ensure_ready(problem, decide(problem, *context.facts, context.choice),
                      context.facts->index);
}

Params make_params(const Problem& problem, const Tensors& tensors, const Decision& d,
                   const core::Context& context) {
  Params p = packed::sequence_params(problem, tensors, d.config);
  p.group = 1;  // a tile's head is that of K and V
  p.packed.heads = static_cast<std::int32_t>(problem.heads_kv);
  p.schedule.heads = static_cast<std::int32_t>(problem.heads_q);  // of the log-sum-exp
  p.packed.ctas = d.ctas;
  p.grouped.group = static_cast<std::int32_t>(group_of(problem));
  p.grouped.by_group = Divisor::of(p.grouped.group);
  p.grouped.alternate = problem.seq_q * p.grouped.group <= kRows / d.config.warpgroups;
  if (d.by_rows) p.rows = packed::row_facts(problem);
  const Side o = sides_of(problem)[kO];
  p.grouped.o_aligned =
      o.dtype != DType::f32 &&
      core::rows_aligned(o.layout.alignment, o.layout, {o.entries, o.heads, o.rows, o.columns},
                         size_of(o.dtype), 16);
  if (d.parts) {
    const Workspace space = workspace_of(d);
    auto* const bytes = static_cast<unsigned char*>(context.workspace);
    p.grouped.most_parts =
        context.choice.max_splits > 0 ? context.choice.max_splits : std::int32_t{1} << 30;
    p.grouped.partial = reinterpret_cast<float*>(bytes);
    p.grouped.stats = reinterpret_cast<PartStats*>(bytes + space.stats);
    p.grouped.places = reinterpret_cast<PartPlace*>(bytes + space.places);
  }
  return p;
}

Status launch(const Problem& problem, const Tensors& tensors, const core::Context& context) {
  const Decision d = decide(problem, *context.facts, context.choice);
  if (Status status = ensure_ready(problem, d, context.facts->index); !status.ok()) return status;
  const auto sides = sides_of(problem);
  const int rows =
      problem.pages.used() ? page_box(problem.pages.size, d.config.keys) : d.config.keys;
  CUtensorMap k_map, v_map, none{};
  thread_local KeptMap kept_k, kept_v;
  const int columns = d.config.chunk_columns();
  if (!(packed::make_map(kept_k, &k_map, sides, kK, tensors, tensors.k, rows, columns) &&
        packed::make_map(kept_v, &v_map, sides, kV, tensors, tensors.v, rows,
                         d.config.bytes ? d.config.raw_row_bytes() : columns)))
    return tensor_map_refused(kId, "K and V");
  Params params = make_params(problem, tensors, d, context);
  void* arguments[] = {&none, &k_map, &v_map, &none, &params};
  Status status = launch_early(
      launch_config({d.ctas, 1, 1}, d.config.threads(), d.config.shared_bytes(), context),
      kernel_of(problem.dtype, d), arguments, kId);
  if (!status.ok() || !d.parts) return status;
  void* of_join[] = {&params};
  const auto* const join = d.tile == 0 ? reinterpret_cast<const void*>(&join_kernel<64>)
                                       : reinterpret_cast<const void*>(&join_kernel<128>);
  return launch_early(launch_config({most_slots(d.ctas), 4, 1}, kJoinThreads, 0, context), join,
                      of_join, kId);
}

}  // namespace
}  // namespace greenfast::cuda::grouped

namespace greenfast::kernels {
extern const core::Kernel cuda_sm90_grouped;
constinit const core::Kernel cuda_sm90_grouped{.supports = cuda::grouped::supports,
                                               .plan = cuda::grouped::plan,
                                               .workspace = cuda::grouped::workspace,
                                               .prepare = cuda::grouped::prepare,
                                               .launch = cuda::grouped::launch};
}  // namespace greenfast::kernels
