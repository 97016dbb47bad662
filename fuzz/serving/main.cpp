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
#include <string>
#include <vector>

#include "fuzz/serving/draw.hpp"
#include "fuzz/serving/invariance.hpp"
#include "workbench/green/validate.hpp"
#include "workbench/subjects/mutants/mutants.hpp"

namespace greenfast::fuzz {
namespace {

using namespace greenfast::workbench;

constexpr const char* kHelp =
    R"(fuzz_serving [OPTION...]: random serving problems through the library's public API.

  --device cpu|cuda      where (default cpu)
  --variants LIST        ids and patterns as the command takes them (default: auto)
  --property NAME        reference, batch-invariant or both (default)
  --count N              problems (default 1000)
  --seconds S            stop after that long, whatever --count says (default: no limit)
  --seed N               of the problems (default 1)
  --case K               this problem of the seed alone
  --help

Each finding is printed with the command that checks its problem again.
Exit codes: 0 nothing found, 2 usage, 3 no device, 20 wrong numbers, 21 memory that is not the call's
or was not written, 24 a call failed.
)";

struct Arguments {
  DeviceKind device = DeviceKind::cpu;
  std::string variants = "auto";
  bool reference = true, invariance = true;
  std::uint64_t count = 1000, seed = 1, first = 0;
  double seconds = 0;
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

int run(const Arguments& a) {
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

  const auto begin = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  std::map<std::string, Tally> tallies;
  std::uint64_t problems = 0, wrong = 0;
  int code = 0;
  const auto worse = [&](int one) {
    const auto order = [](int c) { return c == 24 ? 3 : c == 21 ? 2 : c == 20 ? 1 : 0; };
    if (order(one) > order(code)) code = one;
  };
  for (std::uint64_t n = a.first; n < a.first + a.count; ++n, ++problems) {
    if (a.seconds > 0 && elapsed() >= a.seconds) break;
    const Drawn drawn = draw(a.seed, n);
    std::snprintf(at_work, sizeof at_work, "at case %llu: %s\n", static_cast<unsigned long long>(n),
                  drawn.options.c_str());
    const auto data = prepare_case(drawn.test, *policy);
    if (!data) {
      std::printf("case %llu: %s\n", static_cast<unsigned long long>(n),
                  data.status().message().c_str());
      worse(24);
      continue;
    }
    for (const auto& subject : *found) {
      Tally& tally = tallies[subject->id()];
      const auto report = [&](const std::string& what, int one) {
        ++tally.wrong;
        ++wrong;
        worse(one);
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
  std::printf("%-28s %9s %9s %9s %9s\n", "variant", "checked", "refused", "compared", "wrong");
  for (const auto& [id, tally] : tallies)
    std::printf("%-28s %9llu %9llu %9llu %9llu\n", id.c_str(),
                static_cast<unsigned long long>(tally.checked),
                static_cast<unsigned long long>(tally.refused),
                static_cast<unsigned long long>(tally.compared),
                static_cast<unsigned long long>(tally.wrong));
  std::printf("%llu problems in %.1f s, seed %llu: %llu findings\n",
              static_cast<unsigned long long>(problems), elapsed(),
              static_cast<unsigned long long>(a.seed), static_cast<unsigned long long>(wrong));
  return code;
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
    return greenfast::fuzz::run(greenfast::fuzz::parse(words));
  } catch (const greenfast::fuzz::Usage& usage) {
    std::fprintf(stderr, "fuzz_serving: %s\n", usage.message.c_str());
    return 2;
  }
}
