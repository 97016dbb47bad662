// What cuda.sm90.packed works on, walked without a GPU: every row of every sequence once, every key
// that it may see once, and nothing outside the tensors.
#include <greenfast/attention.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/sequences.hpp"
#include "kernels/cpu/device/band.hpp"
#include "kernels/cuda/sm90_prefill/grouped.hpp"
#include "kernels/cuda/sm90_prefill/packed.hpp"

namespace greenfast::cuda::prefill {
namespace {

class Numbers {
 public:
  explicit Numbers(unsigned seed) : engine_(seed) {}
  std::int32_t upto(std::int64_t most) {
    return static_cast<std::int32_t>(std::uniform_int_distribution<std::int64_t>(0, most)(engine_));
  }
  bool coin() { return upto(1) == 1; }

 private:
  std::mt19937 engine_;
};

struct Call {
  Problem problem;
  Tensors tensors;
  std::vector<std::int32_t> cu_q, cu_kv, used_q, used_kv, kv_start, page_table;
  PackedFacts facts;

  /// The arrays where they lie now.
  void point() {
    tensors.cu_q = cu_q.data();
    tensors.cu_kv = cu_kv.data();
    tensors.used_q = used_q.data();
    tensors.used_kv = used_kv.data();
    tensors.kv_start = kv_start.data();
    tensors.page_table = page_table.data();
    const Sequences& s = problem.sequences;
    SequenceArrays& a = facts.arrays;
    a.cu_q = s.packed_q ? cu_q.data() : nullptr;
    a.cu_kv = s.packed_kv ? cu_kv.data() : nullptr;
    a.used_q = s.used_q ? used_q.data() : nullptr;
    a.used_kv = s.used_kv ? used_kv.data() : nullptr;
    a.kv_start = s.kv_start ? kv_start.data() : nullptr;
    a.page_table = problem.pages.used() ? page_table.data() : nullptr;
  }
};

/// Rows of the pool from one page to the next, which has other heads between.
constexpr std::int64_t kRowsOfPage = 3;

/// Left padding, chunks of at least `rows` and pages for what draw() has drawn.
void draw_serving(Numbers& numbers, std::int32_t rows, Call& call) {
  Problem& p = call.problem;
  Sequences& s = p.sequences;
  const auto narrow = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
  s.kv_start = numbers.coin();
  for (std::int64_t b = 0; b < p.batch; ++b)
    call.kv_start.push_back(numbers.upto(call.used_kv[static_cast<std::size_t>(b)]));
  if (numbers.coin()) {
    p.chunk = rows + numbers.upto(2 * rows);
    if (p.mask.right < 0) p.mask.right = 0;
    call.facts.arrays.chunk = narrow(p.chunk);
    call.facts.arrays.right = narrow(p.mask.right);
  }
  if (numbers.coin()) {
    s.packed_kv = false;
    s.used_kv = true;
    p.pages.size = numbers.coin() ? std::int64_t{kLeastBox} * (1 + numbers.upto(5))
                                  : 1 + numbers.upto(40);  // whose rows are copied one by one
    const std::int64_t of_row = (p.seq_kv + p.pages.size - 1) / p.pages.size;
    p.pages.row_stride = of_row + numbers.upto(2);
    p.pages.count = p.pages.row_stride * p.batch;
    for (std::int64_t i = 0; i < p.pages.count; ++i) call.page_table.push_back(narrow(i));
    for (std::size_t i = call.page_table.size(); i-- > 1;)
      std::swap(call.page_table[i],
                call.page_table[static_cast<std::size_t>(numbers.upto(std::int64_t(i)))]);
    SequenceArrays& a = call.facts.arrays;
    a.page_row = p.pages.row_stride;
    a.page_size = narrow(p.pages.size);
    a.pages = narrow(p.pages.count);
  }
  call.point();
}

void draw(Numbers& numbers, std::int32_t batch, std::int32_t most_q, std::int32_t most_kv,
          Call& call) {
  Problem& p = call.problem;
  p.batch = batch;
  p.heads_q = 1 + numbers.upto(5);
  p.seq_q = most_q + numbers.upto(100);  // looser than it need be
  p.seq_kv = most_kv + numbers.upto(100);
  p.mask.left = numbers.upto(2) != 0 ? -1 : numbers.upto(most_kv);
  p.mask.right = numbers.coin() ? -1 : numbers.coin() ? 0 : numbers.upto(most_kv);
  p.mask.alignment = numbers.coin() ? Alignment::bottom_right : Alignment::top_left;
  Sequences& s = p.sequences;
  s.packed_q = numbers.upto(3) != 0;
  s.packed_kv = numbers.upto(3) != 0;
  s.used_q = numbers.coin();
  s.used_kv = numbers.coin();
  std::int32_t rows = numbers.upto(3), keys = numbers.upto(3);
  call.cu_q.push_back(rows);
  call.cu_kv.push_back(keys);
  for (std::int32_t b = 0; b < batch; ++b) {
    const auto length = [&](std::int32_t most) {
      const std::int32_t kind = numbers.upto(5);
      return kind == 0   ? 0
             : kind == 1 ? most
             : kind == 2 ? std::min(128, most)
                         : numbers.upto(most);
    };
    const std::int32_t of_q = length(most_q), of_kv = length(most_kv);
    call.cu_q.push_back(rows += of_q);
    call.cu_kv.push_back(keys += of_kv);
    call.used_q.push_back(numbers.upto(of_q));
    call.used_kv.push_back(numbers.upto(of_kv));
  }
  s.total_q = rows + numbers.upto(2);
  s.total_kv = keys + numbers.upto(2);
  const auto narrow = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
  PackedFacts& f = call.facts;
  f.arrays.seq_q = narrow(p.seq_q);
  f.arrays.seq_kv = narrow(p.seq_kv);
  f.arrays.total_q = narrow(s.total_q);
  f.arrays.total_kv = narrow(s.total_kv);
  f.arrays.left = narrow(p.mask.left);
  f.arrays.right = narrow(p.mask.right);
  f.arrays.bottom_right = p.mask.alignment == Alignment::bottom_right;
  f.batch = batch;
  f.heads = narrow(p.heads_q);
  f.ctas = 1 + numbers.upto(20);
  f.by_length = numbers.upto(2) != 0;
  f.pairs = numbers.coin();
  f.sorted = numbers.coin();
  call.point();
}

template <int kRows, int kKeys, class TileType = PackedTile>
std::vector<std::vector<TileType>> walk(const Call& call) {
  const PackedFacts& f = call.facts;
  const auto tiles = static_cast<std::int32_t>((call.problem.seq_q + kRows - 1) / kRows);
  const TileSchedule schedule = make_schedule(f.pairs ? TileOrder::balanced : TileOrder::by_head,
                                              tiles, f.heads, f.heads * f.batch, f.ctas, 0, true);
  std::vector<std::vector<TileType>> all(static_cast<std::size_t>(f.ctas));
  for (std::int32_t cta = 0; cta < f.ctas; ++cta) {
    with_walk<kRows, kKeys, TileType>(f, schedule, cta, OneLane{}, [&](auto& walk) {
      TileType tile;
      while (walk.next(tile)) all[static_cast<std::size_t>(cta)].push_back(tile);
    });
  }
  return all;
}

/// Rows of the tensor that TMA reads or writes for rows [from, from + count) of a sequence: those of
/// the box whose coordinate lies inside the map.
std::vector<std::int64_t> rows_of_box(std::int32_t first, std::int32_t length, std::int32_t from,
                                      std::int32_t count) {
  std::vector<std::int64_t> rows;
  for (std::int32_t i = 0; i < count; ++i) {
    const RaggedPlace at = ragged_place(first, length, from);
    const std::int64_t row = std::int64_t{at.row} + i;
    // The address: row strides of the row coordinate, of the end, and 2^30 times 2^34 less a row.
    if (row >= 0 && row < kRaggedRows) rows.push_back(row + at.end - kRaggedRows);
  }
  return rows;
}

/// What a block of V holds: the key of the tile, and which of the sequence's it is.
using Copied = std::vector<std::pair<std::int32_t, std::int64_t>>;
template <int kKeys, class TileType>
Copied copied_rows(const Call&, const TileType& tile, const core::Sequence& s, std::int32_t block) {
  Copied copied;
  const auto box = rows_of_box(tile.kv_row, tile.extent.band.keys, block * kKeys, kKeys);
  for (std::size_t j = 0; j < box.size(); ++j)
    copied.emplace_back(block * kKeys + static_cast<int>(j), box[j] - s.kv_row);
  return copied;
}
/// Rows that a lane copies at once.
std::int32_t box_of(const Problem& p, std::int32_t keys) {
  return p.pages.size % kLeastBox != 0 ? 1 : page_box(p.pages.size, keys);
}
template <int kKeys>
Copied copied_pages(const Call& call, const ServingTile& tile, const core::Sequence& s,
                    std::int32_t block) {
  const Problem& p = call.problem;
  const std::int32_t box = box_of(p, kKeys);
  const auto size = static_cast<std::int32_t>(p.pages.size);
  const auto of_page = static_cast<std::int32_t>(kRowsOfPage * p.pages.size);
  Copied copied;
  for (std::int32_t lane = 0; lane * box < kKeys; ++lane) {
    const std::int32_t row = block * kKeys + lane * box;
    if (!is_seen(tile, row, box)) continue;
    const PageBox from = box_at(tile, row, size, Divisor::of(size));
    EXPECT_EQ(tile.entry * p.pages.row_stride + from.entry,
              s.pages - call.page_table.data() + from.entry);
    EXPECT_LT(from.entry, p.pages.row_stride);
    const std::int32_t page = s.pages[from.entry];
    const auto rows =
        rows_of_box(page * of_page, box_end(tile, row, from.row, size), from.row, box);
    for (std::size_t j = 0; j < rows.size(); ++j) {
      const std::int32_t key = row + static_cast<std::int32_t>(j);
      const std::int64_t in_page = rows[j] - std::int64_t{page} * of_page;
      EXPECT_TRUE(in_page >= 0 && in_page < p.pages.size);
      if (key >= tile.cut) copied.emplace_back(key, from.entry * p.pages.size + in_page);
    }
  }
  return copied;
}

/// What the CPU's rows of a sequence see.
kernels::Band band_on_the_cpu(const Problem& p, const core::Sequence& s) {
  const std::int64_t shift = p.mask.alignment == Alignment::bottom_right ? s.seq_kv - s.seq_q : 0;
  return kernels::make_band(p.mask.left, p.mask.right, shift, s.seq_q, s.seq_kv, s.kv_start,
                            p.chunk);
}

template <int kRows, int kKeys, class TileType = PackedTile>
void expect_all_once(const Call& call) {
  const Problem& p = call.problem;
  // (sequence's first row, entry, head, row) to how often
  std::map<std::tuple<std::int64_t, std::int64_t, std::int32_t>, int> done;
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> owner;  // row of Q to sequence
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const core::Sequence s = core::sequence_of(p, call.tensors, b);
    for (std::int64_t i = 0; i < s.seq_q; ++i) owner[{s.q_batch, s.q_row + i}] = b;
  }
  for (const auto& tiles : walk<kRows, kKeys, TileType>(call)) {
    for (const TileType& tile : tiles) {
      ASSERT_TRUE(tile.head >= 0 && tile.head < p.heads_q);
      ASSERT_LT(tile.index * kRows, tile.extent.seq_q);
      const auto& band = tile.extent.band;
      const auto copied = [&](const core::Sequence& s, std::int32_t block) {
        if constexpr (std::is_base_of_v<ServingTile, TileType>)
          if (p.pages.used()) return copied_pages<kKeys>(call, tile, s, block);
        return copied_rows<kKeys>(call, tile, s, block);
      };
      const auto rows = rows_of_box(tile.q_row, tile.extent.seq_q, tile.index * kRows, kRows);
      ASSERT_FALSE(rows.empty());
      for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto found = owner.find({tile.batch, rows[i]});
        ASSERT_NE(found, owner.end()) << "a row of nobody";
        const std::int64_t b = found->second;
        ++done[{b, rows[i], tile.head}];
        const core::Sequence s = core::sequence_of(p, call.tensors, b);
        const auto row = static_cast<std::int32_t>(tile.index * kRows + static_cast<int>(i));
        ASSERT_EQ(row, rows[i] - s.q_row);
        // What the row sees, through blocks, the map and the mask, is what the CPU's row sees.
        const kernels::Band wanted = band_on_the_cpu(p, s);
        const kernels::Interval seen = kernels::keys_of(wanted, row);
        std::vector<std::int64_t> keys;
        const std::int32_t last = std::min(tile.index * kRows + kRows, tile.extent.seq_q) - 1;
        const BlockRange blocks = blocks_of(band, kKeys, tile.index * kRows, last);
        for (std::int32_t block = blocks.begin; block < blocks.end; ++block) {
          for (const auto& [key, of_sequence] : copied(s, block)) {
            // A mask's elements are those of the same keys.
            if constexpr (std::is_same_v<TileType, MaskedTile>) {
              ASSERT_EQ(tile.first_key + key, of_sequence);
              ASSERT_EQ(tile.entry, b);
            }
            if (key >= band.first(row) && key < band.end(row)) keys.push_back(of_sequence);
          }
        }
        ASSERT_EQ(tile.kv_batch, s.kv_batch);
        ASSERT_EQ(static_cast<std::int64_t>(keys.size()), seen.end - seen.begin);
        for (std::size_t j = 0; j < keys.size(); ++j)
          ASSERT_EQ(keys[j], seen.begin + static_cast<std::int64_t>(j));
      }
      // Nothing is copied that no row of the sequence sees.
      const core::Sequence s =
          core::sequence_of(p, call.tensors, owner.at({tile.batch, rows.front()}));
      std::int64_t first = s.seq_kv, end = 0;
      const kernels::Band wanted = band_on_the_cpu(p, s);
      for (std::int64_t i = 0; i < s.seq_q; ++i) {
        const kernels::Interval seen = kernels::keys_of(wanted, i);
        if (seen.begin == seen.end) continue;
        first = std::min(first, seen.begin);
        end = std::max(end, seen.end);
      }
      for (std::int32_t block = 0; block * kKeys < band.keys; ++block) {
        for (const auto& [key, of_sequence] : copied(s, block)) {
          ASSERT_GE(of_sequence, first);
          ASSERT_LT(of_sequence, end);
        }
      }
      // Nor is a page asked for.
      if constexpr (std::is_base_of_v<ServingTile, TileType>) {
        const std::int32_t box = p.pages.used() ? box_of(p, kKeys) : 1;
        for (std::int32_t row = 0; p.pages.used() && row < band.keys; row += box) {
          const std::int64_t from = tile.kv_row + row;
          ASSERT_TRUE(!is_seen(tile, row, box) || (from + box > first && from < end));
        }
      }
    }
  }
  std::int64_t wanted = 0;
  for (std::int64_t b = 0; b < p.batch; ++b)
    wanted += core::sequence_of(p, call.tensors, b).seq_q * p.heads_q;
  ASSERT_EQ(static_cast<std::int64_t>(done.size()), wanted);
  for (const auto& [row, times] : done) ASSERT_EQ(times, 1);
}

