// The nouns of the public API: element types, status, mask, problem, tensors. Needs no CUDA header.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <greenfast/export.hpp>

namespace greenfast {

/// Element type of a tensor. Values are stable: the C ABI uses the same numbers.
enum class DType : std::int32_t { f32 = 0, f16 = 1, bf16 = 2, e4m3 = 3 };

/// Bytes of one element: 4, 2, 2, 1; 0 for a value outside the enumeration.
GREENFAST_API std::size_t size_of(DType dtype) noexcept;
/// "fp32", "fp16", "bf16", "e4m3", or "unknown".
GREENFAST_API std::string_view name_of(DType dtype) noexcept;
/// The inverse of name_of; also accepts "f32", "float32", "f16", "float16", "bfloat16", "fp8".
GREENFAST_API std::optional<DType> parse_dtype(std::string_view text) noexcept;

/// Where tensors lie and kernels run. Values are stable.
enum class DeviceKind : std::int32_t { cpu = 0, cuda = 1 };
/// "cpu" or "cuda".
GREENFAST_API std::string_view name_of(DeviceKind kind) noexcept;

/// Why a call failed. Values are stable.
enum class StatusCode : std::int32_t {
  ok = 0,
  invalid_argument = 1,  ///< the call contradicts itself or points at memory it may not use
  unsupported = 2,       ///< a legal problem that no (or not the forced) variant can take
  no_device = 3,         ///< the device or its driver is missing
  out_of_memory = 4,
  device_error = 5,  ///< the driver reported a failure
  internal = 6,
};
/// "ok", "invalid argument" and so on.
GREENFAST_API std::string_view name_of(StatusCode code) noexcept;

/// Outcome of a call. A failure's message names what was asked, what is possible and what to
/// change. A success holds no memory.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}
  bool ok() const noexcept { return code_ == StatusCode::ok; }
  explicit operator bool() const noexcept { return ok(); }
  StatusCode code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }

 private:
  StatusCode code_ = StatusCode::ok;
  std::string message_;
};

