// cuda.stage_c.stage3b: stage-C, rung 3b. sm_80 and later.
//
// Idea    Q·Kᵀ, softmax and P·V in registers; S is never stored. mma.sync has a known fragment
//         layout, so the accumulator of the first product is, register for register, the A operand
//         of the second, and U needs no tile either. Tile: 32 queries, 64 keys, 4 warps: two
//         stripes of 16 rows, and for each stripe two warps that take every other half of the keys
//         with a softmax of their own; they are merged once, at the end.
// Takes   e4m3, D 64, fp16 output, full and causal, any length, any strides.
// Limits  lengths and tile counts below 2^30.
// Budget  96 registers on sm_90, 110 on sm_80, 114 on sm_89; 39 KB of shared memory: five CTAs an
//         SM of sm_90.
// Bound   decoding raw tiles to fp16 and the barriers around it.
#include "kernels/cuda/device/phase_probe.cuh"
#include "kernels/cuda/device/ptx_mma.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/ladder/rung.hpp"
#include "kernels/cuda/ladder/stage_c.cuh"
#include "kernels/cuda/ladder/twin.cuh"

namespace greenfast::cuda::stage_c_3b {
namespace {

using namespace stage_c;

#ifndef STAGE3B_BLOCK_N  // `greenfast tune cuda.stage_c.stage3b` compiles others
#define STAGE3B_BLOCK_N 64
#endif
constexpr int kBlockM = 32, kBlockN = STAGE3B_BLOCK_N, kWarps = 4, kThreads = 32 * kWarps,
              kStages = 2;
constexpr int kKeys = kBlockN / 2;  // of one warp
constexpr int kAtoms = kKeys / 8;

struct SharedMemoryPlan {
  std::uint8_t k_raw[kStages][kBlockN * kD];
  std::uint8_t v_raw[kStages][kBlockN * kD];
  __half q[kBlockM * kPitch];
  __half k[kBlockN * kPitch];
  __half v[kBlockN * kPitch];

  static std::vector<SharedBuffer> buffers() {
    return shared_buffers(sizeof(SharedMemoryPlan), {{"raw K", sizeof(k_raw)},
                                                     {"raw V", sizeof(v_raw)},
                                                     {"Q", sizeof(q)},
                                                     {"K", sizeof(k)},
                                                     {"V", sizeof(v)}});
  }
};
// After the last tile K and V make room for the partial results of two warps: 36 floats a lane.
static_assert(2 * 32 * kPartial * sizeof(float) <= 2 * kBlockN * kPitch * sizeof(__half));

/// The rung, prologue to epilogue. A probe hears where each phase ends; the timed kernel's is
/// empty.
template <bool kCpAsync, class Probe>
__device__ __forceinline__ void attend(const ladder::Params& p, Probe& probe) {
  __shared__ __align__(16) SharedMemoryPlan s;
  const ladder::Place at = ladder::place(p);
  const auto* gk = ladder::head_base<std::uint8_t>(p.k, at.batch, at.head / p.group);
  const auto* gv = ladder::head_base<std::uint8_t>(p.v, at.batch, at.head / p.group);
  const int first = at.tile * kBlockM;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int stripe = warp % 2 * 16, part = warp / 2;
  const int group = lane / 4, member = lane % 4;
  const int tiles = ladder::key_tiles<kBlockN>(p, first, kBlockM);
  const int keys = ladder::key_end(p, min(first + kBlockM, p.seq_q) - 1);
  const Scales scale = scales(p, at);

  const auto load_keys = [&](int tile) {
    if (tile < tiles) {
      load_raw<kBlockN, kThreads, kCpAsync>(s.k_raw[tile % kStages], gk, p.k.row, tile * kBlockN,
                                            keys, p.vector_loads, thread);
      load_raw<kBlockN, kThreads, kCpAsync>(s.v_raw[tile % kStages], gv, p.v.row, tile * kBlockN,
                                            keys, p.vector_loads, thread);
    }
    ptx::cp_async_commit();
  };
  load_raw<kBlockM, kThreads, false>(s.k_raw[0],
                                     ladder::head_base<std::uint8_t>(p.q, at.batch, at.head),
                                     p.q.row, first, p.seq_q, p.vector_loads, thread);
  __syncthreads();
  decode_tile<kBlockM, kThreads>(s.q, s.k_raw[0], thread);
  __syncthreads();
  load_keys(0);

  // Where this lane points ldmatrix: matrix i of four, row r.
  const int matrix = lane / 8, row8 = lane % 8;
  const std::uint32_t q_address =
      ptx::shared_address(s.q + (stripe + matrix % 2 * 8 + row8) * kPitch + matrix / 2 * 8);
  const std::uint32_t k_address =
      ptx::shared_address(s.k + (part * kKeys + matrix / 2 * 8 + row8) * kPitch + matrix % 2 * 8);
  const std::uint32_t v_address =
      ptx::shared_address(s.v + (part * kKeys + matrix % 2 * 8 + row8) * kPitch + matrix / 2 * 8);

  const int end[2] = {ladder::key_end(p, first + stripe + group),
                      ladder::key_end(p, first + stripe + group + 8)};
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, u[kOutAtoms][4] = {};

  for (int t = 0; t < tiles; ++t) {
    load_keys(t + 1);
    ptx::cp_async_wait<1>();
    __syncthreads();
    probe.end_of(Phase::loads);
    decode_tile<kBlockN, kThreads>(s.k, s.k_raw[t % kStages], thread);
    decode_tile<kBlockN, kThreads>(s.v, s.v_raw[t % kStages], thread);
    __syncthreads();
    probe.end_of(Phase::decode);

    float score[kAtoms][4] = {};
// Unrolled whole, Q's fragments take 122 registers to a limit of 120 (ptxas 13.0, sm_89).
#pragma unroll 2
    for (int d = 0; d < kD; d += 16) {
      std::uint32_t a[4], b[4];
      ptx::ldmatrix_x4(a, q_address + d * 2);
#pragma unroll
      for (int n = 0; n < kKeys; n += 16) {
        ptx::ldmatrix_x4(b, k_address + (n * kPitch + d) * 2);
        ptx::mma_m16n8k16<__half>(score[n / 8], a, b[0], b[1]);
        ptx::mma_m16n8k16<__half>(score[n / 8 + 1], a, b[2], b[3]);
      }
    }

    probe.end_of(Phase::scores);

    const int key0 = t * kBlockN + part * kKeys + 2 * member;
    std::uint32_t weight[kAtoms][2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float tile_max = -INFINITY;
#pragma unroll
      for (int n = 0; n < kAtoms; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = score[n][2 * r + e];
          x = key0 + n * 8 + e < end[r] ? x * scale.score : -INFINITY;
          tile_max = fmaxf(tile_max, x);
        }
      }
      const float new_max = fmaxf(max[r], quad_max(tile_max));
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
        u[n][2 * r] *= rescale;
        u[n][2 * r + 1] *= rescale;
      }
    }

