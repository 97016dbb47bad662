// The C interface's descriptions as the C++ ones and back: the only place where either is spelled
// out in terms of the other. Who reads a struct of a caller checks its size, version and reserved
// fields first.
#pragma once

#include <greenfast/greenfast.h>
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
               softcap, mask, lse, q, k, v, o] = problem;
  const auto& [left, right, alignment] = mask;
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
  return c;
}
/// A problem of the C interface.
inline Problem from_c(const gf_problem& c) {
  Problem p;
  p.batch = c.batch;
  p.heads_q = c.heads_q;
  p.heads_kv = c.heads_kv;
  p.seq_q = c.seq_q;
  p.seq_kv = c.seq_kv;
  p.head_dim = c.head_dim;
  p.dtype = static_cast<DType>(c.dtype);
  p.out_dtype = static_cast<DType>(c.out_dtype);
  p.scales = static_cast<ScaleKind>(c.scales);
  p.scale = c.scale;
  p.softcap = c.softcap;
  p.mask = {c.mask_left, c.mask_right, static_cast<Alignment>(c.mask_alignment)};
  p.lse = c.lse != 0;
  p.q = from_c(c.q);
  p.k = from_c(c.k);
  p.v = from_c(c.v);
  p.o = from_c(c.o);
  return p;
}

/// The data of a call for the C interface, head included.
inline gf_tensors to_c(const Tensors& tensors) {
  const auto& [q, k, v, o, lse, q_scale, k_scale, v_scale] = tensors;
  gf_tensors c = GF_TENSORS_INIT;
  c.q = q;
  c.k = k;
  c.v = v;
  c.o = o;
  c.lse = lse;
  c.q_scale = q_scale;
  c.k_scale = k_scale;
  c.v_scale = v_scale;
  return c;
}
/// The data of a call of the C interface.
inline Tensors from_c(const gf_tensors& c) {
  return {c.q, c.k, c.v, c.o, c.lse, c.q_scale, c.k_scale, c.v_scale};
}

}  // namespace greenfast
