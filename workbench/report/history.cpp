#include "workbench/report/history.hpp"
#include "workbench/base/json.hpp"
#include "workbench/base/markdown.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include <greenfast/attention.hpp>

#include "workbench/base/subprocess.hpp"
#include "workbench/base/terminal.hpp"
#include "workbench/cases/problem_codec.hpp"
#include "workbench/cases/workload.hpp"
#include "workbench/evidence/kernel_files.hpp"

namespace greenfast::workbench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kField = '\x1f', kCommit = '\x1e';

std::vector<std::string> split(std::string_view text, char at) {
  std::vector<std::string> out;
  while (true) {
    const std::size_t end = text.find(at);
    out.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return out;
    text.remove_prefix(end + 1);
  }
}

class Repository {
 public:
  static Result<Repository> open(const fs::path& folder) {
    Repository out;
    out.folder_ = folder;
    const std::vector<std::string> ask{"git", "rev-parse", "--show-toplevel"};
    std::error_code error;
    if (!fs::is_directory(folder, error))
      return Status(StatusCode::invalid_argument,
                    fmt::format("{}: no such folder", folder.string()));
    auto end = run_program(ask, 60, folder);
    if (!end.ok()) return end.status();
    if (end->exit_code != 0)
      return Status(StatusCode::invalid_argument,
                    fmt::format("{}: not in a git repository ({}); history reads the records that "
                                "evidence/ held in each "
                                "commit of one",
                                folder.string(), last_line(end->err)));
    out.folder_ = split(end->out, '\n')[0];
    return out;
  }

  /// Standard output; empty when git says no.
  std::string ask(std::vector<std::string> words) const {
    words.insert(words.begin(), "git");
    auto end = run_program(words, 60, folder_);
    return end.ok() && end->exit_code == 0 ? end->out : std::string();
  }
  bool knows(const std::string& commit) const {
    // A record's text goes on a command line: nothing but a hash may.
    const bool hash =
        commit.size() >= 7 && commit.find_first_not_of("0123456789abcdef") == std::string::npos;
    return hash && !ask({"rev-parse", "--verify", "--quiet", commit + "^{commit}"}).empty();
  }
  const fs::path& folder() const { return folder_; }

 private:
  fs::path folder_;
};

struct Found {
  ReportSource source;
  std::string evidence;  // commit
  std::string brought;   // when that commit was made
};

bool wanted(const std::vector<std::string>& variants, const std::string& id) {
  return variants.empty() ||
         std::any_of(variants.begin(), variants.end(), [&](const std::string& v) {
           return v.ends_with('*') ? id.starts_with(v.substr(0, v.size() - 1)) : v == id;
         });
}

// By name, or the same dimensions under no mask, as a harness that knows no names records them.
bool is_shape(const Timing& t, const std::string& shape, const std::string& dimensions) {
  if (t.shape == shape || t.problem == shape) return true;
  if (t.shape.substr(0, t.shape.find(' ')) == shape) return true;
  const auto problem = problem_of_text(t.problem);
  return problem.ok() && shape_text(*problem) == dimensions && problem->mask.is_none() &&
         problem->softcap == 0;
}

// "1x8x512x64" of "mission".
std::string dimensions_of(const std::string& shape) {
  for (const ShapeRow& row : shape_table())
    if (row.name == shape) return std::string(row.shape);
  return {};
}

HistoryChange change_between(const Timing& before, const Timing& after) {
  if (!after.has_interval() || !before.has_interval()) return HistoryChange::no_interval;
  return after.hi < before.lo   ? HistoryChange::faster
         : after.lo > before.hi ? HistoryChange::slower
                                : HistoryChange::no_difference;
}

// Why a commit that was built is not known: a harness that knows no repository records none.
std::string unknown_commits(const std::string& before, bool before_known, const std::string& after,
                            bool after_known) {
  if (!before_known && before.empty() && !after_known && after.empty())
    return "neither record names the commit it was built from";
  std::vector<std::string> out;
  const auto add = [&](const char* which, const std::string& commit) {
    out.push_back(commit.empty() ? fmt::format("{} names no commit", which)
                                 : fmt::format("commit {} is not in this repository", commit));
  };
  if (!before_known) add("the record before it", before);
  if (!after_known && (before_known || after != before)) add("this record", after);
  return fmt::format("{}", fmt::join(out, ", "));
}

