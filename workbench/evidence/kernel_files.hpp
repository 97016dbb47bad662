// The files that kernels are compiled from, and what of them a record remembers: digests that no
// comment and no line break changes.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace greenfast::workbench {

/// SHA-256 of a source without comments and with every run of white space as one blank: what a
/// comment or a line break does not change. Literals stay as they are.
std::string source_digest(std::string_view text);
/// Path from the root -> source_digest, of the files that a variant's kernel is compiled from: the
/// sources that CMake lists for it, and the files under src/kernels that those include. Empty when
/// the root has none.
std::vector<std::pair<std::string, std::string>> sources_of(const std::filesystem::path& root,
                                                            std::string_view variant);

/// All files under src/kernels of a checkout, by path from its root, with their texts.
using KernelFiles = std::map<std::string, std::string>;
KernelFiles kernel_files(const std::filesystem::path& root);

/// Whether text defines `core::Kernel symbol`, as a kernel's source does.
bool defines_kernel(std::string_view text, std::string_view symbol);

/// What a variant's kernel is compiled from: the sources of the object that defines it, as CMake
/// lists them, and the files under src/kernels that those include. Empty where `files` are of a
/// checkout that has them elsewhere.
std::vector<std::string> closure_of(const KernelFiles& files, std::string_view variant);

/// Finds the files of a checkout among those that a ledger's entry names. A file that lies
/// elsewhere now is known by its content, if what it includes is spelled as it was then.
class RecordedSources {
 public:
  RecordedSources(const nlohmann::json& recorded, const KernelFiles& files)
      : recorded_(recorded), files_(files) {}

  /// The path under which a file was recorded as it is; empty: it is new, or has changed since.
  const std::string& path_of(const std::string& path) {
    const auto [place, fresh] = known_.try_emplace(path);
    if (fresh) place->second = find(path);  // a map's elements stay where they are
    return place->second;
  }

 private:
  std::string find(const std::string& path);
  /// The text with includes of moved files by their old names, each run of includes in order again,
  /// as the formatter has them.
  std::string as_included_then(const std::string& path);

  const nlohmann::json& recorded_;
  const KernelFiles& files_;
  std::map<std::string, std::string> known_;
};

}  // namespace greenfast::workbench
