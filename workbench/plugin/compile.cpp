#include "workbench/plugin/compile.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <sstream>

#include "workbench/atomic_file.hpp"
#include "workbench/build_info.hpp"
#include "workbench/plugin/toolchain.hpp"
#include "workbench/sha256.hpp"

extern char** environ;

namespace greenfast::workbench {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kShownLines = 30;

Result<std::string> read_file(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) {
    return Status(StatusCode::invalid_argument,
                  fmt::format("{}: cannot be read: {}", path.string(), std::strerror(errno)));
  }
  return std::string(std::istreambuf_iterator<char>(stream), {});
}

struct Ended {
  int code = 0;  // -1: no end within the limit
  std::string output;
};

/// Runs a program with both its outputs in one text.
Result<Ended> run_program(const std::vector<std::string>& arguments, double timeout) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0)
    return Status(StatusCode::internal, fmt::format("no pipe: {}", std::strerror(errno)));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 2);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t all;
  sigfillset(&all);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::vector<std::string> copy = arguments;
  std::vector<char*> argv;
  for (std::string& argument : copy) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t child = -1;
  const int error = posix_spawnp(&child, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(ends[1]);
  if (error != 0) {
    close(ends[0]);
    return Status(StatusCode::internal,
                  fmt::format("{} cannot be run: {}", arguments[0], std::strerror(error)));
  }
  Ended ended;
  const auto start = Clock::now();
  fcntl(ends[0], F_SETFL, O_NONBLOCK);
  char buffer[8192];
  int status = 0;
  for (bool open = true; open;) {
    const ssize_t count = read(ends[0], buffer, sizeof buffer);
    if (count > 0) {
      ended.output.append(buffer, static_cast<std::size_t>(count));
      continue;
    }
    if (count == 0) break;
    if (errno != EAGAIN && errno != EINTR) break;
    if (std::chrono::duration<double>(Clock::now() - start).count() > timeout) {
      kill(-child, SIGKILL);
      ended.code = -1;
      open = false;
    }
    usleep(5000);
  }
  close(ends[0]);
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (ended.code != -1) ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  return ended;
}

std::string find_program(std::initializer_list<std::string> names) {
  const char* path = std::getenv("PATH");
  for (const std::string& name : names) {
    if (name.empty()) continue;
    if (name.find('/') != std::string::npos) {
      if (access(name.c_str(), X_OK) == 0) return name;
      continue;
    }
    std::istringstream folders(path != nullptr ? path : "");
    for (std::string folder; std::getline(folders, folder, ':');) {
      const fs::path candidate = fs::path(folder) / name;
      std::error_code ignored;
      if (access(candidate.c_str(), X_OK) == 0 && !fs::is_directory(candidate, ignored))
        return candidate.string();
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
      out = {find_program({"cc", std::string(toolchain::kC)}), "-std=c11"};
      break;
    case Language::cpp:
      out = {find_program({"c++", std::string(toolchain::kCxx)}), "-std=c++20"};
      break;
    case Language::cuda: {
      out = {find_program({"nvcc", std::string(toolchain::kNvcc), "/usr/local/cuda/bin/nvcc"}),
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
    const auto asked = run_program({out.compiler, "--version"}, 30);
    if (!asked) return asked.status();
    std::istringstream lines(asked->output);
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
  const auto ended = run_program(*command, options.timeout_seconds);
  if (!ended) return ended.status();
  out.log = ended->output;
  if (ended->code == -1)
    return Status(StatusCode::internal,
                  fmt::format("--plugin {}: {} did not end within {:g} s", source.string(),
                              out.compiler, options.timeout_seconds));
  if (ended->code != 0) {
    fs::remove(temporary, error);
    return Status(
        StatusCode::invalid_argument,
        fmt::format("--plugin {}: does not compile ({}, exit code {}):{}\n  command: {}",
                    source.string(), out.version, ended->code, excerpt(out.log), out.command));
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
