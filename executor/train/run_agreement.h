// Ranks that are started apart may be told different things. Found before the first step.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "executor/process/process_group.h"

namespace zeroplan {

// What a rank is about to do, by name: {"program", "8c1f..."}, {"--steps", "100"}.
using RunFacts = std::vector<std::pair<std::string, std::string>>;

// Throws Error(kUsage) on every rank, naming the first rank and fact that differ from rank 0's;
// what runs (OwnBinary) is compared before `facts`. Rank 0 warns of clocks that differ
// (ClockWarning). REQUIRES: the same names in the same order everywhere, no line feed in a value.
void AgreeOnFacts(ProcessGroup& group, const RunFacts& facts);

// What this process runs: version, a hash of its program's file, and the version of NCCL ("none" in
// a build without). Two builds of one version may differ in the last bit of a result.
RunFacts OwnBinary();

// "" if the ranks' clocks, read at about the same time in ms since the epoch, are within a few
// seconds of each other; else a sentence that names the rank that is farthest off.
std::string ClockWarning(const std::vector<int64_t>& clocks_ms);

}  // namespace zeroplan
