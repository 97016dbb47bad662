#include "workbench/subjects/plugin/serve.hpp"

#include <fmt/format.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>

#include <greenfast/c_types.hpp>

#include "workbench/subjects/plugin/channel.hpp"
#include "workbench/subjects/plugin/confine.hpp"
#include "workbench/subjects/plugin/loaded_plugin.hpp"

namespace greenfast::workbench {
namespace channel {

void wait_while(const std::atomic<std::uint32_t>& word, std::uint32_t seen, double seconds) {
  timespec limit{};
  limit.tv_sec = static_cast<time_t>(seconds);
  limit.tv_nsec = static_cast<long>((seconds - std::floor(seconds)) * 1e9);
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void wake(const std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

}  // namespace channel

namespace {

using channel::Control;
using channel::Request;

class Host {
 public:
  Host(Control* control, std::byte* arena, std::string path)
      : control_(control), arena_(arena), path_(std::move(path)) {}

  int serve() {
    std::uint32_t seen = 0;
    for (;;) {
      while (control_->asked.load(std::memory_order_acquire) == seen)
        channel::wait_while(control_->asked, seen, 3600);
      seen = control_->asked.load(std::memory_order_acquire);
      if (control_->request == Request::quit) return 0;
      answer();
      control_->answered.store(seen, std::memory_order_release);
      channel::wake(control_->answered);
    }
  }

 private:
  void answer() {
    control_->value = 0;
    Status status;
    if (control_->request == Request::none) {
      // Nothing is loaded yet: the command looks at what this process is.
    } else if (control_->request == Request::describe) {
      status = describe();
    } else if (!library_) {
      status = {StatusCode::internal, "no plugin is loaded"};
    } else {
      // A copy: what the plugin scribbles over in the block cannot change the call it is in.
      const gf_problem problem = control_->problem;
      const std::size_t kernel = control_->kernel;
      switch (control_->request) {
        case Request::supports:
          if (const auto why = library_->refusal(kernel, problem))
            status = {StatusCode::unsupported, *why};
          break;
        case Request::workspace:
          control_->value = library_->workspace_bytes(kernel, problem);
          break;
        case Request::prepare:
          populate();
          status = library_->prepare(kernel, problem);
          break;
        case Request::launch:
          status = launch(problem, kernel);
          break;
        default:
          break;
      }
    }
    control_->status = static_cast<std::int32_t>(status.code());
    const std::size_t length = std::min(status.message().size(), channel::kTextBytes - 1);
    std::memcpy(control_->text, status.message().data(), length);
    control_->text[length] = 0;
  }

  Status describe() {
    auto library = PluginLibrary::load(path_);
    if (!library) return library.status();
    library_ = std::move(*library);
    std::string text = library_->name();
    std::replace(text.begin(), text.end(), '\n', ' ');  // a line is a kernel
    text += '\n';
    for (const PluginKernelInfo& info : library_->kernels()) {
      std::string idea = info.idea;
      std::replace(idea.begin(), idea.end(), '\n', ' ');
      text += fmt::format("{}\t{}\t{}\n", name_of(info.device), info.name, idea);
    }
    const std::size_t length = std::min(text.size(), channel::kDescriptionBytes - 1);
    std::memcpy(control_->description, text.data(), length);
    control_->description[length] = 0;
    return {};
  }

  /// The arena's pages into this process's tables, so that no timed call meets them first.
  void populate() {
    constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, Linux 5.14
    const std::size_t used = std::min(control_->arena_used, control_->arena_bytes);
    bool done = true;
    for (std::size_t at = 0; done && at < used; at += kMostPopulated)
      done = madvise(arena_ + at, std::min<std::size_t>(kMostPopulated, used - at),
                     kPopulateWrite) == 0;
    if (done) return;
    const volatile std::byte* bytes = arena_;
    for (std::size_t at = 0; at < used; at += 4096) (void)bytes[at];
  }

  void* at(std::uint64_t offset) const {
    return offset == channel::kNull ? nullptr : arena_ + offset;
  }

  Status launch(const gf_problem& problem, std::size_t kernel) {
    const std::uint32_t sets = std::clamp<std::uint32_t>(
        control_->sets, 1, static_cast<std::uint32_t>(channel::kMostCalls));
    const std::uint32_t count = control_->count;
    void* const workspace = at(control_->workspace);
    const std::size_t workspace_bytes = control_->workspace_bytes;
    for (std::uint32_t i = 0; i < count; ++i) {
      const channel::Call& call = control_->calls[i % sets];
      Tensors tensors;
      for (std::size_t id = 0; id < kOperands; ++id)
        set_data(tensors, static_cast<OperandId>(id), at(call[id]));
      if (Status status =
              library_->launch(kernel, problem, to_c(tensors), workspace, workspace_bytes, nullptr);
          !status)
        return status;
    }
    return {};
  }

  Control* control_;
  std::byte* arena_;
  std::string path_;
  std::optional<PluginLibrary> library_;
};

}  // namespace

int serve_plugin(const std::string& path) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  void* block = mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED,
                     channel::kControlDescriptor, 0);
  if (block == MAP_FAILED) return 1;
  auto* control = static_cast<Control*>(block);
  // The second condition covers a parent that died before the signal was asked for.
  if (control->magic != channel::kMagic || control->parent != getppid()) return 1;
  void* arena = mmap(nullptr, control->arena_bytes, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_NORESERVE, channel::kArenaDescriptor, 0);
  if (arena == MAP_FAILED) return 1;
  close(channel::kControlDescriptor);
  close(channel::kArenaDescriptor);
  // No core files from a crash that is a verdict, and no more memory than it was given.
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
  if (control->memory_bytes != 0) {
    const rlimit limit{control->arena_bytes + control->memory_bytes,
                       control->arena_bytes + control->memory_bytes};
    setrlimit(RLIMIT_AS, &limit);
  }
  // A line that a kernel prints is there when its call returns.
  setvbuf(stdout, nullptr, _IOLBF, 0);
  const bool kept_to_fewer = keep_to(control->threads);
  control->secret[channel::kTextBytes - 1] = 0;
  control->confined = confine(control->secret, kept_to_fewer);
  return Host(control, static_cast<std::byte*>(arena), path).serve();
}

}  // namespace greenfast::workbench
