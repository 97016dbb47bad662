#include "dispatch/select.hpp"

#include <algorithm>
#include <string>

#include "core/check.hpp"
#include "core/text.hpp"
#include "dispatch/registry.hpp"
#include "dispatch/takes.hpp"

namespace greenfast::dispatch {
namespace {

// Compute capability as people write it: 89 is 8.9.
std::string capability(int arch) { return core::concat(arch / 10, ".", arch % 10); }

// The API answers without a kernel. Every variant of the device takes such a problem, so that
// forcing one gives the same answer.
using core::is_empty;

// The questions that the row answers without asking its kernel. Writes the reason only for a
// refusal.
bool runs_here(const core::Variant& row, const DeviceFacts& facts, std::string* why) {
  if (row.device != facts.kind)
    return core::refuse(why, "runs on ", name_of(row.device), ", and the device is ",
                        name_of(facts.kind));
  if (row.kernel == nullptr)
    return core::refuse(
        why,
        "not built: needs GREENFAST_CUDA=on and an architecture in GREENFAST_CUDA_ARCHS "
        "that it can be compiled for (at least ",
        row.min_arch, "); rebuild");
  if (row.device != DeviceKind::cuda) return true;
  if (facts.arch < row.min_arch)
    return core::refuse(why, "needs compute capability ", capability(row.min_arch), ", ",
                        facts.name, " has ", capability(facts.arch));
  if (facts.arch < row.lowest_code || (row.exact_code && facts.arch != row.lowest_code))
    return core::refuse(why, "this build has code for compute capability ",
                        capability(row.lowest_code), row.exact_code ? " alone, " : " and later, ",
                        facts.name, " has ", capability(facts.arch),
                        "; add its architecture to GREENFAST_CUDA_ARCHS");
  return true;
}

// 0: refused; otherwise how much the row is wanted. The reason, when asked for, either way.
int rank(const core::Variant& row, const Query& query, std::string* why) {
  if (!runs_here(row, query.facts, why)) return 0;
  const bool empty = is_empty(query.problem);
  const Features takes = empty ? kTakesEmpty : row.takes;
  if (!takes.hold(query.needs)) {
    if (why != nullptr) *why = missing_features(query.needs, takes);
    return 0;
  }
  if (empty) {
    if (why != nullptr) *why = "no query sees a key: O = 0, LSE = -inf, no kernel runs";
    return 1;
  }
  if (!row.kernel->supports(query.problem, query.facts, query.choice, why)) return 0;
  if (row.prefer == nullptr) return core::Preference{}.rank;
  const core::Preference preference = row.prefer(query.problem, query.facts, query.choice);
  if (why != nullptr && !preference.note.empty()) *why += core::concat("; ", preference.note);
  return preference.rank;
}

std::string problem_on_device(const Query& query) {
  return core::concat(to_string(query.problem), " on ", query.facts.name);
}

// For a build without any kernel of the device: what each row would say alike.
std::string nothing_built(DeviceKind kind) {
  return kind == DeviceKind::cuda ? "this build has no CUDA kernels: build with GREENFAST_CUDA=on, "
                                    "which needs nvcc 13.0 "
                                    "and no GPU"
                                  : core::concat("none for ", name_of(kind), " is in this build");
}

Status nothing_fits(std::span<const core::Variant> rows, const Query& query) {
  if (std::none_of(rows.begin(), rows.end(), [&](const core::Variant& row) {
        return row.device == query.facts.kind && row.kernel != nullptr;
      }))
    return {StatusCode::unsupported, core::concat("no variant takes ", problem_on_device(query),
                                                  ": ", nothing_built(query.facts.kind))};
  std::string out = core::concat("no variant takes ", problem_on_device(query));
  std::string by_name;
  bool first = true;
  for (const core::Variant& row : rows) {
    if (row.device != query.facts.kind) continue;
    std::string reason;
    const int preference = rank(row, query, &reason);
    if (row.automatic) {
      if (preference > 0)
        reason = core::concat("wants ", workspace_bytes(row, query),
                              " bytes of scratch: pass Options::workspace or Options::allocate");
      out += core::concat(first ? ": " : "; ", row.id, ": ", reason);
      first = false;
    } else if (preference > 0) {
      by_name += core::concat(by_name.empty() ? "" : ", ", row.id);
    }
  }
  if (first) out += ": none is chosen automatically";
  if (!by_name.empty()) out += core::concat("; by name these take it: ", by_name);
  return {StatusCode::unsupported, std::move(out)};
}

}  // namespace

const core::Variant* select(std::span<const core::Variant> rows, const Query& query, Status* why) {
  if (!query.forced.empty()) {
    const core::Variant* row = find(rows, query.forced);
    if (row == nullptr) {
      if (why != nullptr)
        *why = {StatusCode::invalid_argument, unknown_variant(rows, query.forced)};
      return nullptr;
    }
    if (rank(*row, query, nullptr) > 0) return row;
    if (why != nullptr) {
      std::string reason;
      rank(*row, query, &reason);
      *why = {StatusCode::unsupported,
              core::concat(row->id, " cannot take ", problem_on_device(query), ": ", reason)};
    }
    return nullptr;
  }

  const core::Variant* best = nullptr;
  int best_rank = 0;
  for (const core::Variant& row : rows) {
    if (!row.automatic) continue;
    const int preference = rank(row, query, nullptr);
    if (preference > best_rank && (query.choice.scratch > 0 || workspace_bytes(row, query) == 0)) {
      best = &row;
      best_rank = preference;
    }
  }
  if (best == nullptr && why != nullptr) *why = nothing_fits(rows, query);
  return best;
}

Selection explain(std::span<const core::Variant> rows, const Query& query) {
  Selection selection;
  selection.forced = !query.forced.empty();
  for (const core::Variant& row : rows) {
    Candidate candidate;
    candidate.variant = row.id;
    candidate.rank = rank(row, query, &candidate.reason);
    candidate.accepted = candidate.rank > 0;
    if (candidate.accepted && !row.automatic) candidate.reason += " (by name only)";
    selection.candidates.push_back(std::move(candidate));
  }
  Status why;
  if (const core::Variant* chosen = select(rows, query, &why)) {
    selection.chosen = chosen->id;
  } else {
    selection.refusal = why.message();
  }
  return selection;
}

Result<Plan> plan(std::span<const core::Variant> rows, const Query& query) {
  Status why;
  const core::Variant* row = select(rows, query, &why);
  if (row == nullptr) return why;
  Plan plan;
  if (is_empty(query.problem)) {
    plan.note = core::writes_nothing(query.problem) ? "the output has no element: nothing runs"
                                                    : "no key: O = 0 and LSE = -inf are written";
  } else {
    plan = row->kernel->plan(query.problem, query.facts, query.choice);
  }
  plan.variant = row->id;
  return plan;
}

std::int64_t workspace_bytes(const core::Variant& row, const Query& query) {
  if (is_empty(query.problem) || row.kernel->workspace == nullptr) return 0;
  return row.kernel->workspace(query.problem, query.facts, query.choice);
}

}  // namespace greenfast::dispatch
