// Sets of features that several rows of variants.def take. Each names its features, or those of a
// set that never grows, so that a new feature is in none until somebody has made a kernel take it.
// How near the answers are is among the features: without exact accuracy a kernel gets no problem
// but those of fast accuracy.
#pragma once

#include <greenfast/features.hpp>

namespace greenfast::dispatch {

/// Kernels of the CPU. They are exact, which is near enough where fast is.
inline constexpr Features kTakesServing =
    kFeaturesOfAbi1 | kFeaturesOfServing |
    Features{Feature::exact_accuracy, Feature::fast_accuracy, Feature::transposed_v,
             Feature::scales_per_block};

/// The 16-bit production kernels of CUDA.
inline constexpr Features kTakesHalves =
    (kFeaturesOfAbi1 - Features{Feature::in_f32, Feature::in_e4m3, Feature::scales_tensor,
                                Feature::scales_per_head}) |
    Feature::exact_accuracy;

/// The same and e4m3, which it multiplies exactly, with all that serving asks for.
inline constexpr Features kTakesServingSm80 =
    kTakesHalves | kFeaturesOfServing |
    Features{Feature::in_e4m3, Feature::scales_tensor, Feature::scales_per_head,
             Feature::fast_accuracy};

/// The kernel for few queries, of 16-bit inputs.
inline constexpr Features kTakesDecode =
    kTakesHalves | Features{Feature::value_dim, Feature::packed_q,  Feature::packed_kv,
                            Feature::used_q,    Feature::used_kv,   Feature::kv_start,
                            Feature::kv_index,  Feature::pages,     Feature::chunk,
                            Feature::sinks,     Feature::bool_mask, Feature::float_mask};
/// The same on Hopper, of e4m3 as well; it is exact, which is near enough where fast is.
inline constexpr Features kTakesDecodeSm90 =
    kTakesDecode | Features{Feature::in_e4m3, Feature::scales_tensor, Feature::scales_per_head,
                            Feature::fast_accuracy};

/// The 16-bit kernel for prefill of sequences of different lengths.
inline constexpr Features kTakesPacked =
    (kTakesHalves - Features{Feature::out_f32, Feature::nonpositive_scale}) |
    Features{Feature::packed_q, Feature::packed_kv, Feature::used_q,    Feature::used_kv,
             Feature::kv_index, Feature::kv_start,  Feature::pages,     Feature::chunk,
             Feature::sinks,    Feature::value_dim, Feature::bool_mask, Feature::float_mask};

/// The kernel for some queries of every sequence: exact in e4m3, too, which is near enough where fast is.
inline constexpr Features kTakesGrouped =
    (kTakesHalves - Features{Feature::softcap, Feature::nonpositive_scale}) |
    Features{Feature::in_e4m3,   Feature::scales_tensor, Feature::scales_per_head,
             Feature::packed_q,  Feature::packed_kv,     Feature::used_q,
             Feature::used_kv,   Feature::kv_index,      Feature::kv_start,
             Feature::pages,     Feature::chunk,         Feature::sinks,
             Feature::value_dim, Feature::fast_accuracy};

/// The rungs of V2c: fp16 in and out, a causal mask at most.
inline constexpr Features kTakesV2c{Feature::in_f16,        Feature::out_f16,
                                    Feature::causal,        Feature::nonpositive_scale,
                                    Feature::grouped_heads, Feature::exact_accuracy};

/// The rungs of stage-C: e4m3 in, fp16 out, a causal mask at most.
inline constexpr Features kTakesStageC{
    Feature::in_e4m3, Feature::out_f16,           Feature::scales_tensor, Feature::scales_per_head,
    Feature::causal,  Feature::nonpositive_scale, Feature::grouped_heads, Feature::exact_accuracy};

/// e4m3 on Hopper's tensor cores, where kernels differ in accuracy: each row says its own.
inline constexpr Features kTakesE4m3{
    Feature::in_e4m3, Feature::out_f32,       Feature::out_f16,           Feature::out_bf16,
    Feature::causal,  Feature::window,        Feature::nonpositive_scale, Feature::scales_tensor,
    Feature::lse,     Feature::grouped_heads, Feature::scales_per_head,   Feature::transposed_v};

/// And for sequences of different lengths, by weights in fp16: exact, which is near enough where
/// fast is.
inline constexpr Features kTakesServingE4m3 =
    (kTakesE4m3 - Feature::transposed_v) |
    Features{Feature::packed_q,     Feature::packed_kv, Feature::used_q,  Feature::used_kv,
             Feature::kv_index,     Feature::kv_start,  Feature::pages,   Feature::chunk,
             Feature::sinks,        Feature::value_dim, Feature::softcap, Feature::exact_accuracy,
             Feature::fast_accuracy};

/// Scores in halves are too coarse for an exact log-sum-exp.
inline constexpr Features kTakesE4m3WithoutLse = kTakesE4m3 - Feature::lse;

/// What the answer without a kernel holds for: O = 0 and LSE = -inf where no query sees a key,
/// nothing where there is no query. core::is_empty says which problems get it: a feature that
/// changes a row without keys (a sink does) belongs there too.
inline constexpr Features kTakesEmpty = kFeaturesOfAbi1 | kFeaturesOfServing |
                                        Features{Feature::exact_accuracy, Feature::fast_accuracy,
                                                 Feature::transposed_v, Feature::scales_per_block};

}  // namespace greenfast::dispatch
