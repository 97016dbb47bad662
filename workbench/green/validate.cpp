#include "workbench/green/validate.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>

#include <greenfast/arithmetic.hpp>

#include "workbench/base/numeric.hpp"
#include "workbench/base/parallel.hpp"
#include "workbench/base/sha256.hpp"
#include "workbench/cases/operand_bytes.hpp"
#include "workbench/cases/placement.hpp"
#include "workbench/reference/emulator.hpp"

namespace greenfast::workbench {
namespace {

constexpr std::size_t kRedzone = 4096;

// Two patterns that decode to different NaNs in every output type, at any alignment of elements.
constexpr std::array<std::array<unsigned char, 2>, 2> kPoison{{{0xff, 0x7f}, {0xfe, 0xff}}};

std::vector<std::byte> pattern(std::size_t bytes, int which) {
  std::vector<std::byte> out(bytes);
  const std::size_t first = std::min<std::size_t>(bytes, 2);
  if (first > 0)
    std::memcpy(out.data(), kPoison[static_cast<std::size_t>(which & 1)].data(), first);
  // By doubling: byte by byte this was a twentieth of a check.
  for (std::size_t done = first; done < bytes; done *= 2)
    std::memcpy(out.data() + done, out.data(), std::min(done, bytes - done));
  return out;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g", value);
  return text;
}

// Device memory with a redzone on each side, and what it should hold outside of what a kernel may
// write.
class Region {
 public:
  Region(Device& device, std::size_t bytes) : device_(device), bytes_(bytes) {
    memory_ = static_cast<std::byte*>(device.allocate(bytes + 2 * kRedzone));
  }
  ~Region() {
    if (memory_) device_.release(memory_);
  }
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  bool allocated() const { return memory_ != nullptr; }
  void* data() const { return memory_ + kRedzone; }
  std::size_t size() const { return bytes_; }

  /// Fills everything: redzones with poison, the payload with poison or, where outputs are not
  /// poisoned, zeros.
  void fill(int which, bool poison_payload) {
    which_ = static_cast<std::size_t>(which & 1);
    std::vector<std::byte>& image = images_[which_];
    if (image.empty()) {
      image = pattern(bytes_ + 2 * kRedzone, which);
      if (!poison_payload)
        std::fill(image.begin() + kRedzone, image.end() - static_cast<std::ptrdiff_t>(kRedzone),
                  std::byte{0});
    }
    device_.upload(memory_, image.data(), image.size());
  }
  /// As fill, with the payload given; it must stay where it is.
  void fill(int which, const void* payload) {
    const auto redzone = pattern(kRedzone, which), after = redzone_after(which);
    device_.upload(memory_, redzone.data(), kRedzone);
    if (bytes_ > 0) device_.upload(memory_ + kRedzone, payload, bytes_);
    device_.upload(memory_ + kRedzone + bytes_, after.data(), kRedzone);
    payload_ = static_cast<const std::byte*>(payload);
    payload_which_ = which;
  }
  /// Where memory differs from the payload that was filled in and its redzones, from its start.
  std::optional<std::int64_t> first_change() {
    std::vector<std::byte> now(bytes_ + 2 * kRedzone);
    device_.download(now.data(), memory_, now.size());
    const auto differs = [&](const std::byte* expected, std::size_t from,
                             std::size_t count) -> std::optional<std::int64_t> {
      if (count == 0 || std::memcmp(now.data() + from, expected, count) == 0) return std::nullopt;
      const std::byte* const begin = now.data() + from;
      return std::mismatch(begin, begin + count, expected).first - now.data() -
             static_cast<std::ptrdiff_t>(kRedzone);
    };
    if (const auto at = differs(pattern(kRedzone, payload_which_).data(), 0, kRedzone)) return at;
    if (const auto at = differs(payload_, kRedzone, bytes_)) return at;
    return differs(redzone_after(payload_which_).data(), kRedzone + bytes_, kRedzone);
  }
  void read(std::vector<std::byte>& out, bool on_stream = false) {
    out.resize(image().size());
    if (on_stream)
      device_.download_on_stream(out.data(), memory_, out.size());
    else
      device_.download(out.data(), memory_, out.size());
  }
  /// What fill without a payload left.
  const std::vector<std::byte>& image() const { return images_[which_]; }

