#include "executor/train/run_identity.h"

#include <doctest/doctest.h>

#include "tests/error_of.h"

namespace zeroplan {
namespace {

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
        "seq-len: 1024 in the checkpoint, 512 from here on", "--allow-change data,seq-len"}) {
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
