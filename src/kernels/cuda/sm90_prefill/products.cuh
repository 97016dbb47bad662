// The matrix products of cuda.sm90.prefill, and what lies between them: scores become weights'
// registers, and a block's scores are computed again where the guard asks for it.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/e4m3.cuh"
#include "kernels/cuda/device/ptx_cp_async.cuh"
#include "kernels/cuda/device/ptx_e4m3.cuh"
#include "kernels/cuda/device/ptx_mbarrier.cuh"
#include "kernels/cuda/device/ptx_mma.cuh"
#include "kernels/cuda/device/ptx_tma.cuh"
#include "kernels/cuda/device/ptx_wgmma.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/sm90_prefill/config.hpp"

namespace greenfast::cuda::prefill {

/// Registers of a thread, as a build has them.
template <class ConfigOf>
struct Fragments {
  static constexpr Config kConfig = ConfigOf::value;
  using Scores = float[kConfig.keys / 2];
  using Output = float[kConfig.columns() / 2];
  using Weights = std::uint32_t[kConfig.keys / 16][4];  // an A operand
  // Of a product of Q and K, 32 bytes of a row.
  static constexpr int kColumns = kConfig.bytes ? 32 : 16;
  using Queries = std::uint32_t[kConfig.q_in_registers ? kConfig.head_dim / kColumns : 1][4];
};

/// Low halves of the descriptors of wgmma. A stage's follows from the address of its barrier by one
/// multiplication.
template <class ConfigOf>
struct Descriptors {
  static constexpr Config kConfig = ConfigOf::value;
  static constexpr std::uint32_t kPerBarrier = kConfig.k_bytes() / 128;
  static constexpr std::uint32_t kQ = 0x10000u, kK = 0x10000u;
  // V's leading offset leads from a chunk of 64 columns to the next, or to the ones.
  static constexpr std::uint32_t kV =
      (kConfig.ones ? kConfig.ones_offset() - kConfig.v_offset() : kConfig.keys * 128) / 16 << 16;
  static constexpr std::uint32_t kVStep = kConfig.ones ? 1u - 0x10000u : 1u;  // of 16 bytes
  static constexpr std::uint32_t kVPerBarrier = kConfig.v_bytes() / 128 * kVStep;
};

/// S = Q K^T; asynchronous.
template <class T, class ConfigOf>
__device__ __forceinline__ void multiply_qk(typename Fragments<ConfigOf>::Scores& s,
                                            const typename Fragments<ConfigOf>::Queries& q,
                                            std::uint32_t high, std::uint32_t q_low,
                                            std::uint32_t k_low) {
  constexpr Config kConfig = ConfigOf::value;
  constexpr int kKeys = kConfig.keys;
#pragma unroll
  for (int k = 0; k < kConfig.head_dim / Fragments<ConfigOf>::kColumns; ++k) {
    const auto b = ptx::descriptor(high, k_low + (k / 4) * (kKeys * 128 / 16) + (k % 4) * 2);
    if constexpr (kConfig.q_in_registers) {
      if constexpr (kConfig.bytes)
        ptx::wgmma_rs_e4m3<kKeys>(s, q[k], b, k > 0);
      else
        ptx::wgmma_rs<T, kKeys>(s, q[k], b, k > 0);
    } else {
      const auto a = ptx::descriptor(high, q_low + (k / 4) * (64 * 128 / 16) + (k % 4) * 2);
      if constexpr (kConfig.bytes)
        ptx::wgmma_ss_e4m3<kKeys>(s, a, b, k > 0);
      else
        ptx::wgmma_ss<T, kKeys>(s, a, b, k > 0);
    }
  }
  ptx::wgmma_commit();
}

/// O (+)= P V; asynchronous.
template <class T, class ConfigOf>
__device__ __forceinline__ void multiply_pv(typename Fragments<ConfigOf>::Output& o,
                                            const typename Fragments<ConfigOf>::Weights& weights,
                                            std::uint32_t high, std::uint32_t v_low,
                                            bool accumulate) {
  constexpr Config kConfig = ConfigOf::value;
  constexpr std::uint32_t kStep = Descriptors<ConfigOf>::kVStep;
#pragma unroll
  for (int k = 0; k < kConfig.keys / 16; ++k)
    ptx::wgmma_rs_nmajor<T, kConfig.columns()>(
        o, weights[k], ptx::descriptor(high, v_low + k * (16 * 128 / 16) * kStep),
        k > 0 || accumulate);
  ptx::wgmma_commit();
}

/// Weights become the A operand of the next product.
template <class T, int kCount>
__device__ __forceinline__ void convert_to(std::uint32_t (&weights)[kCount / 8][4],
                                           const float (&s)[kCount]) {
#pragma unroll
  for (int k = 0; k < kCount / 8; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[k][i] = pack2<T>(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
  }
}

/// A warp's rows of Q, as the A operand.
template <class ConfigOf>
__device__ __forceinline__ void load_queries(typename Fragments<ConfigOf>::Queries& q,
                                             std::uint32_t q_tile, int warp) {
  const int lane = ptx::lane_id();
#pragma unroll
  for (int k = 0; k < ConfigOf::value.head_dim / Fragments<ConfigOf>::kColumns; ++k)
    ptx::ldmatrix_x4(q[k], q_tile + (k / 4) * 64 * 128 + (16 * warp + (lane & 15)) * 128 +
                               ((((k % 4) * 2 + (lane >> 4)) ^ (lane & 7)) << 4));
}

/// Turns bits of a warpgroup's Q, of e4m3: in registers, or where it lies, for which all its threads
/// meet.
template <class ConfigOf>
__device__ __forceinline__ void turn_queries(typename Fragments<ConfigOf>::Queries& q,
                                             std::uint32_t q_tile, std::uint32_t turn,
                                             int barrier) {
  constexpr Config kConfig = ConfigOf::value;
  if (turn == 0) return;
  if constexpr (kConfig.q_in_registers) {
#pragma unroll
    for (auto& words : q)
#pragma unroll
      for (std::uint32_t& x : words) x ^= turn;
  } else {
#pragma unroll 1
    for (int at = 16 * (ptx::thread_index() & 127); at < kConfig.q_bytes(); at += 16 * 128) {
      const uint4 x = ptx::load_shared_16(q_tile + at);
      ptx::store_shared_16(q_tile + at, {x.x ^ turn, x.y ^ turn, x.z ^ turn, x.w ^ turn});
    }
    ptx::fence_proxy_async_shared();
    ptx::named_barrier_sync<128>(barrier);
  }
}

/// The same of e4m3, 32 columns, through fp16, which holds them all: bytes 0 and 1 of a word, then 2
/// and 3, are two columns of a half each, another order of k, the same on both sides.
__device__ __forceinline__ void multiply_decoded(float (&s)[4], const std::uint32_t (&q)[4],
                                                 std::uint32_t k0, std::uint32_t k1) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const auto decoded = [half](std::uint32_t four) { return decode_e4m3x2(four >> 16 * half); };
    const std::uint32_t a[4] = {decoded(q[0]), decoded(q[1]), decoded(q[2]), decoded(q[3])};
    ptx::mma_m16n8k16<__half>(s, a, decoded(k0), decoded(k1));
  }
}

