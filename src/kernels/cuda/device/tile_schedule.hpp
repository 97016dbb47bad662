// Which CTA of a persistent kernel does which tiles of queries, and in what order: dealt by the
// host's numbers alone, so that a test can deal them without a GPU.
#pragma once

#include <bit>
#include <cstdint>

#include <greenfast/arithmetic.hpp>

#include "kernels/cuda/device/host_device.hpp"

namespace greenfast::cuda {

/// Division by a number that the host knows, without a division: n / d for 0 <= n < 2^31 (Granlund
/// and Montgomery, "Division by Invariant Integers using Multiplication", 1994).
struct Divisor {
  std::uint32_t multiplier = 1u << 31, shift = 0;  // ceil(2^(31 + shift) / d), ceil(log2(d))

  static constexpr Divisor of(std::int32_t d) {
    const auto shift =
        static_cast<std::uint32_t>(std::bit_width(static_cast<std::uint32_t>(d - 1)));
    const std::uint64_t power = std::uint64_t{1} << (31 + shift);
    const auto divisor = static_cast<std::uint64_t>(d);
    return {static_cast<std::uint32_t>(ceil_div(power, divisor)), shift};
  }
};
GREENFAST_HOST_DEVICE inline std::int32_t operator/(std::int32_t n, Divisor d) {
  const std::uint64_t product = std::uint64_t{2} * static_cast<std::uint32_t>(n) * d.multiplier;
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(product >> 32) >> d.shift);
}

/// In which order the tiles are dealt to the CTAs.
enum class TileOrder : std::int32_t {
  by_head,   // head after head: tiles of equal work
  balanced,  // some rounds of a long and a short tile, head after head; the rest longest first
};

/// Who does which tile, in what order.
struct TileSchedule {
  TileOrder order = TileOrder::by_head;
  std::int32_t tiles = 0;      // of a head
  std::int32_t heads = 0;      // of a batch entry
  std::int32_t all_heads = 0;  // batch * heads
  std::int32_t ctas = 0;
  std::int32_t paired_rounds = 0;  // of TileOrder::balanced: two tiles for every CTA
  bool longest_is_last = true;     // of a head's tiles
  // In paired rounds the pairs of all heads before `cut` are done, and of head `cut` the first
  // `paired`. After it come `whole` heads of which only a middle tile may be done.
  std::int32_t cut = 0, paired = 0, whole = 0;
  std::int32_t whole_rows = 0, last_row = 0;  // of the tiles that are left then, ctas a row
  Divisor by_tiles, by_half, by_heads, by_ctas, by_whole, by_whole_and_cut, by_all_heads;
};

/// `paired_rounds` leaves at least one pair: it is 0, or paired_rounds * ctas is below
/// all_heads * (tiles / 2).
constexpr TileSchedule make_schedule(TileOrder order, std::int32_t tiles, std::int32_t heads,
                                     std::int32_t all_heads, std::int32_t ctas,
                                     std::int32_t paired_rounds, bool longest_is_last) {
  TileSchedule s;
  s.order = order;
  s.tiles = tiles;
  s.heads = heads;
  s.all_heads = all_heads;
  s.ctas = ctas;
  s.paired_rounds = paired_rounds;
  s.longest_is_last = longest_is_last;
  s.by_heads = Divisor::of(heads);
  s.by_ctas = Divisor::of(ctas);
  if (order == TileOrder::by_head) {
    s.by_tiles = Divisor::of(tiles);
    return s;
  }
  const std::int32_t half = tiles / 2, done = paired_rounds * ctas;
  s.cut = half > 0 ? done / half : 0;
  s.paired = done - s.cut * half;
  s.whole = all_heads - s.cut - 1;
  const std::int32_t left = all_heads * tiles - 2 * done;
  s.whole_rows = left / ctas;
  s.last_row = left - s.whole_rows * ctas;
  s.by_half = Divisor::of(half > 0 ? half : 1);
  s.by_whole = Divisor::of(s.whole > 0 ? s.whole : 1);
  s.by_whole_and_cut = Divisor::of(s.whole + 1);
  s.by_all_heads = Divisor::of(all_heads);
  return s;
}

struct Tile {
  std::int32_t index;  // of the head's tiles
  std::int32_t head, batch;
};

/// The step-th tile of this CTA, or false: a pure function of the CTA's index. There is no counter
/// in memory, so calls may overlap on any streams, and the same call does the same work.
GREENFAST_HOST_DEVICE inline bool tile_of(const TileSchedule& s, int cta, int step, Tile& tile) {
  const int tiles = s.tiles, half = tiles / 2;
  // CTAs change places from round to round. Where the tiles of a head divide the number of CTAs,
  // one of them would otherwise get the short last tile of every head, and another never.
  const auto place = [&](int round) {
    const int turned = cta + round;
    return round * s.ctas + turned - turned / s.by_ctas * s.ctas;
  };
  int rank, head;  // rank 0 is the head's longest tile
  if (s.order == TileOrder::by_head) {
    const int position = place(step);
    if (position >= s.all_heads * tiles) return false;
    head = position / s.by_tiles;
    rank = position - head * tiles;
  } else if (step < 2 * s.paired_rounds) {
    // The longest tile of a head and the shortest, the next and the last but one, ...
    const int pair = place(step >> 1);
    head = pair / s.by_half;
    rank = pair - head * half;
    if (step & 1) rank = tiles - 1 - rank;
  } else {
    // The rest, longest first, dealt in rows; rows run forward and back as the Thue-Morse sequence,
    // which evens out sums of falling numbers. A CTA works from its last row to its first: what it
    // does last should be long, because the ends of short tiles leave the tensor cores waiting.
    const auto column = [&](int row) {
      int back = row ^ (row >> 16);
      for (int shift = 8; shift > 0; shift /= 2) back ^= back >> shift;
      return back & 1 ? s.ctas - 1 - cta : cta;  // parity of the ones in `row`
    };
    const int rows = s.whole_rows + (column(s.whole_rows) < s.last_row ? 1 : 0);
    const int row = rows - 1 - (step - 2 * s.paired_rounds);
    if (row < 0) return false;
    int position = row * s.ctas + column(row);
    const int outer = s.whole * s.paired, inner = (s.whole + 1) * (half - s.paired);
    const int middle = (tiles & 1) * s.all_heads;
    int in_rank = s.whole;  // tiles of the same rank
    Divisor by_rank = s.by_whole;
    if (position < outer) {
      rank = 0;
    } else if (position -= outer; position < inner) {
      rank = s.paired;
      in_rank = s.whole + 1;
      by_rank = s.by_whole_and_cut;
    } else if (position -= inner; position < middle) {
      rank = half;
      in_rank = s.all_heads;
      by_rank = s.by_all_heads;
    } else if (position -= middle; position < inner) {
      rank = tiles - half;
      in_rank = s.whole + 1;
      by_rank = s.by_whole_and_cut;
    } else {
      position -= inner;
      rank = tiles - s.paired;
    }
    const int ranks = position / by_rank;
    rank += ranks;
    // Whole heads, the cut one, those before it.
    head = s.cut + 1 + (position - ranks * in_rank);
    if (head >= s.all_heads) head = head == s.all_heads ? s.cut : head - s.all_heads - 1;
  }
  tile.index = s.longest_is_last ? tiles - 1 - rank : rank;
  tile.batch = head / s.by_heads;
  tile.head = head - tile.batch * s.heads;
  return true;
}

}  // namespace greenfast::cuda
