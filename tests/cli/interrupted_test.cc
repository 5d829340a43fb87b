// Runs that are interrupted, as a user plans and trains them.
#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/save_interval.h"
#include "executor/train/save_schedule.h"
#include "planner/plan/plan_fields.h"
#include "planner/plan/plan_file.h"
#include "planner/schemas/schemas.h"
#include "tests/cli/run_binary.h"
#include "tests/cli/train_workspace.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/run_metrics.h"
#include "tests/temp_dir.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;

const std::string kInterruptedPlan = "plan --explain --model gpt2 --hw dgx-a100-80gb --quick ";

Json PlanJson(const std::string& options) {
  const RunResult run = RunZeroplan(kInterruptedPlan + "--format json " + options);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  return Json::parse(run.out);
}

TEST_CASE("plan --interruptions: what the JSON says is the model's, and has the schema's keys") {
  const Json plan = PlanJson("--interruptions 2/day --tokens 10B --gpu-hour-price 2 --notice 2min");
  const Json& told = plan["interruptions"];
  const Json schema = Json::parse(PlanSchema())["properties"]["interruptions"];
  size_t keys = 0;
  for (const char* key : kInterruptionKeys) {
    CAPTURE(key);
    CHECK(told.contains(key));
    CHECK(schema["properties"].contains(key));
    ++keys;
  }
  CHECK(told.size() == keys);
  CHECK(schema["properties"].size() == keys);
  CHECK(told["rate_per_hour"].get<double>() == doctest::Approx(2.0 / 24));
  const double step = plan["predicted"]["step_seconds"]["total"];
  const InterruptedRun run = {
      told["rate_per_hour"].get<double>() / 3600, step, told["save_seconds"],
      told["whole_save_seconds"].get<double>() - told["save_seconds"].get<double>(),
      told["restart_seconds"]};
  const int64_t steps = plan["run"]["steps"];
  CHECK(told["interval_steps"] == BestStepsBetweenSaves(run, steps));
  CHECK(told["interval_seconds"].get<double>() ==
        doctest::Approx(told["interval_steps"].get<double>() * step));
  const double expected = InterruptedSeconds(run, steps, told["interval_steps"]);
  CHECK(told["expected_seconds"].get<double>() == doctest::Approx(expected));
  CHECK(told["expected_price"].get<double>() == doctest::Approx(expected / 3600 * 8 * 2));
  CHECK(told["lost_share"].get<double>() ==
        doctest::Approx(1 - plan["run"]["seconds"].get<double>() / expected));
  CHECK(told["fits_notice"] == true);
  // What is open is said.
  CHECK(Has(plan["assumed"].dump(), "--restart-time 10min"));
  CHECK(Has(plan["assumed"].dump(), "--async-save auto"));
  CHECK(plan["lower"]["async_save"] == true);

  const Json waits = PlanJson("--interruptions 2/day --async-save off --restart-time 1min");
  CHECK(waits["interruptions"]["expected_seconds"].is_null());
  CHECK(waits["interruptions"]["fits_notice"].is_null());
  CHECK(waits["interruptions"]["save_seconds"] == waits["checkpoint"]["write_seconds"]);
  CHECK(waits["interruptions"]["restart_seconds"] < 70);
  CHECK_FALSE(PlanJson("")["lower"]["async_save"]);
  CHECK_FALSE(PlanJson("").contains("interruptions"));
}

TEST_CASE("estimate --interruptions: table, CSV and JSON of every choice") {
  const std::string ask =
      "estimate --explain --model gpt2 --hw dgx-a100-80gb --stage 1,3 "
      "--interruptions 1/6h --notice 30s --tokens 1B --gpu-hour-price 2";
  const RunResult table = RunZeroplan(ask);
  CHECK(table.exit_code == 0);
  CHECK(Has(table.out, wording::kInterruptedOnceInOnAverage));
  CHECK(Has(table.out, "lost% notice"));
  const Json json = Json::parse(RunZeroplan(ask + " --format json").out);
  for (const Json& choice : json["choices"]) {
    const Json& told = choice["interruptions"];
    CHECK(told["expected_seconds"] > choice["training"]["seconds"]);
    CHECK(told["lost_share"] > 0);
  }
  const std::string csv = RunZeroplan(ask + " --format csv").out;
  CHECK(Has(csv.substr(0, csv.find('\n')), wording::kWhyNotInterruptionsIntervalSteps));
  const std::string plain =
      RunZeroplan("estimate --explain --model gpt2 --hw dgx-a100-80gb --format csv").out;
  CHECK(Lacks(plain, "interruptions"));
}

