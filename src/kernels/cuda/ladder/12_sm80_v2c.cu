// cuda.v2c.v5, v6, v7: V2c, rungs 5 to 7. sm_80 and later.
//
// Idea    One toggle each:
//         v5  Q·Kᵀ on tensor cores through WMMA, K and V staged by cp.async; P·V still scalar,
//             copies not overlapped.
//         v6  P·V on tensor cores as well: the softmax streams, and the output tile is rescaled in
//             shared memory.
//         v7  the next tile's copies run while this one computes.
//         Tile: 64 queries; 64 keys at D 64, 32 at D 128 (64 would take 139 KB); 4 warps, each the
//         owner of one 16-row stripe of S, P and O. WMMA always touches a full 16x16 tile, so
//         ragged tails are zero-filled and masked, never skipped: every warp stays in the loop, and
//         only the final stores look at Sq.
// Takes   fp16, D 64 and 128, full and causal, any length, any strides.
// Limits  lengths and tile counts below 2^30.
// Budget  53 to 72 registers, 90 KB of shared memory at D 64 and 100 KB at D 128: two CTAs an SM of
//         sm_90, one of sm_80 and sm_89.
// Bound   v5 scalar P·V (70% of the originals' time); v6, v7 traffic of S, P and O through shared
//         memory.
#include <mma.h>

#include "kernels/cuda/device/phase_probe.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/ladder/ladder.cuh"
#include "kernels/cuda/ladder/rung.hpp"
#include "kernels/cuda/ladder/twin.cuh"

namespace greenfast::cuda::v2c {
namespace {

namespace wmma = nvcuda::wmma;

constexpr int kBlockM = 64, kWarps = kBlockM / 16, kThreads = 32 * kWarps, kStages = 2;

enum class Multiply { scalar, wmma };

struct Config {
  int head_dim = 64;
  Multiply pv = Multiply::scalar;
  bool overlap = false;  // copies of the next tile run under this one's arithmetic

  constexpr int block_n() const { return head_dim == 64 ? 64 : 32; }
};

template <Config C>
struct With {
  static constexpr Config value = C;
};

template <class W>
struct SharedMemoryPlan {
  static constexpr int kD = W::value.head_dim, kN = W::value.block_n();
  // Pitches are odd multiples of 16 bytes, so that the rows of a 16x16 fragment start in different
  // banks.
  static constexpr int kPitch = kD + 8, kScorePitch = kN + 4, kWeightPitch = kN + 8,
                       kOutPitch = kD + 4;
  __half q[kBlockM * kPitch];
  __half k[kStages][kN * kPitch];
  __half v[kStages][kN * kPitch];
  float score[kBlockM * kScorePitch];
  __half weight[kBlockM * kWeightPitch];
  float o[kBlockM * kOutPitch];

