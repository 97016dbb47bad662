// The calls around attention: what they may be asked, and who does it on the CPU.
#pragma once

#include <greenfast/serving.hpp>

#include "core/sequences.hpp"
#include "core/variant.hpp"

namespace greenfast::core {

/// Types, shapes, strides and pointers.
Status check_merge(const MergeProblem& problem, const MergeTensors& tensors);
Status check_append(const AppendProblem& problem, const AppendTensors& tensors);
/// The arrays of an append that passed check_append, on the host: every entry of them, and that no
/// two new tokens go to one place.
Status check_append_arrays(const AppendProblem& problem, const AppendTensors& tensors);
/// The same of arrays that the host cannot read.
Status check_fetched_append_arrays(const AppendProblem& problem, const AppendTensors& tensors,
                                   const Fetch& fetch);

/// Where the new tokens of one sequence come from and go to, for arrays that have been checked.
struct Appended {
  std::int64_t new_batch = 0, new_row = 0, count = 0;  // in the new tensors
  std::int64_t first = 0;                              // key of the first of them
  std::int64_t position = 0;                           // its position
};
inline Appended appended(const AppendProblem& p, const AppendTensors& t, std::int64_t b) noexcept {
  Appended out{b, 0, p.seq_new, 0, 0};
  if (p.packed) out = {0, t.cu_new[b], t.cu_new[b + 1] - t.cu_new[b], 0, 0};
  if (p.used_new) out.count = t.used_new[b];
  out.first = t.used_kv != nullptr ? t.used_kv[b] : 0;
  out.position = out.first - (p.kv_start ? t.kv_start[b] : 0);
  return out;
}

/// The head dimension of V.
constexpr std::int64_t value_dim(const AppendProblem& p) noexcept {
  return p.head_dim_v != 0 ? p.head_dim_v : p.head_dim;
}

}  // namespace greenfast::core

namespace greenfast::kernels {
/// Defined in src/kernels/cpu; for problems and arrays that have been checked.
Status cpu_merge(const MergeProblem&, const MergeTensors&, const core::Context&);
Status cpu_append(const AppendProblem&, const AppendTensors&, const core::Context&);
}  // namespace greenfast::kernels
