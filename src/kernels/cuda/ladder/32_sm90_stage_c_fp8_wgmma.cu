// cuda.stage_c.fp8_wgmma: stage-C on Hopper's fp8 tensor cores. sm_90a.
//
// Idea    What fp8_mma set out to do, where sm_90a can do it: its mma.sync takes no e4m3, its wgmma
//         does (QGMMA). A warpgroup multiplies 64 queries by 64 keys, both from shared memory; P
//         becomes e4m3 in the registers where Q·Kᵀ left it, its exponent's origin 2^8 lower as in
//         fp8_mma. wgmma takes e4m3 with k along the rows alone, so V is transposed on its way
//         through shared memory, while the tensor cores multiply Q by Kᵀ; keys are permuted within
//         groups of 16 such that the packed accumulators already are the A operand. The sum over keys
//         has two levels, because wgmma cuts every e4m3 product off against its accumulator: what a
//         tile adds is added up in fp32. Tile: 64 queries, 64 keys, 4 warps; cp.async one tile ahead.
// Takes   e4m3, D 64, fp16 output, full and causal, any length, any strides.
// Limits  lengths and tile counts below 2^30.
// Budget  120 registers, 24 KB of shared memory: four CTAs an SM of sm_90.
// Bound   exponentials, and the barriers between V's transposition and its product. No GPU has run
//         it yet.
#include "kernels/cuda/device/phase_probe.cuh"
#include "kernels/cuda/device/ptx_e4m3.cuh"
#include "kernels/cuda/device/ptx_tma.cuh"
#include "kernels/cuda/device/ptx_wgmma.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/ladder/32_sm90_stage_c_fp8_wgmma.cuh"
#include "kernels/cuda/ladder/rung.hpp"
#include "kernels/cuda/ladder/stage_c.cuh"
#include "kernels/cuda/ladder/twin.cuh"

namespace greenfast::cuda::stage_c_fp8_wgmma {
namespace {

using namespace stage_c;

constexpr int kBlockM = 64, kBlockN = 64, kThreads = 128, kStages = 2;
constexpr float kWeightExponent = 8.0f;
static_assert(kD == kRow && kBlockN == kRow);

struct SharedMemoryPlan {
  std::uint8_t q[kBlockM * kD];  // swizzled, as all of them
  std::uint8_t k[kStages][kBlockN * kD];
  std::uint8_t v[kStages][kBlockN * kD];
  std::uint8_t v_transposed[kD * kBlockN];

