#include "planner/runtimes/runtime_estimate.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/units.h"
#include "planner/footprint.h"
#include "planner/runtimes/deepspeed.h"
#include "planner/runtimes/fsdp2.h"

namespace zeroplan {
namespace {

// What takes most of a peak.
std::string LargestClass(const TorchPeak& peak, TorchPhase phase, int stage) {
  const auto largest = std::max_element(peak.class_bytes.begin(), peak.class_bytes.end());
  const auto kind = static_cast<TorchClass>(largest - peak.class_bytes.begin());
  std::string name(TorchClassName(kind));
  if (phase == TorchPhase::kInit && kind == TorchClass::kParams && stage < 3) {
    name = "parameters beside a copy of them";
  }
  return fmt::format("{} {}", FormatBytes(*largest), name);
}

// The first phase after initialisation whose tensors alone exceed `has`, beside what lies outside
// the allocator; initialisation may take another way where memory is short.
std::optional<TorchPhase> PhaseTooLarge(const RuntimeFootprint& free, uint64_t has) {
  const auto too_large = [&](TorchPhase phase) {
    return free.peaks[static_cast<size_t>(phase)].allocated_bytes + free.context_bytes > has;
  };
  if (too_large(TorchPhase::kInit)) return std::nullopt;
  for (const TorchPhase phase : {TorchPhase::kForwardBackward, TorchPhase::kStep}) {
    if (too_large(phase)) return phase;
  }
  return std::nullopt;
}

std::string GpuMisfit(const RuntimeFootprint& free, TorchPhase phase, uint64_t has, int stage) {
  const TorchPeak& peak = free.peaks[static_cast<size_t>(phase)];
  const uint64_t tensors = peak.allocated_bytes + free.context_bytes;
  const std::string_view where = phase == TorchPhase::kInit              ? "initialisation"
                                 : phase == TorchPhase::kForwardBackward ? "forward and backward"
                                                                         : "the optimizer step";
  if (tensors > has) {
    return fmt::format(
        "GPU memory: out of memory in {}: tensors and context need {} of {}, most of "
        "it {}",
        where, FormatBytes(tensors), FormatBytes(has), LargestClass(peak, phase, stage));
  }
  return fmt::format(
      "GPU memory: out of memory in {}: tensors and context need {} of {}, but what "
      "the allocator has free is in pieces that are too small; it would take {}",
      where, FormatBytes(tensors), FormatBytes(has),
      FormatBytes(peak.reserved_bytes + free.context_bytes));
}

RuntimeFootprint FootprintOf(const RuntimeEstimate& estimate, const TrainSetup& setup,
                             std::optional<uint64_t> limit_bytes, TorchTimer* timer = nullptr) {
  const TorchCompile& compile = estimate.compile;
  switch (estimate.runtime) {
    case OtherRuntime::kDeepSpeed:
      return DeepSpeedFootprint({estimate.model, setup, compile.layers, compile.loss, limit_bytes},
                                timer);
    case OtherRuntime::kFsdp2:
      return Fsdp2Footprint({estimate.model, setup, compile.layers, compile.loss, limit_bytes},
                            timer);
  }
  ZEROPLAN_CHECK(false);
}

}  // namespace

std::string_view OtherRuntimeName(OtherRuntime runtime) {
  return runtime == OtherRuntime::kDeepSpeed ? "DeepSpeed" : "FSDP2";
}

std::string_view CompileName(TorchCompile compile) {
  return !compile.layers ? "" : compile.loss ? "all" : "layers";
}

std::string_view CompiledText(TorchCompile compile) {
  if (!compile.layers) return "not compiled";
  return compile.loss ? "layers and loss compiled" : "layers compiled";
}

const RuntimeMargins& MarginsOf(OtherRuntime runtime) {
  return runtime == OtherRuntime::kFsdp2 ? kFsdp2Margins : kDeepSpeedMargins;
}

double ReservedWithMargin(OtherRuntime runtime, const RuntimeFootprint& footprint) {
  const RuntimeMargins& margins = MarginsOf(runtime);
  return static_cast<double>(footprint.ReservedBytes()) /
         (1 - std::max(margins.reserved, margins.device));
}

RuntimeEstimate EstimateRuntime(OtherRuntime runtime, const ModelSpec& model,
                                const Cluster& cluster, const std::vector<TrainSetup>& setups,
                                TorchCompile compile, const TorchMachine* machine) {
  RuntimeEstimate estimate{runtime, model, cluster, compile, {}};
  const Capacity capacity = CapacityOf(cluster);
  for (const TrainSetup& setup : setups) {
    RuntimeChoice choice;
    choice.setup = setup;
    const bool host_known = machine != nullptr && machine->host_bytes_per_second > 0;
    const bool on_host = setup.zero.offload_optimizer.device != OffloadDevice::kNone;
    TorchTimer timer(on_host && !host_known ? nullptr : machine, {});
    choice.footprint = FootprintOf(estimate, setup, std::nullopt, &timer);
    choice.time = timer.Time(setup.batch.grad_accum);
    const RuntimeFootprint& free = choice.footprint;
    const std::optional<TorchPhase> too_large =
        capacity.gpu_bytes ? PhaseTooLarge(free, *capacity.gpu_bytes) : std::nullopt;
    if (too_large) {
      choice.why_not = GpuMisfit(free, *too_large, *capacity.gpu_bytes, setup.zero.stage);
    } else if (capacity.gpu_bytes && free.DeviceBytes() > *capacity.gpu_bytes) {
      const RuntimeFootprint limited = FootprintOf(
          estimate, setup, *capacity.gpu_bytes - std::min(*capacity.gpu_bytes, free.context_bytes));
      if (limited.out_of_memory) {
        choice.why_not =
            GpuMisfit(free, *limited.out_of_memory, *capacity.gpu_bytes, setup.zero.stage);
      } else {
        choice.empties_cache = true;
        choice.segments_given_back = limited.segments_given_back;
      }
    } else if (capacity.gpu_bytes) {
      choice.tight = ReservedWithMargin(runtime, free) + static_cast<double>(free.context_bytes) >
                     static_cast<double>(*capacity.gpu_bytes);
    }
    const uint64_t host = free.HostBytes() * static_cast<uint64_t>(cluster.ranks_per_node());
    if (capacity.host_bytes && host > *capacity.host_bytes) {
      if (!choice.why_not.empty()) choice.why_not += "; and ";
      choice.why_not +=
          fmt::format("host memory: {} processes need {} of {}", cluster.ranks_per_node(),
                      FormatBytes(host), FormatBytes(*capacity.host_bytes));
    }
    estimate.choices.push_back(std::move(choice));
  }
  return estimate;
}

}  // namespace zeroplan
