#include "core/log.hpp"

#include <atomic>
#include <mutex>

#include <greenfast/attention.hpp>

namespace greenfast {
namespace {

std::atomic<bool> enabled{false};
std::mutex sink_mutex;
LogCallback sink = nullptr;
void* sink_user = nullptr;

}  // namespace

void set_log_callback(LogCallback callback, void* user) noexcept {
  const std::lock_guard lock(sink_mutex);
  sink = callback;
  sink_user = user;
  enabled.store(callback != nullptr, std::memory_order_relaxed);
}

namespace core {

bool logging() noexcept { return enabled.load(std::memory_order_relaxed); }

void log(const std::string& message) {
  LogCallback callback = nullptr;
  void* user = nullptr;
  {
    const std::lock_guard lock(sink_mutex);
    callback = sink;
    user = sink_user;
  }
  // Outside the lock, so that a callback may itself change the callback.
  if (callback != nullptr) callback(message.c_str(), user);
}

}  // namespace core
}  // namespace greenfast