TEST(PackedWalk, DoesEveryRowOnceAndSeesWhatTheCpuSees) {
  Numbers numbers(1);
  for (int n = 0; n < 600; ++n) {
    Call call;
    draw(numbers, 1 + numbers.upto(6), 1 + numbers.upto(60), 1 + numbers.upto(90), call);
    SCOPED_TRACE(n);
    expect_all_once<16, 8>(call);
    if (HasFatalFailure()) return;
    expect_all_once<24, 16>(call);
    if (HasFatalFailure()) return;
  }
}

TEST(PackedWalk, OfServingSeesWhatTheCpuSees) {
  Numbers numbers(5);
  for (int n = 0; n < 1200; ++n) {
    Call call;
    draw(numbers, 1 + numbers.upto(6), 1 + numbers.upto(60), 1 + numbers.upto(90), call);
    draw_serving(numbers, 24, call);
    SCOPED_TRACE(n);
    expect_all_once<16, 8, ServingTile>(call);
    if (HasFatalFailure()) return;
    expect_all_once<24, 16, ServingTile>(call);
    if (HasFatalFailure()) return;
    expect_all_once<24, 16, MaskedTile>(call);
    if (HasFatalFailure()) return;
  }
}

TEST(PackedWalk, OfRealTiles) {
  Numbers numbers(2);
  for (int n = 0; n < 12; ++n) {
    Call call;
    draw(numbers, 1 + numbers.upto(3), 300, 400, call);
    SCOPED_TRACE(n);
    expect_all_once<128, 128>(call);
    if (HasFatalFailure()) return;
    expect_all_once<192, 128>(call);
    if (HasFatalFailure()) return;
    draw_serving(numbers, 128, call);
    expect_all_once<128, 128, ServingTile>(call);
    if (HasFatalFailure()) return;
    expect_all_once<128, 64, ServingTile>(call);
    if (HasFatalFailure()) return;
    Call tall;
    draw(numbers, 1 + numbers.upto(3), 300, 400, tall);
    draw_serving(numbers, 192, tall);
    expect_all_once<192, 64, ServingTile>(tall);
    if (HasFatalFailure()) return;
    expect_all_once<192, 64, MaskedTile>(tall);
    if (HasFatalFailure()) return;
  }
}

