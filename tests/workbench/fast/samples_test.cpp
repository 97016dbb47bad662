// The schema greenfast.samples/1: what is written is read back, and what is not of it is refused by
// its place.
#include "workbench/fast/samples.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/workbench/fast/simulated_timer.hpp"

namespace greenfast::workbench::test {
namespace {

using nlohmann::json;

std::vector<Samples> recorded() {
  SimulatedMachine machine({}, 1, 100);
  Samples samples = machine.paired(1.2, 5, 1, 4);
  samples.name = "mission";
  samples.problem = "1x8x512x64 fp32";
  samples.flops = 5.4e8;
  samples.device = DeviceKind::cuda;
  samples.cache = CacheState::hot;
  samples.metric = CallMetric::after_pause;
  samples.sides[1].variant = "cuda.sm90.prefill";
  samples.sides[1].errors = {{"rel_fro", 2.5e-7}};
  samples.sides[1].output_sha256 = "ab12";
  samples.blocks[2].dropped = "slow";
  samples.blocks[2].process = 2;
  samples.blocks[3].pulse = 1e12;
  samples.blocks[3].other_work = 0.25;
  samples.blocks[3].telemetry.sm_mhz = 1980;
  samples.blocks[3].telemetry.throttle_reasons = {"power"};
  return {samples};
}

TEST(SamplesFile, RoundTrips) {
  const json written = to_json(recorded());
  const auto read = samples_from_json(json::parse(written.dump()));
  ASSERT_TRUE(read) << read.status().message();
  EXPECT_EQ(to_json(*read), written);
  EXPECT_EQ((*read)[0].blocks[3].telemetry.throttle_reasons[0], "power");
}

TEST(SamplesFile, AnOldRecordNamesAKernelInTheHarnessOwnMember) {
  json record = to_json(recorded());
  json& shape = record["shapes"][0];
  shape["sides"][1].erase("variant");
  EXPECT_EQ((*samples_from_json(record))[0].sides[1].variant, "");
  shape["ab"] = {{"engines", {{shape["sides"][1]["id"], {{"variant", "cuda.sm90.small"}}}}}};
  EXPECT_EQ((*samples_from_json(record))[0].sides[1].variant, "cuda.sm90.small");
  EXPECT_EQ((*samples_from_json(record))[0].sides[0].variant, "");
  for (const json& other : {json(), json("text"), json{{"engines", 3}}}) {
    shape["ab"] = other;
    EXPECT_EQ((*samples_from_json(record))[0].sides[1].variant, "") << other;
  }
  shape["metric"] = "now and then";
  EXPECT_NE(samples_from_json(record).status().message().find("/metric"), std::string::npos);
}

/// The same behind a neighbour that took 5 us alone.
json behind_a_neighbour() {
  std::vector<Samples> shapes = recorded();
  shapes[0].way = "elementwise:hot";
  shapes[0].neighbour = "elementwise: x += 1";
  for (Block& block : shapes[0].blocks)
    for (Sample& sample : block.samples) sample.neighbour_alone = 5e-6;
  return to_json(shapes);
}

TEST(SamplesFile, BothReadingsOfADifferenceAreKept) {
  const json written = behind_a_neighbour();
  const json& block = written["shapes"][0]["blocks"][0];
  EXPECT_DOUBLE_EQ(block["with_neighbour"][1].get<double>(),
                   block["seconds"][1].get<double>() + 5e-6);
  const auto read = samples_from_json(json::parse(written.dump()));
  ASSERT_TRUE(read) << read.status().message();
  EXPECT_EQ(to_json(*read), written);
  EXPECT_EQ((*read)[0].neighbour, "elementwise: x += 1");
}

TEST(SamplesFile, ATimeThatIsNotItsDifferenceIsRefused) {
  const auto refusal = [](const char* pointer, const json& value) {
    json document = behind_a_neighbour();
    document[json::json_pointer(pointer)] = value;
    const auto read = samples_from_json(document);
    return read ? std::string() : read.status().message();
  };
  EXPECT_NE(refusal("/shapes/0/blocks/1/seconds/0", 1e-6).find("less the neighbours alone"),
            std::string::npos);
  EXPECT_NE(refusal("/shapes/0/blocks/1/neighbour_alone/0", 0).find("above 0"), std::string::npos);
  EXPECT_NE(refusal("/shapes/0/blocks/1/neighbour_alone", json::array()).find("expected as many"),
            std::string::npos);
  json unnamed = behind_a_neighbour();
  unnamed["shapes"][0].erase("neighbour");
  const auto read = samples_from_json(unnamed);
  ASSERT_FALSE(read);
  EXPECT_NE(read.status().message().find("says of no neighbour"), std::string::npos);
}

TEST(SamplesFile, RefusalsNameThePlace) {
  struct Wrong {
    const char* pointer;
    json value;
    const char* place;
    const char* words;
  };
  const Wrong wrongs[] = {
      {"/schema", "greenfast.samples/9", "/schema", "this version reads \"greenfast.samples/1\""},
      {"/shapes", 3, "/shapes", "expected a list"},
      {"/shapes/0/name", 3, "/shapes/0/name", "expected a string"},
      {"/shapes/0/device/kind", "tpu", "/shapes/0/device/kind", "expected \"cpu\" or \"cuda\""},
      {"/shapes/0/tick_seconds", 0, "/shapes/0/tick_seconds", "above 0"},
      {"/shapes/0/cache", "warm", "/shapes/0/cache", "expected \"cold\" or \"hot\""},
      {"/shapes/0/blocks/3/other_work", 1.5, "/shapes/0/blocks/3/other_work", "share from 0 to 1"},
      {"/shapes/0/sides", json::array(), "/shapes/0/sides", "at least one side"},
      {"/shapes/0/sides/1/id", "baseline", "/shapes/0/sides/1/id", "twice"},
      {"/shapes/0/sides/0/batch", 0, "/shapes/0/sides/0/batch", "from 1 to"},
      {"/shapes/0/sides/0/batch", 1e3, "/shapes/0/sides/0/batch", "expected an integer"},
      {"/shapes/0/sides/0/errors", 7, "/shapes/0/sides/0/errors", "object of numbers"},
      {"/shapes/0/blocks/1/order/0", 2, "/shapes/0/blocks/1/order/0", "from 0 to 1"},
      {"/shapes/0/blocks/1/order", json::array({0}), "/shapes/0/blocks/1", "1 entries, seconds 4"},
      {"/shapes/0/blocks/1/seconds/2", -1.0, "/shapes/0/blocks/1/seconds/2", "above 0"},
      {"/shapes/0/blocks/1/seconds/2", "fast", "/shapes/0/blocks/1/seconds/2", "expected a number"},
      {"/shapes/0/blocks/4/process", 18446744073709551615u, "/shapes/0/blocks/4/process",
       "at most"},
  };
  for (const Wrong& wrong : wrongs) {
    json document = to_json(recorded());
    document[json::json_pointer(wrong.pointer)] = wrong.value;
    const auto read = samples_from_json(document);
    ASSERT_FALSE(read) << wrong.pointer;
    EXPECT_EQ(read.status().code(), StatusCode::invalid_argument);
    EXPECT_EQ(read.status().message().rfind(std::string(wrong.place) + ":", 0), 0u)
        << read.status().message();
    EXPECT_NE(read.status().message().find(wrong.words), std::string::npos)
        << read.status().message();
  }
  for (const char* key :
       {"name", "problem", "device", "timer", "tick_seconds", "cache", "sides", "blocks"}) {
    json document = to_json(recorded());
    document["shapes"][0].erase(key);
    const auto read = samples_from_json(document);
    ASSERT_FALSE(read) << key;
    EXPECT_EQ(read.status().message(), std::string("/shapes/0/") + key + ": missing");
  }
  EXPECT_FALSE(samples_from_json(json(3)));
}

TEST(SamplesFile, ATruncatedOrMissingFileIsRefusedByName) {
  const std::string text = to_json(recorded()).dump();
  {
    std::ofstream file("truncated.json");
    file << text.substr(0, text.size() / 2);
  }
  const auto truncated = read_samples("truncated.json");
  ASSERT_FALSE(truncated);
  EXPECT_EQ(truncated.status().code(), StatusCode::invalid_argument);
  EXPECT_NE(truncated.status().message().find("truncated.json: not valid JSON"), std::string::npos);
  const auto missing = read_samples("no/such/file.json");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.status().code(), StatusCode::internal);
  const auto folder = read_samples(".");
  ASSERT_FALSE(folder);
  EXPECT_NE(folder.status().message().find("is a directory"), std::string::npos);
}

}  // namespace
}  // namespace greenfast::workbench::test
