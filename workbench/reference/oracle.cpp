#include "workbench/reference/oracle.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "workbench/base/numeric.hpp"
#include "workbench/base/parallel.hpp"
#include "workbench/reference/tile_gemm.hpp"

namespace greenfast::workbench {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kRowBlock = 32;  // rows of one head computed together
constexpr std::int64_t kKeyTile = 64;   // keys decoded together

// One of Q, K, V as the reference reads it: rows in fp64, scales applied.
class Source {
 public:
  Source(const Problem& p, const std::vector<std::byte>& bits, const Layout& layout,
         const std::vector<float>& scale, std::int64_t heads, std::int64_t seq,
         const std::vector<float>* exact)
      : dtype_(p.dtype),
        scales_(p.scales),
        bits_(bits.data()),
        layout_(layout),
        scale_(scale),
        heads_(heads),
        seq_(seq),
        dim_(p.head_dim),
        exact_(exact) {}

  void row(std::int64_t b, std::int64_t h, std::int64_t s, double* out) const {
    if (exact_) {
      numeric::load_row(DType::f32, exact_->data(), ((b * heads_ + h) * seq_ + s) * dim_, dim_,
                        out);
      return;
    }
    numeric::load_row(dtype_, bits_,
                      b * layout_.stride[0] + h * layout_.stride[1] + s * layout_.stride[2], dim_,
                      out);
    if (scales_ == ScaleKind::none) return;
    const double factor = static_cast<double>(
        scale_[scales_ == ScaleKind::tensor ? 0 : static_cast<std::size_t>(b * heads_ + h)]);
    for (std::int64_t d = 0; d < dim_; ++d) out[d] *= factor;
  }

 private:
  DType dtype_;
  ScaleKind scales_;
  const std::byte* bits_;
  const Layout& layout_;
  const std::vector<float>& scale_;
  std::int64_t heads_, seq_, dim_;
  const std::vector<float>* exact_;
};

bool all_finite(const double* values, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += values[i] * 0.0;
  return sum == 0.0;
}

// Rows [first, last) of `rows`, all of one head.
void compute_block(const Problem& p, const Source& q, const Source& k, const Source& v,
                   const std::vector<std::int64_t>& rows, std::size_t first, std::size_t last,
                   Reference& out, std::atomic<bool>& nonfinite) {
  const std::int64_t dim = p.head_dim;
  const auto count = static_cast<std::int64_t>(last - first);
  const std::int64_t head = rows[first] / p.seq_q;
  const std::int64_t b = head / p.heads_q, h = head % p.heads_q;
  const std::int64_t hkv = h / (p.heads_q / p.heads_kv);

  std::vector<double> query(static_cast<std::size_t>(count * dim));
  std::vector<KeyRange> range(static_cast<std::size_t>(count));
  KeyRange all{p.seq_kv, 0};
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t i = rows[first + static_cast<std::size_t>(r)] % p.seq_q;
    auto& own = range[static_cast<std::size_t>(r)];
    own = visible_keys(p, i);
    if (own.first >= own.last) continue;
    q.row(b, h, i, query.data() + r * dim);
    if (!all_finite(query.data() + r * dim, dim)) nonfinite = true;
    all.first = std::min(all.first, own.first);
    all.last = std::max(all.last, own.last);
  }
  const auto seen_by_block = [&](std::int64_t j) {
    return std::any_of(range.begin(), range.end(),
                       [j](const KeyRange& own) { return j >= own.first && j < own.last; });
  };

  double* o = out.o.data() + static_cast<std::int64_t>(first) * dim;
  double* lse = out.lse.data() + first;
  std::fill(o, o + count * dim, 0.0);
  std::fill(lse, lse + count, -kInfinity);
  if (all.first >= all.last) return;

