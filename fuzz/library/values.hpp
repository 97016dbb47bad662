// What the fuzzer's host and device code agree on: number formats, the values of a problem's
// tensors, scores and error limits. Shares nothing with the library but the meaning of a Problem.
#pragma once

#include <cmath>
#include <cstdint>

#include <greenfast/types.hpp>

#if defined(__CUDACC__)
#define FUZZ_HD __host__ __device__ inline
#else
#define FUZZ_HD inline
#endif

namespace greenfast::fuzz {

// ---- Number formats ----

FUZZ_HD std::uint32_t bits_of(float x) { return __builtin_bit_cast(std::uint32_t, x); }
FUZZ_HD bool is_nan(double x) { return x != x; }
FUZZ_HD bool is_finite(double x) { return x - x == 0.0; }
FUZZ_HD float float_of(std::uint32_t x) { return __builtin_bit_cast(float, x); }

/// Rounds to nearest even. e4m3 saturates at 448.
FUZZ_HD std::uint32_t encode(DType type, float x) {
  std::uint32_t u = bits_of(x);
  if (type == DType::f32) return u;
  const std::uint32_t negative = u >> 31;
  u &= 0x7fffffffu;
  const float magnitude = float_of(u);
  if (type == DType::bf16) {
    const std::uint32_t code = u > 0x7f800000u ? 0x7fc0u : (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
    return code | negative << 15;
  }
  if (type == DType::f16) {
    std::uint32_t code;
    if (u > 0x7f800000u) {
      code = 0x7e00u;
    } else if (u >= 0x477ff000u) {  // 65520 and above
      code = 0x7c00u;
    } else if (u < 0x38800000u) {  // below 2^-14: multiples of 2^-24, the last place of 0.5
      code = bits_of(magnitude + 0.5f) - bits_of(0.5f);
    } else {
      code = (u + 0xfffu + (u >> 13 & 1u) - (112u << 23)) >> 13;
    }
    return code | negative << 15;
  }
  std::uint32_t code;
  if (u > 0x7f800000u) {
    code = 0x7fu;
  } else if (u >= 0x43e00000u) {  // 448 and above
    code = 0x7eu;
  } else if (u < 0x3c800000u) {  // below 2^-6: multiples of 2^-9, the last place of 2^14
    code = bits_of(magnitude + 16384.0f) - bits_of(16384.0f);
  } else {
    code = (u + 0x7ffffu + (u >> 20 & 1u) - (120u << 23)) >> 20;
  }
  return code | negative << 7;
}

FUZZ_HD float decode(DType type, std::uint32_t code) {
  if (type == DType::f32) return float_of(code);
  if (type == DType::bf16) return float_of(code << 16);
  if (type == DType::f16) {
    const std::uint32_t sign = (code & 0x8000u) << 16, rest = code & 0x7fffu;
    if (rest >= 0x7c00u) return float_of(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    return float_of(sign | bits_of(float_of(rest << 13) * 0x1p112f));
  }
  const std::uint32_t sign = (code & 0x80u) << 24, rest = code & 0x7fu;
  if (rest == 0x7fu) return float_of(0x7fc00000u);
  return float_of(sign | bits_of(float_of(rest << 20) * 0x1p120f));
}

FUZZ_HD std::uint32_t load_code(DType type, const void* data, std::int64_t at) {
  if (type == DType::f32) return static_cast<const std::uint32_t*>(data)[at];
  if (type == DType::e4m3) return static_cast<const std::uint8_t*>(data)[at];
  return static_cast<const std::uint16_t*>(data)[at];
}
FUZZ_HD void store_code(DType type, void* data, std::int64_t at, std::uint32_t code) {
  if (type == DType::f32) {
    static_cast<std::uint32_t*>(data)[at] = code;
  } else if (type == DType::e4m3) {
    static_cast<std::uint8_t*>(data)[at] = static_cast<std::uint8_t>(code);
  } else {
    static_cast<std::uint16_t*>(data)[at] = static_cast<std::uint16_t>(code);
  }
}
FUZZ_HD float load(DType type, const void* data, std::int64_t at) {
  return decode(type, load_code(type, data, at));
}

/// Outputs hold this word before a call: a NaN with a payload that no instruction makes.
inline constexpr std::uint32_t kUnwritten = 0xffdcffdcu;

// ---- The values of a problem ----

enum class Scores : std::int32_t {
  normal,     // of Q and K drawn from a normal distribution
  dominated,  // a few keys stand `gap` nats above the others
  ramp,       // they rise (or fall) by `gap` nats from the first key to the last
  minus_inf,  // some keys, or all, score -inf
};
enum class Weighted : std::int32_t {
  normal,
  constant,  // every element of V is the same
  mean_one,  // 1 and a quarter of a normal distribution: errors do not cancel
  contrast,  // 0 for the dominating keys, 1 for the others
};
/// A NaN or an infinity in one element that rows may see.
enum class Plant : std::int32_t { none, nan_q, nan_k, nan_v, inf_v };

enum class Which : std::int32_t { q, k, v };

/// How the elements of Q, K and V come about: a pure function of this and their coordinates.
struct Values {
  std::uint64_t seed = 0;
  float q = 1.0f, k = 1.0f, v = 1.0f;  // magnitudes
  Scores scores = Scores::normal;
  float gap = 0.0f;
  float lead = 0.0f;       // Q's first column where scores are not normal
  float nat = 0.0f;        // K's first column for one nat
  std::int64_t first = 0;  // of the keys that dominate; the modulus of those that score -inf
  std::int64_t count = 0;  // of the keys that dominate; keys of the ramp
  Weighted weighted = Weighted::normal;
  Plant plant = Plant::none;
  std::int64_t plant_at[4] = {};  // b, h, s, d
};

FUZZ_HD std::uint64_t mixed(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

/// Mean 0, variance 1, at most 3.47: the sum of four uniform numbers.
FUZZ_HD float normal_at(std::uint64_t seed, Which which, std::int64_t b, std::int64_t h,
                        std::int64_t s, std::int64_t d) {
  const std::uint64_t x = mixed(seed + static_cast<std::uint64_t>(which) * 0x9e3779b97f4a7c15u +
                                static_cast<std::uint64_t>(b) * 0xd1b54a32d192ed03u +
                                static_cast<std::uint64_t>(h) * 0x8cb92ba72f3d8dd7u +
                                static_cast<std::uint64_t>(s) * 0xaef17502108ef2d9u +
                                static_cast<std::uint64_t>(d) * 0xf1357aea2e62a9c5u);
  const auto sum = static_cast<std::int32_t>((x & 0xffffu) + (x >> 16 & 0xffffu) +
                                             (x >> 32 & 0xffffu) + (x >> 48));
  return static_cast<float>(sum - 131070) * (1.7320508f / 65536.0f);
}

FUZZ_HD float element(const Values& v, Which which, std::int64_t b, std::int64_t h, std::int64_t s,
                      std::int64_t d) {
  const auto planted = [&] {
    return v.plant_at[0] == b && v.plant_at[1] == h && v.plant_at[2] == s && v.plant_at[3] == d;
  };
  const float infinity = float_of(0x7f800000u), nan = float_of(0x7fc00000u);
  const bool dominates = v.scores == Scores::dominated && s >= v.first && s < v.first + v.count;
  if (which == Which::q) {
    if (v.plant == Plant::nan_q && planted()) return nan;
    if (v.scores != Scores::normal && d == 0) return v.lead;
    return normal_at(v.seed, which, b, h, s, d) * v.q;
  }
  if (which == Which::k) {
    if (v.plant == Plant::nan_k && planted()) return nan;
    if (v.scores == Scores::normal || d != 0) return normal_at(v.seed, which, b, h, s, d) * v.k;
    if (v.scores == Scores::dominated) return dominates ? v.gap * v.nat : 0.0f;
    if (v.scores == Scores::ramp)
      return v.gap * v.nat * (static_cast<float>(s) / static_cast<float>(v.count));
    return s % v.first == 0 ? -infinity : 0.0f;
  }
  if (v.plant == Plant::nan_v && planted()) return nan;
  if (v.plant == Plant::inf_v && planted()) return infinity;
  switch (v.weighted) {
    case Weighted::constant:
      return v.v;
    case Weighted::mean_one:
      return (1.0f + 0.25f * normal_at(v.seed, which, b, h, s, d)) * v.v;
    case Weighted::contrast:
      return dominates ? 0.0f : v.v;
    default:
      return normal_at(v.seed, which, b, h, s, d) * v.v;
  }
}

// ---- A problem as the reference sees it ----

FUZZ_HD unsigned long long digest_of(std::uint32_t word, std::uint64_t at) {
  return mixed(at * 0x9e3779b97f4a7c15u + word);
}

/// Which entry stands where: place b holds what entry (first + b * step) mod batch is drawn from.
struct Arrangement {
  std::int64_t first = 0, step = 1;
};

struct View {
  std::int64_t batch, heads_q, heads_kv, seq_q, seq_kv, head_dim;
  std::int64_t q_stride[4], k_stride[4], v_stride[4], o_stride[4];
  DType in, out;
  ScaleKind scales;
  bool has_lse;
  double scale, softcap;
  std::int64_t below, above;  // query i sees the keys [i + below, i + above] of [0, seq_kv)
  Values values;
  Arrangement arranged;
  // A NaN may stand in any row of the batch entry and KV head of the plant, or (spoilt) anywhere:
  // scores of this problem may overflow fp32.
  bool spoilt;
  bool narrow;  // kernels may round weights to e4m3, and sums of e4m3 products to halves
  double
      raised;  // weights that are summed before the division, as large as they may be; 0: below 1
  const void *q, *k, *v;
  const float *q_scale, *k_scale, *v_scale;
};

FUZZ_HD std::int64_t entry_at(const View& view, std::int64_t place) {
  return (view.arranged.first + place * view.arranged.step) % view.batch;
}
/// The element at a place. One entry of K and V that all places share (a batch stride of 0) stays.
FUZZ_HD float element_at(const View& view, Which which, std::int64_t batch_stride,
                         std::int64_t place, std::int64_t h, std::int64_t s, std::int64_t d) {
  return element(view.values, which, batch_stride == 0 ? 0 : entry_at(view, place), h, s, d);
}
FUZZ_HD std::int64_t first_key(const View& view, std::int64_t row) {
  return row + view.below > 0 ? row + view.below : 0;
}
FUZZ_HD std::int64_t end_key(const View& view, std::int64_t row) {
  const std::int64_t end = row + view.above + 1;
  return end < view.seq_kv ? end : view.seq_kv;
}
FUZZ_HD bool some_row_sees(const View& view, std::int64_t key) {
  return key >= first_key(view, 0) && key < end_key(view, view.seq_q - 1);
}
/// Descale factors of Q (0), K (1) and V (2), and which of them a row has.
FUZZ_HD std::int64_t scales_a_head(const View& view, int tensor) {
  const std::int64_t rows = tensor == 0 ? view.seq_q : view.seq_kv;
  return view.scales == ScaleKind::per_block ? (rows + 127) / 128 : 1;
}
FUZZ_HD std::int64_t scales_an_entry(const View& view, int tensor) {
  return (tensor == 0 ? view.heads_q : view.heads_kv) * scales_a_head(view, tensor);
}
FUZZ_HD std::int64_t scale_count(const View& view, int tensor) {
  if (view.scales == ScaleKind::none) return 0;
  return view.scales == ScaleKind::tensor ? 1 : view.batch * scales_an_entry(view, tensor);
}
FUZZ_HD double descale(const View& view, int tensor, std::int64_t b, std::int64_t h,
                       std::int64_t row) {
  if (view.scales == ScaleKind::none) return 1.0;
  const float* const scales = tensor == 0   ? view.q_scale
                              : tensor == 1 ? view.k_scale
                                            : view.v_scale;
  if (view.scales == ScaleKind::tensor) return static_cast<double>(scales[0]);
  const std::int64_t block = view.scales == ScaleKind::per_block ? row / 128 : 0;
  return static_cast<double>(
      scales[b * scales_an_entry(view, tensor) + h * scales_a_head(view, tensor) + block]);
}
/// Descale factors from 1/8 to 4.
FUZZ_HD float scale_at(const View& view, int tensor, std::int64_t place) {
  const std::int64_t entry = scales_an_entry(view, tensor);
  const std::int64_t at = view.scales == ScaleKind::tensor
                              ? place
                              : entry_at(view, place / entry) * entry + place % entry;
  const std::uint64_t x = mixed(view.values.seed ^ (static_cast<std::uint64_t>(at) * 3 +
                                                    static_cast<std::uint64_t>(tensor) + 77));
  const float base = float_of((127u - 3u + static_cast<std::uint32_t>(x % 5)) << 23);
  return base * (1.0f + static_cast<float>(x >> 40) * 0x1p-24f);
}
FUZZ_HD bool tainted(const View& view, std::int64_t b, std::int64_t h) {
  if (view.spoilt) return true;
  const std::int64_t group = view.heads_q / view.heads_kv;
  const Values& v = view.values;
  if (v.plant == Plant::none || v.plant_at[0] != b) return false;
  return (v.plant == Plant::nan_q ? v.plant_at[1] / group : v.plant_at[1]) == h / group;
}

/// The rows that are compared: all, or one of each of `slots` equal parts.
FUZZ_HD std::int64_t row_of_slot(std::int64_t slot, std::int64_t slots, std::int64_t rows) {
  if (slots >= rows) return slot;
  if (slot == 0 || slot == slots - 1) return slot == 0 ? 0 : rows - 1;
  const std::int64_t begin = slot * rows / slots, end = (slot + 1) * rows / slots;
  return begin + static_cast<std::int64_t>(mixed(static_cast<std::uint64_t>(slot)) >> 1) %
                     (end > begin ? end - begin : 1);
}

// ---- Scores and limits ----

inline constexpr double kLargestFloat = 0x1.fffffep127;

/// The size that an input has where a tensor core adds its products: it aligns them by their
/// exponents, and fp16's subnormal numbers have that of 2^-14 (H200, 2026-11-23: 1 key, D 32, Q of
/// 2^-24 off by 2^-38, where fp32 would have been exact).
FUZZ_HD float counted(DType type, float x) {
  const float size = fabsf(x);
  return type == DType::f16 && size > 0.0f && size < 0x1p-14f ? 0x1p-14f : size;
}

/// A score and by how much an honest kernel may miss it. slack < 0: fp32 overflows on the way.
struct Score {
  double value, slack;
};

/// From a dot product and the sum of its terms' magnitudes (fp32 is enough for that). fp32 products
/// are summed 8 or 16 at a time, each addition to the accumulator rounds or truncates once.
FUZZ_HD Score score_of(const View& view, double dot, float magnitude, double factor) {
  constexpr double kUlp = 0x1p-23;
  double s = dot * factor;
  if (!is_finite(dot))  // an input is not finite, which is exact
    return {view.softcap > 0.0 ? view.softcap * tanh(s / view.softcap) : s, 0.0};
  const double sum = static_cast<double>(magnitude);
  const double size = fabs(factor);
  if (!(sum <= kLargestFloat) || !(sum * size <= kLargestFloat)) return {s, -1.0};
  const double dim = static_cast<double>(view.head_dim);
  // Where products are subnormal in fp32, they may be flushed to zero.
  double slack = kUlp * ((2.0 + dim / 8.0) * sum * size + 4.0 * fabs(s)) + dim * 0x1p-126 * size;
  // Hopper's sums of 32 products of e4m3 in halves, cut off rather than rounded, and the scale.
  if (view.narrow) slack += 0x1p-10 * ((2.0 + dim / 32.0) * sum * size + fabs(s));
  if (view.softcap > 0.0) {
    s = view.softcap * tanh(s / view.softcap);
    slack += 4.0 * kUlp * fabs(s);
  }
  return {s, slack};
}

/// Half a unit in the last place of 1.
FUZZ_HD double roundoff(DType type) {
  return type == DType::f32 ? 0x1p-24 : type == DType::f16 ? 0x1p-11 : 0x1p-8;
}
/// Of a weight: of 16 bits, or an exponential of fp32. Half a place of e4m3, and a hundredth for what it was
/// rounded from (cuda.sm90.fp8_curved).
FUZZ_HD double weight_roundoff(const View& view) {
  return view.narrow ? 0.075 : view.in == DType::f32 ? 0x1p-21 : roundoff(view.in);
}
/// Half of the distance between the smallest numbers of a type.
FUZZ_HD double quantum(DType type) { return type == DType::f16 ? 0x1p-25 : 0x1p-126; }
FUZZ_HD double largest(DType type) {
  return type == DType::f16 ? 65504.0 : type == DType::bf16 ? 3.3895313892515355e38 : kLargestFloat;
}

/// fp32 sums over `keys` keys: rounding errors that are independent, and those of one tile of keys
/// that are not: equal weights added to a sum of nearly one size all round the same way (one key
/// 7.5 nats above 95 equal ones, fp32: O off by 4.6e-6, the same on every instruction set).
FUZZ_HD double summing(double keys) {
  const double tile = keys < 256.0 ? keys : 256.0;
  return 0x1p-23 * (8.0 + 2.0 * sqrt(keys)) + 0x1p-24 * tile;
}

inline constexpr double kAnything = -1.0;  // as a limit: any value will do
inline constexpr double kNan = -2.0;       // NaN alone

/// What of a row's weights and values decides the limit of an element of O.
struct Sums {
  double keys;       // that the row sees
  double top;        // the largest weight
  double o;          // sum of weight * value: the reference
  double magnitude;  // ... |value|
  double least;      // ... that may be left out
  double moved;      // sum of what scores' slack may move each weight * |value - o|
};
/// Weights are rounded once to 16 bits (fp32 inputs: an exponential of fp32), and so may partial
/// results be on their way to each other. fp16 weights below 2^-14 have a fixed last place. What is
/// rounded at last is the result, not the reference: where scores decide otherwise, another value.
FUZZ_HD double limit_of(const View& view, const Sums& s) {
  if (is_nan(s.o)) return kNan;
  if (!is_finite(s.o) || !is_finite(s.magnitude)) return kAnything;
  if (s.magnitude / s.top * view.raised > kLargestFloat) return kAnything;
  const double weight = weight_roundoff(view);
  // Two subnormals of fp16: partial results may be rounded to it on their way to each other.
  const double floor_in = quantum(view.in);
  const double floor_out = view.out == DType::f16 ? 0x1p-23 : quantum(view.out);
  return s.moved + (2.25 * weight + summing(s.keys)) * s.magnitude + s.least +
         roundoff(view.out) * (fabs(s.o) + s.moved) + (floor_in > floor_out ? floor_in : floor_out);
}
/// Of a weight that small nothing need be left, relative to the largest: half of fp16's last place,
/// or where an exponential of fp32 is flushed to zero, its largest being less than 1. Codes of e4m3 that are
/// linear in the logarithm end at 2^-7, and a row's largest weight may stand at 2^5.
FUZZ_HD double weight_quantum(const View& view) {
  return view.narrow ? 0x1p-12 : view.in == DType::f16 ? 0x1p-25 : 0x1p-80;
}

/// What of a weight times a value may be left out.
FUZZ_HD double lost(DType in, double p, double least, double value) {
  const double size = fabs(value), product = p * size;
  // Products of bf16 below 2^-126 are flushed, and weights may be smaller by 2^32.
  const double flushed = in == DType::bf16 ? 0x1p-94 : 0.0;
  const double most = least * size > flushed ? least * size : flushed;
  return product < most ? product : most;
}

/// Of a weight p = exp(distance), as far as scores that are off by `slack` may move it, up or down: where
/// a key of 0.005 becomes the only one, that of 0.995 loses all.
FUZZ_HD double moved_by(double distance, double p, double slack) {
  if (slack < 1e-3) return p * slack * 1.001;
  const double moved = distance + slack;
  const double up = (moved < 0.0 ? exp(moved) : 1.0) - p, down = p - p * exp(-slack);
  return up > down ? up : down;
}

/// `shift`: by how much scores' slack may move the log-sum-exp. `squares`: sum of squares of weights.
/// `together`: by how much weights that are rounded alike may move it, whatever their number.
FUZZ_HD double lse_limit(const View& view, double keys, double lse, double top_score, double shift,
                         double squares, double together) {
  const double size = fabs(lse) > fabs(top_score) ? fabs(lse) : fabs(top_score);
  // A log-sum-exp of weights that were rounded to e4m3 would be worth little: exact kernels have none.
  const double weight = view.narrow || view.in == DType::f32 ? 0x1p-21 : roundoff(view.in);
  const double apart = 2.0 * weight * sqrt(squares);
  return shift + 0x1p-20 * size + summing(keys) + (apart > together ? apart : together);
}

/// How far a result is off, in limits: at most 1 is right. Infinity where no limit can be asked.
FUZZ_HD float off_by(double got, double expected, double limit, bool may_be_nan, double range) {
  const float wrong = float_of(0x7f800000u);
  if (limit == kAnything) return 0.0f;
  if (limit == kNan) return is_nan(got) ? 0.0f : wrong;
  if (is_nan(got)) return may_be_nan ? 0.0f : wrong;
  if (!is_finite(expected)) return got == expected ? 0.0f : wrong;
  if (!is_finite(got)) {
    const bool sign = got * expected > 0.0 || limit > fabs(expected);
    return sign && fabs(expected) + limit >= range ? 0.0f : wrong;
  }
  const double error = fabs(got - expected);
  if (error == 0.0) return 0.0f;
  if (!(limit > 0.0)) return wrong;
  const double ratio = error / limit;
  return ratio > 1e30 ? 1e30f : static_cast<float>(ratio);
}
/// From here on a finite result may round to infinity: only where the output's range is smaller
/// than V's.
FUZZ_HD double infinite_from(const View& view) {
  if (view.out == DType::f16 && view.in != DType::f16) return 65520.0;
  // Half a last place beyond the largest bf16.
  if (view.out == DType::bf16 && view.in == DType::f32) return 0x1.ffp127;
  return float_of(0x7f800000u);
}

}  // namespace greenfast::fuzz
