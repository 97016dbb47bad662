// fuzz_library: random problems through the public API, against an fp64 reference or against
// themselves in other batches. docs/fuzzing.md.
#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "build_config.hpp"
#include "fuzz/library/machine.hpp"
#include "git_state.hpp"

namespace greenfast::fuzz {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr const char* kHelp =
    R"(fuzz_library [OPTION...]: random problems through the library's public API.

  --device cpu|cuda      where (default cpu)
  --property NAME        reference: against fp64 (default)
                         batch-invariant: an entry's bits alone and in any batch
  --variants LIST        ids, * as a wildcard, "all"; "auto" is what selection chooses
                         (default: auto and every variant that selection may choose)
  --dtypes LIST          fp32, fp16, bf16, e4m3 (default: on the CPU all, on CUDA fp16 and bf16)
  --count N              problems (default 1000)
  --seconds S            stop after that long, whatever --count says (default: no limit)
  --seed N               of the problems (default 1); "random" draws one and prints it
  --case K               this problem of the seed alone, in detail
  --problem TEXT         a problem as the record writes it, in detail
  --jobs N               problems beside each other on the CPU (default: one a core)
  --minimise N           failures that are reduced to their smallest problem (default 12)
  --json FILE            the record (docs/schema/fuzz.schema.json); - is standard output
  --list-simpler         with --case or --problem: the problems that minimising would try

Exit codes: 0 nothing found, 2 usage, 3 no device, 4 internal or I/O, 20 wrong numbers,
21 memory that is not the call's or was not written, 24 a call or the device failed.
)";

struct Arguments {
  DeviceKind device = DeviceKind::cpu;
  Property property = Property::reference;
  std::string variants;
  std::vector<DType> dtypes;
  std::int64_t count = 1000;
  double seconds = 0;
  std::uint64_t seed = 1;
  std::optional<std::uint64_t> number;
  std::optional<Spec> problem;
  int jobs = 0;
  int minimise = 12;
  std::string json;
  bool list_simpler = false;
};

struct Usage {
  std::string message;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> pieces;
  std::string piece;
  for (const char c : text + ",") {
    if (c != ',') {
      piece += c;
    } else if (!piece.empty()) {
      pieces.push_back(std::move(piece));
      piece.clear();
    }
  }
  return pieces;
}

template <class T>
T number_of(const std::string& option, const std::string& text) {
  T value{};
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc() || result.ptr != text.data() + text.size() || value < T{})
    throw Usage{option + " takes a number that is not negative, not '" + text + "'"};
  return value;
}

Arguments parse(const std::vector<std::string>& words) {
  Arguments a;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& option = words[i];
    const auto value = [&]() -> const std::string& {
      if (i + 1 == words.size()) throw Usage{option + " needs a value"};
      return words[++i];
    };
    if (option == "--device") {
      const std::string& name = value();
      if (name != "cpu" && name != "cuda")
        throw Usage{"--device is cpu or cuda, not '" + name + "'"};
      a.device = name == "cuda" ? DeviceKind::cuda : DeviceKind::cpu;
    } else if (option == "--property") {
      const std::string& name = value();
      if (name != "reference" && name != "batch-invariant")
        throw Usage{"--property is reference or batch-invariant, not '" + name + "'"};
      a.property = name == "reference" ? Property::reference : Property::batch_invariant;
    } else if (option == "--variants") {
      a.variants = value();
    } else if (option == "--dtypes") {
      for (const std::string& name : split(value())) {
        const auto dtype = parse_dtype(name);
        if (!dtype) throw Usage{"there is no dtype '" + name + "': fp32, fp16, bf16, e4m3"};
        a.dtypes.push_back(*dtype);
      }
    } else if (option == "--count") {
      a.count = number_of<std::int64_t>(option, value());
    } else if (option == "--seconds") {
      a.seconds = number_of<double>(option, value());
    } else if (option == "--seed") {
      const std::string& text = value();
      a.seed = text == "random"
                   ? mixed(static_cast<std::uint64_t>(
                         std::chrono::system_clock::now().time_since_epoch().count())) >>
                         32
                   : number_of<std::uint64_t>(option, text);
    } else if (option == "--case") {
      a.number = number_of<std::uint64_t>(option, value());
    } else if (option == "--problem") {
      std::string why;
      a.problem = parse_spec(value(), &why);
      if (!a.problem) throw Usage{"--problem: " + why};
    } else if (option == "--jobs") {
      a.jobs = number_of<int>(option, value());
    } else if (option == "--minimise") {
      a.minimise = number_of<int>(option, value());
    } else if (option == "--json") {
      a.json = value();
    } else if (option == "--list-simpler") {
      a.list_simpler = true;
    } else {
      throw Usage{"there is no option '" + option + "'; --help lists them"};
    }
  }
  return a;
}

