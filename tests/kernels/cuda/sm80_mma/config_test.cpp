// What the tiles of cuda.sm80.mma ask of an SM.
#include "kernels/cuda/sm80_mma/config.hpp"

#include <gtest/gtest.h>

#include <set>

namespace greenfast {
namespace {

TEST(MmaConfigs, EveryHeadDimHasATileForEveryGpu) {
  // Shared memory that a block may use: sm_90, sm_80, sm_89.
  for (const int shared : {227 * 1024, 163 * 1024, 99 * 1024}) {
    for (int head_dim = 8; head_dim <= 256; head_dim += 8) {
      bool fits = false;
      for (const auto& config : cuda::sm80_mma::kConfigs) {
        EXPECT_TRUE(config.valid());
        fits |= config.head_dim >= head_dim && config.fits(shared);
      }
      EXPECT_TRUE(fits) << head_dim << " in " << shared;
    }
  }
}

TEST(MmaConfigs, PlacesInSharedMemoryDoNotOverlap) {
  for (const auto& config : cuda::sm80_mma::kConfigs) {
    // Q lies behind the stages, or in one that is filled once Q is in registers.
    if (!config.q_in_registers) {
      EXPECT_GE(config.q_offset(), config.stages * config.stage_bytes());
    }
    EXPECT_LE(config.q_offset() + config.rows() * config.pitch(), config.shared_bytes());
  }
}

// ldmatrix reads 16 bytes of eight rows at once, and a copy writes a line of a row.
TEST(MmaConfigs, EightRowsLieInDifferentBanksAndALineInOnePiece) {
  for (const auto& config : cuda::sm80_mma::kConfigs) {
    const int line = config.line_chunks();
    for (int chunk = 0; chunk < config.head_dim / 8; ++chunk) {
      std::set<int> banks;
      for (int row = 8; row < 16; ++row) {
        const int at = row * config.pitch() / 16 + (chunk ^ config.phase(row));
        EXPECT_EQ(at / line, (row * config.pitch() / 16 + chunk) / line);
        banks.insert(at % 8);
      }
      EXPECT_EQ(banks.size(), 8U) << "head dim " << config.head_dim << ", chunk " << chunk;
    }
  }
}

}  // namespace
}  // namespace greenfast
