// What train chooses where its options leave something open: what plan chooses, for a made-up
// machine, without a GPU.
#include "cli/run/train/open_choice.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "cli/run/train/train_work.h"
#include "core/base/error.h"
#include "core/program/fingerprint.h"
#include "core/settings/zero_config.h"
#include "planner/request/plan_answer.h"
#include "tests/cli/run_binary.h"
#include "tests/cli/train_workspace.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

template <typename T>
void Say(Given<T>& field, T value) {
  field.emplace(std::move(value));
  field.text = "given";
}

TrainCommand Asks(const std::string& model, const std::string& hw = "h200-141gb-sxm") {
  setenv("ZEROPLAN_NO_DETECT", "1", 1);
  TrainCommand command;
  command.common.model.model = model;
  command.common.hardware.profile = hw;
  return command;
}

struct Resolved {
  TrainWork work;
  std::string notes;
};

Resolved Resolve(const TrainCommand& command, const Resolving& by = {}) {
  Assumptions assumptions;
  Resolved resolved;
  resolved.work = ResolveWork(command, Backend::kCuda, by, assumptions);
  for (const std::string& note : assumptions.notes) resolved.notes += NameFields(note) + '\n';
  return resolved;
}

TEST_CASE("open choice: what train is not told is what plan chooses, and is said") {
  TrainCommand command = Asks("gpt2-xl", "h100-80gb-sxm");
  Say<int64_t>(command.common.settings.seq_len, 1024);
  Say<int64_t>(command.common.settings.global_batch, 96);
  const Resolved train = Resolve(command);
  PlanRequest asked;
  asked.common = command.common;
  Say(asked.common.cluster.gpus, 1);
  Assumptions unused;
  ResolvedPlan request(asked, unused);
  const auto searcher = MakeSearch(request.inputs());
  const Plan plan = FindChoice(request, *searcher);
  CAPTURE(train.notes);
  CHECK(train.work.setup == plan.setup);
  CHECK(plan.setup.batch.micro_batch < 96);  // which needs more memory than there is
  CHECK(Has(train.notes, "Choice: " + SetupLabel(plan.setup) + ", " + BatchText(plan.setup.batch) +
                             ", as 'plan' finds it for 1 x"));
  const Program program = LowerWork(train.work);
  CHECK(program.arena_bytes[0] < plan.cluster.gpu_capacity_bytes);
}

TEST_CASE("open choice: what is given narrows it") {
  TrainCommand command = Asks("gpt2");
  Say<int64_t>(command.common.settings.global_batch, 64);
  Say<int64_t>(command.common.settings.micro_batch, 2);
  Say(command.common.cluster.gpus, 4);
  Say(command.common.settings.stage, std::vector<int>{2, 3});
  Say(command.common.settings.checkpointing, Checkpointing::kFull);
  const TrainSetup setup = Resolve(command).work.setup;
  CHECK(setup.batch.micro_batch == 2);
  CHECK(setup.batch.grad_accum == 8);
  CHECK(setup.batch.world_size == 4);
  CHECK(setup.zero.stage >= 2);
  CHECK(setup.recompute.kind == RecomputeKind::kFull);
}

TEST_CASE("open choice: an optimizer on the host is there whole, unless its share is said") {
  TrainCommand command = Asks("gpt2");
  Say<int64_t>(command.common.settings.global_batch, 8);
  Say(command.common.settings.offload_optimizer, std::vector<OffloadDevice>{OffloadDevice::kCpu});
  CHECK(Resolve(command).work.setup.zero.offload_optimizer.ratio == 1);
  Say(command.common.settings.offload_ratio, 0.3);
  CHECK(Resolve(command).work.setup.zero.offload_optimizer.ratio == 0.3);
}

