#include "workbench/cases/placement.hpp"

#include <algorithm>

#include "workbench/cases/workload.hpp"

namespace greenfast::workbench {

std::int64_t shift_of(const Problem& p, const Sequence& sequence) {
  return p.mask.alignment == Alignment::bottom_right ? sequence.keys - sequence.rows : 0;
}

KeyRange visible_keys(const Problem& p, const Sequence& sequence, std::int64_t query) {
  // Bounds beyond every distance are no bounds; this keeps the sums below from overflowing.
  const std::int64_t far = sequence.rows + sequence.keys;
  const std::int64_t face = query + shift_of(p, sequence);
  KeyRange range{sequence.start, sequence.keys};
  // Every member by name: what else narrows the band belongs here.
  const auto& [left, right, alignment] = p.mask;
  if (left >= 0) range.first = std::max(range.first, face - std::min(left, far));
  if (right >= 0)
    range.last = std::clamp<std::int64_t>(face + std::min(right, far) + 1, 0, sequence.keys);
  if (p.chunk > 0) {
    const std::int64_t position = face - sequence.start;
    // Rounded down: a row before the first key has a chunk that holds none.
    const std::int64_t chunk = (position - (position < 0 ? p.chunk - 1 : 0)) / p.chunk;
    const std::int64_t begin = sequence.start + chunk * p.chunk;
    range.first = std::max(range.first, begin);
    range.last = std::min(range.last, begin + p.chunk);
  }
  return range;
}

KeyRange visible_keys(const Problem& p, std::int64_t query) {
  return visible_keys(p, Sequence{p.seq_q, p.seq_kv, 0}, query);
}

bool is_dense(const Problem& p) { return p.sequences == Sequences{} && !p.pages.used(); }

IndexArrays index_arrays(const Inputs& inputs) {
  const Arrays& a = inputs.arrays;
  return {a.cu_q.data(),     a.cu_kv.data(),    a.used_q.data(),    a.used_kv.data(),
          a.kv_start.data(), a.kv_index.data(), a.page_table.data()};
}

IndexArrays index_arrays(const Tensors& t) {
  return {t.cu_q, t.cu_kv, t.used_q, t.used_kv, t.kv_start, t.kv_index, t.page_table};
}

Placement::Placement(const Problem& problem, const IndexArrays& arrays)
    : p_(problem), arrays_(arrays), sequences_(static_cast<std::size_t>(problem.batch)) {
  const Sequences& s = p_.sequences;
  for (std::int64_t b = 0; b < p_.batch; ++b) {
    const auto bounded = [](std::int64_t value, std::int64_t most) {
      return std::clamp<std::int64_t>(value, 0, most);
    };
    Sequence& own = sequences_[static_cast<std::size_t>(b)];
    own.rows = s.packed_q ? bounded(arrays_.cu_q[b + 1] - arrays_.cu_q[b], p_.seq_q) : p_.seq_q;
    own.keys =
        s.packed_kv ? bounded(arrays_.cu_kv[b + 1] - arrays_.cu_kv[b], p_.seq_kv) : p_.seq_kv;
    if (s.used_q) own.rows = bounded(arrays_.used_q[b], own.rows);
    if (s.used_kv) own.keys = bounded(arrays_.used_kv[b], own.keys);
    if (s.kv_start) own.start = bounded(arrays_.kv_start[b], own.keys);
  }
}

std::int64_t Placement::existing_rows() const {
  std::int64_t rows = 0;
  for (const Sequence& own : sequences_) rows += own.rows * p_.heads_q;
  return rows;
}

double Placement::pairs() const {
  double pairs = 0;
  for (std::int64_t b = 0; b < p_.batch; ++b) {
    // Sequences alike, as all of a dense problem are, are counted once.
    if (b > 0 && is_dense(p_)) return pairs * static_cast<double>(p_.batch * p_.heads_q);
    for (std::int64_t i = 0; i < sequence(b).rows; ++i) {
      const KeyRange range = visible(b, i);
      pairs += static_cast<double>(std::max<std::int64_t>(0, range.last - range.first));
    }
  }
  return pairs * static_cast<double>(p_.heads_q);
}

}  // namespace greenfast::workbench
