// plan --for: the files that it writes, and what it prints to be pasted.
#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/run_binary.h"
#include "tests/has.h"
#include "tests/temp_dir.h"
#include "tests/wordings/cli.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;

constexpr const char* kPlan = "plan --quick --model llama3.2-1b --gpus 8 --seq-len 2048 ";

TEST_CASE("plan --for hf-trainer: the config and its arguments") {
  const TempDir folder;
  const std::string in = folder.path("in.json"), out = folder.path("out.json");
  std::ofstream(in) << R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto", "bf16": {"enabled": true}, "wandb": {"enabled": false},
    "my_launcher": {"queue": "long"}, "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "weight_decay": 0.1}}})";
  const RunResult run = RunZeroplan(kPlan + ("--config " + in + " --for hf-trainer --out ") + out);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  const Json written = Json::parse(ReadWhole(out));
  CHECK(written["train_batch_size"] == "auto");
  CHECK(written["bf16"]["enabled"] == "auto");
  CHECK(written["optimizer"]["params"]["lr"] == "auto");
  CHECK(written["zero_optimization"]["stage"] == 2);
  CHECK(written["zero_optimization"]["reduce_bucket_size"].is_number());
  CHECK(written["wandb"] == Json{{"enabled", false}});
  CHECK(written["my_launcher"] == Json{{"queue", "long"}});
  CHECK(written["_zeroplan"]["runtime"] == "deepspeed 0.19.6");
  CHECK(Has(run.out, "\nFor hf-trainer, written to " + out +
                         ":\n\n    torchrun --nproc_per_node 8 "
                         "train.py \\\n      --deepspeed " +
                         out + " \\\n      --per_device_train_batch_size "));
  for (const char* argument :
       {"--gradient_accumulation_steps ", "--bf16 true \\\n", "--learning_rate 0.0003 \\\n",
        "--weight_decay 0.1 \\\n", "--lr_scheduler_type constant\n\n"}) {
    CAPTURE(argument);
    CHECK(Has(run.out, std::string("      ") + argument));
  }
  CHECK(Has(run.out, wording::kNoConfigSaysAdamBeta));
  // It is read again, as what it is.
  const RunResult check = RunZeroplan("config check " + out + " --gpus 8 --model llama3.2-1b");
  CAPTURE(check.err);
  CHECK(check.exit_code == 0);
  CHECK(Has(check.out, wording::kZeroOptimizationStage));
  CHECK(Has(check.out, wording::kTheConfigWasChosenFor));
}

TEST_CASE("plan --out: a config full of other sections keeps them all, and config check takes it") {
  const TempDir folder;
  const std::string in = folder.path("in.json"), out = folder.path("out.json");
  std::ofstream(in) << R"({
    // comments are lost
    "train_batch_size": 32, "train_micro_batch_size_per_gpu": "auto", "steps_per_print": 100,
    "gradient_accumulation_steps": "auto", "wall_clock_breakdown": true, "comment": "mine",
    "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto", "ignore_unused_parameters": false},
    "bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "fused": true}},
    "flops_profiler": {"enabled": true, "profile_step": 5}, "amp": {"enabled": false},
    "tensorboard": {"enabled": true, "output_path": "tb/", "job_name": "j"},
    "wandb": {"enabled": true, "project": "p"}, "comet": {"enabled": false, "project": "p"},
    "csv_monitor": {"enabled": false}, "comms_logger": {"enabled": false, "prof_ops": ["all_reduce"]},
    "data_efficiency": {"enabled": false, "seed": 7}, "elasticity": {"enabled": false},
    "checkpoint": {"tag_validation": "Warn"}, "aio": {"queue_depth": 8},
    "my_launcher": {"queue": "long", "tags": [1, null, {"a": 2.5}]}})";
  const Json came = Json::parse(ReadWhole(in), nullptr, true, /*ignore_comments=*/true);
  for (const char* runtime : {"deepspeed", "zeroplan"}) {
    CAPTURE(runtime);
    const RunResult run =
        RunZeroplan(kPlan + ("--config " + in + " --runtime ") + runtime + " --out " + out);
    CAPTURE(run.err);
    REQUIRE(run.exit_code == 0);
    const Json written = Json::parse(ReadWhole(out));
    for (const auto& [key, value] : came.items()) {
      CAPTURE(key);
      REQUIRE(written.contains(key));
      const bool planned = value == "auto" || key == "zero_optimization" || key == "optimizer";
      if (!planned) CHECK(written[key] == value);
    }
    CHECK(written["train_micro_batch_size_per_gpu"].is_number());
    CHECK(written["zero_optimization"]["ignore_unused_parameters"] == false);
    CHECK(written["optimizer"]["params"]["fused"] == true);
    const RunResult check = RunZeroplan("config check " + out + " --gpus 8 --model llama3.2-1b");
    CAPTURE(check.err);
    CHECK(check.exit_code == 0);
    CHECK(Has(check.out, wording::kTrainBatchSize));
    // Written once more it is the same: nothing is left to choose.
    const std::string again = folder.path("again.json");
    REQUIRE(RunZeroplan(kPlan + ("--config " + out + " --runtime ") + runtime + " --out " + again)
                .exit_code == 0);
    CHECK(Json::parse(ReadWhole(again)) == written);
  }
}

