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
//
// Few queries, bf16, inputs rotated through more than L2, same machine and day:
//
//   B,Hq/Hkv,Sq/Skv,D   decode  small   prefill  serving  chosen
//   1,32/8,1/512,128    5.42    4.69    6.11     21.4     small
//   1,32/8,1/2048,128   7.46    11.78   17.63    75.9     decode
//   1,8/8,1/8192,64     12.46   27.05   39.11    232      decode
//   8,8/8,1/512,128     11.35   7.35    7.62     22.3     small
//   32,32/8,1/128,128   8.59    –       17.20    10.3     decode
//   64,64/8,1/1024,128  65.1    –       270      83.1     decode
//   1,32/8,16/512,128   15.99   4.63    6.18     24.9     small
//   64,32/8,16/1024,64  110     –       86.0     80.0     prefill
//
// Before Hopper, bf16, the same kernels timed on an H200 (2026-11-26), inputs rotated:
//
//   B,Hq/Hkv,Sq/Skv,D   sm80.decode  mma     chosen
//   1,32/8,1/128,128    4.74         8.68    decode
//   1,32/8,1/2048,128   11.7         53.0    decode
//   1,32/8,1/8192,128   16.7         197     decode
//   64,32/8,1/2048,128  127          736     decode
//   64,8/8,1/512,128    36.1         58.6    decode
//   1,8/8,64/4096,128   23.7         101     decode
//   8,8/8,64/4096,128   92.6         106     decode
//   8,8/8,32/512,128    25.0         19.3    mma
//   8,32/8,16/512,128   34.3         29.8    mma
//   64,8/8,64/512,128   95.3         59.6    mma
//   64,8/8,64/4096,128  552          365     mma
//   64,32/8,16/4096,128 547          1442    decode
//
// Masks by array, bf16 (H100, 2026-11-26; evidence/masks-h200.json has them of an H200); `49` and `197` have additive masks
// whose rows begin anywhere. The rule was fitted before those came faster, and misses `49`:
//
//   B,Hq/Hkv,Sq/Skv,D   packed  serving  chosen
//   16,32/8,1/2048,128  104     84       serving; since it takes masks decode, 50
//   1,32/8,64/4096,128  45      154      packed
//   8,16,1024,64        105     291      packed
//   64,12,197,64        167     345      packed
//   256,8,49,32         66      78       serving
#include "dispatch/prefer.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "core/arithmetic.hpp"
#include "core/window.hpp"

