// zeroplan config check, as a user runs it.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "tests/cli/run_binary.h"
#include "tests/has.h"
#include "tests/temp_dir.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

class ConfigFile {
 public:
  explicit ConfigFile(const char* text) { std::ofstream(path()) << text; }
  std::string path() const { return folder_.path("config.json"); }

 private:
  TempDir folder_;
};

TEST_CASE("config check: warnings and effective values") {
  const ConfigFile file(
      "train_batch_size: 32\n"
      "zero_optimization: {\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": "
      "0.5}}\n"
      "my_run: second\n"
      "activation_checkpointing: {\"number_checkpoints\": 6}\n");
  const RunResult run = RunZeroplan("config check " + file.path() + " --gpus 8 --model gpt2");
  CHECK(run.exit_code == 0);
  CHECK(run.err.empty());
  CHECK(Has(run.out, "warning: " + file.path() + ":3: my_run: is not a known key"));
  CHECK(Has(run.out, wording::kDeepspeedItselfDoesNotRatio));
  CHECK(Has(run.out, "line 2\n"));
  CHECK(Has(run.out, wording::kSegmentsOfLayers));
  CHECK(Has(run.out, wording::kNoErrorsWarningsGpus));
  const RunResult strict = RunZeroplan("config check " + file.path() + " --gpus 8 --strict");
  CHECK(strict.exit_code == 2);
  CHECK(Has(strict.err, wording::kMyRunIsNotKnown));
}

TEST_CASE("config: a default that turns prefetch off is warned of, by all that read the config") {
  const ConfigFile file(
      "{\"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\": true},\n"
      " \"zero_optimization\": {\"stage\": 3}}");
  const std::string warning =
      file.path() +
      ": zero_optimization.stage3_max_live_parameters: 1000000000 is less than two layers of this "
      "model (1711276032 parameters)";
  const std::string options = " --gpus 8 --model llama3.1-70b";
  const RunResult checked = RunZeroplan("config check " + file.path() + options);
  CHECK(checked.exit_code == 0);
  CHECK(Has(checked.out, "warning: " + warning));
  CHECK(Has(checked.out, wording::kNoErrorsWarningGpus));
  const RunResult estimated =
      RunZeroplan("estimate --explain --hw dgx-h100 --config " + file.path() + options);
  CHECK(Has(estimated.out + estimated.err, "1711276032"));  // wherever its lines break
  CHECK(Has(RunZeroplan("config check " + file.path() + " --gpus 8 --model llama3.1-8b").out,
            "no errors, 0 warnings, 8 GPUs"));
}

TEST_CASE("config check - reads stdin") {
  const ConfigFile file("{\"train_batch_size\": 32,\n \"zero_optimization\": {\"stage\": 2}}");
  const RunResult named = RunZeroplan("config check " + file.path() + " --gpus 8");
  const RunResult piped = RunZeroplan("config check - --gpus 8 <" + file.path());
  REQUIRE(named.exit_code == 0);
  CHECK(piped.exit_code == 0);
  CHECK(Has(piped.out, wording::kStdinNoErrors));
  CHECK(piped.out.substr(0, piped.out.find("stdin:")) ==
        named.out.substr(0, named.out.find(file.path())));
  const ConfigFile wrong("{\"zero_optimization\": {\"satge\": 2}}");
  const RunResult refused = RunZeroplan("config check - <" + wrong.path());
  CHECK(refused.exit_code == 2);
  CHECK(Has(refused.err, wording::kStdinZeroOptimizationSatgeIs));
}

TEST_CASE("config check: all errors, exit code 2") {
  const ConfigFile file(
      "{\"zero_optimization\": {\"satge\": 2},\n\"fp16\": {\"enabled\": \"maybe\"}}");
  const RunResult run = RunZeroplan("config check " + file.path());
  CHECK(run.exit_code == 2);
  CHECK(run.out.empty());
  CHECK(Has(run.err, wording::kZeroOptimizationSatgeIsNot));
  CHECK(Has(run.err, wording::kFpEnabledMaybeIsNot));
  CHECK(RunZeroplan("config check /no/such/file.json").exit_code == 2);
  CHECK(RunZeroplan("config check").exit_code == 2);
}

TEST_CASE(
    "config check: broken JSON is an error with its place; Hjson is a note, strictly an error") {
  const ConfigFile broken(
      "{\n  \"train_batch_size\": 32\n  \"zero_optimization\": {\"stage\": 2}\n}\n");
  for (const char* how : {"", " --strict", " --for deepspeed"}) {
    const RunResult run = RunZeroplan("config check " + broken.path() + how);
    CHECK(run.exit_code == 2);
    CHECK(Has(run.err, broken.path() + ":2:25: a comma is missing after train_batch_size's value"));
  }
  const ConfigFile cut("{\"train_batch_size\": }");
  CHECK(Has(RunZeroplan("config check " + cut.path()).err, cut.path() + ":1:22: expected a value"));
  const ConfigFile commented("{\"train_batch_size\": 32, // all\n \"bf16\": {\"enabled\": true}}");
  const RunResult run = RunZeroplan("config check " + commented.path());
  CHECK(run.exit_code == 0);
  CHECK(Has(run.out, commented.path() + ":1:26: a comment is no JSON but Hjson"));
  const RunResult strict = RunZeroplan("config check --strict " + commented.path());
  CHECK(strict.exit_code == 2);
  CHECK(Has(strict.err, wording::kCommentIsNoJson));
}

