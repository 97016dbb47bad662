// cuda.sm80.serving: everything that serving asks for. mma.sync m16n8k16, ldmatrix, cp.async;
// sm_80 and later.
//
// Idea    The loop of cuda.sm80.mma with tiles of 64 rows, where a row is a query of one of the
//         query heads that share a KV head: decoding reads K and V once for a group. Where a
//         sequence lies, how long it is and what its rows see is read from the call's arrays; rows
//         of K and V come through the page table one by one, their copies between the products.
//         e4m3 is copied as it lies, half the bytes, and becomes fp16, exactly, on its way to the
//         products (Operands).
// Takes   fp16, bf16 and e4m3, head dims 8..256 in steps of 8, V's apart, any strides and alignment
//         of an element; packed, used, padded, indexed and paged sequences, chunks, sinks, slopes
//         and array masks beside every mask and option of the library.
// Limits  sequences up to 2^30; no split over keys: few sequences leave most of a GPU idle.
// Budget  two CTAs of 4 warps an SM up to D 128, one above.
// Bound   latency of one block of keys after the other; issue slots where tiles are full.
#pragma once

#include <type_traits>
#include <utility>

#include <greenfast/arithmetic.hpp>

#include "kernels/cuda/device/array_mask.cuh"
#include "kernels/cuda/device/e4m3.cuh"
#include "kernels/cuda/device/ptx_cp_async.cuh"
#include "kernels/cuda/device/ptx_mma.cuh"
#include "kernels/cuda/device/softmax.cuh"
#include "kernels/cuda/sm80_serving/config.hpp"

namespace greenfast::cuda::sm80_serving {

/// Largest sum of a lane's weights of one block that fp16 and the sums take without loss, as in
/// cuda.sm80.mma.
inline constexpr float kSumLimit = 8192.0f;

// ---- Scores ----

/// Two neighbouring elements of a mask, read at once.
template <class M>
struct alignas(2 * sizeof(M)) Two {
  M x, y;
};

/// Adds a mask of this type to a lane's scores of a block, of which the first has key `first_key`. `rows`:
/// the mask's elements for the lane's two rows. What a row does not see is hidden afterwards; nothing is
/// read that the mask does not have.
template <class M, int kAtoms>
__device__ __forceinline__ void add_mask(const Params& p, const std::int64_t (&rows)[2],
                                         int first_key, bool pairs, float (&s)[kAtoms][4]) {
  const M* const mask = static_cast<const M*>(p.mask);
  if (pairs) {
    // All loads of a block before the first use: one after the other each would wait for memory.
    Two<M> two[kAtoms][2];
#pragma unroll
    for (int n = 0; n < kAtoms; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h)
        two[n][h] = *reinterpret_cast<const Two<M>*>(mask + rows[h] + first_key + 8 * n);
    }
#pragma unroll
    for (int n = 0; n < kAtoms; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        s[n][2 * h] = masked(s[n][2 * h], two[n][h].x);
        s[n][2 * h + 1] = masked(s[n][2 * h + 1], two[n][h].y);
      }
    }
    return;
  }
#pragma unroll
  for (int n = 0; n < kAtoms; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = first_key + 8 * n + i % 2;
      if (key < p.sequences.seq_kv) s[n][i] = masked(s[n][i], mask[rows[i / 2] + key * p.mask_key]);
    }
  }
}

/// A boolean mask's elements of a block for a lane's two rows, as they are read: the four lanes of a row
/// have a quarter each.
template <int kKeys>
struct SeenBytes {
  static constexpr int kWords = kKeys / 16;
  std::uint32_t words[2][kWords];

  __device__ __forceinline__ static SeenBytes of(const Params& p, const std::int64_t (&rows)[2],
                                                 int block) {
    SeenBytes bytes;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const auto* const from = static_cast<const unsigned char*>(p.mask) + rows[h] + block * kKeys +
                               threadIdx.x % 4 * (kKeys / 4);
      if constexpr (kWords == 4) {
        const uint4 four = __ldg(reinterpret_cast<const uint4*>(from));
        bytes.words[h][0] = four.x;
        bytes.words[h][1] = four.y;
        bytes.words[h][2] = four.z;
        bytes.words[h][3] = four.w;
      } else {
        static_assert(kWords == 2);
        const uint2 two = __ldg(reinterpret_cast<const uint2*>(from));
        bytes.words[h][0] = two.x;
        bytes.words[h][1] = two.y;
      }
    }
    return bytes;
  }
  /// Whether each of four bytes is not 0, as four bits.
  __device__ __forceinline__ static std::uint32_t four_bits(std::uint32_t word) {
    const std::uint32_t tops = (word | ((word & 0x7f7f7f7fu) + 0x7f7f7f7fu)) & 0x80808080u;
    return (tops >> 7) * 0x10204080u >> 28;  // each bit to its place, no two of them to one
  }
  /// Hides the keys of a lane's scores that a row does not see.
  template <int kAtoms>
  __device__ __forceinline__ void hide(float (&s)[kAtoms][4]) const {
    static_assert(8 * kAtoms == kKeys);
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      std::uint32_t mine = 0;
#pragma unroll
      for (int i = 0; i < kWords; ++i) mine |= four_bits(words[h][i]) << 4 * i;
      // All bits of the row, from the lane's first key on.
      std::uint32_t bits[kKeys / 32];
      if constexpr (kWords == 4) {
        const std::uint32_t half = mine << (t % 2 * 16);
        const std::uint32_t whole = half | __shfl_xor_sync(kFullWarp, half, 1);
        const std::uint32_t other = __shfl_xor_sync(kFullWarp, whole, 2);
        bits[0] = (t < 2 ? whole : other) >> 2 * t;
        bits[1] = (t < 2 ? other : whole) >> 2 * t;
      } else {
        std::uint32_t whole = mine << 8 * t;
        whole |= __shfl_xor_sync(kFullWarp, whole, 1);
        whole |= __shfl_xor_sync(kFullWarp, whole, 2);
        bits[0] = whole >> 2 * t;
      }
#pragma unroll
      for (int n = 0; n < kAtoms; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if ((bits[n / 4] >> (8 * (n % 4) + e) & 1) == 0) s[n][2 * h + e] = -INFINITY;
        }
      }
    }
  }
};

