// Shapes, layouts, distributions: what a user types, and inputs that never change.
#include "workbench/cases/workload.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numbers>
#include <set>

#include "workbench/base/numeric.hpp"
#include "workbench/base/sha256.hpp"
#include "workbench/cases/problem_codec.hpp"
#include "workbench/reference/oracle.hpp"

namespace greenfast::workbench::test {
namespace {

std::string error_of(std::string_view text) {
  const auto parsed = parse_shapes(text, {});
  return parsed ? "accepted" : parsed.status().message();
}

TEST(Shapes, NamesAndTexts) {
  const auto parsed = parse_shapes("small, mission,4x32/8x1/8192x128", {});
  ASSERT_TRUE(parsed) << parsed.status().message();
  ASSERT_EQ(parsed->size(), 3u);
  EXPECT_EQ((*parsed)[0].name, "small");
  EXPECT_EQ((*parsed)[0].problem.seq_q, 32);
  EXPECT_EQ((*parsed)[1].problem.seq_kv, 512);
  const Problem& p = (*parsed)[2].problem;
  EXPECT_EQ((*parsed)[2].name, "4x32/8x1/8192x128");
  EXPECT_EQ(p.batch, 4);
  EXPECT_EQ(p.heads_q, 32);
  EXPECT_EQ(p.heads_kv, 8);
  EXPECT_EQ(p.seq_q, 1);
  EXPECT_EQ(p.seq_kv, 8192);
  EXPECT_EQ(p.head_dim, 128);
}

TEST(Shapes, EveryNamedShapeAndSuiteParsesInEveryDtypeAndLayout) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::e4m3})
    for (const auto& layout : layout_table()) {
      if (!is_for(layout.id, dtype)) continue;
      ProblemDefaults defaults;
      defaults.dtype = dtype;
      defaults.layout = layout.id;
      for (const auto& row : shape_table())
        EXPECT_TRUE(parse_shapes(row.name, defaults)) << row.name << ' ' << layout.name;
      for (const auto& row : suite_table()) {
        const auto parsed = parse_shapes(row.name, defaults);
        EXPECT_TRUE(parsed) << row.name << ": " << parsed.status().message();
      }
    }
}

TEST(Shapes, SuiteV2cBringsItsOwnMasks) {
  const auto parsed = parse_shapes("v2c", {});
  ASSERT_TRUE(parsed);
  ASSERT_EQ(parsed->size(), 5u);
  EXPECT_EQ((*parsed)[1].name, "v2c-a causal");
  EXPECT_TRUE((*parsed)[0].problem.mask.is_none());
  EXPECT_TRUE((*parsed)[1].problem.mask.is_causal());
  EXPECT_TRUE((*parsed)[3].problem.mask.is_causal());
  EXPECT_EQ((*parsed)[4].problem.head_dim, 128);
}

TEST(Shapes, ErrorsNameTheItemAndWhatIsPossible) {
  for (const auto& [text, part] :
       {std::pair{"", "item 1 is empty"},
        {"small,,mission", "item 2 is empty"},
        {"small,", "item 2 is empty"},
        {"huge", "'huge': unknown name"},
        {"1x8x512", "has 3 fields"},
        {"1x8x512x64x2", "has 5 fields"},
        {"1x8xabcx64", "field S is 'abc'"},
        {"1x8x-3x64", "field S is '-3'"},
        {"1x8x x64", "attribute 'x64'"},
        {"1x8x16x64 chunk=0",
         "chunk is 0: it may be a whole number "
         "from 1 to 2^30; leave chunk out"},
        {"1x8x16x64 pages=0", "pages is 0: it may be a whole number"},
        {"1x8x16x64 pages=-16", "pages is -16: it may be"},
        {"1x8x1e9x64", "field S is '1e9'"},
        {"1x8x99999999999999999999x64", "field S is"},
        {"1x8/3x16x64", "'1x8/3x16x64'"},
        {"2/3x8x512x64", "field B takes one number"},
        {"1x8x512x64/y", "field D is '64/y'"},
        {"1x8x512x7", "'1x8x512x7'"},
        {"1x8x512x512", "'1x8x512x512'"},
        {"2000000000x2000000000x2000000000x64", "more than 2^56"},
        {"2282x4x4228191x64 mask=bool", "an array mask of more than 2^56"},
        {"1x8x5/x64", "field S"},
        {"65537x2x1x64 used-kv", "65537 sequences"},
        {"1x8x512x64\n1x8", "fields"}}) {
    const std::string message = error_of(text);
    EXPECT_NE(message.find(part), std::string::npos) << text << " -> " << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << "one line";
  }
  EXPECT_NE(error_of("huge").find("mission"), std::string::npos);
  EXPECT_NE(error_of("huge").find("v2c"), std::string::npos);
}

