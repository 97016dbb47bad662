// What a problem needs, and the words for it.
#include <greenfast/features.hpp>

#include "core/text.hpp"

namespace greenfast {
namespace {

// Features of one kind stand in for each other: whoever lacks one is asked for another. Nothing
// stands in for one that is alone.
enum class Kind { input, output, scales, mask, softcap, sign, lse, heads, alone, accuracy, other };

struct Row {
  Feature feature;
  Kind kind;
  std::string_view name;
  std::string_view remedy;  // what the caller may do where it is not taken
};
constexpr std::string_view kConvert = "convert Q, K and V";
constexpr std::string_view kOtherOutput = "ask for another output type and convert it";
constexpr std::string_view kOtherScales = "fold the scales into scale and O, or quantise otherwise";
constexpr std::string_view kOneByOne = "call once for each sequence";
constexpr std::string_view kOtherVariant = "ask for another variant";
constexpr Row kRows[] = {
    {Feature::in_f32, Kind::input, "fp32 inputs", kConvert},
    {Feature::in_f16, Kind::input, "fp16 inputs", kConvert},
    {Feature::in_bf16, Kind::input, "bf16 inputs", kConvert},
    {Feature::in_e4m3, Kind::input, "e4m3 inputs", kConvert},
    {Feature::out_f32, Kind::output, "an fp32 output", kOtherOutput},
    {Feature::out_f16, Kind::output, "an fp16 output", kOtherOutput},
    {Feature::out_bf16, Kind::output, "a bf16 output", kOtherOutput},
    {Feature::scales_tensor, Kind::scales, "a scale for each tensor", kOtherScales},
    {Feature::scales_per_head, Kind::scales, "a scale for each head", kOtherScales},
    {Feature::causal, Kind::mask, "a causal mask", kOtherVariant},
    {Feature::window, Kind::mask, "a sliding window", kOtherVariant},
    {Feature::softcap, Kind::softcap, "a softcap", kOtherVariant},
    {Feature::nonpositive_scale, Kind::sign, "a scale that is not positive", "negate Q instead"},
    {Feature::lse, Kind::lse, "the LSE", kOtherVariant},
    {Feature::grouped_heads, Kind::heads, "grouped heads", "repeat the heads of K and V"},
    {Feature::value_dim, Kind::alone, "V with a head dimension of its own",
     "pad V with zero columns to Q's head dimension"},
    {Feature::packed_q, Kind::alone, "packed sequences of Q", kOneByOne},
    {Feature::packed_kv, Kind::alone, "packed sequences of K and V", kOneByOne},
    {Feature::used_q, Kind::alone, "used lengths of Q", kOneByOne},
    {Feature::used_kv, Kind::alone, "used lengths of K and V", kOneByOne},
    {Feature::kv_start, Kind::alone, "left padding", kOneByOne},
    {Feature::kv_index, Kind::alone, "an index of the cache's rows", kOneByOne},
    {Feature::pages, Kind::alone, "pages of K and V", "gather each sequence's pages into rows"},
    {Feature::chunk, Kind::alone, "attention in chunks", "call once for each chunk"},
    {Feature::sinks, Kind::alone, "sinks", "fold them into O and the LSE afterwards"},
    {Feature::alibi, Kind::alone, "ALiBi", kOtherVariant},
    {Feature::bool_mask, Kind::alone, "a bool mask", kOtherVariant},
    {Feature::float_mask, Kind::alone, "a float mask", kOtherVariant},
    {Feature::fast_accuracy, Kind::accuracy, "fast accuracy", "ask for exact accuracy"},
    {Feature::exact_accuracy, Kind::accuracy, "exact accuracy",
     "ask for fast accuracy or for another variant"},
    {Feature::transposed_v, Kind::alone, "V with contiguous keys",
     "copy V so that its head dimension is contiguous"},
    {Feature::scales_per_block, Kind::scales, "a scale for each block", kOtherScales},
    {Feature::example, Kind::other, "the example feature", "ask for nothing that nobody offers"},
};

const Row* row_of(Feature feature) noexcept {
  for (const Row& row : kRows)
    if (row.feature == feature) return &row;
  return nullptr;
}

template <class Visit>
void for_each(Features features, const Visit& visit) {
  for (int bit = 0; bit < 64; ++bit) {
    const auto feature = static_cast<Feature>(bit);
    if (features.hold(feature)) visit(feature);
  }
}

}  // namespace

Features features_of(const Problem& problem) noexcept {
  // Every member by name: a new one does not compile before it is decided what it needs.
  const auto& [batch, heads_q, heads_kv, seq_q, seq_kv, head_dim, dtype, out_dtype, scales, scale,
               softcap, mask, lse, q, k, v, o, head_dim_v, sequences, pages, chunk, sinks, alibi,
               array_mask, accuracy] = problem;
  const auto& [left, right, alignment] = mask;
  const auto& [page_size, page_count, page_row_stride] = pages;
  const auto& [mask_kind, mask_dtype, mask_stride] = array_mask;
  const auto& [packed_q, packed_kv, used_q, used_kv, kv_start, kv_index, total_q, total_kv,
               kv_rows] = sequences;
  Features needs;
  // No default in any switch, so that the compiler names what a new enumerator leaves open; a value
  // that is no enumerator stays unknown.
  Features input = Feature::unknown;
  switch (dtype) {
    case DType::f32:
      input = Feature::in_f32;
      break;
    case DType::f16:
      input = Feature::in_f16;
      break;
    case DType::bf16:
      input = Feature::in_bf16;
      break;
    case DType::e4m3:
      input = Feature::in_e4m3;
      break;
  }
  Features output = Feature::unknown;
  switch (out_dtype) {
    case DType::f32:
      output = Feature::out_f32;
      break;
    case DType::f16:
      output = Feature::out_f16;
      break;
    case DType::bf16:
      output = Feature::out_bf16;
      break;
    case DType::e4m3:  // nobody writes it, and check() says so
      break;
  }
  Features scaling = Feature::unknown;
  switch (scales) {
    case ScaleKind::none:
      scaling = {};
      break;
    case ScaleKind::tensor:
      scaling = Feature::scales_tensor;
      break;
    case ScaleKind::per_head:
      scaling = Feature::scales_per_head;
      break;
    case ScaleKind::per_block:
      scaling = Feature::scales_per_block;
      break;
  }
  Features band = Feature::unknown;
  switch (alignment) {
    case Alignment::top_left:
    case Alignment::bottom_right:
      if (left < 0 && right < 0)
        band = {};
      else
        band = left < 0 && right == 0 ? Feature::causal : Feature::window;
      break;
  }
  needs |= input | output | scaling | band;
  if (softcap != 0.0f) needs |= Feature::softcap;
  if (!(scale > 0.0f)) needs |= Feature::nonpositive_scale;
  if (lse) needs |= Feature::lse;
  if (heads_q != heads_kv) needs |= Feature::grouped_heads;
  if (value_dim(problem) != head_dim) needs |= Feature::value_dim;
  if (packed_q) needs |= Feature::packed_q;
  if (packed_kv) needs |= Feature::packed_kv;
  if (used_q) needs |= Feature::used_q;
  if (used_kv) needs |= Feature::used_kv;
  if (kv_start) needs |= Feature::kv_start;
  if (kv_index) needs |= Feature::kv_index;
  if (page_size != 0) needs |= Feature::pages;
  if (chunk != 0) needs |= Feature::chunk;
  if (sinks) needs |= Feature::sinks;
  if (v.stride[3] > 1) needs |= Feature::transposed_v;
  Features slopes = Feature::unknown;
  switch (alibi) {
    case Alibi::none:
      slopes = {};
      break;
    case Alibi::per_head:
    case Alibi::per_batch_head:
      slopes = Feature::alibi;
      break;
  }
  Features elements = Feature::unknown;
  switch (mask_kind) {
    case MaskKind::none:
      elements = {};
      break;
    case MaskKind::boolean:
      elements = Feature::bool_mask;
      break;
    case MaskKind::additive:
      elements = Feature::float_mask;
      break;
  }
  Features precision = Feature::unknown;
  switch (accuracy) {
    case Accuracy::exact:
      precision = Feature::exact_accuracy;
      break;
    case Accuracy::fast:
      precision = Feature::fast_accuracy;
      break;
  }
  needs |= slopes | elements | precision;
  return needs;
}

std::string_view name_of(Feature feature) noexcept {
  const Row* row = row_of(feature);
  return row != nullptr ? row->name : "an unknown feature";
}

std::string to_string(Features features) {
  std::string out;
  for_each(features, [&out](Feature feature) {
    out += core::concat(out.empty() ? "" : ", ", name_of(feature));
  });
  return out;
}

std::string missing_features(Features needs, Features takes) {
  std::string out;
  for_each(needs - takes, [&](Feature feature) {
    const Row* row = row_of(feature);
    std::string instead;
    for (const Row& other : kRows)
      if (row != nullptr && row->kind != Kind::alone && other.kind == row->kind &&
          takes.hold(other.feature))
        instead += core::concat(instead.empty() ? "; takes " : " or ", other.name);
    out += core::concat(out.empty() ? "" : "; ", name_of(feature),
                        instead.empty() ? ", which it does not take" : instead, ": ",
                        row != nullptr ? row->remedy : kOtherVariant);
  });
  return out;
}

}  // namespace greenfast
