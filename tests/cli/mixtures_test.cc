// Mixtures of experts at the door: what plan, estimate and model show say of them, what is refused.
#include <doctest/doctest.h>

#include <fstream>
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
    CHECK(Has(WordsIn(run.out), "the mean in the fullest, their matmuls take up to"));
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
  const RunResult allowed = RunZeroplan("plan olmoe-1b-7b --hw h200 --allow fp8");
  CHECK(allowed.exit_code == 2);
  CHECK(Has(allowed.err, "--allow: fp8 is not allowed with olmoe-1b-7b, a mixture of experts"));
  const RunResult all = RunZeroplan("plan olmoe-1b-7b --hw h100 --method all");
  CHECK(all.exit_code == 2);
  CHECK(Has(all.err, "--method: all: adapters of a mixture of experts"));
  // Other programs train adapters of their attention.
  CHECK(RunZeroplan(std::string(kEstimate) + " --method lora --runtime fsdp2").exit_code == 0);
}

TEST_CASE("mixtures: planned for another program, the own executor stands beside") {
  const TempDir dir;
  const std::string asked =
      "plan olmoe-1b-7b --hw h200 --runtime deepspeed --stage 3 "
      "--micro-batch 4 --grad-accum 1 --explain";
  const RunResult whole = RunZeroplan(asked + " --plan-out " + dir.path() + "/plan.json");
  CAPTURE(whole.err);
  CHECK(whole.exit_code == 0);
  CHECK(Has(WordsIn(whole.out), "zeroplan's own executor would reach"));
  CHECK(Has(whole.err, "/plan.json: the best plan of zeroplan's own executor"));
  // It has no adapters of a mixture, which is an answer, unless its plan is wanted.
  const RunResult lora = RunZeroplan(asked + " --method lora");
  CAPTURE(lora.err);
  CHECK(lora.exit_code == 0);
  CHECK(Has(WordsIn(lora.out), "zeroplan's own executor: nothing of what was asked for runs"));
  const RunResult wanted = RunZeroplan(asked + " --method lora --plan-out " + dir.path() + "/p");
  CHECK(wanted.exit_code == 2);
  CHECK(Has(wanted.err, "--method: lora: adapters of a mixture of experts are not trained"));
}

TEST_CASE("mixtures: some layers without experts, and keys of config.json that are absent") {
  const TempDir dir;
  Json config = Json::parse(std::ifstream(SourcePath("examples/experts/config.json")));
  const auto estimate = [&](const char* name, const Json& changes) {
    Json changed = config;
    changed.merge_patch(changes);
    const std::string file = dir.path() + "/" + name + ".json";
    std::ofstream(file) << changed.dump(1);
    return RunZeroplan("estimate --model " + file + " --hw h100 --gpus 2 --explain");
  };
  for (const Json& changes : {Json{{"mlp_only_layers", {0}}}, Json{{"decoder_sparse_step", 2}}}) {
    const RunResult run = estimate("mixed", changes);
    CAPTURE(run.err);
    CHECK(run.exit_code == 0);
    CHECK(Has(run.out, " nvme "));
  }
  CHECK(Has(estimate("none", {{"decoder_sparse_step", 5}}).err,
            "decoder_sparse_step: 5 is not allowed; use a whole number from 1 to 4"));
  CHECK(Has(estimate("list", {{"mlp_only_layers", {1, 4}}}).err,
            "mlp_only_layers: 4 is no layer; use 0 to 3"));
  const RunResult absent = estimate("absent", {{"num_experts_per_tok", nullptr}});
  CHECK(absent.exit_code == 0);
  CHECK(Has(absent.err, "num_experts_per_tok: is not there; taken as 8, as transformers takes it"));
}

TEST_CASE("mixtures: names that are cut short or misspelt lead to a mixture") {
  const auto refused = [](const std::string& name) { return RunZeroplan("plan " + name).err; };
  CHECK(Has(refused("gpt-oss"), "use openai/gpt-oss-20b"));
  CHECK(Has(refused("Mixtrl-8x7B"), "did you mean 'mixtral-8x7b'?"));
  CHECK(Lacks(refused("olmo-2-7b"), "olmoe"));
  // Its vocabulary is larger than the base model's.
  CHECK(Has(RunZeroplan("model show mistralai/Mixtral-8x22B-Instruct-v0.1").out,
            "\nparameters  140630071296\n"));
}

TEST_CASE("mixtures: what is frozen, and the losses of routers, are the plan's") {
  const TempDir dir;
  const std::string model = SourcePath("examples/experts/config.json"),
                    plan = dir.path() + "/plan.json", text = dir.path() + "/text.txt";
  std::ofstream(text) << std::string(4000, 'x');
  const RunResult planned =
      RunZeroplan("plan --model " + model + " --hw h100 --seq-len 32 --micro-batch 1 " +
                  "--grad-accum 1 --stage 0 --router-aux-loss 0.1 --freeze '*.mlp.gate.weight' " +
                  "--plan-out " + plan);
  CAPTURE(planned.err);
  REQUIRE(planned.exit_code == 0);
  const std::string train = "train --backend cpu --steps 1 --fresh-weights --plan " + plan +
                            " --data " + text + " --model " + model;
  const RunResult trained = RunZeroplan(train);
  CAPTURE(trained.err);
  CHECK(trained.exit_code == 0);
  CHECK(RunZeroplan(train + " --router-aux-loss 0.1").exit_code == 0);
  const std::string alone = train.substr(0, train.find(" --model"));
  for (const std::string& beside : {train, alone}) {
    CAPTURE(beside);
    const RunResult loss = RunZeroplan(beside + " --router-aux-loss 0.2");
    CHECK(loss.exit_code == 2);
    CHECK(Has(loss.err, ": router_aux_loss: the plan " + plan + " has 0.1, this model 0.2"));
    const RunResult frozen = RunZeroplan(beside + " --freeze '*.norm.weight'");
    CHECK(frozen.exit_code == 2);
    CHECK(Has(frozen.err, ": frozen: the plan " + plan + " has *.mlp.gate.weight, this model"));
  }
  const RunResult adapters = RunZeroplan(alone + " --lora-rank 4");
  CHECK(adapters.exit_code == 2);
  CHECK(Has(adapters.err, "are not allowed with --plan alone"));
}

TEST_CASE("mixtures: one expert of a layer is not frozen alone") {
  const RunResult run =
      RunZeroplan(std::string(kEstimate) + " --freeze 'model.layers.0.mlp.experts.3.*'");
  CHECK(run.exit_code == 2);
  CHECK(Has(run.err, "of the 256 matrices of"));
  CHECK(Has(run.err, "freeze all or none"));
  CHECK(run.err.size() < 400);
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
