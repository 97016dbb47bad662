// The ledger: what it takes, and what verify says of it after a change.
#include "workbench/evidence/ledger.hpp"

#include <gtest/gtest.h>

#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <map>
#include <vector>

#include "workbench/base/exit_code.hpp"
#include "workbench/base/files.hpp"
#include "workbench/base/json.hpp"
#include "workbench/base/schemas.hpp"
#include "workbench/evidence/verify.hpp"

namespace greenfast::workbench::test {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

/// The smallest record that the ledger takes: a selftest is bound to its policy alone.
std::string record_of(int number) {
  return json{{"schema", kSelftestSchema},
              {"utc", "2026-01-02T03:04:05Z"},
              {"build", {{"git", {{"sha", "abc"}, {"dirty", false}}}}},
              {"rows", json::array()},
              {"honest", 0},
              {"honest_green", 0},
              {"mutants", 0},
              {"mutants_caught", 0},
              {"ok", true},
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
  /// Every file and folder below the evidence, with the files' texts.
  std::map<std::string, std::string> everything() const {
    std::map<std::string, std::string> out;
    for (const auto& item : fs::recursive_directory_iterator(folder))
      out[item.path().string()] = item.is_directory() ? "" : *read_file(item.path());
    return out;
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

// One record of a bundle cannot be put where it belongs: those before it are not there either.
TEST_F(Ledger, ABundleThatFailsHalfwayLeavesEverythingAsItWas) {
  import("a.json", record_of(1));
  fs::create_directories(folder / "taken.json" / "inside");
  const auto before = everything();
  const std::string names[] = {"a.json", "new.json", "deep/er/b.json", "taken.json", "c.json"};
  std::vector<std::string> texts;
  for (int i = 0; i < 5; ++i) texts.push_back(record_of(10 + i));
  const json bundle = *make_bundle(names, texts, {});
  const Import failed = import_evidence(folder, "bundle", bundle.dump(), {});
  EXPECT_EQ(failed.status.code(), StatusCode::internal);
  EXPECT_NE(failed.status.message().find("taken.json"), std::string::npos)
      << failed.status.message();
  EXPECT_TRUE(failed.files.empty());
  EXPECT_EQ(everything(), before);

  fs::remove_all(folder / "taken.json");
  EXPECT_EQ(import_evidence(folder, "bundle", bundle.dump(), {}).files.size(), 5u);
  for (const Finding& finding : findings())
    EXPECT_EQ(name_of(finding.state), "CURRENT") << finding.file << ": " << finding.detail;
}

// The disk is full at the second record, here by a limit on the size of files.
TEST_F(Ledger, ABundleThatDoesNotFitLeavesEverythingAsItWas) {
  import("a.json", record_of(1));
  const auto before = everything();
  json large = json::parse(record_of(2));
  large["filler"] = std::string(200'000, 'x');
  const std::string names[] = {"a.json", "b.json"}, texts[] = {record_of(3), large.dump()};
  const std::string bundle = make_bundle(names, texts, {})->dump();
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{100'000, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Import failed = import_evidence(folder, "bundle", bundle, {});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(failed.status.code(), StatusCode::internal);
  EXPECT_NE(failed.status.message().find("b.json"), std::string::npos) << failed.status.message();
  EXPECT_EQ(everything(), before);
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

}  // namespace
}  // namespace greenfast::workbench::test
