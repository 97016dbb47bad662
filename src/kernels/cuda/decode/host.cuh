// Host side of cuda.sm90.decode and cuda.sm80.decode: what they take, how the keys are parted, and the
// launch. Reads no array of the call: everything here follows from the Problem, so a captured graph stays right when
// the lengths on the device change.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <limits>
#include <string>

#include "core/arithmetic.hpp"
#include "core/check.hpp"
#include "core/text.hpp"
#include "core/variant.hpp"
#include "kernels/cuda/decode/merge.cuh"
#include "kernels/cuda/decode/shape.hpp"
#include "kernels/cuda/device/batch_parts.hpp"
#include "kernels/cuda/device/launch.hpp"
#include "kernels/cuda/device/shared_buffers.hpp"

namespace greenfast::cuda::decode {

constexpr const char* id_of(Family family) {
  return family.sm90() ? "cuda.sm90.decode" : "cuda.sm80.decode";
}

/// A grid holds so many sequences; more are launched in parts, but for arrays that count them.
inline Problem first_part(const Problem& problem) {
  Problem part = problem;
  part.batch = std::min(problem.batch, kGridLimit);
  return part;
}
inline bool may_be_parted(const Problem& problem) {
  return !lengths_differ(problem) && !problem.pages.used() && !problem.sequences.kv_index;
}

template <Family kFamily>
bool supports(const Problem& problem, const DeviceFacts& facts, core::Choice choice,
              std::string* why) {
  using core::refuse;
  constexpr auto family = [](const Problem& p) { return family_of(kFamily, p.dtype); };
  if (problem.dtype == DType::e4m3 && (problem.head_dim % 16 != 0 || value_dim(problem) % 16 != 0))
    return refuse(why, "head dim ",
                  problem.head_dim % 16 != 0 ? problem.head_dim : value_dim(problem),
                  " of e4m3 tensors; takes multiples of 16: pad the head dims with zeros");
  if (problem.seq_q > kMostRows || group_of(problem) * problem.seq_q > kMostRows)
    return refuse(why, "seq_q ", problem.seq_q, " times ", group_of(problem),
                  " query heads to a KV head makes ", group_of(problem) * problem.seq_q,
                  " rows; takes up to ", kMostRows,
                  ": leave the choice of the variant to the library, which has others for more");
  if ((problem.batch > kGridLimit && !may_be_parted(problem)) ||
      problem.heads_kv * row_blocks_of(problem, family(problem)) > kGridLimit)
    return refuse(why, "a batch of ", problem.batch, " with ", problem.heads_kv,
                  " heads of K and V; takes up to ", kGridLimit, " of each: split the call");
  if (const char* name = misaligned_operand(problem, choice.batch_invariant); name != nullptr)
    return refuse(why, "rows of ", name, " do not start at 16-byte boundaries; align the tensor");
#if GREENFAST_EXPERIMENTAL
  if (const std::string& wrong = Forced::get().wrong; !wrong.empty())
    return refuse(why, "GREENFAST_DECODE: '", wrong,
                  "': expected blocks=0, 2, 4 or 8, warps=4 or 8, "
                  "least=N and most=N");
#endif
  if (!steps_of(problem.k, problem) || !steps_of(problem.v, problem))
    return refuse(why,
                  "K or V reach over more than 2^32 steps of their rows' and pages' strides; "
                  "split the pool, or make the strides multiples of a larger power of two");
  for (std::size_t i = family(problem).begin; i < family(problem).end; ++i) {
    const Config& config = kConfigs[i];
    if (config.head_dim == tile_dim_of(problem) && config.shared_bytes() > facts.shared_per_block)
      return refuse(why, "head dim ", problem.head_dim, " in tiles of ", config.shared_bytes(),
                    " bytes; a block may use ", facts.shared_per_block, " of shared memory here");
  }
  if (why != nullptr) {
    const Shape shape = shape_of(first_part(problem), facts, choice, family(problem));
    *why = shape.most_parts == 1 && shape.holders == 0
               ? "the keys in one part: its block writes the output"
           : shape.holders > 0 ? core::concat("the keys of all sequences in ", shape.holders,
                                              " even shares, merged by a second kernel")
                               : core::concat("up to ", shape.most_parts, " parts of the keys, ",
                                              shape.clustered ? "merged in a cluster"
                                                              : "merged by a second kernel");
  }
  return true;
}

template <Family kFamily>
std::int64_t workspace(const Problem& whole, const DeviceFacts& facts, core::Choice choice) {
  const Problem problem = first_part(whole);
  return workspace_of(problem, shape_of(problem, facts, choice, family_of(kFamily, problem.dtype)))
      .bytes;
}

template <Family kFamily>
Plan plan(const Problem& whole, const DeviceFacts& facts, core::Choice choice) {
  const Problem problem = first_part(whole);
  const Shape shape = shape_of(problem, facts, choice, family_of(kFamily, problem.dtype));
  const Config& config = kConfigs[shape.config];
  Plan result;
  result.grid = shape.grid;
  result.block = {config.threads(), 1, 1};
  if (shape.clustered) result.cluster = {shape.cluster, 1, 1};
  result.shared_bytes = config.shared_bytes();
  const int tiles = config.stages * config.tile_bytes();
  result.shared = shared_buffers(
      config.shared_bytes(),
      {{"K, at the end results of warps", tiles},
       {"V", tiles},
       {"Q", config.rows * config.pitch()},
       {"ranges of rows", config.rows * 8},
       {"rows of a mask, factors of rows, what a mask shows",
        config.barrier_offset() - config.mask_rows_offset()},
       {"barriers", config.sm90 ? config.mail_offset() - config.barrier_offset() : 0},
       {config.clusters() ? "letters of the cluster, or counts" : "counts", config.mail_bytes()}});
  result.workspace_bytes = workspace_of(problem, shape).bytes;
  result.tile_q = config.rows;
  result.tile_kv = config.keys();
  result.stages = config.stages;
  // Of a row: no share is shorter than kLeastShare tiles, but where there are no more.
  result.splits = shape.holders > 0
                      ? std::min(shape.holders,
                                 divide_up(most_keys_of(problem), kLeastShare * config.keys()) + 1)
                      : shape.most_parts;
  // Instantiated in sources of their own, so named by hand; tests compare it with the cubins.
  result.kernel = std::string("decode::attention_kernel<") +
                  (problem.dtype == DType::e4m3 ? "E4m3" : type_name(problem.dtype)) + ", " +
                  std::to_string(shape.config) + ">";
  result.note = core::concat(
      shape.rule.by_length ? "parts by each sequence's own length" : "parts that fill the device",
      shape.clustered        ? ", merged in a cluster"
      : shape.holders > 0    ? ", even shares of all sequences' keys, merged by a second kernel"
      : shape.counted        ? ", counted and shared out on the device, merged by a second kernel"
      : shape.most_parts > 1 ? ", merged by a second kernel"
                             : ": one");
  return result;
}

template <Family kFamily>
constinit BuildsByType<kFamily.size()> builds(entries<__half, kFamily>,
                                              entries<__nv_bfloat16, kFamily>);
// Of one type, whichever is asked for.
inline constinit BuildsByType<kSm90E4m3.size()> builds_of_e4m3(entries<E4m3, kSm90E4m3>,
                                                               entries<E4m3, kSm90E4m3>);

/// Calls `use` with the builds of the problem's type, and the place of a configuration among them.
template <Family kFamily, class Use>
auto with_builds(const Problem& problem, std::size_t config, const Use& use) {
  if constexpr (kFamily.sm90()) {
    if (problem.dtype == DType::e4m3) return use(builds_of_e4m3, config - kSm90E4m3.begin);
  }
  return use(builds<kFamily>, config - kFamily.begin);
}

template <Family kFamily>
Status ensure_shared(const Problem& problem, std::size_t config, int device) {
  return with_builds<kFamily>(problem, config, [&](auto& all, std::size_t build) {
    return all.ensure_shared(problem.dtype, build, kConfigs[config].shared_bytes(), device,
                             id_of(kFamily));
  });
}

template <Family kFamily>
Status prepare(const Problem& problem, const core::Context& context) {
  return ensure_shared<kFamily>(problem,
                                shape_of(first_part(problem), *context.facts, context.choice,
                                         family_of(kFamily, problem.dtype))
                                    .config,
                                context.facts->index);
}

template <Family kFamily, void (*kMergeGeneral)(Params), void (*kMerge)(Params)>
Status launch_part(const Problem& problem, const Tensors& tensors, const Shape& shape,
                   const core::Context& context) {
  const Config& config = kConfigs[shape.config];
  if (Status status = ensure_shared<kFamily>(problem, shape.config, context.facts->index);
      !status.ok())
    return status;
  Params params = make_params(problem, tensors, shape);
  const Workspace space = workspace_of(problem, shape);
  place_workspace(params, space, context.workspace);

  cudaLaunchAttribute attribute{};
  cudaLaunchConfig_t of_parts =
      launch_config(shape.grid, config.threads(), config.shared_bytes(), context);
  if (shape.clustered) {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = static_cast<unsigned>(shape.cluster);
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    of_parts.attrs = &attribute;
    of_parts.numAttrs = 1;
  }
  void* arguments[] = {&params};
  const void* const kernel = with_builds<kFamily>(
      problem, shape.config,
      [&](auto& all, std::size_t build) { return all.kernel(problem.dtype, build); });
  if (Status status = launch_kernel(of_parts, kernel, arguments, id_of(kFamily));
      !status.ok() || space.bytes == 0)
    return status;

  const cudaLaunchConfig_t of_merge =
      launch_config(merge_grid(problem, shape), kMergeThreads, 0, context);
  const auto* const merge =
      reinterpret_cast<const void*>(config.general() ? kMergeGeneral : kMerge);
  // On sm_90 its blocks may be set up while the parts are computed.
  return kFamily.sm90() ? launch_early(of_merge, merge, arguments, id_of(kFamily))
                        : launch_kernel(of_merge, merge, arguments, id_of(kFamily));
}

template <Family kFamily, void (*kMergeGeneral)(Params), void (*kMerge)(Params)>
Status launch(const Problem& problem, const Tensors& tensors, const core::Context& context) {
  const Shape whole = shape_of(first_part(problem), *context.facts, context.choice,
                               family_of(kFamily, problem.dtype));
  // Parts of a batch follow each other in the stream and share the workspace, which was asked for
  // the first of them: the last, a smaller one, parts its keys alike.
  return in_batch_parts(problem, tensors, kGridLimit,
                        [&](const Problem& part, const Tensors& there) {
                          return launch_part<kFamily, kMergeGeneral, kMerge>(
                              part, there, of_batch(whole, part.batch), context);
                        });
}

/// The family's variant, with its second kernels behind general builds of the first and behind plain ones: both
/// run merge_parts.
template <Family kFamily, void (*kMergeGeneral)(Params), void (*kMerge)(Params)>
constexpr core::Kernel kernel_of() {
  return {.supports = supports<kFamily>,
          .plan = plan<kFamily>,
          .workspace = workspace<kFamily>,
          .prepare = prepare<kFamily>,
          .launch = launch<kFamily, kMergeGeneral, kMerge>};
}

}  // namespace greenfast::cuda::decode
