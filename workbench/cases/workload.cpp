// Compiled without contraction of a*b+c into one rounding: inputs must not depend on the machine.
#include "workbench/cases/workload.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>

#include <greenfast/arithmetic.hpp>

#include "workbench/base/numeric.hpp"
#include "workbench/base/parallel.hpp"
#include "workbench/base/sha256.hpp"
#include "workbench/base/trim.hpp"
#include "workbench/cases/arrays.hpp"
#include "workbench/cases/attributes.hpp"
#include "workbench/cases/operand_bytes.hpp"
#include "workbench/cases/placement.hpp"
#include "workbench/cases/random.hpp"

namespace greenfast::workbench {
namespace {

constexpr std::array kShapes{
    ShapeRow{"small", "1x8x32x64", "launch cost and the shortest sequences"},
    ShapeRow{"mission", "1x8x512x64", "the primary shape of every comparison"},
    ShapeRow{"long", "1x8x2048x64", "steady state of a long sequence"},
    ShapeRow{"v2c-a", "1x8x512x64", "V2c acceptance"},
    ShapeRow{"v2c-b", "2x8x2048x64", "V2c acceptance, long"},
    ShapeRow{"v2c-c", "2x8x2048x128", "V2c acceptance, head dim 128"},
    // Heads of real models, one sequence of 4,096 tokens; attributes and other lengths go behind.
    ShapeRow{"gpt-oss", "1x64/8x4096x64 window=127:0 sinks", "gpt-oss, a layer with a window"},
    ShapeRow{"qwen3", "1x32/8x4096x128 causal", "Qwen3"},
    ShapeRow{"llama4", "1x40/8x4096x128 chunk=8192 causal", "Llama 4, a layer in chunks"},
    ShapeRow{"glm", "1x96/8x4096x128 causal", "GLM"},
    ShapeRow{"gemma", "1x8/4x4096x256 window=1023:0", "Gemma, a local layer"},
    ShapeRow{"deepseek", "1x128x4096x192/128 causal", "DeepSeek, prefill"},
};

constexpr std::array kSuites{
    SuiteRow{"v2c", "v2c-a,v2c-a causal,v2c-b,v2c-b causal,v2c-c", "V2c acceptance suite"},
    SuiteRow{"edges",
             "2x2x1x64,1x4/2x15x64,1x2x17x64,2x2x63x64,1x4/1x65x64,2x3x127x64,1x2x517x64,"
             "2x4/2x1/517x64,1x2x517/1x64,1x2x15/63x64,1x4/2x65/17x64,2x2x127/65x64,"
             "1x6/3x63/127x128,1x2x517/127x64,1x2x127/517x64,1x3x65x8,2x2x63/17x96,1x2x17/65x256",
             "lengths off every tile, Sq != Skv, GQA, B >= 2, unusual head dims"},
    // Lengths are log-uniform: every octave of them is as likely.
    SuiteRow{"decode",
             "1x32/8x1/2048x128,1x32/8x1/512x128,1x8x1/2048x64,"
             "64x64/8x1/8192x64 window=127:0 sinks used-kv lengths=log-uniform:512,"
             "64x32/8x1/8192x128 used-kv lengths=log-uniform:512,"
             "16x40/8x1/16384x128 chunk=8192 causal used-kv lengths=log-uniform:512,"
             "16x96/8x1/8192x128 used-kv lengths=log-uniform:512,"
             "32x8/4x1/8192x256 used-kv lengths=log-uniform:512",
             "one query for each sequence of a batch, heads of real models"},
    SuiteRow{"varlen",
             "16x64/8x2048x64 packed window=127:0 sinks lengths=log-uniform:64,"
             "16x32/8x2048x128 packed causal lengths=log-uniform:64,"
             "16x32/8x2048x128 packed causal lengths=full,"
             "8x40/8x4096x128 packed causal chunk=2048 lengths=log-uniform:64,"
             "16x8/4x2048x256 packed window=1023:0 lengths=log-uniform:64,"
             "4x128x2048x192/128 packed causal lengths=log-uniform:64",
             "packed prefill, heads of real models, lengths of every octave and equal ones"},
    SuiteRow{"paged",
             "64x32/8x1/8192x128 pages=16 used-kv lengths=log-uniform:512,"
             "64x32/8x1/8192x128 pages=64 used-kv lengths=log-uniform:512,"
             "64x64/8x1/8192x64 pages=16 window=127:0 sinks used-kv lengths=log-uniform:512,"
             "8x32/8x256/4096x128 pages=64 causal packed-q used-kv lengths=log-uniform:64",
             "the same with the cache in pages, and a chunk of a prefill over it"},
};

constexpr std::array kDistributions{
    DistributionRow{Distribution::normal, "normal", "what most kernels are only ever tested on"},
    DistributionRow{Distribution::permutation, "permutation",
                    "dropped, doubled or misplaced keys: each row retrieves one key, also those "
                    "at the edges of the mask"},
    DistributionRow{Distribution::outliers, "outliers",
                    "zero points, scales and biases: outlier channels, nonzero means"},
    DistributionRow{Distribution::rising_max, "rising_max",
                    "missing rescaling: the running maximum changes in every tile"},
    DistributionRow{Distribution::large_logits, "large_logits",
                    "overflow: scores far beyond the range of exp in fp16"},
    DistributionRow{Distribution::constant_v, "constant_v",
                    "the normaliser alone, and mixed-up heads and channels"},
    DistributionRow{Distribution::small_normal, "small_normal",
                    "loss of small values: N(0, 0.1^2), the inputs of the V2c originals"},
    DistributionRow{Distribution::faint_tail, "faint_tail",
                    "weights that underflow or are skipped: thousands of keys 8 to 16 nats below "
                    "one that stands first, last or at a tile's edge"},
    DistributionRow{Distribution::recent_keys, "recent_keys",
                    "the same in a long context: the last 64 keys 8 to 15 nats above the rest"},
    DistributionRow{Distribution::one_key, "one_key",
                    "numerator and denominator that round apart: one key 60 nats up is its V"},
    DistributionRow{Distribution::far_offsets, "far_offsets",
                    "a maximum of other rows, of hidden keys or of 0; masks that are a number"},
    DistributionRow{Distribution::huge_scores, "huge_scores",
                    "differences of large scores: up to the last finite fp32, by inputs and scale"},
    DistributionRow{Distribution::large_softcap, "large_softcap",
                    "cancellation in tanh: a softcap of 1e8 over scores around 1"},
    DistributionRow{Distribution::long_rows, "long_rows",
                    "accumulators that stagnate or cut off, and indices of 16 bits: 98,305 keys"},
    DistributionRow{Distribution::dead_rows, "dead_rows",
                    "-inf - -inf: rows whose scores are all -inf give O = 0 and LSE = -inf"},
    DistributionRow{Distribution::extreme_v, "extreme_v",
                    "overflow on the way to the last number of the type"},
    DistributionRow{Distribution::tiny_values, "tiny_values", "subnormal numbers taken for 0"},
    DistributionRow{Distribution::nan_value, "nan_value",
                    "a NaN in V that reaches rows of tiles that do not see it"},
    DistributionRow{Distribution::serving, "serving",
                    "lengths, tables, chunks, sinks, slopes and masks that are ignored or misread: "
                    "a batch of short sequences for each feature"},
    DistributionRow{Distribution::shared_top, "shared_top",
                    "a base that follows a sum of weights: 128 keys in the middle share a top, 12 "
                    "to 15 nats above the keys that make up the output"},
    DistributionRow{Distribution::huge_heads, "huge_heads",
                    "large scores that are seen, or done again, in another tile than theirs: more "
                    "tiles than a GPU has multiprocessors, some with huge scores at one end"},
};

constexpr std::array kLayouts{
    LayoutRow{LayoutKind::bhsd, "bhsd", "dense [B, H, S, D]"},
    LayoutRow{LayoutKind::bshd, "bshd", "dense [B, S, H, D]"},
    LayoutRow{LayoutKind::packed, "packed", "slices of one [B, S, Hq + 2 Hkv, D] projection"},
    LayoutRow{LayoutKind::padded, "padded", "[B, H, S, D] with gaps after rows and heads"},
    LayoutRow{LayoutKind::broadcast, "broadcast", "KV heads share storage (stride 0)"},
    LayoutRow{LayoutKind::transposed_v, "transposed-v", "V of e4m3 as [B, H, D, S]"},
};

// ---- Shape text ---------------------------------------------------------------------------------

constexpr std::size_t kMaxItems = 4096;
constexpr std::int64_t kMaxExtent = std::numeric_limits<std::int32_t>::max();
// Elements of one tensor.
constexpr std::int64_t kMaxElements = std::int64_t{1} << 56;
// Sequences whose lengths are drawn one by one, when the shape is read already.
constexpr std::int64_t kMaxSequences = 65536;

// Printable and short, whatever the text holds.
std::string quoted(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  std::string out = "'";
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte >= 0x7f ? '?' : c;
  }
  return out + (text.size() > kLongest ? "...'" : "'");
}

std::string known_names() {
  std::string names;
  for (const auto& row : kShapes) names += (names.empty() ? "" : ", ") + std::string(row.name);
  names += "; suites ";
  for (std::size_t i = 0; i < kSuites.size(); ++i)
    names += (i ? ", " : "") + std::string(kSuites[i].name);
  return names;
}

Status bad_item(std::string_view item, const std::string& what) {
  return {
      StatusCode::invalid_argument,
      "shape " + quoted(item) + ": " + what +
          "; give BxHxSxD with Hq/Hkv, Sq/Skv and D/Dv where they differ (4x32/8x1/8192x128), or "
          "one of " +
          known_names()};
}

// One field, "n" or "n/m".
std::optional<std::pair<std::int64_t, std::int64_t>> parse_field(std::string_view text) {
  const auto number = [](std::string_view digits) -> std::optional<std::int64_t> {
    std::int64_t value = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), value, 10);
    if (digits.empty() || digits.front() == '-' || error != std::errc{} ||
        end != digits.data() + digits.size() || value > kMaxExtent)
      return std::nullopt;
    return value;
  };
  const auto slash = text.find('/');
  const auto first = number(text.substr(0, slash));
  const auto second = slash == std::string_view::npos ? first : number(text.substr(slash + 1));
  if (!first || !second) return std::nullopt;
  return std::pair{*first, *second};
}

