// A runtime that nothing but this file knows is estimated, planned and reported like any other.
#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/families/load_model.h"
#include "hwprofiles/loader.h"
#include "planner/advice/advice.h"
#include "planner/estimate/choices.h"
#include "planner/page/plan_page.h"
#include "planner/plan/plan_file.h"
#include "planner/report/report.h"
#include "planner/search/enumerated_search.h"
#include "tests/has.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

// Stages 0 and 3; 20 bytes a parameter, a gigabyte a sequence; a second for each of these, and 0.1
// for each micro-step.
class MadeUpJudge : public ChoiceJudge {
 public:
  explicit MadeUpJudge(const JudgeInputs& inputs) : model_(inputs.model) {}
  ChoiceEstimate Estimate(const TrainSetup& setup, const Cluster& cluster) override {
    ++played_;
    const BatchSpec& batch = setup.batch;
    const bool shards = setup.zero.stage == 3;
    ChoiceEstimate choice;
    choice.setup = setup;
    const auto gpus = static_cast<uint64_t>(shards ? batch.world_size : 1);
    choice.footprint.gpu_class_bytes = {
        4 * model_.ParamCount() / gpus, 4 * model_.ParamCount() / gpus,
        12 * model_.ParamCount() / gpus, static_cast<uint64_t>(batch.micro_batch) * 1'000'000'000,
        0};
    TimeEstimate& time = choice.time;
    time.compute_seconds = static_cast<double>(batch.micro_batch * batch.grad_accum) +
                           0.1 * static_cast<double>(batch.grad_accum);
    time.exposed_comm_seconds = shards ? 0.2 : 0;
    time.exposed_offload_seconds = 0;
    time.total_seconds = *time.compute_seconds + *time.exposed_comm_seconds;
    time.tokens_per_second =
        static_cast<double>(batch.global_batch() * batch.seq_len) / *time.total_seconds;
    time.mfu = 0.3;
    choice.why_not = ExplainMisfit(choice.footprint, cluster);
    choice.fits = choice.why_not.empty();
    choice.room = choice.fits ? MemoryRoom::kAmple : MemoryRoom::kNone;
    return choice;
  }

 private:
  const ModelSpec model_;
};

class MadeUpRuntime : public Runtime {
 public:
  std::string_view key() const override { return "made-up"; }
  std::string_view name() const override { return "MadeUp"; }
  std::string_view version() const override { return "made-up 1.0"; }
  void Refuse(const AskedOfRuntime&) const override {}
  ChoiceSpace EstimateSpace() const override {
    ChoiceSpace space;
    space.stages = {0, 3};
    space.offload_optimizer = space.offload_param = {OffloadDevice::kNone};
    return space;
  }
  std::vector<TrainSetup> Choices(const SearchInputs& inputs,
                                  const SearchSpace& space) const override {
    std::vector<TrainSetup> setups;
    for (const int stage : {0, 3}) {
      if (std::count(space.stages.begin(), space.stages.end(), stage) == 0) continue;
      TrainSetup setup = inputs.base;
      setup.zero.stage = stage;
      for (const BatchPair& batch : BatchPairs(space, space.gpus.front())) {
        setup.batch.world_size = space.gpus.front();
        setup.batch.micro_batch = batch.micro_batch;
        setup.batch.grad_accum = batch.grad_accum;
        setups.push_back(setup);
      }
    }
    return setups;
  }
  std::unique_ptr<ChoiceJudge> Judge(const JudgeInputs& inputs) const override {
    return std::make_unique<MadeUpJudge>(inputs);
  }
  std::unique_ptr<ChoiceSearch> Search(SearchInputs inputs) const override {
    return std::make_unique<EnumeratedSearch>(std::move(inputs));
  }
  double Merit(const ChoiceEstimate& choice) const override {
    return choice.time.tokens_per_second.value_or(0);
  }
  std::string MarginText(const Cluster&, const HardwareProfile&) const override {
    return "Nobody has measured MadeUp.";
  }
  std::string FormatCannot(ConfigFormat, const TrainSetup&) const override { return ""; }
  std::string NoFormat(ConfigFormat, const std::string&) const override { return ""; }
  std::string ConfigJson(const TrainSetup& setup, int64_t) const override {
    return nlohmann::json{{"shards", setup.zero.stage == 3}}.dump();
  }
};

