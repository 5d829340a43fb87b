// --grad-accum-dtype and --communication-dtype as a user gives them: what they take, what is said
// and written, and a run with them.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "core/families/load_model.h"
#include "tests/cli/run_binary.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/planner/plan_fixture.h"
#include "tests/temp_dir.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;

// With the tiny model's config.json.
class PrecisionFolder : public TempDir {
 public:
  PrecisionFolder() { std::ofstream(path("config.json")) << WriteHuggingFaceConfig(SmallModel()); }
};

// Of one choice of gpt2 on 4 GPUs.
Json Choice(const std::string& more) {
  const RunResult run = RunZeroplan(
      "estimate --model gpt2 --seq-len 128 --gpus 4 --offload-optimizer none --offload-param none "
      "--format json " +
      more);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  return Json::parse(run.out)["choices"][0];
}

uint64_t Grads(const Json& choice) { return choice["gpu_bytes"]["grads"]; }
uint64_t Sent(const Json& choice) { return choice["comm_bytes_per_step"]; }

TEST_CASE("estimate: what sums of gradients in fp32 take, by stage") {
  for (const char* stage : {"--stage 0 --grad-accum 2", "--stage 1 --grad-accum 2",
                            "--stage 2 --grad-accum 2", "--stage 3 --grad-accum 2"}) {
    CAPTURE(stage);
    const bool in_place = stage[8] <= '1';
    const Json plain = Choice(stage);
    const Json summed = Choice(std::string(stage) + " --grad-accum-dtype fp32");
    const Json reduced = Choice(std::string(stage) + " --communication-dtype fp32");
    CHECK(plain["grad_accum_dtype"] == "bf16");
    CHECK(plain["communication_dtype"] == "bf16");
    CHECK(summed["grad_accum_dtype"] == "fp32");
    CHECK(summed["communication_dtype"] == (in_place ? "fp32" : "bf16"));
    CHECK(reduced["grad_accum_dtype"] == "bf16");
    CHECK(reduced["communication_dtype"] == "fp32");
    CHECK(Grads(summed) == 2 * Grads(plain));
    CHECK(Grads(reduced) == Grads(plain));
    // Parameters are gathered in bf16 as before; gradients take twice their bytes.
    const Json both =
        Choice(std::string(stage) + " --grad-accum-dtype fp32 --communication-dtype fp32");
    CHECK(Sent(both) == Sent(reduced));
    CHECK(Sent(summed) == (in_place ? Sent(reduced) : Sent(plain)));
    CHECK(Sent(reduced) > Sent(plain));
    CHECK(Sent(reduced) <= 2 * Sent(plain));
    CHECK(reduced["step_seconds"]["total"].get<double>() >
          plain["step_seconds"]["total"].get<double>());
    CHECK(Choice(std::string(stage) + " --grad-accum-dtype bf16 --communication-dtype bf16") ==
          plain);
  }
}

TEST_CASE("estimate says which sums are in fp32, and where they change nothing") {
  const auto text = [](const std::string& more) {
    return RunZeroplan("estimate --explain --model gpt2 --seq-len 128 --gpus 4 " + more).out;
  };
  CHECK(Has(text(""), "\nbf16, micro-batch 1"));
  CHECK(Has(text("--grad-accum-dtype fp32"), "\nbf16, gradients summed in fp32, micro-batch 1"));
  CHECK(Has(text("--communication-dtype fp32"), "\nbf16, gradients reduced in fp32, micro-batch"));
  CHECK(Has(text("--communication-dtype fp32 --grad-accum-dtype fp32"),
            "\nbf16, gradients summed and reduced in fp32, micro-batch 1"));
  const std::string note = "fp32 sums over micro-steps: with one micro-step";
  CHECK(Has(text("--stage 2 --grad-accum-dtype fp32"), note));
  CHECK(Lacks(text("--stage 1 --grad-accum-dtype fp32"), note));
  CHECK(Lacks(text("--stage 2 --grad-accum 2 --grad-accum-dtype fp32"), note));
  CHECK(Lacks(text("--stage 2 --grad-accum-dtype fp32 --communication-dtype fp32"), note));
}

