// What the second kernel of cuda.sm90.decode and cuda.sm80.decode does.
//
// Idea    a block adds the parts of a row whose keys several blocks had, in their order.
// Takes   what the first kernel left in the workspace: sums, bases and columns of each part.
// Limits  rows with one part are passed over: their only block has written them.
// Budget  registers for eight parts of four columns a thread; shared memory for the groups' sums.
// Bound   the launch, which waits for the first kernel's end; then L2, where the parts lie.
#pragma once

#include "kernels/cuda/decode/finish.cuh"
#include "kernels/cuda/decode/seen.cuh"

namespace greenfast::cuda::decode {

inline constexpr int kMergeThreads = 256;

/// Adds the parts of heads that the ends of shares cut. Grid: holders. A head with n parts has n - 1 such ends, whose
/// blocks take its rows in turn; threads that are left over by a block's rows take every so-many-th group of
/// eight parts, which are added in the order of the threads that hold them.
__device__ __forceinline__ void merge_cuts(const Params& p) {
  const auto holder = static_cast<std::int32_t>(blockIdx.x);
  const Cut cut = p.cuts[holder];
  if (cut.first < 0) return;
  const std::int32_t parts = cut.last - cut.first + 1;
  const std::int32_t stride = parts - 1, begin = holder - cut.first;
  if (begin >= p.tile_rows) return;
  const std::int32_t mine = divide_up(p.tile_rows - begin, stride);  // begin, begin + stride, ...
  const std::int32_t kv_head = cut.place / p.row_blocks;
  const std::int32_t first_row = (cut.place - kv_head * p.row_blocks) * p.tile_rows;
  const Sequence sequence = sequence_at(p, cut.sequence);
  const std::int32_t rows = sequence.lengths.seq_q * p.group - first_row;

  constexpr int kEach = 8;
  const int columns = p.tile_dim / 4,
            at_once = kMergeThreads / columns;  // rows times groups: 4, 8 or 16
  int rows_at_once = at_once;
  while (rows_at_once / 2 >= mine) rows_at_once /= 2;
  const int groups = at_once / rows_at_once;
  const int chunk = static_cast<int>(threadIdx.x) % columns;
  const int place = static_cast<int>(threadIdx.x) / columns;
  const int group = place / rows_at_once;
  __shared__ float4 shared_o[kMergeThreads];
  __shared__ Stats shared_stats[kMergeThreads];
  for (std::int32_t done = 0; done < mine; done += rows_at_once) {
    const std::int32_t row = begin + (done + place % rows_at_once) * stride;
    const bool there = row < p.tile_rows && row < rows;
    const float scale =
        there ? row_scale(p, cut.sequence, head_of(p, kv_head, first_row + row)).exponent : 0.0f;
    float most = -INFINITY;
    Sums sums;
    for (std::int32_t part = group * kEach; there && part < parts; part += groups * kEach) {
      float4 o[kEach];
      Stats of[kEach];
      float larger = most;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        // The last holder's first head, and what the others hold last.
        const std::int32_t of_holder = cut.first + part + i;
        const std::int64_t at =
            (2 * std::int64_t{of_holder} + (of_holder < cut.last)) * p.tile_rows + row;
        const bool one = part + i < parts;
        of[i] = one ? p.stats[at] : Stats{-INFINITY, 0.0f};
        o[i] = one ? reinterpret_cast<const float4*>(p.partial)[at * columns + chunk]
                   : float4{0.0f, 0.0f, 0.0f, 0.0f};
        larger = fmaxf(larger, of[i].most);
      }
      const Sums before = sums;
      sums = {};
      sums.add(before.o, before.sum, weight_of(most, larger, scale));
      most = larger;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        sums.add(o[i], of[i].sum, weight_of(of[i].most, most, scale));
      }
    }
    if (groups > 1) {  // uniform over the block
      shared_o[threadIdx.x] = sums.o;
      shared_stats[threadIdx.x] = {most, sums.sum};
      __syncthreads();
      for (int other = 1; group == 0 && other < groups && other * kEach < parts; ++other) {
        const auto from = static_cast<int>(threadIdx.x) + other * rows_at_once * columns;
        const Stats of = shared_stats[from];
        const float larger = fmaxf(most, of.most);
        const Sums before = sums;
        sums = {};
        sums.add(before.o, before.sum, weight_of(most, larger, scale));
        sums.add(shared_o[from], of.sum, weight_of(of.most, larger, scale));
        most = larger;
      }
      __syncthreads();
    }
    if (there && group == 0)
      finish(p, cut.sequence, sequence, kv_head, first_row + row, chunk, most, sums);
  }
}

/// Merges the parts of the rows that have several; kGeneral: behind a general build of the first kernel.
/// Grid: holders of shares, or rows of a sequence over all KV heads, and sequences. A thread adds eight parts in their order for four columns, then every eighth such
/// group; the groups are added in the order of the threads that hold them. Up to eight parts that is
/// the order of a cluster. Where blocks share a row's columns (gridDim.z) there are more groups, and
/// the sums of rows with more than 64 parts (32 at D 256) are grouped otherwise.
template <bool kGeneral>
__device__ __forceinline__ void merge_parts(const Params& p) {
  if (kGeneral && p.holders > 0) return merge_cuts(p);
  const auto b = static_cast<std::int32_t>(blockIdx.y);
  const std::int32_t kv_head = static_cast<std::int32_t>(blockIdx.x) / p.rows;
  const std::int32_t row = static_cast<std::int32_t>(blockIdx.x) - kv_head * p.rows;
  const Sequence sequence = sequence_at(p, b);
  if (row >= sequence.lengths.seq_q * p.group) return;
  KeyRange seen = keys_of_sequence(p.sight, sequence.lengths);
  __shared__ KeyRange seen_of_warps[kMergeThreads / 32];
  if (kGeneral && p.mask.searched > 0)
    seen = seen_through<kMergeThreads>(p.mask, b, sequence.lengths.seq_q, seen, seen_of_warps);
  const std::int32_t parts = parts_for(p, seen).count;
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
  const float scale = row_scale(p, b, head_of(p, kv_head, row)).exponent;
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
      sums.add(o[i], of[i].sum, weight_of(of[i].most, most, scale));
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
  if (group == 0) finish(p, b, sequence, kv_head, row, chunk, most, sums);
}

}  // namespace greenfast::cuda::decode