  const std::int64_t width = all.last - all.first;
  const std::int64_t stride = (width + kKeyTile - 1) / kKeyTile * kKeyTile;
  std::vector<double> scores(static_cast<std::size_t>(count * stride), 0.0);
  std::vector<double> tile(static_cast<std::size_t>(kKeyTile * dim));
  std::vector<double> transposed(static_cast<std::size_t>(kKeyTile * dim));

  for (std::int64_t j0 = 0; j0 < width; j0 += kKeyTile) {
    const std::int64_t n = std::min(kKeyTile, width - j0);
    for (std::int64_t j = 0; j < kKeyTile; ++j) {
      double* row = tile.data() + j * dim;
      if (j < n)
        k.row(b, hkv, all.first + j0 + j, row);
      else
        std::fill(row, row + dim, 0.0);
      if (!all_finite(row, dim) && seen_by_block(all.first + j0 + j)) nonfinite = true;
      for (std::int64_t d = 0; d < dim; ++d)
        transposed[static_cast<std::size_t>(d * kKeyTile + j)] = row[d];
    }
    tile_gemm(count, kKeyTile, dim, query.data(), dim, transposed.data(), kKeyTile,
              scores.data() + j0, stride);
  }

  const double scale = static_cast<double>(p.scale), cap = static_cast<double>(p.softcap);
  for (std::int64_t r = 0; r < count; ++r) {
    double* s = scores.data() + r * stride;
    const std::int64_t begin = range[static_cast<std::size_t>(r)].first - all.first;
    const std::int64_t end = range[static_cast<std::size_t>(r)].last - all.first;
    if (begin >= end) {
      std::fill(s, s + stride, 0.0);
      continue;
    }
    double largest = -kInfinity;
    bool nan = false;
    for (std::int64_t j = begin; j < end; ++j) {
      s[j] *= scale;
      if (cap > 0) s[j] = cap * std::tanh(s[j] / cap);
      nan = nan || std::isnan(s[j]);
      largest = std::max(largest, s[j]);
    }
    if (nan) largest = std::numeric_limits<double>::quiet_NaN();
    if (largest == -kInfinity) {
      // Defined: as a row without a visible key.
      std::fill(s, s + stride, 0.0);
      continue;
    }
    double sum = 0;
    for (std::int64_t j = begin; j < end; ++j) {
      s[j] = std::exp(s[j] - largest);
      sum += s[j];
    }
    std::fill(s, s + begin, 0.0);
    std::fill(s + end, s + stride, 0.0);
    for (std::int64_t j = begin; j < end; ++j) s[j] /= sum;
    lse[r] = largest + std::log(sum);
  }

  for (std::int64_t j0 = 0; j0 < width; j0 += kKeyTile) {
    const std::int64_t n = std::min(kKeyTile, width - j0);
    bool finite = true;
    for (std::int64_t j = 0; j < n; ++j) {
      double* row = tile.data() + j * dim;
      v.row(b, hkv, all.first + j0 + j, row);
      if (all_finite(row, dim)) continue;
      finite = false;
      if (seen_by_block(all.first + j0 + j)) nonfinite = true;
    }
    if (finite) {
      tile_gemm(count, dim, n, scores.data() + j0, stride, tile.data(), dim, o, dim);
      continue;
    }
    // A weight of 0 is not the same as not seen where V is NaN or Inf.
    for (std::int64_t r = 0; r < count; ++r)
      for (std::int64_t j = 0; j < n; ++j) {
        const std::int64_t key = all.first + j0 + j;
        const KeyRange& own = range[static_cast<std::size_t>(r)];
        if (key < own.first || key >= own.last) continue;
        if (lse[r] == -kInfinity) continue;
        const double weight = scores[static_cast<std::size_t>(r * stride + j0 + j)];
        for (std::int64_t d = 0; d < dim; ++d)
          o[r * dim + d] += weight * tile[static_cast<std::size_t>(j * dim + d)];
      }
  }
}

