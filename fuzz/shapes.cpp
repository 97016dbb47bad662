// parse_shapes on arbitrary text: it refuses in words, or every problem passes the library's check
// and what it is printed as is read again as the same problem.
#include <cstdint>
#include <string_view>

#include "fuzz/expect.hpp"
#include "workbench/cases/problem_codec.hpp"
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
    const auto again = workbench::problem_of_text(to_string(problem));
    GREENFAST_EXPECT(again.ok() && *again == problem);
  }
  return 0;
}
