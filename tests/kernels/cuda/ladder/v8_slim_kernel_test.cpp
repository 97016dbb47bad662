// cuda.v2c.v8_slim as it stands, run on the CPU by simt.hpp, against attention in fp64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "simt.hpp"

#define __shared__
#include "kernels/cuda/ladder/16_sm80_v2c_v8_slim.cuh"
#undef __shared__

namespace greenfast::cuda::v2c_v8_slim {
namespace {

alignas(1024) unsigned char memory[96 * 1024];

struct Case {
  int heads, group, seq_q, seq_kv;
  bool causal, bottom_right;
  int pad;  // elements between rows
};

std::vector<__half> random_halves(std::size_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<__half> out(count);
  for (__half& x : out) x = __float2half_rn(normal(random));
  return out;
}

StridedTensor view(const std::vector<__half>& data, int seq, int pitch) {
  return {data.data(), 0, std::int64_t{seq} * pitch, pitch};
}

/// The largest error of the kernel's output; infinite where it is no number.
template <int D>
double error_of(const Case& c, simt::Copies copies) {
  std::mt19937 random(static_cast<unsigned>(c.seq_q * 31 + c.seq_kv));
  const int pitch = D + c.pad, heads_kv = c.heads / c.group;
  const auto size = [&](int heads, int seq) {
    return static_cast<std::size_t>(heads) * seq * pitch;
  };
  const auto q = random_halves(size(c.heads, c.seq_q), random),
             k = random_halves(size(heads_kv, c.seq_kv), random),
             v = random_halves(size(heads_kv, c.seq_kv), random);
  std::vector<__half> o(static_cast<std::size_t>(c.heads) * c.seq_q * D, __half{0x7e00});
  ladder::Params p;
  p.q = view(q, c.seq_q, pitch);
  p.k = view(k, c.seq_kv, pitch);
  p.v = view(v, c.seq_kv, pitch);
  p.o = view(o, c.seq_q, D);
  p.heads_q = c.heads;
  p.group = c.group;
  p.seq_q = c.seq_q;
  p.seq_kv = c.seq_kv;
  p.q_tiles = (c.seq_q + kBlockM - 1) / kBlockM;
  p.scale_log2 = 1.44269504f / std::sqrt(static_cast<float>(D));
  p.causal = c.causal;
  p.shift = c.bottom_right ? c.seq_kv - c.seq_q : 0;
  p.vector_loads = c.pad % 8 == 0;

  simt::forget_allowed();
  for (const auto* data : {&q, &k, &v}) simt::allow(data->data(), data->size() * sizeof(__half));
  std::memset(memory, 0xff, sizeof(memory));
  simt::Launch launch;
  launch.grid = {static_cast<unsigned>(c.heads * p.q_tiles), 1, 1};
  launch.threads = static_cast<unsigned>(kThreads<D>);
  launch.copies = copies;
  launch.shared = memory;
  launch.shared_bytes = sizeof(SharedMemoryPlan<D>);
  simt::run(launch, [&] { kernel<D>(p); });

  double worst = 0;
  for (int h = 0; h < c.heads; ++h) {
    for (int i = 0; i < c.seq_q; ++i) {
      const int end = c.causal ? std::clamp(i + p.shift + 1, 0, c.seq_kv) : c.seq_kv;
      const auto row = [&](const std::vector<__half>& of, int head, int seq, int at) {
        return of.data() + (static_cast<std::size_t>(head) * seq + at) * pitch;
      };
      std::vector<double> out(D);
      double sum = 0;
      for (int j = 0; j < end; ++j) {
        double score = 0;
        for (int d = 0; d < D; ++d)
          score += double{to_float(row(q, h, c.seq_q, i)[d])} *
                   to_float(row(k, h / c.group, c.seq_kv, j)[d]);
        const double weight = std::exp(score / std::sqrt(static_cast<double>(D)));
        sum += weight;
        for (int d = 0; d < D; ++d)
          out[d] += weight * to_float(row(v, h / c.group, c.seq_kv, j)[d]);
      }
      for (int d = 0; d < D; ++d) {
        const float got = to_float(o[(static_cast<std::size_t>(h) * c.seq_q + i) * D + d]);
        const double error = std::fabs((end > 0 ? out[d] / sum : 0) - got);
        worst = std::isnan(error) ? INFINITY : std::max(worst, error);
      }
    }
  }
  return worst;
}

class V8SlimKernel : public testing::TestWithParam<Case> {};

TEST_P(V8SlimKernel, IsAttentionHoweverLateCopiesArrive) {
  for (const simt::Copies copies : {simt::Copies::late, simt::Copies::early}) {
    EXPECT_LT(error_of<64>(GetParam(), copies), 2e-3);
    EXPECT_LT(error_of<128>(GetParam(), copies), 2e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, V8SlimKernel,
    testing::Values(Case{1, 1, 1, 1, false, false, 0}, Case{2, 2, 17, 130, false, false, 0},
                    Case{2, 1, 65, 127, true, false, 8}, Case{1, 1, 130, 65, true, true, 0},
                    Case{1, 1, 150, 200, false, false, 1}, Case{1, 1, 200, 64, true, true, 3}),
    [](const auto& named) {
      const Case& c = named.param;
      return std::to_string(c.seq_q) + "x" + std::to_string(c.seq_kv) +
             (c.bottom_right ? "_bottom_right"
              : c.causal     ? "_causal"
                             : "");
    });

}  // namespace
}  // namespace greenfast::cuda::v2c_v8_slim
