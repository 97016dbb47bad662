// Values to e4m3 with their scales.
//
// Idea    Scales to be computed, with a few bytes of scratch: quantize_once.cuh, one launch that reads
//         device memory once, for up to three tensors. Without scratch, and where that cannot be, in
//         three launches: the largest magnitudes by atomics straight in the caller's scales (fp32
//         magnitudes order like integers, and a maximum does not depend on who comes first), the scales
//         from them, and the codes. Codes that are to lie transposed, as attention likes V, are turned
//         in shared memory.
// Takes   every problem that core::check_quantize accepts; rows that begin at multiples of 16 bytes
//         (values) and 8 (codes) in parts of that size, others element by element.
// Limits  compute capability 8.0; one launch from 9.0 on.
// Budget  quantize_once.cuh's; of the others transposed codes' 32 KB of shared memory at most.
// Bound   device memory.
#include "backends/cuda/quantize.hpp"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include <greenfast/arithmetic.hpp>

#include "backends/cuda/launched.hpp"
#include "backends/cuda/quantize_once.cuh"
#include "backends/cuda/quantize_values.cuh"
#include "core/alignment.hpp"

namespace greenfast::cuda {
namespace {

constexpr int kThreads = 256;
// Bytes of values that a thread asks for before it looks at the first.
constexpr int kFlight = 128;

struct View {
  std::int64_t heads, all_heads, seq;
  int parts;  // of a row
  std::int64_t from_b, from_h, from_s, to_b, to_h, to_s;
  std::int64_t to_d = 1;  // else the codes are transposed, and to_s is 1
  std::int64_t rows = 0;  // of a slice, which is a block's share of a head
  bool one_scale;
  std::int64_t scales_of_head = 1;  // 1, or one for each kScaleBlock rows
  const float* offset = nullptr;    // of each head's columns

  /// The scale of a head's rows from `row` on.
  __device__ __forceinline__ std::int64_t scale_of(std::int64_t head, std::int64_t row) const {
    if (one_scale) return 0;
    return scales_of_head == 1 ? head : head * scales_of_head + row / kScaleBlock;
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
  std::int64_t from_hop, to_hop;   // elements to this thread's next row
  int count;                       // of its rows
  const float* columns = nullptr;  // what is subtracted from those it has

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
    if (view.offset != nullptr) columns = view.offset + head * view.parts * kPart + column;
  }

  /// Of its rows, of which there are no more; of loads of one element fewer.
  static constexpr int kCount =
      (kAligned ? kFlight : kFlight / 4) / static_cast<int>(sizeof(Values<T>));
  /// Rows that it has not are left as they are.
  __device__ __forceinline__ void load(Values<T> (&values)[kCount]) const {
    const T* at = from;
#pragma unroll
    for (int i = 0; i < kCount; ++i, at += from_hop)
      if (i < count) values[i].load(at, std::bool_constant<kAligned>{});
  }
  template <class Work>
  __device__ __forceinline__ void each(const Values<T> (&values)[kCount], const Work& work) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i)
      if (i < count) work(values[i], i);
  }
  /// work(values, row) of rows that are read again, so that what is long stands in one place.
  template <class Work>
  __device__ __forceinline__ void each_again(const Work& work) const {
    const T* at = from;
#pragma unroll 1
    for (int i = 0; i < count; ++i, at += from_hop) {
      Values<T> values;
      values.load(at, std::bool_constant<kAligned>{});
      work(values, i);
    }
  }
  /// The same of rotated rows of `parts` parts.
  template <class Work>
  __device__ __forceinline__ void each_rotated(int parts, const Work& work) const {
    const int part = static_cast<int>(threadIdx.x) % parts;
    const T* row = from - part * kPart;
#pragma unroll 1
    for (int i = 0; i < count; ++i, row += from_hop) work(rotated_part(row, part, parts), i);
  }
};

/// Over the warp's part of the slice.
template <bool kOffset, class T, bool kAligned>
__device__ __forceinline__ std::uint32_t over_warp(
    const Slice<T, kAligned>& slice, const Values<T> (&held)[Slice<T, kAligned>::kCount]) {
  const auto offset = Offset<kOffset>::of(slice.columns);
  Largest<T, kOffset> largest;
  slice.each(held, [&](const Values<T>& values, int) { largest.take(values, offset); });
  std::uint32_t most = largest.found();
  if (most >= kInfinityBits) {
    most = 0;
    slice.each_again([&](const Values<T>& values, int) {
      most = Largest<T, kOffset>::finite(values, offset, most);
    });
  }
  return __reduce_max_sync(0xffffffffu, most);
}

