// Parts of a batch as problems of their own: addresses, counts, and what each may say of alignment.
#include "kernels/cuda/device/batch_parts.hpp"

#include <greenfast/attention.hpp>

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace greenfast::cuda {
namespace {

// A part of one entry, whose stride between entries nobody asks for: cuda.sm90.decode stored 16 bytes
// at the odd address of the 65,536th (H200, 2026-11-23).
TEST(BatchParts, APartIsAlignedAsItsAddressIs) {
  for (const std::int64_t stride : {160, 161, 162, 164, 168}) {
    Problem problem = make_problem(5, 1, 1, 2, 8, 8, DType::bf16);
    problem.o.stride = {stride, 80, 80, 1};
    problem.o.alignment = 256;
    Tensors tensors;
    tensors.q = tensors.k = tensors.v = reinterpret_cast<const void*>(std::uintptr_t{1} << 20);
    tensors.o = reinterpret_cast<void*>(std::uintptr_t{1} << 20);
    std::vector<std::int64_t> batches;
    std::int64_t first = 0;
    const Status status =
        in_batch_parts(problem, tensors, 2, [&](const Problem& part, const Tensors& there) {
          const auto address = reinterpret_cast<std::uintptr_t>(there.o);
          EXPECT_EQ(address,
                    (std::uintptr_t{1} << 20) + static_cast<std::uintptr_t>(first * stride * 2));
          EXPECT_EQ(address % static_cast<std::uintptr_t>(part.o.alignment), 0u) << stride;
          EXPECT_EQ(reinterpret_cast<std::uintptr_t>(there.q) %
                        static_cast<std::uintptr_t>(part.q.alignment),
                    0u);
          EXPECT_GE(part.o.alignment, stride % 8 == 0 ? 16 : 2);
          batches.push_back(part.batch);
          first += part.batch;
          return Status{};
        });
    EXPECT_TRUE(status.ok());
    EXPECT_EQ(batches, (std::vector<std::int64_t>{2, 2, 1}));
  }
}

// How far the address of an operand moves to the part that begins with entry 3, in bytes.
std::int64_t moved_by(const Problem& problem, OperandId id) {
  constexpr std::uintptr_t kBase = std::uintptr_t{1} << 20;
  Tensors tensors;
  for (const Operand& operand : operands_of(problem))
    set_data(tensors, operand.id, reinterpret_cast<void*>(kBase));
  std::int64_t moved = -1;
  const Status status =
      in_batch_parts(problem, tensors, 3, [&](const Problem&, const Tensors& there) {
        moved =
            static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(data_of(there, id)) - kBase);
        return Status{};
      });
  EXPECT_TRUE(status.ok());
  return moved;
}

TEST(BatchParts, EveryOperandMovesAsItsTableSays) {
  Problem dense = make_problem(6, 4, 2, 5, 7, 16, DType::e4m3);
  dense.lse = true;
  dense.scales = ScaleKind::per_head;
  dense.sinks = true;
  dense.alibi = Alibi::per_batch_head;
  dense.sequences.used_q = dense.sequences.used_kv = true;
  dense.array_mask = {.kind = MaskKind::boolean, .stride = {0, 35, 7, 1}};
  EXPECT_EQ(moved_by(dense, OperandId::q), 3 * 4 * 5 * 16);
  EXPECT_EQ(moved_by(dense, OperandId::k), 3 * 2 * 7 * 16);
  EXPECT_EQ(moved_by(dense, OperandId::lse), 3 * 4 * 5 * 4);
  EXPECT_EQ(moved_by(dense, OperandId::q_scale), 3 * 4 * 4);
  EXPECT_EQ(moved_by(dense, OperandId::k_scale), 3 * 2 * 4);
  EXPECT_EQ(moved_by(dense, OperandId::used_kv), 3 * 4);
  EXPECT_EQ(moved_by(dense, OperandId::slopes), 3 * 4 * 4);
  EXPECT_EQ(moved_by(dense, OperandId::sinks), 0) << "all entries share them";
  EXPECT_EQ(moved_by(dense, OperandId::mask), 0) << "a stride of 0";
  dense.scales = ScaleKind::tensor;
  EXPECT_EQ(moved_by(dense, OperandId::v_scale), 0);
  dense.array_mask.stride[0] = 140;
  EXPECT_EQ(moved_by(dense, OperandId::mask), 3 * 140);

  // As many pages, or entries to pick from, as batch entries: not theirs for all that.
  Problem paged = make_problem(6, 4, 2, 5, 7, 16, DType::f16);
  paged.pages = {.size = 16, .count = 6, .row_stride = 9};
  EXPECT_EQ(moved_by(paged, OperandId::k), 0);
  EXPECT_EQ(moved_by(paged, OperandId::page_table), 3 * 9 * 4);
  Problem picked = make_problem(6, 4, 2, 5, 7, 16, DType::f16);
  picked.sequences.kv_index = true;
  picked.sequences.kv_rows = 6;
  EXPECT_EQ(moved_by(picked, OperandId::v), 0);
  EXPECT_EQ(moved_by(picked, OperandId::kv_index), 3 * 4);
  Problem packed = make_problem(6, 4, 2, 5, 7, 16, DType::f16);
  packed.sequences.packed_q = packed.sequences.packed_kv = true;
  packed.sequences.total_q = packed.sequences.total_kv = 20;
  EXPECT_EQ(moved_by(packed, OperandId::q), 0);
  EXPECT_EQ(moved_by(packed, OperandId::o), 0);
  EXPECT_EQ(moved_by(packed, OperandId::cu_q), 3 * 4);
}

}  // namespace
}  // namespace greenfast::cuda
