#include "planner/runtimes/runtime_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "core/config/reader_state.h"
#include "planner/estimate/choices.h"
#include "planner/footprint.h"
#include "planner/runtimes/fsdp2.h"
#include "planner/search/search.h"

namespace zeroplan {
namespace {

// Micro-steps beyond so many are like the one before (deepspeed.cc, fsdp2.cc).
constexpr int64_t kMicroSteps = 3;
// What blocks may have beyond the tensor in them, of all that is allocated (caching_allocator.h).
// Tensors that exceed memory by more do so with larger micro-batches too.
constexpr double kBlockSlack = 0.01;
// A GPU that waits now and then runs kernels at a higher clock than one that does not: by at most
// so much is a step's compute shorter.
constexpr double kTimeSlack = 0.08;
// Micro-steps in which an update is of no account.
constexpr int64_t kMany = 1000;

struct Placement {
  OptimizerOffload optimizer;
  OffloadDevice param = OffloadDevice::kNone;
};

bool OnNvme(const Placement& offloads) {
  return offloads.optimizer.device == OffloadDevice::kNvme ||
         offloads.param == OffloadDevice::kNvme;
}

bool CanDo(OtherRuntime runtime, int stage, const Placement& offloads) {
  if (OnNvme(offloads)) return false;
  const bool in_part = offloads.optimizer.ratio < 1;
  if (runtime == OtherRuntime::kFsdp2) {
    return stage >= 2 && !in_part && offloads.optimizer.device == offloads.param &&
           (stage == 3 || offloads.param == OffloadDevice::kNone);
  }
  return !in_part || stage == 3;
}

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

// DeepSpeed offloads whole sub-groups, so a share wants many.
uint64_t SubGroupFor(const ModelSpec& model, int gpus, uint64_t otherwise) {
  const uint64_t partition = model.ParamCount() / static_cast<uint64_t>(gpus);
  return std::min(otherwise, std::max<uint64_t>(1'000'000, partition / 20));
}

TrainSetup SetupFor(OtherRuntime runtime, const ModelSpec& model, int stage,
                    const Placement& offloads, const TrainSetup& base, const RuntimeKeys& keys) {
  TrainSetup setup = base;
  setup.zero =
      keys.others && runtime == OtherRuntime::kDeepSpeed ? *keys.others : ReaderZeroDefaults(stage);
  setup.zero.stage = stage;
  setup.zero.offload_optimizer.device = offloads.optimizer.device;
  setup.zero.offload_optimizer.ratio = offloads.optimizer.ratio;
  setup.zero.offload_param.device = offloads.param;
  if (offloads.optimizer.ratio < 1 && !keys.others) {
    setup.zero.sub_group_elements =
        SubGroupFor(model, base.batch.world_size, setup.zero.sub_group_elements);
  }
  return setup;
}

// Where the step's size is open, more micro-steps of one size are more tokens a second, since the
// update is shared by more: of each micro-batch one micro-step and the most of them.
std::vector<BatchPair> Batches(const SearchSpace& space) {
  const std::vector<BatchPair> all = BatchPairs(space, space.gpus.front());
  if (space.global_batch) return all;
  std::vector<BatchPair> kept;
  for (size_t i = 0; i < all.size(); ++i) {
    const bool first = i == 0 || all[i - 1].micro_batch != all[i].micro_batch;
    const bool last = i + 1 == all.size() || all[i + 1].micro_batch != all[i].micro_batch;
    if (first || last) kept.push_back(all[i]);
  }
  return kept;
}

bool Modelled(OtherRuntime runtime, const ModelSpec& model, const RecomputeConfig& recompute,
              const RuntimeKeys& keys) {
  if (recompute.kind == RecomputeKind::kSelective) {
    return runtime == OtherRuntime::kFsdp2 && keys.selective && CanSaveProducts(model);
  }
  return recompute == kNoRecompute || recompute == FullRecompute();
}

// What a family of choices shares: all but batch and bucket. The number of micro-steps counts as
// far as memory tells them apart.
using Family =
    std::tuple<int, OffloadDevice, double, OffloadDevice, RecomputeConfig, bool, int64_t>;
Family FamilyOf(const TrainSetup& setup) {
  const ZeroConfig& zero = setup.zero;
  return {zero.stage,
          zero.offload_optimizer.device,
          zero.offload_optimizer.ratio,
          zero.offload_param.device,
          setup.recompute,
          zero.overlap_comm,
          std::min(setup.batch.grad_accum, kMicroSteps)};
}

bool Offloaded(const TrainSetup& setup) {
  return setup.zero.offload_optimizer.device != OffloadDevice::kNone ||
         setup.zero.offload_param.device != OffloadDevice::kNone;
}

double RoomFactor(MemoryRoom room) {
  switch (room) {
    case MemoryRoom::kAmple:
      return 1;
    case MemoryRoom::kTight:
      return 1 - kTightMargin;
    case MemoryRoom::kEmptiesCache:
      return 1 - kCacheMargin;
    case MemoryRoom::kAtRisk:
      return 1e-3;  // behind all that is not
    case MemoryRoom::kNone:
      return 0;
  }
  ZEROPLAN_CHECK(false);
}

double Merit(OtherRuntime runtime, const TrainSetup& setup, double tokens_per_second,
             MemoryRoom room) {
  double factor = RoomFactor(room) * (Offloaded(setup) ? 1 - kOffloadMargin : 1);
  if (runtime == OtherRuntime::kDeepSpeed && setup.zero.stage == 3) {
    factor *= 1 - (setup.recompute == kNoRecompute ? kStage3Margin : kStage3RecomputeMargin);
  }
  return tokens_per_second * factor;
}

// Most important first; see kRuntimeTieMargin.
std::array<int, 5> ComplexityOf(const TrainSetup& setup) {
  const ZeroConfig& zero = setup.zero;
  const ZeroConfig plain = ReaderZeroDefaults(zero.stage);
  const int offloads = static_cast<int>(zero.offload_optimizer.device) +
                       3 * static_cast<int>(zero.offload_param.device);
  return {offloads, zero.stage, static_cast<int>(setup.recompute.kind),
          static_cast<int>(zero.offload_optimizer.ratio < 1),
          static_cast<int>(zero.reduce_bucket_elements != plain.reduce_bucket_elements) +
              static_cast<int>(zero.stage > 0 && !zero.overlap_comm)};
}

double TokensOf(const TrainSetup& setup) {
  return static_cast<double>(setup.batch.global_batch()) * static_cast<double>(setup.batch.seq_len);
}

uint64_t TensorBytes(const RuntimeFootprint& footprint) {
  uint64_t most = 0;
  for (const TorchPeak& peak : footprint.peaks) most = std::max(most, peak.allocated_bytes);
  return most;
}

TorchMachine MachineOf(const HardwareProfile& hardware, const ClusterShape& shape) {
  const std::string lacks = TorchMachineLacks(hardware, shape);
  if (!lacks.empty()) {
    ThrowUsage(
        "--runtime: the hardware profile {} has no {}, which the time of other runtimes depends "
        "on; use a profile that has it ('zeroplan hw show {}')",
        hardware.name, lacks, hardware.name);
  }
  return {hardware, shape};
}

class RuntimeSearcher {
 public:
  explicit RuntimeSearcher(const RuntimeSearchInputs& inputs, bool sweep)
      : inputs_(inputs),
        capacity_(CapacityOf(inputs.cluster)),
        machine_(MachineOf(*inputs.hardware, inputs.cluster.shape())),
        alone_(*inputs.hardware, {1, 1}),
        sweep_(sweep) {
    ZEROPLAN_CHECK(!inputs.setups.empty(), "nothing to search");
    const RuntimeMargins& margins = MarginsOf(inputs.runtime);
    // Where that was not measured, the device's stands for it.
    allocated_margin_ = margins.allocated > 0 ? margins.allocated : margins.device;
  }

