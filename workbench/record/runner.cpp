#include "workbench/record/runner.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include <greenfast/arithmetic.hpp>

#include "workbench/base/exit_code.hpp"
#include "workbench/base/numeric.hpp"
#include "workbench/fast/timed_judge.hpp"

namespace greenfast::workbench {
namespace {

// Leaves a measurement from inside its progress callback.
struct Stopped {};

int exit_code_of(const CaseResult& result) {
  switch (result.verdict) {
    case Verdict::green:
      return kPassed;
    case Verdict::skipped:
      return kNoDevice;
    case Verdict::red:
      break;
  }
  return exit_code_of(result.fault);
}

void keep_worst(Metrics* worst, const Metrics& m) {
  if (!(m.max_err <= worst->max_err)) {  // NaN is worse than any number
    worst->max_err = m.max_err;
    worst->worst_row = m.worst_row;
    worst->worst_col = m.worst_col;
  }
  auto larger = [](double* a, double b) {
    if (!(b <= *a)) *a = b;
  };
  larger(&worst->mean_err, m.mean_err);
  larger(&worst->p999_err, m.p999_err);
  larger(&worst->percent_bad, m.percent_bad);
  larger(&worst->rel_fro, m.rel_fro);
  larger(&worst->max_row, m.max_row);
  larger(&worst->gain, m.gain);
  larger(&worst->max_lse_err, m.max_lse_err);
  if (!(std::abs(m.bias) <= std::abs(worst->bias))) worst->bias = m.bias;
  if (!(m.cosine >= worst->cosine)) worst->cosine = m.cosine;
  worst->nan_mismatch = std::max(worst->nan_mismatch, m.nan_mismatch);
}

// The worse of two rows' codes, in the order the command returns them.
int graver(int a, int b) {
  const int codes[] = {a, b};
  return worst_of(codes);
}

/// Whether no element of the right answer is a number.
bool holds_nothing(const CaseData& data) {
  return !data.reference.o.empty() && std::none_of(data.reference.o.begin(), data.reference.o.end(),
                                                   [](double x) { return std::isfinite(x); });
}

/// "Q is NaN or Inf in 3 of 512 elements"; empty where all are numbers.
std::string words_of_nonfinite(const Inputs& inputs, const Problem& p) {
  std::vector<std::string> parts;
  for (const auto& [name, bytes] :
       {std::pair("Q", &inputs.q), std::pair("K", &inputs.k), std::pair("V", &inputs.v)}) {
    const auto elements = static_cast<std::int64_t>(bytes->size() / size_of(p.dtype));
    std::int64_t bad = 0;
    for (std::int64_t i = 0; i < elements; ++i)
      bad += !std::isfinite(numeric::load(p.dtype, bytes->data(), i));
    if (bad > 0)
      parts.push_back(fmt::format("{} is NaN or Inf in {} of {} elements", name, bad, elements));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

class Runner {
 public:
  Runner(const RunPlan& plan, const RunObserver& observer) : plan_(plan), observer_(observer) {
    policy_ = plan.policy;
    seeds_ = plan.seeds;
    if (plan.quick) {
      if (policy_.distributions.size() > 2) policy_.distributions.resize(2);
      seeds_.resize(1);
    }
    for (const RunProblem& p : plan.problems)
      if (!plan.finished.contains(p.named.name))
        steps_ += cases_of(p).size() * subjects_of(p).size() + (plan.fast ? 1 : 0);
  }

  RunResult run() {
    for (const RunProblem& problem : plan_.problems) {
      if (plan_.finished.contains(problem.named.name)) continue;
      const std::size_t first_row = result_.rows.size(), failures = result_.failures.size();
      if (Status status = check_green(problem); !status.ok()) {
        mark_unfinished(first_row, static_cast<int>(cases_of(problem).size()), "failed");
        fail("checking", problem, status);
      }
      if (observer_.row)
        for (std::size_t r = first_row; r < result_.rows.size(); ++r)
          observer_.row(result_.rows[r]);
      if (result_.interrupted) break;
      if (plan_.fast)
        if (Status status = time_green(problem, first_row); !status.ok())
          fail("timing", problem, status);
      if (result_.interrupted) break;
      if (result_.failures.size() == failures) result_.finished.push_back(problem.named.name);
    }
    std::vector<int> codes;
    for (const RunRow& row : result_.rows) codes.push_back(row.exit_code);
    result_.exit_code = result_.interrupted         ? static_cast<int>(kInterrupted)
                        : !result_.failures.empty() ? static_cast<int>(kInternal)
                                                    : worst_of(codes);
    return std::move(result_);
  }

 private:
  std::vector<Case> cases_of(const RunProblem& problem) const {
    if (problem.captured == nullptr) return make_cases({problem.named}, policy_, seeds_);
    Case c;
    c.name = problem.named.name;
    c.problem = problem.named.problem;
    c.distribution = Distribution::file;
    c.poison_unseen = false;
    return {c};
  }

  // What several shapes of a run ask alike is judged once: the ends of the range differ by type, head dim and mask, and not by
  // shape (with huge_heads drawn once too, 7.8 s over `edges` in bf16 where 23.1 were taken). Null: not judged yet.
  const CaseResult* judged_before(const Case& nameless, const std::string& variant) const {
    for (const CaseResult& r : judged_)
      if (r.subject == variant && r.test == nameless) return &r;
    return nullptr;
  }

  void fail(std::string_view doing, const RunProblem& problem, const Status& status) {
    result_.failures.push_back(
        fmt::format("{} {}: {}", doing, problem.named.name, status.message()));
  }

  bool stopped() {
    if (observer_.stop && observer_.stop()) result_.interrupted = true;
    return result_.interrupted;
  }
  void step(const std::string& what, const std::string& subject) {
    if (observer_.step) observer_.step(done_, steps_, what, subject);
    ++done_;
  }

  std::vector<Subject*> subjects_of(const RunProblem& problem) const {
    std::vector<Subject*> out;
    for (Subject* subject : plan_.subjects)
      if (problem.only.empty() ||
          std::find(problem.only.begin(), problem.only.end(), subject->id()) != problem.only.end())
        out.push_back(subject);
    return out;
  }

  Status check_green(const RunProblem& problem) {
    const std::size_t first_row = result_.rows.size();
    limits_.clear();
    const std::vector<Subject*> subjects = subjects_of(problem);
    for (Subject* subject : subjects) {
      RunRow row;
      row.variant = subject->id();
      row.problem = problem.named.name;
      row.exit_code = kNoDevice;
      result_.rows.push_back(row);
      const DeviceFacts& facts = plan_.device->facts();
      if (auto why = subject->refusal(problem.named.problem, facts)) {
        result_.rows.back().reason = *why;
      } else if (auto what = subject->plan(problem.named.problem, facts)) {
        result_.plans.push_back(*what);
        result_.plan_problems.push_back(problem.named.name);
      }
    }
    const std::vector<Case> cases = cases_of(problem);
    for (const Case& c : cases) {
      // Inputs and oracle are computed for the case once, and only if some variant takes it.
      std::optional<CaseData> data;
      for (std::size_t s = 0; s < subjects.size(); ++s) {
        if (stopped()) {
          mark_unfinished(first_row, static_cast<int>(cases.size()), "interrupted");
          return {};
        }
        RunRow& row = result_.rows[first_row + s];
        step(fmt::format("{}  {}", row.variant, to_string(c)), row.variant);
        if (!row.reason.empty() && row.verdict == Verdict::skipped) continue;
        const bool shared = has_own_problem(c.distribution);
        Case nameless = c;
        nameless.name.clear();
        if (const CaseResult* before = shared ? judged_before(nameless, row.variant) : nullptr) {
          CaseResult r = *before;
          r.test.name = c.name;
          take(r, &row);
          result_.cases.push_back(std::move(r));
          continue;
        }
        if (!data) {
          auto prepared = problem.captured != nullptr ? prepare_case(c, *problem.captured, policy_)
                                                      : prepare_case(c, policy_);
          if (!prepared.ok()) return prepared.status();
          data = std::move(*prepared);
        }
        if (problem.captured != nullptr && holds_nothing(*data)) {
          for (std::size_t row_of = first_row; row_of < result_.rows.size(); ++row_of) {
            RunRow& left = result_.rows[row_of];
            if (left.cases == 0 && !left.reason.empty()) continue;  // refused
            left.reason = fmt::format(
                "nothing to judge: {}, so that every row of the right answer is NaN or Inf",
                words_of_nonfinite(*problem.captured, c.problem));
            left.exit_code = kDefer;
          }
          return {};
        }
        if (c.distribution == Distribution::normal || c.distribution == Distribution::file)
          keep_larger(limits_, data->limits);
        CaseResult r = validate(*subjects[s], *plan_.device, *data, policy_);
        subjects[s]->pause();  // nothing of it runs while another is looked at
        take(r, &row);
        if (shared) {
          judged_.push_back(r);
          judged_.back().test = nameless;
        }
        result_.cases.push_back(std::move(r));
      }
    }
    for (std::size_t r = first_row; r < result_.rows.size(); ++r) {
      RunRow& row = result_.rows[r];
      if (row.verdict != Verdict::green || row.refused_midway.empty()) continue;
      // Neither right nor wrong: it took the problem, and then not all of its cases.
      row.verdict = Verdict::skipped;
      row.reason = fmt::format("took {} of {} cases and refused the others: {}", row.cases,
                               cases.size(), row.refused_midway);
      row.exit_code = kDefer;
    }
    for (std::size_t r = first_row; r < result_.rows.size(); ++r) {
      RunRow& row = result_.rows[r];
      if (row.verdict != Verdict::green) continue;
      const Problem& p = problem.named.problem;
      if (p.batch * p.heads_q * p.seq_q == 0)
        row.reason = "the problem has no rows: that the call returned and wrote nothing is all";
      else if (p.seq_kv == 0)
        row.reason =
            "the problem has no keys: that its rows came back as 0, and LSE as -inf, is all";
      else if (problem.captured != nullptr)
        row.reason = words_of_nonfinite(*problem.captured, problem.named.problem);
      if (row.refused_ends.empty()) continue;
      std::vector<std::string_view> names;
      for (const auto& [name, why] : row.refused_ends) names.push_back(name);
      row.reason += fmt::format("{}never saw {} (refused: {})", row.reason.empty() ? "" : "; ",
                                fmt::join(names, ", "), row.refused_ends.begin()->second);
    }
    return {};
  }

  // GREEN means every case; what was stopped before is not.
  void mark_unfinished(std::size_t first_row, int cases, std::string_view why) {
    for (std::size_t r = first_row; r < result_.rows.size(); ++r) {
      RunRow& row = result_.rows[r];
      const bool refused = row.cases == 0 && !row.reason.empty();
      if (row.verdict == Verdict::red || row.cases == cases || refused) continue;
      row.verdict = Verdict::skipped;
      row.reason = fmt::format("{} after {} of {} cases", why, row.cases, cases);
      row.exit_code = kNoDevice;
    }
  }

  void take(const CaseResult& r, RunRow* row) {
    const int code = exit_code_of(r);
    if (r.verdict == Verdict::skipped) {
      if (row->cases == 0)
        row->reason = r.reason;
      else if (has_own_problem(r.test.distribution))  // of those it may take what it wants
        row->refused_ends.emplace(name_of(r.test.distribution), r.reason);
      else
        row->refused_midway = r.reason;
      return;
    }
    row->exit_code = row->cases == 0 ? code : graver(row->exit_code, code);
    if (row->cases == 0) row->verdict = Verdict::green;
    ++row->cases;
    if (r.rows_checked < r.rows_total) ++row->rows_sampled;
    // Errors where V is at the last number of a type say nothing in a table.
    if (!has_own_problem(r.test.distribution)) keep_worst(&row->worst, r.metrics);
    if (r.verdict == Verdict::red && row->verdict == Verdict::green) {
      row->verdict = Verdict::red;
      row->reason = fmt::format("{}: {}", to_string(r.test), r.reason);
    }
  }

  Status time_green(const RunProblem& problem, std::size_t first_row) {
    step(fmt::format("timing {}", problem.named.name), "");
    std::vector<Timed> contestants;
    std::vector<RunRow*> rows;
    const std::vector<Subject*> subjects = subjects_of(problem);
    for (std::size_t s = 0; s < subjects.size(); ++s) {
      RunRow& row = result_.rows[first_row + s];
      if (row.verdict != Verdict::green) continue;
      contestants.push_back(
          {.subject = subjects[s], .label = {}, .judge = timed_judge(policy_, limits_)});
      rows.push_back(&row);
    }
    if (contestants.empty() || stopped()) return {};

    Case first = cases_of(problem).front();
    Ring::Options ring_options;
    if (problem.captured != nullptr) {
      ring_options.distinct = 1;
      ring_options.generate = [&](const Case&) { return *problem.captured; };
    } else {
      first.distribution = Distribution::normal;
    }
    auto ring = Ring::make(*plan_.device, first, ring_options);
    if (!ring.ok()) return ring.status();

    MeasureOptions options = plan_.timing;
    options.progress = [&](int blocks, double seconds) {
      if (stopped()) throw Stopped{};
      if (observer_.step)
        observer_.step(
            done_ - 1, steps_,
            fmt::format("timing {}  block {}, {:.1f} s", problem.named.name, blocks, seconds), "");
    };
    try {
      auto measured = measure(*plan_.device, **ring, contestants, options);
      if (!measured.ok()) return measured.status();
      take(*measured, rows);
    } catch (const Stopped&) {
      // What stands so far is recorded without this problem's times.
    }
    return {};
  }

  void take(const Measurement& measured, const std::vector<RunRow*>& rows) {
    double fastest = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      RunRow& row = *rows[i];
      const SideCheck& seen = measured.checks[i];
      row.floor_seconds = seen.floor_seconds;
      if (!seen.failure.empty()) {
        row.verdict = Verdict::red;
        row.reason = fmt::format("while timed: {}", seen.failure);
        row.exit_code = graver(row.exit_code, exit_code_of(seen.fault));
        continue;
      }
      if (!seen.noise.empty()) row.reason = seen.noise;
      const Summary summary = summarize(measured.samples, static_cast<int>(i));
      if (summary.n == 0) continue;
      row.time = summary;
      row.flops = measured.samples.flops / summary.p50;
      if (measured.peak.flops > 0) row.percent_of_peak = 100 * row.flops / measured.peak.flops;
      if (seen.impossible) {
        row.verdict = Verdict::red;
        row.reason = fmt::format(
            "IMPOSSIBLE: {:.3g} s is below the {:.3g} s that the measured peak "
            "allows",
            summary.p50, seen.floor_seconds);
        row.exit_code = graver(row.exit_code, kIntegrity);
      } else if (fastest == 0 || summary.p50 < fastest) {
        fastest = summary.p50;
      }
    }
    for (RunRow* row : rows)
      if (row->time && fastest > 0) row->times_fastest = row->time->p50 / fastest;
    result_.samples.push_back(measured.samples);
    result_.peaks.push_back(measured.peak);
  }

  const RunPlan& plan_;
  const RunObserver& observer_;
  Policy policy_;
  std::vector<std::uint64_t> seeds_;
  RunResult result_;
  std::vector<CaseResult> judged_;  // of problems that do not hang on the asked shape, nameless
  Limits limits_;                   // of the problem at hand, under the distribution that is timed
  std::size_t done_ = 0, steps_ = 0;
};

std::string shape_of(const FileTensor& t) { return fmt::format("[{}]", fmt::join(t.shape, ", ")); }

// Decodes a tensor that lies dense in `order` into fp32 in dense BHSD.
std::vector<float> decode(const Captured::Item& item, LayoutKind order,
                          const std::vector<float>& scales) {
  std::array<std::int64_t, 4> n{};
  std::copy(item.tensor.shape.begin(), item.tensor.shape.end(), n.begin());
  if (order == LayoutKind::bshd) std::swap(n[1], n[2]);
  const auto [batch, heads, seq, dim] = n;
  std::vector<float> values(static_cast<std::size_t>(batch * heads * seq * dim));
  const std::int64_t of_head =
      static_cast<std::int64_t>(scales.size()) / std::max<std::int64_t>(batch * heads, 1);
  for (std::int64_t b = 0; b < batch; ++b)
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < seq; ++i) {
        const std::int64_t at = (b * heads + h) * of_head + (of_head > 1 ? i / kScaleBlock : 0);
        const float scale =
            scales.empty() ? 1.0f : scales[scales.size() == 1 ? 0 : static_cast<std::size_t>(at)];
        const std::int64_t from = order == LayoutKind::bshd ? ((b * seq + i) * heads + h) * dim
                                                            : ((b * heads + h) * seq + i) * dim;
        float* to = values.data() + ((b * heads + h) * seq + i) * dim;
        numeric::load_row(item.tensor.dtype, item.data.data(), from, dim, to);
        for (std::int64_t d = 0; d < dim; ++d) to[d] *= scale;
      }
    }
  return values;
}

}  // namespace

