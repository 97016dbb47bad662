// Scales and codes of up to three tensors in one launch that reads device memory once.
//
// Idea    An item is 32 keys of 128 bytes of a row. Every warp takes an item a turn and keeps the last
//         four in shared memory of its own: copies for two turns ahead are under way while it finds the
//         largest magnitude of an item, and encodes the one of two turns ago, whose scale all that have
//         items of its head have agreed on by then, in two words of scratch. Two more warps of a block
//         tell other blocks what its workers found, and ask them. Nobody waits for a block, a cluster or
//         a launch, so reads and writes go on side by side.
// Takes   rows of values at multiples of 16 bytes (fp32: 32), codes at 8, transposed ones at 16; a
//         scale's items as far as reaches().
// Limits  compute capability 9.0 (memory); a cooperative launch, because blocks wait for each other.
// Budget  192 KB of shared memory, 72 registers, 448 threads an SM.
// Bound   device memory. H200, 2026-11-27: 87, 80 and 72% of a copy's speed for three tensors of
//         33.5 M fp16 elements with heads of 64, 256 KB and 4 MB; 73, 68 and 65% for one.
#pragma once

#include <cuda_pipeline_primitives.h>

#include <cstddef>
#include <cstdint>

#include "backends/cuda/quantize_once.hpp"
#include "backends/cuda/quantize_values.cuh"
#include "core/e4m3.hpp"
#include "core/rotate.hpp"

namespace greenfast::cuda {

template <class T>
struct OnceItem {
  static constexpr int kKeys = 32, kBytes = 128;
  static constexpr int kParts = kBytes / (kPart * sizeof(T));  // of a row
  static constexpr int kQuarters = kParts / 4;                 // what a lane has of a row
  static constexpr int kPieces = sizeof(Values<T>) / 16;       // of a part
  static constexpr int kUnits = kKeys * kBytes / 16;           // of 16 bytes
  static constexpr std::size_t kMemory = std::size_t{kWorkers} * kSlots * kUnits * 16;
};

/// An item as a lane has it: parts `part` + 4 * quarter of four rows from `row` on.
template <class T>
struct OncePlace {
  using Item = OnceItem<T>;
  const OnceTensor& tensor;
  std::int64_t b, h;
  std::uint32_t head;  // over the batch
  std::uint32_t rest;  // which of the head's items
  int scale;           // whose it is
  int row, part;

