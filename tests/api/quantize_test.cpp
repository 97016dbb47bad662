// Attention of 16-bit tensors by way of e4m3, from outside: the bits of quantising and attention of the
// codes, scratch, plans without a device, refusals.
#include <greenfast/quantize.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace greenfast {
namespace {

/// Memory at a multiple of 256 bytes, counted.
struct Scratch {
  std::vector<std::unique_ptr<void, decltype(&std::free)>> given;
  std::size_t bytes = 0;
  bool empty_handed = false;

  static void* give(std::size_t bytes, void* context) {
    auto& self = *static_cast<Scratch*>(context);
    self.bytes = bytes;
    if (self.empty_handed) return nullptr;
    self.given.emplace_back(std::aligned_alloc(256, (bytes + 255) / 256 * 256), &std::free);
    return self.given.back().get();
  }
  Options options() {
    Options made;
    made.allocate = give;
    made.allocate_context = this;
    return made;
  }
};

std::vector<float> noise(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

struct Operand {
  std::array<std::int64_t, 4> shape;
  std::vector<float> values;

  Operand(const std::array<std::int64_t, 4>& of, unsigned seed)
      : shape(of), values(noise(of[0] * of[1] * of[2] * of[3], seed)) {}
  TensorView view() { return TensorView::dense(values.data(), DType::f32, shape); }
};

struct Codes {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;

  explicit Codes(Operand& of, bool rotate = false)
      : codes(of.values.size()), scales(static_cast<std::size_t>(of.shape[0] * of.shape[1])) {
    const TensorView from = of.view();
    QuantizeProblem p;
    p.batch = of.shape[0], p.heads = of.shape[1], p.seq = of.shape[2], p.head_dim = of.shape[3];
    p.dtype = DType::f32;
    p.rotate = rotate;
    p.from.stride = p.to.stride = from.stride;
    const Status status = quantize_e4m3(p, {from.data, codes.data(), scales.data()});
    EXPECT_TRUE(status.ok()) << status.message();
  }
  TensorView view(Operand& of) const {
    TensorView made = of.view();
    made.data = const_cast<std::uint8_t*>(codes.data());
    made.dtype = DType::e4m3;
    return made;
  }
};

class Quantized : public ::testing::Test {
 protected:
  Operand q{{2, 4, 37, 64}, 1}, k{{2, 2, 50, 64}, 2}, v{{2, 2, 50, 32}, 3}, o{{2, 4, 37, 32}, 4};
  Scratch scratch;

  /// attention_quantized() is quantize_e4m3() of each tensor, and attention() of the codes.
  void expect_bits_of_its_parts(AttentionParams params, const Quantizing& quantizing) {
    std::vector<float> lse(2 * 4 * 37), want_lse(lse.size());
    params.lse = lse.data();
    Status status = attention_quantized(q.view(), k.view(), v.view(), o.view(), params,
                                        scratch.options(), quantizing);
    ASSERT_TRUE(status.ok()) << status.message();
    const Codes codes_q(q, quantizing.rotate), codes_k(k, quantizing.rotate), codes_v(v);
    Operand want{o.shape, 5};
    params.lse = want_lse.data();
    params.scales = ScaleKind::per_head;
    params.q_scale = codes_q.scales.data();
    params.k_scale = codes_k.scales.data();
    params.v_scale = codes_v.scales.data();
    status = attention(codes_q.view(q), codes_k.view(k), codes_v.view(v), want.view(), params);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(o.values, want.values);
    EXPECT_EQ(lse, want_lse);
  }
};

TEST_F(Quantized, HasTheBitsOfQuantisingAndAttentionOfTheCodes) {
  for (const bool causal : {false, true}) {
    AttentionParams params;
    if (causal) params.mask = {-1, 0, Alignment::bottom_right};
    expect_bits_of_its_parts(params, {});
  }
}

/// The largest difference of O from that of attention() of the values themselves.
float error_of(Operand& q, Operand& k, Operand& v, Operand& o) {
  Operand exact{o.shape, 0};
  const Status status = attention(q.view(), k.view(), v.view(), exact.view());
  EXPECT_TRUE(status.ok()) << status.message();
  float most = 0;
  for (std::size_t i = 0; i < exact.values.size(); ++i)
    most = std::max(most, std::fabs(o.values[i] - exact.values[i]));
  return most;
}

TEST_F(Quantized, OfSmoothedKeysDoesNotMindColumnsFarFromZero) {
  // A bias of some columns, as a projection adds, differs from head to head.
  for (std::size_t i = 0; i < k.values.size(); ++i)
    if (i % 64 < 6) k.values[i] += static_cast<float>(i / (50 * 64)) * 7.0f - 12.0f;
  std::vector<float> lse(2 * 4 * 37), exact_lse(lse.size());
  AttentionParams params;
  params.lse = exact_lse.data();
  ASSERT_TRUE(attention(q.view(), k.view(), v.view(), o.view(), params).ok());
  params.lse = lse.data();
  std::array<float, 2> error{}, lse_error{};
  for (const bool smooth : {false, true}) {
    const Status status = attention_quantized(q.view(), k.view(), v.view(), o.view(), params,
                                              scratch.options(), {.smooth_k = smooth});
    ASSERT_TRUE(status.ok()) << status.message();
    error[smooth] = error_of(q, k, v, o);
    for (std::size_t i = 0; i < lse.size(); ++i)
      lse_error[smooth] = std::max(lse_error[smooth], std::fabs(lse[i] - exact_lse[i]));
  }
  EXPECT_LT(error[1], 0.16f);
  EXPECT_GT(error[0], 2 * error[1]);
  // Q's own rounding moves all scores of a row by its product with the bias.
  EXPECT_LT(lse_error[1], 8.0f);
}

TEST_F(Quantized, OfRotatedRowsMindsColumnsLess) {
  for (std::vector<float>* values : {&q.values, &k.values})
    for (std::size_t i = 0; i < values->size(); ++i)
      if (i % 64 == 5 || i % 64 == 40) (*values)[i] *= 8.0f;
  std::vector<float> lse(2 * 4 * 37), exact_lse(lse.size());
  AttentionParams params;
  params.lse = exact_lse.data();
  ASSERT_TRUE(attention(q.view(), k.view(), v.view(), o.view(), params).ok());
  const std::vector<float> exact = o.values;
  params.lse = lse.data();
  std::array<double, 2> error{}, lse_error{};
  for (const bool rotate : {false, true}) {
    const Status status = attention_quantized(q.view(), k.view(), v.view(), o.view(), params,
                                              scratch.options(), {.rotate = rotate});
    ASSERT_TRUE(status.ok()) << status.message();
    for (std::size_t i = 0; i < exact.size(); ++i)
      error[rotate] += std::pow(static_cast<double>(o.values[i] - exact[i]), 2);
    for (std::size_t i = 0; i < lse.size(); ++i)
      lse_error[rotate] += std::pow(static_cast<double>(lse[i] - exact_lse[i]), 2);
  }
  EXPECT_LT(error[1], 0.6 * error[0]);
  EXPECT_LT(lse_error[1], 0.6 * lse_error[0]);
}

TEST_F(Quantized, HasTheBitsOfRotatingQAndKWhateverElseTheProblemHas) {
  const std::array<float, 4> sinks{0.5f, -1.0f, 2.0f, 0.0f};
  AttentionParams params;
  params.softcap = 3.0f;
  params.sinks = sinks.data();
  params.mask = {-1, 0, Alignment::bottom_right};
  expect_bits_of_its_parts(params, {.rotate = true});
  EXPECT_NE(Codes(q, true).codes, Codes(q).codes);
}

TEST_F(Quantized, MayBeSmoothedAndRotated) {
  for (std::size_t i = 0; i < k.values.size(); ++i)
    k.values[i] = (i % 64 == 5 ? 20.0f : 1.0f) * k.values[i] + (i % 64 < 6 ? 30.0f : 0.0f);
  std::vector<float> lse(2 * 4 * 37), exact_lse(lse.size());
  AttentionParams params;
  params.lse = exact_lse.data();
  ASSERT_TRUE(attention(q.view(), k.view(), v.view(), o.view(), params).ok());
  params.lse = lse.data();
  std::array<float, 4> error{};
  for (const int way : {0, 1, 2, 3}) {
    const Status status =
        attention_quantized(q.view(), k.view(), v.view(), o.view(), params, scratch.options(),
                            {.smooth_k = (way & 1) != 0, .rotate = (way & 2) != 0});
    ASSERT_TRUE(status.ok()) << status.message();
    error[static_cast<std::size_t>(way)] = error_of(q, k, v, o);
  }
  EXPECT_LT(error[3], 0.5f);
  EXPECT_LT(error[3], error[0]);
  EXPECT_LT(error[3], error[1]);
  EXPECT_LT(error[3], error[2]);
  // Q's own rounding moves all scores of a row by its product with the means, some 70 in size.
  for (std::size_t i = 0; i < lse.size(); ++i) ASSERT_NEAR(lse[i], exact_lse[i], 2.5f) << i;
}

TEST_F(Quantized, GivesTheLogSumExpBackWhatWasSubtracted) {
  // Of Q's powers of two e4m3 loses nothing, so what is added is exact but for fp32's rounding.
  for (std::size_t i = 0; i < q.values.size(); ++i)
    q.values[i] = i % (37 * 64) == 0 ? 4.0f : std::clamp(std::round(q.values[i]), -2.0f, 2.0f);
  for (float& x : k.values) x = std::round(x * 4) / 4 + 100.0f;
  std::vector<float> lse(2 * 4 * 37), exact_lse(lse.size());
  AttentionParams params;
  params.lse = exact_lse.data();
  ASSERT_TRUE(attention(q.view(), k.view(), v.view(), o.view(), params).ok());
  params.lse = lse.data();
  const Status status = attention_quantized(q.view(), k.view(), v.view(), o.view(), params,
                                            scratch.options(), {.smooth_k = true});
  ASSERT_TRUE(status.ok()) << status.message();
  for (std::size_t i = 0; i < lse.size(); ++i) ASSERT_NEAR(lse[i], exact_lse[i], 0.6f) << i;
}

TEST_F(Quantized, LeavesTheLogSumExpOfARowWithoutKeysWhereQIsNaN) {
  q.values[64] = std::numeric_limits<float>::quiet_NaN();  // of row 1
  Operand few_k{{2, 2, 3, 64}, 6}, few_v{{2, 2, 3, 32}, 7};
  std::vector<float> lse(2 * 4 * 37);
  AttentionParams params;
  params.lse = lse.data();
  params.mask = {-1, 0, Alignment::bottom_right};
  ASSERT_TRUE(attention_quantized(q.view(), few_k.view(), few_v.view(), o.view(), params,
                                  scratch.options(), {.smooth_k = true})
                  .ok());
  EXPECT_EQ(lse[1], -std::numeric_limits<float>::infinity());
}

TEST_F(Quantized, HasTheLogSumExpOfLargeMeans) {
  for (float& x : q.values) x *= 1e-36f;
  for (float& x : k.values) x = (1.0f + x / 30) * 1e36f;
  std::vector<float> lse(2 * 4 * 37), exact(lse.size());
  AttentionParams params;
  params.lse = exact.data();
  ASSERT_TRUE(attention(q.view(), k.view(), v.view(), o.view(), params).ok());
  params.lse = lse.data();
  ASSERT_TRUE(attention_quantized(q.view(), k.view(), v.view(), o.view(), params, scratch.options(),
                                  {.smooth_k = true})
                  .ok());
  for (std::size_t i = 0; i < lse.size(); ++i) ASSERT_NEAR(lse[i], exact[i], 0.2f) << i;
}

TEST_F(Quantized, RefusesMoreCodesThanMemoryCouldHold) {
  Problem p;
  p.heads_q = p.heads_kv = 1 << 30, p.seq_q = 1, p.seq_kv = 1 << 30, p.head_dim = 256;
  p.head_dim_v = 8;
  p.dtype = p.out_dtype = DType::f16;
  p.q.stride = {std::int64_t{256} << 30, 256, 256, 1};
  p.k.stride = p.v.stride = {0, 0, 0, 1};
  p.o.stride = {std::int64_t{8} << 30, 8, 8, 1};
  const auto facts = device_facts(DeviceKind::cpu);
  ASSERT_TRUE(facts.ok());
  const auto planned = plan_quantized(p, *facts);
  ASSERT_FALSE(planned.ok());
  EXPECT_NE(planned.status().message().find("share memory"), std::string::npos)
      << planned.status().message();
}

TEST_F(Quantized, RefusesToSmoothWhatDoesNotFollow) {
  AttentionParams params;
  params.softcap = 20;
  Status status = attention_quantized(q.view(), k.view(), v.view(), o.view(), params,
                                      scratch.options(), {.smooth_k = true});
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_NE(status.message().find("softcap"), std::string::npos) << status.message();
  const std::array<float, 4> sinks{};
  params = {};
  params.sinks = sinks.data();
  status = attention_quantized(q.view(), k.view(), v.view(), o.view(), params, scratch.options(),
                               {.smooth_k = true});
  EXPECT_NE(status.message().find("sinks"), std::string::npos) << status.message();
}

TEST_F(Quantized, AsksForScratchOnceAndForAsMuchAsItsPlanSays) {
  const Status status =
      attention_quantized(q.view(), k.view(), v.view(), o.view(), {}, scratch.options());
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(scratch.given.size(), 1u);
  Problem p;
  p.batch = 2, p.heads_q = 4, p.heads_kv = 2, p.seq_q = 37, p.seq_kv = 50, p.head_dim = 64;
  p.head_dim_v = 32;
  p.dtype = p.out_dtype = DType::f32;
  p.scale = 0.125f;
  p.q.stride = q.view().stride, p.k.stride = k.view().stride;
  p.v.stride = v.view().stride, p.o.stride = o.view().stride;
  const auto facts = device_facts(DeviceKind::cpu);
  ASSERT_TRUE(facts.ok());
  const auto planned = plan_quantized(p, *facts);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(static_cast<std::int64_t>(scratch.bytes), planned->workspace_bytes);
  // All of it and not a byte less.
  std::unique_ptr<void, decltype(&std::free)> memory(
      std::aligned_alloc(256, (scratch.bytes + 255) / 256 * 256), &std::free);
  Options options;
  options.workspace = memory.get();
  options.workspace_bytes = scratch.bytes;
  EXPECT_TRUE(attention_quantized(q.view(), k.view(), v.view(), o.view(), {}, options).ok());
  options.workspace_bytes -= 1;
  const Status small = attention_quantized(q.view(), k.view(), v.view(), o.view(), {}, options);
  EXPECT_EQ(small.code(), StatusCode::invalid_argument);
  EXPECT_NE(small.message().find(std::to_string(scratch.bytes)), std::string::npos);
}

TEST_F(Quantized, SaysWhatItWantsWhereThereIsNoScratch) {
  const Operand before = o;
  Status status = attention_quantized(q.view(), k.view(), v.view(), o.view());
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("Options::allocate"), std::string::npos) << status.message();
  scratch.empty_handed = true;
  status = attention_quantized(q.view(), k.view(), v.view(), o.view(), {}, scratch.options());
  EXPECT_EQ(status.code(), StatusCode::out_of_memory);
  EXPECT_EQ(o.values, before.values);
}

TEST_F(Quantized, RefusesByNameWhatIsNotDense) {
  const std::array<std::int32_t, 2> used{3, 4};
  AttentionParams params;
  params.used_kv = used.data();
  Status status =
      attention_quantized(q.view(), k.view(), v.view(), o.view(), params, scratch.options());
  EXPECT_EQ(status.code(), StatusCode::unsupported);
  EXPECT_NE(status.message().find("used lengths"), std::string::npos) << status.message();
  params = {};
  params.kv_index = used.data();
  status = attention_quantized(q.view(), k.view(), v.view(), o.view(), params, scratch.options());
  EXPECT_NE(status.message().find("an index of rows"), std::string::npos) << status.message();
  Codes codes_q(q), codes_k(k), codes_v(v);
  status = attention_quantized(codes_q.view(q), codes_k.view(k), codes_v.view(v), o.view(), {},
                               scratch.options());
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("e4m3 already"), std::string::npos) << status.message();
  EXPECT_EQ(scratch.given.size(), 0u);
}