bool has_mask_dimension(const ProblemDefaults& defaults, std::size_t dimension) {
  return defaults.mask_dimensions.find("bhqk"[dimension]) != std::string::npos;
}

// Of the array mask that is asked for, 1 where it is broadcast.
std::array<std::int64_t, 4> mask_extents(const Problem& p, const ProblemDefaults& defaults) {
  std::array<std::int64_t, 4> out{p.batch, p.heads_q, p.seq_q, p.seq_kv};
  for (std::size_t n = 0; n < out.size(); ++n)
    if (!has_mask_dimension(defaults, n)) out[n] = 1;
  return out;
}

// Everything but the layouts and the sizes of packed tensors and pools.
void set_features(Problem& p, const ProblemDefaults& defaults) {
  Sequences& s = p.sequences;
  s.packed_q = defaults.packed_q;
  s.packed_kv = defaults.packed_kv;
  s.used_q = defaults.used_q;
  s.used_kv = defaults.used_kv;
  s.kv_start = defaults.kv_start;
  s.kv_index = defaults.kv_index;
  p.pages.size = defaults.page;
  p.chunk = defaults.chunk;
  p.sinks = defaults.sinks;
  p.alibi = defaults.alibi;
  ArrayMask& mask = p.array_mask;
  mask.kind = defaults.mask_kind;
  if (mask.kind == MaskKind::none) return;
  if (defaults.narrow_mask) mask.dtype = p.dtype;
  const std::array<std::int64_t, 4> extent = mask_extents(p, defaults);
  std::int64_t stride = 1;
  for (std::size_t n = 4; n-- > 0;) {
    if (!has_mask_dimension(defaults, n)) continue;
    mask.stride[n] = stride;
    stride *= std::max<std::int64_t>(extent[n], 1);
  }
}

Result<Problem> parse_shape(std::string_view item, const ProblemDefaults& defaults) {
  std::array<std::string_view, 4> fields;
  std::size_t count = 0;
  for (std::string_view rest = item;;) {
    const auto x = rest.find('x');
    if (count < 4) fields[count] = rest.substr(0, x);
    ++count;
    if (x == std::string_view::npos) break;
    rest.remove_prefix(x + 1);
  }
  if (count != 4) {
    if (count == 1) return bad_item(item, "unknown name");
    return bad_item(item, "has " + std::to_string(count) + " fields, not 4");
  }
  static constexpr std::array<std::string_view, 4> kFieldNames{"B", "H", "S", "D"};
  std::array<std::pair<std::int64_t, std::int64_t>, 4> values;
  for (std::size_t i = 0; i < 4; ++i) {
    const auto value = parse_field(fields[i]);
    if (!value)
      return bad_item(item, "field " + std::string(kFieldNames[i]) + " is " + quoted(fields[i]) +
                                ", not a number from 0 to " + std::to_string(kMaxExtent));
    if (i == 0 && fields[i].find('/') != std::string_view::npos)
      return bad_item(item, "field " + std::string(kFieldNames[i]) + " takes one number, not " +
                                quoted(fields[i]));
    values[i] = *value;
  }
  const auto [batch, heads, seq, dim] = values;
  const std::int64_t widest = std::max(dim.first, dim.second);
  if (!tensor_fits({batch.first, heads.first, seq.first, widest}) ||
      !tensor_fits({batch.first, heads.second, seq.second, widest}))
    return bad_item(item, "has a tensor of more than 2^56 elements");
  Problem p = make_problem(batch.first, heads.first, heads.second, seq.first, seq.second, dim.first,
                           defaults.dtype);
  if (defaults.out_dtype) p.out_dtype = *defaults.out_dtype;
  p.scales = defaults.scales.value_or(defaults.dtype == DType::e4m3 ? ScaleKind::per_head
                                                                    : ScaleKind::none);
  if (defaults.scale) p.scale = *defaults.scale;
  p.softcap = defaults.softcap;
  p.mask = defaults.mask;
  p.lse = defaults.lse;
  p.accuracy = defaults.accuracy;
  if (dim.second != dim.first) p.head_dim_v = dim.second;
  const auto [b, h, q, k] = mask_extents(p, defaults);
  if (defaults.mask_kind != MaskKind::none && !tensor_fits({b, h, q, k}))
    return bad_item(item, "has an array mask of more than 2^56 elements");
  set_features(p, defaults);
  if (!is_dense(p)) {
    if (p.batch > kMaxSequences)
      return bad_item(item, "has " + std::to_string(p.batch) +
                                " sequences with lengths or pages, and " +
                                std::to_string(kMaxSequences) + " are possible");
    size_storage(p, defaults.lengths);
  }
  set_layout(p, defaults.layout);
  if (const Status status = check(p); !status)
    return Status(status.code(), "shape " + quoted(item) + ": " + status.message());
  return p;
}

// ---- Distributions ------------------------------------------------------------------------------

enum Tensor : std::uint64_t { kQ, kK, kV, kShared };

// A scale's multiple of the default one.
double relative_scale(const Problem& p) {
  return std::fabs(static_cast<double>(p.scale)) * std::sqrt(static_cast<double>(p.head_dim));
}
bool scale_places(const Problem& p) {
  const double relative = relative_scale(p);
  return relative >= 0.01 && relative <= 100.0;
}

bool asks_for_huge_scores(Distribution distribution) {
  return distribution == Distribution::huge_scores || distribution == Distribution::huge_heads;
}

// Makes the rows of one case. Values depend on shape and seed, not on dtype or layout.
class Generator {
 public:
  Generator(const Case& c, const Placement& placement)
      : p_(c.problem), placement_(placement), distribution_(c.distribution) {
    for (std::uint64_t tensor = 0; tensor < keys_.size(); ++tensor)
      keys_[tensor] = random_bits(random_bits(0x67726565u, c.seed),
                                  (static_cast<std::uint64_t>(c.distribution) << 8) + tensor);
    // A scale of 0 or out of all proportion would make placed values absurd: the default one's are taken.
    scale_ = scale_places(p_) ? static_cast<double>(p_.scale)
                              : 1.0 / std::sqrt(static_cast<double>(p_.head_dim));
    placed_ = places_scores(p_, distribution_);
    if (p_.seq_kv > 0) {
      step_ = static_cast<std::int64_t>(0.618 * static_cast<double>(p_.seq_kv)) + 1;
      while (std::gcd(step_, p_.seq_kv) != 1) ++step_;
    }
  }

