#include "cli/plan/plan_request.h"

#include <algorithm>
#include <cmath>

#include "cli/common/parse.h"
#include "core/base/error.h"
#include "core/base/json_section.h"
#include "core/base/json_source.h"
#include "core/base/units.h"
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

void AddPlanInputs(Command& command, PlanOptions& options) {
  AddModelOptions(command, options.common.model);
  AddClusterOptions(command, options.common);
  AddBatchOptions(command, options.common.batch, /*searched=*/true);
  AddChoiceOptions(command, options.common, /*all_default=*/true, /*searched=*/true);
  AddDeterministicOption(command, options.common);
  AddAsyncSaveOption(command, options.common, /*searched=*/true);
  AddPackingOption(command, options.common);
  OptionInfo largest = {"Search", "--largest", "model|seq-len|micro-batch",
                        "Finds the largest that fits: GPT-2 shape (without a model; the default), "
                        "sequence or micro-batch (of the model), and plans it"};
  largest.alone = "model";
  command.Value(largest, options.largest, WordIn<Largest>({"model", "seq-len", "micro-batch"}));
  AddGoalOptions(command, options.common.goal);
  AddRuntimeOptions(command, options.runtime, "For whom the best is sought");
  command.Value({"Search", "--objective", "throughput|headroom|fewest-gpus",
                 "What is best: most tokens/s, most GPU memory left, or fewest of --gpus (default "
                 "throughput)"},
                options.objective, WordIn<Objective>({"throughput", "headroom", "fewest-gpus"}));
  command.Flag("Search", "--quick", "The answer alone, not what would change it", options.quick);
  command.Value({"Search", "--effort", "FACTOR",
                 "Times the search's budget: more closes the gap that a plan states (default 1)"},
                options.effort, ParseFactor);
}

PlanRequest::PlanRequest(const PlanOptions& options, Assumptions& assumptions)
    : options_(options.common),
      hardware_(ResolveHardware(options_.hardware, assumptions, MeasureHost::kYes)) {
  inputs_.objective = options.objective.value_or(Objective::kThroughput);
  inputs_.model = ResolveModel(options_.model, options_.batch.seq_len, assumptions);
  cluster_ = ResolveCluster(options_, hardware_, assumptions);
  full_ = DefaultSpace(inputs_.model, cluster_.gpus, cluster_.gpus_per_node,
                       inputs_.objective == Objective::kFewestGpus);
  if (options_.config.empty()) {
    FromOptions(assumptions);
  } else {
    FromConfig(assumptions);
  }
  inputs_.lower = GpuLowerOptions(inputs_.model, inputs_.base.precision.dtype, hardware_.gpu);
  inputs_.lower.async_save = options_.async_save == AsyncSave::kOn;
  ApplyPacking(options_, inputs_.lower, assumptions);
  if (!options.deepspeed_file.empty()) {
    ForDeepSpeed(FormatOf(options));
  }
  for (int gpus : inputs_.space.gpus) inputs_.clusters.push_back(ClusterOf(gpus));
}

void PlanRequest::CheckDeepSpeedCan(ConfigFormat format) const {
  const auto why_not = [&](const Candidate& group) {
    return FormatCannot(format, OtherRuntime::kDeepSpeed, SetupOf(group, inputs_.base));
  };
  const std::vector<Candidate> groups = Groups(inputs_.space);
  const auto can = [&](const Candidate& group) { return why_not(group).empty(); };
  if (!groups.empty() && std::none_of(groups.begin(), groups.end(), can)) {
    // Some are refused for more than one reason; the fewest are what all have in common.
    std::string cannot = why_not(groups.front());
    for (const Candidate& group : groups) {
      std::string why = why_not(group);
      if (why.size() < cannot.size()) cannot = std::move(why);
    }
    const ScheduleConfig& schedule = inputs_.base.optimizer.schedule;
    std::string fix = "allow another choice";
    if (schedule.kind == ScheduleKind::kOfRun) {
      fix = fmt::format("take _zeroplan.lr_schedule out of {}", options_.config);
    } else if (schedule.kind != ScheduleKind::kConstant && schedule.total_steps == 0) {
      fix = fmt::format("set scheduler.params.total_num_steps in {} to the run's optimizer steps",
                        options_.config);
    } else if (inputs_.base.deterministic) {
      fix = options_.deterministic ? "leave --deterministic out"
                                   : fmt::format("take _zeroplan out of {}", options_.config);
    } else if (inputs_.space.recompute == std::vector{kSelectiveRecompute}) {
      fix = options_.config.empty() ? "use --checkpointing none or full"
                                    : fmt::format("take _zeroplan out of {}", options_.config);
    }
    ThrowUsage(
        "--out: DeepSpeed cannot do what is asked for: {}; {}, or use --plan-out for a plan that "
        "zeroplan runs",
        cannot, fix);
  }
}

