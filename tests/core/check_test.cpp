// Every refusal of check() and of the tensor checks: which code, and that its one line names what
// was asked, what is possible and what to change.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/check.hpp"

namespace greenfast {
namespace {

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

Problem usual() { return make_problem(2, 8, 2, 16, 32, 64, DType::f16); }

void expect_refused(const Status& status, StatusCode code, const std::vector<std::string>& parts) {
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
  for (const std::string& part : parts)
    EXPECT_NE(status.message().find(part), std::string::npos)
        << "'" << part << "' is missing in: " << status.message();
}

struct Refusal {
  std::string name;
  std::function<void(Problem&)> change;
  StatusCode code;
  std::vector<std::string> parts;  // asked, possible, what to change
};

const std::vector<Refusal>& refusals() {
  constexpr StatusCode kInvalid = StatusCode::invalid_argument;
  constexpr StatusCode kUnsupported = StatusCode::unsupported;
  static const std::vector<Refusal> all = {
      {"BatchNegative", [](Problem& p) { p.batch = -1; }, kInvalid, {"batch is -1", "0 to"}},
      {"SeqQNegative", [](Problem& p) { p.seq_q = -7; }, kInvalid, {"seq_q is -7", "0 to"}},
      {"SeqKvNegative", [](Problem& p) { p.seq_kv = -1; }, kInvalid, {"seq_kv is -1", "0 to"}},
      {"HeadsQZero", [](Problem& p) { p.heads_q = 0; }, kInvalid, {"heads_q is 0", "1 to"}},
      {"HeadsKvZero", [](Problem& p) { p.heads_kv = 0; }, kInvalid, {"heads_kv is 0", "1 to"}},
      {"SeqQAbsurd",
       [](Problem& p) { p.seq_q = kHuge; },
       kInvalid,
       {"seq_q is 9223372036854775807", "1073741824"}},
      {"SeqKvAbsurd",
       [](Problem& p) { p.seq_kv = (std::int64_t{1} << 30) + 1; },
       kInvalid,
       {"seq_kv is 1073741825", "1073741824"}},
      {"BatchAbsurd", [](Problem& p) { p.batch = kHuge; }, kInvalid, {"batch is", "2147483647"}},
      {"BatchTimesHeads",
       [](Problem& p) { p.batch = 1 << 30; },
       kInvalid,
       {"batch 1073741824 times heads_q 8", "2147483647", "split the batch"}},
      {"GroupedHeads",
       [](Problem& p) { p.heads_kv = 3; },
       kInvalid,
       {"heads_q 8", "heads_kv 3", "divides heads_q"}},
      {"MoreKvHeads",
       [](Problem& p) { p.heads_kv = 16; },
       kInvalid,
       {"heads_q 8", "heads_kv 16", "divides heads_q"}},
      {"HeadDimStep",
       [](Problem& p) { p.head_dim = 12; },
       kUnsupported,
       {"head_dim is 12", "8 to 256 in steps of 8", "pad"}},
      {"HeadDimZero", [](Problem& p) { p.head_dim = 0; }, kUnsupported, {"head_dim is 0"}},
      {"HeadDimLarge", [](Problem& p) { p.head_dim = 264; }, kUnsupported, {"head_dim is 264"}},
      {"HeadDimNegative", [](Problem& p) { p.head_dim = -8; }, kUnsupported, {"head_dim is -8"}},
      {"DTypeUnknown",
       [](Problem& p) { p.dtype = static_cast<DType>(9); },
       kInvalid,
       {"dtype 9", "fp32, fp16, bf16 or e4m3"}},
      {"OutDTypeUnknown",
       [](Problem& p) { p.out_dtype = static_cast<DType>(-1); },
       kInvalid,
       {"out_dtype -1", "fp32, fp16 or bf16"}},
      {"OutE4m3",
       [](Problem& p) { p.dtype = p.out_dtype = DType::e4m3; },
       kUnsupported,
       {"out_dtype e4m3", "fp32, fp16 or bf16", "quantise"}},
      {"ScalesUnknown",
       [](Problem& p) { p.scales = static_cast<ScaleKind>(4); },
       kInvalid,
       {"scales 4", "none, tensor, per_head or per_block"}},
      {"ScalesWithoutE4m3",
       [](Problem& p) { p.scales = ScaleKind::tensor; },
       kInvalid,
       {"fp16", "only e4m3", "none"}},
      {"AccuracyUnknown",
       [](Problem& p) { p.accuracy = static_cast<Accuracy>(2); },
       kInvalid,
       {"accuracy 2", "exact or fast"}},
      {"FastWithoutE4m3",
       [](Problem& p) { p.accuracy = Accuracy::fast; },
       kInvalid,
       {"fast accuracy", "fp16", "only e4m3", "exact"}},
      {"ScaleNan", [](Problem& p) { p.scale = kNan; }, kInvalid, {"scale is nan", "finite"}},
      {"ScaleInf", [](Problem& p) { p.scale = -kInf; }, kInvalid, {"scale is -inf", "finite"}},
      {"ScaleHuge", [](Problem& p) { p.scale = 3e38f; }, kInvalid, {"scale is 3e+38", "2^126"}},
      {"ScaleHugeBesideItsSoftcap",
       [](Problem& p) { p.scale = 0x1p126f, p.softcap = 1.0f; },
       kInvalid,
       {"quotient overflows"}},
      {"SoftcapNegative",
       [](Problem& p) { p.softcap = -1.0f; },
       kInvalid,
       {"softcap is -1", "0 (off) or positive"}},
      {"SoftcapNan", [](Problem& p) { p.softcap = kNan; }, kInvalid, {"softcap is nan"}},
      {"SoftcapInf", [](Problem& p) { p.softcap = kInf; }, kInvalid, {"softcap is inf"}},
      {"SoftcapDenormal",
       [](Problem& p) { p.softcap = 1e-44f; },
       kInvalid,
       {"softcap", "too small", "use 0"}},
      {"SoftcapAgainstScale",
       [](Problem& p) {
         p.scale = 1e20f;
         p.softcap = 1e-30f;
       },
       kInvalid,
       {"softcap 1e-30", "scale 1e+20", "overflows"}},
      {"MaskLeft",
       [](Problem& p) { p.mask.left = kHuge; },
       kInvalid,
       {"left is 9223372036854775807", "1073741824", "-1 for no bound"}},
      {"MaskRight",
       [](Problem& p) { p.mask.right = (std::int64_t{1} << 30) + 1; },
       kInvalid,
       {"right is 1073741825", "-1 for no bound"}},
      {"MaskAlignment",
       [](Problem& p) { p.mask.alignment = static_cast<Alignment>(2); },
       kInvalid,
       {"alignment 2", "top_left or bottom_right"}},
      {"LastStrideQ",
       [](Problem& p) { p.q.stride[3] = 2; },
       kInvalid,
       {"Q's last stride is 2", "contiguous", "copy Q"}},
      {"NoLayout",
       [](Problem& p) { p.k = {}; },
       kInvalid,
       {"K's strides are all 0", "the last must be 1", "dense_layout()"}},
      {"LastStrideK", [](Problem& p) { p.k.stride[3] = 0; }, kInvalid, {"K's last stride is 0"}},
      {"LastStrideV", [](Problem& p) { p.v.stride[3] = -1; }, kInvalid, {"V's last stride is -1"}},
      {"TransposedVOfHalves",
       [](Problem& p) { p.v = transposed_layout(2, 2, 32, 64); },
       kInvalid,
       {"V's last stride is 32", "head dimension must be contiguous (stride 1); copy V"}},
      {"TransposedK",
       [](Problem& p) {
         p.dtype = DType::e4m3;
         p.k = transposed_layout(2, 2, 32, 64);
       },
       kInvalid,
       {"K's last stride is 32", "head dimension must be contiguous (stride 1); copy K"}},
      {"NeitherContiguous",
       [](Problem& p) {
         p.dtype = DType::e4m3;
         p.v.stride[3] = 2;
       },
       kInvalid,
       {"V's last stride is 2", "or the sequence in its place"}},
      {"TransposedVAbsurd",
       [](Problem& p) {
         p.dtype = DType::e4m3;
         p.v = transposed_layout(2, 2, 32, 64);
         p.v.stride[3] = kHuge;
       },
       kInvalid,
       {"V's head_dim stride is 9223372036854775807", "0 to 2^48"}},
      {"LastStrideO", [](Problem& p) { p.o.stride[3] = 64; }, kInvalid, {"O's last stride is 64"}},
      {"NegativeStride",
       [](Problem& p) { p.k.stride[2] = -64; },
       kInvalid,
       {"K's sequence stride is -64", "0 to 2^48"}},
      {"AbsurdStride",
       [](Problem& p) { p.q.stride[0] = kHuge; },
       kInvalid,
       {"Q's batch stride is 9223372036854775807", "0 to 2^48"}},
      {"BroadcastQ",
       [](Problem& p) { p.q.stride[1] = 0; },
       kInvalid,
       {"Q's head stride is 0", "only K and V"}},
      {"BroadcastO",
       [](Problem& p) { p.o.stride[2] = 0; },
       kInvalid,
       {"O's sequence stride is 0", "only K and V"}},
      {"OverlapRows",
       [](Problem& p) { p.o.stride[2] = 63; },
       kInvalid,
       {"O's sequence stride is 63", "64 elements", "share memory"}},
      {"OverlapHeads",
       [](Problem& p) { p.o.stride[1] = 16 * 64 - 1; },
       kInvalid,
       {"O's head stride is 1023", "1024 elements", "share memory"}},
      {"OverlapBatches",
       [](Problem& p) { p.o.stride[0] = p.o.stride[1]; },
       kInvalid,
       {"stride is 1024", "share memory"}},
      {"AlignmentZero",
       [](Problem& p) { p.v.alignment = 0; },
       kInvalid,
       {"V's alignment is 0", "power of two"}},
      {"AlignmentOdd",
       [](Problem& p) { p.q.alignment = 48; },
       kInvalid,
       {"Q's alignment is 48", "power of two"}},
      {"AlignmentBelowElement",
       [](Problem& p) { p.o.alignment = 1; },
       kInvalid,
       {"O's alignment is 1", "(2)"}},
      {"Overflow",
       [](Problem& p) {
         p.batch = 1 << 20;
         p.k.stride[0] = std::int64_t{1} << 47;
       },
       kInvalid,
       {"K spans more than 2^62 bytes", "correct"}},
      {"OverflowOfBytesAlone",
       [](Problem& p) {
         p.dtype = p.out_dtype = DType::f32;
         p.batch = 1 << 14;
         p.v.stride[0] = std::int64_t{1} << 47;  // 2^61 elements, 2^63 bytes
       },
       kInvalid,
       {"V spans more than 2^62 bytes"}},
      {"OverflowOfDenseTensor",
       [](Problem& p) { p = make_problem(1 << 20, 1 << 10, 1, 1 << 30, 1, 8, DType::e4m3); },
       kInvalid,
       {"spans more than 2^62 bytes"}},
  };
  return all;
}

class CheckRefuses : public testing::TestWithParam<Refusal> {};

TEST_P(CheckRefuses, InOneLineThatHelps) {
  Problem p = usual();
  GetParam().change(p);
  expect_refused(check(p), GetParam().code, GetParam().parts);
}

INSTANTIATE_TEST_SUITE_P(Each, CheckRefuses, testing::ValuesIn(refusals()),
                         [](const auto& each) { return each.param.name; });

struct Acceptance {
  std::string name;
  std::function<void(Problem&)> change;
};

class CheckAccepts : public testing::TestWithParam<Acceptance> {};

TEST_P(CheckAccepts, WhatIsLegal) {
  Problem p = usual();
  GetParam().change(p);
  const Status status = check(p);
  EXPECT_TRUE(status.ok()) << status.message();
}

INSTANTIATE_TEST_SUITE_P(
    Each, CheckAccepts,
    testing::ValuesIn(std::vector<Acceptance>{
        {"Usual", [](Problem&) {}},
        {"NoBatch", [](Problem& p) { p = make_problem(0, 8, 2, 16, 32, 64, DType::f16); }},
        {"NoQuery", [](Problem& p) { p = make_problem(2, 8, 2, 0, 32, 64, DType::f16); }},
        {"NoKey", [](Problem& p) { p = make_problem(2, 8, 2, 16, 0, 64, DType::f16); }},
        {"Smallest", [](Problem& p) { p = make_problem(1, 1, 1, 1, 1, 8, DType::e4m3); }},
        {"WidestHead", [](Problem& p) { p = make_problem(1, 1, 1, 1, 1, 256, DType::f32); }},
        {"Longest",
         [](Problem& p) { p = make_problem(1, 1, 1, 1 << 30, 1 << 30, 256, DType::f32); }},
        {"Bshd",
         [](Problem& p) { p = make_problem(2, 8, 2, 16, 32, 64, DType::bf16, Order::bshd); }},
        {"BroadcastKeyBatch", [](Problem& p) { p.k.stride[0] = p.v.stride[0] = 0; }},
        {"BroadcastEverywhere",
         [](Problem& p) {
           p.k.stride = p.v.stride = {0, 0, 0, 1};
         }},
        {"OverlappingKeys", [](Problem& p) { p.k.stride[2] = 1; }},
        {"OverlappingQueries", [](Problem& p) { p.q.stride[2] = 8; }},
        {"PaddedRows",
         [](Problem& p) {
           p.o.stride = {8 * 16 * 80, 16 * 80, 80, 1};
         }},
        {"StrideOfOneRowMeansNothing",
         [](Problem& p) {
           p = make_problem(1, 1, 1, 1, 8, 64, DType::f16);
           p.o.stride = {0, 3, 0, 1};
           p.q.stride = {0, 0, 0, 1};
         }},
        {"NegativeScale", [](Problem& p) { p.scale = -2.0f; }},
        {"ZeroScale", [](Problem& p) { p.scale = 0.0f; }},
        {"Softcap", [](Problem& p) { p.softcap = 30.0f; }},
        {"AnyNegativeBoundIsNone", [](Problem& p) { p.mask.left = -kHuge; }},
        {"WidestWindow",
         [](Problem& p) { p.mask = Mask::window(1 << 30, 1 << 30, Alignment::bottom_right); }},
        {"E4m3WithoutScales", [](Problem& p) { p.dtype = DType::e4m3; }},
        {"MixedOutput", [](Problem& p) { p.out_dtype = DType::f32; }},
    }),
    [](const auto& each) { return each.param.name; });

// Strides that make two output elements share an address must never pass, whatever their pattern.
TEST(Check, NeverAcceptsAnOutputThatOverlapsItself) {
  int accepted = 0;
  for (std::int64_t b = 0; b <= 40; b += 4)
    for (std::int64_t h = 0; h <= 40; h += 4)
      for (std::int64_t s = 0; s <= 40; s += 4) {
        Problem p = make_problem(2, 2, 1, 3, 1, 8, DType::f16);
        p.o.stride = {b, h, s, 1};
        if (!check(p).ok()) continue;
        ++accepted;
        std::vector<std::int64_t> addresses;
        for (std::int64_t at = 0; at < 2 * 2 * 3 * 8; ++at)
          addresses.push_back(at / 48 * b + at / 24 % 2 * h + at / 8 % 3 * s + at % 8);
        std::sort(addresses.begin(), addresses.end());
        ASSERT_EQ(std::adjacent_find(addresses.begin(), addresses.end()), addresses.end())
            << b << " " << h << " " << s;
      }
  EXPECT_GT(accepted, 0);
}

class Tensors16 : public testing::Test {
 protected:
  // Room for each tensor of usual(), apart from each other.
  static constexpr std::size_t kBytes = 2 * 8 * 32 * 64 * 2;
  Tensors16() {
    problem.lse = true;
    tensors.q = q.data();
    tensors.k = k.data();
    tensors.v = v.data();
    tensors.o = o.data();
    tensors.lse = lse.data();
  }
  Problem problem = usual();
  std::vector<std::uint16_t> q = std::vector<std::uint16_t>(kBytes / 2), k = q, v = q, o = q;
  std::vector<float> lse = std::vector<float>(2 * 8 * 16), scales = std::vector<float>(16);
  Tensors tensors;
};

TEST_F(Tensors16, GoodOnesPass) {
  const Status status = core::check_tensors(problem, tensors);
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(Tensors16, NullIsNamed) {
  const auto refused_without = [&](const char* name, auto member) {
    Tensors broken = tensors;
    broken.*member = nullptr;
    expect_refused(core::check_tensors(problem, broken), StatusCode::invalid_argument,
                   {std::string(name) + " is null", "bytes"});
  };
  refused_without("q", &Tensors::q);
  refused_without("k", &Tensors::k);
  refused_without("v", &Tensors::v);
  refused_without("o", &Tensors::o);
  refused_without("lse", &Tensors::lse);
  problem.dtype = DType::e4m3;
  problem.scales = ScaleKind::per_head;
  tensors.q_scale = tensors.k_scale = tensors.v_scale = scales.data();
  EXPECT_TRUE(core::check_tensors(problem, tensors).ok());
  refused_without("q_scale", &Tensors::q_scale);
  refused_without("k_scale", &Tensors::k_scale);
  refused_without("v_scale", &Tensors::v_scale);
}

TEST_F(Tensors16, WhatIsNotNeededMayBeNull) {
  problem.lse = false;
  tensors.lse = nullptr;
  EXPECT_TRUE(core::check_tensors(problem, tensors).ok());
  Problem no_key = make_problem(2, 8, 2, 16, 0, 64, DType::f16);
  EXPECT_TRUE(core::check_tensors(no_key, {.o = o.data()}).ok());
  EXPECT_TRUE(core::check_tensors(make_problem(0, 8, 2, 16, 32, 64, DType::f16), {}).ok());
  EXPECT_TRUE(core::check_tensors(make_problem(2, 8, 2, 0, 32, 64, DType::f16), {}).ok());
}

TEST_F(Tensors16, UnalignedIsNamed) {
  tensors.k = reinterpret_cast<const char*>(k.data()) + 1;
  expect_refused(core::check_tensors(problem, tensors), StatusCode::invalid_argument,
                 {"k is not aligned", "multiple of 2"});
  tensors.k = k.data();
  tensors.lse = reinterpret_cast<float*>(reinterpret_cast<char*>(lse.data()) + 2);
  expect_refused(core::check_tensors(problem, tensors), StatusCode::invalid_argument,
                 {"lse is not aligned", "multiple of 4"});
}

TEST_F(Tensors16, OutputsMustNotOverlapAnything) {
  const auto refused = [&](const Tensors& t, const char* first, const char* second) {
    expect_refused(core::check_tensors(problem, t), StatusCode::invalid_argument,
                   {std::string(first) + " overlaps " + second, "its own"});
  };
  Tensors t = tensors;
  t.o = q.data();
  refused(t, "o", "q");
  t.o = k.data() + 2 * 2 * 32 * 64 - 1;  // the last element of K
  refused(t, "o", "k");
  t.o = v.data();
  refused(t, "o", "v");
  t.o = lse.data() + lse.size() - 1;
  refused(t, "o", "lse");
  t = tensors;
  t.lse = reinterpret_cast<float*>(q.data());
  refused(t, "lse", "q");
  // Inputs may share memory, and neighbours may touch.
  t = tensors;
  t.k = t.v = t.q;
  EXPECT_TRUE(core::check_tensors(problem, t).ok());
  std::vector<std::uint16_t> both(2 * 2 * 8 * 16 * 64);
  t.q = both.data();
  t.k = k.data();
  t.v = v.data();
  t.o = both.data() + both.size() / 2;
  EXPECT_TRUE(core::check_tensors(problem, t).ok());
}

TEST_F(Tensors16, AnEndBehindTheLastAddressIsRefused) {
  tensors.v = reinterpret_cast<const void*>(~std::uintptr_t{0} - 127);
  expect_refused(core::check_tensors(problem, tensors), StatusCode::invalid_argument,
                 {"v ends behind the last address"});
}

TEST_F(Tensors16, Workspace) {
  alignas(256) static unsigned char scratch[1024];
  EXPECT_TRUE(core::check_workspace(problem, tensors, 0, nullptr, 0).ok());
  EXPECT_TRUE(core::check_workspace(problem, tensors, 1024, scratch, 1024).ok());
  constexpr StatusCode kInvalid = StatusCode::invalid_argument;
  expect_refused(core::check_workspace(problem, tensors, 1024, scratch, 1023), kInvalid,
                 {"1023 bytes", "needs 1024", "Plan::workspace_bytes"});
  expect_refused(core::check_workspace(problem, tensors, 1024, nullptr, 4096), kInvalid,
                 {"has 0 bytes", "needs 1024"});
  expect_refused(core::check_workspace(problem, tensors, 512, scratch + 128, 896), kInvalid,
                 {"not aligned", "256"});
  tensors.v = scratch + 512;
  expect_refused(core::check_workspace(problem, tensors, 1024, scratch, 1024), kInvalid,
                 {"overlaps v", "its own"});
}

TEST_F(Tensors16, AlignmentFollowsThePointers) {
  alignas(256) static unsigned char memory[256];
  tensors.q = memory;
  tensors.k = memory + 2;
  tensors.v = memory + 16;
  tensors.o = nullptr;
  core::lower_alignment(problem, tensors);
  EXPECT_EQ(problem.q.alignment, 64);  // never raised above what the caller planned with
  EXPECT_EQ(problem.k.alignment, 2);
  EXPECT_EQ(problem.v.alignment, 16);
  EXPECT_EQ(problem.o.alignment, 64);
}

TEST(Extent, ReachesToTheLastElement) {
  const Layout layout = dense_layout(Order::bshd, 2, 3, 5, 8);
  EXPECT_EQ(core::extent_bytes(layout, 2, 3, 5, 8, DType::f16), 2 * 3 * 5 * 8 * 2);
  EXPECT_EQ(core::extent_bytes({{0, 0, 100, 1}, 64}, 2, 3, 5, 8, DType::f32), (400 + 8) * 4);
  EXPECT_EQ(core::extent_bytes(layout, 0, 3, 5, 8, DType::f16), 0);
  EXPECT_EQ(core::extent_bytes(layout, 2, 3, 0, 8, DType::f16), 0);
}

}  // namespace
}  // namespace greenfast
