// cuda.v2c.v8_slim: V2c, rung 8 in fewer than 72 registers. sm_80 and later.
//
// Idea    What the originals accepted V2c by: fewer than 72 registers, no spills. Tile and work of a
//         warp are v8's, and what lives beside them goes: keys are taken 16 at a time, so that S
//         needs 8 registers and P 4; the loops over copies and over the head dimension are not
//         unrolled, which kept addresses ahead; and what is one number for all threads lies in
//         shared memory.
// Takes   fp16, D 64 and 128, full and causal, any length, any strides.
// Limits  lengths and tile counts below 2^30.
// Budget  71 registers, 69 on sm_89; 45 KB of shared memory at D 64, 85 KB at D 128: four and two
//         CTAs an SM of sm_90 as v8, because shared memory limits both.
// Bound   as v8; Q's fragments are read, and the output is rescaled, twice as often. No GPU has run
//         it yet.
#pragma once

#include "kernels/cuda/device/ptx_mma.cuh"
#include "kernels/cuda/device/shared_buffers.hpp"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/ladder/ladder.cuh"

namespace greenfast::cuda::v2c_v8_slim {
namespace {

constexpr int kBlockM = 64, kBlockN = 64, kChunk = 16, kStages = 2;
constexpr int kColumns = 64;  // output columns of one warp

template <int D>
struct SharedMemoryPlan {
  // Rows 16 bytes apart modulo 128: ldmatrix without bank conflicts.
  static constexpr int kPitch = D + 8;
  __half q[kBlockM * kPitch];
  __half k[kStages][kBlockN * kPitch];
  __half v[kStages][kBlockN * kPitch];
  const __half *k_rows, *v_rows;  // of this head in memory
  int keys;                       // one past the last that any row of the tile sees

