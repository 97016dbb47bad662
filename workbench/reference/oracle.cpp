#include "workbench/reference/oracle.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include <greenfast/arithmetic.hpp>

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
  using Place = std::int64_t (Placement::*)(std::int64_t, std::int64_t, std::int64_t) const;

  Source(const Placement& placement, Place place, const std::vector<std::byte>& bits,
         const std::vector<float>& scale, std::int64_t heads, std::int64_t seq, std::int64_t dim,
         const std::vector<float>* exact, std::int64_t step = 1)
      : dtype_(placement.problem().dtype),
        scales_(placement.problem().scales),
        placement_(placement),
        place_(place),
        bits_(bits.data()),
        scale_(scale),
        heads_(heads),
        seq_(seq),
        dim_(dim),
        exact_(exact),
        step_(step) {}

  void row(std::int64_t b, std::int64_t h, std::int64_t s, double* out) const {
    if (exact_) {
      numeric::load_row(DType::f32, exact_->data(), ((b * heads_ + h) * seq_ + s) * dim_, dim_,
                        out);
      return;
    }
    numeric::load_row(dtype_, bits_, (placement_.*place_)(b, h, s), dim_, out, step_);
    if (scales_ == ScaleKind::none) return;
    std::int64_t at = scales_ == ScaleKind::tensor ? 0 : b * heads_ + h;
    if (scales_ == ScaleKind::per_block) at = at * ceil_div(seq_, kScaleBlock) + s / kScaleBlock;
    const double factor = static_cast<double>(scale_[static_cast<std::size_t>(at)]);
    for (std::int64_t d = 0; d < dim_; ++d) out[d] *= factor;
  }

 private:
  DType dtype_;
  ScaleKind scales_;
  const Placement& placement_;
  Place place_;
  const std::byte* bits_;
  const std::vector<float>& scale_;
  std::int64_t heads_, seq_, dim_;
  const std::vector<float>* exact_;
  std::int64_t step_;  // from element to element
};

// What is added to the scores of one row behind the softcap.
class Bias {
 public:
  Bias(const Placement& placement, const Arrays& arrays, std::int64_t b, std::int64_t h,
       std::int64_t i)
      : placement_(placement), arrays_(arrays), b_(b), h_(h), i_(i) {
    const Problem& p = placement.problem();
    face_ = static_cast<double>(i + shift_of(p, placement.sequence(b)));
    if (p.alibi != Alibi::none)
      slope_ = static_cast<double>(arrays.slopes[static_cast<std::size_t>(
          p.alibi == Alibi::per_batch_head ? b * p.heads_q + h : h)]);
  }
  /// -inf: the key is hidden, whatever its score.
  double of(std::int64_t j) const {
    double bias = slope_ != 0 ? -slope_ * std::fabs(face_ - static_cast<double>(j)) : 0.0;
    const ArrayMask& mask = placement_.problem().array_mask;
    if (mask.kind == MaskKind::none) return bias;
    const std::int64_t at = placement_.mask(b_, h_, i_, j);
    if (mask.kind == MaskKind::boolean)
      return arrays_.mask[static_cast<std::size_t>(at)] != std::byte{0} ? bias : -kInfinity;
    return bias + numeric::load(mask.dtype, arrays_.mask.data(), at);
  }

 private:
  const Placement& placement_;
  const Arrays& arrays_;
  std::int64_t b_, h_, i_;
  double face_ = 0, slope_ = 0;
};

bool all_finite(const double* values, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += values[i] * 0.0;
  return sum == 0.0;
}

double norm_of(const double* values, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += values[i] * values[i];
  return std::sqrt(sum);
}

// By how many nats an honest score may be off whose products are summed and scaled in fp32, in any
// order. `size`: norm of q times norm of k times the scale, which bounds the sum of the products'
// magnitudes; tensor cores may cut each of them off at the largest.
double score_slack(double size, double dim, double score, double cap) {
  constexpr double kUlp = 0x1p-23;
  const double slack = kUlp * ((2.0 + dim / 8.0) * size + 4.0 * std::fabs(score));
  // A capped score is a fraction of the cap, whatever the score was.
  return cap > 0 ? std::min(slack, 2.0 * cap) + 4.0 * kUlp * std::fabs(score) : slack;
}

// By how much a weight may move whose score moves by `slack` against the others: the only key of a
// row stays at 1. `logit`: of the weight, score - lse.
double weight_moved(double log_weight, double slack) {
  const double weight = std::exp(log_weight);
  // log(p / (1 - p)); of a weight of 1 infinite, and nothing moves it.
  const double logit = log_weight - std::log1p(-std::min(weight, 1.0));
  const double up = 1.0 / (1.0 + std::exp(-(logit + slack))) - weight;
  const double down = weight - 1.0 / (1.0 + std::exp(-(logit - slack)));
  return std::max({up, down, 0.0});
}

