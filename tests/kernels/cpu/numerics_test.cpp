// The ends of the range, on every CPU kernel with every instruction set: scores, softcaps and
// values as large as they come, rows a million keys long, and what a host may have set for its own
// floats.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "subject.hpp"

#if defined(GREENFAST_AMX_IN_SOFTWARE)
#include "amx/tiles.hpp"
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace greenfast {
namespace {

using test::Case;
using test::launch;
using test::Subject;
using test::subjects;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr DType kTypes[] = {DType::f32, DType::f16, DType::bf16, DType::e4m3};

/// [1, 1, rows or keys, D] tensors whose elements a test sets by position; everything is 0 else.
/// Eight rows at most are "few rows", more take the register tiles.
class Plain : public Case {
 public:
  Plain(DType dtype, std::int64_t rows, std::int64_t keys, std::int64_t dim = 8)
      : Case(make(dtype, rows, keys, dim), 1), size_(size_of(dtype)) {
    for (auto* data : {&q, &k, &v}) std::fill(data->begin(), data->end(), std::byte{0});
  }
  void set_q(std::int64_t row, std::int64_t d, double x) { set(q, row, d, x); }
  void set_k(std::int64_t key, std::int64_t d, double x) { set(k, key, d, x); }
  void set_v(std::int64_t key, std::int64_t d, double x) { set(v, key, d, x); }
  void set_all_q(std::int64_t d, double x) {
    for (std::int64_t row = 0; row < problem.seq_q; ++row) set_q(row, d, x);
  }
  double value(std::int64_t key, std::int64_t d) const {
    return test::decode(problem.dtype, &v[at(key, d)]);
  }
  double out(std::int64_t row, std::int64_t d) const {
    const auto index = static_cast<std::size_t>(row * problem.head_dim + d);
    return test::decode(problem.out_dtype, &o[index * size_of(problem.out_dtype)]);
  }
  double out_lse(std::int64_t row) const { return double{lse[static_cast<std::size_t>(row)]}; }

 private:
  static Problem make(DType dtype, std::int64_t rows, std::int64_t keys, std::int64_t dim) {
    Problem problem = make_problem(1, 1, 1, rows, keys, dim, dtype);
    problem.out_dtype = DType::f32;
    problem.lse = true;
    problem.scale = 1.0f;
    return problem;
  }
  std::size_t at(std::int64_t row, std::int64_t d) const {
    return static_cast<std::size_t>(row * problem.head_dim + d) * size_;
  }
  void set(std::vector<std::byte>& data, std::int64_t row, std::int64_t d, double x) {
    test::encode(problem.dtype, x, &data[at(row, d)]);
  }
  std::size_t size_;
};

/// Runs a case with every subject, on one thread and on more, which may split its keys.
void each(Case& call, const std::function<void(const Subject&)>& verify) {
  for (const Subject& subject : subjects()) {
    for (const int threads : {1, 3}) {
      SCOPED_TRACE(subject.label + ", " + to_string(call.problem) + ", threads " +
                   std::to_string(threads));
      call.poison_output();
      const Status status = launch(subject, call, threads);
      ASSERT_TRUE(status.ok()) << status.message();
      verify(subject);
      if (testing::Test::HasFailure()) return;
    }
  }
}

/// Relative error that a rounded weight may cause, else that of 192 roundings of a sum to
/// fp32, all to one side.
double tolerance(const Subject& subject, DType dtype) {
  return std::max(6.0e-6, subject.weight_error(dtype));
}

TEST(CpuNumerics, OneKeyIsReturnedWhateverItsScore) {
  const struct {
    DType dtype;
    double component;
  } cases[] = {{DType::f16, 54656.0}, {DType::f16, 65504.0}, {DType::bf16, 170000.0},
               {DType::bf16, 0x1p62}, {DType::f32, 60000.0}, {DType::f32, 0x1.8p63},
               {DType::f32, -0x1p63}, {DType::e4m3, 448.0}};
  for (const auto& [dtype, component] : cases) {
    for (const std::int64_t rows : {1, 40}) {
      Plain call(dtype, rows, 1, 64);
      call.set_all_q(0, component);
      call.set_k(0, 0, std::fabs(component));
      for (std::int64_t d = 0; d < 64; ++d) call.set_v(0, d, 0.0625 * static_cast<double>(d - 32));
      double q0 = test::decode(dtype, call.q.data()), k0 = test::decode(dtype, call.k.data());
      each(call, [&](const Subject&) {
        for (std::int64_t row = 0; row < rows; ++row) {
          ASSERT_EQ(call.out_lse(row), double{static_cast<float>(q0 * k0)});
          for (std::int64_t d = 0; d < 64; ++d) ASSERT_EQ(call.out(row, d), call.value(0, d));
        }
      });
    }
  }
}

// Scores are exact in fp32 here, so the row is the mean of the keys with the largest.
TEST(CpuNumerics, LargeScalesPickTheLargestScores) {
  constexpr std::int64_t kKeys = 403, kDim = 16;
  for (const DType dtype : kTypes) {
    for (const float scale : {0x1p24f, 0x1p31f, -0x1p40f, 0x1p110f}) {
      for (const std::int64_t rows : {2, 33}) {
        Plain call(dtype, rows, kKeys, kDim);
        call.problem.scale = scale;
        std::uint32_t state = 7;
        const auto small = [&] {
          return static_cast<double>((state = state * 1664525 + 1013904223) >> 29) - 3.0;
        };
        const auto fill = [&](std::int64_t count, auto set) {
          for (std::int64_t i = 0; i < count; ++i) {
            for (std::int64_t d = 0; d < kDim; ++d) set(i, d, small());
          }
        };
        fill(rows, [&](auto i, auto d, double x) { call.set_q(i, d, x); });
        fill(kKeys, [&](auto i, auto d, double x) { call.set_k(i, d, x); });
        fill(kKeys, [&](auto i, auto d, double x) { call.set_v(i, d, x); });
        each(call, [&](const Subject& subject) {
          for (std::int64_t row = 0; row < rows; ++row) {
            double top = -kInf, count = 0.0;
            std::vector<double> mean(kDim);
            for (std::int64_t key = 0; key < kKeys; ++key) {
              double score = 0.0;
              for (std::int64_t d = 0; d < kDim; ++d) {
                const auto element = [&](const std::vector<std::byte>& data, std::int64_t i) {
                  return test::decode(
                      dtype, &data[static_cast<std::size_t>(i * kDim + d) * size_of(dtype)]);
                };
                score += element(call.q, row) * element(call.k, key) * double{scale};
              }
              if (score > top) {
                top = score;
                count = 0.0;
                mean.assign(kDim, 0.0);
              }
              if (score < top) continue;
              ++count;
              for (std::int64_t d = 0; d < kDim; ++d) {
                mean[static_cast<std::size_t>(d)] += call.value(key, d);
              }
            }
            for (std::int64_t d = 0; d < kDim; ++d) {
              ASSERT_NEAR(call.out(row, d), mean[static_cast<std::size_t>(d)] / count,
                          10.0 * tolerance(subject, DType::f32));
            }
            ASSERT_NEAR(call.out_lse(row) / (top + std::log(count)), 1.0, 1.0e-6);
          }
        });
      }
    }
  }
}

// Products of q and k whose differences no float holds, brought back by the scale.
TEST(CpuNumerics, TinyScalesBringLargeProductsBack) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t rows : {1, 20}) {
      Plain call(dtype, rows, 2);
      call.problem.scale = 0x1p-126f;
      call.set_all_q(0, 0x1p63);
      call.set_k(0, 0, 0x1.8p64);
      call.set_k(1, 0, -0x1.8p64);
      call.set_v(0, 0, 0.0);
      call.set_v(1, 0, 1.0);
      const double want = 1.0 / (1.0 + std::exp(6.0));
      each(call, [&](const Subject& subject) {
        for (std::int64_t row = 0; row < rows; ++row) {
          ASSERT_NEAR(call.out(row, 0) / want, 1.0, tolerance(subject, dtype));
          ASSERT_NEAR(call.out_lse(row), 3.0 + std::log1p(std::exp(-6.0)), 2.0e-6);
        }
      });
    }
  }
}

