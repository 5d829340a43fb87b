// --master-weights, --optimizer-states and plan --allow as a user gives them: what they take, what
// is said and written.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/run_binary.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/temp_dir.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;

Json Estimated(const std::string& more) {
  const RunResult run = RunZeroplan(
      "estimate --model gpt2 --seq-len 128 --gpus 4 --stage 1 --offload-optimizer none --format "
      "json " +
      more);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  return Json::parse(run.out)["choices"][0];
}

TEST_CASE("estimate: what states of each kind take, and how they are named") {
  const Json plain = Estimated("");
  CHECK(plain["master_weights"] == "fp32");
  CHECK(plain["optimizer_states"] == "fp32");
  const double all = plain["gpu_bytes"]["optimizer"];  // 12 bytes a parameter
  struct Case {
    const char* options;
    double bytes;  // a parameter, beside it
  };
  for (const Case& c :
       {Case{"--master-weights split", 10}, Case{"--master-weights 16bit", 8},
        Case{"--optimizer-states bf16", 8}, Case{"--optimizer-states 8bit", 4 + 2 * 260.0 / 256},
        Case{"--master-weights bf16 --optimizer-states bf16", 4},
        Case{"--master-weights split --optimizer-states 8bit", 2 + 2 * 260.0 / 256},
        Case{"--dtype fp16 --master-weights fp16", 8}}) {
    CAPTURE(c.options);
    const Json light = Estimated(c.options);
    CHECK(light["gpu_bytes"]["optimizer"].get<double>() ==
          doctest::Approx(all * c.bytes / 12).epsilon(0.002));
  }
  const RunResult text = RunZeroplan(
      "estimate --explain --model gpt2 --gpus 2 --master-weights 16bit --optimizer-states bf16");
  CHECK(Has(WordsAlone(text.out), wording::kBfBitMastersBfStates));
  CHECK(Has(WordsAlone(text.out), wording::kValidationLossAgainstFpStates));
  const RunResult fp16 = RunZeroplan(
      "estimate --explain --model gpt2 --gpus 2 --dtype fp16 --master-weights 16bit "
      "--optimizer-states bf16");
  CHECK(Has(WordsAlone(fp16.out), wording::kItsCostInAccuracyIs));
  CHECK_FALSE(Has(WordsAlone(fp16.out), "validation loss"));
  const RunResult csv = RunZeroplan(
      "estimate --explain --model gpt2 --gpus 2 --stage 1 --format csv --optimizer-states 8bit");
  CHECK(Has(csv.out, wording::kCommunicationDtypeMasterWeightsOptimizer));
  CHECK(Has(csv.out, wording::kBfBfBfFpBit));
}

TEST_CASE("states that do not go together are refused by name") {
  const auto error = [](const std::string& command) {
    const RunResult run = RunZeroplan(command + " --model gpt2 --gpus 2 --hw hgx-h200");
    CAPTURE(command);
    CHECK(run.exit_code == 2);
    return WordsAlone(run.err);
  };
  CHECK(Has(error("estimate --dtype fp16 --master-weights split"), "use fp32 or 16bit"));
  CHECK(Has(error("estimate --dtype fp16 --master-weights bf16"), "bf16 is not allowed in fp16"));
  CHECK(Has(error("estimate --dtype fp32 --master-weights 16bit"), "or train in bf16"));
  CHECK(Has(error("estimate --optimizer-states int8"), "use fp32, bf16, 8bit"));
  CHECK(Has(error("estimate --runtime fsdp2 --master-weights split"), "--param-dtype bf16"));
  CHECK(Has(error("estimate --runtime ddp --optimizer-states 8bit"), "--optim adamw_torch_8bit"));
  CHECK(Has(error("estimate --runtime deepspeed --optimizer-states 8bit"),
            "has no optimizer states"));
  CHECK(Has(error("estimate --runtime deepspeed --optimizer-states bf16"),
            "give --master-weights 16bit too"));
  CHECK(Has(error("estimate --runtime deepspeed --master-weights split --optimizer-states 8bit"),
            "--master-weights split: DeepSpeed has no master weights in two halves"));
  CHECK(Has(error("estimate --runtime deepspeed --dtype fp16 --master-weights 16bit "
                  "--optimizer-states bf16"),
            "in a run of fp16; use fp32 for it and --master-weights"));
  CHECK(Has(error("estimate --runtime deepspeed --param-dtype bf16 --master-weights 16bit "
                  "--optimizer-states bf16"),
            "--param-dtype: DeepSpeed has keys of the config for it"));
  CHECK(Has(error("plan --quick --allow bf16-states --master-weights split"),
            "leave one of the two"));
  CHECK(Has(error("plan --quick --allow split-masters --dtype fp32"), "use 8bit-states"));
  CHECK(Has(error("plan --quick --allow 8bit-states --runtime deepspeed"), "(--master-weights"));
  CHECK(Has(error("plan --quick --allow 4bit-states"), "did you mean 8bit-states?"));
}