bool matches(const std::string& pattern, const std::string& text) {
  const std::size_t star = pattern.find('*');
  if (star == std::string::npos) return pattern == text;
  if (text.compare(0, star, pattern, 0, star) != 0) return false;
  const std::string rest = pattern.substr(star + 1);
  for (std::size_t at = star; at <= text.size(); ++at) {
    if (matches(rest, text.substr(at))) return true;
  }
  return false;
}

/// Ids to force; the empty one leaves the choice to selection.
std::vector<std::string> variants_of(const Arguments& a) {
  const std::vector<std::string> asked = split(a.variants.empty() ? "auto" : a.variants);
  std::vector<std::string> ids;
  for (const std::string& pattern : asked) {
    bool found = pattern == "auto";
    if (found) ids.push_back("");
    for (const VariantInfo& info : variants()) {
      if (info.device != a.device || !info.built) continue;
      const bool wanted = pattern == "auto"  ? a.variants.empty() && info.automatic
                          : pattern == "all" ? info.derived_from.empty() && info.phases.empty()
                                             : matches(pattern, info.id);
      if (!wanted) continue;
      found = true;
      if (std::find(ids.begin(), ids.end(), info.id) == ids.end()) ids.push_back(info.id);
    }
    if (!found)
      throw Usage{"no variant of this build for " + std::string(name_of(a.device)) + " matches '" +
                  pattern + "'; greenfast list shows them"};
  }
  return ids;
}

std::string shown(const std::string& variant) { return variant.empty() ? "auto" : variant; }

struct Failure {
  std::optional<std::uint64_t> number;
  std::string variant;
  Spec spec;
  Finding finding;
  std::optional<Spec> least;
  Finding least_finding;
};

struct Tally {
  std::int64_t checks = 0, refused = 0, failures = 0;
  float worst_o = 0, worst_lse = 0;  // of the checks that were right
};

std::atomic<bool> interrupted{false};

struct Session {
  Arguments arguments;
  std::vector<std::string> variants;
  Profile profile;
  std::atomic<std::int64_t> next{0};
  std::atomic<bool> stop{false};
  Clock::time_point begin = Clock::now();

  std::mutex mutex;
  std::int64_t problems = 0, untaken = 0, failing = 0;
  std::map<std::string, Tally> tallies, distributions;
  std::vector<Failure> failures;
  std::string broken;  // a device that will not go on

  double elapsed() const { return std::chrono::duration<double>(Clock::now() - begin).count(); }
};

constexpr std::size_t kMostFailures = 2000;

void fuzz(Session& session, Machine& machine) {
  const Arguments& a = session.arguments;
  while (!session.stop && !interrupted) {
    if (a.seconds > 0 && session.elapsed() >= a.seconds) return;
    const std::int64_t number = session.next++;
    if (number >= a.count) return;
    const Spec spec = random_spec(session.profile, a.seed, static_cast<std::uint64_t>(number));
    const Status loaded = machine.load(spec, a.property == Property::reference);
    if (!loaded) {
      const std::lock_guard lock(session.mutex);
      session.broken = "problem " + std::to_string(number) + ": " + loaded.message();
      session.stop = true;
      return;
    }
    std::vector<std::pair<std::string, Finding>> findings;
    bool broken = false;
    for (const std::string& variant : session.variants) {
      findings.emplace_back(variant, machine.judge(variant, a.property));
      broken = findings.back().second.kind == "device";
      if (broken) break;
    }
    const std::lock_guard lock(session.mutex);
    ++session.problems;
    bool failing = false, taken = false;
    Tally& distribution = session.distributions[distribution_of(spec)];
    for (auto& [variant, finding] : findings) {
      Tally& tally = session.tallies[shown(variant)];
      if (finding.refused()) {
        ++tally.refused;
        continue;
      }
      taken = true;
      for (Tally* one : {&tally, &distribution}) {
        ++one->checks;
        if (finding.wrong()) {
          ++one->failures;
        } else {
          one->worst_o = std::max(one->worst_o, finding.worst_o);
          one->worst_lse = std::max(one->worst_lse, finding.worst_lse);
        }
      }
      if (!finding.wrong()) continue;
      failing = true;
      if (session.failures.size() < kMostFailures)
        session.failures.push_back(
            {static_cast<std::uint64_t>(number), variant, spec, finding, std::nullopt, {}});
    }
    session.failing += failing;
    session.untaken += !taken;
    if (broken) {
      session.broken = "problem " + std::to_string(number) + " left the device unusable";
      session.stop = true;
    }
  }
}

