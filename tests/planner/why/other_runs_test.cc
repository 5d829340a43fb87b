// Logs of other people's runs: whose run it was, how it ended, and what is asked for.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "planner/why/known_ends.h"
#include "planner/why/run_tasks.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/planner/why/why_of_text.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;

WhyAnswer WhyOfFixture(const std::string& name, const Fields& fields = {}) {
  return Why(SourcePath("tests/fixtures/why/" + name), fields);
}

std::string TextOf(const RunLog& log, const std::string& field) {
  const LogFact* fact = log.Fact("⟦" + field + "⟧");
  return fact == nullptr ? "" : fact->text;
}

// The fields that are asked for: "model gpus".
std::string Asked(const WhyAnswer& answer) {
  std::string fields;
  for (const MissingField& missing : answer.missing) {
    std::string name = missing.field;
    for (const std::string_view bracket : {"⟦", "⟧"}) name.erase(name.find(bracket), 3);
    fields += (fields.empty() ? "" : " ") + name;
  }
  return fields;
}

bool Assumes(const WhyAnswer& answer, const std::string& part) {
  return std::any_of(answer.assumed.begin(), answer.assumed.end(),
                     [&](const std::string& text) { return text.find(part) != text.npos; });
}

bool Runs(const RunLog& log, const std::string& program) {
  return std::find(log.programs.begin(), log.programs.end(), program) != log.programs.end();
}

// ---- how runs end ----

TEST_CASE("an exit code is a cause, with a way out: a bus error") {
  const WhyAnswer answer = WhyOfFixture("exit_minus_7.log");
  REQUIRE(answer.log.Cause() != nullptr);
  CHECK(answer.log.Cause()->kind == FailureKind::kCrashed);
  CHECK(answer.log.Cause()->line == 9);
  CHECK(HasFinding(answer, "--shm-size"));
  CHECK(Asked(answer).empty());
  CHECK(WhyIncomplete(answer).empty());
  const std::string text = WordsIn(WhyText(answer, 400));
  CHECK(Has(text, "a bus error (SIGBUS)"));
  CHECK(Has(text, "/dev/shm"));
}

TEST_CASE("launchers, shells, schedulers and drivers: each end has its kind") {
  struct Line {
    const char* text;
    FailureKind kind;
    const char* what;
    const char* way_out;
  };
  const auto lines = std::to_array<Line>({
      {"['python', 't.py'] exits with return code = -11", FailureKind::kCrashed, "SIGSEGV",
       "torch_extensions"},
      {"E1020 failed (exitcode: -6) local_rank: 0 (pid: 9) of binary: python",
       FailureKind::kAborted, "SIGABRT", "watchdog"},
      {"  exitcode  : -4 (pid: 730)", FailureKind::kCrashed, "SIGILL", "TORCH_EXTENSIONS_DIR"},
      {"  traceback : Signal 11 (SIGSEGV) received by PID 438", FailureKind::kCrashed, "SIGSEGV",
       "PYTHONFAULTHANDLER"},
      {"Bus error (core dumped)", FailureKind::kCrashed, "SIGBUS", "--ipc=host"},
      {"run.sh: line 3:  4242 Segmentation fault      (core dumped) python t.py",
       FailureKind::kCrashed, "SIGSEGV", "versions"},
      {"srun: error: node17: task 3: Segmentation fault", FailureKind::kCrashed, "SIGSEGV",
       "versions"},
      {"torch.distributed.elastic.multiprocessing.api.SignalException: Process 77 got signal: 1",
       FailureKind::kInterrupted, "SIGHUP", "tmux"},
      {"['python', 't.py'] exits with return code = -15", FailureKind::kInterrupted, "SIGTERM",
       "scheduler"},
      {"['python', 't.py'] exits with return code = 1", FailureKind::kExited, "exit code 1",
       "own output"},
      {"command terminated: exited with code 137", FailureKind::kKilled, "", ""},
      {"  exitcode: 139 (pid: 4)", FailureKind::kCrashed, "SIGSEGV", "versions"},
      {"    Reason: OOMKilled", FailureKind::kKilled, "", ""},
      {"slurmstepd: error: *** JOB 17 ON n1 CANCELLED AT 2024-05-01T03:00:00 DUE TO TIME LIMIT ***",
       FailureKind::kScheduler, "time limit", "resume"},
      {"slurmstepd: error: *** STEP 17.0 ON n1 CANCELLED AT 2024-05-01 DUE TO PREEMPTION ***",
       FailureKind::kScheduler, "preempted", "--requeue"},
      {"RuntimeError: CUDA error: uncorrectable ECC error encountered", FailureKind::kHardware,
       "ECC", "Xid"},
      {"NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.",
       FailureKind::kHardware, "bus", "reset"},
      {"RuntimeError: DataLoader worker (pid 99) is killed by signal: Bus error. It is possible "
       "that dataloader's workers are out of shared memory.",
       FailureKind::kCrashed, "/dev/shm", "--shm-size"},
      {"RuntimeError: DataLoader worker (pid 99) is killed by signal: Killed.",
       FailureKind::kKilled, "DataLoader worker", "dataloader_num_workers"},
      {"RuntimeError: DataLoader worker (pid(s) 12, 13) exited unexpectedly",
       FailureKind::kCrashed, "DataLoader worker", "dataloader_num_workers=0"},
  });
  for (const Line& line : lines) {
    CAPTURE(line.text);
    const WhyAnswer answer = WhyOfText(fmt::format("Num processes: 2\n{}\n", line.text));
    const RunFailure* cause = answer.log.Cause();
    REQUIRE(cause != nullptr);
    CHECK(cause->kind == line.kind);
    CHECK(Has(cause->what, line.what));
    if (*line.way_out != '\0') CHECK(HasFinding(answer, line.way_out));
    // Memory alone is explained by a prediction.
    CHECK(Asked(answer).empty() == !cause->of_memory());
  }
  for (const char* line : {"['python', 't.py'] exits with return code = 0", "exit code 0",
                           "Process finished with exit status 0", "Terminated runs: 3",
                           "raise RuntimeError('DataLoader worker (pid {}) exited unexpectedly')",
                           "the job was Killed by the admin yesterday", "Aborted early stopping"}) {
    CAPTURE(line);
    CHECK_FALSE(EndIn(line).has_value());
  }
}

