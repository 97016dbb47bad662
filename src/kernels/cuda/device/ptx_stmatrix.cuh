// The store counterpart of ldmatrix, sm_90 (PTX ISA, stmatrix).
#pragma once

#include <cstdint>

namespace greenfast::cuda::ptx {

/// Four 8x8 matrices of 16-bit elements; lane 8 * i + r gives the address of row r of matrix i.
__device__ __forceinline__ void stmatrix_x4(std::uint32_t shared, const std::uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared),
               "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

/// Four floats at a 16-byte aligned shared address.
__device__ __forceinline__ void shared_store4(std::uint32_t shared, float4 x) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "f"(x.x), "f"(x.y),
               "f"(x.z), "f"(x.w)
               : "memory");
}
__device__ __forceinline__ int shared_load(std::uint32_t shared) {
  int x;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(x) : "r"(shared) : "memory");
  return x;
}
__device__ __forceinline__ std::uint32_t shared_load_u16(std::uint32_t shared) {
  std::uint16_t x;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(shared) : "memory");
  return x;
}
__device__ __forceinline__ float4 shared_load4(std::uint32_t shared) {
  float4 x;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "r"(shared)
               : "memory");
  return x;
}

}  // namespace greenfast::cuda::ptx
