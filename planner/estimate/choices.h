// The ZeRO stages, offloads and recomputes that are compared.
#pragma once

#include <string>
#include <vector>

#include "core/settings/zero_config.h"

namespace zeroplan {

// Shard groups (ZeroConfig::shard_group, across_stage).
struct Grouping {
  int ranks = 0;  // 0: all are one group
  int across_stage = 0;

  auto operator<=>(const Grouping&) const = default;  // NOLINT(modernize-use-nullptr)
};

// The kinds of optimizer states (PrecisionConfig::master_weights, moment_dtype).
struct StatesKind {
  MasterWeights masters = MasterWeights::kFp32;
  Dtype moments = Dtype::kF32;

  auto operator<=>(const StatesKind&) const = default;  // NOLINT(modernize-use-nullptr)
};
StatesKind StatesOf(const PrecisionConfig& precision);
// The distance from fp32: 0 if lossless, higher is less exact.
int Inexactness(const StatesKind& states);

// The dtype in which the linears of layers multiply (PrecisionConfig::fp8); without `fp8` the other
// members keep their defaults.
struct ProductsKind {
  bool fp8 = false;
  Fp8Recipe recipe = Fp8Recipe::kTensor;
  int64_t least_side = 0;

  auto operator<=>(const ProductsKind&) const = default;  // NOLINT(modernize-use-nullptr)
};
ProductsKind ProductsOf(const PrecisionConfig& precision);
void SetProducts(const ProductsKind& products, PrecisionConfig& precision);
// The distance from 16-bit matmuls: 0 if they are 16-bit, higher is less exact.
int Inexactness(const ProductsKind& products);

// Whether shard groups of that size tile nodes: a group is a part of a node that divides it, or
// whole nodes. REQUIRES: group >= 1.
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

// Whether stage and offloads are compatible: optimizer offload from stage 1, parameter offload at
// stage 3, a ratio below 1 with the CPU only; shard groups from stage 1 on, sharing gradients from
// stage 2 on, and nothing if parameters are offloaded.
bool CanRun(const ZeroConfig& zero);

// `base` with each combination that can run (CanRun), by stage, offload_optimizer, offload_param,
// recompute. If none can run, throws the Error(kUsage) of the first, which names key and fix.
std::vector<TrainSetup> EnumerateSetups(const TrainSetup& base, const ChoiceSpace& space);

// Keeps all offloaded states, and their staging, in pageable memory.
void UsePageableMemory(ZeroConfig& zero);

// "stage 3 in groups of 8, optimizer over all"; no groups: "stage 3".
std::string StageLabel(int stage, const Grouping& grouping);
// "16-bit masters, bf16 states"; "" if all are fp32.
std::string StatesLabel(const StatesKind& states);
// "FP8 products", "FP8 products by blocks"; "" without any.
std::string ProductsLabel(const ProductsKind& products);
// "full recompute of 12 layers, selective above, activations of 20 layers on cpu"; "" if all
// activations stay on the GPU.
std::string RecomputeLabel(const RecomputeConfig& recompute);
// The request's fields for it: "⟦checkpointing⟧ full ⟦checkpoint_layers⟧ 12".
std::string RecomputeFields(const RecomputeConfig& recompute);
// "stage 2, optimizer on cpu, sequences over 4 GPUs, full recompute, 8-bit states, FP8 products".
std::string SetupLabel(const TrainSetup& setup);
// "micro-batch 4 x 2 micro-steps".
std::string BatchText(const BatchSpec& batch);

}  // namespace zeroplan
