#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/families/load_model.h"
#include "planner/formats/config_format.h"
#include "planner/program_options.h"
#include "planner/runtimes/runtimes.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

FormatRequest ScriptRequest(ConfigFormat format, const Runtime& runtime) {
  FormatRequest request;
  request.format = format;
  request.runtime = &runtime;
  request.runtime_name = runtime.version();
  request.model = LoadModel("llama3.1-8b");
  request.setup.batch = {4, 2, 2, 2048};
  request.setup.zero.reduce_bucket_elements = 200'000'000;
  request.setup.zero.prefetch_bucket_elements = 30'000'000;
  request.setup.zero.max_live_parameters = 900'000'000;
  if (&runtime == &Fsdp2Runtime()) request.setup.zero.stage = 3;
  request.recipe.code = CodeStyle::kHf;
  request.cluster = {2, 8};
  request.file = "run.yaml";
  return request;
}

void Adapt(ModelSpec& model, bool quantized) {
  model.lora_rank = 16;
  model.lora_alpha = 32;
  model.lora_targets = "all-linear";
  model.lora_quantized = quantized;
}

std::string ScriptOf(const FormatRequest& request) {
  std::string text;
  for (const std::string& line : WriteFormat(request).script) text += line + "\n";
  return text;
}

bool Takes(const FormatRequest& request, const std::string& argument) {
  const WrittenConfig written = WriteFormat(request);
  return std::count(written.arguments.begin(), written.arguments.end(), argument) == 1;
}

TEST_CASE("formats: a script loads the model as it was planned") {
  FormatRequest request = ScriptRequest(ConfigFormat::kHfTrainer, DdpRuntime());
  CHECK(ScriptOf(request) ==
        "import torch\n"
        "from transformers import AutoModelForCausalLM\n"
        "model = AutoModelForCausalLM.from_pretrained(\n"
        "    MODEL, dtype=torch.bfloat16, attn_implementation=\"sdpa\")\n");
  request.recipe.param_dtype = Dtype::kF32;
  request.recipe.attention = TorchAttention::kFlash;
  CHECK(Has(ScriptOf(request), wording::kDtypeTorchFloatAttnImplementation));
}

TEST_CASE("formats: the Trainer evaluates as many sequences at once as fit") {
  FormatRequest request = ScriptRequest(ConfigFormat::kHfTrainer, DdpRuntime());
  const std::string argument = "--per_device_eval_batch_size 1";
  CHECK_FALSE(Takes(request, argument));
  request.eval_batch = 1;
  CHECK(Takes(request, argument));
}

