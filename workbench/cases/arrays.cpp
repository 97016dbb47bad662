// Compiled without contraction of a*b+c into one rounding: inputs must not depend on the machine.
#include "workbench/cases/arrays.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <greenfast/arithmetic.hpp>

#include "workbench/base/numeric.hpp"
#include "workbench/cases/placement.hpp"
#include "workbench/cases/random.hpp"

namespace greenfast::workbench {
namespace {

// Streams of random numbers, one for each array.
enum class Stream : std::uint64_t { rows, keys, alike, used_q, used_kv, start, order, sinks, mask };

class Draw {
 public:
  Draw(std::uint64_t seed, Stream stream)
      : key_(random_bits(random_bits(0x61727261u, seed), static_cast<std::uint64_t>(stream))) {}
  std::uint64_t bits(std::int64_t n) const {
    return random_bits(key_, static_cast<std::uint64_t>(n));
  }
  /// Below `count`, which is at least 1.
  std::int64_t below(std::int64_t n, std::int64_t count) const {
    return static_cast<std::int64_t>(bits(n) % static_cast<std::uint64_t>(count));
  }
  double unit(std::int64_t n) const { return static_cast<double>(bits(n) >> 11) * 0x1p-53; }
  double normal(std::int64_t n) const {
    double pair[2];
    normal_row(key_, n, 2, pair);
    return pair[0];
  }
  std::vector<std::int64_t> permutation(std::int64_t count) const {
    std::vector<std::int64_t> order(static_cast<std::size_t>(count));
    std::iota(order.begin(), order.end(), std::int64_t{0});
    for (std::int64_t n = count - 1; n > 0; --n)
      std::swap(order[static_cast<std::size_t>(n)],
                order[static_cast<std::size_t>(below(n, n + 1))]);
    return order;
  }

