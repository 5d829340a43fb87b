// plan --runtime and plan --out, run as a user runs them.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "core/config/deepspeed_reader.h"
#include "tests/cli/run_binary.h"
#include "tests/has.h"
#include "tests/temp_dir.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;

std::string Path(const std::string& name) {
  return (std::filesystem::temp_directory_path() /
          ("zeroplan_rp_" + std::to_string(getpid()) + "_" + name))
      .string();
}

// Words alone: text may be broken anywhere.
std::string WordsAlone(const std::string& text) {
  std::istringstream words(text);
  std::string out;
  for (std::string word; words >> word;) out += word + ' ';
  return out;
}

const std::string kSmallPlan =
    "plan --explain --model gpt2 --gpus 2 --gpu-memory 12GB --global-batch 32 ";

TEST_CASE("plan --runtime deepspeed: the choice, why others lose, and what zeroplan would reach") {
  const RunResult run = RunZeroplan(kSmallPlan + "--runtime deepspeed --compile layers");
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  const std::string text = WordsAlone(run.out);
  for (const char* part :
       {"gpt2 under deepspeed 0.19.6", "layers compiled", "Chosen for DeepSpeed: stage ",
        "A step is ", "% compute", "reserved", "Margin of error. Beside ", "Stage 3",
        "zeroplan's own executor would reach ", "Searched ", "reduce_bucket_size 5e8",
        "docs/runtimes.md"}) {
    CHECK(Has(text, part));
  }
  std::istringstream lines(run.out);
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 100);
  CHECK(run.out.find("least certain") == std::string::npos);
  const RunResult recomputed =
      RunZeroplan(kSmallPlan + "--quick --runtime deepspeed --stage 3 --checkpointing full");
  CHECK(Has(WordsAlone(recomputed.out), wording::kStageWithRecomputeIsThe));
  const RunResult tight = RunZeroplan(
      "plan --explain --quick --model gpt3-1.3b --seq-len 1024 --gpus 2 --gpu-memory 24GB "
      "--global-batch 96 --stage 1 --offload-optimizer none --checkpointing none --micro-batch 2 "
      "--runtime deepspeed --out " +
      Path("tight.json"));
  const std::string once = "gives cached memory back once, before its steps are all alike.";
  CHECK(Has(WordsAlone(tight.out), once));
  const RunResult estimated = RunZeroplan(
      "estimate --explain --model gpt3-1.3b --seq-len 1024 --gpus 2 --gpu-memory 24GB --runtime "
      "deepspeed "
      "--config " +
      Path("tight.json"));
  CHECK(Has(WordsAlone(estimated.out), "* fits because PyTorch " + once));
  const RunResult quick = RunZeroplan(kSmallPlan + "--runtime deepspeed --quick");
  CHECK(quick.out.find("own executor would") == std::string::npos);
}

TEST_CASE("plan --runtime: what is faster as predicted and not taken says why") {
  const RunResult run = RunZeroplan(
      "plan --explain --quick --model llama3.1-8b --gpus 8 --seq-len 4096 --runtime deepspeed "
      "--stage 1,3 "
      "--checkpointing none --offload-optimizer none --offload-param none");
  CHECK(run.exit_code == 0);
  const std::string words = WordsAlone(run.out);
  CHECK(Has(words, wording::kChosenForDeepspeedStage2));
  CHECK(Has(words, wording::kButItsTimeIsKnown));
  // Faster still, with less memory free than the margin of error.
  CHECK(Has(words, "To the brim: stage 3 (micro-batch "));
  CHECK(Has(words, "may run out of memory."));
}

