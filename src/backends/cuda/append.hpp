// append on the GPU: where each new token goes, by constexpr functions, which device code may call,
// so that a test without a GPU compares them with the CPU's.
#pragma once

#include <cstdint>

#include "core/serving.hpp"

namespace greenfast::cuda {

/// Enqueues the append on context.stream. The problem has passed core::check_append; the arrays are
/// on the device, where nobody has checked them.
Status append(const AppendProblem& problem, const AppendTensors& tensors,
              const core::Context& context);

/// One new token: where it lies in the new tensors, and its row of the cache.
struct NewToken {
  std::int64_t new_batch = 0, new_row = 0;
  std::int64_t image = 0, row = 0;  // entry or page of the cache, and the row in it
  std::int64_t position = 0;
};

/// Rows that are looked at: those of the new tensors.
constexpr std::int64_t new_tokens(const AppendProblem& p) {
  return p.packed ? p.total_new : p.batch * p.seq_new;
}

/// Whether the token-th row of the new tensors is one of a sequence, with a place in the cache and a
/// row of the tables. What the arrays say beyond the problem's numbers is left out: nothing that is
/// not the cache's is written.
constexpr bool find_token(const AppendProblem& p, const AppendTensors& t, std::int64_t token,
                          NewToken& out) {
  std::int64_t b = 0, n = 0;
  if (p.packed) {
    // The last sequence that begins at or before it: empty ones begin there too, and end there.
    std::int64_t end = p.batch;
    while (end - b > 1) {
      const std::int64_t middle = (b + end) / 2;
      if (t.cu_new[middle] <= token)
        b = middle;
      else
        end = middle;
    }
    const std::int64_t first = t.cu_new[b];
    if (first < 0 || token < first || token >= t.cu_new[b + 1]) return false;
    n = token - first;
    out.new_batch = 0;
    out.new_row = token;
  } else {
    b = token / p.seq_new;
    n = token % p.seq_new;
    out.new_batch = b;
    out.new_row = n;
  }
  if (n >= p.seq_new || (p.used_new && n >= t.used_new[b])) return false;
  const std::int64_t before = t.used_kv != nullptr ? t.used_kv[b] : 0;
  const std::int64_t key = before + n;
  if (before < 0 || key >= p.seq_kv) return false;
  out.position = key - (p.kv_start ? t.kv_start[b] : 0);
  if (p.rotary != Rotary::none && (out.position < 0 || out.position >= p.positions)) return false;
  out.image = b;
  out.row = key;
  std::int64_t images = p.batch;
  if (p.pages.used()) {
    out.image = t.page_table[b * p.pages.row_stride + key / p.pages.size];
    out.row = key % p.pages.size;
    images = p.pages.count;
  } else if (p.kv_index) {
    out.image = t.kv_index[b];
    images = p.kv_rows;
  }
  return out.image >= 0 && out.image < images;
}

}  // namespace greenfast::cuda
