#include "workbench/resources/resources.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>

#include <toml++/toml.h>

#include <greenfast/arithmetic.hpp>

#include "workbench/base/build_info.hpp"

namespace greenfast::workbench {
namespace {

constexpr std::int64_t kWarp = 32;

/// Of one multiprocessor: CUDA C++ Programming Guide, technical specifications per compute
/// capability. Registers are given to warps in units of 256, to the four partitions evenly; shared
/// memory in units of 128 bytes, and the system takes 1 KB of each block's.
struct Multiprocessor {
  int arch;
  std::int64_t warps, blocks, shared_bytes;
};
constexpr Multiprocessor kMultiprocessors[] = {
    {80, 64, 32, 164 * 1024}, {86, 48, 16, 100 * 1024}, {87, 48, 16, 164 * 1024},
    {89, 48, 24, 100 * 1024}, {90, 64, 32, 228 * 1024},
};
constexpr std::int64_t kRegisters = 65536, kRegisterUnit = 256, kPartitions = 4;
constexpr std::int64_t kSharedUnit = 128, kSystemShared = 1024;

struct BadLimit : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A [[limit]], or a [[waiver]], which has a name.
KernelLimit read_limit(const toml::table& table, bool waiver) {
  KernelLimit limit;
  for (const auto& [key, node] : table) {
    const auto text = [&, &node = node, &key = key] {
      const auto value = node.value_exact<std::string>();
      if (!value || value->find_first_not_of(" \t\n") == std::string::npos)
        throw BadLimit(fmt::format("{}: expected a text", key.str()));
      return *value;
    };
    const auto number = [&, &node = node, &key = key] {
      const auto value = node.value_exact<std::int64_t>();
      if (!value || *value < 0)
        throw BadLimit(fmt::format("{}: expected an integer of at least 0", key.str()));
      return *value;
    };
    if (key == "kernel")
      limit.kernel = text();
    else if (key == "variant")
      limit.variant = text();
    else if (key == "arch")
      limit.arch = text();
    else if (key == "reason")
      limit.reason = text();
    else if (key == "name" && waiver)
      limit.name = text();
    else if (key == "registers")
      limit.registers = number();
    else if (key == "static_shared")
      limit.static_shared = number();
    else if (key == "shared")
      limit.shared = number();
    else if (key == "stack")
      limit.stack = number();
    else
      throw BadLimit(fmt::format("{}: unknown key", key.str()));
  }
  if (waiver && limit.name.empty()) throw BadLimit("a waiver needs a name");
  if (limit.kernel.empty() == limit.variant.empty())
    throw BadLimit("needs a kernel or a variant, not both");
  if (limit.reason.empty()) throw BadLimit("needs a reason");
  if (!limit.registers && !limit.static_shared && !limit.shared && !limit.stack)
    throw BadLimit("needs one of registers, static_shared, shared, stack");
  if (!limit.arch.empty() && arch_number(limit.arch) == 0)
    throw BadLimit(fmt::format("arch '{}': expected one such as sm_89", limit.arch));
  if (!limit.kernel.empty()) {
    try {
      std::regex pattern(limit.kernel);
    } catch (const std::regex_error& error) {
      throw BadLimit(fmt::format("kernel '{}': {}", limit.kernel, error.what()));
    }
  }
  return limit;
}

bool names_variant(const KernelLimit& limit, std::string_view variant) {
  if (limit.variant.ends_with('*'))
    return variant.starts_with(std::string_view(limit.variant).substr(0, limit.variant.size() - 1));
  return variant == limit.variant;
}

bool names_kernel(const KernelLimit& limit, const KernelCode& code) {
  return std::regex_search("greenfast::cuda::" + code.name, std::regex(limit.kernel));
}

bool concerns(const KernelLimit& limit, const ResourceRow& row) {
  if (!limit.arch.empty() && limit.arch != row.code.arch) return false;
  return limit.kernel.empty() ? names_variant(limit, row.variant) : names_kernel(limit, row.code);
}

struct Figure {
  const char* what;
  std::optional<std::int64_t> KernelLimit::*most;
  std::int64_t value;
};
std::array<Figure, 4> figures(const ResourceRow& row) {
  return {Figure{"registers", &KernelLimit::registers, row.code.registers},
          Figure{"static shared memory", &KernelLimit::static_shared, row.code.static_shared},
          Figure{"shared memory", &KernelLimit::shared, row.shared()},
          Figure{"local memory", &KernelLimit::stack, row.code.stack}};
}

/// Holds a row to every limit that concerns it; waivers that let something pass join `used`.
void judge(ResourceRow& row, const ResourceLimits& limits, std::set<const KernelLimit*>* used,
           bool local_memory_needs_a_row = true) {
  // Without a plan its dynamic shared memory is not known.
  if (!row.variant.empty()) {
    row.occupancy =
        occupancy(arch_number(row.code.arch), row.code.registers, row.shared(), row.threads);
  }
  const auto check = [&](const Figure& figure, std::int64_t most, const std::string& reason) {
    LimitCheck seen{figure.what, figure.value, most, reason, figure.value <= most, "", ""};
    for (const KernelLimit& waiver : limits.waivers) {
      const std::optional<std::int64_t>& instead = waiver.*figure.most;
      if (seen.inside || !instead || figure.value > *instead || !concerns(waiver, row)) continue;
      seen.waiver = waiver.name;
      seen.waived_because = waiver.reason;
      if (used != nullptr) used->insert(&waiver);
      break;
    }
    row.checks.push_back(std::move(seen));
  };
  bool stack_allowed = false;
  for (const KernelLimit& limit : limits.limits) {
    if (!concerns(limit, row)) continue;
    stack_allowed = stack_allowed || limit.stack.has_value();
    for (const Figure& figure : figures(row))
      if (limit.*figure.most) check(figure, *(limit.*figure.most), limit.reason);
  }
  if (local_memory_needs_a_row && row.code.stack > 0 && !stack_allowed)
    check(figures(row)[3], 0, "spills, or arrays that are indexed at run time");
}

/// Problems that between them reach every kernel a variant has: all types, head dims, short and
/// long, wide and narrow, with and without masks, few queries, and what asks for builds of their
/// own: another type of the output, sinks, masks by array, pages of many keys and of one, V with fewer columns.
std::vector<Problem> grid_of_problems() {
  std::vector<Problem> out;
  struct Size {
    std::int64_t batch, heads_q, heads_kv, seq_q, seq_kv;
  };
  constexpr Size kSizes[] = {
      {1, 8, 8, 32, 32},       {1, 8, 8, 512, 512},     {1, 8, 8, 2048, 2048},
      {2, 8, 8, 2048, 2048},   {1, 1, 1, 1, 64},        {4, 32, 8, 1, 8192},
      {1, 4, 2, 97, 517},      {2, 32, 32, 8192, 8192}, {16, 32, 8, 512, 512},
      {32, 32, 32, 1024, 256}, {1, 8, 8, 64, 2048},     {1, 16, 16, 16384, 16384},
      {1, 32, 8, 1, 4096},     {1, 32, 8, 4, 4096},     {1, 96, 8, 1, 4096}};
  for (const DType dtype : {DType::f16, DType::bf16, DType::e4m3}) {
    for (std::int64_t head_dim = 8; head_dim <= 256; head_dim += 8) {
      for (const Size& size : kSizes) {
        Problem problem = make_problem(size.batch, size.heads_q, size.heads_kv, size.seq_q,
                                       size.seq_kv, head_dim, dtype);
        if (dtype == DType::e4m3) problem.scales = ScaleKind::per_head;
        for (const Mask& mask : {Mask::none(), Mask::causal(Alignment::top_left),
                                 Mask::causal(Alignment::bottom_right),
                                 Mask::window(128, 0, Alignment::bottom_right)}) {
          problem.mask = mask;
          problem.softcap = 0;
          out.push_back(problem);
          if (dtype != DType::e4m3) continue;
          Problem blocks = problem;
          blocks.scales = ScaleKind::per_block;
          out.push_back(blocks);
        }
        problem.softcap = 30;
        out.push_back(problem);
        problem.softcap = 0;
        problem.mask = Mask::none();
        Problem serving = problem;
        serving.sinks = true;
        out.push_back(serving);
        for (const std::int64_t page : {64, 1}) {
          Problem paged = problem;
          paged.sequences.used_kv = true;
          paged.pages.size = page;
          paged.pages.row_stride = ceil_div(size.seq_kv, page);
          paged.pages.count = size.batch * paged.pages.row_stride;
          paged.k = paged.v =
              dense_layout(Order::bhsd, paged.pages.count, size.heads_kv, page, head_dim);
          out.push_back(paged);
          paged.softcap = 30;
          out.push_back(paged);
        }
        if (head_dim > 128) {
          serving.head_dim_v = 128;
          serving.v = dense_layout(Order::bhsd, size.batch, size.heads_kv, size.seq_kv, 128);
          serving.o = dense_layout(Order::bhsd, size.batch, size.heads_q, size.seq_q, 128);
          out.push_back(serving);
          serving.softcap = 30;
          out.push_back(serving);
        }
        if (dtype != DType::e4m3) {
          Problem wide = problem;
          wide.out_dtype = DType::f32;
          out.push_back(wide);
          for (const MaskKind kind : {MaskKind::boolean, MaskKind::additive}) {
            Problem masked = problem;
            masked.array_mask = {.kind = kind, .dtype = dtype, .stride = {0, 0, size.seq_kv, 1}};
            out.push_back(masked);
          }
        }
        // Kernels that take nothing but fast accuracy.
        if (dtype != DType::e4m3) continue;
        problem.softcap = 0;
        problem.accuracy = Accuracy::fast;
        for (const Mask& mask : {Mask::none(), Mask::causal(Alignment::top_left)}) {
          problem.mask = mask;
          out.push_back(problem);
        }
        problem.accuracy = Accuracy::exact;
      }
    }
  }
  return out;
}

struct Use {
  std::int64_t dynamic_shared = -1;
  int threads = 0;
  std::string problem;
  std::vector<SharedBuffer> buffers{};
};

/// `problem`: of which the plan is, where there is one.
void add_use(std::map<std::string, Use>& uses, const Plan& plan, const Problem* problem) {
  if (plan.kernel.empty()) return;
  Use& use = uses[plan.kernel];
  if (plan.shared_bytes <= use.dynamic_shared) return;
  use = {plan.shared_bytes, plan.block[0] * plan.block[1] * plan.block[2],
         problem != nullptr ? to_string(*problem) : "", plan.shared};
}

ResourceRow row_of(std::string_view variant, const KernelCode& code, const Use& use) {
  ResourceRow row;
  row.variant = variant;
  row.code = code;
  row.dynamic_shared = std::max<std::int64_t>(0, use.dynamic_shared);
  row.threads = use.threads;
  row.problem = use.problem;
  row.buffers = use.buffers;
  if (variant.empty()) return row;
  std::int64_t rest = row.shared();
  for (const SharedBuffer& buffer : row.buffers) rest -= buffer.bytes;
  if (rest != 0) row.buffers.push_back({"static: barriers, notes", rest});
  return row;
}

std::string lacks(std::string_view variant, std::string_view kernel, int arch) {
  return fmt::format("{}: no machine code of {} for sm_{}", variant, kernel, arch);
}

/// A GPU with whose facts plans for an architecture are made.
constexpr std::pair<int, std::string_view> kModels[] = {{80, "a100"}, {89, "l4"}, {90, "h200"}};

/// What this project builds for where nobody asks for less or for others (GREENFAST_CUDA_ARCHS in
/// CMakeLists.txt): a build with fewer of them still reads the rows of those that it lacks.
constexpr std::string_view kArchs[] = {"sm_80", "sm_89", "sm_90a"};

/// Those, and what this build was made for or holds code of.
std::vector<std::string> known_archs(const DeviceCode& code) {
  std::vector<std::string> out(std::begin(kArchs), std::end(kArchs));
  const auto add = [&](std::string arch) {
    if (std::find(out.begin(), out.end(), arch) == out.end()) out.push_back(std::move(arch));
  };
  std::istringstream asked(build_info().cuda_archs);
  for (std::string arch; std::getline(asked, arch, ',');) add("sm_" + arch);
  for (const KernelCode& kernel : code.kernels) add(kernel.arch);
  return out;
}

/// What begins at 9.0 is compiled for sm_90a, whose code no other architecture loads.
bool is_built_for(const VariantInfo& variant, int arch) {
  constexpr int kHopper = 90;
  return variant.min_arch == kHopper ? arch == kHopper : arch >= variant.min_arch;
}

}  // namespace

std::optional<Occupancy> occupancy(int arch, int registers, std::int64_t shared_bytes,
                                   int threads) {
  const auto* sm = std::find_if(std::begin(kMultiprocessors), std::end(kMultiprocessors),
                                [&](const Multiprocessor& m) { return m.arch == arch; });
  if (sm == std::end(kMultiprocessors) || threads <= 0 || threads > 1024 || registers < 0)
    return std::nullopt;
  const std::int64_t warps = ceil_div<std::int64_t>(threads, kWarp);
  const std::int64_t by_threads = sm->warps / warps;
  std::int64_t by_registers = by_threads;
  if (registers > 0) {
    const std::int64_t each = round_up(registers * kWarp, kRegisterUnit);
    by_registers = kRegisters / kPartitions / each * kPartitions / warps;
  }
  const std::int64_t by_shared =
      sm->shared_bytes / round_up(shared_bytes + kSystemShared, kSharedUnit);
  Occupancy out;
  const std::int64_t least = std::min({by_threads, by_registers, by_shared, sm->blocks});
  if (least < 1) return std::nullopt;
  out.blocks = static_cast<int>(least);
  out.warps = static_cast<int>(least * warps);
  out.percent = 100.0 * static_cast<double>(out.warps) / static_cast<double>(sm->warps);
  out.limiter = least == by_registers && by_registers < by_threads ? "registers"
                : least == by_shared && by_shared < by_threads     ? "shared memory"
                : least == sm->blocks && sm->blocks < by_threads   ? "blocks"
                                                                   : "threads";
  return out;
}

namespace {

/// The rows of a file; `alone`: nothing else may stand in it.
Result<ResourceLimits> read_limits(std::string_view name, std::string_view text, bool alone) {
  ResourceLimits out;
  try {
    const toml::table table = toml::parse(text);
    for (const auto& [key, node] : table) {
      const bool waiver = key == "waiver";
      if (!waiver && key != "limit") {
        if (alone)
          throw BadLimit(fmt::format("line {}: {}: possible are [[limit]] and [[waiver]] tables",
                                     node.source().begin.line, key.str()));
        continue;
      }
      const auto at = [](const toml::node& row) {
        return fmt::format("line {}", row.source().begin.line);
      };
      const toml::array* rows = node.as_array();
      if (rows == nullptr)
        throw BadLimit(
            fmt::format("{}: {}: expected [[{}]] tables", at(node), key.str(), key.str()));
      for (const toml::node& row : *rows) {
        if (!row.is_table())
          throw BadLimit(fmt::format("{}: {}: expected tables", at(row), key.str()));
        try {
          KernelLimit limit = read_limit(*row.as_table(), waiver);
          limit.place = fmt::format("{}: {}", name, at(row));
          (waiver ? out.waivers : out.limits).push_back(std::move(limit));
        } catch (const BadLimit& wrong) {
          throw BadLimit(fmt::format("{}: {}: {}", at(row), key.str(), wrong.what()));
        }
      }
    }
  } catch (const toml::parse_error& error) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("{}: line {}: {}", name, error.source().begin.line,
                              std::string(error.description())));
  } catch (const BadLimit& wrong) {
    return Status(StatusCode::invalid_argument, fmt::format("{}: {}", name, wrong.what()));
  }
  return out;
}

}  // namespace

