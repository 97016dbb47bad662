// The greenfast command: a table of subcommands, and what they have in common: errors in one line,
// exit codes, signals.
#include <malloc.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <array>
#include <csignal>
#include <exception>
#include <memory>
#include <new>
#include <sstream>
#include <vector>

#include "cli/command.hpp"
#include "cli/interrupt.hpp"
#include "workbench/base/build_info.hpp"
#include "workbench/base/clean_text.hpp"
#include "workbench/base/terminal.hpp"
#include "workbench/subjects/plugin/serve.hpp"

namespace greenfast::cli {
namespace {

constexpr std::array kCommands{
    Command{"run", "check every variant (GREEN), then time those that are right (FAST)",
            define_run},
    Command{"check", "GREEN only: is it attention?", define_check},
    Command{"bench", "FAST, after a quick check of each variant", define_bench},
    Command{"new", "write a kernel of your own to begin with: mine.c or mine.cu", define_new},
    Command{"list", "variants; with --why, what selection decides for a problem and why",
            define_list},
    Command{"selftest", "does the gate catch planted wrong kernels, and pass honest ones?",
            define_selftest},
    Command{"compare",
            "two sides beside each other: speedup with its interval, agreement of outputs",
            define_compare},
    Command{"gate", "promote, defer or reject a candidate against a baseline", define_gate},
    Command{"phases", "where a ladder rung's time goes, by its instrumented twin", define_phases},
    Command{"resources",
            "registers, shared memory, spills, occupancy of every compiled kernel; no GPU",
            define_resources},
    Command{"profile", "hardware counters: what bounds a kernel, and did it move as predicted?",
            define_profile},
    Command{"report", "what results say: Markdown, one HTML page with charts, pull request, bundle",
            define_report},
    Command{"evidence", "records bound to machine code: record, import, verify", define_evidence},
    Command{"history", "performance over commits, and the change that caused each step",
            define_history},
    Command{"tune", "search a kernel's configurations for the fastest that is right", define_tune},
    Command{"evolve", "try sources that another process proposes", define_evolve},
    Command{"doctor", "what this machine offers: devices, clock, tools, permissions",
            define_doctor},
};

constexpr const char* kFooter =
    "Exit codes: 0 passed · 2 usage · 3 no device or tool, or everything was skipped · 4 internal "
    "or I/O\n"
    "  10 DEFER · 20 numerics · 21 integrity or IMPOSSIBLE · 22 resources · 23 regression\n"
    "  24 crash or timeout · 30 evidence stale, missing or tampered · 130 interrupted\n"
    "Your own kernel: greenfast new mine.c, then greenfast check mine.c.\n"
    "Problems are BxHxSxD ([B, H, S, D]), with Hq/Hkv and Sq/Skv where they differ: 1x8x512x64, "
    "4x32/8x1/8192x128.";

// CLI11's help, wrapped to the width of a page.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    std::string name = is_positional ? option->get_name(true) : option->get_name(false, true);
    name = name.substr(0, name.find('{'));  // "{top-left}": the value of a bare flag
    if (!option->get_type_name().empty()) name += ' ' + option->get_type_name();
    return line(name, option->get_description());
  }
  std::string make_option_usage(const CLI::Option* option) const override {
    return option->get_name(true) + (option->get_expected_max() > 1 ? "..." : "");
  }
  std::string make_subcommand(const CLI::App* sub) const override {
    return line(sub->get_name(), sub->get_description());
  }

 private:
  static constexpr std::size_t kIndent = 24, kWidth = 100;

  static std::string line(const std::string& name, const std::string& description) {
    std::string out = "  " + name;
    std::size_t column = out.size();
    if (column >= kIndent) {
      out += '\n';
      column = 0;
    }
    std::istringstream words(description);
    bool first = true;
    for (std::string word; words >> word;) {
      if (first || column + 1 + word.size() > kWidth) {
        if (!first) {
          out += '\n';
          column = 0;
        }
        out.append(kIndent - column, ' ');
        column = kIndent;
      } else {
        out += ' ';
        ++column;
      }
      out += word;
      column += word.size();
      first = false;
    }
    return out + '\n';
  }
};

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

