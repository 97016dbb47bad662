// GREEN: policies, limits, and what validate sees besides numbers.
#include "workbench/green/validate.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <set>
#include <thread>

#include "workbench/base/numeric.hpp"
#include "workbench/base/sha256.hpp"
#include "workbench/subjects/mutants/mutants.hpp"

namespace greenfast::workbench::test {
namespace {

Policy strict() {
  auto policy = load_policy("strict");
  EXPECT_TRUE(policy) << policy.status().message();
  return *policy;
}

Device& cpu() {
  static const std::unique_ptr<Device> device = std::move(*open_device(DeviceKind::cpu));
  return *device;
}

Case small_case(DType dtype = DType::f16) {
  Case c;
  c.name = "test";
  c.problem = make_problem(1, 4, 2, 37, 70, 64, dtype);
  c.problem.lse = true;
  return c;
}

CaseResult run(std::string_view id, const Case& c, const Policy& policy) {
  const auto data = prepare_case(c, policy);
  EXPECT_TRUE(data) << data.status().message();
  return validate(*make_planted(id), cpu(), *data, policy);
}

std::string mistake(std::string_view toml) {
  const auto parsed = parse_policy("test", toml);
  return parsed ? "accepted" : parsed.status().message();
}

TEST(Policies, BuiltInOnesLoadAndCarryTheirDigest) {
  for (const auto& builtin : builtin_policies()) {
    const auto policy = load_policy(builtin.name);
    ASSERT_TRUE(policy) << policy.status().message();
    EXPECT_EQ(policy->name, builtin.name);
    EXPECT_EQ(policy->sha256.size(), 64u);
  }
  // All but the one that joins whoever asks for the ends of the range.
  EXPECT_EQ(strict().distributions.size() + 1, distribution_table().size());
  EXPECT_EQ(load_policy("legacy.stage_c")->reference, Truth::unquantised);
}

TEST(Policies, EmbeddedTextIsTheFile) {
  for (const auto& builtin : builtin_policies()) {
    std::ifstream file(std::string(GREENFAST_SOURCE_DIR) + "/policies/" +
                       std::string(builtin.name) + ".toml");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(text, builtin.text) << builtin.name;
  }
}

TEST(Policies, UnknownNameListsTheKnownOnes) {
  const auto policy = load_policy("lenient");
  ASSERT_FALSE(policy);
  EXPECT_EQ(policy.status().code(), StatusCode::invalid_argument);
  for (const char* part : {"'lenient'", "strict", "legacy.stage_c", "legacy.v2c"})
    EXPECT_NE(policy.status().message().find(part), std::string::npos) << part;
}

TEST(Policies, ABaseSaysWhatAPolicyDoesNot) {
  const std::string own = "base = \"strict\"\ndistributions = [\"normal\"]\n";
  const auto policy = parse_policy("test", own);
  ASSERT_TRUE(policy) << mistake(own);
  EXPECT_EQ(policy->distributions, std::vector{Distribution::normal});
  Problem half;
  half.dtype = half.out_dtype = DType::f16;
  EXPECT_EQ(policy->limit("max_row", half)->cap, strict().limit("max_row", half)->cap);
  EXPECT_EQ(policy->reruns.cuda, strict().reruns.cuda);
  EXPECT_NE(policy->sha256, strict().sha256);
  EXPECT_NE(policy->sha256, sha256_hex(own)) << "another base is another policy";
  // A key stands for the whole of the base's: no metric but this one has a limit.
  const auto narrow = parse_policy("test", own + "[limits.max_row]\nfp16 = { limit = 1 }\n");
  ASSERT_TRUE(narrow);
  EXPECT_EQ(narrow->limit("rel_fro", half), nullptr);
  for (const char* base : {"\"lenient\"", "\"ladder\"", "3"}) {
    const std::string said = mistake(std::string("base = ") + base + "\n");
    EXPECT_NE(said.find("base must name a built-in policy that has none itself"), std::string::npos)
        << base << ": " << said;
  }
}

TEST(Policies, AnyTextIsAcceptedOrRefusedInWords) {
  const std::string good =
      "distributions = [\"normal\"]\n[limits.max_row]\nfp16 = { factor = 2, floor = 1e-3, cap = "
      "1e-2 }\n";
  EXPECT_TRUE(parse_policy("test", good)) << mistake(good);
  for (const auto& [text, part] :
       {std::pair<std::string, const char*>{"distributions = [", "line 1"},
        {"", "distributions"},
        {"distributions = [\"normal\"]", "limits"},
        {"distributions = [\"gaussian\"]\n", "known: normal"},
        {"distributions = 3\n", "array"},
        {good + "fp17 = { limit = 1 }\n", "unknown key limits.max_row.fp17"},
        {good + "bf16 = { factor = 2, floor = 1, cap = 0.5 }\n", "floor <= cap"},
        {good + "bf16 = { factor = 2, floor = 1e-3 }\n", "floor <= cap"},
        {good + "bf16 = { factor = \"2\", floor = 1e-3, cap = 1 }\n", "must be a number"},
        {good + "bf16 = { factor = nan, floor = 1e-3, cap = 1 }\n", "finite"},
        {good + "bf16 = { limit = 1, cap = 2 }\n", "excludes"},
        {good + "[limits.max_rows]\n", "unknown key limits.max_rows"},
        {good + "[integrity]\nredzone = true\n", "unknown key integrity.redzone"},
        {good + "[integrity]\nreruns = -1\n", "reruns"},
        {good + "[integrity]\nreruns = { cpu = 1, cuda = 1001 }\n", "reruns"},
        {good + "[integrity]\nreruns = { gpu = 1 }\n", "unknown key integrity.reruns.gpu"},
        {good + "[integrity]\nreruns = \"many\"\n", "must be an integer"},
        {good + "[integrity]\npoison = 1\n", "true or false"},
        {good + "[[resources]]\nregisters = 3\n", "resources"},
        {"reference = \"mine\"\n" + good, "unquantised"}}) {
    const std::string message = mistake(text);
    EXPECT_NE(message.find(part), std::string::npos) << text << "\n-> " << message;
    EXPECT_EQ(message.find("policy test: "), 0u) << message;
  }
}

TEST(Policies, RerunsMayDifferByDevice) {
  const auto reruns = [](const std::string& value) {
    return parse_policy("test",
                        "distributions = [\"normal\"]\n[limits.max_row]\nfp16 = { limit = 1 }\n"
                        "[integrity]\nreruns = " +
                            value + "\n")
        ->reruns;
  };
  EXPECT_EQ(reruns("7").on(DeviceKind::cpu), 7);
  EXPECT_EQ(reruns("7").on(DeviceKind::cuda), 7);
  EXPECT_EQ(reruns("{ cpu = 1, cuda = 30 }").on(DeviceKind::cpu), 1);
  EXPECT_EQ(reruns("{ cpu = 1, cuda = 30 }").on(DeviceKind::cuda), 30);
  // Two of them missed a race on a GPU.
  EXPECT_GE(strict().reruns.on(DeviceKind::cuda), 24);
}

TEST(Limits, AWrongEmulatorCannotLoosenTheGate) {
  const Policy policy = strict();
  std::vector<Problem> problems;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::e4m3})
    problems.push_back(make_problem(1, 1, 1, 8, 8, 64, dtype));
  problems.push_back(problems.back());
  problems.back().accuracy = Accuracy::fast;
  for (const Problem& p : problems) {
    for (const double base : {1e3, HUGE_VAL, std::numeric_limits<double>::quiet_NaN()}) {
      Metrics bad;
      bad.max_err = bad.max_row = bad.rel_fro = bad.bias = bad.gain = bad.max_lse_err = base;
      for (const auto& [metric, limit] : limits_for(policy, p, bad, 2.0)) {
        const double cap = policy.limit(metric, p)->cap * (metric == "max_err" ? 2.0 : 1.0);
        EXPECT_LE(limit, cap) << metric;
        EXPECT_GT(limit, 0) << metric;
      }
    }
    EXPECT_LE(policy.limit("max_row", p)->cap, 0.25) << "zeros score 1";
  }
}

