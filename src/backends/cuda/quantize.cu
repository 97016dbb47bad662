// Values to e4m3 with their scales.
//
// Idea    A cluster of blocks has a head. Each copies its share of it into shared memory, all of it in
//         flight at once, finds its largest magnitude, exchanges that with the others, and encodes
//         what it has: device memory is read once, nothing is launched twice. What of a long head
//         does not fit is read again, out of L2. Where there are too few heads for that, or one scale
//         for all of them, in three launches: the largest magnitudes by atomics straight in the
//         caller's scales (fp32 magnitudes order like integers, and a maximum does not depend on who
//         comes first), the scales from them, and the codes. Codes that are to lie transposed, as
//         attention likes V, are turned in shared memory, always in that way.
// Takes   every problem that core::check_quantize accepts; rows that begin at multiples of 16 bytes
//         (values) and 8 (codes) in parts of that size, others element by element.
// Limits  compute capability 8.0; clusters from 9.0 on, in builds with code for it.
// Budget  shared memory as far as it reaches, a head's values over the blocks of its cluster.
// Bound   device memory.
#include "backends/cuda/quantize.hpp"

#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline_primitives.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>

#include <greenfast/arithmetic.hpp>

#include "backends/cuda/launched.hpp"
#include "backends/cuda/quotient.hpp"
#include "core/alignment.hpp"
#include "core/e4m3.hpp"

namespace greenfast::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPart = 8;      // neighbours of a row that a thread has at once
constexpr int kCluster = 16;  // most blocks of a cluster; above 8 it must be allowed
// Bytes of values that a thread asks for before it looks at the first.
constexpr int kFlight = 128;

struct View {
  std::int64_t heads, all_heads, seq;
  int parts;  // of a row
  std::int64_t from_b, from_h, from_s, to_b, to_h, to_s;
  std::int64_t to_d = 1;  // else the codes are transposed, and to_s is 1
  std::int64_t rows = 0;  // of a slice, which is a block's share of a head
  bool one_scale;
};

/// kPart neighbours of a row as they lie in memory: elements of 16 bits would take a register each.
template <class T>
struct alignas(16) Values {
  static constexpr bool kHalf = sizeof(T) == 2;
  static constexpr int kWords = kPart * sizeof(T) / 4;
  std::uint32_t words[kWords];

  __device__ __forceinline__ void load(const T* from, std::true_type /*aligned*/) {
#pragma unroll
    for (int i = 0; i < kWords; i += 4)
      *reinterpret_cast<uint4*>(words + i) =
          *reinterpret_cast<const uint4*>(from + i * kPart / kWords);
  }
  __device__ __forceinline__ void load(const T* from, std::false_type) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (kHalf) {
        const auto* const two = reinterpret_cast<const std::uint16_t*>(from) + 2 * i;
        words[i] = two[0] | std::uint32_t{two[1]} << 16;
      } else {
        words[i] = __float_as_uint(from[i]);
      }
    }
  }
  __device__ __forceinline__ float at(int i) const {
    if constexpr (!kHalf) return __uint_as_float(words[i]);
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
      return __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
    const auto two = __half22float2(reinterpret_cast<const __half2&>(words[kHalf ? i / 2 : 0]));
    return i % 2 == 0 ? two.x : two.y;
  }
};

/// Of a head, which counts over the batch.
__device__ __forceinline__ std::int64_t entry_of(std::int64_t head, const View& view) {
  // 64-bit division is a hundred instructions that everything else waits for.
  return ((head | view.heads) >> 31) == 0
             ? static_cast<std::uint32_t>(head) / static_cast<std::uint32_t>(view.heads)
             : head / view.heads;
}

/// A block's rows of a head. A thread has every so many of them and keeps its place in the row, so
/// nothing is divided on the way.
template <class T, bool kAligned>
struct Slice {
  const T* from;
  std::uint8_t* to;
  std::int64_t from_hop, to_hop;  // elements to this thread's next row
  int count;                      // of its rows

