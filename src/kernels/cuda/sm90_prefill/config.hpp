// What host and device agree on: the configurations of the prefill kernel, its shared memory and
// its arguments.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/arithmetic.hpp"
#include "kernels/cuda/device/mask.hpp"
#include "kernels/cuda/device/tile_schedule.hpp"
#include "kernels/cuda/sm90_prefill/grouped.hpp"
#include "kernels/cuda/sm90_prefill/packed.hpp"

namespace greenfast::cuda::prefill {

/// What a build of the kernel can do. Each does all that the one before it does.
enum class Features {
  plain,    // every query sees every key
  causal,   // a query sees no key beyond some distance ahead
  window,   // or behind, or rows are longer than kLongRow
  general,  // softcap, any sign of the scale, any type and strides of the output
};
inline constexpr int kFeatures = 4;
/// Keys up to which the accumulators of the tensor cores lose no more than 1.2e-4 of a sum.
inline constexpr int kLongRow = 16384;

/// What a build takes of a mask by array.
enum class MaskArray {
  none,
  boolean,  // a byte an element: 0 hides
  bias,     // an element of the inputs' type, which is added to the score
};

struct Config {
  // Columns of the tiles of Q and K; smaller heads are padded with zeros by TMA.
  int head_dim = 64;
  // Of those of V and O; 0: as many.
  int value_dim = 0;
  // Consumers of 64 query rows each.
  int warpgroups = 2;
  // Of one block of K or V.
  int keys = 128;
  // A second Q is worth its place where the first stays in shared memory.
  int q_stages = 1;
  // Blocks in flight; K's are held longer, until the guard has passed.
  int k_stages = 2;
  int v_stages = 2;
  bool q_in_registers = false;
  // The row sum is one more column of the output: V gets 8 columns, of which the first holds ones.
  // It costs 8 / head_dim more matrix work and saves most instructions of the sum and the guard.
  bool ones = false;
  // Two warpgroups share 64 rows and take every other block of keys each; the second hands its
  // result to the first. Half as high a tile, for problems that do not fill the machine.
  bool split = false;
  // Sequences have lengths of their own, read on the device (packed.hpp); a warp beside the producer
  // finds the tiles. Tensor maps are ragged.
  bool packed = false;
  // And all that serving asks for that a row's bounds and its end can say: pages, left padding,
  // chunks, sinks. Of packed builds.
  bool serving = false;
  // And a mask by array, in stages of its own (masks.cuh). Of builds for serving.
  MaskArray mask = MaskArray::none;
  int mask_stages = 0;
  // Inputs of e4m3, of builds for serving: Q and K are multiplied as they are, V becomes fp16 on its
  // way to V's ring, from one of its own (bytes.cuh). Heads have factors, and O any type and strides.
  bool bytes = false;
  int raw_stages = 0;
  Features features = Features::plain;

  constexpr bool masked() const { return features != Features::plain; }
  constexpr bool windowed() const { return features >= Features::window; }
  constexpr bool general() const { return features == Features::general; }
  // O of any type and strides; of packed builds a softcap is all that is asked of Features::general.
  constexpr bool stores_anywhere() const { return general() && !packed; }
  // A block's K and V are in stages of one index.
  constexpr bool one_ring() const { return k_stages == v_stages; }
  // From a warpgroup's block to its next.
  constexpr int stride() const { return split ? warpgroups : 1; }
  // Two warpgroups that start together stay together and wait for the same pipe; taking turns to
  // issue keeps one multiplying while the other exponentiates. Causal rows differ enough without, but not where a softcap's
  // instructions take as long as the products: 5% at D 128 (H200, 2026-11-29). Smaller blocks, of D 192 and 256, were not tried.
  constexpr bool takes_turns() const {
    return warpgroups == 2 && !split && ((ones && !masked()) || (general() && keys == 128));
  }
  // The guard looks at the weights after P V of the block before: its rare path then has that
  // product's registers. Two warpgroups want its vote earlier, because ptxas moves the wait for
  // P V up to the next branch.
  constexpr bool late_guard() const { return ones && warpgroups == 3; }
  // Three warpgroups leave no registers for two bounds.
  constexpr bool takes(Features wanted) const {
    return (warpgroups < 3 && !split) || wanted <= Features::causal;
  }
  constexpr int rows() const { return split ? 64 : 64 * warpgroups; }
  constexpr int threads() const { return 128 * (warpgroups + 1); }
  // Of V and O, and of the accumulator.
  constexpr int values() const { return value_dim != 0 ? value_dim : head_dim; }
  constexpr int columns() const { return values() + (ones ? 8 : 0); }
  // Of 128 bytes: 64 columns, of e4m3 128.
  constexpr int chunk_columns() const { return bytes ? 128 : 64; }
  constexpr int chunks() const {
    return static_cast<int>(core::ceil_div(head_dim, chunk_columns()));
  }
  constexpr int value_chunks() const { return static_cast<int>(core::ceil_div(values(), 64)); }

