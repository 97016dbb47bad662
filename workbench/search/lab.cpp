#include "workbench/search/lab.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>

#include "workbench/base/atomic_file.hpp"
#include "workbench/base/files.hpp"
#include "workbench/base/host.hpp"
#include "workbench/base/isolate.hpp"
#include "workbench/base/json.hpp"
#include "workbench/base/sha256.hpp"
#include "workbench/base/stdout_aside.hpp"
#include "workbench/device/device.hpp"
#include "workbench/fast/measure.hpp"
#include "workbench/fast/statistics.hpp"
#include "workbench/fast/timed_judge.hpp"
#include "workbench/green/policy.hpp"
#include "workbench/green/validate.hpp"
#include "workbench/record/facts.hpp"
#include "workbench/resources/device_code.hpp"
#include "workbench/resources/resources.hpp"
#include "workbench/subjects/plugin/plugins.hpp"

namespace greenfast::workbench {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kPrefix = "search:";
constexpr const char* kDeviceStage = "device";  // of no candidate

/// Of a candidate's result; none where it has no fault, or it was not asked what kind.
Fault fault_of(const json& result) {
  return parse_fault(result.value("fault", "none")).value_or(Fault::none);
}

LabError reference_failed(const LabCandidate& reference, const json& result) {
  return LabError({StatusCode::invalid_argument,
                   fmt::format("the hand-set configuration {} fails: {}", reference.key,
                               result.value("reason", "no reason given"))},
                  fault_of(result));
}

/// Contestants timed in the same blocks beside the reference.
constexpr std::size_t kAtOnce = 8;
/// Seeds of the finals and of the last measurement, away from those that candidates were chosen by.
constexpr std::uint64_t kFinalSeed = 1000, kFreshSeed = 2000;
constexpr int kFinalFidelity = 3, kFreshFidelity = 4;

std::string entry(const std::string& key, const std::string& stage) { return stage + " " + key; }

Status append_line(const fs::path& path, const std::string& line) {
  const int file = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  bool good = file >= 0;
  // One write, then to the disk: a kill leaves whole lines, and at most one torn at the end.
  good = good && write(file, line.data(), line.size()) == static_cast<ssize_t>(line.size()) &&
         fsync(file) == 0;
  const int error = errno;
  if (file >= 0) close(file);
  if (good) return {};
  return {StatusCode::internal,
          fmt::format("{}: cannot be written: {}", path.string(), std::strerror(error))};
}

void digest_into(const fs::path& file, const std::vector<fs::path>& folders,
                 std::set<std::string>& seen, Sha256& hash) {
  std::error_code error;
  const fs::path real = fs::weakly_canonical(file, error);
  if (!seen.insert(real.string()).second) return;
  const auto text = read_file(real);
  if (!text) return;
  hash.update(text->data(), text->size());
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    const auto hashmark = line.find_first_not_of(" \t");
    if (hashmark == std::string::npos || line[hashmark] != '#') continue;
    const auto word = line.find("include", hashmark), open = line.find('"', hashmark);
    if (word == std::string::npos || open == std::string::npos || open < word) continue;
    const std::string name = line.substr(open + 1, line.find('"', open + 1) - open - 1);
    std::vector<fs::path> places{real.parent_path()};
    places.insert(places.end(), folders.begin(), folders.end());
    for (const fs::path& place : places) {
      if (!fs::is_regular_file(place / name, error)) continue;
      digest_into(place / name, folders, seen, hash);
      break;
    }
  }
}

}  // namespace

std::string source_digest(const fs::path& source, const std::vector<fs::path>& folders) {
  Sha256 hash;
  std::set<std::string> seen;
  digest_into(source, folders, seen, hash);
  return hash.hex();
}

/// What a child works with: the device and a subject for each candidate; null where its plugin
/// could not be loaded.
struct Lab::Loaded {
  Lab& lab;
  Activity& activity;
  Device& device;
  const Policy& policy;
  std::unique_ptr<Subject> reference;
  std::vector<std::unique_ptr<Subject>> subjects;
  std::vector<LabCandidate> candidates;
};

