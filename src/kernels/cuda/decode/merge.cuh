// What the second kernel of cuda.sm90.decode and cuda.sm80.decode does.
//
// Idea    a block adds the parts of a row whose keys several blocks had, in their order.
// Takes   what the first kernel left in the workspace: sums, bases and columns of each part.
// Limits  rows with one part are passed over: their only block has written them.
// Budget  registers for eight parts of four columns a thread; shared memory for the groups' sums.
// Bound   the launch, which waits for the first kernel's end; then L2, where the parts lie.
#pragma once

#include "kernels/cuda/decode/finish.cuh"

namespace greenfast::cuda::decode {

inline constexpr int kMergeThreads = 256;

/// Merges the parts of the rows that have several. Grid: rows of a sequence over all KV heads, and
/// sequences. A thread adds eight parts in their order for four columns, then every eighth such
/// group; the groups are added in the order of the threads that hold them. Up to eight parts that is
/// the order of a cluster. Where blocks share a row's columns (gridDim.z) there are more groups, and
/// the sums of rows with more than 64 parts (32 at D 256) are grouped otherwise.
__device__ __forceinline__ void merge_parts(const Params& p) {
  const auto b = static_cast<std::int32_t>(blockIdx.y);
  const std::int32_t kv_head = static_cast<std::int32_t>(blockIdx.x) / p.rows;
  const std::int32_t row = static_cast<std::int32_t>(blockIdx.x) - kv_head * p.rows;
  const Sequence sequence = sequence_at(p, b);
  if (row >= sequence.lengths.seq_q * p.group) return;
  const std::int32_t parts = parts_for(p, keys_of_sequence(p.sight, sequence.lengths)).count;
  if (parts == 1) return;  // written by its only block

  constexpr int kEach = 8;
  const std::int64_t first = partial_index(p, b, kv_head, row, 0);
  const Stats* stats = p.stats + first;
  float most = -INFINITY;
  // Each warp reads all, but where that would be several loads one after the other.
  const bool share = parts > 64;
  const std::int32_t step = share ? kMergeThreads : 32;
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x) % step; i < parts; i += step) {
    most = fmaxf(most, stats[i].most);
  }
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    most = fmaxf(most, __shfl_xor_sync(kFullWarp, most, lanes));
  }

  const int columns = p.tile_dim / 4;  // 16, 32 or 64
  __shared__ float shared_most[kMergeThreads / 32];
  if (share) {
    if (threadIdx.x % 32 == 0) shared_most[threadIdx.x / 32] = most;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < kMergeThreads / 32; ++warp) most = fmaxf(most, shared_most[warp]);
  }
  // Blocks share the columns of a row that has many parts: more parts at once.
  const int columns_here = columns / static_cast<int>(gridDim.z);
  const int column = static_cast<int>(threadIdx.x) % columns_here;
  const int chunk = static_cast<int>(blockIdx.z) * columns_here + column;
  const int group = static_cast<int>(threadIdx.x) / columns_here;
  const int groups = kMergeThreads / columns_here;
  const auto* partial = reinterpret_cast<const float4*>(p.partial) + first * columns + chunk;
  Sums sums;
  for (std::int32_t begin = group * kEach; begin < parts; begin += groups * kEach) {
    float4 o[kEach];
    Stats of[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const std::int32_t part = begin + i;
      of[i] = part < parts ? stats[part] : Stats{-INFINITY, 0.0f};
      o[i] = part < parts ? partial[std::int64_t{part} * columns] : float4{0.0f, 0.0f, 0.0f, 0.0f};
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      sums.add(o[i], of[i].sum, weight_of(of[i].most, most, p.exponent_scale));
    }
  }
  if (parts > kEach) {  // uniform over the block
    __shared__ float4 shared_o[kMergeThreads];
    __shared__ float shared_sum[kMergeThreads];
    shared_o[threadIdx.x] = sums.o;
    shared_sum[threadIdx.x] = sums.sum;
    __syncthreads();
    if (group != 0) return;
    for (int other = 1; other < groups && other * kEach < parts; ++other) {
      const int from = other * columns_here + column;
      sums.add(shared_o[from], shared_sum[from], 1.0f);
    }
  }
  if (group == 0) finish(p, sequence, kv_head, row, chunk, most, sums);
}

}  // namespace greenfast::cuda::decode
