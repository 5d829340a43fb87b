// How other people's runs ended: causes, ways out, and the phase of a process without a traceback.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "planner/why/known_ends.h"
#include "tests/has.h"
#include "tests/planner/why/why_of_text.h"

namespace zeroplan {
namespace {

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
      {"NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.", FailureKind::kHardware,
       "bus", "reset"},
      {"RuntimeError: DataLoader worker (pid 99) is killed by signal: Bus error. It is possible "
       "that dataloader's workers are out of shared memory.",
       FailureKind::kCrashed, "/dev/shm", "--shm-size"},
      {"RuntimeError: DataLoader worker (pid 99) is killed by signal: Killed.",
       FailureKind::kKilled, "DataLoader worker", "dataloader_num_workers"},
      {"RuntimeError: DataLoader worker (pid(s) 12, 13) exited unexpectedly", FailureKind::kCrashed,
       "DataLoader worker", "dataloader_num_workers=0"},
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
  // An exit code does not replace the traceback before it.
  CHECK(kind_of("Traceback (most recent call last):\n  File \"t.py\", line 1, in <module>\n"
                "ValueError: no such dataset\n  exitcode  : 1 (pid: 730)\n") ==
        FailureKind::kError);
}

TEST_CASE("a failure is denied only of a training that ended") {
  const auto verdict = [](const std::string& text) {
    return WordsIn(WhyText(WhyOfText(text), 400));
  };
  const std::string step =
      "epoch=0/micro_step=4/global_step=4, RunningAvgSamplesPerSec=6.4, MaxMemAllocated=4.32GB\n";
  const std::string open = verdict(step + "FATAL: the file system went away\n");
  CHECK(Has(open,
            "The log ends at step 4. It names no failure that is known, and no end of the "
            "training. The last line there that speaks of an error (line 2): FATAL: the file "
            "system went away"));
  CHECK(Lacks(verdict(step), "speaks of an error"));
  CHECK(Has(verdict(step + "{'train_runtime': 10.5, 'train_samples_per_second': 3.8}\n"),
            "The run ended as it should."));
}

TEST_CASE("killed while it saved: what saving takes of a host") {
  const WhyAnswer answer = WhyOfFixture("killed_while_saving.log");
  REQUIRE(answer.log.Cause() != nullptr);
  CHECK(answer.log.Cause()->phase == RunPhase::kSaving);
  CHECK(Asked(answer).empty());
  REQUIRE(answer.prediction.has_value());
  CHECK(answer.prediction->choice.setup.zero.stage == 2);
  CHECK(Assumes(answer, "⟦stage⟧ 2 (the name ds_z2.json, line 1)"));
  REQUIRE_FALSE(answer.findings.empty());
  // Every rank copies 65.5 GB of weights in 16 bit.
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

TEST_CASE("parameters gathered outside a step are a phase of their own") {
  const WhyAnswer answer = WhyOfFixture("grpo_gather_oom.log");
  const RunFailure* cause = answer.log.Cause();
  REQUIRE(cause != nullptr);
  CHECK(cause->phase == RunPhase::kGather);
  CHECK(cause->rank == 6);
  CHECK(answer.log.task == "GRPO");
  // 72.7 billion parameters in 16 bit, on a GPU of 85 GB.
  REQUIRE_FALSE(answer.findings.empty());
  CHECK(Has(answer.findings.front(), "GatheredParameters(model.parameters())"));
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
  const Fields fields = {{"model", "gpt2"},    {"runtime", "ddp"},  {"gpus", "1"},
                         {"micro_batch", "1"}, {"grad_accum", "1"}, {"seq_len", "256"},
                         {"dtype", "bf16"}};
  const WhyAnswer answer = WhyOfText(Traceback({{"torch/_tensor.py", "backward"}}), fields);
  REQUIRE(answer.prediction.has_value());
  CHECK(answer.prediction->beyond > *answer.prediction->needed / 5);
  CHECK(answer.changes.empty());
  CHECK(HasFinding(answer, "so no change is known to suffice"));
}

}  // namespace
}  // namespace zeroplan
