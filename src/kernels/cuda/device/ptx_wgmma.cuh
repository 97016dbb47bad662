// Warpgroup matrix instructions of sm_90a: m64nNk16, 16-bit inputs, fp32 accumulators (PTX ISA,
// "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions").
//
// Accumulator of thread 32 * w + 4 * g + t: d[4 * i + 2 * h + e] is row 16 * w + g + 8 * h, column
// 8 * i + 2 * t + e. A in registers has the layout of mma.m16n8k16.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace greenfast::cuda::ptx {

/// Before the first wgmma, and whenever ordinary code has touched its registers since.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most kPending of the newest groups are unfinished.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Tells the compiler that the registers change here; it knows nothing of asynchronous writes.
template <int kCount>
__device__ __forceinline__ void pin_registers(float (&r)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(r[i])::"memory");
}

/// Descriptor of a tile of 128-byte rows with 128-byte swizzle: start address / 16 in bits 0-13,
/// leading offset / 16 in 16-29 (distance of 64-column chunks where columns run along M or N,
/// ignored otherwise), stride offset / 16 in 32-45 (8 rows: 1024 bytes), swizzle mode 1 in 62-63.
/// The low word holds all that varies, so that arithmetic on it stays in one uniform register.
__device__ __forceinline__ std::uint64_t descriptor(std::uint32_t high, std::uint32_t low) {
  return (static_cast<std::uint64_t>(high) << 32) | low;
}
inline constexpr std::uint32_t kSwizzle128High = (1u << 30) | (1024 / 16);
__device__ __forceinline__ std::uint64_t swizzle128_descriptor(std::uint32_t low) {
  return descriptor(kSwizzle128High, low);
}

/// d (+)= A B^T, A [64, 16] and B [kN, 16] in shared memory with k along the rows; d = A B^T when
/// not `accumulate`.
template <class T, int kN>
__device__ void wgmma_ss(float (&d)[kN / 2], std::uint64_t a, std::uint64_t b, bool accumulate);
/// The same with A in registers.
template <class T, int kN>
__device__ void wgmma_rs(float (&d)[kN / 2], const std::uint32_t (&a)[4], std::uint64_t b,
                         bool accumulate);
/// d (+)= A B, A [64, 16] in registers, B [16, kN] in shared memory with n along the rows.
template <class T, int kN>
__device__ void wgmma_rs_nmajor(float (&d)[kN / 2], const std::uint32_t (&a)[4], std::uint64_t b,
                                bool accumulate);

// The accumulators as an operand list of the instruction ("%0, %1, ...") and of the asm statement,
// ten at a time.
#define GF_TEN_NAMES(t)                                                                            \
  "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t \
  "9, "
#define GF_FIRST_TEN_NAMES "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, "
#define GF_NAMES_30 GF_FIRST_TEN_NAMES GF_TEN_NAMES(1) GF_TEN_NAMES(2)
#define GF_NAMES_60 GF_NAMES_30 GF_TEN_NAMES(3) GF_TEN_NAMES(4) GF_TEN_NAMES(5)
#define GF_NAMES_90 GF_NAMES_60 GF_TEN_NAMES(6) GF_TEN_NAMES(7) GF_TEN_NAMES(8)
#define GF_NAMES_32 GF_NAMES_30 "%30, %31"
#define GF_NAMES_36 GF_NAMES_30 "%30, %31, %32, %33, %34, %35"
#define GF_NAMES_40 GF_NAMES_30 "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39"
#define GF_NAMES_48 GF_NAMES_30 GF_TEN_NAMES(3) "%40, %41, %42, %43, %44, %45, %46, %47"
#define GF_NAMES_56 GF_NAMES_30 GF_TEN_NAMES(3) GF_TEN_NAMES(4) "%50, %51, %52, %53, %54, %55"
#define GF_NAMES_64 GF_NAMES_60 "%60, %61, %62, %63"
#define GF_NAMES_96 GF_NAMES_90 "%90, %91, %92, %93, %94, %95"
#define GF_NAMES_128                           \
  GF_NAMES_90 GF_TEN_NAMES(9) GF_TEN_NAMES(10) \
      GF_TEN_NAMES(11) "%120, %121, %122, %123, %124, %125, %126, %127"