  void query(std::int64_t b, std::int64_t h, std::int64_t i, double* out) const {
    const std::int64_t dim = p_.head_dim;
    const std::int64_t row = (b * p_.heads_q + h) * p_.seq_q + i;
    if (placed_ && place_query(b, h, i, out)) return;
    normal_row(keys_[kQ], row, dim, out);
    switch (distribution_) {
      case Distribution::serving:
        if (h % 2 == 1) return;
        [[fallthrough]];
      case Distribution::permutation: {
        const std::int64_t target = retrieved_key(b, h, i);
        if (target < 0) return;
        key_value(b, h / (p_.heads_q / p_.heads_kv), target, out);
        // The retrieved key's score is 24 at any D and scale: at D 64 that is q = 3 k.
        const double factor = 24.0 / (static_cast<double>(dim) * scale_);
        for (std::int64_t d = 0; d < dim; ++d) out[d] *= factor;
        return;
      }
      case Distribution::rising_max:
        for (std::int64_t d = 0; d < dim; ++d) out[d] = 0.5 * out[d] + 2.0 * sign(d);
        return;
      case Distribution::large_logits:
        multiply(out, 8.0);
        return;
      case Distribution::small_normal:
        multiply(out, 0.1);
        return;
      default:
        return;
    }
  }

  void key_value(std::int64_t b, std::int64_t h, std::int64_t j, double* out) const {
    const std::int64_t dim = p_.head_dim;
    if (placed_ && place_key(b, h, j, out)) return;
    normal_row(keys_[kK], (b * p_.heads_kv + h) * p_.seq_kv + j, dim, out);
    switch (distribution_) {
      case Distribution::outliers:
        for (std::int64_t d = 0; d < dim; ++d) out[d] += is_outlier(h, d) ? 8.0 * sign(d) : 0.5;
        return;
      case Distribution::rising_max: {
        // The score rises by 1 every 32 keys, and by at most 60 in all.
        const double slope = std::min(1.0 / 32.0, 60.0 / static_cast<double>(p_.seq_kv));
        const double target = slope * static_cast<double>(j);
        const double along = target / (scale_ * 2.0 * static_cast<double>(dim));
        for (std::int64_t d = 0; d < dim; ++d) out[d] = 0.5 * out[d] + along * sign(d);
        return;
      }
      case Distribution::large_logits:
        multiply(out, 4.0);
        return;
      case Distribution::small_normal:
        multiply(out, 0.1);
        return;
      default:
        return;
    }
  }

  void value(std::int64_t b, std::int64_t h, std::int64_t j, double* out) const {
    const std::int64_t dim = value_dim(p_);
    if (placed_ && place_value(b, h, j, out)) return;
    if (distribution_ == Distribution::constant_v) {
      for (std::int64_t d = 0; d < dim; ++d)
        out[d] = 0.25 * static_cast<double>(1 + (7 * d + 3 * h + 5 * b) % 13);
      return;
    }
    normal_row(keys_[kV], (b * p_.heads_kv + h) * p_.seq_kv + j, dim, out);
    if (distribution_ == Distribution::outliers)
      for (std::int64_t d = 0; d < dim; ++d)
        out[d] = (out[d] + 1.0) * (is_outlier(h, d) ? 16.0 : 1.0);
    if (distribution_ == Distribution::small_normal)
      for (std::int64_t d = 0; d < dim; ++d) out[d] *= 0.1;
  }

 private:
  void multiply(double* out, double factor) const {
    for (std::int64_t d = 0; d < p_.head_dim; ++d) out[d] *= factor;
  }
  double sign(std::int64_t d) const {
    return random_bits(keys_[kShared], static_cast<std::uint64_t>(d)) & 1 ? 1.0 : -1.0;
  }
  // About one channel in 32, at least one, others in each head.
  bool is_outlier(std::int64_t h, std::int64_t d) const {
    const auto dim = static_cast<std::uint64_t>(p_.head_dim);
    const std::uint64_t count = std::max<std::uint64_t>(1, dim / 32);
    for (std::uint64_t n = 0; n < count; ++n)
      if (random_bits(keys_[kShared], 1000 + static_cast<std::uint64_t>(h) * 64 + n) % dim ==
          static_cast<std::uint64_t>(d))
        return true;
    return false;
  }
  // Which key query i of head h retrieves: a permutation of what it sees, the last row of head 0
  // the last key. Under a mask three rows in four aim at its edges: at the outermost visible keys
  // and at those just beyond, which an honest kernel does not see.
  std::int64_t retrieved_key(std::int64_t b, std::int64_t h, std::int64_t i) const {
    const std::int64_t keys = placement_.sequence(b).keys;
    if (keys == 0) return -1;
    KeyRange range = placement_.visible(b, i);
    if (range.first >= range.last) range = {0, keys};
    switch ((i + h) & 3) {
      case 0:
        if (range.last < keys) return range.last - 1;
        break;
      case 1:
        if (range.last < keys) return range.last;
        break;
      case 2:
        if (range.first > 0) return range.first - 1;
        break;
      default:
        if (range.first > 0) return range.first;
        break;
    }
    const std::int64_t count = range.last - range.first;
    const std::int64_t turn = p_.seq_q - 1 - i + h * p_.seq_q;
    return range.last - 1 - (turn % count) * (step_ % count) % count;
  }

  // ---- The ends of the range --------------------------------------------------------------------
  // True where the row was placed; the others are normal.

  // Of huge_heads, KV heads counted over the batch: wherever tiles are dealt, some are beside others. In every
  // other two the first keys are huge, else the last, so that whoever walks one way learns late of it, whether
  // the tile is the first or the second of two.
  bool has_huge_scores(std::int64_t b, std::int64_t head_kv) const {
    return (b * p_.heads_kv + head_kv) % 3 == 1;
  }
  static constexpr std::int64_t kHugeKeys = 16;
  std::int64_t first_huge_key(std::int64_t b, std::int64_t head_kv) const {
    const bool first = (b * p_.heads_kv + head_kv) / 6 % 2 == 0;
    return first ? 0 : std::max<std::int64_t>(p_.seq_kv - kHugeKeys, 0);
  }

  // The key that stands out in channel c > 0: in the first tile, on both sides of a tile's edge in
  // the middle, and the last one, over and over.
  std::int64_t special_key(std::int64_t c) const {
    const std::int64_t edge = p_.seq_kv / 128 * 64, around = (c - 1) / 4;
    std::int64_t key = 0;
    switch ((c - 1) % 4) {
      case 0:
        key = 5 + around;
        break;
      case 1:
        key = edge - 1 - around;
        break;
      case 2:
        key = edge + around;
        break;
      default:
        // The last one that every row sees.
        key = p_.seq_kv - (p_.mask.is_none() ? 1 : p_.seq_q) - around;
        break;
    }
    return std::clamp<std::int64_t>(key, 0, p_.seq_kv - 1);
  }
  std::int64_t channel_of(std::int64_t i) const {
    return 1 + i % std::min<std::int64_t>(p_.head_dim - 1, 16);
  }
  // The channel in which key j stands out, or 0.
  std::int64_t special_channel(std::int64_t j) const {
    for (std::int64_t c = 1; c < p_.head_dim && c <= 16; ++c)
      if (special_key(c) == j) return c;
    return 0;
  }
  double uniform(Tensor tensor, std::int64_t counter) const {
    return static_cast<double>(random_bits(keys_[tensor], static_cast<std::uint64_t>(counter)) >>
                               11) *
           0x1p-53;
  }
  std::int64_t row_of(std::int64_t b, std::int64_t h, std::int64_t j) const {
    return (b * p_.heads_kv + h) * p_.seq_kv + j;
  }
  // Whether K's sign is positive: what huge scores are made of.
  bool positive(std::int64_t b, std::int64_t h, std::int64_t j, std::int64_t d) const {
    return random_bits(keys_[kK], static_cast<std::uint64_t>(row_of(b, h, j) * p_.head_dim + d)) &
           1;
  }
  // Of |Q|, |K| and the score: |q|, |k| and |q k D scale| are these powers of 2, Q's times kHuge,
  // so that scores stay finite in fp32 in units of log 2 too, which most kernels compute in.
  static constexpr double kHuge = 1.25;
  struct Magnitude {
    int query = 0, key = 0;
  };
  Magnitude huge_magnitude(std::int64_t i) const {
    const int dim = std::bit_width(static_cast<std::uint64_t>(p_.head_dim) - 1);
    int scale = 0;
    if (std::frexp(static_cast<double>(p_.scale), &scale) == 0.5) --scale;
    const bool narrow = p_.dtype == DType::f16 || p_.dtype == DType::e4m3;
    const int widest = narrow ? 15 : 120;
    const int together = 127 - dim - std::max(0, scale);
    const int key = std::clamp(together / 2, -10, widest);
    const int most = std::min(widest, together - key);
    const int least = std::max(narrow ? most - 13 : -100, 7 - dim - scale - key);
    const auto row = static_cast<int>(i % 16);
    return {most - std::max(0, most - least) * row / 15, key};
  }
  std::int64_t visible_target(std::int64_t h, std::int64_t i) const {
    KeyRange range = visible_keys(p_, i);
    if (range.first >= range.last) range = {0, p_.seq_kv};
    const std::int64_t count = range.last - range.first;
    return range.first + (i * step_ + h) % count;
  }
  int offset_slope() const {
    return static_cast<int>(std::min<std::int64_t>(8, std::max<std::int64_t>(1, 4096 / p_.seq_kv)));
  }