Lab::Lab(LabOptions options) : options_(std::move(options)) {}
Lab::~Lab() { unload_plugins(kPrefix); }

Result<json> Lab::read_identity(const fs::path& cache) {
  const auto text = read_file(cache);
  if (!text) return text.status();
  const json head = json::parse(text->substr(0, text->find('\n')), nullptr, false);
  if (!head.is_object() || !head.contains("schema") || !head.contains("identity"))
    return Status(StatusCode::invalid_argument,
                  fmt::format("{}: is no cache of a search", cache.string()));
  return head;
}

Result<std::unique_ptr<Lab>> Lab::open(LabOptions options) {
  std::unique_ptr<Lab> lab(new Lab(std::move(options)));
  LabOptions& o = lab->options_;
  std::error_code error;
  if (!fs::exists(o.cache, error)) {
    if (o.simulate)
      return Status(StatusCode::invalid_argument,
                    fmt::format("--simulate {}: no such file", o.cache.string()));
    fs::create_directories(fs::absolute(o.cache).parent_path(), error);
    if (Status status = append_line(
            o.cache,
            json_text({{"schema", "greenfast.search/1"}, {"identity", o.identity}}) + "\n");
        !status)
      return status;
  }
  const auto head = read_identity(o.cache);
  if (!head) return head.status();
  if (head->value("schema", "") != "greenfast.search/1")
    return Status(StatusCode::invalid_argument,
                  fmt::format("{}: has schema {}, this version reads greenfast.search/1",
                              o.cache.string(), (*head)["schema"].dump()));
  if (!o.simulate) {
    const json& kept = (*head)["identity"];
    for (const auto& [name, value] : o.identity.items())
      if (!kept.contains(name) || kept[name] != value)
        return Status(
            StatusCode::invalid_argument,
            fmt::format("{}: holds results for another {} ({}, now {}); give another --cache",
                        o.cache.string(), name, kept.contains(name) ? kept[name].dump() : "none",
                        value.dump()));
    // What a kill tore off the last line would spoil the next.
    if (const auto text = read_file(o.cache); text && !text->empty() && text->back() != '\n')
      fs::resize_file(o.cache, text->rfind('\n') + 1, error);
  }
  lab->identity_ = (*head)["identity"];
  lab->reload();
  return lab;
}

json Lab::origin() const {
  const json* measured = find("", kDeviceStage);
  return {{"identity", identity_}, {"measured", measured != nullptr ? *measured : json()}};
}

/// All times of a cache are of one device; the first child that opens one writes down which.
void Lab::remember(Device& device) {
  const json now = device_json(device.facts());
  if (const json* kept = find("", kDeviceStage)) {
    if ((*kept)["device"]["name"] == now["name"]) return;
    throw std::runtime_error(
        fmt::format("{}: holds results of {}, this is {}; give another --cache",
                    options_.cache.string(), plain((*kept)["device"]["name"]), plain(now["name"])));
  }
  add("", kDeviceStage,
      {{"ok", true},
       {"utc", utc_time()},
       {"device", now},
       {"host", host_json(host_facts())},
       {"build", build_json()}});
}

void Lab::reload() {
  const auto text = read_file(options_.cache);
  if (!text) throw LabError(text.status());
  while (read_ < text->size()) {
    const auto end = text->find('\n', read_);
    if (end == std::string::npos) break;
    const json line = json::parse(text->begin() + static_cast<std::ptrdiff_t>(read_),
                                  text->begin() + static_cast<std::ptrdiff_t>(end), nullptr, false);
    read_ = end + 1;
    if (line.is_object() && line.contains("key") && line.contains("stage") &&
        line.contains("result") && line["result"].value("ok", json()).is_boolean())
      results_[entry(line["key"], line["stage"])] = line["result"];
  }
}

