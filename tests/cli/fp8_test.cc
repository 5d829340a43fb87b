// Products in FP8 as a user asks for them: options, configs, what is said, refused and written.
#include <doctest/doctest.h>

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

std::string WriteFp8Config(const TempDir& folder, const std::string& fp8) {
  const std::string file = folder.path("ds.json");
  std::ofstream(file) << R"({"bf16": {"enabled": true}, "_zeroplan": {"fp8": )" << fp8 << "}}";
  return file;
}

TEST_CASE("estimate: products in FP8 by options and by a config") {
  const auto choice = [](const std::string& options) {
    const RunResult run =
        RunZeroplan("estimate --model gpt2 --gpus 2 --hw hgx-h200 --format json " + options);
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    return Json::parse(run.out)["choices"][0];
  };
  const std::string one = "--stage 1 --offload-optimizer none ";
  const Json plain = choice(one), tensor = choice(one + "--matmul-dtype fp8");
  CHECK(plain["matmul_dtype"] == "bf16");
  CHECK(plain["fp8_recipe"].is_null());
  CHECK(tensor["matmul_dtype"] == "fp8");
  CHECK(tensor["fp8_recipe"] == "tensor");
  CHECK(choice(one + "--matmul-dtype bf16") == plain);
  const Json blocks = choice(one + "--matmul-dtype fp8 --fp8-recipe blocks --fp8-gradients e5m2");
  CHECK(blocks["fp8_recipe"] == "blocks");
  const TempDir folder;
  const std::string file =
      WriteFp8Config(folder, R"({"enabled": true, "recipe": "blocks", "gradients": "e5m2"})");
  CHECK(choice("--config " + file)["fp8_recipe"] == "blocks");
  const RunResult text = RunZeroplan("estimate --explain --model gpt2 --gpus 2 --hw hgx-h200 " +
                                     one + "--matmul-dtype fp8");
  CHECK(Has(WordsIn(text.out), wording::kLinearsInFpForwardBackward));
  CHECK(Has(WordsIn(text.out), wording::kOfRunsWithProductsIn));
  CHECK(Has(text.out, wording::kBfFpProductsMicroBatch));
  // Tokens that do not fit: no product is in FP8.
  const RunResult odd = RunZeroplan(
      "estimate --explain --model gpt2 --gpus 1 --hw hgx-h200 --stage 0 --seq-len 1001 "
      "--micro-batch 1 "
      "--matmul-dtype fp8");
  CHECK(Has(WordsIn(odd.out), wording::kProductsAllInBfNone));
  CHECK_FALSE(Has(odd.out, "FP8 products"));
  const RunResult csv =
      RunZeroplan("estimate --explain --model gpt2 --gpus 2 --hw hgx-h200 --format csv " + one +
                  "--matmul-dtype fp8");
  CHECK(Has(csv.out, wording::kOptimizerStatesMatmulDtypeFp));
  CHECK(Has(csv.out, wording::kFpFpFpTensor));
  // torchao's recipes are not these.
  const std::string torch =
      "estimate --explain --model llama3.2-1b --gpus 1 --hw hgx-h200 --runtime fsdp2 --compile "
      "layers "
      "--matmul-dtype fp8 --float8 rowwise --format ";
  const RunResult json = RunZeroplan(torch + "json");
  REQUIRE(json.exit_code == 0);
  const Json other = Json::parse(json.out);
  CHECK(other["recipe"]["float8"] == "rowwise");
  CHECK(other["choices"][0]["matmul_dtype"] == "fp8");
  CHECK(other["choices"][0]["fp8_recipe"].is_null());
  CHECK(Has(RunZeroplan(torch + "csv").out, ",fp32,fp32,fp8,,,"));
}

TEST_CASE("products that stay in the dtype of the run are named") {
  const auto said = [](const std::string& options) {
    const RunResult run = RunZeroplan(
        "estimate --explain --hw hgx-h200 --gpus 1 --stage 0 --offload-optimizer none "
        "--matmul-dtype fp8 " +
        options);
    CAPTURE(run.err);
    CHECK(run.exit_code == 0);
    return WordsIn(run.out);
  };
  CHECK(Has(said("--model gpt2 --seq-len 100"),
            "Products: all in bf16, none in FP8: the 100 tokens of a micro-step are no multiple of "
            "16; another --micro-batch or --seq-len changes that."));
  const TempDir folder;
  const std::string model = folder.path("config.json");
  std::ofstream(model) << R"({"model_type": "llama", "hidden_size": 256, "intermediate_size": 1000,
      "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000,
      "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": false})";
  CHECK(
      Has(said("--model " + model), "in bf16 too, as a side is no multiple of 16: mlp.down_proj"));
  const std::string file = WriteFp8Config(folder, R"({"enabled": true, "least_side": 1024})");
  const RunResult small =
      RunZeroplan("estimate --explain --hw hgx-h200 --gpus 1 --model llama3.2-1b --config " + file);
  CHECK(Has(WordsIn(small.out), "in FP8"));
  CHECK_FALSE(Has(WordsIn(small.out), "least_side"));
  const RunResult none =
      RunZeroplan("estimate --explain --hw hgx-h200 --gpus 1 --model gpt2 --config " + file);
  CHECK(none.exit_code == 2);
  CHECK(Has(WordsIn(none.err), wording::kZeroplanFpEnabledTrueHas));
}