  // Shared memory, in bytes from a 1024-byte boundary: Q stages, one tile a warpgroup; K; V stages;
  // O, one strip of 16 rows a warp. Every tile is [chunk][row][128 bytes], swizzled.
  constexpr int q_bytes() const { return chunks() * 64 * 128; }
  constexpr int k_bytes() const { return chunks() * keys * 128; }  // of a block
  constexpr int v_bytes() const { return value_chunks() * keys * 128; }
  constexpr int strip_bytes() const { return value_chunks() * 16 * 128; }
  constexpr int k_offset() const { return q_stages * warpgroups * q_bytes(); }
  constexpr int v_offset() const { return k_offset() + k_stages * k_bytes(); }
  // Where it does not fit, a warpgroup's O takes the place of its Q; or, where Q is of bytes, which
  // are too few for that, every thread stores its own.
  constexpr bool o_over_q() const {
    return !bytes && (head_dim > 128 || (has_mask() && head_dim > 64));
  }
  constexpr bool o_has_strip() const { return !bytes || values() <= 128; }
  // 16 keys of the ones' 8 columns, in rows of 128 bytes.
  constexpr int ones_offset() const { return v_offset() + v_stages * v_bytes(); }
  constexpr int ones_bytes() const { return ones ? 16 * 128 : 0; }
  constexpr int o_offset() const { return o_over_q() ? 0 : ones_offset() + ones_bytes(); }
  constexpr int o_bytes() const {
    return o_over_q() || !o_has_strip() ? 0 : (split ? 1 : warpgroups) * 4 * strip_bytes();
  }
  // The second warpgroup's output in fp32, and bases and sums of its rows.
  constexpr int exchange_offset() const { return ones_offset() + ones_bytes() + o_bytes(); }
  constexpr int exchange_bytes() const { return split ? 128 * 4 * (head_dim / 2 + 4) : 0; }
  // A stage holds the tile's rows of a block's keys, swizzled, and 16 bytes more a row.
  constexpr bool has_mask() const { return mask != MaskArray::none; }
  constexpr int mask_offset() const { return exchange_offset() + exchange_bytes(); }
  constexpr int mask_row_bytes() const { return (mask == MaskArray::bias ? 2 : 1) * keys; }
  constexpr int mask_tile_bytes() const { return rows() * mask_row_bytes(); }
  constexpr int mask_bytes() const { return has_mask() ? mask_tile_bytes() + 16 * rows() : 0; }
  // V of bytes as it came, in chunks of up to 128 columns, not swizzled.
  constexpr int raw_offset() const { return mask_offset() + mask_stages * mask_bytes(); }
  constexpr int raw_row_bytes() const { return values() < 128 ? values() : 128; }
  constexpr int raw_bytes() const { return keys * values(); }
  constexpr int shared_bytes() const { return 1024 + raw_offset() + raw_stages * raw_bytes(); }

