// One table of planted kernels. All are the same tiled online-softmax kernel; a Recipe says what it
// does differently, and a hook what it does to memory before or after.
#include "workbench/subjects/mutants/mutants.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numbers>
#include <optional>
#include <string>
#include <vector>

#include <greenfast/arithmetic.hpp>
#include <greenfast/operands.hpp>

#include "workbench/base/numeric.hpp"
#include "workbench/base/parallel.hpp"
#include "workbench/cases/placement.hpp"
#include "workbench/cases/workload.hpp"
#include "workbench/reference/emulator.hpp"
#include "workbench/reference/oracle.hpp"
#include "workbench/reference/tile_gemm.hpp"
#include "workbench/subjects/mutants/needs.hpp"

namespace greenfast::workbench {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::int64_t kRows = 32;    // query rows of one tile
constexpr std::int64_t kStripe = 16;  // rows of one warp in the V2c kernels
constexpr std::int64_t kNone = -1;

struct Recipe {
  // Choices an honest kernel is free to make.
  enum class Weights { input_type, fp32, fp16 };
  Weights weights = Weights::input_type;  // what P is rounded to; e4m3 after a factor of 448, or
                                          // in its place fp16
  std::int64_t tile = 64;                 // keys of one tile, a multiple of 8
  bool two_pass = false;                  // fp64 throughout, rounded once
  float rescale_above = 0;                // natural log; the maximum may lag by this much
  bool sum_rounded = false;               // the normaliser sums P after rounding
  bool dequantise_to_fp16 = false;        // as stage-C stages e4m3 tiles
  bool backwards = false;                 // from the last key tile to the first
  std::int64_t split = 8192;              // keys after which partial results are merged; 0: never
  enum class Sums { tiles, threads, elements, truncated };
  Sums sums = Sums::tiles;  // by tile; by thread of a quad, O by tile; one by one; as tensor cores:
                            // 16 keys at a time, cut off instead of rounded

  // Faults.
  float score_factor = 1, value_factor = 1, sum_factor = 1, gain = 1, bias = 0;
  bool scale_on_output = false;
  bool ignore_softcap = false;
  bool softcap_before_scale = false;
  int right = 0, left = 0;  // added to the mask's bounds
  bool other_alignment = false;
  bool heads_modulo = false;
  bool first_batch_only = false;
  bool first_scale_only = false;
  bool assume_dense = false;
  std::int64_t drop_keys = 0;
  std::int64_t skip_tile = kNone, repeat_tile = kNone;
  bool pad_with_zero_scores = false;
  bool keep_stale_o = false, keep_stale_sum = false;
  bool no_maximum = false;
  bool uniform = false;
  bool swapped_leading_dimension = false;
  bool affine_zero_point = false;
  bool multiply_unseen = false;
  bool accumulate_fp16 = false;
  bool lse_in_log2 = false;
  bool divide_empty = false;
  bool skip_partial_stripe = false;
  bool skip_last_row = false;
  bool skip_ragged_rows = false;
  float start = 1;             // the largest weight
  bool base_from_sum = false;  // a risen maximum is a quarter tile's sum of weights
  bool round_product = false;
  bool exact_in_first_head = false;    // the product is not rounded there
  bool neighbour_block_scale = false;  // the factor of the block before
  bool first_block_scale = false;      // of the head's first block, for all
  bool cancelling_softcap = false;
  bool maximum_from_zero = false;
  bool masked_maximum = false;
  float hidden = -kInfinity;  // score of a hidden key
  bool block_maximum = false;
  float faint_below = kInfinity;
  bool stale_ring = false;
  bool flush_subnormals = false;
  bool round_lse = false;
  bool drop_lone_key = false;
  bool truncate_output = false;
  bool wrap_keys = false;
  bool round_query = false;
  bool overflowing_store = false;
  bool all_tiles = false;
  bool unguarded = false;  // -inf - -inf

  // Faults of serving: where keys are looked for, ...
  enum class Read {
    honest,
    next_page,    // entry n + 1 of the page table
    page_tail,    // all of the last page
    all_keys,     // used_kv ignored
    neighbour,    // cu_kv off by one
    no_start,     // kv_start ignored
    no_index,     // kv_index ignored
    tight_table,  // rows of the page table without their stride
  };
  Read read = Read::honest;
  // ... which of them a row sees, and what is added to their scores.
  std::int64_t chunk_shift = 0;
  bool chunk_from_zero = false;
  bool align_by_maxima = false;
  float slope_factor = 1;
  std::int64_t slope_head = 0;
  bool slope_from_row = false;  // the distance leaves out where row 0 stands
  bool mask_inverted = false;
  float mask_factor = 1;
  bool mask_before_softcap = false;
  enum class Sink { honest, forgotten, in_numerator, not_in_lse };
  Sink sink = Sink::honest;
  bool value_stride_of_key = false;
  bool values_as_rows = false;
  bool merge_twice = false;
  bool splits_of_first = false;
  bool skip_empty_sequence = false;
  bool write_unused_rows = false;
  bool lse_rows_first = false;
};

float smallest_normal(DType dtype) {
  return dtype == DType::f16 ? 0x1p-14f : dtype == DType::e4m3 ? 0x1p-6f : 0x1p-126f;
}
float flush(DType dtype, float x) { return std::fabs(x) < smallest_normal(dtype) ? 0.0f : x; }
// As a tensor core adds: the smaller term is cut off at the last bit of the larger one, and so is
// the sum.
float add_cut_off(float a, float b) {
  const double larger = std::max(std::fabs(a), std::fabs(b));
  if (larger == 0 || !std::isfinite(larger)) return a + b;
  const double unit = std::ldexp(1.0, std::ilogb(larger) - 23);
  const double sum = std::trunc(static_cast<double>(a) / unit) * unit +
                     std::trunc(static_cast<double>(b) / unit) * unit;
  const auto nearest = static_cast<float>(sum);
  return std::fabs(static_cast<double>(nearest)) > std::fabs(sum) ? std::nextafterf(nearest, 0.0f)
                                                                  : nearest;
}
double cut_off(DType dtype, double x) {
  const double nearest = numeric::round_to(dtype, x);
  if (!(std::fabs(nearest) > std::fabs(x))) return nearest;
  // One unit nearer to zero: half of the distance to anything below is lost at most once.
  const double below = numeric::round_to(dtype, x * (1 - 2 * numeric::unit_roundoff(dtype)));
  return std::fabs(below) > std::fabs(x) ? nearest : below;
}

// What the originals did: round((x + 1) 127.5) when encoding, (u - 128) / 127 when decoding.
void affine_round_trip(std::vector<float>& values) {
  float largest = 0;
  for (const float x : values)
    if (std::isfinite(x)) largest = std::max(largest, std::fabs(x));
  if (largest == 0) return;
  for (float& x : values)
    x = (std::nearbyint((x / largest + 1.0f) * 127.5f) - 128.0f) / 127.0f * largest;
}

// The arrays of a call as a kernel with a fault of Recipe::Read takes them.
class Reading {
 public:
  Reading(const Problem& p, const Tensors& t, Recipe::Read fault)
      : problem_(p), arrays_(index_arrays(t)) {
    Sequences& s = problem_.sequences;
    const std::int64_t in_row = p.pages.used() ? ceil_div(p.seq_kv, p.pages.size) : 0;
    const auto own = [&](const std::int32_t*& array, std::int64_t count) -> auto& {
      copy_.assign(array, array + count);
      array = copy_.data();
      return copy_;
    };
    switch (fault) {
      case Recipe::Read::honest:
        break;
      case Recipe::Read::next_page:
        if (auto& table = own(arrays_.page_table, (p.batch - 1) * p.pages.row_stride + in_row);
            table.size() > 1)
          std::copy(table.begin() + 1, table.end(), table.begin());
        break;
      case Recipe::Read::page_tail:
        for (std::int32_t& keys : own(arrays_.used_kv, p.batch))
          keys = static_cast<std::int32_t>(round_up<std::int64_t>(keys, p.pages.size));
        break;
      case Recipe::Read::all_keys:
        s.used_kv = false;
        break;
      case Recipe::Read::neighbour:
        if (auto& sums = own(arrays_.cu_kv, p.batch + 1); sums.size() > 2)
          std::copy(sums.begin() + 1, sums.end(), sums.begin());
        break;
      case Recipe::Read::no_start:
        s.kv_start = false;
        break;
      case Recipe::Read::no_index:
        s.kv_index = false;
        break;
      case Recipe::Read::tight_table:
        problem_.pages.row_stride = in_row;
        break;
    }
    placement_.emplace(problem_, arrays_);
  }
  Reading(const Reading&) = delete;
  Reading& operator=(const Reading&) = delete;
  const Placement& placement() const { return *placement_; }