  bool place_query(std::int64_t b, std::int64_t h, std::int64_t i, double* out) const {
    const std::int64_t dim = p_.head_dim, head_kv = h / (p_.heads_q / p_.heads_kv);
    if (p_.seq_kv == 0) return false;
    std::fill(out, out + dim, 0.0);
    switch (distribution_) {
      case Distribution::faint_tail:
        // 16 down to 9 nats; 0.5 of noise. The first tile's keys come before and after it.
        out[0] = 0.5 / scale_;
        out[channel_of(i)] =
            (16.0 - 2.0 * static_cast<double>(i / 4 % 4) - 0.3 * static_cast<double>(i % 4)) /
            (4.0 * scale_);
        return true;
      case Distribution::recent_keys:
        normal_row(keys_[kQ], i, dim, out);
        multiply(out, 1.0 / (scale_ * std::sqrt(static_cast<double>(dim))));
        out[0] = (8.0 + static_cast<double>(i % 8)) / (4.0 * scale_);
        return true;
      case Distribution::shared_top:
        out[0] = (12.0 + 0.2 * static_cast<double>(i % 16)) / (4.0 * scale_);
        out[1] = 0.5 / scale_;
        return true;
      case Distribution::one_key:
        out[0] = 1.0 / scale_;
        out[channel_of(i)] = 15.0 / scale_;
        return true;
      case Distribution::far_offsets: {
        static constexpr std::array<double, 8> kOffsets{0, -3e4, 300, -300, 3e4, -2e4, 100, -100};
        out[0] = kOffsets[static_cast<std::size_t>(i % 8)] / (16.0 * scale_);
        out[1] = (i / 8 % 2 ? -1.0 : 1.0) * offset_slope() / scale_;
        return true;
      }
      case Distribution::huge_heads:
        if (!has_huge_scores(b, head_kv)) return false;
        [[fallthrough]];
      case Distribution::huge_scores: {
        const std::int64_t target =
            distribution_ == Distribution::huge_heads
                ? std::min(first_huge_key(b, head_kv) + i % kHugeKeys, p_.seq_kv - 1)
                : visible_target(h, i);
        const double size = std::copysign(std::ldexp(kHuge, huge_magnitude(i).query), p_.scale);
        for (std::int64_t d = 0; d < dim; ++d)
          out[d] = positive(b, head_kv, target, d) ? size : -size;
        return true;
      }
      case Distribution::long_rows:
        // Noise of a period of 8 keys in even rows; one key far behind 65,536 in odd ones.
        out[0] = 1.0 / scale_;
        if (i % 2) out[1 + i / 2 % (dim - 1)] = 3.0 / scale_;
        return true;
      case Distribution::dead_rows:
        normal_row(keys_[kQ], (b * p_.heads_q + h) * p_.seq_q + i, dim, out);
        out[0] = std::copysign(1.0, p_.scale);
        return p_.dtype != DType::e4m3;
      case Distribution::extreme_v:
        if (i % 2) return false;
        // A weight of 0.25013, which fp16 rounds up by almost half a unit, in two terms.
        out[0] = numeric::round_to(p_.dtype, -kRaised / scale_);
        out[1] = -kRaised / scale_ - out[0];
        return true;
      case Distribution::tiny_values:
        normal_row(keys_[kQ], (b * p_.heads_q + h) * p_.seq_q + i, dim, out);
        // Not beyond fp16's last number.
        multiply(out, 0.1 / (scale_ * std::sqrt(static_cast<double>(dim)) * kTiny));
        out[0] = 8.0 / (scale_ * 256.0 * kTiny);
        return true;
      default:
        return false;
    }
  }

  bool place_key(std::int64_t b, std::int64_t h, std::int64_t j, double* out) const {
    const std::int64_t dim = p_.head_dim;
    std::fill(out, out + dim, 0.0);
    switch (distribution_) {
      case Distribution::faint_tail:
      case Distribution::one_key: {
        const std::int64_t c = special_channel(j);
        if (c > 0)
          out[c] = 4.0;
        else
          out[0] = 2.0 * uniform(kK, row_of(b, h, j)) - 1.0;
        return true;
      }
      case Distribution::recent_keys:
        normal_row(keys_[kK], row_of(b, h, j), dim, out);
        out[0] = j >= p_.seq_kv - 64 ? 4.0 : 0.0;
        return true;
      case Distribution::shared_top:
        if (is_top(j))
          out[0] = 4.0;
        else
          out[1] = 2.0 * uniform(kK, row_of(b, h, j)) - 1.0;
        return true;
      case Distribution::far_offsets:
        out[0] = 16.0;
        out[1] = static_cast<double>(j);
        return true;
      case Distribution::huge_heads:
        if (!has_huge_scores(b, h)) return false;
        if (const std::int64_t first = first_huge_key(b, h); j < first || j >= first + kHugeKeys)
          return true;  // zeros: scores of 0
        [[fallthrough]];
      case Distribution::huge_scores: {
        const double size = std::ldexp(1.0, huge_magnitude(0).key);
        for (std::int64_t d = 0; d < dim; ++d) out[d] = positive(b, h, j, d) ? size : -size;
        return true;
      }
      case Distribution::long_rows:
        out[0] = 0.25 * static_cast<double>(j * 5 % 8) - 2.0;
        if (const std::int64_t c = far_channel(j); c > 0) out[c] = 4.0;
        return true;
      case Distribution::dead_rows:
        normal_row(keys_[kK], row_of(b, h, j), dim, out);
        out[0] = (b * p_.heads_kv + h) % 2 == 0 || j < p_.seq_kv / 2 ? -HUGE_VAL : 0.0;
        return p_.dtype != DType::e4m3;
      case Distribution::extreme_v:
        normal_row(keys_[kK], row_of(b, h, j), dim, out);
        out[0] = out[1] = j == p_.seq_kv / 2 ? 0.0 : 1.0;
        return true;
      case Distribution::tiny_values:
        normal_row(keys_[kK], row_of(b, h, j), dim, out);
        multiply(out, kTiny);
        // The first key's V is large, so that a scale makes the others subnormal: its score is low.
        out[0] = j == 0 ? -256.0 * kTiny : 0.0;
        if (j > 0 && j % 41 == 40) out[0] = 256.0 * kTiny;
        return true;
      default:
        return false;
    }
  }

  bool place_value(std::int64_t b, std::int64_t h, std::int64_t j, double* out) const {
    const std::int64_t dim = value_dim(p_);
    switch (distribution_) {
      case Distribution::faint_tail:
        // The tail of 4,097 keys with V of 8 weighs as one of 32,776 with V of 1.
        for (std::int64_t d = 0; d < dim; ++d)
          out[d] = special_channel(j) > 0 ? (d % 2 ? -0.5 : 0.5)
                                          : 7.0 + 0.5 * static_cast<double>((d + j / 64) % 5);
        return true;
      case Distribution::recent_keys:
        normal_row(keys_[kV], row_of(b, h, j), dim, out);
        if (j < p_.seq_kv - 64)
          for (std::int64_t d = 0; d < dim; ++d) out[d] += 8.0;
        return true;
      case Distribution::shared_top:
        // The top's V is 0: the output is what the others weigh, 1e-5 of 1e2.
        for (std::int64_t d = 0; d < dim; ++d)
          out[d] = is_top(j) ? 0.0 : 256.0 + 16.0 * static_cast<double>((d + j / 64) % 5);
        return true;
      case Distribution::long_rows:
        for (std::int64_t d = 0; d < dim; ++d)
          out[d] = 0.75 + 0.03125 * static_cast<double>((7 * d + (far_channel(j) ? 3 : 0)) % 17);
        return true;
      case Distribution::extreme_v: {
        const double largest = largest_value();
        for (std::int64_t d = 0; d < dim; ++d) {
          const double sign = d % 2 ? -1.0 : 1.0;
          const bool mixed = d % 4 == 2 && positive(b, h, j, d);
          out[d] = mixed ? -sign * largest : sign * largest;
        }
        return true;
      }
      case Distribution::tiny_values:
        normal_row(keys_[kV], row_of(b, h, j), dim, out);
        for (std::int64_t d = 0; d < dim; ++d) out[d] *= j == 0 ? kTiny * 8192.0 : kTiny;
        return true;
      case Distribution::nan_value:
        if (j + 8 != p_.seq_kv) return false;
        std::fill(out, out + dim, std::numeric_limits<double>::quiet_NaN());
        return true;
      default:
        return false;
    }
  }

