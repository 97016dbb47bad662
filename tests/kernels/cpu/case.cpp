#include "case.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace greenfast::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Format {
  int exponent_bits, mantissa_bits;
};

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return {5, 10};
    case DType::bf16:
      return {8, 7};
    case DType::e4m3:
      return {4, 3};
    default:
      return {8, 23};
  }
}

std::uint32_t read_bits(DType dtype, const std::byte* element) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, element, size_of(dtype));
  return bits;
}

std::size_t span(const Layout& layout, std::int64_t b, std::int64_t h, std::int64_t s,
                 std::int64_t d) {
  if (b == 0 || h == 0 || s == 0) return 0;
  return static_cast<std::size_t>((b - 1) * layout.stride[0] + (h - 1) * layout.stride[1] +
                                  (s - 1) * layout.stride[2] + d);
}

struct Visible {
  std::int64_t begin, end;
};

Visible visible(const Problem& p, std::int64_t i) {
  const std::int64_t shift = p.mask.alignment == Alignment::bottom_right ? p.seq_kv - p.seq_q : 0;
  std::int64_t begin = 0, end = p.seq_kv;
  if (p.mask.left >= 0) begin = std::max<std::int64_t>(begin, i + shift - p.mask.left);
  if (p.mask.right >= 0) end = std::min<std::int64_t>(end, i + shift + p.mask.right + 1);
  return {begin, std::max(begin, end)};
}

double scale_of(const std::vector<float>& scales, ScaleKind kind, std::int64_t index) {
  if (kind == ScaleKind::none) return 1.0;
  return scales[kind == ScaleKind::tensor ? 0 : static_cast<std::size_t>(index)];
}

}  // namespace

double decode(DType dtype, const std::byte* element) {
  const std::uint32_t bits = read_bits(dtype, element);
  const auto [e_bits, m_bits] = format_of(dtype);
  const std::uint32_t mantissa = bits & ((1u << m_bits) - 1);
  const int exponent = static_cast<int>((bits >> m_bits) & ((1u << e_bits) - 1));
  const double sign = ((bits >> (e_bits + m_bits)) & 1u) != 0 ? -1.0 : 1.0;
  const int bias = (1 << (e_bits - 1)) - 1, top = (1 << e_bits) - 1;
  if (dtype == DType::e4m3) {
    if (exponent == top && mantissa == 7) return kNan;
  } else if (exponent == top) {
    return mantissa == 0 ? sign * kInf : kNan;
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - m_bits);
  return sign * std::ldexp(mantissa + (1u << m_bits), exponent - bias - m_bits);
}

// Rounds to nearest even by way of the spacing at the value's magnitude; values in range, infinity
// where the type has it.
void encode(DType dtype, double value, std::byte* element) {
  const auto [e_bits, m_bits] = format_of(dtype);
  const int bias = (1 << (e_bits - 1)) - 1;
  std::uint32_t bits = 0;
  if (std::isnan(value)) {
    bits = ((1u << e_bits) - 1) << m_bits | ((1u << m_bits) - 1);
  } else if (std::isinf(value)) {
    bits = ((1u << e_bits) - 1) << m_bits;
    if (value < 0) bits |= 1u << (e_bits + m_bits);
  } else {
    int power = 0;
    (void)std::frexp(value, &power);  // |value| in [2^(power-1), 2^power)
    const int exponent = std::max(power - 1, 1 - bias);
    const double steps = std::nearbyint(std::ldexp(std::fabs(value), m_bits - exponent));
    auto mantissa = static_cast<std::uint32_t>(steps);
    auto biased = static_cast<std::uint32_t>(exponent + bias);
    if (mantissa < (1u << m_bits)) {
      biased = 0;
    } else {
      mantissa -= 1u << m_bits;
    }
    bits = (biased << m_bits) + mantissa;  // a carry moves into the exponent, as it should
    if (std::signbit(value)) bits |= 1u << (e_bits + m_bits);
  }
  std::memcpy(element, &bits, size_of(dtype));
}