 private:
  Problem problem_;
  IndexArrays arrays_;
  std::vector<std::int32_t> copy_;
  std::optional<Placement> placement_;
};

// One query head of one sequence.
struct Head {
  Problem p;     // the sequence alone: its rows and keys are the lengths
  Sequence own;  // as this kernel takes it
  std::int64_t b, h;
  const Placement& real;  // of the call
  const Tensors& tensors;
};

// One head of one tensor as dense floats, scales applied.
std::vector<float> read_head(const Problem& p, const Recipe& recipe, const void* data,
                             const float* scale, std::int64_t heads, std::int64_t seq,
                             std::int64_t longest, std::int64_t dim, std::int64_t b, std::int64_t h,
                             const auto& place, std::int64_t step = 1) {
  if (recipe.first_batch_only) b = 0;
  std::vector<float> out(static_cast<std::size_t>(seq * dim));
  for (std::int64_t s = 0; s < seq; ++s)
    numeric::load_row(p.dtype, data,
                      recipe.assume_dense ? ((b * heads + h) * seq + s) * dim : place(b, h, s), dim,
                      out.data() + s * dim, step);
  if (recipe.flush_subnormals)
    for (float& x : out) x = flush(p.dtype, x);
  if (p.scales != ScaleKind::none) {
    const bool one = p.scales == ScaleKind::tensor || recipe.first_scale_only;
    const std::int64_t head = one ? 0 : b * heads + h;
    // seq is the sequence's own, and factors are of the longest.
    const std::int64_t blocks =
        p.scales == ScaleKind::per_block ? ceil_div(longest, kScaleBlock) : 1;
    for (std::int64_t s = 0; s < seq; ++s) {
      std::int64_t block = blocks > 1 ? s / kScaleBlock : 0;
      if (recipe.neighbour_block_scale && block > 0) --block;
      if (recipe.first_block_scale) block = 0;
      for (std::int64_t d = 0; d < dim; ++d)
        out[static_cast<std::size_t>(s * dim + d)] *= scale[head * blocks + block];
    }
  }
  if (recipe.dequantise_to_fp16 && p.dtype == DType::e4m3)
    for (float& x : out)
      x = static_cast<float>(numeric::round_to(DType::f16, static_cast<double>(x)));
  if (recipe.affine_zero_point) affine_round_trip(out);
  return out;
}

// Rows [i0, i0 + count) of one head, with the state of the online softmax.
struct RowTile {
  std::int64_t i0 = 0, count = 0;
  std::vector<float> o;
  std::array<float, kRows> maximum{}, sum{};
};

// What was found in the keys since the last merge.
struct PlantedPartial {
  std::vector<float> o;
  std::array<float, kRows> maximum{};
  std::array<std::array<float, 4>, kRows> sum{};  // by thread of a quad; others use the first

