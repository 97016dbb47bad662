// What tests of a CUDA variant's plans share. Needs no GPU; skipped where the kernel is not built.
#pragma once

#include <greenfast/attention.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace greenfast {

class VariantPlan : public testing::Test {
 protected:
  explicit VariantPlan(std::string_view id, const char* model = "h200")
      : id_(id), facts_(*model_facts(model)) {}
  void SetUp() override {
    const auto all = variants();
    const auto row = std::find_if(all.begin(), all.end(),
                                  [&](const VariantInfo& info) { return info.id == id_; });
    ASSERT_NE(row, all.end());
    if (!row->built) GTEST_SKIP() << id_ << " is not built";
    options_.device = DeviceKind::cuda;
    options_.variant = id_;
  }
  Plan plan_of(const Problem& problem, const DeviceFacts& facts) const {
    Result<Plan> plan = greenfast::plan(problem, facts, options_);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    return plan.ok() ? *plan : Plan{};
  }
  Plan plan_of(const Problem& problem) const { return plan_of(problem, facts_); }
  /// "accepted", or why the variant, forced, does not take the problem.
  std::string answer(const Problem& problem, const DeviceFacts& facts,
                     std::string_view variant) const {
    Options options = options_;
    options.variant = variant;
    for (const Candidate& candidate : explain(problem, facts, options).candidates)
      if (candidate.variant == variant) return candidate.accepted ? "accepted" : candidate.reason;
    return "not among the candidates";
  }
  std::string answer(const Problem& problem, const DeviceFacts& facts) const {
    return answer(problem, facts, id_);
  }

  std::string refusal(const Problem& problem) const { return answer(problem, facts_); }
  /// What selection takes.
  std::string chosen(const Problem& problem) const {
    Options any = options_;
    any.variant = "";
    return explain(problem, facts_, any).chosen;
  }
  /// Queries at the end of caches in pages, 8 heads of K and V of head dim 128.
  static Problem make_paged(std::int64_t batch, std::int64_t heads_q, std::int64_t seq_q,
                            std::int64_t keys, std::int64_t page, DType dtype) {
    Problem p = make_problem(batch, heads_q, 8, seq_q, keys, 128, dtype);
    p.sequences.used_kv = true;
    p.pages = {.size = page, .count = batch * keys / page + 1, .row_stride = keys / page};
    p.k = p.v = dense_layout(Order::bhsd, p.pages.count, 8, page, 128);
    p.mask = Mask::causal(Alignment::bottom_right);
    return p;
  }

  /// What kernels count in 32 bits of pages whose rows they copy: pieces of 16 bytes. A page is `stride` elements, 16 MB.
  void expect_pieces_counted(Problem p, Layout Problem::*layout, std::int64_t stride) const {
    (p.*layout).stride[0] = stride;
    p.pages.count = 4000;
    EXPECT_EQ(refusal(p), "accepted");
    p.pages.count = 4300;
    EXPECT_NE(refusal(p).find("64 GiB"), std::string::npos) << refusal(p);
  }

  const std::string_view id_;
  DeviceFacts facts_;
  Options options_;
};

}  // namespace greenfast