TEST_F(Quantized, OfNoKeysIsZero) {
  k.shape[2] = v.shape[2] = 0;
  const Status status =
      attention_quantized(q.view(), k.view(), v.view(), o.view(), {}, scratch.options());
  ASSERT_TRUE(status.ok()) << status.message();
  for (const float x : o.values) ASSERT_EQ(x, 0.0f);
}

TEST(PlanQuantized, IsOfTheKernelThatLikesKeysBehindEachOther) {
  const std::vector<VariantInfo> all = variants();
  if (std::none_of(all.begin(), all.end(), [](const VariantInfo& row) {
        return row.id == "cuda.sm90.fp8_curved" && row.built;
      }))
    GTEST_SKIP() << "this build has no CUDA kernels";
  Problem p;
  p.batch = 4, p.heads_q = p.heads_kv = 16, p.seq_q = p.seq_kv = 4096, p.head_dim = 128;
  p.dtype = p.out_dtype = DType::f16;
  p.scale = 0.088f;
  const std::int64_t head = 4096 * 128;
  p.q.stride = p.k.stride = p.v.stride = p.o.stride = {16 * head, head, 128, 1};
  const auto facts = model_facts("h200");
  ASSERT_TRUE(facts.ok());
  auto planned = plan_quantized(p, *facts);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned->variant, "cuda.sm90.fp8_curved");
  // A byte for each of 3 x 33.5 M elements, twelve for each of 192 scales, each part to 256.
  EXPECT_GE(planned->workspace_bytes, 3 * 64 * head + 192 * 12);
  EXPECT_LE(planned->workspace_bytes, 3 * 64 * head + 192 * 12 + 7 * 256);
  p.accuracy = Accuracy::fast;
  planned = plan_quantized(p, *facts);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned->variant, "cuda.sm90.fp8_fast");
  // Few queries are cuda.sm90.decode's, which wants V as rows.
  p.accuracy = Accuracy::exact;
  p.seq_q = 1;
  planned = plan_quantized(p, *facts);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned->variant, "cuda.sm90.decode");
  p.seq_q = 4096;
  // Softcap is cuda.sm90.fp8_serving's, which wants V as rows.
  p.accuracy = Accuracy::exact;
  p.softcap = 20;
  planned = plan_quantized(p, *facts);
  ASSERT_TRUE(planned.ok()) << planned.status().message();
  EXPECT_EQ(planned->variant, "cuda.sm90.fp8_serving");
}

