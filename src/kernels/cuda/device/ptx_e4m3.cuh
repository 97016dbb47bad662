// wgmma on e4m3, m64nNk32 of sm_90a with fp32 or fp16 accumulators, and the conversion to e4m3 (PTX
// ISA).
// There is no mma.sync here: Hopper does it through fp16.
//
// Accumulators as in ptx_wgmma.cuh; of fp16 ones a register holds two neighbours, d[2 * i + h] those
// at d[4 * i + 2 * h] and the next. A in registers, for lane 4 * g + t of a warp: a[r] holds row
// g + 8 * (r % 2), k 16 * (r / 2) + 4 * t to + 3, the first in the lowest byte. Both operands in
// shared memory have k along the rows: there is no transposing e4m3.
#pragma once

#include <cstdint>

namespace greenfast::cuda::ptx {

/// d (+)= A B^T, A [64, 32] and B [kN, 32] in shared memory; d = A B^T when not `accumulate`.
template <int kN>
__device__ void wgmma_ss_e4m3(float (&d)[kN / 2], std::uint64_t a, std::uint64_t b,
                              bool accumulate);
/// The same with A in registers.
template <int kN>
__device__ void wgmma_rs_e4m3(float (&d)[kN / 2], const std::uint32_t (&a)[4], std::uint64_t b,
                              bool accumulate);
/// The same with fp16 accumulators. 128 columns.
__device__ __forceinline__ void wgmma_rs_e4m3_half(std::uint32_t (&d)[32],
                                                   const std::uint32_t (&a)[4], std::uint64_t b,
                                                   bool accumulate);
/// And A in shared memory.
__device__ __forceinline__ void wgmma_ss_e4m3_half(std::uint32_t (&d)[32], std::uint64_t a,
                                                   std::uint64_t b, bool accumulate);

// The accumulators as operands of the instruction and of the asm statement.
#define GF_TEN(t)                                                                                  \
  "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t \
  "9, "
#define GF_NAMES_30 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " GF_TEN(1) GF_TEN(2)
#define GF_NAMES_60 GF_NAMES_30 GF_TEN(3) GF_TEN(4) GF_TEN(5)
#define GF_NAMES_24 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " GF_TEN(1) "%20, %21, %22, %23"
#define GF_NAMES_28 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " GF_TEN(1) "%20, %21, %22, %23, %24, %25, %26, %27"
#define GF_NAMES_32 GF_NAMES_30 "%30, %31"
#define GF_NAMES_36 GF_NAMES_30 "%30, %31, %32, %33, %34, %35"
#define GF_NAMES_64 GF_NAMES_60 "%60, %61, %62, %63"
#define GF_NAMES_68 GF_NAMES_60 "%60, %61, %62, %63, %64, %65, %66, %67"
#define GF_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define GF_D16(i) GF_D4(i), GF_D4(i + 4), GF_D4(i + 8), GF_D4(i + 12)
#define GF_D_24 GF_D16(0), GF_D4(16), GF_D4(20)
#define GF_D_28 GF_D_24, GF_D4(24)
#define GF_D_32 GF_D16(0), GF_D16(16)
#define GF_D_36 GF_D16(0), GF_D16(16), GF_D4(32)
#define GF_D_64 GF_D16(0), GF_D16(16), GF_D16(32), GF_D16(48)
#define GF_D_68 GF_D_64, GF_D4(64)

// R = kN / 2 accumulators; R1.. = R + 1.. number the operands that follow them.
#define GF_WGMMA_SS(N, R, R1, R2)                                                                  \
  template <>                                                                                      \
  __device__ __forceinline__ void wgmma_ss_e4m3<N>(float(&d)[R], std::uint64_t a, std::uint64_t b, \
                                                   bool accumulate) {                              \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %" #R2 ", 0; wgmma.mma_async.sync.aligned.m64n" #N \
                 "k32.f32.e4m3.e4m3 {" GF_NAMES_##R "}, %" #R ", %" #R1 ", p, 1, 1;}"              \
                 : GF_D_##R                                                                        \
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));                             \
  }
#define GF_WGMMA_RS(N, R, R1, R2, R3, R4, R5)                                                      \
  template <>                                                                                      \
  __device__ __forceinline__ void wgmma_rs_e4m3<N>(float(&d)[R], const std::uint32_t(&a)[4],       \
                                                   std::uint64_t b, bool accumulate) {             \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %" #R5 ", 0; wgmma.mma_async.sync.aligned.m64n" #N \
                 "k32.f32.e4m3.e4m3 {" GF_NAMES_##R "}, {%" #R ", %" #R1 ", %" #R2 ", %" #R3       \
                                                    "}, %" #R4 ", p, 1, 1;}"                       \
                 : GF_D_##R                                                                        \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                             \
                   "r"(static_cast<int>(accumulate)));                                             \
  }
GF_WGMMA_SS(64, 32, 33, 34)
GF_WGMMA_SS(128, 64, 65, 66)
GF_WGMMA_RS(48, 24, 25, 26, 27, 28, 29)
GF_WGMMA_RS(56, 28, 29, 30, 31, 32, 33)
GF_WGMMA_RS(64, 32, 33, 34, 35, 36, 37)
GF_WGMMA_RS(72, 36, 37, 38, 39, 40, 41)
GF_WGMMA_RS(128, 64, 65, 66, 67, 68, 69)
GF_WGMMA_RS(136, 68, 69, 70, 71, 72, 73)

#define GF_H4(i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define GF_H16(i) GF_H4(i), GF_H4(i + 4), GF_H4(i + 8), GF_H4(i + 12)
__device__ __forceinline__ void wgmma_rs_e4m3_half(std::uint32_t (&d)[32],
                                                   const std::uint32_t (&a)[4], std::uint64_t b,
                                                   bool accumulate) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %37, 0; wgmma.mma_async.sync.aligned.m64n128k32.f16.e4m3.e4m3 "
      "{" GF_NAMES_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1;}"
      : GF_H16(0), GF_H16(16)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)));
}
__device__ __forceinline__ void wgmma_ss_e4m3_half(std::uint32_t (&d)[32], std::uint64_t a,
                                                   std::uint64_t b, bool accumulate) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %34, 0; wgmma.mma_async.sync.aligned.m64n128k32.f16.e4m3.e4m3 "
      "{" GF_NAMES_32 "}, %32, %33, p, 1, 1;}"
      : GF_H16(0), GF_H16(16)
      : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));
}