  __device__ __forceinline__ Slice(const T* values, std::uint8_t* codes, const View& view,
                                   std::int64_t head, std::int64_t slice) {
    const std::int64_t b = entry_of(head, view);
    const std::int64_t h = head - b * view.heads;
    const int step = kThreads / view.parts, row = static_cast<int>(threadIdx.x) / view.parts;
    const int column = (static_cast<int>(threadIdx.x) - row * view.parts) * kPart;
    const std::int64_t first = slice * view.rows + row;
    from = values + b * view.from_b + h * view.from_h + first * view.from_s + column;
    to = codes + b * view.to_b + h * view.to_h + first * view.to_s + column;
    from_hop = step * view.from_s;
    to_hop = step * view.to_s;
    const auto rows = static_cast<std::int32_t>(
        max(min(view.rows, view.seq - slice * view.rows) - row, std::int64_t{0}));
    count = row < step ? ceil_div(rows, step) : 0;
  }

  /// Rows `first` to first + kCount - 1 of the thread's; those that it has not are left as they are.
  template <int kCount>
  __device__ __forceinline__ void load(Values<T> (&values)[kCount], int first) const {
    const T* at = from + first * from_hop;
#pragma unroll
    for (int i = 0; i < kCount; ++i, at += from_hop)
      if (first + i < count) values[i].load(at, std::bool_constant<kAligned>{});
  }
  template <int kCount, class Work>
  __device__ __forceinline__ void each(const Values<T> (&values)[kCount], int first,
                                       const Work& work) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (first + i < count) work(values[i], first + i);
  }
  // How many at a time; of loads of one element fewer.
  static constexpr int kCount =
      (kAligned ? kFlight : kFlight / 4) / static_cast<int>(sizeof(Values<T>));
  // The same beside rows that are held.
  static constexpr int kBeside = kCount > 4 ? kCount / 4 : 1;
  /// work(values, row) from the thread's row `first` on, upwards.
  template <class Work>
  __device__ __forceinline__ void upwards(int first, const Work& work) const {
#pragma unroll 1
    for (int i = first; i < count; i += kBeside) visit(i, work);
  }
  /// The same from the last rows to that.
  template <class Work>
  __device__ __forceinline__ void downwards(int first, const Work& work) const {
#pragma unroll 1
    for (int i = first + (count - 1 - first) / kBeside * kBeside; i >= first && i < count;
         i -= kBeside)
      visit(i, work);
  }

 private:
  template <class Work>
  __device__ __forceinline__ void visit(int first, const Work& work) const {
    Values<T> values[kBeside];
    load(values, first);
    each(values, first, work);
  }
};

/// The largest magnitude of values as the bits of a float. Infinities and NaN are left out, which
/// takes a second look where there are any.
template <class T>
struct Largest {
  std::uint32_t most = 0;

  __device__ __forceinline__ void take(const Values<T>& values) {
#pragma unroll
    for (const std::uint32_t word : values.words) {
      if constexpr (Values<T>::kHalf)
        most = __vmaxu2(most, word & 0x7fff7fffu);
      else
        most = max(most, word & 0x7fffffffu);
    }
  }
  /// Of what was taken; above the finite numbers where one of it is.
  __device__ __forceinline__ std::uint32_t found() const {
    if constexpr (!Values<T>::kHalf) return most;
    Values<T> two = {};
    two.words[0] = most;
    return max(__float_as_uint(fabsf(two.at(0))), __float_as_uint(fabsf(two.at(1))));
  }
};

