// A launch whose grid or counters hold only so many batch entries, done in parts.
#pragma once

#include <algorithm>
#include <cstdint>

#include <greenfast/attention.hpp>

namespace greenfast::cuda {

/// Calls launch(problem, tensors) for parts of at most `most` entries. Ranges of a batch are
/// problems of their own: only the batch, the addresses and so their alignment differ. (Of one entry
/// the stride between entries says nothing, so the alignment must: an O whose batch stride is odd.)
template <class Launch>
Status in_batch_parts(const Problem& problem, const Tensors& tensors, std::int64_t most,
                      Launch launch) {
  if (problem.batch <= most) return launch(problem, tensors);
  const auto in = static_cast<std::int64_t>(size_of(problem.dtype));
  const auto out = static_cast<std::int64_t>(size_of(problem.out_dtype));
  for (std::int64_t first = 0; first < problem.batch; first += most) {
    const auto moved = [first](const void* data, Layout& layout, std::int64_t element) {
      const std::int64_t bytes = first * layout.stride[0] * element;
      if (bytes != 0) {
        const auto least = static_cast<std::int64_t>(layout.alignment);
        layout.alignment = static_cast<decltype(layout.alignment)>(std::min(least, bytes & -bytes));
      }
      return static_cast<const char*>(data) + bytes;
    };
    Problem part = problem;
    part.batch = std::min(most, problem.batch - first);
    Tensors there = tensors;
    there.q = moved(tensors.q, part.q, in);
    there.k = moved(tensors.k, part.k, in);
    there.v = moved(tensors.v, part.v, in);
    there.o = const_cast<char*>(moved(tensors.o, part.o, out));
    if (tensors.lse != nullptr) there.lse = tensors.lse + first * problem.heads_q * problem.seq_q;
    if (problem.scales == ScaleKind::per_head) {
      there.q_scale = tensors.q_scale + first * problem.heads_q;
      there.k_scale = tensors.k_scale + first * problem.heads_kv;
      there.v_scale = tensors.v_scale + first * problem.heads_kv;
    }
    if (Status status = launch(part, there); !status.ok()) return status;
  }
  return {};
}

}  // namespace greenfast::cuda
