// What the matrix units of this GPU sustain at its present clock and power: the denominator of "%
// of peak". sm_90a: wgmma m64n128 from shared memory (fp16: measured 99.8% of 4096 FLOP/clk/SM for
// any n, H200, 2026-11-20); others: mma.sync m16n8 from registers. e4m3 operands are half as wide,
// so an instruction of the same bytes does twice the work. Operands are random, because zeros draw
// less power and run faster.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "workbench/device/cuda_peak.hpp"

namespace greenfast::workbench {
namespace {

constexpr int kWarpgroups = 2;
constexpr int kRows = 64, kColumns = 128, kDepth = 16;
constexpr int kUnroll = 8;

__device__ std::uint32_t random_pair(std::uint32_t index) {
  std::uint32_t x = index * 0x9e3779b9u + 0x85ebca6bu;
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  x ^= x >> 16;
  const float low = static_cast<float>(x & 0xffffu) / 32768.0f - 1.0f;
  const float high = static_cast<float>(x >> 16) / 32768.0f - 1.0f;
  const __half2 pair = __floats2half2_rn(low, high);
  return reinterpret_cast<const std::uint32_t&>(pair);
}

// Two or four operands in a register; e4m3 without the bit whose exponents end in NaN.
template <bool kE4m3>
__device__ std::uint32_t random_operand(std::uint32_t index) {
  return kE4m3 ? random_pair(index) & 0xbfbfbfbfu : random_pair(index);
}

#define GF_ACC4(i) "+f"(acc[i]), "+f"(acc[i + 1]), "+f"(acc[i + 2]), "+f"(acc[i + 3])
#define GF_ACC16(i) GF_ACC4(i), GF_ACC4(i + 4), GF_ACC4(i + 8), GF_ACC4(i + 12)

#define GF_ACC64 GF_ACC16(0), GF_ACC16(16), GF_ACC16(32), GF_ACC16(48)
// The accumulators of m64n128, numbered as asm numbers its operands.
#define GF_M64N128                                                   \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"          \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, %64, %65, "

#define GF_M16N8 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"

template <bool kE4m3>
__global__ void __launch_bounds__(kWarpgroups * 128, 1) matrix_loop(int iterations, float* sink) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  // One 128-byte-swizzled K-major tile of A and of B; their content is random, so the swizzle does
  // not matter.
  __shared__ alignas(1024) std::uint32_t operands[(kRows + kColumns) * 32];
  for (int i = static_cast<int>(threadIdx.x); i < (kRows + kColumns) * 32;
       i += static_cast<int>(blockDim.x)) {
    operands[i] = random_operand<kE4m3>(static_cast<std::uint32_t>(i));
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  const auto base = static_cast<std::uint32_t>(__cvta_generic_to_shared(operands));
  const std::uint64_t pattern =
      (std::uint64_t{1} << 62) | (std::uint64_t{64} << 32) | (std::uint64_t{1} << 16);
  const std::uint64_t a = pattern | (base >> 4), b = pattern | ((base + kRows * 128) >> 4);
  float acc[64] = {};
  for (int i = 0; i < iterations; ++i) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < kUnroll; ++k) {
      // Both types advance by 32 bytes of K.
      if constexpr (kE4m3) {
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 " GF_M64N128 "1, 1, 1;"
                     : GF_ACC64
                     : "l"(a + 2 * (k % 4)), "l"(b + 2 * (k % 4)));
      } else {
        asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 " GF_M64N128
                     "1, 1, 1, 0, 0;"
                     : GF_ACC64
                     : "l"(a + 2 * (k % 4)), "l"(b + 2 * (k % 4)));
      }
    }
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 64; ++i) sum += acc[i];
  if (sum == 0.5f) *sink = sum;  // never true in practice; keeps the loop
#else
  std::uint32_t a[4], b[2];
  float acc[8][4] = {};
  for (int i = 0; i < 4; ++i)
    a[i] = random_operand<kE4m3>(threadIdx.x * 8 + static_cast<unsigned>(i));
  for (int i = 0; i < 2; ++i)
    b[i] = random_operand<kE4m3>(threadIdx.x * 8 + 4 + static_cast<unsigned>(i));
  for (int i = 0; i < iterations; ++i) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
#if __CUDA_ARCH__ >= 890
      if constexpr (kE4m3) {
        asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 " GF_M16N8
                     : "+f"(acc[k][0]), "+f"(acc[k][1]), "+f"(acc[k][2]), "+f"(acc[k][3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
        continue;
      }
#endif
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 " GF_M16N8
                   : "+f"(acc[k][0]), "+f"(acc[k][1]), "+f"(acc[k][2]), "+f"(acc[k][3])
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
  }
  float sum = 0;
  for (auto& tile : acc) {
    for (float value : tile) sum += value;
  }
  if (sum == 0.5f) *sink = sum;
#endif
}

}  // namespace

double measure_matrix_flops(const DeviceFacts& facts, DType dtype, void* stream,
                            std::string& method) {
  if (facts.arch < 80 || dtype == DType::f32) {
    method = "no matrix instruction for this type";
    return 0;
  }
  // The PTX version tells which of the two loops this binary carries for the device: sm_90a code,
  // or an older architecture's that was compiled again by the driver.
  cudaFuncAttributes attributes{};
  const auto loop = dtype == DType::e4m3 ? matrix_loop<true> : matrix_loop<false>;
  if (cudaFuncGetAttributes(&attributes, loop) != cudaSuccess) {
    cudaGetLastError();
    method = "no code for this architecture";
    return 0;
  }
  const bool hopper = attributes.ptxVersion == 90;
  // Before sm_89 nothing multiplies e4m3; a kernel widens it to fp16 there.
  const bool e4m3 = dtype == DType::e4m3 && attributes.ptxVersion >= 89;
  method = std::string(hopper ? "wgmma m64n128" : "mma.sync m16n8") +
           (e4m3 ? "k32, e4m3 operands" : "k16, fp16 operands");
  const auto s = static_cast<cudaStream_t>(stream);
  const int blocks = facts.multiprocessors * (hopper ? 1 : 2);
  const double per_iteration =
      (e4m3 ? 2 : 1) * (hopper ? 2.0 * kRows * kColumns * kDepth * kUnroll * kWarpgroups
                               : 2.0 * 16 * 8 * 16 * 8 * (kWarpgroups * 4));
  float* sink = nullptr;
  cudaEvent_t begin = nullptr, end = nullptr;
  if (cudaMalloc(&sink, sizeof(float)) != cudaSuccess) return 0;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  const auto run = [&](int iterations) {
    cudaEventRecord(begin, s);
    loop<<<blocks, kWarpgroups * 128, 0, s>>>(iterations, sink);
    cudaEventRecord(end, s);
    cudaEventSynchronize(end);
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    return ms * 1e-3;
  };
  run(1000);
  const double probe = run(4000);
  // 50 ms is long enough for the power limit to show.
  const int iterations = static_cast<int>(4000 * 0.05 / (probe > 1e-6 ? probe : 1e-6));
  const double seconds = run(iterations > 0 ? iterations : 1);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaFree(sink);
  return cudaGetLastError() == cudaSuccess && seconds > 0
             ? per_iteration * iterations * blocks / seconds
             : 0;
}

}  // namespace greenfast::workbench
