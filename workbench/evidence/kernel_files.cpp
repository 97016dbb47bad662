#include "workbench/evidence/kernel_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "kernel_sources.hpp"  // generated: the sources of each kernel, as CMake compiles them

#include "workbench/base/files.hpp"
#include "workbench/base/sha256.hpp"
#include "workbench/evidence/contents.hpp"

namespace greenfast::workbench {
namespace {

namespace fs = std::filesystem;

bool is_word(char c) {
  return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// Quoted includes of a source.
std::vector<std::string> includes_of(std::string_view text) {
  std::vector<std::string> out;
  constexpr std::string_view kInclude = "#include \"";
  for (std::size_t found = 0; (found = text.find(kInclude, found)) != std::string_view::npos;) {
    found += kInclude.size();
    const std::size_t end = text.find('"', found);
    if (end == std::string_view::npos) break;
    out.emplace_back(text.substr(found, end - found));
  }
  return out;
}

/// The file of `files` that `includer` means by a quoted include; empty where there is none.
std::string included_file(const KernelFiles& files, const std::string& includer,
                          const std::string& name) {
  const std::string beside =
      (fs::path(includer).parent_path() / name).lexically_normal().generic_string();
  for (const std::string& candidate : {beside, "src/" + name})
    if (files.contains(candidate)) return candidate;
  return {};
}

}  // namespace

bool defines_kernel(std::string_view text, std::string_view symbol) {
  const std::string wanted = fmt::format("core::Kernel {}", symbol);
  for (std::size_t found = 0; (found = text.find(wanted, found)) != std::string_view::npos;
       found += wanted.size()) {
    const std::size_t end = found + wanted.size();
    if (end == text.size() || (!is_word(text[end]) && text[end] != ';')) return true;
  }
  return false;
}

std::string source_digest(std::string_view text) {
  std::string out;
  const auto blank = [&] {
    if (!out.empty() && out.back() != ' ') out += ' ';
  };
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (text.substr(i, 2) == "//") {
      i = std::min(text.find('\n', i), text.size());
    } else if (text.substr(i, 2) == "/*") {
      const std::size_t end = text.find("*/", i + 2);
      i = end == std::string_view::npos ? text.size() : end + 2;
      blank();
    } else if (text.substr(i, 2) == "R\"") {
      const std::size_t open = text.find('(', i);
      const std::string close = open == std::string_view::npos
                                    ? ""
                                    : fmt::format("){}\"", text.substr(i + 2, open - i - 2));
      const std::size_t end = close.empty() ? std::string_view::npos : text.find(close, open);
      const std::size_t stop = end == std::string_view::npos ? text.size() : end + close.size();
      out += text.substr(i, stop - i);
      i = stop;
    } else if (c == '"' ||
               (c == '\'' && (i == 0 || !is_word(text[i - 1])))) {  // 1'000 is no character
      std::size_t end = i + 1;
      while (end < text.size() && text[end] != c && text[end] != '\n')
        end += text[end] == '\\' ? 2 : 1;
      end = std::min(end + 1, text.size());
      out += text.substr(i, end - i);
      i = end;
    } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      blank();
      ++i;
    } else {
      out += c;
      ++i;
    }
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return sha256_hex(out);
}

std::vector<std::pair<std::string, std::string>> sources_of(const fs::path& root,
                                                            std::string_view variant) {
  const auto files = kernel_files(root);
  std::vector<std::pair<std::string, std::string>> out;
  for (const std::string& path : closure_of(files, variant))
    out.emplace_back(path, source_digest(files.at(path)));
  return out;
}

KernelFiles kernel_files(const fs::path& root) {
  KernelFiles out;
  std::error_code error;
  fs::recursive_directory_iterator files(root / "src" / "kernels", error);
  if (error) return out;
  for (const fs::directory_entry& entry : files) {
    const std::string suffix = entry.path().extension();
    if (suffix != ".cu" && suffix != ".cuh" && suffix != ".cpp" && suffix != ".hpp" &&
        suffix != ".inc")
      continue;
    if (auto text = read_file(entry.path()); text.ok())
      out.emplace(fs::relative(entry.path(), root, error).generic_string(), *text);
  }
  return out;
}

std::vector<std::string> closure_of(const KernelFiles& files, std::string_view variant) {
  std::string symbol(variant);
  std::replace(symbol.begin(), symbol.end(), '.', '_');
  std::set<std::string> seen;
  std::vector<std::string> todo;
  for (const auto& [kernel, path] : kKernelSources) {
    const auto file = files.find(std::string(path));
    if (file == files.end() || !defines_kernel(file->second, symbol)) continue;
    for (const auto& [other, part] : kKernelSources)
      if (other == kernel) todo.emplace_back(part);
  }
  while (!todo.empty()) {
    const std::string path = todo.back();
    todo.pop_back();
    if (!files.contains(path) || !seen.insert(path).second) continue;
    for (const std::string& name : includes_of(files.at(path)))
      if (std::string file = included_file(files, path, name); !file.empty())
        todo.push_back(std::move(file));
  }
  return {seen.begin(), seen.end()};
}

std::string RecordedSources::find(const std::string& path) {
  const std::string& text = files_.at(path);
  const std::string digest = source_digest(text);
  const std::string recorded = text_of(recorded_, path);
  if (!recorded.empty() && recorded == digest) return path;
  const std::string then = source_digest(as_included_then(path));
  if (!recorded.empty()) return recorded == then ? path : std::string();
  for (const auto& [old, was] : recorded_.items())
    if (!files_.contains(old) && was.is_string() && (was == digest || was == then)) return old;
  return {};
}

std::string RecordedSources::as_included_then(const std::string& path) {
  constexpr std::string_view kInclude = "#include \"";
  std::string out;
  std::vector<std::string> run;
  const auto end_of_run = [&] {
    std::sort(run.begin(), run.end());
    for (const std::string& line : run) out += line + "\n";
    run.clear();
  };
  std::istringstream lines(files_.at(path));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(kInclude)) {
      end_of_run();
      out += line + "\n";
      continue;
    }
    const std::size_t end = line.find('"', kInclude.size());
    const std::string name = line.substr(kInclude.size(), end - kInclude.size());
    if (const std::string now = included_file(files_, path, name); !now.empty())
      if (const std::string& was = path_of(now); was.starts_with("src/") && was != now)
        line.replace(kInclude.size(), name.size(), was.substr(4));
    run.push_back(line);
  }
  end_of_run();
  return out;
}

}  // namespace greenfast::workbench
