// What serving asks of the CPU kernels, on every instruction set, against fp64.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/sequences.hpp"
#include "scene.hpp"
#include "subject.hpp"

namespace greenfast {
namespace {

using test::Keep;
using test::Scene;
using test::Script;
using test::Subject;
using test::subjects;

Status launch(const Subject& subject, const Scene& scene, int threads = 3,
              bool batch_invariant = false, int max_splits = 0) {
  cpu::ThreadPool pool({.threads = threads, .cpus = {}, .pin = false});
  DeviceFacts facts;
  facts.multiprocessors = threads;
  facts.isa = subject.isa;
  facts.l2_bytes = 1 << 20;
  core::Context context;
  context.facts = &facts;
  context.choice = {.batch_invariant = batch_invariant, .max_splits = max_splits};
  context.executor = &pool;
  return subject.kernel->launch(scene.problem, scene.tensors, context);
}

void check_all(Scene& scene) {
  const Status legal = check(scene.problem);
  ASSERT_TRUE(legal.ok()) << legal.message() << ", " << to_string(scene.problem);
  const Status arrays = core::check_arrays(scene.problem, scene.tensors);
  ASSERT_TRUE(arrays.ok()) << arrays.message() << ", " << to_string(scene.problem);
  for (const Subject& subject : subjects()) {
    scene.poison_output();
    const Status status = launch(subject, scene);
    ASSERT_TRUE(status.ok()) << status.message();
    const DType dtype = scene.problem.dtype;
    EXPECT_EQ(scene.compare(subject.weight_error(dtype), subject.exp_error(dtype)), "")
        << subject.label << ", " << to_string(scene.problem);
  }
}

class RandomScenes : public testing::TestWithParam<std::uint64_t> {};

TEST_P(RandomScenes, AgreeWithFp64) {
  constexpr std::uint64_t kScenes = (GREENFAST_TEST_PERCENT + 1) / 2;
  for (std::uint64_t seed = GetParam() * kScenes; seed < (GetParam() + 1) * kScenes; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Script script = test::random_script(seed);
    if (script.sequences.empty()) continue;  // without an element no kernel is asked
    Scene scene(script);
    if (scene.problem.seq_q == 0 || (script.packed_q && scene.problem.sequences.total_q == 0))
      continue;
    check_all(scene);
    if (HasFailure()) return;
  }
}
INSTANTIATE_TEST_SUITE_P(Serving, RandomScenes, testing::Range<std::uint64_t>(0, 10));

}  // namespace
}  // namespace greenfast