  RuntimeSearchResult Run() {
    std::map<int, std::map<Family, std::map<int64_t, Cell>>> stages;
    for (const TrainSetup& setup : inputs_.setups) {
      Cell& cell = stages[setup.zero.stage][FamilyOf(setup)][setup.batch.micro_batch];
      cell.setups.push_back(&setup);
    }
    RuntimeSearchResult result;
    for (auto& [stage, families] : stages) {
      const size_t first = judged_.size();
      SearchStage(families);
      RuntimeStageBest best;
      best.stage = stage;
      best.best = Simplest(first);
      if (!best.best) best.closest = Closest(first);
      result.stages.push_back(std::move(best));
    }
    const std::optional<RuntimeJudged> best = Simplest(0);
    for (size_t i = 0; best && i < result.stages.size(); ++i) {
      if (result.stages[i].stage != best->choice.setup.zero.stage) continue;
      result.stages[i].best = best;
      result.best = i;
    }
    stats_.candidates = inputs_.setups.size();
    result.stats = stats_;
    return result;
  }

 private:
  // Choices that differ in their buckets alone.
  struct Cell {
    std::vector<const TrainSetup*> setups;  // as RuntimeKeys has them: the preferred bucket first
    double most = 0;                        // no merit above this
    size_t judged = 0;
  };

