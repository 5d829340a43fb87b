// From a request to what is estimated or searched.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "planner/estimate/estimate.h"
#include "planner/request/resolve.h"
#include "planner/search/search.h"

namespace zeroplan {

// Where a plan with disks swaps to, unless it says.
inline constexpr const char* kSwapFolder = "/local_nvme";

void LeaveOutDisks(SearchSpace& space);

// Everything a search needs, with the cost models it points to.
class ResolvedPlan {
 public:
  // Reads what it is trained on, where it has that, and settles its packing (data_fields.h). Throws
  // Error(kUsage) naming the field or the config's line; so too where `request` is for
  // a config that can say none of the choices.
  ResolvedPlan(const PlanRequest& request, Assumptions& assumptions);
  // On the machine that was found for `like`, where `request` names none. Throws as the other.
  ResolvedPlan(const PlanRequest& request, const ResolvedPlan& like, Assumptions& assumptions);
  ResolvedPlan(const ResolvedPlan&) = delete;
  ResolvedPlan& operator=(const ResolvedPlan&) = delete;

  // As it was asked, with the data that was read and its packing.
  const PlanRequest& asked() const { return asked_; }
  const SearchInputs& inputs() const { return inputs_; }
  // What would be searched if nothing were pinned.
  const SearchSpace& full() const { return full_; }
  const HardwareProfile& hardware() const { return hardware_; }
  // The GPUs that share each sequence in `space` where nobody says: one each, and all numbers that
  // may only where no GPU could have a sequence of its own.
  void UnaskedSequences(SearchSpace& space) const;
  SearchCluster ClusterOf(int gpus);
  // Puts into `inputs` the machines that a plan for `gpus` GPUs would be for, or for as many more
  // as fill the last node: of a card that is named alone, a host with more of it. This outlives
  // `inputs`. Throws Error(kUsage) for more than the hardware goes to.
  void SetMoreGpus(int gpus, SearchInputs& inputs);

 private:
  ResolvedPlan(const PlanRequest& request, HardwareProfile hardware, Assumptions& assumptions);
  void FromFields(Assumptions& assumptions);
  // Keys that the config sets stay; keys that it leaves to "auto" are searched.
  void FromConfig(Assumptions& assumptions);
  void CheckBatch(Assumptions& assumptions);
  // Leaves disks out that nobody named or measured.
  void LeaveOutDisks(Assumptions& assumptions);
  // What ⟦allow⟧ adds to the states that are said; after the base's precision is known.
  // `by_config`: whether the config says some.
  void AllowStates(bool by_config);
  // The same of products. Where a field says FP8 the space has Fp8Kinds of it.
  void AllowProducts(bool by_config);
  void PinSequences();
  void SearchSequences(Assumptions& assumptions);
  void PinGroups();
  // Throws where groups that are asked for go with nothing else that is.
  void CheckGroups() const;
  void PinOptimizer();
  void PinRecompute();
  // Leaves out what no config of `format` says. Throws Error(kUsage) where nothing is left.
  void ForConfig(ConfigFormat format);
  void CheckDeepSpeedCan(ConfigFormat format) const;
  void CheckRuntimeCan(ConfigFormat format) const;

  PlanRequest asked_;
  Request request_;  // its batch in sequences
  HardwareProfile hardware_;
  Cluster cluster_;
  SearchInputs inputs_;
  SearchSpace full_;
  std::deque<HardwareProfile> more_hardware_;
  std::deque<CostModel> costs_;
};

// Everything that an estimate of zeroplan's own runtime needs, with the cost model it points to.
class ResolvedEstimate {
 public:
  // Reads data as ResolvedPlan. Throws Error(kUsage) naming the field or the config's line.
  ResolvedEstimate(Request request, Assumptions& assumptions);
  ResolvedEstimate(const ResolvedEstimate&) = delete;
  ResolvedEstimate& operator=(const ResolvedEstimate&) = delete;

  const EstimateInputs& inputs() const { return inputs_; }
  const HardwareProfile& hardware() const { return hardware_; }

 private:
  HardwareProfile hardware_;
  EstimateInputs inputs_;
  std::optional<CostModel> costs_;
};

}  // namespace zeroplan
