#include "workbench/subjects/plugin/plugins.hpp"

#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "workbench/base/atomic_file.hpp"
#include "workbench/base/build_info.hpp"
#include "workbench/base/clean_text.hpp"
#include "workbench/base/files.hpp"
#include "workbench/base/sha256.hpp"
#include "workbench/base/terminal.hpp"
#include "workbench/device/arena.hpp"
#include "workbench/subjects/plugin/channel.hpp"
#include "workbench/subjects/plugin/loaded_plugin.hpp"
#include "workbench/subjects/plugin/process.hpp"

namespace greenfast::workbench {
namespace {

namespace fs = std::filesystem;
using channel::Request;

/// A loaded file. Its process is started when a call needs it, and again after it was lost.
struct Plugin {
  std::string file, library, prefix, name, sha256;
  std::optional<Compiled> compiled;
  std::vector<PluginKernelInfo> kernels;
  double timeout = 60;
  std::uint64_t memory = 0;
  pid_t registered_by = 0;
  std::map<std::string, std::string> condemned;  // by id

  std::unique_ptr<PluginProcess> process;
  pid_t process_owner = 0;
  std::optional<PluginLibrary> local;
  double round_trip = 0;
  std::vector<std::string> confined;         // what its process may not do
  std::optional<std::int64_t> bytes_before;  // that its process had when it was loaded

  std::string id(std::size_t kernel) const { return prefix + kernels[kernel].name; }
};

std::vector<std::shared_ptr<Plugin>>& loaded() {
  static std::vector<std::shared_ptr<Plugin>> plugins;
  return plugins;
}

std::vector<std::string> channel_confined(const channel::Control& control) {
  std::vector<std::string> out;
  if ((control.confined & channel::kNoFiles) != 0) out.emplace_back("writes no files");
  if ((control.confined & channel::kNoProcesses) != 0) out.emplace_back("starts no processes");
  if ((control.confined & channel::kNoSignals) != 0) out.emplace_back("signals no other process");
  return out;
}

std::optional<std::string> file_digest(const fs::path& path) {
  const auto bytes = read_file(path);
  if (!bytes) return std::nullopt;
  return sha256_hex(*bytes);
}

/// What every process loads are the bytes that were looked at first, or a verdict would speak of two
/// kernels. A copy can still be changed by who knows where it lies.
Status unchanged(const Plugin& plugin) {
  if (file_digest(plugin.library) == plugin.sha256) return {};
  return {
      StatusCode::invalid_argument,
      fmt::format("--plugin {}: {} was changed while it was in use; what was measured is not what "
                  "lies there now. Start again",
                  plugin.file, plugin.library)};
}

/// A process in which nothing of the plugin's has run yet: what it holds and what the system said of
/// it is not the plugin's word.
Result<std::unique_ptr<PluginProcess>> empty_process(Plugin& plugin) {
  if (Status status = unchanged(plugin); !status) return status;
  auto started = PluginProcess::start(plugin.library, plugin.memory);
  if (!started) return started.status();
  if (Status status = (*started)->ask(Request::none, plugin.timeout); !status) return status;
  plugin.confined = channel_confined((*started)->control());
  plugin.bytes_before = (*started)->private_bytes();
  return started;
}

Result<PluginProcess*> process_of(Plugin& plugin) {
  if (plugin.process && plugin.process_owner != getpid()) plugin.process.reset();
  if (plugin.process && plugin.process->end() == PluginEnd::none) return plugin.process.get();
  start_library_workers();
  auto started = empty_process(plugin);
  if (!started) return started.status();
  plugin.process = std::move(*started);
  plugin.process_owner = getpid();
  const Status described = plugin.process->ask(Request::describe, plugin.timeout);
  if (!described) return described;
  // What timing costs besides the call: an empty request there and back.
  channel::Control& control = plugin.process->control();
  control.count = 0;
  control.sets = 1;
  control.kernel = 0;
  std::vector<double> trips;
  for (int i = 0; i < 31; ++i) {
    double seconds = 0;
    plugin.process->pause();  // as before every timed call
    if (Status status = plugin.process->ask(Request::launch, plugin.timeout, &seconds); !status)
      return status;
    trips.push_back(seconds);
  }
  // The lower quartile, and no more than a machine without other work needs: a busy one would make
  // every sample last seconds.
  std::nth_element(trips.begin(), trips.begin() + 7, trips.end());
  plugin.round_trip = std::min(trips[7], 1e-4);
  return plugin.process.get();
}

channel::Call to_offsets(const SharedArena& arena, const Tensors& tensors) {
  channel::Call call;
  for (std::size_t id = 0; id < kOperands; ++id) {
    const void* memory = data_of(tensors, static_cast<OperandId>(id));
    call[id] = memory == nullptr ? channel::kNull : arena.offset(memory);
  }
  return call;
}

class PluginSubject final : public Subject {
 public:
  PluginSubject(std::shared_ptr<Plugin> plugin, std::size_t kernel)
      : plugin_(std::move(plugin)), kernel_(kernel) {}

