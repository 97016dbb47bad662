// What a problem must have for a planted fault to show in it; nullptr: it has that. For both tables
// of planted kernels.
#pragma once

#include "workbench/cases/workload.hpp"

namespace greenfast::workbench {

inline const char* needs_lse(const Problem& p) { return p.lse ? nullptr : "needs LSE"; }
inline const char* needs_softcap(const Problem& p) {
  return p.softcap > 0 ? nullptr : "needs a softcap";
}
/// The CPU's faults move the right end of any band, the GPU's that of a causal mask alone.
inline const char* needs_right_bound(const Problem& p) {
  return p.mask.right >= 0 ? nullptr : "needs a causal mask or a window";
}
inline const char* needs_causal(const Problem& p) {
  return p.mask.is_causal() && p.mask.left < 0 ? nullptr : "needs a causal mask";
}
/// Where the two alignments differ.
inline const char* needs_mask_of_lengths(const Problem& p) {
  return !p.mask.is_none() && p.seq_q != p.seq_kv ? nullptr : "needs a mask and Sq != Skv";
}
inline const char* needs_causal_of_lengths(const Problem& p) {
  return needs_causal(p) == nullptr && p.seq_q != p.seq_kv ? nullptr
                                                           : "needs a causal mask and Sq != Skv";
}
inline const char* needs_batch(const Problem& p) { return p.batch > 1 ? nullptr : "needs B > 1"; }
inline const char* needs_head_scales(const Problem& p) {
  return p.scales == ScaleKind::per_head ? nullptr : "needs scales per head";
}
inline const char* needs_block_scales(const Problem& p) {
  return p.scales == ScaleKind::per_block && p.seq_kv > kScaleBlock
             ? nullptr
             : "needs scales per block, and two blocks of keys";
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
