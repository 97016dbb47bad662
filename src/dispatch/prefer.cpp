// Who wins where. Times are microseconds a call in a graph, fp16, full / causal, on one H200,
// 2026-11-22; more rows and the command in docs/kernels/sm90.md, "Which kernel wins where".
//
//   B,H,S,D        small          prefill        mma            chosen
//   1,8,512,64     3.36 / 3.45    4.92 / 4.85    9.46 / 9.59    small
//   1,8,1024,64    7.55 / 7.29    7.63 / 7.09    –              small
//   1,4,2048,64    12.48 / 12.07  11.79 / 10.87  –              prefill
//   4,8,256,64     4.28 / 4.30    3.95 / 3.84    –              prefill
//   1,8,1024,128   13.13 / 13.02  13.99 / 13.04  –              small
//   1,4,2048,128   20.6 / 20.1    23.2 / 22.1    –              small
//   4,8,256,128    6.83 / 6.81    6.45 / 7.02    –              prefill
//   8,16,128,128   –              5.54 / 5.27    9.46 / 8.56    prefill
//   8,16,2048,128  –              374 / 220      890 / 498      prefill
#include "dispatch/prefer.hpp"

#include <algorithm>
#include <cstdint>

#include "core/arithmetic.hpp"

namespace greenfast::dispatch::prefer {
namespace {

// Best last. A variant that takes less than another and is faster where it does stands above it.
enum Rank : int {
  kReference = 10,  // right, and slow by intent
  kAnything = 100,  // whatever the others leave
  kCpu = 200,       // the CPU's only fast one
  kBehindPrefill = 210,
  kPrefill = 220,
  kSmall = 230,
};

// Tiles of `rows` queries over all heads, as far as the choice may know of the batch.
std::int64_t tiles(const Problem& p, core::Choice choice, std::int64_t rows) {
  return core::ceil_div(p.seq_q, rows) * p.heads_q * (choice.batch_invariant ? 1 : p.batch);
}

// Upper bound of the keys that a tile of `rows` queries sees.
std::int64_t tile_keys(const Problem& p, std::int64_t rows) {
  const auto& [left, right, alignment] = p.mask;
  const std::int64_t shift = alignment == Alignment::bottom_right ? p.seq_kv - p.seq_q : 0;
  const std::int64_t first = left < 0 ? 0 : std::clamp<std::int64_t>(shift - left, 0, p.seq_kv);
  const std::int64_t end =
      right < 0 ? p.seq_kv : std::clamp<std::int64_t>(shift + p.seq_q + right, 0, p.seq_kv);
  const std::int64_t seen = std::max<std::int64_t>(end - first, 0);
  return left < 0 || right < 0 ? seen : std::min(seen, left + right + rows);
}

// cuda.sm90.small gives a tile of 64 queries to a cluster of two blocks. At most one block an SM (at
// D 64 without a loop, up to 512 keys, one and a half) was faster than prefill in all that was
// measured; two where prefill, whose tiles have 128 queries, has long rows of keys for half the
// machine or less.
bool small_beats_prefill(const Problem& p, const DeviceFacts& facts, core::Choice choice) {
  const bool wide = p.head_dim > 64;
  const std::int64_t machine = facts.multiprocessors;
  const std::int64_t keys = tile_keys(p, 64);
  const bool two_fit = !wide && keys <= 512;
  if (2 * 2 * tiles(p, choice, 64) <= (two_fit ? 3 : 2) * machine) return true;
  return 2 * tiles(p, choice, 128) <= machine && keys >= 512 && (wide || keys <= 1024);
}

}  // namespace

core::Preference cpu_naive(const Problem&, const DeviceFacts&, core::Choice) {
  return {kReference};
}
core::Preference cpu_flash(const Problem&, const DeviceFacts&, core::Choice) { return {kCpu}; }
core::Preference cuda_sm80_mma(const Problem&, const DeviceFacts&, core::Choice) {
  return {kAnything};
}
core::Preference cuda_sm90_prefill(const Problem&, const DeviceFacts&, core::Choice) {
  return {kPrefill};
}
core::Preference cuda_sm90_small(const Problem& p, const DeviceFacts& facts, core::Choice choice) {
  if (small_beats_prefill(p, facts, choice)) return {kSmall};
  return {kBehindPrefill, "behind the prefill kernel, which is faster at these lengths"};
}

}  // namespace greenfast::dispatch::prefer