// Takes the first simpler problem that is wrong in the same way, until none is.
void minimise(Machine& machine, Failure& failure, Property property) {
  constexpr int kTries = 400;
  constexpr double kSeconds = 20;
  const auto begin = Clock::now();
  failure.least = failure.spec;
  failure.least_finding = failure.finding;
  int tries = 0;
  for (bool progress = true; progress;) {
    progress = false;
    for (const Spec& candidate : simpler(*failure.least)) {
      if (++tries > kTries || interrupted ||
          std::chrono::duration<double>(Clock::now() - begin).count() > kSeconds)
        return;
      if (!machine.load(candidate, property == Property::reference)) return;
      const Finding finding = machine.judge(failure.variant, property);
      if (finding.kind == "device") return;
      if (finding.kind != failure.finding.kind) continue;
      failure.least = candidate;
      failure.least_finding = finding;
      progress = true;
      break;
    }
  }
}

// ---- What is printed and written ----

std::string text_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

std::string sentence(const Finding& f) {
  if (f.kind.empty())
    return "right; worst error in limits: O " + text_of(static_cast<double>(f.worst_o)) + ", LSE " +
           text_of(static_cast<double>(f.worst_lse));
  if (f.kind != "o" && f.kind != "lse" && f.kind != "not finite" && f.kind != "not NaN")
    return f.kind + ": " + f.detail;
  std::string text = f.kind + ": " + f.detail + " at [" + std::to_string(f.at[0]) + ", " +
                     std::to_string(f.at[1]) + ", " + std::to_string(f.at[2]) + ", " +
                     std::to_string(f.at[3]) + "] is " + text_of(f.got);
  if (f.kind == "not NaN") return text + ", expected NaN";
  return text + ", expected " + text_of(f.expected) + " within " + text_of(f.limit);
}

// Numbers that JSON cannot hold become text.
Json number_json(double value) {
  return std::isfinite(value) ? Json(value)
                              : Json(std::isnan(value) ? "nan"
                                     : value > 0       ? "inf"
                                                       : "-inf");
}

Json finding_json(const Spec& spec, const Finding& f) {
  Json json{{"problem", describe(spec)}, {"spec", to_text(spec)}, {"detail", f.detail}};
  const bool value =
      f.kind == "o" || f.kind == "lse" || f.kind == "not finite" || f.kind == "not NaN";
  json["at"] = value ? Json(f.at) : Json(nullptr);
  json["got"] = value ? number_json(f.got) : Json(nullptr);
  json["expected"] = value && f.kind != "not NaN" ? number_json(f.expected) : Json(nullptr);
  json["limit"] = value && f.kind != "not NaN" ? number_json(f.limit) : Json(nullptr);
  return json;
}

Json tallies_json(const std::map<std::string, Tally>& tallies) {
  Json rows = Json::array();
  for (const auto& [name, t] : tallies)
    rows.push_back({{"name", name},
                    {"checks", t.checks},
                    {"refused", t.refused},
                    {"failures", t.failures},
                    {"worst_o", t.worst_o},
                    {"worst_lse", t.worst_lse}});
  return rows;
}

int exit_code_of(const Session& session) {
  int code = 0;
  // The first of these that occurs is the answer.
  const auto order = [](int c) { return c == 24 ? 3 : c == 21 ? 2 : c == 20 ? 1 : 0; };
  for (const Failure& f : session.failures) {
    const std::string& kind = f.finding.kind;
    const int one = kind == "status" || kind == "device"                         ? 24
                    : kind == "stray" || kind == "inputs" || kind == "unwritten" ? 21
                                                                                 : 20;
    if (order(one) > order(code)) code = one;
  }
  if (!session.broken.empty()) code = 24;
  return code;
}

