// greenfast profile: hardware counters of one variant, or of two beside the change's prediction.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>

#include "cli/command.hpp"
#include "cli/problem_options.hpp"
#include "workbench/base/atomic_file.hpp"
#include "workbench/base/clean_text.hpp"
#include "workbench/base/files.hpp"
#include "workbench/base/schemas.hpp"
#include "workbench/base/seconds_since.hpp"
#include "workbench/base/sha256.hpp"
#include "workbench/base/terminal.hpp"
#include "workbench/fast/measure.hpp"
#include "workbench/profile/profile.hpp"
#include "workbench/record/facts.hpp"
#include "workbench/report/report.hpp"

namespace greenfast::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using workbench::kUsage;
using workbench::SideProfile;

struct ProfileOptions {
  std::vector<std::string> what;
  std::string shape = "mission", out, csv, plan;
  int launch_calls = 0;
  bool hot = false, as_json = false;
  ProblemOptions problem;
};

struct Case {
  std::vector<std::unique_ptr<workbench::Subject>> sides;
  std::unique_ptr<workbench::Device> device;  // none when counters come from a file
  workbench::NamedProblem problem;
  std::string dtype;
};

Case prepare(const ProfileOptions& options) {
  Case out;
  for (const std::string& id : options.what) {
    auto found = value_or_fail(workbench::find_subjects(id));
    if (found.size() != 1)
      throw Failure(kUsage, fmt::format("{}: names {} subjects; profile takes them one by one", id,
                                        found.size()));
    out.sides.push_back(std::move(found.front()));
  }
  const DeviceKind kind = out.sides[0]->device();
  for (const auto& side : out.sides)
    if (side->device() != kind)
      throw Failure(
          kUsage,
          fmt::format("{} runs on {}, {} on {}; their counters have nothing in common",
                      out.sides[0]->id(), name_of(kind), side->id(), name_of(side->device())));
  DeviceFacts facts;
  if (options.csv.empty()) {
    out.device = value_or_fail(workbench::open_device(kind));
    facts = out.device->facts();
  } else {
    facts = value_or_fail(model_facts(kind == DeviceKind::cuda ? "h200" : "cpu"));
  }
  // Without --dtype the first that every side takes: the ladder's families have one each.
  std::vector<std::string> dtypes{options.problem.dtype};
  if (options.problem.dtype.empty())
    dtypes = kind == DeviceKind::cpu ? std::vector<std::string>{"fp32"}
                                     : std::vector<std::string>{"fp16", "bf16", "e4m3"};
  std::string why;
  for (const std::string& dtype : dtypes) {
    ProblemOptions asked = options.problem;
    asked.dtype = dtype;
    auto problems = problems_of(options.shape, asked, kind);
    if (problems.size() != 1)
      throw Failure(kUsage, fmt::format("--shape {}: {} problems; profile takes one", options.shape,
                                        problems.size()));
    why.clear();
    for (const auto& side : out.sides)
      if (const auto refusal = side->refusal(problems[0].problem, facts);
          refusal && why.empty() && options.csv.empty())
        why = fmt::format("{} at {}: {}", side->id(), problems[0].name, *refusal);
    out.problem = std::move(problems[0]);
    out.dtype = dtype;
    if (why.empty()) return out;
  }
  throw Failure(kUsage, why);
}

// What the tool runs: some calls, each on other inputs.
int launch(const ProfileOptions& options) {
  const Case c = prepare(options);
  workbench::Subject& subject = *c.sides[0];
  workbench::Ring::Options ring_options;
  ring_options.min_bytes = 1;
  ring_options.min_slots = ring_options.max_slots = options.hot ? 1 : 2;
  ring_options.distinct = 1;
  workbench::Case inputs;
  inputs.name = c.problem.name;
  inputs.problem = c.problem.problem;
  const auto ring = value_or_fail(workbench::Ring::make(*c.device, inputs, ring_options));
  const auto plan = subject.plan(c.problem.problem, c.device->facts());
  const auto bytes = static_cast<std::size_t>(plan ? plan->workspace_bytes : 0);
  void* workspace = bytes > 0 ? c.device->allocate(bytes) : nullptr;
  const auto check = [](Status status) {
    if (!status) throw Failure(status);
  };
  check(subject.prepare(c.problem.problem, c.device->stream()));
  for (int i = 0; i < options.launch_calls; ++i)
    check(subject.launch(c.problem.problem, ring->tensors(i % ring->slots()), c.device->stream(),
                         workspace, bytes));
  check(c.device->synchronize());
  if (workspace != nullptr) c.device->release(workspace);
  return workbench::kPassed;
}

