// Usage: write_formats FOLDER. Writes plans for each program that planner/formats knows, and what
// that program must make of each as N.expected.json.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "core/config/deepspeed_reader.h"
#include "core/families/load_model.h"
#include "planner/formats/config_format.h"
#include "planner/runtimes/runtimes.h"

namespace zeroplan {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char* kIncoming = R"({
  "train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 4, "gradient_clipping": 0.5,
  "bf16": {"enabled": true}, "zero_optimization": {"stage": 3, "round_robin_gradients": true},
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.8, 0.95], "eps": 1e-7,
                                            "weight_decay": 0.1}},
  "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_max_lr": 3e-4, "warmup_num_steps": 40,
                                                    "total_num_steps": 900}},
  "wandb": {"enabled": false}, "my_launcher": {"queue": "long"}
})";
// As the Trainer's documentation has them: all that it can fill in is open.
constexpr const char* kOpenIncoming = R"({
  "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
  "bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto", "loss_scale_window": 500},
  "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto", "overlap_comm": true,
                        "offload_optimizer": {"device": "cpu", "pin_memory": true}},
  "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
                                            "weight_decay": "auto"}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto",
                                               "warmup_num_steps": "auto"}},
  "steps_per_print": 100
})";

class Writer {
 public:
  explicit Writer(fs::path folder) : folder_(std::move(folder)) {}

  // With the keys of `incoming`, unless that is empty.
  void Add(FormatRequest request, const std::string& incoming = "") {
    const std::string stem =
        std::to_string(count_++) + "-" + std::string(ConfigFormatName(request.format));
    request.file = (folder_ / (stem + Extension(request.format))).string();
    JsonNode node;
    if (!incoming.empty()) {
      node = ParseJsonText(incoming, "incoming");
      request.incoming = &node;
    }
    const WrittenConfig written = WriteFormat(request);
    for (const WrittenFile& file : written.files) std::ofstream(file.path) << file.text;
    std::ofstream(folder_ / (stem + ".expected.json")) << Expected(request, written).dump(1);
  }

 private:
  static std::string Extension(ConfigFormat format) {
    return format == ConfigFormat::kAccelerate   ? ".yaml"
           : format == ConfigFormat::kTorchtitan ? ".toml"
                                                 : ".json";
  }

  static std::string Float8Recipe(const FormatRequest& request) {
    const auto float8 = Float8Of(request.setup.precision, request.recipe);
    return float8 ? std::string(TorchFloat8Name(*float8)) : "";
  }

  static Json Expected(const FormatRequest& request, const WrittenConfig& written) {
    const TrainSetup& setup = request.setup;
    const OptimizerConfig& optimizer = setup.optimizer;
    Json out = {{"format", ConfigFormatName(request.format)},
                {"runtime", request.runtime->name()},
                {"arguments", written.arguments},
                {"launch", written.launch},
                {"notes", written.notes},
                {"script", written.script},
                {"code", CodeStyleName(request.recipe.code)},
                {"rank", request.model.lora_rank},
                {"quantized", request.model.lora_quantized},
                {"targets", request.model.lora_targets},
                {"adapters_in_16_bit", request.recipe.param_dtype == Dtype::kBF16 ||
                                           request.runtime->reads_deepspeed_config()},
                {"optim", TorchOptimizerName(
                              request.recipe.optimizer.value_or(TorchOptimizer::kAdamWFused))},
                {"own_optim", request.recipe.optimizer.has_value()},
                {"world_size", setup.batch.world_size},
                {"nodes", request.cluster.nodes()},
                {"micro_batch", setup.batch.micro_batch},
                {"grad_accum", setup.batch.grad_accum},
                {"global_batch", setup.batch.global_batch()},
                {"seq_len", setup.batch.seq_len},
                {"dtype", DtypeName(setup.precision.dtype)},
                {"float8", Float8Recipe(request)},
                {"stage", setup.zero.stage},
                {"shard_group", setup.zero.shard_group},
                {"quantized_weights", setup.zero.quantized_weights},
                {"across_stage", setup.zero.across_stage},
                {"reduce_bucket_size", setup.zero.reduce_bucket_elements},
                {"offload_optimizer", OffloadDeviceName(setup.zero.offload_optimizer.device)},
                {"offload_param", OffloadDeviceName(setup.zero.offload_param.device)},
                {"recompute", setup.recompute.kind == RecomputeKind::kFull},
                {"compile_layers", request.recipe.compile.layers},
                {"compile_loss", request.recipe.compile.loss},
                {"deterministic", setup.deterministic},
                {"layers", request.model.layers},
                {"hidden", request.model.hidden},
                {"incoming", request.incoming != nullptr}};
    out["optimizer"] = {{"lr", optimizer.lr},
                        {"betas", optimizer.betas},
                        {"eps", optimizer.eps},
                        {"weight_decay", optimizer.weight_decay},
                        {"gradient_clipping", optimizer.gradient_clipping},
                        {"warmup_steps", optimizer.schedule.warmup_steps},
                        {"total_steps", optimizer.schedule.total_steps}};
    return out;
  }

