// What a generated or captured case holds for each operand of its problem.
#pragma once

#include <cstddef>
#include <span>

#include <greenfast/operands.hpp>

#include "workbench/cases/workload.hpp"

namespace greenfast::workbench {

/// The bytes of an input, from its base address on; none for outputs and for what the problem has
/// not.
inline std::span<const std::byte> bytes_of(const Inputs& inputs, OperandId id) {
  switch (id) {
    case OperandId::o:
    case OperandId::lse:
      return {};
    case OperandId::q:
      return inputs.q;
    case OperandId::k:
      return inputs.k;
    case OperandId::v:
      return inputs.v;
    case OperandId::q_scale:
      return std::as_bytes(std::span(inputs.q_scale));
    case OperandId::k_scale:
      return std::as_bytes(std::span(inputs.k_scale));
    case OperandId::v_scale:
      return std::as_bytes(std::span(inputs.v_scale));
    case OperandId::cu_q:
      return std::as_bytes(std::span(inputs.arrays.cu_q));
    case OperandId::cu_kv:
      return std::as_bytes(std::span(inputs.arrays.cu_kv));
    case OperandId::used_q:
      return std::as_bytes(std::span(inputs.arrays.used_q));
    case OperandId::used_kv:
      return std::as_bytes(std::span(inputs.arrays.used_kv));
    case OperandId::kv_start:
      return std::as_bytes(std::span(inputs.arrays.kv_start));
    case OperandId::kv_index:
      return std::as_bytes(std::span(inputs.arrays.kv_index));
    case OperandId::page_table:
      return std::as_bytes(std::span(inputs.arrays.page_table));
    case OperandId::sinks:
      return std::as_bytes(std::span(inputs.arrays.sinks));
    case OperandId::mask:
      return inputs.arrays.mask;
    case OperandId::slopes:
      return std::as_bytes(std::span(inputs.arrays.slopes));
  }
  return {};
}

}  // namespace greenfast::workbench
