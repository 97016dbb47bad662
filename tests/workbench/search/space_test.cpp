// The space that a kernel's source declares: read, walked, and refused by name.
#include "workbench/search/space.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include <greenfast/attention.hpp>

#include "workbench/base/files.hpp"

namespace greenfast::workbench::test {
namespace {

constexpr std::string_view kSource =
    "// A kernel.\n"
    "// tune: M = 32 *64\n"
    "/* tune: N = 8 *16 24 */\n"
    "//   tune-if: M % N == 0 && M / N < 8\n"
    "int x;  // tune: NOT = *1\n";

TEST(Space, EveryVariantThatHasOneDeclaresItWell) {
  std::set<std::string> known;
  for (const VariantInfo& variant : variants()) known.insert(variant.id);
  std::set<std::string> found;
  for (const auto& file :
       std::filesystem::directory_iterator(std::filesystem::path(GREENFAST_SOURCE_DIR) / "tune")) {
    if (file.path().extension() != ".cu") continue;
    const auto text = read_file(file.path());
    ASSERT_TRUE(text.ok());
    const auto space = parse_space(file.path().string(), *text);
    ASSERT_TRUE(space) << space.status().message();
    const std::string id = file.path().stem().string();
    EXPECT_TRUE(known.contains(id)) << id << " is no variant";
    EXPECT_GT(space->all().size(), 1u) << id;
    found.insert(id);
  }
  for (const VariantInfo& variant : variants()) {
    // Its tile is what one wgmma multiplies.
    if (variant.id.starts_with("cuda.stage_c.") && variant.derived_from.empty() &&
        variant.id != "cuda.stage_c.fp8_wgmma") {
      EXPECT_TRUE(found.contains(variant.id)) << variant.id << " has no space in tune/";
    }
  }
  EXPECT_TRUE(found.contains("cuda.v2c.v8"));
  EXPECT_TRUE(found.contains("cuda.sm80.mma"));
}

TEST(Space, IsReadFromCommentsOfTheirOwnLine) {
  const auto space = parse_space("k.cu", kSource);
  ASSERT_TRUE(space) << space.status().message();
  ASSERT_EQ(space->parameters.size(), 2u);
  EXPECT_EQ(to_string(space->parameters[0]), "M = 32 *64");
  EXPECT_EQ(to_string(space->parameters[1]), "N = 8 *16 24");
  EXPECT_EQ(space->conditions, std::vector<std::string>{"M % N == 0 && M / N < 8"});
}

TEST(Space, WalksWhatTheConditionsLeaveTheLastParameterFastest) {
  const auto space =
      make_space("k.cu", {"M = 32 *64", "N = 8 *16 24"}, {"M % N == 0", "M > N * 2"});
  ASSERT_TRUE(space) << space.status().message();
  std::vector<std::string> walked;
  for (const Configuration& c : space->all()) {
    EXPECT_TRUE(space->valid(c));
    walked.push_back(space->text(c));
  }
  EXPECT_EQ(walked, (std::vector<std::string>{"M=32 N=8", "M=64 N=8", "M=64 N=16"}));
  EXPECT_EQ(space->text(space->hand_set()), "M=64 N=16");
  EXPECT_EQ(space->defines(space->hand_set()), (std::vector<std::string>{"M=64", "N=16"}));
}

TEST(Space, ADeclarationComesBackAsItWas) {
  const auto space = make_space("k.cu", {"  BLOCK_M =  32   *64 -1"}, {});
  ASSERT_TRUE(space) << space.status().message();
  const std::string text = to_string(space->parameters.front());
  EXPECT_EQ(text, "BLOCK_M = 32 *64 -1");
  EXPECT_EQ(to_string(make_space("k.cu", {text}, {})->parameters.front()), text);
}

TEST(Space, RefusalsSayWhatIsWrongAndWhatWasExpected) {
  const auto refused = [](std::vector<std::string> parameters,
                          std::vector<std::string> conditions = {}) {
    const Status status = make_space("k.cu", parameters, conditions).status();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument);
    return status.message();
  };
  const std::pair<std::vector<std::string>, const char*> rows[] = {
      {{}, "declares nothing to tune"},
      {{"M 32"}, "has no ="},
      {{"M N = *1"}, "needs one name"},
      {{"1M = *1"}, "is no identifier"},
      {{"M ="}, "has no values"},
      {{"M = 32 64"}, "no value is marked"},
      {{"M = *32 *64"}, "several values are marked"},
      {{"M = *32 x"}, "'x' is no whole number"},
      {{"M = *32 32"}, "32 stands twice"},
      {{"M = *1", "M = *2"}, "M is declared twice"},
  };
  for (const auto& [parameters, words] : rows) {
    const std::string message = refused(parameters);
    EXPECT_NE(message.find(words), std::string::npos) << message;
    EXPECT_EQ(message.find("k.cu: "), 0u) << message;
  }
  EXPECT_NE(refused({"M = *1"}, {"M > 1"}).find("excludes the hand-set values"), std::string::npos);
  EXPECT_NE(refused({"M = *1"}, {"M + Q"}).find("'Q' is no parameter"), std::string::npos);
  std::vector<std::string> many;
  for (int i = 0; i < 21; ++i) many.push_back("P" + std::to_string(i) + " = *0 1");
  EXPECT_NE(refused(many).find("more than 1000000 combinations"), std::string::npos);
}

TEST(Expression, HasCsOperatorsAndPrecedence) {
  const std::map<std::string, std::int64_t> names = {{"M", 64}, {"N", 48}};
  const std::pair<const char*, std::int64_t> rows[] = {
      {"1 + 2 * 3", 7}, {"(1 + 2) * 3", 9}, {"7 - 2 - 1", 4},
      {"-7 / 2", -3},   {"M % N", 16},      {"M >= N && N > 50", 0},
      {"0 || 2", 1},    {"!M == 0", 1},     {"1 < 2 || 1 / 1 == 0", 1},
      {"- -3", 3},      {"M != N", 1},      {" 5 ", 5}};
  for (const auto& [text, value] : rows) {
    const auto got = evaluate(text, names);
    ASSERT_TRUE(got) << text << ": " << got.status().message();
    EXPECT_EQ(*got, value) << text;
  }
  for (const char* text : {"", "1 +", "(1", "1 / 0", "M % (N - 48)", "2x", "M N", "1 = 1", "$"}) {
    const auto got = evaluate(text, names);
    ASSERT_FALSE(got) << text;
    EXPECT_NE(got.status().message().find("'" + std::string(text) + "'"), std::string::npos);
  }
}

}  // namespace
}  // namespace greenfast::workbench::test
