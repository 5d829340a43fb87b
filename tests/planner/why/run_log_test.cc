// What is read off logs: the wordings of programs and versions, and what is not guessed.
#include "planner/why/run_log.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>

#include "tests/has.h"
#include "tests/paths.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20, kGiB = uint64_t{1} << 30;

RunLog Log(const std::string& text) { return ParseLog(text, "train.log"); }

std::string Fact(const RunLog& log, const std::string& field) {
  const LogFact* fact = log.Fact(field);
  return fact == nullptr ? "" : fact->text;
}

uint64_t Near(double gib) { return static_cast<uint64_t>(gib * static_cast<double>(kGiB)); }

TEST_CASE("CUDA out of memory: PyTorch 2.1 on") {
  const RunLog log = Log(
      "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 5 has a "
      "total capacity of 79.15 GiB of which 1.44 GiB is free. Including non-PyTorch memory, this "
      "process has 77.70 GiB memory in use. Of the allocated memory 70.11 GiB is allocated by "
      "PyTorch, and 5.95 GiB is reserved by PyTorch but unallocated. If reserved but unallocated "
      "memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.\n");
  const RunFailure* cause = log.Cause();
  REQUIRE(cause != nullptr);
  CHECK(cause->kind == FailureKind::kGpuMemory);
  CHECK(cause->line == 1);
  const OomMessage& gpu = cause->gpu;
  CHECK(gpu.gpu == 5);
  CHECK(gpu.wanted == Near(2.5));
  CHECK(gpu.total == Near(79.15));
  CHECK(gpu.free == Near(1.44));
  CHECK(gpu.in_use == Near(77.70));
  CHECK(gpu.allocated == Near(70.11));
  CHECK(gpu.Unallocated() == Near(5.95));
  CHECK(log.Fact("⟦expandable_segments⟧") == nullptr);  // advice is no setting
  CHECK_FALSE(gpu.allowed);
}

TEST_CASE("CUDA out of memory: other processes, a limit, private pools, the misspelt wording") {
  const RunLog two = Log(
      "CUDA out of memory. Tried to allocate 64.00 MiB. GPU 0 has a total capacty of 15.78 GiB of "
      "which 12.19 MiB is free. Process 11 has 8.00 GiB memory in use. Process 12 has 7.70 GiB "
      "memory in use. Of the allocated memory 7.00 GiB is allocated by PyTorch, and 200.00 MiB is "
      "reserved by PyTorch but unallocated.");
  REQUIRE(two.Cause() != nullptr);
  CHECK(two.Cause()->gpu.total == Near(15.78));
  CHECK_FALSE(two.Cause()->gpu.in_use);  // which of the two is this one is not told
  const RunLog limit = Log(
      "CUDA out of memory. Tried to allocate 3.91 GiB. GPU 0 has a total capacity of 139.80 GiB of "
      "which 117.32 GiB is free. Including non-PyTorch memory, this process has 22.36 GiB memory "
      "in "
      "use. 24.00 GiB allowed; Of the allocated memory 21.60 GiB is allocated by PyTorch, with "
      "1.00 GiB allocated in private pools (e.g., CUDA Graphs), and 97.95 MiB is reserved by "
      "PyTorch but unallocated.");
  REQUIRE(limit.Cause() != nullptr);
  CHECK(limit.Cause()->gpu.allowed == 24 * kGiB);
  const std::optional<uint64_t> reserved = limit.Cause()->gpu.reserved;
  CHECK(reserved == Near(21.60) + kGiB + static_cast<uint64_t>(97.95 * static_cast<double>(kMiB)));
}

TEST_CASE("CUDA out of memory: PyTorch 1.x and 2.0") {
  const RunLog log =
      Log("RuntimeError: CUDA out of memory. Tried to allocate 172.00 MiB (GPU 1; 79.35 GiB total "
          "capacity; 73.95 GiB already allocated; 12.19 MiB free; 76.80 GiB reserved in total by "
          "PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb");
  REQUIRE(log.Cause() != nullptr);
  const OomMessage& gpu = log.Cause()->gpu;
  CHECK(gpu.gpu == 1);
  CHECK(gpu.wanted == 172 * kMiB);
  CHECK(gpu.total == Near(79.35));
  CHECK(gpu.allocated == Near(73.95));
  CHECK(gpu.reserved == Near(76.80));
  CHECK(gpu.Unallocated() == Near(76.80) - Near(73.95));
  const RunLog older =
      Log("RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 7.43 GiB total "
          "capacity; 6.55 GiB already allocated; 3.31 MiB free; 358.47 MiB cached)");
  REQUIRE(older.Cause() != nullptr);
  CHECK(older.Cause()->gpu.allocated == Near(6.55));
  for (const char* driver : {"RuntimeError: CUDA error: out of memory",
                             "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling "
                             "`cublasCreate(handle)`"}) {
    CAPTURE(driver);
    const RunLog failed = Log(driver);
    REQUIRE(failed.Cause() != nullptr);
    CHECK(failed.Cause()->kind == FailureKind::kGpuMemory);
    CHECK_FALSE(failed.Cause()->gpu.wanted);
  }
}

