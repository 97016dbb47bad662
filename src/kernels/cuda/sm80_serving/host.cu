// Host side of cuda.sm80.serving: what it takes, which tile it chooses, and the launch.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <array>
#include <limits>

#include "core/text.hpp"
#include "core/variant.hpp"
#include "kernels/cuda/device/launch.hpp"
#include "kernels/cuda/device/shared_buffers.hpp"
#include "kernels/cuda/sm80_serving/params.hpp"

namespace greenfast::cuda::sm80_serving {
namespace {

constexpr const char* kId = "cuda.sm80.serving";

bool supports(const Problem& problem, const DeviceFacts& facts, core::Choice, std::string* why) {
  using core::refuse;
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (problem.seq_q > Band::kFar || problem.seq_kv > Band::kFar)
    return refuse(why, "a sequence longer than 2^30: split the call");
  const Sequences& s = problem.sequences;
  if (std::max({s.total_q, s.total_kv, s.kv_rows, problem.pages.count, problem.pages.size}) > kMost)
    return refuse(why,
                  "packed tensors, caches or pages of more than 2^31 - 1 rows: split the call");
  const std::size_t index = choose(problem, facts);
  if (index == kConfigs.size()) {
    return refuse(why, "no tile for head dim ", std::max(problem.head_dim, value_dim(problem)),
                  " fits the ", facts.shared_per_block,
                  " bytes of shared memory that a block may use here");
  }
  if (tiles(problem, kConfigs[index]) > kMost || blocks(problem, kConfigs[index]) > kMost)
    return refuse(why, "more than 2^31 - 1 tiles: split the batch");
  if (why != nullptr) *why = "takes all that serving asks for, 64 rows of a KV head at a time";
  return true;
}

Plan plan(const Problem& problem, const DeviceFacts& facts, core::Choice) {
  const std::size_t index = choose(problem, facts);
  if (index == kConfigs.size()) return {};
  const Config config = config_of(index, size_of(problem.dtype));
  Plan result;
  result.grid = grid_of_blocks(blocks(problem, config));
  result.block = {config.threads(), 1, 1};
  result.shared_bytes = config.shared_bytes();
  const int stages = Config::kStages * config.stage_bytes();
  // Q that goes to registers at once lends its place to the second stage.
  result.shared = shared_buffers(
      config.shared_bytes(),
      {{config.q_in_registers ? "K, before the loop Q" : "K", stages / 2}, {"V", stages / 2}}, "Q");
  result.tile_q = config.rows();
  result.tile_kv = config.keys;
  result.stages = Config::kStages;
  // Instantiated in sources of their own, so named by hand; tests compare it with the cubins.
  result.kernel = std::string("sm80_serving::attention_kernel<") +
                  (problem.dtype == DType::e4m3 ? "E4m3" : type_name(problem.dtype)) + ", " +
                  std::to_string(index) + ">";
  result.note = "tiles of 64 rows: the queries of all heads that share a KV head";
  return result;
}

constinit BuildsByType<kConfigs.size()> builds_of_halves(entries<__half>, entries<__nv_bfloat16>);
constinit BuildsByType<kConfigs.size()> builds_of_e4m3(entries<E4m3>, entries<E4m3>);
BuildsByType<kConfigs.size()>& builds_of(const Problem& problem) {
  return problem.dtype == DType::e4m3 ? builds_of_e4m3 : builds_of_halves;
}

Status ensure_shared(const Problem& problem, std::size_t index, int device) {
  const Config config = config_of(index, size_of(problem.dtype));
  return builds_of(problem).ensure_shared(problem.dtype, index, config.shared_bytes(), device, kId);
}

Status prepare(const Problem& problem, const core::Context& context) {
  return ensure_shared(problem, choose(problem, *context.facts), context.facts->index);
}

Status launch(const Problem& problem, const Tensors& tensors, const core::Context& context) {
  const std::size_t index = choose(problem, *context.facts);
  const Config config = config_of(index, size_of(problem.dtype));
  if (Status status = ensure_shared(problem, index, context.facts->index); !status.ok()) {
    return status;
  }
  Params params = make_params(problem, tensors, config);
  void* arguments[] = {&params};
  return launch_kernel(launch_config(grid_of_blocks(blocks(problem, config)), config.threads(),
                                     config.shared_bytes(), context),
                       builds_of(problem).kernel(problem.dtype, index), arguments, kId);
}

}  // namespace
}  // namespace greenfast::cuda::sm80_serving

namespace greenfast::kernels {
extern const core::Kernel cuda_sm80_serving;
constinit const core::Kernel cuda_sm80_serving{.supports = cuda::sm80_serving::supports,
                                               .plan = cuda::sm80_serving::plan,
                                               .prepare = cuda::sm80_serving::prepare,
                                               .launch = cuda::sm80_serving::launch};
}  // namespace greenfast::kernels
