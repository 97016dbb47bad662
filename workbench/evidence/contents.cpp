#include "workbench/evidence/contents.hpp"

#include "workbench/cases/problem_codec.hpp"

namespace greenfast::workbench {

using nlohmann::json;

const json& member(const json& object, std::string_view key) {
  static const json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}
std::string text_of(const json& object, std::string_view key) {
  const json& value = member(object, key);
  return value.is_string() ? value.get<std::string>() : std::string();
}
std::int64_t integer_of(const json& object, std::string_view key) {
  const json& value = member(object, key);
  return value.is_number_integer() ? value.get<std::int64_t>() : 0;
}
const json& list_of(const json& object, std::string_view key) {
  static const json kEmpty = json::array();
  const json& value = member(object, key);
  return value.is_array() ? value : kEmpty;
}

std::vector<Launch> launches_of(const json& record) {
  std::vector<Launch> out;
  const auto add = [&](const json& plan, std::string problem) {
    Launch launch{text_of(plan, "variant"), text_of(plan, "kernel"), std::move(problem)};
    if (!launch.variant.empty()) out.push_back(std::move(launch));
  };
  for (const json& plan : list_of(record, "plans")) add(plan, text_of(plan, "problem"));  // run
  for (const json& shape : list_of(record, "shapes")) {
    for (const char* side : {"baseline", "candidate"})
      add(member(member(shape, "plans"), side), "");               // gate
    const json& engines = member(member(shape, "ab"), "engines");  // greenfast.ab
    if (!engines.is_object()) continue;
    for (const auto& [name, engine] : engines.items())
      add(member(engine, "plan").is_object() ? engine["plan"] : engine, text_of(shape, "name"));
  }
  return out;
}

DeviceFacts facts_of(const json& device) {
  DeviceFacts facts;
  facts.kind =
      text_of(device, "kind") == name_of(DeviceKind::cuda) ? DeviceKind::cuda : DeviceKind::cpu;
  facts.index = static_cast<int>(integer_of(device, "index"));
  facts.name = text_of(device, "name");
  facts.arch = static_cast<int>(integer_of(device, "arch"));
  facts.multiprocessors = static_cast<int>(integer_of(device, "multiprocessors"));
  facts.shared_per_block = integer_of(device, "shared_per_block");
  facts.l2_bytes = integer_of(device, "l2_bytes");
  facts.isa = text_of(device, "isa");
  facts.driver = text_of(device, "driver");
  return facts;
}

std::map<std::string, Problem> problems_of(const json& record) {
  std::map<std::string, Problem> out;
  for (const json& row : list_of(record, "problems"))
    if (const auto problem = problem_of_json(row)) out[text_of(row, "name")] = *problem;
  for (const json& shape : list_of(record, "shapes")) {
    if (!member(shape, "ab").is_object())
      continue;  // a row of greenfast.ab, by its printed problem
    if (const auto problem = problem_of_text(text_of(shape, "problem")))
      out[text_of(shape, "name")] = *problem;
  }
  return out;
}
std::optional<DeviceFacts> device_of(const json& record) {
  const json& device = member(record, "device");
  if (device.is_object()) return facts_of(device);
  if (!device.is_string()) return std::nullopt;
  for (const char* model : {"h200", "h100", "a100", "l4"}) {  // greenfast.ab names the device alone
    auto facts = model_facts(model);
    if (facts.ok() && facts->name == device.get<std::string>()) return *facts;
  }
  return std::nullopt;
}

}  // namespace greenfast::workbench