TEST_CASE("formats: what a recipe assumes is switched on") {
  FormatRequest request = ScriptRequest(ConfigFormat::kHfTrainer, DdpRuntime());
  CHECK(Takes(request, "--optim adamw_torch_fused"));
  CHECK_FALSE(Takes(request, "--use_liger_kernel"));
  CHECK(WriteFormat(request).launch == "torchrun --nproc_per_node 2 train.py");
  request.recipe.code = CodeStyle::kLiger;
  request.recipe.optimizer = TorchOptimizer::kPagedAdamW8bit;
  request.recipe.compile = {true, true};
  request.setup.recompute = FullRecompute();
  request.short_of_memory = true;
  for (const char* argument : {"--use_liger_kernel", "--optim paged_adamw_8bit", "--torch_compile",
                               "--gradient_checkpointing",
                               "--gradient_checkpointing_kwargs '{\"use_reentrant\": false}'"}) {
    CAPTURE(argument);
    CHECK(Takes(request, argument));
  }
  const WrittenConfig written = WriteFormat(request);
  CHECK(written.launch ==
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True torchrun --nproc_per_node 2 train.py");
  // The file is TrainingArguments themselves.
  const auto json = nlohmann::json::parse(written.files.at(0).text);
  CHECK(json["optim"] == "paged_adamw_8bit");
  CHECK(json["use_liger_kernel"] == true);
  CHECK(json["gradient_checkpointing_kwargs"]["use_reentrant"] == false);
  CHECK(json["_zeroplan"]["code"] == "liger");

  // An optimizer of the Trainer's takes the place of DeepSpeed's.
  FormatRequest deepspeed = ScriptRequest(ConfigFormat::kHfTrainer, DeepSpeedRuntime());
  deepspeed.setup.zero.stage = 2;
  CHECK(nlohmann::json::parse(WriteFormat(deepspeed).files.at(0).text).contains("optimizer"));
  deepspeed.recipe.optimizer = TorchOptimizer::kAdamW8bit;
  CHECK_FALSE(nlohmann::json::parse(WriteFormat(deepspeed).files.at(0).text).contains("optimizer"));
  CHECK(Takes(deepspeed, "--optim adamw_bnb_8bit"));
}

TEST_CASE("formats: accelerate's script makes the optimizer and switches recompute on") {
  FormatRequest request = ScriptRequest(ConfigFormat::kAccelerate, DdpRuntime());
  request.recipe.code = CodeStyle::kLiger;
  request.recipe.optimizer = TorchOptimizer::kAdamWTorchao8bit;
  request.setup.recompute = FullRecompute();
  CHECK(ScriptOf(request) ==
        "import torchao\n"
        "import torch\n"
        "from liger_kernel.transformers import AutoLigerKernelForCausalLM\n"
        "model = AutoLigerKernelForCausalLM.from_pretrained(\n"
        "    MODEL, dtype=torch.bfloat16, attn_implementation=\"sdpa\")\n"
        "model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={\"use_reentrant\": "
        "False})\n"
        "trained = [p for p in model.parameters() if p.requires_grad]\n"
        "optimizer = torchao.optim.AdamW8bit(trained, lr=LR)\n");
  const std::string yaml = WriteFormat(request).files.at(0).text;
  CHECK(Has(yaml, wording::kDistributedTypeMultiGpuMixed));
  request.setup.batch.world_size = 1;
  request.cluster = {1, 8};
  CHECK(Has(WriteFormat(request).files.at(0).text, wording::kDistributedTypeNo));
  // FSDP2's recompute is a key, DeepSpeed's optimizer the config's.
  FormatRequest fsdp2 = ScriptRequest(ConfigFormat::kAccelerate, Fsdp2Runtime());
  fsdp2.setup.recompute = FullRecompute();
  CHECK(Lacks(ScriptOf(fsdp2), "gradient_checkpointing"));
  CHECK(Has(ScriptOf(fsdp2), wording::kOptimizerTorchOptimAdamwTrained));
  FormatRequest deepspeed = ScriptRequest(ConfigFormat::kAccelerate, DeepSpeedRuntime());
  CHECK(Lacks(ScriptOf(deepspeed), "optimizer"));
}

TEST_CASE("formats: adapters are PEFT's, and TRL's arguments") {
  FormatRequest request = ScriptRequest(ConfigFormat::kHfTrainer, DdpRuntime());
  Adapt(request.model, /*quantized=*/false);
  CHECK(Has(ScriptOf(request), wording::kLoraLoraconfigLoraAlphaLora));
  request.model.lora_targets = "q_proj,v_proj";
  request.model.lora_dropout = 0.05F;
  request.model.lora_rslora = true;
  request.recipe.param_dtype = Dtype::kBF16;
  CHECK(Has(ScriptOf(request), wording::kLoraDropoutBias));
  CHECK(Has(ScriptOf(request), wording::kTargetModulesProjProjUse));
  CHECK(Has(ScriptOf(request), wording::kGetPeftModelModelLora));
  CHECK(Has(WriteFormat(request).notes.at(2), wording::kProjProjBfloatSdpa));

  Adapt(request.model, /*quantized=*/true);
  request.recipe.param_dtype.reset();
  CHECK(Has(ScriptOf(request), wording::kQuantizationConfigBitsandbytesconfigLoadIn));
  CHECK(Has(ScriptOf(request), wording::kGetPeftModelModelLora2));
  CHECK(Lacks(ScriptOf(request), "kbit"));
  CHECK(Has(WriteFormat(request).notes.at(2), "--load_in_4bit"));
  request.recipe.kbit = true;
  CHECK(Has(ScriptOf(request), wording::kModelPrepareModelForKbit));
  request.recipe.kbit = false;
  // What DeepSpeed trains is in 16 bit.
  FormatRequest deepspeed = ScriptRequest(ConfigFormat::kHfTrainer, DeepSpeedRuntime());
  deepspeed.setup.zero.stage = 3;
  Adapt(deepspeed.model, /*quantized=*/false);
  CHECK(Has(ScriptOf(deepspeed), wording::kGetPeftModelModelLora));
}

TEST_CASE("formats: 4-bit weights under FSDP2 are packed in what is sharded") {
  FormatRequest request = ScriptRequest(ConfigFormat::kAccelerate, Fsdp2Runtime());
  Adapt(request.model, /*quantized=*/true);
  CHECK(Has(ScriptOf(request), wording::kComputeDtypeBfloatQuantStorage));
  CHECK(Lacks(ScriptOf(request), "device_map"));
  request.quantizes_on_host = true;
  CHECK(Has(ScriptOf(request), "    device_map={\"\": \"cpu\"},\n"));
  request.recipe.quant_storage = Dtype::kU8;
  CHECK(Lacks(ScriptOf(request), "quant_storage"));
  // accelerate casts no adapters of a model with 4-bit weights.
  request.recipe.param_dtype = Dtype::kBF16;
  CHECK(Has(ScriptOf(request), wording::kPDataPDataTo));
  FormatRequest ddp = ScriptRequest(ConfigFormat::kHfTrainer, DdpRuntime());
  Adapt(ddp.model, /*quantized=*/true);
  CHECK(Lacks(ScriptOf(ddp), "quant_storage"));
  ddp.recipe.quant_storage = Dtype::kBF16;
  CHECK(Has(ScriptOf(ddp), wording::kComputeDtypeBfloatQuantStorage));
  CHECK(Has(WriteFormat(ddp).notes.at(2), "--bnb_4bit_quant_storage bfloat16"));
  // Logs are read by the same names.
  for (const char* name : {"bnb_4bit_quant_storage", "bnb_4bit_quant_storage_dtype"}) {
    CAPTURE(name);
    const ProgramOption* option = FindOption(name);
    REQUIRE(option != nullptr);
    CHECK(option->field == "⟦quant_storage⟧");
    for (const auto& [word, dtype] : kQuantStorageWords) {
      CHECK(TextOfOption(name, TorchDtypeName(dtype)) == word);
    }
  }
}

TEST_CASE("formats: what a recipe has no words for is named") {
  const auto error = [](FormatRequest request) {
    return ErrorOf(ExitCode::kUsage, [&] { WriteFormat(request); });
  };
  FormatRequest trainer = ScriptRequest(ConfigFormat::kHfTrainer, DdpRuntime());
  trainer.recipe.code = CodeStyle::kTorchtune;
  CHECK(Has(error(trainer), wording::kTorchtuneWhatItLoadsIs));
  trainer.recipe.code = CodeStyle::kHf;
  trainer.recipe.optimizer_in_backward = true;
  CHECK(Has(error(trainer), wording::kForWhichItHasNo));
  FormatRequest titan = ScriptRequest(ConfigFormat::kTorchtitan, Fsdp2Runtime());
  titan.setup.precision.fp32_reduction = true;
  CHECK(Has(error(titan), wording::kHfItTrainsItsOwn));
  titan.recipe.code = CodeStyle::kTorchtitan;
  titan.recipe.optimizer = TorchOptimizer::kAdamW;
  titan.recipe.optimizer_in_backward = true;
  CHECK(Has(WriteFormat(titan).files.at(0).text, wording::kImplementationForeachEarlyStepIn));
  titan.recipe.optimizer = TorchOptimizer::kAdamW8bit;
  CHECK(Has(error(titan), wording::kAdamwBnbBitItHas));
  // The Trainer shards a model with adapters as one group; accelerate does not.
  FormatRequest adapters = ScriptRequest(ConfigFormat::kHfTrainer, Fsdp2Runtime());
  Adapt(adapters.model, /*quantized=*/false);
  CHECK(Has(error(adapters), wording::kAdaptersTheTrainerThenShards));
  adapters.format = ConfigFormat::kAccelerate;
  CHECK(WriteFormat(adapters).files.size() == 1);
}

}  // namespace
}  // namespace zeroplan
