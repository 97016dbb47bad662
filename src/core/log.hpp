// Where the library's rare messages go: nowhere, unless the caller has set a callback.
#pragma once

#include <string>

namespace greenfast::core {

/// Whether anybody listens; ask before composing a message.
bool logging() noexcept;
/// Hands one line to the callback.
void log(const std::string& message);

}  // namespace greenfast::core