// Rows [first, last) of `rows`, all of one head.
void compute_block(const Placement& placement, const Arrays& arrays, const Source& q,
                   const Source& k, const Source& v, const std::vector<std::int64_t>& rows,
                   std::size_t first, std::size_t last, Reference& out,
                   std::atomic<bool>& nonfinite) {
  const Problem& p = placement.problem();
  const std::int64_t dim = p.head_dim, dim_v = value_dim(p);
  const bool biased = p.alibi != Alibi::none || p.array_mask.kind != MaskKind::none;
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
    own = placement.visible(b, i);
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

  // A row without a key: O = 0, and the LSE is the sink.
  const double sink =
      p.sinks ? static_cast<double>(arrays.sinks[static_cast<std::size_t>(h)]) : -kInfinity;
  double* o = out.o.data() + static_cast<std::int64_t>(first) * dim_v;
  double* lse = out.lse.data() + first;
  std::fill(o, o + count * dim_v, 0.0);
  std::fill(lse, lse + count, sink);
  if (all.first >= all.last) return;

  const std::int64_t width = all.last - all.first;
  const std::int64_t stride = round_up(width, kKeyTile);
  std::vector<double> scores(static_cast<std::size_t>(count * stride), 0.0);
  std::vector<double> tile(static_cast<std::size_t>(kKeyTile * std::max(dim, dim_v)));
  std::vector<char> hidden;  // by the array mask, of each row and key
  if (biased) hidden.assign(static_cast<std::size_t>(count * stride), 0);
  std::vector<char> dead(static_cast<std::size_t>(count));     // rows without a key after all
  std::vector<double> share(static_cast<std::size_t>(count));  // of the keys beside the sink
  std::vector<double> transposed(static_cast<std::size_t>(kKeyTile * dim));
  std::vector<double> key_norm(static_cast<std::size_t>(width));

  for (std::int64_t j0 = 0; j0 < width; j0 += kKeyTile) {
    const std::int64_t n = std::min(kKeyTile, width - j0);
    for (std::int64_t j = 0; j < kKeyTile; ++j) {
      double* row = tile.data() + j * dim;
      if (j < n)
        k.row(b, hkv, all.first + j0 + j, row);
      else
        std::fill(row, row + dim, 0.0);
      if (!all_finite(row, dim) && seen_by_block(all.first + j0 + j)) nonfinite = true;
      if (j < n) key_norm[static_cast<std::size_t>(j0 + j)] = norm_of(row, dim);
      for (std::int64_t d = 0; d < dim; ++d)
        transposed[static_cast<std::size_t>(d * kKeyTile + j)] = row[d];
    }
    tile_gemm(count, kKeyTile, dim, query.data(), dim, transposed.data(), kKeyTile,
              scores.data() + j0, stride);
  }

  const double scale = static_cast<double>(p.scale), cap = static_cast<double>(p.softcap);
  const double widest = *std::max_element(key_norm.begin(), key_norm.end());
  // Of rows whose scores are not known well: by how much each weight may move.
  std::vector<std::vector<double>> weight_moves(static_cast<std::size_t>(count));
  for (std::int64_t r = 0; r < count; ++r) {
    double* s = scores.data() + r * stride;
    const std::int64_t begin = range[static_cast<std::size_t>(r)].first - all.first;
    const std::int64_t end = range[static_cast<std::size_t>(r)].last - all.first;
    if (begin >= end) {
      std::fill(s, s + stride, 0.0);
      dead[static_cast<std::size_t>(r)] = 1;
      continue;
    }
    const Bias bias(placement, arrays, b, h, rows[first + static_cast<std::size_t>(r)] % p.seq_q);
    const double query_size = norm_of(query.data() + r * dim, dim) * std::fabs(scale);
    const auto slack_of = [&](std::int64_t j) {
      return score_slack(query_size * key_norm[static_cast<std::size_t>(j)],
                         static_cast<double>(dim), s[j], cap);
    };
    double largest = -kInfinity, slack = 0;
    bool nan = false;
    for (std::int64_t j = begin; j < end; ++j) {
      s[j] *= scale;
      if (cap > 0) s[j] = cap * std::tanh(s[j] / cap);
      if (biased) {
        const double added = bias.of(all.first + j);
        hidden[static_cast<std::size_t>(r * stride + j)] = added == -kInfinity;
        s[j] = added == -kInfinity ? added : s[j] + added;
      }
      nan = nan || std::isnan(s[j]);
      largest = std::max(largest, s[j]);
    }
    // The cheap bound of all keys first: no row at a usual scale goes further.
    const bool known = !(score_slack(query_size * widest, static_cast<double>(dim),
                                     cap > 0 ? cap : query_size * widest, cap) > kSlack);
    std::vector<double> raw, slack_by_key;
    if (!known && std::isfinite(largest)) {
      raw.assign(s + begin, s + end);
      for (std::int64_t j = begin; j < end; ++j) {
        slack_by_key.push_back(std::isfinite(s[j]) ? slack_of(j) : 0.0);
        if (s[j] == largest) slack = std::max(slack, slack_by_key.back());
      }
    }
    if (nan) largest = std::numeric_limits<double>::quiet_NaN();
    if (largest == -kInfinity) {
      // Defined: as a row without a visible key.
      std::fill(s, s + stride, 0.0);
      dead[static_cast<std::size_t>(r)] = 1;
      continue;
    }
    if (p.sinks && !nan) largest = std::max(largest, sink);
    double sum = p.sinks ? std::exp(sink - largest) : 0.0;
    for (std::int64_t j = begin; j < end; ++j) {
      s[j] = std::exp(s[j] - largest);
      sum += s[j];
    }
    double keys = 0;
    for (std::int64_t j = begin; p.sinks && j < end; ++j) keys += s[j];
    share[static_cast<std::size_t>(r)] = keys / sum;
    std::fill(s, s + begin, 0.0);
    std::fill(s + end, s + stride, 0.0);
    for (std::int64_t j = begin; j < end; ++j) s[j] /= sum;
    lse[r] = largest + std::log(sum);
    if (!(slack > kSlack)) continue;
    out.slack[first + static_cast<std::size_t>(r)] = slack;
    std::vector<double>& moves = weight_moves[static_cast<std::size_t>(r)];
    moves.assign(static_cast<std::size_t>(width), 0.0);
    for (std::int64_t j = begin; j < end; ++j) {
      const auto at = static_cast<std::size_t>(j - begin);
      moves[static_cast<std::size_t>(j)] = weight_moved(raw[at] - lse[r], slack_by_key[at] + slack);
    }
  }

  for (std::int64_t j0 = 0; j0 < width; j0 += kKeyTile) {
    const std::int64_t n = std::min(kKeyTile, width - j0);
    bool finite = true;
    for (std::int64_t j = 0; j < n; ++j) {
      double* row = tile.data() + j * dim_v;
      v.row(b, hkv, all.first + j0 + j, row);
      if (all_finite(row, dim_v)) continue;
      finite = false;
      if (seen_by_block(all.first + j0 + j)) nonfinite = true;
    }
    if (finite) {
      tile_gemm(count, dim_v, n, scores.data() + j0, stride, tile.data(), dim_v, o, dim_v);
      continue;
    }
    // A weight of 0 is not the same as not seen where V is NaN or Inf.
    for (std::int64_t r = 0; r < count; ++r)
      for (std::int64_t j = 0; j < n; ++j) {
        const std::int64_t key = all.first + j0 + j;
        const KeyRange& own = range[static_cast<std::size_t>(r)];
        if (key < own.first || key >= own.last) continue;
        const auto at = static_cast<std::size_t>(r * stride + j0 + j);
        if (dead[static_cast<std::size_t>(r)] || (biased && hidden[at])) continue;
        for (std::int64_t d = 0; d < dim_v; ++d)
          o[r * dim_v + d] += scores[at] * tile[static_cast<std::size_t>(j * dim_v + d)];
      }
  }

  for (std::int64_t r = 0; r < count; ++r) {
    const std::vector<double>& moves = weight_moves[static_cast<std::size_t>(r)];
    if (moves.empty()) continue;
    double* moved = out.moved.data() + (static_cast<std::int64_t>(first) + r) * dim_v;
    // Weights still sum to 1, so O moves by differences of V to it, and no further than the
    // furthest.
    std::vector<double> value(static_cast<std::size_t>(dim_v)), furthest(value.size());
    for (std::int64_t j = 0; j < width; ++j) {
      const double move = moves[static_cast<std::size_t>(j)];
      if (!(move > 1e-9)) continue;
      v.row(b, hkv, all.first + j, value.data());
      for (std::int64_t d = 0; d < dim_v; ++d) {
        const double apart = std::fabs(value[static_cast<std::size_t>(d)] - o[r * dim_v + d]);
        moved[d] += move * apart;
        furthest[static_cast<std::size_t>(d)] =
            std::max(furthest[static_cast<std::size_t>(d)], apart);
      }
    }
    for (std::int64_t d = 0; d < dim_v; ++d)
      moved[d] = std::min(moved[d], furthest[static_cast<std::size_t>(d)]);
  }

  constexpr double kLeast = 1e-4;
  if (!p.sinks) return;
  for (std::int64_t r = 0; r < count; ++r) {
    double norm = 0;
    for (std::int64_t d = 0; d < dim_v; ++d) norm += o[r * dim_v + d] * o[r * dim_v + d];
    const double keys = share[static_cast<std::size_t>(r)];
    if (keys > 0)
      out.least_norm[first + static_cast<std::size_t>(r)] = kLeast * std::sqrt(norm) / keys;
  }
}