void PlanRequest::ForDeepSpeed(ConfigFormat format) {
  CheckDeepSpeedCan(format);
  inputs_.excluded = [format](const TrainSetup& s) {
    return !FormatCannot(format, OtherRuntime::kDeepSpeed, s).empty();
  };
  inputs_.extra_memory = [model = inputs_.model](const TrainSetup& s) {
    return DeepSpeedExtraMemory(model, s);
  };
}

SearchCluster PlanRequest::ClusterOf(int gpus) {
  Cluster cluster = cluster_;
  cluster.gpus = gpus;
  const int per_node = options_.cluster.gpus_per_node.value_or(
      static_cast<int>(std::llround(hardware_.node.gpus.value)));
  cluster.gpus_per_node = std::min(gpus, per_node);
  cluster.runtime_bytes = RuntimeBytes(hardware_, gpus);
  cluster.communicator_bytes = CommunicatorBytes(hardware_, gpus);
  costs_.emplace_back(hardware_, ClusterShape{gpus, cluster.gpus_per_node});
  return {cluster, &costs_.back()};
}

void PlanRequest::FromOptions(Assumptions& assumptions) {
  TrainSetup& base = inputs_.base;  // its batch is searched
  base.batch.world_size = cluster_.gpus;
  base.batch.seq_len = ResolveSeqLen(options_, inputs_.model, assumptions);
  options_.batch = InSequences(options_.batch, base.batch.seq_len, cluster_.gpus);
  CheckMicroBatch(base.batch.micro_batch, base.batch.seq_len);
  base.precision =
      ResolvePrecision(options_.batch, hardware_, DefaultDtype(hardware_), assumptions);
  base.deterministic = options_.deterministic;
  SetBatches(full_, options_.batch.global_batch, base.batch.seq_len);
  inputs_.space = full_;
  SearchSpace& space = inputs_.space;
  Pin(options_.batch.micro_batch, space.micro_batches);
  Pin(options_.batch.grad_accum, space.grad_accums);
  space.micro_batch_fixed = options_.batch.micro_batch.has_value();
  space.grad_accum_fixed = options_.batch.grad_accum.has_value();
  CheckBatch(assumptions);
  LeaveOutDisks(assumptions);
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

void PlanRequest::LeaveOutDisks(Assumptions& assumptions) {
  const auto names_disk = [](const Option<std::vector<OffloadDevice>>& devices) {
    return devices && std::count(devices->begin(), devices->end(), OffloadDevice::kNvme) > 0;
  };
  const ChoiceOptions& choice = options_.choice;
  const std::optional<Figure>& write = hardware_.node.nvme_write;
  // A figure that was measured counts in a file of the user's: a built-in one is another machine's.
  const bool measured =
      write && write->source == FigureSource::kMeasured && hardware_.source != "built in";
  if (options_.cluster.nvme_capacity || names_disk(choice.offload_optimizer) ||
      names_disk(choice.offload_param) || measured) {
    return;
  }
  std::erase_if(inputs_.space.offload_optimizer,
                [](const OptimizerOffload& o) { return o.device == OffloadDevice::kNvme; });
  std::erase(inputs_.space.offload_param, OffloadDevice::kNvme);
  // Where speed decides, a disk wins only where nothing else fits; then the message says so.
  if (inputs_.objective != Objective::kThroughput) {
    assumptions.notes.push_back(
        "Disks: none was named, so none is searched; --nvme-capacity or --offload-optimizer nvme "
        "names one.");
  }
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
  const auto& devices = options_.choice.offload_optimizer;
  if (devices && std::count(devices->begin(), devices->end(), OffloadDevice::kCpu) == 0) {
    ThrowUsage("--offload-ratio: {} has no effect with --offload-optimizer {}; leave one out",
               options_.choice.offload_ratio.text, devices.text);
  }
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
  options_.batch = InSequences(options_.batch, base.batch.seq_len, cluster_.gpus);
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
  space.micro_batch_fixed = !open_micro;
  space.grad_accum_fixed = !open_accum;
  const Candidate fixed = CandidateOf(base);
  space.stages = {fixed.stage};
  space.offload_optimizer = {fixed.optimizer};
  space.offload_param = {fixed.param};
  space.recompute = {fixed.recompute};
  // What the config leaves open of these lowers to the first value of the space.
  if (fixed.buckets.reduce != kAuto || fixed.buckets.prefetch != kAuto) {
    for (Buckets& buckets : space.buckets) {
      if (fixed.buckets.reduce != kAuto) buckets.reduce = fixed.buckets.reduce;
      if (fixed.buckets.prefetch != kAuto) buckets.prefetch = fixed.buckets.prefetch;
    }
  }
  space.gathering = {fixed.gathering};
  space.sub_group_elements = {fixed.sub_group_elements};
}

}  // namespace zeroplan