 private:
  // The pattern goes on where the payload ends, which may be at an odd byte.
  std::vector<std::byte> redzone_after(int which) const {
    auto bytes = pattern(kRedzone + bytes_ % 2, which);
    bytes.erase(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(bytes_ % 2));
    return bytes;
  }

  Device& device_;
  std::size_t bytes_;
  std::byte* memory_ = nullptr;
  // With either pattern: launches alternate.
  std::array<std::vector<std::byte>, 2> images_;
  std::size_t which_ = 0;
  const std::byte* payload_ = nullptr;
  int payload_which_ = 0;
};

// std::byte is no integer to std::equal, which compares it byte by byte.
bool same(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

// Offset of the first differing byte relative to the payload, or nothing.
std::optional<std::int64_t> first_difference(const std::vector<std::byte>& a,
                                             const std::vector<std::byte>& b, std::size_t from,
                                             std::size_t to) {
  if (to <= from || std::memcmp(a.data() + from, b.data() + from, to - from) == 0)
    return std::nullopt;
  const auto begin = static_cast<std::ptrdiff_t>(from), end = static_cast<std::ptrdiff_t>(to);
  const auto at = std::mismatch(a.begin() + begin, a.begin() + end, b.begin() + begin).first;
  if (at == a.begin() + end) return std::nullopt;
  return at - a.begin() - static_cast<std::ptrdiff_t>(kRedzone);
}

std::string describe_offset(std::int64_t offset, std::size_t bytes) {
  if (offset < 0) return std::to_string(-offset) + " bytes before its start";
  if (static_cast<std::size_t>(offset) >= bytes)
    return std::to_string(static_cast<std::size_t>(offset) - bytes) + " bytes past its end";
  return "a gap at byte " + std::to_string(offset);
}

// Visits the rows of O that exist, dense index first, those of different heads at the same time.
template <class Visit>
void for_each_row(const Placement& placement, Visit&& visit) {
  const Problem& p = placement.problem();
  parallel_for(p.batch * p.heads_q, [&](std::int64_t head) {
    const std::int64_t b = head / p.heads_q, rows = placement.sequence(b).rows;
    for (std::int64_t i = 0; i < rows; ++i) visit(head * p.seq_q + i, b, head % p.heads_q, i);
  });
}

std::string place_of(const Problem& p, std::int64_t row) {
  return "b " + std::to_string(row / p.seq_q / p.heads_q) + " h " +
         std::to_string(row / p.seq_q % p.heads_q) + " i " + std::to_string(row % p.seq_q);
}

// The elements of one launch: O dense, then LSE, as bytes.
struct Output {
  std::vector<std::byte> o, lse;
  friend bool operator==(const Output& a, const Output& b) {
    return same(a.o, b.o) && same(a.lse, b.lse);
  }
};

// Rows that do not exist are zero. `out` is empty or what this left of an earlier launch.
void gather(const Placement& placement, const std::byte* o, const void* lse, Output& out) {
  const Problem& p = placement.problem();
  const std::size_t row_bytes = static_cast<std::size_t>(value_dim(p)) * size_of(p.out_dtype);
  const auto rows = static_cast<std::size_t>(placement.total_rows());
  out.o.resize(rows * row_bytes);
  const bool with_lse = p.lse && lse != nullptr;
  if (with_lse) out.lse.resize(rows * sizeof(float));
  for_each_row(placement, [&](std::int64_t row, std::int64_t b, std::int64_t h, std::int64_t i) {
    const auto to = static_cast<std::size_t>(row);
    std::memcpy(out.o.data() + to * row_bytes,
                o + static_cast<std::size_t>(placement.o(b, h, i)) * size_of(p.out_dtype),
                row_bytes);
    if (with_lse)
      std::memcpy(out.lse.data() + to * sizeof(float),
                  static_cast<const float*>(lse) + placement.lse(b, h, i), sizeof(float));
  });
}

/// What the kernel should have written somewhere and what it wrote, for whoever debugs it.
std::string expected_and_got(double expected, double got) {
  char text[80];
  std::snprintf(text, sizeof text, "expected %.6g, got %.6g", expected, got);
  return text;
}

void judge(const CaseData& data, const Output& output, CaseResult& result) {
  const Problem& p = data.test.problem;
  const std::int64_t dim_v = value_dim(p);
  const auto dim = static_cast<std::size_t>(dim_v);
  const auto& rows = data.reference.rows;
  std::vector<double> o(rows.size() * dim), lse;
  constexpr std::int64_t kAtOnce = 1024;
  const auto count = static_cast<std::int64_t>(rows.size());
  parallel_for(ceil_div(count, kAtOnce), [&](std::int64_t part) {
    for (std::int64_t r = part * kAtOnce; r < std::min((part + 1) * kAtOnce, count); ++r)
      numeric::load_row(p.out_dtype, output.o.data(), rows[static_cast<std::size_t>(r)] * dim_v,
                        dim_v, o.data() + r * dim_v);
  });
  if (p.lse)
    for (const std::int64_t row : rows)
      lse.push_back(numeric::load(DType::f32, output.lse.data(), row));
  result.metrics = measure(data.reference, dim_v, p.out_dtype, o, lse, data.element_threshold);
  result.emulator = data.emulator;
  result.limits = data.limits;
  result.rows_checked = static_cast<std::int64_t>(rows.size());
  result.rows_total = data.reference.total_rows;

  // The sampled rows speak for the numbers; that no other row holds NaN is cheap to see as well.
  std::int64_t unexpected = result.metrics.nan_mismatch, place = result.metrics.worst_row;
  if (unexpected == 0 && result.rows_checked < result.rows_total &&
      !data.reference.nonfinite_visible) {
    std::vector<double> row(dim);
    const std::int64_t all = p.batch * p.heads_q * p.seq_q;
    for (std::int64_t r = 0; r < all && unexpected == 0; ++r) {
      numeric::load_row(p.out_dtype, output.o.data(), r * dim_v, dim_v, row.data());
      for (const double x : row)
        if (std::isnan(x)) ++unexpected, place = r;
    }
  }
  if (unexpected > 0) {
    result.verdict = Verdict::red;
    result.fault = Fault::numerics;
    result.failed_metric = "nan";
    result.reason =
        "NaN or Inf where the reference has none, or the reverse: " + std::to_string(unexpected) +
        " elements, first in row " + place_of(p, place);
    for (std::size_t at = 0; at < o.size(); ++at) {
      const double expected = data.reference.o[at];
      if (std::isfinite(expected) == std::isfinite(o[at])) continue;
      result.reason += " (" + place_of(p, rows[at / dim]) + " d " + std::to_string(at % dim) +
                       ": " + expected_and_got(expected, o[at]) + ")";
      break;
    }
    return;
  }

  // The metric furthest beyond its limit names the failure, the others stand beside it.
  double worst = 0;
  std::string others;
  for (const MetricRow& metric : metric_table()) {
    const auto limit = data.limits.find(std::string(metric.name));
    if (limit == data.limits.end()) continue;
    if (metric.name == "lse" && !p.lse) continue;
    const double value = metric.value(result.metrics);
    if (value <= limit->second) continue;
    const double ratio = limit->second > 0 ? value / limit->second : HUGE_VAL;
    const std::string text =
        std::string(metric.name) + " " + number(value) + " > " + number(limit->second);
    if (result.failed_metric.empty() || !(ratio <= worst)) {
      if (!result.reason.empty()) others += (others.empty() ? "" : ", ") + result.reason;
      worst = ratio;
      result.failed_metric = metric.name;
      result.reason = text;
    } else {
      others += (others.empty() ? "" : ", ") + text;
    }
  }
  if (result.failed_metric.empty()) {
    result.verdict = Verdict::green;
    return;
  }
  result.verdict = Verdict::red;
  result.fault = Fault::numerics;
  if (result.failed_metric == "lse") {
    const auto worst_row = static_cast<std::size_t>(result.metrics.worst_lse);
    if (worst_row < lse.size())
      result.reason += " (worst at " + place_of(p, rows[worst_row]) + ": LSE " +
                       expected_and_got(data.reference.lse[worst_row], lse[worst_row]) + ")";
  } else if (result.metrics.worst_row >= 0) {
    const auto row = std::find(rows.begin(), rows.end(), result.metrics.worst_row);
    const auto at = static_cast<std::size_t>(row - rows.begin()) * dim +
                    static_cast<std::size_t>(result.metrics.worst_col);
    result.reason += " (worst at " + place_of(p, result.metrics.worst_row) + " d " +
                     std::to_string(result.metrics.worst_col) +
                     (at < o.size() ? ": " + expected_and_got(data.reference.o[at], o[at]) : "") +
                     ")";
  }
  if (!others.empty()) result.reason += "; also " + others;
}

void fail(CaseResult& result, std::string_view check, std::string reason,
          Fault fault = Fault::integrity) {
  // What was touched rules over numbers, and the first failure of a kind over later ones.
  if (result.fault != Fault::none) return;
  result.verdict = Verdict::red;
  result.fault = fault;
  result.failed_metric = check;
  result.reason = std::move(reason);
}

std::uint64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("MemAvailable:", 0) != 0) continue;
    std::istringstream fields(line.substr(13));
    std::uint64_t kib = 0;
    fields >> kib;
    return kib * 1024;
  }
  return ~std::uint64_t{0};
}

