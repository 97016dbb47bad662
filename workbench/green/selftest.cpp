#include "workbench/green/selftest.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <set>

#include "workbench/base/seconds_since.hpp"
#include "workbench/subjects/mutants/mutants.hpp"

namespace greenfast::workbench {
namespace {

// Small problems in which, together, every planted fault can show: each dtype, mask, layout and
// kind of raggedness at least once.
struct ProbeCase {
  std::string_view shape;
  DType dtype;
  LayoutKind layout;
  Mask mask;
  float softcap;
  bool lse = true;  // where the policy judges it
};
constexpr std::array kProbes{
    ProbeCase{"1x4/2x97/517x64", DType::f16, LayoutKind::bhsd, Mask::none(), 0},
    ProbeCase{"2x4/2x127x64", DType::f16, LayoutKind::padded, Mask::causal(Alignment::bottom_right),
              0},
    ProbeCase{"2x4/2x65/150x64", DType::bf16, LayoutKind::bshd, Mask::causal(Alignment::top_left),
              0},
    ProbeCase{"2x4/2x97/200x64", DType::e4m3, LayoutKind::bhsd, Mask::none(), 0},
    ProbeCase{"1x2x127/300x64", DType::f32, LayoutKind::packed,
              Mask::window(40, 0, Alignment::bottom_right), 0},
    ProbeCase{"2x4/2x63/127x128", DType::e4m3, LayoutKind::bshd,
              Mask::causal(Alignment::bottom_right), 30},
    ProbeCase{"1x4/2x90/63x32", DType::bf16, LayoutKind::bhsd,
              Mask::causal(Alignment::bottom_right), 10},
    ProbeCase{"1x2x140/129x40", DType::f16, LayoutKind::broadcast,
              Mask::window(17, 9, Alignment::top_left), 0},
};
// What serving adds: each feature, alone or beside others, in every type and layout.
constexpr std::array kServingProbes{
    ProbeCase{"5x4/2x37/150x64 packed", DType::f16, LayoutKind::bhsd,
              Mask::causal(Alignment::bottom_right), 0},
    ProbeCase{"5x4/2x3/200x64 pages=16 used-kv sinks", DType::bf16, LayoutKind::bshd,
              Mask::causal(Alignment::bottom_right), 0},
    ProbeCase{"4x4/2x33/170x64/40 pages=7 used-kv used-q kv-start chunk=40", DType::f32,
              LayoutKind::padded, Mask::none(), 0},
    ProbeCase{"3x4/2x29/140x32/64 kv-index used-kv alibi", DType::f32, LayoutKind::bhsd,
              Mask::causal(Alignment::bottom_right), 0},
    ProbeCase{"2x4/2x41/90x64 mask=bool:bqk", DType::f16, LayoutKind::packed, Mask::none(), 0},
    ProbeCase{"3x4/2x35/80x64 mask=float packed-q sinks", DType::f32, LayoutKind::bhsd,
              Mask::none(), 20},
    ProbeCase{"4x4/2x40/150x64 packed-kv used-q alibi=per-batch-head", DType::bf16,
              LayoutKind::bhsd, Mask::window(50, 3, Alignment::bottom_right), 0},
    ProbeCase{"3x4/2x23/140x64 pages=32 used-kv", DType::e4m3, LayoutKind::packed,
              Mask::causal(Alignment::bottom_right), 0},
    ProbeCase{"2x4/2x97/203x64", DType::e4m3, LayoutKind::transposed_v, Mask::none(), 0},
};
// They are asked two distributions: what is about numbers the others ask.
constexpr std::array kServingDistributions{Distribution::normal, Distribution::permutation};

// What the GPU's e4m3 kernels take, so that a wrapped launch has something to wrap.
constexpr std::array kCudaProbes{
    ProbeCase{"2x4/2x97/200x64", DType::e4m3, LayoutKind::bhsd, Mask::none(), 0, false},
    ProbeCase{"2x4/2x127x64", DType::e4m3, LayoutKind::padded,
              Mask::causal(Alignment::bottom_right), 0, false},
};

// What a long row is asked by; the others are too small to be asked that.
constexpr std::string_view kLongShape = "1x2x1024x64";
constexpr std::array kLongTypes{DType::f32, DType::f16};

struct Entry {
  PlantedRow row;
  std::function<std::unique_ptr<Subject>()> make;
};
std::vector<Entry> entries_for(Device& device) {
  std::vector<Entry> entries;
  for (const PlantedRow& row : planted_table())
    entries.push_back({row, [id = planted_id(row), &device] {
                         return device.kind() == DeviceKind::cpu ? make_planted(id)
                                                                 : make_planted_on(id, device);
                       }});
#if defined(GREENFAST_HAVE_CUDA)
  if (device.kind() == DeviceKind::cuda)
    for (const PlantedRow& row : cuda_planted_table())
      entries.push_back({row, [id = planted_id(row)] { return make_cuda_planted(id); }});
#endif
  return entries;
}

Result<std::vector<Case>> cases_of(const Policy& policy, DeviceKind device) {
  std::vector<Case> cases;
  const auto add = [&](std::string_view shapes, ProblemDefaults defaults,
                       const Policy& asked) -> Status {
    defaults.lse = defaults.lse && policy.limits.contains("lse");
    auto problems = parse_shapes(shapes, defaults);
    if (!problems) return problems.status();
    const std::uint64_t seed = 0;
    for (Case& c : make_cases(*problems, asked, {&seed, 1})) cases.push_back(std::move(c));
    return {};
  };
  if (!policy.selftest_shapes.empty()) {
    for (const DType dtype : policy.selftest_dtypes) {
      ProblemDefaults defaults;
      defaults.dtype = dtype;
      defaults.lse = true;
      if (const Status status = add(policy.selftest_shapes, defaults, policy); !status)
        return status;
    }
    return cases;
  }
  std::vector<ProbeCase> probes(kProbes.begin(), kProbes.end());
  if (device == DeviceKind::cuda)
    probes.insert(probes.end(), kCudaProbes.begin(), kCudaProbes.end());
  Policy of_serving = policy;
  std::erase_if(of_serving.distributions, [](Distribution d) {
    return std::find(kServingDistributions.begin(), kServingDistributions.end(), d) ==
           kServingDistributions.end();
  });
  const auto add_probe = [&](const ProbeCase& probe, const Policy& asked) -> Status {
    ProblemDefaults defaults;
    defaults.lse = probe.lse;
    defaults.dtype = probe.dtype;
    defaults.layout = probe.layout;
    defaults.mask = probe.mask;
    defaults.softcap = probe.softcap;
    return add(probe.shape, defaults, asked);
  };
  for (const ProbeCase& probe : probes)
    if (const Status status = add_probe(probe, policy); !status) return status;
  for (const ProbeCase& probe : kServingProbes)
    if (const Status status = add_probe(probe, of_serving); !status) return status;
  Policy long_rows = policy;
  std::erase_if(long_rows.distributions,
                [](Distribution d) { return d != Distribution::long_rows; });
  for (const DType dtype : kLongTypes) {
    ProblemDefaults defaults;
    defaults.dtype = dtype;
    defaults.lse = policy.limits.contains("lse");
    auto problems = parse_shapes(kLongShape, defaults);
    if (!problems) return problems.status();
    const std::uint64_t seed = 0;
    for (Case& c : make_cases(*problems, long_rows, {&seed, 1})) cases.push_back(std::move(c));
  }
  // Probes that differ in their shapes alone ask the same of the ends of the range.
  std::set<std::string> seen;
  std::erase_if(cases, [&](const Case& c) {
    Case nameless = c;
    nameless.name.clear();
    return !seen.insert(to_string(nameless)).second;
  });
  // All probes with one distribution before the next: a fault's row then tells how many cases it
  // survived, and which distribution was needed.
  const auto rank = [&](Distribution d) {
    return std::find(policy.distributions.begin(), policy.distributions.end(), d);
  };
  std::stable_sort(cases.begin(), cases.end(), [&](const Case& a, const Case& b) {
    return rank(a.distribution) < rank(b.distribution);
  });
  return cases;
}

}  // namespace

Result<SelftestResult> selftest(const Policy& policy, const SelftestProgress& progress,
                                DeviceKind kind) {
  const auto start = std::chrono::steady_clock::now();
  auto opened = open_device(kind);
  if (!opened) return opened.status();
  Device& device = **opened;
  auto cases = cases_of(policy, kind);
  if (!cases) return cases.status();
  std::vector<CaseData> data;
  for (const Case& c : *cases) {
    auto prepared = prepare_case(c, policy);
    if (!prepared) return prepared.status();
    data.push_back(std::move(*prepared));
  }

  SelftestResult result;
  result.policy = policy.name;
  result.device = device.facts();
  const std::vector<Entry> table = entries_for(device);
  for (std::size_t n = 0; n < table.size(); ++n) {
    const PlantedRow& planted = table[n].row;
    SelftestRow row;
    row.subject = planted_id(planted);
    row.models = planted.models;
    row.honest = planted.honest;
    std::string refusal;
    for (const CaseData& one : data) {
      const auto subject = table[n].make();
      const CaseResult judged = validate(*subject, device, one, policy);
      if (judged.verdict == Verdict::skipped) {
        refusal = judged.reason;
        continue;
      }
      ++row.cases;
      if (judged.verdict != Verdict::red) continue;
      ++row.red_cases;
      if (row.caught) continue;
      row.caught = true;
      row.metric = judged.failed_metric;
      row.reason = judged.reason;
      row.where = to_string(judged.test);
      if (!row.honest) break;
    }
    if (row.cases == 0) row.reason = "not exercised: " + refusal;
    (row.honest ? result.honest : result.mutants) += 1;
    if (row.honest && !row.caught && row.cases > 0) ++result.honest_green;
    if (!row.honest && row.caught) ++result.mutants_caught;
    result.rows.push_back(row);
    if (progress) progress(row, static_cast<int>(n), static_cast<int>(table.size()));
  }
  auto quantizer = check_quantizer(device);
  if (!quantizer) return quantizer.status();
  result.quantizer = std::move(*quantizer);
  const bool exact = std::all_of(result.quantizer.begin(), result.quantizer.end(),
                                 [](const QuantizerRow& row) { return row.wrong == 0; });
  result.ok =
      result.mutants_caught == result.mutants && result.honest_green == result.honest && exact;
  result.seconds = seconds_since(start);
  return result;
}

}  // namespace greenfast::workbench
