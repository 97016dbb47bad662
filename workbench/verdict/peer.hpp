// Peers: attention of other engines, timed beside a library variant in the Python harness, which
// runs both in one process, interleaved, and hands over raw samples. Every interval is computed
// here.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <greenfast/types.hpp>

#include "workbench/cases/workload.hpp"
#include "workbench/verdict/compare.hpp"

namespace greenfast::workbench {

/// An engine that the harness knows.
struct PeerRow {
  std::string_view id;  ///< "peer:torch-cpu"
  DeviceKind device;
  std::string_view engine;  ///< what the harness calls it
};
std::span<const PeerRow> peer_table();
/// Their ids, each with its device: "peer:torch-cpu (cpu), ...".
std::string known_peers();
/// Whether a text names a peer, known or not: "peer:…".
bool is_peer(std::string_view id);

struct PeerOptions {
  std::vector<std::string> sides;  ///< library variants and at least one peer, each once
  std::vector<NamedProblem> problems;
  std::uint64_t seed = 0;
  int iters = 200;             ///< samples of each side, at most
  int warmup = 10;             ///< untimed calls first
  double budget_seconds = 10;  ///< of each shape
  bool hot = false;
  Policy policy{};  ///< that the errors which the harness measures are held to
  double timeout_seconds = 900;
  std::function<void(const std::string&)> activity{};
};

/// What can be found wrong before anything runs: an unknown peer, sides of different devices, a
/// subject that is no library variant (invalid_argument); a problem that peers have no call for
/// (unsupported). Each names what is possible.
Status check_peers(const PeerOptions& options);

/// A recording, and the bytes of each side's output on the first inputs.
struct PeerRecording {
  Recording recording;
  std::vector<std::vector<std::vector<std::byte>>> outputs;  ///< by shape, then side; may be empty
};

/// Runs the harness with GREENFAST_PYTHON (default python3) and reads what it wrote. no_device when
/// the interpreter, the package, the library or the peer's own package is missing, in words that
/// say which.
Result<PeerRecording> record_peers(const PeerOptions& options);

/// A library variant against a peer, or two peers: record_peers, with the variant's GREEN read
/// again by the policy and both outputs compared element by element.
Result<Comparison> compare_with_peer(Device& device, const std::string& a, const std::string& b,
                                     const CompareOptions& options);

}  // namespace greenfast::workbench