  std::string id() const override { return plugin_->id(kernel_); }
  DeviceKind device() const override { return plugin_->kernels[kernel_].device; }

  std::optional<std::string> refusal(const Problem& problem, const DeviceFacts& facts) override {
    if (facts.kind != device())
      return fmt::format("runs on {}, not on {}", name_of(device()), name_of(facts.kind));
    if (problem.batch * problem.heads_q * problem.seq_q == 0 || problem.seq_kv == 0)
      return "a problem without output or without keys is answered before a kernel is called";
    // A plugin of ABI 1 cannot see in a gf_problem what came later, so it is not asked. That answers
    // be exact went without saying then.
    if (std::string missing =
            missing_features(features_of(problem), kFeaturesOfAbi1 | Feature::exact_accuracy);
        !missing.empty())
      return fmt::format("was built for plugin ABI {}: {}", GF_PLUGIN_ABI_VERSION, missing);
    // A plugin that is lost has failed, which a launch will say; it has not refused.
    if (!lost().empty()) return std::nullopt;
    if (device() == DeviceKind::cuda) {
      auto library = local();
      if (!library) return std::nullopt;
      return (*library)->refusal(kernel_, to_c(problem));
    }
    const auto why = ask(Request::supports, problem);
    if (why || why.code() != StatusCode::unsupported || !lost().empty()) return std::nullopt;
    return why.message();
  }

  std::optional<Plan> plan(const Problem& problem, const DeviceFacts&) override {
    Plan plan;
    plan.variant = id();
    plan.note = fmt::format("from {}", plugin_->file);
    if (!lost().empty()) return plan;
    if (device() == DeviceKind::cuda) {
      plan.kernel = id();  // which of its kernels it launches is its own affair
      auto library = local();
      if (library)
        plan.workspace_bytes =
            static_cast<std::int64_t>((*library)->workspace_bytes(kernel_, to_c(problem)));
    } else if (ask(Request::workspace, problem)) {
      plan.workspace_bytes =
          static_cast<std::int64_t>(plugin_->process->control().value & (~std::uint64_t{0} >> 1));
    }
    return plan;
  }

  Status prepare(const Problem& problem, void*) override {
    if (device() == DeviceKind::cuda) {
      if (!lost().empty()) return {StatusCode::internal, lost()};
      auto library = local();
      return library ? (*library)->prepare(kernel_, to_c(problem)) : library.status();
    }
    return ask(Request::prepare, problem);
  }

  Status launch(const Problem& problem, const Tensors& tensors, void* stream, void* workspace,
                std::size_t workspace_bytes) override {
    if (!lost().empty()) return {StatusCode::internal, lost()};
    if (device() == DeviceKind::cuda) {
      auto library = local();
      if (!library) return library.status();
      return (*library)->launch(kernel_, to_c(problem), to_c(tensors), workspace, workspace_bytes,
                                stream);
    }
    return call(problem, {&tensors, 1}, 1, workspace, workspace_bytes, nullptr);
  }

  bool elsewhere() override { return device() == DeviceKind::cpu; }

  Result<double> time(const Problem& problem, std::span<const Tensors> sets, int count,
                      void* workspace, std::size_t workspace_bytes) override {
    double seconds = 0;
    if (Status status = call(problem, sets, count, workspace, workspace_bytes, &seconds); !status)
      return status;
    return seconds;
  }