const json* Lab::find(const std::string& key, const std::string& stage) const {
  const auto it = results_.find(entry(key, stage));
  return it == results_.end() ? nullptr : &it->second;
}

const json& Lab::need(const std::string& key, const std::string& stage) const {
  const json* result = find(key, stage);
  if (result != nullptr) return *result;
  throw LabError({options_.simulate ? StatusCode::invalid_argument : StatusCode::internal,
                  fmt::format("{}: holds no '{}' of {}", options_.cache.string(), stage, key)});
}

void Lab::add(const std::string& key, const std::string& stage, json result) {
  if (Status status = append_line(
          options_.cache, json_text({{"key", key}, {"stage", stage}, {"result", result}}) + "\n");
      !status)
    throw LabError(status);
  results_[entry(key, stage)] = std::move(result);
}

void Lab::watch() {
  if (options_.stop && options_.stop()) throw LabStopped{};
}

void Lab::compile(const std::vector<LabCandidate>& candidates) {
  std::vector<LabCandidate> todo;
  std::set<std::string> seen;
  for (const LabCandidate& c : candidates) {
    if (!seen.insert(c.key).second) continue;
    const json* known = find(c.key, "compile");
    // Its library may be gone while the cache stayed.
    if (known != nullptr && (options_.simulate || !known->at("ok").get<bool>())) continue;
    if (options_.simulate) need(c.key, "compile");
    std::error_code error;
    if (known == nullptr ||
        !fs::exists(options_.cache.parent_path() / known->value("library", ""), error))
      todo.push_back(c);
  }
  if (todo.empty()) return;
  const fs::path folder = fs::absolute(options_.cache).parent_path();
  // Kernels of the library may have rows there that allow them some.
  auto read = parse_resource_limits("policies/resources.toml", builtin_resource_limits());
  if (!read) throw LabError(read.status());
  const ResourceLimits limits = std::move(*read);
  std::mutex mutex;
  std::atomic<std::size_t> next{0}, done{0};
  std::vector<json> results(todo.size());
  const auto work = [&](std::size_t most) {
    for (std::size_t i, n = 0; n < most && (i = next++) < todo.size(); ++n) {
      if (options_.stop && options_.stop()) return;
      CompileOptions how = options_.compile;
      how.defines.insert(how.defines.end(), todo[i].defines.begin(), todo[i].defines.end());
      how.stop = options_.stop;
      const auto compiled = compile_plugin(todo[i].source, folder, how);
      // What is cut off here is no candidate's fault, and is done again.
      if (options_.stop && options_.stop()) return;
      json result = {{"ok", compiled.ok()}};
      if (!compiled) {
        result["reason"] = compiled.status().message();
        // The machine's fault is no verdict.
        if (compiled.status().code() != StatusCode::invalid_argument) result["failed"] = true;
      } else {
        result["library"] = compiled->library.filename().string();
        result["compiler"] = compiled->version;
        if (const auto code = read_device_code(compiled->library);
            code.ok() && !code->kernels.empty()) {
          int registers = 0;
          std::int64_t stack = 0, allowed = 0, shared = 0;
          std::string digests;
          for (const KernelCode& kernel : code->kernels) {
            registers = std::max(registers, kernel.registers);
            stack = std::max(stack, kernel.stack);
            allowed = std::max(allowed, allowed_stack(kernel, limits));
            shared = std::max(shared, kernel.static_shared);
            digests += kernel.sha256;
          }
          result["registers"] = registers;
          result["stack_bytes"] = stack;
          result["static_shared_bytes"] = shared;
          result["code_sha256"] = sha256_hex(digests);
          if (stack > allowed) {
            result["ok"] = false;
            result["reason"] = fmt::format(
                "resources: {} bytes of local memory a thread{}", stack,
                allowed > 0 ? fmt::format("; policies/resources.toml allows {}", allowed) : "");
          }
        }
      }
      const std::lock_guard lock(mutex);
      results[i] = std::move(result);
      if (options_.step)
        options_.step(fmt::format("compiled {} of {}: {}", ++done, todo.size(), todo[i].key));
    }
  };
  std::vector<std::thread> threads;
  // The first alone: it unpacks the headers.
  if (options_.step) options_.step(fmt::format("compiling {}", todo.front().key));
  const std::size_t jobs =
      std::min<std::size_t>(static_cast<std::size_t>(std::max(1, options_.jobs)), todo.size());
  work(1);
  for (std::size_t j = 1; j < jobs; ++j) threads.emplace_back(work, todo.size());
  work(todo.size());
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < todo.size(); ++i) {
    if (results[i].is_null()) continue;
    if (results[i].contains("failed"))
      throw LabError({StatusCode::internal, results[i]["reason"].get<std::string>()});
    add(todo[i].key, "compile", results[i]);
  }
  watch();
}