// CLI11's own message for an argument it does not know says neither what is possible nor where.
std::string describe(const CLI::ParseError& error, const CLI::App& app, const CLI::App* chosen,
                     int argc, char** argv) {
  const std::string where =
      chosen != nullptr ? "greenfast " + chosen->get_name() : std::string("greenfast");
  if (chosen == nullptr && argc > 1 && argv[1][0] != '-') {
    std::vector<std::string> names;
    for (const Command& command : kCommands) names.emplace_back(command.name);
    return fmt::format("greenfast: unknown command '{}'; possible are {}{}", argv[1],
                       fmt::join(names, ", "), did_you_mean(argv[1], names));
  }
  if (chosen == nullptr && argc < 2)
    return "greenfast: a command is needed; greenfast --help lists them";
  const CLI::App& scope = chosen != nullptr ? *chosen : app;
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    const std::vector<std::string> extras = scope.remaining(true);
    if (!extras.empty()) {
      const std::string name = extras.front().substr(0, extras.front().find('='));
      const std::string what = name.starts_with("-") ? "unknown option" : "unexpected argument";
      return fmt::format("{}: {} '{}'{}; see {} --help", where, what, extras.front(),
                         did_you_mean(name, option_names(scope)), where);
    }
  }
  return fmt::format("{}: {}; see {} --help", where, error.what(), where);
}

int main_checked(int argc, char** argv) {
  CLI::App app("Attention, proven right, then proven faster.", "greenfast");
  app.set_version_flag("--version", workbench::build_line());
  app.require_subcommand(1);
  app.footer(kFooter);
  app.formatter(std::make_shared<HelpFormatter>());

  std::vector<std::pair<CLI::App*, Action>> actions;
  for (const Command& command : kCommands) {
    CLI::App* sub = app.add_subcommand(std::string(command.name), std::string(command.summary));
    sub->footer(kFooter);
    OptionSet options(*sub);
    actions.emplace_back(sub, command.define(options));
  }
  auto chosen = [&]() -> const CLI::App* {
    for (const auto& [sub, action] : actions)
      if (sub->parsed()) return sub;
    return nullptr;
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::string help = app.help();
    for (std::size_t at; (at = help.find("\n\n\n")) != std::string::npos;) help.erase(at, 1);
    fmt::print("{}", help);
    return workbench::kPassed;
  } catch (const CLI::CallForVersion&) {
    fmt::print("{}\n", workbench::build_line());
    return workbench::kPassed;
  } catch (const CLI::ParseError& error) {
    throw Failure(workbench::kUsage, describe(error, app, chosen(), argc, argv));
  }
  for (const auto& [sub, action] : actions) {
    if (!sub->parsed()) continue;
    try {
      Arguments words;  // for records
      for (int i = 1; i < argc; ++i) words.push_back(workbench::clean_text(argv[i]));
      return action(words);
    } catch (const Failure& failure) {
      throw Failure(failure.code(),
                    fmt::format("greenfast {}: {}", sub->get_name(), failure.what()));
    }
  }
  return workbench::kInternal;
}

int run_main(int argc, char** argv) {
  int code = workbench::kInternal;
  try {
    code = main_checked(argc, argv);
  } catch (const Failure& failure) {
    workbench::say(stderr, workbench::clean_text(failure.what()) + "\n");
    code = failure.code();
  } catch (const std::bad_alloc&) {
    workbench::say(stderr, "greenfast: out of memory; choose smaller shapes\n");
  } catch (const std::exception& error) {
    // What fmt throws when standard output is full is said below.
    if (!std::ferror(stdout))
      workbench::say(stderr, fmt::format("greenfast: internal error: {}\n", error.what()));
  }
  // Output that never reached its file is a failure too (full disk, closed pipe).
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    workbench::say(stderr, "greenfast: could not write to standard output\n");
    code = workbench::kInternal;
  }
  return code;
}

}  // namespace

std::string did_you_mean(std::string_view text, std::span<const std::string> candidates) {
  const std::string* best = nullptr;
  std::size_t best_distance = std::max<std::size_t>(2, text.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(text, candidate);
    if (distance < best_distance) {
      best = &candidate;
      best_distance = distance;
    }
  }
  return best == nullptr ? "" : fmt::format("; did you mean '{}'?", *best);
}

}  // namespace greenfast::cli

int main(int argc, char** argv) {
#ifdef __GLIBC__
  // Every case takes and gives back tensors as large as the last one's. By default each of 128 KB and more is mapped anew, page
  // by page: 17% of the time of `check` (40.7 s without these for 1,070 cases, 33.6 with them; two cores, 2026-11-29).
  // Before glibc 2.35 32 MB are the most.
  if (mallopt(M_MMAP_THRESHOLD, 256 << 20) == 0) mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
#endif
  // Not in the table: the command starts itself so, as the process of a plugin.
  if (argc == 3 && std::string_view(argv[1]) == greenfast::workbench::kPluginHostCommand)
    return greenfast::workbench::serve_plugin(argv[2]);
  // A write beyond a limit or into a closed pipe shall be an error that is reported, not a death.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  // Until a command knows better: one that is interrupted ends with the code for that.
  greenfast::cli::end_when_interrupted();
  return greenfast::cli::run_main(argc, argv);
}
