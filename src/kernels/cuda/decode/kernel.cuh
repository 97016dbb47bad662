// cuda.sm90.decode and cuda.sm80.decode: few queries over a cache of keys, as fast as memory delivers it.
//
// Idea    A block has one KV head of a sequence, all query heads of its group as the columns of one
//         product, and a part of the keys: S^T = K Q^T and O^T = V^T P^T by mma.sync, so that 16 keys
//         fill an instruction where one query would waste 15/16 of it. K and V come row by row
//         (cp.async), so that a row may lie in any page. Parts merge within the launch where a
//         cluster of sm_90 holds them, else in a second kernel, which sm_90 launches early.
// Takes   fp16 and bf16; up to 64 rows of a KV head (queries times group); head dims 8..256, V's own;
//         every length, index, page size, band, chunk, sink and softcap of docs/serving.md.
// Limits  no array mask, no ALiBi, no e4m3; rows of Q, K and V at 16-byte boundaries.
// Budget  108 KB of shared memory at D 128, 56 at D 64: two blocks of 4 warps an SM, 64 KB of K and V
//         in flight each; in clusters of 8 and some of 4 one block of 8 warps. One number is spilled
//         at D 256 with 16 rows, outside the loop; docs/kernels/sm90-decode.md. Of sm_80 37 to
//         76 KB; docs/kernels/sm80-decode.md.
// Bound   memory: K and V once.
#pragma once

#include <bit>
#include <type_traits>
#include <utility>

#include "kernels/cuda/decode/finish.cuh"
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

