// The heads of a group as rows of one tile, and keys in parts: which parts a CTA of cuda.sm90.grouped
// works on. Host and device run the same functions, so that a test without a GPU walks every CTA.
#pragma once

#include <cstdint>

#include <greenfast/arithmetic.hpp>

#include "kernels/cuda/device/host_device.hpp"
#include "kernels/cuda/device/mask.hpp"
#include "kernels/cuda/device/tile_schedule.hpp"
#include "kernels/cuda/sm90_prefill/packed.hpp"

namespace greenfast::cuda::prefill {

/// What rows see where `group` of them, one a head, belong to a query.
struct GroupedBand : TileBand {
  Divisor by_group;

  GREENFAST_HOST_DEVICE std::int32_t first(std::int32_t row) const {
    return TileBand::first(row / by_group);
  }
  GREENFAST_HOST_DEVICE std::int32_t end(std::int32_t row) const {
    return TileBand::end(row / by_group);
  }
};
struct GroupedExtent {
  GroupedBand band;
  std::int32_t seq_q = 0;  // rows: queries times heads of the group
};

/// A tile whose rows are (query, head of the group) pairs, the heads of a query behind each other, over a
/// part of the keys, which are counted from the part's first. `head` is that of K and V.
struct GroupedTile : ScaledTile {
  GroupedExtent grouped;
  std::int32_t part = 0, parts = 1;
  std::int32_t first = 0;  // the CTA that has the first part
  std::int32_t slot = -1;  // of partial results; below 0: these are all of the row's keys
  // Of e4m3: the largest factor of a head of Q, with which `scale` is, and what scores of a thread's two rows
  // are multiplied by before it.
  float q_largest = 1.0f, row_factor[2] = {1.0f, 1.0f};
};

/// A part's partial results, by the slot they lie in: whose they are. `parts` is 0 where nobody's are.
struct PartPlace {
  std::int32_t batch = 0, q_row = 0, head = 0;
  std::int32_t first_row = 0, rows = 0;  // of the sequence, and of the tile
  std::int32_t part = 0, parts = 0;
  std::int32_t first = 0;  // the CTA that has the first part
  std::int32_t entry = 0, unused[3] = {};
};
/// Of a row over a part's keys: the weights' base as two floats, and their sum.
struct PartStats {
  float high, low, sum, unused;
};

/// What only the builds for groups ask.
struct GroupedFacts {
  Divisor by_group;
  std::int32_t group = 1;
  std::int32_t most_parts = 1;  // of a tile's keys
  bool o_aligned = false;       // O is of 16 bits, its rows at 16 bytes
  bool alternate = false;       // no tile has more than 64 rows: warpgroups take every other tile
  // In the call's scratch: a slot holds kRows rows.
  float* partial = nullptr;
  PartStats* stats = nullptr;
  PartPlace* places = nullptr;
};

/// Blocks of keys that no part is shorter than, but where a tile has no more.
inline constexpr std::int32_t kLeastPart = 2;
/// What a tile costs beside its blocks, in blocks: to begin and to end.
inline constexpr std::int32_t kBlocksOfTile = 1;
/// A CTA's parts are the first and the last of its tiles: all between are whole.
constexpr std::int32_t most_slots(std::int32_t ctas) { return 2 * ctas; }
/// Where part `part` of a tile lies whose first is that of CTA `first`: there it is the last of the tiles, with
/// every other CTA the first.
GREENFAST_HOST_DEVICE inline std::int32_t slot_of_part(std::int32_t first, std::int32_t part) {
  return part == 0 ? 2 * first + 1 : 2 * (first + part);
}

/// Which CTAs have a tile: those from `first` to `last`, one behind the other.
struct Holders {
  std::int32_t first, last;
};
/// Of all tiles' blocks, and kBlocksOfTile more for each, laid one behind the other, CTA c has those from c *
/// share on. A cut that is nearer than kLeastPart blocks to an end of a tile moves there.
struct BlockShares {
  std::int32_t share = 1, holders = 1;
  bool cuts = true;  // else a tile is all of the CTA's in whose share its middle lies