Case::Case(const Problem& given, std::uint64_t seed, double spread) : problem(given) {
  const Problem& p = problem;
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0.0, spread);
  const std::size_t size = size_of(p.dtype);

  const auto fill = [&](std::vector<std::byte>& data, const Layout& layout, std::int64_t heads,
                        std::int64_t seq, auto seen) {
    data.resize(std::max<std::size_t>(1, span(layout, p.batch, heads, seq, p.head_dim)) * size);
    for (std::size_t at = 0; at + size <= data.size(); at += size) {
      encode(p.dtype, kNan, data.data() + at);
    }
    for (std::int64_t b = 0; b < p.batch; ++b) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t s = 0; s < seq; ++s) {
          if (!seen(s)) continue;
          const std::int64_t at =
              b * layout.stride[0] + h * layout.stride[1] + s * layout.stride[2];
          for (std::int64_t d = 0; d < p.head_dim; ++d) {
            encode(p.dtype, std::clamp(normal(random), -400.0, 400.0),
                   data.data() + static_cast<std::size_t>(at + d) * size);
          }
        }
      }
    }
  };
  std::vector<bool> key_seen(static_cast<std::size_t>(p.seq_kv), false);
  for (std::int64_t i = 0; i < p.seq_q; ++i) {
    const auto [begin, end] = visible(p, i);
    for (std::int64_t j = begin; j < end; ++j) key_seen[static_cast<std::size_t>(j)] = true;
  }
  const auto all = [](std::int64_t) { return true; };
  const auto keys = [&](std::int64_t s) { return key_seen[static_cast<std::size_t>(s)]; };
  fill(q, p.q, p.heads_q, p.seq_q, all);
  fill(k, p.k, p.heads_kv, p.seq_kv, keys);
  fill(v, p.v, p.heads_kv, p.seq_kv, keys);

  const auto draw_scales = [&](std::vector<float>& scales, std::int64_t heads) {
    if (p.scales == ScaleKind::none) return;
    scales.resize(p.scales == ScaleKind::tensor ? 1 : static_cast<std::size_t>(p.batch * heads));
    std::uniform_real_distribution<float> factor(0.25f, 2.0f);
    for (float& s : scales) s = factor(random);
  };
  draw_scales(q_scale, p.heads_q);
  draw_scales(k_scale, p.heads_kv);
  draw_scales(v_scale, p.heads_kv);

  o.resize(std::max<std::size_t>(1, span(p.o, p.batch, p.heads_q, p.seq_q, p.head_dim)) *
           size_of(p.out_dtype));
  lse.resize(static_cast<std::size_t>(p.batch * p.heads_q * p.seq_q));
  poison_output();

  const auto pointer = [](const std::vector<float>& s) { return s.empty() ? nullptr : s.data(); };
  tensors = {.q = q.data(),
             .k = k.data(),
             .v = v.data(),
             .o = o.data(),
             .lse = p.lse ? lse.data() : nullptr,
             .q_scale = pointer(q_scale),
             .k_scale = pointer(k_scale),
             .v_scale = pointer(v_scale)};
}

void Case::poison_output() {
  const std::size_t size = size_of(problem.out_dtype);
  for (std::size_t at = 0; at + size <= o.size(); at += size) {
    encode(problem.out_dtype, kNan, o.data() + at);
  }
  std::fill(lse.begin(), lse.end(), std::numeric_limits<float>::quiet_NaN());
}