Json record_of(const Session& session, const DeviceFacts& facts,
               const std::vector<std::string>& words, std::time_t began, double seconds) {
  const Arguments& a = session.arguments;
  char utc[32];
  std::strftime(utc, sizeof utc, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&began));
  Json failures = Json::array();
  for (const Failure& f : session.failures) {
    Json json{{"case", f.number ? Json(*f.number) : Json(nullptr)},
              {"variant", shown(f.variant)},
              {"kind", f.finding.kind}};
    json.update(finding_json(f.spec, f.finding));
    json["least"] = f.least ? finding_json(*f.least, f.least_finding) : Json(nullptr);
    failures.push_back(std::move(json));
  }
  const std::string sha = GREENFAST_GIT_SHA;
  return {{"schema", "greenfast.fuzz/1"},
          {"utc", utc},
          {"seconds", seconds},
          {"argv", words},
          {"build",
           {{"version", GREENFAST_BUILD_VERSION},
            {"commit", sha.empty() ? Json(nullptr) : Json(sha)},
            {"dirty", GREENFAST_GIT_DIRTY},
            {"compiler", GREENFAST_BUILD_COMPILER},
            {"cuda", GREENFAST_BUILD_CUDA}}},
          {"device",
           {{"kind", name_of(facts.kind)},
            {"name", facts.name},
            {"arch", facts.arch},
            {"multiprocessors", facts.multiprocessors},
            {"isa", facts.isa},
            {"driver", facts.driver}}},
          {"property", a.property == Property::reference ? "reference" : "batch-invariant"},
          {"seed", a.seed},
          {"problems", session.problems},
          {"problems_per_minute",
           seconds > 0 ? 60.0 * static_cast<double>(session.problems) / seconds : 0.0},
          {"problems_that_no_variant_takes", session.untaken},
          {"problems_with_failures", session.failing},
          {"variants", tallies_json(session.tallies)},
          {"distributions", tallies_json(session.distributions)},
          {"failures", failures},
          {"broken", session.broken.empty() ? Json(nullptr) : Json(session.broken)},
          {"exit_code", exit_code_of(session)}};
}

void write_record(const std::string& path, const Json& record) {
  if (path == "-") {
    std::cout << record.dump(1) << "\n";
    return;
  }
  const std::string part = path + ".part";
  std::ofstream file(part);
  file << record.dump(1) << "\n";
  file.close();
  if (!file || std::rename(part.c_str(), path.c_str()) != 0)
    throw std::runtime_error("cannot write " + path);
}

void print_summary(const Session& session, double seconds, std::FILE* to) {
  std::fprintf(to, "%-28s %9s %9s %9s %9s %9s\n", "variant", "checks", "refused", "wrong",
               "worst O", "worst LSE");
  for (const auto& [name, t] : session.tallies)
    std::fprintf(to, "%-28s %9lld %9lld %9lld %9.3f %9.3f\n", name.c_str(),
                 static_cast<long long>(t.checks), static_cast<long long>(t.refused),
                 static_cast<long long>(t.failures), static_cast<double>(t.worst_o),
                 static_cast<double>(t.worst_lse));
  std::map<std::string, std::pair<std::int64_t, const Failure*>> kinds;
  for (const Failure& f : session.failures) {
    auto& [count, example] = kinds[shown(f.variant) + ", " + f.finding.kind];
    ++count;
    if (example == nullptr || (!example->least && f.least)) example = &f;
  }
  const std::string again =
      std::string("fuzz_library --device ") + std::string(name_of(session.arguments.device)) +
      (session.arguments.property == Property::reference ? "" : " --property batch-invariant");
  for (const auto& [kind, found] : kinds) {
    const auto& [count, f] = found;
    std::fprintf(to, "\n%s: %lld, for example case %llu\n  %s\n  %s\n", kind.c_str(),
                 static_cast<long long>(count),
                 static_cast<unsigned long long>(f->number.value_or(0)), describe(f->spec).c_str(),
                 sentence(f->finding).c_str());
    if (f->least)
      std::fprintf(to, "  least: %s\n  %s\n  %s --variants %s --problem '%s'\n",
                   describe(*f->least).c_str(), sentence(f->least_finding).c_str(), again.c_str(),
                   shown(f->variant).c_str(), to_text(*f->least).c_str());
  }
  if (!session.broken.empty()) std::fprintf(to, "\nstopped: %s\n", session.broken.c_str());
  std::fprintf(to, "\n%lld problems in %.1f s (%.0f a minute), seed %llu: %lld with failures\n",
               static_cast<long long>(session.problems), seconds,
               60.0 * static_cast<double>(session.problems) / std::max(seconds, 1e-9),
               static_cast<unsigned long long>(session.arguments.seed),
               static_cast<long long>(session.failing));
}

