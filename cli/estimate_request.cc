#include "cli/estimate_request.h"

#include "core/base/units.h"

namespace zeroplan {
namespace {

// Rows with a disk that nobody named: what it is taken for.
void NoteDisk(const EstimateInputs& inputs, const CommonOptions& common,
              const HardwareProfile& hardware, Assumptions& assumptions) {
  if (common.cluster.nvme_capacity) return;
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
              "checked; --nvme-capacity sets it.");
    return;
  }
}

}  // namespace

void AddEstimateInputs(Command& command, CommonOptions& common, RuntimeOptions& runtime) {
  AddModelOptions(command, common.model);
  AddClusterOptions(command, common);
  AddBatchOptions(command, common.batch);
  AddChoiceOptions(command, common, /*all_default=*/true);
  AddDeterministicOption(command, common);
  AddAsyncSaveOption(command, common);
  AddPackingOption(command, common);
  AddGoalOptions(command, common.goal);
  AddRuntimeOptions(command, runtime, "Whose memory and time are estimated");
}

EstimateRequest::EstimateRequest(const CommonOptions& common, Assumptions& assumptions)
    : hardware_(ResolveHardware(common.hardware, assumptions, MeasureHost::kYes)) {
  const HardwareProfile& hardware = hardware_;
  EstimateInputs& inputs = inputs_;
  inputs.model = ResolveModel(common.model, common.batch.seq_len, assumptions);
  inputs.cluster = ResolveCluster(common, hardware, assumptions);
  costs_.emplace(hardware, ClusterShape{inputs.cluster.gpus, inputs.cluster.gpus_per_node});
  inputs.costs = &*costs_;
  const int gpus = inputs.cluster.gpus;
  if (common.config.empty()) {
    inputs.setups = ResolveSetups(common, inputs.model, hardware, gpus, DefaultDtype(hardware),
                                  ChoiceSpace{}, assumptions);
  } else {
    inputs.setups = {ResolveConfig(common, inputs.model, hardware, gpus, assumptions)};
  }
  const TrainSetup& setup = inputs.setups.front();
  inputs.lower = GpuLowerOptions(inputs.model, setup.precision.dtype, hardware.gpu);
  if (common.async_save == AsyncSave::kOn) {
    inputs.lower.async_save = true;
    assumptions.notes.push_back(
        "Host memory counts a copy of the states, from which saves are written beside the steps "
        "(--async-save on).");
  }
  ApplyPacking(common, inputs.lower, assumptions);
  NoteAttention(inputs.model, setup, inputs.lower, hardware, setup.deterministic, assumptions);
  NoteDisk(inputs, common, hardware, assumptions);
  NoteIdleSums(inputs.setups, assumptions);
  inputs.goal = ResolveGoal(common.goal, inputs.setups.front().batch.seq_len);
  NoteGuesses(hardware, inputs.cluster, inputs.setups, assumptions);
}

}  // namespace zeroplan