  static std::vector<SharedBuffer> buffers() {
    return shared_buffers(sizeof(SharedMemoryPlan), {{"Q", sizeof(q)},
                                                     {"K", sizeof(k)},
                                                     {"V", sizeof(v)},
                                                     {"S", sizeof(score)},
                                                     {"P", sizeof(weight)},
                                                     {"O", sizeof(o)}});
  }
};

/// S of one stripe = Q stripe (16 x D) times K tile transposed. K lies as [key][d], which is a
/// column-major B operand whose leading dimension is the pitch of a stored row; with the number of
/// columns there instead, the originals' v4 read the wrong keys.
template <class W>
__device__ __forceinline__ void multiply_qk(SharedMemoryPlan<W>& s, int warp, int stage) {
  using Plan = SharedMemoryPlan<W>;
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::col_major> b;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
#pragma unroll 1
  for (int n = 0; n < Plan::kN; n += 16) {
    wmma::fill_fragment(c, 0.0f);
#pragma unroll 2
    for (int d = 0; d < Plan::kD; d += 16) {
      wmma::load_matrix_sync(a, s.q + warp * 16 * Plan::kPitch + d, Plan::kPitch);
      wmma::load_matrix_sync(b, s.k[stage] + n * Plan::kPitch + d, Plan::kPitch);
      wmma::mma_sync(c, a, b, c);
    }
    wmma::store_matrix_sync(s.score + warp * 16 * Plan::kScorePitch + n, c, Plan::kScorePitch,
                            wmma::mem_row_major);
  }
}

/// O stripe += P stripe (16 x N) times V tile; O lives in shared memory because WMMA hides which
/// lane holds which row, so the rescale could not be done in its registers.
template <class W>
__device__ __forceinline__ void multiply_pv_wmma(SharedMemoryPlan<W>& s, int warp, int stage) {
  using Plan = SharedMemoryPlan<W>;
  wmma::fragment<wmma::matrix_a, 16, 16, 16, __half, wmma::row_major> a;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, __half, wmma::row_major> b;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
#pragma unroll 1
  for (int d = 0; d < Plan::kD; d += 16) {
    float* o = s.o + warp * 16 * Plan::kOutPitch + d;
    wmma::load_matrix_sync(c, o, Plan::kOutPitch, wmma::mem_row_major);
#pragma unroll 2
    for (int n = 0; n < Plan::kN; n += 16) {
      wmma::load_matrix_sync(a, s.weight + warp * 16 * Plan::kWeightPitch + n, Plan::kWeightPitch);
      wmma::load_matrix_sync(b, s.v[stage] + n * Plan::kPitch + d, Plan::kPitch);
      wmma::mma_sync(c, a, b, c);
    }
    wmma::store_matrix_sync(o, c, Plan::kOutPitch, wmma::mem_row_major);
  }
}

template <class W>
__device__ __forceinline__ void multiply_pv_scalar(SharedMemoryPlan<W>& s, int warp, int lane,
                                                   int stage) {
  using Plan = SharedMemoryPlan<W>;
#pragma unroll 1
  for (int row = warp * 16; row < warp * 16 + 16; ++row) {
    float sum[Plan::kD / 32] = {};
#pragma unroll 4
    for (int n = 0; n < Plan::kN; ++n) {
      const float weight = __half2float(s.weight[row * Plan::kWeightPitch + n]);
#pragma unroll
      for (int c = 0; c < Plan::kD / 32; ++c) {
        sum[c] = fmaf(weight, __half2float(s.v[stage][n * Plan::kPitch + c * 32 + lane]), sum[c]);
      }
    }
#pragma unroll
    for (int c = 0; c < Plan::kD / 32; ++c) s.o[row * Plan::kOutPitch + c * 32 + lane] += sum[c];
  }
}

/// The rung, prologue to epilogue. A probe hears where each phase ends; the timed kernel's is
/// empty.
template <class W, class Probe>
__device__ __forceinline__ void attend(const ladder::Params& p, Probe& probe) {
  using Plan = SharedMemoryPlan<W>;
  constexpr Config config = W::value;
  constexpr int kN = Plan::kN, kD = Plan::kD;
  extern __shared__ __align__(32) unsigned char memory[];
  Plan& s = *reinterpret_cast<Plan*>(memory);
  const ladder::Place at = ladder::place(p);
  const __half* gk = ladder::head_base<__half>(p.k, at.batch, at.head / p.group);
  const __half* gv = ladder::head_base<__half>(p.v, at.batch, at.head / p.group);
  const int first = at.tile * kBlockM;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int tiles = ladder::key_tiles<kN>(p, first, kBlockM);
  // Keys past the last one any row here sees become zeros: their weight is 0, but 0 times a NaN
  // that no row may see would still reach the output through the tensor cores.
  const int keys = ladder::key_end(p, min(first + kBlockM, p.seq_q) - 1);

  const auto load_keys = [&](int tile) {
    if (tile < tiles) {
      ladder::load_tile<__half, kN, kD, Plan::kPitch, kThreads, true>(
          s.k[tile % kStages], gk, p.k.row, tile * kN, keys, p.vector_loads);
      ladder::load_tile<__half, kN, kD, Plan::kPitch, kThreads, true>(
          s.v[tile % kStages], gv, p.v.row, tile * kN, keys, p.vector_loads);
    }
    ptx::cp_async_commit();  // also for no tile: waits count groups
  };

  ladder::load_tile<__half, kBlockM, kD, Plan::kPitch, kThreads, true>(
      s.q, ladder::head_base<__half>(p.q, at.batch, at.head), p.q.row, first, p.seq_q,
      p.vector_loads);
  for (int i = static_cast<int>(threadIdx.x); i < kBlockM * Plan::kOutPitch; i += kThreads)
    s.o[i] = 0;
  if constexpr (config.overlap) load_keys(0);

  // Two lanes share a row's softmax, each with half of the keys; the state of the row is theirs
  // alone.
  const int row = warp * 16 + lane / 2, half = lane % 2;
  float max = -INFINITY, sum = 0;

  for (int t = 0; t < tiles; ++t) {
    if constexpr (config.overlap) {
      load_keys(t + 1);
      ptx::cp_async_wait<1>();
    } else {
      load_keys(t);
      ptx::cp_async_wait<0>();
    }
    __syncthreads();
    probe.end_of(Phase::loads);
    multiply_qk<W>(s, warp, t % kStages);
    __syncwarp();
    probe.end_of(Phase::scores);

    const int end = ladder::key_end(p, first + row) - t * kN;
    float* score = s.score + row * Plan::kScorePitch;
    float tile_max = -INFINITY;
    for (int n = half; n < kN; n += 2)
      tile_max = fmaxf(tile_max, n < end ? score[n] * p.scale_log2 : -INFINITY);
    // One exchange between the two lanes of a row. In the originals' v4 every lane repeated a
    // whole-warp sum, and each row's normaliser was counted 32 times.
    tile_max = fmaxf(tile_max, __shfl_xor_sync(kFullWarp, tile_max, 1));
    const float new_max = fmaxf(max, tile_max);
    const float origin = new_max == -INFINITY ? 0.0f : new_max;
    const float rescale = exp2_fast(max - origin);
    max = new_max;
    float tile_sum = 0;
    for (int n = half; n < kN; n += 2) {
      const float weight = n < end ? exp2_fast(score[n] * p.scale_log2 - origin) : 0.0f;
      tile_sum += weight;
      s.weight[row * Plan::kWeightPitch + n] = __float2half(weight);
    }
    sum = sum * rescale + tile_sum;
    for (int c = half; c < kD; c += 2) s.o[row * Plan::kOutPitch + c] *= rescale;
    __syncwarp();
    probe.end_of(Phase::softmax);

    if constexpr (config.pv == Multiply::wmma) {
      multiply_pv_wmma<W>(s, warp, t % kStages);
    } else {
      multiply_pv_scalar<W>(s, warp, lane, t % kStages);
    }
    __syncthreads();  // the stage is free for the copies of tile t + 2 (v7) or t + 1
    probe.end_of(Phase::values);
  }
  ptx::cp_async_wait<0>();
  // Where no row sees a key the loop has had no barrier, and other warps wrote these rows' zeros: a
  // NaN of what memory held would survive the weight of 0.
  __syncthreads();

  sum += __shfl_xor_sync(kFullWarp, sum, 1);
  if (first + row >= p.seq_q) return;
  const float normalise = max == -INFINITY ? 0.0f : 1.0f / sum;
  __half* go = const_cast<__half*>(ladder::head_base<__half>(p.o, at.batch, at.head)) +
               (first + row) * p.o.row;
  for (int c = half; c < kD; c += 2)
    go[c] = __float2half(s.o[row * Plan::kOutPitch + c] * normalise);
}

template <class W>
__global__ void __launch_bounds__(kThreads) kernel(const __grid_constant__ ladder::Params p) {
  NoProbe probe;
  attend<W>(p, probe);
}

template <int D, Multiply kPv, bool kOverlap>
struct Build {
  using W = With<Config{.head_dim = D, .pv = kPv, .overlap = kOverlap}>;
  static constexpr auto kKernel = kernel<W>;
  static constexpr ladder::Run kRun{.rows = kBlockM,
                                    .keys = W::value.block_n(),
                                    .threads = kThreads,
                                    .shared_bytes = sizeof(SharedMemoryPlan<W>),
                                    .stages = kStages,
                                    .note = kPv == Multiply::scalar ? "WMMA Q·Kᵀ, scalar P·V"
                                            : kOverlap ? "WMMA, copies under arithmetic"
                                                       : "WMMA, copies awaited"};
  static constexpr const char* kId = "cuda.v2c";
  using Memory = SharedMemoryPlan<W>;
};

template <Multiply kPv, bool kOverlap>
using Rung = ladder::Rung<Build<64, kPv, kOverlap>, Build<128, kPv, kOverlap>>;

using V5 = Rung<Multiply::scalar, false>;
using V6 = Rung<Multiply::wmma, false>;
using V7 = Rung<Multiply::wmma, true>;

using Clocks =
    ClockProbeOf<Phase::loads, Phase::scores, Phase::softmax, Phase::values, Phase::epilogue>;

template <class W>
__global__ void __launch_bounds__(kThreads)
    instrumented(const __grid_constant__ ladder::Params p, unsigned long long* cycles) {
  Clocks probe(ladder::clocks_of_warp<Clocks, kThreads>(cycles));
  attend<W>(p, probe);
  probe.store();
}

template <int D, Multiply kPv, bool kOverlap>
struct Clocked : Build<D, kPv, kOverlap> {
  static constexpr auto kKernel = instrumented<typename Build<D, kPv, kOverlap>::W>;
  static constexpr const char* kId = "cuda.v2c, instrumented";
  using Probe = Clocks;
};

template <Multiply kPv, bool kOverlap>
using Twin = ladder::Twin<Clocked<64, kPv, kOverlap>, Clocked<128, kPv, kOverlap>>;

}  // namespace
}  // namespace greenfast::cuda::v2c

namespace greenfast::kernels {
using namespace cuda::v2c;
using cuda::ladder::kRung;
using cuda::ladder::kTwin;
extern const core::Kernel cuda_v2c_v5 = kRung<V5>;
extern const core::Kernel cuda_v2c_v6 = kRung<V6>;
extern const core::Kernel cuda_v2c_v7 = kRung<V7>;
extern const core::Kernel cuda_v2c_v5_phases = kTwin<Twin<Multiply::scalar, false>>;
extern const core::Kernel cuda_v2c_v6_phases = kTwin<Twin<Multiply::wmma, false>>;
extern const core::Kernel cuda_v2c_v7_phases = kTwin<Twin<Multiply::wmma, true>>;
}  // namespace greenfast::kernels