// A problem whose oracle is sampled takes seconds on slow kernels: fewer reruns there.
// The ends of the range are about numbers: the asked problem is what is rerun for races.
int reruns_of(const Policy& policy, const Case& c, DeviceKind kind) {
  const Problem& p = c.problem;
  const double flops =
      2.0 * static_cast<double>(p.head_dim + value_dim(p)) * static_cast<double>(visible_pairs(p));
  const int reruns = policy.reruns.on(kind);
  if (has_own_problem(c.distribution)) return std::min(reruns, 1);
  return flops <= policy.flop_budget ? reruns : std::min(reruns, std::max(1, reruns / 6));
}

// A subject's launches on one case, and everything that is looked at around them.
class Validation {
 public:
  Validation(Subject& subject, Device& device, const CaseData& data, const Policy& policy,
             std::size_t workspace_bytes)
      : subject_(subject),
        device_(device),
        data_(data),
        policy_(policy),
        p_(data.test.problem),
        placement_(p_, index_arrays(data.inputs)),
        o_(device, static_cast<std::size_t>(operand_of(p_, OperandId::o).bytes)),
        lse_(device, static_cast<std::size_t>(operand_of(p_, OperandId::lse).bytes)),
        workspace_(device, workspace_bytes) {
    for (const Operand& operand : operands_of(p_)) {
      if (operand.role != Role::input) continue;
      const std::span<const std::byte> bytes = bytes_of(data.inputs, operand.id);
      inputs_.push_back({operand, std::make_unique<Region>(device_, bytes.size()), bytes.data()});
    }
    if (!allocated()) return;
    tensors_.o = o_.data();
    tensors_.lse = p_.lse ? static_cast<float*>(lse_.data()) : nullptr;
    for (const Input& input : inputs_)
      if (input.operand.present) set_data(tensors_, input.operand.id, input.region->data());
  }

