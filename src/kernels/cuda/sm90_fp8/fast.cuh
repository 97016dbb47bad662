// cuda.sm90.fp8_fast and cuda.sm90.fp8_curved: attention on e4m3 with weights that are no exponentials.
// sm_90a.
//
// Idea    cuda.sm90.fp8 (kernel.cuh) with another softmax: scores are summed up in fp16, and one
//         packed FMA makes e4m3 weights of them, without an exponential (linear.cuh): 1.5
//         instructions a score. Producer, V^T, both levels of sums and host side are shared. What
//         halves leave free:
//         - Q in registers, where a warp scales its rows so that no score can overflow fp16. The
//           next tile's Q arrives while this one's is multiplied. At head dim 256 it stays in shared
//           memory, scaled there, and P V comes in five parts of columns.
//         - A third warpgroup at head dim 64.
//         One sum of a row serves O and the log-sum-exp, less the mean bias of linear weights.
//         The curved kernel bends linear codes to 2^x, with two instructions more a score; it has no
//         log-sum-exp, since scores in halves are too coarse for an exact one.
// Takes   as cuda.sm90.fp8, and D up to 256; curved: no LSE, linear: to D 128.
// Limits  as cuda.sm90.fp8; a linear weight is off by 0 to 6.15% before it is rounded to e4m3, a
//         curved one by 0.4%; keys 12 to 15 octaves below their row's largest have no weight.
// Budget  D 128: two consumer warpgroups, 232 registers: 32 of scores, 68 of a block's output, 64
//         of their sum, 16 of weights, 16 of Q. D 64: three, 160 registers: 32, 36, 32, 16, 8.
//         D 256: two, 232: 32, 28, 128, 16, none.
// Bound   tensor cores: 528 and 272 clocks for 64 rows of a block, beside 260 and 230 issue slots
//         for each of their warps.
#pragma once

#include "kernels/cuda/sm90_fp8/kernel.cuh"
#include "kernels/cuda/sm90_fp8/linear.cuh"
#include "kernels/cuda/sm90_fp8/transpose.cuh"

namespace greenfast::cuda::fp8 {

/// pin_registers of scores in halves.
template <int kCount>
__device__ __forceinline__ void pin_words(std::uint32_t (&r)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(r[i])::"memory");
}

/// Four words by value.
struct Words {
  std::uint32_t x[4];
  __device__ __forceinline__ std::uint32_t& operator[](int i) { return x[i]; }
};

/// The first of two, or the second.
template <bool kFirst, class First, class Second>
__device__ __forceinline__ auto& either(First& first, Second& second) {
  if constexpr (kFirst)
    return first;
  else
    return second;
}

/// Normalises O where a mean of V may lie at fp16's end, past which rounding could have carried it;
/// elsewhere `factor` does that beside the stores, in half as many instructions. `v_factor` is V's.
template <int kHeadDim>
__device__ __forceinline__ void keep_finite(const Params& p, float (&o)[kHeadDim / 2],
                                            float (&factor)[2], float v_factor) {
  constexpr float kSafe = 65504.0f / 449.0f;  // V is 448 at most
  if (p.out_dtype != DType::f16 || fabsf(v_factor) < kSafe) return;
#pragma unroll
  for (int i = 0; i < kHeadDim / 2; ++i) o[i] = finite_mean(o[i] * factor[i >> 1 & 1]);
  factor[0] = factor[1] = 1.0f;
}