  void pause() override {
    if (PluginProcess* process = running()) {
      process->pause();
      if (process->end() != PluginEnd::none) (void)lose(process->why());
    }
  }
  std::optional<CpuUse> cpu_use() override {
    PluginProcess* process = running();
    return process != nullptr ? process->cpu_use() : std::nullopt;
  }
  std::optional<CpuUse> cpu_at_answer() override {
    PluginProcess* process = running();
    return process != nullptr ? process->cpu_at_answer() : std::nullopt;
  }
  std::optional<std::int64_t> private_bytes() override {
    if (device() == DeviceKind::cpu) (void)process_of(*plugin_);  // from before its first call on
    PluginProcess* process = running();
    return process != nullptr ? process->private_bytes() : std::nullopt;
  }
  std::optional<std::int64_t> bytes_before_load() override {
    return running() != nullptr ? plugin_->bytes_before : std::nullopt;
  }
  void watch() override {
    if (running() != nullptr) before_ = own_threads();
  }
  std::optional<std::string> touched() override {
    PluginProcess* process = running();
    if (process == nullptr) return std::nullopt;
    if (own_threads_changed(before_))
      return "changed the affinity or the priority of this command's threads";
    if (const int others = process->other_processes(); others > 0)
      return fmt::format("left {} processes at work beside its own", others);
    return std::nullopt;
  }

  double overhead() override {
    if (device() == DeviceKind::cuda || !lost().empty()) return 0;
    return process_of(*plugin_) ? plugin_->round_trip : 0;
  }

  void settle() override {
    // A thread that works on after its call returned shows in what it changes; one that only waits
    // for the next call changes nothing.
    if (PluginProcess* process = running(); process != nullptr && process->threads() > 1)
      usleep(kSettleMicroseconds);
  }

 private:
  static constexpr useconds_t kSettleMicroseconds = 30'000;

  /// The plugin's process, while it is there and is this process's.
  PluginProcess* running() const {
    const bool alive = device() == DeviceKind::cpu && plugin_->process &&
                       plugin_->process_owner == getpid() &&
                       plugin_->process->end() == PluginEnd::none;
    return alive ? plugin_->process.get() : nullptr;
  }

  const std::string& lost() const {
    static const std::string none;
    const auto it = plugin_->condemned.find(id());
    return it == plugin_->condemned.end() ? none : it->second;
  }
  Status lose(const Status& status) {
    if (plugin_->process && plugin_->process->end() != PluginEnd::none)
      plugin_->condemned[id()] = status.message();
    return status;
  }

  /// `count` calls on these sets in turn. With `seconds` it is timed, and what it prints is shown
  /// when it is stopped.
  Status call(const Problem& problem, std::span<const Tensors> sets, int count, void* workspace,
              std::size_t workspace_bytes, double* seconds) {
    if (!lost().empty()) return {StatusCode::internal, lost()};
    auto process = process_of(*plugin_);
    if (!process) return lose(process.status());
    const SharedArena& arena = *SharedArena::active();
    for (const Tensors& set : sets)
      if (set.o != nullptr && !arena.owns(set.o))
        return {StatusCode::internal,
                "tensors lie outside the memory that plugins share: load plugins before the device "
                "is opened"};
    channel::Control& control = (*process)->control();
    control.sets = static_cast<std::uint32_t>(std::min(sets.size(), channel::kMostCalls));
    control.count = static_cast<std::uint32_t>(count);
    for (std::size_t i = 0; i < control.sets; ++i) control.calls[i] = to_offsets(arena, sets[i]);
    control.workspace = workspace != nullptr ? arena.offset(workspace) : channel::kNull;
    control.workspace_bytes = workspace_bytes;
    return send(**process, Request::launch, problem, seconds);
  }

  Status ask(Request request, const Problem& problem) {
    if (!lost().empty()) return {StatusCode::internal, lost()};
    auto process = process_of(*plugin_);
    if (!process) return lose(process.status());
    return send(**process, request, problem, nullptr);
  }
  Status send(PluginProcess& process, Request request, const Problem& problem, double* seconds) {
    channel::Control& control = process.control();
    control.kernel = static_cast<std::uint32_t>(kernel_);
    control.problem = to_c(problem);
    control.arena_used = SharedArena::active()->used();
    return lose(process.ask(request, plugin_->timeout, seconds));
  }