  // Registers by role (setmaxnreg). The CTA owns what it was launched with, a multiple of 8 for
  // each thread; a warpgroup that asks for more than the others gave back waits for ever.
  constexpr int launch_registers() const { return 65536 / threads() / 8 * 8; }
  // Three consumers with blocks of 64 keys need 152; what that leaves is the producer's.
  constexpr int producer_registers() const { return warpgroups < 3 ? 40 : keys < 128 ? 56 : 32; }
  constexpr int consumer_registers() const {
    return (launch_registers() * (warpgroups + 1) - producer_registers()) / warpgroups / 8 * 8;
  }
};

template <Config kConfig>
struct With {
  static constexpr Config value = kConfig;
};
/// Builds in which the query heads that share a head of K and V are rows of one tile, and keys may be parted
/// (grouped.hpp); the warps that multiply Q copy it. Said of the build, not in its Config: one more member there
/// changes the machine code of those for e4m3.
template <class ConfigOf>
inline constexpr bool kIsGrouped = requires {
  ConfigOf::kGrouped;
};
/// Builds that copy the keys of pages row by row (paged.cuh).
template <class ConfigOf>
inline constexpr bool kCopiesRows = requires {
  ConfigOf::kCopiesRows;
};

/// The tiles, by head dim; of those with the same head dim the launch chooses by the problem.
inline constexpr std::array kTiles{
    Config{.head_dim = 64,
           .warpgroups = 3,
           .keys = 128,
           .q_stages = 2,
           .k_stages = 4,
           .v_stages = 4,
           .ones = true},
    Config{.head_dim = 64,
           .warpgroups = 2,
           .keys = 128,
           .k_stages = 4,
           .v_stages = 4,
           .q_in_registers = true,
           .ones = true},
    Config{.head_dim = 64,
           .warpgroups = 2,
           .keys = 128,
           .k_stages = 4,
           .v_stages = 4,
           .q_in_registers = true,
           .ones = true,
           .split = true},
    Config{.head_dim = 96, .warpgroups = 2, .keys = 128, .k_stages = 3, .q_in_registers = true},
    Config{.head_dim = 128, .warpgroups = 2, .keys = 128, .k_stages = 3, .q_in_registers = true},
    Config{.head_dim = 192, .warpgroups = 2, .keys = 96},
    Config{.head_dim = 256, .warpgroups = 2, .keys = 64, .k_stages = 3},
};

/// The build of a tile for inputs of a type and what is wanted. A sum of weights rounded to bf16
/// would cost the log-sum-exp three digits, and one rounded to fp16 too where 10^5 keys share the
/// tail of a row (strict's long_rows), which are the window build's. Softcap at D 128 needs the
/// registers that Q would take, and a window at D 256 those of a second set of loops.
constexpr Config config_of(std::size_t tile, DType dtype, Features features) {
  Config config = kTiles[tile];
  config.ones = config.ones && dtype == DType::f16 && features < Features::window;
  if (features == Features::window && config.head_dim == 256) features = Features::general;
  config.features = features;
  // Under a mask a second Q gave +5% at 1x64x1100x64, -3% at 32x32x512x64 and -6% at 2x32x8192x64
  // (H200, 2026-11-22).
  if (features != Features::plain) config.q_stages = 1;
  if (features == Features::general && config.head_dim == 128) config.q_in_registers = false;
  return config;
}

/// The same for packed sequences.
constexpr Config packed_config_of(std::size_t tile, DType dtype, Features features) {
  Config config = config_of(tile, dtype, features);
  config.packed = true;
  return config;
}

/// The tiles for serving, by head dims of Q and V: of those that hold both a launch takes the first.
/// Where keys lie in memory as they come, the last three: blocks of 64 keys leave registers for a third
/// warpgroup, and less of a block is masked at the edges of windows. With a window of 128 keys that is
/// 1.45 times as fast at D 64 and 128, without one 1.03 to 1.13 times. Out of pages it would be 1.15
/// times as slow: twice as many copies for as many keys (H200, 2026-11-23).
inline constexpr std::array kServingTiles{
    Config{.head_dim = 64, .k_stages = 4, .v_stages = 4, .q_in_registers = true},
    Config{.head_dim = 128, .k_stages = 3, .q_in_registers = true},
    Config{.head_dim = 192, .value_dim = 128},
    Config{.head_dim = 256, .keys = 64, .k_stages = 3},
    Config{.head_dim = 64,
           .warpgroups = 3,
           .keys = 64,
           .k_stages = 8,
           .v_stages = 8,
           .q_in_registers = true},
    Config{.head_dim = 128, .warpgroups = 3, .keys = 64, .k_stages = 4, .v_stages = 4},
    Config{.head_dim = 192,
           .value_dim = 128,
           .warpgroups = 3,
           .keys = 64,
           .k_stages = 3,
           .v_stages = 3},
};
/// Of the last three.
inline constexpr std::size_t kTallServing64 = 4, kTallServing128 = 5, kTallServing192 = 6;
inline constexpr int kTallServingRows = kServingTiles[kTallServing64].rows();
static_assert(kServingTiles[kTallServing128].rows() == kTallServingRows &&
              kServingTiles[kTallServing128].keys == kServingTiles[kTallServing64].keys);
static_assert(kServingTiles[kTallServing192].rows() == kTallServingRows &&
              kServingTiles[kTallServing192].keys == kServingTiles[kTallServing64].keys);
/// A build for serving of a tile.
constexpr Config for_serving(Config tile, Features features) {
  tile.packed = tile.serving = true;
  tile.features = features;
  return tile;
}
constexpr Config serving_config_of(std::size_t tile) {
  return for_serving(kServingTiles[tile], Features::window);
}

/// The tiles for pages that are no multiple of 8 keys, by head dims. A row costs the same in any block, so tall tiles
/// read fewest.
inline constexpr std::array kRowTiles{kServingTiles[kTallServing64], kServingTiles[kTallServing128],
                                      kServingTiles[3]};
constexpr Config row_config_of(std::size_t tile) {
  return for_serving(kRowTiles[tile], Features::window);
}

/// The tiles for serving with a softcap, by head dims. Its dozen instructions a score take longer than the
/// products at D 128: a third warpgroup would win nothing, and D 64 may have the columns of 128.
inline constexpr std::array kCappedTiles{
    Config{.head_dim = 128, .k_stages = 3},
    Config{.head_dim = 256, .keys = 64, .k_stages = 3},
};
constexpr Config capped_config_of(std::size_t tile) {
  return for_serving(kCappedTiles[tile], Features::general);
}

/// The tiles for masks by array, by head dims.
inline constexpr std::array kMaskTiles{
    Config{.head_dim = 64, .warpgroups = 3, .keys = 64, .q_in_registers = true},
    Config{.head_dim = 128, .warpgroups = 3, .keys = 64},
};
constexpr Config mask_config_of(std::size_t tile, MaskArray mask) {
  Config config = for_serving(kMaskTiles[tile], Features::window);
  config.mask = mask;
  // What shared memory has room for. Consumers drift apart by a block or two, which short rings stop.
  const bool wide = config.head_dim > 64, bias = mask == MaskArray::bias;
  config.k_stages = config.v_stages = wide && bias ? 3 : 4;
  config.mask_stages = wide ? 3 : bias ? 4 : 6;
  return config;
}

/// The tiles for e4m3: two low ones for keys in pages, then those that the others take, by head dims of
/// Q and V.
inline constexpr std::array kByteTiles{
    Config{.head_dim = 64, .k_stages = 4, .v_stages = 4, .q_in_registers = true, .raw_stages = 3},
    Config{.head_dim = 128, .k_stages = 3, .v_stages = 3, .q_in_registers = true, .raw_stages = 2},
    Config{.head_dim = 64,
           .warpgroups = 3,
           .keys = 64,
           .k_stages = 6,
           .v_stages = 6,
           .q_in_registers = true,
           .raw_stages = 4},
    Config{.head_dim = 128,
           .warpgroups = 3,
           .keys = 64,
           .k_stages = 4,
           .v_stages = 6,
           .raw_stages = 3},
    Config{.head_dim = 192,
           .value_dim = 128,
           .warpgroups = 3,
           .keys = 64,
           .k_stages = 3,
           .v_stages = 3,
           .raw_stages = 3},
    Config{.head_dim = 256, .keys = 64, .k_stages = 3, .v_stages = 3, .raw_stages = 3},
};
inline constexpr std::size_t kLowByteTiles = 2;
constexpr Config for_bytes(Config tile, Features features) {
  tile.bytes = true;
  return for_serving(tile, features);
}
constexpr Config byte_config_of(std::size_t tile, bool capped) {
  return for_bytes(kByteTiles[tile], capped ? Features::general : Features::window);
}

/// Those for e4m3 in pages that are no multiple of 8 keys, by head dims.
inline constexpr std::array kByteRowTiles{kByteTiles[kLowByteTiles], kByteTiles[kLowByteTiles + 1],
                                          kByteTiles.back()};
constexpr Config byte_row_config_of(std::size_t tile) {
  return for_bytes(kByteRowTiles[tile], Features::window);
}

/// The tiles for groups, by head dims, of 16 bits or e4m3.
inline constexpr std::size_t kGroupedTiles = 2;
constexpr Config grouped_config_of(std::size_t tile, bool bytes) {
  return bytes ? byte_config_of(tile, false) : serving_config_of(tile);
}
static_assert(grouped_config_of(0, true).rows() == grouped_config_of(1, false).rows() &&
              grouped_config_of(0, true).keys == grouped_config_of(1, false).keys);

/// Up to this share of a cap, tanh is a polynomial.
inline constexpr float kNearOfCap = 0.45f;
/// softcap * tanh of kNearOfCap / 2 * x for |x| < 2: x times a polynomial in x^2 with these coefficients, of least relative
/// error (2.4e-7), the cap among them.
struct CapFacts {
  float near[4];

