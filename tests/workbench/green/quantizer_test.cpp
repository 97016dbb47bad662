// quantize_e4m3: exact on every value of the 16-bit types, any strides, and refusals that say why.
#include "workbench/green/quantizer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include <greenfast/quantize.hpp>

#include "workbench/base/numeric.hpp"

namespace greenfast::workbench::test {
namespace {

class QuantizerOn : public testing::TestWithParam<DeviceKind> {};

TEST_P(QuantizerOn, IsExact) {
  const auto device = open_device(GetParam());
  if (!device && device.status().code() == StatusCode::no_device)
    GTEST_SKIP() << device.status().message();
  ASSERT_TRUE(device) << device.status().message();
  const auto rows = check_quantizer(**device);
  ASSERT_TRUE(rows) << rows.status().message();
  EXPECT_EQ(rows->size(), 9u);
  for (const QuantizerRow& row : *rows) {
    EXPECT_EQ(row.wrong, 0) << row.what << ": " << row.first;
    EXPECT_GE(row.values, 8448) << row.what;
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, QuantizerOn, testing::Values(DeviceKind::cpu, DeviceKind::cuda),
                         [](const auto& parameter) {
                           return std::string(name_of(parameter.param));
                         });

TEST(Quantizer, KeepsTheSignOfZeroAndSaturates) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> values{0.0f,     -0.0f,     448.0f, 464.0f,  1e30f,
                                  infinity, -infinity, NAN,    0x1p-9f, 0x1p-10f};
  const std::vector<std::uint8_t> wanted{0x00, 0x80, 0x7e, 0x7e, 0x7e, 0x7e, 0xfe, 0x7f, 0x01, 0};
  std::vector<float> padded(16, 0.0f);
  std::copy(values.begin(), values.end(), padded.begin());
  std::vector<std::uint8_t> codes(16, 0xaa);
  QuantizeProblem p;
  p.seq = 2;
  p.head_dim = 8;
  p.dtype = DType::f32;
  p.scales = ScaleKind::none;
  p.from = p.to = dense_layout(Order::bhsd, 1, 1, 2, 8);
  ASSERT_TRUE(quantize_e4m3(p, {.from = padded.data(), .to = codes.data()}));
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(codes[i], wanted[i]) << values[i];
}

// [B, S, H, D] values to [B, H, S, D] codes; bytes of other tensors in between stay.
TEST(Quantizer, TakesAnyStridesAndTheCallersScales) {
  constexpr std::int64_t kHeads = 3, kSeq = 5, kDim = 8, kGap = 4;
  std::vector<float> values(kHeads * kSeq * kDim);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = std::sin(static_cast<float>(i)) * 100.0f;
  std::vector<std::uint8_t> codes(kHeads * kSeq * (kDim + kGap), 0xaa);
  std::vector<float> scales{0.25f, 1.0f, 3.0f};
  QuantizeProblem p;
  p.heads = kHeads;
  p.seq = kSeq;
  p.head_dim = kDim;
  p.dtype = DType::f32;
  p.compute_scales = false;
  p.from = dense_layout(Order::bshd, 1, kHeads, kSeq, kDim);
  p.to = dense_layout(Order::bhsd, 1, kHeads, kSeq, kDim);
  p.to.stride = {kHeads * kSeq * (kDim + kGap), kSeq * (kDim + kGap), kDim + kGap, 1};
  ASSERT_TRUE(
      quantize_e4m3(p, {.from = values.data(), .to = codes.data(), .scale = scales.data()}));
  EXPECT_EQ(scales, (std::vector<float>{0.25f, 1.0f, 3.0f})) << "the caller's scales are read";
  for (std::int64_t h = 0; h < kHeads; ++h)
    for (std::int64_t s = 0; s < kSeq; ++s)
      for (std::int64_t d = 0; d < kDim + kGap; ++d) {
        const auto at = static_cast<std::size_t>((h * kSeq + s) * (kDim + kGap) + d);
        if (d >= kDim) {
          EXPECT_EQ(codes[at], 0xaa) << "a gap was written";
          continue;
        }
        const float value = values[static_cast<std::size_t>((s * kHeads + h) * kDim + d)];
        EXPECT_EQ(codes[at], numeric::to_e4m3(
                                 static_cast<double>(value / scales[static_cast<std::size_t>(h)])));
      }
}

TEST(Quantizer, RefusesWithTheReason) {
  std::vector<float> values(64);
  std::vector<std::uint8_t> codes(64);
  QuantizeProblem good;
  good.seq = 8;
  good.head_dim = 8;
  good.dtype = DType::f32;
  good.scales = ScaleKind::none;
  good.from = good.to = dense_layout(Order::bhsd, 1, 1, 8, 8);
  const QuantizeTensors tensors{.from = values.data(), .to = codes.data()};
  const auto refused = [&](auto change, QuantizeTensors t, std::string_view word) {
    QuantizeProblem p = good;
    change(p);
    const Status status = quantize_e4m3(p, t);
    EXPECT_FALSE(status);
    EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
  };
  ASSERT_TRUE(quantize_e4m3(good, tensors));
  refused([](auto& p) { p.dtype = DType::e4m3; }, tensors, "fp32, fp16 or bf16");
  refused([](auto& p) { p.head_dim = 12; }, tensors, "8 to 256");
  refused([](auto& p) { p.seq = -1; }, tensors, "shape [1, 1, -1, 8]");
  refused([](auto& p) { p.from.stride[3] = 2; }, tensors, "contiguous");
  refused([](auto& p) { p.to.stride[2] = 4; }, tensors, "share memory");
  refused([](auto& p) { p.scales = ScaleKind::tensor; }, tensors, "scale is null");
  refused(
      [](auto& p) {
        p.rotate = true;
        p.to.stride = {64, 64, 1, 8};
      },
      tensors, "rotated");
  refused([](auto&) {}, {.from = values.data(), .to = nullptr}, "to is null");
  refused([](auto&) {}, {.from = codes.data() + 1, .to = codes.data()}, "not aligned");
  refused([](auto&) {}, {.from = values.data(), .to = values.data()}, "overlaps");
}

// What V likes: columns of keys one behind the other.
TEST(Quantizer, WritesTransposedCodes) {
  constexpr std::int64_t kHeads = 3, kSeq = 21, kDim = 16;
  std::vector<float> values(kHeads * kSeq * kDim);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(i % 97) * 0.25f - 11.0f;
  QuantizeProblem p;
  p.heads = kHeads;
  p.seq = kSeq;
  p.head_dim = kDim;
  p.dtype = DType::f32;
  p.from = p.to = dense_layout(Order::bhsd, 1, kHeads, kSeq, kDim);
  std::vector<std::uint8_t> rows(values.size()), columns(kHeads * kDim * 32, 0xaa);
  std::vector<float> scale(kHeads), again(kHeads);
  ASSERT_TRUE(quantize_e4m3(p, {values.data(), rows.data(), scale.data()}));
  p.to = transposed_layout(1, kHeads, kSeq, kDim);
  ASSERT_EQ(p.to.stride[3], 32);
  ASSERT_TRUE(quantize_e4m3(p, {values.data(), columns.data(), again.data()}));
  EXPECT_EQ(scale, again);
  for (std::size_t h = 0; h < kHeads; ++h)
    for (std::size_t d = 0; d < kDim; ++d)
      for (std::size_t s = 0; s < 32; ++s)
        ASSERT_EQ(columns[(h * kDim + d) * 32 + s],
                  s < kSeq ? rows[(h * kSeq + s) * kDim + d] : 0xaa);
  p.to.stride[3] = kSeq - 1;
  const Status status = quantize_e4m3(p, {values.data(), columns.data(), again.data()});
  EXPECT_FALSE(status);
  EXPECT_NE(status.message().find("share memory"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace greenfast::workbench::test
