// cuda.stage_c.persistent: stage-C, persistent CTAs. sm_80 and later.
//
// Idea    As many CTAs as fit the GPU at once, each taking tile after tile, heaviest causal tiles
//         first; the next tile's first keys are copied while this one finishes, so that only one
//         prologue a CTA is exposed. Tile and step: stage2's.
// Takes   e4m3, D 64, fp16 output, full and causal, any length, any strides.
// Limits  lengths and tile counts below 2^30.
// Budget  56 to 72 registers, 53 KB of shared memory: four CTAs an SM of sm_90.
// Bound   as stage2; what is saved is the prologue, which is small where a tile has many steps.
#include <algorithm>

#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/ladder/rung.hpp"
#include "kernels/cuda/ladder/stage_c.cuh"

namespace greenfast::cuda::stage_c_persistent {
namespace {

using namespace stage_c;
using nvcuda::wmma::col_major;
using nvcuda::wmma::row_major;

constexpr int kBlockM = 32, kBlockN = 64, kWarps = 4, kThreads = 32 * kWarps, kStages = 2;
constexpr int kScorePitch = kBlockN + 4, kWeightPitch = kBlockN + 8, kOutPitch = kD + 4;
constexpr int kLanesPerRow = kThreads / kBlockM, kPerLane = kBlockN / kLanesPerRow;

struct SharedMemoryPlan {
  std::uint8_t q_raw[kBlockM * kD];
  std::uint8_t k_raw[kStages][kBlockN * kD];
  std::uint8_t v_raw[kStages][kBlockN * kD];
  __half q[kBlockM * kPitch];
  __half kv[kBlockN * kPitch];
  float score[kBlockM * kScorePitch];
  __half weight[kBlockM * kWeightPitch];
  float u[kBlockM * kOutPitch];

