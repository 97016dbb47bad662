// cuda.stage_c.fp8_mma: stage-C by fp8's mma.sync, which sm_89 has and sm_90a emulates in fp16.
//
// Idea    The kernel decodes nothing; both products take e4m3 by mma.sync m16n8k32, as stage3b in
//         fp16. P becomes e4m3 too: the exponent's origin is 2^8 lower, so that weights use the
//         range up to 256 of 448, and the factor cancels in the normalisation. P·V wants four
//         neighbouring keys of one output column in a register. So V is transposed on its way
//         through shared memory, and keys are permuted within groups of 16 such that the
//         accumulator of Q·Kᵀ, packed to bytes, already is the A operand: a lane holds keys 2m,
//         2m+1, 8+2m, 9+2m (m: its place in the quad), which are slots 4m to 4m+3. Tile: 32
//         queries, 64 keys, 4 warps, keys split between two warps of a stripe as in stage3b.
// Takes   e4m3, D 64, fp16 output, full and causal, any length, any strides.
// Limits  lengths and tile counts below 2^30.
// Budget  107 registers on sm_89, 126 on sm_90; 32 KB of shared memory: three and four CTAs an SM.
// Bound   transposing V, and the exponentials.
#include "kernels/cuda/device/phase_probe.cuh"
#include "kernels/cuda/device/ptx_mma.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/ladder/rung.hpp"
#include "kernels/cuda/ladder/stage_c.cuh"
#include "kernels/cuda/ladder/twin.cuh"

namespace greenfast::cuda::stage_c_fp8_mma {
namespace {

using namespace stage_c;

constexpr int kBlockM = 32, kBlockN = 64, kWarps = 4, kThreads = 32 * kWarps, kStages = 2;
constexpr int kKeys = kBlockN / 2;  // of one warp
constexpr int kAtoms = kKeys / 8;
constexpr int kTransposedPitch = kBlockN + 16;  // bytes; eight rows start in eight different banks
constexpr float kWeightExponent = 8.0f;

struct SharedMemoryPlan {
  std::uint8_t q[kBlockM * kD];  // swizzled, as K: ldmatrix without bank conflicts
  std::uint8_t k[kStages][kBlockN * kD];
  std::uint8_t v[kStages][kBlockN * kD];
  std::uint8_t v_transposed[kD * kTransposedPitch];
  float partial[2 * 32 * kPartial];

