// What a problem must have for a planted fault to show in it; nullptr: it has that. For both tables
// of planted kernels.
#pragma once

#include "workbench/cases/workload.hpp"

namespace greenfast::workbench {

inline const char* needs_lse(const Problem& p) { return p.lse ? nullptr : "needs LSE"; }
inline const char* needs_softcap(const Problem& p) {
  return p.softcap > 0 ? nullptr : "needs a softcap";
}
inline const char* needs_batch(const Problem& p) { return p.batch > 1 ? nullptr : "needs B > 1"; }
inline const char* needs_head_scales(const Problem& p) {
  return p.scales == ScaleKind::per_head ? nullptr : "needs scales per head";
}
inline const char* needs_strides(const Problem& p) {
  const Layout dense = dense_layout(Order::bhsd, p.batch, p.heads_kv, p.seq_kv, p.head_dim);
  // Not where storage is shared: there the dense reading would leave the allocation.
  return p.k.stride != dense.stride && p.k.stride[1] > 0 ? nullptr
                                                         : "needs K that is not dense BHSD";
}
inline const char* needs_gaps(const Problem& p) {
  return p.o.stride[2] >= p.head_dim + 8 && p.o.stride[1] > p.o.stride[2]
             ? nullptr
             : "needs gaps between the rows of O";
}

}  // namespace greenfast::workbench
