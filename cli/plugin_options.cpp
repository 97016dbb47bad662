#include "cli/plugin_options.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "cli/command.hpp"
#include "cli/interrupt.hpp"
#include "workbench/base/isolate.hpp"
#include "workbench/base/terminal.hpp"

namespace greenfast::cli {
namespace {

/// An int that a child's end does not take along.
class SharedInt {
 public:
  SharedInt()
      : value_(static_cast<int*>(mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE,
                                      MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    if (value_ == MAP_FAILED) throw Failure(workbench::kInternal, "no shared memory");
  }
  ~SharedInt() { munmap(value_, sizeof(int)); }
  SharedInt(const SharedInt&) = delete;
  SharedInt& operator=(const SharedInt&) = delete;
  int& operator*() { return *value_; }

 private:
  int* value_;
};

/// The plugin's kernel that was at work, or the only one there is while several subjects are.
std::string plugin_at_work(const std::string& subject, bool any) {
  const auto rows = workbench::plugin_kernels();
  for (const workbench::PluginKernelRow& row : rows)
    if (row.id == subject) return row.id;
  return any && rows.size() == 1 ? rows[0].id : std::string();
}

/// Of a step that does more than one call.
constexpr double kStepFactor = 5;

}  // namespace

void PluginArguments::define(OptionSet& set) {
  set.repeated("--plugin", &files, "FILE",
               "A kernel of yours as plugin:NAME: a shared object (.so), or a source (.cu, .c, "
               ".cpp) to compile; repeatable; what --variants is by default; see docs/plugins.md");
  set.text("--plugin-flags", &flags, "FLAGS", "More flags for the compiler of --plugin sources");
  set.number("--plugin-timeout", &timeout, "SECONDS",
             "Of one call of a plugin; longer is a hang (default: 60)");
  set.number("--plugin-memory", &memory, "GIB",
             "What a CPU plugin's process may allocate (default: 8)");
}

workbench::PluginOptions PluginArguments::options() const {
  workbench::PluginOptions options;
  options.files = files;
  options.compile.flags = flags;
  options.compile.stop = interrupted;
  options.timeout_seconds = timeout;
  options.memory_gib = memory;
  return options;
}

void PluginArguments::load() const {
  for (const std::string& file : files)
    if (!workbench::is_plugin_source(file) && !file.ends_with(".so"))
      throw Failure(
          workbench::kUsage,
          fmt::format("'{}': is no plugin (.c, .cc, .cpp, .cxx, .cu, .so); a variant is named "
                      "with --variants, shapes with --shapes",
                      file));
  if (!(timeout > 0)) throw Failure(workbench::kUsage, "--plugin-timeout: more than 0 seconds");
  if (!(memory > 0)) throw Failure(workbench::kUsage, "--plugin-memory: more than 0 GiB");
  catch_interrupts();  // so that a compiler and its folder end with this command
  const auto failure = workbench::load_plugins(options());
  if (interrupted())
    throw Failure(workbench::kInterrupted, "interrupted; nothing was measured yet");
  if (failure)
    throw Failure(failure->crashed ? static_cast<int>(workbench::kCrash)
                                   : workbench::exit_code_of(failure->status.code()),
                  failure->status.message());
}

int run_isolated(double timeout, const std::function<int(workbench::Activity*)>& body,
                 const char* nothing_kept) {
  if (!workbench::any_cuda_plugin()) return body(nullptr);
  SharedInt code, stop_asked;
  catch_interrupts();
  // Every run condemns one kernel more, so this ends.
  for (std::size_t attempt = 0;; ++attempt) {
    *code = workbench::kInternal;
    workbench::ChildLimits limits;
    limits.stall_seconds = [&](const std::string& subject) {
      return plugin_at_work(subject, false).empty() ? 0.0 : kStepFactor * timeout;
    };
    // The child is in a group of its own: it learns of Ctrl-C from here, and ends in order.
    bool passed_on = false;
    int looks = 0;  // ten in a second
    limits.stop = [&] {
      if (interrupted() && !passed_on) *stop_asked = passed_on = true;
      return passed_on && nothing_kept != nullptr && ++looks > 5;
    };
    const auto end = value_or_fail(workbench::run_in_child(
        [&](workbench::Activity& activity) {
          watch_for_interrupt(&*stop_asked);
          try {
            *code = body(&activity);
          } catch (const Failure& failure) {
            workbench::say(stderr, fmt::format("greenfast: {}\n", failure.what()));
            *code = failure.code();
          }
        },
        limits));
    if (end.how == workbench::ChildEnd::How::finished) return *code;
    if (end.how == workbench::ChildEnd::How::stopped)
      throw Failure(workbench::kInterrupted, fmt::format("interrupted; {}", nothing_kept));
    if (end.how == workbench::ChildEnd::How::failed)
      throw Failure(workbench::kInternal, end.detail);
    const std::string blamed = plugin_at_work(end.subject, end.actor == workbench::Actor::both);
    std::string reason =
        !end.blame.empty()
            ? end.blame
            : fmt::format("{}: {}, while: {}",
                          end.how == workbench::ChildEnd::How::timed_out ? "hung" : "crashed",
                          end.detail, end.activity);
    if (blamed.empty() || attempt > workbench::plugin_kernels().size())
      throw Failure(workbench::kCrash, reason);
    workbench::say(stderr, fmt::format("greenfast: {} {}; once more without it\n", blamed, reason));
    workbench::condemn_plugin(blamed, reason);
  }
}

void leave_broken_context(workbench::Activity& activity, const std::string& blamed,
                          const std::string& reason) {
  activity.blame(blamed, reason);
  std::fflush(nullptr);
  std::_Exit(1);
}

}  // namespace greenfast::cli
