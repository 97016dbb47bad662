// Names, layouts and counts of the public types.
#include <gtest/gtest.h>

#include <algorithm>
#include <clocale>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>

#include <greenfast/types.hpp>

namespace greenfast {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();

TEST(Types, SizesAndNames) {
  EXPECT_EQ(size_of(DType::f32), 4u);
  EXPECT_EQ(size_of(DType::f16), 2u);
  EXPECT_EQ(size_of(DType::bf16), 2u);
  EXPECT_EQ(size_of(DType::e4m3), 1u);
  EXPECT_EQ(size_of(static_cast<DType>(17)), 0u);
  EXPECT_EQ(name_of(static_cast<DType>(17)), "unknown");
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::e4m3})
    EXPECT_EQ(parse_dtype(name_of(dtype)), dtype);
  EXPECT_EQ(name_of(DeviceKind::cuda), "cuda");
  EXPECT_EQ(name_of(static_cast<DeviceKind>(5)), "unknown");
  EXPECT_EQ(name_of(StatusCode::no_device), "no device");
  EXPECT_EQ(name_of(static_cast<StatusCode>(99)), "unknown");
}

TEST(Types, ParsesTheNamesThatPeopleWrite) {
  EXPECT_EQ(parse_dtype("float32"), DType::f32);
  EXPECT_EQ(parse_dtype("f16"), DType::f16);
  EXPECT_EQ(parse_dtype("bfloat16"), DType::bf16);
  EXPECT_EQ(parse_dtype("fp8"), DType::e4m3);
  for (const char* wrong : {"", " ", "fp", "fp64", "FP16", "fp16 ", "f32 float32", "float3"})
    EXPECT_FALSE(parse_dtype(wrong).has_value()) << wrong;
}

TEST(Types, DenseLayouts) {
  const Layout bhsd = dense_layout(Order::bhsd, 2, 3, 5, 8);
  EXPECT_EQ(bhsd.stride, (std::array<std::int64_t, 4>{120, 40, 8, 1}));
  const Layout bshd = dense_layout(Order::bshd, 2, 3, 5, 8);
  EXPECT_EQ(bshd.stride, (std::array<std::int64_t, 4>{120, 8, 24, 1}));
  // Unchecked lengths must not wrap around to a small stride.
  EXPECT_EQ(dense_layout(Order::bhsd, 1, kHuge, kHuge, 64).stride[0], kHuge);
}

TEST(Types, MakeProblemHasTheDefaults) {
  const Problem p = make_problem(2, 8, 2, 16, 32, 64, DType::e4m3, Order::bshd);
  EXPECT_EQ(p.out_dtype, DType::f16);
  EXPECT_FLOAT_EQ(p.scale, 0.125f);
  EXPECT_TRUE(p.mask.is_none());
  EXPECT_EQ(p.q.stride, dense_layout(Order::bshd, 2, 8, 16, 64).stride);
  EXPECT_EQ(p.o, p.q);
  EXPECT_EQ(p.k.stride, dense_layout(Order::bshd, 2, 2, 32, 64).stride);
  EXPECT_EQ(p.v, p.k);
  EXPECT_EQ(default_out_dtype(DType::f32), DType::f32);
  EXPECT_EQ(default_out_dtype(DType::bf16), DType::bf16);
}

TEST(Types, TextSaysShapeThenWhatIsNotDefault) {
  Problem p = make_problem(1, 8, 8, 512, 512, 64, DType::f16);
  EXPECT_EQ(to_string(p), "1x8x512x64 fp16");
  p = make_problem(4, 32, 8, 1, 8192, 128, DType::bf16);
  p.mask = Mask::causal(Alignment::bottom_right);
  EXPECT_EQ(to_string(p), "4x32/8x1/8192x128 bf16 causal(bottom-right)");
  p.mask = Mask::window(256, -1, Alignment::top_left);
  p.out_dtype = DType::f32;
  p.softcap = 30.5f;
  p.scale = 1.0f;
  p.lse = true;
  EXPECT_EQ(to_string(p),
            "4x32/8x1/8192x128 bf16->fp32 window(256,inf,top-left) scale=1 softcap=30.5 lse");
  p = make_problem(2, 4, 4, 8, 8, 64, DType::e4m3, Order::bshd);
  p.scales = ScaleKind::per_head;
  EXPECT_EQ(to_string(p), "2x4x8x64 e4m3 scales(per-head) bshd");
  p.accuracy = Accuracy::fast;
  EXPECT_EQ(to_string(p), "2x4x8x64 e4m3 scales(per-head) accuracy=fast bshd");
  p.accuracy = Accuracy::exact;
  p.scales = ScaleKind::tensor;
  p.q.stride[0] = 4096;
  EXPECT_EQ(to_string(p), "2x4x8x64 e4m3 scales(tensor) strided");
}

