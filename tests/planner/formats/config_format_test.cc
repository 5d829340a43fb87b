#include "planner/formats/config_format.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/config/deepspeed_reader.h"
#include "core/config/deepspeed_writer.h"
#include "core/families/load_model.h"
#include "planner/runtimes/runtimes.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

using Json = nlohmann::json;
bool HasLine(const std::string& text, const std::string& line) {
  return Has("\n" + text, "\n" + line + "\n");
}
bool HasArgument(const WrittenConfig& written, const std::string& argument) {
  return std::count(written.arguments.begin(), written.arguments.end(), argument) == 1;
}

// 4 sequences x 2 micro-steps x 8 GPUs of one host.
FormatRequest Request(ConfigFormat format, const Runtime& runtime, int stage) {
  FormatRequest request;
  request.format = format;
  request.runtime = &runtime;
  request.runtime_name = runtime.version();
  request.model = LoadModel("llama3.1-8b");
  request.setup.batch = {4, 2, 8, 2048};
  request.setup.zero.stage = stage;
  request.setup.zero.reduce_bucket_elements = 200'000'000;
  request.setup.zero.prefetch_bucket_elements = 30'000'000;
  request.setup.zero.max_live_parameters = 900'000'000;
  request.cluster = {8, 8};
  request.file = "run.yaml";
  return request;
}
FormatRequest ForDeepSpeed(ConfigFormat format, int stage = 2) {
  return Request(format, DeepSpeedRuntime(), stage);
}
FormatRequest ForFsdp2(ConfigFormat format, int stage = 3) {
  FormatRequest request = Request(format, Fsdp2Runtime(), stage);
  request.setup.precision.fp32_reduction = format == ConfigFormat::kTorchtitan;
  return request;
}

// `text` came in, and was read for the setup.
struct FromConfig {
  FromConfig(ConfigFormat format, const std::string& text)
      : incoming(ParseJsonText(text, "in.json")), request(ForDeepSpeed(format)) {
    ReadContext context;
    context.world_size = 8;
    context.seq_len = 2048;
    context.layers = request.model.layers;
    request.setup = ReadDeepSpeedConfig(text, "in.json", context).setup;
    request.incoming = &incoming;
  }
  JsonNode incoming;
  FormatRequest request;
};

TEST_CASE("formats: DeepSpeed's own file says the setup, and whose it is") {
  FormatRequest request = ForDeepSpeed(ConfigFormat::kDeepSpeed, 3);
  request.file = "ds.json";
  request.recipe.compile = {true, true};
  const WrittenConfig written = WriteFormat(request);
  REQUIRE(written.files.size() == 1);
  CHECK(written.files[0].path == "ds.json");
  CHECK(written.Command().empty());
  const Json json = Json::parse(written.files[0].text);
  CHECK(json["_zeroplan"] == Json{{"runtime", "deepspeed 0.19.6"}, {"compile", "all"}});
  Json plain = Json::parse(WriteDeepSpeedConfig(request.setup, request.model.layers));
  plain["_zeroplan"] = json["_zeroplan"];
  CHECK(json == plain);
  CHECK(json["train_batch_size"] == 64);
}

TEST_CASE("formats: an optimizer that the script makes has no section in DeepSpeed's file") {
  const std::string came_in = R"({"train_batch_size": 8, "zero_optimization": {"stage": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}}})";
  for (const ConfigFormat format :
       {ConfigFormat::kDeepSpeed, ConfigFormat::kHfTrainer, ConfigFormat::kAccelerate}) {
    CAPTURE(ConfigFormatName(format));
    FromConfig from(format, came_in);
    from.request.recipe.optimizer = TorchOptimizer::kAdamW8bit;
    const WrittenConfig written = WriteFormat(from.request);
    const Json json = Json::parse(written.files.back().text);
    CHECK_FALSE(json.contains("optimizer"));
    CHECK(json.contains("scheduler") == (format != ConfigFormat::kAccelerate));
    CHECK(json["zero_allow_untested_optimizer"] == true);
    from.request.recipe.optimizer = TorchOptimizer::kAdamW;
    CHECK_FALSE(Json::parse(WriteFormat(from.request).files.back().text)
                    .contains("zero_allow_untested_optimizer"));
    if (format != ConfigFormat::kDeepSpeed) continue;
    CHECK(written.script ==
          std::vector<std::string>{"import bitsandbytes", "import deepspeed",
                                   "trained = [p for p in model.parameters() if p.requires_grad]",
                                   "optimizer = bitsandbytes.optim.AdamW8bit(trained, lr=LR)",
                                   "engine, *_ = deepspeed.initialize(",
                                   "    model=model, optimizer=optimizer, config=\"run.yaml\")"});
  }
}