namespace greenfast::dispatch::prefer {
namespace {

// Best last. A variant that takes less than another and is faster where it does stands above it.
enum Rank : int {
  kReference = 10,  // right, and slow by intent
  kBehindServing = 80,
  kBeforeHopper = 85,  // for GPUs without the kernels of sm_90
  kServing = 90,       // what no other takes
  kPackedDense = 95,
  kAnything = 100,  // whatever the others leave
  kDecodeSm80 = 105,
  kCpu = 200,  // the CPU's only fast one
  kDecodeBehind = 205,
  kBehindPrefill = 210,
  kPacked = 215,  // prefill's loop, 1% behind it
  kPrefill = 220,
  kPackedWindow = 225,
  kSmall = 230,
  kDecode = 240,
  kGrouped = 245,
};

// Tiles of `rows` queries over all heads, as far as the choice may know of the batch.
std::int64_t tiles(const Problem& p, core::Choice choice, std::int64_t rows) {
  return core::ceil_div(p.seq_q, rows) * p.heads_q * (choice.batch_invariant ? 1 : p.batch);
}

// Whether tiles of 128 queries fill half of the machine.
bool fills_half(const Problem& p, const DeviceFacts& facts, core::Choice choice) {
  return 2 * tiles(p, choice, 128) >= std::int64_t{facts.multiprocessors};
}

// Keys from the first that one query sees to the last that another one does.
std::int64_t keys_seen(const Problem& p, std::int64_t first_row, std::int64_t last_row) {
  const auto& [left, right, alignment] = p.mask;
  const std::int64_t shift = alignment == Alignment::bottom_right ? p.seq_kv - p.seq_q : 0;
  const std::int64_t first =
      left < 0 ? 0 : std::clamp<std::int64_t>(shift + first_row - left, 0, p.seq_kv);
  const std::int64_t end =
      right < 0 ? p.seq_kv : std::clamp<std::int64_t>(shift + last_row + right + 1, 0, p.seq_kv);
  return std::max<std::int64_t>(end - first, 0);
}

// Upper bound of the keys that a tile of `rows` queries sees.
std::int64_t tile_keys(const Problem& p, std::int64_t rows) {
  const auto& [left, right, alignment] = p.mask;
  const std::int64_t seen = keys_seen(p, 0, p.seq_q - 1);
  return left < 0 || right < 0 ? seen : std::min(seen, left + right + rows);
}

// Keys that a query sees in the mean, about: half of what the first and the last see together.
std::int64_t mean_keys(const Problem& p) {
  const std::int64_t last = p.seq_q - 1;
  return (keys_seen(p, 0, 0) + keys_seen(p, last, last)) / 2;
}

// cuda.sm90.small gives a tile of 64 queries to a cluster of two blocks. At most one block an SM (at
// D 64 without a loop, up to 512 keys, one and a half) was faster than prefill in all that was
// measured; two where prefill, whose tiles have 128 queries, has long rows of keys for half the
// machine or less.
bool small_beats_prefill(const Problem& p, const DeviceFacts& facts, core::Choice choice) {
  const bool wide = p.head_dim > 64;
  const std::int64_t keys = tile_keys(p, 64);
  // Few queries and one block of keys: 1,32/8,1/128,128 3.9 us, prefill 3.2.
  if (wide && keys <= 128 && p.seq_q <= 64) return false;
  const std::int64_t machine = facts.multiprocessors;
  const bool two_fit = !wide && keys <= 512;
  if (2 * 2 * tiles(p, choice, 64) <= (two_fit ? 3 : 2) * machine) return true;
  return 2 * tiles(p, choice, 128) <= machine && keys >= 512 && (wide || keys <= 1024);
}

// Microseconds, about, of the better of prefill and small for few queries, and of decode: fitted to
// 240 measured problems (B 1 to 64, 128 to 8,192 keys, D 64, 128, 256, 1 to 64 rows a KV head; the
// rows above are some). Choosing by them costs 0.8% over the best choice in the geometric mean, 17%
// at worst but for one (32,64/8,4/128,256: 77%). They rank kernels and predict nothing else.
struct Fitted {
  double start, key;              // prefill: a launch, and a key of a tile
  double small_start, small_key;  // small
  double cluster;                 // decode: a launch with a cluster's merge,
  std::array<double, 3> step;     // and a key of a part, by rows of the tile: 8, 16, 32
};
constexpr std::array kFitted{
    Fitted{2.7, 0.0044, 2.7, 0.0031, 4.4, {0.0135, 0.020, 0.030}},
    Fitted{3.0, 0.0074, 3.2, 0.0042, 4.9, {0.0172, 0.026, 0.036}},
    Fitted{4.4, 0.0114, 0.0, 0.0, 5.1, {0.024, 0.040, 0.040}},
};
/// Pages that no box of 8 keys divides: prefill's loop copies their rows one by one.
bool has_rows_apart(const Problem& p) { return p.pages.used() && p.pages.size % 8 != 0; }
// A key of a tile then takes so much longer, by head dims: 16,64/8,8/8192,64 569 us, 1,32/8,8/4096,128 48,
// 4,16/8,1024/4096,256 385 where dense keys take 244 (bf16, H200, 2026-11-29).
constexpr std::array kRowsApart{2.0, 1.45, 1.6};
constexpr double kBytesOfMicrosecond = 4.2e6;
// Out of pages, with one tile of a few queries an SM: 32,8/4,1/8192,256 bf16 in pages of 16 took
// prefill's loop 228 us, decode 121 (H200, 2026-11-23).
constexpr double kBytesOfMicrosecondInPages = 2.0e6;

struct FewQueries {
  const Problem& p;
  const DeviceFacts& facts;
  core::Choice choice;

