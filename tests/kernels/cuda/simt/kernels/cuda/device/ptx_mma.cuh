// Stand-in: ldmatrix and mma.sync m16n8k16, from the PTX ISA's tables of fragments.
#pragma once
#include "cuda_bf16.h"
#include "cuda_fp16.h"

namespace greenfast::cuda::ptx {
inline const simt::Given* addresses(std::uint32_t shared) {
  if (shared % 16 != 0) throw std::runtime_error("ldmatrix: a row that is not aligned");
  simt::Given mine;
  mine.word[0] = shared;
  return simt::exchange(mine);
}
inline void ldmatrix_x4(std::uint32_t (&r)[4], std::uint32_t shared) {
  const simt::Given* all = addresses(shared);
  const unsigned g = simt::lane() / 4, t = simt::lane() % 4;
  for (unsigned i = 0; i < 4; ++i) std::memcpy(&r[i], simt::at(all[8 * i + g].word[0]) + 4 * t, 4);
}
inline void ldmatrix_x4_trans(std::uint32_t (&r)[4], std::uint32_t shared) {
  const simt::Given* all = addresses(shared);
  const unsigned g = simt::lane() / 4, t = simt::lane() % 4;
  for (unsigned i = 0; i < 4; ++i) {
    std::uint16_t two[2];
    for (unsigned n = 0; n < 2; ++n)
      std::memcpy(&two[n], simt::at(all[8 * i + 2 * t + n].word[0]) + 2 * g, 2);
    r[i] = two[0] | static_cast<std::uint32_t>(two[1]) << 16;
  }
}
template <class T>
void mma_m16n8k16(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  const simt::Given* all = simt::exchange({{a[0], a[1], a[2], a[3], b0, b1, 0, 0}});
  const unsigned g = simt::lane() / 4, t = simt::lane() % 4;
  const auto half_of = [](std::uint32_t word, unsigned n) {
    T x;
    x.bits = static_cast<std::uint16_t>(word >> 16 * n);
    return to_float(x);
  };
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = g + i / 2 * 8, column = 2 * t + i % 2;
    double sum = c[i];
    for (unsigned k = 0; k < 16; ++k) {
      const float x = half_of(all[row % 8 * 4 + k % 8 / 2].word[row / 8 + 2 * (k / 8)], k % 2);
      const float y = half_of(all[column * 4 + k % 8 / 2].word[4 + k / 8], k % 2);
      sum += double{x} * double{y};
    }
    c[i] = static_cast<float>(sum);
  }
}
}  // namespace greenfast::cuda::ptx
