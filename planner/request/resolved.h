// Converts a request to the inputs of an estimate or a search.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "planner/estimate/estimate.h"
#include "planner/request/resolve.h"
#include "planner/search/search.h"

namespace zeroplan {

// The default swap folder of a plan with disks.
inline constexpr const char* kSwapFolder = "/local_nvme";

void LeaveOutDisks(SearchSpace& space);

// All inputs of a search, with the cost models that they point to.
class ResolvedPlan {
 public:
  // Reads the training data, if there is any, and decides its packing (data_fields.h). Throws
  // Error(kUsage) naming the field or the config's line, also if `request` is for a config that can
  // express none of the choices.
  ResolvedPlan(const PlanRequest& request, Assumptions& assumptions);
  // Uses the machine that was found for `like` if `request` names none. Throws as the other does.
  ResolvedPlan(const PlanRequest& request, const ResolvedPlan& like, Assumptions& assumptions);
  ResolvedPlan(const ResolvedPlan&) = delete;
  ResolvedPlan& operator=(const ResolvedPlan&) = delete;

  // The request, with the data that was read and its packing.
  const PlanRequest& asked() const { return asked_; }
  const SearchInputs& inputs() const { return inputs_; }
  // The search space without the request's restrictions.
  const SearchSpace& full() const { return full_; }
  const HardwareProfile& hardware() const { return hardware_; }
  // Sets in `space` the number of GPUs that share a sequence, for a request that leaves it open:
  // one. If there are fewer sequences than GPUs, all numbers that can.
  void UnaskedSequences(SearchSpace& space) const;
  SearchCluster ClusterOf(int gpus);
  // Puts into `inputs` the machines of a plan for `gpus` GPUs, or for as many more as fill the last
  // node. If only a card is named, that is a host with more cards. REQUIRES: this object outlives
  // `inputs`. Throws Error(kUsage) if the hardware does not support so many.
  void SetMoreGpus(int gpus, SearchInputs& inputs);

 private:
  ResolvedPlan(const PlanRequest& request, HardwareProfile hardware, Assumptions& assumptions);
  void FromFields(Assumptions& assumptions);
  // Keys that the config sets stay; keys that it leaves to "auto" are searched.
  void FromConfig(Assumptions& assumptions);
  void CheckBatch(Assumptions& assumptions);
  // Removes disks that nobody named or measured.
  void LeaveOutDisks(Assumptions& assumptions);
  // Adds the states of ⟦allow⟧ to the request's own. REQUIRES: the base's precision is set.
  // `by_config`: whether the config sets states.
  void AllowStates(bool by_config);
  // The same for matmuls. If a field sets FP8 the space has its Fp8Kinds.
  void AllowProducts(bool by_config);
  void PinSequences();
  void SearchSequences(Assumptions& assumptions);
  void PinGroups();
  // Throws if nothing else in the request allows its groups.
  void CheckGroups() const;
  void PinOptimizer();
  void PinRecompute();
  // Removes choices that no config of `format` expresses. Throws Error(kUsage) if none remains.
  void ForConfig(ConfigFormat format);
  void CheckDeepSpeedCan(ConfigFormat format) const;
  void CheckRuntimeCan(ConfigFormat format) const;

  PlanRequest asked_;
  Request request_;  // the batch in sequences
  HardwareProfile hardware_;
  Cluster cluster_;
  SearchInputs inputs_;
  SearchSpace full_;
  std::deque<HardwareProfile> more_hardware_;
  std::deque<CostModel> costs_;
};

// All inputs of an estimate of zeroplan's own runtime, with the cost model that they point to.
class ResolvedEstimate {
 public:
  // Reads data as ResolvedPlan does. Throws Error(kUsage) naming the field or the config's line.
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
