#include "workbench/base/build_info.hpp"

#include "build_config.hpp"
#include "git_state.hpp"

namespace greenfast::workbench {

const BuildInfo& build_info() {
  static const BuildInfo info{
      .version = GREENFAST_BUILD_VERSION,
      .git_sha = GREENFAST_GIT_SHA,
      .git_dirty = GREENFAST_GIT_DIRTY,
      .git_diff_sha256 = GREENFAST_GIT_DIFF_SHA256,
      .type = GREENFAST_BUILD_TYPE,
      .compiler = GREENFAST_BUILD_COMPILER,
      .flags = GREENFAST_BUILD_FLAGS,
      .sanitize = GREENFAST_BUILD_SANITIZE,
      .cmake = GREENFAST_BUILD_CMAKE,
      .processor = GREENFAST_BUILD_PROCESSOR,
      .cuda = GREENFAST_BUILD_CUDA,
      .cuda_flags = GREENFAST_BUILD_CUDA_FLAGS,
      .cuda_archs = GREENFAST_BUILD_CUDA_ARCHS,
  };
  return info;
}

std::string build_line() {
  const BuildInfo& info = build_info();
  std::string line = "greenfast " + info.version;
  if (!info.git_sha.empty())
    line += " (" + info.git_sha.substr(0, 8) + (info.git_dirty ? ", dirty)" : ")");
  return line;
}

}  // namespace greenfast::workbench