/// Of cuda.sm90.grouped: every (query, head) row sees in all parts together what the CPU's row sees, each key once, and
/// slots of partial results are nobody else's.
template <int kRows, int kKeys>
void expect_grouped(Numbers& numbers, Call& call, std::int32_t group) {
  const Problem& p = call.problem;  // whose heads_q are those of K and V here
  GroupedFacts grouped;
  grouped.group = group;
  grouped.by_group = Divisor::of(group);
  grouped.most_parts = numbers.coin() ? 1 << 30 : 1 + numbers.upto(4);
  // (sequence, head of K and V, row) to keys, and to how often in each part
  using Row = std::tuple<std::int64_t, std::int32_t, std::int32_t>;
  std::map<Row, std::vector<std::int64_t>> keys_of;
  std::map<std::tuple<std::int64_t, std::int32_t, std::int32_t, std::int32_t>, int> done;
  std::map<std::int32_t, int> slots;
  for (std::int32_t cta = 0; cta < call.facts.ctas; ++cta) {
    GroupedWalk<kRows, kKeys, OneLane> walk(call.facts, grouped, cta, OneLane{});
    GroupedTile tile;
    while (walk.next(tile)) {
      ASSERT_TRUE(tile.head >= 0 && tile.head < p.heads_q);
      ASSERT_TRUE(tile.part >= 0 && tile.part < tile.parts && tile.parts <= grouped.most_parts);
      ASSERT_EQ(tile.slot >= 0, tile.parts > 1);
      const std::int64_t b = tile.entry;
      const core::Sequence s = core::sequence_of(p, call.tensors, b);
      ASSERT_EQ(tile.q_row, s.q_row);
      ASSERT_EQ(tile.grouped.seq_q, s.seq_q * group);
      const std::int32_t from = tile.index * kRows;
      ASSERT_LT(from, tile.grouped.seq_q);
      if (tile.slot >= 0) {
        ++slots[tile.slot];
        ASSERT_LT(tile.slot, most_slots(call.facts.ctas));
        ASSERT_EQ(tile.slot / 2, cta);
        ASSERT_EQ(tile.slot, slot_of_part(tile.first, tile.part));
      }
      ++done[{b, tile.head, tile.index, tile.part}];
      const std::int32_t end = std::min(from + kRows, tile.grouped.seq_q);
      const auto& band = tile.grouped.band;
      const BlockRange blocks = blocks_of(band, kKeys, from, end - 1);
      for (std::int32_t row = from; row < end; ++row) {
        auto& keys = keys_of[{b, tile.head, row}];
        for (std::int32_t block = blocks.begin; block < blocks.end; ++block) {
          const Copied copied = p.pages.used() ? copied_pages<kKeys>(call, tile, s, block)
                                               : copied_rows<kKeys>(call, tile, s, block);
          for (const auto& [key, of_sequence] : copied)
            if (key >= band.first(row) && key < band.end(row)) keys.push_back(of_sequence);
        }
      }
    }
  }
  for (const auto& [slot, times] : slots) ASSERT_EQ(times, 1);
  for (const auto& [unit, times] : done) ASSERT_EQ(times, 1);
  std::size_t rows = 0;
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const core::Sequence s = core::sequence_of(p, call.tensors, b);
    const kernels::Band band = band_on_the_cpu(p, s);
    for (std::int32_t head = 0; head < p.heads_q; ++head) {
      for (std::int32_t row = 0; row < s.seq_q * group; ++row, ++rows) {
        const auto found = keys_of.find({b, head, row});
        ASSERT_NE(found, keys_of.end());
        auto& keys = found->second;
        std::sort(keys.begin(), keys.end());
        const kernels::Interval seen = kernels::keys_of(band, row / group);
        ASSERT_EQ(static_cast<std::int64_t>(keys.size()), seen.end - seen.begin);
        for (std::size_t j = 0; j < keys.size(); ++j)
          ASSERT_EQ(keys[j], seen.begin + static_cast<std::int64_t>(j));
      }
    }
  }
  ASSERT_EQ(rows, keys_of.size());
}

