// 10_naive.cpp   Idea: what one writes first. One query row at a time, scores in fp32, softmax in
// two passes over a chunk of scores, then the weighted sum of the values.
// Limits: none; every problem that check() accepts.
// Budget: 1 KiB of scores, one row of floats for each of Q, K and O.
// Expected bound: arithmetic of the compiler's baseline instruction set, and K and V read once per
// query.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "core/executor.hpp"
#include "core/variant.hpp"
#include "kernels/cpu/device/band.hpp"
#include "kernels/cpu/device/convert.hpp"
#include "kernels/cpu/device/float_mode.hpp"

namespace greenfast::kernels {
namespace {

constexpr int kMaxHeadDim = 256;
constexpr int kChunk = 256;  // scores held at once
constexpr int kRowsPerTask = 8;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Call {
  const Problem& problem;
  const Tensors& tensors;
  Band band;
};

std::int64_t row_at(const Layout& layout, std::int64_t b, std::int64_t h, std::int64_t s) {
  return b * layout.stride[0] + h * layout.stride[1] + s * layout.stride[2];
}

template <class T>
void load(const T* source, int head_dim, float* values) {
  for (int d = 0; d < head_dim; ++d) values[d] = widen(source[d]);
}

// Eight partial sums, so that the compiler may use vectors without reordering anything.
float dot(const float* a, const float* b, int head_dim) {
  float sum[8] = {};
  for (int d = 0; d < head_dim; d += 8) {
    for (int j = 0; j < 8; ++j) sum[j] += a[d + j] * b[d + j];
  }
  return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
}

float descale(const float* scales, ScaleKind kind, std::int64_t b, std::int64_t h,
              std::int64_t heads) {
  if (kind == ScaleKind::none) return 1.0f;
  return scales[kind == ScaleKind::tensor ? 0 : b * heads + h];
}

template <class In, class Out>
void attend(const Call& call, std::int64_t b, std::int64_t h, std::int64_t i) {
  const Problem& problem = call.problem;
  const Tensors& tensors = call.tensors;
  const int head_dim = static_cast<int>(problem.head_dim);
  const std::int64_t h_kv = h / (problem.heads_q / problem.heads_kv);

  float q[kMaxHeadDim], kv[kMaxHeadDim];
  // fp64, so that neither a million keys nor values up to the last finite float wear the sums out.
  double o[kMaxHeadDim] = {};
  float score[kChunk];
  load(static_cast<const In*>(tensors.q) + row_at(problem.q, b, h, i), head_dim, q);
  const float scale = problem.scale *
                      descale(tensors.q_scale, problem.scales, b, h, problem.heads_q) *
                      descale(tensors.k_scale, problem.scales, b, h_kv, problem.heads_kv);
  const float v_scale = descale(tensors.v_scale, problem.scales, b, h_kv, problem.heads_kv);

  const In* const k_head = static_cast<const In*>(tensors.k) + row_at(problem.k, b, h_kv, 0);
  const In* const v_head = static_cast<const In*>(tensors.v) + row_at(problem.v, b, h_kv, 0);
  float max = -kInfinity;
  double sum = 0.0;
  const Interval keys = keys_of(call.band, i);
  for (std::int64_t begin = keys.begin; begin < keys.end; begin += kChunk) {
    const int count = static_cast<int>(std::min<std::int64_t>(kChunk, keys.end - begin));
    float chunk_max = max;
    for (int j = 0; j < count; ++j) {
      load(k_head + (begin + j) * problem.k.stride[2], head_dim, kv);
      score[j] = scale * dot(q, kv, head_dim);
      if (problem.softcap > 0.0f)
        score[j] = problem.softcap * std::tanh(score[j] / problem.softcap);
      chunk_max = std::max(chunk_max, score[j]);
    }
    // Earlier chunks were weighted against a smaller maximum.
    const double rescale = max == chunk_max ? 1.0 : double{std::exp(max - chunk_max)};
    max = chunk_max;
    sum *= rescale;
    for (int d = 0; d < head_dim; ++d) o[d] *= rescale;
    // While all scores are -inf any finite maximum keeps the weights 0.
    const float used = max == -kInfinity ? 0.0f : max;
    for (int j = 0; j < count; ++j) {
      const auto weight = double{std::exp(score[j] - used)};
      sum += weight;
      load(v_head + (begin + j) * problem.v.stride[2], head_dim, kv);
      for (int d = 0; d < head_dim; ++d) o[d] += weight * double{kv[d]};
    }
  }

  // No visible key, or none whose score is above -inf; a NaN among them makes the sum one.
  const bool empty = keys.begin == keys.end || (max == -kInfinity && sum == 0.0);
  Out* const out = static_cast<Out*>(tensors.o) + row_at(problem.o, b, h, i);
  for (int d = 0; d < head_dim; ++d) {
    narrow(empty ? 0.0f : static_cast<float>(o[d] / sum * double{v_scale}), out[d]);
  }
  if (problem.lse) {
    tensors.lse[(b * problem.heads_q + h) * problem.seq_q + i] =
        empty ? -kInfinity : static_cast<float>(double{max} + std::log(sum));
  }
}

template <class In, class Out>
void attend_rows(void* context, std::int64_t task, int /*worker*/) {
  const auto& call = *static_cast<const Call*>(context);
  const DefaultFloatMode mode;
  const Problem& problem = call.problem;
  const std::int64_t rows = problem.batch * problem.heads_q * problem.seq_q;
  const std::int64_t first = task * kRowsPerTask;
  for (std::int64_t r = first; r < std::min(first + kRowsPerTask, rows); ++r) {
    const std::int64_t head = r / problem.seq_q;
    attend<In, Out>(call, head / problem.heads_q, head % problem.heads_q, r % problem.seq_q);
  }
}

template <class In>
core::Executor::Task task_for_output(DType out) {
  switch (out) {
    case DType::f16:
      return attend_rows<In, F16>;
    case DType::bf16:
      return attend_rows<In, Bf16>;
    default:
      return attend_rows<In, float>;
  }
}

core::Executor::Task task_for(DType in, DType out) {
  switch (in) {
    case DType::f16:
      return task_for_output<F16>(out);
    case DType::bf16:
      return task_for_output<Bf16>(out);
    case DType::e4m3:
      return task_for_output<E4m3>(out);
    default:
      return task_for_output<float>(out);
  }
}

std::int64_t task_count(const Problem& problem) {
  return (problem.batch * problem.heads_q * problem.seq_q + kRowsPerTask - 1) / kRowsPerTask;
}

bool supports(const Problem& /*problem*/, const DeviceFacts& /*facts*/, core::Choice /*choice*/,
              std::string* why) {
  if (why != nullptr) *why = "takes every problem; the reference, not fast";
  return true;
}

Plan plan(const Problem& problem, const DeviceFacts& facts, core::Choice /*choice*/) {
  Plan plan;
  plan.grid = {static_cast<int>(std::min<std::int64_t>(task_count(problem), 1 << 30)), 1, 1};
  plan.block = {facts.multiprocessors, 1, 1};
  plan.tile_q = 1;
  plan.tile_kv = kChunk;
  plan.kernel = "portable";
  plan.note = "one query row at a time";
  return plan;
}

Status launch(const Problem& problem, const Tensors& tensors, const core::Context& context) {
  const std::int64_t shift =
      problem.mask.alignment == Alignment::bottom_right ? problem.seq_kv - problem.seq_q : 0;
  Call call{problem, tensors,
            make_band(problem.mask.left, problem.mask.right, shift, problem.seq_q, problem.seq_kv)};
  context.executor->run(task_count(problem), task_for(problem.dtype, problem.out_dtype), &call);
  return {};
}

}  // namespace

extern const core::Kernel cpu_naive;
constinit const core::Kernel cpu_naive{.supports = supports, .plan = plan, .launch = launch};

}  // namespace greenfast::kernels