TEST_CASE("formats: hf-trainer leaves to TrainingArguments what it owns, and names it") {
  FormatRequest request = ForDeepSpeed(ConfigFormat::kHfTrainer, 3);
  request.file = "my configs/ds.json";
  request.setup.recompute = FullRecompute();
  const WrittenConfig written = WriteFormat(request);
  const Json json = Json::parse(written.files.at(0).text);
  for (const char* key : {"train_batch_size", "train_micro_batch_size_per_gpu",
                          "gradient_accumulation_steps", "gradient_clipping"}) {
    CAPTURE(key);
    CHECK(json[key] == "auto");
  }
  CHECK(json["bf16"] == Json{{"enabled", "auto"}});
  CHECK(json["fp16"] == Json{{"enabled", "auto"}});
  CHECK(json["optimizer"]["type"] == "AdamW");
  CHECK(json["optimizer"]["params"] ==
        Json{{"lr", "auto"}, {"betas", "auto"}, {"eps", "auto"}, {"weight_decay", "auto"}});
  CHECK_FALSE(json.contains("scheduler"));
  // What the plan decided is not left to anyone.
  CHECK(json["zero_optimization"]["stage"] == 3);
  CHECK(json["zero_optimization"]["reduce_bucket_size"] == 200'000'000);
  CHECK(json["zero_optimization"]["stage3_prefetch_bucket_size"] == 30'000'000);

  CHECK(written.launch == "torchrun --nproc_per_node 8 train.py");
  CHECK(written.arguments == std::vector<std::string>{"--deepspeed 'my configs/ds.json'",
                                                      "--per_device_train_batch_size 4",
                                                      "--gradient_accumulation_steps 2",
                                                      "--bf16 true", "--gradient_checkpointing",
                                                      "--gradient_checkpointing_kwargs "
                                                      "'{\"use_reentrant\": false}'"});
  CHECK(written.Command() ==
        "torchrun --nproc_per_node 8 train.py \\\n  --deepspeed 'my configs/ds.json' \\\n"
        "  --per_device_train_batch_size 4 \\\n  --gradient_accumulation_steps 2 \\\n  --bf16 true "
        "\\\n"
        "  --gradient_checkpointing \\\n"
        "  --gradient_checkpointing_kwargs '{\"use_reentrant\": false}'");
  REQUIRE(written.notes.size() == 2);
  CHECK(written.notes[0] ==
        "No config says learning_rate, adam_beta1, adam_beta2, adam_epsilon, weight_decay, "
        "max_grad_norm, lr_scheduler_type: TrainingArguments' own hold.");
  CHECK(Has(written.notes[1], wording::kSequencesOfTokensStepOn));
}

