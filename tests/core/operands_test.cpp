// The table of operands against the definition of a layout.
#include <greenfast/operands.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

namespace greenfast {
namespace {

// Bytes up to the end of the last element, by walking over all of them.
std::int64_t walked(const Operand& operand) {
  std::int64_t end = 0;
  const auto& [b, h, s, d] = operand.shape;
  const auto& stride = operand.layout.stride;
  for (std::int64_t i = 0; i < b; ++i)
    for (std::int64_t j = 0; j < h; ++j)
      for (std::int64_t k = 0; k < s; ++k)
        for (std::int64_t l = 0; l < d; ++l)
          end = std::max(end, i * stride[0] + j * stride[1] + k * stride[2] + l * stride[3] + 1);
  return end * static_cast<std::int64_t>(element_bytes(operand));
}

std::vector<Problem> problems() {
  std::vector<Problem> all;
  for (const Order order : {Order::bhsd, Order::bshd})
    for (const DType dtype : {DType::f32, DType::bf16, DType::e4m3})
      for (const std::int64_t seq_kv : {0, 1, 9}) {
        Problem p = make_problem(2, 6, 3, 5, seq_kv, 16, dtype, order);
        all.push_back(p);
        p.lse = true;
        p.k.stride[0] = p.v.stride[1] = 0;  // broadcast
        p.o.stride[2] += 8;                 // rows apart
        p.o.stride[1] += 400;
        p.o.stride[0] += 4000;
        if (dtype == DType::e4m3) p.scales = ScaleKind::tensor;
        all.push_back(p);
        if (dtype == DType::e4m3) p.scales = ScaleKind::per_head;
        all.push_back(p);
      }
  all.push_back(make_problem(0, 6, 3, 5, 9, 16, DType::f16));
  all.push_back(make_problem(2, 6, 3, 0, 9, 16, DType::f16));
  return all;
}

TEST(Operands, ExtentsAreThoseOfTheLayout) {
  for (const Problem& p : problems()) {
    SCOPED_TRACE(to_string(p));
    for (const Operand& operand : operands_of(p)) {
      SCOPED_TRACE(operand.name);
      EXPECT_EQ(operand.bytes, operand.present ? walked(operand) : 0);
    }
  }
}

TEST(Operands, AreInTheOrderOfTheirIdsOutputsFirst) {
  for (const Problem& p : problems()) {
    std::set<std::string_view> names;
    bool inputs = false;
    const auto table = operands_of(p);
    for (std::size_t n = 0; n < kOperands; ++n) {
      EXPECT_EQ(table[n].id, static_cast<OperandId>(n));
      EXPECT_TRUE(names.insert(table[n].name).second);
      inputs = inputs || table[n].role == Role::input;
      EXPECT_EQ(inputs, table[n].role == Role::input);
      EXPECT_TRUE(table[n].present || !table[n].needed);
    }
  }
}

TEST(Operands, WhatACallTouchesFollowsFromTheProblem) {
  const auto named = [](const Problem& p, auto flag) {
    std::string out;
    for (const Operand& operand : operands_of(p))
      if (operand.*flag) out += std::string(operand.name) + " ";
    return out;
  };
  Problem p = make_problem(2, 6, 3, 5, 9, 16, DType::e4m3);
  EXPECT_EQ(named(p, &Operand::needed), "o q k v ");
  p.lse = true;
  p.scales = ScaleKind::tensor;
  EXPECT_EQ(named(p, &Operand::needed), "o lse q k v q_scale k_scale v_scale ");
  EXPECT_EQ(operands_of(p)[5].bytes, 4);
  p.scales = ScaleKind::per_head;
  EXPECT_EQ(operands_of(p)[5].bytes, 2 * 6 * 4);
  EXPECT_EQ(operands_of(p)[6].bytes, 2 * 3 * 4);
  p.seq_kv = 0;
  EXPECT_EQ(named(p, &Operand::needed), "o lse ");
  EXPECT_EQ(named(p, &Operand::present), "o lse q k v q_scale k_scale v_scale ");
  p.batch = 0;
  EXPECT_EQ(named(p, &Operand::needed), "");
}

TEST(Operands, FactorsOfBlocksAreCountedForTheLongestSequence) {
  Problem p = make_problem(3, 8, 2, 129, 1000, 64, DType::e4m3);
  p.scales = ScaleKind::per_block;
  const auto all = operands_of(p);
  const Operand& q = all[static_cast<std::size_t>(OperandId::q_scale)];
  const Operand& v = all[static_cast<std::size_t>(OperandId::v_scale)];
  EXPECT_EQ(q.shape, (std::array<std::int64_t, 4>{3, 8, 2, 1}));
  EXPECT_EQ(v.shape, (std::array<std::int64_t, 4>{3, 2, 8, 1}));
  EXPECT_EQ(v.bytes, 3 * 2 * 8 * 4);
  EXPECT_TRUE(v.by_entry);
  EXPECT_EQ(v.layout.stride[0], 16);  // from one entry of the batch to the next
}

TEST(Operands, DataIsReadAndSetByName) {
  float memory[kOperands] = {};
  Tensors tensors;
  for (std::size_t n = 0; n < kOperands; ++n)
    set_data(tensors, static_cast<OperandId>(n), memory + n);
  for (std::size_t n = 0; n < kOperands; ++n)
    EXPECT_EQ(data_of(tensors, static_cast<OperandId>(n)), memory + n);
  EXPECT_EQ(tensors.o, memory);
  EXPECT_EQ(tensors.lse, memory + 1);
  EXPECT_EQ(tensors.q, memory + 2);
  EXPECT_EQ(tensors.v_scale, memory + 7);
  EXPECT_EQ(data_of(tensors, static_cast<OperandId>(kOperands)), nullptr);
}

}  // namespace
}  // namespace greenfast
