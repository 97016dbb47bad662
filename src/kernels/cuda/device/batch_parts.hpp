// A launch whose grid or counters hold only so many batch entries, done in parts.
#pragma once

#include <algorithm>
#include <cstdint>

#include <greenfast/arithmetic.hpp>
#include <greenfast/attention.hpp>
#include <greenfast/operands.hpp>

namespace greenfast::cuda {

/// Tiles of 128 queries in a batch entry; without queries as with one.
inline std::int64_t query_tiles_of_an_entry(const Problem& problem) {
  return problem.heads_q * std::max<std::int64_t>(ceil_div(problem.seq_q, std::int64_t{128}), 1);
}

/// The layout whose alignment a problem states, or null.
inline Layout* layout_of(Problem& problem, OperandId id) {
  switch (id) {
    case OperandId::q:
      return &problem.q;
    case OperandId::k:
      return &problem.k;
    case OperandId::v:
      return &problem.v;
    case OperandId::o:
      return &problem.o;
    default:
      return nullptr;
  }
}

/// Calls launch(problem, tensors) for parts of at most `most` entries. Ranges of a batch are
/// problems of their own: only the batch, the addresses and so their alignment differ. (Of one entry
/// the stride between entries says nothing, so the alignment must: an O whose batch stride is odd.)
template <class Launch>
Status in_batch_parts(const Problem& problem, const Tensors& tensors, std::int64_t most,
                      Launch launch) {
  if (problem.batch <= most) return launch(problem, tensors);
  const auto operands = operands_of(problem);
  for (std::int64_t first = 0; first < problem.batch; first += most) {
    Problem part = problem;
    part.batch = std::min(most, problem.batch - first);
    Tensors there = tensors;
    for (const Operand& operand : operands) {
      const void* const data = data_of(tensors, operand.id);
      if (!operand.by_entry || data == nullptr) continue;
      const std::int64_t bytes =
          first * operand.layout.stride[0] * static_cast<std::int64_t>(element_bytes(operand));
      // Inputs are only read through it.
      set_data(there, operand.id, const_cast<char*>(static_cast<const char*>(data) + bytes));
      Layout* const layout = layout_of(part, operand.id);
      if (layout == nullptr || bytes == 0) continue;
      const auto least = static_cast<std::int64_t>(layout->alignment);
      layout->alignment = static_cast<decltype(layout->alignment)>(std::min(least, bytes & -bytes));
    }
    if (Status status = launch(part, there); !status.ok()) return status;
  }
  return {};
}

}  // namespace greenfast::cuda
