// What a record says of a run, whatever schema it has; nothing here throws or believes a type.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <greenfast/attention.hpp>

namespace greenfast::workbench {

/// The member of an object, or null.
const nlohmann::json& member(const nlohmann::json& object, std::string_view key);
/// The same, empty, 0 or an empty list where it is of another type.
std::string text_of(const nlohmann::json& object, std::string_view key);
std::int64_t integer_of(const nlohmann::json& object, std::string_view key);
const nlohmann::json& list_of(const nlohmann::json& object, std::string_view key);

/// A kernel that a record says was launched.
struct Launch {
  std::string variant, kernel, problem;
};
std::vector<Launch> launches_of(const nlohmann::json& record);

/// The problems of a record by the names its rows use.
std::map<std::string, Problem> problems_of(const nlohmann::json& record);
/// The device of a record's head.
DeviceFacts facts_of(const nlohmann::json& device);
/// The one it ran on; none where the record does not say enough of it.
std::optional<DeviceFacts> device_of(const nlohmann::json& record);

}  // namespace greenfast::workbench
