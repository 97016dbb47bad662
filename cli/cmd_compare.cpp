// greenfast compare: two variants live, a variant beside a peer, two recordings, or two sides of
// one recording.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "cli/command.hpp"
#include "cli/interrupt.hpp"
#include "cli/plugin_options.hpp"
#include "cli/problem_options.hpp"
#include "workbench/base/atomic_file.hpp"
#include "workbench/base/isolate.hpp"
#include "workbench/base/json.hpp"
#include "workbench/base/stdout_aside.hpp"
#include "workbench/base/terminal.hpp"
#include "workbench/verdict/compare.hpp"
#include "workbench/verdict/compare_best.hpp"
#include "workbench/verdict/peer.hpp"

namespace greenfast::cli {
namespace {

namespace fs = std::filesystem;
using workbench::Comparison;
using workbench::Recording;

constexpr const char* kNothingKept =
    "nothing of a comparison is kept: begin it anew, or use `greenfast gate`, which can be resumed";

struct CompareOptions {
  std::vector<std::string> what;
  std::string samples, sides, way;
  std::string shapes = "small,mission,long";
  std::string seeds = "0";
  std::string policy = "strict";
  std::string markdown_file, json_file;
  bool best = false, hot = false, between = false, as_json = false, as_markdown = false;
  double budget = 10;
  int iters = 200, warmup = 10;
  PluginArguments plugins;
  ProblemOptions problem;
};

bool names_a_file(const std::string& text) {
  if (text.starts_with("plugin:")) return false;
  std::error_code error;
  return text.ends_with(".json") || text.find('/') != std::string::npos || fs::exists(text, error);
}

std::vector<std::string> ids_of(const Recording& recording) {
  std::vector<std::string> ids;
  for (const workbench::Samples& shape : recording.shapes)
    for (const workbench::Side& side : shape.sides)
      if (std::find(ids.begin(), ids.end(), side.id) == ids.end()) ids.push_back(side.id);
  return ids;
}

/// --sides A,B[,...], where given.
std::vector<std::string> asked_sides(const CompareOptions& options) {
  if (options.sides.empty()) return {};
  const std::vector<std::string> sides = split_list(options.sides);
  if (sides.size() < 2)
    throw Failure(workbench::kUsage, fmt::format("--sides {}: two ids are needed, as in --sides "
                                                 "cpu.naive,cpu.flash",
                                                 options.sides));
  return sides;
}

Recording recording_of(const CompareOptions& options, const std::string& file) {
  Recording recording = value_or_fail(workbench::read_recording(file));
  if (Status status = workbench::keep_way(recording, options.way); !status) throw Failure(status);
  workbench::judge_errors(recording, value_or_fail(workbench::load_policy(options.policy)));
  return recording;
}

/// --best: the last of the sides beside the best of the others; without --sides the recording's first
/// side that is no peer, beside its peers.
workbench::BestComparison compare_with_best(const CompareOptions& options) {
  if (options.what.size() != 1 || !names_a_file(options.what[0]))
    throw Failure(workbench::kUsage,
                  "--best: takes the sides of one recording, which were interleaved");
  const Recording recording = recording_of(options, options.what[0]);
  std::vector<std::string> sides = asked_sides(options);
  std::string ours;
  if (sides.empty()) {
    for (const std::string& id : ids_of(recording)) {
      if (workbench::is_peer(id)) {
        sides.push_back(id);
      } else if (ours.empty()) {
        ours = id;
      }
    }
    if (sides.empty() || ours.empty())
      throw Failure(workbench::kUsage,
                    fmt::format("--best: {} holds {}; say which with --sides A,B,...",
                                recording.source, fmt::join(ids_of(recording), ", ")));
  } else {
    ours = sides.back();
    sides.pop_back();
  }
  return value_or_fail(workbench::compare_best(recording, sides, ours));
}

Comparison compare_files(const CompareOptions& options) {
  const auto read = [&](const std::string& file) { return recording_of(options, file); };
  const Recording first = read(options.what[0]);
  std::string a, b;
  if (const auto asked = asked_sides(options); asked.size() == 2) {
    std::tie(a, b) = std::pair(asked[0], asked[1]);
  } else if (!asked.empty()) {
    throw Failure(workbench::kUsage,
                  fmt::format("--sides {}: two ids are compared; with --best the last of several "
                              "beside the best of the others",
                              options.sides));
  }
  if (options.what.size() == 1) {
    const std::vector<std::string> ids = ids_of(first);
    if (a.empty() && ids.size() < 2)
      throw Failure(workbench::kUsage, fmt::format("{}: holds {} alone; a second file is needed",
                                                   first.source, ids[0]));
    if (a.empty()) std::tie(a, b) = std::pair(ids[0], ids[1]);
    return value_or_fail(workbench::compare_sides(first, a, b));
  }
  const Recording second = read(options.what[1]);
  if (a.empty()) {
    // The side that both hold; where each holds one, those two.
    const std::vector<std::string> in_first = ids_of(first), in_second = ids_of(second);
    std::vector<std::string> shared;
    for (const std::string& id : in_first)
      if (std::find(in_second.begin(), in_second.end(), id) != in_second.end())
        shared.push_back(id);
    if (shared.size() == 1) {
      a = b = shared[0];
    } else if (in_first.size() == 1 && in_second.size() == 1) {
      a = in_first[0];
      b = in_second[0];
    } else {
      throw Failure(
          workbench::kUsage,
          fmt::format("{} holds {}, {} holds {}; say which with --sides A,B", first.source,
                      fmt::join(in_first, ", "), second.source, fmt::join(in_second, ", ")));
    }
  }
  return value_or_fail(workbench::compare_recordings(first, a, second, b));
}

std::unique_ptr<workbench::Subject> one_subject(const std::string& id) {
  auto searched = workbench::find_subjects(id);
  if (!searched)
    throw Failure(Status(
        searched.status().code(),
        fmt::format("{}; peers are {}", searched.status().message(), workbench::known_peers())));
  auto found = std::move(*searched);
  if (found.size() != 1)
    throw Failure(
        workbench::kUsage,
        fmt::format("{}: names {} subjects; compare takes one with one", id, found.size()));
  return std::move(found.front());
}

/// Two sides, one of them at least a peer: which device they share.
DeviceKind device_with_peer(const CompareOptions& options) {
  // Whatever else is wrong with them is found before a device is opened.
  workbench::PeerOptions peers;
  peers.sides = options.what;
  if (Status status = workbench::check_peers(peers); !status) throw Failure(status);
  for (const workbench::PeerRow& row : workbench::peer_table())
    if (row.id == options.what[0] || row.id == options.what[1]) return row.device;
  return DeviceKind::cpu;
}

Comparison compare_variants(const CompareOptions& options, workbench::Activity* activity) {
  const bool peers = workbench::is_peer(options.what[0]) || workbench::is_peer(options.what[1]);
  std::unique_ptr<workbench::Subject> a, b;
  DeviceKind kind = DeviceKind::cpu;
  if (peers) {
    kind = device_with_peer(options);
  } else {
    a = one_subject(options.what[0]);
    b = one_subject(options.what[1]);
    if (a->device() != b->device())
      throw Failure(workbench::kUsage,
                    fmt::format("{} runs on {}, {} on {}; they cannot be interleaved", a->id(),
                                name_of(a->device()), b->id(), name_of(b->device())));
    kind = a->device();
  }
  workbench::CompareOptions compare;
  compare.policy = value_or_fail(workbench::load_policy(options.policy));
  compare.problems = problems_of(options.shapes, options.problem, kind);
  compare.seeds = parse_seeds(options.seeds);
  if (options.iters < 4)
    throw Failure(workbench::kUsage, "--iters: at least 4 samples are needed for an interval");
  if (options.warmup < 0)
    throw Failure(workbench::kUsage, fmt::format("--warmup {}: at least 0", options.warmup));
  if (!(options.budget > 0)) throw Failure(workbench::kUsage, "--budget: expected seconds above 0");
  compare.timing.iters = options.iters;
  compare.timing.warmup = options.warmup;
  compare.timing.mode = options.hot ? workbench::CacheState::hot : workbench::CacheState::cold;
  compare.timing.budget_seconds = options.budget;
  compare.timing.between = options.between;
  if (options.between && (peers || kind != DeviceKind::cuda))
    throw Failure(workbench::kUsage,
                  peers
                      ? "--between: with a peer, python -m greenfast_bench.ab --between times both "
                        "and `greenfast compare FILE --way elementwise:hot` judges"
                      : "--between: calls on a CPU have no launch to hide; drop it, or compare "
                        "variants of a GPU");
  compare.timing.target_halfwidth = 0.005;
  const auto device = value_or_fail(workbench::open_device(kind));
  workbench::Progress progress(stderr, options.as_json);
  struct Stopped {};
  std::string doing;
  compare.timing.progress = [](int, double) {
    if (interrupted()) throw Stopped{};
  };
  compare.step = [&](std::size_t done, std::size_t total, const std::string& what) {
    if (interrupted()) throw Stopped{};
    doing = fmt::format("{} against {}: {}", options.what[1], options.what[0], what);
    // Both sides are at work: a plugin that is lost is named by whoever is one.
    if (activity != nullptr)
      activity->set(doing, workbench::Actor::both,
                    options.what[1].starts_with("plugin:") ? options.what[1] : options.what[0]);
    progress.step(done, total, what);
  };
  if (activity != nullptr)
    compare.timing.at_work = [&](int side) {
      activity->set(doing, workbench::Actor::both,
                    side < 0 ? std::string() : options.what[static_cast<std::size_t>(side)]);
    };
  std::optional<workbench::StdoutAside> aside;  // of a CUDA plugin, which prints in this process
  if (activity != nullptr) aside.emplace();
  // An oracle's rows or a sample can take many seconds, and nothing of a comparison is kept.
  std::optional<EndSoonWhenInterrupted> soon;
  if (activity == nullptr) soon.emplace(kNothingKept);
  Comparison comparison = value_or_fail(unless_interrupted<Stopped>(progress, kNothingKept, [&] {
    return peers ? workbench::compare_with_peer(*device, options.what[0], options.what[1], compare)
                 : workbench::compare_live(*device, *a, *b, compare);
  }));
  progress.clear();
  if (activity != nullptr) (void)device->synchronize();
  return comparison;
}

/// What is to be written is measured first, for minutes: where it cannot go is said before.
void check_output_file(const std::string& option, const fs::path& file) {
  if (file.empty()) return;
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  const auto refuse = [&](std::string_view why) {
    throw Failure(workbench::kUsage, fmt::format("{} {}: {}", option, file.string(), why));
  };
  std::error_code error;
  if (!fs::is_directory(folder, error))
    refuse(fmt::format("there is no directory {}; make it first", folder.string()));
  if (fs::is_directory(file, error)) refuse("is a directory; name a file");
  if (::access(folder.c_str(), W_OK | X_OK) != 0)
    refuse(fmt::format("no permission to write in {}", folder.string()));
}

/// Writes and prints a comparison of any kind.
template <class AnyComparison>
int show(const CompareOptions& options, const AnyComparison& comparison) {
  // What was measured is shown even where it cannot be kept.
  std::optional<Failure> unwritten;
  const auto write = [&](const std::string& file, const std::string& text) {
    if (file.empty()) return;
    if (Status status = workbench::write_file_atomically(file, text); !status)
      unwritten = Failure(status);
  };
  write(options.json_file, workbench::json_text(workbench::to_json(comparison), 1) + "\n");
  write(options.markdown_file, workbench::compare_markdown(comparison));
  if (options.as_json) {
    fmt::print("{}\n", workbench::json_text(workbench::to_json(comparison), 1));
  } else if (options.as_markdown) {
    fmt::print("{}", workbench::compare_markdown(comparison));
  } else {
    fmt::print("{}", workbench::compare_text(comparison, workbench::wants_color(stdout)));
  }
  if (unwritten) throw Failure(*unwritten);
  return comparison.exit_code;
}

int run_compare(const CompareOptions& given, workbench::Activity* activity) {
  CompareOptions options = given;
  check_output_file("--json-out", options.json_file);
  check_output_file("--md-out", options.markdown_file);
  if (!options.samples.empty()) {
    if (options.what.size() == 2) options.sides = options.what[0] + "," + options.what[1];
    options.what = {options.samples};
  }
  if (options.best) return show(options, compare_with_best(options));
  Comparison comparison;
  if (!options.samples.empty()) {
    comparison = compare_files(options);
  } else if (options.what.empty()) {
    throw Failure(workbench::kUsage,
                  "what? Two variants, one or two recordings, or --samples FILE");
  } else if (names_a_file(options.what[0])) {
    if (options.what.size() == 2 && !names_a_file(options.what[1]))
      throw Failure(workbench::kUsage,
                    fmt::format("{} is a recording, {} is not; compare two of a kind",
                                options.what[0], options.what[1]));
    comparison = compare_files(options);
  } else {
    if (options.what.size() != 2)
      throw Failure(workbench::kUsage,
                    fmt::format("{}: with what? A second variant is needed", options.what[0]));
    if (!options.way.empty())
      throw Failure(workbench::kUsage,
                    fmt::format("--way {}: says which part of a recording; {} and {} are timed now",
                                options.way, options.what[0], options.what[1]));
    comparison = compare_variants(options, activity);
  }
  return show(options, comparison);
}

}  // namespace

Action define_compare(OptionSet& set) {
  auto options = std::make_shared<CompareOptions>();
  // Not "sides": CLI11 2.4 takes that and --sides for the same option.
  set.positional("what", &options->what, 0, 2,
                 "Two variants, or a variant and a peer (peer:torch-cpu, peer:torch-cudnn, ...), "
                 "timed live; or "
                 "one or two recordings (run.json, gate.json, samples)");
  set.text("--samples", &options->samples, "FILE",
           "Take both sides from this recording, as the Python harness writes for a peer");
  set.text("--sides", &options->sides, "A,B", "Which sides of the recordings to compare");
  set.flag("--best", &options->best,
           "Of one recording: the last of --sides A,B,... beside each of the others, the best of "
           "them at each shape, and over the shapes (default: its first side beside its peers)");
  set.text("--way", &options->way, "WAY",
           "Of recordings that were timed in several ways: back-to-back:hot, elementwise:cold, "
           "gemm:hot, ... (default: the first)");
  set.text("--policy", &options->policy, "NAME",
           "Numerics policy, live and for the errors that a recording holds (default: strict)");
  set.heading("Live");
  set.text("--shapes", &options->shapes, "LIST", "Shapes (default: small,mission,long)");
  set.text("--seeds", &options->seeds, "LIST",
           "Seeds of GREEN; the first also of FAST (default: 0)");
  set.integer("--iters", &options->iters, "N", "Samples of each side at most (default: 200)");
  set.integer("--warmup", &options->warmup, "N", "Untimed calls first (default: 10)");
  set.number("--budget", &options->budget, "SECONDS", "Of timing, each shape (default: 10)");
  set.flag("--hot", &options->hot, "Time with inputs in the caches (default: cold)");
  set.flag("--between", &options->between,
           "On a GPU: time calls behind an elementwise kernel, less the kernels alone");
  options->plugins.define(set);
  options->problem.define(set);
  set.heading("Output");
  set.flag("--json", &options->as_json, "Print JSON");
  set.flag("--md", &options->as_markdown, "Print Markdown");
  set.text("--json-out", &options->json_file, "FILE", "Also write JSON");
  set.text("--md-out", &options->markdown_file, "FILE", "Also write Markdown");
  return [options](const Arguments&) {
    options->plugins.load();
    return run_isolated(
        options->plugins.timeout,
        [&](workbench::Activity* activity) { return run_compare(*options, activity); },
        kNothingKept);
  };
}

}  // namespace greenfast::cli
