// Data that a question reads: once, and packed as the machine and the program that train do.
#include "planner/request/data_fields.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "planner/machines/machines.h"
#include "planner/report/report_text.h"
#include "planner/request/resolved.h"
#include "planner/runtimes/runtimes.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

// 100 conversations of `tokens` each, which packed take so many sequences of any length.
class MadeUp : public DataCount {
 public:
  explicit MadeUp(uint64_t packed = 25, uint64_t tokens = 100) : packed_(packed), tokens_(tokens) {}
  bool has_mask() const override { return true; }
  uint64_t longest() const override { return tokens_; }
  DataFacts As(const SequencesAsked& asked) const override {
    DataFacts facts;
    facts.lengths = DocumentLengths({{tokens_, 100}});
    facts.seq_len = asked.seq_len;
    facts.packing = asked.packing;
    facts.fixed_rows = asked.fixed_rows;
    const uint64_t rows = asked.packing == Packing::kDocuments ? packed_ : 100;
    facts.epoch = {rows, 100 * (tokens_ - 1)};
    return facts;
  }

 private:
  uint64_t packed_, tokens_;
};

// Counts how often it reads.
DataReader Reading(int& reads, uint64_t packed = 25, uint64_t tokens = 100) {
  return [&reads, packed, tokens](const DataFields&, const std::string&, int64_t) {
    ++reads;
    return std::make_shared<MadeUp>(packed, tokens);
  };
}

PlanRequest Asked(const std::string& hw, DataReader read) {
  PlanRequest request;
  request.quick = true;
  request.common.model.model = "gpt2";
  request.common.hardware.profile = hw;
  Set(request.common.cluster.gpus, 1);
  Set(request.common.settings.seq_len, int64_t{512});
  request.common.goal.data.paths = {"chats.jsonl"};
  request.common.goal.data.read = std::move(read);
  return request;
}

TEST_CASE("data: packed as the machine, the program and the question have it") {
  int reads = 0;
  const auto packing_of = [&](PlanRequest request, Assumptions& assumptions) {
    const ResolvedPlan plan(request, assumptions);
    const Request& asked = plan.asked().common;
    CHECK(asked.goal.data.counted != nullptr);
    CHECK(plan.inputs().lower.document_borders == (asked.goal.data.packing == Packing::kDocuments));
    return asked.goal.data.packing;
  };
  Assumptions hopper, ada, said, other, titan;
  CHECK(packing_of(Asked("dgx-h100", Reading(reads)), hopper) == Packing::kDocuments);
  CHECK(std::count(hopper.assumed.begin(), hopper.assumed.end(), "⟦packing⟧ documents") == 1);
  CHECK(packing_of(Asked("rtx4090", Reading(reads)), ada) == Packing::kDocuments);
  CHECK(std::any_of(ada.notes.begin(), ada.notes.end(), [](const std::string& note) {
    return note.starts_with("Packing: documents, in sequences of 512 tokens. Padded, ");
  }));
  PlanRequest request = Asked("rtx4090", Reading(reads));
  request.common.settings.packing.emplace(Packing::kStream);
  CHECK(packing_of(request, said) == Packing::kStream);
  request = Asked("dgx-h100", Reading(reads));
  request.common.runtime.runtime.emplace(&DeepSpeedRuntime());
  CHECK(packing_of(request, other) == Packing::kOff);
  CHECK(reads == 4);
  // Lengths that nobody gave: no longer than the conversations need.
  for (const Runtime* runtime : {&OwnExecutor(), &DeepSpeedRuntime()}) {
    CAPTURE(runtime->name());
    request = Asked("rtx4090", Reading(reads));
    request.common.settings.seq_len = {};
    request.common.runtime.runtime.emplace(runtime);
    Assumptions unsaid;
    const ResolvedPlan plan(request, unsaid);
    CHECK(plan.inputs().base.batch.seq_len == 128);
    CHECK(std::count(unsaid.assumed.begin(), unsaid.assumed.end(), "⟦seq_len⟧ 128") == 1);
  }
  request.common.goal.data.truncate = true;
  request.common.runtime = {};
  request.common.settings.packing.emplace(Packing::kStream);
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { packing_of(request, titan); }), "⟦truncate⟧"));
}

TEST_CASE("data: attention within documents is timed by their lengths") {
  int reads = 0;
  struct Timed {
    double seconds, keys;
    bool says;  // that lengths are unknown
  };
  const auto timed = [&](const char* hw, uint64_t tokens) {
    Request request = Asked(hw, Reading(reads, 25, tokens)).common;
    if (tokens == 0) request.goal.data = {};
    Set(request.settings.seq_len, int64_t{1024});
    Set(request.settings.micro_batch, int64_t{8});
    request.settings.stage.emplace({0});
    request.settings.packing.emplace(Packing::kDocuments);
    Assumptions assumptions;
    const ResolvedEstimate resolved(request, assumptions);
    const EstimateInputs& inputs = resolved.inputs();
    const Program program = Lower(inputs.model, inputs.setups.front(), inputs.lower);
    return Timed{*EstimateProgram(program, inputs.cluster, inputs.costs).time.total_seconds,
                 inputs.lower.visible_keys,
                 std::any_of(assumptions.notes.begin(), assumptions.notes.end(),
                             [](const std::string& note) {
                               return Has(note, "because the documents' lengths were not counted");
                             })};
  };
  for (const char* hw : {"dgx-h100", "rtx4090"}) {
    CAPTURE(hw);
    const Timed unknown = timed(hw, 0), brief = timed(hw, 100), longer = timed(hw, 240);
    CHECK(unknown.keys == 0);
    CHECK(unknown.says);
    CHECK(!brief.says);
    CHECK(brief.keys > 0);
    CHECK(brief.keys < longer.keys);
    CHECK(longer.keys < 240);
    CHECK(brief.seconds < longer.seconds);
    CHECK(longer.seconds < unknown.seconds);
  }
}