  GREENFAST_HOST_DEVICE static BlockShares of(std::int32_t work, std::int32_t longest,
                                              std::int32_t ctas, std::int32_t most_parts) {
    std::int32_t share = ceil_div(work, ctas);
    if (most_parts > 1) {
      // n shares' length reaches over n + 1 of them.
      const std::int32_t bound = ceil_div(longest + kBlocksOfTile, most_parts - 1);
      const std::int32_t least = 2 * kLeastPart + kBlocksOfTile;
      if (share < bound) share = bound;
      if (share < least) share = least;
    }
    if (share < 1) share = 1;
    const std::int32_t holders = ceil_div(work, share);
    return {share, holders > 1 ? holders : 1, most_parts > 1};
  }
  /// Of a tile that begins at `from`.
  GREENFAST_HOST_DEVICE Holders holders_of(std::int32_t from, std::int32_t blocks) const {
    const auto there = [&](std::int32_t cta) { return cta < holders ? cta : holders - 1; };
    if (!cuts) {
      const std::int32_t cta = there((from + (blocks + kBlocksOfTile) / 2) / share);
      return {cta, cta};
    }
    const std::int32_t keys = from + kBlocksOfTile;
    const std::int32_t first = there(ceil_div(keys + kLeastPart, share) - 1);
    const std::int32_t last =
        there((keys + (blocks > kLeastPart ? blocks - kLeastPart : 0)) / share);
    return {first, last > first ? last : first};
  }
  /// The blocks of it that a holder has.
  GREENFAST_HOST_DEVICE BlockRange blocks_of(std::int32_t from, std::int32_t blocks, Holders of,
                                             std::int32_t cta) const {
    const std::int32_t keys = from + kBlocksOfTile;
    return {cta == of.first ? 0 : cta * share - keys,
            cta == of.last ? blocks : (cta + 1) * share - keys};
  }
};

/// The tiles of one CTA and their keys: an even share of all, sequence after sequence, head after head. How
/// large it is follows from the lengths of all sequences on the device, which every CTA reads; `lanes`, who
/// walk together, look at one each.
template <int kRows, int kKeys, class Lanes>
class GroupedWalk {
 public:
  GREENFAST_HOST_DEVICE GroupedWalk(const PackedFacts& facts, const GroupedFacts& grouped,
                                    std::int32_t cta, Lanes lanes)
      : facts_(facts), grouped_(grouped), cta_(cta), lanes_(lanes) {}

  /// False after the last one.
  GREENFAST_HOST_DEVICE bool next(GroupedTile& tile) {
    GREENFAST_ROLLED
    while (true) {
      std::int32_t entry = chunk_ + lanes_.first(), number = 0, tile_from = 0;
      Holders of{0, 0};
      if (asks_ == Asks::tile) {
        if (at_ - before_ >= total_) {
          before_ += total_;
          chunk_ += lanes_.step();
          if (chunk_ >= facts_.batch) return false;
          asks_ = Asks::sizes;
          continue;
        }
        const std::int32_t lane = lanes_.first_above(up_to_, at_ - before_);
        const std::int32_t from = before_ + lanes_.of(up_to_ - blocks_, lane);
        const std::int32_t of_tile = lanes_.of(of_tile_, lane);
        number = (at_ - from) / of_tile;
        tile_from = from + number * of_tile;
        at_ = tile_from + of_tile;
        of = shares_.holders_of(tile_from, of_tile - kBlocksOfTile);
        if (of.first > cta_) return false;
        if (of.last < cta_) continue;
        entry = chunk_ + lane;
      }
      // One place asks for a sequence, whatever for: at the start of a kernel nothing can be done before
      // this code has come, and with a place for each purpose there was three times as much.
      GroupedSize size;
      if (entry < facts_.batch) {
        static_cast<ServingTile&>(tile) = sequence_at<ServingTile, kKeys>(facts_.arrays, entry);
        size = size_of(tile);
      }
      if (asks_ == Asks::work) {
        work_ += of_sequence(size);
        if (size.tiles > 0 && size.blocks > longest_) longest_ = size.blocks;
        if (chunk_ == 0) own_ = size;
        chunk_ += lanes_.step();
        if (chunk_ < facts_.batch) continue;
        share();
        if (cta_ >= shares_.holders) return false;
        size = own_;
        asks_ = Asks::sizes;
      }
      if (asks_ == Asks::sizes) {
        keep(size);
        asks_ = Asks::tile;
        continue;
      }
      const BlockRange blocks = shares_.blocks_of(tile_from, size.blocks, of, cta_);
      tile.parts = of.last - of.first + 1;
      tile.part = cta_ - of.first;
      tile.first = of.first;
      tile.slot = tile.parts > 1 ? slot_of_part(of.first, tile.part) : -1;
      tile.head = number / size.tiles;
      tile.index = number - tile.head * size.tiles;
      take_part(tile, blocks.begin * kKeys, (blocks.end - blocks.begin) * kKeys);
      bound_from(tile, tile.index * kRows / grouped_.by_group);
      tile.extent.seq_q *= grouped_.group;
      static_cast<TileBand&>(tile.grouped.band) = tile.extent.band;
      tile.grouped.band.by_group = grouped_.by_group;
      tile.grouped.seq_q = tile.extent.seq_q;
      return true;
    }
  }

