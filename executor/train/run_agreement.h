// Ranks that are started apart may be told different things. Found before the first step.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "executor/process/process_group.h"

namespace zeroplan {

// What a rank is about to do, by name: {"program", "8c1f..."}, {"--steps", "100"}.
using RunFacts = std::vector<std::pair<std::string, std::string>>;

// Throws Error(kUsage) on every rank, naming the first rank and fact that differ from rank 0's.
// REQUIRES: the same names in the same order everywhere, no line feed in a value.
void AgreeOnFacts(ProcessGroup& group, const RunFacts& facts);

}  // namespace zeroplan
