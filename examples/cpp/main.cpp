// Grouped-query attention over a KV cache in one call, and a check of one row against the formula.
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include <greenfast/attention.hpp>

namespace gf = greenfast;

int main() {
  // Four new tokens attend to a cache of 100; two query heads share each KV head. Tensors are
  // [B, S, H, D] in memory, as most engines keep them.
  constexpr std::int64_t kBatch = 1, kHeadsQ = 4, kHeadsKv = 2, kNew = 4, kCached = 100, kDim = 64;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto tensor = [&](std::int64_t heads, std::int64_t seq) {
    std::vector<float> values(static_cast<std::size_t>(kBatch * heads * seq * kDim));
    for (float& value : values) value = normal(random);
    return values;
  };
  std::vector<float> q = tensor(kHeadsQ, kNew), k = tensor(kHeadsKv, kCached),
                     v = tensor(kHeadsKv, kCached), o(q.size());
  const auto view = [](std::vector<float>& data, std::int64_t heads, std::int64_t seq) {
    return gf::TensorView::dense(data.data(), gf::DType::f32, {kBatch, heads, seq, kDim},
                                 gf::Order::bshd);
  };

  gf::AttentionParams params;
  params.mask = gf::Mask::causal(gf::Alignment::bottom_right);  // the last query sees the last key
  const gf::Status status =
      gf::attention(view(q, kHeadsQ, kNew), view(k, kHeadsKv, kCached), view(v, kHeadsKv, kCached),
                    view(o, kHeadsQ, kNew), params);
  if (!status) {
    std::fprintf(stderr, "attention: %s\n", status.message().c_str());
    return 1;
  }

  // Query 1 of head 3: it sees all keys but the last two, of KV head 1.
  const std::int64_t i = 1, h = 3, kv = 1, visible = kCached - kNew + i + 1;
  double sum = 0, expected = 0;
  for (std::int64_t j = 0; j < visible; ++j) {
    double score = 0;
    for (std::int64_t d = 0; d < kDim; ++d)
      score += double(q[(i * kHeadsQ + h) * kDim + d]) * k[(j * kHeadsKv + kv) * kDim + d];
    const double weight = std::exp(score / std::sqrt(double(kDim)));
    sum += weight;
    expected += weight * v[(j * kHeadsKv + kv) * kDim];
  }
  expected /= sum;
  const double got = o[(i * kHeadsQ + h) * kDim];
  std::printf("greenfast %.*s: o[0, 3, 1, 0] = %.6f, expected %.6f\n", int(gf::version().size()),
              gf::version().data(), got, expected);
  return std::fabs(got - expected) < 1e-5 ? 0 : 1;
}
