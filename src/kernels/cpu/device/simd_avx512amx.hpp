// AMX on top of simd_avx512bf16.hpp: eight tiles of 16 rows of 64 bytes, products of bf16.
#pragma once

#include "kernels/cpu/device/simd_avx512bf16.hpp"

namespace greenfast::kernels {
namespace {

constexpr int kTileSide = 16;  // rows of a tile, and floats or pairs of bf16 in one
constexpr int kTileBytes = 1024;

struct alignas(64) TileConfig {
  std::uint8_t palette = 0, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
constexpr TileConfig whole_tiles() {
  TileConfig config;
  config.palette = 1;
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = 64;
    config.rows[i] = kTileSide;
  }
  return config;
}
alignas(64) constexpr TileConfig kWholeTiles = whole_tiles();

/// GCC's intrinsics do not say what memory they read, and of a configuration only 8 bytes, so
/// stores stay on their side of one only behind this.
GREENFAST_OP void finish_stores() { __asm__ volatile("" ::: "memory"); }

/// Tiles of the calling thread, whole for as long as it lives. The host's configuration comes back
/// afterwards, because libraries remember what they configured (oneDNN does); contents do not,
/// which no function may expect of another. Without one tiles go back to their initial state, so
/// that the system need not save them.
class WholeTiles {
 public:
  WholeTiles() {
    finish_stores();
    _tile_storeconfig(&host_);
    finish_stores();
    _tile_loadconfig(&kWholeTiles);
  }
  ~WholeTiles() {
    if (host_.palette == 0) {
      _tile_release();
    } else {
      _tile_loadconfig(&host_);
    }
  }
  WholeTiles(const WholeTiles&) = delete;
  WholeTiles& operator=(const WholeTiles&) = delete;

 private:
  TileConfig host_;
};

/// 32 numbers as sums of two bf16 each.
struct Pieces {
  __m512i high, low;
};

/// The first n elements, the others 0. Exact for what is finite; else `finite` becomes false.
GREENFAST_OP Pieces load_pieces(const F16* p, int n, bool& finite) {
  const __m512i bits = _mm512_maskz_loadu_epi16(first_halves(n), p);
  const __m512i top = _mm512_set1_epi16(0x7c00);
  if (_mm512_cmpeq_epi16_mask(_mm512_and_si512(bits, top), top) != 0) finite = false;
  const __m512 a = _mm512_cvtph_ps(_mm512_castsi512_si256(bits));
  const __m512 b = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(bits, 1));
  const auto widened = [](__m256i x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
  };
  const __m512i high = (__m512i)_mm512_cvtne2ps_pbh(b, a);
  const __m512 a_low = _mm512_sub_ps(a, widened(_mm512_castsi512_si256(high)));
  const __m512 b_low = _mm512_sub_ps(b, widened(_mm512_extracti64x4_epi64(high, 1)));
  return {high, (__m512i)_mm512_cvtne2ps_pbh(b_low, a_low)};
}

/// Pairs {a[i], b[i]} for i < 16 and for the rest.
GREENFAST_OP void store_pairs(float* first, float* rest, __m512i a, __m512i b) {
  // Unpacking keeps to quarters of a register: {0-3, 8-11, 16-19, 24-27} and what lies between.
  const __m512i x = _mm512_unpacklo_epi16(a, b), y = _mm512_unpackhi_epi16(a, b);
  const __m512i kFirst = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);
  const __m512i kRest = _mm512_set_epi64(15, 14, 7, 6, 13, 12, 5, 4);
  _mm512_store_si512(first, _mm512_permutex2var_epi64(x, kFirst, y));
  _mm512_store_si512(rest, _mm512_permutex2var_epi64(x, kRest, y));
}

/// The elements of pairs of bf16, as floats.
GREENFAST_OP Vec first_of_pair(Vec pairs) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(pairs), 16));
}
GREENFAST_OP Vec second_of_pair(Vec pairs) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(pairs),
                                              _mm512_set1_epi32(static_cast<int>(0xffff0000))));
}

}  // namespace
}  // namespace greenfast::kernels
