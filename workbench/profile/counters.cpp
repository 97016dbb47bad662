// The tables of metrics and stalls, and the readers of what the tools print.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "workbench/profile/profile.hpp"

namespace greenfast::workbench {
namespace {

// Names as Nsight Compute 2025.3 gives them for sm_90; older ones and the ladder's after them.
constexpr std::array kGpu{
    ProfileMetric{"time", "duration", "ns", "gpu__time_duration.sum"},
    ProfileMetric{"tensor_inst", "tensor instructions", "",
                  "smsp__inst_executed_pipe_tensor.sum sm__inst_executed_pipe_tensor.sum"},
    ProfileMetric{"tensor_active", "tensor pipe active", "%",
                  "sm__pipe_tensor_active.avg.pct_of_peak_sustained_active "
                  "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active "
                  "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active"},
    ProfileMetric{"sm_throughput", "SM throughput", "%",
                  "sm__throughput.avg.pct_of_peak_sustained_elapsed"},
    ProfileMetric{"issue_active", "issue slots used", "%",
                  "smsp__issue_active.avg.pct_of_peak_sustained_active "
                  "sm__inst_issued.avg.pct_of_peak_sustained_active"},
    ProfileMetric{"instructions", "instructions executed", "",
                  "smsp__inst_executed.sum sm__inst_executed.sum"},
    ProfileMetric{"fma_active", "FMA pipe active", "%",
                  "sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active "
                  "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active"},
    ProfileMetric{"xu_active", "exponentials and conversions (XU pipe)", "%",
                  "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active"},
    ProfileMetric{"warps_active", "warps resident", "%",
                  "sm__warps_active.avg.pct_of_peak_sustained_active"},
    ProfileMetric{"occupancy_possible", "warps that fit", "%",
                  "sm__maximum_warps_per_active_cycle_pct"},
    ProfileMetric{"dram_throughput", "DRAM throughput", "%",
                  "dram__throughput.avg.pct_of_peak_sustained_elapsed "
                  "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"},
    ProfileMetric{"dram_read", "DRAM bytes read", "bytes", "dram__bytes_read.sum"},
    ProfileMetric{"dram_write", "DRAM bytes written", "bytes", "dram__bytes_write.sum"},
    ProfileMetric{"l2_throughput", "L2 throughput", "%",
                  "lts__t_sectors.avg.pct_of_peak_sustained_elapsed "
                  "lts__throughput.avg.pct_of_peak_sustained_elapsed"},
    ProfileMetric{"l2_bytes", "L2 bytes", "bytes", "lts__t_bytes.sum"},
    ProfileMetric{"l2_device_sectors", "L2 sectors of device memory", "",
                  "lts__t_sectors_aperture_device.sum"},
    ProfileMetric{"l2_hit", "L2 hit rate", "%", "lts__t_sector_hit_rate.pct"},
    ProfileMetric{"global_loads", "sectors of global loads", "",
                  "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum"},
    ProfileMetric{"global_stores", "sectors of global stores", "",
                  "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum"},
    ProfileMetric{"bank_conflicts", "shared memory bank conflicts", "",
                  "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum "
                  "l1tex__data_bank_conflicts_pipe_lsu.sum"},
    ProfileMetric{"shared_wavefronts", "shared memory wavefronts", "",
                  "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"},
    ProfileMetric{"registers", "registers a thread", "", "launch__registers_per_thread"},
    ProfileMetric{"shared_dynamic", "dynamic shared memory a block", "bytes",
                  "launch__shared_mem_per_block_dynamic"},
    ProfileMetric{"grid", "blocks", "", "launch__grid_size"},
    ProfileMetric{"block", "threads a block", "", "launch__block_size"},
    ProfileMetric{"waves", "waves of blocks", "", "launch__waves_per_multiprocessor"},
    ProfileMetric{"limit_registers", "blocks that registers allow", "",
                  "launch__occupancy_limit_registers"},
    ProfileMetric{"limit_shared", "blocks that shared memory allows", "",
                  "launch__occupancy_limit_shared_mem"},
    ProfileMetric{"limit_warps", "blocks that warps allow", "", "launch__occupancy_limit_warps"},
    ProfileMetric{"limit_blocks", "blocks that the SM allows", "",
                  "launch__occupancy_limit_blocks"},
};

constexpr std::array kCpu{
    ProfileMetric{"task_clock", "CPU time", "ms", "task-clock"},
    ProfileMetric{"cycles", "cycles", "", "cycles"},
    ProfileMetric{"instructions", "instructions", "", "instructions"},
    ProfileMetric{"branches", "branches", "", "branches"},
    ProfileMetric{"branch_misses", "branches mispredicted", "", "branch-misses"},
    ProfileMetric{"cache_references", "last-level cache accesses", "", "cache-references"},
    ProfileMetric{"cache_misses", "last-level cache misses", "", "cache-misses"},
    ProfileMetric{"l1_misses", "L1 data misses", "", "L1-dcache-load-misses"},
    ProfileMetric{"tlb_misses", "data TLB misses", "", "dTLB-load-misses"},
};

constexpr std::array kStalls{
    StallReason{"long_scoreboard", "data from L1, L2 or memory",
                "load earlier (another stage, TMA or cp.async), or keep what is loaded again and "
                "again in shared memory"},
    StallReason{"short_scoreboard", "data from shared memory, or a conversion or exponential",
                "fewer trips through shared memory: keep scores and weights in registers; fewer "
                "conversions and exponentials"},
    StallReason{
        "barrier", "other warps at a block barrier",
        "fewer barriers a tile, or named barriers between the warps that really exchange data"},
    StallReason{"mio_throttle", "a free slot in the shared-memory queue",
                "wider shared-memory accesses (ldmatrix, 16 bytes), fewer of them"},
    StallReason{"lg_throttle", "a free slot in the global-memory queue",
                "wider and fewer global accesses"},
    StallReason{"math_pipe_throttle", "a busy arithmetic pipe",
                "move work to another pipe, or do less of it"},
    StallReason{
        "wait", "a fixed latency of the instruction before",
        "more independent instructions between dependent ones: unroll, interleave two tiles"},
    StallReason{"gmma", "warpgroup matrix instructions",
                "issue the next product before waiting for this one"},
    StallReason{"not_selected", "another warp that was chosen",
                "nothing: there is enough work to issue"},
    StallReason{"selected", "nothing: it issued", "nothing"},
    StallReason{"no_instruction", "instructions from the cache",
                "a smaller loop body: less unrolling"},
    StallReason{"branch_resolving", "a branch", "fewer branches: masks by select"},
    StallReason{"dispatch_stall", "the dispatcher", "look at the instruction mix"},
    StallReason{"membar", "a memory fence", "fewer fences"},
    StallReason{"sleeping", "its own sleep", "wait on a barrier instead of polling"},
    StallReason{"drain", "stores at its end", "store wider, or let other blocks overlap"},
    StallReason{"imc_miss", "constants", "fewer distinct constants"},
    StallReason{"tex_throttle", "the texture queue", "fewer texture accesses"},
    StallReason{"misc", "something else", "look at the source view of the raw profile"},
};

std::vector<std::string> csv_fields(std::string_view line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted && c == '"' && i + 1 < line.size() && line[i + 1] == '"') {
      fields.back() += '"';
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      fields.emplace_back();
    } else if (c != '\r') {
      fields.back() += c;
    }
  }
  return fields;
}

