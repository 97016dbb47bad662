// cuda.sm80.mma: attention for everything. mma.sync m16n8k16, ldmatrix, cp.async; sm_80 and later.
//
// Idea    FlashAttention-2's loop (Dao 2023): one thread block per query tile and head, or, where
//         tiles are few, per part of their keys (the grid's z; join.cuh puts parts together), K and V by
//         cp.async between the products, scores and weights never leave registers: the accumulator
//         of Q K^T is, lane by lane, the A operand of P V. Above D 128, and at 128 where tiles are
//         few, pairs of warps share 32 rows, and hand each other half of the weights.
// Takes   fp16 and bf16, head dims 8..256 in steps of 8, any strides and 2-byte alignment, every
//         mask and option of the library.
// Limits  sequences up to 2^30. Rows that are not 16-byte aligned are copied element by element.
// Budget  two or three CTAs of 4 warps an SM of sm_90, one of 8 warps where less is shared: 168 to
//         255 registers, 32 to 148 KB of shared memory; each tile's in docs/kernels/sm80-mma.md.
// Bound   issue slots and shared-memory reads; mma.sync reaches about 60% of wgmma's rate on sm_90.
#pragma once

#include <type_traits>
#include <utility>

#include <greenfast/arithmetic.hpp>

#include "kernels/cuda/device/ptx_barrier.cuh"
#include "kernels/cuda/device/ptx_cp_async.cuh"
#include "kernels/cuda/device/ptx_mma.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/sm80_mma/config.hpp"

namespace greenfast::cuda::sm80_mma {

/// Largest sum of a lane's weights of one block that fp16 and the sums take without loss: each of
/// them is then below 2^13.
inline constexpr float kSumLimit = 8192.0f;

struct Work {
  std::uint32_t batch, head, tile;
};

/// Which tile a block computes. Heads come in sections whose K and V fit L2 together; within a
/// section the last tile of every head comes first, because under a causal mask it is the longest.
__device__ __forceinline__ Work block_to_work(const Params& p, std::uint32_t id) {
  const std::uint32_t per_section = p.section * p.tiles;
  const std::uint32_t section = id / per_section;
  const std::uint32_t within = id - section * per_section;
  const std::uint32_t first_head = section * p.section;
  const std::uint32_t heads = min(p.section, p.heads_total - first_head);
  const std::uint32_t order = within / heads;
  const std::uint32_t flat_head = first_head + within - order * heads;
  const std::uint32_t batch = flat_head / p.heads_q;
  return {batch, flat_head - batch * p.heads_q, p.tiles - 1 - order};
}

/// Bytes from the start of a matrix in shared memory to the 16-byte chunk of a row.
template <Config kC>
__device__ __forceinline__ int place_of(int row, int chunk) {
  return row * kC.pitch() + (chunk ^ kC.phase(row)) * 16;
}

/// From the place of a chunk, which is one of the first two of its row or of a pair's four, to that
/// `pieces` times two chunks farther in the row.
template <Config kC>
__device__ __forceinline__ std::uint32_t along(std::uint32_t place, int pieces) {
  constexpr int kLine = kC.line_chunks();
  const int chunk = 2 * pieces;
  return (place ^ chunk % kLine * 16) + chunk / kLine * kLine * 16;
}

/// How the threads of a block share the copying of rows: each takes every kRowsAtOnce-th row, and
/// of it every kLanes-th chunk of 16 bytes.
template <Config kC>
struct CopyShape {
  static constexpr int kChunks = kC.head_dim / 8;
  static constexpr int kLanes = kC.line_chunks();
  static constexpr int kRowsAtOnce = kC.threads() / kLanes;
  static_assert(kRowsAtOnce % 8 == 0);  // so that all rows of a thread have one phase
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
  static __device__ __forceinline__ int row() { return static_cast<int>(threadIdx.x) / kLanes; }
};

/// Which of kRows rows hold data, counted from the first of them, and how they may be read.
struct Extent {
  int begin, end;  // rows outside are zeros in shared memory, and never read:
  int head_dim;    // as are the columns from here on. So nothing hidden can reach a product
  bool aligned;    // rows start at 16-byte boundaries
};

/// Copies kRows rows of a [S, D] matrix. `source` and `target` are those of the thread's first row
/// and chunk.
template <class T, Config kC, int kRows>
__device__ __forceinline__ void copy_rows(std::uint32_t target, const T* source,
                                          std::int64_t stride, Extent extent) {
  using Shape = CopyShape<kC>;
  constexpr int kStep = Shape::kRowsAtOnce;
  constexpr bool kEven = kRows % kStep == 0;
  // The blocks of a long loop are whole: no predicates there.
  if (extent.aligned && extent.begin <= 0 && extent.end >= kRows &&
      extent.head_dim == kC.head_dim && kEven) {
#pragma unroll
    for (int r = 0; r < kRows; r += kStep) {
#pragma unroll
      for (int c = 0; c < Shape::kChunks; c += Shape::kLanes) {
        ptx::cp_async_16(target + r * kC.pitch() + c * 16, source + c * 8);
      }
      source += kStep * stride;
    }
    return;
  }
  const int lane = Shape::lane();
#pragma unroll 1
  for (int r = Shape::row(); r < kRows; r += kStep) {
    const bool row_ok = r >= extent.begin && r < extent.end;
#pragma unroll 1
    for (int c = 0; c < Shape::kChunks; c += Shape::kLanes) {
      const bool keep = row_ok && (lane + c) * 8 < extent.head_dim;
      if (extent.aligned) {
        ptx::cp_async_16(target + c * 16, source + c * 8, keep);
        continue;
      }
      uint4 value = make_uint4(0, 0, 0, 0);
      if (keep) {
        const auto* words = reinterpret_cast<const std::uint16_t*>(source + c * 8);
        std::uint32_t pair[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          pair[i] = __ldg(words + 2 * i) | static_cast<std::uint32_t>(__ldg(words + 2 * i + 1))
                                               << 16;
        }
        value = make_uint4(pair[0], pair[1], pair[2], pair[3]);
      }
      ptx::store_shared_16(target + c * 16, value);
    }
    source += kStep * stride;
    target += kStep * kC.pitch();
  }
}

/// A thread's copies of a block of K or V, row after row. They are issued one by one between products:
/// in a row each waits for a place in the memory pipeline's queue, and what reuses the registers of
/// their addresses waits for the last (a tenth of the time each at D 256, docs/kernels/sm80-mma.md).
template <class T, Config kC>
struct BlockCopies {
  using Shape = CopyShape<kC>;
  static constexpr int kOfRow = Shape::kChunks / Shape::kLanes;
  static constexpr int kCount = kC.keys / Shape::kRowsAtOnce * kOfRow;
  static_assert(kC.keys % Shape::kRowsAtOnce == 0 && Shape::kChunks % Shape::kLanes == 0);

