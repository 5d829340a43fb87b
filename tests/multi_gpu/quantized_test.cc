// Collectives that send blocks of integers, over NCCL: they change numbers, so runs follow stage 0
// on one GPU loosely; what they take is what was planned.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fstream>
#include <string>

#include "machine/detect.h"
#include "tests/multi_gpu/gpu_training.h"

namespace zeroplan {
namespace {

constexpr int kQuantizedSteps = 20;

std::string QuantizedConfig(const TrainingFolder& folder, const std::string& name,
                            const std::string& keys) {
  const std::string file = folder.path(name + ".json");
  std::ofstream(file) << fmt::format(
      R"({{"bf16": {{"enabled": true}}, "gradient_clipping": 1.0,
        "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-3, "betas": [0.9, 0.999],
                      "weight_decay": 0}}}},
        "zero_optimization": {{"stage": 3, "stage3_param_persistence_threshold": 1000, {}}}}})",
      keys);
  return file;
}

TEST_CASE("bf16: quantized gathers and reductions learn as stage 0 on one GPU") {
  const TrainingFolder folder;
  const Curve exact = StageZeroAlone(folder, "bf16", kQuantizedSteps);
  const std::string weights = "\"zero_quantized_weights\": true";
  const std::string gradients = "\"zero_quantized_gradients\": true";
  const auto all = static_cast<int>(QueryGpus().size());
  const auto checked = [&](const std::string& name, int code, const std::string& output) {
    CAPTURE(name);
    CAPTURE(output);
    REQUIRE(code == 0);
    const double off = Farthest(folder.Losses(name), exact.losses);
    INFO("losses are off by ", off);
    CHECK(off < 0.02);
    CHECK(off > 0);
    const nlohmann::json end = folder.LastLine(name);
    CHECK(end["high_water_bytes"] == end["planned_arena_bytes"]);
  };
  for (const int gpus : {2, 4}) {
    if (gpus > all) continue;
    std::vector<AskedTraining> asked;
    for (const std::string& group :
         {std::string(), std::string("\"zero_hpz_partition_size\": 2")}) {
      if (!group.empty() && gpus == 2) continue;
      for (const std::string& keys : {weights, gradients, weights + ", " + gradients}) {
        for (const int accum : {1, 2}) {
          const std::string name =
              fmt::format("quantized-{}-{}-{}-{}", gpus, group.size(), keys.size(), accum);
          const std::string config =
              QuantizedConfig(folder, name, group.empty() ? keys : keys + ", " + group);
          asked.push_back(
              {name,
               folder.Train(name,
                            fmt::format("--config {} --gpus {} --micro-batch {} --grad-accum {}",
                                        config, gpus, kReferenceBatch / gpus / accum, accum),
                            kQuantizedSteps)});
        }
      }
    }
    RunTogether(folder, gpus, asked, checked);
  }
}

}  // namespace
}  // namespace zeroplan
