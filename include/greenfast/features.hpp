// What a problem asks of whoever computes it, one bit a feature. Whoever computes says which bits
// it takes, so that nobody computes a problem it has never heard of.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include <greenfast/types.hpp>

namespace greenfast {

/// One thing that a problem may ask for. Values are bit numbers and stable: records and the C ABI
/// use the same. What every problem has (batch, lengths, a head dimension, strides) is no feature.
enum class Feature : std::int32_t {
  in_f32 = 0,  ///< element type of Q, K and V
  in_f16 = 1,
  in_bf16 = 2,
  in_e4m3 = 3,
  out_f32 = 4,  ///< element type of O
  out_f16 = 5,
  out_bf16 = 6,
  scales_tensor = 7,  ///< one descale factor a tensor
  scales_per_head = 8,
  causal = 9,   ///< keys up to a diagonal, under either alignment
  window = 10,  ///< any other band of keys
  softcap = 11,
  nonpositive_scale = 12,  ///< the largest product is not the largest score
  lse = 13,
  grouped_heads = 14,  ///< fewer heads of K and V than of Q
  value_dim = 15,      ///< V and O have a head dimension of their own
  packed_q = 16,
  packed_kv = 17,
  used_q = 18,
  used_kv = 19,
  kv_start = 20,  ///< left padding
  kv_index = 21,
  pages = 22,
  chunk = 23,
  sinks = 24,
  alibi = 25,
  bool_mask = 26,
  float_mask = 27,
  fast_accuracy = 28,   ///< linear weights are near enough
  exact_accuracy = 29,  ///< they are not, as for every problem that does not ask for fast accuracy
  transposed_v = 30,    ///< e4m3 V with its keys one behind the other, not its head dimension
  scales_per_block = 31,  ///< a descale factor for each kScaleBlock rows
  example = 62,           ///< no problem needs it and nobody takes it: tests ask for it
  unknown = 63,           ///< a value that this version has no name for
};

/// A set of features.
class Features {
 public:
  constexpr Features() = default;
  constexpr Features(Feature feature)  // NOLINT(google-explicit-constructor)
      : bits_(std::uint64_t{1} << static_cast<int>(feature)) {}
  constexpr Features(std::initializer_list<Feature> features) {
    for (const Feature feature : features) *this |= feature;
  }
  static constexpr Features from_bits(std::uint64_t bits) {
    Features features;
    features.bits_ = bits;
    return features;
  }

  constexpr std::uint64_t bits() const { return bits_; }
  /// Whether every feature of `others` is among these.
  constexpr bool hold(Features others) const { return (others.bits_ & ~bits_) == 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr Features& operator|=(Features others) {
    bits_ |= others.bits_;
    return *this;
  }
  friend constexpr Features operator|(Features a, Features b) { return a |= b; }
  friend constexpr Features operator-(Features a, Features b) {
    return from_bits(a.bits_ & ~b.bits_);
  }
  friend bool operator==(const Features&, const Features&) = default;

 private:
  std::uint64_t bits_ = 0;
};

/// What the problem needs. The only place where that is decided.
GREENFAST_API Features features_of(const Problem& problem) noexcept;
/// "e4m3 inputs", "a softcap"; "an unknown feature" for a bit that has no name.
GREENFAST_API std::string_view name_of(Feature feature) noexcept;
/// "fp16 inputs, a softcap"; empty for none.
GREENFAST_API std::string to_string(Features features);
/// Why someone who takes `takes` cannot take a problem that needs `needs`: each missing feature,
/// what is taken in its place, what to change. Empty when nothing is missing.
GREENFAST_API std::string missing_features(Features needs, Features takes);

/// Everything that a problem could need when version 1 of the C and the plugin interface were made:
/// what who was written for them may be asked. It never grows. That answers be exact went without
/// saying then: who is meant to be exact names exact_accuracy beside it.
inline constexpr Features kFeaturesOfAbi1{Feature::in_f32,
                                          Feature::in_f16,
                                          Feature::in_bf16,
                                          Feature::in_e4m3,
                                          Feature::out_f32,
                                          Feature::out_f16,
                                          Feature::out_bf16,
                                          Feature::scales_tensor,
                                          Feature::scales_per_head,
                                          Feature::causal,
                                          Feature::window,
                                          Feature::softcap,
                                          Feature::nonpositive_scale,
                                          Feature::lse,
                                          Feature::grouped_heads};

/// What serving asked for beyond that when kernels of the CPU, oracle and emulator learned it:
/// docs/serving.md. It never grows either; whoever learns a later feature names it beside this set.
inline constexpr Features kFeaturesOfServing{
    Feature::value_dim, Feature::packed_q,  Feature::packed_kv, Feature::used_q, Feature::used_kv,
    Feature::kv_start,  Feature::kv_index,  Feature::pages,     Feature::chunk,  Feature::sinks,
    Feature::alibi,     Feature::bool_mask, Feature::float_mask};

// Kernels, references and plugins say by these sets what they take. One feature more in them would
// be taken by all of these at once, by some that have never heard of it.
static_assert(kFeaturesOfAbi1.bits() == 0x00007fff && kFeaturesOfServing.bits() == 0x0fff8000,
              "these sets never grow: name a new feature where somebody has learned it, .takes in "
              "src/dispatch/variants.def, kOracleTakes, kEmulatorTakes");

}  // namespace greenfast
