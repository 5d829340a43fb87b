// What a run goes on from when its checkpoints have come to harm, and how a user sees it.
#include <doctest/doctest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/cli/run_binary.h"
#include "tests/cli/train_workspace.h"
#include "tests/has.h"
#include "tests/run_metrics.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;

void FlipByteInMiddle(const fs::path& path) {
  const auto at = static_cast<std::streamoff>(fs::file_size(path) / 2);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const int byte = file.get();
  file.seekp(at);
  file.put(static_cast<char>(byte ^ 1));
}

TEST_CASE("train: a resume from a damaged checkpoint goes on from the one before, bit by bit") {
  const Workspace work;
  const std::string out = work.path("out");
  const std::string layout = "--gpus 2 --stage 2 ";
  REQUIRE(RunZeroplan(work.Train(layout + "--metrics " + work.path("whole.jsonl"))).exit_code == 0);
  REQUIRE(RunZeroplan(work.Train(layout + "--save-every 10 --save " + out, 20)).exit_code == 0);
  const fs::path damaged = fs::path(out) / "checkpoints/step-00000020";
  FlipByteInMiddle(damaged / "rank-0001.safetensors");
  const std::string resume =
      layout + "--resume --save " + out + " --metrics " + work.path("resumed.jsonl");

  const RunResult strict = RunZeroplan(work.Train("--strict-resume " + resume));
  CHECK(strict.exit_code == 2);
  CHECK(Has(strict.err, wording::kStepRankSafetensors));
  CHECK(Has(strict.err, wording::kTheDataIsNotWhat));
  CHECK(Has(strict.err, "--strict-resume"));

  const RunResult run = RunZeroplan(work.Train(resume));
  CHECK(run.exit_code == 0);
  CHECK(Has(run.err, wording::kStepRankSafetensors));
  CHECK(Has(run.err, wording::kTakingStepTheNewestIntact));
  CHECK(Has(run.err, "resumed from " + out + "/checkpoints/step-00000010 at step 10"));
  CHECK(fs::exists(damaged));
  const auto whole = LossesByStep(work.path("whole.jsonl"));
  const auto resumed = LossesByStep(work.path("resumed.jsonl"));
  CHECK(resumed.size() == kTrainSteps - 10);
  for (const auto& [step, loss] : resumed) CHECK(loss == whole.at(step));
}

TEST_CASE("train: shard groups go on bit by bit at their own grouping, to rounding at another") {
  const Workspace work;
  const std::string out = work.path("out"), grouped = "--gpus 4 --stage 3 --shard-group 2 ";
  const std::string across = grouped + "--across-groups gradients ";
  REQUIRE(RunZeroplan(work.Train(across + "--metrics " + work.path("whole.jsonl"))).exit_code == 0);
  REQUIRE(RunZeroplan(work.Train(across + "--save-every 10 --save " + out, 20)).exit_code == 0);
  const auto whole = LossesByStep(work.path("whole.jsonl"));
  int run = 0;
  for (const std::string& layout :
       {across, grouped, grouped + "--across-groups optimizer ", std::string("--gpus 4 --stage 3 "),
        std::string("--gpus 4 --stage 1 --shard-group 2 "),
        std::string("--gpus 2 --stage 2 --micro-batch 2 ")}) {
    CAPTURE(layout);
    const std::string copy = work.path("copy" + std::to_string(++run));
    fs::copy(out, copy, fs::copy_options::recursive);
    const std::string metrics = copy + ".jsonl";
    const RunResult resumed =
        RunZeroplan(work.Train(layout + "--resume --save " + copy + " --metrics " + metrics));
    CAPTURE(resumed.err);
    REQUIRE(resumed.exit_code == 0);
    const auto losses = LossesByStep(metrics);
    CHECK(losses.size() == kTrainSteps - 20);
    for (const auto& [step, loss] : losses) {
      if (layout == across) {
        CHECK(loss == whole.at(step));
      } else {
        CHECK(loss == doctest::Approx(whole.at(step)).epsilon(1e-3));
      }
    }
  }
}

