// The workbench's own threads, apart from the library's pool.
#pragma once

#include <cstdint>
#include <functional>

namespace greenfast::workbench {

/// Threads parallel_for may use: the affinity mask's size.
int worker_count();

/// Calls body(index) for 0 <= index < count on up to worker_count() threads and returns when all
/// are done. Rethrows the first exception.
void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& body);

}  // namespace greenfast::workbench
