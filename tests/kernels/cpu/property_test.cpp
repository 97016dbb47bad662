// Every CPU variant of the library on random problems, through the same gate that users run.
//
// The problems are the same in every run. GREENFAST_PROPERTY_SEED=random makes half of them new ones:
// a failure prints its seed, with which they come again. GREENFAST_PROPERTY_COUNT sets how many
// problems a block has.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>

#include "workbench/green/validate.hpp"

namespace greenfast::workbench {
namespace {

constexpr int kBlocks = 24;
constexpr int kProblemsPerBlock = 100;

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool one_in(std::int64_t n) { return between(1, n) == 1; }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[between(0, static_cast<std::int64_t>(values.size()) - 1)];
  }
  std::uint64_t bits() { return engine_(); }

 private:
  std::mt19937_64 engine_;
};

// Mostly short, often right at, below or above a power of two, now and then empty.
std::int64_t random_length(Random& random) {
  if (random.one_in(40)) return 0;
  if (random.one_in(3))
    return std::max<std::int64_t>(
        1, random.of<std::int64_t>({8, 16, 32, 64, 128, 256}) + random.between(-1, 1));
  return random.one_in(6) ? random.between(100, 400) : random.between(1, 90);
}

// Gaps of random size between heads, rows and batches, in either order of heads and rows.
Layout random_layout(Random& random, std::int64_t heads, std::int64_t seq, std::int64_t dim,
                     bool may_broadcast) {
  Layout layout;
  const std::int64_t inner = dim + random.of<std::int64_t>({0, 0, 1, 3, 8, 40});
  const bool rows_inside = random.one_in(2);
  const std::int64_t inner_count = rows_inside ? seq : heads;
  const std::int64_t outer =
      std::max<std::int64_t>(1, inner_count) * inner + random.of<std::int64_t>({0, 5, 64});
  const std::int64_t outer_count = rows_inside ? heads : seq;
  const std::int64_t image =
      std::max<std::int64_t>(1, outer_count) * outer + random.of<std::int64_t>({0, 7, 32});
  layout.stride = rows_inside ? std::array{image, outer, inner, std::int64_t{1}}
                              : std::array{image, inner, outer, std::int64_t{1}};
  // Facts for planning; what a call has is read off its pointers.
  layout.alignment = 64;
  if (may_broadcast && random.one_in(6)) layout.stride[0] = 0;
  if (may_broadcast && random.one_in(6)) layout.stride[1] = 0;
  return layout;
}

Case random_case(Random& random) {
  Case c;
  const std::int64_t heads_kv = random.between(1, 3);
  const auto dtype = random.of({DType::f32, DType::f16, DType::bf16, DType::e4m3});
  const std::int64_t dim =
      random.one_in(2) ? random.of<std::int64_t>({64, 128})
                       : 8 * (random.one_in(5) ? random.between(1, 32) : random.between(1, 12));
  Problem& p = c.problem;
  p = make_problem(random.of<std::int64_t>({1, 1, 2, 3}), heads_kv * random.between(1, 4), heads_kv,
                   random_length(random), random_length(random), dim, dtype);
  if (random.one_in(3)) p.seq_q = random.between(1, 5);
  if (random.one_in(4)) p.seq_kv = p.seq_q;
  p.q = dense_layout(Order::bhsd, p.batch, p.heads_q, p.seq_q, dim);
  p.k = p.v = dense_layout(Order::bhsd, p.batch, p.heads_kv, p.seq_kv, dim);
  p.o = p.q;
  if (dtype == DType::e4m3)
    p.scales = random.of({ScaleKind::none, ScaleKind::tensor, ScaleKind::per_head});
  if (random.one_in(3)) p.out_dtype = random.of({DType::f32, DType::f16, DType::bf16});
  const auto alignment = random.of({Alignment::top_left, Alignment::bottom_right});
  switch (random.between(0, 4)) {
    case 0:
      p.mask = Mask::causal(alignment);
      break;
    case 1:
      p.mask = Mask::window(random.between(0, 70), random.between(-1, 30), alignment);
      break;
    case 2:
      p.mask = Mask::window(-1, random.between(0, 70), alignment);
      break;
    default:
      break;
  }
  if (random.one_in(5)) p.softcap = random.of({1.0f, 10.0f, 50.0f});
  if (random.one_in(6)) p.scale *= random.of({0.5f, 1.7f, -1.0f, 0.0f});
  p.lse = random.one_in(2);
  if (random.one_in(2)) {
    p.q = random_layout(random, p.heads_q, p.seq_q, dim, false);
    p.k = random_layout(random, p.heads_kv, p.seq_kv, dim, true);
    p.v = random_layout(random, p.heads_kv, p.seq_kv, dim, true);
    p.o = random_layout(random, p.heads_q, p.seq_q, dim, false);
  } else {
    LayoutKind kind;
    do
      kind = layout_table()[static_cast<std::size_t>(random.between(
                                0, static_cast<std::int64_t>(layout_table().size()) - 1))]
                 .id;
    while (!is_for(kind, p.dtype));
    set_layout(p, kind);
  }
  // The ends of the range have problems and limits of their own.
  do
    c.distribution =
        distribution_table()[static_cast<std::size_t>(random.between(
                                 0, static_cast<std::int64_t>(distribution_table().size()) - 1))]
            .id;
  while (has_own_problem(c.distribution));
  c.seed = random.bits();
  return c;
}