  // A whole block of 128 keys, so that a thread of a tensor core's quad holds 32 of them: a base of
  // their sum is five octaves too high for the 1,665 keys behind.
  static bool is_top(std::int64_t j) { return j >= 256 && j < 384; }
  // Keys behind 65,536 that rows of long_rows look up.
  std::int64_t far_channel(std::int64_t j) const {
    for (std::int64_t c = 1; c < std::min<std::int64_t>(p_.head_dim, 5); ++c)
      if (j == p_.seq_kv - 8000 * c) return c;
    return 0;
  }
  // What V may be so that nothing overflows in fp32 but the sum of its products with weights
  // above 1.
  double largest_value() const {
    if (p_.dtype == DType::f16) return 65504.0;
    if (p_.dtype == DType::e4m3 || p_.out_dtype == DType::f16) return 32768.0;
    return std::ldexp(
        1.875,
        126 - std::bit_width(static_cast<std::uint64_t>(std::max<std::int64_t>(p_.seq_kv, 1))));
  }

  static constexpr double kRaised = 1.3857745;  // -ln 0.25013
  static constexpr double kTiny = 0x1p-16;      // fp16's smallest normal number is 2^-14

  const Problem& p_;
  const Placement& placement_;
  Distribution distribution_;
  std::array<std::uint64_t, 4> keys_{};
  double scale_ = 0;
  bool placed_ = false;
  std::int64_t step_ = 1;
};

// Decodes to NaN in fp32, fp16, bf16 and e4m3, wherever an element begins.
constexpr std::array<unsigned char, 2> kGapBytes{0xff, 0x7f};

void fill_gap(std::byte* bytes, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) bytes[i] = std::byte{kGapBytes[i & 1]};
}

struct Extents {
  std::int64_t batch, heads, seq, dim;
};

// One tensor of a dense problem.
Extents extents_of(const Problem& p, OperandId id) {
  const auto shape = operand_of(p, id).shape;
  return {shape[0], shape[1], shape[2], shape[3]};
}

// Which factor a row has.
std::int64_t scale_group(ScaleKind kind, std::int64_t seq, std::int64_t head, std::int64_t row) {
  if (kind == ScaleKind::per_block) return head * ceil_div(seq, kScaleBlock) + row / kScaleBlock;
  return kind == ScaleKind::per_head ? head : 0;
}
std::int64_t scale_groups(ScaleKind kind, std::int64_t seq, std::int64_t heads) {
  if (kind == ScaleKind::per_block) return heads * ceil_div(seq, kScaleBlock);
  return kind == ScaleKind::per_head ? heads : 1;
}

/// Rows of all heads in parts of kScaleBlock rows, which share a scale factor whatever its kind: body(head, first, last), one
/// after the other where they write to the same slots.
template <class Body>
void for_parts(std::int64_t heads, std::int64_t seq, const Body& body, bool share_slots = false) {
  const std::int64_t parts = ceil_div(seq, std::int64_t{kScaleBlock});
  const auto part = [&](std::int64_t n) {
    const std::int64_t first = n % parts * kScaleBlock;
    body(n / parts, first, std::min<std::int64_t>(first + kScaleBlock, seq));
  };
  if (share_slots)
    for (std::int64_t n = 0; n < heads * parts; ++n) part(n);
  else
    parallel_for(heads * parts, part);
}
bool shares_slots(const Layout& layout) {
  return layout.stride[0] == 0 || layout.stride[1] == 0 || layout.stride[2] == 0;
}

// Writes dense values into a strided buffer. Slots that several (b, h) share keep the last one's.
std::vector<std::byte> place(const std::vector<float>& values, Extents n, DType dtype,
                             const Layout& layout, ScaleKind scales,
                             const std::vector<float>& scale) {
  std::vector<std::byte> bytes(extent_bytes(layout, n.batch, n.heads, n.seq, n.dim, dtype));
  fill_gap(bytes.data(), bytes.size());
  const std::int64_t heads = n.batch * n.heads;
  const auto one_part = [&](std::int64_t head, std::int64_t first, std::int64_t last) {
    std::vector<double> row(static_cast<std::size_t>(n.dim));
    for (std::int64_t s = first; s < last; ++s) {
      const double divisor =
          scales == ScaleKind::none
              ? 1.0
              : static_cast<double>(
                    scale[static_cast<std::size_t>(scale_group(scales, n.seq, head, s))]);
      const std::int64_t to = (head / n.heads) * layout.stride[0] +
                              (head % n.heads) * layout.stride[1] + s * layout.stride[2];
      const float* from = values.data() + (head * n.seq + s) * n.dim;
      // Long rows repeat themselves, and a copy is ten times cheaper than a conversion.
      const auto row_bytes = static_cast<std::size_t>(n.dim);
      bool copied = false;
      for (const std::int64_t back : {std::int64_t{1}, std::int64_t{8}}) {
        if (s - first < back || layout.stride[3] != 1 ||
            std::memcmp(from, from - back * n.dim, row_bytes * sizeof(float)) != 0)
          continue;
        std::memmove(
            bytes.data() + static_cast<std::size_t>(to) * size_of(dtype),
            bytes.data() + static_cast<std::size_t>(to - back * layout.stride[2]) * size_of(dtype),
            row_bytes * size_of(dtype));
        copied = true;
        break;
      }
      if (copied) continue;
      for (std::int64_t d = 0; d < n.dim; ++d)
        row[static_cast<std::size_t>(d)] = static_cast<double>(from[d]) / divisor;
      numeric::store_row(dtype, bytes.data(), to, layout.stride[3], row.data(), n.dim);
    }
  };
  for_parts(heads, n.seq, one_part, shares_slots(layout));
  return bytes;
}

// Descale factors that put the largest magnitude on e4m3's largest number; of blocks on that, its half or
// its quarter, so that neighbours never share one.
std::vector<float> scales_for(const std::vector<double>& largest, ScaleKind kind) {
  std::vector<float> scales;
  scales.reserve(largest.size());
  for (const double most : largest) {
    const int octaves = kind == ScaleKind::per_block ? static_cast<int>(scales.size() % 3) : 0;
    const auto scale = static_cast<float>(std::ldexp(most / 448.0, octaves));
    scales.push_back(scale >= std::numeric_limits<float>::min() ? scale : 1.0f);
  }
  return scales;
}
/// The factors of all rows: largest(head, first, last) is the largest finite magnitude of a part's.
template <class Largest>
std::vector<float> scales_of_parts(ScaleKind kind, std::int64_t heads, std::int64_t seq,
                                   const Largest& largest) {
  const std::int64_t parts = ceil_div(seq, std::int64_t{kScaleBlock});
  std::vector<double> of_part(static_cast<std::size_t>(heads * parts));
  for_parts(heads, seq, [&](std::int64_t head, std::int64_t first, std::int64_t last) {
    of_part[static_cast<std::size_t>(head * parts + first / kScaleBlock)] =
        largest(head, first, last);
  });
  std::vector<double> all(static_cast<std::size_t>(scale_groups(kind, seq, heads)));
  for (std::int64_t n = 0; n < heads * parts; ++n) {
    double& most =
        all[static_cast<std::size_t>(scale_group(kind, seq, n / parts, n % parts * kScaleBlock))];
    most = std::max(most, of_part[static_cast<std::size_t>(n)]);
  }
  return scales_for(all, kind);
}
std::vector<float> choose_scales(const std::vector<float>& values, Extents n, ScaleKind kind) {
  if (kind == ScaleKind::none) return {};
  return scales_of_parts(kind, n.batch * n.heads, n.seq, [&](auto head, auto first, auto last) {
    double most = 0;
    const float* const from = values.data() + head * n.seq * n.dim;
    for (std::int64_t at = first * n.dim; at < last * n.dim; ++at)
      if (std::isfinite(from[at])) most = std::max(most, std::fabs(static_cast<double>(from[at])));
    return most;
  });
}

// Keys of a sequence that some query of it sees, by index.
std::vector<char> seen_keys(const Placement& placement, std::int64_t b) {
  const Sequence& own = placement.sequence(b);
  std::vector<std::int64_t> begins(static_cast<std::size_t>(own.keys) + 1);
  for (std::int64_t i = 0; i < own.rows; ++i) {
    const KeyRange range = placement.visible(b, i);
    if (range.first >= range.last) continue;
    ++begins[static_cast<std::size_t>(range.first)];
    --begins[static_cast<std::size_t>(range.last)];
  }
  std::vector<char> seen(static_cast<std::size_t>(own.keys));
  std::int64_t open = 0;
  for (std::size_t j = 0; j < seen.size(); ++j) {
    open += begins[j];
    seen[j] = open > 0;
  }
  return seen;
}