  std::int64_t batch() const { return choice.batch_invariant ? 1 : p.batch; }
  std::size_t tile() const { return p.head_dim <= 64 ? 0 : p.head_dim <= 128 ? 1 : 2; }
  const Fitted& fitted() const { return kFitted[tile()]; }
  std::int64_t rows() const { return p.seq_q * (p.heads_q / p.heads_kv); }
  std::int64_t tile_rows() const { return rows() <= 8 ? 8 : rows() <= 16 || tile() == 2 ? 16 : 32; }
  std::int64_t row_blocks() const { return core::ceil_div(rows(), tile_rows()); }
  std::int64_t items() const { return batch() * p.heads_kv * row_blocks(); }
  double keys() const { return static_cast<double>(tile_keys(p, p.seq_q)); }
  double bytes() const {
    return static_cast<double>(batch() * p.heads_kv * p.head_dim) * keys() * 4.0;
  }

  // Of a cluster as decode/shape.hpp chooses it; 0: none.
  std::int64_t blocks_of_cluster() const {
    const bool one_an_sm = tile() == 2;
    if (items() > 15) {
      if (keys() <= 128.0) return 0;
      return items() <= (one_an_sm ? 31 : 62) ? 4 : items() <= (one_an_sm ? 64 : 128) ? 2 : 0;
    }
    return 8;
  }
  // What cuda.sm90.decode has a lean build for.
  bool is_lean() const { return core::is_plain_query(p) && p.dtype != DType::e4m3; }