template <class ConfigOf>
__global__ void __launch_bounds__(ConfigOf::value.threads(), 1)
    fp8_fast_kernel(const __grid_constant__ CUtensorMap q_map,
                    const __grid_constant__ CUtensorMap k_map,
                    const __grid_constant__ CUtensorMap v_map,
                    const __grid_constant__ CUtensorMap o_map, const __grid_constant__ Params p) {
  static constexpr Config kConfig = ConfigOf::value;
  constexpr int kHeadDim = kConfig.head_dim, kKeys = kConfig.kKeys, kStages = kConfig.stages();
  constexpr int kWarpgroups = kConfig.warpgroups();
  constexpr bool kMasked = kConfig.masked;
  constexpr int kParts = kConfig.parts();
  constexpr int kRowBytes = kConfig.row_bytes();
  static_assert(kConfig.halves() && kConfig.q_stages() == 1);
  static_assert(kConfig.shared_bytes() + 12288 <= 232448);

  // ---- Prologue: shared memory and barriers ----
  extern __shared__ std::uint8_t raw_shared[];
  __shared__ alignas(8) std::uint64_t barriers[SharedMemory<ConfigOf>::kBarriers];
  __shared__ LinearRow linear_rows[128 * kWarpgroups][2];
  __shared__ Factors factors[kFactorTiles * kWarpgroups];
  const SharedMemory<ConfigOf> shared(raw_shared, barriers);
  const int warpgroup = uniform(threadIdx.x >> 7), lane = threadIdx.x & 31;
  if (threadIdx.x == 0) {
    ptx::tensormap_prefetch(&q_map);
    ptx::tensormap_prefetch(&k_map);
    ptx::tensormap_prefetch(&v_map);
    shared.init_barriers();
  }
  shared.lay_out_ones(raw_shared);
  __syncthreads();

  if (warpgroup == 0) {
    // ---- Producer ----
    ptx::setmaxnreg_decrease<kConfig.producer_registers()>();
    if (threadIdx.x < 32) produce<ConfigOf>(p, q_map, k_map, v_map, shared, factors, lane == 0);
    return;
  }

  // ---- Consumers: what a thread holds ----
  ptx::setmaxnreg_increase<kConfig.consumer_registers()>();
  const int group = uniform(ptx::thread_index() >> 7) - 1, warp = uniform((threadIdx.x >> 5) & 3);
  const bool leader = lane == 0;
  std::uint32_t s[kKeys / 4];  // scores, then codes, two in a word
  // P V of one block, or of a part of its columns, then its row sums
  float part[kConfig.part_registers()];
  float o[kHeadDim / 2];                 // of the blocks before, not yet normalised
  std::uint32_t weights[kKeys / 32][4];  // of the block before, as the A operand
  std::uint32_t q[kConfig.q_in_registers() ? kHeadDim / 32 : 1][4];
  LinearSoftmax<ConfigOf> rows;
  rows.shared = &linear_rows[0][0];
  Stage<kStages> k_stage(shared.k_full, 0), v_stage(shared.v_full, 0);

  // Descriptors: upper halves, and what a stage's lower half follows from by one multiplication.
  std::uint32_t high = 0, high_v = 0;
  constexpr std::uint32_t kPerK = kConfig.k_bytes() / 128, kPerV = kConfig.v_bytes() / 128;
  const std::uint32_t k_base = uniform((shared.k / 16 | 0x10000u) - shared.k_full * kPerK);
  const std::uint32_t v_base = uniform((shared.v / 16 | 0x10000u) - shared.v_full * kPerV);
  const auto q_tile = [&] { return shared.q + group * kConfig.q_bytes(); };
  // Of Q in shared memory. Set where ptxas finds uniform registers for it, else it serialises wgmma
  // (C7511): once, or for each tile of the masked kernels.
  std::uint32_t low_q = kMasked ? 0 : uniform(q_tile() / 16 | 0x10000u);
  // S = Q K^T; asynchronous.
  const auto issue_scores = [&] {
    const std::uint32_t low = k_base + k_stage.full * kPerK;
#pragma unroll
    for (int k = 0; k < kHeadDim / 32; ++k) {
      const std::uint64_t keys = ptx::descriptor(high, low + slice_begin<kRowBytes>(kKeys, k) / 16);
      if constexpr (kConfig.q_in_registers()) {
        ptx::wgmma_rs_e4m3_half(s, q[k], keys, k > 0);
      } else {
        // As if Q moved with the stages: else each slice's descriptor stays in uniform registers.
        const std::uint32_t low_here = low_q + (k_stage.full >> 31);
        ptx::wgmma_ss_e4m3_half(
            s, ptx::descriptor(high, low_here + slice_begin<kRowBytes>(64, k) / 16), keys, k > 0);
      }
    }
    ptx::wgmma_commit();
  };
  // part (+)= P V, of part kPart of the columns; asynchronous. The last has the ones behind it.
  const auto issue_output = [&]<int kPart>(bool accumulate) {
    constexpr int kColumns =
        kConfig.part_columns(kPart) + (kPart == kParts - 1 ? kConfig.kOnes : 0);
    const std::uint32_t low =
        v_base + v_stage.full * kPerV + kConfig.part_begin(kPart) * kKeys / 16;
    auto& sums = reinterpret_cast<float(&)[kColumns / 2]>(part);
#pragma unroll
    for (int k = 0; k < kKeys / 32; ++k)
      ptx::wgmma_rs_e4m3<kColumns>(sums, weights[k], ptx::descriptor(high_v, low + 2 * k),
                                   k > 0 || accumulate);
    ptx::wgmma_commit();
  };
  // The second level: `part` is finished.
  const auto add_part = [&]<int kPart>() {
    constexpr int kWords = kConfig.part_columns(kPart) / 2;
#pragma unroll
    for (int i = 0; i < kWords; ++i) o[kConfig.part_begin(kPart) / 2 + i] += part[i];
    if constexpr (kPart == kParts - 1) {
      rows.sum[0] += part[kWords];
      rows.sum[1] += part[kWords + 2];
    }
  };
  // Parts of a block's output from kFirst on, one after the other; the other warpgroup has the tensor
  // cores meanwhile.
  const auto add_parts = [&]<int kFirst>(const auto& self) {
    if constexpr (kFirst < kParts) {
      ptx::pin_registers(part);
      ptx::wgmma_fence();
      issue_output.template operator()<kFirst>(false);
      ptx::wgmma_wait<0>();
      ptx::pin_registers(part);
      add_part.template operator()<kFirst>();
      self.template operator()<kFirst + 1>(self);
    }
  };
  const auto rescale = [&](const float(&shrink)[2]) {
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) o[i] *= shrink[i >> 1 & 1];
    if constexpr (kParts == 1) {  // else it was added up
#pragma unroll
      for (int i = 0; i < kConfig.columns() / 2; ++i) part[i] *= shrink[i >> 1 & 1];
    }
    rows.sum[0] *= shrink[0];
    rows.sum[1] *= shrink[1];
  };
  const auto release = [&](std::uint32_t barrier) { ptx::mbarrier_arrive_if(barrier, leader); };
  // The warp's output. lane / 32 is 0, but keeps the address from living in a register.
  const auto strip = [&] {
    return shared.q + kConfig.o_offset() +
           (4 * group + warp + ptx::lane_id() / 32) * kConfig.strip_bytes();
  };
  float shrink[2];  // of a step's new bases

  // ---- Consumers: tile after tile ----
  Tile tile, next = {};
  // An index below 0 says that there is no tile.
  const auto find_next = [&](int step, Tile& found) {
    if (!next_tile(p, step, found)) found.index = -1;
  };
  find_next(0, tile);
  const auto factors_of = [&](int step) -> const Factors& {
    return factors[step % kFactorTiles * kWarpgroups + group];
  };
  // Of products to log2.
  const auto score_factor = [&](const Factors& own) {
    return static_cast<float>(p.scale_log2 * own.q * own.k);
  };
  for (int tile_step = 0; tile.index >= 0; tile = next, ++tile_step) {
    const int tile_row = tile.index * kConfig.rows(), first_row = tile_row + 64 * group;
    const BlockRange tile_blocks =
        visible_blocks<ConfigOf>(p, tile_row, min(tile_row + kConfig.rows(), p.seq_q) - 1);
    const int last_row = min(first_row + 63, p.seq_q - 1);
    const BlockRange blocks = visible_blocks<ConfigOf>(p, first_row, last_row);
    const bool works = first_row < p.seq_q && blocks.end > blocks.begin;
    // Blocks from exact_from on, and up to exact_to, are not seen whole by all rows.
    const int exact_from = min(max(first_row + p.band.above, 0), p.band.keys) / kKeys;
    const int exact_to = ceil_div(last_row + p.band.below, kKeys) - 1;
    // A block that another warpgroup wants.
    const auto skip_block = [&] {
      ptx::mbarrier_wait(k_stage.full, k_stage.parity);
      release(k_stage.empty());
      k_stage.advance(shared.k_full);
      ptx::mbarrier_wait(v_stage.full, v_stage.parity);
      release(v_stage.empty());
      v_stage.advance(shared.v_full);
    };
#pragma unroll 1
    for (int block = tile_blocks.end; block > (works ? blocks.end : tile_blocks.begin); --block)
      skip_block();

    // ---- Q and its factors ----
    ptx::mbarrier_wait(shared.q_full + 8 * group, tile_step & 1);
    {
      const Place at = ldmatrix_a(ptx::lane_id());
      const std::uint32_t q_rows = shared.q + group * kConfig.q_bytes() + 16 * warp * kRowBytes;
      std::uint32_t anew[kConfig.q_in_registers() ? 1 : kHeadDim / 32][4];
      auto& words = either<kConfig.q_in_registers()>(q, anew);
#pragma unroll
      for (int k = 0; k < kHeadDim / 32; ++k)
        ptx::ldmatrix_x4(words[k], q_rows + swizzled<kRowBytes>(64, k, at));
      const bool changed = rows.begin(words, score_factor(factors_of(tile_step)));
      if constexpr (kConfig.q_in_registers()) {
        release(shared.q_empty + 8 * group);
      } else {
        if (changed) {
#pragma unroll
          for (int k = 0; k < kHeadDim / 32; ++k)
            ptx::stmatrix_x4(q_rows + swizzled<kRowBytes>(64, k, at), words[k]);
          ptx::fence_proxy_async_shared();
        }
        ptx::named_barrier_sync<128>(kQIsTurned + group);
      }
    }
    // The constant halves in a way that ptxas cannot know: it would set a constant again for every
    // wgmma. For each tile, because it would copy what lives longer.
    const std::uint32_t zero = uniform(ptx::lane_id());
    high = kDescriptorHigh<kRowBytes> + zero;
    high_v = kRowBytes == 128 ? high : ptx::kSwizzle128High + zero;
    if constexpr (kMasked && !kConfig.q_in_registers())
      low_q = uniform((q_tile() / 16 | 0x10000u) + zero);
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) o[i] = 0.0f;
    if (works) {
      int block = blocks.end - 1;
      // Through fp32, what halves do not hold. In the warp's strip, once its last tile is stored; a
      // part of O steps aside there too at D 128, where registers are fewer.
      const auto again = [&](bool hides) {
        constexpr int kAside = kHeadDim >= 128 ? 16 : 0;
        static_assert(2048 + kAside * 4 * 32 <= kConfig.strip_bytes());
        if (leader) ptx::tma_store_wait_read();
        __syncwarp();
        const std::uint32_t aside = strip() + 2048 + 16 * ptx::lane_id();
#pragma unroll
        for (int i = 0; i < kAside; i += 4)
          ptx::shared_store4(aside + 128 * i, {o[i], o[i + 1], o[i + 2], o[i + 3]});
        const auto q_slice = [&](int k) -> decltype(auto) {
          if constexpr (kConfig.q_in_registers()) {
            return (q[k]);
          } else {
            Words words;
            ptx::ldmatrix_x4(words.x, q_tile() + 16 * warp * kRowBytes +
                                          swizzled<kRowBytes>(64, k, ldmatrix_a(ptx::lane_id())));
            return words;
          }
        };
        rows.again(s, q_slice, shared.k + (k_stage.full - shared.k_full) / 8 * kConfig.k_bytes(),
                   strip() + 4 * ptx::lane_id(), p, block, first_row + 16 * warp, hides, shrink);
#pragma unroll
        for (int i = 0; i < kAside; i += 4) {
          const float4 x = ptx::shared_load4(aside + 128 * i);
          o[i] = x.x;
          o[i + 1] = x.y;
          o[i + 2] = x.z;
          o[i + 3] = x.w;
        }
      };
      // ---- First block: the true maximum ----
      ptx::mbarrier_wait(k_stage.full, k_stage.parity);
      pin_words(s);
      ptx::wgmma_fence();
      issue_scores();
      find_next(tile_step + 1, next);  // passes beside this product
      ptx::wgmma_wait<0>();
      pin_words(s);
      const bool hides = kMasked || (block + 1) * kKeys > p.band.keys;
      if (hides) rows.mask(p, s, block, first_row + 16 * warp);
      const auto left = [&] { return static_cast<float>(block + 1 - blocks.begin); };
      if (!rows.exact(s, left(), shrink)) again(hides);
      release(k_stage.empty());
      rows.pack(s, weights);
      k_stage.advance(shared.k_full);
      // Nothing to add yet. In assembly, because an assignment serialises wgmma (C7511).
#pragma unroll
      for (float& x : part) asm volatile("mov.f32 %0, 0f00000000;" : "=f"(x));

      // ---- Main loop: S(block), and P V of the block before ----
      const auto step = [&]<bool kExact>() {
        ptx::mbarrier_wait(k_stage.full, k_stage.parity);
        pin_words(s);
        ptx::wgmma_fence();
        issue_scores();
        if constexpr (kParts == 1) add_part.template operator()<0>();
        ptx::mbarrier_wait(v_stage.full, v_stage.parity);
        ptx::pin_registers(part);
        ptx::wgmma_fence();
        issue_output.template operator()<0>(false);
        ptx::wgmma_wait<1>();
        pin_words(s);
        bool moved = true, held;  // a base; all by halves
        if constexpr (kExact) {
          rows.mask(p, s, block, first_row + 16 * warp);
          held = rows.exact(s, left(), shrink);
        } else {
          held = rows.guarded(s, left(), moved, shrink);
        }
        if (!held) again(kExact);
        release(k_stage.empty());
        pin_words(s);
        ptx::wgmma_wait<0>();
        ptx::pin_registers(part);
        pin_words(s);
        if constexpr (kParts > 1) {
          add_part.template operator()<0>();
          add_parts.template operator()<1>(add_parts);
          pin_words(s);
        }
        release(v_stage.empty());
        rows.pack(s, weights);
        if (moved) rescale(shrink);
        k_stage.advance(shared.k_full);
        v_stage.advance(shared.v_full);
      };
      // Diagonal, inside, far edge of a window: exact, guarded, exact.
      --block;
      if constexpr (kMasked) {
#pragma unroll 1
        for (; block >= blocks.begin; --block) {
          if (block >= exact_from || block <= exact_to)
            step.template operator()<true>();
          else
            step.template operator()<false>();
        }
      } else {
#pragma unroll 1
        for (; block >= blocks.begin; --block) step.template operator()<false>();
      }

      // ---- Last product ----
      if constexpr (!kConfig.q_in_registers()) release(shared.q_empty + 8 * group);
      ptx::mbarrier_wait(v_stage.full, v_stage.parity);
      if constexpr (kParts == 1) {
        // On top of the one before, as in kernel.cuh.
        ptx::pin_registers(part);
        ptx::wgmma_fence();
        issue_output.template operator()<0>(true);
        ptx::wgmma_wait<0>();
        ptx::pin_registers(part);
        release(v_stage.empty());
        v_stage.advance(shared.v_full);
        add_part.template operator()<0>();
      } else {
        add_parts.template operator()<0>(add_parts);
        release(v_stage.empty());
        v_stage.advance(shared.v_full);
      }
    } else {
      find_next(tile_step + 1, next);
      if constexpr (!kConfig.q_in_registers()) release(shared.q_empty + 8 * group);
    }
