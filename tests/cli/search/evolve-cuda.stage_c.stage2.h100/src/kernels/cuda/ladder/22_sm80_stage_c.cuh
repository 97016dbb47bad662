// cuda.stage_c.stage0 to three_stage: stage-C, the rungs that share one loop. sm_80 and later.
//
// Idea    Raw e4m3 bytes are staged in shared memory and decoded there to fp16 tiles. One toggle
//         each:
//         stage0       WMMA Q·Kᵀ, scalar P·V, plain loads
//         stage1       USE_CP_ASYNC=1: raw K and V arrive by cp.async, one tile ahead
//         stage2       USE_WMMA_PV=1: P·V on tensor cores, into fp32
//         stage3a      USE_FUSED_SOFTMAX_PV=1: P overwrites the score tile, whose buffer goes
//         swizzle      USE_XOR_SWIZZLE=1: 16-byte chunks of the raw tiles change places by row.
//                      The control experiment: raw rows are read whole, without bank conflicts
//                      before and after, so it shows what permuting costs. The conflicts that ncu
//                      counts are the fp16 and fp32 tiles', whose pitch WMMA needs constant.
//         three_stage  USE_THREE_STAGE_PIPE=1: raw tiles two ahead
//         Tile: 32 queries, 64 keys, 4 warps; U, the output before normalisation, lives in shared
//         memory in fp32. K and V are decoded in turn into one fp16 tile. The scales never touch
//         the tiles, so that decoding stays exact: Q's and K's go into the softmax scale, V's into
//         the last division.
// Takes   e4m3 with a scale a tensor or a head, D 64, fp16 output, full and causal, any length, any
//         strides.
// Limits  lengths and tile counts below 2^30.
// Budget  64 to 90 registers; 43 KB of shared memory for stage0, 51 KB for stage1 and stage2, 47 KB
//         for stage3a, 59 KB for three_stage: three to five CTAs an SM of sm_90.
// Bound   shared-memory traffic and the four barriers of a step.
#pragma once

#include "kernels/cuda/device/phase_probe.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/ladder/stage_c.cuh"

namespace greenfast::cuda::stage_c {
namespace {

using nvcuda::wmma::col_major;
using nvcuda::wmma::row_major;

constexpr const char* kId = "cuda.stage_c";
constexpr int kBlockM = 32, kBlockN = 64, kWarps = 4, kThreads = 32 * kWarps;
constexpr int kScorePitch = kBlockN + 4, kOutPitch = kD + 4;
constexpr int kLanesPerRow = kThreads / kBlockM;

struct Config {
  bool cp_async = false, wmma_pv = false, fused_softmax_pv = false, xor_swizzle = false;
  int stages = 2;
};

template <Config C>
struct With {
  static constexpr Config value = C;
};

template <class W>
struct SharedMemoryPlan {
  static constexpr Config kConfig = W::value;
  static constexpr int kStages = kConfig.cp_async ? kConfig.stages : 1;
  // P in place of S: the same row pitch in bytes.
  static constexpr int kWeightPitch = kConfig.fused_softmax_pv ? 2 * kScorePitch : kBlockN + 8;
  std::uint8_t k_raw[kStages][kBlockN * kD];
  std::uint8_t v_raw[kStages][kBlockN * kD];
  __half q[kBlockM * kPitch];
  __half kv[kBlockN * kPitch];  // K, then V of the same step
  float score[kBlockM * kScorePitch];
  __half weight_buffer[kConfig.fused_softmax_pv ? 8 : kBlockM * (kBlockN + 8)];
  float u[kBlockM * kOutPitch];

  __device__ __half* weight() {
    return kConfig.fused_softmax_pv ? reinterpret_cast<__half*>(score) : weight_buffer;
  }

