// What the tiles of cuda.sm90.small ask of an SM.
#include "kernels/cuda/sm90_small/config.hpp"

#include <gtest/gtest.h>

namespace greenfast {
namespace {

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
