// The C ABI's descriptions as the library's own. Who calls has checked sizes, versions and reserved
// fields.
#pragma once

#include <greenfast/greenfast.h>
#include <greenfast/types.hpp>

namespace greenfast::core {

inline Layout layout_of(const gf_layout& from) {
  return {{from.stride[0], from.stride[1], from.stride[2], from.stride[3]}, from.alignment};
}

inline Problem problem_of(const gf_problem& from) {
  Problem to;
  to.batch = from.batch;
  to.heads_q = from.heads_q;
  to.heads_kv = from.heads_kv;
  to.seq_q = from.seq_q;
  to.seq_kv = from.seq_kv;
  to.head_dim = from.head_dim;
  to.dtype = static_cast<DType>(from.dtype);
  to.out_dtype = static_cast<DType>(from.out_dtype);
  to.scales = static_cast<ScaleKind>(from.scales);
  to.scale = from.scale;
  to.softcap = from.softcap;
  to.mask.left = from.mask_left;
  to.mask.right = from.mask_right;
  to.mask.alignment = static_cast<Alignment>(from.mask_alignment);
  to.lse = from.lse != 0;
  to.q = layout_of(from.q);
  to.k = layout_of(from.k);
  to.v = layout_of(from.v);
  to.o = layout_of(from.o);
  return to;
}

}  // namespace greenfast::core
