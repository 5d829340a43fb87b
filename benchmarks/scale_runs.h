// Training runs that others published, and what is predicted for them: what scale_benchmark prints
// and a test holds the printed margins to.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

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
  int gpus = 1, stage = 0;
  int64_t seq = 0, micro_batch = 1, grad_accum = 1;
  bool fp32_reduction = false, held = false;
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
    run.measured = json.at("tokens_per_second");
    run.model =
        PublishedModel(json.at("family"), json.at("layers"), json.at("hidden"), json.at("heads"),
                       json.at("kv_heads"), json.at("ffn"), json.at("vocab"), run.seq);
    // NeMo's runs share a batch over more GPUs; a step's rest is little beside 8 micro-steps.
    const int64_t batch = run.framework == "NeMo Megatron" ? 0 : run.micro_batch * run.grad_accum;
    run.work = fmt::format("{} {} {} {} {}", run.framework, run.model.hidden, run.stage,
                           run.recompute, batch);
  }
  return runs;
}

inline std::vector<PublishedRun> ReadFsdpRuns(const std::string& folder) {
  std::ifstream in(folder + "/tests/fixtures/published_runs.txt");
  ZEROPLAN_CHECK(in.good(), "no published_runs.txt in {}", folder);
  std::vector<PublishedRun> runs;
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("mpt-") && !line.starts_with("mgpt-")) continue;
    PublishedRun run;
    std::string offload, style;
    int64_t layers = 0, hidden = 0, heads = 0, vocab = 0;
    std::istringstream words(line);
    words >> run.id >> run.machine >> run.gpus >> run.stage >> offload >> run.recompute >> layers >>
        hidden >> heads >> vocab >> run.seq >> run.micro_batch >> run.grad_accum >> style >>
        run.measured;
    ZEROPLAN_CHECK(words, "{}", line);
    run.framework = "Composer, FSDP";
    run.runtime = "fsdp2";
    run.dtype = "bf16";
    run.fp32_reduction = run.id.find("amp_bf16") != std::string::npos;
    run.held = run.gpus >= 256;
    run.model = PublishedModel("gpt2", layers, hidden, heads, heads, 4 * hidden, vocab, run.seq);
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

inline double StepSeconds(const PublishedRun& run) {
  HardwareProfile hardware = LoadProfile(run.machine);
  if (!run.network.empty()) ApplyNetwork(hardware, run.network);
  const int per_node = static_cast<int>(std::llround(hardware.node.gpus.value));
  const ClusterShape shape{run.gpus, std::min(run.gpus, per_node)};
  TrainSetup setup;
  setup.zero = ReaderZeroDefaults(run.stage);
  setup.zero.overlap_comm = true;
  setup.batch = {run.micro_batch, run.grad_accum, run.gpus, run.seq};
  setup.precision.dtype = setup.precision.grad_accum_dtype =
      run.dtype == "fp16" ? Dtype::kF16 : Dtype::kBF16;
  setup.precision.fp32_reduction = run.fp32_reduction;
  setup.recompute = run.recompute == "full" ? FullRecompute() : kNoRecompute;
  if (run.runtime == "zeroplan") {
    setup.zero = {};
    setup.zero.stage = run.stage;
    ValidateSetup(setup, run.id);
    LowerOptions options;
    options.backend = Backend::kCuda;
    options.flash_attention = hardware.gpu.flash_attention;
    const CostModel costs(hardware, shape);
    return StepTimer(costs).Time(Lower(run.model, setup, options)).total_seconds;
  }
  const TorchMachine machine(hardware, shape);
  TorchTimer timer(&machine, TimeConstants{});
  const Runtime& runtime = run.runtime == "fsdp2" ? Fsdp2Runtime() : DeepSpeedRuntime();
  dynamic_cast<const TorchBased&>(runtime).Play({run.model, setup, false, false, {}}, &timer);
  return timer.Time(run.grad_accum)->step_seconds;
}

}  // namespace zeroplan
