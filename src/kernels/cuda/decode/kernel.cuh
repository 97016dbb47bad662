// cuda.sm90.decode and cuda.sm80.decode: few queries over a cache of keys, as fast as memory delivers it.
//
// Idea    A block has one KV head of a sequence, all query heads of its group as the columns of one
//         product, and a part of the keys: S^T = K Q^T and O^T = V^T P^T by mma.sync, so that 16 keys
//         fill an instruction where one query would waste 15/16 of it. K and V come row by row
//         (cp.async), so that a row may lie in any page. Parts merge within the launch where a
//         cluster of sm_90 holds them, else in a second kernel, which sm_90 launches early.
// Takes   fp16, bf16 and, on sm_90, e4m3; up to 64 rows of a KV head (queries times group); head dims 8..256,
//         V's own; every length, index, page size, band, chunk, array mask, sink and softcap of docs/serving.md.
// Limits  no ALiBi; rows of Q, K and V at 16-byte boundaries.
// Budget  108 KB of shared memory at D 128, 56 at D 64: two blocks of 4 warps an SM, 64 KB of K and V
//         in flight each; in clusters of 8 and some of 4 one block of 8 warps. One number is spilled at D 256 with 16 rows;
//         docs/kernels/sm90-decode.md. Of sm_80 37 to 76 KB; docs/kernels/sm80-decode.md.
// Bound   memory: K and V once.
#pragma once

#include <bit>
#include <type_traits>
#include <utility>

#include "kernels/cuda/decode/finish.cuh"
#include "kernels/cuda/decode/seen.cuh"
#include "kernels/cuda/device/array_mask.cuh"
#include "kernels/cuda/device/e4m3.cuh"
#include "kernels/cuda/device/ptx_cluster.cuh"
#include "kernels/cuda/device/ptx_cp_async.cuh"
#include "kernels/cuda/device/ptx_decode.cuh"
#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/device/ptx_mma.cuh"

namespace greenfast::cuda::decode {

/// What a block computes.
struct Work {
  std::int32_t b, kv_head, row_block, part;
};

/// Largest, or sum, over the eight lanes that hold the keys of a row's scores.
__device__ __forceinline__ float max_of_keys(float x) {
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes *= 2) x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, lanes));
  return x;
}
__device__ __forceinline__ float sum_of_keys(float x) {
#pragma unroll
  for (int lanes = 4; lanes < 32; lanes *= 2) x += __shfl_xor_sync(kFullWarp, x, lanes);
  return x;
}

/// before[b]: what the sequences before b have, in parts or in tiles; before[batch]: all of them.
template <int kThreads, class Of>
__device__ __forceinline__ void count(const Params& p, std::int32_t* before, std::int32_t* of_warps,
                                      const Of& of_sequence) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int each = (p.batch + kThreads - 1) / kThreads;
  const int begin = min(thread * each, p.batch), end = min(begin + each, p.batch);
  std::int32_t mine = 0;
  for (int b = begin; b < end; ++b) {
    before[b + 1] = of_sequence(b);
    mine += before[b + 1];
  }
  std::int32_t sum = mine;  // of this thread and those before it in the warp
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const std::int32_t left = __shfl_up_sync(kFullWarp, sum, lanes);
    if (lane >= lanes) sum += left;
  }
  if (lane == 31) of_warps[thread / 32] = sum;
  __syncthreads();
  std::int32_t run = sum - mine;
  for (int warp = 0; warp < thread / 32; ++warp) run += of_warps[warp];
  if (thread == 0) before[0] = 0;
  for (int b = begin; b < end; ++b) {
    run += before[b + 1];
    before[b + 1] = run;
  }
  __syncthreads();
}

/// 16 keys or columns by 16 of the other dimension as an mma's A operand, from matrices of 8 rows by 16 bytes.
/// Of e4m3 two matrices of 16 columns each are as many operands: the bytes become fp16, exactly, and lie
/// in another order, the same for K and Q, or told by kColumnStep for V.
template <class T>
struct Fragments {
  static constexpr int kSteps = 1;       // operands of an ldmatrix.x4
  static constexpr int kColumnStep = 8;  // columns of V apart: rows g and g + 8 of its operand
  using Element = T;
  static __device__ __forceinline__ void split(const std::uint32_t (&raw)[4],
                                               std::uint32_t (&a)[1][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[0][i] = raw[i];
  }
  static __device__ __forceinline__ void split_transposed(const std::uint32_t (&raw)[4],
                                                          std::uint32_t (&a)[1][4]) {
    split(raw, a);
  }
};
template <>
struct Fragments<E4m3> {
  static constexpr int kSteps = 2;
  static constexpr int kColumnStep = 1;
  using Element = __half;
  /// A lane has four neighbouring columns of a row: columns 2 t, 2 t + 1 of the operand, and 8 more.
  static __device__ __forceinline__ void split(const std::uint32_t (&raw)[4],
                                               std::uint32_t (&a)[2][4]) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int rows = 0; rows < 2; ++rows) {
        a[step][rows] = decode_e4m3x2(raw[2 * step + rows]);
        a[step][2 + rows] = decode_e4m3x2(raw[2 * step + rows] >> 16);
      }
    }
  }
  /// A lane has two neighbouring columns of two keys.
  static __device__ __forceinline__ void split_transposed(const std::uint32_t (&raw)[4],
                                                          std::uint32_t (&a)[2][4]) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int keys = 0; keys < 2; ++keys) {
        const std::uint32_t first = decode_e4m3x2(raw[step + 2 * keys]);
        const std::uint32_t second = decode_e4m3x2(raw[step + 2 * keys] >> 16);
        a[step][2 * keys] = __byte_perm(first, second, 0x5410);
        a[step][2 * keys + 1] = __byte_perm(first, second, 0x7632);
      }
    }
  }
};

