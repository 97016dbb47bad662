// Problems through JSON, text and the C interface and back, plans through JSON.
#include "workbench/cases/problem_codec.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <random>
#include <string>

#include <greenfast/c_types.hpp>
#include <greenfast/operands.hpp>

#include "workbench/cases/workload.hpp"

namespace greenfast::workbench::test {
namespace {

using namespace nlohmann::literals;

constexpr int kProblems = 500;

std::int64_t number(std::mt19937_64& random, std::int64_t most) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most + 1));
}

bool coin(std::mt19937_64& random) { return random() % 2 != 0; }

// One of the first `values` of an enumeration.
template <class Enum>
void draw(std::mt19937_64& random, Enum& to, int values) {
  to = static_cast<Enum>(number(random, values - 1));
}

// Any problem, legal or not: a codec changes nothing whatever it is given.
Problem any_problem(std::mt19937_64& random) {
  Problem p;
  // Every member by name, of every struct in it: one that stays as it is would come back right
  // whatever the codec does, so a new one does not compile before it is drawn.
  auto& [batch, heads_q, heads_kv, seq_q, seq_kv, head_dim, dtype, out_dtype, scales, scale,
         softcap, mask, lse, q, k, v, o, head_dim_v, sequences, pages, chunk, sinks, alibi,
         array_mask, accuracy] = p;
  auto& [left, right, alignment] = mask;
  auto& [packed_q, packed_kv, used_q, used_kv, kv_start, kv_index, total_q, total_kv, kv_rows] =
      sequences;
  auto& [page_size, page_count, page_row_stride] = pages;
  auto& [mask_kind, mask_dtype, mask_stride] = array_mask;
  for (std::int64_t* value : {&batch, &heads_q, &heads_kv, &seq_q, &seq_kv, &head_dim})
    *value = number(random, std::int64_t{1} << 40);
  draw(random, dtype, 4);
  draw(random, out_dtype, 4);
  draw(random, scales, 3);
  scale = std::generate_canonical<float, 24>(random) * 4 - 2;
  softcap = std::generate_canonical<float, 24>(random) * 50;
  left = number(random, 9) - 1;
  right = number(random, 9) - 1;
  draw(random, alignment, 2);
  lse = coin(random);
  draw(random, accuracy, 2);
  for (Layout* layout : {&q, &k, &v, &o}) {
    auto& [stride, address_alignment] = *layout;
    for (std::int64_t& step : stride) step = number(random, std::int64_t{1} << 48);
    address_alignment = Layout{}.alignment;  // JSON and text have none; the test of C draws it
  }
  if (coin(random)) return p;  // what serving asks for, in half of them
  for (bool* flag : {&packed_q, &packed_kv, &used_q, &used_kv, &kv_start, &kv_index, &sinks})
    *flag = coin(random);
  for (std::int64_t* value : {&total_q, &total_kv, &kv_rows, &page_size, &page_count,
                              &page_row_stride, &chunk, &head_dim_v})
    *value = coin(random) ? number(random, std::int64_t{1} << 30) : 0;
  draw(random, alibi, 3);
  draw(random, mask_kind, 3);
  draw(random, mask_dtype, 3);
  for (std::int64_t& step : mask_stride) step = number(random, 99);
  return p;
}

// A plan that has no member in common with one that nobody filled.
Plan any_plan(std::mt19937_64& random) {
  Plan plan;
  auto& [variant, grid, block, cluster, shared_bytes, workspace_bytes, tile_q, tile_kv, stages,
         splits, kernel, note, shared] = plan;
  const auto some = [&random] { return static_cast<int>(2 + number(random, 1 << 20)); };
  const auto word = [&some] { return "word " + std::to_string(some()); };
  for (std::string* text : {&variant, &kernel, &note}) *text = word();
  for (std::array<int, 3>* dims : {&grid, &block, &cluster})
    for (int& dim : *dims) dim = some();
  for (std::int64_t* bytes : {&shared_bytes, &workspace_bytes})
    *bytes = std::int64_t{some()} << number(random, 30);
  for (int* value : {&tile_q, &tile_kv, &stages, &splits}) *value = some();
  for (std::int64_t left = 1 + number(random, 3); left > 0; --left) {
    SharedBuffer buffer;
    auto& [name, bytes] = buffer;
    name = word();
    bytes = some();
    shared.push_back(buffer);
  }
  return plan;
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
}

TEST(ProblemCodec, TensorsThroughCAndBackAreTheSameTensors) {
  const auto operands = operands_of(make_problem(1, 1, 1, 1, 1, 8, DType::f32));
  std::array<float, kOperands> memory{};
  Tensors there;
  // By the table of operands, so that a new one is asked about unnamed.
  for (std::size_t i = 0; i < kOperands; ++i) set_data(there, operands[i].id, &memory[i]);
  const gf_tensors c = to_c(there);
  EXPECT_EQ(c.struct_size, sizeof c);
  EXPECT_EQ(c.abi_version, GF_ABI_VERSION);
  const Tensors back = from_c(c);
  for (std::size_t i = 0; i < kOperands; ++i) {
    EXPECT_EQ(data_of(there, operands[i].id), &memory[i]) << operands[i].name;
    EXPECT_EQ(data_of(back, operands[i].id), &memory[i]) << operands[i].name;
  }
}