#undef GF_NAMES_24
#undef GF_NAMES_28
#undef GF_NAMES_32
#undef GF_H4
#undef GF_H16
#undef GF_WGMMA_SS
#undef GF_WGMMA_RS
#undef GF_TEN
#undef GF_NAMES_30
#undef GF_NAMES_60
#undef GF_NAMES_36
#undef GF_NAMES_68
#undef GF_NAMES_64
#undef GF_D4
#undef GF_D16
#undef GF_D_24
#undef GF_D_28
#undef GF_D_32
#undef GF_D_36
#undef GF_D_68
#undef GF_D_64

/// (x & mask) | bits, as one instruction: with two constants ptxas makes two of it.
__device__ __forceinline__ std::uint32_t masked_or(std::uint32_t x, std::uint32_t mask,
                                                   std::uint32_t bits) {
  std::uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(x), "r"(mask), "r"(bits));
  return r;
}

/// Bytes of a and b, of which each is all ones where its sign is set and all zeros elsewhere, by a
/// selector of prmt whose nibbles have their highest bit set.
__device__ __forceinline__ std::uint32_t spread_signs(std::uint32_t a, std::uint32_t b,
                                                      std::uint32_t selector) {
  std::uint32_t r;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
  return r;
}
/// x where `keep` has ones, y elsewhere, as one instruction.
__device__ __forceinline__ std::uint32_t select_bits(std::uint32_t keep, std::uint32_t x,
                                                     std::uint32_t y) {
  std::uint32_t r;
  asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(r) : "r"(keep), "r"(x), "r"(y));
  return r;
}

/// Four floats to four e4m3 bytes, rounded to nearest even and saturating; x0 in the lowest byte.
/// Volatile: it stands behind the wait for the product that reads the register it writes.
__device__ __forceinline__ std::uint32_t pack_e4m3(float x0, float x1, float x2, float x3) {
  std::uint32_t r;
  asm volatile(
      "{.reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};}"
      : "=r"(r)
      : "f"(x0), "f"(x1), "f"(x2), "f"(x3));
  return r;
}
/// The same of four halves, two in a register.
__device__ __forceinline__ std::uint32_t pack_e4m3(std::uint32_t x01, std::uint32_t x23) {
  std::uint32_t r;
  asm("{.reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f16x2 low, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f16x2 high, %2;\n"
      "mov.b32 %0, {low, high};}"
      : "=r"(r)
      : "r"(x01), "r"(x23));
  return r;
}

}  // namespace greenfast::cuda::ptx
