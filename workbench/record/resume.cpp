#include "workbench/record/resume.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "workbench/base/exit_code.hpp"
#include "workbench/base/json.hpp"
#include "workbench/base/schemas.hpp"
#include "workbench/record/code_json.hpp"
#include "workbench/subjects/plugin/plugins.hpp"

namespace greenfast::workbench {
namespace {

using nlohmann::json;

/// What JSON cannot hold was written as null.
double number_of(const json& value) { return value.is_null() ? std::nan("") : value.get<double>(); }

/// Of a command line, what decides the results.
std::vector<std::string> asked(const std::vector<std::string>& argv) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < argv.size(); ++i) {
    if (argv[i] == "--resume")
      ++i;
    else if (!argv[i].starts_with("--resume=") && argv[i] != "--json" && argv[i] != "--quiet")
      out.push_back(argv[i]);
  }
  return out;
}

/// What a table shows of a row.
RunRow row_of(const json& row) {
  RunRow out;
  out.variant = row.at("variant");
  out.problem = row.at("problem");
  const std::string verdict = row.at("verdict");
  for (const Verdict v : {Verdict::green, Verdict::red, Verdict::skipped})
    if (name_of(v) == verdict) out.verdict = v;
  if (row.at("reason").is_string()) out.reason = row["reason"];
  out.exit_code = row.at("exit_code");
  out.cases = row.at("cases");
  out.rows_sampled = row.at("cases_with_sampled_rows");
  if (const json& worst = row.at("worst"); !worst.is_null()) {
    out.worst.max_err = number_of(worst.at("max_err"));
    out.worst.mean_err = number_of(worst.at("mean_err"));
    out.worst.percent_bad = number_of(worst.at("percent_bad"));
    out.worst.rel_fro = number_of(worst.at("rel_fro"));
  }
  if (const json& time = row.at("time"); !time.is_null()) {
    Summary summary;
    summary.p50 = time.at("p50_seconds");
    summary.p90 = time.at("p90_seconds");
    summary.std = number_of(time.at("std_seconds"));
    summary.other_work = time.at("other_work");
    out.time = summary;
    out.flops = time.at("flops");
    out.percent_of_peak = time.at("percent_of_peak");
    out.times_fastest = time.at("times_fastest");
  }
  return out;
}

/// The elements of a list whose member `key` names a problem that was ended.
json ended(const json& list, const char* key, const std::set<std::string>& finished) {
  json out = json::array();
  for (const json& item : list)
    if (finished.contains(item.at(key).get<std::string>())) out.push_back(item);
  return out;
}

EarlierRun parse(const json& record) {
  EarlierRun out;
  for (const json& name : record.at("resume").at("finished")) out.finished.insert(name);
  out.record = record;
  for (const char* list : {"rows", "cases", "plans", "peaks"})
    out.record[list] = ended(record.at(list), "problem", out.finished);
  for (const json& row : out.record["rows"]) out.result.rows.push_back(row_of(row));
  for (const json& peak : out.record["peaks"]) {
    Peak& read = out.result.peaks.emplace_back();
    read.flops = number_of(peak.at("flops"));
    read.bytes_per_second = number_of(peak.at("bytes_per_second"));
    read.method = peak.at("method");
  }
  auto samples = samples_from_json(record.at("samples"));
  if (!samples) throw std::runtime_error(samples.status().message());
  for (Samples& shape : *samples)
    if (out.finished.contains(shape.name)) out.result.samples.push_back(std::move(shape));
  if (out.result.samples.size() != out.result.peaks.size())
    throw std::runtime_error("has not one peak for each timed problem");
  return out;
}

}  // namespace

Result<EarlierRun> earlier_run(const std::filesystem::path& file, const RecordHead& head,
                               const RunPlan& plan) {
  const auto refuse = [&](const std::string& why) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("--resume: {}: {}", file.string(), why));
  };
  const auto record = read_record(file);
  if (!record)
    return Status(StatusCode::invalid_argument,
                  fmt::format("--resume: {}", record.status().message()));
  try {
    if (record->at("schema") != kRunSchema)
      return refuse(fmt::format("schema {}, not {}", record->at("schema").dump(), kRunSchema));
    if (record->at("status") != "interrupted" || !record->contains("resume"))
      return refuse("holds no interrupted run; leave --resume");
    const auto argv = record->at("argv").get<std::vector<std::string>>();
    if (asked(argv) != asked(head.argv))
      return refuse(fmt::format("was begun as greenfast {}; repeat that with --resume",
                                fmt::join(argv, " ")));
    const json now = clean_record(head_json(head, kRunSchema));
    const auto differs = [&](std::string_view what) {
      return refuse(
          fmt::format("was begun with another {}, and results of two do not belong into "
                      "one record; begin anew, without --resume",
                      what));
    };
    if (record->at("build") != now.at("build")) return differs("build of greenfast");
    if (record->at("resume").at("plugins_sha256") != plugins_digest()) return differs("plugin");
    if (record->at("device").at("name") != clean_record(json(plan.device->facts().name)))
      return differs("device");
    if (record->at("policy").at("sha256") != plan.policy.sha256) return differs("policy");
    return parse(*record);
  } catch (const std::exception& error) {
    return refuse(fmt::format("is no record of an interrupted run: {}", error.what()));
  }
}

RunResult joined(const EarlierRun& earlier, const RunResult& result) {
  RunResult whole = result;
  const auto before = [](auto& now, const auto& first) {
    now.insert(now.begin(), first.begin(), first.end());
  };
  before(whole.rows, earlier.result.rows);
  before(whole.peaks, earlier.result.peaks);
  before(whole.samples, earlier.result.samples);
  before(whole.finished,
         std::vector<std::string>(earlier.finished.begin(), earlier.finished.end()));
  if (!whole.interrupted && whole.failures.empty()) {
    std::vector<int> codes;
    for (const RunRow& row : whole.rows) codes.push_back(row.exit_code);
    whole.exit_code = worst_of(codes);
  }
  return whole;
}

json joined(const EarlierRun& earlier, json record, const RunResult& whole) {
  for (const char* list : {"rows", "cases", "plans", "peaks"}) {
    json all = earlier.record.at(list);
    for (json& item : record[list]) all.push_back(std::move(item));
    record[list] = std::move(all);
  }
  json code = earlier.record.value("code", json::array());
  for (json& kernel : record["code"])
    if (std::none_of(code.begin(), code.end(),
                     [&](const json& known) { return known.at("kernel") == kernel.at("kernel"); }))
      code.push_back(std::move(kernel));
  record["code"] = std::move(code);
  record["samples"] = to_json(whole.samples);
  record["argv"] = earlier.record.at("argv");
  record["exit_code"] = whole.exit_code;
  if (record.contains("resume")) record["resume"]["finished"] = whole.finished;
  json parts = earlier.record.value("earlier", json::array());
  json part = json::object();
  for (const char* what : {"run_id", "utc", "seconds", "host"})
    part[what] = earlier.record.at(what);
  parts.push_back(std::move(part));
  record["earlier"] = std::move(parts);
  return record;
}

}  // namespace greenfast::workbench