TEST_CASE("estimate --runtime deepspeed: light states that it has, at the stages that have them") {
  const RunResult run = RunZeroplan(
      "estimate --model gpt2 --gpus 2 --runtime deepspeed --master-weights 16bit "
      "--optimizer-states bf16 --format json");
  REQUIRE(run.exit_code == 0);
  const Json choices = Json::parse(run.out)["choices"];
  CHECK(choices.size() > 3);
  for (const Json& choice : choices) CHECK(choice["stage"] != 0);
}

TEST_CASE("plan: states that are said are in its file, which train reads") {
  const TempDir folder;
  const std::string file = folder.path("plan.json");
  const RunResult run = RunZeroplan(
      "plan --quick --model gpt2 --gpus 1 --global-batch 8 --master-weights split "
      "--optimizer-states 8bit --plan-out " +
      file);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  std::ifstream in(file);
  const Json plan = Json::parse(in);
  CHECK(plan["config"]["_zeroplan"]["master_weights"] == "split");
  CHECK(plan["config"]["_zeroplan"]["optimizer_states"] == "8bit");
  const RunResult explained = RunZeroplan("explain " + file);
  CAPTURE(explained.err);
  CHECK(explained.exit_code == 0);
  CHECK(Has(WordsAlone(explained.out), wording::kSplitMastersBitStates));
}

// Where memory is so short that fp32 states do not fit one GPU.
constexpr const char* kShort =
    "plan --model gpt2-large --gpus 1 --hw hgx-h200 --offload-optimizer none --offload-param none ";

TEST_CASE("plan --allow: lighter states where others do not fit, and what they cost") {
  const RunResult exact = RunZeroplan(std::string(kShort) + "--gpu-memory 13GB --quick");
  CHECK(exact.exit_code == 3);
  const RunResult light = RunZeroplan(std::string(kShort) +
                                      "--gpu-memory 13GB --allow 8bit-states,bf16-states "
                                      "--format json");
  CAPTURE(light.err);
  REQUIRE(light.exit_code == 0);
  const Json plan = Json::parse(light.out);
  bool fits = false;
  for (const Json& stage : plan["stages"]) {
    if (!stage["fits"]) continue;
    fits = true;
    CHECK(stage["choice"]["optimizer_states"] != "fp32");
  }
  CHECK(fits);
  // Where there is room the exact ones stay.
  const RunResult roomy =
      RunZeroplan(std::string(kShort) + "--gpu-memory 140GB --quick --allow all --format json");
  REQUIRE(roomy.exit_code == 0);
  for (const Json& note : Json::parse(roomy.out)["notes"]) {
    CHECK_FALSE(Has(note.get<std::string>(), wording::kOptimizerStatesBit));
  }
}

TEST_CASE("plan: where nothing fits lighter states are a change, and they fit") {
  const std::string asked =
      "plan --model gpt2-large --gpus 1 --hw hgx-h200 --host-memory 8GB --host-reserve 6GB "
      "--global-batch 1 --gpu-memory 12GB ";
  const RunResult run = RunZeroplan(asked);
  CHECK(run.exit_code == 3);
  CHECK(Has(WordsAlone(run.err), wording::kSmallestChangeThatFitsSplit));
  CHECK(RunZeroplan(asked + "--quick --allow split-masters").exit_code == 0);
}

