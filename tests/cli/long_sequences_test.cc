// Sequences longer than a model was made for, as a user asks for them.
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/run_binary.h"
#include "tests/cli/train_workspace.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

TEST_CASE("long sequences: beyond the model's positions where these are computed") {
  const RunResult beyond = RunZeroplan("estimate llama3.1-8b --seq-len 262144 --stage 3");
  CHECK(beyond.exit_code == 0);
  CHECK(Has(Unwrapped(beyond.out), "sequence 262144"));
  CHECK(Has(Unwrapped(beyond.out),
            "Positions: llama3.1-8b was made for sequences of up to 131072 tokens; --seq-len "
            "262144 goes beyond"));
  CHECK_FALSE(Has(RunZeroplan("estimate llama3.1-8b --seq-len 131072 --stage 3").out, "Positions"));

  const RunResult learned = RunZeroplan("estimate gpt2 --seq-len 2048");
  CHECK(learned.exit_code == 2);
  CHECK(Has(learned.err,
            "--seq-len: 2048 is not allowed: gpt2 has 1024 positions, which it "
            "learns; use at most 1024"));
  const RunResult slides = RunZeroplan("plan mistral-7b-v0.1 --seq-len 65536");
  CHECK(slides.exit_code == 2);
  CHECK(Has(slides.err, "has a sliding window of 4096 tokens"));
}

TEST_CASE("long sequences: the largest goes beyond the model's positions") {
  const RunResult largest = RunZeroplan(
      "plan llama3.2-1b --largest seq-len --gpus 1 --hw h200 --checkpointing full --quick");
  CAPTURE(largest.out);
  REQUIRE(largest.exit_code == 0);
  const std::string text = Unwrapped(largest.out);
  const std::string mark = "Largest: --seq-len ";
  const size_t at = text.find(mark);
  REQUIRE(at != std::string::npos);
  CHECK(std::stol(text.substr(at + mark.size())) > 2 * 131072);
  CHECK(Has(text, " does not: closest is "));
  CHECK(Has(text, "Positions: llama3.2-1b was made for sequences of up to 131072 tokens"));
  CHECK(Has(Unwrapped(RunZeroplan("plan mistral-7b-v0.1 --largest seq-len --gpus 8 --quick").out),
            "Largest: --seq-len 4096 fits; more than the model's window is not planned."));
}

TEST_CASE("long sequences: a run beyond them says so, and its model takes as many") {
  const Workspace work;
  std::ofstream(work.path("config.json"))
      << R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 32,
             "intermediate_size": 64, "num_attention_heads": 4, "vocab_size": 256,
             "max_position_embeddings": 32})";
  const auto positions = [&](const std::string& folder) {
    std::ifstream file(work.path(folder + "/config.json"));
    return nlohmann::json::parse(file)["max_position_embeddings"];
  };
  const RunResult usual = RunZeroplan(work.Train("--save " + work.path("usual"), 1));
  REQUIRE(usual.exit_code == 0);
  CHECK_FALSE(Has(usual.out + usual.err, "Positions: "));
  CHECK(positions("usual") == 32);
  const RunResult longer = RunZeroplan(work.Train("--seq-len 96 --save " + work.path("longer"), 2));
  CAPTURE(longer.err);
  REQUIRE(longer.exit_code == 0);
  CHECK(Has(longer.out + longer.err, "was made for sequences of up to 32 tokens; --seq-len 96"));
  CHECK(positions("longer") == 96);
  // From weights of the shorter one.
  const std::string data = " --threads 1 --steps 1 --data " + SourcePath("LICENSE");
  const RunResult tuned = RunZeroplan("train --model " + work.path("usual") +
                                      " --seq-len 64 --save " + work.path("tuned") + data);
  CAPTURE(tuned.err);
  CHECK(tuned.exit_code == 0);
  CHECK(positions("tuned") == 64);
  CHECK_FALSE(Has(RunZeroplan("train --model " + work.path("tuned") + " --seq-len 64" + data).err,
                  "Positions: "));
}

}  // namespace
}  // namespace zeroplan
