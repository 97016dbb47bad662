// What the device reads off a call's arrays is what the CPU's kernels read, and lies inside the
// tensors whatever the arrays hold.
#include "kernels/cuda/device/sequences.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "core/sequences.hpp"
#include "kernels/cpu/device/band.hpp"

namespace greenfast {
namespace {

class Numbers {
 public:
  explicit Numbers(unsigned seed) : engine_(seed) {}
  std::int64_t upto(std::int64_t most) {
    return std::uniform_int_distribution<std::int64_t>(0, most)(engine_);
  }
  bool coin() { return upto(1) == 1; }

 private:
  std::mt19937 engine_;
};

struct Call {
  Problem problem;
  Tensors tensors;
  std::vector<std::int32_t> cu_q, cu_kv, used_q, used_kv, kv_start, kv_index, table;

  cuda::SequenceArrays arrays() const {
    const auto narrow = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
    const Sequences& s = problem.sequences;
    cuda::SequenceArrays a;
    if (s.packed_q) a.cu_q = cu_q.data();
    if (s.packed_kv) a.cu_kv = cu_kv.data();
    if (s.used_q) a.used_q = used_q.data();
    if (s.used_kv) a.used_kv = used_kv.data();
    if (s.kv_start) a.kv_start = kv_start.data();
    if (s.kv_index) a.kv_index = kv_index.data();
    if (problem.pages.used()) a.page_table = table.data();
    a.page_row = problem.pages.row_stride;
    a.page_size = narrow(std::max<std::int64_t>(problem.pages.size, 1));
    a.pages = narrow(problem.pages.count);
    a.seq_q = narrow(problem.seq_q);
    a.seq_kv = narrow(problem.seq_kv);
    a.total_q = narrow(s.total_q);
    a.total_kv = narrow(s.total_kv);
    a.kv_rows = narrow(s.kv_rows);
    a.left = narrow(problem.mask.left);
    a.right = narrow(problem.mask.right);
    a.bottom_right = problem.mask.alignment == Alignment::bottom_right;
    a.chunk = narrow(problem.chunk);
    return a;
  }
};

Call draw(Numbers& numbers) {
  Call call;
  Problem& p = call.problem;
  p.batch = 1 + numbers.upto(4);
  p.seq_q = 1 + numbers.upto(20);
  p.seq_kv = 1 + numbers.upto(40);
  p.mask.left = numbers.coin() ? -1 : numbers.upto(50);
  p.mask.right = numbers.coin() ? -1 : numbers.upto(50);
  p.mask.alignment = numbers.coin() ? Alignment::bottom_right : Alignment::top_left;
  p.chunk = numbers.coin() ? 0 : 1 + numbers.upto(50);
  Sequences& s = p.sequences;
  s.packed_q = numbers.coin();
  const std::int64_t where = numbers.upto(3);  // of the keys
  s.packed_kv = where == 1;
  s.kv_index = where == 2;
  s.kv_rows = 1 + numbers.upto(6);
  if (where == 3) p.pages = {1 + numbers.upto(9), 5, 41};
  s.used_q = !s.packed_q && numbers.coin();
  s.used_kv = !s.packed_kv && numbers.coin();
  s.kv_start = numbers.coin();
  const auto narrow = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
  std::int32_t rows = narrow(numbers.upto(3)), keys = narrow(numbers.upto(3));
  call.cu_q.push_back(rows);
  call.cu_kv.push_back(keys);
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const auto length = narrow(numbers.upto(p.seq_kv));
    call.cu_q.push_back(rows += narrow(numbers.upto(p.seq_q)));
    call.cu_kv.push_back(keys += length);
    call.used_q.push_back(narrow(numbers.upto(p.seq_q)));
    call.used_kv.push_back(length);
    const bool full = !s.packed_kv && !s.used_kv;
    call.kv_start.push_back(narrow(numbers.upto(full ? p.seq_kv : length)));
    call.kv_index.push_back(narrow(numbers.upto(s.kv_rows - 1)));
  }
  call.table.assign(static_cast<std::size_t>(p.batch * 41), 2);
  s.total_q = rows + numbers.upto(2);
  s.total_kv = keys + numbers.upto(2);
  Tensors& t = call.tensors;
  t.cu_q = call.cu_q.data();
  t.cu_kv = call.cu_kv.data();
  t.used_q = call.used_q.data();
  t.used_kv = call.used_kv.data();
  t.kv_start = call.kv_start.data();
  t.kv_index = call.kv_index.data();
  t.page_table = call.table.data();
  return call;
}

TEST(DeviceSequences, AreThoseOfTheCpu) {
  Numbers numbers(1);
  for (int n = 0; n < 20000; ++n) {
    const Call call = draw(numbers);
    const Problem& p = call.problem;
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const core::Sequence wanted = core::sequence_of(p, call.tensors, b);
      const cuda::Sequence got = cuda::sequence_of(call.arrays(), static_cast<std::int32_t>(b));
      ASSERT_EQ(got.seq_q, wanted.seq_q) << n;
      ASSERT_EQ(got.seen.keys, wanted.seq_kv) << n;
      ASSERT_EQ(got.q_batch, wanted.q_batch) << n;
      ASSERT_EQ(got.q_row, wanted.q_row) << n;
      ASSERT_EQ(got.kv_batch, wanted.kv_batch) << n;
      ASSERT_EQ(got.kv_row, wanted.kv_row) << n;
      ASSERT_EQ(got.pages == nullptr ? -1 : got.pages - call.table.data(),
                wanted.pages == nullptr ? -1 : wanted.pages - call.table.data())
          << n;
      const std::int64_t shift =
          p.mask.alignment == Alignment::bottom_right ? wanted.seq_kv - wanted.seq_q : 0;
      const kernels::Band band = kernels::make_band(p.mask.left, p.mask.right, shift, wanted.seq_q,
                                                    wanted.seq_kv, wanted.kv_start, p.chunk);
      std::int32_t first = std::numeric_limits<std::int32_t>::min(), end = first;
      for (std::int32_t query = 0; query < got.seq_q; ++query) {
        const kernels::Interval seen = kernels::keys_of(band, query);
        if (seen.begin == seen.end) {
          ASSERT_LE(got.seen.end(query), got.seen.first(query)) << n << ' ' << query;
        } else {
          ASSERT_EQ(got.seen.first(query), seen.begin) << n << ' ' << query;
          ASSERT_EQ(got.seen.end(query), seen.end) << n << ' ' << query;
        }
        ASSERT_GE(got.seen.first(query), first) << "the ends of a tile speak for it";
        ASSERT_GE(got.seen.end(query), end) << "the ends of a tile speak for it";
        first = got.seen.first(query);
        end = got.seen.end(query);
      }
    }
  }
}