TEST(Shapes, AttributesThatSayTheSameAreRefusedAndBothNamed) {
  for (const auto& [text, part] :
       {std::pair{"1x8x16x64 pages=16 pages=32",
                  "attribute 'pages=32' stands behind 'pages=16', and each may stand there once"},
        {"1x8x16x64 causal=top-left causal", "'causal' stands behind 'causal=top-left'"},
        {"1x8x16x64 lse used-kv lse", "'lse' stands behind 'lse'"},
        {"1x8x16x64 causal window=3",
         "'window=3' stands behind 'causal', and both say which keys a query sees: keep one"},
        {"1x8x16x64 window=3:0 lse causal=top-left", "stands behind 'window=3:0'"}}) {
    const std::string message = error_of(text);
    EXPECT_NE(message.find(part), std::string::npos) << text << " -> " << message;
  }
  // Behind a name they go after what the name stands for: llama4 has chunks of 8192.
  EXPECT_EQ((*parse_shapes("llama4 chunk=16 window=3", {}))[0].problem.chunk, 16);
  EXPECT_EQ(error_of("1x8x16x64 packed-q used-q causal, 1x8x16x64 causal"), "accepted");
}

TEST(Shapes, AMaskIsAsLargeAsTheDimensionsThatItHas) {
  EXPECT_EQ(error_of("2282x4x4228191x64 mask=bool:hk"), "accepted");
}

TEST(Shapes, AWindowWithoutBoundsIsNoMask) {
  const auto unbounded = parse_shapes("1x8x16x64 window=-1:-1", {}),
             plain = parse_shapes("1x8x16x64", {});
  ASSERT_TRUE(unbounded && plain);
  EXPECT_EQ((*unbounded)[0].problem, (*plain)[0].problem);
}

TEST(Shapes, ManyItemsAreRefusedNotExpanded) {
  std::string text = "small";
  for (int i = 0; i < 5000; ++i) text += ",small";
  EXPECT_NE(error_of(text).find("more than"), std::string::npos);
}

TEST(Inputs, DependOnlyOnTheCase) {
  // SHA-256 over the bytes of Q, K, V and scales; a change here changes every recorded result.
  const std::pair<const char*, const char*> golden[] = {
      {"normal", "57aa8a9d9e1c4c096d2569043d42df449b49a18edf469b6e608cec2d8f160936"},
      {"permutation", "d3ba264f830bed31bcf7fe99d30994291f86b64ea30284c28909a023e930db1d"},
      {"outliers", "500903aa4e8f430e518bc241c089318463c2d92645a73a7b24a366d187d9385c"},
      {"rising_max", "fd5a048b30eaf117a0d9529aad1fbe036a24773059618b04820fb6d35bbfadc4"},
      {"large_logits", "5eecafa28848fadbc8f3f106e2ab113af700781c422334d4033b63f0f9bcbd56"},
      {"constant_v", "2fd6e7ba080a830f60d514f3ffe5df5d269ca47e2ca5a98afc07497fb0393cd3"},
      {"small_normal", "7a4fdee0ad59c8c7152dac6b9e8a8aa1bd1d8b38b70074dd6d6d8cdb757fd4c5"},
      {"faint_tail", "5de8edf58bc463f628472aa78f954566b524e8e3b826fcf5af3f43c997a02569"},
      {"recent_keys", "b23ce4f8c4e2b0896d9a5a2d8bde93b6e3af7a4f09b064ca0a478ac2f5e88b58"},
      {"one_key", "a042a5a5b21e6694c5d2c33bbeac4fcc67044b8152bede6db218b96671415867"},
      {"far_offsets", "78387d940c2e6c9c90be0149be2866f26fa559dc9757ce7559ab6b2e01f708de"},
      {"huge_scores", "cf183257741ea22f857f0a5e7777c898920504c87d2b68f0cc54c524ce48556e"},
      {"large_softcap", "196920d80304b2e4afe5b0b35448ab51fbad1cd38be8393598e9a3775839b63c"},
      {"long_rows", "4f5dc4f6eec860d50d2ade124cef02054da30db9c9f2e4138802d38205ef1111"},
      {"dead_rows", "23f50db4021ca64135378991c65ca64253920ec2d55857ff8480213f653985f3"},
      {"extreme_v", "9f5bfe5866ce4bfed4d92475db25f4dcb5c202717d4bcf7b41c24dfa87eccfd9"},
      {"tiny_values", "d502824e4327c7a282e81333f5d9b7bf487b06d5d27c99e3d11def793de34b00"},
      {"nan_value", "51af6662170f69ebf6beb8cf522250c090db1ec208a6c5e59a69edb93dc18cfd"},
      {"serving", "67830de78aaa25b32adbf381619a485e59b79f93cee74de6664c576ecebfa806"},
      {"shared_top", "b1809f29ed02d43db8df59a43d215147167be64d837d4e266f671e64b640de73"},
      {"huge_heads", "f5c67f6f5409b8127b5fe05b75f23d8c1e752f087bb1a3a79b07a7588e134d94"},
  };
  std::size_t n = 0;
  for (const auto& row : distribution_table()) {
    Case c;
    c.problem = make_problem(2, 4, 2, 33, 65, 64, n % 2 ? DType::e4m3 : DType::f16);
    if (n % 2) c.problem.scales = ScaleKind::per_head;
    c.problem.mask = Mask::causal(Alignment::top_left);
    c.distribution = row.id;
    c.seed = 3 + n;
    ASSERT_LT(n, std::size(golden));
    EXPECT_EQ(golden[n].first, std::string(row.name));
    EXPECT_EQ(digest(generate(c)), golden[n].second) << row.name;
    ++n;
  }
}

