// Judges choices of PyTorch programs by playing them: first with as much memory as they like, then,
// where that is more than there is, with what there is. What was played is kept.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "core/base/units.h"
#include "core/config/reader_state.h"
#include "core/model/model_spec.h"
#include "hwprofiles/profile.h"
#include "planner/estimate/choices.h"
#include "planner/estimate/estimate.h"
#include "planner/runtimes/torch_based.h"
#include "planner/runtimes/torch_phases.h"

namespace zeroplan {
namespace {

// What blocks may have beyond the tensor in them, of all that is allocated (torch_memory.h).
// Tensors that exceed memory by more do so with larger micro-batches too.
constexpr double kBlockSlack = 0.01;
// Micro-steps in which what comes before and after them is of no account.
constexpr int64_t kMany = 1000;

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
std::optional<TorchPhase> PhaseTooLarge(const TorchFootprint& free, uint64_t has) {
  const auto too_large = [&](TorchPhase phase) {
    return free.peak(phase).allocated_bytes + free.context_bytes > has;
  };
  if (too_large(TorchPhase::kInit)) return std::nullopt;
  for (const TorchPhase phase : {TorchPhase::kForwardBackward, TorchPhase::kStep}) {
    if (too_large(phase)) return phase;
  }
  return std::nullopt;
}

std::string GpuMisfit(const TorchFootprint& torch, TorchPhase phase, uint64_t has, int stage) {
  const TorchPeak& peak = torch.peak(phase);
  const uint64_t tensors = peak.allocated_bytes + torch.context_bytes;
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
      FormatBytes(peak.reserved_bytes + torch.context_bytes));
}

EffectiveSettings SettingsOf(ZeroConfig zero) {
  FillReaderSizes(zero);
  return {zero.reduce_bucket_elements, zero.prefetch_bucket_elements,
          zero.param_persistence_threshold, zero.max_reuse_distance, zero.overlap_comm};
}

class TorchJudge : public ChoiceJudge {
 public:
  TorchJudge(const TorchBased& runtime, const JudgeInputs& inputs)
      : runtime_(runtime), inputs_(inputs) {}

  ChoiceEstimate Estimate(const TrainSetup& setup, const Cluster& cluster) override {
    const Played& played = FreeOf(setup, cluster);
    const TorchFootprint& free = played.footprint;
    const int64_t micro_steps = setup.batch.grad_accum;
    ChoiceEstimate choice;
    choice.setup = setup;
    choice.settings = SettingsOf(setup.zero);
    choice.footprint = FootprintOf(free, cluster.ranks_per_node());
    choice.footprint.torch->copied_bytes =
        static_cast<uint64_t>(played.step.CopiedBytes(micro_steps));
    const Capacity capacity = CapacityOf(cluster);
    std::optional<TorchPhase> too_large;
    if (free.DeviceBytes() > *capacity.gpu_bytes) {
      too_large = Squeeze(free, *capacity.gpu_bytes, cluster, choice);
    }
    const uint64_t evicted = Evicted(free, *capacity.gpu_bytes);
    choice.footprint.host.pageable += evicted * static_cast<uint64_t>(cluster.ranks_per_node());
    if (const std::optional<RuntimeTime> time = played.step.Time(micro_steps)) {
      SetTime(WithEvicted(*time, evicted, cluster), cluster, choice);
    }
    for (const Shortage& shortage : Check(choice.footprint, capacity)) {
      if (!choice.why_not.empty()) choice.why_not += "; and ";
      choice.why_not +=
          shortage.kind == MemoryKind::kGpu
              ? GpuMisfit(*choice.footprint.torch, *too_large, shortage.has, setup.zero.stage)
              : fmt::format("{}: {} processes need {} of {}",
                            shortage.kind == MemoryKind::kNvme ? "NVMe" : "host memory",
                            cluster.ranks_per_node(), FormatBytes(shortage.needs),
                            FormatBytes(shortage.has));
    }
    for (std::vector<AroundPeak>* peaks :
         {&choice.footprint.torch->around, &choice.footprint.torch->gathers}) {
      for (AroundPeak& peak : *peaks) JudgeAround(capacity, cluster.ranks_per_node(), &peak);
    }
    // What cannot be loaded cannot be trained.
    if (choice.why_not.empty()) choice.why_not = LoadingMisfit(choice);
    choice.fits = choice.why_not.empty();
    if (choice.fits) choice.room = RoomOf(choice.footprint, *capacity.gpu_bytes);
    return choice;
  }

