// The config of plan's choice: the files of --out and --for.
#pragma once

#include <string>

#include "cli/common/command.h"
#include "cli/common/command_files.h"
#include "cli/common/output.h"
#include "planner/formats/config_format.h"
#include "planner/request/plan_answer.h"
#include "planner/request/request.h"

namespace zeroplan {

// The request of plan, and the files to write.
struct PlanOptions : PlanRequest {
  std::string deepspeed_file, plan_file, trace_file, report_file;
  bool explain = false;
  Given<OutputFormat> output_format;

  bool as_json() const { return output_format == OutputFormat::kJson; }
  // Whether the answer is printed on one screen.
  bool on_screen() const { return !explain && !as_json(); }
};

// The source of a config.
struct ConfigSource {
  FormatRequest request;   // `incoming` is that of came_in
  ConfigDocument came_in;  // --config: keys of it that are not written stay
  bool has_for = false;    // --for names the format; else it is the runtime's own
};

inline const OutputKind kConfig = {"a config that zeroplan wrote",
                                   {"\"_zeroplan\"", "planned by zeroplan"}};
inline const OutputKind kPlanOut = {"a plan that zeroplan wrote", {"\"schema\": \"zeroplan.plan/"}};

void AddConfigForOption(Command& command, PlanOptions& options);

// Applies the settings that --for implies in addition to the file: torchtitan is FSDP2's, and
// reduces gradients in fp32. Throws Error(kUsage) if --for has no file to write, or if it does not
// support the file, the runtime or the dtype.
void ApplyConfigFor(PlanOptions& options);

// Checks the files that --out makes in addition to the one that it names.
void CheckFilesBeside(const PlanOptions& options, const Runtime& runtime);

// The source of a config for a plan's choice, marked with its runtime's version.
ConfigSource SourceOf(const PlanOptions& options, const PlanAnswer& answer);

// The choice as JSON. DeepSpeed's: the content of --out. FSDP2's, which has no file of its own: the
// arguments of fully_shard and instructions for the code. "_zeroplan": {"runtime": ...} names the
// runtime.
std::string ConfigText(const ConfigSource& source);

// plan --out: writes the file. Prints on stderr the instructions for the training code; with --for
// prints on stdout where to paste the file, unless `json` includes that in the plan.
void WriteConfigFile(const ConfigSource& source, bool json);

// The same for a choice of zeroplan's own executor, as DeepSpeed's.
void WriteDeepSpeed(const PlanOptions& options, const PlanAnswer& answer);

// --for skypilot and kubernetes: writes a file that starts `train --plan` elsewhere.
void WriteLaunch(const PlanOptions& options, const PlanAnswer& answer);

}  // namespace zeroplan