TEST(GroupedWalk, SeesEveryKeyOfEveryRowInOnePart) {
  Numbers numbers(11);
  for (int n = 0; n < 1500; ++n) {
    Call call;
    draw(numbers, 1 + numbers.upto(6), 1 + numbers.upto(20), 1 + numbers.upto(200), call);
    draw_serving(numbers, 24, call);
    SCOPED_TRACE(n);
    expect_grouped<16, 8>(numbers, call, 1 + numbers.upto(6));
    if (HasFatalFailure()) return;
    expect_grouped<24, 16>(numbers, call, 1 + numbers.upto(6));
    if (HasFatalFailure()) return;
  }
}

TEST(GroupedWalk, PartsFewLongSequencesAndLeavesManyAlone) {
  const auto parts_of_first = [](std::int32_t batch, std::int32_t heads, std::int32_t keys,
                                 std::int32_t most) {
    PackedFacts facts;
    facts.arrays.seq_q = 8;
    facts.arrays.seq_kv = keys;
    facts.batch = batch;
    facts.heads = heads;
    facts.ctas = 132;
    GroupedFacts grouped;
    grouped.group = 8;
    grouped.by_group = Divisor::of(8);
    grouped.most_parts = most;
    GroupedWalk<128, 128, OneLane> walk(facts, grouped, 0, OneLane{});
    GroupedTile tile;
    EXPECT_TRUE(walk.next(tile));
    return tile.parts;
  };
  constexpr std::int32_t kAny = 1 << 30;
  EXPECT_EQ(parts_of_first(1, 8, 8192, kAny), 13);  // of five blocks
  EXPECT_EQ(parts_of_first(1, 8, 8192, 5), 4);
  EXPECT_EQ(parts_of_first(1, 8, 256, kAny), 1);
  EXPECT_EQ(parts_of_first(3, 8, 8192, kAny), 6);   // of twelve
  EXPECT_EQ(parts_of_first(16, 8, 8192, kAny), 1);  // 128 tiles for 132 CTAs
  EXPECT_EQ(parts_of_first(16, 8, 8192, 1), 1);
  EXPECT_EQ(parts_of_first(1, 1, 131072, kAny), 128);
}

