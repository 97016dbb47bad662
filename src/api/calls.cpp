#include "api/calls.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "api/devices.hpp"
#include "core/check.hpp"
#include "core/text.hpp"

namespace greenfast::api {

// GREENFAST_VARIANT is read once: getenv beside a setenv of another
// thread is a race.
std::string_view forced_variant(const Options& options) {
  if (!options.variant.empty()) return options.variant;
  static const std::string from_environment = [] {
    const char* value = std::getenv("GREENFAST_VARIANT");
    return std::string(value == nullptr ? "" : value);
  }();
  return from_environment;
}

core::Choice choice_of(const Options& options) {
  return {.batch_invariant = options.batch_invariant, .max_splits = options.max_splits};
}

// The same with the call's scratch; a plan is of one that will have it. What is given and empty is too
// little, which is an error where some is needed, and not none, where selection looks for others.
static core::Choice choice_of_call(const Options& options) {
  core::Choice choice = choice_of(options);
  if (options.workspace != nullptr)
    choice.scratch = static_cast<std::int64_t>(
        std::clamp<std::size_t>(options.workspace_bytes, 1, core::kMaxBytes));
  else if (options.allocate == nullptr)
    choice.scratch = 0;
  return choice;
}

Status check_call(const Problem& problem, const Options& options) {
  if (Status status = check(problem); !status) return status;
  if (options.max_splits < 0)
    return {StatusCode::invalid_argument,
            core::concat("max_splits is ", options.max_splits,
                         ": it may be 0, for as many parts as pay, or more; correct it")};
  return {};
}

Status find_machine(const Options& options, Machine& machine) {
  machine.backend = api::backend_of(options.device);
  if (machine.backend == nullptr)
    return {StatusCode::invalid_argument,
            core::concat("Options::device ", static_cast<int>(options.device),
                         " does not exist: use cpu (0) or cuda (1)")};
  Status why;
  machine.facts = machine.backend->facts(options.device_index, &why);
  if (machine.facts == nullptr) return why;
  if (machine.backend->enter != nullptr) return machine.backend->enter(options.device_index);
  return {};
}

dispatch::Query query_of(const Problem& problem, const Machine& machine, const Options& options) {
  return {problem, *machine.facts, choice_of_call(options), forced_variant(options)};
}

core::Context context_of(const Machine& machine, const Options& options) {
  core::Context context;
  context.facts = machine.facts;
  context.choice = choice_of_call(options);
  context.stream = options.stream;
  context.workspace = options.workspace;
  if (machine.backend->executor != nullptr) context.executor = machine.backend->executor();
  return context;
}

Status find_scratch(const Problem& problem, const Tensors& tensors, const Options& options,
                    std::int64_t wanted, std::string_view who, void*& scratch) {
  scratch = options.workspace;
  std::size_t given = options.workspace_bytes;
  if (wanted > 0 && scratch == nullptr && options.allocate != nullptr) {
    given = static_cast<std::size_t>(wanted);
    scratch = options.allocate(given, options.allocate_context);
    if (scratch == nullptr)
      return {StatusCode::out_of_memory,
              core::concat("Options::allocate gave no ", given, " bytes of scratch for ", who)};
  }
  return core::check_workspace(problem, tensors, wanted, scratch, given);
}

}  // namespace greenfast::api