// K and V of dense problems that hide keys.
void poison_keys(const Problem& p, const std::vector<char>& seen, const Layout& layout,
                 std::int64_t dim, std::vector<std::byte>& bytes) {
  const std::size_t element = size_of(p.dtype);
  for (std::int64_t b = 0; b < p.batch; ++b)
    for (std::int64_t h = 0; h < p.heads_kv; ++h)
      for (std::int64_t j = 0; j < p.seq_kv; ++j) {
        if (seen[static_cast<std::size_t>(j)]) continue;
        const std::int64_t at = b * layout.stride[0] + h * layout.stride[1] + j * layout.stride[2];
        if (layout.stride[3] == 1) {
          fill_gap(bytes.data() + static_cast<std::size_t>(at) * element,
                   static_cast<std::size_t>(dim) * element);
        } else {  // e4m3
          for (std::int64_t d = 0; d < dim; ++d)
            bytes[static_cast<std::size_t>(at + d * layout.stride[3])] = std::byte{kGapBytes[1]};
        }
      }
}

// Where sequences have lengths and places of their own, rows go straight to their place: dense
// copies of a batch of mixed lengths would be many times as large. Slots that no row is written to
// hold NaN.
struct RowSource {
  std::int64_t heads, dim;
  Layout layout;
  std::function<std::int64_t(std::int64_t b)> count;
  std::function<bool(std::int64_t b, std::int64_t s)> exists;
  std::function<std::int64_t(std::int64_t b, std::int64_t h, std::int64_t s)> at;
  std::function<void(std::int64_t b, std::int64_t h, std::int64_t s, double* out)> make;
};

std::vector<std::byte> place_rows(const Problem& p, const Operand& operand, const RowSource& rows,
                                  std::vector<float>& scales) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(operand.bytes));
  fill_gap(bytes.data(), bytes.size());
  const std::int64_t heads = p.batch * rows.heads;
  const std::int64_t seq = operand.id == OperandId::q ? p.seq_q : p.seq_kv;  // the longest
  const auto each = [&](std::int64_t head, std::int64_t first, std::int64_t last,
                        const auto& visit) {
    const std::int64_t b = head / rows.heads, h = head % rows.heads;
    std::vector<double> row(static_cast<std::size_t>(rows.dim) + 1);
    const std::int64_t end = std::min(last, rows.count(b));
    for (std::int64_t s = first; s < end; ++s) {
      if (!rows.exists(b, s)) continue;
      rows.make(b, h, s, row.data());
      visit(rows.at(b, h, s), row.data(), s);
    }
  };
  if (p.scales != ScaleKind::none) {
    scales = scales_of_parts(p.scales, heads, seq, [&](auto head, auto first, auto last) {
      double most = 0;
      each(head, first, last, [&](std::int64_t, const double* row, std::int64_t) {
        for (std::int64_t d = 0; d < rows.dim; ++d)
          if (std::isfinite(row[d])) most = std::max(most, std::fabs(row[d]));
      });
      return most;
    });
  }
  const auto one_part = [&](std::int64_t head, std::int64_t first, std::int64_t last) {
    std::vector<double> stored(static_cast<std::size_t>(rows.dim));
    each(head, first, last, [&](std::int64_t at, const double* row, std::int64_t s) {
      const auto group = static_cast<std::size_t>(scale_group(p.scales, seq, head, s));
      const double divisor = scales.empty() ? 1.0 : static_cast<double>(scales[group]);
      for (std::int64_t d = 0; d < rows.dim; ++d)
        stored[static_cast<std::size_t>(d)] =
            static_cast<double>(static_cast<float>(row[d])) / divisor;
      numeric::store_row(p.dtype, bytes.data(), at, rows.layout.stride[3], stored.data(), rows.dim);
    });
  };
  for_parts(heads, seq, one_part, shares_slots(rows.layout));
  return bytes;
}

}  // namespace

std::span<const ShapeRow> shape_table() { return kShapes; }
std::span<const SuiteRow> suite_table() { return kSuites; }
std::span<const DistributionRow> distribution_table() { return kDistributions; }
std::span<const LayoutRow> layout_table() { return kLayouts; }

std::string_view name_of(Distribution distribution) {
  if (distribution == Distribution::file) return "file";
  for (const auto& row : kDistributions)
    if (row.id == distribution) return row.name;
  return "unknown";
}

std::optional<Distribution> parse_distribution(std::string_view name) {
  for (const auto& row : kDistributions)
    if (row.name == name) return row.id;
  return std::nullopt;
}

std::optional<LayoutKind> parse_layout(std::string_view name) {
  for (const auto& row : kLayouts)
    if (row.name == name) return row.id;
  return std::nullopt;
}

bool tensor_fits(std::initializer_list<std::int64_t> extents) {
  std::int64_t product = 1;
  for (const std::int64_t extent : extents)
    if (__builtin_mul_overflow(product, std::max<std::int64_t>(extent, 1), &product) ||
        product > kMaxElements)
      return false;
  return true;
}

Operand operand_of(const Problem& problem, OperandId id) {
  return operands_of(problem)[static_cast<std::size_t>(id)];
}

void set_layout(Problem& p, LayoutKind kind) {
  const Order order =
      kind == LayoutKind::bshd || kind == LayoutKind::packed ? Order::bshd : Order::bhsd;
  const Extents q = extents_of(p, OperandId::q), k = extents_of(p, OperandId::k);
  const std::int64_t dim = p.head_dim, dim_v = value_dim(p);
  p.q = dense_layout(order, q.batch, q.heads, q.seq, dim);
  p.o = dense_layout(order, q.batch, q.heads, q.seq, dim_v);
  p.k = dense_layout(order, k.batch, k.heads, k.seq, dim);
  p.v = dense_layout(order, k.batch, k.heads, k.seq, dim_v);
  if (kind == LayoutKind::packed) {
    // With different lengths, or in pages, Q has a projection of its own.
    const bool together = q.batch == k.batch && q.seq == k.seq && !p.pages.used();
    const std::int64_t row = k.heads * (dim + dim_v) + (together ? q.heads * dim : 0);
    if (together) p.q.stride = {q.seq * row, dim, row, 1};
    p.k.stride = {k.seq * row, dim, row, 1};
    p.v.stride = {k.seq * row, dim_v, row, 1};
  }
  if (kind == LayoutKind::padded) {
    for (Layout* layout : {&p.q, &p.k, &p.v, &p.o}) {
      const Extents& n = layout == &p.q || layout == &p.o ? q : k;
      const std::int64_t row = (layout == &p.q || layout == &p.k ? dim : dim_v) + 8;
      const std::int64_t head = n.seq * row + 24;
      layout->stride = {n.heads * head + 8, head, row, 1};
    }
  }
  if (kind == LayoutKind::transposed_v) p.v = transposed_layout(k.batch, k.heads, k.seq, dim_v);
  if (kind == LayoutKind::broadcast) p.k.stride[1] = p.v.stride[1] = 0;
}

Result<std::vector<NamedProblem>> parse_shapes(std::string_view text,
                                               const ProblemDefaults& defaults) {
  std::vector<NamedProblem> problems;
  std::size_t items = 0;
  std::string_view rest = text;
  for (bool more = true; more;) {
    const auto comma = rest.find(',');
    const std::string_view item = trim(rest.substr(0, comma));
    more = comma != std::string_view::npos;
    if (more) rest.remove_prefix(comma + 1);
    ++items;
    if (item.empty())
      return Status(StatusCode::invalid_argument,
                    "shapes " + quoted(text) + ": item " + std::to_string(items) +
                        " is empty; give shapes such as 1x8x512x64 separated by single commas, or "
                        "of " +
                        known_names());
    if (items > kMaxItems)
      return Status(StatusCode::invalid_argument,
                    "shapes: more than " + std::to_string(kMaxItems) + " items; split the run");

    const auto suite = std::find_if(kSuites.begin(), kSuites.end(),
                                    [&](const SuiteRow& row) { return row.name == item; });
    if (suite != kSuites.end()) {
      auto inner = parse_shapes(suite->shapes, defaults);
      if (!inner) return inner.status();
      std::move(inner->begin(), inner->end(), std::back_inserter(problems));
      continue;
    }
    ProblemDefaults own = defaults;
    // What stands behind a name goes after what the name stands for.
    std::string_view shape = item.substr(0, item.find(' ')), attributes = item.substr(shape.size());
    const auto named = std::find_if(kShapes.begin(), kShapes.end(),
                                    [&](const ShapeRow& row) { return row.name == shape; });
    std::string_view of_name;
    if (named != kShapes.end()) {
      shape = named->shape.substr(0, named->shape.find(' '));
      of_name = named->shape.substr(shape.size());
    }
    for (std::string_view list : {of_name, attributes}) {
      std::vector<std::string_view> before;
      for (list = trim(list); !list.empty(); list = trim(list)) {
        const std::string_view attribute = list.substr(0, list.find(' '));
        list.remove_prefix(attribute.size());
        Status status = check_beside(attribute, before);
        if (status) status = apply_attribute(own, attribute);
        if (!status)
          return Status(status.code(), "shape " + quoted(item) + ": " + status.message());
        before.push_back(attribute);
      }
    }
    auto problem = parse_shape(shape, own);
    if (!problem) return problem.status();
    problems.push_back({std::string(item), std::move(*problem), own.lengths});
  }
  return problems;
}

