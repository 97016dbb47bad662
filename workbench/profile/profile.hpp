// Profiles: why a kernel is as fast as it is, from hardware counters.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace greenfast::workbench {

/// What people read of a profile's record (schema greenfast.profile/1).
std::string profile_markdown(const nlohmann::json& record);

}  // namespace greenfast::workbench
