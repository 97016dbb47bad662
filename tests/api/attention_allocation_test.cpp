// A call allocates nothing once the first has passed, and answers missing memory with a Status.
#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <vector>

#include <greenfast/attention.hpp>

namespace {
std::atomic<std::int64_t> allocations{0};
thread_local bool refuse_memory = false;  // makes operator new of this thread fail

void* allocate(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (refuse_memory) return nullptr;
  return std::aligned_alloc(alignment, (bytes / alignment + 1) * alignment);
}
void* allocate_or_throw(std::size_t bytes, std::size_t alignment = alignof(std::max_align_t)) {
  void* memory = allocate(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
}  // namespace

// Every form, because a sanitizer's own would not match ours.
using Align = std::align_val_t;
using NoThrow = std::nothrow_t;
void* operator new(std::size_t n) { return allocate_or_throw(n); }
void* operator new[](std::size_t n) { return allocate_or_throw(n); }
void* operator new(std::size_t n, Align a) { return allocate_or_throw(n, std::size_t(a)); }
void* operator new[](std::size_t n, Align a) { return allocate_or_throw(n, std::size_t(a)); }
void* operator new(std::size_t n, const NoThrow&) noexcept { return allocate(n); }
void* operator new[](std::size_t n, const NoThrow&) noexcept { return allocate(n); }
void* operator new(std::size_t n, Align a, const NoThrow&) noexcept {
  return allocate(n, std::size_t(a));
}
void* operator new[](std::size_t n, Align a, const NoThrow&) noexcept {
  return allocate(n, std::size_t(a));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, Align) noexcept { std::free(memory); }
void operator delete[](void* memory, Align) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, Align) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, Align) noexcept { std::free(memory); }
void operator delete(void* memory, const NoThrow&) noexcept { std::free(memory); }
void operator delete[](void* memory, const NoThrow&) noexcept { std::free(memory); }
void operator delete(void* memory, Align, const NoThrow&) noexcept { std::free(memory); }
void operator delete[](void* memory, Align, const NoThrow&) noexcept { std::free(memory); }

namespace greenfast {
namespace {

struct Data {
  explicit Data(const Problem& p)
      : q(static_cast<std::size_t>(p.batch * p.heads_q * p.seq_q * p.head_dim), 0.5f),
        k(static_cast<std::size_t>(p.batch * p.heads_kv * p.seq_kv * p.head_dim), 0.25f),
        v(k.size(), 2.0f),
        o(q.size()),
        lse(static_cast<std::size_t>(p.batch * p.heads_q * p.seq_q)) {}
  Tensors tensors() {
    return {.q = q.data(), .k = k.data(), .v = v.data(), .o = o.data(), .lse = lse.data()};
  }
  std::vector<float> q, k, v, o, lse;
};

TEST(Allocation, SteadyCallsAllocateNothing) {
  Problem p = make_problem(2, 4, 2, 70, 130, 64, DType::f32);
  p.mask = Mask::causal(Alignment::bottom_right);
  p.lse = true;
  Data data(p);
  const Tensors tensors = data.tensors();
  for (const VariantInfo& info : variants()) {
    if (info.device != DeviceKind::cpu) continue;
    const Options options{.variant = info.id};
    ASSERT_TRUE(prepare(p, options));
    ASSERT_TRUE(attention(p, tensors, options));
    const std::int64_t before = allocations.load();
    bool ok = true;
    for (int call = 0; call < 10; ++call) ok = ok && attention(p, tensors, options).ok();
    EXPECT_EQ(allocations.load(), before) << info.id;
    EXPECT_TRUE(ok);
  }
  const std::int64_t before = allocations.load();
  const bool automatic = attention(p, tensors).ok();
  EXPECT_EQ(allocations.load(), before);
  EXPECT_TRUE(automatic);
}

TEST(Allocation, MissingMemoryIsAStatus) {
  Problem p = make_problem(1, 2, 1, 4, 4, 8, DType::f32);
  Data data(p);
  ASSERT_TRUE(attention(p, data.tensors()));  // whatever a first call allocates
  p.heads_q = 3;
  p.heads_kv = 2;  // a refusal has to compose its message
  refuse_memory = true;
  const Status status = attention(p, data.tensors());
  const Result<Plan> planned = plan(p, DeviceFacts{});
  refuse_memory = false;
  EXPECT_EQ(status.code(), StatusCode::out_of_memory);
  EXPECT_EQ(status.message(), "out of memory");
  EXPECT_EQ(planned.status().code(), StatusCode::out_of_memory);
}

}  // namespace
}  // namespace greenfast