template <class T, std::size_t kIndex>
__global__ void __launch_bounds__(kConfigs[kIndex].threads(), kConfigs[kIndex].blocks_per_sm())
    attention_kernel(const __grid_constant__ Params p) {
  constexpr Config kC = kConfigs[kIndex];
  static_assert(kC.valid());
  constexpr int kAtoms = kC.atoms();
  constexpr int kPitch = kC.pitch();
  using Operands = Fragments<T>;
  using Element = typename Operands::Element;  // of the products
  static_assert(kC.bytes == sizeof(T));
  // Constants where the build leaves it out.
  constexpr bool kLean = kC.lean();
  const bool in_shares = kC.general() && p.holders > 0;
  const bool has_mask = kC.general() && p.mask.data != nullptr;
  const bool counted = !kLean && p.counted, transform = !kLean && p.transform;
  constexpr bool kE4m3 = std::is_same_v<T, E4m3>;
  constexpr int kSteps =
      kC.head_dim / 16;  // of 16 columns: k of the first product, M of the second
  constexpr int kColumnsOfChunk = 16 / kC.bytes;
  constexpr int kChunks = kC.head_dim / kColumnsOfChunk;  // of 16 bytes
  constexpr int kRowsAtOnce = kC.threads() / kChunks;
  constexpr int kRowsOfWarp = 32 / kChunks;
  constexpr int kCopies = kC.keys() / kRowsAtOnce;  // of a thread, for each of K and V
  static_assert(kCopies * kRowsOfWarp == 16);
  // Where the output fills the registers, addresses come two by two.
  [[maybe_unused]] constexpr int kCopiesAtOnce = kAtoms * kC.head_dim < 512 ? kCopies : 2;
  constexpr int kQSteps = kC.q_in_registers() ? kSteps : 2;
  // Whose scores are in registers together: two, where the output leaves room.
  constexpr int kAtomsAtOnce = kAtoms == 2 || (kAtoms == 4 && kC.head_dim == 64) ? 2 : 1;
  static_assert(!kC.q_in_registers() || kAtomsAtOnce == kAtoms);
  constexpr int kColumns = kC.head_dim / 4;  // of a result, four floats each

  extern __shared__ __align__(128) unsigned char shared_memory[];
  const std::uint32_t base = ptx::shared_address(shared_memory);
  const std::uint32_t mail_barrier = base + kC.barrier_offset();
  auto* const row_keys = reinterpret_cast<KeyRange*>(shared_memory + kC.ranges_offset());
  auto* const mask_rows = reinterpret_cast<std::int64_t*>(shared_memory + kC.mask_rows_offset());
  [[maybe_unused]] auto* const factors =
      reinterpret_cast<float*>(shared_memory + kC.factors_offset());
  auto* const seen_of_warps = reinterpret_cast<KeyRange*>(shared_memory + kC.seen_offset());
  auto* const results = reinterpret_cast<float*>(shared_memory);
  auto* const result_stats = reinterpret_cast<Stats*>(shared_memory + kC.result_stats_offset());
  auto* const before = reinterpret_cast<std::int32_t*>(shared_memory + kC.mail_offset());

  // The merge may be set up while this grid runs; it waits for its end.
  if constexpr (kC.sm90) ptx::grid_launch_dependents();

  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int warp = __shfl_sync(kFullWarp, thread / 32, 0);
  // A thread copies one chunk of 16 bytes of every kRowsAtOnce-th row.
  const int copy_chunk = thread % kChunks, copy_row = thread / kChunks;
  // Where several blocks read the same keys, L2 is to keep them for the others. Of sm_90 alone: with two
  // stages, whose places differ by a uniform register, ptxas 13.0 makes of such a copy an instruction
  // that an H100 does not know (2026-11-26), and no GPU of sm_80 or sm_89 could be asked.
  [[maybe_unused]] const std::uint64_t policy =
      p.row_blocks == 1 ? ptx::evict_first_policy() : ptx::evict_normal_policy();
  // Eight rows' chunks lie in different banks: a row of 64 bytes shares its 128 with the next.
  const auto twist = [](int row) { return kPitch >= 128 ? row & 7 : row >> 1 & 3; };
  const auto swizzled = [&](int row, int chunk) {
    return static_cast<std::uint32_t>(row * kPitch + ((chunk ^ twist(row)) << 4));
  };

  // ---- Which work ----
  const std::int32_t blocks_of_part = p.heads_kv * p.row_blocks;
  auto item = static_cast<std::int32_t>(blockIdx.x), items = item + 1, next = items;
  // Read anew for each head: four numbers would stay in registers through the main loop.
  auto* const shares_there = reinterpret_cast<Shares*>(before + kMostCounted + 1);
  if (in_shares) {
    count<kC.threads()>(p, before, before + kMostCounted + 1, [&](std::int32_t b) {
      return tiles_at(p, b, kC.keys(), kC.start_tiles());
    });
    const std::int32_t all = before[p.batch] * blocks_of_part;
    const auto grid = static_cast<std::int32_t>(gridDim.x);
    // Each block has as many shares as kMostKeys asks of the lengths that there are, not of their maxima.
    const std::int32_t rounds = divide_up(divide_up(all, grid), kMostKeys / kC.keys());
    const Shares shares = share_out(all, min(p.holders, grid * rounds), kLeastShare);
    if (thread == 0) *shares_there = shares;
    __syncthreads();
    item = shares.begin(static_cast<std::int32_t>(blockIdx.x));
    items = shares.tiles;
    for (std::int32_t n = blockIdx.x; thread == 0 && n < p.holders; n += gridDim.x)
      if (n >= shares.holders) p.cuts[n] = Cut{};
  } else if (counted) {
    count<kC.threads()>(p, before, before + kMostCounted + 1,
                        [&](std::int32_t b) { return parts_at(p, b); });
    items = before[p.batch] * blocks_of_part;
  }
#pragma unroll 1
  for (; item < items; item = next) {
    Work work;
    next = kLean ? items : item + static_cast<std::int32_t>(gridDim.x);
    std::int32_t first_tile = 0, last_tile = 0, tiles_of_head = 0;  // of a share
    if (in_shares) {
      const Shares shares = *shares_there;
      const std::int32_t tile = item;
      const std::int32_t holder = shares.holder_of(tile), end = shares.begin(holder + 1);
      work.b = sequence_of_part(before, p.batch, tile / blocks_of_part);
      tiles_of_head = before[work.b + 1] - before[work.b];
      const std::int32_t of_sequence = tile - before[work.b] * blocks_of_part;
      const std::int32_t place = of_sequence / tiles_of_head;
      first_tile = of_sequence - place * tiles_of_head;
      work.kv_head = place / p.row_blocks;
      work.row_block = place - work.kv_head * p.row_blocks;
      const std::int32_t head_begin = tile - first_tile, head_end = head_begin + tiles_of_head;
      last_tile = min(head_end, end) - head_begin;
      next =
          head_end < end ? head_end : shares.begin(holder + static_cast<std::int32_t>(gridDim.x));
      // What comes before the tiles is the time to begin: who has nothing else of a head has none of it.
      first_tile = max(first_tile - kC.start_tiles(), 0);
      last_tile -= kC.start_tiles();
      tiles_of_head -= kC.start_tiles();
      const bool goes_on = head_end > end && last_tile > 0;
      // Two places of each holder: for what it begins and others go on with, and for what it ends.
      work.part = 2 * holder + goes_on;
      if (thread == 0 && head_end >= end) {
        p.cuts[holder] = goes_on
                             ? Cut{work.b, place, shares.holder_of(head_begin + kC.start_tiles()),
                                   shares.holder_of(head_end - 1)}
                             : Cut{};
      }
      if (last_tile <= 0) continue;
    } else if (counted) {
      const std::int32_t number = item / blocks_of_part;
      const std::int32_t within_part = item - number * blocks_of_part;
      work.b = sequence_of_part(before, p.batch, number);
      work.part = number - before[work.b];
      work.kv_head = within_part / p.row_blocks;
      work.row_block = within_part - work.kv_head * p.row_blocks;
    } else {
      work.part = static_cast<std::int32_t>(blockIdx.x);
      work.kv_head = static_cast<std::int32_t>(blockIdx.y) / p.row_blocks;
      work.row_block = static_cast<std::int32_t>(blockIdx.y) - work.kv_head * p.row_blocks;
      work.b = static_cast<std::int32_t>(blockIdx.z);
    }
    Sequence sequence;
    if constexpr (kLean) {
      sequence.q_batch = sequence.kv_batch = work.b;
      sequence.lengths = {1, p.seq_kv, 0};
    } else {
      sequence = sequence_at(p, work.b);
    }
    const std::int32_t first_row = work.row_block * kC.rows;
    const std::int32_t rows = min(sequence.lengths.seq_q * p.group - first_row, kC.rows);
    // The same for all blocks of a cluster. Of a share: rows of a longer sequence, which this has not.
    if (rows <= 0) continue;
    // Keys that each row of the block sees, a row a lane, and that any row of the sequence does: the same
    // code once more where the sequence has rows beside the block's.
    [[maybe_unused]] KeyRange of_lane;
    KeyRange seen{0, p.seq_kv};
    if constexpr (!kLean) {
#pragma unroll 1
      for (int pass = p.row_blocks > 1 ? 0 : 1; pass < 2; ++pass) {
        const std::int32_t row = pass == 1   ? first_row + min(lane, rows - 1)
                                 : lane == 0 ? 0
                                             : sequence.lengths.seq_q * p.group - 1;
        of_lane = keys_of_row(p.sight, sequence.lengths, p.by_group(row));
        if (pass == 0 || p.row_blocks == 1) {
          seen = {__shfl_sync(kFullWarp, of_lane.begin, 0),
                  __shfl_sync(kFullWarp, of_lane.end, pass == 0 ? 31 : rows - 1)};
        }
      }
    }
    if (has_mask && p.mask.searched > 0)
      seen =
          seen_through<kC.threads()>(p.mask, work.b, sequence.lengths.seq_q, seen, seen_of_warps);
    KeyRange keys;
    bool alone = false;  // nobody else has keys of these rows
    if (in_shares) {
      keys.begin = seen.begin + first_tile * kC.keys();
      keys.end = last_tile >= tiles_of_head ? seen.end : seen.begin + last_tile * kC.keys();
      keys.end = max(keys.begin, keys.end);  // rows that see nothing may end before they begin
      alone = first_tile == 0 && last_tile >= tiles_of_head;
    } else {
      const Parts parts = kLean ? p.same : parts_for(p, seen);
      if (work.part >= parts.count && !p.clustered) continue;
      keys = keys_of_part(parts, seen, work.part);
      alone = parts.count == 1;
    }
    // Keys that all of this block's rows see.
    std::int32_t all_begin = 0, all_end = keys.end;
    if constexpr (!kLean) {
      all_begin = __shfl_sync(kFullWarp, of_lane.begin, rows - 1);
      all_end = min(__shfl_sync(kFullWarp, of_lane.end, 0), keys.end);
      if (warp == 0 && lane < kC.rows) row_keys[lane] = lane < rows ? of_lane : KeyRange{};
    }

    // Blocks of a cluster, and rows that each of them merges.
    const int cluster = 1 << p.cluster_log2;
    constexpr int kRowsLog2 = std::countr_zero(static_cast<unsigned>(kC.rows));
    const int rows_each_log2 = kRowsLog2 - p.cluster_log2;
    const int rows_each = 1 << rows_each_log2;
    const int rows_owned = min(max(rows - static_cast<int>(blockIdx.x) * rows_each, 0), rows_each);
    if constexpr (kC.clusters()) {
      if (p.clustered) {
        if (thread == 0) {
          ptx::mbarrier_init(mail_barrier, 1);
          ptx::fence_mbarrier_init();
          ptx::mbarrier_arrive_expect_tx(mail_barrier, cluster * rows_owned * kC.letter_bytes());
        }
        __syncwarp();
        ptx::cluster_arrive_relaxed();
      }
    }

    // ---- Prologue: Q and the first tiles ----
    for (int r = thread; kC.general() && r < kC.rows; r += kC.threads()) {
      const std::int32_t row = first_row + min(r, rows - 1);
      if (has_mask) {
        mask_rows[r] = work.b * p.mask.batch + head_of(p, work.kv_head, row) * p.mask.head +
                       p.by_group(row) * p.mask.row;
      }
      // Of e4m3 each row has a factor of its own: with it a difference is an exponent, or, where scores
      // are transformed, a product a score. Its sign is given to the products.
      if constexpr (kE4m3) {
        const std::int32_t head = head_of(p, work.kv_head, row);
        const float product = product_scale(p, work.b, head);
        factors[r] = p.transform ? product * p.transform_scale
                                 : copysignf(row_scale(p, work.b, head).exponent, product);
      }
    }
    const auto exponent_scale_of = [&](int row) {
      if constexpr (kE4m3)
        return p.transform ? 1.0f : fabsf(factors[row]);
      else
        return p.exponent_scale;
    };
    const int copy_column = copy_chunk * kColumnsOfChunk;
    const T* const q = static_cast<const T*>(p.q.data) + sequence.q_batch * p.q.batch + copy_column;
    const T* const k = static_cast<const T*>(p.k.data) + work.kv_head * p.k.head + copy_column;
    const T* const v = static_cast<const T*>(p.v.data) + work.kv_head * p.v.head + copy_column;
    const bool k_column = copy_column < p.head_dim, v_column = copy_column < p.value_dim;
    for (int r = copy_row; r < kC.rows; r += kRowsAtOnce) {
      const std::int32_t row = first_row + min(r, rows - 1);
      const std::int32_t query = kLean ? 0 : p.by_group(row);
      const std::int64_t head = work.kv_head * p.group + (row - query * p.group);
      ptx::cp_async_16(base + kC.q_offset() + swizzled(r, copy_chunk),
                       q + head * p.q.head + (sequence.q_row + query) * p.q.row,
                       r < rows && k_column);
    }

    const std::int32_t tiles = divide_up(keys.end - keys.begin, kC.keys());
    const std::int32_t* const table =
        !kLean && p.page_table != nullptr ? p.page_table + work.b * p.table_row : nullptr;
    const Place dense{sequence.kv_batch * p.k.batch + sequence.kv_row * p.k.row,
                      sequence.kv_batch * p.v.batch + sequence.kv_row * p.v.row};
    const auto* const k_bytes = reinterpret_cast<const char*>(table != nullptr ? k : k + dense.k);
    const auto* const v_bytes = reinterpret_cast<const char*>(table != nullptr ? v : v + dense.v);
    // Of the rows that a warp copies next lane n looks up the n-th. What it reads waits for the tile's
    // turn: whatever is done with it, the clamp too, waits for the load.
    std::int32_t entry = 0, row_of_page = 0;
    const auto look_up = [&](std::int32_t tile) {
      if (table == nullptr || tile >= tiles) return;
      const std::int32_t row =
          warp * kRowsOfWarp + lane % kRowsOfWarp + lane % 16 / kRowsOfWarp * kRowsAtOnce;
      // Entries of pages behind the last key may hold anything.
      const std::int32_t key = min(keys.begin + tile * kC.keys() + row, keys.end - 1);
      const std::int32_t number = p.page_size(key);
      entry = __ldg(table + number);
      row_of_page = key - number * static_cast<std::int32_t>(p.page_size.divisor);
    };
    const auto load = [&](std::int32_t tile) {
      const std::uint32_t to = base + tile % kC.stages * kC.stage_bytes();
      const std::int32_t first_key = keys.begin + tile * kC.keys() + copy_row;
      const auto copy = [&](int i, std::int32_t key, std::uint32_t k_step, std::uint32_t v_step) {
        // Others are zeros: what nobody sees must not reach P V.
        const bool there = key < keys.end;
        const std::uint32_t cell = to + swizzled(copy_row + i * kRowsAtOnce, copy_chunk);
        const auto fetch = [&](std::uint32_t cell_of, const char* from, bool keep) {
          if constexpr (kConfigs[kIndex].sm90)
            ptx::cp_async_16(cell_of, from, keep, policy);
          else
            ptx::cp_async_16(cell_of, from, keep);
        };
        fetch(cell, k_bytes + std::uint64_t{k_step} * p.k_steps.bytes, there && k_column);
        fetch(cell + kC.tile_bytes(), v_bytes + std::uint64_t{v_step} * p.v_steps.bytes,
              there && v_column);
      };
      if (table != nullptr) {
        const auto page = static_cast<std::uint32_t>(within(entry, 0, p.pages - 1));
        const auto row = static_cast<std::uint32_t>(row_of_page);
        const std::uint32_t k_step = page * p.k_steps.page + row * p.k_steps.row;
        const std::uint32_t v_step = page * p.v_steps.page + row * p.v_steps.row;
#pragma unroll kCopiesAtOnce
        for (int i = 0; i < kCopies; ++i) {
          const int from = i * kRowsOfWarp + lane / kChunks;
          copy(i, first_key + i * kRowsAtOnce, __shfl_sync(kFullWarp, k_step, from),
               __shfl_sync(kFullWarp, v_step, from));
        }
      } else {
#pragma unroll kCopiesAtOnce
        for (int i = 0; i < kCopies; ++i) {
          const std::int32_t key = first_key + i * kRowsAtOnce;
          const auto row = static_cast<std::uint32_t>(min(key, keys.end - 1));
          copy(i, key, row, row);
        }
      }
    };
    float o[kAtoms][kSteps][4] = {};  // O^T: columns of V by rows
    float most[kAtoms][2], sum[kAtoms][2] = {};
#pragma unroll
    for (int a = 0; a < kAtoms; ++a) most[a][0] = most[a][1] = -INFINITY;
    std::uint32_t q_fragment[kQSteps][kAtomsAtOnce][2];
    const auto load_q = [&](int step, int slot, int first) {  // two steps
#pragma unroll
      for (int a = 0; a < kAtomsAtOnce; ++a) {
        std::uint32_t b[4];
        const int row = (first + a) * 8 + lane % 8;
        if constexpr (kE4m3) {
          // Two chunks of 16 columns, whose bytes are split as K's are.
          ptx::ldmatrix_x4(b, base + kC.q_offset() + swizzled(row, step + lane / 8 % 2));
          b[3] = decode_e4m3x2(b[1] >> 16);
          b[2] = decode_e4m3x2(b[1]);
          b[1] = decode_e4m3x2(b[0] >> 16);
          b[0] = decode_e4m3x2(b[0]);
        } else {
          ptx::ldmatrix_x4(b, base + kC.q_offset() + swizzled(row, 2 * step + lane / 8));
        }
        q_fragment[slot][a][0] = b[0];
        q_fragment[slot][a][1] = b[1];
        q_fragment[slot + 1][a][0] = b[2];
        q_fragment[slot + 1][a][1] = b[3];
      }
    };
    // A lane's row of the four 8x8 matrices of 16 keys by 16 columns, and its first chunk: the
    // chunks of a step differ from those of step 0 in bits that the swizzle leaves.
    const int k_row = warp * 16 + lane % 16;
    const std::uint32_t k_row_offset = k_row * kPitch, k_chunk = lane / 16 ^ twist(k_row);
    const int v_row = warp * 16 + lane / 16 * 8 + lane % 8;
    const std::uint32_t v_row_offset = v_row * kPitch, v_chunk = lane / 8 % 2 ^ twist(v_row);

    // An array mask's elements as they lie, for the keys and rows of a lane's scores.
    constexpr bool kMaskEarly = kAtoms == 1 || (kAtoms == 2 && kC.head_dim <= 128);
    std::uint32_t cells[kMaskEarly ? kAtoms : 1][4] = {};
    const auto read_mask = [&](std::int32_t first_key, int a, std::uint32_t(&to)[4]) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::int32_t key = min(first_key + lane / 4 + i / 2 * 8, keys.end - 1);
        to[i] = mask_cell(p.mask, mask_rows[a * 8 + lane % 4 * 2 + i % 2] + key * p.mask.key);
      }
    };

    // ---- Mainloop ----
    // Its first rounds ask for tiles alone, so that one place has the code for it: with pages that is a third
    // of the kernel. Where it is short it stands here too, and takes 0.1 to 0.4 us less (H100, 2026-11-26).
    constexpr bool kAskApart = kLean;
    if constexpr (kAskApart) {
#pragma unroll
      for (int tile = 0; tile < kC.stages - 1; ++tile) {
        if (tile < tiles) load(tile);
        ptx::cp_async_commit();
      }
    } else {
      look_up(0);
    }