 private:
  std::uint64_t key_;
};

// How long sequence b is, of at most `most`; `turn` goes through the batch as b does.
std::int64_t length_of(const Lengths& lengths, const Draw& draw, std::int64_t b, std::int64_t turn,
                       std::int64_t batch, std::int64_t most) {
  if (most == 0) return 0;
  switch (lengths.kind) {
    case Lengths::Kind::full:
      return most;
    case Lengths::Kind::log_uniform: {
      // 2^(a uniform number), between powers of 2 linearly: within 6 % of it, and exact arithmetic.
      const auto least = static_cast<double>(std::clamp<std::int64_t>(lengths.least, 1, most));
      const double octaves = [&] {
        double size = least, count = 0;
        for (; size * 2 <= static_cast<double>(most); size *= 2) ++count;
        return count + (static_cast<double>(most) / size - 1.0);
      }();
      const double at = draw.unit(b) * octaves;
      const auto whole = static_cast<int>(at);
      const double length = std::ldexp(least, whole) * (1.0 + (at - whole));
      return std::clamp<std::int64_t>(static_cast<std::int64_t>(length), 1, most);
    }
    case Lengths::Kind::mixed:
      break;
  }
  // The ends of the range first: the longest, none, one; then tile edges and anything.
  if (batch > 1 && turn == 0) return most;
  if (batch > 2 && turn == 1) return 0;
  if (batch > 4 && turn == 2) return 1;
  const std::int64_t edge = 16 << draw.below(2 * b, 3);
  if (most > edge && draw.below(2 * b + 1, 3) == 0) {
    const std::int64_t around = edge * (1 + draw.below(3 * b + 7, most / edge));
    return std::clamp<std::int64_t>(around + draw.below(5 * b + 3, 3) - 1, 1, most);
  }
  return most - draw.below(b + 1000003, batch > 1 ? most : std::max<std::int64_t>(1, most / 2));
}

struct Drawn {
  std::vector<std::int64_t> rows, keys;  // what the storage has for each sequence
};

// Shortens the longest, by a quarter at most, until the sum of cost(length) fits.
template <class Cost>
void fit(std::vector<std::int64_t>& lengths, std::int64_t budget, const Cost& cost) {
  std::int64_t sum = 0;
  for (const std::int64_t length : lengths) sum += cost(length);
  while (sum > budget) {
    auto longest = std::max_element(lengths.begin(), lengths.end());
    sum -= cost(*longest);
    *longest -= std::min(sum + cost(*longest) - budget, std::max<std::int64_t>(1, *longest / 4));
    sum += cost(*longest);
  }
}

Drawn draw_lengths(const Problem& p, const Lengths& lengths, std::uint64_t seed, bool fitted) {
  const Draw rows(seed, Stream::rows), keys(seed, Stream::keys), alike(seed, Stream::alike);
  Drawn drawn;
  const bool one = p.seq_q == p.seq_kv;
  const std::int64_t offset = alike.below(-1, std::max<std::int64_t>(p.batch, 1));
  for (std::int64_t b = 0; b < p.batch; ++b) {
    // The longest of one is not the shortest of the other.
    const std::int64_t turn = (b + offset) % p.batch;
    const std::int64_t k = length_of(lengths, keys, b, turn, p.batch, p.seq_kv);
    // Self-attention: as many rows as keys, but for some where lengths are mixed.
    const bool same = one && (lengths.kind != Lengths::Kind::mixed || alike.below(b, 2) == 0);
    drawn.keys.push_back(k);
    drawn.rows.push_back(
        same ? k : length_of(lengths, rows, b, (turn + 2) % p.batch, p.batch, p.seq_q));
  }
  if (!fitted) return drawn;
  if (p.sequences.packed_q) fit(drawn.rows, p.sequences.total_q, [](std::int64_t n) { return n; });
  if (p.sequences.packed_kv)
    fit(drawn.keys, p.sequences.total_kv, [](std::int64_t n) { return n; });
  if (p.pages.used())
    fit(drawn.keys, std::max<std::int64_t>(p.pages.count - 1, 0),
        [&](std::int64_t n) { return ceil_div(n, p.pages.size); });
  return drawn;
}

// The first sequence may begin behind rows of nobody, as far as there is room.
std::vector<std::int32_t> cumulative(const std::vector<std::int64_t>& lengths, std::int64_t total,
                                     std::int64_t wanted) {
  const std::int64_t room =
      total - std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  std::vector<std::int32_t> sums{static_cast<std::int32_t>(std::min(wanted, room))};
  for (const std::int64_t length : lengths)
    sums.push_back(sums.back() + static_cast<std::int32_t>(length));
  return sums;
}

std::vector<std::int32_t> narrow(const std::vector<std::int64_t>& values) {
  return {values.begin(), values.end()};
}

// Where storage has an extent for each sequence, used lengths may be shorter than it.
std::vector<std::int32_t> used_of(const std::vector<std::int64_t>& drawn, bool packed,
                                  const Draw& draw, const Lengths& lengths) {
  std::vector<std::int64_t> used = drawn;
  if (packed && lengths.kind == Lengths::Kind::mixed)
    for (std::size_t b = 0; b < used.size(); ++b)
      if (used[b] > 0 && draw.below(static_cast<std::int64_t>(b), 2) == 0)
        used[b] -= draw.below(static_cast<std::int64_t>(b) + 77, (used[b] + 1) / 2 + 1);
  return narrow(used);
}

std::vector<std::int32_t> draw_pages(const Problem& p, const std::vector<std::int64_t>& keys,
                                     const std::vector<std::int32_t>& start, std::uint64_t seed) {
  const std::vector<std::int64_t> order = Draw(seed, Stream::order).permutation(p.pages.count);
  const std::int64_t in_row = ceil_div(p.seq_kv, p.pages.size);
  if (p.batch == 0 || in_row == 0) return {};
  // The last row needs no more than its entries.
  const std::int64_t entries = (p.batch - 1) * p.pages.row_stride + in_row;
  const auto spare = static_cast<std::int32_t>(
      order.empty() ? 0 : order[static_cast<std::size_t>(p.pages.count - 1)]);
  std::vector<std::int32_t> table(static_cast<std::size_t>(entries), spare);
  std::size_t next = 0;
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t n = start.empty() ? 0 : start[static_cast<std::size_t>(b)] / p.pages.size;
         n * p.pages.size < keys[static_cast<std::size_t>(b)]; ++n)
      table[static_cast<std::size_t>(b * p.pages.row_stride + n)] =
          static_cast<std::int32_t>(order[next++]);
  return table;
}

// Sinks of about the weight of a row with a few keys; far down where scores may be so low that
// nothing of the row would be left beside them.
std::vector<float> draw_sinks(const Case& c) {
  const Draw draw(c.seed, Stream::sinks);
  const double centre = c.distribution == Distribution::large_logits ? -200.0 : 2.0;
  std::vector<float> sinks;
  for (std::int64_t h = 0; h < c.problem.heads_q; ++h)
    sinks.push_back(static_cast<float>(centre + draw.normal(h)));
  return sinks;
}

// A geometric sequence from 1/2 down to 1/256, as ALiBi has it, to the nearest of eighths of octaves;
// entries of the batch differ.
std::vector<float> draw_slopes(const Problem& p) {
  std::vector<float> slopes;
  for (std::int64_t b = 0; b < (p.alibi == Alibi::per_batch_head ? p.batch : 1); ++b)
    for (std::int64_t h = 0; h < p.heads_q; ++h) {
      const std::int64_t eighths = 64 * h / std::max<std::int64_t>(p.heads_q, 1);
      const double fraction = 1.0 - static_cast<double>(eighths % 8) / 16.0;
      slopes.push_back(static_cast<float>(std::ldexp(fraction, -1 - static_cast<int>(eighths / 8)) *
                                          (1.0 + 0.25 * static_cast<double>(b % 8))));
    }
  return slopes;
}

std::vector<std::byte> draw_mask(const Case& c, const Arrays& arrays) {
  const Problem& p = c.problem;
  const ArrayMask& mask = p.array_mask;
  const bool boolean = mask.kind == MaskKind::boolean;
  const std::size_t element = boolean ? 1 : size_of(mask.dtype);
  const auto& stride = mask.stride;
  const std::array<std::int64_t, 4> extent{p.batch, p.heads_q, p.seq_q, p.seq_kv};
  std::int64_t last = 0;
  for (std::size_t n = 0; n < 4; ++n) {
    if (extent[n] == 0) return {};
    last += (extent[n] - 1) * stride[n];
  }
  const Draw draw(c.seed, Stream::mask);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  // What no key of a sequence needs says "visible", or NaN.
  std::vector<std::byte> bytes(static_cast<std::size_t>(last + 1) * element, std::byte{1});
  if (!boolean)
    for (std::int64_t n = 0; n <= last; ++n) numeric::store(mask.dtype, bytes.data(), n, nan);
  const Inputs holder = [&] {
    Inputs inputs;
    inputs.arrays = arrays;
    return inputs;
  }();
  const Placement placement(p, index_arrays(holder));
  const auto turns = [&](std::size_t dim) { return stride[dim] == 0 ? 1 : extent[dim]; };
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence& own = placement.sequence(b);
    for (std::int64_t h = 0; h < turns(1); ++h)
      for (std::int64_t i = 0; i < std::min(own.rows, turns(2)); ++i)
        for (std::int64_t j = 0; j < std::min(own.keys, turns(3)); ++j) {
          // By address: what several entries share is one value.
          const std::int64_t at = b * stride[0] + h * stride[1] + i * stride[2] + j * stride[3];
          const std::int64_t row = at / std::max<std::int64_t>(1, stride[2]);
          const bool none = stride[2] > 0 && row % 19 == 5;
          const bool hidden = none || draw.below(at, 8) == 0;
          if (boolean)
            bytes[static_cast<std::size_t>(at)] = std::byte{static_cast<unsigned char>(!hidden)};
          else
            numeric::store(mask.dtype, bytes.data(), at,
                           hidden ? -HUGE_VAL : 1.5 * draw.normal(at));
        }
  }
  return bytes;
}

}  // namespace