  // Seconds that no micro-step of so large a batch goes below: one of DeepSpeed's stage 0 on one
  // GPU, which neither communicates nor gathers. FSDP2 has few choices, and none without its casts.
  double LeastSeconds(const TrainSetup& setup) {
    if (inputs_.runtime == OtherRuntime::kFsdp2) return 0;
    const auto [at, added] =
        least_seconds_.try_emplace(std::pair(setup.batch.micro_batch, setup.recompute), 0.0);
    if (!added) return at->second;
    TrainSetup alone = setup;
    alone.zero = ReaderZeroDefaults(0);
    alone.batch.world_size = 1;
    alone.batch.grad_accum = kMany;
    Cluster one = inputs_.cluster;
    one.gpus = one.gpus_per_node = 1;
    const std::optional<RuntimeTime> time = Estimate(alone, one, alone_).time;
    at->second = time->step_seconds / static_cast<double>(kMany);
    return at->second;
  }

  void SearchStage(std::map<Family, std::map<int64_t, Cell>>& families) {
    best_ = 0;
    std::vector<std::vector<Cell*>> sorted;
    for (auto& [key, cells] : families) {
      std::vector<Cell*>& family = sorted.emplace_back();
      for (auto& [micro_batch, cell] : cells) {
        family.push_back(&cell);
        if (sweep_) {
          JudgeAll(cell);
          continue;
        }
        const TrainSetup& setup = *cell.setups.front();
        const double seconds = LeastSeconds(setup) * static_cast<double>(setup.batch.grad_accum);
        cell.most = MostMerit(setup, seconds > 0 ? TokensOf(setup) / seconds
                                                 : std::numeric_limits<double>::infinity());
      }
    }
    if (sweep_) return;
    const auto most = [](const std::vector<Cell*>& family) {
      double value = 0;
      for (const Cell* cell : family) value = std::max(value, cell->most);
      return value;
    };
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](const auto& a, const auto& b) { return most(a) > most(b); });
    for (std::vector<Cell*>& family : sorted) SearchFamily(family);
  }

  // Of a choice that is at most so fast, but for the slack.
  double MostMerit(const TrainSetup& setup, double tokens_per_second) const {
    return Merit(inputs_.runtime, setup, tokens_per_second, MemoryRoom::kAmple) / (1 - kTimeSlack);
  }

  // What cannot be better by the tie margin is cut.
  bool Hopeless(const Cell& cell) const { return cell.most <= best_ * (1 + kRuntimeTieMargin); }

  // `cells`: by rising micro-batch.
  void SearchFamily(std::vector<Cell*>& cells) {
    CutHopeless(cells);
    CutTooLarge(cells);
    if (cells.empty()) return;
    // Smaller micro-batches are no faster than the largest, but for the slack.
    const Cell& largest = *cells.back();
    const RuntimeJudged& judged = judged_[judged_at_.at(largest.setups.back())];
    for (Cell* cell : cells) {
      if (!judged.choice.time) break;
      cell->most = std::min(cell->most, MostMerit(*cell->setups.front(), judged.tokens_per_second));
    }
    std::stable_sort(cells.begin(), cells.end(),
                     [](const Cell* a, const Cell* b) { return a->most > b->most; });
    for (Cell* cell : cells) {
      if (Hopeless(*cell)) {
        stats_.cut_by_time += cell->setups.size() - cell->judged;
      } else {
        JudgeAll(*cell);
      }
    }
  }

  void CutHopeless(std::vector<Cell*>& cells) {
    std::erase_if(cells, [this](const Cell* cell) {
      if (!Hopeless(*cell)) return false;
      stats_.cut_by_time += cell->setups.size();
      return true;
    });
  }

  // Leaves out micro-batches of which even the smallest bucket's tensors do not fit.
  void CutTooLarge(std::vector<Cell*>& cells) {
    if (cells.empty()) return;
    size_t low = 0, high = cells.size();  // the first that is too large, if one is
    if (TooLarge(*cells.front())) high = 0;
    while (high - low > 1) {
      const size_t middle = low + (high - low) / 2;
      (TooLarge(*cells[middle]) ? high : low) = middle;
    }
    for (size_t i = high; i < cells.size(); ++i) {
      stats_.cut_by_memory += cells[i]->setups.size() - cells[i]->judged;
    }
    cells.resize(high);
  }

