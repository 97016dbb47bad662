// What problems need, and the words for it.
#include <greenfast/features.hpp>

#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace greenfast {
namespace {

Problem plain(DType dtype = DType::f16) { return make_problem(1, 8, 8, 64, 64, 64, dtype); }
constexpr Features kPlain{Feature::in_f16, Feature::out_f16, Feature::exact_accuracy};

TEST(Features, AProblemNeedsWhatItAsksForAndNothingElse) {
  EXPECT_EQ(features_of(plain()), kPlain);
  EXPECT_EQ(features_of(make_problem(3, 16, 16, 1, 4097, 256, DType::f16, Order::bshd)), kPlain);

  Problem p = plain();
  p.mask = Mask::causal(Alignment::bottom_right);
  EXPECT_EQ(features_of(p), kPlain | Feature::causal);
  p.mask = Mask::causal(Alignment::top_left);
  EXPECT_EQ(features_of(p), kPlain | Feature::causal);
  p.mask = Mask::window(5, 0, Alignment::top_left);
  EXPECT_EQ(features_of(p), kPlain | Feature::window);
  p.mask = Mask::window(Mask::kUnbounded, 3, Alignment::top_left);
  EXPECT_EQ(features_of(p), kPlain | Feature::window);

  p = plain();
  p.softcap = 30.0f;
  p.lse = true;
  EXPECT_EQ(features_of(p), (kPlain | Features{Feature::softcap, Feature::lse}));
  p = plain();
  for (const float scale : {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN()}) {
    p.scale = scale;
    EXPECT_EQ(features_of(p), kPlain | Feature::nonpositive_scale) << scale;
  }
  EXPECT_EQ(features_of(make_problem(1, 8, 2, 64, 64, 64, DType::f16)),
            kPlain | Feature::grouped_heads);

  p = plain(DType::e4m3);
  constexpr Features kExactE4m3{Feature::in_e4m3, Feature::exact_accuracy};
  EXPECT_EQ(features_of(p), kExactE4m3 | Feature::out_f16);
  p.v = transposed_layout(1, 8, 64, 64);
  EXPECT_EQ(features_of(p), (kExactE4m3 | Features{Feature::out_f16, Feature::transposed_v}));
  p = plain(DType::e4m3);
  p.scales = ScaleKind::per_head;
  p.out_dtype = DType::f32;
  EXPECT_EQ(features_of(p), (kExactE4m3 | Features{Feature::out_f32, Feature::scales_per_head}));
  p.scales = ScaleKind::tensor;
  p.out_dtype = DType::bf16;
  EXPECT_EQ(features_of(p), (kExactE4m3 | Features{Feature::out_bf16, Feature::scales_tensor}));
  p.accuracy = Accuracy::fast;
  EXPECT_EQ(features_of(p), (Features{Feature::in_e4m3, Feature::out_bf16, Feature::scales_tensor,
                                      Feature::fast_accuracy}));
}

// A value of a later version: nobody takes it, whatever else the problem is.
TEST(Features, AValueWithoutANameIsUnknown) {
  const auto unknown = [](auto member, auto value) {
    Problem p = plain();
    p.*member = static_cast<std::remove_reference_t<decltype(p.*member)>>(value);
    return features_of(p).hold(Feature::unknown);
  };
  EXPECT_TRUE(unknown(&Problem::dtype, 9));
  EXPECT_TRUE(unknown(&Problem::out_dtype, 9));
  EXPECT_TRUE(unknown(&Problem::scales, 4));
  EXPECT_TRUE(unknown(&Problem::accuracy, 2));
  Problem p = plain();
  p.mask.alignment = static_cast<Alignment>(2);
  EXPECT_TRUE(features_of(p).hold(Feature::unknown));
  EXPECT_FALSE(kFeaturesOfAbi1.hold(Feature::unknown));
  EXPECT_FALSE(kFeaturesOfAbi1.hold(Feature::example));
}

// The sets by which others say what they take: with one feature more they would take it unheard.
TEST(Features, TheSharedSetsAreWhatTheyWere) {
  const auto are = [](Features set, int first, int last) {
    for (int bit = 0; bit < 64; ++bit)
      EXPECT_EQ(set.hold(static_cast<Feature>(bit)), bit >= first && bit <= last) << bit;
  };
  are(kFeaturesOfAbi1, static_cast<int>(Feature::in_f32), static_cast<int>(Feature::grouped_heads));
  are(kFeaturesOfServing, static_cast<int>(Feature::value_dim),
      static_cast<int>(Feature::float_mask));
}

TEST(Features, ARefusalNamesWhatIsMissingWhatIsTakenAndWhatToDo) {
  EXPECT_EQ(missing_features(kPlain, kPlain | Feature::lse), "");
  EXPECT_EQ(missing_features(Feature::in_e4m3, {Feature::in_f16, Feature::in_bf16, Feature::lse}),
            "e4m3 inputs; takes fp16 inputs or bf16 inputs: convert Q, K and V");
  EXPECT_EQ(missing_features({Feature::softcap, Feature::example},
                             {Feature::in_f16, Feature::nonpositive_scale}),
            "a softcap, which it does not take: ask for another variant; the example feature, "
            "which it does not take: ask for nothing that nobody offers");
  EXPECT_EQ(missing_features(Feature::fast_accuracy, kFeaturesOfAbi1 | kFeaturesOfServing),
            "fast accuracy, which it does not take: ask for exact accuracy");
  EXPECT_EQ(missing_features(Feature::exact_accuracy, Feature::fast_accuracy),
            "exact accuracy; takes fast accuracy: ask for fast accuracy or for another variant");
  EXPECT_EQ(missing_features(Features::from_bits(std::uint64_t{1} << 50), kFeaturesOfAbi1),
            "an unknown feature, which it does not take: ask for another variant");
}

TEST(Features, EveryFeatureHasAName) {
  for (int bit = 0; bit < 64; ++bit) {
    const auto feature = static_cast<Feature>(bit);
    if ((kFeaturesOfAbi1 | Feature::example).hold(feature)) {
      EXPECT_NE(name_of(feature), "an unknown feature") << bit;
    }
  }
  EXPECT_EQ(to_string(kPlain), "fp16 inputs, an fp16 output, exact accuracy");
  EXPECT_EQ(to_string(Features{}), "");
}

}  // namespace
}  // namespace greenfast