// ---- Copies ----

/// Bytes from the start of a matrix in shared memory to the 16-byte chunk of a row.
template <Config kC>
__device__ __forceinline__ int place_of(int row, int chunk) {
  // Of rows of 64 bytes a line has two.
  return row * kC.pitch() + (chunk ^ (kC.pitch() == 64 ? row / 2 % 4 : row % 8)) * 16;
}
/// From the place of one of the first two chunks of a row to that `pieces` times two farther.
template <Config kC>
__device__ __forceinline__ std::uint32_t along(std::uint32_t place, int pieces) {
  return (place ^ pieces % 4 * 32) + pieces / 4 * 128;
}

/// How the threads of a block share the copying of rows: each takes every kRowsAtOnce-th row, and of it
/// every eighth chunk of 16 bytes.
template <Config kC>
struct CopyShape {
  static constexpr int kChunks = kC.pitch() / 16, kLanes = kChunks < 8 ? kChunks : 8;
  static constexpr int kRowsAtOnce = kC.threads() / kLanes;
  static constexpr int kOfRow = kChunks / kLanes;  // copies of a thread
  /// Elements from one of its copies of a row to the next.
  static constexpr int kColumns = kLanes * kC.of_chunk();
  static_assert(kRowsAtOnce % 8 == 0);  // so that its rows have one phase
  static __device__ __forceinline__ int chunk() { return static_cast<int>(threadIdx.x) % kLanes; }
  static __device__ __forceinline__ int row() { return static_cast<int>(threadIdx.x) / kLanes; }
  /// The first column of a thread's copies.
  static __device__ __forceinline__ int column() { return chunk() * kC.of_chunk(); }
  /// From the place of a thread's first chunk to that of its copy of this number.
  static constexpr int place(int number) {
    return number / kOfRow * kRowsAtOnce * kC.pitch() + number % kOfRow * kLanes * 16;
  }
};

/// 16 bytes to shared memory, of which `count` elements are there: any of them lies where it may.
template <class T>
__device__ __forceinline__ void copy_elements(std::uint32_t to, const T* from, int count) {
  uint4 value = make_uint4(0, 0, 0, 0);
  if (count > 0) {
    std::uint32_t word[4] = {0, 0, 0, 0};
    if constexpr (sizeof(T) == 2) {
      const auto* words = reinterpret_cast<const std::uint16_t*>(from);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        word[i] = __ldg(words + 2 * i) | static_cast<std::uint32_t>(__ldg(words + 2 * i + 1)) << 16;
      }
    } else {
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(from);
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        if (i < count) word[i / 4] |= static_cast<std::uint32_t>(__ldg(bytes + i)) << (8 * (i % 4));
      }
    }
    value = make_uint4(word[0], word[1], word[2], word[3]);
  }
  ptx::store_shared_16(to, value);
}

// ---- Operands ----

