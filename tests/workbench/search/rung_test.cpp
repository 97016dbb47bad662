// Rungs of the ladder as sources to start from: the rung's own file in one piece, its neighbours
// left out, and an entry.
#include "workbench/search/rung.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include <greenfast/attention.hpp>

namespace greenfast::workbench::test {
namespace {

std::size_t count_of(const std::string& text, const std::string& what) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size())
    ++count;
  return count;
}

TEST(Rung, EveryRungOfTheRegistryCanBeStartedFrom) {
  const std::vector<std::string> rungs = rungs_of(GREENFAST_SOURCE_DIR);
  const std::set<std::string> known(rungs.begin(), rungs.end());
  for (const VariantInfo& variant : variants()) {
    const bool ladder =
        variant.id.starts_with("cuda.v2c.") || variant.id.starts_with("cuda.stage_c.");
    EXPECT_EQ(known.contains(variant.id), ladder && variant.phases.empty()) << variant.id;
  }
  for (const std::string& id : rungs) {
    const auto source = rung_source(GREENFAST_SOURCE_DIR, id);
    ASSERT_TRUE(source.ok()) << source.status().message();
    std::string symbol = id;
    std::replace(symbol.begin(), symbol.end(), '.', '_');
    EXPECT_EQ(count_of(*source, "extern const core::Kernel "), 1u) << id;
    EXPECT_NE(source->find("extern const core::Kernel " + symbol), std::string::npos) << id;
    EXPECT_NE(source->find("__global__"), std::string::npos) << id << ": the kernel itself";
    EXPECT_EQ(count_of(*source, "#pragma once"), 0u) << id;
    const std::string takes = id.starts_with("cuda.v2c.") ? "kTakesV2c" : "kTakesStageC";
    EXPECT_NE(
        source->find("greenfast::kernels::" + symbol + ", greenfast::dispatch::" + takes + ")"),
        std::string::npos)
        << id;
  }
}

TEST(Rung, TheLoopThatNeighboursShareStandsInTheSource) {
  const auto source = rung_source(GREENFAST_SOURCE_DIR, "cuda.stage_c.stage2");
  ASSERT_TRUE(source.ok());
  EXPECT_EQ(source->find("#include \"kernels/cuda/ladder/22_sm80_stage_c.cuh\""),
            std::string::npos);
  EXPECT_NE(source->find("void attend("), std::string::npos);
  // What every rung of the family includes is included.
  EXPECT_NE(source->find("#include \"kernels/cuda/ladder/stage_c.cuh\""), std::string::npos);
}

TEST(Rung, WhatIsNoneIsRefusedWithThoseThatAre) {
  for (const char* id : {"cuda.sm90.prefill", "cuda.v2c.v9", "cuda.stage_c.stage1_phases"}) {
    const auto refused = rung_source(GREENFAST_SOURCE_DIR, id);
    ASSERT_FALSE(refused.ok()) << id;
    EXPECT_EQ(refused.status().code(), StatusCode::invalid_argument);
    EXPECT_NE(refused.status().message().find("cuda.stage_c.stage2"), std::string::npos);
  }
  const auto empty = rung_source("/", "cuda.v2c.v8");
  ASSERT_FALSE(empty.ok());
  EXPECT_NE(empty.status().message().find("--tree"), std::string::npos);
}

}  // namespace
}  // namespace greenfast::workbench::test
