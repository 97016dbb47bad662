// Problems as JSON and as text, plans as JSON, both ways: the only place where records spell them
// out.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include <greenfast/attention.hpp>

namespace greenfast::workbench {

/// Every member but the alignments of the layouts, which are facts of a call's pointers. A scale
/// that JSON cannot hold (NaN, infinity) becomes null, and is then no problem to read.
nlohmann::json problem_json(const Problem& problem);
/// The inverse; members that it does not know are left alone. invalid_argument names what is
/// missing or of the wrong kind. The problem is not checked.
Result<Problem> problem_of_json(const nlohmann::json& object);

/// The inverse of to_string(Problem), by which tables, samples and comparisons name a problem:
/// whatever it accepts is printed again as the same text. Refused with invalid_argument are other
/// texts, problems that check() refuses, and " strided", for the text does not say the strides.
/// Alignments are those of dense layouts.
Result<Problem> problem_of_text(std::string_view text);
/// The text's shape alone, BxHxSxD: what --shapes and other engines' harnesses take.
std::string shape_text(const Problem& problem);

/// Every member.
nlohmann::json plan_json(const Plan& plan);
/// The inverse, as above.
Result<Plan> plan_of_json(const nlohmann::json& object);

}  // namespace greenfast::workbench