Result<ResourceLimits> parse_resource_limits(std::string_view name, std::string_view text) {
  return read_limits(name, text, true);
}

Result<ResourceLimits> parse_policy_limits(std::string_view name, std::string_view text) {
  return read_limits(name, text, false);
}

void append(ResourceLimits& to, const ResourceLimits& more) {
  to.limits.insert(to.limits.end(), more.limits.begin(), more.limits.end());
  to.waivers.insert(to.waivers.end(), more.waivers.begin(), more.waivers.end());
}

Status check_names(const ResourceLimits& limits, const DeviceCode& code,
                   std::span<const std::string> others) {
  const auto refuse = [](const KernelLimit& row, const std::string& why) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("{}: {}; a limit that names no kernel holds nobody", row.place, why));
  };
  const std::vector<std::string> archs = known_archs(code);
  const auto unnamed = [&](const KernelLimit& row) -> Status {
    // A plugin is compiled for whatever its author chose.
    for (const std::string& id : others)
      if (!row.variant.empty() && names_variant(row, id)) return {};
    if (!row.arch.empty() && std::find(archs.begin(), archs.end(), row.arch) == archs.end())
      return refuse(row, fmt::format("arch '{}': no kernel is built for it, but for {}", row.arch,
                                     fmt::join(archs, ", ")));
    if (!row.variant.empty()) {
      std::vector<std::string> elsewhere;
      for (const VariantInfo& variant : greenfast::variants()) {
        if (variant.device != DeviceKind::cuda || !names_variant(row, variant.id)) continue;
        if (row.arch.empty() || is_built_for(variant, arch_number(row.arch))) return {};
        elsewhere.push_back(variant.id);
      }
      if (!elsewhere.empty())
        return refuse(row, fmt::format("arch '{}': {} is not built for it", row.arch,
                                       fmt::join(elsewhere, ", ")));
      return refuse(row, fmt::format("variant '{}': no CUDA variant or plugin is called so "
                                     "(greenfast list)",
                                     row.variant));
    }
    bool built = false;
    for (const KernelCode& kernel : code.kernels) {
      if (!row.arch.empty() && row.arch != kernel.arch) continue;
      built = true;
      if (names_kernel(row, kernel)) return {};
    }
    if (!built) return {};
    return refuse(row, fmt::format("kernel '{}': no kernel of this build{} has such a name "
                                   "(greenfast resources)",
                                   row.kernel, row.arch.empty() ? "" : " for " + row.arch));
  };
  for (const auto* rows : {&limits.limits, &limits.waivers})
    for (const KernelLimit& row : *rows)
      if (Status status = unnamed(row); !status) return status;
  return {};
}

