// What host and device agree on: the configurations of cuda.sm90.fp8, its shared memory and its
// arguments.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/mask.hpp"
#include "kernels/cuda/device/tile_schedule.hpp"

namespace greenfast::cuda::fp8 {

/// How a weight is made of a score. The last two from scores in halves, with Q in registers (linear.cuh).
enum class Weights : std::uint8_t {
  exponentials,
  curved,  // codes of e4m3 that follow 2^x
  linear,  // and its chords
};

struct Config {
  int head_dim = 128;  // columns of the tiles; smaller heads are padded with zeros by TMA
  bool masked = false;
  Weights weights = Weights::exponentials;
  bool block_factors = false;  // Q, K and V have one for each tile of rows or block of keys

  constexpr bool halves() const { return weights != Weights::exponentials; }  // as scores
  // Products of P V, of so many columns each and the ones behind the last. Beside O of head dim 256
  // registers hold no more of a block's output, and no Q: 56, 56, 48, 48, 48 and 8.
  constexpr int parts() const { return head_dim > 128 ? 5 : 1; }
  constexpr int part_begin(int part) const {
    return parts() == 1 ? part * head_dim : 48 * part + 8 * (part < 2 ? part : 2);
  }
  constexpr int part_columns(int part) const { return part_begin(part + 1) - part_begin(part); }
  constexpr int part_registers() const { return (part_columns(parts() - 1) + kOnes) / 2; }
  constexpr bool q_in_registers() const { return halves() && head_dim <= 128; }
  // Rows of Q and K are cut where the widest swizzle ends: a tile is so many of its pieces, one behind
  // the other.
  constexpr int row_bytes() const { return head_dim < 128 ? head_dim : 128; }
  constexpr int row_pieces() const { return head_dim / row_bytes(); }

  static constexpr int kKeys = 128;  // of a block of K or V
  static constexpr int kOnes = 8;    // rows of ones behind V^T: the tensor cores sum the rows

  // Consumers of 64 query rows each. Scores of fp16 leave registers for a third at head dim 64.
  constexpr int warpgroups() const { return halves() && head_dim == 64 ? 3 : 2; }
  // Blocks of K, and of V, in flight.
  constexpr int stages() const { return head_dim > 128 ? 2 : halves() && head_dim == 64 ? 5 : 4; }
  // A second Q hides the loads between tiles; under a mask prefill lost by it, and at D 128 what
  // tells them apart would spill. Where Q goes to registers, one is as good.
  constexpr int q_stages() const { return halves() || masked || head_dim > 64 ? 1 : 2; }
  constexpr int rows() const { return 64 * warpgroups(); }
  constexpr int threads() const { return 128 * (warpgroups() + 1); }
  constexpr int columns() const { return head_dim + kOnes; }  // of the output

  // Shared memory, in bytes from a 1024-byte boundary: Q stages, one tile a warpgroup; K; V^T
  // with its ones; O, one strip of 16 rows and at most 128 columns a warp. Rows of Q and K have
  // head_dim bytes, of V^T 128.
  constexpr int q_bytes() const { return 64 * head_dim; }
  constexpr int k_bytes() const { return kKeys * head_dim; }
  constexpr int v_bytes() const { return columns() * kKeys; }
  constexpr int strip_columns() const { return head_dim < 128 ? head_dim : 128; }
  constexpr int strip_bytes() const { return 16 * strip_columns() * 2; }
  constexpr int k_offset() const { return q_stages() * warpgroups() * q_bytes(); }
  constexpr int v_offset() const { return k_offset() + stages() * k_bytes(); }
  constexpr int o_offset() const { return v_offset() + stages() * v_bytes(); }
  constexpr int shared_bytes() const {
    return 1024 + o_offset() + 4 * warpgroups() * strip_bytes();
  }

  // Registers by role (setmaxnreg). The CTA owns what it was launched with, a multiple of 8 for
  // each thread; a warpgroup that asks for more than the others gave back waits for ever.
  constexpr int launch_registers() const { return 65536 / threads() / 8 * 8; }
  constexpr int producer_registers() const { return warpgroups() == 3 ? 32 : 40; }
  constexpr int consumer_registers() const {
    return (launch_registers() * (warpgroups() + 1) - producer_registers()) / warpgroups() / 8 * 8;
  }
};

template <Config kConfig>
struct With {
  static constexpr Config value = kConfig;
};

/// Head dims of the tiles. The last is of scores in halves alone: others have no registers for it.
inline constexpr std::array kHeadDims{64, 128, 256};
constexpr int largest_head_dim(Weights weights) {
  return weights == Weights::exponentials ? 128 : 256;
}

/// Factors of e4m3 tensors: null for 1, else one or one a head, or, of builds for that, one a block.
struct Scales {
  const float *q = nullptr, *k = nullptr, *v = nullptr;
  bool per_head = false;
};
/// Of builds with factors of blocks: how many a head has, and which is that of the first key that some row sees.
struct BlockFactors {
  std::int32_t of_q = 0, of_kv = 0, first = 0;
};

/// Kernel arguments beside the tensor maps.
struct Params {
  Band band;  // of the keys that the K and V^T maps hold, which are those that some row sees
  std::int32_t seq_q = 0;
  std::int32_t key_blocks = 0;
  std::int32_t group = 1;  // query heads that share a KV head
  std::int32_t heads_kv = 1;
  std::int32_t k_last_head = 0, k_last_batch = 0;  // 0 where a stride of 0 broadcasts
  std::int32_t v_last_head = 0, v_last_batch = 0;
  // K's rows stand by key_of_row (layout.hpp), because V^T came with its keys in order. Coordinates
  // of the K map, in which rows are two axes, for a block and its second half.
  bool in_fours = false;
  std::int32_t k_block[2] = {}, k_half = 0;
  TileSchedule schedule;
  double scale_log2 = 0;  // scale * log2(e); in double, because the factors may bring it back
  Scales scales;
  float* lse = nullptr;  // [all_heads, seq_q] or null
  void* o = nullptr;
  std::int64_t o_batch = 0, o_head = 0, o_row = 0;  // strides in elements
  std::int32_t head_dim = 0;
  DType out_dtype = DType::f16;
  bool o_by_tma = false;
  BlockFactors blocks;  // last, so that other builds find the rest where it was
};

/// Arguments of the pass that turns V into V^T: [batch * heads][head dim of the tile][pitch].
struct TransposeParams {
  const std::uint8_t* v = nullptr;
  std::int64_t batch = 0, head = 0, row = 0;  // strides in bytes; of a V^T, `row` is a column's
  std::int32_t heads = 1;
  std::int32_t keys = 0;    // behind them V^T has zeros
  std::int32_t blocks = 0;  // of 128 keys
  std::int32_t head_dim = 0;
  std::uint8_t* out = nullptr;
};

/// Kernels of a head dim, for cudaLaunchKernelExC.
struct Entries {
  const void *plain = nullptr, *masked = nullptr, *transpose = nullptr, *reorder = nullptr;
  const void *plain_blocks = nullptr, *masked_blocks = nullptr;  // with factors of blocks
};
template <int kHeadDim>
Entries entries();
/// The same with linear weights.
template <int kHeadDim>
Entries fast_entries();
/// The same with curved ones.
template <int kHeadDim>
Entries curved_entries();

}  // namespace greenfast::cuda::fp8