  const T* source;  // of the next row
  std::int64_t step;

  /// The copy of this number, which is the next. `target` is the place of the thread's first chunk;
  /// where `go` is false nothing is copied.
  __device__ __forceinline__ void issue(int number, std::uint32_t target, bool last_column,
                                        bool go) {
    const int chunk = number % kOfRow * Shape::kLanes;
    ptx::cp_async_16_if(go, target + number / kOfRow * Shape::kRowsAtOnce * kC.pitch() + chunk * 16,
                        source + chunk * 8, number % kOfRow < kOfRow - 1 || last_column);
    if (number % kOfRow == kOfRow - 1) source += step;
  }
  __device__ __forceinline__ void issue_all(std::uint32_t target, bool last_column, bool go) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) issue(i, target, last_column, go);
  }
};

/// The first column of the n-th 8-column atom of O that a warp owns. Of a pair the warps own pieces of
/// 16 columns in turn, which is every other step of V's addresses whatever the head dim.
template <Config kC>
__device__ __forceinline__ int column_of(int n, int part) {
  return kC.pairs ? (n / 2 * 2 + part) * 16 + n % 2 * 8 : n * 8;
}

/// Writes one row's share of a lane. x[n] holds two columns of the n-th atom, from 2t.
template <Config kC, class TOut, int kAtomsD>
__device__ __forceinline__ void store_row(TOut* row, const float2 (&x)[kAtomsD], int part,
                                          bool row_ok, int head_dim, bool wide) {
  const int t = threadIdx.x & 3;
  constexpr int kWhole = kAtomsD / 4 * 4;  // atoms of which a quad stores 64 bytes at once
  int n = 0;
  if constexpr (sizeof(TOut) == 2) {
    if (wide) {
#pragma unroll
      for (; n < kWhole; n += 4) {
        std::uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = pack2<TOut>(x[n + i].x, x[n + i].y);
        const uint4 chunk = quad_transpose(words);
        const int column = column_of<kC>(n + t, part);
        if (row_ok && column < head_dim) ptx::store_global_16(row + column, chunk);
      }
    }
  }
#pragma unroll
  for (int m = 0; m < kAtomsD; ++m) {
    if (m < n) continue;
    const int column = column_of<kC>(m, part) + 2 * t;
    if (!row_ok || column >= head_dim) continue;
    if constexpr (sizeof(TOut) == 2) {
      if (wide) {
        *reinterpret_cast<std::uint32_t*>(row + column) = pack2<TOut>(x[m].x, x[m].y);
        continue;
      }
    } else {
      if (wide) {  // 32 neighbouring bytes a quad
        *reinterpret_cast<float2*>(row + column) = x[m];
        continue;
      }
    }
    row[column] = from_float<TOut>(x[m].x);
    row[column + 1] = from_float<TOut>(x[m].y);
  }
}