  __device__ __forceinline__ OncePlace(const OnceTensors& all, std::uint32_t item)
      : tensor(all.tensor[item < all.tensor[1].first   ? 0
                          : item < all.tensor[2].first ? 1
                                                       : 2]) {
    const std::uint32_t local = item - tensor.first;
    head = local / tensor.items_of_head;
    rest = local - head * tensor.items_of_head;
    const auto column_blocks = static_cast<std::uint32_t>(tensor.column_blocks);
    const std::uint32_t block = rest / column_blocks;
    const std::uint32_t entry = head / static_cast<std::uint32_t>(tensor.heads);
    b = entry;
    h = head - entry * static_cast<std::uint32_t>(tensor.heads);
    scale = static_cast<int>(local / tensor.items_of_scale);
    const int lane = static_cast<int>(threadIdx.x) & 31;
    row = static_cast<int>(block) * Item::kKeys + lane / 4 * 4;
    part = static_cast<int>(rest - block * column_blocks) * Item::kParts + lane % 4;
  }
  __device__ __forceinline__ ScaleState* state() const { return tensor.state + scale; }
  template <bool kOffset>
  __device__ __forceinline__ Offset<kOffset> offset(int quarter) const {
    const int mine = part + 4 * quarter;
    if (!kOffset || tensor.offset == nullptr || mine >= tensor.parts)
      return Offset<kOffset>::of(nullptr);
    return Offset<kOffset>::of(tensor.offset + (std::int64_t{head} * tensor.parts + mine) * kPart);
  }
  /// Whether no row or part of the item is missing, for every lane alike.
  __device__ __forceinline__ bool whole() const {
    return (row | (Item::kKeys - 1)) < tensor.seq && (part | (Item::kParts - 1)) < tensor.parts;
  }
  __device__ __forceinline__ bool has(int quarter, int i) const {
    return part + 4 * quarter < tensor.parts && row + i < tensor.seq;
  }
};

/// Into the lane's units of a slot, which no other thread looks at. Zeros stand for what is missing.
template <class T>
__device__ __forceinline__ void copy_item(const OncePlace<T>& at, uint4* slot) {
  using Item = OnceItem<T>;
  const OnceTensor& x = at.tensor;
  const T* const head = static_cast<const T*>(x.from) + at.b * x.from_b + at.h * x.from_h;
  const T* const rows = head + at.row * x.from_s + at.part * kPart;
  const auto copy = [&](const T* from, int unit, int zeros) {
#pragma unroll
    for (int piece = 0; piece < Item::kPieces; ++piece)
      __pipeline_memcpy_async(slot + (unit * Item::kPieces + piece) * 32,
                              reinterpret_cast<const uint4*>(from) + piece, 16, zeros);
  };
  if (at.whole()) {
    const T* row = rows;
#pragma unroll
    for (int i = 0; i < 4; ++i, row += x.from_s)
#pragma unroll
      for (int quarter = 0; quarter < Item::kQuarters; ++quarter)
        copy(row + quarter * 4 * kPart, quarter * 4 + i, 0);
  } else {
#pragma unroll 1
    for (int unit = 0; unit < 4 * Item::kQuarters; ++unit) {
      const bool there = at.has(unit / 4, unit % 4);
      copy(there ? rows + unit % 4 * x.from_s + unit / 4 * 4 * kPart : head, unit, there ? 0 : 16);
    }
  }
}

/// The lane's part of its row i in a quarter.
template <class T>
__device__ __forceinline__ Values<T> held(const uint4* slot, int quarter, int i) {
  using Item = OnceItem<T>;
  Values<T> values;
#pragma unroll
  for (int piece = 0; piece < Item::kPieces; ++piece)
    reinterpret_cast<uint4*>(values.words)[piece] =
        slot[((quarter * 4 + i) * Item::kPieces + piece) * 32];
  return values;
}

/// Bits of the largest finite magnitude of the warp's item, and whether all of it are finite.
template <bool kOffset, class T>
__device__ __forceinline__ std::uint32_t largest_of_item(const OncePlace<T>& at, const uint4* slot,
                                                         bool& finite) {
  using Item = OnceItem<T>;
  Largest<T, kOffset> mine;
#pragma unroll
  for (int quarter = 0; quarter < Item::kQuarters; ++quarter) {
    const Offset<kOffset> offset = at.template offset<kOffset>(quarter);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      // What is missing is 0, which is no value with an offset.
      if (!kOffset || at.has(quarter, i)) mine.take(held<T>(slot, quarter, i), offset);
  }
  std::uint32_t most = __reduce_max_sync(0xffffffffu, mine.found());
  finite = most < kInfinityBits;
  if (!finite) {
    most = 0;
#pragma unroll 1
    for (int unit = 0; unit < 4 * Item::kQuarters; ++unit)
      if (at.has(unit / 4, unit % 4))
        most = Largest<T, kOffset>::finite(held<T>(slot, unit / 4, unit % 4),
                                           at.template offset<kOffset>(unit / 4), most);
    most = __reduce_max_sync(0xffffffffu, most);
  }
  return most;
}

/// A quarter of a rotated row: a lane has the row of the item that is its own number, four parts of it
/// or as many as there are. Other lanes copied some of them.
template <class T>
struct RotatedQuarter {
  using Item = OnceItem<T>;
  float x[core::kRotatedParts][kPart];  // sums
  float factor[core::kRotatedParts];

