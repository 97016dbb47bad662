// Rows whose scores one float of base cannot hold (kLargestBase), done again at the kernel's end.
//
// The main loop subtracts fma(score, scale, -base), whose base is a rounded product: beyond 2^22
// the rounding moves a row's weights by whole powers of two, out of fp16's range. It only takes
// note that such a base was seen. Then every warp goes through its tiles once more, finds the rows
// whose first base or maximum lies beyond 2^23, and computes them with bases of two floats from Q, K
// and V in memory: a pass to find them and one for each 64 columns, 16 keys at a time, in some twenty
// times the time. What the main loop stored for them is overwritten; other rows keep their bits.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/e4m3.cuh"
#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/device/ptx_mma.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/sm90_prefill/config.hpp"
#include "kernels/cuda/sm90_prefill/factors.cuh"
#include "kernels/cuda/sm90_prefill/grouped.cuh"
#include "kernels/cuda/sm90_prefill/mask_element.cuh"

namespace greenfast::cuda::prefill {

/// Takes note of bases of two rows that one float may not hold, without a branch, in front of which
/// ptxas would wait for the product under way. Threads store one and the same value: ptxas makes a
/// reduction and a branch of red.shared.
__device__ __forceinline__ void note_large_bases(std::uint32_t noted, float base0, float base1) {
  asm volatile(
      "{\n"
      ".reg .pred large0, large1, large;\n"
      ".reg .f32 size0, size1;\n"
      "abs.f32 size0, %1;\n"
      "abs.f32 size1, %2;\n"
      "setp.gt.f32 large0, size0, %3;\n"
      "setp.gt.f32 large1, size1, %3;\n"
      "setp.le.and.f32 large0, size0, 0f7F7FFFFF, large0;\n"
      "setp.le.and.f32 large1, size1, 0f7F7FFFFF, large1;\n"
      "or.pred large, large0, large1;\n"
      "@large st.shared.b32 [%0], %4;\n"
      "}" ::"r"(noted),
      "f"(base0), "f"(base1), "f"(kLargestBase), "r"(1)
      : "memory");
}

template <class T, class ConfigOf>
struct Repair {
  static constexpr bool kGeneral = ConfigOf::value.features == Features::general;
  static constexpr bool kBytes = ConfigOf::value.bytes;
  // As it lies in memory.
  using Element = std::conditional_t<kBytes, std::uint8_t, T>;
  static constexpr int kKeys = 16;  // at a time
  // Fewer columns make some repair slower and save registers. Causal split tiles spend them
  // on their main loop: 13.4 for 14.05 us at 1,8,2048,64 (H100, 2026-11-25).
  static constexpr bool kFewColumns =
      ConfigOf::value.split && ConfigOf::value.ones && ConfigOf::value.masked();
  static constexpr int kColumns = kFewColumns ? 8 : 64;  // at a time

  static constexpr bool kPacked = ConfigOf::value.packed;
  static constexpr bool kServing = ConfigOf::value.serving;
  static constexpr bool kGrouped = kIsGrouped<ConfigOf>;

  const Params& p;
  const ExtentOf<ConfigOf>& extent;
  const float scale;
  const TileOf<ConfigOf>& tile;
  const int first_row;  // of 16
  const int g, t;       // lane = 4 * g + t

  __device__ __forceinline__ int row(int h) const { return first_row + g + 8 * h; }
  // Of packed builds: where the sequence's rows and keys begin.
  __device__ __forceinline__ std::int64_t q_rows() const {
    if constexpr (kPacked)
      return tile.q_row;
    else
      return 0;
  }
  __device__ __forceinline__ std::int64_t kv_rows() const {
    if constexpr (kPacked)
      return tile.kv_row;
    else
      return 0;
  }
  __device__ __forceinline__ std::int64_t kv_batch() const {
    if constexpr (kPacked)
      return tile.kv_batch;
    else
      return tile.batch;
  }