  bool allocated() const {
    return o_.allocated() && lse_.allocated() && workspace_.allocated() &&
           std::all_of(inputs_.begin(), inputs_.end(),
                       [](const Input& input) { return input.region->allocated(); });
  }

  CaseResult run() {
    CaseResult result;
    for (const Input& input : inputs_) input.region->fill(0, input.content);
    if (policy_.decoy && !run_decoy(result)) return result;

    // Launches alternate between the poison patterns; what differs between them was not written.
    const int reruns = reruns_of(policy_, data_.test, device_.kind());
    const int launches = 1 + std::max(reruns, policy_.poison ? 1 : 0);
    Output first, again;
    std::vector<std::byte> o_image, lse_image;
    for (int n = 0; n < launches; ++n) {
      poison(n);
      if (!launch(result)) return result;
      if (n == 0 && policy_.stream) {
        std::vector<std::byte> early, early_lse;
        o_.read(early, true);
        lse_.read(early_lse, true);
        subject_.settle();
        if (!synchronize(result)) return result;
        o_.read(o_image);
        lse_.read(lse_image);
        if (!same(early, o_image) || !same(early_lse, lse_image))
          fail(result, "stream",
               "output changed after the stream's work was done: part of the work was not on the "
               "given stream");
      } else if (!synchronize(result)) {
        return result;
      }
      o_.read(o_image);
      lse_.read(lse_image);
      Output& output = n == 0 ? first : again;
      gather(placement_, o_image.data() + kRedzone, lse_image.data() + kRedzone, output);
      if (policy_.redzones) check_redzones(result, o_image, lse_image);
      // After the first launch, lest a modified input be taken for nondeterminism; and after all.
      if (policy_.inputs_unchanged && (n == 0 || n + 1 == launches)) check_inputs(result);
      if (n > 0) compare(result, first, output, n);
    }

    CaseResult numbers;
    judge(data_, first, numbers);
    if (result.fault == Fault::none) {
      result.verdict = numbers.verdict;
      result.fault = numbers.fault;
      result.reason = numbers.reason;
      result.failed_metric = numbers.failed_metric;
    }
    result.metrics = numbers.metrics;
    result.emulator = numbers.emulator;
    result.limits = numbers.limits;
    result.rows_checked = numbers.rows_checked;
    result.rows_total = numbers.rows_total;
    Sha256 hash;
    hash.update(first.o.data(), first.o.size());
    hash.update(first.lse.data(), first.lse.size());
    result.output_sha256 = hash.hex();
    return result;
  }