TEST_CASE("plan: fp32 sums are in its headline, its files, and the run of its plan") {
  const PrecisionFolder folder;
  const std::string ds = folder.path("ds.json"), plan = folder.path("plan.json");
  const RunResult planned = RunZeroplan(
      "plan --explain --quick --runtime zeroplan --model " + folder.path("config.json") +
      " --gpus 2 --stage 2 --global-batch 8 --dtype bf16 --grad-accum-dtype fp32 "
      "--communication-dtype fp32 --out " +
      ds + " --plan-out " + plan);
  CAPTURE(planned.err);
  REQUIRE(planned.exit_code == 0);
  CHECK(Has(WordsIn(planned.out), wording::kBfGradientsSummedAndReduced));
  CHECK(Has(planned.err, wording::kNoneOfTheseRunsOf));
  for (const Json& config : {Json::parse(ReadWhole(ds)), Json::parse(ReadWhole(plan))["config"]}) {
    CHECK(config["data_types"]["grad_accum_dtype"] == "fp32");
    CHECK(config["communication_data_type"] == "fp32");
  }
  const RunResult check = RunZeroplan("config check " + ds + " --gpus 2");
  CHECK(check.exit_code == 0);
  const RunResult explained = RunZeroplan("explain " + plan);
  CHECK(Has(explained.out, wording::kGradientsSummedAndReducedIn));
  const std::string metrics = folder.path("m.jsonl");
  const RunResult trained =
      RunZeroplan("train --plan " + plan + " --data " + SourcePath("LICENSE") +
                  " --threads 1 --backend cpu --steps 4 --metrics " + metrics);
  CAPTURE(trained.err);
  REQUIRE(trained.exit_code == 0);
  std::istringstream lines(ReadWhole(metrics));
  std::string first, last;
  std::getline(lines, first);
  for (std::string line; std::getline(lines, line);) last = line;
  CHECK(Json::parse(first)["plan"]["grad_accum_dtype"] == "fp32");
  CHECK(Json::parse(first)["plan"]["communication_dtype"] == "fp32");
  CHECK(Json::parse(last)["high_water_bytes"] ==
        Json::parse(ReadWhole(plan))["predicted"]["rank_arena_bytes"]);
}

TEST_CASE("train: fp32 sums by option are those of the config's keys") {
  const PrecisionFolder folder;
  std::ofstream(folder.path("ds.json")) << R"({"train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4, "bf16": {"enabled": true},
    "data_types": {"grad_accum_dtype": "fp32"}, "communication_data_type": "fp32",
    "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto", "overlap_comm": true}})";
  std::ofstream(folder.path("open.json")) << R"({"train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4, "bf16": {"enabled": true},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto", "overlap_comm": true}})";
  const auto metrics = [&](const std::string& config, const std::string& more) {
    const std::string file = folder.path("m.jsonl");
    std::filesystem::remove(file);
    const RunResult run =
        RunZeroplan("train --model " + folder.path("config.json") + " --data " +
                    SourcePath("LICENSE") + " --gpus 2 --threads 1 --steps 3 " + "--metrics " +
                    file + " --config " + folder.path(config) + more);
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    std::istringstream lines(ReadWhole(file));
    std::vector<Json> events;
    for (std::string line; std::getline(lines, line);) events.push_back(Json::parse(line));
    return events;
  };
  const std::vector<Json> keys = metrics("ds.json", ""), plain = metrics("open.json", "");
  const std::vector<Json> options =
      metrics("open.json", " --grad-accum-dtype fp32 --communication-dtype fp32");
  CHECK(options.front()["program"]["fingerprint"] == keys.front()["program"]["fingerprint"]);
  CHECK(options.front()["program"]["fingerprint"] != plain.front()["program"]["fingerprint"]);
  CHECK(options.back()["high_water_bytes"] == options.back()["planned_arena_bytes"]);
  for (size_t i = 1; i <= 3; ++i) CHECK(options[i]["loss"] == keys[i]["loss"]);
  CHECK(options[2]["loss"] != plain[2]["loss"]);
}

}  // namespace
}  // namespace zeroplan