TEST(CpuNumerics, LargeSoftcapsKeepScoresApart) {
  for (const DType dtype : kTypes) {
    for (const float cap : {1.0e4f, 1.0e5f, 1.0e6f, 1.0e8f, 1.0e30f, 0x1p126f}) {
      for (const std::int64_t rows : {1, 20}) {
        Plain call(dtype, rows, 2);
        call.problem.softcap = cap;
        call.set_all_q(0, 1.0);
        call.set_k(0, 0, 1.0);
        call.set_v(0, 0, 1.0);
        const double want = 1.0 / (1.0 + std::exp(-1.0));
        each(call, [&](const Subject& subject) {
          for (std::int64_t row = 0; row < rows; ++row) {
            ASSERT_NEAR(call.out(row, 0), want, tolerance(subject, dtype));
            ASSERT_NEAR(call.out_lse(row), 1.0 + std::log1p(std::exp(-1.0)), 5.0e-6);
          }
        });
      }
    }
  }
}

TEST(CpuNumerics, SoftcapsBendAsTanhDoes) {
  for (const float cap : {0.5f, 5.0f, 50.0f, 1.0e8f}) {
    for (double ratio = 1.0e-4; ratio < 40.0; ratio *= 1.7) {
      Plain call(DType::f32, 9, 1);
      call.problem.softcap = cap;
      call.set_all_q(0, static_cast<double>(static_cast<float>(ratio)));
      call.set_k(0, 0, double{cap});
      const double want = double{cap} * std::tanh(double{static_cast<float>(ratio)});
      each(call, [&](const Subject&) { ASSERT_NEAR(call.out_lse(3) / want, 1.0, 6.0e-7); });
    }
  }
}

