// Tiles in software against those of the processor, where it has some: every bit of an instruction,
// and every bit of cpu.flash. And that this program runs at all: the rest of the code for AMX is
// AVX-512 with BF16.
#include "tests/kernels/cpu/amx/tiles.hpp"

#include <gtest/gtest.h>
#include <immintrin.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>

#include "tests/kernels/cpu/subject.hpp"

namespace greenfast {
namespace {

class Processor : public testing::Environment {
 public:
  void SetUp() override {
    if (cpu::detect_isa() < cpu::Isa::avx512bf16) {
      GTEST_SKIP() << "tiles in software want avx512bf16 for the rest; this processor has "
                   << cpu::name_of(cpu::detect_isa());
    }
  }
};
const testing::Environment* const processor = testing::AddGlobalTestEnvironment(new Processor);

struct alignas(64) Config {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};
struct alignas(64) Tile {
  std::uint32_t word[16][16];
};

[[gnu::target("amx-tile,amx-bf16")]] void multiply(const Config& config, const Tile& a,
                                                   const Tile& b, Tile& sums) {
  __asm__ volatile("" ::: "memory");  // GCC's intrinsics do not say all that they read
  _tile_loadconfig(&config);
  _tile_loadd(0, &sums, 64);
  _tile_loadd(1, &a, 64);
  _tile_loadd(2, &b, 64);
  _tile_dpbf16ps(0, 1, 2);
  _tile_stored(0, &sums, 64);
  _tile_release();
  __asm__ volatile("" ::: "memory");
}

void multiply_in_software(const Config& config, const Tile& a, const Tile& b, Tile& sums) {
  namespace tiles = test::tiles;
  tiles::load_config(&config);
  tiles::load(0, &sums, 64);
  tiles::load(1, &a, 64);
  tiles::load(2, &b, 64);
  tiles::dot(0, 1, 2);
  tiles::store(0, &sums, 64);
  tiles::release();
}

/// Words of which one in `each` is whatever 32 bits may be, subnormal, infinite or NaN among it.
void fill(Tile& tile, std::mt19937& random, unsigned each) {
  std::normal_distribution<float> normal;
  for (auto& row : tile.word) {
    for (std::uint32_t& word : row) {
      word = random() % each == 0 ? static_cast<std::uint32_t>(random())
                                  : std::bit_cast<std::uint32_t>(normal(random));
    }
  }
}

// A NaN's payload is not compared: no kernel looks at one.
bool same(std::uint32_t x, std::uint32_t y) {
  const auto nan = [](std::uint32_t bits) { return (bits & 0x7fffffffu) > 0x7f800000u; };
  return x == y || (nan(x) && nan(y));
}

TEST(TilesInSoftware, GiveTheBitsOfTheProcessor) {
  if (!cpu::why_no_amx().empty()) GTEST_SKIP() << cpu::why_no_amx();
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    Config config;
    const auto pick = [&] { return static_cast<std::uint8_t>(random() % 16 + 1); };
    const std::uint8_t m = round % 2 == 0 ? 16 : pick(), k = round % 2 == 0 ? 16 : pick(),
                       n = round % 2 == 0 ? 16 : pick();
    config.rows[0] = config.rows[1] = m;
    config.rows[2] = k;
    config.row_bytes[0] = config.row_bytes[2] = static_cast<std::uint16_t>(4 * n);
    config.row_bytes[1] = static_cast<std::uint16_t>(4 * k);
    Tile a, b, sums;
    const unsigned each = round % 3 == 0 ? 1u << 20 : 5;
    fill(a, random, each);
    fill(b, random, each);
    fill(sums, random, each);
    Tile in_software = sums;
    const unsigned before = _mm_getcsr();
    _mm_setcsr(0x1f80u | (round % 4u) << 13);  // every rounding mode, which neither may heed
    multiply(config, a, b, sums);
    multiply_in_software(config, a, b, in_software);
    _mm_setcsr(before);
    for (int i = 0; i < 16; ++i) {
      for (int j = 0; j < 16; ++j) {
        ASSERT_TRUE(same(sums.word[i][j], in_software.word[i][j]))
            << "round " << round << " row " << i << " column " << j << std::hex << ": "
            << sums.word[i][j] << " and " << in_software.word[i][j];
      }
    }
  }
}

TEST(TilesInSoftware, GiveTheKernelTheBitsOfTheProcessor) {
  if (!cpu::why_no_amx().empty()) GTEST_SKIP() << cpu::why_no_amx();
  const test::Subject real{&kernels::cpu_flash, "avx512amx", "on the processor"};
  const test::Subject in_software = test::subjects().front();
  for (std::uint64_t seed = 1000; seed < 1000 + GREENFAST_TEST_PERCENT; ++seed) {
    const Problem problem = test::random_problem(seed);
    test::Case call(problem, seed);
    ASSERT_TRUE(test::launch(real, call).ok());
    const auto o = call.o;
    const auto lse = call.lse;
    call.poison_output();
    ASSERT_TRUE(test::launch(in_software, call).ok());
    EXPECT_EQ(call.o, o) << "seed " << seed << ", " << to_string(problem);
    EXPECT_EQ(std::memcmp(call.lse.data(), lse.data(), lse.size() * sizeof(float)), 0)
        << "seed " << seed << ", " << to_string(problem);
  }
}

// What the processor would answer by an exception, a kernel must not do here unseen.
TEST(TilesInSoftwareDeathTest, EndWhereTheProcessorWould) {
  namespace tiles = test::tiles;
  EXPECT_DEATH(tiles::zero(0), "without a configuration");
  Config config;
  config.rows[0] = config.rows[1] = config.rows[2] = 16;
  config.row_bytes[0] = config.row_bytes[1] = config.row_bytes[2] = 64;
  tiles::load_config(&config);
  tiles::dot(0, 1, 2);
  EXPECT_DEATH(tiles::zero(3), "tile 3: is not configured");
  EXPECT_DEATH(tiles::dot(0, 1, 1), "three different tiles");
  config.rows[2] = 8;
  tiles::load_config(&config);
  EXPECT_DEATH(tiles::dot(0, 1, 2), "sizes do not fit");
  tiles::release();
  EXPECT_DEATH(tiles::zero(0), "without a configuration");
}

}  // namespace
}  // namespace greenfast