void Lab::child(const std::string& stage, const LabCandidate* reference,
                const std::vector<LabCandidate>& candidates,
                const std::function<void(Loaded&)>& work) {
  auto policy = load_policy(options_.policy);
  if (!policy) throw LabError(policy.status());
  const fs::path folder = fs::absolute(options_.cache).parent_path();
  PluginOptions plugin_options;
  plugin_options.timeout_seconds = options_.timeout_seconds;
  plugin_options.memory_gib = options_.memory_gib;
  std::vector<LabCandidate> todo = candidates;
  while (!todo.empty()) {
    watch();
    // Looked into here, in processes of their own; called in the child.
    const auto load = [&](const LabCandidate& c) -> std::string {
      const std::string library = (folder / need(c.key, "compile")["library"]).string();
      std::vector<std::string> ids;
      const std::string prefix = fmt::format("{}{}:", kPrefix, sha256_hex(c.key).substr(0, 12));
      if (const auto failure = load_plugin(library, plugin_options, &ids, prefix)) {
        add(c.key, stage, {{"ok", false}, {"reason", failure->status.message()}});
        return "";
      }
      if (options_.kernel.empty()) return ids.front();
      for (const std::string& id : ids)
        if (id == prefix + options_.kernel) return id;
      add(c.key, stage,
          {{"ok", false}, {"reason", fmt::format("has no kernel {}", options_.kernel)}});
      return "";
    };
    std::vector<std::string> ids;
    std::vector<LabCandidate> loaded;
    std::string reference_id;
    if (reference != nullptr) {
      reference_id = load(*reference);
      if (reference_id.empty()) throw reference_failed(*reference, need(reference->key, stage));
    }
    for (const LabCandidate& c : todo)
      if (const std::string id = load(c); !id.empty()) {
        ids.push_back(id);
        loaded.push_back(c);
      }
    if (loaded.empty()) return;
    DeviceKind kind = DeviceKind::cpu;
    for (const PluginKernelRow& row : plugin_kernels())
      if (row.id == ids.front()) kind = row.device;
    ChildLimits limits;
    limits.stall_seconds = [&](const std::string&) { return 5 * options_.timeout_seconds; };
    limits.stop = options_.stop;
    const auto end = run_in_child(
        [&](Activity& activity) {
          const StdoutAside aside;  // a CUDA candidate prints in this process
          activity.set("opening the device");
          auto device = open_device(kind);
          if (!device) throw StatusError(device.status());
          remember(**device);
          Loaded all{*this, activity, **device, *policy, nullptr, {}, loaded};
          if (!reference_id.empty()) all.reference = make_plugin_subject(reference_id);
          for (const std::string& id : ids) all.subjects.push_back(make_plugin_subject(id));
          work(all);
        },
        limits,
        [&](const std::string& activity) {
          if (options_.step) options_.step(activity);
        });
    if (!end) throw LabError(end.status());
    reload();
    if (end->how == ChildEnd::How::finished) return;
    // What is cut off here is no candidate's fault, and is done again.
    if (end->how == ChildEnd::How::stopped) throw LabStopped{};
    // What the child threw is about the reference and the machine, never about a candidate.
    if (end->how == ChildEnd::How::failed) {
      if (const json* wrong = reference == nullptr ? nullptr : find(reference->key, stage))
        throw reference_failed(*reference, *wrong);
      if (end->code == StatusCode::no_device)
        throw LabError(
            {StatusCode::no_device,
             fmt::format("without a device only --compile-only is possible: {}", end->detail)});
      throw LabError({StatusCode::internal, end->detail});
    }
    if (reference != nullptr && end->subject == reference->key) {
      add(reference->key, stage,
          {{"ok", false},
           {"fault", name_of(Fault::launch)},
           {"reason", end->blame.empty() ? fmt::format("{}, while: {}", end->detail, end->activity)
                                         : end->blame}});
      throw reference_failed(*reference, need(reference->key, stage));
    }
    // Whoever was at work did it; the others go on without.
    std::vector<LabCandidate> rest;
    bool blamed = false;
    for (const LabCandidate& c : loaded) {
      if (find(c.key, stage) != nullptr) continue;
      const bool named = end->subject == c.key;
      if (named || loaded.size() == 1) {
        blamed = true;
        add(c.key, stage,
            {{"ok", false},
             {"fault", name_of(Fault::launch)},
             {"reason", end->blame.empty()
                            ? fmt::format("{}, while: {}", end->detail, end->activity)
                            : end->blame}});
      } else {
        rest.push_back(c);
      }
    }
    watch();
    if (!blamed && !rest.empty()) {
      if (rest.size() < 2)
        throw LabError(
            {StatusCode::internal, fmt::format("{}, while: {}", end->detail, end->activity)});
      // Several at once: each alone tells who it was.
      for (const LabCandidate& c : rest) child(stage, reference, {c}, work);
      return;
    }
    todo = std::move(rest);
  }
}

