// cuda.sm80.serving: everything that serving asks for. mma.sync m16n8k16, ldmatrix, cp.async;
// sm_80 and later.
//
// Idea    The loop of cuda.sm80.mma with tiles of 64 rows, where a row is a query of one of the
//         query heads that share a KV head: decoding reads K and V once for a group. Where a
//         sequence lies, how long it is and what its rows see is read from the call's arrays; rows
//         of K come through the page table one by one.
// Takes   fp16 and bf16, head dims 8..256 in steps of 8, V's apart, any strides and 2-byte
//         alignment; packed, used, padded, indexed and paged sequences, chunks, sinks, slopes and
//         array masks beside every mask and option of the library.
// Limits  sequences up to 2^30; no split over keys: few sequences leave most of a GPU idle.
// Budget  two CTAs of 4 warps an SM up to D 128, one above.
// Bound   latency of one block of keys after the other; issue slots where tiles are full.
#pragma once

#include <type_traits>
#include <utility>

#include <greenfast/arithmetic.hpp>

#include "kernels/cuda/device/ptx_cp_async.cuh"
#include "kernels/cuda/device/ptx_mma.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/sm80_serving/config.hpp"

namespace greenfast::cuda::sm80_serving {

// ---- Scores and sums ----

/// What is added to the scores of one row, in units of log2.
struct Bias {
  const Params& p;
  float slope = 0.0f;
  std::int64_t mask_at = 0;

