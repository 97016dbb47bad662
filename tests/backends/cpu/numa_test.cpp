#include "backends/cpu/numa.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "backends/cpu/config.hpp"

namespace greenfast::cpu {
namespace {

using Cpus = std::vector<int>;

class Numa : public testing::Test {
 protected:
  Numa() : root_(testing::TempDir() + "greenfast_nodes_" + std::to_string(getpid())) {
    std::filesystem::create_directories(root_);
  }
  ~Numa() override { std::filesystem::remove_all(root_); }
  void online(const std::string& list) const { std::ofstream(root_ + "/online") << list << "\n"; }
  void node(int number, const std::string& cpus, const std::string& distance) const {
    std::string folder = root_ + "/node";
    folder += std::to_string(number);
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/cpulist") << cpus << "\n";
    std::ofstream(folder + "/distance") << distance << "\n";
  }
  const std::string root_;
};

TEST(CpuList, IsNumbersAndRanges) {
  EXPECT_EQ(parse_cpu_list("0-3,8,10-11"), (Cpus{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(parse_cpu_list("5"), Cpus{5});
  for (const char* bad : {"", "x", "1-", "-1", "1;2", "1-2-3", "99999999999", "1-5000"})
    EXPECT_TRUE(parse_cpu_list(bad).empty()) << bad;
}

TEST_F(Numa, KnowsTheProcessorsOfEachNodeThatAreOurs) {
  online("0-1");
  node(0, "0-3,8-11", "10 21");
  node(1, "4-7,12-15", "21 10");
  const auto nodes = numa_nodes(root_, {1, 2, 6, 12});
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[0].cpus, (Cpus{1, 2}));
  EXPECT_EQ(nodes[1].cpus, (Cpus{6, 12}));
  EXPECT_EQ(node_of(nodes, 12), 1u);
  EXPECT_EQ(node_of(nodes, 2), 0u);
  EXPECT_EQ(node_of(nodes, 99), 0u);
}

TEST_F(Numa, IsNothingWhereOneNodeHasThemAllOrTheSystemIsSilent) {
  EXPECT_TRUE(numa_nodes(root_, {0, 1}).empty());
  EXPECT_TRUE(numa_nodes("", {0, 1}).empty());
  online("0-1");
  node(0, "0-3", "10 21");
  node(1, "4-7", "21 10");
  EXPECT_TRUE(numa_nodes(root_, {0, 3}).empty());
  EXPECT_TRUE(numa_nodes(root_, {0, 4, 9}).empty());  // 9 is on neither
  node(1, "what", "21 10");
  EXPECT_TRUE(numa_nodes(root_, {0, 4}).empty());
}

TEST_F(Numa, TakesWholeNodesTheNearestFirst) {
  online("0,2-4");
  node(0, "0-1", "10 12 32 32");
  node(2, "2-3", "12 10 32 32");
  node(3, "", "32 32 10 12");  // memory alone
  node(4, "4-5", "32 32 12 10");
  const auto nodes = numa_nodes(root_, {0, 1, 2, 3, 4, 5});
  ASSERT_EQ(nodes.size(), 3u);
  EXPECT_EQ(nodes[2].distance, (Cpus{32, 32, 10}));
  EXPECT_EQ(cpus_near(nodes, 1, 1), (Cpus{2, 3}));
  EXPECT_EQ(cpus_near(nodes, 1, 3), (Cpus{2, 3, 0, 1}));
  EXPECT_EQ(cpus_near(nodes, 2, 2), (Cpus{4, 5}));
  EXPECT_EQ(cpus_near(nodes, 0, 99), (Cpus{0, 1, 2, 3, 4, 5}));
}

TEST_F(Numa, ReachesThePool) {
  const Cpus ours = allowed_cpus();
  if (ours.size() < 2) GTEST_SKIP() << "one processor";
  std::string rest;
  for (std::size_t i = 1; i < ours.size(); ++i) {
    if (i > 1) rest += ',';
    rest += std::to_string(ours[i]);
  }
  online("0-1");
  node(0, std::to_string(ours[0]), "10 21");
  node(1, rest, "21 10");
  EXPECT_EQ(pool_config({.nodes = root_})->nodes.size(), 2u);
  EXPECT_TRUE(pool_config({})->nodes.empty());
}

}  // namespace
}  // namespace greenfast::cpu
