// Problems through JSON, text and the C interface and back, plans through JSON.
#include "workbench/cases/problem_codec.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <random>
#include <string>

#include <greenfast/c_types.hpp>

#include "workbench/cases/workload.hpp"

namespace greenfast::workbench::test {
namespace {

using namespace nlohmann::literals;

constexpr int kProblems = 500;

std::int64_t number(std::mt19937_64& random, std::int64_t most) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most + 1));
}

// Any problem, legal or not: a codec changes nothing whatever it is given.
Problem any_problem(std::mt19937_64& random) {
  Problem p;
  for (std::int64_t* value : {&p.batch, &p.heads_q, &p.heads_kv, &p.seq_q, &p.seq_kv, &p.head_dim})
    *value = number(random, std::int64_t{1} << 40);
  p.dtype = static_cast<DType>(number(random, 3));
  p.out_dtype = static_cast<DType>(number(random, 3));
  p.scales = static_cast<ScaleKind>(number(random, 2));
  p.scale = std::generate_canonical<float, 24>(random) * 4 - 2;
  p.softcap = std::generate_canonical<float, 24>(random) * 50;
  // Every member by name: one that stays as it is would come back right whatever the codec does.
  auto& [left, right, alignment] = p.mask;
  left = number(random, 9) - 1;
  right = number(random, 9) - 1;
  alignment = static_cast<Alignment>(number(random, 1));
  p.lse = random() % 2 != 0;
  p.accuracy = static_cast<Accuracy>(number(random, 1));
  for (Layout* layout : {&p.q, &p.k, &p.v, &p.o})
    for (std::int64_t& stride : layout->stride) stride = number(random, std::int64_t{1} << 48);
  if (random() % 2 == 0) return p;  // what serving asks for, in half of them
  Sequences& s = p.sequences;
  for (bool* flag :
       {&s.packed_q, &s.packed_kv, &s.used_q, &s.used_kv, &s.kv_start, &s.kv_index, &p.sinks})
    *flag = random() % 2 != 0;
  for (std::int64_t* value : {&s.total_q, &s.total_kv, &s.kv_rows, &p.pages.size, &p.pages.count,
                              &p.pages.row_stride, &p.chunk, &p.head_dim_v})
    *value = random() % 2 != 0 ? number(random, std::int64_t{1} << 30) : 0;
  p.alibi = static_cast<Alibi>(number(random, 2));
  p.array_mask.kind = static_cast<MaskKind>(number(random, 2));
  p.array_mask.dtype = static_cast<DType>(number(random, 2));
  for (std::int64_t& stride : p.array_mask.stride) stride = number(random, 99);
  return p;
}

TEST(ProblemCodec, JsonThereAndBackIsTheSameProblem) {
  std::mt19937_64 random(7);
  for (int i = 0; i < kProblems; ++i) {
    const Problem p = any_problem(random);
    // Through text, as a record is.
    const auto back = problem_of_json(nlohmann::json::parse(problem_json(p).dump()));
    ASSERT_TRUE(back) << back.status().message();
    ASSERT_EQ(*back, p) << problem_json(p).dump();
  }
}

// What a value has that its schema does not know: a name, or a word.
std::string unknown_to(const nlohmann::json& schema, const nlohmann::json& of,
                       const nlohmann::json& value, const std::string& where) {
  if (of.contains("$ref"))
    return unknown_to(
        schema, schema.at(nlohmann::json::json_pointer(of["$ref"].get<std::string>().substr(1))),
        value, where);
  if (of.contains("enum") &&
      std::find(of["enum"].begin(), of["enum"].end(), value) == of["enum"].end())
    return where + " = " + value.dump();
  if (of.contains("const") && of["const"] != value) return where + " = " + value.dump();
  if (!value.is_object()) return "";
  for (const auto& [name, inner] : value.items()) {
    if (!of.contains("properties") || !of["properties"].contains(name)) return where + name;
    const std::string found = unknown_to(schema, of["properties"][name], inner, where + name + ".");
    if (!found.empty()) return found;
  }
  return "";
}

