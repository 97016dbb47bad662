// cuda.stage_c.scalar: stage-C, the rung before tensor cores. sm_80 and later.
//
// Idea    Raw e4m3 tiles in shared memory, decoded to fp16 there, and scalar math on them; scores
//         stay in registers, a warp owns its rows. Tile: 32 queries, 64 keys; 8 warps, each with 4
//         query rows; a lane holds the scores of two keys and two output columns of each of its
//         rows.
// Takes   e4m3, D 64, fp16 output, full and causal, any length, any strides.
// Limits  lengths and tile counts below 2^30.
// Budget  64 registers (75 on sm_89), 27 KB of shared memory: four CTAs an SM of sm_90.
// Bound   shared-memory reads, D half words for a score.
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/ladder/rung.hpp"
#include "kernels/cuda/ladder/stage_c.cuh"

namespace greenfast::cuda::stage_c_scalar {
namespace {

using namespace stage_c;

// The hand-set tile; `greenfast tune cuda.stage_c.scalar` compiles others.
#ifndef SCALAR_BLOCK_M
#define SCALAR_BLOCK_M 32
#define SCALAR_WARPS 8
#endif
constexpr int kBlockM = SCALAR_BLOCK_M, kBlockN = 64, kWarps = SCALAR_WARPS, kThreads = 32 * kWarps;
constexpr int kRowsPerWarp = kBlockM / kWarps;

struct SharedMemoryPlan {
  std::uint8_t raw[kBlockN * kD];  // Q, then K and V of each step in turn
  __half q[kBlockM * kPitch];
  __half k[kBlockN * kPitch];
  __half v[kBlockN * kPitch];

  static std::vector<SharedBuffer> buffers() {
    return shared_buffers(
        sizeof(SharedMemoryPlan),
        {{"raw Q, K, V", sizeof(raw)}, {"Q", sizeof(q)}, {"K", sizeof(k)}, {"V", sizeof(v)}});
  }
};

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, step));
  return x;
}
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kFullWarp, x, step);
  return x;
}

__global__ void __launch_bounds__(STAGE_C_BOUNDS) kernel(const __grid_constant__ ladder::Params p) {
  __shared__ __align__(16) SharedMemoryPlan s;
  const ladder::Place at = ladder::place(p);
  const auto* gk = ladder::head_base<std::uint8_t>(p.k, at.batch, at.head / p.group);
  const auto* gv = ladder::head_base<std::uint8_t>(p.v, at.batch, at.head / p.group);
  const int first = at.tile * kBlockM;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int tiles = ladder::key_tiles<kBlockN>(p, first, kBlockM);
  const Scales scale = scales(p, at);

  load_raw<kBlockM, kThreads, false>(s.raw, ladder::head_base<std::uint8_t>(p.q, at.batch, at.head),
                                     p.q.row, first, p.seq_q, p.vector_loads, thread);
  __syncthreads();
  decode_tile<kBlockM, kThreads>(s.q, s.raw, thread);

  float max[kRowsPerWarp], sum[kRowsPerWarp] = {}, o[kRowsPerWarp][2] = {};
#pragma unroll
  for (float& m : max) m = -INFINITY;

  for (int t = 0; t < tiles; ++t) {
    __syncthreads();
    load_raw<kBlockN, kThreads, false>(s.raw, gk, p.k.row, t * kBlockN, p.seq_kv, p.vector_loads,
                                       thread);
    __syncthreads();
    decode_tile<kBlockN, kThreads>(s.k, s.raw, thread);
    __syncthreads();
    load_raw<kBlockN, kThreads, false>(s.raw, gv, p.v.row, t * kBlockN, p.seq_kv, p.vector_loads,
                                       thread);
    __syncthreads();
    decode_tile<kBlockN, kThreads>(s.v, s.raw, thread);
    __syncthreads();
#pragma unroll
    for (int r = 0; r < kRowsPerWarp; ++r) {
      const int row = warp * kRowsPerWarp + r;
      const int end = ladder::key_end(p, first + row) - t * kBlockN;
      float score[2];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const auto* q = reinterpret_cast<const __half2*>(s.q + row * kPitch);
        const auto* k = reinterpret_cast<const __half2*>(s.k + (n * 32 + lane) * kPitch);
        float dot = 0;
#pragma unroll 8
        for (int d = 0; d < kD / 2; ++d) {
          const float2 a = __half22float2(q[d]), b = __half22float2(k[d]);
          dot = fmaf(a.x, b.x, fmaf(a.y, b.y, dot));
        }
        score[n] = n * 32 + lane < end ? dot * scale.score : -INFINITY;
      }
      const float new_max = fmaxf(max[r], warp_max(fmaxf(score[0], score[1])));
      if (new_max == -INFINITY) continue;  // no key of this row seen yet
      const float rescale = exp2_fast(max[r] - new_max);
      const float weight[2] = {exp2_fast(score[0] - new_max), exp2_fast(score[1] - new_max)};
      max[r] = new_max;
      sum[r] = sum[r] * rescale + weight[0] + weight[1];
      o[r][0] *= rescale;
      o[r][1] *= rescale;
      const int keys = min(end, kBlockN);
      for (int n = 0; n < keys; ++n) {
        const float w = __shfl_sync(kFullWarp, n < 32 ? weight[0] : weight[1], n % 32);
        o[r][0] = fmaf(w, __half2float(s.v[n * kPitch + lane]), o[r][0]);
        o[r][1] = fmaf(w, __half2float(s.v[n * kPitch + 32 + lane]), o[r][1]);
      }
    }
  }

  auto* go = const_cast<__half*>(ladder::head_base<__half>(p.o, at.batch, at.head));
#pragma unroll
  for (int r = 0; r < kRowsPerWarp; ++r) {
    const float total = warp_sum(sum[r]);
    const int row = first + warp * kRowsPerWarp + r;
    if (row >= p.seq_q) continue;
    const float normalise = max[r] == -INFINITY ? 0.0f : scale.output / total;
    go[row * p.o.row + lane] = __float2half(o[r][0] * normalise);
    go[row * p.o.row + 32 + lane] = __float2half(o[r][1] * normalise);
  }
}

struct Build {
  static constexpr auto kKernel = kernel;
  static constexpr ladder::Run kRun{.rows = kBlockM,
                                    .keys = kBlockN,
                                    .threads = kThreads,
                                    .note = "scalar math on decoded fp16 tiles"};
  static constexpr const char* kId = "cuda.stage_c.scalar";
  using Memory = SharedMemoryPlan;
};

using Rung = ladder::Rung<Build>;

}  // namespace
}  // namespace greenfast::cuda::stage_c_scalar

namespace greenfast::kernels {
extern const core::Kernel cuda_stage_c_scalar = cuda::ladder::kRung<cuda::stage_c_scalar::Rung>;
}  // namespace greenfast::kernels
