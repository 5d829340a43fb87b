// Configs of other programs, and DeepSpeed's own as programs ship them, given to every command that
// takes a config.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "core/base/json_source.h"
#include "tests/cli/run_binary.h"
#include "tests/has.h"
#include "tests/temp_dir.h"

namespace zeroplan {
namespace {

class File {
 public:
  File(const char* name, const std::string& text) : name_(name) { std::ofstream(path()) << text; }
  std::string path() const { return folder_.path(name_); }

 private:
  TempDir folder_;
  const char* name_;
};

// Words of a report, whatever its lines.
std::string OneLine(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  std::string out;
  for (const char c : text) {
    if (c != ' ' || out.empty() || out.back() != ' ') out += c;
  }
  return out;
}

TEST_CASE("a config of another program: one line from every command that takes a config") {
  const File axolotl("axolotl.yaml",
                     "base_model: NousResearch/Meta-Llama-3.1-8B\nsequence_len: 8192\n"
                     "gradient_accumulation_steps: 8\nmicro_batch_size: 1\nbf16: auto\n"
                     "deepspeed: deepspeed_configs/zero2.json\n");
  const File titan("train.toml", "[training]\nlocal_batch_size = 1\nseq_len = 8192\n");
  const File accelerate("default_config.yaml",
                        "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 1\n"
                        "num_processes: 2\n");
  struct Case {
    const File* file;
    const char* said;
  };
  for (const Case& c :
       {Case{&axolotl,
             "is a config of axolotl, which zeroplan does not read yet; give the DeepSpeed config "
             "that it names, deepspeed_configs/zero2.json, and its values as options: --model "
             "NousResearch/Meta-Llama-3.1-8B --seq-len 8192 --micro-batch 1 --grad-accum 8"},
        Case{&titan,
             "give 'zeroplan estimate' or 'zeroplan plan' its values as options: --runtime fsdp2 "
             "--seq-len 8192 --micro-batch 1"},
        Case{&accelerate, "is a config of accelerate, which zeroplan does not read yet"}}) {
    const std::string path = c.file->path();
    CAPTURE(path);
    const File log("run.log", "torch.OutOfMemoryError: CUDA out of memory.\n");
    for (const std::string& command :
         {"config check " + path, "config check - <" + path,
          "estimate --model gpt2 --gpus 2 --hw dgx-h100 --config " + path,
          "plan --model gpt2 --gpus 2 --hw dgx-h100 --config " + path,
          "why " + log.path() + " --runtime deepspeed --model gpt2 --gpus 2 --config " + path}) {
      CAPTURE(command);
      const RunResult run = RunZeroplan(command);
      CHECK(run.exit_code == 2);
      CHECK(Has(run.err, c.said));
      CHECK(std::count(run.err.begin(), run.err.end(), '\n') == 1);
      CHECK(run.out.empty());
    }
  }
}

// axolotl's deepspeed_configs/zero3_bf16.json and the like, in their own words.
constexpr const char* kSubGroups = R"({"zero_optimization": {"stage": 3, "overlap_comm": true,
  "contiguous_gradients": true, "sub_group_size": 0, "reduce_bucket_size": "auto",
  "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto",
  "max_live_parameters": 0, "max_reuse_distance": 0, "gather_16bit_weights_on_model_save": true%s},
  "bf16": {"enabled": true}, "gradient_accumulation_steps": "auto", "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto"})";

std::string SubGroups(const std::string& offload) {
  std::string text = kSubGroups;
  return text.replace(text.find("%s"), 2, offload);
}

TEST_CASE(
    "sub_group_size 0 is read, predicted for DeepSpeed, and refused where it cannot be meant") {
  const File plain("zero3.json", SubGroups(""));
  const File offloads("zero3_offload.json",
                      SubGroups(R"(, "offload_optimizer": {"device": "cpu"})"));
  const std::string options = " --model gpt2-xl --gpus 8 --hw dgx-h100 --config ";
  CHECK(RunZeroplan("config check " + plain.path()).exit_code == 0);
  CHECK(RunZeroplan("config check --for deepspeed " + offloads.path()).exit_code == 0);
  CHECK(RunZeroplan("estimate" + options + plain.path()).exit_code == 0);
  for (const File* file : {&plain, &offloads}) {
    const RunResult run = RunZeroplan("estimate --runtime deepspeed" + options + file->path());
    CAPTURE(run.err);
    CHECK(run.exit_code == 0);
  }
  const RunResult own = RunZeroplan("estimate" + options + offloads.path());
  CHECK(own.exit_code == 2);
  CHECK(Has(own.err, "sub_group_size: 0 is not supported with the optimizer offloaded"));
}

