// Mixtures of experts at the door: what plan, estimate and model show say of them, what is refused.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "tests/cli/run_binary.h"
#include "tests/cli/screen.h"
#include "tests/has.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;

constexpr const char* kEstimate = "estimate Qwen/Qwen3-30B-A3B-Instruct-2507 --hw 8xh100 --stage 3";

TEST_CASE("mixtures: planned by the names that people type, with all and active parameters") {
  struct Case {
    const char *name, *counts;
  };
  for (const Case& c : {Case{"Qwen/Qwen3-30B-A3B-Instruct-2507", "30.5B parameters, 3.35B active"},
                        Case{"allenai/OLMoE-1B-7B-0924", "6.92B parameters, 1.28B active"},
                        Case{"mistralai/Mixtral-8x7B-v0.1", "46.7B parameters, 12.9B active"}}) {
    CAPTURE(c.name);
    const RunResult run =
        RunZeroplan(std::string("plan ") + c.name + " --hw 8xh200 --seq-len 2048");
    CAPTURE(run.err);
    CHECK(run.exit_code == 0);
    CHECK(Has(WordsIn(run.out), c.counts));
    CHECK(Has(WordsIn(run.out), "filled unevenly, their matmuls take up to"));
  }
}

TEST_CASE("mixtures: estimate shows every choice of the own executor, disks among them") {
  for (const char* name : {"olmoe-1b-7b", "mixtral-8x7b", "qwen3-30b-a3b", "qwen1.5-moe-a2.7b"}) {
    CAPTURE(name);
    const RunResult run = RunZeroplan(std::string("estimate ") + name + " --hw 8xh100 --explain");
    CAPTURE(run.err);
    CHECK(run.exit_code == 0);
    CHECK(Has(run.out, " nvme "));
  }
}

TEST_CASE("mixtures: adapters and FP8 are refused in one line, in every way to ask for them") {
  struct Case {
    const char *options, *option;
  };
  for (const Case& c :
       {Case{"--method lora", "--method: lora"}, Case{"--method qlora", "--method: qlora"},
        Case{"--lora-rank 8", "--method: lora"}, Case{"--matmul-dtype fp8", "--matmul-dtype"}}) {
    CAPTURE(c.options);
    const RunResult run = RunZeroplan(std::string(kEstimate) + " " + c.options);
    CAPTURE(run.err);
    CHECK(run.exit_code == 2);
    CHECK(Has(run.err, c.option));
    CHECK(Has(run.err, "mixture of experts"));
    CHECK(run.out.empty());
  }
  const TempDir dir;
  const RunResult train = RunZeroplan("train olmoe-1b-7b --data " + SourcePath("LICENSE") +
                                      " --backend cpu --adapter " + dir.path());
  CHECK(train.exit_code == 2);
  CHECK(Has(train.err, "--adapter: " + dir.path() + ": adapters of a mixture of experts"));
  const RunResult all = RunZeroplan("plan olmoe-1b-7b --hw h100 --method all");
  CHECK(all.exit_code == 2);
  CHECK(Has(all.err, "--method: all: adapters of a mixture of experts"));
  // Other programs train adapters of their attention.
  CHECK(RunZeroplan(std::string(kEstimate) + " --method lora --runtime fsdp2").exit_code == 0);
}

TEST_CASE("mixtures: coefficients of the routers' losses") {
  const auto run = [](const std::string& options) {
    return RunZeroplan(std::string(kEstimate) + " " + options);
  };
  for (const char* value : {"0", "0.0", "1e-3", "1000"}) {
    CAPTURE(value);
    CHECK(run(std::string("--router-aux-loss ") + value).exit_code == 0);
  }
  for (const char* value : {"-0.1", "1001", "nan", "much"}) {
    CAPTURE(value);
    const RunResult refused = run(std::string("--router-z-loss=") + value);
    CHECK(refused.exit_code == 2);
    CHECK(Has(refused.err, "--router-z-loss: " + std::string(value) + " is not allowed"));
  }
  const RunResult dense = RunZeroplan("estimate gpt2-xl --hw h100 --router-aux-loss 0.1");
  CHECK(dense.exit_code == 2);
  CHECK(Has(dense.err, "has no experts"));
  const RunResult other = run("--router-aux-loss 0.1 --runtime deepspeed");
  CHECK(other.exit_code == 2);
  CHECK(Has(other.err, "by the code of transformers"));
}

TEST_CASE(
    "mixtures: a derived shape is other programs' model with their runtimes, as a named one") {
  const std::string asked =
      "estimate --params 30B --family qwen3_moe --hw 8xh100 --stage 3 --explain --runtime ";
  const RunResult own = RunZeroplan(asked + "zeroplan");
  CHECK(own.exit_code == 0);
  CHECK_FALSE(Has(WordsIn(own.out), "by the code of transformers"));
  const RunResult other = RunZeroplan(asked + "deepspeed");
  CAPTURE(other.err);
  CHECK(other.exit_code == 0);
  CHECK(Has(WordsIn(other.out),
            "which zeroplan trains itself and plans for other programs by the "
            "code of transformers"));
}

TEST_CASE("model show: the experts of a mixture, and an MLP where a layer has one") {
  const RunResult olmoe = RunZeroplan("model show olmoe-1b-7b");
  CHECK(Has(olmoe.out, "\nexperts     64 of width 1024, 8 a token\n"));
  CHECK_FALSE(Has(olmoe.out, "\nmlp "));
  CHECK(Has(RunZeroplan("model show gpt2-xl").out, "\nmlp         6400\n"));
  const Json json = Json::parse(RunZeroplan("model show qwen1.5-moe-a2.7b --format json").out);
  CHECK(json["num_experts"] == 60);
  CHECK(json["experts_per_token"] == 4);
  CHECK(json["expert_ffn"] == 1408);
  CHECK(json["shared_ffn"] == 5632);
  CHECK(json["active_params"] < json["params"]);
}

}  // namespace
}  // namespace zeroplan
