// What choices take of memory in another runtime, and which of them fit.
#pragma once

#include <string>
#include <vector>

#include "core/config/zero_config.h"
#include "core/model/model_spec.h"
#include "planner/cluster.h"
#include "planner/runtimes/runtime_footprint.h"

namespace zeroplan {

struct RuntimeChoice {
  TrainSetup setup;
  RuntimeFootprint footprint;  // with as much memory as it likes
  // Why it does not fit, one clause a memory; empty: it fits.
  std::string why_not;
  // It fits, but the allocator has to give segments back to the driver and ask again while it runs.
  bool empties_cache = false;

  bool fits() const { return why_not.empty(); }
};

struct RuntimeEstimate {
  ModelSpec model;
  Cluster cluster;
  bool compiled = false;  // layers under torch.compile
  std::vector<RuntimeChoice> choices;
};

// Each of `setups` under DeepSpeed (deepspeed.h), judged by reserved memory, what lies outside the
// allocator, and the hosts' memory. Throws what DeepSpeedFootprint throws.
RuntimeEstimate EstimateDeepSpeed(const ModelSpec& model, const Cluster& cluster,
                                  const std::vector<TrainSetup>& setups, bool compiled);

// A table of at most 100 columns; one choice alone also gets its classes by phase.
std::string RuntimeText(const RuntimeEstimate& estimate);
// Schema "zeroplan.runtime-estimate/1" (docs/runtimes.md).
std::string RuntimeJson(const RuntimeEstimate& estimate);

}  // namespace zeroplan