  // What of managed memory the GPU has no room for, and what it takes to bring that and take it
  // away again in a step.
  static uint64_t Evicted(const TorchFootprint& torch, uint64_t has) {
    const uint64_t needs = torch.DeviceBytes() + torch.managed_bytes;
    return std::min(torch.managed_bytes, needs - std::min(needs, has));
  }
  RuntimeTime WithEvicted(RuntimeTime time, uint64_t evicted, const Cluster& cluster) {
    if (evicted == 0) return time;
    const TransferCost& transfers = MachineOf(cluster.shape())->transfers;
    const double seconds =
        static_cast<double>(evicted) * (1 / transfers.BytesPerSecond(/*to_device=*/true) +
                                        1 / transfers.BytesPerSecond(/*to_device=*/false));
    time.transfers += seconds;
    time.step_seconds += seconds;
    return time;
  }

  bool LargerMisfitToo(const ChoiceEstimate& choice, const Cluster& cluster) override {
    const Capacity capacity = CapacityOf(cluster);
    const TorchFootprint& torch = *choice.footprint.torch;
    // The micro-batch has no effect on the host's memory, nor on loading.
    if (!LoadingMisfit(choice).empty()) return true;
    if (capacity.host_bytes && choice.footprint.host.total() > *capacity.host_bytes) return true;
    const double tensors = static_cast<double>(torch.TensorBytes()) * (1 - kBlockSlack);
    return tensors + static_cast<double>(torch.context_bytes) >
           static_cast<double>(*capacity.gpu_bytes);
  }

  double LeastMicroStepSeconds(const TrainSetup& setup, const Cluster& cluster) override {
    const auto [at, added] = least_seconds_.try_emplace(
        {setup.batch.micro_batch, setup.batch.sequence_ranks, setup.recompute}, 0.0);
    if (!added) return at->second;
    if (setup.batch.sequence_ranks > 1) return 0;  // no bound knows the exchanges
    TorchPlay play{inputs_.model, setup, inputs_.recipe, inputs_.hardware};
    play.bare = true;
    play.setup.batch.world_size = 1;
    play.setup.batch.grad_accum = kMany;
    play.setup.zero.shard_group = 0;
    Cluster one = cluster;
    one.gpus = one.gpus_per_node = 1;
    TorchTimer timer(MachineOf(one.shape()), {});
    ++played_;
    runtime_.Play(std::move(play), &timer);
    const std::optional<RuntimeTime> time = timer.Time(kMany);
    if (time) at->second = time->step_seconds / static_cast<double>(kMany);
    return at->second;
  }

 private:
  struct Played {
    TorchFootprint footprint;  // with as much memory as it likes
    PlayedStep step;
  };
  using PlayedChoice = std::pair<Candidate, bool>;
  static PlayedChoice PlayedChoiceOf(const TrainSetup& setup) {
    return {CandidateOf(setup), setup.zero.overlap_comm};
  }
  // One play serves all accumulations of which as many micro-steps are played.
  static TrainSetup AsPlayed(TrainSetup setup) {
    setup.batch.grad_accum = std::min(setup.batch.grad_accum, kPlayedMicroSteps);
    return setup;
  }

  const Played& FreeOf(const TrainSetup& asked, const Cluster& cluster) {
    const TrainSetup setup = AsPlayed(asked);
    const auto [at, added] =
        played_choices_.try_emplace({PlayedChoiceOf(setup), cluster.gpus_per_node});
    if (!added) return at->second;
    const TorchMachine* machine = MachineOf(cluster.shape());
    const bool host_known = machine != nullptr && machine->host_bytes_per_second > 0;
    const bool on_host = setup.zero.offload_optimizer.device != OffloadDevice::kNone;
    const bool in_files = setup.zero.offload_optimizer.device == OffloadDevice::kNvme ||
                          setup.zero.offload_param.device == OffloadDevice::kNvme;
    const bool files_known = machine != nullptr && machine->storage.known();
    const bool timed = (!on_host || host_known) && (!in_files || files_known);
    TorchTimer timer(timed ? machine : nullptr, {});
    at->second.footprint = Play(setup, cluster, std::nullopt, &timer, /*around=*/true);
    at->second.step = timer.step();
    return at->second;
  }

  TorchFootprint Play(const TrainSetup& setup, const Cluster& cluster,
                      std::optional<uint64_t> limit, TorchTimer* timer, bool around) {
    ++played_;
    return runtime_.Play({inputs_.model, setup, inputs_.recipe, inputs_.hardware,
                          cluster.gpus_per_node, limit, around},
                         timer);
  }

  static std::string LoadingMisfit(const ChoiceEstimate& choice) {
    const std::vector<AroundPeak>& around = choice.footprint.torch->around;
    if (around.empty() || around[0].phase != AroundPhase::kLoading) return "";
    return around[0].why_not;
  }

