#include "planner/request/resolved.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "core/base/error.h"
#include "core/base/units.h"
#include "core/model/lora.h"
#include "planner/estimate/choices.h"
#include "planner/formats/config_format.h"
#include "planner/plan/plan_file.h"
#include "planner/request/data_fields.h"
#include "planner/request/parse.h"
#include "planner/request/resolve.h"
#include "planner/runtimes/runtimes.h"

namespace zeroplan {

namespace {

void Pin(const std::optional<int64_t>& value, std::vector<int64_t>& list) {
  if (value) list = {*value};
}
template <typename T>
void Pin(const std::optional<std::vector<T>>& values, std::vector<T>& list) {
  if (values) list = *values;
}

// Notes the assumed disk of rows that use one although nobody named it.
void NoteDisk(const EstimateInputs& inputs, const Request& request, const HardwareProfile& hardware,
              Assumptions& assumptions) {
  if (request.cluster.nvme_capacity || request.hardware.nvme_drives) return;
  const std::optional<Figure>& capacity = hardware.node.nvme_capacity;
  if (capacity && capacity->source != FigureSource::kDerived) return;
  const auto uses_disk = [](const TrainSetup& setup) {
    return setup.zero.offload_optimizer.device == OffloadDevice::kNvme ||
           setup.zero.offload_param.device == OffloadDevice::kNvme;
  };
  if (std::none_of(inputs.setups.begin(), inputs.setups.end(), uses_disk)) return;
  assumptions.notes.push_back(
      capacity
          ? fmt::format("NVMe: {} a node by the hardware profile, {}.",
                        FormatBytes(static_cast<uint64_t>(capacity->value)), capacity->reference)
          : "NVMe: the hardware profile does not say how much there is, so it is not checked; "
            "⟦nvme_capacity⟧ sets it.");
}

// Notes the assumptions behind predictions of other runtimes than zeroplan's own executor.
void NoteRuntime(const Request& request, const EstimateInputs& inputs, Assumptions& assumptions) {
  DropOwnNotes(request, assumptions);
  if (!request.config.given() && inputs.runtime->reads_deepspeed_config()) {
    assumptions.notes.push_back(
        fmt::format("Buckets, overlap_comm and all else that has a key are {}'s defaults; ⟦config⟧ "
                    "takes yours.",
                    inputs.runtime->name()));
  }
  if (HasAdapters(inputs.model)) {
    assumptions.notes.emplace_back(
        "Adapters are PEFT's. Programs with LoRA kernels of their own (NeMo AutoModel, Unsloth) "
        "are "
        "not modelled: a published run of AutoModel's took 32 % less than is predicted here, and "
        "ran where memory is said not to fit.");
  }
  const std::string lacks = inputs.runtime->TimeLacks(*inputs.hardware, inputs.cluster.shape());
  if (lacks.empty()) return;
  assumptions.notes.push_back(
      fmt::format("Profile {} lacks {}: step times are left out.", inputs.hardware->name, lacks));
}

// The default space of an estimate: without disks if the profile has no rates for them.
ChoiceSpace SpaceOf(const Runtime& runtime, const Request& request, const HardwareProfile& hardware,
                    Assumptions& assumptions) {
  ChoiceSpace space = runtime.EstimateSpace();
  if (hardware.node.nvme_read && hardware.node.nvme_write) return space;
  const auto left_out = std::erase(space.offload_optimizer, OffloadDevice::kNvme) +
                        std::erase(space.offload_param, OffloadDevice::kNvme);
  if (left_out > 0 && !(request.settings.offload_optimizer && request.settings.offload_param)) {
    assumptions.notes.push_back(
        "NVMe: the hardware profile has no rates of a disk, so none is shown.");
  }
  return space;
}

}  // namespace

ResolvedPlan::ResolvedPlan(const PlanRequest& request, Assumptions& assumptions)
    : ResolvedPlan(request,
                   ResolveHardware(request.common.hardware, request.common.cluster, assumptions,
                                   MeasureHost::kYes),
                   assumptions) {}

ResolvedPlan::ResolvedPlan(const PlanRequest& request, const ResolvedPlan& like,
                           Assumptions& assumptions)
    : ResolvedPlan(
          request,
          request.common.hardware.profile.empty()
              ? like.hardware_
              : ResolveHardware(request.common.hardware, request.common.cluster, assumptions),
          assumptions) {}

ResolvedPlan::ResolvedPlan(const PlanRequest& request, HardwareProfile hardware,
                           Assumptions& assumptions)
    : asked_(request), request_(request.common), hardware_(std::move(hardware)) {
  const Runtime& runtime = request_.runtime.of();
  if (request.compared) {
    ThrowUsage(
        "⟦method⟧: {} is a comparison, which 'zeroplan plan' prints; use one of full, lora, "
        "qlora",
        request.compared.text);
  }
  if (request.machines.given()) {
    ThrowUsage(
        "machines are compared where several are named, or by ⟦objective⟧ cost or energy, "
        "⟦deadline⟧, ⟦budget⟧ and ⟦prices⟧; 'zeroplan plan' prints that, and zeroplan.machines() "
        "returns it; name one machine without these");
  }
  RefuseForRuntime(request_);
  TakeConfigRecipe(request_, assumptions);
  AssumeRestart(request_, assumptions);
  inputs_.runtime = &runtime;
  inputs_.recipe = request_.recipe(request.config_for);
  inputs_.hardware = &hardware_;
  inputs_.for_torchtitan = request.config_for == ConfigFormat::kTorchtitan;
  inputs_.objective = request.objective.value_or(Objective::kThroughput);
  inputs_.model = ResolveModel(request_.model, request_.settings.seq_len, assumptions, runtime);
  SetCodeOfOthers(request_.settings, inputs_.model, inputs_.recipe);
  cluster_ = ResolveCluster(request_, hardware_, assumptions);
  full_ = DefaultSpace(inputs_.model, cluster_.gpus, cluster_.gpus_per_node,
                       inputs_.objective == Objective::kFewestGpus);
  if (runtime.facts().offloads_by_layer && !request.for_config) {
    AddHomes(inputs_.model.layers, full_);
  }
  SettleData(
      {inputs_.model, hardware_, cluster_.gpus, request.config_for == ConfigFormat::kTorchtitan},
      asked_.common, assumptions);
  TakeSettledData(asked_.common, request_);
  if (!request_.config.given()) {
    FromFields(assumptions);
  } else {
    FromConfig(assumptions);
  }
  inputs_.lower = GpuLowerOptions(inputs_.model, inputs_.base.precision.dtype, hardware_.gpu);
  inputs_.lower.async_save = request_.settings.async_save == AsyncSave::kOn;
  ApplyPacking(request_, inputs_.model, hardware_.gpu, inputs_.lower, assumptions);
  for (int gpus : inputs_.space.gpus) inputs_.clusters.push_back(ClusterOf(gpus));
  if (!runtime.facts().own_config_keys) {
    DropOwnNotes(request_, assumptions);
    if (request_.config.given()) inputs_.given_zero = inputs_.base.zero;
  }
  if (request.for_config) ForConfig(request.format());
  if (request.for_config && &runtime.WritesFor() != &runtime && !request_.config.given()) {
    assumptions.notes.emplace_back(
        "⟦out⟧: searched of what DeepSpeed has keys for alone; without it the answer may be "
        "another, and faster.");
  }
  RefuseAttention(runtime, inputs_.model, inputs_.base.precision.dtype, inputs_.recipe.attention,
                  hardware_);
}

void ResolvedPlan::CheckDeepSpeedCan(ConfigFormat format) const {
  const auto why_not = [&](const Candidate& group) {
    return DeepSpeedRuntime().FormatCannot(format, SetupOf(group, inputs_.base));
  };
  const std::vector<Candidate> groups = Groups(inputs_.space);
  const auto can = [&](const Candidate& group) { return why_not(group).empty(); };
  if (!groups.empty() && std::none_of(groups.begin(), groups.end(), can)) {
    // Some have several reasons; the shortest text has the reasons that all have in common.
    std::string cannot = why_not(groups.front());
    for (const Candidate& group : groups) {
      std::string why = why_not(group);
      if (why.size() < cannot.size()) cannot = std::move(why);
    }
    const ScheduleConfig& schedule = inputs_.base.optimizer.schedule;
    std::string fix = "allow another choice";
    if (schedule.kind == ScheduleKind::kOfRun) {
      fix = fmt::format("take _zeroplan.lr_schedule out of {}", request_.config.name());
    } else if (schedule.kind != ScheduleKind::kConstant && schedule.total_steps == 0) {
      fix = fmt::format("set scheduler.params.total_num_steps in {} to the run's optimizer steps",
                        request_.config.name());
    } else if (inputs_.base.deterministic) {
      fix = request_.settings.deterministic
                ? "leave ⟦deterministic⟧ out"
                : fmt::format("take _zeroplan out of {}", request_.config.name());
    } else if (inputs_.base.precision.fp8.enabled) {
      fix = request_.settings.matmul_dtype
                ? "leave ⟦matmul_dtype⟧ out"
                : fmt::format("take _zeroplan.fp8 out of {}", request_.config.name());
    } else if (inputs_.space.recompute == std::vector{kSelectiveRecompute}) {
      fix = !request_.config.given()
                ? "use ⟦checkpointing⟧ none or full"
                : fmt::format("take _zeroplan out of {}", request_.config.name());
    }
    ThrowUsage(
        "⟦out⟧: DeepSpeed cannot do what is asked for: {}; {}, or use ⟦plan_out⟧ for a plan that "
        "zeroplan runs",
        cannot, fix);
  }
}

void ResolvedPlan::CheckRuntimeCan(ConfigFormat format) const {
  const Runtime& runtime = *inputs_.runtime;
  const SearchSpace& space = inputs_.space;
  if (BatchPairs(space, space.gpus.front()).empty()) return;
  SearchSpace first = space;
  first.gpus = {space.gpus.front()};
  const std::vector<TrainSetup> setups = runtime.Choices(inputs_, first);
  std::string fewest = runtime.FormatCannot(format, setups.front());
  for (const TrainSetup& setup : setups) {
    std::string cannot = runtime.FormatCannot(format, setup);
    if (cannot.empty()) return;
    // Some have several reasons; the shortest text has the reasons that all have in common.
    if (cannot.size() < fewest.size()) fewest = std::move(cannot);
  }
  // If the runtime itself cannot run the one setup, the error is the runtime's.
  if (setups.size() == 1) {
    runtime.Judge({inputs_.model, inputs_.lower, inputs_.recipe, &hardware_})
        ->Estimate(setups.front(), inputs_.clusters.front().cluster);
  }
  ThrowUsage("⟦for⟧: {} with {} cannot do what is asked for: {}; allow another choice",
             ConfigFormatName(format), runtime.name(), fewest);
}

void ResolvedPlan::ForConfig(ConfigFormat format) {
  const Runtime& runtime = *inputs_.runtime;
  const std::string cannot = RecipeCannot(format, runtime, inputs_.model, inputs_.recipe);
  if (!cannot.empty()) {
    ThrowUsage("⟦for⟧: {} with {} cannot do what is asked for: {}; allow another choice",
               ConfigFormatName(format), runtime.name(), cannot);
  }
  if (runtime.reads_deepspeed_config()) CheckDeepSpeedCan(format);
  if (&runtime.WritesFor() == &runtime) CheckRuntimeCan(format);
  inputs_.excluded = [format, &runtime](const TrainSetup& s) {
    return !runtime.FormatCannot(format, s).empty();
  };
  if (&runtime.WritesFor() == &runtime) return;
  inputs_.extra_memory = [model = inputs_.model](const TrainSetup& s) {
    return DeepSpeedExtraMemory(model, s);
  };
}

SearchCluster ResolvedPlan::ClusterOf(int gpus) {
  Cluster cluster = cluster_;
  cluster.gpus = gpus;
  const int per_node = request_.cluster.gpus_per_node.value_or(hardware_.node.gpu_count());
  cluster.gpus_per_node = std::min(gpus, per_node);
  cluster.runtime_bytes = RuntimeBytes(hardware_, gpus);
  cluster.communicator_bytes = CommunicatorBytes(hardware_, gpus);
  costs_.emplace_back(hardware_, ClusterShape{gpus, cluster.gpus_per_node});
  return {cluster, &costs_.back()};
}

void ResolvedPlan::SetMoreGpus(int gpus, SearchInputs& inputs) {
  Assumptions unused;
  const int per_node = request_.cluster.gpus_per_node.value_or(hardware_.node.gpu_count());
  if (gpus > per_node && gpus % per_node != 0) gpus = (gpus / per_node + 1) * per_node;
  Request request = request_;
  Set(request.cluster.gpus, gpus);
  const HardwareProfile& hardware =
      more_hardware_.emplace_back(request.hardware.profile.empty()
                                      ? hardware_
                                      : ResolveHardware(request.hardware, request.cluster, unused));
  const Cluster cluster = ResolveCluster(request, hardware, unused);
  costs_.emplace_back(hardware, cluster.shape());
  inputs.hardware = &hardware;
  inputs.clusters = {{cluster, &costs_.back()}};
  inputs.space.gpus = {gpus};
}

void ResolvedPlan::FromFields(Assumptions& assumptions) {
  TrainSetup& base = inputs_.base;  // its batch is searched
  base.batch.world_size = cluster_.gpus;
  const int64_t seq_len = ResolveSeqLen(request_, inputs_.model, assumptions);
  base.batch.seq_len = seq_len;
  PinSequences();
  const Given<int64_t>& tokens = request_.settings.global_batch_tokens;
  const bool shared = full_.sequence_ranks_fixed || (tokens && *tokens / seq_len < cluster_.gpus);
  request_.settings = InSequences(request_.settings, seq_len, cluster_.gpus,
                                  shared ? full_.sequence_ranks.back() : 1);
  CheckMicroBatch(base.batch.micro_batch, seq_len, full_.most_micro_step_tokens);
  NoteRoundedBatch(request_.settings, request_.settings.global_batch, seq_len, assumptions);
  base.precision =
      ResolvePrecision(request_.settings, hardware_, DefaultDtype(hardware_), assumptions);
  CheckFp8(request_, base.precision, inputs_.model, hardware_.gpu);
  AllowStates(/*by_config=*/false);
  AllowProducts(/*by_config=*/false);
  SetAsked(request_.settings, base);
  SetBatches(full_, request_.settings.global_batch, base.batch.seq_len);
  if (cluster_.pinned_limit_bytes) full_.pin_memory = {true, false};
  inputs_.space = full_;
  SearchSpace& space = inputs_.space;
  Pin(request_.settings.micro_batch, space.micro_batches);
  Pin(request_.settings.grad_accum, space.grad_accums);
  space.micro_batch_fixed = request_.settings.micro_batch.has_value();
  space.grad_accum_fixed = request_.settings.grad_accum.has_value();
  if (!space.sequence_ranks_fixed) SearchSequences(assumptions);
  CheckBatch(assumptions);
  LeaveOutDisks(assumptions);
  Pin(request_.settings.stage, space.stages);
  Pin(request_.settings.offload_param, space.offload_param);
  PinGroups();
  PinOptimizer();
  if (const auto& pin = request_.settings.pin_memory) space.pin_memory = {*pin == PinMemory::kOn};
  PinRecompute();
  CheckGroups();
}

void ResolvedPlan::PinSequences() {
  const Given<std::vector<int>>& asked = request_.settings.sequence_ranks;
  const int64_t seq_len = inputs_.base.batch.seq_len;
  CheckSequenceRanks(asked, *inputs_.runtime, inputs_.model, seq_len, cluster_.gpus);
  full_.sequence_ranks_fixed = asked.has_value();
  const bool some = asked && !asked->empty();
  if (some) full_.sequence_ranks = *asked;
  if (!some && (asked || inputs_.runtime->facts().searches_sequences)) {
    full_.sequence_ranks = SequenceRanksOf(*inputs_.runtime, inputs_.model, seq_len, cluster_.gpus);
  }
}

void ResolvedPlan::UnaskedSequences(SearchSpace& space) const {
  space.sequence_ranks = {1};
  if (!space.global_batch || *space.global_batch >= cluster_.gpus || AnyBatch(space)) return;
  space.sequence_ranks = full_.sequence_ranks;
  if (!AnyBatch(space)) space.sequence_ranks = {1};
}

void ResolvedPlan::SearchSequences(Assumptions& assumptions) {
  UnaskedSequences(inputs_.space);
  if (inputs_.space.sequence_ranks == std::vector{1}) return;
  const AskedSettings& batch = request_.settings;
  assumptions.notes.push_back(
      fmt::format("Sequences: shared by GPUs, which are more than the {} sequence{} of a step; "
                  "⟦sequence_ranks⟧ says how many share one.",
                  *batch.global_batch, *batch.global_batch == 1 ? "" : "s"));
}

void ResolvedPlan::CheckGroups() const {
  const SearchSpace& space = inputs_.space;
  if (!space.grouping_fixed || !inputs_.runtime->facts().searches_groups || !Groups(space).empty())
    return;
  const AskedSettings& choice = request_.settings;
  if (!choice.shard_group && space.stages == std::vector{0}) {
    ThrowUsage(
        "⟦across_groups⟧: {} is not allowed at stage 0, which shards nothing; use stage 1, 2 "
        "or 3",
        choice.across_groups.text);
  }
  Candidate first;
  first.gpus = space.gpus.back();  // every requested group divides these
  first.sequence_ranks = space.sequence_ranks.front();
  first.states = space.states.front();
  first.products = space.products.front();
  first.stage = space.stages.front();
  first.grouping = space.groupings.front();
  if (!space.offload_optimizer.empty()) first.optimizer = space.offload_optimizer.front();
  first.param = space.offload_param.front();
  ValidateSetup(SetupOf(first, inputs_.base), "command line");
}

void ResolvedPlan::CheckBatch(Assumptions& assumptions) {
  const std::optional<int64_t>& global = request_.settings.global_batch;
  const SearchSpace& space = inputs_.space;
  if (!global) {
    if (space.grad_accums.size() > 1 || space.micro_batches.size() > 1) {
      // The smallest batch is searched, regardless of its number of sequences.
      const int64_t least = cluster_.gpus / space.sequence_ranks.front() *
                            space.micro_batches.front() * space.grad_accums.front();
      const int64_t most = std::max(space.max_step_sequences, least);
      const int64_t tokens = most * inputs_.base.batch.seq_len;
      const bool by_gpu = cluster_.gpus * kDefaultGpuTokens <= kDefaultStepTokens;
      assumptions.notes.push_back(fmt::format(
          "Batch: searched, at most {} sequence{} a step ({} tokens, {}); ⟦global_batch⟧ sets it.",
          most, most == 1 ? "" : "s", FormatCount(static_cast<uint64_t>(tokens)),
          least > space.max_step_sequences ? "the smallest that all GPUs have"
          : by_gpu
              ? fmt::format("{} a GPU, as is usual on one card", FormatCount(kDefaultGpuTokens))
              : "GPT-3's smallest batch"));
    }
    return;
  }
  if (AnyBatch(space)) return;
  const int shared = space.sequence_ranks.back();
  // __int128, because each factor may be two billion.
  const auto unit = static_cast<__int128>(cluster_.gpus / shared) *
                    request_.settings.micro_batch.value_or(1) *
                    request_.settings.grad_accum.value_or(1);
  const std::string fix = unit <= kMaxBatch
                              ? fmt::format("use a multiple of {}", static_cast<int64_t>(unit))
                              : "use smaller parts";
  ThrowUsage("⟦global_batch⟧: {} is not a micro-batch times accumulation times ⟦gpus⟧ {}{}; {}",
             *global, cluster_.gpus,
             shared > 1 ? fmt::format(" / ⟦sequence_ranks⟧ {}", shared) : "", fix);
}

void LeaveOutDisks(SearchSpace& space) {
  std::erase_if(space.offload_optimizer,
                [](const OptimizerOffload& o) { return o.device == OffloadDevice::kNvme; });
  std::erase(space.offload_param, OffloadDevice::kNvme);
}

void ResolvedPlan::LeaveOutDisks(Assumptions& assumptions) {
  const auto names_disk = [](const Given<std::vector<OffloadDevice>>& devices) {
    return devices && std::count(devices->begin(), devices->end(), OffloadDevice::kNvme) > 0;
  };
  const AskedSettings& choice = request_.settings;
  const std::optional<Figure>& write = hardware_.node.nvme_write;
  // A measured figure counts if it is from a user's file: built-in ones are of other machines.
  const bool measured =
      write && write->source == FigureSource::kMeasured && hardware_.source != "built in";
  if (request_.cluster.nvme_capacity || request_.hardware.nvme_drives ||
      names_disk(choice.offload_optimizer) || names_disk(choice.offload_param) || measured) {
    return;
  }
  zeroplan::LeaveOutDisks(inputs_.space);
  // If speed decides, a disk wins only if nothing else fits; then the message names it.
  if (inputs_.objective != Objective::kThroughput) {
    assumptions.notes.push_back(
        "Disks: none was named, so none is searched; ⟦nvme_capacity⟧ or ⟦offload_optimizer⟧ nvme "
        "names one.");
  }
}

void ResolvedPlan::PinGroups() {
  const AskedSettings& choice = request_.settings;
  SearchSpace& space = inputs_.space;
  const Grouping asked = ResolveGrouping(choice, cluster_.gpus, cluster_.gpus_per_node);
  space.grouping_fixed = choice.shard_group || choice.across_groups;
  if (choice.shard_group) {
    space.groupings = {asked};
    for (int across = 1; across <= 2 && asked.ranks > 0 && !choice.across_groups; ++across) {
      space.groupings.push_back({asked.ranks, across});
    }
  } else if (choice.across_groups) {
    std::erase_if(space.groupings, [&](const Grouping& grouping) {
      return grouping.across_stage != asked.across_stage;
    });
  }
  if (space.groupings.empty()) {
    ThrowWithoutGroups(choice, cluster_.gpus, cluster_.gpus_per_node);
  }
}

void ResolvedPlan::PinOptimizer() {
  std::vector<OptimizerOffload>& list = inputs_.space.offload_optimizer;
  if (const auto& devices = request_.settings.offload_optimizer) {
    std::erase_if(list, [&](const OptimizerOffload& o) {
      return std::find(devices->begin(), devices->end(), o.device) == devices->end();
    });
  }
  if (!request_.settings.offload_ratio) return;
  const double ratio = *request_.settings.offload_ratio;
  const auto& devices = request_.settings.offload_optimizer;
  if (devices && std::count(devices->begin(), devices->end(), OffloadDevice::kCpu) == 0) {
    ThrowUsage("⟦offload_ratio⟧: {} has no effect with ⟦offload_optimizer⟧ {}; leave one out",
               request_.settings.offload_ratio.text, devices.text);
  }
  std::erase_if(list, [&](const OptimizerOffload& o) {
    return o.device == OffloadDevice::kCpu || (o.device == OffloadDevice::kNvme && ratio < 1);
  });
  list.push_back({OffloadDevice::kCpu, ratio});
}

void ResolvedPlan::PinRecompute() {
  SearchSpace& space = inputs_.space;
  std::vector<RecomputeConfig>& list = space.recompute;
  const AskedSettings& choice = request_.settings;
  const Given<int>& every = choice.checkpoint_every;
  CheckRecomputeFields(request_);
  const bool one_home = request_.settings.offload_activations || choice.offload_activation_layers;
  const Checkpointing kind =
      choice.checkpointing.value_or(every                               ? Checkpointing::kFull
                                    : !space.mixes.empty() && !one_home ? Checkpointing::kSearched
                                                                        : Checkpointing::kAll);
  if (every) {
    std::erase_if(list, [](const RecomputeConfig& r) { return r.kind == RecomputeKind::kFull; });
    list.push_back(FullRecompute(*every));
  }
  std::erase_if(list, [kind](const RecomputeConfig& listed) {
    return (kind == Checkpointing::kNone && listed.kind != RecomputeKind::kNone) ||
           (kind == Checkpointing::kSelective && listed.kind != RecomputeKind::kSelective) ||
           (kind == Checkpointing::kProducts && listed.kind != RecomputeKind::kProducts) ||
           (kind == Checkpointing::kFull && listed.kind != RecomputeKind::kFull);
  });
  if (kind == Checkpointing::kProducts && list.empty()) list = {kProductsRecompute};
  for (RecomputeConfig& r : list) r = WithRecomputeFields(r, request_, inputs_.model.layers);
  if (kind != Checkpointing::kSearched || one_home || every) space.mixes.clear();
  if (space.pin_memory.front()) return;  // else no activations go through page-locked memory
  std::erase_if(space.mixes, [](const std::vector<RecomputeConfig>& mix) {
    return mix.front().offload.device != OffloadDevice::kNone;
  });
}

void ResolvedPlan::FromConfig(Assumptions& assumptions) {
  bool says_states = false;
  inputs_.base = ResolveConfig(request_, inputs_.model, hardware_, cluster_.gpus, assumptions,
                               &inputs_.recipe, &says_states);
  const TrainSetup& base = inputs_.base;
  PinSequences();
  request_.settings =
      InSequences(request_.settings, base.batch.seq_len, cluster_.gpus, base.batch.sequence_ranks);
  const auto open = [&](const char* key, const std::optional<int64_t>& option) {
    return !request_.config.Says(key) && !option;
  };
  const bool open_global = open("train_batch_size", request_.settings.global_batch);
  const bool open_micro = open("train_micro_batch_size_per_gpu", request_.settings.micro_batch);
  const bool open_accum = open("gradient_accumulation_steps", request_.settings.grad_accum);
  AllowStates(says_states);
  AllowProducts(request_.config.Says("_zeroplan.fp8"));
  SetBatches(full_, open_global ? std::nullopt : std::optional(base.batch.global_batch()),
             base.batch.seq_len);
  inputs_.space = full_;
  SearchSpace& space = inputs_.space;
  if (!open_micro) space.micro_batches = {base.batch.micro_batch};
  if (!open_accum) space.grad_accums = {base.batch.grad_accum};
  space.micro_batch_fixed = !open_micro;
  space.grad_accum_fixed = !open_accum;
  const Candidate fixed = CandidateOf(base);
  space.sequence_ranks = {fixed.sequence_ranks};
  space.stages = {fixed.stage};
  space.groupings = {fixed.grouping};
  space.grouping_fixed = true;
  space.offload_optimizer = {fixed.optimizer};
  space.offload_param = {fixed.param};
  space.recompute = {fixed.recompute};
  space.mixes.clear();
  // Buckets that the config leaves open lower to the first value of the space.
  if (fixed.buckets.reduce != kAuto || fixed.buckets.prefetch != kAuto) {
    for (Buckets& buckets : space.buckets) {
      if (fixed.buckets.reduce != kAuto) buckets.reduce = fixed.buckets.reduce;
      if (fixed.buckets.prefetch != kAuto) buckets.prefetch = fixed.buckets.prefetch;
    }
  }
  space.pin_memory = {fixed.pin_memory};
  space.gathering = {fixed.gathering};
  space.sub_group_elements = {fixed.sub_group_elements};
}

ResolvedEstimate::ResolvedEstimate(Request request, Assumptions& assumptions)
    : hardware_(
          ResolveHardware(request.hardware, request.cluster, assumptions, MeasureHost::kYes)) {
  const HardwareProfile& hardware = hardware_;
  EstimateInputs& inputs = inputs_;
  const Runtime& runtime = request.runtime.of();
  RefuseForRuntime(request);
  TakeConfigRecipe(request, assumptions);
  AssumeRestart(request, assumptions);
  inputs.runtime = &runtime;
  inputs.recipe = request.recipe();
  inputs.hardware = &hardware_;
  inputs.model = ResolveModel(request.model, request.settings.seq_len, assumptions, runtime);
  SetCodeOfOthers(request.settings, inputs.model, inputs.recipe);
  inputs.cluster = ResolveCluster(request, hardware, assumptions);
  costs_.emplace(hardware, ClusterShape{inputs.cluster.gpus, inputs.cluster.gpus_per_node});
  inputs.costs = &*costs_;
  const int gpus = inputs.cluster.gpus;
  SettleData({inputs.model, hardware, gpus}, request, assumptions);
  if (!request.config.given()) {
    inputs.setups = ResolveSetups(request, inputs.model, hardware, gpus, DefaultDtype(hardware),
                                  SpaceOf(runtime, request, hardware, assumptions), assumptions);
  } else {
    inputs.setups = {
        ResolveConfig(request, inputs.model, hardware, gpus, assumptions, &inputs.recipe)};
    if (runtime.reads_deepspeed_config()) {
      TakeTrainerSizes(request.config, inputs.model, inputs.setups.front().zero, assumptions);
    }
  }
  inputs.setups = runtime.Completed(std::move(inputs.setups), request.config.given());
  const JudgeInputs judged{inputs.model, inputs.lower, inputs.recipe, inputs.hardware};
  const auto takes = [&](const TrainSetup& setup) { return runtime.Takes(judged, setup); };
  if (std::any_of(inputs.setups.begin(), inputs.setups.end(), takes)) {
    std::erase_if(inputs.setups, std::not_fn(takes));
  }
  const TrainSetup& setup = inputs.setups.front();
  inputs.lower = GpuLowerOptions(inputs.model, setup.precision.dtype, hardware.gpu);
  if (request.settings.async_save == AsyncSave::kOn) {
    inputs.lower.async_save = true;
    assumptions.notes.push_back(
        "Host memory counts a copy of the states, from which saves are written beside the steps "
        "(⟦async_save⟧ on).");
  }
  ApplyPacking(request, inputs.model, hardware.gpu, inputs.lower, assumptions);
  if (runtime.has_programs()) {
    NoteKernels(inputs.model, setup, inputs.lower, hardware, setup.deterministic, assumptions);
    NoteStates(setup, assumptions);
    NoteFp8(inputs.model, setup, assumptions);
    NoteDisk(inputs, request, hardware, assumptions);
    AssumeSums(request, inputs.setups, assumptions);
    NoteIdleSums(inputs.setups, assumptions);
  } else {
    RefuseAttention(runtime, inputs.model, setup.precision.dtype, inputs.recipe.attention,
                    hardware);
    NoteRuntime(request, inputs, assumptions);
  }
  inputs.goal = ResolveGoal(request.goal, inputs.setups.front().batch, hardware.gpu,
                            runtime.facts().fixed_rows);
  NoteGuesses(hardware, inputs.cluster, inputs.setups, inputs.recipe, assumptions);
}

}  // namespace zeroplan