  /// Of V and O.
  __device__ __forceinline__ int columns() const {
    if constexpr (kServing)
      return p.serving.value_dim;
    else
      return p.head_dim;
  }
  /// Of builds for serving: keys that may be read, in pages not those before the first that some
  /// row sees; and such a key's row of K or V, whose entry or page 0, head at hand, is `all`: null
  /// where it may not be read.
  __device__ __forceinline__ bool is_there(int key) const {
    return key < extent.band.keys && key >= tile.cut;
  }
  __device__ __forceinline__ const Element* row_at(const Element* all, std::int64_t batch_stride,
                                                   std::int64_t row_stride, int key) const {
    if (!is_there(key)) return nullptr;
    const SequenceArrays& a = p.packed.arrays;
    if (a.page_table == nullptr)
      return all + tile.kv_batch * batch_stride + (tile.kv_row + key) * row_stride;
    const PageBox from = box_at(tile, key, a.page_size, p.serving.by_page);
    const int page = a.page_table[tile.entry * a.page_row + from.entry];
    return all + min(max(page, 0), a.pages - 1) * batch_stride + from.row * row_stride;
  }

  __device__ __forceinline__ std::uint32_t pair(const Element* at, bool there) const {
    if constexpr (kBytes)
      return there ? decode_e4m3x2(*reinterpret_cast<const std::uint16_t*>(at)) : 0;
    else
      return there ? *reinterpret_cast<const std::uint32_t*>(at) : 0;
  }
  /// One element of V, as 16 bits.
  __device__ __forceinline__ static std::uint32_t value(const Element* at) {
    if constexpr (kBytes)
      return decode_e4m3x2(*at) & 0xffff;
    else
      return *reinterpret_cast<const std::uint16_t*>(at);
  }

  /// Scores of 16 keys from `key` on, those of hidden keys -inf: s[n][2 * h + e] is of key + 8 * n
  /// + 2 * t + e.
  __device__ __forceinline__ void scores_of(float (&s)[2][4], int key) const {
    [[maybe_unused]] const Element* const q = static_cast<const Element*>(p.q) +
                                              tile.batch * p.q_batch + tile.head * p.q_head +
                                              q_rows() * p.q_row;
    [[maybe_unused]] const Element* const k = static_cast<const Element*>(p.k) +
                                              kv_batch() * p.k_batch +
                                              tile.head / p.group * p.k_head + kv_rows() * p.k_row;
    [[maybe_unused]] const Element* rows[2];
    if constexpr (kServing)
#pragma unroll
      for (int n = 0; n < 2; ++n)
        rows[n] = row_at(static_cast<const Element*>(p.k) + tile.head / p.group * p.k_head,
                         p.k_batch, p.k_row, key + 8 * n + g);
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (float& x : s[n]) x = 0.0f;
#pragma unroll 1
    for (int d = 2 * t; d < p.head_dim; d += 16) {
      std::uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int from = row(i & 1), column = d + 8 * (i >> 1);
        if constexpr (kGrouped)
          a[i] = pair(static_cast<const Element*>(p.q) + q_of_group(p, tile, from) + column,
                      from < extent.seq_q && column < p.head_dim);
        else
          a[i] = pair(q + from * p.q_row + column, from < extent.seq_q && column < p.head_dim);
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int from = key + 8 * n + g;
        if constexpr (kServing) {
          const bool there = rows[n] != nullptr;
          const Element* const at = rows[n] + d;
          ptx::mma_m16n8k16<T>(s[n], a, pair(at, there), pair(at + 8, there && d + 8 < p.head_dim));
        } else {
          const Element* const at = k + from * p.k_row + d;
          const bool there = from < extent.band.keys;
          ptx::mma_m16n8k16<T>(s[n], a, pair(at, there), pair(at + 8, there && d + 8 < p.head_dim));
        }
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kBytes) {
          if (tile.q_turn != 0) s[n][i] = -s[n][i];
          if constexpr (kGrouped) s[n][i] *= factor_of_row(p, tile, row(i / 2));
        }
        if constexpr (kGeneral) s[n][i] = transformed(s[n][i]);
        const int at = key + 8 * n + 2 * t + i % 2, r = row(i / 2);
        if constexpr (ConfigOf::value.has_mask()) {
          if (is_hidden(p, tile, r, at)) s[n][i] = -INFINITY;
        }
        if (at < extent.band.first(r) || at >= extent.band.end(r)) s[n][i] = -INFINITY;
      }
  }
  __device__ __forceinline__ float transformed(float dot) const {
    if constexpr (kBytes)
      return softcap_from_log2(dot * (tile.scale * p.softcap_in), p.softcap_out);
    return p.softcap_out > 0.0f ? softcap_from_log2(dot * p.softcap_in, p.softcap_out)
                                : dot * p.scale_log2;
  }

