// Serving through the public API: bad input is refused by name before anything is written, the
// convenience call says the same as a problem, CUDA refuses, merge and append do what they say.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <greenfast/attention.hpp>
#include <greenfast/serving.hpp>

namespace greenfast {
namespace {

constexpr float kPoison = 12345.0f;
constexpr float kNothing = -std::numeric_limits<float>::infinity();

/// Three sequences of fp32, packed queries, keys in pages of 4, with every array.
struct Serving {
  Problem p;
  std::vector<float> q, k, v, o, lse, sinks, mask, slopes;
  std::vector<std::int32_t> cu_q{0, 2, 2, 5}, used_kv{7, 0, 9}, kv_start{1, 0, 0};
  std::vector<std::int32_t> table{2, 0, -1, -1, -1, -1, 4, 1, 3};
  Tensors t;

  Serving() {
    p = make_problem(3, 4, 2, 3, 12, 16, DType::f32);
    p.lse = true;
    p.sequences = {.packed_q = true, .used_kv = true, .kv_start = true, .total_q = 5};
    p.pages = {.size = 4, .count = 5, .row_stride = 3};
    p.mask = Mask::causal(Alignment::bottom_right);
    p.sinks = true;
    p.alibi = Alibi::per_head;
    p.array_mask = {MaskKind::additive, DType::f32, {0, 0, 0, 1}};
    p.q = p.o = dense_layout(Order::bshd, 1, 4, 5, 16);
    p.k = p.v = dense_layout(Order::bhsd, 5, 2, 4, 16);
    q.resize(5 * 4 * 16);
    k.resize(5 * 2 * 4 * 16);
    v.resize(k.size());
    for (std::size_t n = 0; n < q.size(); ++n) q[n] = std::sin(static_cast<float>(n));
    for (std::size_t n = 0; n < k.size(); ++n) {
      k[n] = std::cos(static_cast<float>(n));
      v[n] = std::sin(static_cast<float>(3 * n));
    }
    sinks = {0.5f, -1.0f, 0.0f, 2.0f};
    slopes = {0.5f, 0.25f, 0.125f, 0.0625f};
    mask.assign(12, 0.25f);
    clear();
  }
  void clear() {
    o.assign(q.size(), kPoison);
    lse.assign(4 * 5, kPoison);
    t = {.q = q.data(),
         .k = k.data(),
         .v = v.data(),
         .o = o.data(),
         .lse = lse.data(),
         .cu_q = cu_q.data(),
         .used_kv = used_kv.data(),
         .kv_start = kv_start.data(),
         .page_table = table.data(),
         .sinks = sinks.data(),
         .mask = mask.data(),
         .slopes = slopes.data()};
  }
};

TEST(FastAccuracy, IsTakenByTheCpuAndRefusedByNameWhereOnlyExactExists) {
  constexpr std::int64_t kRows = 33, kDim = 64;
  std::vector<std::uint8_t> q(kRows * kDim), k(q), v(q);
  for (std::size_t i = 0; i < q.size(); ++i) {
    q[i] = static_cast<std::uint8_t>(0x20 + i % 29);
    k[i] = static_cast<std::uint8_t>(0x80 * (i % 2) + 0x18 + i % 31);
    v[i] = static_cast<std::uint8_t>(0x28 + i % 23);
  }
  std::vector<float> exact(kRows * kDim), fast(exact.size());
  Problem p = make_problem(1, 1, 1, kRows, kRows, kDim, DType::e4m3);
  p.out_dtype = DType::f32;
  Tensors t{.q = q.data(), .k = k.data(), .v = v.data(), .o = exact.data()};
  ASSERT_TRUE(attention(p, t).ok());
  p.accuracy = Accuracy::fast;
  t.o = fast.data();
  ASSERT_TRUE(attention(p, t).ok());
  EXPECT_EQ(fast, exact) << "an exact answer is near enough";
  for (const Candidate& candidate : explain(p, *model_facts("h200")).candidates) {
    if (!candidate.variant.starts_with("cuda.stage_c.")) continue;
    EXPECT_FALSE(candidate.accepted);
    if (candidate.reason.starts_with("not built")) continue;
    EXPECT_NE(candidate.reason.find("fast accuracy"), std::string::npos) << candidate.reason;
  }
  // Nothing to see has one answer.
  p.seq_kv = 0;
  EXPECT_TRUE(attention(p, t).ok());
  EXPECT_EQ(fast.front(), 0.0f);
}

TEST(ServingCall, IsTakenByTheCpuAndRefusedByNameOnCuda) {
  Serving call;
  ASSERT_TRUE(attention(call.p, call.t).ok()) << attention(call.p, call.t).message();
  for (const float x : call.o) EXPECT_NE(x, kPoison);
  const Selection cuda = explain(call.p, *model_facts("h200"));
  EXPECT_EQ(cuda.chosen, "");
  for (const Candidate& candidate : cuda.candidates) EXPECT_FALSE(candidate.accepted);
  const auto plan_here = plan(call.p, *device_facts(DeviceKind::cpu));
  ASSERT_TRUE(plan_here.ok()) << plan_here.status().message();
  EXPECT_EQ(plan_here->variant, "cpu.flash");
}

TEST(ServingCall, SaysTheSameThroughViews) {
  Serving call;
  ASSERT_TRUE(attention(call.p, call.t).ok());
  const std::vector<float> expected = call.o, expected_lse = call.lse;
  call.clear();
  AttentionParams params;
  params.mask = call.p.mask;
  params.lse = call.lse.data();
  params.sequences = 3;
  params.max_q = 3;
  params.cu_q = call.cu_q.data();
  params.used_kv = call.used_kv.data();
  params.kv_start = call.kv_start.data();
  params.page_table = call.table.data();
  params.page_row_stride = 3;
  params.sinks = call.sinks.data();
  params.slopes = call.slopes.data();
  params.mask_view = {
      call.mask.data(), MaskKind::additive, DType::f32, {1, 1, 1, 12}, {7, 8, 9, 1}};
  const auto view = [](std::vector<float>& data, std::array<std::int64_t, 4> shape, Order order) {
    return TensorView::dense(data.data(), DType::f32, shape, order);
  };
  const Status status = attention(
      view(call.q, {1, 4, 5, 16}, Order::bshd), view(call.k, {5, 2, 4, 16}, Order::bhsd),
      view(call.v, {5, 2, 4, 16}, Order::bhsd), view(call.o, {1, 4, 5, 16}, Order::bshd), params);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(call.o, expected);
  EXPECT_EQ(call.lse, expected_lse);
}

struct Bad {
  const char* name;
  std::function<void(Serving&)> spoil;
  const char* message;
};

void expect_refused(const Bad& bad) {
  SCOPED_TRACE(bad.name);
  Serving call;
  bad.spoil(call);
  const Status status = attention(call.p, call.t);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find(bad.message), std::string::npos) << status.message();
  for (const float x : call.o) ASSERT_EQ(x, kPoison);
  for (const float x : call.lse) ASSERT_EQ(x, kPoison);
}

TEST(ServingCall, RefusesBadArraysBeforeItWritesAnything) {
  const Bad all[] = {
      {"cu below 0", [](Serving& c) { c.cu_q[0] = -1; }, "cu_q[0] is -1"},
      {"cu decreases", [](Serving& c) { c.cu_q[2] = 1; }, "cu_q[2] is 1, less than cu_q[1]"},
      {"cu past total", [](Serving& c) { c.cu_q[3] = 6; },
       "cu_q[3] is 6: 5 rows are there (total_q)"},
      {"longer than the most", [](Serving& c) { c.p.seq_q = 2; },
       "sequence 2 has 3 rows by cu_q: 2 is the most that any may have (seq_q, or max_q"},
      {"used below 0", [](Serving& c) { c.used_kv[1] = -1; }, "used_kv[1] is -1"},
      {"used past the most", [](Serving& c) { c.used_kv[2] = 13; },
       "sequence 2 has 13 rows by used_kv: 12 is the most that any may have (seq_kv, or max_kv"},
      {"start below 0", [](Serving& c) { c.kv_start[0] = -2; }, "kv_start[0] is -2"},
      {"start past the most", [](Serving& c) { c.kv_start[0] = 13; },
       "kv_start[0] is 13: it may be 0 to 12, the most keys"},
      {"no such page", [](Serving& c) { c.table[1] = 5; },
       "page_table[0][1] is 5: the pool has 5 pages, so it may be 0 to 4"},
      {"no page", [](Serving& c) { c.p.pages.count = 0; },
       "the pool has 0 pages, so no entry can be right"},
      {"one page", [](Serving& c) { c.p.pages.count = 1; }, "the pool has 1 page, so it must be 0"},
      {"page below 0", [](Serving& c) { c.table[8] = -1; }, "page_table[2][2] is -1"},
  };
  for (const Bad& bad : all) expect_refused(bad);
}

TEST(ServingCall, RefusesBadFactsAndMissingArrays) {
  const Bad all[] = {
      {"narrow table", [](Serving& c) { c.p.pages.row_stride = 2; }, "pages.row_stride is 2"},
      {"negative page", [](Serving& c) { c.p.pages.size = -1; }, "pages.size is -1"},
      {"count without pages", [](Serving& c) { c.p.pages.size = 0; }, "pages.count is 5"},
      {"total without packing", [](Serving& c) { c.p.sequences.packed_q = false; },
       "total_q is 5 although"},
      {"pages and packed", [](Serving& c) { c.p.sequences.packed_kv = true; },
       "cannot have both pages and packed"},
      {"pages and index", [](Serving& c) { c.p.sequences.kv_index = true; },
       "cannot have both pages and kv_index"},
      {"value dim", [](Serving& c) { c.p.head_dim_v = 12; }, "head_dim_v is 12"},
      {"chunk", [](Serving& c) { c.p.chunk = -3; }, "chunk is -3"},
      {"alibi", [](Serving& c) { c.p.alibi = static_cast<Alibi>(9); }, "alibi 9"},
      {"mask kind", [](Serving& c) { c.p.array_mask.kind = static_cast<MaskKind>(9); },
       "array_mask.kind 9"},
      {"mask type", [](Serving& c) { c.p.array_mask.dtype = DType::f16; },
       "an additive mask of fp16 was given for fp32"},
      {"mask stride", [](Serving& c) { c.p.array_mask.stride[3] = 2; },
       "array_mask.stride[3] is 2"},
      {"no cu_q", [](Serving& c) { c.t.cu_q = nullptr; }, "cu_q is null"},
      {"no used_kv", [](Serving& c) { c.t.used_kv = nullptr; }, "used_kv is null"},
      {"no table", [](Serving& c) { c.t.page_table = nullptr; }, "page_table is null"},
      {"no sinks", [](Serving& c) { c.t.sinks = nullptr; }, "sinks is null"},
      {"no mask", [](Serving& c) { c.t.mask = nullptr; }, "mask is null"},
      {"no slopes", [](Serving& c) { c.t.slopes = nullptr; }, "slopes is null"},
      {"O over the sinks", [](Serving& c) { c.t.sinks = c.o.data(); }, "o overlaps sinks"},
  };
  for (const Bad& bad : all) expect_refused(bad);
}

TEST(ServingCall, RefusesBadRowsOfTheCacheAndPackedKeys) {
  std::vector<float> data(4 * 2 * 8 * 16, 1.0f), o(3 * 4 * 2 * 16, kPoison);
  Problem p = make_problem(3, 4, 2, 2, 8, 16, DType::f32);
  p.sequences = {.kv_index = true, .kv_rows = 4};
  std::vector<std::int32_t> index{3, 4, 0};
  Tensors t{.q = data.data(), .k = data.data(), .v = data.data(), .o = o.data()};
  t.kv_index = index.data();
  Status status = attention(p, t);
  EXPECT_NE(status.message().find("kv_index[1] is 4"), std::string::npos) << status.message();
  index[1] = 2;
  EXPECT_TRUE(attention(p, t).ok());

  p.sequences = {.packed_kv = true, .used_kv = true, .total_kv = 20};
  p.k = p.v = dense_layout(Order::bhsd, 1, 2, 20, 16);
  std::vector<std::int32_t> cu{0, 5, 9, 21}, used{5, 5, 1};
  t.kv_index = nullptr;
  t.cu_kv = cu.data();
  t.used_kv = used.data();
  o.assign(o.size(), kPoison);
  status = attention(p, t);
  EXPECT_NE(status.message().find("cu_kv[3] is 21"), std::string::npos) << status.message();
  cu[3] = 20;
  status = attention(p, t);
  EXPECT_NE(status.message().find("used_kv[1] is 5: cu_kv gives that sequence 4 rows"),
            std::string::npos)
      << status.message();
  for (const float x : o) ASSERT_EQ(x, kPoison);
  used[1] = 4;
  EXPECT_TRUE(attention(p, t).ok());
}

// Rows of nobody keep what they hold, whatever else is empty.
TEST(ServingCall, LeavesRowsOfNobodyAlone) {
  for (const std::int64_t seq_kv : {std::int64_t{0}, std::int64_t{12}}) {
    Serving call;
    call.p.seq_kv = seq_kv;
    if (seq_kv == 0) {
      call.used_kv.assign(3, 0);
      call.kv_start.assign(3, 0);
    }
    call.cu_q = {1, 2, 2, 4};
    ASSERT_TRUE(attention(call.p, call.t).ok()) << attention(call.p, call.t).message();
    for (std::size_t row = 0; row < 5; ++row) {
      const bool mine = row >= 1 && row < 4;
      EXPECT_EQ(call.o[row * 64] != kPoison, mine) << row;
      for (std::size_t h = 0; h < 4; ++h) {
        EXPECT_EQ(call.lse[h * 5 + row] != kPoison, mine) << row;
        if (mine && seq_kv == 0) {
          EXPECT_EQ(call.lse[h * 5 + row], call.sinks[h]);
          EXPECT_EQ(call.o[row * 64 + h * 16], 0.0f);
        }
      }
    }
  }
}

TEST(ServingCall, NothingToDoIsFine) {
  Serving call;
  call.p.sequences.total_q = 0;
  call.cu_q.assign(4, 0);
  EXPECT_TRUE(attention(call.p, call.t).ok());
  call.p.batch = 0;
  EXPECT_TRUE(attention(call.p, call.t).ok());
  EXPECT_TRUE(plan(call.p, *device_facts(DeviceKind::cpu)).ok());
}

// Old problems mean, and are written, what they were.
TEST(ServingCall, LeavesOldProblemsAsTheyWere) {
  constexpr Features kOld = kFeaturesOfAbi1 | Feature::exact_accuracy;
  Problem p = make_problem(4, 32, 8, 1, 8192, 128, DType::bf16);
  p.mask = Mask::causal(Alignment::bottom_right);
  EXPECT_EQ(to_string(p), "4x32/8x1/8192x128 bf16 causal(bottom-right)");
  EXPECT_TRUE(kOld.hold(features_of(p)));
  p.head_dim_v = 128;  // says what 0 does
  EXPECT_TRUE(kOld.hold(features_of(p)));
  Serving call;
  EXPECT_EQ(to_string(call.p),
            "3x4/2x3/12x16 fp32 causal(bottom-right) lse packed-q(5) used-kv kv-start "
            "pages(5x4,3) sinks alibi(per-head) mask(fp32,0,0,0,1) strided");
}

TEST(ServingCall, CountsPairsOfChunks) {
  for (const std::int64_t chunk : {1, 3, 8, 50}) {
    for (const auto& [seq_q, seq_kv] : {std::pair(20, 20), std::pair(7, 40), std::pair(40, 7)}) {
      for (const auto alignment : {Alignment::top_left, Alignment::bottom_right}) {
        for (const Mask& mask : {Mask::causal(alignment), Mask::window(4, 2, alignment),
                                 Mask::window(-1, -1, alignment)}) {
          Problem p = make_problem(2, 3, 3, seq_q, seq_kv, 16, DType::f32);
          p.mask = mask;
          p.chunk = chunk;
          std::int64_t pairs = 0;
          for (std::int64_t i = 0; i < seq_q; ++i)
            for (std::int64_t j = 0; j < seq_kv; ++j) {
              const std::int64_t t =
                  i + (alignment == Alignment::bottom_right ? seq_kv - seq_q : 0);
              pairs += t >= 0 && t / chunk == j / chunk && (mask.left < 0 || j >= t - mask.left) &&
                       (mask.right < 0 || j <= t + mask.right);
            }
          EXPECT_EQ(visible_pairs(p), 6 * pairs) << to_string(p);
        }
      }
    }
  }
}

TEST(Merge, OfTwoHalvesIsTheWhole) {
  constexpr std::size_t kRows = 2 * 3 * 5, kDim = 24;
  std::vector<float> a(kRows * kDim), b(a.size()), o(a.size(), kPoison), other(a.size());
  std::vector<float> lse_a(kRows), lse_b(kRows), lse(kRows), other_lse(kRows);
  for (std::size_t n = 0; n < a.size(); ++n) {
    a[n] = std::sin(static_cast<float>(n));
    b[n] = std::cos(static_cast<float>(n));
  }
  for (std::size_t n = 0; n < kRows; ++n) {
    lse_a[n] = 3.0f * std::sin(static_cast<float>(7 * n));
    lse_b[n] = 3.0f * std::cos(static_cast<float>(5 * n));
  }
  const float nan = std::nanf("");
  const auto empty = [&](std::vector<float>& part, std::vector<float>& sums, std::size_t row,
                         float value) {
    sums[row] = value;
    std::fill_n(part.begin() + static_cast<std::ptrdiff_t>(row * kDim), kDim, nan);
  };
  empty(a, lse_a, 1, kNothing);
  empty(b, lse_b, 2, -kNothing);
  empty(a, lse_a, 3, kNothing);
  empty(b, lse_b, 3, -kNothing);
  lse_a[4] = 1.0e30f;
  MergeProblem p{.batch = 2, .heads = 3, .seq = 5, .head_dim = kDim};
  p.a = p.b = p.o = dense_layout(Order::bhsd, 2, 3, 5, kDim);
  MergeTensors t{a.data(), lse_a.data(), b.data(), lse_b.data(), o.data(), lse.data()};
  ASSERT_TRUE(merge(p, t).ok());
  for (std::size_t row = 0; row < kRows; ++row) {
    const bool has_a = std::isfinite(lse_a[row]), has_b = std::isfinite(lse_b[row]);
    const double wa = has_a ? 1.0 : 0.0;
    const double wb = !has_b  ? 0.0
                      : has_a ? std::exp(double{lse_b[row]} - double{lse_a[row]})
                              : 1.0;
    for (std::size_t d = 0; d < kDim; ++d) {
      double want = 0.0;
      if (has_a) want += wa * double{a[row * kDim + d]};
      if (has_b) want += wb * double{b[row * kDim + d]};
      if (has_a || has_b) want /= wa + wb;
      EXPECT_NEAR(o[row * kDim + d], want, 1.0e-6) << row;
    }
    if (has_a) {
      EXPECT_NEAR(lse[row], double{lse_a[row]} + std::log(wa + wb),
                  1.0e-6 * std::max(1.0, std::fabs(double{lse_a[row]})));
    } else {
      EXPECT_EQ(lse[row], has_b ? lse_b[row] : kNothing);
    }
  }
  MergeTensors swapped{b.data(),     lse_b.data(), a.data(),
                       lse_a.data(), other.data(), other_lse.data()};
  ASSERT_TRUE(merge(p, swapped).ok());
  EXPECT_EQ(o, other);
  EXPECT_EQ(lse, other_lse);
  MergeTensors in_place{a.data(), lse_a.data(), b.data(), lse_b.data(), a.data(), lse_a.data()};
  ASSERT_TRUE(merge(p, in_place).ok());
  EXPECT_EQ(a, o);
  EXPECT_EQ(lse_a, lse);
}

// What the header promises of LSEs that are no numbers: a NaN is not hidden, and what is empty stays
// unread whatever the other part is.
TEST(Merge, ANanIsNoEmptyPart) {
  const float nan = std::nanf("");
  const struct {
    float lse_a, lse_b;
    bool reads_a, reads_b;  // one alone: O is its O
    float lse;
  } rows[] = {
      {nan, 1.0f, true, true, nan},
      {nan, nan, true, true, nan},
      {nan, kNothing, true, false, nan},
      {nan, -kNothing, true, false, nan},
      {1.5f, kNothing, true, false, 1.5f},
      {kNothing, kNothing, false, false, kNothing},
      {-kNothing, kNothing, false, false, kNothing},
  };
  for (const auto& row : rows)
    for (const bool swapped : {false, true}) {
      SCOPED_TRACE(testing::Message() << row.lse_a << " and " << row.lse_b);
      MergeProblem p{.batch = 1, .heads = 1, .seq = 1, .head_dim = 8};
      p.a = p.b = p.o = dense_layout(Order::bhsd, 1, 1, 1, 8);
      // What must not be read would show.
      std::vector<float> a(8, row.reads_a ? 2.0f : nan), b(8, row.reads_b ? 3.0f : nan);
      std::vector<float> o(8, kPoison);
      float lse = kPoison;
      MergeTensors t{a.data(), &row.lse_a, b.data(), &row.lse_b, o.data(), &lse};
      if (swapped) {
        std::swap(t.a, t.b);
        std::swap(t.lse_a, t.lse_b);
      }
      ASSERT_TRUE(merge(p, t).ok());
      EXPECT_TRUE(lse == row.lse || (std::isnan(lse) && std::isnan(row.lse))) << lse;
      for (const float x : o) {
        if (row.reads_a && row.reads_b)
          EXPECT_TRUE(std::isnan(x)) << x;
        else
          EXPECT_EQ(x, row.reads_a ? 2.0f : 0.0f);
      }
    }
}

TEST(Merge, SaysWhatIsWrong) {
  std::vector<float> data(64, 1.0f);
  MergeProblem p{.batch = 1, .heads = 1, .seq = 2, .head_dim = 8};
  p.a = p.b = p.o = dense_layout(Order::bhsd, 1, 1, 2, 8);
  const MergeTensors good{data.data(),      data.data() + 16, data.data() + 20,
                          data.data() + 36, data.data() + 40, data.data() + 60};
  ASSERT_TRUE(merge(p, good).ok());
  const auto said = [&](const MergeProblem& problem, const MergeTensors& tensors) {
    return std::string(merge(problem, tensors).message());
  };
  MergeTensors t = good;
  t.lse_b = nullptr;
  EXPECT_NE(said(p, t).find("lse_b is null"), std::string::npos) << said(p, t);
  t = good;
  t.o = data.data() + 4;
  EXPECT_NE(said(p, t).find("o overlaps a"), std::string::npos) << said(p, t);
  MergeProblem q = p;
  q.dtype = DType::e4m3;
  EXPECT_NE(said(q, good).find("dtype is e4m3"), std::string::npos);
  q = p;
  q.head_dim = 12;
  EXPECT_NE(said(q, good).find("head_dim is 12"), std::string::npos);
  Options cuda;
  cuda.device = DeviceKind::cuda;
  EXPECT_FALSE(merge(p, good, cuda).ok());
}

/// Two sequences whose caches have 3 and 6 keys of 12, new tokens 2 and 1, in pages of 4.
struct Appending {
  AppendProblem p;
  AppendTensors t;
  std::vector<float> k_new, v_new, k, v, q, q_out, cos, sin;
  std::vector<std::int32_t> cu{0, 2, 3}, used{3, 6}, table{4, 1, 0, 2, 3, 5};