template <class T, std::size_t kIndex>
__global__ void __launch_bounds__(kConfigs[kIndex].threads(), kConfigs[kIndex].blocks_per_sm)
    attention_kernel(const __grid_constant__ Params p) {
  constexpr Config kC = kConfigs[kIndex];
  static_assert(kC.valid());
  constexpr int kKeys = kC.keys;
  constexpr int kAtoms = kC.atoms;
  constexpr int kPitch = kC.pitch();
  constexpr int kSharers = kC.sharers();
  constexpr int kStepsD = kC.head_dim / 16;            // k-steps of Q K^T
  constexpr int kAtomsD = kC.head_dim / kSharers / 8;  // 8-column atoms of O
  constexpr int kOwnKeys = kKeys / kSharers;
  constexpr int kAtomsN = kOwnKeys / 8;  // 8-key atoms of S
  constexpr bool kSingle = kC.stages == 1;
  constexpr int kQSteps = kC.q_in_registers ? kStepsD : 1;

  extern __shared__ __align__(128) unsigned char shared_memory[];

  // ---- Which work ----
  const std::uint64_t id = std::uint64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  if (id >= std::uint64_t{p.heads_total} * p.tiles) return;
  const Work work = block_to_work(p, static_cast<std::uint32_t>(id));
  const std::uint32_t kv_head = work.head / p.group;
  const T* q = static_cast<const T*>(p.q.data) + work.batch * p.q.batch + work.head * p.q.head;
  const T* k = static_cast<const T*>(p.k.data) + work.batch * p.k.batch + kv_head * p.k.head;
  const T* v = static_cast<const T*>(p.v.data) + work.batch * p.v.batch + kv_head * p.v.head;

  const int tile_row = static_cast<int>(work.tile) * kC.rows();
  const int tile_last = min(tile_row + kC.rows(), p.seq_q) - 1;
  // Keys that some row of the tile sees, and the blocks that hold them.
  const int keys_begin = p.band.first(tile_row);
  const int keys_end = p.band.end(tile_last);
  // Of the grid's z blocks each has a part of them.
  const int block_begin = keys_begin / kKeys + static_cast<int>(blockIdx.z) * p.part_blocks;
  const int block_end = min(ceil_div(keys_end, kKeys), block_begin + p.part_blocks);

  const std::uint32_t base = ptx::shared_address(shared_memory);
  using Shape = CopyShape<kC>;
  const std::uint32_t copy_to = base + place_of<kC>(Shape::row(), Shape::lane());
  const auto first_source = [](const T* matrix, std::int64_t stride, int row) {
    return matrix + (row + Shape::row()) * stride + Shape::lane() * 8;
  };
  using Copies = BlockCopies<T, kC>;
  Copies k_copies{first_source(k, p.k.row, block_begin * kKeys), Shape::kRowsAtOnce * p.k.row};
  Copies v_copies{first_source(v, p.v.row, block_begin * kKeys), Shape::kRowsAtOnce * p.v.row};
  const bool last_column = (Shape::lane() + Shape::kChunks - Shape::kLanes) * 8 < p.head_dim;
  const auto extent_of = [&](int block) {
    return Extent{keys_begin - block * kKeys, keys_end - block * kKeys, p.head_dim, p.aligned};
  };
  constexpr std::uint32_t kV = kKeys * kPitch;  // from a stage's K to its V
  // The blocks whose copies are issued one by one: every row of them is seen, and of a row at most the
  // last copy ends before the tile's columns do. The others are copied by copy_rows; issuing copies
  // then only leads to the next block.
  const bool whole_rows = p.aligned && p.head_dim > (Shape::kChunks - Shape::kLanes) * 8;
  const int whole_begin = ceil_div(keys_begin, kKeys);
  const int whole_end = whole_rows ? keys_end / kKeys : 0;
  const auto copy_k = [&](int block, std::uint32_t to) {
    copy_rows<T, kC, kKeys>(to, k_copies.source, p.k.row, extent_of(block));
  };
  const auto copy_v = [&](int block, std::uint32_t to) {
    copy_rows<T, kC, kKeys>(to + kV, v_copies.source, p.v.row, extent_of(block));
  };
  bool whole = block_begin >= whole_begin && block_begin < whole_end;
  const auto load_first = [&] {
    if (!whole) {
      copy_k(block_begin, copy_to);
      if constexpr (!kSingle) copy_v(block_begin, copy_to);
    }
    k_copies.issue_all(copy_to, last_column, whole);
    if constexpr (!kSingle) v_copies.issue_all(copy_to + kV, last_column, whole);
  };

  // ---- Prologue: Q and the first block ----
  copy_rows<T, kC, kC.rows()>(copy_to + kC.q_offset(), first_source(q, p.q.row, tile_row), p.q.row,
                              {0, p.seq_q - tile_row, p.head_dim, p.aligned});
  constexpr bool kQOverFirstStage = kC.q_offset() == 0;
  if (!kQOverFirstStage && block_begin < block_end) load_first();
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  __syncthreads();

  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / 32, 0);
  const int part = warp % kSharers;  // of a block's keys, and of V's columns
  const int warp_row = tile_row + warp / kSharers * 16 * kAtoms;
  const int warp_last = warp_row + 16 * kAtoms - 1;
  // Where a lane reads the first 16x16 piece of a matrix; right for Q and for V, K has rows and
  // columns of the 8x8 matrices exchanged.
  const std::uint32_t lane_offset = place_of<kC>(lane % 16, lane / 16);
  const std::uint32_t k_lane_offset = place_of<kC>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  const std::uint32_t q_address =
      base + kC.q_offset() + warp / kSharers * 16 * kAtoms * kPitch + lane_offset;
  std::uint32_t q_fragment[kQSteps][kAtoms][4];
  if constexpr (kC.q_in_registers) {
#pragma unroll
    for (int d = 0; d < kStepsD; ++d) {
#pragma unroll
      for (int a = 0; a < kAtoms; ++a) {
        ptx::ldmatrix_x4(q_fragment[d][a], along<kC>(q_address, d) + a * 16 * kPitch);
      }
    }
    __syncthreads();  // the second stage takes Q's place
    if (kQOverFirstStage && block_begin < block_end) {
      load_first();
      ptx::cp_async_commit();
      ptx::cp_async_wait<0>();
      __syncthreads();
    }
  }

  // ---- What a pair hands over ----
  // Lane by lane: a lane's accumulator fragment is the same lane's operand in the other warp.
  [[maybe_unused]] const int pair_barrier = 1 + warp / kSharers;
  const auto warp_of = [&](int of_part) { return warp / kSharers * kSharers + of_part; };
  const auto weights_of = [&](int of_part, int step) {
    return base + kC.handed_offset() + warp_of(of_part) * kC.weights_bytes() +
           (step * 32 + lane) * 16;
  };
  const auto lane_rows_of = [&](int of_part) {
    return base + kC.handed_offset() + kC.warps * kC.weights_bytes() +
           warp_of(of_part) * kC.lane_rows_bytes() + lane * 16;
  };
  // The other warp's floats of a lane's rows; the pair meets here.
  [[maybe_unused]] const auto others = [&](const float(&mine)[kAtoms][2],
                                           float(&theirs)[kAtoms][2]) {
    static_assert(!kC.pairs || kAtoms == 2);
    ptx::store_shared_16(
        lane_rows_of(part),
        make_uint4(__float_as_uint(mine[0][0]), __float_as_uint(mine[0][1]),
                   __float_as_uint(mine[kAtoms - 1][0]), __float_as_uint(mine[kAtoms - 1][1])));
    ptx::named_barrier_sync<64>(pair_barrier);
    const uint4 words = ptx::load_shared_16(lane_rows_of(part ^ 1));
    theirs[0][0] = __uint_as_float(words.x);
    theirs[0][1] = __uint_as_float(words.y);
    theirs[kAtoms - 1][0] = __uint_as_float(words.z);
    theirs[kAtoms - 1][1] = __uint_as_float(words.w);
  };

  float o[kAtoms][kAtomsD][4] = {};
  float row_max[kAtoms][2];  // in units of the exponent
  float row_sum[kAtoms][2] = {};
