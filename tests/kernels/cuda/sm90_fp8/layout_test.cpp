// cuda.sm90.fp8's permutations, played on the host: the operands as the PTX ISA lays them, with the
// functions that the kernel uses. Needs no GPU and no nvcc.
#include "kernels/cuda/sm90_fp8/layout.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>
#include <vector>

#include "kernels/cuda/sm90_fp8/config.hpp"

namespace greenfast::cuda::fp8 {
namespace {

/// What a lane packs meets its own key in V^T: `key_of_column` in the scores, `key_of_operand` there.
void packs(int (*key_of_column)(int), int (*key_of_operand)(int)) {
  for (int product = 0; product < 4; ++product) {
    std::set<int> used;
    for (int lane = 0; lane < 32; ++lane) {
      for (int word = 0; word < 4; ++word) {
        for (int byte = 0; byte < 4; ++byte) {
          const int index = packed_accumulator(product, word, byte);
          const Place weight = accumulator_place(lane, index);
          const Place operand = operand_place(lane, word, byte);
          EXPECT_EQ(weight.row, operand.row);
          EXPECT_EQ(key_of_column(weight.column), key_of_operand(32 * product + operand.column))
              << lane << ' ' << word << ' ' << byte;
          used.insert(index);
        }
      }
    }
    EXPECT_EQ(used.size(), 16u);  // of a lane: none twice
  }
}
int in_order(int key) { return key; }
TEST(Fp8Layout, PackedWeightsMeetTheirOwnKeysWhereThePassOrdersV) { packs(in_order, key_of_slot); }
TEST(Fp8Layout, PackedWeightsMeetTheirOwnKeysWhereKIsInFours) { packs(key_of_row, in_order); }

TEST(Fp8Layout, SlotsAndRowsHoldEveryKeyOnce) {
  for (int (*key_of)(int) : {key_of_slot, key_of_row}) {
    std::set<int> keys;
    for (int i = 0; i < 128; ++i) keys.insert(key_of(i));
    EXPECT_EQ(keys.size(), 128u);
    EXPECT_EQ(*keys.begin(), 0);
    EXPECT_EQ(*keys.rbegin(), 127);
  }
}

/// The map of K has a row's place among four, 2 half and the next, and the fours.
TEST(Fp8Layout, BoxesOfKHoldTheRowsThatAreExpected) {
  for (int half = 0; half < 2; ++half)
    for (int four = 0; four < 32; ++four)
      for (int two = 0; two < 2; ++two)
        EXPECT_EQ(key_of_row(64 * half + 2 * four + two), 4 * four + 2 * half + two);
}

TEST(Fp8Layout, MasksHideTheColumnsOfKeysFromALimitOn) {
  for (const bool fours : {false, true}) {
    for (int limit = -300; limit <= 300; ++limit) {
      for (int lane = 0; lane < 4; ++lane) {
        for (int half = 0; half < 2; ++half) {
          const int to = columns_to(fours, half, lane, limit);
          for (int n = 8 * half; n < 8 * half + 8; ++n) {
            for (int e = 0; e < 2; ++e) {
              const int column = 8 * n + 2 * lane + e;
              const int key = fours ? key_of_row(column) : column;
              ASSERT_EQ(8 * n + e < to, key < limit)
                  << fours << ' ' << limit << ' ' << lane << ' ' << column;
            }
          }
        }
      }
    }
  }
}

template <int kHeadDim>
void transposes() {
  using At = TransposeTile<kHeadDim>;
  constexpr int kKeys = At::kKeys;
  const auto value = [](int key, int column) {
    return static_cast<std::uint8_t>(key * 37 + column * 101 + key * column);
  };
  // The kernel's first half.
  std::vector<std::uint8_t> shared(static_cast<std::size_t>(kHeadDim * kKeys));
  std::vector<int> written(static_cast<std::size_t>(kHeadDim * At::kWords));
  for (int thread = 0; thread < At::kThreads; ++thread) {
    for (int c = 0; c < 16; ++c) {
      const int column = 16 * At::column_group(thread) + c;
      const int word = At::word(column, At::quad(thread));
      ASSERT_LT(word, kHeadDim * At::kWords);
      ++written[static_cast<std::size_t>(word)];
      for (int i = 0; i < 4; ++i)
        shared[static_cast<std::size_t>(4 * word + i)] =
            value(key_of_slot(4 * At::quad(thread) + i), column);
    }
  }
  EXPECT_TRUE(std::all_of(written.begin(), written.end(), [](int n) { return n == 1; }));
  // A warp's stores of one column each hit every bank once.
  for (int warp = 0; warp < At::kThreads / 32; ++warp) {
    std::set<int> banks;
    for (int lane = 0; lane < 32; ++lane) {
      const int thread = 32 * warp + lane;
      banks.insert(At::word(16 * At::column_group(thread), At::quad(thread)) % 32);
    }
    EXPECT_EQ(banks.size(), 32u) << warp;
  }
  // The second half, into V^T; TMA then copies rows of 128 slots, swizzled, into shared memory.
  std::vector<std::uint8_t> tile(static_cast<std::size_t>(kHeadDim * kKeys));
  for (int u = 0; u < At::kUnits; ++u) {
    const int column = u / (kKeys / 16), unit = u % (kKeys / 16);
    // Four words at once, or two where pairs change places.
    const int together = At::kQuadsOfWarp % 4 == 0 ? 4 : 2;
    for (int first = 0; first < 4; first += together) {
      const int word = At::word(column, 4 * unit + first);
      ASSERT_EQ(word % together, 0);
      for (int i = 0; i < 4 * together; ++i)
        tile[static_cast<std::size_t>(swizzled<128>(column, 16 * unit + 4 * first + i))] =
            shared[static_cast<std::size_t>(4 * word + i)];
    }
  }
  // What product `step` reads as element (n, k) of B: 8 rows lie 1024 bytes apart, the address in
  // the descriptor moves by 32 bytes a step, and bits 4 to 6 are turned by bits 7 to 9.
  for (int step = 0; step < 4; ++step) {
    for (int n = 0; n < kHeadDim; ++n) {
      for (int k = 0; k < 32; ++k) {
        const int address = 32 * step + n / 8 * 1024 + n % 8 * 128 + k;
        const int there = address ^ ((address >> 7 & 7) << 4);
        ASSERT_EQ(tile[static_cast<std::size_t>(there)], value(key_of_slot(32 * step + k), n))
            << step << ' ' << n << ' ' << k;
      }
    }
  }
}
TEST(Fp8Layout, TransposedValuesLieWhereTheProductReadsThem64) { transposes<64>(); }
TEST(Fp8Layout, TransposedValuesLieWhereTheProductReadsThem128) { transposes<128>(); }
TEST(Fp8Layout, TransposedValuesLieWhereTheProductReadsThem256) { transposes<256>(); }

/// wgmma reads Q and K by descriptors: rows of 64 bytes have 8 rows in 512 bytes.
template <int kRowBytes>
void rows_are_read() {
  for (int step = 0; step < kRowBytes / 32; ++step) {
    for (int row = 0; row < 128; ++row) {
      for (int k = 0; k < 32; ++k) {
        const int address = 32 * step + row / 8 * (8 * kRowBytes) + row % 8 * kRowBytes + k;
        const int turned = kRowBytes == 128 ? (address >> 7 & 7) << 4 : (address >> 7 & 3) << 4;
        ASSERT_EQ(address ^ turned, swizzled<kRowBytes>(row, 32 * step + k));
      }
    }
  }
}
TEST(Fp8Layout, RowsOfQAndKAreReadAsTheyLie) {
  rows_are_read<64>();
  rows_are_read<128>();
}

/// Rows of 256 bytes lie in two pieces, each as rows of 128 do.
TEST(Fp8Layout, PiecesOfRowsLieBehindEachOther) {
  for (const int rows : {64, 128}) {
    for (int slice = 0; slice < 8; ++slice) {
      EXPECT_EQ(slice_begin<128>(rows, slice), slice / 4 * rows * 128 + slice % 4 * 32);
      for (int row = 0; row < rows; ++row) {
        for (int k = 0; k < 32; ++k) {
          const int address = slice_begin<128>(rows, slice) + row * 128 + k;
          ASSERT_EQ(address ^ (address >> 7 & 7) << 4, swizzled<128>(rows, slice, Place{row, k}));
        }
      }
    }
  }
}

/// The scores of the rare path: ldmatrix and m16n8k16 on halves, four bytes of k as two pairs.
TEST(Fp8Layout, ScoresComputedAgainAreTheScores) {
  std::array<std::array<int, 32>, 16> q{}, k{};
  for (int row = 0; row < 16; ++row) {
    for (int i = 0; i < 32; ++i) {
      q[static_cast<std::size_t>(row)][static_cast<std::size_t>(i)] = row * 7 + i * i + 1;
      k[static_cast<std::size_t>(row)][static_cast<std::size_t>(i)] = row * row + 3 * i - 11;
    }
  }
  // Word m of a lane: matrix m has the rows that lanes 8 m to 8 m + 7 point to; a lane gets four
  // bytes of row lane / 4.
  const auto loaded = [](const auto& matrix, Place (*point)(int), int lane, int m, int byte) {
    const Place at = point(8 * m + lane / 4);
    return matrix[static_cast<std::size_t>(at.row)]
                 [static_cast<std::size_t>(at.column + 4 * (lane % 4) + byte)];
  };
  // a[half][register][of two], b[i][register][of two] of the kernel.
  const auto a = [&](int lane, int half, int r, int two) {
    const int word = 2 * half + r % 2, pair = r / 2;
    return loaded(q, ldmatrix_a, lane, word, 2 * pair + two);
  };
  const auto b = [&](int lane, int i, int r, int two) {
    return loaded(k, ldmatrix_b, lane, i, 2 * r + two);
  };
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int index = 0; index < 8; ++index) {  // of 16 keys
      const int atom = index / 4, h = index / 2 % 2, e = index % 2;
      int sum = 0;
      for (int i = 2 * atom; i < 2 * atom + 2; ++i) {  // which products go to this atom
        for (int k16 = 0; k16 < 16; ++k16) {           // PTX ISA, m16n8k16: A row g + 8 h, B column
          const int owner = k16 % 8 / 2, upper = k16 / 8, two = k16 % 2;
          sum += a(4 * g + owner, i % 2, h + 2 * upper, two) *
                 b(4 * (2 * t + e) + owner, i, upper, two);
        }
      }
      const Place at = accumulator_place(lane, index);
      int expected = 0;
      for (std::size_t i = 0; i < 32; ++i)
        expected +=
            q[static_cast<std::size_t>(at.row)][i] * k[static_cast<std::size_t>(at.column)][i];
      EXPECT_EQ(sum, expected) << lane << ' ' << index;
    }
  }
}

