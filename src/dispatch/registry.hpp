// The table of variants and look-up by id.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/variant.hpp"

namespace greenfast::dispatch {

/// Every variant, ladder order first to last; the same rows in every build.
std::span<const core::Variant> registry() noexcept;

/// The row of an id, or null.
const core::Variant* find(std::span<const core::Variant> rows, std::string_view id) noexcept;

/// "variant 'cpu.flsh' does not exist: did you mean cpu.flash, …" with the nearest ids.
std::string unknown_variant(std::span<const core::Variant> rows, std::string_view id);

/// The public description of a row.
VariantInfo describe(const core::Variant& row);

}  // namespace greenfast::dispatch