  static std::vector<SharedBuffer> buffers() {
    return shared_buffers(sizeof(SharedMemoryPlan), {{"Q", sizeof(q)},
                                                     {"K", sizeof(k)},
                                                     {"V", sizeof(v)},
                                                     {"V transposed", sizeof(v_transposed)}});
  }
};

/// The descriptor of 32 bytes of k, `step` of a tile: 64-byte swizzle (mode 2), 8 rows 512 bytes on.
__device__ __forceinline__ std::uint64_t tile_descriptor(const std::uint8_t* tile, int step) {
  constexpr std::uint32_t kHigh = (2u << 30) | (8 * kRow / 16);
  const std::uint32_t low = ptx::shared_address(tile) / 16 | 0x10000u;
  return ptx::descriptor(kHigh, low + 2 * static_cast<std::uint32_t>(step));
}

/// V [key][d] to V^T [d][slot].
__device__ __forceinline__ void transpose_v(std::uint8_t* to, const std::uint8_t* from,
                                            int thread) {
#pragma unroll
  for (int i = thread; i < kBlockN / 4 * (kD / 4); i += kThreads) {
    const Unit unit = unit_of(i);
    const auto word = [&](int slot) {
      const int key = key_of_slot(4 * unit.quad + slot);
      return *reinterpret_cast<const std::uint32_t*>(from + swizzled(key, 4 * unit.group));
    };
    const std::uint32_t a = word(0), b = word(1), c = word(2), d = word(3);
    const std::uint32_t ab_low = __byte_perm(a, b, 0x5140), ab_high = __byte_perm(a, b, 0x7362);
    const std::uint32_t cd_low = __byte_perm(c, d, 0x5140), cd_high = __byte_perm(c, d, 0x7362);
    const auto store = [&](int column, std::uint32_t value) {
      *reinterpret_cast<std::uint32_t*>(to + swizzled(4 * unit.group + column, 4 * unit.quad)) =
          value;
    };
    store(0, __byte_perm(ab_low, cd_low, 0x5410));
    store(1, __byte_perm(ab_low, cd_low, 0x7632));
    store(2, __byte_perm(ab_high, cd_high, 0x5410));
    store(3, __byte_perm(ab_high, cd_high, 0x7632));
  }
}

/// The rung, prologue to epilogue. A probe hears where each phase ends; the timed kernel's is
/// empty.
template <class Probe>
__device__ __forceinline__ void attend(const ladder::Params& p, Probe& probe) {
  __shared__ __align__(1024) SharedMemoryPlan s;
  const ladder::Place at = ladder::place(p);
  const auto* gk = ladder::head_base<std::uint8_t>(p.k, at.batch, at.head / p.group);
  const auto* gv = ladder::head_base<std::uint8_t>(p.v, at.batch, at.head / p.group);
  const int first = at.tile * kBlockM;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int group = lane / 4, member = lane % 4, row0 = first + 16 * warp + group;
  const int tiles = ladder::key_tiles<kBlockN>(p, first, kBlockM);
  const int keys = ladder::key_end(p, min(first + kBlockM, p.seq_q) - 1);
  const Scales scale = scales(p, at);

  const auto load_keys = [&](int tile) {
    if (tile < tiles) {
      load_raw<kBlockN, kThreads, true, true>(s.k[tile % kStages], gk, p.k.row, tile * kBlockN,
                                              keys, p.vector_loads, thread);
      load_raw<kBlockN, kThreads, true, true>(s.v[tile % kStages], gv, p.v.row, tile * kBlockN,
                                              keys, p.vector_loads, thread);
    }
    ptx::cp_async_commit();
  };
  load_raw<kBlockM, kThreads, true, true>(s.q,
                                          ladder::head_base<std::uint8_t>(p.q, at.batch, at.head),
                                          p.q.row, first, p.seq_q, p.vector_loads, thread);
  load_keys(0);

  const int end[2] = {ladder::key_end(p, row0), ladder::key_end(p, row0 + 8)};
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, u[kD / 2] = {};

  for (int t = 0; t < tiles; ++t) {
    load_keys(t + 1);
    ptx::cp_async_wait<1>();
    ptx::fence_proxy_async_shared();  // what threads wrote is wgmma's to read behind the barrier
    __syncthreads();
    probe.end_of(Phase::loads);

    float score[kBlockN / 2];
    ptx::wgmma_fence();
#pragma unroll
    for (int d = 0; d < kD / 32; ++d)
      ptx::wgmma_ss_e4m3<kBlockN>(score, tile_descriptor(s.q, d),
                                  tile_descriptor(s.k[t % kStages], d), d > 0);
    ptx::wgmma_commit();
    transpose_v(s.v_transposed, s.v[t % kStages], thread);
    probe.end_of(Phase::transpose);
    ptx::wgmma_wait<0>();
    ptx::pin_registers(score);
    probe.end_of(Phase::scores);

    const int key0 = t * kBlockN + 2 * member;
    float rescale[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float tile_max = -INFINITY;
#pragma unroll
      for (int n = 0; n < kBlockN / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = score[4 * n + 2 * r + e];
          x = key0 + n * 8 + e < end[r] ? x * scale.score : -INFINITY;
          tile_max = fmaxf(tile_max, x);
        }
      }
      const float new_max = fmaxf(max[r], quad_max(tile_max));
      const float safe = new_max == -INFINITY ? 0.0f : new_max;
      rescale[r] = exp2_fast(max[r] - safe);
      const float origin = safe - kWeightExponent;
      max[r] = new_max;
      sum[r] *= rescale[r];
#pragma unroll
      for (int n = 0; n < kBlockN / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = score[4 * n + 2 * r + e];
          x = exp2_fast(x - origin);
          sum[r] += x;
        }
      }
    }
    std::uint32_t weight[kBlockN / 32][4];
#pragma unroll
    for (int step = 0; step < kBlockN / 32; ++step) {
#pragma unroll
      for (int w = 0; w < 4; ++w)
        weight[step][w] = ptx::pack_e4m3(
            score[packed_accumulator(step, w, 0)], score[packed_accumulator(step, w, 1)],
            score[packed_accumulator(step, w, 2)], score[packed_accumulator(step, w, 3)]);
    }
    ptx::fence_proxy_async_shared();
    __syncthreads();  // V is transposed
    probe.end_of(Phase::softmax);