  static constexpr CapFacts of(float cap) {
    constexpr std::array<double, 4> kTanh{0.999999757, -0.333294672, 0.132363691, -0.046028194};
    CapFacts facts{};
    double factor = kNearOfCap / 2.0;
    for (std::size_t i = 0; i < kTanh.size(); ++i) {
      facts.near[i] = static_cast<float>(kTanh[i] * factor * cap);
      factor *= kNearOfCap / 2.0 * (kNearOfCap / 2.0);
    }
    return facts;
  }
};

// In front of Params::mask, so that its tensor map lies at a multiple of 64 bytes.
inline constexpr int kPaddingOfMask = 8;

/// Kernel arguments beside the tensor maps.
struct Params {
  Band band;  // of the keys that the K and V maps hold, which are those that some row sees
  std::int32_t seq_q = 0;
  std::int32_t key_blocks = 0;  // of all keys
  std::int32_t group = 1;       // query heads that share a KV head
  // Largest coordinates of the K and V maps: 0 where a stride of 0 broadcasts.
  std::int32_t k_last_head = 0, k_last_batch = 0, v_last_head = 0, v_last_batch = 0;
  TileSchedule schedule;
  bool release_at_entry = false;  // the next kernel of the stream, else after the last load
  float scale_log2 = 0.0f;        // scale * log2(e)
  float* lse = nullptr;           // [all_heads, seq_q] or null