  PlantedPartial(const RowTile& tile, const Recipe& recipe) : o(tile.o.size()) { clear(recipe); }
  void clear(const Recipe& recipe) {
    std::fill(o.begin(), o.end(), 0.0f);
    maximum.fill(recipe.maximum_from_zero ? 0.0f : -kInfinity);
    sum = {};
  }
};

Problem masked(const Problem& p, const Recipe& recipe) {
  Problem seen = p;
  if (recipe.other_alignment)
    seen.mask.alignment =
        p.mask.alignment == Alignment::top_left ? Alignment::bottom_right : Alignment::top_left;
  if (seen.mask.right >= 0) seen.mask.right += recipe.right;
  if (seen.mask.left >= 0) seen.mask.left += recipe.left;
  // A right bound of -1 would read as none; a top-left shift by one key means the same.
  return seen;
}

// What row i of a sequence sees, chunks apart from the rest, for they may be wrong alone.
KeyRange visible_in(const Head& head, const Problem& seen, const Recipe& recipe, std::int64_t i) {
  const Problem& whole = head.real.problem();
  if (recipe.align_by_maxima && whole.mask.alignment == Alignment::bottom_right)
    i += whole.seq_kv - whole.seq_q - (head.own.keys - head.own.rows);
  Problem band = seen;
  band.chunk = 0;
  KeyRange range = visible_keys(band, head.own, i);
  if (seen.chunk == 0) return range;
  Problem chunks = seen;
  chunks.mask = Mask::window(Mask::kUnbounded, Mask::kUnbounded, seen.mask.alignment);
  Sequence from = head.own;
  if (recipe.chunk_from_zero) from.start = 0;
  const KeyRange own = visible_keys(chunks, from, i + recipe.chunk_shift);
  range.first = std::max(range.first, own.first);
  range.last = std::min(range.last, own.last);
  return range;
}

KeyRange range_of(const Head& head, const Problem& seen, const Recipe& recipe, std::int64_t i) {
  const Problem& p = head.p;
  KeyRange range;
  if (recipe.right < 0 && p.mask.right == 0) {
    Problem unshifted = seen;
    unshifted.mask.right = 0;
    range = visible_in(head, unshifted, recipe, i);
    const std::int64_t face = i + shift_of(seen, head.own);
    range.last = std::min(range.last, std::clamp<std::int64_t>(face, 0, p.seq_kv));
  } else {
    range = visible_in(head, seen, recipe, i);
  }
  range.last = std::min(range.last, p.seq_kv - recipe.drop_keys);
  return range;
}

bool has_bias(const Problem& p) {
  return p.alibi != Alibi::none || p.array_mask.kind != MaskKind::none;
}

// What the array mask adds; -inf hides the key.
float mask_of(const Head& head, const Recipe& recipe, std::int64_t i, std::int64_t j) {
  const ArrayMask& mask = head.p.array_mask;
  if (mask.kind == MaskKind::none) return 0;
  const std::int64_t at = head.real.mask(head.b, head.h, i, j);
  if (mask.kind == MaskKind::boolean) {
    const bool shown = static_cast<const unsigned char*>(head.tensors.mask)[at] != 0;
    return shown != recipe.mask_inverted ? 0.0f : -kInfinity;
  }
  return static_cast<float>(numeric::load(mask.dtype, head.tensors.mask, at)) * recipe.mask_factor;
}

float alibi_of(const Head& head, const Recipe& recipe, std::int64_t i, std::int64_t j) {
  const Problem& whole = head.real.problem();
  if (head.p.alibi == Alibi::none) return 0;
  const std::int64_t h = (head.h + recipe.slope_head) % whole.heads_q;
  const bool each = head.p.alibi == Alibi::per_batch_head;
  const float slope = head.tensors.slopes[each ? head.b * whole.heads_q + h : h];
  const std::int64_t shift = recipe.slope_from_row ? 0 : shift_of(head.p, head.own);
  const auto distance = static_cast<float>(std::abs(i + shift - j));
  return -slope * recipe.slope_factor * distance;
}

// The scaled and capped score of a visible key, with all that is added to it.
float add_bias(const Head& head, const Recipe& recipe, std::int64_t i, std::int64_t j, float x) {
  const float mask = recipe.mask_before_softcap ? 0.0f : mask_of(head, recipe, i, j);
  return mask == -kInfinity ? mask : x + alibi_of(head, recipe, i, j) + mask;
}

float round_weight(const Problem& p, const Recipe& recipe, float weight) {
  if (recipe.flush_subnormals) {
    Recipe once = recipe;
    once.flush_subnormals = false;
    const float factor = p.dtype == DType::e4m3 ? 448.0f : 1.0f;
    return flush(p.dtype, round_weight(p, once, weight) * factor) / factor;
  }
  const auto x = static_cast<double>(weight);
  if (recipe.weights == Recipe::Weights::fp32) return weight;
  if (recipe.weights == Recipe::Weights::fp16 && p.dtype == DType::e4m3)
    return static_cast<float>(numeric::round_to(DType::f16, x));
  if (p.dtype == DType::e4m3)
    return static_cast<float>(numeric::round_to(DType::e4m3, x * 448.0) / 448.0);
  return static_cast<float>(numeric::round_to(p.dtype, x));
}

// Scores stay products of Q and K until weights are made, where the fault is in the factor.
bool keeps_products(const Problem& p, const Recipe& recipe) {
  return recipe.round_product && p.softcap == 0 && !has_bias(p);
}

// Dot products of one row against one tile become scores; returns the largest.
float score_row(const Head& head, const Recipe& recipe, const KeyRange& range, std::int64_t i,
                std::int64_t j0, float* s) {
  const Problem& p = head.p;
  const bool bias = has_bias(p);
  const bool bare = recipe.scale_on_output || recipe.round_query || keeps_products(p, recipe);
  const float scale = (bare ? 1.0f : p.scale) * recipe.score_factor;
  const float cap = recipe.ignore_softcap ? 0.0f : p.softcap;
  float largest = -kInfinity;
  for (std::int64_t j = 0; j < recipe.tile; ++j) {
    float x = s[j] * scale;
    const std::int64_t key = j0 + j;
    const bool seen = key >= range.first && key < range.last;
    if (bias && seen && recipe.mask_before_softcap) x += mask_of(head, recipe, i, key);
    if (cap > 0 && recipe.softcap_before_scale)
      x = scale * cap * std::tanh(s[j] / cap);
    else if (cap > 0 && recipe.cancelling_softcap)
      x = cap * (1.0f - 2.0f / (1.0f + std::exp(2.0f * x / cap)));
    else if (cap > 0)
      x = cap * std::tanh(x / cap);
    if (recipe.uniform) x = 0;
    const bool padding = recipe.pad_with_zero_scores && key >= p.seq_kv;
    if (bias && seen) x = add_bias(head, recipe, i, key, x);
    if (recipe.masked_maximum && key < p.seq_kv && !(x <= largest)) largest = x;
    s[j] = seen ? x : padding ? 0.0f : recipe.hidden;
    if (!(s[j] <= largest)) largest = s[j];
  }
  return largest;
}

// Scores of one row against one tile become weights; returns by how much O must be scaled.
float soften(const Problem& p, const Recipe& recipe, float largest, bool unguarded, float* s,
             float& maximum, std::array<float, 4>& sum) {
  if (recipe.no_maximum) {
    maximum = largest == -kInfinity && maximum == -kInfinity ? -kInfinity : 0.0f;
    largest = maximum;
  }
  if (largest < maximum - recipe.faint_below) {
    std::fill(s, s + recipe.tile, 0.0f);
    return 1;
  }
  const bool products = keeps_products(p, recipe);
  const float factor = p.scale * recipe.score_factor * std::numbers::log2e_v<float>;
  const auto weigh = [&](float x, float above) {
    return products ? std::exp2(std::fma(x, factor, -(above * factor))) : std::exp(x - above);
  };
  float alpha = 1;
  if (recipe.base_from_sum && maximum != -kInfinity && largest > maximum + recipe.rescale_above) {
    std::array<float, 4> shared{};
    for (std::int64_t j = 0; j < recipe.tile; ++j)
      shared[static_cast<std::size_t>(j / 2 % 4)] += weigh(s[j], largest);
    const float octaves = std::log2(*std::max_element(shared.begin(), shared.end()));
    largest += octaves / (products ? factor : std::numbers::log2e_v<float>);
  }
  if (!(largest <= maximum + recipe.rescale_above) || maximum == -kInfinity) {
    alpha = maximum == -kInfinity ? 0.0f : weigh(maximum, largest);
    maximum = largest;
  }
  if (maximum == -kInfinity && !unguarded) {
    std::fill(s, s + recipe.tile, 0.0f);
    return 1;
  }
  for (float& part : sum) part *= recipe.keep_stale_sum ? 1.0f : alpha;
  float added = 0;
  double sixteen = 0;
  for (std::int64_t j = 0; j < recipe.tile; ++j) {
    const float weight = weigh(s[j], maximum) * recipe.start;
    // With a lagging maximum weights exceed 1; e4m3 holds 448 of them only below it.
    s[j] = round_weight(p, recipe, weight);
    const float term = recipe.sum_rounded ? s[j] : weight;
    switch (recipe.sums) {
      case Recipe::Sums::tiles:
        added += term;
        break;
      case Recipe::Sums::threads:
        sum[static_cast<std::size_t>(j / 2 % 4)] += term;
        break;
      case Recipe::Sums::elements:
        sum[0] += term;
        break;
      case Recipe::Sums::truncated:
        sixteen += static_cast<double>(term);
        if (j % 16 != 15 && j + 1 != recipe.tile) break;
        sum[0] = add_cut_off(sum[0], static_cast<float>(sixteen));
        sixteen = 0;
        break;
    }
  }
  sum[0] += added;
  return recipe.keep_stale_o ? 1.0f : alpha;
}

// O += weights times values, in one of the orders and precisions of a Recipe.
void accumulate(const Recipe& recipe, std::int64_t rows, std::int64_t dim,
                const std::vector<float>& weights, const std::vector<float>& values,
                std::vector<float>& scratch, std::vector<float>& o) {
  const std::int64_t keys = recipe.tile;
  if (recipe.accumulate_fp16) {
    for (std::int64_t r = 0; r < rows; ++r)
      for (std::int64_t j = 0; j < keys; ++j)
        for (std::int64_t d = 0; d < dim; ++d) {
          float& x = o[static_cast<std::size_t>(r * dim + d)];
          x += weights[static_cast<std::size_t>(r * keys + j)] *
               values[static_cast<std::size_t>(j * dim + d)];
          x = static_cast<float>(numeric::round_to(DType::f16, static_cast<double>(x)));
        }
    return;
  }
  if (recipe.sums == Recipe::Sums::elements) {
    tile_gemm(rows, dim, keys, weights.data(), keys, values.data(), dim, o.data(), dim);
    return;
  }
  const bool truncated = recipe.sums == Recipe::Sums::truncated;
  const std::int64_t step = truncated ? 16 : keys;
  for (std::int64_t j0 = 0; j0 < keys; j0 += step) {
    std::fill(scratch.begin(), scratch.end(), 0.0f);
    tile_gemm(rows, dim, std::min(step, keys - j0), weights.data() + j0, keys,
              values.data() + j0 * dim, dim, scratch.data(), dim);
    for (std::size_t i = 0; i < scratch.size(); ++i)
      o[i] = truncated ? add_cut_off(o[i], scratch[i]) : o[i] + scratch[i];
  }
}

// Into the tile goes what one split found, as split kernels combine their parts.
void merge(const PlantedPartial& part, std::int64_t dim, RowTile& tile) {
  for (std::int64_t r = 0; r < tile.count; ++r) {
    const auto at = static_cast<std::size_t>(r);
    const float sum = (part.sum[at][0] + part.sum[at][1]) + (part.sum[at][2] + part.sum[at][3]);
    float& maximum = tile.maximum[at];
    if (part.maximum[at] == -kInfinity && sum == 0) continue;
    const float above = !(part.maximum[at] <= maximum) ? part.maximum[at] : maximum;
    const float old = maximum == -kInfinity ? 0.0f : std::exp(maximum - above);
    const float fresh = std::exp(part.maximum[at] - above);
    maximum = above;
    tile.sum[at] = tile.sum[at] * old + sum * fresh;
    for (std::int64_t d = 0; d < dim; ++d) {
      const auto i = static_cast<std::size_t>(r * dim + d);
      tile.o[i] = tile.o[i] * old + part.o[i] * fresh;
    }
  }
}

void two_pass_rows(const Head& head, const std::vector<float>& q, const std::vector<float>& k,
                   const std::vector<float>& v, RowTile& tile) {
  const Problem& p = head.p;
  const std::int64_t dim = p.head_dim, dim_v = value_dim(p);
  std::vector<double> scores(static_cast<std::size_t>(p.seq_kv)),
      o(static_cast<std::size_t>(dim_v));
  for (std::int64_t r = 0; r < tile.count; ++r) {
    const KeyRange range = visible_keys(p, head.own, tile.i0 + r);
    double largest = -HUGE_VAL, sum = 0;
    for (std::int64_t j = range.first; j < range.last; ++j) {
      double s = 0;
      for (std::int64_t d = 0; d < dim; ++d)
        s += static_cast<double>(q[static_cast<std::size_t>((tile.i0 + r) * dim + d)]) *
             static_cast<double>(k[static_cast<std::size_t>(j * dim + d)]);
      s *= static_cast<double>(p.scale);
      if (p.softcap > 0)
        s = static_cast<double>(p.softcap) * std::tanh(s / static_cast<double>(p.softcap));
      if (has_bias(p))
        s = static_cast<double>(add_bias(head, Recipe{}, tile.i0 + r, j, static_cast<float>(s)));
      scores[static_cast<std::size_t>(j)] = s;
      if (!(s <= largest)) largest = s;
    }
    std::fill(o.begin(), o.end(), 0.0);
    for (std::int64_t j = range.first; j < range.last && largest != -HUGE_VAL; ++j) {
      const double weight = std::exp(scores[static_cast<std::size_t>(j)] - largest);
      sum += weight;
      for (std::int64_t d = 0; d < dim_v; ++d)
        o[static_cast<std::size_t>(d)] +=
            weight * static_cast<double>(v[static_cast<std::size_t>(j * dim_v + d)]);
    }
    const auto at = static_cast<std::size_t>(r);
    tile.maximum[at] = static_cast<float>(largest);
    tile.sum[at] = static_cast<float>(sum);
    for (std::int64_t d = 0; d < dim_v; ++d)
      tile.o[static_cast<std::size_t>(r * dim_v + d)] =
          sum == 0 ? 0.0f : static_cast<float>(o[static_cast<std::size_t>(d)] / sum) * tile.sum[at];
  }
}

void online_rows(const Head& head, const Recipe& recipe, const std::vector<float>& q,
                 const std::vector<float>& k, const std::vector<float>& v, RowTile& tile) {
  const Problem& p = head.p;
  const std::int64_t dim = p.head_dim, dim_v = value_dim(p), keys = recipe.tile;
  const Problem seen = masked(p, recipe);
  std::array<KeyRange, kRows> range;
  KeyRange all{p.seq_kv, 0};
  for (std::int64_t r = 0; r < tile.count; ++r) {
    auto& own = range[static_cast<std::size_t>(r)];
    own = range_of(head, seen, recipe, tile.i0 + r);
    if (own.first >= own.last) continue;
    all.first = std::min(all.first, own.first);
    all.last = std::max(all.last, own.last);
  }
  if (all.first >= all.last) return;
  if (recipe.all_tiles) all = {0, p.seq_kv};
  if (recipe.drop_lone_key && all.last % keys == 1) --all.last;
  std::vector<float> transposed(static_cast<std::size_t>(dim * keys));
  std::vector<float> values(static_cast<std::size_t>(dim_v * keys));
  std::vector<float> scores(static_cast<std::size_t>(tile.count * keys));
  std::vector<float> scratch(tile.o.size());
  std::array<float, kRows> largest{};
  PlantedPartial part(tile, recipe);
  const std::int64_t first = all.first / keys, last = ceil_div<std::int64_t>(all.last, keys);
  const std::int64_t per_split = recipe.split > 0 ? recipe.split / keys : last - first;
  std::int64_t tiles = last - first;
  if (recipe.splits_of_first && per_split > 0) {
    const std::int64_t planned = head.real.sequence(0).keys / keys / per_split + 1;
    tiles = std::min(tiles, planned * per_split);
  }
  for (std::int64_t n = 0; n < tiles; ++n) {
    if (n > 0 && n % per_split == 0) {
      merge(part, dim_v, tile);
      if (recipe.merge_twice && n == per_split) merge(part, dim_v, tile);
      part.clear(recipe);
    }
    const std::int64_t number = recipe.backwards ? last - 1 - n : first + n;
    const std::int64_t j0 = number * keys;
    if (number == recipe.skip_tile) continue;
    for (std::int64_t j = 0; j < keys; ++j) {
      const std::int64_t key = j0 + j;
      // A slot outside of what these rows see counts as zero: 0 * NaN would not vanish.
      const bool real =
          key < p.seq_kv && (recipe.multiply_unseen || (key >= all.first && key < all.last));
      const std::int64_t place = recipe.wrap_keys ? key % 65536 : key;
      const std::int64_t ring = recipe.stale_ring && number == 8 ? 8 * keys : 0;
      if (!real) {
        for (std::int64_t d = 0; d < dim; ++d)
          transposed[static_cast<std::size_t>(d * keys + j)] = 0.0f;
        std::fill_n(values.begin() + j * dim_v, dim_v, 0.0f);
        continue;
      }
      if (recipe.swapped_leading_dimension) {  // key and channel strides of the other operand
        for (std::int64_t d = 0; d < dim; ++d) {
          const std::int64_t at =
              std::min(p.seq_kv, j0 + keys) * dim - 1 - (j + d * keys) % (keys * dim);
          transposed[static_cast<std::size_t>(d * keys + j)] =
              at >= 0 && at < p.seq_kv * dim ? k[static_cast<std::size_t>(at)] : 0.0f;
        }
      } else {
        const float* const from = k.data() + place * dim;
        for (std::int64_t d = 0; d < dim; ++d)
          transposed[static_cast<std::size_t>(d * keys + j)] = from[d];
      }
      const float* const from = v.data() + (place - ring) * dim_v;
      float* const to = values.data() + j * dim_v;
      for (std::int64_t d = 0; d < dim_v; ++d) to[d] = from[d] * recipe.value_factor;
    }
    const int visits = number == recipe.repeat_tile ? 2 : 1;
    for (int visit = 0; visit < visits; ++visit) {
      std::fill(scores.begin(), scores.end(), 0.0f);
      tile_gemm(tile.count, keys, dim, q.data() + tile.i0 * dim, dim, transposed.data(), keys,
                scores.data(), keys);
      for (std::int64_t r = 0; r < tile.count; ++r)
        largest[static_cast<std::size_t>(r)] =
            score_row(head, recipe, range[static_cast<std::size_t>(r)], tile.i0 + r, j0,
                      scores.data() + r * keys);
      if (recipe.block_maximum)
        std::fill(largest.begin(), largest.begin() + tile.count,
                  *std::max_element(largest.begin(), largest.begin() + tile.count));
      for (std::int64_t r = 0; r < tile.count; ++r) {
        const auto at = static_cast<std::size_t>(r);
        const bool sees = range[at].first < j0 + keys && j0 < range[at].last;
        const float alpha = soften(p, recipe, largest[at], recipe.unguarded && sees,
                                   scores.data() + r * keys, part.maximum[at], part.sum[at]);
        for (std::int64_t d = 0; d < dim_v; ++d)
          part.o[static_cast<std::size_t>(r * dim_v + d)] *= alpha;
      }
      accumulate(recipe, tile.count, dim_v, scores, values, scratch, part.o);
    }
  }
  merge(part, dim_v, tile);
  for (std::int64_t r = 0; r < tile.count; ++r)
    if (keeps_products(p, recipe)) tile.maximum[static_cast<std::size_t>(r)] *= p.scale;
}

// The sink joins the denominator, as a key whose V is 0 would. v: of the sequence's keys.
void add_sink(const Head& head, const Recipe& recipe, const std::vector<float>& v, RowTile& tile) {
  if (!head.p.sinks || recipe.sink == Recipe::Sink::forgotten) return;
  const std::int64_t dim_v = value_dim(head.p);
  const float sink = head.tensors.sinks[head.h];
  for (std::int64_t r = 0; r < tile.count; ++r) {
    const auto at = static_cast<std::size_t>(r);
    if (tile.sum[at] == 0) continue;
    const float old = tile.maximum[at], above = sink > old ? sink : old;
    const float shrink = std::exp(old - above), weight = std::exp(sink - above) * recipe.start;
    tile.maximum[at] = above;
    tile.sum[at] = tile.sum[at] * shrink + weight;
    for (std::int64_t d = 0; d < dim_v; ++d) {
      float& o = tile.o[static_cast<std::size_t>(r * dim_v + d)];
      o *= shrink;
      if (recipe.sink == Recipe::Sink::in_numerator)
        o += weight * v[static_cast<std::size_t>(head.own.start * dim_v + d)];
    }
  }
}

void store_rows(const Head& head, const Recipe& recipe, const RowTile& tile, const RowTile& bare) {
  const Problem& p = head.p;
  const Problem& whole = head.real.problem();
  const Tensors& tensors = head.tensors;
  const std::int64_t dim = value_dim(p), b = head.b, h = head.h;
  for (std::int64_t r = 0; r < tile.count; ++r) {
    const std::int64_t i = tile.i0 + r;
    if (recipe.skip_partial_stripe && i / kStripe == p.seq_q / kStripe) continue;
    if (recipe.skip_last_row && i == p.seq_q - 1 && h == whole.heads_q - 1 && b == whole.batch - 1)
      continue;
    if (recipe.skip_ragged_rows && p.seq_q % kRows != 0 && i == p.seq_q - 1) continue;
    const auto at = static_cast<std::size_t>(r);
    const bool empty = tile.sum[at] == 0;
    const float sum = tile.sum[at] * recipe.sum_factor;
    const std::int64_t to = head.real.o(b, h, i);
    for (std::int64_t d = 0; d < dim; ++d) {
      float x = empty && !recipe.divide_empty ? 0.0f
                                              : tile.o[static_cast<std::size_t>(r * dim + d)] / sum;
      if (recipe.scale_on_output) x *= p.scale;
      x = x * recipe.gain + recipe.bias;
      if (recipe.flush_subnormals) x = flush(p.out_dtype, x);
      const double exact = recipe.overflowing_store
                               ? static_cast<double>(x)
                               : numeric::within_range(p.out_dtype, static_cast<double>(x));
      numeric::store(p.out_dtype, tensors.o, to + d,
                     recipe.truncate_output ? cut_off(p.out_dtype, exact) : exact);
    }
    if (!p.lse) continue;
    const RowTile& of_lse = recipe.sink == Recipe::Sink::not_in_lse ? bare : tile;
    const bool with_sink = p.sinks && recipe.sink != Recipe::Sink::forgotten &&
                           recipe.sink != Recipe::Sink::not_in_lse;
    const float none = with_sink ? tensors.sinks[h] : -kInfinity;
    float lse =
        empty ? none
              : of_lse.maximum[at] + std::log(of_lse.sum[at] * recipe.sum_factor / recipe.start);
    if (recipe.round_lse)
      lse = static_cast<float>(numeric::round_to(DType::f16, static_cast<double>(lse)));
    if (recipe.lse_in_log2) lse *= std::numbers::log2e_v<float>;
    const bool turned = recipe.lse_rows_first && p.sequences.packed_q;
    const std::int64_t row = head.real.lse(b, 0, i);
    tensors.lse[turned ? row * whole.heads_q + h : head.real.lse(b, h, i)] = lse;
  }
}

void attend(const Problem& whole, const Tensors& tensors, const Recipe& of_all) {
  // Faults of strides, batches and scales are those of K and V. So is the zero point: the
  // originals' Q had it too, but Q here is e4m3 already, and a second rounding of it would be a
  // larger fault than the one that is modelled.
  Recipe of_query;
  of_query.dequantise_to_fp16 = of_all.dequantise_to_fp16;
  of_query.flush_subnormals = of_all.flush_subnormals;
  const Reading honest(whole, tensors, Recipe::Read::honest);
  const Reading reading(whole, tensors, of_all.read);
  const Placement& real = honest.placement();
  const Placement& read = reading.placement();
  parallel_for(whole.batch * whole.heads_q, [&](std::int64_t number) {
    const std::int64_t b = number / whole.heads_q, h = number % whole.heads_q;
    Recipe recipe = of_all;
    if (recipe.exact_in_first_head && number == 0) recipe.round_product = false;
    const std::int64_t hkv =
        recipe.heads_modulo ? h % whole.heads_kv : h / (whole.heads_q / whole.heads_kv);
    Head head{whole, read.sequence(b), b, h, real, tensors};
    if (recipe.write_unused_rows && whole.sequences.used_q && !whole.sequences.packed_q)
      head.own.rows = whole.seq_q;
    if (recipe.skip_empty_sequence && head.own.keys == 0) return;
    Problem& p = head.p;
    p.seq_q = head.own.rows;
    p.seq_kv = head.own.keys;
    const std::int64_t dim_v = value_dim(p);
    auto q = read_head(p, of_query, tensors.q, tensors.q_scale, whole.heads_q, p.seq_q, whole.seq_q,
                       p.head_dim, b, h, [&](auto... at) { return real.q(at...); });
    if (recipe.round_query)
      for (float& x : q)
        x = static_cast<float>(numeric::round_to(p.dtype, static_cast<double>(x * p.scale)));
    const auto k =
        read_head(p, recipe, tensors.k, tensors.k_scale, whole.heads_kv, p.seq_kv, whole.seq_kv,
                  p.head_dim, b, hkv, [&](auto... at) { return read.k(at...); });
    const std::int64_t values =
        operand_of(whole, OperandId::v).bytes / static_cast<std::int64_t>(size_of(whole.dtype));
    const auto v = read_head(
        p, recipe, tensors.v, tensors.v_scale, whole.heads_kv, p.seq_kv, whole.seq_kv, dim_v, b,
        hkv,
        [&](auto... at) {
          if (!recipe.value_stride_of_key) return read.v(at...);
          // Not behind the end of V.
          return std::clamp<std::int64_t>(read.k(at...), 0, values - dim_v);
        },
        recipe.values_as_rows || recipe.assume_dense ? 1 : real.v_step());
    for (std::int64_t i0 = 0; i0 < p.seq_q; i0 += kRows) {
      RowTile tile;
      tile.i0 = i0;
      tile.count = std::min(kRows, p.seq_q - i0);
      tile.o.assign(static_cast<std::size_t>(tile.count * dim_v), 0.0f);
      tile.maximum.fill(-kInfinity);
      if (recipe.two_pass)
        two_pass_rows(head, q, k, v, tile);
      else
        online_rows(head, recipe, q, k, v, tile);
      const RowTile bare = tile;
      add_sink(head, recipe, v, tile);
      store_rows(head, recipe, tile, bare);
    }
  });
}

// What a planted kernel remembers between its launches.
struct MutantMemory {
  std::int64_t launches = 0;
  const void* address = nullptr;
  std::vector<std::byte> o, lse;
};

std::size_t o_bytes(const Problem& p) {
  return static_cast<std::size_t>(operand_of(p, OperandId::o).bytes);
}

using Run = void (*)(const Problem&, const Tensors&, const Recipe&, MutantMemory&);

void run_plain(const Problem& p, const Tensors& t, const Recipe& recipe, MutantMemory&) {
  attend(p, t, recipe);
}

void run_zeros(const Problem& p, const Tensors& t, const Recipe& recipe, MutantMemory&) {
  Recipe zero = recipe;
  zero.gain = 0;
  attend(p, t, zero);
}

void run_replay(const Problem& p, const Tensors& t, const Recipe& recipe, MutantMemory& memory) {
  if (memory.address == t.q) {
    std::memcpy(t.o, memory.o.data(), memory.o.size());
    if (p.lse) std::memcpy(t.lse, memory.lse.data(), memory.lse.size());
    return;
  }
  attend(p, t, recipe);
  memory.address = t.q;
  const auto* o = static_cast<const std::byte*>(t.o);
  memory.o.assign(o, o + o_bytes(p));
  if (!p.lse) return;
  const auto* lse = reinterpret_cast<const std::byte*>(t.lse);
  memory.lse.assign(lse,
                    lse + sizeof(float) * static_cast<std::size_t>(p.batch * p.heads_q * p.seq_q));
}

void run_once(const Problem& p, const Tensors& t, const Recipe& recipe, MutantMemory& memory) {
  if (memory.launches == 0) attend(p, t, recipe);
}

void run_nan(const Problem& p, const Tensors& t, const Recipe& recipe, MutantMemory&) {
  attend(p, t, recipe);
  const std::int64_t last = (p.batch - 1) * p.o.stride[0] + (p.heads_q - 1) * p.o.stride[1] +
                            (p.seq_q - 1) * p.o.stride[2];
  numeric::store(p.out_dtype, t.o, last + value_dim(p) - 1,
                 std::numeric_limits<double>::quiet_NaN());
}

void run_one_element(const Problem& p, const Tensors& t, const Recipe& recipe, MutantMemory&) {
  attend(p, t, recipe);
  const std::int64_t middle = p.seq_q / 2 * p.o.stride[2];
  numeric::store(p.out_dtype, t.o, middle, numeric::load(p.out_dtype, t.o, middle) + 0.04);
}

void run_overrun(const Problem& p, const Tensors& t, const Recipe& recipe, MutantMemory&) {
  attend(p, t, recipe);
  std::memset(static_cast<std::byte*>(t.o) + o_bytes(p), 0, size_of(p.out_dtype));
}

void run_underrun(const Problem& p, const Tensors& t, const Recipe& recipe, MutantMemory&) {
  attend(p, t, recipe);
  std::memset(static_cast<std::byte*>(t.o) - 16, 0, 16);
}

void run_lse_overrun(const Problem& p, const Tensors& t, const Recipe& recipe, MutantMemory&) {
  attend(p, t, recipe);
  const std::int64_t rows = p.batch * p.heads_q * p.seq_q;
  for (std::int64_t row = rows; row < round_up(rows, kRows); ++row) t.lse[row] = 0;
}

void run_gap_writer(const Problem& p, const Tensors& t, const Recipe& recipe, MutantMemory&) {
  attend(p, t, recipe);
  std::memset(
      static_cast<std::byte*>(t.o) + static_cast<std::size_t>(value_dim(p)) * size_of(p.out_dtype),
      0, 8 * size_of(p.out_dtype));
}

// A caller's tensor used as scratch: K's first row is left as its own sum with the second.
void run_scratch_input(const Problem& p, const Tensors& t, const Recipe& recipe, MutantMemory&) {
  attend(p, t, recipe);
  auto* bytes = static_cast<std::byte*>(const_cast<void*>(t.q));
  for (std::size_t i = 0; i < static_cast<std::size_t>(p.head_dim) * size_of(p.dtype); ++i)
    bytes[i] ^= std::byte{0x01};
}

void run_racing(const Problem& p, const Tensors& t, const Recipe& recipe, MutantMemory& memory) {
  Recipe varied = recipe;
  varied.tile = memory.launches % 2 ? 24 : 64;
  attend(p, t, varied);
}

void run_reads_poison(const Problem& p, const Tensors& t, const Recipe& recipe, MutantMemory&) {
  // O += result, as a split-K kernel does that expects a cleared output.
  std::vector<double> before(static_cast<std::size_t>(value_dim(p)));
  const std::int64_t row = (p.seq_q - 1) * p.o.stride[2];
  numeric::load_row(p.out_dtype, t.o, row, value_dim(p), before.data());
  attend(p, t, recipe);
  for (std::int64_t d = 0; d < value_dim(p); ++d)
    numeric::store(p.out_dtype, t.o, row + d,
                   numeric::load(p.out_dtype, t.o, row + d) + before[static_cast<std::size_t>(d)]);
}

const char* needs_window(const Problem& p) { return p.mask.left >= 0 ? nullptr : "needs a window"; }
const char* needs_groups(const Problem& p) {
  return p.heads_kv > 1 && p.heads_q > p.heads_kv ? nullptr : "needs 1 < Hkv < Hq";
}
const char* needs_ragged_lse(const Problem& p) {
  return p.lse && p.batch * p.heads_q * p.seq_q % kRows != 0 ? nullptr
                                                             : "needs LSE of a ragged length";
}
const char* needs_partial_stripe(const Problem& p) {
  return p.seq_q % kStripe ? nullptr : "needs Sq off the multiples of 16";
}
const char* needs_ragged_queries(const Problem& p) {
  return p.seq_q % kRows ? nullptr : "needs Sq off the multiples of 32";
}
const char* needs_ragged_keys(const Problem& p) {
  return p.seq_kv % 64 ? nullptr : "needs Skv off the multiples of 64";
}
const char* needs_tiles(const Problem& p) {
  return p.seq_kv > 64 ? nullptr : "needs more than one key tile";
}
const char* needs_unseen(const Problem& p) {
  return !p.mask.is_none() && p.seq_kv > p.seq_q && p.seq_kv % 64 != 0 &&
                 p.mask.alignment == Alignment::top_left
             ? nullptr
             : "needs keys that no query sees";
}
const char* needs_empty_rows(const Problem& p) {
  return p.mask.right >= 0 && p.mask.alignment == Alignment::bottom_right && p.seq_q > p.seq_kv
             ? nullptr
             : "needs rows that see no key";
}
const char* needs_fp16_output(const Problem& p) {
  return p.dtype == DType::f16 || p.dtype == DType::f32 ? nullptr : "needs fp16 or fp32 inputs";
}

const char* needs_fp16(const Problem& p) { return p.dtype == DType::f16 ? nullptr : "needs fp16"; }
const char* needs_infinities(const Problem& p) {
  return p.dtype != DType::e4m3 ? nullptr : "needs a type with infinities";
}
const char* needs_narrow_weights(const Problem& p) {
  return p.dtype == DType::f16 || p.dtype == DType::e4m3 ? nullptr : "needs fp16 or e4m3";
}
const char* needs_no_softcap(const Problem& p) {
  return p.softcap == 0 && p.scale > 0 ? nullptr : "needs scores without a softcap";
}
const char* needs_mask(const Problem& p) { return p.mask.is_none() ? "needs a mask" : nullptr; }
const char* needs_ring(const Problem& p) {
  return p.seq_kv > 512 && p.mask.left < 0 ? nullptr : "needs more than 8 key tiles";
}
const char* needs_many_keys(const Problem& p) {
  return p.seq_kv > 65536 ? nullptr : "needs more than 65,536 keys";
}
const char* needs_long_rows(const Problem& p) {
  return p.seq_kv >= 65536 ? nullptr : "needs 65,536 keys";
}
const char* needs_lone_key(const Problem& p) {
  for (std::int64_t i0 = 0; i0 < p.seq_q; i0 += kRows) {
    std::int64_t last = 0;
    for (std::int64_t i = i0; i < std::min(p.seq_q, i0 + kRows); ++i)
      if (const KeyRange own = visible_keys(p, i); own.first < own.last)
        last = std::max(last, own.last);
    if (last % 64 == 1) return nullptr;
  }
  return "needs a last key tile of one key";
}
// Behind e4m3's weights, and fp16's, neither of these two shows.
const char* needs_16_bits(const Problem& p) {
  const bool narrow = p.dtype == DType::f16 || p.dtype == DType::bf16;
  return narrow && p.out_dtype != DType::f32 ? nullptr : "needs fp16 or bf16, and O as well";
}
const char* needs_odd_scale(const Problem& p) {
  int exponent = 0;
  const bool power = std::frexp(p.scale, &exponent) == 0.5f;
  return !power && p.dtype == DType::bf16 && p.lse
             ? nullptr
             : "needs bf16, LSE and a scale that is no power of 2";
}

const char* needs_pages(const Problem& p) { return p.pages.used() ? nullptr : "needs pages"; }
const char* needs_used_keys(const Problem& p) {
  return p.sequences.used_kv ? nullptr : "needs used lengths of K and V";
}
const char* needs_page_tails(const Problem& p) {
  return p.pages.size > 1 && p.sequences.used_kv ? nullptr : "needs pages and used lengths";
}
const char* needs_packed_keys(const Problem& p) {
  return p.sequences.packed_kv && p.batch > 1 ? nullptr : "needs packed sequences of K and V";
}
const char* needs_start(const Problem& p) {
  return p.sequences.kv_start ? nullptr : "needs left padding";
}
const char* needs_index(const Problem& p) {
  return p.sequences.kv_index ? nullptr : "needs an index of the cache's rows";
}
const char* needs_table_stride(const Problem& p) {
  return p.pages.used() && p.batch > 1 && p.pages.row_stride > ceil_div(p.seq_kv, p.pages.size)
             ? nullptr
             : "needs a page table with room in its rows";
}
const char* needs_sinks(const Problem& p) { return p.sinks ? nullptr : "needs sinks"; }
const char* needs_sinks_and_lse(const Problem& p) {
  return p.sinks && p.lse ? nullptr : "needs sinks and LSE";
}
const char* needs_chunk(const Problem& p) {
  return p.chunk > 0 && p.chunk < p.seq_kv ? nullptr : "needs chunks shorter than a sequence";
}
const char* needs_chunk_and_start(const Problem& p) {
  return needs_chunk(p) == nullptr && p.sequences.kv_start ? nullptr
                                                           : "needs chunks and left padding";
}
const char* needs_alibi(const Problem& p) {
  return p.alibi != Alibi::none ? nullptr : "needs ALiBi";
}
// A row's distances to all of its keys change alike where no key lies behind it, and softmax takes
// no notice.
const char* needs_alibi_both_ways(const Problem& p) {
  return p.alibi != Alibi::none && p.mask.alignment == Alignment::bottom_right &&
                 p.seq_q != p.seq_kv
             ? nullptr
             : "needs ALiBi and Sq != Skv under the last key";
}
const char* needs_bool_mask(const Problem& p) {
  return p.array_mask.kind == MaskKind::boolean ? nullptr : "needs a bool mask";
}
const char* needs_float_mask(const Problem& p) {
  return p.array_mask.kind == MaskKind::additive ? nullptr : "needs a float mask";
}
const char* needs_float_mask_and_cap(const Problem& p) {
  return p.array_mask.kind == MaskKind::additive && p.softcap > 0
             ? nullptr
             : "needs a float mask and a softcap";
}
const char* needs_transposed_v(const Problem& p) {
  return p.v.stride[3] > 1 ? nullptr : "needs a transposed V";
}
const char* needs_value_dim(const Problem& p) {
  return value_dim(p) != p.head_dim ? nullptr : "needs V with a head dimension of its own";
}
const char* needs_splits(const Problem& p) {
  return p.seq_kv > 128 ? nullptr : "needs more than two splits of 64 keys";
}
const char* needs_own_lengths(const Problem& p) {
  return p.seq_kv > 128 && (p.sequences.used_kv || p.sequences.packed_kv)
             ? nullptr
             : "needs sequences with lengths of their own, some of more than 128 keys";
}
const char* needs_own_alignment(const Problem& p) {
  return !p.mask.is_none() && p.mask.alignment == Alignment::bottom_right &&
                 (p.sequences.used_kv || p.sequences.packed_kv || p.sequences.used_q ||
                  p.sequences.packed_q)
             ? nullptr
             : "needs a mask under the last key of sequences with lengths of their own";
}
const char* needs_unused_rows(const Problem& p) {
  return p.sequences.used_q && !p.sequences.packed_q ? nullptr : "needs used lengths of Q";
}
const char* needs_empty_sequence(const Problem& p) {
  return p.batch > 2 && (p.sequences.used_kv || p.sequences.packed_kv)
             ? nullptr
             : "needs a sequence without keys";
}
const char* needs_packed_lse(const Problem& p) {
  return p.lse && p.sequences.packed_q && p.heads_q > 1 ? nullptr : "needs LSE of packed sequences";
}

struct Kernel {
  PlantedRow row;
  Recipe recipe;
  Run run = run_plain;
};

using Weights = Recipe::Weights;
using Sums = Recipe::Sums;
using Read = Recipe::Read;
using Sink = Recipe::Sink;

const std::vector<Kernel>& kernels() {
  static const std::vector<Kernel> table{
      // Faults of the originals.
      {{"zero_point", "e4m3 originals: encoded around 127.5, decoded around 128"},
       {.affine_zero_point = true}},
      {{"v4_leading_dimension", "V2c v4: K's leading dimension is that of another buffer"},
       {.swapped_leading_dimension = true}},
      {{"v4_partial_stripe", "V2c v4, v5: returns early on a partial 16-row stripe", false,
        needs_partial_stripe},
       {.skip_partial_stripe = true}},
      {{"v4_warp_reduction", "V2c v4: a reduction that all 32 lanes repeat counts 32 times"},
       {.sum_factor = 32}},
      // Outputs that are no attention.
      {{"zeros", "writes zeros"}, {}, run_zeros},
      {{"mean_v", "ignores the scores: every weight is 1/n"}, {.uniform = true}},
      {{"nan_output", "one NaN in the last row"}, {}, run_nan},
      {{"one_element", "one element off by 0.04"}, {}, run_one_element},
      {{"gain", "output times 1.05"}, {.gain = 1.05f}},
      {{"bias", "output plus 0.005"}, {.bias = 0.005f}},
      // Outputs of another call.
      {{"replay", "returns what it computed for these addresses before"}, {}, run_replay},
      {{"runs_once", "does nothing after the first launch"}, {}, run_once},
      {{"expects_cleared_output", "adds to what the output held"}, {}, run_reads_poison},
      // Memory.
      {{"overrun", "writes one element past the end of O"}, {}, run_overrun},
      {{"underrun", "writes 16 bytes before O"}, {}, run_underrun},
      {{"lse_overrun", "writes LSE for padded rows", false, needs_ragged_lse}, {}, run_lse_overrun},
      {{"gap_writer", "stores padded rows into a strided O", false, needs_gaps},
       {},
       run_gap_writer},
      {{"modifies_input", "uses Q as scratch"}, {}, run_scratch_input},
      {{"row_unwritten", "leaves the last row of the last head"}, {.skip_last_row = true}},
      {{"ragged_row_unwritten", "leaves the last row of a partial query tile", false,
        needs_ragged_queries},
       {.skip_ragged_rows = true}},
      {{"wrong_stride", "takes K and V for dense BHSD", false, needs_strides},
       {.assume_dense = true}},
      {{"first_batch", "reads K and V of batch 0", false, needs_batch}, {.first_batch_only = true}},
      {{"nondeterministic", "the order of summation changes from launch to launch", false,
        needs_tiles},
       {},
       run_racing},
      {{"unseen_slot", "multiplies slots that no query sees by a weight of 0", false, needs_unseen},
       {.multiply_unseen = true}},
      // Heads, masks, scales.
      {{"gqa_modulo", "query head h reads KV head h mod Hkv", false, needs_groups},
       {.heads_modulo = true}},
      {{"causal_sees_next", "the mask admits one key too many", false, needs_right_bound},
       {.right = 1}},
      {{"causal_misses_diagonal", "the mask hides the diagonal", false, needs_right_bound},
       {.right = -1}},
      {{"window_too_long", "the window reaches one key too far back", false, needs_window},
       {.left = 1}},
      {{"window_too_short", "the window loses its first key", false, needs_window}, {.left = -1}},
      {{"other_alignment", "top-left for bottom-right, and the reverse", false,
        needs_mask_of_lengths},
       {.other_alignment = true}},
      {{"scale_x0.8", "scores times 0.8"}, {.score_factor = 0.8f}},
      {{"scale_on_output", "the softmax scale multiplies O"}, {.scale_on_output = true}},
      {{"softcap_before_scale", "caps scores before they are scaled", false, needs_softcap},
       {.softcap_before_scale = true}},
      {{"softcap_ignored", "takes no notice of the softcap", false, needs_softcap},
       {.ignore_softcap = true}},
      {{"v_scale_x0.75", "V's descale factor times 0.75"}, {.value_factor = 0.75f}},
      {{"neighbour_block_scale", "a block of keys or queries uses the factor of the one before",
        false, needs_block_scales},
       {.neighbour_block_scale = true}},
      {{"first_block_scale", "every block of a head uses the factor of its first", false,
        needs_block_scales},
       {.first_block_scale = true}},
      {{"first_head_scale", "every head uses the descale factor of the first", false,
        needs_head_scales},
       {.first_scale_only = true}},
      // Softmax.
      {{"drops_last_key", "the loop over keys ends one too early"}, {.drop_keys = 1}},
      {{"drops_key_tile", "skips the second key tile", false, needs_tiles}, {.skip_tile = 1}},
      {{"repeats_key_tile", "counts the first key tile twice"}, {.repeat_tile = 0}},
      {{"unmasked_tail", "the padding of the last key tile scores 0, not -inf", false,
        needs_ragged_keys},
       {.pad_with_zero_scores = true}},
      {{"stale_o", "O is not rescaled when the maximum rises", false, needs_tiles},
       {.keep_stale_o = true}},
      {{"stale_sum", "the normaliser is not rescaled when the maximum rises", false, needs_tiles},
       {.keep_stale_sum = true}},
      {{"no_maximum", "exponentials without subtracting the maximum"}, {.no_maximum = true}},
      {{"fp16_accumulation", "sums P V in fp16", false, needs_fp16_output},
       {.accumulate_fp16 = true}},
      {{"divides_empty_row", "0 / 0 in a row that sees no key", false, needs_empty_rows},
       {.divide_empty = true}},
      {{"lse_log2", "LSE in units of log 2", false, needs_lse}, {.lse_in_log2 = true}},
      // The ends of the range.
      {{"low_start", "fp16 weights start at 2^-6, so subnormals begin 64 times earlier", false,
        needs_fp16},
       {.sum_rounded = true, .start = 0x1p-6f}},
      {{"base_from_sum",
        "a base is raised by a thread's sum of weights, not by the largest of them", false,
        needs_fp16},
       {.rescale_above = 9, .base_from_sum = true}},
      {{"rounded_product",
        "weights are exp2(fma(s, c, -round(max c))): large scores lose the "
        "difference",
        false, needs_no_softcap},
       {.round_product = true}},
      {{"exact_first_head", "large scores keep their difference in the first head of a call alone",
        false, needs_no_softcap},
       {.round_product = true, .exact_in_first_head = true}},
      {{"cancelling_softcap", "tanh(x) as 1 - 2 / (1 + e^2x)", false, needs_softcap},
       {.cancelling_softcap = true}},
      {{"stagnating_sum", "one fp32 accumulator takes every weight of a long row", false,
        needs_long_rows},
       {.split = 0, .sums = Sums::elements}},
      {{"truncating_sum", "tensor cores cut off, and nothing is merged in a long row", false,
        needs_long_rows},
       {.split = 0, .sums = Sums::truncated}},
      {{"overflowing_store", "the sum of rounded weights exceeds 1, and 65,504 becomes infinite",
        false, needs_fp16},
       {.overflowing_store = true}},
      {{"minus_infinity", "-inf - -inf in a row whose scores are all -inf", false,
        needs_infinities},
       {.unguarded = true}},
      {{"visits_hidden_tiles", "a tile that no row of the query tile sees is multiplied by 0",
        false, needs_right_bound},
       {.multiply_unseen = true, .all_tiles = true}},

      // Serving.
      {{"next_page", "entry n + 1 of the page table for page n", false, needs_pages},
       {.read = Read::next_page}},
      {{"page_tail", "attends to all of the last page", false, needs_page_tails},
       {.read = Read::page_tail}},
      {{"table_stride", "rows of the page table lie side by side", false, needs_table_stride},
       {.read = Read::tight_table}},
      {{"used_ignored", "takes every sequence for as long as its place", false, needs_used_keys},
       {.read = Read::all_keys}},
      {{"neighbour", "cu_kv[b + 1] for cu_kv[b]: the keys of the next sequence", false,
        needs_packed_keys},
       {.read = Read::neighbour}},
      {{"start_ignored", "attends to the left padding", false, needs_start},
       {.read = Read::no_start}},
      {{"index_ignored", "reads row b of the cache, not row kv_index[b]", false, needs_index},
       {.read = Read::no_index}},
      {{"aligned_by_maxima", "the diagonal lies where the longest sequence has it", false,
        needs_own_alignment},
       {.align_by_maxima = true}},
      {{"empty_unwritten", "leaves rows of a sequence without keys", false, needs_empty_sequence},
       {.skip_empty_sequence = true}},
      {{"unused_written", "writes rows behind a sequence's end", false, needs_unused_rows},
       {.write_unused_rows = true}},
      {{"lse_transposed", "packed LSE as [total, Hq]", false, needs_packed_lse},
       {.lse_rows_first = true}},
      {{"chunk_late", "chunks begin one position late", false, needs_chunk}, {.chunk_shift = -1}},
      {{"chunk_early", "chunks begin one position early", false, needs_chunk}, {.chunk_shift = 1}},
      {{"chunk_from_zero", "chunks are counted from key 0, not from kv_start", false,
        needs_chunk_and_start},
       {.chunk_from_zero = true}},
      {{"sink_forgotten", "leaves the sinks out", false, needs_sinks}, {.sink = Sink::forgotten}},
      {{"sink_in_numerator", "a sink's weight multiplies the first key's V", false, needs_sinks},
       {.sink = Sink::in_numerator}},
      {{"lse_without_sink", "the LSE leaves the sinks out", false, needs_sinks_and_lse},
       {.sink = Sink::not_in_lse}},
      {{"slope_sign", "ALiBi prefers keys that are far", false, needs_alibi}, {.slope_factor = -1}},
      {{"slope_head", "the slope of the next head", false, needs_alibi}, {.slope_head = 1}},
      {{"slope_from_row", "ALiBi's distance from row i, not from the position it faces", false,
        needs_alibi_both_ways},
       {.slope_from_row = true}},
      {{"mask_inverted", "a bool mask shows what it should hide", false, needs_bool_mask},
       {.mask_inverted = true}},
      {{"mask_scaled", "a float mask is multiplied by log2 e", false, needs_float_mask},
       {.mask_factor = std::numbers::log2e_v<float>}},
      {{"mask_before_softcap", "a float mask is added before the softcap", false,
        needs_float_mask_and_cap},
       {.mask_before_softcap = true}},
      {{"value_stride", "V's rows are as long as K's", false, needs_value_dim},
       {.value_stride_of_key = true}},
      {{"values_as_rows", "a transposed V is read as rows", false, needs_transposed_v},
       {.values_as_rows = true}},
      {{"split_twice", "the first split is merged twice", false, needs_splits},
       {.split = 64, .merge_twice = true}},
      {{"stale_splits", "as many splits as the first sequence has", false, needs_own_lengths},
       {.split = 64, .splits_of_first = true}},

      // Written against the gate (docs/validating.md).
      {{"maximum_from_zero", "the running maximum starts at 0"}, {.maximum_from_zero = true}},
      {{"masked_maximum", "the maximum is taken before the mask hides keys", false, needs_mask},
       {.masked_maximum = true}},
      {{"finite_mask", "a hidden key scores -10,000", false, needs_mask}, {.hidden = -1e4f}},
      {{"block_maximum", "the rows of a query tile share one maximum"}, {.block_maximum = true}},
      {{"skips_faint_tiles", "leaves out a key tile that lies 8 nats below the maximum", false,
        needs_tiles},
       {.faint_below = 8}},
      {{"lazy_overflow", "rescales above 12 nats, weights in the input's type", false,
        needs_narrow_weights},
       {.rescale_above = 12}},
      {{"stale_ring", "the ninth key tile multiplies the V of the first", false, needs_ring},
       {.stale_ring = true}},
      {{"flushes_subnormals", "what is below the smallest normal number becomes 0", false,
        needs_narrow_weights},
       {.flush_subnormals = true}},
      {{"lse_rounded", "LSE passes through fp16", false, needs_lse}, {.round_lse = true}},
      {{"lone_last_key", "a last key tile of one key is left out", false, needs_lone_key},
       {.drop_lone_key = true}},
      {{"truncates_output", "O is cut off, not rounded", false, needs_16_bits},
       {.truncate_output = true}},
      {{"key_index_16", "key indices wrap at 65,536", false, needs_many_keys}, {.wrap_keys = true}},
      {{"rounded_q", "Q times the scale is rounded to the input's type", false, needs_odd_scale},
       {.round_query = true}},

      // Honest kernels that differ from the emulator.
      {{"fp32_weights", "P stays fp32, tiles of 32 keys", true},
       {.weights = Weights::fp32, .tile = 32}},
      {{"dequantised_tiles", "e4m3 tiles become fp16 before they are multiplied, and so does P",
        true},
       {.weights = Weights::fp16, .dequantise_to_fp16 = true}},
      {{"wide_tiles", "tiles of 128 keys", true}, {.tile = 128}},
      {{"narrow_tiles", "tiles of 8 keys, e4m3 P times 448 against each tile's maximum", true},
       {.tile = 8}},
      {{"rounded_sum", "the normaliser sums P after rounding", true}, {.sum_rounded = true}},
      {{"lazy_rescale", "rescales only when the maximum rises by more than e^5; P fp32", true},
       {.weights = Weights::fp32, .rescale_above = 5}},
      {{"two_pass", "fp64, maximum first, one rounding at the end", true}, {.two_pass = true}},
      {{"quad_sums",
        "from the last key tile of 128 to the first; each thread of a quad sums its own "
        "columns until splits of 8,192 keys are merged",
        true},
       {.tile = 128, .backwards = true, .sums = Sums::threads}},
      {{"tensor_cores",
        "O and the sum of rounded weights cut off every 16 keys, merged every 4,096", true},
       {.tile = 128, .sum_rounded = true, .split = 4096, .sums = Sums::truncated}},
  };
  return table;
}

// Faulty in one way and otherwise as the emulator: what that does not know, none of them knows.
std::optional<std::string> refusal_of(const Kernel& kernel, const Problem& problem) {
  const PlantedRow& row = kernel.row;
  const bool hooked = kernel.run != run_plain;
  if (std::string missing = missing_features(features_of(problem), kEmulatorTakes);
      !missing.empty())
    return missing;
  // What they do to memory is described for dense tensors.
  if (hooked && !is_dense(problem)) return "needs sequences of one length";
  if (row.absent != nullptr)
    if (const char* reason = row.absent(problem)) return reason;
  return std::nullopt;
}

class Planted final : public Subject {
 public:
  explicit Planted(const Kernel& kernel) : kernel_(kernel) {}

