#include "workbench/base/numeric.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace greenfast::workbench::numeric {
namespace {

constexpr int kDoubleMantissaBits = 52;

struct Format {
  int mantissa_bits;
  int min_exponent;        // of the smallest normal number
  std::uint32_t overflow;  // what magnitudes that round past the largest finite number become
  std::uint32_t largest;   // code of the largest finite number
  std::uint32_t nan;
  double last, beyond;  // the numbers that `largest` and `overflow` stand for
};
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr Format kF16{10, -14, 0x7c00, 0x7bff, 0x7e00, 65504.0, kInfinity};
constexpr Format kBf16{7, -126, 0x7f80, 0x7f7f, 0x7fc0, 0x1.fep127, kInfinity};
constexpr Format kE4m3{3, -6, 0x7e, 0x7e, 0x7f, 448.0, 448.0};

/// Where one step of the format is the last bit of a double, for magnitudes of this exponent.
constexpr double shift_of(int exponent, const Format& format) {
  return std::bit_cast<double>(
      static_cast<std::uint64_t>(exponent - format.mantissa_bits + kDoubleMantissaBits + 1023)
      << kDoubleMantissaBits);
}
constexpr int exponent_of(double magnitude) {
  return static_cast<int>(std::bit_cast<std::uint64_t>(magnitude) >> kDoubleMantissaBits) - 1023;
}

// Code of |value|: exponent and mantissa of a small format lie in one integer, so a carry out of
// the mantissa lands where it belongs, also from the subnormal numbers into the normal ones. An addition
// rounds: what it leaves in the last bits counts the format's steps. Branch-free, so that rows are encoded in
// vector registers.
[[gnu::always_inline]] inline std::uint32_t encode_magnitude(double magnitude,
                                                             const Format& format) {
  // No further than the format's end, behind which the sum is not looked at.
  constexpr int kBeyond = 128;
  const int exponent = std::min(std::max(exponent_of(magnitude), format.min_exponent), kBeyond);
  const double shift = shift_of(exponent, format);
  const std::uint64_t steps =
      std::bit_cast<std::uint64_t>(magnitude + shift) - std::bit_cast<std::uint64_t>(shift);
  const auto code = static_cast<std::uint32_t>(
      (static_cast<std::uint64_t>(exponent - format.min_exponent) << format.mantissa_bits) + steps);
  const bool fits = magnitude < 2 * format.last && code <= format.largest;
  const std::uint32_t finite = fits ? code : format.overflow;
  return magnitude != magnitude ? format.nan : finite;
}

template <class T>
[[gnu::always_inline]] inline T encode(double value, const Format& format) {
  constexpr int kSign = 8 * sizeof(T) - 1;
  return static_cast<T>(encode_magnitude(std::fabs(value), format) |
                        static_cast<std::uint32_t>(std::bit_cast<std::uint64_t>(value) >> 63)
                            << kSign);
}
template <class T>
[[gnu::always_inline]] inline void encode_all(const double* values, std::int64_t count,
                                              const Format& format, T* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = encode<T>(values[i], format);
}
template <class T>
using EncodeRow = void (*)(const double*, std::int64_t, T*);
template <class T, const Format& kFormat>
void encode_row(const double* values, std::int64_t count, T* out) {
  encode_all(values, count, kFormat, out);
}
#ifdef __x86_64__
template <class T, const Format& kFormat>
[[gnu::target("avx512f,avx512dq,avx512bw,avx512vl")]] void encode_row_avx512(const double* values,
                                                                             std::int64_t count,
                                                                             T* out) {
  encode_all(values, count, kFormat, out);
}
#endif
template <class T, const Format& kFormat>
EncodeRow<T> encode_row_here() {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    return &encode_row_avx512<T, kFormat>;
#endif
  return &encode_row<T, kFormat>;
}

/// The format's number nearest to `value`, ties to even: what encode_magnitude() gives the code of, in a fifth of the time.
double nearest(double value, const Format& format) {
  const double magnitude = std::fabs(value);
  if (!(magnitude < 2 * format.last))
    return std::copysign(
        std::isnan(value) ? std::numeric_limits<double>::quiet_NaN() : format.beyond, value);
  const double shift = shift_of(std::max(exponent_of(magnitude), format.min_exponent), format);
  const double rounded = magnitude + shift - shift;
  return std::copysign(rounded > format.last ? format.beyond : rounded, value);
}

double decode_e4m3(std::uint32_t magnitude) {
  if (magnitude == kE4m3.nan) return std::numeric_limits<double>::quiet_NaN();
  const auto exponent = static_cast<int>(magnitude >> kE4m3.mantissa_bits);
  const auto mantissa = static_cast<int>(magnitude & ((1u << kE4m3.mantissa_bits) - 1));
  return exponent == 0 ? std::ldexp(mantissa, kE4m3.min_exponent - kE4m3.mantissa_bits)
                       : std::ldexp(mantissa + (1 << kE4m3.mantissa_bits),
                                    kE4m3.min_exponent - kE4m3.mantissa_bits + exponent - 1);
}

const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> table{};
    for (std::uint32_t code = 0; code < 256; ++code) {
      const double value = decode_e4m3(code & 0x7fu);
      table[code] = static_cast<float>(code & 0x80u ? -value : value);
    }
    return table;
  }();
  return values;
}

