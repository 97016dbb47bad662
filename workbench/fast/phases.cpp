#include "workbench/fast/phases.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "workbench/cases/operand_bytes.hpp"
#include "workbench/green/validate.hpp"
#include "workbench/subjects/subject.hpp"

namespace greenfast::workbench {
namespace {

Result<std::unique_ptr<Subject>> subject_of(const std::string& id) {
  auto found = find_subjects(id);
  if (!found) return found.status();
  return std::move(found->front());
}

/// Device memory that is released with it.
class Buffers {
 public:
  explicit Buffers(Device& device) : device_(device) {}
  ~Buffers() {
    for (void* memory : held_) device_.release(memory);
  }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;

  void* take(std::size_t bytes) {
    void* memory = device_.allocate(bytes);
    if (memory == nullptr)
      exhausted_ = true;
    else
      held_.push_back(memory);
    return memory;
  }
  void* put(std::span<const std::byte> data) {
    if (data.empty()) return nullptr;
    void* memory = take(data.size());
    if (memory != nullptr) device_.upload(memory, data.data(), data.size());
    return memory;
  }
  bool exhausted() const { return exhausted_; }

 private:
  Device& device_;
  std::vector<void*> held_;
  bool exhausted_ = false;
};

Status run_twin(Device& device, Subject& twin, const CaseData& data, int launches,
                PhaseShares& out) {
  const Problem& p = data.test.problem;
  const auto plan = twin.plan(p, device.facts());
  const std::size_t words =
      plan ? static_cast<std::size_t>(plan->workspace_bytes) / sizeof(std::uint64_t) : 0;
  if (words == 0 || words % out.phases.size() != 0)
    return {StatusCode::internal, out.twin + " has no workspace of whole warps for its clocks"};

  Buffers buffers(device);
  Tensors tensors;
  for (const Operand& operand : operands_of(p)) {
    if (!operand.present) continue;
    set_data(tensors, operand.id,
             operand.role == Role::output ? buffers.take(static_cast<std::size_t>(operand.bytes))
                                          : buffers.put(bytes_of(data.inputs, operand.id)));
  }
  void* workspace = buffers.take(words * sizeof(std::uint64_t));
  if (buffers.exhausted())
    return {StatusCode::out_of_memory, "device memory is exhausted; choose a smaller shape"};

  std::vector<std::uint64_t> cycles(words), sums(out.phases.size());
  constexpr int kWarmup = 3;
  for (int launch = 0; launch < kWarmup + launches; ++launch) {
    if (Status status =
            twin.launch(p, tensors, device.stream(), workspace, words * sizeof(std::uint64_t));
        !status)
      return status;
    if (Status status = device.synchronize(); !status) return status;
    if (launch < kWarmup) continue;
    device.download(cycles.data(), workspace, words * sizeof(std::uint64_t));
    for (std::size_t i = 0; i < words; ++i) sums[i % sums.size()] += cycles[i];
  }
  const auto total =
      static_cast<double>(std::accumulate(sums.begin(), sums.end(), std::uint64_t{0}));
  out.launches = launches;
  out.warps = static_cast<std::int64_t>(words / out.phases.size());
  out.cycles_per_warp = total / static_cast<double>(out.warps) / launches;
  for (const std::uint64_t sum : sums) out.shares.push_back(static_cast<double>(sum) / total);
  return {};
}

}  // namespace

Result<std::vector<PhaseRun>> phase_runs(const std::vector<std::string>& rungs,
                                         const PhaseShape& shape, const DeviceFacts& facts) {
  std::vector<PhaseRun> out;
  for (const VariantInfo& variant : variants()) {
    if (variant.phases.empty()) continue;
    if (!rungs.empty() &&
        std::find(rungs.begin(), rungs.end(), variant.derived_from) == rungs.end())
      continue;
    auto twin = subject_of(variant.id);
    if (!twin) return twin.status();
    PhaseRun run{variant.derived_from, variant.id, variant.phases, nullptr, ""};
    for (const NamedProblem& named : shape) {
      run.problem = &named;
      const auto why = (*twin)->refusal(named.problem, facts);
      if (!why) {
        run.skipped.clear();
        break;
      }
      run.skipped += fmt::format("{}in {}: {}", run.skipped.empty() ? "" : "; ",
                                 name_of(named.problem.dtype), *why);
    }
    out.push_back(std::move(run));
  }
  return out;
}

Result<std::vector<PhaseShares>> measure_phases(Device& device,
                                                const std::vector<std::string>& rungs,
                                                const std::vector<PhaseShape>& shapes,
                                                const Policy& policy, int launches) {
  std::vector<PhaseShares> all;
  for (const PhaseShape& shape : shapes) {
    const auto runs = phase_runs(rungs, shape, device.facts());
    if (!runs) return runs.status();
    std::map<const NamedProblem*, CaseData> prepared;  // oracle and limits, once a problem
    for (const PhaseRun& run : *runs) {
      PhaseShares out;
      out.rung = run.rung;
      out.twin = run.twin;
      out.problem = run.problem->name;
      out.dtype = run.problem->problem.dtype;
      out.phases = run.phases;
      out.skipped = run.skipped;
      if (out.skipped.empty()) {
        auto found = prepared.find(run.problem);
        if (found == prepared.end()) {
          Case c;
          c.name = run.problem->name;
          c.problem = run.problem->problem;
          c.lengths = run.problem->lengths;
          auto data = prepare_case(c, policy);
          if (!data) return data.status();
          found = prepared.emplace(run.problem, std::move(*data)).first;
        }
        const CaseData& data = found->second;
        auto twin = subject_of(run.twin), rung = subject_of(run.rung);
        if (!twin) return twin.status();
        if (!rung) return rung.status();
        for (Subject* subject : {twin->get(), rung->get()})
          if (const auto plan = subject->plan(data.test.problem, device.facts()))
            out.kernels[subject->id()] = plan->kernel;
        const CaseResult judged = validate(**twin, device, data, policy);
        const CaseResult original = validate(**rung, device, data, policy);
        out.green = judged.verdict == Verdict::green;
        out.reason = judged.reason;
        out.same_output = judged.output_sha256 == original.output_sha256;
        if (Status status = run_twin(device, **twin, data, launches, out); !status) return status;
      }
      all.push_back(std::move(out));
    }
  }
  return all;
}

std::vector<std::string> merged_phases(const std::vector<std::vector<std::string>>& lists) {
  std::vector<std::string> out;
  for (const std::vector<std::string>& list : lists) {
    auto at = out.begin();
    for (const std::string& phase : list) {
      const auto known = std::find(out.begin(), out.end(), phase);
      at = known != out.end() ? known + 1 : out.insert(at, phase) + 1;
    }
  }
  return out;
}

double original_estimate(std::string_view phase) {
  // Their pages' split of stage 3 (S 512): global memory 12%, Q·Kᵀ 30%, softmax 23%, P·V 30%,
  // epilogue 4%, the P buffer below 1%. Decoding is not told apart.
  constexpr std::pair<std::string_view, double> kEstimate[] = {
      {"loads", 0.12}, {"Q·Kᵀ", 0.30}, {"softmax", 0.23}, {"P·V", 0.30}, {"epilogue", 0.04}};
  for (const auto& [name, share] : kEstimate)
    if (name == phase) return share;
  return -1;
}

}  // namespace greenfast::workbench
