// Where activations are: what a choice is called, the fields that ask for it, the record of a run.
#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <sstream>

#include "core/lowering/lower.h"
#include "planner/estimate/choices.h"
#include "planner/plan/plan_file.h"
#include "planner/request/fields.h"
#include "planner/request/resolve.h"
#include "planner/request/resolved.h"
#include "planner/runtimes/runtimes.h"
#include "tests/core/lowering/matrix.h"
#include "tests/planner/plan_fixture.h"

namespace zeroplan {
namespace {

using enum RecomputeKind;

// Fields as they come on a command line: "⟦stage⟧ 2 ⟦offload_activations⟧".
class TextFields : public FieldSink {
 public:
  void Take(AddedField field) override { fields_.push_back(std::move(field)); }

  void Read(const std::string& text) {
    std::istringstream words(text);
    AddedField* last = nullptr;
    for (std::string word; words >> word;) {
      const auto at = std::find_if(fields_.begin(), fields_.end(), [&](const AddedField& field) {
        return field.info.name == word;
      });
      if (at == fields_.end()) {
        REQUIRE(last != nullptr);
        last->text = word;
      } else {
        last = &*at;
        last->given = true;
      }
    }
    ReadFields(fields_);
  }

 private:
  std::deque<AddedField> fields_;
};

TEST_CASE("homes: what a choice is called") {
  const auto label = [](const RecomputeConfig& recompute) { return RecomputeLabel(recompute); };
  CHECK(label(kNoRecompute).empty());
  CHECK(label(kSelectiveRecompute) == "selective recompute");
  CHECK(label(kProductsRecompute) == "products computed again");
  CHECK(label(FullRecompute()) == "full recompute");
  CHECK(label(FullRecompute(4)) == "recompute by 4 layers");
  CHECK(label({kFull, 1, 12, kSelective}) == "full recompute of 12 layers, selective above");
  CHECK(label({kFull, 4, 12}) == "recompute of 12 layers by 4 layers");
  CHECK(label({kProducts, 0, 12, kNone, {OffloadDevice::kCpu, 20}}) ==
        "products of 12 layers computed again, activations of 20 layers on cpu");
  TrainSetup setup;
  setup.zero.stage = 2;
  setup.recompute.offload.device = OffloadDevice::kCpu;
  CHECK(SetupLabel(setup) == "stage 2, activations on cpu");
}

TEST_CASE("homes: the fields that are named for a choice ask for it") {
  std::vector<RecomputeConfig> all = {kNoRecompute, kSelectiveRecompute, FullRecompute(),
                                      FullRecompute(2)};
  for (const RecomputeConfig& homes : testing::Homes()) all.push_back(homes);
  for (const RecomputeConfig& homes : all) {
    Request request;
    TextFields fields;
    AddEstimateFields(fields, request);
    const std::string text = RecomputeFields(homes);
    CAPTURE(text);
    fields.Read(text);
    CheckRecomputeFields(request);
    const int every = request.settings.checkpoint_every.value_or(homes.kind == kFull ? 1 : 0);
    const RecomputeConfig kind = {homes.kind, every};
    CHECK(RecomputeName(homes) == request.settings.checkpointing.text);
    CHECK(WithRecomputeFields(kind, request, 5) == OfModel(homes, 5));
  }
}

TEST_CASE("homes: another runtime has those of its recipe alone") {
  Request request;
  request.settings.offload_activations = true;
  CHECK_FALSE(request.recipe().offload_activations);
  CHECK(WithRecomputeFields(FullRecompute(), request, 5).offload.device == OffloadDevice::kCpu);
  request.runtime.runtime.emplace(&DeepSpeedRuntime());
  CHECK(request.recipe().offload_activations);
  CHECK(WithRecomputeFields(FullRecompute(), request, 5) == FullRecompute());
}

TEST_CASE("homes: the record of a run gives them back") {
  ModelSpec model = SmallModel();
  model.layers = 5;
  TrainSetup setup;
  setup.batch.seq_len = 32;
  for (const RecomputeConfig& homes : testing::Homes()) {
    setup.recompute = homes;
    const Program program = Lower(model, setup, {});
    const std::string record = WriteProgramRecord(program, {});
    CAPTURE(record);
    CHECK(ReadProgramRecord(record, "program", 1, "run.jsonl").setup.recompute ==
          OfModel(homes, 5));
  }
}

TEST_CASE("homes: mixes are searched at every length unless the request sets the recompute") {
  const auto space = [](int64_t seq_len, std::optional<Checkpointing> kind) {
    PlanRequest request;
    request.common.model.model = "llama3.2-1b";
    request.common.hardware.profile = "hgx-h200";
    request.common.cluster.gpus.emplace(1);
    request.common.settings.seq_len.emplace(seq_len);
    if (kind) request.common.settings.checkpointing.emplace(*kind);
    Assumptions assumptions{.logged = true};
    return ResolvedPlan(request, assumptions).inputs().space;
  };
  const auto has_products = [](const SearchSpace& of) {
    return std::count(of.recompute.begin(), of.recompute.end(), kProductsRecompute) > 0;
  };
  for (const int64_t seq_len : {256, 4096, 32768}) {
    CAPTURE(seq_len);
    CHECK_FALSE(space(seq_len, {}).mixes.empty());
    CHECK(has_products(space(seq_len, {})));
    CHECK(space(seq_len, Checkpointing::kSearched).mixes == space(seq_len, {}).mixes);
  }
  CHECK(space(8192, Checkpointing::kAll).mixes.empty());
  CHECK(has_products(space(8192, Checkpointing::kAll)));
  CHECK(space(8192, Checkpointing::kFull).mixes.empty());
}

}  // namespace
}  // namespace zeroplan
