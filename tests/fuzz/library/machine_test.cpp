// The fuzzer of the library: what it draws, that it sees planted faults and no others, and what it
// says of batch invariance on the CPU.
#include "fuzz/library/machine.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <set>

namespace greenfast::fuzz {
namespace {

// What the test changes: the call itself.
class Planted : public Machine {
 public:
  using Fault = std::function<Status(const Problem&, const Tensors&, const Options&)>;
  explicit Planted(Fault fault)
      : Machine(*device_facts(DeviceKind::cpu), open_cpu_worker()), fault_(std::move(fault)) {}

 protected:
  Status attend(const Problem& problem, const Tensors& tensors, const Options& options) override {
    return fault_(problem, tensors, options);
  }

 private:
  Fault fault_;
};

Spec plain_spec() {
  std::string why;
  const auto spec =
      parse_spec("b=2,hq=2,hkv=1,sq=20,skv=150,lse=1,os0=2640,os1=1320,os2=66,seed=5", &why);
  EXPECT_TRUE(spec) << why;
  return *spec;
}

Finding judged(const Spec& spec, Planted::Fault fault, const char* variant = "cpu.naive") {
  Planted machine(std::move(fault));
  const Status loaded = machine.load(spec, true);
  EXPECT_TRUE(loaded) << loaded.message();
  return machine.check(variant);
}

std::uint16_t* outputs(const Tensors& tensors) { return static_cast<std::uint16_t*>(tensors.o); }

TEST(FuzzLibrary, FormatsRoundTrip) {
  for (const DType type : {DType::f16, DType::bf16, DType::e4m3}) {
    const std::uint32_t codes = type == DType::e4m3 ? 256 : 65536;
    for (std::uint32_t code = 0; code < codes; ++code) {
      const float value = decode(type, code);
      if (is_nan(static_cast<double>(value))) continue;
      ASSERT_EQ(encode(type, value), code) << name_of(type) << " " << code;
    }
  }
  // Ties go to even codes; what is above the largest becomes infinite, or the largest e4m3.
  EXPECT_EQ(encode(DType::f16, 2049.0f), encode(DType::f16, 2048.0f));
  EXPECT_EQ(encode(DType::f16, 2051.0f), encode(DType::f16, 2052.0f));
  EXPECT_EQ(encode(DType::f16, 65520.0f), 0x7c00u);
  EXPECT_EQ(encode(DType::f16, 65519.0f), 0x7bffu);
  EXPECT_EQ(encode(DType::bf16, 257.0f), encode(DType::bf16, 256.0f));
  EXPECT_EQ(encode(DType::e4m3, 1e9f), 0x7eu);
}

TEST(FuzzLibrary, ACaseIsAPureFunctionAndItsTextSaysAll) {
  for (const Property property : {Property::reference, Property::batch_invariant}) {
    const Profile profile = profile_of(DeviceKind::cpu, property);
    std::set<std::string> seen;
    for (std::uint64_t number = 0; number < 500; ++number) {
      const Spec spec = random_spec(profile, 3, number);
      const std::string text = to_text(spec);
      EXPECT_EQ(to_text(random_spec(profile, 3, number)), text);
      ASSERT_TRUE(check(spec.problem)) << text;
      std::string why;
      const auto again = parse_spec(text, &why);
      ASSERT_TRUE(again) << text << ": " << why;
      EXPECT_EQ(to_text(*again), text);
      EXPECT_EQ(again->problem, spec.problem) << text;
      seen.insert(text);
    }
    EXPECT_GT(seen.size(), 495u);
    EXPECT_NE(to_text(random_spec(profile, 4, 0)), to_text(random_spec(profile, 3, 0)));
  }
}

TEST(FuzzLibrary, ASimplerProblemIsLegalAndSimplifyingEnds) {
  const Profile profile = profile_of(DeviceKind::cpu, Property::reference);
  for (std::uint64_t number = 0; number < 100; ++number) {
    Spec spec = random_spec(profile, 11, number);
    for (int step = 0;; ++step) {
      ASSERT_LT(step, 500) << describe(spec);
      const auto list = simpler(spec);
      if (list.empty()) break;
      for (const Spec& one : list) ASSERT_TRUE(check(one.problem)) << describe(one);
      spec = list[number % list.size()];
    }
  }
}

TEST(FuzzLibrary, TheReferenceAgreesWithAHonestKernel) {
  const Finding finding = judged(
      plain_spec(), [](const auto& p, const auto& t, const auto& o) { return attention(p, t, o); });
  EXPECT_FALSE(finding.wrong()) << finding.kind << " " << finding.detail;
  EXPECT_GT(finding.worst_o, 0.0f);
}

// Problems of random seeds that were called wrong: by the fuzzer's fault, but for the last five.
TEST(FuzzLibrary, ProblemsThatWereFound) {
  const char* const specs[] = {
      // Two equal scores of 1e25: their log-sum-exp is the score itself, and they weigh 1/2 each.
      "b=13,hq=16,hkv=4,sq=83,skv=2,d=16,dtype=2,out=2,scale=0.25,seed=17466330977666095982,"
      "qmag=3.7644515e+25,weighted=1",
      // 95 equal weights beside a large one: roundings of a sum that agree.
      "sq=9,skv=96,d=8,dtype=0,out=0,scale=0.35355338,seed=15899782746771597733,qmag=0,kmag=0,"
      "scores=1,gap=7.5,lead=1.6817929,nat=1.6817929,count=1,weighted=2",
      "sq=9,skv=71,d=8,dtype=0,out=0,seed=1213009640853521261,qmag=0,kmag=0,scores=1,gap=16.75,"
      "lead=2.828427,nat=2.828427,count=1",
      // Weights of 2^-77 of the largest by values of 2^-24: bf16 products that are flushed.
      "sq=9,skv=2,d=8,dtype=2,out=2,seed=14301175386947635712,qmag=0,kmag=0,vmag=5.2685994e-08,"
      "scores=1,gap=53.75,lead=2.828427,nat=2.828427,count=1,weighted=3",
      // Scale 0 and a NaN in Q, which cpu.flash took for 0: fp16 with AMX, e4m3 and bf16 with
      // AVX512-BF16.
      "b=4,sq=48,skv=1,d=120,scale=0,seed=13041615796383543916,weighted=1,plant=1,at0=3,at2=47,"
      "at3=115",
      "hq=4,sq=4,skv=1,d=40,dtype=3,scale=0,seed=10120725066556053682,weighted=1,plant=1,at1=2,"
      "at2=3,at3=34",
      "hq=4,sq=4,skv=1,d=40,dtype=2,out=2,scale=0,seed=1,weighted=1,plant=1,at1=2,at2=3,at3=34",
      // V the last finite number everywhere, of which cpu.flash made infinities: fp32, and bf16
      // where rounded weights sum above 1.
      "sq=1,skv=3,d=8,dtype=0,out=0,scale=0.088388346,seed=13046543932022832852,kmag=17.450172,"
      "vmag=3.4028235e+38,weighted=1",
      "sq=9,skv=100,dtype=2,out=2,softcap=0.6995812,seed=5465721094738069363,vmag=3.3895314e+38,"
      "scores=2,gap=-16.787453,lead=2.828427,nat=2.828427,count=215,weighted=1",
  };
  for (const char* const text : specs) {
    std::string why;
    const auto spec = parse_spec(text, &why);
    ASSERT_TRUE(spec) << why;
    const auto honest = [](const auto& p, const auto& t, const auto& o) {
      return attention(p, t, o);
    };
    for (const char* const variant : {"cpu.naive", "cpu.flash"}) {
      const Finding finding = judged(*spec, honest, variant);
      EXPECT_FALSE(finding.wrong()) << text << ": " << finding.kind << " " << finding.detail;
    }
  }
}

TEST(FuzzLibrary, PlantedFaultsAreSeen) {
  const struct {
    const char* kind;
    Planted::Fault fault;
  } faults[] = {
      {"o",  // one element, by a hundredth of what the values are
       [](const auto& p, const auto& t, const auto& o) {
         const Status status = attention(p, t, o);
         const float value = decode(DType::f16, outputs(t)[66 * 7 + 5]);
         outputs(t)[66 * 7 + 5] = static_cast<std::uint16_t>(encode(DType::f16, value + 0.01f));
         return status;
       }},
      {"o",  // the last key is dropped
       [](Problem p, const auto& t, const auto& o) {
         --p.seq_kv;
         return attention(p, t, o);
       }},
      {"lse",
       [](const auto& p, const auto& t, const auto& o) {
         const Status status = attention(p, t, o);
         t.lse[3] += 1e-3f;
         return status;
       }},
      {"not finite",
       [](const auto& p, const auto& t, const auto& o) {
         const Status status = attention(p, t, o);
         outputs(t)[3] = 0x7c00u;
         return status;
       }},
      {"unwritten",  // a row is left out
       [](Problem p, const auto& t, const auto& o) {
         --p.seq_q;
         p.lse = false;
         p.mask = Mask::none();
         return attention(p, t, o);
       }},
      {"stray",  // the gap behind a row is written
       [](const auto& p, const auto& t, const auto& o) {
         const Status status = attention(p, t, o);
         outputs(t)[64] = 0;
         return status;
       }},
      {"inputs",
       [](const auto& p, const auto& t, const auto& o) {
         const Status status = attention(p, t, o);
         *static_cast<std::uint16_t*>(const_cast<void*>(t.k)) ^= 1u;
         return status;
       }},
      {"status", [](const auto&, const auto&,
                    const auto&) { return Status(StatusCode::internal, "planted"); }},
  };
  for (const auto& [kind, fault] : faults) EXPECT_EQ(judged(plain_spec(), fault).kind, kind);
}

TEST(FuzzLibrary, NanAndInfinityAreAskedForWhereTheyBelong) {
  const auto zeros = [](const Problem& p, const Tensors& t, const Options&) {
    for (std::int64_t n = 0; n < extent(p.o, p.batch, p.heads_q, p.seq_q, p.head_dim); ++n)
      if (n % 66 < 64) outputs(t)[n] = 0;
    for (std::int64_t row = 0; row < p.batch * p.heads_q * p.seq_q; ++row)
      t.lse[row] = -std::numeric_limits<float>::infinity();
    return Status();
  };
  // Every score -inf: O = 0, LSE = -inf.
  Spec spec = plain_spec();
  spec.values.scores = Scores::minus_inf;
  spec.values.first = 1;
  spec.values.lead = 1.0f;
  EXPECT_EQ(judged(spec, zeros).kind, "");
  // A NaN in a row of Q: its outputs are NaN.
  spec = plain_spec();
  spec.values.plant = Plant::nan_q;
  spec.values.plant_at[2] = 4;
  EXPECT_TRUE(judged(spec, zeros).wrong());
  EXPECT_EQ(judged(spec,
                   [](const Problem& p, const Tensors& t, const Options& o) {
                     const Status status = attention(p, t, o);
                     for (int d = 0; d < 64; ++d) outputs(t)[4 * 66 + d] = 0;
                     return status;
                   })
                .kind,
            "not NaN");
}

TEST(FuzzLibrary, BatchInvarianceOnTheCpu) {
  for (const std::uint64_t seed : {20260101u, 20260102u}) {
    auto machine = Machine::open(DeviceKind::cpu);
    ASSERT_TRUE(machine) << machine.status().message();
    const Profile profile = profile_of(DeviceKind::cpu, Property::batch_invariant);
    std::int64_t largest_batch = 0;
    for (std::uint64_t number = 0; number < 200u * GREENFAST_TEST_PERCENT / 100u; ++number) {
      const Spec spec = random_spec(profile, seed, number);
      largest_batch = std::max(largest_batch, spec.problem.batch);
      const Status loaded = (*machine)->load(spec, false);
      ASSERT_TRUE(loaded) << loaded.message();
      for (const char* variant : {"", "cpu.flash", "cpu.naive"}) {
        const Finding finding = (*machine)->check_batch_invariance(variant);
        EXPECT_EQ(finding.kind, "")
            << finding.detail << "\nfuzz_library --property batch-invariant --problem '"
            << to_text(spec) << "'";
      }
    }
    EXPECT_EQ(largest_batch, 100'000);
  }
}

// A place of the batch that is computed otherwise: whatever entries the parts happen to hold, another
// order puts another entry there.
TEST(FuzzLibrary, AnotherOrderFindsWhatDependsOnThePlace) {
  int found = 0, by_order = 0;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Planted machine([](const Problem& p, const Tensors& t, const Options& o) {
      const Status status = attention(p, t, o);
      if (p.batch == 8) {
        auto* const bits = reinterpret_cast<std::uint32_t*>(t.lse + 5 * p.heads_q * p.seq_q);
        *bits ^= 1u;
      }
      return status;
    });
    Spec spec;
    spec.problem = make_problem(8, 2, 1, 3, 20, 16, DType::f16);
    spec.problem.lse = true;
    spec.values.seed = seed;
    ASSERT_TRUE(machine.load(spec, false));
    const Finding finding = machine.check_batch_invariance("cpu.naive");
    found += finding.kind == "bits";
    by_order += finding.detail.find("in the order") != std::string::npos;
    // The inputs stand as they were loaded.
    EXPECT_EQ(machine.check_batch_invariance("cpu.naive").detail, finding.detail);
  }
  EXPECT_GE(found, 15) << "one order in eight leaves the place its entry";
  EXPECT_GE(by_order, 5);
}

// Long rows of keys are split over threads where there are few rows: with the batch that changes.
TEST(FuzzLibrary, WithoutTheOptionBitsDependOnTheBatch) {
  Spec spec;
  spec.problem = make_problem(8, 1, 1, 1, 16384, 64, DType::f32);
  spec.values.seed = 9;
  auto machine = Machine::open(DeviceKind::cpu);
  ASSERT_TRUE(machine) << machine.status().message();
  if ((*machine)->facts().multiprocessors < 2) GTEST_SKIP() << "one thread splits nothing";
  ASSERT_TRUE((*machine)->load(spec, false));
  EXPECT_EQ((*machine)->check_batch_invariance("cpu.flash").kind, "");
  EXPECT_EQ((*machine)->check_batch_invariance("cpu.flash", false).kind, "plan");
}

}  // namespace
}  // namespace greenfast::fuzz
