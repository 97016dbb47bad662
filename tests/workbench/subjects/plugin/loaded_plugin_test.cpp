// A plugin in the caller's own process, as CUDA's are: whatever it says is cleaned here.
#include "workbench/subjects/plugin/loaded_plugin.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include <greenfast/c_types.hpp>

#include "workbench/subjects/plugin/compile.hpp"

namespace greenfast::workbench::test {
namespace {

constexpr const char* kHostilePlugin = R"(
#include <cstdio>
#include <stdexcept>
#include <greenfast/plugin.h>
static int supports(const gf_problem* p, char* why, size_t capacity) {
  std::snprintf(why, capacity, "\033[2Jnot \xff text\r");
  return p->batch == 1;
}
static gf_status launch(const gf_plugin_call* call) {
  if (call->workspace_bytes == 1) throw std::runtime_error("\033[1;1Hthrown");
  std::snprintf(call->error, call->error_capacity, "\033[2Jreturned");
  return GF_INTERNAL;
}
static const gf_plugin_kernel kKernels[] = {
    {sizeof(gf_plugin_kernel), GF_CPU, "hostile", "", supports, nullptr, nullptr, launch}};
static const gf_plugin kPlugin = GF_PLUGIN_INIT("hostile", kKernels);
GF_PLUGIN_EXPORT const gf_plugin* gf_plugin_get(void) { return &kPlugin; }
)";

TEST(LoadedPlugin, NothingThatItSaysReachesATerminal) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "greenfast_loaded_plugin";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "hostile.cpp") << kHostilePlugin;
  const auto compiled = compile_plugin(folder / "hostile.cpp", folder, {});
  if (!compiled && compiled.status().code() == StatusCode::no_device)
    GTEST_SKIP() << compiled.status().message();
  ASSERT_TRUE(compiled) << compiled.status().message();
  const auto library = PluginLibrary::load(compiled->library.string());
  ASSERT_TRUE(library) << library.status().message();

  const gf_problem problem = to_c(make_problem(2, 1, 1, 8, 8, 16, DType::f32));
  EXPECT_EQ(library->refusal(0, problem), "?[2Jnot \uFFFD text?");
  const Status thrown = library->launch(0, problem, {}, nullptr, 1, nullptr);
  EXPECT_EQ(thrown.message(), "the plugin threw: ?[1;1Hthrown");
  const Status returned = library->launch(0, problem, {}, nullptr, 0, nullptr);
  EXPECT_NE(returned.message().find("?[2Jreturned"), std::string::npos) << returned.message();
  EXPECT_EQ(returned.message().find('\033'), std::string::npos);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace greenfast::workbench::test