std::vector<std::string> launch_command(const ProfileOptions& options, const Case& c,
                                        const std::string& variant) {
  const ProblemOptions& p = options.problem;
  std::vector<std::string> argv{fs::read_symlink("/proc/self/exe").string(),
                                "profile",
                                variant,
                                "--shape",
                                options.shape,
                                "--dtype",
                                c.dtype,
                                "--layout",
                                p.layout};
  const auto add = [&](const char* name, const std::string& value) {
    if (!value.empty()) argv.push_back(fmt::format("{}={}", name, value));
  };
  add("--out-dtype", p.out_dtype);
  add("--causal", p.causal);
  add("--window", p.window);
  if (p.scale) add("--scale", fmt::format("{}", *p.scale));
  if (p.softcap != 0) add("--softcap", fmt::format("{}", p.softcap));
  if (p.lse) argv.emplace_back("--lse");
  for (const auto& [name, value] : p.asked())
    argv.push_back(value.empty() ? "--" + name : fmt::format("--{}={}", name, value));
  if (options.hot) argv.emplace_back("--hot");
  argv.insert(argv.end(), {"--launch-calls", "{calls}"});
  return argv;
}

std::string file_name(std::string text) {
  for (char& c : text)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '_') c = '-';
  return text;
}

int run_profile(const ProfileOptions& options, const Arguments& arguments) {
  if (options.launch_calls > 0) return launch(options);
  const auto start = std::chrono::steady_clock::now();
  const std::string utc = workbench::utc_time(), stamp = workbench::utc_stamp();
  const Case c = prepare(options);
  const bool gpu = c.sides[0]->device() == DeviceKind::cuda;
  const auto metrics = gpu ? workbench::gpu_metrics() : workbench::cpu_metrics();
  const std::vector<std::string> files = split_list(options.csv);
  if (!files.empty() && files.size() != c.sides.size())
    throw Failure(kUsage, fmt::format("--csv {}: {} files for {} variants", options.csv,
                                      files.size(), c.sides.size()));
  if (!files.empty() && !gpu) throw Failure(kUsage, "--csv: ncu's, so of CUDA variants");

  const auto predictions = value_or_fail(
      options.plan.empty() ? workbench::parse_predictions("policies/predictions.toml",
                                                          workbench::builtin_predictions(),
                                                          workbench::is_profile_metric)
                           : workbench::parse_predictions(
                                 options.plan, value_or_fail(workbench::read_file(options.plan)),
                                 workbench::is_profile_metric));
  std::optional<workbench::OutputDirectory> directory;
  if (!options.as_json || !options.out.empty())
    directory = value_or_fail(
        options.out.empty() ? workbench::OutputDirectory::open_unique("results", stamp + "-profile")
                            : workbench::OutputDirectory::open(options.out));

  workbench::Peak peak;
  if (c.device != nullptr) peak = c.device->peak(c.problem.problem.dtype);
  const double flop = workbench::flop_count(c.problem.problem);
  const double bytes = workbench::byte_count(c.problem.problem);
  std::vector<SideProfile> sides;
  json artifacts = json::array();
  std::string tool;
  workbench::Progress progress(stderr, options.as_json);
  for (std::size_t i = 0; i < c.sides.size(); ++i) {
    const std::string id = c.sides[i]->id();
    progress.step(i, c.sides.size(), fmt::format("profiling {}", id));
    workbench::Collected collected;
    std::string raw_name;
    if (!files.empty()) {
      auto launches =
          value_or_fail(workbench::parse_ncu_csv(value_or_fail(workbench::read_file(files[i]))));
      collected.call.push_back(std::move(launches.back()));
      collected.tool = fmt::format("ncu, from {}", fs::path(files[i]).filename().string());
      raw_name = fs::path(files[i]).filename().string();
      if (directory && !(directory->path() / raw_name == fs::path(files[i])))
        if (Status status =
                directory->write(raw_name, value_or_fail(workbench::read_file(files[i])));
            !status)
          throw Failure(status);
    } else {
      workbench::ProfileJob job{id, launch_command(options, c, id), options.hot, {}};
      if (gpu && directory) {
        raw_name = file_name(fmt::format("{}.{}.ncu-rep", id, c.problem.name));
        job.raw = directory->path() / raw_name;
      }
      collected = value_or_fail(gpu ? workbench::collect_ncu(job) : workbench::collect_perf(job));
    }
    SideProfile side = workbench::side_of_counters(id, collected.call, metrics);
    side.skipped = collected.skipped;
    if (side.skipped) side.missing.clear();
    if (gpu)
      workbench::explain_gpu(side, flop, bytes, peak,
                             c.device != nullptr ? c.device->facts().multiprocessors : 0);
    else
      workbench::explain_cpu(side, flop, bytes, peak);
    if (!side.skipped && !raw_name.empty() && directory) {
      const std::string content =
          value_or_fail(workbench::read_file((directory->path() / raw_name).string()));
      artifacts.push_back({{"file", raw_name},
                           {"bytes", content.size()},
                           {"sha256", workbench::sha256_hex(content)}});
    }
    if (!collected.tool.empty()) tool = collected.tool;
    progress.finished(fmt::format("{}: {}", id,
                                  side.skipped ? "SKIPPED: " + *side.skipped
                                               : fmt::format("{} metrics", side.metrics.size())));
    sides.push_back(std::move(side));
  }
  progress.clear();

  json record = {{"schema", workbench::kProfileSchema},
                 {"run_id", fmt::format("{}-{}", stamp, ::getpid())},
                 {"utc", utc},
                 {"argv", arguments},
                 {"build", workbench::build_json()},
                 {"host", workbench::host_json(workbench::host_facts())},
                 {"tool", tool.empty() ? (gpu ? "ncu" : "perf stat") : tool},
                 {"shape", c.problem.name},
                 {"problem", to_string(c.problem.problem)},
                 {"flop", flop},
                 {"bytes", bytes},
                 {"caches", options.hot ? "hot" : "cold"},
                 {"artifacts", artifacts}};
  record["device"] = c.device != nullptr ? workbench::device_json(c.device->facts())
                                         : json{{"kind", name_of(c.sides[0]->device())},
                                                {"name", "not here: counters from a file"}};
  record["peak"] = {
      {"flops", peak.flops}, {"bytes_per_second", peak.bytes_per_second}, {"method", peak.method}};
  record["sides"] = json::array();
  bool any = false;
  for (const SideProfile& side : sides) {
    record["sides"].push_back(workbench::side_json(side, metrics));
    any = any || !side.skipped;
  }
  record["directions"] = json::array();
  record["plan"] = "";
  if (sides.size() == 2 && !sides[0].skipped && !sides[1].skipped) {
    const workbench::Prediction* prediction =
        workbench::find_prediction(predictions, sides[0].variant, sides[1].variant);
    record["plan"] =
        prediction != nullptr
            ? fmt::format("Predicted because {}.", prediction->because)
            : fmt::format("No prediction for {} after {} in {}: write it before measuring.",
                          sides[1].variant, sides[0].variant,
                          options.plan.empty() ? "policies/predictions.toml" : options.plan);
    for (const workbench::MetricMove& m : workbench::moves(sides[0], sides[1], metrics, prediction))
      record["directions"].push_back({{"metric", m.id},
                                      {"label", m.label},
                                      {"baseline", m.baseline},
                                      {"candidate", m.candidate},
                                      {"seen", m.seen},
                                      {"predicted", m.predicted},
                                      {"status", m.status}});
  }
  const int code = any ? workbench::kPassed : workbench::kNoDevice;
  record["exit_code"] = code;
  record["seconds"] = workbench::seconds_since(start);
  if (directory)
    if (Status status = directory->write("profile.json", record.dump(1) + "\n"); !status)
      throw Failure(status);
  if (options.as_json) {
    fmt::print("{}\n", record.dump(1));
  } else {
    fmt::print("{}\nRecord: {}\n", workbench::profile_markdown(record),
               workbench::clean_line((directory->path() / "profile.json").string()));
  }
  return code;
}

}  // namespace

Action define_profile(OptionSet& set) {
  auto options = std::make_shared<ProfileOptions>();
  set.positional("VARIANT", &options->what, 1, 2,
                 "One variant; or baseline and candidate, for the directions between them");
  set.text("--shape", &options->shape, "SHAPE", "One name or BxHxSxD (default: mission)");
  set.text("--out", &options->out, "DIR",
           "Where profile.json and the raw profiles go; a gate's folder makes them its evidence "
           "(default: "
           "results/<UTC time>-profile)");
  set.text("--plan", &options->plan, "FILE",
           "Predictions (default: policies/predictions.toml of this build)");
  set.text("--csv", &options->csv, "FILE[,FILE]",
           "Instead of running ncu: its output from elsewhere, ncu --csv --page raw, the last "
           "launch counts");
  set.flag("--hot", &options->hot,
           "Counters with inputs in the caches (default: flushed before each replay)");
  set.flag("--json", &options->as_json,
           "Print the record; nothing is written unless --out is given");
  set.integer("--launch-calls", &options->launch_calls, "N",
              "Only launch, N times: what the profiler runs");
  options->problem.define(set);
  return [options](const Arguments& arguments) { return run_profile(*options, arguments); };
}

}  // namespace greenfast::cli
