// Sequences of their own lengths in cuda.sm90.prefill's loop: which tiles a CTA works on, and where
// their rows and keys lie. Host and device run the same functions, so that a test without a GPU
// walks every CTA.
#pragma once

#include <cstdint>
#include <numeric>
#include <type_traits>

#include <greenfast/arithmetic.hpp>

#include "kernels/cuda/device/host_device.hpp"
#include "kernels/cuda/device/mask.hpp"
#include "kernels/cuda/device/sequences.hpp"
#include "kernels/cuda/device/tile_schedule.hpp"

namespace greenfast::cuda::prefill {

/// Rows of a ragged tensor map (device/ragged_map.hpp): what lies at or beyond this coordinate is
/// outside, whatever the tensor holds there.
inline constexpr std::int32_t kRaggedRows = std::int32_t{1} << 30;

/// Where row `row` of `length` rows lies in a ragged map, the first of them being row `first` of the
/// tensor. Rows from `length` on read as zeros and are not written.
struct RaggedPlace {
  std::int32_t row, end;
};
GREENFAST_HOST_DEVICE inline RaggedPlace ragged_place(std::int32_t first, std::int32_t length,
                                                      std::int32_t row) {
  return {kRaggedRows - length + row, first + length};
}

/// What a tile must know of its sequence: Params has members of the same names for problems whose
/// sequences are all alike.
struct Extent {
  Band band;  // of the keys that some row of the sequence sees
  std::int32_t seq_q = 0;
  std::int32_t key_blocks = 0;
};

/// A tile and its sequence. `batch` is the entry of Q, O and the LSE, 0 where they are packed.
struct PackedTile : Tile {
  Extent extent;
  std::int32_t q_row = 0;  // of the entry: where the sequence's first row lies
  std::int32_t kv_row = 0, kv_batch = 0;
};

/// What the rows of a tile see where chunks and left padding bound it too. A tile is no taller than
/// a chunk, so that its rows lie in two at most: those before `turn` see keys from `first_before` to
/// `end_before`, the others from `first_from` to `end_from`, and all what the band leaves of them.
struct TileBand {
  std::int32_t below = 0, above = 0, keys = 0;
  std::int32_t turn = 0, first_before = 0, first_from = 0, end_before = 0, end_from = 0;

