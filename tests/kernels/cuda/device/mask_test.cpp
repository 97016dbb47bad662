// The band that CUDA kernels see, against the definition of a mask (greenfast/types.hpp).
#include "kernels/cuda/device/mask.hpp"

#include <greenfast/arithmetic.hpp>
#include <greenfast/attention.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace greenfast {
namespace {

/// i + shift - left <= j <= i + shift + right, word for word.
bool sees(const Problem& problem, std::int64_t i, std::int64_t j) {
  const Mask& mask = problem.mask;
  const std::int64_t shift =
      mask.alignment == Alignment::bottom_right ? problem.seq_kv - problem.seq_q : 0;
  return (mask.left < 0 || j >= i + shift - mask.left) &&
         (mask.right < 0 || j <= i + shift + mask.right);
}

std::vector<Problem> problems() {
  std::mt19937 random(7);
  const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % n); };
  std::vector<Problem> out;
  for (int n = 0; n < 400; ++n) {
    Problem problem = make_problem(1, 1, 1, 1 + below(70), 1 + below(70), 64, DType::f16);
    problem.mask = {below(80) - 5, below(80) - 5,
                    n % 2 == 0 ? Alignment::top_left : Alignment::bottom_right};
    problem.mask.left = std::max<std::int64_t>(problem.mask.left, Mask::kUnbounded);
    problem.mask.right = std::max<std::int64_t>(problem.mask.right, Mask::kUnbounded);
    out.push_back(problem);
  }
  return out;
}

std::string name(const Problem& problem) { return to_string(problem); }

TEST(Band, HoldsTheKeysThatARowSees) {
  for (const Problem& problem : problems()) {
    SCOPED_TRACE(name(problem));
    const cuda::Band band = cuda::make_band(problem);
    for (int i = 0; i < problem.seq_q; ++i) {
      for (int j = 0; j < problem.seq_kv; ++j)
        ASSERT_EQ(j >= band.first(i) && j < band.end(i), sees(problem, i, j)) << i << ", " << j;
    }
  }
}

TEST(Band, BlocksCoverWhatTheirRowsSeeAndNoMoreAtTheEnds) {
  for (const Problem& problem : problems()) {
    SCOPED_TRACE(name(problem));
    const cuda::Band band = cuda::make_band(problem);
    constexpr int kKeys = 16, kRows = 24;
    for (int first = 0; first < problem.seq_q; first += kRows) {
      const int last = std::min<int>(first + kRows, static_cast<int>(problem.seq_q)) - 1;
      const cuda::BlockRange range = cuda::blocks_of(band, kKeys, first, last);
      const auto any = [&](int row, int block) {
        for (int j = block * kKeys; j < std::min<int>((block + 1) * kKeys, band.keys); ++j)
          if (sees(problem, row, j)) return true;
        return false;
      };
      const int blocks = ceil_div(band.keys, kKeys);
      for (int row = first; row <= last; ++row) {
        for (int block = 0; block < blocks; ++block) {
          if (any(row, block)) {
            ASSERT_TRUE(block >= range.begin && block < range.end)
                << row << ", " << block << " of [" << range.begin << ", " << range.end << ")";
          }
        }
      }
      // The first row begins the range and the last one ends it, where they see anything.
      if (band.first(first) < band.end(first)) {
        EXPECT_TRUE(any(first, range.begin));
      }
      if (band.first(last) < band.end(last)) {
        EXPECT_TRUE(any(last, range.end - 1));
      }
    }
  }
}

TEST(Band, TheKeysThatSomeRowSeesAreTheSameProblem) {
  for (const Problem& problem : problems()) {
    SCOPED_TRACE(name(problem));
    const cuda::VisibleKeys keys = cuda::visible_keys(problem);
    for (int i = 0; i < problem.seq_q; ++i) {
      for (int j = 0; j < problem.seq_kv; ++j) {
        const std::int64_t there = j - keys.first;
        const bool seen = there >= keys.band.first(i) && there < keys.band.end(i);
        ASSERT_EQ(seen, sees(problem, i, j)) << i << ", " << j;
      }
    }
  }
}

}  // namespace
}  // namespace greenfast
