#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/config/setup_facts.h"
#include "planner/estimate/choices.h"
#include "planner/report/csv.h"
#include "planner/report/report.h"

namespace zeroplan {
namespace {

constexpr const char* kHeader =
    "model,params,seq_len,hw,gpus,gpus_per_node,"
    "stage,offload_optimizer,offload_ratio,offload_param,pin_memory,"
    "checkpointing,checkpoint_every,checkpoint_layers,checkpointing_above,offload_activations,"
    "offload_activation_layers,micro_batch,grad_accum,sequence_ranks,dtype,grad_accum_dtype,"
    "communication_"
    "dtype,master_weights,optimizer_states,matmul_dtype,fp8_recipe,fp8_least_side,"
    "settings.reduce_bucket,settings.prefetch_bucket,settings.persistence_threshold,"
    "settings.reuse_distance,settings.overlap,settings.shard_group,settings.across_groups,"
    "gpu_bytes.params,gpu_bytes.grads,gpu_bytes.optimizer,gpu_bytes.activations,gpu_bytes.buffers,"
    "gpu_bytes.runtime,gpu_bytes.total,gpu_bytes.capacity,gpu_bytes.reserve,"
    "host_bytes.pinned,host_bytes.pageable,host_bytes.total,host_bytes.capacity,host_bytes.reserve,"
    "nvme_bytes,"
    "comm_bytes_per_step,pcie_bytes_per_step,"
    "step_seconds.compute,step_seconds.exposed_comm,step_seconds.exposed_offload,"
    "step_seconds.optimizer,step_seconds.total,tokens_per_second,mfu,"
    "training.tokens,training.steps,training.seconds,training.gpu_hours,training.price,"
    "training.gpu_kwh,fits,why_not";
// Of other runtimes than zeroplan's own executor.
constexpr const char* kRuntimeHeader =
    ",runtime,room,gpu_bytes.reserved,step_seconds.host_overhead";

// Of runs that are interrupted.
constexpr const char* kInterruptedHeader =
    ",interruptions.interval_steps,interruptions.interval_seconds,interruptions.save_seconds,"
    "interruptions.restart_seconds,interruptions.lost_share,interruptions.expected_seconds,"
    "interruptions.expected_price,interruptions.fits_notice";

template <typename T>
std::string OrEmpty(const std::optional<T>& value) {
  return value ? fmt::format("{}", *value) : "";
}

std::string Row(const Estimate& estimate, const ChoiceEstimate& choice) {
  const Cluster& cluster = estimate.cluster;
  const TrainSetup& setup = choice.setup;
  const ZeroConfig& zero = setup.zero;
  const Fp8Config& fp8 = setup.precision.fp8;
  const bool own_fp8 = fp8.enabled && estimate.runtime->has_programs();
  const TimeEstimate& time = choice.time;
  const EffectiveSettings& settings = choice.settings;
  std::vector<std::string> cells;
  auto add = [&](const auto&... values) { (cells.push_back(fmt::format("{}", values)), ...); };
  add(CsvCell(estimate.model.name), estimate.model.ParamCount(), estimate.seq_len,
      CsvCell(cluster.hardware), cluster.gpus, cluster.gpus_per_node);
  add(zero.stage, OffloadDeviceName(zero.offload_optimizer.device), zero.offload_optimizer.ratio,
      OffloadDeviceName(zero.offload_param.device), PinsMemory(zero),
      RecomputeName(setup.recompute), setup.recompute.every, setup.recompute.layers,
      RecomputeName(setup.recompute.above),
      OffloadDeviceName(estimate.recipe.offload_activations ? OffloadDevice::kCpu
                                                            : setup.recompute.offload.device),
      setup.recompute.offload.layers, setup.batch.micro_batch, setup.batch.grad_accum,
      setup.batch.sequence_ranks, DtypeName(setup.precision.dtype),
      DtypeName(setup.precision.grad_accum_dtype), DtypeName(SentGradDtype(setup)),
      MasterWeightsName(setup.precision.master_weights), MomentsName(setup.precision.moment_dtype),
      MatmulDtypeName(setup.precision), own_fp8 ? Fp8RecipeName(fp8.recipe) : "",
      own_fp8 ? std::to_string(fp8.least_side) : "");
  for (const uint64_t bucket :
       {settings.reduce_bucket_elements, settings.prefetch_bucket_elements}) {
    add(bucket == kAuto ? "" : fmt::format("{}", bucket));
  }
  add(settings.persistence_threshold, settings.reuse_distance, settings.overlap,
      ShardRanks(zero, setup.batch.world_size), Hybrid(setup) ? AcrossName(zero.across_stage) : "");
  const Footprint& footprint = choice.footprint;
  for (const NamedBytes& part : GpuClasses(footprint)) add(part.bytes);
  add(footprint.gpu_total(), cluster.gpu_capacity_bytes, cluster.gpu_reserve_bytes);
  add(footprint.host.pinned, footprint.host.pageable, footprint.host.total(),
      OrEmpty(cluster.host_capacity_bytes), cluster.host_reserve_bytes, footprint.nvme_bytes,
      choice.traffic ? fmt::format("{}", choice.traffic->collective_bytes) : "",
      choice.traffic ? fmt::format("{}", choice.traffic->pcie_bytes()) : "");
  for (const auto& seconds :
       {time.compute_seconds, time.exposed_comm_seconds, time.exposed_offload_seconds,
        time.optimizer_seconds, time.total_seconds, time.tokens_per_second, time.mfu}) {
    add(OrEmpty(seconds));
  }
  if (estimate.goal.tokens && time.total_seconds) {
    const RunCost cost = CostOf(estimate.goal, setup.batch, *time.total_seconds);
    add(*estimate.goal.tokens, cost.steps, cost.seconds, cost.gpu_hours, OrEmpty(cost.price),
        OrEmpty(cost.gpu_kwh));
  } else {
    add("", "", "", "", "", "");
  }
  add(choice.fits, CsvCell(choice.why_not));
  if (!estimate.runtime->has_programs()) {
    add(CsvCell(estimate.runtime->version()), MemoryRoomName(choice.room),
        footprint.torch ? fmt::format("{}", footprint.torch->ReservedBytes()) : "",
        OrEmpty(time.host_overhead_seconds));
  }
  if (estimate.goal.interruptions) {
    const InterruptedCost cost = choice.interrupted.value_or(InterruptedCost{});
    if (cost.known) {
      add(cost.interval_steps, cost.interval_seconds, cost.save_seconds, cost.restart_seconds,
          cost.lost_share);
    } else {
      add("", "", "", "", "");
    }
    add(OrEmpty(cost.expected_seconds), OrEmpty(cost.expected_price), OrEmpty(cost.fits_notice));
  }
  return fmt::format("{}\n", fmt::join(cells, ","));
}

}  // namespace

std::string ReportCsv(const Estimate& estimate) {
  std::string text = kHeader;
  if (!estimate.runtime->has_programs()) text += kRuntimeHeader;
  if (estimate.goal.interruptions) text += kInterruptedHeader;
  text += '\n';
  for (const ChoiceEstimate& choice : estimate.choices) text += Row(estimate, choice);
  return text;
}

}  // namespace zeroplan