/// Lengths that end inside every tile, then the search's own: a barrier that is missing may show
/// only where there are many tiles (cuda.stage_c.stage2 without its first one: at long alone, H100).
std::vector<Case> Lab::adversarial_cases() const {
  const Problem& primary = options_.problems.front().problem;
  std::vector<Case> cases(1);
  Problem& ragged = cases[0].problem;
  cases[0].name = "ragged";
  ragged = make_problem(2, 2, 2, 97, 133, primary.head_dim, primary.dtype);
  ragged.out_dtype = primary.out_dtype;
  ragged.scales = primary.scales;
  ragged.mask = primary.mask;
  ragged.softcap = primary.softcap;
  ragged.accuracy = primary.accuracy;
  ragged.lse = primary.lse;
  for (const NamedProblem& of : options_.problems) {
    cases.emplace_back();
    cases.back().name = of.name;
    cases.back().problem = of.problem;
  }
  for (Case& test : cases) {
    test.distribution = Distribution::permutation;
    test.seed = options_.seed;
  }
  return cases;
}

std::vector<LabCandidate> Lab::qualify(const std::vector<LabCandidate>& candidates) {
  compile(candidates);
  std::vector<LabCandidate> built, todo, passed;
  std::set<std::string> codes, seen;
  for (const LabCandidate& c : candidates) {
    if (!seen.insert(c.key).second) continue;
    const json& compiled = need(c.key, "compile");
    if (!compiled["ok"].get<bool>()) continue;
    // The same machine code is the same candidate.
    const std::string code = compiled.value("code_sha256", "");
    if (!code.empty() && !codes.insert(code).second) continue;
    built.push_back(c);
    if (find(c.key, "case") == nullptr) todo.push_back(c);
  }
  if (!options_.simulate && !todo.empty())
    child("case", nullptr, todo, [this](Loaded& all) {
      std::map<std::string, CaseData> prepared;
      for (std::size_t i = 0; i < all.subjects.size(); ++i) {
        const LabCandidate& c = all.candidates[i];
        json told;
        for (const Case& test : adversarial_cases()) {
          if (all.subjects[i]->refusal(test.problem, all.device.facts())) continue;
          const std::string name = to_string(test);
          all.activity.set(fmt::format("{} {{{}}}", name, c.key), Actor::candidate, c.key);
          auto data = prepared.find(name);
          if (data == prepared.end()) {
            auto made = prepare_case(test, all.policy);
            if (!made) throw std::runtime_error(made.status().message());
            data = prepared.emplace(name, std::move(*made)).first;
          }
          const CaseResult result =
              validate(*all.subjects[i], all.device, data->second, all.policy);
          told = {{"ok", result.verdict == Verdict::green},
                  {"case", name},
                  {"fault", name_of(result.fault)},
                  {"reason", result.reason}};
          if (result.verdict != Verdict::green) break;
        }
        all.subjects[i]->pause();  // nothing of it runs while another is looked at
        if (told.is_null())
          told = {{"ok", false}, {"reason", "takes none of the search's problems"}};
        all.lab.add(c.key, "case", std::move(told));
      }
    });
  for (const LabCandidate& c : built) {
    const json& result = need(c.key, "case");
    if (result["ok"].get<bool>()) passed.push_back(c);
    if (options_.finished && !options_.simulate &&
        std::any_of(todo.begin(), todo.end(), [&](const auto& t) { return t.key == c.key; }))
      options_.finished(fmt::format("{}: {}", c.key,
                                    result["ok"].get<bool>() ? "right on the adversarial cases"
                                                             : result.value("reason", "failed")));
  }
  return passed;
}

