// Kernels to begin with: what `greenfast new` writes. They are the examples of examples/plugins,
// which the tests hold to GREEN, in one file.
#pragma once

#include <string>
#include <string_view>

#include <greenfast/types.hpp>

namespace greenfast::workbench {

/// Embedded from examples/plugins.
std::string_view example_attention_h();
std::string_view example_honest_c();
std::string_view example_attention_cuh();
std::string_view example_honest_cu();

/// The text of a plugin whose kernel goes by `name`, for a file of this extension (".c", ".cu").
/// invalid_argument for a name or an extension that no plugin has.
Result<std::string> new_plugin(const std::string& name, const std::string& extension);

}  // namespace greenfast::workbench