TEST(Limits, ADistributionsOwnGoBeforeTheGeneralOnes) {
  const auto policy = parse_policy(
      "test",
      "distributions = [\"normal\", \"one_key\"]\n"
      "[limits.max_row]\nfp16 = { limit = 1 }\nbf16 = { limit = 2 }\n[limits.lse]\nfp16 = { limit "
      "= 3 }\n[distribution.one_key.max_row]\nfp16 = { limit = 0.5 }\n");
  ASSERT_TRUE(policy) << policy.status().message();
  const auto limits = [&](DType dtype, Distribution distribution) {
    return limits_for(*policy, make_problem(1, 1, 1, 1, 1, 64, dtype), {}, 1.0, distribution);
  };
  EXPECT_EQ(limits(DType::f16, Distribution::normal).at("max_row"), 1);
  EXPECT_EQ(limits(DType::f16, Distribution::one_key).at("max_row"), 0.5);
  EXPECT_EQ(limits(DType::f16, Distribution::one_key).at("lse"), 3);
  EXPECT_EQ(limits(DType::bf16, Distribution::one_key).at("max_row"), 2);
  EXPECT_NE(mistake("distributions = [\"normal\"]\n[limits.max_row]\nfp16 = { limit = 1 }\n"
                    "[distribution.two_keys.max_row]\nfp16 = { limit = 1 }\n")
                .find("unknown key distribution.two_keys"),
            std::string::npos);
}

