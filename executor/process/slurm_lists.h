// The two list notations of Slurm's environment.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace zeroplan {

// "gpu[07-09,12]-ib,login" -> "gpu07-ib". "" if the list is empty or malformed.
std::string FirstSlurmHost(std::string_view node_list);

// How many tasks a node has: of "4(x2),1" nodes 0, 1 and 2 have 4, 4 and 1. Nothing if malformed or
// too short.
std::optional<int> SlurmTasksOfNode(std::string_view tasks_per_node, int node);

}  // namespace zeroplan
