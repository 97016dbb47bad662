// cuda.v2c.v8: V2c, rung 8. sm_80 and later.
//
// Idea    S is never stored. mma.sync has a known fragment layout, which WMMA hides: the
//         accumulator of Q·Kᵀ is, register for register, the A operand of P·V. The score, weight
//         and output tiles of v7 leave shared memory. Tile: 64 queries, 64 keys taken in halves of
//         32, so that S needs 16 registers; a stripe of 16 rows belongs to one warp at D 64 and to
//         two at D 128, each with 64 output columns and its own copy of S (1.5 times the arithmetic
//         for half the output registers).
// Takes   fp16, D 64 and 128, full and causal, any length, any strides.
// Limits  lengths and tile counts below 2^30.
// Budget  120 to 124 registers; 45 KB of shared memory at D 64, 85 KB at D 128: four and two CTAs
//         an SM of sm_90.
// Bound   tensor pipe and shared-memory reads of K and V, which every warp repeats.
#include "kernels/cuda/device/ptx_mma.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/ladder/ladder.cuh"
#include "kernels/cuda/ladder/rung.hpp"

namespace greenfast::cuda::v2c_v8 {
namespace {

// The hand-set tile; `greenfast tune cuda.v2c.v8` compiles others (tune/cuda.v2c.v8.cu).
#ifndef V8_BLOCK_M
#define V8_BLOCK_M 64
#define V8_BLOCK_N 64
#define V8_CHUNK 32
#define V8_STAGES 2
#endif
constexpr int kBlockM = V8_BLOCK_M, kBlockN = V8_BLOCK_N, kChunk = V8_CHUNK, kStages = V8_STAGES;
constexpr int kColumns = 64;  // output columns of one warp
static_assert(kBlockM % 16 == 0 && kBlockN % kChunk == 0 && kChunk % 16 == 0 && kStages >= 2);

template <int D>
struct SharedMemoryPlan {
  // Rows 16 bytes apart modulo 128: ldmatrix without bank conflicts.
  static constexpr int kPitch = D + 8;
  __half q[kBlockM * kPitch];
  __half k[kStages][kBlockN * kPitch];
  __half v[kStages][kBlockN * kPitch];

  static std::vector<SharedBuffer> buffers() {
    return shared_buffers(sizeof(SharedMemoryPlan),
                          {{"Q", sizeof(q)}, {"K", sizeof(k)}, {"V", sizeof(v)}});
  }
};

template <int D>
constexpr int kThreads = kBlockM / 16 * (D / kColumns) * 32;

template <int D>
__global__ void __launch_bounds__(kThreads<D>) kernel(const __grid_constant__ ladder::Params p) {
  using Plan = SharedMemoryPlan<D>;
  constexpr int kPitch = Plan::kPitch, kAtoms = kChunk / 8, kOutAtoms = kColumns / 8;
  extern __shared__ __align__(16) unsigned char memory[];
  Plan& s = *reinterpret_cast<Plan*>(memory);
  const ladder::Place at = ladder::place(p);
  const __half* gk = ladder::head_base<__half>(p.k, at.batch, at.head / p.group);
  const __half* gv = ladder::head_base<__half>(p.v, at.batch, at.head / p.group);
  const int first = at.tile * kBlockM;
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int stripe = warp % (kBlockM / 16) * 16, column = warp / (kBlockM / 16) * kColumns;
  const int group = lane / 4, member = lane % 4;
  const int tiles = ladder::key_tiles<kBlockN>(p, first, kBlockM);
  // Keys past the last one any row here sees become zeros: 0 times a hidden NaN would reach the
  // output.
  const int keys = ladder::key_end(p, min(first + kBlockM, p.seq_q) - 1);

  const auto load_keys = [&](int tile) {
    if (tile < tiles) {
      ladder::load_tile<__half, kBlockN, D, kPitch, kThreads<D>, true>(
          s.k[tile % kStages], gk, p.k.row, tile * kBlockN, keys, p.vector_loads);
      ladder::load_tile<__half, kBlockN, D, kPitch, kThreads<D>, true>(
          s.v[tile % kStages], gv, p.v.row, tile * kBlockN, keys, p.vector_loads);
    }
    ptx::cp_async_commit();
  };
  ladder::load_tile<__half, kBlockM, D, kPitch, kThreads<D>, true>(
      s.q, ladder::head_base<__half>(p.q, at.batch, at.head), p.q.row, first, p.seq_q,
      p.vector_loads);
  for (int t = 0; t < kStages - 1; ++t) load_keys(t);

  // Where this lane points ldmatrix: matrix i of four, row r.
  const int matrix = lane / 8, row8 = lane % 8;
  const std::uint32_t q_address =
      ptx::shared_address(s.q + (stripe + matrix % 2 * 8 + row8) * kPitch + matrix / 2 * 8);
  const int k_offset = (matrix / 2 * 8 + row8) * kPitch + matrix % 2 * 8;
  const int v_offset = (matrix % 2 * 8 + row8) * kPitch + matrix / 2 * 8 + column;

  const int end[2] = {ladder::key_end(p, first + stripe + group),
                      ladder::key_end(p, first + stripe + group + 8)};
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, o[kOutAtoms][4] = {};

  for (int t = 0; t < tiles; ++t) {
    load_keys(t + kStages - 1);
    ptx::cp_async_wait<kStages - 1>();
    __syncthreads();
#pragma unroll 1
    for (int chunk = 0; chunk < kBlockN; chunk += kChunk) {
      const std::uint32_t k_address =
          ptx::shared_address(s.k[t % kStages] + chunk * kPitch + k_offset);
      const std::uint32_t v_address =
          ptx::shared_address(s.v[t % kStages] + chunk * kPitch + v_offset);
      float score[kAtoms][4] = {};
#pragma unroll
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
      const int key0 = t * kBlockN + chunk + 2 * member;
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

template <int D>
struct Build {
  static constexpr auto kKernel = kernel<D>;
  static constexpr ladder::Run kRun{.rows = kBlockM,
                                    .keys = kBlockN,
                                    .threads = kThreads<D>,
                                    .shared_bytes = sizeof(SharedMemoryPlan<D>),
                                    .stages = kStages,
                                    .note = "mma.sync, scores consumed from registers"};
  static constexpr const char* kId = "cuda.v2c.v8";
  using Memory = SharedMemoryPlan<D>;
};

using Rung = ladder::Rung<Build<64>, Build<128>>;

}  // namespace
}  // namespace greenfast::cuda::v2c_v8

namespace greenfast::kernels {
extern const core::Kernel cuda_v2c_v8 = cuda::ladder::kRung<cuda::v2c_v8::Rung>;
}  // namespace greenfast::kernels
