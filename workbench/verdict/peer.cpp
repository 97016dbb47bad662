#include "workbench/verdict/peer.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>

#include "workbench/base/exit_code.hpp"
#include "workbench/base/files.hpp"
#include "workbench/base/subprocess.hpp"
#include "workbench/cases/problem_codec.hpp"
#include "workbench/green/validate.hpp"

namespace greenfast::workbench {
namespace {

namespace fs = std::filesystem;

// On CUDA the names are those of greenfast.ab, on the CPU those of greenfast.ab_cpu.
constexpr PeerRow kPeers[] = {
    {"peer:torch-cpu", DeviceKind::cpu, "torch-cpu"},
    {"peer:zentorch", DeviceKind::cpu, "zentorch"},
    {"peer:onnxruntime", DeviceKind::cpu, "onnxruntime"},
    {"peer:openvino", DeviceKind::cpu, "openvino"},
    {"peer:torch-cudnn", DeviceKind::cuda, "cudnn"},
    {"peer:torch-flash", DeviceKind::cuda, "flash"},
    {"peer:torch-efficient", DeviceKind::cuda, "efficient"},
    {"peer:fa3", DeviceKind::cuda, "fa3"},
    {"peer:fa4", DeviceKind::cuda, "fa4"},
    {"peer:flashinfer", DeviceKind::cuda, "flashinfer"},
    {"peer:sage", DeviceKind::cuda, "sage"},
};

const PeerRow* find_peer(std::string_view id) {
  for (const PeerRow& row : kPeers) {
    if (row.id == id) return &row;
  }
  return nullptr;
}

/// Why the harness did without a side that it was asked for.
std::string reason_left_out(const Recording& recording, const PeerRow* peer) {
  if (peer == nullptr) return "was not timed";
  const auto found = recording.missing.find(std::string(peer->engine));
  return found != recording.missing.end() ? found->second : "the harness left it out";
}

fs::path executable() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error);
}

/// The folder that holds the package `greenfast_bench`, of the checkout this command was built in;
/// empty where the package has to be installed.
fs::path package_folder() {
  fs::path folder = executable().parent_path();
  std::error_code error;
  for (int up = 0; up < 5 && folder.has_relative_path(); ++up, folder = folder.parent_path()) {
    if (fs::exists(folder / "bench" / "python" / "greenfast_bench" / "ab.py", error))
      return folder / "bench" / "python";
  }
  return {};
}

/// The shared library of the same build, so that both sides of this command run one version.
fs::path library_file() {
  const fs::path build = executable().parent_path().parent_path();
  std::error_code error;
  for (const char* place : {"src", "lib"}) {
    if (fs::exists(build / place / "libgreenfast.so", error))
      return build / place / "libgreenfast.so";
  }
  return {};
}

/// What the harness has to find in its environment, as words of env(1).
std::vector<std::string> environment() {
  std::vector<std::string> words = {"env"};
  if (const fs::path folder = package_folder(); !folder.empty()) {
    const char* old = std::getenv("PYTHONPATH");
    words.push_back(fmt::format("PYTHONPATH={}{}{}", folder.string(),
                                old != nullptr && *old != 0 ? ":" : "", old != nullptr ? old : ""));
  }
  const fs::path library = library_file();
  if (std::getenv("GREENFAST_LIBRARY") == nullptr && !library.empty())
    words.push_back(fmt::format("GREENFAST_LIBRARY={}", library.string()));
  return words;
}

}  // namespace

std::span<const PeerRow> peer_table() { return kPeers; }
std::string known_peers() {
  std::vector<std::string> ids;
  for (const PeerRow& row : kPeers)
    ids.push_back(fmt::format("{} ({})", row.id, name_of(row.device)));
  return fmt::format("{}", fmt::join(ids, ", "));
}
bool is_peer(std::string_view id) { return id.starts_with("peer:"); }