// A traceback through such frames that ends in a shortage.
RunPhase PhaseOf(const std::vector<std::pair<std::string, std::string>>& frames) {
  std::string text = "Traceback (most recent call last):\n";
  for (const auto& [file, function] : frames) {
    text += "  File \"/opt/lib/" + file + "\", line 12, in " + function + "\n    call()\n";
  }
  const RunLog log = Log(text +
                         "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate "
                         "1.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 0 bytes "
                         "is free.\n");
  REQUIRE(log.Cause() != nullptr);
  return log.Cause()->phase;
}

TEST_CASE("frames tell the phase: the first that has one decides") {
  const std::pair<std::string, std::string> train = {"transformers/trainer.py",
                                                     "_inner_training_loop"};
  const std::pair<std::string, std::string> call = {"torch/nn/modules/module.py", "_call_impl"};
  const std::pair<std::string, std::string> layer = {"transformers/models/llama/modeling_llama.py",
                                                     "forward"};
  CHECK(PhaseOf({train, {"transformers/trainer.py", "compute_loss"}, call, layer}) ==
        RunPhase::kForward);
  CHECK(PhaseOf({train, layer, {"transformers/loss/loss_utils.py", "ForCausalLMLoss"}}) ==
        RunPhase::kLoss);
  CHECK(PhaseOf({layer, {"torch/nn/modules/loss.py", "forward"}}) == RunPhase::kLoss);
  CHECK(PhaseOf({train,
                 {"accelerate/accelerator.py", "backward"},
                 {"torch/_tensor.py", "backward"},
                 {"torch/utils/checkpoint.py", "recompute_fn"},
                 layer}) == RunPhase::kBackward);
  CHECK(PhaseOf({{"deepspeed/runtime/engine.py", "step"},
                 {"deepspeed/runtime/zero/stage_1_and_2.py", "step"}}) == RunPhase::kStep);
  CHECK(PhaseOf({{"torch/optim/optimizer.py", "step"}, {"torch/optim/adamw.py", "_init_group"}}) ==
        RunPhase::kStep);
  // accelerate's backward calls the engine's step.
  CHECK(PhaseOf({train,
                 {"accelerate/accelerator.py", "backward"},
                 {"accelerate/utils/deepspeed.py", "backward"},
                 {"deepspeed/runtime/engine.py", "step"},
                 {"deepspeed/runtime/engine.py", "_take_model_step"}}) == RunPhase::kStep);
  CHECK(PhaseOf({train, {"transformers/trainer.py", "evaluate"}, layer}) == RunPhase::kEvaluation);
  CHECK(PhaseOf({train,
                 {"transformers/trainer.py", "_save_checkpoint"},
                 {"deepspeed/runtime/engine.py", "_zero3_consolidated_16bit_state_dict"}}) ==
        RunPhase::kSaving);
  CHECK(PhaseOf({{"transformers/modeling_utils.py", "from_pretrained"},
                 {"deepspeed/runtime/zero/partition_parameters.py", "_post_init_method"}}) ==
        RunPhase::kLoading);
  // An optimizer that initialisation steps is initialisation.
  CHECK(PhaseOf({train,
                 {"deepspeed/__init__.py", "initialize"},
                 {"deepspeed/runtime/zero/stage_1_and_2.py", "initialize_optimizer_states"},
                 {"torch/optim/adamw.py", "step"}}) == RunPhase::kInit);
  CHECK(PhaseOf({{"deepspeed/runtime/engine.py", "load_checkpoint"}}) == RunPhase::kResume);
  CHECK(PhaseOf({{"train.py", "main"}}) == RunPhase::kUnknown);
}