TEST_CASE("formats: hf-trainer prints what the config said") {
  FromConfig from(ConfigFormat::kHfTrainer, R"({"train_micro_batch_size_per_gpu": 3,
    "gradient_accumulation_steps": 5, "fp16": {"enabled": true, "loss_scale_window": 200},
    "zero_optimization": {"stage": 1}, "gradient_clipping": 0.5, "wandb": {"enabled": false},
    "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.8, 0.95], "eps": 1e-7}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_max_lr": 2e-4,
      "warmup_num_steps": 40, "total_num_steps": 900, "warmup_type": "linear"}}})");
  const WrittenConfig written = WriteFormat(from.request);
  for (const char* argument :
       {"--per_device_train_batch_size 3", "--gradient_accumulation_steps 5", "--fp16 true",
        "--learning_rate 0.0002", "--adam_beta1 0.8", "--adam_beta2 0.95", "--adam_epsilon 1e-07",
        "--max_grad_norm 0.5", "--warmup_steps 40", "--max_steps 900"}) {
    CAPTURE(argument);
    CHECK(HasArgument(written, argument));
  }
  CHECK(written.arguments.size() == 11);  // with --deepspeed
  CHECK(Has(written.notes[0], wording::kNoConfigSaysWeightDecay));
  const Json json = Json::parse(written.files.at(0).text);
  CHECK(json["scheduler"] == Json{{"type", "WarmupDecayLR"},
                                  {"params",
                                   {{"total_num_steps", "auto"},
                                    {"warmup_min_lr", "auto"},
                                    {"warmup_max_lr", "auto"},
                                    {"warmup_num_steps", "auto"},
                                    {"warmup_type", "linear"}}}});
  CHECK(json["fp16"]["enabled"] == "auto");
  CHECK(json["fp16"]["loss_scale_window"] == 200);
  CHECK(json["wandb"] == Json{{"enabled", false}});

  // A rate without a schedule is that rate throughout, which is not the Trainer's default.
  FromConfig constant(ConfigFormat::kHfTrainer,
                      R"({"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"lr": 0.5,
                          "adam_w_mode": false}}})");
  const WrittenConfig steady = WriteFormat(constant.request);
  CHECK(HasArgument(steady, "--learning_rate 0.5"));
  CHECK(HasArgument(steady, "--lr_scheduler_type constant"));
  CHECK(Json::parse(steady.files.at(0).text)["optimizer"]["params"]["adam_w_mode"] == false);
  CHECK_FALSE(HasArgument(steady, "--bf16 true"));

  // The run's length may be left to the Trainer, which DeepSpeed alone cannot do.
  FromConfig open(ConfigFormat::kHfTrainer,
                  R"({"train_batch_size": 8, "scheduler": {"type": "WarmupCosineLR", "params":
                      {"total_num_steps": "auto", "warmup_num_steps": "auto"}}})");
  CHECK(DeepSpeedRuntime().FormatCannot(ConfigFormat::kDeepSpeed, open.request.setup) ==
        "a schedule without total_num_steps");
  const WrittenConfig length = WriteFormat(open.request);
  CHECK(Json::parse(length.files.at(0).text)["scheduler"]["params"]["total_num_steps"] == "auto");
  CHECK(Has(length.notes[0], wording::kWarmupStepsMaxSteps));
}

TEST_CASE("formats: hf-trainer with FSDP2") {
  FormatRequest request = ForFsdp2(ConfigFormat::kHfTrainer, 2);
  request.recipe.compile = {true, false};
  request.file = "fsdp.json";
  const WrittenConfig written = WriteFormat(request);
  const Json json = Json::parse(written.files.at(0).text);
  CHECK(json == Json{{"version", 2},
                     {"reshard_after_forward", false},
                     {"cpu_offload", false},
                     {"auto_wrap_policy", "TRANSFORMER_BASED_WRAP"},
                     {"activation_checkpointing", false},
                     {"_zeroplan", {{"runtime", "fsdp2 of PyTorch 2.11"}, {"compile", "layers"}}}});
  CHECK(written.launch ==
        "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION=true torchrun --nproc_per_node 8 train.py");
  CHECK(written.arguments == std::vector<std::string>{"--fsdp", "--fsdp_config fsdp.json",
                                                      "--per_device_train_batch_size 4",
                                                      "--gradient_accumulation_steps 2",
                                                      "--bf16 true", "--optim adamw_torch_fused",
                                                      "--torch_compile"});
  // With one micro-step there is nothing to keep.
  request.setup.batch.grad_accum = 1;
  for (const std::string& argument : WriteFormat(request).arguments) {
    CHECK(Lacks(argument, "accelerator_config"));
  }
}

