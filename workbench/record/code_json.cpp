#include "workbench/record/code_json.hpp"

#include <fmt/format.h>

#include <set>
#include <vector>

namespace greenfast::workbench {

using nlohmann::json;

json code_json(std::span<const std::string> kernels, int arch, const DeviceCode& code) {
  json out = json::array();
  std::set<std::string> seen;
  for (const std::string& name : kernels) {
    if (name.empty() || !seen.insert(name).second) continue;
    const KernelCode* kernel = find_kernel(code, name, arch);
    if (kernel == nullptr) {
      out.push_back({{"kernel", name},
                     {"reason", fmt::format("no machine code for compute capability {}.{} in the "
                                            "binary: the driver compiled its PTX",
                                            arch / 10, arch % 10)}});
      continue;
    }
    out.push_back({{"kernel", name},
                   {"arch", kernel->arch},
                   {"sha256", kernel->sha256},
                   {"registers", kernel->registers},
                   {"static_shared_bytes", kernel->static_shared},
                   {"local_bytes", kernel->stack},
                   {"compiler", kernel->compiler}});
  }
  return out;
}

void Launchers::add(const std::string& kernel, const std::string& variant) {
  kernels.push_back(kernel);
  variants[kernel].insert(variant);
}

json code_json(const Launchers& launchers, int arch, const DeviceCode& code) {
  json out = code_json(launchers.kernels, arch, code);
  for (json& row : out) row["variants"] = launchers.variants.at(row["kernel"].get<std::string>());
  return out;
}

json code_json(std::span<const Plan> plans, const DeviceFacts& facts) {
  if (facts.kind != DeviceKind::cuda) return json::array();
  const auto& code = own_device_code();
  if (!code.ok()) return json::array();
  std::vector<std::string> names;
  for (const Plan& plan : plans)
    if (plan.variant.starts_with(name_of(DeviceKind::cuda))) names.push_back(plan.kernel);
  return code_json(names, facts.arch, *code);
}

}  // namespace greenfast::workbench
