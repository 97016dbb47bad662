// What a generated or captured case holds for each operand of its problem.
#pragma once

#include <cstddef>
#include <span>
#include <string>

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

/// The same, to be written to.
inline std::span<std::byte> bytes_of(Inputs& inputs, OperandId id) {
  const std::span<const std::byte> bytes = bytes_of(static_cast<const Inputs&>(inputs), id);
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

/// What people call an operand: O, LSE, Q, K and V as in the formula, others by their name.
inline std::string shown_name(const Operand& operand) {
  std::string name(operand.name);
  if (name.size() == 1 || operand.id == OperandId::lse)
    for (char& c : name) c = static_cast<char>(c - 'a' + 'A');
  return name;
}

}  // namespace greenfast::workbench