/// Over the warp's part of the slice.
template <class T, bool kAligned>
__device__ __forceinline__ std::uint32_t over_warp(const Largest<T>& largest,
                                                   const Slice<T, kAligned>& slice) {
  constexpr std::uint32_t kInfinity = 0x7f800000u;
  std::uint32_t most = largest.found();
  if (most >= kInfinity) {
    most = 0;
    slice.upwards(0, [&](const Values<T>& values, int) {
#pragma unroll
      for (int i = 0; i < kPart; ++i) {
        const std::uint32_t magnitude = __float_as_uint(fabsf(values.at(i)));
        if (magnitude < kInfinity) most = max(most, magnitude);
      }
    });
  }
  return __reduce_max_sync(0xffffffffu, most);
}

__device__ __forceinline__ std::uint32_t encode4(float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 890
  std::uint32_t r;
  asm("{ .reg .b16 low, high;\n"
      "  cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "  cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "  mov.b32 %0, {low, high}; }"
      : "=r"(r)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return r;
#else
  return core::to_e4m3(a) | std::uint32_t{core::to_e4m3(b)} << 8 |
         std::uint32_t{core::to_e4m3(c)} << 16 | std::uint32_t{core::to_e4m3(d)} << 24;
#endif
}

/// Codes of kPart values.
template <bool kQuick, class T>
__device__ __forceinline__ uint2 codes_of(const Values<T>& values, const SharedDivisor& divisor) {
  float x[kPart];
#pragma unroll
  for (int i = 0; i < kPart; ++i)
    x[i] =
        kQuick ? quick_quotient(values.at(i), divisor) : __fdiv_rn(values.at(i), divisor.divisor);
  return {encode4(x[0], x[1], x[2], x[3]), encode4(x[4], x[5], x[6], x[7])};
}

template <bool kQuick, class T, bool kAligned>
__device__ __forceinline__ void encode_part(const Slice<T, kAligned>& slice,
                                            const Values<T>& values, int row,
                                            const SharedDivisor& divisor) {
  const uint2 codes = codes_of<kQuick>(values, divisor);
  std::uint8_t* const to = slice.to + row * slice.to_hop;
  if constexpr (kAligned) {
    *reinterpret_cast<uint2*>(to) = codes;
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      to[e] = static_cast<std::uint8_t>(codes.x >> (8 * e));
      to[4 + e] = static_cast<std::uint8_t>(codes.y >> (8 * e));
    }
  }
}
/// Encodes the slice, of which `at_hand(encode)` gives the first rows and their numbers to encode.
template <class T, bool kAligned, class AtHand>
__device__ __forceinline__ void encode_slice(const Slice<T, kAligned>& slice, int rows_at_hand,
                                             float scale, const AtHand& at_hand) {
  const SharedDivisor divisor = SharedDivisor::of(scale);
  if (divisor.quick) {
    const auto part = [&](const Values<T>& values, int row) {
      encode_part<true>(slice, values, row, divisor);
    };
    at_hand(part);
    slice.downwards(rows_at_hand, part);
  } else {
    // All of it read again, so that divisions, which are calls, are in one place.
    slice.downwards(0, [&](const Values<T>& values, int row) {
      encode_part<false>(slice, values, row, divisor);
    });
  }
}

/// Rows of a thread in shared memory, where no other thread looks for them.
template <class T>
struct Staged {
  static constexpr int kPieces = sizeof(Values<T>) / 16;
  uint4* mine;

  __device__ __forceinline__ explicit Staged(void* memory)
      : mine(static_cast<uint4*>(memory) + threadIdx.x) {}
  __device__ __forceinline__ void copy(const Slice<T, true>& slice, int rows) const {
    const T* at = slice.from;
#pragma unroll 4
    for (int row = 0; row < rows; ++row, at += slice.from_hop) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i)
        __pipeline_memcpy_async(mine + (row * kPieces + i) * kThreads,
                                reinterpret_cast<const uint4*>(at) + i, 16);
    }
    __pipeline_commit();
  }
  template <class Work>
  __device__ __forceinline__ void each(int rows, const Work& work) const {
#pragma unroll 2
    for (int row = 0; row < rows; ++row) {
      Values<T> values;
#pragma unroll
      for (int i = 0; i < kPieces; ++i)
        reinterpret_cast<uint4*>(values.words)[i] = mine[(row * kPieces + i) * kThreads];
      work(values, row);
    }
  }
};