/// What ldmatrix brings of 16 rows and 32 bytes, as operands of m16n8k16. Of 16 bits: 16 columns.
template <class T>
struct Operands {
  using Element = T;
  static constexpr int kSteps = 1;  // of 16 columns in 32 bytes
  static __device__ __forceinline__ void of_q(const std::uint32_t (&raw)[4], int /*step*/,
                                              std::uint32_t (&a)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = raw[i];
  }
  /// Of two neighbouring atoms of eight keys.
  static __device__ __forceinline__ void of_k(const std::uint32_t (&raw)[4], int /*step*/,
                                              std::uint32_t (&b)[2][2]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) b[i / 2][i % 2] = raw[i];
  }
  /// Of two neighbouring atoms of eight columns.
  static __device__ __forceinline__ void of_v(const std::uint32_t (&raw)[4], int step,
                                              std::uint32_t (&b)[2][2]) {
    of_k(raw, step, b);
  }
};
/// 32 columns, as two operands. A lane has four neighbouring columns of a row of Q or K: columns 2 t,
/// 2 t + 1, 2 t + 8 and 2 t + 9 of the operand, alike on both sides. Of V transposed it has two
/// neighbouring columns of two keys: one is of the even atom of 16 columns, one of the odd one.
template <>
struct Operands<E4m3> {
  using Element = __half;
  static constexpr int kSteps = 2;
  static __device__ __forceinline__ void of_q(const std::uint32_t (&raw)[4], int step,
                                              std::uint32_t (&a)[4]) {
#pragma unroll
    for (int rows = 0; rows < 2; ++rows) {
      a[rows] = decode_e4m3x2(raw[2 * step + rows]);
      a[rows + 2] = decode_e4m3x2(raw[2 * step + rows] >> 16);
    }
  }
  static __device__ __forceinline__ void of_k(const std::uint32_t (&raw)[4], int step,
                                              std::uint32_t (&b)[2][2]) {
#pragma unroll
    for (int atom = 0; atom < 2; ++atom) {
      b[atom][0] = decode_e4m3x2(raw[2 * atom + step]);
      b[atom][1] = decode_e4m3x2(raw[2 * atom + step] >> 16);
    }
  }
  static __device__ __forceinline__ void of_v(const std::uint32_t (&raw)[4], int step,
                                              std::uint32_t (&b)[2][2]) {
#pragma unroll
    for (int keys = 0; keys < 2; ++keys) {
      const std::uint32_t by_column = __byte_perm(raw[2 * step + keys], 0, 0x3120);
      b[0][keys] = decode_e4m3x2(by_column);
      b[1][keys] = decode_e4m3x2(by_column >> 16);
    }
  }
};

// ---- The output ----

/// Writes one row's share of a lane: x[n] holds columns 8n + 2t and the next, for lane 4g + t.
template <class TOut, int kAtoms>
__device__ __forceinline__ void store_row(TOut* row, const float2 (&x)[kAtoms], bool row_ok,
                                          int value_dim, bool wide) {
  const int t = threadIdx.x & 3;
  if (wide) {
    if constexpr (sizeof(TOut) == 2) {
#pragma unroll
      for (int n = 0; n < kAtoms; n += 4) {
        std::uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = pack2<TOut>(x[n + i].x, x[n + i].y);
        const uint4 chunk = quad_transpose(words);
        const int column = 8 * (n + t);
        if (row_ok && column < value_dim) ptx::store_global_16(row + column, chunk);
      }
    } else {
#pragma unroll
      for (int n = 0; n < kAtoms; ++n) {
        const int column = 8 * n + 2 * t;
        if (row_ok && column < value_dim) *reinterpret_cast<float2*>(row + column) = x[n];
      }
    }
    return;
  }
#pragma unroll
  for (int n = 0; n < kAtoms; ++n) {
    const int column = 8 * n + 2 * t;
    if (!row_ok || column >= value_dim) continue;
    row[column] = from_float<TOut>(x[n].x);
    row[column + 1] = from_float<TOut>(x[n].y);
  }
}

/// The same of e4m3: a lane has four neighbours of 16 columns, in the order of the even and the odd
/// atom.
template <class TOut, int kAtoms>
__device__ __forceinline__ void store_row_of_e4m3(TOut* row, const float2 (&x)[kAtoms], bool row_ok,
                                                  int value_dim, bool wide) {
  const int t = threadIdx.x & 3;
#pragma unroll
  for (int n = 0; n < kAtoms; n += 2) {
    const int column = 8 * n + 4 * t;
    if (!row_ok || column >= value_dim) continue;
    const float four[4] = {x[n].x, x[n + 1].x, x[n].y, x[n + 1].y};
    if (!wide) {
#pragma unroll
      for (int i = 0; i < 4; ++i) row[column + i] = from_float<TOut>(four[i]);
    } else if constexpr (sizeof(TOut) == 2) {
      *reinterpret_cast<uint2*>(row + column) =
          make_uint2(pack2<TOut>(four[0], four[1]), pack2<TOut>(four[2], four[3]));
    } else {
      *reinterpret_cast<float2*>(row + column) = make_float2(four[0], four[1]);
      *reinterpret_cast<float2*>(row + column + 2) = make_float2(four[2], four[3]);
    }
  }
}

// ---- The kernel ----

