#include "workbench/fast/timed_judge.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "workbench/cases/placement.hpp"
#include "workbench/green/validate.hpp"
#include "workbench/reference/oracle.hpp"

namespace greenfast::workbench {
namespace {

/// FLOP that the oracle spends on one timed output: about a millisecond, beside calls that take as
/// long, and where they take longer about a tenth of their time, for then there are few. A row is
/// wrong or right as a whole, so few rows of many samples see what few samples with all rows would:
/// of a kernel that leaves out one row in a hundred, 8 rows of 200 samples miss none with a
/// probability of 1e-7, and so do 100 rows of 18 samples.
constexpr double kFlops = 4e6, kFlopsPerSecond = 2e8;
constexpr std::size_t kFewest = 2, kMost = 16, kMostOfLong = 256;
/// Times more of them before timing: whoever is wrong already is told so as NUMERICS.
constexpr std::size_t kFirst = 4;
/// FLOP for the limits, where GREEN has not derived them.
constexpr double kLimitFlops = 2e8;
/// The limits are those of other draws of the same distribution: an honest kernel's worst row of
/// many samples may lie a little above the worst of one case.
constexpr double kSlack = 1.5;
/// What is said of single rows. A mean over a few rows strays from the mean over all.
constexpr const char* kOfRows[] = {"max_row", "max_err", "lse"};

class Judgement {
 public:
  Judgement(const Policy& policy, Limits limits) : policy_(policy), limits_(std::move(limits)) {}

  std::optional<std::string> operator()(const TimedOutput& seen) {
    const Problem& p = seen.content.problem;
    if (Status status = need_limits(seen.content, seen.inputs); !status) return status.message();
    CaseData data;
    data.test = seen.content;
    data.inputs.arrays = seen.inputs.arrays;
    data.reference = compute_reference(seen.content, seen.inputs, choose(p, seen));
    data.element_threshold = HUGE_VAL;
    for (const char* metric : kOfRows)
      if (const auto limit = limits_.find(metric); limit != limits_.end())
        data.limits[metric] = kSlack * limit->second;
    const auto lse = static_cast<std::size_t>(operand_of(p, OperandId::lse).bytes);
    const std::byte* o = seen.output.data();
    const CaseResult result = judge_output(
        data, o, lse != 0 ? reinterpret_cast<const float*>(o + seen.output.size() - lse) : nullptr);
    if (result.verdict == Verdict::green) return std::nullopt;
    return result.reason;
  }

 private:
  std::vector<std::int64_t> choose(const Problem& p, const TimedOutput& seen) const {
    const Placement placement(p, index_arrays(seen.inputs));
    const std::int64_t total = placement.total_rows();
    const double flops_of_row = 2.0 * static_cast<double>(p.head_dim + value_dim(p)) *
                                static_cast<double>(std::max<std::int64_t>(p.seq_kv, 1));
    auto wanted =
        static_cast<std::size_t>(std::clamp(kFlops / flops_of_row, double{kFewest}, double{kMost}));
    if (!seen.timed) wanted *= kFirst;
    wanted =
        std::max(wanted, static_cast<std::size_t>(std::min(
                             kFlopsPerSecond * seen.seconds / flops_of_row, double{kMostOfLong})));
    wanted = std::min(wanted, static_cast<std::size_t>(placement.existing_rows()));
    std::mt19937_64 random(seen.draw);
    std::set<std::int64_t> rows;
    while (rows.size() < wanted) {
      auto row = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(total));
      while (!placement.exists(row)) row = (row + 1) % total;
      rows.insert(row);
    }
    return {rows.begin(), rows.end()};
  }

  Status need_limits(const Case& content, const Inputs& inputs) {
    if (!limits_.empty()) return {};
    Policy few = policy_;
    few.flop_budget = std::min(few.flop_budget, kLimitFlops);
    few.reference = Truth::decoded;
    auto data = prepare_case(content, inputs, few);
    if (!data) return data.status();
    limits_ = std::move(data->limits);
    return {};
  }

  Policy policy_;
  Limits limits_;
};

}  // namespace

void keep_larger(Limits& limits, const Limits& other) {
  for (const auto& [metric, limit] : other) {
    const auto [at, fresh] = limits.emplace(metric, limit);
    if (!fresh) at->second = std::max(at->second, limit);
  }
}

Judge timed_judge(const Policy& policy, Limits limits) {
  auto state = std::make_shared<Judgement>(policy, std::move(limits));
  return [state](const TimedOutput& seen) { return (*state)(seen); };
}

}  // namespace greenfast::workbench
