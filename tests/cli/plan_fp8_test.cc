// plan --allow fp8, and what plan says unasked of products in FP8.
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/run_binary.h"
#include "tests/has.h"
#include "tests/temp_dir.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;

Json PlannedAs(const std::string& command) {
  const RunResult run = RunZeroplan(command + " --format json");
  CAPTURE(command);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  return Json::parse(run.out);
}

double TokensOf(const Json& plan) { return plan["predicted"]["tokens_per_second"]; }

constexpr const char* kLarge = "plan --model llama3.1-8b --gpus 8 --hw dgx-h100 --seq-len 4096 ";

TEST_CASE("plan --allow fp8: taken where it is faster, and named wherever the choice is") {
  const std::string quick = std::string(kLarge) + "--quick ";
  const Json plain = PlannedAs(quick), allowed = PlannedAs(quick + "--allow fp8");
  CHECK(plain["config"].value("_zeroplan", Json::object()).count("fp8") == 0);
  CHECK(TokensOf(allowed) > 1.1 * TokensOf(plain));
  const Json fp8 = allowed["config"]["_zeroplan"]["fp8"];
  CHECK(fp8["enabled"] == true);
  CHECK(fp8["recipe"] == "tensor");
  CHECK(fp8["least_side"] == 0);
  bool some = false;
  for (const Json& stage : allowed["stages"]) {
    const Json& choice = stage["choice"];
    some |= choice["matmul_dtype"] == "fp8";
    CHECK(choice["fp8_recipe"].is_null() == (choice["matmul_dtype"] == "bf16"));
  }
  CHECK(some);
  CHECK(plain["stages"][0]["choice"]["matmul_dtype"] == "bf16");
  CHECK(plain["stages"][0]["choice"]["fp8_recipe"].is_null());
  const RunResult text = RunZeroplan(quick + "--explain --allow fp8,fp8-blocks");
  CHECK(Has(text.out, wording::kBfFpProducts));
  CHECK(Has(text.out, "matmul"));
  CHECK(Has(WordsIn(text.out), wording::kFpItsCostInAccuracy) ==
        !Has(WordsIn(text.out), "validation loss"));
  CHECK_FALSE(Has(RunZeroplan(quick).out, "matmul"));
}

TEST_CASE("plan --allow fp8: not where it gains nothing, and its plan is read back") {
  const TempDir folder;
  const std::string file = folder.path("plan.json");
  // Linears so small that rounding costs what the products gain.
  const std::string small = "plan --quick --params 1M --seq-len 128 --gpus 1 --hw hgx-h200 ";
  const Json none = PlannedAs(small + "--allow fp8");
  CHECK(none["config"].value("_zeroplan", Json::object()).count("fp8") == 0);
  const RunResult run = RunZeroplan(std::string(kLarge) + "--quick --allow fp8 --plan-out " + file);
  REQUIRE(run.exit_code == 0);
  const RunResult explained = RunZeroplan("explain " + file);
  CHECK(explained.exit_code == 0);
  CHECK(Has(explained.out, "FP8 products"));
}

TEST_CASE("plan --allow fp8: where nothing fits, what is offered can be typed") {
  const std::string asked = "plan --quick --model llama3.2-1b --hw rtx4080 --seq-len 1024 ";
  const std::string bare = asked + "--host-memory 20GiB --host-reserve 19GiB ";
  const std::string offered = "--allow fp8,8bit-states";  // not states alone, nor another machine
  const RunResult none = RunZeroplan(bare + "--allow fp8");
  CHECK(none.exit_code == 3);
  CHECK(Has(WordsIn(none.err), "smallest change that fits: " + offered));
  CHECK(RunZeroplan(bare + offered).exit_code == 0);
  // What a config says is not allowed beside it.
  const TempDir folder;
  const std::string file = folder.path("ds.json");
  const auto config = [&](const std::string& zero, const std::string& more) {
    std::ofstream(file) << R"({"train_micro_batch_size_per_gpu": 8, "bf16": {"enabled": true},
        "gradient_accumulation_steps": 1, "zero_optimization": {"stage": 1)"
                        << zero << "}" << more << "}";
  };
  config("", "");
  const RunResult by_config = RunZeroplan(asked + "--config " + file + " --allow fp8");
  const std::string words = WordsIn(by_config.err);
  CAPTURE(words);
  CHECK(by_config.exit_code == 3);
  CHECK(Has(words, R"(_zeroplan {"fp8":{"enabled":true)"));
  CHECK(Has(words, wording::kAndWithoutFp));
  config(R"(, "offload_optimizer": {"device": "cpu", "pin_memory": true})",
         R"(, "_zeroplan": {"fp8": {"enabled": true}})");
  CHECK(RunZeroplan(asked + "--config " + file).exit_code == 0);
}

