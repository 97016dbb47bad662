// Planted kernels themselves: what they compute, what they refuse and what they remember. That the
// gate finds them is selftest_test's.
#include "workbench/subjects/mutants/mutants.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include <greenfast/operands.hpp>

#include "workbench/base/numeric.hpp"
#include "workbench/cases/choose_rows.hpp"
#include "workbench/cases/operand_bytes.hpp"
#include "workbench/reference/oracle.hpp"

namespace greenfast::workbench::test {
namespace {

// One small problem in fp32 with its inputs and poisoned outputs.
struct Call {
  Case test;
  Inputs inputs;
  std::vector<std::byte> o;
  Tensors tensors;

  explicit Call(std::int64_t seq_kv = 70) {
    test.problem = make_problem(1, 2, 1, 9, seq_kv, 16, DType::f32);
    inputs = generate(test);
    for (const Operand& operand : operands_of(test.problem)) {
      if (!operand.present) continue;
      if (operand.role == Role::input) {
        set_data(tensors, operand.id, bytes_of(inputs, operand.id).data());
        continue;
      }
      o.assign(static_cast<std::size_t>(operand.bytes), std::byte{0xff});
      set_data(tensors, operand.id, o.data());
    }
  }
  void launch(Subject& subject) {
    const Status status = subject.launch(test.problem, tensors, nullptr, nullptr, 0);
    ASSERT_TRUE(status) << status.message();
  }
  // At the same addresses.
  void launch_with_other_values(Subject& subject) {
    ++test.seed;
    const Inputs other = generate(test);
    for (const Operand& operand : operands_of(test.problem)) {
      if (!operand.present || operand.role == Role::output) continue;
      const auto from = bytes_of(other, operand.id);
      std::memcpy(bytes_of(inputs, operand.id).data(), from.data(), from.size());
    }
    launch(subject);
  }
  // The largest difference from the oracle.
  double error() const {
    const Reference truth = compute_reference(test, inputs, choose_rows(test, 1e18));
    double worst = 0;
    for (std::size_t i = 0; i < truth.o.size(); ++i)
      worst = std::max(worst,
                       std::fabs(numeric::load(DType::f32, o.data(), static_cast<std::int64_t>(i)) -
                                 truth.o[i]));
    return worst;
  }
};

std::string refusal(std::string_view id, const Problem& problem,
                    DeviceKind kind = DeviceKind::cpu) {
  DeviceFacts facts;
  facts.kind = kind;
  return make_planted(id)->refusal(problem, facts).value_or("taken");
}

TEST(Planted, NamesAreUniqueAndFound) {
  std::set<std::string> ids;
  for (const PlantedRow& row : planted_table()) {
    const std::string id = planted_id(row);
    EXPECT_TRUE(ids.insert(id).second) << row.name;
    EXPECT_TRUE(names_planted(id)) << id;
    EXPECT_EQ(id.starts_with("honest."), row.honest) << id;
    const auto subject = make_planted(id);
    ASSERT_NE(subject, nullptr) << id;
    EXPECT_EQ(subject->id(), id);
    EXPECT_FALSE(row.models.empty());
  }
  EXPECT_EQ(make_planted("mutant.no_such"), nullptr);
  EXPECT_FALSE(names_planted("cpu.flash"));
  EXPECT_TRUE(std::is_partitioned(planted_table().begin(), planted_table().end(),
                                  [](const PlantedRow& row) { return !row.honest; }))
      << "mutants first";
}

TEST(Planted, HonestOnesAreRightAndFaultyOnesAreNot) {
  int honest = 0;
  for (const PlantedRow& row : planted_table()) {
    if (!row.honest) continue;
    ++honest;
    Call call;
    call.launch(*make_planted(planted_id(row)));
    EXPECT_LT(call.error(), 1e-4) << row.name;
  }
  EXPECT_GE(honest, 3);
  for (const char* name : {"zeros", "mean_v", "gain", "bias", "scale_x0.8", "drops_last_key"}) {
    Call call;
    call.launch(*make_planted(std::string("mutant.") + name));
    EXPECT_GT(call.error(), 1e-3) << name;
  }
}

TEST(Planted, WhatCannotShowAFaultIsRefusedWithWhatItLacks) {
  Problem p = make_problem(1, 2, 2, 64, 64, 32, DType::f16);
  for (const PlantedRow& row : planted_table()) {
    const char* lacks = row.absent == nullptr ? nullptr : row.absent(p);
    EXPECT_EQ(refusal(planted_id(row), p), lacks == nullptr ? "taken" : lacks) << row.name;
    if (row.honest) {
      EXPECT_EQ(row.absent, nullptr) << row.name;
    }
  }
  EXPECT_EQ(refusal("mutant.causal_sees_next", p), "needs a causal mask or a window");
  EXPECT_EQ(refusal("mutant.zeros", p, DeviceKind::cuda), "planted kernels run on cpu");
}

// They answer what selection asks of a row: nobody computes what he has not heard of.
TEST(Planted, AFeatureThatTheEmulatorDoesNotKnowIsRefusedByName) {
  Problem p = make_problem(1, 2, 2, 64, 64, 32, DType::f16);
  p.alibi = static_cast<Alibi>(9);
  for (const PlantedRow& row : planted_table())
    EXPECT_EQ(refusal(planted_id(row), p).find("an unknown feature"), 0u) << row.name;
}

TEST(Planted, AnInstanceRemembersItsCallsAndNoOtherOnes) {
  const auto replay = make_planted("mutant.replay");
  Call call;
  call.launch(*replay);
  EXPECT_LT(call.error(), 1e-4) << "the first call is computed";
  const std::vector<std::byte> first = call.o;
  call.launch_with_other_values(*replay);
  EXPECT_EQ(call.o, first) << "then it is remembered by its addresses";
  call.launch_with_other_values(*make_planted("mutant.replay"));
  EXPECT_NE(call.o, first) << "a fresh one has no memory";

  const auto once = make_planted("mutant.runs_once");
  Call another;
  another.launch(*once);
  EXPECT_LT(another.error(), 1e-4);
  std::fill(another.o.begin(), another.o.end(), std::byte{0xff});
  another.launch(*once);
  EXPECT_TRUE(std::all_of(another.o.begin(), another.o.end(),
                          [](std::byte b) { return b == std::byte{0xff}; }));
}

TEST(Planted, OnADevicesBuffersOnlyWhatChangedIsWrittenBack) {
  const auto device = open_device(DeviceKind::cpu);
  ASSERT_TRUE(device);
  Call call;
  // Room on both sides: what a launch is given is fetched with it.
  constexpr std::size_t kMargin = 1024;
  std::vector<std::vector<std::byte>> memory;
  Tensors there;
  for (const Operand& operand : operands_of(call.test.problem)) {
    if (!operand.present) continue;
    auto& bytes =
        memory.emplace_back(2 * kMargin + static_cast<std::size_t>(operand.bytes), std::byte{0x5a});
    std::memcpy(bytes.data() + kMargin, data_of(call.tensors, operand.id),
                static_cast<std::size_t>(operand.bytes));
    set_data(there, operand.id, bytes.data() + kMargin);
  }
  const auto before = memory;
  const auto honest = make_planted_on("honest.two_pass", **device);
  ASSERT_NE(honest, nullptr);
  EXPECT_EQ(honest->device(), DeviceKind::cpu);
  ASSERT_TRUE(honest->launch(call.test.problem, there, nullptr, nullptr, 0));
  std::memcpy(call.o.data(), there.o, call.o.size());
  EXPECT_LT(call.error(), 1e-4);
  EXPECT_NE(memory.front(), before.front());
  for (std::size_t i = 0; i < memory.size(); ++i) {
    if (i > 0) {
      EXPECT_EQ(memory[i], before[i]) << "an input";
    }
    for (std::size_t at = 0; at < kMargin; ++at) {
      ASSERT_EQ(memory[i][at], std::byte{0x5a});
      ASSERT_EQ(memory[i][memory[i].size() - 1 - at], std::byte{0x5a});
    }
  }
  ASSERT_TRUE(make_planted_on("mutant.overrun", **device)
                  ->launch(call.test.problem, there, nullptr, nullptr, 0));
  EXPECT_EQ(memory.front()[memory.front().size() - kMargin], std::byte{0})
      << "a write outside reaches the device";
}

}  // namespace
}  // namespace greenfast::workbench::test