  /// `slot` is the warp's. Of whole blocks a lane takes the parts in an order of its own, or eight lanes
  /// would read from the same banks. What that does is turn the signs of the parts that have an odd
  /// number of bits in common with the order; the factor turns them back.
  __device__ __forceinline__ RotatedQuarter(const uint4* slot, int quarter, int parts) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const bool whole = parts >= core::kRotatedParts;
    const int order = whole ? lane & 3 : 0;
    const uint4* const row = slot + (quarter * 4 + (lane & 3)) * Item::kPieces * 32 + (lane & ~3);
#pragma unroll
    for (int n = 0; n < core::kRotatedParts; ++n) {
      Values<T> values;
#pragma unroll
      for (int piece = 0; piece < Item::kPieces; ++piece)
        reinterpret_cast<uint4*>(values.words)[piece] = row[piece * 32 + (n ^ order)];
#pragma unroll
      for (int i = 0; i < kPart; ++i) x[n][i] = values.at(i);
      const float size =
          core::rotation_factor(whole ? core::kRotatedParts : core::rotation_block(n, parts).parts);
      factor[n] = (__popc(n & order) & 1) != 0 ? -size : size;
    }
    core::rotate_block(x, whole ? core::kRotatedParts : parts >= 2 ? 2 : 1);
  }
  __device__ __forceinline__ Values<float> part(int n) const {
    Values<float> values;
#pragma unroll
    for (int i = 0; i < kPart; ++i)
      values.words[i] = __float_as_uint(core::rotated_value(x[n][i], factor[n]));
    return values;
  }
};

/// Where a rotated item lies: the lane's row, and a quarter's parts.
template <class T>
struct RotatedPlace {
  const OncePlace<T>& at;
  int lane = static_cast<int>(threadIdx.x) & 31;

  __device__ __forceinline__ bool has_row() const {
    return at.row - lane / 4 * 4 + lane < at.tensor.seq;
  }
  __device__ __forceinline__ int first_part(int quarter) const {
    return at.part - lane % 4 + 4 * quarter;
  }
  __device__ __forceinline__ int parts(int quarter) const {
    return min(at.tensor.parts - first_part(quarter), core::kRotatedParts);
  }
  /// Of part n of a quarter. Zeros, which change no bit, where the tensor has none.
  __device__ __forceinline__ Offset<true> offset(int quarter, int n) const {
    const float* const columns = at.tensor.offset;
    return Offset<true>::of(
        columns == nullptr
            ? nullptr
            : columns +
                  (std::int64_t{at.head} * at.tensor.parts + first_part(quarter) + n) * kPart);
  }
};

template <class T>
__device__ __forceinline__ std::uint32_t largest_of_rotated(const OncePlace<T>& at,
                                                            const uint4* slot, bool& finite) {
  using Item = OnceItem<T>;
  const RotatedPlace<T> place{at};
  std::uint32_t most = 0, all = 0;
#pragma unroll 1
  for (int quarter = 0; quarter < Item::kQuarters; ++quarter) {
    const int parts = place.parts(quarter);
    if (parts <= 0) break;
    const RotatedQuarter<T> rotated(slot, quarter, parts);
    if (!place.has_row()) continue;
#pragma unroll
    for (int n = 0; n < core::kRotatedParts; ++n) {
      if (n >= parts) break;
      const Values<float> values = rotated.part(n);
      const Offset<true> offset = place.offset(quarter, n);
      Largest<float, true> mine;
      mine.take(values, offset);
      all = max(all, mine.most);
      if (mine.most < kInfinityBits)
        most = max(most, mine.most);
      else
        most = Largest<float, true>::finite(values, offset, most);
    }
  }
  finite = __reduce_max_sync(0xffffffffu, all) < kInfinityBits;
  return __reduce_max_sync(0xffffffffu, most);
}

