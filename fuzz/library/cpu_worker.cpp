// The loops on the host, one thread: workers of several threads run beside each other.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "fuzz/library/worker.hpp"

namespace greenfast::fuzz {
namespace {

class CpuWorker final : public Worker {
 public:
  ~CpuWorker() override { std::free(arena_); }

  double budget() const override { return 1e7; }

  char* arena(std::size_t bytes) override {
    if (bytes > bytes_) {
      std::free(arena_);
      bytes_ = (bytes + 4095) / 4096 * 4096;
      arena_ = static_cast<char*>(std::aligned_alloc(4096, bytes_));
      if (arena_ == nullptr) bytes_ = 0;
    }
    return arena_;
  }

  void fill(void* to, std::size_t bytes, std::uint32_t word) override {
    auto* words = static_cast<std::uint32_t*>(to);
    for (std::size_t i = 0; i < bytes / 4; ++i) words[i] = word;
  }

  void write_inputs(const View& view, const Inputs& to) override {
    const auto write = [&](Which which, void* data, std::int64_t heads, std::int64_t rows,
                           const std::int64_t* stride, auto skip) {
      for (std::int64_t b = 0; b < (stride[0] == 0 ? 1 : view.batch); ++b)
        for (std::int64_t h = 0; h < (stride[1] == 0 ? 1 : heads); ++h)
          for (std::int64_t s = 0; s < rows; ++s) {
            if (skip(s)) continue;
            for (std::int64_t d = 0; d < view.head_dim; ++d)
              store_code(view.in, data,
                         b * stride[0] + h * stride[1] + s * stride[2] + d * stride[3],
                         encode(view.in, element_at(view, which, stride[0], b, h, s, d)));
          }
    };
    write(Which::q, to.q, view.heads_q, view.seq_q, view.q_stride,
          [&](std::int64_t row) { return first_key(view, row) >= end_key(view, row); });
    const auto unseen = [&](std::int64_t key) { return !some_row_sees(view, key); };
    write(Which::k, to.k, view.heads_kv, view.seq_kv, view.k_stride, unseen);
    write(Which::v, to.v, view.heads_kv, view.seq_kv, view.v_stride, unseen);
    float* const scales[] = {to.q_scale, to.k_scale, to.v_scale};
    for (int tensor = 0; tensor < 3; ++tensor)
      for (std::int64_t i = 0; i < scale_count(view, tensor); ++i)
        scales[tensor][i] = scale_at(view, tensor, i);
  }

  void refer(const View& view, const Reference& to) override {
    const std::int64_t rows = view.batch * view.heads_q * view.seq_q;
    for (std::int64_t slot = 0; slot < to.slots; ++slot) {
      const std::int64_t row = row_of_slot(slot, to.slots, rows);
      refer_row(view, row, to.o + slot * view.head_dim, to.limit + slot * view.head_dim,
                to.lse[slot], to.lse_limit[slot]);
    }
  }

  void compare(const View& view, const Reference& with, const Outputs& got) override {
    const std::int64_t rows = view.batch * view.heads_q * view.seq_q;
    const double from = infinite_from(view);
    for (std::int64_t slot = 0; slot < with.slots; ++slot) {
      const std::int64_t row = row_of_slot(slot, with.slots, rows);
      const std::int64_t i = row % view.seq_q, h = row / view.seq_q % view.heads_q,
                         b = row / view.seq_q / view.heads_q;
      const bool may_be_nan = tainted(view, b, h);
      const std::int64_t at = b * view.o_stride[0] + h * view.o_stride[1] + i * view.o_stride[2];
      for (std::int64_t d = 0; d < view.head_dim; ++d) {
        const std::int64_t n = slot * view.head_dim + d;
        worse(results_.worst_o,
              off_by(static_cast<double>(load(view.out, got.o, at + d)), with.o[n], with.limit[n],
                     may_be_nan, from),
              n);
      }
      if (view.has_lse)
        worse(results_.worst_lse,
              off_by(static_cast<double>(got.lse[row]), with.lse[slot], with.lse_limit[slot],
                     may_be_nan, static_cast<double>(float_of(0x7f800000u))),
              slot);
    }
  }