  explicit Appending(Rotary rotary) {
    p.batch = 2;
    p.heads_q = rotary == Rotary::none ? 0 : 4;
    p.heads_kv = 2;
    p.seq_new = 2;
    p.seq_kv = 12;
    p.head_dim = 16;
    p.head_dim_v = 8;
    p.dtype = DType::f32;
    p.packed = true;
    p.total_new = 3;
    p.pages = {.size = 4, .count = 6, .row_stride = 3};
    p.rotary = rotary;
    if (rotary != Rotary::none) {
      p.rotary_dim = 12;
      p.positions = 9;
    }
    p.k_new = dense_layout(Order::bshd, 1, 2, 3, 16);
    p.v_new = dense_layout(Order::bshd, 1, 2, 3, 8);
    p.k = dense_layout(Order::bshd, 6, 2, 4, 16);
    p.v = dense_layout(Order::bshd, 6, 2, 4, 8);
    p.q = p.q_out = dense_layout(Order::bhsd, 1, 4, 3, 16);
    const auto fill = [](std::vector<float>& data, std::size_t count, float step) {
      data.resize(count);
      for (std::size_t n = 0; n < count; ++n) data[n] = std::sin(step * static_cast<float>(n));
    };
    fill(k_new, 3 * 2 * 16, 0.7f);
    fill(v_new, 3 * 2 * 8, 1.3f);
    fill(q, 4 * 3 * 16, 0.9f);
    k.assign(6 * 4 * 2 * 16, kPoison);
    v.assign(6 * 4 * 2 * 8, kPoison);
    q_out.assign(q.size(), kPoison);
    for (int position = 0; position < 9; ++position)
      for (int n = 0; n < 6; ++n) {
        cos.push_back(std::cos(0.3f * static_cast<float>(position * (n + 1))));
        sin.push_back(std::sin(0.3f * static_cast<float>(position * (n + 1))));
      }
    t = {.k_new = k_new.data(),
         .v_new = v_new.data(),
         .k = k.data(),
         .v = v.data(),
         .q = q.data(),
         .q_out = q_out.data(),
         .cu_new = cu.data(),
         .used_kv = used.data(),
         .page_table = table.data(),
         .cos = cos.data(),
         .sin = sin.data()};
  }
};

TEST(Append, PutsTokensBehindTheKeysAndTurnsThem) {
  const struct {
    std::size_t b, row, key;  // a new token and the key it becomes
  } tokens[] = {{0, 0, 3}, {0, 1, 4}, {1, 2, 6}};
  for (const Rotary rotary : {Rotary::none, Rotary::interleaved, Rotary::neox}) {
    Appending call(rotary);
    const Status status = append(call.p, call.t);
    ASSERT_TRUE(status.ok()) << status.message();
    const auto turned = [&](const float* x, std::size_t d, std::size_t position) {
      if (rotary == Rotary::none || d >= 12) return x[d];
      const bool pairs = rotary == Rotary::interleaved;
      const std::size_t angle = pairs ? d / 2 : d % 6;
      const bool second = pairs ? d % 2 == 1 : d >= 6;
      const float c = call.cos[position * 6 + angle], s = call.sin[position * 6 + angle];
      const std::size_t partner = pairs ? d ^ 1u : second ? d - 6 : d + 6;
      return second ? x[d] * c + x[partner] * s : x[d] * c - x[partner] * s;
    };
    std::size_t written = 0;
    for (const auto& token : tokens) {
      const auto page = static_cast<std::size_t>(call.table[token.b * 3 + token.key / 4]);
      for (std::size_t h = 0; h < 2; ++h) {
        const std::size_t at = (page * 4 + token.key % 4) * 2 + h, from = token.row * 2 + h;
        for (std::size_t d = 0; d < 16; ++d)
          EXPECT_FLOAT_EQ(call.k[at * 16 + d], turned(&call.k_new[from * 16], d, token.key));
        for (std::size_t d = 0; d < 8; ++d) EXPECT_EQ(call.v[at * 8 + d], call.v_new[from * 8 + d]);
        written += 16;
      }
      for (std::size_t h = 0; h < 4 && rotary != Rotary::none; ++h)
        for (std::size_t d = 0; d < 16; ++d)
          EXPECT_FLOAT_EQ(call.q_out[(h * 3 + token.row) * 16 + d],
                          turned(&call.q[(h * 3 + token.row) * 16], d, token.key));
    }
    EXPECT_EQ(static_cast<std::size_t>(std::count_if(call.k.begin(), call.k.end(),
                                                     [](float x) { return x != kPoison; })),
              written);
  }
}

TEST(Append, WritesNothingWhenSomethingIsWrong) {
  const struct {
    const char* name;
    std::function<void(Appending&)> spoil;
    const char* message;
  } all[] = {
      {"past the last page", [](Appending& c) { c.used[0] = 11; },
       "sequence 0 would have 13 keys, 11 by used_kv and 2 new ones: the cache has room for "
       "12 (seq_kv); give it more pages"},
      {"used below 0", [](Appending& c) { c.used[1] = -1; }, "used_kv[1] is -1"},
      {"no such page", [](Appending& c) { c.table[1] = 6; }, "page_table[0][1] is 6"},
      {"shared page", [](Appending& c) { c.table[4] = 1; },
       "page 1 of the cache would be written for sequence 0 and again for sequence 1"},
      {"cu decreases", [](Appending& c) { c.cu[1] = 4; }, "cu_new[2] is 3, less than cu_new[1]"},
      {"cu past total", [](Appending& c) { c.cu[2] = 4; },
       "cu_new[2] is 4: 3 rows are there (total_new)"},
      {"more than seq_new", [](Appending& c) { c.p.seq_new = 1; },
       "sequence 0 has 2 new tokens: 1 is the most that any may have (seq_new, or max_new"},
      {"past the tables", [](Appending& c) { c.p.positions = 6; }, "sequence 1 reaches position 6"},
      {"odd rotary", [](Appending& c) { c.p.rotary_dim = 5; }, "rotary_dim is 5"},
      {"rotary past D", [](Appending& c) { c.p.rotary_dim = 18; }, "rotary_dim is 18"},
      {"Q without rotary", [](Appending& c) { c.p.rotary = Rotary::none; },
       "Q is given, with heads_q 4, and no rotary"},
      {"total without packing", [](Appending& c) { c.p.packed = false; },
       "total_new is 3 although the problem has no packed new tensors: set it to 0"},
      {"rows without an index", [](Appending& c) { c.p.kv_rows = 4; },
       "kv_rows is 4 although the problem has no kv_index"},
      {"no layout", [](Appending& c) { c.p.v_new = {}; },
       "v_new's strides are all 0: the last must be 1; set v_new's layout"},
      {"narrow table", [](Appending& c) { c.p.pages.row_stride = 2; }, "pages.row_stride is 2"},
      {"no tables", [](Appending& c) { c.t.sin = nullptr; }, "sin is null"},
      {"no cache", [](Appending& c) { c.t.v = nullptr; }, "v is null"},
      {"cache over the news", [](Appending& c) { c.t.k = c.k_new.data(); }, "k overlaps k_new"},
      {"e4m3", [](Appending& c) { c.p.dtype = DType::e4m3; }, "rotary of e4m3"},
  };
  for (const auto& bad : all) {
    SCOPED_TRACE(bad.name);
    Appending call(Rotary::neox);
    bad.spoil(call);
    const Status status = append(call.p, call.t);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find(bad.message), std::string::npos) << status.message();
    for (const float x : call.k) ASSERT_EQ(x, kPoison);
    for (const float x : call.v) ASSERT_EQ(x, kPoison);
    for (const float x : call.q_out) ASSERT_EQ(x, kPoison);
  }
}