TEST_CASE("\"auto\" sizes are those that transformers fills in") {
  // HfTrainerDeepSpeedConfig.trainer_config_finalize of transformers 5.24, run with these models'
  // hidden sizes at stage 3.
  struct Case {
    const char* model;
    int64_t reduce, prefetch, persistence;
  };
  const File file("ds.json", SubGroups(""));
  for (const Case& c :
       {Case{"gpt2-xl", 2560000, 2304000, 16000}, Case{"llama3.1-8b", 16777216, 15099494, 40960},
        Case{"qwen2.5-7b", 12845056, 11560550, 35840},
        Case{"llama2-13b", 26214400, 23592960, 51200}}) {
    CAPTURE(c.model);
    const RunResult run = RunZeroplan(
        fmt::format("estimate --runtime deepspeed --gpus 8 --hw dgx-h100 --explain --model {} "
                    "--config {}",
                    c.model, file.path()));
    CHECK(run.exit_code == 0);
    CHECK(Has(OneLine(run.out + run.err),
              fmt::format("reduce_bucket_size {}, stage3_prefetch_bucket_size {}, "
                          "stage3_param_persistence_threshold {}.",
                          c.reduce, c.prefetch, c.persistence)));
  }
  const RunResult check = RunZeroplan("config check " + file.path());
  CHECK(Has(check.out,
            "\"auto\" of zero_optimization.reduce_bucket_size, "
            "zero_optimization.stage3_prefetch_bucket_size, "
            "zero_optimization.stage3_param_persistence_threshold, gradient_accumulation_steps and "
            "2 more: transformers' Trainer or accelerate fills it in"));
}

TEST_CASE("the config of DeepSpeed's autotuner is DeepSpeed's") {
  const File file("tune.json",
                  R"({"train_micro_batch_size_per_gpu": "auto", "fp16": {"enabled": true},
 "autotuning": {"enabled": true, "fast": true, "arg_mappings":
   {"train_micro_batch_size_per_gpu": "--per_device_train_batch_size",
    "gradient_accumulation_steps ": "--gradient_accumulation_steps"}}})");
  const RunResult theirs = RunZeroplan("config check --for deepspeed " + file.path());
  CHECK(theirs.exit_code == 0);
  CHECK(Has(theirs.out, "is for DeepSpeed's autotuner (deepspeed --autotuning)"));
  CHECK(Lacks(theirs.out, "takes no \"auto\""));
  CHECK(RunZeroplan("config check " + file.path()).exit_code == 0);
}

TEST_CASE("parameters on NVMe: a buffer that is too small is refused, and plan's is large enough") {
  // ceil(elements / GPUs) of the embedding: 152064 x 3584 and 128256 x 4096.
  const auto config = [](const std::string& size) {
    return R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true},
               "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"},
               "offload_param": {"device": "nvme", "nvme_path": "/nvme")" +
           size + "}}}";
  };
  struct Case {
    const char* model;
    int gpus;
    int64_t part;
  };
  for (const Case& c : {Case{"qwen2.5-7b", 1, 544997376}, Case{"qwen2.5-7b", 3, 181665792},
                        Case{"llama3.1-8b", 4, 131334144}}) {
    CAPTURE(c.part);
    const std::string options = fmt::format(" --model {} --gpus {} --hw dgx-h100", c.model, c.gpus);
    const File open("open.json", config(""));
    const File small("small.json", config(fmt::format(", \"buffer_size\": {}", c.part - 1)));
    const File enough("enough.json", config(fmt::format(", \"buffer_size\": {}", c.part)));
    const std::string fix = fmt::format("set buffer_size to {} or more", c.part);
    for (const File* file : {&open, &small}) {
      const RunResult run =
          RunZeroplan("estimate --runtime deepspeed --config " + file->path() + options);
      CHECK(run.exit_code == 2);
      CHECK(Has(OneLine(run.err), fix));
      CHECK(Has(OneLine(run.err), fmt::format("\"More elements {} than buffer size", c.part)));
      CHECK(RunZeroplan("config check --for deepspeed " + file->path() + options).exit_code == 2);
      const RunResult both = RunZeroplan("config check " + file->path() + options);
      CHECK(both.exit_code == 0);
      CHECK(Has(both.out, "warning: " + file->path() + ": zero_optimization.offload_param"));
      CHECK(Has(both.out, fix));
    }
    CHECK(
        RunZeroplan("estimate --runtime deepspeed --config " + enough.path() + options).exit_code ==
        0);
    CHECK(Lacks(RunZeroplan("config check " + enough.path() + options).out, "buffer_size to"));
  }
  // Small enough for the default, and in no file at all.
  const File open("open.json", config(""));
  CHECK(
      Lacks(RunZeroplan("config check " + open.path() + " --model gpt2-xl").out, "buffer_size to"));
  const TempDir folder;
  for (const char* runtime : {"deepspeed", "zeroplan"}) {
    CAPTURE(runtime);
    const std::string out = folder.path(std::string(runtime) + ".json");
    const RunResult planned =
        RunZeroplan(fmt::format("plan --model qwen2.5-7b --gpus 1 --hw dgx-h100 --runtime {} "
                                "--stage 3 --offload-param nvme "
                                "--offload-optimizer cpu --out {}",
                                runtime, out));
    CAPTURE(planned.err);
    CHECK(planned.exit_code == 0);
    CHECK(Has(ReadTextFile(out), "\"buffer_size\": 544997376"));
  }
}

}  // namespace
}  // namespace zeroplan
