// fuzz_serving: random problems with lengths, tables, chunks, sinks, slopes and masks through the
// public API, judged as `greenfast check` judges. docs/fuzzing.md.
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fuzz/serving/draw.hpp"
#include "fuzz/serving/invariance.hpp"
#include "workbench/base/atomic_file.hpp"
#include "workbench/base/json.hpp"
#include "workbench/green/validate.hpp"
#include "workbench/record/facts.hpp"
#include "workbench/record/record.hpp"
#include "workbench/subjects/mutants/mutants.hpp"

namespace greenfast::fuzz {
namespace {

using namespace greenfast::workbench;

constexpr const char* kHelp =
    R"(fuzz_serving [OPTION...]: random serving problems through the library's public API.

  --device cpu|cuda      where (default cpu)
  --variants LIST        ids and patterns as the command takes them (default: auto)
  --dtypes LIST          fp32, fp16, bf16, e4m3 (default: all); numbers of cases stay
  --property NAME        reference, batch-invariant or both (default)
  --count N              problems (default 1000)
  --seconds S            stop after that long, whatever --count says (default: no limit)
  --seed N               of the problems (default 1)
  --case K               this problem of the seed alone
  --json FILE            the record (docs/schema/fuzz_serving.schema.json)
  --help

Each finding is printed with the command that checks its problem again.
Exit codes: 0 nothing found, 2 usage, 3 no device, 4 I/O, 20 wrong numbers, 21 memory that is not the
call's or was not written, 24 a call failed.
)";

struct Arguments {
  DeviceKind device = DeviceKind::cpu;
  std::string variants = "auto";
  std::vector<DType> dtypes;  // none: all
  bool reference = true, invariance = true;
  bool one = false;  // a case by its number
  std::uint64_t count = 1000, seed = 1, first = 0;
  double seconds = 0;
  std::string json;
};

struct Usage {
  std::string message;
};

std::uint64_t number_of(const std::string& option, const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size())
    throw Usage{option + " takes a whole number from 0, not '" + text + "'"};
  return value;
}

std::vector<DType> dtypes_of(const std::string& text) {
  std::vector<DType> found;
  for (std::size_t from = 0; from <= text.size();) {
    const std::size_t end = std::min(text.find(',', from), text.size());
    const std::string name = text.substr(from, end - from);
    const auto dtype = parse_dtype(name);
    if (!dtype)
      throw Usage{"--dtypes takes fp32, fp16, bf16 and e4m3 with commas, not '" + name + "'"};
    found.push_back(*dtype);
    from = end + 1;
  }
  return found;
}

Arguments parse(const std::vector<std::string>& words) {
  Arguments a;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& option = words[i];
    if (i + 1 == words.size())
      throw Usage{option + ": no such option, or no value; --help lists them"};
    const std::string& value = words[++i];
    if (option == "--device" && (value == "cpu" || value == "cuda")) {
      a.device = value == "cuda" ? DeviceKind::cuda : DeviceKind::cpu;
    } else if (option == "--device") {
      throw Usage{"--device is cpu or cuda, not '" + value + "'"};
    } else if (option == "--variants") {
      a.variants = value;
    } else if (option == "--dtypes") {
      a.dtypes = dtypes_of(value);
    } else if (option == "--property") {
      if (value != "reference" && value != "batch-invariant" && value != "both")
        throw Usage{"--property is reference, batch-invariant or both, not '" + value + "'"};
      a.reference = value != "batch-invariant";
      a.invariance = value != "reference";
    } else if (option == "--count") {
      a.count = number_of(option, value);
    } else if (option == "--seconds") {
      a.seconds = static_cast<double>(number_of(option, value));
    } else if (option == "--seed") {
      a.seed = number_of(option, value);
    } else if (option == "--case") {
      a.first = number_of(option, value);
      a.count = 1;
      a.one = true;
    } else if (option == "--json") {
      a.json = value;
    } else {
      throw Usage{"there is no option '" + option + "'; --help lists them"};
    }
  }
  return a;
}

// What is at work when the process dies.
char at_work[512];

extern "C" void tell_at_work(int signal) {
  // Nothing can be done about a failure here; GCC takes no cast for an answer.
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, at_work, std::strlen(at_work));
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

struct Tally {
  std::uint64_t checked = 0, refused = 0, wrong = 0, compared = 0;
};

struct Outcome {
  std::uint64_t problems = 0;
  double seconds = 0;
  std::map<std::string, Tally> tallies;
  nlohmann::json findings = nlohmann::json::array();
  int code = 0;
};

nlohmann::json record_of(const Arguments& a, const RecordHead& head, const DeviceFacts& device,
                         const Outcome& outcome) {
  nlohmann::json record = head_json(head, "greenfast.fuzz_serving/1");
  record["device"] = device_json(device);
  record["property"] = !a.reference ? "batch-invariant" : a.invariance ? "both" : "reference";
  record["seed"] = a.seed;
  record["problems"] = outcome.problems;
  record["exit_code"] = outcome.code;
  record["variants"] = nlohmann::json::array();
  for (const auto& [id, tally] : outcome.tallies)
    record["variants"].push_back({{"name", id},
                                  {"checked", tally.checked},
                                  {"refused", tally.refused},
                                  {"compared", tally.compared},
                                  {"wrong", tally.wrong}});
  record["findings"] = outcome.findings;
  return record;
}

