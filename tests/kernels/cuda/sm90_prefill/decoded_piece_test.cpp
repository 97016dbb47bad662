// Which bytes of V the lanes of a warp decode, and where they lay them: all of them once, and never two of
// eight lanes in one bank, which is 16 bytes of every 128.
#include "kernels/cuda/sm90_prefill/decoded_piece.hpp"

#include <gtest/gtest.h>

#include <set>

namespace greenfast::cuda::prefill {
namespace {

template <int kRowBytes>
void expect_whole_and_free_of_conflicts() {
  using Piece = DecodedPiece<kRowBytes>;
  constexpr int kKeys = 64, kHalfColumns = kRowBytes / 8;  // chunks of 16 bytes in a row of fp16
  std::set<int> read, written;
  for (int first = 0; first < kKeys; first += Piece::kRows) {
    for (int phase = 0; phase < 32; phase += 8) {
      std::set<int> read_banks, written_banks[2];
      for (int lane = phase; lane < phase + 8; ++lane) {
        const Piece piece = Piece::of(lane);
        const int row = first + piece.row;
        EXPECT_LT(piece.row, Piece::kRows);
        const int from = row * kRowBytes + 16 * piece.column;
        EXPECT_TRUE(read.insert(from).second) << "lane " << lane << " reads what another has";
        EXPECT_TRUE(read_banks.insert(from % 128).second) << "lane " << lane;
        for (int half = 0; half < 2; ++half) {
          const int to = decoded_place(kKeys, row, 2 * piece.column + half);
          EXPECT_EQ(to, decoded_place(kKeys, row, 2 * piece.column) ^ 16 * half);
          EXPECT_TRUE(written.insert(to).second) << "lane " << lane << " overwrites another's";
          EXPECT_TRUE(written_banks[half].insert(to % 128).second) << "lane " << lane;
        }
      }
    }
  }
  EXPECT_EQ(read.size(), kKeys * kRowBytes / 16u);
  EXPECT_EQ(written.size(), static_cast<std::size_t>(kKeys * kHalfColumns));
  EXPECT_EQ(*written.begin(), 0);
  EXPECT_EQ(*written.rbegin(), kKeys * kRowBytes * 2 - 16);
}

TEST(DecodedPiece, OfRowsOf64Columns) { expect_whole_and_free_of_conflicts<64>(); }
TEST(DecodedPiece, OfRowsOf128Columns) { expect_whole_and_free_of_conflicts<128>(); }

TEST(DecodedPiece, LiesWhereTmaWouldHaveLaidFp16) {
  // Rows of 128 bytes, swizzled: bits 4 to 6 of an address are those xor bits 7 to 9.
  for (int row = 0; row < 64; ++row) {
    for (int column = 0; column < 16; ++column) {
      const int plain = column / 8 * 64 * 128 + row * 128 + column % 8 * 16;
      EXPECT_EQ(decoded_place(64, row, column), plain ^ (plain / 128 % 8 * 16));
    }
  }
}

}  // namespace
}  // namespace greenfast::cuda::prefill
