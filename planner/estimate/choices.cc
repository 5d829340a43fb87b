#include "planner/estimate/choices.h"

#include "core/base/error.h"
#include "core/settings/settings.h"
#include "core/settings/setup_facts.h"

namespace zeroplan {

bool TilesNodes(int group, int gpus, int gpus_per_node) {
  const bool tiles =
      group <= gpus_per_node ? gpus_per_node % group == 0 : group % gpus_per_node == 0;
  return gpus % group == 0 && (tiles || gpus <= gpus_per_node);
}

bool CanRun(const ZeroConfig& zero) {
  const OffloadDevice optimizer = zero.offload_optimizer.device;
  if (optimizer != OffloadDevice::kNone && zero.stage == 0) return false;
  if (zero.offload_param.device != OffloadDevice::kNone && zero.stage != 3) return false;
  if (zero.shard_group > 0 && zero.stage == 0) return false;
  if (zero.across_stage > 0 &&
      (zero.offload_param.device != OffloadDevice::kNone || zero.across_stage > zero.stage)) {
    return false;
  }
  return zero.offload_optimizer.ratio >= 1 || optimizer != OffloadDevice::kNvme;
}

std::vector<TrainSetup> EnumerateSetups(const TrainSetup& base, const ChoiceSpace& space) {
  std::vector<TrainSetup> all, runnable;
  for (int stage : space.stages) {
    for (OffloadDevice optimizer : space.offload_optimizer) {
      for (OffloadDevice param : space.offload_param) {
        for (const RecomputeConfig& recompute : space.recompute) {
          TrainSetup setup = base;
          setup.zero.stage = stage;
          setup.zero.shard_group = space.grouping.ranks;
          setup.zero.across_stage = space.grouping.across_stage;
          setup.zero.offload_optimizer.device = optimizer;
          setup.zero.offload_param.device = param;
          setup.recompute = recompute;
          (CanRun(setup.zero) ? runnable : all).push_back(std::move(setup));
        }
      }
    }
  }
  if (runnable.empty()) {
    ZEROPLAN_CHECK(!all.empty(), "no choice asked for");
    ValidateSetup(all.front(), "command line");
    FailCheck(__FILE__, __LINE__, "ValidateSetup throws", SetupLabel(all.front()));
  }
  for (const TrainSetup& setup : runnable) ValidateSetup(setup, "command line");
  return runnable;
}

void UsePageableMemory(ZeroConfig& zero) {
  const auto leave_pageable = [](auto& offload) {
    if (offload.device != OffloadDevice::kNone) offload.pin_memory = false;
  };
  leave_pageable(zero.offload_optimizer);
  leave_pageable(zero.offload_param);
}

std::string StageLabel(int stage, const Grouping& grouping) {
  std::string label = fmt::format("stage {}", stage);
  if (grouping.ranks == 0) return label;
  label += fmt::format(" in groups of {}", grouping.ranks);
  if (grouping.across_stage == 1) label += ", optimizer over all";
  if (grouping.across_stage == 2) label += ", gradients and optimizer over all";
  return label;
}

StatesKind StatesOf(const PrecisionConfig& precision) {
  return {precision.master_weights, precision.moment_dtype};
}

int Inexactness(const StatesKind& states) {
  // Halves are the same numbers; a master in 16 bit loses more than any moments.
  const int masters = states.masters == MasterWeights::kFp32    ? 0
                      : states.masters == MasterWeights::kSplit ? 1
                                                                : 6;
  const int moments = states.moments == Dtype::kF32 ? 0 : states.moments == Dtype::kBF16 ? 2 : 4;
  return masters + moments;
}

ProductsKind ProductsOf(const PrecisionConfig& precision) {
  const Fp8Config& fp8 = precision.fp8;
  if (!fp8.enabled) return {};
  return {true, fp8.recipe, fp8.least_side};
}

void SetProducts(const ProductsKind& products, PrecisionConfig& precision) {
  Fp8Config& fp8 = precision.fp8;
  fp8.enabled = products.fp8;
  if (!products.fp8) return;
  fp8.recipe = products.recipe;
  fp8.least_side = products.least_side;
}

int Inexactness(const ProductsKind& products) {
  if (!products.fp8) return 0;
  return products.recipe == Fp8Recipe::kBlocks ? 1 : 2;
}

std::string ProductsLabel(const ProductsKind& products) {
  if (!products.fp8) return "";
  return products.recipe == Fp8Recipe::kBlocks ? "FP8 products by blocks" : "FP8 products";
}

std::string StatesLabel(const StatesKind& states) {
  constexpr std::string_view kMasters[] = {"", "split masters", "16-bit masters"};
  std::string label(kMasters[static_cast<size_t>(states.masters)]);
  if (states.moments == Dtype::kF32) return label;
  if (!label.empty()) label += ", ";
  return label + (states.moments == Dtype::kDynamic8 ? "8-bit states" : "bf16 states");
}

std::string RecomputeLabel(const RecomputeConfig& recompute) {
  std::string label;
  const std::string layers =
      recompute.layers > 0 ? fmt::format(" of {} layers", recompute.layers) : "";
  if (recompute.kind == RecomputeKind::kProducts) {
    label = fmt::format("products{} computed again", layers);
  } else if (recompute.every > 1) {
    label = fmt::format("recompute{} by {} layers", layers, recompute.every);
  } else if (recompute.kind != RecomputeKind::kNone) {
    label = fmt::format("{} recompute{}", RecomputeName(recompute), layers);
  }
  if (recompute.above == RecomputeKind::kSelective) label += ", selective above";
  const ActivationHome& home = recompute.offload;
  if (home.device == OffloadDevice::kNone) return label;
  if (!label.empty()) label += ", ";
  label += "activations";
  if (home.layers > 0) label += fmt::format(" of {} layers", home.layers);
  return label + fmt::format(" on {}", OffloadDeviceName(home.device));
}

std::string RecomputeFields(const RecomputeConfig& recompute) {
  std::string fields =
      fmt::format("{} {}", FieldName(setting::checkpointing), RecomputeName(recompute));
  const auto add = [&](bool given, const SettingRow& row, const auto& value) {
    if (given) fields += fmt::format(" {} {}", FieldName(row), value);
  };
  add(recompute.every > 1, setting::checkpoint_every, recompute.every);
  add(recompute.layers > 0, setting::checkpoint_layers, recompute.layers);
  add(recompute.above != RecomputeKind::kNone, setting::checkpointing_above,
      RecomputeName(recompute.above));
  const ActivationHome& home = recompute.offload;
  if (home.device != OffloadDevice::kNone && home.layers == 0) {
    fields += " " + FieldName(setting::offload_activations);
  }
  add(home.layers > 0, setting::offload_activation_layers, home.layers);
  return fields;
}

std::string SetupLabel(const TrainSetup& setup) {
  const auto& optimizer = setup.zero.offload_optimizer;
  const OffloadDevice param = setup.zero.offload_param.device;
  std::string label = StageLabel(
      setup.zero.stage,
      Hybrid(setup) ? Grouping{setup.zero.shard_group, setup.zero.across_stage} : Grouping{});
  const bool in_part = optimizer.ratio < 1;
  if (optimizer.device != OffloadDevice::kNone && optimizer.device == param && !in_part) {
    label += fmt::format(", optimizer and parameters on {}", OffloadDeviceName(param));
  } else {
    if (optimizer.device != OffloadDevice::kNone) {
      const std::string share =
          in_part ? fmt::format("{:.3g} % of the optimizer", 100 * optimizer.ratio) : "optimizer";
      label += fmt::format(", {} on {}", share, OffloadDeviceName(optimizer.device));
    }
    if (param != OffloadDevice::kNone) {
      label += fmt::format(", parameters on {}", OffloadDeviceName(param));
    }
  }
  if (!PinsMemory(setup.zero)) label += ", pageable";
  if (const int shared = setup.batch.sequence_ranks; shared > 1) {
    label += fmt::format(", sequences over {} GPUs", shared);
  }
  if (const std::string recompute = RecomputeLabel(setup.recompute); !recompute.empty()) {
    label += ", " + recompute;
  }
  if (const std::string states = StatesLabel(StatesOf(setup.precision)); !states.empty()) {
    label += ", " + states;
  }
  if (const std::string products = ProductsLabel(ProductsOf(setup.precision)); !products.empty()) {
    label += ", " + products;
  }
  return label;
}

std::string BatchText(const BatchSpec& batch) {
  std::string text = fmt::format("micro-batch {}", batch.micro_batch);
  if (batch.grad_accum > 1) text += fmt::format(" x {} micro-steps", batch.grad_accum);
  return text;
}

}  // namespace zeroplan
