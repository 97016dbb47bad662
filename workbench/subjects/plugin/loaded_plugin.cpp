#include "workbench/subjects/plugin/loaded_plugin.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <new>

#include "workbench/base/clean_text.hpp"

namespace greenfast::workbench {
namespace {

constexpr std::size_t kMostKernels = 64;
constexpr std::size_t kTextBytes = 512;

Status refuse(const std::string& path, const std::string& why) {
  return {StatusCode::invalid_argument, fmt::format("--plugin {}: {}", path, why)};
}

Status to_status(gf_status code, const std::string& what) {
  if (code == GF_OK) return {};
  const bool known = code > GF_OK && code <= GF_INTERNAL;
  const auto status = known ? static_cast<StatusCode>(code) : StatusCode::internal;
  return {status, fmt::format("the plugin returned {} ({}){}{}", code,
                              known ? name_of(status) : "no gf_status", what.empty() ? "" : ": ",
                              clean_line(what))};
}

/// A C++ plugin may let an exception out; it is the plugin's failure, not ours.
template <class Call>
Status guarded(const Call& call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return {StatusCode::out_of_memory, "the plugin ran out of memory (std::bad_alloc)"};
  } catch (const std::exception& error) {
    return {StatusCode::internal, fmt::format("the plugin threw: {}", clean_line(error.what()))};
  } catch (...) {
    return {StatusCode::internal, "the plugin threw something that is no std::exception"};
  }
}

}  // namespace

bool is_plugin_name(const char* text) {
  if (text == nullptr || *text == 0 || std::strlen(text) > 64) return false;
  return std::all_of(text, text + std::strlen(text), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

Result<PluginLibrary> PluginLibrary::load(const std::string& path) {
  // Never closed: threads the plugin started may still run its code.
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return refuse(path, fmt::format("cannot be loaded: {}", dlerror()));
  const auto get = reinterpret_cast<gf_plugin_get_function>(dlsym(handle, GF_PLUGIN_ENTRY));
  if (get == nullptr)
    return refuse(path, "exports no " GF_PLUGIN_ENTRY
                        "; define it with GF_PLUGIN_EXPORT as in "
                        "greenfast/plugin.h");
  PluginLibrary library;
  const Status got = guarded([&]() -> Status {
    library.plugin_ = get();
    return {};
  });
  if (!got) return refuse(path, got.message());
  const gf_plugin* plugin = library.plugin_;
  if (plugin == nullptr) return refuse(path, GF_PLUGIN_ENTRY " returned null");
  if (plugin->abi_version != GF_PLUGIN_ABI_VERSION)
    return refuse(path, fmt::format("was built for plugin ABI version {}, this command speaks {}; "
                                    "rebuild it with this version's greenfast/plugin.h",
                                    plugin->abi_version, GF_PLUGIN_ABI_VERSION));
  if (plugin->struct_size < sizeof(gf_plugin))
    return refuse(path, fmt::format("says that its gf_plugin has {} bytes, version {} has {}; "
                                    "begin it with GF_PLUGIN_INIT",
                                    plugin->struct_size, GF_PLUGIN_ABI_VERSION, sizeof(gf_plugin)));
  if (plugin->kernels == nullptr || plugin->kernel_count < 1 || plugin->kernel_count > kMostKernels)
    return refuse(path,
                  fmt::format("lists {} kernels; possible are 1 to {}",
                              plugin->kernels == nullptr ? 0 : plugin->kernel_count, kMostKernels));
  library.name_ = plugin->name != nullptr ? std::string(plugin->name).substr(0, 64) : "";
  for (std::size_t i = 0; i < plugin->kernel_count; ++i) {
    const gf_plugin_kernel& kernel = plugin->kernels[i];
    if (kernel.struct_size != sizeof(gf_plugin_kernel))
      return refuse(
          path, fmt::format("kernel {}: struct_size is {}, version {} has {}", i,
                            kernel.struct_size, GF_PLUGIN_ABI_VERSION, sizeof(gf_plugin_kernel)));
    if (!is_plugin_name(kernel.name))
      return refuse(path, fmt::format("kernel {}: its name must be 1 to 64 letters, digits, '_', "
                                      "'-' or '.'",
                                      i));
    if (kernel.launch == nullptr)
      return refuse(path, fmt::format("kernel {}: launch is null", kernel.name));
    if (kernel.device != GF_CPU && kernel.device != GF_CUDA)
      return refuse(path, fmt::format("kernel {}: device is {}; possible are GF_CPU, GF_CUDA",
                                      kernel.name, kernel.device));
    PluginKernelInfo info;
    info.name = kernel.name;
    info.idea = kernel.idea != nullptr ? std::string(kernel.idea).substr(0, 200) : "";
    info.device = static_cast<DeviceKind>(kernel.device);
    for (const PluginKernelInfo& other : library.infos_) {
      if (other.name == info.name)
        return refuse(path, fmt::format("two kernels are called {}", info.name));
      if (other.device != info.device)
        return refuse(path, "has kernels for the CPU and for CUDA; make it two plugins");
    }
    library.infos_.push_back(std::move(info));
  }
  return library;
}

std::optional<std::string> PluginLibrary::refusal(std::size_t index,
                                                  const gf_problem& problem) const {
  const auto supports = kernel(index).supports;
  if (supports == nullptr) return std::nullopt;
  std::array<char, kTextBytes> why{};
  bool taken = false;
  const Status asked = guarded([&]() -> Status {
    taken = supports(&problem, why.data(), why.size()) != 0;
    return {};
  });
  if (!asked) return asked.message();
  if (taken) return std::nullopt;
  why.back() = 0;
  return why[0] != 0 ? clean_line(why.data()) : "the plugin refuses it without a reason";
}

std::size_t PluginLibrary::workspace_bytes(std::size_t index, const gf_problem& problem) const {
  const auto ask = kernel(index).workspace_bytes;
  return ask != nullptr ? ask(&problem) : 0;
}

Status PluginLibrary::prepare(std::size_t index, const gf_problem& problem) const {
  const auto prepare = kernel(index).prepare;
  if (prepare == nullptr) return {};
  return guarded([&] { return to_status(prepare(&problem), ""); });
}

Status PluginLibrary::launch(std::size_t index, const gf_problem& problem,
                             const gf_tensors& tensors, void* workspace,
                             std::size_t workspace_bytes, void* stream) const {
  std::array<char, kTextBytes> error{};
  gf_plugin_call call{};
  call.struct_size = sizeof call;
  call.problem = &problem;
  call.tensors = &tensors;
  call.workspace = workspace;
  call.workspace_bytes = workspace_bytes;
  call.stream = stream;
  call.error = error.data();
  call.error_capacity = error.size();
  return guarded([&] {
    const gf_status code = kernel(index).launch(&call);
    if (code == GF_OK) return Status();
    error.back() = 0;
    return to_status(code, error.data());
  });
}

}  // namespace greenfast::workbench
