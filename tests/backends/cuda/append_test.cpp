// The GPU's append: where it puts new tokens, which needs no GPU, is where the CPU does, and nowhere
// else whatever the arrays hold; on a GPU it writes the CPU's bits.
#include "backends/cuda/append.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "tests/backends/cuda/both.hpp"

namespace greenfast::cuda {
namespace {

using test::Both;
using test::Dice;

struct Call {
  AppendProblem p;
  AppendTensors t;
  std::vector<std::int32_t> cu_new, used_new, used_kv, kv_start, kv_index, page_table;

  explicit Call(std::mt19937& engine) {
    const auto upto = [&](std::int64_t most) {
      return std::uniform_int_distribution<std::int64_t>(0, most)(engine);
    };
    const auto narrow = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
    p.batch = 1 + upto(6);
    p.seq_new = 1 + upto(9);
    p.seq_kv = p.seq_new + upto(30);
    p.packed = upto(1) == 1;
    p.used_new = upto(1) == 1;
    p.kv_start = upto(1) == 1;
    if (upto(1) == 1) {
      p.rotary = Rotary::neox;
      p.positions = p.seq_kv;
    }
    if (upto(2) == 0) {
      p.pages.size = 1 + upto(8);
      p.pages.row_stride = (p.seq_kv + p.pages.size - 1) / p.pages.size + upto(2);
      p.pages.count = p.batch * p.pages.row_stride + upto(3);
    } else if (upto(1) == 1) {
      p.kv_index = true;
      p.kv_rows = p.batch + upto(4);
    }
    std::int64_t row = upto(2);
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const std::int64_t length = upto(3) == 0 ? 0 : upto(p.seq_new);
      cu_new.push_back(narrow(row));
      row += length;
      used_new.push_back(narrow(upto(p.packed ? length : p.seq_new)));
      used_kv.push_back(narrow(upto(p.seq_kv - p.seq_new)));
      kv_start.push_back(narrow(upto(used_kv.back())));
      kv_index.push_back(narrow(p.kv_rows > 0 ? p.kv_rows - 1 - b : b));
    }
    cu_new.push_back(narrow(row));
    p.total_new = row + upto(2);
    for (std::int64_t i = 0; i < p.batch * p.pages.row_stride; ++i)
      page_table.push_back(narrow(p.pages.count - 1 - i));
    point();
  }
  void point() {
    t.cu_new = cu_new.data();
    t.used_new = used_new.data();
    t.used_kv = used_kv.data();
    t.kv_start = kv_start.data();
    t.kv_index = kv_index.data();
    t.page_table = page_table.data();
  }
};

using Place = std::tuple<std::int64_t, std::int64_t, std::int64_t>;  // image, row, position
using Places = std::map<std::pair<std::int64_t, std::int64_t>, Place>;

Places of_gpu(const Call& call) {
  Places places;
  for (std::int64_t token = 0; token < new_tokens(call.p); ++token) {
    NewToken at;
    if (find_token(call.p, call.t, token, at))
      places[{at.new_batch, at.new_row}] = {at.image, at.row, at.position};
  }
  return places;
}

TEST(CudaAppend, PutsTokensWhereTheCpuDoes) {
  std::mt19937 engine(1);
  for (int n = 0; n < 3000; ++n) {
    SCOPED_TRACE(n);
    const Call call(engine);
    const AppendProblem& p = call.p;
    Places wanted;
    for (std::int64_t b = 0; b < p.batch; ++b) {
      const core::Appended a = core::appended(p, call.t, b);
      for (std::int64_t i = 0; i < a.count; ++i) {
        const std::int64_t key = a.first + i;
        Place place{p.kv_index ? call.kv_index[static_cast<std::size_t>(b)] : b, key,
                    a.position + i};
        if (p.pages.used())
          place = {call.page_table[static_cast<std::size_t>(b * p.pages.row_stride +
                                                            key / p.pages.size)],
                   key % p.pages.size, a.position + i};
        wanted[{a.new_batch, a.new_row + i}] = place;
      }
    }
    ASSERT_EQ(of_gpu(call), wanted);
  }
}

TEST(CudaAppend, WritesNothingOutsideTheCacheWhateverTheArraysHold) {
  std::mt19937 engine(2);
  for (int n = 0; n < 5000; ++n) {
    SCOPED_TRACE(n);
    Call call(engine);
    for (auto* array : {&call.cu_new, &call.used_new, &call.used_kv, &call.kv_start, &call.kv_index,
                        &call.page_table}) {
      for (std::int32_t& x : *array) {
        const auto kind = engine() % 4;
        if (kind == 0) x = static_cast<std::int32_t>(engine() % 64) - 32;
        if (kind == 1)
          x = engine() % 2 == 0 ? std::numeric_limits<std::int32_t>::max()
                                : std::numeric_limits<std::int32_t>::min();
      }
    }
    const AppendProblem& p = call.p;
    for (const auto& [from, to] : of_gpu(call)) {
      const auto& [image, row, position] = to;
      const std::int64_t images = p.pages.used() ? p.pages.count : p.kv_index ? p.kv_rows : p.batch;
      ASSERT_TRUE(image >= 0 && image < images);
      ASSERT_TRUE(row >= 0 && row < (p.pages.used() ? p.pages.size : p.seq_kv));
      ASSERT_TRUE(p.rotary == Rotary::none || (position >= 0 && position < p.positions));
      ASSERT_TRUE(from.second >= 0 && from.second < (p.packed ? p.total_new : p.seq_new));
    }
  }
}

class AppendOn : public test::OnDevices {};
INSTANTIATE_TEST_SUITE_P(Devices, AppendOn, ::testing::Values(DeviceKind::cpu, DeviceKind::cuda),
                         test::device_name);

TEST_P(AppendOn, WritesTheBitsOfTheCpu) {
  std::mt19937 engine(3);
  Dice dice(engine);
  for (int n = 0; n < 4 * GREENFAST_TEST_PERCENT; ++n) {
    SCOPED_TRACE(n);
    Call call(engine);
    AppendProblem& p = call.p;
    if (!p.packed) p.total_new = 0;
    p.dtype = dice.one_of({DType::f32, DType::f16, DType::bf16, DType::e4m3});
    p.heads_kv = 1 + dice.upto(2);
    p.head_dim = 8 * (1 + dice.upto(31));
    p.head_dim_v = dice.coin() ? 0 : 8 * (1 + dice.upto(31));
    if (p.dtype == DType::e4m3) p.rotary = Rotary::none;
    if (p.rotary != Rotary::none) {
      p.rotary = dice.coin() ? Rotary::neox : Rotary::interleaved;
      p.rotary_dim = dice.coin() ? p.head_dim : 2 * (1 + dice.upto(p.head_dim / 2 - 1));
      p.heads_q = dice.upto(4);
    }
    // Half of the calls are what rows of 16-byte parts can be, the others are anything.
    const bool whole = dice.coin();
    const std::int64_t padding = whole ? 16 * dice.upto(1) : dice.upto(9);
    const std::size_t skew = whole ? 0 : size_of(p.dtype) * static_cast<std::size_t>(dice.upto(3));
    const auto new_shape = [&](std::int64_t heads, std::int64_t dim) {
      return std::array{p.packed ? 1 : p.batch, heads, p.packed ? p.total_new : p.seq_new, dim};
    };
    const auto cache_shape = [&](std::int64_t dim) {
      if (p.pages.used()) return std::array{p.pages.count, p.heads_kv, p.pages.size, dim};
      return std::array{p.kv_index ? p.kv_rows : p.batch, p.heads_kv, p.seq_kv, dim};
    };
    const auto tensor = [&](Layout& layout, const std::array<std::int64_t, 4>& shape) {
      layout = dice.layout(shape, padding);
      return dice.numbers(p.dtype, test::extent(layout, shape));
    };
    const std::int64_t dim_v = core::value_dim(p);
    Both k_new(*device, tensor(p.k_new, new_shape(p.heads_kv, p.head_dim)), skew);
    Both v_new(*device, tensor(p.v_new, new_shape(p.heads_kv, dim_v)), skew);
    Both k(*device, tensor(p.k, cache_shape(p.head_dim)), skew);
    Both v(*device, tensor(p.v, cache_shape(dim_v)), skew);
    Both q(*device, tensor(p.q, new_shape(p.heads_q, p.head_dim)), skew);
    Both q_out(*device, tensor(p.q_out, new_shape(p.heads_q, p.head_dim)), skew);
    const bool in_place = dice.coin();
    if (in_place) p.q_out = p.q;
    const std::int64_t angles = p.positions * p.rotary_dim / 2;
    Both cos(*device, dice.numbers(DType::f32, angles)),
        sin(*device, dice.numbers(DType::f32, angles));
    Both cu_new(*device, call.cu_new), used_new(*device, call.used_new),
        used_kv(*device, call.used_kv), kv_start(*device, call.kv_start),
        kv_index(*device, call.kv_index), page_table(*device, call.page_table);
    const auto tensors = [&](bool on_device) {
      AppendTensors t;
      t.k_new = k_new.at(on_device);
      t.v_new = v_new.at(on_device);
      t.k = k.at(on_device);
      t.v = v.at(on_device);
      if (p.heads_q > 0) {
        t.q = q.at(on_device);
        t.q_out = (in_place ? q : q_out).at(on_device);
      }
      t.cu_new = cu_new.at<std::int32_t>(on_device);
      t.used_new = used_new.at<std::int32_t>(on_device);
      t.used_kv = used_kv.at<std::int32_t>(on_device);
      t.kv_start = kv_start.at<std::int32_t>(on_device);
      t.kv_index = kv_index.at<std::int32_t>(on_device);
      t.page_table = page_table.at<std::int32_t>(on_device);
      t.cos = cos.at<float>(on_device);
      t.sin = sin.at<float>(on_device);
      return t;
    };
    const Status status = append(p, tensors(true), there);
    if (status.code() == StatusCode::unsupported) GTEST_SKIP() << status.message();
    ASSERT_TRUE(status) << status.message();
    const Status by_cpu = append(p, tensors(false), here);
    ASSERT_TRUE(by_cpu) << by_cpu.message();
    ASSERT_TRUE(device->synchronize());
    for (Both* part : {&k_new, &v_new, &k, &v, &q, &q_out}) ASSERT_EQ(part->back(), part->host());
  }
}

}  // namespace
}  // namespace greenfast::cuda
