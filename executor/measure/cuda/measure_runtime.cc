// Device memory outside the arenas: context, modules, cuBLASLt, cuDNN and NCCL, as a training run
// has them.
#include <fmt/format.h>

#include <algorithm>

#include "core/base/units.h"
#include "core/families/load_model.h"
#include "core/lowering/lower.h"
#include "executor/engine/engine.h"
#include "executor/measure/cuda/device_parts.h"
#include "executor/measure/cuda/rank_timer.h"
#include "executor/measure/measurement.h"
#include "executor/measure/part_runner.h"

namespace zeroplan {
namespace {

// Enough for everything that is loaded late, and for graphs, which small steps are replayed from
// after the third.
constexpr int kSteps = 5;

// Two layers of GPT-2 small: every kernel of a training step, and collectives of some size. Several
// ranks use one communicator at stage 0, two at others.
Program SmallProgram(const DeviceProperties& device, int ranks, int stage) {
  ModelSpec model = LoadModel("gpt2");
  model.layers = 2;
  TrainSetup setup;
  setup.zero.stage = stage;
  setup.batch = {.micro_batch = 4, .grad_accum = 2, .world_size = ranks, .seq_len = 1024};
  setup.precision.dtype = setup.precision.grad_accum_dtype = HalfDtype(device);
  LowerOptions lower;
  lower.backend = Backend::kCuda;
  lower.flash_attention = device.fused_attention;
  return Lower(model, setup, lower);
}

double UsedBytes() {
  size_t free_bytes = 0, total_bytes = 0;
  ZEROPLAN_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
  return static_cast<double>(total_bytes - free_bytes);
}

double RuntimeOf(const Program& program, ProcessGroup& group) {
  EngineOptions options;
  options.backend = Backend::kCuda;
  options.group = &group;
  Engine engine(program, options);
  engine.Init();
  const auto tokens = [](int rank, int64_t, std::span<int32_t> inputs, std::span<int32_t> targets) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] = static_cast<int32_t>((i * 7919 + static_cast<size_t>(rank)) % 50257);
      targets[i] = static_cast<int32_t>((i * 104729 + 1) % 50257);
    }
  };
  for (int step = 0; step < kSteps; ++step) engine.Step(tokens);
  engine.Evaluate(tokens);
  const auto used = static_cast<double>(engine.DeviceUsedBytes().value());
  const auto arena = static_cast<double>(program.arena_bytes[static_cast<size_t>(Space::kDevice)]);
  const std::vector<double> all = GatherNumbers(group, used - arena);
  return *std::max_element(all.begin(), all.end());
}

}  // namespace

std::string WhoIsBusy(ProcessGroup& group) {
  // A context alone takes some hundred megabytes; what is beyond belongs to somebody else.
  constexpr double kContext = 1.5e9;
  const std::vector<double> used = GatherNumbers(group, UsedBytes());
  const auto most = std::max_element(used.begin(), used.end());
  if (*most <= kContext) return "";
  return fmt::format("{} of the GPU of rank {} are in use by others; measure on an idle machine",
                     FormatBytes(static_cast<uint64_t>(*most)), most - used.begin());
}

std::vector<RuntimeMeasurement> MeasureRuntime(ProcessGroup& group, const DeviceProperties& device,
                                               const PartRunner::Say& say) {
  std::vector<RuntimeMeasurement> result;
  for (const int members : WorldSizes(group.world_size())) {
    SubGroup sub(group, members);
    if (!sub.is_member()) {
      sub.Follow();
      continue;
    }
    const double least = RuntimeOf(SmallProgram(device, members, 0), sub);
    if (members == 1) {
      result.push_back({members, least, std::nullopt});
      say(fmt::format("  1 GPU: {:.0f} MiB", least / kMib));
    } else {
      const double both = RuntimeOf(SmallProgram(device, members, 2), sub);
      result.push_back({members, both, std::max(0.0, both - least)});
      say(fmt::format("  {} GPUs: {:.0f} MiB with both communicators, {:.0f} with one", members,
                      both / kMib, least / kMib));
    }
    sub.Dismiss();
  }
  return result;
}

}  // namespace zeroplan
