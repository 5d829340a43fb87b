// --async-save as a user gives it: what runs, what plans count, what kills leave.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "core/base/units.h"
#include "machine/detect.h"
#include "tests/cli/run_binary.h"
#include "tests/cli/train_workspace.h"
#include "tests/has.h"
#include "tests/run_metrics.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::vector<Json> Events(const std::string& metrics, const std::string& kind) {
  std::vector<Json> events;
  for (const Json& line : ReadMetricsLines(metrics)) {
    if (line["event"] == kind) events.push_back(line);
  }
  return events;
}

TEST_CASE("train --async-save: saves beside the steps by default, and waits where asked to") {
  const Workspace work;
  const auto run = [&](const std::string& name, const std::string& option) {
    const RunResult result =
        RunZeroplan(work.Train("--gpus 2 --stage 2 --save-every 10 --save " + work.path(name) +
                               " --metrics " + work.path(name + ".jsonl") + option));
    CAPTURE(result.err);
    CHECK(result.exit_code == 0);
    CHECK(RunZeroplan("checkpoint verify " + work.path(name)).exit_code == 0);
    return result.err;
  };
  const std::string beside = run("beside", ""), waiting = run("waiting", " --async-save off");
  CHECK(Has(beside, wording::kSavesWrittenBesideTheSteps));
  CHECK(Has(beside, wording::kStepWrittenIn));
  CHECK(Has(beside, wording::kBesideTheStepsWhichStood));
  CHECK(waiting.find("beside the steps") == std::string::npos);
  for (const bool is_beside : {true, false}) {
    const std::string file = work.path(is_beside ? "beside.jsonl" : "waiting.jsonl");
    const std::vector<Json> saved = Events(file, "saved");
    REQUIRE(saved.size() == 3);
    for (size_t i = 0; i < 3; ++i) {
      CHECK(saved[i]["step"] == 10 * (i + 1));
      CHECK(saved[i]["beside"] == (is_beside && i < 2));  // no step follows the last
      CHECK(saved[i]["stall_seconds"] > 0);
      CHECK(saved[i]["write_seconds"] > 0);
    }
    const Json end = Events(file, "end").at(0);
    CHECK(end["saves"] == 3);
    CHECK(end["high_water_bytes"] == end["planned_arena_bytes"]);
  }
  // The copy is counted, and nothing else differs.
  const auto planned = [&](const std::string& name) {
    return Events(work.path(name + ".jsonl"), "start").at(0)["planned_bytes"];
  };
  CHECK(planned("beside")["gpu"] == planned("waiting")["gpu"]);
  CHECK(planned("beside")["host"]["pinned"] == planned("waiting")["host"]["pinned"]);
  CHECK(planned("beside")["host"]["pageable"] > planned("waiting")["host"]["pageable"]);
  CHECK(LossesByStep(work.path("beside.jsonl")) == LossesByStep(work.path("waiting.jsonl")));
}

TEST_CASE("train --async-save: without saves between steps there is nothing to go on beside") {
  const Workspace work;
  for (const std::string& save : {std::string(), " --save " + work.path("out")}) {
    const RunResult run = RunZeroplan(work.Train("--async-save on" + save));
    CHECK(run.exit_code == 2);
    CHECK(Has(run.err, wording::kOnHasNoEffect));
    CHECK(Has(run.err, "--save-every"));
  }
  const RunResult run = RunZeroplan(work.Train("--save " + work.path("out")));
  CHECK(run.exit_code == 0);
  CHECK(run.err.find("Saves:") == std::string::npos);
}