#pragma unroll 1
    for (std::int32_t tile = kAskApart ? 0 : 1 - kC.stages; tile < tiles; ++tile) {
      const std::int32_t first_key = keys.begin + tile * kC.keys() + warp * 16;
      const bool is_here = kAskApart || tile >= 0;
      if (has_mask && is_here) {
        if (tile == 0) __syncthreads();  // the rows' places are there
        if constexpr (kMaskEarly) {      // they come while the tile is waited for
          if (first_key < keys.end) {
#pragma unroll
            for (int a = 0; a < kAtoms; ++a) read_mask(first_key, a, cells[a]);
          }
        }
      }
      if (is_here) {
        ptx::cp_async_wait<kC.stages - 2>();
        __syncthreads();  // the tile is here for all, and the one before has been multiplied by all
      }
      if (tile + kC.stages - 1 < tiles) {
        load(tile + kC.stages - 1);
        look_up(tile + kC.stages);
      }
      ptx::cp_async_commit();
      if (!is_here) continue;
      if constexpr (kC.q_in_registers()) {
        if (tile == 0) {
#pragma unroll
          for (int step = 0; step < kSteps; step += 2) load_q(step, step, 0);
        }
      }
      if (first_key >= keys.end) continue;  // uniform over the warp
      const std::uint32_t k_base = base + tile % kC.stages * kC.stage_bytes() + k_row_offset;
      const std::uint32_t v_base =
          base + tile % kC.stages * kC.stage_bytes() + kC.tile_bytes() + v_row_offset;

      // S^T = K Q^T, in two sums, so that an mma need not wait for the one before
      const bool hides = first_key < all_begin || first_key + 16 > all_end;
      std::uint32_t weights[kAtoms][2];
#pragma unroll
      for (int first = 0; first < kAtoms; first += kAtomsAtOnce) {
        float x[kAtomsAtOnce][2][4] = {};
#pragma unroll
        for (int read = 0; read < kSteps / Operands::kSteps; ++read) {
          if constexpr (!kC.q_in_registers()) {
            if (read * Operands::kSteps % 2 == 0) load_q(read * Operands::kSteps, 0, first);
          }
          std::uint32_t raw[4], fragment[Operands::kSteps][4];
          ptx::ldmatrix_x4(raw, k_base + ((k_chunk ^ 2 * read) << 4));
          Operands::split(raw, fragment);
#pragma unroll
          for (int i = 0; i < Operands::kSteps; ++i) {
            const int step = read * Operands::kSteps + i;
#pragma unroll
            for (int n = 0; n < kAtomsAtOnce; ++n) {
              const auto& b = q_fragment[kC.q_in_registers() ? step : step % 2][n];
              ptx::mma_m16n8k16<Element>(x[n][step % 2], fragment[i], b[0], b[1]);
            }
          }
        }
#pragma unroll
        for (int n = 0; n < kAtomsAtOnce; ++n) {
          const int a = first + n;
          float s[4];  // keys lane / 4 and 8 more, of rows lane % 4 * 2 and the next
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            s[i] = x[n][0][i] + x[n][1][i];
            if constexpr (kE4m3) {
              const float of_row = factors[a * 8 + lane % 4 * 2 + i % 2];
              s[i] = p.transform ? transformed(s[i], of_row, p.transform_cap)
                                 : with_sign_of(s[i], of_row);
            } else {
              if (transform) s[i] = transformed(s[i], p.transform_scale, p.transform_cap);
            }
          }
          if (has_mask) {
            std::uint32_t(&of_mask)[4] = cells[kMaskEarly ? a : 0];
            if constexpr (!kMaskEarly) read_mask(first_key, a, of_mask);
#pragma unroll
            for (int i = 0; i < 4; ++i) s[i] = masked_by(p.mask, s[i], of_mask[i]);
          }
          if (hides) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const KeyRange visible = kLean ? keys : row_keys[a * 8 + lane % 4 * 2 + i % 2];
              const std::int32_t key = first_key + lane / 4 + i / 2 * 8;
              if (key < visible.begin || key >= min(visible.end, keys.end)) s[i] = -INFINITY;
            }
          }
          const float most0 = fmaxf(most[a][0], max_of_keys(fmaxf(s[0], s[2])));
          const float most1 = fmaxf(most[a][1], max_of_keys(fmaxf(s[1], s[3])));
          // While a row has no score above -inf, 0 keeps its weights 0.
          const float base0 = most0 == -INFINITY ? 0.0f : most0;
          const float base1 = most1 == -INFINITY ? 0.0f : most1;
          const int row = a * 8 + lane % 4 * 2;
          const float scale0 = exponent_scale_of(row), scale1 = exponent_scale_of(row + 1);
          if (__any_sync(kFullWarp, most0 != most[a][0] || most1 != most[a][1])) {
            const float decay0 = exp2_fast((most[a][0] - base0) * scale0);
            const float decay1 = exp2_fast((most[a][1] - base1) * scale1);
            most[a][0] = most0;
            most[a][1] = most1;
            sum[a][0] *= decay0;
            sum[a][1] *= decay1;
#pragma unroll
            for (int step = 0; step < kSteps; ++step) {
              o[a][step][0] *= decay0;
              o[a][step][1] *= decay1;
              o[a][step][2] *= decay0;
              o[a][step][3] *= decay1;
            }
          }
          const float w0 = exp2_fast((s[0] - base0) * scale0);
          const float w1 = exp2_fast((s[1] - base1) * scale1);
          const float w2 = exp2_fast((s[2] - base0) * scale0);
          const float w3 = exp2_fast((s[3] - base1) * scale1);
          sum[a][0] += w0 + w2;
          sum[a][1] += w1 + w3;
          weights[a][0] = ptx::transpose_8x8(pack2<Element>(w0, w1));
          weights[a][1] = ptx::transpose_8x8(pack2<Element>(w2, w3));
        }
      }

      // O^T += V^T P^T
