// Logs of other people's runs: whose run it was, and what is missing.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "planner/why/run_tasks.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/planner/why/why_of_text.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

bool Runs(const RunLog& log, const std::string& program) {
  return std::find(log.programs.begin(), log.programs.end(), program) != log.programs.end();
}

// ---- whose run it was ----

TEST_CASE("torchtune: recipe, model, offload and optimizer, with the GPUs of a machine") {
  const WhyAnswer answer =
      WhyOfFixture("torchtune_cpu_offload_killed.log", {{"hw", "dgx-a100-80gb"}});
  CHECK(Asked(answer).empty());
  CHECK(answer.log.Cause()->phase == RunPhase::kLoading);
  REQUIRE(answer.prediction.has_value());
  const ChoiceEstimate& choice = answer.prediction->choice;
  CHECK(answer.prediction->resolved->inputs().model.name == "llama3.1-70b");
  CHECK(choice.setup.zero.stage == 3);
  CHECK(choice.setup.zero.offload_param.device == OffloadDevice::kCpu);
  CHECK(choice.setup.zero.offload_optimizer.device == OffloadDevice::kCpu);
  CHECK(choice.setup.batch.micro_batch == 2);
  CHECK(choice.setup.batch.seq_len == 1024);
  CHECK(choice.setup.batch.world_size == 8);
  CHECK(choice.setup.recompute.kind == RecomputeKind::kFull);
  CHECK(Asked(WhyOfFixture("torchtune_cpu_offload_killed.log")) == "gpus");

  const auto of = [](const std::string& recipe, const std::string& model) {
    return ParseLog(
        fmt::format("INFO:torchtune.utils._logging:Running {} with resolved config:\n\n"
                    "batch_size: 4\ncompile: true\nmodel:\n  _component_: "
                    "torchtune.models.{}\n  lora_attn_modules:\n  - q_proj\n  - v_proj\n"
                    "  lora_rank: 8\nseed: 3\ntokenizer:\n  max_seq_len: 512\n",
                    recipe, model),
        "train.log");
  };
  const RunLog lora = of("LoRAFinetuneRecipeSingleDevice", "qwen2_5.lora_qwen2_5_7b_instruct");
  CHECK(TextOf(lora, "model") == "qwen2.5-7b");
  CHECK(TextOf(lora, "method") == "lora");
  CHECK(TextOf(lora, "lora_rank") == "8");
  CHECK(TextOf(lora, "lora_targets") == "q_proj,v_proj");
  CHECK(TextOf(lora, "gpus") == "1");
  CHECK(TextOf(lora, "runtime") == "ddp");
  CHECK(TextOf(lora, "compile") == "all");
  CHECK(TextOf(lora, "seq_len") == "512");
  CHECK(TextOf(of("FullFinetuneRecipeDistributed", "qwen2.qwen2_0_5b"), "model") == "qwen2-0.5b");
  CHECK(TextOf(of("LoRAFinetuneRecipeSingleDevice", "llama3_2.qlora_llama3_2_1b"), "method") ==
        "qlora");
  CHECK(TextOf(of("FullFinetuneRecipeDistributed", "mistral.mistral_7b"), "model") == "mistral-7b");
  CHECK(of("LoRADPORecipeDistributed", "llama2.lora_llama2_7b").task == "DPO");
}

