#include "planner/estimate/estimate.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "core/base/error.h"
#include "core/base/save_interval.h"
#include "core/base/units.h"
#include "core/lowering/walk_cache.h"
#include "core/model/lora.h"
#include "core/model/model_spec.h"
#include "core/program/bucket_sizes.h"
#include "core/settings/setup_facts.h"
#include "cost_models/host_cost.h"
#include "cost_models/step_time.h"
#include "planner/margin_text.h"

namespace zeroplan {
namespace {

// "auto" prefetches one unit ahead, whatever its size: the largest says how much that may be.
uint64_t PrefetchElements(const Program& program) {
  const ZeroConfig& zero = program.setup.zero;
  if (zero.prefetch_bucket_elements != kAuto) return zero.prefetch_bucket_elements;
  uint64_t largest = 0;
  for (const Unit& unit : program.layout.units) {
    if (!unit.persistent) largest = std::max(largest, unit.param_elements);
  }
  return largest;
}

EffectiveSettings Effective(const Program& program) {
  const ZeroConfig& zero = program.setup.zero;
  return {ReduceBucketElements(program), PrefetchElements(program),
          zero.param_persistence_threshold, zero.max_reuse_distance, zero.overlap_comm};
}

TimeEstimate Times(const Program& program, const CostModel& costs) {
  const BatchSpec& batch = program.setup.batch;
  const StepTime time = StepTimer(costs).Time(program);
  const double tokens = static_cast<double>(batch.global_batch()) *
                        static_cast<double>(batch.seq_len) / time.total_seconds;
  TimeEstimate estimate;
  estimate.compute_seconds = time.compute_seconds;
  estimate.exposed_comm_seconds = time.exposed_comm_seconds;
  estimate.exposed_offload_seconds = time.exposed_offload_seconds;
  estimate.optimizer_seconds = time.optimizer_seconds;
  estimate.total_seconds = time.total_seconds;
  estimate.tokens_per_second = tokens;
  estimate.mfu = StrictMfu(program.model, batch.seq_len, tokens, batch.world_size,
                           costs.DensePeak(program.setup.precision.dtype));
  estimate.by_stream = time.by_stream;
  return estimate;
}

class ProgramJudge : public ChoiceJudge {
 public:
  explicit ProgramJudge(const JudgeInputs& inputs)
      : inputs_(inputs),
        tensors_(std::make_shared<const std::vector<ParamTensor>>(BuildParamTable(inputs.model))) {}

  ChoiceEstimate Estimate(const TrainSetup& setup, const Cluster& cluster) override {
    ++played_;
    const Program program = LowerToWalk(inputs_.model, tensors_, setup, inputs_.lower, cache_);
    return EstimateProgram(program, cluster, inputs_.costs);
  }

