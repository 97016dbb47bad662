// GREENFAST_VARIANT, which CTest sets to EXPECTED_FORCED's value: what it forces and what overrides
// it. One process for each value, because the library reads it once.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include <greenfast/attention.hpp>

namespace greenfast {
namespace {

TEST(Environment, ForcesTheVariantUnlessTheCallNamesOne) {
  const std::string forced = std::getenv("GREENFAST_VARIANT");
  const Problem p = make_problem(1, 1, 1, 4, 4, 64, DType::f16);
  const DeviceFacts facts = *model_facts("cpu");
  const Selection selection = explain(p, facts);
  EXPECT_TRUE(selection.forced);
  const Result<Plan> planned = plan(p, facts);
  if (std::string(std::getenv("EXPECTED")) == "accepted") {
    EXPECT_EQ(selection.chosen, forced);
    ASSERT_TRUE(planned);
    EXPECT_EQ(planned->variant, forced);
  } else {
    EXPECT_EQ(selection.chosen, "");
    EXPECT_EQ(planned.status().code(), StatusCode::invalid_argument);
    EXPECT_NE(planned.status().message().find("'" + forced + "' does not exist"),
              std::string::npos);
  }
  EXPECT_EQ(plan(p, facts, {.variant = "cpu.naive"})->variant, "cpu.naive");
}

}  // namespace
}  // namespace greenfast