  __device__ __forceinline__ Bias(const Params& params, std::uint32_t batch, std::uint32_t head,
                                  int query)
      : p(params) {
    if (p.slopes != nullptr)
      slope = p.slopes[std::int64_t{batch} * p.slopes_of_entry + head] * (1.0f / kLn2);
    if (p.mask != nullptr) mask_at = batch * p.mask_batch + head * p.mask_head + query * p.mask_row;
  }
  /// For a key that the row sees, `distance` from it.
  __device__ __forceinline__ float add_to(float score, int key, int distance) const {
    if (p.slopes != nullptr) score = fmaf(-slope, fabsf(static_cast<float>(distance)), score);
    if (p.mask == nullptr) return score;
    const std::int64_t at = mask_at + key * p.mask_key;
    if (p.bool_mask) return static_cast<const unsigned char*>(p.mask)[at] != 0 ? score : -INFINITY;
    const float bias = p.mask_type == ElementType::f32 ? static_cast<const float*>(p.mask)[at]
                       : p.mask_type == ElementType::f16
                           ? __half2float(static_cast<const __half*>(p.mask)[at])
                           : __bfloat162float(static_cast<const __nv_bfloat16*>(p.mask)[at]);
    return bias == -INFINITY ? bias : fmaf(bias, 1.0f / kLn2, score);
  }
};

// ---- Copies ----

/// Copies kRows rows to shared memory, each from where `source_of` says; null: zeros. Columns from
/// head_dim on are zeros, and never read. Asynchronous where rows are aligned.
template <class T, Config kC, int kRows, class SourceOf>
__device__ __forceinline__ void copy_rows(std::uint32_t target, int head_dim, bool aligned,
                                          const SourceOf& source_of) {
  constexpr int kChunks = kC.head_dim / 8, kLanes = 8, kStep = kC.threads() / kLanes;
  static_assert(kChunks % kLanes == 0 && kRows % kStep == 0);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  int r = static_cast<int>(threadIdx.x) / kLanes;
  target += r * kC.pitch() + lane * 16;
#pragma unroll 1
  for (; r < kRows; r += kStep) {
    const T* const source = source_of(r);
#pragma unroll
    for (int c = 0; c < kChunks; c += kLanes) {
      const int column = (lane + c) * 8;
      const bool keep = source != nullptr && column < head_dim;
      if (aligned) {
        ptx::cp_async_16(target + c * 16, keep ? source + column : source, keep);
        continue;
      }
      uint4 value = make_uint4(0, 0, 0, 0);
      if (keep) {
        const auto* words = reinterpret_cast<const std::uint16_t*>(source + column);
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
    target += kStep * kC.pitch();
  }
}

/// Columns 8n + 2t and 8n + 2t + 1 of a row, for lane 4g + t.
template <class TOut, int kAtoms>
__device__ __forceinline__ void store_row(TOut* row, const float (&o)[kAtoms][4], int half,
                                          float factor, int value_dim) {
  const int t = threadIdx.x & 3;
#pragma unroll
  for (int n = 0; n < kAtoms; ++n) {
    const int column = 8 * n + 2 * t;
    if (column >= value_dim) continue;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float x = o[n][2 * half + e] * factor;
      if constexpr (std::is_same_v<TOut, __half>) {
        row[column + e] = __float2half_rn(finite_mean(x));
      } else if constexpr (std::is_same_v<TOut, __nv_bfloat16>) {
        row[column + e] = __float2bfloat16_rn(x);
      } else {
        row[column + e] = x;
      }
    }
  }
}

// ---- The kernel ----

template <class T, std::size_t kIndex>
__global__ void __launch_bounds__(kConfigs[kIndex].threads(), kConfigs[kIndex].blocks_per_sm)
    attention_kernel(const __grid_constant__ Params p) {
  constexpr Config kC = kConfigs[kIndex];
  constexpr int kKeys = kC.keys, kPitch = kC.pitch();
  constexpr int kStepsD = kC.head_dim / 16;  // k-steps of Q K^T
  constexpr int kAtomsD = kC.head_dim / 8;   // 8-column atoms of O
  constexpr int kAtomsN = kKeys / 8;         // 8-key atoms of S
  constexpr int kQSteps = kC.q_in_registers ? kStepsD : 1;
  // The tensor cores cut off what an addition cannot hold (sm90_prefill/guard.cuh, Flushed): the
  // output begins anew after so many blocks.
  constexpr int kFlushBlocks = 8192 / kKeys;

  extern __shared__ __align__(16) unsigned char shared_memory[];

  // ---- Which work: tiles of a KV head side by side, the last first ----
  const std::uint64_t id = std::uint64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  if (id >= std::uint64_t{p.batch} * p.heads_kv * p.tiles) return;
  const auto pair = static_cast<std::uint32_t>(id / p.tiles);
  const auto tile = p.tiles - 1 - static_cast<std::uint32_t>(id - std::uint64_t{pair} * p.tiles);
  const std::uint32_t batch = pair / p.heads_kv, kv_head = pair - batch * p.heads_kv;
  const Sequence at = sequence_of(p.sequences, static_cast<std::int32_t>(batch));
  const Seen& seen = at.seen;
  const auto group = static_cast<int>(p.group);
  // A row is query row / group of head row % group; a tile's first may lie past the sequence.
  const std::int64_t all_rows = std::int64_t{at.seq_q} * group;
  const std::int64_t tile_row = std::int64_t{tile} * kC.rows();
  if (tile_row >= all_rows) return;
  const int rows = static_cast<int>(min(all_rows - tile_row, std::int64_t{kC.rows()}));
  struct Row {
    int query;
    std::uint32_t head;
  };
  const auto row_of = [&](int r) -> Row {
    const auto query = static_cast<int>((tile_row + r) / group);
    const auto member = static_cast<std::uint32_t>(tile_row + r - std::int64_t{query} * group);
    return {query, kv_head * p.group + member};
  };
  const int first_query = row_of(0).query, last_query = row_of(rows - 1).query;
  const int keys_begin = seen.first(first_query), keys_end = seen.end(last_query);
  const int block_begin = keys_begin / kKeys;
  const int block_end = keys_end > keys_begin ? ceil_div(keys_end, kKeys) : block_begin;

  const std::uint32_t base = ptx::shared_address(shared_memory);
  const auto load_keys = [&](const StridedTensor& x, int head_dim, int block, std::uint32_t to) {
    const T* const matrix = static_cast<const T*>(x.data) + std::int64_t{at.kv_batch} * x.batch +
                            kv_head * x.head + at.kv_row * x.row;
    copy_rows<T, kC, kKeys>(to, head_dim, p.aligned, [&](int r) -> const T* {
      const int key = block * kKeys + r;
      if (key < keys_begin || key >= keys_end) return nullptr;
      if (at.pages == nullptr) return matrix + key * x.row;
      const int entry = key / p.sequences.page_size;
      const int page = max(0, min(at.pages[entry], p.sequences.pages - 1));
      return matrix + page * x.batch + (key - entry * p.sequences.page_size) * x.row;
    });
  };
  const auto load_block = [&](int block, int stage) {
    const std::uint32_t to = base + stage * kC.stage_bytes();
    load_keys(p.k, p.head_dim, block, to);
    load_keys(p.v, p.value_dim, block, to + kKeys * kPitch);
  };

  // ---- Prologue: Q and the first block ----
  copy_rows<T, kC, kC.rows()>(base + kC.q_offset(), p.head_dim, p.aligned, [&](int r) -> const T* {
    if (r >= rows) return nullptr;
    const Row row = row_of(r);
    return static_cast<const T*>(p.q.data) + std::int64_t{at.q_batch} * p.q.batch +
           row.head * p.q.head + (std::int64_t{at.q_row} + row.query) * p.q.row;
  });
  if (block_begin < block_end) load_block(block_begin, 0);
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  __syncthreads();

  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / 32, 0);
  // A lane's row of the first 16x16 piece of a matrix; right for Q and for V, K has rows and
  // columns of the 8x8 matrices exchanged.
  const std::uint32_t lane_offset = lane % 16 * kPitch + lane / 16 * 16;
  const std::uint32_t k_lane_offset = (lane / 16 * 8 + lane % 8) * kPitch + lane / 8 % 2 * 16;
  const std::uint32_t q_address = base + kC.q_offset() + warp * 16 * kPitch + lane_offset;
  std::uint32_t q_fragment[kQSteps][4];
  if constexpr (kC.q_in_registers) {
#pragma unroll
    for (int d = 0; d < kStepsD; ++d) ptx::ldmatrix_x4(q_fragment[d], q_address + d * 32);
  }

  // Of this lane's rows, warp * 16 + lane / 4 and 8 further: what they see, nothing past the tile.
  int first[2], end[2], query[2];
  std::uint32_t head[2];
  bool there[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int r = warp * 16 + lane / 4 + 8 * h;
    there[h] = r < rows;
    const Row row = row_of(there[h] ? r : 0);
    query[h] = row.query;
    head[h] = row.head;
    first[h] = seen.first(row.query);
    end[h] = there[h] ? seen.end(row.query) : 0;
  }
  const bool biased = p.slopes != nullptr || p.mask != nullptr;
  const float scale = p.transform ? 1.0f : p.scale_log2;

  float o[kAtomsD][4] = {}, sum[2] = {};
  WideBase base_of[2] = {{-INFINITY, 0.0f}, {-INFINITY, 0.0f}};
  // Of the blocks before the last flush, in memory, because few sequences are that long.
  struct Flushed {
    float o[kAtomsD][4], sum[2];
  } in_memory;
  const auto seldom = [&]() -> Flushed& {
    Flushed* address = &in_memory;
    asm volatile("" : "+l"(address));  // else the compiler would keep it all in registers
    return *address;
  };
  bool flushed = false;

  // ---- Mainloop ----
#pragma unroll 1
  for (int block = block_begin; block < block_end; ++block) {
    const int stage = (block - block_begin) & 1;
    if (block + 1 < block_end) load_block(block + 1, stage ^ 1);
    ptx::cp_async_commit();

    const int first_key = block * kKeys;
    const bool some = (end[0] > first_key && first[0] < first_key + kKeys) ||
                      (end[1] > first_key && first[1] < first_key + kKeys);
    if (__any_sync(kFullWarp, some)) {
      const std::uint32_t k_base = base + stage * kC.stage_bytes();
      // S = Q K^T
      float s[kAtomsN][4] = {};
#pragma unroll
      for (int d = 0; d < kStepsD; ++d) {
        if constexpr (!kC.q_in_registers) ptx::ldmatrix_x4(q_fragment[0], q_address + d * 32);
        const auto& fragment = q_fragment[kC.q_in_registers ? d : 0];
#pragma unroll
        for (int n = 0; n < kAtomsN; n += 2) {
          std::uint32_t b[4];
          ptx::ldmatrix_x4(b, k_base + k_lane_offset + n * 8 * kPitch + d * 32);
          ptx::mma_m16n8k16<T>(s[n], fragment, b[0], b[1]);
          ptx::mma_m16n8k16<T>(s[n + 1], fragment, b[2], b[3]);
        }
      }

      if (p.transform) {
#pragma unroll
        for (int n = 0; n < kAtomsN; ++n) {
#pragma unroll
          for (float& x : s[n]) x = transformed(x, p.transform_scale, p.transform_cap);
        }
      }
      // Biases of keys that the row sees; -inf for the others.
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const auto key_of = [&](int n, int e) { return first_key + 8 * n + lane % 4 * 2 + e; };
        if (biased) {
          const Bias bias(p, batch, head[h], query[h]);
#pragma unroll
          for (int n = 0; n < kAtomsN; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              const int key = key_of(n, e);
              float& score = s[n][2 * h + e];
              if (key >= first[h] && key < end[h])
                score = bias.add_to(score, key, query[h] + seen.shift - key);
            }
          }
        }
#pragma unroll
        for (int n = 0; n < kAtomsN; ++n) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int key = key_of(n, e);
            if (key < first[h] || key >= end[h]) s[n][2 * h + e] = -INFINITY;
          }
        }
      }

      // Weights, two neighbouring keys to a register.
      std::uint32_t weights[kAtomsN][2];
      float decay[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float most = s[0][2 * h];
#pragma unroll
        for (int n = 0; n < kAtomsN; ++n) most = fmaxf(most, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
        const WideBase before = base_of[h];
        base_of[h] = larger(before, wide_base(quad_max(most), scale));
        const WideBase from = finite(base_of[h]);
        decay[h] = before.high == -INFINITY ? 0.0f : exp2_fast(distance(before, from));
        float added = 0.0f;
#pragma unroll
        for (int n = 0; n < kAtomsN; ++n) {
          const float x = exp2_fast(exponent(s[n][2 * h], scale, from));
          const float y = exp2_fast(exponent(s[n][2 * h + 1], scale, from));
          added += x + y;
          weights[n][h] = pack2<T>(x, y);
        }
        sum[h] = sum[h] * decay[h] + added;
      }
      if (__any_sync(kFullWarp, decay[0] != 1.0f || decay[1] != 1.0f)) {
#pragma unroll
        for (int n = 0; n < kAtomsD; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) o[n][i] *= decay[i / 2];
        }
        if (flushed) {
          Flushed& before = seldom();
#pragma unroll
          for (int n = 0; n < kAtomsD; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) before.o[n][i] *= decay[i / 2];
          }
          before.sum[0] *= decay[0];
          before.sum[1] *= decay[1];
        }
      }

      // O += P V
      const std::uint32_t v_address = k_base + kKeys * kPitch + lane_offset;