// Rows beside one that sees a NaN or Inf in V, no further than a tile is high.
std::vector<char> beside_nonfinite_values(const Placement& placement, const Source& v,
                                          const std::vector<std::int64_t>& rows) {
  constexpr std::int64_t kHighestTile = 256;
  const Problem& p = placement.problem();
  const std::int64_t dim_v = value_dim(p);
  std::vector<char> beside(rows.size(), 0);
  std::vector<double> value(static_cast<std::size_t>(dim_v));
  std::vector<std::int64_t> nonfinite(static_cast<std::size_t>(p.seq_kv) + 1);  // keys before
  std::vector<std::int64_t> seeing(static_cast<std::size_t>(p.seq_q) + 1);      // rows before
  std::int64_t known = -1;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const std::int64_t head = rows[r] / p.seq_q, i = rows[r] % p.seq_q;
    const std::int64_t b = head / p.heads_q;
    const std::int64_t group = b * p.heads_kv + head % p.heads_q / (p.heads_q / p.heads_kv);
    if (group != known) {
      known = group;
      for (std::int64_t j = 0; j < placement.sequence(b).keys; ++j) {
        v.row(b, group % p.heads_kv, j, value.data());
        nonfinite[static_cast<std::size_t>(j) + 1] =
            nonfinite[static_cast<std::size_t>(j)] + !all_finite(value.data(), dim_v);
      }
      for (std::int64_t q = 0; q < placement.sequence(b).rows; ++q) {
        const KeyRange range = placement.visible(b, q);
        const bool sees =
            range.first < range.last && nonfinite[static_cast<std::size_t>(range.last)] >
                                            nonfinite[static_cast<std::size_t>(range.first)];
        seeing[static_cast<std::size_t>(q) + 1] = seeing[static_cast<std::size_t>(q)] + sees;
      }
    }
    const std::int64_t from = std::max<std::int64_t>(0, i - kHighestTile + 1);
    const std::int64_t to = std::min(placement.sequence(b).rows, i + kHighestTile);
    beside[r] = seeing[static_cast<std::size_t>(to)] > seeing[static_cast<std::size_t>(from)];
  }
  return beside;
}

}  // namespace

