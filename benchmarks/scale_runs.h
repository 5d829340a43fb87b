// Training runs that others published, and what is predicted for them: what scale_benchmark prints
// and a test holds the printed margins to.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/published_shapes.h"
#include "core/base/error.h"
#include "core/config/reader_state.h"
#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "cost_models/cost_model.h"
#include "cost_models/step_time.h"
#include "hwprofiles/loader.h"
#include "planner/runtimes/runtimes.h"
#include "planner/runtimes/torch_based.h"

namespace zeroplan {

struct PublishedRun {
  std::string id, framework, runtime, machine, network, recompute, dtype;
  std::string work;  // runs of the same work differ in GPUs alone, or in micro-steps to match
  ModelSpec model;
  int gpus = 1, stage = 0, shard_group = 0, across_stage = 0;
  int64_t seq = 0, micro_batch = 1, grad_accum = 1;
  uint64_t reduce_bucket = 0;  // 0: DeepSpeed's default
  bool fp32_reduction = false, held = false, compile = false;
  bool quantized = false;              // ZeRO++'s weights and gradients
  bool fp8 = false;                    // matmuls of the layers' linears
  bool owner_broadcasts = false;       // after the step every owner sends its parameters to all
  double measured = 0, predicted = 0;  // tokens/s of a GPU

