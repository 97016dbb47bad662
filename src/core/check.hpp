// Checks behind the public API, and what follows from a problem that passed them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <greenfast/operands.hpp>
#include <greenfast/quantize.hpp>

#include "core/arithmetic.hpp"

namespace greenfast::core {

// The limits of check(). With both lengths and mask bounds up to 2^30, every position that a mask
// compares (i + shift - left, i + shift + right) fits a 32-bit integer.
constexpr std::int64_t kMaxLength = std::int64_t{1} << 30;            // Sq, Skv, mask bounds
constexpr std::int64_t kMaxBatchHeads = (std::int64_t{1} << 31) - 1;  // B * Hq
constexpr std::int64_t kMaxTotal = (std::int64_t{1} << 31) - 1;       // packed rows, pages
constexpr std::int64_t kMaxStride = std::int64_t{1} << 48;            // elements
// Leaves room for a tile that begins inside a tensor and ends behind it.
constexpr std::int64_t kMaxBytes = std::int64_t{1} << 62;
constexpr std::int64_t kMinHeadDim = 8, kMaxHeadDim = 256, kHeadDimStep = 8;

/// Bytes from the base address to the end of the last element; 0 when there is none. For layouts
/// that check() accepts.
std::int64_t extent_bytes(const Layout& layout, std::int64_t batch, std::int64_t heads,
                          std::int64_t seq, std::int64_t head_dim, DType dtype) noexcept;

/// Elements from the base to the end of the last one; 0 when there is none.
std::int64_t extent_elements(const Layout& layout,
                             const std::array<std::int64_t, 4>& shape) noexcept;

/// No output element: the call writes nothing.
constexpr bool writes_nothing(const Problem& p) noexcept {
  return p.batch == 0 || p.seq_q == 0 || (p.sequences.packed_q && p.sequences.total_q == 0);
}

/// No row of Q sees a key whatever the arrays of the call hold, and every row of O is one of Q, or
/// there is no row: the API answers without a kernel.
bool is_empty(const Problem& problem) noexcept;

/// The shape of Q (O) with that head dimension, and of K (V).
constexpr std::array<std::int64_t, 4> shape_of_q(const Problem& p, std::int64_t dim) noexcept {
  if (p.sequences.packed_q) return {1, p.heads_q, p.sequences.total_q, dim};
  return {p.batch, p.heads_q, p.seq_q, dim};
}
constexpr std::array<std::int64_t, 4> shape_of_kv(const Problem& p, std::int64_t dim) noexcept {
  if (p.pages.used()) return {p.pages.count, p.heads_kv, p.pages.size, dim};
  if (p.sequences.packed_kv) return {1, p.heads_kv, p.sequences.total_kv, dim};
  return {p.sequences.kv_index ? p.sequences.kv_rows : p.batch, p.heads_kv, p.seq_kv, dim};
}

/// Entries of the page table that the longest sequence may need.
constexpr std::int64_t pages_of_row(const Problem& p) noexcept {
  return p.pages.size > 0 ? ceil_div(p.seq_kv, p.pages.size) : 0;
}

/// The table of operands in two pieces, the first what every problem may have. Where there are no
/// arrays the second is all absent: calls that have none do not pay for it.
inline constexpr std::size_t kTensorOperands = 8;
std::array<Operand, kTensorOperands> tensor_operands(const Problem& problem) noexcept;
std::array<Operand, kOperands - kTensorOperands> array_operands(const Problem& problem) noexcept;
constexpr bool has_arrays(const Problem& p) noexcept {
  const Sequences& s = p.sequences;
  return s.packed_q || s.packed_kv || s.used_q || s.used_kv || s.kv_start || s.kv_index ||
         p.pages.used() || p.sinks || p.alibi != Alibi::none || p.array_mask.kind != MaskKind::none;
}

/// "1 row", "2 rows".
std::string counted(std::int64_t count, std::string_view thing);

/// A count that is a fact of something: there with it, 0 without.
Status check_fact(std::string_view name, std::int64_t value, bool used, std::int64_t least,
                  std::int64_t most, std::string_view of);

/// Pointers that are needed are there and aligned to their elements; the output shares no memory
/// with an input or with the LSE. For a problem that passed check().
Status check_tensors(const Problem& problem, const Tensors& tensors);

/// The caller's scratch is there, large enough, aligned, and apart from every tensor.
Status check_workspace(const Problem& problem, const Tensors& tensors, std::int64_t needed,
                       const void* workspace, std::size_t given);

/// Types, shapes, strides and pointers of a quantisation.
Status check_quantize(const QuantizeProblem& problem, const QuantizeTensors& tensors);
/// Scratch that such a call was given: quantize_workspace_bytes at a multiple of 8, of nobody else.
Status check_quantize_workspace(const QuantizeProblem& problem, const QuantizeTensors& tensors,
                                const void* workspace, std::size_t given);

/// Lowers each Layout::alignment to what the pointers have. Null pointers leave it as it is.
void lower_alignment(Problem& problem, const Tensors& tensors) noexcept;

}  // namespace greenfast::core