 private:
  void poison(int which) {
    o_.fill(which, policy_.poison);
    lse_.fill(which, policy_.poison);
    workspace_.fill(which, true);
  }

  bool launch(CaseResult& result) {
    const Status status =
        subject_.launch(p_, tensors_, device_.stream(),
                        workspace_.size() > 0 ? workspace_.data() : nullptr, workspace_.size());
    if (status) return true;
    fail(result, "launch", "launch failed: " + status.message(), Fault::launch);
    return false;
  }
  bool synchronize(CaseResult& result) {
    const Status status = device_.synchronize();
    if (status) return true;
    fail(result, "launch", "the device reports: " + status.message(), Fault::launch);
    return false;
  }

  // The same call with Q = 0, whose output is another one: what a replay of an earlier result, or
  // of one remembered by address, would give.
  bool run_decoy(CaseResult& result) {
    const auto q = std::find_if(inputs_.begin(), inputs_.end(), [](const Input& input) {
      return input.operand.id == OperandId::q;
    });
    const std::vector<std::byte> zeros(q->region->size());
    q->region->fill(0, zeros.data());
    poison(1);
    if (!launch(result) || !synchronize(result)) return false;
    q->region->fill(0, q->content);
    return true;
  }

  /// Takes the images apart.
  void check_redzones(CaseResult& result, std::vector<std::byte>& o_image,
                      std::vector<std::byte>& lse_image) {
    // With the elements that a kernel may write set back, everything must be as it was filled; that
    // covers the gaps, and rows of no sequence.
    const std::size_t row_bytes = static_cast<std::size_t>(value_dim(p_)) * size_of(p_.out_dtype);
    for_each_row(placement_, [&](std::int64_t, std::int64_t b, std::int64_t h, std::int64_t i) {
      const auto set_back = [](std::vector<std::byte>& image, const Region& region,
                               std::int64_t element, std::size_t size, std::size_t bytes) {
        const std::size_t offset = kRedzone + static_cast<std::size_t>(element) * size;
        std::memcpy(image.data() + offset, region.image().data() + offset, bytes);
      };
      set_back(o_image, o_, placement_.o(b, h, i), size_of(p_.out_dtype), row_bytes);
      if (p_.lse) set_back(lse_image, lse_, placement_.lse(b, h, i), sizeof(float), sizeof(float));
    });
    const auto report = [&](std::string_view what, std::optional<std::int64_t> offset,
                            std::size_t bytes) {
      if (offset)
        fail(result, "redzone",
             "wrote outside " + std::string(what) + ": " + describe_offset(*offset, bytes));
    };
    report("O", first_difference(o_image, o_.image(), 0, o_image.size()), o_.size());
    report("LSE", first_difference(lse_image, lse_.image(), 0, lse_image.size()), lse_.size());
    std::vector<std::byte> scratch;
    workspace_.read(scratch);
    const std::size_t end = kRedzone + workspace_.size();
    report("the workspace", first_difference(scratch, workspace_.image(), 0, kRedzone),
           workspace_.size());
    report("the workspace", first_difference(scratch, workspace_.image(), end, scratch.size()),
           workspace_.size());
  }

