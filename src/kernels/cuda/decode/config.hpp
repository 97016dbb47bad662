// Tiles, shared memory and parameters of cuda.sm90.decode and cuda.sm80.decode: what host and kernels
// agree on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <greenfast/types.hpp>

#include "kernels/cuda/decode/schedule.hpp"
#include "kernels/cuda/device/host_device.hpp"
#include "kernels/cuda/device/strided_tensor.hpp"

namespace greenfast::cuda::decode {

/// Rows of Q that share a head of K and V, over all tiles: more are prefill's.
inline constexpr int kMostRows = 64;

/// What a kernel is compiled for. What a build leaves out need not run to cost: each launch fetches around its
/// code. With that of masks and shares calls of 11 to 18 us took 0.3 to 1.1 us more (H100, 2026-11-26).
enum class Build : std::uint8_t {
  lean,     // one query a sequence, of which all see all keys of a dense cache: no sink, no softcap
  plain,    // all but what general adds
  general,  // array masks, and even shares of all sequences' keys
};

/// One compiled kernel. A warp takes 16 keys of every tile of them, all with the same rows.
struct Config {
  int head_dim = 64;  // of the tile; smaller head dims are padded with zeros
  int rows = 8;       // (query, head of the group) pairs of a block: 8 for each n of an mma
  int warps = 4;
  int stages = 3;    // of K and V
  bool sm90 = true;  // with clusters, and a second kernel that is launched early
  int bytes = 2;     // of an element of Q, K and V; 1: e4m3
  Build build = Build::general;

  constexpr int threads() const { return 32 * warps; }
  constexpr int atoms() const { return rows / 8; }
  constexpr int keys() const { return 16 * warps; }
  constexpr int pitch() const { return bytes * head_dim; }  // bytes of a row, swizzled by 16 bytes
  /// Q's fragments live in registers where there is room beside the output's.
  constexpr bool q_in_registers() const { return atoms() <= 2 && atoms() * head_dim <= 256; }
  /// For the register budget; a device with less shared memory holds fewer.
  constexpr int blocks_per_sm() const { return !sm90 || (warps == 4 && head_dim <= 128) ? 2 : 1; }
  constexpr bool clusters() const { return sm90 && rows <= 16; }

  constexpr bool lean() const { return build == Build::lean; }
  constexpr bool general() const { return build == Build::general; }
  constexpr bool like(const Config& other) const {
    return head_dim == other.head_dim && rows == other.rows && warps == other.warps &&
           sm90 == other.sm90 && bytes == other.bytes;
  }

