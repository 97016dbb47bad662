// What the running binary was built from and with.
#pragma once

#include <string>

namespace greenfast::workbench {

struct BuildInfo {
  std::string version;
  std::string git_sha;  // empty when it was not built from a git checkout
  bool git_dirty = false;
  std::string git_diff_sha256;  // of `git diff HEAD`; empty when clean
  std::string type, compiler, flags, sanitize, cmake, processor;
  std::string cuda, cuda_flags, cuda_archs;  // empty in a CPU-only build
};

const BuildInfo& build_info();

/// "greenfast 0.1.0 (3f2a6b2c, dirty)".
std::string build_line();

}  // namespace greenfast::workbench
