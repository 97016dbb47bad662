// Which device and which variants a command works on.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "workbench/device/device.hpp"
#include "workbench/subjects/subject.hpp"

namespace greenfast::cli {

struct Selected {
  std::unique_ptr<workbench::Device> device;
  std::vector<std::unique_ptr<workbench::Subject>> subjects;
  std::vector<std::string> notes;  ///< NO_OP: toggles that changed nothing, one line each
};

/// Opens the device ("auto", "cpu", "cuda") and finds the subjects for a --variants selector and
/// --set NAME=VALUE toggles. An empty selector names the kernels of the plugins loaded, and without
/// plugins it is every variant built for the device. "auto" is the device of the variants named,
/// else a GPU if there is one and something is built for it, else the CPU. A toggle given with
/// --set, or by its exact name in the environment, turns a variant named by its id into its built
/// sibling with that value, and picks among the others those that have it. A combination without a
/// meaning is refused with the reason, one that is not built with the nearest that is. Throws
/// Failure.
Selected select_subjects(const std::string& device, const std::string& selector,
                         const std::vector<std::string>& set);

}  // namespace greenfast::cli