TEST_CASE("formats: accelerate with DeepSpeed points to a JSON that has everything") {
  FormatRequest request = ForDeepSpeed(ConfigFormat::kAccelerate, 3);
  request.file = "a b/run.yaml";
  request.recipe.compile = {true, false};
  const WrittenConfig written = WriteFormat(request);
  REQUIRE(written.files.size() == 2);
  CHECK(FormatFiles(request.format, *request.runtime, request.file) ==
        std::vector<std::string>{"a b/run.yaml", "a b/run.deepspeed.json"});
  CHECK(written.files[1].path == "a b/run.deepspeed.json");
  CHECK(written.files[0].text ==
        "# accelerate 1.15, DeepSpeed: llama3.1-8b, 64 sequences of 2048 tokens a step on 8 GPUs; "
        "planned by zeroplan\n"
        "compute_environment: LOCAL_MACHINE\n"
        "distributed_type: DEEPSPEED\n"
        "deepspeed_config:\n"
        "  deepspeed_config_file: \"a b/run.deepspeed.json\"\n"
        "  zero3_init_flag: true\n"
        "machine_rank: 0\n"
        "num_machines: 1\n"
        "num_processes: 8\n");
  const Json json = Json::parse(written.files[1].text);
  CHECK(json["train_batch_size"] == 64);
  CHECK(json["train_micro_batch_size_per_gpu"] == 4);
  CHECK(json["gradient_accumulation_steps"] == 2);
  CHECK(json["zero_optimization"]["stage3_prefetch_bucket_size"] == 30'000'000);
  CHECK(json["bf16"]["enabled"] == true);
  // The script's to say, as no config does.
  CHECK(json["optimizer"]["params"]["lr"] == "auto");
  CHECK(json["optimizer"]["params"]["weight_decay"] == "auto");
  CHECK(json["optimizer"]["params"]["betas"] == Json{0.9, 0.999});
  CHECK(Has(written.notes.back(), wording::kAcceleratorGradientAccumulationStepsWhich));
  CHECK(written.Command() ==
        "ACCELERATE_DYNAMO_BACKEND=INDUCTOR ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION=true "
        "accelerate launch --config_file 'a b/run.yaml' train.py");

  FromConfig from(ConfigFormat::kAccelerate,
                  R"({"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": 0.25}},
                      "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 30}}})");
  const Json said = Json::parse(WriteFormat(from.request).files.at(1).text);
  CHECK(said["optimizer"]["params"]["lr"] == 0.25);
  CHECK(said["scheduler"]["params"]["warmup_num_steps"] == 30);
  CHECK(said["scheduler"]["params"]["warmup_max_lr"] == "auto");
}

TEST_CASE("formats: sequences over GPUs are a key of DeepSpeed's and an argument of accelerate's") {
  FormatRequest request = ForDeepSpeed(ConfigFormat::kAccelerate, 3);
  request.setup.batch = {1, 2, 8, 65536};
  request.setup.batch.sequence_ranks = 4;
  request.recipe.attention = TorchAttention::kFlash;
  const WrittenConfig written = WriteFormat(request);
  const Json json = Json::parse(written.files[1].text);
  CHECK(json["sequence_parallel_size"] == 4);
  CHECK(json["seq_parallel_communication_data_type"] == "bf16");
  CHECK(json["train_batch_size"] == 4);
  CHECK(Has(written.notes.back(), wording::kGradientAccumulationStepsParallelismConfig));
  request.setup.batch.sequence_ranks = 1;
  CHECK(!Json::parse(WriteFormat(request).files[1].text)
             .contains("seq_parallel_communication_data_type"));
  request.setup.batch.sequence_ranks = 4;
  request.format = ConfigFormat::kHfTrainer;
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { WriteFormat(request); }), "a ParallelismConfig"));
  request.setup.batch.sequence_ranks = 1;
  request.recipe.tiled_mlp = true;
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { WriteFormat(request); }), "⟦tiled_mlp⟧"));
}

TEST_CASE("formats: sequences over GPUs with FSDP2 are keys of torchtitan's and accelerate's") {
  const auto shared = [](FormatRequest request, const char* file) {
    request.setup.batch = {1, 1, 8, 65536};
    request.setup.batch.sequence_ranks = 4;
    request.file = file;
    return request;
  };
  const std::string toml =
      WriteFormat(shared(ForFsdp2(ConfigFormat::kTorchtitan), "run.toml")).files[0].text;
  CHECK(HasLine(toml, "data_parallel_shard_degree = 2"));
  CHECK(HasLine(toml, "context_parallel_degree = 4"));
  CHECK(HasLine(toml, "context_parallel_rotate_method = \"allgather\""));
  CHECK(HasLine(toml, "global_batch_size = 2"));
  const std::string yaml =
      WriteFormat(shared(ForFsdp2(ConfigFormat::kAccelerate), "run.yaml")).files[0].text;
  CHECK(HasLine(yaml, "  parallelism_config_dp_shard_size: 2"));
  CHECK(HasLine(yaml, "  parallelism_config_cp_size: 4"));
  CHECK(HasLine(yaml, "  parallelism_config_cp_comm_strategy: allgather"));
  const FormatRequest trainer = shared(ForFsdp2(ConfigFormat::kHfTrainer), "run.json");
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { WriteFormat(trainer); }), wording::kSequencesOverGpus));
}