Expected::Expected(const Case& call) {
  const Problem& p = call.problem;
  const auto dim = static_cast<std::size_t>(p.head_dim);
  const auto row_count = static_cast<std::size_t>(p.batch * p.heads_q * p.seq_q);
  rows_.resize(row_count);
  o_.assign(row_count * dim, 0.0);
  weight_.assign(row_count * dim, 0.0);

  const auto decode_row = [&](const std::vector<std::byte>& data, const Layout& layout,
                              std::int64_t b, std::int64_t h, std::int64_t s, double* to) {
    const std::int64_t at = b * layout.stride[0] + h * layout.stride[1] + s * layout.stride[2];
    const std::size_t size = size_of(p.dtype);
    for (std::size_t d = 0; d < dim; ++d) {
      to[d] = decode(p.dtype, data.data() + (static_cast<std::size_t>(at) + d) * size);
    }
  };

  std::vector<double> k(static_cast<std::size_t>(p.seq_kv) * dim), v(k.size()), q(dim);
  std::vector<double> score(static_cast<std::size_t>(p.seq_kv));
  const std::int64_t group = p.heads_q / p.heads_kv;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    for (std::int64_t h = 0; h < p.heads_q; ++h) {
      const std::int64_t h_kv = h / group;
      if (h % group == 0) {
        for (std::int64_t j = 0; j < p.seq_kv; ++j) {
          decode_row(call.k, p.k, b, h_kv, j, &k[static_cast<std::size_t>(j) * dim]);
          decode_row(call.v, p.v, b, h_kv, j, &v[static_cast<std::size_t>(j) * dim]);
        }
      }
      const double scale = double{p.scale} * scale_of(call.q_scale, p.scales, b * p.heads_q + h) *
                           scale_of(call.k_scale, p.scales, b * p.heads_kv + h_kv);
      const double v_scale = scale_of(call.v_scale, p.scales, b * p.heads_kv + h_kv);
      for (std::int64_t i = 0; i < p.seq_q; ++i) {
        const auto index = static_cast<std::size_t>((b * p.heads_q + h) * p.seq_q + i);
        Row& row = rows_[index];
        double* const o = &o_[index * dim];
        double* const weight = &weight_[index * dim];
        decode_row(call.q, p.q, b, h, i, q.data());
        const auto [begin, end] = visible(p, i);
        row.sees = begin < end;
        double max = -kInf, sum = 0.0;
        for (std::int64_t j = begin; j < end; ++j) {
          const double* const key = &k[static_cast<std::size_t>(j) * dim];
          double s = 0.0, m = 0.0;
          for (std::size_t d = 0; d < dim; ++d) {
            s += q[d] * key[d];
            m += std::fabs(q[d] * key[d]);
          }
          s *= scale;
          row.magnitude = std::max(row.magnitude, m * std::fabs(scale));
          if (p.softcap > 0.0f) s = double{p.softcap} * std::tanh(s / double{p.softcap});
          score[static_cast<std::size_t>(j)] = s;
          max = std::max(max, s);
        }
        for (std::int64_t j = begin; j < end; ++j) {
          const double w = std::exp(score[static_cast<std::size_t>(j)] - max);
          const double* const value = &v[static_cast<std::size_t>(j) * dim];
          sum += w;
          for (std::size_t d = 0; d < dim; ++d) {
            o[d] += w * value[d] * v_scale;
            weight[d] += w * std::fabs(value[d] * v_scale);
          }
        }
        row.lse = row.sees ? max + std::log(sum) : -kInf;
        for (std::size_t d = 0; d < dim && row.sees; ++d) {
          o[d] /= sum;
          weight[d] /= sum;
        }
      }
    }
  }
}

