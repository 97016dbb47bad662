// Division that rounds up, of integers, on the host and on a device. Numerators are not negative,
// divisors positive, and their sum fits the type that C++ gives to it; what is below zero comes out
// as zero or below.
#pragma once

namespace greenfast {

// Always inlined, because files that are compiled for different instruction sets include this: a
// copy that stands alone would be that of any of them.

/// a / b, rounded up.
template <class A, class B>
[[gnu::always_inline]] constexpr auto ceil_div(A a, B b) {
  return (a + b - 1) / b;
}
/// The least multiple of `unit` that is not below `value`.
template <class A, class B>
[[gnu::always_inline]] constexpr auto round_up(A value, B unit) {
  return ceil_div(value, unit) * unit;
}

}  // namespace greenfast