 private:
  const JudgeInputs inputs_;
  // The table of tensors depends on the model alone: all choices share it.
  const std::shared_ptr<const std::vector<ParamTensor>> tensors_;
  WalkCache cache_;
};

}  // namespace

ChoiceEstimate EstimateProgram(const Program& program, const Cluster& cluster,
                               const CostModel* costs) {
  ChoiceEstimate choice;
  choice.setup = program.setup;
  choice.settings = Effective(program);
  choice.mixture = program.model.experts > 0;
  choice.memory = WalkMemory(program);
  choice.traffic = WalkTraffic(program);
  choice.footprint = FootprintOf(choice.memory, cluster);
  if (costs != nullptr) choice.time = Times(program, *costs);
  choice.why_not = ExplainMisfit(choice.footprint, cluster);
  choice.fits = choice.why_not.empty();
  choice.room = choice.fits ? MemoryRoom::kAmple : MemoryRoom::kNone;
  return choice;
}

// Shard files have master weights and Adam's two moments as they are kept (masters in halves as
// fp32), what is frozen and the final weights are fp32; of adapters both have what is trained alone
// (docs/lora.md). Of ranks that own the same states the first writes them, and each copies them: at
// stage 0 one rank writes all.
SaveCost SaveCostOf(const ModelSpec& model, const TrainSetup& setup, const Cluster& cluster,
                    const HardwareProfile& hardware) {
  SaveCost cost;
  const uint64_t trained = model.TrainedParamCount();
  const uint64_t frozen = HasAdapters(model) ? 0 : model.ParamCount() - trained;
  for (const Dtype dtype : StateDtypes(setup.precision)) {
    cost.bytes_per_param +=
        static_cast<double>(DtypeBytes(dtype)) / static_cast<double>(DtypeElements(dtype));
  }
  cost.bytes =
      static_cast<uint64_t>(cost.bytes_per_param * static_cast<double>(trained)) + 4 * frozen;
  cost.weights_bytes = 4 * (HasAdapters(model) ? trained : model.UnpaddedParamCount());
  const int ranks = cluster.ranks_per_node();
  const auto all = static_cast<double>(cost.bytes);
  const int owners =
      setup.zero.across_stage > 0 ? cluster.gpus : ShardRanks(setup.zero, cluster.gpus);
  const double of_rank = all / owners;
  const double of_node = of_rank * std::min(ranks, owners);
  cost.one_node = owners <= ranks;
  cost.node_bytes = static_cast<uint64_t>(of_node);
  const auto& offload = setup.zero.offload_optimizer;
  const double on_host = offload.device == OffloadDevice::kCpu ? offload.ratio : 0;
  const bool on_disk = offload.device == OffloadDevice::kNvme;
  const double on_gpu = on_disk ? 0 : 1 - on_host;
  // On their way they are fp32.
  const double moved = static_cast<double>(12 * trained + 4 * frozen) / owners;
  const double over_pcie =
      on_gpu * moved / TransferCost(hardware, ranks).BytesPerSecond(/*to_device=*/false);
  double& copy = cost.copy_seconds;
  copy = over_pcie;
  if (const auto& triad = hardware.node.triad_bandwidth) {  // a byte copied is read and written
    copy = std::max(copy, 2 * on_host * moved * ranks / triad->value);
  }
  const std::optional<Figure>&read = hardware.node.nvme_read, &write = hardware.node.nvme_write;
  if (!read || !write) return cost;
  if (on_disk) copy = of_node / read->value;
  // What lies in host memory is written from there; what a GPU has is copied beside the writing;
  // the disk reads a swap file and writes the checkpoint in turn.
  const double disk = of_node / write->value + (on_disk ? of_node / read->value : 0);
  cost.disk_bound = disk >= over_pcie;
  cost.write_seconds = std::max(disk, over_pcie);
  return cost;
}

InterruptedCost InterruptedCostOf(const RunGoal& goal, const SaveCost& save, const BatchSpec& batch,
                                  double step_seconds, bool async_save,
                                  const HardwareProfile& hardware) {
  ZEROPLAN_CHECK(goal.interruptions.has_value());
  const Interruptions& asked = *goal.interruptions;
  InterruptedCost cost{.rate = asked.rate};
  if (!save.write_seconds) return cost;
  cost.known = true;
  cost.save_seconds = async_save ? save.copy_seconds : *save.write_seconds;
  cost.whole_save_seconds = *save.write_seconds + (async_save ? save.copy_seconds : 0);
  // A resume reads the checkpoint once to look at its checksums, and once to load it
  // (docs/checkpoints.md, Resume).
  cost.restart_seconds = asked.restart_seconds +
                         2 * static_cast<double>(save.node_bytes) / hardware.node.nvme_read->value;
  const InterruptedRun run = {asked.rate, step_seconds, cost.save_seconds,
                              cost.whole_save_seconds - cost.save_seconds, cost.restart_seconds};
  std::optional<RunCost> whole;
  if (goal.tokens) whole = CostOf(goal, batch, step_seconds);
  const int64_t most = whole ? whole->steps : std::numeric_limits<int32_t>::max();
  cost.interval_steps = BestStepsBetweenSaves(run, most);
  cost.interval_seconds = static_cast<double>(cost.interval_steps) * step_seconds;
  cost.lost_share = 1 - 1 / InterruptedShare(run, cost.interval_steps);
  if (whole) {
    cost.expected_seconds = InterruptedSeconds(run, whole->steps, cost.interval_steps);
    cost.lost_share = 1 - whole->seconds / *cost.expected_seconds;
    cost.expected_gpu_hours = *cost.expected_seconds / 3600 * batch.world_size;
    if (goal.gpu_hour_price) cost.expected_price = *cost.expected_gpu_hours * *goal.gpu_hour_price;
  }
  cost.notice_needs_seconds =
      step_seconds + cost.whole_save_seconds + (async_save ? *save.write_seconds : 0);
  if (asked.notice_seconds) cost.fits_notice = cost.notice_needs_seconds <= *asked.notice_seconds;
  return cost;
}

std::unique_ptr<ChoiceJudge> MakeProgramJudge(const JudgeInputs& inputs) {
  return std::make_unique<ProgramJudge>(inputs);
}

std::string_view MemoryRoomName(MemoryRoom room) {
  switch (room) {
    case MemoryRoom::kAmple:
      return "ample";
    case MemoryRoom::kTight:
      return "tight";
    case MemoryRoom::kEmptiesCache:
      return "empties-cache";
    case MemoryRoom::kAtRisk:
      return "at-risk";
    case MemoryRoom::kNone:
      return "none";
  }
  ZEROPLAN_CHECK(false);
}

namespace {

// One GPU has nothing to shard: stages 0 to 2 without offload are one program there. The choice
// with that program among those made so far; null if there is none.
const ChoiceEstimate* OfSameProgram(const TrainSetup& setup, const EstimateInputs& inputs,
                                    const std::vector<ChoiceEstimate>& made) {
  const auto whole = [&](const TrainSetup& of) {
    return of.batch.world_size == 1 && of.zero.stage <= 2 &&
           of.zero.offload_optimizer.device == OffloadDevice::kNone;
  };
  if (!inputs.runtime->facts().trains_here || !whole(setup)) return nullptr;
  const auto same = std::find_if(made.begin(), made.end(), [&](const ChoiceEstimate& choice) {
    if (!whole(choice.setup)) return false;
    TrainSetup at_stage = choice.setup;
    at_stage.zero.stage = setup.zero.stage;
    return at_stage == setup;
  });
  return same == made.end() ? nullptr : &*same;
}

}  // namespace

Estimate EstimateChoices(const EstimateInputs& inputs) {
  ZEROPLAN_CHECK(!inputs.setups.empty());
  Estimate estimate;
  estimate.model = inputs.model;
  estimate.seq_len = inputs.setups.front().batch.seq_len;
  estimate.runtime = inputs.runtime;
  estimate.recipe = inputs.recipe;
  estimate.cluster = inputs.cluster;
  estimate.goal = inputs.goal;
  if (inputs.hardware != nullptr && (inputs.cluster.nodes() == 1 || inputs.hardware->network)) {
    estimate.margin =
        MarginTextFor(*inputs.runtime, inputs.model, inputs.cluster, *inputs.hardware);
    const TrainSetup& setup = inputs.setups.front();
    if (setup.precision.fp8.enabled) estimate.margin += " " + inputs.runtime->Doubt(setup);
  }
  estimate.choices.reserve(inputs.setups.size());
  const std::unique_ptr<ChoiceJudge> judge = inputs.runtime->Judge(
      {inputs.model, inputs.lower, inputs.recipe, inputs.hardware, inputs.costs});
  for (const TrainSetup& setup : inputs.setups) {
    if (const ChoiceEstimate* same = OfSameProgram(setup, inputs, estimate.choices)) {
      ChoiceEstimate copy = *same;
      copy.setup = setup;
      estimate.choices.push_back(std::move(copy));
      continue;
    }
    ChoiceEstimate& choice = estimate.choices.emplace_back(judge->Estimate(setup, inputs.cluster));
    if (!inputs.goal.interruptions || !choice.time.total_seconds) continue;
    choice.interrupted = InterruptedCostOf(
        inputs.goal, SaveCostOf(inputs.model, setup, inputs.cluster, *inputs.hardware), setup.batch,
        *choice.time.total_seconds, inputs.lower.async_save, *inputs.hardware);
  }
  return estimate;
}

RunCost CostOf(const RunGoal& goal, const BatchSpec& batch, double step_seconds) {
  ZEROPLAN_CHECK(goal.tokens.has_value());
  const int64_t step_tokens = batch.global_batch() * batch.seq_len;
  RunCost cost;
  cost.steps = static_cast<int64_t>(
      CeilDiv(static_cast<uint64_t>(*goal.tokens), static_cast<uint64_t>(step_tokens)));
  cost.seconds = static_cast<double>(cost.steps) * step_seconds;
  cost.gpu_hours = cost.seconds / 3600 * batch.world_size;
  if (goal.gpu_hour_price) cost.price = cost.gpu_hours * *goal.gpu_hour_price;
  if (goal.gpu_watts) cost.gpu_kwh = cost.gpu_hours * *goal.gpu_watts / 1000;
  return cost;
}

CauseSeconds SecondsLost(const TimeEstimate& other, const TimeEstimate& best) {
  const CauseSeconds mine = SecondsForTokens(other, *best.tokens_per_second * *best.total_seconds);
  return {mine.compute - *best.compute_seconds, mine.exposed_comm - *best.exposed_comm_seconds,
          mine.exposed_offload - *best.exposed_offload_seconds,
          mine.optimizer - best.optimizer_seconds.value_or(0), mine.total - *best.total_seconds};
}

}  // namespace zeroplan
