// C += A B on small row-major tiles, the one hot loop of oracle, emulator and planted kernels.
#pragma once

#include <cstdint>

namespace greenfast::workbench {

/// c[rows][cols] += a[rows][depth] * b[depth][cols], with leading dimensions in elements; cols is a
/// multiple of 8. Uses the widest vectors this machine has.
void tile_gemm(std::int64_t rows, std::int64_t cols, std::int64_t depth, const double* a,
               std::int64_t lda, const double* b, std::int64_t ldb, double* c, std::int64_t ldc);
void tile_gemm(std::int64_t rows, std::int64_t cols, std::int64_t depth, const float* a,
               std::int64_t lda, const float* b, std::int64_t ldb, float* c, std::int64_t ldc);

}  // namespace greenfast::workbench