#pragma unroll
  for (int a = 0; a < kAtoms; ++a) row_max[a][0] = row_max[a][1] = -INFINITY;

  // Block classes, uniform over a warp: seen by some of its rows, and seen by all of them.
  const int some_begin = p.band.first(warp_row) / kKeys;
  const int some_end = ceil_div(max(p.band.end(warp_last), 0), kKeys);
  const int all_begin = ceil_div(p.band.first(warp_last), kKeys);
  const int all_end = max(p.band.end(warp_row), 0) / kKeys;
  bool shifted = false;  // every row of the warp has a maximum; uniform over the warp
  // What a thread wants seldom, and keeps in memory.
  struct Seldom {
    float low[kAtoms][2];         // of row_max, once `wide`
    float o[kAtoms][kAtomsD][4];  // of the blocks before the last flush, and
    float row_sum[kAtoms][2];     // their sums
  } in_memory;
  const auto seldom = [&]() -> Seldom& {
    Seldom* address = &in_memory;
    asm volatile("" : "+l"(address));  // else the compiler would keep it all in registers
    return *address;
  };
  bool wide = false;  // some row_max of the warp is beyond kLargestBase; uniform over the warp
  // mma.sync cuts off what an addition cannot hold (sm90_prefill/kernel.cuh, `flush`), so the
  // output begins anew every 8192 keys.
  constexpr int kFlushBlocks = 8192 / kKeys;
  int flush_at = block_begin + kFlushBlocks;
  // This and the stage follow from the block and the first; told by those, D 128 spills (nvcc 13.0).
  bool flushed = false;

  // ---- Mainloop ----
  int stage = 0;
