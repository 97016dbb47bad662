// Values of a row as a thread has them, their largest magnitude, and their codes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "backends/cuda/quotient.hpp"
#include "core/e4m3.hpp"
#include "core/rotate.hpp"

namespace greenfast::cuda {

inline constexpr int kPart = 8;  // neighbours of a row that a thread has at once

/// kPart neighbours of a row as they lie in memory: elements of 16 bits would take a register each.
template <class T>
struct alignas(16) Values {
  static constexpr bool kHalf = sizeof(T) == 2;
  static constexpr int kWords = kPart * sizeof(T) / 4;
  std::uint32_t words[kWords];

  __device__ __forceinline__ void load(const T* from, std::true_type /*aligned*/) {
#pragma unroll
    for (int i = 0; i < kWords; i += 4)
      *reinterpret_cast<uint4*>(words + i) =
          *reinterpret_cast<const uint4*>(from + i * kPart / kWords);
  }
  __device__ __forceinline__ void load(const T* from, std::false_type) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      if constexpr (kHalf) {
        const auto* const two = reinterpret_cast<const std::uint16_t*>(from) + 2 * i;
        words[i] = two[0] | std::uint32_t{two[1]} << 16;
      } else {
        words[i] = __float_as_uint(from[i]);
      }
    }
  }
  __device__ __forceinline__ float at(int i) const {
    if constexpr (!kHalf) return __uint_as_float(words[i]);
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
      return __uint_as_float(i % 2 == 0 ? words[i / 2] << 16 : words[i / 2] & 0xffff0000u);
    const auto two = __half22float2(reinterpret_cast<const __half2&>(words[kHalf ? i / 2 : 0]));
    return i % 2 == 0 ? two.x : two.y;
  }
};

inline constexpr std::uint32_t kInfinityBits = 0x7f800000u;

/// What is subtracted from the values of kPart neighbouring columns: numbers, or nothing.
template <bool kThere>
struct Offset {
  __device__ __forceinline__ static Offset of(const float* /*columns*/) { return {}; }
  __device__ __forceinline__ float minus(float x, int /*i*/) const { return x; }
};
template <>
struct Offset<true> {
  alignas(16) float x[kPart];

  /// Zeros, which change no bit, where `columns` is null.
  __device__ __forceinline__ static Offset of(const float* columns) {
    Offset made = {};
    if (columns != nullptr) {
#pragma unroll
      for (int i = 0; i < kPart; i += 4)
        *reinterpret_cast<float4*>(made.x + i) = *reinterpret_cast<const float4*>(columns + i);
    }
    return made;
  }
  __device__ __forceinline__ float minus(float value, int i) const { return value - x[i]; }
};

/// The largest magnitude of values as the bits of a float. Infinities and NaN are left out, which
/// takes a second look where there are any.
template <class T, bool kOffset>
struct Largest {
  static constexpr bool kPairs = Values<T>::kHalf && !kOffset;
  std::uint32_t most = 0;

  __device__ __forceinline__ void take(const Values<T>& values, const Offset<kOffset>& offset) {
    if constexpr (kOffset) {
#pragma unroll
      for (int i = 0; i < kPart; ++i)
        most = max(most, __float_as_uint(fabsf(offset.minus(values.at(i), i))));
    } else {
#pragma unroll
      for (const std::uint32_t word : values.words) {
        if constexpr (kPairs)
          most = __vmaxu2(most, word & 0x7fff7fffu);
        else
          most = max(most, word & 0x7fffffffu);
      }
    }
  }
  /// Of what was taken; above the finite numbers where one of it is.
  __device__ __forceinline__ std::uint32_t found() const {
    if constexpr (!kPairs) return most;
    Values<T> two = {};
    two.words[0] = most;
    return max(__float_as_uint(fabsf(two.at(0))), __float_as_uint(fabsf(two.at(1))));
  }
  /// The second look: `most` and the finite ones of `values`.
  __device__ __forceinline__ static std::uint32_t finite(const Values<T>& values,
                                                         const Offset<kOffset>& offset,
                                                         std::uint32_t most) {
#pragma unroll
    for (int i = 0; i < kPart; ++i) {
      const std::uint32_t magnitude = __float_as_uint(fabsf(offset.minus(values.at(i), i)));
      if (magnitude < kInfinityBits) most = max(most, magnitude);
    }
    return most;
  }
};

