#include "backends/cpu/smooth.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "backends/cpu/values.hpp"
#include "core/executor.hpp"
#include "core/rotate.hpp"
#include "core/smooth.hpp"

namespace greenfast::cpu {
namespace {

struct Means {
  const core::QuantizeCall& call;
  float* to;
};

void find_means(void* context, std::int64_t head, int /*worker*/) {
  const DefaultFloatMode mode;
  const auto& [call, to] = *static_cast<const Means*>(context);
  const QuantizeProblem& p = call.problem;
  const std::int64_t b = head / p.heads, h = head % p.heads;
  for (std::int64_t d = 0; d < p.head_dim; ++d) {
    std::array<float, core::kSums> sums{};
    for (std::int64_t n = 0; n < core::sampled_keys(p.seq); ++n) {
      const std::int64_t key = core::sampled_key(n, p.seq);
      const float x =
          load(p.dtype, call.tensors.from,
               b * p.from.stride[0] + h * p.from.stride[1] + key * p.from.stride[2] + d);
      sums[static_cast<std::size_t>(n % core::kSums)] += std::isfinite(x) ? x : 0.0f;
    }
    float all = 0.0f;
    for (const float sum : sums) all += sum;
    to[head * p.head_dim + d] = core::mean_of(all, p.seq);
  }
  if (p.rotate)
    core::rotate_row(to + head * p.head_dim, static_cast<int>(p.head_dim) / core::kRotatedColumns);
}

struct Shift {
  const Problem& p;
  const Tensors& codes;
  const float* means;
};

float of_code(std::uint8_t code) {
  const std::uint32_t magnitude = code & 0x7fu;
  // In a float's place the exponent is 120 too small.
  const float x = std::bit_cast<float>(magnitude << 20) * 0x1p120f;
  return magnitude == 0x7fu ? std::bit_cast<float>(0x7fc00000u) : (code & 0x80u) != 0 ? -x : x;
}

void shift_head(void* context, std::int64_t head, int /*worker*/) {
  const DefaultFloatMode mode;
  const auto& [p, codes, means] = *static_cast<const Shift*>(context);
  const std::int64_t b = head / p.heads_q, kv = head % p.heads_q / (p.heads_q / p.heads_kv);
  const float* const mean = means + (b * p.heads_kv + kv) * p.head_dim;
  for (std::int64_t row = head * p.seq_q; row < (head + 1) * p.seq_q; ++row) {
    // A row that sees no key has none, whatever Q holds.
    if (codes.lse[row] == -std::numeric_limits<float>::infinity()) continue;
    double sum = 0.0;  // which codes times large means may leave fp32 for
    for (std::int64_t d = 0; d < p.head_dim; ++d)
      sum += static_cast<double>(
                 of_code(static_cast<const std::uint8_t*>(codes.q)[row * p.head_dim + d])) *
             mean[d];
    codes.lse[row] = static_cast<float>(codes.lse[row] + sum * codes.q_scale[head] * p.scale);
  }
}

}  // namespace

Status column_means(const core::QuantizeCall& call, float* means, const core::Context& context) {
  Means job{call, means};
  context.executor->run(call.problem.batch * call.problem.heads, find_means, &job);
  return {};
}

Status shift_lse(const Problem& problem, const Tensors& codes, const float* means,
                 const core::Context& context) {
  Shift job{problem, codes, means};
  context.executor->run(problem.batch * problem.heads_q, shift_head, &job);
  return {};
}

}  // namespace greenfast::cpu
