// The calls of the public API: check, select, launch.
#include <greenfast/attention.hpp>
#include <greenfast/serving.hpp>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "api/calls.hpp"
#include "core/check.hpp"
#include "core/log.hpp"
#include "core/sequences.hpp"
#include "core/serving.hpp"
#include "core/text.hpp"
#include "dispatch/registry.hpp"
#include "dispatch/select.hpp"

namespace greenfast {

using api::check_call, api::choice_of, api::context_of, api::find_machine, api::forced_variant,
    api::guarded, api::Machine, api::query_of;

namespace {

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

struct Chosen {
  const core::Variant* variant = nullptr;  // null: none takes it
  std::int64_t workspace_bytes = 0;        // that it wants
};

/// What this thread's last call was found to be. One that asks the same again, as a model's layers do, is
/// neither checked nor given to selection again: 0.2 us of 0.3 (2026-11-26). Tensors are looked at each time.
struct LastCall {
  Problem asked, problem;  // and with the alignment that the tensors leave
  core::Choice choice;
  const DeviceFacts* facts = nullptr;
  Chosen chosen;

  /// Byte for byte, padding too: a difference there costs a look more.
  static bool same(const Problem& a, const Problem& b) {
    static_assert(std::is_trivially_copyable_v<Problem>);
    return std::memcmp(&a, &b, sizeof(Problem)) == 0;
  }
  bool asked_for(const Problem& p, core::Choice c) const {
    return chosen.variant != nullptr && choice.batch_invariant == c.batch_invariant &&
           choice.max_splits == c.max_splits && same(asked, p);
  }
};
constinit thread_local LastCall last_call;

Chosen choose(const Problem& asked, const dispatch::Query& query, Status* why) {
  LastCall& last = last_call;
  if (query.forced.empty() && last.facts == &query.facts &&
      last.choice.scratch == query.choice.scratch && last.asked_for(asked, query.choice) &&
      LastCall::same(last.problem, query.problem))
    return last.chosen;
  Chosen chosen{dispatch::select(dispatch::registry(), query, why)};
  if (chosen.variant == nullptr) return chosen;
  chosen.workspace_bytes = dispatch::workspace_bytes(*chosen.variant, query);
  if (query.forced.empty()) last = {asked, query.problem, query.choice, &query.facts, chosen};
  return chosen;
}

Status run(const Problem& asked, const Tensors& tensors, const Options& options) {
  if (!last_call.asked_for(asked, choice_of(options))) {
    if (Status status = check_call(asked, options); !status) return status;
  }
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
  const auto [variant, wanted] = choose(asked, query, &why);
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
  if (Status status =
          api::find_scratch(problem, tensors, options, wanted, variant->id, context.workspace);
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

// The array mask as a problem of these sizes has it: a dimension of size 1 is broadcast.
Status mask_of(const MaskView& view, const std::array<std::int64_t, 4>& wanted, ArrayMask& mask) {
  const auto& [data, given_kind, given_dtype, shape, given_stride] = view;
  auto& [kind, dtype, stride] = mask;
  if (data == nullptr) return {};
  kind = given_kind;
  if (kind == MaskKind::additive) dtype = given_dtype;
  for (std::size_t dim = 0; dim < wanted.size(); ++dim) {
    if (shape[dim] != wanted[dim] && shape[dim] != 1)
      return {StatusCode::invalid_argument,
              core::concat("the mask's shape is ", text_of(shape), ": ", text_of(wanted),
                           " is expected, [B, Hq, Sq, Skv], each of them or 1")};
    stride[dim] = shape[dim] == 1 ? 0 : given_stride[dim];
  }
  return {};
}

// Keys that a row of the page table has room for, at most what check() accepts.
std::int64_t keys_of_row(std::int64_t entries, std::int64_t page) {
  std::int64_t keys = 0;
  if (__builtin_mul_overflow(entries, page, &keys)) return core::kMaxLength;
  return std::min(keys, core::kMaxLength);
}

// Views that cannot be one problem, and counts without which nothing would be computed.
Status check_views(const TensorView& q, const TensorView& k, const TensorView& v,
                   const TensorView& o, const AttentionParams& params) {
  // Every member by name: a new one does not compile before it has its place here, in the problem or
  // among the tensors.
  const auto& [scale, softcap, mask, lse, scales, q_scale, k_scale, v_scale, sequences, cu_q, cu_kv,
               used_q, used_kv, kv_start, kv_index, max_q, max_kv, page_table, page_row_stride,
               sinks, mask_view, slopes, alibi, chunk, accuracy] = params;
  if (k.dtype != q.dtype || v.dtype != q.dtype)
    return {StatusCode::invalid_argument,
            core::concat("Q, K, V are ", name_of(q.dtype), ", ", name_of(k.dtype), ", ",
                         name_of(v.dtype), ": they must have one type; convert them")};
  const bool paged = page_table != nullptr, packed_q = cu_q != nullptr;
  const bool packed_kv = cu_kv != nullptr, indexed = kv_index != nullptr;
  if (packed_q && q.shape[0] != 1)
    return shape_error("Q", q, {1, q.shape[1], q.shape[2], q.shape[3]},
                       "[1, Hq, total, D] where sequences are packed");
  // Else nothing would be computed, with status ok.
  if (packed_q && sequences == 0 && q.shape[2] > 0)
    return {StatusCode::invalid_argument,
            core::concat("sequences is 0 and packed Q has ", q.shape[2],
                         " rows: set sequences to that of cu_q, which has one entry more")};
  if (paged && page_row_stride == 0 && max_kv == 0)
    return {
        StatusCode::invalid_argument,
        "page_row_stride is 0, so that no sequence has a page: set it to the entries of a row of "
        "page_table, or max_kv where all sequences share one row"};
  if (!packed_q && sequences != 0 && sequences != q.shape[0])
    return {StatusCode::invalid_argument,
            core::concat("sequences is ", sequences, " and Q's batch ", q.shape[0],
                         ": they must agree, or sequences be 0, where Q is not packed")};
  // K's first dimension and its rows are the sequences' unless they are packed, indexed or in
  // pages.
  const std::int64_t first = packed_kv          ? 1
                             : paged || indexed ? k.shape[0]
                             : packed_q         ? sequences
                                                : q.shape[0];
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
  return {};
}

// Of views that check_views() has seen.
Status problem_of(const TensorView& q, const TensorView& k, const TensorView& v,
                  const TensorView& o, const AttentionParams& params, Problem& problem) {
  // Every member by name here too: one that is new would keep its default in every call with views.
  auto& [batch, heads_q, heads_kv, seq_q, seq_kv, head_dim, dtype, out_dtype, scales, scale,
         softcap, mask, lse, layout_q, layout_k, layout_v, layout_o, head_dim_v, sequences, pages,
         chunk, sinks, alibi, array_mask, accuracy] = problem;
  auto& [has_packed_q, has_packed_kv, has_used_q, has_used_kv, has_kv_start, has_kv_index, total_q,
         total_kv, kv_rows] = sequences;
  auto& [page_size, page_count, page_row_stride] = pages;
  const bool paged = params.page_table != nullptr;
  has_packed_q = params.cu_q != nullptr;
  has_packed_kv = params.cu_kv != nullptr;
  has_used_q = params.used_q != nullptr;
  has_used_kv = params.used_kv != nullptr;
  has_kv_start = params.kv_start != nullptr;
  has_kv_index = params.kv_index != nullptr;
  total_q = has_packed_q ? q.shape[2] : 0;
  total_kv = has_packed_kv ? k.shape[2] : 0;
  kv_rows = has_kv_index ? k.shape[0] : 0;
  page_size = paged ? k.shape[2] : 0;
  page_count = paged ? k.shape[0] : 0;
  page_row_stride = paged ? params.page_row_stride : 0;
  batch = has_packed_q ? params.sequences : q.shape[0];
  heads_q = q.shape[1];
  heads_kv = k.shape[1];
  seq_q = has_packed_q && params.max_q != 0 ? params.max_q : q.shape[2];
  seq_kv = paged ? keys_of_row(page_row_stride, page_size) : k.shape[2];
  if (params.max_kv != 0 && (paged || has_packed_kv)) seq_kv = params.max_kv;
  head_dim = q.shape[3];
  head_dim_v = v.shape[3] == q.shape[3] ? 0 : v.shape[3];
  dtype = q.dtype;
  out_dtype = o.dtype;
  scales = params.scales;
  scale = params.scale.value_or(default_scale(q.shape[3]));
  softcap = params.softcap;
  accuracy = params.accuracy;
  mask = params.mask;
  lse = params.lse != nullptr;
  layout_q.stride = q.stride;
  layout_k.stride = k.stride;
  layout_v.stride = v.stride;
  layout_o.stride = o.stride;
  chunk = params.chunk;
  sinks = params.sinks != nullptr;
  alibi = params.slopes != nullptr && params.alibi == Alibi::none ? Alibi::per_head : params.alibi;
  return mask_of(params.mask_view, {batch, heads_q, seq_q, seq_kv}, array_mask);
}

Tensors tensors_of(const TensorView& view_q, const TensorView& view_k, const TensorView& view_v,
                   const TensorView& view_o, const AttentionParams& params) {
  Tensors tensors;
  // By name for the same reason: an operand that is new would be null in every call with views.
  auto& [q, k, v, o, lse, q_scale, k_scale, v_scale, cu_q, cu_kv, used_q, used_kv, kv_start,
         kv_index, page_table, sinks, mask, slopes] = tensors;
  q = view_q.data;
  k = view_k.data;
  v = view_v.data;
  o = view_o.data;
  lse = params.lse;
  q_scale = params.q_scale;
  k_scale = params.k_scale;
  v_scale = params.v_scale;
  cu_q = params.cu_q;
  cu_kv = params.cu_kv;
  used_q = params.used_q;
  used_kv = params.used_kv;
  kv_start = params.kv_start;
  kv_index = params.kv_index;
  page_table = params.page_table;
  sinks = params.sinks;
  mask = params.mask_view.data;
  slopes = params.slopes;
  return tensors;
}

}  // namespace

Status api::read_views(const TensorView& q, const TensorView& k, const TensorView& v,
                       const TensorView& o, const AttentionParams& params, Problem& problem,
                       Tensors& tensors) {
  if (Status status = check_views(q, k, v, o, params); !status) return status;
  tensors = tensors_of(q, k, v, o, params);
  return problem_of(q, k, v, o, params, problem);
}

Status attention(const Problem& problem, const Tensors& tensors, const Options& options) {
  return guarded([&] { return run(problem, tensors, options); });
}

Status attention(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& o,
                 const AttentionParams& params, const Options& options) {
  return guarded([&]() -> Status {
    Problem problem;
    Tensors tensors;
    if (Status status = api::read_views(q, k, v, o, params, problem, tensors); !status)
      return status;
    return run(problem, tensors, options);
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