TEST(Validate, KernelsThatRefuseTheEndsOfTheRangeAreJudgedByTheRest) {
  const Case asked = small_case();
  const auto cases =
      make_cases({{"test", asked.problem}}, strict(), std::array<std::uint64_t, 1>{0});
  std::set<std::string> of_their_own;
  for (const Case& c : cases) {
    EXPECT_EQ(c.problem.dtype, asked.problem.dtype);
    EXPECT_EQ(c.problem.head_dim, asked.problem.head_dim);
    EXPECT_TRUE(check(c.problem)) << to_string(c);
    const bool same = c.problem.seq_q == asked.problem.seq_q &&
                      c.problem.seq_kv == asked.problem.seq_kv &&
                      c.problem.scale == asked.problem.scale &&
                      features_of(c.problem) == features_of(asked.problem);
    EXPECT_NE(same, has_own_problem(c.distribution)) << to_string(c);
    if (has_own_problem(c.distribution)) of_their_own.insert(std::string(name_of(c.distribution)));
  }
  // No softcap, no mask, and too few keys to be asked about 98,305.
  EXPECT_EQ(of_their_own,
            (std::set<std::string>{"dead_rows", "extreme_v", "faint_tail", "far_offsets",
                                   "huge_heads", "huge_scores", "one_key", "recent_keys", "serving",
                                   "shared_top", "tiny_values"}));
}

TEST(Validate, EveryVariantIsTriedWithServingOrSaysWhatItLacks) {
  const auto opened = open_device(DeviceKind::cpu);
  ASSERT_TRUE(opened);
  std::vector<CaseData> data;
  std::size_t expected = 0;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Problem asked = make_problem(1, 2, 2, 16, 16, 32, dtype);
    expected += problems_of(Distribution::serving, asked).size();
    for (const Case& c : make_cases({{"test", asked}}, strict(), std::array<std::uint64_t, 1>{1}))
      if (c.distribution == Distribution::serving) data.push_back(*prepare_case(c, strict()));
  }
  EXPECT_EQ(data.size(), expected);
  Features asked;
  for (const CaseData& one : data) asked |= features_of(one.test.problem);
  EXPECT_TRUE(asked.hold(kFeaturesOfServing)) << to_string(kFeaturesOfServing - asked);
  for (const VariantInfo& variant : variants()) {
    const auto subject = make_library_subject(variant);
    for (const CaseData& one : data) {
      const Problem& p = one.test.problem;
      if (variant.device != DeviceKind::cpu) {
        // Without its device: what it says it takes decides.
        EXPECT_EQ(variant.takes.hold(features_of(p)),
                  missing_features(features_of(p), variant.takes).empty());
        continue;
      }
      const CaseResult result = validate(*subject, **opened, one, strict());
      if (result.verdict == Verdict::skipped) {
        EXPECT_FALSE(variant.takes.hold(features_of(p))) << variant.id << ' ' << to_string(p);
        EXPECT_NE(result.reason.find(missing_features(features_of(p), variant.takes)),
                  std::string::npos)
            << result.reason;
      } else {
        EXPECT_EQ(result.verdict, Verdict::green)
            << variant.id << ' ' << to_string(one.test) << ": " << result.reason;
      }
    }
  }
}

TEST(Limits, FollowTheCoarserOfInputAndOutput) {
  const Policy policy = strict();
  Problem p = make_problem(1, 1, 1, 8, 8, 64, DType::f32);
  const double fine = policy.limit("max_row", p)->floor;
  p.out_dtype = DType::bf16;
  EXPECT_GT(policy.limit("max_row", p)->floor, fine);
  EXPECT_EQ(policy.limit("max_row", p),
            policy.limit("max_row", make_problem(1, 1, 1, 8, 8, 64, DType::bf16)));
}