std::string LimitCheck::words() const {
  return fmt::format("{} {} {} {} ({})", what, value, inside ? "<=" : ">", most, reason);
}

bool ResourceRow::within_limits() const {
  return std::none_of(checks.begin(), checks.end(),
                      [](const LimitCheck& check) { return check.broken(); });
}

bool ResourceReport::within_limits() const {
  return unneeded.empty() && std::all_of(rows.begin(), rows.end(), [](const ResourceRow& row) {
           return row.within_limits();
         });
}

ResourceReport resource_report(const DeviceCode& code, const ResourceLimits& limits,
                               std::span<const std::string> archs,
                               std::span<const std::string> variants) {
  ResourceReport report;
  const auto wanted = [](std::span<const std::string> list, std::string_view value) {
    return list.empty() || std::find(list.begin(), list.end(), value) != list.end();
  };
  static const std::vector<std::pair<Problem, Features>> problems = [] {
    std::vector<std::pair<Problem, Features>> out;
    for (const Problem& problem : grid_of_problems())
      out.emplace_back(problem, features_of(problem));
    return out;
  }();
  std::set<const KernelCode*> used;
  std::set<const KernelLimit*> waived;
  for (const VariantInfo& variant : greenfast::variants()) {
    if (variant.device != DeviceKind::cuda || !variant.built) continue;
    for (const auto& [arch, model] : kModels) {
      const auto facts = model_facts(model);
      if (!facts.ok() || variant.min_arch > arch) continue;
      std::map<std::string, Use> uses;
      Options options;
      options.device = DeviceKind::cuda;
      options.variant = variant.id;
      for (const auto& [problem, needs] : problems) {
        // Asked here, because a refusal in words takes as long as a plan: 3.8 s for the grid.
        if (!variant.takes.hold(needs)) continue;
        const auto planned = plan(problem, *facts, options);
        if (planned.ok()) add_use(uses, *planned, &problem);
      }
      for (const auto& [kernel, use] : uses) {
        const KernelCode* found = find_kernel(code, kernel, arch);
        const bool own = found != nullptr && arch_number(found->arch) == arch;
        if (found != nullptr) used.insert(found);
        // Code of an older architecture has a row of its own; here it would stand twice.
        if (own && wanted(archs, found->arch) && wanted(variants, variant.id)) {
          report.rows.push_back(row_of(variant.id, *found, use));
          judge(report.rows.back(), limits, &waived);
        } else if (found == nullptr && wanted(variants, variant.id)) {
          report.missing.push_back(lacks(variant.id, kernel, arch));
        }
      }
    }
  }
  if (!variants.empty()) return report;
  for (const KernelCode& kernel : code.kernels) {
    // Sources that instantiate one kernel each bring a copy of it.
    const bool reached = std::any_of(used.begin(), used.end(), [&](const KernelCode* other) {
      return other->name == kernel.name && other->arch == kernel.arch &&
             other->sha256 == kernel.sha256;
    });
    // The workbench's own kernels (peaks, planted ones) keep their namespace in their name.
    if (reached || !wanted(archs, kernel.arch) ||
        kernel.name.find("greenfast::") != std::string::npos)
      continue;
    report.rows.push_back(row_of("", kernel, {}));
    judge(report.rows.back(), limits, &waived);
  }
  // Of a part of the kernels nothing can be said about the others, nor where code is missing.
  if (!archs.empty()) return report;
  for (const KernelLimit& waiver : limits.waivers) {
    const bool built = std::any_of(
        code.kernels.begin(), code.kernels.end(),
        [&](const auto& kernel) { return waiver.arch.empty() || waiver.arch == kernel.arch; });
    if (built && !waived.contains(&waiver))
      report.unneeded.push_back(fmt::format(
          "{}: waiver '{}': no kernel is over a limit and within it; remove it, or give "
          "it the figures of this build",
          waiver.place, waiver.name));
  }
  return report;
}