#pragma unroll 1
  for (int block = block_begin; block < block_end; ++block) {
    // What comes while this block is worked on: with two stages the next one's K and V, with one this
    // one's V, and later the next one's K.
    const std::uint32_t next_to = copy_to + (kSingle ? 0 : (stage ^ 1) * kC.stage_bytes());
    const bool more = block + 1 < block_end;
    const bool next_whole = block + 1 < whole_end;
    if constexpr (kSingle) {
      if (!whole) copy_v(block, copy_to);
    } else if (more && !next_whole) {
      copy_k(block + 1, next_to);
      copy_v(block + 1, next_to);
    }
    // The copies during Q K^T, by number.
    constexpr int kDuringScores = kSingle ? Copies::kCount : 2 * Copies::kCount;
    const auto issue_during_scores = [&](int number) {
      if (!kSingle && number < Copies::kCount)
        k_copies.issue(number, next_to, last_column, next_whole);
      else
        v_copies.issue(kSingle ? number : number - Copies::kCount, next_to + kV, last_column,
                       kSingle ? whole : next_whole);
    };
    // Of one stage: V has come and nobody reads K any more, so the next may come.
    [[maybe_unused]] const auto meet = [&](bool fits) {
      ptx::cp_async_commit();
      ptx::cp_async_wait<0>();
      fits = ptx::named_barrier_all<kC.threads()>(0, fits);
      if (more && !next_whole) copy_k(block + 1, copy_to);
      return fits;
    };

    if (block >= some_begin && block < some_end) {
      const std::uint32_t k_base = base + stage * kC.stage_bytes();
      const std::uint32_t k_address = k_base + part * kOwnKeys * kPitch + k_lane_offset;

      // S = Q K^T
      float s[kAtoms][kAtomsN][4] = {};
#pragma unroll
      for (int d = 0; d < kStepsD; ++d) {
        static_assert(kDuringScores <= 2 * kStepsD);
        if (2 * d < kDuringScores) issue_during_scores(2 * d);
        if (2 * d + 1 < kDuringScores) issue_during_scores(2 * d + 1);
        if constexpr (!kC.q_in_registers) {
#pragma unroll
          for (int a = 0; a < kAtoms; ++a) {
            ptx::ldmatrix_x4(q_fragment[0][a], along<kC>(q_address, d) + a * 16 * kPitch);
          }
        }
#pragma unroll
        for (int n = 0; n < kAtomsN; n += 2) {
          std::uint32_t b[4];
          ptx::ldmatrix_x4(b, along<kC>(k_address, d) + n * 8 * kPitch);
#pragma unroll
          for (int a = 0; a < kAtoms; ++a) {
            const auto& fragment = q_fragment[kC.q_in_registers ? d : 0][a];
            ptx::mma_m16n8k16<T>(s[a][n], fragment, b[0], b[1]);
            ptx::mma_m16n8k16<T>(s[a][n + 1], fragment, b[2], b[3]);
          }
        }
      }

      float scale = p.scale_log2;
      if (p.transform) {
        scale = 1.0f;
        const float cap = p.transform_cap;
#pragma unroll
        for (int a = 0; a < kAtoms; ++a) {
#pragma unroll
          for (int n = 0; n < kAtomsN; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              s[a][n][i] = transformed(s[a][n][i], p.transform_scale, cap);
            }
          }
        }
      }
      if (block < all_begin || block >= all_end) {
        const int first_key = block * kKeys + part * kOwnKeys;
#pragma unroll
        for (int a = 0; a < kAtoms; ++a) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int row = warp_row + a * 16 + half * 8 + lane / 4;
            const int begin = p.band.first(row) - first_key - lane % 4 * 2;
            const int end = p.band.end(row) - first_key - lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < kAtomsN; ++n) {
#pragma unroll
              for (int i = 0; i < 2; ++i) {
                if (8 * n + i < begin || 8 * n + i >= end) s[a][n][2 * half + i] = -INFINITY;
              }
            }
          }
        }
      }

      // Weights, two neighbouring keys to a register, and what this lane adds to the row sums.
      std::uint32_t weights[kAtoms][kAtomsN][2];
      float added[kAtoms][2];
      const auto weigh = [&](float by) {
#pragma unroll
        for (int a = 0; a < kAtoms; ++a) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            // A row that has seen no key keeps -inf; subtracting 0 then gives weights of 0. Wide
            // bases have been subtracted before.
            const float shift = row_max[a][half] == -INFINITY || wide ? 0.0f : row_max[a][half];
            float sum0 = 0.0f, sum1 = 0.0f;
#pragma unroll
            for (int n = 0; n < kAtomsN; ++n) {
              const float x0 = exp2_fast(fmaf(s[a][n][2 * half], by, -shift));
              const float x1 = exp2_fast(fmaf(s[a][n][2 * half + 1], by, -shift));
              sum0 += x0;
              sum1 += x1;
              weights[a][n][half] = pack2<T>(x0, x1);
            }
            added[a][half] = sum0 + sum1;
          }
        }
      };
      const auto hand_over = [&] {
#pragma unroll
        for (int a = 0; a < kAtoms; ++a)
#pragma unroll
          for (int n = 0; n < kAtomsN; n += 2)
            ptx::store_shared_16(weights_of(part, a * kAtomsN / 2 + n / 2),
                                 make_uint4(weights[a][n][0], weights[a][n][1],
                                            weights[a][n + 1][0], weights[a][n + 1][1]));
      };
      // The maximum need not be exact, only near enough for the weights to fit T: once all rows of
      // the warp have one, it is kept until the sums say that it no longer does.
      bool fits = shifted;
      if (shifted) {
        weigh(scale);
#pragma unroll
        for (int a = 0; a < kAtoms; ++a)
          fits &= added[a][0] <= kSumLimit && added[a][1] <= kSumLimit;
        if constexpr (kC.pairs)
          hand_over();
        else
          fits = __all_sync(kFullWarp, fits);
      }
      if constexpr (kSingle) fits = meet(fits);
      if (!fits) {
        shifted = true;
        float most[kAtoms][2];  // of this block's scores
        bool large = wide;
#pragma unroll
        for (int a = 0; a < kAtoms; ++a) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float m0 = s[a][0][2 * half], m1 = s[a][0][2 * half + 1];
#pragma unroll
            for (int n = 1; n < kAtomsN; ++n) {
              m0 = fmaxf(m0, s[a][n][2 * half]);
              m1 = fmaxf(m1, s[a][n][2 * half + 1]);
            }
            most[a][half] = quad_max(fmaxf(m0, m1));
          }
        }
        if constexpr (kC.pairs) {
          float theirs[kAtoms][2];
          others(most, theirs);
#pragma unroll
          for (int a = 0; a < kAtoms; ++a)
#pragma unroll
            for (int half = 0; half < 2; ++half)
              most[a][half] = fmaxf(most[a][half], theirs[a][half]);
        }
