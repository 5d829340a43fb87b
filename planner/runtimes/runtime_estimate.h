// What choices take of memory in another runtime, and which of them fit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/config/zero_config.h"
#include "core/model/model_spec.h"
#include "planner/cluster.h"
#include "planner/runtimes/fitted.h"
#include "planner/runtimes/runtime_footprint.h"
#include "planner/runtimes/runtime_time.h"
#include "planner/runtimes/torch_machine.h"

namespace zeroplan {

enum class OtherRuntime : uint8_t { kDeepSpeed, kFsdp2 };
// "DeepSpeed", "FSDP2".
std::string_view OtherRuntimeName(OtherRuntime runtime);

// What of a model runs under torch.compile.
struct TorchCompile {
  bool layers = false, loss = false;
};
// "layers" or "all", as --compile has it; empty: nothing is compiled.
std::string_view CompileName(TorchCompile compile);
// "not compiled", "layers compiled", "layers and loss compiled".
std::string_view CompiledText(TorchCompile compile);

struct RuntimeChoice {
  TrainSetup setup;
  RuntimeFootprint footprint;  // with as much memory as it likes
  // Time of one step. Nothing where there is no machine to time it on, or where the optimizer is on
  // the host and the profile does not say how fast the host's memory is.
  std::optional<RuntimeTime> time;
  // Why it does not fit, one clause a memory; empty: it fits.
  std::string why_not;
  // It fits, but the allocator has to give segments back to the driver and ask again while it runs.
  bool empties_cache = false;
  uint64_t segments_given_back = 0;  // then, in every step (runtime_footprint.h)
  // It fits, but with the margin of error of reserved memory it would not.
  bool tight = false;

  bool fits() const { return why_not.empty(); }
};

struct RuntimeEstimate {
  OtherRuntime runtime = OtherRuntime::kDeepSpeed;
  ModelSpec model;
  Cluster cluster;
  TorchCompile compile;
  std::vector<RuntimeChoice> choices;
};

// Each of `setups` (deepspeed.h and fsdp2.h say how they are meant), judged by reserved memory,
// what lies outside the allocator, and the hosts' memory, and timed on `machine`, if there is one.
// Throws what DeepSpeedFootprint and Fsdp2Footprint throw.
RuntimeEstimate EstimateRuntime(OtherRuntime runtime, const ModelSpec& model,
                                const Cluster& cluster, const std::vector<TrainSetup>& setups,
                                TorchCompile compile, const TorchMachine* machine = nullptr);

// How far predictions were off beside measured runs (docs/runtimes.md), and as words.
const RuntimeMargins& MarginsOf(OtherRuntime runtime);
std::string RuntimeMarginText(OtherRuntime runtime);
// What the allocator may come to reserve, bytes: the prediction is too little by its margin.
double ReservedWithMargin(OtherRuntime runtime, const RuntimeFootprint& footprint);
// A table of at most 100 columns; one choice alone also gets its classes by phase.
std::string RuntimeText(const RuntimeEstimate& estimate);
// Schema "zeroplan.runtime-estimate/1" (docs/runtimes.md).
std::string RuntimeJson(const RuntimeEstimate& estimate);

}  // namespace zeroplan
