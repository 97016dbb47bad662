// greenfast tune: searches the configurations of a kernel's source for the fastest that is right.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "workbench/search/lab.hpp"
#include "workbench/search/space.hpp"

namespace greenfast::workbench {

enum class Strategy {
  exhaustive,  // every configuration once, the better half again
  random,      // as many as asked for
  halving,  // successive halving: the better half again, with twice the samples, until few are left
  evolution,  // crossover and mutation of the better of two
};
struct StrategyRow {
  Strategy id;
  std::string_view name, use;
};
std::span<const StrategyRow> strategy_table();

struct TuneOptions {
  Strategy strategy = Strategy::halving;
  int candidates = 32;  ///< configurations tried, the hand-set one aside; exhaustive tries all
  std::uint64_t seed = 0;
  LabOptions lab;
};

/// Searches. The result, greenfast.tune/1: winner, its speedups over the hand-set configuration on
/// fresh data, finalists, and what became of the others. Same seed and same results of the
/// candidates, same winner: all randomness is the seed's. Throws LabError and LabStopped.
nlohmann::json tune(const std::filesystem::path& source, const TuneSpace& space,
                    const TuneOptions& options);
/// A configuration that was compiled, or why it is refused: by the compiler, or for its resources.
struct CompiledPoint {
  std::string key, reason;
  bool ok() const { return reason.empty(); }
};
/// Compiles the hand-set configuration, which comes first, and all others (Strategy::random: as many
/// as asked for), and stops. Throws LabError and LabStopped.
std::vector<CompiledPoint> compile_all(const std::filesystem::path& source, const TuneSpace& space,
                                       const TuneOptions& options);

/// Of the confirmed speedups: whether the winner may replace what is there. 0: faster on the
/// primary shape and not slower (0.98) on the others; 10: not shown.
int exit_code_of_search(const nlohmann::json& result);
/// The result for people.
std::string search_text(const nlohmann::json& result);

}  // namespace greenfast::workbench