Result<ResourceReport> resources_of(std::string_view variant, int arch, std::span<const Plan> plans,
                                    const ResourceLimits& limits) {
  const auto& code = own_device_code();
  if (!code.ok()) return code.status();
  ResourceReport report;
  std::map<std::string, Use> uses;
  for (const Plan& plan : plans) add_use(uses, plan, nullptr);
  for (const auto& [kernel, use] : uses) {
    if (const KernelCode* found = find_kernel(*code, kernel, arch)) {
      report.rows.push_back(row_of(variant, *found, use));
      judge(report.rows.back(), limits, nullptr);
    } else {
      report.missing.push_back(lacks(variant, kernel, arch));
    }
  }
  return report;
}

std::int64_t allowed_stack(const KernelCode& code, const ResourceLimits& limits) {
  std::int64_t most = 0;
  for (const KernelLimit& row : limits.limits)
    if (row.stack && !row.kernel.empty() && (row.arch.empty() || row.arch == code.arch) &&
        names_kernel(row, code))
      most = std::max(most, *row.stack);
  return most;
}

std::vector<LimitCheck> check_foreign(std::string_view variant, const KernelCode& code,
                                      std::int64_t dynamic_shared, const ResourceLimits& limits) {
  ResourceLimits own;
  for (const KernelLimit& row : limits.limits)
    if (!row.variant.empty() && names_variant(row, variant)) own.limits.push_back(row);
  for (const KernelLimit& row : limits.waivers)
    if (!row.variant.empty() && names_variant(row, variant)) own.waivers.push_back(row);
  ResourceRow row =
      row_of(variant, code, {.dynamic_shared = dynamic_shared, .threads = 0, .problem = ""});
  judge(row, own, nullptr, false);
  return row.checks;
}

}  // namespace greenfast::workbench