TEST_CASE("exceptions with a known cause come with their way out") {
  const auto answer = [](const std::string& message) {
    return WhyOfText("Traceback (most recent call last):\n  File \"t.py\", line 1, in <module>\n" +
                     message + "\n");
  };
  const std::pair<const char*, const char*> errors[] = {
      {"AssertionError: More elements 524288000 than buffer size 100,000,000",
       "offload_param.buffer_size"},
      {"ValueError: Must flatten tensors with uniform dtype but got torch.bfloat16 and torch.uint8",
       "bnb_4bit_quant_storage"},
      {"Exception: Current loss scale already at minimum - cannot decrease scale anymore.", "bf16"},
      {"OSError: [Errno 28] No space left on device", "save_total_limit"},
      {"RuntimeError: CUDA error: device-side assert triggered", "CUDA_LAUNCH_BLOCKING"},
  };
  for (const auto& [message, way_out] : errors) {
    CAPTURE(message);
    CHECK(answer(message).log.Cause()->kind == FailureKind::kError);
    CHECK(HasFinding(answer(message), way_out));
  }
  CHECK(answer("ValueError: no such dataset").findings.empty());
}

TEST_CASE("of several ends the one that the others follow from is the cause") {
  const auto kind_of = [](const std::string& text) {
    const RunLog log = ParseLog(text, "train.log");
    REQUIRE(log.Cause() != nullptr);
    return log.Cause()->kind;
  };
  const std::string terminated = "  exitcode  : -15 (pid: 4)\n", aborted = "exitcode: -6\n";
  CHECK(kind_of(terminated + "  exitcode  : -7 (pid: 5)\n") == FailureKind::kCrashed);
  CHECK(kind_of(aborted + terminated +
                "slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2024 DUE TO TIME LIMIT ***\n") ==
        FailureKind::kScheduler);
  CHECK(kind_of("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4) ran\n" +
                aborted) == FailureKind::kTimeout);
  CHECK(kind_of(aborted + "  exitcode  : -9 (pid: 5)\n") == FailureKind::kKilled);
  // A traceback says more than the exit code after it.
  CHECK(kind_of("Traceback (most recent call last):\n  File \"t.py\", line 1, in <module>\n"
                "ValueError: no such dataset\n  exitcode  : 1 (pid: 730)\n") ==
        FailureKind::kError);
}