  GREENFAST_HOST_DEVICE std::int32_t first(std::int32_t row) const {
    const std::int32_t least = row < turn ? first_before : first_from;
    return row + below > least ? row + below : least;
  }
  GREENFAST_HOST_DEVICE std::int32_t end(std::int32_t row) const {
    const std::int32_t most = row < turn ? end_before : end_from;
    return row + above < most - 1 ? row + above + 1 : most;
  }
};
struct ServingExtent {
  TileBand band;
  std::int32_t seq_q = 0;
};

/// A tile of builds for all that serving asks for.
struct ServingTile : Tile {
  ServingExtent extent;
  std::int32_t q_row = 0;
  // Where key 0 lies, in the tensor, or, where there are pages, in the sequence.
  std::int32_t kv_row = 0, kv_batch = 0;
  std::int32_t cut = 0;    // keys of the first block, in pages, that no row of the sequence sees
  std::int32_t entry = 0;  // the sequence's number
  Seen seen;               // of the sequence, counted from kv_row; not handed on
};

/// And of builds for masks by array, whose keys are counted from the sequence's first.
struct MaskedTile : ServingTile {
  std::int32_t first_key = 0;  // of the tile's keys, in the sequence
};

/// And of builds for e4m3: which bits of Q's bytes are turned, their signs or none; what the products
/// are then multiplied by, which is positive; and the means of V.
struct ScaledTile : ServingTile {
  std::uint32_t q_turn = 0;
  float scale = 1.0f, value_factor = 1.0f;
};

/// Rows that one copy takes out of pages: the largest number that divides both, so that no copy
/// crosses the end of a page or of a block.
constexpr std::int32_t page_box(std::int64_t page, std::int32_t keys) {
  return static_cast<std::int32_t>(std::gcd(page, std::int64_t{keys}));
}
/// Where a box of keys from `row` of the tile's sequence on lies: which entry of the sequence's row
/// of the page table, and from which row of that page on.
struct PageBox {
  std::int32_t entry, row;
};
GREENFAST_HOST_DEVICE inline PageBox box_at(const ServingTile& tile, std::int32_t row,
                                            std::int32_t page_size, Divisor by_page) {
  const std::int32_t at = tile.kv_row + row, entry = at / by_page;
  return {entry, at - entry * page_size};
}
/// Up to which row that page may be read.
GREENFAST_HOST_DEVICE inline std::int32_t box_end(const ServingTile& tile, std::int32_t row,
                                                  std::int32_t in_page, std::int32_t page_size) {
  const std::int32_t left = in_page + tile.extent.band.keys - row;
  return left < page_size ? left : page_size;
}
/// Whether some row of the sequence sees a key of it: else its page may be any number.
GREENFAST_HOST_DEVICE inline bool is_seen(const ServingTile& tile, std::int32_t row,
                                          std::int32_t box) {
  return row >= 0 && row < tile.extent.band.keys && row + box > tile.cut;
}
/// Below this the lanes of a warp are too few for a block, and the swizzle's pattern is cut: rows are copied one by one.
inline constexpr std::int32_t kLeastBox = 8;

/// Where rows of pages lie from the first page on, in pieces of 16 bytes, which the host has seen to be fewer than 2^32.
struct PieceSteps {
  std::uint32_t page, row;
};
GREENFAST_HOST_DEVICE inline std::uint32_t piece_of_row(PieceSteps steps, std::int32_t page,
                                                        std::int32_t in_page) {
  return static_cast<std::uint32_t>(page) * steps.page +
         static_cast<std::uint32_t>(in_page) * steps.row;
}

/// What the host says of the sequences.
struct PackedFacts {
  SequenceArrays arrays;
  std::int32_t batch = 0, heads = 0, ctas = 0;
  // Rows from one entry of the batch to the next; 0 where there is one.
  std::int32_t q_rows = 0, k_rows = 0, v_rows = 0, o_rows = 0;
  std::int32_t lse_rows = 0;  // from one head to the next
  // Tiles in the order of the lengths on the device; else in that of TileSchedule, as if all
  // sequences were as long as the longest.
  bool by_length = false;
  bool pairs = false;   // a long and a short tile are dealt together
  bool sorted = false;  // the longest sequence first, else as they come
};

/// Of builds that copy rows of pages.
struct RowFacts {
  PieceSteps k{}, v{};
};

/// And what only the builds for serving ask.
struct ServingFacts {
  const float* sinks = nullptr;  // [heads], natural logarithms
  std::int32_t box = 0;          // page_box of the pages
  std::int32_t value_dim = 0;
  Divisor by_page, by_box;
};

/// And the builds for masks by array. Strides in elements; that from key to key is 1.
struct MaskFacts {
  // A tensor map of [batch, heads, rows, keys], where TMA can address the mask, how many rows that has, and
  // the last of its heads and batch: 0 where it has one for all. At a multiple of 64 bytes in Params (config.hpp): said by
  // alignas, that would change the code of all builds.
  unsigned char map[128] = {};
  bool mapped = false;
  std::int32_t rows = 0;
  std::int32_t last_head = 0, last_batch = 0;
  const void* data = nullptr;
  const void* end = nullptr;  // behind the last element
  std::int64_t batch = 0, head = 0, row = 0;
  float scale = 0.0f;  // of scores to which a mask adds
};

/// And the builds for e4m3.
struct ByteFacts {
  // Factors, null for 1: one, or one a head of a sequence.
  const float *q = nullptr, *k = nullptr, *v = nullptr;
  bool per_head = false;
  bool o_aligned = false;  // O is of 16 bits, its rows at 16 bytes
  std::int32_t heads_kv = 1;
  double scale_log2 = 0.0;  // scale * log2(e); in double, because the factors may bring it back
};

/// Sequences up to which the longest is looked for: each CTA looks through all of them once for
/// each of them.
inline constexpr std::int32_t kMostSorted = 512;

/// One sequence, without a tile. Blocks have kKeys keys.
template <class TileType, int kKeys>
requires std::is_same_v<TileType, PackedTile> GREENFAST_HOST_DEVICE inline TileType sequence_at(
    const SequenceArrays& arrays, std::int32_t entry) {
  const Sequence s = sequence_of(arrays, entry);
  constexpr auto kFar = static_cast<std::int32_t>(Band::kFar);
  PackedTile t;
  t.index = t.head = 0;
  t.batch = s.q_batch;
  t.q_row = s.q_row;
  t.kv_batch = s.kv_batch;
  // Keys that no row sees are left out, as visible_keys does on the host: they may hold anything.
  Band band{s.seen.below, s.seen.above, s.seen.keys};
  std::int32_t first = band.first(0);
  if (first > band.keys) first = band.keys;
  std::int32_t keys = s.seq_q > 0 ? band.end(s.seq_q - 1) - first : 0;
  if (keys < 0) keys = 0;
  const auto moved = [first](std::int32_t bound) {
    return bound - first < -kFar ? -kFar : bound - first;
  };
  t.extent.band.below = band.below > -kFar ? moved(band.below) : band.below;
  t.extent.band.above = band.above < kFar ? moved(band.above) : band.above;
  t.extent.band.keys = keys;
  t.extent.seq_q = s.seq_q;
  t.kv_row = s.kv_row + first;
  return t;
}
template <class TileType, int kKeys>
requires std::is_same_v<TileType, ServingTile> GREENFAST_HOST_DEVICE inline TileType sequence_at(
    const SequenceArrays& arrays, std::int32_t entry) {
  const Sequence s = sequence_of(arrays, entry);
  constexpr auto kFar = static_cast<std::int32_t>(Band::kFar);
  ServingTile t;
  t.index = t.head = 0;
  t.batch = s.q_batch;
  t.q_row = s.q_row;
  t.kv_batch = s.kv_batch;
  t.entry = entry;
  std::int32_t first = s.seen.first(0);
  if (first > s.seen.keys) first = s.seen.keys;
  // Blocks of pages begin at multiples of their keys, so that no copy crosses a page's end.
  const std::int32_t from = arrays.page_table != nullptr ? first / kKeys * kKeys : first;
  t.cut = first - from;
  std::int32_t keys = s.seq_q > 0 ? s.seen.end(s.seq_q - 1) - from : 0;
  if (keys <= t.cut) keys = 0;
  const auto moved = [from](std::int32_t bound) {
    return bound - from < -kFar ? -kFar : bound - from;
  };
  t.seen.below = s.seen.below > -kFar ? moved(s.seen.below) : s.seen.below;
  t.seen.above = s.seen.above < kFar ? moved(s.seen.above) : s.seen.above;
  t.seen.keys = keys;
  t.seen.start = s.seen.start - from;
  t.seen.shift = s.seen.shift - from;
  t.seen.chunk = s.seen.chunk;
  t.extent.seq_q = s.seq_q;
  t.kv_row = s.kv_row + from;
  return t;
}

template <class TileType, int kKeys>
requires std::is_same_v<TileType, MaskedTile> GREENFAST_HOST_DEVICE inline TileType sequence_at(
    const SequenceArrays& arrays, std::int32_t entry) {
  MaskedTile t;
  static_cast<ServingTile&>(t) = sequence_at<ServingTile, kKeys>(arrays, entry);
  t.first_key = t.kv_row - sequence_of(arrays, entry).kv_row;
  return t;
}

template <class TileType, int kKeys>
requires std::is_same_v<TileType, ScaledTile> GREENFAST_HOST_DEVICE inline TileType sequence_at(
    const SequenceArrays& arrays, std::int32_t entry) {
  ScaledTile t;
  static_cast<ServingTile&>(t) = sequence_at<ServingTile, kKeys>(arrays, entry);
  return t;
}

/// What the rows of the tile see; of a serving tile, those of `query` and a tile's worth behind it.
template <int kRows>
GREENFAST_HOST_DEVICE inline void bound_tile(PackedTile&) {}
GREENFAST_HOST_DEVICE inline void bound_from(ServingTile& tile, std::int32_t query) {
  const Seen& seen = tile.seen;
  TileBand& band = tile.extent.band;
  const auto at_most = [](std::int64_t x, std::int32_t most) {
    return x < most ? static_cast<std::int32_t>(x) : most;
  };
  constexpr auto kFar = static_cast<std::int32_t>(Band::kFar);
  const std::int32_t start = seen.start > 0 ? seen.start : 0;
  band.below = seen.below;
  band.above = seen.above;
  band.keys = seen.keys;
  band.turn = kFar;
  band.first_before = band.first_from = start;
  band.end_before = band.end_from = seen.keys;
  if (seen.chunk == 0) return;
  const std::int32_t here = seen.chunk_of(query);
  const std::int64_t second = std::int64_t{here} + seen.chunk;
  band.turn = at_most(second - seen.shift, kFar);
  band.first_before = here > start ? here : start;
  band.first_from = second > start ? at_most(second, kFar) : start;
  band.end_before = at_most(second, seen.keys);
  band.end_from = at_most(second + seen.chunk, seen.keys);
}
template <int kRows>
GREENFAST_HOST_DEVICE inline void bound_tile(ServingTile& tile) {
  bound_from(tile, tile.index * kRows);
}

/// Lanes that look for a sequence together: on the host there is one.
struct OneLane {
  GREENFAST_HOST_DEVICE std::int32_t first() const { return 0; }
  GREENFAST_HOST_DEVICE std::int32_t step() const { return 1; }
  GREENFAST_HOST_DEVICE std::uint32_t most(std::uint32_t x) const { return x; }
  GREENFAST_HOST_DEVICE std::int32_t sum(std::int32_t x) const { return x; }
  /// The sum of the lanes up to this one; what a lane has; the first lane that has more than `bound`.
  GREENFAST_HOST_DEVICE std::int32_t up_to(std::int32_t x) const { return x; }
  GREENFAST_HOST_DEVICE std::int32_t of(std::int32_t x, std::int32_t) const { return x; }
  GREENFAST_HOST_DEVICE std::int32_t first_above(std::int32_t, std::int32_t) const { return 0; }
};

/// The tiles of one CTA in the host's order, as if all sequences were as long as the longest: those
/// that lie behind a sequence's rows are left out.
template <int kRows, int kKeys, class TileType>
class ScheduleWalk {
 public:
  GREENFAST_HOST_DEVICE ScheduleWalk(const PackedFacts& facts, const TileSchedule& schedule,
                                     std::int32_t cta)
      : facts_(facts), schedule_(schedule), cta_(cta) {}