TEST(Inputs, HugeScoresAreFiniteInUnitsOfLog2AndReachAlmostThatFar) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::e4m3})
    for (const std::int64_t dim : {8, 40, 64, 256}) {
      Problem asked = make_problem(1, 4, 4, 512, 512, dim, dtype);
      double largest = 0;
      for (const Problem& p : problems_of(Distribution::huge_scores, asked)) {
        Case c;
        c.problem = p;
        c.distribution = Distribution::huge_scores;
        const Inputs in = generate(c);
        const auto factor = [](const std::vector<float>& scale) {
          return scale.empty() ? 1.0 : static_cast<double>(scale[0]);
        };
        for (std::int64_t i = 0; i < p.seq_q; ++i)
          for (std::int64_t j = 0; j < p.seq_kv; ++j) {
            double s = 0;
            for (std::int64_t d = 0; d < dim; ++d)
              s += numeric::load(dtype, in.q.data(), i * dim + d) *
                   numeric::load(dtype, in.k.data(), j * dim + d);
            s *= factor(in.q_scale) * factor(in.k_scale);
            ASSERT_LT(std::fabs(s), 0x1p128);
            largest = std::max(largest, std::fabs(s * static_cast<double>(p.scale)));
          }
        EXPECT_LT(largest * std::numbers::log2e, 0x1p128);
      }
      EXPECT_GT(largest, 0x1p126) << name_of(dtype) << ' ' << dim;
    }
}

TEST(Inputs, ArraysDependOnlyOnTheCase) {
  // SHA-256 over Q, K, V and the arrays: of another seed, order or length they would be others.
  const std::pair<const char*, const char*> golden[] = {
      {"4x4/2x37/70x16 packed sinks alibi=per-batch-head",
       "d8c074d88066e0ed0e48080b5686376abbf821ff5e8ff36e7dd6e05c32e4c80a"},
      {"5x4/2x1/150x16 pages=16 used-kv kv-start",
       "d80e98d38777026d730d50ca1f953ca7d40f96cfea52c701918e1d21ea424878"},
      {"3x2x9/40x16 kv-index used-kv used-q mask=float:bqk lengths=log-uniform:4",
       "88a4ab605cabdcfdfbdab28a64f951f67fe2271cb419e14ccbc358bdc139fc6a"},
  };
  for (const auto& [shape, expected] : golden) {
    const auto problems = parse_shapes(shape, {});
    ASSERT_TRUE(problems) << problems.status().message();
    Case c;
    c.problem = problems->front().problem;
    c.lengths = problems->front().lengths;
    EXPECT_EQ(digest(generate(c)), expected) << shape;
    c.seed = 1;
    EXPECT_NE(digest(generate(c)), expected) << shape;
  }
}

TEST(Inputs, OwnProblemsAreCheap) {
  for (const auto& row : distribution_table()) {
    const Problem asked = make_problem(2, 8, 8, 512, 512, 64, DType::f16);
    for (const Problem& p : problems_of(row.id, asked)) {
      if (!has_own_problem(row.id)) {
        EXPECT_EQ(visible_pairs(p), visible_pairs(asked)) << row.name;
        continue;
      }
      EXPECT_LE(visible_pairs(p), 210000) << row.name << ": a tenth of mission at most";
    }
  }
}