/// Codes of a quarter of 32 rows go from a row a lane to eight rows a store by way of the quarter's own
/// place in the slot, in an order in which neither finds two of its lanes at one bank.
template <Quotient kHow, class T>
__device__ __forceinline__ void encode_rotated_item(const OncePlace<T>& at, uint4* slot,
                                                    const SharedDivisor& divisor) {
  using Item = OnceItem<T>;
  const OnceTensor& x = at.tensor;
  const RotatedPlace<T> place{at};
  const int lane = place.lane;
  const auto unit = [](int row, int half) {  // of 16 codes
    const int mixed = (row / 4 & 3) * 2 ^ (row / 4 & 1);
    return row / 4 * 8 + ((row % 4 * 2 + half) ^ mixed);
  };
  std::uint8_t* const head = x.to + at.b * x.to_b + at.h * x.to_h;
#pragma unroll 1
  for (int quarter = 0; quarter < Item::kQuarters; ++quarter) {
    const int parts = place.parts(quarter);
    if (parts <= 0) break;
    uint2 codes[core::kRotatedParts];
    {
      const RotatedQuarter<T> rotated(slot, quarter, parts);
#pragma unroll
      for (int n = 0; n < core::kRotatedParts; ++n)
        codes[n] = codes_of<kHow>(rotated.part(n),
                                  n < parts ? place.offset(quarter, n) : Offset<true>::of(nullptr),
                                  divisor);
    }
    uint4* const mine = slot + quarter * 4 * Item::kPieces * 32;
    __syncwarp();
    mine[unit(lane, 0)] = {codes[0].x, codes[0].y, codes[1].x, codes[1].y};
    mine[unit(lane, 1)] = {codes[2].x, codes[2].y, codes[3].x, codes[3].y};
    __syncwarp();
    const int part = lane % 4;
    std::uint8_t* row = head + at.row * x.to_s + (at.part + 4 * quarter) * kPart;
#pragma unroll
    for (int i = 0; i < 4; ++i, row += x.to_s)
      if (at.has(quarter, i))
        *reinterpret_cast<uint2*>(row) =
            reinterpret_cast<const uint2*>(mine + unit(lane / 4 * 4 + i, part / 2))[part % 2];
  }
}

/// x[m] of lane q becomes x[q] of lane m, for the four lanes whose numbers differ by multiples of 4.
__device__ __forceinline__ void exchange4(std::uint32_t (&x)[4], int q) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool upper = (q & bit) != 0;
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const int low = bit == 1 ? 2 * pair : pair, high = low + bit;
      const std::uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? x[low] : x[high], 4 * bit);
      (upper ? x[low] : x[high]) = other;
    }
  }
}

/// Sixteen codes of a column, of which `count` are there.
__device__ __forceinline__ void store_column(std::uint8_t* to, const std::uint32_t (&x)[4],
                                             int count) {
  if (count >= 16) {
    *reinterpret_cast<uint4*>(to) = {x[0], x[1], x[2], x[3]};
    return;
  }
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    const std::uint32_t word = i < 8 ? (i < 4 ? x[0] : x[1]) : (i < 12 ? x[2] : x[3]);
    to[i] = static_cast<std::uint8_t>(word >> (8 * (i % 4)));
  }
}

template <Quotient kHow, bool kOffset, class T>
__device__ __forceinline__ void encode_item(const OncePlace<T>& at, const uint4* slot,
                                            const SharedDivisor& divisor) {
  using Item = OnceItem<T>;
  constexpr int kUnroll = kHow == Quotient::small ? Item::kQuarters : 1;
  const OnceTensor& x = at.tensor;
  std::uint8_t* const head = x.to + at.b * x.to_b + at.h * x.to_h;
#pragma unroll kUnroll
  for (int quarter = 0; quarter < Item::kQuarters; ++quarter) {
    const Offset<kOffset> offset = at.template offset<kOffset>(quarter);
    uint2 codes[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      codes[i] = codes_of<kHow>(held<T>(slot, quarter, i), offset, divisor);
    const int part = at.part + 4 * quarter;
    if (x.to_d == 1) {
      std::uint8_t* row = head + at.row * x.to_s + part * kPart;
#pragma unroll
      for (int i = 0; i < 4; ++i, row += x.to_s)
        if (at.has(quarter, i)) *reinterpret_cast<uint2*>(row) = codes[i];
    } else {
      std::uint32_t words[kPart];
      turn(codes, words);
      // Of a column the lane has four keys, three other lanes the next: each takes a column's sixteen.
      const int q = at.row / 4 % 4, key = at.row / 16 * 16;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        std::uint32_t four[4] = {words[4 * half], words[4 * half + 1], words[4 * half + 2],
                                 words[4 * half + 3]};
        exchange4(four, q);
        if (part < x.parts)
          store_column(head + (part * kPart + 4 * half + q) * x.to_d + key, four, x.seq - key);
      }
    }
  }
}

/// What the workers of a block and the two warps that speak for them exchange, of the last kTurns
/// turns. A worker looks at no item more than kLag turns behind the last that it was given a scale for.
struct Exchange {
  std::uint64_t delivered[kTurns], given[kTurns];  // mbarriers
  std::uint32_t most[kTurns][kWorkers];
  float scale[kTurns][kWorkers];

