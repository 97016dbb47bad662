// Selectors of subjects: who is meant, in which order, and what the refusals list.
#include "workbench/subjects/subject.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "workbench/subjects/mutants/mutants.hpp"

namespace greenfast::workbench::test {
namespace {

std::vector<std::string> ids(std::string_view selector) {
  const auto found = find_subjects(selector);
  EXPECT_TRUE(found) << found.status().message();
  std::vector<std::string> out;
  if (found)
    for (const auto& subject : *found) out.push_back(subject->id());
  return out;
}

std::string refusal(std::string_view selector) {
  const Status status = find_subjects(selector).status();
  EXPECT_EQ(status.code(), StatusCode::invalid_argument) << selector;
  return status.message();
}

TEST(FindSubjects, InTheOrderAskedEachOnce) {
  EXPECT_EQ(ids("cpu.naive, cpu.flash,cpu.naive"),
            (std::vector<std::string>{"cpu.naive", "cpu.flash"}));
  std::vector<std::string> flash_first{"cpu.flash"};
  for (const VariantInfo& variant : variants())
    if (variant.id.starts_with("cpu.") && variant.derived_from.empty() && variant.id != "cpu.flash")
      flash_first.emplace_back(variant.id);
  EXPECT_EQ(ids("cpu.flash,cpu.*"), flash_first);
}

TEST(FindSubjects, GroupsAreWhatTheRegistrySays) {
  std::vector<std::string> all, automatic, rollback;
  for (const VariantInfo& variant : variants()) {
    if (variant.derived_from.empty()) all.push_back(variant.id);
    if (variant.derived_from.empty() && variant.automatic) automatic.push_back(variant.id);
    if (!variant.derived_from.empty() && variant.phases.empty()) rollback.push_back(variant.id);
  }
  ASSERT_FALSE(rollback.empty());
  EXPECT_EQ(ids("all"), all);
  EXPECT_EQ(ids("*"), all) << "a derived variant matches no pattern";
  EXPECT_EQ(ids("auto"), automatic);
  EXPECT_EQ(ids("rollback"), rollback);
  EXPECT_EQ(ids(rollback.front()), std::vector<std::string>{rollback.front()}) << "but its id";
  for (const std::string& rung : ids("ladder")) {
    EXPECT_EQ(std::count(automatic.begin(), automatic.end(), rung), 0) << rung;
    EXPECT_EQ(std::count(all.begin(), all.end(), rung), 1) << rung;
  }
}

TEST(FindSubjects, PlantedKernelsMustBeAskedFor) {
  const auto all = ids("*");
  EXPECT_TRUE(std::none_of(all.begin(), all.end(), [](auto& id) { return names_planted(id); }));
  const auto mutants = ids("mutant.*"), honest = ids("honest.*");
  EXPECT_GT(mutants.size(), 20u);
  EXPECT_FALSE(honest.empty());
  EXPECT_EQ(ids(mutants.back()), std::vector<std::string>{mutants.back()});
}

TEST(FindSubjects, ARefusalListsWhatExists) {
  const std::string unknown = refusal("cpu.flsh");
  EXPECT_NE(unknown.find("'cpu.flsh': matches nothing"), std::string::npos) << unknown;
  for (const VariantInfo& variant : variants())
    EXPECT_NE(unknown.find(variant.id), std::string::npos) << variant.id;
  EXPECT_EQ(unknown.find("mutant.v"), std::string::npos) << "half a hundred names help nobody";

  const std::string planted = refusal("mutant.no_such");
  for (const PlantedRow& row : planted_table())
    EXPECT_NE(planted.find(planted_id(row)), std::string::npos) << row.name;

  EXPECT_NE(refusal("cpu.flash,,cpu.naive").find("empty item"), std::string::npos);
  EXPECT_NE(refusal("").find("empty item"), std::string::npos);
  EXPECT_NE(refusal("plugin:none").find("matches nothing"), std::string::npos);
}

TEST(LibrarySubject, RefusesInTheWordsOfSelection) {
  const DeviceFacts cpu = *model_facts("cpu"), gpu = *model_facts("h200");
  Problem problem = make_problem(1, 2, 2, 16, 16, 32, DType::f32);
  const auto flash = std::move(find_subjects("cpu.flash")->front());
  EXPECT_FALSE(flash->refusal(problem, cpu)) << *flash->refusal(problem, cpu);
  EXPECT_EQ(flash->plan(problem, cpu)->variant, "cpu.flash");
  EXPECT_EQ(flash->refusal(problem, gpu), "runs on cpu, not on cuda");

  problem.head_dim = 7;
  const auto refused = flash->refusal(problem, cpu);
  ASSERT_TRUE(refused);
  EXPECT_EQ(*refused, explain(problem, cpu).candidates.front().reason);
  EXPECT_FALSE(flash->plan(problem, cpu));
  EXPECT_EQ(make_automatic_subject(DeviceKind::cpu)->id(), "auto");
}

}  // namespace
}  // namespace greenfast::workbench::test