// Branch-free, so that rows decode in vector registers.
inline float f16_to_float(std::uint16_t bits) {
  const std::uint32_t magnitude = bits & 0x7fffu;
  // Moved into float position the exponent is 112 too small; the product corrects normal and
  // subnormal numbers alike, exactly.
  const float finite = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const std::uint32_t special = 0x7f800000u | (magnitude << 13);
  const std::uint32_t chosen =
      magnitude >= 0x7c00u ? special : std::bit_cast<std::uint32_t>(finite);
  return std::bit_cast<float>(chosen | (static_cast<std::uint32_t>(bits & 0x8000u) << 16));
}

inline float bf16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

template <class T>
void load_row_as(DType dtype, const void* base, std::int64_t index, std::int64_t count, T* out) {
  switch (dtype) {
    case DType::f32: {
      const auto* p = static_cast<const float*>(base) + index;
      for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(p[i]);
      return;
    }
    case DType::f16: {
      const auto* p = static_cast<const std::uint16_t*>(base) + index;
      for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(f16_to_float(p[i]));
      return;
    }
    case DType::bf16: {
      const auto* p = static_cast<const std::uint16_t*>(base) + index;
      for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(bf16_to_float(p[i]));
      return;
    }
    case DType::e4m3: {
      const auto* p = static_cast<const std::uint8_t*>(base) + index;
      const auto& table = e4m3_values();
      for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(table[p[i]]);
      return;
    }
  }
}

}  // namespace

double from_f16(std::uint16_t bits) noexcept { return static_cast<double>(f16_to_float(bits)); }

double from_bf16(std::uint16_t bits) noexcept { return static_cast<double>(bf16_to_float(bits)); }

double from_e4m3(std::uint8_t bits) noexcept { return static_cast<double>(e4m3_values()[bits]); }

std::uint16_t to_f16(double value) noexcept { return encode<std::uint16_t>(value, kF16); }

std::uint16_t to_bf16(double value) noexcept { return encode<std::uint16_t>(value, kBf16); }

std::uint8_t to_e4m3(double value) noexcept { return encode<std::uint8_t>(value, kE4m3); }

double load(DType dtype, const void* base, std::int64_t index) noexcept {
  switch (dtype) {
    case DType::f32:
      return static_cast<const float*>(base)[index];
    case DType::f16:
      return from_f16(static_cast<const std::uint16_t*>(base)[index]);
    case DType::bf16:
      return from_bf16(static_cast<const std::uint16_t*>(base)[index]);
    case DType::e4m3:
      return from_e4m3(static_cast<const std::uint8_t*>(base)[index]);
  }
  return std::numeric_limits<double>::quiet_NaN();
}

