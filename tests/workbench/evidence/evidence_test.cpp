// The ledger: what binds a record, what a change breaks, and what a comment does not.
#include "workbench/evidence/evidence.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "workbench/base/exit_code.hpp"
#include "workbench/base/files.hpp"
#include "workbench/base/json.hpp"
#include "workbench/base/schemas.hpp"

namespace greenfast::workbench::test {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

TEST(SourceDigest, ACommentAndALineBreakChangeNothing) {
  const std::string plain = "int a = 1; int b = 2;";
  for (const char* same :
       {"int a = 1;\n\n\tint b = 2;\n", "int a = 1; // one\nint b = 2;",
        "int a /* why */ = 1; int b = 2;", "// head\r\nint a = 1; int b = 2; /* open"})
    EXPECT_EQ(source_digest(same), source_digest(plain)) << same;
}

TEST(SourceDigest, CodeAndLiteralsCount) {
  const std::string plain = "int a = 1; int b = 2;";
  EXPECT_NE(source_digest("int a = 1; int b = 3;"), source_digest(plain));
  EXPECT_NE(source_digest("inta = 1; int b = 2;"), source_digest(plain));
  // What looks like a comment inside a literal is none, and its blanks are its own.
  EXPECT_NE(source_digest(R"(f("a // b");)"), source_digest(R"(f("a // c");)"));
  EXPECT_NE(source_digest(R"(f("a  b");)"), source_digest(R"(f("a b");)"));
  EXPECT_NE(source_digest("f(R\"x(a  b // c)x\"); g();"),
            source_digest("f(R\"x(a b // c)x\"); g();"));
  EXPECT_EQ(source_digest("f(R\"x(a)\" // b)x\"); /* c */ g();"),
            source_digest("f(R\"x(a)\" // b)x\");  g();"));
  EXPECT_EQ(source_digest("x = 1'000;  // thousand"), source_digest("x = 1'000;"));
  EXPECT_NE(source_digest("c = '\"'; // x\n"), source_digest("c = '\"'; y"));
}

/// The smallest record that the ledger takes: a selftest is bound to its policy alone.
std::string record_of(int number) {
  return json{{"schema", kSelftestSchema},
              {"utc", "2026-01-02T03:04:05Z"},
              {"build", {{"git", {{"sha", "abc"}, {"dirty", false}}}}},
              {"number", number}}
      .dump();
}

class Ledger : public ::testing::Test {
 protected:
  void SetUp() override {
    folder = fs::path("evidence") / ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder);
    fs::create_directories(folder);
  }
  void import(const std::string& name, const std::string& text) {
    const Import done = import_evidence(folder, name, text, {});
    ASSERT_TRUE(done.status) << done.status.message();
    EXPECT_EQ(done.files, std::vector<std::string>{name});
  }
  /// Findings about files and the ledger; variants without evidence are another matter.
  std::vector<Finding> findings() const {
    std::vector<Finding> out;
    for (Finding& finding : verify_evidence(folder, {}, {}).findings)
      if (!finding.file.empty()) out.push_back(std::move(finding));
    return out;
  }
  json ledger() const { return *read_json(folder / kLedgerFile); }
  void put(const std::string& name, const std::string& text) const {
    std::ofstream(folder / name, std::ios::binary) << text;
  }
  void expect_only(EvidenceState state, const std::string& file, const char* words) const {
    const auto found = findings();
    int wrong = 0;
    for (const Finding& finding : found) {
      if (finding.state == EvidenceState::current) continue;
      ++wrong;
      EXPECT_EQ(name_of(finding.state), name_of(state)) << finding.detail;
      EXPECT_EQ(finding.file, file);
      EXPECT_NE(finding.detail.find(words), std::string::npos) << finding.detail;
    }
    EXPECT_EQ(wrong, 1);
  }
  fs::path folder;
};

TEST_F(Ledger, ChainsItsEntriesAndTheLastOfANameCounts) {
  import("a.json", record_of(1));
  import("b.json", record_of(2));
  import("a.json", record_of(3));
  const json entries = ledger()["entries"];
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0]["previous"], json(nullptr));
  EXPECT_EQ(entries[1]["previous"], entries[0]["digest"]);
  EXPECT_EQ(entries[2]["previous"], entries[1]["digest"]);
  EXPECT_EQ(*read_json(folder / "a.json"), json::parse(record_of(3)));
  for (const Finding& finding : findings())
    EXPECT_EQ(name_of(finding.state), "CURRENT") << finding.file << ": " << finding.detail;
  EXPECT_EQ(findings().size(), 2u);
}

