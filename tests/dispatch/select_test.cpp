// Selection and registry with variants made for the test: pure functions, no device.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "core/text.hpp"
#include "dispatch/prefer.hpp"
#include "dispatch/registry.hpp"
#include "dispatch/select.hpp"

namespace greenfast::dispatch {
namespace {

using core::Choice;
using core::Kernel;
using core::Variant;

bool supports_64(const Problem& p, const DeviceFacts&, Choice, std::string* why) {
  const bool fits = p.head_dim == 64;
  if (why != nullptr) *why = fits ? "made for 64" : core::concat("head_dim ", p.head_dim);
  return fits;
}
bool supports_all(const Problem&, const DeviceFacts&, Choice, std::string* why) {
  if (why != nullptr) *why = "takes all";
  return true;
}
bool supports_unless_invariant(const Problem&, const DeviceFacts&, Choice choice,
                               std::string* why) {
  if (why != nullptr) *why = "splits by batch";
  return !choice.batch_invariant;
}
template <int Rank>
core::Preference rank_always(const Problem&, const DeviceFacts&, Choice) {
  return {Rank};
}
core::Preference rank_with_note(const Problem& p, const DeviceFacts&, Choice) {
  return p.seq_kv > 8 ? core::Preference{200} : core::Preference{5, "slower at short lengths"};
}
bool never_asked(const Problem&, const DeviceFacts&, Choice, std::string*) {
  ADD_FAILURE() << "a kernel was asked about a device or an empty problem that is not its own";
  return true;
}
Plan plan_with_tile(const Problem&, const DeviceFacts& facts, Choice) {
  Plan plan;
  plan.tile_q = 16;
  plan.grid = {facts.multiprocessors, 1, 1};
  return plan;
}
std::int64_t workspace_of_768(const Problem&, const DeviceFacts&, Choice) { return 768; }

constexpr Kernel kSpecial{.supports = supports_64, .plan = plan_with_tile};
constexpr Kernel kGeneral{.supports = supports_all, .plan = plan_with_tile};
constexpr Kernel kTwin{.supports = supports_all, .plan = plan_with_tile};
constexpr Kernel kRung{.supports = supports_all, .plan = plan_with_tile};
constexpr Kernel kSplit{
    .supports = supports_unless_invariant, .plan = plan_with_tile, .workspace = workspace_of_768};
constexpr Kernel kForeign{.supports = never_asked, .plan = plan_with_tile};

constexpr Features kTakes{Feature::in_f16, Feature::out_f16, Feature::grouped_heads,
                          Feature::exact_accuracy};
constexpr Variant kGeneralRow{
    .id = "cpu.general", .takes = kTakes, .prefer = rank_always<10>, .kernel = &kGeneral};
constexpr Variant kSpecialRow{
    .id = "cpu.special", .takes = kTakes, .prefer = rank_always<100>, .kernel = &kSpecial};
constexpr Variant kRungRow{.id = "cpu.rung", .automatic = false, .takes = kTakes, .kernel = &kRung};
constexpr Variant kSplitRow{
    .id = "cpu.split", .takes = kTakes, .prefer = rank_always<300>, .kernel = &kSplit};
const std::vector<Variant> kCpu = {
    kGeneralRow,
    kSpecialRow,
    {.id = "cpu.twin", .takes = kTakes, .prefer = rank_always<10>, .kernel = &kTwin},
    kRungRow,
    {.id = "cuda.other",
     .device = DeviceKind::cuda,
     .min_arch = 80,
     .takes = kTakes,
     .prefer = rank_always<900>,
     .kernel = &kForeign},
};

DeviceFacts cpu_facts() {
  DeviceFacts facts;
  facts.name = "test cpu";
  facts.multiprocessors = 4;
  return facts;
}
DeviceFacts gpu_facts(int arch) {
  DeviceFacts facts;
  facts.kind = DeviceKind::cuda;
  facts.name = "test gpu";
  facts.arch = arch;
  return facts;
}
Problem with_head_dim(std::int64_t d) { return make_problem(1, 2, 1, 8, 8, d, DType::f16); }

std::string chosen(const std::vector<Variant>& rows, const Problem& problem,
                   const DeviceFacts& facts, std::string_view forced = {}, Choice choice = {}) {
  Status why;
  const Variant* row = select(rows, {problem, facts, choice, forced}, &why);
  return row != nullptr ? std::string(row->id) : why.message();
}

TEST(Select, HighestRankWinsAndTheEarlierRowAtATie) {
  EXPECT_EQ(chosen(kCpu, with_head_dim(64), cpu_facts()), "cpu.special");
  EXPECT_EQ(chosen(kCpu, with_head_dim(32), cpu_facts()), "cpu.general");
}

TEST(Select, ForcedVariantsNeedNoPreference) {
  EXPECT_EQ(chosen(kCpu, with_head_dim(64), cpu_facts(), "cpu.twin"), "cpu.twin");
  EXPECT_EQ(chosen(kCpu, with_head_dim(64), cpu_facts(), "cpu.rung"), "cpu.rung");
}

TEST(Select, AForcedVariantThatRefusesIsAnErrorAndNeverReplaced) {
  Status why;
  const Problem p = with_head_dim(32);
  EXPECT_EQ(select(kCpu, {p, cpu_facts(), {}, "cpu.special"}, &why), nullptr);
  EXPECT_EQ(why.code(), StatusCode::unsupported);
  EXPECT_EQ(why.message(), "cpu.special cannot take 1x2/1x8x32 fp16 on test cpu: head_dim 32");
  EXPECT_EQ(select(kCpu, {p, cpu_facts(), {}, "cuda.other"}, &why), nullptr);
  EXPECT_EQ(why.code(), StatusCode::unsupported);
  EXPECT_NE(why.message().find("runs on cuda, and the device is cpu"), std::string::npos);
}

TEST(Select, AnUnknownIdNamesTheNearest) {
  Status why;
  const Problem p = with_head_dim(32);
  EXPECT_EQ(select(kCpu, {p, cpu_facts(), {}, "cpu.spezial"}, &why), nullptr);
  EXPECT_EQ(why.code(), StatusCode::invalid_argument);
  EXPECT_EQ(why.message().find("variant 'cpu.spezial' does not exist; nearest: cpu.special, "), 0u)
      << why.message();
  // Part of an id is as near as it gets; a very long one is cut.
  EXPECT_NE(unknown_variant(kCpu, "rung").find("nearest: cpu.rung"), std::string::npos);
  EXPECT_LT(unknown_variant(kCpu, std::string(100000, 'x')).size(), 300u);
}

TEST(Select, ABuildWithoutCudaSaysSoOnceAndWhatToDo) {
  // The rows of a build without CUDA: they stand there, and none has a kernel.
  Variant other = kCpu.back();
  other.kernel = nullptr;
  Variant another = other;
  another.id = "cuda.another";
  DeviceFacts facts = cpu_facts();
  facts.kind = DeviceKind::cuda;
  facts.name = "test GPU";
  EXPECT_EQ(chosen({kGeneralRow, other, another}, with_head_dim(32), facts),
            "no variant takes 1x2/1x8x32 fp16 on test GPU: this build has no CUDA kernels: build "
            "with GREENFAST_CUDA=on, which needs nvcc 13.0 and no GPU");
}

TEST(Select, WhenNothingFitsEverybodySaysWhy) {
  const std::vector<Variant> rows = {kSpecialRow, kRungRow};
  EXPECT_EQ(chosen(rows, with_head_dim(32), cpu_facts()),
            "no variant takes 1x2/1x8x32 fp16 on test cpu: cpu.special: head_dim 32; by name these "
            "take it: cpu.rung");
  EXPECT_EQ(chosen({}, with_head_dim(32), cpu_facts()),
            "no variant takes 1x2/1x8x32 fp16 on test cpu: none for cpu is in this build");
}

TEST(Select, BatchInvariantCallsReachTheKernel) {
  const std::vector<Variant> rows = {kGeneralRow, kSplitRow};
  EXPECT_EQ(chosen(rows, with_head_dim(64), cpu_facts()), "cpu.split");
  EXPECT_EQ(chosen(rows, with_head_dim(64), cpu_facts(), {}, {.batch_invariant = true}),
            "cpu.general");
}

TEST(Select, ArchitecturesOfTheBuildDecide) {
  const auto row = [](int min_arch, int lowest, bool exact, const Kernel* kernel) {
    return Variant{.id = "cuda.x",
                   .device = DeviceKind::cuda,
                   .min_arch = min_arch,
                   .takes = kTakes,
                   .kernel = kernel,
                   .lowest_code = lowest,
                   .exact_code = exact};
  };
  const Problem p = with_head_dim(64);
  const auto says = [&p](const Variant& variant, int arch) {
    return chosen({variant}, p, gpu_facts(arch), "cuda.x");
  };
  EXPECT_EQ(says(row(80, 80, false, &kGeneral), 80), "cuda.x");
  EXPECT_EQ(says(row(80, 80, false, &kGeneral), 120), "cuda.x");  // PTX carries it forward
  EXPECT_EQ(says(row(90, 90, true, &kGeneral), 90), "cuda.x");
  EXPECT_NE(says(row(80, 80, false, &kForeign), 75)
                .find("needs compute capability 8.0, test gpu "
                      "has 7.5"),
            std::string::npos);
  EXPECT_NE(says(row(80, 89, false, &kForeign), 80)
                .find("code for compute capability 8.9 and "
                      "later"),
            std::string::npos);
  EXPECT_NE(says(row(90, 90, true, &kForeign), 100).find("9.0 alone"), std::string::npos);
  EXPECT_NE(says(row(80, 0, false, nullptr), 90).find("not built"), std::string::npos);
}

TEST(Select, EmptyProblemsAreForEveryVariantOfTheDevice) {
  const std::vector<Variant> rows = {
      {.id = "cpu.foreign", .prefer = rank_always<1>, .kernel = &kForeign}};
  for (const Problem& p :
       {make_problem(1, 1, 1, 4, 0, 64, DType::f16), make_problem(1, 1, 1, 0, 4, 64, DType::f16),
        make_problem(0, 1, 1, 4, 4, 64, DType::f16)}) {
    EXPECT_EQ(chosen(rows, p, cpu_facts()), "cpu.foreign");
    const Result<Plan> planned = plan(rows, {p, cpu_facts(), {}, {}});
    ASSERT_TRUE(planned);
    EXPECT_EQ(planned->variant, "cpu.foreign");
    EXPECT_EQ(planned->grid, (std::array<int, 3>{0, 0, 0}));
    EXPECT_EQ(planned->workspace_bytes, 0);
    EXPECT_FALSE(planned->note.empty());
  }
}

TEST(Select, ExplainHasEverybodysAnswerInOrder) {
  const Problem p = with_head_dim(64);
  const Selection selection = explain(kCpu, {p, cpu_facts(), {}, {}});
  EXPECT_EQ(selection.chosen, "cpu.special");
  EXPECT_FALSE(selection.forced);
  EXPECT_EQ(selection.refusal, "");
  ASSERT_EQ(selection.candidates.size(), kCpu.size());
  for (std::size_t i = 0; i < kCpu.size(); ++i) {
    EXPECT_EQ(selection.candidates[i].variant, kCpu[i].id);
    EXPECT_EQ(selection.candidates[i].accepted, selection.candidates[i].rank > 0);
    EXPECT_FALSE(selection.candidates[i].reason.empty());
  }
  EXPECT_EQ(selection.candidates[1].reason, "made for 64");
  EXPECT_EQ(selection.candidates[3].reason, "takes all (by name only)");
  EXPECT_FALSE(selection.candidates[4].accepted);

  const Selection refused = explain(kCpu, {p, cpu_facts(), {}, "cpu.none"});
  EXPECT_TRUE(refused.forced);
  EXPECT_EQ(refused.chosen, "");
  EXPECT_NE(refused.refusal.find("cpu.none"), std::string::npos);
}

TEST(Select, PlanCarriesTheIdAndWorkspaceFollowsTheKernel) {
  const std::vector<Variant> rows = {kSplitRow};
  const Problem p = with_head_dim(64);
  const DeviceFacts facts = cpu_facts();
  const Result<Plan> planned = plan(rows, {p, facts, {}, {}});
  ASSERT_TRUE(planned);
  EXPECT_EQ(planned->variant, "cpu.split");
  EXPECT_EQ(planned->tile_q, 16);
  EXPECT_EQ(workspace_bytes(rows[0], {p, facts, {}, {}}), 768);
  const Problem empty = make_problem(1, 1, 1, 4, 0, 64, DType::f16);
  EXPECT_EQ(workspace_bytes(rows[0], {empty, facts, {}, {}}), 0);
}

TEST(Select, WithoutScratchVariantsThatWantSomeArePassedOver) {
  const std::vector<Variant> rows = {kGeneralRow, kSplitRow};
  const Problem p = with_head_dim(64);
  const DeviceFacts facts = cpu_facts();
  Query query{p, facts, {}, {}};
  EXPECT_EQ(select(rows, query, nullptr)->id, "cpu.split");
  query.choice.scratch = 0;
  EXPECT_EQ(select(rows, query, nullptr)->id, "cpu.general");
  // By name it is taken, and the call says what it wants.
  query.forced = "cpu.split";
  EXPECT_EQ(select(rows, query, nullptr)->id, "cpu.split");
  // Nobody left: the refusal says what to pass.
  const std::vector<Variant> alone = {kSplitRow};
  query.forced = {};
  Status why;
  EXPECT_EQ(select(alone, query, &why), nullptr);
  EXPECT_NE(why.message().find("cpu.split: wants 768 bytes of scratch: pass Options::workspace"),
            std::string::npos)
      << why.message();
}

TEST(Select, ThePreferenceOfARowStandsBehindItsKernelsReason) {
  const std::vector<Variant> rows = {
      kGeneralRow, {.id = "cpu.long", .takes = kTakes, .prefer = rank_with_note, .kernel = &kTwin}};
  const Problem few = with_head_dim(64);
  EXPECT_EQ(chosen(rows, few, cpu_facts()), "cpu.general");
  EXPECT_EQ(explain(rows, {few, cpu_facts(), {}, {}}).candidates[1].reason,
            "takes all; slower at short lengths");
  EXPECT_EQ(chosen(rows, make_problem(1, 2, 1, 8, 9, 64, DType::f16), cpu_facts()), "cpu.long");
}

TEST(Select, AMissingFeatureIsRefusedByNameBeforeTheKernelIsAsked) {
  const std::vector<Variant> rows = {
      {.id = "cpu.foreign", .takes = kTakes, .prefer = rank_always<900>, .kernel = &kForeign},
      {.id = "cpu.capped",
       .takes = kTakes | Feature::softcap,
       .prefer = rank_always<10>,
       .kernel = &kGeneral}};
  Problem p = with_head_dim(64);
  p.softcap = 10.0f;
  EXPECT_EQ(chosen(rows, p, cpu_facts()), "cpu.capped");
  EXPECT_EQ(chosen(rows, p, cpu_facts(), "cpu.foreign"),
            "cpu.foreign cannot take 1x2/1x8x64 fp16 softcap=10 on test cpu: a softcap, which it "
            "does not take: ask for another variant");
  p.dtype = DType::bf16;
  p.lse = true;
  EXPECT_EQ(explain(rows, {p, cpu_facts(), {}, {}}).candidates[1].reason,
            "bf16 inputs; takes fp16 inputs: convert Q, K and V; the LSE, which it does not take: "
            "ask for another variant");
}

// The measured rows of docs/kernels/sm90.md: who of the two wins on 132 multiprocessors.
TEST(Prefer, SmallStandsBeforePrefillWhereItWasFaster) {
  const DeviceFacts h200 = *model_facts("h200");
  const auto small_wins = [&h200](const Problem& p, Choice choice = {}) {
    return prefer::cuda_sm90_small(p, h200, choice).rank >
           prefer::cuda_sm90_prefill(p, h200, choice).rank;
  };
  const auto dense = [](std::int64_t b, std::int64_t h, std::int64_t s, std::int64_t d) {
    return make_problem(b, h, h, s, s, d, DType::f16);
  };
  for (const Problem& p :
       {dense(1, 8, 512, 64), dense(3, 32, 64, 64), dense(1, 2, 2048, 64), dense(1, 8, 1024, 64),
        dense(4, 8, 128, 128), dense(1, 8, 1024, 128), dense(1, 4, 2048, 128),
        make_problem(1, 64, 64, 128, 4096, 128, DType::f16)})
    EXPECT_TRUE(small_wins(p)) << to_string(p);
  for (const Problem& p : {dense(1, 4, 2048, 64), dense(4, 8, 256, 64), dense(8, 8, 128, 64),
                           dense(4, 8, 256, 128), dense(3, 32, 64, 128), dense(8, 8, 128, 128),
                           make_problem(4, 32, 32, 16, 4096, 128, DType::f16)})
    EXPECT_FALSE(small_wins(p)) << to_string(p);
  // What a tile sees decides, not how long the sequence is; and not the batch, when it may not.
  Problem window = dense(1, 8, 1024, 128);
  window.mask = Mask::window(447, 0, Alignment::bottom_right);
  EXPECT_FALSE(small_wins(window));
  window.mask.left = 448;
  EXPECT_TRUE(small_wins(window));
  EXPECT_TRUE(small_wins(dense(64, 8, 256, 64), {.batch_invariant = true}));
  // The reference is nobody's choice, and the kernel for anything nobody's where a faster one can.
  const Problem p = dense(1, 8, 512, 64);
  EXPECT_LT(prefer::cpu_naive(p, h200, {}).rank, prefer::cpu_flash(p, h200, {}).rank);
  EXPECT_LT(prefer::cuda_sm80_mma(p, h200, {}).rank,
            prefer::cuda_sm90_small(dense(8, 8, 128, 64), h200, {}).rank);
}

// Its kernel need not know: a second such kernel whose author forgets to ask would serve exact calls.
TEST(Select, ARowThatApproximatesTakesNoExactProblem) {
  const std::vector<Variant> rows = {
      {.id = "cpu.coarse",
       .takes = (kTakes - Feature::exact_accuracy) | Feature::fast_accuracy,
       .prefer = rank_always<900>,
       .kernel = &kTwin},
      kGeneralRow};
  const DeviceFacts facts;
  Problem p = make_problem(1, 1, 1, 8, 8, 64, DType::f16);
  const Selection exact = explain(rows, {p, facts, {}, {}});
  EXPECT_EQ(exact.chosen, "cpu.general");
  EXPECT_EQ(exact.candidates[0].reason,
            "exact accuracy; takes fast accuracy: ask for fast accuracy or for another variant");
  Status why;
  EXPECT_EQ(select(rows, {p, facts, {}, "cpu.coarse"}, &why), nullptr);
  EXPECT_NE(why.message().find("exact accuracy"), std::string::npos) << why.message();
  p.accuracy = Accuracy::fast;
  EXPECT_EQ(explain(rows, {p, facts, {}, {}}).chosen, "cpu.coarse");
}

// The default is closed: who does not say how near his answers are is chosen for nothing.
TEST(Select, ARowThatSaysNothingOfAccuracyTakesNothing) {
  const std::vector<Variant> rows = {{.id = "cpu.silent",
                                      .takes = kTakes - Feature::exact_accuracy,
                                      .prefer = rank_always<900>,
                                      .kernel = &kForeign}};
  const DeviceFacts facts;
  Problem p = make_problem(1, 1, 1, 8, 8, 64, DType::f16);
  for (const Accuracy accuracy : {Accuracy::exact, Accuracy::fast}) {
    p.accuracy = accuracy;
    const Selection selection = explain(rows, {p, facts, {}, {}});
    EXPECT_EQ(selection.chosen, "");
    EXPECT_EQ(selection.candidates[0].reason.find(name_of(accuracy)), 0u)
        << selection.candidates[0].reason;
  }
}

// The real table.
TEST(Registry, AFeatureThatNobodyTakesIsRefusedByEveryVariantByName) {
  for (const char* model : {"cpu", "h200", "a100", "l4"}) {
    const Result<DeviceFacts> facts = model_facts(model);
    ASSERT_TRUE(facts);
    const Problem seen = make_problem(1, 8, 8, 64, 64, 64, DType::f16);
    // Also where no kernel would run: a feature may change the answer of a row without keys.
    const Problem empty = make_problem(1, 8, 8, 64, 0, 64, DType::f16);
    for (const Problem& p : {seen, empty}) {
      Query query{p, *facts, {}, {}};
      query.needs |= Feature::example;
      const Selection selection = explain(registry(), query);
      EXPECT_EQ(selection.chosen, "") << model;
      EXPECT_NE(selection.refusal, "");
      for (std::size_t i = 0; i < registry().size(); ++i) {
        const Variant& row = registry()[i];
        const Candidate& answer = selection.candidates[i];
        SCOPED_TRACE(core::concat(row.id, " on ", model, ": ", answer.reason));
        EXPECT_FALSE(answer.accepted);
        if (row.kernel == nullptr || row.device != facts->kind || facts->arch < row.lowest_code ||
            (row.exact_code && facts->arch != row.lowest_code))
          continue;
        EXPECT_NE(answer.reason.find("the example feature"), std::string::npos);
        query.forced = row.id;
        Status why;
        EXPECT_EQ(select(registry(), query, &why), nullptr);
        EXPECT_EQ(why.code(), StatusCode::unsupported);
        EXPECT_NE(why.message().find("the example feature"), std::string::npos) << why.message();
        query.forced = {};
      }
    }
  }
}

TEST(Registry, RowsAreWellFormed) {
  std::set<std::string_view> seen;
  for (const Variant& row : registry()) {
    SCOPED_TRACE(row.id);
    EXPECT_TRUE(seen.insert(row.id).second);
    EXPECT_EQ(row.id.substr(0, row.id.find('.')), name_of(row.device));
    EXPECT_EQ(row.id.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789._"),
              std::string_view::npos);
    EXPECT_TRUE(row.takes.hold(Feature::exact_accuracy) || row.takes.hold(Feature::fast_accuracy));
    EXPECT_FALSE(row.idea.empty());
    EXPECT_EQ(row.idea.find('\n'), std::string_view::npos);
    EXPECT_EQ(row.min_arch > 0, row.device == DeviceKind::cuda);
    EXPECT_TRUE(row.predecessor.empty() || find(registry(), row.predecessor) != nullptr);
    EXPECT_TRUE(row.device != DeviceKind::cpu || row.kernel != nullptr);
    if (row.kernel != nullptr) {
      EXPECT_NE(row.kernel->supports, nullptr);
      EXPECT_NE(row.kernel->plan, nullptr);
      EXPECT_NE(row.kernel->launch, nullptr);
      EXPECT_TRUE(row.device != DeviceKind::cuda || row.lowest_code >= row.min_arch);
    }
  }
  // The one kernel with linear weights, in builds that cannot compile it too.
  EXPECT_FALSE(find(registry(), "cuda.sm90.fp8_fast")->takes.hold(Feature::exact_accuracy));
  EXPECT_TRUE(find(registry(), "cuda.sm90.fp8_curved")->takes.hold(Feature::exact_accuracy));
  EXPECT_NE(find(registry(), "cpu.naive"), nullptr);
  EXPECT_EQ(find(registry(), "cpu"), nullptr);
  EXPECT_EQ(find(registry(), ""), nullptr);
}

TEST(Registry, RowsExistInEveryBuild) {
  std::size_t cuda = 0, built = 0;
  for (const Variant& row : registry()) {
    if (row.device != DeviceKind::cuda) continue;
    ++cuda;
    built += row.kernel != nullptr;
  }
  EXPECT_GT(cuda, 0u);
  EXPECT_EQ(built > 0, GREENFAST_HAVE_CUDA == 1);
  if (GREENFAST_HAVE_CUDA == 0) {
    const Problem p = make_problem(1, 8, 8, 512, 512, 64, DType::f16);
    const Result<DeviceFacts> h200 = model_facts("h200");
    Status why;
    EXPECT_EQ(select(registry(), {p, *h200, {}, {}}, &why), nullptr);
    EXPECT_NE(why.message().find("this build has no CUDA kernels"), std::string::npos);
  }
}

// What every kernel owes selection, asked of all that are built, on every known device.
TEST(Registry, KernelsKeepTheirPromises) {
  std::vector<Problem> problems;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::e4m3})
    for (const std::int64_t d : {8, 64, 128, 256})
      for (const std::int64_t s : {1, 17, 512, 4096})
        for (const Mask& mask : {Mask::none(), Mask::causal(Alignment::bottom_right)}) {
          problems.push_back(make_problem(2, 8, 2, s, s, d, dtype));
          problems.back().mask = mask;
        }
  for (const char* model : {"cpu", "h200", "h100", "a100", "l4"}) {
    const Result<DeviceFacts> facts = model_facts(model);
    ASSERT_TRUE(facts);
    for (const Variant& row : registry()) {
      // Dispatch asks a kernel about no other device and no feature that the row does not take.
      if (row.kernel == nullptr || row.device != facts->kind || facts->arch < row.lowest_code ||
          (row.exact_code && facts->arch != row.lowest_code))
        continue;
      for (const Problem& p : problems) {
        if (!row.takes.hold(features_of(p))) continue;
        for (const Choice choice : {Choice{false}, Choice{true}}) {
          SCOPED_TRACE(core::concat(row.id, " ", to_string(p), " on ", model));
          std::string why;
          const bool can = row.kernel->supports(p, *facts, choice, &why);
          ASSERT_EQ(can, row.kernel->supports(p, *facts, choice, nullptr));
          ASSERT_FALSE(why.empty());
          if (!can) continue;
          if (row.prefer != nullptr) {
            ASSERT_GT(row.prefer(p, *facts, choice).rank, 0);
          }
          const Plan planned = row.kernel->plan(p, *facts, choice);
          const std::int64_t scratch =
              row.kernel->workspace == nullptr ? 0 : row.kernel->workspace(p, *facts, choice);
          ASSERT_EQ(planned.workspace_bytes, scratch);
          ASSERT_GT(planned.grid[0], 0);
          ASSERT_GT(planned.block[0], 0);
          ASSERT_FALSE(planned.kernel.empty());
          ASSERT_LE(planned.shared_bytes, facts->kind == DeviceKind::cuda ? facts->shared_per_block
                                                                          : std::int64_t{8} << 20);
        }
      }
    }
  }
}

TEST(Registry, DescriptionsAreComplete) {
  const VariantInfo info =
      describe({.id = "cuda.stage_c.stage2",
                .idea = "tensor cores for both products",
                .device = DeviceKind::cuda,
                .min_arch = 80,
                .automatic = false,
                .predecessor = "cuda.stage_c.stage1",
                .toggles = "USE_CP_ASYNC=1 USE_WMMA_PV=0 USE_FUSED_SOFTMAX_PV=2"});
  EXPECT_EQ(info.id, "cuda.stage_c.stage2");
  EXPECT_FALSE(info.built);
  EXPECT_FALSE(info.automatic);
  EXPECT_EQ(info.predecessor, "cuda.stage_c.stage1");
  ASSERT_EQ(info.toggles.size(), 3u);
  EXPECT_EQ(info.toggles[0].name, "USE_CP_ASYNC");
  EXPECT_EQ(info.toggles[0].value, 1);
  EXPECT_EQ(info.toggles[1].value, 0);
  EXPECT_EQ(info.toggles[2].name, "USE_FUSED_SOFTMAX_PV");
  EXPECT_EQ(info.toggles[2].value, 2);
  EXPECT_EQ(variants().size(), registry().size());
}

}  // namespace
}  // namespace greenfast::dispatch
