#include "backends/cpu/quantize.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include <greenfast/arithmetic.hpp>

#include "backends/cpu/values.hpp"
#include "core/check.hpp"
#include "core/e4m3.hpp"
#include "core/executor.hpp"
#include "core/rotate.hpp"

namespace greenfast::cpu {
namespace {

struct Job {
  const QuantizeProblem& p;
  const QuantizeTensors& t;
  const float* offset;         // of each head's columns, or null
  std::int64_t of_head, rows;  // units, and how many rows each has: all of a head, or kScaleBlock
  std::vector<float> largest;  // of each unit

  using Row = std::array<float, core::kMaxHeadDim>;
  void load_row(std::int64_t head, std::int64_t from, Row& row) const {
    for (std::int64_t d = 0; d < p.head_dim; ++d)
      row[static_cast<std::size_t>(d)] = load(p.dtype, t.from, from + d);
    if (p.rotate)
      core::rotate_row(row.data(), static_cast<int>(p.head_dim) / core::kRotatedColumns);
    if (offset != nullptr)
      for (std::int64_t d = 0; d < p.head_dim; ++d)
        row[static_cast<std::size_t>(d)] -= offset[head * p.head_dim + d];
  }
  template <class Visit>
  void each_row(std::int64_t unit, Visit visit) const {
    const std::int64_t head = unit / of_head, block = unit % of_head;
    const std::int64_t b = head / p.heads, h = head % p.heads;
    const std::int64_t first = block * rows, end = std::min(p.seq, first + rows);
    for (std::int64_t s = first; s < end; ++s)
      visit(b * p.from.stride[0] + h * p.from.stride[1] + s * p.from.stride[2],
            b * p.to.stride[0] + h * p.to.stride[1] + s * p.to.stride[2]);
  }
};

void find_largest(void* context, std::int64_t unit, int /*worker*/) {
  const DefaultFloatMode mode;
  Job& job = *static_cast<Job*>(context);
  float largest = 0;
  Job::Row row;
  job.each_row(unit, [&](std::int64_t from, std::int64_t) {
    job.load_row(unit / job.of_head, from, row);
    for (std::int64_t d = 0; d < job.p.head_dim; ++d) {
      const float magnitude = std::fabs(row[static_cast<std::size_t>(d)]);
      if (magnitude <= std::numeric_limits<float>::max()) largest = std::max(largest, magnitude);
    }
  });
  job.largest[static_cast<std::size_t>(unit)] = largest;
}

void encode(void* context, std::int64_t unit, int /*worker*/) {
  const DefaultFloatMode mode;
  const Job& job = *static_cast<Job*>(context);
  const float scale = job.p.scales == ScaleKind::none     ? 1.0f
                      : job.p.scales == ScaleKind::tensor ? job.t.scale[0]
                                                          : job.t.scale[unit];
  auto* const to = static_cast<std::uint8_t*>(job.t.to);
  Job::Row row;
  job.each_row(unit, [&](std::int64_t from, std::int64_t at) {
    job.load_row(unit / job.of_head, from, row);
    for (std::int64_t d = 0; d < job.p.head_dim; ++d)
      to[at + d * job.p.to.stride[3]] = core::to_e4m3(row[static_cast<std::size_t>(d)] / scale);
  });
}

void quantize_one(const core::QuantizeCall& call, const core::Context& context) {
  const auto& [p, t, offset] = call;
  const bool blocks = p.scales == ScaleKind::per_block;
  const std::int64_t of_head = blocks ? ceil_div(p.seq, kScaleBlock) : 1;
  const std::int64_t units = p.batch * p.heads * of_head;
  Job job{p, t, offset, of_head, blocks ? kScaleBlock : p.seq, {}};
  if (units == 0) {
    if (p.scales == ScaleKind::tensor && p.compute_scales) t.scale[0] = core::e4m3_scale(0.0f);
    return;
  }
  if (p.scales != ScaleKind::none && p.compute_scales) {
    job.largest.resize(static_cast<std::size_t>(units));
    context.executor->run(units, find_largest, &job);
    const DefaultFloatMode mode;
    if (p.scales == ScaleKind::tensor) {
      t.scale[0] = core::e4m3_scale(*std::max_element(job.largest.begin(), job.largest.end()));
    } else {
      std::transform(job.largest.begin(), job.largest.end(), t.scale, core::e4m3_scale);
    }
  }
  context.executor->run(units, encode, &job);
}

}  // namespace

Status quantize(std::span<const core::QuantizeCall> calls, const core::Context& context) {
  for (const core::QuantizeCall& call : calls) quantize_one(call, context);
  return {};
}

}  // namespace greenfast::cpu