    // In the registers of the scores, which P has left: 126 of them otherwise.
    float(&part)[kD / 2] = score;
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < kBlockN / 32; ++step)
      ptx::wgmma_rs_e4m3<kD>(part, weight[step], tile_descriptor(s.v_transposed, step), step > 0);
    ptx::wgmma_commit();
    ptx::wgmma_wait<0>();
    ptx::pin_registers(part);
#pragma unroll
    for (int i = 0; i < kD / 2; ++i) u[i] = fmaf(u[i], rescale[i / 2 % 2], part[i]);
    __syncthreads();  // this stage and the transposed tile may be overwritten
    probe.end_of(Phase::values);
  }
  ptx::cp_async_wait<0>();

#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = row0 + 8 * r;
    const float total = quad_sum(sum[r]);
    if (row >= p.seq_q) continue;
    const float normalise = max[r] == -INFINITY ? 0.0f : scale.output / total;
    auto* go = const_cast<__half*>(ladder::head_base<__half>(p.o, at.batch, at.head)) +
               row * p.o.row + 2 * member;
#pragma unroll
    for (int n = 0; n < kD / 8; ++n) {
      // Two stores: an output row may be aligned to 2 bytes alone.
      go[n * 8] = __float2half(u[4 * n + 2 * r] * normalise);
      go[n * 8 + 1] = __float2half(u[4 * n + 2 * r + 1] * normalise);
    }
  }
}

__global__ void __launch_bounds__(STAGE_C_BOUNDS) kernel(const __grid_constant__ ladder::Params p) {
  NoProbe probe;
  attend(p, probe);
}

struct Build {
  static constexpr auto kKernel = kernel;
  static constexpr ladder::Run kRun{.rows = kBlockM,
                                    .keys = kBlockN,
                                    .threads = kThreads,
                                    .stages = kStages,
                                    .note = "both products by wgmma on e4m3"};
  static constexpr const char* kId = "cuda.stage_c.fp8_wgmma";
  using Memory = SharedMemoryPlan;
};

using Clocks = ClockProbeOf<Phase::loads, Phase::transpose, Phase::scores, Phase::softmax,
                            Phase::values, Phase::epilogue>;

__global__ void __launch_bounds__(kThreads)
    instrumented(const __grid_constant__ ladder::Params p, unsigned long long* cycles) {
  Clocks probe(ladder::clocks_of_warp<Clocks, kThreads>(cycles));
  attend(p, probe);
  probe.store();
}

struct Clocked : Build {
  static constexpr auto kKernel = instrumented;
  static constexpr const char* kId = "cuda.stage_c.fp8_wgmma, instrumented";
  using Probe = Clocks;
};

using Rung = ladder::Rung<Build>;
using Twin = ladder::Twin<Clocked>;

}  // namespace
}  // namespace greenfast::cuda::stage_c_fp8_wgmma

namespace greenfast::kernels {
extern const core::Kernel cuda_stage_c_fp8_wgmma =
    cuda::ladder::kRung<cuda::stage_c_fp8_wgmma::Rung>;
extern const core::Kernel cuda_stage_c_fp8_wgmma_phases =
    cuda::ladder::kTwin<cuda::stage_c_fp8_wgmma::Twin>;
}  // namespace greenfast::kernels
