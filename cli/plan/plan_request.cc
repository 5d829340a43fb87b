#include "cli/plan/plan_request.h"

#include <algorithm>
#include <cmath>

#include "cli/common/parse.h"
#include "core/base/error.h"
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

}  // namespace

PlanRequest::PlanRequest(const PlanOptions& options, Assumptions& assumptions)
    : options_(options.common), hardware_(ResolveHardware(options_, assumptions)) {
  inputs_.objective = static_cast<Objective>(
      ParseWord(options.objective, "--objective", {"throughput", "headroom", "fewest-gpus"}));
  inputs_.model = ResolveModel(options_, assumptions);
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
  const int per_node = options_.gpus_per_node.empty()
                           ? static_cast<int>(std::llround(hardware_.node.gpus.value))
                           : cluster_.gpus_per_node;
  cluster.gpus_per_node = std::min(gpus, per_node);
  cluster.runtime_bytes = RuntimeBytes(hardware_, gpus);
  costs_.emplace_back(hardware_, ClusterShape{gpus, cluster.gpus_per_node});
  return {cluster, &costs_.back()};
}

void PlanRequest::FromOptions(Assumptions& assumptions) {
  CommonOptions without_batch = options_;
  without_batch.micro_batch = without_batch.grad_accum = "1";
  without_batch.global_batch.clear();
  inputs_.base =
      ResolveBaseSetup(without_batch, inputs_.model, hardware_, cluster_.gpus, assumptions);
  const int64_t seq_len = inputs_.base.batch.seq_len;
  const auto global = ParseOptionalWhole(options_.global_batch, "--global-batch", 1, kMaxBatch);
  SetBatches(full_, global, seq_len);
  inputs_.space = full_;
  SearchSpace& space = inputs_.space;
  Pin(ParseOptionalWhole(options_.micro_batch, "--micro-batch", 1, kMaxBatch), space.micro_batches);
  Pin(ParseOptionalWhole(options_.grad_accum, "--grad-accum", 1, kMaxBatch), space.grad_accums);
  CheckBatch(global, assumptions);
  if (!options_.stage.empty()) space.stages = ParseStages(options_.stage, "--stage");
  if (!options_.offload_param.empty()) {
    space.offload_param = ParseOffload(options_.offload_param, "--offload-param");
  }
  PinOptimizer();
  PinRecompute();
}

void PlanRequest::CheckBatch(const std::optional<int64_t>& global, Assumptions& assumptions) {
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
  const auto unit = static_cast<__int128>(cluster_.gpus) *
                    (options_.micro_batch.empty() ? 1 : space.micro_batches.front()) *
                    (options_.grad_accum.empty() ? 1 : space.grad_accums.front());
  const std::string fix = unit <= kMaxBatch
                              ? fmt::format("use a multiple of {}", static_cast<int64_t>(unit))
                              : "use smaller parts";
  ThrowUsage("--global-batch: {} is not a micro-batch times accumulation times --gpus {}; {}",
             *global, cluster_.gpus, fix);
}

void PlanRequest::PinOptimizer() {
  std::vector<OptimizerOffload>& list = inputs_.space.offload_optimizer;
  if (!options_.offload_optimizer.empty()) {
    const std::vector<OffloadDevice> devices =
        ParseOffload(options_.offload_optimizer, "--offload-optimizer");
    std::erase_if(list, [&](const OptimizerOffload& o) {
      return std::find(devices.begin(), devices.end(), o.device) == devices.end();
    });
  }
  if (options_.offload_ratio.empty()) return;
  const double ratio = ParseRatio(options_.offload_ratio, "--offload-ratio");
  std::erase_if(list, [&](const OptimizerOffload& o) {
    return o.device == OffloadDevice::kCpu || (o.device == OffloadDevice::kNvme && ratio < 1);
  });
  list.push_back({OffloadDevice::kCpu, ratio});
}

void PlanRequest::PinRecompute() {
  std::vector<RecomputeConfig>& list = inputs_.space.recompute;
  const auto every = ParseOptionalWhole(options_.checkpoint_every, "--checkpoint-every", 1, 65535);
  Checkpointing kind = every ? Checkpointing::kFull : Checkpointing::kAll;
  if (!options_.checkpointing.empty()) kind = ParseCheckpointing(options_);
  if (every) {
    std::erase_if(list, [](const RecomputeConfig& r) { return r.kind == RecomputeKind::kFull; });
    list.push_back(FullRecompute(static_cast<int>(*every)));
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
  auto open = [&](const char* key, const std::string& option) {
    const JsonNode* node = root.Find(key);
    const bool set = node != nullptr && !node->is_null() &&
                     !(node->is_string() && node->scalar.get<std::string>() == "auto");
    return !set && option.empty();
  };
  const bool open_global = open("train_batch_size", options_.global_batch);
  const bool open_micro = open("train_micro_batch_size_per_gpu", options_.micro_batch);
  const bool open_accum = open("gradient_accumulation_steps", options_.grad_accum);
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