int run(const Arguments& a, const std::vector<std::string>& words) {
  auto opened = open_device(a.device);
  if (!opened) {
    std::fprintf(stderr, "fuzz_serving: %s\n", opened.status().message().c_str());
    return 3;
  }
  Device& device = **opened;
  auto found = find_subjects(a.variants);
  if (!found) throw Usage{found.status().message()};
  std::erase_if(*found, [&](const auto& subject) { return subject->device() != a.device; });
  if (found->empty()) throw Usage{"--variants " + a.variants + ": none runs on that device"};
  auto policy = load_policy("strict");
  if (!policy) throw Usage{policy.status().message()};
  policy->reruns = {0, 0};  // twice, over two patterns of poison
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGABRT}) std::signal(signal, tell_at_work);

  RecordHead head = begin_record("fuzz_serving", words);
  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  Outcome outcome;
  const auto worse = [&](int one) {
    const auto order = [](int c) { return c == 24 ? 3 : c == 21 ? 2 : c == 20 ? 1 : 0; };
    if (order(one) > order(outcome.code)) outcome.code = one;
  };
  for (std::uint64_t n = a.first; outcome.problems < a.count; ++n) {
    if (a.seconds > 0 && elapsed() >= a.seconds) break;
    const Drawn drawn = draw(a.seed, n);
    const auto& wanted = a.dtypes;
    if (!wanted.empty() &&
        std::find(wanted.begin(), wanted.end(), drawn.test.problem.dtype) == wanted.end()) {
      if (a.one) throw Usage{"--case " + std::to_string(n) + " is of another type than --dtypes"};
      continue;
    }
    ++outcome.problems;
    std::snprintf(at_work, sizeof at_work, "at case %llu: %s\n", static_cast<unsigned long long>(n),
                  drawn.options.c_str());
    const auto data = prepare_case(drawn.test, *policy);
    if (!data) {
      std::printf("case %llu: %s\n", static_cast<unsigned long long>(n),
                  data.status().message().c_str());
      outcome.findings.push_back({{"case", n},
                                  {"variant", nullptr},
                                  {"options", drawn.options},
                                  {"what", data.status().message()}});
      worse(24);
      continue;
    }
    for (const auto& subject : *found) {
      Tally& tally = outcome.tallies[subject->id()];
      const auto report = [&](const std::string& what, int one) {
        ++tally.wrong;
        worse(one);
        outcome.findings.push_back({{"case", n},
                                    {"variant", subject->id()},
                                    {"options", drawn.options},
                                    {"distribution", name_of(drawn.test.distribution)},
                                    {"what", what}});
        std::printf("case %llu, %s, %s: %s\n  greenfast check --variants %s %s\n",
                    static_cast<unsigned long long>(n), subject->id().c_str(),
                    std::string(name_of(drawn.test.distribution)).c_str(), what.c_str(),
                    subject->id().c_str(), drawn.options.c_str());
        std::fflush(stdout);
      };
      if (a.reference) {
        const CaseResult result = validate(*subject, device, *data, *policy);
        if (result.verdict == Verdict::skipped) {
          ++tally.refused;
          continue;
        }
        ++tally.checked;
        if (result.verdict == Verdict::red) report(result.reason, exit_code_of(result.fault));
      }
      const std::string id = subject->id() == "auto" ? "" : subject->id();
      if (!a.invariance || names_planted(subject->id())) continue;
      ++tally.compared;
      if (const auto what = batch_difference(device, id, drawn.test, data->inputs))
        report("batch_invariant: " + *what, 20);
    }
  }
  outcome.seconds = head.seconds = elapsed();
  std::printf("%-28s %9s %9s %9s %9s\n", "variant", "checked", "refused", "compared", "wrong");
  for (const auto& [id, tally] : outcome.tallies)
    std::printf("%-28s %9llu %9llu %9llu %9llu\n", id.c_str(),
                static_cast<unsigned long long>(tally.checked),
                static_cast<unsigned long long>(tally.refused),
                static_cast<unsigned long long>(tally.compared),
                static_cast<unsigned long long>(tally.wrong));
  std::printf("%llu problems in %.1f s, seed %llu: %zu findings\n",
              static_cast<unsigned long long>(outcome.problems), outcome.seconds,
              static_cast<unsigned long long>(a.seed), outcome.findings.size());
  if (!a.json.empty()) {
    const auto record = record_of(a, head, device.facts(), outcome);
    if (const Status written = write_file_atomically(a.json, json_text(record, 1) + "\n");
        !written) {
      std::fprintf(stderr, "fuzz_serving: %s\n", written.message().c_str());
      return 4;
    }
  }
  return outcome.code;
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
    return greenfast::fuzz::run(greenfast::fuzz::parse(words), words);
  } catch (const greenfast::fuzz::Usage& usage) {
    std::fprintf(stderr, "fuzz_serving: %s\n", usage.message.c_str());
    return 2;
  }
}
