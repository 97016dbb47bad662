// The GPU's quantisation is the CPU's, bit for bit; and the short division that it uses, which runs
// on the host too, rounds as fp32's own to every e4m3 code.
#include "backends/cuda/quantize.hpp"

#include <greenfast/quantize.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backends/cuda/quantize_once.hpp"
#include "backends/cuda/quotient.hpp"
#include "core/e4m3.hpp"
#include "kernels/cpu/device/convert.hpp"
#include "tests/backends/cuda/both.hpp"

namespace greenfast::cuda {
namespace {

using test::Both;
using test::Dice;

/// Every value of a 16-bit type over a divisor, by both divisions: how many codes differ.
template <class T>
int wrong_codes(float divisor) {
  const SharedDivisor shared = SharedDivisor::of(divisor);
  if (!shared.quick) return 0;  // then the kernel divides
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = kernels::widen(std::bit_cast<T>(static_cast<std::uint16_t>(bits)));
    const std::uint8_t code = core::to_e4m3(x / divisor);
    wrong += core::to_e4m3(quick_quotient(x, shared)) != code;
    if (std::fabs(x * shared.reciprocal) < 0x1p40f)
      wrong += core::to_e4m3(small_quotient(x, shared)) != code;
  }
  return wrong;
}

/// A float of these bits, of `count` from `first` on.
float drawn_from(std::mt19937& engine, std::uint32_t first, std::uint32_t count) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(first + engine() % count));
}

TEST(Quotient, RoundsEvery16BitValueAsDivisionDoes) {
  std::mt19937 engine(5);
  std::vector<float> divisors{1.0f,
                              448.0f,
                              1.0f / 448.0f,
                              65504.0f / 448.0f,
                              0x1p-59f,
                              0x1p59f,
                              std::nextafter(2.0f, 1.0f),
                              std::nextafter(1.0f, 2.0f)};
  for (int i = 0; i < 300; ++i) {
    // Scales as quantising computes them, and any at all.
    const float x = drawn_from(engine, 0x20000000u, 0x40000000u);
    divisors.push_back(i % 2 == 0 ? core::e4m3_scale(x) : x);
  }
  for (const float divisor : divisors) {
    EXPECT_EQ(wrong_codes<kernels::F16>(divisor), 0) << divisor;
    EXPECT_EQ(wrong_codes<kernels::Bf16>(divisor), 0) << divisor;
  }
}

TEST(Quotient, RoundsTiesAndTheirNeighboursAsDivisionDoes) {
  // Quotients near the middle between two codes, where a last bit decides.
  std::mt19937 engine(6);
  int seen = 0;
  for (int i = 0; i < 400000; ++i) {
    const float divisor = drawn_from(engine, 0x30000000u, 0x20000000u);
    const SharedDivisor shared = SharedDivisor::of(divisor);
    const auto code = static_cast<std::uint32_t>(engine() % 240u);
    const float tie = drawn_from(engine, 0x3c800000u + (code << 20) + 0x80000u - 2u, 5);
    const float near = tie * divisor;
    for (const float x : {near, std::nextafter(near, 0.0f), std::nextafter(near, 1e30f)}) {
      ASSERT_TRUE(shared.quick || (std::bit_cast<std::uint32_t>(divisor) & 0x7fffffu) == 0x7fffffu);
      if (!shared.quick) continue;
      ASSERT_EQ(core::to_e4m3(quick_quotient(x, shared)), core::to_e4m3(x / divisor))
          << x << " / " << divisor;
      ++seen;
    }
  }
  EXPECT_GT(seen, 1000000);
}

TEST(Quotient, LeavesScalesAtTheEndsOfTheRangeToDivision) {
  EXPECT_FALSE(SharedDivisor::of(0x1p-61f).quick);
  EXPECT_FALSE(SharedDivisor::of(0x1p60f).quick);
  EXPECT_FALSE(SharedDivisor::of(std::nextafter(2.0f, 1.0f)).quick);  // a fraction of all ones
  EXPECT_FALSE(SharedDivisor::of(0.0f).quick);
  EXPECT_FALSE(SharedDivisor::of(-1.0f).quick);
  EXPECT_FALSE(SharedDivisor::of(std::numeric_limits<float>::quiet_NaN()).quick);
  EXPECT_FALSE(SharedDivisor::of(std::numeric_limits<float>::infinity()).quick);
}

