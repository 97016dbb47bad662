#include "cli/option_set.hpp"

#include <CLI/CLI.hpp>
#include <limits>
#include <string>
#include <type_traits>

namespace greenfast::cli {
namespace {

// CLI11 says "Could not convert" and not what would be possible.
template <class T>
std::string refuse_number(const std::string& text) {
  T value{};
  if (!text.empty() && CLI::detail::lexical_cast(text, value)) return {};
  if (std::is_floating_point_v<T>) return "'" + text + "' is not a number";
  return "'" + text + "' is not a whole number of at most " +
         std::to_string(std::numeric_limits<T>::max());
}

/// `target` is a T, or an optional one.
template <class T, class Target>
void add_number(CLI::App& app, const std::string& heading, const std::string& name, Target* target,
                const std::string& value, const std::string& help) {
  app.add_option(name, *target, help)
      ->type_name(value)
      ->group(heading)
      ->take_last()
      ->check(refuse_number<T>);
}

}  // namespace

void OptionSet::text(const std::string& name, std::string* target, const std::string& value,
                     const std::string& help) {
  // Of two the later one counts, so that a script's defaults can be overridden.
  app_.add_option(name, *target, help)
      ->type_name(value)
      ->group(heading_)
      ->take_last()
      // The empty text of a script's unset variable is no wish for the default.
      ->check([value](const std::string& text) {
        return text.empty() ? "is empty; give " + value + " or leave the option out"
                            : std::string();
      });
}

void OptionSet::text_or_bare(const std::string& name, std::string* target, const std::string& bare,
                             const std::string& help) {
  app_.add_flag(name + "{" + bare + "}", *target, help)->group(heading_);
}

void OptionSet::repeated(const std::string& name, std::vector<std::string>* target,
                         const std::string& value, const std::string& help) {
  app_.add_option(name, *target, help)->type_name(value)->allow_extra_args(false)->group(heading_);
}

void OptionSet::several(const std::string& name, std::vector<std::string>* target,
                        const std::string& value, const std::string& help) {
  app_.add_option(name, *target, help)
      ->type_name(value)
      ->expected(1, CLI::detail::expected_max_vector_size)
      ->group(heading_);
}

void OptionSet::positional(const std::string& name, std::vector<std::string>* target, int least,
                           int most, const std::string& help) {
  auto* option = app_.add_option(name, *target, help)->type_name("")->expected(least, most);
  if (least > 0) option->required();
}

void OptionSet::integer(const std::string& name, int* target, const std::string& value,
                        const std::string& help) {
  add_number<int>(app_, heading_, name, target, value, help);
}

void OptionSet::integer(const std::string& name, std::optional<int>* target,
                        const std::string& value, const std::string& help) {
  add_number<int>(app_, heading_, name, target, value, help);
}

void OptionSet::number(const std::string& name, float* target, const std::string& value,
                       const std::string& help) {
  add_number<float>(app_, heading_, name, target, value, help);
}

void OptionSet::number(const std::string& name, std::optional<float>* target,
                       const std::string& value, const std::string& help) {
  add_number<float>(app_, heading_, name, target, value, help);
}

void OptionSet::number(const std::string& name, double* target, const std::string& value,
                       const std::string& help) {
  add_number<double>(app_, heading_, name, target, value, help);
}

void OptionSet::number(const std::string& name, std::optional<double>* target,
                       const std::string& value, const std::string& help) {
  add_number<double>(app_, heading_, name, target, value, help);
}

void OptionSet::flag(const std::string& name, bool* target, const std::string& help) {
  app_.add_flag(name, *target, help)->group(heading_);
}

}  // namespace greenfast::cli