TEST(Append, KeepsToRowsAndUsedTokensOfADenseCache) {
  AppendProblem p;
  p.batch = 2;
  p.heads_kv = 1;
  p.seq_new = 3;
  p.seq_kv = 6;
  p.head_dim = 8;
  p.dtype = DType::e4m3;
  p.used_new = p.kv_index = true;
  p.kv_rows = 4;
  p.k_new = p.v_new = dense_layout(Order::bhsd, 2, 1, 3, 8);
  // K and V are halves of the same rows.
  p.k = p.v = {{6 * 16, 6 * 16, 16, 1}};
  std::vector<unsigned char> news(2 * 3 * 8), cache(4 * 6 * 16, 200);
  std::iota(news.begin(), news.end(), static_cast<unsigned char>(1));
  const std::vector<std::int32_t> used_new{1, 3}, used_kv{5, 2}, index{3, 1};
  AppendTensors t{.k_new = news.data(),
                  .v_new = news.data(),
                  .k = cache.data(),
                  .v = cache.data() + 8,
                  .used_new = used_new.data(),
                  .used_kv = used_kv.data(),
                  .kv_index = index.data()};
  const Status status = append(p, t);
  ASSERT_TRUE(status.ok()) << status.message();
  std::vector<unsigned char> expected(cache.size(), 200);
  const auto put = [&](std::size_t row, std::size_t key, std::size_t token) {
    for (std::size_t d = 0; d < 16; ++d)
      expected[(row * 6 + key) * 16 + d] = news[token * 8 + d % 8];
  };
  put(3, 5, 0);
  for (std::size_t n = 0; n < 3; ++n) put(1, 2 + n, 3 + n);
  EXPECT_EQ(cache, expected);
}