TEST_CASE("a failure is denied only of a training that ended") {
  const auto verdict = [](const std::string& text) { return WordsIn(WhyText(WhyOfText(text), 400)); };
  const std::string step =
      "epoch=0/micro_step=4/global_step=4, RunningAvgSamplesPerSec=6.4, MaxMemAllocated=4.32GB\n";
  const std::string open = verdict(step + "FATAL: the file system went away\n");
  CHECK(Has(open, "The log ends at step 4. It names no failure that is known, and no end of the "
                  "training. The last line there that speaks of an error (line 2): FATAL: the file "
                  "system went away"));
  CHECK(Lacks(verdict(step), "speaks of an error"));
  CHECK(Has(verdict(step + "{'train_runtime': 10.5, 'train_samples_per_second': 3.8}\n"),
            "The run ended as it should."));
}

// ---- phases ----

TEST_CASE("killed while it saved: what saving takes of a host") {
  const WhyAnswer answer = WhyOfFixture("killed_while_saving.log");
  REQUIRE(answer.log.Cause() != nullptr);
  CHECK(answer.log.Cause()->phase == RunPhase::kSaving);
  CHECK(Asked(answer).empty());
  REQUIRE(answer.prediction.has_value());
  CHECK(answer.prediction->choice.setup.zero.stage == 2);
  CHECK(Assumes(answer, "⟦stage⟧ 2 (the name ds_z2.json, line 1)"));
  REQUIRE_FALSE(answer.findings.empty());
  // Every rank copies 65.5 GB of weights in 16 bit, beside Python.
  CHECK(Has(answer.findings.front(), "Saving: "));
  CHECK(Has(answer.findings.front(), "542 GB of a node's host"));
}

TEST_CASE("what a killed process printed last tells its phase") {
  const auto phase_of = [](const std::string& before) {
    const RunLog log = ParseLog(before + "exitcode: -9\n", "train.log");
    REQUIRE(log.Cause() != nullptr);
    return log.Cause()->phase;
  };
  CHECK(phase_of("[INFO|trainer.py:4309] >> Saving model checkpoint to out/checkpoint-9\n") ==
        RunPhase::kSaving);
  CHECK(phase_of("***** Running Evaluation *****\n  Num examples = 9\n") == RunPhase::kEvaluation);
  CHECK(phase_of("INFO:torchtune.utils._logging:FSDP is enabled. Instantiating model and loading "
                 "checkpoint on Rank 0 ...\n") == RunPhase::kLoading);
  CHECK(phase_of("[INFO] [comm.py:657:init_distributed] Initializing TorchBackend\n") ==
        RunPhase::kInit);
  CHECK(phase_of("Saving model checkpoint to out\n 10%|#   | 30/300 [00:12<01:48,  1.21s/it]\n") ==
        RunPhase::kUnknown);
  CHECK(phase_of("***** Running Evaluation *****\n{'eval_runtime': 4.1}\n") == RunPhase::kUnknown);
}

std::string Traceback(const std::vector<std::pair<std::string, std::string>>& frames,
                      const std::string& code = "call()") {
  std::string text = "Traceback (most recent call last):\n";
  for (const auto& [file, function] : frames) {
    text += fmt::format("  File \"/opt/lib/{}\", line 12, in {}\n    {}\n", file, function, code);
  }
  return text +
         "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 98.00 MiB. GPU 0 has a "
         "total capacity of 15.77 GiB of which 5.12 MiB is free. Including non-PyTorch memory, "
         "this process has 15.76 GiB memory in use. Of the allocated memory 13.76 GiB is allocated "
         "by PyTorch, and 540.64 MiB is reserved by PyTorch but unallocated.\n";
}

TEST_CASE("parameters gathered outside a step are a phase of their own") {
  const WhyAnswer answer = WhyOfFixture("grpo_gather_oom.log");
  const RunFailure* cause = answer.log.Cause();
  REQUIRE(cause != nullptr);
  CHECK(cause->phase == RunPhase::kGather);
  CHECK(cause->rank == 6);
  CHECK(answer.log.task == "GRPO");
  CHECK(Asked(answer).empty());
  CHECK(answer.changes.empty());
  CHECK_FALSE(HasFinding(answer, "lets the allocator join them"));
  CHECK(HasFinding(answer, "Not fragmentation: all parameters are gathered"));
  CHECK(HasFinding(answer, "ds3_gather_for_generation False"));

  const auto phase_of = [](const std::vector<std::pair<std::string, std::string>>& frames) {
    const RunLog log = ParseLog(Traceback(frames), "train.log");
    REQUIRE(log.Cause() != nullptr);
    return log.Cause()->phase;
  };
  CHECK(phase_of({{"trl/trainer/ppo_trainer.py", "train"},
                  {"trl/models/utils.py", "unwrap_model_for_generation"}}) == RunPhase::kGather);
  CHECK(phase_of({{"train.py", "main"},
                  {"deepspeed/runtime/zero/partition_parameters.py", "__enter__"}}) ==
        RunPhase::kGather);
  CHECK(phase_of({{"torch/distributed/fsdp/fully_sharded_data_parallel.py",
                   "summon_full_params"}}) == RunPhase::kGather);
  // While weights are loaded it is loading.
  CHECK(phase_of({{"transformers/modeling_utils.py", "from_pretrained"},
                  {"deepspeed/runtime/zero/partition_parameters.py", "__enter__"}}) ==
        RunPhase::kLoading);
  CHECK(phase_of({{"torch/distributed/checkpoint/state_dict.py", "get_model_state_dict"}}) ==
        RunPhase::kSaving);
}

