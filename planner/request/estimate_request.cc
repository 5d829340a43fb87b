#include "planner/request/estimate_request.h"

#include <fmt/format.h>

#include "core/base/units.h"
#include "planner/request/notes.h"

namespace zeroplan {
namespace {

// Rows with a disk that nobody named: what it is taken for.
void NoteDisk(const EstimateInputs& inputs, const Request& request, const HardwareProfile& hardware,
              Assumptions& assumptions) {
  if (request.cluster.nvme_capacity) return;
  const std::optional<Figure>& capacity = hardware.node.nvme_capacity;
  if (capacity && capacity->source != FigureSource::kDerived) return;
  for (const TrainSetup& setup : inputs.setups) {
    if (setup.zero.offload_optimizer.device != OffloadDevice::kNvme &&
        setup.zero.offload_param.device != OffloadDevice::kNvme) {
      continue;
    }
    assumptions.notes.push_back(
        capacity
            ? fmt::format("NVMe: {} a node by the hardware profile, {}.",
                          FormatBytes(static_cast<uint64_t>(capacity->value)), capacity->reference)
            : "NVMe: the hardware profile does not say how much there is, so it is not "
              "checked; @@nvme_capacity sets it.");
    return;
  }
}

}  // namespace

ResolvedEstimate::ResolvedEstimate(const Request& request, Assumptions& assumptions)
    : hardware_(ResolveHardware(request.hardware, assumptions, MeasureHost::kYes)) {
  const HardwareProfile& hardware = hardware_;
  EstimateInputs& inputs = inputs_;
  inputs.model = ResolveModel(request.model, request.batch.seq_len, assumptions);
  inputs.cluster = ResolveCluster(request, hardware, assumptions);
  costs_.emplace(hardware, ClusterShape{inputs.cluster.gpus, inputs.cluster.gpus_per_node});
  inputs.costs = &*costs_;
  const int gpus = inputs.cluster.gpus;
  if (request.config.empty()) {
    inputs.setups = ResolveSetups(request, inputs.model, hardware, gpus, DefaultDtype(hardware),
                                  ChoiceSpace{}, assumptions);
  } else {
    inputs.setups = {ResolveConfig(request, inputs.model, hardware, gpus, assumptions)};
  }
  const TrainSetup& setup = inputs.setups.front();
  inputs.lower = GpuLowerOptions(inputs.model, setup.precision.dtype, hardware.gpu);
  if (request.async_save == AsyncSave::kOn) {
    inputs.lower.async_save = true;
    assumptions.notes.push_back(
        "Host memory counts a copy of the states, from which saves are written beside the steps "
        "(@@async_save on).");
  }
  ApplyPacking(request, inputs.lower, assumptions);
  NoteAttention(inputs.model, setup, inputs.lower, hardware, setup.deterministic, assumptions);
  NoteDisk(inputs, request, hardware, assumptions);
  NoteIdleSums(inputs.setups, assumptions);
  inputs.goal = ResolveGoal(request.goal, inputs.setups.front().batch.seq_len);
  NoteGuesses(hardware, inputs.cluster, inputs.setups, assumptions);
}

}  // namespace zeroplan