// A member that a record holds and its published schema does not is one that readers must refuse.
TEST(ProblemCodec, TheSchemaOfRecordsKnowsEveryMemberAndEveryWord) {
  std::ifstream file(std::string(GREENFAST_SOURCE_DIR) + "/docs/schema/run.schema.json");
  const auto schema = nlohmann::json::parse(file);
  const auto& problem = schema.at("/properties/problems/items"_json_pointer);
  std::mt19937_64 random(11);
  for (int i = 0; i < kProblems; ++i) {
    Problem p = any_problem(random);
    if (p.out_dtype == DType::e4m3) p.out_dtype = DType::f32;  // which no problem may have
    ASSERT_EQ(unknown_to(schema, problem, problem_json(p), ""), "");
  }
  auto more = problem_json(any_problem(random));
  more["mask"]["of_tomorrow"] = 1;
  EXPECT_EQ(unknown_to(schema, problem, more, ""), "mask.of_tomorrow");
}

TEST(ProblemCodec, WhatAProblemHasNotLeavesNoTraceInItsJson) {
  const auto written = problem_json(make_problem(1, 2, 1, 3, 4, 64, DType::f16));
  for (const char* key :
       {"head_dim_v", "sequences", "pages", "chunk", "sinks", "alibi", "array_mask"})
    EXPECT_FALSE(written.contains(key)) << key;
  EXPECT_EQ(written.size(), 14u);
}

TEST(ProblemCodec, CThereAndBackIsTheSameProblem) {
  std::mt19937_64 random(8);
  for (int i = 0; i < kProblems; ++i) {
    Problem p = any_problem(random);
    for (Layout* layout : {&p.q, &p.k, &p.v, &p.o}) layout->alignment = 1 << number(random, 8);
    const gf_problem c = to_c(p);
    ASSERT_EQ(from_c(c), p);
    EXPECT_EQ(c.struct_size, sizeof c);
    EXPECT_EQ(c.abi_version, GF_ABI_VERSION);
  }
  float memory[8] = {};
  const Tensors t{memory,     memory + 1, memory + 2, memory + 3,
                  memory + 4, memory + 5, memory + 6, memory + 7};
  const Tensors back = from_c(to_c(t));
  EXPECT_EQ(back.q, t.q);
  EXPECT_EQ(back.k, t.k);
  EXPECT_EQ(back.v, t.v);
  EXPECT_EQ(back.o, t.o);
  EXPECT_EQ(back.lse, t.lse);
  EXPECT_EQ(back.q_scale, t.q_scale);
  EXPECT_EQ(back.k_scale, t.k_scale);
  EXPECT_EQ(back.v_scale, t.v_scale);
}

TEST(ProblemCodec, APlanThereAndBackIsTheSamePlan) {
  const Plan plan{"cuda.x.y", {1, 2, 3}, {4, 5, 6}, {7, 8, 9}, 10, std::int64_t{1} << 40, 11, 12,
                  13,         14,        "k<1>",    "a note",  {}};
  const auto back = plan_of_json(nlohmann::json::parse(plan_json(plan).dump()));
  ASSERT_TRUE(back) << back.status().message();
  EXPECT_EQ(plan_json(*back), plan_json(plan));
  EXPECT_EQ(back->splits, 14);
  EXPECT_EQ(back->note, "a note");
}

