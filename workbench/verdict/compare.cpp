#include "workbench/verdict/compare.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <sstream>

#include "workbench/base/checkpoint.hpp"
#include "workbench/base/exit_code.hpp"
#include "workbench/base/json.hpp"
#include "workbench/base/schemas.hpp"
#include "workbench/cases/problem_codec.hpp"
#include "workbench/fast/timed_judge.hpp"
#include "workbench/green/validate.hpp"

namespace greenfast::workbench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Numbers of a floating-point type in their order: neighbours differ by 1, both zeros are 0.
template <class Bits>
std::int64_t ordered(Bits bits) {
  constexpr Bits kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));
  const auto magnitude = static_cast<std::int64_t>(bits & static_cast<Bits>(~kSign));
  return (bits & kSign) != 0 ? -magnitude : magnitude;
}

template <class Bits>
OutputDifference difference_of(std::span<const std::byte> a, std::span<const std::byte> b,
                               Bits infinity) {
  OutputDifference out;
  std::vector<std::int64_t> ulps;
  out.elements = static_cast<std::int64_t>(a.size() / sizeof(Bits));
  for (std::size_t i = 0; i + sizeof(Bits) <= a.size(); i += sizeof(Bits)) {
    Bits x, y;
    std::memcpy(&x, a.data() + i, sizeof x);
    std::memcpy(&y, b.data() + i, sizeof y);
    if (x == y) continue;
    const auto is_nan = [&](Bits v) {
      return std::abs(ordered(v)) > static_cast<std::int64_t>(infinity);
    };
    if (is_nan(x) && is_nan(y)) continue;
    if (is_nan(x) != is_nan(y)) {
      ++out.nan_mismatch;
      continue;
    }
    const std::int64_t ulp = std::abs(ordered(x) - ordered(y));
    if (ulp == 0) continue;
    ++out.differing;
    out.max_ulp = std::max(out.max_ulp, ulp);
    ulps.push_back(ulp);
  }
  // The equal ones come first in the order of all.
  const std::int64_t rank = (out.elements * 99 + 99) / 100 - 1 - (out.elements - out.differing);
  if (rank >= 0 && rank < out.differing) {
    std::nth_element(ulps.begin(), ulps.begin() + rank, ulps.end());
    out.p99_ulp = ulps[static_cast<std::size_t>(rank)];
  }
  return out;
}

std::string side_list(const Recording& recording) {
  std::set<std::string> ids;
  for (const Samples& shape : recording.shapes) {
    for (const Side& side : shape.sides) ids.insert(side.id);
  }
  return fmt::format("{}", fmt::join(ids, ", "));
}

bool has_side(const Recording& recording, const std::string& id) {
  return std::any_of(recording.shapes.begin(), recording.shapes.end(),
                     [&](const Samples& shape) { return shape.side(id) >= 0; });
}

Status no_such_side(const Recording& recording, const std::string& id) {
  return {StatusCode::invalid_argument, fmt::format("{}: has no side {}; it holds {}",
                                                    recording.source, id, side_list(recording))};
}

std::string digests_in_words(const std::string& a, const std::string& b) {
  if (a.empty() || b.empty()) return "no digests recorded";
  return a == b ? "bit for bit" : "differ (compare the variants live for ulps)";
}

/// Why a recording's shape cannot show a side; nothing where it has samples of it.
std::optional<SkippedShape> without_samples(const Samples& samples, const std::string& id) {
  const int side = samples.side(id);
  if (side < 0) return SkippedShape{samples.name, id, SkipReason::not_measured, {}};
  const std::string& refused = samples.sides[static_cast<std::size_t>(side)].refused;
  if (refused.empty()) return std::nullopt;
  return SkippedShape{samples.name, id, SkipReason::no_samples, refused};
}

/// A shape without rows or keys: no kernel is called for it, so equal outputs and times are nobody's.
std::optional<SkippedShape> without_work(const std::string& name,
                                         const std::optional<Problem>& problem) {
  if (!problem || problem->batch * problem->heads_q * problem->seq_q * problem->seq_kv != 0)
    return std::nullopt;
  return SkippedShape{name, "", SkipReason::nothing,
                      fmt::format("{} has no rows or no keys: nothing of the sides is compared",
                                  to_string(*problem))};
}

