// A rung of the ladder as the source of a plugin: what a search over sources starts from.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <greenfast/types.hpp>

namespace greenfast::workbench {

/// Ids of the rungs whose source the checkout `tree` has, in the registry's order; toggles set back
/// among them.
std::vector<std::string> rungs_of(const std::filesystem::path& tree);

/// One CUDA source that holds the rung's own file, the loop that it shares with its neighbours in
/// place of the include of it, none of the neighbours, and the entry of a plugin. It includes what
/// all kernels share from `tree`, `tree`/src and `tree`/include. invalid_argument where `id` is no
/// rung or the tree has no source of it.
Result<std::string> rung_source(const std::filesystem::path& tree, std::string_view id);

}  // namespace greenfast::workbench