/// A value or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)
  bool ok() const noexcept { return value_.has_value(); }
  explicit operator bool() const noexcept { return ok(); }
  const Status& status() const noexcept { return status_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

/// Where the diagonal of a causal or windowed mask lies when Sq != Skv.
enum class Alignment : std::int32_t {
  top_left = 0,  ///< query i faces key i (torch's is_causal)
  bottom_right =
      1,  ///< the last query faces the last key (a KV cache; FlashAttention's convention)
};

/// A band of visible keys: query i sees key j iff  i + shift - left <= j <= i + shift + right,
/// with shift = 0 (top_left) or Skv - Sq (bottom_right). A negative bound is no bound. Sq and Skv
/// are the lengths of the sequence where each has its own.
struct Mask {
  static constexpr std::int64_t kUnbounded = -1;

  std::int64_t left = kUnbounded;
  std::int64_t right = kUnbounded;
  Alignment alignment = Alignment::top_left;

  static constexpr Mask none() { return {}; }
  static constexpr Mask causal(Alignment alignment) { return {kUnbounded, 0, alignment}; }
  static constexpr Mask window(std::int64_t left, std::int64_t right, Alignment alignment) {
    return {left, right, alignment};
  }
  constexpr bool is_none() const {
    const auto& [before, after, where] = *this;  // a new member says here whether it hides keys
    return before < 0 && after < 0;
  }
  constexpr bool is_causal() const { return right == 0; }
  friend bool operator==(const Mask&, const Mask&) = default;
};

/// Where the elements of a [B, H, S, D] tensor lie.
struct Layout {
  /// In elements, for B, H, S, D. The last must be 1; but V in e4m3 may have 1 for S and another for
  /// D, which is what kernels for e4m3 multiply by (quantize_e4m3 writes it so).
  std::array<std::int64_t, 4> stride{};
  /// Bytes that divide the base address, a power of two. Facts for planning; a call with pointers
  /// uses what the pointers have.
  std::int32_t alignment = 64;

  friend bool operator==(const Layout&, const Layout&) = default;
};

/// Memory orders that have a name.
enum class Order : std::int32_t { bhsd = 0, bshd = 1 };
/// Dense layout of a [B, H, S, D] tensor in the given memory order.
GREENFAST_API Layout dense_layout(Order order, std::int64_t batch, std::int64_t heads,
                                  std::int64_t seq, std::int64_t head_dim) noexcept;
/// Layout of a [B, H, S, D] tensor that lies as [B, H, D, S], rows of S padded to a multiple of 16
/// elements: of V in e4m3.
GREENFAST_API Layout transposed_layout(std::int64_t batch, std::int64_t heads, std::int64_t seq,
                                       std::int64_t head_dim) noexcept;

/// How far one descale value of an e4m3 tensor reaches.
enum class ScaleKind : std::int32_t {
  none = 0,      ///< no scales: every factor is 1
  tensor = 1,    ///< one fp32 for the whole tensor
  per_head = 2,  ///< fp32 [B, H] of that tensor (Hq for Q, Hkv for K and V), contiguous
  /// fp32 [B, H, ceil(S / kScaleBlock)], contiguous; S is seq_q or seq_kv. Blocks of a sequence are
  /// counted from its first query or key, wherever that lies.
  per_block = 3,
};
/// Queries, or keys, of a sequence that share a factor of ScaleKind::per_block.
inline constexpr std::int64_t kScaleBlock = 128;

/// How near to the exact answer O and the LSE must be. Values are stable. docs/numerics.md.
enum class Accuracy : std::int32_t {
  exact = 0,  ///< weights by an exponential, as near as the element types allow
  /// e4m3 alone: a kernel may take weights that are linear between powers of two. An exact answer is
  /// one too.
  fast = 1,
};
/// "exact", "fast", or "unknown".
GREENFAST_API std::string_view name_of(Accuracy accuracy) noexcept;

/// How the sequences of a batch lie and which arrays of the call say how long each is. What the
/// arrays hold is int32, on the device; only what stands here is needed to plan. docs/serving.md.
struct Sequences {
  bool packed_q = false;   ///< Q, O, LSE hold the sequences one behind the other, as cu_q says
  bool packed_kv = false;  ///< K and V do, as cu_kv says
  bool used_q = false;     ///< used_q [B] says how many rows of Q each sequence has
  bool used_kv = false;    ///< used_kv [B] says how many keys each sequence has
  bool kv_start = false;   ///< kv_start [B] is the first key that may be seen: left padding
  bool kv_index = false;   ///< kv_index [B] is the row of K and V that an entry of the batch reads
  std::int64_t total_q = 0;   ///< packed_q: rows of Q and O, at least cu_q[B]
  std::int64_t total_kv = 0;  ///< packed_kv: rows of K and V, at least cu_kv[B]
  std::int64_t kv_rows = 0;   ///< kv_index: rows of the cache, K's and V's first dimension

  friend bool operator==(const Sequences&, const Sequences&) = default;
};

/// A cache in pages: key j of sequence b is row j % size of page page_table[b][j / size].
struct Pages {
  std::int64_t size = 0;        ///< keys of a page, any from 1 on; 0: K and V are not in pages
  std::int64_t count = 0;       ///< pages of the pool, K's and V's first dimension
  std::int64_t row_stride = 0;  ///< entries of the page table from one sequence to the next

  constexpr bool used() const { return size != 0; }
  friend bool operator==(const Pages&, const Pages&) = default;
};

/// What the elements of an array mask mean. Values are stable.
enum class MaskKind : std::int32_t {
  none = 0,
  boolean = 1,   ///< one byte; not 0: the key is visible
  additive = 2,  ///< added to the score behind softcap; -inf hides the key
};

/// A mask that the call is given element by element, [B, Hq, Sq, Skv] of the problem, beside the
/// band. A dimension that it has once has stride 0, the last one too, which otherwise is 1.
struct ArrayMask {
  MaskKind kind = MaskKind::none;
  DType dtype = DType::f32;  ///< additive: fp32, or the type of Q
  std::array<std::int64_t, 4> stride{};

  friend bool operator==(const ArrayMask&, const ArrayMask&) = default;
};

/// Which slopes ALiBi has. Values are stable.
enum class Alibi : std::int32_t {
  none = 0,
  per_head = 1,        ///< fp32 [Hq]
  per_batch_head = 2,  ///< fp32 [B, Hq]
};

/// One scaled-dot-product attention call, O = softmax(softcap(scale * Q K^T) + mask) V, without its
/// data. Q, O: [B, Hq, Sq, D]; K, V: [B, Hkv, Skv, D]; Hq is a multiple of Hkv, and query head h
/// reads KV head h / (Hq / Hkv). O and V have head_dim_v in place of D where that is not 0.
/// Packed Q and O are [1, Hq, total_q, D], packed K and V [1, Hkv, total_kv, D]; in pages K and V
/// are [pages.count, Hkv, pages.size, D]. Then batch counts the sequences, and seq_q and seq_kv are
/// the most rows and keys that any of them has: they may be more, never less.
struct Problem {
  std::int64_t batch = 1;
  std::int64_t heads_q = 1;
  std::int64_t heads_kv = 1;
  std::int64_t seq_q = 0;
  std::int64_t seq_kv = 0;
  std::int64_t head_dim = 64;  ///< 8 to 256 in steps of 8

  DType dtype = DType::f16;      ///< of Q, K and V
  DType out_dtype = DType::f16;  ///< fp32, fp16 or bf16
  ScaleKind scales = ScaleKind::none;

  float scale = 0.125f;  ///< finite; see default_scale
  float softcap = 0.0f;  ///< c > 0: scores become c * tanh(score / c); 0: off
  Mask mask = {};
  /// Also write the natural-log log-sum-exp, fp32 [B, Hq, Sq] contiguous, packed [Hq, total_q].
  bool lse = false;

  Layout q = {}, k = {}, v = {}, o = {};

  std::int64_t head_dim_v = 0;  ///< of V and O: 8 to 256 in steps of 8; 0: head_dim
  Sequences sequences = {};
  Pages pages = {};
  /// Positions in chunks of so many keys, counted from kv_start: a query sees keys of its own chunk
  /// alone, and of those what the mask leaves. 0: off.
  std::int64_t chunk = 0;
  /// exp(sinks[h]) joins the denominator of every row of query head h; the LSE includes it.
  bool sinks = false;
  Alibi alibi = Alibi::none;  ///< -slope * |i + shift - j| is added to the score behind softcap
  ArrayMask array_mask = {};
  Accuracy accuracy = Accuracy::exact;  ///< fast: e4m3 alone

  friend bool operator==(const Problem&, const Problem&) = default;
};

/// The head dimension of V and O.
constexpr std::int64_t value_dim(const Problem& problem) noexcept {
  return problem.head_dim_v != 0 ? problem.head_dim_v : problem.head_dim;
}

/// 1 / sqrt(head_dim).
GREENFAST_API float default_scale(std::int64_t head_dim) noexcept;
/// The output type when none is asked for: the input's, fp16 for e4m3.
GREENFAST_API DType default_out_dtype(DType dtype) noexcept;
/// A dense problem with default scale, output type and no mask. Shapes are not checked here.
GREENFAST_API Problem make_problem(std::int64_t batch, std::int64_t heads_q, std::int64_t heads_kv,
                                   std::int64_t seq_q, std::int64_t seq_kv, std::int64_t head_dim,
                                   DType dtype, Order order = Order::bhsd) noexcept;
/// Checks shapes, types, strides, scale, overflow: everything that needs no data.
GREENFAST_API Status check(const Problem& problem);
/// "4x32/8x1/8192x128 bf16 causal(bottom-right)": shape as on the command line, then what is not
/// default.
GREENFAST_API std::string to_string(const Problem& problem);
/// Query-key pairs that are visible under the band and the chunks, over all batches and query heads,
/// if every sequence is as long as the longest may be; what else hides keys is data.
GREENFAST_API std::int64_t visible_pairs(const Problem& problem) noexcept;

/// The data of one call. The caller owns every buffer. For Skv = 0 k and v may be null; for an
/// empty output every pointer may be.
struct Tensors {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* o = nullptr;
  float* lse = nullptr;  ///< when Problem::lse
  const float* q_scale =
      nullptr;  ///< when Problem::scales is not none, as ScaleKind says; on the device
  const float* k_scale = nullptr;
  const float* v_scale = nullptr;
  // When Problem::sequences, pages, sinks, array_mask and alibi ask for them; on the device.
  const std::int32_t* cu_q = nullptr;        ///< [B + 1]: where each sequence begins and ends
  const std::int32_t* cu_kv = nullptr;       ///< [B + 1]
  const std::int32_t* used_q = nullptr;      ///< [B]
  const std::int32_t* used_kv = nullptr;     ///< [B]
  const std::int32_t* kv_start = nullptr;    ///< [B]
  const std::int32_t* kv_index = nullptr;    ///< [B]
  const std::int32_t* page_table = nullptr;  ///< [B, pages], rows pages.row_stride apart
  const float* sinks = nullptr;              ///< [Hq]
  const void* mask = nullptr;                ///< [B, Hq, Sq, Skv] by array_mask.stride
  const float* slopes = nullptr;             ///< [Hq] or [B, Hq]
};

/// A tensor with its shape: the arguments of the convenience call. Shape and stride in B, H, S, D.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::f16;
  std::array<std::int64_t, 4> shape{};
  std::array<std::int64_t, 4> stride{};

  static TensorView dense(void* data, DType dtype, std::array<std::int64_t, 4> shape,
                          Order order = Order::bhsd) noexcept {
    return {data, dtype, shape, dense_layout(order, shape[0], shape[1], shape[2], shape[3]).stride};
  }
};

}  // namespace greenfast