TEST_CASE("Megatron: its global batch and arguments count") {
  const WhyAnswer answer = WhyOfFixture("megatron_global_batch.log");
  CHECK(Asked(answer) == "model hw");
  CHECK(Has(WhyText(answer, 400),
            "1024 sequences of 4096 tokens on 32 GPUs, which is 791 tokens/s "
            "of a GPU"));
  const WhyAnswer predicted =
      WhyOfFixture("megatron_global_batch.log", {{"model", "llama2-7b"}, {"hw", "dgx-a100-80gb"}});
  REQUIRE(predicted.prediction.has_value());
  const TrainSetup& setup = predicted.prediction->choice.setup;
  CHECK(setup.batch.global_batch() == 1024);
  CHECK(setup.batch.micro_batch == 1);
  CHECK(setup.zero.stage == 1);
  const std::string text = WhyText(predicted, 400);
  CHECK(Has(text, "tokens/s of a GPU    791"));

  // Layers that are split are another program's model.
  const WhyAnswer split = WhyOfText(
      "using world size: 64, data-parallel-size: 8, tensor-model-parallel size: 8, "
      "pipeline-model-parallel size: 1\n iteration 3/ 9 | elapsed time per iteration (ms): 900.0 | "
      "global batch size: 64 |\n");
  CHECK(Asked(split).empty());
  CHECK(Has(WhyIncomplete(split), "tensor_model_parallel_size 8 (line 1) is not modelled"));
  const RunLog arguments = ParseLog(
      "[default0]:  bf16 ............................................ True\n"
      "[default0]:  recompute_granularity ........................... full\n"
      "[default0]:  use_flash_attn .................................. True\n"
      "[default0]:  fp16 ............................................ False\n",
      "train.log");
  CHECK(TextOf(arguments, "dtype") == "bf16");
  CHECK(TextOf(arguments, "checkpointing") == "full");
  CHECK(TextOf(arguments, "attn") == "flash");
}

TEST_CASE("Unsloth is named, and not predicted as transformers") {
  const WhyAnswer answer = WhyOfFixture("unsloth_t4.log");
  CHECK(Runs(answer.log, "Unsloth"));
  CHECK(answer.log.Cause()->phase == RunPhase::kLoss);
  CHECK(Asked(answer).empty());
  CHECK(Has(WhyIncomplete(answer), "Unsloth"));
  CHECK(TextOf(answer.log, "gpus") == "1");
  CHECK(TextOf(answer.log, "hw") == "Tesla T4");
  CHECK(TextOf(answer.log, "micro_batch") == "2");
  CHECK(TextOf(answer.log, "grad_accum") == "4");
  const RunLog later = ParseLog(
      "==((====))==  Unsloth 2025.3.19: Fast Qwen2 patching. Transformers: 4.50.0.\n"
      "   \\\\   /|    NVIDIA A100-SXM4-40GB. Num GPUs = 1. Max memory: 39.557 GB.\n"
      "O^O/ \\_/ \\    Batch size per device = 8 | Gradient accumulation steps = 2\n",
      "train.log");
  CHECK(TextOf(later, "hw") == "NVIDIA A100-SXM4-40GB");
  CHECK(TextOf(later, "micro_batch") == "8");
  CHECK(TextOf(later, "grad_accum") == "2");
}