TEST_CASE("formats: accelerate with FSDP2") {
  FormatRequest request = ForFsdp2(ConfigFormat::kAccelerate);
  request.setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
  request.setup.zero.offload_param.device = OffloadDevice::kCpu;
  request.setup.recompute = FullRecompute();
  request.recipe.compile = {true, true};
  request.cluster = {16, 8};
  request.setup.batch.world_size = 16;
  const WrittenConfig written = WriteFormat(request);
  REQUIRE(written.files.size() == 1);
  CHECK(written.files[0].text ==
        "# accelerate 1.15, FSDP2: llama3.1-8b, 128 sequences of 2048 tokens a step on 16 GPUs; "
        "planned by zeroplan\n"
        "compute_environment: LOCAL_MACHINE\n"
        "distributed_type: FSDP\n"
        "mixed_precision: \"bf16\"\n"
        "fsdp_config:\n"
        "  fsdp_version: 2\n"
        "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
        "  fsdp_reshard_after_forward: true\n"
        "  fsdp_offload_params: true\n"
        "  fsdp_activation_checkpointing: true\n"
        "dynamo_config:\n"
        "  dynamo_backend: INDUCTOR\n"
        "  dynamo_use_regional_compilation: false\n"
        "machine_rank: 0\n"
        "num_machines: 2\n"
        "num_processes: 16\n"
        "rdzv_backend: static\n"
        "same_network: true\n");
  CHECK(Has(written.Command(), "--machine_rank RANK --main_process_ip HOST"));
  CHECK(Has(written.notes.back(), wording::kDataloaderBatchSizeAndAccelerator));
  request.setup.batch.grad_accum = 1;
  CHECK(
      Has(WriteFormat(request).notes.back(), wording::kAcceleratorGradientAccumulationStepsWhich2));
  FormatRequest full = ForFsdp2(ConfigFormat::kAccelerate, 2);
  full.setup.precision.dtype = full.setup.precision.grad_accum_dtype = Dtype::kF32;
  const std::string text = WriteFormat(full).files.at(0).text;
  CHECK(HasLine(text, "mixed_precision: \"no\""));
  CHECK(HasLine(text, "  fsdp_reshard_after_forward: false"));
}

TEST_CASE("formats: torchtitan") {
  FormatRequest request = ForFsdp2(ConfigFormat::kTorchtitan);
  request.file = "run.toml";
  request.recipe.compile = {true, false};
  request.setup.recompute = FullRecompute();
  request.setup.deterministic = true;
  const WrittenConfig written = WriteFormat(request);
  CHECK(written.files.at(0).text ==
        "# torchtitan 0.2.2, FSDP2: llama3.1-8b, 64 sequences of 2048 tokens a step on 8 GPUs; "
        "planned by zeroplan\n"
        "[job]\ndescription = \"llama3.1-8b, FSDP2, planned by zeroplan\"\n\n"
        "[model]\nname = \"llama3\"\nflavor = \"8B\"\n\n"
        "[training]\nlocal_batch_size = 4\nglobal_batch_size = 64\nseq_len = 2048\n"
        "dtype = \"float32\"\nmixed_precision_param = \"bfloat16\"\n"
        "mixed_precision_reduce = \"float32\"\nenable_cpu_offload = false\n\n"
        "[parallelism]\ndata_parallel_replicate_degree = 1\ndata_parallel_shard_degree = 8\n"
        "fsdp_reshard_after_forward = \"always\"\ntensor_parallel_degree = 1\n"
        "pipeline_parallel_degree = 1\ncontext_parallel_degree = 1\n\n"
        "[activation_checkpoint]\nmode = \"full\"\nearly_stop = true\n\n"
        "[compile]\nenable = true\ncomponents = [\"model\"]\n\n"
        "[optimizer]\nname = \"AdamW\"\nimplementation = \"fused\"\n\n"
        "[debug]\ndeterministic = true\n");
  CHECK(written.Command() ==
        "torchrun --nproc_per_node 8 -m torchtitan.train --job.config_file run.toml");
  CHECK(written.notes.size() == 3);

  request.setup.recompute = kSelectiveRecompute;
  CHECK(Has(WriteFormat(request).files.at(0).text,
            wording::kActivationCheckpointModeSelectiveSelective));

  FormatRequest other = ForFsdp2(ConfigFormat::kTorchtitan, 2);
  other.model = LoadModel("gpt2-xl");
  other.cluster = {16, 8};
  other.setup.batch.world_size = 16;
  const WrittenConfig unknown = WriteFormat(other);
  const std::string& text = unknown.files.at(0).text;
  CHECK(Lacks(text, "[model]"));
  CHECK(HasLine(text, "fsdp_reshard_after_forward = \"never\""));
  CHECK(HasLine(text, "enable = false"));
  CHECK(HasLine(text, "mode = \"none\""));
  CHECK(Has(unknown.notes.at(0), wording::kNoModelOfTheShape));
  CHECK(Has(unknown.launch, "torchrun --nnodes 2 --nproc_per_node 8 --rdzv_backend c10d"));
}