TEST(Limits, FastAccuracyHasItsOwnWhereAPolicySaysSo) {
  const auto policy = parse_policy("test",
                                   "distributions = [\"normal\"]\n"
                                   "[limits.max_row]\ne4m3 = { limit = 1 }\ne4m3_fast = { limit = "
                                   "2 }\n[limits.lse]\ne4m3 = { limit = 3 }\n");
  ASSERT_TRUE(policy) << policy.status().message();
  Problem p = make_problem(1, 1, 1, 8, 8, 64, DType::e4m3);
  EXPECT_EQ(limits_for(*policy, p, {}, 1.0).at("max_row"), 1);
  p.accuracy = Accuracy::fast;
  EXPECT_EQ(limits_for(*policy, p, {}, 1.0).at("max_row"), 2);
  EXPECT_EQ(limits_for(*policy, p, {}, 1.0).at("lse"), 3);
}

TEST(Validate, HonestKernelIsGreenInEveryLayoutAndMask) {
  const Policy policy = strict();
  for (const auto& layout : layout_table()) {
    if (!is_for(layout.id, small_case().problem.dtype)) continue;
    for (const Mask mask :
         {Mask::none(), Mask::causal(Alignment::top_left), Mask::causal(Alignment::bottom_right),
          Mask::window(9, 5, Alignment::bottom_right)}) {
      Case c = small_case();
      c.problem.mask = mask;
      set_layout(c.problem, layout.id);
      const CaseResult result = run("honest.wide_tiles", c, policy);
      EXPECT_EQ(result.verdict, Verdict::green)
          << layout.name << ' ' << to_string(c) << ": " << result.reason;
      EXPECT_EQ(result.rows_checked, result.rows_total);
      EXPECT_EQ(result.output_sha256.size(), 64u);
    }
  }
}

// Scores that fp32 does not know decide nothing about a kernel; what it does know still does.
TEST(Validate, HonestKernelsAreGreenAtAnyScaleAndSoftcap) {
  const Policy policy = strict();
  const struct {
    float scale, softcap;
  } ends[] = {{1e3f, 0}, {-1e5f, 0}, {1e20f, 0}, {1e30f, 0}, {0.125f, 1e8f}, {1e5f, 1e5f}};
  // All of it takes minutes under a sanitizer, for which a type and two ends reach the same code.
  const bool some = GREENFAST_TEST_PERCENT < 100;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::e4m3})
    for (const auto& end : ends)
      for (const auto& row : distribution_table()) {
        if (row.id == Distribution::file) continue;
        if (some && (dtype != DType::f16 || (end.scale != 1e30f && end.softcap != 1e8f))) continue;
        Problem asked = small_case(dtype).problem;
        asked.scale = end.scale;
        asked.softcap = end.softcap;
        for (const Problem& p : problems_of(row.id, asked)) {
          if (p.seq_kv > 5000) continue;
          Case c = small_case(dtype);
          c.problem = p;
          c.distribution = row.id;
          for (const char* const id : {"honest.two_pass", "honest.wide_tiles"}) {
            const CaseResult result = run(id, c, policy);
            EXPECT_NE(result.verdict, Verdict::red)
                << id << ' ' << to_string(c) << ": " << result.reason;
          }
        }
      }
  // One key: its V is returned, however large its score.
  Case one = small_case(DType::f32);
  one.problem = make_problem(1, 1, 1, 4, 1, 64, DType::f32);
  one.problem.scale = 1e30f;
  EXPECT_EQ(run("mutant.rounded_product", one, policy).verdict, Verdict::red);
  EXPECT_EQ(run("honest.two_pass", one, policy).verdict, Verdict::green);
  // Values that are all alike: no weight changes their mean.
  Case alike = small_case(DType::f32);
  alike.problem.scale = 1e9f;
  alike.distribution = Distribution::constant_v;
  EXPECT_EQ(run("mutant.gain", alike, policy).verdict, Verdict::red);
}

TEST(Validate, DigestIsOfTheElementsWhateverTheLayout) {
  const Policy policy = strict();
  Case c = small_case();
  const std::string first = run("honest.two_pass", c, policy).output_sha256;
  set_layout(c.problem, LayoutKind::padded);
  EXPECT_EQ(run("honest.two_pass", c, policy).output_sha256, first);
  c.seed = 1;
  EXPECT_NE(run("honest.two_pass", c, policy).output_sha256, first);
}

