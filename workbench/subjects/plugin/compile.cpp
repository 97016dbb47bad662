#include "workbench/subjects/plugin/compile.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>

#include "workbench/base/atomic_file.hpp"
#include "workbench/base/build_info.hpp"
#include "workbench/base/files.hpp"
#include "workbench/base/sha256.hpp"
#include "workbench/base/subprocess.hpp"
#include "workbench/subjects/plugin/toolchain.hpp"

namespace greenfast::workbench {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kShownLines = 30;

/// The first of these that there is: names of PATH, or paths.
std::string first_program(std::initializer_list<std::string> names) {
  for (const std::string& name : names) {
    if (name.empty()) continue;
    if (name.find('/') == std::string::npos) {
      if (const auto found = find_program(name)) return found->string();
    } else if (access(name.c_str(), X_OK) == 0) {
      return name;
    }
  }
  return "";
}

enum class Language { none, c, cpp, cuda };

Language language_of(const fs::path& path) {
  const std::string extension = path.extension().string();
  if (extension == ".cu") return Language::cuda;
  if (extension == ".c") return Language::c;
  if (extension == ".cc" || extension == ".cpp" || extension == ".cxx") return Language::cpp;
  return Language::none;
}

std::vector<std::string> words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

/// The first lines of a compiler's message, those that speak of errors first.
std::string excerpt(const std::string& log) {
  std::istringstream stream(log);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);)
    if (!line.empty()) lines.push_back(line);
  const auto first = std::find_if(lines.begin(), lines.end(), [](const std::string& line) {
    return line.find("error") != std::string::npos;
  });
  std::string out;
  std::size_t shown = 0;
  for (auto it = first != lines.end() ? first : lines.begin(); it != lines.end(); ++it) {
    if (shown++ == kShownLines) {
      out += "\n  ...";
      break;
    }
    out += fmt::format("\n  {}", *it);
  }
  return out;
}

}  // namespace

bool is_plugin_source(const fs::path& path) { return language_of(path) != Language::none; }

Result<std::vector<std::string>> compile_command(const fs::path& source,
                                                 const CompileOptions& options,
                                                 const fs::path& include) {
  std::vector<std::string> out;
  const std::vector<std::string> extra = words(options.flags);
  switch (language_of(source)) {
    case Language::none:
      return Status(StatusCode::invalid_argument,
                    fmt::format("--plugin {}: possible are a shared object (.so) and sources that "
                                "end in .c, .cc, .cpp, .cxx or .cu",
                                source.string()));
    case Language::c:
      out = {first_program({"cc", std::string(toolchain::kC)}), "-std=c11"};
      break;
    case Language::cpp:
      out = {first_program({"c++", std::string(toolchain::kCxx)}), "-std=c++20"};
      break;
    case Language::cuda: {
      out = {first_program({"nvcc", std::string(toolchain::kNvcc), "/usr/local/cuda/bin/nvcc"}),
             "-std=c++20", "--expt-relaxed-constexpr", "-lineinfo", "-Xptxas=-v"};
      const bool chosen = std::any_of(extra.begin(), extra.end(), [](const std::string& flag) {
        return flag.starts_with("-arch") || flag.starts_with("--gpu-architecture") ||
               flag.starts_with("-gencode") || flag.starts_with("--generate-code");
      });
      if (!chosen) {
        // The architectures of this build; without any, that of the machine's GPU.
        std::istringstream archs(build_info().cuda_archs);
        bool any = false;
        for (std::string arch; std::getline(archs, arch, ','); any = true)
          out.push_back(fmt::format("-gencode=arch=compute_{0},code=sm_{0}", arch));
        if (!any) out.emplace_back("-arch=native");
      }
      break;
    }
  }
  if (out[0].empty())
    return Status(
        StatusCode::no_device,
        fmt::format("--plugin {}: no compiler for {} files was found; put one on PATH, or "
                    "give the compiled .so",
                    source.string(), source.extension().string()));
  out.emplace_back("-O3");
  if (language_of(source) == Language::cuda) {
    out.emplace_back("-Xcompiler=-fPIC,-fvisibility=hidden");
    out.emplace_back("-Xlinker=-z,defs");  // what is missing shows here, not where there is a GPU
  } else {
    for (const char* flag : {"-march=native", "-fPIC", "-fvisibility=hidden"})
      out.emplace_back(flag);
  }
  out.emplace_back("-shared");
  out.push_back("-I" + include.string());
  for (const std::string& define : options.defines) out.push_back("-D" + define);
  out.insert(out.end(), extra.begin(), extra.end());
  out.push_back(fs::absolute(source).string());
  // After the source, for those who want them.
  if (language_of(source) != Language::cuda)
    for (const char* library : {"-lm", "-pthread"}) out.emplace_back(library);
  return out;
}