// "1,234.5" and "1234.5"; nothing for words.
std::optional<double> number_of(std::string text) {
  std::erase(text, ',');
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() ||
      !std::isfinite(value))
    return std::nullopt;
  return value;
}

// What the tool scaled in spite of --print-units base.
double unit_scale(std::string_view unit) {
  struct Scale {
    std::string_view unit;
    double factor;
  };
  static constexpr std::array kScales{
      Scale{"Kbyte", 1e3},   Scale{"Mbyte", 1e6},  Scale{"Gbyte", 1e9},
      Scale{"usecond", 1e3}, Scale{"us", 1e3},     Scale{"msecond", 1e6},
      Scale{"ms", 1e6},      Scale{"second", 1e9}, Scale{"s", 1e9}};
  unit = unit.substr(0, unit.find('/'));
  for (const Scale& scale : kScales)
    if (unit == scale.unit) return scale.factor;
  return 1;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

}  // namespace

std::span<const ProfileMetric> gpu_metrics() { return kGpu; }
std::span<const ProfileMetric> cpu_metrics() { return kCpu; }
std::span<const StallReason> stall_reasons() { return kStalls; }

Result<std::vector<KernelCounters>> parse_ncu_csv(std::string_view csv) {
  const auto wrong = [](const std::string& what) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("{}; expected the output of ncu --csv --page raw", what));
  };
  const std::vector<std::string_view> lines = lines_of(csv);
  std::size_t at = 0;
  while (at < lines.size() && !lines[at].starts_with("\"ID\",")) ++at;
  if (at == lines.size()) return wrong("no line begins with \"ID\"");
  const std::vector<std::string> header = csv_fields(lines[at]);
  const auto named = std::find(header.begin(), header.end(), "Kernel Name");
  if (named == header.end()) return wrong("no column \"Kernel Name\"");
  const auto kernel = static_cast<std::size_t>(named - header.begin());
  if (++at == lines.size()) return wrong("the line of units is missing");
  const std::vector<std::string> units = csv_fields(lines[at]);
  if (units.size() != header.size())
    return wrong(
        fmt::format("line {} has {} fields, the header {}", at + 1, units.size(), header.size()));
  std::vector<KernelCounters> kernels;
  for (++at; at < lines.size(); ++at) {
    if (lines[at].empty() || lines[at].starts_with("==")) continue;
    const std::vector<std::string> fields = csv_fields(lines[at]);
    if (fields.size() != header.size())
      return wrong(fmt::format("line {} has {} fields, the header {}; the file may be truncated",
                               at + 1, fields.size(), header.size()));
    KernelCounters counters{fields[kernel], {}};
    for (std::size_t i = 0; i < fields.size(); ++i)
      if (const auto value = number_of(fields[i]))
        counters.values[header[i]] = *value * unit_scale(units[i]);
    kernels.push_back(std::move(counters));
  }
  if (kernels.empty()) return wrong("no kernel was profiled");
  return kernels;
}