template <Quotient kHow, class T, bool kAligned, class U>
__device__ __forceinline__ void encode_part(const Slice<T, kAligned>& slice,
                                            const Values<U>& values, int row,
                                            const Offset<true>& offset,
                                            const SharedDivisor& divisor) {
  const uint2 codes = codes_of<kHow>(values, offset, divisor);
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

template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads, 3)
    largest_magnitude(const T* from, unsigned* scale, const __grid_constant__ View view) {
  for (std::int64_t head = blockIdx.y; head < view.all_heads; head += gridDim.y) {
    const Slice<T, kAligned> slice(from, nullptr, view, head, blockIdx.x);
    Values<T> held[Slice<T, kAligned>::kCount];
    slice.load(held);
    const std::uint32_t most =
        view.offset != nullptr ? over_warp<true>(slice, held) : over_warp<false>(slice, held);
    if (threadIdx.x % 32 == 0 && most != 0)
      atomicMax(scale + view.scale_of(head, blockIdx.x * view.rows), most);
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
    Values<T> held[Slice<T, kAligned>::kCount];
    slice.load(held);
    const SharedDivisor divisor = SharedDivisor::of(
        scale == nullptr ? 1.0f
                         : scale[view.scale_of(head, (gridDim.x - 1 - blockIdx.x) * view.rows)]);
    const auto offset = Offset<true>::of(slice.columns);
    if (divisor.quick)
      slice.each(held, [&](const Values<T>& values, int row) {
        encode_part<Quotient::quick>(slice, values, row, offset, divisor);
      });
    else
      slice.each_again([&](const Values<T>& values, int row) {
        encode_part<Quotient::slow>(slice, values, row, offset, divisor);
      });
  }
}

