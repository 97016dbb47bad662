#include "workbench/cases/visible_keys.hpp"

#include <algorithm>
#include <random>
#include <set>

namespace greenfast::workbench {

KeyRange visible_keys(const Problem& p, std::int64_t query) {
  // Bounds beyond every distance are no bounds; this keeps the sums below from overflowing.
  const std::int64_t far = p.seq_q + p.seq_kv;
  const std::int64_t face =
      query + (p.mask.alignment == Alignment::bottom_right ? p.seq_kv - p.seq_q : 0);
  KeyRange range{0, p.seq_kv};
  if (p.mask.left >= 0) range.first = std::max<std::int64_t>(0, face - std::min(p.mask.left, far));
  if (p.mask.right >= 0)
    range.last = std::clamp<std::int64_t>(face + std::min(p.mask.right, far) + 1, 0, p.seq_kv);
  return range;
}

std::vector<std::int64_t> choose_rows(const Case& c, double flop_budget) {
  const Problem& p = c.problem;
  const std::int64_t heads = p.batch * p.heads_q, total = heads * p.seq_q;
  std::vector<std::int64_t> rows;
  double pairs = 0;  // of one head
  for (std::int64_t i = 0; i < p.seq_q; ++i) {
    const KeyRange range = visible_keys(p, i);
    pairs += static_cast<double>(std::max<std::int64_t>(0, range.last - range.first));
  }
  const double flops = 4.0 * static_cast<double>(p.head_dim) * pairs * static_cast<double>(heads);
  if (flops <= flop_budget) {
    rows.resize(static_cast<std::size_t>(total));
    for (std::int64_t i = 0; i < total; ++i) rows[static_cast<std::size_t>(i)] = i;
    return rows;
  }

  const auto wanted = std::clamp<std::int64_t>(
      static_cast<std::int64_t>(static_cast<double>(total) * flop_budget / flops), 64, total);
  std::mt19937_64 random(c.seed * 0x9e3779b97f4a7c15u + 1);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  std::set<std::int64_t> chosen;
  // Where kernels break: first and last rows, both sides of a tile boundary, the rows after the
  // last whole tile. In every head while that takes no more than half of the rows.
  const std::int64_t special_heads = std::min(heads, std::max<std::int64_t>(4, wanted / 32));
  for (std::int64_t n = 0; n < special_heads; ++n) {
    const std::int64_t head = special_heads == 1 ? 0 : n * (heads - 1) / (special_heads - 1);
    const auto take = [&](std::int64_t i) {
      if (i >= 0 && i < p.seq_q) chosen.insert(head * p.seq_q + i);
    };
    take(0);
    take(p.seq_q - 1);
    for (const std::int64_t tile : {16, 32, 64, 128}) {
      const std::int64_t boundary = tile * (1 + below(std::max<std::int64_t>(1, p.seq_q / tile)));
      take(boundary - 1);
      take(boundary);
      take(p.seq_q / tile * tile);
    }
  }
  // The rest evenly over all heads and positions: one row from each of equal stretches.
  const std::int64_t rest =
      std::max<std::int64_t>(wanted - static_cast<std::int64_t>(chosen.size()), wanted / 4);
  for (std::int64_t n = 0; n < rest; ++n) {
    const auto at = [&](std::int64_t m) {
      return static_cast<std::int64_t>(static_cast<double>(total) * static_cast<double>(m) /
                                       static_cast<double>(rest));
    };
    const std::int64_t begin = at(n), end = std::max(begin + 1, std::min(total, at(n + 1)));
    chosen.insert(std::min(total - 1, begin + below(end - begin)));
  }
  rows.assign(chosen.begin(), chosen.end());
  return rows;
}

}  // namespace greenfast::workbench