// Many keys of score 0 and one of score g whose value is 0: what a long context looks like.
TEST(CpuNumerics, ManySmallWeightsCountBesideALargeOne) {
  constexpr std::int64_t kKeys = 65537;
  for (const DType dtype : kTypes) {
    for (const std::int64_t rows : {1, 16}) {
      Plain call(dtype, rows, kKeys);
      call.set_all_q(0, 1.0);
      for (std::int64_t key = 0; key < kKeys; ++key) call.set_v(key, 0, 1.0);
      for (const auto& one : {std::pair<double, std::int64_t>{8.0, 0},
                              {12.0, kKeys - 5},
                              {13.0, 191},
                              {14.0, 384 * 32},
                              {15.0, 49152}}) {
        const double g = one.first;
        const std::int64_t position = one.second;
        call.set_k(position, 0, g);
        call.set_v(position, 0, 0.0);
        const double others = static_cast<double>(kKeys - 1) * std::exp(-g);
        each(call, [&](const Subject& subject) {
          for (std::int64_t row = 0; row < rows; ++row) {
            ASSERT_NEAR(call.out(row, 0), others / (1.0 + others), tolerance(subject, dtype)) << g;
            ASSERT_NEAR(call.out_lse(row), g + std::log1p(others), 2.0e-5) << g;
          }
        });
        call.set_k(position, 0, 0.0);
        call.set_v(position, 0, 1.0);
      }
    }
  }
}

TEST(CpuNumerics, AMillionKeysAddUp) {
  constexpr std::int64_t kKeys = GREENFAST_TEST_PERCENT < 100 ? 1 << 16 : 1 << 20;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t rows : {1, 9}) {
      Plain call(dtype, rows, kKeys);
      call.set_all_q(0, 1.0);
      double sum = 0.0, weighted = 0.0, constant = 0.0;
      for (std::int64_t key = 0; key < kKeys; ++key) {
        const double score = static_cast<double>(key * 7919 % 13) * 0.125;
        call.set_k(key, 0, score);
        call.set_v(key, 0, 0.5 + static_cast<double>(key % 9) * 0.125);
        call.set_v(key, 1, 1.1);
        const double weight = std::exp(score);
        sum += weight;
        weighted += weight * call.value(key, 0);
        constant = call.value(key, 1);
      }
      each(call, [&](const Subject& subject) {
        for (std::int64_t row = 0; row < rows; ++row) {
          ASSERT_NEAR(call.out(row, 0) / (weighted / sum), 1.0, tolerance(subject, dtype));
          ASSERT_NEAR(call.out(row, 1) / constant, 1.0, tolerance(subject, dtype));
          ASSERT_NEAR(call.out_lse(row), std::log(sum), 4.0e-6);
        }
      });
    }
  }
}