template <class T, std::size_t kIndex>
__global__ void __launch_bounds__(kConfigs[kIndex].threads(), kConfigs[kIndex].blocks_per_sm)
    attention_kernel(const __grid_constant__ Params p) {
  constexpr Config kC = config_of(kIndex, sizeof(T));
  static_assert(kC.valid());
  using Operand = Operands<T>;
  using Element = typename Operand::Element;  // of the products
  constexpr bool kE4m3 = sizeof(T) == 1;
  constexpr int kKeys = kC.keys, kPitch = kC.pitch();
  constexpr int kStepsD = kPitch / 32;      // pieces of 32 bytes of Q K^T
  constexpr int kAtomsD = kC.head_dim / 8;  // 8-column atoms of O
  constexpr int kAtomsN = kKeys / 8;        // 8-key atoms of S
  constexpr int kQSteps = kC.q_in_registers ? kStepsD : 1;
  // The tensor cores cut off what an addition cannot hold (sm90_prefill/guard.cuh, Flushed): the
  // output begins anew after so many blocks.
  constexpr int kFlushBlocks = 8192 / kKeys;

  extern __shared__ __align__(128) unsigned char shared_memory[];

  // ---- Which work: tiles of a KV head side by side, the last first ----
  const std::uint64_t id = std::uint64_t{blockIdx.y} * gridDim.x + blockIdx.x;
  if (id >= std::uint64_t{p.batch} * p.heads_kv * p.tiles) return;
  const auto pair = static_cast<std::uint32_t>(id / p.tiles);
  const auto tile = p.tiles - 1 - static_cast<std::uint32_t>(id - std::uint64_t{pair} * p.tiles);
  const std::uint32_t batch = pair / p.heads_kv, kv_head = pair - batch * p.heads_kv;
  const Sequence at = sequence_of(p.sequences, static_cast<std::int32_t>(batch));
  const Seen& seen = at.seen;
  const auto group = static_cast<int>(p.group);
  // A row is query row / group of head row % group; a tile's first may lie past the sequence.
  const std::int64_t all_rows = std::int64_t{at.seq_q} * group;
  const std::int64_t tile_row = std::int64_t{tile} * kC.rows();
  if (tile_row >= all_rows) return;
  const int rows = static_cast<int>(min(all_rows - tile_row, std::int64_t{kC.rows()}));
  struct Row {
    int query;
    std::uint32_t head;
  };
  const auto row_of = [&](int r) -> Row {
    const auto query = static_cast<int>((tile_row + r) / group);
    const auto member = static_cast<std::uint32_t>(tile_row + r - std::int64_t{query} * group);
    return {query, kv_head * p.group + member};
  };
  const int keys_begin = seen.first(row_of(0).query), keys_end = seen.end(row_of(rows - 1).query);
  const int block_begin = keys_begin / kKeys;
  const int block_end = keys_end > keys_begin ? ceil_div(keys_end, kKeys) : block_begin;

  // ---- Copies of K and V ----
  using Shape = CopyShape<kC>;
  constexpr int kRowsOfThread = kKeys / Shape::kRowsAtOnce;
  constexpr int kCopies = kRowsOfThread * Shape::kOfRow;  // of each of K and V
  static_assert(kKeys % Shape::kRowsAtOnce == 0 && kC.rows() % Shape::kRowsAtOnce == 0);
  constexpr std::uint32_t kV = kKeys * kPitch;  // from a stage's K to its V
  const std::uint32_t base = ptx::shared_address(shared_memory);
  const std::uint32_t copy_to = base + place_of<kC>(Shape::row(), Shape::chunk());
  const auto matrix_of = [&](const StridedTensor& x) {
    return static_cast<const T*>(x.data) + std::int64_t{at.kv_batch} * x.batch + kv_head * x.head +
           at.kv_row * x.row + Shape::column();
  };
  const T *const k = matrix_of(p.k), *const v = matrix_of(p.v);
  const auto row_source = [&](const T* matrix, const StridedTensor& x, int key) {
    if (at.pages == nullptr) return matrix + key * x.row;
    const int entry = key / p.by_page;
    const int page = max(0, min(__ldg(at.pages + entry), p.sequences.pages - 1));
    return matrix + page * x.batch + (key - entry * p.page_rows) * x.row;
  };
  // The blocks whose copies are issued one by one between products: where rows follow each other, every
  // row of the block is seen, and of a row at most a thread's last copy ends before the tile's columns
  // do. The others are copied at once, row by row.
  constexpr int kLastColumn = (Shape::kOfRow - 1) * Shape::kColumns;
  const bool k_last = Shape::column() + kLastColumn < p.head_dim;
  const bool v_last = Shape::column() + kLastColumn < p.value_dim;
  const bool whole_chunks = (p.head_dim | p.value_dim) % kC.of_chunk() == 0;
  const bool whole_rows = p.aligned && whole_chunks && at.pages == nullptr &&
                          p.head_dim > kLastColumn && p.value_dim > kLastColumn;
  const int whole_begin = ceil_div(keys_begin, kKeys);
  const int whole_end = kC.spread_copies && whole_rows ? keys_end / kKeys : 0;
  const auto is_whole = [&](int block) {
    return kC.spread_copies && block >= whole_begin && block < whole_end;
  };
  const std::int64_t k_step = Shape::kRowsAtOnce * p.k.row, v_step = Shape::kRowsAtOnce * p.v.row;
  const auto first_of = [&](const T* matrix, const StridedTensor& x) {
    return matrix + (std::int64_t{block_begin} * kKeys + Shape::row()) * x.row;
  };
  struct Next {
    const T *k, *v;
  };
  Next next{first_of(k, p.k),
            first_of(v, p.v)};  // the thread's next rows where rows follow each other
  // Copy `number` of a block, which is the next: K's first, then V's. Nothing where `go` is false.
  const auto issue = [&](int number, std::uint32_t to, bool go) {
    const bool of_v = number >= kCopies;
    const int n = of_v ? number - kCopies : number, c = n % Shape::kOfRow;
    const T*& from = of_v ? next.v : next.k;
    ptx::cp_async_16_if(go, to + (of_v ? kV : 0) + Shape::place(n), from + c * Shape::kColumns,
                        c < Shape::kOfRow - 1 || (of_v ? v_last : k_last));
    if (c == Shape::kOfRow - 1) from += of_v ? v_step : k_step;
  };
  const auto issue_all = [&](std::uint32_t to, bool go) {
#pragma unroll
    for (int number = 0; number < 2 * kCopies; ++number) issue(number, to, go);
  };
  // How many elements of a thread's copy that begins so many columns behind its first one.
  const auto kept = [&](bool some, int column, int dim) {
    const int left = dim - Shape::column() - column;
    return !some ? 0 : max(0, min(left, kC.of_chunk()));
  };
  const auto copy_rows = [&](int block, std::uint32_t to) {
  // Unrolled, so that the table is read for all rows before the first waits for it.
#pragma unroll
    for (int i = 0; i < kRowsOfThread; ++i) {
      const int key = block * kKeys + Shape::row() + i * Shape::kRowsAtOnce;
      const bool seen_key = key >= keys_begin && key < keys_end;
      // Nothing is read where nothing is kept, but an address is given.
      const T* const k_from = seen_key ? row_source(k, p.k, key) : k;
      const T* const v_from = seen_key ? row_source(v, p.v, key) : v;
      const std::uint32_t to_row = to + i * Shape::kRowsAtOnce * kPitch;
#pragma unroll
      for (int c = 0; c < Shape::kOfRow; ++c) {
        const int column = c * Shape::kColumns;
        const int k_kept = kept(seen_key, column, p.head_dim);
        const int v_kept = kept(seen_key, column, p.value_dim);
        const std::uint32_t k_to = to_row + column * kC.bytes, v_to = k_to + kV;
        if (p.aligned) {
          ptx::cp_async_16_part(k_to, k_from + column, k_kept * kC.bytes);
          ptx::cp_async_16_part(v_to, v_from + column, v_kept * kC.bytes);
        } else {
          copy_elements(k_to, k_from + column, k_kept);
          copy_elements(v_to, v_from + column, v_kept);
        }
      }
    }
  };

  // ---- Prologue: Q and the first block ----
  {
    const T* const q =
        static_cast<const T*>(p.q.data) + std::int64_t{at.q_batch} * p.q.batch + Shape::column();
#pragma unroll 1
    for (int r = Shape::row(), number = 0; r < kC.rows();
         r += Shape::kRowsAtOnce, number += Shape::kOfRow) {
      const Row row = row_of(min(r, rows - 1));
      const T* const from =
          q + row.head * p.q.head + (std::int64_t{at.q_row} + row.query) * p.q.row;
      const std::uint32_t to = copy_to + kC.q_offset() + Shape::place(number);
#pragma unroll
      for (int c = 0; c < Shape::kOfRow; ++c) {
        const int column = c * Shape::kColumns, keep = kept(r < rows, column, p.head_dim);
        if (p.aligned)
          ptx::cp_async_16_part(to + column * kC.bytes, keep > 0 ? from + column : q,
                                keep * kC.bytes);
        else
          copy_elements(to + column * kC.bytes, from + column, keep);
      }
    }
  }
  if (block_begin < block_end) {
    if (!is_whole(block_begin)) copy_rows(block_begin, copy_to);
    issue_all(copy_to, is_whole(block_begin));
  }
  ptx::cp_async_commit();
  ptx::cp_async_wait<0>();
  __syncthreads();

  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(kFullWarp, static_cast<int>(threadIdx.x) / 32, 0);
  // Where a lane reads the first 16x16 piece of a matrix; right for Q and for V, K has rows and columns
  // of the 8x8 matrices exchanged.
  const std::uint32_t lane_offset = place_of<kC>(lane % 16, lane / 16);
  const std::uint32_t k_lane_offset = place_of<kC>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  const std::uint32_t q_address = base + kC.q_offset() + warp * 16 * kPitch + lane_offset;
  std::uint32_t q_fragment[kQSteps][4];  // as ldmatrix brings it
  if constexpr (kC.q_in_registers) {
#pragma unroll
    for (int d = 0; d < kStepsD; ++d) ptx::ldmatrix_x4(q_fragment[d], along<kC>(q_address, d));
    __syncthreads();  // the second stage takes Q's place
  }

  // Of this lane's rows, warp * 16 + lane / 4 and 8 further. Those past the tile are as its last.
  int query[2];
  std::uint32_t head[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const Row row = row_of(min(warp * 16 + lane / 4 + 8 * h, rows - 1));
    query[h] = row.query;
    head[h] = row.head;
  }
  const auto rows_of_mask = [&](std::int64_t(&to)[2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h)
      to[h] = batch * p.mask_batch + head[h] * p.mask_head + query[h] * p.mask_row;
  };
  // Block classes, uniform over a warp: seen by some of its rows, and seen by all of them.
  const int warp_first = row_of(min(warp * 16, rows - 1)).query;
  const int warp_last = row_of(min(warp * 16 + 15, rows - 1)).query;
  const int some_begin = warp * 16 < rows ? seen.first(warp_first) / kKeys : 0;
  const int some_end = warp * 16 < rows ? ceil_div(max(seen.end(warp_last), 0), kKeys) : 0;
  const int all_begin = ceil_div(seen.first(warp_last), kKeys);
  const int all_end = max(seen.end(warp_first), 0) / kKeys;
  // Of e4m3 each row has a factor of its own. One that is not positive is for the transform: the
  // largest product must be the largest score.
  float product_scale[2] = {1.0f, 1.0f};
  if constexpr (kE4m3) {
    if (p.q_scale != nullptr) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const std::int64_t of_q = std::int64_t{batch} * p.heads_q + head[h];
        const std::int64_t of_kv = std::int64_t{batch} * p.heads_kv + kv_head;
        product_scale[h] =
            p.q_scale[p.scales_per_head ? of_q : 0] * p.k_scale[p.scales_per_head ? of_kv : 0];
      }
    }
  }
  const bool transform =
      p.transform ||
      (kE4m3 && __any_sync(kFullWarp, !(product_scale[0] > 0.0f) || !(product_scale[1] > 0.0f)));
  // Of the transform, or of the exponent, which then is 1 with a transform.
  const float by_product = transform ? p.transform_scale : p.scale_log2;
  const float row_scale[2] = {by_product * product_scale[0],
                              by_product * (kE4m3 ? product_scale[1] : product_scale[0])};
  const auto scale = [&](int h) { return transform ? 1.0f : row_scale[kE4m3 ? h : 0]; };

  float o[kAtomsD][4] = {}, row_sum[2] = {};
  float row_max[2] = {-INFINITY, -INFINITY};  // in units of the exponent
  bool shifted = false;  // every row of the warp has a maximum; uniform over the warp
  // What a thread wants seldom, and keeps in memory.
  struct Seldom {
    float low[2];         // of row_max, once `wide`
    float o[kAtomsD][4];  // of the blocks before the last flush, and
    float row_sum[2];     // their sums
  } in_memory;
  const auto seldom = [&]() -> Seldom& {
    Seldom* address = &in_memory;
    asm volatile("" : "+l"(address));  // else the compiler would keep it all in registers
    return *address;
  };
  bool wide = false;  // some row_max of the warp is beyond kLargestBase; uniform over the warp
  bool flushed = false;

  // ---- Mainloop ----
