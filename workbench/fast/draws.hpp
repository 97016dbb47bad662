// Numbers that nobody foresees.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "workbench/base/sha256.hpp"

namespace greenfast::workbench {

/// From one key, numbers of which the earlier ones do not tell the next. Inputs show the signs that
/// were drawn, and whoever has 312 outputs of a Mersenne Twister knows all that follow: which slots
/// and which rows will be looked at.
class Draws {
 public:
  explicit Draws(std::uint64_t key) : state_{key, 0} {}
  std::uint64_t operator()() {
    Sha256 hash;
    hash.update(state_.data(), sizeof state_);
    ++state_[1];
    const auto digest = hash.finish();
    std::uint64_t draw = 0;
    std::memcpy(&draw, digest.data(), sizeof draw);
    return draw;
  }

 private:
  std::array<std::uint64_t, 2> state_;
};

}  // namespace greenfast::workbench
