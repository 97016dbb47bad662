// What the stage-C rungs share on the device: raw e4m3 tiles on their way to fp16, and the scales.
#pragma once

#include <cuda_fp16.h>
#include <mma.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/e4m3.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/ladder/ladder.cuh"

// For __launch_bounds__; `greenfast tune` adds the blocks that a multiprocessor should hold.
#ifndef STAGE_C_BOUNDS
#define STAGE_C_BOUNDS kThreads
#endif

namespace greenfast::cuda::stage_c {

inline constexpr int kD = 64;  // head dimension of the family
// Of an fp16 tile, in halves: rows start 16 bytes apart modulo the banks.
inline constexpr int kPitch = kD + 8;

/// The two factors of a (batch, head): before the softmax, in base 2, and of the output.
struct Scales {
  float score, output;
};
__device__ __forceinline__ Scales scales(const ladder::Params& p, const ladder::Place& at) {
  if (p.q_scale == nullptr) return {p.scale_log2, 1.0f};
  const std::int64_t q = p.scale_step * (std::int64_t{at.batch} * p.heads_q + at.head);
  const std::int64_t kv =
      p.scale_step * (std::int64_t{at.batch} * (p.heads_q / p.group) + at.head / p.group);
  return {p.scale_log2 * p.q_scale[q] * p.k_scale[kv], p.v_scale[kv]};
}

/// Where the 16-byte chunk `chunk` of a raw row lies.
template <bool kSwizzle>
__device__ __forceinline__ int raw_offset(int row, int chunk) {
  return row * kD + (kSwizzle ? chunk ^ (row / 2 % 4) : chunk) * 16;
}

/// Raw rows [first, first + kRows) to shared memory by kThreads threads; rows at or past `valid`
/// become zero. With kAsync the caller commits and waits.
template <int kRows, int kThreads, bool kAsync, bool kSwizzle = false>
__device__ __forceinline__ void load_raw(std::uint8_t* shared, const std::uint8_t* matrix,
                                         std::int64_t stride, int first, int valid,
                                         bool vector_loads, int thread) {
#pragma unroll 1
  for (int i = thread; i < kRows * (kD / 16); i += kThreads) {
    const int row = i / (kD / 16), chunk = i % (kD / 16);
    const bool keep = first + row < valid;
    const std::uint8_t* from = matrix + (keep ? first + row : 0) * stride + chunk * 16;
    std::uint8_t* to = shared + raw_offset<kSwizzle>(row, chunk);
    if (kAsync && vector_loads) {
      ptx::cp_async_16(ptx::shared_address(to), from, keep);
    } else if (vector_loads) {
      *reinterpret_cast<uint4*>(to) = keep ? *reinterpret_cast<const uint4*>(from) : uint4{};
    } else {
      for (int byte = 0; byte < 16; ++byte) to[byte] = keep ? from[byte] : std::uint8_t{0};
    }
  }
}

/// A raw tile to an fp16 tile.
template <int kRows, int kThreads, bool kSwizzle = false>
__device__ __forceinline__ void decode_tile(__half* tile, const std::uint8_t* raw, int thread) {
#pragma unroll
  for (int i = thread; i < kRows * (kD / 16); i += kThreads) {
    const int row = i / (kD / 16), chunk = i % (kD / 16);
    uint4 halves[2];
    decode_e4m3x16(*reinterpret_cast<const uint4*>(raw + raw_offset<kSwizzle>(row, chunk)), halves);
    uint4* to = reinterpret_cast<uint4*>(tile + row * kPitch + chunk * 16);
    to[0] = halves[0];
    to[1] = halves[1];
  }
}

/// C (32 x 64, fp32) of this warp's two 16x16 tiles = or += A (32 x 64) times B.
template <class Layout, bool kAccumulate>
__device__ __forceinline__ void multiply(float* c_tile, int c_pitch, const __half* a_tile,
                                         int a_pitch, const __half* b_tile, int warp) {
  constexpr bool kTransposed = std::is_same_v<Layout, nvcuda::wmma::col_major>;
  nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 16, 16, 16, __half, nvcuda::wmma::row_major> a;
  nvcuda::wmma::fragment<nvcuda::wmma::matrix_b, 16, 16, 16, __half, Layout> b;
  nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> c;
  const int row = warp % 2 * 16;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int column = warp / 2 * 32 + half * 16;
    float* to = c_tile + row * c_pitch + column;
    if (kAccumulate) {
      nvcuda::wmma::load_matrix_sync(c, to, c_pitch, nvcuda::wmma::mem_row_major);
    } else {
      nvcuda::wmma::fill_fragment(c, 0.0f);
    }
#pragma unroll
    for (int k = 0; k < 64; k += 16) {
      nvcuda::wmma::load_matrix_sync(a, a_tile + row * a_pitch + k, a_pitch);
      nvcuda::wmma::load_matrix_sync(
          b, kTransposed ? b_tile + column * kPitch + k : b_tile + k * kPitch + column, kPitch);
      nvcuda::wmma::mma_sync(c, a, b, c);
    }
    nvcuda::wmma::store_matrix_sync(to, c, c_pitch, nvcuda::wmma::mem_row_major);
  }
}