#pragma unroll 1
  for (int block = block_begin; block < block_end; ++block) {
    const int stage = (block - block_begin) & 1;
    const std::uint32_t next_to = copy_to + (stage ^ 1) * kC.stage_bytes();
    const bool go = is_whole(block + 1);
    if (!go && block + 1 < block_end) copy_rows(block + 1, next_to);
    // Of a boolean mask: they come while Q and K are multiplied, where there are registers for them.
    [[maybe_unused]] SeenBytes<kKeys> bytes;
    const bool whole_mask = (block + 1) * kKeys <= p.sequences.seq_kv;
    const bool by_bytes = p.mask_run == 16 && whole_mask;
    if constexpr (kC.head_dim <= 64) {
      if (by_bytes) {
        std::int64_t mask_rows[2];
        rows_of_mask(mask_rows);
        bytes = SeenBytes<kKeys>::of(p, mask_rows, block);
      }
    }

    if (block >= some_begin && block < some_end) {
      const std::uint32_t k_base = base + stage * kC.stage_bytes();

      // S = Q K^T, and the copies of the next block one by one between the products
      float s[kAtomsN][4] = {};
#pragma unroll
      for (int d = 0; d < kStepsD; ++d) {
        static_assert(kCopies <= kStepsD);
        if (2 * d < 2 * kCopies) issue(2 * d, next_to, go);
        if (2 * d + 1 < 2 * kCopies) issue(2 * d + 1, next_to, go);
        if constexpr (!kC.q_in_registers) ptx::ldmatrix_x4(q_fragment[0], along<kC>(q_address, d));
        std::uint32_t fragment[Operand::kSteps][4];
#pragma unroll
        for (int step = 0; step < Operand::kSteps; ++step)
          Operand::of_q(q_fragment[kC.q_in_registers ? d : 0], step, fragment[step]);
#pragma unroll
        for (int n = 0; n < kAtomsN; n += 2) {
          std::uint32_t raw[4];
          ptx::ldmatrix_x4(raw, along<kC>(k_base + k_lane_offset, d) + n * 8 * kPitch);
#pragma unroll
          for (int step = 0; step < Operand::kSteps; ++step) {
            std::uint32_t b[2][2];
            Operand::of_k(raw, step, b);
            ptx::mma_m16n8k16<Element>(s[n], fragment[step], b[0][0], b[0][1]);
            ptx::mma_m16n8k16<Element>(s[n + 1], fragment[step], b[1][0], b[1][1]);
          }
        }
      }

      if (transform) {
#pragma unroll
        for (int n = 0; n < kAtomsN; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i)
            s[n][i] = transformed(s[n][i], row_scale[kE4m3 ? i / 2 : 0], p.transform_cap);
        }
      }
      const int first_key = block * kKeys + lane % 4 * 2;
      if (p.slopes != nullptr) {
        float slope[2];  // in units of log2
#pragma unroll
        for (int h = 0; h < 2; ++h)
          slope[h] = p.slopes[std::int64_t{batch} * p.slopes_of_entry + head[h]] * (1.0f / kLn2);
#pragma unroll
        for (int n = 0; n < kAtomsN; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int distance = query[i / 2] + seen.shift - (first_key + 8 * n + i % 2);
            s[n][i] = fmaf(-slope[i / 2], fabsf(static_cast<float>(distance)), s[n][i]);
          }
        }
      }
      if (p.mask != nullptr) {
        const bool pairs = p.mask_run >= 2 && whole_mask;
        std::int64_t mask_rows[2];
        rows_of_mask(mask_rows);
        if (by_bytes) {
          if constexpr (kC.head_dim > 64) bytes = SeenBytes<kKeys>::of(p, mask_rows, block);
          bytes.hide(s);
        } else if (p.bool_mask)
          add_mask<unsigned char>(p, mask_rows, first_key, pairs, s);
        else if (kE4m3 || p.mask_type == ElementType::f32)
          add_mask<float>(p, mask_rows, first_key, pairs, s);
        else if constexpr (!kE4m3)
          add_mask<T>(p, mask_rows, first_key, pairs, s);
      }
      if (block < all_begin || block >= all_end) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int begin = seen.first(query[h]) - first_key, end = seen.end(query[h]) - first_key;
