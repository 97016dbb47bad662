// Names, layouts and counts of the public types.
#include <greenfast/types.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include <greenfast/arithmetic.hpp>

#include "core/check.hpp"
#include "core/text.hpp"

namespace greenfast {
namespace {

struct DTypeRow {
  DType dtype;
  std::size_t bytes;
  std::string_view name;
  std::string_view aliases;  // separated by spaces
};
constexpr DTypeRow kDTypes[] = {
    {DType::f32, 4, "fp32", "f32 float32 float"},
    {DType::f16, 2, "fp16", "f16 float16 half"},
    {DType::bf16, 2, "bf16", "bfloat16"},
    {DType::e4m3, 1, "e4m3", "fp8 fp8_e4m3 float8_e4m3 float8_e4m3fn"},
};

bool contains_word(std::string_view words, std::string_view word) noexcept {
  while (!words.empty()) {
    const std::size_t space = words.find(' ');
    if (words.substr(0, space) == word) return true;
    if (space == std::string_view::npos) return false;
    words.remove_prefix(space + 1);
  }
  return false;
}

// Lengths may come unchecked, so products stop at the largest number instead of wrapping.
std::int64_t saturating_product(std::int64_t a, std::int64_t b) noexcept {
  std::int64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::numeric_limits<std::int64_t>::max();
  return product;
}

// Sum over y = 0 … last of min(y + 1, keys): pairs below a diagonal that starts at one key and is
// cut off at `keys`. Fits 64 bits for last < 2^32, keys <= 2^30.
std::int64_t staircase(std::int64_t last, std::int64_t keys) noexcept {
  if (last < 0) return 0;
  const std::int64_t rising = std::min(last + 1, keys);
  return rising * (rising + 1) / 2 + (last + 1 - rising) * keys;
}

// Pairs of queries that stand at first … last, counted from the first key, and the keys of a band.
// Query t sees the keys j <= t + right less the keys j < t - left. Each is a staircase along t.
std::int64_t band_pairs(const Mask& mask, std::int64_t first, std::int64_t last,
                        std::int64_t keys) noexcept {
  if (last < first || keys <= 0) return 0;
  const auto keys_up_to = [&](std::int64_t offset) {
    return staircase(last + offset, keys) - staircase(first + offset - 1, keys);
  };
  // Every member by name: what else hides keys must be counted here.
  const auto& [behind, ahead, alignment] = mask;
  const std::int64_t right = std::min(ahead, core::kMaxLength);
  const std::int64_t left = std::min(behind, core::kMaxLength);
  std::int64_t pairs = right < 0 ? (last - first + 1) * keys : keys_up_to(right);
  if (left >= 0) pairs -= keys_up_to(-left - 1);
  return pairs;
}

// The same where a query sees its own chunk alone.
std::int64_t chunk_pairs(const Mask& mask, std::int64_t chunk, std::int64_t first,
                         std::int64_t last, std::int64_t keys) noexcept {
  const auto of = [&](std::int64_t index) {
    const std::int64_t begin = index * chunk, end = begin + chunk;
    return band_pairs(mask, std::max(first, begin) - begin, std::min(last, end - 1) - begin,
                      std::min(keys, end) - begin);
  };
  // Queries before the first key or behind the last chunk that has one see nothing; of the rest,
  // chunks with every query and every key are alike.
  const std::int64_t lowest = std::max<std::int64_t>(first, 0) / chunk;
  const std::int64_t highest = std::min(last, keys - 1) / chunk;
  if (last < 0 || keys <= 0 || highest < lowest) return 0;
  const std::int64_t whole_from = ceil_div(std::max<std::int64_t>(first, 0), chunk);
  const std::int64_t whole_to = std::min(last + 1, keys) / chunk;  // one behind
  std::int64_t pairs = 0;
  for (std::int64_t index = lowest; index <= highest; ++index) {
    if (index == whole_from && whole_to > whole_from) {
      pairs += (whole_to - whole_from) * of(index);
      index = whole_to - 1;
    } else {
      pairs += of(index);
    }
  }
  return pairs;
}

// What serving asks for, as far as the problem has it.
void append_serving(std::string& out, const Problem& p) {
  const auto& [packed_q, packed_kv, used_q, used_kv, kv_start, kv_index, total_q, total_kv,
               kv_rows] = p.sequences;
  if (value_dim(p) != p.head_dim) out += core::concat(" value-dim=", p.head_dim_v);
  if (packed_q) out += core::concat(" packed-q(", total_q, ")");
  if (packed_kv) out += core::concat(" packed-kv(", total_kv, ")");
  if (used_q) out += " used-q";
  if (used_kv) out += " used-kv";
  if (kv_start) out += " kv-start";
  if (kv_index) out += core::concat(" kv-index(", kv_rows, ")");
  if (p.pages.used())
    out += core::concat(" pages(", p.pages.count, "x", p.pages.size, ",", p.pages.row_stride, ")");
  if (p.chunk != 0) out += core::concat(" chunk=", p.chunk);
  if (p.sinks) out += " sinks";
  if (p.alibi != Alibi::none)
    out += p.alibi == Alibi::per_head ? " alibi(per-head)" : " alibi(per-batch-head)";
  if (p.array_mask.kind != MaskKind::none) {
    const auto& [b, h, q, kv] = p.array_mask.stride;
    out += core::concat(
        " mask(", p.array_mask.kind == MaskKind::boolean ? "bool" : name_of(p.array_mask.dtype),
        ",", b, ",", h, ",", q, ",", kv, ")");
  }
}

void append_mask(std::string& out, const Mask& mask) {
  if (mask.is_none()) return;
  const std::string_view corner =
      mask.alignment == Alignment::top_left ? "top-left" : "bottom-right";
  if (mask.left < 0 && mask.right == 0) {
    out += core::concat(" causal(", corner, ")");
    return;
  }
  const auto bound = [](std::int64_t value) {
    return value < 0 ? std::string("inf") : core::concat(value);
  };
  out += core::concat(" window(", bound(mask.left), ",", bound(mask.right), ",", corner, ")");
}

}  // namespace

std::size_t size_of(DType dtype) noexcept {
  for (const DTypeRow& row : kDTypes)
    if (row.dtype == dtype) return row.bytes;
  return 0;
}

std::string_view name_of(DType dtype) noexcept {
  for (const DTypeRow& row : kDTypes)
    if (row.dtype == dtype) return row.name;
  return "unknown";
}

std::optional<DType> parse_dtype(std::string_view text) noexcept {
  for (const DTypeRow& row : kDTypes)
    if (!text.empty() && (row.name == text || contains_word(row.aliases, text))) return row.dtype;
  return std::nullopt;
}

std::string_view name_of(Accuracy accuracy) noexcept {
  switch (accuracy) {
    case Accuracy::exact:
      return "exact";
    case Accuracy::fast:
      return "fast";
  }
  return "unknown";
}

std::string_view name_of(DeviceKind kind) noexcept {
  switch (kind) {
    case DeviceKind::cpu:
      return "cpu";
    case DeviceKind::cuda:
      return "cuda";
  }
  return "unknown";
}

std::string_view name_of(StatusCode code) noexcept {
  switch (code) {
    case StatusCode::ok:
      return "ok";
    case StatusCode::invalid_argument:
      return "invalid argument";
    case StatusCode::unsupported:
      return "unsupported";
    case StatusCode::no_device:
      return "no device";
    case StatusCode::out_of_memory:
      return "out of memory";
    case StatusCode::device_error:
      return "device error";
    case StatusCode::internal:
      return "internal error";
  }
  return "unknown";
}

Layout dense_layout(Order order, std::int64_t batch, std::int64_t heads, std::int64_t seq,
                    std::int64_t head_dim) noexcept {
  static_cast<void>(batch);  // the outermost dimension has no say in a dense layout
  Layout layout;
  const std::int64_t plane = saturating_product(saturating_product(seq, heads), head_dim);
  if (order == Order::bshd) {
    layout.stride = {plane, head_dim, saturating_product(heads, head_dim), 1};
  } else {
    layout.stride = {plane, saturating_product(seq, head_dim), head_dim, 1};
  }
  return layout;
}

Layout transposed_layout(std::int64_t batch, std::int64_t heads, std::int64_t seq,
                         std::int64_t head_dim) noexcept {
  static_cast<void>(batch);
  const std::int64_t pitch = round_up(std::clamp<std::int64_t>(seq, 1, core::kMaxTotal), 16);
  const std::int64_t plane = saturating_product(pitch, head_dim);
  Layout layout;
  layout.stride = {saturating_product(plane, heads), plane, 1, pitch};
  return layout;
}

float default_scale(std::int64_t head_dim) noexcept {
  // Rounded to nearest here, for the conversion would follow the mode that the host has set, and two
  // threads of different modes would ask for different problems. The quotient's own last bit is far
  // below.
  constexpr std::uint64_t kDropped = (std::uint64_t{1} << 29) - 1;  // digits that a float has not
  const auto bits = std::bit_cast<std::uint64_t>(1.0 / std::sqrt(static_cast<double>(head_dim)));
  const std::uint64_t rounded = bits + (kDropped >> 1) + ((bits >> 29) & 1);
  return static_cast<float>(std::bit_cast<double>(rounded & ~kDropped));
}

DType default_out_dtype(DType dtype) noexcept { return dtype == DType::e4m3 ? DType::f16 : dtype; }

Problem make_problem(std::int64_t batch, std::int64_t heads_q, std::int64_t heads_kv,
                     std::int64_t seq_q, std::int64_t seq_kv, std::int64_t head_dim, DType dtype,
                     Order order) noexcept {
  Problem p;
  p.batch = batch;
  p.heads_q = heads_q;
  p.heads_kv = heads_kv;
  p.seq_q = seq_q;
  p.seq_kv = seq_kv;
  p.head_dim = head_dim;
  p.dtype = dtype;
  p.out_dtype = default_out_dtype(dtype);
  p.scale = default_scale(head_dim);
  p.q = p.o = dense_layout(order, batch, heads_q, seq_q, head_dim);
  p.k = p.v = dense_layout(order, batch, heads_kv, seq_kv, head_dim);
  return p;
}

std::string to_string(const Problem& p) {
  std::string out = core::concat(p.batch, "x", p.heads_q);
  if (p.heads_kv != p.heads_q) out += core::concat("/", p.heads_kv);
  out += core::concat("x", p.seq_q);
  if (p.seq_kv != p.seq_q) out += core::concat("/", p.seq_kv);
  out += core::concat("x", p.head_dim, " ", name_of(p.dtype));
  if (p.out_dtype != default_out_dtype(p.dtype)) out += core::concat("->", name_of(p.out_dtype));
  if (p.scales == ScaleKind::tensor) out += " scales(tensor)";
  if (p.scales == ScaleKind::per_head) out += " scales(per-head)";
  if (p.scales == ScaleKind::per_block) out += " scales(per-block)";
  if (p.accuracy == Accuracy::fast) out += " accuracy=fast";
  append_mask(out, p.mask);
  if (p.scale != default_scale(p.head_dim)) out += core::concat(" scale=", p.scale);
  if (p.softcap != 0.0f) out += core::concat(" softcap=", p.softcap);
  if (p.lse) out += " lse";
  append_serving(out, p);
  const auto kv = core::shape_of_kv(p, value_dim(p));
  const bool transposed =
      p.v.stride[3] > 1 && p.v.stride == transposed_layout(kv[0], kv[1], kv[2], kv[3]).stride;
  if (transposed) out += " transposed-v";
  const auto is_dense = [&](Order order) {
    const auto dense = [order](const std::array<std::int64_t, 4>& shape) {
      return dense_layout(order, shape[0], shape[1], shape[2], shape[3]).stride;
    };
    return p.q.stride == dense(core::shape_of_q(p, p.head_dim)) &&
           p.o.stride == dense(core::shape_of_q(p, value_dim(p))) &&
           p.k.stride == dense(core::shape_of_kv(p, p.head_dim)) &&
           (transposed || p.v.stride == dense(kv));
  };
  if (!is_dense(Order::bhsd)) out += is_dense(Order::bshd) ? " bshd" : " strided";
  return out;
}

std::int64_t visible_pairs(const Problem& p) noexcept {
  if (p.batch <= 0 || p.heads_q <= 0 || p.seq_q <= 0 || p.seq_kv <= 0) return 0;
  if (p.seq_q > core::kMaxLength || p.seq_kv > core::kMaxLength)
    return std::numeric_limits<std::int64_t>::max();
  // Query i stands at i + shift.
  const std::int64_t first =
      p.mask.alignment == Alignment::bottom_right ? p.seq_kv - p.seq_q : std::int64_t{0};
  const std::int64_t last = first + p.seq_q - 1;
  const std::int64_t pairs = p.chunk > 0 ? chunk_pairs(p.mask, p.chunk, first, last, p.seq_kv)
                                         : band_pairs(p.mask, first, last, p.seq_kv);
  return saturating_product(saturating_product(pairs, p.heads_q), p.batch);
}

}  // namespace greenfast