  static std::vector<SharedBuffer> buffers() {
    return shared_buffers(sizeof(SharedMemoryPlan),
                          {{"raw K", sizeof(k_raw)},
                           {"raw V", sizeof(v_raw)},
                           {"Q", sizeof(q)},
                           {"K, then V", sizeof(kv)},
                           {kConfig.fused_softmax_pv ? "S, then P" : "S", sizeof(score)},
                           {kConfig.fused_softmax_pv ? "unused" : "P", sizeof(weight_buffer)},
                           {"U", sizeof(u)}});
  }
};

/// The rung, prologue to epilogue. A probe hears where each phase ends; the timed kernel's is
/// empty.
template <class W, class Probe>
__device__ __forceinline__ void attend(const ladder::Params& p, Probe& probe) {
  using Plan = SharedMemoryPlan<W>;
  constexpr Config config = W::value;
  constexpr int kStages = Plan::kStages, kPerLane = kBlockN / kLanesPerRow;
  extern __shared__ __align__(32) unsigned char memory[];
  Plan& s = *reinterpret_cast<Plan*>(memory);
  const ladder::Place at = ladder::place(p);
  const int kv_head = at.head / p.group;
  const auto* gk = ladder::head_base<std::uint8_t>(p.k, at.batch, kv_head);
  const auto* gv = ladder::head_base<std::uint8_t>(p.v, at.batch, kv_head);
  const int first = at.tile * kBlockM;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int tiles = ladder::key_tiles<kBlockN>(p, first, kBlockM);
  const int keys = ladder::key_end(p, min(first + kBlockM, p.seq_q) - 1);
  const Scales scale = scales(p, at);

  const auto load_keys = [&](int tile) {
    if (tile < tiles) {
      load_raw<kBlockN, kThreads, config.cp_async, config.xor_swizzle>(
          s.k_raw[tile % kStages], gk, p.k.stride_s, tile * kBlockN, keys, p.vector_loads, thread);
      load_raw<kBlockN, kThreads, config.cp_async, config.xor_swizzle>(
          s.v_raw[tile % kStages], gv, p.v.stride_s, tile * kBlockN, keys, p.vector_loads, thread);
    }
    if (config.cp_async) ptx::cp_async_commit();
  };

  // Q passes through the K stage before anything else needs it.
  load_raw<kBlockM, kThreads, false, config.xor_swizzle>(
      s.k_raw[0], ladder::head_base<std::uint8_t>(p.q, at.batch, at.head), p.q.stride_s, first,
      p.seq_q, p.vector_loads, thread);
  for (int i = thread; i < kBlockM * kOutPitch; i += kThreads) s.u[i] = 0;
  __syncthreads();
  decode_tile<kBlockM, kThreads, config.xor_swizzle>(s.q, s.k_raw[0], thread);
  __syncthreads();
  if constexpr (config.cp_async) {
    for (int t = 0; t < kStages - 1; ++t) load_keys(t);
  }

  const int row = thread / kLanesPerRow, part = thread % kLanesPerRow;
  float max = -INFINITY, sum = 0;
  for (int t = 0; t < tiles; ++t) {
    if constexpr (config.cp_async) {
      load_keys(t + kStages - 1);  // into the stage that step t - 1 left behind its last barrier
      ptx::cp_async_wait<kStages - 1>();
    } else {
      load_keys(t);
    }
    __syncthreads();
    probe.end_of(Phase::loads);
    decode_tile<kBlockN, kThreads, config.xor_swizzle>(s.kv, s.k_raw[t % kStages], thread);
    __syncthreads();
    probe.end_of(Phase::decode);
    multiply<col_major, false>(s.score, kScorePitch, s.q, kPitch, s.kv, warp);
    __syncthreads();
    probe.end_of(Phase::scores);

    // V replaces K in the fp16 tile while the softmax works on the scores.
    decode_tile<kBlockN, kThreads, config.xor_swizzle>(s.kv, s.v_raw[t % kStages], thread);
    probe.end_of(Phase::decode);
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
    // The four lanes of a row have read all of its scores: P may take their place.
    __syncwarp();
    __half* weight = s.weight() + row * Plan::kWeightPitch;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const float w = exp2_fast(score[i] - origin);
      sum += w;
      weight[i * kLanesPerRow + part] = __float2half(w);
    }
#pragma unroll 4
    for (int c = part; c < kD; c += kLanesPerRow) s.u[row * kOutPitch + c] *= rescale;
    __syncthreads();
    probe.end_of(Phase::softmax);

    if constexpr (config.wmma_pv) {
      multiply<row_major, true>(s.u, kOutPitch, s.weight(), Plan::kWeightPitch, s.kv, warp);
    } else {
      multiply_scalar<kBlockM / kWarps>(s.u, kOutPitch, s.weight(), Plan::kWeightPitch, s.kv, warp,
                                        lane);
    }
    __syncthreads();
    probe.end_of(Phase::values);
  }
  if constexpr (config.cp_async) ptx::cp_async_wait<0>();

  const float total = quad_sum(sum);
  if (first + row >= p.seq_q) return;
  const float normalise = max == -INFINITY ? 0.0f : scale.output / total;
  __half* go = const_cast<__half*>(ladder::head_base<__half>(p.o, at.batch, at.head)) +
               (first + row) * p.o.stride_s;
  for (int c = part; c < kD; c += kLanesPerRow)
    go[c] = __float2half(s.u[row * kOutPitch + c] * normalise);
}

template <class W>
__global__ void __launch_bounds__(STAGE_C_BOUNDS) kernel(const __grid_constant__ ladder::Params p) {
  NoProbe probe;
  attend<W>(p, probe);
}

template <Config C>
struct Rung {
  using W = With<C>;
  static constexpr int kShared = sizeof(SharedMemoryPlan<W>);

  static Status launch(const Problem& problem, const Tensors& tensors,
                       const core::Context& context) {
    if (Status status = ladder::allow_shared<kernel<W>>(kShared, context, kId); !status)
      return status;
    kernel<W><<<static_cast<unsigned>(ladder::ctas(problem, kBlockM)), kThreads, kShared,
                static_cast<cudaStream_t>(context.stream)>>>(
        ladder::make_params(problem, tensors, kBlockM));
    return ladder::launched(kId);
  }
  static bool supports(const Problem& problem, const DeviceFacts&, core::Choice, std::string* why) {
    return ladder::accepts(problem, {}, kBlockM, why);
  }
  static Plan plan(const Problem& problem, const DeviceFacts&, core::Choice) {
    Plan plan;
    plan.grid = {static_cast<int>(ladder::ctas(problem, kBlockM)), 1, 1};
    plan.block = {kThreads, 1, 1};
    plan.shared_bytes = kShared;
    plan.shared = SharedMemoryPlan<W>::buffers();
    plan.tile_q = kBlockM;
    plan.tile_kv = kBlockN;
    plan.stages = SharedMemoryPlan<W>::kStages;
    plan.kernel = name_of_kernel<kernel<W>>();
    plan.note = C.wmma_pv ? "WMMA Q·Kᵀ and P·V on decoded fp16 tiles" : "WMMA Q·Kᵀ, scalar P·V";
    return plan;
  }
};

template <class R>
constexpr core::Kernel kRung{.supports = R::supports, .plan = R::plan, .launch = R::launch};

}  // namespace
}  // namespace greenfast::cuda::stage_c