#pragma unroll
          for (int n = 0; n < kAtomsN; ++n) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
              if (8 * n + e < begin || 8 * n + e >= end) s[n][2 * h + e] = -INFINITY;
            }
          }
        }
      }

      // Weights, two neighbouring keys to a register, and what this lane adds to the row sums.
      std::uint32_t weights[kAtomsN][2];
      float added[2];
      const auto weigh = [&](const float(&by)[2]) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          // A row that has seen no key keeps -inf; subtracting 0 then gives weights of 0. Wide bases
          // have been subtracted before.
          const float shift = row_max[h] == -INFINITY || wide ? 0.0f : row_max[h];
          float sum0 = 0.0f, sum1 = 0.0f;
#pragma unroll
          for (int n = 0; n < kAtomsN; ++n) {
            const float x0 = exp2_fast(fmaf(s[n][2 * h], by[h], -shift));
            const float x1 = exp2_fast(fmaf(s[n][2 * h + 1], by[h], -shift));
            sum0 += x0;
            sum1 += x1;
            weights[n][h] = pack2<Element>(x0, x1);
          }
          added[h] = sum0 + sum1;
        }
      };
      // The maximum need not be exact, only near enough for the weights to fit T: once all rows of the
      // warp have one, it is kept until the sums say that it no longer does.
      bool fits = shifted;
      if (shifted) {
        const float by[2] = {scale(0), scale(1)};
        weigh(by);
        fits = __all_sync(kFullWarp, added[0] <= kSumLimit && added[1] <= kSumLimit);
      }
      if (!fits) {
        shifted = true;
        float most[2];
        bool large = wide;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float m0 = s[0][2 * h], m1 = s[0][2 * h + 1];
#pragma unroll
          for (int n = 1; n < kAtomsN; ++n) {
            m0 = fmaxf(m0, s[n][2 * h]);
            m1 = fmaxf(m1, s[n][2 * h + 1]);
          }
          most[h] = quad_max(fmaxf(m0, m1));
          const float now = fmaxf(row_max[h], most[h] * scale(h));
          large |= fabsf(now) > kLargestBase && now != -INFINITY;
        }
        large = __any_sync(kFullWarp, large);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          float new_max, decay;
          if (large) {
            float& low = seldom().low[h];
            const WideBase before{row_max[h], wide ? low : 0.0f};
            const WideBase wider = larger(before, wide_base(most[h], scale(h)));
            decay = before.high == -INFINITY ? 1.0f : exp2_fast(distance(before, wider));
            new_max = wider.high;
            low = wider.low;
#pragma unroll
            for (int n = 0; n < kAtomsN; ++n) {
              s[n][2 * h] = exponent(s[n][2 * h], scale(h), finite(wider));
              s[n][2 * h + 1] = exponent(s[n][2 * h + 1], scale(h), finite(wider));
            }
          } else {
            new_max = fmaxf(row_max[h], most[h] * scale(h));
            decay = new_max == -INFINITY ? 1.0f : exp2_fast(row_max[h] - new_max);
          }
          shifted &= new_max != -INFINITY;
          row_max[h] = new_max;
          row_sum[h] *= decay;