#pragma unroll
      for (int n = 0; n < kAtomsN; n += 2) {
        const std::uint32_t fragment[4] = {weights[n][0], weights[n][1], weights[n + 1][0],
                                           weights[n + 1][1]};
#pragma unroll
        for (int d = 0; d < kAtomsD; d += 2) {
          std::uint32_t b[4];
          ptx::ldmatrix_x4_trans(b, v_address + n * 8 * kPitch + d * 16);
          ptx::mma_m16n8k16<T>(o[d], fragment, b[0], b[1]);
          ptx::mma_m16n8k16<T>(o[d + 1], fragment, b[2], b[3]);
        }
      }
    }
    if ((block - block_begin + 1) % kFlushBlocks == 0) {
      Flushed& before = seldom();
#pragma unroll
      for (int n = 0; n < kAtomsD; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          before.o[n][i] = flushed ? before.o[n][i] + o[n][i] : o[n][i];
          o[n][i] = 0.0f;
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        before.sum[h] = flushed ? before.sum[h] + sum[h] : sum[h];
        sum[h] = 0.0f;
      }
      flushed = true;
    }
    ptx::cp_async_wait<0>();
    __syncthreads();
  }

  // ---- Epilogue ----
  if (flushed) {
    const Flushed& before = seldom();
#pragma unroll
    for (int n = 0; n < kAtomsD; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o[n][i] += before.o[n][i];
    }
    sum[0] += before.sum[0];
    sum[1] += before.sum[1];
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const float total = quad_sum(sum[h]);
    float factor = total == 0.0f ? 0.0f : 1.0f / total;
    float lse =
        total == 0.0f ? -INFINITY : kLn2 * (base_of[h].high + (base_of[h].low + __log2f(total)));
    if (p.sinks != nullptr) factor *= join_sink(p.sinks[head[h]], lse);
    if (!there[h]) continue;
    const std::int64_t q_row = std::int64_t{at.q_row} + query[h];
    if (p.lse != nullptr && lane % 4 == 0) {
      // Packed: [Hq, total].
      const std::int64_t of_head =
          p.sequences.cu_q != nullptr
              ? std::int64_t{head[h]} * p.sequences.total_q
              : (std::int64_t{batch} * p.heads_q + head[h]) * p.sequences.seq_q;
      p.lse[of_head + q_row] = lse;
    }
    const std::int64_t offset =
        std::int64_t{at.q_batch} * p.o_batch + head[h] * p.o_head + q_row * p.o_row;
    switch (p.output) {
      case ElementType::f16:
        store_row(static_cast<__half*>(p.o) + offset, o, h, factor, p.value_dim);
        break;
      case ElementType::bf16:
        store_row(static_cast<__nv_bfloat16*>(p.o) + offset, o, h, factor, p.value_dim);
        break;
      case ElementType::f32:
        store_row(static_cast<float*>(p.o) + offset, o, h, factor, p.value_dim);
        break;
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

}  // namespace greenfast::cuda::sm80_serving