/// before[b]: parts of the sequences before b; before[batch]: of all.
template <int kThreads>
__device__ __forceinline__ void count_parts(const Params& p, std::int32_t* before,
                                            std::int32_t* of_warps) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int each = (p.batch + kThreads - 1) / kThreads;
  const int begin = min(thread * each, p.batch), end = min(begin + each, p.batch);
  std::int32_t mine = 0;
  for (int b = begin; b < end; ++b) {
    before[b + 1] = parts_at(p, b);
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

template <class T, std::size_t kIndex>
__global__ void __launch_bounds__(kConfigs[kIndex].threads(), kConfigs[kIndex].blocks_per_sm())
    attention_kernel(const __grid_constant__ Params p) {
  constexpr Config kC = kConfigs[kIndex];
  static_assert(kC.valid());
  constexpr int kAtoms = kC.atoms();
  constexpr int kPitch = kC.pitch();
  constexpr int kSteps =
      kC.head_dim / 16;  // of 16 columns: k of the first product, M of the second
  constexpr int kChunks = kC.head_dim / 8;  // of 16 bytes
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
  const auto swizzled = [](int row, int chunk) {
    return static_cast<std::uint32_t>(row * kPitch + ((chunk ^ (row & 7)) << 4));
  };

  // ---- Which work ----
  const std::int32_t blocks_of_part = p.heads_kv * p.row_blocks;
  std::int64_t item = blockIdx.x, items = item + 1;
  if (p.counted) {
    count_parts<kC.threads()>(p, before, before + kMostCounted + 1);
    items = std::int64_t{before[p.batch]} * blocks_of_part;
  }
#pragma unroll 1
  for (; item < items; item += gridDim.x) {
    Work work;
    if (p.counted) {
      const auto number = static_cast<std::int32_t>(item / blocks_of_part);
      const auto within_part =
          static_cast<std::int32_t>(item - std::int64_t{number} * blocks_of_part);
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
    const Sequence sequence = sequence_at(p, work.b);
    const std::int32_t first_row = work.row_block * kC.rows;
    const std::int32_t rows = min(sequence.lengths.seq_q * p.group - first_row, kC.rows);
    if (rows <= 0) continue;  // the same for all blocks of a cluster
    const KeyRange seen = keys_of_sequence(p.sight, sequence.lengths);
    const Parts parts = parts_for(p, seen);
    if (work.part >= parts.count && !p.clustered) continue;
    const KeyRange keys = keys_of_part(parts, seen, work.part);
    // Keys that all of this block's rows see.
    const std::int32_t all_begin =
        keys_of_row(p.sight, sequence.lengths, p.by_group(first_row + rows - 1)).begin;
    const std::int32_t all_end =
        min(keys_of_row(p.sight, sequence.lengths, p.by_group(first_row)).end, keys.end);

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
    for (int r = thread; r < kC.rows; r += kC.threads()) {
      row_keys[r] =
          r < rows ? keys_of_row(p.sight, sequence.lengths, p.by_group(first_row + r)) : KeyRange{};
    }
    const T* const q =
        static_cast<const T*>(p.q.data) + sequence.q_batch * p.q.batch + copy_chunk * 8;
    const T* const k = static_cast<const T*>(p.k.data) + work.kv_head * p.k.head + copy_chunk * 8;
    const T* const v = static_cast<const T*>(p.v.data) + work.kv_head * p.v.head + copy_chunk * 8;
    const bool k_column = copy_chunk * 8 < p.head_dim, v_column = copy_chunk * 8 < p.value_dim;
    for (int r = copy_row; r < kC.rows; r += kRowsAtOnce) {
      const std::int32_t row = first_row + min(r, rows - 1);
      const std::int32_t query = p.by_group(row);
      const std::int64_t head = work.kv_head * p.group + (row - query * p.group);
      ptx::cp_async_16(base + kC.q_offset() + swizzled(r, copy_chunk),
                       q + head * p.q.head + (sequence.q_row + query) * p.q.row,
                       r < rows && k_column);
    }

    const std::int32_t tiles = divide_up(keys.end - keys.begin, kC.keys());
    const std::int32_t* const table =
        p.page_table != nullptr ? p.page_table + work.b * p.table_row : nullptr;
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
#pragma unroll
    for (int tile = 0; tile < kC.stages - 1; ++tile) {
      look_up(tile);
      if (tile < tiles) load(tile);
      ptx::cp_async_commit();
    }
    look_up(kC.stages - 1);

    float o[kAtoms][kSteps][4] = {};  // O^T: columns of V by rows
    float most[kAtoms][2], sum[kAtoms][2] = {};
#pragma unroll
    for (int a = 0; a < kAtoms; ++a) most[a][0] = most[a][1] = -INFINITY;
    std::uint32_t q_fragment[kQSteps][kAtomsAtOnce][2];
    const auto load_q = [&](int step, int slot, int first) {  // two steps
#pragma unroll
      for (int a = 0; a < kAtomsAtOnce; ++a) {
        std::uint32_t b[4];
        ptx::ldmatrix_x4(
            b, base + kC.q_offset() + swizzled((first + a) * 8 + lane % 8, 2 * step + lane / 8));
        q_fragment[slot][a][0] = b[0];
        q_fragment[slot][a][1] = b[1];
        q_fragment[slot + 1][a][0] = b[2];
        q_fragment[slot + 1][a][1] = b[3];
      }
    };
    // A lane's row of the four 8x8 matrices of 16 keys by 16 columns, and its first chunk: the
    // chunks of a step differ from those of step 0 in bits that the swizzle leaves.
    const int k_row = warp * 16 + lane % 16;
    const std::uint32_t k_row_offset = k_row * kPitch, k_chunk = lane / 16 ^ (k_row & 7);
    const int v_row = warp * 16 + lane / 16 * 8 + lane % 8;
    const std::uint32_t v_row_offset = v_row * kPitch, v_chunk = lane / 8 % 2 ^ (v_row & 7);

    // ---- Mainloop ----
#pragma unroll 1
    for (std::int32_t tile = 0; tile < tiles; ++tile) {
      ptx::cp_async_wait<kC.stages - 2>();
      __syncthreads();  // the tile is here for all, and the one before has been multiplied by all
      if (tile + kC.stages - 1 < tiles) {
        load(tile + kC.stages - 1);
        look_up(tile + kC.stages);
      }
      ptx::cp_async_commit();
      if constexpr (kC.q_in_registers()) {
        if (tile == 0) {
#pragma unroll
          for (int step = 0; step < kSteps; step += 2) load_q(step, step, 0);
        }
      }
      const std::int32_t first_key = keys.begin + tile * kC.keys() + warp * 16;
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
        for (int step = 0; step < kSteps; ++step) {
          if constexpr (!kC.q_in_registers()) {
            if (step % 2 == 0) load_q(step, 0, first);
          }
          std::uint32_t fragment[4];
          ptx::ldmatrix_x4(fragment, k_base + ((k_chunk ^ 2 * step) << 4));
#pragma unroll
          for (int n = 0; n < kAtomsAtOnce; ++n) {
            const auto& b = q_fragment[kC.q_in_registers() ? step : step % 2][n];
            ptx::mma_m16n8k16<T>(x[n][step % 2], fragment, b[0], b[1]);
          }
        }
#pragma unroll
        for (int n = 0; n < kAtomsAtOnce; ++n) {
          const int a = first + n;
          float s[4];  // keys lane / 4 and 8 more, of rows lane % 4 * 2 and the next
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            s[i] = x[n][0][i] + x[n][1][i];
            if (p.transform) s[i] = transformed(s[i], p.transform_scale, p.transform_cap);
          }
          if (hides) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const KeyRange visible = row_keys[a * 8 + lane % 4 * 2 + i % 2];
              const std::int32_t key = first_key + lane / 4 + i / 2 * 8;
              if (key < visible.begin || key >= min(visible.end, keys.end)) s[i] = -INFINITY;
            }
          }
          const float most0 = fmaxf(most[a][0], max_of_keys(fmaxf(s[0], s[2])));
          const float most1 = fmaxf(most[a][1], max_of_keys(fmaxf(s[1], s[3])));
          // While a row has no score above -inf, 0 keeps its weights 0.
          const float base0 = most0 == -INFINITY ? 0.0f : most0;
          const float base1 = most1 == -INFINITY ? 0.0f : most1;
          if (__any_sync(kFullWarp, most0 != most[a][0] || most1 != most[a][1])) {
            const float decay0 = exp2_fast((most[a][0] - base0) * p.exponent_scale);
            const float decay1 = exp2_fast((most[a][1] - base1) * p.exponent_scale);
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
          const float w0 = exp2_fast((s[0] - base0) * p.exponent_scale);
          const float w1 = exp2_fast((s[1] - base1) * p.exponent_scale);
          const float w2 = exp2_fast((s[2] - base0) * p.exponent_scale);
          const float w3 = exp2_fast((s[3] - base1) * p.exponent_scale);
          sum[a][0] += w0 + w2;
          sum[a][1] += w1 + w3;
          weights[a][0] = ptx::transpose_8x8(pack2<T>(w0, w1));
          weights[a][1] = ptx::transpose_8x8(pack2<T>(w2, w3));
        }
      }

      // O^T += V^T P^T
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        std::uint32_t fragment[4];
        ptx::ldmatrix_x4_trans(fragment, v_base + ((v_chunk ^ 2 * step) << 4));
#pragma unroll
        for (int a = 0; a < kAtoms; ++a) {
          ptx::mma_m16n8k16<T>(o[a][step], fragment, weights[a][0], weights[a][1]);
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
        float* const to = results + row * kC.result_pitch() + lane / 4;
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          to[16 * step] = o[a][step][i];
          to[16 * step + 8] = o[a][step][2 + i];
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
#pragma unroll
      for (int w = 0; w < kC.warps; ++w) {
        const Stats of = result_stats[w * kC.rows + row];
        const auto* from = reinterpret_cast<const float4*>(
            results + (w * kC.rows + row) * kC.result_pitch() + 4 * chunk);
        sums.add(*from, of.sum, weight_of(of.most, largest, p.exponent_scale));
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
      if (parts.count == 1) {
        finish(p, sequence, work.kv_head, row_of_head, chunk, largest, sums);
      } else {
        const std::int64_t at = partial_index(p, work.b, work.kv_head, row_of_head, work.part);
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
#pragma unroll
          for (int part = 0; part < kCluster; ++part) {
            sums.add(from[part], of[part].sum, weight_of(of[part].most, largest, p.exponent_scale));
          }
          finish(p, sequence, work.kv_head,
                 first_row + static_cast<std::int32_t>(blockIdx.x) * rows_each + row, chunk,
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
