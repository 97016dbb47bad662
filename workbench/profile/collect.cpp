// Drives ncu and perf.
#include <fmt/format.h>

#include <unistd.h>
#include <algorithm>
#include <cmath>

#include "workbench/base/subprocess.hpp"
#include "workbench/profile/profile.hpp"

namespace greenfast::workbench {
namespace {

namespace fs = std::filesystem;

constexpr int kCalls = 3;
// A profile replays each launch some tens of times; more than this is a hang.
constexpr double kMostSeconds = 300;

std::vector<std::string> launch_of(const ProfileJob& job, int calls) {
  std::vector<std::string> argv = job.launch;
  for (std::string& word : argv)
    if (word == "{calls}") word = fmt::format("{}", calls);
  return argv;
}

std::vector<std::string> metric_names(std::span<const ProfileMetric> metrics) {
  std::vector<std::string> out;
  for (const ProfileMetric& metric : metrics) {
    std::string_view names = metric.names;
    while (!names.empty()) {
      const std::size_t end = std::min(names.find(' '), names.size());
      out.emplace_back(names.substr(0, end));
      names.remove_prefix(std::min(end + 1, names.size()));
    }
  }
  return out;
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& word : words) out.append(out.empty() ? "" : ",").append(word);
  return out;
}

// Why ncu could not, where that is the machine's fault and not ours.
std::optional<std::string> obstacle(const std::string& text) {
  if (text.find("ERR_NVGPUCTRPERM") != std::string::npos)
    return "no permission to read GPU performance counters (ERR_NVGPUCTRPERM); the administrator "
           "allows it with "
           "NVreg_RestrictProfilingToAdminUsers=0";
  for (const char* words :
       {"LibraryNotLoaded", "LibraryNotFound", "Failed to initialize the profiler",
        "Profiling is not supported", "ERR_NVGPU"})
    if (const std::size_t at = text.find(words); at != std::string::npos) {
      const std::size_t begin = text.rfind('\n', at) + 1;
      return fmt::format("ncu: {}", text.substr(begin, text.find('\n', at) - begin));
    }
  return std::nullopt;
}

std::string said(const ProgramEnd& end) {
  const std::string line = last_line(end.err.empty() ? end.out : end.err);
  return line.empty() ? fmt::format("exit code {}", end.exit_code) : line;
}

}  // namespace

Result<Collected> collect_ncu(const ProfileJob& job) {
  Collected out;
  if (!find_program("ncu")) {
    out.skipped = "ncu is not installed (NVIDIA Nsight Compute)";
    return out;
  }
  const std::vector<std::string> ask{"ncu", "--version"};
  if (const auto version = run_program(ask, 30); version.ok()) {
    const std::string line = last_line(version->out);
    out.tool =
        "ncu " +
        line.substr(line.rfind("Version ") == std::string::npos ? 0 : line.rfind("Version ") + 8);
  }
  fs::path raw = job.raw;
  const bool keep = !raw.empty();
  if (!keep) raw = fs::temp_directory_path() / fmt::format("greenfast-{}.ncu-rep", ::getpid());

  std::vector<std::string> wanted = metric_names(gpu_metrics());
  for (int attempt = 0;; ++attempt) {
    // Clocks stay as they are: other people's settings, and times that can be compared with others.
    std::vector<std::string> argv{"ncu",
                                  "--clock-control",
                                  "none",
                                  "--cache-control",
                                  job.hot ? "none" : "all",
                                  "--force-overwrite",
                                  "--export",
                                  raw.string(),
                                  "--section",
                                  "WarpStateStats",
                                  "--metrics",
                                  joined(wanted)};
    for (std::string& word : launch_of(job, kCalls)) argv.push_back(std::move(word));
    auto end = run_program(argv, kMostSeconds);
    if (!end.ok()) return end.status();
    const std::string text = end->out + end->err;
    if (end->timed_out) {
      out.skipped = fmt::format("ncu took longer than {:.0f} s", kMostSeconds);
      return out;
    }
    if (const auto why = obstacle(text)) {
      out.skipped = *why;
      return out;
    }
    if (end->exit_code == 0 && fs::exists(raw)) break;
    // Another GPU or version does not know every name: without those.
    const std::size_t before = wanted.size();
    if (text.find("metric") != std::string::npos)
      std::erase_if(wanted,
                    [&](const std::string& name) { return text.find(name) != std::string::npos; });
    if (wanted.size() == before || wanted.empty() || attempt == 3)
      return Status(StatusCode::internal,
                    fmt::format("ncu failed on {}: {}", job.variant, said(*end)));
  }
  const std::vector<std::string> show{"ncu",    "--import", raw.string(),    "--csv",
                                      "--page", "raw",      "--print-units", "base"};
  auto csv = run_program(show, 120);
  if (!keep) {
    std::error_code error;
    fs::remove(raw, error);
  }
  if (!csv.ok()) return csv.status();
  auto kernels = parse_ncu_csv(csv->out);
  if (!kernels.ok()) return kernels.status();
  const std::size_t each = kernels->size() / kCalls;
  if (each == 0 || kernels->size() % kCalls != 0)
    return Status(StatusCode::internal, fmt::format("ncu saw {} launches in {} calls of {}",
                                                    kernels->size(), kCalls, job.variant));
  out.call.assign(kernels->end() - static_cast<std::ptrdiff_t>(each), kernels->end());
  return out;
}

Result<Collected> collect_perf(const ProfileJob& job) {
  Collected out;
  if (!find_program("perf")) {
    out.skipped = "perf is not installed (linux-perf)";
    return out;
  }
  out.tool = "perf stat";
  // What setting up costs is the same whatever the number of calls: the difference is calls alone.
  constexpr int kFew = 2, kMany = 12;
  std::map<std::string, double> few, many;
  for (const int calls : {kFew, kMany}) {
    std::vector<std::string> argv{"perf", "stat", "-x,", "-e", joined(metric_names(cpu_metrics())),
                                  "--"};
    for (std::string& word : launch_of(job, calls)) argv.push_back(std::move(word));
    auto end = run_program(argv, kMostSeconds);
    if (!end.ok()) return end.status();
    if (end->timed_out || end->exit_code != 0) {
      out.skipped = end->timed_out ? fmt::format("perf took longer than {:.0f} s", kMostSeconds)
                                   : fmt::format("perf stat: {}", said(*end));
      return out;
    }
    (calls == kFew ? few : many) = parse_perf_csv(end->err);
  }
  if (!many.contains("cycles") || !many.contains("instructions")) {
    out.skipped =
        "this machine counts no cycles and instructions for perf stat (a virtual machine, or "
        "kernel.perf_event_paranoid)";
    return out;
  }
  KernelCounters counters{job.variant, {}};
  for (const auto& [name, value] : many)
    if (few.contains(name))
      counters.values[name] = std::max(0.0, value - few[name]) / (kMany - kFew);
  out.call.push_back(std::move(counters));
  return out;
}

}  // namespace greenfast::workbench
