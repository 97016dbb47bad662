#include "backends/cpu/numa.hpp"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "backends/cpu/small_file.hpp"
#include "core/text.hpp"

namespace greenfast::cpu {
namespace {

constexpr int kMost = 4096;  // processors, and nodes: more than any Linux is built for

}  // namespace

std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto number = [&](int& value) {
    const auto [stop, error] = std::from_chars(at, end, value);
    at = stop;
    return error == std::errc{} && value >= 0 && value < kMost;
  };
  while (at != end) {
    int first = 0;
    if (!number(first)) return {};
    int last = first;
    if (at != end && *at == '-' && (++at, !number(last))) return {};
    for (int each = first; each <= last; ++each) numbers.push_back(each);
    if (at != end && *at++ != ',') return {};
  }
  return numbers;
}

std::vector<NumaNode> numa_nodes(const std::string& root, const std::vector<int>& cpus) {
  std::vector<NumaNode> nodes;
  if (root.empty()) return nodes;
  const std::vector<int> online = parse_cpu_list(first_line(root + "/online"));
  std::vector<std::size_t> kept;  // places in `online`, which is how distances are listed
  std::size_t placed = 0;
  for (std::size_t i = 0; i < online.size(); ++i) {
    const std::string folder = core::concat(root, "/node", online[i]);
    NumaNode node;
    for (const int cpu : parse_cpu_list(first_line(folder + "/cpulist"))) {
      if (std::find(cpus.begin(), cpus.end(), cpu) != cpus.end()) node.cpus.push_back(cpu);
    }
    if (node.cpus.empty()) continue;  // memory alone, or processors that are not ours
    const std::string distances = first_line(folder + "/distance");
    for (const char *at = distances.data(), *end = at + distances.size(); at != end;) {
      int each = 0;
      const auto [stop, error] = std::from_chars(at, end, each);
      if (error != std::errc{}) break;
      node.distance.push_back(each);
      at = std::find_if(stop, end, [](char c) { return c != ' '; });
    }
    placed += node.cpus.size();
    nodes.push_back(std::move(node));
    kept.push_back(i);
  }
  if (nodes.size() < 2 || placed != cpus.size()) return {};
  for (NumaNode& node : nodes) {
    std::vector<int> among;
    for (const std::size_t i : kept)
      among.push_back(i < node.distance.size() ? node.distance[i] : 20);
    node.distance = std::move(among);
  }
  return nodes;
}

std::size_t node_of(const std::vector<NumaNode>& nodes, int cpu) noexcept {
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const std::vector<int>& cpus = nodes[i].cpus;
    if (std::find(cpus.begin(), cpus.end(), cpu) != cpus.end()) return i;
  }
  return 0;
}

std::vector<int> cpus_near(const std::vector<NumaNode>& nodes, std::size_t home, int threads) {
  std::vector<std::size_t> order(nodes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto away = [&](std::size_t node) {
    return node == home ? -1 : nodes[home].distance[node];
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return away(a) < away(b); });
  std::vector<int> cpus;
  for (const std::size_t node : order) {
    cpus.insert(cpus.end(), nodes[node].cpus.begin(), nodes[node].cpus.end());
    if (static_cast<int>(cpus.size()) >= threads) break;
  }
  return cpus;
}

}  // namespace greenfast::cpu