/// A cluster a head: its scale, then its codes. Block x of the grid has slice x; of a thread's rows
/// shared memory holds `room`.
template <class T>
__global__ void __launch_bounds__(kThreads, 5)
    quantize_heads(const T* from, std::uint8_t* to, float* scale, const __grid_constant__ View view,
                   int room) {
#if __CUDA_ARCH__ >= 900
  namespace cg = cooperative_groups;
  const cg::cluster_group cluster = cg::this_cluster();
  extern __shared__ uint4 memory[];
  const Staged<T> staged(memory);
  __shared__ std::uint32_t largest;
  for (std::int64_t head = blockIdx.y; head < view.all_heads; head += gridDim.y) {
    if (threadIdx.x == 0) largest = 0;
    const Slice<T, true> slice(from, to, view, head, blockIdx.x);
    const int rows = min(slice.count, room);
    staged.copy(slice, rows);
    Largest<T> mine;
    const auto take = [&](const Values<T>& values, int) { mine.take(values); };
    slice.upwards(rows, take);
    __pipeline_wait_prior(0);
    staged.each(rows, take);
    const std::uint32_t most = over_warp(mine, slice);
    __syncthreads();  // `largest` is 0
    if (threadIdx.x % 32 == 0) atomicMax(&largest, most);
    cluster.sync();
    std::uint32_t all = 0;
    for (unsigned rank = 0; rank < cluster.num_blocks(); ++rank)
      all = max(all, *cluster.map_shared_rank(&largest, rank));
    // Before the stores, which it would wait for: a block whose shared memory others still read must
    // neither end nor begin with the next head.
    cluster.barrier_arrive();
    const float of_head = core::e4m3_scale(__uint_as_float(all));
    if (blockIdx.x == 0 && threadIdx.x == 0) scale[head] = of_head;
    encode_slice(slice, rows, of_head, [&](const auto& part) { staged.each(rows, part); });
    cluster.barrier_wait();
  }
#endif
}

template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads, 3)
    largest_magnitude(const T* from, unsigned* scale, const __grid_constant__ View view) {
  for (std::int64_t head = blockIdx.y; head < view.all_heads; head += gridDim.y) {
    const Slice<T, kAligned> slice(from, nullptr, view, head, blockIdx.x);
    constexpr int kCount = Slice<T, kAligned>::kCount;  // a slice of this launch has no more rows
    Values<T> held[kCount];
    slice.load(held, 0);
    Largest<T> mine;
    slice.each(held, 0, [&](const Values<T>& values, int) { mine.take(values); });
    const std::uint32_t most = over_warp(mine, slice);
    if (threadIdx.x % 32 == 0 && most != 0) atomicMax(scale + (view.one_scale ? 0 : head), most);
  }
}

__global__ void __launch_bounds__(kThreads) finish_scales(float* scale, std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) scale[i] = core::e4m3_scale(scale[i]);
}

/// From the last head and slice to the first: those were read last.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads, 3)
    encode(const T* from, std::uint8_t* to, const float* scale, const __grid_constant__ View view) {
  for (std::int64_t back = blockIdx.y; back < view.all_heads; back += gridDim.y) {
    const std::int64_t head = view.all_heads - 1 - back;
    const Slice<T, kAligned> slice(from, to, view, head, gridDim.x - 1 - blockIdx.x);
    constexpr int kCount = Slice<T, kAligned>::kCount;
    Values<T> held[kCount];
    slice.load(held, 0);
    encode_slice(slice, kCount, scale == nullptr ? 1.0f : scale[view.one_scale ? 0 : head],
                 [&](const auto& part) { slice.each(held, 0, part); });
  }
}