TEST(Fp8Config, TilesFitAnSmAndItsRegisters) {
  for (const int head_dim : kHeadDims) {
    for (const bool masked : {false, true}) {
      for (const Weights weights : {Weights::exponentials, Weights::curved, Weights::linear}) {
        const Config config{.head_dim = head_dim, .masked = masked, .weights = weights};
        // Beside it: barriers, and what rows keep there (12 bytes of a row when fast, else 8).
        EXPECT_LE(config.shared_bytes() + 4 * 12 * config.rows() * 2 + 512, 227 * 1024) << head_dim;
        for (const int offset :
             {config.k_offset(), config.v_offset(), config.o_offset(), config.q_bytes(),
              config.k_bytes(), config.v_bytes(), config.strip_bytes()})
          EXPECT_EQ(offset % 1024, 0) << head_dim;
        // A consumer that asks for more than the CTA was launched with waits for ever.
        EXPECT_LE(config.producer_registers() + config.warpgroups() * config.consumer_registers(),
                  (config.warpgroups() + 1) * config.launch_registers());
        // Fewer spill (ptxas 13.0).
        EXPECT_GE(config.consumer_registers(), config.warpgroups() == 3 ? 160 : 232);
      }
    }
  }
}

}  // namespace
}  // namespace greenfast::cuda::fp8
