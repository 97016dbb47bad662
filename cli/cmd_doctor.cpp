// greenfast doctor: what this machine offers, and what would make its timings better.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include <greenfast/attention.hpp>

#include "cli/command.hpp"
#include "workbench/base/atomic_file.hpp"
#include "workbench/base/build_info.hpp"
#include "workbench/base/clean_text.hpp"
#include "workbench/base/subprocess.hpp"
#include "workbench/base/terminal.hpp"
#include "workbench/device/device.hpp"
#include "workbench/record/facts.hpp"

extern char** environ;

namespace greenfast::cli {
namespace {

using nlohmann::json;
using workbench::Color;

// Programs that later steps call, and what is lost without them.
struct Tool {
  const char *name, *use;
};
constexpr Tool kTools[] = {
    {"nvcc", "compiles CUDA kernels"},
    {"cuobjdump", "reads machine code for evidence"},
    {"ncu", "profiles kernels"},
    {"nsys", "traces launches"},
    {"compute-sanitizer", "finds races and bad addresses in kernels"},
    {"perf", "profiles CPU kernels"},
    {"git", "names the commit in records"},
};

struct Finding {
  Color color = Color::green;  // green: fine, yellow: something is lost, dim: absent and not needed
  std::string topic, text;
};

class Doctor {
 public:
  void examine() {
    const workbench::HostFacts host = workbench::host_facts();
    out_["build"] = workbench::build_json();
    out_["host"] = workbench::host_json(host);
    const workbench::BuildInfo& build = workbench::build_info();
    say(build.sanitize.empty() && build.type == "Release" ? Color::green : Color::yellow, "build",
        fmt::format("{}, {} {}{}", workbench::build_line(), build.compiler, build.type,
                    build.sanitize.empty()
                        ? ""
                        : fmt::format(", sanitizers {}: times mean nothing", build.sanitize)));
    say(Color::green, "host", fmt::format("{}, kernel {}", host.os, host.kernel));
    say(Color::green, "processor",
        fmt::format("{}, {} CPUs for this process, {:.1f} of {:.1f} GiB memory free", host.cpu,
                    host.cpus, static_cast<double>(host.memory_available_bytes) * 0x1p-30,
                    static_cast<double>(host.memory_bytes) * 0x1p-30));
    if (host.governor.empty())
      say(Color::dim, "governor", "the system does not tell");
    else
      say(host.governor == "performance" ? Color::green : Color::yellow, "governor",
          host.governor == "performance" ? host.governor
                                         : host.governor +
                                               ": clocks follow the load; "
                                               "'performance' times steadier");
    const bool busy = host.load > 0.25 * host.cpus;
    say(busy ? Color::yellow : Color::green, "load",
        fmt::format("{:.2f}{}", host.load, busy ? ": other work widens every interval" : ""));
    examine_device(DeviceKind::cpu);
    examine_device(DeviceKind::cuda);
    examine_variants();
    for (const Tool& tool : kTools) {
      const auto path = workbench::find_program(tool.name);
      out_["tools"][tool.name] = path ? json(path->string()) : json(nullptr);
      say(path ? Color::green : Color::dim, tool.name,
          path ? path->string() : fmt::format("not found ({})", tool.use));
    }
    const Status writable = workbench::check_output_directory("results");
    out_["results_writable"] = writable.ok();
    say(writable.ok() ? Color::green : Color::yellow, "results",
        writable.ok() ? "records can be written to ./results" : writable.message());
    out_["environment"] = json::object();
    for (char** variable = environ; *variable != nullptr; ++variable) {
      const std::string text = *variable;
      if (!text.starts_with("GREENFAST_")) continue;
      const std::size_t equals = text.find('=');
      const std::string name = workbench::clean_line(text.substr(0, equals)),
                        value = workbench::clean_line(text.substr(equals + 1));
      out_["environment"][name] = value;
      say(Color::yellow, name, value);
    }
  }