Status check_peers(const PeerOptions& options) {
  const auto bad = [](const std::string& text) {
    return Status(StatusCode::invalid_argument, text);
  };
  const std::string* first = nullptr;
  DeviceKind device = DeviceKind::cpu;
  for (const std::string& id : options.sides) {
    DeviceKind own = DeviceKind::cpu;
    if (const PeerRow* peer = find_peer(id)) {
      own = peer->device;
    } else if (is_peer(id)) {
      return bad(fmt::format("{}: is unknown; peers are {}", id, known_peers()));
    } else {
      const std::vector<VariantInfo> registry = variants();
      const auto found = std::find_if(registry.begin(), registry.end(),
                                      [&](const VariantInfo& v) { return v.id == id; });
      if (found == registry.end()) {
        return bad(
            fmt::format("{}: is no variant of the library, and the harness calls the library; "
                        "`greenfast list` names them, peers are {}",
                        id, known_peers()));
      }
      if (!found->built) {
        return Status(StatusCode::no_device, fmt::format("{}: is not built into this binary", id));
      }
      own = found->device;
    }
    if (first == nullptr) {
      first = &id;
      device = own;
    } else if (own != device) {
      return bad(fmt::format("{} runs on {}, {} on {}; peers are {}", *first, name_of(device), id,
                             name_of(own), known_peers()));
    }
  }
  for (const NamedProblem& named : options.problems) {
    const Problem& p = named.problem;
    // What the harness can express is a dense problem of one type, full or causal.
    const std::string plain = fmt::format("{} {}", shape_text(p), name_of(p.dtype)),
                      said = to_string(p);
    const bool type = p.dtype == DType::f16 || p.dtype == DType::bf16 ||
                      (p.dtype == DType::f32 && device == DeviceKind::cpu);
    if (!type || (said != plain && said != plain + " causal(top-left)")) {
      return Status(
          StatusCode::unsupported,
          fmt::format("{} ({}): peers are called with dense [B, H, S, D] tensors of {}, full or "
                      "--causal=top-left, default scale, output of the same type, no LSE",
                      named.name, said,
                      device == DeviceKind::cpu ? "fp32, fp16 or bf16" : "fp16 or bf16"));
    }
  }
  return {};
}

namespace {

// Whether there is an interpreter, and whether it has the harness.
Status check_python(const std::string& python) {
  constexpr int kMissing = 3;
  std::vector<std::string> command = environment();
  command.insert(command.end(),
                 {python, "-c",
                  fmt::format("import importlib.util, sys; "
                              "sys.exit({} if importlib.util.find_spec('greenfast_bench') is None "
                              "else 0)",
                              kMissing)});
  const auto end = run_program(command, 60);
  if (!end) return end.status();
  if (end->exit_code == 126 || end->exit_code == 127)
    return {StatusCode::no_device,
            fmt::format("{}: {}; peers run in Python: install it, or name the interpreter in "
                        "GREENFAST_PYTHON",
                        python, last_line(end->err))};
  if (end->exit_code == kMissing)
    return {StatusCode::no_device,
            fmt::format("{}: has no module greenfast_bench; put the folder bench/python/ of the "
                        "sources on PYTHONPATH",
                        python)};
  return {};
}

}  // namespace