TEST_CASE("data: an estimate counts its run by it") {
  int reads = 0;
  Request request = Asked("dgx-h100", Reading(reads)).common;
  request.goal.data.epochs.emplace(2);
  Set(request.settings.micro_batch, int64_t{5});
  Assumptions assumptions;
  const ResolvedEstimate resolved(request, assumptions);
  CHECK(reads == 1);
  const RunGoal& goal = resolved.inputs().goal;
  REQUIRE(goal.data);
  CHECK(*goal.tokens == 2 * 25 * 512);
  CHECK(resolved.inputs().lower.document_borders);
  const BatchSpec& batch = resolved.inputs().setups.front().batch;
  CHECK(CostOf(goal, batch, 1).steps == 10);
  const std::vector<std::string> said = DataParagraphs(goal, batch, resolved.inputs().model);
  CHECK(Has(said.front(), wording::kDataDocumentsTokens));
  CHECK(Has(said.back(), wording::kAnEpochIsSequencesStep));
}

TEST_CASE("data: machines read it once, and each packs it its own way") {
  int reads = 0;
  // Conversations that fill a row: packing makes more rows here, which both machines accept up to
  // kDefaultsLead, but cuDNN's kernels for documents are slower too.
  PlanRequest request = Asked("", ReadingOnce(Reading(reads, 103, 1000)));
  Set(request.common.settings.seq_len, int64_t{1024});
  request.machines.hw = {"dgx-h100", "rtx4090"};
  request.common.settings.stage.emplace({0});
  Assumptions assumptions;
  const MachineComparison all = CompareMachines(request, assumptions, {});
  CHECK(reads == 1);
  REQUIRE(all.rows.size() == 2);
  for (const MachineRow& row : all.rows) {
    CAPTURE(row.name());
    REQUIRE(row.goal.data);
    CHECK(row.goal.data->packing ==
          (row.name() == "rtx4090" ? Packing::kDocuments : Packing::kOff));
  }
  CHECK(
      std::any_of(assumptions.notes.begin(), assumptions.notes.end(), [](const std::string& note) {
        return note.starts_with("Packing and sequence length: each machine's own, ");
      }));
  REQUIRE(!all.data.empty());
  CHECK(Has(all.data.front(), "Data: 100 documents"));
}

TEST_CASE("data: what cannot be read is tried once") {
  int reads = 0;
  const DataReader read = ReadingOnce([&](const DataFields&, const std::string& folder,
                                          int64_t) -> std::shared_ptr<const DataCount> {
    ++reads;
    if (folder.empty()) ThrowUsage("⟦data⟧: is no text");
    return std::make_shared<MadeUp>();
  });
  for (int i = 0; i < 2; ++i) {
    CHECK(ErrorOf(ExitCode::kUsage, [&] { read({}, "", 10); }) == "⟦data⟧: is no text");
  }
  CHECK(reads == 1);
  const auto first = read({}, "folder", 10);
  CHECK(read({}, "folder", 10) == first);
  CHECK(reads == 2);
  CHECK(read({}, "folder", 20) != first);
  CHECK(reads == 3);
}

TEST_CASE("data: fields that do not go together") {
  int reads = 0;
  const auto refused = [&](auto change) {
    PlanRequest request = Asked("dgx-h100", Reading(reads));
    change(request);
    return ErrorOf(ExitCode::kUsage, [&] { CheckData(request); });
  };
  CheckData(Asked("dgx-h100", Reading(reads)));
  CHECK(Has(refused([](PlanRequest& r) { Set(r.common.goal.tokens, int64_t{1000}); }), "⟦tokens⟧"));
  CHECK(Has(refused([](PlanRequest& r) { r.largest.emplace(Largest::kModel); }), "⟦largest⟧"));
  CHECK(Has(refused([](PlanRequest& r) { r.common.goal.data.read = nullptr; }),
            wording::kThisBuildReadsNoData));
  CHECK(Has(refused([](PlanRequest& r) {
              r.common.goal.data.paths.clear();
              r.common.goal.data.epochs.emplace(2);
            }),
            wording::kSaysHowIsTrainedOn));
  CHECK(Has(refused([](PlanRequest& r) {
              r.config_for.emplace(ConfigFormat::kTorchtitan);
              r.common.settings.packing.emplace(Packing::kOff);
            }),
            "torchtitan"));
  CHECK(reads == 0);
}

}  // namespace
}  // namespace zeroplan
