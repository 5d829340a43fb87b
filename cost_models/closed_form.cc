#include "cost_models/closed_form.h"

#include "core/base/error.h"
#include "core/settings/setup_facts.h"

namespace zeroplan {

namespace {

// At fp32 the parameters are the master weights.
bool OwnMaster(const PrecisionConfig& precision) { return precision.dtype != Dtype::kF32; }

double BytesOf(Dtype dtype) {
  return static_cast<double>(DtypeBytes(dtype)) / static_cast<double>(DtypeElements(dtype));
}

double MomentBytes(const PrecisionConfig& precision) {
  const std::array<Dtype, 3> states = StateDtypes(precision);
  return BytesOf(states[1]) + BytesOf(states[2]);
}

// What a master takes beside its parameter.
double MasterBytes(const PrecisionConfig& precision, bool with_params) {
  if (!OwnMaster(precision)) return 0;
  switch (precision.master_weights) {
    case MasterWeights::kFp32:
      return 4;
    case MasterWeights::kSplit:
      return with_params ? 2 : 4;
    case MasterWeights::kParam:
      return with_params ? 0 : 2;
  }
  return 0;
}

}  // namespace

StateBytesPerParam StateBytes(const PrecisionConfig& precision, bool with_params) {
  return {DtypeBytes(precision.dtype), DtypeBytes(precision.grad_accum_dtype),
          MasterBytes(precision, with_params) + MomentBytes(precision)};
}

double UpdateBytesPerParam(const PrecisionConfig& precision) {
  // The gradient is read; parameters, or the halves that they are, are written, and read where they
  // are the master or a half of it.
  const double param = BytesOf(precision.dtype);
  double bytes = 2 * (MasterBytes(precision, true) + MomentBytes(precision));
  if (!OwnMaster(precision)) return bytes + 2 * param;
  const bool param_read = precision.master_weights != MasterWeights::kFp32;
  return bytes + param + (param_read ? 2 : 1) * param;
}

ModelStates ModelStatesPerGpu(int stage, double psi, double psi_persistent, int ranks,
                              const PrecisionConfig& precision) {
  return ModelStatesPerGpu(stage, psi, psi_persistent, ShardGroups{.ranks = ranks, .shards = ranks},
                           precision);
}

ShardGroups ShardGroupsOf(const TrainSetup& setup) {
  const int ranks = setup.batch.world_size;
  if (!Hybrid(setup)) return {ranks, ranks};
  return {ranks, ShardRanks(setup.zero, ranks), setup.zero.across_stage,
          CrossesEachMicroStep(setup)};
}

ModelStates ModelStatesPerGpu(int stage, double psi, double psi_persistent,
                              const ShardGroups& groups, const PrecisionConfig& precision) {
  const StateBytesPerParam bytes = StateBytes(precision);
  const double shard = psi / groups.shards, slice = psi / groups.ranks;
  const bool owns_slices = groups.across_stage > 0;
  const double params = stage >= 3 ? shard + psi_persistent * (1 - 1.0 / groups.shards) : psi;
  const double kept = owns_slices && groups.grads_cross ? slice : shard;
  const double grads = stage >= 2 ? kept : psi;
  const double updated = owns_slices ? slice : shard;
  const double optimizer = stage >= 1 ? updated : psi;
  return {params * static_cast<double>(bytes.params), grads * static_cast<double>(bytes.grads),
          optimizer * bytes.optimizer};
}

double ElementsSentPerStep(const VolumeTerms& terms) {
  const double ring = static_cast<double>(terms.ranks - 1) / terms.ranks;
  const double g = static_cast<double>(terms.grad_accum);
  const double reduction = terms.reduce_scatter ? 1 : 2;  // an all-reduce is two passes of the ring
  switch (terms.stage) {
    case 0:  // all-reduce of the summed gradients
      return 2 * terms.psi * ring;
    case 1:  // reduction of the summed gradients, gather of the new parameters
      return (reduction + 1) * terms.psi * ring;
    case 2:  // reduction of each micro-step's gradients, gather of the new parameters
      return (g * reduction + 1) * terms.psi * ring;
    case 3: {
      // Each micro-step: gather for the forward, again for the backward unless kept, reduction.
      // Persistent parameters are only reduced, and gathered once after the step.
      const double gathers = 2 * (terms.psi - terms.psi_persistent) - terms.psi_reused;
      return (g * (gathers + reduction * terms.psi) + terms.psi_persistent) * ring;
    }
  }
  FailCheck(__FILE__, __LINE__, "stage", "no such ZeRO stage");
}

AxisElements ElementsSentByAxis(const VolumeTerms& terms, const ShardGroups& groups) {
  VolumeTerms own = terms;
  own.ranks = groups.shards;
  AxisElements sent{.within = ElementsSentPerStep(own)};
  if (groups.replicas() == 1) return sent;
  const double times = groups.grads_cross ? static_cast<double>(terms.grad_accum) : 1;
  const bool owns_slices = groups.across_stage > 0;
  double over_groups = owns_slices ? 1 : 0;  // new parameters
  if (terms.reduce_scatter) {
    over_groups += times * (owns_slices ? 1 : 2);
  } else {
    const double all_reduced = 2 * times * terms.psi;
    sent.within -= all_reduced * (1 - 1.0 / groups.shards);
    sent.all = all_reduced * (1 - 1.0 / groups.ranks);
  }
  sent.across = over_groups * terms.psi / groups.shards * (1 - 1.0 / groups.replicas());
  return sent;
}

double PcieBytesPerStep(const PcieTerms& t) {
  const double n = t.ranks, g = static_cast<double>(t.grad_accum);
  const auto size = static_cast<double>(t.param_bytes);
  const double on_host = t.optimizer_on_host * t.psi / n;
  const double grads =
      t.stage == 1 ? on_host * static_cast<double>(t.stage1_grad_bytes) : g * on_host * size;
  if (!t.params_away) return grads + on_host * size;
  const double away = (t.psi - t.psi_persistent) / n;
  const double gathers = g * (2 * away - t.psi_reused / n);
  const double persistent_back = t.optimizer_on_host * t.psi_persistent / n;
  const double updated_on_gpu = (1 - t.optimizer_on_host) * away;
  return grads + (gathers + persistent_back + updated_on_gpu) * size;
}

}  // namespace zeroplan