  std::string id() const override { return planted_id(kernel_.row); }
  DeviceKind device() const override { return DeviceKind::cpu; }
  std::optional<std::string> refusal(const Problem& problem, const DeviceFacts& facts) override {
    if (facts.kind != DeviceKind::cpu) return "planted kernels run on cpu";
    return refusal_of(kernel_, problem);
  }
  std::optional<Plan> plan(const Problem&, const DeviceFacts&) override { return std::nullopt; }
  Status prepare(const Problem&, void*) override { return {}; }
  Status launch(const Problem& problem, const Tensors& tensors, void*, void*,
                std::size_t) override {
    kernel_.run(problem, tensors, kernel_.recipe, memory_);
    ++memory_.launches;
    return {};
  }

 private:
  const Kernel& kernel_;
  MutantMemory memory_;
};

// Host copies of what a launch is given, at addresses that stay, with room on both sides for a
// kernel that writes outside.
class Mirror {
 public:
  explicit Mirror(Device& device) : device_(device) {}

  std::byte* fetch(std::byte* base, std::size_t bytes) {
    if (base == nullptr || bytes == 0) return base;
    Copy& copy = copies_[base];
    copy.host.resize(bytes + 2 * kMargin);
    device_.download_on_stream(copy.host.data(), base - kMargin, copy.host.size());
    copy.before = copy.host;
    return copy.host.data() + kMargin;
  }
  void put_back() {
    for (auto& [base, copy] : copies_)
      if (copy.host != copy.before)
        device_.upload(base - kMargin, copy.host.data(), copy.host.size());
  }

