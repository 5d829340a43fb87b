// Texts about the shard groups of an answer, and about the limits of ZeRO in any groups.
#pragma once

#include <string>

#include "planner/advice/flips.h"
#include "planner/estimate/estimate.h"
#include "planner/search/search.h"

namespace zeroplan {

// A predicate of an answer: "is stage 2", "has shard groups of 8 (a node)", "has no shard groups".
std::string HasText(const SearchInputs& inputs, const Sharding& sharding, const Cluster& cluster);
// The same for an answer that stays: "stage 2 stays the answer", "the answer keeps shard groups of
// 8 (a node)", "the answer stays without shard groups".
std::string StaysText(const SearchInputs& inputs, const Sharding& sharding, const Cluster& cluster);

// A GPU's bytes of the model's states by shard group, without alignment, activations and buffers,
// at the answer's stage and its sharing across groups; "" if groups make no difference, or none are
// searched.
std::string GroupMemoryText(const ChoiceEstimate& best, const SearchInputs& inputs);

// Text for clusters where ZeRO alone is the wrong tool, with the tools that people use there; ""
// otherwise. Most tokens of a step: Llama 3 405B's (Llama Team 2024, "The Llama 3 Herd of Models",
// section 3.4.1).
std::string BeyondZero(const ChoiceEstimate& best, const Cluster& cluster);

}  // namespace zeroplan