/// The two of rotated rows, wherever they begin.
template <class T>
__global__ void __launch_bounds__(kThreads)
    largest_rotated(const T* from, unsigned* scale, const __grid_constant__ View view) {
  for (std::int64_t head = blockIdx.y; head < view.all_heads; head += gridDim.y) {
    const Slice<T, false> slice(from, nullptr, view, head, blockIdx.x);
    const auto offset = Offset<true>::of(slice.columns);
    std::uint32_t most = 0;
    slice.each_rotated(view.parts, [&](const Values<float>& values, int) {
      most = Largest<float, true>::finite(values, offset, most);
    });
    most = __reduce_max_sync(0xffffffffu, most);
    if (threadIdx.x % 32 == 0 && most != 0)
      atomicMax(scale + view.scale_of(head, blockIdx.x * view.rows), most);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    encode_rotated(const T* from, std::uint8_t* to, const float* scale,
                   const __grid_constant__ View view) {
  for (std::int64_t back = blockIdx.y; back < view.all_heads; back += gridDim.y) {
    const std::int64_t head = view.all_heads - 1 - back;
    const Slice<T, false> slice(from, to, view, head, gridDim.x - 1 - blockIdx.x);
    const SharedDivisor divisor = SharedDivisor::of(
        scale == nullptr ? 1.0f
                         : scale[view.scale_of(head, (gridDim.x - 1 - blockIdx.x) * view.rows)]);
    const auto offset = Offset<true>::of(slice.columns);
    slice.each_rotated(view.parts, [&](const Values<float>& values, int row) {
      if (divisor.quick)
        encode_part<Quotient::quick>(slice, values, row, offset, divisor);
      else
        encode_part<Quotient::slow>(slice, values, row, offset, divisor);
    });
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
        SharedDivisor::of(scale == nullptr ? 1.0f : scale[view.scale_of(head, first)]);
    for (int unit = static_cast<int>(threadIdx.x); unit < view.parts * TurnedTile::kQuads;
         unit += kThreads) {
      const int quad = unit / view.parts, part = unit - quad * view.parts;
      Values<T> values[4] = {};
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (4 * quad + i < keys)
          values[i].load(rows + (4 * quad + i) * view.from_s + part * kPart,
                         std::bool_constant<kAligned>{});
      const Offset<false> offset;  // core::QuantizeCall has none for codes that are transposed
      uint2 codes[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        codes[i] = divisor.quick ? codes_of<Quotient::quick>(values[i], offset, divisor)
                                 : codes_of<Quotient::slow>(values[i], offset, divisor);
      std::uint32_t columns[kPart];
      turn(codes, columns);
#pragma unroll
      for (int i = 0; i < kPart; ++i) words[tile.word(part * kPart + i, quad)] = columns[i];
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

template <class T, bool kAligned>
void launch(const QuantizeProblem& p, const QuantizeTensors& t, View view, cudaStream_t stream) {
  const auto* from = static_cast<const T*>(t.from);
  auto* const to = static_cast<std::uint8_t*>(t.to);
  const bool scaled = p.scales != ScaleKind::none;
  view.rows = std::int64_t{Slice<T, kAligned>::kCount} * (kThreads / view.parts);
  // A slice has one scale: its rows begin and end with a block's, or share one.
  if (p.scales == ScaleKind::per_block)
    view.rows =
        std::min<std::int64_t>(kScaleBlock, std::bit_floor(static_cast<std::uint64_t>(view.rows)));
  const dim3 grid = grid_of(std::max<std::int64_t>(ceil_div(view.seq, view.rows), 1), view);
  const std::int64_t scales = quantize_scales(p);
  if (scaled && p.compute_scales) {
    cudaMemsetAsync(t.scale, 0, static_cast<std::size_t>(scales) * sizeof(float), stream);
    auto* const largest = reinterpret_cast<unsigned*>(t.scale);
    if (view.all_heads > 0) {
      if (p.rotate)
        largest_rotated<T><<<grid, kThreads, 0, stream>>>(from, largest, view);
      else
        largest_magnitude<T, kAligned><<<grid, kThreads, 0, stream>>>(from, largest, view);
    }
    if (scales > 0)
      finish_scales<<<static_cast<unsigned>(ceil_div(scales, kThreads)), kThreads, 0, stream>>>(
          t.scale, scales);
  }
  if (view.all_heads == 0 || scales == 0) return;
  const float* const scale = scaled ? t.scale : nullptr;
  if (p.rotate) {
    encode_rotated<T><<<grid, kThreads, 0, stream>>>(from, to, scale, view);
    return;
  }
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

/// Whether rows begin where values and codes can be moved in parts of 16 bytes.
bool in_parts(const QuantizeProblem& p, const QuantizeTensors& t) {
  const std::array shape{p.batch, p.heads, p.seq, p.head_dim};
  if (!core::rows_aligned(t.from, p.from, shape, size_of(p.dtype), kPart * size_of(p.dtype)))
    return false;
  if (p.to.stride[3] == 1) return core::rows_aligned(t.to, p.to, shape, 1, kPart);
  const std::array swapped{p.batch, p.heads, p.head_dim, p.seq};
  Layout columns = p.to;
  std::swap(columns.stride[2], columns.stride[3]);
  return core::rows_aligned(t.to, columns, swapped, 1, 16);
}

template <class T>
void launch(const core::QuantizeCall& call, cudaStream_t stream) {
  const auto& [p, t, offset] = call;
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
                  .one_scale = p.scales != ScaleKind::per_head && p.scales != ScaleKind::per_block,
                  .scales_of_head = p.scales == ScaleKind::per_block ? ceil_div(p.seq, kScaleBlock)
                                                                     : std::int64_t{1},
                  .offset = offset};
  if (in_parts(p, t) && !p.rotate)
    launch<T, true>(p, t, view, stream);
  else
    launch<T, false>(p, t, view, stream);
}

/// Whether quantize_once<T> may be launched on the device, which the calling thread is on.
template <class T>
bool is_ready(int device) {
  static std::atomic<std::uint64_t> ready = 0;  // a bit for each device
  const std::uint64_t bit = std::uint64_t{1} << (device & 63);
  if ((ready.load(std::memory_order_relaxed) & bit) != 0) return true;
  const auto kernel = quantize_once<T>;
  // Compiled at load from the code of an older architecture its body is empty.
  cudaFuncAttributes code{};
  if (cudaFuncGetAttributes(&code, kernel) != cudaSuccess || code.ptxVersion < 90 ||
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(OnceItem<T>::kMemory)) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  ready.fetch_or(bit, std::memory_order_relaxed);
  return true;
}

/// All calls in one launch. False: nothing was done, for some call or the device is not of that kind.
template <class T>
bool launch_once(std::span<const core::QuantizeCall> calls, const core::Context& context) {
  using Item = OnceItem<T>;
  const DeviceFacts& facts = *context.facts;
  const auto stream = static_cast<cudaStream_t>(context.stream);
  if (context.workspace == nullptr || facts.arch < 90 || calls.size() > OnceTensors::kMost ||
      facts.shared_per_block < static_cast<std::int64_t>(Item::kMemory + sizeof(Exchange)))
    return false;
  OnceTensors all{};
  auto* state = static_cast<ScaleState*>(context.workspace);
  std::int64_t items = 0, most_of_scale = 0;
  for (std::size_t n = 0; n < calls.size(); ++n) {
    const auto& [p, t, offset] = calls[n];
    if (p.scales == ScaleKind::none || !p.compute_scales || p.batch == 0 || p.seq == 0 ||
        !in_parts(p, t))
      return false;
    const std::int64_t parts = p.head_dim / kPart, column_blocks = ceil_div(parts, Item::kParts);
    const bool per_block = p.scales == ScaleKind::per_block;
    static_assert(kScaleBlock % Item::kKeys == 0);
    const std::int64_t of_block = kScaleBlock / Item::kKeys * column_blocks;
    // Blocks are whole: items of a last one's missing rows have nothing to do.
    const std::int64_t of_head = per_block ? ceil_div(p.seq, kScaleBlock) * of_block
                                           : ceil_div(p.seq, Item::kKeys) * column_blocks;
    const std::int64_t heads = p.batch * p.heads;
    constexpr std::int64_t kMostItems = std::int64_t{1} << 30;
    if (of_head > kMostItems / heads) return false;
    const bool per_head = p.scales == ScaleKind::per_head;
    const std::int64_t of_scale = per_block ? of_block : per_head ? of_head : of_head * heads;
    all.tensor[n] = {.from = t.from,
                     .to = static_cast<std::uint8_t*>(t.to),
                     .scale = t.scale,
                     .offset = offset,
                     .state = state,
                     .from_b = p.from.stride[0],
                     .from_h = p.from.stride[1],
                     .from_s = p.from.stride[2],
                     .to_b = p.to.stride[0],
                     .to_h = p.to.stride[1],
                     .to_s = p.to.stride[2],
                     .to_d = p.to.stride[3],
                     .first = static_cast<std::uint32_t>(items),
                     .items_of_head = static_cast<std::uint32_t>(of_head),
                     .items_of_scale = static_cast<std::uint32_t>(of_scale),
                     .heads = static_cast<std::int32_t>(p.heads),
                     .seq = static_cast<std::int32_t>(p.seq),
                     .parts = static_cast<std::int32_t>(parts),
                     .column_blocks = static_cast<std::int32_t>(column_blocks),
                     .rotate = p.rotate};
    state += quantize_scales(p);
    items += of_head * heads;
    if (items > kMostItems) return false;
    most_of_scale = std::max(most_of_scale, of_scale);
  }
  all.items = static_cast<std::uint32_t>(items);
  for (std::size_t n = calls.size(); n < OnceTensors::kMost; ++n) all.tensor[n].first = all.items;
  const auto blocks = std::min<std::int64_t>(facts.multiprocessors, ceil_div(items, kWorkers));
  if (!OnceTensors::reaches(static_cast<std::uint64_t>(most_of_scale),
                            static_cast<std::uint64_t>(blocks) * kWorkers))
    return false;
  if (!is_ready<T>(facts.index)) return false;
  const auto bytes = reinterpret_cast<const char*>(state) - static_cast<char*>(context.workspace);
  cudaMemsetAsync(context.workspace, 0, static_cast<std::size_t>(bytes), stream);
  void* arguments[] = {&all};
  if (cudaLaunchCooperativeKernel(quantize_once<T>, dim3(static_cast<unsigned>(blocks)),
                                  dim3(kOnceThreads), arguments, Item::kMemory,
                                  stream) == cudaSuccess)
    return true;
  cudaGetLastError();  // where a share of the device is all that this process may use
  return false;
}

template <class T>
void launch(std::span<const core::QuantizeCall> calls, const core::Context& context) {
  if (launch_once<T>(calls, context)) return;
  for (const core::QuantizeCall& call : calls)
    launch<T>(call, static_cast<cudaStream_t>(context.stream));
}

}  // namespace

Status quantize(std::span<const core::QuantizeCall> calls, const core::Context& context) {
  const DType dtype = calls.front().problem.dtype;
  if (dtype == DType::f32) {
    launch<float>(calls, context);
  } else if (dtype == DType::f16) {
    launch<__half>(calls, context);
  } else {
    launch<__nv_bfloat16>(calls, context);
  }
  return launched("cuda quantisation");
}

}  // namespace greenfast::cuda