void store(DType dtype, void* base, std::int64_t index, double value) noexcept {
  switch (dtype) {
    case DType::f32:
      static_cast<float*>(base)[index] = static_cast<float>(value);
      return;
    case DType::f16:
      static_cast<std::uint16_t*>(base)[index] = to_f16(value);
      return;
    case DType::bf16:
      static_cast<std::uint16_t*>(base)[index] = to_bf16(value);
      return;
    case DType::e4m3:
      static_cast<std::uint8_t*>(base)[index] = to_e4m3(value);
      return;
  }
}

void store_row(DType dtype, void* base, std::int64_t index, std::int64_t step, const double* values,
               std::int64_t count) noexcept {
  if (step != 1) {
    for (std::int64_t i = 0; i < count; ++i) store(dtype, base, index + i * step, values[i]);
    return;
  }
  static const auto row_of_f16 = encode_row_here<std::uint16_t, kF16>();
  static const auto row_of_bf16 = encode_row_here<std::uint16_t, kBf16>();
  static const auto row_of_e4m3 = encode_row_here<std::uint8_t, kE4m3>();
  switch (dtype) {
    case DType::f32:
      for (std::int64_t i = 0; i < count; ++i)
        static_cast<float*>(base)[index + i] = static_cast<float>(values[i]);
      return;
    case DType::f16:
      return row_of_f16(values, count, static_cast<std::uint16_t*>(base) + index);
    case DType::bf16:
      return row_of_bf16(values, count, static_cast<std::uint16_t*>(base) + index);
    case DType::e4m3:
      return row_of_e4m3(values, count, static_cast<std::uint8_t*>(base) + index);
  }
}

double round_to(DType dtype, double value) noexcept {
  switch (dtype) {
    case DType::f32:
      return static_cast<double>(static_cast<float>(value));
    case DType::f16:
      return nearest(value, kF16);
    case DType::bf16:
      return nearest(value, kBf16);
    case DType::e4m3:
      return nearest(value, kE4m3);
  }
  return value;
}

double within_range(DType dtype, double value) noexcept {
  const double last = dtype == DType::f16    ? kF16.last
                      : dtype == DType::bf16 ? kBf16.last
                      : dtype == DType::f32  ? 0x1.fffffep127
                                             : kE4m3.last;
  const double magnitude = std::fabs(value);
  return magnitude > last && magnitude <= last * (1 + 0x1p-8) ? std::copysign(last, value) : value;
}

namespace {
struct Precision {
  double roundoff, step;  // unit_roundoff, least_step
};
constexpr Precision precision_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f32:
      return {0x1p-24, 0x1p-149};
    case DType::f16:
      return {0x1p-11, 0x1p-24};
    case DType::bf16:
      return {0x1p-8, 0x1p-133};
    case DType::e4m3:
      return {0x1p-4, 0x1p-9};
  }
  return {1, 0};
}
}  // namespace

double unit_roundoff(DType dtype) noexcept { return precision_of(dtype).roundoff; }

double least_step(DType dtype) noexcept { return precision_of(dtype).step; }

void load_row(DType dtype, const void* base, std::int64_t index, std::int64_t count, double* out,
              std::int64_t step) noexcept {
  if (step == 1) return load_row_as(dtype, base, index, count, out);
  for (std::int64_t i = 0; i < count; ++i) out[i] = load(dtype, base, index + i * step);
}

void load_row(DType dtype, const void* base, std::int64_t index, std::int64_t count, float* out,
              std::int64_t step) noexcept {
  if (step == 1) return load_row_as(dtype, base, index, count, out);
  for (std::int64_t i = 0; i < count; ++i)
    out[i] = static_cast<float>(load(dtype, base, index + i * step));
}

}  // namespace greenfast::workbench::numeric
