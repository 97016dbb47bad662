// Options::validate where the host cannot read the arrays: what is copied, from where, and that the
// answer is the host's own. The addresses here are no memory: who reads one without a copy crashes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "core/sequences.hpp"
#include "core/serving.hpp"

namespace greenfast {
namespace {

class FakeDevice {
 public:
  const std::int32_t* put(std::vector<std::int32_t> values) {
    const auto address = reinterpret_cast<const std::int32_t*>(0x1000 * (arrays_.size() + 1));
    arrays_[address] = std::move(values);
    return address;
  }
  std::vector<std::int32_t>& at(const std::int32_t* address) { return arrays_.at(address); }
  core::Fetch fetch() {
    return [this](const void* from, std::size_t bytes, void* to) -> Status {
      if (!fails.empty()) return {StatusCode::device_error, fails};
      const auto found = arrays_.find(static_cast<const std::int32_t*>(from));
      if (found == arrays_.end() || found->second.size() * 4 < bytes)
        return {StatusCode::internal, "copied what is not there"};
      std::memcpy(to, found->second.data(), bytes);
      ++copies;
      return {};
    };
  }
  std::string fails;
  int copies = 0;

 private:
  std::map<const std::int32_t*, std::vector<std::int32_t>> arrays_;
};

struct Paged {
  FakeDevice device;
  Problem p = make_problem(3, 4, 2, 3, 12, 16, DType::f16);
  Tensors t;
  Paged() {
    p.sequences = {.packed_q = true, .used_kv = true, .kv_start = true, .total_q = 5};
    p.pages = {.size = 4, .count = 5, .row_stride = 3};
    p.q = p.o = dense_layout(Order::bshd, 1, 4, 5, 16);
    p.k = p.v = dense_layout(Order::bhsd, 5, 2, 4, 16);
    t.cu_q = device.put({0, 2, 2, 5});
    t.used_kv = device.put({7, 0, 9});
    t.kv_start = device.put({1, 0, 0});
    // What stands behind a sequence's last page may be anything.
    t.page_table = device.put({2, 0, -1, -1, -1, -1, 4, 1, 3});
  }
  Status check() { return core::check_fetched_arrays(p, t, device.fetch()); }
};

TEST(FetchedArrays, AreCheckedAsTheHostsOwn) {
  Paged fine;
  ASSERT_TRUE(check(fine.p)) << check(fine.p).message();
  EXPECT_TRUE(fine.check()) << fine.check().message();
  EXPECT_EQ(fine.device.copies, 4);

  Paged page;
  page.device.at(page.t.page_table)[1] = 913;
  EXPECT_EQ(page.check().code(), StatusCode::invalid_argument);
  EXPECT_NE(page.check().message().find("page_table[0][1] is 913: the pool has 5 pages"),
            std::string::npos)
      << page.check().message();
  Paged falls;
  falls.device.at(falls.t.cu_q)[1] = 3;
  EXPECT_NE(falls.check().message().find("cu_q[2] is 2, less than cu_q[1]"), std::string::npos)
      << falls.check().message();
  Paged much;
  much.device.at(much.t.used_kv)[2] = 13;
  EXPECT_NE(much.check().message().find("sequence 2 has 13 rows by used_kv"), std::string::npos)
      << much.check().message();
}

TEST(FetchedArrays, AFailureToCopyIsTheAnswer) {
  Paged lost;
  lost.device.fails = "the device is lost";
  EXPECT_EQ(lost.check().code(), StatusCode::device_error);
  EXPECT_EQ(lost.check().message(), "the device is lost");
}

TEST(FetchedArrays, WhatIsNotNeededIsNotCopied) {
  Paged keyless;  // rows without a key: their lengths are read, the pages are not
  keyless.p.seq_kv = 0;
  keyless.device.at(keyless.t.used_kv) = {0, 0, 0};
  keyless.device.at(keyless.t.kv_start) = {0, 0, 0};
  keyless.t.page_table = nullptr;
  EXPECT_TRUE(keyless.check()) << keyless.check().message();
  EXPECT_EQ(keyless.device.copies, 3);
}

struct Appending {
  FakeDevice device;
  AppendProblem p;
  AppendTensors t;
  Appending() {
    p.batch = 2;
    p.heads_kv = 2;
    p.seq_new = 2;
    p.seq_kv = 12;
    p.head_dim = 16;
    p.dtype = DType::f16;
    p.packed = true;
    p.total_new = 3;
    p.pages = {.size = 4, .count = 6, .row_stride = 3};
    t.cu_new = device.put({0, 2, 3});
    t.used_kv = device.put({3, 6});
    t.page_table = device.put({3, 0, 5, 1, 4, 2});
  }
  Status check() { return core::check_fetched_append_arrays(p, t, device.fetch()); }
};

TEST(FetchedArrays, OfAnAppendToo) {
  Appending fine;
  EXPECT_TRUE(fine.check()) << fine.check().message();
  EXPECT_EQ(fine.device.copies, 3);
  Appending full;
  full.device.at(full.t.used_kv)[0] = 11;
  EXPECT_NE(full.check().message().find("sequence 0 would have 13 keys"), std::string::npos)
      << full.check().message();
  Appending shared;
  shared.device.at(shared.t.page_table)[4] = 0;
  EXPECT_NE(shared.check().message().find("page 0 of the cache would be written"),
            std::string::npos)
      << shared.check().message();
  Appending lost;
  lost.device.fails = "the device is lost";
  EXPECT_EQ(lost.check().code(), StatusCode::device_error);
}

}  // namespace
}  // namespace greenfast
