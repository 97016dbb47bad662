#include "workbench/record/facts.hpp"

#include "workbench/base/build_info.hpp"
#include "workbench/base/json.hpp"

namespace greenfast::workbench {
namespace {

using nlohmann::json;

}  // namespace

json build_json() {
  const BuildInfo& b = build_info();
  json cuda = nullptr;
  if (!b.cuda.empty())
    cuda = {{"compiler", b.cuda}, {"flags", b.cuda_flags}, {"architectures", b.cuda_archs}};
  return {{"version", b.version},
          {"git",
           {{"sha", text_or_null(b.git_sha)},
            {"dirty", b.git_dirty},
            {"diff_sha256", text_or_null(b.git_diff_sha256)}}},
          {"type", b.type},
          {"compiler", b.compiler},
          {"flags", b.flags},
          {"sanitize", b.sanitize},
          {"cmake", b.cmake},
          {"processor", b.processor},
          {"cuda", cuda}};
}

json host_json(const HostFacts& h) {
  return {{"os", h.os},
          {"kernel", h.kernel},
          {"cpu", h.cpu},
          {"cpus", h.cpus},
          {"memory_bytes", h.memory_bytes},
          {"governor", text_or_null(h.governor)},
          {"load", h.load}};
}

json device_json(const DeviceFacts& f) {
  return {{"kind", name_of(f.kind)},
          {"index", f.index},
          {"name", f.name},
          {"arch", f.arch},
          {"multiprocessors", f.multiprocessors},
          {"shared_per_block", f.shared_per_block},
          {"l2_bytes", f.l2_bytes},
          {"isa", text_or_null(f.isa)},
          {"driver", text_or_null(f.driver)}};
}

}  // namespace greenfast::workbench