TEST(Inputs, AnotherSeedGivesOtherValues) {
  Case c;
  c.problem = make_problem(1, 2, 2, 16, 16, 64, DType::f32);
  const std::string first = digest(generate(c));
  c.seed = 1;
  EXPECT_NE(digest(generate(c)), first);
}

std::vector<double> dense(const Problem& p, const std::vector<std::byte>& bytes,
                          const Layout& layout, std::int64_t heads, std::int64_t seq) {
  std::vector<double> out;
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < heads; ++h)
      for (std::int64_t s = 0; s < seq; ++s)
        for (std::int64_t d = 0; d < p.head_dim; ++d)
          out.push_back(numeric::load(
              p.dtype, bytes.data(),
              b * layout.stride[0] + h * layout.stride[1] + s * layout.stride[2] + d));
  return out;
}

TEST(Inputs, LayoutsHoldTheSameValuesAndNaNBetweenThem) {
  Case c;
  c.problem = make_problem(2, 4, 2, 7, 9, 24, DType::bf16);
  const Inputs base = generate(c);
  const auto q = dense(c.problem, base.q, c.problem.q, 4, 7);
  const auto v = dense(c.problem, base.v, c.problem.v, 2, 9);
  for (const LayoutKind kind : {LayoutKind::bshd, LayoutKind::packed, LayoutKind::padded}) {
    Case other = c;
    set_layout(other.problem, kind);
    const Inputs in = generate(other);
    EXPECT_EQ(dense(other.problem, in.q, other.problem.q, 4, 7), q);
    EXPECT_EQ(dense(other.problem, in.v, other.problem.v, 2, 9), v);
    std::size_t nans = 0;
    for (std::size_t i = 0; i < in.v.size() / 2; ++i)
      nans += std::isnan(numeric::load(DType::bf16, in.v.data(), static_cast<std::int64_t>(i)));
    EXPECT_EQ(nans, in.v.size() / 2 - v.size());
  }
}

TEST(Inputs, ATransposedVHoldsTheSameValuesAndNaNBehindItsColumns) {
  Case c;
  c.problem = make_problem(2, 4, 2, 7, 9, 24, DType::e4m3);
  const Inputs base = generate(c);
  Case other = c;
  set_layout(other.problem, LayoutKind::transposed_v);
  EXPECT_EQ(other.problem.v.stride, (std::array<std::int64_t, 4>{2 * 24 * 16, 24 * 16, 1, 16}));
  ASSERT_TRUE(check(other.problem));
  const Inputs in = generate(other);
  EXPECT_EQ(in.k, base.k);
  std::size_t wrong = 0, nans = 0;
  for (std::size_t head = 0; head < 4; ++head)
    for (std::size_t s = 0; s < 9; ++s)
      for (std::size_t d = 0; d < 24; ++d)
        wrong += in.v[(head * 24 + d) * 16 + s] != base.v[(head * 9 + s) * 24 + d];
  for (const std::byte x : in.v) nans += (x & std::byte{0x7f}) == std::byte{0x7f};
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(nans, in.v.size() - base.v.size());
  const std::string text = to_string(other.problem);
  EXPECT_NE(text.find(" transposed-v"), std::string::npos) << text;
  const auto read = problem_of_text(text);
  ASSERT_TRUE(read) << read.status().message();
  EXPECT_EQ(to_string(*read), text);
}

TEST(Inputs, NormalHasTheMomentsOfANormal) {
  Case c;
  c.problem = make_problem(1, 8, 8, 512, 512, 64, DType::f32);
  const Inputs in = generate(c);
  double sum = 0, squares = 0, fourth = 0, largest = 0;
  const std::int64_t count = 8 * 512 * 64;
  for (std::int64_t i = 0; i < count; ++i) {
    const double x = numeric::load(DType::f32, in.q.data(), i);
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
    largest = std::max(largest, std::fabs(x));
  }
  EXPECT_NEAR(sum / count, 0, 0.008);  // 4 sigma
  EXPECT_NEAR(squares / count, 1, 0.011);
  EXPECT_NEAR(fourth / count, 3, 0.08);
  EXPECT_GT(largest, 4.0);
  EXPECT_LT(largest, 7.0);
}

