// By the description of each instruction in Intel's SDM, volume 2.
#include "tests/kernels/cpu/amx/tiles.hpp"

#include <xmmintrin.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace greenfast::test::tiles {
namespace {

constexpr int kTiles = 8, kRows = 16, kBytes = 64, kFloats = kBytes / 4;

struct Config {
  std::uint8_t palette = 0, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
static_assert(sizeof(Config) == 64);

struct State {
  Config config;
  alignas(64) unsigned char data[kTiles][kRows][kBytes] = {};
};
thread_local State state;

[[noreturn]] void refuse(const char* what, int tile) {
  std::fprintf(stderr, "tile %d: %s\n", tile, what);
  std::abort();
}

struct Tile {
  unsigned char (*row)[kBytes];
  int rows, bytes;
};
Tile configured(int tile) {
  if (tile < 0 || tile >= kTiles) refuse("there are eight", tile);
  const Config& config = state.config;
  if (config.palette == 0) refuse("used without a configuration", tile);
  if (config.rows[tile] == 0 || config.row_bytes[tile] == 0) refuse("is not configured", tile);
  return {state.data[tile], config.rows[tile], config.row_bytes[tile]};
}

void clear_behind(const Tile& tile, int rows) {
  for (int row = 0; row < kRows; ++row) {
    const int kept = row < rows ? tile.bytes : 0;
    std::memset(tile.row[row] + kept, 0, static_cast<std::size_t>(kBytes - kept));
  }
}

// The halves of a pair of bf16 as floats; the lower one stands first in memory.
float first_of(std::uint32_t pair) {
  const std::uint32_t bits = pair << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
float second_of(std::uint32_t pair) {
  const std::uint32_t bits = pair & 0xffff0000u;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Sums of first and of second halves apart, each by fused multiply-adds in the order of k.
[[gnu::noinline]] void multiply(const Tile& sums, const Tile& a, const Tile& b) {
  for (int m = 0; m < sums.rows; ++m) {
    alignas(64) float first[kFloats] = {}, second[kFloats] = {}, sum[kFloats];
    for (int k = 0; k < b.rows; ++k) {
      std::uint32_t left, right[kFloats];
      std::memcpy(&left, a.row[m] + 4 * k, sizeof left);
      std::memcpy(right, b.row[k], sizeof right);
      const float x = first_of(left), y = second_of(left);
      for (int n = 0; n < kFloats; ++n) {
        first[n] = __builtin_fmaf(x, first_of(right[n]), first[n]);
        second[n] = __builtin_fmaf(y, second_of(right[n]), second[n]);
      }
    }
    std::memcpy(sum, sums.row[m], sizeof sum);
    for (int n = 0; n < kFloats; ++n) sum[n] += first[n] + second[n];
    std::memcpy(sums.row[m], sum, static_cast<std::size_t>(sums.bytes));
  }
}

}  // namespace

void load_config(const void* config) {
  Config wanted;
  std::memcpy(&wanted, config, sizeof wanted);
  if (wanted.palette > 1) refuse("no such palette", wanted.palette);
  for (int tile = 0; tile < 16 && wanted.palette == 1; ++tile) {
    if (wanted.rows[tile] > (tile < kTiles ? kRows : 0)) refuse("too many rows", tile);
    if (wanted.row_bytes[tile] > (tile < kTiles ? kBytes : 0)) refuse("rows too long", tile);
  }
  state = State();
  if (wanted.palette == 1) state.config = wanted;
}

void store_config(void* config) { std::memcpy(config, &state.config, sizeof state.config); }

void release() { state = State(); }

void zero(int tile) { clear_behind(configured(tile), 0); }

void load(int tile, const void* from, long stride) {
  const Tile to = configured(tile);
  const auto* const bytes = static_cast<const unsigned char*>(from);
  for (int row = 0; row < to.rows; ++row)
    std::memcpy(to.row[row], bytes + row * stride, static_cast<std::size_t>(to.bytes));
  clear_behind(to, to.rows);
}

void store(int tile, void* to, long stride) {
  const Tile from = configured(tile);
  auto* const bytes = static_cast<unsigned char*>(to);
  for (int row = 0; row < from.rows; ++row)
    std::memcpy(bytes + row * stride, from.row[row], static_cast<std::size_t>(from.bytes));
}

void dot(int sums, int a, int b) {
  const Tile to = configured(sums), left = configured(a), right = configured(b);
  if (sums == a || sums == b || a == b) refuse("three different tiles are needed", sums);
  if (to.rows != left.rows || to.bytes != right.bytes || left.bytes != 4 * right.rows)
    refuse("sizes do not fit", sums);
  // Rounds to nearest and takes subnormals for 0, whatever the thread's mode.
  constexpr unsigned kNearestWithoutSubnormals = 0x9fc0;
  const unsigned before = _mm_getcsr();
  _mm_setcsr(kNearestWithoutSubnormals);
  multiply(to, left, right);
  _mm_setcsr(before);
  clear_behind(to, to.rows);
}

}  // namespace greenfast::test::tiles