TEST_CASE("plan --runtime deepspeed: what --out says of the program is what estimate takes") {
  const std::string out = Path("recipe.json");
  const std::string asked = "--model gpt2 --gpus 2 --seq-len 1024 --runtime deepspeed ";
  const RunResult run = RunZeroplan("plan --quick " + asked +
                                    "--global-batch 32 --stage 2 --code hf --compile layers "
                                    "--optim adamw_bnb_8bit --format json --out " +
                                    out);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(Has(run.err, wording::kHasNoOptimizerTheScript));
  CHECK(Has(run.err, wording::kOptimizerBitsandbytesOptimAdamwBit));
  const Json planned = Json::parse(run.out);
  CHECK_FALSE(planned["config"].contains("optimizer"));
  const auto estimate = [&](const std::string& options) {
    RunResult result =
        RunZeroplan("estimate " + asked + options + " --format json --config " + out);
    CAPTURE(result.err);
    REQUIRE(result.exit_code == 0);
    return result;
  };
  const RunResult same = estimate("");
  const Json choice = Json::parse(same.out)["choices"][0];
  CHECK(choice["gpu_bytes"]["reserved"] == planned["choice"]["gpu_bytes"]["reserved"]);
  CHECK(choice["step_seconds"]["total"] == planned["choice"]["step_seconds"]["total"]);
  CHECK(Has(WordsAlone(same.err), wording::kAsItWasPlannedLayers));
  const RunResult other = estimate("--optim adamw_torch");
  CHECK(Has(WordsAlone(other.err),
            "--optim adamw_torch is taken in place of adamw_bnb_8bit, "
            "which " +
                out + " says."));
  CHECK(Json::parse(other.out)["choices"][0]["gpu_bytes"]["reserved"] !=
        choice["gpu_bytes"]["reserved"]);
  std::ofstream(out) << R"({"bf16": {"enabled": true}, "zero_optimization": {"stage": 2},
    "optimizer": {"type": "AdamW"}, "_zeroplan": {"optim": "adamw_bnb_9bit"}})";
  const RunResult wrong = RunZeroplan("estimate " + asked + "--config " + out);
  CHECK(wrong.exit_code == 2);
  CHECK(Has(wrong.err, out + ": _zeroplan.optim: adamw_bnb_9bit is not allowed"));
  std::ofstream(out) << R"({"bf16": {"enabled": true}, "zero_optimization": {"stage": 2},
    "optimizer": {"type": "AdamW"}})";
  CHECK(Has(WordsAlone(estimate("--optim adamw_bnb_8bit").err),
            "--optim adamw_bnb_8bit takes the place of the optimizer in " + out));
  std::filesystem::remove(out);
}

TEST_CASE("plan --runtime: JSON, and the config that --out writes") {
  const std::string out = Path("ds.json");
  for (const std::string runtime : {"deepspeed", "fsdp2"}) {
    CAPTURE(runtime);
    const RunResult run =
        RunZeroplan(kSmallPlan + "--checkpointing full --compile layers --runtime " + runtime +
                    " --format json --out " + out);
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    const Json report = Json::parse(run.out);
    CHECK(report["schema"] == "zeroplan.plan/1");
    CHECK(report["runtime"].get<std::string>().starts_with(runtime));
    CHECK(report["compiled"]["layers"] == true);
    const Json& choice = report["choice"];
    CHECK(choice["global_batch"] == 32);
    CHECK(choice["checkpointing"] == "full");
    CHECK(choice["fits"] == true);
    const Json& gpu = choice["gpu_bytes"];
    CHECK(gpu["total"].get<uint64_t>() ==
          gpu["reserved"].get<uint64_t>() + gpu["context"].get<uint64_t>());
    double parts = 0;
    for (const auto& [name, seconds] : choice["step_seconds"].items()) {
      if (name != "total") parts += seconds.get<double>();
    }
    CHECK(parts == doctest::Approx(choice["step_seconds"]["total"].get<double>()));
    const double step = choice["step_seconds"]["total"], rate = choice["tokens_per_second"];
    CHECK(rate * step == doctest::Approx(32 * 1024));
    double best = 0;
    for (const Json& stage : report["stages"]) {
      if (!stage["fits"].get<bool>()) {
        CHECK(stage["choice"]["why_not"].is_string());
      } else if (stage["choice"]["room"] == choice["room"]) {
        best = std::max(best, stage["choice"]["tokens_per_second"].get<double>());
      }
    }
    CHECK(rate >= 0.97 * best);
    CHECK(report["executor"]["tokens_per_second"].get<double>() > 0);
    CHECK(Json::parse(ReadWhole(out)) == report["config"]);
    CHECK(report["config"]["_zeroplan"]["runtime"] == report["runtime"]);
    CHECK(Has(run.err, wording::kTorchUtilsCheckpoint));
    CHECK(Has(run.err, wording::kTorchCompileOfEveryLayer));
    if (runtime == "deepspeed") {
      CHECK(RunZeroplan("config check " + out + " --gpus 2 --strict").exit_code == 0);
      // What was predicted of it is what estimate says of the file.
      const RunResult estimate = RunZeroplan(
          "estimate --runtime deepspeed --compile layers --model gpt2 --gpus 2 "
          "--gpu-memory 12GB --format json --config " +
          out);
      REQUIRE(estimate.exit_code == 0);
      const Json same = Json::parse(estimate.out)["choices"][0];
      CHECK(same["gpu_bytes"]["reserved"] == gpu["reserved"]);
    } else {
      const Json& shard = report["config"]["fully_shard"];
      CHECK(shard["reshard_after_forward"].get<bool>() == (choice["stage"] == 3));
      CHECK(shard["mp_policy"]["param_dtype"] == "bfloat16");
      CHECK(report["config"]["activation_checkpointing"] == true);
    }
  }
  std::filesystem::remove(out);
}

