// Rows of pages on their way to shared memory: the warps that share a block copy every piece once, to where TMA would have laid
// it, and of the row that the lane they ask knows. And what a softcap's near scores become.
#include "kernels/cuda/sm90_prefill/row_copies.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <utility>

#include "kernels/cuda/sm90_prefill/config.hpp"

namespace greenfast::cuda::prefill {
namespace {

/// Places of rows and pieces of a block, as a warp's lanes copy them.
template <int kKeys, class Rows, class Share>
void copy(int first, std::map<std::pair<int, int>, std::uint32_t>& places) {
  for (int run = 0; run < Share::kRuns; ++run) {
    for (int further = 0; further < Share::kRun; further += Rows::kAtOnce) {
      for (int lane = 0; lane < 32; ++lane) {
        const int row_of_lane = Rows::row_of(lane), piece = Rows::piece_of(lane);
        const int row = first + run * Share::kApart + further + row_of_lane;
        // Which lane knows where the row lies, of which 32.
        const int set = run * Share::kRun / 32,
                  knows = run * Share::kRun % 32 + row_of_lane + further;
        EXPECT_EQ(first + Share::row_of(set, knows), row);
        EXPECT_LT(set, Share::kSets);
        EXPECT_LT(knows, 32);
        const auto in_stage = static_cast<std::uint32_t>(Rows::chunk_place(kKeys, piece) +
                                                         (first + row_of_lane) * Rows::kRowBytes +
                                                         Rows::in_row(row_of_lane, piece));
        const std::uint32_t place =
            (in_stage ^ static_cast<std::uint32_t>(Rows::turn(further))) +
            static_cast<std::uint32_t>((run * Share::kApart + further) * Rows::kRowBytes);
        EXPECT_TRUE(places.emplace(std::pair{row, piece}, place).second)
            << "row " << row << " piece " << piece << " twice";
      }
    }
  }
}
template <int kKeys, class Rows>
void expect_block(const std::map<std::pair<int, int>, std::uint32_t>& places) {
  EXPECT_EQ(places.size(), static_cast<std::size_t>(kKeys * Rows::kPieces));
  for (const auto& [of, place] : places) {
    const auto [row, piece] = of;
    ASSERT_LT(row, kKeys);
    ASSERT_LT(piece, Rows::kPieces);
    const int plain = piece / Rows::kOfChunk * (kKeys * Rows::kRowBytes) + row * Rows::kRowBytes +
                      piece % Rows::kOfChunk * 16;
    // Swizzled, bits 4 to 6 of an address are those xor bits 7 to 9.
    EXPECT_EQ(place,
              static_cast<std::uint32_t>(Rows::kSwizzled ? plain ^ (plain / 128 % 8 * 16) : plain))
        << "row " << row << " piece " << piece;
  }
}
template <int kKeys, class Rows>
void expect_each_piece_once() {
  using Shares = RowShares<kKeys>;
  std::map<std::pair<int, int>, std::uint32_t> all, shared, halves;
  copy<kKeys, Rows, typename Shares::All>(0, all);
  expect_block<kKeys, Rows>(all);
  copy<kKeys, Rows, typename Shares::Most>(0, shared);
  copy<kKeys, Rows, typename Shares::Last>(Shares::Most::kRows, shared);
  expect_block<kKeys, Rows>(shared);
  for (int part = 0; part < 2; ++part)
    copy<kKeys, Rows, typename Shares::Half>(part * Shares::Half::kRows, halves);
  expect_block<kKeys, Rows>(halves);
}

TEST(RowCopies, LayEveryPieceOfABlockOnce) {
  // D 64, 128 and 256 of 16 bits; of e4m3 64 columns are 4 pieces.
  expect_each_piece_once<64, RowsInShared<8>>();
  expect_each_piece_once<64, RowsInShared<16>>();
  expect_each_piece_once<64, RowsInShared<32>>();
  expect_each_piece_once<64, RowsInShared<4>>();
  expect_each_piece_once<128, RowsInShared<4>>();
  expect_each_piece_once<128, RowsInShared<8>>();
  expect_each_piece_once<128, RowsInShared<16>>();
}
TEST(RowCopies, LayBytesOfVAsTheyCome) {
  expect_each_piece_once<64, RowsInShared<4, 64, false>>();
  expect_each_piece_once<128, RowsInShared<8, 128, false>>();
  expect_each_piece_once<64, RowsInShared<16, 128, false>>();
}

TEST(CapFacts, NearScoresAreTheCapsTanh) {
  for (const float cap : {1e-3f, 30.0f, 1e8f}) {
    const CapFacts facts = CapFacts::of(cap);
    for (int i = -1000; i <= 1000; ++i) {
      const double x = 2.0 * i / 1000, square = x * x;
      double factor = facts.near[3];
      for (int k = 2; k >= 0; --k) factor = factor * square + facts.near[k];
      const double exact = cap * std::tanh(kNearOfCap / 2.0 * x);
      EXPECT_NEAR(factor * x, exact, 4e-7 * std::fabs(exact)) << "cap " << cap << " at " << x;
    }
  }
}

}  // namespace
}  // namespace greenfast::cuda::prefill
