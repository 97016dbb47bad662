// append on the CPU: new tokens into a cache. Any CPU; no variant, it is called by name.
//
// Idea    One token after the other, from wherever it lies to wherever its key goes, a page of a
//         pool or a row; K is turned on the way (rotary embedding), and so is Q.
// Takes   every problem that check_append() accepts.
// Limits  none.
// Budget  nothing beside the tensors.
// Bound   memory: each new token is read once and written once.
#include <cstring>

#include "core/executor.hpp"
#include "core/serving.hpp"
#include "kernels/cpu/device/convert.hpp"
#include "kernels/cpu/device/float_mode.hpp"

namespace greenfast::kernels {
namespace {

struct Append {
  const AppendProblem& p;
  const AppendTensors& t;
};

// Elements of every type that is turned have a widen and a narrow; e4m3 is copied alone.
template <class T>
void turn(const Append& append, std::int64_t position, const T* from, T* to) {
  const AppendProblem& p = append.p;
  const std::int64_t half = p.rotary_dim / 2;
  const float* const cos = append.t.cos + position * half;
  const float* const sin = append.t.sin + position * half;
  const bool interleaved = p.rotary == Rotary::interleaved;
  for (std::int64_t n = 0; n < half; ++n) {
    const std::int64_t first = interleaved ? 2 * n : n, second = interleaved ? 2 * n + 1 : n + half;
    const float x = widen(from[first]), y = widen(from[second]);
    narrow(x * cos[n] - y * sin[n], to[first]);
    narrow(y * cos[n] + x * sin[n], to[second]);
  }
  if (from == to) return;
  for (std::int64_t d = p.rotary_dim; d < p.head_dim; ++d) to[d] = from[d];
}

void turn_row(const Append& append, std::int64_t position, const void* data, std::int64_t from,
              void* out, std::int64_t to) {
  const auto run = [&](auto type) {
    using T = decltype(type);
    turn(append, position, static_cast<const T*>(data) + from, static_cast<T*>(out) + to);
  };
  if (append.p.dtype == DType::f16) {
    run(F16{});
  } else if (append.p.dtype == DType::bf16) {
    run(Bf16{});
  } else {
    run(0.0f);
  }
}

void copy_row(DType dtype, std::int64_t dim, const void* data, std::int64_t from, void* out,
              std::int64_t to) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  std::memcpy(static_cast<char*>(out) + to * size, static_cast<const char*>(data) + from * size,
              static_cast<std::size_t>(dim * size));
}

// One token of one sequence; tasks count to seq_new for each.
void append_token(void* context, std::int64_t task, int /*worker*/) {
  const Append& append = *static_cast<const Append*>(context);
  const auto& [p, t] = append;
  const std::int64_t b = task / p.seq_new, n = task % p.seq_new;
  const core::Appended a = core::appended(p, t, b);
  if (n >= a.count) return;
  const DefaultFloatMode mode;
  const std::int64_t key = a.first + n, position = a.position + n;
  std::int64_t image = p.kv_index ? t.kv_index[b] : b, row = key;
  if (p.pages.used()) {
    image = t.page_table[b * p.pages.row_stride + key / p.pages.size];
    row = key % p.pages.size;
  }
  const auto from = [&](const Layout& layout, std::int64_t h) {
    return a.new_batch * layout.stride[0] + h * layout.stride[1] +
           (a.new_row + n) * layout.stride[2];
  };
  const auto to = [&](const Layout& layout, std::int64_t h) {
    return image * layout.stride[0] + h * layout.stride[1] + row * layout.stride[2];
  };
  for (std::int64_t h = 0; h < p.heads_kv; ++h) {
    if (p.rotary == Rotary::none) {
      copy_row(p.dtype, p.head_dim, t.k_new, from(p.k_new, h), t.k, to(p.k, h));
    } else {
      turn_row(append, position, t.k_new, from(p.k_new, h), t.k, to(p.k, h));
    }
    copy_row(p.dtype, core::value_dim(p), t.v_new, from(p.v_new, h), t.v, to(p.v, h));
  }
  for (std::int64_t h = 0; h < p.heads_q; ++h)
    turn_row(append, position, t.q, from(p.q, h), t.q_out, from(p.q_out, h));
}

}  // namespace

Status cpu_append(const AppendProblem& problem, const AppendTensors& tensors,
                  const core::Context& context) {
  Append append{problem, tensors};
  context.executor->run(problem.batch * problem.seq_new, append_token, &append);
  return {};
}

}  // namespace greenfast::kernels