// Rows beside one that sees a NaN or Inf in V, no further than a tile is high.
std::vector<char> beside_nonfinite_values(const Problem& p, const Source& v,
                                          const std::vector<std::int64_t>& rows) {
  constexpr std::int64_t kHighestTile = 256;
  std::vector<char> beside(rows.size(), 0);
  std::vector<double> value(static_cast<std::size_t>(p.head_dim));
  std::vector<std::int64_t> nonfinite(static_cast<std::size_t>(p.seq_kv) + 1);  // keys before
  std::vector<std::int64_t> seeing(static_cast<std::size_t>(p.seq_q) + 1);      // rows before
  std::int64_t known = -1;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::int64_t head = rows[r] / p.seq_q, i = rows[r] % p.seq_q;
    const std::int64_t b = head / p.heads_q;
    const std::int64_t group = b * p.heads_kv + head % p.heads_q / (p.heads_q / p.heads_kv);
    if (group != known) {
      known = group;
      for (std::int64_t j = 0; j < p.seq_kv; ++j) {
        v.row(b, group % p.heads_kv, j, value.data());
        nonfinite[static_cast<std::size_t>(j) + 1] =
            nonfinite[static_cast<std::size_t>(j)] + !all_finite(value.data(), p.head_dim);
      }
      for (std::int64_t q = 0; q < p.seq_q; ++q) {
        const KeyRange range = visible_keys(p, q);
        const bool sees =
            range.first < range.last && nonfinite[static_cast<std::size_t>(range.last)] >
                                            nonfinite[static_cast<std::size_t>(range.first)];
        seeing[static_cast<std::size_t>(q) + 1] = seeing[static_cast<std::size_t>(q)] + sees;
      }
    }
    const std::int64_t from = std::max<std::int64_t>(0, i - kHighestTile + 1);
    const std::int64_t to = std::min(p.seq_q, i + kHighestTile);
    beside[r] = seeing[static_cast<std::size_t>(to)] > seeing[static_cast<std::size_t>(from)];
  }
  return beside;
}

}  // namespace

Reference compute_reference(const Case& c, const Inputs& inputs, std::vector<std::int64_t> rows,
                            Truth truth) {
  const Problem& p = c.problem;
  Reference out;
  out.total_rows = p.batch * p.heads_q * p.seq_q;
  out.rows = std::move(rows);
  out.o.assign(out.rows.size() * static_cast<std::size_t>(p.head_dim), 0.0);
  out.lse.assign(out.rows.size(), -kInfinity);
  if (p.seq_kv == 0) return out;

  const bool exact = truth == Truth::unquantised && p.dtype == DType::e4m3;
  const Source q(p, inputs.q, p.q, inputs.q_scale, p.heads_q, p.seq_q,
                 exact ? &inputs.q_exact : nullptr);
  const Source k(p, inputs.k, p.k, inputs.k_scale, p.heads_kv, p.seq_kv,
                 exact ? &inputs.k_exact : nullptr);
  const Source v(p, inputs.v, p.v, inputs.v_scale, p.heads_kv, p.seq_kv,
                 exact ? &inputs.v_exact : nullptr);

  std::vector<std::size_t> starts;
  for (std::size_t r = 0; r < out.rows.size(); ++r) {
    const bool new_head = r == 0 || out.rows[r] / p.seq_q != out.rows[r - 1] / p.seq_q;
    if (new_head || r - starts.back() == static_cast<std::size_t>(kRowBlock)) starts.push_back(r);
  }
  std::atomic<bool> nonfinite{false};
  parallel_for(static_cast<std::int64_t>(starts.size()), [&](std::int64_t n) {
    const auto at = static_cast<std::size_t>(n);
    const std::size_t last = at + 1 < starts.size() ? starts[at + 1] : out.rows.size();
    compute_block(p, q, k, v, out.rows, starts[at], last, out, nonfinite);
  });
  out.nonfinite_visible = nonfinite;
  if (nonfinite) out.may_be_nan = beside_nonfinite_values(p, v, out.rows);
  return out;
}

}  // namespace greenfast::workbench
