// The calls of the public API: check, select, launch.
#include <greenfast/attention.hpp>
#include <greenfast/quantize.hpp>
#include <greenfast/serving.hpp>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <new>

#include "api/devices.hpp"
#include "core/check.hpp"
#include "core/log.hpp"
#include "core/sequences.hpp"
#include "core/serving.hpp"
#include "core/text.hpp"
#include "dispatch/registry.hpp"
#include "dispatch/select.hpp"

namespace greenfast {
namespace {

// Options::variant, else GREENFAST_VARIANT, which is read once: getenv beside a setenv of another
// thread is a race.
std::string_view forced_variant(const Options& options) {
  if (!options.variant.empty()) return options.variant;
  static const std::string from_environment = [] {
    const char* value = std::getenv("GREENFAST_VARIANT");
    return std::string(value == nullptr ? "" : value);
  }();
  return from_environment;
}

core::Choice choice_of(const Options& options) {
  return {.batch_invariant = options.batch_invariant, .max_splits = options.max_splits};
}

// The problem, and what the options say of it without a device.
Status check_call(const Problem& problem, const Options& options) {
  if (Status status = check(problem); !status) return status;
  if (options.max_splits < 0)
    return {StatusCode::invalid_argument,
            core::concat("max_splits is ", options.max_splits,
                         ": it may be 0, for as many parts as pay, or more; correct it")};
  return {};
}

// A failure to allocate must reach the caller as a Status too. Its text fits a std::string without
// memory.
template <class Call>
auto guarded(Call call) noexcept -> decltype(call()) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::out_of_memory, "out of memory");
  } catch (const std::exception& error) {
    try {
      return Status(StatusCode::internal, error.what());
    } catch (...) {
      return Status(StatusCode::internal, "internal error");
    }
  }
}

struct Machine {
  const core::Backend* backend = nullptr;
  const DeviceFacts* facts = nullptr;
};

Status find_machine(const Options& options, Machine& machine) {
  machine.backend = api::backend_of(options.device);
  if (machine.backend == nullptr)
    return {StatusCode::invalid_argument,
            core::concat("Options::device ", static_cast<int>(options.device),
                         " does not exist: use cpu (0) or cuda (1)")};
  Status why;
  machine.facts = machine.backend->facts(options.device_index, &why);
  if (machine.facts == nullptr) return why;
  if (machine.backend->enter != nullptr) return machine.backend->enter(options.device_index);
  return {};
}

// What a call of these options asks selection: prepare must choose as the call will.
dispatch::Query query_of(const Problem& problem, const Machine& machine, const Options& options) {
  dispatch::Query query{problem, *machine.facts, choice_of(options), forced_variant(options)};
  query.scratch = options.workspace != nullptr || options.allocate != nullptr;
  return query;
}

core::Context context_of(const Machine& machine, const Options& options) {
  core::Context context;
  context.facts = machine.facts;
  context.choice = choice_of(options);
  context.stream = options.stream;
  context.workspace = options.workspace;
  if (machine.backend->executor != nullptr) context.executor = machine.backend->executor();
  return context;
}

// The arrays of a call: by `here` where the host reads the device's memory, elsewhere by `fetched`,
// of copies, where the caller asks for that.
template <class Here, class Fetched>
Status check_arrays(const Machine& machine, const Options& options, Here here, Fetched fetched) {
  const auto fetch = machine.backend->fetch;
  if (fetch == nullptr) return here();
  if (!options.validate) return {};
  return fetched([fetch, context = context_of(machine, options)](const void* from,
                                                                 std::size_t bytes, void* to) {
    return fetch(from, bytes, to, context);
  });
}

