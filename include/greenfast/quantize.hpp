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
  /// (batch, head), contiguous. per_block: one for each (batch, head, kScaleBlock rows), contiguous.
  ScaleKind scales = ScaleKind::per_head;
  /// false: scales are the caller's. true: they are written, as the largest finite magnitude / 448,
  /// not below 2^-126, and 1 where every value is 0.
  bool compute_scales = true;
  /// Each row is multiplied by an orthogonal matrix first, the same for all: of Q and K both, or of
  /// neither (Quantizing::rotate says what for). Scales are then of rotated values, whose magnitude is
  /// up to 5.7 times that of values: a scale that is given must be, too. Infinities and magnitudes above
  /// 1e37 may make NaN and infinities of up to 32 columns. Refused where S has stride 1 in `to`.
  bool rotate = false;
  /// Strides in elements; that of D must be 1. `to` may have 1 for S instead, as attention takes V.
  Layout from = {}, to = {};
};

/// The caller owns every buffer; all of them lie on the device of the call.
struct QuantizeTensors {
  const void* from = nullptr;
  void* to = nullptr;      ///< bytes
  float* scale = nullptr;  ///< not needed for ScaleKind::none
};

/// How many scales its tensor has; 1, of which nothing is read or written, for ScaleKind::none.
constexpr std::int64_t quantize_scales(const QuantizeProblem& problem) noexcept {
  const std::int64_t heads = problem.batch * problem.heads;
  if (problem.scales == ScaleKind::per_head) return heads;
  if (problem.scales == ScaleKind::per_block)
    return heads * (problem.seq / kScaleBlock + (problem.seq % kScaleBlock != 0 ? 1 : 0));
  return 1;
}

/// Scratch with which computing scales is fastest on CUDA: eight bytes a scale.
constexpr std::int64_t quantize_workspace_bytes(const QuantizeProblem& problem) noexcept {
  if (problem.scales == ScaleKind::none || !problem.compute_scales) return 0;
  return 8 * quantize_scales(problem);
}

/// Quantises on Options::device; of Options only device, device_index, stream, workspace and allocate
/// count. With quantize_workspace_bytes of scratch, at a multiple of 8, GPUs of compute capability 9.0
/// and later read values once, where rows begin at multiples of 16 bytes and a scale's values fit their
/// shared memory (some 12 MB); else they are read twice. On CUDA the work is enqueued on the
/// stream, allocates nothing but by Options::allocate, and may be captured into a graph; CPU and CUDA
/// give the same bits. A Status names what is wrong: unknown types, strides that overlap, missing
/// pointers, a workspace that is given and too small.
GREENFAST_API Status quantize_e4m3(const QuantizeProblem& problem, const QuantizeTensors& tensors,
                                   const Options& options = {});

/// How attention_quantized quantises.
struct Quantizing {
  /// A mean of each of K's columns over its keys, up to 1,024 of them, is subtracted before it is
  /// quantised, so that a column whose values lie far from zero (the bias of a projection) costs no digits of the others.
  /// It moves all scores of a row alike, which changes no output; the log-sum-exp is given it back.
  /// Refused with softcap and sinks, to which a row's scores are not all alike. From Zhang et al.,
  /// "SageAttention", 2024.
  bool smooth_k = false;
  /// Rows of Q and K are multiplied by the same orthogonal matrix, of Hadamard matrices of 32
  /// neighbouring columns (a rest of 16 and of 8), which changes no product of two of them. Columns
  /// that lie far above the rest in Q and K alike are then dealt to 32, each of which is rounded on its
  /// own: a third to a half of the error is left, and of single such elements two thirds. Where all
  /// columns are alike it changes nothing, and where Q's large ones are others than K's it may cost.
  /// Goes with all that the problem may have. From Shah et al., "FlashAttention-3", 2024.
  bool rotate = false;
};

/// Attention of fp32, fp16 or bf16 tensors by way of e4m3: Q, K and V are quantised into scratch, with
/// a scale for each (batch, head), on CUDA in one launch where quantize_e4m3 has one, and with V's keys
/// one behind the other where the kernel that selection takes wants them so; then attention() of the codes. What that costs in accuracy is e4m3's, three
/// bits of mantissa an element (docs/kernels/sm90-fp8.md has it beside the kernels' own error);
/// Problem::accuracy is that of the kernel. On Hopper faster than 16 bits from 2,048 or
/// 4,096 keys on, under a causal mask from 8,192; on the CPU slower.
///
/// Takes what attention() takes in e4m3 of dense tensors: masks by array, sinks, ALiBi and chunks too,
/// where a kernel does. Packed sequences, pages, used lengths, left padding and indices are refused:
/// keep such a cache in e4m3, as it grows (quantize_e4m3). Wants scratch: Options::workspace of
/// plan_quantized().workspace_bytes, or Options::allocate.
/// Errors: as attention()'s; unsupported where no e4m3 kernel of the device takes the problem.
GREENFAST_API Status attention_quantized(const Problem& problem, const Tensors& tensors,
                                         const Options& options = {},
                                         const Quantizing& quantizing = {});
/// The same, everything read off the views. AttentionParams' scales are none: they are computed.
GREENFAST_API Status attention_quantized(const TensorView& q, const TensorView& k,
                                         const TensorView& v, const TensorView& o,
                                         const AttentionParams& params = {},
                                         const Options& options = {},
                                         const Quantizing& quantizing = {});

/// What the e4m3 kernel of such a call will do. workspace_bytes is that of the whole call: codes,
/// scales, and what the kernel wants.
GREENFAST_API Result<Plan> plan_quantized(const Problem& problem, const DeviceFacts& facts,
                                          const Options& options = {},
                                          const Quantizing& quantizing = {});

}  // namespace greenfast