/// Nobody checks the device's arrays: whatever they hold, walks end and nothing outside is touched.
TEST(PackedWalk, StaysInsideWhateverTheArraysHold) {
  Numbers numbers(3);
  for (int n = 0; n < 2000; ++n) {
    Call call;
    draw(numbers, 1 + numbers.upto(6), 1 + numbers.upto(60), 1 + numbers.upto(90), call);
    for (auto* array : {&call.cu_q, &call.cu_kv, &call.used_q, &call.used_kv}) {
      for (std::int32_t& x : *array) {
        if (numbers.coin()) continue;
        x = numbers.upto(numbers.coin() ? 60 : std::numeric_limits<std::int32_t>::max());
        if (numbers.coin()) x = -x;
      }
    }
    call.point();
    const Problem& p = call.problem;
    const Sequences& s = p.sequences;
    const std::int64_t rows = s.packed_q ? s.total_q : p.seq_q;
    const std::int64_t keys = s.packed_kv ? s.total_kv : p.seq_kv;
    for (const auto& tiles : walk<16, 8>(call)) {
      for (const PackedTile& tile : tiles) {
        ASSERT_TRUE(tile.head >= 0 && tile.head < p.heads_q);
        ASSERT_TRUE(tile.batch >= 0 && tile.batch < (s.packed_q ? 1 : p.batch));
        ASSERT_TRUE(tile.kv_batch >= 0 && tile.kv_batch < (s.packed_kv ? 1 : p.batch));
        for (const std::int64_t row :
             rows_of_box(tile.q_row, tile.extent.seq_q, tile.index * 16, 16))
          ASSERT_TRUE(row >= 0 && row < rows);
        for (std::int32_t key = 0; key < tile.extent.band.keys + 8; key += 8)
          for (const std::int64_t row : rows_of_box(tile.kv_row, tile.extent.band.keys, key, 8))
            ASSERT_TRUE(row >= 0 && row < keys);
      }
    }
  }
}