  // Shared memory, in bytes. The ring holds K, then V of each stage; when the last tile has been
  // multiplied, the warps' results take its place, and Q's where they are more.
  constexpr int tile_bytes() const { return keys() * pitch(); }
  constexpr int stage_bytes() const { return 2 * tile_bytes(); }
  /// What it costs to begin with a head, in tiles: 2 to 3 us, in which a block's share of memory's speed
  /// brings 32 KB (256 sequences of 16 to 4,096 keys at D 128 took 351 us without it and 325 in parts; H100, 2026-11-26).
  constexpr int start_tiles() const { return stage_bytes() >= 32768 ? 1 : 32768 / stage_bytes(); }
  constexpr int result_pitch() const { return head_dim + 4; }  // floats; rows in different banks
  constexpr int results_bytes() const { return warps * rows * result_pitch() * 4; }
  constexpr int result_stats_offset() const { return results_bytes(); }
  constexpr int q_offset() const { return stages * stage_bytes(); }
  constexpr int ranges_offset() const { return q_offset() + rows * pitch(); }
  constexpr int mask_rows_offset() const { return ranges_offset() + rows * 8; }
  constexpr int factors_offset() const { return mask_rows_offset() + rows * 8; }
  /// What each warp finds of the keys that a mask shows.
  constexpr int seen_offset() const { return factors_offset() + (bytes == 1 ? rows * 4 : 0); }
  constexpr int barrier_offset() const { return seen_offset() + warps * 8; }
  /// What the cluster's blocks send to the owner of a row, or the count of parts before each
  /// sequence: no launch has both.
  constexpr int mail_offset() const { return barrier_offset() + 16; }
  constexpr int rows_owned() const { return atoms(); }  // of 8 * atoms, by each of 8 blocks
  constexpr int letter_bytes() const { return head_dim * 4 + 16; }
  constexpr int mail_bytes() const {
    const int letters = clusters() ? kCluster * rows_owned() * letter_bytes() : 0;
    const int counts = (kMostCounted + 1 + 8) * 4;  // and sums of warps, then what shares follow
    return letters > counts ? letters : counts;
  }
  constexpr int shared_bytes() const { return mail_offset() + mail_bytes(); }
  constexpr bool valid() const {
    return result_stats_offset() + warps * rows * 8 <= ranges_offset() && mail_offset() % 16 == 0 &&
           rows == rows_owned() * kCluster && (head_dim & (head_dim - 1)) == 0 &&
           (sm90 ? (shared_bytes() + 1024) * blocks_per_sm() <= 228 * 1024
                 : shared_bytes() <= 99 * 1024);
  }
};

struct Tile {
  int head_dim, rows, warps;
};
// Those of eight warps are for clusters: half the steps.
inline constexpr std::array kTiles{
    Tile{64, 8, 4},   Tile{64, 16, 4}, Tile{64, 32, 4},  Tile{128, 8, 4}, Tile{128, 16, 4},
    Tile{128, 32, 4}, Tile{256, 8, 4}, Tile{256, 16, 4}, Tile{64, 8, 8},  Tile{128, 8, 8},
};
/// A query whose heads of a group need more rows has a plain build; of 16 rows at D 256 a lean one spilled three numbers.
constexpr bool has_lean(Tile tile) { return tile.rows <= 16 && tile.rows * tile.head_dim <= 2048; }

constexpr Config of_sm90(Build build, Tile tile) {
  return {.head_dim = tile.head_dim, .rows = tile.rows, .warps = tile.warps, .build = build};
}
/// What the 99 KB hold that sm_86 and sm_89 give a block: one stage is multiplied while the other comes.
constexpr Config of_sm80(Build build, Tile tile) {
  return {.head_dim = tile.head_dim,
          .rows = tile.rows,
          .warps = tile.head_dim <= 128 ? 4 : 2,
          .stages = 2,
          .sm90 = false,
          .build = build};
}
/// A stage of e4m3 is half as many bytes; in five of them the results of 32 rows find room.
constexpr Config of_e4m3(Tile tile) {
  return {.head_dim = tile.head_dim,
          .rows = tile.rows,
          .warps = tile.warps,
          .stages = tile.rows == 32 ? 5 : 4,
          .bytes = 1};
}

/// Gives `take` every compiled kernel, in the order of their numbers.
template <class Take>
constexpr void each_config(const Take& take) {
  for (const Build build : {Build::plain, Build::general, Build::lean})
    for (const Tile& tile : kTiles)
      if (build != Build::lean || has_lean(tile)) take(of_sm90(build, tile));
  for (const Build build : {Build::general, Build::lean})
    for (const Tile& tile : kTiles)
      if (tile.warps != 8 && (build != Build::lean || has_lean(tile))) take(of_sm80(build, tile));
  for (const Tile& tile : kTiles) take(of_e4m3(tile));
}
template <class Is>
constexpr std::size_t configs_that(const Is& is) {
  std::size_t count = 0;
  each_config([&](const Config& config) { count += is(config); });
  return count;
}
inline constexpr auto kConfigs = [] {
  std::array<Config, configs_that([](const Config&) { return true; })> all{};
  std::size_t next = 0;
  each_config([&](const Config& config) { all[next++] = config; });
  return all;
}();

/// The configurations of a variant for inputs of 16 bits, or for e4m3.
struct Family {
  std::size_t begin = 0, end = 0;
  constexpr std::size_t size() const { return end - begin; }
  constexpr bool sm90() const { return kConfigs[begin].sm90; }
};
inline constexpr std::size_t kOfE4m3 = configs_that([](const Config& c) { return c.bytes == 1; });
inline constexpr std::size_t kOfSm80 = configs_that([](const Config& c) { return !c.sm90; });
inline constexpr Family kSm90E4m3{kConfigs.size() - kOfE4m3, kConfigs.size()};
inline constexpr Family kSm80{kSm90E4m3.begin - kOfSm80, kSm90E4m3.begin};
inline constexpr Family kSm90{0, kSm80.begin};

/// The configuration of that build with the same tile; itself where there is none.
inline constexpr auto kBuilds = [] {
  std::array<std::array<std::uint8_t, 3>, kConfigs.size()> all{};
  for (std::size_t i = 0; i < kConfigs.size(); ++i) {
    all[i].fill(static_cast<std::uint8_t>(i));
    for (std::size_t j = 0; j < kConfigs.size(); ++j)
      if (kConfigs[i].like(kConfigs[j]))
        all[i][static_cast<std::size_t>(kConfigs[j].build)] = static_cast<std::uint8_t>(j);
  }
  return all;
}();
constexpr std::size_t build_of(std::size_t config, Build build) {
  return kBuilds[config][static_cast<std::size_t>(build)];
}

/// Those of a variant's family that take inputs of the type.
constexpr Family family_of(Family family, DType dtype) {
  return dtype == DType::e4m3 && family.sm90() ? kSm90E4m3 : family;
}

/// An element of e4m3 tensors.
struct E4m3 {
  std::uint8_t bits;
};

/// Of a row over some of its keys: the largest x (below), and the sum of weights beside it.
struct alignas(8) Stats {
  float most, sum;
};

/// Rows of K or V lie whole steps of bytes apart: a place is then one multiplication of 32-bit
/// numbers, where elements took eight instructions a copy of 16 bytes, and pages fourteen [SASS].
struct Steps {
  std::uint32_t bytes = 0;  // of a step; without pages a row is one
  std::uint32_t page = 0, row = 0;
};

/// Where the shares of blocks cut a head: what the second kernel has to add.
struct alignas(16) Cut {
  std::int32_t sequence = 0;
  std::int32_t place = 0;              // KV head times row blocks, and the row block
  std::int32_t first = -1, last = -1;  // holders of its keys; -1: nothing is cut behind this one
};

/// An array mask; strides in bytes.
struct MaskArray {
  const unsigned char* data = nullptr;
  std::int64_t batch = 0, head = 0, row = 0, key = 0;
  bool boolean = false;
  ElementType type = ElementType::f32;  // of numbers
  /// Rows of a sequence that say which keys any of its rows sees, in bytes one behind the other; 0: it is
  /// not looked for.
  std::int32_t searched = 0;
};

struct Params {
  StridedTensor q, k, v;
  void* o = nullptr;
  std::int64_t o_batch = 0, o_head = 0, o_row = 0;
  float* lse = nullptr;  // [B, Hq, lse_rows] or null; packed [Hq, lse_rows]
  std::int64_t lse_rows = 0;
  // Null: what they would say is the same for every sequence, or in order.
  const std::int32_t* cu_q = nullptr;
  const std::int32_t* cu_kv = nullptr;
  const std::int32_t* used_q = nullptr;
  const std::int32_t* used_kv = nullptr;
  const std::int32_t* kv_start = nullptr;
  const std::int32_t* kv_index = nullptr;
  const std::int32_t* page_table = nullptr;
  const float* sinks = nullptr;
  // e4m3 alone, null where there are none; one, or one a head of each entry of the batch.
  const float* q_scale = nullptr;
  const float* k_scale = nullptr;
  const float* v_scale = nullptr;
  bool scales_per_head = false;
  MaskArray mask;
  std::int64_t table_row = 0;
  // What no entry of an array may exceed.
  std::int32_t seq_q = 0, seq_kv = 0, total_q = 0, total_kv = 0, kv_rows = 0, pages = 0;
  FastDivide page_size;
  std::int32_t batch = 1, heads_q = 1, heads_kv = 1;
  std::int32_t group = 1;  // query heads per KV head
  FastDivide by_group;
  std::int32_t rows = 1;        // most rows of a KV head: seq_q * group
  std::int32_t row_blocks = 1;  // blocks that share them
  std::int32_t head_dim = 0, value_dim = 0;
  std::int32_t tile_dim = 0;   // Config::head_dim
  std::int32_t tile_rows = 0;  // Config::rows
  Sight sight;
  SplitRule rule;
  Parts same;  // of every sequence, where the host knows the lengths; size 0: the rule says
  std::int32_t most_parts = 1;
  bool clustered = false;        // a block a part, which merge through distributed shared memory
  bool counted = false;          // blocks count the parts of all sequences and share them out
  std::int8_t cluster_log2 = 0;  // of a cluster's blocks
  std::int32_t holders = 0;  // counted: of even shares of all tiles, in place of parts; 0: parts
  float* partial =
      nullptr;  // [B, Hkv, rows, most_parts, tile_dim]; of shares [2 holders, tile_rows, tile_dim]
  Stats* stats = nullptr;  // the same without tile_dim
  Cut* cuts = nullptr;     // [holders]
  // The exponent of a weight is (x - largest x) * exponent_scale: with the difference taken first,
  // no size of scores loses digits. x is the product of Q and K, or, with `transform`, the score in
  // units of log2 (cuda.sm80.mma); times natural_scale it is the score.
  float exponent_scale = 0.0f, natural_scale = 0.0f;
  bool transform = false;
  float transform_scale = 0.0f, transform_cap = 0.0f;
  bool wide_store = false;  // O's rows take stores of four elements
  ElementType output = ElementType::f16;
  Steps k_steps, v_steps;
};

/// One sequence of the call.
struct Sequence {
  std::int32_t q_batch = 0, q_row = 0;    // where its first row lies in Q, O and the LSE
  std::int32_t kv_batch = 0, kv_row = 0;  // where its first key lies, unless it is in pages
  Lengths lengths;
};

/// Reads the arrays. Whatever they hold, every row and key lies inside the tensors: nobody has
/// checked the device's arrays.
GREENFAST_HOST_DEVICE inline Sequence sequence_at(const Params& p, std::int32_t b) {
  Sequence s;
  s.q_batch = s.kv_batch = b;
  s.lengths.seq_q = p.seq_q;
  s.lengths.seq_kv = p.seq_kv;
  if (p.cu_q != nullptr) {
    s.q_batch = 0;
    s.q_row = within(p.cu_q[b], 0, p.total_q);
    s.lengths.seq_q = least_of(within(p.cu_q[b + 1], s.q_row, p.total_q) - s.q_row, p.seq_q);
  }
  if (p.used_q != nullptr) s.lengths.seq_q = within(p.used_q[b], 0, s.lengths.seq_q);
  if (p.cu_kv != nullptr) {
    s.kv_batch = 0;
    s.kv_row = within(p.cu_kv[b], 0, p.total_kv);
    s.lengths.seq_kv = least_of(within(p.cu_kv[b + 1], s.kv_row, p.total_kv) - s.kv_row, p.seq_kv);
  }
  if (p.used_kv != nullptr) s.lengths.seq_kv = within(p.used_kv[b], 0, s.lengths.seq_kv);
  if (p.kv_index != nullptr) s.kv_batch = within(p.kv_index[b], 0, p.kv_rows - 1);
  if (p.kv_start != nullptr) s.lengths.kv_start = within(p.kv_start[b], 0, p.seq_kv);
  return s;
}

/// How a sequence's keys are parted. Divisions take a fifth of a microsecond before the first load
/// [estimated], so the host does them where it can.
GREENFAST_HOST_DEVICE inline Parts parts_for(const Params& p, const KeyRange& seen) {
  return p.same.size > 0 ? p.same : parts_for(p.rule, seen.count());
}

/// Parts of a sequence's keys; none where it has no rows.
GREENFAST_HOST_DEVICE inline std::int32_t parts_at(const Params& p, std::int32_t b) {
  const Lengths lengths = sequence_at(p, b).lengths;
  if (lengths.seq_q == 0) return 0;
  return parts_for(p, keys_of_sequence(p.sight, lengths)).count;
}

/// What a sequence's rows cost in tiles of so many keys: those that they see, one at least, for somebody
/// writes the rows, and before them so many tiles' time as beginning costs; nothing where it has no rows.
GREENFAST_HOST_DEVICE inline std::int32_t tiles_at(const Params& p, std::int32_t b,
                                                   std::int32_t keys, std::int32_t start) {
  const Lengths lengths = sequence_at(p, b).lengths;
  if (lengths.seq_q == 0) return 0;
  return start + most_of(divide_up(keys_of_sequence(p.sight, lengths).count(), keys), 1);
}
/// No share is shorter, but where there are no more: so many keys, or half of them at 32 a tile, are
/// worth a block [estimated].
inline constexpr std::int32_t kLeastShare = 4;

/// Of e4m3: what a row's products are multiplied by beside the problem's scale.
GREENFAST_HOST_DEVICE inline float product_scale(const Params& p, std::int32_t b,
                                                 std::int32_t head) {
  if (p.q_scale == nullptr) return 1.0f;
  if (!p.scales_per_head) return p.q_scale[0] * p.k_scale[0];
  return p.q_scale[std::int64_t{b} * p.heads_q + head] *
         p.k_scale[std::int64_t{b} * p.heads_kv + p.by_group(head)];
}

/// Where a sequence's first key lies, in elements behind the first of its KV head.
struct Place {
  std::int64_t k = 0, v = 0;
};

/// Where a row's partial results lie among those of the workspace.
GREENFAST_HOST_DEVICE inline std::int64_t partial_index(const Params& p, std::int32_t b,
                                                        std::int32_t kv_head, std::int32_t row,
                                                        std::int32_t part) {
  return ((std::int64_t{b} * p.heads_kv + kv_head) * p.rows + row) * p.most_parts + part;
}

/// The compiled kernels of an element type, in the order of the family's configurations, for
/// cudaLaunchKernelExC.
template <class T, Family kFamily>
const std::array<const void*, kFamily.size()>& entries();

}  // namespace greenfast::cuda::decode
