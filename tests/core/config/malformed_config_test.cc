// Configs that must not load: each with exit code 2, the key and the fix.
#include <doctest/doctest.h>

#include <random>
#include <string>

#include "core/base/error.h"
#include "core/config/deepspeed_reader.h"

namespace zeroplan {
namespace {

struct Case {
  const char* text;
  const char* key;
  const char* fix;
};

const Case kCases[] = {
    {R"([])", "[...]", "use an object"},
    {R"(3)", "3", "use an object"},
    {R"({"zero_optimization": {"stage": 5}})", "c:1: zero_optimization.stage: 5",
     "use 0, 1, 2 or 3"},
    {R"({"zero_optimization": {"stage": -1}})", "stage: -1", "use 0, 1, 2 or 3"},
    {R"({"zero_optimization": {"stage": 1.5}})", "stage: 1.5", "use 0, 1, 2 or 3"},
    {R"({"zero_optimization": {"stage": "three"}})", "stage: \"three\"", "use 0, 1, 2 or 3"},
    {R"({"zero_optimization": {"stage": [2]}})", "stage: [...]", "use 0, 1, 2 or 3"},
    {R"({"zero_optimization": 2})", "zero_optimization: 2", "use an object"},
    {R"({"zero_optimization": {"satge": 2}})", "satge", "did you mean 'stage'?"},
    {"{\n\"zero_optimization\": {\n\"stage\": 3,\n\"stage3_param_persitance_threshold\": 1}}",
     "c:4: zero_optimization.stage3_param_persitance_threshold",
     "did you mean 'stage3_param_persistence_threshold'?"},
    {R"({"zero_optimization": {"comm_overlap": true}})", "comm_overlap", "use 'overlap_comm'"},
    {R"({"zero_optimization": {"allreduce_bucket_size": 1}})", "allreduce_bucket_size",
     "use 'reduce_bucket_size'"},
    {R"({"zero_optimization": {"completely_else": 1}})", "completely_else", "allowed here: stage"},
    {R"({"zero_optimization": {"reduce_bucket_size": 0}})", "reduce_bucket_size: 0", "at least 1"},
    {R"({"zero_optimization": {"reduce_bucket_size": -5e8}})", "reduce_bucket_size", "at least 1"},
    {R"({"zero_optimization": {"reduce_bucket_size": 1e19}})", "reduce_bucket_size",
     "whole number"},
    {R"({"zero_optimization": {"reduce_bucket_size": "5e8x"}})", "reduce_bucket_size",
     "whole number"},
    {R"({"zero_optimization": {"overlap_comm": "maybe"}})", "overlap_comm: \"maybe\"",
     "true or false"},
    {R"({"zero_optimization": {"overlap_comm": 2}})", "overlap_comm: 2", "true or false"},
    {R"({"zero_optimization": {"stage": 3, "max_live_parameters": 1, "stage3_max_live_parameters": 2}})",
     "max_live_parameters", "keep one of them"},
    {R"({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "gpu"}}})",
     "offload_optimizer.device: \"gpu\"", "\"none\", \"cpu\" or \"nvme\""},
    {R"({"zero_optimization": {"stage": 2, "offload_optimizer": "cpu"}})",
     "offload_optimizer: \"cpu\"", "use an object"},
    {R"({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}})",
     "offload_optimizer.device: cpu", "use stage 1, 2 or 3"},
    {"{\"zero_optimization\": {\"stage\": 2,\n \"offload_param\": {\n\"device\": \"cpu\"}}}",
     "c:3: zero_optimization.offload_param.device: cpu", "use stage 3"},
    {R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}})", "nvme_path",
     "name a folder"},
    {R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/d", "ratio": 0.5}}})",
     "ratio: 0.5", "use ratio 1"},
    {R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0}}})",
     "ratio: 0", "above 0 and up to 1"},
    {R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "buffer_count": 0}}})",
     "buffer_count: 0", "from 1 to 1024"},
    {R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "buffer_size": 8}}})",
     "offload_optimizer.buffer_size", "move it to 'zero_optimization.offload_param'"},
    {R"({"zero_optimization": {"stage": 3, "offload_optimizer": {"max_in_cpu": 8}}})", "max_in_cpu",
     "move it to 'zero_optimization.offload_param'"},
    {R"({"zero_optimization": {"stage": 3, "cpu_offload": true, "offload_optimizer": {"device": "nvme", "nvme_path": "/d"}}})",
     "cpu_offload", "remove the deprecated"},
    {R"({"zero_optimization": {"round_robin_gradients": true}})", "round_robin_gradients",
     "use false"},
    {R"({"zero_optimization": {"load_from_fp32_weights": false}})", "load_from_fp32_weights",
     "use true"},
    {R"({"zero_optimization": {"stage": 3, "zero_quantized_weights": true}})",
     "zero_quantized_weights", "remove it"},
    {R"({"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}})",
     "zero_hpz_partition_size", "use 1"},
    {R"({"zero_optimization": {"stage": 3, "mics_shard_size": 8}})", "mics_shard_size", "use -1"},
    {R"({"zero_optimization": {"zenflow": {"topk_ratio": 0.1}}})", "zenflow", "remove it"},
    {R"({"train_batch_size": 0})", "train_batch_size: 0", "whole number"},
    {R"({"train_batch_size": 1.5})", "train_batch_size: 1.5", "whole number"},
    {R"({"train_batch_size": 7})", "train_batch_size: 7", "use 4 or 8"},
    {R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 3})", "train_batch_size: 8",
     "use 12"},
    {R"({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1})",
     "train_batch_size: 8", "leave one out"},
    {R"({"gradient_accumulation_steps": 4})", "gradient_accumulation_steps: 4",
     "add train_micro_batch_size_per_gpu"},
    {R"({"train_micro_batch_size_per_gpu": 1e30})", "train_micro_batch_size_per_gpu",
     "whole number"},
    {R"({"train_batchsize": 8})", "train_batchsize", "did you mean 'train_batch_size'?"},
    {R"({"micro_batch_size_per_gpu": 8})", "micro_batch_size_per_gpu",
     "use 'train_micro_batch_size_per_gpu'"},
    {R"({"lr_scheduler": {}})", "lr_scheduler", "use 'scheduler'"},
    {R"({"max_grad_norm": 1})", "max_grad_norm", "use 'gradient_clipping'"},
    {R"({"zero3_init_flag": true})", "zero3_init_flag", "remove it"},
    {R"({"stage": 3})", "stage", "move it to 'zero_optimization'"},
    {R"({"lr": 3})", "lr", "move it to 'optimizer.params'"},
    {R"({"zero_optimization": {"train_batch_size": 3}})", "train_batch_size",
     "move it to the top level"},
    {R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})", "fp16", "switch one of them off"},
    {R"({"bfloat16": {"enabled": true}, "bf16": {"enabled": true}})", "bfloat16", "keep bf16"},
    {R"({"fp16": true})", "fp16: true", "use an object"},
    {R"({"fp16": {"enabled": 3}})", "fp16.enabled: 3", "true or false"},
    {R"({"fp16": {"enabled": true, "opt_level": "O2"}})", "fp16.opt_level", "remove it"},
    {R"({"fp16": {"initial_scale_power": 1000}})", "initial_scale_power: 1000", "from 0 to 126"},
    {R"({"fp16": {"loss_scale": -1}})", "loss_scale: -1", "0 (dynamic)"},
    {R"({"fp16": {"hysteresis": 0}})", "hysteresis: 0", "from 1"},
    {R"({"bf16": {"enabled": true}, "data_types": {"grad_accum_dtype": "fp16"}})",
     "data_types.grad_accum_dtype: fp16", "use bf16 or fp32"},
    {R"({"data_types": {"grad_accum_dtype": "int8"}})", "grad_accum_dtype: \"int8\"", "\"fp32\""},
    {R"({"data_types": {"grad_acum_dtype": "fp32"}})", "grad_acum_dtype", "did you mean"},
    {R"({"bf16": {"enabled": true}, "communication_data_type": "fp32"})", "communication_data_type",
     "remove the key"},
    {R"({"prescale_gradients": true})", "prescale_gradients", "use false"},
    {R"({"gradient_predivide_factor": 2})", "gradient_predivide_factor", "use 1.0"},
    {R"({"gradient_clipping": -1})", "gradient_clipping: -1", "0 (off)"},
    {R"({"gradient_clipping": "lots"})", "gradient_clipping: \"lots\"", "0 (off)"},
    {R"({"optimizer": {"type": "OneBitAdam"}})", "optimizer.type: \"OneBitAdam\"", "\"AdamW\""},
    {R"({"optimizer": {"params": {"lr": 1}}})", "optimizer.type", "add \"type\""},
    {R"({"optimizer": {"type": "Adam", "params": {"lr": -1}}})", "optimizer.params.lr: -1", "1e-4"},
    {R"({"optimizer": {"type": "Adam", "params": {"betas": [0.9]}}})", "betas", "two numbers"},
    {R"({"optimizer": {"type": "Adam", "params": {"betas": [0.9, 1]}}})", "betas: 1 ",
     "two numbers"},
    {R"({"optimizer": {"type": "Adam", "params": {"amsgrad": true}}})", "amsgrad", "use false"},
    {R"({"optimizer": {"type": "Adam", "params": {"wieght_decay": 1}}})", "wieght_decay",
     "did you mean 'weight_decay'?"},
    {R"({"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1}}})", "max_grad_norm",
     "use gradient_clipping"},
    {R"({"scheduler": {"type": "OneCycle"}})", "scheduler.type",
     "not supported yet; use \"WarmupLR\""},
    {R"({"scheduler": {"type": "LRRangeTest"}})", "scheduler.type", "not supported yet"},
    {R"({"scheduler": {"type": "Cosine"}})", "scheduler.type: \"Cosine\"", "use \"WarmupLR\""},
    {R"({"scheduler": {"params": {}}})", "scheduler.type", "is missing; use"},
    {R"({"scheduler": {"type": "WarmupDecayLR", "params": {}}})", "total_num_steps", "add it"},
    {R"({"scheduler": {"type": "WarmupDecayLR"}})", "total_num_steps", "add it"},
    {R"({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_step": 5}}})",
     "total_num_step", "did you mean 'total_num_steps'?"},
    {R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "cubic"}}})", "warmup_type",
     "\"log\" or \"linear\""},
    {R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": -1}}})",
     "warmup_num_steps", "from 0"},
    {R"({"activation_checkpointing": {"cpu_checkpointing": true}})", "cpu_checkpointing",
     "use false"},
    {R"({"activation_checkpointing": {"number_checkpoints": 0}})", "number_checkpoints: 0",
     "at least 1"},
    {R"({"activation_checkpointing": {"number_checkpoint": 2}})", "number_checkpoint",
     "did you mean"},
    {R"({"aio": {"block_size": 0}})", "aio.block_size: 0", "at least 1"},
    {R"({"aio": {"use_gds": true}})", "aio.use_gds", "remove it"},
    {R"({"amp": {"enabled": true}})", "amp", "switch it off"},
    {R"({"sparse_gradients": true})", "sparse_gradients", "switch it off"},
    {R"({"elasticity": {"enabled": true}})", "elasticity", "switch it off"},
    {R"({"tensor_parallel": {"autotp_size": 4}})", "tensor_parallel", "switch it off"},
    {"{\"bf16\": {\"enabled\": true},\n\"bf16\": {}}", "c:2: bf16", "keep one of them"},
};

