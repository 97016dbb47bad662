// cuda.stage_c.warp_spec: stage-C, warp specialisation. sm_80 and later.
//
// Idea    Four producer warps fetch raw tiles and decode them to fp16 while four consumer warps run
//         stage2's products and softmax; each group waits only for what it needs, through named
//         barriers. Tile: 32 queries, 64 keys; two fp16 stages of K and V between the groups.
// Takes   e4m3, D 64, fp16 output, full and causal, any length, any strides.
// Limits  lengths and tile counts below 2^30.
// Budget  48 to 60 registers, 78 KB of shared memory: two CTAs of 8 warps an SM of sm_90, where
//         stage2 has four of 4. What specialisation hides, occupancy may have hidden already.
// Bound   the consumers' barriers around S, P and U in shared memory.
#include "kernels/cuda/device/phase_probe.cuh"
#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/ladder/rung.hpp"
#include "kernels/cuda/ladder/stage_c.cuh"
#include "kernels/cuda/ladder/twin.cuh"

namespace greenfast::cuda::stage_c_warp_spec {
namespace {

using namespace stage_c;
using nvcuda::wmma::col_major;
using nvcuda::wmma::row_major;

#ifndef WARP_SPEC_STAGES  // `greenfast tune cuda.stage_c.warp_spec` compiles others
#define WARP_SPEC_STAGES 2
#endif
constexpr int kBlockM = 32, kBlockN = 64, kStages = WARP_SPEC_STAGES;
constexpr int kGroup = 128, kThreads = 2 * kGroup;  // consumers, then producers
constexpr int kScorePitch = kBlockN + 4, kWeightPitch = kBlockN + 8, kOutPitch = kD + 4;
constexpr int kLanesPerRow = kGroup / kBlockM, kPerLane = kBlockN / kLanesPerRow;

enum Barrier : int { kConsumers = 1, kFull = 2, kFree = kFull + kStages };

struct SharedMemoryPlan {
  std::uint8_t k_raw[kStages][kBlockN * kD];
  std::uint8_t v_raw[kStages][kBlockN * kD];
  __half q[kBlockM * kPitch];
  __half k[kStages][kBlockN * kPitch];
  __half v[kStages][kBlockN * kPitch];
  float score[kBlockM * kScorePitch];
  __half weight[kBlockM * kWeightPitch];
  float u[kBlockM * kOutPitch];

  static std::vector<SharedBuffer> buffers() {
    return shared_buffers(sizeof(SharedMemoryPlan), {{"raw K", sizeof(k_raw)},
                                                     {"raw V", sizeof(v_raw)},
                                                     {"Q", sizeof(q)},
                                                     {"K", sizeof(k)},
                                                     {"V", sizeof(v)},
                                                     {"S", sizeof(score)},
                                                     {"P", sizeof(weight)},
                                                     {"U", sizeof(u)}});
  }
};

/// The rung, prologue to epilogue. A probe hears where each phase ends; the timed kernel's is
/// empty.
template <bool kCpAsync, bool kWmmaPv, class Probe>
__device__ __forceinline__ void attend(const ladder::Params& p, Probe& probe) {
  extern __shared__ __align__(32) unsigned char memory[];
  SharedMemoryPlan& s = *reinterpret_cast<SharedMemoryPlan*>(memory);
  const ladder::Place at = ladder::place(p);
  const int first = at.tile * kBlockM;
  const int thread = static_cast<int>(threadIdx.x) % kGroup, warp = thread / 32;
  const bool producer = threadIdx.x >= kGroup;
  const int tiles = ladder::key_tiles<kBlockN>(p, first, kBlockM);
  const Scales scale = scales(p, at);

  if (producer) {
    load_raw<kBlockM, kGroup, false>(s.k_raw[0],
                                     ladder::head_base<std::uint8_t>(p.q, at.batch, at.head),
                                     p.q.row, first, p.seq_q, p.vector_loads, thread);
    // A thread decodes the chunks it has loaded, here and below, so its own wait is enough.
    decode_tile<kBlockM, kGroup>(s.q, s.k_raw[0], thread);
  } else {
    for (int i = thread; i < kBlockM * kOutPitch; i += kGroup) s.u[i] = 0;
  }
  __syncthreads();

  if (producer) {
    const auto* gk = ladder::head_base<std::uint8_t>(p.k, at.batch, at.head / p.group);
    const auto* gv = ladder::head_base<std::uint8_t>(p.v, at.batch, at.head / p.group);
    const int keys = ladder::key_end(p, min(first + kBlockM, p.seq_q) - 1);
    const auto load_keys = [&](int tile) {
      if (tile < tiles) {
        load_raw<kBlockN, kGroup, kCpAsync>(s.k_raw[tile % kStages], gk, p.k.row, tile * kBlockN,
                                            keys, p.vector_loads, thread);
        load_raw<kBlockN, kGroup, kCpAsync>(s.v_raw[tile % kStages], gv, p.v.row, tile * kBlockN,
                                            keys, p.vector_loads, thread);
      }
      ptx::cp_async_commit();
    };
    load_keys(0);
    for (int t = 0; t < tiles; ++t) {
      const int stage = t % kStages;
      load_keys(t + 1);
      ptx::cp_async_wait<1>();
      probe.end_of(Phase::loads);
      if (t >= kStages) ptx::named_barrier_sync<kThreads>(kFree + stage);
      probe.end_of(Phase::free_stage);
      decode_tile<kBlockN, kGroup>(s.k[stage], s.k_raw[stage], thread);
      decode_tile<kBlockN, kGroup>(s.v[stage], s.v_raw[stage], thread);
      __threadfence_block();
      ptx::named_barrier_arrive<kThreads>(kFull + stage);
      probe.end_of(Phase::decode);
    }
    ptx::cp_async_wait<0>();
    return;
  }

  const int row = thread / kLanesPerRow, part = thread % kLanesPerRow;
  float max = -INFINITY, sum = 0;
  for (int t = 0; t < tiles; ++t) {
    const int stage = t % kStages;
    ptx::named_barrier_sync<kThreads>(kFull + stage);
    probe.end_of(Phase::full_stage);
    multiply<col_major, false>(s.score, kScorePitch, s.q, kPitch, s.k[stage], warp);
    ptx::named_barrier_sync<kGroup>(kConsumers);
    probe.end_of(Phase::scores);

    const int end = ladder::key_end(p, first + row) - t * kBlockN;
    float score[kPerLane], tile_max = -INFINITY;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int n = i * kLanesPerRow + part;
      score[i] = n < end ? s.score[row * kScorePitch + n] * scale.score : -INFINITY;
      tile_max = fmaxf(tile_max, score[i]);
    }
    const float new_max = fmaxf(max, quad_max(tile_max));
    const float origin = new_max == -INFINITY ? 0.0f : new_max;
    const float rescale = exp2_fast(max - origin);
    max = new_max;
    sum *= rescale;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const float w = exp2_fast(score[i] - origin);
      sum += w;
      s.weight[row * kWeightPitch + i * kLanesPerRow + part] = __float2half(w);
    }
#pragma unroll 4
    for (int c = part; c < kD; c += kLanesPerRow) s.u[row * kOutPitch + c] *= rescale;
    ptx::named_barrier_sync<kGroup>(kConsumers);
    probe.end_of(Phase::softmax);