TEST_CASE("train --async-save: where the copy finds no room, auto waits and on is refused") {
  const Workspace work;
  const std::string save = "--gpus 2 --stage 2 --save-every 10 --save ";
  // What the run needs without the copy, and less than half of the copy.
  REQUIRE(RunZeroplan(work.Train(save + work.path("off") + " --async-save off --metrics " +
                                 work.path("off.jsonl")))
              .exit_code == 0);
  const Json planned = Events(work.path("off.jsonl"), "start").at(0)["planned_bytes"];
  const uint64_t needs =
      2 * (planned["gpu"]["total"].get<uint64_t>() + planned["host"]["total"].get<uint64_t>());
  const auto all = static_cast<uint64_t>(QueryHost().memory_bytes);
  const std::string reserve = " --host-reserve " + std::to_string(all - needs - 50'000);
  const RunResult waits = RunZeroplan(work.Train(save + work.path("auto") + reserve));
  CAPTURE(waits.err);
  CHECK(waits.exit_code == 0);
  CHECK(Has(waits.err, wording::kSavesStepsWaitForThem));
  CHECK(Has(waits.err, wording::kDoesNotFitHereAuto));
  const RunResult refused =
      RunZeroplan(work.Train(save + work.path("on") + reserve + " --async-save on"));
  CHECK(refused.exit_code == 3);
  CHECK(Has(refused.err, wording::kHostMemoryShortBy));
  CHECK(Has(refused.err, wording::kOffSoThatStepsWait));
}

TEST_CASE("plan and estimate --async-save count the copy, and train --plan keeps to it") {
  const Workspace work;
  const std::string model = "--model gpt2 --seq-len 128 --gpus 2 --stage 2";
  const auto estimate = [&](const std::string& option) {
    const RunResult run =
        RunZeroplan("estimate --explain " + model +
                    " --offload-optimizer none --offload-param none --checkpointing none "
                    "--format json " +
                    option);
    REQUIRE(run.exit_code == 0);
    return Json::parse(run.out)["choices"][0];
  };
  const Json off = estimate(""), on = estimate("--async-save on");
  CHECK(off["gpu_bytes"] == on["gpu_bytes"]);
  CHECK(off["step_seconds"] == on["step_seconds"]);
  const uint64_t copy =
      on["host_bytes"]["pageable"].get<uint64_t>() - off["host_bytes"]["pageable"].get<uint64_t>();
  // 12 bytes of each parameter, and some padding.
  const uint64_t states = 12 * uint64_t{124'475'904};
  CHECK(copy >= states);
  CHECK(copy < states + states / 100);

  const auto plan = [&](const std::string& name, const std::string& options) {
    return RunZeroplan("plan --explain " + model + " --micro-batch 1 --quick --plan-out " +
                       work.path(name) + " " + options);
  };
  const auto lower = [&](const std::string& name) {
    return Json::parse(ReadWhole(work.path(name)))["lower"]["async_save"];
  };
  REQUIRE(plan("off.json", "").exit_code == 0);
  CHECK(lower("off.json") == false);
  for (const std::string& asked : {std::string("on"), std::string("auto")}) {
    const RunResult run = plan(asked + ".json", "--async-save " + asked);
    CAPTURE(run.out);
    CHECK(run.exit_code == 0);
    CHECK(lower(asked + ".json") == true);
    CHECK(Has(run.out, wording::kSavesWrittenBesideTheSteps2));
    // The answer counts the copy wherever it says what a host holds.
    const Json written = Json::parse(ReadWhole(work.path(asked + ".json")));
    const uint64_t host = written["predicted"]["host_bytes"]["total"];
    CHECK(Has(Unwrapped(run.out), " a GPU, " + FormatBytes(host) + " of "));
    CHECK(Has(Unwrapped(run.out), "of " + FormatBytes(host) + " in all"));
    const RunResult explained = RunZeroplan("explain " + work.path(asked + ".json"));
    CHECK(explained.exit_code == 0);
    CHECK(Has(explained.out, wording::kAreCopyOfTheStates));
  }
  // 1 GB of host memory has room for everything but the copy.
  const RunResult small =
      plan("small.json", "--async-save auto --host-memory 1GB --host-reserve 0");
  CHECK(small.exit_code == 0);
  CHECK(lower("small.json") == false);
  CHECK(Has(small.out, wording::kSavesStepsWaitForThem2));
  CHECK(Lacks(small.out, "--async-save on"));
  CHECK(plan("none.json", "--async-save on --host-memory 1GB --host-reserve 0").exit_code == 3);

  // An older plan lacks the key.
  Json older = Json::parse(ReadWhole(work.path("off.json")));
  older["lower"].erase("async_save");
  std::ofstream(work.path("older.json")) << older.dump(1);
  CHECK(RunZeroplan("explain " + work.path("older.json")).exit_code == 0);

  const std::string train = "train --data " + SourcePath("LICENSE") + " --plan ";
  const std::string save = " --save-every 1 --save " + work.path("out");
  RunResult run = RunZeroplan(train + work.path("on.json") + save + " --async-save off");
  CHECK(run.exit_code == 2);
  CHECK(Has(run.err, wording::kOffIsNotAllowed));
  run = RunZeroplan(train + work.path("off.json") + save + " --async-save on");
  CHECK(run.exit_code == 2);
  CHECK(Has(run.err, wording::kWasPlannedWithoutTheMemory));
}

TEST_CASE("train: killed at random instants while it saves beside steps, it resumes bit by bit") {
  const Workspace work;
  const std::string layout = "--gpus 2 --stage 3 --offload-optimizer cpu ";
  constexpr int kSteps = 400;
  REQUIRE(
      RunZeroplan(work.Train(layout + "--metrics " + work.path("whole.jsonl"), kSteps)).exit_code ==
      0);
  const std::string out = work.path("out");
  const std::string command = work.Train(
      layout + "--save-every 2 --resume --metrics " + work.path("m.jsonl") + " --save " + out,
      kSteps);
  std::mt19937 random(20261122);
  int kills = 0;
  for (int i = 0; i < 12; ++i) {
    const double seconds = std::uniform_real_distribution<double>(0.05, 0.4)(random);
    const std::string kill = "ZEROPLAN_NO_DETECT=1 timeout -s KILL " + std::to_string(seconds) +
                             " " + BinaryPath("zeroplan ") + command + " >/dev/null 2>&1";
    kills += std::system(kill.c_str()) != 0 ? 1 : 0;
    if (fs::exists(out + "/checkpoints/latest")) {
      CHECK(RunZeroplan("checkpoint verify " + out).exit_code == 0);
    }
  }
  CHECK(kills >= 3);
  const RunResult rest = RunZeroplan(command);
  CAPTURE(rest.err);
  CHECK(rest.exit_code == 0);
  CHECK(LossesByStep(work.path("m.jsonl")) == LossesByStep(work.path("whole.jsonl")));
}

}  // namespace
}  // namespace zeroplan