  void sweep(const View& view, const Outputs& outputs) override {
    const auto visit = [this](DType type, void* data, std::int64_t at) {
      const std::uint32_t poison = type == DType::f32 ? kUnwritten : kUnwritten & 0xffffu;
      if (load_code(type, data, at) == poison) ++results_.unwritten;
      store_code(type, data, at, poison);
    };
    for (std::int64_t b = 0; b < view.batch; ++b)
      for (std::int64_t h = 0; h < view.heads_q; ++h)
        for (std::int64_t i = 0; i < view.seq_q; ++i)
          for (std::int64_t d = 0; d < view.head_dim; ++d)
            visit(view.out, outputs.o,
                  b * view.o_stride[0] + h * view.o_stride[1] + i * view.o_stride[2] + d);
    if (view.has_lse)
      for (std::int64_t row = 0; row < view.batch * view.heads_q * view.seq_q; ++row)
        visit(DType::f32, outputs.lse, row);
    auto* words = static_cast<std::uint32_t*>(outputs.begin);
    for (std::size_t i = 0; i < outputs.bytes / 4; ++i) {
      if (words[i] != kUnwritten) ++results_.stray;
      words[i] = kUnwritten;
    }
  }

  void digest(const void* data, std::size_t bytes) override {
    const auto* words = static_cast<const std::uint32_t*>(data);
    unsigned long long sum = 0;
    for (std::size_t i = 0; i < bytes / 4; ++i) sum += digest_of(words[i], i);
    results_.digest += sum;
  }

  void same_bits(const View& view, const Outputs& in_order, const Outputs& arranged,
                 std::int64_t first, std::int64_t count) override {
    for (std::int64_t row = first * view.heads_q * view.seq_q;
         row < (first + count) * view.heads_q * view.seq_q; ++row) {
      const std::int64_t i = row % view.seq_q, h = row / view.seq_q % view.heads_q,
                         place = row / view.seq_q / view.heads_q, entry = entry_at(view, place);
      const std::int64_t inside = h * view.o_stride[1] + i * view.o_stride[2];
      for (std::int64_t d = 0; d < view.head_dim; ++d)
        results_.differing +=
            load_code(view.out, in_order.o, entry * view.o_stride[0] + inside + d) !=
            load_code(view.out, arranged.o, place * view.o_stride[0] + inside + d);
      if (view.has_lse)
        results_.differing +=
            load_code(DType::f32, in_order.lse, (entry * view.heads_q + h) * view.seq_q + i) !=
            load_code(DType::f32, arranged.lse, row);
    }
  }

  void read(const void* from, std::size_t bytes, void* to) override {
    std::memcpy(to, from, bytes);
  }

  Status collect(Results* results) override {
    *results = results_;
    results_ = {};
    return {};
  }

 private:
  static void worse(unsigned long long& worst, float ratio, std::int64_t at) {
    const unsigned long long packed =
        static_cast<unsigned long long>(bits_of(ratio)) << 32 | static_cast<std::uint32_t>(at);
    if (packed > worst) worst = packed;
  }

