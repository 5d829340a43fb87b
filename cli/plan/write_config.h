// plan --out: the config of a choice, for the runtime that it was chosen for.
#pragma once

#include <string>

#include "core/config/zero_config.h"
#include "core/model/model_spec.h"
#include "planner/runtimes/runtime_estimate.h"

namespace zeroplan {

// What a config is written of.
struct ConfigSource {
  OtherRuntime runtime = OtherRuntime::kDeepSpeed;
  std::string runtime_name;  // "deepspeed 0.19.6": what the config is marked with
  ModelSpec model;
  TrainSetup setup;
  TorchCompile compile;
  std::string came_in;  // --config: keys of it that are not written stay; empty: none
};

// DeepSpeed's JSON config, or for FSDP2, which has no file of its own, the arguments of fully_shard
// and what the training code has to do (docs/runtimes.md). "_zeroplan": {"runtime": ...} names the
// runtime; DeepSpeed ignores it.
std::string ConfigText(const ConfigSource& source);

// plan --out: writes it, and says on stderr what the training code has to do itself.
void WriteConfigFile(const std::string& file, const ConfigSource& source);

}  // namespace zeroplan