void Lab::measure_beside(const std::string& stage, const LabCandidate& reference,
                         const std::vector<LabCandidate>& candidates, std::size_t at_once,
                         const std::vector<NamedProblem>& problems, int fidelity,
                         std::uint64_t seed) {
  std::vector<LabCandidate> todo;
  for (const LabCandidate& c : candidates)
    if (c.key != reference.key && find(c.key, stage) == nullptr) todo.push_back(c);
  // A crash or a library that did not load may have been the machine's doing: those are tried again.
  if (const json* kept = find(reference.key, stage); kept != nullptr && !todo.empty()) {
    const Fault fault = fault_of(*kept);
    if (fault == Fault::numerics || fault == Fault::integrity)
      throw reference_failed(reference, *kept);
    results_.erase(entry(reference.key, stage));
  }
  if (options_.simulate) return;
  for (std::size_t from = 0; from < todo.size(); from += at_once) {
    const std::vector<LabCandidate> some(
        todo.begin() + static_cast<std::ptrdiff_t>(from),
        todo.begin() + static_cast<std::ptrdiff_t>(std::min(todo.size(), from + at_once)));
    child(stage, &reference, some, [&](Loaded& all) {
      std::vector<json> shapes(all.subjects.size(), json::array());
      std::vector<std::string> failures(all.subjects.size());
      std::vector<Fault> faults(all.subjects.size(), Fault::none);
      for (const NamedProblem& problem : problems) {
        // Named when it is alone: of several nobody knows who it was.
        const std::string alone = all.candidates.size() == 1 ? all.candidates[0].key : "";
        const std::string what = fmt::format("timing {}: {}{}", stage, problem.name,
                                             alone.empty() ? "" : fmt::format(" {{{}}}", alone));
        all.activity.set(what, Actor::both, alone);
        Case first;
        first.name = problem.name;
        first.problem = problem.problem;
        first.seed = seed;
        auto ring = Ring::make(all.device, first);
        if (!ring) throw std::runtime_error(ring.status().message());
        const Judge judge = timed_judge(all.policy);
        std::vector<Timed> timed{{.subject = all.reference.get(), .label = {}, .judge = judge}};
        std::vector<std::size_t> who;
        for (std::size_t i = 0; i < all.subjects.size(); ++i) {
          if (const auto why = all.subjects[i]->refusal(problem.problem, all.device.facts())) {
            if (failures[i].empty()) failures[i] = fmt::format("{}: {}", problem.name, *why);
            continue;
          }
          if (!failures[i].empty()) continue;
          timed.push_back({.subject = all.subjects[i].get(), .label = {}, .judge = judge});
          who.push_back(i);
        }
        if (who.empty()) break;
        MeasureOptions how;
        how.iters = 12 << fidelity;
        how.min_blocks = 6 << fidelity;
        how.warmup = 3;
        how.seed = seed + 1;
        how.budget_seconds = 0.1 * static_cast<double>(timed.size()) * (1 << fidelity);
        how.mode = options_.hot ? CacheState::hot : CacheState::cold;
        std::string doing = what, at_work = alone;
        how.progress = [&](int blocks, double) {
          if (blocks % 4 == 0) doing = fmt::format("{}, block {}", what, blocks);
        };
        how.at_work = [&](int side) {
          if (side >= 0)
            at_work = side == 0 ? reference.key
                                : all.candidates[who[static_cast<std::size_t>(side) - 1]].key;
          all.activity.set(doing, Actor::both, side < 0 ? alone : at_work);
        };
        auto measured = measure(all.device, **ring, timed, how);
        if (!measured) {
          if (measured.status().code() != StatusCode::device_error)
            throw std::runtime_error(measured.status().message());
          // Somebody broke the device's context, whose calls are waited for before others come, and
          // this child cannot go on.
          all.activity.blame(at_work, measured.status().message());
          std::_Exit(1);
        }
        if (const SideCheck& check = measured->checks[0]; !check.failure.empty()) {
          all.lab.add(reference.key, stage,
                      {{"ok", false},
                       {"fault", name_of(check.fault)},
                       {"reason", fmt::format("{}: {}", problem.name, check.failure)}});
          throw std::runtime_error(check.failure);
        }
        for (std::size_t t = 1; t < timed.size(); ++t) {
          const std::size_t i = who[t - 1];
          const SideCheck& check = measured->checks[t];
          if (!check.failure.empty() || check.impossible) {
            faults[i] = check.impossible ? Fault::integrity : check.fault;
            failures[i] = fmt::format(
                "{}: {}", problem.name,
                check.impossible ? "IMPOSSIBLE: below the measured ceiling" : check.failure);
            continue;
          }
          const auto ratio =
              paired_log_ratio(measured->samples, 0, static_cast<int>(t), Statistic::p50);
          if (!ratio) {
            failures[i] = fmt::format("{}: {}", problem.name, ratio.status().message());
            continue;
          }
          const Summary summary =
              summarize(measured->samples, static_cast<int>(t), {.resamples = 200});
          shapes[i].push_back({{"shape", problem.name},
                               {"problem", to_string(problem.problem)},
                               {"speedup", interval_json(speedup(*ratio))},
                               {"p50_seconds", summary.p50},
                               {"samples", summary.n}});
        }
      }
      for (std::size_t i = 0; i < all.subjects.size(); ++i) {
        json result = {{"ok", failures[i].empty()}, {"shapes", shapes[i]}};
        if (!failures[i].empty()) result["reason"] = failures[i];
        if (faults[i] != Fault::none) result["fault"] = name_of(faults[i]);
        all.lab.add(all.candidates[i].key, stage, std::move(result));
      }
    });
  }
  if (!options_.finished) return;
  for (const LabCandidate& c : todo) {
    const json& result = need(c.key, stage);
    options_.finished(
        result["ok"].get<bool>()
            ? fmt::format("{}: {}, {:.3f}x", c.key, stage,
                          result["shapes"][0]["speedup"]["value"].get<double>())
            : fmt::format("{}: {}, {}", c.key, stage, result["reason"].get<std::string>()));
  }
}

