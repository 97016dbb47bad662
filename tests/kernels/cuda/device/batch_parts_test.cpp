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

}  // namespace
}  // namespace greenfast::cuda