  void compare(CaseResult& result, const Output& first, const Output& output, int n) {
    if (first == output) return;
    if (policy_.poison && n == 1) {
      // Elements that hold this launch's poison held the other pattern in the first.
      const auto count_left = [&](const std::vector<std::byte>& a, const std::vector<std::byte>& b,
                                  std::size_t element, std::int64_t& where) {
        const auto p0 = pattern(element, 0), p1 = pattern(element, 1);
        std::int64_t count = 0;
        for (std::size_t at = 0; at + element <= a.size(); at += element)
          if (std::memcmp(a.data() + at, p0.data(), element) == 0 &&
              std::memcmp(b.data() + at, p1.data(), element) == 0 && count++ == 0)
            where = static_cast<std::int64_t>(at / element);
        return count;
      };
      std::int64_t where = 0;
      if (const auto left = count_left(first.o, output.o, size_of(p_.out_dtype), where)) {
        fail(result, "unwritten",
             std::to_string(left) + " elements of O were never written, first in row " +
                 place_of(p_, where / value_dim(p_)));
        return;
      }
      if (const auto left = count_left(first.lse, output.lse, sizeof(float), where)) {
        fail(result, "unwritten",
             std::to_string(left) + " elements of LSE were never written, first in row " +
                 place_of(p_, where));
        return;
      }
    }
    if (n > reruns_of(policy_, data_.test, device_.kind())) return;
    fail(result, "rerun",
         "launch " + std::to_string(n + 1) +
             " gave other bits than launch 1: output depends on "
             "what memory held before, or on timing");
  }

  void check_inputs(CaseResult& result) {
    for (const Input& input : inputs_) {
      const auto offset = input.region->first_change();
      if (!offset) continue;
      fail(result, "inputs",
           "input " + shown_name(input.operand) + " was modified at byte " +
               std::to_string(*offset));
    }
  }

  Subject& subject_;
  Device& device_;
  const CaseData& data_;
  const Policy& policy_;
  const Problem& p_;
  Placement placement_;
  Region o_, lse_, workspace_;
  struct Input {
    Operand operand;
    std::unique_ptr<Region> region;
    const void* content;
  };
  std::vector<Input> inputs_;
  Tensors tensors_;
};

}  // namespace

std::string_view name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::green:
      return "GREEN";
    case Verdict::red:
      return "RED";
    case Verdict::skipped:
      return "SKIPPED";
  }
  return "unknown";
}

std::map<std::string, double> limits_for(const Policy& policy, const Problem& problem,
                                         const Metrics& emulator, double largest,
                                         Distribution distribution) {
  std::map<std::string, double> limits;
  for (const MetricRow& metric : metric_table()) {
    const MetricLimit* row = policy.limit(metric.name, problem, distribution);
    if (!row) continue;
    // A NaN base must not become the limit: compare so that the cap wins.
    const double unit = metric.name == "max_err" && policy.relative_max_err ? largest : 1.0;
    const double derived = row->factor * metric.value(emulator) + row->floor * unit;
    const double cap = row->cap * unit;
    limits[std::string(metric.name)] = derived <= cap ? derived : cap;
  }
  return limits;
}

