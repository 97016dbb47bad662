// The operands of a problem: what a call reads and writes, by name, role, type and extent. Whoever
// allocates, checks, hashes, copies or counts them goes through this table, so that a new operand
// (page tables, a bias, split sums) needs no other list.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <greenfast/types.hpp>

namespace greenfast {

/// What a call does with an operand.
enum class Role : std::int32_t {
  output = 0,  ///< written in whole, never read
  input = 1,   ///< read, never written
};

/// Names the operands, outputs first; the index into operands_of's table.
enum class OperandId : std::int32_t {
  o = 0,
  lse = 1,
  q = 2,
  k = 3,
  v = 4,
  q_scale = 5,
  k_scale = 6,
  v_scale = 7,
};
/// How many there are.
inline constexpr std::size_t kOperands = 8;

/// One operand of one problem.
struct Operand {
  OperandId id = OperandId::o;
  std::string_view name;  ///< of the member of Tensors
  Role role = Role::input;
  bool present = false;  ///< the problem has it
  /// And a call touches it, which is not so without an output element, and for inputs without a
  /// key. What is not needed may be null.
  bool needed = false;
  DType dtype = DType::f16;
  std::array<std::int64_t, 4> shape{};  ///< B, H, S, D; axes that it has not are 1
  Layout layout = {};                   ///< strides in elements
  std::int64_t bytes = 0;  ///< from the base address to the end of the last element; 0 for none
};

/// The operands of a problem that passed check(), in the order of OperandId, whether it needs them
/// or not.
GREENFAST_API std::array<Operand, kOperands> operands_of(const Problem& problem) noexcept;
/// The address that a call was given for an operand.
GREENFAST_API const void* data_of(const Tensors& tensors, OperandId id) noexcept;
/// Sets it. Inputs are only read through it.
GREENFAST_API void set_data(Tensors& tensors, OperandId id, void* data) noexcept;

}  // namespace greenfast
