// What the ladder's kernels share on the device: their place in the grid, tile loads and the mask.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/device/ptx_cp_async.cuh"
#include "kernels/cuda/ladder/ladder.hpp"

namespace greenfast::cuda::ladder {

__device__ __forceinline__ Place place(const Params& p) {
  const int tile = static_cast<int>(blockIdx.x) % p.q_tiles;
  const int row = static_cast<int>(blockIdx.x) / p.q_tiles;
  return {tile, row % p.heads_q, row / p.heads_q};
}

template <class T>
__device__ __forceinline__ const T* head_base(const StridedTensor& tensor, int batch, int head) {
  return static_cast<const T*>(tensor.data) + batch * tensor.batch + head * tensor.head;
}

/// One past the last key that row i of the problem may see.
__device__ __forceinline__ int key_end(const Params& p, int row) {
  if (!p.causal) return p.seq_kv;
  const int end = row + p.shift + 1;
  return end < 0 ? 0 : (end < p.seq_kv ? end : p.seq_kv);
}

/// Tiles of kBlockN keys that at least one of the rows [first, first + count) sees.
template <int kBlockN>
__device__ __forceinline__ int key_tiles(const Params& p, int first, int count) {
  const int last = min(first + count, p.seq_q) - 1;
  // Not ceil_div: 12_sm80_v2c.cu gets other machine code by it (nvcc 13.0), and its records are of
  // this one.
  return (key_end(p, last) + kBlockN - 1) / kBlockN;
}

/// Copies rows [first, first + kRows) of a [S, D] matrix to shared memory with row pitch kPitch;
/// rows at or past `valid` become zero. Asynchronous (the caller commits and waits) where 16-byte
/// accesses are legal and kAsync is set; rows aligned to 2 bytes alone take plain loads.
template <class T, int kRows, int kColumns, int kPitch, int kThreads, bool kAsync>
__device__ __forceinline__ void load_tile(T* shared, const T* matrix, std::int64_t stride,
                                          int first, int valid, bool vector_loads) {
  constexpr int kVector = 16 / sizeof(T);
  constexpr int kChunks = kColumns / kVector;
  // Plain loads in flight cost registers: 97 against 40 in v3 (ptxas).
  constexpr int kUnroll = kAsync ? 4 : 1;
  if (vector_loads) {
#pragma unroll kUnroll
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kThreads) {
      const int row = i / kChunks, column = i % kChunks * kVector;
      const bool keep = first + row < valid;
      const T* from = matrix + (keep ? first + row : 0) * stride + column;
      T* to = shared + row * kPitch + column;
      if constexpr (kAsync) {
        ptx::cp_async_16(ptx::shared_address(to), from, keep);
      } else {
        *reinterpret_cast<uint4*>(to) = keep ? *reinterpret_cast<const uint4*>(from) : uint4{};
      }
    }
  } else {
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kColumns; i += kThreads) {
      const int row = i / kColumns, column = i % kColumns;
      shared[row * kPitch + column] =
          first + row < valid ? matrix[(first + row) * stride + column] : T{};
    }
  }
}

}  // namespace greenfast::cuda::ladder