#pragma unroll
        for (int a = 0; a < kAtoms; ++a) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const float now = fmaxf(row_max[a][half], most[a][half] * scale);
            large |= fabsf(now) > kLargestBase && now != -INFINITY;
          }
        }
        large = __any_sync(kFullWarp, large);
#pragma unroll
        for (int a = 0; a < kAtoms; ++a) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float new_max, decay;
            if (large) {
              float& low = seldom().low[a][half];
              const WideBase before{row_max[a][half], wide ? low : 0.0f};
              const WideBase wider = larger(before, wide_base(most[a][half], scale));
              decay = before.high == -INFINITY ? 1.0f : exp2_fast(distance(before, wider));
              new_max = wider.high;
              low = wider.low;
#pragma unroll
              for (int n = 0; n < kAtomsN; ++n) {
                s[a][n][2 * half] = exponent(s[a][n][2 * half], scale, finite(wider));
                s[a][n][2 * half + 1] = exponent(s[a][n][2 * half + 1], scale, finite(wider));
              }
            } else {
              new_max = fmaxf(row_max[a][half], most[a][half] * scale);
              decay = new_max == -INFINITY ? 1.0f : exp2_fast(row_max[a][half] - new_max);
            }
            shifted &= new_max != -INFINITY;
            row_max[a][half] = new_max;
            row_sum[a][half] *= decay;
