// Sequences over GPUs as they are asked for, named, searched and proposed.
#include <doctest/doctest.h>
#include <fmt/ranges.h>

#include <fstream>
#include <functional>
#include <string>

#include "core/config/deepspeed_writer.h"
#include "core/families/load_model.h"
#include "planner/advice/smallest_change.h"
#include "planner/plan/plan_file.h"
#include "planner/request/parse.h"
#include "planner/request/plan_answer.h"
#include "planner/request/resolve.h"
#include "planner/runtimes/runtimes.h"
#include "tests/has.h"
#include "tests/planner/search_fixture.h"
#include "tests/temp_dir.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

using Ranks = std::vector<int>;

PlanRequest Asked(const std::string& model, int64_t seq_len, int gpus) {
  PlanRequest request;
  request.common.hardware.profile = "hgx-h200";
  request.common.model.model = model;
  request.common.settings.seq_len.emplace(seq_len);
  request.common.cluster.gpus.emplace(gpus);
  request.quick = true;
  return request;
}

Plan PlanOf(const PlanRequest& request, Assumptions* assumptions = nullptr) {
  Assumptions own;
  ResolvedPlan resolved(request, assumptions == nullptr ? own : *assumptions);
  const std::unique_ptr<ChoiceSearch> search = MakeSearch(resolved.inputs());
  return FindChoice(resolved, *search);
}

