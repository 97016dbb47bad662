// Which backend serves a kind of device, and what is known of devices that are not here.
#pragma once

#include "core/backend.hpp"

namespace greenfast::api {

/// The backend of a kind. One without CUDA in the build exists too: it has no device and says why.
/// Null for a value outside the enumeration.
const core::Backend* backend_of(DeviceKind kind) noexcept;

}  // namespace greenfast::api