/// Where the words of four keys of one column lie in shared memory while a tile is turned: what
/// neighbouring threads store for one column each lies in different banks.
struct TurnedTile {
  static constexpr int kKeys = 128, kQuads = kKeys / 4;
  int mix;  // of a part of a row: as many quads as a warp has beside each other

  __device__ __forceinline__ int mixed(int column) const { return column / kPart * mix % kQuads; }
  __device__ __forceinline__ int word(int column, int quad) const {
    return column * kQuads + (quad ^ mixed(column));
  }
  /// Four quads from `quad` on, a multiple of 4.
  __device__ __forceinline__ uint4 four(const std::uint32_t* words, int column, int quad) const {
    const uint4 x = *reinterpret_cast<const uint4*>(words + (word(column, quad) & ~3));
    const int turn = mixed(column) & 3;  // they lie there in another order
    const uint4 y = (turn & 1) != 0 ? make_uint4(x.y, x.x, x.w, x.z) : x;
    return (turn & 2) != 0 ? make_uint4(y.z, y.w, y.x, y.y) : y;
  }
};

/// 128 keys of a head a block, codes of a column one behind the other.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    encode_transposed(const T* from, std::uint8_t* to, const float* scale,
                      const __grid_constant__ View view) {
  extern __shared__ uint4 memory[];
  auto* const words = reinterpret_cast<std::uint32_t*>(memory);
  const TurnedTile tile{max(32 / view.parts, 1)};
  const std::int64_t first = std::int64_t{gridDim.x - 1 - blockIdx.x} * TurnedTile::kKeys;
  const auto keys = static_cast<int>(min(view.seq - first, std::int64_t{TurnedTile::kKeys}));
  for (std::int64_t back = blockIdx.y; back < view.all_heads; back += gridDim.y) {
    const std::int64_t head = view.all_heads - 1 - back, b = entry_of(head, view);
    const std::int64_t h = head - b * view.heads;
    const T* const rows = from + b * view.from_b + h * view.from_h + first * view.from_s;
    const SharedDivisor divisor =
        SharedDivisor::of(scale == nullptr ? 1.0f : scale[view.one_scale ? 0 : head]);
    for (int unit = static_cast<int>(threadIdx.x); unit < view.parts * TurnedTile::kQuads;
         unit += kThreads) {
      const int quad = unit / view.parts, part = unit - quad * view.parts;
      Values<T> values[4] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (4 * quad + i < keys)
          values[i].load(rows + (4 * quad + i) * view.from_s + part * kPart,
                         std::bool_constant<kAligned>{});
      uint2 codes[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        codes[i] = divisor.quick ? codes_of<true>(values[i], divisor)
                                 : codes_of<false>(values[i], divisor);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto of = [half](const uint2& x) { return half == 0 ? x.x : x.y; };
        const std::uint32_t low = __byte_perm(of(codes[0]), of(codes[1]), 0x5140),
                            low2 = __byte_perm(of(codes[2]), of(codes[3]), 0x5140),
                            high = __byte_perm(of(codes[0]), of(codes[1]), 0x7362),
                            high2 = __byte_perm(of(codes[2]), of(codes[3]), 0x7362);
        const int column = part * kPart + 4 * half;
        words[tile.word(column, quad)] = __byte_perm(low, low2, 0x5410);
        words[tile.word(column + 1, quad)] = __byte_perm(low, low2, 0x7632);
        words[tile.word(column + 2, quad)] = __byte_perm(high, high2, 0x5410);
        words[tile.word(column + 3, quad)] = __byte_perm(high, high2, 0x7632);
      }
    }
    __syncthreads();
    std::uint8_t* const columns = to + b * view.to_b + h * view.to_h + first;
    for (int unit = static_cast<int>(threadIdx.x); unit < view.parts * kPart * 8;
         unit += kThreads) {
      const int column = unit / 8, key = unit % 8 * 16;
      const uint4 codes = tile.four(words, column, key / 4);
      std::uint8_t* const at = columns + column * view.to_d + key;
      if (kAligned && key + 16 <= keys) {
        *reinterpret_cast<uint4*>(at) = codes;
      } else {
        const std::uint32_t four[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
        for (int i = 0; i < 16; ++i)
          if (key + i < keys) at[i] = static_cast<std::uint8_t>(four[i / 4] >> (8 * (i % 4)));
      }
    }
    __syncthreads();
  }
}

constexpr std::int64_t kMostHeads = 65535;  // of a grid
dim3 grid_of(std::int64_t slices, const View& view) {
  return dim3(static_cast<unsigned>(slices),
              static_cast<unsigned>(std::min(view.all_heads, kMostHeads)));
}

/// How clusters share heads: their blocks, and of each the rows of a thread that shared memory holds.
struct Clusters {
  int blocks = 0, room = 0;  // no blocks: not that way
};
Clusters clusters_for(const View& view, int bytes_of_part, const DeviceFacts& facts) {
  if (facts.arch < 90) return {};
  const std::int64_t machine = facts.multiprocessors, step = kThreads / view.parts;
  const auto rows = [&](std::int64_t blocks) { return ceil_div(ceil_div(view.seq, blocks), step); };
  const auto bytes = [&](std::int64_t blocks) { return rows(blocks) * bytes_of_part; };
  Clusters c;
  c.blocks = 1;
  while (c.blocks < kCluster &&
         (bytes(c.blocks) > kFlight ||
          (c.blocks * view.all_heads < machine && bytes(c.blocks) > kFlight / 4)))
    c.blocks *= 2;
  const std::int64_t most = (facts.shared_per_block - 1024) / (kThreads * bytes_of_part);
  c.room = static_cast<int>(std::min(rows(c.blocks), most));
  // Beside few heads the other way is faster; and what is read again must still be in L2 then.
  if (c.blocks * view.all_heads < machine / 2 && bytes(c.blocks) > kFlight) return {};
  const std::int64_t at_once = std::min(view.all_heads, machine / c.blocks);
  const std::int64_t of_head = view.seq * view.parts * bytes_of_part;
  if (c.room < rows(c.blocks) && at_once * of_head > facts.l2_bytes * 3 / 4) return {};
  return c;
}

/// Whether it was launched: not by code for an architecture without clusters, whose body is empty,
/// nor where none of that many blocks fits.
template <class T>
bool launch_clusters(const T* from, std::uint8_t* to, float* scale, View view, Clusters clusters,
                     cudaStream_t stream) {
  view.rows = ceil_div(view.seq, clusters.blocks);
  const auto kernel = quantize_heads<T>;
  // Compiled at load from the code of an older architecture it is that one's, on any GPU.
  cudaFuncAttributes code{};
  if (cudaFuncGetAttributes(&code, kernel) != cudaSuccess || code.ptxVersion < 90) {
    cudaGetLastError();
    return false;
  }
  const std::size_t bytes = static_cast<std::size_t>(clusters.room) * kThreads * sizeof(Values<T>);
  if (bytes > 48 << 10 && cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               static_cast<int>(bytes)) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(clusters.blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = grid_of(clusters.blocks, view);
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  // Eight blocks of a cluster fit every device that has clusters.
  if (clusters.blocks > 8) {
    int fit = 0;
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1) !=
            cudaSuccess ||
        cudaOccupancyMaxActiveClusters(&fit, kernel, &config) != cudaSuccess || fit == 0) {
      cudaGetLastError();
      return false;
    }
  }
  cudaLaunchKernelEx(&config, kernel, from, to, scale, view, clusters.room);
  return true;
}

