// Which ZeRO stages, offloads and recomputes are compared.
#pragma once

#include <string>
#include <vector>

#include "core/config/zero_config.h"

namespace zeroplan {

// Shard groups (ZeroConfig::shard_group, across_stage).
struct Grouping {
  int ranks = 0;  // 0: all are one group
  int across_stage = 0;

  auto operator<=>(const Grouping&) const = default;  // NOLINT(modernize-use-nullptr)
};

// How optimizer states are kept (PrecisionConfig::master_weights, moment_dtype).
struct StatesKind {
  MasterWeights masters = MasterWeights::kFp32;
  Dtype moments = Dtype::kF32;

  auto operator<=>(const StatesKind&) const = default;  // NOLINT(modernize-use-nullptr)
};
StatesKind StatesOf(const PrecisionConfig& precision);
// How far from fp32: 0 where nothing is lost but for time, the more the less exact.
int Inexactness(const StatesKind& states);

// What the linears of layers multiply in (PrecisionConfig::fp8); without `fp8` the rest is as here.
struct ProductsKind {
  bool fp8 = false;
  Fp8Recipe recipe = Fp8Recipe::kTensor;
  int64_t least_side = 0;

  auto operator<=>(const ProductsKind&) const = default;  // NOLINT(modernize-use-nullptr)
};
ProductsKind ProductsOf(const PrecisionConfig& precision);
void SetProducts(const ProductsKind& products, PrecisionConfig& precision);
// How far from products of 16 bits: 0 where they are that, the more the less exact.
int Inexactness(const ProductsKind& products);

// Whether ranks of such groups tile nodes: a group is a part of a node that divides it, or whole
// nodes. REQUIRES: group >= 1.
bool TilesNodes(int group, int gpus, int gpus_per_node);

struct ChoiceSpace {
  std::vector<int> stages = {0, 1, 2, 3};
  std::vector<OffloadDevice> offload_optimizer = {OffloadDevice::kNone, OffloadDevice::kCpu,
                                                  OffloadDevice::kNvme};
  std::vector<OffloadDevice> offload_param = {OffloadDevice::kNone, OffloadDevice::kCpu,
                                              OffloadDevice::kNvme};
  std::vector<RecomputeConfig> recompute = {kNoRecompute};
  Grouping grouping;
};

// Whether stage and offloads go together: optimizer offload from stage 1, parameter offload at
// stage 3, a ratio below 1 with the CPU only; groups from stage 1 on, which share gradients from
// stage 2 on, and nothing where parameters are offloaded.
bool CanRun(const ZeroConfig& zero);

// `base` with each combination that can run (CanRun), by stage, offload_optimizer, offload_param,
// recompute. If not one can run, throws the Error(kUsage) of the first, which names key and fix.
std::vector<TrainSetup> EnumerateSetups(const TrainSetup& base, const ChoiceSpace& space);

// What is offloaded stays pageable, its staging too.
void UsePageableMemory(ZeroConfig& zero);

// "stage 3 in groups of 8, optimizer over all"; no groups: "stage 3".
std::string StageLabel(int stage, const Grouping& grouping);
// "16-bit masters, bf16 states"; "" where all are fp32.
std::string StatesLabel(const StatesKind& states);
// "FP8 products", "FP8 products by blocks"; "" without any.
std::string ProductsLabel(const ProductsKind& products);
// "full recompute of 12 layers, selective above, activations of 20 layers on cpu"; "" where all are
// kept on the GPU.
std::string RecomputeLabel(const RecomputeConfig& recompute);
// The fields that ask for it: "⟦checkpointing⟧ full ⟦checkpoint_layers⟧ 12".
std::string RecomputeFields(const RecomputeConfig& recompute);
// "stage 2, optimizer on cpu, sequences over 4 GPUs, full recompute, 8-bit states, FP8 products".
std::string SetupLabel(const TrainSetup& setup);
// "micro-batch 4 x 2 micro-steps".
std::string BatchText(const BatchSpec& batch);

}  // namespace zeroplan