TEST_CASE("train: where activations are changes no number, and a resume may change it") {
  const Workspace work;
  testing::WriteGpt2Config(work.path("config.json"), {.layers = 5});
  constexpr int kSteps = 8, kSaved = 4;
  const std::string layout = "--backend cpu --gpus 2 --stage 2 --micro-batch 2 ";
  const std::string whole = work.path("whole.jsonl");
  REQUIRE(RunZeroplan(work.Train(layout + "--metrics " + whole, kSteps)).exit_code == 0);
  const auto expected = LossesByStep(whole);
  REQUIRE(expected.size() == kSteps);
  struct Home {
    const char* options;
    nlohmann::json plan;  // checkpointing, every, layers, above, activations, layers
  };
  const Home homes[] = {
      {"--checkpointing products --offload-activations ", {"products", 0, 0, "none", "cpu", 0}},
      {"--checkpointing products --checkpoint-layers 2 --checkpointing-above selective ",
       {"products", 0, 2, "selective", "none", 0}},
      {"--checkpointing full --checkpoint-every 2 --checkpoint-layers 3 "
       "--offload-activation-layers 2 ",
       {"full", 2, 3, "none", "cpu", 2}},
      {"", {"none", 0, 0, "none", "none", 0}}};
  int run = 0;
  std::string saved;  // with the home before
  for (const Home& home : homes) {
    CAPTURE(home.options);
    const std::string metrics = work.path("run" + std::to_string(run) + ".jsonl");
    const std::string out = work.path("out" + std::to_string(run++));
    const std::string options = layout + home.options + "--save-every 4 --metrics " + metrics;
    if (!saved.empty()) fs::copy(saved, out, fs::copy_options::recursive);
    const RunResult resumed = RunZeroplan(
        work.Train(options + " --resume --save " + out, saved.empty() ? kSaved : kSteps));
    CAPTURE(resumed.err);
    REQUIRE(resumed.exit_code == 0);
    const auto lines = ReadMetricsLines(metrics);
    const nlohmann::json& plan = lines.front()["plan"];
    CHECK(nlohmann::json{plan["checkpointing"], plan["checkpoint_every"], plan["checkpoint_layers"],
                         plan["checkpointing_above"], plan["offload_activations"],
                         plan["offload_activation_layers"]} == home.plan);
    CHECK(lines.back()["high_water_bytes"] == lines.back()["planned_arena_bytes"]);
    const auto losses = LossesByStep(metrics);
    CHECK(losses.size() == kSaved);
    for (const auto& [step, loss] : losses) CHECK(loss == expected.at(step));
    fs::remove_all(fs::path(out) / "checkpoints/step-00000008");
    saved = out;
  }
}

TEST_CASE("train: a resume names other validation data, limits and spikes") {
  const Workspace work;
  const std::string out = work.path("out");
  std::ofstream(work.path("valid.txt")) << std::string(5000, 'v');
  const std::string first = "--save " + out + " --max-bad-steps 3 --skip-loss-spike 4 ";
  REQUIRE(RunZeroplan(work.Train(first, 2)).exit_code == 0);
  const std::string resume = "--resume " + first;
  const RunResult same = RunZeroplan(work.Train(resume, 3));
  CHECK(same.exit_code == 0);
  CHECK(Lacks(same.err, " from here on"));
  const RunResult other = RunZeroplan(work.Train(
      "--resume --max-bad-steps 2 --validation-data " + work.path("valid.txt") + " --save " + out,
      4));
  CHECK(other.exit_code == 0);
  CHECK(Has(other.err, wording::kMaxBadStepsInThe));
  CHECK(Has(other.err, wording::kSkipLossSpikeInThe));
  CHECK(Has(other.err, wording::kValidationDataWhatTheData));
}

TEST_CASE("train: checkpoint verify and list say what is intact and what --resume takes") {
  const Workspace work;
  const std::string out = work.path("out");
  REQUIRE(
      RunZeroplan(work.Train("--gpus 2 --stage 1 --save-every 10 --save " + out, 20)).exit_code ==
      0);
  RunResult run = RunZeroplan("checkpoint verify " + out);
  CHECK(run.exit_code == 0);
  CHECK(Has(run.out, "step-00000020  step 20, "));
  CHECK(Has(run.out, wording::kInFilesRanksIntact));
  CHECK(Has(run.out, "--resume takes step-00000020\n"));
  FlipByteInMiddle(out + "/checkpoints/step-00000020/rank-0001.safetensors");
  run = RunZeroplan("checkpoint verify " + out);
  CHECK(run.exit_code == 2);
  CHECK(Has(run.out, "2 ranks  damaged\n"));
  CHECK(Has(run.out, wording::kTheDataIsNotWhat));
  CHECK(Has(run.out, "--resume takes step-00000010\n"));
  CHECK(Has(run.err, wording::kOfCheckpointsIsDamaged));
  run = RunZeroplan("checkpoint list " + out);
  CHECK(run.exit_code == 0);
  CHECK(Has(run.out, "step-00000020  step 20, "));
  CHECK(RunZeroplan("checkpoint verify " + work.path("nothing")).exit_code == 2);
}

TEST_CASE("train: a run that is over trains, saves and compares nothing when it is resumed") {
  const Workspace work;
  const std::string out = work.path("out"), metrics = work.path("m.jsonl");
  RunResult run = RunZeroplan(work.Train("--save " + out, 3));
  REQUIRE(run.exit_code == 0);
  CHECK(Has(run.err, wording::kSequenceOfTokensStep));
  fs::remove(out + "/model.safetensors");
  for (const int steps : {3, 2}) {
    run = RunZeroplan(work.Train("--resume --metrics " + metrics + " --save " + out, steps));
    CHECK(run.exit_code == 0);
    CHECK(Has(run.err, "nothing is left to train: step 3 is done, and the run ends with step " +
                           std::to_string(steps) + "; a larger --steps"));
    CHECK(Has(run.err, wording::kNoStepRanBefore));
    for (const char* never : {"touched", "differs", "median", "last loss", "  saved "}) {
      CAPTURE(never);
      CHECK(run.err.find(never) == std::string::npos);
    }
  }
  CHECK_FALSE(fs::exists(out + "/checkpoints/step-00000003-1"));
  CHECK(fs::exists(out + "/model.safetensors"));
  CHECK(Has(ReadWhole(metrics), wording::kStepSecondsMedianNull));
}