TEST(DeviceSequences, StayInsideWhateverTheArraysHold) {
  Numbers numbers(2);
  constexpr std::int64_t kAnything = std::numeric_limits<std::int32_t>::max();
  for (int n = 0; n < 20000; ++n) {
    Call call = draw(numbers);
    for (auto* array :
         {&call.cu_q, &call.cu_kv, &call.used_q, &call.used_kv, &call.kv_start, &call.kv_index}) {
      for (std::int32_t& x : *array) {
        if (numbers.coin()) continue;
        x = static_cast<std::int32_t>(numbers.upto(numbers.coin() ? 60 : kAnything));
        if (numbers.coin()) x = -x;
      }
    }
    const Problem& p = call.problem;
    const Sequences& s = p.sequences;
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const cuda::Sequence got = cuda::sequence_of(call.arrays(), static_cast<std::int32_t>(b));
      ASSERT_GE(got.seq_q, 0);
      ASSERT_LE(got.seq_q, p.seq_q);
      ASSERT_GE(got.seen.keys, 0);
      ASSERT_LE(got.seen.keys, p.seq_kv);
      ASSERT_GE(got.q_row, 0);
      ASSERT_GE(got.kv_row, 0);
      if (s.packed_q) {
        ASSERT_LE(got.q_row + got.seq_q, s.total_q) << n;
      }
      if (s.packed_kv) {
        ASSERT_LE(got.kv_row + got.seen.keys, s.total_kv) << n;
      }
      if (s.kv_index) {
        ASSERT_GE(got.kv_batch, 0);
        ASSERT_LT(got.kv_batch, s.kv_rows);
      }
      for (std::int32_t query = 0; query < got.seq_q; ++query) {
        ASSERT_GE(got.seen.first(query), 0);
        ASSERT_LE(got.seen.end(query), got.seen.keys);
      }
    }
  }
}

}  // namespace
}  // namespace greenfast
