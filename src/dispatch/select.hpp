// Selection: which variant takes a problem, and why. Pure functions of their arguments, testable
// without a device.
#pragma once

#include <span>
#include <string_view>

#include "core/variant.hpp"

namespace greenfast::dispatch {

/// What selection may look at. The problem has passed check().
struct Query {
  const Problem& problem;
  const DeviceFacts& facts;
  core::Choice choice;
  // Id of the only variant wanted, empty for automatic. Sets of toggles (USE_CP_ASYNC=1) belong
  // here too: resolve them to the id of the built variant that has them before a Query is made.
  std::string_view forced;
  // What the problem needs; a variant that does not take all of it is refused by name.
  Features needs = features_of(problem);
};

/// The automatic variant of highest preference that can have the scratch it wants, or the forced
/// one. Null when there is none, with the reason in *why. Allocates nothing on success.
const core::Variant* select(std::span<const core::Variant> rows, const Query& query, Status* why);

/// Everybody's answer, in words.
Selection explain(std::span<const core::Variant> rows, const Query& query);

/// What the selected variant will do.
Result<Plan> plan(std::span<const core::Variant> rows, const Query& query);

/// Scratch that the variant wants for the problem.
std::int64_t workspace_bytes(const core::Variant& row, const Query& query);

}  // namespace greenfast::dispatch