#pragma unroll
          for (int n = 0; n < kAtomsD; ++n) {
            o[n][2 * h] *= decay;
            o[n][2 * h + 1] *= decay;
          }
          if (flushed) {
            Seldom& before = seldom();
            before.row_sum[h] *= decay;
#pragma unroll
            for (int n = 0; n < kAtomsD; ++n) {
              before.o[n][2 * h] *= decay;
              before.o[n][2 * h + 1] *= decay;
            }
          }
        }
        wide = large;
        shifted = __all_sync(kFullWarp, shifted && !wide);
        const float by[2] = {wide ? 1.0f : scale(0), wide ? 1.0f : scale(1)};
        weigh(by);
      }
      row_sum[0] += added[0];
      row_sum[1] += added[1];

      // O += P V
      const std::uint32_t v_address = k_base + kV + lane_offset;
#pragma unroll
      for (int n = 0; n < kAtomsN; n += 2) {
        const std::uint32_t fragment[4] = {weights[n][0], weights[n][1], weights[n + 1][0],
                                           weights[n + 1][1]};
#pragma unroll
        for (int d = 0; d < kAtomsD; d += 2 * Operand::kSteps) {
          std::uint32_t raw[4];
          ptx::ldmatrix_x4_trans(raw,
                                 along<kC>(v_address, d / (2 * Operand::kSteps)) + n * 8 * kPitch);
#pragma unroll
          for (int step = 0; step < Operand::kSteps; ++step) {
            std::uint32_t b[2][2];
            Operand::of_v(raw, step, b);
            ptx::mma_m16n8k16<Element>(o[d + 2 * step], fragment, b[0][0], b[0][1]);
            ptx::mma_m16n8k16<Element>(o[d + 2 * step + 1], fragment, b[1][0], b[1][1]);
          }
        }
      }
    } else {
      issue_all(next_to, go);
    }
    if ((block - block_begin + 1) % kFlushBlocks == 0) {
      Seldom& before = seldom();
#pragma unroll
      for (int n = 0; n < kAtomsD; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          before.o[n][i] = flushed ? before.o[n][i] + o[n][i] : o[n][i];
          o[n][i] = 0.0f;
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        before.row_sum[h] = flushed ? before.row_sum[h] + row_sum[h] : row_sum[h];
        row_sum[h] = 0.0f;
      }
      flushed = true;
    }
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncthreads();
  }

  // ---- Epilogue ----
  if (flushed) {
    const Seldom& before = seldom();
#pragma unroll
    for (int n = 0; n < kAtomsD; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) o[n][i] += before.o[n][i];
    }
    row_sum[0] += before.row_sum[0];
    row_sum[1] += before.row_sum[1];
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const bool there = warp * 16 + lane / 4 + 8 * h < rows;
    const float total = quad_sum(row_sum[h]);
    float factor = total == 0.0f ? 0.0f : 1.0f / total;
    const float low = wide ? seldom().low[h] : 0.0f;
    float lse = total == 0.0f ? -INFINITY : kLn2 * (row_max[h] + (low + __log2f(total)));
    if (p.sinks != nullptr) factor *= join_sink(p.sinks[head[h]], lse);
    if constexpr (kE4m3) {
      if (p.v_scale != nullptr)
        factor *= p.v_scale[p.scales_per_head ? std::int64_t{batch} * p.heads_kv + kv_head : 0];
    }
    const std::int64_t q_row = std::int64_t{at.q_row} + query[h];
    if (p.lse != nullptr && lane % 4 == 0 && there) {
      // Packed: [Hq, total].
      const std::int64_t of_head =
          p.sequences.cu_q != nullptr
              ? std::int64_t{head[h]} * p.sequences.total_q
              : (std::int64_t{batch} * p.heads_q + head[h]) * p.sequences.seq_q;
      p.lse[of_head + q_row] = lse;
    }
    float2 x[kAtomsD];