/// S = Q K^T by one warp alone. Q's and K's addresses are asked for where they are used, so that
/// they do not live in registers before.
template <class T, class ConfigOf, class QTile, class KTile>
__device__ __forceinline__ void multiply_qk_alone(typename Fragments<ConfigOf>::Scores& s,
                                                  const typename Fragments<ConfigOf>::Queries& q,
                                                  const QTile& q_tile, const KTile& k_tile,
                                                  int warp) {
  constexpr Config kConfig = ConfigOf::value;
  // Read anew, so that addresses of this rare path do not live in registers all the time.
  const int lane = ptx::lane_id();
  const int row = (lane & 7) + ((lane >> 4) << 3), half = (lane >> 3) & 1;
#pragma unroll
  for (float& x : s) x = 0.0f;
  // Rolled where Q is not in registers: the loads of an unrolled loop would take registers that
  // the main loop has none of to spare.
  constexpr int kSteps = kConfig.head_dim / Fragments<ConfigOf>::kColumns;
  constexpr int kUnroll = kConfig.q_in_registers ? kSteps : 1;
#pragma unroll kUnroll
  for (int k = 0; k < kSteps; ++k) {
    std::uint32_t a[4];
    if constexpr (kConfig.q_in_registers) {
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = q[k][i];
    } else {
      const int q_row = 16 * warp + (lane & 15);
      ptx::ldmatrix_x4(a, q_tile() + (k / 4) * 64 * 128 + q_row * 128 +
                              ((((k % 4) * 2 + (lane >> 4)) ^ (lane & 7)) << 4));
    }
#pragma unroll
    for (int n = 0; n < kConfig.keys / 16; ++n) {
      std::uint32_t b[4];
      ptx::ldmatrix_x4(b, k_tile() + (k / 4) * kConfig.keys * 128 + (16 * n + row) * 128 +
                              ((((k % 4) * 2 + half) ^ (lane & 7)) << 4));
      float(&left)[4] = reinterpret_cast<float(&)[4]>(s[8 * n]);
      float(&right)[4] = reinterpret_cast<float(&)[4]>(s[8 * n + 4]);
      if constexpr (kConfig.bytes) {
        multiply_decoded(left, a, b[0], b[1]);
        multiply_decoded(right, a, b[2], b[3]);
      } else {
        ptx::mma_m16n8k16<T>(left, a, b[0], b[1]);
        ptx::mma_m16n8k16<T>(right, a, b[2], b[3]);
      }
    }
  }
}

}  // namespace greenfast::cuda::prefill