  __device__ __forceinline__ static std::uint32_t address(const std::uint64_t& barrier) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(&barrier));
  }
  __device__ __forceinline__ static void begin(std::uint64_t& barrier, int count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address(barrier)), "r"(count)
                 : "memory");
  }
  __device__ __forceinline__ static void arrive(std::uint64_t& barrier) {
    asm volatile(
        "{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(address(barrier))
        : "memory");
  }
  __device__ __forceinline__ static void wait(const std::uint64_t& barrier, std::uint32_t turn) {
    std::uint32_t done;
    do {
      asm volatile(
          "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2;"
          " selp.u32 %0, 1, 0, p; }"
          : "=r"(done)
          : "r"(address(barrier)), "r"(turn / kTurns & 1)
          : "memory");
    } while (done == 0);
  }
};

/// The items of a block: worker w has number w of each turn, where there is one.
struct OnceShare {
  std::uint32_t first, step, items;

  __device__ __forceinline__ explicit OnceShare(std::uint32_t all)
      : first(blockIdx.x * kWorkers), step(gridDim.x * kWorkers), items(all) {}
  __device__ __forceinline__ std::uint32_t turns() const {
    return first < items ? (items - 1 - first) / step + 1 : 0;
  }
  __device__ __forceinline__ std::uint32_t item(std::uint32_t turn, std::uint32_t worker) const {
    return first + turn * step + worker;
  }
};

/// Each turn's maxima to the words of their scales, once for all workers that share one.
template <class T>
__device__ __forceinline__ void tell(const OnceTensors& all, const OnceShare& share,
                                     Exchange& exchange) {
  const auto lane = threadIdx.x & 31;
  const std::uint32_t turns = share.turns();
#pragma unroll 1
  for (std::uint32_t turn = 0; turn < turns; ++turn) {
    const bool mine = lane < kWorkers && share.item(turn, lane) < all.items;
    const OncePlace<T> at(all, mine ? share.item(turn, lane) : all.items - 1);
    ScaleState* const state = at.state();
    const unsigned same =
        __match_any_sync(0xffffffffu, mine ? reinterpret_cast<unsigned long long>(state) : 0ull);
    exchange.wait(exchange.delivered[turn % kTurns], turn);
    const std::uint32_t largest =
        __reduce_max_sync(same, mine ? exchange.most[turn % kTurns][lane] : 0);
    if (mine && static_cast<int>(lane) == __ffs(static_cast<int>(same)) - 1) {
      if (largest != 0) atomicMax(&state->largest, largest);
      asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(&state->seen), "r"(__popc(same))
                   : "memory");
    }
  }
}

/// Each turn's scales to the workers, once all items of theirs have been looked at.
template <class T>
__device__ __forceinline__ void ask(const OnceTensors& all, const OnceShare& share,
                                    Exchange& exchange) {
  const auto lane = threadIdx.x & 31;
  const std::uint32_t turns = share.turns();
#pragma unroll 1
  for (std::uint32_t turn = 0; turn < turns; ++turn) {
    const bool mine = lane < kWorkers && share.item(turn, lane) < all.items;
    const OncePlace<T> at(all, mine ? share.item(turn, lane) : all.items - 1);
    const ScaleState* const state = at.state();
    // Before its own workers have looked it would ask in vain.
    exchange.wait(exchange.delivered[turn % kTurns], turn);
    if (mine) {
      const auto seen = [&] {
        std::uint32_t count;
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                     : "=r"(count)
                     : "l"(&state->seen)
                     : "memory");
        return count;
      };
      while (seen() != at.tensor.items_of_scale) __nanosleep(100);
      std::uint32_t largest;
      asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];"
                   : "=r"(largest)
                   : "l"(&state->largest)
                   : "memory");
      const float scale = core::e4m3_scale(__uint_as_float(largest));
      exchange.scale[turn % kTurns][lane] = scale;
      // Whoever has the first item of a head writes it; where a tensor has one, all write the same.
      if (at.rest % at.tensor.items_of_scale == 0) at.tensor.scale[at.scale] = scale;
    }
    // Every lane for what it wrote: racecheck does not see one of them arrive for all behind __syncwarp.
    if (lane < kWorkers) exchange.arrive(exchange.given[turn % kTurns]);
  }
}