TEST_CASE("plan --out alone is DeepSpeed's, says so, and leaves the executor's plan apart") {
  const std::string out = Path("ds.json"), plan = Path("plan.json");
  const RunResult run = RunZeroplan(kSmallPlan + "--out " + out + " --plan-out " + plan);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(Has(run.err, "--out " + out + ": planned for DeepSpeed, as --runtime is not given"));
  CHECK(Has(run.err, "--plan-out " + plan + ": the best plan of zeroplan's own executor"));
  CHECK(Has(WordsAlone(run.out), wording::kChosenForDeepspeed));
  CHECK(Json::parse(ReadWhole(out))["_zeroplan"]["runtime"] == "deepspeed 0.19.6");
  const RunResult own = RunZeroplan(kSmallPlan + "--quick --format json");
  const Json planned = Json::parse(ReadWhole(plan));
  CHECK(planned["schema"] == "zeroplan.plan/1");
  CHECK(planned["config"] == Json::parse(own.out)["config"]);
  // Who reads the config is told what it was chosen for.
  CHECK(Has(RunZeroplan("config check " + out + " --gpus 2").out, "chosen for deepspeed 0.19.6"));
  const RunResult named = RunZeroplan(kSmallPlan + "--quick --runtime deepspeed --out " + out);
  CHECK(named.err.find("without --runtime") == std::string::npos);
  std::filesystem::remove(out);
  std::filesystem::remove(plan);
}

TEST_CASE("plan --out: a config's own keys stay, and keys that nobody knows too") {
  const std::string in = Path("in.json"), out = Path("out.json");
  std::ofstream(in) << R"({
    # Hjson, with what other programs read beside DeepSpeed.
    "my_trainer": {"seed": 7, "tags": ["a", 1.5, null]},
    "train_batch_size": 32, "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "bfloat16": {"enabled": true}, "steps_per_print": 2000, "wall_clock_breakdown": true,
    "gradient_clipping": 0.5,
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "torch_adam": true}},
    "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto", "allgather_bucket_size": 2e8,
      "round_robin_gradients": false, "stage3_prefetch_bucket_size": "auto"},
  })";
  const RunResult run = RunZeroplan(
      "plan --quick --model gpt2 --gpus 2 --gpu-memory 12GB --config " + in + " --out " + out);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  const Json config = Json::parse(ReadWhole(out));
  CHECK(config["my_trainer"] == Json::parse(R"({"seed": 7, "tags": ["a", 1.5, null]})"));
  CHECK(config["steps_per_print"] == 2000);
  CHECK(config["wall_clock_breakdown"] == true);
  CHECK(config["gradient_clipping"] == 0.5);
  CHECK(config["optimizer"]["params"]["lr"] == 3e-4);
  CHECK(config["optimizer"]["params"]["torch_adam"] == true);
  const Json& zero = config["zero_optimization"];
  CHECK(zero["stage"] == 2);
  CHECK(zero["allgather_bucket_size"] == 200'000'000);
  CHECK(zero["round_robin_gradients"] == false);
  CHECK(zero["reduce_bucket_size"].is_number());
  CHECK_FALSE(zero.contains("stage3_prefetch_bucket_size"));
  CHECK(zero["overlap_comm"] == false);  // what a config leaves out is DeepSpeed's default
  CHECK_FALSE(config.contains("bfloat16"));
  CHECK(config["bf16"]["enabled"] == true);
  CHECK(config["train_micro_batch_size_per_gpu"].get<int>() *
            config["gradient_accumulation_steps"].get<int>() ==
        16);
  CHECK(ReadWhole(out).find("auto") == std::string::npos);
  CHECK(RunZeroplan("config check " + out + " --gpus 2").exit_code == 0);
  std::filesystem::remove(in);
  std::filesystem::remove(out);
}