std::string to_string(const Lengths& lengths) {
  switch (lengths.kind) {
    case Lengths::Kind::mixed:
      return "mixed";
    case Lengths::Kind::full:
      return "full";
    case Lengths::Kind::log_uniform:
      return "log-uniform:" + std::to_string(lengths.least);
  }
  return "unknown";
}

std::string to_string(const Case& c) {
  const std::string problem = to_string(c.problem);
  const bool named = problem.rfind(c.name, 0) != 0;
  return (named && !c.name.empty() ? c.name + " " : std::string()) + problem + ", " +
         std::string(name_of(c.distribution)) + ", seed " + std::to_string(c.seed);
}

// Each feature once at least, where it can be told from its absence: lengths off every tile, no
// sequence like its neighbour. Together about as many pairs as a problem of 1x4x512.
std::vector<Problem> serving_problems(const Problem& asked) {
  static constexpr std::string_view kAsked[] = {
      "4x4/2x37/70 packed causal",
      "4x4/2x45 packed window=20:0 sinks",
      "5x4/2x1/150 pages=16 used-kv",
      "3x4/2x19/133 pages=7 used-kv used-q causal sinks",
      "4x4/2x40/90 used-kv kv-start chunk=8 causal",
      "3x4/2x33/77 kv-index used-kv alibi causal",
      "2x4/2x21/67 mask=bool",
      "2x4/2x18/70 mask=float:hqk packed-q causal",
      "3x4/2x50 packed-kv used-q alibi=per-batch-head",
      "3x2x5/97 chunk=5 kv-start pages=32 used-kv window=40:0 sinks",
  };
  // Of e4m3: blocks of 128 rows with factors of their own, where masks begin and end within one.
  static constexpr std::string_view kAskedOfBytes[] = {
      "2x4/2x150/300 scales=per-block",
      "1x4/2x270/390 scales=per-block window=140:0",
      "3x4/2x9/290 scales=per-block used-kv causal",
  };
  ProblemDefaults defaults;
  defaults.dtype = asked.dtype;
  defaults.out_dtype = asked.out_dtype;
  defaults.scales = asked.scales;
  defaults.scale = asked.scale;
  defaults.softcap = asked.softcap;
  defaults.lse = asked.lse;
  defaults.accuracy = asked.accuracy;
  std::string dim("x");
  dim += std::to_string(asked.head_dim);
  if (value_dim(asked) != asked.head_dim) dim.append("/").append(std::to_string(asked.head_dim_v));
  std::vector<Problem> problems;
  const auto add = [&](std::string_view text) {
    const auto blank = text.find(' ');
    std::string shape(text.substr(0, blank));
    shape.append(dim).append(text.substr(blank));
    if (auto parsed = parse_shapes(shape, defaults)) problems.push_back(parsed->front().problem);
  };
  for (const std::string_view text : kAsked) add(text);
  if (asked.dtype == DType::e4m3)
    for (const std::string_view text : kAskedOfBytes) add(text);
  // V narrower than Q, which kernels are compiled for.
  if (value_dim(asked) == asked.head_dim && asked.head_dim > 8) {
    std::string shape("1x4/2x23/70");
    shape.append(dim).append("/").append(std::to_string(asked.head_dim / 16 * 8)).append(" causal");
    if (auto parsed = parse_shapes(shape, defaults)) problems.push_back(parsed->front().problem);
  }
  return problems;
}

bool has_own_problem(Distribution distribution) {
  return distribution >= Distribution::faint_tail && distribution != Distribution::file;
}

bool places_scores(const Problem& p, Distribution distribution) {
  if (!has_own_problem(distribution)) return true;
  const bool huge = asks_for_huge_scores(distribution);
  // Descale factors are no powers of 2: of huge terms that cancel something stays, which a
  // softcap would make one of its ends.
  if (huge && p.dtype == DType::e4m3 && p.softcap > 0) return false;
  return scale_places(p) || (huge && relative_scale(p) > 100.0);
}

std::vector<Problem> problems_of(Distribution distribution, const Problem& asked) {
  if (!has_own_problem(distribution)) return {asked};
  const bool causal = asked.mask.right == 0;
  const auto small = [&](std::int64_t heads, std::int64_t seq_q, std::int64_t seq_kv) {
    Problem p = make_problem(1, heads, heads, seq_q, seq_kv, asked.head_dim, asked.dtype);
    p.out_dtype = asked.out_dtype;
    p.scales = asked.scales;
    p.scale = asked.scale;
    p.softcap = asked.softcap;
    p.lse = asked.lse;
    p.accuracy = asked.accuracy;
    p.head_dim_v = asked.head_dim_v;
    // A window would hide what these are about.
    if (causal) p.mask = Mask::causal(Alignment::bottom_right);
    set_layout(p, LayoutKind::bhsd);
    return p;
  };
  // With a softcap below the distance there is no key that far up.
  const bool capped = asked.softcap > 0;
  switch (distribution) {
    case Distribution::faint_tail:
      if (capped && asked.softcap < 20) return {};
      return {small(1, 16, 4097)};
    case Distribution::recent_keys:
      if (capped && asked.softcap < 20) return {};
      return {small(1, 8, 2049)};
    case Distribution::shared_top:
      // e4m3 has no weights 12 nats below another.
      if (asked.dtype == DType::e4m3 || (capped && asked.softcap < 20)) return {};
      return {small(1, 16, 2049)};
    case Distribution::one_key:
      if (capped && asked.softcap < 100) return {};
      return {small(1, 16, 1025)};
    case Distribution::far_offsets: {
      Problem p = small(1, 32, 200);
      p.mask = asked.mask;
      // Bounds that leave something to see and something to hide.
      if (p.mask.left >= 0) p.mask.left = std::min<std::int64_t>(p.mask.left, 40);
      if (p.mask.right > 0) p.mask.right = std::min<std::int64_t>(p.mask.right, 40);
      return {p};
    }
    case Distribution::huge_scores: {
      // Descale factors are no powers of 2: sums that cancel leave a remainder, which becomes the
      // cap.
      if (capped && asked.dtype == DType::e4m3) return {};
      const Problem by_inputs = small(1, 16, 257);
      Problem by_scale = by_inputs;
      by_scale.scale = std::copysign(
          std::ldexp(1.0f, 127 - std::bit_width(static_cast<std::uint64_t>(asked.head_dim) - 1)),
          asked.scale);
      return {by_inputs, by_scale};
    }
    case Distribution::huge_heads: {
      if (capped && asked.dtype == DType::e4m3) return {};
      // Two tiles for each of 132 multiprocessors, and keys enough that one ends long before another.
      Problem p = small(8, 1, 780);
      p.batch = 33;
      set_layout(p, LayoutKind::bhsd);
      return {p};
    }
    case Distribution::large_softcap: {
      if (!capped) return {};
      Problem p = small(1, 16, 257);
      p.softcap = 1e8f;
      return {p};
    }
    case Distribution::long_rows: {
      // Where the asked rows are short and few, this would cost more than everything else.
      const double pairs = static_cast<double>(visible_pairs(asked));
      if (capped || pairs < 0x1p20 || asked.seq_kv < 256) return {};
      return {small(1, 2, 98305)};
    }
    case Distribution::dead_rows:
      if (asked.dtype == DType::e4m3 || capped) return {};
      return {small(2, 16, 200)};
    case Distribution::extreme_v:
      return {small(1, 32, 200)};
    case Distribution::tiny_values:
      return {small(1, 16, 200)};
    case Distribution::nan_value:
      if (!causal) return {};
      return {small(1, 448, 448)};
    case Distribution::serving:
      return serving_problems(asked);
    default:
      return {asked};
  }
}

