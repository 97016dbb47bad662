// greenfast new: a kernel of one's own to begin with.
#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "cli/command.hpp"
#include "workbench/base/atomic_file.hpp"
#include "workbench/base/clean_text.hpp"
#include "workbench/base/terminal.hpp"
#include "workbench/subjects/plugin/templates.hpp"

namespace greenfast::cli {

Action define_new(OptionSet& set) {
  auto files = std::make_shared<std::vector<std::string>>();
  set.positional("file", files.get(), 1, 1, "Where to: mine.c (CPU) or mine.cu (CUDA)");
  return [files](const Arguments&) {
    const std::filesystem::path path = files->front();
    std::error_code error;
    if (std::filesystem::exists(path, error))
      throw Failure(workbench::kUsage,
                    fmt::format("{}: exists already; give another name", path.string()));
    const std::string text =
        value_or_fail(workbench::new_plugin(path.stem().string(), path.extension().string()));
    if (Status status = workbench::write_file_atomically(path, text); !status)
      throw Failure(status);
    // As a shell and a terminal take it; what begins with a dash would be an option.
    const std::string word = path.string().starts_with('-') ? "./" + path.string() : path.string();
    fmt::print("{}: a kernel that is GREEN. Next: greenfast check {}\n",
               workbench::clean_line(path.string()),
               workbench::clean_line(workbench::shell_word(word)));
    return static_cast<int>(workbench::kPassed);
  };
}

}  // namespace greenfast::cli
