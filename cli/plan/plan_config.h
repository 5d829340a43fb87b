// The config of plan's choice: what --out and --for write.
#pragma once

#include <string>

#include "cli/common/command.h"
#include "cli/common/command_files.h"
#include "cli/common/output.h"
#include "planner/formats/config_format.h"
#include "planner/request/plan_answer.h"
#include "planner/request/request.h"

namespace zeroplan {

// What plan is asked, and what is written where.
struct PlanOptions : PlanRequest {
  std::string deepspeed_file, plan_file, trace_file, report_file;
  bool explain = false;
  Given<OutputFormat> output_format;

  bool as_json() const { return output_format == OutputFormat::kJson; }
};

// What a config is written of.
struct ConfigSource {
  FormatRequest request;   // `incoming` is that of came_in
  ConfigDocument came_in;  // --config: keys of it that are not written stay
  bool has_for = false;    // --for names the format; else it is the runtime's own
};

inline const OutputKind kConfig = {"a config that zeroplan wrote",
                                   {"\"_zeroplan\"", "planned by zeroplan"}};
inline const OutputKind kPlanOut = {"a plan that zeroplan wrote", {"\"schema\": \"zeroplan.plan/"}};

void AddConfigForOption(Command& command, PlanOptions& options);

// What --for decides beside the file: torchtitan is FSDP2's, and reduces gradients in fp32. Throws
// Error(kUsage) where --for has no file to write, or the file, the runtime or the dtype is not one
// for it.
void ApplyConfigFor(PlanOptions& options);

// Files that --out makes besides the one that it names.
void CheckFilesBeside(const PlanOptions& options, const Runtime& runtime);

// The source of a config for a plan's choice, which is marked with its runtime's version.
ConfigSource SourceOf(const PlanOptions& options, const PlanAnswer& answer);

// The choice as JSON. DeepSpeed's: what --out has of it. FSDP2's, which has no file of its own: the
// arguments of fully_shard and what the code has to do. "_zeroplan": {"runtime": ...} names it.
std::string ConfigText(const ConfigSource& source);

// plan --out: writes it. Says on stderr what the training code has to do itself; with --for says on
// stdout what to paste where, unless `json` has that for the plan.
void WriteConfigFile(const ConfigSource& source, bool json);

// The same of a choice of zeroplan's own executor, as DeepSpeed's.
void WriteDeepSpeed(const PlanOptions& options, const PlanAnswer& answer);

// What starts `train --plan` elsewhere: --for skypilot and kubernetes.
void WriteLaunch(const PlanOptions& options, const PlanAnswer& answer);

}  // namespace zeroplan