TEST_CASE("formats: products in FP8 are torchao's, where a format has keys for them") {
  const auto fp8 = [](FormatRequest request, std::optional<TorchFloat8> recipe = std::nullopt) {
    request.setup.precision.fp8.enabled = true;
    request.recipe.compile.layers = true;
    request.recipe.float8 = recipe;
    return request;
  };
  FormatRequest titan = ForFsdp2(ConfigFormat::kTorchtitan);
  titan.file = "run.toml";
  const std::string toml = WriteFormat(fp8(titan, TorchFloat8::kTensorwiseGathers)).files[0].text;
  CHECK(Has(toml, wording::kModelNameLlamaFlavorConverters));
  CHECK(HasLine(WriteFormat(fp8(titan)).files[0].text, "enable_fsdp_float8_all_gather = false"));
  // torchtitan 0.2.2 refuses a recipe beside gathers in 8 bits, so neither key of these is there.
  const std::string rows = WriteFormat(fp8(titan, TorchFloat8::kRowwise)).files[0].text;
  CHECK(HasLine(rows, "recipe_name = \"rowwise\""));
  CHECK(Lacks(rows, "all_gather"));

  const FormatRequest accelerate = ForFsdp2(ConfigFormat::kAccelerate);
  const std::string yaml =
      WriteFormat(fp8(accelerate, TorchFloat8::kTensorwiseGathers)).files[0].text;
  CHECK(Has(yaml, wording::kMixedPrecisionFpFpConfig));
  CHECK(HasLine(yaml, "  fsdp_cpu_ram_efficient_loading: false"));
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { WriteFormat(fp8(accelerate, TorchFloat8::kRowwise)); }),
            "rowwise"));
  FormatRequest ddp = Request(ConfigFormat::kAccelerate, DdpRuntime(), 0);
  CHECK(HasLine(WriteFormat(fp8(ddp)).files[0].text, "  enable_fsdp_float8_all_gather: false"));
  for (FormatRequest trainer :
       {ForFsdp2(ConfigFormat::kHfTrainer), Request(ConfigFormat::kHfTrainer, DdpRuntime(), 0)}) {
    trainer.file = "run.json";
    CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { WriteFormat(fp8(trainer)); }),
              "TrainingArguments have no argument"));
  }
}

TEST_CASE("formats: torchtitan's flavours are those of its models") {
  const auto flavor = [](const char* model) {
    FormatRequest request = ForFsdp2(ConfigFormat::kTorchtitan);
    request.model = LoadModel(model);
    const std::string text = WriteFormat(request).files.at(0).text;
    const size_t at = text.find("[model]\n");
    return at == std::string::npos ? "" : text.substr(at + 8, text.find("\n\n", at) - at - 8);
  };
  CHECK(flavor("llama3.1-405b") == "name = \"llama3\"\nflavor = \"405B\"");
  CHECK(flavor("qwen3-0.6b") == "name = \"qwen3\"\nflavor = \"0.6B\"");
  CHECK(flavor("qwen3-32b") == "name = \"qwen3\"\nflavor = \"32B\"");
  // The same layers and width, another vocabulary or family.
  CHECK(flavor("llama2-70b") == "");
  CHECK(flavor("mistral-nemo-12b") == "");
  CHECK(flavor("qwen2.5-72b") == "");
}

