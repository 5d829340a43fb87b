// Shard groups as they are asked for, named, and searched where nobody asks.
#include "planner/advice/shard_groups.h"

#include <doctest/doctest.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/families/load_model.h"
#include "planner/request/parse.h"
#include "planner/request/resolve.h"
#include "planner/request/resolved.h"
#include "planner/search/search_space.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

AskedSettings InGroups(int group, int across) {
  AskedSettings fields;
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
  CHECK(ResolveGrouping(InGroups(kWholeNode, 1), 64, 8) == Grouping{8, 1});
  CHECK(ResolveGrouping(InGroups(4, -1), 64, 8) == Grouping{4, 0});
  CHECK(ResolveGrouping(InGroups(32, 2), 64, 8) == Grouping{32, 2});
  // All GPUs are one group, however that is said.
  CHECK(ResolveGrouping(InGroups(64, -1), 64, 8) == Grouping{});
  CHECK(ResolveGrouping(InGroups(kWholeNode, -1), 8, 8) == Grouping{});
  // On one node every divisor will do.
  CHECK(ResolveGrouping(InGroups(3, -1), 6, 8) == Grouping{3, 0});
  CHECK_THROWS_WITH_AS(ResolveGrouping(InGroups(6, -1), 48, 8),
                       "⟦shard_group⟧: 6 is not allowed with 48 GPUs, 8 a node; use 2, 4, 8 "
                       "(node), 16, 24, 48 (all)",
                       Error);
  CHECK_THROWS_WITH_AS(ResolveGrouping(InGroups(64, 1), 64, 8),
                       doctest::Contains("⟦across_groups⟧: optimizer is not allowed"), Error);
  CHECK_THROWS_WITH_AS(ResolveGrouping(InGroups(kWholeNode, -1), 4, 1),
                       doctest::Contains("a node has one GPU"), Error);
  CHECK_THROWS_WITH_AS(ThrowWithoutGroups(InGroups(0, 1), 16, 8),
                       "⟦across_groups⟧: optimizer has no effect without shard groups; add "
                       "⟦shard_group⟧ (2, 4, 8 (node))",
                       Error);
  CHECK_THROWS_WITH_AS(ThrowWithoutGroups(InGroups(0, 1), 2, 8), doctest::Contains("leave it out"),
                       Error);
}

TEST_CASE("shard groups: a plan whose groups go with no stage that is asked for is refused") {
  PlanRequest request;
  request.common.model.model = "gpt2";
  request.common.hardware.profile = "dgx-h100";
  request.common.cluster.gpus.emplace(64);
  const auto refusal = [&](int stage, int across) {
    request.common.settings = InGroups(8, across);
    request.common.settings.stage.emplace(std::vector<int>{stage});
    return ErrorOf(ExitCode::kUsage, [&] {
      Assumptions unused;
      const ResolvedPlan resolved(request, unused);
    });
  };
  CHECK(Has(refusal(0, -1), wording::kIsNotAllowedAtStage));
  CHECK(Has(refusal(1, 2), wording::kGradientsIsNotAllowedAt));
}

TEST_CASE("shard groups: named stages that go without them are noted") {
  AskedSettings fields = InGroups(8, 2);
  fields.stage.emplace(std::vector<int>{0, 1, 2});
  ChoiceSpace space;
  space.stages = *fields.stage;
  space.offload_optimizer = {OffloadDevice::kNone};
  TrainSetup base;
  base.batch.world_size = 64;
  Assumptions assumptions;
  const std::vector<TrainSetup> setups = SetupsInGroups(fields, base, space, 8, assumptions);
  CHECK(setups.size() == 1);
  CHECK(assumptions.notes ==
        std::vector<std::string>{
            "Stage 0 is left out: it does not go with ⟦shard_group⟧ 8.",
            "Stage 1 is left out: it does not go with ⟦across_groups⟧ gradients."});
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
  const auto has_group = [&](int gpus, int ranks) {
    const std::vector<Grouping> all = DefaultSpace(model, gpus, 8, false).groupings;
    return std::find(all.begin(), all.end(), Grouping{ranks, 1}) != all.end();
  };
  CHECK(!has_group(256, 256));
  CHECK(has_group(512, 256));
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