TEST(Validate, ReasonsNameTheMetricAndThePlace) {
  const Policy policy = strict();
  const CaseResult gain = run("mutant.gain", small_case(), policy);
  EXPECT_EQ(gain.verdict, Verdict::red);
  EXPECT_EQ(gain.failed_metric, "gain");
  EXPECT_EQ(gain.fault, Fault::numerics);
  EXPECT_NE(gain.reason.find("gain 0.05"), std::string::npos) << gain.reason;
  const CaseResult row = run("mutant.row_unwritten", small_case(), policy);
  EXPECT_EQ(row.failed_metric, "unwritten");
  EXPECT_EQ(row.fault, Fault::integrity);
  EXPECT_NE(row.reason.find("64 elements of O"), std::string::npos) << row.reason;
  EXPECT_NE(row.reason.find("b 0 h 3 i 36"), std::string::npos) << row.reason;
}

// A subject made of one function, for faults that a planted kernel cannot have.
class Lambda final : public Subject {
 public:
  using Launch = std::function<Status(const Problem&, const Tensors&, void*, std::size_t)>;
  explicit Lambda(Launch launch, std::int64_t workspace = 0)
      : launch_(std::move(launch)), workspace_(workspace) {}
  std::string id() const override { return "test.lambda"; }
  DeviceKind device() const override { return DeviceKind::cpu; }
  std::optional<std::string> refusal(const Problem&, const DeviceFacts&) override {
    return refusal_;
  }
  std::optional<Plan> plan(const Problem&, const DeviceFacts&) override {
    Plan plan;
    plan.workspace_bytes = workspace_;
    return plan;
  }
  Status prepare(const Problem&, void*) override { return {}; }
  Status launch(const Problem& p, const Tensors& t, void*, void* workspace,
                std::size_t bytes) override {
    return launch_(p, t, workspace, bytes);
  }
  std::optional<std::string> refusal_;

 private:
  Launch launch_;
  std::int64_t workspace_;
};

Status honest(const Problem& p, const Tensors& t) {
  return make_planted("honest.fp32_weights")->launch(p, t, nullptr, nullptr, 0);
}

TEST(Validate, WorkspaceIsGivenPoisonedAndFenced) {
  const Policy policy = strict();
  const auto data = *prepare_case(small_case(), policy);
  Lambda good(
      [](const Problem& p, const Tensors& t, void* workspace, std::size_t bytes) {
        EXPECT_EQ(bytes, 1000u);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(workspace) % 256, 0u);
        std::memset(workspace, 1, bytes);
        return honest(p, t);
      },
      1000);
  EXPECT_EQ(validate(good, cpu(), data, policy).verdict, Verdict::green);
  Lambda greedy(
      [](const Problem& p, const Tensors& t, void* workspace, std::size_t bytes) {
        static_cast<char*>(workspace)[bytes] = 0;
        return honest(p, t);
      },
      1000);
  const CaseResult result = validate(greedy, cpu(), data, policy);
  EXPECT_EQ(result.failed_metric, "redzone");
  EXPECT_NE(result.reason.find("workspace: 0 bytes past its end"), std::string::npos)
      << result.reason;
  // An accumulator in workspace that the kernel never clears.
  Lambda trusting(
      [](const Problem& p, const Tensors& t, void* workspace, std::size_t) {
        const Status status = honest(p, t);
        numeric::store(p.out_dtype, t.o, 0,
                       numeric::load(p.out_dtype, t.o, 0) +
                           static_cast<double>(*static_cast<float*>(workspace)));
        return status;
      },
      1000);
  EXPECT_EQ(validate(trusting, cpu(), data, policy).verdict, Verdict::red);
}

// A device whose stream runs late: what is put on it happens when it is read or waited for. Work
// that a subject puts elsewhere is done only when the whole device is waited for.
class LateDevice final : public Device {
 public:
  DeviceKind kind() const override { return cpu().kind(); }
  const DeviceFacts& facts() const override { return cpu().facts(); }
  void* allocate(std::size_t bytes) override { return cpu().allocate(bytes); }
  void release(void* memory) override { cpu().release(memory); }
  void upload(void* to, const void* from, std::size_t bytes) override {
    cpu().upload(to, from, bytes);
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    cpu().download(to, from, bytes);
  }
  void download_on_stream(void* to, const void* from, std::size_t bytes) override {
    drain(on_stream);
    cpu().download(to, from, bytes);
  }
  void* stream() override { return this; }
  Status synchronize() override {
    drain(on_stream);
    drain(elsewhere);
    return {};
  }
  void flush_cache() override {}
  double time(const std::function<void()>&, int) override { return 0; }
  double tick() const override { return 1; }
  std::string timer() const override { return "none"; }
  Telemetry telemetry() override { return {}; }
  Peak peak(DType) override { return {}; }