TEST_CASE("plan --runtime deepspeed --config: what DeepSpeed alone has is planned and stays") {
  const std::string in = Path("light.json"), out = Path("light_out.json");
  std::ofstream(in) << R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4,
    "bf16": {"enabled": true, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true},
    "activation_checkpointing": {"cpu_checkpointing": true, "partition_activations": true},
    "zero_optimization": {"stage": 2}})";
  const RunResult run = RunZeroplan(
      "plan --explain --runtime deepspeed --model gpt2 --gpus 2 --config " + in + " --out " + out);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(Has(WordsAlone(run.out), wording::kWithItsOwnBestPlan));
  CHECK(Has(WordsAlone(run.out), wording::kAsDeepspeedCpuCheckpointing));
  const Json config = Json::parse(ReadWhole(out));
  CHECK(config["bf16"]["bf16_optimizer_states"] == true);
  CHECK(config["bf16"]["bf16_master_weights_and_grads"] == true);
  CHECK(config["activation_checkpointing"]["cpu_checkpointing"] == true);
  CHECK(config["_zeroplan"]["offload_activations"] == "true");
  const RunResult nvme = RunZeroplan(
      "plan --explain --quick --runtime deepspeed --model gpt2-large --gpus 2 --stage 3 "
      "--global-batch 8 "
      "--hw hgx-h200 --offload-optimizer nvme");
  CHECK(nvme.exit_code == 0);
  CHECK(Has(WordsAlone(nvme.out), wording::kOfNvmeNoRunWas));
  CHECK(Has(WordsAlone(nvme.out), "add nvme_path"));
  // Which zeroplan's executor has, too.
  const RunResult own = RunZeroplan("plan --explain --quick --model gpt2 --gpus 2 --config " + in);
  CHECK(own.exit_code == 0);
  CHECK(Has(own.out, wording::kStageFullRecomputeActivationsOn));
  const RunResult twice = RunZeroplan(
      "plan --explain --quick --model gpt2 --gpus 2 --offload-activations --config " + in);
  CHECK(twice.exit_code == 2);
  CHECK(Has(twice.err, wording::kIsNotAllowedWithWhich));
  std::filesystem::remove(in);
  std::filesystem::remove(out);
}

// Two cards that are named alone are one host with two, and four a host with four.
TEST_CASE("plan --runtime: more GPUs that would fit are as fast as a plan for them says") {
  const std::string scenario =
      "plan --runtime deepspeed --model llama3.1-8b --hw rtx4090 --seq-len 4096 --quick ";
  const RunResult two =
      RunZeroplan(scenario + "--gpus 2 --stage 2 --offload-optimizer none --micro-batch 1");
  REQUIRE(two.exit_code == 3);
  const std::string begin = "smallest change that fits: ";
  REQUIRE(Has(two.err, begin + "--gpus 4 "));
  const size_t from = two.err.find(begin) + begin.size(), to = two.err.find(" (stage", from);
  const RunResult four = RunZeroplan(scenario + two.err.substr(from, to - from) + " --format json");
  REQUIRE(four.exit_code == 0);
  const double rate = Json::parse(four.out)["predicted"]["tokens_per_second"];
  CHECK(Has(two.err, fmt::format("a GPU, {:.0f} tokens/s)", rate)));
}

TEST_CASE("plan --runtime: nothing fits, and what would") {
  const RunResult pinned = RunZeroplan(
      "plan --runtime deepspeed --model gpt2-xl --gpu-memory 12GB --stage 1 "
      "--offload-optimizer none --global-batch 8");
  CHECK(pinned.exit_code == 3);
  CHECK(pinned.out.empty());
  CHECK(Has(pinned.err, wording::kNothingFitsDeepspeed));
  CHECK(Has(pinned.err, wording::kSmallestChangeThatFits3));
  CHECK(Has(pinned.err, wording::kOutOfMemoryInInitialisation));
  const RunResult gpus = RunZeroplan(
      "plan --runtime fsdp2 --model gpt2-xl --gpu-memory 16GB --offload-param none "
      "--checkpointing full --stage 3 --global-batch 8 --host-memory 8GB");
  CHECK(gpus.exit_code == 3);
  CHECK(Has(gpus.err, wording::kNothingFitsFsdp));
}