// One problem, every variant's answer.
void show(Session& session, Machine& machine, const Spec& spec) {
  const Arguments& a = session.arguments;
  std::printf("%s\n--problem '%s'\n", describe(spec).c_str(), to_text(spec).c_str());
  if (a.list_simpler)
    for (const Spec& one : simpler(spec)) std::printf("  simpler: %s\n", describe(one).c_str());
  ++session.problems;
  bool taken = false;
  for (const std::string& variant : session.variants) {
    Finding finding;
    if (const Status loaded = machine.load(spec, a.property == Property::reference); !loaded) {
      session.broken = loaded.message();
      return;
    }
    finding = machine.judge(variant, a.property);
    std::printf("%-28s %s\n", shown(variant).c_str(), sentence(finding).c_str());
    Tally& tally = session.tallies[shown(variant)];
    tally.refused += finding.refused();
    tally.checks += !finding.refused();
    taken = taken || !finding.refused();
    if (!finding.wrong()) continue;
    ++tally.failures;
    session.failing = 1;
    session.failures.push_back({a.number, variant, spec, finding, std::nullopt, {}});
  }
  session.untaken = !taken;
}

int run(const std::vector<std::string>& words) {
  Session session;
  session.arguments = parse(words);
  const Arguments& a = session.arguments;
  session.variants = variants_of(a);
  session.profile = profile_of(a.device, a.property);
  if (!a.dtypes.empty()) session.profile.dtypes = a.dtypes;

  std::vector<std::unique_ptr<Machine>> machines;
  int jobs = a.device == DeviceKind::cuda ? 1 : a.jobs;
  if (jobs == 0) jobs = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const bool one = a.number || a.problem;
  if (one) jobs = 1;
  for (int job = 0; job < jobs; ++job) {
    auto machine = Machine::open(a.device);
    if (!machine) {
      std::fprintf(stderr, "fuzz_library: %s\n", machine.status().message().c_str());
      return 3;
    }
    machines.push_back(std::move(*machine));
  }
  std::signal(SIGINT, [](int) { interrupted = true; });
  const std::time_t began = std::time(nullptr);
  session.begin = Clock::now();
  double seconds = 0;
  if (one) {
    const Spec spec = a.problem ? *a.problem : random_spec(session.profile, a.seed, *a.number);
    show(session, *machines.front(), spec);
    seconds = session.elapsed();
  } else {
    std::vector<std::thread> threads;
    for (std::size_t job = 1; job < machines.size(); ++job)
      threads.emplace_back([&, job] { fuzz(session, *machines[job]); });
    fuzz(session, *machines.front());
    for (std::thread& thread : threads) thread.join();
    seconds = session.elapsed();
    std::sort(session.failures.begin(), session.failures.end(),
              [](const Failure& x, const Failure& y) { return x.number < y.number; });
  }
  // One of each way to be wrong.
  constexpr double kMinimising = 120;  // seconds
  std::map<std::string, int> done;
  int left = a.minimise;
  for (Failure& f : session.failures) {
    if (left == 0 || !session.broken.empty() || session.elapsed() > seconds + kMinimising) break;
    if (++done[f.variant + f.finding.kind + distribution_of(f.spec) +
               std::string(name_of(f.spec.problem.dtype))] > 1)
      continue;
    minimise(*machines.front(), f, a.property);
    --left;
  }
  if (!one || !session.failures.empty())
    print_summary(session, seconds, a.json == "-" ? stderr : stdout);
  if (!a.json.empty())
    write_record(a.json, record_of(session, machines.front()->facts(), words, began, seconds));
  if (!session.broken.empty() && session.failures.empty()) {
    std::fprintf(stderr, "fuzz_library: %s\n", session.broken.c_str());
    return 4;
  }
  return exit_code_of(session);
}

}  // namespace
}  // namespace greenfast::fuzz

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (std::find(words.begin(), words.end(), "--help") != words.end()) {
    std::fputs(greenfast::fuzz::kHelp, stdout);
    return 0;
  }
  try {
    return greenfast::fuzz::run(words);
  } catch (const greenfast::fuzz::Usage& usage) {
    std::fprintf(stderr, "fuzz_library: %s\n", usage.message.c_str());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fuzz_library: %s\n", error.what());
    return 4;
  }
}
