// greenfast resources: what every compiled kernel takes of a GPU, and the limits it keeps. Needs no
// GPU.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>

#include "cli/command.hpp"
#include "cli/problem_options.hpp"
#include "workbench/base/atomic_file.hpp"
#include "workbench/base/files.hpp"
#include "workbench/base/schemas.hpp"
#include "workbench/base/terminal.hpp"
#include "workbench/record/facts.hpp"
#include "workbench/resources/resources.hpp"
#include "workbench/subjects/subject.hpp"

namespace greenfast::cli {
namespace {

using nlohmann::json;
using workbench::Color;
using workbench::ResourceReport;
using workbench::ResourceRow;
using workbench::Table;

struct ResourcesOptions {
  std::string arch, variants, limits, binary, extract;
  bool as_json = false, codes = false, buffers = false;
};

workbench::ResourceLimits limits_of(const ResourcesOptions& options) {
  if (options.limits.empty())
    return value_or_fail(workbench::parse_resource_limits("policies/resources.toml",
                                                          workbench::builtin_resource_limits()));
  const auto text = workbench::read_file(options.limits);
  if (!text) throw Failure(workbench::kUsage, "--limits " + text.status().message());
  return value_or_fail(workbench::parse_resource_limits(options.limits, *text));
}

/// "89", "sm_89" and "90a" alike.
std::vector<std::string> archs_of(const ResourcesOptions& options,
                                  const workbench::DeviceCode& code) {
  std::vector<std::string> built;
  for (const auto& kernel : code.kernels)
    if (std::find(built.begin(), built.end(), kernel.arch) == built.end())
      built.push_back(kernel.arch);
  std::sort(built.begin(), built.end());
  std::vector<std::string> out;
  for (std::string item : split_list(options.arch)) {
    if (!item.starts_with("sm_")) item = "sm_" + item;
    const auto found = std::find_if(built.begin(), built.end(), [&](const std::string& arch) {
      return arch == item || workbench::arch_number(arch) == workbench::arch_number(item);
    });
    if (found == built.end())
      throw Failure(workbench::kUsage, fmt::format("--arch {}: {} has code for {}", item, code.file,
                                                   fmt::join(built, ", ")));
    out.push_back(*found);
  }
  return out;
}

std::vector<std::string> variants_of(const ResourcesOptions& options) {
  std::vector<std::string> out;
  if (options.variants.empty()) return out;
  for (const auto& subject : value_or_fail(workbench::find_subjects(options.variants)))
    if (subject->device() == DeviceKind::cuda) out.push_back(subject->id());
  if (out.empty())
    throw Failure(workbench::kUsage,
                  fmt::format("--variants {}: names no CUDA variant", options.variants));
  return out;
}

json row_json(const ResourceRow& row) {
  json limits = json::array();
  for (const workbench::LimitCheck& check : row.checks) {
    json limit = {{"what", check.what},
                  {"value", check.value},
                  {"most", check.most},
                  {"reason", check.reason},
                  {"status", check.broken()   ? "BROKEN"
                             : check.waived() ? "WAIVED"
                                              : "kept"}};
    if (check.waived())
      limit["waiver"] = {{"name", check.waiver}, {"reason", check.waived_because}};
    limits.push_back(std::move(limit));
  }
  json buffers = json::array();
  for (const SharedBuffer& buffer : row.buffers)
    buffers.push_back({{"name", buffer.name}, {"bytes", buffer.bytes}});
  json out = {{"variant", row.variant.empty() ? json(nullptr) : json(row.variant)},
              {"kernel", row.code.name},
              {"symbol", row.code.symbol},
              {"arch", row.code.arch},
              {"registers", row.code.registers},
              {"static_shared_bytes", row.code.static_shared},
              {"dynamic_shared_bytes", row.dynamic_shared},
              {"shared_buffers", buffers},
              {"local_bytes", row.code.stack},
              {"spill_bytes", row.code.stack == 0 ? json(0) : json(nullptr)},
              {"threads", row.threads > 0 ? row.threads : row.code.max_threads},
              {"code_bytes", row.code.code_bytes},
              {"code_sha256", row.code.sha256},
              {"compiler", row.code.compiler},
              {"problem", row.problem.empty() ? json(nullptr) : json(row.problem)},
              {"occupancy", nullptr},
              {"limits", limits}};
  if (row.occupancy)
    out["occupancy"] = {{"blocks", row.occupancy->blocks},
                        {"warps", row.occupancy->warps},
                        {"percent", row.occupancy->percent},
                        {"limited_by", row.occupancy->limiter}};
  return out;
}

std::string kilobytes(std::int64_t bytes) {
  return bytes == 0 ? "0" : fmt::format("{:.1f}", static_cast<double>(bytes) / 1024);
}

/// Shared memory by what lies there, a kernel after the other.
void print_buffers(const ResourceReport& report) {
  using Align = Table::Align;
  Table table({{"variant", Align::left},
               {"kernel", Align::left},
               {"arch", Align::left},
               {"bytes", Align::right},
               {"shared memory", Align::left}});
  for (const ResourceRow& row : report.rows) {
    if (row.buffers.empty()) continue;
    for (const SharedBuffer& buffer : row.buffers)
      table.add_row({row.variant, row.code.name, row.code.arch, fmt::format("{}", buffer.bytes),
                     buffer.name});
    table.add_row(
        {row.variant, row.code.name, row.code.arch, fmt::format("{}", row.shared()), "in all"});
  }
  fmt::print("{}", table.text());
}

void print_table(const ResourcesOptions& options, const ResourceReport& report) {
  const bool color = workbench::wants_color(stdout);
  using Align = Table::Align;
  std::vector<Table::Column> columns = {{"variant", Align::left},    {"kernel", Align::left},
                                        {"arch", Align::left},       {"regs", Align::right},
                                        {"smem KB", Align::right},   {"local B", Align::right},
                                        {"threads", Align::right},   {"blocks/SM", Align::right},
                                        {"occupancy", Align::right}, {"limited by", Align::left}};
  if (options.codes) columns.push_back({"code SHA-256", Align::left});
  columns.push_back({"limits", Align::left});
  Table table(columns);
  for (const ResourceRow& row : report.rows) {
    const int threads = row.threads > 0 ? row.threads : row.code.max_threads;
    std::vector<std::string> cells = {
        row.variant.empty() ? "-" : row.variant,
        row.code.name,
        row.code.arch,
        fmt::format("{}", row.code.registers),
        kilobytes(row.shared()),
        fmt::format("{}", row.code.stack),
        threads > 0 ? fmt::format("{}", threads) : "-",
        row.occupancy ? fmt::format("{}", row.occupancy->blocks) : "-",
        row.occupancy ? fmt::format("{:.0f}%", row.occupancy->percent) : "-",
        row.occupancy ? row.occupancy->limiter : "-"};
    if (options.codes) cells.push_back(row.code.sha256.substr(0, 16));
    const bool waived = std::any_of(row.checks.begin(), row.checks.end(),
                                    [](const auto& check) { return check.waived(); });
    cells.push_back(!row.within_limits() ? workbench::paint("BROKEN", Color::red, color)
                    : waived             ? workbench::paint("waived", Color::yellow, color)
                                         : "");
    table.add_row(cells);
  }
  fmt::print("{}", table.text());
  for (const ResourceRow& row : report.rows) {
    for (const workbench::LimitCheck& check : row.checks) {
      if (check.inside) continue;
      fmt::print("{} {} on {}: {}{}\n", row.variant, row.code.name, row.code.arch, check.words(),
                 check.waived()
                     ? fmt::format("; waiver '{}': {}", check.waiver, check.waived_because)
                     : "");
    }
  }
  for (const std::string& waiver : report.unneeded) fmt::print("{}\n", waiver);
  if (!report.missing.empty())
    fmt::print(
        "{} kernels that plans name have no machine code here, so a driver would compile their "
        "PTX: {}{}\n",
        report.missing.size(), report.missing.front(), report.missing.size() > 1 ? ", ..." : "");
}

/// A file for each cubin, named by its place and architecture.
int extract(const ResourcesOptions& options) {
  const std::filesystem::path from =
      options.binary.empty() ? "/proc/self/exe" : std::filesystem::path(options.binary);
  const std::filesystem::path folder = options.extract;
  const std::string file = value_or_fail(workbench::read_file(from));
  const auto cubins =
      value_or_fail(workbench::read_cubins(std::as_bytes(std::span(file.data(), file.size()))));
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw Failure(workbench::kUsage, "--extract " + folder.string() + ": " + error.message());
  for (std::size_t i = 0; i < cubins.size(); ++i) {
    const auto code = value_or_fail(workbench::read_device_code(cubins[i]));
    const std::string arch = code.kernels.empty() ? "none" : code.kernels.front().arch;
    const auto path = folder / fmt::format("{:04}.{}.cubin", i, arch);
    const auto* bytes = reinterpret_cast<const char*>(cubins[i].data());
    if (Status status = workbench::write_file_atomically(path, {bytes, cubins[i].size()}); !status)
      throw Failure(workbench::kUsage, "--extract " + status.message());
  }
  fmt::print("{} cubins in {}\n", cubins.size(), folder.string());
  return workbench::kPassed;
}

int resources(const ResourcesOptions& options) {
  if (!options.extract.empty()) return extract(options);
  const workbench::DeviceCode code =
      options.binary.empty()
          ? value_or_fail(workbench::own_device_code())
          : value_or_fail(workbench::read_device_code(std::filesystem::path(options.binary)));
  if (code.kernels.empty())
    throw Failure(
        workbench::kNoDevice,
        fmt::format("{} holds no compiled CUDA kernel; build with GREENFAST_CUDA=on", code.file));
  auto limits = limits_of(options);
  if (options.binary.empty()) {
    if (Status status = workbench::check_names(limits, code); !status)
      throw Failure(workbench::kUsage, status.message());
  }
  const auto archs = archs_of(options, code);
  const auto variants = variants_of(options);
  ResourceReport report = workbench::resource_report(code, limits, archs, variants);
  // Another file holds what it holds: a row for a kernel that it lacks is no mistake.
  if (!options.binary.empty()) report.unneeded.clear();
  if (options.as_json) {
    json rows = json::array();
    for (const ResourceRow& row : report.rows) rows.push_back(row_json(row));
    fmt::print("{}\n", json{{"schema", workbench::kResourcesSchema},
                            {"file", code.file},
                            {"build", workbench::build_json()},
                            {"ptx", code.ptx},
                            {"kernels", rows},
                            {"missing", report.missing},
                            {"unneeded_waivers", report.unneeded},
                            {"within_limits", report.within_limits()}}
                           .dump(2));
  } else {
    print_table(options, report);
    if (options.buffers) print_buffers(report);
  }
  return report.within_limits() ? workbench::kPassed : workbench::kResources;
}

}  // namespace

Action define_resources(OptionSet& set) {
  auto options = std::make_shared<ResourcesOptions>();
  set.text("--arch", &options->arch, "LIST",
           "Only these architectures: sm_89, 90a (default: all that are built)");
  set.text("--variants", &options->variants, "LIST",
           "Only these variants: ids, patterns, all, ladder");
  set.text("--limits", &options->limits, "FILE",
           "Limits to hold the kernels to (default: policies/resources.toml)");
  set.text("--binary", &options->binary, "FILE",
           "Executable, shared library, object or cubin to look into (default: this program)");
  set.text("--extract", &options->extract, "DIR",
           "Write the cubins into this folder instead, uncompressed, for nvdisasm");
  set.flag("--codes", &options->codes, "Also show the begin of each kernel's machine-code digest");
  set.flag("--buffers", &options->buffers,
           "Also show what lies in each kernel's shared memory, in bytes");
  set.flag("--json", &options->as_json, "Print JSON");
  return [options](const Arguments&) { return resources(*options); };
}

}  // namespace greenfast::cli