TEST_CASE("open choice: without a batch it is small, for any number of ranks, and is said") {
  const auto batch = [](int ranks, std::optional<int64_t> micro, std::optional<int64_t> accum,
                        int64_t kept, std::vector<std::string>& notes) {
    AskedSettings fields;
    if (micro) Say<int64_t>(fields.micro_batch, *micro);
    if (accum) Say<int64_t>(fields.grad_accum, *accum);
    return WithDefaultBatch(fields, {}, ranks, kept, 1024, notes);
  };
  std::vector<std::string> notes;
  CHECK(batch(1, {}, {}, 0, notes).global_batch == 32);
  REQUIRE(notes.size() == 1);
  CHECK(notes[0] ==
        "Batch: 32 sequences a step (32.8K tokens), as none is given; ⟦global_batch⟧ sets it.");
  CHECK(batch(3, {}, {}, 0, notes).global_batch == 33);
  CHECK(batch(64, {}, {}, 0, notes).global_batch == 64);
  CHECK(batch(2, {}, 5, 0, notes).global_batch == 40);
  CHECK(batch(4, {}, {}, 48, notes).global_batch == 48);  // the run's to resume
  CHECK(batch(5, {}, {}, 48, notes).global_batch == 35);  // which 5 ranks cannot have
  notes.clear();
  const AskedSettings micro = batch(2, 4, {}, 0, notes);
  CHECK(micro.grad_accum == 1);
  CHECK(!micro.global_batch);
  CHECK(notes.empty());
}

TEST_CASE("open choice: where nothing fits, the smallest change is named, exit code 3") {
  TrainCommand command = Asks("gpt2-xl");
  Say<uint64_t>(command.common.cluster.gpu_memory, 12'000'000'000);
  Say(command.common.settings.stage, std::vector<int>{0});
  Say<int64_t>(command.common.settings.global_batch, 8);
  try {
    Resolve(command);
    FAIL("fits");
  } catch (const Error& error) {
    CHECK(error.code() == ExitCode::kNothingFits);
    CHECK(Has(error.what(), wording::kSmallestChangeThatFits2));
  }
}

TEST_CASE("open choice: a config is obeyed, what it leaves open is chosen, its cost is said") {
  const Workspace work;
  const std::string file = work.path("ds.json");
  std::ofstream(file) << R"({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1,
    "gradient_accumulation_steps": "auto", "bf16": {"enabled": true},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.004}},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}})";
  TrainCommand command = Asks("gpt2-xl", "dgx-h200");
  command.common.config = ConfigDocument::FromFile(file);
  Say(command.common.cluster.gpus, 4);
  const Resolved train = Resolve(command);
  CAPTURE(train.notes);
  const TrainSetup& setup = train.work.setup;
  CHECK(setup.zero.stage == 3);
  CHECK(setup.zero.offload_optimizer.device == OffloadDevice::kCpu);
  CHECK(setup.batch.global_batch() == 64);
  CHECK(setup.optimizer.lr == 0.004);
  CHECK(Has(train.notes, wording::kWhatTheConfigCostsIts));
  CHECK(Has(train.notes, wording::kZeroplanPlanWithInPlace));
  // plan and estimate say it, too; of a config that costs nothing they say nothing.
  for (const char* asks : {"plan", "estimate"}) {
    const std::string arguments =
        std::string(asks) + " --explain --model gpt2-xl --hw dgx-h200 --gpus 4 --config " + file;
    const RunResult run = RunZeroplan(arguments);
    CAPTURE(run.err);
    CHECK(run.exit_code == 0);
    CHECK(Has(run.out, wording::kWhatTheConfigCostsIts2));  // wherever its lines break
  }
  std::ofstream(file) << R"({"train_batch_size": 64, "bf16": {"enabled": true},
    "zero_optimization": {"stage": 1}})";
  CHECK(
      Lacks(RunZeroplan("plan --explain --model gpt2 --hw dgx-h200 --gpus 4 --config " + file).out,
            "costs: its choice"));
}

TEST_CASE("open choice: of GPUs that are not known nothing is planned, and a line says so") {
  TrainCommand command = Asks("gpt2", "");
  command.common.hardware.find = {};
  Say<int64_t>(command.common.settings.seq_len, 128);
  const Resolved train = Resolve(command);
  CHECK(train.work.setup.batch.global_batch() == 1);
  CHECK(Has(train.notes, wording::kChoiceTheGpusHereAre));
}

// Two ranks, one after the other: the first one's texts are kept for the second.
class TwoRanks : public ProcessGroup {
 public:
  TwoRanks(int rank, std::vector<std::string>& said) : said_(said) {
    place_.rank = place_.local_rank = rank;
    place_.world_size = place_.local_world_size = 2;
  }
  const ProcessPlace& place() const override { return place_; }
  void Barrier() override {}
  void Broadcast(std::span<std::byte>) override {}
  std::vector<std::string> AllGather(const std::string& text) override {
    if (rank() == 0) said_.push_back(text);
    return {said_.at(next_++), text};
  }
  void Fail(const std::string&) noexcept override {}
  bool failed() const noexcept override { return false; }
  std::string failure() const override { return {}; }