/// As a recording's text says the problem; where it says more than can be read, it has some.
std::optional<Problem> read_problem(const Samples& samples) {
  const auto problem = problem_of_text(samples.problem);
  return problem ? std::optional<Problem>(*problem) : std::nullopt;
}

void overall(Comparison& comparison) {
  if (comparison.shapes.empty()) return;
  std::vector<LogRatio> p50, p90;
  for (const ShapeComparison& shape : comparison.shapes) {
    p50.push_back(shape.log_p50);
    p90.push_back(shape.log_p90);
  }
  comparison.overall_p50 = speedup(geometric_mean(p50));
  comparison.overall_p90 = speedup(geometric_mean(p90));
}

int code_of(const ShapeComparison& shape) {
  return shape.a_correct.red() || shape.b_correct.red() ? kNumerics : kPassed;
}

/// One shape from samples: ratio, summaries, what was recorded of outputs.
Result<ShapeComparison> shape_of(const Samples& first, int a, const Samples& second, int b,
                                 bool paired) {
  ShapeComparison shape;
  shape.name = first.name;
  shape.problem = first.problem;
  for (const Statistic statistic : {Statistic::p50, Statistic::p90}) {
    auto ratio = paired ? paired_log_ratio(first, a, b, statistic)
                        : unpaired_log_ratio(first, a, second, b, statistic);
    if (!ratio) return ratio.status();
    const bool median = statistic == Statistic::p50;
    (median ? shape.p50 : shape.p90) = speedup(*ratio);
    (median ? shape.log_p50 : shape.log_p90) = std::move(*ratio);
  }
  shape.a = summarize(first, a);
  shape.b = summarize(second, b);
  const Side &side_a = first.sides[static_cast<std::size_t>(a)],
             &side_b = second.sides[static_cast<std::size_t>(b)];
  shape.a_variant = side_a.variant;
  shape.b_variant = side_b.variant;
  shape.a_errors = side_a.errors;
  shape.b_errors = side_b.errors;
  shape.outputs = digests_in_words(side_a.output_sha256, side_b.output_sha256);
  return shape;
}

/// What an object of JSON holds under a key, as text; empty when it holds none.
std::string text_at(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

void read_green_of_run(const json& document, Recording& recording) {
  const auto rows = document.find("rows");
  if (rows == document.end() || !rows->is_array()) return;
  for (const json& row : *rows) {
    if (!row.is_object()) continue;
    const auto known = read_correctness(row);
    if (!known || !known->verdict) continue;
    recording.correctness[text_at(row, "variant")][text_at(row, "problem")] = *known;
  }
}

void read_green_of_gate(const json& document, Recording& recording) {
  const auto list = document.find("green");
  const auto options = document.find("options");
  if (list == document.end() || !list->is_array() || options == document.end() ||
      !options->is_object())
    return;
  for (const json& shape : *list) {
    if (!shape.is_object()) continue;
    for (const char* side : {"baseline", "candidate"}) {
      const auto result = shape.find(side);
      if (result == shape.end() || !result->is_object()) continue;
      const auto red = result->find("first_red");
      const bool green = red == result->end() || red->is_null();
      recording.correctness[text_at(*options, side)][text_at(shape, "shape")] =
          green ? Correctness{Verdict::green, {}}
                : Correctness{Verdict::red, text_at(*red, "reason")};
    }
  }
}

void read_missing(const json& document, Recording& recording) {
  const auto missing = document.find("missing");
  if (missing == document.end() || !missing->is_object()) return;
  for (const auto& [engine, why] : missing->items()) {
    if (why.is_string()) recording.missing[engine] = why.get<std::string>();
  }
}

void read_notes(const json& document, Recording& recording) {
  const auto notes = document.find("notes");
  if (notes == document.end() || !notes->is_array()) return;
  for (const json& note : *notes) {
    if (note.is_string()) recording.notes.push_back(note.get<std::string>());
  }
}

}  // namespace