TEST_CASE("--interruptions: methods that are compared save as a plan of one of them does") {
  const std::string run = "--interruptions 1/h --tokens 100M ";
  for (const std::string saves : {"", "--async-save auto", "--async-save off"}) {
    CAPTURE(saves);
    const RunResult all = RunZeroplan(kInterruptedPlan + run + "--method full,lora " + saves);
    CAPTURE(all.err);
    REQUIRE(all.exit_code == 0);
    const std::string compared = Unwrapped(all.out);
    CHECK(Has(compared, "--async-save auto") == (saves != "--async-save off"));
    for (const std::string method : {"full", "lora"}) {
      const RunResult one =
          RunZeroplan(kInterruptedPlan + run + "--method " + method + " " + saves);
      REQUIRE(one.exit_code == 0);
      const std::string plan = Unwrapped(one.out);
      const size_t from = plan.find("Interrupted once in ");
      REQUIRE(from != std::string::npos);
      const std::string sentence = plan.substr(from, plan.find(" (docs/", from) - from);
      CAPTURE(sentence);
      CHECK(Has(compared, sentence));
    }
  }
}

TEST_CASE("plan --for: what is written trains as long as was planned, on what was counted") {
  const TempDir folder;
  const std::string written = folder.path("run.yaml");
  const auto train = [&](const std::string& asked) {
    const RunResult run = RunZeroplan(asked + " --quick --plan-out " + folder.path("plan.json") +
                                      " --out " + written);
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    CHECK(Has(Unwrapped(run.out), wording::kSoItEndsAfterTrain) == Lacks(asked, "--tokens"));
    const std::string text = ReadWhole(written);
    const size_t at = text.find("zeroplan train --plan ");
    REQUIRE(at != std::string::npos);
    return text.substr(at, text.find('\n', at) - at);
  };
  const std::string plan = "plan --model gpt2 --hw dgx-h100 --global-batch 64 ";
  CHECK(Has(train(plan + "--tokens 65536000 --for skypilot"), " --steps 1000 "));
  CHECK(Has(train(plan + "--tokens 65536000 --for kubernetes"), " --steps 1000 "));
  CHECK(Has(train(plan + "--packing documents --for skypilot"), " --packing documents "));
  CHECK(Lacks(train(plan + "--for kubernetes"), "--steps"));
}

TEST_CASE("--interruptions: what is refused names the option and the fix") {
  const struct {
    std::string command;
    const char* message;
  } rows[] = {
      {kInterruptedPlan + "--interruptions 0/h", "--interruptions: 0/h is not allowed"},
      {kInterruptedPlan + "--interruptions=-1/h", "--interruptions: -1/h is not allowed"},
      {kInterruptedPlan + "--interruptions 1e-300/h", "at least one in a hundred years"},
      {kInterruptedPlan + "--interruptions 0.1", "such as 0.1/h, 2/day or 1/6h"},
      {kInterruptedPlan + "--notice 30s", "--notice: 30s has no effect without --interruptions"},
      {kInterruptedPlan + "--restart-time 5min", "--restart-time: 5min has no effect"},
      {kInterruptedPlan + "--interruptions 1/h --notice 30", "--notice: 30 is not allowed"},
      {kInterruptedPlan + "--interruptions 1/h --runtime deepspeed",
       "--interruptions: 1/h is not allowed with DeepSpeed"},
      {kInterruptedPlan + "--for skypilot --out a.yaml",
       "--for: skypilot starts 'train --plan'; add --plan-out FILE"},
      {kInterruptedPlan + "--for kubernetes --plan-out p.json",
       "--for: kubernetes writes a file; add --out FILE"},
      {"plan --model gpt2 --hw rtx4080 --for skypilot --out a.yaml --plan-out p.json",
       "SkyPilot's catalogue has no name for NVIDIA GeForce RTX 4080"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.command);
    const RunResult run = RunZeroplan(row.command);
    CHECK(run.exit_code == 2);
    CHECK(run.out.empty());
    CHECK(Has(run.err, row.message));
  }
}

std::vector<Json> SavedEvents(const std::string& metrics) {
  std::vector<Json> events;
  for (const auto& line : ReadMetricsLines(metrics)) {
    if (line["event"] == "saved") events.push_back(Json::parse(line.dump()));
  }
  return events;
}

// Each chosen interval is the model's, by the times beside it.
void CheckChosen(const Json& saved, double rate) {
  REQUIRE(saved["interval_steps"].is_number());
  CHECK(saved["interruptions_per_hour"].get<double>() == doctest::Approx(rate * 3600));
  const InterruptedRun run = {.rate = rate,
                              .step_seconds = saved["interval_step_seconds"],
                              .save_seconds = saved["interval_save_seconds"],
                              .lag_seconds = saved["interval_write_seconds"]};
  CHECK(saved["interval_steps"] == BestStepsBetweenSaves(run, std::numeric_limits<int32_t>::max()));
}