TEST_F(Ledger, AFileThatWasEditedIsTampered) {
  import("a.json", record_of(1));
  import("b.json", record_of(2));
  put("a.json", record_of(9));
  expect_only(EvidenceState::tampered, "a.json", "is not the file that was recorded");
  EXPECT_EQ(verify_evidence(folder, {}, {}).exit_code(), kEvidence);
}

TEST_F(Ledger, AnEntryThatWasEditedOrTakenOutIsTampered) {
  for (int i = 0; i < 3; ++i) import("r" + std::to_string(i) + ".json", record_of(i));
  const json whole = ledger();

  json edited = whole;
  edited["entries"][1]["bound_to"] = "machine code";
  put(std::string(kLedgerFile), edited.dump());
  expect_only(EvidenceState::tampered, std::string(kLedgerFile), "entry 2 was changed");

  json shorter = whole;
  shorter["entries"].erase(0);
  put(std::string(kLedgerFile), shorter.dump());
  fs::remove(folder / "r0.json");
  expect_only(EvidenceState::tampered, std::string(kLedgerFile), "one before it was taken out");

  put(std::string(kLedgerFile), "{");
  expect_only(EvidenceState::tampered, std::string(kLedgerFile), "");
}

TEST_F(Ledger, WhatIsGoneOrHasNoEntryIsMissing) {
  import("a.json", record_of(1));
  const std::string whole = *read_file(folder / "a.json");
  fs::remove(folder / "a.json");
  expect_only(EvidenceState::missing, "a.json", "it is not there");
  put("a.json", whole);
  put("stray.json", record_of(2));
  expect_only(EvidenceState::missing, "stray.json", "has no entry in the ledger");
}

TEST_F(Ledger, ABundleThatWasEditedIsNotImported) {
  const std::string names[] = {"a.json"}, texts[] = {record_of(1)};
  json bundle = *make_bundle(names, texts, {});
  ASSERT_TRUE(import_evidence(folder, "bundle", bundle.dump(), {}).status);
  bundle["records"][0]["text"] = record_of(2);
  const Import refused = import_evidence(folder, "bundle", bundle.dump(), {});
  EXPECT_TRUE(refused.tampered);
  EXPECT_FALSE(refused.status);
  EXPECT_NE(refused.status.message().find("not what was written"), std::string::npos);
  EXPECT_EQ(*read_json(folder / "a.json"), json::parse(record_of(1)));
  EXPECT_EQ(ledger()["entries"].size(), 1u);
}

TEST_F(Ledger, RefusesWhatIsNoRecordAndNamesThatLeaveTheFolder) {
  const auto refused = [&](const std::string& name, const std::string& text) {
    const Import import = import_evidence(folder, name, text, {});
    const Status& status = import.status;
    EXPECT_FALSE(import.tampered) << name;
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << name;
    return status.message();
  };
  for (const char* name : {"../a.json", "a/../b.json", "/a.json", ".a.json", "a/.b/c.json", "a.txt",
                           "", "ledger.json"})
    EXPECT_NE(refused(name, record_of(1)).find("a record is named"), std::string::npos) << name;
  EXPECT_NE(refused("a.json", "{\"schema\":").find("not JSON, or cut off"), std::string::npos);
  EXPECT_NE(refused("a.json", R"({"schema": "other/1"})").find("schema 'other/1'"),
            std::string::npos);
  const std::string cut = R"({"schema": "greenfast.run/1", "status": "interrupted"})";
  EXPECT_NE(refused("a.json", cut).find("interrupted"), std::string::npos);
  EXPECT_TRUE(fs::is_empty(folder));
}

TEST(KnownGaps, AreOfThatFormAlone) {
  const auto good =
      parse_known_gaps("e.toml", "[[known]]\nvariant = \"cuda.x\"\nreason = \"new\"\n");
  ASSERT_TRUE(good) << good.status().message();
  ASSERT_EQ(good->size(), 1u);
  EXPECT_EQ(good->front().subject, "cuda.x");
  for (const char* bad : {"[[known]]\nvariant = \"x\"\n", "[[gap]]\n", "known = 1\n", "[[known]\n",
                          "[[known]]\nvariant = \"x\"\nreason = \"y\"\nuntil = 3\n"}) {
    const Status status = parse_known_gaps("e.toml", bad).status();
    EXPECT_EQ(status.code(), StatusCode::invalid_argument) << bad;
    EXPECT_EQ(status.message().rfind("e.toml: ", 0), 0u) << status.message();
  }
}

}  // namespace
}  // namespace greenfast::workbench::test
