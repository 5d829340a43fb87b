// A plan carries a run: the model's folder with weights and tokenizer, what was predicted, and the
// rates that nobody gave.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/run/train/train_work.h"
#include "core/base/error.h"
#include "hwprofiles/loader.h"
#include "planner/report/report_text.h"
#include "planner/schemas/schemas.h"
#include "tests/cli/run_binary.h"
#include "tests/cli/tokenizer_model.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/planner/plan_fixture.h"
#include "tests/run_metrics.h"
#include "tests/temp_dir.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// A published model: config, weights, tokenizer with a chat template; conversations to train on;
// and a plan that was made in that folder's parent with a relative name.
class CarriedPlan {
 public:
  CarriedPlan() {
    const std::string drawn =
        MakeTokenizerModel(path("drawn"), "qwen2", {.layers = 1, .positions = 64, .vocab = 600});
    std::ofstream(drawn + "/chat_template.jinja")
        << "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
           "{% endfor %}";
    std::ofstream file(path("chats.jsonl"));
    for (int i = 0; i < 60; ++i) {
      file << R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", )"
           << R"("content": "I am number )" << i << "\"}]}\n";
    }
    file.close();
    const RunResult made =
        RunZeroplan("train --model " + drawn + " --fresh-weights --data " + path("chats.jsonl") +
                    " --threads 1 --steps 1 --seed 7 --save " + path("model"));
    CAPTURE(made.err);
    REQUIRE(made.exit_code == 0);
    fs::remove_all(path("model/checkpoints"));
    const RunResult plan = RunProgram(
        "zeroplan",
        "plan --model model --hw h200-141gb-sxm --gpus 1 --seq-len 64 --micro-batch 2 --grad-accum "
        "1 --dtype fp32 --quick --plan-out plan.json",
        "cd " + path("") + " && ZEROPLAN_NO_DETECT=1");
    CAPTURE(plan.err);
    REQUIRE(plan.exit_code == 0);
  }
  std::string path(const std::string& name) const { return root_.path(name); }
  RunResult Train(const std::string& more, const std::string& plan = "plan.json") const {
    return RunZeroplan("train --backend cpu --plan " + path(plan) + " --data " +
                       path("chats.jsonl") + " --threads 1 " + more);
  }

 private:
  TempDir root_;
};

TEST_CASE("a plan carries the run: weights, tokenizer and a rate for them") {
  const CarriedPlan folder;
  const Json plan = Json::parse(ReadWhole(folder.path("plan.json")));
  CHECK(plan["origin"]["model_folder"] == folder.path("model"));
  CHECK(plan["origin"]["hw_file"].is_null());
  CHECK(plan["origin"]["config"].is_null());
  CHECK(Json::parse(PlanSchema())["properties"].contains("origin"));

  const std::string out = folder.path("out"), metrics = folder.path("m.jsonl");
  const RunResult run = folder.Train("--steps 2 --save " + out + " --metrics " + metrics);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(Has(run.err, "weights: read from " + folder.path("model")));
  CHECK(Lacks(run.err, "differs"));  // planned against touched bytes
  CHECK(Has(run.err, wording::kLearningRateAsTheRun));
  CHECK(Lacks(run.err, wording::kBytesAreTokens));
  CHECK(ReadWhole(out + "/tokenizer.json") == ReadWhole(folder.path("model/tokenizer.json")));
  // The same as the folder by its name.
  const std::string control = folder.path("control.jsonl");
  const RunResult named = RunZeroplan(
      "train --model " + folder.path("model") + " --data " + folder.path("chats.jsonl") +
      " --threads 1 --steps 2 --micro-batch 2 --seq-len 64 --packing off --lr 2e-5 --metrics " +
      control);
  CAPTURE(named.err);
  REQUIRE(named.exit_code == 0);
  CHECK(LossesByStep(metrics).at(1) == doctest::Approx(LossesByStep(control).at(1)).epsilon(1e-5));
  CHECK(LossesByStep(metrics).at(2) == doctest::Approx(LossesByStep(control).at(2)).epsilon(1e-5));
  // Options beside a plan; a resume keeps the rate.
  const RunResult more = folder.Train("--steps 3 --resume --save " + out);
  CAPTURE(more.err);
  CHECK(more.exit_code == 0);
  CHECK(Has(more.err, "step 3/3"));
  CHECK(Lacks(more.err, "lr:"));
  CHECK(Has(folder.Train("--steps 1 --lr 5e-4").err, "lr 5.00e-04"));
  const RunResult fresh = folder.Train("--steps 1 --fresh-weights");
  CHECK(Has(fresh.err, "weights: fresh"));
  CHECK(Has(fresh.err, "lr 1.00e-03"));
  CHECK(Has(fresh.err, wording::kDiffersSavesWerePlannedNone));
}

