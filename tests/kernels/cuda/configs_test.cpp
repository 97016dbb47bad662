// What the production kernels' tiles ask of an SM. prefill's are in sm90_prefill/plan_test.cpp.
#include <gtest/gtest.h>

#include "kernels/cuda/sm80_mma/config.hpp"
#include "kernels/cuda/sm90_small/config.hpp"

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

TEST(SmallConfigs, FitTheirBlocksIntoAnSm) {
  for (std::size_t i = 0; i < cuda::small::kKernels; ++i) {
    for (const bool half : {false, true}) {
      const auto config = cuda::small::config_of(i, half);
      EXPECT_LE((config.shared_bytes() + 1024) * config.blocks_per_sm(), 228 * 1024) << i;
      // TMA writes swizzled tiles at multiples of 1024 bytes; st.async writes 16 bytes.
      for (const int offset : {config.k_offset(), config.v_offset(), config.near_offset()})
        EXPECT_EQ(offset % 1024, 0) << i;
      EXPECT_EQ(config.far_offset() % 16, 0);
      EXPECT_EQ(config.barrier_offset() % 8, 0);
      EXPECT_GE(config.shared_bytes(), config.barrier_offset() + 1024);
    }
  }
}

}  // namespace
}  // namespace greenfast
