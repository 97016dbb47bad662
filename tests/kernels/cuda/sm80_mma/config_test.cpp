// What the tiles of cuda.sm80.mma ask of an SM.
#include "kernels/cuda/sm80_mma/config.hpp"

#include <gtest/gtest.h>

namespace greenfast {
namespace {

TEST(MmaConfigs, EveryHeadDimHasATileForEveryGpu) {
  // Shared memory that a block may use: sm_90, sm_80, sm_89.
  for (const int shared : {227 * 1024, 163 * 1024, 99 * 1024}) {
    for (int head_dim = 8; head_dim <= 256; head_dim += 8) {
      bool fits = false;
      for (const auto& config : cuda::sm80_mma::kConfigs) {
        EXPECT_TRUE(config.valid());
        fits |= config.head_dim >= head_dim && config.shared_bytes() <= shared;
      }
      EXPECT_TRUE(fits) << head_dim << " in " << shared;
    }
  }
}

TEST(MmaConfigs, PlacesInSharedMemoryDoNotOverlap) {
  for (const auto& config : cuda::sm80_mma::kConfigs) {
    // Q lies behind the stages, or in one that is filled once Q is in registers.
    if (!config.q_in_registers) {
      EXPECT_GE(config.q_offset(), config.kStages * config.stage_bytes());
    }
    EXPECT_LE(config.q_offset() + config.rows() * config.pitch(), config.shared_bytes());
    EXPECT_EQ(config.pitch() / 16 % 2, 1);  // rows of a matrix in different banks
  }
}

}  // namespace
}  // namespace greenfast
