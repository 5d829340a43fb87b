// plan --out: the config of a choice, for the runtime that it was chosen for.
#pragma once

#include <optional>
#include <string>

#include "core/config/zero_config.h"
#include "core/model/model_spec.h"
#include "planner/formats/config_format.h"
#include "planner/runtimes/runtime_estimate.h"

namespace zeroplan {

// What a config is written of.
struct ConfigSource {
  OtherRuntime runtime = OtherRuntime::kDeepSpeed;
  std::string runtime_name;  // "deepspeed 0.19.6": what the config is marked with
  ModelSpec model;
  TrainSetup setup;
  TorchCompile compile;
  ClusterShape cluster;
  std::string came_in;  // --config: keys of it that are not written stay; empty: none
  std::string file;     // --out
  std::optional<ConfigFormat> config_for;  // --for; none: the runtime's own
};

// The choice as JSON. DeepSpeed's: what --out has of it. FSDP2's, which has no file of its own: the
// arguments of fully_shard and what the training code has to do (docs/runtimes.md). "_zeroplan":
// {"runtime": ...} names the runtime; DeepSpeed ignores it.
std::string ConfigText(const ConfigSource& source);

// plan --out: writes it. What the training code has to do itself is said on stderr; with --for it
// is what to paste where, on stdout, unless `json` has that for the plan.
void WriteConfigFile(const ConfigSource& source, bool json);

}  // namespace zeroplan
