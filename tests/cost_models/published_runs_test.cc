// What others measured of GPT-style models beside what is predicted for zeroplan's executor at the
// same shape, batch and sharding. The runs are of other executors, so this is one-sided: none may
// beat the prediction by more than 5 %, and those that are tuned may not fall far behind it.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/published_shapes.h"
#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "cost_models/cost_model.h"
#include "cost_models/step_time.h"
#include "hwprofiles/loader.h"
#include "tests/paths.h"

namespace zeroplan {
namespace {

// Executors with kernels fused by hand; the others are FSDP over stock modules.
bool IsTuned(const PublishedShape& run) {
  return run.framework == "llm.c" || run.framework.starts_with("flash-attention") ||
         run.framework.starts_with("Megatron");
}

// Of other programs than Composer those that do what an executor of zeroplan does.
std::vector<PublishedShape> ReadRuns() {
  std::vector<PublishedShape> runs = ReadPublishedShapes(SourcePath(""));
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

// Predicted over measured tokens a second. Above 1: the run was slower than predicted.
double Ratio(const PublishedShape& run) {
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
  // Of data parallel programs that shard the optimizer themselves.
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

struct Summary {
  int runs = 0;
  double sum = 0, least = 1e9, most = 0;
  double mean() const { return sum / runs; }
};

TEST_CASE("no published run is faster than predicted by more than 5 %, and tuned ones are close") {
  std::map<std::string, Summary> groups;
  const std::vector<PublishedShape> runs = ReadRuns();
  REQUIRE(runs.size() == 153);
  for (const PublishedShape& run : runs) {
    const double ratio = Ratio(run);
    INFO(fmt::format("{}: predicted {:.2f} times as fast as it was measured", run.id, ratio));
    CHECK(ratio > 1 / 1.05);
    const std::string gpu = LoadProfile(run.machine).gpu.architecture;
    // Long sequences are attention, of kernels that have become faster since.
    const std::string group = IsTuned(run)     ? gpu + ", tuned"
                              : run.seq > 2048 ? gpu + ", long"
                              : run.offload    ? gpu + ", offload"
                                               : gpu + ", FSDP";
    Summary& summary = groups[group];
    ++summary.runs;
    summary.sum += ratio;
    summary.least = std::min(summary.least, ratio);
    summary.most = std::max(summary.most, ratio);
  }
  for (const auto& [group, summary] : groups) {
    // Tuned executors: what zeroplan's own was measured to be slower than predicted by (1.03
    // to 1.11 on H200), and what it is faster than they are.
    if (group.ends_with(", tuned")) {
      CHECK(summary.mean() > 1.03);
      CHECK(summary.mean() < 1.3);
    }
    MESSAGE(fmt::format("{}: {} runs, {:.2f} to {:.2f}, mean {:.2f}", group, summary.runs,
                        summary.least, summary.most, summary.mean()));
  }
}

TEST_CASE("the GPUs that these runs are of rest on measurements") {
  for (const std::string name : {"dgx-a100-40gb", "dgx-a100-80gb", "dgx-h100", "dgx-2"}) {
    CAPTURE(name);
    const GpuProfile gpu = LoadProfile(name).gpu;
    const Dtype dtype = DefaultDtype(LoadProfile(name));
    // Of an A100 what was measured is the best of all shapes.
    const Figure& reached = gpu.reachable_peaks.at(dtype);
    CHECK((reached.source == FigureSource::kMeasured ||
           reached.reference.find("Maximum Achievable Matmul FLOPS") != std::string::npos));
    if (!gpu.flash_attention) continue;
    const bool measured_rows = gpu.attention.has_value();
    CHECK((measured_rows ? gpu.attention->source == FigureSource::kMeasured
                         : gpu.attention_forward->source == FigureSource::kMeasured));
  }
}

}  // namespace
}  // namespace zeroplan
