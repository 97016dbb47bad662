// The GPU's merge is the CPU's, within the rounding of its fp32 sums.
#include "backends/cuda/merge.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "tests/backends/cuda/both.hpp"

namespace greenfast::cuda {
namespace {

using test::Both;
using test::Dice;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class MergeOn : public test::OnDevices {
 protected:
  /// Both results, in_place over the second part; `odd` plants Inf and NaN among the elements.
  void expect_same(Dice& dice, const MergeProblem& p, const std::array<std::int64_t, 4>& shape,
                   bool in_place, bool odd) {
    const auto part = [&](const Layout& layout) {
      std::vector<std::byte> bytes = dice.numbers(p.dtype, test::extent(layout, shape));
      if (odd && p.dtype == DType::f32)
        for (std::size_t i = 0; i + 4 <= bytes.size();
             i += 4 * (1 + static_cast<std::size_t>(dice.upto(60)))) {
          const float strange = dice.one_of({kInfinity, -kInfinity, kNan});
          std::memcpy(bytes.data() + i, &strange, 4);
        }
      return bytes;
    };
    const auto lses = [&] {
      std::vector<float> values(static_cast<std::size_t>(p.batch * p.heads * p.seq));
      // Gaps that fp32 weights hold, that only fp64 ones do, that none does; empty parts, and NaN.
      for (float& x : values)
        x = dice.one_of(
            {0.0f, 0.5f, -1.25f, 7.0f, -60.0f, 60.0f, -90.0f, 800.0f, -kInfinity, kInfinity, kNan});
      return values;
    };
    Both a(*device, part(p.a)), b(*device, part(p.b));
    Both own_o(*device, dice.numbers(p.out_dtype, test::extent(p.o, shape)));
    Both lse_a(*device, lses()), lse_b(*device, lses()), own_lse(*device, lses());
    Both &o = in_place ? b : own_o, &lse = in_place ? lse_b : own_lse;
    const auto tensors = [&](bool on_device) {
      MergeTensors t;
      t.a = a.at(on_device);
      t.b = b.at(on_device);
      t.o = o.at(on_device);
      t.lse_a = lse_a.at<float>(on_device);
      t.lse_b = lse_b.at<float>(on_device);
      t.lse = lse.at<float>(on_device);
      return t;
    };
    const Status status = merge(p, tensors(true), there);
    if (status.code() == StatusCode::unsupported) GTEST_SKIP() << status.message();
    ASSERT_TRUE(status) << status.message();
    const Status by_cpu = merge(p, tensors(false), here);
    ASSERT_TRUE(by_cpu) << by_cpu.message();
    ASSERT_TRUE(device->synchronize());
    const float ulp = p.out_dtype == DType::f32   ? 0x1p-23f
                      : p.out_dtype == DType::f16 ? 0x1p-10f
                                                  : 0x1p-7f;
    const std::vector<std::byte> made = o.back(), made_lse = lse.back();
    const auto near = [](float x, float y, float error) {
      return x == y || (std::isnan(x) && std::isnan(y)) || std::fabs(x - y) <= error;
    };
    // Sums of two products below 4 in fp32, then one rounding to the type of O.
    for (std::size_t i = 0; i < made.size() / size_of(p.out_dtype); ++i) {
      const float x = test::number(made, i, p.out_dtype),
                  y = test::number(o.host(), i, p.out_dtype);
      ASSERT_TRUE(near(x, y, 2e-6f + ulp * std::fabs(y))) << i << ": " << x << ", CPU " << y;
    }
    for (std::size_t i = 0; i < made_lse.size() / 4; ++i) {
      const float x = test::number(made_lse, i, DType::f32),
                  y = test::number(lse.host(), i, DType::f32);
      ASSERT_TRUE(near(x, y, 0x1p-22f * std::fabs(y))) << i << ": " << x << ", CPU " << y;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, MergeOn, ::testing::Values(DeviceKind::cpu, DeviceKind::cuda),
                         test::device_name);

TEST_P(MergeOn, IsTheCpus) {
  std::mt19937 engine(4);
  Dice dice(engine);
  for (int n = 0; n < 2 * GREENFAST_TEST_PERCENT; ++n) {
    SCOPED_TRACE(n);
    MergeProblem p;
    p.dtype = dice.one_of({DType::f32, DType::f16, DType::bf16});
    p.out_dtype = dice.one_of({DType::f32, DType::f16, DType::bf16});
    p.batch = 1 + dice.upto(3);
    p.heads = 1 + dice.upto(4);
    p.seq = 1 + dice.upto(40);
    p.head_dim = 8 * (1 + dice.upto(31));
    const std::array shape{p.batch, p.heads, p.seq, p.head_dim};
    for (Layout* layout : {&p.a, &p.b, &p.o})
      *layout = dice.layout(shape, dice.coin() ? 0 : dice.upto(9));
    const bool in_place = p.out_dtype == p.dtype && dice.coin();
    if (in_place) p.o = p.b;
    expect_same(dice, p, shape, in_place, dice.coin());
    if (HasFatalFailure() || IsSkipped()) return;
  }
}

TEST_P(MergeOn, TakesMoreRowsThanAGridHasWarps) {
  std::mt19937 engine(5);
  Dice dice(engine);
  MergeProblem p;
  p.dtype = p.out_dtype = DType::f16;
  p.heads = 3;
  p.seq = GetParam() == DeviceKind::cpu ? 3'000 : 3'000'000;
  p.head_dim = 8;
  const std::array shape{p.batch, p.heads, p.seq, p.head_dim};
  p.a = p.b = p.o = dense_layout(Order::bhsd, p.batch, p.heads, p.seq, p.head_dim);
  expect_same(dice, p, shape, false, false);
}

}  // namespace
}  // namespace greenfast::cuda
