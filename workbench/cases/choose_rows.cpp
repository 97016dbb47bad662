#include "workbench/cases/choose_rows.hpp"

#include <algorithm>
#include <random>
#include <set>

#include "workbench/cases/arrays.hpp"

namespace greenfast::workbench {
namespace {

// Of a batch whose sequences have lengths of their own, what is peculiar to each: its ends, and what
// faces the first key of a page or a chunk.
void take_ends(const Placement& placement, std::int64_t b, std::int64_t h,
               std::set<std::int64_t>& chosen) {
  const Problem& p = placement.problem();
  const Sequence& own = placement.sequence(b);
  const auto take = [&](std::int64_t i) {
    if (i >= 0 && i < own.rows) chosen.insert((b * p.heads_q + h) * p.seq_q + i);
  };
  take(0);
  take(own.rows - 1);
  const std::int64_t shift = shift_of(p, own);
  for (const std::int64_t step : {p.pages.size, p.chunk}) {
    if (step <= 0) continue;
    const std::int64_t base = step == p.chunk ? own.start : 0;
    // The first boundary that a row faces, and the last.
    const std::int64_t first = base + (std::max<std::int64_t>(shift - base, 0) / step + 1) * step;
    const std::int64_t last =
        base + std::max<std::int64_t>(shift + own.rows - 1 - base, 0) / step * step;
    for (const std::int64_t boundary : {first, last}) {
      take(boundary - shift - 1);
      take(boundary - shift);
    }
  }
}

}  // namespace

std::vector<std::int64_t> choose_rows(const Case& c, const Placement& placement,
                                      double flop_budget) {
  const Problem& p = c.problem;
  const std::int64_t heads = p.batch * p.heads_q, total = placement.total_rows();
  const std::int64_t existing = placement.existing_rows();
  std::vector<std::int64_t> rows;
  const double flops = 2.0 * static_cast<double>(p.head_dim + value_dim(p)) * placement.pairs();
  if (flops <= flop_budget) {
    rows.reserve(static_cast<std::size_t>(existing));
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::int64_t count = placement.sequence(head / p.heads_q).rows;
      for (std::int64_t i = 0; i < count; ++i) rows.push_back(head * p.seq_q + i);
    }
    return rows;
  }

  const auto wanted = std::clamp<std::int64_t>(
      static_cast<std::int64_t>(static_cast<double>(existing) * flop_budget / flops),
      std::min<std::int64_t>(64, existing), existing);
  std::mt19937_64 random(c.seed * 0x9e3779b97f4a7c15u + 1);
  const auto below = [&](std::int64_t n) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
  };
  std::set<std::int64_t> chosen;
  // Every sequence in one head, in turn; where there are many it is this that is wanted.
  if (!is_dense(p))
    for (std::int64_t b = 0; b < p.batch; ++b) take_ends(placement, b, b % p.heads_q, chosen);
  // Where kernels break: first and last rows, both sides of a tile boundary, the rows after the
  // last whole tile. In every head while that takes no more than half of the rows.
  const std::int64_t special_heads = std::min(heads, std::max<std::int64_t>(4, wanted / 32));
  for (std::int64_t n = 0; n < special_heads; ++n) {
    const std::int64_t head = special_heads == 1 ? 0 : n * (heads - 1) / (special_heads - 1);
    const std::int64_t own = placement.sequence(head / p.heads_q).rows;
    const auto take = [&](std::int64_t i) {
      if (i >= 0 && i < own) chosen.insert(head * p.seq_q + i);
    };
    take(0);
    take(own - 1);
    for (const std::int64_t tile : {16, 32, 64, 128}) {
      const std::int64_t boundary = tile * (1 + below(std::max<std::int64_t>(1, own / tile)));
      take(boundary - 1);
      take(boundary);
      take(own / tile * tile);
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
    const std::int64_t row = std::min(total - 1, begin + below(end - begin));
    if (placement.exists(row)) chosen.insert(row);
  }
  rows.assign(chosen.begin(), chosen.end());
  return rows;
}

std::vector<std::int64_t> choose_rows(const Case& c, double flop_budget) {
  Inputs inputs;
  inputs.arrays = draw_arrays(c);
  return choose_rows(c, Placement(c.problem, index_arrays(inputs)), flop_budget);
}

}  // namespace greenfast::workbench