Result<Compiled> compile_plugin(const fs::path& source, const fs::path& directory,
                                const CompileOptions& options) {
  const auto text = read_file(source);
  if (!text)
    return Status(StatusCode::invalid_argument,
                  fmt::format("--plugin {}", text.status().message()));
  std::error_code error;
  const fs::path include = directory / "include";
  fs::create_directories(include / "greenfast", error);
  for (const toolchain::Header& header : toolchain::headers()) {
    const fs::path file = include / "greenfast" / std::string(header.name);
    if (const auto there = read_file(file); there && *there == header.text) continue;
    if (Status status = write_file_atomically(file, header.text); !status) return status;
  }
  auto command = compile_command(source, options, include);
  if (!command) return command.status();

  Compiled out;
  out.compiler = command->front();
  out.source_sha256 = sha256_hex(*text);
  // Asked once for each compiler: nvcc takes a tenth of a second to say it.
  static std::mutex mutex;
  static std::map<std::string, std::string> versions;
  std::unique_lock lock(mutex);
  std::string& version = versions[out.compiler];
  if (version.empty()) {
    const auto asked = run_program(std::vector<std::string>{out.compiler, "--version"}, 30);
    if (!asked) return asked.status();
    std::istringstream lines(asked->out);
    for (std::string line; std::getline(lines, line);) {
      if (version.empty()) version = line;                            // gcc, clang: the first line
      if (line.find("release") != std::string::npos) version = line;  // nvcc
    }
  }
  out.version = version;
  lock.unlock();

  // Where the headers were unpacked is no part of what was built.
  std::string identity = fmt::format("{}\n{}", out.version, out.source_sha256);
  for (const std::string& word : *command)
    if (!word.starts_with("-I" + include.string()) && word != fs::absolute(source).string() &&
        word != out.compiler)
      identity += fmt::format("\n{}", word);
  for (const toolchain::Header& header : toolchain::headers())
    identity += fmt::format("\n{}", header.text);
  const std::string key = sha256_hex(identity).substr(0, 24);
  out.key = key;
  out.library = directory / (key + ".so");
  const fs::path log = directory / (key + ".log"), temporary = directory / (key + ".tmp.so");
  command->push_back("-o");
  command->push_back(temporary.string());
  out.command = fmt::format("{}", fmt::join(*command, " "));
  if (fs::exists(out.library, error)) {
    if (auto known = read_file(log)) {
      out.log = *known;
      out.reused = true;
      return out;
    }
  }
  RunLimits limits;
  limits.seconds = options.timeout_seconds;
  limits.stop = options.stop;
  limits.unfinished = temporary;
  const auto ended = run_program(*command, limits);
  if (!ended) return ended.status();
  if (ended->stopped)
    return Status(StatusCode::internal, fmt::format("--plugin {}: interrupted", source.string()));
  out.log = ended->err + ended->out;
  if (ended->timed_out)
    return Status(StatusCode::internal,
                  fmt::format("--plugin {}: {} did not end within {:g} s", source.string(),
                              out.compiler, options.timeout_seconds));
  if (ended->exit_code == 127)
    return Status(StatusCode::internal,
                  fmt::format("--plugin {}: {} cannot be run", source.string(), out.compiler));
  if (ended->exit_code != 0) {
    fs::remove(temporary, error);
    return Status(
        StatusCode::invalid_argument,
        fmt::format("--plugin {}: does not compile ({}, exit code {}):{}\n  command: {}",
                    source.string(), out.version, ended->exit_code, excerpt(out.log), out.command));
  }
  if (Status status = write_file_atomically(log, out.log); !status) return status;
  fs::rename(temporary, out.library, error);
  if (error)
    return Status(StatusCode::internal,
                  fmt::format("{}: {}", out.library.string(), error.message()));
  return out;
}

PtxasUse read_ptxas(std::string_view log) {
  PtxasUse use;
  std::istringstream lines{std::string(log)};
  for (std::string line; std::getline(lines, line);) {
    // "Used 84 registers, used 1 barriers, 2048 bytes smem"; "0 bytes spill stores, 0 bytes spill
    // loads"
    const auto number_before = [&](std::size_t at) {
      const auto digits = line.find_last_not_of("0123456789", at - 1) + 1;
      return std::atol(line.c_str() + digits);
    };
    if (const auto at = line.find("Used ");
        at != std::string::npos && line.find(" registers") != std::string::npos) {
      ++use.kernels;
      use.registers = std::max(use.registers, std::atoi(line.c_str() + at + 5));
      const auto shared = line.find(" bytes smem");
      if (shared != std::string::npos && shared > 0)
        use.shared_bytes = std::max(use.shared_bytes, number_before(shared));
    }
    for (const char* what : {" bytes spill stores", " bytes spill loads"})
      if (const auto spill = line.find(what); spill != std::string::npos && spill > 0)
        use.spill_bytes += number_before(spill);
  }
  return use;
}

}  // namespace greenfast::workbench
