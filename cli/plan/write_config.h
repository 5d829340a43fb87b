// plan --out: the config of a choice, for the runtime that it was chosen for.
#pragma once

#include <string>

#include "cli/plan/plan_options.h"
#include "core/config/zero_config.h"
#include "core/model/model_spec.h"
#include "planner/formats/config_format.h"
#include "planner/plan/plan.h"

namespace zeroplan {

// What a config is written of.
struct ConfigSource {
  FormatRequest request;  // `incoming` is read from came_in
  std::string came_in;    // --config: keys of it that are not written stay; empty: none
  bool has_for = false;   // --for names the format; else it is the runtime's own
};
// The source of a config for a plan's choice, which is marked with its runtime's version.
ConfigSource SourceOf(const PlanOptions& options, const Plan& plan);

// The choice as JSON. DeepSpeed's: what --out has of it. FSDP2's, which has no file of its own: the
// arguments of fully_shard and what the training code has to do (docs/runtimes.md). "_zeroplan":
// {"runtime": ...} names the runtime; DeepSpeed ignores it.
std::string ConfigText(const ConfigSource& source);

// plan --out: writes it. Says on stderr what the training code has to do itself; with --for says on
// stdout what to paste where, unless `json` has that for the plan.
void WriteConfigFile(const ConfigSource& source, bool json);

}  // namespace zeroplan
