// LoRA and QLoRA as PEFT trains them: rows beside what was counted, runs beside what was measured,
// and what each runtime holds of frozen weights.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "core/config/reader_state.h"
#include "core/families/load_model.h"
#include "hwprofiles/loader.h"
#include "planner/estimate/estimate.h"
#include "planner/runtimes/runtimes.h"
#include "planner/runtimes/torch_adapters.h"
#include "planner/runtimes/torch_based.h"
#include "planner/runtimes/torch_phases.h"
#include "planner/runtimes/torch_timer.h"
#include "tests/error_of.h"
#include "tests/has.h"
#include "tests/paths.h"
#include "tests/share_off.h"
#include "tests/wordings/planner.h"

namespace zeroplan {
namespace {

using AdapterRow = nlohmann::json;

std::vector<AdapterRow> AdapterRows(const char* file) {
  std::ifstream in(SourcePath(std::string("tests/data/runtimes/") + file));
  std::vector<AdapterRow> rows;
  for (std::string line; std::getline(in, line);) rows.push_back(AdapterRow::parse(line));
  return rows;
}

void AddLoraTo(ModelSpec& model, bool quantized, int64_t rank = 16) {
  model.lora_rank = rank;
  model.lora_alpha = static_cast<float>(2 * rank);
  model.lora_targets = "all-linear";
  model.lora_quantized = quantized;
}

AdapterRun AdaptersOf(const AdapterRow& row) {
  return {row.at("adapters") == "fp32" && row.at("autocast"), row.value("kbit", false)};
}

class NoAdapterEngine : public TorchRuntime {
 public:
  using TorchRuntime::TorchRuntime;
  void Init() override {}
  void EndBackward() override {}
  void Step() override {}
  void Gradient(int param, Tensor grad) override {
    ++gradients;
    CHECK(model_.trains(param));
    grad.Reset();
  }
  int gradients = 0;
};

struct KeptByLayers {
  uint64_t after_forward = 0, after_backward = 0;
  int gradients = 0;
};

KeptByLayers PlayLayers(ModelSpec spec, int64_t layers, const TorchRun& run) {
  spec.layers = layers;
  const TorchModel model(spec);
  TrainSetup setup;
  setup.batch.world_size = 1;
  TorchMemory memory;
  TorchTimer timer(nullptr, {});
  NoAdapterEngine engine(model, setup, &memory, &timer);
  TorchStep step(model, run, &memory, &engine, &timer);
  KeptByLayers kept;
  step.Forward();
  kept.after_forward = memory.allocator().allocated();
  step.Backward();
  kept.after_backward = memory.allocator().allocated();
  kept.gradients = engine.gradients;
  return kept;
}

ModelSpec AdaptedSpec(const AdapterRow& row) {
  ModelSpec spec = LoadModel("llama3.1-8b");
  spec.hidden = row.at("hidden_size");
  spec.heads = row.at("num_attention_heads");
  spec.kv_heads = row.at("num_key_value_heads");
  spec.head_size = row.at("head_dim");
  spec.ffn = row.at("intermediate_size");
  spec.vocab = spec.padded_vocab = row.at("vocab_size");
  AddLoraTo(spec, row.value("method", "qlora") == "qlora", row.at("rank"));
  spec.lora_dropout = row.value("dropout", 0.0F);
  if (row.contains("targets")) {
    spec.lora_targets.clear();
    for (const std::string target : row.at("targets")) {
      spec.lora_targets += (spec.lora_targets.empty() ? "" : ",") + target;
    }
  }
  return spec;
}

TEST_CASE("adapters: a layer keeps the bytes that were counted (count_peft.py)") {
  int compared = 0;
  for (const AdapterRow& row : AdapterRows("peft_counts.jsonl")) {
    if (row.value("part", "") != "layer") continue;
    CAPTURE(row.dump());
    const ModelSpec spec = AdaptedSpec(row);
    TorchRun run;
    run.micro_batch = 1;
    run.seq_len = row.at("tokens");
    run.code = CodeStyle::kHf;
    run.adapters = AdaptersOf(row);
    run.fp32_params = run.adapters.kbit;
    run.autocast = row.at("autocast");
    const KeptByLayers two = PlayLayers(spec, 2, run), three = PlayLayers(spec, 3, run);
    // The engine has the 16-bit copies of fp32 adapters that autocast makes.
    const bool cast = row.at("adapters") == "fp32" && row.at("autocast");
    ModelSpec one = spec;
    one.layers = 1;
    const uint64_t copies = cast ? 2 * one.TrainedParamCount() : 0;
    // Rows of norms leave out what they have of a token.
    const uint64_t deviations = 2 * 4 * static_cast<uint64_t>(run.seq_len);
    CHECK(three.after_forward - two.after_forward + copies + deviations == row.at("kept_bytes"));
    // All of it goes, and what is trained alone has gradients.
    CHECK(three.after_backward == two.after_backward);
    const int linears = row.contains("targets") ? 2 : 7;
    CHECK(three.gradients == 3 * 2 * linears);
    ++compared;
  }
  CHECK(compared == 12);
}

TEST_CASE("adapters: kernels beside products are those that were counted") {
  int compared = 0;
  for (const AdapterRow& row : AdapterRows("peft_counts.jsonl")) {
    if (row.value("part", "") != "adapted_linear") continue;
    CAPTURE(row.dump());
    const AdaptedLinear& linear =
        AdaptedLinearOf(AdaptersOf(row), row.at("method") == "qlora", row.at("dropout") > 0);
    // Casts of A and B, and of their gradients, are the engine's.
    const int casts = row.at("adapters") == "fp32" ? 2 : 0;
    const auto beside = [&](const char* way) {
      int sum = -casts;
      for (const auto& [name, count] : row.at(way).items()) {
        const bool product = name == "mm" || name == "_unsafe_view" || name == "bitsandbytes";
        if (!product && name != "add_") sum += count.get<int>();
      }
      return sum;
    };
    CHECK(linear.forward_launches == beside("forward_operations"));
    CHECK(linear.backward_launches == beside("backward_operations"));
    const std::string words = row.at("forward");
    CHECK(linear.keeps_input == (words.find("=i") != std::string::npos));
    ++compared;
  }
  CHECK(compared == 10);
}

TEST_CASE("adapters: frozen norms and k-bit training's parts are those that were counted") {
  int compared = 0;
  for (const AdapterRow& row : AdapterRows("peft_counts.jsonl")) {
    const std::string name = row.value("part", "");
    if (!row.value("frozen", false) && !(row.value("kbit", false) && !row.contains("method"))) {
      continue;
    }
    if (name == "layer_norm") continue;  // as trained ones
    CAPTURE(row.dump());
    const bool kbit = row.value("params", "fp32") == "fp32";
    const StyleCode& code = FrozenStyle(CodeStyle::kHf, {true, kbit}, /*autocast=*/kbit);
    const std::map<std::string, const CodePart*> parts = {{"rms_norm", &code.rms_norm},
                                                          {"head_norm", &code.head_norm},
                                                          {"swiglu", &code.gated},
                                                          {"rotary", &code.rotary},
                                                          {"add", &code.add}};
    const CodePart& part = *parts.at(name);
    CHECK(std::string(part.forward) == row.at("forward").get<std::string>());
    CHECK(std::string(part.backward) == row.at("backward").get<std::string>());
    CHECK(std::string(part.forward_moves) == row.at("forward_moves").get<std::string>());
    CHECK(std::string(part.backward_moves) == row.at("backward_moves").get<std::string>());
    CHECK(part.forward_launches == row.at("forward_launches"));
    CHECK(part.backward_launches == row.at("backward_launches"));
    ++compared;
  }
  CHECK(compared == 7);
}

TorchPlay AdaptedPlay(bool quantized) {
  TorchPlay play;
  play.model = LoadModel("llama3.2-1b");
  AddLoraTo(play.model, quantized);
  play.setup.batch = {1, 1, 1, 512};
  play.setup.precision.dtype = Dtype::kBF16;
  play.recipe.code = CodeStyle::kHf;
  return play;
}

TorchFootprint AdaptedFootprint(const Runtime& runtime, const TorchPlay& play,
                                TorchTimer* timer = nullptr) {
  return dynamic_cast<const TorchBased&>(runtime).Play(play, timer);
}

// Steps of runs that wait for Python differ: what is nearest of them.
double TimeError(const AdapterRow& row, double seconds) {
  const double from = row.value("step_ms_from", row.at("step_ms").get<double>());
  const double to = row.value("step_ms_to", row.at("step_ms").get<double>());
  return std::abs(ShareOff(1e3 * seconds, std::clamp(1e3 * seconds, from, to)));
}

TEST_CASE("adapters: runs of transformers' Trainer with PEFT") {
  const HardwareProfile hardware = LoadProfile(MeasuredH200());
  const TorchMachine machine(hardware, ClusterShape{1, 8});
  std::vector<double> times;
  double worst = 0;
  std::vector<AdapterRow> rows = AdapterRows("trainer_runs.jsonl");
  for (AdapterRow& row : AdapterRows("trainer_later_runs.jsonl")) rows.push_back(std::move(row));
  for (const AdapterRow& row : rows) {
    if (!row.contains("lora") || !row.contains("allocated")) continue;
    CAPTURE(row.dump());
    const bool quantized = row.value("nf4", false);
    TorchPlay play = AdaptedPlay(quantized);
    play.model = LoadModel(row.at("model").get<std::string>());
    AddLoraTo(play.model, quantized, row.at("lora"));
    play.model.lora_dropout = row.value("lora_dropout", 0.0F);
    play.setup.zero = ReaderZeroDefaults(row.at("stage"));
    play.setup.batch = {row.at("micro_batch"), row.value("grad_accum", 1), 1, row.at("seq_len")};
    play.setup.optimizer.gradient_clipping = 1;
    if (row.at("recompute")) play.setup.recompute = FullRecompute();
    if (row.at("code") == "liger") play.recipe.code = CodeStyle::kLiger;
    const bool ddp = row.at("runtime") == "ddp";
    if (ddp && row.value("adapters", "fp32") == "bf16") play.recipe.param_dtype = Dtype::kBF16;
    play.recipe.kbit = row.value("kbit", false);
    play.hardware = &hardware;
    TorchTimer timer(&machine, {});
    const TorchFootprint footprint =
        AdaptedFootprint(ddp ? DdpRuntime() : DeepSpeedRuntime(), play, &timer);
    const auto gib = [](uint64_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
    CHECK(gib(footprint.after_init_bytes) ==
          doctest::Approx(row.at("after_init").get<double>()).epsilon(0.002));
    CHECK(gib(footprint.StepAllocatedBytes()) ==
          doctest::Approx(row.at("allocated").get<double>()).epsilon(0.005));
    CHECK(gib(footprint.ReservedBytes()) ==
          doctest::Approx(row.at("reserved").get<double>()).epsilon(0.08));
    const double seconds = timer.Time(play.setup.batch.grad_accum)->step_seconds;
    times.push_back(std::abs(ShareOff(1e3 * seconds, row.at("step_ms").get<double>())));
    worst = std::max(worst, TimeError(row, seconds));
  }
  REQUIRE(times.size() >= 11);
  std::sort(times.begin(), times.end());
  CHECK(times[times.size() / 2] < 0.06);
  CHECK(worst < 0.2);
}

TEST_CASE("adapters: frozen weights have no gradients, masters or states") {
  const TorchPlay play = AdaptedPlay(/*quantized=*/false);
  const uint64_t trained = play.model.TrainedParamCount();
  const uint64_t frozen = LoadModel("llama3.2-1b").ParamCount();
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    TorchPlay staged = play;
    staged.setup.zero = ReaderZeroDefaults(stage);
    staged.setup.zero.reduce_bucket_elements = 1'000'000;
    const TorchFootprint footprint = AdaptedFootprint(DeepSpeedRuntime(), staged);
    const TorchPeak& peak = footprint.peak(TorchPhase::kStep);
    const uint64_t params = peak.class_bytes[static_cast<size_t>(TorchClass::kParams)];
    const uint64_t states = peak.class_bytes[static_cast<size_t>(TorchClass::kOptimizer)];
    CHECK(static_cast<double>(params) / static_cast<double>(2 * (frozen + trained)) ==
          doctest::Approx(1).epsilon(0.3));
    CHECK(states <= 21 * trained);
  }
}

TEST_CASE("adapters: DeepSpeed reduces no more than what is trained, at stage 1 as at 2") {
  const HardwareProfile hardware = LoadProfile(MeasuredH200());
  const TorchMachine machine(hardware, ClusterShape{8, 8});
  TorchPlay play = AdaptedPlay(/*quantized=*/false);
  play.setup.batch.world_size = 8;
  play.hardware = &hardware;
  std::vector<double> seconds;
  for (const int stage : {1, 2}) {  // at stage 1 gradients are reduced when all are there
    play.setup.zero = ReaderZeroDefaults(stage);
    TorchTimer timer(&machine, {});
    AdaptedFootprint(DeepSpeedRuntime(), play, &timer);
    seconds.push_back(timer.Time(1)->step_seconds);
  }
  CHECK(seconds[0] < 1.05 * seconds[1]);
}

TEST_CASE("adapters: what DeepSpeed and FSDP2 shard of a frozen model") {
  TorchPlay play = AdaptedPlay(/*quantized=*/false);
  play.setup.batch.world_size = 8;
  const uint64_t frozen = LoadModel("llama3.2-1b").ParamCount();
  for (const Runtime* runtime : {&DeepSpeedRuntime(), &Fsdp2Runtime()}) {
    CAPTURE(runtime->key());
    play.setup.zero = ReaderZeroDefaults(3);
    play.setup.zero.reduce_bucket_elements = 1'000'000;
    const auto after = static_cast<double>(AdaptedFootprint(*runtime, play).after_init_bytes);
    CHECK(after < 0.3 * static_cast<double>(2 * frozen));
    CHECK(after > 2.0 * static_cast<double>(frozen) / 8);
  }
  // accelerate shards no weights in 4 bit that are packed in integers; DeepSpeed does.
  TorchPlay quantized = AdaptedPlay(/*quantized=*/true);
  quantized.setup.batch.world_size = 8;
  quantized.setup.zero = play.setup.zero;
  quantized.recipe.quant_storage = Dtype::kU8;
  const uint64_t fsdp2 = AdaptedFootprint(Fsdp2Runtime(), quantized).after_init_bytes;
  const uint64_t deepspeed = AdaptedFootprint(DeepSpeedRuntime(), quantized).after_init_bytes;
  CHECK(fsdp2 > 480'000'000);
  CHECK(deepspeed < fsdp2 / 2);
}

TEST_CASE("adapters: what is not modelled is refused by name") {
  const auto error = [](const Runtime& runtime, const TorchPlay& play) {
    return ErrorOf(ExitCode::kUsage, [&] { AdaptedFootprint(runtime, play); });
  };
  TorchPlay play = AdaptedPlay(/*quantized=*/false);
  play.recipe.kbit = true;
  CHECK(Has(error(DdpRuntime(), play), wording::kIsOfModelsInBit));
  play.model.lora_quantized = true;
  CHECK(Has(error(DeepSpeedRuntime(), play), wording::kIsModelledWithDdpAlone));
  play.recipe.code = CodeStyle::kPlain;
  CHECK(Has(error(DdpRuntime(), play), wording::kIsModelledOfTransformersCode));
  play = AdaptedPlay(/*quantized=*/false);
  play.recipe.compile.layers = true;
  CHECK(Has(error(DdpRuntime(), play), wording::kAdaptersUnderTorchCompile));
  play = AdaptedPlay(/*quantized=*/false);
  play.model.lora_saved = "embed_tokens";
  CHECK(Has(error(DdpRuntime(), play), wording::kModulesThatPeftTrainsWhole));
}

// ---- QLoRA under FSDP: what 4-bit weights are packed in ----

Dtype DtypeOfWord(const std::string& word) {
  const std::optional<Dtype> dtype = ValueIn(kQuantStorageWords, word);
  REQUIRE(dtype);
  return *dtype;
}

TorchPlay ShardedQlora(ModelSpec model, int gpus) {
  TorchPlay play = AdaptedPlay(/*quantized=*/true);
  play.model = std::move(model);
  play.setup.batch.world_size = gpus;
  play.setup.zero = ReaderZeroDefaults(3);
  return play;
}

TorchPlay ShardedQlora(const AdapterRow& row) {
  TorchPlay play = ShardedQlora(AdaptedSpec(row), row.at("ranks"));
  play.model.layers = row.at("layers");
  play.setup.precision.dtype = DtypeOfWord(row.at("computes"));
  play.recipe.quant_storage = DtypeOfWord(row.at("storage"));
  if (row.at("adapters") == "bf16") play.recipe.param_dtype = Dtype::kBF16;
  return play;
}

// Statistics and tables of 4-bit weights, in the allocator's blocks of `block` bytes.
uint64_t QuantBytes(const ModelSpec& model, uint64_t block) {
  uint64_t sum = 0;
  for (const TorchParam& param : TorchModel(model).params) {
    for (int i = 0; param.quantized > 0 && i < kQuantTensors; ++i) {
      sum += (QuantTensorBytes(param.quantized, i) + block - 1) / block * block;
    }
  }
  return sum;
}

TEST_CASE("adapters: FSDP's ranks hold of QLoRA what was counted (count_fsdp_qlora.py)") {
  constexpr uint64_t kBlock = 512;
  int sharded = 0, flat = 0, refused = 0;
  for (const AdapterRow& row : AdapterRows("fsdp_qlora_counts.jsonl")) {
    if (!row.contains("fsdp")) continue;
    CAPTURE(row.dump());
    const TorchPlay play = ShardedQlora(row);
    const std::string storage = row.at("storage");
    // Mixed precision in fp32 is not modelled; packed weights that it casts are lost.
    if (storage == "fp32") {
      CHECK(row.contains("error") == (row.at("mixed_precision") != "fp32"));
      CHECK(Has(ErrorOf(ExitCode::kUsage, [&] { AdaptedFootprint(Fsdp2Runtime(), play); }),
                wording::kMixedPrecisionThenIsFp));
      ++refused;
      continue;
    }
    const uint64_t beside = QuantBytes(play.model, kBlock);
    const uint64_t params = AdaptedFootprint(Fsdp2Runtime(), play).after_init_bytes - beside;
    if (row.at("fsdp") == 1) {
      // A flat parameter a unit, of the same bytes; none of integers.
      CHECK(row.contains("error") == (storage == "uint8"));
      if (row.contains("error")) continue;
      const uint64_t bytes =
          row.at("frozen_bytes").get<uint64_t>() + row.at("trained_bytes").get<uint64_t>();
      CHECK(params >= bytes);
      CHECK(params - bytes < kBlock * TorchModel(play.model).params.size());
      ++flat;
      continue;
    }
    REQUIRE(!row.contains("error"));
    CHECK(params == row.at("params_allocated"));
    CHECK(QuantBytes(play.model, 1) == row.at("quant_bytes"));
    CHECK((row.at("whole_4bit_bytes") > 0) == (storage == "uint8"));
    ++sharded;
  }
  CHECK(sharded == 6);
  CHECK(flat == 3);
  CHECK(refused == 2);
}

TEST_CASE("adapters: FSDP shards 4-bit weights in a floating dtype, which is the default") {
  for (const auto& [name, gpus, dtype] :
       {std::tuple("llama2-70b", 2, Dtype::kBF16), std::tuple("qwen2.5-7b", 8, Dtype::kBF16),
        std::tuple("mistral-7b-v0.3", 4, Dtype::kF16)}) {
    CAPTURE(name);
    ModelSpec model = LoadModel(name);
    AddLoraTo(model, /*quantized=*/true);
    TorchPlay play = ShardedQlora(model, gpus);
    play.setup.precision.dtype = dtype;
    const auto after_init = [&] {
      return static_cast<double>(AdaptedFootprint(Fsdp2Runtime(), play).after_init_bytes);
    };
    const double by_default = after_init();
    play.recipe.quant_storage = dtype;
    CHECK(after_init() == by_default);
    play.recipe.quant_storage = Dtype::kU8;
    double packed = 0;
    for (const TorchParam& param : TorchModel(model).params) {
      if (param.quantized > 0) packed += 2 * static_cast<double>(param.elements);
    }
    CHECK(packed > 0.4 * static_cast<double>(LoadModel(name).ParamCount()));
    // The allocator splits no block whose rest is below 1 MiB.
    CHECK(after_init() - by_default == doctest::Approx(packed * (1 - 1.0 / gpus)).epsilon(0.02));
    // On the host a rank has its shards, and the GPU what is not sharded.
    play.recipe.quant_storage.reset();
    play.setup.zero.offload_param.device = OffloadDevice::kCpu;
    play.setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
    CHECK(after_init() == doctest::Approx(QuantBytes(model, 512)).epsilon(0.04));
    const double pinned =
        static_cast<double>(AdaptedFootprint(Fsdp2Runtime(), play).host.pinned_bytes);
    CHECK(pinned > packed / gpus);
    CHECK(pinned < 2.3 * by_default);
  }
}

TEST_CASE("adapters: storage that mixed precision would cast is refused") {
  const auto error = [](const Runtime& runtime, const TorchPlay& play) {
    return ErrorOf(ExitCode::kUsage, [&] { AdaptedFootprint(runtime, play); });
  };
  TorchPlay play = AdaptedPlay(/*quantized=*/true);
  play.recipe.quant_storage = Dtype::kF16;
  CHECK(Has(error(Fsdp2Runtime(), play), wording::kFloatingParametersAreCastTo));
  play.setup.zero = ReaderZeroDefaults(3);
  CHECK(Has(error(DeepSpeedRuntime(), play), wording::kFloatingParametersAreCastTo));
  // Autocast casts no parameter.
  play.setup.zero = {};
  play.setup.zero.stage = 0;
  const uint64_t packed = AdaptedFootprint(DdpRuntime(), play).after_init_bytes;
  play.recipe.quant_storage.reset();
  CHECK(AdaptedFootprint(DdpRuntime(), play).after_init_bytes == packed);
  play = AdaptedPlay(/*quantized=*/false);
  play.recipe.quant_storage = Dtype::kBF16;
  CHECK(Has(error(DdpRuntime(), play), wording::kQuantStorageIsOfModels));
}

TEST_CASE("adapters: 4-bit weights are quantized on the host where a GPU has no room for all") {
  EstimateInputs inputs;
  inputs.runtime = &Fsdp2Runtime();
  inputs.model = LoadModel("llama2-70b");
  AddLoraTo(inputs.model, /*quantized=*/true, /*rank=*/8);
  inputs.recipe.code = CodeStyle::kHf;
  TrainSetup setup;
  setup.batch = {1, 1, 2, 2048};
  setup.precision.dtype = Dtype::kBF16;
  setup.zero = ReaderZeroDefaults(3);
  setup.zero.offload_param.device = OffloadDevice::kCpu;
  setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
  setup.recompute = FullRecompute();
  inputs.setups = {setup};
  inputs.cluster.gpus = inputs.cluster.gpus_per_node = 2;
  const auto on = [&](uint64_t gpu, uint64_t host) {
    inputs.cluster.gpu_capacity_bytes = gpu;
    inputs.cluster.host_capacity_bytes = host;
    return EstimateChoices(inputs).choices.front();
  };
  // 4-bit weights take 34.3 GB, their statistics 1.1, the rest 1.05.
  const ChoiceEstimate roomy = on(80'000'000'000, 128'000'000'000);
  CHECK(roomy.fits);
  CHECK_FALSE(QuantizesOnHost(roomy.footprint));
  CHECK(roomy.footprint.torch->around[0].bytes.gpu > 36'500'000'000);
  const ChoiceEstimate small = on(24'000'000'000, 128'000'000'000);
  CHECK(small.fits);
  CHECK(QuantizesOnHost(small.footprint));
  const AroundBytes& loading = small.footprint.torch->around[0].bytes;
  CHECK(loading.gpu < 6'000'000'000);
  CHECK(loading.NodeHost(2) > 2 * (36'500'000'000 + 17'500'000'000));
  // Neither has room.
  const ChoiceEstimate neither = on(24'000'000'000, 96'000'000'000);
  CHECK(!neither.fits);
  CHECK(Has(neither.why_not, "; with device_map"));
  // Whole weights are never on the host alone.
  inputs.recipe.quant_storage = Dtype::kU8;
  CHECK(!on(24'000'000'000, 512'000'000'000).fits);
}

TEST_CASE("adapters: NF4 with double quantization takes 4.13 bits a weight") {
  const uint64_t weights = 4096 * 14336;
  uint64_t beside = 0;
  for (int i = 0; i < kQuantTensors; ++i) beside += QuantTensorBytes(weights, i);
  CHECK(8 * static_cast<double>(weights / 2 + beside) / static_cast<double>(weights) ==
        doctest::Approx(4.127).epsilon(0.001));
}

}  // namespace
}  // namespace zeroplan