std::string Expected::compare(const Case& call, double p_epsilon, double exp_epsilon) const {
  const Problem& p = call.problem;
  const auto dim = static_cast<std::size_t>(p.head_dim);
  const std::size_t size = size_of(p.out_dtype);
  const double out_epsilon = std::ldexp(1.0, -format_of(p.out_dtype).mantissa_bits - 1) * 1.001;
  std::size_t written = 0, touched = 0;
  for (std::size_t index = 0; index < rows_.size(); ++index) {
    const Row& row = rows_[index];
    const auto i = static_cast<std::int64_t>(index) % p.seq_q;
    const auto h = static_cast<std::int64_t>(index) / p.seq_q % p.heads_q;
    const auto b = static_cast<std::int64_t>(index) / p.seq_q / p.heads_q;
    const std::int64_t at = b * p.o.stride[0] + h * p.o.stride[1] + i * p.o.stride[2];
    const auto where = [&] {
      return " at b=" + std::to_string(b) + " h=" + std::to_string(h) + " i=" + std::to_string(i);
    };
    // fp32 rounds a score, and so the logarithm of a weight, by a few units in the last place of
    // the largest partial sum.
    const double fp32_epsilon = (row.magnitude + 8.0) * 4.0e-7;
    for (std::size_t d = 0; d < dim; ++d) {
      const double want = o_[index * dim + d];
      const double got =
          decode(p.out_dtype, call.o.data() + (static_cast<std::size_t>(at) + d) * size);
      const double limit =
          row.sees ? (fp32_epsilon + p_epsilon + exp_epsilon) * weight_[index * dim + d] +
                         out_epsilon * std::fabs(want) + 3.0e-8
                   : 0.0;
      if (!(std::fabs(got - want) <= limit)) {
        return "O is " + std::to_string(got) + ", not " + std::to_string(want) + " +- " +
               std::to_string(limit) + where() + " d=" + std::to_string(d);
      }
      ++written;
    }
    if (!p.lse) continue;
    const double got = call.lse[index];
    if (!(row.sees ? std::fabs(got - row.lse) <= fp32_epsilon + exp_epsilon : got == -kInf)) {
      return "LSE is " + std::to_string(got) + ", not " + std::to_string(row.lse) + where();
    }
  }
  // Whatever else changed was not the kernel's to write.
  for (std::size_t at = 0; at + size <= call.o.size(); at += size) {
    touched += std::isnan(decode(p.out_dtype, call.o.data() + at)) ? 0 : 1;
  }
  if (touched != written) {
    return std::to_string(touched) + " output elements written, not " + std::to_string(written);
  }
  return {};
}

Problem random_problem(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  const auto chance = [&](int percent) { return pick(1, 100) <= percent; };
  const auto length = [&] {
    switch (pick(0, 3)) {
      case 0:
        return pick(1, 8);
      case 1:
        return pick(9, 70);
      case 2:
        return std::int64_t{64} * pick(1, 4) + pick(-1, 1);
      default:
        return pick(71, 420);
    }
  };

  const std::int64_t heads_kv = pick(1, 3), group = chance(50) ? 1 : pick(2, 5);
  const auto dtype = static_cast<DType>(pick(0, 3));
  Problem p = make_problem(pick(1, 2), heads_kv * group, heads_kv, chance(25) ? 1 : length(),
                           length(), 8 * (chance(60) ? pick(1, 2) * 8 : pick(1, 32)), dtype,
                           chance(50) ? Order::bhsd : Order::bshd);
  p.out_dtype = static_cast<DType>(pick(0, 2));
  p.lse = chance(50);
  if (dtype == DType::e4m3) p.scales = static_cast<ScaleKind>(pick(0, 2));
  if (chance(20)) p.softcap = static_cast<float>(pick(1, 30));
  if (chance(10)) p.scale = -p.scale;
  if (chance(5)) p.scale = 0.0f;

  const auto alignment = static_cast<Alignment>(pick(0, 1));
  switch (pick(0, 3)) {
    case 0:
      p.mask = Mask::none();
      break;
    case 1:
      p.mask = Mask::causal(alignment);
      break;
    default: {
      const std::int64_t longest = std::max(p.seq_q, p.seq_kv);
      p.mask = Mask::window(chance(20) ? -1 : pick(0, longest), chance(20) ? -1 : pick(0, longest),
                            alignment);
    }
  }

  // Padded rows now and then, and keys or values shared by the batch or by all heads.
  if (chance(30)) {
    for (Layout* layout : {&p.q, &p.k, &p.v, &p.o}) {
      const std::int64_t heads = layout == &p.k || layout == &p.v ? p.heads_kv : p.heads_q;
      const std::int64_t seq = layout == &p.k || layout == &p.v ? p.seq_kv : p.seq_q;
      const std::int64_t row = p.head_dim + pick(0, 5);
      layout->stride = {heads * seq * row + pick(0, 3), seq * row + 0, row, 1};
    }
  }
  if (chance(10)) p.k.stride[0] = p.v.stride[0] = 0;
  if (chance(10)) p.k.stride[1] = 0;
  return p;
}

}  // namespace greenfast::test
