#include "workbench/subjects/plugin/templates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace greenfast::workbench {
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

/// Without its first comment, its include guard and what it includes of the other file.
std::string body_of(std::string_view source) {
  std::string text(source.substr(source.find("*/") + 3));
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    const bool guard = line.starts_with("#ifndef GREENFAST_EXAMPLES") ||
                       line.starts_with("#define GREENFAST_EXAMPLES") || line == "#endif" ||
                       line.starts_with("#include \"attention");
    if (!guard) out += line + '\n';
  }
  return out;
}

}  // namespace

Result<std::string> new_plugin(const std::string& name, const std::string& extension) {
  const bool cuda = extension == ".cu";
  if (!cuda && extension != ".c")
    return Status(
        StatusCode::invalid_argument,
        fmt::format("'{}': possible are files that end in .c (CPU) or .cu (CUDA)", extension));
  const bool good =
      !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '_' || c == '-';
      });
  if (!good)
    return Status(StatusCode::invalid_argument,
                  fmt::format("'{}': a kernel's name has letters, digits, '_' and '-'", name));
  const std::string file = name + extension;
  std::string text = fmt::format(
      "/* A kernel of yours: right as it stands, and slow. Change it, and ask after every change:\n"
      " *\n"
      " *   greenfast check {0}\n"
      " *   greenfast run {0} --variants plugin:{1},{2}\n"
      " *   greenfast gate --plugin {0} --baseline {2} --candidate plugin:{1}{3}\n"
      " *\n"
      " * What a kernel gets and returns: greenfast/plugin.h, which the command brings along. "
      "Begin\n"
      " * with {4}; when it takes more or fewer problems, say so in\n"
      " * {5}: what it refuses is not held against it. */\n",
      file, name, cuda ? "cuda.sm80.mma" : "cpu.flash", cuda ? "" : " --dtype fp32",
      cuda ? "attend(), one warp a query row" : "my_attend_row(), one row of O",
      cuda ? "supports()" : "my_supports()");
  text += body_of(cuda ? example_attention_cuh() : example_attention_h());
  text += body_of(cuda ? example_honest_cu() : example_honest_c());
  replace_all(text, "EXAMPLE_", "MY_");
  replace_all(text, "example_", "my_");
  replace_all(text, "namespace example", "namespace mine");
  replace_all(text, "example::", "mine::");
  replace_all(text, "\"examples\"", fmt::format("\"{}\"", name));
  replace_all(text, cuda ? "\"honest_cuda\"" : "\"honest\"", fmt::format("\"{}\"", name));
  return text;
}

}  // namespace greenfast::workbench