TEST_CASE("config check --for: what DeepSpeed accepts, and what zeroplan honours") {
  const auto check = [](const ConfigFile& file, const char* more) {
    return RunZeroplan("config check " + file.path() + more);
  };
  // DeepSpeed's alone.
  const ConfigFile theirs(
      "{\"optimizer\": {\"type\": \"Lamb\", \"params\": {\"lr\": 1e-3, \"max_coeff\": 10}},\n"
      " \"zero_allow_untested_optimizer\": true,"
      " \"zero_optimization\": {\"stage\": 3, \"zero_quantized_weights\": true}}");
  CHECK(check(theirs, "").exit_code == 2);
  CHECK(check(theirs, " --for zeroplan").exit_code == 2);
  const RunResult accepted = check(theirs, " --for deepspeed");
  CAPTURE(accepted.err);
  CHECK(accepted.exit_code == 0);
  CHECK(Has(accepted.out, wording::kZeroplanDoesNotDoThis));
  CHECK(Has(accepted.out, wording::kNoErrorsForDeepspeed));
  // Zeroplan's alone.
  const ConfigFile ours(
      "{\"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\", "
      "\"ratio\": 0.5}},\n \"wall_clock_breakdown\": true}");
  CHECK(Has(check(ours, "").out, "warning: " + ours.path() + ": zeroplan runs this, DeepSpeed"));
  const RunResult refused = check(ours, " --for deepspeed");
  CHECK(refused.exit_code == 2);
  CHECK(Has(refused.err, wording::kDeepspeedDoesNotRunThis));
  const RunResult honoured = check(ours, " --for zeroplan");
  CHECK(honoured.exit_code == 0);
  CHECK(Lacks(honoured.out, wording::kDeepspeedItselfDoesNot));
  CHECK(Has(honoured.out, "warning: " + ours.path() + ":2: wall_clock_breakdown: has no effect"));
  // What neither has.
  const ConfigFile wrong("{\"zero_optimization\": {\"stage\": 7}}");
  for (const char* whose : {" --for deepspeed", " --for zeroplan"}) {
    CHECK(check(wrong, whose).exit_code == 2);
  }
}

TEST_CASE("config check --for deepspeed: optimizers and schedules of DeepSpeed's own") {
  const auto check = [](const std::string& rest) {
    const std::string path = (std::filesystem::temp_directory_path() /
                              ("zeroplan_fd_" + std::to_string(getpid()) + ".json"))
                                 .string();
    std::ofstream(path) << R"({"train_batch_size": 8, "zero_optimization": {"stage": 2}, )" << rest
                        << "}";
    RunResult run = RunZeroplan("config check " + path + " --for deepspeed");
    std::filesystem::remove(path);
    return run;
  };
  const auto optimizer = [&](const std::string& type, const std::string& rest = "") {
    return check(R"("optimizer": {"type": ")" + type + R"(", "params": {"lr": 0.1}})" + rest);
  };
  const std::string allow = R"(, "zero_allow_untested_optimizer": true)";
  for (const char* type : {"Lion", "Muon", "Adagrad"}) {
    CAPTURE(type);
    const RunResult run = optimizer(type);
    CHECK(run.exit_code == 0);
    CHECK(Has(run.out, "optimizer.type" + std::string(30, ' ') + type));
    CHECK(Lacks(run.out, wording::kOptimizerParamsBetas));
  }
  for (const char* type : {"SGD", "Lamb", "RMSprop"}) {
    CAPTURE(type);
    const RunResult run = optimizer(type);
    CHECK(run.exit_code == 2);
    CHECK(Has(run.err, R"(set "zero_allow_untested_optimizer": true)"));
    CHECK(optimizer(type, allow).exit_code == 0);
  }
  for (const char* type : {"OneBitAdam", "ZeroOneAdam", "OneBitLamb"}) {
    CAPTURE(type);
    const RunResult run = optimizer(type, allow);
    CHECK(run.exit_code == 2);
    CHECK(Has(run.err, wording::kDoesNotGoWithZero));
  }
  const RunResult cycle = check(
      R"("scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0, "cycle_max_lr": 1}})");
  CHECK(cycle.exit_code == 0);
  CHECK(Has(cycle.out, wording::kZeroplanDoesNotDoThis2));
  const RunResult cosine =
      check(R"("scheduler": {"type": "CosineAnnealingLR", "params": {"T_max": 9}})");
  CHECK(cosine.exit_code == 0);
  CHECK(Has(cosine.out, wording::kZeroplanDoesNotDoThis3));
  CHECK(Has(cosine.out, "CosineAnnealingLR "));
  const RunResult open = check(R"("train_micro_batch_size_per_gpu": "auto")");
  CHECK(Has(open.out, wording::kTrainMicroBatchSizePer));
  CHECK(Has(open.out, "1 warning"));
}

}  // namespace
}  // namespace zeroplan