TEST_CASE("products in FP8 are refused by name where they cannot be") {
  const auto error = [](const std::string& command) {
    const RunResult run = RunZeroplan(command);
    CAPTURE(command);
    CHECK(run.exit_code == 2);
    return WordsIn(run.err);
  };
  const std::string estimate = "estimate --model gpt2 --gpus 1 ", fp8 = "--matmul-dtype fp8 ";
  CHECK(Has(error(estimate + fp8 + "--hw a100"),
            "--matmul-dtype: fp8 is not allowed on NVIDIA A100 SXM 80 GB: products in FP8 start at "
            "compute capability 8.9, and it has 8.0; use bf16"));
  CHECK(Has(error(estimate + fp8 + "--fp8-recipe blocks --hw rtx4090"),
            "at compute capability 9.0 alone, and it has 8.9; use bf16, or --fp8-recipe tensor"));
  CHECK(Has(error("plan --quick --model gpt2 --gpus 1 --hw v100 " + fp8), "use fp16"));
  CHECK(Has(error(estimate + fp8 + "--method qlora"), "use bf16, or --method lora"));
  CHECK(Has(error(estimate + "--matmul-dtype fp16"), "fp16 is not allowed in bf16; use fp8 or"));
  CHECK(Has(error(estimate + "--matmul-dtype fp9"), "did you mean fp8?"));
  CHECK(Has(error(estimate + "--fp8-gradients e5m2"),
            "--fp8-gradients: e5m2 has no effect without --matmul-dtype fp8"));
  CHECK(Has(error(estimate + fp8 + "--runtime fsdp2"), "of layers with SwiGLU and rotary"));
  CHECK(Has(error("estimate --model llama3.2-1b --gpus 1 --runtime fsdp2 " + fp8),
            "give --compile layers or all"));
  CHECK(Has(error(estimate + fp8 + "--fp8-recipe tensor --runtime fsdp2"),
            "--fp8-recipe: is of zeroplan's own products"));
  CHECK(Has(error(estimate + fp8 + "--float8 rowwise"), "add --runtime fsdp2 or leave it out"));
  CHECK(Has(error(estimate + fp8 + "--runtime deepspeed"),
            "fp8 is not allowed with --runtime deepspeed, which has no training in 8 bits"));
  const TempDir folder;
  const std::string file = WriteFp8Config(folder, R"({"enabled": true})");
  CHECK(Has(error(estimate + "--runtime deepspeed --config " + file),
            "_zeroplan.fp8.enabled: true is not allowed: DeepSpeed multiplies in bf16"));
  CHECK(Has(error(estimate + "--config " + file + " --matmul-dtype bf16"),
            "_zeroplan.fp8.enabled: true contradicts --matmul-dtype bf16"));
  CHECK(Has(error(estimate + "--config " + file + " --hw a100"),
            "_zeroplan.fp8.enabled: true is not allowed on NVIDIA A100 SXM 80 GB"));
}

TEST_CASE("plan: methods that FP8 goes with are compared, and offered where nothing fits") {
  const std::string fp8 = " --quick --hw hgx-h200 --gpus 1 --matmul-dtype fp8";
  const RunResult all = RunZeroplan("plan --model llama3.2-1b --method all" + fp8);
  CHECK(all.exit_code == 2);
  CHECK(Has(WordsIn(all.err), wording::kFpIsNotAllowedWith));
  const RunResult two = RunZeroplan("plan --model llama3.2-1b --method full,lora" + fp8);
  CHECK(two.exit_code == 0);
  const RunResult nothing = RunZeroplan("plan --model llama3.1-405b" + fp8);
  CHECK(nothing.exit_code == 3);
  CHECK(Has(nothing.err, "nothing fits"));
}

TEST_CASE("plan: FP8 is in its file, which explain and train read") {
  const TempDir folder;
  const std::string file = folder.path("plan.json");
  const RunResult run = RunZeroplan(
      "plan --explain --quick --model gpt2 --gpus 1 --hw hgx-h200 --global-batch 8 --matmul-dtype "
      "fp8 "
      "--plan-out " +
      file);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(Has(WordsIn(run.out), wording::kLinearsInFp));
  std::ifstream in(file);
  CHECK(Json::parse(in)["config"]["_zeroplan"]["fp8"]["enabled"] == true);
  const RunResult explained = RunZeroplan("explain " + file);
  CAPTURE(explained.err);
  CHECK(explained.exit_code == 0);
  CHECK(Has(explained.out, "fp8_matmul"));
  const RunResult train = RunZeroplan("train --data x.txt --matmul-dtype bf16 --plan " + file);
  CHECK(Has(WordsIn(train.err), wording::kBfIsNotAllowedWith));
}

TEST_CASE("train: products in FP8 are said, in metrics too, and a resume says what changes") {
  const TempDir folder;
  std::ofstream(folder.path("text.txt")) << std::string(20000, 'a');
  const std::string save = folder.path("run"), metrics = folder.path("metrics.jsonl");
  const std::string train = "train --backend cpu --params 1M --seq-len 32 --micro-batch 2 --data " +
                            folder.path("text.txt") + " --save " + save;
  const RunResult first = RunZeroplan(train + " --steps 2 --matmul-dtype fp8 --metrics " + metrics);
  CAPTURE(first.err);
  REQUIRE(first.exit_code == 0);
  CHECK(Has(first.err, wording::kProductsThoseOfTheLayers));
  std::ifstream in(metrics);
  std::string line;
  std::getline(in, line);
  const Json plan = Json::parse(line)["plan"];
  CHECK(plan["matmul_dtype"] == "fp8");
  CHECK(plan["fp8_recipe"] == "tensor");
  const RunResult second = RunZeroplan(train + " --steps 3 --resume");
  CAPTURE(second.err);
  CHECK(second.exit_code == 0);
  CHECK(Has(second.err, wording::kProductsInFpScaleTensor));
  CHECK_FALSE(Has(second.err, "Products:"));
}

}  // namespace
}  // namespace zeroplan
