// The operands of a problem: what a call reads and writes, by name, role, type and extent. Whoever
// allocates, checks, hashes, copies or counts them goes through this table. Beside its row here a
// new operand needs a member of Tensors and of gf_tensors, and a word where no table can decide for
// it, which does not compile before that: CONTRIBUTING.md, "An operand", names those places.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <greenfast/types.hpp>

namespace greenfast {

/// What a call does with an operand.
enum class Role : std::int32_t {
  output = 0,  ///< written in whole but for rows of no sequence, never read
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
  cu_q = 8,
  cu_kv = 9,
  used_q = 10,
  used_kv = 11,
  kv_start = 12,
  kv_index = 13,
  page_table = 14,
  sinks = 15,
  mask = 16,
  slopes = 17,
};
/// How many there are.
inline constexpr std::size_t kOperands = 18;

/// What the elements of an operand are: numbers of a DType, or what no tensor of Q, K, V, O holds.
enum class Element : std::int32_t {
  number = 0,   ///< as Operand::dtype says
  index = 1,    ///< int32
  boolean = 2,  ///< one byte
};

/// One operand of one problem.
struct Operand {
  OperandId id = OperandId::o;
  std::string_view name;  ///< of the member of Tensors
  Role role = Role::input;
  bool present = false;  ///< the problem has it
  /// And a call touches it, which is not so without an output element, and for inputs without a
  /// key. What is not needed may be null.
  bool needed = false;
  Element element = Element::number;
  DType dtype = DType::f32;             ///< of numbers; fp32 where the elements are none
  std::array<std::int64_t, 4> shape{};  ///< B, H, S, D; axes that it has not are 1
  /// B counts batch entries, so a range of the batch has a range of it: not packed rows, pages, K and
  /// V that kv_index picks from, or what all entries share.
  bool by_entry = false;
  Layout layout = {};      ///< strides in elements
  std::int64_t bytes = 0;  ///< from the base address to the end of the last element; 0 for none
};

/// Bytes of one of its elements.
inline std::size_t element_bytes(const Operand& operand) noexcept {
  switch (operand.element) {
    case Element::number:
      break;
    case Element::index:
      return sizeof(std::int32_t);
    case Element::boolean:
      return 1;
  }
  return size_of(operand.dtype);
}

/// The operands of a problem that passed check(), in the order of OperandId, whether it needs them
/// or not.
GREENFAST_API std::array<Operand, kOperands> operands_of(const Problem& problem) noexcept;
/// The address that a call was given for an operand.
GREENFAST_API const void* data_of(const Tensors& tensors, OperandId id) noexcept;
/// Sets it. Inputs are only read through it.
GREENFAST_API void set_data(Tensors& tensors, OperandId id, void* data) noexcept;

}  // namespace greenfast
