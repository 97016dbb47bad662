// The options of one subcommand. Hides the parser, whose header costs seconds in every file that
// includes it.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace greenfast::cli {

class OptionSet {
 public:
  explicit OptionSet(CLI::App& app) : app_(app) {}

  /// Options declared from here on stand under this heading in --help.
  void heading(std::string text) { heading_ = std::move(text); }

  /// --name VALUE, not empty. `value` names it in --help ("LIST").
  void text(const std::string& name, std::string* target, const std::string& value,
            const std::string& help);
  /// --name, or --name=VALUE; without a value the target becomes `bare`.
  void text_or_bare(const std::string& name, std::string* target, const std::string& bare,
                    const std::string& help);
  /// --name VALUE, any number of times.
  void repeated(const std::string& name, std::vector<std::string>* target, const std::string& value,
                const std::string& help);
  /// --name VALUE VALUE ...
  void several(const std::string& name, std::vector<std::string>* target, const std::string& value,
               const std::string& help);
  /// Arguments without a name, at least `least` of them.
  void positional(const std::string& name, std::vector<std::string>* target, int least, int most,
                  const std::string& help);
  void integer(const std::string& name, int* target, const std::string& value,
               const std::string& help);
  void integer(const std::string& name, std::optional<int>* target, const std::string& value,
               const std::string& help);
  void number(const std::string& name, float* target, const std::string& value,
              const std::string& help);
  void number(const std::string& name, std::optional<float>* target, const std::string& value,
              const std::string& help);
  void number(const std::string& name, double* target, const std::string& value,
              const std::string& help);
  void number(const std::string& name, std::optional<double>* target, const std::string& value,
              const std::string& help);
  void flag(const std::string& name, bool* target, const std::string& help);

 private:
  CLI::App& app_;
  std::string heading_ = "Options";
};

}  // namespace greenfast::cli