TEST_CASE("reader: malformed configs name the key and the fix") {
  ReadContext context;
  context.world_size = 4;
  for (const Case& c : kCases) {
    CAPTURE(c.text);
    try {
      ReadDeepSpeedConfig(c.text, "c", context);
      FAIL_CHECK("loaded");
    } catch (const Error& error) {
      const std::string message = error.what();
      CAPTURE(message);
      CHECK(error.code() == ExitCode::kUsage);
      CHECK(message.starts_with("c:"));
      CHECK(message.find(c.key) != std::string::npos);
      CHECK(message.find(c.fix) != std::string::npos);
    }
  }
}

TEST_CASE("reader: a damaged config loads or is a usage error, nothing else") {
  const std::string good = R"({"train_batch_size": 8, "fp16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.5}},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95]}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}})";
  // The terminating zero is one of the bytes.
  static constexpr char kText[] = "{}[]\",:0123456789eE.-+ \\\nabtrufalsn#/*\xff";
  constexpr std::string_view kBytes(kText, sizeof kText);
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string text = good;
    for (size_t edits = 1 + random() % 3; edits > 0; --edits) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = kBytes[random() % kBytes.size()];
          break;
        case 1:
          text.erase(at, 1 + random() % 8);
          break;
        default:
          text.insert(at, good.substr(random() % good.size(), random() % 20));
          break;
      }
    }
    try {
      ReadDeepSpeedConfig(text, "c", {});
    } catch (const Error& error) {
      if (error.code() != ExitCode::kUsage) FAIL_CHECK(text);
    }
  }
}