  static std::vector<SharedBuffer> buffers() {
    return shared_buffers(sizeof(SharedMemoryPlan), {{"Q", sizeof(q)},
                                                     {"K", sizeof(k)},
                                                     {"V", sizeof(v)},
                                                     {"V transposed", sizeof(v_transposed)},
                                                     {"partial results", sizeof(partial)}});
  }
};

/// c += a * b on e4m3 with fp32 accumulation. Fragments as m16n8k16's, four bytes where that has
/// two halves.
__device__ __forceinline__ void mma_m16n8k32(float (&c)[4], const std::uint32_t (&a)[4],
                                             std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Four floats to four e4m3 bytes, rounded to nearest even and saturating; x0 in the lowest byte.
__device__ __forceinline__ std::uint32_t pack_e4m3x4(float x0, float x1, float x2, float x3) {
  std::uint32_t r;
  asm("{ .reg .b16 low, high;\n"
      "  cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "  cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "  mov.b32 %0, {low, high}; }"
      : "=r"(r)
      : "f"(x0), "f"(x1), "f"(x2), "f"(x3));
  return r;
}

/// V [key][d] to [d][slot], four keys and four columns at a time.
__device__ __forceinline__ void transpose_v(std::uint8_t* to, const std::uint8_t* from,
                                            int thread) {
#pragma unroll
  for (int unit = thread; unit < kBlockN / 4 * (kD / 4); unit += kThreads) {
    const int column = unit % (kD / 4) * 4, quad = unit / (kD / 4);
    const int key =
        quad / 4 * 16 + quad % 4 * 2;  // slots 4 * quad and on hold keys key, +1, +8, +9
    const auto word = [&](int k) {
      return *reinterpret_cast<const std::uint32_t*>(from + k * kD + column);
    };
    const std::uint32_t a = word(key), b = word(key + 1), c = word(key + 8), d = word(key + 9);
    const std::uint32_t ab_low = __byte_perm(a, b, 0x5140), ab_high = __byte_perm(a, b, 0x7362);
    const std::uint32_t cd_low = __byte_perm(c, d, 0x5140), cd_high = __byte_perm(c, d, 0x7362);
    const auto store = [&](int i, std::uint32_t value) {
      *reinterpret_cast<std::uint32_t*>(to + (column + i) * kTransposedPitch + quad * 4) = value;
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
  __shared__ __align__(128) SharedMemoryPlan s;
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
      load_raw<kBlockN, kThreads, true, true>(s.k[tile % kStages], gk, p.k.row, tile * kBlockN,
                                              keys, p.vector_loads, thread);
      load_raw<kBlockN, kThreads, true>(s.v[tile % kStages], gv, p.v.row, tile * kBlockN, keys,
                                        p.vector_loads, thread);
    }
    ptx::cp_async_commit();
  };
  load_raw<kBlockM, kThreads, true, true>(s.q,
                                          ladder::head_base<std::uint8_t>(p.q, at.batch, at.head),
                                          p.q.row, first, p.seq_q, p.vector_loads, thread);
  load_keys(0);

  // Where this lane points ldmatrix (16 bytes a row): matrix i of four, row r.
  const int matrix = lane / 8, row8 = lane % 8;
  const int q_row = stripe + matrix % 2 * 8 + row8, k_row = part * kKeys + matrix / 2 * 8 + row8;
  const std::uint32_t v_address = ptx::shared_address(
      s.v_transposed + (matrix / 2 * 8 + row8) * kTransposedPitch + part * kKeys + matrix % 2 * 16);

  const int end[2] = {ladder::key_end(p, first + stripe + group),
                      ladder::key_end(p, first + stripe + group + 8)};
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, u[kOutAtoms][4] = {};

  for (int t = 0; t < tiles; ++t) {
    load_keys(t + 1);
    ptx::cp_async_wait<1>();
    __syncthreads();
    probe.end_of(Phase::loads);
    transpose_v(s.v_transposed, s.v[t % kStages], thread);
    probe.end_of(Phase::transpose);

    float score[kAtoms][4] = {};
#pragma unroll
    for (int d = 0; d < kD; d += 32) {
      std::uint32_t a[4], b[4];
      ptx::ldmatrix_x4(a, ptx::shared_address(s.q + raw_offset<true>(q_row, d / 16 + matrix / 2)));
#pragma unroll
      for (int n = 0; n < kKeys; n += 16) {
        ptx::ldmatrix_x4(b, ptx::shared_address(s.k[t % kStages] +
                                                raw_offset<true>(k_row + n, d / 16 + matrix % 2)));
        mma_m16n8k32(score[n / 8], a, b[0], b[1]);
        mma_m16n8k32(score[n / 8 + 1], a, b[2], b[3]);
      }
    }

    probe.end_of(Phase::scores);

    const int key0 = t * kBlockN + part * kKeys + 2 * member;
    std::uint32_t weight[2][2];  // [16 keys][row]
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
      const float safe = new_max == -INFINITY ? 0.0f : new_max;
      const float rescale = exp2_fast(max[r] - safe);
      const float origin = safe - kWeightExponent;
      max[r] = new_max;
      sum[r] *= rescale;
#pragma unroll
      for (int n = 0; n < kAtoms; n += 2) {
        const float w0 = exp2_fast(score[n][2 * r] - origin),
                    w1 = exp2_fast(score[n][2 * r + 1] - origin);
        const float w2 = exp2_fast(score[n + 1][2 * r] - origin),
                    w3 = exp2_fast(score[n + 1][2 * r + 1] - origin);
        sum[r] += w0 + w1 + (w2 + w3);
        weight[n / 2][r] = pack_e4m3x4(w0, w1, w2, w3);
      }
#pragma unroll
      for (int n = 0; n < kOutAtoms; ++n) {
        u[n][2 * r] *= rescale;
        u[n][2 * r + 1] *= rescale;
      }
    }
    __syncthreads();  // V is transposed
    probe.end_of(Phase::softmax);

    const std::uint32_t a[4] = {weight[0][0], weight[0][1], weight[1][0], weight[1][1]};
#pragma unroll
    for (int c = 0; c < kD; c += 16) {
      std::uint32_t b[4];
      ptx::ldmatrix_x4(b, v_address + c * kTransposedPitch);
      mma_m16n8k32(u[c / 8], a, b[0], b[1]);
      mma_m16n8k32(u[c / 8 + 1], a, b[2], b[3]);
    }
    __syncthreads();  // this stage and the transposed tile may be overwritten
    probe.end_of(Phase::values);
  }
  ptx::cp_async_wait<0>();
  sum[0] = quad_sum(sum[0]);
  sum[1] = quad_sum(sum[1]);

  // The second warp of a stripe hands its partial result to the first.
  float* partial = s.partial + (warp % 2) * 32 * kPartial + lane;
  if (part == 1) hand_over(partial, u, max, sum);
  __syncthreads();
  if (part == 1) return;
  merge_and_store(p, at, first + stripe + group, member, partial, u, max, sum, scale.output);
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
                                    .note = "both products in e4m3"};
  static constexpr const char* kId = "cuda.stage_c.fp8_mma";
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
  static constexpr const char* kId = "cuda.stage_c.fp8_mma, instrumented";
  using Probe = Clocks;
};

using Rung = ladder::Rung<Build>;
using Twin = ladder::Twin<Clocked>;

}  // namespace
}  // namespace greenfast::cuda::stage_c_fp8_mma

namespace greenfast::kernels {
extern const core::Kernel cuda_stage_c_fp8_mma = cuda::ladder::kRung<cuda::stage_c_fp8_mma::Rung>;
extern const core::Kernel cuda_stage_c_fp8_mma_phases =
    cuda::ladder::kTwin<cuda::stage_c_fp8_mma::Twin>;
}  // namespace greenfast::kernels