std::vector<double> Lab::time(const LabCandidate& reference,
                              const std::vector<LabCandidate>& candidates, int fidelity) {
  const std::string stage = fmt::format("time{}", fidelity);
  std::vector<LabCandidate> with{reference};
  with.insert(with.end(), candidates.begin(), candidates.end());
  const std::vector<LabCandidate> passed = qualify(with);
  if (passed.empty() || passed.front().key != reference.key) {
    const json& compiled = need(reference.key, "compile");
    const json& why = compiled["ok"].get<bool>() ? need(reference.key, "case") : compiled;
    throw reference_failed(reference, why);
  }
  measure_beside(stage, reference, passed, kAtOnce, {options_.problems.front()}, fidelity,
                 options_.seed);
  std::vector<double> scores;
  for (const LabCandidate& c : candidates) {
    double score = 0;
    if (c.key == reference.key) {
      score = 1;
    } else if (std::any_of(passed.begin(), passed.end(),
                           [&](const LabCandidate& p) { return p.key == c.key; })) {
      const json& result = need(c.key, stage);
      if (result["ok"].get<bool>()) score = result["shapes"][0]["speedup"]["value"].get<double>();
    }
    scores.push_back(score);
  }
  return scores;
}

Lab::Final Lab::decide(const LabCandidate& reference, const std::vector<LabCandidate>& best) {
  // GREEN on every shape, in the order of their short timings, until there are enough.
  std::vector<LabCandidate> finalists;
  for (const LabCandidate& c : best) {
    if (static_cast<int>(finalists.size()) >= options_.finalists) break;
    if (c.key == reference.key) continue;
    if (find(c.key, "green") == nullptr && !options_.simulate)
      child("green", nullptr, {c}, [&](Loaded& all) {
        json result = {{"ok", true}};
        int cases = 0;
        const std::uint64_t seeds[] = {options_.seed, options_.seed + 1};
        for (const Case& test : make_cases(options_.problems, all.policy, seeds)) {
          all.activity.set(fmt::format("GREEN {} {{{}}}", to_string(test), c.key), Actor::candidate,
                           c.key);
          if (all.subjects[0]->refusal(test.problem, all.device.facts())) continue;
          const auto data = prepare_case(test, all.policy);
          if (!data) throw std::runtime_error(data.status().message());
          const CaseResult r = validate(*all.subjects[0], all.device, *data, all.policy);
          ++cases;
          if (r.verdict == Verdict::green) continue;
          result = {{"ok", false},
                    {"fault", name_of(r.fault)},
                    {"reason", fmt::format("{}: {}", to_string(test), r.reason)}};
          break;
        }
        result["cases"] = cases;
        all.lab.add(c.key, "green", std::move(result));
      });
    const json& green = need(c.key, "green");
    if (options_.finished && !options_.simulate)
      options_.finished(fmt::format("{}: {}", c.key,
                                    green["ok"].get<bool>()
                                        ? fmt::format("GREEN, {} cases", green.value("cases", 0))
                                        : "RED, " + green.value("reason", "")));
    if (green["ok"].get<bool>()) finalists.push_back(c);
  }

  Final final{reference, json::array(), nullptr};
  measure_beside("final", reference, finalists, static_cast<std::size_t>(options_.finalists),
                 options_.problems, kFinalFidelity, options_.seed + kFinalSeed);
  double highest = 0;  // of the reference: log 1
  for (const LabCandidate& c : finalists) {
    const json& result = need(c.key, "final");
    json row = {{"key", c.key}, {"ok", result["ok"]}, {"shapes", result["shapes"]}};
    if (result["ok"].get<bool>()) {
      double mean = 0;
      for (const json& shape : result["shapes"])
        mean += std::log(shape["speedup"]["value"].get<double>());
      mean /= static_cast<double>(result["shapes"].size());
      row["speedup"] = std::exp(mean);
      if (mean > highest) {
        highest = mean;
        final.winner = c;
      }
    } else {
      row["reason"] = result["reason"];
    }
    final.finalists.push_back(std::move(row));
  }
  if (final.winner.key == reference.key) return final;
  // Chosen because it looked best, it looks better than it is: once more on what chose nobody.
  measure_beside("confirm", reference, {final.winner}, 1, options_.problems, kFreshFidelity,
                 options_.seed + kFreshSeed);
  final.confirmed = need(final.winner.key, "confirm");
  return final;
}

}  // namespace greenfast::workbench
