// From the options of plan to what is searched.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "cli/common/resolve.h"
#include "cli/runtime_estimate.h"
#include "planner/formats/config_format.h"
#include "planner/search/search.h"

namespace zeroplan {

enum class Largest : uint8_t { kModel, kSeqLen, kMicroBatch };

struct PlanOptions {
  CommonOptions common;
  Option<Largest> largest;  // cli/plan/largest.h
  Option<Objective> objective;
  RuntimeOptions runtime;  // cli/plan/runtime_plan.h
  std::string deepspeed_file, plan_file, trace_file, report_file;
  Option<ConfigFormat> config_for;  // cli/plan/config_for.h
  bool explain = false, quick = false;
  Option<double> effort;  // times the search's budgets
  Option<OutputFormat> format;
};

// All options but those of what is written where. `options` must outlive `command`.
void AddPlanInputs(Command& command, PlanOptions& options);

inline bool AsJson(const PlanOptions& options) {
  return options.format.value_or(OutputFormat::kText) == OutputFormat::kJson;
}
// The format of --out: --for's; without it DeepSpeed's own.
inline ConfigFormat FormatOf(const PlanOptions& options) {
  return options.config_for.value_or(ConfigFormat::kDeepSpeed);
}

// Where a plan with disks swaps to, unless it says.
inline constexpr const char* kSwapFolder = "/local_nvme";

// Everything a search needs, with the cost models it points to.
class PlanRequest {
 public:
  // Throws Error(kUsage) naming the option or the config's line; so too where `options` want a
  // config for DeepSpeed and it can do none of the choices.
  PlanRequest(const PlanOptions& options, Assumptions& assumptions);

  const SearchInputs& inputs() const { return inputs_; }
  // What would be searched if nothing were pinned.
  const SearchSpace& full() const { return full_; }
  const HardwareProfile& hardware() const { return hardware_; }
  SearchCluster ClusterOf(int gpus);
  // Throws Error(kUsage) where DeepSpeed can do none of the choices, for a config of `format`.
  void CheckDeepSpeedCan(ConfigFormat format) const;

 private:
  void FromOptions(Assumptions& assumptions);
  // What the config sets stays; what it leaves to "auto" is searched.
  void FromConfig(Assumptions& assumptions);
  void CheckBatch(Assumptions& assumptions);
  // Leaves disks out that nobody named or measured.
  void LeaveOutDisks(Assumptions& assumptions);
  void PinOptimizer();
  void PinRecompute();
  void ForDeepSpeed(ConfigFormat format);

  CommonOptions options_;
  HardwareProfile hardware_;
  Cluster cluster_;
  SearchInputs inputs_;
  SearchSpace full_;
  std::deque<CostModel> costs_;
};

}  // namespace zeroplan