Status run(const Problem& asked, const Tensors& tensors, const Options& options) {
  if (Status status = check_call(asked, options); !status) return status;
  if (Status status = core::check_tensors(asked, tensors); !status) return status;
  const std::string_view forced = forced_variant(options);
  if (core::writes_nothing(asked)) {
    if (!forced.empty() && dispatch::find(dispatch::registry(), forced) == nullptr)
      return {StatusCode::invalid_argument,
              dispatch::unknown_variant(dispatch::registry(), forced)};
    return {};
  }

  Machine machine;
  if (Status status = find_machine(options, machine); !status) return status;
  Problem problem = asked;
  core::lower_alignment(problem, tensors);
  const dispatch::Query query = query_of(problem, machine, options);
  Status why;
  const core::Variant* variant = dispatch::select(dispatch::registry(), query, &why);
  if (variant == nullptr) return why;
  if (core::logging())
    core::log(core::concat("attention ", to_string(problem), " on ", machine.facts->name, ": ",
                           variant->id));

  if (Status status = check_arrays(
          machine, options, [&] { return core::check_arrays(problem, tensors); },
          [&](const core::Fetch& fetch) {
            return core::check_fetched_arrays(problem, tensors, fetch);
          });
      !status)
    return status;
  if (core::is_empty(problem))
    return machine.backend->fill_empty(problem, tensors, context_of(machine, options));
  core::Context context = context_of(machine, options);
  const std::int64_t wanted = dispatch::workspace_bytes(*variant, query);
  std::size_t given = options.workspace_bytes;
  if (wanted > 0 && context.workspace == nullptr && options.allocate != nullptr) {
    given = static_cast<std::size_t>(wanted);
    context.workspace = options.allocate(given, options.allocate_context);
    if (context.workspace == nullptr)
      return {StatusCode::out_of_memory, core::concat("Options::allocate gave no ", given,
                                                      " bytes of scratch for ", variant->id)};
  }
  if (Status status = core::check_workspace(problem, tensors, wanted, context.workspace, given);
      !status)
    return status;
  return variant->kernel->launch(problem, tensors, context);
}

std::string text_of(const std::array<std::int64_t, 4>& shape) {
  return core::concat("[", shape[0], ", ", shape[1], ", ", shape[2], ", ", shape[3], "]");
}

Status shape_error(std::string_view name, const TensorView& view,
                   const std::array<std::int64_t, 4>& wanted, std::string_view why) {
  return {StatusCode::invalid_argument, core::concat(name, "'s shape is ", text_of(view.shape),
                                                     ": ", text_of(wanted), " is expected, ", why)};
}

// The array mask as the problem has it: a dimension of size 1 is broadcast.
Status mask_of(const MaskView& view, Problem& problem) {
  if (view.data == nullptr) return {};
  const std::array<std::int64_t, 4> wanted{problem.batch, problem.heads_q, problem.seq_q,
                                           problem.seq_kv};
  ArrayMask& mask = problem.array_mask;
  mask.kind = view.kind;
  if (view.kind == MaskKind::additive) mask.dtype = view.dtype;
  for (std::size_t dim = 0; dim < wanted.size(); ++dim) {
    if (view.shape[dim] != wanted[dim] && view.shape[dim] != 1)
      return {StatusCode::invalid_argument,
              core::concat("the mask's shape is ", text_of(view.shape), ": ", text_of(wanted),
                           " is expected, [B, Hq, Sq, Skv], each of them or 1")};
    mask.stride[dim] = view.shape[dim] == 1 ? 0 : view.stride[dim];
  }
  return {};
}

// Keys that a row of the page table has room for, at most what check() accepts.
std::int64_t keys_of_row(std::int64_t entries, std::int64_t page) {
  std::int64_t keys = 0;
  if (__builtin_mul_overflow(entries, page, &keys)) return core::kMaxLength;
  return std::min(keys, core::kMaxLength);
}