#pragma unroll
    for (int n = 0; n < kAtomsD; ++n)
      x[n] = make_float2(o[n][2 * h] * factor, o[n][2 * h + 1] * factor);
    if (p.output == ElementType::f16) {
#pragma unroll
      for (float2& mean : x) mean = make_float2(finite_mean(mean.x), finite_mean(mean.y));
    }
    const std::int64_t offset =
        std::int64_t{at.q_batch} * p.o_batch + head[h] * p.o_head + q_row * p.o_row;
    const auto store = [&](auto* o_row) {
      if constexpr (kE4m3)
        store_row_of_e4m3(o_row, x, there, p.value_dim, p.wide_store);
      else
        store_row(o_row, x, there, p.value_dim, p.wide_store);
    };
    switch (p.output) {
      case ElementType::f16:
        store(static_cast<__half*>(p.o) + offset);
        break;
      case ElementType::bf16:
        store(static_cast<__nv_bfloat16*>(p.o) + offset);
        break;
      case ElementType::f32:
        store(static_cast<float*>(p.o) + offset);
        break;
    }
  }
}

template <class T>
const std::array<const void*, kConfigs.size()>& entries() {
  static const auto table = []<std::size_t... kI>(std::index_sequence<kI...>) {
    return std::array{reinterpret_cast<const void*>(&attention_kernel<T, kI>)...};
  }
  (std::make_index_sequence<kConfigs.size()>());
  return table;
}

}  // namespace greenfast::cuda::sm80_serving
