// The grid of training setups that lowering and agreement tests walk.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/settings/setup_facts.h"
#include "core/settings/zero_config.h"
#include "tests/tiny_model.h"

namespace zeroplan::testing {

struct Cell {
  std::string name;
  TrainSetup setup;
};

enum class Offload { kNone, kOptimizer, kRatio, kBoth, kNvme, kParam };

inline std::vector<Offload> OffloadsOf(int stage) {
  if (stage == 0) return {Offload::kNone};
  if (stage < 3) return {Offload::kNone, Offload::kOptimizer, Offload::kRatio, Offload::kNvme};
  return {Offload::kNone, Offload::kOptimizer, Offload::kRatio,
          Offload::kBoth, Offload::kNvme,      Offload::kParam};
}
inline const char* OffloadLabel(Offload offload) {
  switch (offload) {
    case Offload::kNone:
      return "none";
    case Offload::kOptimizer:
      return "optimizer";
    case Offload::kRatio:
      return "ratio";
    case Offload::kBoth:
      return "both";
    case Offload::kNvme:
      return "nvme";
    case Offload::kParam:
      return "param";
  }
  return "?";
}

inline void SetOffload(TrainSetup& setup, Offload offload) {
  auto& zero = setup.zero;
  zero.offload_optimizer.nvme_path = zero.offload_param.nvme_path = "/tmp";
  zero.sub_group_elements = 1500;
  if (offload == Offload::kParam) {
    zero.offload_param.device = OffloadDevice::kCpu;
  } else if (offload == Offload::kNvme) {
    zero.offload_optimizer.device = OffloadDevice::kNvme;
    if (zero.stage == 3) zero.offload_param.device = OffloadDevice::kNvme;
    zero.offload_param.max_in_cpu_elements = 0;
  } else if (offload != Offload::kNone) {
    zero.offload_optimizer.device = OffloadDevice::kCpu;
    if (offload == Offload::kRatio) zero.offload_optimizer.ratio = 0.4;
    if (offload == Offload::kBoth) zero.offload_param.device = OffloadDevice::kCpu;
  }
}

inline TrainSetup BaseSetup(int stage, int ranks, Dtype dtype, int64_t grad_accum,
                            RecomputeConfig recompute) {
  TrainSetup setup;
  setup.zero.stage = stage;
  setup.precision.dtype = setup.precision.grad_accum_dtype = dtype;
  setup.batch = {2, grad_accum, ranks, 8};
  setup.recompute = recompute;
  // Buckets smaller than a layer, so that the tiny model really shards and cuts.
  setup.zero.reduce_bucket_elements = 900;
  setup.zero.allgather_bucket_elements = 4000;
  setup.zero.param_persistence_threshold = 0;
  return setup;
}

// Every supported cell: stages x offload x recompute x accumulation x ranks x dtype, at stage 3
// with three settings of persistence and reuse.
inline std::vector<Cell> AllCells(const std::vector<int>& ranks, const std::vector<Dtype>& dtypes,
                                  const std::vector<int64_t>& accumulations = {1, 3}) {
  std::vector<Cell> cells;
  for (int stage = 0; stage <= 3; ++stage) {
    for (Offload offload : OffloadsOf(stage)) {
      for (const RecomputeConfig& recompute :
           {kNoRecompute, kSelectiveRecompute, FullRecompute()}) {
        for (int64_t accum : accumulations) {
          for (int n : ranks) {
            for (Dtype dtype : dtypes) {
              for (int reuse = 0; reuse < (stage == 3 ? 3 : 1); ++reuse) {
                TrainSetup setup = BaseSetup(stage, n, dtype, accum, recompute);
                SetOffload(setup, offload);
                setup.zero.param_persistence_threshold = reuse == 0 ? 0 : reuse == 1 ? 60 : 1200;
                setup.zero.max_reuse_distance = reuse == 0 ? 0 : reuse == 1 ? 6000 : 1'000'000;
                if (reuse == 1) setup.zero.reduce_bucket_elements = 5000;
                std::string name =
                    "stage " + std::to_string(stage) + " offload " + OffloadLabel(offload) +
                    " recompute " + std::string(RecomputeName(recompute)) + " accum " +
                    std::to_string(accum) + " ranks " + std::to_string(n) + " dtype " +
                    std::string(DtypeName(dtype)) + " reuse " + std::to_string(reuse);
                cells.push_back({std::move(name), std::move(setup)});
              }
            }
          }
        }
      }
    }
  }
  return cells;
}

// What of a model of five layers is kept, computed again and in host memory, in ways that differ.
inline std::vector<RecomputeConfig> Homes() {
  using enum RecomputeKind;
  const ActivationHome all = {OffloadDevice::kCpu}, some = {OffloadDevice::kCpu, 2};
  return {kProductsRecompute,
          {kNone, 0, 0, kNone, all},
          {kSelective, 0, 3, kNone, some},
          {kProducts, 0, 2, kSelective, all},
          {kProducts, 0, 4, kNone, {OffloadDevice::kCpu, 3}},
          {kFull, 1, 3, kSelective, {}},
          {kFull, 1, 0, kNone, all},
          {kFull, 2, 0, kNone, all},
          {kFull, 2, 3, kNone, some}};
}
inline std::string HomesName(const RecomputeConfig& homes) {
  return std::string(RecomputeName(homes)) + " " + std::to_string(homes.every) + " of " +
         std::to_string(homes.layers) + ", " + std::string(RecomputeName(homes.above)) +
         " above, on " + std::string(OffloadDeviceName(homes.offload.device)) + " " +
         std::to_string(homes.offload.layers);
}
// Those `cells` that compute nothing again, with each of these.
inline std::vector<Cell> HomesCells(const std::vector<Cell>& cells) {
  std::vector<Cell> out;
  for (const Cell& cell : cells) {
    if (cell.setup.recompute != kNoRecompute) continue;
    for (const RecomputeConfig& homes : Homes()) {
      Cell other = cell;
      other.setup.recompute = homes;
      other.name += ", " + HomesName(homes);
      out.push_back(std::move(other));
    }
  }
  return out;
}

struct Groups {
  int ranks, shard_group;
};
inline constexpr Groups kGroups[] = {{4, 2}, {8, 2}, {8, 4}};

// Every legal cell of several shard groups: stages x offload x accumulation x what the groups
// partition among one another; at stage 3 with and without persistent units.
inline std::vector<Cell> HybridCells(const std::vector<Groups>& groups, Dtype dtype,
                                     const std::vector<int64_t>& accumulations = {1, 3}) {
  std::vector<Cell> cells;
  for (int stage = 1; stage <= 3; ++stage) {
    for (Offload offload : OffloadsOf(stage)) {
      for (int64_t accum : accumulations) {
        for (const Groups& of : groups) {
          for (int across = 0; across <= 2; ++across) {
            for (const uint64_t persistence : {0, 60}) {
              TrainSetup setup = BaseSetup(stage, of.ranks, dtype, accum, kNoRecompute);
              SetOffload(setup, offload);
              setup.zero.shard_group = of.shard_group;
              setup.zero.across_stage = across;
              setup.zero.param_persistence_threshold = persistence;
              if (persistence > 0) setup.zero.reduce_bucket_elements = 5000;
              if ((stage < 3 && persistence > 0) || FindSetupProblem(setup)) continue;
              std::string name =
                  "stage " + std::to_string(stage) + " in groups of " +
                  std::to_string(of.shard_group) + " of " + std::to_string(of.ranks) + " across " +
                  std::string(AcrossName(across)) + " offload " + OffloadLabel(offload) +
                  " accum " + std::to_string(accum) + " dtype " + std::string(DtypeName(dtype)) +
                  " persistence " + std::to_string(persistence);
              cells.push_back({std::move(name), std::move(setup)});
            }
          }
        }
      }
    }
  }
  return cells;
}

// How states may be kept beside fp32.
struct StatesKind {
  MasterWeights masters;
  Dtype moments;
};
inline constexpr StatesKind kStatesKinds[] = {{MasterWeights::kSplit, Dtype::kF32},
                                              {MasterWeights::kParam, Dtype::kBF16},
                                              {MasterWeights::kFp32, Dtype::kDynamic8},
                                              {MasterWeights::kParam, Dtype::kDynamic8},
                                              {MasterWeights::kSplit, Dtype::kBF16}};
inline std::string StatesLabel(const StatesKind& kind) {
  return std::string(MasterWeightsName(kind.masters)) + " masters, moments in " +
         std::string(DtypeName(kind.moments));
}

// The cells with states of every kind that they may have.
inline std::vector<Cell> StatesCells(const std::vector<Cell>& cells) {
  std::vector<Cell> all;
  for (const Cell& cell : cells) {
    for (const StatesKind& kind : kStatesKinds) {
      Cell next = cell;
      next.setup.precision.master_weights = kind.masters;
      next.setup.precision.moment_dtype = kind.moments;
      if (FindSetupProblem(next.setup)) continue;
      next.name += " " + StatesLabel(kind);
      all.push_back(std::move(next));
    }
  }
  return all;
}

// Those of the cells that can quantize what they send, with weights, gradients or both so.
inline std::vector<Cell> QuantizedCells(const std::vector<Cell>& cells) {
  std::vector<Cell> quantized;
  for (const Cell& cell : cells) {
    if (cell.setup.batch.world_size == 1) continue;
    for (const int what : {1, 2, 3}) {
      Cell other = cell;
      other.setup.zero.quantized_weights = (what & 1) != 0;
      other.setup.zero.quantized_gradients = (what & 2) != 0;
      if (FindSetupProblem(other.setup)) continue;
      other.name += what == 1 ? " weights in int8" : what == 2 ? " gradients in int4" : " both";
      quantized.push_back(std::move(other));
    }
  }
  return quantized;
}

// The cells with sequences over `shared` ranks, those that have as many. Rows are long enough for
// 2, 4 and 6.
inline std::vector<Cell> SequenceCells(const std::vector<Cell>& cells, int shared) {
  std::vector<Cell> out;
  for (const Cell& cell : cells) {
    if (cell.setup.batch.world_size % shared != 0) continue;
    Cell other = cell;
    other.setup.batch.seq_len = 12;
    other.setup.batch.sequence_ranks = shared;
    other.name += ", sequences over " + std::to_string(shared);
    out.push_back(std::move(other));
  }
  return out;
}

// A few cells, for what every stage treats alike.
inline std::vector<Cell> SomeCells(const std::vector<Dtype>& dtypes) {
  std::vector<Cell> cells;
  for (int stage : {0, 2, 3}) {
    for (const RecomputeConfig& recompute : {kNoRecompute, kSelectiveRecompute, FullRecompute()}) {
      for (int64_t accum : {1, 3}) {
        for (int ranks : {1, 2}) {
          for (Dtype dtype : dtypes) {
            std::string name = "stage " + std::to_string(stage) + " recompute " +
                               std::string(RecomputeName(recompute)) + " accum " +
                               std::to_string(accum) + " ranks " + std::to_string(ranks) +
                               " dtype " + std::string(DtypeName(dtype));
            cells.push_back({std::move(name), BaseSetup(stage, ranks, dtype, accum, recompute)});
          }
        }
      }
    }
  }
  return cells;
}

}  // namespace zeroplan::testing