Status problem_of(const TensorView& q, const TensorView& k, const TensorView& v,
                  const TensorView& o, const AttentionParams& params, Problem& problem) {
  if (k.dtype != q.dtype || v.dtype != q.dtype)
    return {StatusCode::invalid_argument,
            core::concat("Q, K, V are ", name_of(q.dtype), ", ", name_of(k.dtype), ", ",
                         name_of(v.dtype), ": they must have one type; convert them")};
  const bool paged = params.page_table != nullptr, packed_q = params.cu_q != nullptr;
  const bool packed_kv = params.cu_kv != nullptr, indexed = params.kv_index != nullptr;
  problem.batch = packed_q ? params.sequences : q.shape[0];
  if (packed_q && q.shape[0] != 1)
    return shape_error("Q", q, {1, q.shape[1], q.shape[2], q.shape[3]},
                       "[1, Hq, total, D] where sequences are packed");
  // Else nothing would be computed, with status ok.
  if (packed_q && params.sequences == 0 && q.shape[2] > 0)
    return {StatusCode::invalid_argument,
            core::concat("sequences is 0 and packed Q has ", q.shape[2],
                         " rows: set sequences to that of cu_q, which has one entry more")};
  if (paged && params.page_row_stride == 0 && params.max_kv == 0)
    return {
        StatusCode::invalid_argument,
        "page_row_stride is 0, so that no sequence has a page: set it to the entries of a row of "
        "page_table, or max_kv where all sequences share one row"};
  if (!packed_q && params.sequences != 0 && params.sequences != q.shape[0])
    return {StatusCode::invalid_argument,
            core::concat("sequences is ", params.sequences, " and Q's batch ", q.shape[0],
                         ": they must agree, or sequences be 0, where Q is not packed")};
  // K's first dimension and its rows are the sequences' unless they are packed, indexed or in
  // pages.
  const std::int64_t first = packed_kv ? 1 : paged || indexed ? k.shape[0] : problem.batch;
  const std::array<std::int64_t, 4> wanted_k{first, k.shape[1], k.shape[2], q.shape[3]};
  if (k.shape != wanted_k)
    return shape_error("K", k, wanted_k,
                       packed_kv ? "[1, Hkv, total, D] with Q's head_dim"
                       : paged   ? "[blocks, Hkv, page, D] with Q's head_dim"
                                 : "[B, Hkv, Skv, D] with Q's batch and head_dim");
  const std::array<std::int64_t, 4> wanted_v{k.shape[0], k.shape[1], k.shape[2], v.shape[3]};
  if (v.shape != wanted_v) return shape_error("V", v, wanted_v, "the shape of K");
  const std::array<std::int64_t, 4> wanted_o{q.shape[0], q.shape[1], q.shape[2], v.shape[3]};
  if (o.shape != wanted_o) return shape_error("O", o, wanted_o, "the shape of Q with V's head_dim");
  problem.heads_q = q.shape[1];
  problem.heads_kv = k.shape[1];
  problem.seq_q = packed_q && params.max_q != 0 ? params.max_q : q.shape[2];
  problem.seq_kv = k.shape[2];
  if (paged) problem.seq_kv = keys_of_row(params.page_row_stride, k.shape[2]);
  if (params.max_kv != 0 && (paged || packed_kv)) problem.seq_kv = params.max_kv;
  problem.head_dim = q.shape[3];
  problem.head_dim_v = v.shape[3] == q.shape[3] ? 0 : v.shape[3];
  problem.dtype = q.dtype;
  problem.out_dtype = o.dtype;
  problem.scales = params.scales;
  problem.scale = params.scale.value_or(default_scale(q.shape[3]));
  problem.softcap = params.softcap;
  problem.accuracy = params.accuracy;
  problem.mask = params.mask;
  problem.lse = params.lse != nullptr;
  problem.q.stride = q.stride;
  problem.k.stride = k.stride;
  problem.v.stride = v.stride;
  problem.o.stride = o.stride;
  problem.sequences = {.packed_q = packed_q,
                       .packed_kv = packed_kv,
                       .used_q = params.used_q != nullptr,
                       .used_kv = params.used_kv != nullptr,
                       .kv_start = params.kv_start != nullptr,
                       .kv_index = indexed,
                       .total_q = packed_q ? q.shape[2] : 0,
                       .total_kv = packed_kv ? k.shape[2] : 0,
                       .kv_rows = indexed ? k.shape[0] : 0};
  if (paged)
    problem.pages = {.size = k.shape[2], .count = k.shape[0], .row_stride = params.page_row_stride};
  problem.chunk = params.chunk;
  problem.sinks = params.sinks != nullptr;
  problem.alibi =
      params.slopes != nullptr && params.alibi == Alibi::none ? Alibi::per_head : params.alibi;
  return mask_of(params.mask_view, problem);
}

Tensors tensors_of(const TensorView& q, const TensorView& k, const TensorView& v,
                   const TensorView& o, const AttentionParams& params) {
  Tensors tensors;
  tensors.q = q.data;
  tensors.k = k.data;
  tensors.v = v.data;
  tensors.o = o.data;
  tensors.lse = params.lse;
  tensors.q_scale = params.q_scale;
  tensors.k_scale = params.k_scale;
  tensors.v_scale = params.v_scale;
  tensors.cu_q = params.cu_q;
  tensors.cu_kv = params.cu_kv;
  tensors.used_q = params.used_q;
  tensors.used_kv = params.used_kv;
  tensors.kv_start = params.kv_start;
  tensors.kv_index = params.kv_index;
  tensors.page_table = params.page_table;
  tensors.sinks = params.sinks;
  tensors.mask = params.mask_view.data;
  tensors.slopes = params.slopes;
  return tensors;
}

}  // namespace

