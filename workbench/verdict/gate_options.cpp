#include "workbench/verdict/gate_options.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace greenfast::workbench {

using nlohmann::json;

json to_json(const GateOptions& o) {
  json out = {{"baseline", o.baseline}, {"candidate", o.candidate},
              {"primary", o.primary},   {"guards", o.guards},
              {"dtype", o.dtype},       {"causal", o.causal},
              {"policy", o.policy},     {"gate_policy", o.gate_policy},
              {"seeds", o.seeds},       {"hot", o.hot},
              {"peers", o.peers}};
  if (!o.plugins.files.empty())
    out["plugins"] = {{"files", o.plugins.files},
                      {"flags", o.plugins.compile.flags},
                      {"timeout_seconds", o.plugins.timeout_seconds},
                      {"memory_gib", o.plugins.memory_gib}};
  if (o.gate) out["gate"] = *o.gate;
  if (o.budget_seconds) out["budget_seconds"] = *o.budget_seconds;
  if (o.processes) out["processes"] = *o.processes;
  return out;
}

Result<GateOptions> gate_options_from_json(const json& document) {
  GateOptions o;
  try {
    document.at("baseline").get_to(o.baseline);
    document.at("candidate").get_to(o.candidate);
    document.at("primary").get_to(o.primary);
    document.at("guards").get_to(o.guards);
    document.at("dtype").get_to(o.dtype);
    document.at("causal").get_to(o.causal);
    document.at("policy").get_to(o.policy);
    document.at("gate_policy").get_to(o.gate_policy);
    document.at("seeds").get_to(o.seeds);
    document.at("hot").get_to(o.hot);
    if (document.contains("plugins")) {
      const json& plugins = document.at("plugins");
      plugins.at("files").get_to(o.plugins.files);
      plugins.at("flags").get_to(o.plugins.compile.flags);
      plugins.at("timeout_seconds").get_to(o.plugins.timeout_seconds);
      plugins.at("memory_gib").get_to(o.plugins.memory_gib);
    }
    if (document.contains("peers")) document.at("peers").get_to(o.peers);
    if (document.contains("gate")) o.gate = document.at("gate").get<double>();
    if (document.contains("budget_seconds"))
      o.budget_seconds = document.at("budget_seconds").get<double>();
    if (document.contains("processes")) o.processes = document.at("processes").get<int>();
  } catch (const json::exception& error) {
    return Status(StatusCode::invalid_argument, fmt::format("options: {}", error.what()));
  }
  return o;
}

}  // namespace greenfast::workbench