#pragma unroll
            for (int n = 0; n < kAtomsD; ++n) {
              o[a][n][2 * half] *= decay;
              o[a][n][2 * half + 1] *= decay;
            }
            if (flushed) {
              Seldom& before = seldom();
              before.row_sum[a][half] *= decay;
#pragma unroll
              for (int n = 0; n < kAtomsD; ++n) {
                before.o[a][n][2 * half] *= decay;
                before.o[a][n][2 * half + 1] *= decay;
              }
            }
          }
        }
        wide = large;
        shifted = __all_sync(kFullWarp, shifted && !wide);
        weigh(wide ? 1.0f : scale);
        if constexpr (kC.pairs) {
          hand_over();
          ptx::named_barrier_sync<64>(pair_barrier);
        }
      }
#pragma unroll
      for (int a = 0; a < kAtoms; ++a) {
        row_sum[a][0] += added[a][0];
        row_sum[a][1] += added[a][1];
      }

      // O += P V, first by the keys whose weights this warp has.
      const std::uint32_t v_address = k_base + kKeys * kPitch + (lane_offset ^ part * 32);
#pragma unroll
      for (int turn = 0; turn < kSharers; ++turn) {
        const std::uint32_t v_part = v_address + (part ^ turn) * kOwnKeys * kPitch;
#pragma unroll
        for (int n = 0; n < kAtomsN; n += 2) {
          std::uint32_t fragment[kAtoms][4];
#pragma unroll
          for (int a = 0; a < kAtoms; ++a) {
            if (turn == 0) {
              fragment[a][0] = weights[a][n][0];
              fragment[a][1] = weights[a][n][1];
              fragment[a][2] = weights[a][n + 1][0];
              fragment[a][3] = weights[a][n + 1][1];
            } else {
              const uint4 words =
                  ptx::load_shared_16(weights_of(part ^ 1, a * kAtomsN / 2 + n / 2));
              fragment[a][0] = words.x;
              fragment[a][1] = words.y;
              fragment[a][2] = words.z;
              fragment[a][3] = words.w;
            }
          }
#pragma unroll
          for (int d = 0; d < kAtomsD; d += 2) {
            if constexpr (kSingle) {
              static_assert(Copies::kCount <= kSharers * kAtomsN / 2 * kAtomsD / 2);
              const int number = ((turn * kAtomsN + n) / 2 * kAtomsD + d) / 2;
              if (number < Copies::kCount) k_copies.issue(number, copy_to, last_column, next_whole);
            }
            std::uint32_t b[4];
            ptx::ldmatrix_x4_trans(b, along<kC>(v_part, kSharers * d / 2) + n * 8 * kPitch);
#pragma unroll
            for (int a = 0; a < kAtoms; ++a) {
              ptx::mma_m16n8k16<T>(o[a][d], fragment[a], b[0], b[1]);
              ptx::mma_m16n8k16<T>(o[a][d + 1], fragment[a], b[2], b[3]);
            }
          }
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < kDuringScores; ++i) issue_during_scores(i);
      if constexpr (kSingle) {
        meet(true);
        k_copies.issue_all(copy_to, last_column, next_whole);
      }
    }
    if (block + 1 == flush_at) {
      Seldom& before = seldom();
#pragma unroll
      for (int a = 0; a < kAtoms; ++a) {
#pragma unroll
        for (int n = 0; n < kAtomsD; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            before.o[a][n][i] = flushed ? before.o[a][n][i] + o[a][n][i] : o[a][n][i];
            o[a][n][i] = 0.0f;
          }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float sum = row_sum[a][half];
          before.row_sum[a][half] = flushed ? before.row_sum[a][half] + sum : sum;
          row_sum[a][half] = 0.0f;
        }
      }
      flush_at += kFlushBlocks;
      flushed = true;
    }
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncthreads();
    if constexpr (!kSingle) stage ^= 1;
    whole = next_whole;
  }

  // ---- Epilogue ----
  if (flushed) {
    const Seldom& before = seldom();
#pragma unroll
    for (int a = 0; a < kAtoms; ++a) {
#pragma unroll
      for (int n = 0; n < kAtomsD; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) o[a][n][i] += before.o[a][n][i];
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) row_sum[a][half] += before.row_sum[a][half];
    }
  }
  if constexpr (kC.pairs) {
    float theirs[kAtoms][2];
    others(row_sum, theirs);
#pragma unroll
    for (int a = 0; a < kAtoms; ++a) {
      row_sum[a][0] += theirs[a][0];
      row_sum[a][1] += theirs[a][1];
    }
  }
  const int lane_row = warp_row + lane / 4;
  // Outputs of parts lie as those of more batches.
  const std::uint32_t batch = work.batch + blockIdx.z * p.batches;
  const std::int64_t o_base = batch * p.o_batch + work.head * p.o_head;
  const std::int64_t lse_base = (std::int64_t{batch} * p.heads_q + work.head) * p.seq_q;
