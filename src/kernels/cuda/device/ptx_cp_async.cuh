// Asynchronous copies from global to shared memory, sm_80 and later (PTX ISA, cp.async).
#pragma once

#include <cstdint>

namespace greenfast::cuda::ptx {

__device__ __forceinline__ std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// Copies 16 bytes past L1.
__device__ __forceinline__ void cp_async_16(std::uint32_t shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

/// Copies the first `bytes` of 16, 0 to 16, past L1, and writes zeros behind them.
__device__ __forceinline__ void cp_async_16_part(std::uint32_t shared, const void* global,
                                                 int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(bytes)
               : "memory");
}

/// Copies 16 bytes past L1; writes 16 zero bytes and reads nothing when keep is false.
__device__ __forceinline__ void cp_async_16(std::uint32_t shared, const void* global, bool keep) {
  cp_async_16_part(shared, global, keep ? 16 : 0);
}

/// cp_async_16, and nothing at all where `go` is false: without a branch, which products around it could
/// not be scheduled across.
__device__ __forceinline__ void cp_async_16_if(bool go, std::uint32_t shared, const void* global,
                                               bool keep) {
  const int bytes = keep ? 16 : 0;
  asm volatile(
      "{\n"
      ".reg .pred go;\n"
      "setp.ne.s32 go, %3, 0;\n"
      "@go cp.async.cg.shared.global [%0], [%1], 16, %2;\n"
      "}" ::"r"(shared),
      "l"(global), "r"(bytes), "r"(static_cast<int>(go))
      : "memory");
}

__device__ __forceinline__ void cp_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits until at most kPending of this thread's newest groups are unfinished.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// An arrival of this thread at a barrier that expects one of it, when its copies so far have arrived.
__device__ __forceinline__ void cp_async_arrive(std::uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void store_shared_16(std::uint32_t shared, uint4 value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

__device__ __forceinline__ uint4 load_shared_16(std::uint32_t shared) {
  uint4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(shared)
               : "memory");
  return value;
}

__device__ __forceinline__ uint2 load_shared_8(std::uint32_t shared) {
  uint2 value;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
               : "=r"(value.x), "=r"(value.y)
               : "r"(shared)
               : "memory");
  return value;
}

/// One 16-byte store. Written out because nvcc 13.0 splits `*(uint4*)p = make_uint4(...)` into four
/// 4-byte stores when it cannot prove alignment, which halves the use of every sector.
__device__ __forceinline__ void store_global_16(void* global, uint4 value) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(global), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

}  // namespace greenfast::cuda::ptx
