// What lies in a block's shared memory, for Plan::shared.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include <greenfast/attention.hpp>

namespace greenfast::cuda {

/// `parts` without the empty ones, and behind them what is left of `total` as `rest`: the gaps that
/// alignment leaves.
inline std::vector<SharedBuffer> shared_buffers(std::int64_t total,
                                                std::initializer_list<SharedBuffer> parts,
                                                const char* rest = "alignment") {
  std::vector<SharedBuffer> out;
  for (const SharedBuffer& part : parts) {
    total -= part.bytes;
    if (part.bytes != 0) out.push_back(part);
  }
  if (total != 0) out.push_back({rest, total});
  return out;
}

}  // namespace greenfast::cuda