TEST_CASE("frames: ranks that write at once, IPython and rich") {
  const RunLog log = Log(
      "Traceback (most recent call last):\n"
      "  File \"/home/user/t.py\", line 65, in <module>\n"
      "Traceback (most recent call last):\n"
      "        main()    main()  File \"/opt/torch/_tensor.py\", line 9, in backward  File "
      "\"/opt/torch/_tensor.py\", line 9, in backward\n"
      "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a "
      "total capacity of 8.00 GiB of which 0 bytes is free.\n");
  REQUIRE(log.Cause() != nullptr);
  CHECK(log.Cause()->phase == RunPhase::kBackward);
  const RunLog rich =
      Log("│ /opt/transformers/trainer.py:785 in evaluate      │\n"
          "│ ❱ 785 │   elastic_launch(                            │\n"
          "OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total "
          "capacity of 8.00 GiB of which 0 bytes is free.\n");
  REQUIRE(rich.Cause() != nullptr);
  CHECK(rich.Cause()->phase == RunPhase::kEvaluation);
  const RunLog notebook =
      Log("File /opt/torch/_tensor.py:521, in Tensor.backward(self, gradient)\n"
          "OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total "
          "capacity of 8.00 GiB of which 0 bytes is free.\n");
  REQUIRE(notebook.Cause() != nullptr);
  CHECK(notebook.Cause()->phase == RunPhase::kBackward);
}

TEST_CASE("frames tell whose code runs, and recompute") {
  const RunLog log = Log(
      "Traceback (most recent call last):\n"
      "  File \"/opt/accelerate/accelerator.py\", line 1, in backward\n"
      "  File \"/opt/torch/_tensor.py\", line 2, in backward\n"
      "  File \"/opt/torch/utils/checkpoint.py\", line 3, in recompute_fn\n"
      "  File \"/opt/transformers/models/llama/modeling_llama.py\", line 4, in forward\n"
      "  File \"/opt/liger_kernel/transformers/swiglu.py\", line 5, in forward\n"
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total "
      "capacity of 8.00 GiB of which 0 bytes is free.\n");
  CHECK(Fact(log, "⟦code⟧") == "liger");
  CHECK(Fact(log, "⟦checkpointing⟧") == "full");
  REQUIRE(log.Cause() != nullptr);
  CHECK(log.Cause()->recomputing);
  CHECK(log.Cause()->frames.back() == "swiglu.py:5 forward");
  CHECK(Fact(log, "⟦runtime⟧").empty());  // the number of GPUs is not told
}

