// Sequences longer than a model was made for, and over GPUs, as a user asks for them.
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/run_binary.h"
#include "tests/cli/train_workspace.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/run_metrics.h"
#include "tests/temp_dir.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

// A Llama of 32 positions as the workspace's model.
void WriteShortModel(const Workspace& work) {
  std::ofstream(work.path("config.json"))
      << R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 32,
             "intermediate_size": 64, "num_attention_heads": 4, "vocab_size": 256,
             "max_position_embeddings": 32})";
}

using Json = nlohmann::json;

TEST_CASE("long sequences: beyond the model's positions where these are computed") {
  const RunResult beyond = RunZeroplan("estimate --explain llama3.1-8b --seq-len 262144 --stage 3");
  CHECK(beyond.exit_code == 0);
  CHECK(Has(Unwrapped(beyond.out), "sequence 262144"));
  CHECK(Has(Unwrapped(beyond.out), wording::kPositionsLlamaWasMadeFor));
  CHECK(Lacks(RunZeroplan("estimate --explain llama3.1-8b --seq-len 131072 --stage 3").out,
              "Positions"));

  const RunResult learned = RunZeroplan("estimate --explain gpt2 --seq-len 2048");
  CHECK(learned.exit_code == 2);
  CHECK(Has(learned.err, wording::kIsNotAllowedGptHas));
  const RunResult slides = RunZeroplan("plan --explain mistral-7b-v0.1 --seq-len 65536");
  CHECK(slides.exit_code == 2);
  CHECK(Has(slides.err, wording::kHasSlidingWindowOfTokens));
}

TEST_CASE("long sequences: the largest goes beyond the model's positions") {
  const RunResult largest = RunZeroplan(
      "plan --explain llama3.2-1b --largest seq-len --gpus 1 --hw h200 --checkpointing full "
      "--quick");
  CAPTURE(largest.out);
  REQUIRE(largest.exit_code == 0);
  const std::string text = Unwrapped(largest.out);
  const std::string mark = "Largest: --seq-len ";
  const size_t at = text.find(mark);
  REQUIRE(at != std::string::npos);
  CHECK(std::stol(text.substr(at + mark.size())) > 2 * 131072);
  CHECK(Has(text, wording::kDoesNotClosestIs));
  CHECK(Has(text, wording::kPositionsLlamaWasMadeFor2));
  CHECK(
      Has(Unwrapped(
              RunZeroplan("plan --explain mistral-7b-v0.1 --largest seq-len --gpus 8 --quick").out),
          wording::kLargestFitsMoreThanThe));
}

TEST_CASE("long sequences: a run beyond them says so, and its model takes as many") {
  const Workspace work;
  WriteShortModel(work);
  const auto positions = [&](const std::string& folder) {
    std::ifstream file(work.path(folder + "/config.json"));
    return Json::parse(file)["max_position_embeddings"];
  };
  const RunResult usual = RunZeroplan(work.Train("--save " + work.path("usual"), 1));
  REQUIRE(usual.exit_code == 0);
  CHECK(Lacks(usual.out + usual.err, "Positions: "));
  CHECK(positions("usual") == 32);
  const RunResult longer = RunZeroplan(work.Train("--seq-len 96 --save " + work.path("longer"), 2));
  CAPTURE(longer.err);
  REQUIRE(longer.exit_code == 0);
  CHECK(Has(longer.out + longer.err, wording::kWasMadeForSequencesOf));
  CHECK(positions("longer") == 96);
  // From weights of the shorter one.
  const std::string data = " --threads 1 --steps 1 --data " + SourcePath("LICENSE");
  const RunResult tuned = RunZeroplan("train --model " + work.path("usual") +
                                      " --seq-len 64 --save " + work.path("tuned") + data);
  CAPTURE(tuned.err);
  CHECK(tuned.exit_code == 0);
  CHECK(positions("tuned") == 64);
  CHECK(Lacks(RunZeroplan("train --model " + work.path("tuned") + " --seq-len 64" + data).err,
              "Positions: "));
}