Result<PeerRecording> record_peers(const PeerOptions& options) {
  if (Status status = check_peers(options); !status) return status;
  std::vector<std::string> ours, engines;
  DeviceKind device = DeviceKind::cpu;
  for (const std::string& id : options.sides) {
    if (const PeerRow* peer = find_peer(id)) {
      engines.emplace_back(peer->engine);
      device = peer->device;
    } else {
      ours.push_back(id);
    }
  }
  const auto scratch = ScratchFolder::make("peer");
  if (!scratch) return scratch.status();
  const char* named = std::getenv("GREENFAST_PYTHON");
  const std::string python = named != nullptr && *named != 0 ? named : "python3";

  if (Status status = check_python(python); !status) return status;
  PeerRecording out;
  out.recording.source =
      fmt::format("{} -m greenfast_bench.{}", python, device == DeviceKind::cpu ? "ab_cpu" : "ab");
  // Problems of one type and mask share a process.
  std::vector<bool> done(options.problems.size());
  out.recording.shapes.resize(options.problems.size());
  out.outputs.resize(options.problems.size());
  for (std::size_t begin = 0; begin < options.problems.size(); ++begin) {
    if (done[begin]) continue;
    const Problem& like = options.problems[begin].problem;
    std::vector<std::size_t> group;
    std::vector<std::string> shapes;
    for (std::size_t i = begin; i < options.problems.size(); ++i) {
      const Problem& p = options.problems[i].problem;
      if (p.dtype != like.dtype || !(p.mask == like.mask)) continue;
      group.push_back(i);
      shapes.push_back(shape_text(p));
      done[i] = true;
    }
    const bool causal = !like.mask.is_none();
    const fs::path file = scratch->path() / fmt::format("{}.json", begin),
                   outputs = scratch->path() / fmt::format("{}", begin);
    std::error_code ignored;
    fs::create_directory(outputs, ignored);
    std::vector<std::string> command = environment();
    const auto add = [&](std::initializer_list<std::string> words) {
      command.insert(command.end(), words);
    };
    add({python, "-m", device == DeviceKind::cpu ? "greenfast_bench.ab_cpu" : "greenfast_bench.ab",
         "--shapes", fmt::format("{}", fmt::join(shapes, ",")), "--dtype",
         std::string(name_of(like.dtype)), "--variants", fmt::format("{}", fmt::join(ours, ",")),
         "--peers", fmt::format("{}", fmt::join(engines, ",")), "--seed",
         std::to_string(options.seed), "--json", file.string()});
    if (device == DeviceKind::cpu) {
      add({"--iters", std::to_string(options.iters), "--warmup", std::to_string(options.warmup),
           "--budget", fmt::format("{}", options.budget_seconds), "--outputs", outputs.string()});
      if (causal) add({"--causal"});
      if (options.hot) add({"--hot"});
    } else {
      // A round replays one graph of many calls on each side: far fewer are needed.
      add({"--masks", causal ? "causal" : "full", "--rounds",
           std::to_string(std::clamp(options.iters / 4, 15, 60))});
    }
    if (options.activity)
      options.activity(
          fmt::format("{} beside {}", fmt::join(ours, ", "), fmt::join(engines, ", ")));
    const auto end = run_program(command, options.timeout_seconds);
    if (!end) return end.status();
    const std::string said = last_line(end->err);
    if (end->timed_out) {
      return Status(
          StatusCode::internal,
          fmt::format("{}: no end after {:.0f} s", out.recording.source, options.timeout_seconds));
    }
    // That one of ours was too wrong to be timed (20) comes with a record, which says so.
    if (end->exit_code != kPassed && end->exit_code != kNumerics) {
      const std::string why =
          said.empty() ? fmt::format("ended with code {}", end->exit_code) : said;
      return Status(
          end->exit_code == kUsage      ? StatusCode::invalid_argument
          : end->exit_code == kNoDevice ? StatusCode::no_device
                                        : StatusCode::internal,
          // Its own words already begin with its name.
          why.starts_with("greenfast.") ? why : fmt::format("{}: {}", out.recording.source, why));
    }
    auto part = read_recording(file);
    if (!part) return part.status();
    judge_errors(*part, options.policy);
    if (part->shapes.size() != group.size()) {
      return Status(StatusCode::internal,
                    fmt::format("{}: wrote {} shapes of {}", out.recording.source,
                                part->shapes.size(), group.size()));
    }
    out.recording.notes = part->notes;
    for (const std::string& id : options.sides) {
      if (part->shapes.front().side(id) >= 0) continue;
      return Status(StatusCode::no_device,
                    fmt::format("{}: {}", id, reason_left_out(*part, find_peer(id))));
    }
    for (std::size_t i = 0; i < group.size(); ++i) {
      Samples& samples = part->shapes[i];
      const NamedProblem& asked = options.problems[group[i]];
      if (samples.problem != to_string(asked.problem)) {
        return Status(StatusCode::internal,
                      fmt::format("{}: timed {} where {} was asked for", out.recording.source,
                                  samples.problem, to_string(asked.problem)));
      }
      for (std::size_t side = 0; side < samples.sides.size(); ++side) {
        // A harness need not keep outputs, and a refused side has none.
        std::vector<std::byte>& to = out.outputs[group[i]].emplace_back();
        const fs::path kept = outputs / fmt::format("{}.{}.bin", i, side);
        if (std::error_code error; fs::exists(kept, error)) {
          const auto bytes = read_file(kept);
          if (!bytes) return bytes.status();
          to.resize(bytes->size());
          std::memcpy(to.data(), bytes->data(), bytes->size());
        }
      }
      samples.name = asked.name;
      out.recording.shapes[group[i]] = std::move(samples);
    }
  }
  return out;
}

