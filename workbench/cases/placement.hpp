// What the arrays of a call say of its sequences: how long each is, which keys its rows see, and
// where rows and keys lie. Whoever reads or writes a case by the definition asks here.
#pragma once

#include <cstdint>
#include <vector>

#include <greenfast/types.hpp>

namespace greenfast::workbench {

struct Inputs;

/// One sequence of a batch.
struct Sequence {
  std::int64_t rows = 0;   ///< of Q and O
  std::int64_t keys = 0;   ///< of K and V, those of the left padding too
  std::int64_t start = 0;  ///< the first key that may be seen
};

/// First visible key and one past the last; empty when first >= last.
struct KeyRange {
  std::int64_t first = 0, last = 0;
};
/// What the band, the chunks and the sequence's lengths leave to row `query`; an array mask hides
/// more. Of the problem's dense form, where every sequence is as long as the longest.
KeyRange visible_keys(const Problem& problem, const Sequence& sequence, std::int64_t query);
KeyRange visible_keys(const Problem& problem, std::int64_t query);

/// The position that row 0 faces: where the diagonal of a mask and ALiBi's distance 0 lie.
std::int64_t shift_of(const Problem& problem, const Sequence& sequence);

/// Whether every sequence is as long as the longest and lies where a dense tensor has it.
bool is_dense(const Problem& problem);

/// Arrays on the host; null where the problem has none.
struct IndexArrays {
  const std::int32_t* cu_q = nullptr;
  const std::int32_t* cu_kv = nullptr;
  const std::int32_t* used_q = nullptr;
  const std::int32_t* used_kv = nullptr;
  const std::int32_t* kv_start = nullptr;
  const std::int32_t* kv_index = nullptr;
  const std::int32_t* page_table = nullptr;
};
IndexArrays index_arrays(const Inputs& inputs);
IndexArrays index_arrays(const Tensors& tensors);

/// Rows are counted as if all sequences were as long as the longest, (b * Hq + h) * Sq + i: a row
/// behind its sequence's end does not exist. The problem and the arrays must outlive it.
class Placement {
 public:
  Placement(const Problem& problem, const IndexArrays& arrays);

  const Problem& problem() const { return p_; }
  const Sequence& sequence(std::int64_t b) const { return sequences_[static_cast<std::size_t>(b)]; }
  KeyRange visible(std::int64_t b, std::int64_t query) const {
    return visible_keys(p_, sequence(b), query);
  }
  std::int64_t total_rows() const { return p_.batch * p_.heads_q * p_.seq_q; }
  std::int64_t existing_rows() const;
  bool exists(std::int64_t row) const {
    return row % p_.seq_q < sequence(row / p_.seq_q / p_.heads_q).rows;
  }
  /// Query-key pairs that the band, the chunks and the lengths leave, over all query heads.
  double pairs() const;

  /// Elements from the tensor's base to the row's first.
  std::int64_t q(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return row_of_q(p_.q, b, h, i);
  }
  std::int64_t o(std::int64_t b, std::int64_t h, std::int64_t i) const {
    return row_of_q(p_.o, b, h, i);
  }
  std::int64_t k(std::int64_t b, std::int64_t h, std::int64_t j) const {
    return row_of_kv(p_.k, b, h, j);
  }
  std::int64_t v(std::int64_t b, std::int64_t h, std::int64_t j) const {
    return row_of_kv(p_.v, b, h, j);
  }
  /// From one element of a row of V to the next.
  std::int64_t v_step() const { return p_.v.stride[3]; }
  std::int64_t lse(std::int64_t b, std::int64_t h, std::int64_t i) const {
    if (p_.sequences.packed_q) return h * p_.sequences.total_q + arrays_.cu_q[b] + i;
    return (b * p_.heads_q + h) * p_.seq_q + i;
  }
  /// Index into the array mask, in its elements.
  std::int64_t mask(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    const auto& s = p_.array_mask.stride;
    return b * s[0] + h * s[1] + i * s[2] + j * s[3];
  }

 private:
  std::int64_t row_of_q(const Layout& layout, std::int64_t b, std::int64_t h,
                        std::int64_t i) const {
    const auto& s = layout.stride;
    if (p_.sequences.packed_q) return h * s[1] + (arrays_.cu_q[b] + i) * s[2];
    return b * s[0] + h * s[1] + i * s[2];
  }
  std::int64_t row_of_kv(const Layout& layout, std::int64_t b, std::int64_t h,
                         std::int64_t j) const {
    const auto& s = layout.stride;
    const Pages& pages = p_.pages;
    if (pages.used())
      return arrays_.page_table[b * pages.row_stride + j / pages.size] * s[0] + h * s[1] +
             j % pages.size * s[2];
    if (p_.sequences.packed_kv) return h * s[1] + (arrays_.cu_kv[b] + j) * s[2];
    return (p_.sequences.kv_index ? arrays_.kv_index[b] : b) * s[0] + h * s[1] + j * s[2];
  }

  const Problem& p_;
  IndexArrays arrays_;
  std::vector<Sequence> sequences_;
};

}  // namespace greenfast::workbench
