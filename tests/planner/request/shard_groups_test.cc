// Shard groups as they are asked for, named, and searched where nobody asks.
#include "planner/advice/shard_groups.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/families/load_model.h"
#include "planner/request/parse.h"
#include "planner/request/resolve.h"
#include "planner/search/search_space.h"
#include "tests/has.h"

namespace zeroplan {
namespace {

ChoiceFields Asked(int group, int across) {
  ChoiceFields fields;
  fields.shard_group.emplace(group);
  fields.shard_group.text = group == kWholeNode ? "node" : std::to_string(group);
  if (across >= 0) {
    fields.across_groups.emplace(across);
    fields.across_groups.text = AcrossName(across);
  }
  return fields;
}

TEST_CASE("shard groups: a number, a node or all, that tile nodes") {
  CHECK(ParseShardGroup("all", "o") == 0);
  CHECK(ParseShardGroup("node", "o") == kWholeNode);
  CHECK(ParseShardGroup("16", "o") == 16);
  for (const char* text : {"", "1", "0", "-8", "2.5", "nodes"}) {
    CHECK_THROWS_AS(ParseShardGroup(text, "o"), Error);
  }
  CHECK(ResolveGrouping(Asked(kWholeNode, 1), 64, 8) == Grouping{8, 1});
  CHECK(ResolveGrouping(Asked(4, -1), 64, 8) == Grouping{4, 0});
  CHECK(ResolveGrouping(Asked(32, 2), 64, 8) == Grouping{32, 2});
  // All GPUs are one group, however that is said.
  CHECK(ResolveGrouping(Asked(64, -1), 64, 8) == Grouping{});
  CHECK(ResolveGrouping(Asked(kWholeNode, -1), 8, 8) == Grouping{});
  // On one node every divisor will do.
  CHECK(ResolveGrouping(Asked(3, -1), 6, 8) == Grouping{3, 0});
  CHECK_THROWS_WITH_AS(ResolveGrouping(Asked(6, -1), 48, 8),
                       "⟦shard_group⟧: 6 is not allowed with 48 GPUs, 8 a node; use 2, 4, 8 "
                       "(node), 16, 24, 48 (all)",
                       Error);
  CHECK_THROWS_WITH_AS(ResolveGrouping(Asked(64, 1), 64, 8),
                       doctest::Contains("⟦across_groups⟧: optimizer is not allowed"), Error);
  CHECK_THROWS_WITH_AS(ResolveGrouping(Asked(kWholeNode, -1), 4, 1),
                       doctest::Contains("a node has one GPU"), Error);
}

TEST_CASE("shard groups: what a choice is called") {
  TrainSetup setup;
  setup.batch.world_size = 64;
  setup.zero.stage = 3;
  CHECK(SetupLabel(setup) == "stage 3");
  setup.zero.shard_group = 8;
  CHECK(SetupLabel(setup) == "stage 3 in groups of 8");
  setup.zero.across_stage = 1;
  CHECK(SetupLabel(setup) == "stage 3 in groups of 8, optimizer over all");
  setup.zero.across_stage = 2;
  CHECK(SetupLabel(setup) == "stage 3 in groups of 8, gradients and optimizer over all");
  setup.zero.shard_group = 64;
  setup.zero.across_stage = 0;
  CHECK(SetupLabel(setup) == "stage 3");
}

TEST_CASE("shard groups: searched over several nodes alone, with offload where a node's") {
  const ModelSpec model = LoadModel("gpt2");
  CHECK(DefaultSpace(model, 8, 8, false).groupings == std::vector<Grouping>{{}});
  SearchSpace space = DefaultSpace(model, 64, 8, false);
  std::vector<int> sizes;
  for (const Grouping& grouping : space.groupings) {
    if (grouping.across_stage == 0) sizes.push_back(grouping.ranks);
  }
  CHECK(sizes == std::vector<int>{0, 4, 8, 16, 32});
  const auto offloads_in_groups = [&](int ranks) {
    const std::vector<Candidate> groups = Groups(space);
    return std::any_of(groups.begin(), groups.end(), [ranks](const Candidate& c) {
      return c.grouping.ranks == ranks && Offloads(c);
    });
  };
  CHECK(offloads_in_groups(8));
  CHECK(!offloads_in_groups(16));
  for (const Candidate& c : Groups(space)) {
    CHECK((c.stage > 0 || c.grouping.ranks == 0));
    CHECK(c.grouping.across_stage <= c.stage);
    CHECK(CandidateOf(SetupOf(c, {})) == c);
  }
  space.grouping_fixed = true;
  CHECK(offloads_in_groups(16));
}

}  // namespace
}  // namespace zeroplan