/// Plays the turns of quantize_once's blocks over a tensor of `scales` scales with `of_scale` items each:
/// whether all come to their end. A block tells of a turn's items as soon as it comes there, and leaves
/// the turn once all items of the scales of kLag turns ago have been told of.
bool all_end(std::int64_t of_scale, std::int64_t scales, std::int64_t blocks) {
  const std::int64_t items = of_scale * scales, step = blocks * kWorkers;
  const std::int64_t turns = (items + step - 1) / step;
  std::vector<std::int64_t> at(static_cast<std::size_t>(blocks), 0);
  std::vector<std::int64_t> told(static_cast<std::size_t>(scales), 0);
  const auto each_scale = [&](std::int64_t block, std::int64_t turn, const auto& visit) {
    for (std::int64_t item = turn * step + block * kWorkers, n = 0; n < kWorkers; ++n, ++item)
      if (turn >= 0 && item < items) visit(told[static_cast<std::size_t>(item / of_scale)]);
  };
  for (std::int64_t b = 0; b < blocks; ++b) each_scale(b, 0, [](std::int64_t& seen) { ++seen; });
  for (bool moved = true; moved;) {
    moved = false;
    for (std::int64_t b = 0; b < blocks; ++b) {
      std::int64_t& turn = at[static_cast<std::size_t>(b)];
      while (turn < turns + kLag) {
        bool ready = true;
        each_scale(b, turn - kLag, [&](std::int64_t& seen) { ready = ready && seen == of_scale; });
        if (!ready) break;
        each_scale(b, ++turn, [](std::int64_t& seen) { ++seen; });
        moved = true;
      }
    }
  }
  return std::all_of(at.begin(), at.end(), [&](std::int64_t t) { return t == turns + kLag; });
}

TEST(QuantizeOnce, BlocksDoNotWaitForEachOtherForever) {
  std::mt19937 engine(9);
  Dice dice(engine);
  for (int i = 0; i < 3000; ++i) {
    const std::int64_t blocks = 1 + dice.upto(7), step = blocks * kWorkers;
    const std::int64_t of_scale = 1 + dice.upto(kLag * step);
    ASSERT_TRUE(OnceTensors::reaches(static_cast<std::uint64_t>(of_scale),
                                     static_cast<std::uint64_t>(step)));
    ASSERT_TRUE(all_end(of_scale, 1 + dice.upto(12), blocks))
        << of_scale << " items a scale on " << blocks << " blocks";
  }
}

TEST(QuantizeOnce, RefusesWhatTheyWouldWaitForForever) {
  for (std::int64_t blocks = 1; blocks < 6; ++blocks) {
    const std::int64_t too_many = (kLag + 1) * blocks * kWorkers + 1;
    EXPECT_FALSE(all_end(too_many, 2, blocks));
    EXPECT_FALSE(OnceTensors::reaches(static_cast<std::uint64_t>(too_many),
                                      static_cast<std::uint64_t>(blocks * kWorkers)));
  }
}

class QuantizeOn : public test::OnDevices {
 protected:
  void expect_same(Dice& dice, const QuantizeProblem& p, std::size_t skew, bool odd) {
    const std::array<std::int64_t, 4> shape{p.batch, p.heads, p.seq, p.head_dim};
    std::vector<std::byte> values = dice.numbers(p.dtype, test::extent(p.from, shape));
    if (odd) {
      const std::size_t size = size_of(p.dtype);
      // Inf, NaN, zeros and the smallest number, of 16 bits or the upper half of 32.
      for (std::size_t i = 0; i + size <= values.size();
           i += size * (1 + static_cast<std::size_t>(dice.upto(90)))) {
        const auto half = static_cast<std::uint16_t>(
            p.dtype == DType::f16 ? dice.one_of({0x7c00, 0xfc00, 0x7e00, 0x0000, 0x8000, 0x0001})
                                  : dice.one_of({0x7f80, 0xff80, 0x7fc0, 0x0000, 0x8000, 0x0001}));
        std::memcpy(values.data() + i + size - 2, &half, 2);
        if (size == 4 && dice.upto(3) == 0) {  // of fp32 the smallest there is, of either sign
          const std::uint32_t least = dice.one_of({0x00000001u, 0x80000001u});
          std::memcpy(values.data() + i, &least, 4);
        }
      }
    }
    std::vector<float> scales(static_cast<std::size_t>(
        std::max({quantize_scales(p), p.batch * p.heads, std::int64_t{1}})));
    for (float& x : scales) x = dice.one_of({1.0f, 0.25f, 0.0072f, 3e-20f, 5e18f});
    const auto scratch = static_cast<std::size_t>(quantize_workspace_bytes(p));
    // With scratch, where values are read once, and without.
    for (const bool with : {true, false}) {
      Both from(*device, values, skew * size_of(p.dtype));
      Both to(*device,
              std::vector<std::byte>(static_cast<std::size_t>(test::extent(p.to, shape)),
                                     std::byte{0xa5}),
              skew);
      Both scale(*device, scales);
      Both room(*device, std::vector<std::byte>(scratch + 1, std::byte{7}));
      const auto tensors = [&](bool on_device) {
        return QuantizeTensors{from.at(on_device), to.at(on_device), scale.at<float>(on_device)};
      };
      Status status = quantize_e4m3(p, tensors(false), here);
      ASSERT_TRUE(status.ok()) << status.message();
      Options options = there;
      if (with && scratch > 0) {
        options.workspace = room.at(true);
        options.workspace_bytes = scratch;
      }
      status = quantize_e4m3(p, tensors(true), options);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_TRUE(device->synchronize().ok());
      const std::string what = std::to_string(p.batch) + "x" + std::to_string(p.heads) + "x" +
                               std::to_string(p.seq) + "x" + std::to_string(p.head_dim) +
                               (p.rotate ? " rotated" : "") + (odd ? " with strange values" : "") +
                               (with ? " and scratch" : "");
      ASSERT_TRUE(scale.back() == scale.host()) << "scales of " << what;
      ASSERT_TRUE(to.back() == to.host()) << "codes of " << what;
    }
  }
};