OutputDifference difference(DType dtype, std::span<const std::byte> a,
                            std::span<const std::byte> b) {
  switch (dtype) {
    case DType::f16:
      return difference_of<std::uint16_t>(a, b, 0x7c00);
    case DType::bf16:
      return difference_of<std::uint16_t>(a, b, 0x7f80);
    default:
      return difference_of<std::uint32_t>(a, b, 0x7f800000);
  }
}

std::string describe(const OutputDifference& d) {
  if (d.identical()) return "bit for bit";
  std::string text;
  if (d.differing != 0) {
    text = fmt::format("{} of {} elements differ, by at most {} ulp (99% by at most {})",
                       d.differing, d.elements, d.max_ulp, d.p99_ulp);
  }
  if (d.nan_mismatch != 0) {
    text += fmt::format("{}{} are NaN on one side alone", text.empty() ? "" : "; ", d.nan_mismatch);
  }
  return text;
}

Correctness Recording::correctness_of(const std::string& side, const Samples& shape) const {
  if (const auto found = correctness.find(side); found != correctness.end())
    if (const auto known = found->second.find(shape.name); known != found->second.end())
      return known->second;
  const int index = shape.side(side);
  return index < 0 ? Correctness() : shape.sides[static_cast<std::size_t>(index)].correctness;
}

std::vector<std::string> ways_of(const Recording& recording) {
  std::vector<std::string> ways;
  for (const Samples& shape : recording.shapes)
    if (std::find(ways.begin(), ways.end(), shape.way) == ways.end()) ways.push_back(shape.way);
  return ways;
}

std::optional<Problem> problem_of_recorded(const std::string& text) {
  if (const auto problem = problem_of_text(text)) return *problem;
  std::istringstream words(text);
  for (std::string word; words >> word;)
    if (const auto dtype = parse_dtype(word)) {
      Problem problem;
      problem.dtype = *dtype;
      problem.out_dtype = *dtype == DType::e4m3 ? DType::f16 : *dtype;
      return problem;
    }
  return std::nullopt;
}

void judge_errors(Recording& recording, const Policy& policy) {
  for (Samples& shape : recording.shapes) {
    const auto problem = problem_of_recorded(shape.problem);
    if (!problem) continue;
    for (Side& side : shape.sides) {
      if (side.correctness.red()) continue;
      Correctness judged;
      for (const auto& [metric, error] : side.errors) {
        const MetricLimit* const limit = policy.limit(metric, *problem);
        if (limit == nullptr || judged.red()) continue;
        judged.verdict = Verdict::green;
        if (!(error <= limit->cap))
          judged = {Verdict::red,
                    fmt::format("{} {:.3g} is above {:.3g}", metric, error, limit->cap)};
      }
      if (judged.verdict) side.correctness = judged;
    }
  }
}

Status keep_way(Recording& recording, const std::string& way) {
  const auto shown = [](const std::string& name) { return name.empty() ? "(unnamed)" : name; };
  std::vector<std::string> names, ways = ways_of(recording);
  for (const std::string& name : ways) names.push_back(shown(name));
  if (!way.empty() && std::find(ways.begin(), ways.end(), way) == ways.end())
    return {StatusCode::invalid_argument,
            fmt::format("{}: nothing in it was timed {}; its ways: {}", recording.source, way,
                        fmt::join(names, ", "))};
  const std::string kept = way.empty() ? ways.front() : way;
  std::erase_if(recording.shapes, [&](const Samples& shape) { return shape.way != kept; });
  if (way.empty() && ways.size() > 1) {
    names.erase(names.begin());
    recording.notes.push_back(fmt::format("{} alone; also timed {}: see them with --way",
                                          shown(kept), fmt::join(names, ", ")));
  }
  return {};
}

