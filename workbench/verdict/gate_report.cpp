// What people read of a gate's record.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "workbench/base/json.hpp"
#include "workbench/base/terminal.hpp"
#include "workbench/fast/samples.hpp"
#include "workbench/fast/statistics.hpp"
#include "workbench/green/correctness.hpp"
#include "workbench/verdict/gate.hpp"
#include "workbench/verdict/gate_walk.hpp"

namespace greenfast::workbench {
namespace {

using nlohmann::json;

std::string interval(const json& i) {
  return ratio_words(
      {i.at("value").get<double>(), i.at("lo").get<double>(), i.at("hi").get<double>()});
}

const json* primary(const json& record) {
  if (!record.contains("fast")) return nullptr;
  for (const json& shape : record.at("fast")) {
    if (shape.at("primary").get<bool>() && shape.contains("speedup")) return &shape;
  }
  return nullptr;
}

/// The distance to the best peer, in words.
std::string peer_words(const json& record) {
  if (!record.contains("peers")) return "no peer measured (--peers)";
  const json& peers = record.at("peers");
  if (!peers.contains("best")) return "peers SKIPPED";
  for (const json& side : peers.at("sides")) {
    if (side.at("id") == peers.at("best"))
      return fmt::format("{} against the best peer, {}", interval(side.at("speedup")),
                         plain(side.at("id")));
  }
  return "";
}

std::string decision_line(const json& record) {
  const json& verdict = record.at("verdict");
  std::vector<std::string> codes;
  for (const json& reason : verdict.at("reasons")) {
    if (std::find(codes.begin(), codes.end(), plain(reason.at("code"))) == codes.end())
      codes.push_back(plain(reason.at("code")));
  }
  std::string line = plain(verdict.at("decision"));
  if (!codes.empty()) line += fmt::format("({})", fmt::join(codes, ", "));
  if (!plain(verdict.at("level")).empty() && plain(verdict.at("level")) != "promote")
    line += fmt::format(", level \"{}\"", plain(verdict.at("level")));
  return line;
}

Color color_of(const std::string& status) {
  if (status == "PASS" || status == "PROMOTE") return Color::green;
  if (status == "FAIL" || status == "REJECT") return Color::red;
  return Color::yellow;
}

Table checklist(const json& record, bool color) {
  using Align = Table::Align;
  Table table({{"gate", Align::left},
               {"target", Align::left},
               {"actual", Align::left},
               {"status", Align::left}});
  for (const json& row : record["checklist"]) {
    const std::string status = plain(row["status"]);
    table.add_row({plain(row["gate"]), plain(row["target"]), plain(row["actual"]),
                   paint(status, color_of(status), color)});
  }
  return table;
}

Table performance(const json& record) {
  using Align = Table::Align;
  Table table({{"shape", Align::left},
               {"side", Align::left},
               {"p50"},
               {"p90"},
               {"std"},
               {"samples"},
               {"left out"},
               {"GFLOP/s"},
               {"% of peak"},
               {"speedup p50", Align::left},
               {"speedup p90", Align::left}});
  for (const json& shape : record["fast"]) {
    if (shape.contains("skipped")) {
      table.add_row({plain(shape["shape"]), "SKIPPED", "", "", "", "", "", "", "",
                     plain(shape["skipped"]), ""});
      continue;
    }
    const double flops =
        shape["candidate_flops"].get<double>() * shape["candidate"]["p50"].get<double>();
    const double peak = shape["peak"]["flops"].get<double>();
    for (const char* side : {"baseline", "candidate"}) {
      const json& s = shape[side];
      const double rate = flops / s["p50"].get<double>();
      const bool candidate = std::string(side) == "candidate";
      table.add_row({plain(shape["shape"]), plain(record["options"][side]),
                     format_duration(s["p50"].get<double>()),
                     format_duration(s["p90"].get<double>()),
                     format_duration(s["std"].get<double>()), plain(s["samples"]),
                     plain(s["discarded"]), fmt::format("{:.1f}", rate * 1e-9),
                     peak > 0 ? fmt::format("{:.1f}", 100 * rate / peak) : "?",
                     candidate ? interval(shape["speedup"]) : "",
                     candidate ? interval(shape["speedup_p90"]) : ""});
    }
  }
  return table;
}

std::string clocks_line(const json& shape) {
  std::vector<std::string> parts;
  const json& clocks = shape["clocks"];
  for (const auto& [key, unit] : {std::pair("sm_mhz", "MHz"), std::pair("memory_mhz", "MHz memory"),
                                  std::pair("watts", "W"), std::pair("celsius", "degrees")}) {
    if (!clocks.contains(key)) continue;
    const json& range = clocks[key];
    parts.push_back(fmt::format("{:.0f} to {:.0f} {} (median {:.0f})", range[0].get<double>(),
                                range[2].get<double>(), unit, range[1].get<double>()));
  }
  std::string line = fmt::format("- {}: {}", plain(shape["shape"]), fmt::join(parts, ", "));
  if (clocks.contains("throttled_blocks")) {
    for (const auto& [reason, blocks] : clocks["throttled_blocks"].items())
      line += fmt::format("; {} in {} blocks", reason, blocks.dump());
  }
  return line + "\n";
}

/// The candidate beside peers, as a section of the report.
std::string peers_section(const json& record) {
  const json& peers = record["peers"];
  std::string out = "\n## Beside peers\n\n";
  if (!peers.contains("sides")) return out + fmt::format("SKIPPED: {}\n", plain(peers["skipped"]));
  using Align = Table::Align;
  Table table({{"side", Align::left},
               {"p50"},
               {"p90"},
               {"rel_fro"},
               {"GREEN", Align::left},
               {"speedup of the candidate", Align::left}});
  for (const json& side : peers["sides"]) {
    const std::string error = side["errors"].contains("rel_fro")
                                  ? fmt::format("{:.2e}", side["errors"]["rel_fro"].get<double>())
                                  : "";
    const std::string green = describe(read_correctness(side).value_or(Correctness()));
    if (side.contains("refused")) {
      table.add_row({plain(side["id"]), "SKIPPED", "", error, green, plain(side["refused"])});
      continue;
    }
    table.add_row({plain(side["id"]), format_duration(side["p50"].get<double>()),
                   format_duration(side["p90"].get<double>()), error, green,
                   side.contains("speedup") ? interval(side["speedup"]) : ""});
  }
  out += fmt::format("At {}, both sides interleaved in the Python harness.\n\n",
                     plain(peers["shape"]));
  out += table.markdown() + "\n";
  for (const json& note : peers["notes"]) out += fmt::format("- {}\n", plain(note));
  return out;
}

/// How much of FAST was inside the clock: "FAST took 60.1 s, of which 38.9 s (65%) inside the clock;
/// GREEN 21.8 s". The rest is fresh inputs, cold caches, judging, warming up.
std::string clock_words(const json& record) {
  double fast = 0, green = 0, inside = 0;
  for (const json& step : record["steps"]) {
    const auto known = parse_walk_step(step["name"].get_ref<const std::string&>());
    const bool timed = known && known->kind == StepKind::fast;
    if (!timed && !(known && known->kind == StepKind::green)) continue;
    if (step.value("resumed", false)) return {};  // its time was another run's
    (timed ? fast : green) += step["seconds"].get<double>();
  }
  const auto samples = samples_from_json(record["samples"]);
  if (!samples) return {};
  for (const Samples& shape : *samples)
    for (const Block& block : shape.blocks)
      for (const Sample& sample : block.samples)
        inside += sample.seconds *
                  static_cast<double>(shape.sides[static_cast<std::size_t>(sample.side)].batch);
  if (!(fast > 0)) return {};
  return fmt::format(
      "- FAST took {:.1f} s, of which {:.1f} s ({:.0f}%) inside the clock; GREEN {:.1f} s\n", fast,
      inside, 100 * inside / fast, green);
}

/// The levels of the decision tree and which were reached. Records of older versions do not say.
std::string level_words(const json& verdict) {
  if (!verdict.contains("levels") || verdict["levels"].empty()) return "";
  std::vector<std::string> levels;
  for (const json& level : verdict["levels"])
    levels.push_back(fmt::format("{} {:.2f}x {}", plain(level["name"]),
                                 level["at_least"].get<double>(),
                                 level["reached"].get<bool>() ? "reached" : "not reached"));
  return fmt::format("levels: {}", fmt::join(levels, ", "));
}

/// What the verdict does not speak about. Records of older versions do not say.
std::string unseen_words(const json& verdict) {
  if (!verdict.contains("unseen") || verdict["unseen"].empty()) return "";
  std::vector<std::string> kinds;
  for (const json& kind : verdict["unseen"]) kinds.push_back(plain(kind));
  return fmt::format("This gate never saw: {}.\n", fmt::join(kinds, "; "));
}

}  // namespace

std::vector<std::string> gate_headline(const json& record) {
  const std::string& candidate = record.at("options").at("candidate").get_ref<const std::string&>();
  const std::string& baseline = record.at("options").at("baseline").get_ref<const std::string&>();
  const json* shape = primary(record);
  std::vector<std::string> lines;
  lines.push_back(fmt::format(
      "{}: {} against {}{}", decision_line(record), candidate, baseline,
      shape != nullptr
          ? fmt::format(", {} at {} (gate {:.2f})", interval((*shape).at("speedup")),
                        plain((*shape).at("shape")), record.at("verdict").at("gate").get<double>())
          : ""));
  int pass = 0;
  std::vector<std::string> others;
  for (const json& row : record.at("checklist")) {
    if (row.at("status") == "PASS") {
      ++pass;
    } else {
      others.push_back(fmt::format("{} {}", plain(row.at("gate")), plain(row.at("status"))));
    }
  }
  lines.push_back(fmt::format("{} of {} checks passed{}", pass, record.at("checklist").size(),
                              others.empty() ? "" : fmt::format("; {}", fmt::join(others, ", "))));
  if (shape != nullptr) {
    const json& s = *shape;
    lines.push_back(
        fmt::format("{}: p50 {} -> {}, p90 {} -> {}, {:.1f}% of the peak measured beside it; {}",
                    plain(s.at("shape")), format_duration(s.at("baseline").at("p50").get<double>()),
                    format_duration(s.at("candidate").at("p50").get<double>()),
                    format_duration(s.at("baseline").at("p90").get<double>()),
                    format_duration(s.at("candidate").at("p90").get<double>()),
                    s.at("candidate_percent_of_peak").get<double>(), peer_words(record)));
  } else if (!record.at("verdict").at("reasons").empty()) {
    lines.push_back(plain(record.at("verdict").at("reasons").at(0).at("detail")));
  } else {
    lines.push_back("nothing was timed");
  }
  return lines;
}

std::string gate_text(const json& record, bool color) {
  std::string out;
  const std::vector<std::string> headline = gate_headline(record);
  const std::string decision = plain(record["verdict"]["decision"]);
  out += paint(decision, color_of(decision), color) + headline[0].substr(decision.size()) + "\n";
  out += headline[1] + "\n" + headline[2] + "\n\n" + checklist(record, color).text();
  if (const std::string unseen = unseen_words(record["verdict"]); !unseen.empty()) out += unseen;
  for (const json& reason : record["verdict"]["reasons"]) {
    out += fmt::format("\n{}: {}\n", plain(reason["code"]), plain(reason["detail"]));
    if (!plain(reason["settle"]).empty())
      out += fmt::format("  {}: {}\n", decision == "DEFER" ? "to settle it" : "to look closer",
                         plain(reason["settle"]));
  }
  if (const std::string levels = level_words(record["verdict"]); !levels.empty())
    out += "\n" + levels + "\n";
  for (const json& next : record["verdict"]["next"])
    out += fmt::format("  next: {}\n", plain(next));
  if (record.contains("peers") && record["peers"].contains("skipped"))
    out += fmt::format("\npeers SKIPPED: {}\n", plain(record["peers"]["skipped"]));
  return out;
}

std::string gate_markdown(const json& record) {
  const json& options = record["options"];
  std::string out =
      fmt::format("# {} against {}\n\n", plain(options["candidate"]), plain(options["baseline"]));
  for (const std::string& line : gate_headline(record)) out += fmt::format("> {}  \n", line);
  out += "\n## Checklist\n\n" + checklist(record, false).markdown();

  const json& verdict = record["verdict"];
  out += fmt::format("\n## Verdict: {}, exit code {}\n\n", decision_line(record),
                     verdict["exit_code"].get<int>());
  if (const std::string unseen = unseen_words(verdict); !unseen.empty()) out += unseen + "\n";
  if (verdict["reasons"].empty()) out += "Every check passed.\n";
  for (const json& reason : verdict["reasons"]) {
    out += fmt::format("- **{}**: {}", plain(reason["code"]), plain(reason["detail"]));
    if (!plain(reason["settle"]).empty())
      out += fmt::format("; {}: {}",
                         plain(verdict["decision"]) == "DEFER" ? "to settle it" : "to look closer",
                         plain(reason["settle"]));
    out += "\n";
  }
  if (const std::string levels = level_words(verdict); !levels.empty())
    out += fmt::format("- {}\n", levels);
  for (const json& next : verdict["next"]) out += fmt::format("- next: {}\n", plain(next));
  if (!plain(verdict["expected"]).empty())
    out += fmt::format("- expected before measuring: {}\n", plain(verdict["expected"]));
  if (verdict.contains("predicted")) {
    const json& p = verdict["predicted"];
    out += fmt::format("- predicted at {}: {:.2f} to {:.2f}x, because {} (written {}): {}\n",
                       plain(p["shape"]), p["speedup"][0].get<double>(),
                       p["speedup"][1].get<double>(), plain(p["because"]), plain(p["written"]),
                       p["outcome"].is_null() ? "not timed" : plain(p["outcome"]));
  }
  if (!plain(verdict["original"]).empty())
    out += fmt::format("- the original, on an L4: {}\n", plain(verdict["original"]));

  if (record.contains("fast") && !record["fast"].empty()) {
    out += "\n## Performance\n\nspeedup = t_baseline / t_candidate with its 95% interval; ";
    out += fmt::format(
        "{} caches, {} fresh processes a shape.\n\n", options["hot"].get<bool>() ? "hot" : "cold",
        record["fast"][0].contains("processes") ? plain(record["fast"][0]["processes"]) : "?");
    out += performance(record).markdown();
    if (record.contains("overall"))
      out += fmt::format("\nGeometric mean over the shapes: {}.\n", interval(record["overall"]));
    for (const json& shape : record["fast"]) {
      if (!shape.contains("peak")) continue;
      out += fmt::format(
          "- {}: {} blocks, stopped by {}; peak {:.1f} GFLOP/s ({}), {:.1f} GB/s; no time below {} "
          "is possible\n",
          plain(shape["shape"]), plain(shape["blocks"]), plain(shape["stopped"]),
          shape["peak"]["flops"].get<double>() * 1e-9, plain(shape["peak"]["method"]),
          shape["peak"]["bytes_per_second"].get<double>() * 1e-9,
          format_duration(shape["floor_seconds"].get<double>()));
      if (shape.contains("clocks")) out += clocks_line(shape);
      if (shape.contains("same_against_same")) {
        out += fmt::format("- {}: baseline against itself {}, noise floor {:.2f}%\n",
                           plain(shape["shape"]), interval(shape["same_against_same"]),
                           100 * shape["noise_floor"].get<double>());
      }
    }
    if (record.contains("samples")) out += clock_words(record);
  }

  if (record.contains("peers")) out += peers_section(record);

  if (record.contains("green") && !record["green"].empty()) {
    out += "\n## Correctness\n\n";
    using Align = Table::Align;
    Table table({{"shape", Align::left},
                 {"side", Align::left},
                 {"cases"},
                 {"GREEN"},
                 {"max_err"},
                 {"max_row"},
                 {"rel_fro"},
                 {"rows checked"},
                 {"first RED", Align::left}});
    for (const json& shape : record["green"]) {
      for (const char* side : {"baseline", "candidate"}) {
        const json& s = shape[side];
        if (s["cases"] == 0) continue;  // the baseline is asked the given shapes alone
        const auto worst = [&](const char* metric) {
          return s["worst"].contains(metric) && s["worst"][metric].is_number()
                     ? fmt::format("{:.2e}", s["worst"][metric].get<double>())
                     : std::string("not finite");
        };
        const json& red = s["first_red"];
        table.add_row({plain(shape["shape"]), plain(options[side]), plain(s["cases"]),
                       plain(s["green"]), worst("max_err"), worst("max_row"), worst("rel_fro"),
                       fmt::format("{} of {}", plain(s["rows_checked"]), plain(s["rows_total"])),
                       red.is_null() ? ""
                                     : fmt::format("{} seed {}: {}", plain(red["distribution"]),
                                                   plain(red["seed"]), plain(red["metric"]))});
      }
    }
    out += table.markdown();
  }

  if (record.contains("resources") && !record["resources"].empty()) {
    out += "\n## Resources\n\n";
    for (const json& row : record["resources"]) {
      out += fmt::format("- {}: {}", plain(row["name"]), plain(row["status"]));
      if (row.contains("value")) {
        out += fmt::format(" ({}{}", plain(row["value"]),
                           row.contains("unit") ? fmt::format(" {}", plain(row["unit"])) : "");
        out += row.contains("limit") ? fmt::format(", limit {})", plain(row["limit"])) : ")";
      }
      if (row.contains("kernel"))
        out += fmt::format(" {}{}", plain(row["kernel"]),
                           row.contains("arch") ? fmt::format(", {}", plain(row["arch"])) : "");
      if (row.contains("reason")) out += fmt::format(" ({})", plain(row["reason"]));
      out += "\n";
    }
  }

  out += "\n## Record\n\n";
  if (record.contains("device")) {
    out += fmt::format("- device: {} {}{}\n", plain(record["device"]["kind"]),
                       plain(record["device"]["name"]),
                       plain(record["device"]["isa"]).empty()
                           ? std::string()
                           : fmt::format(", {}", plain(record["device"]["isa"])));
  }
  if (record.contains("host")) {
    const json& host = record["host"];
    out += fmt::format("- host: {}, {} CPUs, load {} before the run\n",
                       host.contains("os") ? plain(host["os"]) : "?",
                       host.contains("cpus") ? plain(host["cpus"]) : "?",
                       host.contains("load") ? plain(host["load"]) : "?");
  }
  const json& build = record["build"];
  out += fmt::format(
      "- build: greenfast {} {}{}, {}\n", plain(build["version"]), plain(build["git_sha"]),
      build["git_dirty"].get<bool>() ? " with uncommitted changes" : "", plain(build["compiler"]));
  out += fmt::format("- policy: {} {}, gate policy {}\n", plain(build["policy"]["name"]),
                     plain(build["policy"]["sha256"]).substr(0, 12),
                     plain(build["gate_policy_sha256"]).substr(0, 12));
  out +=
      fmt::format("- begun {}, {:.0f} s\n", plain(record["utc"]), record["seconds"].get<double>());
  std::string command = "greenfast";
  for (const json& word : record["argv"]) command += fmt::format(" {}", plain(word));
  out += fmt::format("\nTo reproduce:\n```\n{}\n```\n", command);
  return out;
}

}  // namespace greenfast::workbench