TEST_CASE("train: a folder that cannot be saved to is refused before the first step") {
  const Workspace work;
  const std::string preload =
      "ZEROPLAN_NO_DETECT=1 LD_PRELOAD=" + BinaryPath("fake_io/libfake_io.so");
  const std::string out = work.path("out");
  RunResult run = RunZeroplan(work.Train("--save " + out), preload + " FAKE_IO=rename");
  CHECK(run.exit_code == 2);
  CHECK(Has(run.err, "--save " + out + ": cannot be saved to: "));
  CHECK(Has(run.err, wording::kCannotRenameTo));
  CHECK(run.err.find("step 1/") == std::string::npos);
  run = RunZeroplan(work.Train("--save " + out), preload + " FAKE_IO=flock");
  CHECK(run.exit_code == 2);
  CHECK(Has(run.err, wording::kTheFileSystemCannotLock));
  run = RunZeroplan(work.Train("--save /proc/zeroplan"));
  CHECK(run.exit_code != 0);
  CHECK(Has(run.err, "/proc/zeroplan"));
  CHECK(run.err.find("step 1/") == std::string::npos);
  CHECK(RunZeroplan(work.Train("--save " + out), preload).exit_code == 0);
}

// Calls of a resume and its saves, one in a run; every kStride-th of about 570.
TEST_CASE(
    "train: a call that fails once ends a run with a message or not at all, and loses nothing") {
  const Workspace work;
  const std::string layout = "--gpus 2 --stage 2 --save-every 2 ", base = work.path("base");
  REQUIRE(RunZeroplan(work.Train(layout + "--save " + base, 4)).exit_code == 0);
  REQUIRE(RunZeroplan(work.Train(layout + "--save " + work.path("whole") + " --metrics " +
                                     work.path("whole.jsonl"),
                                 6))
              .exit_code == 0);
  const auto whole = LossesByStep(work.path("whole.jsonl"));
  const std::string out = work.path("out"), log = work.path("log");
  const std::string metrics = work.path("m.jsonl");
  const std::string resume =
      work.Train(layout + "--resume --save " + out + " --metrics " + metrics, 6);
  constexpr int kStride = 29;
  int at = 0;
  for (bool failed = true; failed; at += kStride) {
    for (const int error : {EIO, ENOSPC}) {
      CAPTURE(at);
      CAPTURE(error);
      fs::remove_all(out);
      fs::copy(base, out, fs::copy_options::recursive);
      fs::remove(log);
      fs::remove(metrics);
      const RunResult run = RunZeroplan(
          resume, "ZEROPLAN_NO_DETECT=1 LD_PRELOAD=" + BinaryPath("fake_io/libfake_io.so") +
                      " FAKE_IO_UNDER=" + out + " FAKE_IO_AT=" + std::to_string(at) +
                      " FAKE_IO_ERRNO=" + std::to_string(error) + " FAKE_IO_LOG=" + log);
      failed = fs::exists(log);
      CHECK((run.exit_code == 0 || run.exit_code == 2 || run.exit_code == 4));
      if (run.exit_code != 0) CHECK(Has(run.err, out));
      const RunResult verify = RunZeroplan("checkpoint verify " + out);
      CHECK(verify.exit_code == 0);
      if (verify.exit_code != 0) MESSAGE(verify.out);
      CHECK(RunZeroplan(resume).exit_code == 0);
      for (const auto& [step, loss] : LossesByStep(metrics)) CHECK(loss == whole.at(step));
    }
  }
  CHECK(at > 8 * kStride);
}

TEST_CASE("train: --keep says how many checkpoints stay") {
  const Workspace work;
  const std::string out = work.path("out");
  REQUIRE(RunZeroplan(work.Train("--save-every 5 --keep 3 --save " + out)).exit_code == 0);
  int folders = 0;
  for (const auto& entry : fs::directory_iterator(out + "/checkpoints")) {
    folders += entry.is_directory() ? 1 : 0;
  }
  CHECK(folders == 3);
  const RunResult none = RunZeroplan(work.Train("--keep 3"));
  CHECK(none.exit_code == 2);
  CHECK(Has(none.err, "--keep: 3 needs --save DIR"));
  const RunResult alone = RunZeroplan(work.Train("--strict-resume --save " + out));
  CHECK(alone.exit_code == 2);
  CHECK(Has(alone.err, wording::kSaysWhatMayNotDo));
}

}  // namespace
}  // namespace zeroplan
