// The table of operands.
#include <greenfast/operands.hpp>

#include <algorithm>

#include <greenfast/arithmetic.hpp>

#include "core/check.hpp"

namespace greenfast {
namespace {

using Shape = std::array<std::int64_t, 4>;

// Contiguous [B, H] or [B, H, S] values, or one value alone.
Layout contiguous(std::int64_t heads, std::int64_t seq) { return {{heads * seq, seq, 1, 1}, 4}; }

// An array beside the tensors. What a problem has not takes no byte.
Operand array(OperandId id, std::string_view name, Element element, bool present, bool needed,
              const Shape& shape, const Layout& layout, bool by_entry) {
  Operand operand{.id = id,
                  .name = name,
                  .role = Role::input,
                  .present = present,
                  .needed = present && needed,
                  .element = element,
                  .dtype = DType::f32,
                  .shape = shape,
                  .by_entry = by_entry,
                  .layout = layout};
  if (present)
    operand.bytes =
        core::extent_elements(layout, shape) * static_cast<std::int64_t>(element_bytes(operand));
  return operand;
}

}  // namespace

namespace core {

std::array<Operand, kTensorOperands> tensor_operands(const Problem& p) noexcept {
  using Id = OperandId;
  const bool writes = !writes_nothing(p);
  const bool reads = writes && p.seq_kv > 0;
  const bool entries_of_q = !p.sequences.packed_q;
  const bool entries_of_kv = !p.sequences.packed_kv && !p.sequences.kv_index && !p.pages.used();
  const auto tensor = [](Id id, std::string_view name, Role role, bool needed, DType dtype,
                         const Shape& shape, const Layout& layout, bool by_entry) {
    const std::int64_t bytes = extent_bytes(layout, shape[0], shape[1], shape[2], shape[3], dtype);
    return Operand{.id = id,
                   .name = name,
                   .role = role,
                   .present = true,
                   .needed = needed && bytes > 0,
                   .dtype = dtype,
                   .shape = shape,
                   .by_entry = by_entry,
                   .layout = layout,
                   .bytes = bytes};
  };
  const auto scale = [&p, reads](Id id, std::string_view name, std::int64_t heads,
                                 std::int64_t seq) {
    const bool present = p.scales != ScaleKind::none;
    const bool blocks = p.scales == ScaleKind::per_block;
    const bool each = blocks || p.scales == ScaleKind::per_head;
    const std::int64_t batch = each ? p.batch : 1, count = each ? heads : 1;
    const std::int64_t of_head = blocks ? ceil_div(seq, kScaleBlock) : 1;
    return Operand{.id = id,
                   .name = name,
                   .role = Role::input,
                   .present = present,
                   .needed = present && reads,
                   .dtype = DType::f32,
                   .shape = {batch, count, of_head, 1},
                   .by_entry = each,
                   .layout = contiguous(count, of_head),
                   .bytes = present ? batch * count * of_head * 4 : 0};
  };
  const Shape q = shape_of_q(p, p.head_dim), o = shape_of_q(p, value_dim(p));
  const Shape lse{o[0], o[1], o[2], 1};
  return {{
      tensor(Id::o, "o", Role::output, writes, p.out_dtype, o, p.o, entries_of_q),
      {.id = Id::lse,
       .name = "lse",
       .role = Role::output,
       .present = p.lse,
       .needed = p.lse && writes,
       .dtype = DType::f32,
       .shape = lse,
       .by_entry = entries_of_q,
       .layout = contiguous(lse[1], lse[2]),
       .bytes = p.lse ? lse[0] * lse[1] * lse[2] * 4 : 0},
      tensor(Id::q, "q", Role::input, reads, p.dtype, q, p.q, entries_of_q),
      tensor(Id::k, "k", Role::input, reads, p.dtype, shape_of_kv(p, p.head_dim), p.k,
             entries_of_kv),
      tensor(Id::v, "v", Role::input, reads, p.dtype, shape_of_kv(p, value_dim(p)), p.v,
             entries_of_kv),
      scale(Id::q_scale, "q_scale", p.heads_q, p.seq_q),
      scale(Id::k_scale, "k_scale", p.heads_kv, p.seq_kv),
      scale(Id::v_scale, "v_scale", p.heads_kv, p.seq_kv),
  }};
}

std::array<Operand, kOperands - kTensorOperands> array_operands(const Problem& p) noexcept {
  using Id = OperandId;
  const Sequences& sequences = p.sequences;
  const bool writes = !writes_nothing(p);
  const bool reads = writes && p.seq_kv > 0;
  // An array of one number for each sequence, which any row that is written may ask for.
  const auto index = [&](Id id, std::string_view name, bool present, std::int64_t count) {
    return array(id, name, Element::index, present, writes, {count, 1, 1, 1}, {{1, 1, 1, 1}, 4},
                 true);
  };
  Operand mask = array(Id::mask, "mask",
                       p.array_mask.kind == MaskKind::boolean ? Element::boolean : Element::number,
                       p.array_mask.kind != MaskKind::none, reads,
                       {p.batch, p.heads_q, p.seq_q, p.seq_kv}, {p.array_mask.stride, 1}, true);
  if (mask.present && mask.element == Element::number) {
    mask.dtype = p.array_mask.dtype;
    mask.bytes = mask.bytes / 4 * static_cast<std::int64_t>(size_of(mask.dtype));
  }
  mask.layout.alignment = static_cast<std::int32_t>(element_bytes(mask));
  const std::int64_t slopes = p.alibi == Alibi::per_batch_head ? p.batch : 1;
  return {{
      index(Id::cu_q, "cu_q", sequences.packed_q, p.batch + 1),
      index(Id::cu_kv, "cu_kv", sequences.packed_kv, p.batch + 1),
      index(Id::used_q, "used_q", sequences.used_q, p.batch),
      index(Id::used_kv, "used_kv", sequences.used_kv, p.batch),
      index(Id::kv_start, "kv_start", sequences.kv_start, p.batch),
      index(Id::kv_index, "kv_index", sequences.kv_index, p.batch),
      array(Id::page_table, "page_table", Element::index, p.pages.used(), reads,
            {p.batch, 1, 1, pages_of_row(p)}, {{p.pages.row_stride, 0, 0, 1}, 4}, true),
      array(Id::sinks, "sinks", Element::number, p.sinks, writes, {1, p.heads_q, 1, 1},
            contiguous(p.heads_q, 1), false),
      mask,
      array(Id::slopes, "slopes", Element::number, p.alibi != Alibi::none, reads,
            {slopes, p.heads_q, 1, 1}, contiguous(p.heads_q, 1), p.alibi == Alibi::per_batch_head),
  }};
}

}  // namespace core

std::array<Operand, kOperands> operands_of(const Problem& p) noexcept {
  std::array<Operand, kOperands> all;
  const auto tensors = core::tensor_operands(p);
  const auto arrays = core::array_operands(p);
  std::copy(arrays.begin(), arrays.end(), std::copy(tensors.begin(), tensors.end(), all.begin()));
  return all;
}

const void* data_of(const Tensors& tensors, OperandId id) noexcept {
  // Every member by name: a new one does not compile before it has its operand.
  const auto& [q, k, v, o, lse, q_scale, k_scale, v_scale, cu_q, cu_kv, used_q, used_kv, kv_start,
               kv_index, page_table, sinks, mask, slopes] = tensors;
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
    case OperandId::cu_q:
      return cu_q;
    case OperandId::cu_kv:
      return cu_kv;
    case OperandId::used_q:
      return used_q;
    case OperandId::used_kv:
      return used_kv;
    case OperandId::kv_start:
      return kv_start;
    case OperandId::kv_index:
      return kv_index;
    case OperandId::page_table:
      return page_table;
    case OperandId::sinks:
      return sinks;
    case OperandId::mask:
      return mask;
    case OperandId::slopes:
      return slopes;
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
    case OperandId::cu_q:
      tensors.cu_q = static_cast<const std::int32_t*>(data);
      return;
    case OperandId::cu_kv:
      tensors.cu_kv = static_cast<const std::int32_t*>(data);
      return;
    case OperandId::used_q:
      tensors.used_q = static_cast<const std::int32_t*>(data);
      return;
    case OperandId::used_kv:
      tensors.used_kv = static_cast<const std::int32_t*>(data);
      return;
    case OperandId::kv_start:
      tensors.kv_start = static_cast<const std::int32_t*>(data);
      return;
    case OperandId::kv_index:
      tensors.kv_index = static_cast<const std::int32_t*>(data);
      return;
    case OperandId::page_table:
      tensors.page_table = static_cast<const std::int32_t*>(data);
      return;
    case OperandId::sinks:
      tensors.sinks = static_cast<const float*>(data);
      return;
    case OperandId::mask:
      tensors.mask = data;
      return;
    case OperandId::slopes:
      tensors.slopes = static_cast<const float*>(data);
      return;
  }
}

}  // namespace greenfast