  /// The rows of V of which a thread multiplies elements, of 16 keys from `key` on: 2 * t, the
  /// next, and those 8 behind them. Of builds for serving, where it takes a look at the page table.
  struct ValueRows {
    const Element* at[4];
  };
  __device__ __forceinline__ ValueRows value_rows(int key) const {
    ValueRows rows;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      rows.at[i] = row_at(static_cast<const Element*>(p.v) + tile.head / p.group * p.v_head,
                          p.v_batch, p.v_row, key + 8 * (i / 2) + 2 * t + i % 2);
    return rows;
  }
  /// The first two of them, or the others, of one column, as a B operand.
  __device__ __forceinline__ std::uint32_t values_of(const ValueRows& rows, int half,
                                                     int column) const {
    std::uint32_t two = 0;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const Element* const row = rows.at[2 * half + e];
      if (row != nullptr && column < columns()) two |= value(row + column) << (16 * e);
    }
    return two;
  }
  /// The same where nothing is in pages: V's rows key + 2 * t and the next.
  __device__ __forceinline__ std::uint32_t values_of(int key, int column) const {
    const Element* const v = static_cast<const Element*>(p.v) + kv_batch() * p.v_batch +
                             tile.head / p.group * p.v_head + kv_rows() * p.v_row;
    std::uint32_t two = 0;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int from = key + 2 * t + e;
      if (from < extent.band.keys && column < p.head_dim)
        two |= value(v + from * p.v_row + column) << (16 * e);
    }
    return two;
  }

  __device__ __forceinline__ void store(int h, int column, float x) const {
    if (column >= columns()) return;
    const std::int64_t at =
        tile.batch * p.o_batch + tile.head * p.o_head + (q_rows() + row(h)) * p.o_row + column;
    constexpr bool kAnyType = kGeneral || kBytes;
    if (kAnyType && p.out_dtype == DType::f32) {
      static_cast<float*>(p.o)[at] = x;
    } else if (kAnyType ? p.out_dtype == DType::f16 : std::is_same_v<T, __half>) {
      static_cast<__half*>(p.o)[at] = __float2half_rn(finite_mean(x));
    } else {
      static_cast<__nv_bfloat16*>(p.o)[at] = __float2bfloat16_rn(x);
    }
  }

  /// Of a group's row: columns from `column` on, of a part as partial results.
  template <int kCount>
  __device__ __forceinline__ void store_of_group(int h, int column, const float (&o)[kCount][4],
                                                 float sum, WideBase base) const {
    const int r = row(h);
    if (tile.slot >= 0) {
      if (t == 0) *stats_of_row<ConfigOf>(p, tile, r) = {base.high, base.low, sum, 0.0f};
      float* const to = partial_of_row<ConfigOf>(p, tile, r) + column + 2 * t;
#pragma unroll
      for (int n = 0; n < kCount; ++n)
        *reinterpret_cast<float2*>(to + 8 * n) = {o[n][2 * h], o[n][2 * h + 1]};
      return;
    }
    const float factor = finish_in_group<ConfigOf>(p, tile, r, base, sum, t == 0 && column == 0);
    const std::int64_t at = o_of_group(p, tile, r) + column + 2 * t;
#pragma unroll
    for (int n = 0; n < kCount; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (column + 8 * n + 2 * t + e < columns())
          store_element(p, at + 8 * n + e, o[n][2 * h + e] * factor);
  }

  /// Takes the weights of 16 keys from `key` on, whose scores are s, into the rows' sums and the
  /// columns from `column` on.
  __device__ __forceinline__ void add(float (&o)[kColumns / 8][4], float (&sum)[2],
                                      const float (&s)[2][4], const WideBase (&base)[2], int key,
                                      int column) const {
    std::uint32_t weights[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int n = i / 2, h = i % 2;
      const WideBase from = finite(base[h]);
      const float x = exp2_fast(exponent(s[n][2 * h], scale, from));
      const float y = exp2_fast(exponent(s[n][2 * h + 1], scale, from));
      sum[h] += x + y;
      weights[i] = pack2<T>(x, y);
    }
    [[maybe_unused]] ValueRows rows;
    if constexpr (kServing) rows = value_rows(key);
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      const int c = column + 8 * n + g;
      // Added here, because the tensor cores cut off what an addition cannot hold.
      float part[4] = {};
      if constexpr (kServing)
        ptx::mma_m16n8k16<T>(part, weights, values_of(rows, 0, c), values_of(rows, 1, c));
      else
        ptx::mma_m16n8k16<T>(part, weights, values_of(key, c), values_of(key + 8, c));
#pragma unroll
      for (int i = 0; i < 4; ++i) o[n][i] += part[i];
    }
  }

  /// Stores rows that are `large`.
  __device__ __forceinline__ void finish(const float (&o)[kColumns / 8][4], float (&sum)[2],
                                         const WideBase (&base)[2], const bool (&large)[2],
                                         int column) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] = quad_sum(sum[h]);
      if (!large[h]) continue;
      if constexpr (kGrouped) {
        store_of_group(h, column, o, sum[h], base[h]);
        continue;
      }
      float factor = 1.0f / sum[h];
      [[maybe_unused]] float lse = 0.0f;
      if constexpr (kServing) {
        lse = kLn2 * (base[h].high + (base[h].low + __log2f(sum[h])));
        if (p.serving.sinks != nullptr) factor *= join_sink(p.serving.sinks[tile.head], lse);
      }
      if constexpr (kBytes) factor *= tile.value_factor;
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e) store(h, column + 8 * n + 2 * t + e, o[n][2 * h + e] * factor);
      if (p.lse == nullptr || t != 0 || column != 0) continue;
      const std::int64_t head =
          static_cast<std::int64_t>(tile.batch) * p.schedule.heads + tile.head;
      p.lse[head * lse_rows<ConfigOf>(p) + q_rows() + row(h)] =
          kServing ? lse : kLn2 * (base[h].high + (base[h].low + __log2f(sum[h])));
    }
  }

  __device__ __forceinline__ int first_key() const {
    return extent.band.first(first_row) / kKeys * kKeys;
  }
  __device__ __forceinline__ int end_of_keys() const {
    return extent.band.end(min(first_row + 15, extent.seq_q - 1));
  }

  // A base or maximum that goes so far was taken note of by the row itself, whatever its tiles' neighbours:
  // the first block that it sees is taken with its maximum or one no more than 15 octaves below, bases only
  // rise, and the last is noted too. Below that the row is right as it is (weights off by a quarter of an octave,
  // its sum alike). A row with no more than a few scores far down would be done again where another row of
  // the same block of threads asks for it, and not elsewhere: other bits in another batch (e4m3 with a scale
  // of 18270, found by fuzz_library on an H200, 2026-11-28).
  __device__ __forceinline__ bool beyond_one_float(float score) const {
    const float size = fabsf(score * scale);
    return size > 2 * kLargestBase && size <= 3.4028235e38f;
  }

  /// Rows whose bases one float cannot hold, again. Keys go as in the main loop, from the last to the
  /// first: the first block of which a row sees something gives its first base. The two warpgroups of a
  /// split tile have a first block each, of the even blocks and of the odd ones.
  __device__ __forceinline__ void run() const {
    constexpr bool kSplit = ConfigOf::value.split;
    const int begin = first_key(), last = (end_of_keys() - 1) / kKeys * kKeys;
    // Of split tiles `most` is of the block at hand alone, and `sees` of the even blocks.
    float most[2] = {-INFINITY, -INFINITY};
    [[maybe_unused]] float of_all[2] = {-INFINITY, -INFINITY};
    bool large[2] = {}, sees[2] = {};
    [[maybe_unused]] bool sees_odd[2] = {};
    WideBase base[2];
    // One loop for what finds rows and what computes them, so that the code of a score is there once.
#pragma unroll 1
    for (int column = -kColumns; column < columns(); column += kColumns) {
      float o[kColumns / 8][4] = {}, sum[2] = {};
#pragma unroll 1
      for (int key = last; key >= begin; key -= kKeys) {
        float s[2][4];
        scores_of(s, key);
        if (column >= 0) {
          add(o, sum, s, base, key, column);
          continue;
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) most[i / 2 % 2] = fmaxf(most[i / 2 % 2], s[i / 4][i % 4]);
        if (key % ConfigOf::value.keys != 0 && key > begin) continue;
        [[maybe_unused]] const bool odd = key / ConfigOf::value.keys % 2 != 0;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float top = quad_max(most[h]);
          // As the main loop: scores whose octaves pass fp32's end give no base yet.
          const bool has_base = top * scale > -INFINITY;
          if constexpr (kSplit) {
            large[h] = large[h] || (!(odd ? sees_odd[h] : sees[h]) && beyond_one_float(top));
            sees[h] = sees[h] || (!odd && has_base);
            sees_odd[h] = sees_odd[h] || (odd && has_base);
            of_all[h] = fmaxf(of_all[h], top);
            most[h] = -INFINITY;
          } else {
            large[h] = large[h] || (!sees[h] && beyond_one_float(top));
            sees[h] = has_base;
          }
        }
      }
      if (column >= 0) {
        finish(o, sum, base, large, column);
        continue;
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float top = quad_max(kSplit ? of_all[h] : most[h]);
        large[h] = (large[h] || beyond_one_float(top)) && row(h) < extent.seq_q;
        base[h] = wide_base(top, scale);
      }
      if (!__any_sync(kFullWarp, large[0] || large[1])) return;
    }
  }
};