  /// False after the last one.
  GREENFAST_HOST_DEVICE bool next(TileType& tile) {
    Tile at;
    while (tile_of(schedule_, cta_, step_++, at)) {
      tile = sequence_at<TileType, kKeys>(facts_.arrays, at.batch);
      tile.index = at.index;
      tile.head = at.head;
      if (at.index * kRows < tile.extent.seq_q) {
        bound_tile<kRows>(tile);
        return true;
      }
    }
    return false;
  }

 private:
  const PackedFacts& facts_;
  const TileSchedule& schedule_;
  const std::int32_t cta_;
  std::int32_t step_ = 0;
};

/// The tiles of one CTA in the order of the lengths on the device: sequence after sequence, head
/// after head. What is dealt goes to CTAs in rows that turn as the Thue-Morse sequence, which evens
/// out sums of falling numbers. A function of the arrays and the CTA's index alone, without a
/// counter; all lanes that share a walk see the same.
template <int kRows, int kKeys, class TileType, class Lanes>
class LengthWalk {
 public:
  GREENFAST_HOST_DEVICE LengthWalk(const PackedFacts& facts, std::int32_t cta, Lanes lanes)
      : facts_(facts), cta_(cta), lanes_(lanes) {}

  /// False after the last one.
  GREENFAST_HOST_DEVICE bool next(TileType& tile) {
    while (true) {
      const std::int32_t turn = facts_.pairs ? step_ >> 1 : step_;
      const bool second = facts_.pairs && (step_ & 1) != 0;
      const std::int32_t position = turn * facts_.ctas + column(turn);
      GREENFAST_ROLLED
      while (position - before_ >= dealt_) {
        before_ += dealt_;
        if (!next_sequence()) return false;
      }
      ++step_;
      tile = sequence_at<TileType, kKeys>(facts_.arrays, entry_);
      const std::int32_t tiles = tiles_of(tile), of_head = dealt_of_head(tiles);
      const std::int32_t place = position - before_;
      tile.head = place / of_head;
      const std::int32_t rank = place - tile.head * of_head;
      tile.index = second ? rank : tiles - 1 - rank;  // under a causal mask the last is longest
      if (!second || rank < tiles - 1 - rank) {       // else the middle one, which is done
        bound_tile<kRows>(tile);
        return true;
      }
    }
  }