TEST_CASE("sequences over GPUs: an estimate with a number of them") {
  const std::string asked =
      "estimate llama3.2-1b --seq-len 65536 --hw hgx-h200 --gpus 8 --stage 3 --sequence-ranks 4 "
      "--offload-optimizer none --offload-param none --global-batch 4 ";
  const RunResult text = RunZeroplan(asked);
  CHECK(text.exit_code == 0);
  CHECK(Has(text.out, wording::kMicroBatchOverGpusEach));
  CHECK(Has(text.out, "ZeRO seq opt"));
  CHECK(Has(text.out, "3    1/4 none"));
  const Json json = Json::parse(RunZeroplan(asked + "--format json").out);
  CHECK(json["choices"][0]["sequence_ranks"] == 4);
  CHECK(json["choices"][0]["micro_batch"] == 2);
  CHECK(Has(RunZeroplan(asked + "--format csv").out, "grad_accum,sequence_ranks,dtype"));
  CHECK(Has(RunZeroplan("estimate llama3.2-1b --gpus 8 --hw hgx-h200 --sequence-ranks 3").err,
            "--sequence-ranks: 3 is not allowed with --gpus 8; use a divisor of these"));
  CHECK(Has(RunZeroplan("estimate llama3.2-1b --gpus 8 --hw hgx-h200 --runtime ddp "
                        "--sequence-ranks 2")
                .err,
            "not modelled with --runtime ddp; use 1"));
}

TEST_CASE("sequences over GPUs: planned, written and read back") {
  const TempDir dir;
  const std::string shape = "llama3.1-8b --hw hgx-h200 --gpus 8 --quick ";
  const RunResult million =
      RunZeroplan("plan --explain " + shape +
                  "--seq-len 1048576 --micro-batch 1 --sequence-ranks auto --plan-out " +
                  dir.path("plan.json"));
  CAPTURE(million.err);
  REQUIRE(million.exit_code == 0);
  CHECK(Has(Unwrapped(million.out), "sequences over "));
  const int shared = Json::parse(ReadWhole(dir.path("plan.json")))["config"]
                                                                  ["sequence_parallel_"
                                                                   "size"];
  CHECK(shared > 1);
  CHECK(Has(RunZeroplan("explain " + dir.path("plan.json")).out,
            "over " + std::to_string(shared) + " GPUs each"));
  // Nobody asks: few sequences are shared, and one that is too long is proposed to be.
  const RunResult few = RunZeroplan("plan --explain " + shape + "--seq-len 32768 --global-batch 2");
  CHECK(few.exit_code == 0);
  CHECK(Has(Unwrapped(few.out), wording::kWhichAreMoreThanThe));
  const RunResult none =
      RunZeroplan("plan --explain " + shape + "--seq-len 1048576 --micro-batch 1");
  CHECK(none.exit_code == 3);
  CHECK(Has(none.err, wording::kSmallestChangeThatFits));
  // As a config, which stays what it is.
  const RunResult out = RunZeroplan("plan --explain " + shape +
                                    "--seq-len 32768 --runtime zeroplan --sequence-ranks 2 --out " +
                                    dir.path("ds.json"));
  CAPTURE(out.err);
  CHECK(out.exit_code == 0);
  CHECK(Json::parse(ReadWhole(dir.path("ds.json")))["sequence_parallel_size"] == 2);
  const RunResult again =
      RunZeroplan("plan --explain " + shape + "--seq-len 32768 --config " + dir.path("ds.json"));
  CHECK(again.exit_code == 0);
  CHECK(Has(Unwrapped(again.out), wording::kSequencesOverGpus));
  const RunResult both =
      RunZeroplan("plan --explain " + shape + "--sequence-ranks 4 --config " + dir.path("ds.json"));
  CHECK(both.exit_code == 2);
  CHECK(Has(both.err, wording::kIsNotAllowedWith));
}

TEST_CASE("sequences over GPUs: train takes the option, and trains what one rank does") {
  const Workspace work;
  WriteShortModel(work);
  const auto losses = [&](const std::string& name, const std::string& more) {
    const RunResult run = RunZeroplan(
        work.Train("--backend cpu --micro-batch 2 --metrics " + work.path(name) + " " + more, 6));
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    return LossesByStep(work.path(name));
  };
  const auto one = losses("one.jsonl", "");
  const auto two = losses("two.jsonl", "--gpus 2 --sequence-ranks 2 --stage 2");
  REQUIRE(one.size() == 6);
  REQUIRE(two.size() == 6);
  for (const auto& [step, loss] : one) {
    CHECK(two.at(step) == doctest::Approx(loss).epsilon(1e-5));
  }
  const std::string lines = ReadWhole(work.path("two.jsonl"));
  CHECK(Json::parse(lines.substr(0, lines.find('\n')))["plan"]["sequence_ranks"] == 2);
}

}  // namespace
}  // namespace zeroplan