#if defined(GREENFAST_PTX_ONCE) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
__device__ std::uint32_t encode4(float a, float b, float c,
                                 float d);  // a source that uses it is BY_ARCH
#else
__device__ __forceinline__ std::uint32_t encode4(float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 890
  std::uint32_t r;
  asm("{ .reg .b16 low, high;\n"
      "  cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "  cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "  mov.b32 %0, {low, high}; }"
      : "=r"(r)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return r;
#else
  return core::to_e4m3(a) | std::uint32_t{core::to_e4m3(b)} << 8 |
         std::uint32_t{core::to_e4m3(c)} << 16 | std::uint32_t{core::to_e4m3(d)} << 24;
#endif
}
#endif

/// Part `part` of a row of `parts`, rotated as core::rotate_block does it: of the block's other parts a
/// thread that is alone loads what it needs. The row may begin anywhere.
template <class T>
__device__ __forceinline__ Values<float> rotated_part(const T* row, int part, int parts) {
  static_assert(kPart == core::kRotatedColumns);
  const core::RotationBlock block = core::rotation_block(part, parts);
  const int mine = part - block.first;
  float pair[2][kPart] = {};
#pragma unroll
  for (int n = 0; n < core::kRotatedParts; ++n) {
    if (n >= block.parts) break;
    Values<T> values;
    values.load(row + (block.first + n) * kPart, std::false_type{});
#pragma unroll
    for (int i = 0; i < kPart; ++i) {
      float& to = pair[n / 2][i];
      to = n % 2 == 0 ? values.at(i) : (mine & 1) == 0 ? to + values.at(i) : to - values.at(i);
    }
  }
  float x[kPart];
#pragma unroll
  for (int i = 0; i < kPart; ++i)
    x[i] = block.parts < 4   ? pair[0][i]
           : (mine & 2) == 0 ? pair[0][i] + pair[1][i]
                             : pair[0][i] - pair[1][i];
  core::rotate_part(x);
  Values<float> rotated;
#pragma unroll
  for (int i = 0; i < kPart; ++i)
    rotated.words[i] =
        __float_as_uint(core::rotated_value(x[i], core::rotation_factor(block.parts)));
  return rotated;
}

/// How a quotient is taken: of finite values that a scale of their own divides, of any where the divisor
/// is quick, of any.
enum class Quotient { small, quick, slow };

/// Codes of kPart values.
template <Quotient kHow, class T, bool kOffset>
__device__ __forceinline__ uint2 codes_of(const Values<T>& values, const Offset<kOffset>& offset,
                                          const SharedDivisor& divisor) {
  float x[kPart];
#pragma unroll
  for (int i = 0; i < kPart; ++i) {
    const float value = offset.minus(values.at(i), i);
    x[i] = kHow == Quotient::small   ? small_quotient(value, divisor)
           : kHow == Quotient::quick ? quick_quotient(value, divisor)
                                     : __fdiv_rn(value, divisor.divisor);
  }
  return {encode4(x[0], x[1], x[2], x[3]), encode4(x[4], x[5], x[6], x[7])};
}

/// Codes of four rows turned: words[c] has those of column c.
__device__ __forceinline__ void turn(const uint2 (&codes)[4], std::uint32_t (&words)[kPart]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const auto of = [half](const uint2& x) { return half == 0 ? x.x : x.y; };
    const std::uint32_t low = __byte_perm(of(codes[0]), of(codes[1]), 0x5140),
                        low2 = __byte_perm(of(codes[2]), of(codes[3]), 0x5140),
                        high = __byte_perm(of(codes[0]), of(codes[1]), 0x7362),
                        high2 = __byte_perm(of(codes[2]), of(codes[3]), 0x7362);
    words[4 * half] = __byte_perm(low, low2, 0x5410);
    words[4 * half + 1] = __byte_perm(low, low2, 0x7632);
    words[4 * half + 2] = __byte_perm(high, high2, 0x5410);
    words[4 * half + 3] = __byte_perm(high, high2, 0x7632);
  }
}

}  // namespace greenfast::cuda