TEST_CASE("a tensor of a list is one of many, whatever is fragmented") {
  const WhyAnswer answer = WhyOfFixture("foreach_oom.log");
  const RunFailure* cause = answer.log.Cause();
  REQUIRE(cause != nullptr);
  CHECK(cause->phase == RunPhase::kStep);
  CHECK(HasFinding(answer, "Not fragmentation: "));
  CHECK(HasFinding(answer, "adamw_torch_fused"));
  CHECK_FALSE(HasFinding(answer, "ALLOC_CONF"));
  CHECK(TextOf(answer.log, "model") == "llama-2-7b-hf");
  CHECK(TextOf(answer.log, "gpus") == "8");
  CHECK(TextOf(answer.log, "dtype") == "fp16");
  CHECK(TextOf(answer.log, "checkpointing") == "full");
  CHECK(TextOf(answer.log, "runtime") == "fsdp2");
  CHECK(answer.log.fsdp1);
  CHECK(Asked(answer) == "seq_len micro_batch");

  const auto list_of = [](const std::vector<std::pair<std::string, std::string>>& frames,
                          const std::string& code) {
    return ParseLog(Traceback(frames, code), "train.log").Cause()->of_list;
  };
  CHECK(list_of({{"torch/optim/adamw.py", "_fn"}}, "a = torch._foreach_mul(exp_avgs, beta1)") ==
        "torch._foreach_mul");
  CHECK(list_of({{"deepspeed/runtime/zero/stage_1_and_2.py", "flatten_dense_tensors_aligned"},
                 {"torch/_utils.py", "_flatten_dense_tensors"}},
                "return flat") == "flatten_dense_tensors_aligned");
  CHECK(list_of({{"torch/nn/utils/clip_grad.py", "clip_grad_norm_"}},
                "norms.extend(torch._foreach_norm(grads))") == "torch._foreach_norm");
  CHECK(list_of({{"torch/optim/adamw.py", "step"}}, "loss = closure()").empty());
}

TEST_CASE("no change suffices where a fifth of what was held is unexplained") {
  const Fields fields = {{"model", "gpt2"},     {"runtime", "ddp"},  {"gpus", "1"},
                         {"micro_batch", "1"},  {"grad_accum", "1"}, {"seq_len", "256"},
                         {"dtype", "bf16"}};
  const WhyAnswer answer = WhyOfText(Traceback({{"torch/_tensor.py", "backward"}}), fields);
  REQUIRE(answer.prediction.has_value());
  CHECK(answer.prediction->beyond > *answer.prediction->needed / 5);
  CHECK(answer.changes.empty());
  CHECK(HasFinding(answer, "so no change is known to suffice"));
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
    return ParseLog(fmt::format("INFO:torchtune.utils._logging:Running {} with resolved config:\n\n"
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
  CHECK(Has(WhyText(answer, 400), "1024 sequences of 4096 tokens on 32 GPUs, which is 791 tokens/s "
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
  CHECK(Asked(WhyOfText("[rank1]: hello\n" + frames("peft/peft_model.py"))).starts_with(
      "model runtime gpus"));
}

TEST_CASE("counts of parameters tell the model and the rank of its adapters") {
  const WhyAnswer answer = WhyOfFixture("fsdp1_qlora_init_oom.log");
  CHECK(answer.log.all_params == 70'553'706'496);
  CHECK(Asked(answer) == "gpus");
  CHECK(Has(WhyIncomplete(answer), "the log has a rank 2"));
  CHECK(answer.log.fsdp1);
  CHECK(HasFinding(answer, "FSDP1 moves a wrapped module whole to the GPU"));
  CHECK(HasFinding(answer, "bnb_4bit_quant_storage"));
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
  write("\"train_micro_batch_size_per_gpu\": \"auto\", \"gradient_accumulation_steps\": \"auto\", "
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
