#include "workbench/verdict/gate_resources.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "workbench/record/code_json.hpp"

namespace greenfast::workbench {
namespace {

/// Whether both sides run the same code with the same plan wherever both were planned.
bool same_everywhere(std::span<const PlannedShape> shapes, const KernelLookup& lookup) {
  bool any = false;
  for (const PlannedShape& shape : shapes) {
    if (!shape.candidate || !shape.baseline) continue;
    any = true;
    const Plan &a = *shape.baseline, &b = *shape.candidate;
    const auto code_a = lookup(a.kernel), code_b = lookup(b.kernel);
    if (!code_a || !code_b || code_a->sha256.empty() || code_a->sha256 != code_b->sha256)
      return false;
    if (a.grid != b.grid || a.block != b.block || a.cluster != b.cluster ||
        a.shared_bytes != b.shared_bytes)
      return false;
  }
  return any;
}

}  // namespace

ResourceJudgement judge_kernels(std::span<const PlannedShape> shapes, const KernelLookup& lookup) {
  ResourceJudgement out;
  if (same_everywhere(shapes, lookup))
    out.no_op = "both sides run the same machine code with the same plan on every shape";

  // A kernel that several shapes launch is judged at the most dynamic shared memory it gets.
  std::map<std::string, std::int64_t> dynamic;
  for (const PlannedShape& shape : shapes) {
    if (!shape.candidate) continue;
    std::int64_t& most = dynamic[shape.candidate->kernel];
    most = std::max<std::int64_t>(most, shape.candidate->shared_bytes);
  }
  std::vector<std::string> missing, over;
  const auto skip = [&](const std::string& kernel, const std::string& why) {
    missing.push_back(why);
    out.rows.push_back({.name = "compiled kernel",
                        .status = CheckStatus::skipped,
                        .kernel = kernel,
                        .reason = why});
    out.checklist.push_back(
        {CheckKind::resources, "resources", "inside limits", why, CheckStatus::skipped});
  };
  if (dynamic.empty()) skip("", "the candidate tells no plan");
  for (const auto& entry : dynamic) {
    // Not a structured binding, which clang 14 lets no lambda name.
    const std::string& kernel = entry.first;
    const auto shared = entry.second;
    const auto code = kernel.empty() ? std::nullopt : lookup(kernel);
    if (!code) {
      skip(kernel,
           kernel.empty()
               ? "the plan names no kernel"
               : fmt::format("this binary holds no machine code of {} for the device", kernel));
      continue;
    }
    const auto row = [&](const std::string& name, std::int64_t value, CheckStatus status) {
      return GateResource{.name = name,
                          .status = status,
                          .value = value,
                          .kernel = kernel,
                          .arch = code->arch,
                          .sha256 = code->sha256};
    };
    // What it takes stands in the record, limited or not.
    out.rows.push_back(row("registers", code->registers, CheckStatus::pass));
    out.rows.push_back(row("shared memory", code->static_shared + shared, CheckStatus::pass));
    out.rows.push_back(row("local memory", code->local_bytes, CheckStatus::pass));
    for (const LimitCheck& check : code->checks) {
      const CheckStatus status = check.broken()   ? CheckStatus::fail
                                 : check.waived() ? CheckStatus::waived
                                                  : CheckStatus::pass;
      const auto place =
          std::find_if(out.rows.begin(), out.rows.end(), [&](const GateResource& other) {
            return other.kernel == kernel && other.name == check.what && !other.limit;
          });
      GateResource found = row(check.what, check.value, status);
      found.limit = check.most;
      found.reason = check.reason;
      std::string actual = fmt::format("{} ({}, {})", check.value, kernel, code->arch);
      if (check.waived()) {
        found.waiver = {check.waiver, check.waived_because};
        actual += fmt::format("; waiver '{}': {}", check.waiver, check.waived_because);
      }
      if (place != out.rows.end()) {
        *place = std::move(found);
      } else {
        out.rows.push_back(std::move(found));
      }
      out.checklist.push_back({CheckKind::resources, fmt::format("resources: {}", check.what),
                               fmt::format("<= {}", check.most), actual, status});
      if (check.broken())
        over.push_back(fmt::format("{} ({}): {}", kernel, code->arch, check.words()));
    }
    const bool inside = std::none_of(code->checks.begin(), code->checks.end(),
                                     [](const LimitCheck& check) { return check.broken(); });
    out.checklist.push_back(
        {CheckKind::resources, "resources: kernel", "inside its limits, no spills",
         fmt::format("{} registers, {:.1f} KB, {} B local ({})", code->registers,
                     static_cast<double>(code->static_shared + shared) / 1024, code->local_bytes,
                     code->arch),
         inside ? CheckStatus::pass : CheckStatus::fail});
  }
  if (!over.empty()) {
    out.reason = Reason{ReasonCode::resources, fmt::format("{}", fmt::join(over, "; ")),
                        "greenfast resources shows every kernel; fewer live values, smaller tiles"};
  } else if (!missing.empty()) {
    out.reason = Reason{ReasonCode::tool_missing,
                        fmt::format("resources are unknown: {}", fmt::join(missing, "; ")),
                        "a build with -DGREENFAST_CUDA_ARCHS for this device"};
  }
  return out;
}

std::optional<CompilerLogs> logs_of_sides(std::span<const PlannedShape> shapes,
                                          const LogLookup& lookup) {
  std::set<std::string> names;
  for (const PlannedShape& shape : shapes) {
    if (!shape.refused.empty()) continue;
    for (const std::optional<Plan>& plan : {shape.baseline, shape.candidate}) {
      if (!plan || plan->kernel.empty()) return std::nullopt;
      names.insert(plan->kernel);
    }
  }
  CompilerLogs out;
  const auto add = [&](const CompilerLogs& more) {
    out.logs += more.logs;
    out.complaints.insert(out.complaints.end(), more.complaints.begin(), more.complaints.end());
  };
  std::vector<std::string> ours;
  for (const std::string& name : names) {
    if (const auto said = lookup.plugin(name)) {
      add(*said);
    } else {
      ours.push_back(name);
    }
  }
  if (!ours.empty()) {
    const auto said = lookup.objects(ours);
    if (!said) return std::nullopt;
    add(*said);
  }
  if (out.logs == 0) return std::nullopt;
  return out;
}

nlohmann::json code_of_sides(std::span<const PlannedShape> shapes, int arch,
                             const DeviceCode& code) {
  Launchers launchers;
  for (const PlannedShape& shape : shapes) {
    for (const std::optional<Plan>& plan : {shape.baseline, shape.candidate})
      if (plan && plan->variant.starts_with(name_of(DeviceKind::cuda)))
        launchers.add(plan->kernel, plan->variant);
  }
  return code_json(launchers, arch, code);
}

}  // namespace greenfast::workbench