TEST(QuantizeE4m3, OfAnEmptyBatchHasTheScaleOfZeros) {
  QuantizeProblem problem{.batch = 0, .heads = 2, .seq = 5, .head_dim = 16, .dtype = DType::f32};
  problem.scales = ScaleKind::tensor;
  problem.compute_scales = true;
  problem.from = problem.to = dense_layout(Order::bhsd, 0, 2, 5, 16);
  float scale = 7.0f, nothing = 0.0f;
  std::uint8_t none = 0;
  const Options options{.device = DeviceKind::cpu};
  Status status = quantize_e4m3(problem, {.from = &nothing, .to = &none, .scale = &scale}, options);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(scale, 1.0f);
  // One that is given stays.
  problem.compute_scales = false;
  scale = 7.0f;
  status = quantize_e4m3(problem, {.from = &nothing, .to = &none, .scale = &scale}, options);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(scale, 7.0f);
  // Nor is anything wanted that is neither written nor read.
  EXPECT_TRUE(quantize_e4m3(problem, {}, options).ok());
  problem.compute_scales = true;
  status = quantize_e4m3(problem, {}, options);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("scale is null"), std::string::npos) << status.message();
}

TEST(QuantizeE4m3, OfBlocksHasTheBitsOfEachBlockAlone) {
  constexpr std::int64_t kHeads = 3, kSeq = 300, kDim = 64;
  std::vector<float> values(kHeads * kSeq * kDim);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = std::sin(static_cast<float>(i)) * static_cast<float>(1 + i / (128 * kDim));
  QuantizeProblem p;
  p.heads = kHeads, p.seq = kSeq, p.head_dim = kDim, p.dtype = DType::f32;
  p.scales = ScaleKind::per_block;
  p.from = p.to = dense_layout(Order::bhsd, 1, kHeads, kSeq, kDim);
  ASSERT_EQ(quantize_scales(p), kHeads * 3);
  EXPECT_EQ(quantize_workspace_bytes(p), kHeads * 3 * 8);
  std::vector<std::uint8_t> codes(values.size()), alone(128 * kDim);
  std::vector<float> scales(kHeads * 3);
  ASSERT_TRUE(quantize_e4m3(p, {values.data(), codes.data(), scales.data()}).ok());
  for (std::int64_t h = 0; h < kHeads; ++h)
    for (std::int64_t block = 0; block < 3; ++block) {
      QuantizeProblem one = p;
      one.heads = 1, one.scales = ScaleKind::tensor;
      one.seq = std::min<std::int64_t>(128, kSeq - block * 128);
      const std::int64_t at = (h * kSeq + block * 128) * kDim;
      float scale = 0;
      ASSERT_TRUE(quantize_e4m3(one, {values.data() + at, alone.data(), &scale}).ok());
      EXPECT_EQ(scales[static_cast<std::size_t>(h * 3 + block)], scale);
      EXPECT_TRUE(std::equal(alone.begin(), alone.begin() + one.seq * kDim, codes.begin() + at));
    }
}

