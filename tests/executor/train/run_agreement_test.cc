#include "executor/train/run_agreement.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <functional>
#include <string>

#include "core/base/version.h"
#include "executor/process/process_group.h"
#include "tests/error_of.h"
#include "tests/executor/process/thread_ranks.h"
#include "tests/has.h"
#include "tests/temp_dir.h"
#include "tests/tiny_model.h"

namespace zeroplan {
namespace {

// A group in which rank 1 has something else, at the `at`th gathering.
class OtherRank : public SingleProcess {
 public:
  OtherRank(size_t at, std::string from, std::string to)
      : at_(at), from_(std::move(from)), to_(std::move(to)) {
    place_.world_size = 2;
  }
  const ProcessPlace& place() const override { return place_; }
  std::vector<std::string> AllGather(const std::string& text) override {
    std::string other = text;
    const size_t found = from_.empty() ? std::string::npos : other.find(from_);
    if (gathered_++ == at_ && found != std::string::npos) other.replace(found, from_.size(), to_);
    return {text, other};
  }

 private:
  ProcessPlace place_;
  size_t at_, gathered_ = 0;
  std::string from_, to_;
};

TEST_CASE("ranks that run another program are told before anything else") {
  const NamedFacts own = OwnBinary();
  REQUIRE(own.size() == 2);
  CHECK(own[0].second == kVersion);
  CHECK(own[1].second.size() == 16);  // of this very file
  CHECK(OwnBinary() == own);
  OtherRank same(0, "", "");
  AgreeAtStart(same, {{"--steps", "100"}});
  for (const auto& [name, value] : own) {
    OtherRank other(0, value, "9.9.9");
    CHECK_THROWS_WITH_AS(AgreeAtStart(other, {{"--steps", "100"}}),
                         doctest::Contains((name + ": rank 1 has 9.9.9, rank 0 " + value).c_str()),
                         Error);
  }
}

TEST_CASE("clocks that differ are named with who is off, and in which direction") {
  CHECK(ClockWarning({1'000'000}) == "");
  CHECK(ClockWarning({1'000'000, 1'005'000, 1'000'000}) == "");
  CHECK(ClockWarning({1'000'000, 1'012'000, 1'000'200})
            .starts_with("the clock of rank 1 is 11.8 s ahead of the other ranks'"));
  CHECK(ClockWarning({1'000'000, 1'000'100, 1'000'200, 0})
            .starts_with("the clock of rank 3 is 1000.0 s behind the other ranks'"));
  // Whatever a peer says.
  CHECK(ClockWarning({1'000'000, 0, 1'000'000}) != "");
}

TEST_CASE("ranks of one host agree on their program and clocks") {
  const auto errors =
      AsRanks(3, [](TcpGroup& group) { AgreeAtStart(group, {{"--steps", "100"}}); });
  CHECK(ErrorsOf(errors) == "");
}

// A program of two ranks, from what `change` makes of its model and setup.
template <typename Change>
NamedFacts SettingsWith(const Change& change) {
  Program program;
  program.model = testing::TinyModel();
  program.setup.batch.world_size = 2;
  program.setup.zero.stage = 2;
  change(program);
  return SettingsOf(program);
}

TEST_CASE("ranks whose settings differ are told which, whatever the setting") {
  const struct {
    const char* name;
    const char* other;
    const char* first;
    std::function<void(Program&)> change;
  } rows[] = {
      {"zero_optimization.stage", "3", "2", [](Program& p) { p.setup.zero.stage = 3; }},
      {"bf16.enabled", "false", "true", [](Program& p) { p.setup.precision.dtype = Dtype::kF32; }},
      {"_zeroplan.optimizer_states", "\"8bit\"", "none",
       [](Program& p) { p.setup.precision.moment_dtype = Dtype::kDynamic8; }},
      {"zero_optimization.offload_optimizer.device", "\"cpu\"", "none",
       [](Program& p) { p.setup.zero.offload_optimizer.device = OffloadDevice::kCpu; }},
      {"_zeroplan.shard_group", "1", "none", [](Program& p) { p.setup.zero.shard_group = 1; }},
      {"model's adapter rank", "8", "none", [](Program& p) { p.model.lora_rank = 8; }},
      {"model's layers", "5", "3", [](Program& p) { p.model.layers = 5; }},
      {"⟦backend⟧", "cuda", "cpu", [](Program& p) { p.backend = Backend::kCuda; }},
  };
  const NamedFacts usual = SettingsWith([](Program&) {});
  for (const auto& row : rows) {
    CAPTURE(row.name);
    const auto errors = AsRanks(2, [&](TcpGroup& group) {
      AgreeOnFacts(group, group.rank() == 1 ? SettingsWith(row.change) : usual);
    });
    for (const std::string& error : errors) {
      CHECK(
          Has(error, fmt::format("{}: rank 1 has {}, rank 0 {}", row.name, row.other, row.first)));
    }
  }
  // What each host has another of.
  CHECK(SettingsWith([](Program& p) {
          p.model.name = "elsewhere";
          p.setup.zero.offload_optimizer.nvme_path = "/nvme1";
        }) == usual);
}

std::map<std::string, std::string> Saved(const NamedFacts& facts) {
  return {facts.begin(), facts.end()};
}

NamedFacts Facts(const TrainSetup& setup = {}) {
  return DecidingFacts(setup, 100, true, "abc, 9 tokens");
}

TEST_CASE("run identity: every number that decides is told apart") {
  const auto differs = [](const char* name, const auto& change) {
    TrainSetup setup;
    change(setup);
    const NamedFacts now = Facts(setup);
    const std::vector<RunChange> changes =
        CompareWithCheckpoint(now, Saved(Facts()), {"seq-len"}, "step-1");
    CAPTURE(name);
    REQUIRE(changes.size() == 1);
    CHECK(changes[0].name == name);
    CHECK(changes[0].sentence.starts_with(std::string(name) + ": "));
  };
  differs("lr", [](TrainSetup& s) { s.optimizer.lr = 1.0000000001e-3; });
  differs("betas", [](TrainSetup& s) { s.optimizer.betas[1] = 0.95; });
  differs("eps", [](TrainSetup& s) { s.optimizer.eps = 1e-6; });
  differs("weight decay", [](TrainSetup& s) { s.optimizer.weight_decay = 0.1; });
  differs("weight decay", [](TrainSetup& s) { s.optimizer.adam_w_mode = false; });
  differs("bias correction", [](TrainSetup& s) { s.optimizer.bias_correction = false; });
  differs("gradient clipping", [](TrainSetup& s) { s.optimizer.gradient_clipping = 0; });
  differs("schedule", [](TrainSetup& s) { s.optimizer.schedule.kind = ScheduleKind::kWarmup; });
  differs("precision", [](TrainSetup& s) { s.precision.grad_accum_dtype = Dtype::kF32; });
  differs("precision", [](TrainSetup& s) { s.precision.fp32_reduction = true; });
  differs("global batch", [](TrainSetup& s) { s.batch.grad_accum = 3; });
  differs("seq-len", [](TrainSetup& s) { s.batch.seq_len = 512; });
  // How the work is cut decides nothing but rounding.
  TrainSetup cut;
  cut.zero.stage = 3;
  cut.deterministic = true;
  CHECK(CompareWithCheckpoint(Facts(cut), Saved(Facts()), {}, "step-1").empty());
}

TEST_CASE("run identity: a resume with other states says what becomes of their numbers") {
  const auto sentences = [](MasterWeights before, Dtype moments_before, MasterWeights now,
                            Dtype moments_now) {
    TrainSetup saved, resumed;
    saved.precision.master_weights = before;
    saved.precision.moment_dtype = moments_before;
    resumed.precision.master_weights = now;
    resumed.precision.moment_dtype = moments_now;
    std::string all;
    for (const RunChange& change :
         CompareWithCheckpoint(Facts(resumed), Saved(Facts(saved)), {}, "step-1")) {
      all += change.sentence + "\n";
    }
    return all;
  };
  constexpr auto kFp32 = MasterWeights::kFp32, kSplit = MasterWeights::kSplit,
                 kParam = MasterWeights::kParam;
  CHECK(sentences(kSplit, Dtype::kDynamic8, kSplit, Dtype::kDynamic8).empty());
  CHECK(sentences(kFp32, Dtype::kF32, kFp32, Dtype::kBF16) ==
        "optimizer states: fp32 in the checkpoint, bf16 from here on: rounded once\n");
  CHECK(sentences(kParam, Dtype::kDynamic8, kSplit, Dtype::kF32) ==
        "master weights: 16bit in the checkpoint, split from here on: the same numbers\n"
        "optimizer states: 8bit in the checkpoint, fp32 from here on: the same numbers\n");
  CHECK(sentences(kSplit, Dtype::kBF16, kParam, Dtype::kDynamic8) ==
        "master weights: split in the checkpoint, 16bit from here on: rounded once\n"
        "optimizer states: bf16 in the checkpoint, 8bit from here on: rounded once\n");
  // Of a run that did not name them.
  std::map<std::string, std::string> old = Saved(Facts());
  old.erase("master weights");
  old.erase("optimizer states");
  CHECK(CompareWithCheckpoint(Facts(), old, {}, "step-1").empty());
  TrainSetup split;
  split.precision.master_weights = kSplit;
  CHECK(CompareWithCheckpoint(Facts(split), old, {}, "step-1").front().sentence ==
        "master weights: fp32 in the checkpoint, split from here on: the same numbers");
}

TEST_CASE("run identity: a resume with other products says so") {
  TrainSetup fp8, blocks;
  fp8.precision.fp8.enabled = true;
  blocks.precision.fp8 = {true, Fp8Recipe::kBlocks, Dtype::kE5M2, false, 256};
  const auto sentence = [](const TrainSetup& now, std::map<std::string, std::string> saved) {
    const std::vector<RunChange> changes = CompareWithCheckpoint(Facts(now), saved, {}, "step-1");
    REQUIRE(changes.size() == 1);
    return changes.front().sentence;
  };
  CHECK(sentence({}, Saved(Facts(fp8))) ==
        "products: in FP8 (a scale a tensor, gradients e4m3) in the checkpoint, in the parameters' "
        "dtype from here on");
  CHECK(sentence(blocks, Saved(Facts(fp8))) ==
        "products: in FP8 (a scale a tensor, gradients e4m3) in the checkpoint, in FP8 (a scale a "
        "block, gradients e5m2 from sums of fp32, sides from 256 on) from here on");
  std::map<std::string, std::string> old = Saved(Facts());
  old.erase("products");
  CHECK(CompareWithCheckpoint(Facts(), old, {}, "step-1").empty());
  CHECK(sentence(fp8, old) ==
        "products: in the parameters' dtype in the checkpoint, in FP8 (a scale a tensor, gradients "
        "e4m3) from here on");
}

TEST_CASE("run identity: a schedule without a length of its own has the run's") {
  TrainSetup setup;
  setup.optimizer.schedule.kind = ScheduleKind::kWarmupDecay;
  const NamedFacts longer = DecidingFacts(setup, 200, true, "abc");
  CHECK(CompareWithCheckpoint(longer, Saved(DecidingFacts(setup, 100, true, "abc")), {}, "s")
            .size() == 1);
  setup.optimizer.schedule.total_steps = 300;
  CHECK(CompareWithCheckpoint(DecidingFacts(setup, 200, true, "abc"),
                              Saved(DecidingFacts(setup, 100, true, "abc")), {}, "s")
            .empty());
}

TEST_CASE("run identity: other samples need --allow-change") {
  const auto saved = Saved(Facts());
  TrainSetup setup;
  setup.batch.seq_len = 512;
  const NamedFacts now = DecidingFacts(setup, 100, false, "other");
  const std::string message = ErrorOf(
      ExitCode::kUsage, [&] { CompareWithCheckpoint(now, saved, {"order"}, "out/step-1"); });
  for (const char* part :
       {"out/step-1", "data: abc, 9 tokens in the checkpoint, other from here on",
        "seq-len: 1024 in the checkpoint, 512 from here on", "⟦allow_change⟧ data,seq-len"}) {
    CAPTURE(message);
    CHECK(message.find(part) != std::string::npos);
  }
  CHECK(message.find("order:") == std::string::npos);
  CHECK(CompareWithCheckpoint(now, saved, {"order", "data", "seq-len"}, "s").size() == 3);
  // One that a checkpoint does not know cannot be told to be the same.
  CHECK_THROWS_AS(CompareWithCheckpoint(Facts(), {}, {}, "s"), Error);
}

}  // namespace

}  // namespace zeroplan
