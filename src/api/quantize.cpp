// Values to e4m3, and attention of 16-bit tensors by way of it.
#include <greenfast/quantize.hpp>

#include <array>
#include <utility>

#include "api/calls.hpp"
#include "core/arithmetic.hpp"
#include "core/check.hpp"
#include "core/text.hpp"
#include "dispatch/registry.hpp"
#include "dispatch/select.hpp"

namespace greenfast {
namespace {

constexpr std::int64_t kAlignment = 256;  // of each part of the scratch

/// Tensors behind each other in scratch.
struct Room {
  std::int64_t bytes = 0;

  std::int64_t take(std::int64_t size) {
    return std::exchange(bytes, bytes + ceil_div(size, kAlignment) * kAlignment);
  }
};

/// One of Q, K and V: what it becomes, and where.
struct Part {
  std::array<std::int64_t, 4> shape{};
  Layout codes;
  std::int64_t at = 0, scale_at = 0;

  std::int64_t heads() const { return shape[0] * shape[1]; }
};

/// A call by way of e4m3: the problem of the codes, and how the scratch is parted.
struct Quantized {
  Problem problem;
  Part q, k, v;
  std::int64_t means_at = 0, states_at = 0, workspace_at = 0;
  std::int64_t bytes = 0;  // of all of it, with what the chosen kernel wants
};

/// Whether codes of that shape would take more than anything check() accepts: the values may share
/// memory (strides of 0), codes do not.
bool too_large(const std::array<std::int64_t, 4>& shape) {
  std::int64_t bytes = 16;
  for (const std::int64_t size : shape)
    if (__builtin_mul_overflow(bytes, size, &bytes) || bytes > core::kMaxBytes) return true;
  return false;
}

/// Rows of codes as they lie in memory, or columns that begin at multiples of 16.
Part part_of(const std::array<std::int64_t, 4>& shape, bool transposed, Room& room) {
  const auto& [batch, heads, seq, dim] = shape;
  Part part{shape,
            transposed ? transposed_layout(batch, heads, seq, dim)
                       : dense_layout(Order::bhsd, batch, heads, seq, dim),
            0, 0};
  part.at = room.take(core::extent_elements(part.codes, shape));
  part.scale_at = room.take(part.heads() * 4);
  return part;
}

/// The problem has passed check_quantized().
Quantized quantized(const Problem& p, bool transposed, const Quantizing& quantizing) {
  Quantized made{p, {}, {}, {}};
  Room room;
  made.q = part_of(core::shape_of_q(p, p.head_dim), false, room);
  made.k = part_of(core::shape_of_kv(p, p.head_dim), false, room);
  made.v = part_of(core::shape_of_kv(p, value_dim(p)), transposed, room);
  Problem& problem = made.problem;
  problem.dtype = DType::e4m3;
  problem.scales = ScaleKind::per_head;
  problem.q = made.q.codes;
  problem.k = made.k.codes;
  problem.v = made.v.codes;
  made.means_at = room.take(quantizing.smooth_k ? made.k.heads() * p.head_dim * 4 : 0);
  made.states_at = room.take((made.q.heads() + made.k.heads() + made.v.heads()) * 8);
  made.workspace_at = made.bytes = room.bytes;
  return made;
}

/// What is said of the values. Their accuracy is that of the codes' kernel.
Status check_quantized(Problem p, const Options& options, const Quantizing& quantizing) {
  if (p.accuracy == Accuracy::fast) p.accuracy = Accuracy::exact;
  if (Status status = api::check_call(p, options); !status) return status;
  if (p.dtype == DType::e4m3)
    return {StatusCode::invalid_argument,
            "attention_quantized takes fp32, fp16 or bf16 values, and these are e4m3 already: call "
            "attention() with their scales"};
  for (const auto& shape : {core::shape_of_q(p, p.head_dim), core::shape_of_kv(p, p.head_dim),
                            core::shape_of_kv(p, value_dim(p))}) {
    if (too_large(shape))
      return {StatusCode::unsupported,
              "attention_quantized has a code for each element, also of those that share memory by "
              "strides of 0, and here that is more than 2^58 bytes: pass fewer of them at a time"};
  }
  if (quantizing.smooth_k && (p.softcap != 0.0f || p.sinks))
    return {StatusCode::unsupported,
            core::concat("smooth_k moves all scores of a row alike, which ",
                         p.sinks ? "sinks do not follow" : "a softcap bends",
                         ": leave one of the two out")};
  const Sequences& s = p.sequences;
  const char* const what = s.packed_q || s.packed_kv ? "packed sequences"
                           : p.pages.used()          ? "pages"
                           : s.used_q || s.used_kv   ? "used lengths"
                           : s.kv_start              ? "left padding"
                           : s.kv_index              ? "an index of rows"
                                                     : nullptr;
  if (what != nullptr)
    return {StatusCode::unsupported,
            core::concat("attention_quantized takes dense tensors, not ", what,
                         ": keep the cache in e4m3 as it grows (quantize_e4m3), and call "
                         "attention()")};
  return {};
}

/// The kernel for the codes, with V as it likes it. Null: none takes them, and *why says so.
const core::Variant* choose_quantized(const Problem& p, const Tensors* tensors,
                                      const DeviceFacts& facts, const Options& options,
                                      const Quantizing& quantizing, Quantized& made, Status* why) {
  const auto select = [&](bool transposed) {
    made = quantized(p, transposed, quantizing);
    Problem problem = made.problem;
    if (tensors != nullptr) {
      Tensors there = *tensors;  // O need not be aligned as scratch is
      there.q = there.k = there.v = nullptr;
      core::lower_alignment(problem, there);
    }
    dispatch::Query query{problem, facts, api::choice_of(options), api::forced_variant(options)};
    const core::Variant* variant = dispatch::select(dispatch::registry(), query, why);
    if (variant != nullptr) made.bytes += dispatch::workspace_bytes(*variant, query);
    return variant;
  };
  // Who is fastest is asked of V in rows: those that want it transposed make that of it, and are chosen
  // where they are faster even so. Then they are given what they want.
  const core::Variant* const rows = select(false);
  if (rows == nullptr || facts.kind == DeviceKind::cpu || !rows->takes.hold(Feature::transposed_v))
    return rows;
  const core::Variant* const columns = select(true);
  return columns != nullptr ? columns : select(false);
}

core::QuantizeCall call_of(const Part& part, const void* values, DType dtype, const Layout& from,
                           char* scratch) {
  return {{.batch = part.shape[0],
           .heads = part.shape[1],
           .seq = part.shape[2],
           .head_dim = part.shape[3],
           .dtype = dtype,
           .scales = ScaleKind::per_head,
           .compute_scales = true,
           .from = from,
           .to = part.codes},
          {.from = values,
           .to = scratch + part.at,
           .scale = reinterpret_cast<float*>(scratch + part.scale_at)},
          nullptr};
}

Status run_quantized(const Problem& p, const Tensors& tensors, const Options& options,
                     const Quantizing& quantizing) {
  if (Status status = check_quantized(p, options, quantizing); !status) return status;
  if (Status status = core::check_tensors(p, tensors); !status) return status;
  if (core::writes_nothing(p) || core::is_empty(p)) {
    Problem empty = p;
    Options any = options;
    empty.accuracy = Accuracy::exact;
    any.variant = {};  // one for e4m3 takes no such values
    return attention(empty, tensors, any);
  }
  api::Machine machine;
  if (Status status = api::find_machine(options, machine); !status) return status;
  Quantized made;
  Status why;
  if (choose_quantized(p, &tensors, *machine.facts, options, quantizing, made, &why) == nullptr)
    return why;
  void* memory = nullptr;
  if (Status status =
          api::find_scratch(p, tensors, options, made.bytes, "attention_quantized", memory);
      !status)
    return status;
  auto* const scratch = static_cast<char*>(memory);
  std::array calls{call_of(made.q, tensors.q, p.dtype, p.q, scratch),
                   call_of(made.k, tensors.k, p.dtype, p.k, scratch),
                   call_of(made.v, tensors.v, p.dtype, p.v, scratch)};
  core::Context context = api::context_of(machine, options);
  context.workspace = scratch + made.states_at;
  calls[0].problem.rotate = calls[1].problem.rotate = quantizing.rotate;
  auto* const means = reinterpret_cast<float*>(scratch + made.means_at);
  if (quantizing.smooth_k) {
    if (Status status = machine.backend->column_means(calls[1], means, context); !status)
      return status;
    calls[1].offset = means;
  }
  if (Status status = machine.backend->quantize(calls, context); !status) return status;

  Tensors codes = tensors;
  codes.q = calls[0].tensors.to;
  codes.k = calls[1].tensors.to;
  codes.v = calls[2].tensors.to;
  codes.q_scale = calls[0].tensors.scale;
  codes.k_scale = calls[1].tensors.scale;
  codes.v_scale = calls[2].tensors.scale;
  Options rest = options;
  rest.workspace = scratch + made.workspace_at;
  rest.workspace_bytes = static_cast<std::size_t>(made.bytes - made.workspace_at);
  rest.allocate = nullptr;
  Status status = attention(made.problem, codes, rest);
  if (status.ok() && quantizing.smooth_k && p.lse)
    status = machine.backend->shift_lse(p, codes, means, context);
  return status;
}

}  // namespace

Status quantize_e4m3(const QuantizeProblem& problem, const QuantizeTensors& tensors,
                     const Options& options) {
  return api::guarded([&]() -> Status {
    if (Status status = core::check_quantize(problem, tensors); !status) return status;
    api::Machine machine;
    if (Status status = api::find_machine(options, machine); !status) return status;
    // Of an empty batch there are no codes and no scales but one of a whole tensor.
    if (problem.batch == 0 && !(problem.scales == ScaleKind::tensor && problem.compute_scales))
      return {};
    core::Context context = api::context_of(machine, options);
    context.workspace = nullptr;
    const std::int64_t bytes = quantize_workspace_bytes(problem);
    if (options.workspace != nullptr && bytes > 0) {
      if (Status status = core::check_quantize_workspace(problem, tensors, options.workspace,
                                                         options.workspace_bytes);
          !status)
        return status;
      context.workspace = options.workspace;
    } else if (options.allocate != nullptr && bytes > 0 && options.device != DeviceKind::cpu) {
      // Null is no error here: without scratch it takes longer.
      context.workspace =
          options.allocate(static_cast<std::size_t>(bytes), options.allocate_context);
    }
    const core::QuantizeCall call{problem, tensors, nullptr};
    return machine.backend->quantize({&call, 1}, context);
  });
}

Status attention_quantized(const Problem& problem, const Tensors& tensors, const Options& options,
                           const Quantizing& quantizing) {
  return api::guarded([&] { return run_quantized(problem, tensors, options, quantizing); });
}

Status attention_quantized(const TensorView& q, const TensorView& k, const TensorView& v,
                           const TensorView& o, const AttentionParams& params,
                           const Options& options, const Quantizing& quantizing) {
  return api::guarded([&]() -> Status {
    Problem problem;
    Tensors tensors;
    if (Status status = api::read_views(q, k, v, o, params, problem, tensors); !status)
      return status;
    return run_quantized(problem, tensors, options, quantizing);
  });
}

Result<Plan> plan_quantized(const Problem& problem, const DeviceFacts& facts,
                            const Options& options, const Quantizing& quantizing) {
  return api::guarded([&]() -> Result<Plan> {
    if (Status status = check_quantized(problem, options, quantizing); !status) return status;
    Quantized made;
    Status why;
    if (choose_quantized(problem, nullptr, facts, options, quantizing, made, &why) == nullptr)
      return why;
    Result<Plan> planned = plan(made.problem, facts, options);
    if (planned.ok()) planned->workspace_bytes = made.bytes;
    return planned;
  });
}

}  // namespace greenfast