  std::vector<std::function<void()>> on_stream, elsewhere;

 private:
  static void drain(std::vector<std::function<void()>>& work) {
    for (const auto& one : work) one();
    work.clear();
  }
};

TEST(Validate, WorkOutsideTheStreamIsSeen) {
  const Policy policy = strict();
  const auto data = *prepare_case(small_case(), policy);
  LateDevice device;
  Lambda good([&](const Problem& p, const Tensors& t, void*, std::size_t) {
    device.on_stream.push_back([p, t] { (void)honest(p, t); });
    return Status();
  });
  EXPECT_EQ(validate(good, device, data, policy).verdict, Verdict::green);
  Lambda escapes([&](const Problem& p, const Tensors& t, void*, std::size_t) {
    device.elsewhere.push_back([p, t] { (void)honest(p, t); });
    return Status();
  });
  const CaseResult result = validate(escapes, device, data, policy);
  EXPECT_EQ(result.failed_metric, "stream") << result.reason;
  EXPECT_EQ(result.fault, Fault::integrity);
}

TEST(Validate, FailedLaunchAndRefusal) {
  const Policy policy = strict();
  const auto data = *prepare_case(small_case(), policy);
  Lambda failing([](const Problem&, const Tensors&, void*, std::size_t) {
    return Status(StatusCode::device_error, "out of smoke");
  });
  CaseResult result = validate(failing, cpu(), data, policy);
  EXPECT_EQ(result.verdict, Verdict::red);
  EXPECT_EQ(result.failed_metric, "launch");
  EXPECT_NE(result.reason.find("out of smoke"), std::string::npos);
  EXPECT_EQ(result.subject, "test.lambda");
  failing.refusal_ = "head_dim 64 is odd";
  result = validate(failing, cpu(), data, policy);
  EXPECT_EQ(result.verdict, Verdict::skipped);
  EXPECT_EQ(result.reason, "head_dim 64 is odd");
}

TEST(Validate, NanAndInfinityMustStandWhereTheReferenceHasThem) {
  const Policy policy = strict();
  Case c = small_case(DType::f32);
  c.problem.lse = false;
  Inputs inputs = generate(c);
  // Value 3 of head 0 is Inf: column 5 of heads 0 and 1 is Inf, and nothing else.
  numeric::store(DType::f32, inputs.v.data(), 3 * 64 + 5, HUGE_VAL);
  const auto data = *prepare_case(c, inputs, policy);
  EXPECT_TRUE(data.reference.nonfinite_visible);
  EXPECT_EQ(validate(*make_planted("honest.two_pass"), cpu(), data, policy).verdict,
            Verdict::green);
  Lambda hides([](const Problem& p, const Tensors& t, void*, std::size_t) {
    const Status status = honest(p, t);
    numeric::store(p.out_dtype, t.o, 5, 1.0);
    return status;
  });
  EXPECT_EQ(validate(hides, cpu(), data, policy).failed_metric, "nan");
}

TEST(Validate, EmptyProblems) {
  const Policy policy = strict();
  Case c = small_case();
  c.problem = make_problem(1, 2, 2, 3, 0, 64, DType::f16);
  c.problem.lse = true;
  Lambda zeros([](const Problem& p, const Tensors& t, void*, std::size_t) {
    std::memset(t.o, 0, static_cast<std::size_t>(p.heads_q * p.seq_q * p.head_dim * 2));
    for (int i = 0; i < 6; ++i) t.lse[i] = -std::numeric_limits<float>::infinity();
    return Status();
  });
  auto data = *prepare_case(c, policy);
  EXPECT_EQ(validate(zeros, cpu(), data, policy).verdict, Verdict::green);
  Lambda lazy([](const Problem&, const Tensors&, void*, std::size_t) { return Status(); });
  EXPECT_EQ(validate(lazy, cpu(), data, policy).failed_metric, "unwritten");
  c.problem = make_problem(1, 2, 2, 0, 5, 64, DType::f16);
  data = *prepare_case(c, policy);
  EXPECT_EQ(validate(lazy, cpu(), data, policy).verdict, Verdict::green) << "nothing to write";
}