std::size_t extent_bytes(const Layout& layout, std::int64_t batch, std::int64_t heads,
                         std::int64_t seq, std::int64_t head_dim, DType dtype) {
  if (batch <= 0 || heads <= 0 || seq <= 0 || head_dim <= 0) return 0;
  const std::int64_t last = (batch - 1) * layout.stride[0] + (heads - 1) * layout.stride[1] +
                            (seq - 1) * layout.stride[2] + (head_dim - 1) * layout.stride[3];
  return static_cast<std::size_t>(last + 1) * size_of(dtype);
}

Inputs make_inputs(const Problem& p, std::vector<float> q, std::vector<float> k,
                   std::vector<float> v) {
  const Extents nq = extents_of(p, OperandId::q), nk = extents_of(p, OperandId::k);
  const Extents nv = extents_of(p, OperandId::v);
  Inputs inputs;
  inputs.q_scale = choose_scales(q, nq, p.scales);
  inputs.k_scale = choose_scales(k, nk, p.scales);
  inputs.v_scale = choose_scales(v, nv, p.scales);
  inputs.q = place(q, nq, p.dtype, p.q, p.scales, inputs.q_scale);
  inputs.k = place(k, nk, p.dtype, p.k, p.scales, inputs.k_scale);
  inputs.v = place(v, nv, p.dtype, p.v, p.scales, inputs.v_scale);
  if (p.dtype == DType::e4m3) {
    inputs.q_exact = std::move(q);
    inputs.k_exact = std::move(k);
    inputs.v_exact = std::move(v);
  }
  return inputs;
}

namespace {

// The first `period` entries of huge_heads, over and over. What mixes up such entries is seen by the other distributions.
Inputs repeat_batch(const Case& c, std::int64_t period) {
  Case part = c;
  part.problem.batch = period;
  Inputs inputs = generate(part);
  const auto repeat = [&](auto& items) {
    const auto one = static_cast<std::ptrdiff_t>(items.size());
    items.reserve(items.size() * static_cast<std::size_t>(c.problem.batch / period));
    for (std::int64_t b = period; b < c.problem.batch; b += period)
      items.insert(items.end(), items.begin(), items.begin() + one);
  };
  for (auto* bytes : {&inputs.q, &inputs.k, &inputs.v}) repeat(*bytes);
  for (auto* exact : {&inputs.q_exact, &inputs.k_exact, &inputs.v_exact}) repeat(*exact);
  if (c.problem.scales != ScaleKind::tensor)
    for (auto* scales : {&inputs.q_scale, &inputs.k_scale, &inputs.v_scale}) repeat(*scales);
  return inputs;
}

}  // namespace

Inputs generate(const Case& c) {
  const Problem& p = c.problem;
  if (c.distribution == Distribution::huge_heads) {
    // Entries after which huge heads (every 3) and their ends (every 12) stand as at the beginning.
    const std::int64_t period = std::lcm<std::int64_t>(12, p.heads_kv) / p.heads_kv;
    if (p.batch > period && p.batch % period == 0) return repeat_batch(c, period);
  }
  Inputs inputs;
  inputs.arrays = draw_arrays(c);
  const Placement placement(p, index_arrays(inputs));
  const Generator generator(c, placement);
  const auto query = [&](auto b, auto h, auto s, double* out) { generator.query(b, h, s, out); };
  const auto key = [&](auto b, auto h, auto s, double* out) { generator.key_value(b, h, s, out); };
  const auto value = [&](auto b, auto h, auto s, double* out) { generator.value(b, h, s, out); };
  if (!is_dense(p)) {
    std::vector<std::vector<char>> seen;
    for (std::int64_t b = 0; b < p.batch; ++b) seen.push_back(seen_keys(placement, b));
    const auto rows = [&](std::int64_t b) { return placement.sequence(b).rows; };
    const auto keys = [&](std::int64_t b) { return placement.sequence(b).keys; };
    const auto every = [](std::int64_t, std::int64_t) { return true; };
    const auto visible = [&](std::int64_t b, std::int64_t j) {
      return !c.poison_unseen ||
             seen[static_cast<std::size_t>(b)][static_cast<std::size_t>(j)] != 0;
    };
    const auto at_q = [&](auto b, auto h, auto s) { return placement.q(b, h, s); };
    const auto at_k = [&](auto b, auto h, auto s) { return placement.k(b, h, s); };
    const auto at_v = [&](auto b, auto h, auto s) { return placement.v(b, h, s); };
    inputs.q = place_rows(p, operand_of(p, OperandId::q),
                          {p.heads_q, p.head_dim, p.q, rows, every, at_q, query}, inputs.q_scale);
    inputs.k = place_rows(p, operand_of(p, OperandId::k),
                          {p.heads_kv, p.head_dim, p.k, keys, visible, at_k, key}, inputs.k_scale);
    inputs.v =
        place_rows(p, operand_of(p, OperandId::v),
                   {p.heads_kv, value_dim(p), p.v, keys, visible, at_v, value}, inputs.v_scale);
    return inputs;
  }
  const auto fill = [&](OperandId id, auto&& row_of) {
    const Extents n = extents_of(p, id);
    std::vector<float> values(static_cast<std::size_t>(n.batch * n.heads * n.seq * n.dim));
    for_parts(n.batch * n.heads, n.seq, [&](auto head, auto first, auto last) {
      std::vector<double> row(static_cast<std::size_t>(n.dim));
      for (std::int64_t s = first; s < last; ++s) {
        row_of(head / n.heads, head % n.heads, s, row.data());
        float* to = values.data() + (head * n.seq + s) * n.dim;
        for (std::int64_t d = 0; d < n.dim; ++d)
          to[d] = static_cast<float>(row[static_cast<std::size_t>(d)]);
      }
    });
    return values;
  };
  auto q = fill(OperandId::q, query), k = fill(OperandId::k, key), v = fill(OperandId::v, value);
  Arrays arrays = std::move(inputs.arrays);
  inputs = make_inputs(p, std::move(q), std::move(k), std::move(v));
  inputs.arrays = std::move(arrays);
  if (c.poison_unseen && (!p.mask.is_none() || p.chunk > 0) && p.batch > 0) {
    const std::vector<char> seen = seen_keys(placement, 0);
    poison_keys(p, seen, p.k, p.head_dim, inputs.k);
    poison_keys(p, seen, p.v, value_dim(p), inputs.v);
  }
  return inputs;
}

std::string digest(const Inputs& inputs) {
  Sha256 hash;
  for (auto id = static_cast<std::size_t>(OperandId::q); id < kOperands; ++id) {
    const std::span<const std::byte> items = bytes_of(inputs, static_cast<OperandId>(id));
    // Of what is no tensor of Q, K and V only what a case has leaves a trace: digests of dense cases
    // are what they were before there was more.
    if (items.empty() && id > static_cast<std::size_t>(OperandId::v_scale)) continue;
    const std::uint64_t bytes = items.size();
    hash.update(&bytes, sizeof bytes);
    if (bytes > 0) hash.update(items.data(), bytes);
  }
  return hash.hex();
}

std::uint64_t host_bytes(const Problem& p) {
  if (!is_dense(p)) {
    // Each operand on the host, on a CPU device once more, and outputs as below; its rows in fp64.
    double bytes = 0;
    for (const Operand& operand : operands_of(p))
      bytes += static_cast<double>(operand.bytes) * (operand.role == Role::output ? 4.0 : 2.0);
    return static_cast<std::uint64_t>(
        bytes + 32.0 * static_cast<double>(p.batch * p.heads_q * p.seq_q * value_dim(p)));
  }
  const auto elements = [&](std::int64_t heads, std::int64_t seq, std::int64_t dim) {
    return static_cast<double>(p.batch) * static_cast<double>(heads) * static_cast<double>(seq) *
           static_cast<double>(dim);
  };
  const double q = elements(p.heads_q, p.seq_q, p.head_dim);
  const double o = elements(p.heads_q, p.seq_q, value_dim(p));
  const double kv = elements(p.heads_kv, p.seq_kv, p.head_dim + value_dim(p));
  const auto in = static_cast<double>(size_of(p.dtype));
  const auto out = static_cast<double>(size_of(p.out_dtype));
  // Values as fp32 and as bits, on the host and (a CPU device) once more; output four times over
  // (three launches compared, one on the device); oracle and emulator in fp64.
  const double mask = static_cast<double>(operand_of(p, OperandId::mask).bytes);
  const double bytes = (q + kv) * (4.0 + 2.0 * in) + o * (4.0 * out + 32.0) + 2.0 * mask;
  return bytes < 9e18 ? static_cast<std::uint64_t>(bytes)
                      : std::numeric_limits<std::uint64_t>::max();
}

}  // namespace greenfast::workbench
