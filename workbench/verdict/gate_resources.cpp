#include "workbench/verdict/gate_resources.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

namespace greenfast::workbench {
namespace {

using nlohmann::json;

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

ResourceJudgement judge_kernels(std::span<const PlannedShape> shapes, const RungRule& rule,
                                const KernelLookup& lookup) {
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
    out.rows.push_back(
        {{"name", "compiled kernel"}, {"kernel", kernel}, {"status", "SKIPPED"}, {"reason", why}});
    out.checklist.push_back({"resources", "inside limits", why, "SKIPPED"});
  };
  if (dynamic.empty()) skip("", "the candidate tells no plan");
  for (const auto& [kernel, shared] : dynamic) {
    const auto code = kernel.empty() ? std::nullopt : lookup(kernel);
    if (!code) {
      skip(kernel,
           kernel.empty()
               ? "the plan names no kernel"
               : fmt::format("this binary holds no machine code of {} for the device", kernel));
      continue;
    }
    struct Limit {
      const char* name;
      std::int64_t value;
      std::optional<std::int64_t> most;
    };
    for (const Limit& limit :
         {Limit{"registers", code->registers, rule.registers},
          Limit{"shared memory", code->static_shared + shared, rule.shared_bytes},
          Limit{"local memory", code->local_bytes, rule.spill_bytes}}) {
      const bool inside = !limit.most || limit.value <= *limit.most;
      json row = {{"name", limit.name},     {"kernel", kernel},
                  {"arch", code->arch},     {"value", limit.value},
                  {"sha256", code->sha256}, {"status", inside ? "PASS" : "FAIL"}};
      if (limit.most) row["limit"] = *limit.most;
      out.rows.push_back(std::move(row));
      if (!limit.most) continue;
      out.checklist.push_back(
          {fmt::format("resources: {}", limit.name), fmt::format("<= {}", *limit.most),
           fmt::format("{} ({}, {})", limit.value, kernel, code->arch), inside ? "PASS" : "FAIL"});
      if (!inside) {
        over.push_back(fmt::format("{} ({}): {} {} > {}", kernel, code->arch, limit.name,
                                   limit.value, *limit.most));
      }
    }
    for (const std::string& limit : code->over) {
      over.push_back(fmt::format("{} ({}): {}", kernel, code->arch, limit));
      out.rows.push_back({{"name", "policies/resources.toml"},
                          {"kernel", kernel},
                          {"arch", code->arch},
                          {"status", "FAIL"},
                          {"reason", limit}});
    }
    out.checklist.push_back(
        {"resources: limits of every build", "policies/resources.toml, no spills",
         code->over.empty()
             ? fmt::format("{} registers, {:.1f} KB, {} spilled ({})", code->registers,
                           static_cast<double>(code->static_shared + shared) / 1024,
                           code->local_bytes, code->arch)
             : fmt::format("{}", fmt::join(code->over, "; ")),
         code->over.empty() ? "PASS" : "FAIL"});
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

}  // namespace greenfast::workbench
