#include "workbench/verdict/gate_identity.hpp"

#include <fmt/format.h>

#include "workbench/base/build_info.hpp"
#include "workbench/base/json.hpp"
#include "workbench/base/sha256.hpp"
#include "workbench/resources/resources.hpp"
#include "workbench/subjects/plugin/plugins.hpp"
#include "workbench/verdict/gate_steps.hpp"

namespace greenfast::workbench {
namespace {

using nlohmann::json;

json part(const json& object, const char* name) {
  return object.is_object() && object.contains(name) ? object[name] : json(nullptr);
}

/// "0.1.0, dfaabafefe, with changes of its own".
std::string build_words(const json& build) {
  std::string out = plain(part(build, "version"));
  if (const json sha = part(build, "git_sha"); sha.is_string() && !sha.get<std::string>().empty())
    out += ", " + sha.get<std::string>().substr(0, 10);
  if (part(build, "git_dirty") == true) out += ", with changes of its own";
  return out;
}

std::string cpu_words(const json& build) {
  const json cpu = part(build, "cpu");
  if (!cpu.is_object()) return "none are told";
  return fmt::format("{} of {}", plain(part(cpu, "threads")), plain(part(cpu, "isa")));
}

}  // namespace

json gate_identity(const Policy& policy, const GatePolicy& rules, const GateOptions& options) {
  const BuildInfo& info = build_info();
  json cpu;
  if (const auto subject = gate_steps::one_subject(options.candidate, "--candidate");
      subject && (*subject)->device() == DeviceKind::cpu) {
    if (const auto facts = device_facts(DeviceKind::cpu))
      cpu = {{"isa", facts->isa}, {"threads", facts->multiprocessors}};
  }
  return {{"version", info.version},
          {"cpu", cpu},
          {"git_sha", info.git_sha},
          {"git_dirty", info.git_dirty},
          {"git_diff_sha256", info.git_diff_sha256},
          {"compiler", info.compiler},
          {"flags", info.flags},
          {"cuda", info.cuda},
          {"policy", {{"name", policy.name}, {"sha256", policy.sha256}}},
          {"gate_policy_sha256", rules.sha256},
          {"resources_policy_sha256", sha256_hex(builtin_resource_limits())},
          {"plugins", plugins_digest()}};
}

std::optional<IdentityGap> gap_between(const json& begun, const json& here) {
  const auto differ = [&](std::initializer_list<const char*> names) {
    for (const char* name : names)
      if (part(begun, name) != part(here, name)) return true;
    return false;
  };
  if (differ({"version", "git_sha", "git_dirty", "git_diff_sha256", "compiler", "flags", "cuda"}))
    return IdentityGap{fmt::format("by another build of greenfast ({}; this is {})",
                                   build_words(begun), build_words(here)),
                       "go on with that build"};
  if (differ({"policy", "gate_policy_sha256", "resources_policy_sha256"}))
    return IdentityGap{"under another policy than stands there now", "put back the policy of then"};
  if (differ({"plugins"}))
    return IdentityGap{"with another plugin than lies there now", "put back the plugin of then"};
  if (differ({"cpu"}))
    return IdentityGap{fmt::format("with other threads or instructions ({}; here {})",
                                   cpu_words(begun), cpu_words(here)),
                       "set what was set then (GREENFAST_THREADS, GREENFAST_ISA, the affinity)"};
  return std::nullopt;
}

}  // namespace greenfast::workbench