TEST(PackedWalk, OfServingStaysInsideWhateverTheArraysHold) {
  Numbers numbers(6);
  for (int n = 0; n < 2000; ++n) {
    Call call;
    draw(numbers, 1 + numbers.upto(6), 1 + numbers.upto(60), 1 + numbers.upto(90), call);
    draw_serving(numbers, 16, call);
    for (auto* array : {&call.cu_q, &call.cu_kv, &call.used_q, &call.used_kv, &call.kv_start}) {
      for (std::int32_t& x : *array) {
        if (numbers.coin()) continue;
        x = numbers.upto(numbers.coin() ? 60 : std::numeric_limits<std::int32_t>::max());
        if (numbers.coin()) x = -x;
      }
    }
    call.point();
    const Problem& p = call.problem;
    const Sequences& s = p.sequences;
    const std::int64_t rows = s.packed_q ? s.total_q : p.seq_q;
    const std::int64_t keys = s.packed_kv ? s.total_kv : p.seq_kv;
    for (const auto& tiles : walk<16, 8, ServingTile>(call)) {
      for (const ServingTile& tile : tiles) {
        ASSERT_TRUE(tile.head >= 0 && tile.head < p.heads_q);
        ASSERT_TRUE(tile.batch >= 0 && tile.batch < (s.packed_q ? 1 : p.batch));
        ASSERT_TRUE(tile.entry >= 0 && tile.entry < p.batch);
        for (const std::int64_t row :
             rows_of_box(tile.q_row, tile.extent.seq_q, tile.index * 16, 16))
          ASSERT_TRUE(row >= 0 && row < rows);
        const TileBand& band = tile.extent.band;
        const std::int32_t last = std::min(tile.index * 16 + 16, tile.extent.seq_q) - 1;
        const BlockRange blocks = blocks_of(band, 8, tile.index * 16, last);
        ASSERT_GE(blocks.begin, 0);
        ASSERT_TRUE(blocks.end == blocks.begin || blocks.end * 8 <= band.keys + 7);
        for (std::int32_t key = 0; key < band.keys + 8; key += 8) {
          if (!p.pages.used()) {
            for (const std::int64_t row : rows_of_box(tile.kv_row, band.keys, key, 8))
              ASSERT_TRUE(row >= 0 && row < keys);
          } else if (is_seen(tile, key, 8)) {
            const auto size = static_cast<std::int32_t>(p.pages.size);
            const PageBox from = box_at(tile, key, size, Divisor::of(size));
            const std::int32_t end = box_end(tile, key, from.row, size);
            ASSERT_TRUE(from.entry >= 0 && from.entry < p.pages.row_stride);
            ASSERT_TRUE(from.row >= 0 && from.row < p.pages.size);
            ASSERT_TRUE(end > from.row && end <= p.pages.size);
          }
        }
      }
    }
  }
}