 private:
  ProcessPlace place_;
  std::vector<std::string>& said_;
  size_t next_ = 0;
};

TEST_CASE("open choice: all ranks take rank 0's, whatever their own machine looks like") {
  TrainCommand command = Asks("gpt2");
  Say(command.min_lr, 1e-5);
  Say(command.lr_schedule, DecayShape::kCosine);
  std::vector<std::string> said;
  TwoRanks first(0, said), second(1, said);
  const TrainWork of_first = Resolve(command, {.group = &first}).work;
  const TrainSetup& chosen = of_first.setup;
  command.common.hardware.profile = "h100-80gb-sxm";
  const Resolved other = Resolve(command, {.group = &second});
  CHECK(chosen.batch.world_size == 2);
  CHECK(chosen.batch.global_batch() == 32);
  CHECK(Fingerprint(LowerWork(other.work)) == Fingerprint(LowerWork(of_first)));
  CHECK(other.work.setup.batch == chosen.batch);
  CHECK(other.work.setup.optimizer == chosen.optimizer);
  CHECK(Lacks(other.notes, "Choice:"));
  // What is not said comes from the record for all of them.
  command.common.hardware.profile = "h200-141gb-sxm";
  Say(command.common.settings.grad_accum_dtype, Dtype::kF32);
  std::vector<std::string> more;
  TwoRanks third(0, more), fourth(1, more);
  const TrainSetup a = Resolve(command, {.group = &third}).work.setup;
  const TrainSetup b = Resolve(command, {.group = &fourth}).work.setup;
  CHECK(a.precision == b.precision);
  // A process that only starts ranks looks at what was asked, and chooses nothing.
  Say(command.common.cluster.gpus, 2);
  const Resolved starter = Resolve(command, {.ranks_follow = true});
  CHECK(starter.work.setup.batch.world_size == 2);
  CHECK(Lacks(starter.notes, "Choice:"));
}

TEST_CASE("open choice: a resume keeps the run's, unless it is told otherwise") {
  const Workspace work;
  const std::string out = work.path("out");
  const RunResult run = RunZeroplan(
      work.Train("--gpus 2 --stage 1 --micro-batch 4 --grad-accum 3 --checkpointing selective "
                 "--dtype bf16 --save " +
                     out,
                 2));
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  TrainCommand command = Asks(work.path("config.json"));
  command.save = out;
  command.run.resume = true;
  Say(command.common.cluster.gpus, 2);
  const Resolved same = Resolve(command);
  CAPTURE(same.notes);
  CHECK(Has(same.notes, wording::kAsInTheRunTo));
  CHECK(same.work.setup.zero.stage == 1);
  CHECK(same.work.setup.batch == BatchSpec{4, 3, 2, 32});
  CHECK(same.work.setup.recompute == kSelectiveRecompute);
  CHECK(same.work.setup.optimizer.lr == 3e-3);
  // Told otherwise, the batch that training depends on stays.
  Say(command.common.settings.stage, std::vector<int>{3});
  const Resolved other = Resolve(command);
  CAPTURE(other.notes);
  CHECK(other.work.setup.zero.stage == 3);
  CHECK(other.work.setup.batch.global_batch() == 24);
  Say(command.common.cluster.gpus, 4);
  CHECK(Resolve(command).work.setup.batch.global_batch() == 24);
  Say(command.lr, 1e-4);
  CHECK(Resolve(command).work.setup.optimizer.lr == 1e-4);
}

TEST_CASE("train --checkpoint-every alone is refused: most mean saves by it") {
  const Workspace work;
  const RunResult run = RunZeroplan(work.Train("--checkpoint-every 100"));
  CHECK(run.exit_code == 2);
  CHECK(Has(run.err, "--save-every 100"));
  CHECK(Has(run.err, "--checkpointing full"));
  CHECK(RunZeroplan(work.Train("--checkpoint-every 2 --checkpointing full", 1)).exit_code == 0);
}

}  // namespace
}  // namespace zeroplan
