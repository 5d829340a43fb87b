#include "planner/runtimes/torch_based.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/error.h"
#include "core/config/reader_state.h"
#include "core/model/lora.h"
#include "core/model/model_family.h"
#include "core/model/model_spec.h"
#include "core/settings/setup_facts.h"
#include "hwprofiles/profile.h"
#include "hwprofiles/sanity.h"
#include "planner/estimate/choices.h"
#include "planner/estimate/estimate.h"
#include "planner/runtimes/torch_code.h"
#include "planner/runtimes/torch_phases.h"
#include "planner/search/enumerated_search.h"

namespace zeroplan {
namespace {

// Shares of the optimizer by tenths are searched by fifths.
std::vector<OptimizerOffload> Thinned(const std::vector<OptimizerOffload>& offloads) {
  const auto in_part = std::count_if(offloads.begin(), offloads.end(),
                                     [](const OptimizerOffload& o) { return o.ratio < 1; });
  std::vector<OptimizerOffload> kept;
  for (const OptimizerOffload& offload : offloads) {
    const bool odd = std::lround(10 * offload.ratio) % 2 == 1;
    if (in_part < 2 || offload.ratio >= 1 || !odd) kept.push_back(offload);
  }
  return kept;
}

// Where the step's size is open, more micro-steps of one size are more tokens a second, since the
// update is shared by more: of each micro-batch one micro-step and the most of them.
std::vector<BatchPair> Batches(const SearchSpace& space, int data_ranks) {
  std::vector<BatchPair> all = BatchPairs(space, data_ranks);
  if (space.global_batch) return all;
  std::vector<BatchPair> kept;
  for (size_t i = 0; i < all.size(); ++i) {
    const bool first = i == 0 || all[i - 1].micro_batch != all[i].micro_batch;
    const bool last = i + 1 == all.size() || all[i + 1].micro_batch != all[i].micro_batch;
    if (first || last) kept.push_back(all[i]);
  }
  return kept;
}

double RoomFactor(MemoryRoom room) {
  switch (room) {
    case MemoryRoom::kAmple:
      return 1;
    // Each behind all that has more room.
    case MemoryRoom::kTight:
      return 1e-3;
    case MemoryRoom::kEmptiesCache:
      return 1e-6;
    case MemoryRoom::kAtRisk:
      return 1e-9;
    case MemoryRoom::kNone:
      return 0;
  }
  ZEROPLAN_CHECK(false);
}

// trainer.py, _run_epoch: each micro-step's loss is read (logging_nan_inf_filter, which is on by
// default), so that logging it costs no more; then Python works while the GPU has nothing to do.
void AddTrainer(const TorchModel& model, TorchTimer* timer) {
  const TimeConstants& constants = timer->constants();
  timer->HostWaits(TorchClock::kComputeStream);
  timer->Host(2 * constants.read_back + constants.trainer_micro_step +
              constants.trainer_module * static_cast<double>(model.modules.size()));
}

}  // namespace

TorchRun TorchRunOf(const TrainSetup& setup, const TorchRecipe& recipe) {
  TorchRun run;
  run.micro_batch = setup.batch.micro_batch;
  run.seq_len = setup.batch.seq_len;
  run.sequence_ranks = setup.batch.sequence_ranks;
  run.tiled_mlp = recipe.tiled_mlp;
  run.recompute = setup.recompute.kind != RecomputeKind::kNone;
  run.saves_products = setup.recompute.kind == RecomputeKind::kSelective;
  run.compiled = recipe.compile.layers;
  run.compiled_loss = recipe.compile.loss;
  run.float8 = Float8Of(setup.precision, recipe);
  run.float8_gathers = run.float8 == TorchFloat8::kTensorwiseGathers &&
                       ShardRanks(setup.zero, setup.batch.world_size) > 1;
  run.code = recipe.code;
  run.attention = recipe.attention;
  return run;
}

bool TorchBased::Takes(const JudgeInputs& inputs, const TrainSetup& setup) const {
  try {
    RefusePlay({.model = inputs.model,
                .setup = setup,
                .recipe = inputs.recipe,
                .hardware = inputs.hardware});
    return true;
  } catch (const Error&) {
    return false;
  }
}

namespace {

// Ranks of its node that a rank sends heads to.
int ExchangesWith(const TorchRun& run, int gpus_per_node) {
  if (run.ring) return 0;
  const int shared = run.sequence_ranks;
  return (gpus_per_node == 0 ? shared : std::min(shared, gpus_per_node)) - 1;
}

// TorchPlay::bare.
class BareEngine : public TorchRuntime {
 public:
  using TorchRuntime::TorchRuntime;
  void Init() override {}
  void EndBackward() override {}
  void Step() override {}
  void Gradient(int /*param*/, Tensor /*grad*/) override {}
};

}  // namespace

TorchFootprint TorchBased::Play(TorchPlay play, TorchTimer* timer) const {
  TrainSetup& setup = play.setup;
  if (!play.bare) RefusePlay(play);
  FillReaderSizes(setup.zero);
  TorchTimer no_timer(nullptr, {});
  if (timer == nullptr) timer = &no_timer;
  const PlayedParts parts = Parts(setup.zero.stage);
  TorchRun run = TorchRunOf(setup, play.recipe);
  run.fp32_params = HasAdapters(play.model) ? play.recipe.kbit : CastsTrained(play);
  run.autocast = HasAutocast();
  run.ring = HasRing() && run.sequence_ranks > 1;
  if (play.recipe.offload_activations) run.offloading = &Offloading();
  run.adapters = {CastsTrained(play), play.recipe.kbit};
  if (play.hardware != nullptr) {
    run.compute_capability = ComputeCapability(play.hardware->gpu.architecture);
  }
  if (!StyleCodeOf(run.code, run.fp32_params).padded_vocab) {
    play.model.padded_vocab = play.model.vocab;
  }
  const TorchModel model(play.model, play.recipe.experts);
  run.module_graphs = !play.bare && run.compiled && HasModuleGraphs(setup.zero.stage);
  const int gpus = setup.batch.world_size;
  timer->SetGroups({Hybrid(setup) ? setup.zero.shard_group : gpus, gpus,
                    std::min(setup.batch.sequence_ranks, gpus)});
  TorchMemory memory(play.limit_bytes, play.recipe.expandable_segments);
  const CachingAllocator& allocator = memory.allocator();
  const std::unique_ptr<TorchRuntime> engine =
      play.bare ? std::make_unique<BareEngine>(model, setup, &memory, timer)
                : MakeEngine(model, play, &memory, timer);
  TorchFootprint footprint;
  engine->Init();
  footprint.after_init_bytes = allocator.allocated();
  PlayedRun played{model, play};
  played.after_init = allocator.allocated();
  played.host_after_init =
      memory.host().total() + HostBaseBytes(parts.host_stage, TorchPhase::kInit);
  // torch.compile leaves a checkpoint alone in which it finds stage 3's hooks.
  TorchRun timed = run;
  if (run.recompute && run.module_graphs) timed.compiled = false;
  timer->SetModel(model, timed, setup.precision.dtype);
  {
    TorchStep step(model, run, &memory, engine.get(), timer);
    const int64_t micro_steps = std::min(setup.batch.grad_accum, kPlayedMicroSteps);
    const bool trainer = RunsTrainer(play.recipe);
    for (int i = 0; i < parts.steps; ++i) {
      const uint64_t given_back = allocator.given_back();
      timer->BeginStep();
      for (int64_t micro = 0; micro < micro_steps; ++micro) {
        memory.Enter(TorchPhase::kForwardBackward);
        timer->BeginMicroStep();
        engine->BeginMicroStep(micro + 1 == micro_steps);
        step.Forward();
        engine->BeginBackward();
        step.Backward();
        engine->EndBackward();
        if (trainer) AddTrainer(model, timer);
      }
      memory.Enter(TorchPhase::kStep);
      engine->Step();
      timer->EndStep();
      footprint.segments_given_back = (allocator.given_back() - given_back) *
                                      static_cast<uint64_t>(setup.batch.grad_accum / micro_steps);
    }
    played.between_steps = allocator.allocated();
  }
  footprint.of_planned_model = model.code.planned != nullptr;
  footprint.of_planned_adapters = footprint.of_planned_model && model.has_adapters();
  footprint.out_of_memory = memory.out_of_memory();
  footprint.file_bytes = memory.file_bytes();
  footprint.copied_bytes = static_cast<uint64_t>(timer->step().CopiedBytes(setup.batch.grad_accum));
  footprint.managed_bytes = memory.managed_bytes();
  footprint.context_bytes = ContextBytes(parts.context_stage, setup.batch.world_size,
                                         ExchangesWith(run, play.gpus_per_node));
  for (const TorchPhase phase :
       {TorchPhase::kInit, TorchPhase::kForwardBackward, TorchPhase::kStep}) {
    footprint.peaks[static_cast<size_t>(phase)] = memory.peak(phase);
    const HostPeak& host = memory.host_peak(phase);
    const uint64_t base = HostBaseBytes(parts.host_stage, phase);
    if (host.total() + base <= footprint.HostBytes()) continue;
    footprint.host = host;
    footprint.host_base_bytes = base;
  }
  if (!play.around) return footprint;
  played.init_peak = footprint.peak(TorchPhase::kInit).allocated_bytes;
  played.context = footprint.context_bytes;
  played.host_init_peak = memory.host_peak(TorchPhase::kInit).total() +
                          HostBaseBytes(parts.host_stage, TorchPhase::kInit);
  played.host_between_steps =
      memory.host().total() + HostBaseBytes(parts.host_stage, TorchPhase::kStep);
  footprint.around = Around(played);
  footprint.gathers = Gathers(played);
  if (RunsTrainer(play.recipe)) {
    footprint.around.insert(footprint.around.begin() + 1,
                            PlayEvaluation(played, run, engine.get(), &memory));
  }
  return footprint;
}

std::vector<TrainSetup> TorchBased::Choices(const SearchInputs& inputs,
                                            const SearchSpace& space) const {
  const int gpus = space.gpus.front();
  int shared = 1;
  std::vector<BatchPair> batches;  // where so many GPUs share sequences
  std::vector<TrainSetup> can;
  // The first that it has not as it is asked for; that it never has; that nothing has.
  std::optional<TrainSetup> refused, cannot, cannot_run;
  const JudgeInputs judged{inputs.model, inputs.lower, inputs.recipe, inputs.hardware};
  const bool open_optimizer = space.offload_optimizer.size() > 1;
  const bool open_param = space.offload_param.size() > 1;
  const auto with_batch = [](TrainSetup setup, const BatchPair& batch) {
    setup.batch.micro_batch = batch.micro_batch;
    setup.batch.grad_accum = batch.grad_accum;
    return setup;
  };
  const auto add_choices = [&](int stage, const Grouping& grouping, const OffloadPlace& offloads,
                               const RecomputeConfig& recompute) {
    const OffloadDevice optimizer = offloads.optimizer.device;
    // Disks are for those who ask for them.
    const bool on_disk = (optimizer == OffloadDevice::kNvme && open_optimizer) ||
                         (offloads.param == OffloadDevice::kNvme && open_param);
    TrainSetup setup = SetupFor(inputs, gpus, stage, offloads);
    setup.zero.shard_group = grouping.ranks;
    setup.zero.across_stage = grouping.across_stage;
    setup.recompute = recompute;
    setup.batch.sequence_ranks = shared;
    if (!offloads.pin_memory) UsePageableMemory(setup.zero);
    const bool groups = grouping.ranks == 0 || CanGroup(stage, offloads, grouping);
    if (!CanRun(setup.zero)) {
      if (!cannot_run) cannot_run = setup;
    } else if (!on_disk && groups && CanDo(stage, offloads)) {
      const bool recomputes = CanRecompute(inputs, recompute);
      for (const TrainSetup& one : WithSettings(inputs, setup)) {
        for (const BatchPair& batch : batches) {
          TrainSetup choice = with_batch(one, batch);
          if (recomputes && Takes(judged, choice)) {
            can.push_back(std::move(choice));
          } else if (!refused) {
            refused = std::move(choice);
          }
        }
      }
    } else if (!cannot) {
      cannot = with_batch(setup, batches.front());
    }
  };
  const auto add_offloads = [&](int stage, const Grouping& grouping) {
    for (const OptimizerOffload& optimizer : Thinned(space.offload_optimizer)) {
      for (const OffloadDevice param : space.offload_param) {
        for (const RecomputeConfig& recompute : space.recompute) {
          for (const bool pin_memory : space.pin_memory) {
            const OffloadPlace offloads{optimizer, param, pin_memory};
            const bool beside_groups = grouping.ranks > 0 && !space.grouping_fixed;
            if (beside_groups && offloads.anything()) break;
            add_choices(stage, grouping, offloads, recompute);
            if (!offloads.anything()) break;
          }
        }
      }
    }
  };
  for (const int ranks : space.sequence_ranks) {
    if (gpus % ranks != 0) continue;
    shared = ranks;
    batches = Batches(space, gpus / ranks);
    if (batches.empty()) continue;
    for (const int stage : space.stages) {
      for (const Grouping& grouping : space.groupings) {
        const bool tiles =
            grouping.ranks == 0 || (grouping.ranks < gpus && gpus % grouping.ranks == 0);
        if (tiles) add_offloads(stage, grouping);
      }
    }
  }
  if (!can.empty()) return can;
  if (refused) return {*refused};
  if (!cannot && cannot_run) ValidateSetup(*cannot_run, "command line");
  ZEROPLAN_CHECK(cannot.has_value(), "nothing is asked for");
  return {*cannot};
}

TrainSetup TorchBased::SetupFor(const SearchInputs& inputs, int gpus, int stage,
                                const OffloadPlace& offloads) const {
  TrainSetup setup = inputs.base;
  setup.batch.world_size = gpus;
  setup.zero = ReaderZeroDefaults(stage);
  setup.zero.quantized_weights = inputs.base.zero.quantized_weights;
  setup.zero.quantized_gradients = inputs.base.zero.quantized_gradients;
  setup.zero.offload_optimizer.device = offloads.optimizer.device;
  setup.zero.offload_optimizer.ratio = offloads.optimizer.ratio;
  setup.zero.offload_param.device = offloads.param;
  return setup;
}

std::unique_ptr<ChoiceSearch> TorchBased::Search(SearchInputs inputs) const {
  return std::make_unique<EnumeratedSearch>(std::move(inputs));
}

std::string TorchBased::TimeLacks(const HardwareProfile& hardware,
                                  const ClusterShape& shape) const {
  return TorchMachineLacks(hardware, shape);
}

double TorchBased::Merit(const ChoiceEstimate& choice) const {
  if (!choice.time.total_seconds) return 0;
  const double step = *choice.time.total_seconds;
  const uint64_t segments =
      choice.footprint.torch ? choice.footprint.torch->segments_given_back : 0;
  const double emptying = kSegmentSeconds * static_cast<double>(segments);
  double factor =
      RoomFactor(choice.room) * (Offloads(CandidateOf(choice.setup)) ? 1 - kOffloadMargin : 1);
  factor *= Trust(choice.setup);
  return *choice.time.tokens_per_second * step / (step + emptying) * factor;
}

std::array<int, 5> TorchBased::Complexity(const TrainSetup& setup) const {
  const ZeroConfig& zero = setup.zero;
  const ZeroConfig plain = ReaderZeroDefaults(zero.stage);
  const int offloads = static_cast<int>(zero.offload_optimizer.device) +
                       3 * static_cast<int>(zero.offload_param.device);
  const int settings =
      static_cast<int>(zero.reduce_bucket_elements != plain.reduce_bucket_elements) +
      static_cast<int>(zero.stage > 0 && !zero.overlap_comm);
  const int groups = zeroplan::Complexity(CandidateOf(setup))[2];
  return {offloads, zero.stage, groups, static_cast<int>(setup.recompute.kind),
          3 * static_cast<int>(zero.offload_optimizer.ratio < 1) + settings};
}

}  // namespace zeroplan