#pragma unroll 1
    for (int block = works ? blocks.begin : tile_blocks.begin; block > tile_blocks.begin; --block)
      skip_block();

    // ---- Epilogue: normalise, store ----
    const int here = ptx::lane_id();  // anew: `lane` would live through the main loop
    const int row = first_row + 16 * warp + (here >> 2), t = here & 3;
    const float v_factor = factors_of(tile_step).v;
    float factor[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if constexpr (kConfig.weights == Weights::linear) {
        if (p.lse != nullptr && t == 0 && row + 8 * h < p.seq_q) {
          const std::int64_t head =
              static_cast<std::int64_t>(tile.batch) * p.schedule.heads + tile.head;
          p.lse[head * p.seq_q + row + 8 * h] =
              rows.sum[h] == 0.0f ? -INFINITY : rows.log_sum_exp(h);
        }
      }
      factor[h] = rows.sum[h] == 0.0f ? 0.0f : v_factor * reciprocal_fast(rows.sum[h]);
    }
    keep_finite<kHeadDim>(p, o, factor, v_factor);
    store_output<kHeadDim, false>(p, o_map, tile, o, factor, strip, leader, first_row + 16 * warp,
                                  row, t);
    // A point of convergence: without it ptxas keeps the loop's state in vector registers.
    __syncwarp();
  }
  if (leader) ptx::tma_store_wait();
}

/// Gives a compiled kernel a name that a plan can say.
template <int kHeadDim, bool kMasked>
struct CompiledFast
    : With<Config{.head_dim = kHeadDim, .masked = kMasked, .weights = Weights::linear}> {};
template <int kHeadDim, bool kMasked>
struct CompiledCurved
    : With<Config{.head_dim = kHeadDim, .masked = kMasked, .weights = Weights::curved}> {};

/// The kernels of a head dim, of one kind of weights.
template <template <int, bool> class Build, int kDim>
Entries entries_of() {
  return {reinterpret_cast<const void*>(&fp8_fast_kernel<Build<kDim, false>>),
          reinterpret_cast<const void*>(&fp8_fast_kernel<Build<kDim, true>>),
          reinterpret_cast<const void*>(&transpose_kernel<kDim>),
          reinterpret_cast<const void*>(&reorder_kernel<kDim>)};
}

}  // namespace greenfast::cuda::fp8