TEST_CASE("plan --for accelerate: with DeepSpeed two files, with FSDP2 one") {
  const TempDir folder;
  const std::string yaml = folder.path("run.yaml"), beside = folder.path("run.deepspeed.json");
  const RunResult run = RunZeroplan(kPlan + ("--for accelerate --out " + yaml));
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(Has(ReadWhole(yaml), "deepspeed_config_file: \"" + beside + "\"\n"));
  CHECK(Has(ReadWhole(yaml), "num_processes: 8\n"));
  const Json json = Json::parse(ReadWhole(beside));
  CHECK(json["train_batch_size"] == json["train_micro_batch_size_per_gpu"].get<int>() *
                                        json["gradient_accumulation_steps"].get<int>() * 8);
  CHECK(Has(run.out, "For accelerate, written to " + yaml + ", " + beside + ":"));
  CHECK(Has(run.out, "    accelerate launch --config_file " + yaml + " train.py\n"));

  const std::string sharded = folder.path("fsdp.yaml");
  const RunResult fsdp2 = RunZeroplan(
      kPlan + ("--runtime fsdp2 --stage 3 --compile layers --for accelerate --out " + sharded));
  REQUIRE(fsdp2.exit_code == 0);
  const std::string text = ReadWhole(sharded);
  CHECK(Has(text, wording::kDistributedTypeFsdpMixedPrecision));
  CHECK(Has(text, wording::kFsdpReshardAfterForwardTrue));
  CHECK(Has(text, wording::kDynamoUseRegionalCompilationTrue));
  CHECK_FALSE(std::filesystem::exists(folder.path("fsdp.deepspeed.json")));
}

TEST_CASE("plan --for torchtitan: FSDP2, reduced in fp32") {
  const TempDir folder;
  const std::string toml = folder.path("run.toml");
  const RunResult run = RunZeroplan(
      "plan --quick --model llama3.1-8b --gpus 8 --seq-len 2048 "
      "--stage 3 --format json --for torchtitan --out " +
      toml);
  CAPTURE(run.err);
  REQUIRE(run.exit_code == 0);
  const Json report = Json::parse(run.out);
  CHECK(report["runtime"] == "fsdp2 of PyTorch 2.11");
  const std::string text = ReadWhole(toml);
  CHECK(Has(text, wording::kNameLlamaFlavor));
  CHECK(Has(text, wording::kFsdpReshardAfterForwardAlways));
  CHECK(Has(text, wording::kDataParallelShardDegree));
  // stdout is the report's alone.
  CHECK(Has(run.err, "torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file " + toml));
  // It reduces in fp32, so the plan does, and its own code is meant.
  const RunResult same = RunZeroplan(
      "plan --quick --model llama3.1-8b --gpus 8 --seq-len 2048 --stage 3 --format json "
      "--runtime fsdp2 --communication-dtype fp32 --code torchtitan");
  REQUIRE(same.exit_code == 0);
  CHECK(Json::parse(same.out)["choice"] == report["choice"]);
}

TEST_CASE("plan --for: what it refuses names the option and the fix, before any work") {
  const TempDir folder;
  const struct {
    std::string options;
    const char* message;
  } rows[] = {
      {"--for torchtitan", "--for: torchtitan writes a file; add --out FILE"},
      {"--for torchtitan --runtime deepspeed --out " + folder.path("x.toml"),
       "--for: torchtitan trains with FSDP2, not with DeepSpeed; use --runtime fsdp2"},
      {"--for torchtitan --runtime zeroplan --out " + folder.path("x.toml"),
       "--for: torchtitan trains with FSDP2, not with DeepSpeed; use --runtime fsdp2"},
      {"--for torchtitan --communication-dtype bf16 --out " + folder.path("x.toml"),
       "--communication-dtype: bf16 is not what torchtitan reduces in; use fp32 or leave it out"},
      {"--for deepspeed --runtime fsdp2 --out " + folder.path("x.json"),
       "would be a DeepSpeed config, which FSDP2 does not read; add --for hf-trainer, accelerate "
       "or "
       "torchtitan"},
      {"--for accelerate --out " + folder.path("x.json"),
       "accelerate reads its YAML from another name; use "},
      {"--for accelerate --out /no/such/x.yaml", "--out: "},
      {"--for megatron --out " + folder.path("x"),
       "--for: megatron is not allowed; use deepspeed, hf-trainer, accelerate, torchtitan"},
      {"--for accelerate --runtime fsdp2 --stage 1 --out " + folder.path("x.yaml"),
       "stage 1 is not what fully_shard does; use 3"},
      {"--for accelerate --runtime fsdp2 --offload-optimizer nvme --offload-param nvme --stage 3 "
       "--out " +
           folder.path("x.yaml"),
       "FSDP2 has no offload to NVMe"},
      {"--for hf-trainer --runtime fsdp2 --communication-dtype fp32 --out " + folder.path("x.json"),
       "--for: hf-trainer with FSDP2 cannot do what is asked for: fp32 reduction of gradients; "
       "allow "
       "another choice"},
      {"--for hf-trainer --checkpointing selective --out " + folder.path("x.json"),
       "--out: DeepSpeed cannot do what is asked for: selective recompute"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.options);
    const RunResult run = RunZeroplan(kPlan + row.options);
    CAPTURE(run.err);
    CHECK(run.exit_code == 2);
    CHECK(run.out.empty());
    CHECK(Has(run.err, row.message));
  }
  const RunResult one = RunZeroplan("plan --model llama3.2-1b --gpus 1 --for torchtitan --out " +
                                    folder.path("x.toml"));
  CHECK(one.exit_code == 2);
  CHECK(Has(one.err, wording::kOneGpuItShardsOn));
  CHECK(std::filesystem::is_empty(folder.path("")));
}

}  // namespace
}  // namespace zeroplan
