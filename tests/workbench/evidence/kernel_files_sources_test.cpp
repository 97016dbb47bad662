// What evidence takes for a kernel's sources: CMake's lists, and what those files include.
#include <greenfast/attention.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <regex>
#include <set>
#include <string>

#include "workbench/base/files.hpp"
#include "workbench/evidence/kernel_files.hpp"

namespace greenfast {
namespace {

namespace fs = std::filesystem;

std::set<std::string> sources_of(std::string_view variant) {
  std::set<std::string> out;
  for (auto& [path, digest] : workbench::sources_of(GREENFAST_SOURCE_DIR, variant))
    out.insert(std::move(path));
  return out;
}

/// Also in builds that cannot compile the kernel: those judge its evidence by the sources.
TEST(KernelSources, EveryVariantHasTheFilesOfItsDevice) {
  for (const VariantInfo& variant : variants()) {
    const std::set<std::string> sources = sources_of(variant.id);
    EXPECT_FALSE(sources.empty()) << variant.id;
    const bool cuda = variant.device == DeviceKind::cuda;
    for (const std::string& path : sources)
      EXPECT_TRUE(path.starts_with(cuda ? "src/kernels/cuda/" : "src/kernels/cpu/"))
          << variant.id << ": " << path;
  }
}

/// A source that CMake compiles for another kernel is none of this one's, a generated one stands
/// for what it includes, and headers of headers count.
TEST(KernelSources, AreThoseThatItsObjectIsCompiledFrom) {
  const auto ends_with = [](const std::set<std::string>& sources, std::string_view name) {
    return std::any_of(sources.begin(), sources.end(),
                       [&](const std::string& path) { return path.ends_with(name); });
  };
  const auto stage2 = sources_of("cuda.stage_c.stage2");
  EXPECT_TRUE(ends_with(stage2, "stage_c_rollback.cu"));
  EXPECT_TRUE(ends_with(stage2, "device/ptx_cp_async.cuh"));
  EXPECT_FALSE(ends_with(stage2, "stage_c_3b.cu"));
  const auto prefill = sources_of("cuda.sm90.prefill");
  EXPECT_TRUE(ends_with(prefill, "device/ptx_wgmma.cuh"));
  EXPECT_FALSE(ends_with(prefill, "device/ptx_cluster.cuh"));
  const auto flash = sources_of("cpu.flash");
  EXPECT_TRUE(ends_with(flash, "20_flash_avx512amx.cpp"));
  EXPECT_FALSE(ends_with(flash, "10_naive.cpp"));
}

/// A file that no variant is compiled from could change without any evidence becoming stale. Rows of
/// the table itself, for this build may be without the experimental ones.
TEST(KernelSources, NoFileIsLeftOut) {
  const fs::path root(GREENFAST_SOURCE_DIR);
  const auto rows = workbench::read_file(root / "src" / "dispatch" / "variants.def");
  ASSERT_TRUE(rows) << rows.status().message();
  const std::regex id(R"re(\.id = "([^"]+)")re");
  std::set<std::string> known;
  for (std::sregex_iterator row(rows->begin(), rows->end(), id), end; row != end; ++row)
    known.merge(sources_of((*row)[1].str()));
  for (const auto& item : fs::recursive_directory_iterator(root / "src" / "kernels")) {
    const std::string extension = item.path().extension();
    if (extension != ".cu" && extension != ".cuh" && extension != ".cpp" && extension != ".hpp")
      continue;
    const std::string path = fs::relative(item.path(), root).generic_string();
    // No variants: evidence never speaks of them.
    if (path.ends_with("cpu/30_merge.cpp") || path.ends_with("cpu/31_append.cpp")) continue;
    EXPECT_TRUE(known.contains(path)) << path << " is in no kernel's list (CMakeLists.txt)";
  }
}

}  // namespace
}  // namespace greenfast