Reference compute_reference(const Case& c, const Inputs& inputs, std::vector<std::int64_t> rows,
                            Truth truth) {
  const Problem& p = c.problem;
  const Placement placement(p, index_arrays(inputs));
  const std::int64_t dim_v = value_dim(p);
  Reference out;
  out.total_rows = placement.existing_rows();
  out.rows = std::move(rows);
  out.o.assign(out.rows.size() * static_cast<std::size_t>(dim_v), 0.0);
  out.lse.assign(out.rows.size(), -kInfinity);
  if (p.sinks) out.least_norm.assign(out.rows.size(), 0.0);
  out.slack.assign(out.rows.size(), 0.0);
  out.moved.assign(out.o.size(), 0.0);

  const bool exact = truth == Truth::unquantised && p.dtype == DType::e4m3 && is_dense(p);
  const Source q(placement, &Placement::q, inputs.q, inputs.q_scale, p.heads_q, p.seq_q, p.head_dim,
                 exact ? &inputs.q_exact : nullptr);
  const Source k(placement, &Placement::k, inputs.k, inputs.k_scale, p.heads_kv, p.seq_kv,
                 p.head_dim, exact ? &inputs.k_exact : nullptr);
  const Source v(placement, &Placement::v, inputs.v, inputs.v_scale, p.heads_kv, p.seq_kv, dim_v,
                 exact ? &inputs.v_exact : nullptr, placement.v_step());

  std::vector<std::size_t> starts;
  for (std::size_t r = 0; r < out.rows.size(); ++r) {
    const bool new_head = r == 0 || out.rows[r] / p.seq_q != out.rows[r - 1] / p.seq_q;
    if (new_head || r - starts.back() == static_cast<std::size_t>(kRowBlock)) starts.push_back(r);
  }
  std::atomic<bool> nonfinite{false};
  parallel_for(static_cast<std::int64_t>(starts.size()), [&](std::int64_t n) {
    const auto at = static_cast<std::size_t>(n);
    const std::size_t last = at + 1 < starts.size() ? starts[at + 1] : out.rows.size();
    compute_block(placement, inputs.arrays, q, k, v, out.rows, starts[at], last, out, nonfinite);
  });
  if (std::all_of(out.slack.begin(), out.slack.end(), [](double x) { return x == 0; })) {
    out.slack.clear();
    out.moved.clear();
  }
  out.nonfinite_visible = nonfinite;
  if (nonfinite) out.may_be_nan = beside_nonfinite_values(placement, v, out.rows);
  return out;
}

}  // namespace greenfast::workbench
