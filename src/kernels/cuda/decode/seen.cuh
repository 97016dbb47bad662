// Array masks of few rows: their elements, and the keys that a boolean one shows at all.
//
// Idea    caches of a fixed size and padded batches come with a mask whose visible keys are few of all: a
//         block looks for the first and the last in the mask's bytes, and no key outside is read.
// Takes   elements at any strides; the search rows of bytes one behind the other, the same for all heads.
// Limits  keys that are hidden between two visible ones are read.
// Budget  4 registers for 8 rows.
// Bound   one load's latency for each 8,192 keys of a mask's row, of 16,384 where a block has 8 warps.
#pragma once

#include "kernels/cuda/decode/config.hpp"
#include "kernels/cuda/device/array_mask.cuh"

namespace greenfast::cuda::decode {

/// An element as it lies; `at` in bytes.
__device__ __forceinline__ std::uint32_t mask_cell(const MaskArray& mask, std::int64_t at) {
  const unsigned char* const from = mask.data + at;
  if (mask.boolean) return __ldg(from);
  if (mask.type == ElementType::f32) return __ldg(reinterpret_cast<const std::uint32_t*>(from));
  return __ldg(reinterpret_cast<const std::uint16_t*>(from));
}
/// The score with what mask_cell() has read; numbers are added in units of log2.
__device__ __forceinline__ float masked_by(const MaskArray& mask, float score, std::uint32_t cell) {
  if (mask.boolean) return cell != 0 ? score : -INFINITY;
  if (mask.type == ElementType::f16)
    return masked(score, __half2float(__ushort_as_half(static_cast<unsigned short>(cell))));
  return masked(score, __uint_as_float(mask.type == ElementType::f32 ? cell : cell << 16));
}

/// `size` with the sign of the product that it belongs to changed where `of` is negative.
__device__ __forceinline__ float with_sign_of(float size, float of) {
  return __uint_as_float(__float_as_uint(size) ^ (__float_as_uint(of) & 0x80000000u));
}

/// Of `seen`, the keys from the first to the last that one of the sequence's `rows` sees through the mask.
/// All threads of a block; `of_warps` is one in shared memory for each warp.
template <int kThreads>
__device__ __forceinline__ KeyRange seen_through(const MaskArray& mask, std::int32_t b,
                                                 std::int32_t rows, const KeyRange& seen,
                                                 KeyRange* of_warps) {
  constexpr int kAtOnce = 4;  // loads of a thread
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  std::int32_t first = seen.end, last = seen.begin - 1;
  const auto found = [&](std::int32_t from, std::int32_t to) {
    first = min(first, from);
    last = max(last, to);
  };
  for (std::int32_t row = 0; row < min(mask.searched, rows) && seen.count() > 0; ++row) {
    const unsigned char* const bytes = mask.data + b * mask.batch + row * mask.row;
    // Pieces of 16 bytes where they begin in memory, and what is left at both ends byte by byte.
    const auto address = reinterpret_cast<std::uintptr_t>(bytes + seen.begin);
    const std::int32_t begin = min(seen.begin + static_cast<std::int32_t>(-address & 15), seen.end);
    const std::int32_t pieces = (seen.end - begin) / 16, end = begin + 16 * pieces;
    const std::int32_t edge = thread < 16 ? seen.begin + thread : end + thread - 16;
    if (thread < 32 && edge < (thread < 16 ? begin : seen.end) && bytes[edge] != 0)
      found(edge, edge);
    for (std::int32_t piece = thread; piece < pieces; piece += kAtOnce * kThreads) {
      uint4 there[kAtOnce] = {};
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const std::int32_t at = piece + i * kThreads;
        if (at < pieces) there[i] = __ldg(reinterpret_cast<const uint4*>(bytes + begin) + at);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const std::uint32_t word[4] = {there[i].x, there[i].y, there[i].z, there[i].w};
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          if (word[n] == 0) continue;
          const std::int32_t key = begin + 16 * (piece + i * kThreads) + 4 * n;
          // The byte of its lowest bit, and of its highest.
          found(key + (__ffs(static_cast<int>(word[n])) - 1) / 8,
                key + (31 - __clz(static_cast<int>(word[n]))) / 8);
        }
      }
    }
  }
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    first = min(first, __shfl_xor_sync(kFullWarp, first, lanes));
    last = max(last, __shfl_xor_sync(kFullWarp, last, lanes));
  }
  if (lane == 0) of_warps[thread / 32] = {first, last + 1};
  __syncthreads();
#pragma unroll
  for (int warp = 0; warp < kThreads / 32; ++warp) {
    first = min(first, of_warps[warp].begin);
    last = max(last, of_warps[warp].end - 1);
  }
  __syncthreads();  // before the next search
  return last >= first ? KeyRange{first, last + 1} : KeyRange{seen.begin, seen.begin};
}

}  // namespace greenfast::cuda::decode