/// All rows of this warp, when its stores are complete.
template <class T, class ConfigOf>
__device__ __forceinline__ void repair_rows(const Params& p) {
  constexpr Config kConfig = ConfigOf::value;
  // Read anew: nothing of this lives in registers through the main loop.
  const int thread = ptx::thread_index(), lane = ptx::lane_id();
  const int group = (thread >> 7) - 1, warp = thread >> 5 & 3;
  const float scale = kConfig.features == Features::general ? 1.0f : p.scale_log2;
  if (kConfig.split && group > 0) return;
  if constexpr (kConfig.packed) {
    const auto repair = [&](auto& walk) {
      TileOf<ConfigOf> tile;
#pragma unroll 1
      for (int step = 0; walk.next(tile); ++step) {
        if (is_of_other<ConfigOf>(p, step, group)) continue;
        const int first_row =
            tile.index * kConfig.rows() + first_of_warpgroup<ConfigOf>(p, group) + 16 * warp;
        if (first_row >= tile.extent.seq_q) continue;
        float own_scale = scale;
        if constexpr (ConfigOf::value.bytes) {
          find_factors(p, tile);
          if constexpr (!ConfigOf::value.general()) own_scale = tile.scale;
        }
        if constexpr (kIsGrouped<ConfigOf>)
          Repair<T, ConfigOf>{p, tile.grouped, own_scale, tile, first_row, lane >> 2, lane & 3}
              .run();
        else
          Repair<T, ConfigOf>{p, tile.extent, own_scale, tile, first_row, lane >> 2, lane & 3}
              .run();
      }
    };
    if constexpr (kIsGrouped<ConfigOf>)
      with_warp_walk<ConfigOf>(p.packed, p.grouped, repair);
    else
      with_warp_walk<ConfigOf>(p.packed, p.schedule, repair);
  } else {
    Tile tile;
#pragma unroll 1
    for (int step = 0; next_tile(p, step, tile); ++step) {
      const int first_row =
          tile.index * kConfig.rows() + first_of_warpgroup<ConfigOf>(p, group) + 16 * warp;
      if (first_row >= p.seq_q) continue;
      Repair<T, ConfigOf>{p, p, scale, tile, first_row, lane >> 2, lane & 3}.run();
    }
  }
}

}  // namespace greenfast::cuda::prefill