TEST(Append, KAndVMayLieBetweenEachOtherAndNotUponEachOther) {
  constexpr std::int64_t kKeys = 5, kHeads = 2, kDim = 16;
  const std::vector<float> news(static_cast<std::size_t>(kHeads * kDim), 1.0f);
  std::vector<float> cache(4096, 0.0f);
  const auto said = [&](const Layout& k, const Layout& v, std::int64_t v_at, std::int64_t dim_v) {
    AppendProblem p;
    p.batch = 2;
    p.heads_kv = kHeads;
    p.seq_new = 1;
    p.seq_kv = kKeys;
    p.head_dim = kDim;
    p.head_dim_v = dim_v == kDim ? 0 : dim_v;
    p.dtype = DType::f32;
    p.k_new = {{0, kDim, kDim, 1}};
    p.v_new = {{0, dim_v, dim_v, 1}};
    p.k = k;
    p.v = v;
    const AppendTensors t{.k_new = news.data(),
                          .v_new = news.data(),
                          .k = cache.data() + 1024,
                          .v = cache.data() + 1024 + v_at};
    const Status status = append(p, t);
    return status.ok() ? std::string() : status.message();
  };
  const Layout dense = dense_layout(Order::bhsd, 2, kHeads, kKeys, kDim);
  const Layout wide{{kHeads * kKeys * 2 * kDim, kKeys * 2 * kDim, 2 * kDim, 1}};
  const Layout planes{{2 * kHeads * kKeys * kDim, kKeys * kDim, kDim, 1}};
  const Layout tokens{{kKeys * 2 * kHeads * kDim, kDim, 2 * kHeads * kDim, 1}};
  const struct {
    Layout k, v;
    std::int64_t at, dim;
    bool free;
  } scenes[] = {
      {dense, dense, 0, kDim, false},     // one cache for both
      {dense, dense, kDim, kDim, false},  // a key further
      {dense, dense, -2, kDim, false},    // crossing columns
      {dense, dense, 2 * kHeads * kKeys * kDim, kDim, true},
      {wide, wide, kDim, kDim, true},  // halves of the same rows
      {wide, wide, -kDim, kDim, true},
      {wide, wide, kDim - 1, kDim, false},
      {wide, wide, kDim + 1, kDim, false},  // reaches into the next key
      {wide, wide, kDim + 8, 8, true},
      {planes, planes, kHeads * kKeys * kDim, kDim, true},
      {planes, planes, -kHeads * kKeys * kDim, kDim, true},
      {planes, planes, kKeys * kDim, kDim, false},  // V's first head is K's second
      {tokens, tokens, kHeads * kDim, kDim, true},  // [B, S, 2, H, D]
      {tokens, tokens, kDim, kDim, false},
      {wide, tokens, kDim, kDim, false},  // free or not: too odd to be meant
  };
  for (const auto& scene : scenes) {
    const std::string message = said(scene.k, scene.v, scene.at, scene.dim);
    SCOPED_TRACE(&scene - scenes);
    if (scene.free) {
      EXPECT_EQ(message, "");
    } else {
      EXPECT_NE(message.find("k overlaps v"), std::string::npos) << message;
    }
  }
}

}  // namespace
}  // namespace greenfast