/// U (kRows a warp x 64, fp32) += P (fp16) times V (64 x 64) by scalar math; a lane has two
/// columns.
template <int kRows>
__device__ __forceinline__ void multiply_scalar(float* u, int u_pitch, const __half* weight,
                                                int weight_pitch, const __half* v, int warp,
                                                int lane) {
#pragma unroll 1
  for (int row = warp * kRows; row < warp * kRows + kRows; ++row) {
    float low = 0, high = 0;
#pragma unroll 8
    for (int n = 0; n < 64; ++n) {
      const float w = __half2float(weight[row * weight_pitch + n]);
      low = fmaf(w, __half2float(v[n * kPitch + lane]), low);
      high = fmaf(w, __half2float(v[n * kPitch + 32 + lane]), high);
    }
    u[row * u_pitch + lane] += low;
    u[row * u_pitch + 32 + lane] += high;
  }
}

/// What a lane of mma.sync accumulators holds of 16 rows: kD columns of two rows, and their state.
inline constexpr int kOutAtoms = kD / 8;
inline constexpr int kPartial = 4 * kOutAtoms + 4;  // floats

/// Leaves a lane's partial result for the lane of the warp that had the other keys of these rows.
/// `partial` is this lane's first word; words are 32 apart.
__device__ __forceinline__ void hand_over(float* partial, const float (&u)[kOutAtoms][4],
                                          const float (&max)[2], const float (&sum)[2]) {
#pragma unroll
  for (int i = 0; i < 4 * kOutAtoms; ++i) partial[i * 32] = u[i / 4][i % 4];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    partial[(4 * kOutAtoms + r) * 32] = max[r];
    partial[(4 * kOutAtoms + 2 + r) * 32] = sum[r];
  }
}

/// Rows `row0` and row0 + 8 from this lane's part and the one handed over, normalised and stored;
/// member: the lane's place in its quad.
__device__ __forceinline__ void merge_and_store(const ladder::Params& p, const ladder::Place& at,
                                                int row0, int member, const float* partial,
                                                const float (&u)[kOutAtoms][4],
                                                const float (&max)[2], const float (&sum)[2],
                                                float output_scale) {
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = row0 + 8 * r;
    if (row >= p.seq_q) continue;
    const float other_max = partial[(4 * kOutAtoms + r) * 32],
                other_sum = partial[(4 * kOutAtoms + 2 + r) * 32];
    const float both = fmaxf(max[r], other_max);
    const float origin = both == -INFINITY ? 0.0f : both;
    const float mine = exp2_fast(max[r] - origin), other = exp2_fast(other_max - origin);
    const float normalise =
        both == -INFINITY ? 0.0f : output_scale / (sum[r] * mine + other_sum * other);
    auto* go = const_cast<__half*>(ladder::head_base<__half>(p.o, at.batch, at.head)) +
               row * p.o.row + 2 * member;
#pragma unroll
    for (int n = 0; n < kOutAtoms; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float merged = u[n][2 * r + e] * mine + partial[(4 * n + 2 * r + e) * 32] * other;
        go[n * 8 + e] = __float2half(merged * normalise);
      }
    }
  }
}

}  // namespace greenfast::cuda::stage_c