 private:
  static constexpr std::size_t kMargin = 256;  // inside validate's redzones
  struct Copy {
    std::vector<std::byte> host, before;
  };
  Device& device_;
  std::map<std::byte*, Copy> copies_;
};

class PlantedOnDevice final : public Subject {
 public:
  PlantedOnDevice(const Kernel& kernel, Device& device)
      : kernel_(kernel), kind_(device.kind()), mirror_(device) {}

  std::string id() const override { return planted_id(kernel_.row); }
  DeviceKind device() const override { return kind_; }
  std::optional<std::string> refusal(const Problem& problem, const DeviceFacts&) override {
    return refusal_of(kernel_, problem);
  }
  std::optional<Plan> plan(const Problem&, const DeviceFacts&) override { return std::nullopt; }
  Status prepare(const Problem&, void*) override { return {}; }
  Status launch(const Problem& p, const Tensors& t, void*, void*, std::size_t) override {
    Tensors host;
    for (const Operand& operand : operands_of(p)) {
      auto* const memory = static_cast<std::byte*>(const_cast<void*>(data_of(t, operand.id)));
      set_data(host, operand.id, mirror_.fetch(memory, static_cast<std::size_t>(operand.bytes)));
    }
    kernel_.run(p, host, kernel_.recipe, memory_);
    ++memory_.launches;
    mirror_.put_back();
    return {};
  }

 private:
  const Kernel& kernel_;
  DeviceKind kind_;
  Mirror mirror_;
  MutantMemory memory_;
};

}  // namespace

std::string planted_id(const PlantedRow& row) {
  return (row.honest ? "honest." : "mutant.") + std::string(row.name);
}

bool names_planted(std::string_view id) {
  return id.starts_with("mutant.") || id.starts_with("honest.");
}

std::span<const PlantedRow> planted_table() {
  static const std::vector<PlantedRow> rows = [] {
    std::vector<PlantedRow> all;
    for (const Kernel& kernel : kernels()) all.push_back(kernel.row);
    return all;
  }();
  return rows;
}

std::unique_ptr<Subject> make_planted(std::string_view id) {
  for (const Kernel& kernel : kernels())
    if (planted_id(kernel.row) == id) return std::make_unique<Planted>(kernel);
  return nullptr;
}

std::unique_ptr<Subject> make_planted_on(std::string_view id, Device& device) {
  for (const Kernel& kernel : kernels())
    if (planted_id(kernel.row) == id) return std::make_unique<PlantedOnDevice>(kernel, device);
  return nullptr;
}

}  // namespace greenfast::workbench