TEST(Inputs, PermutationRetrievesEveryKey) {
  Case c;
  c.problem = make_problem(1, 1, 1, 517, 517, 64, DType::f32);
  c.distribution = Distribution::permutation;
  const Inputs in = generate(c);
  std::set<std::int64_t> retrieved;
  for (std::int64_t i = 0; i < 517; ++i) {
    std::int64_t best = -1;
    double best_score = -1e30;
    for (std::int64_t j = 0; j < 517; ++j) {
      double s = 0;
      for (std::int64_t d = 0; d < 64; ++d)
        s += numeric::load(DType::f32, in.q.data(), i * 64 + d) *
             numeric::load(DType::f32, in.k.data(), j * 64 + d);
      if (s > best_score) best_score = s, best = j;
    }
    retrieved.insert(best);
    if (i == 516) {
      EXPECT_EQ(best, 516);
    }
  }
  EXPECT_EQ(retrieved.size(), 517u);
}

TEST(Inputs, RisingMaximumRisesInEveryTile) {
  Case c;
  c.problem = make_problem(1, 1, 1, 4, 2048, 64, DType::f16);
  c.distribution = Distribution::rising_max;
  const Inputs in = generate(c);
  for (std::int64_t i = 0; i < 4; ++i) {
    double running = -1e30;
    int rises = 0;
    for (std::int64_t tile = 0; tile < 2048 / 64; ++tile) {
      double best = -1e30;
      for (std::int64_t j = tile * 64; j < tile * 64 + 64; ++j) {
        double s = 0;
        for (std::int64_t d = 0; d < 64; ++d)
          s += numeric::load(DType::f16, in.q.data(), i * 64 + d) *
               numeric::load(DType::f16, in.k.data(), j * 64 + d);
        best = std::max(best, s / 8);
      }
      rises += best > running;
      running = std::max(running, best);
    }
    EXPECT_GE(rises, 30) << "of 32 tiles";
  }
}

TEST(Inputs, E4m3ScalesPutTheLargestValueOnTheLargestNumber) {
  Case c;
  c.problem = make_problem(2, 3, 3, 20, 20, 32, DType::e4m3);
  for (const ScaleKind kind : {ScaleKind::tensor, ScaleKind::per_head}) {
    c.problem.scales = kind;
    const Inputs in = generate(c);
    EXPECT_EQ(in.k_scale.size(), kind == ScaleKind::tensor ? 1u : 6u);
    double largest = 0;
    for (std::int64_t i = 0; i < 2 * 3 * 20 * 32; ++i)
      largest = std::max(largest, std::fabs(numeric::load(DType::e4m3, in.k.data(), i)));
    EXPECT_EQ(largest, 448.0);
    for (std::int64_t i = 0; i < 20 * 32; ++i) {
      const double exact = static_cast<double>(in.k_exact[static_cast<std::size_t>(i)]);
      const double decoded =
          numeric::load(DType::e4m3, in.k.data(), i) * static_cast<double>(in.k_scale[0]);
      EXPECT_NEAR(decoded, exact, std::fabs(exact) / 16 + static_cast<double>(in.k_scale[0]) / 500);
    }
  }
}

// Rows that repeat are copied, but not from a block with another factor.
TEST(Inputs, SlotsThatHeadsShareHaveTheirOwnBlocksFactors) {
  Problem p = make_problem(1, 2, 2, 1, 300, 64, DType::e4m3);
  p.scales = ScaleKind::per_block;
  p.k.stride[1] = 0;
  const auto ones = [](std::int64_t rows) {
    return std::vector<float>(static_cast<std::size_t>(rows * 64), 1.0f);
  };
  const Inputs in = make_inputs(p, ones(2), ones(2 * 300), ones(2 * 300));
  ASSERT_EQ(in.k_scale.size(), 6u);
  for (std::int64_t row = 0; row < 300; ++row) {
    const auto factor = static_cast<double>(in.k_scale[static_cast<std::size_t>(3 + row / 128)]);
    EXPECT_NEAR(numeric::load(DType::e4m3, in.k.data(), row * 64) * factor, 1.0, 1.0 / 16) << row;
  }
}

TEST(Memory, EstimateGrowsWithTheProblemAndSaturates) {
  Problem p = make_problem(1, 8, 8, 2048, 2048, 64, DType::f16);
  const auto bytes = host_bytes(p);
  EXPECT_GT(bytes, 3u * 8 * 2048 * 64 * 2);
  EXPECT_LT(bytes, 1u << 30);
  p.batch = p.heads_q = p.heads_kv = p.seq_q = p.seq_kv = std::int64_t{1} << 31;
  EXPECT_EQ(host_bytes(p), std::numeric_limits<std::uint64_t>::max());
}

}  // namespace
}  // namespace greenfast::workbench::test
