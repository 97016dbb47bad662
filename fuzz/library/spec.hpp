// One problem of the fuzzer: everything that a seed decides, as text and back, and simpler ones.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include <greenfast/attention.hpp>

#include "fuzz/library/values.hpp"

namespace greenfast::fuzz {

/// What slots that no row can see hold: gaps, red zones, keys outside the mask.
enum class Unseen : std::int32_t { nan, infinity };

struct Spec {
  Problem problem;
  Values values;
  Unseen unseen = Unseen::nan;
  /// Elements between a 256-byte boundary and the first element of Q, K, V and O.
  std::array<std::int64_t, 4> offset{};
  bool batch_invariant = false;
};

enum class Property : std::int32_t { reference, batch_invariant };

/// How large problems may be.
struct Profile {
  DeviceKind device = DeviceKind::cpu;
  Property property = Property::reference;
  std::vector<DType> dtypes;
  double pairs = 0;     // query-key pairs times head dim, mostly
  double elements = 0;  // of one tensor
  std::int64_t long_keys = 0;
  double largest_v = 0;  // of fp32 and bf16
};
Profile profile_of(DeviceKind device, Property property);

/// The problem of a seed and a number: a pure function. It passes check().
Spec random_spec(const Profile& profile, std::uint64_t seed, std::uint64_t number);

/// The problem as the reference sees it, without addresses.
View view_of(const Spec& spec);

/// Elements from a tensor's first to its last.
std::int64_t extent(const Layout& layout, std::int64_t batch, std::int64_t heads, std::int64_t seq,
                    std::int64_t head_dim);

/// "b=2,hq=4,...": all of it, for --problem; and back, with the reason in *why.
std::string to_text(const Spec& spec);
std::optional<Spec> parse_spec(const std::string& text, std::string* why);
/// For people: the problem, the values' distribution and magnitudes.
std::string describe(const Spec& spec);
std::string distribution_of(const Spec& spec);

/// Problems that are simpler than this one in one respect, boldest first.
std::vector<Spec> simpler(const Spec& spec);

}  // namespace greenfast::fuzz
