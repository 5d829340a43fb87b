// zeroplan train as people fine-tune: epochs, schedules, validation files, the best checkpoint.
#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "core/base/error.h"
#include "tests/cli/run_binary.h"
#include "tests/cli/train_workspace.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

std::string Base(const Workspace& work) {
  return "train --model " + work.path("config.json") + " --data " + SourcePath("LICENSE") +
         " --threads 1 --lr 3e-3 --micro-batch 4 ";
}

TEST_CASE("train: epochs, warm-up, a validation file, the best checkpoint and its weights") {
  const Workspace work;
  const std::string out = work.path("out"), metrics = work.path("m.jsonl");
  const RunResult run = RunZeroplan(
      Base(work) +
      "--epochs 0.5 --lr-schedule cosine --warmup-ratio 0.1 --min-lr 1e-4 "
      "--weight-decay 0.1 --max-grad-norm 0.5 --validation-data " +
      SourcePath("README.md") +
      " --validation-batches 3 --eval-every 10 --keep-best --final-weights best --save " + out +
      " --metrics " + metrics);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(Has(run.err, "--epochs 0.5: of "));
  CHECK(Has(run.err, "--validation-data: 12 of "));
  CHECK(Has(run.err, "  perplexity "));
  CHECK(Has(run.err, wording::kWeightsThoseOfStep));
  const RunResult list = RunZeroplan("checkpoint list " + out);
  CHECK(list.exit_code == 0);
  CHECK(Has(list.out, "best is step-"));
  CHECK(Has(list.out, ", validation loss "));
  // The schedule is in the record of the program, and read again from there.
  const RunResult check = RunZeroplan("hw check " + metrics);
  CHECK(Lacks(check.err, wording::kBugInZeroplan));
}

TEST_CASE("train: a best checkpoint that is damaged costs no weights, and the way out is named") {
  const Workspace work;
  const std::string out = work.path("out");
  const std::string train = "train --model " + work.path("config.json") + " --data " +
                            SourcePath("LICENSE") +
                            " --threads 1 --validate-every 5 --keep-best --keep 1 --save " + out;
  REQUIRE(RunZeroplan(train + " --lr 3e-3 --steps 5").exit_code == 0);
  // What follows is worse, so that the best stays where it was.
  const std::string worse = train + " --lr 0.5 --resume --steps ";
  REQUIRE(RunZeroplan(worse + "10").exit_code == 0);
  const std::string file = out + "/checkpoints/step-00000005/rank-0000.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) / 2);
  const RunResult best = RunZeroplan(worse + "12 --final-weights best");
  CAPTURE(best.err);
  CHECK(best.exit_code == 2);
  CHECK(Has(best.err, wording::kBestTheBestCheckpointIs));
  CHECK(Lacks(best.err, wording::kToResumeFromIt));
  const RunResult last = RunZeroplan(worse + "12 --final-weights last");
  CAPTURE(last.err);
  CHECK(last.exit_code == 0);
  CHECK(std::filesystem::exists(out + "/model.safetensors"));
}

// Weights that are no numbers make no step good.
TEST_CASE("train: nothing that was not trained is saved, and the exit code says so") {
  const Workspace work;
  const std::string out = work.path("out");
  REQUIRE(RunZeroplan(Base(work) + "--steps 2 --save " + work.path("base")).exit_code == 0);
  const std::string weights = work.path("base/model.safetensors");
  std::string bytes = ReadWhole(weights);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(bytes.data() + bytes.size() - sizeof nan, &nan, sizeof nan);
  std::ofstream(weights, std::ios::binary) << bytes;
  const RunResult run = RunZeroplan("train --model " + work.path("base") + " --data " +
                                    SourcePath("LICENSE") + " --threads 1 --steps 3 --save " + out);
  CAPTURE(run.err);
  CHECK(run.exit_code == static_cast<int>(ExitCode::kDiverged));
  CHECK(Has(run.err, wording::kNothingWasTrainedAllSteps));
  CHECK_FALSE(std::filesystem::exists(out + "/model.safetensors"));
}

TEST_CASE("train: options that contradict each other, or miss what they need") {
  const Workspace work;
  struct Case {
    const char* options;
    const char* said;
  };
  for (const Case& c : {Case{"--steps 3 --epochs 1", "--steps 3 and --epochs 1 are both given"},
                        Case{"--epochs 0", "--epochs: 0 is not allowed"},
                        Case{"--warmup-ratio 1.5", "--warmup-ratio: 1.5 is not allowed"},
                        Case{"--warmup-ratio 0.1 --warmup-steps 2", "are both given"},
                        Case{"--min-lr 1e-4", "--min-lr: 1e-4 has no effect on a constant rate"},
                        Case{"--lr-schedule linear --min-lr 1", "is above the rate"},
                        Case{"--patience 2", "--patience: needs --validate-every"},
                        Case{"--keep-best", "--keep-best: needs --save"},
                        Case{"--keep-best --save x", "--keep-best: needs --validate-every"},
                        Case{"--save x --final-weights best", "best needs --keep-best"},
                        Case{"--lr-schedule square", "--lr-schedule: square is not allowed"}}) {
    const RunResult run = RunZeroplan(Base(work) + c.options);
    CAPTURE(c.options);
    CAPTURE(run.err);
    CHECK(run.exit_code == 2);
    CHECK(Has(run.err, c.said));
  }
}

}  // namespace
}  // namespace zeroplan