const MadeUpRuntime kMadeUp{};

Cluster TwoGpus() {
  Cluster cluster;
  cluster.gpus = cluster.gpus_per_node = 2;
  cluster.gpu_name = "GPU";
  cluster.gpu_capacity_bytes = 9'000'000'000;
  return cluster;
}

TEST_CASE("made-up runtime: estimated, as a table, JSON, CSV and page") {
  EstimateInputs inputs;
  inputs.runtime = &kMadeUp;
  inputs.model = LoadModel("gpt2");
  inputs.cluster = TwoGpus();
  const HardwareProfile hardware = LoadProfile("hgx-h200");
  inputs.hardware = &hardware;
  TrainSetup base;
  base.batch.world_size = 2;
  base.batch.seq_len = 1024;
  inputs.setups = EnumerateSetups(base, kMadeUp.EstimateSpace());
  const Estimate estimate = EstimateChoices(inputs);
  REQUIRE(estimate.choices.size() == 2);
  CHECK(estimate.choices[0].footprint.gpu_total() > estimate.choices[1].footprint.gpu_total());
  CHECK(Has(ReportTable(estimate, {}), wording::kGptUnderMadeUp));
  CHECK(Has(ReportTable(estimate, {}), wording::kNobodyHasMeasuredMadeup));
  const auto json = nlohmann::json::parse(ReportJson(estimate));
  CHECK(json["runtime"] == "made-up 1.0");
  CHECK(json["choices"][1]["step_seconds"]["exposed_comm"] == 0.2);
  CHECK(json["choices"][1]["comm_bytes_per_step"].is_null());
  CHECK(Has(ReportCsv(estimate), wording::kMadeUpAmple));
  CHECK(EstimatePage(estimate, inputs, {}).pictures.size() >= 3);
}

TEST_CASE("made-up runtime: planned, advised, and written") {
  const HardwareProfile profile = LoadProfile(std::string(kDefaultProfile));
  SearchInputs inputs;
  inputs.runtime = &kMadeUp;
  inputs.model = LoadModel("gpt2");
  inputs.hardware = &profile;
  inputs.clusters = {{TwoGpus(), nullptr}};
  inputs.space = DefaultSpace(inputs.model, 2, 8, false);
  inputs.base.batch.seq_len = 1024;
  inputs.base.batch.world_size = 2;
  SetBatches(inputs.space, 16, 1024);
  const std::unique_ptr<ChoiceSearch> search = MakeSearch(inputs);
  const SearchResult result = search->Run();
  REQUIRE(result.best);
  // Stage 0 has the faster step, and room for micro-batch 4.
  CHECK(result.stages[*result.best].candidate->stage == 0);
  Plan plan = MakePlan(*search, result);
  Advice advice = Advise(*search, result, profile);
  PlanReport report;
  report.stages = result.stages;
  for (const AdviceLine& line : advice.lines) plan.advice.push_back(line.text);
  report.advice = advice.lines;
  report.config = kMadeUp.ConfigJson(plan.setup, plan.model.layers);
  CHECK(Has(plan.advice.front(), wording::kChosenForMadeupStageMicro));
  // Less memory than stage 0 holds leaves stage 3.
  bool below = false;
  for (const AdviceLine& line : advice.lines) {
    for (const Claim& claim : line.claims) {
      below = below || (claim.gpu_memory_bytes && claim.found &&
                        *claim.gpu_memory_bytes < plan.cluster.gpu_capacity_bytes &&
                        claim.found->candidate.stage == 3);
    }
  }
  CHECK(below);
  const auto json = nlohmann::json::parse(WritePlanReport(plan, report));
  CHECK(json["runtime"] == "made-up 1.0");
  CHECK(json["config"]["shards"] == false);
  CHECK(json["stages"].size() == 2);
  const CostModel costs(profile, {2, 2});
  const PlanPageInputs page = {
      plan, report, search->Judged(), ScarcestLinkOf(plan.cluster, profile), costs, profile,
      "",   false};
  CHECK(PlanPage(page, {}).pictures.size() >= 3);
}

}  // namespace
}  // namespace zeroplan