Result<CaseData> prepare_case(const Case& c, Inputs inputs, const Policy& policy) {
  CaseData data;
  data.test = c;
  data.inputs = std::move(inputs);
  const Problem& p = c.problem;
  Truth source = policy.reference;
  if (source == Truth::unquantised && data.inputs.q_exact.empty()) source = Truth::decoded;
  // A reference that has never heard of a feature would call right kernels wrong and wrong ones
  // right.
  const Features needs = features_of(p);
  for (const auto& [judge, takes] :
       {std::pair("oracle", kOracleTakes), std::pair("emulator", kEmulatorTakes)}) {
    if (const std::string missing = missing_features(needs, takes); !missing.empty())
      return Status(StatusCode::unsupported,
                    std::string("the ") + judge + " cannot judge " + to_string(p) + ": " + missing);
  }
  const Placement placement(p, index_arrays(data.inputs));
  data.reference =
      compute_reference(c, data.inputs, choose_rows(c, placement, policy.flop_budget), source);
  const Rows rows = emulate(c, data.inputs, data.reference.rows);
  const std::span<const double> lse =
      p.lse ? std::span<const double>(rows.lse) : std::span<const double>();
  data.emulator = measure(data.reference, value_dim(p), p.out_dtype, rows.o, lse, HUGE_VAL);
  double largest = 0;
  for (const double r : data.reference.o)
    if (std::isfinite(r)) largest = std::max(largest, std::fabs(r));
  data.limits =
      limits_for(policy, p, data.emulator, largest,
                 places_scores(p, c.distribution) ? c.distribution : Distribution::normal);
  const auto max_err = data.limits.find("max_err");
  data.element_threshold = policy.element_threshold > 0   ? policy.element_threshold
                           : max_err != data.limits.end() ? max_err->second
                                                          : HUGE_VAL;
  return data;
}

Result<CaseData> prepare_case(const Case& c, const Policy& policy) {
  const std::uint64_t needed = host_bytes(c.problem), available = available_memory();
  if (needed > available / 10 * 9)
    return Status(StatusCode::out_of_memory,
                  "case " + to_string(c) + " needs about " + std::to_string(needed / (1u << 20)) +
                      " MiB of host memory, " + std::to_string(available / (1u << 20)) +
                      " MiB are available; choose a smaller shape");
  Case test = c;
  test.poison_unseen = c.poison_unseen && policy.poison_unseen;
  return prepare_case(test, generate(test), policy);
}

CaseResult validate(Subject& subject, Device& device, const CaseData& data, const Policy& policy) {
  CaseResult result;
  const auto label = [&] {
    result.subject = subject.id();
    result.test = data.test;
  };
  const Problem& p = data.test.problem;
  if (const auto refusal = subject.refusal(p, device.facts())) {
    result.verdict = Verdict::skipped;
    result.reason = *refusal;
    label();
    return result;
  }
  const auto plan = subject.plan(p, device.facts());
  const auto workspace = plan ? static_cast<std::size_t>(plan->workspace_bytes) : 0;
  Validation session(subject, device, data, policy, workspace);
  if (!session.allocated()) {
    result.verdict = Verdict::skipped;
    result.reason = "device memory is exhausted; choose a smaller shape";
    label();
    return result;
  }
  if (const Status status = subject.prepare(p, device.stream()); !status)
    fail(result, "launch", "prepare failed: " + status.message(), Fault::launch);
  else
    result = session.run();
  label();
  return result;
}

CaseResult judge_output(const CaseData& data, const void* o, const float* lse) {
  CaseResult result;
  result.test = data.test;
  const Placement placement(data.test.problem, index_arrays(data.inputs));
  Output output;
  gather(placement, static_cast<const std::byte*>(o), lse, output);
  judge(data, output, result);
  return result;
}

std::vector<Case> make_cases(const std::vector<NamedProblem>& problems, const Policy& policy,
                             std::span<const std::uint64_t> seeds) {
  std::vector<Case> cases;
  // Whoever asks for the ends of the range asks for serving's: a variant that takes a feature is
  // tried with it, whatever problem was asked for.
  std::vector<Distribution> distributions = policy.distributions;
  const bool ends = std::any_of(distributions.begin(), distributions.end(), has_own_problem);
  if (ends && std::find(distributions.begin(), distributions.end(), Distribution::serving) ==
                  distributions.end())
    distributions.push_back(Distribution::serving);
  for (const NamedProblem& named : problems)
    for (const Distribution distribution : distributions)
      for (const Problem& problem : problems_of(distribution, named.problem))
        for (const std::uint64_t seed : seeds) {
          Case c;
          c.name = named.name;
          c.problem = problem;
          c.distribution = distribution;
          c.seed = seed;
          c.poison_unseen = policy.poison_unseen;
          c.lengths = named.lengths;
          cases.push_back(std::move(c));
        }
  return cases;
}

}  // namespace greenfast::workbench
