// Who is wanted where, among the variants that can: the one place that knows of two kernels at
// once. Pure functions, one for each automatic row of variants.def; ranks and what was measured
// stand in prefer.cpp.
#pragma once

#include "core/variant.hpp"

namespace greenfast::dispatch::prefer {

core::Preference cpu_naive(const Problem&, const DeviceFacts&, core::Choice);
core::Preference cpu_flash(const Problem&, const DeviceFacts&, core::Choice);
core::Preference cuda_sm80_mma(const Problem&, const DeviceFacts&, core::Choice);
core::Preference cuda_sm90_prefill(const Problem&, const DeviceFacts&, core::Choice);
core::Preference cuda_sm90_small(const Problem&, const DeviceFacts&, core::Choice);
core::Preference cuda_sm80_serving(const Problem&, const DeviceFacts&, core::Choice);
core::Preference cuda_sm80_decode(const Problem&, const DeviceFacts&, core::Choice);
core::Preference cuda_sm90_packed(const Problem&, const DeviceFacts&, core::Choice);
core::Preference cuda_sm90_decode(const Problem&, const DeviceFacts&, core::Choice);
core::Preference cuda_sm90_grouped(const Problem&, const DeviceFacts&, core::Choice);
core::Preference cuda_sm90_fp8_serving(const Problem&, const DeviceFacts&, core::Choice);
core::Preference cuda_sm90_fp8(const Problem&, const DeviceFacts&, core::Choice);
core::Preference cuda_sm90_fp8_curved(const Problem&, const DeviceFacts&, core::Choice);
core::Preference cuda_sm90_fp8_fast(const Problem&, const DeviceFacts&, core::Choice);

}  // namespace greenfast::dispatch::prefer
