#include "workbench/verdict/gate_options.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "workbench/base/json.hpp"

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

namespace {

std::vector<std::string> texts_of(const json& document, const char* name) {
  std::vector<std::string> out;
  for (const json& item : field::list(document, name, true)) {
    if (!item.is_string()) field::wrong(fmt::format("{} holds what is no text", name));
    out.push_back(item.get<std::string>());
  }
  return out;
}

std::vector<std::uint64_t> seeds_of(const json& document) {
  std::vector<std::uint64_t> out;
  for (const json& item : field::list(document, "seeds", true)) {
    if (!item.is_number_unsigned()) field::wrong("seeds holds what is no whole number");
    out.push_back(item.get<std::uint64_t>());
  }
  return out;
}

}  // namespace

Result<GateOptions> gate_options_from_json(const json& document) {
  GateOptions o;
  try {
    o.baseline = field::text(document, "baseline");
    o.candidate = field::text(document, "candidate");
    o.primary = field::text(document, "primary");
    o.guards = field::text(document, "guards");
    o.dtype = field::text(document, "dtype");
    o.causal = field::text(document, "causal");
    o.policy = field::text(document, "policy");
    o.gate_policy = field::text(document, "gate_policy");
    o.seeds = seeds_of(document);
    o.hot = field::flag(document, "hot");
    if (document.contains("plugins")) {
      const json& plugins = field::object(document, "plugins");
      o.plugins.files = texts_of(plugins, "files");
      o.plugins.compile.flags = field::text(plugins, "flags");
      o.plugins.timeout_seconds = field::number(plugins, "timeout_seconds");
      o.plugins.memory_gib = field::number(plugins, "memory_gib");
    }
    if (document.contains("peers")) o.peers = texts_of(document, "peers");
    if (document.contains("gate")) o.gate = field::number(document, "gate");
    if (document.contains("budget_seconds"))
      o.budget_seconds = field::number(document, "budget_seconds");
    if (document.contains("processes")) o.processes = field::count_of<int>(document, "processes");
  } catch (const json::exception& error) {
    return Status(StatusCode::invalid_argument, fmt::format("options: {}", reason_of(error)));
  }
  return o;
}

Status check_job_head(const std::filesystem::path& directory, const json& head, bool ladder) {
  std::string why;
  try {
    (void)field::text(head, "utc");
    (void)texts_of(head, "argv");
    if (const auto options = gate_options_from_json(field::any(head, "options")); !options)
      why = options.status().message();
    if (!ladder) (void)field::object(head, "build");
  } catch (const json::exception& error) {
    why = reason_of(error);
  }
  if (why.empty()) return {};
  return Status(StatusCode::invalid_argument,
                fmt::format("{}: damaged: {}; nothing goes on without it: start a new gate",
                            (directory / "job.json").string(), why));
}

}  // namespace greenfast::workbench