TEST(CpuNumerics, ADominantKeyIsReturnedExactly) {
  constexpr std::int64_t kKeys = 500, kDim = 64;
  for (const DType dtype : kTypes) {
    for (const std::int64_t rows : {1, 40}) {
      Plain call(dtype, rows, kKeys, kDim);
      call.set_all_q(0, 8.0);
      for (std::int64_t key = 0; key < kKeys; ++key) {
        for (std::int64_t d = 0; d < kDim; ++d) {
          call.set_v(key, d, 1.5 + std::sin(static_cast<double>(key * kDim + d)));
        }
      }
      for (const std::int64_t dominant : {0, 191, 192, 383, 384, 499}) {
        call.set_k(dominant, 0, 7.5);
        each(call, [&](const Subject&) {
          for (std::int64_t row = 0; row < rows; ++row) {
            for (std::int64_t d = 0; d < kDim; ++d) {
              ASSERT_EQ(call.out(row, d), call.value(dominant, d)) << row << " " << d;
            }
          }
        });
        call.set_k(dominant, 0, 0.0);
      }
    }
  }
}

TEST(CpuNumerics, RowsOfMinusInfinityAreEmpty) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const std::int64_t rows : {1, 24}) {
      Plain call(dtype, rows, 390);
      call.set_all_q(0, 1.0);
      for (std::int64_t key = 0; key < 390; ++key) {
        call.set_k(key, 0, -kInf);
        call.set_v(key, 0, 3.0);
      }
      each(call, [&](const Subject&) {
        for (std::int64_t row = 0; row < rows; ++row) {
          for (std::int64_t d = 0; d < 8; ++d) ASSERT_EQ(call.out(row, d), 0.0);
          ASSERT_EQ(call.out_lse(row), -kInf);
        }
      });
      // One finite score after all.
      call.set_k(387, 0, -2.0);
      each(call, [&](const Subject&) {
        for (std::int64_t row = 0; row < rows; ++row) {
          ASSERT_EQ(call.out(row, 0), 3.0);
          ASSERT_EQ(call.out_lse(row), -2.0);
        }
      });
      call.set_k(200, 0, std::nan(""));
      each(call, [&](const Subject&) {
        for (std::int64_t row = 0; row < rows; ++row) ASSERT_TRUE(std::isnan(call.out(row, 0)));
      });
    }
  }
}

TEST(CpuNumerics, ANanAmongInfinitiesStaysOne) {
  for (const std::int64_t rows : {1, 24}) {
    Plain call(DType::f32, rows, 390);
    call.set_all_q(0, 1.0);
    for (std::int64_t key = 0; key < 390; ++key)
      call.set_k(key, 0, key == 300 ? std::nan("") : -kInf);
    each(call, [&](const Subject&) {
      for (std::int64_t row = 0; row < rows; ++row) {
        ASSERT_TRUE(std::isnan(call.out(row, 0)));
        ASSERT_TRUE(std::isnan(call.out_lse(row)));
      }
    });
  }
}

