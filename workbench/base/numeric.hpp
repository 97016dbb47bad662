// Number formats of the workbench: exact decoding, correctly rounded encoding. Written apart from
// the library's own, so that neither can hide the other's mistake.
#pragma once

#include <cstddef>
#include <cstdint>

#include <greenfast/types.hpp>

namespace greenfast::workbench::numeric {

double from_f16(std::uint16_t bits) noexcept;
double from_bf16(std::uint16_t bits) noexcept;
/// OCP E4M3: bias 7, no infinities, S.1111.111 is NaN, largest 448.
double from_e4m3(std::uint8_t bits) noexcept;

/// One rounding, to nearest, ties to even; overflow gives infinity; NaN stays a quiet NaN.
std::uint16_t to_f16(double value) noexcept;
std::uint16_t to_bf16(double value) noexcept;
/// As above, but saturating: magnitudes beyond 448 and infinities give 448.
std::uint8_t to_e4m3(double value) noexcept;

/// Element `index` of a buffer of that type.
double load(DType dtype, const void* base, std::int64_t index) noexcept;
void store(DType dtype, void* base, std::int64_t index, double value) noexcept;
/// The same of `count` elements, `step` apart.
void store_row(DType dtype, void* base, std::int64_t index, std::int64_t step, const double* values,
               std::int64_t count) noexcept;
/// The nearest value of the type.
double round_to(DType dtype, double value) noexcept;
/// What an honest kernel stores of a sum that rounding of its weights carried past the type's last
/// number, by 2^-8 of it at most: that number. Anything else stays.
double within_range(DType dtype, double value) noexcept;
/// Largest relative error of one rounding: 2^-24, 2^-11, 2^-8, 2^-4.
double unit_roundoff(DType dtype) noexcept;
/// The smallest number above 0: the distance of neighbours at the bottom of the range.
double least_step(DType dtype) noexcept;
/// Decodes `count` consecutive elements.
void load_row(DType dtype, const void* base, std::int64_t index, std::int64_t count, double* out,
              std::int64_t step = 1) noexcept;
void load_row(DType dtype, const void* base, std::int64_t index, std::int64_t count, float* out,
              std::int64_t step = 1) noexcept;

}  // namespace greenfast::workbench::numeric