    probe.end_of(Phase::softmax);

#pragma unroll
    for (int n = 0; n < kKeys; n += 16) {
      const std::uint32_t a[4] = {weight[n / 8][0], weight[n / 8][1], weight[n / 8 + 1][0],
                                  weight[n / 8 + 1][1]};
#pragma unroll
      for (int c = 0; c < kD; c += 16) {
        std::uint32_t b[4];
        ptx::ldmatrix_x4_trans(b, v_address + (n * kPitch + c) * 2);
        ptx::mma_m16n8k16<__half>(u[c / 8], a, b[0], b[1]);
        ptx::mma_m16n8k16<__half>(u[c / 8 + 1], a, b[2], b[3]);
      }
    }
    __syncthreads();  // the fp16 tiles may be overwritten
    probe.end_of(Phase::values);
  }
  ptx::cp_async_wait<0>();
  sum[0] = quad_sum(sum[0]);
  sum[1] = quad_sum(sum[1]);

  // The second warp of a stripe hands its partial result to the first.
  float* partial = reinterpret_cast<float*>(s.k) + (warp % 2) * 32 * kPartial + lane;
  if (part == 1) hand_over(partial, u, max, sum);
  __syncthreads();
  if (part == 1) return;
  merge_and_store(p, at, first + stripe + group, member, partial, u, max, sum, scale.output);
}

template <bool kCpAsync>
__global__ void __launch_bounds__(STAGE_C_BOUNDS) kernel(const __grid_constant__ ladder::Params p) {
  NoProbe probe;
  attend<kCpAsync>(p, probe);
}

template <bool kCpAsync>
struct Build {
  static constexpr auto kKernel = kernel<kCpAsync>;
  static constexpr ladder::Run kRun{.rows = kBlockM,
                                    .keys = kBlockN,
                                    .threads = kThreads,
                                    .stages = kStages,
                                    .note = "scores, weights and output in registers"};
  static constexpr const char* kId = "cuda.stage_c.stage3b";
  using Memory = SharedMemoryPlan;
};

// The family's limit, which clocks would pass by two registers (ptxas 13.0, sm_89).
__global__ void __maxnreg__(120)
    instrumented(const __grid_constant__ ladder::Params p, unsigned long long* cycles) {
  ClockProbe probe(ladder::clocks_of_warp<ClockProbe, kThreads>(cycles));
  attend<true>(p, probe);
  probe.store();
}

struct Clocked : Build<true> {
  static constexpr auto kKernel = instrumented;
  static constexpr const char* kId = "cuda.stage_c.stage3b, instrumented";
  using Probe = ClockProbe;
};

template <bool kCpAsync>
using Rung = ladder::Rung<Build<kCpAsync>>;
using Twin = ladder::Twin<Clocked>;

}  // namespace
}  // namespace greenfast::cuda::stage_c_3b

namespace greenfast::kernels {
extern const core::Kernel cuda_stage_c_stage3b = cuda::ladder::kRung<cuda::stage_c_3b::Rung<true>>;
// USE_CP_ASYNC=0: the next tile still comes while this one waits, by plain loads.
extern const core::Kernel cuda_stage_c_stage3b_no_cp_async =
    cuda::ladder::kRung<cuda::stage_c_3b::Rung<false>>;
extern const core::Kernel cuda_stage_c_stage3b_phases = cuda::ladder::kTwin<cuda::stage_c_3b::Twin>;
}  // namespace greenfast::kernels