TEST_CASE("formats: shard groups") {
  const auto groups = [](FormatRequest request, int across_stage) {
    request.setup.batch.world_size = 32;
    request.cluster = {32, 8};
    request.setup.zero.shard_group = 8;
    request.setup.zero.across_stage = across_stage;
    return request;
  };
  FormatRequest titan = groups(ForFsdp2(ConfigFormat::kTorchtitan), 0);
  titan.file = "run.toml";
  const std::string toml = WriteFormat(titan).files[0].text;
  CHECK(HasLine(toml, "data_parallel_replicate_degree = 4"));
  CHECK(HasLine(toml, "data_parallel_shard_degree = 8"));
  const auto accelerate = groups(ForFsdp2(ConfigFormat::kAccelerate), 0);
  const std::string yaml = WriteFormat(accelerate).files[0].text;
  CHECK(HasLine(yaml, "parallelism_config:"));
  CHECK(HasLine(yaml, "  parallelism_config_dp_replicate_size: 4"));
  CHECK(HasLine(yaml, "  parallelism_config_dp_shard_size: 8"));
  CHECK(Lacks(WriteFormat(ForFsdp2(ConfigFormat::kAccelerate)).files[0].text, "parallelism"));
  // MiCS takes no model that was made under deepspeed.zero.Init.
  for (const int across_stage : {0, 2}) {
    const WrittenConfig written =
        WriteFormat(groups(ForDeepSpeed(ConfigFormat::kAccelerate, 3), across_stage));
    CHECK(HasLine(written.files[0].text,
                  across_stage == 0 ? "  zero3_init_flag: false" : "  zero3_init_flag: true"));
    const Json zero = Json::parse(written.files[1].text).at("zero_optimization");
    CHECK(zero.value("mics_shard_size", -1) == (across_stage == 0 ? 8 : -1));
    CHECK(zero.value("zero_hpz_partition_size", 1) == (across_stage == 0 ? 1 : 8));
  }
  FormatRequest trainer = groups(ForDeepSpeed(ConfigFormat::kHfTrainer, 3), 0);
  trainer.file = "run.json";
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { WriteFormat(trainer); }), wording::kMicsShardSize));
  trainer = groups(ForFsdp2(ConfigFormat::kHfTrainer), 0);
  trainer.file = "run.json";
  CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { WriteFormat(trainer); }), "shard groups"));
}

TEST_CASE("formats: what each cannot say is named") {
  const auto cannot = [](FormatRequest request, const auto& change) {
    change(request.setup);
    return request.runtime->FormatCannot(request.format, request.setup);
  };
  const auto none = [](TrainSetup&) {};
  for (ConfigFormat format :
       {ConfigFormat::kHfTrainer, ConfigFormat::kAccelerate, ConfigFormat::kTorchtitan}) {
    CAPTURE(ConfigFormatName(format));
    CHECK(cannot(ForFsdp2(format), none) == "");
    CHECK(cannot(ForFsdp2(format, 1), none) ==
          "stage 1 (FSDP2 is stage 3, or 2 without resharding)");
    CHECK(cannot(ForFsdp2(format), [](TrainSetup& s) {
            s.zero.offload_optimizer.device = OffloadDevice::kCpu;
          }) == "offload of parameters or optimizer alone (FSDP2 moves both or none)");
    CHECK(cannot(ForFsdp2(format), [](TrainSetup& s) {
            s.zero.offload_optimizer.device = s.zero.offload_param.device = OffloadDevice::kNvme;
          }) == "offload to NVMe");
    CHECK(cannot(ForFsdp2(format), [](TrainSetup& s) {
            s.zero.offload_optimizer = {.device = OffloadDevice::kCpu, .ratio = 0.5};
            s.zero.offload_param.device = OffloadDevice::kCpu;
          }) == "offload of 0.5 of the optimizer");
    CHECK(cannot(ForFsdp2(format), [](TrainSetup& s) { s.recompute = kSelectiveRecompute; }) ==
          (format == ConfigFormat::kTorchtitan ? "" : "selective recompute"));
    CHECK(cannot(ForFsdp2(format), [](TrainSetup& s) { s.recompute = FullRecompute(2); }) ==
          "recompute of 2 layers at a time");
  }
  const auto flip_reduction = [](TrainSetup& s) {
    s.precision.fp32_reduction = !s.precision.fp32_reduction;
  };
  CHECK(cannot(ForFsdp2(ConfigFormat::kTorchtitan), flip_reduction) ==
        "reduction of gradients in bf16 (it reduces in fp32)");
  CHECK(cannot(ForFsdp2(ConfigFormat::kAccelerate), flip_reduction) ==
        "fp32 reduction of gradients");
  CHECK(cannot(ForFsdp2(ConfigFormat::kHfTrainer), flip_reduction) ==
        "fp32 reduction of gradients");
  CHECK(cannot(ForFsdp2(ConfigFormat::kTorchtitan), [](TrainSetup& s) {
          s.batch.world_size = 1;
        }) == "one GPU (it shards on two or more)");
  CHECK(cannot(ForFsdp2(ConfigFormat::kTorchtitan), [](TrainSetup& s) {
          s.precision.dtype = s.precision.grad_accum_dtype = Dtype::kF16;
        }) == "fp16 (it has bf16 and fp32)");
  const auto fixed_scale = [](TrainSetup& s) {
    s.precision.dtype = s.precision.grad_accum_dtype = Dtype::kF16;
    s.precision.loss_scale = 8;
  };
  CHECK(cannot(ForFsdp2(ConfigFormat::kAccelerate), fixed_scale) == "a fixed loss scale");
  const auto deterministic = [](TrainSetup& s) { s.deterministic = true; };
  CHECK(cannot(ForFsdp2(ConfigFormat::kTorchtitan), deterministic) == "");
  CHECK(cannot(ForFsdp2(ConfigFormat::kAccelerate), deterministic) == "deterministic runs");

  CHECK(cannot(ForDeepSpeed(ConfigFormat::kHfTrainer), [](TrainSetup& s) {
          s.recompute = FullRecompute(4);
        }) == "recompute of 4 layers at a time");
  CHECK(cannot(ForDeepSpeed(ConfigFormat::kDeepSpeed),
               [](TrainSetup& s) { s.recompute = FullRecompute(4); }) == "");
  CHECK(cannot(ForDeepSpeed(ConfigFormat::kHfTrainer), [](TrainSetup& s) {
          s.recompute = kSelectiveRecompute;
          s.deterministic = true;
        }) == "selective recompute; deterministic runs");
  // The same as an error, where it is written nevertheless.
  FormatRequest request = ForFsdp2(ConfigFormat::kAccelerate, 1);
  CHECK(ErrorOf(ExitCode::kUsage, [&] { WriteFormat(request); }) ==
        "⟦for⟧: accelerate with FSDP2 cannot do what is asked for: stage 1 (FSDP2 is stage 3, or 2 "
        "without resharding); allow another choice");
}

