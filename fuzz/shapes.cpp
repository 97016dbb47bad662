// parse_shapes on arbitrary text: it refuses in words, or every problem passes the library's check
// and its printed shape parses to the same shape.
#include <cstdint>
#include <string>
#include <string_view>

#include "fuzz/expect.hpp"
#include "workbench/cases/workload.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace greenfast;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const workbench::ProblemDefaults defaults;
  const auto shapes = workbench::parse_shapes(text, defaults);
  if (!shapes.ok()) {
    GREENFAST_EXPECT(!shapes.status().message().empty());
    return 0;
  }
  GREENFAST_EXPECT(!shapes->empty());
  for (const auto& [name, problem, lengths] : *shapes) {
    GREENFAST_EXPECT(check(problem).ok());
    const std::string printed = to_string(problem);
    const auto again = workbench::parse_shapes(printed.substr(0, printed.find(' ')), defaults);
    GREENFAST_EXPECT(again.ok() && again->size() == 1);
    const Problem& same = again->front().problem;
    GREENFAST_EXPECT(same.batch == problem.batch && same.heads_q == problem.heads_q &&
                     same.heads_kv == problem.heads_kv && same.seq_q == problem.seq_q &&
                     same.seq_kv == problem.seq_kv && same.head_dim == problem.head_dim);
  }
  return 0;
}