// Of every other block. Nothing is drawn unasked: what a change is told must not hang on luck.
std::uint64_t second_seed() {
  static const std::uint64_t seed = [] {
    const char* const text = std::getenv("GREENFAST_PROPERTY_SEED");
    if (text == nullptr) return std::uint64_t{20260102u};
    if (std::strcmp(text, "random") == 0) return std::uint64_t{std::random_device{}()};
    return static_cast<std::uint64_t>(std::strtoull(text, nullptr, 0));
  }();
  return seed;
}

int problems_per_block() {
  const char* text = std::getenv("GREENFAST_PROPERTY_COUNT");
  return text ? std::atoi(text) : kProblemsPerBlock * GREENFAST_TEST_PERCENT / 100;
}

class RandomProblems : public testing::TestWithParam<int> {};

TEST_P(RandomProblems, EveryVariantAgreesWithTheOracle) {
  const auto policy = load_policy("strict");
  ASSERT_TRUE(policy) << policy.status().message();
  const auto device = open_device(DeviceKind::cpu);
  ASSERT_TRUE(device) << device.status().message();
  const auto subjects = find_subjects("cpu.*");
  ASSERT_TRUE(subjects) << subjects.status().message();

  const std::uint64_t base = GetParam() % 2 == 0 ? 20260101u : second_seed();
  Random random(base + static_cast<std::uint64_t>(GetParam()) * 0x9e3779b97f4a7c15u);
  for (int n = 0; n < problems_per_block(); ++n) {
    const Case c = random_case(random);
    const auto where = [&] {
      return "problem " + std::to_string(n) + " of block " + std::to_string(GetParam()) +
             ", GREENFAST_PROPERTY_SEED=" + std::to_string(second_seed()) + ": " + to_string(c);
    };
    const Status legal = check(c.problem);
    ASSERT_TRUE(legal) << where() << ": " << legal.message();
    const auto data = prepare_case(c, *policy);
    ASSERT_TRUE(data) << where() << ": " << data.status().message();
    int accepted = 0;
    for (const auto& subject : *subjects) {
      const CaseResult result = validate(*subject, **device, *data, *policy);
      EXPECT_NE(result.verdict, Verdict::red)
          << subject->id() << ", " << where() << "\n  " << result.reason;
      accepted += result.verdict == Verdict::green;
    }
    EXPECT_GT(accepted, 0) << "no variant takes " << where();
  }
}

INSTANTIATE_TEST_SUITE_P(Blocks, RandomProblems, testing::Range(0, kBlocks));

}  // namespace
}  // namespace greenfast::workbench
