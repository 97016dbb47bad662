#include "workbench/reference/emulator.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "workbench/base/numeric.hpp"
#include "workbench/base/parallel.hpp"
#include "workbench/reference/tile_gemm.hpp"

namespace greenfast::workbench {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLog2e = 1.4426950408889634f;
constexpr std::int64_t kRowBlock = 32;
constexpr std::int64_t kKeyTile = 64;
constexpr std::int64_t kSplitTiles = 128;  // 8,192 keys, then partial results are merged

// Rounds 0 <= p <= 448 to the grid of a small format: to `mantissa_bits` above `smallest`, the
// smallest normal number, and below it by adding and removing a number whose ulp is the subnormal
// step. numeric.hpp has the general conversion; this one vectorises.
inline float round_bits(float p, int mantissa_bits, float smallest) {
  const int drop = 23 - mantissa_bits;
  const auto bits = std::bit_cast<std::uint32_t>(p);
  const std::uint32_t odd = (bits >> drop) & 1u;
  const std::uint32_t nearest = (bits + ((1u << (drop - 1)) - 1u) + odd) & ~((1u << drop) - 1u);
  const float coarse = smallest * static_cast<float>(1u << drop);
  const float subnormal = (p + coarse) - coarse;
  return p < smallest ? subnormal : std::bit_cast<float>(nearest);
}

void round_weights(DType dtype, float* p, std::int64_t count) {
  switch (dtype) {
    case DType::f32:
      return;
    case DType::f16:
      for (std::int64_t j = 0; j < count; ++j) p[j] = round_bits(p[j], 10, 0x1p-14f);
      return;
    case DType::bf16:
      for (std::int64_t j = 0; j < count; ++j) p[j] = round_bits(p[j], 7, 0x1p-126f);
      return;
    case DType::e4m3:
      // Without the factor weights under 2^-10 would vanish; 448 is e4m3's largest number.
      for (std::int64_t j = 0; j < count; ++j)
        p[j] = round_bits(p[j] * 448.0f, 3, 0x1p-6f) * (1.0f / 448.0f);
      return;
  }
}

// Of a score x against the maximum: exp2 is what the hardware has. Scores whose product with log2 e
// would overflow are subtracted first.
struct Exponential {
  float maximum, scaled;
  bool far;

  explicit Exponential(float m) : maximum(m), scaled(m * kLog2e), far(std::fabs(m) > 0x1p120f) {}
  float operator()(float x) const {
    return std::exp2(far ? (x - maximum) * kLog2e : x * kLog2e - scaled);
  }
};

// What was found in the keys since the last merge.
struct Partial {
  std::vector<float> o;
  std::array<float, kRowBlock> maximum{}, sum{};
  explicit Partial(std::int64_t size) : o(static_cast<std::size_t>(size)) { clear(); }
  void clear() {
    std::fill(o.begin(), o.end(), 0.0f);
    maximum.fill(-kInfinity);
    sum.fill(0.0f);
  }
  void add(const Partial& part, std::int64_t count, std::int64_t dim) {
    for (std::int64_t r = 0; r < count; ++r) {
      const auto at = static_cast<std::size_t>(r);
      if (part.maximum[at] == -kInfinity) continue;
      const float above = !(part.maximum[at] <= maximum[at]) ? part.maximum[at] : maximum[at];
      const Exponential weight(above);
      const float old = maximum[at] == -kInfinity ? 0.0f : weight(maximum[at]);
      const float fresh = weight(part.maximum[at]);
      maximum[at] = above;
      sum[at] = sum[at] * old + part.sum[at] * fresh;
      for (std::int64_t d = 0; d < dim; ++d) {
        const auto i = static_cast<std::size_t>(r * dim + d);
        o[i] = o[i] * old + part.o[i] * fresh;
      }
    }
  }
};

// The bits of one tensor as floats; scales stay outside, as a kernel would keep them.
struct Bits {
  const Problem& p;
  const std::vector<std::byte>& bytes;
  const Layout& layout;
  const std::vector<float>& scales;
  std::int64_t heads;

  void row(std::int64_t b, std::int64_t h, std::int64_t s, float* out) const {
    numeric::load_row(p.dtype, bytes.data(),
                      b * layout.stride[0] + h * layout.stride[1] + s * layout.stride[2],
                      p.head_dim, out);
  }
  float scale(std::int64_t b, std::int64_t h) const {
    if (p.scales == ScaleKind::none) return 1.0f;
    return scales[p.scales == ScaleKind::tensor ? 0 : static_cast<std::size_t>(b * heads + h)];
  }
};

void emulate_block(const Problem& p, const Bits& q, const Bits& k, const Bits& v,
                   const std::int64_t* rows, std::int64_t count, double* out, double* lse) {
  const std::int64_t dim = p.head_dim;
  const std::int64_t head = rows[0] / p.seq_q;
  const std::int64_t b = head / p.heads_q, h = head % p.heads_q;
  const std::int64_t hkv = h * p.heads_kv / p.heads_q;
  const float score_scale = p.scale * q.scale(b, h) * k.scale(b, hkv);

  std::vector<float> query(static_cast<std::size_t>(count * dim));
  Partial whole(count * dim), part(count * dim);
  std::vector<float> product(static_cast<std::size_t>(count * dim));
  std::array<KeyRange, kRowBlock> range;
  KeyRange all{p.seq_kv, 0};
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t i = rows[r] % p.seq_q;
    auto& own = range[static_cast<std::size_t>(r)];
    own = visible_keys(p, i);
    q.row(b, h, i, query.data() + r * dim);
    if (own.first >= own.last) continue;
    all.first = std::min(all.first, own.first);
    all.last = std::max(all.last, own.last);
  }
  const auto seen = [&](std::int64_t j) {
    return std::any_of(range.begin(), range.begin() + count,
                       [j](const KeyRange& own) { return j >= own.first && j < own.last; });
  };