std::map<std::string, double> parse_perf_csv(std::string_view csv) {
  std::map<std::string, double> events;
  for (const std::string_view line : lines_of(csv)) {
    const std::vector<std::string> fields = csv_fields(line);
    if (fields.size() < 3) continue;
    // "cycles:u" where the system lets a user count user space alone.
    std::string name = fields[2].substr(0, fields[2].find(':'));
    if (const auto value = number_of(fields[0])) events[name] = *value;
  }
  return events;
}

std::optional<double> SideProfile::get(std::string_view id) const {
  const auto found = metrics.find(id);
  return found == metrics.end() ? std::nullopt : std::optional(found->second);
}

SideProfile side_of_counters(const std::string& variant, std::span<const KernelCounters> call,
                             std::span<const ProfileMetric> metrics) {
  SideProfile side;
  side.variant = variant;
  double total = 0;
  std::vector<double> weights;
  std::size_t longest = 0;
  for (std::size_t i = 0; i < call.size(); ++i) {
    side.kernels.push_back(call[i].kernel);
    const auto time = call[i].values.find("gpu__time_duration.sum");
    weights.push_back(time == call[i].values.end() ? 1 : time->second);
    total += weights.back();
    if (weights[i] > weights[longest]) longest = i;
  }
  const auto combined = [&](const std::string& name) -> std::optional<double> {
    double sum = 0, mean = 0;
    for (std::size_t i = 0; i < call.size(); ++i) {
      const auto found = call[i].values.find(name);
      if (found == call[i].values.end()) return std::nullopt;
      sum += found->second;
      mean +=
          found->second * (total > 0 ? weights[i] / total : 1.0 / static_cast<double>(call.size()));
    }
    if (name.starts_with("launch__")) return call[longest].values.at(name);
    return name.ends_with(".sum") || name.find("__") == std::string::npos ? sum : mean;
  };
  if (call.empty()) return side;
  for (const ProfileMetric& metric : metrics) {
    std::string_view names = metric.names;
    std::optional<double> value;
    while (!value && !names.empty()) {
      const std::size_t end = std::min(names.find(' '), names.size());
      value = combined(std::string(names.substr(0, end)));
      names.remove_prefix(std::min(end + 1, names.size()));
    }
    if (value)
      side.metrics[std::string(metric.id)] = *value;
    else
      side.missing.emplace_back(metric.id);
  }
  double waiting = 0;
  for (const StallReason& stall : kStalls)
    if (const auto ratio = combined(
            fmt::format("smsp__average_warps_issue_stalled_{}_per_issue_active.ratio", stall.id)))
      if (*ratio > 0) {
        side.stalls.emplace_back(stall.id, *ratio);
        waiting += *ratio;
      }
  for (auto& [reason, share] : side.stalls) share /= waiting;
  std::sort(side.stalls.begin(), side.stalls.end(),
            [](const auto& a, const auto& b) { return a.second > b.second; });
  return side;
}

}  // namespace greenfast::workbench
