// The search for one answer among a judge's candidates.
#pragma once

#include <array>
#include <cstdint>

#include "planner/search/judge.h"

namespace zeroplan {

// What is explored together: choices that differ in shares, segments, numbers of layers, buckets
// and batch.
using HuntKind = std::array<int, 12>;
HuntKind HuntKindOf(const Candidate& candidate);

struct Hunted {
  Answer answer;
  uint64_t left = 0;  // candidates, when the budget was spent
};
Hunted RunHunt(Judge& judge, const Question& question);
// By lowering every candidate.
Hunted RunHuntByBruteForce(Judge& judge, const Question& question);

}  // namespace zeroplan
