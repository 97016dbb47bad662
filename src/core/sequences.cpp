#include "core/sequences.hpp"

#include <array>
#include <vector>

#include <greenfast/arithmetic.hpp>
#include <greenfast/operands.hpp>

#include "core/check.hpp"
#include "core/text.hpp"

namespace greenfast::core {
namespace {

template <class... Pieces>
Status wrong(const Pieces&... pieces) {
  return Status(StatusCode::invalid_argument, concat(pieces...));
}

// What an index into `count` things may be.
std::string index_below(std::int64_t count) {
  if (count <= 0) return "no entry can be right: give it some";
  return count == 1 ? std::string("it must be 0") : concat("it may be 0 to ", count - 1);
}

}  // namespace

Status check_cumulative(std::string_view name, const std::int32_t* values, std::int64_t count,
                        std::int64_t total, std::string_view total_name) {
  if (values[0] < 0)
    return wrong(name, "[0] is ", values[0], ": sequences begin at row 0 or later");
  for (std::int64_t n = 0; n < count; ++n) {
    if (values[n + 1] < values[n])
      return wrong(name, "[", n + 1, "] is ", values[n + 1], ", less than ", name, "[", n,
                   "], which is ", values[n], ": it must not decrease, for sequence ", n,
                   " lies between them");
  }
  if (values[count] > total)
    return wrong(name, "[", count, "] is ", values[count], ": ", counted(total, "row"),
                 total == 1 ? " is" : " are", " there (", total_name, "); correct one of them");
  return {};
}

Status check_range(std::string_view name, const std::int32_t* values, std::int64_t count,
                   std::int64_t end, std::string_view of) {
  for (std::int64_t n = 0; n < count; ++n) {
    if (values[n] < 0 || values[n] >= end)
      return wrong(name, "[", n, "] is ", values[n], ": ", of, " ", end, ", so ", index_below(end));
  }
  return {};
}

Status check_page_row(std::string_view name, const std::int32_t* row, std::int64_t b,
                      std::int64_t first, std::int64_t end, std::int64_t pages) {
  for (std::int64_t n = first; n < end; ++n) {
    if (row[n] < 0 || row[n] >= pages)
      return wrong(name, "[", b, "][", n, "] is ", row[n], ": the pool has ",
                   counted(pages, "page"), ", so ", index_below(pages));
  }
  return {};
}

Status check_arrays(const Problem& p, const Tensors& t) {
  const Sequences& s = p.sequences;
  if (writes_nothing(p)) return {};
  if (s.packed_q)
    if (Status status = check_cumulative("cu_q", t.cu_q, p.batch, s.total_q, "total_q"); !status)
      return status;
  if (s.packed_kv)
    if (Status status = check_cumulative("cu_kv", t.cu_kv, p.batch, s.total_kv, "total_kv");
        !status)
      return status;
  if (s.kv_index && p.seq_kv > 0)
    if (Status status = check_range("kv_index", t.kv_index, p.batch, s.kv_rows,
                                    "the first dimension of K and V (kv_rows) is");
        !status)
      return status;
  if (!s.packed_q && !s.packed_kv && !s.used_q && !s.used_kv && !s.kv_start && !p.pages.used())
    return {};

  for (std::int64_t b = 0; b < p.batch; ++b) {
    const Sequence sequence = sequence_of(p, t, b);
    const struct {
      std::string_view used_name, cu_name, most_names;
      bool used;
      const std::int32_t* cu;
      std::int64_t length, most;
    } sides[] = {
        {"used_q", "cu_q", "seq_q, or max_q where that was given", s.used_q,
         s.packed_q ? t.cu_q : nullptr, sequence.seq_q, p.seq_q},
        {"used_kv", "cu_kv", "seq_kv, or max_kv where that was given", s.used_kv,
         s.packed_kv ? t.cu_kv : nullptr, sequence.seq_kv, p.seq_kv},
    };
    for (const auto& side : sides) {
      if (side.used && side.cu != nullptr && side.length > side.cu[b + 1] - side.cu[b])
        return wrong(side.used_name, "[", b, "] is ", side.length, ": ", side.cu_name,
                     " gives that sequence ", counted(side.cu[b + 1] - side.cu[b], "row"));
      if (side.length < 0)
        return wrong(side.used_name, "[", b, "] is ", side.length, ": a length is 0 or more");
      if (side.length > side.most)
        return wrong("sequence ", b, " has ", counted(side.length, "row"), " by ",
                     side.used ? side.used_name : side.cu_name, ": ", side.most,
                     " is the most that any may have (", side.most_names, "); raise it");
    }
    if (sequence.kv_start < 0 || sequence.kv_start > p.seq_kv)
      return wrong("kv_start[", b, "] is ", sequence.kv_start, ": it may be 0 to ", p.seq_kv,
                   ", the most keys that a sequence may have");
    // Without a row nothing of the cache is read.
    if (p.pages.used() && sequence.seq_q > 0 && sequence.kv_start < sequence.seq_kv) {
      const std::int64_t size = p.pages.size;
      if (Status status = check_page_row("page_table", sequence.pages, b, sequence.kv_start / size,
                                         ceil_div(sequence.seq_kv, size), p.pages.count);
          !status)
        return status;
    }
  }
  return {};
}

Status check_fetched_arrays(const Problem& p, const Tensors& t, const Fetch& fetch) {
  Tensors here = t;
  std::array<std::vector<std::int32_t>, kOperands> copies;
  std::size_t n = 0;
  for (const Operand& operand : operands_of(p)) {
    std::vector<std::int32_t>& copy = copies[n++];
    if (operand.element != Element::index || !operand.needed) continue;
    const auto bytes = static_cast<std::size_t>(operand.bytes);
    copy.resize(bytes / sizeof(std::int32_t));
    if (Status status = fetch(data_of(t, operand.id), bytes, copy.data()); !status) return status;
    set_data(here, operand.id, copy.data());
  }
  return check_arrays(p, here);
}

}  // namespace greenfast::core