  // Smaller buckets than the preferred one are for where memory is short.
  void JudgeAll(Cell& cell) {
    for (size_t i = 0; i < cell.setups.size(); ++i) {
      if (Judge(cell, i).room != MemoryRoom::kAmple) continue;
      stats_.had_room += cell.setups.size() - cell.judged;
      return;
    }
  }

  // Whether the tensors alone exceed memory, or the host's is short, on which the micro-batch has
  // no effect: then so do those of larger micro-batches.
  bool TooLarge(Cell& cell) {
    const RuntimeChoice& choice = Judge(cell, cell.setups.size() - 1).choice;
    if (choice.fits()) return false;
    const RuntimeFootprint& footprint = choice.footprint;
    const uint64_t host =
        footprint.HostBytes() * static_cast<uint64_t>(inputs_.cluster.ranks_per_node());
    if (capacity_.host_bytes && host > *capacity_.host_bytes) return true;
    const double tensors = static_cast<double>(TensorBytes(footprint)) * (1 - kBlockSlack);
    return tensors + static_cast<double>(footprint.context_bytes) >
           static_cast<double>(*capacity_.gpu_bytes);
  }

  RuntimeChoice Estimate(const TrainSetup& setup, const Cluster& cluster,
                         const TorchMachine& machine) {
    ++stats_.played;
    if (inputs_.progress) inputs_.progress(stats_.played);
    return EstimateRuntime(inputs_.runtime, inputs_.model, cluster, {setup}, inputs_.compile,
                           &machine)
        .choices.front();
  }

  const RuntimeJudged& Judge(Cell& cell, size_t bucket) {
    const TrainSetup& setup = *cell.setups[bucket];
    const auto [at, added] = judged_at_.try_emplace(&setup, judged_.size());
    if (!added) return judged_[at->second];
    ++cell.judged;
    RuntimeJudged judged;
    judged.runtime = inputs_.runtime;
    judged.choice = Estimate(setup, inputs_.cluster, machine_);
    if (judged.choice.time) {
      judged.tokens_per_second = TokensOf(setup) / judged.choice.time->step_seconds;
    } else if (judged.choice.fits()) {
      judged.choice.why_not =
          "time: the hardware profile does not say how fast the host's memory is";
    }
    judged.room = RoomOf(judged.choice);
    best_ = std::max(best_, RuntimeMerit(judged));
    judged_.push_back(std::move(judged));
    return judged_.back();
  }

  MemoryRoom RoomOf(const RuntimeChoice& choice) const {
    if (!choice.fits()) return MemoryRoom::kNone;
    if (!capacity_.gpu_bytes) return MemoryRoom::kAmple;
    const RuntimeFootprint& footprint = choice.footprint;
    const auto room =
        static_cast<double>(*capacity_.gpu_bytes) - static_cast<double>(footprint.context_bytes);
    // What was measured is the prediction over 1 less its error.
    if (static_cast<double>(TensorBytes(footprint)) / (1 - allocated_margin_) > room) {
      return MemoryRoom::kAtRisk;
    }
    if (choice.empties_cache) return MemoryRoom::kEmptiesCache;
    return choice.tight ? MemoryRoom::kTight : MemoryRoom::kAmple;
  }

  // Of those judged from `first` on that are as good as the best of them, as far as the model
  // tells.
  std::optional<RuntimeJudged> Simplest(size_t first) const {
    double merit = 0;
    for (size_t i = first; i < judged_.size(); ++i) {
      merit = std::max(merit, RuntimeMerit(judged_[i]));
    }
    const auto before = [](const RuntimeJudged& a, const RuntimeJudged& b) {
      const auto of_a = ComplexityOf(a.choice.setup), of_b = ComplexityOf(b.choice.setup);
      if (of_a != of_b) return of_a < of_b;
      const double merit_a = RuntimeMerit(a), merit_b = RuntimeMerit(b);
      if (merit_a != merit_b) return merit_a > merit_b;
      return a.choice.footprint.DeviceBytes() < b.choice.footprint.DeviceBytes();
    };
    const RuntimeJudged* found = nullptr;
    for (size_t i = first; i < judged_.size(); ++i) {
      const RuntimeJudged& judged = judged_[i];
      if (!judged.fits() || RuntimeMerit(judged) < merit * (1 - kRuntimeTieMargin)) continue;
      if (found == nullptr || before(judged, *found)) found = &judged;
    }
    return found == nullptr ? std::nullopt : std::optional(*found);
  }

