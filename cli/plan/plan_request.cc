#include "cli/plan/plan_request.h"

#include <algorithm>
#include <cmath>

#include "cli/common/parse.h"
#include "core/base/error.h"
#include "core/base/json_section.h"
#include "core/base/json_source.h"
#include "core/base/units.h"
#include "core/config/deepspeed_writer.h"
#include "planner/estimate/choices.h"
#include "planner/plan/deepspeed_headroom.h"

namespace zeroplan {
namespace {

void Pin(const std::optional<int64_t>& value, std::vector<int64_t>& list) {
  if (value) list = {*value};
}
template <typename T>
void Pin(const std::optional<std::vector<T>>& values, std::vector<T>& list) {
  if (values) list = *values;
}

}  // namespace

PlanRequest::PlanRequest(const PlanOptions& options, Assumptions& assumptions)
    : options_(options.common),
      hardware_(ResolveHardware(options_.hardware, assumptions, MeasureHost::kYes)) {
  inputs_.objective = options.objective.value_or(Objective::kThroughput);
  inputs_.model = ResolveModel(options_.model, options_.batch.seq_len, assumptions);
  cluster_ = ResolveCluster(options_, hardware_, assumptions);
  inputs_.lower.backend = Backend::kCuda;
  inputs_.lower.flash_attention = hardware_.gpu.flash_attention;
  full_ = DefaultSpace(inputs_.model, cluster_.gpus, cluster_.gpus_per_node,
                       inputs_.objective == Objective::kFewestGpus);
  if (options_.config.empty()) {
    FromOptions(assumptions);
  } else {
    FromConfig(assumptions);
  }
  if (!options.deepspeed_file.empty()) {
    if (inputs_.space.recompute == std::vector{kSelectiveRecompute}) {
      ThrowUsage(
          "--out: DeepSpeed has no selective recompute; use --checkpointing none or full, or "
          "--plan-out for a plan that zeroplan runs");
    }
    inputs_.excluded = [](const TrainSetup& s) { return !DeepSpeedCannot(s).empty(); };
    inputs_.extra_memory = [model = inputs_.model](const TrainSetup& s) {
      return DeepSpeedExtraMemory(model, s);
    };
  }
  for (int gpus : inputs_.space.gpus) inputs_.clusters.push_back(ClusterOf(gpus));
}

SearchCluster PlanRequest::ClusterOf(int gpus) {
  Cluster cluster = cluster_;
  cluster.gpus = gpus;
  const int per_node = options_.cluster.gpus_per_node.value_or(
      static_cast<int>(std::llround(hardware_.node.gpus.value)));
  cluster.gpus_per_node = std::min(gpus, per_node);
  cluster.runtime_bytes = RuntimeBytes(hardware_, gpus);
  costs_.emplace_back(hardware_, ClusterShape{gpus, cluster.gpus_per_node});
  return {cluster, &costs_.back()};
}

void PlanRequest::FromOptions(Assumptions& assumptions) {
  TrainSetup& base = inputs_.base;  // its batch is searched
  base.batch.world_size = cluster_.gpus;
  base.batch.seq_len = ResolveSeqLen(options_, inputs_.model, assumptions);
  CheckMicroBatch(base.batch.micro_batch, base.batch.seq_len);
  base.precision =
      ResolvePrecision(options_.batch, hardware_, DefaultDtype(hardware_), assumptions);
  SetBatches(full_, options_.batch.global_batch, base.batch.seq_len);
  inputs_.space = full_;
  SearchSpace& space = inputs_.space;
  Pin(options_.batch.micro_batch, space.micro_batches);
  Pin(options_.batch.grad_accum, space.grad_accums);
  CheckBatch(assumptions);
  Pin(options_.choice.stages, space.stages);
  Pin(options_.choice.offload_param, space.offload_param);
  PinOptimizer();
  PinRecompute();
}

void PlanRequest::CheckBatch(Assumptions& assumptions) {
  const std::optional<int64_t>& global = options_.batch.global_batch;
  const SearchSpace& space = inputs_.space;
  if (!global) {
    if (space.grad_accums.size() > 1 || space.micro_batches.size() > 1) {
      assumptions.notes.push_back(
          fmt::format("Batch: searched, at most {} sequences a step ({} tokens, GPT-3's smallest "
                      "batch); --global-batch sets it.",
                      std::max<int64_t>(space.max_step_sequences, cluster_.gpus),
                      FormatCount(static_cast<uint64_t>(kDefaultStepTokens))));
    }
    return;
  }
  for (int gpus : space.gpus) {
    if (!BatchPairs(space, gpus).empty()) return;
  }
  // Of __int128: each factor may be two billion.
  const auto unit = static_cast<__int128>(cluster_.gpus) * options_.batch.micro_batch.value_or(1) *
                    options_.batch.grad_accum.value_or(1);
  const std::string fix = unit <= kMaxBatch
                              ? fmt::format("use a multiple of {}", static_cast<int64_t>(unit))
                              : "use smaller parts";
  ThrowUsage("--global-batch: {} is not a micro-batch times accumulation times --gpus {}; {}",
             *global, cluster_.gpus, fix);
}

void PlanRequest::PinOptimizer() {
  std::vector<OptimizerOffload>& list = inputs_.space.offload_optimizer;
  if (const auto& devices = options_.choice.offload_optimizer) {
    std::erase_if(list, [&](const OptimizerOffload& o) {
      return std::find(devices->begin(), devices->end(), o.device) == devices->end();
    });
  }
  if (!options_.choice.offload_ratio) return;
  const double ratio = *options_.choice.offload_ratio;
  std::erase_if(list, [&](const OptimizerOffload& o) {
    return o.device == OffloadDevice::kCpu || (o.device == OffloadDevice::kNvme && ratio < 1);
  });
  list.push_back({OffloadDevice::kCpu, ratio});
}

void PlanRequest::PinRecompute() {
  std::vector<RecomputeConfig>& list = inputs_.space.recompute;
  const Option<int>& every = options_.choice.checkpoint_every;
  CheckCheckpointEvery(options_.choice);
  const Checkpointing kind =
      options_.choice.checkpointing.value_or(every ? Checkpointing::kFull : Checkpointing::kAll);
  if (every) {
    std::erase_if(list, [](const RecomputeConfig& r) { return r.kind == RecomputeKind::kFull; });
    list.push_back(FullRecompute(*every));
  }
  std::erase_if(list, [kind](const RecomputeConfig& listed) {
    return (kind == Checkpointing::kNone && listed.kind != RecomputeKind::kNone) ||
           (kind == Checkpointing::kSelective && listed.kind != RecomputeKind::kSelective) ||
           (kind == Checkpointing::kFull && listed.kind != RecomputeKind::kFull);
  });
}

void PlanRequest::FromConfig(Assumptions& assumptions) {
  inputs_.base = ResolveConfig(options_, inputs_.model, hardware_, cluster_.gpus, assumptions);
  const TrainSetup& base = inputs_.base;
  const JsonNode root = ParseJsonText(ReadTextFile(options_.config), options_.config);
  JsonSection config(&root, "", options_.config);
  const auto open = [&](const char* key, const std::optional<int64_t>& option) {
    return config.Value(key) == nullptr && !option;
  };
  const bool open_global = open("train_batch_size", options_.batch.global_batch);
  const bool open_micro = open("train_micro_batch_size_per_gpu", options_.batch.micro_batch);
  const bool open_accum = open("gradient_accumulation_steps", options_.batch.grad_accum);
  SetBatches(full_, open_global ? std::nullopt : std::optional(base.batch.global_batch()),
             base.batch.seq_len);
  inputs_.space = full_;
  SearchSpace& space = inputs_.space;
  if (!open_micro) space.micro_batches = {base.batch.micro_batch};
  if (!open_accum) space.grad_accums = {base.batch.grad_accum};
  const Candidate fixed = CandidateOf(base);
  space.stages = {fixed.stage};
  space.offload_optimizer = {fixed.optimizer};
  space.offload_param = {fixed.param};
  space.recompute = {fixed.recompute};
  if (fixed.reduce_bucket_elements != kAuto) {
    space.reduce_bucket_elements = {fixed.reduce_bucket_elements};
  }
  if (fixed.prefetch_bucket_elements != kAuto) {
    space.prefetch_bucket_elements = {fixed.prefetch_bucket_elements};
  }
}

}  // namespace zeroplan