  // Null where the profile does not say enough.
  const TorchMachine* MachineOf(const ClusterShape& shape) {
    if (inputs_.hardware == nullptr || !TorchMachineLacks(*inputs_.hardware, shape).empty()) {
      return nullptr;
    }
    return &machines_.try_emplace({shape.gpus, shape.gpus_per_node}, *inputs_.hardware, shape)
                .first->second;
  }

  // Plays a choice that wants more memory than `has`. Returns the phase in which the allocator
  // fails; if there is none, the choice's footprint becomes that of the limited play.
  std::optional<TorchPhase> Squeeze(const TorchFootprint& free, uint64_t has,
                                    const Cluster& cluster, ChoiceEstimate& choice) {
    if (const std::optional<TorchPhase> phase = PhaseTooLarge(free, has)) return phase;
    const TrainSetup played = AsPlayed(choice.setup);
    const uint64_t limit = has - std::min(has, free.context_bytes);
    const auto [at, added] = limited_.try_emplace({PlayedChoiceOf(played), limit});
    if (added) at->second = Play(played, cluster, limit, nullptr, /*around=*/false);
    TorchFootprint limited = at->second;
    // An initialisation that fails has tried another way, with less memory.
    if (limited.out_of_memory && limited.out_of_memory != TorchPhase::kInit) {
      return limited.out_of_memory;
    }
    limited.segments_given_back *=
        static_cast<uint64_t>(choice.setup.batch.grad_accum / played.batch.grad_accum);
    limited.around = choice.footprint.torch->around;
    limited.gathers = choice.footprint.torch->gathers;
    limited.copied_bytes = choice.footprint.torch->copied_bytes;
    const uint64_t wanted = choice.footprint.gpu_total();
    choice.footprint = FootprintOf(limited, cluster.ranks_per_node());
    if (!limited.out_of_memory) {
      choice.footprint.gpu_spare_bytes = wanted - choice.footprint.gpu_total();
    }
    return limited.out_of_memory;
  }

  // A run takes at most its margin of error more than predicted.
  MemoryRoom RoomOf(const Footprint& footprint, uint64_t has) const {
    const RuntimeMargins& margins = runtime_.margins();
    const TorchFootprint& torch = *footprint.torch;
    const double room = static_cast<double>(has) - static_cast<double>(torch.context_bytes);
    // Where that was not measured, the device's stands for it.
    const double tensors = margins.allocated > 0 ? margins.allocated : margins.device;
    if (static_cast<double>(torch.TensorBytes()) * (1 + tensors) > room) return MemoryRoom::kAtRisk;
    if (footprint.gpu_spare_bytes > 0) return MemoryRoom::kEmptiesCache;
    const double reserved = static_cast<double>(torch.ReservedBytes()) *
                            (1 + std::max(margins.reserved, margins.device));
    return reserved + static_cast<double>(torch.context_bytes) > static_cast<double>(has)
               ? MemoryRoom::kTight
               : MemoryRoom::kAmple;
  }

  void SetTime(const RuntimeTime& time, const Cluster& cluster, ChoiceEstimate& choice) {
    const BatchSpec& batch = choice.setup.batch;
    const double tokens = static_cast<double>(batch.global_batch()) *
                          static_cast<double>(batch.seq_len) / time.step_seconds;
    TimeEstimate& of = choice.time;
    of.compute_seconds = time.compute;
    of.exposed_comm_seconds = time.exposed_communication;
    of.exposed_offload_seconds = time.transfers + time.host_update;
    of.host_update_seconds = time.host_update;
    of.host_overhead_seconds = time.host_overhead;
    of.total_seconds = time.step_seconds;
    of.tokens_per_second = tokens;
    of.mfu = StrictMfu(inputs_.model, batch.seq_len, tokens, batch.world_size,
                       MachineOf(cluster.shape())->gemm.DensePeak(choice.setup.precision.dtype));
  }

  const TorchBased& runtime_;
  const JudgeInputs inputs_;
  std::map<std::pair<int, int>, TorchMachine> machines_;
  std::map<std::pair<PlayedChoice, int>, Played> played_choices_;        // and GPUs of a node
  std::map<std::pair<PlayedChoice, uint64_t>, TorchFootprint> limited_;  // and the limit
  std::map<std::tuple<int64_t, int, RecomputeConfig>, double> least_seconds_;
};

}  // namespace

std::unique_ptr<ChoiceJudge> TorchBased::Judge(const JudgeInputs& inputs) const {
  return std::make_unique<TorchJudge>(*this, inputs);
}

}  // namespace zeroplan
