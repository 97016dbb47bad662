#include "workbench/search/rung.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <regex>

#include <greenfast/attention.hpp>

#include "workbench/base/files.hpp"
#include "workbench/evidence/kernel_files.hpp"

namespace greenfast::workbench {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLadder = "src/kernels/cuda/ladder/";

std::string symbol_of(std::string_view id) {
  std::string symbol(id);
  std::replace(symbol.begin(), symbol.end(), '.', '_');
  return symbol;
}

/// The ladder's file that defines a variant; empty where none does.
std::string file_of(const KernelFiles& files, std::string_view id) {
  for (const auto& [path, text] : files)
    if (path.starts_with(kLadder) && path.ends_with(".cu") && defines_kernel(text, symbol_of(id)))
      return path;
  return {};
}

bool may_be_a_rung(const VariantInfo& variant) {
  return variant.device == DeviceKind::cuda && !variant.automatic && variant.phases.empty();
}

/// `22_` of 22_sm80_stage_c.cu: files of the ladder with one number are one kernel.
std::string_view number_of(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return name.substr(0, name.find('_') + 1);
}

/// The text with the kernel's own headers in place of their includes.
std::string with_own_headers(const KernelFiles& files, const std::string& path) {
  const std::string& text = files.at(path);
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    const std::string_view line = std::string_view(text).substr(at, end - at);
    at = end;
    constexpr std::string_view kInclude = "#include \"";
    const auto header =
        line.starts_with(kInclude)
            ? files.find(fmt::format(
                  "src/{}", line.substr(kInclude.size(), line.rfind('"') - kInclude.size())))
            : files.end();
    if (header != files.end() && header->first.starts_with(kLadder) &&
        number_of(header->first) == number_of(path))
      out += with_own_headers(files, header->first);
    else if (!line.starts_with("#pragma once"))
      out += line;
  }
  return out;
}

/// Without the other kernels that the file exports: templates that nobody names are not compiled.
std::string without_neighbours(std::string text, const std::string& symbol) {
  static const std::regex kernel(R"(extern const core::Kernel (\w+)[^;]*;\n)");
  std::string out;
  auto from = text.cbegin();
  for (std::sregex_iterator it(text.begin(), text.end(), kernel), end; it != end; ++it) {
    out.append(from, text.cbegin() + it->position());
    from = text.cbegin() + it->position() + it->length();
    if ((*it)[1] == symbol) out += it->str();
  }
  return out.append(from, text.cend());
}

/// What the registry's row of a variant says that it takes: "kTakesV2c".
std::string takes_of(std::string_view rows, std::string_view id) {
  const std::size_t row = rows.find(fmt::format(".id = \"{}\"", id));
  constexpr std::string_view kTakes = ".takes = ";
  const std::size_t begin = rows.find(kTakes, row);
  if (row == std::string_view::npos || begin == std::string_view::npos) return {};
  const std::size_t name = begin + kTakes.size();
  return std::string(rows.substr(name, rows.find_first_of(",)", name) - name));
}

}  // namespace

std::vector<std::string> rungs_of(const fs::path& tree) {
  const KernelFiles files = kernel_files(tree);
  std::vector<std::string> out;
  for (const VariantInfo& variant : variants())
    if (may_be_a_rung(variant) && !file_of(files, variant.id).empty()) out.push_back(variant.id);
  return out;
}

Result<std::string> rung_source(const fs::path& tree, std::string_view id) {
  const auto refuse = [](std::string why) {
    return Status(StatusCode::invalid_argument, std::move(why));
  };
  const KernelFiles files = kernel_files(tree);
  const std::vector<std::string> rungs = rungs_of(tree);
  if (rungs.empty())
    return refuse(fmt::format("{}: has no sources of the ladder ({}); name a checkout with --tree",
                              tree.string(), kLadder));
  if (std::find(rungs.begin(), rungs.end(), id) == rungs.end())
    return refuse(
        fmt::format("{}: neither a plugin's source nor a rung of the ladder; those are "
                    "{}",
                    id, fmt::join(rungs, ", ")));
  const std::string path = file_of(files, id), symbol = symbol_of(id);
  const auto rows = read_file(tree / "src" / "dispatch" / "variants.def");
  if (!rows) return rows.status();
  const std::string takes = takes_of(*rows, id);
  if (takes.empty())
    return refuse(fmt::format("{}: has no row in {}/src/dispatch/variants.def", id, tree.string()));
  return fmt::format(
      "// {} as a plugin: {}, with what it alone includes, and an entry.\n{}\n"
      "#include \"tune/kernel_plugin.hpp\"\n\n"
      "GREENFAST_KERNEL_PLUGIN(\"{}\", greenfast::kernels::{}, greenfast::dispatch::{})\n",
      id, path, without_neighbours(with_own_headers(files, path), symbol),
      id.substr(id.rfind('.') + 1), symbol, takes);
}

}  // namespace greenfast::workbench
