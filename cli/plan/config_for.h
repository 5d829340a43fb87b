// plan --for: the program that --out writes for.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/common/output.h"
#include "cli/plan/plan_options.h"
#include "planner/formats/config_format.h"

namespace zeroplan {

void AddConfigForOption(Command& command, PlanOptions& options);

// What --for decides beside the file: torchtitan is FSDP2's, and reduces gradients in fp32. Throws
// Error(kUsage) where --for has no file to write, or the file, the runtime or the dtype is not one
// for it.
void ApplyConfigFor(PlanOptions& options);

// The files that --out makes, for CheckWritable.
std::vector<WantedFile> FilesOfOut(const PlanOptions& options, const Runtime& runtime);

// What to paste where, in lines of at most 100 columns, but for command lines.
std::string PasteText(ConfigFormat format, const WrittenConfig& written);

}  // namespace zeroplan