  // For rows done again: of the keys that some row sees; strides in elements.
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  std::int64_t q_batch = 0, q_head = 0, q_row = 0, k_batch = 0, k_head = 0, k_row = 0, v_batch = 0,
               v_head = 0, v_row = 0;

  // Features::general only.
  float softcap_in = 0.0f;   // 2 log2(e) scale / softcap, of e4m3 2 / softcap
  float softcap_out = 0.0f;  // softcap * log2(e); 0: no softcap
  void* o = nullptr;
  std::int64_t o_batch = 0, o_head = 0, o_row = 0;  // strides in elements
  std::int32_t head_dim = 0;
  DType out_dtype = DType::f16;

  PackedFacts packed;  // of builds for packed sequences; last, so that nothing else moves
  ServingFacts serving;
  CapFacts cap = {};
  char padding[kPaddingOfMask] = {};
  MaskFacts mask;
  ByteFacts bytes;
  GroupedFacts grouped;
  RowFacts rows;

  void set_softcap(float in, float out) {
    softcap_in = in;
    softcap_out = out;
    cap = CapFacts::of(out);
  }
};
static_assert((offsetof(Params, mask) + offsetof(MaskFacts, map)) % 64 == 0);

/// A build's tile, and what it knows of the tile's sequence: nothing but the problem, or its own.
template <class ConfigOf>
using TileOf = std::conditional_t<
    kIsGrouped<ConfigOf>, GroupedTile,
    std::conditional_t<
        ConfigOf::value.bytes, ScaledTile,
        std::conditional_t<
            ConfigOf::value.has_mask(), MaskedTile,
            std::conditional_t<ConfigOf::value.serving, ServingTile,
                               std::conditional_t<ConfigOf::value.packed, PackedTile, Tile>>>>>;
template <class ConfigOf>
using ExtentOf = std::conditional_t<
    kIsGrouped<ConfigOf>, GroupedExtent,
    std::conditional_t<ConfigOf::value.serving, ServingExtent,
                       std::conditional_t<ConfigOf::value.packed, Extent, Params>>>;
/// Of packed builds, the tile's.
template <class ConfigOf>
constexpr const ExtentOf<ConfigOf>& extent_in(const TileOf<ConfigOf>& tile) {
  if constexpr (kIsGrouped<ConfigOf>)
    return tile.grouped;
  else
    return tile.extent;
}

/// What a packed build's walk over its tiles goes by.
template <class ConfigOf>
constexpr const auto& order_of(const Params& p) {
  if constexpr (kIsGrouped<ConfigOf>)
    return p.grouped;
  else
    return p.schedule;
}

/// What a tile's rows see, to be read again.
template <class ConfigOf>
constexpr auto& band_of(TileOf<ConfigOf>& tile) {
  if constexpr (kIsGrouped<ConfigOf>)
    return tile.grouped.band;
  else
    return tile.extent.band;
}

/// Rows of the log-sum-exp from one head to the next.
template <class ConfigOf>
constexpr std::int32_t lse_rows(const Params& p) {
  if constexpr (ConfigOf::value.packed) return p.packed.lse_rows;
  return p.seq_q;
}

/// Kernels of a tile, by Features, for cudaLaunchKernelExC; null where the tile does not take them.
/// T: __half or __nv_bfloat16.
using Entries = std::array<const void*, kFeatures>;
template <class T, int kTile>
Entries entries();
/// The same for packed sequences, up to Features::window.
template <class T, int kTile>
Entries packed_entries();
/// The one of a tile of kServingTiles.
template <class T, int kTile>
const void* serving_entry();
/// The one of a tile of kRowTiles.
template <class T, int kTile>
const void* row_entry();
/// The one of a tile of kCappedTiles.
template <class T, int kTile>
const void* capped_entry();
/// Of a tile of kMaskTiles and what the mask is.
template <class T, int kTile, MaskArray kMask>
const void* mask_entry();
/// Of a tile of kByteTiles, without a softcap and with one.
template <int kTile>
std::array<const void*, 2> byte_entries();
/// The one of a tile of kByteRowTiles.
template <int kTile>
const void* byte_row_entry();
/// Of a tile for groups; T: __half where the inputs are e4m3.
template <class T, int kTile, bool kBytes>
const void* grouped_entry();
/// And where they lie in pages that are no multiple of 8 keys.
template <class T, int kTile, bool kBytes>
const void* grouped_row_entry();

}  // namespace greenfast::cuda::prefill
