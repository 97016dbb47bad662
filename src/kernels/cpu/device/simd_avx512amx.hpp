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

/// Tiles of the calling thread, whole for as long as it lives. The host's configuration comes back
/// afterwards, because libraries remember what they configured (oneDNN does); contents do not,
/// which no function may expect of another. Without one tiles go back to their initial state, so
/// that the system need not save them.
class WholeTiles {
 public:
  WholeTiles() {
    _tile_storeconfig(&host_);
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

/// GCC's intrinsics do not say that they read memory, so stores before tile loads stay before them
/// only behind this.
GREENFAST_OP void finish_stores() { __asm__ volatile("" ::: "memory"); }

}  // namespace
}  // namespace greenfast::kernels
