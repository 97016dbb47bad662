#include "backends/cpu/quantize.hpp"

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <limits>
#include <vector>

#include "core/e4m3.hpp"
#include "core/executor.hpp"

namespace greenfast::cpu {
namespace {

float of_half(std::uint16_t bits) {
  const std::uint32_t magnitude = bits & 0x7fffu;
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  if (magnitude >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | magnitude << 13);
  // In a float's place the exponent is 112 too small; the product is exact, subnormals included.
  return std::bit_cast<float>(
      sign | std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude << 13) * 0x1p112f));
}

float load(DType dtype, const void* data, std::int64_t index) {
  if (dtype == DType::f32) return static_cast<const float*>(data)[index];
  const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[index];
  return dtype == DType::f16 ? of_half(bits)
                             : std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

// To nearest, subnormals kept, for as long as it lives; then the mode of the host again, which threads
// inherit from the one that made them.
class DefaultFloatMode {
 public:
  DefaultFloatMode() noexcept {
    (void)std::fegetenv(&host_);
    (void)std::fesetenv(FE_DFL_ENV);
  }
  DefaultFloatMode(const DefaultFloatMode&) = delete;
  DefaultFloatMode& operator=(const DefaultFloatMode&) = delete;
  ~DefaultFloatMode() { (void)std::fesetenv(&host_); }

 private:
  std::fenv_t host_{};
};

struct Job {
  const QuantizeProblem& p;
  const QuantizeTensors& t;
  std::vector<float> largest;  // of each (batch, head)

  template <class Visit>
  void each_row(std::int64_t head, Visit visit) const {
    const std::int64_t b = head / p.heads, h = head % p.heads;
    for (std::int64_t s = 0; s < p.seq; ++s)
      visit(b * p.from.stride[0] + h * p.from.stride[1] + s * p.from.stride[2],
            b * p.to.stride[0] + h * p.to.stride[1] + s * p.to.stride[2]);
  }
};

void find_largest(void* context, std::int64_t head, int /*worker*/) {
  const DefaultFloatMode mode;
  Job& job = *static_cast<Job*>(context);
  float largest = 0;
  job.each_row(head, [&](std::int64_t from, std::int64_t) {
    for (std::int64_t d = 0; d < job.p.head_dim; ++d) {
      const float magnitude = std::fabs(load(job.p.dtype, job.t.from, from + d));
      if (magnitude <= std::numeric_limits<float>::max()) largest = std::max(largest, magnitude);
    }
  });
  job.largest[static_cast<std::size_t>(head)] = largest;
}

void encode(void* context, std::int64_t head, int /*worker*/) {
  const DefaultFloatMode mode;
  const Job& job = *static_cast<Job*>(context);
  const float scale = job.p.scales == ScaleKind::none     ? 1.0f
                      : job.p.scales == ScaleKind::tensor ? job.t.scale[0]
                                                          : job.t.scale[head];
  auto* const to = static_cast<std::uint8_t*>(job.t.to);
  job.each_row(head, [&](std::int64_t from, std::int64_t at) {
    for (std::int64_t d = 0; d < job.p.head_dim; ++d)
      to[at + d * job.p.to.stride[3]] =
          core::to_e4m3(load(job.p.dtype, job.t.from, from + d) / scale);
  });
}

void quantize_one(const QuantizeProblem& p, const QuantizeTensors& t,
                  const core::Context& context) {
  const std::int64_t heads = p.batch * p.heads;
  Job job{p, t, {}};
  if (p.scales != ScaleKind::none && p.compute_scales) {
    job.largest.resize(static_cast<std::size_t>(heads));
    context.executor->run(heads, find_largest, &job);
    const DefaultFloatMode mode;
    if (p.scales == ScaleKind::tensor) {
      t.scale[0] = core::e4m3_scale(*std::max_element(job.largest.begin(), job.largest.end()));
    } else {
      std::transform(job.largest.begin(), job.largest.end(), t.scale, core::e4m3_scale);
    }
  }
  context.executor->run(heads, encode, &job);
}

}  // namespace

Status quantize(std::span<const core::QuantizeCall> calls, const core::Context& context) {
  for (const auto& [problem, tensors] : calls) quantize_one(problem, tensors, context);
  return {};
}

}  // namespace greenfast::cpu