// A commit's time as records have it: "2026-11-25T20:03:10Z".
std::string utc_of(const std::string& seconds) {
  char* end = nullptr;
  const std::time_t time = std::strtoll(seconds.c_str(), &end, 10);
  if (seconds.empty() || *end != 0) return {};
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

/// A file that a variant is compiled from, by what of its path stays when folders move.
struct OwnFile {
  std::string tail;     ///< "20_flash.cpp", "device/softmax.cuh"
  bool shared = false;  ///< kernels of other objects are compiled from it too
};

/// What a variant is compiled from. A numbered rung's file name is its own, others share theirs
/// (kernel.cuh), and are told apart by their folder.
std::vector<OwnFile> own_files(const KernelFiles& files, const std::string& variant) {
  const auto is_source = [](const std::string& path) {
    return path.ends_with(".cu") || path.ends_with(".cpp");
  };
  const std::vector<std::string> own = closure_of(files, variant);
  std::set<std::string> elsewhere;
  for (const VariantInfo& other : variants()) {
    if (own.empty() || other.id == variant) continue;
    const std::vector<std::string> its = closure_of(files, other.id);
    // Variants of one object are compiled from the same sources, all of which are theirs.
    if (std::none_of(its.begin(), its.end(), [&](const std::string& path) {
          return is_source(path) && std::find(own.begin(), own.end(), path) != own.end();
        }))
      elsewhere.insert(its.begin(), its.end());
  }
  std::vector<OwnFile> out;
  for (const std::string& path : own) {
    const fs::path file = path;
    const std::string name = file.filename().string();
    out.push_back({std::isdigit(static_cast<unsigned char>(name[0])) != 0
                       ? name
                       : (file.parent_path().filename() / name).string(),
                   elsewhere.contains(path)});
  }
  return out;
}

/// The commits of a log (kCommit, "sha subject", names of files) as "sha subject", newest first;
/// those that touched nothing but what other kernels share come last, and say which file.
std::vector<std::string> changes_in(const std::string& log, const std::vector<OwnFile>& own,
                                    bool* only_shared) {
  std::vector<std::string> out, shared;
  for (const std::string& entry : split(log, kCommit)) {
    const std::vector<std::string> lines = split(entry, '\n');
    if (lines[0].empty()) continue;
    bool its_own = own.empty();
    std::vector<std::string> names;
    for (std::size_t i = 1; i < lines.size(); ++i)
      for (const OwnFile& file : own) {
        if (!("/" + lines[i]).ends_with("/" + file.tail)) continue;
        its_own = its_own || !file.shared;
        if (std::find(names.begin(), names.end(), file.tail) == names.end())
          names.push_back(file.tail);
      }
    // A merge that brought nothing of its own: what it merged is listed.
    if (!its_own && names.empty()) continue;
    if (its_own)
      out.push_back(lines[0]);
    else
      shared.push_back(fmt::format("{} (only in {}, which other kernels share)", lines[0],
                                   fmt::join(names, ", ")));
  }
  *only_shared = out.empty() && !shared.empty();
  out.insert(out.end(), shared.begin(), shared.end());
  return out;
}

std::string times(double ratio) {
  return ratio > 0 ? fmt::format("{:.2f}×", ratio) : std::string("-");
}

}  // namespace

std::string_view name_of(HistoryChange change) noexcept {
  switch (change) {
    case HistoryChange::first_record:
      return "first record";
    case HistoryChange::faster:
      return "faster";
    case HistoryChange::slower:
      return "slower";
    case HistoryChange::no_difference:
      return "no difference";
    case HistoryChange::no_interval:
      return "no interval";
  }
  return "";
}

