#include "core/serving.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <utility>
#include <vector>

#include <greenfast/arithmetic.hpp>

#include "core/check.hpp"
#include "core/memory.hpp"
#include "core/sequences.hpp"
#include "core/text.hpp"

namespace greenfast::core {
namespace {

using Shape = std::array<std::int64_t, 4>;

template <class... Pieces>
Status bad(const Pieces&... pieces) {
  return Status(StatusCode::invalid_argument, concat(pieces...));
}

struct Size {
  std::string_view name;
  std::int64_t value, least, most;
};
template <std::size_t Count>
Status check_sizes(const Size (&sizes)[Count]) {
  for (const Size& size : sizes)
    if (size.value < size.least || size.value > size.most)
      return bad(size.name, " is ", size.value, ": it may be ", size.least, " to ", size.most,
                 "; correct it");
  return {};
}

std::int64_t pages_of_row(const AppendProblem& p) {
  return p.pages.used() ? ceil_div(p.seq_kv, p.pages.size) : std::int64_t{0};
}

struct IndexArray {
  std::string_view name;
  const std::int32_t* AppendTensors::*member;
  std::int64_t count;
  bool there;
};
std::array<IndexArray, 6> index_arrays(const AppendProblem& p, const AppendTensors& t) {
  using T = AppendTensors;
  return {{{"cu_new", &T::cu_new, p.batch + 1, p.packed},
           {"used_new", &T::used_new, p.batch, p.used_new},
           {"used_kv", &T::used_kv, p.batch, t.used_kv != nullptr},
           {"kv_start", &T::kv_start, p.batch, p.kv_start},
           {"kv_index", &T::kv_index, p.batch, p.kv_index},
           {"page_table", &T::page_table, (p.batch - 1) * p.pages.row_stride + pages_of_row(p),
            p.pages.used()}}};
}

Status check_head_dim(std::string_view name, std::int64_t dim) {
  if (dim >= kMinHeadDim && dim <= kMaxHeadDim && dim % kHeadDimStep == 0) return {};
  return {StatusCode::unsupported, concat(name, " is ", dim, ": it may be ", kMinHeadDim, " to ",
                                          kMaxHeadDim, " in steps of ", kHeadDimStep)};
}

Status check_float(std::string_view name, DType dtype) {
  if (dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16) return {};
  return {StatusCode::unsupported,
          concat(name, " is ", name_of(dtype), ": it may be fp32, fp16 or bf16; convert it")};
}

// A tensor or an array of a call.
struct Part {
  std::string_view name;
  const void* data = nullptr;
  std::int64_t bytes = 0;
  std::size_t element = 1;
  bool needed = false;
  bool written = false;
};

Part tensor(std::string_view name, const void* data, const Layout& layout, const Shape& shape,
            DType dtype, bool needed, bool written = false) {
  return {name,
          data,
          extent_elements(layout, shape) * static_cast<std::int64_t>(size_of(dtype)),
          size_of(dtype),
          needed,
          written};
}
Part array(std::string_view name, const void* data, std::int64_t count, bool needed,
           bool written = false) {
  return {name, data, count * 4, 4, needed, written};
}

// Every part that is needed is there; nothing that is written overlaps another part, unless they
// are `same` and may be.
template <class MayShare>
Status check_parts(const std::vector<Part>& parts, const MayShare& may_share) {
  std::vector<Range> ranges(parts.size());
  for (std::size_t n = 0; n < parts.size(); ++n) {
    if (!parts[n].needed || parts[n].bytes == 0) continue;
    ranges[n] = range_of(parts[n].data, parts[n].bytes);
    if (!usable(ranges[n], parts[n].element))
      return refuse_memory(parts[n].name, ranges[n], parts[n].element,
                           " although the problem has it");
  }
  for (std::size_t a = 0; a < parts.size(); ++a)
    for (std::size_t b = 0; b < parts.size(); ++b) {
      if (a == b || !parts[a].written || !overlap(ranges[a], ranges[b])) continue;
      if (!may_share(parts[a], parts[b]))
        return bad(parts[a].name, " overlaps ", parts[b].name, "; give each memory of its own");
    }
  return {};
}

}  // namespace

Status check_merge(const MergeProblem& p, const MergeTensors& t) {
  if (Status status = check_sizes({{"batch", p.batch, 0, kMaxBatchHeads},
                                   {"heads", p.heads, 1, kMaxBatchHeads},
                                   {"seq", p.seq, 0, kMaxTotal}});
      !status)
    return status;
  if (p.batch * p.heads > kMaxBatchHeads)
    return bad("batch ", p.batch, " times heads ", p.heads, " exceeds ", kMaxBatchHeads);
  if (Status status = check_head_dim("head_dim", p.head_dim); !status) return status;
  if (Status status = check_float("dtype", p.dtype); !status) return status;
  if (Status status = check_float("out_dtype", p.out_dtype); !status) return status;
  const Shape shape{p.batch, p.heads, p.seq, p.head_dim};
  if (Status status = check_layout("a", p.a, shape, p.dtype, Sharing::broadcast); !status)
    return status;
  if (Status status = check_layout("b", p.b, shape, p.dtype, Sharing::broadcast); !status)
    return status;
  if (Status status = check_layout("o", p.o, shape, p.out_dtype, Sharing::distinct); !status)
    return status;
  const std::int64_t rows = p.batch * p.heads * p.seq;
  if (rows == 0) return {};
  const bool in_place[] = {p.out_dtype == p.dtype && p.o.stride == p.a.stride,
                           p.out_dtype == p.dtype && p.o.stride == p.b.stride};
  const std::vector<Part> parts{tensor("a", t.a, p.a, shape, p.dtype, true),
                                tensor("b", t.b, p.b, shape, p.dtype, true),
                                array("lse_a", t.lse_a, rows, true),
                                array("lse_b", t.lse_b, rows, true),
                                tensor("o", t.o, p.o, shape, p.out_dtype, true, true),
                                array("lse", t.lse, rows, t.lse != nullptr, true)};
  return check_parts(parts, [&](const Part& written, const Part& other) {
    if (written.data != other.data) return false;
    if (written.name == "lse") return other.name == "lse_a" || other.name == "lse_b";
    return (other.name == "a" && in_place[0]) || (other.name == "b" && in_place[1]);
  });
}

namespace {

Status check_rotary(const AppendProblem& p) {
  if (p.rotary != Rotary::none && p.rotary != Rotary::interleaved && p.rotary != Rotary::neox)
    return bad("rotary ", static_cast<std::int32_t>(p.rotary),
               " does not exist: use none, interleaved or neox");
  if (p.rotary == Rotary::none) {
    if (p.heads_q != 0)
      return bad("Q is given, with heads_q ", p.heads_q,
                 ", and no rotary: append only turns it; leave Q out (heads_q 0), or ask for "
                 "rotary");
    return {};
  }
  if (p.dtype == DType::e4m3)
    return {StatusCode::unsupported,
            "rotary of e4m3 keys is not offered: turn them before they are quantised"};
  if (p.rotary_dim < 2 || p.rotary_dim > p.head_dim || p.rotary_dim % 2 != 0)
    return bad("rotary_dim is ", p.rotary_dim, ": it may be 2 to head_dim, ", p.head_dim,
               ", and is even");
  if (p.positions < 1 || p.positions > kMaxTotal)
    return bad("positions is ", p.positions, ": the tables have 1 to ", kMaxTotal, " rows");
  return {};
}

Shape new_shape(const AppendProblem& p, std::int64_t heads, std::int64_t dim) {
  if (p.packed) return {1, heads, p.total_new, dim};
  return {p.batch, heads, p.seq_new, dim};
}
Shape cache_shape(const AppendProblem& p, std::int64_t dim) {
  if (p.pages.used()) return {p.pages.count, p.heads_kv, p.pages.size, dim};
  return {p.kv_index ? p.kv_rows : p.batch, p.heads_kv, p.seq_kv, dim};
}

// Whether an element of V lies `from` elements behind one of K, or the other way round. Both have
// these dimensions, each of which steps over what is inside it (check_layout), so of a dimension's
// index differences two are possible at most.
bool meet(std::int64_t from, const std::array<std::pair<std::int64_t, std::int64_t>, 3>& steps,
          int dim, std::int64_t dim_k, std::int64_t dim_v) {
  if (dim == 3) return from < dim_k && from > -dim_v;
  const auto [stride, size] = steps[dim];
  if (size <= 1) return meet(from, steps, dim + 1, dim_k, dim_v);
  const std::int64_t below = from / stride - (from % stride < 0 ? 1 : 0);
  for (const std::int64_t n : {below, below + 1})
    if (n > -size && n < size && meet(from - n * stride, steps, dim + 1, dim_k, dim_v)) return true;
  return false;
}

// Whether K and V of a cache, though they lie in one piece of memory, share no element of it.
bool interleaved(const AppendProblem& p, const AppendTensors& t) {
  const Shape shape = cache_shape(p, p.head_dim);
  std::array<std::pair<std::int64_t, std::int64_t>, 3> steps;
  for (int dim = 0; dim < 3; ++dim) {
    if (shape[dim] > 1 && p.k.stride[dim] != p.v.stride[dim]) return false;
    steps[dim] = {p.k.stride[dim], shape[dim]};
  }
  std::sort(steps.begin(), steps.end(), std::greater<>());
  const auto bytes = reinterpret_cast<std::intptr_t>(t.v) - reinterpret_cast<std::intptr_t>(t.k);
  return !meet(bytes / static_cast<std::intptr_t>(size_of(p.dtype)), steps, 0, p.head_dim,
               value_dim(p));
}

}  // namespace

Status check_append(const AppendProblem& p, const AppendTensors& t) {
  if (Status status = check_sizes({{"batch", p.batch, 0, kMaxBatchHeads},
                                   {"heads_q", p.heads_q, 0, kMaxBatchHeads},
                                   {"heads_kv", p.heads_kv, 1, kMaxBatchHeads},
                                   {"seq_new", p.seq_new, 0, kMaxLength},
                                   {"seq_kv", p.seq_kv, 0, kMaxLength},
                                   {"pages.size", p.pages.size, 0, kMaxLength}});
      !status)
    return status;
  const bool paged = p.pages.used();
  const struct {
    std::string_view name;
    std::int64_t value;
    bool used;
    std::string_view of;
  } facts[] = {{"total_new", p.total_new, p.packed, "packed new tensors"},
               {"kv_rows", p.kv_rows, p.kv_index, "kv_index"},
               {"pages.count", p.pages.count, paged, "pages"},
               {"pages.row_stride", p.pages.row_stride, paged, "pages"}};
  for (const auto& fact : facts)
    if (Status status = check_fact(fact.name, fact.value, fact.used, 0, kMaxTotal, fact.of);
        !status)
      return status;
  if (p.batch * std::max(p.heads_kv, p.heads_q) > kMaxBatchHeads)
    return bad("batch ", p.batch, " times the heads exceeds ", kMaxBatchHeads);
  if (Status status = check_head_dim("head_dim", p.head_dim); !status) return status;
  if (Status status = check_head_dim("head_dim_v", value_dim(p)); !status) return status;
  if (size_of(p.dtype) == 0)
    return bad("dtype ", static_cast<std::int32_t>(p.dtype),
               " does not exist: use fp32, fp16, bf16 or e4m3");
  if (Status status = check_rotary(p); !status) return status;
  if (p.pages.used() && p.kv_index)
    return bad("the cache cannot have both pages and kv_index: order the rows of the page table");
  const std::int64_t pages = pages_of_row(p);
  if (p.batch > 1 && p.pages.row_stride < pages)
    return bad("pages.row_stride is ", p.pages.row_stride, ": ", p.seq_kv, " keys in pages of ",
               p.pages.size, " take ", pages,
               " entries of the page table; widen its rows, or lower seq_kv");

  const std::int64_t dim_v = value_dim(p);
  const struct {
    std::string_view name;
    const Layout& layout;
    Shape shape;
    Sharing sharing;
    bool there;
  } layouts[] = {
      {"k_new", p.k_new, new_shape(p, p.heads_kv, p.head_dim), Sharing::broadcast, true},
      {"v_new", p.v_new, new_shape(p, p.heads_kv, dim_v), Sharing::broadcast, true},
      {"k", p.k, cache_shape(p, p.head_dim), Sharing::distinct, true},
      {"v", p.v, cache_shape(p, dim_v), Sharing::distinct, true},
      {"q", p.q, new_shape(p, p.heads_q, p.head_dim), Sharing::broadcast, p.heads_q > 0},
      {"q_out", p.q_out, new_shape(p, p.heads_q, p.head_dim), Sharing::distinct, p.heads_q > 0},
  };
  for (const auto& l : layouts) {
    if (!l.there) continue;
    Status status = check_layout(l.name, l.layout, l.shape, p.dtype, l.sharing);
    if (!status) return status;
  }
  if (p.batch == 0 || p.seq_new == 0 || (p.packed && p.total_new == 0)) return {};
  const bool turns = p.rotary != Rotary::none;
  const std::int64_t table = turns ? p.positions * (p.rotary_dim / 2) : 0;
  const auto part = [&](int n, const void* data, bool written) {
    const auto& l = layouts[n];
    return tensor(l.name, data, l.layout, l.shape, p.dtype, l.there, written);
  };
  std::vector<Part> parts{
      part(0, t.k_new, false), part(1, t.v_new, false), part(2, t.k, true),
      part(3, t.v, true),      part(4, t.q, false),     part(5, t.q_out, true),
  };
  for (const auto& [name, member, count, there] : index_arrays(p, t))
    parts.push_back(array(name, t.*member, count, there));
  parts.push_back(array("cos", t.cos, table, turns));
  parts.push_back(array("sin", t.sin, table, turns));
  return check_parts(parts, [&](const Part& written, const Part& other) {
    // K and V may be halves of the same rows, and Q lie between keys that are read before.
    if (written.name == "q_out")
      return t.q_out == t.q && p.q_out.stride == p.q.stride &&
             (other.name == "q" || other.name == "k_new" || other.name == "v_new");
    return (other.name == "k" || other.name == "v") && interleaved(p, t);
  });
}

Status check_append_arrays(const AppendProblem& p, const AppendTensors& t) {
  if (p.batch == 0 || p.seq_new == 0 || (p.packed && p.total_new == 0)) return {};
  if (p.packed)
    if (Status status = check_cumulative("cu_new", t.cu_new, p.batch, p.total_new, "total_new");
        !status)
      return status;
  if (p.kv_index)
    if (Status status = check_range("kv_index", t.kv_index, p.batch, p.kv_rows,
                                    "the cache's first dimension (kv_rows) is");
        !status)
      return status;
  std::vector<std::pair<std::int64_t, std::int64_t>> places;  // a page or row, and who writes it
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Appended a = appended(p, t, b);
    const std::int64_t slot = p.packed ? t.cu_new[b + 1] - t.cu_new[b] : p.seq_new;
    if (a.count < 0 || a.count > slot)
      return bad("used_new[", b, "] is ", a.count, ": that sequence has ", counted(slot, "new row"),
                 ", the most that it may be");
    if (a.count > p.seq_new)
      return bad("sequence ", b, " has ", counted(a.count, "new token"), ": ", p.seq_new,
                 " is the most that any may have (seq_new, or max_new where that was given); raise "
                 "it");
    if (a.first < 0) return bad("used_kv[", b, "] is ", a.first, ": a length is 0 or more");
    if (a.count == 0) continue;
    const std::int64_t end = a.first + a.count;
    if (end > p.seq_kv)
      return bad("sequence ", b, " would have ", counted(end, "key"), ", ", a.first,
                 " by used_kv and ", a.count, " new ones: the cache has room for ", p.seq_kv,
                 " (seq_kv)", p.pages.used() ? "; give it more pages" : "; give it a larger cache");
    if (p.kv_start && (t.kv_start[b] < 0 || t.kv_start[b] > a.first))
      return bad("kv_start[", b, "] is ", t.kv_start[b], ": used_kv[", b, "], ", a.first,
                 ", is the most that it may be, so that no new token stands before it");
    if (p.rotary != Rotary::none && a.position + a.count > p.positions)
      return bad("sequence ", b, " reaches position ", a.position + a.count - 1,
                 ": the rotary tables have ", p.positions, " rows");
    if (p.pages.used()) {
      const std::int32_t* const row = t.page_table + b * p.pages.row_stride;
      const std::int64_t from = a.first / p.pages.size;
      const std::int64_t to = ceil_div(end, p.pages.size);
      if (Status status = check_page_row("page_table", row, b, from, to, p.pages.count); !status)
        return status;
      for (std::int64_t n = from; n < to; ++n) places.emplace_back(row[n], b);
    } else if (p.kv_index) {
      places.emplace_back(t.kv_index[b], b);
    }
  }
  std::sort(places.begin(), places.end());
  for (std::size_t n = 1; n < places.size(); ++n)
    if (places[n].first == places[n - 1].first)
      return bad(p.pages.used() ? "page " : "row ", places[n].first, " of the cache would be ",
                 "written for sequence ", places[n - 1].second, " and again for sequence ",
                 places[n].second, ": give each ", p.pages.used() ? "a page" : "a row",
                 " of its own");
  return {};
}

Status check_fetched_append_arrays(const AppendProblem& p, const AppendTensors& t,
                                   const Fetch& fetch) {
  if (p.batch == 0) return {};
  AppendTensors here = t;
  std::vector<std::vector<std::int32_t>> copies;
  for (const auto& [name, member, count, there] : index_arrays(p, t)) {
    if (!there || count == 0) continue;
    std::vector<std::int32_t>& copy = copies.emplace_back(static_cast<std::size_t>(count));
    if (Status status = fetch(t.*member, copy.size() * sizeof(std::int32_t), copy.data()); !status)
      return status;
    here.*member = copy.data();
  }
  return check_append_arrays(p, here);
}

}  // namespace greenfast::core
