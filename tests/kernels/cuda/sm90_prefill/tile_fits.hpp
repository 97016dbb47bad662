// What every tile of sm90_prefill's loop for sequences must keep to. Needs no GPU.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>

#include "kernels/cuda/sm90_prefill/config.hpp"

namespace greenfast {

/// An H200's shared memory for a block, with barriers and tiles on their way beside, and its registers.
inline void expect_tile_fits(const cuda::prefill::Config& config, std::size_t tile) {
  EXPECT_LE(config.shared_bytes() + 1024, 232448) << tile;
  EXPECT_LE(config.consumer_registers() * config.warpgroups + config.producer_registers(),
            config.launch_registers() * (config.warpgroups + 1))
      << tile;
}

}  // namespace greenfast