TEST_CASE("a host without memory: an allocation, SIGKILL by launchers and the kernel") {
  const RunLog allocation =
      Log("RuntimeError: [enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: not enough "
          "memory: you tried to allocate 17179869184 bytes.");
  REQUIRE(allocation.Cause() != nullptr);
  CHECK(allocation.Cause()->kind == FailureKind::kHostMemory);
  CHECK(allocation.Cause()->host_wanted == 16 * kGiB);
  CHECK(Log("DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes. Error "
            "code 12 (Cannot allocate memory)")
            .Cause()
            ->kind == FailureKind::kHostMemory);
  const RunLog fork = Log("OSError: [Errno 12] Cannot allocate memory\n");
  REQUIRE(fork.Cause() != nullptr);
  CHECK(fork.Cause()->kind == FailureKind::kHostMemory);
  for (const char* line :
       {"RuntimeError: DataLoader worker (pid 730) is killed by signal: Killed.",
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 6 "
        "(pid: 730) of binary: /opt/python/bin/python3.10",
        "  exitcode  : -9 (pid: 730)",
        "[2023-04-14 13:11:27,885] [ERROR] [launch.py:434:sigkill_handler] ['/usr/bin/python3', "
        "'-u', 'main.py'] exits with return code = -9",
        "Killed", "./run.sh: line 3:  4242 Killed                  python train.py",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0."}) {
    CAPTURE(line);
    const RunLog log = Log(std::string("Loading checkpoint shards:  33%|███▎  | 1/3 [00:09<00:19, "
                                       " 9.81s/it]\n") +
                           line + "\n");
    REQUIRE(log.Cause() != nullptr);
    CHECK(log.Cause()->kind == FailureKind::kKilled);
    CHECK(log.last_seen == "Loading checkpoint shards 1/3");
  }
}

TEST_CASE("of several failures the one that others follow from is the cause") {
  const RunLog log =
      Log("[rank0]:[E321 02:07:08.40 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective "
          "operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, "
          "Timeout(ms)=600000) ran for 600060 milliseconds before timing out.\n"
          "[rank1]: Traceback (most recent call last):\n"
          "[rank1]:   File \"/opt/torch/_tensor.py\", line 2, in backward\n"
          "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 1 "
          "has a "
          "total capacity of 8.00 GiB of which 0 bytes is free.\n"
          "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
          "  exitcode  : 1 (pid: 730)\n");
  REQUIRE(log.Cause() != nullptr);
  CHECK(log.Cause()->kind == FailureKind::kGpuMemory);
  CHECK(log.Cause()->rank == 1);
  CHECK(log.failures.size() == 2);
  const RunLog timeout = Log(
      "[E ProcessGroupNCCL.cpp:737] [Rank 1] Watchdog caught collective operation timeout: "
      "WorkNCCL(SeqNum=469508, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1802212 milliseconds "
      "before timing out.");
  REQUIRE(timeout.Cause() != nullptr);
  CHECK(timeout.Cause()->kind == FailureKind::kTimeout);
  const RunLog error =
      Log("Traceback (most recent call last):\n  File \"/home/user/t.py\", line 1, in <module>\n"
          "ValueError: Expected input batch_size (8) to match target batch_size (4).\n");
  REQUIRE(error.Cause() != nullptr);
  CHECK(error.Cause()->kind == FailureKind::kError);
  const RunLog prefixed =
      Log("gpu-q-49: Traceback (most recent call last):\n"
          "gpu-q-49:   File \"train.py\", line 79, in <module>\n"
          "gpu-q-49: ValueError: no such dataset\n");
  REQUIRE(prefixed.Cause() != nullptr);
  CHECK(prefixed.Cause()->message == "ValueError: no such dataset");
  // Page-locked memory is the host's.
  const RunLog pinned =
      Log("Traceback (most recent call last):\n"
          "  File \"/opt/deepspeed/runtime/zero/stage3.py\", line 600, in _create_fp32_partitions\n"
          "    buffer = buffer.pin_memory()\n"
          "RuntimeError: CUDA error: out of memory\n");
  REQUIRE(pinned.Cause() != nullptr);
  CHECK(pinned.Cause()->kind == FailureKind::kHostMemory);
  // A shortage that was caught, as auto_find_batch_size does it, did not end the run.
  const RunLog caught = Log(
      "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 1 has a total capacity of 8.00 GiB of "
      "which 0 bytes is free.\n"
      "{'train_runtime': 10.5, 'train_samples_per_second': 3.8, 'train_steps_per_second': 0.4}\n");
  CHECK(caught.finished);
  CHECK(caught.Cause() == nullptr);
}

TEST_CASE("counts beyond all reason, dtypes that are off, values that are not known") {
  const std::string header =
      "Total train batch size (w. parallel, distributed & accumulation) = 8\n";
  const RunLog large =
      Log("train.py --per_device_train_batch_size 4294967296 "
          "--gradient_accumulation_steps 4294967296\n" +
          header);
  CHECK(Fact(large, "⟦gpus⟧").empty());
  CHECK(Fact(Log("torchrun --nproc_per_node 99999999999 --nnodes 99999999999 t.py\n"), "⟦gpus⟧")
            .empty());
  CHECK(Fact(Log("train.py --bf16 False --fp16 False\n"), "⟦dtype⟧") == "fp32");
  CHECK(Fact(Log("train.py --bf16 False\n"), "⟦dtype⟧").empty());
  CHECK(Fact(Log("train.py --bf16 False --fp16 True\n"), "⟦dtype⟧") == "fp16");
  const RunLog lion = Log("hello\ntrain.py --optim lion_8bit --optim lion_8bit --bf16\n");
  REQUIRE(lion.unknown_values.size() == 1);
  CHECK(lion.unknown_values.at("⟦optim⟧") ==
        "line 2: --optim lion_8bit is not predicted; AdamW is taken.");
  CHECK(Log("train.py --torch_dtype auto --optim adafactor\n").unknown_values.empty());
}

std::string Bar(int step) {
  return fmt::format(" 10%|#   | {}/5000 [00:12<01:48,  1.21s/it]\r", step);
}

TEST_CASE("a failure after which steps went on, or that Python ignores, ended nothing") {
  const std::string shortage =
      "HIP out of memory. Tried to allocate 1.00 GiB. GPU 1 has a total capacity of 8.00 GiB of "
      "which 0 bytes is free.\n";
  const RunLog died = Log(Bar(3) + shortage + Bar(4));  // another rank's
  REQUIRE(died.Cause() != nullptr);
  CHECK(died.Cause()->kind == FailureKind::kGpuMemory);
  CHECK(died.Cause()->gpu.wanted == kGiB);
  const std::string on = Bar(3) + shortage + Bar(4) + Bar(5) + Bar(6);
  CHECK(Log(on).Cause() == nullptr);
  const RunLog later = Log(on + "\n" + shortage);
  REQUIRE(later.Cause() != nullptr);
  CHECK(later.Cause()->line == 3);
  // A run that begins anew counts from the start.
  CHECK(Log(Bar(400) + shortage + Bar(1) + Bar(2) + Bar(3) + Bar(4)).Cause() == nullptr);
  const std::string traceback =
      "Traceback (most recent call last):\n  File \"/opt/a.py\", line 2, in __del__\n"
      "RuntimeError: no event loop\n";
  CHECK(Log("Exception ignored in: <function Pool.__del__ at 0x7f>\n" + traceback).Cause() ==
        nullptr);
  const RunLog both =
      Log("Exception ignored in: <function Pool.__del__ at 0x7f>\n" + traceback + traceback);
  REQUIRE(both.Cause() != nullptr);
  CHECK(both.Cause()->line == 5 + 2);
}

TEST_CASE("Trainer's header: that of the run begun anew counts, all of it") {
  const auto header = [](int batch, const std::string& adjusted, int total) {
    return fmt::format(
        "***** Running training *****\n  Instantaneous batch size per device = {}\n{}"
        "  Total train batch size (w. parallel, distributed & accumulation) = {}\n"
        "  Gradient Accumulation steps = 1\n",
        batch, adjusted, total);
  };
  const auto adjusted = [](int to) {
    return fmt::format("  Training with DataParallel so batch size has been adjusted to: {}\n", to);
  };
  const std::string config = "[config.py:991:print_user_config]   json = {\n  \"n\": ";
  const std::string first = config + "16\n}\n" + header(16, "", 64);
  const std::string command = "torchrun --nproc_per_node 4 t.py --per_device_train_batch_size 16\n";
  // As releases of transformers print a batch size that auto_find_batch_size halved.
  for (const std::string& second : {header(16, adjusted(8), 32), header(8, "", 32)}) {
    const RunLog log = Log(command + first + config + "8\n}\n" + second);
    CHECK(Fact(log, "⟦micro_batch⟧") == "8");
    CHECK(Fact(log, "⟦gpus⟧") == "4");
    CHECK(log.gpus_doubt.empty());
    CHECK(log.config == "{\n\"n\": 8\n}\n");
    CHECK(log.config_line == 1 + 3 + 4 + 1);
  }
  // A config of another engine, in front of the header, is none of a run begun anew.
  CHECK(Has(Log(config + "1\n}\n" + config + "2\n}\n" + first).config, "1"));
  // Of a header that is cut off the batch size is known, and the command says the GPUs.
  const RunLog cut = Log(command + first + "  Instantaneous batch size per device = 8\n");
  CHECK(Fact(cut, "⟦micro_batch⟧") == "8");
  CHECK(Fact(cut, "⟦gpus⟧") == "4");
  // DataParallel of one process: the adjusted size is that of its GPUs.
  const RunLog parallel = Log("python t.py\n" + header(4, adjusted(32), 32));
  CHECK(Fact(parallel, "⟦micro_batch⟧") == "4");
  CHECK(Fact(parallel, "⟦gpus⟧") == "8");
  // What is started counts, and a difference is said; a command may be that of one node.
  const RunLog differs = Log(command + header(16, "", 32));
  CHECK(Fact(differs, "⟦gpus⟧") == "4");
  CHECK(differs.gpus_doubt ==
        "The launch command starts 4 GPUs (line 1), while Trainer's total train batch size of 32 "
        "comes to 2 (line 4): what is started is taken; ⟦gpus⟧ says otherwise.");
  const RunLog nodes = Log(command + header(16, "", 128));
  CHECK(Fact(nodes, "⟦gpus⟧") == "8");
  CHECK(nodes.gpus_doubt.empty());
}

TEST_CASE("options of commands, printed arguments and recipes") {
  const RunLog log = Log(
      "torchrun --nproc_per_node 8 --nnodes=2 train.py \\\n"
      "    --model_name_or_path Qwen/Qwen2.5-7B \\\n"
      "    --per_device_train_batch_size 4 --gradient_accumulation_steps=2 \\\n"
      "    --model_max_length 8192 --bf16 True --fsdp \"full_shard auto_wrap offload\" \\\n"
      "    --gradient_checkpointing --optim adamw_8bit --attn_implementation flash_attention_2\n");
  CHECK(Fact(log, "⟦model⟧") == "Qwen/Qwen2.5-7B");
  CHECK(Fact(log, "⟦gpus⟧") == "16");
  CHECK(Fact(log, "⟦gpus_per_node⟧") == "8");
  CHECK(Fact(log, "⟦micro_batch⟧") == "4");
  CHECK(Fact(log, "⟦grad_accum⟧") == "2");
  CHECK(Fact(log, "⟦seq_len⟧") == "8192");
  CHECK(Fact(log, "⟦dtype⟧") == "bf16");
  CHECK(Fact(log, "⟦runtime⟧") == "fsdp2");
  CHECK(Fact(log, "⟦stage⟧") == "3");
  CHECK(Fact(log, "⟦offload_param⟧") == "cpu");
  CHECK(Fact(log, "⟦checkpointing⟧") == "full");
  CHECK(Fact(log, "⟦optim⟧") == "adamw_bnb_8bit");
  CHECK(Fact(log, "⟦attn⟧") == "flash");
  CHECK(Fact(Log("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"),
             "⟦expandable_segments⟧") == "true");
  const RunLog launcher = Log(
      "[2025-04-14 13:11:27,885] [ERROR] [launch.py:434:sigkill_handler] ['/usr/bin/python3', "
      "'-u', "
      "'main.py', '--model_name_or_path', 'facebook/opt-125m', '--per_device_train_batch_size', "
      "'2', '--max_seq_len', '512', '--zero_stage', '2', '--deepspeed'] exits with return code = "
      "-9");
  CHECK(Fact(launcher, "⟦micro_batch⟧") == "2");
  CHECK(Fact(launcher, "⟦stage⟧") == "2");
  CHECK(Fact(launcher, "⟦runtime⟧") == "deepspeed");
  const RunLog printed =
      Log("Training/evaluation parameters TrainingArguments(\n_n_gpu=1,\nbf16=True,\n"
          "gradient_checkpointing=False,\nper_device_train_batch_size=16,\ndeepspeed=None,\n"
          "optim=OptimizerNames.ADAMW_TORCH_FUSED,\n)\n");
  CHECK(Fact(printed, "⟦micro_batch⟧") == "16");
  CHECK(Fact(printed, "⟦checkpointing⟧") == "none");
  CHECK(Fact(printed, "⟦optim⟧") == "adamw_torch_fused");
  CHECK(Fact(printed, "⟦runtime⟧").empty());
  const RunLog tune =
      Log("INFO:torchtune.utils._logging:Running FullFinetuneRecipeDistributed with resolved "
          "config:\n\n"
          "batch_size: 3\ndevice: cuda\ndtype: bf16\nenable_activation_checkpointing: true\n"
          "gradient_accumulation_steps: 1\noptimizer:\n  _component_: "
          "bitsandbytes.optim.PagedAdamW8bit\n"
          "tokenizer:\n  max_seq_len: 4096\n");
  CHECK(Fact(tune, "⟦code⟧") == "torchtune");
  CHECK(Fact(tune, "⟦micro_batch⟧") == "3");
  CHECK(Fact(tune, "⟦seq_len⟧") == "4096");
  CHECK(Fact(tune, "⟦optim⟧") == "paged_adamw_8bit");
  CHECK(Fact(tune, "⟦param_dtype⟧") == "bf16");
}

TEST_CASE("accelerate's config, as its file and its command have it") {
  const RunLog file =
      Log("compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nfsdp_config:\n"
          "  fsdp_activation_checkpointing: true\n  fsdp_offload_params: false\n"
          "  fsdp_reshard_after_forward: true\n  fsdp_version: 2\nmixed_precision: bf16\n"
          "num_machines: 1\nnum_processes: 8\n");
  CHECK(Fact(file, "⟦runtime⟧") == "fsdp2");
  CHECK(Fact(file, "⟦stage⟧") == "3");
  CHECK(Fact(file, "⟦checkpointing⟧") == "full");
  CHECK(Fact(file, "⟦offload_param⟧") == "none");
  CHECK(Fact(file, "⟦dtype⟧") == "bf16");
  CHECK(Fact(file, "⟦gpus⟧") == "8");
  CHECK_FALSE(file.fsdp1);
  const RunLog printed = Log(
      "\t- distributed_type: DEEPSPEED\n\t- mixed_precision: fp16\n\t- num_processes: 4\n"
      "\t- deepspeed_config: {'gradient_accumulation_steps': 1, 'offload_optimizer_device': 'cpu', "
      "'zero_stage': 3}\n");
  CHECK(Fact(printed, "⟦runtime⟧") == "deepspeed");
  CHECK(Fact(printed, "⟦gpus⟧") == "4");
  CHECK(Fact(printed, "⟦stage⟧") == "3");
  CHECK(Fact(printed, "⟦offload_optimizer⟧") == "cpu");
  CHECK(Log("I set num_processes: 8 and stage 3\n").facts.empty());
}

TEST_CASE("a quiet Trainer's bar, and Megatron's iterations") {
  const RunLog quiet =
      Log(" 1%|1   | 1/100 [00:09<10:00,  9.00s/it]\r 2%|2   | 2/100 [00:10<05:00,  2.60s/it]\r"
          " 3%|3   | 3/100 [00:12<05:00,  2.40s/it]\n"
          "{'loss': 2.3, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.1}\n");
  REQUIRE(quiet.step_seconds.has_value());
  CHECK(quiet.step_seconds->value == doctest::Approx(2.4));
  // Whose bar it is nobody says: it may count micro-steps.
  CHECK_FALSE(Log(" 2%|2   | 2/100 [00:10<05:00,  2.60s/it]\r 3%|3   | 3/100 [00:12<05:00,  "
                  "2.40s/it]\n")
                  .step_seconds);
  const RunLog megatron =
      Log(" iteration       10/  300000 | elapsed time per iteration (ms): 26812.1 | learning rate "
          "1.5e-04 | lm loss 1.1e+01\n"
          " iteration       20/  300000 | elapsed time per iteration (ms): 25711.0 | learning rate "
          "1.5e-04 | lm loss 1.0e+01\n");
  REQUIRE(megatron.step_seconds.has_value());
  CHECK(megatron.step_seconds->value == doctest::Approx(25.711));
  CHECK(megatron.steps_seen == 20);
}

TEST_CASE("a DeepSpeed run: its config, memory lines and throughput") {
  const RunLog log = ReadRunLog(SourcePath("tests/fixtures/why/deepspeed_backward.log"));
  CHECK(Fact(log, "⟦gpus⟧") == "4");
  CHECK(Fact(log, "⟦micro_batch⟧") == "8");
  CHECK(Fact(log, "⟦seq_len⟧") == "4096");
  CHECK(Fact(log, "⟦model⟧") == "meta-llama/Llama-3.2-1B");
  CHECK(Has(log.config, wording::kReduceBucketSize));
  CHECK(Has(log.config, "\"gradient_clipping\": 1.0"));
  CHECK(Lacks(log.config, "another rank"));
  REQUIRE(log.memory_lines.size() == 3);
  CHECK(log.memory_lines[2].label == "After initializing ZeRO optimizer");
  CHECK(log.memory_lines[2].allocated == Near(3.45));
  REQUIRE(log.Cause() != nullptr);
  CHECK(log.Cause()->rank == 3);
  CHECK(log.Cause()->phase == RunPhase::kBackward);
  const RunLog speed =
      Log("[INFO] [timer.py:260:stop] epoch=0/micro_step=40/global_step=10, "
          "RunningAvgSamplesPerSec=25.02, CurrSamplesPerSec=25.70, MemAllocated=4.32GB, "
          "MaxMemAllocated=38.49GB\n"
          "[INFO] [timer.py:260:stop] epoch=0/micro_step=80/global_step=20, "
          "RunningAvgSamplesPerSec=25.72, CurrSamplesPerSec=25.81, MemAllocated=4.32GB, "
          "MaxMemAllocated=38.49GB\n"
          "[WARNING] [stage3.py:2391:step] 2 pytorch allocator cache flushes since last step. this "
          "happens when there is high memory pressure\n");
  REQUIRE(speed.samples_per_second.has_value());
  CHECK(speed.samples_per_second->value == doctest::Approx(25.72));
  REQUIRE(speed.allocated.has_value());
  CHECK(speed.allocated->value == doctest::Approx(38.49 * static_cast<double>(kGiB)));
  CHECK(speed.cache_flushes == 1);
  CHECK(speed.steps_seen == 20);
}

TEST_CASE("a run of Trainer: header, nested bars, carriage returns, control sequences") {
  const RunLog log = ReadRunLog(SourcePath("tests/fixtures/why/trainer_ran.log"));
  CHECK(log.finished);
  CHECK(log.Cause() == nullptr);
  CHECK(Fact(log, "⟦micro_batch⟧") == "4");
  CHECK(Fact(log, "⟦grad_accum⟧") == "2");
  CHECK(Fact(log, "⟦gpus⟧") == "1");
  CHECK(Fact(log, "⟦code⟧") == "hf");
  CHECK(log.steps_seen == 5);
  // Of the training's bar: 3.20, 2.24, 1.54 and 1.49 s, not of those of evaluation, which are fast.
  REQUIRE(log.step_seconds.has_value());
  CHECK(log.step_seconds->value > 1.4);
  CHECK(log.step_seconds->value < 3.3);
  REQUIRE(log.run_samples_per_second.has_value());
  CHECK(log.run_samples_per_second->value == doctest::Approx(3.803));
}

TEST_CASE("torchtitan, torchtune and memory_summary") {
  const RunLog titan = Log(
      "[rank0]:[titan] 2025-02-01 10:00:00 - root - INFO - CUDA capacity: NVIDIA H100 80GB HBM3 "
      "with 79.10GiB memory\n"
      "[rank0]:[titan] step:  1  loss: 12.1  memory: 40.00GiB(50.60%)  tps: 901  mfu: 5.1%\n"
      "[rank0]:[titan] step: 10  loss:  9.1  memory: 62.34GiB(78.80%)  tps: 7,123  mfu: 41.6%\n"
      "[rank0]:[titan] step: 20  loss:  8.1  memory: 62.34GiB(78.80%)  tps: 7,125  mfu: 41.6%\n");
  CHECK(Fact(titan, "⟦hw⟧") == "NVIDIA H100 80GB HBM3");
  CHECK(Fact(titan, "⟦checkpointing⟧").empty());  // without a line it is off
  for (const char* kind : {"full", "selective"}) {
    const RunLog applied = Log(fmt::format(
        "[rank0]:[titan] - root - INFO - Applied {} activation checkpointing to the model\n",
        kind));
    CHECK(Fact(applied, "⟦checkpointing⟧") == kind);
    CHECK(applied.Fact("⟦checkpointing⟧")->line == 1);
  }
  REQUIRE(titan.tokens_per_second_of_gpu.has_value());
  CHECK(titan.tokens_per_second_of_gpu->value == doctest::Approx(7125));
  REQUIRE(titan.reserved.has_value());
  CHECK(titan.reserved->value == doctest::Approx(62.34 * static_cast<double>(kGiB)));
  const RunLog summary =
      Log("|            CUDA OOMs: 1            |        cudaMalloc retries: 3         |\n"
          "| Allocated memory      |   7136 MiB |  28160 MiB |    898 GiB |    891 GiB |\n"
          "|       from large pool |   7136 MiB |  28160 MiB |    898 GiB |    891 GiB |\n"
          "| GPU reserved memory   |  34334 MiB |  34816 MiB |  34836 MiB | 514048 KiB |\n");
  REQUIRE(summary.allocated.has_value());
  CHECK(summary.allocated->value == doctest::Approx(28160.0 * static_cast<double>(kMiB)));
  REQUIRE(summary.reserved.has_value());
  CHECK(summary.reserved->value == doctest::Approx(34816.0 * static_cast<double>(kMiB)));
  CHECK(summary.cache_flushes == 3);
}

TEST_CASE("unknown text is not guessed about; any bytes are read") {
  const RunLog prose =
      Log("I trained llama 7b on 8 A100 80GB with batch size 4 and sequence length 4096.\n"
          "memory 45 GB, loss 2.3, 1.2 it/s\n");
  CHECK_FALSE(prose.HasAnything());
  CHECK_FALSE(Log("").HasAnything());
  std::string bytes;
  for (int i = 0; i < 1 << 16; ++i) bytes += static_cast<char>(i * 7919 >> 3);
  const RunLog binary = Log(bytes);
  CHECK_FALSE(binary.HasAnything());
  CHECK(binary.has_nul);
  // A config that is cut off is no config.
  CHECK(Log("[config.py:991:print_user_config]   json = {\n  \"a\": {\n").config.empty());
  // Pieces of any size come to the same.
  const std::string text =
      "Num processes: 8\r\n\x1b[1mInstantaneous batch size per device = 4\x1b[0m\n";
  LogReader reader("x");
  for (const char c : text) reader.Take(std::string_view(&c, 1));
  const RunLog log = reader.Finish();
  CHECK(Fact(log, "⟦gpus⟧") == "8");
  CHECK(Fact(log, "⟦micro_batch⟧") == "4");
  CHECK(log.lines == 2);
  // Bars of a whole run on one line, and what stands behind them.
  std::string bars;
  for (int i = 0; i < 5000; ++i)
    bars += fmt::format(" 10%|#   | {}/5000 [00:12<01:48,  1.21s/it]\r", i);
  const RunLog long_line = Log(
      bars +
      "CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total capacity of 8.00 GiB of "
      "which 0 bytes is free.\n");
  CHECK(long_line.lines == 1);
  CHECK(long_line.steps_seen == 4999);
  REQUIRE(long_line.Cause() != nullptr);
  CHECK(long_line.Cause()->line == 1);
}

}  // namespace
}  // namespace zeroplan