std::vector<TypeChoice> choose_types(
    std::span<const DType> types, std::span<const std::string> variants,
    const std::function<bool(const std::string& variant, DType)>& takes) {
  std::vector<TypeChoice> out;
  for (const DType dtype : types) out.push_back({dtype, {}});
  for (const std::string& variant : variants) {
    const auto taken = std::find_if(out.begin(), out.end(), [&](const TypeChoice& choice) {
      return takes(variant, choice.dtype);
    });
    (taken == out.end() ? out.front() : *taken).variants.push_back(variant);
  }
  std::erase_if(out, [](const TypeChoice& choice) { return choice.variants.empty(); });
  return out;
}

Result<RunProblem> make_captured_problem(const Captured& captured, const std::string& name,
                                         const ProblemDefaults& defaults,
                                         std::optional<DType> dtype) {
  auto invalid = [&](std::string message) -> Status {
    return {StatusCode::invalid_argument, fmt::format("{}: {}", name, message)};
  };
  if (defaults.layout != LayoutKind::bhsd && defaults.layout != LayoutKind::bshd)
    return invalid("--inputs are read dense: possible are --layout bhsd and bshd");
  const bool bshd = defaults.layout == LayoutKind::bshd;
  struct Shape {
    std::int64_t b, h, s, d;
  };
  auto shape_in = [&](const Captured::Item& item) -> Shape {
    const auto& n = item.tensor.shape;
    return bshd ? Shape{n[0], n[2], n[1], n[3]} : Shape{n[0], n[1], n[2], n[3]};
  };
  const Shape q = shape_in(captured.q), k = shape_in(captured.k), v = shape_in(captured.v);
  const DType stored = captured.q.tensor.dtype;
  if (captured.k.tensor.dtype != stored || captured.v.tensor.dtype != stored)
    return invalid(fmt::format("q, k and v have dtypes {}, {}, {}: store all three in one",
                               name_of(stored), name_of(captured.k.tensor.dtype),
                               name_of(captured.v.tensor.dtype)));
  if (captured.k.tensor.shape != captured.v.tensor.shape || q.b != k.b || q.d != k.d)
    return invalid(fmt::format(
        "q {}, k {} and v {} do not fit together: expected q [B, Hq, Sq, D] and k, v [B, Hkv, Skv, "
        "D]{}",
        shape_of(captured.q.tensor), shape_of(captured.k.tensor), shape_of(captured.v.tensor),
        bshd ? " with S before H (--layout bshd)" : "; with S before H use --layout bshd"));

  const bool any_scale =
      !captured.q_scale.empty() || !captured.k_scale.empty() || !captured.v_scale.empty();
  ScaleKind scales = ScaleKind::none;
  if (any_scale) {
    if (stored != DType::e4m3)
      return invalid("q_scale, k_scale and v_scale belong to F8_E4M3 tensors");
    const auto heads = [](const Shape& s) { return static_cast<std::size_t>(s.b * s.h); };
    const bool per_tensor = captured.q_scale.size() == 1 && captured.k_scale.size() == 1 &&
                            captured.v_scale.size() == 1;
    const bool per_head = captured.q_scale.size() == heads(q) &&
                          captured.k_scale.size() == heads(k) &&
                          captured.v_scale.size() == heads(v);
    const auto blocks = [&](const Shape& s) {
      return heads(s) * static_cast<std::size_t>(ceil_div(s.s, kScaleBlock));
    };
    const bool per_block = captured.q_scale.size() == blocks(q) &&
                           captured.k_scale.size() == blocks(k) &&
                           captured.v_scale.size() == blocks(k);
    if (!per_tensor && !per_head && !per_block)
      return invalid(fmt::format(
          "q_scale, k_scale and v_scale must hold one value each, or one per (batch, head) of "
          "their tensor, or one per (batch, head, block of {} rows)",
          kScaleBlock));
    scales = per_tensor ? ScaleKind::tensor : per_head ? ScaleKind::per_head : ScaleKind::per_block;
  }

  const DType type = dtype.value_or(stored);
  RunProblem result;
  result.named.name = name;
  Problem& p = result.named.problem;
  p = make_problem(q.b, q.h, k.h, q.s, k.s, q.d, type, bshd ? Order::bshd : Order::bhsd);
  p.out_dtype = defaults.out_dtype.value_or(default_out_dtype(type));
  p.scale = defaults.scale.value_or(default_scale(q.d));
  p.softcap = defaults.softcap;
  p.accuracy = defaults.accuracy;
  p.mask = defaults.mask;
  p.lse = defaults.lse;
  if (type == DType::e4m3)
    p.scales = type == stored ? scales : defaults.scales.value_or(ScaleKind::per_head);
  if (Status status = check(p); !status.ok()) return invalid(status.message());

  if (type == stored) {
    Inputs inputs;
    inputs.q = captured.q.data;
    inputs.k = captured.k.data;
    inputs.v = captured.v.data;
    inputs.q_scale = captured.q_scale;
    inputs.k_scale = captured.k_scale;
    inputs.v_scale = captured.v_scale;
    if (type == DType::e4m3) {
      inputs.q_exact = decode(captured.q, defaults.layout, captured.q_scale);
      inputs.k_exact = decode(captured.k, defaults.layout, captured.k_scale);
      inputs.v_exact = decode(captured.v, defaults.layout, captured.v_scale);
    }
    result.captured = std::make_shared<const Inputs>(std::move(inputs));
  } else {
    result.captured = std::make_shared<const Inputs>(
        make_inputs(p, decode(captured.q, defaults.layout, captured.q_scale),
                    decode(captured.k, defaults.layout, captured.k_scale),
                    decode(captured.v, defaults.layout, captured.v_scale)));
  }
  return result;
}

RunResult run(const RunPlan& plan, const RunObserver& observer) {
  return Runner(plan, observer).run();
}

}  // namespace greenfast::workbench