template <class T, bool kAligned>
void launch(const QuantizeProblem& p, const QuantizeTensors& t, View view, const DeviceFacts& facts,
            cudaStream_t stream) {
  const auto* from = static_cast<const T*>(t.from);
  auto* const to = static_cast<std::uint8_t*>(t.to);
  const bool scaled = p.scales != ScaleKind::none, computes = scaled && p.compute_scales;
  constexpr int kCount = Slice<T, kAligned>::kCount;
  if constexpr (kAligned) {
    if (computes && !view.one_scale && view.to_d == 1) {
      const Clusters clusters = clusters_for(view, sizeof(Values<T>), facts);
      if (clusters.blocks != 0 && launch_clusters(from, to, t.scale, view, clusters, stream))
        return;
    }
  }
  view.rows = std::int64_t{kCount} * (kThreads / view.parts);
  const dim3 grid = grid_of(std::max<std::int64_t>(ceil_div(view.seq, view.rows), 1), view);
  const std::int64_t scales = view.one_scale ? 1 : view.all_heads;
  if (computes) {
    cudaMemsetAsync(t.scale, 0, static_cast<std::size_t>(scales) * sizeof(float), stream);
    largest_magnitude<T, kAligned>
        <<<grid, kThreads, 0, stream>>>(from, reinterpret_cast<unsigned*>(t.scale), view);
    finish_scales<<<static_cast<unsigned>(ceil_div(scales, kThreads)), kThreads, 0, stream>>>(
        t.scale, scales);
  }
  const float* const scale = scaled ? t.scale : nullptr;
  if (view.to_d == 1) {
    encode<T, kAligned><<<grid, kThreads, 0, stream>>>(from, to, scale, view);
    return;
  }
  const std::int64_t tiles = std::max<std::int64_t>(ceil_div(view.seq, TurnedTile::kKeys), 1);
  encode_transposed<T, kAligned>
      <<<grid_of(tiles, view), kThreads,
         static_cast<std::size_t>(view.parts) * kPart * TurnedTile::kKeys, stream>>>(from, to,
                                                                                     scale, view);
}

