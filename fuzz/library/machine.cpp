#include "fuzz/library/machine.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include <greenfast/arithmetic.hpp>

namespace greenfast::fuzz {
namespace {

constexpr std::size_t kRedzone = 4096;
// Scratch for the variants that want some; the ladder's instrumented rungs take the most.
constexpr std::size_t kWorkspace = std::size_t{1} << 20;

std::uint32_t unseen_word(DType type, Unseen unseen) {
  if (unseen == Unseen::nan || type == DType::e4m3) return 0xffffffffu;
  if (type == DType::f32) return 0x7f800000u;
  return type == DType::f16 ? 0x7c007c00u : 0xff80ff80u;
}

/// Hands out pieces of a region, each at a multiple of 256 bytes behind a red zone.
class Pieces {
 public:
  std::size_t take(std::size_t bytes) {
    const std::size_t at = used_ + kRedzone;
    used_ = round_up(at + bytes, std::size_t{256});
    return at;
  }
  std::size_t used() const { return used_ + kRedzone; }

 private:
  std::size_t used_ = 0;
};

}  // namespace

Result<std::unique_ptr<Machine>> Machine::open(DeviceKind device) {
  Result<DeviceFacts> facts = device_facts(device);
  if (!facts) return facts.status();
  std::unique_ptr<Worker> worker;
  std::string why;
  worker = device == DeviceKind::cuda ? open_cuda_worker(&why) : open_cpu_worker();
  if (worker == nullptr) return Status(StatusCode::no_device, why);
  return std::make_unique<Machine>(*facts, std::move(worker));
}

Status Machine::load(const Spec& spec, bool with_reference) {
  spec_ = spec;
  const Problem& p = spec.problem;
  view_ = view_of(spec);
  // The CPU's kernels weigh e4m3 in 16 bits.
  const bool cuda = facts_.kind == DeviceKind::cuda;
  view_.narrow = cuda && spec.problem.dtype == DType::e4m3;
  // CUDA kernels weigh with up to 2^16 where a row's largest score is not known yet; the CPU's sums
  // never exceed the result.
  view_.raised = cuda ? 65536.0 : 0.0;
  const auto in = size_of(p.dtype), out = size_of(p.out_dtype);
  const auto bytes_of = [&](int tensor, const Layout& layout, std::int64_t heads, std::int64_t seq,
                            std::size_t element) {
    return static_cast<std::size_t>(extent(layout, p.batch, heads, seq, p.head_dim) +
                                    spec.offset[static_cast<std::size_t>(tensor)]) *
           element;
  };
  const auto scales = [&](int tensor) {
    return static_cast<std::size_t>(std::max<std::int64_t>(scale_count(view_, tensor), 1)) * 4;
  };
  Pieces in_pieces, out_pieces;
  const std::size_t q = in_pieces.take(bytes_of(0, p.q, p.heads_q, p.seq_q, in));
  const std::size_t k = in_pieces.take(bytes_of(1, p.k, p.heads_kv, p.seq_kv, in));
  const std::size_t v = in_pieces.take(bytes_of(2, p.v, p.heads_kv, p.seq_kv, in));
  const std::size_t q_scale = in_pieces.take(scales(0));
  const std::size_t k_scale = in_pieces.take(scales(1));
  const std::size_t v_scale = in_pieces.take(scales(2));
  const std::size_t o = out_pieces.take(bytes_of(3, p.o, p.heads_q, p.seq_q, out));
  const auto rows = static_cast<std::size_t>(p.batch * p.heads_q * p.seq_q);
  const std::size_t lse = out_pieces.take(p.lse ? rows * 4 : 0);

  const double row_cost = std::max(1.0, static_cast<double>(p.seq_kv * p.head_dim));
  reference_ = {};
  if (with_reference)
    reference_.slots = std::min<std::int64_t>(
        {static_cast<std::int64_t>(rows),
         std::max<std::int64_t>(64, static_cast<std::int64_t>(worker_->budget() / row_cost)),
         (std::int64_t{1} << 24) / p.head_dim});
  const auto slots = static_cast<std::size_t>(reference_.slots);
  const auto dim = static_cast<std::size_t>(p.head_dim);
  const std::size_t reference_bytes = (slots * (2 * dim + 2) + 32) * sizeof(double);
  const std::size_t needed = in_pieces.used() + 2 * out_pieces.used() + reference_bytes +
                             kWorkspace + std::size_t{8} * 256;
  char* at = worker_->arena(needed);
  if (at == nullptr)
    return {StatusCode::out_of_memory, "the problem's tensors do not fit the fuzzer's arena"};

  inputs_begin_ = at;
  inputs_bytes_ = in_pieces.used() / 256 * 256 + 256;
  const auto input = [&](std::size_t piece, int tensor) {
    return static_cast<void*>(
        at + piece +
        (tensor < 0
             ? 0
             : static_cast<std::size_t>(spec.offset[static_cast<std::size_t>(tensor)]) * in));
  };
  inputs_ = {input(q, 0),
             input(k, 1),
             input(v, 2),
             static_cast<float*>(input(q_scale, -1)),
             static_cast<float*>(input(k_scale, -1)),
             static_cast<float*>(input(v_scale, -1))};
  at += inputs_bytes_;
  const std::size_t region = out_pieces.used() / 256 * 256 + 256;
  for (Outputs* outputs : {&outputs_, &others_}) {
    outputs->begin = at;
    outputs->bytes = region;
    outputs->o = at + o + static_cast<std::size_t>(spec.offset[3]) * out;
    outputs->lse = reinterpret_cast<float*>(at + lse);
    at += region;
  }
  workspace_ = at;
  at += kWorkspace;
  reference_.o = reinterpret_cast<double*>(at);
  reference_.limit = reference_.o + slots * dim;
  reference_.lse = reference_.limit + slots * dim;
  reference_.lse_limit = reference_.lse + slots;

  view_.q = inputs_.q;
  view_.k = inputs_.k;
  view_.v = inputs_.v;
  view_.q_scale = inputs_.q_scale;
  view_.k_scale = inputs_.k_scale;
  view_.v_scale = inputs_.v_scale;
  worker_->fill(inputs_begin_, inputs_bytes_, unseen_word(p.dtype, spec.unseen));
  worker_->fill(outputs_.begin, 2 * region, kUnwritten);
  worker_->write_inputs(view_, inputs_);
  worker_->digest(inputs_begin_, inputs_bytes_);
  if (slots > 0) worker_->refer(view_, reference_);
  Results results;
  if (Status status = worker_->collect(&results); !status) return status;
  digest_ = results.digest;
  return {};
}

Options Machine::options_for(const std::string& variant) const {
  Options options;
  options.device = facts_.kind;
  options.stream = worker_->stream();
  options.variant = variant;
  options.batch_invariant = spec_.batch_invariant;
  return options;
}

// The entries [first, first + count), with the alignment that their addresses have.
Problem Machine::problem_of(Part part) const {
  Problem problem = spec_.problem;
  problem.batch = part.count;
  const auto lower = [&](Layout& layout, const void* data, std::size_t element) {
    const auto address = reinterpret_cast<std::uintptr_t>(data) +
                         static_cast<std::uintptr_t>(part.first * layout.stride[0]) * element;
    const std::uintptr_t bit = address & (~address + 1);
    layout.alignment = static_cast<std::int32_t>(std::min<std::uintptr_t>(bit, 256));
  };
  lower(problem.q, inputs_.q, size_of(problem.dtype));
  lower(problem.k, inputs_.k, size_of(problem.dtype));
  lower(problem.v, inputs_.v, size_of(problem.dtype));
  lower(problem.o, outputs_.o, size_of(problem.out_dtype));
  return problem;
}

Status Machine::call(Part part, const Outputs& outputs, const Options& options) {
  const Problem problem = problem_of(part);
  const auto moved = [&](void* data, const Layout& layout, std::size_t element) {
    return static_cast<char*>(data) +
           static_cast<std::size_t>(part.first * layout.stride[0]) * element;
  };
  const std::size_t in = size_of(problem.dtype);
  const auto scales = [&](const float* data, int tensor) -> const float* {
    if (problem.scales == ScaleKind::none) return nullptr;
    if (problem.scales == ScaleKind::tensor) return data;
    return data + part.first * scales_an_entry(view_, tensor);
  };
  Tensors tensors;
  tensors.q = moved(inputs_.q, problem.q, in);
  tensors.k = moved(inputs_.k, problem.k, in);
  tensors.v = moved(inputs_.v, problem.v, in);
  tensors.o = moved(outputs.o, problem.o, size_of(problem.out_dtype));
  if (problem.lse) tensors.lse = outputs.lse + part.first * problem.heads_q * problem.seq_q;
  tensors.q_scale = scales(inputs_.q_scale, 0);
  tensors.k_scale = scales(inputs_.k_scale, 1);
  tensors.v_scale = scales(inputs_.v_scale, 2);
  return attend(problem, tensors, options);
}

// False where the variant does not take the problem.
bool Machine::find_workspace(const Problem& problem, Options& options, Finding& finding) {
  const Result<Plan> planned = plan(problem, facts_, options);
  if (!planned) {
    finding.kind = planned.status().code() == StatusCode::unsupported ? "refused" : "status";
    finding.detail = planned.status().message();
    return false;
  }
  const auto bytes = static_cast<std::size_t>(planned->workspace_bytes);
  if (bytes > kWorkspace) {
    finding.kind = "refused";
    finding.detail = "wants more workspace than the fuzzer has";
    return false;
  }
  if (bytes > 0) {
    worker_->fill(workspace_, bytes, kUnwritten);
    options.workspace = workspace_;
    options.workspace_bytes = kWorkspace;
  }
  return true;
}

Finding Machine::check(const std::string& variant) {
  Finding finding;
  Options options = options_for(variant);
  const Part all{0, spec_.problem.batch};
  if (!find_workspace(problem_of(all), options, finding)) return finding;
  if (const Status status = call(all, outputs_, options); !status) {
    finding.kind = status.code() == StatusCode::unsupported ? "refused" : "status";
    finding.detail = status.message();
    return finding;
  }
  if (reference_.slots > 0) worker_->compare(view_, reference_, outputs_);
  worker_->sweep(view_, outputs_);
  worker_->digest(inputs_begin_, inputs_bytes_);
  Results results;
  const auto failed = [&](const Status& status) {
    finding.kind = "device";
    finding.detail = status.message();
    return finding;
  };
  if (const Status status = worker_->collect(&results); !status) return failed(status);
  const auto ratio = [](unsigned long long packed) {
    return float_of(static_cast<std::uint32_t>(packed >> 32));
  };
  finding.worst_o = ratio(results.worst_o);
  finding.worst_lse = ratio(results.worst_lse);
  if (results.stray > 0 || results.digest != digest_) {
    finding.kind = results.stray > 0 ? "stray" : "inputs";
    finding.detail = results.stray > 0
                         ? std::to_string(results.stray) + " words beside the output were written"
                         : "the inputs were changed";
    return finding;
  }
  if (results.unwritten > 0) {
    finding.kind = "unwritten";
    finding.detail = std::to_string(results.unwritten) + " elements were not written";
    return finding;
  }
  if (finding.worst_o <= 1.0f && finding.worst_lse <= 1.0f) return finding;

  // What stands there: the call once more, because the outputs have been made unwritten.
  const bool in_o = finding.worst_o > 1.0f;
  const auto index =
      static_cast<std::int64_t>((in_o ? results.worst_o : results.worst_lse) & 0xffffffffu);
  const Problem& p = spec_.problem;
  const std::int64_t slot = in_o ? index / p.head_dim : index;
  const std::int64_t row = row_of_slot(slot, reference_.slots, p.batch * p.heads_q * p.seq_q);
  finding.at = {row / p.seq_q / p.heads_q, row / p.seq_q % p.heads_q, row % p.seq_q,
                in_o ? index % p.head_dim : 0};
  if (const Status status = call(all, outputs_, options); !status) return failed(status);
  if (in_o) {
    const std::int64_t at = finding.at[0] * p.o.stride[0] + finding.at[1] * p.o.stride[1] +
                            finding.at[2] * p.o.stride[2] + finding.at[3];
    const std::size_t bytes = size_of(p.out_dtype);
    std::uint32_t code = 0;
    worker_->read(static_cast<char*>(outputs_.o) + static_cast<std::size_t>(at) * bytes, bytes,
                  &code);
    finding.got = static_cast<double>(decode(p.out_dtype, code));
    worker_->read(reference_.o + index, sizeof(double), &finding.expected);
    worker_->read(reference_.limit + index, sizeof(double), &finding.limit);
  } else {
    float got = 0;
    worker_->read(outputs_.lse + row, sizeof got, &got);
    finding.got = static_cast<double>(got);
    worker_->read(reference_.lse + index, sizeof(double), &finding.expected);
    worker_->read(reference_.lse_limit + index, sizeof(double), &finding.limit);
  }
  worker_->sweep(view_, outputs_);
  if (const Status status = worker_->collect(&results); !status) return failed(status);
  finding.kind = finding.limit == kNan        ? "not NaN"
                 : std::isfinite(finding.got) ? (in_o ? "o" : "lse")
                                              : "not finite";
  finding.detail = in_o ? "an element of O" : "a log-sum-exp";
  return finding;
}

void Machine::rearrange(Arrangement order) {
  view_.arranged = order;
  worker_->write_inputs(view_, inputs_);
}

Finding Machine::check_batch_invariance(const std::string& variant, bool asked) {
  Finding finding;
  Options options = options_for(variant);
  options.batch_invariant = asked;
  const std::int64_t batch = spec_.problem.batch;
  const Part all{0, batch};
  if (!find_workspace(problem_of(all), options, finding)) return finding;
  const auto wrong = [&](const char* kind, std::string detail) {
    finding.kind = kind;
    finding.detail = std::move(detail);
    return finding;
  };
  const auto outline = [&](Part part) {
    const Result<Plan> planned = plan(problem_of(part), facts_, options);
    if (!planned) return planned.status().message();
    return planned->variant + " " + planned->kernel + " tile " + std::to_string(planned->tile_q) +
           "x" + std::to_string(planned->tile_kv) + " splits " + std::to_string(planned->splits);
  };
  if (const Status status = call(all, outputs_, options); !status)
    return wrong(status.code() == StatusCode::unsupported ? "refused" : "status", status.message());
  const std::string whole = outline(all);
  worker_->fill(others_.begin, others_.bytes, kUnwritten);
  const auto pick = [&](std::uint64_t n, std::int64_t below) {
    return static_cast<std::int64_t>(mixed(spec_.values.seed + n) %
                                     static_cast<std::uint64_t>(below));
  };
  const auto compared = [&](Part part) -> Finding {
    std::string where = "entries [" + std::to_string(part.first) + ", " +
                        std::to_string(part.first + part.count) + ") of " + std::to_string(batch);
    if (view_.arranged.first != 0 || view_.arranged.step != 1)
      where += " in the order (" + std::to_string(view_.arranged.first) + " + " +
               std::to_string(view_.arranged.step) + " i) mod " + std::to_string(batch);
    Results results;
    const std::string alone = outline(part);
    if (alone != whole) {
      if (const Status status = worker_->collect(&results); !status)
        return wrong("device", where + ": " + status.message());
      return wrong("plan", where + ": " + alone + "; all: " + whole);
    }
    if (const Status status = call(part, others_, options); !status)
      return wrong("status", where + ": " + status.message());
    worker_->same_bits(view_, outputs_, others_, part.first, part.count);
    if (const Status status = worker_->collect(&results); !status)
      return wrong("device", where + ": " + status.message());
    if (results.differing > 0) {
      finding.at[0] = entry_at(view_, part.first);
      return wrong("bits", where + ": " + std::to_string(results.differing) +
                               " elements have other bits than in the whole batch");
    }
    return {};
  };
  if (batch == 0) return finding;
  const auto some = [&](std::uint64_t n) -> Part {
    const std::int64_t first = pick(n, batch);
    return {first, 1 + pick(n + 1, batch - first)};
  };
  for (const Part part : {Part{0, 1}, Part{batch - 1, 1}, Part{pick(1, batch), 1}, some(2)})
    if (const Finding found = compared(part); found.wrong()) return found;
  if (batch == 1) return finding;

  // Other neighbours for every entry: backwards, or by a step that meets each once.
  std::int64_t step = batch - 1;
  if (pick(4, 2) == 0)
    for (step = 1 + pick(5, batch - 1); std::gcd(step, batch) != 1;) --step;
  rearrange({pick(6, batch), step});
  for (const Part part : {all, some(7)})
    if (finding = compared(part); finding.wrong()) break;
  rearrange({});
  return finding;
}

}  // namespace greenfast::fuzz