    if constexpr (kWmmaPv) {
      multiply<row_major, true>(s.u, kOutPitch, s.weight, kWeightPitch, s.v[stage], warp);
    } else {
      multiply_scalar<kBlockM / (kGroup / 32)>(s.u, kOutPitch, s.weight, kWeightPitch, s.v[stage],
                                               warp, thread % 32);
    }
    // The stage's next tile, if there is one, is waited for by the producers; an arrival nobody
    // waits for would hang the barrier.
    if (t + kStages < tiles) ptx::named_barrier_arrive<kThreads>(kFree + stage);
    ptx::named_barrier_sync<kGroup>(kConsumers);
    probe.end_of(Phase::values);
  }

  const float total = quad_sum(sum);
  if (first + row >= p.seq_q) return;
  const float normalise = max == -INFINITY ? 0.0f : scale.output / total;
  auto* go = const_cast<__half*>(ladder::head_base<__half>(p.o, at.batch, at.head)) +
             (first + row) * p.o.row;
  for (int c = part; c < kD; c += kLanesPerRow)
    go[c] = __float2half(s.u[row * kOutPitch + c] * normalise);
}

template <bool kCpAsync, bool kWmmaPv>
__global__ void __launch_bounds__(STAGE_C_BOUNDS) kernel(const __grid_constant__ ladder::Params p) {
  NoProbe probe;
  attend<kCpAsync, kWmmaPv>(p, probe);
}

template <bool kCpAsync, bool kWmmaPv>
struct Build {
  static constexpr auto kKernel = kernel<kCpAsync, kWmmaPv>;
  static constexpr ladder::Run kRun{.rows = kBlockM,
                                    .keys = kBlockN,
                                    .threads = kThreads,
                                    .shared_bytes = sizeof(SharedMemoryPlan),
                                    .stages = kStages,
                                    .note = "4 producer warps decode, 4 consumer warps multiply"};
  static constexpr const char* kId = "cuda.stage_c.warp_spec";
  using Memory = SharedMemoryPlan;
};

using Clocks = ClockProbeOf<Phase::loads, Phase::free_stage, Phase::decode, Phase::full_stage,
                            Phase::scores, Phase::softmax, Phase::values, Phase::epilogue>;

__global__ void __launch_bounds__(kThreads)
    instrumented(const __grid_constant__ ladder::Params p, unsigned long long* cycles) {
  Clocks probe(ladder::clocks_of_warp<Clocks, kThreads>(cycles));
  attend<true, true>(p, probe);
  probe.store();
}

struct Clocked : Build<true, true> {
  static constexpr auto kKernel = instrumented;
  static constexpr const char* kId = "cuda.stage_c.warp_spec, instrumented";
  using Probe = Clocks;
};

template <bool kCpAsync, bool kWmmaPv>
using Rung = ladder::Rung<Build<kCpAsync, kWmmaPv>>;
using Twin = ladder::Twin<Clocked>;

}  // namespace
}  // namespace greenfast::cuda::stage_c_warp_spec

namespace greenfast::kernels {
template <bool kCpAsync, bool kWmmaPv>
constexpr core::Kernel kWarpSpec =
    cuda::ladder::kRung<cuda::stage_c_warp_spec::Rung<kCpAsync, kWmmaPv>>;
extern const core::Kernel cuda_stage_c_warp_spec = kWarpSpec<true, true>;
extern const core::Kernel cuda_stage_c_warp_spec_no_cp_async = kWarpSpec<false, true>;
extern const core::Kernel cuda_stage_c_warp_spec_no_wmma_pv = kWarpSpec<true, false>;
extern const core::Kernel cuda_stage_c_warp_spec_phases =
    cuda::ladder::kTwin<cuda::stage_c_warp_spec::Twin>;
}  // namespace greenfast::kernels