TEST_CASE("train --save-every auto: the interval that its saves make best, and the same training") {
  const Workspace work;
  constexpr int kSteps = 120;
  const auto train = [&](const std::string& name, const std::string& more) {
    const RunResult run = RunZeroplan(work.Train(
        "--gpus 2 --stage 2 --metrics " + work.path(name + ".jsonl") + " " + more, kSteps));
    CAPTURE(run.err);
    CHECK(run.exit_code == 0);
    return run.err;
  };
  train("plain", "");
  for (const std::string async : {"off", "on"}) {
    CAPTURE(async);
    const std::string said = train(async, "--save " + work.path(async) + " --async-save " + async +
                                              " --save-every auto --interruptions 1/s");
    CHECK(Has(said, wording::kSavesFromHereOnEvery));
    CHECK(Has(said, wording::kAnInterruptionIsExpectedOnce));
    const std::vector<Json> saved = SavedEvents(work.path(async + ".jsonl"));
    REQUIRE(saved.size() >= 2);
    CHECK(saved.front()["step"] == SaveSchedule::kFirst);
    CHECK(saved.back()["step"] == kSteps);
    for (size_t i = 0; i < saved.size(); ++i) {
      CheckChosen(saved[i], 1);
      CHECK((saved[i]["interval_write_seconds"] == 0) == (async == "off"));
      if (async == "on" || i + 1 == saved.size()) continue;
      const int64_t due =
          saved[i]["step"].get<int64_t>() + saved[i]["interval_steps"].get<int64_t>();
      CHECK(saved[i + 1]["step"] == std::min<int64_t>(due, kSteps));
    }
    CHECK(LossesByStep(work.path(async + ".jsonl")) == LossesByStep(work.path("plain.jsonl")));
    CHECK(RunZeroplan("checkpoint verify " + work.path(async)).exit_code == 0);
  }
}

TEST_CASE("train --save-every auto: a resumed run measures anew and ends the same") {
  const Workspace work;
  const std::string options = "--save-every auto --interruptions 1/s --save ";
  REQUIRE(RunZeroplan(work.Train("--save " + work.path("whole"), 30)).exit_code == 0);
  REQUIRE(RunZeroplan(work.Train(options + work.path("parts"), 12)).exit_code == 0);
  const RunResult rest = RunZeroplan(work.Train(
      options + work.path("parts") + " --resume --metrics " + work.path("rest.jsonl"), 30));
  CAPTURE(rest.err);
  REQUIRE(rest.exit_code == 0);
  CHECK(SavedEvents(work.path("rest.jsonl")).front()["step"] == 12 + SaveSchedule::kFirst);
  CHECK(ReadWhole(work.path("parts/model.safetensors")) ==
        ReadWhole(work.path("whole/model.safetensors")));
}

TEST_CASE("train --save-every auto: the rate is the option's, or the plan's") {
  const Workspace work;
  const auto refused = [&](const std::string& more) {
    const RunResult run = RunZeroplan(work.Train(more));
    CHECK(run.exit_code == 2);
    return run.err;
  };
  const std::string save = "--save " + work.path("out");
  CHECK(Has(refused(save + " --save-every auto"),
            "--save-every: auto goes by how often the run is interrupted; add --interruptions"));
  CHECK(Has(refused(save + " --interruptions 1/h"),
            "--interruptions: 1/h has no effect without --save-every auto"));
  CHECK(Has(refused("--save-every auto --interruptions 1/h"), "--save-every: auto needs --save"));
  CHECK(Has(refused(save + " --save-every often"), "use a number of steps, or auto"));

  const std::string file = work.path("plan.json");
  const std::string plan =
      "plan --model " + work.path("config.json") +
      " --gpus 2 --stage 2 --hw a10 --dtype fp32 --micro-batch 1 --grad-accum 1 "
      "--quick --plan-out " +
      file;
  REQUIRE(RunZeroplan(plan + " --interruptions 1/2h").exit_code == 0);
  CHECK(*ReadPlan(ReadWhole(file), file).interruption_rate == doctest::Approx(1.0 / 7200));
  const auto planned = [&](const std::string& more) {
    return RunZeroplan("train --backend cpu --threads 1 --steps 8 --plan " + file + " --data " +
                       SourcePath("LICENSE") + " --save-every auto --save " + more);
  };
  CHECK(Has(planned(work.path("a")).err, wording::kOnceInAuto));
  CHECK(Has(planned(work.path("b") + " --interruptions 1/3h").err, "once in 3.00 h"));
  std::string edited = ReadWhole(file);
  edited.replace(edited.find("\"rate_per_hour\""), 15, "\"rate_per_week\"");
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { ReadPlan(edited, "p"); }), "rate_per_hour"));
  REQUIRE(RunZeroplan(plan).exit_code == 0);
  CHECK_FALSE(ReadPlan(ReadWhole(file), file).interruption_rate);
  const RunResult none = planned(work.path("c"));
  CHECK(none.exit_code == 2);
  CHECK(Has(none.err, wording::kSuchAsToTrainOr));
}

}  // namespace
}  // namespace zeroplan
