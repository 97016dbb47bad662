#include "workbench/reference/emulator.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numbers>

#include <greenfast/arithmetic.hpp>

#include "workbench/base/numeric.hpp"
#include "workbench/base/parallel.hpp"
#include "workbench/reference/tile_gemm.hpp"

namespace greenfast::workbench {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr std::int64_t kTileRows = 32;
constexpr std::int64_t kTileKeys = 64;
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

// Weights without an exponential: an e4m3 code 8 (k + 7) + m is 2^k (1 + m / 8), so that 8 log2 of a
// weight, rounded, is its code, and the weight is linear between powers of two. 126 is the largest
// code; 1 becomes 1. Of scores against the maximum.
void linear_weights(float maximum, float* s, std::int64_t count) {
  const bool far = std::fabs(maximum) > 0x1p120f;
  constexpr float kCodes = 8.0f * std::numbers::log2e_v<float>;
  for (std::int64_t j = 0; j < count; ++j) {
    const float code =
        126.0f + std::nearbyint(far ? (s[j] - maximum) * kCodes : s[j] * kCodes - maximum * kCodes);
    if (std::isnan(code)) {
      s[j] = code;
    } else if (!(code > 0)) {
      s[j] = 0.0f;
    } else {
      const int whole = static_cast<int>(code), mantissa = whole % 8;
      const int significand = whole < 8 ? mantissa : 8 + mantissa;
      s[j] = std::ldexp(static_cast<float>(significand), std::max(whole / 8, 1) - 10) / 448.0f;
    }
  }
}

// Of a score x against the maximum: exp2 is what the hardware has. Scores whose product with log2 e
// would overflow are subtracted first.
struct Exponential {
  float maximum, scaled;
  bool far;