TEST(ProblemCodec, APlanThereAndBackIsTheSamePlan) {
  std::mt19937_64 random(10);
  for (int i = 0; i < kProblems; ++i) {
    const Plan plan = any_plan(random);
    const nlohmann::json written = plan_json(plan);
    const auto back = plan_of_json(nlohmann::json::parse(written.dump()));
    ASSERT_TRUE(back) << back.status().message();
    const auto& [variant, grid, block, cluster, shared_bytes, workspace_bytes, tile_q, tile_kv,
                 stages, splits, kernel, note, shared] = *back;
    EXPECT_EQ(variant, plan.variant);
    EXPECT_EQ(grid, plan.grid);
    EXPECT_EQ(block, plan.block);
    EXPECT_EQ(cluster, plan.cluster);
    EXPECT_EQ(shared_bytes, plan.shared_bytes);
    EXPECT_EQ(workspace_bytes, plan.workspace_bytes);
    EXPECT_EQ(tile_q, plan.tile_q);
    EXPECT_EQ(tile_kv, plan.tile_kv);
    EXPECT_EQ(stages, plan.stages);
    EXPECT_EQ(splits, plan.splits);
    EXPECT_EQ(kernel, plan.kernel);
    EXPECT_EQ(note, plan.note);
    // Records do without what lies where in shared memory, and say nothing of it.
    EXPECT_FALSE(plan.shared.empty());
    EXPECT_TRUE(shared.empty());
    EXPECT_FALSE(written.contains("shared"));
    ASSERT_EQ(plan_json(*back), written);
  }
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
  object["scales"] = "per_row";
  EXPECT_EQ(says(object), "problem: 'scales' is \"per_row\", which no problem has");
  object = good;
  object["mask"]["alignment"] = "middle";
  EXPECT_EQ(says(object), "mask: 'alignment' is \"middle\", which no mask has");
  object = good;
  object["strides"]["v"] = {1, 2, 3};
  EXPECT_EQ(says(object), "strides: 'v' is [1,2,3], which no strides has");
  EXPECT_EQ(says(nlohmann::json::array()), "problem: 'batch' is missing");

  // A value without a name is not written as one that has a name.
  Problem p = make_problem(1, 2, 2, 3, 4, 64, DType::e4m3);
  p.scales = static_cast<ScaleKind>(4);
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
    auto& [batch, heads_q, heads_kv, seq_q, seq_kv, head_dim, dtype, out_dtype, scales, scale,
           softcap, mask, lse, q, k, v, o, head_dim_v, sequences, pages, chunk, sinks, alibi,
           array_mask, accuracy] = p;
    auto& [left, right, alignment] = mask;
    auto& [packed_q, packed_kv, used_q, used_kv, kv_start, kv_index, total_q, total_kv, kv_rows] =
        sequences;
    auto& [page_size, page_count, page_row_stride] = pages;
    auto& [mask_kind, mask_dtype, mask_stride] = array_mask;
    const auto value = [&] { return std::generate_canonical<float, 24>(random); };
    if (maybe()) draw(random, out_dtype, 3);
    if (maybe()) draw(random, scales, 3);
    if (maybe()) accuracy = Accuracy::fast;
    if (maybe()) scale = value() * 4 - 2;
    if (maybe()) softcap = value() * 50;
    if (maybe()) {
      left = number(random, 9) - 1;
      right = number(random, 9) - 1;
      draw(random, alignment, 2);
    }
    if (left < 0 && right < 0) alignment = Mask{}.alignment;  // which no text says then
    lse = maybe();
    sinks = maybe();
    if (maybe()) head_dim_v = head_dim == 8 ? 16 : 8;
    if ((packed_q = maybe())) total_q = number(random, 300);
    if ((packed_kv = maybe())) total_kv = number(random, 300);
    used_q = maybe();
    used_kv = maybe();
    kv_start = maybe();
    if ((kv_index = maybe())) kv_rows = number(random, 9);
    if (maybe()) {
      page_size = 1 + number(random, 40);
      page_count = number(random, 40);
      page_row_stride = number(random, 100);
    }
    if (maybe()) chunk = 1 + number(random, 40);
    if (maybe()) draw(random, alibi, 3);
    if (maybe()) {
      mask_kind = coin(random) ? MaskKind::boolean : MaskKind::additive;
      if (mask_kind == MaskKind::additive && maybe()) mask_dtype = dtype;
      for (std::int64_t& step : mask_stride) step = number(random, 99999);
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

TEST(ProblemCodec, ScoresThatNobodyStoresMayBeMoreThanATensorMayHave) {
  // 4e16 of them, but of K 4e12 elements; a broadcast mask has as few.
  for (const char* text : {"92x792x7308202x8 fp16", "2282x4x4228191x64 fp16 mask(bool,0,1,0,1)"}) {
    const auto problem = problem_of_text(text);
    ASSERT_TRUE(problem) << problem.status().message();
    EXPECT_EQ(to_string(*problem), text);
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