  static std::vector<SharedBuffer> buffers() {
    return shared_buffers(sizeof(SharedMemoryPlan),
                          {{"Q", sizeof(q)},
                           {"K", sizeof(k)},
                           {"V", sizeof(v)},
                           {"where K and V lie", sizeof(k_rows) + sizeof(v_rows) + sizeof(keys)}});
  }
};

template <int D>
constexpr int kThreads = kBlockM / 16 * (D / kColumns) * 32;

/// 64 rows as ladder::load_tile copies them, but one copy at a time: four in flight are 25
/// registers more (ptxas 13.0, sm_90a).
template <int D>
__device__ __forceinline__ void load_rows(__half* shared, const __half* matrix, std::int64_t stride,
                                          int first, int valid, bool vector_loads) {
  constexpr int kRows = 64, kChunks = D / 8, kPitch = SharedMemoryPlan<D>::kPitch;
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kThreads<D>) {
    const int row = i / kChunks, column = i % kChunks * 8;
    const bool keep = first + row < valid;
    const __half* from = matrix + (keep ? first + row : 0) * stride + column;
    __half* to = shared + row * kPitch + column;
    if (vector_loads) {
      ptx::cp_async_16(ptx::shared_address(to), from, keep);
    } else {
#pragma unroll 1
      for (int e = 0; e < 8; ++e) to[e] = keep ? from[e] : __half{};
    }
  }
}

template <int D>
__global__ void __maxnreg__(71) kernel(const __grid_constant__ ladder::Params p) {
  using Plan = SharedMemoryPlan<D>;
  constexpr int kPitch = Plan::kPitch, kAtoms = kChunk / 8, kOutAtoms = kColumns / 8;
  extern __shared__ __align__(16) unsigned char memory[];
  Plan& s = *reinterpret_cast<Plan*>(memory);
  const ladder::Place at = ladder::place(p);
  const int first = at.tile * kBlockM;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int stripe = warp % (kBlockM / 16) * 16, column = warp / (kBlockM / 16) * kColumns;
  const int group = lane / 4, member = lane % 4;

  // Keys past the last one any row here sees become zeros: 0 times a hidden NaN would reach the
  // output.
  const auto load_keys = [&](int key) {
    if (key < s.keys) {
      load_rows<D>(s.k[key / kBlockN % kStages], s.k_rows, p.k.row, key, s.keys, p.vector_loads);
      load_rows<D>(s.v[key / kBlockN % kStages], s.v_rows, p.v.row, key, s.keys, p.vector_loads);
    }
    ptx::cp_async_commit();
  };
  if (threadIdx.x == 0) {
    s.keys = ladder::key_end(p, min(first + kBlockM, p.seq_q) - 1);
    s.k_rows = ladder::head_base<__half>(p.k, at.batch, at.head / p.group);
    s.v_rows = ladder::head_base<__half>(p.v, at.batch, at.head / p.group);
  }
  load_rows<D>(s.q, ladder::head_base<__half>(p.q, at.batch, at.head), p.q.row, first, p.seq_q,
               p.vector_loads);
  __syncthreads();
  load_keys(0);

  // Where this lane points ldmatrix: matrix i of four, row r.
  const int matrix = lane / 8, row8 = lane % 8;
  const int lane_offset = (matrix % 2 * 8 + row8) * kPitch + matrix / 2 * 8;  // of Q and of V
  const int k_offset = (matrix / 2 * 8 + row8) * kPitch + matrix % 2 * 8;
  const std::uint32_t q_address = ptx::shared_address(s.q + stripe * kPitch + lane_offset);

  const int end[2] = {ladder::key_end(p, first + stripe + group),
                      ladder::key_end(p, first + stripe + group + 8)};
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, o[kOutAtoms][4] = {};

  for (int key = 0; key < s.keys; key += kBlockN) {
    load_keys(key + kBlockN);
    ptx::cp_async_wait<1>();
    __syncthreads();
#pragma unroll 1
    for (int chunk = 0; chunk < kBlockN; chunk += kChunk) {
      const std::uint32_t k_address =
          ptx::shared_address(s.k[key / kBlockN % kStages] + chunk * kPitch + k_offset);
      const std::uint32_t v_address =
          ptx::shared_address(s.v[key / kBlockN % kStages] + chunk * kPitch + column + lane_offset);
      float score[kAtoms][4] = {};
#pragma unroll 1
      for (int d = 0; d < D; d += 16) {
        std::uint32_t a[4], b[4];
        ptx::ldmatrix_x4(a, q_address + d * 2);
#pragma unroll
        for (int n = 0; n < kChunk; n += 16) {
          ptx::ldmatrix_x4(b, k_address + (n * kPitch + d) * 2);
          ptx::mma_m16n8k16<__half>(score[n / 8], a, b[0], b[1]);
          ptx::mma_m16n8k16<__half>(score[n / 8 + 1], a, b[2], b[3]);
        }
      }

      // Register 2r, 2r+1 of an atom: row group + 8r, keys 2 member, 2 member + 1.
      const int key0 = key + chunk + 2 * member;
      std::uint32_t weight[kAtoms][2];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float chunk_max = -INFINITY;
#pragma unroll
        for (int n = 0; n < kAtoms; ++n) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& x = score[n][2 * r + e];
            x = key0 + n * 8 + e < end[r] ? x * p.scale_log2 : -INFINITY;
            chunk_max = fmaxf(chunk_max, x);
          }
        }
        const float new_max = fmaxf(max[r], quad_max(chunk_max));
        const float origin = new_max == -INFINITY ? 0.0f : new_max;
        const float rescale = exp2_fast(max[r] - origin);
        max[r] = new_max;
        sum[r] *= rescale;
#pragma unroll
        for (int n = 0; n < kAtoms; ++n) {
          const float low = exp2_fast(score[n][2 * r] - origin),
                      high = exp2_fast(score[n][2 * r + 1] - origin);
          sum[r] += low + high;
          weight[n][r] = pack2<__half>(low, high);
        }
#pragma unroll
        for (int n = 0; n < kOutAtoms; ++n) {
          o[n][2 * r] *= rescale;
          o[n][2 * r + 1] *= rescale;
        }
      }

#pragma unroll
      for (int n = 0; n < kChunk; n += 16) {
        const std::uint32_t a[4] = {weight[n / 8][0], weight[n / 8][1], weight[n / 8 + 1][0],
                                    weight[n / 8 + 1][1]};
#pragma unroll
        for (int c = 0; c < kColumns; c += 16) {
          std::uint32_t b[4];
          ptx::ldmatrix_x4_trans(b, v_address + (n * kPitch + c) * 2);
          ptx::mma_m16n8k16<__half>(o[c / 8], a, b[0], b[1]);
          ptx::mma_m16n8k16<__half>(o[c / 8 + 1], a, b[2], b[3]);
        }
      }
    }
    __syncthreads();
  }
  ptx::cp_async_wait<0>();

#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = first + stripe + group + 8 * r;
    const float total = quad_sum(sum[r]);
    if (row >= p.seq_q) continue;
    const float normalise = max[r] == -INFINITY ? 0.0f : 1.0f / total;
    __half* go = const_cast<__half*>(ladder::head_base<__half>(p.o, at.batch, at.head)) +
                 row * p.o.row + column + 2 * member;
#pragma unroll
    for (int n = 0; n < kOutAtoms; ++n) {
      // Two stores: an output row may be aligned to 2 bytes alone.
      go[n * 8] = __float2half(o[n][2 * r] * normalise);
      go[n * 8 + 1] = __float2half(o[n][2 * r + 1] * normalise);
    }
  }
}

}  // namespace
}  // namespace greenfast::cuda::v2c_v8_slim
