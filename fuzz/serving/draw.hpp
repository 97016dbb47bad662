// One random serving problem, as the text that the command takes, so that a finding is a command.
#pragma once

#include <cstdint>
#include <string>

#include "workbench/cases/workload.hpp"

namespace greenfast::fuzz {

struct Drawn {
  workbench::Case test;
  std::string options;  // of `greenfast check`: shape, dtype, layout, ...
};

/// A pure function of both; passes check().
Drawn draw(std::uint64_t seed, std::uint64_t number);

}  // namespace greenfast::fuzz