bool has_arrays(const Problem& p) {
  return !is_dense(p) || p.sinks || p.alibi != Alibi::none || p.array_mask.kind != MaskKind::none;
}

void size_storage(Problem& p, const Lengths& lengths) {
  const Drawn drawn = draw_lengths(p, lengths, 0, false);
  const auto sum = [](const std::vector<std::int64_t>& values, std::int64_t unit) {
    std::int64_t total = 0;
    for (const std::int64_t value : values) total += ceil_div(value, unit);
    return total;
  };
  // Rows behind the last sequence, which belong to none.
  constexpr std::int64_t kSlack = 5;
  Sequences& s = p.sequences;
  if (s.packed_q) s.total_q = sum(drawn.rows, 1) + kSlack;
  if (s.packed_kv) s.total_kv = sum(drawn.keys, 1) + kSlack;
  if (s.kv_index) s.kv_rows = p.batch + 2;
  if (p.pages.used()) {
    const std::int64_t longest = ceil_div(p.seq_kv, p.pages.size);
    p.pages.count = 3 + (s.used_kv ? sum(drawn.keys, p.pages.size) : p.batch * longest);
    p.pages.row_stride = longest + 1;
  }
}

Arrays draw_arrays(const Case& c) {
  const Problem& p = c.problem;
  Arrays arrays;
  if (!has_arrays(p)) return arrays;
  const Drawn drawn = draw_lengths(p, c.lengths, c.seed, true);
  const Sequences& s = p.sequences;
  if (s.packed_q) arrays.cu_q = cumulative(drawn.rows, s.total_q, 2);
  if (s.packed_kv) arrays.cu_kv = cumulative(drawn.keys, s.total_kv, 3);
  if (s.used_q)
    arrays.used_q = used_of(drawn.rows, s.packed_q, Draw(c.seed, Stream::used_q), c.lengths);
  if (s.used_kv)
    arrays.used_kv = used_of(drawn.keys, s.packed_kv, Draw(c.seed, Stream::used_kv), c.lengths);
  // A table of pages says where keys are, not how many: without used lengths there are all of them.
  std::vector<std::int64_t> keys(static_cast<std::size_t>(p.batch), p.seq_kv);
  if (s.used_kv)
    keys.assign(arrays.used_kv.begin(), arrays.used_kv.end());
  else if (s.packed_kv)
    keys = drawn.keys;
  if (s.kv_start) {
    const Draw draw(c.seed, Stream::start);
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const std::int64_t have = keys[static_cast<std::size_t>(b)];
      // Up to half of the keys, now and then all but one; the longest sequence has some in any case.
      const bool padded = have > 1 && (have == p.seq_kv || draw.below(2 * b, 4) != 0);
      const std::int64_t most = draw.below(2 * b, 16) == 15 ? have - 1 : have / 2;
      arrays.kv_start.push_back(
          static_cast<std::int32_t>(padded ? 1 + draw.below(2 * b + 1, most) : 0));
    }
  }
  if (s.kv_index) {
    const auto order = Draw(c.seed, Stream::order).permutation(s.kv_rows);
    for (std::int64_t b = 0; b < p.batch; ++b)
      arrays.kv_index.push_back(
          static_cast<std::int32_t>(order[static_cast<std::size_t>(b % s.kv_rows)]));
  }
  if (p.pages.used()) arrays.page_table = draw_pages(p, keys, arrays.kv_start, c.seed);
  if (p.sinks) arrays.sinks = draw_sinks(c);
  if (p.alibi != Alibi::none) arrays.slopes = draw_slopes(p);
  if (p.array_mask.kind != MaskKind::none) arrays.mask = draw_mask(c, arrays);
  return arrays;
}

}  // namespace greenfast::workbench