TEST_CASE("a plan carries the run: a folder that is gone is named, and --model says where it is") {
  const CarriedPlan folder;
  fs::rename(folder.path("model"), folder.path("moved"));
  const RunResult gone = folder.Train("--steps 1");
  CHECK(gone.exit_code == 2);
  CHECK(Has(gone.err, "plan.json: origin.model_folder: " + folder.path("model")));
  CHECK(Has(gone.err, "--model DIR"));
  const RunResult there = folder.Train("--steps 1 --model " + folder.path("moved"));
  CAPTURE(there.err);
  CHECK(there.exit_code == 0);
  CHECK(Has(there.err, "weights: read from " + folder.path("moved")));
  // A plan without it has no tokenizer, and bytes of records are not trained on.
  Json plan = Json::parse(ReadWhole(folder.path("plan.json")));
  plan.erase("origin");
  std::ofstream(folder.path("old.json")) << plan.dump(2);
  const RunResult old = folder.Train("--steps 1", "old.json");
  CAPTURE(old.err);
  CHECK(old.exit_code == 2);
  CHECK(Has(old.err, "chats.jsonl: bytes are tokens"));
}

TEST_CASE("a plan carries the run: a machine that differs is said, in its GPU, memory and count") {
  PlanFile plan = ReadPlan(WritePlan(SmallPlan(), kSmallConfig), "p.json");
  HardwareProfile here = LoadProfile(std::string(kDefaultProfile));
  CHECK(MachineDiffers(plan, here, 2).empty());
  CHECK(MachineDiffers(plan, here, 0).empty());  // how many there are is not known
  CHECK(Has(MachineDiffers(plan, here, 8), wording::kJsonWasMadeForNvidia));
  here.gpu.usable_memory.value = 40e9;
  CHECK(Has(MachineDiffers(plan, here, 2), wording::kHereAreNvidiaSxmWith));
  here = LoadProfile("dgx-a100-80gb");
  plan.cluster.gpu_capacity_bytes = 1'000'000'000;
  CHECK(Has(MachineDiffers(plan, here, 2), here.gpu.name));
}

TEST_CASE("a plan carries the run: a step that takes longer by this machine's figures is said") {
  PlanFile plan = ReadPlan(WritePlan(SmallPlan(), kSmallConfig), "p.json");
  REQUIRE(plan.step_seconds);
  const Program program = CheckedProgram(plan);
  HardwareProfile here = LoadProfile(plan.cluster.hardware);
  RunPrediction prediction = PredictRun(program, here, plan.cluster.gpus_per_node);
  CHECK(StepDiffers(plan, prediction).empty());
  // The host's memory, measured where the run starts.
  here.node.adam_bandwidth->value /= 800;
  here.node.triad_bandwidth->value /= 800;
  prediction = PredictRun(program, here, plan.cluster.gpus_per_node);
  const std::string text = StepDiffers(plan, prediction);
  CAPTURE(text);
  CHECK(Has(text, "p.json says " + FormatSeconds(*plan.step_seconds)));
  CHECK(Has(text, plan.cluster.hardware));
  CHECK(Has(text, "take " + FormatSeconds(*prediction.step_seconds)));
  CHECK(*prediction.step_seconds > 1.1 * *plan.step_seconds);
  prediction.step_seconds.reset();
  CHECK(StepDiffers(plan, prediction).empty());
}

TEST_CASE("a plan carries the run: a host of several cards is known by its parts") {
  const TempDir folder;
  for (const std::string host : {"4090+3090", "5x3060"}) {
    CAPTURE(host);
    const std::string file = folder.path("plan.json");
    REQUIRE(
        RunZeroplan("plan --model gpt2 --quick --hw " + host + " --plan-out " + file).exit_code ==
        0);
    const RunResult run = RunZeroplan("explain " + file);
    CAPTURE(run.err);
    CHECK(run.exit_code == 0);
  }
}

TEST_CASE("a plan carries its prediction by cause") {
  const Plan plan = SmallPlan();
  const PlanFile read = ReadPlan(WritePlan(plan, kSmallConfig), "p.json");
  REQUIRE(read.step);
  const TimeEstimate& time = plan.choice.time;
  CHECK(read.step_seconds == time.total_seconds);
  CHECK(read.step->total_seconds == *time.total_seconds);
  CHECK(!read.origin);
}

}  // namespace
}  // namespace zeroplan
