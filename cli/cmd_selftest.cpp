// greenfast selftest: the gate against planted wrong kernels and honest ones.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "cli/command.hpp"
#include "cli/interrupt.hpp"
#include "workbench/base/terminal.hpp"
#include "workbench/record/record.hpp"
#include "workbench/record/run_table.hpp"

namespace greenfast::cli {
namespace {

struct SelftestOptions {
  std::string policy = "strict";
  std::string device = "cpu";
  bool as_json = false;
  bool quiet = false;
};

int run_selftest(const SelftestOptions& options, const Arguments& argv) {
  const workbench::Policy policy = value_or_fail(workbench::load_policy(options.policy));
  if (options.device != "cpu" && options.device != "cuda")
    throw Failure(workbench::kUsage,
                  fmt::format("--device {}: possible are cpu, cuda", options.device));
  workbench::RecordHead head = workbench::begin_record("selftest", argv);
  end_when_interrupted("nothing of a selftest is kept, the same command begins it anew");

  workbench::Progress progress(stderr, options.quiet);
  const auto result = value_or_fail(workbench::selftest(
      policy,
      [&](const workbench::SelftestRow& row, int index, int total) {
        progress.step(static_cast<std::size_t>(index), static_cast<std::size_t>(total),
                      row.subject);
        progress.finished(row.subject);
      },
      options.device == "cuda" ? DeviceKind::cuda : DeviceKind::cpu));
  progress.clear();
  head.seconds = result.seconds;
  if (options.as_json)
    fmt::print("{}\n", workbench::selftest_json(head, policy, result).dump(2));
  else
    fmt::print("{}", workbench::selftest_table(result, workbench::wants_color(stdout)));
  return result.ok ? workbench::kPassed : workbench::kNumerics;
}

}  // namespace

Action define_selftest(OptionSet& set) {
  auto options = std::make_shared<SelftestOptions>();
  std::vector<std::string_view> names;
  for (const workbench::BuiltinPolicy& p : workbench::builtin_policies()) names.push_back(p.name);
  set.text(
      "--policy", &options->policy, "POLICY",
      fmt::format("The gate to test: {}, or a TOML file (default: strict). A legacy policy that "
                  "lets wrong kernels pass ends with 20",
                  fmt::join(names, ", ")));
  set.text("--device", &options->device, "DEVICE",
           "cpu, or cuda: planted kernels on a GPU's buffers and around real launches (default: "
           "cpu)");
  set.flag("--json", &options->as_json, "Print JSON");
  set.flag("--quiet", &options->quiet, "No progress");
  return [options](const Arguments& argv) { return run_selftest(*options, argv); };
}

}  // namespace greenfast::cli
