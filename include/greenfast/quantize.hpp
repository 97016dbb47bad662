// Values to e4m3 with the scales that attention takes.
#pragma once

#include <greenfast/attention.hpp>

namespace greenfast {

/// A [B, H, S, D] tensor of fp32, fp16 or bf16 and the e4m3 tensor it becomes: code = e4m3(value /
/// scale), rounded to nearest even, saturating at 448; 0 stays 0 with its sign, infinities
/// saturate, NaN becomes 0x7f. The quotient is fp32's, correctly rounded.
struct QuantizeProblem {
  std::int64_t batch = 1, heads = 1, seq = 0, head_dim = 64;  ///< head_dim: 8 to 256 in steps of 8
  DType dtype = DType::f16;                                   ///< of the values
  /// none: every scale is 1 and nothing is read or written. tensor: one. per_head: one for each
  /// (batch, head), contiguous.
  ScaleKind scales = ScaleKind::per_head;
  /// false: scales are the caller's. true: they are written, as the largest finite magnitude / 448,
  /// not below 2^-126, and 1 where every value is 0.
  bool compute_scales = true;
  /// Strides in elements; that of D must be 1. `to` may have 1 for S instead, as attention takes V.
  Layout from = {}, to = {};
};

/// The caller owns every buffer; all of them lie on the device of the call.
struct QuantizeTensors {
  const void* from = nullptr;
  void* to = nullptr;      ///< bytes
  float* scale = nullptr;  ///< not needed for ScaleKind::none
};

/// Quantises on Options::device; of Options only device, device_index and stream count. On CUDA the
/// work is enqueued on the stream, allocates nothing and may be captured into a graph; CPU and CUDA
/// give the same bits. A Status names what is wrong: unknown types, strides that overlap, missing
/// pointers.
GREENFAST_API Status quantize_e4m3(const QuantizeProblem& problem, const QuantizeTensors& tensors,
                                   const Options& options = {});

}  // namespace greenfast
