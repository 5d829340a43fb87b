// zeroplan why as a user runs it: exit codes, text and JSON, stdin, rows that are added.
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/run_binary.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/temp_dir.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

using WhyReport = nlohmann::json;

std::string WhyLog(const std::string& name) { return SourcePath("tests/fixtures/why/" + name); }

TEST_CASE("why: a log that says all is answered, within 100 columns") {
  const RunResult run = RunZeroplan("why --explain " + WhyLog("deepspeed_backward.log"));
  CAPTURE(run.err);
  CHECK(run.exit_code == 0);
  CHECK(run.err.empty());
  const std::string text = Unwrapped(run.out);
  CHECK(Has(text, wording::kItRanOutOfGpu2));
  CHECK(Has(text, wording::kPerDeviceTrainBatchSize));
  CHECK(Has(text, "--seq-len 4096 (--max_seq_length 4096, line 1)"));
  CHECK(Lacks(run.out, "⟦"));
  std::istringstream lines(run.out);
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 100);
}

TEST_CASE("why: what is missing ends with 2, after what the log tells") {
  const RunResult run = RunZeroplan("why --explain " + WhyLog("trainer_loss.log"));
  CHECK(run.exit_code == 2);
  CHECK(Has(run.out, wording::kItRanOutOfGpu3));
  CHECK(Has(run.err, wording::kDoesNotSayWhatPrediction));
  for (const char* option : {"--model", "--seq-len", "--micro-batch"}) {
    CHECK(Has(run.err, option));
  }
  const RunResult json = RunZeroplan("why --format json " + WhyLog("trainer_loss.log"));
  CHECK(json.exit_code == 2);
  const WhyReport report = WhyReport::parse(json.out);
  CHECK(report["prediction"].is_null());
  CHECK(report["missing"].size() == 3);
  const RunResult nothing = RunZeroplan("why " + SourcePath("LICENSE"));
  CHECK(nothing.exit_code == 2);
  CHECK(nothing.out.empty());
  CHECK(Has(nothing.err, wording::kNothingOfTrainingRunIs));
  CHECK(RunZeroplan("why").exit_code == 2);
  CHECK(RunZeroplan("why /no/such/file").exit_code == 2);
  // What a program does not have is refused by name, after what the log tells.
  const RunResult refused =
      RunZeroplan("why " + WhyLog("deepspeed_backward.log") + " --deterministic");
  CHECK(refused.exit_code == 2);
}

TEST_CASE("why --format json: the log, the prediction and the changes as values") {
  const RunResult run =
      RunZeroplan("why " + WhyLog("deepspeed_backward.log") + " --hw dgx-h100 --format json");
  REQUIRE(run.exit_code == 0);
  const WhyReport report = WhyReport::parse(run.out);
  CHECK(report["schema"] == "zeroplan.why/1");
  const WhyReport& failure = report["log"]["failure"];
  CHECK(failure["kind"] == "gpu_memory");
  CHECK(failure["phase"] == "backward");
  CHECK(failure["rank"] == 3);
  CHECK(failure["line"] == 63);
  CHECK(failure["gpu"]["index"] == 3);
  const uint64_t wanted = failure["gpu"]["wanted"];
  CHECK(wanted / (1u << 20) == 16035);  // 15.66 GiB
  const WhyReport& prediction = report["prediction"];
  CHECK(prediction["hw"] == "dgx-h100");
  CHECK(prediction["phase"] == "forward_backward");
  CHECK(prediction["needed"].get<uint64_t>() ==
        failure["gpu"]["allocated"].get<uint64_t>() + wanted);
  CHECK(prediction["choice"]["fits"] == false);
  CHECK(prediction["phases"]["forward_backward"]["classes"]["logits"].get<uint64_t>() > wanted);
  REQUIRE_FALSE(report["changes"].empty());
  double before = 1e18;
  for (const WhyReport& change : report["changes"]) {
    CHECK(change["choice"]["fits"] == true);
    CHECK(Lacks(change["options"], "⟦"));
    const double speed = change["choice"]["tokens_per_second"];
    CHECK(speed <= before);
    before = speed;
  }
  // docs/why.md names every key of the top level.
  const std::string page = ReadWhole(SourcePath("docs/why.md"));
  for (const auto& [key, value] : report.items()) CHECK(Has(page, "`" + key));
  // Without the GPUs' name nothing is said of times.
  const WhyReport unknown =
      WhyReport::parse(RunZeroplan("why --format json " + WhyLog("deepspeed_backward.log")).out);
  CHECK(unknown["prediction"]["hw"].is_null());
  CHECK(unknown["prediction"]["choice"]["step_seconds"].is_null());
}

TEST_CASE("why -: a pasted traceback") {
  const RunResult run = RunZeroplan(
      "why - --model llama3.2-1b --runtime ddp --gpus 1 --micro-batch 4 --grad-accum 2 --seq-len "
      "2048 < " +
      WhyLog("trainer_loss.log"));
  CHECK(run.exit_code == 0);
  CHECK(Has(run.out, wording::kStdinItRanOutOf));
  CHECK(Has(Unwrapped(run.out), wording::kOfWhichItsAllocatorWas));
}

TEST_CASE("why --add: a row more; what is no file of runs stays as it is") {
  const TempDir folder;
  const std::string rows = folder.path("runs.jsonl");
  const std::string why =
      "why " + WhyLog("deepspeed_backward.log") + " --hw dgx-h100 --add " + rows + " --id mine";
  CHECK(RunZeroplan(why).exit_code == 0);
  const std::string first = ReadWhole(rows);
  CHECK(WhyReport::parse(first)["id"] == "mine");
  const RunResult again = RunZeroplan(why);
  CHECK(again.exit_code == 2);
  CHECK(Has(again.err, wording::kMineIsIn));
  CHECK(ReadWhole(rows) == first);
  const std::string other = folder.path("notes.txt");
  std::ofstream(other) << "not runs\n";
  const RunResult refused =
      RunZeroplan("why " + WhyLog("deepspeed_backward.log") + " --hw dgx-h100 --add " + other);
  CHECK(refused.exit_code == 2);
  CHECK(ReadWhole(other) == "not runs\n");
}

}  // namespace
}  // namespace zeroplan
