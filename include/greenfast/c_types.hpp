// The C interface's descriptions as the C++ ones and back: the only place where either is spelled
// out in terms of the other. Who reads a struct of a caller checks its size, version and reserved
// fields first.
#pragma once

#include <greenfast/greenfast.h>
#include <greenfast/serving.hpp>
#include <greenfast/types.hpp>

namespace greenfast {

/// A layout for the C interface.
inline gf_layout to_c(const Layout& layout) {
  const auto& [stride, alignment] = layout;
  return {{stride[0], stride[1], stride[2], stride[3]}, alignment, 0};
}
/// A layout of the C interface.
inline Layout from_c(const gf_layout& layout) {
  return {{layout.stride[0], layout.stride[1], layout.stride[2], layout.stride[3]},
          layout.alignment};
}

/// A problem for the C interface, head included.
inline gf_problem to_c(const Problem& problem) {
  // Every member by name: a new one does not compile before it has its place in the C struct.
  const auto& [batch, heads_q, heads_kv, seq_q, seq_kv, head_dim, dtype, out_dtype, scales, scale,
               softcap, mask, lse, q, k, v, o, head_dim_v, sequences, pages, chunk, sinks, alibi,
               array_mask, accuracy] = problem;
  const auto& [left, right, alignment] = mask;
  const auto& [packed_q, packed_kv, used_q, used_kv, kv_start, kv_index, total_q, total_kv,
               kv_rows] = sequences;
  const auto& [page_size, page_count, page_row_stride] = pages;
  const auto& [mask_kind, mask_dtype, mask_stride] = array_mask;
  gf_problem c{};
  c.struct_size = sizeof c;
  c.abi_version = GF_ABI_VERSION;
  c.batch = batch;
  c.heads_q = heads_q;
  c.heads_kv = heads_kv;
  c.seq_q = seq_q;
  c.seq_kv = seq_kv;
  c.head_dim = head_dim;
  c.dtype = static_cast<gf_dtype>(dtype);
  c.out_dtype = static_cast<gf_dtype>(out_dtype);
  c.scales = static_cast<gf_scale_kind>(scales);
  c.scale = scale;
  c.softcap = softcap;
  c.mask_alignment = static_cast<gf_alignment>(alignment);
  c.mask_left = left;
  c.mask_right = right;
  c.lse = lse ? 1 : 0;
  c.q = to_c(q);
  c.k = to_c(k);
  c.v = to_c(v);
  c.o = to_c(o);
  c.head_dim_v = head_dim_v;
  c.total_q = total_q;
  c.total_kv = total_kv;
  c.kv_rows = kv_rows;
  c.page_size = page_size;
  c.page_count = page_count;
  c.page_row_stride = page_row_stride;
  c.chunk = chunk;
  c.packed_q = packed_q ? 1 : 0;
  c.packed_kv = packed_kv ? 1 : 0;
  c.used_q = used_q ? 1 : 0;
  c.used_kv = used_kv ? 1 : 0;
  c.kv_start = kv_start ? 1 : 0;
  c.kv_index = kv_index ? 1 : 0;
  c.sinks = sinks ? 1 : 0;
  c.alibi = static_cast<gf_alibi>(alibi);
  c.array_mask_kind = static_cast<gf_mask_kind>(mask_kind);
  c.array_mask_dtype = static_cast<gf_dtype>(mask_dtype);
  for (std::size_t axis = 0; axis < mask_stride.size(); ++axis)
    c.array_mask_stride[axis] = mask_stride[axis];
  c.accuracy = static_cast<gf_accuracy>(accuracy);
  return c;
}
/// A problem of the C interface, all of this version's fields: of a shorter struct a copy.
inline Problem from_c(const gf_problem& c) {
  Problem p;
  // Every member by name here as well: a new one does not compile before it is read.
  auto& [batch, heads_q, heads_kv, seq_q, seq_kv, head_dim, dtype, out_dtype, scales, scale,
         softcap, mask, lse, q, k, v, o, head_dim_v, sequences, pages, chunk, sinks, alibi,
         array_mask, accuracy] = p;
  auto& [left, right, alignment] = mask;
  auto& [packed_q, packed_kv, used_q, used_kv, kv_start, kv_index, total_q, total_kv, kv_rows] =
      sequences;
  auto& [page_size, page_count, page_row_stride] = pages;
  auto& [mask_kind, mask_dtype, mask_stride] = array_mask;
  batch = c.batch;
  heads_q = c.heads_q;
  heads_kv = c.heads_kv;
  seq_q = c.seq_q;
  seq_kv = c.seq_kv;
  head_dim = c.head_dim;
  dtype = static_cast<DType>(c.dtype);
  out_dtype = static_cast<DType>(c.out_dtype);
  scales = static_cast<ScaleKind>(c.scales);
  scale = c.scale;
  softcap = c.softcap;
  left = c.mask_left;
  right = c.mask_right;
  alignment = static_cast<Alignment>(c.mask_alignment);
  lse = c.lse != 0;
  q = from_c(c.q);
  k = from_c(c.k);
  v = from_c(c.v);
  o = from_c(c.o);
  head_dim_v = c.head_dim_v;
  packed_q = c.packed_q != 0;
  packed_kv = c.packed_kv != 0;
  used_q = c.used_q != 0;
  used_kv = c.used_kv != 0;
  kv_start = c.kv_start != 0;
  kv_index = c.kv_index != 0;
  total_q = c.total_q;
  total_kv = c.total_kv;
  kv_rows = c.kv_rows;
  page_size = c.page_size;
  page_count = c.page_count;
  page_row_stride = c.page_row_stride;
  chunk = c.chunk;
  sinks = c.sinks != 0;
  alibi = static_cast<Alibi>(c.alibi);
  mask_kind = static_cast<MaskKind>(c.array_mask_kind);
  mask_dtype = static_cast<DType>(c.array_mask_dtype);
  for (std::size_t axis = 0; axis < mask_stride.size(); ++axis)
    mask_stride[axis] = c.array_mask_stride[axis];
  accuracy = static_cast<Accuracy>(c.accuracy);
  return p;
}

/// The data of a call for the C interface, head included.
inline gf_tensors to_c(const Tensors& tensors) {
  const auto& [q, k, v, o, lse, q_scale, k_scale, v_scale, cu_q, cu_kv, used_q, used_kv, kv_start,
               kv_index, page_table, sinks, mask, slopes] = tensors;
  gf_tensors c = GF_TENSORS_INIT;
  c.q = q;
  c.k = k;
  c.v = v;
  c.o = o;
  c.lse = lse;
  c.q_scale = q_scale;
  c.k_scale = k_scale;
  c.v_scale = v_scale;
  c.cu_q = cu_q;
  c.cu_kv = cu_kv;
  c.used_q = used_q;
  c.used_kv = used_kv;
  c.kv_start = kv_start;
  c.kv_index = kv_index;
  c.page_table = page_table;
  c.sinks = sinks;
  c.mask = mask;
  c.slopes = slopes;
  return c;
}
/// The data of a call of the C interface.
inline Tensors from_c(const gf_tensors& c) {
  return {c.q,        c.k,        c.v,          c.o,     c.lse,    c.q_scale,
          c.k_scale,  c.v_scale,  c.cu_q,       c.cu_kv, c.used_q, c.used_kv,
          c.kv_start, c.kv_index, c.page_table, c.sinks, c.mask,   c.slopes};
}

/// A merge of the C interface, all of this version's fields.
inline MergeProblem from_c(const gf_merge_problem& c) {
  MergeProblem p;
  p.batch = c.batch;
  p.heads = c.heads;
  p.seq = c.seq;
  p.head_dim = c.head_dim;
  p.dtype = static_cast<DType>(c.dtype);
  p.out_dtype = static_cast<DType>(c.out_dtype);
  p.a = from_c(c.a);
  p.b = from_c(c.b);
  p.o = from_c(c.o);
  return p;
}
/// Its data.
inline MergeTensors from_c(const gf_merge_tensors& c) {
  return {c.a, c.lse_a, c.b, c.lse_b, c.o, c.lse};
}

/// An append of the C interface, all of this version's fields.
inline AppendProblem from_c(const gf_append_problem& c) {
  AppendProblem p;
  p.batch = c.batch;
  p.heads_q = c.heads_q;
  p.heads_kv = c.heads_kv;
  p.seq_new = c.seq_new;
  p.seq_kv = c.seq_kv;
  p.head_dim = c.head_dim;
  p.head_dim_v = c.head_dim_v;
  p.dtype = static_cast<DType>(c.dtype);
  p.packed = c.packed != 0;
  p.total_new = c.total_new;
  p.used_new = c.used_new != 0;
  p.kv_start = c.kv_start != 0;
  p.kv_index = c.kv_index != 0;
  p.kv_rows = c.kv_rows;
  p.pages = {c.page_size, c.page_count, c.page_row_stride};
  p.rotary = static_cast<Rotary>(c.rotary);
  p.rotary_dim = c.rotary_dim;
  p.positions = c.positions;
  p.k_new = from_c(c.k_new);
  p.v_new = from_c(c.v_new);
  p.k = from_c(c.k);
  p.v = from_c(c.v);
  p.q = from_c(c.q);
  p.q_out = from_c(c.q_out);
  return p;
}
/// Its data.
inline AppendTensors from_c(const gf_append_tensors& c) {
  return {c.k_new,    c.v_new,   c.k,        c.v,        c.q,          c.q_out, c.cu_new,
          c.used_new, c.used_kv, c.kv_start, c.kv_index, c.page_table, c.cos,   c.sin};
}

}  // namespace greenfast
