// Host side of cuda.sm90.packed, cuda.sm90.prefill's loop for sequences of different lengths, and of
// cuda.sm90.fp8_serving, the same on e4m3: what they take, which tile and order they choose, the
// tensor maps, the launch. Reads no array of the call, so a captured graph stays right when the
// lengths on the device change.
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "core/arithmetic.hpp"
#include "core/check.hpp"
#include "core/text.hpp"
#include "core/variant.hpp"
#include "core/window.hpp"
#include "kernels/cuda/device/batch_parts.hpp"
#include "kernels/cuda/device/launch.hpp"
#include "kernels/cuda/device/tile_order.hpp"
#include "kernels/cuda/sm90_prefill/config.hpp"
#include "kernels/cuda/sm90_prefill/sides.hpp"
#include "kernels/cuda/sm90_prefill/tiling.hpp"

namespace greenfast::cuda::packed {
namespace {

using namespace prefill;
using core::ceil_div;
using prefill::Features;

bool is_bytes(const Problem& problem) { return problem.dtype == DType::e4m3; }
const char* id_of(const Problem& problem) {
  return is_bytes(problem) ? "cuda.sm90.fp8_serving" : "cuda.sm90.packed";
}

// Of kTiles: D 64 tall, D 64, D 128. Split tiles have no packed build, and fp16 no tall one, which
// would spill.
using Tiles = std::index_sequence<0, 1, 4>;
constexpr std::size_t kTall = 0, kLow = 1, kWide = 4;

MaskArray mask_of(const Problem& problem) {
  switch (problem.array_mask.kind) {
    case MaskKind::none:
      return MaskArray::none;
    case MaskKind::boolean:
      return MaskArray::boolean;
    case MaskKind::additive:
      return MaskArray::bias;
  }
  return MaskArray::none;
}

/// What only the builds for serving take.
bool needs_serving(const Problem& problem) {
  return problem.pages.used() || problem.sinks || problem.chunk > 0 || problem.sequences.kv_start ||
         value_dim(problem) != problem.head_dim || problem.head_dim > 128;
}
std::int64_t rows_of(const Problem& problem) {
  return problem.sequences.packed_q ? problem.sequences.total_q : problem.batch * problem.seq_q;
}
/// Windows that the tall build for serving does faster than those for packed sequences, at D 64: 1.19
/// times with 128 keys. (At D 128 it is up to 1.17 times as slow.) Where such tiles are few they take
/// longer, by 6 to 9% with 16 sequences of 350 queries and 12 heads; batch_invariant may not ask how
/// many there are. (H200, 2026-11-23)
bool wants_tall_window(const Problem& problem, const DeviceFacts& facts, core::Choice choice) {
  if (!core::window_within(problem.mask, 2048) || larger_dim(problem) > 64) return false;
  return choice.batch_invariant || rows_of(problem) * problem.heads_q >=
                                       4 * kTallServingRows * std::int64_t{facts.multiprocessors};
}

/// The first of some tiles that holds a problem's head dims; their number where none does.
template <std::size_t kCount>
std::size_t first_that_holds(const std::array<Config, kCount>& tiles, const Problem& problem,
                             std::size_t tile = 0) {
  while (tile < kCount &&
         (tiles[tile].head_dim < problem.head_dim || tiles[tile].values() < value_dim(problem)))
    ++tile;
  return tile;
}

/// Whether low tiles, of 128 rows, fill the device's rounds so much better than tall ones, of 192, that they
/// are faster, though a row takes `percent` of the time in them.
bool low_fills_better(const Problem& problem, const DeviceFacts& facts, std::int64_t percent) {
  constexpr std::int64_t kLow = kServingTiles[0].rows(), kTall = kTallServingRows;
  const std::int64_t rows = rows_of(problem) / problem.batch;  // of a sequence, in the mean
  const auto rounds = [&](std::int64_t tile) {
    return ceil_div(ceil_div(rows, tile) * problem.batch * problem.heads_q,
                    std::int64_t{facts.multiprocessors});
  };
  return percent * kLow * rounds(kLow) < 100 * kTall * rounds(kTall);
}

/// Whether e4m3 takes tiles of 128 rows and blocks of 128 keys: out of pages, of which a copy takes 64 keys
/// at most (8,32/8,256/8192,128 in pages of 64 139 us, by tall ones 155); under chunks that are no taller
/// than a tall tile; and where fewer rounds of fewer rows make up for a row's taking 1.15 times as long
/// (2,8,2048,128 48 and 63 us, 8,16,2048,128 378 and 347; H200, 2026-11-27). batch_invariant may not ask
/// how many tiles there are.
bool wants_low_bytes(const Problem& problem, const DeviceFacts& facts, core::Choice choice) {
  constexpr std::int64_t kTall = kByteTiles[kLowByteTiles].rows();
  static_assert(kByteTiles[0].rows() == kServingTiles[0].rows() && kTall == kTallServingRows);
  if (problem.pages.used() || (problem.chunk > 0 && problem.chunk < kTall)) return true;
  if (choice.batch_invariant || core::window_within(problem.mask, 2048)) return false;
  return low_fills_better(problem, facts, 115);
}

/// The host knows that all sequences are as long as the longest: their order may be the host's.
bool equal_lengths(const Problem& problem) {
  const Sequences& s = problem.sequences;
  return !s.used_q && !s.used_kv && !s.kv_start &&
         (!s.packed_q || s.total_q == problem.batch * problem.seq_q) &&
         (!s.packed_kv || s.total_kv == problem.batch * problem.seq_kv);
}

/// Whether a problem that could have tall tiles of 192 beside 128 columns has low ones: where every tile has
/// all keys and the host knows how many there are (1,32,4096,192/128 463 and 502 us, 8,16,4096,192/128 1960
/// and 1921; causal 1,128,4096,192/128 1022 and 1017, 2,16,2048,192/128 84 and 83; H200, 2026-11-28).
bool wants_low_wide(const Problem& problem, const DeviceFacts& facts, core::Choice choice) {
  const bool even = problem.mask.left < 0 && problem.mask.right < 0 && problem.chunk == 0;
  return even && !choice.batch_invariant && equal_lengths(problem) &&
         low_fills_better(problem, facts, 104);
}

/// Which builds a problem has, each with tiles of its own. Of what two of them are for, the first has it, and refuses
/// what only the other takes.
enum class Build { bytes, byte_rows, masked, capped, rows, serving, packed };
Build build_of(const Problem& problem, const DeviceFacts& facts, core::Choice choice) {
  // Pages that no box of kLeastBox rows divides are copied row by row.
  const bool by_rows = has_rows_apart(problem);
  if (is_bytes(problem))
    return by_rows && !(problem.softcap > 0.0f) ? Build::byte_rows : Build::bytes;
  if (mask_of(problem) != MaskArray::none) return Build::masked;
  if (problem.softcap > 0.0f) return Build::capped;
  if (by_rows) return Build::rows;
  return needs_serving(problem) || wants_tall_window(problem, facts, choice) ? Build::serving
                                                                             : Build::packed;
}

/// The first of some tiles that holds a problem's head dims, or, where that is taller than its chunks, the last, which is
/// the widest and the lowest.
template <std::size_t kCount>
std::size_t first_within_chunks(const std::array<Config, kCount>& tiles, const Problem& problem,
                                std::size_t first = 0) {
  const std::size_t tile = first_that_holds(tiles, problem, first);
  const bool too_tall = problem.chunk > 0 && problem.chunk < tiles[tile].rows();
  return too_tall ? kCount - 1 : tile;
}

/// The tile of a build that a problem takes; of Build::packed not here.
std::size_t serving_tile(Build build, const Problem& problem, const DeviceFacts& facts,
                         core::Choice choice) {
  switch (build) {
    case Build::bytes:
      return first_within_chunks(kByteTiles, problem,
                                 wants_low_bytes(problem, facts, choice) ? 0 : kLowByteTiles);
    case Build::byte_rows:
      return first_within_chunks(kByteRowTiles, problem);
    case Build::masked:
      return first_that_holds(kMaskTiles, problem);
    case Build::capped:
      return first_that_holds(kCappedTiles, problem);
    case Build::rows:
      return first_within_chunks(kRowTiles, problem);
    case Build::serving:
    case Build::packed:
      break;
  }
  if (!problem.pages.used() && (problem.chunk == 0 || problem.chunk >= kTallServingRows)) {
    const std::size_t tall = first_that_holds(kServingTiles, problem, kTallServing64);
    const bool low = tall == kTallServing192 && wants_low_wide(problem, facts, choice);
    if (tall < kServingTiles.size() && !low) return tall;
  }
  return first_that_holds(kServingTiles, problem);
}

Config config_of_build(Build build, const Problem& problem, std::size_t tile, Features features) {
  switch (build) {
    case Build::bytes:
      return byte_config_of(tile, problem.softcap > 0.0f);
    case Build::byte_rows:
      return byte_row_config_of(tile);
    case Build::masked:
      return mask_config_of(tile, mask_of(problem));
    case Build::capped:
      return capped_config_of(tile);
    case Build::rows:
      return row_config_of(tile);
    case Build::serving:
      return serving_config_of(tile);
    case Build::packed:
      break;
  }
  return packed_config_of(tile, problem.dtype, features);
}

/// Of e4m3: whether O goes to memory in 16-byte pieces, by TMA where it has a strip.
bool o_is_aligned(const Problem& problem, core::Choice choice) {
  return problem.out_dtype != DType::f32 && is_addressable(sides_of(problem)[kO], choice, nullptr);
}

/// By the mask and the maxima; with batch_invariant by nothing that a neighbour could change, so
/// that it is the build that takes all of them.
Features features_of(const Problem& problem, core::Choice choice) {
  const Mask& mask = problem.mask;
  if (choice.batch_invariant || mask.left >= 0 || problem.seq_kv > kLongRow)
    return Features::window;
  return mask.right >= 0 ? Features::causal : Features::plain;
}

/// Tiles that one launch counts.
constexpr std::int64_t kMostTiles = std::int64_t{1} << 30;
/// A dense batch of more tiles, or more rows than ragged maps reach, goes in parts of so many entries, so
/// that batch_invariant finds the same kernel whatever the batch. One of sequences is refused.
std::int64_t entries_of_a_launch(const Problem& problem) {
  if (!core::is_dense(problem)) return problem.batch;
  std::int64_t most = kMostTiles / query_tiles_of_an_entry(problem);
  for (const Side& side : sides_of(problem)) {
    if (side.layout.stride[2] == 0) continue;  // nothing that TMA takes
    const std::int64_t rows = ragged_rows(side.layout, 2, side.rows).rows_of_entry;
    if (rows > 0) most = std::min(most, (kRaggedMostRows - side.rows) / rows + 1);
  }
  return std::clamp<std::int64_t>(most, 1, std::max<std::int64_t>(problem.batch, 1));
}

bool supports(const Problem& problem, const DeviceFacts& facts, core::Choice choice,
              std::string* why) {
  using core::refuse;
  if (!runs_sm90a(facts, why)) return false;
  const std::int64_t dims = larger_dim(problem);
  // The tensor cores cut a sum of e4m3 products off 13 bits below its largest term: of 256 of them that
  // add up to 26 nats the log-sum-exp was 0.085 off (H200, 2026-11-27), and 0.06 are allowed.
  // At D 192 the worst of 30,000 rows is at 0.066, at 160 of 200,000 at 0.055 (a host model, which has
  // the GPU's 0.056 for 1,452 rows of D 192).
  if (is_bytes(problem) && problem.lse && problem.head_dim > 160)
    return core::refuse(why, "a log-sum-exp with head dim ", problem.head_dim,
                        "; gives one up to 160, above which scores of e4m3 are too coarse for it");
  constexpr std::int64_t kLargest = 256;
  if (dims > kLargest) return refuse(why, "head dim ", dims, "; takes up to ", kLargest);
  if (const Build build = build_of(problem, facts, choice); build != Build::packed) {
    const std::size_t number = serving_tile(build, problem, facts, choice);
    if (build == Build::masked) {
      if (problem.softcap > 0.0f) return refuse(why, "an array mask with a softcap");
      if (number == kMaskTiles.size())
        return refuse(why, "an array mask with head dim ", dims, "; takes up to ",
                      kMaskTiles.back().head_dim);
      if (mask_of(problem) == MaskArray::bias && problem.array_mask.dtype != problem.dtype)
        return refuse(why, "an array mask of ", name_of(problem.array_mask.dtype),
                      " with inputs of ", name_of(problem.dtype),
                      "; takes booleans and the type of the inputs");
      if (problem.seq_kv > std::int64_t{1} << 29)
        return refuse(why, "an array mask for ", problem.seq_kv, " keys; takes up to 2^29");
      if (problem.array_mask.stride[3] != 1)
        return refuse(why, "an array mask with one element for all keys; takes one for each");
    }
    const Config tile = config_of_build(build, problem, number, Features::window);
    if (problem.chunk > 0 && problem.chunk < tile.rows()) {
      return refuse(why, "chunks of ", problem.chunk, " keys; takes ", tile.rows(), " and more");
    }
    if (build == Build::rows || build == Build::byte_rows) {
      if (!counts_pieces(problem, why)) return false;
    } else if (problem.pages.used() && page_box(problem.pages.size, tile.keys) < kLeastBox) {
      return refuse(why, "pages of ", problem.pages.size, " keys",
                    build == Build::masked   ? " with an array mask"
                    : problem.softcap > 0.0f ? " with a softcap"
                                             : "",
                    "; takes multiples of ", kLeastBox);
    }
    if (facts.shared_per_block < tile.shared_bytes()) {
      return refuse(why, facts.shared_per_block, " bytes of shared memory for a block: needs ",
                    tile.shared_bytes());
    }
  }
  if (!is_bytes(problem) && problem.out_dtype != problem.dtype) {
    return refuse(why, "an output of ", name_of(problem.out_dtype), " from inputs of ",
                  name_of(problem.dtype), "; writes the type of the inputs");
  }
  // Outside this range a masked score times the scale could be NaN or the scale underflow.
  if (!is_bytes(problem) && !(problem.scale >= 1e-30f && problem.scale <= 1e30f))
    return refuse(why, "a scale of ", problem.scale, "; takes 1e-30 to 1e30");
  Problem part = problem;
  part.batch = entries_of_a_launch(problem);
  const auto sides = sides_of(part);
  for (std::size_t i = 0; i < sides.size(); ++i) {
    if ((i != kO || !is_bytes(problem)) && !is_addressable(sides[i], choice, why)) return false;
  }
  if (part.batch * query_tiles_of_an_entry(problem) > kMostTiles) {
    return refuse(why, problem.batch, " sequences of up to ", problem.seq_q, " queries of ",
                  problem.heads_q, " heads are more than 2^30 tiles: split the batch");
  }
  if (facts.shared_per_block < kTiles[kWide].shared_bytes()) {
    return refuse(why, facts.shared_per_block, " bytes of shared memory for a block: needs ",
                  kTiles[kWide].shared_bytes());
  }
  if (why != nullptr)
    *why =
        is_bytes(problem)
            ? "e4m3 with 16-byte rows, sequences of any lengths: wgmma on e4m3 for Q K, V as fp16"
            : "sequences of any lengths with strides that TMA takes: TMA, wgmma, one CTA per SM";
  return true;
}

/// What a launch will do: everything that does not depend on addresses.
struct Decision {
  Build build;
  std::size_t tile;  // of the build's: kTiles, kServingTiles, kMaskTiles, ...
  Features features;
  Config config;
  bool by_length;
  std::int32_t tiles;  // of a head of the longest sequence
  Dealing dealing;     // not by_length
  bool longest_is_last;
  int ctas;
};

Tiling tiling_for_serving(Build build, const Problem& problem, const Band& band,
                          const DeviceFacts& facts, core::Choice choice) {
  constexpr Config kTallTile = kServingTiles[kTallServing64];
  const std::size_t tile = serving_tile(build, problem, facts, choice);
  const auto seq_q = static_cast<std::int32_t>(problem.seq_q);
  // Others are as tall as this one, or as the wide one.
  const bool tall =
      config_of_build(build, problem, tile, Features::window).rows() == kTallTile.rows();
  Tiling work = tall ? tiling_by<kTallTile.rows(), kTallTile.keys>(band, seq_q)
                     : tiling_of<kWide>(band, seq_q);
  work.tile = tile;
  return work;
}

Decision decide(const Problem& problem, const DeviceFacts& facts, core::Choice choice) {
  Decision d;
  d.build = build_of(problem, facts, choice);
  const bool serving = d.build != Build::packed;
  d.features = serving ? Features::window : features_of(problem, choice);
  d.by_length = !equal_lengths(problem);
  const Band band = visible_keys(problem).band;
  Tiling work = serving ? tiling_for_serving(d.build, problem, band, facts, choice)
                        : choose_tile(Tiles(), problem, band, d.features, facts, choice);
  const std::int64_t heads = problem.batch * problem.heads_q;
  if (!serving && d.by_length && kTiles[work.tile].head_dim == 64 &&
      d.features < Features::window) {
    // The maxima say little of the sequences; their mean says whether tall tiles fill the machine.
    const std::int64_t rows = rows_of(problem);
    const bool tall = problem.dtype != DType::f16 && rows >= 512 * problem.batch &&
                      rows * problem.heads_q >= 4 * 192 * std::int64_t{facts.multiprocessors};
    const auto seq_q = static_cast<std::int32_t>(problem.seq_q);
    work = tall ? tiling_of<kTall>(band, seq_q) : tiling_of<kLow>(band, seq_q);
  } else if (!serving && work.tile == kTall && problem.dtype == DType::f16) {
    work = tiling_of<kLow>(band, static_cast<std::int32_t>(problem.seq_q));
  }
  d.tile = work.tile;
  d.tiles = work.tiles;
  d.config = config_of_build(d.build, problem, d.tile, d.features);
  d.ctas = static_cast<int>(std::min<std::int64_t>(heads * d.tiles, facts.multiprocessors));
  d.longest_is_last = work.last >= work.first;
  d.dealing = deal_tiles({.tiles = d.tiles,
                          .even = work.even(),
                          .longest_is_last = d.longest_is_last,
                          .heads = heads,
                          .ctas = d.ctas,
                          .kv_bytes = (d.config.bytes ? 2 : 4) * problem.batch * problem.heads_kv *
                                      band.keys * problem.head_dim,
                          .l2_bytes = facts.l2_bytes,
                          .head_dim = problem.head_dim},
                         blocks_of_tile(d.config, band, problem.seq_q));
  return d;
}

Plan plan(const Problem& problem, const DeviceFacts& facts, core::Choice choice) {
  const Decision d = decide(problem, facts, choice);
  Plan result = plan_of_build(d.config, d.ctas);
  // Instantiated in sources of their own, so named by hand; tests compare it with the cubins.
  const char* type = is_bytes(problem) ? "__half" : type_name(problem.dtype);
  const auto build = [&]() -> std::string {
    switch (d.build) {
      case Build::bytes:
        return core::concat("Bytes<", d.tile, ", ", d.config.general() ? "true" : "false");
      case Build::byte_rows:
        return core::concat("BytesRowByRow<", d.tile);
      case Build::masked:
        return core::concat("Masked<", type, ", ", d.tile, ", ", static_cast<int>(d.config.mask));
      case Build::capped:
        return core::concat("Capped<", type, ", ", d.tile);
      case Build::rows:
        return core::concat("RowByRow<", type, ", ", d.tile);
      case Build::serving:
        return core::concat("Serving<", type, ", ", d.tile);
      case Build::packed:
        break;
    }
    return core::concat("Packed<", type, ", ", d.tile, ", ", static_cast<int>(d.features));
  }();
  result.kernel = core::concat("prefill::prefill_kernel<", type, ", ", build, ">>");
  result.note = d.by_length ? problem.batch <= kMostSorted
                                  ? "tiles by the lengths on the device, the longest sequence first"
                                  : "tiles by the lengths on the device, as the sequences come"
                            : "tiles as of a dense batch: all sequences are as long as the longest";
  return result;
}

// ---- Launch ----

template <class T>
Entries tall_entries() {
  if constexpr (std::is_same_v<T, __half>)
    return {};
  else
    return packed_entries<T, kTall>();
}
template <class T>
const void* entry_of(std::size_t tile, Features features) {
  const auto index = static_cast<std::size_t>(features);
  static const std::array<Entries, 3> table{tall_entries<T>(), packed_entries<T, kLow>(),
                                            packed_entries<T, 4>()};
  return table[tile == 4 ? 2 : tile][index];
}
template <class T>
const void* entry_for_serving(std::size_t tile) {
  static const std::array<const void*, kServingTiles.size()> table{
      serving_entry<T, 0>(), serving_entry<T, 1>(), serving_entry<T, 2>(), serving_entry<T, 3>(),
      serving_entry<T, 4>(), serving_entry<T, 5>(), serving_entry<T, 6>()};
  return table[tile];
}
template <class T>
const void* entry_for_rows(std::size_t tile) {
  static const std::array<const void*, kRowTiles.size()> table{row_entry<T, 0>(), row_entry<T, 1>(),
                                                               row_entry<T, 2>()};
  return table[tile];
}
template <class T>
const void* entry_for_capped(std::size_t tile) {
  static const std::array<const void*, kCappedTiles.size()> table{capped_entry<T, 0>(),
                                                                  capped_entry<T, 1>()};
  return table[tile];
}
template <class T>
const void* entry_for_mask(std::size_t tile, MaskArray mask) {
  static const std::array<std::array<const void*, 2>, kMaskTiles.size()> table{
      {{mask_entry<T, 0, MaskArray::boolean>(), mask_entry<T, 0, MaskArray::bias>()},
       {mask_entry<T, 1, MaskArray::boolean>(), mask_entry<T, 1, MaskArray::bias>()}}};
  return table[tile][mask == MaskArray::bias];
}
const void* entry_for_bytes(std::size_t tile, bool capped) {
  static const std::array<std::array<const void*, 2>, kByteTiles.size()> table{
      byte_entries<0>(), byte_entries<1>(), byte_entries<2>(),
      byte_entries<3>(), byte_entries<4>(), byte_entries<5>()};
  return table[tile][capped];
}
const void* entry_for_byte_rows(std::size_t tile) {
  static const std::array<const void*, kByteRowTiles.size()> table{
      byte_row_entry<0>(), byte_row_entry<1>(), byte_row_entry<2>()};
  return table[tile];
}
template <class T>
const void* kernel_of(const Decision& d) {
  switch (d.build) {
    case Build::bytes:
      return entry_for_bytes(d.tile, d.config.general());
    case Build::byte_rows:
      return entry_for_byte_rows(d.tile);
    case Build::masked:
      return entry_for_mask<T>(d.tile, d.config.mask);
    case Build::capped:
      return entry_for_capped<T>(d.tile);
    case Build::rows:
      return entry_for_rows<T>(d.tile);
    case Build::serving:
      return entry_for_serving<T>(d.tile);
    case Build::packed:
      break;
  }
  return entry_of<T>(d.tile, d.features);
}
const void* kernel_of(DType dtype, const Decision& d) {
  return dtype == DType::f16 ? kernel_of<__half>(d) : kernel_of<__nv_bfloat16>(d);
}

using OptIns = std::array<SharedMemoryOptIn, kFeatures>;
constinit std::array<std::array<OptIns, kTiles.size()>, 2> opt_in;
constinit std::array<std::array<SharedMemoryOptIn, kServingTiles.size()>, 2> serving_opt_in;
constinit std::array<std::array<SharedMemoryOptIn, kCappedTiles.size()>, 2> capped_opt_in;
constinit std::array<std::array<SharedMemoryOptIn, kRowTiles.size()>, 2> row_opt_in;
constinit std::array<std::array<std::array<SharedMemoryOptIn, 2>, kMaskTiles.size()>, 2>
    mask_opt_in;
constinit std::array<std::array<SharedMemoryOptIn, 2>, kByteTiles.size()> byte_opt_in;
constinit std::array<SharedMemoryOptIn, kByteRowTiles.size()> byte_row_opt_in;

SharedMemoryOptIn& opt_in_of(DType dtype, const Decision& d) {
  const std::size_t type = dtype == DType::f16 ? 0 : 1;
  switch (d.build) {
    case Build::bytes:
      return byte_opt_in[d.tile][d.config.general()];
    case Build::byte_rows:
      return byte_row_opt_in[d.tile];
    case Build::masked:
      return mask_opt_in[type][d.tile][d.config.mask == MaskArray::bias];
    case Build::capped:
      return capped_opt_in[type][d.tile];
    case Build::rows:
      return row_opt_in[type][d.tile];
    case Build::serving:
      return serving_opt_in[type][d.tile];
    case Build::packed:
      break;
  }
  return opt_in[type][d.tile][static_cast<std::size_t>(d.features)];
}

Status ensure_ready(const Problem& problem, const Decision& d, int device) {
  if (Status status = check_tensor_map_driver(id_of(problem)); !status.ok()) return status;
  return opt_in_of(problem.dtype, d)
      .ensure(kernel_of(problem.dtype, d), d.config.shared_bytes(), device, id_of(problem));
}

Status prepare(const Problem& problem, const core::Context& context) {
  return ensure_ready(problem, decide(problem, *context.facts, context.choice),
                      context.facts->index);
}

Params make_params(const Problem& problem, const Tensors& tensors, const Decision& d,
                   core::Choice choice) {
  Params p = sequence_params(problem, tensors, d.config);
  const auto heads = static_cast<std::int32_t>(problem.heads_q);
  p.group = static_cast<std::int32_t>(problem.heads_q / problem.heads_kv);
  if (d.by_length) {
    p.schedule.heads = heads;
  } else {
    p.schedule = make_schedule(d.dealing.order, d.tiles, heads,
                               static_cast<std::int32_t>(problem.batch * problem.heads_q), d.ctas,
                               d.dealing.paired_rounds, d.longest_is_last);
  }
  // As cuda.sm90.prefill does, where the host knows how many tiles there are.
  p.release_at_entry = !d.by_length && d.config.head_dim <= 64 &&
                       problem.batch * problem.heads_q * d.tiles <= 4 * d.ctas;
  p.packed.heads = heads;
  p.packed.ctas = d.ctas;
  p.packed.by_length = d.by_length;
  p.packed.pairs = d.features != Features::plain;
  p.packed.sorted = problem.batch <= kMostSorted;
  if (d.config.bytes) {
    p.bytes.o_aligned = o_is_aligned(problem, choice);
    if (problem.softcap > 0.0f)
      p.set_softcap(2.0f / problem.softcap, problem.softcap * core::kLog2E);
  } else if (d.config.general()) {
    const core::ScoreTransform transform = core::score_transform(problem);
    p.set_softcap(transform.scale, transform.cap);
  }
  if (d.config.has_mask()) {
    const auto& stride = problem.array_mask.stride;
    const std::int64_t last = (problem.batch - 1) * stride[0] + (problem.heads_q - 1) * stride[1] +
                              (problem.seq_q - 1) * stride[2] + problem.seq_kv - 1;
    const std::int64_t bytes = d.config.mask == MaskArray::bias ? 2 : 1;
    p.mask.data = tensors.mask;
    p.mask.end = static_cast<const std::uint8_t*>(tensors.mask) + (last + 1) * bytes;
    p.mask.batch = stride[0], p.mask.head = stride[1], p.mask.row = stride[2];
    p.mask.scale = problem.scale;
    p.mask.rows = static_cast<std::int32_t>(problem.seq_q);
    p.mask.last_head = last_coordinate(problem.heads_q, stride[1]);
    p.mask.last_batch = last_coordinate(problem.batch, stride[0]);
  }
  if (d.build == Build::rows || d.build == Build::byte_rows) p.rows = row_facts(problem);
  return p;
}

/// The map of a mask by array, where TMA can address it and it has more than one row for all.
bool map_mask(const Problem& problem, const void* data, const Config& config, CUtensorMap* map) {
  const bool aligned = reinterpret_cast<std::uintptr_t>(data) % kTmaAlignment == 0;
  const Layout layout{problem.array_mask.stride, aligned ? static_cast<int>(kTmaAlignment) : 1};
  // Booleans are bytes, as e4m3 is.
  const DType element = config.mask == MaskArray::bias ? problem.dtype : DType::e4m3;
  if (layout.stride[2] == 0 ||
      !tma_addressable(layout, element, problem.batch, problem.heads_q, problem.seq_q, true))
    return false;
  thread_local KeptMap kept;
  return kept.make(
      map,
      map_of({layout, problem.batch, problem.heads_q, problem.seq_q, problem.seq_kv, element},
             config.keys, config.rows()),
      data);
}

Status launch_part(const Problem& problem, const Tensors& tensors, const core::Context& context) {
  const Decision d = decide(problem, *context.facts, context.choice);
  if (Status status = ensure_ready(problem, d, context.facts->index); !status.ok()) return status;

  const auto sides = sides_of(problem);
  const auto make = [&](KeptMap& kept, CUtensorMap* map, std::size_t i, const void* data, int rows,
                        int columns) {
    return make_map(kept, map, sides, i, tensors, data, rows, columns);
  };
  CUtensorMap q_map, k_map, v_map, o_map{};
  const int key_rows =
      problem.pages.used() ? page_box(problem.pages.size, d.config.keys) : d.config.keys;
  thread_local KeptMap kept_q, kept_k, kept_v, kept_o;
  const int columns = d.config.chunk_columns();
  const int columns_of_v = d.config.bytes ? d.config.raw_row_bytes() : columns;
  Params params = make_params(problem, tensors, d, context.choice);
  const bool maps_o = !d.config.bytes || (params.bytes.o_aligned && d.config.o_has_strip());
  if (!(make(kept_q, &q_map, kQ, tensors.q, 64, columns) &&
        make(kept_k, &k_map, kK, tensors.k, key_rows, columns) &&
        make(kept_v, &v_map, kV, tensors.v, key_rows, columns_of_v) &&
        (!maps_o || make(kept_o, &o_map, kO, tensors.o, 16, 64)))) {
    return tensor_map_refused(id_of(problem), "Q, K, V and O");
  }
  if (d.config.has_mask()) {
    CUtensorMap map{};
    static_assert(sizeof(map) == sizeof(params.mask.map));
    params.mask.mapped = map_mask(problem, tensors.mask, d.config, &map);
    std::memcpy(params.mask.map, &map, sizeof(map));
  }
  void* arguments[] = {&q_map, &k_map, &v_map, &o_map, &params};
  return launch_early(
      launch_config({d.ctas, 1, 1}, d.config.threads(), d.config.shared_bytes(), context),
      kernel_of(problem.dtype, d), arguments, id_of(problem));
}

Status launch(const Problem& problem, const Tensors& tensors, const core::Context& context) {
  return in_batch_parts(
      problem, tensors, entries_of_a_launch(problem),
      [&](const Problem& part, const Tensors& there) { return launch_part(part, there, context); });
}

}  // namespace
}  // namespace greenfast::cuda::packed

namespace greenfast::kernels {
namespace {
constexpr core::Kernel kPacked{.supports = cuda::packed::supports,
                               .plan = cuda::packed::plan,
                               .prepare = cuda::packed::prepare,
                               .launch = cuda::packed::launch};
}  // namespace
extern const core::Kernel cuda_sm90_packed;
extern const core::Kernel cuda_sm90_fp8_serving;
constinit const core::Kernel cuda_sm90_packed = kPacked;
constinit const core::Kernel cuda_sm90_fp8_serving = kPacked;
}  // namespace greenfast::kernels
