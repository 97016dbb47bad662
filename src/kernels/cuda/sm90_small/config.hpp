// Tiles, shared memory and parameters of cuda.sm90.small: what host and kernel agree on.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/cuda/device/mask.hpp"
#include "kernels/cuda/device/strided_tensor.hpp"

namespace greenfast::cuda::small {

inline constexpr int kRows = 64;       // query rows of a block: the M of one wgmma
inline constexpr int kWarpgroups = 2;  // of a block, each with its own keys
inline constexpr int kCluster = 2;     // blocks that share the keys of one query tile
inline constexpr int kParts = kWarpgroups * kCluster;
inline constexpr int kPieceKeys = 64;  // K of one part arrives in boxes of this many keys
inline constexpr int kThreads = 128 * kWarpgroups;

struct Config {
  int head_dim = 64;          // 64 or 128; smaller ones are padded with zeros by TMA
  int keys = 128;             // of one part
  bool looped = false;        // each part takes every fourth block of keys, instead of one
  bool half_exchange = true;  // partial results cross the cluster as fp16 instead of fp32

  /// Visible keys of one query tile.
  constexpr int capacity() const { return looped ? static_cast<int>(Band::kFar) : kParts * keys; }
  constexpr int chunks() const { return head_dim / 64; }  // of 64 columns, 128 bytes
  constexpr int pieces() const { return keys / kPieceKeys; }
  constexpr int blocks_per_sm() const { return head_dim == 64 && !looped ? 2 : 1; }
  /// Every part finishes a quarter of the columns: registers of a thread that it owns, and sends
  /// to each of the others.
  constexpr int own() const { return head_dim / 2 / kParts; }

  // Shared memory, in bytes from a 1024-byte boundary. Q, then each part's K, then each part's V,
  // as [chunk][row][128 bytes] with 128-byte swizzle; then what the exchange delivers.
  constexpr int q_bytes() const { return chunks() * kRows * 128; }
  constexpr int block_bytes() const { return chunks() * keys * 128; }
  constexpr int k_offset() const { return q_bytes(); }
  constexpr int v_offset() const { return k_offset() + kWarpgroups * block_bytes(); }
  /// From the warpgroup beside: fp32 values, then (max, sum) of both rows of each quad.
  constexpr int near_bytes() const { return own() * 128 * 4 + kStatsBytes; }
  constexpr int near_offset() const { return v_offset() + kWarpgroups * block_bytes(); }
  /// From one warpgroup of the other block.
  constexpr int far_bytes() const { return own() * 128 * (half_exchange ? 2 : 4) + kStatsBytes; }
  constexpr int far_offset() const { return near_offset() + kWarpgroups * near_bytes(); }
  constexpr int barrier_offset() const {
    return far_offset() + kWarpgroups * kWarpgroups * far_bytes();
  }
  constexpr int shared_bytes() const { return barrier_offset() + 128 + 1024; }

  static constexpr int kStatsBytes = 32 * 16;
};

inline constexpr std::array kConfigs{
    Config{.head_dim = 64, .keys = 64},
    Config{.head_dim = 64, .keys = 128},
    Config{.head_dim = 64, .keys = 128, .looped = true},
    Config{.head_dim = 128, .keys = 64},
    Config{.head_dim = 128, .keys = 128},
    Config{.head_dim = 128, .keys = 128, .looped = true},
};
/// Kernels of a type, those of kConfigs and after them the same with an exchange as fp32, which
/// fp16 inputs take whose output is of another type: halves of averages near fp16's last number
/// have few digits.
inline constexpr std::size_t kKernels = 2 * kConfigs.size();
/// bf16 has too few digits to cross the cluster in, and fp16 not its range.
constexpr Config config_of(std::size_t index, bool half) {
  Config config = kConfigs[index % kConfigs.size()];
  config.half_exchange = half && index < kConfigs.size();
  return config;
}

struct Params {
  Band band;  // over the keys that the K and V maps hold: those that some query sees
  std::int32_t seq_q = 0;
  std::int32_t head_dim = 0;
  std::uint32_t heads_q = 1;
  std::uint32_t group = 1;  // query heads per KV head
  // 0 where a stride of 0 broadcasts: TMA maps hold that axis with length 1.
  std::uint32_t q_head_step = 1, q_batch_step = 1;
  std::uint32_t k_head_step = 1, k_batch_step = 1, v_head_step = 1, v_batch_step = 1;
  float scale_log2 = 0.0f;
  // As in cuda.sm80.mma: x = s * transform_scale, then transform_cap * tanh if that is positive.
  bool transform = false;
  float transform_scale = 0.0f;
  float transform_cap = 0.0f;
  void* o = nullptr;
  std::int64_t o_batch = 0, o_head = 0, o_row = 0;  // in elements
  float* lse = nullptr;                             // [B, Hq, Sq] or null
  ElementType output = ElementType::f16;
};

/// The compiled kernels of an element type.
template <class T>
const std::array<const void*, kKernels>& entries();

}  // namespace greenfast::cuda::small
