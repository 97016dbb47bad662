// Exit codes of the command: the same words as verdicts, for scripts.
#pragma once

#include <span>

#include <greenfast/types.hpp>

namespace greenfast::workbench {

enum ExitCode : int {
  kPassed = 0,
  kUsage = 2,
  kNoDevice = 3,
  kInternal = 4,
  kDefer = 10,
  kNumerics = 20,
  kIntegrity = 21,
  kResources = 22,
  kRegression = 23,
  kCrash = 24,
  kEvidence = 30,
  kInterrupted = 130,
};

/// The code of a run with several results: the gravest first, and 3 where there is none because
/// everything was skipped.
inline int worst_of(std::span<const int> codes) {
  for (int code :
       {kCrash, kIntegrity, kNumerics, kResources, kRegression, kEvidence, kDefer, kPassed})
    for (int c : codes)
      if (c == code) return code;
  return kNoDevice;
}

/// What a failed Status means to a script: the caller's mistake, a missing device, or ours.
inline int exit_code_of(StatusCode code) {
  switch (code) {
    case StatusCode::ok:
      return kPassed;
    case StatusCode::invalid_argument:
    case StatusCode::unsupported:
      return kUsage;
    case StatusCode::no_device:
      return kNoDevice;
    default:
      return kInternal;
  }
}

}  // namespace greenfast::workbench