std::string Failure(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("sequence ranks: numbers, some or auto") {
  CHECK(ParseSequenceRanks("auto", "o").empty());
  CHECK(ParseSequenceRanks("4", "o") == Ranks{4});
  CHECK(ParseSequenceRanks("4,1,2", "o") == Ranks{1, 2, 4});
  for (const char* text : {"", "0", "-2", "1.5", "2,2", "all", "2,"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(ParseSequenceRanks(text, "o"), doctest::Contains("or auto"), Error);
  }
}

TEST_CASE("sequence ranks: those that divide heads and tokens") {
  const Runtime& own = OwnExecutor();
  const ModelSpec llama = LoadModel("llama3.1-8b");  // 32 heads over 8
  CHECK(SequenceRanksOf(own, llama, 4096, 8) == Ranks{1, 2, 4, 8});
  CHECK(SequenceRanksOf(own, llama, 4096, 1000) == Ranks{1, 2, 4, 8, 16, 32});
  CHECK(SequenceRanksOf(own, llama, 4095 * 2, 8) == Ranks{1, 2});
  CHECK(SequenceRanksOf(own, llama, 4096, 1) == Ranks{1});
  CHECK(SequenceRanksOf(own, LoadModel("qwen2.5-7b"), 3584, 64) ==
        Ranks{1, 2, 4, 28});  // 28 over 4
  CHECK(SequenceRanksOf(own, LoadModel("gpt2"), 1024, 8) == Ranks{1});
}

TEST_CASE("sequence ranks: those of a ring divide the tokens, whatever the heads") {
  const ModelSpec model = LoadModel("qwen2.5-1.5b");
  REQUIRE(model.heads == 12);
  CHECK(SequenceRanksOf(Fsdp2Runtime(), model, 4096, 16) == Ranks{1, 2, 4, 8, 16});
  CHECK(SequenceRanksOf(DeepSpeedRuntime(), model, 4096, 16) == Ranks{1, 2, 4});
  // Two chunks of a rank.
  CHECK(SequenceRanksOf(Fsdp2Runtime(), model, 24, 16) == Ranks{1, 2, 3, 4, 6, 12});
  CHECK(SequenceRanksOf(Fsdp2Runtime(), model, 25, 16) == Ranks{1});

  const auto asked = [](const Runtime& runtime, int64_t seq_len) {
    PlanRequest request = Asked("qwen2.5-1.5b", seq_len, 8);
    request.common.runtime.runtime.emplace(&runtime);
    request.common.settings.sequence_ranks.emplace(Ranks{8});
    request.common.settings.sequence_ranks.text = "8";
    return request;
  };
  CHECK(PlanOf(asked(Fsdp2Runtime(), 32768)).setup.batch.sequence_ranks == 8);
  for (const Runtime* runtime : {&OwnExecutor(), &DeepSpeedRuntime()}) {
    CAPTURE(runtime->key());
    CHECK(Failure([&] { PlanOf(asked(*runtime, 32768)); }) ==
          "⟦sequence_ranks⟧: 8 is not allowed: qwen2.5-1.5b has 12 query heads; use a divisor of "
          "these");
  }
  CHECK(Failure([&] { PlanOf(asked(Fsdp2Runtime(), 32776)); }) ==
        "⟦sequence_ranks⟧: 8 is not allowed: each of 8 GPUs has two chunks of a sequence, which "
        "32776 tokens are no multiple of; use a multiple of 16 as ⟦seq_len⟧");
  // What may be searched is the runtime's, too.
  PlanRequest search = asked(Fsdp2Runtime(), 1 << 18);
  search.common.settings.sequence_ranks.emplace();
  search.common.settings.global_batch.emplace(1);
  CHECK(PlanOf(search).setup.batch.sequence_ranks == 8);
}

TEST_CASE("sequence ranks: what a config costs is compared with what plan searches unasked") {
  const TempDir folder;
  std::ofstream(folder.path("ds.json")) << R"({
    "train_batch_size": 2, "train_micro_batch_size_per_gpu": 1, "sequence_parallel_size": 4,
    "bf16": {"enabled": true}, "optimizer": {"type": "AdamW"},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"},
                          "offload_param": {"device": "cpu"}}})";
  PlanRequest with_config = Asked("llama3.2-1b", 16384, 8);
  with_config.common.config = ConfigDocument::FromFile(folder.path("ds.json"));
  Assumptions unused;
  const ResolvedPlan resolved(with_config, unused);
  REQUIRE(resolved.inputs().base.batch.sequence_ranks == 4);
  // No GPU could have one of two sequences, so that one each is no answer.
  SearchSpace space = resolved.full();
  resolved.UnaskedSequences(space);
  PlanRequest unasked = Asked("llama3.2-1b", 16384, 8);
  unasked.common.settings.global_batch.emplace(2);
  Assumptions of_plan;
  CHECK(space.sequence_ranks == ResolvedPlan(unasked, of_plan).inputs().space.sequence_ranks);
  CHECK(space.sequence_ranks.size() > 1);
  const std::string loss = ConfigLoss(resolved, resolved.inputs().base.batch, 1000);
  CHECK(Has(loss, wording::kWhatTheConfigCostsIts));
  CHECK(Has(loss, "sequences over "));
  // With a sequence for each GPU it is one each.
  space = resolved.full();
  space.global_batch = 8;
  resolved.UnaskedSequences(space);
  CHECK(space.sequence_ranks == Ranks{1});
}

TEST_CASE(
    "config: what it costs is compared in its own batch, with what plan searches without it") {
  const TempDir folder;
  const auto loss = [&](const std::string& zero, const Runtime& runtime,
                        const std::function<void(PlanRequest&)>& ask) {
    std::ofstream(folder.path("ds.json")) << R"({"bf16": {"enabled": true},
      "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
      "zero_optimization": {"stage": 3)" << zero
                                          << "}}";
    PlanRequest asked = Asked("llama3.2-1b", 4096, 8);
    asked.common.config = ConfigDocument::FromFile(folder.path("ds.json"));
    asked.common.runtime.runtime.emplace(&runtime);
    ask(asked);
    Assumptions unused;
    const ResolvedPlan resolved(asked, unused);
    return ConfigLoss(resolved, resolved.inputs().base.batch, 1000);
  };
  for (const Runtime* runtime : {&OwnExecutor(), &DeepSpeedRuntime()}) {
    CAPTURE(runtime->key());
    const std::string text = loss("", *runtime, [](PlanRequest& asked) {
      asked.common.settings.micro_batch.emplace(1);
      asked.common.settings.grad_accum.emplace(2);
    });
    CHECK(Has(text, wording::kMicroBatchReaches));
    CHECK(Has(text, wording::kWithInPlaceOf));
  }
  // Keys that plan does not search are no part of the best either.
  const auto batch = [](PlanRequest& asked) { asked.common.settings.global_batch.emplace(16); };
  CHECK(loss(R"(, "zero_quantized_weights": true, "stage3_max_live_parameters": 3e9)",
             OwnExecutor(), batch) == loss("", OwnExecutor(), batch));
}

