// cuda.v2c.v3: V2c, rung 3. sm_80 and later.
//
// Idea    One pass over the keys with an online softmax, scores in registers, nothing but scalar
//         math. Tile: 64 queries, 64 keys; 16 warps, each with 4 query rows; a lane holds the
//         scores of two keys and D/32 output columns of each of its rows.
// Takes   fp16, D 64 and 128, full and causal, any length, any strides.
// Limits  lengths and tile counts below 2^30.
// Budget  58 registers and 27 KB of shared memory at D 64, 64 and 52 KB at D 128: two CTAs an SM.
// Bound   shared-memory reads; every score costs D fused multiply-adds and D half-word reads a
//         lane.
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/ladder/ladder.cuh"
#include "kernels/cuda/ladder/rung.hpp"

namespace greenfast::cuda::v2c_v3 {
namespace {

constexpr int kBlockM = 64, kBlockN = 64, kWarps = 16, kThreads = 32 * kWarps;
constexpr int kRowsPerWarp = kBlockM / kWarps;
constexpr int kKeysPerLane = kBlockN / 32;

template <int D>
struct SharedMemoryPlan {
  // 16-byte steps that walk all banks: row-wise reads without conflicts.
  static constexpr int kPitch = D + 8;
  __half q[kBlockM * kPitch];
  __half k[kBlockN * kPitch];
  __half v[kBlockN * kPitch];

  static std::vector<SharedBuffer> buffers() {
    return shared_buffers(sizeof(SharedMemoryPlan),
                          {{"Q", sizeof(q)}, {"K", sizeof(k)}, {"V", sizeof(v)}});
  }
};

template <int D>
__global__ void __launch_bounds__(kThreads) kernel(const __grid_constant__ ladder::Params p) {
  using Plan = SharedMemoryPlan<D>;
  constexpr int kPitch = Plan::kPitch, kColumns = D / 32;
  extern __shared__ __align__(16) unsigned char memory[];
  Plan& s = *reinterpret_cast<Plan*>(memory);
  const ladder::Place at = ladder::place(p);
  const __half* gk = ladder::head_base<__half>(p.k, at.batch, at.head / p.group);
  const __half* gv = ladder::head_base<__half>(p.v, at.batch, at.head / p.group);
  const int first = at.tile * kBlockM;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;

  ladder::load_tile<__half, kBlockM, D, kPitch, kThreads, false>(
      s.q, ladder::head_base<__half>(p.q, at.batch, at.head), p.q.row, first, p.seq_q,
      p.vector_loads);

  float max[kRowsPerWarp], sum[kRowsPerWarp], o[kRowsPerWarp][kColumns];
#pragma unroll
  for (int r = 0; r < kRowsPerWarp; ++r) {
    max[r] = -INFINITY;
    sum[r] = 0;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) o[r][c] = 0;
  }

  const int tiles = ladder::key_tiles<kBlockN>(p, first, kBlockM);
  for (int t = 0; t < tiles; ++t) {
    __syncthreads();
    ladder::load_tile<__half, kBlockN, D, kPitch, kThreads, false>(s.k, gk, p.k.row, t * kBlockN,
                                                                   p.seq_kv, p.vector_loads);
    ladder::load_tile<__half, kBlockN, D, kPitch, kThreads, false>(s.v, gv, p.v.row, t * kBlockN,
                                                                   p.seq_kv, p.vector_loads);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRowsPerWarp; ++r) {
      const int row = warp * kRowsPerWarp + r;
      const int end = ladder::key_end(p, first + row) - t * kBlockN;
      float score[kKeysPerLane];
#pragma unroll
      for (int n = 0; n < kKeysPerLane; ++n) {
        const __half2* q = reinterpret_cast<const __half2*>(s.q + row * kPitch);
        const __half2* k = reinterpret_cast<const __half2*>(s.k + (n * 32 + lane) * kPitch);
        float dot = 0;
#pragma unroll 4  // 8 spills a register on sm_90a (ptxas 13.0)
        for (int d = 0; d < D / 2; ++d) {
          const float2 a = __half22float2(q[d]), b = __half22float2(k[d]);
          dot = fmaf(a.x, b.x, fmaf(a.y, b.y, dot));
        }
        score[n] = n * 32 + lane < end ? dot * p.scale_log2 : -INFINITY;
      }
      float tile_max = fmaxf(score[0], score[1]);
#pragma unroll
      for (int step = 16; step > 0; step /= 2) {
        tile_max = fmaxf(tile_max, __shfl_xor_sync(kFullWarp, tile_max, step));
      }
      const float new_max = fmaxf(max[r], tile_max);
      if (new_max == -INFINITY) continue;  // no key of this row seen yet
      const float rescale = exp2_fast(max[r] - new_max);
      max[r] = new_max;
      float weight[kKeysPerLane], tile_sum = 0;
#pragma unroll
      for (int n = 0; n < kKeysPerLane; ++n) {
        weight[n] = exp2_fast(score[n] - new_max);
        tile_sum += weight[n];
      }
      sum[r] = sum[r] * rescale + tile_sum;  // a lane's own keys; lanes are added up at the end
#pragma unroll
      for (int c = 0; c < kColumns; ++c) o[r][c] *= rescale;
      const int keys = min(end, kBlockN);
      for (int n = 0; n < keys; ++n) {
        const float w = __shfl_sync(kFullWarp, n < 32 ? weight[0] : weight[1], n % 32);
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          o[r][c] = fmaf(w, __half2float(s.v[n * kPitch + c * 32 + lane]), o[r][c]);
        }
      }
    }
  }

  __half* go = const_cast<__half*>(ladder::head_base<__half>(p.o, at.batch, at.head));
#pragma unroll
  for (int r = 0; r < kRowsPerWarp; ++r) {
    float total = sum[r];
#pragma unroll
    for (int step = 16; step > 0; step /= 2) total += __shfl_xor_sync(kFullWarp, total, step);
    const int row = first + warp * kRowsPerWarp + r;
    if (row >= p.seq_q) continue;
    const float normalise = max[r] == -INFINITY ? 0.0f : 1.0f / total;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      go[row * p.o.row + c * 32 + lane] = __float2half(o[r][c] * normalise);
    }
  }
}

template <int D>
struct Build {
  static constexpr auto kKernel = kernel<D>;
  static constexpr ladder::Run kRun{.rows = kBlockM,
                                    .keys = kBlockN,
                                    .threads = kThreads,
                                    .shared_bytes = sizeof(SharedMemoryPlan<D>),
                                    .note = "scalar Q·Kᵀ and P·V, one online softmax"};
  static constexpr const char* kId = "cuda.v2c.v3";
  using Memory = SharedMemoryPlan<D>;
};

using Rung = ladder::Rung<Build<64>, Build<128>>;

}  // namespace
}  // namespace greenfast::cuda::v2c_v3

namespace greenfast::kernels {
extern const core::Kernel cuda_v2c_v3 = cuda::ladder::kRung<cuda::v2c_v3::Rung>;
}  // namespace greenfast::kernels