TEST(ProblemCodec, WhatIsMissingOrOfAnotherKindIsNamed) {
  const nlohmann::json good = problem_json(make_problem(1, 2, 2, 3, 4, 64, DType::f16));
  const auto says = [](const nlohmann::json& object) {
    const auto problem = problem_of_json(object);
    return problem ? "accepted" : problem.status().message();
  };
  EXPECT_EQ(says(good), "accepted");
  for (const auto& [key, value] : good.items()) {
    nlohmann::json without = good;
    without.erase(key);
    EXPECT_EQ(says(without), "problem: '" + key + "' is missing");
    nlohmann::json wrong = good;
    wrong[key] = nlohmann::json::array({1});
    EXPECT_EQ(says(wrong), "problem: '" + key + "' is [1], which no problem has");
  }
  nlohmann::json object = good;
  object["scales"] = "per_block";
  EXPECT_EQ(says(object), "problem: 'scales' is \"per_block\", which no problem has");
  object = good;
  object["mask"]["alignment"] = "middle";
  EXPECT_EQ(says(object), "mask: 'alignment' is \"middle\", which no mask has");
  object = good;
  object["strides"]["v"] = {1, 2, 3};
  EXPECT_EQ(says(object), "strides: 'v' is [1,2,3], which no strides has");
  EXPECT_EQ(says(nlohmann::json::array()), "problem: 'batch' is missing");

  // A value without a name is not written as one that has a name.
  Problem p = make_problem(1, 2, 2, 3, 4, 64, DType::e4m3);
  p.scales = static_cast<ScaleKind>(3);
  EXPECT_EQ(says(problem_json(p)), "problem: 'scales' is null, which no problem has");
  p = make_problem(1, 2, 2, 3, 4, 64, DType::f16);
  p.scale = std::numeric_limits<float>::infinity();
  EXPECT_EQ(says(problem_json(p)), "problem: 'scale' is null, which no problem has");
}

// A problem that the library takes, in one of the two orders that its text can say.
Problem any_legal_problem(std::mt19937_64& random) {
  const auto maybe = [&] { return random() % 3 == 0; };
  for (;;) {
    const std::int64_t heads = 1 + number(random, 3);
    Problem p = make_problem(number(random, 3), heads * (1 + number(random, 2)), heads,
                             number(random, 90), number(random, 90), 8 + 8 * number(random, 31),
                             static_cast<DType>(number(random, 3)));
    const auto value = [&] { return std::generate_canonical<float, 24>(random); };
    if (maybe()) p.out_dtype = static_cast<DType>(number(random, 2));
    if (maybe()) p.scales = static_cast<ScaleKind>(number(random, 2));
    if (maybe()) p.accuracy = Accuracy::fast;
    if (maybe()) p.scale = value() * 4 - 2;
    if (maybe()) p.softcap = value() * 50;
    if (maybe()) {
      auto& [left, right, alignment] = p.mask;
      left = number(random, 9) - 1;
      right = number(random, 9) - 1;
      alignment = static_cast<Alignment>(number(random, 1));
    }
    if (p.mask.is_none()) p.mask = {};
    p.lse = maybe();
    p.sinks = maybe();
    if (maybe()) p.head_dim_v = p.head_dim == 8 ? 16 : 8;
    Sequences& s = p.sequences;
    if ((s.packed_q = maybe())) s.total_q = number(random, 300);
    if ((s.packed_kv = maybe())) s.total_kv = number(random, 300);
    s.used_q = maybe();
    s.used_kv = maybe();
    s.kv_start = maybe();
    if ((s.kv_index = maybe())) s.kv_rows = number(random, 9);
    if (maybe()) p.pages = {1 + number(random, 40), number(random, 40), number(random, 100)};
    if (maybe()) p.chunk = 1 + number(random, 40);
    if (maybe()) p.alibi = static_cast<Alibi>(number(random, 2));
    if (maybe()) {
      p.array_mask.kind = static_cast<MaskKind>(1 + number(random, 1));
      if (p.array_mask.kind == MaskKind::additive && maybe()) p.array_mask.dtype = p.dtype;
      for (std::int64_t& stride : p.array_mask.stride) stride = number(random, 99999);
    }
    set_layout(p, maybe() ? LayoutKind::bshd : LayoutKind::bhsd);
    if (check(p)) return p;
  }
}