double SpeedOf(const std::string& command) {
  const RunResult run = RunZeroplan(command + " --format json");
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  return Json::parse(run.out)["predicted"]["tokens_per_second"];
}

TEST_CASE("plan: what lighter states would bring is said unasked, and holds when asked for") {
  const std::string asked =
      "plan --explain --model gpt2-xl --gpus 1 --hw hgx-h200 --offload-optimizer none "
      "--offload-param none "
      "--gpu-memory 27GB --checkpointing all ";
  const RunResult run = RunZeroplan(asked);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  const std::string words = WordsAlone(run.out);
  CAPTURE(words);
  REQUIRE(Has(words, wording::kOptimizerStatesAreFpWith));
  const double now = SpeedOf(asked + "--quick");
  for (const char* light : {"split-masters", "8bit-states", "bf16-states"}) {
    const std::string said = std::string("with --allow ") + light + " ";
    const size_t at = words.find(said);
    REQUIRE(at != std::string::npos);
    const double times = std::stod(words.substr(at + said.size()));
    CHECK(times >= 1.05);
    CHECK(SpeedOf(asked + "--quick --allow " + light) / now >= times);
  }
  // Quick answers look at nothing else, and what is said is not said again.
  CHECK_FALSE(Has(RunZeroplan(asked + "--quick").out, "Optimizer states are fp32"));
  CHECK_FALSE(Has(RunZeroplan(asked + "--master-weights fp32").out, "Optimizer states are fp32"));
  const RunResult fewer = RunZeroplan(
      "plan --explain --model gpt2-xl --gpus 2 --hw hgx-h200 --offload-optimizer none "
      "--offload-param none "
      "--gpu-memory 25.5GB --checkpointing all");
  CHECK(Has(WordsAlone(fewer.out), wording::kWithSplitMastersTheModel));
}

TEST_CASE("plan: of lighter states nothing is said that was not asked about") {
  const std::string asked =
      "plan --explain --model gpt2-large --gpus 8 --hw hgx-h200 --gpu-memory 11.2GB "
      "--offload-optimizer none "
      "--offload-param none ";
  const RunResult fewest = RunZeroplan(asked + "--objective fewest-gpus");
  const std::string words = WordsAlone(fewest.out);
  CAPTURE(words);
  CHECK_FALSE(Has(words, "times as fast"));
  REQUIRE(Has(words, wording::kWithBitStatesItFits));
  const RunResult back =
      RunZeroplan(asked + "--objective fewest-gpus --quick --allow 8bit-states --format json");
  REQUIRE(back.exit_code == 0);
  CHECK(Json::parse(back.out)["cluster"]["gpus"] == 1);
  CHECK_FALSE(Has(RunZeroplan(asked + "--objective headroom").out, "Optimizer states are fp32"));
  CHECK_FALSE(Has(RunZeroplan("plan --explain --largest --gpus 2 --hw hgx-h200").out,
                  "Optimizer states are fp32"));
}

TEST_CASE("plan --out: states that DeepSpeed has not lead to what can be written") {
  const TempDir folder;
  const std::string asked =
      "plan --model gpt2-xl --gpus 2 --hw hgx-h200 --gpu-memory 20GB --quick ";
  const std::string out = " --out " + folder.path("x.json");
  const RunResult split = RunZeroplan(asked + "--master-weights split" + out);
  CHECK(split.exit_code == 2);
  CHECK(Has(WordsAlone(split.err), wording::kUseForPlanThatZeroplan));
  CHECK_FALSE(Has(WordsAlone(split.err), "--runtime zeroplan"));
  const RunResult allowed = RunZeroplan(asked + "--allow split-masters,8bit-states" + out);
  CHECK(allowed.exit_code == 2);
  CHECK(Has(WordsAlone(allowed.err), wording::kUseForItsPlanInstead));
  CHECK_FALSE(Has(WordsAlone(allowed.err), "--master-weights"));
}

}  // namespace
}  // namespace zeroplan
