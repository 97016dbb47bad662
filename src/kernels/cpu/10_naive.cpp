// cpu.naive: what a reader writes first, and what the other kernels are held against. Any CPU.
//
// Idea    One query row at a time: scores in fp32 for a chunk of 256 keys, their maximum, their
//         weights, then the weighted sum of the values in fp64, rescaled where a later chunk has a
//         larger score.
// Takes   every problem that check() accepts.
// Limits  none.
// Budget  5 KiB of stack a thread: 256 scores, a row each of Q and of K or V in fp32, one of O in
//         fp64. No workspace.
// Bound   arithmetic of the compiler's baseline instruction set, in one chain of sums a score; K
//         and V are read, and converted, once per query.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include <greenfast/arithmetic.hpp>

#include "core/executor.hpp"
#include "core/sequences.hpp"
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
};

std::int64_t row_at(const Layout& layout, std::int64_t b, std::int64_t h, std::int64_t s) {
  return b * layout.stride[0] + h * layout.stride[1] + s * layout.stride[2];
}

template <class T>
void load(const T* source, int head_dim, float* values, std::int64_t step = 1) {
  for (int d = 0; d < head_dim; ++d) values[d] = widen(source[d * step]);
}

// Eight partial sums, so that the compiler may use vectors without reordering anything.
float dot(const float* a, const float* b, int head_dim) {
  float sum[8] = {};
  for (int d = 0; d < head_dim; d += 8) {
    for (int j = 0; j < 8; ++j) sum[j] += a[d + j] * b[d + j];
  }
  return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
}

// A tensor's factors of one head.
struct Factors {
  const float* of_head = nullptr;
  bool by_block = false;

  Factors(const float* scales, ScaleKind kind, std::int64_t b, std::int64_t h, std::int64_t heads,
          std::int64_t seq)
      : by_block(kind == ScaleKind::per_block) {
    if (kind == ScaleKind::none) return;
    const std::int64_t head = b * heads + h;
    of_head = scales + (by_block                      ? head * ceil_div(seq, kScaleBlock)
                        : kind == ScaleKind::per_head ? head
                                                      : 0);
  }
  // Of all rows, where they are not by block.
  float of_all() const { return of_head == nullptr || by_block ? 1.0f : *of_head; }
  float of_block(std::int64_t row) const { return by_block ? of_head[row / kScaleBlock] : 1.0f; }
};

// A row of K or V, wherever the sequence has its keys.
std::int64_t key_at(const Problem& problem, const Layout& layout, const core::Sequence& sequence,
                    std::int64_t h, std::int64_t j) {
  const std::int64_t page = problem.pages.size;
  if (page == 0) return row_at(layout, sequence.kv_batch, h, sequence.kv_row + j);
  return row_at(layout, sequence.pages[j / page], h, j % page);
}

// What the array mask adds to one score.
float mask_at(const ArrayMask& mask, const void* data, std::int64_t b, std::int64_t h,
              std::int64_t i, std::int64_t j) {
  const auto& [b_stride, h_stride, i_stride, j_stride] = mask.stride;
  const std::int64_t at = b * b_stride + h * h_stride + i * i_stride + j * j_stride;
  if (mask.kind == MaskKind::boolean)
    return static_cast<const unsigned char*>(data)[at] != 0 ? 0.0f : -kInfinity;
  if (mask.dtype == DType::f16) return widen(static_cast<const F16*>(data)[at]);
  if (mask.dtype == DType::bf16) return widen(static_cast<const Bf16*>(data)[at]);
  return static_cast<const float*>(data)[at];
}