Result<History> read_history(const HistoryOptions& options) {
  auto repository = Repository::open(options.repository);
  if (!repository.ok()) return repository.status();
  const std::string log = repository->ask({"log", "--reverse", "--diff-filter=AM", "--name-only",
                                           "--format=%x1e%H%x1f%ct", "--", "evidence/*.json"});
  History out;
  std::vector<Found> found;
  std::set<std::string> seen_runs;
  std::set<std::string> last_files;
  for (const std::string& entry : split(log, kCommit)) {
    if (entry.empty()) continue;
    const std::vector<std::string> lines = split(entry, '\n');
    const std::vector<std::string> fields = split(lines[0], kField);
    const std::string commit = fields[0];
    const std::string brought = fields.size() > 1 ? utc_of(fields[1]) : std::string();
    for (std::size_t i = 1; i < lines.size(); ++i) {
      const std::string& file = lines[i];
      if (!file.ends_with(".json")) continue;
      json record = clean_record(json::parse(
          repository->ask({"show", fmt::format("{}:{}", commit, file)}), nullptr, false));
      const std::string where = fmt::format("{} of {}", file, commit.substr(0, 10));
      std::string schema;
      if (record.is_object() && record.contains("schema") && record["schema"].is_string())
        schema = record["schema"].get<std::string>();
      const std::string kind = schema.starts_with("greenfast.") && schema.ends_with("/1")
                                   ? schema.substr(10, schema.size() - 12)
                                   : std::string();
      if (kind != "run" && kind != "gate" && kind != "compare" && kind != "samples") {
        if (kind != "selftest")
          out.left_out.push_back(
              fmt::format("{}: {}", where, schema.empty() ? "no record" : "schema " + schema));
        continue;
      }
      // The same run in two files, or moved, is one measurement.
      const std::string id = record.contains("run_id") && record["run_id"].is_string()
                                 ? record["run_id"].get<std::string>()
                                 : record.dump().substr(0, 4096);
      if (!seen_runs.insert(id).second) continue;
      found.push_back(
          {{repository->folder() / file, file, kind, std::move(record), {}}, commit, brought});
    }
  }
  if (found.empty())
    return Status(StatusCode::invalid_argument,
                  fmt::format("{}: no commit holds a record in evidence/; make one with greenfast "
                              "run --out evidence, "
                              "and commit it",
                              repository->folder().string()));

  const std::string dimensions = dimensions_of(options.shape);
  std::set<std::string> shapes;
  std::map<std::string, ReportSource> newest;
  for (const Found& f : found) {
    std::vector<ReportSource> one{f.source};
    ReportModel model;
    try {
      model = model_of(one);
    } catch (const json::exception& error) {
      out.left_out.push_back(
          fmt::format("{} of {}: {}", f.source.label, f.evidence.substr(0, 10), reason_of(error)));
      continue;
    }
    newest[f.source.label] = f.source;
    for (const Timing& t : model.timings) {
      shapes.insert(t.shape);
      if (!is_shape(t, options.shape, dimensions) || !wanted(options.variants, t.variant) ||
          t.device.find(options.device) == std::string::npos)
        continue;
      HistoryPoint point;
      point.timing = t;
      // One that tells no time is no older than the others for it.
      if (point.timing.utc.empty()) point.timing.utc = f.brought;
      point.evidence = f.evidence.substr(0, 10);
      point.file = f.source.label;
      out.points.push_back(std::move(point));
    }
  }
  if (out.points.empty())
    return Status(
        StatusCode::invalid_argument,
        fmt::format(
            "no record of evidence/ has a time for shape {}{}; recorded are {}", options.shape,
            options.variants.empty() && options.device.empty() ? "" : " of what was asked for",
            fmt::join(shapes, ", ")));
  for (auto& [file, source] : newest) out.newest.push_back(std::move(source));

  const auto key = [](const HistoryPoint& p) {
    return std::tie(p.timing.device, p.timing.variant, p.timing.problem, p.timing.mode);
  };
  std::stable_sort(out.points.begin(), out.points.end(),
                   [&](const HistoryPoint& a, const HistoryPoint& b) {
                     return key(a) != key(b) ? key(a) < key(b) : a.timing.utc < b.timing.utc;
                   });
  std::map<std::string, bool> known;
  const auto knows = [&](const std::string& commit) {
    const auto [at, fresh] = known.try_emplace(commit, false);
    if (fresh) at->second = repository->knows(commit);
    return at->second;
  };
  const KernelFiles kernels = kernel_files(repository->folder());
  std::map<std::string, std::vector<OwnFile>> own_sources;
  const auto sources = [&](const std::string& variant) -> const std::vector<OwnFile>& {
    const auto [at, fresh] = own_sources.try_emplace(variant);
    if (fresh) at->second = own_files(kernels, variant);
    return at->second;
  };
  std::size_t first = 0;
  for (std::size_t i = 0; i < out.points.size(); ++i) {
    HistoryPoint& p = out.points[i];
    if (i == 0 || key(p) != key(out.points[i - 1])) {
      first = i;
      p.seen = HistoryChange::first_record;
      continue;
    }
    const HistoryPoint& before = out.points[i - 1];
    p.over_previous = before.timing.p50 / p.timing.p50;
    p.over_first = out.points[first].timing.p50 / p.timing.p50;
    p.seen = change_between(before.timing, p.timing);
    // What was built is what counts; a commit that history has lost (rebased, squashed) is stood
    // for by the one that brought the record.
    const bool from_known = knows(before.timing.commit), to_known = knows(p.timing.commit);
    const std::string from = from_known ? before.timing.commit : before.evidence;
    const std::string to = to_known ? p.timing.commit : p.evidence;
    if (!from_known || !to_known)
      p.note =
          fmt::format("{}; taken from the commits that brought the records",
                      unknown_commits(before.timing.commit, from_known, p.timing.commit, to_known));
    // The sources that the variant is compiled from, wherever they lay then. The library under a
    // harness's name, or a variant that is gone, may have run any kernel.
    const std::vector<OwnFile>& own = sources(p.timing.variant);
    // Of a merge (-c) the files that it made unlike each of its parents.
    std::vector<std::string> ask{"log", "-c", "--name-only", "--format=%x1e%h %s", from + ".." + to,
                                 "--"};
    if (own.empty())
      ask.insert(ask.end(), {"src/kernels", "src/core", "src/backends", "src/dispatch", "src/api"});
    for (const OwnFile& file : own) ask.push_back(fmt::format(":(glob)src/**/{}", file.tail));
    const bool peer = p.timing.variant.starts_with("peer:");
    if (peer) p.note = "a peer: its version and the machine, not this repository";
    if (peer) continue;
    bool only_shared = false;
    p.changes = changes_in(repository->ask(ask), own, &only_shared);
    if (only_shared && p.note.empty())
      p.note =
          "no commit between them touched its own sources, but files that it shares with others";
    else if (p.changes.empty() && p.note.empty())
      p.note = from == to ? "the same commit, measured again: the machine or its load"
                          : "no commit between them touched its own sources: what all kernels "
                            "share, the machine or its load";
    else if (own.empty() && p.note.empty())
      p.note = "which sources it was compiled from is not known here: any kernel's are named";
  }
  return out;
}