#pragma unroll
  for (int a = 0; a < kAtoms; ++a) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane_row + a * 16 + half * 8;
      const bool row_ok = row < p.seq_q;
      const float sum = quad_sum(row_sum[a][half]);
      const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
      if (p.lse != nullptr && part == 0 && lane % 4 == 0 && row_ok) {
        const float low = (wide ? seldom().low[a][half] : 0.0f) + __log2f(sum);
        const float high = sum == 0.0f ? -INFINITY : row_max[a][half];
        if (gridDim.z > 1)
          reinterpret_cast<PartSum*>(p.lse)[lse_base + row] = {high, low};
        else
          p.lse[lse_base + row] = sum == 0.0f ? -INFINITY : (high + low) * kLn2;
      }
      float2 x[kAtomsD];
#pragma unroll
      for (int n = 0; n < kAtomsD; ++n) {
        x[n] = make_float2(o[a][n][2 * half] * inverse, o[a][n][2 * half + 1] * inverse);
      }
      if (p.output == ElementType::f16) {
#pragma unroll
        for (float2& mean : x) mean = make_float2(finite_mean(mean.x), finite_mean(mean.y));
      }
      const std::int64_t offset = o_base + row * p.o_row;
      switch (p.output) {
        case ElementType::f16:
          store_row<kC>(static_cast<__half*>(p.o) + offset, x, part, row_ok, p.head_dim,
                        p.wide_store);
          break;
        case ElementType::bf16:
          store_row<kC>(static_cast<__nv_bfloat16*>(p.o) + offset, x, part, row_ok, p.head_dim,
                        p.wide_store);
          break;
        case ElementType::f32:
          store_row<kC>(static_cast<float*>(p.o) + offset, x, part, row_ok, p.head_dim,
                        p.wide_store);
          break;
      }
    }
  }
}

template <class T>
const std::array<const void*, kConfigs.size()>& entries() {
  static const auto table = []<std::size_t... kI>(std::index_sequence<kI...>) {
    return std::array{reinterpret_cast<const void*>(&attention_kernel<T, kI>)...};
  }
  (std::make_index_sequence<kConfigs.size()>());
  return table;
}

}  // namespace greenfast::cuda::sm80_mma