Status attention(const Problem& problem, const Tensors& tensors, const Options& options) {
  return guarded([&] { return run(problem, tensors, options); });
}

Status attention(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& o,
                 const AttentionParams& params, const Options& options) {
  return guarded([&]() -> Status {
    Problem problem;
    if (Status status = problem_of(q, k, v, o, params, problem); !status) return status;
    return run(problem, tensors_of(q, k, v, o, params), options);
  });
}

Status prepare(const Problem& problem, const Options& options) {
  return guarded([&]() -> Status {
    if (Status status = check_call(problem, options); !status) return status;
    Machine machine;
    if (Status status = find_machine(options, machine); !status) return status;
    const dispatch::Query query = query_of(problem, machine, options);
    Status why;
    const core::Variant* variant = dispatch::select(dispatch::registry(), query, &why);
    if (variant == nullptr) return why;
    if (core::is_empty(problem) || variant->kernel->prepare == nullptr) return {};
    return variant->kernel->prepare(problem, context_of(machine, options));
  });
}

Status quantize_e4m3(const QuantizeProblem& problem, const QuantizeTensors& tensors,
                     const Options& options) {
  return guarded([&]() -> Status {
    if (Status status = core::check_quantize(problem, tensors); !status) return status;
    Machine machine;
    if (Status status = find_machine(options, machine); !status) return status;
    if (problem.batch == 0) return {};
    return machine.backend->quantize(problem, tensors, context_of(machine, options));
  });
}

namespace {

Status not_here(std::string_view call, DeviceKind kind) {
  return {StatusCode::unsupported,
          core::concat(call, " does not run on ", name_of(kind), ": it runs on cpu")};
}

}  // namespace

Status merge(const MergeProblem& problem, const MergeTensors& tensors, const Options& options) {
  return guarded([&]() -> Status {
    if (Status status = core::check_merge(problem, tensors); !status) return status;
    Machine machine;
    if (Status status = find_machine(options, machine); !status) return status;
    if (machine.backend->merge == nullptr) return not_here("merge", options.device);
    if (problem.batch == 0 || problem.seq == 0) return {};
    return machine.backend->merge(problem, tensors, context_of(machine, options));
  });
}

Status append(const AppendProblem& problem, const AppendTensors& tensors, const Options& options) {
  return guarded([&]() -> Status {
    if (Status status = core::check_append(problem, tensors); !status) return status;
    Machine machine;
    if (Status status = find_machine(options, machine); !status) return status;
    if (machine.backend->append == nullptr) return not_here("append", options.device);
    if (problem.batch == 0 || problem.seq_new == 0 || (problem.packed && problem.total_new == 0))
      return {};
    if (Status status = check_arrays(
            machine, options, [&] { return core::check_append_arrays(problem, tensors); },
            [&](const core::Fetch& fetch) {
              return core::check_fetched_append_arrays(problem, tensors, fetch);
            });
        !status)
      return status;
    return machine.backend->append(problem, tensors, context_of(machine, options));
  });
}

Result<Plan> plan(const Problem& problem, const DeviceFacts& facts, const Options& options) {
  return guarded([&]() -> Result<Plan> {
    if (Status status = check_call(problem, options); !status) return status;
    return dispatch::plan(dispatch::registry(),
                          {problem, facts, choice_of(options), forced_variant(options)});
  });
}

Selection explain(const Problem& problem, const DeviceFacts& facts, const Options& options) {
  const std::string_view forced = forced_variant(options);
  if (Status status = check_call(problem, options); !status) {
    Selection selection;
    selection.forced = !forced.empty();
    selection.refusal = status.message();
    for (const core::Variant& row : dispatch::registry())
      selection.candidates.push_back({std::string(row.id), false, 0, status.message()});
    return selection;
  }
  return dispatch::explain(dispatch::registry(), {problem, facts, choice_of(options), forced});
}

std::vector<VariantInfo> variants() {
  std::vector<VariantInfo> list;
  for (const core::Variant& row : dispatch::registry()) list.push_back(dispatch::describe(row));
  return list;
}

std::string_view version() noexcept { return GREENFAST_VERSION; }

}  // namespace greenfast
