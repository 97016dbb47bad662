// V to V^T for cuda.sm90.fp8.
//
// Idea    wgmma multiplies e4m3 only with k along the rows, so V is turned first. A pass of its own
//         and not the work of producer warps: they would share registers that two-level accumulation
//         needs, and three of them fall behind two consumer warpgroups (H200, 2026-11-22: they feed
//         1,028 TFLOP/s of three warpgroups, two thirds of that of two).
//         A V that is V^T already only has its keys permuted, where the kernel cannot read it as it
//         lies.
// Takes   V of e4m3 whose rows begin at multiples of 16 bytes, or V^T with any strides; 128 keys of
//         one head a block.
// Limits  sm_90a, for which the kernel after it is; it releases that one at once.
// Budget  one tile of shared memory, head dim x 128 bytes and padding.
// Bound   device memory: V is read and written once, 18.6 us for 33.5 M elements (H200).
#pragma once

#include <cstdint>

#include "kernels/cuda/device/ptx_cp_async.cuh"
#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/sm90_fp8/config.hpp"
#include "kernels/cuda/sm90_fp8/layout.hpp"

namespace greenfast::cuda::fp8 {

/// Rows a, b, c, d of four bytes each to columns.
__device__ __forceinline__ void transpose_4x4(std::uint32_t a, std::uint32_t b, std::uint32_t c,
                                              std::uint32_t d, std::uint32_t (&columns)[4]) {
  const std::uint32_t ab_low = __byte_perm(a, b, 0x5140), ab_high = __byte_perm(a, b, 0x7362);
  const std::uint32_t cd_low = __byte_perm(c, d, 0x5140), cd_high = __byte_perm(c, d, 0x7362);
  columns[0] = __byte_perm(ab_low, cd_low, 0x5410);
  columns[1] = __byte_perm(ab_low, cd_low, 0x7632);
  columns[2] = __byte_perm(ab_high, cd_high, 0x5410);
  columns[3] = __byte_perm(ab_high, cd_high, 0x7632);
}

/// Which 128 keys of which head a block has.
struct WorkOfBlock {
  int head_index, block;

  __device__ explicit WorkOfBlock(const TransposeParams& p)
      : head_index(static_cast<int>(blockIdx.x) / p.blocks),
        block(static_cast<int>(blockIdx.x) - head_index * p.blocks) {}
  __device__ std::int64_t from(const TransposeParams& p) const {
    const int batch = head_index / p.heads, head = head_index - batch * p.heads;
    return batch * p.batch + head * p.head;
  }
};

/// 128 keys of one head.
template <int kHeadDim>
__global__ void __launch_bounds__(TransposeTile<kHeadDim>::kThreads)
    transpose_kernel(const __grid_constant__ TransposeParams p) {
  using At = TransposeTile<kHeadDim>;
  __shared__ alignas(16) std::uint32_t words[kHeadDim * At::kWords];
  // The attention kernel may set up beside the last of this one's blocks; it waits before it reads.
  ptx::grid_launch_dependents();
  const int thread = static_cast<int>(threadIdx.x);
  const WorkOfBlock at(p);
  const int group = At::column_group(thread), quad = At::quad(thread);
  const std::uint8_t* from = p.v + at.from(p) + 16 * group;

  uint4 rows[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int key = at.block * At::kKeys + key_of_slot(4 * quad + i);
    rows[i] = make_uint4(0, 0, 0, 0);
    if (key < p.keys) {
      const std::uint8_t* row = from + key * p.row;
      if (16 * group + 16 <= p.head_dim) {
        rows[i] = *reinterpret_cast<const uint4*>(row);
      } else if (16 * group < p.head_dim) {  // head dims are multiples of 8
        const uint2 half = *reinterpret_cast<const uint2*>(row);
        rows[i] = make_uint4(half.x, half.y, 0, 0);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    const auto four = [c](const uint4& x) {
      return c == 0 ? x.x : c == 1 ? x.y : c == 2 ? x.z : x.w;
    };
    std::uint32_t columns[4];
    transpose_4x4(four(rows[0]), four(rows[1]), four(rows[2]), four(rows[3]), columns);
#pragma unroll
    for (int i = 0; i < 4; ++i) words[At::word(16 * group + 4 * c + i, quad)] = columns[i];
  }
  __syncthreads();
  const std::int64_t pitch = std::int64_t{p.blocks} * At::kKeys;
  std::uint8_t* to = p.out + at.head_index * kHeadDim * pitch + at.block * At::kKeys;
#pragma unroll
  for (int u = thread; u < At::kUnits; u += At::kThreads) {
    const int column = u / (At::kKeys / 16), unit = u % (At::kKeys / 16);
    if constexpr (At::kQuadsOfWarp % 4 == 0) {
      ptx::store_global_16(to + column * pitch + 16 * unit,
                           *reinterpret_cast<const uint4*>(&words[At::word(column, 4 * unit)]));
    } else {  // pairs of words change places
      const auto pair = [&](int quad) {
        return *reinterpret_cast<const uint2*>(&words[At::word(column, quad)]);
      };
      const uint2 low = pair(4 * unit), high = pair(4 * unit + 2);
      ptx::store_global_16(to + column * pitch + 16 * unit,
                           make_uint4(low.x, low.y, high.x, high.y));
    }
  }
}

/// Eight neighbouring keys of a column, zeros from `count` on.
__device__ __forceinline__ uint2 eight_keys(const std::uint8_t* from, int count) {
  if (count >= 8 && (reinterpret_cast<std::uintptr_t>(from) & 7) == 0)
    return *reinterpret_cast<const uint2*>(from);
  std::uint32_t words[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (i < count) words[i / 4] |= std::uint32_t{from[i]} << (8 * (i % 4));
  return make_uint2(words[0], words[1]);
}

/// The same of a V that is V^T: `row` is from column to column.
template <int kHeadDim>
__global__ void __launch_bounds__(TransposeTile<kHeadDim>::kThreads)
    reorder_kernel(const __grid_constant__ TransposeParams p) {
  using At = TransposeTile<kHeadDim>;
  ptx::grid_launch_dependents();
  const WorkOfBlock at(p);
  const std::int64_t pitch = std::int64_t{p.blocks} * At::kKeys;
  std::uint8_t* to = p.out + at.head_index * kHeadDim * pitch + at.block * At::kKeys;
  const std::uint8_t* from = p.v + at.from(p) + at.block * At::kKeys;
  const int keys = p.keys - at.block * At::kKeys;
#pragma unroll
  for (int u = static_cast<int>(threadIdx.x); u < At::kUnits; u += At::kThreads) {
    const int column = u / (At::kKeys / 16), unit = u % (At::kKeys / 16);
    const int of_column = column < p.head_dim ? keys : 0;
    const std::uint8_t* lower = from + column * p.row + key_of_slot(16 * unit);
    const uint2 a = eight_keys(lower, of_column - key_of_slot(16 * unit));
    const uint2 b = eight_keys(lower + 64, of_column - key_of_slot(16 * unit) - 64);
    ptx::store_global_16(to + column * pitch + 16 * unit,
                         make_uint4(__byte_perm(a.x, b.x, 0x5410), __byte_perm(a.x, b.x, 0x7632),
                                    __byte_perm(a.y, b.y, 0x5410), __byte_perm(a.y, b.y, 0x7632)));
  }
}

}  // namespace greenfast::cuda::fp8
