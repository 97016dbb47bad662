// batch_invariant as a property: a sequence's bits are the same alone, in its batch, and with its
// pages anywhere in the pool.
#pragma once

#include <optional>
#include <string>

#include "workbench/cases/workload.hpp"
#include "workbench/device/device.hpp"

namespace greenfast::fuzz {

/// What differs, in words; nothing where no bit does, or where the variant refuses the problem.
std::optional<std::string> batch_difference(workbench::Device& device, const std::string& variant,
                                            const workbench::Case& test,
                                            const workbench::Inputs& inputs);

}  // namespace greenfast::fuzz
