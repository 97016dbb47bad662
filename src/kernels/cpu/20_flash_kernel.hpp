// cpu.flash: tiled online softmax, one source for five instruction sets.
//
// Idea    S^T = K Q^T and O^T += V^T P^T, with queries in the vector lanes. K and V are broadcast
//         operands, as they lie in memory with any strides; only the tile of Q is transposed on
//         entry and that of O on exit. Maximum, sum and rescaling are then vertical: there is no
//         horizontal reduction anywhere. New since naive: register tiles, tiles of keys, the vector
//         exponential, bf16 products, AMX.
// Takes   every problem that check() accepts.
// Limits  none; a head of up to 8 rows goes another way round (docs/kernels/cpu-flash.md).
// Budget  a thread's arena: up to task_rows rows of Q and O, one tile of scores, one tile each of K
//         and V where they need converting; 1.2 MiB at head dim 256. Where keys are split, the
//         parts' O and sums, in memory that the calling thread keeps.
// Bound   FMA, vdpbf16ps or tdpbf16ps throughput; memory for few rows.
//
// Included once by each 20_flash_<isa>.cpp after the simd header of its instruction set.
#include <greenfast/arithmetic.hpp>

#include "core/constants.hpp"

namespace greenfast::kernels::flash {
namespace {

constexpr int kTileRows = kMaxVectors * kLanes;
constexpr int kMaxHeadDim = 256;
constexpr int kMaxTiles = 32;  // register-tile rows of one task
constexpr int kMaxKeyTile = 384;
constexpr int kStageStride = kMaxHeadDim + kLanes;
constexpr float kInfinity = __builtin_inff();

// What the multiplications work on. A unit is 4 bytes: as many elements along the reduction as one
// lane holds.
struct Fp32 {
  static constexpr int kPerUnit = 1;
  static constexpr bool kTiles = false;
  static constexpr int kExpDegree = 5;
  [[gnu::always_inline]] static inline Vec mul_acc(Vec acc, Vec a, Vec b) {
    return mul_add(a, b, acc);
  }
};
#if defined(__AVX512BF16__)
struct Bf16Pairs {
  static constexpr int kPerUnit = 2;
  static constexpr bool kTiles = false;
  static constexpr int kExpDegree = 4;  // P is rounded to 2^-9
  [[gnu::always_inline]] static inline Vec mul_acc(Vec acc, Vec a, Vec b) {
    return dot_add(acc, a, b);
  }
};
#endif
#if defined(GREENFAST_AMX)
/// One piece: bf16, and what fits in it. Two pieces: fp16, whose 11 bits are the sum of two bf16
/// exactly; weights get 16 bits.
template <int kCount>
struct Bf16Tiles {
  static constexpr int kPerUnit = 2;
  static constexpr bool kTiles = true;
  static constexpr int kPieces = kCount;
  static constexpr int kExpDegree = kPieces == 1 ? 4 : 5;
};
#endif

template <int kValue>
struct Int {
  static constexpr int kIs = kValue;
};
template <class A, class B>
constexpr bool kSame = false;
template <class A>
constexpr bool kSame<A, A> = true;

/// Hands out parts of an arena, or, from null, measures them.
struct Bump {
  char* base;
  std::int64_t used = 0;
  template <class T>
  T* take(std::int64_t count) {
    T* const part = base == nullptr ? nullptr : reinterpret_cast<T*>(base + used);
    used += round_up(count * static_cast<std::int64_t>(sizeof(T)), 64);
    return part;
  }
};

// ---- register tiles ---------------------------------------------------------------------------

/// Rows of a tile that see only part of a tile of keys: key n, counted from the tile's first, is
/// seen where begin <= n < end.
struct alignas(64) Bounds {
  std::int32_t begin[kTileRows], end[kTileRows];
};

/// Scores of kKeys keys against the tile's queries, and their running maximum. Bounds may be null.
template <class A, int kVectors, int kKeys>
[[gnu::always_inline]] inline void score_block(const float* q, int units, const char* k,
                                               std::int64_t k_stride, float* s, float* highest,
                                               const Bounds* bounds, int first_key) {
  constexpr int kRows = kVectors * kLanes;
  Vec acc[kKeys][kVectors];
#pragma GCC unroll 16
  for (int j = 0; j < kKeys; ++j) {
#pragma GCC unroll 4
    for (int m = 0; m < kVectors; ++m) acc[j][m] = zero();
  }
  // Head dims are multiples of 8, so units are of 4.
  for (int left = units; left > 0; left -= 4) {
#pragma GCC unroll 4
    for (int u = 0; u < 4; ++u) {
      Vec queries[kVectors];
#pragma GCC unroll 4
      for (int m = 0; m < kVectors; ++m) queries[m] = load(q + u * kRows + m * kLanes);
#pragma GCC unroll 16
      for (int j = 0; j < kKeys; ++j) {
        const Vec key = broadcast(k + j * k_stride + 4 * u);
#pragma GCC unroll 4
        for (int m = 0; m < kVectors; ++m) acc[j][m] = A::mul_acc(acc[j][m], queries[m], key);
      }
    }
    q += 4 * kRows;
    k += 16;
  }
  if (bounds != nullptr) {
#pragma GCC unroll 16
    for (int j = 0; j < kKeys; ++j) {
#pragma GCC unroll 4
      for (int m = 0; m < kVectors; ++m) {
        acc[j][m] = if_between(first_key + j, bounds->begin + m * kLanes, bounds->end + m * kLanes,
                               acc[j][m], set(-kInfinity));
      }
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < kVectors; ++m) {
    Vec top = load(highest + m * kLanes);
#pragma GCC unroll 16
    for (int j = 0; j < kKeys; ++j) {
      top = max(acc[j][m], top);
      store(s + j * kRows + m * kLanes, acc[j][m]);
    }
    store(highest + m * kLanes, top);
  }
}

/// O^T for kColumns columns: rescaled, plus V^T P^T over `units` units of keys. The tile's own sum
/// starts at 0, so that its addends meet a sum of their own size however long the row is.
template <class A, int kVectors, int kColumns>
void value_block(const float* p, int units, const char* v, std::int64_t v_stride,
                 const float* rescale, float* o) {
  constexpr int kRows = kVectors * kLanes;
  Vec acc[kColumns][kVectors];
#pragma GCC unroll 16
  for (int j = 0; j < kColumns; ++j) {
#pragma GCC unroll 4
    for (int m = 0; m < kVectors; ++m) acc[j][m] = zero();
  }
  for (int u = 0; u < units; ++u) {
    Vec weights[kVectors];
#pragma GCC unroll 4
    for (int m = 0; m < kVectors; ++m) weights[m] = load(p + m * kLanes);
#pragma GCC unroll 16
    for (int j = 0; j < kColumns; ++j) {
      const Vec value = broadcast(v + 4 * j);
#pragma GCC unroll 4
      for (int m = 0; m < kVectors; ++m) acc[j][m] = A::mul_acc(acc[j][m], weights[m], value);
    }
    p += kRows;
    v += v_stride;
  }
#pragma GCC unroll 16
  for (int j = 0; j < kColumns; ++j) {
#pragma GCC unroll 4
    for (int m = 0; m < kVectors; ++m) {
      float* const at = o + j * kRows + m * kLanes;
      store(at, mul_add(load(at), load(rescale + m * kLanes), acc[j][m]));
    }
  }
}

#if defined(GREENFAST_AMX)
// ---- tiles of AMX -------------------------------------------------------------------------------

// A block of scores is 32 keys by 32 queries at most: four tiles of sums, two of K and two of Q^T.
// Columns of O^T, 16 queries wide, take up to four tiles of sums, and run beside the exponentials
// of the next block. P^T and Q^T have the layouts that the vector code gives them; K and V^T are
// packed, tile after tile, 16 keys by 32 of the head dim and 16 of the head dim by 32 keys. With
// two pieces, a tile of high parts precedes one of low parts.
constexpr int kBlockKeys = 2 * kTileSide;

/// Rows of one piece of Q^T.
constexpr int query_units(int head_dim) { return ceil_div(head_dim, kBlockKeys) * kTileSide; }

/// Scores of one block of keys. k: its first row of tiles, `steps` tiles of each piece.
template <int kPieces, int kVectors>
[[gnu::always_inline]] inline void tile_scores(const float* q, int steps, const char* k, float* s) {
  constexpr int kRows = kVectors * kLanes, kRowBytes = 4 * kRows;
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kVectors == 2) {
    _tile_zero(2);
    _tile_zero(3);
  }
  const char* const lower = k + steps * kPieces * kTileBytes;
  for (int step = 0; step < steps; ++step) {
    const float* const queries = q + step * kTileSide * kRows;
    const int at = step * kPieces * kTileBytes;
    _tile_loadd(4, k + at, 64);
    _tile_loadd(6, queries, kRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, lower + at, 64);
    _tile_dpbf16ps(1, 5, 6);
    if constexpr (kVectors == 2) {
      _tile_loadd(7, queries + kLanes, kRowBytes);
      _tile_dpbf16ps(2, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
    if constexpr (kPieces == 2) {
      // High keys by low queries, low by low, low by high: all four products, so exact ones.
      const float* const low = queries + steps * kTileSide * kRows;
      _tile_loadd(6, low, kRowBytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 5, 6);
      if constexpr (kVectors == 2) {
        _tile_loadd(7, low + kLanes, kRowBytes);
        _tile_dpbf16ps(2, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
      }
      _tile_loadd(4, k + at + kTileBytes, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(5, lower + at + kTileBytes, 64);
      _tile_dpbf16ps(1, 5, 6);
      _tile_loadd(6, queries, kRowBytes);
      if constexpr (kVectors == 2) {
        _tile_dpbf16ps(2, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
        _tile_loadd(7, queries + kLanes, kRowBytes);
        _tile_dpbf16ps(2, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
      }
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 5, 6);
    }
  }
  _tile_stored(0, s, kRowBytes);
  _tile_stored(1, s + kTileSide * kRows, kRowBytes);
  if constexpr (kVectors == 2) {
    _tile_stored(2, s + kLanes, kRowBytes);
    _tile_stored(3, s + kTileSide * kRows + kLanes, kRowBytes);
  }
}

/// Masks a block's scores where bounds are not null, and takes their maximum.
template <int kVectors>
[[gnu::always_inline]] inline void tile_maximum(float* s, float* highest, const Bounds* bounds,
                                                int first_key) {
  constexpr int kRows = kVectors * kLanes;
#pragma GCC unroll 2
  for (int m = 0; m < kVectors; ++m) {
    Vec top = load(highest + m * kLanes);
    if (bounds == nullptr) {
      Vec other = top;
#pragma GCC unroll 16
      for (int j = 0; j < kBlockKeys; j += 2) {
        top = max(load(s + j * kRows + m * kLanes), top);
        other = max(load(s + (j + 1) * kRows + m * kLanes), other);
      }
      top = max(other, top);
    } else {
      for (int j = 0; j < kBlockKeys; ++j) {
        float* const at = s + j * kRows + m * kLanes;
        const Vec x = if_between(first_key + j, bounds->begin + m * kLanes,
                                 bounds->end + m * kLanes, load(at), set(-kInfinity));
        store(at, x);
        top = max(x, top);
      }
    }
    store(highest + m * kLanes, top);
  }
}
#endif

// ---- softmax ----------------------------------------------------------------------------------

// A weight is 2^(factor * (score / 2 - max / 2)): subtracted first, because a product rounded
// before it would be off by half a unit in *its* last place, 32 at 2^29; and halved before, because
// finite scores may be farther apart than the largest float. factor is 2 log2(e) times what one
// natural unit of score is.
constexpr float kFactorOfUnit = 2.0f * core::kLog2E;
constexpr float kLargest = 0x1.fffffep127f;

// Weights are smaller by 2^32, so that their sum, over up to 2^32 keys, is below 1 and values up to
// the last finite one have a finite mean. Below 2^-94 of the largest a weight becomes 0.
constexpr int kWeightDown = 32;
constexpr float kWeightUp = 0x1p32f;

[[gnu::always_inline]] inline Vec half_of(Vec x) { return mul(x, set(0.5f)); }

/// 2^(factor * (score / 2 - half_max)), smaller by 2^kDown.
template <int kDegree, int kDown>
[[gnu::always_inline]] inline Vec weight(Vec score, Vec half_max, Vec factor) {
  return exp2<kDegree, kDown>(mul(mul_sub(score, set(0.5f), half_max), factor));
}

/// What weights against the maximum `before` are multiplied by when it becomes `now`: exactly 1
/// where it stays, so that a tile in which a row sees nothing changes none of its bits.
[[gnu::always_inline]] inline Vec rescaling(Vec before, Vec now, Vec factor) {
  return if_equal(before, now, set(1.0f), weight<5, 0>(before, half_of(now), factor));
}

/// half_max for a row that has seen nothing but -inf: any finite value keeps its weights 0.
[[gnu::always_inline]] inline Vec half_max_of(Vec top) {
  return half_of(if_equal(top, set(-kInfinity), zero(), top));
}

/// cap * tanh(score * scale / cap), inner being scale / cap: up to 0.625 the scaled score times a
/// polynomial for tanh(x) / x (minimax in relative error, 4e-9), so that no cap is too large; from
/// there on cap * (1 - 2 / (1 + e^2x)).
[[gnu::always_inline]] inline Vec soft_cap(Vec score, Vec scale, Vec inner, Vec cap) {
  const Vec scaled = mul(score, scale), x = mul(score, inner);
  const Vec magnitude = abs(x);
  const Vec z = mul(x, x);
  Vec p = mul_add(set(-0.005704987007f), z, set(0.02063908726f));
  p = mul_add(p, z, set(-0.05373971509f));
  p = mul_add(p, z, set(0.133314422f));
  p = mul_add(p, z, set(-0.3333328194f));
  const Vec small = mul_add(mul(scaled, z), p, scaled);
  // The clamp keeps the exponential finite, and the result is 1 long before.
  const Vec bounded = if_less(set(20.0f), magnitude, set(20.0f), magnitude);
  const Vec power = exp2<5>(mul(bounded, set(2.0f * core::kLog2E)));
  const Vec large = sub(set(1.0f), div(set(2.0f), add(power, set(1.0f))));
  return if_less(magnitude, set(0.625f), small, mul(copy_sign(large, x), cap));
}

/// soft_cap's inner factor. The largest float stands for what lies beyond it.
[[gnu::always_inline]] inline Vec inner_of(Vec scale, Vec cap) {
  return min(div(scale, cap), set(kLargest));
}

/// Scores become scaled and capped ones.
template <int kVectors>
void cap_scores(float* s, int keys, const float* scale, float softcap, float* highest,
                const Bounds* bounds) {
  constexpr int kRows = kVectors * kLanes;
  const Vec cap = set(softcap);
  for (int m = 0; m < kVectors; ++m) {
    const Vec outer = load(scale + m * kLanes), inner = inner_of(outer, cap);
    Vec top = set(-kInfinity);
    for (int n = 0; n < keys; ++n) {
      float* const at = s + n * kRows + m * kLanes;
      Vec x = soft_cap(load(at), outer, inner, cap);
      if (bounds != nullptr) {
        x = if_between(n, bounds->begin + m * kLanes, bounds->end + m * kLanes, x, set(-kInfinity));
      }
      store(at, x);
      top = max(x, top);
    }
    store(highest + m * kLanes, top);
  }
}

/// Scores become weights, for pairs packed in place; sums are of the weights before rounding.
template <class A, int kVectors>
void exponentiate(float* s, int keys, const float* factor, const float* half_max, float* sums) {
  constexpr int kRows = kVectors * kLanes;
  Vec scale[kVectors], top[kVectors], sum[kVectors];
  for (int m = 0; m < kVectors; ++m) {
    scale[m] = load(factor + m * kLanes);
    top[m] = load(half_max + m * kLanes);
    sum[m] = zero();
  }
  if constexpr (A::kPerUnit == 1) {
    for (int n = 0; n < keys; ++n) {
#pragma GCC unroll 4
      for (int m = 0; m < kVectors; ++m) {
        float* const at = s + n * kRows + m * kLanes;
        const Vec p = weight<A::kExpDegree, kWeightDown>(load(at), top[m], scale[m]);
        sum[m] = add(sum[m], p);
        store(at, p);
      }
    }
  } else {
#if defined(__AVX512BF16__)
    float* to = s;
    int n = 0;
    for (; n + 2 <= keys; n += 2) {
#pragma GCC unroll 4
      for (int m = 0; m < kVectors; ++m) {
        const float* const at = s + n * kRows + m * kLanes;
        const Vec p0 = weight<A::kExpDegree, kWeightDown>(load(at), top[m], scale[m]);
        const Vec p1 = weight<A::kExpDegree, kWeightDown>(load(at + kRows), top[m], scale[m]);
        sum[m] = add(sum[m], add(p0, p1));
        store(to + m * kLanes, pack_pair(p0, p1));
      }
      to += kRows;
    }
    if (n < keys) {
      for (int m = 0; m < kVectors; ++m) {
        const Vec p =
            weight<A::kExpDegree, kWeightDown>(load(s + n * kRows + m * kLanes), top[m], scale[m]);
        sum[m] = add(sum[m], p);
        store(to + m * kLanes, pack_pair(p, zero()));
      }
    }
#endif
  }
  for (int m = 0; m < kVectors; ++m) store(sums + m * kLanes, sum[m]);
}

#if defined(GREENFAST_AMX)
/// One vector's weights for a block of keys: pairs in place, rows close up; with two pieces a row
/// of high parts, then one of low parts.
template <class A, int kRows>
[[gnu::always_inline]] inline void tile_weights(const float* s, Vec factor, Vec half_max, float* p,
                                                Vec& sum) {
#pragma GCC unroll 4
  for (int pair = 0; pair < kTileSide; ++pair) {
    const float* const at = s + 2 * pair * kRows;
    const Vec p0 = weight<A::kExpDegree, kWeightDown>(load(at), half_max, factor);
    const Vec p1 = weight<A::kExpDegree, kWeightDown>(load(at + kRows), half_max, factor);
    sum = add(sum, add(p0, p1));
    const Vec high = pack_pair(p0, p1);
    store(p + pair * A::kPieces * kRows, high);
    if constexpr (A::kPieces == 2) {
      const Vec low = pack_pair(sub(p0, first_of_pair(high)), sub(p1, second_of_pair(high)));
      store(p + (2 * pair + 1) * kRows, low);
    }
  }
}

/// O^T for kHeight tiles of the head dim and one vector of queries: rescaled, plus V^T P^T over
/// `blocks` blocks of keys. kFirst: turns the scores into weights on the way, one block ahead, so
/// that vectors and tiles are busy at once.
template <class A, int kVectors, int kHeight, bool kFirst>
[[gnu::always_inline]] inline void tile_values(float* s, int blocks, const char* v, int v_stride,
                                               Vec factor, Vec half_max, Vec rescale, float* o,
                                               Vec& sum) {
  constexpr int kRows = kVectors * kLanes, kRowBytes = 4 * A::kPieces * kRows;
  constexpr int kBlock = A::kPieces * kTileSide * kRows;  // of P^T
  constexpr int kNext = A::kPieces * kTileBytes;
  alignas(64) float sums[kHeight * kTileSide * kLanes];
  _tile_zero(0);
  if constexpr (kHeight > 1) _tile_zero(1);
  if constexpr (kHeight > 2) _tile_zero(2);
  if constexpr (kHeight > 3) _tile_zero(3);
  if constexpr (kFirst) tile_weights<A, kRows>(s, factor, half_max, s, sum);
  for (int block = 0; block < blocks; ++block) {
    if constexpr (kFirst) {
      if (block + 1 < blocks) {
        tile_weights<A, kRows>(s + (block + 1) * kBlockKeys * kRows, factor, half_max,
                               s + (block + 1) * kBlock, sum);
      }
      finish_stores();
    }
    const float* const p = s + block * kBlock;
    _tile_loadd(6, p, kRowBytes);
    if constexpr (A::kPieces == 2) _tile_loadd(7, p + kRows, kRowBytes);
    _tile_loadd(4, v, 64);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (A::kPieces == 2) _tile_dpbf16ps(0, 4, 7);
    if constexpr (kHeight > 1) {
      _tile_loadd(5, v + kNext, 64);
      _tile_dpbf16ps(1, 5, 6);
      if constexpr (A::kPieces == 2) _tile_dpbf16ps(1, 5, 7);
    }
    if constexpr (kHeight > 2) {
      _tile_loadd(4, v + 2 * kNext, 64);
      _tile_dpbf16ps(2, 4, 6);
      if constexpr (A::kPieces == 2) _tile_dpbf16ps(2, 4, 7);
    }
    if constexpr (kHeight > 3) {
      _tile_loadd(5, v + 3 * kNext, 64);
      _tile_dpbf16ps(3, 5, 6);
      if constexpr (A::kPieces == 2) _tile_dpbf16ps(3, 5, 7);
    }
    if constexpr (A::kPieces == 2) {  // low values by high weights; low by low is below 2^-18
      const char* const low = v + kTileBytes;
      _tile_loadd(4, low, 64);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (kHeight > 1) {
        _tile_loadd(5, low + kNext, 64);
        _tile_dpbf16ps(1, 5, 6);
      }
      if constexpr (kHeight > 2) {
        _tile_loadd(4, low + 2 * kNext, 64);
        _tile_dpbf16ps(2, 4, 6);
      }
      if constexpr (kHeight > 3) {
        _tile_loadd(5, low + 3 * kNext, 64);
        _tile_dpbf16ps(3, 5, 6);
      }
    }
    v += v_stride;
  }
  _tile_stored(0, sums, 64);
  if constexpr (kHeight > 1) _tile_stored(1, sums + kTileSide * kLanes, 64);
  if constexpr (kHeight > 2) _tile_stored(2, sums + 2 * kTileSide * kLanes, 64);
  if constexpr (kHeight > 3) _tile_stored(3, sums + 3 * kTileSide * kLanes, 64);
  for (int j = 0; j < kHeight * kTileSide; ++j) {
    float* const at = o + j * kRows;
    store(at, mul_add(load(at), rescale, load(sums + j * kLanes)));
  }
}

/// Softmax and values of one vector of queries; columns: of the head dim, in tiles.
template <class A, int kVectors>
void tile_column(float* s, int blocks, const char* v, int columns, Vec factor, Vec half_max,
                 Vec rescale, float* o, float* sums) {
  constexpr int kRows = kVectors * kLanes;
  const int v_stride = columns * A::kPieces * kTileBytes;
  Vec sum = zero();
  finish_stores();
  const auto run = [&](auto height, auto first, int c) {
    tile_values<A, kVectors, decltype(height)::kIs, decltype(first)::kIs != 0>(
        s, blocks, v + c * A::kPieces * kTileBytes, v_stride, factor, half_max, rescale,
        o + c * kTileSide * kRows, sum);
  };
  if (columns == 1) {
    run(Int<1>{}, Int<1>{}, 0);
  } else if (columns == 2) {
    run(Int<2>{}, Int<1>{}, 0);
  } else if (columns == 3) {
    run(Int<3>{}, Int<1>{}, 0);
  } else {
    run(Int<4>{}, Int<1>{}, 0);
  }
  int c = 4;
  for (; c + 4 <= columns; c += 4) run(Int<4>{}, Int<0>{}, c);
  if (c + 2 <= columns) {
    run(Int<2>{}, Int<0>{}, c);
    c += 2;
  }
  if (c < columns) run(Int<1>{}, Int<0>{}, c);
  store(sums, sum);
}
#endif

/// Where a task lies.
struct Plot {
  Entry entry;
  std::int64_t h_kv, kv_head, row_task;
  int split;
  float k_factor = 1.0f;       // of all keys; blocks have shares of it
  std::int64_t part() const {  // of the entry's parts the first of this row task
    return (h_kv * entry.row_tasks + row_task) * entry.splits;
  }
};

/// The last entry of the list that begins at the task or before it.
const Entry& entry_at(const Call& call, std::int64_t task, std::int64_t Entry::*first) {
  std::int64_t low = 0, high = call.entry_count;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (call.entries[middle].*first <= task ? low : high) = middle;
  }
  return call.entries[low];
}

/// Of the blocks of keys that some row of the entry sees, the largest magnitude of K's factors. Others may hold anything.
float largest_factor(const Call& call, const Entry& entry, std::int64_t kv_head) {
  const float* const factors = call.k_scale + kv_head * call.kv_blocks;
  const Interval seen = seen_by_some(entry.band, 0, entry.rows / call.group - 1);
  float largest = 0.0f;
  for (std::int64_t key = seen.begin / kScaleBlock * kScaleBlock; key < seen.end;
       key += kScaleBlock) {
    const float size = __builtin_fabsf(factors[key / kScaleBlock]);
    if (size > largest && size < kInfinity) largest = size;
  }
  return largest > 0.0f ? largest : 1.0f;
}

/// in_parts: tasks count the parts of the keys.
Plot locate(const Call& call, std::int64_t task, bool in_parts) {
  Plot plot{};
  if (call.entries != nullptr) {
    const auto first = in_parts ? &Entry::first_task : &Entry::first_whole;
    plot.entry = entry_at(call, task, first);
    task -= plot.entry.*first;
  } else {
    plot.entry = call.entry;
  }
  const Entry& entry = plot.entry;
  const std::int64_t whole = in_parts ? task / entry.splits : task;
  plot.split = in_parts ? static_cast<int>(task % entry.splits) : 0;
  const std::int64_t heads = call.entries != nullptr ? call.heads_kv : call.kv_heads;
  if (call.head_by_head) {
    plot.h_kv = whole / entry.row_tasks;
    plot.row_task = whole % entry.row_tasks;
  } else {
    plot.h_kv = whole % heads;
    plot.row_task = whole / heads;
  }
  if (call.last_rows_first) plot.row_task = entry.row_tasks - 1 - plot.row_task;
  if (call.entries == nullptr) {  // a head of the batch, and of its entry
    const std::int64_t b = plot.h_kv / call.heads_kv, h = plot.h_kv % call.heads_kv;
    plot.h_kv = h;
    plot.entry.b = b;
    plot.entry.q = b * call.q_stride.b;
    plot.entry.k = b * call.k_stride.b;
    plot.entry.v = b * call.v_stride.b;
    plot.entry.o = b * call.o_stride.b;
    plot.entry.lse = b * call.heads_q * call.lse_stride;
    plot.entry.partials = b * call.heads_kv * entry.row_tasks * entry.splits * entry.partial_floats;
  }
  plot.kv_head = entry.b * call.heads_kv + plot.h_kv;
  if (call.kv_blocks > 0) plot.k_factor = largest_factor(call, entry, plot.kv_head);
  return plot;
}

/// A row of a KV head as a query and a query head of the group; steps without dividing.
struct Row {
  std::int64_t query, member, group;
  void next() {
    if (++member == group) {
      member = 0;
      ++query;
    }
  }
};
Row row_at(const Call& call, std::int64_t row) {
  return {row / call.group, row % call.group, call.group};
}

// ---- one tile of rows -------------------------------------------------------------------------

/// Up to kTileRows rows of a task, and their softmax so far. q: [units][lanes], o: [D][lanes].
struct Tile {
  std::int64_t first_row, last_row;  // within the KV head
  int vectors;
  Interval some, all;  // keys that some, that all of its rows see
  float *q, *o;
  float* scale;      // what a score is multiplied by, above 0: its sign is in q
  float *max, *sum;  // max is of scores before the scale, or of capped ones
  // Sums of the tiles of keys before the last multiple of kFoldTiles, and the maximum they are
  // weighted against; null where rows are short.
  double *far_o, *far_sum;
  float* far_max;
  int lanes() const { return vectors * kLanes; }
};

/// The factor of weight() for rows of these scales.
[[gnu::always_inline]] inline Vec factor_of(const Call& call, Vec scale) {
  if (call.natural()) return set(kFactorOfUnit);
  return min(mul(scale, set(kFactorOfUnit)), set(kLargest));
}

// ---- what is added to scores --------------------------------------------------------------------

/// The array mask of one row as numbers that are added to scores, for keys [first, first + keys).
template <class T>
void read_mask(const T* from, std::int64_t stride, int keys, float* to) {
  if (stride == 0) {
    const float same = widen(*from);
    for (int n = 0; n < keys; ++n) to[n] = same;
  } else {
    for (int n = 0; n < keys; ++n) to[n] = widen(from[n]);
  }
}
void read_bools(const unsigned char* from, std::int64_t stride, int keys, float* to) {
  for (int n = 0; n < keys; ++n) to[n] = from[n * stride] != 0 ? 0.0f : -kInfinity;
}
void mask_row(const Call& call, const Plot& plot, const Row& row, std::int64_t first, int keys,
              float* to) {
  // Keys that round a block up lie behind the sequence, and perhaps behind the mask.
  const std::int64_t left = plot.entry.band.seq_kv - first;
  const int there = left < keys ? static_cast<int>(left) : keys;
  for (int n = there < 0 ? 0 : there; n < keys; ++n) to[n] = 0.0f;
  if (there <= 0) return;
  const std::int64_t* const stride = call.mask_stride;
  const std::int64_t at = plot.entry.b * stride[0] +
                          (plot.h_kv * call.group + row.member) * stride[1] +
                          row.query * stride[2] + first * stride[3];
  if (call.mask_is_bool) {
    read_bools(static_cast<const unsigned char*>(call.mask) + at, stride[3], there, to);
  } else if (call.mask_type == Type::f32) {
    read_mask(static_cast<const float*>(call.mask) + at, stride[3], there, to);
  } else if (call.mask_type == Type::f16) {
    read_mask(static_cast<const F16*>(call.mask) + at, stride[3], there, to);
  } else {
    read_mask(static_cast<const Bf16*>(call.mask) + at, stride[3], there, to);
  }
}

/// The slope of a row, and how far its position lies behind a key.
struct Slope {
  float slope, distance;
};
Slope slope_of(const Call& call, const Plot& plot, const Row& row, std::int64_t first_key) {
  const std::int64_t h = plot.h_kv * call.group + row.member;
  return {call.slopes[plot.entry.b * call.slope_stride + h],
          static_cast<float>(row.query + plot.entry.band.shift - first_key)};
}

/// -inf hides a key whatever its score is.
[[gnu::always_inline]] inline Vec add_mask(Vec score, Vec mask) {
  return if_equal(mask, set(-kInfinity), mask, add(score, mask));
}

constexpr int kBiasStride = kMaxKeyTile + kLanes;

/// Scores of a tile become scaled, capped and biased ones. rows: scratch, kLanes of kBiasStride.
template <int kVectors>
void bias_scores(const Call& call, const Plot& plot, const Tile& tile, std::int64_t first_key,
                 float* s, int keys, float* highest, const Bounds* bounds, float* rows) {
  constexpr int kRows = kVectors * kLanes;
  const Vec cap = set(call.softcap);
  Row row = row_at(call, tile.first_row);
  for (int m = 0; m < kVectors; ++m) {
    const Vec outer = load(tile.scale + m * kLanes), inner = inner_of(outer, cap);
    alignas(64) float slope[kLanes] = {}, distance[kLanes] = {};
    for (int r = 0; r < kLanes; ++r, row.next()) {
      const bool real = tile.first_row + m * kLanes + r <= tile.last_row;
      if (call.slopes != nullptr && real) {
        const Slope lane = slope_of(call, plot, row, first_key);
        slope[r] = lane.slope;
        distance[r] = lane.distance;
      }
      if (call.mask == nullptr) continue;  // then there is no scratch either
      float* const to = rows + r * kBiasStride;
      if (real) mask_row(call, plot, row, first_key, keys, to);
      for (int n = real ? keys : 0; n < round_up(keys, kLanes); ++n) to[n] = 0.0f;
    }
    Vec top = set(-kInfinity);
    for (int block = 0; block < keys; block += kLanes) {
      alignas(64) float mask[kLanes * kLanes];
      if (call.mask != nullptr) transpose(rows + block, kBiasStride, mask, kLanes);
      const int count = keys - block < kLanes ? keys - block : kLanes;
      for (int j = 0; j < count; ++j) {
        const int n = block + j;
        float* const at = s + n * kRows + m * kLanes;
        Vec x = call.softcap > 0.0f ? soft_cap(load(at), outer, inner, cap) : mul(load(at), outer);
        if (call.slopes != nullptr) {
          const Vec far = abs(sub(load(distance), set(static_cast<float>(n))));
          x = neg_mul_add(load(slope), far, x);
        }
        if (call.mask != nullptr) x = add_mask(x, load(mask + j * kLanes));
        if (bounds != nullptr) {
          x = if_between(n, bounds->begin + m * kLanes, bounds->end + m * kLanes, x,
                         set(-kInfinity));
        }
        store(at, x);
        top = max(x, top);
      }
    }
    store(highest + m * kLanes, top);
  }
}

/// The same of one row whose scores lie side by side and are scaled and capped already.
void bias_row(const Call& call, const Plot& plot, const Row& row, std::int64_t first_key, int keys,
              float* s) {
  const int whole = round_up(keys, kLanes);
  if (call.slopes != nullptr) {
    const Slope lane = slope_of(call, plot, row, first_key);
    alignas(64) float ahead[kLanes];
    for (int j = 0; j < kLanes; ++j) ahead[j] = static_cast<float>(j);
    for (int n = 0; n < whole; n += kLanes) {
      const Vec key = add(set(static_cast<float>(n)), load(ahead));
      store(s + n, neg_mul_add(set(lane.slope), abs(sub(set(lane.distance), key)), load(s + n)));
    }
  }
  if (call.mask != nullptr) {
    alignas(64) float mask[kMaxKeyTile + kLanes];
    mask_row(call, plot, row, first_key, keys, mask);
    for (int n = keys; n < whole; ++n) mask[n] = 0.0f;
    for (int n = 0; n < whole; n += kLanes) store(s + n, add_mask(load(s + n), load(mask + n)));
  }
}

template <class A, int kVectors>
void attend_tile(const Call& call, const Plot& plot, const Tile& tile, std::int64_t first_key,
                 int keys, const char* k, std::int64_t k_stride, const char* v,
                 std::int64_t v_stride, float* s, float* biases) {
  using R = RegisterTile<kVectors>;
  constexpr int kRows = kVectors * kLanes;
  [[maybe_unused]] const int units = call.head_dim / A::kPerUnit;
  alignas(64) float highest[kRows], rescale[kRows], half_max[kRows], sums[kRows], factor[kRows];
  for (int m = 0; m < kVectors; ++m) store(highest + m * kLanes, set(-kInfinity));

  // Where every row sees every key there is nothing to mask.
  const std::int64_t end_key = first_key + keys;
  const bool masked = first_key < tile.all.begin || end_key > tile.all.end;
  Bounds bounds;
  int full_begin = 0, full_end = keys;
  if (masked) {
    const auto within = [keys](std::int64_t n) {
      return static_cast<std::int32_t>(n < 0 ? 0 : n > keys ? keys : n);
    };
    Row row = row_at(call, tile.first_row);
    for (int r = 0; r < kRows; ++r, row.next()) {  // past the last row: lanes that are not stored
      const Interval seen = keys_of(plot.entry.band, row.query);
      bounds.begin[r] = within(seen.begin - first_key);
      bounds.end[r] = within(seen.end - first_key);
    }
    full_begin = within(tile.all.begin - first_key);
    full_end = within(tile.all.end - first_key);
  }
  const bool later = call.natural();  // bounds wait until scores are in natural units
  const auto bounds_for = [&](int n, int count) -> const Bounds* {
    return (n < full_begin || n + count > full_end) && !later ? &bounds : nullptr;
  };

#if defined(GREENFAST_AMX)
  if constexpr (A::kTiles) {
    const int steps = query_units(call.head_dim) / kTileSide;
    const auto maximum = [&](int n) {
      tile_maximum<kVectors>(s + n * kRows, highest, bounds_for(n, kBlockKeys), n);
    };
    finish_stores();
    for (int n = 0; n < keys; n += kBlockKeys) {
      const char* const block = k + n / kTileSide * steps * A::kPieces * kTileBytes;
      tile_scores<A::kPieces, kVectors>(tile.q, steps, block, s + n * kRows);
      if (n > 0) maximum(n - kBlockKeys);  // while the tiles work on this block
    }
    maximum(keys - kBlockKeys);
  } else
#endif
      if (keys >= R::kKeys) {
    for (int n = 0; n < keys; n += R::kKeys) {
      // The last keys once more, rather than a narrower block.
      const int at = n + R::kKeys <= keys ? n : keys - R::kKeys;
      score_block<A, kVectors, R::kKeys>(tile.q, units, k + at * k_stride, k_stride, s + at * kRows,
                                         highest, bounds_for(at, R::kKeys), at);
    }
  } else {
    for (int n = 0; n < keys; ++n) {
      score_block<A, kVectors, 1>(tile.q, units, k + n * k_stride, k_stride, s + n * kRows, highest,
                                  bounds_for(n, 1), n);
    }
  }

  if (call.biased()) {
    bias_scores<kVectors>(call, plot, tile, first_key, s, keys, highest, masked ? &bounds : nullptr,
                          biases);
  } else if (later) {
    cap_scores<kVectors>(s, keys, tile.scale, call.softcap, highest, masked ? &bounds : nullptr);
  }
  for (int m = 0; m < kVectors; ++m) {
    const Vec before = load(tile.max + m * kLanes);
    const Vec now = max(load(highest + m * kLanes), before);
    const Vec row_factor = factor_of(call, load(tile.scale + m * kLanes));
    store(factor + m * kLanes, row_factor);
    store(rescale + m * kLanes, rescaling(before, now, row_factor));
    store(tile.max + m * kLanes, now);
    store(half_max + m * kLanes, half_max_of(now));
  }
#if defined(GREENFAST_AMX)
  if constexpr (A::kTiles) {
    const int columns = round_up(call.value_dim, kTileSide) / kTileSide;
    for (int m = 0; m < kVectors; ++m) {
      const int at = m * kLanes;
      tile_column<A, kVectors>(s + at, keys / kBlockKeys, v, columns, load(factor + at),
                               load(half_max + at), load(rescale + at), tile.o + at, sums + at);
    }
  } else
#endif
  {
    exponentiate<A, kVectors>(s, keys, factor, half_max, sums);
  }
  for (int m = 0; m < kVectors; ++m) {
    float* const sum = tile.sum + m * kLanes;
    store(sum, mul_add(load(sum), load(rescale + m * kLanes), load(sums + m * kLanes)));
  }

  if constexpr (!A::kTiles) {
    const int key_units = ceil_div(keys, A::kPerUnit);
    int few = 0;  // narrow blocks, as many as make the rest a multiple of the wide one
    while ((call.value_dim - few * R::kFewColumns) % R::kColumns != 0) ++few;
    const int wide_end = call.value_dim - few * R::kFewColumns;
    int d = 0;
    for (; d < wide_end; d += R::kColumns) {
      value_block<A, kVectors, R::kColumns>(s, key_units, v + 4 * d, v_stride, rescale,
                                            tile.o + d * kRows);
    }
    for (; d < call.value_dim; d += R::kFewColumns) {
      value_block<A, kVectors, R::kFewColumns>(s, key_units, v + 4 * d, v_stride, rescale,
                                               tile.o + d * kRows);
    }
  }
}

template <class A>
void attend_tile(const Call& call, const Plot& plot, const Tile& tile, std::int64_t first_key,
                 int keys, const char* k, std::int64_t k_stride, const char* v,
                 std::int64_t v_stride, float* s, float* biases) {
  const auto run = [&](auto* code) {
    code(call, plot, tile, first_key, keys, k, k_stride, v, v_stride, s, biases);
  };
  if (tile.vectors == 1) return run(attend_tile<A, 1>);
  if (tile.vectors == 2) return run(attend_tile<A, 2>);
  if constexpr (kMaxVectors == 4 && !A::kTiles) run(attend_tile<A, 4>);
}

// ---- in and out -------------------------------------------------------------------------------

template <class In>
const In* element(const void* data, const Strides& stride, std::int64_t at, std::int64_t h,
                  std::int64_t s) {
  return static_cast<const In*>(data) + at + h * stride.h + s * stride.s;
}

/// The first key of a head; where there is none the tensor may be null.
template <class In>
const In* first_key(const void* data, const Strides& stride, std::int64_t at, std::int64_t h) {
  return data == nullptr ? nullptr : element<In>(data, stride, at, h, 0);
}

/// One row as units, times `factor` (1, -1 or 0).
template <class A, class In>
void stage_row(const In* row, int head_dim, float factor, float* stage) {
  if constexpr (A::kPerUnit == 1) {
    for (int d = 0; d < head_dim; d += kLanes) {
      store(stage + d, mul(load_n(row + d, head_dim - d), set(factor)));
    }
  } else {
#if defined(__AVX512BF16__)
    const auto sign = static_cast<short>(factor < 0.0f ? 0x8000 : 0);
    for (int d = 0; d < head_dim; d += kHalfLanes) {
      __m512i x = load_bf16_n(row + d, head_dim - d);
      if (factor == 0.0f) x = nan_or_zero(x);
      _mm512_store_si512(stage + d / 2, _mm512_xor_si512(x, _mm512_set1_epi16(sign)));
    }
#endif
  }
}

/// What a row's scores are multiplied by, in sign and magnitude. The maximum is taken before the
/// multiplication, so the sign goes to Q; and where the scale is 0 Q is 0 instead, so that the
/// product with a masked -inf stays -inf.
struct Scale {
  float sign, magnitude;
};
Scale scale_of(const Call& call, const Plot& plot, const Row& row) {
  float scale = call.scale;
  if (call.q_scale != nullptr) {
    const std::int64_t h = plot.h_kv * call.group + row.member;
    const std::int64_t head = plot.entry.b * call.heads_q + h;
    if (call.q_blocks > 0)
      scale *= call.q_scale[head * call.q_blocks + row.query / kScaleBlock] * plot.k_factor;
    else
      scale *= call.q_scale[call.scale_per_head ? head : 0] *
               call.k_scale[call.scale_per_head ? plot.kv_head : 0];
  }
  if (scale == 0.0f) return {0.0f, 1.0f};
  return scale < 0.0f ? Scale{-1.0f, -scale} : Scale{1.0f, scale};
}

/// One row of Q as units, and the magnitude of its scale.
template <class A, class In>
void load_query(const Call& call, const Plot& plot, const Row& row, float* magnitude, float* to) {
  const std::int64_t h = plot.h_kv * call.group + row.member;
  const Scale scale = scale_of(call, plot, row);
  *magnitude = scale.magnitude;
  stage_row<A>(element<In>(call.q, call.q_stride, plot.entry.q, h, row.query), call.head_dim,
               scale.sign, to);
}

#if defined(GREENFAST_AMX)
/// One row of Q in fp16 as units of high parts and of low parts; false where it is not all finite.
bool stage_pieces(const F16* row, int head_dim, float factor, float* high, float* low) {
  const auto sign = _mm512_set1_epi16(static_cast<short>(factor < 0.0f ? 0x8000 : 0));
  bool finite = true;
  for (int d = 0; d < head_dim; d += kHalfLanes) {
    // Looked at where the scale is 0 as well: 0 times a NaN is one.
    Pieces x = load_pieces(row + d, head_dim - d, finite);
    if (factor == 0.0f) x = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    _mm512_store_si512(high + d / 2, _mm512_xor_si512(x.high, sign));
    _mm512_store_si512(low + d / 2, _mm512_xor_si512(x.low, sign));
  }
  return finite;
}

/// As load_queries() below, in two pieces; false where Q is not all finite.
bool load_query_pieces(const Call& call, const Plot& plot, const Tile& tile, float* stage) {
  const int lanes = tile.lanes(), units = query_units(call.head_dim);
  const auto rows = static_cast<int>(tile.last_row - tile.first_row + 1);
  bool finite = true;
  Row row = row_at(call, tile.first_row);
  for (int m = 0; m < lanes; m += kLanes) {
    for (int r = 0; r < kLanes; ++r, row.next()) {
      float* const to = stage + r * kStageStride;  // half of it holds a piece
      if (m + r >= rows) {
        for (int u = 0; u < 2 * units; u += kLanes) store(to + u, zero());
        tile.scale[m + r] = 1.0f;
        continue;
      }
      const std::int64_t h = plot.h_kv * call.group + row.member;
      const Scale scale = scale_of(call, plot, row);
      tile.scale[m + r] = scale.magnitude;
      const F16* const from = element<F16>(call.q, call.q_stride, plot.entry.q, h, row.query);
      if (!stage_pieces(from, call.head_dim, scale.sign, to, to + units)) finite = false;
    }
    for (int u = 0; u < 2 * units; u += kLanes) {
      transpose(stage + u, kStageStride, tile.q + u * lanes + m, lanes);
    }
  }
  return finite;
}
#endif

template <class A, class In>
void load_queries(const Call& call, const Plot& plot, const Tile& tile, float* stage) {
  const int lanes = tile.lanes(), units = call.head_dim / A::kPerUnit;
  const auto rows = static_cast<int>(tile.last_row - tile.first_row + 1);
  Row row = row_at(call, tile.first_row);
  for (int m = 0; m < lanes; m += kLanes) {
    for (int r = 0; r < kLanes; ++r, row.next()) {
      float* const to = stage + r * kStageStride;
      if (m + r >= rows) {
        for (int u = 0; u < units; u += kLanes) store(to + u, zero());
        tile.scale[m + r] = 1.0f;
        continue;
      }
      load_query<A, In>(call, plot, row, tile.scale + m + r, to);
    }
    for (int u = 0; u < units; u += kLanes) {
      transpose(stage + u, kStageStride, tile.q + u * lanes + m, lanes);
    }
  }
}

template <class Out>
void store_row(const float* values, float factor, int head_dim, Out* to) {
  for (int d = 0; d < head_dim; d += kLanes) {
    store_n(to + d, mul(load(values + d), set(factor)), head_dim - d);
  }
}

/// The same for means of values that fill their type's range, which `last` ends: a mean of finite
/// values is finite, though weights that were rounded, or the mean when it is, may say otherwise.
template <class Out>
void store_mean(const float* values, float factor, int head_dim, float last, Out* to) {
  const Vec largest = set(last);
  for (int d = 0; d < head_dim; d += kLanes) {
    const Vec sum = load(values + d), mean = mul(sum, set(factor));
    const Vec within = if_less(largest, abs(mean), copy_sign(largest, mean), mean);
    store_n(to + d, if_less(abs(sum), set(kInfinity), within, mean), head_dim - d);
  }
}

/// What a row whose sum has this logarithm is multiplied by when a sink joins the sum; the
/// logarithm becomes that of the whole. -inf: an empty row.
double join_sink(double sink, double* lse) {
  const double before = *lse;
  const double high = before < sink ? sink : before;
  if (high == -double{kInfinity} || high == double{kInfinity}) {
    *lse = high;
    return sink == high ? 0.0 : 1.0;
  }
  *lse = high + __builtin_log(__builtin_exp(before - high) + __builtin_exp(sink - high));
  return __builtin_exp(before - *lse);
}

/// Divides by the sums and writes O and LSE.
void finish(const Call& call, const Plot& plot, const Tile& tile, float* stage) {
  const int lanes = tile.lanes(), dim = call.value_dim;
  const auto rows = static_cast<int>(tile.last_row - tile.first_row + 1);
  const float v_scale = call.v_scale == nullptr || call.kv_blocks > 0
                            ? 1.0f
                            : call.v_scale[call.scale_per_head ? plot.kv_head : 0];
  alignas(64) float inverse[kTileRows];
  for (int m = 0; m < lanes; m += kLanes) {
    store(inverse + m, div(set(v_scale), load(tile.sum + m)));
  }
  Row row = row_at(call, tile.first_row);
  for (int m = 0; m < rows; m += kLanes) {
    for (int d = 0; d < dim; d += kLanes) {
      transpose(tile.o + d * lanes + m, lanes, stage + d, kStageStride);
    }
    for (int r = 0; r < kLanes && m + r < rows; ++r, row.next()) {
      const std::int64_t h = plot.h_kv * call.group + row.member, i = row.query;
      const Interval seen = keys_of(plot.entry.band, i);
      float* const values = stage + r * kStageStride;
      // No visible key, or none whose score is above -inf; a NaN among them makes the sum one.
      const bool empty =
          seen.begin == seen.end || (tile.max[m + r] == -kInfinity && tile.sum[m + r] == 0.0f);
      if (empty) {
        inverse[m + r] = 0.0f;
        for (int d = 0; d < dim; d += kLanes) store(values + d, zero());
      }
      double lse = -double{kInfinity};
      if (!empty && (call.lse != nullptr || call.sinks != nullptr)) {
        const double unit = call.natural() ? 1.0 : double{scale_of(call, plot, row).magnitude};
        const double sum = double{tile.sum[m + r]} * double{kWeightUp};
        lse = double{tile.max[m + r]} * unit + __builtin_log(sum);
      }
      if (call.sinks != nullptr) {
        const double share = join_sink(double{call.sinks[h]}, &lse);
        if (!empty) inverse[m + r] = static_cast<float>(double{inverse[m + r]} * share);
      }
      const std::int64_t at = plot.entry.o + h * call.o_stride.h + i * call.o_stride.s;
      const float factor = inverse[m + r];
      // A scale of V may take a mean out of the range, which is then what is asked for; so may a
      // narrower output.
      switch (call.out_type) {
        case Type::f16:
          store_row(values, factor, dim, static_cast<F16*>(call.o) + at);
          break;
        case Type::bf16:
          if (call.type == Type::bf16) {
            store_mean(values, factor, dim, 0x1.fep127f, static_cast<Bf16*>(call.o) + at);
          } else {
            store_row(values, factor, dim, static_cast<Bf16*>(call.o) + at);
          }
          break;
        default:
          if (call.v_scale == nullptr) {
            store_mean(values, factor, dim, __FLT_MAX__, static_cast<float*>(call.o) + at);
          } else {
            store_row(values, factor, dim, static_cast<float*>(call.o) + at);
          }
      }
      if (call.lse != nullptr) {
        call.lse[plot.entry.lse + h * call.lse_stride + i] = static_cast<float>(lse);
      }
    }
  }
}

// ---- tiles of K and V in the type that is multiplied -------------------------------------------

/// Rows of K or V of one tile of keys: one behind the other, or wherever the pages lie.
template <class In>
struct Strided {
  const In* first;
  std::int64_t stride;
  const In* operator[](int n) const { return first + n * stride; }
  /// For prefetching, which no address harms.
  const In* ahead(int n) const { return first + n * stride; }
};
template <class In>
struct Listed {
  const In* const* row;
  int count;
  const In* operator[](int n) const { return row[n]; }
  const In* ahead(int n) const { return row[n < count ? n : count - 1]; }
};

/// The addresses of keys [first + lead, first + keys); before them, that of the first of these.
template <class In>
void list_rows(const Call& call, const Entry& entry, const In* base, const Strides& stride,
               std::int64_t first, int lead, int keys, const In** row) {
  std::int64_t page = (first + lead) / call.page_size, within = (first + lead) % call.page_size;
  for (int n = lead; n < keys;) {
    const In* at = base + entry.pages[page] * stride.b + within * stride.s;
    for (; within < call.page_size && n < keys; ++within, at += stride.s) row[n++] = at;
    within = 0;
    ++page;
  }
  for (int n = 0; n < lead; ++n) row[n] = row[lead];
}

/// Rows of V whose elements are `step` apart, laid one behind the other.
template <class In, class Rows>
void turn_rows(const Rows& rows, int keys, int dim, std::int64_t step, In* to) {
  for (int d = 0; d < dim; ++d) {
    for (int n = 0; n < keys; ++n) to[n * dim + d] = rows[n][d * step];
  }
}

/// Keys [first, first + keys) of K, widened to floats or, for pairs, to bf16.
template <class A, class Rows>
void convert_keys(const Rows& k, int keys, int head_dim, char* to) {
  for (int n = 0; n < keys; ++n) {
    const auto* const row = k[n];
    if constexpr (A::kPerUnit == 1) {
      float* const out = reinterpret_cast<float*>(to) + n * head_dim;
      for (int d = 0; d < head_dim; d += kLanes) {
        store_n(out + d, load_n(row + d, head_dim - d), head_dim - d);
      }
    } else {
#if defined(__AVX512BF16__)
      char* const out = to + 2 * n * head_dim;
      for (int d = 0; d < head_dim; d += kHalfLanes) {
        _mm512_mask_storeu_epi16(out + 2 * d, first_halves(head_dim - d),
                                 load_bf16_n(row + d, head_dim - d));
      }
#endif
    }
  }
}

/// Factors of the blocks of keys that a KV head has, each over `of_all`. K's are brought to the
/// largest of them, which meets Q's factor first: either alone may leave fp32.
struct BlockFactors {
  const float* factor = nullptr;  // null: there are none
  float of_all = 1.0f;

  float of(std::int64_t key) const { return factor[key / kScaleBlock] / of_all; }
};
BlockFactors block_factors(const Call& call, const Plot& plot, const float* scale, float of_all) {
  if (call.kv_blocks == 0) return {};
  return {scale + plot.kv_head * call.kv_blocks, of_all};
}
/// Multiplies converted keys, `first` and those behind it, by the factors of their blocks.
void multiply_keys(const BlockFactors& factors, std::int64_t first, int keys, int head_dim,
                   char* to) {
  for (int n = 0; n < keys; ++n) {
    float* const row = reinterpret_cast<float*>(to) + n * head_dim;
    const Vec factor = set(factors.of(first + n));
    for (int d = 0; d < head_dim; d += kLanes) {
      store_n(row + d, mul(load_n(row + d, head_dim - d), factor), head_dim - d);
    }
  }
}
/// The same of numbers of one row of scores or weights.
void multiply_by_key(const BlockFactors& factors, std::int64_t first, int keys, float* s) {
  for (int n = 0; n < keys; ++n) s[n] *= factors.of(first + n);
}

#if defined(__AVX512BF16__)
/// Pairs of keys of V; keys outside [seen_begin, seen_end) become 0.
template <class Rows>
void interleave_values(const Rows& v, int keys, int seen_begin, int seen_end, int head_dim,
                       char* to) {
  for (int n = 0; n < keys; n += 2) {
    const bool first = n >= seen_begin, second = n + 1 < seen_end;
    const auto* const row = v[n];
    const auto* const next = second ? v[n + 1] : row;
    for (int d = 0; d < head_dim; d += kHalfLanes) {
      const __m512i a = load_bf16_n(row + d, first ? head_dim - d : 0);
      const __m512i b = load_bf16_n(second ? next + d : row, second ? head_dim - d : 0);
      store_pairs_n(to + 4 * d, a, b, head_dim - d);
    }
    to += 4 * head_dim;
  }
}
#endif

#if defined(GREENFAST_AMX)
/// 32 elements of a row as pieces; those at n and beyond are 0 and their memory is not touched.
template <class In>
[[gnu::always_inline]] inline Pieces pieces_of(const In* p, int n, bool& finite) {
  if constexpr (kSame<In, F16>) {
    return load_pieces(p, n, finite);
  } else {
    return {load_bf16_n(p, n), _mm512_setzero_si512()};
  }
}

/// Keys [0, round_up(keys, 32)) of K as tiles of 16 keys by 32 of the head dim; keys outside
/// [lead, keys) and columns beyond the head dim are 0, and their memory is not touched. Where it is
/// cut into two pieces, false if some key is not finite: then the pieces are no sum of anything.
template <int kPieces, class Rows>
bool pack_keys(const Rows& k, int lead, int keys, int head_dim, char* to) {
  const int steps = query_units(head_dim) / kTileSide;
  bool finite = true;
  for (int n = 0; n < round_up(keys, kBlockKeys); ++n) {
    const bool seen = n >= lead && n < keys;
    const auto* const row = k[seen ? n : lead];
    char* out = to + n / kTileSide * steps * kPieces * kTileBytes + n % kTileSide * 64;
    for (int d = 0; d < head_dim; d += kHalfLanes) {
      const Pieces x = pieces_of(row + d, seen ? head_dim - d : 0, finite);
      _mm512_store_si512(out, x.high);
      if constexpr (kPieces == 2) _mm512_store_si512(out + kTileBytes, x.low);
      out += kPieces * kTileBytes;
    }
  }
  return finite;
}

/// The same keys of V as tiles of 16 of the head dim by 32 keys.
template <int kPieces, class Rows>
bool pack_values(const Rows& v, int lead, int keys, int head_dim, char* to) {
  const int columns = round_up(head_dim, kTileSide) / kTileSide;
  alignas(64) float pairs[kPieces][2][kTileSide * kTileSide];  // halves of [pair of keys][head dim]
  bool finite = true;
  for (int n = 0; n < keys; n += kBlockKeys) {
    for (int d = 0; d < head_dim; d += kHalfLanes) {
      for (int pair = 0; pair < kTileSide; ++pair) {
        const auto row = [&](int key) {
          const bool seen = key >= lead && key < keys;
          return pieces_of(v[seen ? key : lead] + d, seen ? head_dim - d : 0, finite);
        };
        const Pieces a = row(n + 2 * pair), b = row(n + 2 * pair + 1);
        const int at = pair * kTileSide;
        store_pairs(pairs[0][0] + at, pairs[0][1] + at, a.high, b.high);
        if constexpr (kPieces == 2) {
          store_pairs(pairs[1][0] + at, pairs[1][1] + at, a.low, b.low);
        }
      }
      for (int half = 0; half < 2 && d + half * kTileSide < head_dim; ++half) {
        char* const out = to + (d / kTileSide + half) * kPieces * kTileBytes;
        for (int piece = 0; piece < kPieces; ++piece) {
          transpose(pairs[piece][half], kTileSide,
                    reinterpret_cast<float*>(out + piece * kTileBytes), kTileSide);
        }
      }
    }
    to += columns * kPieces * kTileBytes;
  }
  return finite;
}
#endif

// ---- long rows --------------------------------------------------------------------------------

// A sum of fp32 that has grown for a million keys no longer sees its addends whole. So where rows
// may be long, every kFoldTiles tiles of keys the sums move to others of fp64 and start anew.
constexpr int kFoldTiles = 32;

/// At places that depend on the keys alone, so that a row's bits do not depend on its task.
bool folds_after(const Entry& entry, std::int64_t key_tile) {
  return entry.fold && (key_tile + 1) % kFoldTiles == 0;
}

void start_fold(const Call& call, const Tile& tile) {
  const int lanes = tile.lanes();
  for (int i = 0; i < call.value_dim * lanes; ++i) tile.far_o[i] = 0.0;
  for (int r = 0; r < lanes; ++r) {
    tile.far_sum[r] = 0.0;
    tile.far_max[r] = -kInfinity;
  }
}

void fold(const Call& call, const Tile& tile) {
  const int lanes = tile.lanes();
  alignas(64) float older[kTileRows];
  for (int m = 0; m < lanes; m += kLanes) {
    const Vec factor = factor_of(call, load(tile.scale + m));
    store(older + m, rescaling(load(tile.far_max + m), load(tile.max + m), factor));
    store(tile.far_max + m, load(tile.max + m));
  }
  for (int r = 0; r < lanes; ++r) {
    tile.far_sum[r] = tile.far_sum[r] * double{older[r]} + double{tile.sum[r]};
    tile.sum[r] = 0.0f;
  }
  for (int d = 0; d < call.value_dim; ++d) {
    double* const far = tile.far_o + d * lanes;
    float* const near = tile.o + d * lanes;
    for (int r = 0; r < lanes; ++r) {
      far[r] = far[r] * double{older[r]} + double{near[r]};
      near[r] = 0.0f;
    }
  }
}

/// The whole sums, in fp32 again.
void unfold(const Call& call, const Tile& tile) {
  fold(call, tile);
  const int lanes = tile.lanes();
  for (int r = 0; r < lanes; ++r) tile.sum[r] = static_cast<float>(tile.far_sum[r]);
  for (int i = 0; i < call.value_dim * lanes; ++i) tile.o[i] = static_cast<float>(tile.far_o[i]);
}

// ---- few rows ---------------------------------------------------------------------------------

// With fewer rows than a vector has lanes, S^T would leave most lanes empty. Up to this many go
// the other way round: the head dim in lanes, K and V read once as vectors, and a transposition
// for each vector of keys that sums the lanes. So decoding is bound by memory, not by arithmetic.
constexpr int kFewRows = 8;
constexpr int kFewSums = kLanes == 16 ? 16 : 8;  // accumulators
constexpr int few_sums_per(int rows, int most) {
  return kFewSums / rows < most ? kFewSums / rows : most;
}
static_assert(kFewRows <= kTileRows);

GREENFAST_OP float first_lane(Vec x) {
  alignas(64) float lanes[kLanes];
  store(lanes, x);
  return lanes[0];
}

/// s[r][n] for the keys of one tile, padded to whole vectors by repeating the last key. values:
/// their rows of V, which are wanted next.
template <class In, int kRows, class Rows>
void few_scores(const float* q, int dim, const Rows& k, int value_dim, const Rows& values, int keys,
                float* s, int s_stride) {
  constexpr int kAtOnce = few_sums_per(kRows, kLanes < 8 ? kLanes : 8);
  constexpr int kAhead = 16;
  const int padded = round_up(dim, kLanes);
  alignas(64) float sums[kRows][kLanes * kLanes];
  for (int first = 0; first < keys; first += kLanes) {
    for (int j = 0; j < kLanes; j += kAtOnce) {
      const In* row[kAtOnce];
      Vec acc[kAtOnce][kRows];
#pragma GCC unroll 8
      for (int i = 0; i < kAtOnce; ++i) {
        const int n = first + j + i < keys ? first + j + i : keys - 1;
        row[i] = k[n];
        // Rows are too short for the hardware to find the stream: this doubled the speed (Zen 5).
        const auto* const next_key = reinterpret_cast<const char*>(k.ahead(n + kAhead));
        const auto* const value = reinterpret_cast<const char*>(values[n]);
        for (int at = 0; at < dim * static_cast<int>(sizeof(In)); at += 64) {
          __builtin_prefetch(next_key + at);
        }
        for (int at = 0; at < value_dim * static_cast<int>(sizeof(In)); at += 64) {
          __builtin_prefetch(value + at);
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) acc[i][r] = zero();
      }
      for (int d = 0; d < dim; d += kLanes) {
        Vec key[kAtOnce];
#pragma GCC unroll 8
        for (int i = 0; i < kAtOnce; ++i) key[i] = load_n(row[i] + d, dim - d);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const Vec query = load(q + r * padded + d);
#pragma GCC unroll 8
          for (int i = 0; i < kAtOnce; ++i) acc[i][r] = mul_add(key[i], query, acc[i][r]);
        }
      }
#pragma GCC unroll 8
      for (int i = 0; i < kAtOnce; ++i) {
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) store(sums[r] + (j + i) * kLanes, acc[i][r]);
      }
    }
    for (int r = 0; r < kRows; ++r) store(s + r * s_stride + first, sum_lanes(sums[r]));
  }
}

/// o[r][d] = o[r][d] * rescale[r] + sum over keys of p[r][n] * v[n][d] for kVecs vectors of d.
template <int kRows, int kVecs, class Rows>
void few_values(const float* p, int p_stride, const Rows& v, int column, int keys, int dim_left,
                const float* rescale, float* o) {
  Vec acc[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int i = 0; i < kVecs; ++i) {
      acc[r][i] = zero();
    }
  }
  for (int n = 0; n < keys; ++n) {
    Vec value[kVecs];
#pragma GCC unroll 8
    for (int i = 0; i < kVecs; ++i) {
      value[i] = load_n(v[n] + column + i * kLanes, dim_left - i * kLanes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec weight = set(p[r * p_stride + n]);
#pragma GCC unroll 8
      for (int i = 0; i < kVecs; ++i) acc[r][i] = mul_add(weight, value[i], acc[r][i]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int i = 0; i < kVecs; ++i) {
      float* const at = o + r * kMaxHeadDim + i * kLanes;
      store(at, mul_add(load(at), set(rescale[r]), acc[r][i]));
    }
  }
}

/// A row's running softmax: its greatest score, the sum of its weights and what the older weights
/// are multiplied by; of what was folded away the same.
struct FewRow {
  Interval sees{0, 0};
  float scale = 1.0f, factor = 0.0f;
  float max = -kInfinity, sum = 0.0f, rescale = 1.0f;
  float far_max = -kInfinity;
  double far_sum = 0.0;
};

// What follows does not depend on the type or the number of rows. Inlined into each of the kernels
// it was a third of the library.

/// The scores of keys [begin, begin + keys), padded to whole vectors, become weights. at: in, out.
[[gnu::noinline]] void few_weights(const Call& call, const Plot& plot, std::int64_t index,
                                   std::int64_t begin, int keys, FewRow& row, float* at) {
  const int whole = round_up(keys, kLanes);
  if (call.softcap > 0.0f) {
    const Vec cap = set(call.softcap), outer = set(row.scale), inner = inner_of(outer, cap);
    for (int n = 0; n < whole; n += kLanes) {
      store(at + n, soft_cap(load(at + n), outer, inner, cap));
    }
  } else if (call.biased()) {
    const Vec outer = set(row.scale);
    for (int n = 0; n < whole; n += kLanes) store(at + n, mul(load(at + n), outer));
  }
  if (call.biased() && row.sees.begin < row.sees.end) {
    bias_row(call, plot, row_at(call, index), begin, keys, at);
  }
  for (int n = 0; n < keys && begin + n < row.sees.begin; ++n) at[n] = -kInfinity;
  const std::int64_t visible = row.sees.end - begin < keys ? row.sees.end - begin : keys;
  for (int n = visible < 0 ? 0 : static_cast<int>(visible); n < whole; ++n) at[n] = -kInfinity;

  Vec top = set(-kInfinity);
  for (int n = 0; n < whole; n += kLanes) top = greenfast::kernels::max(load(at + n), top);
  alignas(64) float lanes[kLanes];
  store(lanes, top);
  float now = row.max;
  for (int i = 0; i < kLanes; ++i) {
    if (lanes[i] > now) now = lanes[i];
  }
  const Vec factor = set(row.factor);
  row.rescale = first_lane(rescaling(set(row.max), set(now), factor));
  row.max = now;
  const Vec half_max = half_max_of(set(now));
  Vec total = zero();
  for (int n = 0; n < whole; n += kLanes) {
    const Vec p = weight<5, kWeightDown>(load(at + n), half_max, factor);
    total = add(total, p);
    store(at + n, p);
  }
  store(lanes, total);
  float tile_sum = 0.0f;
  for (int i = 0; i < kLanes; ++i) tile_sum += lanes[i];
  row.sum = row.sum * row.rescale + tile_sum;
}

/// What the sums of fp64 are multiplied by before the row's near ones are added.
double few_older(const FewRow& row) {
  return double{first_lane(rescaling(set(row.far_max), set(row.max), set(row.factor)))};
}

/// o: the row's near sums, zero afterwards; columns: whole vectors.
[[gnu::noinline]] void few_fold(FewRow& row, int columns, float* o, double* far_o) {
  const double older = few_older(row);
  row.far_max = row.max;
  row.far_sum = row.far_sum * older + double{row.sum};
  row.sum = 0.0f;
  for (int d = 0; d < columns; ++d) {
    far_o[d] = far_o[d] * older + double{o[d]};
    o[d] = 0.0f;
  }
}

/// far_o: null where nothing was folded away.
[[gnu::noinline]] void few_finish(const FewRow& row, int value_dim, const float* o,
                                  const double* far_o, int r, const Tile& tile) {
  const int lanes = tile.lanes();
  tile.max[r] = row.max;
  if (far_o == nullptr) {
    tile.sum[r] = row.sum;
    for (int d = 0; d < value_dim; ++d) tile.o[d * lanes + r] = o[d];
    return;
  }
  const double older = few_older(row);
  tile.sum[r] = static_cast<float>(row.far_sum * older + double{row.sum});
  for (int d = 0; d < value_dim; ++d) {
    tile.o[d * lanes + r] = static_cast<float>(far_o[d] * older + double{o[d]});
  }
}

/// The keys of tiles [begin_tile, end_tile) against all rows of a KV head, at most kRows.
template <class In, int kRows>
void attend_few(const Call& call, const Plot& plot, const Tile& tile, Interval seen,
                std::int64_t begin_tile, std::int64_t end_tile, float* s,
                [[maybe_unused]] char* turned) {
  const int dim = call.head_dim, padded = round_up(dim, kLanes);
  const int value_dim = call.value_dim, value_padded = round_up(value_dim, kLanes);
  const Entry& entry = plot.entry;
  const auto rows = static_cast<int>(tile.last_row - tile.first_row + 1);
  alignas(64) float o[kRows * kMaxHeadDim] = {};
  alignas(64) double far_o[kRows * kMaxHeadDim];
  FewRow row[kRows];
  float rescale[kRows];
  if (entry.fold) {
    for (double& x : far_o) x = 0.0;
  }

  Row at = row_at(call, tile.first_row);
  for (int r = 0; r < kRows; ++r, at.next()) {
    float* const q = tile.q + r * padded;
    if (r < rows) {
      load_query<Fp32, In>(call, plot, at, tile.scale + r, q);
      row[r].sees = keys_of(entry.band, at.query);
    } else {
      for (int d = 0; d < padded; d += kLanes) store(q + d, zero());
      tile.scale[r] = 1.0f;
    }
    row[r].scale = tile.scale[r];
    row[r].factor = first_lane(factor_of(call, set(tile.scale[r])));
  }
  const In* const k_head = first_key<In>(call.k, call.k_stride, entry.k, plot.h_kv);
  const In* const v_head = first_key<In>(call.v, call.v_stride, entry.v, plot.h_kv);
  const int s_stride = round_up(call.key_tile, kLanes);
  const BlockFactors k_factors = block_factors(call, plot, call.k_scale, plot.k_factor);
  const BlockFactors v_factors = block_factors(call, plot, call.v_scale, 1.0f);

  for (std::int64_t key_tile = begin_tile; key_tile < end_tile; ++key_tile) {
    const std::int64_t tile_begin = key_tile * call.key_tile;
    const std::int64_t begin = tile_begin > seen.begin ? tile_begin : seen.begin;
    const std::int64_t end =
        tile_begin + call.key_tile < seen.end ? tile_begin + call.key_tile : seen.end;
    const auto keys = static_cast<int>(end - begin);
    const In* k_rows[kMaxKeyTile];
    const In* v_rows[kMaxKeyTile];
    Strided<In> v_tile{v_head + begin * call.v_stride.s, call.v_stride.s};
    const auto with_rows = [&](const auto& code) {
      if (call.page_size == 0) {
        code(Strided<In>{k_head + begin * call.k_stride.s, call.k_stride.s}, v_tile);
      } else {
        code(Listed<In>{k_rows, keys}, Listed<In>{v_rows, keys});
      }
    };
    if (call.page_size != 0) {
      list_rows(call, entry, k_head, call.k_stride, begin, 0, keys, k_rows);
      list_rows(call, entry, v_head, call.v_stride, begin, 0, keys, v_rows);
    }
    if constexpr (kSame<In, E4m3>) {
      if (turned != nullptr) {
        In* const to = reinterpret_cast<In*>(turned);
        with_rows([&](const auto&, const auto& v) {
          turn_rows(v, keys, value_dim, call.v_stride.d, to);
        });
        v_tile = {to, value_dim};
        for (int n = 0; n < keys; ++n) v_rows[n] = to + n * value_dim;
      }
    }
    with_rows([&](const auto& k, const auto& v) {
      few_scores<In, kRows>(tile.q, dim, k, value_dim, v, keys, s, s_stride);
    });

    for (int r = 0; r < kRows; ++r) {
      float* const of_row = s + r * s_stride;
      if (k_factors.factor != nullptr) multiply_by_key(k_factors, begin, keys, of_row);
      few_weights(call, plot, tile.first_row + r, begin, keys, row[r], of_row);
      if (v_factors.factor != nullptr) multiply_by_key(v_factors, begin, keys, of_row);
      rescale[r] = row[r].rescale;
    }

    with_rows([&](const auto&, const auto& v) {
      int d = 0;
      // As many columns at once as there are sums for, then half of them and so on: one alone
      // would wait for each of its additions.
      const auto columns = [&](auto count) {
        constexpr int kVecs = decltype(count)::kIs;
        if constexpr (kVecs <= few_sums_per(kRows, 8)) {
          for (; d + kVecs * kLanes <= value_padded; d += kVecs * kLanes) {
            few_values<kRows, kVecs>(s, s_stride, v, d, keys, value_dim - d, rescale, o + d);
          }
        }
      };
      columns(Int<8>{});
      columns(Int<4>{});
      columns(Int<2>{});
      columns(Int<1>{});
    });

    if (!folds_after(entry, key_tile)) continue;
    for (int r = 0; r < rows; ++r) {
      few_fold(row[r], value_padded, o + r * kMaxHeadDim, far_o + r * kMaxHeadDim);
    }
  }

  for (int r = 0; r < rows; ++r) {
    few_finish(row[r], value_dim, o + r * kMaxHeadDim,
               entry.fold ? far_o + r * kMaxHeadDim : nullptr, r, tile);
  }
}

// ---- a task -----------------------------------------------------------------------------------

struct Tiles {
  int count = 0;
  Tile tile[kMaxTiles];
};

// Inputs of the tiles lie in the arena, results in `results`, which is the arena too or the task's
// part of Call::partials.
void lay_out(const Call& call, const Entry& entry, std::int64_t row_task, Bump& arena,
             Bump& results, Tiles& tiles) {
  const std::int64_t begin = row_task * call.task_rows;
  const std::int64_t end =
      begin + call.task_rows < entry.rows ? begin + call.task_rows : entry.rows;
  const int padded_dim = round_up(call.value_dim, kLanes);
  tiles.count = 0;
  for (std::int64_t row = begin; row < end; row += call.tile_rows) {
    Tile& tile = tiles.tile[tiles.count++];
    tile.first_row = row;
    tile.last_row = (row + call.tile_rows < end ? row + call.tile_rows : end) - 1;
    const auto rows = static_cast<int>(tile.last_row - row + 1);
    tile.vectors = ceil_div(rows, kLanes);
    if (tile.vectors == 3) tile.vectors = 4;
    const std::int64_t first = tile.first_row / call.group, last = tile.last_row / call.group;
    tile.some = seen_by_some(entry.band, first, last);
    tile.all = seen_by_all(entry.band, first, last);
    tile.q = arena.take<float>(round_up(call.head_dim, 32) * tile.lanes());
    tile.scale = arena.take<float>(tile.lanes());
    tile.far_o = tile.far_sum = nullptr;
    if (entry.fold) {
      tile.far_o = arena.take<double>(padded_dim * tile.lanes());
      tile.far_sum = arena.take<double>(tile.lanes());
      tile.far_max = arena.take<float>(tile.lanes());
    }
    tile.o = results.take<float>(padded_dim * tile.lanes());
    tile.max = results.take<float>(tile.lanes());
    tile.sum = results.take<float>(tile.lanes());
  }
}

struct Scratch {
  float *stage, *scores, *biases;
  char *k, *v;
  char* turned;  // V of a tile, where its elements are not contiguous
};

Scratch lay_out_scratch(const Call& call, Bump& arena) {
  Scratch scratch{};
  scratch.stage = arena.take<float>(kLanes * kStageStride);
  scratch.scores = arena.take<float>(std::int64_t{call.key_tile} * kTileRows);
  const auto converted = [&call](int dim) {
    return std::int64_t{call.key_tile} * round_up(dim, 32) * 4;
  };
  scratch.k = arena.take<char>(converted(call.head_dim));
  scratch.v = arena.take<char>(converted(call.value_dim));
  scratch.turned = call.v_stride.d != 1
                       ? arena.take<char>(std::int64_t{call.key_tile} * call.value_dim)
                       : nullptr;
  scratch.biases = call.mask != nullptr ? arena.take<float>(kLanes * kBiasStride) : nullptr;
  return scratch;
}

std::size_t arena_bytes(const Call& call) {
  Bump measure{nullptr};
  lay_out_scratch(call, measure);
  // A full set of tiles, with room for the rounding of each part.
  const std::int64_t rows = round_up(call.task_rows, kTileRows);
  std::int64_t columns = round_up(call.head_dim, 32) + round_up(call.value_dim, kLanes) + 3;
  if (call.fold) columns += 2 * (round_up(call.value_dim, kLanes) + 1) + 1;
  measure.take<float>(rows * columns);
  measure.take<char>(std::int64_t{8 * 64} * kMaxTiles);
  return static_cast<std::size_t>(measure.used);
}

std::int64_t partial_floats(const Call& call, std::int64_t rows) {
  Bump unused{nullptr}, measure{nullptr};
  Entry entry;
  entry.rows = rows;
  Tiles tiles;
  lay_out(call, entry, 0, unused, measure, tiles);
  return measure.used / static_cast<std::int64_t>(sizeof(float));
}

/// The tiles of keys that a task's part has, and the keys of all its parts.
struct Keys {
  Interval seen;
  std::int64_t begin_tile, end_tile;
};
Keys keys_of_part(const Call& call, const Plot& plot, const Tiles& tiles) {
  const Entry& entry = plot.entry;
  Keys keys{};
  keys.seen = seen_by_some(entry.band, tiles.tile[0].first_row / call.group,
                           tiles.tile[tiles.count - 1].last_row / call.group);
  // Tiles of keys begin at multiples of key_tile whatever the rows, so that a row's bits do not
  // depend on which rows it is processed with.
  const std::int64_t first = keys.seen.begin / call.key_tile;
  const std::int64_t end = ceil_div(keys.seen.end, call.key_tile);
  if (entry.split_keys == 0) {
    keys.begin_tile = first + (end - first) * plot.split / entry.splits;
    keys.end_tile = first + (end - first) * (plot.split + 1) / entry.splits;
  } else {
    const std::int64_t tiles_of_part = entry.split_keys / call.key_tile;
    const std::int64_t part = keys.seen.begin / entry.split_keys + plot.split;
    keys.begin_tile = part * tiles_of_part > first ? part * tiles_of_part : first;
    keys.end_tile = (part + 1) * tiles_of_part < end ? (part + 1) * tiles_of_part : end;
  }
  return keys;
}

/// False, and the task is to be done again with Fp32, where pieces of fp16 meet what is not finite.
template <class A, class In>
bool attend(const Call& call, const Plot& plot, void* memory) {
  Bump arena{static_cast<char*>(memory)};
  const Scratch scratch = lay_out_scratch(call, arena);
  const Entry& entry = plot.entry;
  Tiles tiles;
  if (entry.splits == 1) {
    lay_out(call, entry, plot.row_task, arena, arena, tiles);
  } else {
    const std::int64_t part = entry.partials + (plot.part() + plot.split) * entry.partial_floats;
    Bump partial{reinterpret_cast<char*>(call.partials + part)};
    lay_out(call, entry, plot.row_task, arena, partial, tiles);
  }
  const Keys part_keys = keys_of_part(call, plot, tiles);
  const Interval seen = part_keys.seen;
  const std::int64_t begin_part = part_keys.begin_tile, end_part = part_keys.end_tile;

  if (entry.rows <= kFewRows) {
    const auto run = [&](auto* code) {
      code(call, plot, tiles.tile[0], seen, begin_part, end_part, scratch.scores, scratch.turned);
    };
    if (entry.rows == 1) {
      run(attend_few<In, 1>);
    } else if (entry.rows == 2) {
      run(attend_few<In, 2>);
    } else if (entry.rows <= 4) {
      run(attend_few<In, 4>);
    } else {
      run(attend_few<In, 8>);
    }
    if (entry.splits == 1) finish(call, plot, tiles.tile[0], scratch.stage);
    return true;
  }

  for (int t = 0; t < tiles.count; ++t) {
    const Tile& tile = tiles.tile[t];
    const int lanes = tile.lanes();
#if defined(GREENFAST_AMX)
    if constexpr (A::kTiles && kSame<In, F16>) {
      if (!load_query_pieces(call, plot, tile, scratch.stage)) return false;
    } else
#endif
    {
      load_queries<A, In>(call, plot, tile, scratch.stage);
    }
    for (int i = 0; i < call.value_dim * lanes; i += kLanes) store(tile.o + i, zero());
    for (int m = 0; m < lanes; m += kLanes) {
      store(tile.max + m, set(-kInfinity));
      store(tile.sum + m, zero());
    }
    if (entry.fold) start_fold(call, tile);
  }

  const In* const k_head = first_key<In>(call.k, call.k_stride, entry.k, plot.h_kv);
  const In* const v_head = first_key<In>(call.v, call.v_stride, entry.v, plot.h_kv);
  constexpr bool kNative = A::kPerUnit == 1 && kSame<In, float>;
  constexpr bool kNativeKeys = kNative || (A::kPerUnit == 2 && kSame<In, Bf16>);
  constexpr auto kSize = static_cast<std::int64_t>(sizeof(In));

  for (std::int64_t key_tile = begin_part; key_tile < end_part; ++key_tile) {
    const std::int64_t tile_begin = key_tile * call.key_tile;
    std::int64_t begin = tile_begin > seen.begin ? tile_begin : seen.begin;
    const std::int64_t end =
        tile_begin + call.key_tile < seen.end ? tile_begin + call.key_tile : seen.end;
    // Pairs begin at even keys, and blocks of tiles at multiples of 32: key_tile is one.
    if constexpr (A::kTiles) {
      begin &= ~std::int64_t{31};
    } else if constexpr (A::kPerUnit == 2) {
      begin &= ~std::int64_t{1};
    }
    const int keys = static_cast<int>(end - begin);
    [[maybe_unused]] const int lead =
        static_cast<int>(seen.begin > begin ? seen.begin - begin : 0);  // keys that none sees

    // Where K and V cannot be multiplied as they lie, they are converted, or gathered from pages.
    const char *k = scratch.k, *v = scratch.v;
    std::int64_t k_stride = 0, v_stride = 0;
    bool ready = true;
    const auto convert = [&](const auto& k_rows, const auto& v_rows, auto pages) {
      [[maybe_unused]] constexpr bool kPages = decltype(pages)::kIs != 0;
#if defined(GREENFAST_AMX)
      if constexpr (A::kTiles) {
        constexpr int kPieces = A::kPieces;
        ready = pack_keys<kPieces>(k_rows, lead, keys, call.head_dim, scratch.k) &&
                pack_values<kPieces>(v_rows, lead, keys, call.value_dim, scratch.v);
        // A key's share of its block, so that offsets below come out in whole blocks.
        k_stride = round_up(call.head_dim, kHalfLanes) * 2 * kPieces;
        v_stride = round_up(call.value_dim, kTileSide) * 4 * kPieces;
      } else
#endif
          if constexpr (kNativeKeys && !kPages) {
        k = reinterpret_cast<const char*>(k_rows[0]);
        k_stride = call.k_stride.s * kSize;
      } else {
        convert_keys<A>(k_rows, keys, call.head_dim, scratch.k);
        k_stride = call.head_dim * 4 / A::kPerUnit;
      }
      if constexpr (kNative && !kPages) {
        v = reinterpret_cast<const char*>(v_rows[0]);
        v_stride = call.v_stride.s * kSize;
      } else if constexpr (!A::kTiles) {
        if constexpr (A::kPerUnit == 1) {
          convert_keys<A>(v_rows, keys, call.value_dim, scratch.v);
        } else {
#if defined(__AVX512BF16__)
          interleave_values(v_rows, keys, lead, keys, call.value_dim, scratch.v);
#endif
        }
        v_stride = call.value_dim * 4;
      }
    };
    // V of the tile as rows, where its elements are not contiguous.
    const auto turned = [&](const auto& v_rows) {
      In* const to = reinterpret_cast<In*>(scratch.turned);
      turn_rows(v_rows, keys, call.value_dim, call.v_stride.d, to);
      return to;
    };
    if (call.page_size == 0) {
      Strided<In> v_rows{v_head + begin * call.v_stride.s, call.v_stride.s};
      if constexpr (kSame<In, E4m3>) {
        if (call.v_stride.d != 1) v_rows = {turned(v_rows), call.value_dim};
      }
      convert(Strided<In>{k_head + begin * call.k_stride.s, call.k_stride.s}, v_rows, Int<0>{});
    } else {
      const In* k_rows[kMaxKeyTile];
      const In* v_rows[kMaxKeyTile];
      list_rows(call, entry, k_head, call.k_stride, begin, lead, keys, k_rows);
      list_rows(call, entry, v_head, call.v_stride, begin, lead, keys, v_rows);
      if constexpr (kSame<In, E4m3>) {
        if (call.v_stride.d != 1) {
          const In* const to = turned(Listed<In>{v_rows, keys});
          for (int n = 0; n < keys; ++n) v_rows[n] = to + n * call.value_dim;
        }
      }
      convert(Listed<In>{k_rows, keys}, Listed<In>{v_rows, keys}, Int<1>{});
    }
    if (!ready) return false;
    if constexpr (A::kPerUnit == 1 && kSame<In, E4m3>) {  // which are in scratch then
      if (call.kv_blocks > 0) {
        multiply_keys(block_factors(call, plot, call.k_scale, plot.k_factor), begin, keys,
                      call.head_dim, scratch.k);
        multiply_keys(block_factors(call, plot, call.v_scale, 1.0f), begin, keys, call.value_dim,
                      scratch.v);
      }
    }

    for (int t = 0; t < tiles.count; ++t) {
      const Tile& tile = tiles.tile[t];
      std::int64_t from = begin > tile.some.begin ? begin : tile.some.begin;
      const std::int64_t to = end < tile.some.end ? end : tile.some.end;
      if (from >= to) continue;
      auto count = static_cast<int>(to - from);
      if constexpr (A::kTiles) {
        from &= ~std::int64_t{31};
        count = round_up(static_cast<int>(to - from), 32);
      } else if constexpr (A::kPerUnit == 2) {
        from &= ~std::int64_t{1};
        count = static_cast<int>(to - from);
      }
      attend_tile<A>(call, plot, tile, from, count, k + (from - begin) * k_stride, k_stride,
                     v + (from - begin) / A::kPerUnit * v_stride, v_stride, scratch.scores,
                     scratch.biases);
    }
    if (!folds_after(entry, key_tile)) continue;
    for (int t = 0; t < tiles.count; ++t) fold(call, tiles.tile[t]);
  }

  for (int t = 0; t < tiles.count; ++t) {
    if (entry.fold) unfold(call, tiles.tile[t]);
    if (entry.splits == 1) finish(call, plot, tiles.tile[t], scratch.stage);
  }
  return true;
}

void attend(const Call& call, std::int64_t task, void* arena) {
  const Plot plot = locate(call, task, true);
  const auto run = [&](auto* code) { return code(call, plot, arena); };
#if defined(__AVX512BF16__)
  // No bf16 holds the product of a code and its block's factor.
  if (call.kv_blocks > 0) {
    run(attend<Fp32, E4m3>);
    return;
  }
#endif
#if defined(GREENFAST_AMX)
  {
    const WholeTiles tiles;
    if (call.type == Type::bf16) run(attend<Bf16Tiles<1>, Bf16>);
    if (call.type == Type::e4m3) run(attend<Bf16Tiles<1>, E4m3>);
    if (call.type == Type::f16 && run(attend<Bf16Tiles<2>, F16>)) return;
  }
#elif defined(__AVX512BF16__)
  if (call.type == Type::bf16) run(attend<Bf16Pairs, Bf16>);
  if (call.type == Type::e4m3) run(attend<Bf16Pairs, E4m3>);
#else
  if (call.type == Type::bf16) run(attend<Fp32, Bf16>);
  if (call.type == Type::e4m3) run(attend<Fp32, E4m3>);
#endif
  if (call.type == Type::f16) run(attend<Fp32, F16>);
  if (call.type == Type::f32) run(attend<Fp32, float>);
}

/// Weighs the parts of the keys by their maxima, in order, and finishes the rows.
void merge(const Call& call, std::int64_t task, void* memory) {
  const Plot plot = locate(call, task, false);
  const Entry& entry = plot.entry;
  if (entry.splits == 1) return;
  Bump arena{static_cast<char*>(memory)};
  const Scratch scratch = lay_out_scratch(call, arena);
  Tiles tiles;
  lay_out(call, entry, plot.row_task, arena, arena, tiles);
  const auto part = [&](int split, Tiles& at) {
    Bump unused{nullptr};
    const std::int64_t first = entry.partials + (plot.part() + split) * entry.partial_floats;
    Bump partial{reinterpret_cast<char*>(call.partials + first)};
    lay_out(call, entry, plot.row_task, unused, partial, at);
  };

  for (int split = 0; split < entry.splits; ++split) {
    Tiles parts;
    part(split, parts);
    for (int t = 0; t < tiles.count; ++t) {
      const Tile &whole = tiles.tile[t], &more = parts.tile[t];
      const int lanes = whole.lanes();
      for (int m = 0; m < lanes; m += kLanes) {
        const Vec before = split == 0 ? set(-kInfinity) : load(whole.max + m);
        store(whole.max + m, max(load(more.max + m), before));
      }
    }
  }
  for (int t = 0; t < tiles.count; ++t) {
    const Tile& tile = tiles.tile[t];
    Row row = row_at(call, tile.first_row);
    for (int r = 0; r < tile.lanes(); ++r, row.next()) {
      const bool real = tile.first_row + r <= tile.last_row;
      tile.scale[r] = real ? scale_of(call, plot, row).magnitude : 1.0f;
    }
  }
  for (int split = 0; split < entry.splits; ++split) {
    Tiles parts;
    part(split, parts);
    for (int t = 0; t < tiles.count; ++t) {
      const Tile &whole = tiles.tile[t], &more = parts.tile[t];
      const int lanes = whole.lanes();
      for (int m = 0; m < lanes; m += kLanes) {
        const Vec factor = factor_of(call, load(whole.scale + m));
        const Vec part_weight = rescaling(load(more.max + m), load(whole.max + m), factor);
        const Vec sum = split == 0 ? zero() : load(whole.sum + m);
        store(whole.sum + m, mul_add(load(more.sum + m), part_weight, sum));
        for (int d = 0; d < call.value_dim; ++d) {
          const int at = d * lanes + m;
          const Vec o = split == 0 ? zero() : load(whole.o + at);
          store(whole.o + at, mul_add(load(more.o + at), part_weight, o));
        }
      }
    }
  }
  for (int t = 0; t < tiles.count; ++t) {
    finish(call, plot, tiles.tile[t], scratch.stage);
  }
}

constexpr Code make_code() {
#if defined(GREENFAST_AMX)
  constexpr bool kAmx = true;
#else
  constexpr bool kAmx = false;
#endif
  return {.amx = kAmx,
          .tile_rows = kTileRows,
          .min_rows = kLanes,
          .arena_bytes = arena_bytes,
          .partial_floats = partial_floats,
          .attend = attend,
          .merge = merge};
}

}  // namespace
}  // namespace greenfast::kernels::flash
