// Predictions for zeroplan's own executor at the shape, batch and sharding of published runs of
// GPT-style models.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "benchmarks/published_shapes.h"
#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "cost_models/cost_model.h"
#include "cost_models/step_time.h"
#include "hwprofiles/loader.h"

namespace zeroplan {

// Executors with kernels fused by hand; the others are FSDP over stock modules.
inline bool IsTuned(const PublishedShape& run) {
  return run.framework == "llm.c" || run.framework.starts_with("flash-attention") ||
         run.framework.starts_with("Megatron");
}

// Reads the runs of programs that do what an executor of zeroplan does; Composer is left out.
inline std::vector<PublishedShape> ReadOwnShapes(const std::string& folder) {
  std::vector<PublishedShape> runs = ReadPublishedShapes(folder);
  std::erase_if(runs, [](const PublishedShape& run) {
    static constexpr std::array kOthers = {"fa-GPT3-760M",
                                           "fa-GPT3-2.7B",
                                           "llmc-350M",
                                           "llmc-1558M",
                                           "fairseq-13B-offload-8xV100",
                                           "bs-1B3-V100-32GB-mb2-ckpt",
                                           "bs-1B3-V100-32GB-mb8-ckpt"};
    return !run.framework.starts_with("Composer") &&
           std::find(kOthers.begin(), kOthers.end(), run.id) == kOthers.end();
  });
  return runs;
}

// Measured over predicted step, which is predicted over measured tokens a second. Above 1: the run
// was slower than predicted.
inline double MeasuredOverPredicted(const PublishedShape& run) {
  const HardwareProfile hardware = LoadProfile(run.machine);
  ModelSpec model = LoadModel("gpt2");
  model.layers = run.layers;
  model.hidden = run.hidden;
  model.heads = run.heads;
  model.ffn = 4 * run.hidden;
  model.vocab = run.vocab;
  model.padded_vocab = (run.vocab + 127) / 128 * 128;
  model.positions = run.seq;
  TrainSetup setup;
  // Data parallel programs shard the optimizer themselves.
  setup.zero.stage = std::max(run.stage, 1);
  if (run.offload) {
    setup.zero.offload_optimizer.device = setup.zero.offload_param.device = OffloadDevice::kCpu;
  }
  setup.precision.dtype = setup.precision.grad_accum_dtype = DefaultDtype(hardware);
  setup.batch = {run.micro_batch, run.grad_accum, run.gpus, run.seq};
  setup.recompute = run.recompute ? FullRecompute() : kNoRecompute;
  ValidateSetup(setup, run.id);
  LowerOptions options;
  options.backend = Backend::kCuda;
  options.flash_attention = hardware.gpu.flash_attention;
  const int per_node = static_cast<int>(std::llround(hardware.node.gpus.value));
  const CostModel costs(hardware, ClusterShape{run.gpus, std::min(run.gpus, per_node)});
  const double seconds = StepTimer(costs).Time(Lower(model, setup, options)).total_seconds;
  const auto tokens = static_cast<double>(run.micro_batch * run.grad_accum * run.seq);
  return tokens / seconds / run.tokens_per_second;
}

}  // namespace zeroplan