  fs::path folder_;
  int count_ = 0;
};

FormatRequest Request(ConfigFormat format, const Runtime& runtime, int gpus, int gpus_per_node) {
  FormatRequest request;
  request.format = format;
  request.runtime = &runtime;
  request.runtime_name = runtime.key();
  request.model = LoadModel("llama3.1-8b");
  request.cluster = {gpus, gpus_per_node};
  request.setup.batch = {4, 2, gpus, 2048};
  request.setup.zero.stage = 3;
  request.setup.zero.reduce_bucket_elements = 200'000'000;
  request.setup.zero.prefetch_bucket_elements = 30'000'000;
  request.setup.zero.max_live_parameters = 900'000'000;
  request.setup.precision.fp32_reduction = format == ConfigFormat::kTorchtitan;
  return request;
}

void OffloadAll(TrainSetup& setup) {
  setup.zero.offload_optimizer.device = setup.zero.offload_param.device = OffloadDevice::kCpu;
}

void AddFsdp2(Writer& writer, ConfigFormat format) {
  FormatRequest request = Request(format, Fsdp2Runtime(), 8, 8);
  writer.Add(request);
  request.setup.zero.stage = 2;
  request.recipe.compile = {true, true};
  writer.Add(request);
  FormatRequest offloaded = Request(format, Fsdp2Runtime(), 16, 8);
  OffloadAll(offloaded.setup);
  offloaded.setup.recompute = FullRecompute();
  offloaded.recipe.compile = {true, false};
  offloaded.setup.deterministic = format == ConfigFormat::kTorchtitan;
  offloaded.model = LoadModel("qwen3-4b");
  writer.Add(offloaded);
  if (format == ConfigFormat::kHfTrainer) return;
  FormatRequest groups = Request(format, Fsdp2Runtime(), 32, 8);
  groups.setup.zero.shard_group = 8;
  writer.Add(groups);
}

void AddDeepSpeed(Writer& writer, ConfigFormat format) {
  FormatRequest request = Request(format, DeepSpeedRuntime(), 8, 8);
  OffloadAll(request.setup);
  request.setup.recompute = FullRecompute();
  writer.Add(request);
  request = Request(format, DeepSpeedRuntime(), 2, 8);
  request.setup.zero.stage = 1;
  request.recipe.compile = {true, false};
  writer.Add(request);
  for (const char* incoming : {kIncoming, kOpenIncoming}) {
    ReadContext context;
    context.world_size = 16;
    context.seq_len = 2048;
    FormatRequest said = Request(format, DeepSpeedRuntime(), 16, 8);
    said.setup = ReadDeepSpeedConfig(incoming, "incoming", context).setup;
    said.setup.zero.reduce_bucket_elements = 77'000'000;
    if (incoming == kOpenIncoming) said.setup.batch = {5, 3, 16, 2048};
    writer.Add(said, incoming);
  }
  // hpZ; MiCS, which the Trainer's models do not take.
  FormatRequest groups = Request(format, DeepSpeedRuntime(), 32, 8);
  groups.setup.zero.shard_group = 8;
  groups.setup.zero.across_stage = 2;
  groups.setup.zero.quantized_weights = true;
  writer.Add(groups);
  if (format == ConfigFormat::kHfTrainer) return;
  groups.setup.zero.across_stage = 0;
  groups.setup.zero.quantized_weights = false;
  writer.Add(groups);
}