template <class T>
void launch(const QuantizeProblem& p, const QuantizeTensors& t, const View& view,
            const DeviceFacts& facts, cudaStream_t stream) {
  const std::array shape{p.batch, p.heads, p.seq, p.head_dim};
  const bool turned = view.to_d != 1;
  const auto columns_aligned = [&] {
    const std::array swapped{p.batch, p.heads, p.head_dim, p.seq};
    Layout columns = p.to;
    std::swap(columns.stride[2], columns.stride[3]);
    return core::rows_aligned(t.to, columns, swapped, 1, 16);
  };
  if (core::rows_aligned(t.from, p.from, shape, sizeof(T), kPart * sizeof(T)) &&
      (turned ? columns_aligned() : core::rows_aligned(t.to, p.to, shape, 1, kPart)))
    launch<T, true>(p, t, view, facts, stream);
  else
    launch<T, false>(p, t, view, facts, stream);
}

}  // namespace

Status quantize(const QuantizeProblem& p, const QuantizeTensors& t, const core::Context& context) {
  const View view{.heads = p.heads,
                  .all_heads = p.batch * p.heads,
                  .seq = p.seq,
                  .parts = static_cast<int>(p.head_dim / kPart),
                  .from_b = p.from.stride[0],
                  .from_h = p.from.stride[1],
                  .from_s = p.from.stride[2],
                  .to_b = p.to.stride[0],
                  .to_h = p.to.stride[1],
                  .to_s = p.to.stride[2],
                  .to_d = p.to.stride[3],
                  .one_scale = p.scales != ScaleKind::per_head};
  const DeviceFacts& facts = *context.facts;
  const auto stream = static_cast<cudaStream_t>(context.stream);
  if (p.dtype == DType::f32) {
    launch<float>(p, t, view, facts, stream);
  } else if (p.dtype == DType::f16) {
    launch<__half>(p, t, view, facts, stream);
  } else {
    launch<__nv_bfloat16>(p, t, view, facts, stream);
  }
  return launched("cuda quantisation");
}

}  // namespace greenfast::cuda