template <class In, class Out>
void attend(const Call& call, std::int64_t b, std::int64_t h, std::int64_t i) {
  const Problem& problem = call.problem;
  const Tensors& tensors = call.tensors;
  const core::Sequence sequence = core::sequence_of(problem, tensors, b);
  if (i >= sequence.seq_q) return;  // a row of no sequence
  const int head_dim = static_cast<int>(problem.head_dim);
  const int v_dim = static_cast<int>(value_dim(problem));
  const std::int64_t h_kv = h / (problem.heads_q / problem.heads_kv);
  const std::int64_t shift =
      problem.mask.alignment == Alignment::bottom_right ? sequence.seq_kv - sequence.seq_q : 0;
  const Band band = make_band(problem.mask.left, problem.mask.right, shift, sequence.seq_q,
                              sequence.seq_kv, sequence.kv_start, problem.chunk);
  float slope = 0.0f;
  if (problem.alibi != Alibi::none)
    slope = tensors.slopes[(problem.alibi == Alibi::per_head ? 0 : b * problem.heads_q) + h];

  float q[kMaxHeadDim], kv[kMaxHeadDim];
  // fp64, so that neither a million keys nor values up to the last finite float wear the sums out.
  double o[kMaxHeadDim] = {};
  float score[kChunk];
  load(static_cast<const In*>(tensors.q) +
           row_at(problem.q, sequence.q_batch, h, sequence.q_row + i),
       head_dim, q);
  const Factors q_factors(tensors.q_scale, problem.scales, b, h, problem.heads_q, problem.seq_q);
  const Factors k_factors(tensors.k_scale, problem.scales, b, h_kv, problem.heads_kv,
                          problem.seq_kv);
  const Factors v_factors(tensors.v_scale, problem.scales, b, h_kv, problem.heads_kv,
                          problem.seq_kv);
  const float scale =
      problem.scale * (q_factors.of_all() * q_factors.of_block(i)) * k_factors.of_all();
  const float v_scale = v_factors.of_all();

  const auto* const k = static_cast<const In*>(tensors.k);
  const auto* const v = static_cast<const In*>(tensors.v);
  float max = -kInfinity;
  double sum = 0.0;
  const Interval keys = keys_of(band, i);
  for (std::int64_t begin = keys.begin; begin < keys.end; begin += kChunk) {
    const int count = static_cast<int>(std::min<std::int64_t>(kChunk, keys.end - begin));
    float chunk_max = max;
    for (int j = 0; j < count; ++j) {
      load(k + key_at(problem, problem.k, sequence, h_kv, begin + j), head_dim, kv);
      score[j] = scale * k_factors.of_block(begin + j) * dot(q, kv, head_dim);
      if (problem.softcap > 0.0f)
        score[j] = problem.softcap * std::tanh(score[j] / problem.softcap);
      if (problem.alibi != Alibi::none) {
        const std::int64_t distance = i + shift - (begin + j);
        score[j] -= slope * static_cast<float>(distance < 0 ? -distance : distance);
      }
      if (problem.array_mask.kind != MaskKind::none) {
        const float mask = mask_at(problem.array_mask, tensors.mask, b, h, i, begin + j);
        score[j] = mask == -kInfinity ? mask : score[j] + mask;
      }
      chunk_max = std::max(chunk_max, score[j]);
    }
    // Earlier chunks were weighted against a smaller maximum.
    const double rescale = max == chunk_max ? 1.0 : double{std::exp(max - chunk_max)};
    max = chunk_max;
    sum *= rescale;
    for (int d = 0; d < v_dim; ++d) o[d] *= rescale;
    // While all scores are -inf any finite maximum keeps the weights 0.
    const float used = max == -kInfinity ? 0.0f : max;
    for (int j = 0; j < count; ++j) {
      const auto weight = double{std::exp(score[j] - used)};
      sum += weight;
      load(v + key_at(problem, problem.v, sequence, h_kv, begin + j), v_dim, kv,
           problem.v.stride[3]);
      const double factor = weight * double{v_factors.of_block(begin + j)};
      for (int d = 0; d < v_dim; ++d) o[d] += factor * double{kv[d]};
    }
  }

  // No visible key, or none whose score is above -inf; a NaN among them makes the sum one.
  const bool empty = keys.begin == keys.end || (max == -kInfinity && sum == 0.0);
  double lse = empty ? -double{kInfinity} : double{max} + std::log(sum);
  if (problem.sinks) {
    const double sink = double{tensors.sinks[h]}, high = std::max(lse, sink);
    if (high != -double{kInfinity}) {
      const double whole = high + std::log(std::exp(lse - high) + std::exp(sink - high));
      sum *= std::exp(whole - lse);
      lse = whole;
    }
  }
  Out* const out =
      static_cast<Out*>(tensors.o) + row_at(problem.o, sequence.q_batch, h, sequence.q_row + i);
  for (int d = 0; d < v_dim; ++d) {
    narrow(empty ? 0.0f : static_cast<float>(o[d] / sum * double{v_scale}), out[d]);
  }
  if (problem.lse) {
    const std::int64_t rows =
        problem.sequences.packed_q ? problem.sequences.total_q : problem.seq_q;
    tensors.lse[(sequence.q_batch * problem.heads_q + h) * rows + sequence.q_row + i] =
        static_cast<float>(lse);
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
  return ceil_div(problem.batch * problem.heads_q * problem.seq_q, kRowsPerTask);
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
  Call call{problem, tensors};
  context.executor->run(task_count(problem), task_for(problem.dtype, problem.out_dtype), &call);
  return {};
}

}  // namespace

extern const core::Kernel cpu_naive;
constinit const core::Kernel cpu_naive{.supports = supports, .plan = plan, .launch = launch};

}  // namespace greenfast::kernels
