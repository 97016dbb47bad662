// merge on the CPU: two parts of a row's keys become one. Any CPU; no variant, it is called by name.
//
// Idea    Each part is normalised by itself, and weighed by its share of the sums, which the LSEs
//         tell; what flash does with its own parts, for parts of the caller. In fp64, and compiled
//         without contraction of products and sums, so that the order of the parts changes no bit.
// Takes   every problem that check_merge() accepts; a part whose weight is 0 is not read.
// Limits  none.
// Budget  nothing beside the tensors.
// Bound   memory: each part is read once, O written once.
#include <algorithm>
#include <cmath>
#include <limits>

#include <greenfast/arithmetic.hpp>

#include "core/executor.hpp"
#include "core/serving.hpp"
#include "kernels/cpu/device/convert.hpp"
#include "kernels/cpu/device/float_mode.hpp"

namespace greenfast::kernels {
namespace {

constexpr std::int64_t kMergeRows = 64;  // of a task
constexpr double kMergeInfinity = std::numeric_limits<double>::infinity();

struct Merge {
  const MergeProblem& p;
  const MergeTensors& t;
};

double read_float(DType dtype, const void* data, std::int64_t at) {
  if (dtype == DType::f16) return double{widen(static_cast<const F16*>(data)[at])};
  if (dtype == DType::bf16) return double{widen(static_cast<const Bf16*>(data)[at])};
  return double{static_cast<const float*>(data)[at]};
}
void write_float(DType dtype, void* data, std::int64_t at, double value) {
  const auto rounded = static_cast<float>(value);
  if (dtype == DType::f16) {
    narrow(rounded, static_cast<F16*>(data)[at]);
  } else if (dtype == DType::bf16) {
    narrow(rounded, static_cast<Bf16*>(data)[at]);
  } else {
    static_cast<float*>(data)[at] = rounded;
  }
}

void merge_row(const Merge& merge, std::int64_t row) {
  const auto& [p, t] = merge;
  const std::int64_t s = row % p.seq, head = row / p.seq, h = head % p.heads, b = head / p.heads;
  const auto at = [&](const Layout& layout) {
    return b * layout.stride[0] + h * layout.stride[1] + s * layout.stride[2];
  };
  const double lse_a = double{t.lse_a[row]}, lse_b = double{t.lse_b[row]};
  const bool has_a = std::fabs(lse_a) != kMergeInfinity, has_b = std::fabs(lse_b) != kMergeInfinity;
  double weight_a = has_a ? 1.0 : 0.0, weight_b = has_b ? 1.0 : 0.0;
  double lse = has_a ? lse_a : has_b ? lse_b : -kMergeInfinity;
  if (has_a && has_b) {
    const double high = lse_a < lse_b ? lse_b : lse_a;
    const double share_a = std::exp(lse_a - high), share_b = std::exp(lse_b - high);
    const double sum = share_a + share_b;
    weight_a = share_a / sum;
    weight_b = share_b / sum;
    lse = high + std::log(sum);
  }
  const std::int64_t from_a = at(p.a), from_b = at(p.b), to = at(p.o);
  for (std::int64_t d = 0; d < p.head_dim; ++d) {
    // A part that is empty, or so far below that its weight is 0, is not read.
    const double a = weight_a != 0.0 ? weight_a * read_float(p.dtype, t.a, from_a + d) : 0.0;
    const double b_part = weight_b != 0.0 ? weight_b * read_float(p.dtype, t.b, from_b + d) : 0.0;
    write_float(p.out_dtype, t.o, to + d, a + b_part);
  }
  if (t.lse != nullptr) t.lse[row] = static_cast<float>(lse);
}

void merge_rows(void* context, std::int64_t task, int /*worker*/) {
  const Merge& merge = *static_cast<const Merge*>(context);
  const DefaultFloatMode mode;
  const std::int64_t rows = merge.p.batch * merge.p.heads * merge.p.seq;
  const std::int64_t end = std::min(rows, (task + 1) * kMergeRows);
  for (std::int64_t row = task * kMergeRows; row < end; ++row) merge_row(merge, row);
}

}  // namespace

Status cpu_merge(const MergeProblem& problem, const MergeTensors& tensors,
                 const core::Context& context) {
  Merge merge{problem, tensors};
  const std::int64_t rows = problem.batch * problem.heads * problem.seq;
  context.executor->run(ceil_div(rows, kMergeRows), merge_rows, &merge);
  return {};
}

}  // namespace greenfast::kernels
