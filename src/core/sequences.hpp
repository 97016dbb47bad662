// What the arrays of a call say of its sequences, and whether they may say so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include <greenfast/types.hpp>

namespace greenfast::core {

/// One entry of the batch, read off the arrays.
struct Sequence {
  std::int64_t q_batch = 0, q_row = 0;    // where its first row lies in Q, O and the LSE
  std::int64_t kv_batch = 0, kv_row = 0;  // where its first key lies, unless it is in pages
  std::int64_t seq_q = 0, seq_kv = 0;     // its lengths
  std::int64_t kv_start = 0;
  const std::int32_t* pages = nullptr;  // its row of the page table
};

/// For arrays that check_arrays has accepted.
inline Sequence sequence_of(const Problem& p, const Tensors& t, std::int64_t b) noexcept {
  const Sequences& s = p.sequences;
  Sequence out;
  out.q_batch = out.kv_batch = b;
  out.seq_q = p.seq_q;
  out.seq_kv = p.seq_kv;
  if (s.packed_q) {
    out.q_batch = 0;
    out.q_row = t.cu_q[b];
    out.seq_q = t.cu_q[b + 1] - t.cu_q[b];
  }
  if (s.used_q) out.seq_q = t.used_q[b];
  if (s.packed_kv) {
    out.kv_batch = 0;
    out.kv_row = t.cu_kv[b];
    out.seq_kv = t.cu_kv[b + 1] - t.cu_kv[b];
  }
  if (s.used_kv) out.seq_kv = t.used_kv[b];
  if (s.kv_index) out.kv_batch = t.kv_index[b];
  if (s.kv_start) out.kv_start = t.kv_start[b];
  if (p.pages.used()) {
    out.kv_batch = 0;
    if (p.seq_kv > 0) out.pages = t.page_table + b * p.pages.row_stride;
  }
  return out;
}

/// [0] >= 0, not decreasing, [count] <= total.
Status check_cumulative(std::string_view name, const std::int32_t* values, std::int64_t count,
                        std::int64_t total, std::string_view total_name);
/// Each of them 0 to end - 1; `of` introduces the end.
Status check_range(std::string_view name, const std::int32_t* values, std::int64_t count,
                   std::int64_t end, std::string_view of);
/// Entries [first, end) of row b of a page table.
Status check_page_row(std::string_view name, const std::int32_t* row, std::int64_t b,
                      std::int64_t first, std::int64_t end, std::int64_t pages);

/// Whether the arrays, on the host, keep to what the problem says, each entry of them. For a
/// problem that passed check() and tensors that passed check_tensors().
Status check_arrays(const Problem& problem, const Tensors& tensors);

/// Copies so many bytes of a device's array to the host.
using Fetch = std::function<Status(const void* from, std::size_t bytes, void* to)>;
/// check_arrays of arrays that the host cannot read.
Status check_fetched_arrays(const Problem& problem, const Tensors& tensors, const Fetch& fetch);

}  // namespace greenfast::core
