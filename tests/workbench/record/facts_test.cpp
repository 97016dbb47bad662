// What every record says of the binary, the machine, the device and the code that ran.
#include "workbench/record/facts.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "workbench/base/json.hpp"

namespace greenfast::workbench::test {
namespace {

using nlohmann::json;

/// Keys that docs/schema demands at a place of a run's record.
std::vector<std::string> required(const char* part) {
  const auto schema = read_json(GREENFAST_SOURCE_DIR "/docs/schema/run.schema.json");
  EXPECT_TRUE(schema) << schema.status().message();
  return (*schema)["properties"][part]["required"].get<std::vector<std::string>>();
}

void expect_keys(const json& object, const char* part) {
  for (const std::string& key : required(part))
    EXPECT_TRUE(object.contains(key)) << part << "." << key;
  EXPECT_FALSE(required(part).empty());
}

TEST(Facts, HoldWhatTheSchemaDemands) {
  expect_keys(build_json(), "build");
  expect_keys(host_json(host_facts()), "host");
  expect_keys(device_json(*device_facts(DeviceKind::cpu)), "device");
}

TEST(Facts, WhatIsNotKnownIsNullAndNoEmptyText) {
  HostFacts host;
  host.cpu = "one";
  EXPECT_EQ(host_json(host)["governor"], json(nullptr));
  host.governor = "performance";
  EXPECT_EQ(host_json(host)["governor"], "performance");
  const json gpu = device_json(*model_facts("h200"));
  EXPECT_EQ(gpu["kind"], "cuda");
  EXPECT_EQ(gpu["arch"], 90);
  EXPECT_EQ(gpu["isa"], json(nullptr));
}

}  // namespace
}  // namespace greenfast::workbench::test