TEST_CASE("sequence ranks: what a choice is called, and its groups and batches") {
  SearchFixture fixture("llama3.2-1b", 8);
  SearchSpace& space = fixture.inputs.space;
  space.sequence_ranks = {1, 4, 16};  // 16 goes with no 8 GPUs
  int shared = 0;
  for (const Candidate& c : Groups(space)) {
    CHECK((c.sequence_ranks == 1 || c.sequence_ranks == 4));
    shared += c.sequence_ranks == 4;
    CHECK(CandidateOf(SetupOf(c, {})) == c);
  }
  CHECK(2 * shared == static_cast<int>(Groups(space).size()));
  Candidate c;
  c.gpus = 8;
  c.stage = 3;
  c.sequence_ranks = 4;
  c.micro_batch = 3;
  c.recompute = FullRecompute();
  const TrainSetup setup = SetupOf(c, {});
  CHECK(SetupLabel(setup) == "stage 3, sequences over 4 GPUs, full recompute");
  CHECK(setup.batch.global_batch() == 6);
  SetBatches(space, 2, 4096);
  CHECK(BatchPairs(space, 8).empty());
  CHECK(BatchPairs(space, c.data_ranks()).size() == 1);
  CHECK(AnyBatch(space));
  space.sequence_ranks = {1};
  CHECK(!AnyBatch(space));
}

TEST_CASE("sequence ranks: a search finds what lowering all finds") {
  ModelSpec model = LoadModel("llama3.2-1b");
  model.layers = 2;
  model.positions = 16384;
  SearchFixture fixture(model, 4);
  SearchInputs& in = fixture.inputs;
  fixture.Capacity(uint64_t{16} << 30);
  in.space.sequence_ranks = {1, 2, 4};
  in.space.offload_optimizer.resize(1);
  in.space.offload_param.resize(1);
  in.space.recompute = {kNoRecompute, FullRecompute()};
  in.space.buckets.resize(2);
  in.space.gathering.resize(1);
  const SearchResult found = Search(in), all = SearchByBruteForce(in);
  REQUIRE(found.best.has_value());
  REQUIRE(all.best.has_value());
  CHECK(found.gap == 0);
  const double best = *all.stages[*all.best].estimate.time.tokens_per_second;
  CHECK(*found.stages[*found.best].estimate.time.tokens_per_second >= TieFloor(best));
  CHECK(CountCandidates(in.space) == found.stats.candidates);
}

TEST_CASE("sequence ranks: one where nobody says, and searched where no GPU has a sequence") {
  CHECK(PlanOf(Asked("llama3.2-1b", 16384, 8)).setup.batch.sequence_ranks == 1);
  PlanRequest few = Asked("llama3.2-1b", 16384, 8);
  few.common.settings.global_batch.emplace(2);
  Assumptions assumptions;
  const Plan plan = PlanOf(few, &assumptions);
  CHECK(plan.setup.batch.global_batch() == 2);
  CHECK(plan.setup.batch.sequence_ranks >= 4);
  CHECK(Has(fmt::format("{}", fmt::join(assumptions.notes, " ")),
            "Sequences: shared by GPUs, which are more than the 2 sequences of a step; "
            "⟦sequence_ranks⟧ says how many share one."));
  // The same in tokens.
  few.common.settings.global_batch = {};
  few.common.settings.global_batch_tokens.emplace(2 * 16384);
  CHECK(PlanOf(few).setup.batch == plan.setup.batch);
  few.common.settings.global_batch_tokens = {};
  // 12 over 8 GPUs is refused as ever, and so is what no sharing makes whole.
  few.common.settings.global_batch.emplace(12);
  CHECK(Has(Failure([&] { PlanOf(few); }), wording::kUseMultipleOf));
  PlanRequest learned = Asked("gpt2", 1024, 8);
  learned.common.settings.global_batch.emplace(2);
  CHECK(Has(Failure([&] { PlanOf(learned); }), wording::kUseMultipleOf));
}