namespace {

std::string change_of(const HistoryPoint& p) {
  if (p.seen == HistoryChange::first_record) return std::string(name_of(p.seen));
  if (p.changes.empty() || !p.is_step())
    return p.changes.empty() ? p.note : fmt::format("touched by {}", p.changes.front());
  // The newest is named; who wants all of them asks for JSON.
  std::string out = p.changes.front();
  if (p.changes.size() > 1) out += fmt::format(" (and {} before it)", p.changes.size() - 1);
  return out;
}

// What stands for the version: what was built, or where that is not told, which commit has the
// record.
std::string version_of(const HistoryPoint& p) {
  return p.timing.commit.empty() ? "recorded in " + p.evidence : p.timing.commit;
}

const std::vector<std::string> kHeader{
    "version",      "variant", "optimisation",         "p50",
    "95% interval", "caches",  "over its predecessor", "over the first",
    "seen"};

std::vector<std::string> row_of(const HistoryPoint& p) {
  const std::string version = fmt::format("{} {}", version_of(p), p.timing.utc.substr(0, 10));
  return {version,
          p.timing.variant,
          change_of(p),
          format_duration(p.timing.p50),
          duration_range(p.timing.lo, p.timing.hi),
          p.timing.mode,
          times(p.over_previous),
          times(p.over_first),
          std::string(name_of(p.seen))};
}

}  // namespace