  std::vector<float> keys(static_cast<std::size_t>(dim * kKeyTile));
  std::vector<float> values(static_cast<std::size_t>(dim * kKeyTile));
  std::vector<float> row(static_cast<std::size_t>(dim));
  std::vector<float> scores(static_cast<std::size_t>(count * kKeyTile));
  const std::int64_t start = all.first / kKeyTile * kKeyTile;
  for (std::int64_t j0 = start; j0 < all.last; j0 += kKeyTile) {
    if (j0 > start && (j0 - start) / kKeyTile % kSplitTiles == 0) {
      whole.add(part, count, dim);
      part.clear();
    }
    for (std::int64_t j = 0; j < kKeyTile; ++j) {
      float* value = values.data() + j * dim;
      if (seen(j0 + j)) {
        k.row(b, hkv, j0 + j, row.data());
        v.row(b, hkv, j0 + j, value);
      } else {
        std::fill(row.begin(), row.end(), 0.0f);
        std::fill(value, value + dim, 0.0f);
      }
      for (std::int64_t d = 0; d < dim; ++d)
        keys[static_cast<std::size_t>(d * kKeyTile + j)] = row[static_cast<std::size_t>(d)];
    }
    std::fill(scores.begin(), scores.end(), 0.0f);
    tile_gemm(count, kKeyTile, dim, query.data(), dim, keys.data(), kKeyTile, scores.data(),
              kKeyTile);

    for (std::int64_t r = 0; r < count; ++r) {
      float* s = scores.data() + r * kKeyTile;
      const KeyRange& own = range[static_cast<std::size_t>(r)];
      float& running_max = part.maximum[static_cast<std::size_t>(r)];
      float largest = running_max;
      for (std::int64_t j = 0; j < kKeyTile; ++j) {
        float x = s[j] * score_scale;
        if (p.softcap > 0) x = p.softcap * std::tanh(x / p.softcap);
        s[j] = j0 + j >= own.first && j0 + j < own.last ? x : -kInfinity;
        // Unlike std::max, keeps a NaN.
        if (!(s[j] <= largest)) largest = s[j];
      }
      if (largest == -kInfinity) {
        std::fill(s, s + kKeyTile, 0.0f);
        continue;
      }
      const Exponential weight(largest);
      const float alpha = running_max == -kInfinity ? 0.0f : weight(running_max);
      running_max = largest;
      float sum = 0;
      for (std::int64_t j = 0; j < kKeyTile; ++j) {
        s[j] = weight(s[j]);
        sum += s[j];
      }
      float& running_sum = part.sum[static_cast<std::size_t>(r)];
      running_sum = running_sum * alpha + sum;
      round_weights(p.dtype, s, kKeyTile);
      float* o = part.o.data() + r * dim;
      for (std::int64_t d = 0; d < dim; ++d) o[d] *= alpha;
    }
    std::fill(product.begin(), product.end(), 0.0f);
    tile_gemm(count, dim, kKeyTile, scores.data(), kKeyTile, values.data(), dim, product.data(),
              dim);
    for (std::size_t i = 0; i < product.size(); ++i) part.o[i] += product[i];
  }
  whole.add(part, count, dim);

  const float value_scale = v.scale(b, hkv);
  for (std::int64_t r = 0; r < count; ++r) {
    const float sum = whole.sum[static_cast<std::size_t>(r)];
    const float maximum = whole.maximum[static_cast<std::size_t>(r)];
    const bool empty = maximum == -kInfinity;
    for (std::int64_t d = 0; d < dim; ++d) {
      const float x = empty ? 0.0f : whole.o[static_cast<std::size_t>(r * dim + d)] / sum;
      out[r * dim + d] = numeric::round_to(
          p.out_dtype, numeric::within_range(p.out_dtype, static_cast<double>(x * value_scale)));
    }
    lse[r] = empty ? -std::numeric_limits<double>::infinity()
                   : static_cast<double>(maximum + std::log(sum));
  }
}

}  // namespace

Rows emulate(const Case& c, const Inputs& inputs, const std::vector<std::int64_t>& rows) {
  const Problem& p = c.problem;
  Rows out;
  out.o.assign(rows.size() * static_cast<std::size_t>(p.head_dim), 0.0);
  out.lse.assign(rows.size(), -std::numeric_limits<double>::infinity());
  if (p.seq_kv == 0) return out;
  const Bits q{p, inputs.q, p.q, inputs.q_scale, p.heads_q};
  const Bits k{p, inputs.k, p.k, inputs.k_scale, p.heads_kv};
  const Bits v{p, inputs.v, p.v, inputs.v_scale, p.heads_kv};

  std::vector<std::size_t> starts;
  for (std::size_t r = 0; r < rows.size(); ++r)
    if (r == 0 || rows[r] / p.seq_q != rows[r - 1] / p.seq_q ||
        r - starts.back() == static_cast<std::size_t>(kRowBlock))
      starts.push_back(r);
  parallel_for(static_cast<std::int64_t>(starts.size()), [&](std::int64_t n) {
    const auto at = static_cast<std::size_t>(n);
    const std::size_t first = starts[at];
    const std::size_t last = at + 1 < starts.size() ? starts[at + 1] : rows.size();
    emulate_block(p, q, k, v, rows.data() + first, static_cast<std::int64_t>(last - first),
                  out.o.data() + first * static_cast<std::size_t>(p.head_dim),
                  out.lse.data() + first);
  });
  return out;
}

}  // namespace greenfast::workbench