/// Of the busiest CTA over the mean, in blocks, for lengths from 128 to 8192.
TEST(PackedWalk, BalancesMixedLengths) {
  Numbers numbers(4);
  for (const bool causal : {false, true}) {
    Call call;
    Problem& p = call.problem;
    p.batch = 64;
    p.heads_q = 32;
    p.seq_q = p.seq_kv = 8192;
    p.sequences.packed_q = p.sequences.packed_kv = true;
    std::int32_t rows = 0;
    call.cu_q.push_back(0);
    for (int b = 0; b < 64; ++b) call.cu_q.push_back(rows += 128 << numbers.upto(6));
    call.cu_kv = call.cu_q;
    p.sequences.total_q = p.sequences.total_kv = rows;
    PackedFacts& f = call.facts;
    f.arrays.seq_q = f.arrays.seq_kv = 8192;
    f.arrays.total_q = f.arrays.total_kv = rows;
    f.arrays.right = causal ? 0 : -1;
    f.arrays.bottom_right = true;
    f.batch = 64;
    f.heads = 32;
    f.ctas = 132;
    f.by_length = f.sorted = true;
    f.pairs = causal;
    call.point();
    std::int64_t most = 0, all = 0;
    for (const auto& tiles : walk<128, 128>(call)) {
      std::int64_t blocks = 0;
      for (const PackedTile& tile : tiles) {
        const std::int32_t last = std::min(tile.index * 128 + 128, tile.extent.seq_q) - 1;
        const BlockRange range = blocks_of(tile.extent.band, 128, tile.index * 128, last);
        blocks += range.end - range.begin + 1;  // one for the tile
      }
      most = std::max(most, blocks);
      all += blocks;
    }
    EXPECT_LE(static_cast<double>(most) * 132, 1.02 * static_cast<double>(all)) << causal;
  }
}

}  // namespace
}  // namespace greenfast::cuda::prefill