 private:
  GREENFAST_HOST_DEVICE std::int32_t column(std::int32_t row) const {
    std::int32_t back = row ^ (row >> 16);
    for (int shift = 8; shift > 0; shift /= 2) back ^= back >> shift;
    return back & 1 ? facts_.ctas - 1 - cta_ : cta_;
  }
  GREENFAST_HOST_DEVICE static std::int32_t tiles_of(const TileType& sequence) {
    return ceil_div(sequence.extent.seq_q, kRows);
  }
  GREENFAST_HOST_DEVICE std::int32_t dealt_of_head(std::int32_t tiles) const {
    return facts_.pairs ? (tiles + 1) / 2 : tiles;
  }
  /// Blocks of a sequence's first and last tile, and one; 0 where it has no rows.
  GREENFAST_HOST_DEVICE static std::uint32_t work_of(const TileType& sequence) {
    const std::int32_t rows = sequence.extent.seq_q;
    if (rows == 0) return 0;
    if constexpr (std::is_base_of_v<ServingTile, TileType>)
      return blocks_between(sequence.seen, rows);
    else
      return blocks_between(sequence.extent.band, rows);
  }
  template <class Bounds>
  GREENFAST_HOST_DEVICE static std::uint32_t blocks_between(const Bounds& band, std::int32_t rows) {
    const BlockRange last = blocks_of(band, kKeys, (rows - 1) / kRows * kRows, rows - 1);
    const BlockRange first = blocks_of(band, kKeys, 0, (rows < kRows ? rows : kRows) - 1);
    return static_cast<std::uint32_t>(1 + (last.end - last.begin) + (first.end - first.begin));
  }