TEST(QuantizeE4m3, OfBlocksOfNoRowsHasNoScale) {
  QuantizeProblem p;
  p.heads = 3, p.seq = 0, p.scales = ScaleKind::per_block;
  p.from = p.to = dense_layout(Order::bhsd, 1, 3, 0, 64);
  EXPECT_EQ(quantize_scales(p), 0);
  EXPECT_TRUE(quantize_e4m3(p, {}).ok());
}

TEST(QuantizeScratch, IsEightBytesForAScaleThatIsComputed) {
  QuantizeProblem p;
  p.batch = 3, p.heads = 5, p.seq = 7;
  EXPECT_EQ(quantize_workspace_bytes(p), 3 * 5 * 8);
  p.scales = ScaleKind::tensor;
  EXPECT_EQ(quantize_workspace_bytes(p), 8);
  p.compute_scales = false;
  EXPECT_EQ(quantize_workspace_bytes(p), 0);
  // One that is given and too small is refused.
  p.compute_scales = true;
  p.from.stride = p.to.stride = {5 * 7 * 64, 7 * 64, 64, 1};
  const std::vector<std::uint16_t> values(3 * 5 * 7 * 64, 0x3c00);
  std::vector<std::uint8_t> codes(values.size());
  float scale = 0;
  alignas(8) std::array<char, 8> room{};
  Options options;
  options.workspace = room.data();
  options.workspace_bytes = 7;
  const QuantizeTensors tensors{values.data(), codes.data(), &scale};
  EXPECT_EQ(quantize_e4m3(p, tensors, options).code(), StatusCode::invalid_argument);
  options.workspace_bytes = 8;
  EXPECT_TRUE(quantize_e4m3(p, tensors, options).ok());
  EXPECT_EQ(codes.front(), 0x7e);
  // Nor one that others read and write: a GPU would wait for counts that never come.
  for (void* memory : {static_cast<void*>(codes.data()), static_cast<void*>(&scale),
                       const_cast<void*>(tensors.from)}) {
    options.workspace = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(memory) & ~7ul);
    const Status status = quantize_e4m3(p, tensors, options);
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    EXPECT_NE(status.message().find("overlaps"), std::string::npos) << status.message();
  }
}

TEST(QuantizeScratch, IsNotAskedForWhereItIsNotWanted) {
  QuantizeProblem p;
  p.seq = 4;
  p.from.stride = p.to.stride = {256, 256, 64, 1};
  const std::vector<std::uint16_t> values(256, 0x3c00);
  std::vector<std::uint8_t> codes(values.size());
  float scale = 0;
  Scratch scratch;
  scratch.empty_handed = true;
  EXPECT_TRUE(quantize_e4m3(p, {values.data(), codes.data(), &scale}, scratch.options()).ok());
  EXPECT_EQ(scratch.bytes, 0u);
}

}  // namespace
}  // namespace greenfast