Result<Comparison> compare_with_peer(Device& device, const std::string& a, const std::string& b,
                                     const CompareOptions& options) {
  PeerOptions peers;
  peers.sides = {a, b};
  peers.problems = options.problems;
  peers.seed = options.seeds.front();
  peers.iters = options.timing.iters;
  peers.warmup = options.timing.warmup;
  peers.budget_seconds = options.timing.budget_seconds;
  peers.hot = options.timing.mode == CacheState::hot;
  peers.policy = options.policy;
  if (Status status = check_peers(peers); !status) return status;

  std::vector<SkippedShape> skipped;
  peers.problems.clear();
  for (const NamedProblem& problem : options.problems) {
    std::optional<SkippedShape> refused;
    for (const std::string& id : {a, b}) {
      if (is_peer(id)) continue;
      auto subjects = find_subjects(id);
      if (!subjects) return subjects.status();
      if (const auto why = subjects->front()->refusal(problem.problem, device.facts()))
        refused = SkippedShape{problem.name, id, SkipReason::refused, *why};
    }
    if (refused) {
      skipped.push_back(std::move(*refused));
    } else {
      peers.problems.push_back(problem);
    }
  }
  Comparison out;
  out.a = a;
  out.b = b;
  out.device = device.facts().name;
  out.cache = name_of(options.timing.mode);
  std::vector<int> codes;
  if (!peers.problems.empty()) {
    const std::size_t total = peers.problems.size() + 1;
    std::size_t done = 0;
    // First, because a missing tool should be told at once; the harness holds outputs to fp64
    // before it times them.
    if (options.step) options.step(done++, total, fmt::format("FAST {} beside {}", a, b));
    const DType dtype = peers.problems.front().problem.dtype;
    const Peak before = device.peak(dtype);
    auto recorded = record_peers(peers);
    if (!recorded) return recorded.status();
    const Peak after = device.peak(dtype);
    Peak ceiling{std::max(before.flops, after.flops),
                 std::max(before.bytes_per_second, after.bytes_per_second), before.method};
    // Nothing probes the device while the harness runs; before anybody is called impossible,
    // another look, long enough to find a moment that a busy machine leaves alone.
    const auto look_again = [&] {
      for (int i = 0; i < 3; ++i) {
        const Peak peak = device.peak(dtype);
        ceiling.flops = std::max(ceiling.flops, peak.flops);
        ceiling.bytes_per_second = std::max(ceiling.bytes_per_second, peak.bytes_per_second);
      }
      for (int i = 0; i < 100; ++i) ceiling.flops = std::max(ceiling.flops, device.pulse(dtype));
    };
    // The policy's verdict on our side is worth more than the harness's one metric.
    for (const NamedProblem& problem : peers.problems) {
      if (options.step) options.step(done++, total, fmt::format("GREEN {}", problem.name));
      for (const std::string& id : {a, b}) {
        if (is_peer(id)) continue;
        auto subjects = find_subjects(id);
        Correctness known{Verdict::green, {}};
        for (const Case& c : make_cases({problem}, options.policy, options.seeds)) {
          auto data = prepare_case(c, options.policy);
          if (!data) return data.status();
          const CaseResult result = validate(*subjects->front(), device, *data, options.policy);
          if (result.verdict != Verdict::red) continue;
          known = {Verdict::red,
                   fmt::format("{} seed {}: {}", name_of(c.distribution), c.seed, result.reason)};
          codes.push_back(exit_code_of(result.fault));
          break;
        }
        recorded->recording.correctness[id][problem.name] = known;
      }
    }
    auto comparison = compare_sides(recorded->recording, a, b);
    if (!comparison) return comparison.status();
    out = std::move(*comparison);
    out.samples = recorded->recording.shapes;
    if (out.exit_code != kPassed) codes.push_back(out.exit_code);
    const auto index_of = [&](const ShapeComparison& shape) {
      return static_cast<std::size_t>(
          std::find_if(peers.problems.begin(), peers.problems.end(),
                       [&](const NamedProblem& named) { return named.name == shape.name; }) -
          peers.problems.begin());
    };
    for (const ShapeComparison& shape : out.shapes) {
      const std::size_t index = index_of(shape);
      const Problem& problem = peers.problems[index].problem;
      const CacheState cache = recorded->recording.shapes[index].cache;
      if (problem.dtype != dtype ||
          std::min(shape.a.p50, shape.b.p50) >= speed_of_light(problem, ceiling, cache))
        continue;
      look_again();
      break;
    }
    for (ShapeComparison& shape : out.shapes) {
      const std::size_t index = index_of(shape);
      const Problem& problem = peers.problems[index].problem;
      const Samples& samples = recorded->recording.shapes[index];
      const auto& outputs = recorded->outputs[index];
      const auto side_a = static_cast<std::size_t>(samples.side(a)),
                 side_b = static_cast<std::size_t>(samples.side(b));
      if (outputs.size() > std::max(side_a, side_b) && !outputs[side_a].empty() &&
          outputs[side_a].size() == outputs[side_b].size()) {
        shape.outputs = describe(difference(problem.out_dtype, outputs[side_a], outputs[side_b]));
      }
      if (problem.dtype == dtype && ceiling.flops > 0) {
        const double floor = speed_of_light(problem, ceiling, samples.cache);
        shape.a_percent_of_peak = 100 * samples.flops / shape.a.p50 / ceiling.flops;
        shape.b_percent_of_peak = 100 * samples.flops / shape.b.p50 / ceiling.flops;
        for (const auto& [id, p50] : {std::pair(a, shape.a.p50), std::pair(b, shape.b.p50)}) {
          if (p50 >= floor) continue;
          out.notes.push_back(
              fmt::format("{}: {} is IMPOSSIBLE, below {:.4g} us", shape.name, id, 1e6 * floor));
          codes.push_back(kIntegrity);
        }
      }
      codes.push_back(kPassed);
    }
  }
  out.skipped.insert(out.skipped.begin(), skipped.begin(), skipped.end());
  out.exit_code = worst_of(codes);
  return out;
}

}  // namespace greenfast::workbench