Result<Recording> read_recording(const fs::path& path) {
  fs::path file = path;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    file = fs::exists(path / "run.json", error) ? path / "run.json" : path / "gate.json";
    if (!fs::exists(file, error)) {
      return Status(StatusCode::invalid_argument,
                    fmt::format("{}: holds neither run.json nor gate.json", path.string()));
    }
  } else if (!fs::exists(path, error)) {
    return Status(StatusCode::invalid_argument, fmt::format("{}: no such file", path.string()));
  }
  auto document = read_record(file);
  if (!document) return document.status();

  Recording recording;
  recording.source = file.string();
  if (document->is_object() && document->contains("device")) {
    const json& device = (*document)["device"];
    for (const char* threads : {"multiprocessors", "threads_or_multiprocessors"})
      if (device.is_object() && device.contains(threads) && device.contains("isa") &&
          device["isa"].is_string() && device[threads].is_number())
        recording.setting =
            fmt::format("{}, {} threads", plain(device["isa"]), plain(device[threads]));
  }
  const std::string schema = document->is_object() ? text_at(*document, "schema") : std::string();
  const json* samples = &*document;
  if (schema == kRunSchema || schema == kGateSchema) {
    const auto found = document->find("samples");
    if (found == document->end()) {
      return Status(
          StatusCode::invalid_argument,
          fmt::format("{}: holds no samples; it ended before anything was timed", file.string()));
    }
    samples = &*found;
    if (schema == kGateSchema) {
      read_green_of_gate(*document, recording);
    } else {
      read_green_of_run(*document, recording);
    }
  } else if (schema == kSamplesSchema) {
    read_notes(*document, recording);
    read_missing(*document, recording);
  } else {
    return Status(
        StatusCode::invalid_argument,
        fmt::format("{}: schema {}; compare reads greenfast.run/1, {} and {}", file.string(),
                    schema.empty() ? "is missing" : fmt::format("\"{}\"", schema), kGateSchema,
                    kSamplesSchema));
  }
  auto shapes = samples_from_json(*samples);
  if (!shapes) {
    return Status(shapes.status().code(),
                  fmt::format("{}: {}", file.string(), shapes.status().message()));
  }
  recording.shapes = std::move(*shapes);
  if (recording.shapes.empty()) {
    return Status(StatusCode::invalid_argument, fmt::format("{}: holds no samples", file.string()));
  }
  return recording;
}

Result<Comparison> compare_sides(const Recording& recording, const std::string& a,
                                 const std::string& b) {
  for (const std::string& id : {a, b}) {
    if (!has_side(recording, id)) return no_such_side(recording, id);
  }
  Comparison out;
  out.a = a;
  out.b = b;
  const Samples& front = recording.shapes.front();
  out.device = front.device_name;
  out.cache = name_of(front.cache);
  out.way = front.way;
  out.neighbour = front.neighbour;
  out.notes = recording.notes;
  for (const Samples& samples : recording.shapes) {
    const int side_a = samples.side(a), side_b = samples.side(b);
    auto skipped = without_samples(samples, a);
    if (auto other = without_samples(samples, b)) skipped = std::move(other);
    if (!skipped) skipped = without_work(samples.name, read_problem(samples));
    if (skipped) {
      out.skipped.push_back(std::move(*skipped));
      continue;
    }
    auto shape = shape_of(samples, side_a, samples, side_b, true);
    if (!shape) {
      return Status(shape.status().code(),
                    fmt::format("{}: {}", recording.source, shape.status().message()));
    }
    shape->a_correct = recording.correctness_of(a, samples);
    shape->b_correct = recording.correctness_of(b, samples);
    out.shapes.push_back(std::move(*shape));
  }
  overall(out);
  std::vector<int> codes;
  for (const ShapeComparison& shape : out.shapes) {
    codes.push_back(code_of(shape));
  }
  out.exit_code = worst_of(codes);
  return out;
}

