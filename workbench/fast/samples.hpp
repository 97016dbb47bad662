// Raw timings: what was measured, in which order, by which clock. Everything that is said about
// speed is computed from these, here or from a file of schema greenfast.samples/1.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <greenfast/types.hpp>
#include <nlohmann/json_fwd.hpp>

#include "workbench/device/device.hpp"
#include "workbench/green/correctness.hpp"

namespace greenfast::workbench {

/// cold: inputs come from memory, as in a model whose other layers ran in between. hot: one set of
/// inputs, in whatever cache holds it.
enum class CacheState { cold, hot };
/// "cold" or "hot".
std::string_view name_of(CacheState state) noexcept;

/// What stands before a call, of a recorder that knows more than one answer.
enum class CallMetric {
  back_to_back,  ///< another call, or an untimed one that wakes the threads
  after_pause,   ///< a while without any
};
/// "back_to_back", "after_pause".
std::string_view name_of(CallMetric metric) noexcept;

/// One timed stretch of a side: `batch` calls, divided by their number.
struct Sample {
  int side = 0;
  double seconds = 0;  ///< per call
  /// Of these, what its threads were ready to run and had no CPU, per call, at most; 0: nothing, or
  /// nobody tells.
  double waited = 0;
  /// Where a neighbour stands before each call: what the neighbours took alone, per call, right
  /// behind the stretch; `seconds` is the stretch less that. 0: calls were back to back.
  double neighbour_alone = 0;
};

/// Samples taken in one go, every side in turn and back again, so that slow drift cancels within
/// the block.
struct Block {
  std::vector<Sample> samples;  ///< in the order they were taken
  int process = 0;              ///< blocks of different processes are resampled apart
  double pulse = 0;  ///< FLOP/s of the slower probe around the block's round; 0: not probed
  /// Share of the cores' time that other work took while the block's process measured, at most; 0:
  /// none, or nothing tells.
  double other_work = 0;
  std::string dropped;  ///< why the statistics leave it out; empty: they do not
  Telemetry telemetry;
};

/// One side of a comparison at one shape.
struct Side {
  std::string id;  ///< of the subject: "cpu.flash", "peer:torch-cpu"
  /// The kernel that it was there, of a side that is a choice ("greenfast"); empty: not told.
  std::string variant;
  int batch = 1;                         ///< calls per sample
  std::string refused;                   ///< why it has no samples; empty when it has
  std::map<std::string, double> errors;  ///< against fp64, by metric, where the recorder knows them
  Correctness correctness;               ///< by the recorder's own check
  std::string output_sha256;             ///< of its output on the first inputs; empty: not taken
  double threads_used = 0;         ///< CPU time over time of its timed stretches; 0: not known
  double cpu_between_seconds = 0;  ///< CPU time of its process between them
  /// Of a side in a process of its own: private memory beyond what it had when it was loaded, at the
  /// end of its calls, and how much of that came with the timed ones. -1: not known.
  std::int64_t held_bytes = -1, grown_bytes = -1;
};

/// All samples of one problem.
struct Samples {
  std::string name;     ///< of the shape in tables
  std::string problem;  ///< to_string(Problem): two recordings compare only when these are equal
  double flops = 0;     ///< of one call, 4 * visible pairs * D
  DeviceKind device = DeviceKind::cpu;
  std::string device_name;
  std::string timer;        ///< Device::timer()
  double tick_seconds = 0;  ///< resolution of one reading
  CacheState cache = CacheState::cold;
  std::string way;        ///< of a run that timed in several: "back-to-back:hot", "gemm:cold"
  std::string neighbour;  ///< what stood before each call, in words; empty: calls were back to back
  CallMetric metric = CallMetric::back_to_back;
  std::uint64_t seed = 0;  ///< of the order
  std::uint64_t draw = 0;  ///< of the inputs' signs in timed calls; 0: they were not drawn
  std::vector<Side> sides;
  std::vector<Block> blocks;

  /// Index of the side with this id; -1 when there is none.
  int side(std::string_view id) const noexcept;
};

/// The schema greenfast.samples/1, described in docs/measuring.md.
nlohmann::json to_json(const std::vector<Samples>& shapes);
/// The inverse of to_json. Refuses, by the JSON path of the offending value, what is not of that
/// schema: a missing or mistyped field, a side that does not exist, a time that is not positive and
/// finite.
Result<std::vector<Samples>> samples_from_json(const nlohmann::json& document);
/// Reads a file of that schema; the file's name is part of every error.
/// StatusCode::invalid_argument for a file that is not of the schema, StatusCode::internal where it
/// cannot be read.
Result<std::vector<Samples>> read_samples(const std::filesystem::path& file);

}  // namespace greenfast::workbench