  double ratio() const { return predicted / measured; }
};

inline ModelSpec PublishedModel(const std::string& family, int64_t layers, int64_t hidden,
                                int64_t heads, int64_t kv_heads, int64_t ffn, int64_t vocab,
                                int64_t seq) {
  // Beside a family the data has presets' names, whose biases and tied heads matter.
  ModelSpec model = LoadModel(family == "llama" ? "llama3.1-8b" : family);
  model.layers = layers;
  model.hidden = hidden;
  model.heads = heads;
  model.kv_heads = kv_heads;
  model.ffn = ffn;
  model.vocab = vocab;
  model.padded_vocab = (vocab + 127) / 128 * 128;
  model.positions = seq;
  return model;
}

inline std::vector<PublishedRun> ReadScaleRuns(const std::string& folder) {
  std::ifstream in(folder + "/tests/data/scale/published_scale_runs.jsonl");
  ZEROPLAN_CHECK(in.good(), "no published_scale_runs.jsonl in {}", folder);
  std::vector<PublishedRun> runs;
  std::string line;
  std::getline(in, line);  // what the file holds
  while (std::getline(in, line)) {
    const auto json = nlohmann::json::parse(line);
    PublishedRun& run = runs.emplace_back();
    run.id = json.at("id");
    run.framework = json.at("framework");
    run.runtime = json.at("runtime");
    run.machine = json.at("machine");
    run.network = json.at("network");
    run.recompute = json.at("recompute");
    run.dtype = json.at("dtype");
    run.gpus = json.at("gpus");
    run.stage = json.at("stage");
    run.seq = json.at("seq");
    run.micro_batch = json.at("micro_batch");
    run.grad_accum = json.at("grad_accum");
    run.held = json.at("held");
    run.shard_group = json.value("shard_group", 0);
    run.across_stage = json.value("across_stage", 0);
    run.reduce_bucket = json.value("reduce_bucket", uint64_t{0});
    run.compile = json.value("compile", false);
    run.quantized = json.value("quantized", false);
    run.fp8 = json.value("fp8", false);
    run.owner_broadcasts = json.value("owner_broadcasts", false);
    run.measured = json.at("tokens_per_second");
    run.model =
        PublishedModel(json.at("family"), json.at("layers"), json.at("hidden"), json.at("heads"),
                       json.at("kv_heads"), json.at("ffn"), json.at("vocab"), run.seq);
    if (const int64_t rank = json.value("lora_rank", int64_t{0}); rank > 0) {
      run.model.lora_rank = rank;
      run.model.lora_alpha = static_cast<float>(2 * rank);
      run.model.lora_targets = json.value("lora_targets", std::string("all-linear"));
    }
    // NeMo's runs share a batch over more GPUs; a step's rest is little beside 8 micro-steps.
    const int64_t batch = run.framework == "NeMo Megatron" ? 0 : run.micro_batch * run.grad_accum;
    run.work = fmt::format("{} {} {} {} {} {} {}", run.framework, run.model.hidden,
                           run.model.layers, run.stage, run.recompute, batch, run.network);
  }
  return runs;
}

inline std::vector<PublishedRun> ReadFsdpRuns(const std::string& folder) {
  std::vector<PublishedRun> runs;
  for (const PublishedShape& shape : ReadPublishedShapes(folder)) {
    if (!shape.framework.starts_with("Composer")) continue;
    PublishedRun run;
    run.id = shape.id;
    run.machine = shape.machine;
    run.gpus = shape.gpus;
    run.stage = shape.stage;
    run.recompute = shape.recompute ? "full" : "none";
    run.seq = shape.seq;
    run.micro_batch = shape.micro_batch;
    run.grad_accum = shape.grad_accum;
    run.measured = shape.tokens_per_second;
    run.framework = "Composer, FSDP";
    run.runtime = "fsdp2";
    run.dtype = "bf16";
    run.fp32_reduction = shape.fp32_reduction;
    run.held = run.gpus >= 256;
    run.model = PublishedModel("gpt2", shape.layers, shape.hidden, shape.heads, shape.heads,
                               4 * shape.hidden, shape.vocab, run.seq);
    run.work = fmt::format("{} {} {} {} {}", run.id.substr(0, run.id.find('-', 4)), run.machine,
                           run.seq, run.recompute, run.fp32_reduction);
    runs.push_back(std::move(run));
  }
  std::map<std::string, std::pair<int, int>> sizes;
  for (const PublishedRun& run : runs) {
    auto& [least, most] = sizes.try_emplace(run.work, run.gpus, run.gpus).first->second;
    least = std::min(least, run.gpus);
    most = std::max(most, run.gpus);
  }
  std::erase_if(runs, [&](const PublishedRun& run) {
    return sizes[run.work].first == sizes[run.work].second || sizes[run.work].second <= 8;
  });
  return runs;
}

// What of a program, or of its cluster, is fitted to its runs.
struct FittedProgram {
  double network_share = 0;      // of the adapters' rate that is reached; 0: as assumed
  double kernels = 1;            // seconds of its kernels over those that are predicted
  double broadcast_seconds = 0;  // of each owner's broadcast, beyond its bytes
};
// InternEvo: least squares of log errors of ZeRO-1 on 8, 32, 128 and 512 GPUs, over all ranks and
// within groups of 8. Each rank's parameters are a broadcast of their own, and those of 1,024 ranks
// go one after the other.
inline constexpr FittedProgram kInternEvo{0, 1.26, 2.75e-3};
// ZeRO-3 and ZeRO++ on 24 DGX-2 with four InfiniBand links of 100 Gb/s a node, and with one: the
// shares that make the worst error of the runs of 18B and 91B the least.
inline constexpr FittedProgram kFourLinks{0.43}, kOneLink{0.79};

// Published runs that shard groups are compared by; null for others.
inline const FittedProgram* FittedOf(const PublishedRun& run) {
  static constexpr FittedProgram kNothing;
  if (run.id.starts_with("internevo-7b-zero1")) return &kInternEvo;
  if (run.machine == "dgx-2") return run.network == "4x100Gb" ? &kFourLinks : &kOneLink;
  return run.framework == "fms-fsdp, HSDP" ? &kNothing : nullptr;
}

inline double StepSeconds(const PublishedRun& run, const FittedProgram& fitted = {}) {
  HardwareProfile hardware = LoadProfile(run.machine);
  if (!run.network.empty()) ApplyNetwork(hardware, run.network);
  if (fitted.network_share > 0) {
    hardware.network->reached = hardware.network->bandwidth_per_node;
    hardware.network->reached->value = fitted.network_share;
  }
  const int per_node = static_cast<int>(std::llround(hardware.node.gpus.value));
  const ClusterShape shape{run.gpus, std::min(run.gpus, per_node)};
  TrainSetup setup;
  setup.zero = ReaderZeroDefaults(run.stage);
  setup.zero.overlap_comm = true;
  if (run.reduce_bucket > 0) setup.zero.reduce_bucket_elements = run.reduce_bucket;
  setup.zero.shard_group = run.shard_group;
  setup.zero.across_stage = run.across_stage;
  setup.zero.quantized_weights = setup.zero.quantized_gradients = run.quantized;
  setup.batch = {run.micro_batch, run.grad_accum, run.gpus, run.seq};
  setup.precision.dtype = setup.precision.grad_accum_dtype =
      run.dtype == "fp16" ? Dtype::kF16 : Dtype::kBF16;
  setup.precision.fp32_reduction = run.fp32_reduction;
  setup.precision.fp8.enabled = run.fp8;
  setup.recompute = run.recompute == "full" ? FullRecompute() : kNoRecompute;
  if (run.runtime == "zeroplan") {
    setup.zero = {};
    setup.zero.stage = run.stage;
    setup.zero.shard_group = run.shard_group;
    ValidateSetup(setup, run.id);
    LowerOptions options;
    options.backend = Backend::kCuda;
    options.flash_attention = hardware.gpu.flash_attention;
    const CostModel costs(hardware, shape);
    const StepTime time = StepTimer(costs).Time(Lower(run.model, setup, options));
    const double owners = run.owner_broadcasts ? run.gpus : run.shard_group;
    return time.total_seconds + (fitted.kernels - 1) * time.compute_seconds +
           owners * fitted.broadcast_seconds;
  }
  const TorchMachine machine(hardware, shape);
  TorchTimer timer(&machine, TimeConstants{});
  const Runtime& runtime = run.runtime == "fsdp2" ? Fsdp2Runtime() : DeepSpeedRuntime();
  dynamic_cast<const TorchBased&>(runtime).Play(
      {.model = run.model, .setup = setup, .recipe = {.compile = {run.compile, false}}}, &timer);
  return timer.Time(run.grad_accum)->step_seconds;
}

// Fills `predicted` of each run. Returns the smallest run of each work; it points into `runs`.
inline std::map<std::string, const PublishedRun*> PredictRuns(std::vector<PublishedRun>& runs) {
  std::map<std::string, const PublishedRun*> smallest;
  for (PublishedRun& run : runs) {
    const auto tokens = static_cast<double>(run.micro_batch * run.grad_accum * run.seq);
    run.predicted = tokens / StepSeconds(run);
    const PublishedRun*& found = smallest[run.work];
    if (found == nullptr || run.gpus < found->gpus) found = &run;
  }
  return smallest;
}

}  // namespace zeroplan