Result<Comparison> compare_recordings(const Recording& first, const std::string& a,
                                      const Recording& second, const std::string& b) {
  if (!has_side(first, a)) return no_such_side(first, a);
  if (!has_side(second, b)) return no_such_side(second, b);
  const auto refuse = [&](const std::string& what) {
    return Status(StatusCode::invalid_argument, fmt::format("{} and {} cannot be compared: {}",
                                                            first.source, second.source, what));
  };
  Comparison out;
  const auto label = [&](const std::string& id, const Recording& of) {
    return a == b ? fmt::format("{} of {}", id, of.source) : id;
  };
  out.a = label(a, first);
  out.b = label(b, second);
  out.paired = false;
  const Samples& front = first.shapes.front();
  out.device = front.device_name;
  out.cache = name_of(front.cache);
  out.way = front.way;
  out.neighbour = front.neighbour;
  out.notes.push_back(
      "two runs, not interleaved: the interval holds only if the machine did not change between "
      "them; compare the variants live for a decision");
  if (!first.setting.empty() && !second.setting.empty() && first.setting != second.setting)
    out.notes.push_back(fmt::format("different settings: {} in {}, {} in {}", first.setting,
                                    first.source, second.setting, second.source));
  for (const Samples& x : first.shapes) {
    const auto match = std::find_if(second.shapes.begin(), second.shapes.end(),
                                    [&](const Samples& y) { return y.name == x.name; });
    if (match == second.shapes.end()) {
      out.skipped.push_back({x.name, "", SkipReason::other_recording, first.source});
      continue;
    }
    const Samples& y = *match;
    if (x.device != y.device || x.device_name != y.device_name) {
      return refuse(fmt::format("one is of {} ({}), the other of {} ({})", x.device_name,
                                name_of(x.device), y.device_name, name_of(y.device)));
    }
    if (x.problem != y.problem) {
      return refuse(
          fmt::format("shape {} is {} in one, {} in the other", x.name, x.problem, y.problem));
    }
    if (x.cache != y.cache) {
      return refuse(fmt::format("shape {} is {} in one, {} in the other", x.name, name_of(x.cache),
                                name_of(y.cache)));
    }
    if (x.neighbour != y.neighbour) {
      const auto words = [](const Samples& of) {
        return of.neighbour.empty() ? std::string("back to back") : "behind " + of.neighbour;
      };
      return refuse(
          fmt::format("shape {} was timed {} in one, {} in the other", x.name, words(x), words(y)));
    }
    const int side_a = x.side(a), side_b = y.side(b);
    auto skipped = without_samples(x, a);
    if (!skipped) skipped = without_samples(y, b);
    if (!skipped) skipped = without_work(x.name, read_problem(x));
    if (skipped) {
      out.skipped.push_back(std::move(*skipped));
      continue;
    }
    auto shape = shape_of(x, side_a, y, side_b, false);
    if (!shape) return refuse(shape.status().message());
    if (std::abs(shape->a.other_work - shape->b.other_work) > 0.05)
      out.notes.push_back(
          fmt::format("{}: other work took {:.0f}% of the cores in {} and {:.0f}% in {}; the ratio "
                      "may be off by as much",
                      x.name, 100 * shape->a.other_work, first.source, 100 * shape->b.other_work,
                      second.source));
    shape->a_correct = first.correctness_of(a, x);
    shape->b_correct = second.correctness_of(b, y);
    out.shapes.push_back(std::move(*shape));
  }
  for (const Samples& y : second.shapes) {
    const bool known = std::any_of(first.shapes.begin(), first.shapes.end(),
                                   [&](const Samples& x) { return x.name == y.name; });
    if (!known) out.skipped.push_back({y.name, "", SkipReason::other_recording, second.source});
  }
  if (out.shapes.empty()) return refuse("they have no shape in common");
  overall(out);
  std::vector<int> codes;
  for (const ShapeComparison& shape : out.shapes) {
    codes.push_back(code_of(shape));
  }
  out.exit_code = worst_of(codes);
  return out;
}

