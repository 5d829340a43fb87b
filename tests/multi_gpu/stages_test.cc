// ZeRO over NCCL, one process a GPU: each stage and offload follows stage 0 on one GPU, with the
// planned bytes.
#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <thread>

#include "hwprofiles/detect.h"
#include "tests/multi_gpu/gpu_training.h"

namespace zeroplan {
namespace {

using std::chrono::seconds;

constexpr int kSteps = 20;
constexpr int kGlobalBatch = kReferenceBatch;

int MostGpus() { return std::min(static_cast<int>(QueryGpus().size()), kGlobalBatch); }

struct Choice {
  std::string name, options;
};

std::vector<Choice> Choices(const std::string& disk) {
  std::vector<Choice> all;
  for (const std::string stage : {"0", "1", "2", "3"}) {
    all.push_back({"stage" + stage, "--stage " + stage});
    if (stage != "0") {
      all.push_back({"stage" + stage + "-cpu", "--stage " + stage + " --offload-optimizer cpu"});
    }
  }
  const std::string nvme = " --nvme-path " + disk;
  all.push_back({"stage2-half", "--stage 2 --offload-optimizer cpu --offload-ratio 0.5"});
  all.push_back({"stage2-nvme", "--stage 2 --offload-optimizer nvme" + nvme});
  all.push_back({"stage3-params", "--stage 3 --offload-optimizer cpu --offload-param cpu"});
  all.push_back({"stage3-nvme", "--stage 3 --offload-optimizer nvme --offload-param nvme" + nvme});
  all.push_back({"stage3-full", "--stage 3 --checkpointing full"});
  all.push_back({"stage3-selective", "--stage 3 --checkpointing selective"});
  return all;
}

struct Curves {
  const TrainingFolder& folder;
  std::map<int, double> reference;
  double bound;
};

void CheckRun(const Curves& curves, const std::string& name, GpuTraining& run) {
  CAPTURE(name);
  const int code = run.Wait(seconds(120));
  CAPTURE(run.output());
  REQUIRE(code == 0);
  const double farthest = Farthest(curves.folder.Losses(name), curves.reference);
  INFO("off by ", farthest);
  CHECK(farthest <= curves.bound);
  const nlohmann::json end = curves.folder.LastLine(name);
  REQUIRE(end["event"] == "end");
  CHECK(end["high_water_bytes"] == end["planned_arena_bytes"]);
}

void CheckAllOn(const Curves& curves, int gpus, const std::string& dtype) {
  std::vector<Choice> choices = Choices(curves.folder.path(""));
  while (!choices.empty()) {
    std::vector<std::pair<std::string, std::unique_ptr<GpuTraining>>> runs;
    // Starting takes most of a run's time, and a core a rank: so many share the GPUs.
    const int at_once = std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / gpus);
    for (int i = 0; i < at_once && !choices.empty(); ++i) {
      const Choice choice = choices.back();
      choices.pop_back();
      const std::string name = dtype + "-" + std::to_string(gpus) + "gpus-" + choice.name;
      const std::string options = choice.options + " --dtype " + dtype + " --gpus " +
                                  std::to_string(gpus) + " --micro-batch " +
                                  std::to_string(kGlobalBatch / gpus);
      runs.emplace_back(name,
                        std::make_unique<GpuTraining>(curves.folder.Train(name, options, kSteps),
                                                      curves.folder.path(name + ".log")));
    }
    for (auto& [name, run] : runs) CheckRun(curves, name, *run);
  }
}

TEST_CASE("fp32: stages and offloads on several GPUs follow stage 0 on one") {
  const TrainingFolder folder;
  // Sums over ranks in other orders: about 1e-7 of a gradient, carried on by AdamW for 20 steps. A
  // gradient lost, doubled or a step late moves a loss by far more.
  const Curves curves{folder, StageZeroAlone(folder, "fp32", kSteps), 1e-5};
  for (int gpus = 2; gpus <= MostGpus(); gpus *= 2) {
    CheckAllOn(curves, gpus, "fp32");
  }
}

TEST_CASE("bf16: stages and offloads on several GPUs follow stage 0 on one within bf16's noise") {
  const TrainingFolder folder;
  const std::map<int, double> exact = StageZeroAlone(folder, "fp32", kSteps);
  const std::map<int, double> coarse = StageZeroAlone(folder, "bf16", kSteps);
  // Every choice rounds gradients once more or less, and so lies as far from fp32 as stage 0 does:
  // two such are at most twice that apart.
  const double noise = Farthest(coarse, exact);
  REQUIRE(noise < 0.01);
  const Curves curves{folder, coarse, 2 * noise};
  for (int gpus = 2; gpus <= MostGpus(); gpus *= 2) {
    CheckAllOn(curves, gpus, "bf16");
  }
}

}  // namespace
}  // namespace zeroplan
