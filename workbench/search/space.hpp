// The configurations of a kernel's source: parameters with their values, and which go together.
// They stand in the source as comments, so that they are read without compiling it:
//
//   // tune: BLOCK_M = 32 *64 128        compiled with -DBLOCK_M=32; * marks the hand-set value
//   // tune-if: BLOCK_N % CHUNK == 0     combinations for which this is 0 do not exist
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <greenfast/types.hpp>

namespace greenfast::workbench {

struct TuneParameter {
  std::string name;
  std::vector<std::int64_t> values;
  std::size_t hand_set = 0;  // index into values
};

/// A choice of one value for each parameter, by index.
using Configuration = std::vector<std::size_t>;

struct TuneSpace {
  std::vector<TuneParameter> parameters;
  std::vector<std::string> conditions;

  Configuration hand_set() const;
  bool valid(const Configuration& c) const;
  /// Every valid one, the last parameter fastest.
  std::vector<Configuration> all() const;
  /// "BLOCK_M=64 BLOCK_N=32": what a cache and a reader know it by.
  std::string text(const Configuration& c) const;
  /// "BLOCK_M=64", ... for the compiler.
  std::vector<std::string> defines(const Configuration& c) const;
};

/// From the text of a source. invalid_argument names the line: a value that is no whole number, a
/// parameter without or with two hand-set values, a condition that cannot be read, hand-set values
/// that their own conditions exclude, no parameter at all.
Result<TuneSpace> parse_space(std::string_view name, std::string_view source);
/// The space of these declarations ("BLOCK_M = 32 *64 128"), as a cache keeps them.
Result<TuneSpace> make_space(std::string_view name, const std::vector<std::string>& parameters,
                             const std::vector<std::string>& conditions);
/// The declaration of a parameter, as make_space takes it.
std::string to_string(const TuneParameter& parameter);

/// Whole-number arithmetic and comparisons with C's operators and precedence: + - * / %, < <= > >=
/// == !=, && || !, parentheses. Division by 0 and unknown names are errors.
Result<std::int64_t> evaluate(std::string_view expression,
                              const std::map<std::string, std::int64_t>& names);

}  // namespace greenfast::workbench