TEST_CASE("formats: what fits nothing is an error that says the fix") {
  const auto error = [](ConfigFormat format, const Runtime& runtime, const char* file) {
    return ErrorOf(ExitCode::kUsage, [&] { CheckFormat(format, runtime, file); });
  };
  CHECK(error(ConfigFormat::kTorchtitan, DeepSpeedRuntime(), "a.toml") ==
        "⟦for⟧: torchtitan trains with FSDP2, not with DeepSpeed; use ⟦runtime⟧ fsdp2");
  CHECK(error(ConfigFormat::kAccelerate, Fsdp2Runtime(), "d/run.json") ==
        "⟦out⟧: d/run.json: accelerate reads its YAML from another name; use d/run.yaml");
  CHECK(error(ConfigFormat::kAccelerate, Fsdp2Runtime(), "a\xff.yaml") ==
        "⟦out⟧: a\\xff.yaml is not UTF-8, which accelerate's YAML has to name it in; use another "
        "name");
  // Names that would end a comment or a string.
  FormatRequest odd = ForFsdp2(ConfigFormat::kTorchtitan);
  odd.model.name = "a\nb\"c\xff";
  const std::string toml = WriteFormat(odd).files.at(0).text;
  CHECK(Has(toml, wording::kTorchtitanFsdpNbXffSequences));
  CHECK(HasLine(toml, "description = \"a\\\\nb\\\"c\\\\xff, FSDP2, planned by zeroplan\""));
  FormatRequest uneven = ForDeepSpeed(ConfigFormat::kHfTrainer);
  uneven.cluster = {12, 8};
  uneven.setup.batch.world_size = 12;
  for (ConfigFormat format : {ConfigFormat::kHfTrainer, ConfigFormat::kAccelerate}) {
    uneven.format = format;
    CHECK(ErrorOf(ExitCode::kUsage, [&] { WriteFormat(uneven); }) ==
          "⟦for⟧: launchers start as many processes on every host, and 12 GPUs are not that on 2 "
          "hosts; use a multiple of 8 for ⟦gpus⟧");
  }
}

}  // namespace
}  // namespace zeroplan