  double others() const {
    if (tile() < 2 && small_beats_prefill(p, facts, choice))
      return fitted().small_start + keys() * fitted().small_key;
    return prefill();
  }
  double prefill() const {
    const double waves = std::max(1.0, static_cast<double>(tiles(p, choice, 128)) /
                                           static_cast<double>(facts.multiprocessors));
    const double tile_start = 0.3 * static_cast<double>(tile() + 1);
    const double rate = p.pages.used() ? kBytesOfMicrosecondInPages : kBytesOfMicrosecond;
    const double key = fitted().key * (has_rows_apart(p) ? kRowsApart[tile()] : 1.0);
    return std::max(fitted().start - tile_start + waves * (keys() * key + tile_start),
                    bytes() / rate + 1.0);
  }
  double decode() const {
    const std::size_t row = tile_rows() == 8 ? 0 : tile_rows() == 16 ? 1 : 2;
    const double step = fitted().step[row];
    // Fitted before there were clusters of 2 and 4, and builds that leave out what a problem does not ask
    // for: those take so much less, and steps of a cluster are shorter (H100, 2026-11-26).
    const double saved = keys() <= 128.0 ? 0.3
                         : is_lean()     ? std::array{1.4, 1.6, 1.9}[tile()]
                                         : 0.9;
    if (const std::int64_t blocks = blocks_of_cluster(); blocks > 0 && keys() <= 4096 && row < 2) {
      const double merge = row == 0 ? 0.0 : 0.3 * std::pow(static_cast<double>(tile() + 1), 1.5);
      const double shorter = items() <= 31 ? 0.5 : row == 0 ? 1.0 : 0.8;
      const double steps = keys() / static_cast<double>(blocks) * step * shorter;
      return std::max(fitted().cluster - saved + merge + steps,
                      3.0 - saved + bytes() / kBytesOfMicrosecond);
    }
    const std::int64_t slots = std::int64_t{facts.multiprocessors} * (tile() < 2 ? 2 : 1);
    const auto whole = static_cast<std::int64_t>(keys());
    const bool long_parts = whole > 4096 && items() * (whole / 512) >= facts.multiprocessors;
    const std::int64_t most = std::clamp<std::int64_t>(whole / (long_parts ? 512 : 256), 1, 256);
    const std::int64_t parts =
        std::clamp<std::int64_t>(core::ceil_div(85 * slots, 100 * items()), 1, most);
    const auto waves = static_cast<double>(core::ceil_div(items() * parts, slots));
    const double start = 2.5 * static_cast<double>(row_blocks());
    const double work = waves * (start + keys() / static_cast<double>(parts) * step);
    const double memory = bytes() / kBytesOfMicrosecond *
                          std::sqrt(static_cast<double>(row_blocks())) / (parts > 1 ? 0.95 : 1.0);
    return std::max(work, 3.0 + memory) - saved + (parts > 1 ? 4.2 : 0.0);
  }
};

// Dense problems with a window of few keys at D 64, which cuda.sm90.packed does in tiles of 192 rows
// and blocks of 64 keys. bf16, prefill and packed (H200, 2026-11-23): 8,32,2048,64 with 128 keys 106.0
// and 93.9 us, with 1,024 271 and 245; 2,16,8192,64 56.9 and 51.1, 173 and 158; few tiles, 16,12,512,64,
// 22.5 and 24.5.
bool packed_beats_prefill(const Problem& p, const DeviceFacts& facts, core::Choice choice) {
  return !choice.batch_invariant && p.head_dim <= 64 && p.softcap == 0.0f &&
         core::window_within(p.mask, 1024) &&
         tiles(p, choice, 192) >= 8 * std::int64_t{facts.multiprocessors};
}

// Masks by array: cuda.sm90.packed has tiles of 192 rows of a head, one an SM, cuda.sm80.serving 64 rows of
// all heads of a group, two an SM, which take twice as long (the last table) and longer where a mask's rows
// begin anywhere (256x8x49x32: 42 and 78 us, H100, 2026-11-26).
bool packed_beats_serving(const Problem& p, const DeviceFacts& facts, core::Choice choice) {
  const std::int64_t batch = choice.batch_invariant ? 1 : p.batch, machine = facts.multiprocessors;
  const std::int64_t group = p.heads_q / p.heads_kv;
  const std::int64_t packed = core::ceil_div(tiles(p, choice, 192), machine);
  const std::int64_t serving = core::ceil_div(
      core::ceil_div(p.seq_q * group, std::int64_t{64}) * p.heads_kv * batch, 2 * machine);
  return packed <= 2 * serving;
}

// e4m3, dense. One H200, 2026-11-27, microseconds, V as rows, full / causal: cuda.sm90.fp8_serving, which has
// no pass over V, blocks of 64 keys and weights in fp16; fp8_curved; fp8.
//
//   B,H,S,D        fp8_serving  curved       fp8
//   32,16,512,128  118 / 84     114 / 114    142 / 127
//   16,16,1024,128 204 / 125    176 / 146    221 / 175
//   8,16,2048,128  347 / 204    290 / 219    369 / 267
//   2,16,8192,128  1370 / 628   1036 / 554   1300 / 676
//   32,32,512,64   165 / 117    137 / 140    201 / 176
//   8,32,2048,64   508 / 282    374 / 257    536 / 384
//   2,32,8192,64   1850 / –     1343 / –     1930 / –
//   2,8,4096,256   384 / 221    260 / 163    –
//   16,16,300,256  73.1 / 59.9  68.5 / 65.5  –
//   4,16,2048,192  392 / 216    272 / 174    –
//
// With a window (H100, the same day): 8,32,2048,64 with 128 keys 101 and 140, 8,16,2048,128 with 128 keys 80 and
// 111, 2,16,8192,128 with 1,024 keys 208 and 238, 2,32,8192,64 with 256 keys 122 and 164; H200: 8,16,2048,256 with
// 128 keys 152 and 186, 2,8,8192,256 with 1,024 keys 223 and 190.
//
// Where a log-sum-exp is asked for, fp8 is who else takes it; where V comes transposed, fp8_serving does not.
bool fp8_serving_beats_dense(const Problem& p) {
  const bool wide = p.head_dim > 64, masked = p.mask.left >= 0 || p.mask.right >= 0;
  if (p.accuracy == Accuracy::fast) return false;
  if (p.lse) return !wide || masked || mean_keys(p) <= 4096;
  return masked && mean_keys(p) <= (wide && p.head_dim <= 128 ? 1024 : 256);
}

// Of a sequence, as far as the choice may know of the batch: no more than the longest has.
std::int64_t mean_queries(const Problem& p, core::Choice choice) {
  if (!p.sequences.packed_q || choice.batch_invariant) return p.seq_q;
  return std::min(p.seq_q, core::ceil_div(p.sequences.total_q, p.batch));
}

// What cuda.sm90.fp8 and its kin have no features for, or are not known to be faster at: above 128 columns
// they were not timed beside decode, which parts the keys of few rows.
bool dense_fp8_takes(const Problem& p) {
  return p.head_dim <= 128 && value_dim(p) == p.head_dim && !p.sinks && p.chunk == 0 &&
         p.softcap == 0.0f;
}

// e4m3 with lengths or pages. cuda.sm90.fp8_serving has tiles of 128 rows of a head and walks over all of its
// keys; decode has up to 32 rows of a group, splits the keys, and leaves out rows that are not there: of a
// batch of single tokens and a few longer sequences their mean says more than the longest. Pages of 16, one
// H200, 2026-11-27, microseconds:
//
//   B,Hq/Hkv,Sq/Skv,D                       decode  fp8_serving
//   16,32/8,8/8192,128, lengths from 512 on  74     104
//   16,32/8,16/8192,128, lengths from 512 on 133    105
//   1,32/8,16/8192,128                       37     66
//   64,32/8,16/1024,128                      190    170
//   16,8/8,64/4096,64                        121    37
//
// Pages that are no multiple of 8 keys cost it 1.1 to 1.4 times as much (docs/kernels/sm90-fp8-serving.md), decode
// nothing: where cuda.sm90.grouped does not take them, up to 64 rows are decode's [estimated].
bool decode_beats_fp8_serving(const Problem& p, const DeviceFacts& facts, core::Choice choice) {
  const std::int64_t rows = mean_queries(p, choice) * (p.heads_q / p.heads_kv);
  const std::int64_t most_of_a_group = has_rows_apart(p) ? 64 : 32;
  // Few keys: 4,32/8,8/512,128 in pages of one key 23 us and 12 (H200, 2026-11-29).
  const FewQueries few{p, facts, choice};
  if (rows > 16 && few.prefill() < few.decode()) return false;
  return !fills_half(p, facts, choice) || rows <= (p.heads_q > p.heads_kv ? most_of_a_group : 16);
}

// cuda.sm90.grouped has the heads of a group in one tile and parts the keys. Pages of 16, microseconds: of
// up to 32 rows of a group and bf16 decode and grouped in one run (H200, 2026-11-28; lengths from 512 to the
// most where there are 16 sequences of 8192), of more rows grouped there, and decode and the others
// (packed and fp8_serving, pages of 64 from 64 queries on) of an H200 of the day before:
//
//   B,Hq/Hkv,Sq/Skv,D      bf16: decode others grouped   e4m3: decode others grouped
//   16,32/8,16/8192,128          132    169    60              134    105    49
//   1,32/8,16/8192,128           35     116    21              37     67     19
//   32,96/8,4/8192,128           295    1090   103             301    690    76
//   64,32/8,16/1024,128          169    234    90              189    171    68
//   16,64/8,8/8192,64            89     183    33              92     183    38
//   16,32/8,8/8192,128           65     169    54              64     105    43
//   1,32/8,8/32768,128           51     476    45              53     274    34
//   16,32/8,6/8192,128           62            52              60            41
//   32,96/8,2/8192,128           117           98              115           72
//   4,32/8,8/512,128             23            19              22            18
//   1,32/8,8/512,128             17            18              19            17
//   1,32/8,8/2048,128            19            19              19            16
//   1,32/8,8/4096,128            20            20              20            17
//   16,32/8,4/8192,128           47     169    51              39     105    40
//   1,32/8,4/32768,128           44            45              32            34
//   8,32/8,64/8192,128           –      58     81              –      57     70
//   1,32/8,128/32768,128         –      385    126             –      344    116
//   8,32/8,256/8192,128          –      165    194             –      140    169
//
// Pages of one key, all sequences as long as the longest (H200, 2026-11-29; others are packed and fp8_serving):
//
//   16,32/8,16/8192,128          308    361    177            317    381   135
//   16,32/8,8/8192,128           163    361    169            169    382   129
//   16,32/8,6/8192,128           160    361    168            165    381   128
//   1,32/8,8/32768,128           52     391    55             54     391   45
//   1,32/8,8/4096,128            21     48     23             20     50    20
//   1,32/8,8/1024,128            18     16     22             19     16    19
//   4,32/8,8/512,128             24     12     22             23     12    20
//   16,64/8,8/8192,64            210    569    103            224    533   87
//   64,32/8,16/1024,128          170    210    107            193    204   90
//   16,32/8,32/8192,128          –      390    210            –      378   164
//   8,32/8,64/8192,128           –      201    198            –      193   163
//   1,32/8,128/32768,128         –      515    171            –      472   146
//   32,96/8,4/8192,128           581    2098   314            606    2228  240
bool grouped_is_fastest(const Problem& p, const DeviceFacts& facts, core::Choice choice) {
  const std::int64_t group = p.heads_q / p.heads_kv, keys = tile_keys(p, p.seq_q);
  const std::int64_t rows = mean_queries(p, choice) * group;
  const bool few_tiles = !fills_half(p, facts, choice), dense = core::is_dense(p);
  if (rows <= 16 || keys < 512) return false;
  if (p.dtype != DType::e4m3 && rows <= 32) {
    // A few heads of few keys: what it takes to begin and to join is 1 to 2 us more than decode's. Dense it was not
    // timed beside decode.
    if (dense || has_rows_apart(p) || (p.batch * p.heads_kv <= 8 && keys < 2048)) return false;
  }
  // To begin and to join takes it some 16 us, more than cuda.sm90.packed and its kin for e4m3 need for few keys. They
  // take what has an output of its type.
  const bool others_take = p.dtype == DType::e4m3 || p.out_dtype == p.dtype;
  if (!dense && others_take && FewQueries{p, facts, choice}.prefill() < 15.0) return false;
  // Dense, cuda.sm90.small has two CTAs for 64 rows: 1,32/8,16/8192,128 25 us and 36, 1,8/8,64/8192,64 19 and 27, but
  // 1,32/8,64/4096,128 31 and 20, 1,16/16,128/8192,64 32 and 27; 1,32/8,128/32768,128 126, 141, and prefill
  // 360 (H100, 2026-11-27).
  if (dense) {
    const std::int64_t all =
        core::ceil_div(p.seq_q * group, std::int64_t{128}) * p.heads_kv * p.batch;
    return few_tiles && keys >= 8192 && keys >= 1024 * all && p.accuracy != Accuracy::fast;
  }
  return (group > 1 && p.seq_q <= (has_rows_apart(p) ? 64 : 32)) || (few_tiles && keys >= 2048);
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
  return {kBehindPrefill, "behind cuda.sm90.prefill, which is faster at these lengths"};
}

core::Preference cuda_sm80_serving(const Problem&, const DeviceFacts&, core::Choice) {
  return {kServing};
}
core::Preference cuda_sm80_decode(const Problem& p, const DeviceFacts& facts, core::Choice choice) {
  if (facts.arch == 90) return {kBeforeHopper, "behind cuda.sm90.decode, which takes the same"};
  const FewQueries few{p, facts, choice};
  // The third table: who reads the keys once for 64 rows wins where his tiles fill the machine.
  const bool once = !core::is_dense(p) || p.heads_q == p.heads_kv;
  const bool fills = few.batch() * p.heads_kv >= facts.multiprocessors;
  if (once && fills && few.row_blocks() > 1)
    return {kBehindServing, "behind others, which read the keys once for all rows"};
  // Parts of few keys that a second kernel merges, where other tiles fill two fifths of the machine.
  if (few.rows() > 16 && few.keys() <= 512.0 && !fills &&
      5 * few.batch() * p.heads_kv * few.row_blocks() >= 2 * std::int64_t{facts.multiprocessors})
    return {kBehindServing, "behind others, which need no second kernel for so few keys"};
  return {kDecodeSm80};
}
core::Preference cuda_sm90_packed(const Problem& p, const DeviceFacts& facts, core::Choice choice) {
  if (p.array_mask.kind != MaskKind::none && !packed_beats_serving(p, facts, choice)) {
    return {
        kBehindServing,
        "behind cuda.sm80.serving, whose tiles hold all heads of a group: faster for so few rows"};
  }
  if (packed_beats_prefill(p, facts, choice)) return {kPackedWindow};
  if (core::is_dense(p)) return {kPackedDense, "behind the kernels for dense problems"};
  return {kPacked};
}
core::Preference cuda_sm90_fp8_serving(const Problem& p, const DeviceFacts&, core::Choice) {
  if (!core::is_dense(p)) return {kPacked};
  if (fp8_serving_beats_dense(p)) return {kPackedWindow};
  return {kPackedDense, "behind the kernels for dense e4m3 where they take the problem"};
}
core::Preference cuda_sm90_grouped(const Problem& p, const DeviceFacts& facts,
                                   core::Choice choice) {
  if (grouped_is_fastest(p, facts, choice)) return {kGrouped};
  return {kPackedDense,
          "behind cuda.sm90.decode where rows of a group are few, and behind others "
          "where tiles of one head are full or many"};
}
core::Preference cuda_sm90_fp8(const Problem& p, const DeviceFacts&, core::Choice) {
  if (p.lse) return {kPrefill};
  return {kBehindPrefill, "behind cuda.sm90.fp8_curved, which is faster where no LSE is asked for"};
}
core::Preference cuda_sm90_fp8_curved(const Problem&, const DeviceFacts&, core::Choice) {
  return {kPrefill};
}
core::Preference cuda_sm90_fp8_fast(const Problem&, const DeviceFacts&, core::Choice) {
  return {kPrefill};
}
core::Preference cuda_sm90_decode(const Problem& p, const DeviceFacts& facts, core::Choice choice) {
  const FewQueries few{p, facts, choice};
  // What is fitted is dense. Only prefill's loop takes one query of lengths, an index or pages beside
  // this, and is not known to read them faster: 32,8/4,1/8192,256 bf16 with lengths 126 us (H200,
  // 2026-11-23), 114 here in a run of the day before.
  if (p.seq_q == 1 && !core::is_dense(p)) return {kDecode};
  if (p.dtype == DType::e4m3 && p.array_mask.kind == MaskKind::none && !core::is_dense(p)) {
    if (decode_beats_fp8_serving(p, facts, choice)) return {kDecode};
    return {
        kDecodeBehind,
        "behind cuda.sm90.fp8_serving where that takes the problem: it reads the keys once for all "
        "rows"};
  }
  // Others have tiles of 64 rows or more for a few. Up to 16 rows they take 1.1 to 3.6 times as long with a mask or
  // in e4m3, half of it from 32 rows on: 16,8,16/2048,64 with a mask 33 us, packed 49; 16,8,32/2048,64 91 and
  // 32; e4m3 8,8,16/2048,128 23 and 26, 8,8,32/4096,64 48 and 31 (H100, 2026-11-26).
  const bool apart = p.array_mask.kind != MaskKind::none || p.dtype == DType::e4m3;
  if (apart && few.rows() <= 16) return {kDecode};
  // Of what the kernels for dense e4m3 refuse: 1,32/8,16/8192,128 with sinks 35 us, cuda.sm90.fp8_serving 63;
  // 8,32/8,16/2048,128, whose tiles fill the machine, 81 and 37 (H100, 2026-11-27).
  if (p.dtype == DType::e4m3 && p.array_mask.kind == MaskKind::none && !dense_fp8_takes(p) &&
      !fills_half(p, facts, choice))
    return {kDecode};
  if (apart)
    return {kBehindServing,
            "behind others where they take the problem: from 17 rows on they are faster"};
  // With a softcap nobody else has such pages, and what batch_invariant may know of the batch, one entry, is too little
  // to say that others are faster.
  const bool rows_apart = has_rows_apart(p);
  if (rows_apart && (p.softcap > 0.0f || choice.batch_invariant)) return {kDecode};
  if (few.decode() < (rows_apart ? few.prefill() : few.others())) return {kDecode};
  // Each block of rows reads the keys again.
  if (few.row_blocks() > 1 && few.items() > 2 * facts.multiprocessors)
    return {kBehindServing, "behind others, which read the keys once for all rows"};
  if (!core::is_dense(p))
    return {kDecodeBehind,
            "behind cuda.sm90.packed where that takes the problem: it is faster "
            "at these lengths"};
  return {kDecodeBehind,
          "behind cuda.sm90.prefill and cuda.sm90.small where they take the "
          "problem: they are faster at these lengths"};
}

}  // namespace greenfast::dispatch::prefer