  explicit Exponential(float m)
      : maximum(m), scaled(m * std::numbers::log2e_v<float>), far(std::fabs(m) > 0x1p120f) {}
  float operator()(float x) const {
    return std::exp2(far ? (x - maximum) * std::numbers::log2e_v<float>
                         : x * std::numbers::log2e_v<float> - scaled);
  }
};

// What was found in the keys since the last merge.
struct Partial {
  std::vector<float> o;
  std::array<float, kTileRows> maximum{}, sum{};
  explicit Partial(std::int64_t size) : o(static_cast<std::size_t>(size)) { clear(); }
  void clear() {
    std::fill(o.begin(), o.end(), 0.0f);
    maximum.fill(-kInf);
    sum.fill(0.0f);
  }
  void add(const Partial& part, std::int64_t count, std::int64_t dim) {
    for (std::int64_t r = 0; r < count; ++r) {
      const auto at = static_cast<std::size_t>(r);
      if (part.maximum[at] == -kInf) continue;
      const float above = !(part.maximum[at] <= maximum[at]) ? part.maximum[at] : maximum[at];
      const Exponential weight(above);
      const float old = maximum[at] == -kInf ? 0.0f : weight(maximum[at]);
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
  using Place = std::int64_t (Placement::*)(std::int64_t, std::int64_t, std::int64_t) const;
  const Problem& p;
  const Placement& placement;
  Place place;
  const std::vector<std::byte>& bytes;
  const std::vector<float>& scales;
  std::int64_t heads, seq, dim;
  std::int64_t step = 1;  // from element to element

  void row(std::int64_t b, std::int64_t h, std::int64_t s, float* out) const {
    numeric::load_row(p.dtype, bytes.data(), (placement.*place)(b, h, s), dim, out, step);
  }
  float scale(std::int64_t b, std::int64_t h) const {
    if (p.scales == ScaleKind::none || p.scales == ScaleKind::per_block) return 1.0f;
    return scales[p.scales == ScaleKind::tensor ? 0 : static_cast<std::size_t>(b * heads + h)];
  }
  float block_scale(std::int64_t b, std::int64_t h, std::int64_t s) const {
    if (p.scales != ScaleKind::per_block) return 1.0f;
    const std::int64_t head = b * heads + h;
    return scales[static_cast<std::size_t>(head * ceil_div(seq, kScaleBlock) + s / kScaleBlock)];
  }
};

// What an array mask and ALiBi make of the score of one key; -inf where it is hidden.
float biased(const Placement& placement, const Arrays& arrays, std::int64_t b, std::int64_t h,
             std::int64_t i, std::int64_t j, float x) {
  const Problem& p = placement.problem();
  if (p.alibi != Alibi::none) {
    const std::int64_t own = p.alibi == Alibi::per_batch_head ? b * p.heads_q + h : h;
    const std::int64_t distance = i + shift_of(p, placement.sequence(b)) - j;
    x -= arrays.slopes[static_cast<std::size_t>(own)] *
         static_cast<float>(distance < 0 ? -distance : distance);
  }
  if (p.array_mask.kind == MaskKind::none) return x;
  const std::int64_t at = placement.mask(b, h, i, j);
  if (p.array_mask.kind == MaskKind::boolean)
    return arrays.mask[static_cast<std::size_t>(at)] == std::byte{0} ? -kInf : x;
  const auto added = static_cast<float>(numeric::load(p.array_mask.dtype, arrays.mask.data(), at));
  return added == -kInf ? added : x + added;
}

void emulate_block(const Placement& placement, const Arrays& arrays, const Bits& q, const Bits& k,
                   const Bits& v, const std::int64_t* rows, std::int64_t count, double* out,
                   double* lse) {
  const Problem& p = placement.problem();
  const std::int64_t dim = p.head_dim, dim_v = value_dim(p);
  const bool bias = p.alibi != Alibi::none || p.array_mask.kind != MaskKind::none;
  const std::int64_t head = rows[0] / p.seq_q;
  const std::int64_t b = head / p.heads_q, h = head % p.heads_q;
  const std::int64_t hkv = h * p.heads_kv / p.heads_q;
  const float score_scale = p.scale * q.scale(b, h) * k.scale(b, hkv);
  const bool blocks = p.scales == ScaleKind::per_block;

  std::vector<float> query(static_cast<std::size_t>(count * dim));
  Partial whole(count * dim_v), part(count * dim_v);
  std::vector<float> product(static_cast<std::size_t>(count * dim_v));
  std::array<KeyRange, kTileRows> range;
  KeyRange all{p.seq_kv, 0};
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t i = rows[r] % p.seq_q;
    auto& own = range[static_cast<std::size_t>(r)];
    own = placement.visible(b, i);
    q.row(b, h, i, query.data() + r * dim);
    if (own.first >= own.last) continue;
    all.first = std::min(all.first, own.first);
    all.last = std::max(all.last, own.last);
  }
  const auto seen = [&](std::int64_t j) {
    return std::any_of(range.begin(), range.begin() + count,
                       [j](const KeyRange& own) { return j >= own.first && j < own.last; });
  };

  std::vector<float> keys(static_cast<std::size_t>(dim * kTileKeys));
  std::vector<float> values(static_cast<std::size_t>(dim_v * kTileKeys));
  std::vector<float> row(static_cast<std::size_t>(dim));
  std::vector<float> scores(static_cast<std::size_t>(count * kTileKeys));
  const std::int64_t start = all.first / kTileKeys * kTileKeys;
  for (std::int64_t j0 = start; j0 < all.last; j0 += kTileKeys) {
    if (j0 > start && (j0 - start) / kTileKeys % kSplitTiles == 0) {
      whole.add(part, count, dim_v);
      part.clear();
    }
    for (std::int64_t j = 0; j < kTileKeys; ++j) {
      float* value = values.data() + j * dim_v;
      if (seen(j0 + j)) {
        k.row(b, hkv, j0 + j, row.data());
        v.row(b, hkv, j0 + j, value);
        if (blocks) {
          const float factor = v.block_scale(b, hkv, j0 + j);
          for (std::int64_t d = 0; d < dim_v; ++d) value[d] *= factor;
        }
      } else {
        std::fill(row.begin(), row.end(), 0.0f);
        std::fill(value, value + dim_v, 0.0f);
      }
      for (std::int64_t d = 0; d < dim; ++d)
        keys[static_cast<std::size_t>(d * kTileKeys + j)] = row[static_cast<std::size_t>(d)];
    }
    std::fill(scores.begin(), scores.end(), 0.0f);
    tile_gemm(count, kTileKeys, dim, query.data(), dim, keys.data(), kTileKeys, scores.data(),
              kTileKeys);

    for (std::int64_t r = 0; r < count; ++r) {
      float* s = scores.data() + r * kTileKeys;
      const KeyRange& own = range[static_cast<std::size_t>(r)];
      float& running_max = part.maximum[static_cast<std::size_t>(r)];
      float largest = running_max;
      for (std::int64_t j = 0; j < kTileKeys; ++j) {
        float factor = score_scale;
        if (blocks && j0 + j < p.seq_kv)
          factor *= q.block_scale(b, h, rows[r] % p.seq_q) * k.block_scale(b, hkv, j0 + j);
        float x = s[j] * factor;
        if (p.softcap > 0) x = p.softcap * std::tanh(x / p.softcap);
        const bool visible = j0 + j >= own.first && j0 + j < own.last;
        if (bias && visible) x = biased(placement, arrays, b, h, rows[r] % p.seq_q, j0 + j, x);
        s[j] = visible ? x : -kInf;
        // Unlike std::max, keeps a NaN.
        if (!(s[j] <= largest)) largest = s[j];
      }
      if (largest == -kInf) {
        std::fill(s, s + kTileKeys, 0.0f);
        continue;
      }
      const Exponential weight(largest);
      const float alpha = running_max == -kInf ? 0.0f : weight(running_max);
      running_max = largest;
      float sum = 0;
      if (p.accuracy == Accuracy::fast) linear_weights(largest, s, kTileKeys);
      for (std::int64_t j = 0; j < kTileKeys; ++j) {
        if (p.accuracy == Accuracy::exact) s[j] = weight(s[j]);
        sum += s[j];
      }
      float& running_sum = part.sum[static_cast<std::size_t>(r)];
      running_sum = running_sum * alpha + sum;
      if (p.accuracy == Accuracy::exact) round_weights(p.dtype, s, kTileKeys);
      float* o = part.o.data() + r * dim_v;
      for (std::int64_t d = 0; d < dim_v; ++d) o[d] *= alpha;
    }
    std::fill(product.begin(), product.end(), 0.0f);
    tile_gemm(count, dim_v, kTileKeys, scores.data(), kTileKeys, values.data(), dim_v,
              product.data(), dim_v);
    for (std::size_t i = 0; i < product.size(); ++i) part.o[i] += product[i];
  }
  whole.add(part, count, dim_v);

  const float sink = p.sinks ? arrays.sinks[static_cast<std::size_t>(h)] : -kInf;
  const float value_scale = v.scale(b, hkv);
  for (std::int64_t r = 0; r < count; ++r) {
    float sum = whole.sum[static_cast<std::size_t>(r)];
    float maximum = whole.maximum[static_cast<std::size_t>(r)], shrink = 1.0f;
    const bool empty = maximum == -kInf;
    if (p.sinks && !empty) {
      // As one more key whose V is 0; the maximum keeps a NaN.
      const float above = sink > maximum ? sink : maximum;
      const Exponential weight(above);
      shrink = weight(maximum);
      sum = sum * shrink + weight(sink);
      maximum = above;
    }
    for (std::int64_t d = 0; d < dim_v; ++d) {
      const float x =
          empty ? 0.0f : whole.o[static_cast<std::size_t>(r * dim_v + d)] * shrink / sum;
      out[r * dim_v + d] = numeric::round_to(
          p.out_dtype, numeric::within_range(p.out_dtype, static_cast<double>(x * value_scale)));
    }
    lse[r] = empty ? static_cast<double>(sink) : static_cast<double>(maximum + std::log(sum));
  }
}

}  // namespace

Rows emulate(const Case& c, const Inputs& inputs, const std::vector<std::int64_t>& rows) {
  const Problem& p = c.problem;
  const Placement placement(p, index_arrays(inputs));
  const std::int64_t dim_v = value_dim(p);
  Rows out;
  out.o.assign(rows.size() * static_cast<std::size_t>(dim_v), 0.0);
  out.lse.assign(rows.size(), -std::numeric_limits<double>::infinity());
  const Bits q{p,         placement, &Placement::q, inputs.q, inputs.q_scale,
               p.heads_q, p.seq_q,   p.head_dim};
  const Bits k{p,          placement, &Placement::k, inputs.k, inputs.k_scale,
               p.heads_kv, p.seq_kv,  p.head_dim};
  const Bits v{p,          placement, &Placement::v, inputs.v,          inputs.v_scale,
               p.heads_kv, p.seq_kv,  dim_v,         placement.v_step()};

  std::vector<std::size_t> starts;
  for (std::size_t r = 0; r < rows.size(); ++r)
    if (r == 0 || rows[r] / p.seq_q != rows[r - 1] / p.seq_q ||
        r - starts.back() == static_cast<std::size_t>(kTileRows))
      starts.push_back(r);
  parallel_for(static_cast<std::int64_t>(starts.size()), [&](std::int64_t n) {
    const auto at = static_cast<std::size_t>(n);
    const std::size_t first = starts[at];
    const std::size_t last = at + 1 < starts.size() ? starts[at + 1] : rows.size();
    emulate_block(placement, inputs.arrays, q, k, v, rows.data() + first,
                  static_cast<std::int64_t>(last - first),
                  out.o.data() + first * static_cast<std::size_t>(dim_v), out.lse.data() + first);
  });
  return out;
}

}  // namespace greenfast::workbench
