// Where the sequences of a call lie and what their rows see, read from the call's arrays: what
// core::sequence_of says on the host. Host and device run the same functions, so that a test
// without a GPU compares them with the CPU's.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/host_device.hpp"

namespace greenfast::cuda {

/// Arrays of the call, null where a problem has none, and what no number in them may exceed.
struct SequenceArrays {
  const std::int32_t *cu_q = nullptr, *cu_kv = nullptr;  // [B + 1]
  const std::int32_t *used_q = nullptr, *used_kv = nullptr;
  const std::int32_t *kv_start = nullptr, *kv_index = nullptr;
  const std::int32_t* page_table = nullptr;
  std::int64_t page_row = 0;  // entries from one sequence to the next
  std::int32_t page_size = 1, pages = 0;
  std::int32_t seq_q = 0, seq_kv = 0;  // of the longest
  std::int32_t total_q = 0, total_kv = 0, kv_rows = 0;
  // Of the mask: negative for no bound, at most Band::kFar.
  std::int32_t left = -1, right = -1;
  bool bottom_right = false;
  std::int32_t chunk = 0;  // at most Band::kFar
};

/// What the rows of one sequence see. first and end never fall from a query to the next, so that
/// the ends of a tile speak for it; a query with end <= first sees nothing.
struct Seen {
  std::int32_t below = 0, above = 0, keys = 0;
  std::int32_t start = 0, shift = 0, chunk = 0;

  /// The first key of the chunk of a query's position; positions before start are in chunks of
  /// none.
  GREENFAST_HOST_DEVICE std::int32_t chunk_of(std::int32_t query) const {
    const std::int32_t position = query + shift - start;
    const std::int32_t down = position < 0 ? chunk - 1 : 0;
    return start + (position - down) / chunk * chunk;
  }
  GREENFAST_HOST_DEVICE std::int32_t first(std::int32_t query) const {
    std::int32_t least = query + below > start ? query + below : start;
    if (chunk > 0 && chunk_of(query) > least) least = chunk_of(query);
    return least;
  }
  GREENFAST_HOST_DEVICE std::int32_t end(std::int32_t query) const {
    const std::int32_t most = query + above < keys - 1 ? query + above + 1 : keys;
    if (chunk == 0 || most - chunk_of(query) <= chunk) return most;
    return chunk_of(query) + chunk;
  }
};

/// One entry of the batch.
struct Sequence {
  Seen seen;
  std::int32_t seq_q = 0;
  std::int32_t q_batch = 0, kv_batch = 0;
  std::int32_t q_row = 0, kv_row = 0;   // where its first row and its first key lie
  const std::int32_t* pages = nullptr;  // its row of the page table
};

/// Every number is clamped to what the host knows: a call with wrong arrays computes something
/// else, and touches nothing that is not its own.
GREENFAST_HOST_DEVICE inline Sequence sequence_of(const SequenceArrays& a, std::int32_t batch) {
  const auto within = [](std::int32_t value, std::int32_t most) {
    return value < 0 || most < 0 ? 0 : value < most ? value : most;
  };
  Sequence s;
  s.seq_q = a.seq_q;
  s.q_batch = s.kv_batch = batch;
  std::int32_t keys = a.seq_kv, room_q = a.seq_q, room_kv = a.seq_kv;
  const auto packed = [&](const std::int32_t* cu, std::int32_t total, std::int32_t& row,
                          std::int32_t& length, std::int32_t& room) {
    row = within(cu[batch], total);
    if (total - row < room) room = total - row;
    length = cu[batch + 1] < row ? 0 : within(cu[batch + 1] - row, room);
  };
  if (a.cu_q != nullptr) {
    s.q_batch = 0;
    packed(a.cu_q, a.total_q, s.q_row, s.seq_q, room_q);
  }
  if (a.used_q != nullptr) s.seq_q = within(a.used_q[batch], room_q);
  if (a.cu_kv != nullptr) {
    s.kv_batch = 0;
    packed(a.cu_kv, a.total_kv, s.kv_row, keys, room_kv);
  }
  if (a.used_kv != nullptr) keys = within(a.used_kv[batch], room_kv);
  if (a.kv_index != nullptr) s.kv_batch = within(a.kv_index[batch], a.kv_rows - 1);
  if (a.page_table != nullptr) {
    s.kv_batch = 0;
    s.pages = a.page_table + batch * a.page_row;
  }
  constexpr std::int32_t kFar = std::int32_t{1} << 30;
  s.seen.keys = keys;
  s.seen.shift = a.bottom_right ? keys - s.seq_q : 0;
  const std::int32_t below = s.seen.shift - a.left, above = s.seen.shift + a.right;
  s.seen.below = a.left < 0 || below < -kFar ? -kFar : below;
  s.seen.above = a.right < 0 || above > kFar ? kFar : above;
  s.seen.start = a.kv_start != nullptr ? within(a.kv_start[batch], keys) : 0;
  s.seen.chunk = a.chunk;
  return s;
}

}  // namespace greenfast::cuda
