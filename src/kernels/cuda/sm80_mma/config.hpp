// Tiles and parameters of cuda.sm80.mma: what its host part and its kernels agree on.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/cuda/device/mask.hpp"
#include "kernels/cuda/device/strided_tensor.hpp"

namespace greenfast::cuda::sm80_mma {

/// One compiled kernel. A warp owns 16 * atoms query rows; a block of keys is one loop step. In pairs
/// two warps own the same rows: each multiplies Q with half of the block's keys, hands its weights to
/// the other, and multiplies those of both with half of V's columns. 32 rows then read no more of K
/// and V than 16 do alone, in as many registers.
struct Config {
  int head_dim = 64;  // of the tile; smaller head dims are padded with zeros in shared memory
  int warps = 4;
  int atoms = 1;
  int keys = 64;
  bool q_in_registers = true;  // otherwise its fragments are re-read from shared memory each step
  int blocks_per_sm = 1;       // for the register budget
  bool pairs = false;
  int stages = 2;        // of K and of V
  int least_blocks = 1;  // the tile is for SMs with room for so many of them

  constexpr int threads() const { return 32 * warps; }
  /// Warps that own the same rows.
  constexpr int sharers() const { return pairs ? 2 : 1; }
  constexpr int rows() const { return 16 * atoms * warps / sharers(); }
  /// Bytes from one row to the next in shared memory.
  constexpr int pitch() const { return 2 * head_dim; }
  /// Rows are cut into lines of so many 16-byte chunks, and a row's phase is exclusive-ored with the
  /// place of a chunk in its line. The eight rows of an 8x8 matrix then fall into different banks,
  /// and a copy's 64 or 128 neighbouring bytes stay so: between padded rows they would straddle two
  /// lines of 128 bytes, which costs half as much again of L2 and more than twice the writes
  /// (docs/kernels/sm80-mma.md).
  constexpr int line_chunks() const { return head_dim % 64 == 0 ? 8 : 4; }
  constexpr int phase(int row) const { return line_chunks() == 8 ? row % 8 : row / 2 % 4; }
  constexpr int stage_bytes() const { return 2 * keys * pitch(); }  // K, then V
  /// Of two stages: Q in registers lends its place to the second, or to both where it needs that much.
  constexpr int q_offset() const {
    if (!q_in_registers || stages == 1) return stages * stage_bytes();
    return rows() * pitch() <= stage_bytes() ? stage_bytes() : 0;
  }
  /// Of pairs: a warp's weights of a block, and a float of each of a lane's rows.
  constexpr int weights_bytes() const { return 16 * atoms * keys / sharers() * 2; }
  constexpr int lane_rows_bytes() const { return 32 * 2 * atoms * 4; }
  constexpr int handed_bytes() const {
    return pairs ? warps * (weights_bytes() + lane_rows_bytes()) : 0;
  }
  constexpr int handed_offset() const {
    const int after_q = q_offset() + rows() * pitch();
    return after_q > stages * stage_bytes() ? after_q : stages * stage_bytes();
  }
  constexpr int shared_bytes() const { return handed_offset() + handed_bytes(); }
  /// Whether an SM has room for it, of which a block may use so many bytes. It has a kilobyte more, and
  /// keeps one of each block.
  constexpr bool fits(std::int64_t shared_per_block) const {
    return least_blocks * (shared_bytes() + 1024) <= shared_per_block + 1024;
  }
  constexpr bool valid() const {
    return head_dim % 32 == 0 && keys % (16 * sharers()) == 0 && shared_bytes() <= 227 * 1024 &&
           (q_offset() != 0 || rows() * pitch() <= stages * stage_bytes()) &&
           (!pairs || (atoms == 2 && warps % 2 == 0 && stages == 1)) &&
           (stages == 1 || stages == 2) && keys % (threads() / line_chunks()) == 0;
  }
};

/// A tile in pairs whose head dim leaves no registers for Q; eight warps fill an SM's.
constexpr Config paired(int head_dim, int warps, int keys, int least_blocks = 1) {
  return {.head_dim = head_dim,
          .warps = warps,
          .atoms = 2,
          .keys = keys,
          .q_in_registers = false,
          .blocks_per_sm = 8 / warps,
          .pairs = true,
          .stages = 1,
          .least_blocks = least_blocks};
}

/// The configurations, in order of head dim, preferred first. Up to 128 there are two tile heights:
/// 128 rows halve the shared-memory reads per product, 64 rows fill a GPU sooner. Above, what an SM
/// has room for decides: 227, 163 or 99 KB of shared memory a block.
#ifdef SM80_MMA_WARPS
// One alone, as `greenfast tune cuda.sm80.mma` asks for it.
inline constexpr std::array kConfigs{Config{.head_dim = SM80_MMA_HEAD_DIM,
                                            .warps = SM80_MMA_WARPS,
                                            .atoms = SM80_MMA_ATOMS,
                                            .keys = SM80_MMA_KEYS,
                                            .q_in_registers = SM80_MMA_Q_IN_REGISTERS != 0,
                                            .blocks_per_sm = SM80_MMA_BLOCKS,
                                            .pairs = SM80_MMA_PAIRS != 0,
                                            .stages = SM80_MMA_STAGES}};
#else
inline constexpr std::array kConfigs{
    Config{.head_dim = 64, .atoms = 2, .blocks_per_sm = 2},
    Config{.head_dim = 64, .blocks_per_sm = 3},
    Config{.head_dim = 96, .atoms = 2, .q_in_registers = false, .blocks_per_sm = 2},
    Config{.head_dim = 96, .blocks_per_sm = 2},
    Config{.head_dim = 128, .atoms = 2, .keys = 32, .q_in_registers = false, .blocks_per_sm = 2},
    Config{.head_dim = 128, .atoms = 2, .blocks_per_sm = 2, .pairs = true, .stages = 1},
    paired(160, 4, 64, 2),
    paired(192, 4, 64, 2),
    paired(192, 8, 64),
    paired(192, 8, 32),
    paired(256, 4, 64, 2),
    paired(256, 8, 64),
    paired(256, 4, 32),
};
#endif

/// The most parts of a tile's keys. Each is a block's, and they are put together by a second kernel.
inline constexpr int kMaxParts = 4;

/// A row's sum of exponentials over a part's keys: its logarithm in base 2 is high + low. As one number
/// it would say weights no better than to 2^-24 of the largest score.
struct PartSum {
  float high, low;  // low is -inf where the part has no key of the row, NaN where a score is
};

struct Params {
  StridedTensor q, k, v;
  void* o = nullptr;  // of parts [parts][B, Hq, Sq, D] in fp32
  std::int64_t o_batch = 0, o_head = 0, o_row = 0;
  float* lse = nullptr;  // [B, Hq, Sq] or null; of parts PartSum [parts][B, Hq, Sq]
  // Parts are the grid's z; each has so many blocks of keys, and outputs as of further batches.
  std::int32_t part_blocks = Band::kFar;
  std::uint32_t batches = 1;
  Band band;
  std::int32_t seq_q = 0;
  std::int32_t head_dim = 0;
  std::uint32_t heads_q = 1;
  std::uint32_t group = 1;        // query heads per KV head
  std::uint32_t tiles = 1;        // query tiles of one head
  std::uint32_t heads_total = 1;  // B * Hq
  std::uint32_t section = 1;      // heads scheduled together, see block_to_work
  float scale_log2 = 0.0f;        // applied inside the exponent, when no transform is needed
  // Scores that the exponent's fma cannot scale (softcap, or a scale that is not positive, whose
  // largest score is not the largest product) are transformed first: x = s * transform_scale, then
  // transform_cap * tanh, if transform_cap > 0. The result is in log2 units.
  bool transform = false;
  float transform_scale = 0.0f;
  float transform_cap = 0.0f;
  bool aligned = false;     // rows of Q, K and V start at 16-byte boundaries
  bool wide_store = false;  // output rows allow one vector store a lane
  ElementType output = ElementType::f16;
};

/// Arguments of the kernel that puts parts together; o and its strides as the caller has them.
struct JoinParams {
  const float* o_parts = nullptr;
  const PartSum* sums = nullptr;
  int parts = 1;
  std::int64_t rows = 0;  // B * Hq * Sq
  std::int32_t seq_q = 0, head_dim = 0;
  std::uint32_t heads_q = 1;
  void* o = nullptr;
  std::int64_t o_batch = 0, o_head = 0, o_row = 0;
  float* lse = nullptr;
  bool wide_store = false;
  ElementType output = ElementType::f16;
};
inline constexpr int kJoinThreads = 256;  // of a block, each with four columns of a row

constexpr std::int64_t part_bytes(std::int64_t rows, std::int64_t head_dim) {
  return rows * (head_dim * 4 + static_cast<std::int64_t>(sizeof(PartSum)));
}
/// Turns a launch into one of so many parts of `part_blocks` blocks of keys, whose outputs, and behind
/// them sums, lie in scratch; what is returned puts them where `p` had its outputs.
inline JoinParams into_parts(Params& p, int parts, std::int32_t part_blocks, float* scratch) {
  JoinParams join;
  join.parts = parts;
  join.rows = std::int64_t{p.heads_total} * p.seq_q;
  join.seq_q = p.seq_q;
  join.head_dim = p.head_dim;
  join.heads_q = p.heads_q;
  join.o = p.o;
  join.o_batch = p.o_batch;
  join.o_head = p.o_head;
  join.o_row = p.o_row;
  join.lse = p.lse;
  join.wide_store = p.wide_store;
  join.output = p.output;
  p.lse = scratch + parts * join.rows * p.head_dim;
  join.o_parts = scratch;
  join.sums = reinterpret_cast<const PartSum*>(p.lse);
  p.batches = p.heads_total / p.heads_q;
  p.part_blocks = part_blocks;
  p.o = scratch;
  p.o_row = p.head_dim;
  p.o_head = p.seq_q * p.o_row;
  p.o_batch = p.heads_q * p.o_head;
  p.output = ElementType::f32;
  p.wide_store = true;
  return join;
}

/// The compiled kernels of an element type, in the order of kConfigs, for cudaLaunchKernelExC.
/// Instantiated by one source per element type, so that they compile in parallel.
template <class T>
const std::array<const void*, kConfigs.size()>& entries();
/// And what puts parts together, of all element types.
const void* join_entry();

}  // namespace greenfast::cuda::sm80_mma
