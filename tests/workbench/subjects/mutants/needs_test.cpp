// Where a planted fault can show: a problem without that is refused with what it lacks.
#include "workbench/subjects/mutants/needs.hpp"

#include <gtest/gtest.h>

#include <string>

namespace greenfast::workbench::test {
namespace {

using Needs = const char* (*)(const Problem&);

Problem plain() { return make_problem(1, 4, 2, 17, 17, 32, DType::f16); }

TEST(Needs, NameWhatAPlainProblemLacksAndTakeOneThatHasIt) {
  struct Row {
    Needs needs;
    const char* what;
    void (*give)(Problem&);
  };
  const auto causal = [](Problem& p) { p.mask = Mask::causal(Alignment::top_left); };
  const auto causal_of_lengths = [](Problem& p) {
    p.mask = Mask::causal(Alignment::top_left);
    p.seq_kv = 40;
  };
  for (const Row& row :
       {Row{needs_lse, "needs LSE", [](Problem& p) { p.lse = true; }},
        Row{needs_softcap, "needs a softcap", [](Problem& p) { p.softcap = 20; }},
        Row{needs_batch, "needs B > 1", [](Problem& p) { p.batch = 2; }},
        Row{needs_head_scales, "needs scales per head",
            [](Problem& p) { p.scales = ScaleKind::per_head; }},
        Row{needs_strides, "needs K that is not dense BHSD",
            [](Problem& p) { p.k = dense_layout(Order::bshd, 1, 2, 17, 32); }},
        Row{needs_gaps, "needs gaps between the rows of O",
            [](Problem& p) { p.o = dense_layout(Order::bhsd, 1, 4, 17, 40); }},
        Row{needs_right_bound, "needs a causal mask or a window",
            [](Problem& p) { p.mask = Mask::window(3, 2, Alignment::top_left); }},
        Row{needs_causal, "needs a causal mask", causal},
        Row{needs_mask_of_lengths, "needs a mask and Sq != Skv",
            [](Problem& p) {
              p.mask = Mask::window(3, 2, Alignment::top_left);
              p.seq_kv = 40;
            }},
        Row{needs_causal_of_lengths, "needs a causal mask and Sq != Skv", causal_of_lengths}}) {
    Problem p = plain();
    const char* why = row.needs(p);
    ASSERT_NE(why, nullptr) << row.what;
    EXPECT_EQ(std::string(why), row.what);
    row.give(p);
    EXPECT_EQ(row.needs(p), nullptr) << row.what;
  }
}

TEST(Needs, OfMasksDifferWhereAWindowIsNotEnough) {
  Problem p = plain();
  p.mask = Mask::window(3, 0, Alignment::bottom_right);
  p.seq_kv = 40;
  EXPECT_EQ(needs_right_bound(p), nullptr);
  EXPECT_EQ(needs_mask_of_lengths(p), nullptr);
  EXPECT_NE(needs_causal(p), nullptr);
  EXPECT_NE(needs_causal_of_lengths(p), nullptr);
  p.mask = Mask::causal(Alignment::bottom_right);
  p.seq_kv = p.seq_q;
  EXPECT_NE(needs_mask_of_lengths(p), nullptr);
  EXPECT_NE(needs_causal_of_lengths(p), nullptr);
}

// Where heads share storage the dense reading would leave the allocation.
TEST(Needs, OfStridesLeaveSharedStorageAlone) {
  Problem p = plain();
  p.k.stride[1] = 0;
  EXPECT_NE(needs_strides(p), nullptr);
}

}  // namespace
}  // namespace greenfast::workbench::test