template <class T>
__device__ __forceinline__ void work(const OnceTensors& all, const OnceShare& share,
                                     Exchange& exchange, uint4* memory, std::uint32_t worker) {
  constexpr int kUnits = OnceItem<T>::kUnits;
  const auto lane = threadIdx.x & 31;
  const std::uint32_t turns = share.turns();
  uint4* const ring = memory + worker * (kSlots * kUnits);
  const auto slot_of_warp = [&](std::uint32_t turn) { return ring + turn % kSlots * kUnits; };
  const auto slot = [&](std::uint32_t turn) { return slot_of_warp(turn) + lane; };
  const auto copy = [&](std::uint32_t turn) {
    if (turn < turns && share.item(turn, worker) < all.items)
      copy_item<T>({all, share.item(turn, worker)}, slot(turn));
    __pipeline_commit();
  };
  std::uint32_t odd = 0;  // bit n: the item of n turns ago has infinities or NaN
  for (std::uint32_t turn = 0; turn < kAhead; ++turn) copy(turn);
#pragma unroll 1
  for (std::uint32_t turn = 0; turn < turns + kLag; ++turn) {
    bool finite = true;
    if (turn < turns) {
      __pipeline_wait_prior(kAhead - 1);
      if (share.item(turn, worker) < all.items) {
        const OncePlace<T> at(all, share.item(turn, worker));
        std::uint32_t most;
        if (at.tensor.rotate) {
          __syncwarp();  // all lanes' copies
          most = largest_of_rotated(at, slot_of_warp(turn), finite);
        } else {
          most = at.tensor.offset != nullptr ? largest_of_item<true>(at, slot(turn), finite)
                                             : largest_of_item<false>(at, slot(turn), finite);
        }
        if (lane == 0) exchange.most[turn % kTurns][worker] = most;
      }
      if (lane == 0) exchange.arrive(exchange.delivered[turn % kTurns]);
    }
    odd = odd << 1 | (finite ? 0u : 1u);
    if (turn >= kLag) {
      const std::uint32_t then = turn - kLag;
      exchange.wait(exchange.given[then % kTurns], then);
      if (share.item(then, worker) < all.items) {
        const OncePlace<T> at(all, share.item(then, worker));
        const SharedDivisor divisor = SharedDivisor::of(exchange.scale[then % kTurns][worker]);
        // What is rare has one piece of code for both.
        if (at.tensor.rotate) {
          if (!divisor.quick)
            encode_rotated_item<Quotient::slow>(at, slot_of_warp(then), divisor);
          else if ((odd >> kLag & 1) != 0)
            encode_rotated_item<Quotient::quick>(at, slot_of_warp(then), divisor);
          else
            encode_rotated_item<Quotient::small>(at, slot_of_warp(then), divisor);
          __syncwarp();  // before the slot is copied to again
        } else if (!divisor.quick)
          encode_item<Quotient::slow, true>(at, slot(then), divisor);
        else if ((odd >> kLag & 1) != 0)
          encode_item<Quotient::quick, true>(at, slot(then), divisor);
        else if (at.tensor.offset != nullptr)
          encode_item<Quotient::small, true>(at, slot(then), divisor);
        else
          encode_item<Quotient::small, false>(at, slot(then), divisor);
      }
    }
    copy(turn + kAhead);
  }
}

template <class T>
__global__ void __launch_bounds__(kOnceThreads, 1)
    quantize_once(const __grid_constant__ OnceTensors all) {
#ifdef GREENFAST_PTX_ONCE
#error "this kernel has a body from compute capability 9.0 on: its source is BY_ARCH"
#endif
#if __CUDA_ARCH__ >= 900
  extern __shared__ uint4 memory[];
  __shared__ Exchange exchange;
  if (threadIdx.x < kTurns) {
    exchange.begin(exchange.delivered[threadIdx.x], kWorkers);
    exchange.begin(exchange.given[threadIdx.x], kWorkers);
  }
  __syncthreads();
  const auto warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  const OnceShare share(all.items);
  if (warp < kWorkers)
    work<T>(all, share, exchange, memory, warp);
  else if (warp == kWorkers)
    tell<T>(all, share, exchange);
  else
    ask<T>(all, share, exchange);
#endif
}

}  // namespace greenfast::cuda