  std::optional<RuntimeJudged> Closest(size_t first) const {
    const auto bytes = [](const RuntimeJudged& of) { return of.choice.footprint.DeviceBytes(); };
    const RuntimeJudged* found = nullptr;
    for (size_t i = first; i < judged_.size(); ++i) {
      if (found == nullptr || bytes(judged_[i]) < bytes(*found)) found = &judged_[i];
    }
    return found == nullptr ? std::nullopt : std::optional(*found);
  }

  const RuntimeSearchInputs& inputs_;
  const Capacity capacity_;
  const TorchMachine machine_, alone_;
  const bool sweep_;
  double allocated_margin_ = 0;
  double best_ = 0;  // merit, of the stage that is searched
  std::deque<RuntimeJudged> judged_;
  std::map<const TrainSetup*, size_t> judged_at_;
  std::map<std::pair<int64_t, RecomputeConfig>, double> least_seconds_;
  RuntimeSearchStats stats_;
};

}  // namespace

std::vector<TrainSetup> RuntimeSetups(OtherRuntime runtime, const ModelSpec& model,
                                      const SearchSpace& space, const TrainSetup& base,
                                      const RuntimeKeys& keys) {
  TrainSetup with_gpus = base;
  with_gpus.batch.world_size = space.gpus.front();
  const std::vector<BatchPair> batches = Batches(space);
  ZEROPLAN_CHECK(!batches.empty(), "no batch");
  std::vector<TrainSetup> can, cannot;
  std::optional<TrainSetup> cannot_run;
  const auto add_batches = [&](TrainSetup setup, std::vector<TrainSetup>& to) {
    for (const BatchPair& batch : batches) {
      setup.batch.micro_batch = batch.micro_batch;
      setup.batch.grad_accum = batch.grad_accum;
      to.push_back(setup);
    }
  };
  const bool deepspeed = runtime == OtherRuntime::kDeepSpeed;
  const auto add = [&](const TrainSetup& setup) {
    const int stage = setup.zero.stage;
    const size_t buckets = deepspeed && stage > 0 ? keys.reduce_buckets.size() : 1;
    const size_t overlaps = deepspeed && (stage == 1 || stage == 2) ? keys.overlap_comm.size() : 1;
    for (size_t bucket = 0; bucket < buckets; ++bucket) {
      for (size_t overlap = 0; overlap < overlaps; ++overlap) {
        TrainSetup one = setup;
        if (deepspeed && stage > 0) {
          one.zero.reduce_bucket_elements = keys.reduce_buckets[bucket];
          one.zero.overlap_comm = keys.overlap_comm[overlap];
        }
        add_batches(one, can);
      }
    }
  };
  for (const int stage : space.stages) {
    for (const OptimizerOffload& optimizer : Thinned(space.offload_optimizer)) {
      for (const OffloadDevice param : space.offload_param) {
        for (const RecomputeConfig& recompute : space.recompute) {
          const Placement offloads{optimizer, param};
          TrainSetup setup = SetupFor(runtime, model, stage, offloads, with_gpus, keys);
          setup.recompute = recompute;
          if (!CanRun(setup.zero)) {
            cannot_run = setup;
          } else if (CanDo(runtime, stage, offloads) && Modelled(runtime, model, recompute, keys)) {
            add(setup);
          } else if (cannot.empty()) {
            add_batches(setup, cannot);
          }
        }
      }
    }
  }
  if (!can.empty()) return can;
  if (cannot.empty() && cannot_run) ValidateSetup(*cannot_run, "command line");
  ZEROPLAN_CHECK(!cannot.empty(), "nothing is asked for");
  cannot.resize(1);
  return cannot;
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

double RuntimeMerit(const RuntimeJudged& judged) {
  const RuntimeChoice& choice = judged.choice;
  if (!choice.time) return 0;
  const double step = choice.time->step_seconds;
  const double emptying = kSegmentSeconds * static_cast<double>(choice.segments_given_back);
  return Merit(judged.runtime, choice.setup, judged.tokens_per_second * step / (step + emptying),
               judged.room);
}

RuntimeSearchResult SearchRuntime(const RuntimeSearchInputs& inputs) {
  return RuntimeSearcher(inputs, /*sweep=*/false).Run();
}

RuntimeSearchResult SweepRuntime(const RuntimeSearchInputs& inputs) {
  return RuntimeSearcher(inputs, /*sweep=*/true).Run();
}

}  // namespace zeroplan
