// The kernels of cuda.sm80.serving as they stand, run on the CPU by simt.hpp, against docs/serving.md in
// fp64.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "serving_case.hpp"

#define __shared__
#include "kernels/cuda/sm80_serving/kernel.cuh"
#undef __shared__
#include "kernels/cuda/sm80_serving/params.hpp"

namespace greenfast::cuda::sm80_serving {

inline float to_float(E4m3 x) { return test::of_e4m3(x.bits); }

alignas(1024) unsigned char shared_memory[227 * 1024];

namespace {

using namespace test;

/// `shift` elements lie between a multiple of 16 bytes and Q, K and V.
template <class T>
Answer run_kernel(const Case& c, const Data<T>& data, simt::Copies copies, int shift = 0) {
  const Problem& p = c.problem;
  const std::size_t index = choose(p, c.facts);
  const Config config = config_of(index, sizeof(T));
  Answer answer = room_for(p);
  using Narrow = std::conditional_t<sizeof(T) == 1, __half, T>;  // of O and of masks
  std::vector<Narrow> narrow;
  for (const float x : c.mask) narrow.push_back(narrowed<Narrow>(x));
  const auto shifted = [&](const std::vector<T>& x) {
    std::vector<T> out(static_cast<std::size_t>(shift), narrowed<T>(kNaN));
    out.insert(out.end(), x.begin(), x.end());
    return out;
  };
  const std::vector<T> q = shifted(data.q), k = shifted(data.k), v = shifted(data.v);
  std::vector<Narrow> narrow_o(p.out_dtype == DType::f32 ? 0 : answer.o.size(),
                               narrowed<Narrow>(kNaN));
  Tensors t = arrays_of(c);
  t.q = q.data() + shift;
  t.k = k.data() + shift;
  t.v = v.data() + shift;
  t.o = p.out_dtype == DType::f32 ? static_cast<void*>(answer.o.data()) : narrow_o.data();
  t.lse = answer.lse.data();
  t.mask = p.array_mask.kind == MaskKind::boolean ? static_cast<const void*>(c.seen.data())
           : p.array_mask.dtype == DType::f32     ? static_cast<const void*>(c.mask.data())
                                                  : static_cast<const void*>(narrow.data());
  simt::forget_allowed();
  simt::allow(q.data() + shift, data.q.size() * sizeof(T));
  simt::allow(k.data() + shift, data.k.size() * sizeof(T));
  simt::allow(v.data() + shift, data.v.size() * sizeof(T));
  simt::Launch launch;
  launch.grid = {static_cast<unsigned>(blocks(p, config)), 1, 1};
  launch.threads = static_cast<unsigned>(config.threads());
  launch.copies = copies;
  launch.shared = shared_memory;
  launch.shared_bytes = static_cast<std::size_t>(config.shared_bytes());
  using Kernel = void (*)(Params);
  const auto kernel = reinterpret_cast<Kernel>(const_cast<void*>(entries<T>()[index]));
  const Params params = make_params(p, t, config);
  if (sizeof(T) == 2) {
    EXPECT_EQ(params.aligned, shift == 0);
  }
  simt::run(launch, [&] { kernel(params); });
  for (std::size_t i = 0; i < narrow_o.size(); ++i) answer.o[i] = to_float(narrow_o[i]);
  return answer;
}

template <class T>
void expect_right_answer(const Case& c, simt::Copies copies, int shift = 0) {
  const Data<T> data = make_data<T>(c);
  expect_right<T>(c, data, run_kernel<T>(c, data, copies, shift));
}

/// Of `count` problems; `change` makes of each what is asked.
template <class Change>
void expect_right_of_many(int first_seed, int count, const Change& change) {
  for (int seed = first_seed; seed < first_seed + count; ++seed) {
    Case c = draw(static_cast<std::uint64_t>(seed));
    change(c);
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto copies = seed % 2 == 0 ? simt::Copies::late : simt::Copies::early;
    if (c.problem.dtype == DType::e4m3)
      expect_right_answer<E4m3>(c, copies);
    else if (c.problem.dtype == DType::f16)
      expect_right_answer<__half>(c, copies);
    else
      expect_right_answer<__nv_bfloat16>(c, copies);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(ServingKernel, AgreesWithTheMeaningOfEveryFeature) {
  expect_right_of_many(1, GREENFAST_TEST_PERCENT, [](Case&) {});
}

/// Rows of 16-byte boundaries and others, head dims whose last 16 bytes are half there.
TEST(ServingKernel, OfE4m3AgreesWithTheMeaningOfEveryFeature) {
  int aligned = 0;
  expect_right_of_many(40001, GREENFAST_TEST_PERCENT, [&](Case& c) {
    make_e4m3(c, c.seed % 3 == 0 ? 8 : 16);
    if (c.seed % 4 == 0) add_biases(c);
    if (c.problem.array_mask.kind == MaskKind::additive) c.problem.array_mask.dtype = DType::f32;
    aligned += c.problem.q.stride[2] % 16 == 0 && c.problem.head_dim % 16 == 8;
  });
  if (GREENFAST_TEST_PERCENT >= 100) {
    EXPECT_GT(aligned, 0);
  }
}

TEST(ServingKernel, AddsSlopesAndMasksOfEveryShape) {
  expect_right_of_many(20001, GREENFAST_TEST_PERCENT, [](Case& c) { add_biases(c); });
}

/// Rows that start anywhere are copied element by element; outputs of 16 bits by whole rows, or not.
TEST(ServingKernel, TakesRowsThatStartAnywhereAndWritesNarrowOutputs) {
  for (const int gap : {0, 4}) {
    for (const int shift : {0, 1}) {
      Case c;
      c.seed = static_cast<std::uint64_t>(gap + shift);
      Problem& p = c.problem = make_problem(1, 2, 1, 70, 100, 80, DType::f16);
      p.lse = true;
      p.o.stride = {2 * 70 * (80 + gap), 70 * (80 + gap), 80 + gap, 1};
      p.mask = Mask::causal(Alignment::bottom_right);
      c.facts.kind = DeviceKind::cuda;
      c.facts.shared_per_block = 99 * 1024;
      expect_right_answer<__half>(c, simt::Copies::late, shift);
      p.dtype = DType::e4m3;
      expect_right_answer<E4m3>(c, simt::Copies::late, shift);
      ASSERT_FALSE(HasFailure()) << gap << " " << shift;
    }
  }
}

/// Whole blocks, whose copies are issued between products, between blocks that are seen in part.
TEST(ServingKernel, PromptsOfSeveralBlocksAndTiles) {
  for (const auto& [dim, keys, rows] :
       {std::array{64, 330, 150}, {128, 256, 70}, {72, 200, 65}, {256, 140, 66}}) {
    for (const bool causal : {false, true}) {
      Case c;
      c.seed = static_cast<std::uint64_t>(dim + keys);
      Problem& p = c.problem = make_problem(1, 2, 1, rows, keys, dim, DType::f16);
      p.out_dtype = DType::f32;
      p.o.alignment = p.q.alignment = p.k.alignment = p.v.alignment = 16;
      p.lse = true;
      if (causal) p.mask = Mask::causal(Alignment::bottom_right);
      c.facts.kind = DeviceKind::cuda;
      c.facts.shared_per_block = 163 * 1024;
      expect_right_answer<__half>(c, causal ? simt::Copies::early : simt::Copies::late);
      p.dtype = DType::e4m3;
      expect_right_answer<E4m3>(c, causal ? simt::Copies::early : simt::Copies::late);
      ASSERT_FALSE(HasFatalFailure()) << dim;
    }
  }
}

}  // namespace
}  // namespace greenfast::cuda::sm80_serving