  void refer_row(const View& view, std::int64_t row, double* o, double* limit, double& lse,
                 double& lse_bound) {
    const std::int64_t i = row % view.seq_q, h = row / view.seq_q % view.heads_q,
                       b = row / view.seq_q / view.heads_q;
    const std::int64_t kv = h / (view.heads_q / view.heads_kv);
    const auto dim = static_cast<std::size_t>(view.head_dim);
    const std::int64_t begin = first_key(view, i), end = end_key(view, i);
    const double q_factor = view.scale * descale(view, 0, b, h, i);
    const double infinity = static_cast<double>(float_of(0x7f800000u));
    const auto whole_row = [&](double value, double bound, double lse_value) {
      for (std::size_t d = 0; d < dim; ++d) {
        o[d] = value;
        limit[d] = bound;
      }
      lse = lse_value;
      lse_bound = bound;
    };
    q_.resize(dim);
    const std::int64_t q_at = b * view.q_stride[0] + h * view.q_stride[1] + i * view.q_stride[2];
    if (begin < end)
      for (std::size_t d = 0; d < dim; ++d)
        q_[d] = load(view.in, view.q, q_at + static_cast<std::int64_t>(d));
    scores_.clear();
    double top = -infinity, top_moved = -infinity;
    bool nan = false, anything = false;
    line_.resize(dim);
    for (std::int64_t j = begin; j < end; ++j) {
      const std::int64_t at = b * view.k_stride[0] + kv * view.k_stride[1] + j * view.k_stride[2];
      for (std::size_t d = 0; d < dim; ++d)
        line_[d] = load(view.in, view.k, at + static_cast<std::int64_t>(d));
      double dot = 0.0;
      float magnitude = 0.0f;
      for (std::size_t d = 0; d < dim; ++d) {
        dot += static_cast<double>(q_[d]) * static_cast<double>(line_[d]);
        magnitude += std::fabs(q_[d] * line_[d]);
      }
      const Score s = score_of(view, dot, magnitude, q_factor * descale(view, 1, b, kv, j));
      nan = nan || std::isnan(s.value);
      anything = anything || s.slack < 0.0 || s.value == infinity;
      if (s.value > top) top = s.value;
      if (s.value + s.slack > top_moved) top_moved = s.value + s.slack;
      scores_.push_back(s);
    }
    if (anything) return whole_row(0.0, kAnything, 0.0);
    if (nan) return whole_row(0.0, kNan, 0.0);
    if (top == -infinity) return whole_row(0.0, 0.0, -infinity);
    double sum = 0.0, sum_moved = 0.0;
    for (const Score& s : scores_) {
      sum += std::exp(s.value - top);
      sum_moved += std::exp(s.value + s.slack - top_moved);
    }
    // Apart from `top`, in which it vanishes where scores are large: two equal ones of 1e25 would
    // then weigh 1 each.
    const double log_sum = std::log(sum);
    lse = top + log_sum;
    const double shift = std::max(0.0, top_moved + std::log(sum_moved) - lse);
    const double keys = static_cast<double>(end - begin), top_weight = 1.0 / sum;
    const double least = weight_quantum(view) * top_weight;
    sums_.assign(dim, {keys, top_weight, 0.0, 0.0, 0.0, 0.0});
    double squares = 0.0;
    const auto values_of = [&](std::int64_t j) {
      const std::int64_t at = b * view.v_stride[0] + kv * view.v_stride[1] + j * view.v_stride[2];
      for (std::size_t d = 0; d < dim; ++d)
        line_[d] = load(view.in, view.v, at + static_cast<std::int64_t>(d) * view.v_stride[3]);
    };
    for (std::int64_t j = begin; j < end; ++j) {
      const double p = std::exp(scores_[static_cast<std::size_t>(j - begin)].value - top) / sum;
      squares += p * p;
      values_of(j);
      const double v_factor = descale(view, 2, b, kv, j);
      for (std::size_t d = 0; d < dim; ++d) {
        const double value = static_cast<double>(line_[d]) * v_factor;
        sums_[d].o += p * value;
        sums_[d].magnitude += p * std::fabs(value);
        sums_[d].least += lost(view.in, p, least, value);
      }
    }
    for (std::int64_t j = begin; j < end; ++j) {
      const Score& s = scores_[static_cast<std::size_t>(j - begin)];
      const double weight = std::exp(s.value - top) / sum;
      const double moved = moved_by(s.value - top - log_sum, weight, s.slack + shift);
      if (moved == 0.0) continue;
      values_of(j);
      const double v_factor = descale(view, 2, b, kv, j);
      for (std::size_t d = 0; d < dim; ++d)
        sums_[d].moved += moved * std::fabs(static_cast<double>(line_[d]) * v_factor - sums_[d].o);
    }
    for (std::size_t d = 0; d < dim; ++d) {
      o[d] = sums_[d].o;
      limit[d] = limit_of(view, sums_[d]);
    }
    lse_bound = lse_limit(view, keys, lse, top, shift, squares, 0.0);
  }

  char* arena_ = nullptr;
  std::size_t bytes_ = 0;
  Results results_;
  std::vector<float> q_, line_;
  std::vector<Score> scores_;
  std::vector<Sums> sums_;
};

}  // namespace

std::unique_ptr<Worker> open_cpu_worker() { return std::make_unique<CpuWorker>(); }

}  // namespace greenfast::fuzz
