#include "workbench/reference/tile_gemm.hpp"

#include <cstring>

namespace greenfast::workbench {
namespace {

using Index = std::int64_t;

// Eight elements; the compiler maps them to whatever the enclosing function's target has.
template <class T>
using Vec [[gnu::vector_size(8 * sizeof(T))]] = T;

template <class T>
[[gnu::always_inline]] inline void load(Vec<T>& v, const T* from) {
  std::memcpy(&v, from, sizeof v);
}

// R rows by 8 W columns in registers.
template <class T, int R, int W>
[[gnu::always_inline]] inline void block(Index depth, const T* a, Index lda, const T* b, Index ldb,
                                         T* c, Index ldc) {
  Vec<T> acc[R][W];
  for (int r = 0; r < R; ++r)
    for (int w = 0; w < W; ++w) load<T>(acc[r][w], c + r * ldc + 8 * w);
  for (Index k = 0; k < depth; ++k) {
    Vec<T> row[W];
    for (int w = 0; w < W; ++w) load<T>(row[w], b + k * ldb + 8 * w);
    for (int r = 0; r < R; ++r) {
      const T x = a[r * lda + k];
      for (int w = 0; w < W; ++w) acc[r][w] += row[w] * x;
    }
  }
  for (int r = 0; r < R; ++r)
    for (int w = 0; w < W; ++w) std::memcpy(c + r * ldc + 8 * w, &acc[r][w], sizeof acc[r][w]);
}

template <class T, int W>
[[gnu::always_inline]] inline void columns(Index rows, Index depth, const T* a, Index lda,
                                           const T* b, Index ldb, T* c, Index ldc) {
  Index r = 0;
  for (; r + 4 <= rows; r += 4) block<T, 4, W>(depth, a + r * lda, lda, b, ldb, c + r * ldc, ldc);
  for (; r < rows; ++r) block<T, 1, W>(depth, a + r * lda, lda, b, ldb, c + r * ldc, ldc);
}

template <class T, int W>
[[gnu::always_inline]] inline void gemm(Index rows, Index cols, Index depth, const T* a, Index lda,
                                        const T* b, Index ldb, T* c, Index ldc) {
  Index n = 0;
  for (; n + 8 * W <= cols; n += 8 * W) columns<T, W>(rows, depth, a, lda, b + n, ldb, c + n, ldc);
  for (; n + 8 <= cols; n += 8) columns<T, 1>(rows, depth, a, lda, b + n, ldb, c + n, ldc);
}

#if defined(__x86_64__)
template <class T>
[[gnu::target("avx512f")]] void gemm_avx512(Index rows, Index cols, Index depth, const T* a,
                                            Index lda, const T* b, Index ldb, T* c, Index ldc) {
  gemm<T, 2>(rows, cols, depth, a, lda, b, ldb, c, ldc);
}
template <class T>
[[gnu::target("avx2,fma")]] void gemm_avx2(Index rows, Index cols, Index depth, const T* a,
                                           Index lda, const T* b, Index ldb, T* c, Index ldc) {
  gemm<T, 1>(rows, cols, depth, a, lda, b, ldb, c, ldc);
}
#endif

template <class T>
void gemm_portable(Index rows, Index cols, Index depth, const T* a, Index lda, const T* b,
                   Index ldb, T* c, Index ldc) {
  gemm<T, 1>(rows, cols, depth, a, lda, b, ldb, c, ldc);
}

template <class T>
auto* choose() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return &gemm_avx512<T>;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return &gemm_avx2<T>;
#endif
  return &gemm_portable<T>;
}

}  // namespace

void tile_gemm(Index rows, Index cols, Index depth, const double* a, Index lda, const double* b,
               Index ldb, double* c, Index ldc) {
  static auto* const best = choose<double>();
  best(rows, cols, depth, a, lda, b, ldb, c, ldc);
}

void tile_gemm(Index rows, Index cols, Index depth, const float* a, Index lda, const float* b,
               Index ldb, float* c, Index ldc) {
  static auto* const best = choose<float>();
  best(rows, cols, depth, a, lda, b, ldb, c, ldc);
}

}  // namespace greenfast::workbench