Result<Comparison> compare_live(Device& device, Subject& a, Subject& b,
                                const CompareOptions& options) {
  Comparison out;
  out.a = a.id();
  out.b = b.id() == a.id() ? b.id() + " (again)" : b.id();
  out.device = device.facts().name;
  out.cache = name_of(options.timing.mode);
  std::vector<int> codes;
  const std::size_t total = 2 * options.problems.size();
  std::size_t done = 0;
  for (const NamedProblem& problem : options.problems) {
    std::optional<SkippedShape> refused;
    for (Subject* subject : {&a, &b}) {
      if (const auto why = subject->refusal(problem.problem, device.facts()))
        refused = SkippedShape{problem.name, subject->id(), SkipReason::refused, *why};
    }
    if (!refused) refused = without_work(problem.name, problem.problem);
    if (refused) {
      out.skipped.push_back(std::move(*refused));
      done += 2;
      continue;
    }

    if (options.step) options.step(done++, total, fmt::format("GREEN {}", problem.name));
    Correctness correct[2];
    bool red = false;
    Limits limits;
    for (const Case& c : make_cases({problem}, options.policy, options.seeds)) {
      auto data = prepare_case(c, options.policy);
      if (!data) return data.status();
      if (c.distribution == Distribution::normal) keep_larger(limits, data->limits);
      for (int side = 0; side < 2; ++side) {
        if (side == 1 && a.id() == b.id()) continue;
        if (correct[side].verdict) continue;
        const CaseResult result = validate(side == 0 ? a : b, device, *data, options.policy);
        if (result.verdict == Verdict::green) continue;
        // A kernel for one shape may refuse the problems that the ends of the range bring.
        if (result.verdict == Verdict::skipped && has_own_problem(c.distribution)) continue;
        correct[side] = {result.verdict, fmt::format("{} seed {}: {}", name_of(c.distribution),
                                                     c.seed, result.reason)};
        codes.push_back(correct[side].red() ? exit_code_of(result.fault)
                                            : static_cast<int>(kDefer));
        red = red || correct[side].red();
      }
    }
    for (Correctness& known : correct)
      if (!known.verdict) known.verdict = Verdict::green;
    if (a.id() == b.id()) correct[1] = correct[0];

    if (options.step) options.step(done++, total, fmt::format("FAST {}", problem.name));
    Case first;
    first.name = problem.name;
    first.problem = problem.problem;
    first.seed = options.seeds.front();
    auto ring = Ring::make(device, first);
    if (!ring) return ring.status();
    // A RED side is timed all the same, so that the table shows what its wrong answer costs, and is
    // not judged again.
    const Judge judge = red ? Judge() : timed_judge(options.policy, limits);
    const std::vector<Timed> timed = {{.subject = &a, .label = out.a, .judge = judge},
                                      {.subject = &b, .label = out.b, .judge = judge}};
    auto measured = measure(device, **ring, timed, options.timing);
    if (!measured) return measured.status();
    out.neighbour = measured->samples.neighbour;
    bool failed = false;
    for (std::size_t side = 0; side < 2; ++side) {
      const SideCheck& check = measured->checks[side];
      if (!check.noise.empty()) {
        failed = true;
        codes.push_back(kDefer);
        out.skipped.push_back(
            {problem.name, measured->samples.sides[side].id, SkipReason::noise, check.noise});
        continue;
      }
      if (check.failure.empty() && !check.impossible) continue;
      if (check.impossible) {
        out.notes.push_back(fmt::format("{}: {} is IMPOSSIBLE, below {:.4g} us", problem.name,
                                        measured->samples.sides[side].id,
                                        1e6 * check.floor_seconds));
        codes.push_back(kIntegrity);
        continue;
      }
      failed = true;
      codes.push_back(exit_code_of(check.fault));
      out.skipped.push_back(
          {problem.name, measured->samples.sides[side].id, SkipReason::failed, check.failure});
    }
    if (!failed) {
      auto shape = shape_of(measured->samples, 0, measured->samples, 1, true);
      if (!shape) return shape.status();
      shape->a_correct = correct[0];
      shape->b_correct = correct[1];
      shape->a_impossible = measured->checks[0].impossible;
      shape->b_impossible = measured->checks[1].impossible;
      const auto bytes = static_cast<std::size_t>((*ring)->operands().front().bytes);  // of O
      shape->outputs = describe(difference(problem.problem.out_dtype,
                                           std::span(measured->checks[0].output).first(bytes),
                                           std::span(measured->checks[1].output).first(bytes)));
      if (measured->peak.flops > 0) {
        shape->a_percent_of_peak =
            100 * measured->samples.flops / shape->a.p50 / measured->peak.flops;
        shape->b_percent_of_peak =
            100 * measured->samples.flops / shape->b.p50 / measured->peak.flops;
      }
      out.shapes.push_back(std::move(*shape));
      if (!red) codes.push_back(kPassed);
    }
    out.samples.push_back(std::move(measured->samples));
  }
  overall(out);
  out.exit_code = worst_of(codes);
  return out;
}

}  // namespace greenfast::workbench
