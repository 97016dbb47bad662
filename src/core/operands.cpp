// The table of operands.
#include <greenfast/operands.hpp>

#include "core/check.hpp"

namespace greenfast {
namespace {

// Contiguous [B, H] or [B, H, S] values, or one value alone.
Layout contiguous(std::int64_t heads, std::int64_t seq) { return {{heads * seq, seq, 1, 1}, 4}; }

}  // namespace

std::array<Operand, kOperands> operands_of(const Problem& p) noexcept {
  using Id = OperandId;
  const bool writes = !core::writes_nothing(p);
  const bool reads = writes && p.seq_kv > 0;
  const auto tensor = [&p](Id id, std::string_view name, Role role, bool needed, DType dtype,
                           std::int64_t heads, std::int64_t seq, const Layout& layout) {
    return Operand{.id = id,
                   .name = name,
                   .role = role,
                   .present = true,
                   .needed = needed,
                   .dtype = dtype,
                   .shape = {p.batch, heads, seq, p.head_dim},
                   .layout = layout,
                   .bytes = core::extent_bytes(layout, p.batch, heads, seq, p.head_dim, dtype)};
  };
  const auto scale = [&p, reads](Id id, std::string_view name, std::int64_t heads) {
    const bool present = p.scales != ScaleKind::none;
    const bool each = p.scales == ScaleKind::per_head;
    const std::int64_t batch = each ? p.batch : 1, count = each ? heads : 1;
    return Operand{.id = id,
                   .name = name,
                   .role = Role::input,
                   .present = present,
                   .needed = present && reads,
                   .dtype = DType::f32,
                   .shape = {batch, count, 1, 1},
                   .layout = contiguous(count, 1),
                   .bytes = present ? batch * count * 4 : 0};
  };
  return {{
      tensor(Id::o, "o", Role::output, writes, p.out_dtype, p.heads_q, p.seq_q, p.o),
      {.id = Id::lse,
       .name = "lse",
       .role = Role::output,
       .present = p.lse,
       .needed = p.lse && writes,
       .dtype = DType::f32,
       .shape = {p.batch, p.heads_q, p.seq_q, 1},
       .layout = contiguous(p.heads_q, p.seq_q),
       .bytes = p.lse ? p.batch * p.heads_q * p.seq_q * 4 : 0},
      tensor(Id::q, "q", Role::input, reads, p.dtype, p.heads_q, p.seq_q, p.q),
      tensor(Id::k, "k", Role::input, reads, p.dtype, p.heads_kv, p.seq_kv, p.k),
      tensor(Id::v, "v", Role::input, reads, p.dtype, p.heads_kv, p.seq_kv, p.v),
      scale(Id::q_scale, "q_scale", p.heads_q),
      scale(Id::k_scale, "k_scale", p.heads_kv),
      scale(Id::v_scale, "v_scale", p.heads_kv),
  }};
}

const void* data_of(const Tensors& tensors, OperandId id) noexcept {
  // Every member by name: a new one does not compile before it has its operand.
  const auto& [q, k, v, o, lse, q_scale, k_scale, v_scale] = tensors;
  switch (id) {
    case OperandId::o:
      return o;
    case OperandId::lse:
      return lse;
    case OperandId::q:
      return q;
    case OperandId::k:
      return k;
    case OperandId::v:
      return v;
    case OperandId::q_scale:
      return q_scale;
    case OperandId::k_scale:
      return k_scale;
    case OperandId::v_scale:
      return v_scale;
  }
  return nullptr;
}

void set_data(Tensors& tensors, OperandId id, void* data) noexcept {
  switch (id) {
    case OperandId::o:
      tensors.o = data;
      return;
    case OperandId::lse:
      tensors.lse = static_cast<float*>(data);
      return;
    case OperandId::q:
      tensors.q = data;
      return;
    case OperandId::k:
      tensors.k = data;
      return;
    case OperandId::v:
      tensors.v = data;
      return;
    case OperandId::q_scale:
      tensors.q_scale = static_cast<const float*>(data);
      return;
    case OperandId::k_scale:
      tensors.k_scale = static_cast<const float*>(data);
      return;
    case OperandId::v_scale:
      tensors.v_scale = static_cast<const float*>(data);
      return;
  }
}

}  // namespace greenfast