TEST(Validate, SampledRowsStillSeeANaNElsewhere) {
  Policy policy = strict();
  policy.flop_budget = 2e5;
  Case c = small_case();
  c.problem = make_problem(1, 4, 4, 400, 64, 64, DType::f16);
  const auto data = *prepare_case(c, policy);
  ASSERT_LT(data.reference.rows.size(), 1600u);
  std::int64_t unchecked = 0;
  while (std::binary_search(data.reference.rows.begin(), data.reference.rows.end(), unchecked))
    ++unchecked;
  Lambda spoils([&](const Problem& p, const Tensors& t, void*, std::size_t) {
    const Status status = honest(p, t);
    numeric::store(p.out_dtype, t.o, unchecked * 64, std::numeric_limits<double>::quiet_NaN());
    return status;
  });
  EXPECT_EQ(validate(spoils, cpu(), data, policy).failed_metric, "nan");
}

TEST(Validate, JudgesAnOutputOnTheHostAlone) {
  const Policy policy = strict();
  const Case c = small_case();
  const auto data = *prepare_case(c, policy);
  const Problem& p = c.problem;
  std::vector<std::uint16_t> o(static_cast<std::size_t>(p.heads_q * p.seq_q * p.head_dim));
  std::vector<float> lse(static_cast<std::size_t>(p.heads_q * p.seq_q));
  for (std::size_t i = 0; i < o.size(); ++i) o[i] = numeric::to_f16(data.reference.o[i]);
  for (std::size_t i = 0; i < lse.size(); ++i) lse[i] = static_cast<float>(data.reference.lse[i]);
  EXPECT_EQ(judge_output(data, o.data(), lse.data()).verdict, Verdict::green);
  std::swap(o[0], o[64]);
  const CaseResult result = judge_output(data, o.data(), lse.data());
  EXPECT_EQ(result.verdict, Verdict::red);
  EXPECT_FALSE(result.reason.empty());
}

TEST(Validate, MemoryThatIsNotThereIsSaidBeforeItIsTaken) {
  Case c = small_case();
  c.problem = make_problem(64, 128, 128, 1 << 20, 1 << 20, 256, DType::f16);
  const auto data = prepare_case(c, strict());
  ASSERT_FALSE(data);
  EXPECT_EQ(data.status().code(), StatusCode::out_of_memory);
  EXPECT_NE(data.status().message().find("MiB"), std::string::npos);
}

// Of a negative scale the ends of the range are the same problems with Q turned: they were N(0, 1) once, and one_key's
// limit, which is for a row of one key, called right kernels wrong.
TEST(Limits, ANegativeScaleTurnsQAndNothingElse) {
  for (const DType dtype : {DType::f16, DType::e4m3})
    for (const Distribution distribution :
         {Distribution::faint_tail, Distribution::recent_keys, Distribution::one_key,
          Distribution::huge_scores, Distribution::tiny_values}) {
      Problem asked = make_problem(1, 2, 2, 64, 64, 64, dtype);
      std::vector<Metrics> seen;
      for (const float scale : {0.1f, -0.1f}) {
        asked.scale = scale;
        for (const Problem& problem : problems_of(distribution, asked)) {
          Case c;
          c.problem = problem;
          c.distribution = distribution;
          seen.push_back(prepare_case(c, strict())->emulator);
        }
      }
      ASSERT_EQ(seen.size() % 2, 0u);
      for (std::size_t i = 0; i < seen.size() / 2; ++i)
        EXPECT_DOUBLE_EQ(seen[i].max_row, seen[i + seen.size() / 2].max_row)
            << name_of(distribution) << ' ' << name_of(dtype);
    }
}

TEST(Limits, AreOfADistributionWhoseScoresArePlacedAlone) {
  Case c;
  c.distribution = Distribution::one_key;
  std::vector<double> limits;
  for (const float scale : {-0.1f, 0.1f, 0.0f, 1e4f}) {
    Problem asked = make_problem(1, 2, 2, 64, 64, 64, DType::e4m3);
    asked.scale = scale;
    c.problem = problems_of(c.distribution, asked).front();
    limits.push_back(prepare_case(c, strict())->limits.at("max_row"));
  }
  EXPECT_LT(limits[0], 0.01);
  EXPECT_DOUBLE_EQ(limits[0], limits[1]);
  EXPECT_GT(limits[2], 0.05) << "at a scale of 0 nothing stands out";
  EXPECT_GT(limits[3], 0.05) << "values for this scale would be absurd";
}

