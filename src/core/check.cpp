// What a problem and its tensors must be before any kernel sees them. Every refusal says what was
// asked, what is possible and what to change.
#include "core/check.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include <greenfast/features.hpp>
#include <greenfast/operands.hpp>

#include "core/memory.hpp"
#include "core/text.hpp"

namespace greenfast {
namespace core {
namespace {

bool is_known(ScaleKind kind) noexcept {
  switch (kind) {
    case ScaleKind::none:
    case ScaleKind::tensor:
    case ScaleKind::per_head:
    case ScaleKind::per_block:
      return true;
  }
  return false;
}

template <class... Pieces>
Status invalid(const Pieces&... pieces) {
  return Status(StatusCode::invalid_argument, concat(pieces...));
}
template <class... Pieces>
Status unsupported(const Pieces&... pieces) {
  return Status(StatusCode::unsupported, concat(pieces...));
}

Status check_shape(const Problem& p) {
  const struct {
    std::string_view name;
    std::int64_t value, least, most;
  } dims[] = {
      {"batch", p.batch, 0, kMaxBatchHeads},       {"heads_q", p.heads_q, 1, kMaxBatchHeads},
      {"heads_kv", p.heads_kv, 1, kMaxBatchHeads}, {"seq_q", p.seq_q, 0, kMaxLength},
      {"seq_kv", p.seq_kv, 0, kMaxLength},
  };
  for (const auto& dim : dims) {
    if (dim.value < dim.least || dim.value > dim.most)
      return invalid(dim.name, " is ", dim.value, ": it may be ", dim.least, " to ", dim.most,
                     "; correct the shape");
  }
  if (p.heads_q % p.heads_kv != 0)
    return invalid("heads_q ", p.heads_q, " is not a multiple of heads_kv ", p.heads_kv,
                   ": each KV head serves an equal number of query heads; choose a heads_kv that "
                   "divides heads_q");
  if (p.batch * p.heads_q > kMaxBatchHeads)
    return invalid("batch ", p.batch, " times heads_q ", p.heads_q, " exceeds ", kMaxBatchHeads,
                   "; split the batch over several calls");
  if (p.head_dim < kMinHeadDim || p.head_dim > kMaxHeadDim || p.head_dim % kHeadDimStep != 0)
    return unsupported("head_dim is ", p.head_dim, ": it may be ", kMinHeadDim, " to ", kMaxHeadDim,
                       " in steps of ", kHeadDimStep,
                       p.head_dim > kMaxHeadDim
                           ? "; larger ones are not supported"
                           : "; pad Q, K and V with zero columns up to the next step, and keep the "
                             "scale of the unpadded problem");
  if (p.head_dim_v != 0 && (p.head_dim_v < kMinHeadDim || p.head_dim_v > kMaxHeadDim ||
                            p.head_dim_v % kHeadDimStep != 0))
    return unsupported("head_dim_v is ", p.head_dim_v, ": it may be ", kMinHeadDim, " to ",
                       kMaxHeadDim, " in steps of ", kHeadDimStep,
                       ", or 0 for that of Q and K; pad V with zero columns, or split them over "
                       "several calls");
  return {};
}

Status check_sequences(const Problem& p) {
  const Sequences& s = p.sequences;
  const Pages& pages = p.pages;
  const bool paged = pages.used();
  // What every call pays, and most calls need no more.
  if (s == Sequences{} && pages == Pages{} && p.chunk == 0) return {};
  const struct {
    std::string_view name;
    std::int64_t value;
    bool used;
    std::int64_t least, most;
    std::string_view of;
  } facts[] = {
      {"total_q", s.total_q, s.packed_q, 0, kMaxTotal, "packed Q"},
      {"total_kv", s.total_kv, s.packed_kv, 0, kMaxTotal, "packed K and V"},
      {"kv_rows", s.kv_rows, s.kv_index, 0, kMaxTotal, "kv_index"},
      {"pages.size", pages.size, paged, 1, kMaxLength, "pages"},
      {"pages.count", pages.count, paged, 0, kMaxTotal, "pages"},
      {"pages.row_stride", pages.row_stride, paged, 0, kMaxTotal, "pages"},
      {"chunk", p.chunk, true, 0, kMaxLength, "attention chunks"},
  };
  for (const auto& fact : facts) {
    Status status = check_fact(fact.name, fact.value, fact.used, fact.least, fact.most, fact.of);
    if (!status) return status;
  }
  if (paged && p.batch > 1 && pages.row_stride < pages_of_row(p))
    return invalid(
        "pages.row_stride is ", pages.row_stride, ": ", p.seq_kv, " keys in pages of ", pages.size,
        " take ", pages_of_row(p),
        " entries of the page table; widen its rows, or lower seq_kv (max_kv where that was "
        "given)");
  const struct {
    bool both;
    std::string_view first, second, remedy;
  } contradictions[] = {
      {paged && s.packed_kv, "pages", "packed K and V", "the page table says where each key is"},
      {paged && s.kv_index, "pages", "kv_index", "order the rows of the page table instead"},
      {s.packed_kv && s.kv_index, "packed K and V", "kv_index", "order cu_kv instead"},
  };
  for (const auto& c : contradictions)
    if (c.both)
      return invalid("K and V cannot have both ", c.first, " and ", c.second, ": ", c.remedy);
  return {};
}

Status check_biases(const Problem& p) {
  if (p.alibi != Alibi::none && p.alibi != Alibi::per_head && p.alibi != Alibi::per_batch_head)
    return invalid("alibi ", static_cast<std::int32_t>(p.alibi),
                   " does not exist: use none, per_head or per_batch_head");
  const ArrayMask& mask = p.array_mask;
  if (mask.kind == MaskKind::none) return {};
  if (mask.kind != MaskKind::boolean && mask.kind != MaskKind::additive)
    return invalid("array_mask.kind ", static_cast<std::int32_t>(mask.kind),
                   " does not exist: use none, boolean or additive");
  if (mask.kind == MaskKind::additive && mask.dtype != DType::f32 &&
      (mask.dtype != p.dtype || p.dtype == DType::e4m3))
    return invalid("an additive mask of ", name_of(mask.dtype), " was given for ", name_of(p.dtype),
                   " tensors: it may be fp32",
                   p.dtype == DType::f32 || p.dtype == DType::e4m3 ? "" : " or have their type",
                   "; convert it");
  for (int dim = 0; dim < 4; ++dim) {
    const std::int64_t most = dim == 3 ? 1 : kMaxStride;
    if (mask.stride[dim] < 0 || mask.stride[dim] > most)
      return invalid("array_mask.stride[", dim, "] is ", mask.stride[dim], ": it may be 0 to ",
                     most, ", where 0 broadcasts; correct the strides",
                     dim == 3 ? ", or copy the mask so that keys are contiguous" : "");
  }
  return {};
}

Status check_types(const Problem& p) {
  if (size_of(p.dtype) == 0)
    return invalid("dtype ", static_cast<std::int32_t>(p.dtype),
                   " does not exist: use fp32, fp16, bf16 or e4m3");
  if (size_of(p.out_dtype) == 0)
    return invalid("out_dtype ", static_cast<std::int32_t>(p.out_dtype),
                   " does not exist: use fp32, fp16 or bf16");
  if (p.out_dtype == DType::e4m3)
    return unsupported(
        "out_dtype e4m3 is not offered: an output may be fp32, fp16 or bf16; ask for fp16 and "
        "quantise it afterwards");
  if (!is_known(p.scales))
    return invalid("scales ", static_cast<std::int32_t>(p.scales),
                   " does not exist: use none, tensor, per_head or per_block");
  if (p.scales != ScaleKind::none && p.dtype != DType::e4m3)
    return invalid("scales were given for ", name_of(p.dtype),
                   " tensors: only e4m3 has them; set scales to none");
  if (p.accuracy != Accuracy::exact && p.accuracy != Accuracy::fast)
    return invalid("accuracy ", static_cast<std::int32_t>(p.accuracy),
                   " does not exist: use exact or fast");
  if (p.accuracy == Accuracy::fast && p.dtype != DType::e4m3)
    return invalid("fast accuracy was asked for ", name_of(p.dtype),
                   " tensors: only e4m3 has it; ask for exact, or quantise Q, K and V");
  return {};
}

Status check_scores(const Problem& p) {
  // Kernels multiply scale by log2(e) and divide it by softcap, in fp32.
  constexpr float kLargest = 0x1p126f;
  if (!(std::fabs(p.scale) <= kLargest))
    return invalid("scale is ", p.scale,
                   ": it must be finite and at most 2^126 in magnitude; 1/sqrt(head_dim) is usual");
  if (!(p.softcap >= 0.0f && p.softcap <= kLargest))
    return invalid("softcap is ", p.softcap,
                   ": it must be 0 (off) or positive, finite and at most 2^126");
  // Hopper's kernels count scores in units of 0.225 of the cap.
  constexpr float kLargestQuotient = 0x1p125f;
  if (p.softcap > 0.0f &&
      !(p.softcap >= 0x1p-126f && std::fabs(p.scale / p.softcap) <= kLargestQuotient))
    return invalid("softcap ", p.softcap, " is too small for scale ", p.scale,
                   ": their quotient overflows fp32; use 0 to turn it off, or a larger one");
  if (p.mask.alignment != Alignment::top_left && p.mask.alignment != Alignment::bottom_right)
    return invalid("mask alignment ", static_cast<std::int32_t>(p.mask.alignment),
                   " does not exist: use top_left or bottom_right");
  const struct {
    std::string_view name;
    std::int64_t value;
  } bounds[] = {{"left", p.mask.left}, {"right", p.mask.right}};
  for (const auto& bound : bounds) {
    if (bound.value > kMaxLength)
      return invalid("mask bound ", bound.name, " is ", bound.value, ": at most ", kMaxLength,
                     " is possible; use -1 for no bound");
  }
  return {};
}

// Elements from the base to the last one, or nothing when that overflows.
bool last_offset(const Layout& layout, const std::array<std::int64_t, 4>& shape,
                 std::int64_t& offset) noexcept {
  offset = 0;
  for (int dim = 0; dim < 4; ++dim) {
    std::int64_t step = 0;
    if (__builtin_mul_overflow(shape[dim] - 1, layout.stride[dim], &step) ||
        __builtin_add_overflow(offset, step, &offset))
      return false;
  }
  return true;
}

constexpr std::array<std::string_view, 4> kDimName{"batch", "head", "sequence", "head_dim"};

// Dimensions sorted by stride must each step over everything inside them. That refuses some exotic
// interleavings that are free of overlap; an exact test takes time that every call would pay.
Status check_distinct(std::string_view name, const Layout& layout,
                      const std::array<std::int64_t, 4>& shape) {
  const bool transposed = layout.stride[3] != 1;
  std::array<int, 3> dims{0, 1, transposed ? 3 : 2};
  std::sort(dims.begin(), dims.end(),
            [&](int a, int b) { return layout.stride[a] < layout.stride[b]; });
  // Elements from the first to the last of the dimensions so far.
  std::int64_t inside = shape[transposed ? 2 : 3];
  for (const int dim : dims) {
    if (shape[dim] <= 1) continue;
    if (layout.stride[dim] < inside)
      return invalid(name, "'s ", kDimName[dim], " stride is ", layout.stride[dim],
                     ", less than the ", inside,
                     " elements it must step over: output elements would share memory; use the "
                     "strides of a tensor of its own");
    inside += (shape[dim] - 1) * layout.stride[dim];
  }
  return {};
}

Status check_layouts(const Problem& p) {
  const struct {
    std::string_view name;
    const Layout& layout;
    std::array<std::int64_t, 4> shape;
    DType dtype;
    Sharing sharing;
    bool may_be_transposed = false;
  } tensors[] = {
      {"Q", p.q, shape_of_q(p, p.head_dim), p.dtype, Sharing::readable},
      {"K", p.k, shape_of_kv(p, p.head_dim), p.dtype, Sharing::broadcast},
      {"V", p.v, shape_of_kv(p, value_dim(p)), p.dtype, Sharing::broadcast, p.dtype == DType::e4m3},
      {"O", p.o, shape_of_q(p, value_dim(p)), p.out_dtype, Sharing::distinct},
  };
  for (const auto& t : tensors) {
    Status status =
        check_layout(t.name, t.layout, t.shape, t.dtype, t.sharing, t.may_be_transposed);
    if (!status) return status;
  }
  const ArrayMask& mask = p.array_mask;
  std::int64_t last = 0;
  if (mask.kind != MaskKind::none && !writes_nothing(p) && p.seq_kv > 0 &&
      (!last_offset({mask.stride}, {p.batch, p.heads_q, p.seq_q, p.seq_kv}, last) ||
       last >= kMaxBytes / 4))
    return invalid(
        "the array mask spans more than 2^62 bytes: no address reaches that far; correct "
        "its strides");
  return {};
}

std::string_view why_needed(OperandId id) noexcept {
  switch (id) {
    case OperandId::o:
    case OperandId::q:
    case OperandId::k:
    case OperandId::v:
      return "";
    case OperandId::lse:
      return " although the problem asks for it";
    case OperandId::q_scale:
    case OperandId::k_scale:
    case OperandId::v_scale:
      return " although the problem has scales";
    case OperandId::cu_q:
    case OperandId::cu_kv:
    case OperandId::used_q:
    case OperandId::used_kv:
    case OperandId::kv_start:
    case OperandId::kv_index:
    case OperandId::page_table:
    case OperandId::sinks:
    case OperandId::mask:
    case OperandId::slopes:
      return " although the problem has it";
  }
  return "";
}

}  // namespace

std::string counted(std::int64_t count, std::string_view thing) {
  return concat(count, " ", thing, count == 1 ? "" : "s");
}

Status check_fact(std::string_view name, std::int64_t value, bool used, std::int64_t least,
                  std::int64_t most, std::string_view of) {
  if (!used) {
    if (value == 0) return {};
    return invalid(name, " is ", value, " although the problem has no ", of,
                   ": set it to 0, or ask for ", of);
  }
  if (value >= least && value <= most) return {};
  return invalid(name, " is ", value, ": with ", of, " it may be ", least, " to ", most,
                 "; correct it");
}

Status check_layout(std::string_view name, const Layout& layout,
                    const std::array<std::int64_t, 4>& shape, DType dtype, Sharing sharing,
                    bool may_be_transposed) {
  const auto bytes = static_cast<std::int64_t>(size_of(dtype));
  if (layout.stride == std::array<std::int64_t, 4>{})
    return invalid(name, "'s strides are all 0: the last must be 1; set ", name,
                   "'s layout, as dense_layout() does for a dense tensor, or copy what was "
                   "broadcast from one element");
  const bool transposed =
      may_be_transposed && layout.stride[3] > 1 && (layout.stride[2] == 1 || shape[2] == 1);
  if (layout.stride[3] != 1 && !transposed)
    return invalid(name, "'s last stride is ", layout.stride[3],
                   ": the head dimension must be contiguous (stride 1)",
                   may_be_transposed ? " or the sequence in its place" : "", "; copy ", name,
                   " or transpose other dimensions only");
  for (int dim = 0; dim < 4; ++dim) {
    if (layout.stride[dim] < 0 || layout.stride[dim] > kMaxStride)
      return invalid(name, "'s ", kDimName[dim], " stride is ", layout.stride[dim],
                     ": it may be 0 to 2^48 elements; correct the strides");
  }
  if (layout.alignment < bytes ||
      !std::has_single_bit(static_cast<std::uint32_t>(layout.alignment)))
    return invalid(name, "'s alignment is ", layout.alignment,
                   " bytes: it must be a power of two and at least one element (", bytes, ")");
  if (shape[0] == 0 || shape[2] == 0) return {};  // a dense layout of nothing has strides of 0
  for (int dim = 0; dim < 3; ++dim) {
    if (layout.stride[dim] == 0 && shape[dim] > 1 && sharing != Sharing::broadcast)
      return invalid(name, "'s ", kDimName[dim],
                     " stride is 0: only K and V may be broadcast; give ", name,
                     " memory for each element");
  }
  std::int64_t last = 0;
  if (!last_offset(layout, shape, last) || last >= kMaxBytes / bytes)
    return invalid(name,
                   " spans more than 2^62 bytes: no address reaches that far; correct its "
                   "shape or strides");
  if (sharing == Sharing::distinct) return check_distinct(name, layout, shape);
  return {};
}

Range range_of(const void* data, std::int64_t bytes) noexcept {
  return {reinterpret_cast<std::uintptr_t>(data), static_cast<std::uint64_t>(bytes)};
}
bool overlap(Range a, Range b) noexcept {
  return a.begin < b.begin + b.bytes && b.begin < a.begin + a.bytes;
}
bool usable(Range range, std::size_t element) noexcept {
  return range.begin != 0 && (range.begin & (element - 1)) == 0 &&
         range.begin + range.bytes >= range.begin;
}
Status refuse_memory(std::string_view name, Range range, std::size_t element,
                     std::string_view why_needed) {
  if (range.begin == 0)
    return invalid(name, " is null", why_needed, ": pass a pointer to ", range.bytes, " bytes");
  if ((range.begin & (element - 1)) != 0)
    return invalid(name, " is not aligned to its elements: the address must be a multiple of ",
                   element, " bytes");
  return invalid(name, " ends behind the last address: its pointer or its strides are wrong");
}

std::int64_t extent_bytes(const Layout& layout, std::int64_t batch, std::int64_t heads,
                          std::int64_t seq, std::int64_t head_dim, DType dtype) noexcept {
  if (batch == 0 || heads == 0 || seq == 0 || head_dim == 0) return 0;
  std::int64_t last = 0;
  if (!last_offset(layout, {batch, heads, seq, head_dim}, last)) return kMaxBytes;
  return (last + 1) * static_cast<std::int64_t>(size_of(dtype));
}

std::int64_t extent_elements(const Layout& layout,
                             const std::array<std::int64_t, 4>& shape) noexcept {
  for (const std::int64_t size : shape)
    if (size == 0) return 0;
  std::int64_t last = 0;
  return last_offset(layout, shape, last) ? last + 1 : kMaxBytes / 4;
}

bool is_empty(const Problem& p) noexcept {
  // Serving may leave rows of O to nobody, or give a row without a key an LSE of its own.
  constexpr Features kOneAnswer =
      kFeaturesOfAbi1 | Features{Feature::exact_accuracy, Feature::fast_accuracy,
                                 Feature::transposed_v, Feature::scales_per_block};
  return writes_nothing(p) || (p.seq_kv == 0 && kOneAnswer.hold(features_of(p)));
}

Status check_tensors(const Problem& p, const Tensors& t) {
  if (writes_nothing(p)) return {};
  // Every call pays for this: addresses first, and names only for a refusal.
  const std::array<Operand, kTensorOperands> tensors = tensor_operands(p);
  std::optional<std::array<Operand, kOperands - kTensorOperands>> arrays;
  std::array<Range, kOperands> ranges;
  const auto operand_at = [&](std::size_t n) -> const Operand& {
    return n < kTensorOperands ? tensors[n] : (*arrays)[n - kTensorOperands];
  };
  std::size_t count = kTensorOperands;
  if (has_arrays(p)) {
    arrays = array_operands(p);
    count = kOperands;
  }
  for (std::size_t n = 0; n < count; ++n) {
    const Operand& operand = operand_at(n);
    if (!operand.needed) continue;
    ranges[n] = range_of(data_of(t, operand.id), operand.bytes);
    const std::size_t element = element_bytes(operand);
    if (!usable(ranges[n], element))
      return refuse_memory(operand.name, ranges[n], element, why_needed(operand.id));
  }
  // Outputs come first, so that two of them are compared once.
  for (std::size_t written = 0; tensors[written].role == Role::output; ++written) {
    for (std::size_t other = written + 1; other < count; ++other) {
      if (overlap(ranges[written], ranges[other]))
        return invalid(tensors[written].name, " overlaps ", operand_at(other).name, ": they span ",
                       tensors[written].bytes, " and ", operand_at(other).bytes,
                       " bytes; write to memory of its own");
    }
  }
  return {};
}

Status check_workspace(const Problem& p, const Tensors& t, std::int64_t needed,
                       const void* workspace, std::size_t given) {
  if (needed <= 0) return {};
  if (workspace == nullptr || given < static_cast<std::uint64_t>(needed))
    return invalid("the workspace has ", workspace == nullptr ? 0 : given,
                   " bytes: the plan needs ", needed,
                   "; pass Options::workspace of Plan::workspace_bytes, or Options::allocate");
  constexpr std::uintptr_t kWorkspaceAlignment = 256;
  if (reinterpret_cast<std::uintptr_t>(workspace) % kWorkspaceAlignment != 0)
    return invalid("the workspace is not aligned: its address must be a multiple of ",
                   kWorkspaceAlignment, " bytes");
  const Range scratch = range_of(workspace, needed);
  for (const Operand& operand : operands_of(p)) {
    if (operand.needed && overlap(scratch, range_of(data_of(t, operand.id), operand.bytes)))
      return invalid("the workspace overlaps ", operand.name, "; give it memory of its own");
  }
  return {};
}

namespace {

/// What a quantisation reads and writes.
struct QuantizeMemory {
  std::string_view name;
  const void* data;
  std::int64_t bytes;
  std::size_t element;
  bool needed;
};
std::array<QuantizeMemory, 3> memories_of(const QuantizeProblem& p, const QuantizeTensors& t) {
  const auto span = [&](const Layout& layout, DType dtype) {
    return extent_bytes(layout, p.batch, p.heads, p.seq, p.head_dim, dtype);
  };
  const bool values = p.batch > 0 && p.seq > 0;
  // Of an empty batch only the scale of a whole tensor is written, and none is read.
  const bool scaled = p.batch > 0 ? p.scales != ScaleKind::none && quantize_scales(p) > 0
                                  : p.scales == ScaleKind::tensor && p.compute_scales;
  const std::int64_t scales = 4 * quantize_scales(p);
  return {{{"from", t.from, span(p.from, p.dtype), size_of(p.dtype), values},
           {"to", t.to, span(p.to, DType::e4m3), 1, values},
           {"scale", t.scale, scales, 4, scaled}}};
}

}  // namespace

Status check_quantize(const QuantizeProblem& p, const QuantizeTensors& t) {
  if (p.dtype != DType::f32 && p.dtype != DType::f16 && p.dtype != DType::bf16)
    return unsupported("quantising takes fp32, fp16 or bf16 values, not ", name_of(p.dtype));
  if (!is_known(p.scales))
    return invalid("scales ", static_cast<std::int32_t>(p.scales),
                   " does not exist: use none, tensor, per_head or per_block");
  if (p.head_dim < kMinHeadDim || p.head_dim > kMaxHeadDim || p.head_dim % kHeadDimStep != 0)
    return unsupported("head_dim is ", p.head_dim, ": 8 to 256 in steps of 8 is possible; pad it");
  if (p.batch < 0 || p.heads < 1 || p.seq < 0 || p.seq > kMaxLength ||
      p.heads > kMaxBatchHeads / std::max<std::int64_t>(p.batch, 1))
    return invalid("the values have shape [", p.batch, ", ", p.heads, ", ", p.seq, ", ", p.head_dim,
                   "]: sizes are not negative, there is a head, S is at most 2^30 and B * H below "
                   "2^31");
  const std::array<std::int64_t, 4> shape{p.batch, p.heads, p.seq, p.head_dim};
  if (Status status = check_layout("from", p.from, shape, p.dtype, Sharing::broadcast); !status)
    return status;
  if (Status status = check_layout("to", p.to, shape, DType::e4m3, Sharing::distinct, true);
      !status)
    return status;
  if (p.rotate && p.to.stride[3] != 1)
    return unsupported(
        "rows are rotated, and the codes are to lie transposed: only "
        "codes in rows (stride 1 in D), as Q and K are taken, can be rotated");
  const std::array memories = memories_of(p, t);
  std::array<Range, memories.size()> ranges;
  for (std::size_t n = 0; n < ranges.size(); ++n) {
    const auto& memory = memories[n];
    if (!memory.needed) continue;
    ranges[n] = range_of(memory.data, memory.bytes);
    if (!usable(ranges[n], memory.element))
      return refuse_memory(memory.name, ranges[n], memory.element,
                           n == 2 ? " although the problem has scales" : "");
  }
  for (const auto& [a, b] : {std::pair(0u, 1u), std::pair(0u, 2u), std::pair(1u, 2u)}) {
    if (overlap(ranges[a], ranges[b]))
      return invalid(memories[a].name, " overlaps ", memories[b].name,
                     "; give each memory of its own");
  }
  return {};
}

Status check_quantize_workspace(const QuantizeProblem& p, const QuantizeTensors& t,
                                const void* workspace, std::size_t given) {
  const std::int64_t needed = quantize_workspace_bytes(p);
  if (needed == 0) return {};
  if (given < static_cast<std::uint64_t>(needed))
    return invalid("the workspace has ", given, " bytes: quantize_e4m3 needs ", needed,
                   "; pass Options::workspace of quantize_workspace_bytes()");
  const Range scratch = range_of(workspace, needed);
  if (!usable(scratch, 8))
    return invalid("the workspace is not aligned: its address must be a multiple of 8 bytes");
  for (const QuantizeMemory& memory : memories_of(p, t)) {
    if (memory.needed && overlap(scratch, range_of(memory.data, memory.bytes)))
      return invalid("the workspace overlaps ", memory.name, "; give it memory of its own");
  }
  return {};
}

void lower_alignment(Problem& p, const Tensors& t) noexcept {
  const auto lower = [](Layout& layout, const void* data) {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    if (address == 0) return;
    const std::uintptr_t has = address & (~address + 1);  // lowest set bit
    if (has < static_cast<std::uintptr_t>(layout.alignment))
      layout.alignment = static_cast<std::int32_t>(has);
  };
  lower(p.q, t.q);
  lower(p.k, t.k);
  lower(p.v, t.v);
  lower(p.o, t.o);
}

}  // namespace core

Status check(const Problem& problem) {
  // Cheapest first; each relies on what those before it have established.
  if (Status status = core::check_shape(problem); !status) return status;
  if (Status status = core::check_types(problem); !status) return status;
  if (Status status = core::check_sequences(problem); !status) return status;
  if (Status status = core::check_biases(problem); !status) return status;
  if (Status status = core::check_scores(problem); !status) return status;
  if (Status status = core::check_layouts(problem); !status) return status;
  // The LSE then fits too: one of its rows takes 4 bytes, and of O at least 16, all distinct.
  return {};
}

}  // namespace greenfast
