// cuda.stage_c.fp8_wgmma on paper: that the bytes of P meet the keys of V^T that they belong to, that
// wgmma finds tiles where threads wrote them, and what shared memory's banks say of it.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "kernels/cuda/ladder/32_sm90_stage_c_fp8_wgmma.cuh"

namespace greenfast::cuda::stage_c_fp8_wgmma::test {
namespace {

TEST(Fp8WgmmaLayout, EveryByteOfPMeetsItsOwnKey) {
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane / 4, member = lane % 4;
    for (int step = 0; step < 2; ++step) {
      for (int word = 0; word < 4; ++word) {
        for (int byte = 0; byte < 4; ++byte) {
          // PTX ISA, wgmma: accumulators, and an A operand of 8-bit elements in registers.
          const int from = packed_accumulator(step, word, byte);
          const int row = group + 8 * (from / 2 % 2), key = from / 4 * 8 + 2 * member + from % 2;
          const int slot = 32 * step + 16 * (word / 2) + 4 * member + byte;
          EXPECT_EQ(row, group + 8 * (word % 2));
          EXPECT_EQ(key, key_of_slot(slot)) << lane << " " << step << " " << word << " " << byte;
        }
      }
    }
  }
}

TEST(Fp8WgmmaLayout, TilesLieAsTheSixtyFourByteSwizzleWantsThem) {
  std::set<int> places;
  for (int row = 0; row < 64; ++row) {
    for (int byte = 0; byte < kRow; ++byte) {
      const int offset = row * kRow + byte;
      EXPECT_EQ(swizzled(row, byte), offset ^ ((offset / 128 % 4) << 4));
      places.insert(swizzled(row, byte));
    }
  }
  EXPECT_EQ(places.size(), 64u * kRow);
}

/// How often the busiest bank is asked for by a warp whose lanes read or write these bytes.
int ways(const std::vector<int>& offsets) {
  std::map<int, std::set<int>> banks;
  for (const int offset : offsets) banks[offset / 4 % 32].insert(offset / 4);
  std::size_t most = 0;
  for (const auto& [bank, words] : banks) most = std::max(most, words.size());
  return static_cast<int>(most);
}

TEST(Fp8WgmmaLayout, TheTranspositionPutsEveryKeyIntoItsSlotOfEveryColumn) {
  std::array<int, 64 * kRow> transposed;
  transposed.fill(-1);
  for (int warp = 0; warp < 8; ++warp) {
    std::array<std::vector<int>, 4> reads, writes;
    for (int lane = 0; lane < 32; ++lane) {
      const Unit unit = unit_of(32 * warp + lane);
      for (int slot = 0; slot < 4; ++slot) {
        const int key = key_of_slot(4 * unit.quad + slot);
        reads[slot].push_back(swizzled(key, 4 * unit.group));
        for (int column = 0; column < 4; ++column) {
          // A word of four columns lies in one 16-byte unit, one of four slots too.
          EXPECT_EQ(swizzled(key, 4 * unit.group + column), reads[slot].back() + column);
          const int d = 4 * unit.group + column;
          const int to = swizzled(d, 4 * unit.quad) + slot;
          EXPECT_EQ(to, swizzled(d, 4 * unit.quad + slot));
          EXPECT_EQ(transposed[to], -1) << "written twice";
          transposed[to] = key * kRow + d;
          if (slot == 0) writes[column].push_back(to);
        }
      }
    }
    for (int i = 0; i < 4; ++i) {
      EXPECT_LE(ways(reads[i]), 2) << warp << " " << i;
      EXPECT_LE(ways(writes[i]), 2) << warp << " " << i;
    }
  }
  for (int d = 0; d < 64; ++d)
    for (int slot = 0; slot < 64; ++slot)
      EXPECT_EQ(transposed[swizzled(d, slot)], key_of_slot(slot) * kRow + d);
}

}  // namespace
}  // namespace greenfast::cuda::stage_c_fp8_wgmma::test