TEST_CASE("plan --allow fp8: refused by name where nothing multiplies so") {
  const auto error = [](const std::string& options) {
    const RunResult run = RunZeroplan("plan --quick --model llama3.2-1b --gpus 1 " + options);
    CAPTURE(options);
    CHECK(run.exit_code == 2);
    return WordsIn(run.err);
  };
  CHECK(Has(error("--allow fp8 --hw a100"), "--allow: fp8 is not allowed on NVIDIA A100"));
  CHECK(Has(error("--allow fp8-blocks --hw rtx4090"), "fp8-blocks is not allowed on NVIDIA"));
  CHECK(
      Has(error("--allow fp8 --hw h200 --dtype fp32"), "is not allowed in fp32; use --dtype bf16"));
  CHECK(Has(error("--allow fp8 --hw h200 --method qlora"), "or use --method lora"));
  CHECK(Has(error("--allow fp8 --hw h200 --matmul-dtype bf16"), "leave one of the two out"));
  CHECK(Has(error("--allow fp8 --hw h200 --runtime fsdp2"), "own executor alone; leave it out"));
  CHECK(Has(error("--allow fp9 --hw h200"), "did you mean fp8?"));
  const TempDir folder;
  CHECK(Has(error("--allow fp8 --hw h200 --out " + folder.path("x.json")),
            "use --plan-out for its plan instead of --out"));
  // "all" is all that there is.
  CHECK(RunZeroplan("plan --quick --model llama3.2-1b --gpus 1 --allow all --hw a100").exit_code ==
        0);
}

TEST_CASE("plan: what FP8 would bring is said unasked, and holds when typed back") {
  for (const std::string& asked :
       {std::string(kLarge) + "--explain ",
        std::string("plan --explain --model llama3.2-1b --gpus 1 --hw rtx4090 ")}) {
    const RunResult run = RunZeroplan(asked);
    CAPTURE(asked);
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    const std::string words = WordsIn(run.out), said = "with --matmul-dtype fp8 ";
    const size_t at = words.find(said);
    REQUIRE(at != std::string::npos);
    CHECK(Has(words, "Products are in bf16; " + said));
    CHECK(Has(words.substr(at, 400), wording::kNotMeasuredHere) !=
          Has(words.substr(at, 400), "validation loss"));
    const double times = std::stod(words.substr(at + said.size()));
    CHECK(times >= 1.03);
    const double now = TokensOf(PlannedAs(asked + "--quick"));
    CHECK(TokensOf(PlannedAs(asked + "--quick --matmul-dtype fp8")) / now >= times);
  }
}

TEST_CASE("plan: of FP8 nothing is said that was not asked about, or cannot be") {
  const auto says = [](const std::string& command) {
    const RunResult run = RunZeroplan(command);
    CAPTURE(command);
    CHECK(run.exit_code == 0);
    return Has(WordsIn(run.out), "with --matmul-dtype fp8");
  };
  const std::string model = "plan --explain --model llama3.2-1b --gpus 1 --seq-len 1024 ";
  CHECK(says(model + "--hw hgx-h200"));
  CHECK_FALSE(says(model + "--hw hgx-h200 --quick"));
  CHECK_FALSE(says(model + "--hw hgx-h200 --matmul-dtype bf16"));
  CHECK_FALSE(says(model + "--hw hgx-h200 --matmul-dtype fp8"));
  CHECK_FALSE(says(model + "--hw hgx-h200 --allow fp8"));
  CHECK_FALSE(says(model + "--hw hgx-h200 --dtype fp32"));
  CHECK_FALSE(says(model + "--hw hgx-h200 --objective headroom"));
  CHECK_FALSE(says(model + "--hw hgx-h200 --method qlora"));
  CHECK_FALSE(says(model + "--hw hgx-h200 --runtime fsdp2"));
  CHECK_FALSE(says(model + "--hw a100"));
  CHECK_FALSE(says("plan --explain --params 1M --seq-len 128 --gpus 1 --hw hgx-h200"));
}

}  // namespace
}  // namespace zeroplan