TEST_CASE("plan --runtime: other objectives, the largest, where the answer changes, and a page") {
  for (const std::string runtime : {"deepspeed", "fsdp2"}) {
    CAPTURE(runtime);
    const auto bytes = [&](const std::string& objective) -> uint64_t {
      const RunResult run = RunZeroplan(kSmallPlan + "--quick --format json --runtime " + runtime +
                                        " --objective " + objective);
      CAPTURE(run.err);
      REQUIRE(run.exit_code == 0);
      return Json::parse(run.out)["choice"]["gpu_bytes"]["total"];
    };
    CHECK(bytes("headroom") < bytes("throughput"));
    const RunResult largest = RunZeroplan(
        "plan --quick --model gpt2 --gpus 2 --gpu-memory 12GB --largest micro-batch "
        "--runtime " +
        runtime);
    CAPTURE(largest.err);
    CHECK(largest.exit_code == 0);
    CHECK(Has(WordsAlone(largest.out), "--micro-batch "));
    const std::string page = Path("plan.html");
    const RunResult advised = RunZeroplan(
        "plan --model gpt2 --gpus 2 --gpu-memory 12GB --micro-batch 4 --grad-accum 4 "
        "--format json --runtime " +
        runtime + " --report " + page);
    CAPTURE(advised.err);
    REQUIRE(advised.exit_code == 0);
    const Json report = Json::parse(advised.out);
    bool memory = false;
    for (const Json& claim : report["claims"]) memory = memory || claim["kind"] == "memory";
    CHECK(memory);
    CHECK(std::filesystem::file_size(page) > 10'000);
    std::filesystem::remove(page);
  }
}

TEST_CASE("plan --runtime: what it does not do is refused by name, with what to do") {
  struct Refusal {
    const char* arguments;
    std::vector<std::string> parts;
  };
  for (const Refusal& refusal : std::initializer_list<Refusal>{
           {"--runtime fsdp2 --stage 1", {"stage 1", "use 3"}},
           {"--runtime fsdp2 --config no_such.json", {"no_such.json: cannot be read"}},
           {"--runtime fsdp2 --offload-optimizer cpu --offload-param none --stage 3",
            {"CPUOffloadPolicy"}},
           {"--runtime deepspeed --trace t.json", {"--trace", "DeepSpeed"}},
           {"--runtime deepspeed --format csv", {"--format", "csv"}},
           {"--runtime deepspeeed", {"deepspeed"}},
           {"--runtime deepspeed --dtype fp32", {"--dtype bf16 or fp16"}},
           {"--runtime deepspeed --stage 2 --offload-optimizer nvme", {"nvme", "at stage 3 alone"}},
           {"--runtime deepspeed --checkpointing selective", {"--checkpointing none or full"}},
           {"--runtime deepspeed --stage 0 --offload-optimizer cpu", {"offload_optimizer"}},
           {"--compile layers", {"--compile", "--runtime deepspeed"}},
           {"--runtime zeroplan --compile layers", {"--compile"}},
           {"--runtime deepspeed --deterministic", {"--deterministic"}},
           // Of --out alone, with what still writes a config.
           {"--dtype fp32 --out d.json",
            {"fp32", "--runtime zeroplan --out", "by zeroplan's own choice"}},
           {"--runtime deepspeed --hw v100-32gb-sxm3 --attn flash", {"FlashAttention", "eager"}},
           {"--out /no/such/d.json", {"--out: /no/such/d.json", "no folder"}},
       }) {
    CAPTURE(refusal.arguments);
    const RunResult run =
        RunZeroplan(std::string("plan --explain --model gpt2 ") + refusal.arguments);
    CHECK(run.exit_code == 2);
    CHECK(run.out.empty());
    for (const std::string& part : refusal.parts) CHECK(Has(run.err, part));
  }
  CHECK_FALSE(std::filesystem::exists("d.json"));
  const TempDir folder;
  const std::string config = folder.path("ds.json");
  std::ofstream(config) << "{}";
  const RunResult run =
      RunZeroplan("plan --explain --model gpt2 --runtime fsdp2 --config " + config);
  CHECK(run.exit_code == 2);
  CHECK(Has(run.err, "--config: " + config));
  CHECK(Has(run.err, "--runtime fsdp2"));
}

TEST_CASE("plan --runtime: a whole run's hours and price") {
  const RunResult run = RunZeroplan(
      kSmallPlan + "--quick --runtime deepspeed --tokens 1B --gpu-hour-price 2 --format json");
  REQUIRE(run.exit_code == 0);
  const Json report = Json::parse(run.out);
  const double step = report["choice"]["step_seconds"]["total"];
  CHECK(report["run"]["steps"] == 30518);
  CHECK(report["run"]["seconds"].get<double>() == doctest::Approx(30518 * step));
  CHECK(report["run"]["price"].get<double>() == doctest::Approx(2 * 2 * 30518 * step / 3600));
}

}  // namespace
}  // namespace zeroplan
