// The steps of a gate that run in a child process each: which there are, in their order, and by which
// names they lie in a job's folder and stand in its record.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace greenfast::workbench {

enum class StepKind {
  build,   ///< plans and refusals
  green,   ///< one of each shape
  claims,  ///< GREEN of what else the candidate takes
  fast,    ///< one of each shape and process
  peers,   ///< where some were asked for
};

struct WalkStep {
  StepKind kind = StepKind::build;
  std::size_t shape = 0;  ///< green, fast: which of the gate's shapes
  int process = 0;        ///< fast
  bool operator==(const WalkStep&) const = default;
};
/// "build", "green.0", "claims", "fast.0.2", "peers": the file below steps/ and the name in gate.json.
std::string name_of(const WalkStep& step);
/// The inverse; nothing for another text.
std::optional<WalkStep> parse_walk_step(std::string_view name);

struct WalkShape {
  std::string name;
  bool refused = false;  ///< by a side; it has no steps
};
/// What decides which steps there are.
struct Walk {
  std::vector<WalkShape> shapes{};  ///< primary first; none before the build step has found them
  int processes = 3;
  std::vector<std::string> peers{};
};
/// All of them in the order they are taken; the build step alone where no shapes are known yet.
std::vector<WalkStep> steps_of(const Walk& walk);
/// What a step does, for people: "FAST mission, process 1 of 3".
std::string describe(const WalkStep& step, const Walk& walk);

}  // namespace greenfast::workbench