TEST_CASE("torchtitan: model, mesh and compile lines") {
  const auto log = [](const std::string& mesh) {
    return ParseLog(
        "[titan] - root - INFO - Building " + mesh +
            "\n[titan] - root - INFO - Model llama3 8B size: 8,030,261,248 total parameters\n"
            "[titan] - root - INFO - Compiling each TransformerBlock with torch.compile\n"
            "[titan] - root - INFO - Applied FSDP to the model\n",
        "train.log");
  };
  const RunLog one = log("1-D device mesh with ['dp_shard'], [8]");
  CHECK(Runs(one, "torchtitan"));
  CHECK(TextOf(one, "model") == "llama3-8b");
  CHECK(TextOf(one, "gpus") == "8");
  CHECK(TextOf(one, "compile") == "layers");
  CHECK(TextOf(one, "runtime") == "fsdp2");
  CHECK(one.all_params == 8'030'261'248);
  CHECK_FALSE(one.not_predicted.has_value());
  const RunLog two =
      log("device mesh with parallelism: pp=1, dp_replicate=2, dp_shard=8, cp=1, tp=1, ep=1");
  CHECK(TextOf(two, "gpus") == "16");
  CHECK_FALSE(two.not_predicted.has_value());
  const RunLog split = log("2-D device mesh with ['dp_shard', 'tp'], [4, 2]");
  CHECK(TextOf(split, "gpus") == "8");
  REQUIRE(split.not_predicted.has_value());
  CHECK(Has(split.not_predicted->why, "tp 2"));
}

TEST_CASE("ms-swift and LLaMA-Factory: their commands, configs, speed and memory") {
  const RunLog swift = ParseLog(
      "NPROC_PER_NODE=4 swift sft --model Qwen/Qwen2.5-7B-Instruct --train_type full --deepspeed "
      "zero3_offload --max_length 4096 --torch_dtype bfloat16\n"
      "{'loss': 1.2, 'memory(GiB)': 62.31, 'train_speed(iter/s)': 0.05, "
      "'global_step/max_steps': '5/100'}\n"
      "{'loss': 1.1, 'memory(GiB)': 62.42, 'train_speed(iter/s)': 0.05, "
      "'global_step/max_steps': '10/100'}\n",
      "train.log");
  CHECK(Runs(swift, "ms-swift"));
  CHECK(TextOf(swift, "model") == "Qwen/Qwen2.5-7B-Instruct");
  CHECK(TextOf(swift, "method") == "full");
  CHECK(TextOf(swift, "gpus") == "4");
  CHECK(TextOf(swift, "stage") == "3");
  CHECK(TextOf(swift, "offload_param") == "cpu");
  CHECK(TextOf(swift, "seq_len") == "4096");
  REQUIRE(swift.step_seconds.has_value());
  CHECK(swift.step_seconds->value == doctest::Approx(20));
  REQUIRE(swift.reserved.has_value());
  CHECK(swift.reserved->value == doctest::Approx(62.42 * (1ull << 30)));
  CHECK(swift.steps_seen == 10);

  const WhyAnswer killed = WhyOfFixture("zero3_offload_killed.log");
  CHECK(Asked(killed).empty());
  CHECK(killed.log.Cause()->phase == RunPhase::kInit);
  REQUIRE(killed.prediction.has_value());
  const TrainSetup& setup = killed.prediction->choice.setup;
  CHECK(setup.batch.world_size == 2);
  CHECK(setup.zero.stage == 3);
  CHECK(setup.zero.offload_param.device == OffloadDevice::kCpu);
  CHECK(Assumes(killed, "⟦offload_param⟧ cpu (the name ds_z3_offload_config.json, line 1)"));
  // A tenth of the host was in use.
  CHECK(HasFinding(killed, "look for the limit of its job or container"));
  CHECK(killed.changes.empty());

  const RunLog factory = ParseLog(
      "llamafactory-cli train --stage dpo --model_name_or_path a/b --finetuning_type lora "
      "--quantization_bit 4 --flash_attn fa2\n",
      "train.log");
  CHECK(factory.task == "DPO");
  CHECK(TextOf(factory, "method") == "qlora");
  CHECK(TextOf(ParseLog("t.py --torch_dtype torch.bfloat16 --load_in_4bit "
                        "--bnb_4bit_quant_storage torch.bfloat16\n",
                        "t"),
               "quant_storage") == "bf16");
  CHECK(TextOf(factory, "attn") == "flash");
}

TEST_CASE("names of config files are a hint: assumed, and weaker than what is stated") {
  const auto stage = [](const std::string& name) {
    return TextOf(ParseLog("python train.py --deepspeed " + name + "\n", "train.log"), "stage");
  };
  CHECK(stage("configs/ds_config_zero3.json") == "3");
  CHECK(stage("examples/deepspeed/ds_z2_offload_config.json") == "2");
  CHECK(stage("stage_1.json") == "1");
  CHECK(stage("zero2") == "2");
  CHECK(stage("ds.json").empty());
  CHECK(stage("quiz3.json").empty());
  CHECK(stage("zero30.json").empty());
  const RunLog stated = ParseLog(
      "python train.py --deepspeed zero3.json\n[INFO] Creating torch.bfloat16 ZeRO stage 2 "
      "optimizer\n",
      "train.log");
  CHECK(TextOf(stated, "stage") == "2");
}

TEST_CASE("a shortage on one GPU asks for neither the program nor the number of GPUs") {
  CHECK(Asked(WhyOfFixture("one_gpu_oom.log")) == "model seq_len micro_batch");
  const Fields fields = {{"model", "llama3.1-8b"}, {"seq_len", "2048"}, {"micro_batch", "1"}};
  const WhyAnswer answer = WhyOfFixture("one_gpu_oom.log", fields);
  REQUIRE(answer.prediction.has_value());
  CHECK(answer.prediction->choice.setup.batch.world_size == 1);
  CHECK_FALSE(answer.prediction->choice.fits);
  CHECK(Assumes(answer, "⟦gpus⟧ 1 (its frames have no DDP, FSDP or DeepSpeed, line 8)"));
  const auto frames = [](const char* between) {
    return Traceback({{"transformers/trainer.py", "training_step"},
                      {between, "forward"},
                      {"transformers/models/llama/modeling_llama.py", "forward"}});
  };
  CHECK(ParseLog(frames("torch/nn/parallel/distributed.py"), "t").plain_forward_line == 0);
  CHECK(ParseLog(frames("deepspeed/runtime/engine.py"), "t").plain_forward_line == 0);
  CHECK(ParseLog(frames("peft/peft_model.py"), "t").plain_forward_line > 0);
  CHECK(Asked(WhyOfText("[rank1]: hello\n" + frames("peft/peft_model.py")))
            .starts_with("model runtime gpus"));
}

TEST_CASE("counts of parameters tell the model and the rank of its adapters") {
  const WhyAnswer answer = WhyOfFixture("fsdp1_qlora_init_oom.log");
  CHECK(answer.log.all_params == 70'553'706'496);
  CHECK(Asked(answer) == "gpus");
  CHECK(Has(WhyIncomplete(answer), "the log has a rank 2"));
  CHECK(answer.log.fsdp1);
  CHECK(HasFinding(answer, "FSDP1 moves a wrapped module whole to the GPU"));
  CHECK(HasFinding(answer, "bnb_4bit_quant_storage"));
  CHECK_FALSE(HasFinding(answer, "Not fragmentation"));
  // Its shards are a third of what it held.
  const WhyAnswer four = WhyOfFixture("fsdp1_qlora_init_oom.log", {{"gpus", "4"}});
  REQUIRE(four.prediction.has_value());
  CHECK(four.changes.empty());
  CHECK(HasFinding(four, "Initialisation is predicted to fit"));
  CHECK_FALSE(HasFinding(four, "The prediction agrees"));
  CHECK(HasFinding(four, "so no change is known to suffice"));
  CHECK(Lacks(WhyScreen(four, "", 400, false), "No change was found"));
  bool model = false, rank = false;
  for (const UsedFact& fact : answer.used) {
    model = model || (fact.field == "⟦model⟧" && fact.text.ends_with("-70b"));
    rank = rank || (fact.field == "⟦lora_rank⟧" && fact.text == "8");
  }
  CHECK(model);
  CHECK(rank);
  CHECK(Assumes(answer, "⟦method⟧ qlora (the name examples/llama-3/qlora-70b.yaml"));

  const auto used = [](const std::string& text) {
    std::string fields;
    for (const UsedFact& fact : WhyOfText(text).used) {
      if (fact.field == "⟦model⟧" || fact.field == "⟦lora_rank⟧") fields += fact.text + " ";
    }
    return fields;
  };
  // Llama 3.2 1B with rank 16 on all linears: 11,272,192 of PEFT's parameters.
  CHECK(used("trainable params: 11,272,192 || all params: 1,247,086,592 || trainable%: 0.9\n") ==
        "llama3.2-1b 16 ");
  CHECK(used("--> mine has 6738.415616 Million params\n") == "llama2-7b ");
  CHECK(used("trainable params: 1,000 || all params: 1,235,815,400 || trainable%: 0.01\n") ==
        "llama3.2-1b ");
  CHECK(used("trainable params: 1,000 || all params: 777,777 || trainable%: 0.1\n").empty());
}

// ---- tasks ----

TEST_CASE("preferences and rewards are named, with their own ways out") {
  const auto task_of = [](const std::string& text) { return ParseLog(text, "t").task; };
  CHECK(task_of("accelerate launch examples/scripts/dpo.py --beta 0.1\n") == "DPO");
  CHECK(task_of("trl kto --model_name_or_path a/b\n") == "KTO");
  CHECK(task_of("swift rlhf --rlhf_type grpo --model a/b\n") == "GRPO");
  CHECK(task_of("python train.py --stage rm\n") == "reward modelling");
  CHECK(task_of(Traceback({{"trl/trainer/orpo_trainer.py", "concatenated_forward"}})) == "ORPO");
  CHECK(task_of("python sft.py --dataset ultrafeedback-dpo\n").empty());
  CHECK(task_of("python cupod.py --x 1\n").empty());

  const WhyAnswer dpo = WhyOfText(
      "torchrun --nproc_per_node 1 dpo.py --model_name_or_path Qwen/Qwen2.5-0.5B --bf16 True "
      "--per_device_train_batch_size 8 --max_length 1024\n" +
          Traceback({{"trl/trainer/dpo_trainer.py", "concatenated_forward"},
                     {"transformers/models/qwen2/modeling_qwen2.py", "forward"}}),
      {{"gpu_memory", "80GB"}});
  CHECK_FALSE(dpo.prediction.has_value());
  CHECK(Asked(dpo).empty());
  CHECK(HasFinding(dpo, "a reference model"));
  CHECK(HasFinding(dpo, "precompute_ref_log_probs"));
  CHECK(Has(WhyIncomplete(dpo), "a step of DPO is not predicted"));
  for (const char* task : {"GRPO", "RLOO", "PPO", "DPO", "KTO", "ORPO", "CPO", "SimPO"}) {
    CHECK(Has(TaskText(task, 7), "ways out"));
  }
}

// ---- configs with "auto" ----

TEST_CASE("\"auto\" of a given config is what the log has") {
  const TempDir folder;
  const std::string file = folder.path("ds.json");
  const auto write = [&](const std::string& batch) {
    std::ofstream(file) << "{\"bf16\": {\"enabled\": \"auto\"}, " << batch
                        << "\n\"zero_optimization\": {\"stage\": 3, \"reduce_bucket_size\": "
                           "\"auto\"}}\n";
  };
  const auto why = [&](const std::string& options) {
    return WhyOfText(
        "torchrun --nproc_per_node 4 train.py --model_name_or_path meta-llama/Llama-3.1-8B --bf16 "
        "True --deepspeed ds.json --max_seq_length 8192 --attn_implementation flash_attention_2 " +
            options +
            "\n>>   Instantaneous batch size per device = 4\n"
            ">>   Total train batch size (w. parallel, distributed & accumulation) = 128\n"
            ">>   Gradient Accumulation steps = 8\n" +
            Traceback({{"deepspeed/runtime/engine.py", "forward"},
                       {"transformers/models/llama/modeling_llama.py", "forward"}}),
        {{"config", file}, {"gpu_memory", "80GB"}});
  };
  write(
      "\"train_micro_batch_size_per_gpu\": \"auto\", \"gradient_accumulation_steps\": \"auto\", "
      "\"train_batch_size\": \"auto\",");
  const WhyAnswer answer = why("");
  REQUIRE(answer.prediction.has_value());
  CHECK(answer.prediction->choice.setup.batch.micro_batch == 4);
  CHECK(answer.prediction->choice.setup.batch.grad_accum == 8);
  CHECK(answer.prediction->choice.setup.recompute.kind == RecomputeKind::kNone);
  CHECK(answer.conflicts.empty());
  CHECK_FALSE(HasFinding(answer, "eager"));
  REQUIRE_FALSE(answer.changes.empty());
  for (const WhyChange& change : answer.changes) {
    CHECK(change.estimate.setup.batch.global_batch() == 128);
  }
  // Trainer turns recompute on outside the config.
  const WhyAnswer recomputed = why("--gradient_checkpointing True");
  REQUIRE(recomputed.prediction.has_value());
  CHECK(recomputed.prediction->choice.setup.recompute.kind == RecomputeKind::kFull);
  // An option wins over both.
  CHECK(WhyOfText("torchrun --nproc_per_node 4 t.py --gradient_checkpointing True --bf16 True\n",
                  {{"config", file},
                   {"model", "gpt2"},
                   {"runtime", "deepspeed"},
                   {"micro_batch", "1"},
                   {"seq_len", "512"},
                   {"gpu_memory", "80GB"},
                   {"checkpointing", "none"}})
            .prediction->choice.setup.recompute.kind == RecomputeKind::kNone);
  // Keys that are absent are open; numbers of the file count.
  write("");
  const WhyAnswer absent = why("");
  REQUIRE(absent.prediction.has_value());
  CHECK(absent.prediction->choice.setup.batch.global_batch() == 128);
  write("\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": \"auto\",");
  const WhyAnswer two = why("");
  REQUIRE(two.prediction.has_value());
  CHECK(two.prediction->choice.setup.batch.micro_batch == 2);
  CHECK(two.prediction->choice.setup.batch.grad_accum == 8);
}

}  // namespace
}  // namespace zeroplan