TEST(Types, TextDoesNotDependOnTheLocale) {
  Problem p = make_problem(1, 1, 1, 1, 1, 64, DType::f16);
  p.softcap = 0.5f;
  const char* german = std::setlocale(LC_ALL, "de_DE.UTF-8");
  const std::string text = to_string(p);
  if (german != nullptr) std::setlocale(LC_ALL, "C");
  EXPECT_EQ(text, "1x1x1x64 fp16 softcap=0.5");
}

// The definition of the mask, pair by pair.
std::int64_t count_pairs(const Problem& p) {
  const std::int64_t shift =
      p.mask.alignment == Alignment::bottom_right ? p.seq_kv - p.seq_q : std::int64_t{0};
  std::int64_t pairs = 0;
  for (std::int64_t i = 0; i < p.seq_q; ++i)
    for (std::int64_t j = 0; j < p.seq_kv; ++j)
      pairs += (p.mask.left < 0 || j >= i + shift - p.mask.left) &&
               (p.mask.right < 0 || j <= i + shift + p.mask.right);
  return pairs * p.batch * p.heads_q;
}

TEST(Types, VisiblePairsAreWhatTheMaskSays) {
  std::mt19937 random(7);
  const auto below = [&random](int limit) {
    return std::uniform_int_distribution<std::int64_t>(0, limit - 1)(random);
  };
  for (int round = 0; round < 5000; ++round) {
    Problem p = make_problem(1 + below(3), 1 + below(3), 1, below(24), below(24), 8, DType::f16);
    p.mask.left = below(30) - 2;
    p.mask.right = below(30) - 2;
    p.mask.alignment = below(2) ? Alignment::top_left : Alignment::bottom_right;
    ASSERT_EQ(visible_pairs(p), count_pairs(p)) << to_string(p);
  }
}

TEST(Types, VisiblePairsOfExtremeProblems) {
  const std::int64_t longest = std::int64_t{1} << 30;
  Problem p = make_problem(1, 1, 1, longest, longest, 8, DType::f16);
  EXPECT_EQ(visible_pairs(p), longest * longest);
  p.mask = Mask::causal(Alignment::top_left);
  EXPECT_EQ(visible_pairs(p), longest * (longest + 1) / 2);
  p.mask = Mask::window(kHuge, kHuge, Alignment::bottom_right);
  EXPECT_EQ(visible_pairs(p), longest * longest);
  p.seq_q = 1;
  p.mask = Mask::window(longest, longest, Alignment::bottom_right);
  EXPECT_EQ(visible_pairs(p), longest);
  // What no machine can finish reads as the largest number, never as a small or negative one.
  p = make_problem(1 << 20, 1 << 10, 1, longest, longest, 8, DType::f16);
  EXPECT_EQ(visible_pairs(p), kHuge);
  EXPECT_EQ(visible_pairs(make_problem(1, 1, 1, kHuge, kHuge, 8, DType::f16)), kHuge);
  EXPECT_EQ(visible_pairs(make_problem(1, 1, 1, -5, 7, 8, DType::f16)), 0);
  EXPECT_EQ(visible_pairs(make_problem(0, 1, 1, 5, 7, 8, DType::f16)), 0);
}

TEST(Types, StatusAndResult) {
  EXPECT_TRUE(Status().ok());
  const Status failed(StatusCode::unsupported, "why");
  EXPECT_FALSE(failed);
  EXPECT_EQ(failed.message(), "why");
  const Result<int> value(3);
  ASSERT_TRUE(value);
  EXPECT_EQ(*value, 3);
  const Result<int> error(failed);
  EXPECT_FALSE(error.ok());
  EXPECT_EQ(error.status().code(), StatusCode::unsupported);
}

}  // namespace
}  // namespace greenfast
