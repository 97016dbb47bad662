// Nodes of memory, and the processors near them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace greenfast::cpu {

/// A node of memory with processors that this process may use.
struct NumaNode {
  std::vector<int> cpus;
  std::vector<int> distance;  // to each node of the list it stands in; 10 is to itself
};

/// "0-3,8" as numbers; empty where it is no such list.
std::vector<int> parse_cpu_list(const std::string& text);
/// The nodes below `root` (/sys/devices/system/node) that have some of these processors. Empty
/// where there is one node, where the system tells none, or where a processor belongs to none.
std::vector<NumaNode> numa_nodes(const std::string& root, const std::vector<int>& cpus);
/// The node that has this processor; 0 where none has.
std::size_t node_of(const std::vector<NumaNode>& nodes, int cpu) noexcept;
/// The processors of node `home` and, until they are as many as `threads`, of whole nodes more, the
/// nearest first.
std::vector<int> cpus_near(const std::vector<NumaNode>& nodes, std::size_t home, int threads);

}  // namespace greenfast::cpu
