// Tokens per second of training on one GPU, and the memory it takes beside what was planned.
//
//   cuda_training_benchmark MODEL MICRO_BATCH [STAGE] [none|cpu (optimizer)] [RECOMPUTE]
//
// RECOMPUTE: 0 for none, layers a segment, or selective.
//
// Hardware: one NVIDIA GPU; memory: what it prints as planned. bf16 with fp32 master weights,
// sequences of 1024 random tokens, clipping on. Median of ten steps after four.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/timing.h"
#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "core/model/model_spec.h"
#include "executor/engine/engine.h"

namespace zeroplan {
namespace {

constexpr int kWarmUp = 4, kTimed = 10;
constexpr double kH200DensePeak = 989.4e12;  // NVIDIA H200 datasheet, bf16 without sparsity

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int Run(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr,
               "usage: cuda_training_benchmark MODEL MICRO_BATCH [STAGE] [none|cpu] [RECOMPUTE]\n");
    return 2;
  }
  const std::vector<ModelPreset>& presets = ModelPresets();
  const auto preset = std::find_if(presets.begin(), presets.end(),
                                   [&](const ModelPreset& p) { return p.spec.name == argv[1]; });
  if (preset == presets.end()) ThrowUsage("MODEL: {} is no preset (zeroplan model list)", argv[1]);
  const ModelSpec model = preset->spec;
  TrainSetup setup;
  setup.batch = {std::stoll(argv[2]), 1, 1, 1024};
  if (argc > 3) setup.zero.stage = std::stoi(argv[3]);
  if (argc > 4 && std::string(argv[4]) == "cpu") {
    setup.zero.offload_optimizer.device = OffloadDevice::kCpu;
  }
  if (argc > 5) {
    const std::string recompute = argv[5];
    if (recompute == "selective") {
      setup.recompute = kSelectiveRecompute;
    } else if (recompute != "0") {
      setup.recompute = FullRecompute(std::stoi(recompute));
    }
  }
  LowerOptions lower;
  lower.backend = Backend::kCuda;
  lower.checkpoints = false;
  const Program program = Lower(model, setup, lower);
  EngineOptions options;
  options.backend = Backend::kCuda;
  const double begin = Seconds();
  Engine engine(program, options);
  engine.Init();
  fmt::print("{}, micro-batch {}, stage {}: ready after {:.1f} s\n", model.name,
             setup.batch.micro_batch, setup.zero.stage, Seconds() - begin);
  std::mt19937 rng(1);
  const auto vocab = static_cast<uint64_t>(model.vocab);
  const auto token = [&] { return static_cast<int32_t>(rng() % vocab); };
  const FillBatch fill = [&](int, int64_t, std::span<int32_t> inputs, std::span<int32_t> targets) {
    std::generate(inputs.begin(), inputs.end(), token);
    std::generate(targets.begin(), targets.end(), token);
  };
  std::vector<double> seconds;
  StepState state;
  for (int step = 0; step < kWarmUp + kTimed; ++step) {
    const double start = Seconds();
    state = engine.Step(fill);
    if (step >= kWarmUp) seconds.push_back(Seconds() - start);
  }
  const double median = Median(std::move(seconds));
  const auto tokens = static_cast<double>(setup.batch.micro_batch * setup.batch.seq_len);
  const double rate = tokens / median;
  fmt::print(
      "loss {:.4f}  norm {:.3f}  step {:.4f} s  {:.0f} tokens/s  strict MFU of an H200 "
      "{:.1f} %\n",
      state.loss_sum, state.grad_norm, median, rate,
      100 * rate * TrainFlopsPerToken(model, setup.batch.seq_len) / kH200DensePeak);
  const StepTimes times = engine.LastStepTimes();
  fmt::print("waited for offload {:.4f} s of the last step\n",
             times.exposed_offload_seconds.value_or(0));
  const uint64_t arena = program.arena_bytes[0], used = engine.DeviceUsedBytes().value_or(0);
  fmt::print("device: arena {} bytes, touched {}, used {} (outside the arena {:.1f} MiB)\n", arena,
             engine.high_water().touched_bytes[0], used,
             static_cast<double>(used - arena) / (1 << 20));
  return 0;
}

}  // namespace
}  // namespace zeroplan

int main(int argc, char** argv) {
  try {
    return zeroplan::Run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 4;
  }
}