TEST_P(QuantizeOn, GivesTheCpusBits) {
  std::mt19937 engine(7);
  Dice dice(engine);
  for (int i = 0; i < 250; ++i) {
    QuantizeProblem p;
    p.dtype = dice.one_of({DType::f16, DType::bf16, DType::f32});
    p.batch = 1 + dice.upto(3);
    p.heads = 1 + dice.upto(8);
    p.seq = dice.one_of({0, 1, 7, 64, 130, 513, 2048, 5000});
    if (p.seq > 1000) p.batch = 1, p.heads = 1 + dice.upto(2);
    p.head_dim = 8 * (1 + dice.upto(31));
    p.scales = dice.one_of(
        {ScaleKind::per_head, ScaleKind::per_block, ScaleKind::tensor, ScaleKind::none});
    p.compute_scales = dice.upto(3) != 0;
    const std::array<std::int64_t, 4> shape{p.batch, p.heads, p.seq, p.head_dim};
    // Rows that begin at multiples of 16 bytes, and any.
    p.from = dice.layout(shape, dice.coin() ? 0 : 8 * dice.upto(2) + dice.upto(1) * dice.upto(7));
    p.to = dice.layout(shape, dice.coin() ? 0 : 8 * dice.upto(2) + dice.upto(1) * dice.upto(7));
    if (dice.upto(3) == 0) {  // columns, which begin at multiples of 16 or anywhere
      const std::int64_t column = dice.coin() ? p.seq / 16 * 16 + 16 : p.seq + 1 + dice.upto(3);
      p.to.stride = {p.heads * p.head_dim * column, p.head_dim * column, 1, column};
    } else {
      p.rotate = dice.coin();
    }
    expect_same(dice, p, dice.coin() ? 0 : static_cast<std::size_t>(dice.upto(7)), dice.coin());
    if (HasFatalFailure()) return;
  }
}

TEST_P(QuantizeOn, GivesTheCpusBitsOfManyHeadsAndLongOnes) {
  std::mt19937 engine(8);
  Dice dice(engine);
  // Many turns of all blocks, heads of several turns, and one that is too large for one launch.
  for (const auto& [batch, heads, seq, dim] : {std::array<std::int64_t, 4>{1, 300, 200, 64},
                                               {2, 40, 1024, 128},
                                               {1, 2, 9000, 128},
                                               {1, 1, 60000, 128},
                                               {70000, 1, 2, 8}}) {
    QuantizeProblem p;
    p.batch = batch, p.heads = heads, p.seq = seq, p.head_dim = dim;
    p.from.stride = p.to.stride = {heads * seq * dim, seq * dim, dim, 1};
    for (const bool rotate : {false, true}) {
      p.rotate = rotate;
      p.scales = rotate && seq > 128 ? ScaleKind::per_block : ScaleKind::per_head;
      expect_same(dice, p, 0, true);
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, QuantizeOn, ::testing::Values(DeviceKind::cpu, DeviceKind::cuda),
                         test::device_name);

}  // namespace
}  // namespace greenfast::cuda