TEST(Subjects, SelectorsFindWhatIsThere) {
  const auto everything = find_subjects("all");
  ASSERT_TRUE(everything) << everything.status().message();
  std::size_t rungs_and_kernels = 0, rollbacks = 0;
  for (const VariantInfo& variant : variants()) {
    rungs_and_kernels += variant.derived_from.empty() ? 1 : 0;
    rollbacks += !variant.derived_from.empty() && variant.phases.empty() ? 1 : 0;
    const auto alone = find_subjects(variant.id);
    ASSERT_TRUE(alone) << variant.id;
    EXPECT_EQ(alone->size(), 1u) << variant.id;
  }
  EXPECT_EQ(everything->size(), rungs_and_kernels);
  EXPECT_EQ(find_subjects("rollback")->size(), rollbacks);
  EXPECT_GT(rollbacks, 0u);
  const auto ladder = find_subjects("ladder");
  ASSERT_TRUE(ladder) << ladder.status().message();
  EXPECT_EQ(ladder->size(), 18u) << "six rungs of V2c and twelve of stage-C";
  const auto two = find_subjects("cpu.naive, mutant.zeros,cpu.n*");
  ASSERT_TRUE(two) << two.status().message();
  ASSERT_EQ(two->size(), 2u) << "each once";
  EXPECT_EQ((*two)[0]->id(), "cpu.naive");
  EXPECT_EQ((*two)[1]->id(), "mutant.zeros");
  const auto planted = find_subjects("mutant.*");
  ASSERT_TRUE(planted);
  EXPECT_GE(planted->size(), 20u);
  for (const char* selector : {"cpu.fash", "", "cpu.naive,,cpu.flash"}) {
    const auto none = find_subjects(selector);
    ASSERT_FALSE(none) << selector;
    EXPECT_NE(none.status().message().find("cpu.naive"), std::string::npos);
    EXPECT_NE(none.status().message().find("mutant.NAME"), std::string::npos);
  }
  const auto misspelt = find_subjects("mutant.zeroes");
  ASSERT_FALSE(misspelt);
  EXPECT_NE(misspelt.status().message().find("mutant.zeros"), std::string::npos);
}

TEST(Subjects, LibraryVariantsAreGreenOnTheEdges) {
  const Policy policy = strict();
  const auto subjects = find_subjects("cpu.*");
  ASSERT_TRUE(subjects);
  ProblemDefaults defaults;
  defaults.lse = true;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    if (GREENFAST_TEST_PERCENT < 100 && dtype == DType::f32) continue;
    defaults.dtype = dtype;
    const std::uint64_t seed = 0;
    for (const Case& c : make_cases(*parse_shapes("edges", defaults), policy, {&seed, 1})) {
      if (c.distribution != Distribution::normal && c.distribution != Distribution::permutation)
        continue;
      const auto data = *prepare_case(c, policy);
      for (const auto& subject : *subjects) {
        const CaseResult result = validate(*subject, cpu(), data, policy);
        EXPECT_NE(result.verdict, Verdict::red)
            << subject->id() << ' ' << to_string(c) << ": " << result.reason;
      }
    }
  }
}

// A value that only a later version knows: neither judged nor computed by anything planted.
TEST(Features, WhatNoReferenceKnowsIsNotJudged) {
  Case c = small_case(DType::e4m3);
  c.problem.scales = static_cast<ScaleKind>(4);
  const auto data = prepare_case(c, Inputs{}, strict());
  ASSERT_FALSE(data);
  EXPECT_EQ(data.status().code(), StatusCode::unsupported);
  EXPECT_EQ(data.status().message().find("the oracle cannot judge 1x4/2x37/70x64 e4m3"), 0u)
      << data.status().message();
  EXPECT_NE(data.status().message().find("an unknown feature"), std::string::npos);
  for (const PlantedRow& row : planted_table()) {
    const auto why = make_planted(planted_id(row))->refusal(c.problem, cpu().facts());
    ASSERT_TRUE(why) << row.name;
    EXPECT_NE(why->find("an unknown feature"), std::string::npos) << *why;
  }
}

}  // namespace
}  // namespace greenfast::workbench::test