TEST(CpuNumerics, TheLargestValuesHaveAFiniteMean) {
  for (const auto& one :
       {std::pair{DType::f32, 0x1.fffffep127}, {DType::f16, 65504.0}, {DType::bf16, 0x1.fep127}}) {
    const DType dtype = one.first;
    const double largest = one.second;
    for (const std::int64_t rows : {1, 24}) {
      // Some lengths round a sum of equal values up, others down.
      for (const std::int64_t keys : {1, 3, 7, 49, 192, 385, 1000}) {
        Plain call(dtype, rows, keys);
        call.problem.out_dtype = dtype;
        for (std::int64_t key = 0; key < keys; ++key) {
          call.set_v(key, 0, largest);
          call.set_v(key, 1, key % 2 == 0 ? largest : -largest);
          call.set_v(key, 2, -largest);
        }
        each(call, [&](const Subject&) {
          for (std::int64_t row = 0; row < rows; ++row) {
            ASSERT_NEAR(call.out(row, 0) / largest, 1.0, dtype == DType::f32 ? 1.0e-5 : 0.0)
                << keys;
            ASSERT_NEAR(call.out(row, 1) / largest, keys % 2 / static_cast<double>(keys),
                        dtype == DType::bf16 ? 4e-3 : 1.0e-3);
            ASSERT_NEAR(call.out(row, 2) / largest, -1.0, dtype == DType::f32 ? 1.0e-5 : 0.0);
          }
        });
      }
    }
  }
}

#if defined(__x86_64__)
// A host may flush subnormals and round elsewhere (PyTorch's set_flush_denormal does); threads that
// are made meanwhile inherit it.
TEST(CpuNumerics, TheHostsFloatModeChangesNoBit) {
  for (const DType dtype : {DType::f32, DType::f16, DType::e4m3}) {
    Problem problem = make_problem(1, 4, 2, 70, 300, 64, dtype);
    problem.out_dtype = DType::f32;
    Case call(problem, 3, dtype == DType::f16 ? 2.0e-5 : 0.01);  // many subnormals
    for (const Subject& subject : subjects()) {
      ASSERT_TRUE(launch(subject, call).ok());
      const auto expected = call.o;
      for (const unsigned mode : {0x8040u, 0x6000u, 0x2000u, 0xe040u}) {
        call.poison_output();
        const unsigned before = _mm_getcsr();
        _mm_setcsr(0x1f80u | mode);
        const Status status = launch(subject, call);
        const unsigned after = _mm_getcsr() & ~0x3fu;  // without the flags
        _mm_setcsr(before);
        ASSERT_TRUE(status.ok());
        EXPECT_EQ(after, 0x1f80u | mode) << subject.label;
        EXPECT_EQ(call.o, expected) << subject.label << " mode " << mode;
      }
    }
  }
}

struct alignas(64) TileConfig {
  std::uint8_t bytes[64];
};
#if defined(GREENFAST_AMX_IN_SOFTWARE)
void load_config(const TileConfig& config) { test::tiles::load_config(&config); }
void store_config(TileConfig& config) { test::tiles::store_config(&config); }
#else
[[gnu::target("amx-tile")]] void load_config(const TileConfig& config) {
  _tile_loadconfig(&config);
}
[[gnu::target("amx-tile")]] void store_config(TileConfig& config) { _tile_storeconfig(&config); }
#endif

// oneDNN remembers what it configured last and does not look again.
TEST(CpuNumerics, TheHostsTilesKeepTheirConfiguration) {
  const Subject subject = subjects().back();
  if (subject.isa != "avx512amx") GTEST_SKIP() << cpu::why_no_amx();
  TileConfig hosts{}, seen{};
  hosts.bytes[0] = 1;           // palette
  hosts.bytes[16 + 2 * 3] = 8;  // tile 3: 5 rows of 8 bytes
  hosts.bytes[48 + 3] = 5;
  Case call(make_problem(1, 2, 2, 70, 300, 64, DType::bf16), 3);
  load_config(hosts);
  const Status status = launch(subject, call, 1);
  store_config(seen);
  const TileConfig none{};
  load_config(none);
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(std::memcmp(&hosts, &seen, sizeof seen), 0);
  ASSERT_TRUE(launch(subject, call, 1).ok());
  store_config(seen);
  EXPECT_EQ(std::memcmp(&none, &seen, sizeof seen), 0);
}
#endif

}  // namespace
}  // namespace greenfast