  static std::vector<SharedBuffer> buffers() {
    return shared_buffers(sizeof(SharedMemoryPlan), {{"raw Q", sizeof(q_raw)},
                                                     {"raw K", sizeof(k_raw)},
                                                     {"raw V", sizeof(v_raw)},
                                                     {"Q", sizeof(q)},
                                                     {"K, then V", sizeof(kv)},
                                                     {"S", sizeof(score)},
                                                     {"P", sizeof(weight)},
                                                     {"U", sizeof(u)}});
  }
};

/// A tile of work: where it is and how many steps it has.
struct Work {
  ladder::Place at{};
  int first = 0, tiles = 0, keys = 0;
};

/// Tile `index` of `total`: the last query tile of every head comes first, because under a causal
/// mask it sees the most keys.
__device__ __forceinline__ Work work_at(const ladder::Params& p, int index, int total) {
  const int rows = total / p.q_tiles, row = index % rows;
  Work work;
  work.at = {p.q_tiles - 1 - index / rows, row % p.heads_q, row / p.heads_q};
  work.first = work.at.tile * kBlockM;
  work.tiles = ladder::key_tiles<kBlockN>(p, work.first, kBlockM);
  work.keys = ladder::key_end(p, min(work.first + kBlockM, p.seq_q) - 1);
  return work;
}

template <bool kCpAsync, bool kWmmaPv>
__global__ void __launch_bounds__(STAGE_C_BOUNDS)
    kernel(const __grid_constant__ ladder::Params p, int total) {
  extern __shared__ __align__(32) unsigned char memory[];
  SharedMemoryPlan& s = *reinterpret_cast<SharedMemoryPlan*>(memory);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
  const int row = thread / kLanesPerRow, part = thread % kLanesPerRow;

  const auto load_keys = [&](const Work& work, int tile, int stage) {
    if (tile < work.tiles) {
      load_raw<kBlockN, kThreads, kCpAsync>(
          s.k_raw[stage],
          ladder::head_base<std::uint8_t>(p.k, work.at.batch, work.at.head / p.group), p.k.row,
          tile * kBlockN, work.keys, p.vector_loads, thread);
      load_raw<kBlockN, kThreads, kCpAsync>(
          s.v_raw[stage],
          ladder::head_base<std::uint8_t>(p.v, work.at.batch, work.at.head / p.group), p.v.row,
          tile * kBlockN, work.keys, p.vector_loads, thread);
    }
    ptx::cp_async_commit();
  };

  int index = static_cast<int>(blockIdx.x);
  int step = 0;  // over all tiles of this CTA: picks the stage
  Work work = work_at(p, index, total);
  load_keys(work, 0, 0);
  while (true) {
    const int next_index = index + static_cast<int>(gridDim.x);
    const bool more = next_index < total;
    const Work next = more ? work_at(p, next_index, total) : Work{};
    const Scales scale = scales(p, work.at);

    load_raw<kBlockM, kThreads, false>(
        s.q_raw, ladder::head_base<std::uint8_t>(p.q, work.at.batch, work.at.head), p.q.row,
        work.first, p.seq_q, p.vector_loads, thread);
    for (int i = thread; i < kBlockM * kOutPitch; i += kThreads) s.u[i] = 0;
    // A thread decodes the chunks it has loaded.
    decode_tile<kBlockM, kThreads>(s.q, s.q_raw, thread);

    float max = -INFINITY, sum = 0;
    for (int t = 0; t < work.tiles; ++t, ++step) {
      if (t + 1 < work.tiles) {
        load_keys(work, t + 1, (step + 1) % kStages);
      } else {
        load_keys(next, 0, (step + 1) % kStages);
      }
      ptx::cp_async_wait<1>();
      __syncthreads();
      decode_tile<kBlockN, kThreads>(s.kv, s.k_raw[step % kStages], thread);
      __syncthreads();
      multiply<col_major, false>(s.score, kScorePitch, s.q, kPitch, s.kv, warp);
      __syncthreads();

      decode_tile<kBlockN, kThreads>(s.kv, s.v_raw[step % kStages], thread);
      const int end = ladder::key_end(p, work.first + row) - t * kBlockN;
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
      __syncthreads();

      if constexpr (kWmmaPv) {
        multiply<row_major, true>(s.u, kOutPitch, s.weight, kWeightPitch, s.kv, warp);
      } else {
        multiply_scalar<kBlockM / kWarps>(s.u, kOutPitch, s.weight, kWeightPitch, s.kv, warp,
                                          thread % 32);
      }
      __syncthreads();
    }
    if (work.tiles == 0) {  // no step has asked for the next tile's keys
      load_keys(next, 0, step % kStages);
      __syncthreads();
    }

    const float total_sum = quad_sum(sum);
    if (work.first + row < p.seq_q) {
      const float normalise = max == -INFINITY ? 0.0f : scale.output / total_sum;
      auto* go = const_cast<__half*>(ladder::head_base<__half>(p.o, work.at.batch, work.at.head)) +
                 (work.first + row) * p.o.row;
      for (int c = part; c < kD; c += kLanesPerRow)
        go[c] = __float2half(s.u[row * kOutPitch + c] * normalise);
    }
    if (!more) break;
    __syncthreads();  // Q and U of this tile have been read
    work = next;
    index = next_index;
  }
  ptx::cp_async_wait<0>();
}

template <bool kCpAsync, bool kWmmaPv>
struct Build {
  static constexpr auto kKernel = kernel<kCpAsync, kWmmaPv>;
  static constexpr ladder::Run kRun{
      .rows = kBlockM,
      .keys = kBlockN,
      .threads = kThreads,
      .shared_bytes = sizeof(SharedMemoryPlan),
      .stages = kStages,
      .note = "CTAs that take tile after tile, last query tile first"};
  static constexpr const char* kId = "cuda.stage_c.persistent";
  using Memory = SharedMemoryPlan;
};

/// CTAs that the GPU holds at once, as far as shared memory tells.
int resident(const DeviceFacts& facts) {
  const auto fit = static_cast<int>(facts.shared_per_block /
                                    static_cast<std::int64_t>(sizeof(SharedMemoryPlan)));
  return std::max(1, fit) * facts.multiprocessors;
}

/// kMost: a cap under which small problems give each CTA many tiles, as large ones do; 0: none.
template <bool kCpAsync, bool kWmmaPv, int kMost>
struct Persistent : ladder::Rung<Build<kCpAsync, kWmmaPv>> {
  using Base = ladder::Rung<Build<kCpAsync, kWmmaPv>>;

  static int grid(const Problem& problem, const DeviceFacts& facts) {
    const int most = kMost > 0 ? std::min(kMost, resident(facts)) : resident(facts);
    return static_cast<int>(std::min<std::int64_t>(ladder::ctas(problem, kBlockM), most));
  }
  static Plan plan(const Problem& problem, const DeviceFacts& facts, core::Choice choice) {
    Plan plan = Base::plan(problem, facts, choice);
    plan.grid[0] = grid(problem, facts);
    return plan;
  }
  static Status launch(const Problem& problem, const Tensors& tensors,
                       const core::Context& context) {
    const auto total = static_cast<int>(ladder::ctas(problem, kBlockM));
    return ladder::launch_blocks<Build<kCpAsync, kWmmaPv>>(problem, tensors, context,
                                                           grid(problem, *context.facts), total);
  }
};

}  // namespace
}  // namespace greenfast::cuda::stage_c_persistent

namespace greenfast::kernels {
template <bool kCpAsync, bool kWmmaPv, int kMost = 0>
constexpr core::Kernel kPersistent =
    cuda::ladder::kRung<cuda::stage_c_persistent::Persistent<kCpAsync, kWmmaPv, kMost>>;
extern const core::Kernel cuda_stage_c_persistent = kPersistent<true, true>;
extern const core::Kernel cuda_stage_c_persistent_no_cp_async = kPersistent<false, true>;
extern const core::Kernel cuda_stage_c_persistent_no_wmma_pv = kPersistent<true, false>;
// The same machine code on three CTAs: edge checks and sanitizers, whose problems are small, then go
// from tile to tile and over tiles without keys.
extern const core::Kernel cuda_stage_c_persistent_capped = kPersistent<true, true, 3>;
}  // namespace greenfast::kernels