std::vector<ReportPart> history_parts(const History& history, const HistoryOptions& options) {
  std::vector<ReportPart> parts;
  parts.push_back({"## Performance history\n", {}});
  std::vector<std::string> devices;
  for (const HistoryPoint& p : history.points)
    if (std::find(devices.begin(), devices.end(), p.timing.device) == devices.end())
      devices.push_back(p.timing.device);
  for (std::size_t d = 0; d < devices.size(); ++d) {
    Chart chart;
    chart.id = fmt::format("history-{}", d);
    chart.title = fmt::format("p50 at {} over records, {}", options.shape, devices[d]);
    chart.kind = Chart::Kind::points;
    chart.y_title = "p50, µs, logarithmic";
    chart.y_log = true;
    chart.header = kHeader;
    // Records in the order of measuring; the same one for all variants that it timed.
    std::vector<std::pair<std::string, std::string>> records;  // UTC, label
    for (const HistoryPoint& p : history.points)
      if (p.timing.device == devices[d]) records.emplace_back(p.timing.utc, version_of(p));
    std::sort(records.begin(), records.end());
    records.erase(std::unique(records.begin(), records.end()), records.end());
    for (const auto& [utc, label] : records) chart.x_ticks.push_back(label);
    std::size_t steps = 0;
    for (const HistoryPoint& p : history.points) {
      if (p.timing.device != devices[d]) continue;
      const std::string name = fmt::format("{}, {}", p.timing.variant, p.timing.shape);
      if (chart.series.empty() || chart.series.back().name != name) {
        chart.series.push_back({name, {}, true, true});
      }
      const auto at =
          std::find(records.begin(), records.end(), std::pair(p.timing.utc, version_of(p)));
      chart.series.back().points.push_back(Chart::Point{static_cast<double>(at - records.begin()),
                                                        p.timing.p50 * 1e6, p.timing.lo * 1e6,
                                                        p.timing.hi * 1e6, change_of(p)});
      chart.rows.push_back(row_of(p));
      steps += p.is_step() ? 1 : 0;
    }
    chart.note = fmt::format(
        "Lower is better. {} records, {} steps beyond their 95% intervals. Records are not "
        "interleaved: a step is a change of "
        "the code only if the machine was the same; gate decides that.",
        records.size(), steps);
    parts.push_back({"", {std::move(chart)}});
  }
  // The ladder's own history: rungs as versions.
  try {
    const ReportModel model = model_of(history.newest);
    for (Chart& chart : charts_of(model, {}))
      if (chart.id.starts_with("ladder")) {
        chart.id = "history-" + chart.id;
        chart.title = "Performance history by rung: " + chart.title;
        parts.push_back({"", {std::move(chart)}});
      }
  } catch (const json::exception&) {
    // Those records have been left out, and said so, while they were read.
  }
  std::string notes;
  for (const std::string& line : history.left_out)
    notes += fmt::format("- left out: {}\n", markdown_text(line));
  if (!notes.empty()) parts.push_back({notes, {}});
  return parts;
}

json history_json(const History& history, const HistoryOptions& options) {
  json points = json::array();
  for (const HistoryPoint& p : history.points) {
    const auto ratio = [](double value) { return value > 0 ? json(value) : json(nullptr); };
    points.push_back({{"device", p.timing.device},
                      {"variant", p.timing.variant},
                      {"shape", p.timing.shape},
                      {"problem", p.timing.problem},
                      {"caches", p.timing.mode},
                      {"commit", p.timing.commit},
                      {"evidence_commit", p.evidence},
                      {"file", p.file},
                      {"utc", p.timing.utc},
                      {"p50_seconds", p.timing.p50},
                      {"p50_ci_seconds", {p.timing.lo, p.timing.hi}},
                      {"over_previous", ratio(p.over_previous)},
                      {"over_first", ratio(p.over_first)},
                      {"seen", name_of(p.seen)},
                      {"changes", p.changes},
                      {"note", p.note}});
  }
  return {{"schema", "greenfast.history/1"},
          {"shape", options.shape},
          {"points", points},
          {"left_out", history.left_out}};
}

}  // namespace greenfast::workbench