TEST(ProblemCodec, TextThereAndBackIsTheSameProblem) {
  std::mt19937_64 random(9);
  int bshd = 0;
  for (int i = 0; i < 4 * kProblems; ++i) {
    const Problem p = any_legal_problem(random);
    const std::string text = to_string(p);
    const auto back = problem_of_text(text);
    ASSERT_TRUE(back) << back.status().message();
    EXPECT_EQ(*back, p) << text << "\n" << to_string(*back);
    EXPECT_TRUE(text.starts_with(shape_text(p) + " ")) << text;
    bshd += text.ends_with(" bshd") ? 1 : 0;
  }
  EXPECT_GT(bshd, 0);
}

TEST(ProblemCodec, EverySuitesAndEveryEdgesTextIsRead) {
  ProblemDefaults defaults;
  for (const SuiteRow& suite : suite_table()) {
    const auto problems = parse_shapes(suite.name, defaults);
    ASSERT_TRUE(problems) << problems.status().message();
    for (const NamedProblem& named : *problems) {
      const auto back = problem_of_text(to_string(named.problem));
      ASSERT_TRUE(back) << back.status().message();
      EXPECT_EQ(*back, named.problem) << to_string(named.problem);
    }
  }
}

TEST(ProblemCodec, TextThatNoProblemIsPrintedAsIsRefusedInWords) {
  for (const char* text : {"",
                           " ",
                           "1x8x512x64",
                           "mission fp16",
                           "1x8x512x64 fp17",
                           "1x8x512x64 fp16 ",
                           "1x8x512x64  fp16",
                           "1x8x512x64 half",
                           "1x8x512x64,1x8x32x64 fp16",
                           "1x8/8x512x64 fp16",
                           "01x8x512x64 fp16",
                           "1x8x512x64 fp16->fp16",
                           "1x8x512x64 fp16 causal",
                           "1x8x512x64 fp16 causal(middle)",
                           "1x8x512x64 fp16 causal(top-left) causal(top-left)",
                           "1x8x512x64 fp16 lse lse",
                           "1x8x512x64 fp16 lse=1",
                           "1x8x512x64 fp16 lse causal(top-left)",
                           "1x8x512x64 fp16 softcap=0",
                           "1x8x512x64 fp16 accuracy=fast",
                           "1x8x512x64 e4m3 accuracy=exact",
                           "1x8x512x64 e4m3 accuracy=faster",
                           "1x8x512x64 e4m3 accuracy",
                           "1x8x512x64 fp16 softcap=50.0",
                           "1x8x512x64 fp16 softcap=",
                           "1x8x512x64 fp16 softcap(50)",
                           "1x8x512x64 fp16 scale=nan",
                           "1x8x512x64 fp16 scale",
                           "1x8x512x64 fp16 strided",
                           "1x8x512x64 fp16 window(1,2)",
                           "1x8x512x64 fp16 bshd lse",
                           "1x8x512x64 fp16 pages(3x2)",
                           "1x8x512x64 fp16 pages(3,2)",
                           "1x8x512x64 fp16 mask(bool)",
                           "1x8x512x64 fp16 pages(2147483647x1073741824,9)",
                           "1x8x512x64 fp16 chunk=-1",
                           "1x8x512x64 fp16 packed-q(9223372036854775807)",
                           "1x8x512x64 fp16 packed-q(-1)",
                           "1x8x512x64 fp16 value-dim=9223372036854775807",
                           "1x8x512x64 fp16 value-dim=64",
                           "1x8x512x64 fp16 tomorrow=1"}) {
    const auto problem = problem_of_text(text);
    ASSERT_FALSE(problem) << text;
    EXPECT_NE(problem.status().code(), StatusCode::internal) << text;
    EXPECT_GT(problem.status().message().size(), 20u) << text;
  }
  EXPECT_NE(problem_of_text("1x8x512x64 fp16 tomorrow=1").status().message().find("'tomorrow=1'"),
            std::string::npos);
}

}  // namespace
}  // namespace greenfast::workbench::test