  bool any_device() const { return any_device_; }
  const std::vector<Finding>& findings() const { return findings_; }
  const json& record() const { return out_; }

 private:
  void say(Color color, std::string topic, std::string text) {
    findings_.push_back({color, std::move(topic), std::move(text)});
  }

  void examine_device(DeviceKind kind) {
    const std::string name(name_of(kind));
    auto device = workbench::open_device(kind);
    if (!device.ok()) {
      out_["devices"][name] = {{"available", false}, {"reason", device.status().message()}};
      say(kind == DeviceKind::cpu ? Color::red : Color::dim, name, device.status().message());
      return;
    }
    any_device_ = true;
    const DeviceFacts& facts = (*device)->facts();
    std::string text = facts.name;
    if (!facts.isa.empty())
      text += fmt::format(", {} threads, {}", facts.multiprocessors, facts.isa);
    else
      text += fmt::format(", sm_{}, {} SMs, driver {}", facts.arch, facts.multiprocessors,
                          facts.driver);
    say(Color::green, name, text);
    const double tick = (*device)->tick();
    say(Color::green, name + " clock",
        fmt::format("{}, resolution {}", (*device)->timer(), workbench::format_duration(tick)));
    json peaks = json::object();
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::e4m3}) {
      const workbench::Peak peak = (*device)->peak(dtype);
      if (peak.flops <= 0) continue;
      peaks[std::string(name_of(dtype))] = {{"flops", peak.flops}, {"method", peak.method}};
      say(Color::green, fmt::format("{} {}", name, name_of(dtype)),
          fmt::format("{:.3f} TFLOP/s measured ({})", peak.flops * 1e-12, peak.method));
    }
    const workbench::Telemetry telemetry = (*device)->telemetry();
    if (!telemetry.throttle_reasons.empty())
      say(Color::yellow, name + " throttled",
          fmt::format("{}", fmt::join(telemetry.throttle_reasons, ", ")));
    out_["devices"][name] = {{"available", true},
                             {"facts", workbench::device_json(facts)},
                             {"timer", (*device)->timer()},
                             {"tick_seconds", tick},
                             {"peaks", peaks}};
  }

  void examine_variants() {
    std::size_t built = 0, cuda_built = 0;
    const auto all = variants();
    for (const VariantInfo& v : all) {
      built += v.built ? 1 : 0;
      cuda_built += v.built && v.device == DeviceKind::cuda ? 1 : 0;
    }
    out_["variants"] = {{"known", all.size()}, {"built", built}, {"cuda_built", cuda_built}};
    say(Color::green, "variants",
        fmt::format("{} of {} built, {} of them for CUDA", built, all.size(), cuda_built));
  }

  json out_ = {{"schema", "greenfast.doctor/1"}};
  std::vector<Finding> findings_;
  bool any_device_ = false;
};

}  // namespace

Action define_doctor(OptionSet& set) {
  auto as_json = std::make_shared<bool>(false);
  set.flag("--json", as_json.get(), "Print JSON");
  return [as_json](const Arguments&) {
    Doctor doctor;
    doctor.examine();
    if (*as_json) {
      fmt::print("{}\n", doctor.record().dump(2));
    } else {
      const bool color = workbench::wants_color(stdout);
      workbench::Table table({{"", workbench::Table::Align::left},
                              {"topic", workbench::Table::Align::left},
                              {"finding", workbench::Table::Align::left}});
      for (const Finding& f : doctor.findings()) {
        const char* mark = f.color == Color::green    ? "ok"
                           : f.color == Color::yellow ? "note"
                           : f.color == Color::red    ? "missing"
                                                      : "-";
        table.add_row({workbench::paint(mark, f.color, color), f.topic, f.text});
      }
      fmt::print("{}", table.text());
    }
    return doctor.any_device() ? workbench::kPassed : workbench::kNoDevice;
  };
}

}  // namespace greenfast::cli