#pragma unroll
      for (int read = 0; read < kSteps / Operands::kSteps; ++read) {
        std::uint32_t raw[4], fragment[Operands::kSteps][4];
        ptx::ldmatrix_x4_trans(raw, v_base + ((v_chunk ^ 2 * read) << 4));
        Operands::split_transposed(raw, fragment);
#pragma unroll
        for (int i = 0; i < Operands::kSteps; ++i) {
#pragma unroll
          for (int a = 0; a < kAtoms; ++a) {
            ptx::mma_m16n8k16<Element>(o[a][read * Operands::kSteps + i], fragment[i],
                                       weights[a][0], weights[a][1]);
          }
        }
      }
    }

    // ---- Epilogue: the warps merge, then the parts ----
    ptx::cp_async_wait<0>();
    __syncthreads();
#pragma unroll
    for (int a = 0; a < kAtoms; ++a) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = warp * kC.rows + a * 8 + lane % 4 * 2 + i;
        const float whole = sum_of_keys(sum[a][i]);
        if (lane < 4) result_stats[row] = {most[a][i], whole};
        constexpr int kApart = Operands::kColumnStep;
        float* const to = results + row * kC.result_pitch() + lane / 4 * (kApart == 8 ? 1 : 2);
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          to[16 * step] = o[a][step][i];
          to[16 * step + kApart] = o[a][step][2 + i];
        }
      }
    }
    if constexpr (kC.clusters()) {
      if (p.clustered) {
        __syncwarp();
        ptx::cluster_wait();  // the others' barriers are there
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int cell = thread; cell < rows * kColumns; cell += kC.threads()) {
      const int row = cell / kColumns, chunk = cell % kColumns;
      float largest = -INFINITY;
#pragma unroll
      for (int w = 0; w < kC.warps; ++w) {
        largest = fmaxf(largest, result_stats[w * kC.rows + row].most);
      }
      Sums sums;
      const float scale = exponent_scale_of(row);
#pragma unroll
      for (int w = 0; w < kC.warps; ++w) {
        const Stats of = result_stats[w * kC.rows + row];
        const auto* from = reinterpret_cast<const float4*>(
            results + (w * kC.rows + row) * kC.result_pitch() + 4 * chunk);
        sums.add(*from, of.sum, weight_of(of.most, largest, scale));
      }
      if constexpr (kC.clusters()) {
        if (p.clustered) {
          const int owner = row >> rows_each_log2;
          const std::uint32_t letter =
              base + kC.mail_offset() +
              ((work.part << rows_each_log2) + (row & (rows_each - 1))) * kC.letter_bytes();
          const std::uint32_t to = ptx::map_shared_rank(letter, owner);
          const std::uint32_t barrier = ptx::map_shared_rank(mail_barrier, owner);
          ptx::store_async_16(to + 16 + chunk * 16,
                              make_uint4(__float_as_uint(sums.o.x), __float_as_uint(sums.o.y),
                                         __float_as_uint(sums.o.z), __float_as_uint(sums.o.w)),
                              barrier);
          if (chunk == 0) {
            ptx::store_async_16(
                to, make_uint4(__float_as_uint(largest), __float_as_uint(sums.sum), 0, 0), barrier);
          }
          continue;
        }
      }
      const std::int32_t row_of_head = first_row + row;
      if (alone) {
        finish<kC.build>(p, work.b, sequence, work.kv_head, row_of_head, chunk, largest, sums);
      } else {
        const std::int64_t at =
            in_shares ? std::int64_t{work.part} * kC.rows + row
                      : partial_index(p, work.b, work.kv_head, row_of_head, work.part);
        reinterpret_cast<float4*>(p.partial)[at * kColumns + chunk] = sums.o;
        if (chunk == 0) p.stats[at] = {largest, sums.sum};
      }
    }
    if constexpr (kC.clusters()) {
      if (p.clustered && rows_owned > 0) {
        ptx::mbarrier_wait(mail_barrier, 0);
        const auto letter = [&](int part, int row) {
          return shared_memory + kC.mail_offset() +
                 ((part << rows_each_log2) + row) * kC.letter_bytes();
        };
#pragma unroll 1
        for (int cell = thread; cell < rows_owned * kColumns; cell += kC.threads()) {
          const int row = cell / kColumns, chunk = cell % kColumns;
          // All loads at once, also where the cluster is smaller: what is not there weighs nothing.
          Stats of[kCluster];
          float4 from[kCluster];
          float largest = -INFINITY;
#pragma unroll
          for (int part = 0; part < kCluster; ++part) {
            of[part] = {-INFINITY, 0.0f};
            from[part] = {0.0f, 0.0f, 0.0f, 0.0f};
            if (part < cluster) {
              of[part] = *reinterpret_cast<const Stats*>(letter(part, row));
              from[part] = *reinterpret_cast<const float4*>(letter(part, row) + 16 + chunk * 16);
            }
            largest = fmaxf(largest, of[part].most);
          }
          Sums sums;
          const std::int32_t row_of_tile = static_cast<std::int32_t>(blockIdx.x) * rows_each + row;
          const float scale = exponent_scale_of(row_of_tile);
#pragma unroll
          for (int part = 0; part < kCluster; ++part) {
            sums.add(from[part], of[part].sum, weight_of(of[part].most, largest, scale));
          }
          finish<kC.build>(p, work.b, sequence, work.kv_head, first_row + row_of_tile, chunk,
                           largest, sums);
        }
      }
    }
    __syncthreads();  // the next work's tiles take the results' place
  }
}

template <class T, Family kFamily>
const std::array<const void*, kFamily.size()>& entries() {
  static const auto table = []<std::size_t... kI>(std::index_sequence<kI...>) {
    return std::array{reinterpret_cast<const void*>(&attention_kernel<T, kFamily.begin + kI>)...};
  }
  (std::make_index_sequence<kFamily.size()>());
  return table;
}

}  // namespace greenfast::cuda::decode
