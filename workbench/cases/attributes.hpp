// What a problem asks for beyond its shape, in words: behind a shape ("1x8x512x64 pages=16 used-kv")
// and as options of the command.
#pragma once

#include <span>
#include <string_view>

#include "workbench/cases/workload.hpp"

namespace greenfast::workbench {

struct AttributeRow {
  std::string_view name;   // "pages"
  std::string_view value;  // what stands behind '=', "N"; empty: nothing may
  std::string_view bare;   // the value when there is no '='; empty: there must be one, or none may
  std::string_view help;
  /// False: the value is none of those that `value` stands for.
  bool (*apply)(ProblemDefaults& problem, std::string_view value) = nullptr;
  /// The command has an option of that name and its own meaning (--causal); this is for shapes alone.
  bool shape_only = false;
  /// What several attributes say, of which a shape may have one; empty: nobody else says it.
  std::string_view says = {};
};
std::span<const AttributeRow> attribute_table();

/// Sets one attribute, "name" or "name=value". Errors name it and what is possible.
Status apply_attribute(ProblemDefaults& problem, std::string_view attribute);

/// Whether an attribute may stand behind those before it: none of them says the same thing. Errors
/// name both.
Status check_beside(std::string_view attribute, std::span<const std::string_view> before);

}  // namespace greenfast::workbench
