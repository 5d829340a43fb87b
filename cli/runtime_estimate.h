// --runtime of estimate and plan: memory and time as another program than zeroplan's own executor
// takes them; and what estimate prints of it.
#pragma once

#include <string>

#include "cli/common/common_options.h"
#include "hwprofiles/profile.h"
#include "planner/runtimes/runtime_estimate.h"

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
// `whose`: what --runtime decides, for the help: "Whose memory is estimated".
void AddRuntimeOptions(Command& command, RuntimeOptions& options, const char* whose);

TorchCompile CompileOf(const RuntimeOptions& options);

// Refuses what `runtime` does not model of the options that estimate and plan share; `asked`: the
// option that names it, "--runtime deepspeed".
void RefuseForRuntime(OtherRuntime runtime, const std::string& asked, const CommonOptions& common);
// Refuses keys of a config that change DeepSpeed's memory in ways that are not modelled.
void RefuseUnknownKeys(const std::string& file, const std::string& asked);
// Refuses models whose attention PyTorch has no fused kernel for.
void RefuseUnfusedAttention(const ModelSpec& model, Dtype dtype, const HardwareProfile& hardware,
                            const std::string& asked);

// Prints the estimate of options.runtime. REQUIRES: IsOther().
void RunRuntimeEstimate(const RuntimeOptions& options, const CommonOptions& common, bool json,
                        const std::string& output);

}  // namespace zeroplan