TEST_CASE("sequence ranks: asked for, they hold, and a plan gives them back") {
  PlanRequest request = Asked("llama3.2-1b", 32768, 8);
  request.common.settings.sequence_ranks.emplace(Ranks{4});
  const Plan plan = PlanOf(request);
  CHECK(plan.setup.batch.sequence_ranks == 4);
  const std::string config = WriteConfig(plan.setup, plan.model.layers);
  CHECK(Has(config, wording::kSequenceParallelSize));
  const PlanFile back = ReadPlan(WritePlan(plan, config), "p.json");
  CHECK(back.setup.batch == plan.setup.batch);
  CHECK_NOTHROW(CheckedProgram(back));

  const auto refused = [&](int64_t seq_len, int gpus, Ranks ranks, const Runtime* runtime) {
    PlanRequest asked = Asked("llama3.2-1b", seq_len, gpus);
    asked.common.settings.sequence_ranks.emplace(std::move(ranks));
    asked.common.settings.sequence_ranks.text = "2";
    if (runtime != nullptr) asked.common.runtime.runtime.emplace(runtime);
    return Failure([&] { PlanOf(asked); });
  };
  CHECK(refused(4096, 8, {3}, nullptr) ==
        "⟦sequence_ranks⟧: 3 is not allowed with ⟦gpus⟧ 8; use a divisor of these");
  CHECK(refused(4095, 8, {1, 2}, nullptr) ==
        "⟦sequence_ranks⟧: 2 is not allowed with ⟦seq_len⟧ 4095; use a divisor of it, or a "
        "multiple of 2 as ⟦seq_len⟧");
  CHECK(Has(refused(4096, 64, {64}, nullptr), wording::kHasQueryHeadsUseDivisor));
  CHECK(refused(4096, 8, {2}, &DdpRuntime()) ==
        "⟦sequence_ranks⟧: sequences over GPUs are not modelled with ⟦runtime⟧ ddp; use 1");
}

TEST_CASE("sequence ranks: proposed where one GPU is too small, and where they are faster") {
  PlanRequest request = Asked("llama3.1-8b", 1 << 20, 8);
  request.common.settings.micro_batch.emplace(1);
  CHECK(Has(Failure([&] { PlanOf(request); }), wording::kSmallestChangeThatFits));
  request.common.settings.sequence_ranks.emplace();  // auto
  CHECK(PlanOf(request).setup.batch.sequence_ranks > 1);
  // Proposed with more GPUs, too.
  PlanRequest one = Asked("llama3.1-8b", 1 << 22, 1);
  CHECK(Has(Failure([&] { PlanOf(one); }), "⟦sequence_ranks⟧"));

  PlanRequest slow = Asked("llama3.1-8b", 131072, 8);
  slow.common.hardware.profile = "hgx-h100";
  slow.common.cluster.host_memory.emplace(64'000'000'000);  // too little for activations
  slow.quick = false;
  Assumptions unused;
  ResolvedPlan resolved(slow, unused);
  const std::unique_ptr<ChoiceSearch> search = MakeSearch(resolved.inputs());
  const Plan plan = FindChoice(resolved, *search);
  CHECK(Has(FasterSequencesText(resolved, *search, plan), wording::kEachGpuHasSequencesOf));
  slow.common.settings.sequence_ranks.emplace(Ranks{1});
  ResolvedPlan said(slow, unused);
  CHECK(FasterSequencesText(said, *search, plan).empty());
}

}  // namespace
}  // namespace zeroplan