  Result<PluginLibrary*> local() {
    if (getpid() == plugin_->registered_by)
      return Status(StatusCode::internal,
                    fmt::format("{}: a CUDA plugin is called in a child process alone", id()));
    if (!plugin_->local) {
      if (Status status = unchanged(*plugin_); !status) return status;
      auto library = PluginLibrary::load(plugin_->library);
      if (!library) return library.status();
      plugin_->local = std::move(*library);
    }
    return &*plugin_->local;
  }

  std::shared_ptr<Plugin> plugin_;
  std::size_t kernel_;
  ThreadStates before_;
};

/// The loader speaks of the shared object, the user of what was given.
std::string named_as_given(std::string text, const Plugin& plugin) {
  const auto at = text.find(plugin.library);
  return at == std::string::npos ? text : text.replace(at, plugin.library.size(), plugin.file);
}

/// Whether a shared object wants AddressSanitizer's runtime.
bool needs_address_sanitizer(const fs::path& library) {
  const auto bytes = read_file(library);
  return bytes && bytes->find("__asan_init") != std::string::npos;
}

/// Where sources are compiled and shared objects copied to when nobody wants to keep that, until this
/// process ends.
Result<fs::path> scratch_folder() {
  static const auto scratch = ScratchFolder::make("plugin");
  if (!scratch) return scratch.status();
  return scratch->path();
}

/// A shared object that is built again while a command uses it would be another one for the next
/// process, or a crash where its bytes are changed in place: so a copy is loaded. Not of one that
/// looks for its libraries beside itself, nor where nothing can be loaded from: these the digest
/// alone guards.
Result<fs::path> own_copy(const fs::path& given, const fs::path& folder) {
  const auto bytes = read_file(given);
  if (!bytes)
    return Status(StatusCode::invalid_argument,
                  fmt::format("--plugin {}", bytes.status().message()));
  for (const std::string_view origin : {"$ORIGIN", "${ORIGIN}"})
    if (bytes->find(origin) != std::string::npos) return fs::absolute(given);
  struct statvfs mount {};
  if (statvfs(folder.c_str(), &mount) == 0 && (mount.f_flag & ST_NOEXEC) != 0)
    return fs::absolute(given);
  const fs::path copy = fs::absolute(folder / (sha256_hex(*bytes).substr(0, 24) + ".so"));
  if (Status status = write_file_atomically(copy, *bytes); !status) return status;
  return copy;
}

/// The command line of this process, as a shell takes it.
std::string own_command() {
  const auto text = read_file("/proc/self/cmdline");
  std::string out;
  std::istringstream words(text ? *text : "greenfast");
  for (std::string word; std::getline(words, word, '\0');)
    out += (out.empty() ? "" : " ") + shell_word(word);
  return out;
}

std::optional<PluginFailure> describe(Plugin& plugin) {
  auto started = empty_process(plugin);
  if (!started) return PluginFailure{started.status(), false};
  PluginProcess& process = **started;
  if (Status status = process.ask(Request::describe, plugin.timeout); !status) {
    const bool crashed = process.end() != PluginEnd::none;
    return PluginFailure{crashed ? Status(StatusCode::invalid_argument,
                                          fmt::format("--plugin {}: while being loaded it {}",
                                                      plugin.file, status.message()))
                                 : Status(status.code(), named_as_given(status.message(), plugin)),
                         crashed};
  }
  // Its process holds what it says to the rules; code of the plugin's runs in there and may answer in
  // its stead, so they are held to here again.
  const channel::Control& control = process.control();
  std::istringstream lines(
      clean_text({control.description, strnlen(control.description, channel::kDescriptionBytes)}));
  std::getline(lines, plugin.name);
  const auto refuse = [&](const std::string& why) {
    return PluginFailure{
        {StatusCode::invalid_argument,
         fmt::format("--plugin {}: says what no plugin may: {}", plugin.file, why)},
        false};
  };
  for (std::string line; std::getline(lines, line);) {
    const auto first = line.find('\t'), second = line.find('\t', first + 1);
    if (first == std::string::npos || second == std::string::npos)
      return refuse(fmt::format("\"{}\" is no kernel", line));
    PluginKernelInfo info;
    const std::string device = line.substr(0, first);
    info.device = device == "cuda" ? DeviceKind::cuda : DeviceKind::cpu;
    info.name = line.substr(first + 1, second - first - 1);
    info.idea = line.substr(second + 1);
    if (device != name_of(info.device)) return refuse(fmt::format("a device \"{}\"", device));
    if (!is_plugin_name(info.name.c_str()))
      return refuse(fmt::format("a kernel that is called \"{}\"", info.name));
    for (const PluginKernelInfo& other : plugin.kernels)
      if (other.name == info.name || other.device != info.device)
        return refuse(fmt::format("{} twice, or for two devices", info.name));
    plugin.kernels.push_back(std::move(info));
  }
  if (plugin.kernels.empty()) return refuse("no kernel");
  return std::nullopt;
}

}  // namespace

std::optional<PluginFailure> load_plugin(const std::string& file, const PluginOptions& options,
                                         std::vector<std::string>* ids, const std::string& prefix) {
  const auto fail = [](Status status) { return PluginFailure{std::move(status), false}; };
  for (const auto& plugin : loaded()) {
    if (plugin->file != file || plugin->prefix != prefix) continue;
    for (std::size_t i = 0; ids != nullptr && i < plugin->kernels.size(); ++i)
      ids->push_back(plugin->id(i));
    return std::nullopt;
  }
  const fs::path path = file;
  std::error_code error;
  if (!fs::is_regular_file(path, error))
    return fail({StatusCode::invalid_argument, fmt::format("--plugin {}: no such file", file)});
  auto plugin = std::make_shared<Plugin>();
  plugin->file = file;
  plugin->prefix = prefix;
  plugin->timeout = options.timeout_seconds;
  // Sanitizers take terabytes of addresses for their own use.
  plugin->memory =
      build_info().sanitize.empty() ? static_cast<std::uint64_t>(options.memory_gib * 0x1p30) : 0;
  plugin->registered_by = getpid();
  const bool source = is_plugin_source(path);
  if (!source && path.extension() != ".so")
    return fail({StatusCode::invalid_argument,
                 fmt::format("--plugin {}: possible are a shared object (.so) and sources that end "
                             "in .c, .cc, .cpp, .cxx or .cu",
                             file)});
  fs::path directory = options.keep;
  if (directory.empty()) {
    auto scratch = scratch_folder();
    if (!scratch) return fail(scratch.status());
    directory = *scratch;
  }
  if (source) {
    auto compiled = compile_plugin(path, directory, options.compile);
    if (!compiled) return fail(compiled.status());
    plugin->library = fs::absolute(compiled->library).string();
    plugin->compiled = std::move(*compiled);
  } else {
    auto copy = own_copy(path, directory);
    if (!copy) return fail(copy.status());
    plugin->library = copy->string();
  }
  plugin->sha256 = file_digest(plugin->library).value_or("");
  // CUDA reserves more addresses than any limit would allow; loading alone needs no device. So does
  // AddressSanitizer.
  const bool sanitized = needs_address_sanitizer(plugin->library);
  if (path.extension() == ".cu" || sanitized) plugin->memory = 0;
  if (auto failure = describe(*plugin)) {
    if (sanitized && failure->crashed)
      failure->status = Status(
          failure->status.code(),
          fmt::format("{}; it is built with AddressSanitizer, whose runtime must be loaded first: "
                      "{} LD_PRELOAD=\"$({} -print-file-name=libasan.so)\" {}",
                      failure->status.message(), "ASAN_OPTIONS=detect_leaks=0",
                      plugin->compiled ? plugin->compiled->compiler : "cc", own_command()));
    return failure;
  }
  for (const auto& other : loaded())
    for (std::size_t i = 0; i < other->kernels.size(); ++i)
      for (std::size_t k = 0; k < plugin->kernels.size(); ++k)
        if (other->id(i) == plugin->id(k))
          return fail({StatusCode::invalid_argument,
                       fmt::format("--plugin {}: {} is also in {}; rename one of the kernels", file,
                                   plugin->id(k), other->file)});
  for (std::size_t i = 0; ids != nullptr && i < plugin->kernels.size(); ++i)
    ids->push_back(plugin->id(i));
  loaded().push_back(std::move(plugin));
  return std::nullopt;
}

std::optional<PluginFailure> load_plugins(const PluginOptions& options) {
  for (const std::string& file : options.files)
    if (auto failure = load_plugin(file, options)) return failure;
  return std::nullopt;
}

void unload_plugins(std::string_view prefix) {
  std::erase_if(loaded(), [&](const auto& plugin) { return plugin->prefix == prefix; });
}

std::vector<PluginKernelRow> plugin_kernels() {
  std::vector<PluginKernelRow> rows;
  for (const auto& plugin : loaded())
    for (std::size_t i = 0; i < plugin->kernels.size(); ++i)
      rows.push_back(
          {plugin->id(i), plugin->kernels[i].idea, plugin->file, plugin->kernels[i].device});
  return rows;
}

std::unique_ptr<Subject> make_plugin_subject(std::string_view id) {
  for (const auto& plugin : loaded())
    for (std::size_t i = 0; i < plugin->kernels.size(); ++i)
      if (plugin->id(i) == id) return std::make_unique<PluginSubject>(plugin, i);
  return nullptr;
}

std::unique_ptr<Subject> make_plugin_twin(std::string_view id) {
  for (const auto& plugin : loaded())
    for (std::size_t i = 0; i < plugin->kernels.size(); ++i) {
      if (plugin->id(i) != id || plugin->kernels[i].device != DeviceKind::cpu) continue;
      auto twin = std::make_shared<Plugin>();
      twin->file = plugin->file;
      twin->library = plugin->library;
      twin->prefix = plugin->prefix;
      twin->name = plugin->name;
      twin->sha256 = plugin->sha256;
      twin->kernels = plugin->kernels;
      twin->timeout = plugin->timeout;
      twin->memory = plugin->memory;
      twin->registered_by = plugin->registered_by;
      twin->condemned = plugin->condemned;
      return std::make_unique<PluginSubject>(std::move(twin), i);
    }
  return nullptr;
}

fs::path plugin_library(std::string_view id) {
  for (const auto& plugin : loaded())
    for (std::size_t i = 0; i < plugin->kernels.size(); ++i)
      if (plugin->id(i) == id) return plugin->library;
  return {};
}

std::optional<std::string> plugin_compiler_log(std::string_view id) {
  for (const auto& plugin : loaded())
    for (std::size_t i = 0; i < plugin->kernels.size(); ++i)
      if (plugin->id(i) == id && plugin->compiled) return plugin->compiled->log;
  return std::nullopt;
}

bool any_cuda_plugin() {
  return std::any_of(loaded().begin(), loaded().end(), [](const auto& plugin) {
    return !plugin->kernels.empty() && plugin->kernels.front().device == DeviceKind::cuda;
  });
}

void condemn_plugin(const std::string& id, const std::string& reason) {
  for (const auto& plugin : loaded())
    for (std::size_t i = 0; i < plugin->kernels.size(); ++i)
      if (plugin->id(i) == id) plugin->condemned[id] = reason;
}

nlohmann::json plugins_json() {
  nlohmann::json out = nlohmann::json::array();
  for (const auto& plugin : loaded()) {
    nlohmann::json entry = {{"file", clean_text(plugin->file)},
                            {"name", plugin->name},
                            {"sha256", plugin->sha256},
                            {"confined", plugin->confined},
                            {"kernels", nlohmann::json::array()}};
    for (std::size_t i = 0; i < plugin->kernels.size(); ++i)
      entry["kernels"].push_back({{"id", plugin->id(i)},
                                  {"idea", plugin->kernels[i].idea},
                                  {"device", name_of(plugin->kernels[i].device)}});
    if (plugin->compiled)
      entry["compiled"] = {{"compiler", plugin->compiled->compiler},
                           {"version", plugin->compiled->version},
                           {"command", plugin->compiled->command},
                           {"source_sha256", plugin->compiled->source_sha256}};
    out.push_back(std::move(entry));
  }
  return out;
}

std::string plugins_digest() {
  std::string text;
  for (const auto& plugin : loaded()) {
    // A compiler need not write the same bytes twice.
    text += plugin->compiled ? plugin->compiled->key : plugin->sha256;
    for (std::size_t i = 0; i < plugin->kernels.size(); ++i)
      text += fmt::format(" {}", plugin->id(i));
    text.push_back('\n');
  }
  return text.empty() ? "" : sha256_hex(text);
}

}  // namespace greenfast::workbench