 private:
  /// A sequence's tiles of a head, and the blocks of its keys.
  struct GroupedSize {
    std::int32_t tiles = 0, blocks = 0;
  };
  GREENFAST_HOST_DEVICE GroupedSize size_of(const ServingTile& sequence) const {
    return {ceil_div(sequence.extent.seq_q * grouped_.group, kRows),
            ceil_div(sequence.seen.keys, kKeys)};
  }
  GREENFAST_HOST_DEVICE std::int32_t of_sequence(GroupedSize size) const {
    return size.tiles * facts_.heads * (size.blocks + kBlocksOfTile);
  }

  /// All work is known: what the CTA has of it.
  GREENFAST_HOST_DEVICE void share() {
    shares_ = BlockShares::of(
        lanes_.sum(work_),
        static_cast<std::int32_t>(lanes_.most(static_cast<std::uint32_t>(longest_))), facts_.ctas,
        grouped_.most_parts);
    // Short tiles that end before the share are its own where their middle is not.
    at_ = cta_ * shares_.share - kLeastPart;
    if (at_ < 0) at_ = 0;
    chunk_ = 0;
  }
  /// Of the lanes' sequences from chunk_ on.
  GREENFAST_HOST_DEVICE void keep(GroupedSize size) {
    of_tile_ = size.blocks + kBlocksOfTile;
    blocks_ = of_sequence(size);
    up_to_ = lanes_.up_to(blocks_);
    total_ = lanes_.of(up_to_, lanes_.step() - 1);
  }

  /// Of the keys `count` from `first` on, of a tile that has them all.
  GREENFAST_HOST_DEVICE static void take_part(GroupedTile& tile, std::int32_t first,
                                              std::int32_t count) {
    constexpr auto kFar = static_cast<std::int32_t>(Band::kFar);
    Seen& seen = tile.seen;
    const auto moved = [first](std::int32_t bound) {
      return bound - first < -kFar ? -kFar : bound - first;
    };
    if (seen.below > -kFar) seen.below = moved(seen.below);
    if (seen.above < kFar) seen.above = moved(seen.above);
    seen.start -= first;
    seen.shift -= first;
    const std::int32_t left = seen.keys - first;
    seen.keys = left < count ? left : count;
    tile.kv_row += first;
    if (first > 0) tile.cut = 0;
  }

  const PackedFacts& facts_;
  const GroupedFacts& grouped_;
  const std::int32_t cta_;
  const Lanes lanes_;
  // What a sequence is asked for: to add up the work of all, to have the sizes of the lanes' next ones, or for
  // a tile of it.
  enum class Asks { work, sizes, tile };
  Asks asks_ = Asks::work;
  // Of the lane's sequences: below 2^31 for whatever the maxima allow, for the host refuses more.
  std::int32_t work_ = 0, longest_ = 0;
  GroupedSize own_;  // of the lane's first: most batches have no others
  BlockShares shares_;
  std::int32_t at_ = 0;  // where the next tile begins
  // Of the sequences that the lanes have before them: the first one's number, each one's blocks of a tile, of
  // all tiles, and of those up to it; of all of them, and of those before.
  std::int32_t chunk_ = 0, of_tile_ = 0, blocks_ = 0, up_to_ = 0, total_ = 0, before_ = 0;
};

}  // namespace greenfast::cuda::prefill