  /// The next one with rows: less work, or as much and a higher number.
  GREENFAST_HOST_DEVICE bool next_sequence() {
    if (facts_.sorted) {
      std::uint32_t most = 0, from_end = 0;  // the best so far, and its distance from the end
      GREENFAST_ROLLED
      for (std::int32_t b = lanes_.first(); b < facts_.batch; b += lanes_.step()) {
        const std::uint32_t work = work_of(sequence_at<TileType, kKeys>(facts_.arrays, b));
        const bool later = work < work_ || (work == work_ && b > entry_);
        if (later && work > most) {
          most = work;
          from_end = static_cast<std::uint32_t>(facts_.batch - b);
        }
      }
      const std::uint32_t found = lanes_.most(most);
      if (found == 0) return false;
      from_end = lanes_.most(most == found ? from_end : 0);
      work_ = found;
      entry_ = facts_.batch - static_cast<std::int32_t>(from_end);
    } else if (++entry_ >= facts_.batch) {
      return false;
    }
    dealt_ =
        facts_.heads * dealt_of_head(tiles_of(sequence_at<TileType, kKeys>(facts_.arrays, entry_)));
    return true;
  }

  const PackedFacts& facts_;
  const std::int32_t cta_;
  const Lanes lanes_;
  std::int32_t step_ = 0;
  // Of the sequence at hand: its number, its work, what is dealt before it and of it.
  std::int32_t entry_ = -1;
  std::uint32_t work_ = 0xffffffffu;
  std::int32_t before_ = 0, dealt_ = 0;
};

/// Calls work(walk) with the walk of a CTA.
template <int kRows, int kKeys, class TileType = PackedTile, class Lanes, class Work>
GREENFAST_HOST_DEVICE inline void with_walk(const PackedFacts& facts, const TileSchedule& schedule,
                                            std::int32_t cta, Lanes lanes, const Work& work) {
  if (facts.by_length) {
    LengthWalk<kRows, kKeys, TileType, Lanes> walk(facts, cta, lanes);
    work(walk);
  } else {
    ScheduleWalk<kRows, kKeys, TileType> walk(facts, schedule, cta);
    work(walk);
  }
}

}  // namespace greenfast::cuda::prefill