TEST_CASE("reader: bad values on the command line") {
  ReadContext context;
  context.micro_batch = 0;
  CHECK_THROWS_WITH_AS(ReadDeepSpeedConfig("{}", "c", context),
                       doctest::Contains("--micro-batch: 0 is not allowed"), Error);
  context = {};
  context.world_size = 0;
  CHECK_THROWS_WITH_AS(ReadDeepSpeedConfig("{}", "c", context), doctest::Contains("--gpus: 0"),
                       Error);
  context = {};
  context.seq_len = -1;
  CHECK_THROWS_WITH_AS(ReadDeepSpeedConfig("{}", "c", context), doctest::Contains("--seq-len"),
                       Error);
  context = {};
  context.dtype = Dtype::kF16;
  CHECK_THROWS_WITH_AS(ReadDeepSpeedConfig("{\"bf16\": {\"enabled\": true}}", "c", context),
                       doctest::Contains("bf16: enabled true contradicts --dtype fp16"), Error);
  CHECK_THROWS_AS(ReadDeepSpeedConfig("{\"fp16\": {\"enabled\": false}}", "c", context), Error);
  CHECK_THROWS_AS(ReadDeepSpeedConfigFile("/no/such/config.json", {}), Error);
}

}  // namespace
}  // namespace zeroplan
