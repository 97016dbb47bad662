// What records are read and written with, the text of a terminal beside it.
#include "workbench/base/json.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "workbench/base/exit_code.hpp"
#include "workbench/base/terminal.hpp"

namespace greenfast::workbench::test {
namespace {

using nlohmann::json;

TEST(Json, AFileThatIsCutOffIsTheCallersMistakeAndNamed) {
  std::ofstream("cut.json") << R"({"a": [1, 2)";
  const Status status = read_json("cut.json").status();
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("cut.json"), std::string::npos) << status.message();
  std::ofstream("whole.json") << R"({"a": 1})";
  EXPECT_EQ(*read_json("whole.json"), json({{"a", 1}}));
  EXPECT_NE(read_json("none.json").status().message().find("none.json"), std::string::npos);
}

TEST(Json, ARecordMovesNoCursor) {
  std::ofstream("hostile.json")
      << R"({"\u001b[2J": ["plain", {"id": "\u001b]0;x\u0007é"}], "n": 1.5, "none": null})";
  const json hostile = {
      {"\x1b[2J", {"plain", {{"id", "\x1b]0;x\aé"}}}}, {"n", 1.5}, {"none", nullptr}};
  EXPECT_EQ(*read_json("hostile.json"), hostile);
  EXPECT_EQ(*read_record("hostile.json"),
            json({{"?[2J", {"plain", {{"id", "?]0;x?é"}}}}, {"n", 1.5}, {"none", nullptr}}));
  EXPECT_FALSE(read_record("none.json").ok());
}

TEST(Json, ARecordIsNeverLostToBytesThatAreNoText) {
  EXPECT_EQ(json_text({{"path", "a\xff"}}), "{\"path\":\"a\xef\xbf\xbd\"}");
  EXPECT_EQ(text_or_null(""), json(nullptr));
  EXPECT_EQ(plain("as it is"), "as it is");
  EXPECT_EQ(plain({1, 2}), "[1,2]");
}

TEST(ExitCodes, TheGravestOfARunCounts) {
  const auto worst = [](std::vector<int> codes) { return worst_of(codes); };
  EXPECT_EQ(worst({kPassed, kDefer, kNumerics, kCrash}), kCrash);
  EXPECT_EQ(worst({kNumerics, kIntegrity}), kIntegrity);
  EXPECT_EQ(worst({kDefer, kRegression, kEvidence}), kRegression);
  EXPECT_EQ(worst({kPassed, kDefer}), kDefer);
  EXPECT_EQ(worst({kPassed}), kPassed);
  EXPECT_EQ(worst({}), kNoDevice) << "everything was skipped";
  EXPECT_EQ(exit_code_of(StatusCode::unsupported), kUsage);
  EXPECT_EQ(exit_code_of(StatusCode::out_of_memory), kInternal);
}

TEST(Terminal, ColumnsAlignByWhatOneSees) {
  Table table({{"variant", Table::Align::left}, {"p50", Table::Align::right}});
  table.add_row({"naïve", "12 µs"});
  table.add_row({paint("flash", Color::green, true), "3"});
  const std::string text = table.text();
  EXPECT_NE(text.find("naïve    12 µs\n"), std::string::npos) << text;
  EXPECT_EQ(display_width(paint("flash", Color::green, true)), 5u);
  EXPECT_EQ(paint("flash", Color::green, false), "flash");
  EXPECT_EQ(format_duration(1.5), "1.500 s");
  EXPECT_EQ(duration_range(5.67e-5, 5.81e-5), "56.70 µs to 58.10 µs");
}

}  // namespace
}  // namespace greenfast::workbench::test
