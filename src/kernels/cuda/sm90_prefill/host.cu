// Host side of cuda.sm90.prefill: what it takes, which tile and order it chooses, the tensor maps,
// the launch.
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "core/arithmetic.hpp"
#include "core/text.hpp"
#include "core/variant.hpp"
#include "kernels/cuda/device/batch_parts.hpp"
#include "kernels/cuda/device/launch.hpp"
#include "kernels/cuda/device/tensor_map.hpp"
#include "kernels/cuda/device/tile_order.hpp"
#include "kernels/cuda/sm90_prefill/config.hpp"
#include "kernels/cuda/sm90_prefill/tiling.hpp"

namespace greenfast::cuda::prefill {
namespace {

constexpr const char* kId = "cuda.sm90.prefill";

using core::ceil_div;

Features features_of(const Problem& problem, const Band& band, core::Choice choice) {
  // Outside this range a masked score times the scale could be NaN or the scale underflow.
  const bool plain_scale = problem.scale >= 1e-30f && problem.scale <= 1e30f;
  if (problem.softcap > 0.0f || !plain_scale || problem.out_dtype != problem.dtype ||
      !tma_addressable(problem.o, problem.dtype,
                       entries_for_choice(problem, problem.o, choice.batch_invariant),
                       problem.heads_q, problem.seq_q, false)) {
    return Features::general;
  }
  if (band.below + (problem.seq_q - 1) > 0 || band.keys > kLongRow) return Features::window;
  return band.above < band.keys - 1 ? Features::causal : Features::plain;
}

/// What a launch will do: everything that does not depend on addresses.
struct Decision {
  VisibleKeys keys;
  std::size_t tile;
  std::int32_t tiles;  // of a head
  Config config;
  Dealing dealing;
  bool longest_is_last;
  int ctas;
};

Decision decide(const Problem& problem, const DeviceFacts& facts, core::Choice choice) {
  Decision d;
  d.keys = visible_keys(problem);
  const Features features = features_of(problem, d.keys.band, choice);
  const Tiling work = choose_tile(std::make_index_sequence<kTiles.size()>(), problem, d.keys.band,
                                  features, facts, choice);
  d.tile = work.tile;
  d.tiles = work.tiles;
  d.config = config_of(d.tile, problem.dtype, features);
  const std::int64_t heads = problem.batch * problem.heads_q;
  d.ctas = static_cast<int>(std::min<std::int64_t>(heads * d.tiles, facts.multiprocessors));
  d.longest_is_last = work.last >= work.first;
  d.dealing = deal_tiles(
      {.tiles = d.tiles,
       .even = work.even(),
       .longest_is_last = d.longest_is_last,
       .heads = heads,
       .ctas = d.ctas,
       .kv_bytes = 4 * problem.batch * problem.heads_kv * d.keys.band.keys * problem.head_dim,
       .l2_bytes = facts.l2_bytes,
       .head_dim = problem.head_dim},
      blocks_of_tile(d.config, d.keys.band, problem.seq_q));
  return d;
}

bool supports(const Problem& problem, const DeviceFacts& facts, core::Choice choice,
              std::string* why) {
  using core::refuse;
  if (!runs_sm90a(facts, why)) return false;
  if (!inputs_addressable(problem, choice.batch_invariant, why)) return false;
  if (query_tiles_of_an_entry(problem) > kMostTilesOf128) {
    return refuse(why, query_tiles_of_an_entry(problem),
                  " tiles of 128 queries in a batch entry: at most 2^30 - 1; split the heads");
  }
  if (facts.shared_per_block < kTiles.back().shared_bytes()) {
    return refuse(why, facts.shared_per_block, " bytes of shared memory for a block: needs ",
                  kTiles.back().shared_bytes());
  }
  if (why != nullptr) *why = "fp16 or bf16 with strides that TMA takes: TMA, wgmma, one CTA per SM";
  return true;
}

Plan plan(const Problem& problem, const DeviceFacts& facts, core::Choice choice) {
  const Decision d = decide(problem, facts, choice);
  Plan result = plan_of_build(d.config, d.ctas);
  // Instantiated in sources of their own, so named by hand; tests compare it with the cubins.
  const char* type = type_name(problem.dtype);
  result.kernel = core::concat("prefill::prefill_kernel<", type, ", Compiled<", type, ", ", d.tile,
                               ", ", static_cast<int>(d.config.features), ">>");
  result.note = d.dealing.note;
  return result;
}

// ---- Launch ----

template <class T, std::size_t... kTile>
const void* find_entry(std::index_sequence<kTile...>, std::size_t tile, int features) {
  static const std::array<Entries, sizeof...(kTile)> table{
      entries<T, static_cast<int>(kTile)>()...};
  return table[tile][static_cast<std::size_t>(features)];
}
const void* kernel_of(DType dtype, std::size_t tile, Features features) {
  constexpr auto kAll = std::make_index_sequence<kTiles.size()>();
  const int index = static_cast<int>(features);
  return dtype == DType::f16 ? find_entry<__half>(kAll, tile, index)
                             : find_entry<__nv_bfloat16>(kAll, tile, index);
}

constinit std::array<std::array<std::array<SharedMemoryOptIn, kFeatures>, kTiles.size()>, 2> opt_in;

Status ensure_ready(const Problem& problem, const Decision& d, int device) {
  if (Status status = check_tensor_map_driver(kId); !status.ok()) return status;
  SharedMemoryOptIn& state = opt_in[problem.dtype == DType::f16 ? 0 : 1][d.tile]
                                   [static_cast<std::size_t>(d.config.features)];
  return state.ensure(kernel_of(problem.dtype, d.tile, d.config.features), d.config.shared_bytes(),
                      device, kId);
}

Status prepare(const Problem& problem, const core::Context& context) {
  return ensure_ready(problem, decide(problem, *context.facts, context.choice),
                      context.facts->index);
}

Params make_params(const Problem& problem, const Tensors& tensors, const Decision& d) {
  Params p;
  p.band = d.keys.band;
  p.seq_q = static_cast<std::int32_t>(problem.seq_q);
  p.key_blocks = static_cast<std::int32_t>(ceil_div(p.band.keys, d.config.keys));
  p.group = static_cast<std::int32_t>(problem.heads_q / problem.heads_kv);
  p.k_last_head = last_coordinate(problem.heads_kv, problem.k.stride[1]);
  p.k_last_batch = last_coordinate(problem.batch, problem.k.stride[0]);
  p.v_last_head = last_coordinate(problem.heads_kv, problem.v.stride[1]);
  p.v_last_batch = last_coordinate(problem.batch, problem.v.stride[0]);
  p.schedule = make_schedule(d.dealing.order, d.tiles, static_cast<std::int32_t>(problem.heads_q),
                             static_cast<std::int32_t>(problem.batch * problem.heads_q), d.ctas,
                             d.dealing.paired_rounds, d.longest_is_last);
  // H200, 2026-11-21: released at entry, small problems at D 64 are 1 to 4% faster than after the
  // last load, large ones 1 to 2% slower, and 2x8x2048x128 causal 15% slower (32.6 to 38.6 us, not
  // understood).
  p.release_at_entry =
      d.config.head_dim <= 64 && problem.batch * problem.heads_q * d.tiles <= 4 * d.ctas;
  p.scale_log2 = problem.scale * core::kLog2E;
  p.lse = problem.lse ? tensors.lse : nullptr;
  if (problem.softcap > 0.0f) {
    const core::ScoreTransform transform = core::score_transform(problem);
    p.set_softcap(transform.scale, transform.cap);
  }
  p.o = tensors.o;
  p.o_batch = problem.o.stride[0];
  p.o_head = problem.o.stride[1];
  p.o_row = problem.o.stride[2];
  p.head_dim = static_cast<std::int32_t>(problem.head_dim);
  p.out_dtype = problem.out_dtype;
  const auto from_key = [&](const void* data, const Layout& layout) {
    return static_cast<const char*>(data) + 2 * d.keys.first * layout.stride[2];
  };
  p.q = tensors.q;
  p.k = from_key(tensors.k, problem.k);
  p.v = from_key(tensors.v, problem.v);
  p.q_batch = problem.q.stride[0], p.q_head = problem.q.stride[1], p.q_row = problem.q.stride[2];
  p.k_batch = problem.k.stride[0], p.k_head = problem.k.stride[1], p.k_row = problem.k.stride[2];
  p.v_batch = problem.v.stride[0], p.v_head = problem.v.stride[1], p.v_row = problem.v.stride[2];
  return p;
}

Status launch_part(const Problem& problem, const Tensors& tensors, const core::Context& context) {
  const Decision d = decide(problem, *context.facts, context.choice);
  if (Status status = ensure_ready(problem, d, context.facts->index); !status.ok()) return status;

  const auto shape_of = [&](const Layout& layout, std::int64_t heads, std::int64_t rows, int box) {
    return map_of({layout, problem.batch, heads, rows, problem.head_dim, problem.dtype}, 64, box);
  };
  const auto queries_of = [&](const Layout& layout, int box) {
    return shape_of(layout, problem.heads_q, problem.seq_q, box);
  };
  const auto keys_of = [&](const Layout& layout) {
    return shape_of(layout, problem.heads_kv, d.keys.band.keys, d.config.keys);
  };
  Params params = make_params(problem, tensors, d);
  CUtensorMap q_map, k_map, v_map, o_map{};
  thread_local KeptMap kept_q, kept_k, kept_v, kept_o;
  const bool encoded = kept_q.make(&q_map, queries_of(problem.q, 64), params.q) &&
                       kept_k.make(&k_map, keys_of(problem.k), params.k) &&
                       kept_v.make(&v_map, keys_of(problem.v), params.v) &&
                       (d.config.features == Features::general ||
                        kept_o.make(&o_map, queries_of(problem.o, 16), params.o));
  if (!encoded) return tensor_map_refused(kId, "Q, K, V and O");
  void* arguments[] = {&q_map, &k_map, &v_map, &o_map, &params};
  return launch_early(
      launch_config({d.ctas, 1, 1}, d.config.threads(), d.config.shared_bytes(), context),
      kernel_of(problem.dtype, d.tile, d.config.features), arguments, kId);
}

Status launch(const Problem& problem, const Tensors& tensors, const core::Context& context) {
  return in_batch_parts(
      problem, tensors, kMostTilesOf128 / query_tiles_of_an_entry(problem),
      [&](const Problem& part, const Tensors& there) { return launch_part(part, there, context); });
}

}  // namespace
}  // namespace greenfast::cuda::prefill

namespace greenfast::kernels {
extern const core::Kernel cuda_sm90_prefill;
constinit const core::Kernel cuda_sm90_prefill{.supports = cuda::prefill::supports,
                                               .plan = cuda::prefill::plan,
                                               .prepare = cuda::prefill::prepare,
                                               .launch = cuda::prefill::launch};
}  // namespace greenfast::kernels