#define GF_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define GF_D8(i) GF_D4(i), GF_D4(i + 4)
#define GF_D32_AT(i) GF_D8(i), GF_D8(i + 8), GF_D8(i + 16), GF_D8(i + 24)
#define GF_D_32 GF_D32_AT(0)
#define GF_D_36 GF_D_32, GF_D4(32)
#define GF_D_40 GF_D_32, GF_D8(32)
#define GF_D_48 GF_D_40, GF_D8(40)
#define GF_D_56 GF_D_48, GF_D8(48)
#define GF_D_64 GF_D_32, GF_D32_AT(32)
#define GF_D_96 GF_D_64, GF_D32_AT(64)
#define GF_D_128 GF_D_96, GF_D32_AT(96)

// R = kN / 2 accumulators; R1.. = R + 1.. number the operands that follow them.
#define GF_WGMMA(T, TYPE, N, R, R1, R2, R3, R4, R5)                                                \
  template <>                                                                                      \
  __device__ __forceinline__ void wgmma_ss<T, N>(float(&d)[R], std::uint64_t a, std::uint64_t b,   \
                                                 bool accumulate) {                                \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %" #R2 ", 0; wgmma.mma_async.sync.aligned.m64n" #N \
                 "k16.f32." TYPE "." TYPE " {" GF_NAMES_##R "}, %" #R ", %" #R1                    \
                                                            ", p, 1, 1, 0, 0;}"                    \
                 : GF_D_##R                                                                        \
                 : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));                             \
  }                                                                                                \
  template <>                                                                                      \
  __device__ __forceinline__ void wgmma_rs<T, N>(float(&d)[R], const std::uint32_t(&a)[4],         \
                                                 std::uint64_t b, bool accumulate) {               \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %" #R5 ", 0; wgmma.mma_async.sync.aligned.m64n" #N \
                 "k16.f32." TYPE "." TYPE " {" GF_NAMES_##R "}, {%" #R ", %" #R1 ", %" #R2         \
                                                            ", %" #R3 "}, %" #R4 ", p, 1, 1, 0;}"  \
                 : GF_D_##R                                                                        \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                             \
                   "r"(static_cast<int>(accumulate)));                                             \
  }                                                                                                \
  template <>                                                                                      \
  __device__ __forceinline__ void wgmma_rs_nmajor<T, N>(float(&d)[R], const std::uint32_t(&a)[4],  \
                                                        std::uint64_t b, bool accumulate) {        \
    asm volatile("{.reg .pred p; setp.ne.b32 p, %" #R5 ", 0; wgmma.mma_async.sync.aligned.m64n" #N \
                 "k16.f32." TYPE "." TYPE " {" GF_NAMES_##R "}, {%" #R ", %" #R1 ", %" #R2         \
                                                            ", %" #R3 "}, %" #R4 ", p, 1, 1, 1;}"  \
                 : GF_D_##R                                                                        \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),                             \
                   "r"(static_cast<int>(accumulate)));                                             \
  }
#define GF_WGMMA_BOTH_TYPES(...)       \
  GF_WGMMA(__half, "f16", __VA_ARGS__) \
  GF_WGMMA(__nv_bfloat16, "bf16", __VA_ARGS__)

GF_WGMMA_BOTH_TYPES(64, 32, 33, 34, 35, 36, 37)
GF_WGMMA_BOTH_TYPES(72, 36, 37, 38, 39, 40, 41)
GF_WGMMA_BOTH_TYPES(80, 40, 41, 42, 43, 44, 45)
GF_WGMMA_BOTH_TYPES(96, 48, 49, 50, 51, 52, 53)
GF_WGMMA_BOTH_TYPES(112, 56, 57, 58, 59, 60, 61)
GF_WGMMA_BOTH_TYPES(128, 64, 65, 66, 67, 68, 69)
GF_WGMMA_BOTH_TYPES(192, 96, 97, 98, 99, 100, 101)
GF_WGMMA_BOTH_TYPES(256, 128, 129, 130, 131, 132, 133)

#undef GF_WGMMA_BOTH_TYPES
#undef GF_WGMMA
#undef GF_TEN_NAMES
#undef GF_FIRST_TEN_NAMES
#undef GF_NAMES_30
#undef GF_NAMES_60
#undef GF_NAMES_90
#undef GF_NAMES_32
#undef GF_NAMES_36
#undef GF_NAMES_40
#undef GF_NAMES_48
#undef GF_NAMES_56
#undef GF_NAMES_64
#undef GF_NAMES_96
#undef GF_NAMES_128
#undef GF_D4
#undef GF_D8
#undef GF_D32_AT
#undef GF_D_32
#undef GF_D_36
#undef GF_D_40
#undef GF_D_48
#undef GF_D_56
#undef GF_D_64
#undef GF_D_96
#undef GF_D_128

}  // namespace greenfast::cuda::ptx