void AddDdp(Writer& writer, ConfigFormat format) {
  FormatRequest request = Request(format, DdpRuntime(), 1, 8);
  request.setup.zero.stage = 0;
  request.recipe.code = CodeStyle::kHf;
  writer.Add(request);
  request = Request(format, DdpRuntime(), 8, 8);
  request.setup.zero.stage = 0;
  request.setup.recompute = FullRecompute();
  request.recipe.code = CodeStyle::kLiger;
  request.recipe.optimizer = TorchOptimizer::kPagedAdamW8bit;
  writer.Add(request);
}

void AddFloat8(Writer& writer, ConfigFormat format, const Runtime& runtime, TorchFloat8 recipe) {
  FormatRequest request = Request(format, runtime, 8, 8);
  if (&runtime == &DdpRuntime()) request.setup.zero.stage = 0;
  request.setup.precision.fp8.enabled = true;
  request.recipe.compile.layers = true;
  request.recipe.float8 = recipe;
  writer.Add(request);
}

void AddAdapters(Writer& writer, ConfigFormat format, const Runtime& runtime) {
  for (const bool quantized : {false, true}) {
    FormatRequest request = Request(format, runtime, 2, 8);
    if (&runtime == &DdpRuntime()) request.setup.zero.stage = 0;
    request.recipe.code = CodeStyle::kHf;
    request.setup.recompute = FullRecompute();
    request.model.lora_rank = 8;
    request.model.lora_alpha = 16;
    request.model.lora_targets = quantized ? "q_proj,v_proj" : "all-linear";
    request.model.lora_dropout = quantized ? 0.05F : 0;
    request.model.lora_rslora = quantized;
    request.model.lora_quantized = quantized;
    writer.Add(request);
    if (&runtime != &DdpRuntime()) continue;
    if (quantized) {
      request.recipe.kbit = true;
      writer.Add(request);
      request.recipe.kbit = false;
    }
    request.recipe.param_dtype = Dtype::kBF16;
    request.recipe.optimizer = TorchOptimizer::kAdamW8bit;
    writer.Add(request);
  }
}

}  // namespace
}  // namespace zeroplan

int main(int argc, char** argv) {
  using namespace zeroplan;
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  Writer writer(argv[1]);
  for (ConfigFormat format : {ConfigFormat::kHfTrainer, ConfigFormat::kAccelerate}) {
    AddDeepSpeed(writer, format);
    AddFsdp2(writer, format);
    AddDdp(writer, format);
    AddAdapters(writer, format, DdpRuntime());
    AddAdapters(writer, format, DeepSpeedRuntime());
  }
  AddAdapters(writer, ConfigFormat::kAccelerate, Fsdp2Runtime());
  AddFsdp2(writer, ConfigFormat::kTorchtitan);
  using enum TorchFloat8;
  for (const TorchFloat8 recipe : {kTensorwise, kTensorwiseGathers, kRowwise}) {
    AddFloat8(writer, ConfigFormat::kTorchtitan, Fsdp2Runtime(), recipe);
    if (recipe == kRowwise) continue;
    AddFloat8(writer, ConfigFormat::kAccelerate, Fsdp2Runtime(), recipe);
  }
  AddFloat8(writer, ConfigFormat::kAccelerate, DdpRuntime(), kTensorwise);
  return 0;
}
