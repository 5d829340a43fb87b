// estimate --runtime: memory as another program than zeroplan's own executor takes it.
#pragma once

#include <string>

#include "cli/common/common_options.h"

namespace zeroplan {

enum class RuntimeKind : uint8_t { kZeroplan, kDeepSpeed, kFsdp2 };

enum class CompileKind : uint8_t { kLayers, kAll };

struct RuntimeOptions {
  Option<RuntimeKind> runtime;
  Option<CompileKind> compile;

  // Whether another program is asked about. Throws Error(kUsage) where an option of such a program
  // is given without it.
  bool IsOther() const;
};
void AddRuntimeOptions(Command& command, RuntimeOptions& options);

// Prints the estimate of options.runtime. REQUIRES: IsOther().
void RunRuntimeEstimate(const RuntimeOptions& options, const CommonOptions& common, bool json,
                        const std::string& output);

}  // namespace zeroplan
